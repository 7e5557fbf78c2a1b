"""Writes what `medir coverage` counts where readers see it.

That is a sentence of the README, a table of docs/rerunning.md, and the stored line of each notebook.
Run it (`make coverage`) after published cells, registries or the results in `figures/` have changed; a test fails
until then.
"""

import ast
import json
from pathlib import Path
from medir_nb.workbook import coverage_line, with_coverage

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / 'README.md', ROOT / 'docs/rerunning.md']
NOTEBOOKS = sorted((ROOT / 'nbs').glob('papers/*.ipynb')) + [ROOT / 'nbs' / 'referees.ipynb']


def called_with(source: str) -> list[str] | None:
    "The arguments of the `coverage_line` that a cell ends in; None for any other cell."
    if 'coverage_line(' not in source:
        return None
    call = ast.parse(source).body[-1].value
    return [argument.value for argument in call.args]


def stored_lines(notebook: dict) -> list[tuple[dict, list[str]]]:
    "The outputs of a notebook that show a coverage line, with its arguments."
    cells = [(cell, called_with(''.join(cell['source']))) for cell in notebook['cells'] if cell['cell_type'] == 'code']
    return [(output, arguments) for cell, arguments in cells if arguments for output in cell['outputs']]


def refresh(path: Path):
    "Write the stored lines of a notebook anew."
    notebook = json.loads(path.read_text(encoding='utf-8'))
    for output, arguments in stored_lines(notebook):
        line = coverage_line(*arguments)
        output['data'] = {'text/markdown': [str(line)], 'text/plain': [repr(line)]}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')


def main():
    for document in DOCUMENTS:
        document.write_text(with_coverage(document.read_text(encoding='utf-8')), encoding='utf-8')
    for path in NOTEBOOKS:
        refresh(path)


if __name__ == '__main__':
    main()
