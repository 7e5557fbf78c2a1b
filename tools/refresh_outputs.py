"""Runs lessons and keeps what they show now, where it differs in words from what is stored.

    python tools/refresh_outputs.py [NOTEBOOK …]     without a name: all lessons
    python tools/refresh_outputs.py --check [NOTEBOOK …]     keeps nothing, names the lessons that show something else

Cells of `#| eval: false` are left as they are. Last digits differ between machines, and in the notebooks of
`OF_THE_RUN` all numbers do: there only words are compared. The pages of papers and recipes are those of their presets
(`store_outputs.py`).
"""

import json
import math
import re
import sys
import tempfile
from pathlib import Path
import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / 'nbs'
SKIPPED = 'skip-execution'
# they show times, or curves of trainings
OF_THE_RUN = {'00_statistics', '01_profile', '04_bm25', '06_adapting', '08_losses', '09_speed'}
OF_THE_RUN |= {'12_safe_training', '13_launch', '15_encoders', '18_cli_evaluate', '22_retromae'}
# addresses, temporary folders, and hashes
OF_THE_DAY = r'0x[0-9a-f]+|/\S*/|\btmp\w{8}\b|\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b'
NUMBER = r'\d+(?:\.\d+)?(?:e[-+]?\d+)?'


def is_left_out(source: str) -> bool:
    return bool(re.match(r'(#\|.*\n)*#\| *eval: *false', source))


def value(outputs: list[dict]) -> str:
    "What a lesson shows, without what it says to stderr, bars, addresses and temporary folders."
    data = [output.get('data', {}) for output in outputs if output.get('name') != 'stderr']
    texts = [''.join(kinds.get('text/markdown') or kinds.get('text/plain', '')) for kinds in data]
    texts += [''.join(output['text']) for output in outputs if output.get('name') == 'stdout']
    text = re.sub(OF_THE_DAY, '', '\n'.join(text for text in texts if 'it/s]' not in text))
    return re.sub(r' (?=[,\])])', '', ' '.join(text.split()))  # numpy fills up columns


def words(outputs: list[dict]) -> str:
    "The value without its numbers and without what aligns them."
    return re.sub(r'[-+]?[\d.,]+(e[-+]?\d+)?', '#', re.sub(r'\s+|-{2,}', ' ', value(outputs)))


def is_same(stored: str, new: str) -> bool:
    "Whether two texts say the same; a fraction may differ in its last digits, which are others on each processor."
    if re.sub(NUMBER, '#', stored) != re.sub(NUMBER, '#', new):
        return False
    pairs = zip(re.findall(NUMBER, stored), re.findall(NUMBER, new), strict=True)
    return all(
        a == b or '.' in a + b and math.isclose(float(a), float(b), rel_tol=1e-3, abs_tol=1e-5) for a, b in pairs
    )


def is_as_stored(notebook: str, stored: list[dict], new: list[dict]) -> bool:
    "Whether a lesson shows what is stored, apart from what belongs to the run."
    if notebook in OF_THE_RUN:
        return words(stored) == words(new)
    return is_same(value(stored), value(new))


def run(notebook: Path) -> list:
    "The cells of a notebook after a run."
    node = nbformat.read(notebook, 4)
    for cell in node.cells:
        if cell.cell_type == 'code' and is_left_out(cell.source):
            cell.metadata['tags'] = [SKIPPED]
    NotebookClient(node, timeout=600, resources={'metadata': {'path': str(notebook.parent)}}).execute()
    return json.loads(nbformat.writes(node))['cells']


def refresh(notebook: Path) -> int:
    "Run a notebook and store its outputs that say something else; how many."
    stored, taken = json.loads(notebook.read_text(encoding='utf-8')), 0
    for cell, new in zip(stored['cells'], run(notebook), strict=True):
        was_run = cell['cell_type'] == 'code' and SKIPPED not in new['metadata'].get('tags', [])
        if was_run and not is_as_stored(notebook.stem, cell['outputs'], new['outputs']):
            folders = re.escape(tempfile.gettempdir()) + '/'
            cell['outputs'], taken = json.loads(re.sub(folders, '', json.dumps(new['outputs']))), taken + 1
    if taken:
        notebook.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')
    return taken


def differing(notebook: Path) -> dict[str, tuple]:
    "Lessons by their first line, with the stored and the new value, where the two differ; an `assert` checks itself."
    found = {}
    for cell, new in zip(json.loads(notebook.read_text(encoding='utf-8'))['cells'], run(notebook), strict=True):
        source = ''.join(cell['source'])
        if cell['cell_type'] != 'code' or source.startswith('#| export') or re.search(r'^\s*assert ', source, re.M):
            continue
        was_run = SKIPPED not in new['metadata'].get('tags', [])
        if was_run and not is_as_stored(notebook.stem, cell['outputs'], new['outputs']):
            found[source.partition('\n')[0]] = value(cell['outputs']), value(new['outputs'])
    return found


def main(names: list[str]):
    only_check = '--check' in names
    named = [Path(name) for name in names if name != '--check']
    for notebook in named or [NOTEBOOKS / 'index.ipynb', *sorted(NOTEBOOKS.glob('[0-9]*/[0-9]*.ipynb'))]:
        said = differing(notebook) or 'as stored' if only_check else f'{refresh(notebook)} outputs'
        print(f'{notebook.stem}: {said}', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
