"""Runs lessons and keeps what they show now, where it differs in words from what is stored.

    python tools/refresh_outputs.py [NOTEBOOK …]     without a name: all lessons

Cells of `#| eval: false` are left as they are, and so are outputs that differ in their numbers alone: times and last
digits are others on each machine. The pages of papers and recipes are those of their presets (`store_outputs.py`).
"""

import json
import re
import sys
import tempfile
from pathlib import Path
import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / 'nbs'
SKIPPED = 'skip-execution'


def is_left_out(source: str) -> bool:
    return bool(re.match(r'(#\|.*\n)*#\| *eval: *false', source))


def words(outputs: list[dict]) -> str:
    "What outputs say, without numbers, addresses and the names of temporary folders."
    shown = [output.get('text') or output.get('data', {}).get('text/plain', '') for output in outputs]
    text = re.sub(r'0x[0-9a-f]+|/\S*/|\btmp\w{8}\b', '', '\n'.join(map(''.join, shown)))
    return re.sub(r'[-+]?[\d.,]+(e[-+]?\d+)?', '#', re.sub(r'\s+|-{2,}', ' ', text))


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
        if was_run and words(cell['outputs']) != words(new['outputs']):
            folders = re.escape(tempfile.gettempdir()) + '/'
            cell['outputs'], taken = json.loads(re.sub(folders, '', json.dumps(new['outputs']))), taken + 1
    if taken:
        notebook.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')
    return taken


def main(names: list[str]):
    for notebook in [Path(name) for name in names] or sorted(NOTEBOOKS.glob('[0-9]*/[0-9]*.ipynb')):
        print(f'{notebook.stem}: {refresh(notebook)} outputs', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
