"""Puts what the `demo` preset of each paper's notebook shows into the notebook itself, where its readers look first.

    python tools/store_outputs.py [NOTEBOOK …]     those of nbs/papers; all of them without one

A demo that ran already with the same code and data is not run again. `make figures` calls this.
"""

import json
import subprocess
import sys
from pathlib import Path
from medir_nb.workbook import run_notebook

PAPERS = Path(__file__).parents[1] / 'nbs' / 'papers'


def outputs_of(executed: Path) -> dict[str, list]:
    "The outputs of an executed notebook, by the source of their cell."
    cells = json.loads(executed.read_text(encoding='utf-8'))['cells']
    return {''.join(cell['source']): cell['outputs'] for cell in cells if cell['cell_type'] == 'code'}


def store(path: Path, executed: Path):
    "Give each cell of a notebook the outputs that it has in its executed copy."
    notebook, outputs = json.loads(path.read_text(encoding='utf-8')), outputs_of(executed)
    for cell in notebook['cells']:
        if cell['cell_type'] == 'code':
            cell['outputs'] = outputs[''.join(cell['source'])]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')


def main(names: list[str]):
    for path in sorted(PAPERS.glob('*.ipynb')):
        if not names or path.stem in names:
            receipt = run_notebook(path.stem, 'demo')
            store(path, Path(receipt['output']))
            print(f'{path.name}: outputs of {Path(receipt["output"]).parent.name}')
    subprocess.run(['nbdev_clean', '--fname', str(PAPERS)], check=True)


if __name__ == '__main__':
    main(sys.argv[1:])
