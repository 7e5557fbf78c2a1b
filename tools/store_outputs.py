"""Puts what the `demo` preset of a notebook shows into the notebook itself, where its readers look first.

    python tools/store_outputs.py [NOTEBOOK …]     without a name: the pages on all papers and those of nbs/papers

Two trainings are too short in their demo to say anything: their pages show the preset `showcase`. A run that is there
already with the same code and data is not repeated. `make figures` calls this.
"""

import json
import subprocess
import sys
from pathlib import Path
from medir_nb.core import home
from medir_nb.workbook import find_notebook, run_notebook

NOTEBOOKS = Path(__file__).parents[1] / 'nbs'
PRESETS = {
    'bmretriever_training': 'showcase',
    'bmretriever_ablations': 'showcase',
    'families': 'showcase',
    'subgroups': 'showcase',
    'robust_training': 'showcase',
    'stress': 'showcase',
    'approximate_search': 'showcase',
}  # all others: demo
STORED_WITH = 'stored-with'  # the cell that names the parameters of the stored outputs
CURSOR_UP = '\x1b[A'
WIDGET = 'application/vnd.jupyter.widget-view+json'  # nothing without the kernel that drew it


def is_bar(output: dict) -> bool:
    "Whether an output is a bar: a widget, or drawn over and over again, or only a terminal's cursor that moves to one."
    if WIDGET in output.get('data', {}):
        return True
    if output['output_type'] != 'stream':
        return False
    text = ''.join(output['text'])
    return text.startswith('\r') or not text.replace(CURSOR_UP, '').strip()


def page_outputs(outputs: list[dict]) -> list[dict]:
    "What a page shows of a cell's outputs."
    return [output for output in outputs if not is_bar(output)]


def outputs_of(executed: Path) -> dict[str, list]:
    "The outputs of an executed notebook, by the source of their cell."
    # a reader's folders are others
    text = executed.read_text(encoding='utf-8').replace(str(executed.parent), executed.parent.name)
    text = text.replace(str(home()), '$MEDIR_HOME')
    cells = json.loads(text)['cells']
    code = [cell for cell in cells if cell['cell_type'] == 'code']
    return {''.join(cell['source']): page_outputs(cell['outputs']) for cell in code}


def tags(cell: dict) -> list[str]:
    return cell['metadata'].get('tags', [])


def parameters_cell(executed: Path) -> dict | None:
    "The parameters that papermill injected, as a Markdown cell: a run of the page itself keeps its own defaults."
    cells = json.loads(executed.read_text(encoding='utf-8'))['cells']
    injected = next((cell for cell in cells if 'injected-parameters' in tags(cell)), None)
    if injected is None:
        return None
    lines = ''.join(injected['source']).replace(str(home()), '$MEDIR_HOME').removeprefix('# Parameters\n').strip()
    text = f'The outputs stored on this page were made with these parameters:\n\n```python\n{lines}\n```'
    source = text.splitlines(keepends=True)
    return {'cell_type': 'markdown', 'id': STORED_WITH, 'metadata': {'tags': [STORED_WITH]}, 'source': source}


def with_parameters(cells: list[dict], shown: dict | None) -> list[dict]:
    "The cells of a page, with the parameters of its outputs behind its own."
    kept = [cell for cell in cells if STORED_WITH not in tags(cell)]
    place = next((i for i, cell in enumerate(kept, 1) if 'parameters' in tags(cell)), 0)
    return [*kept[:place], shown, *kept[place:]] if shown and place else kept


def store(path: Path, executed: Path):
    "Give each cell of a notebook the outputs that it has in its executed copy, and name the parameters of that run."
    notebook, outputs = json.loads(path.read_text(encoding='utf-8')), outputs_of(executed)
    for cell in notebook['cells']:
        if cell['cell_type'] == 'code':
            cell['outputs'] = outputs[''.join(cell['source'])]
    notebook['cells'] = with_parameters(notebook['cells'], parameters_cell(executed))
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')


def main(names: list[str]):
    papers = sorted(path.stem for path in (NOTEBOOKS / 'papers').glob('*.ipynb'))
    for name in names or ['referees', 'second_numbers', 'families', *papers]:
        path, receipt = find_notebook(name), run_notebook(name, PRESETS.get(name, 'demo'))
        store(path, Path(receipt['output']))
        print(f'{path.name}: outputs of {Path(receipt["output"]).parent.name}')
        subprocess.run(['nbdev_clean', '--fname', str(path)], check=True)


if __name__ == '__main__':
    main(sys.argv[1:])
