"""How dense the exporting notebooks are, in the figures that were given for fastcore and claudette.

    python tools/density.py [NOTEBOOK|FOLDER …] [--rooms]

The size of a cell is its lines as they stand, blank ones and `#|` directives included. A lesson is a code cell that is
neither exported nor only imports. Words are those of Markdown cells, between white space.
"""

import argparse
import ast
import io
import json
import statistics
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
# figures that were given for the two projects; this program has not been run on their notebooks
MODELS = {
    'fastcore': {'median': 6, 'p90': 16, 'longest': 51, 'lessons': 1.64, 'prose': 3.9, 'over 140': 1.8, 'joined': 6},
    'claudette': {'median': 8.5, 'p90': 23, 'longest': 29, 'lessons': 5.6, 'prose': 8.2, 'over 140': 0.7, 'joined': 0},
}

# the most that the package may have, and the least of `AT_LEAST`: the aims, but for exported lines, whose aim is 37,000
# and whose limit is what there is, with room for a class
LIMITS = {
    'exported lines': 48_200,
    'lines of tests': 27_000,
    'rooms': 12,
    'public names': 900,
    'signatures with home_folder': 60,
    'lessons that call a private helper, %': 8,
    'words an exported line': 3,
    'longest cell': 60,
    'p90 of cells': 28,
}
AT_LEAST = {'words an exported line'}


def lines_of(source: str) -> list[str]:
    "The lines of a cell that hold code or a comment."
    return [line for line in source.splitlines() if line.strip() and not line.startswith('#|')]


def is_import(source: str) -> bool:
    "Whether a cell holds nothing but imports."
    try:
        body = ast.parse('\n'.join(lines_of(source))).body
    except SyntaxError:
        return False
    return all(isinstance(statement, (ast.Import, ast.ImportFrom)) for statement in body)


def joined_statements(source: str) -> int:
    "How many semicolons join two statements; one that ends a line only silences its value."
    tokens = tokenize.generate_tokens(io.StringIO('\n'.join(lines_of(source)) + '\n').readline)
    try:
        tokens = list(tokens)
    except (tokenize.TokenError, IndentationError):
        return 0
    following = (tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER)
    return sum(a.string == ';' and b.type not in following for a, b in zip(tokens, tokens[1:], strict=False))


def density(notebooks: list[Path]) -> dict:
    "The figures of some notebooks together."
    exported, lessons, words, all_lines, joined = [], 0, 0, [], 0
    for notebook in notebooks:
        for cell in json.loads(notebook.read_text(encoding='utf-8'))['cells']:
            source = ''.join(cell['source'])
            if cell['cell_type'] == 'markdown':
                words += len(source.split())
                continue
            lines = lines_of(source)
            if not lines:
                continue
            all_lines += lines
            joined += joined_statements(source)
            if source.startswith('#| export'):
                exported.append(len(source.splitlines()))
            elif not is_import(source):
                lessons += 1
    exported.sort()
    return {
        'cells': len(exported),
        'median': statistics.median(exported),
        'p90': exported[int(0.9 * len(exported))],
        'longest': exported[-1],
        'lessons': round(lessons / len(exported), 2),
        'prose': round(words / sum(exported), 1),
        'over 120': round(100 * sum(len(line) > 120 for line in all_lines) / len(all_lines), 1),
        'over 140': round(100 * sum(len(line) > 140 for line in all_lines) / len(all_lines), 1),
        'longest line': max(map(len, all_lines)),
        'joined': joined,
        'lines': sum(exported),
    }


def exporting(paths: list[str]) -> list[Path]:
    "The notebooks below `paths` that export a module."
    files = [
        file for path in paths for file in ([Path(path)] if path.endswith('.ipynb') else Path(path).rglob('*.ipynb'))
    ]
    return sorted(file for file in files if '#| default_exp' in file.read_text(encoding='utf-8'))


def public_names(modules: Path) -> int:
    "The names in the modules' own lists; a door only lists them again."
    found = 0
    for path in modules.rglob('*.py'):
        if path.name in ('__init__.py', '_modidx.py'):
            continue
        for node in ast.parse(path.read_text(encoding='utf-8')).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == '__all__':
                found += len(ast.literal_eval(node.value))
    return found


def signatures_with(parameter: str, modules: Path) -> int:
    "How many functions of the package take a parameter of this name."
    functions = (
        node.args
        for path in modules.rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    return sum(parameter in {a.arg for a in args.posonlyargs + args.args + args.kwonlyargs} for args in functions)


def is_private(name: str) -> bool:
    return name.startswith('_') and not name.startswith('__') and name != '_'


def calls_private(source: str) -> bool:
    "Whether a lesson calls a function or a method whose name begins with one underscore."
    try:
        tree = ast.parse('\n'.join(lines_of(source)))
    except SyntaxError:
        return False
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(is_private(getattr(f, 'id', getattr(f, 'attr', ''))) for f in called)


def private_lessons(notebooks: list[Path]) -> float:
    "The percentage of lessons that call a private helper."
    lessons = [
        source
        for notebook in notebooks
        for cell in json.loads(notebook.read_text(encoding='utf-8'))['cells']
        if cell['cell_type'] == 'code' and lines_of(source := ''.join(cell['source']))
        if not source.startswith('#| export') and not is_import(source)
    ]
    return round(100 * sum(map(calls_private, lessons)) / len(lessons), 1)


def house(root: Path = ROOT) -> dict[str, float]:
    "The figures of the whole package that `LIMITS` bounds."
    notebooks, modules = exporting([str(root / 'nbs')]), root / 'medir_nb'
    figures = density(notebooks)
    sources = [p.read_text(encoding='utf-8') for p in modules.rglob('*.py') if p.name != '_modidx.py']
    tests = [path.read_text(encoding='utf-8') for path in (root / 'tests').rglob('*.py')]
    return {
        'exported lines': sum(len(text.splitlines()) for text in sources),
        'lines of tests': sum(len(text.splitlines()) for text in tests),
        'rooms': len({path.parent for path in modules.glob('*/[a-z]*.py')}),
        'public names': public_names(modules),
        'signatures with home_folder': signatures_with('home_folder', modules),
        'lessons that call a private helper, %': private_lessons(notebooks),
        'words an exported line': figures['prose'],
        'longest cell': figures['longest'],
        'p90 of cells': figures['p90'],
    }


def table(rows: dict[str, dict]) -> str:
    "A Markdown table with a row for each name."
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    lines = [f'| | {" | ".join(columns)} |', '|---' * (len(columns) + 1) + '|']
    lines += [
        f'| {name} | {" | ".join(str(row.get(column, "")) for column in columns)} |' for name, row in rows.items()
    ]
    return '\n'.join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('paths', nargs='*', default=[str(ROOT / 'nbs')])
    parser.add_argument('--rooms', action='store_true', help='a row for each folder')
    given = parser.parse_args()
    notebooks = exporting(given.paths)
    rows = {'here': density(notebooks), **MODELS}
    if given.rooms:
        rooms = dict.fromkeys(n.parent if n.parent.name != 'nbs' else n for n in notebooks)
        rows |= {room.stem: density([n for n in notebooks if room in (n, n.parent)]) for room in rooms}
    print(table(rows))
    figures = house()
    print()
    print(table({name: {'now': figures[name], 'limit': limit} for name, limit in LIMITS.items()}))


if __name__ == '__main__':
    main()
