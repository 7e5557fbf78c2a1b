"""Lay out the site: every page as Markdown, the leaderboard, downloads, and the order of the pages.

python tools/site/stage.py FOLDER, then `mkdocs build`; `make docs` does both.
"""

import csv
import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parent))
from notebooks import joined, page_of
from reference import GROUPS, api_page, api_place, names_at_door, plain, room_doc, rooms_here, settings_page, table

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
OF_ALL_PAPERS = ('referees', 'reproduce', 'second_numbers')  # notebooks of nbs/ that stand with the papers
PAPERS = {'bmretriever': 'BMRetriever', 'r2med': 'R2MED', 'automir': 'AutoMIR', 'mar': 'MedTEB and MAR'}
# headings below which a notebook checks its paper, and how the index of the papers calls them
CHECKS = {
    'The claim audit': 'Claims, audited',
    'What the printed tables say by themselves': 'Printed numbers, recomputed and checked',
    'The published numbers among themselves': 'Printed numbers, recomputed and checked',
    'What differs, and why': 'What differs, and why',
}
# pictures of a page that are no file of figures/: how many, and why, as the page's foot says it
UNKEPT = {
    'mar_training': (
        2,
        'The two panels below *Training* were drawn while it trained and are kept in the page alone; '
        "the first one's numbers are the last rows of `mar_training_panel`.",
    )
}
LIMIT = 6_000_000  # bytes of the built site without its pictures
GUIDES = 'commands own_documents serving training rerunning'.split()  # pages of docs/ that stand under Learn
CARRY = 'carrying-on adding design decisions environment contributing published changelog'.split()


def title_of(text: str, otherwise: str) -> str:
    "The first heading of a page."
    found = re.search(r'^# (.+)$', text, re.M)
    return found[1].strip('`* ') if found else otherwise


def template(name: str, **values) -> str:
    "A page of `pages/` with its values."
    return (HERE / 'pages' / f'{name}.md').read_text(encoding='utf-8').format(**values)


def read(address: str) -> str:
    return (ROOT / address).read_text(encoding='utf-8')


# a note for the tests above a block of code that they leave out, or leave to `make slow`; no visitor needs it
MARK = re.compile(r'^<!-- (?:not run|slow): .+? -->\n?', re.M)


class Site:
    "Pages by address, and which file of the repository became which page."

    def __init__(self, folder: Path):
        self.folder, self.pages, self.place = folder, {}, {}

    def add(self, address: str, text: str, *sources: str):
        self.pages[address] = text
        self.place |= dict.fromkeys(sources, address)

    def _mended(self, address: str, source: str, found) -> str:
        "A link to a file of the repository as one to its page; to a file that is no page, as its name."
        mark, said, target = found.groups()
        if re.match(r'[a-z]+:|#', target):
            return found[0]
        path, _, anchor = target.partition('#')
        file = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if page := self.place.get(file) or self.place.get(f'{file}/README.md'):
            relative = os.path.relpath(page, os.path.dirname(address) or '.')
            return f'{mark}[{said}]({relative}{"#" + anchor if anchor else ""})'
        if (self.folder / file).is_file():  # a figure, which lies here where it lies in the repository
            return f'{mark}[{said}]({os.path.relpath(file, os.path.dirname(address) or ".")})'
        here = self.folder / os.path.dirname(address) / path
        if here.is_file() or os.path.relpath(here, self.folder) in self.pages:
            return found[0]
        return said if said.startswith('`') or mark else f'{said} (`{file}`)'

    def linked(self, address: str, text: str, source: str) -> str:
        "A page whose links lead to pages; fenced code stays as it is."
        parts = re.split(r'(^(`{3,}).*?^\2$)', text, flags=re.M | re.S)
        link = re.compile(r'(!?)\[([^\]\n]*)\]\(([^)\s]+)\)')
        prose = [link.sub(lambda found: self._mended(address, source, found), part) for part in parts[::3]]
        prose = [MARK.sub('', part) for part in prose]
        code = [*parts[1::3], '']
        return ''.join(before + fence for before, fence in zip(prose, code))

    def write(self):
        sources = {page: source for source, page in reversed(self.place.items())}
        for address, text in self.pages.items():
            file = self.folder / address
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.linked(address, text, sources.get(address, address)), encoding='utf-8')


# ---------------------------------------------------------------- what the front page takes from the leaderboard


def open_values(data: dict) -> dict[int, dict]:
    "nDCG@10 by task of each retriever alone with open weights in R2MED's result files, by the number of its row."
    cells, values = data['cells'], {}
    rows = {i for i, s in enumerate(data['systems']) if (s['table'], s['weights']) == ('base', 'open')}
    for row, column, value in zip(cells['row'], cells['column'], cells['value']):
        head = data['columns'][column]
        if row in rows and head['measure'] == 'nDCG@10' and 'task' in head:
            values.setdefault(row, {})[data['tasks'][head['task']]['name']] = value
    return values


def ranked_retrievers(data: dict) -> list[dict]:
    "Retrievers without a service on R2MED's tasks, the best first, with rank and values."
    import pandas as pd
    from medir_nb.papers.papers import paper_tasks
    from medir_nb.workbook.boards import rank_spread

    values, tasks = open_values(data), paper_tasks('r2med')
    found = []
    for row, rank in rank_spread(pd.DataFrame(values).T, tasks).iterrows():
        own = {task: values[row][task] for task in tasks}
        found.append({**data['systems'][row], **rank.to_dict(), 'values': own})
    return found


def shown_retrievers(ranked: list[dict]) -> list[dict]:
    "The five best, the best one of less than half a billion parameters, and BM25."
    rest = ranked[5:]
    small = [system for system in rest if system['parts'] and (system['size'] or 1) < 0.5]
    words = [system for system in rest if not system['parts']]
    return [*ranked[:5], *small[:1], *words[:1]]


def size_text(size: float | None) -> str:
    if not size:
        return 'not known' if size is None else 'no weights'
    return f'{1000 * size:.0f} M' if size < 1 else f'{size:.1f} B'


def time_text(hours: float) -> str:
    if hours < 1:
        return f'≈{60 * hours:.0f} min'
    return f'≈{hours:.1f} h' if hours < 10 else f'≈{hours:.0f} h'


def cost_text(expression: str, tasks: list[str]) -> str:
    "How long a system takes for all of some tasks: on one GPU, and where two cores do one within a day, on these."
    from medir_nb.workbook.cell_tables import hours_on, way_of

    hours, ways = hours_on(expression, tasks), {way_of(expression, task).name for task in tasks}
    if not hours['cpu hours']:
        return 'minutes on a CPU'
    on_gpu = f'{time_text(hours["gpu hours"])} on one 80 GB GPU'
    return on_gpu + (f', or {time_text(hours["cpu hours"])} on two CPU cores' if 'cpu' in ways else '')


def rates_text() -> str:
    "Where the hours come from."
    from medir_nb.core.settings import registry

    rates = registry('costs')
    cpu, gpu = rates['cpu']['source'], rates['encode']['source']
    return f'Hours of a GPU are texts at the rates of {gpu}; hours of two cores are operations ({cpu}).'


def rank_text(system: dict) -> str:
    rank, best, worst = (int(system[name]) for name in ('rank', 'best', 'worst'))
    return f'{rank}' if best == worst else f'{rank} ({best}–{worst})'


def measured_text(data: dict, labels: list[str]) -> str:
    "Whether cells of some systems of R2MED's result files were measured here."
    rows = {data['cells']['row'][found['cell']] for found in data['measured']}
    found = [data['systems'][row] for row in rows]
    count = sum(s['table'] == 'base' and s['label'] in labels for s in found)
    return (
        f'Of {count} of them, cells were measured here.' if count else 'None of their cells was measured here so far.'
    )


def cell_link(system: dict, task: str) -> str:
    "What stands behind the # of the leaderboard's address where one cell of a printed row is open."
    cell = '~'.join(('r2med', system['table'], system['label'], f'{task}:nDCG@10'))
    return urlencode({'weights': 'open', 'cell': cell})


def clone_text() -> str:
    "Where the repository can be cloned, if the machine that builds the site says so, as GitHub's do."
    server, name = os.environ.get('GITHUB_SERVER_URL'), os.environ.get('GITHUB_REPOSITORY')
    return f' (`git clone {server}/{name}`)' if server and name else ''


def command_of(system: dict, task: str) -> str:
    return f'medir evaluate {task} --system {shlex.quote(system["expression"])} --measures nDCG@10'


TRIED = {
    'never exercised': 'it was never run here',
    'architecture exercised': 'here its architecture alone was run, with tiny random weights',
    'loaded here': 'its weights were loaded here',
}


def tried_text(system: dict) -> str:
    "How far the registry row of a retriever was tried here."
    from medir_nb.core.settings import registry

    ((_, name),) = system['parts']
    return TRIED[registry('models')[name]['tried']]


def weights_text(system: dict) -> str:
    "The gigabytes of a retriever's weights."
    from medir_nb.core.settings import registry
    from medir_nb.encoder import gigabytes_of

    ((_, name),) = system['parts']
    row = registry('models')[name]
    return f'{gigabytes_of(row["params"], row["dtype"]):.1f} GB'


def environment_section(system: dict, task: str, title: str) -> str:
    "What the best retriever takes beside the library, where its code needs an environment of its own."
    from medir_nb.workbook.board_systems import environment_about

    made = [environment_about(name) for name in system['environments']]
    return template(
        'environment',
        label=plain(system['label']),
        task=title,
        cell=f'{system["values"][task]:.2f}',
        link=cell_link(system, task),
        tried=tried_text(system),
        lines='\n'.join(line for about in made for line in about['lines']),
        notes=' '.join(about['note'] for about in made),
        command=command_of(system, task),
    )


def noncommercial_text(systems: list[dict]) -> str:
    "Whose licence leaves out commercial use, by its name."
    labels = [plain(s['label']) for s in systems if any('-nc' in licence.lower() for licence in s['licences'])]
    return f' Not for commercial use: {", ".join(labels)}.' if labels else ''


def demo_cell(system: str = 'bm25', task: str = 'hpo-lay', measure: str = 'nDCG@10') -> dict[str, str]:
    "A score of the demo with its interval."
    import pandas as pd

    scores = pd.read_csv(ROOT / 'figures/bmretriever_scores.csv').set_index(['task', 'system', 'measure'])
    return {name: f'{scores.loc[(task, system, measure), name]:.4f}' for name in ('value', 'low', 'high')}


def retriever_section(data: dict, task: str = 'r2med-biology') -> str:
    "The front page's table: the question, the answer, how sure, what it costs, and how to check one cell."
    ranked = ranked_retrievers(data)
    shown = shown_retrievers(ranked)
    first, second, small = shown[0], shown[1], shown[-1]
    # the best one that needs nothing beside the library
    gpu = next(system for system in ranked if system['parts'] and not system['environments'])
    title = next(t['title'] for t in data['tasks'] if t['name'] == task)
    rows = []
    for s in shown:
        cost = cost_text(s['expression'], list(first['values']))
        about = size_text(s['size']), plain(', '.join(s['licences'])), cost
        rows.append((plain(s['label']), f'{s["mean"]:.2f}', rank_text(s), *about))
    head = [
        'retriever',
        'mean',
        'rank (one task left out)',
        'size',
        'licence',
        f'to encode all {len(first["values"])} tasks',
    ]
    return template(
        'retriever',
        first=plain(first['label']),
        second=plain(second['label']),
        small=plain(small['label']),
        gpu=plain(gpu['label']),
        mean=f'{first["mean"]:.2f}',
        lead=f'{first["mean"] - second["mean"]:.2f}',
        tasks=len(first['values']),
        best=int(first['best']),
        worst=int(first['worst']),
        contenders=sum(s['best'] == 1 for s in shown),
        measured=measured_text(data, [s['label'] for s in shown]),
        noncommercial=noncommercial_text(shown),
        rates=rates_text(),
        table=table(head, rows),
        count=f'{len(data["cells"]["row"]):,}',
        task=title,
        small_cell=f'{small["values"][task]:.2f}',
        small_link=cell_link(small, task),
        small_command=command_of(small, task),
        gpu_cell=f'{gpu["values"][task]:.2f}',
        gpu_link=cell_link(gpu, task),
        gpu_cost=cost_text(gpu['expression'], [task]),
        gpu_weights=weights_text(gpu),
        gpu_tried=tried_text(gpu),
        gpu_command=command_of(gpu, task),
        environment=environment_section(first, task, title) if first['environments'] else '',
    )


# ---------------------------------------------------------------- pages


def front_page(data: dict) -> str:
    "What this is, six lines and where to go, from the executed notebook; one table, one figure, the coverage."
    from medir_nb.workbook.coverages import coverage, coverage_sentence

    parts = dict(sections(page_of(ROOT / 'nbs/index.ipynb', Path('.'))))
    six = parts['Six lines'].partition('\n\nA system is one line')[0]
    measured = template('measured', sentence=coverage_sentence(coverage(folder=ROOT / 'figures')), **demo_cell())
    go = f'## Where to go from here{parts["Where to go from here"]}'
    look = 'The rest of the notebook that this page is made from: [a first look](learn/first-look.md).'
    head = f'---\nhide: [navigation]\n---\n\n{parts[""].strip()}'
    start = f'{template("start", clone=clone_text()).strip()}\n\n### Six lines{six}'
    return '\n\n'.join([head, start, retriever_section(data), measured, go, look])


def sections(text: str) -> list[tuple[str, str]]:
    "A page by its second headings; what stands before them under ''."
    parts = re.split(r'^## (.+)$', text, flags=re.M)
    return [('', parts[0]), *((title, body.rstrip()) for title, body in zip(parts[1::2], parts[2::2]))]


def tables_of(text: str) -> dict[str, list[list[str]]]:
    "The tables of a Markdown file by the heading above them."
    tables, heading, before = {}, 'table', ''
    for line in text.splitlines():
        if line.startswith('#'):
            heading = line.lstrip('# ').strip()
        elif line.startswith('|') and not re.fullmatch(r'[|:\- ]+', line):
            cells = [cell.strip().replace('\\|', '|') for cell in re.split(r'(?<!\\)\|', line)[1:-1]]
            if not before.startswith('|'):
                count = sum(name == heading or name.startswith(f'{heading} (') for name in tables)
                current = tables.setdefault(f'{heading} ({count + 1})' if count else heading, [])
            current.append(cells)
        before = line
    return tables


NUMBER = re.compile(r'[+-]?[\d.,]+( ?%|( \[[^\]]*\]))?')


def csv_text(rows: list[list[str]]) -> str:
    "A table as CSV, in which no spreadsheet takes a text for a formula."
    said = io.StringIO()
    safe = [
        [f"'{c}" if re.match(r'[=+\-@＝＋－＠\t\r]', c) and not NUMBER.fullmatch(c) else c for c in row] for row in rows
    ]
    csv.writer(said, lineterminator='\n').writerows(safe)
    return said.getvalue()


def packed_tables(text: str) -> bytes:
    "The tables of a notebook as a zip file of CSV files, the same bytes each time."
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, 'w', zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number, (name, rows) in enumerate(tables_of(text).items(), 1):
            file = f'{number:02}-{re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")}.csv'
            archive.writestr(zipfile.ZipInfo(file), csv_text(rows), zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def own_files(notebook: Path, names: list[str]) -> list[str]:
    "What a notebook leaves to download: figures with their data, and tables, which its code names."
    cells = json.loads(notebook.read_text(encoding='utf-8'))['cells']
    code = '\n'.join(joined(cell['source']) for cell in cells if cell['cell_type'] == 'code')
    said = set(re.findall(r"'(\w+)(?:\.md)?'", code))
    return [name for name in names if '.published.' not in name and name.partition('.')[0] in said]


def foot(notebook: Path, names: list[str]) -> str:
    "The line at the foot of a page that offers the files of its notebook."
    links = ', '.join(f'[{name}](../figures/{name})' for name in own_files(notebook, names))
    _, why = UNKEPT.get(notebook.stem, (0, ''))
    return f'\n**Downloads of this notebook:** {links}. {why}'.rstrip() + '\n' if links else ''


def downloads(paper: str, names: list[str]) -> str:
    "Links to what a paper's notebooks left: its printed cells, their tables, data of figures, figures."
    begins = {'mar': ('mar', 'medteb'), 'automir': ('automir', 'cmirb')}.get(paper, paper)
    files = [name for name in names if name.startswith(begins)]
    rows = []
    for name in files:
        if name.endswith(('.csv', '.csv.gz')) and '.published.' not in name:
            figure = name.partition('.')[0]
            drawn = f'[SVG](../figures/{figure}.svg)' if f'{figure}.svg' in names else ''
            rows.append((figure, f'[{name[len(figure) + 1 :]}](../figures/{name})', drawn))
    whose = 'of the paper' if paper in PAPERS else 'that is compared'
    published = (
        f'[Every printed cell {whose}](../figures/{paper}.published.csv.gz) (CSV, gzip; `text` where it is not `value`)'
    )
    packed = [f'[{name}](../figures/{name})' for name in files if name.endswith('.zip')]
    if packed:
        published += f'; its tables of results (a CSV file each, zip): {", ".join(packed)}'
    parts = [f'{published}.'] if f'{paper}.published.csv.gz' in names else []
    parts += [table(['figure', 'its data', 'drawn'], rows)] if rows else []
    return '\n\n'.join(parts)


def first_prose(address: str) -> str:
    cells = json.loads(read(address))['cells']
    return ''.join(next(cell['source'] for cell in cells if cell['cell_type'] == 'markdown'))


def headings(address: str) -> list[str]:
    "The second headings of a notebook."
    cells = json.loads(read(address))['cells']
    prose = '\n'.join(joined(cell['source']) for cell in cells if cell['cell_type'] == 'markdown')
    return re.findall(r'^## (.+)$', prose, re.M)


def check_links(titles: dict[str, str]) -> str:
    "Where the notebooks of a paper check what it says: a line a kind of check."
    found = {}
    for name, title in titles.items():
        for heading in headings(f'nbs/papers/{name}.ipynb'):
            if kind := CHECKS.get(heading):
                anchor = re.sub(r'[^a-z0-9]+', '-', heading.lower())
                found.setdefault(kind, []).append(f'[{title}]({name}.md#{anchor})')
    kinds = [kind for kind in dict.fromkeys(CHECKS.values()) if kind in found]
    return '\n'.join(f'- *{kind}:* {", ".join(found[kind])}' for kind in kinds)


def papers_index(names: list[str]) -> str:
    "A section a paper: its notebooks, its checks, its downloads; then the referees and what was measured."
    from medir_nb.core.console import to_markdown
    from medir_nb.core.settings import registry
    from medir_nb.workbook.coverages import coverage, coverage_source, coverage_table

    said = (
        'Stored outputs are those of the demo, offline and on embedded models; printed numbers stand beside measured. '
        'Below the notebooks of a paper stand the places where its claims and its printed numbers are checked. '
        'Below each table of a notebook stands a button that saves it as CSV.'
    )
    parts = ['# Papers', f'Each notebook reruns experiments of a paper. {said}']
    for paper, label in PAPERS.items():
        row = registry('papers')[paper]
        links = f'[Protocol](../protocols/{paper}.md), [leaderboard](../leaderboard/board.html#paper={paper})'
        parts.append(f'## {label}\n\n*{row["title"]}*, {row["citation"]}. {links}.')
        titles = {name: title_of(first_prose(f'nbs/papers/{name}.ipynb'), name) for name in row['notebooks']}
        parts.append('\n'.join(f'- [{title}]({name}.md)' for name, title in titles.items()))
        parts += [f'Where it is checked:\n\n{check_links(titles)}', downloads(paper, names)]
    referees = 'What others published of two encoders that come in packages, beside what is measured here: '
    referees += '[Referees](referees.md).'
    parts += ['## Referees', referees, downloads('referees', names)]
    second = 'Which printed numbers others have measured with other code, why not all agree, and which claims survive: '
    parts += ['## Second numbers', second + '[Second numbers](second_numbers.md).']
    parts += [downloads('second_numbers', names)]
    hours = 'Which printed cells tell most in an hour of a GPU, and the command that measures them: '
    parts += ['## Reproduce', hours + '[Reproduce](reproduce.md).']
    shards = 'What the size of a shard costs where machines are lost: [Scale](../scale.md).'
    parts += ['## Scale', shards, downloads('scale', names)]
    counts = to_markdown(coverage_table(coverage(folder=ROOT / 'figures')))
    return '\n\n'.join([*parts, '## What has been measured, and what the rest would take', counts, coverage_source()])


def room_page(room: str, files: list[Path], pictures: Path) -> str:
    "A room as a chapter: its notebooks one after the other."
    page = f'../api/{api_place(room)}.md#{room}'
    said = f'with its signature in the [API of {room}]({page}) and its source in `medir_nb/{room}`'
    parts = [
        f'# {room}',
        room_doc(ROOT, room),
        f'*What a notebook exports stands here by name, {said}; what lessons assert, in the notebook.*',
    ]
    door = set(names_at_door(ROOT, room))
    return '\n\n'.join([*parts, *(page_of(file, pictures, deeper=1, api=page, door=door) for file in files)])


def library() -> list[tuple[str, list[Path]]]:
    "Rooms in the order of the road with their notebooks."
    found = {}
    for file in sorted((ROOT / 'nbs').rglob('[0-9]*.ipynb')):
        if module := re.search(r'default_exp ([\w.]+)', file.read_text(encoding='utf-8')):
            found.setdefault(module[1].split('.')[0], []).append(file)
    return [(room, found[room]) for room in rooms_here(ROOT) if room in found]


ROOMS_SAID = (
    'The library is made of notebooks that explain what they export. Data flow one way: a room uses rooms above it.'
)
BESIDE = """- [A first look](first-look.md): the notebook to begin with.
- Guides: {guides}.
- [Systems and settings](settings.md): every setting, measure, preset, variable of the environment and exit code.
- Recipes, each from start to end: {recipes}.
"""


def recipe_files() -> list[Path]:
    return [*sorted((ROOT / 'nbs/recipes').glob('*.ipynb')), ROOT / 'nbs/efficiency.ipynb']


def learn_index(rooms) -> str:
    "What to read first, and the rooms in the order of the road."
    titles = {file.stem: title_of(first_prose(str(file.relative_to(ROOT))), file.stem) for file in recipe_files()}
    guides = ', '.join(f'[{title_of(read(f"docs/{name}.md"), name)}](../{name}.md)' for name in GUIDES)
    recipes = ', '.join(f'[{title}](../recipes/{name}.md)' for name, title in titles.items())
    rows = [(f'[{room}]({room}.md)', room_doc(ROOT, room).splitlines()[0], len(files)) for room, files in rooms]
    rooms_table = table(['room', 'what it is for', 'notebooks'], rows)
    return (
        f'# Learn\n\n{BESIDE.format(guides=guides, recipes=recipes)}\n## The rooms\n\n{ROOMS_SAID}\n\n{rooms_table}\n'
    )


def add_library(site: Site, rooms):
    "A chapter and a page of the API for each room, and what is made from the registries."
    site.add('learn/index.md', learn_index(rooms))
    said = 'From the docstrings, with the comments that stand beside each parameter.'
    rows = [(f'[{room}]({api_place(room)}.md#{room})', room_doc(ROOT, room).splitlines()[0]) for room, _ in rooms]
    site.add('api/index.md', f'# API\n\n{said}\n\n{table(["room", "what it is for"], rows)}\n')
    for group in GROUPS:
        site.add(f'api/{group}.md', api_page(ROOT, group))
    site.add('learn/settings.md', settings_page(ROOT))
    look = page_of(ROOT / 'nbs/index.ipynb', site.folder / 'learn/first-look-figures')
    look = re.sub(r'^# .+$', '# A first look', look, count=1, flags=re.M)
    site.add('learn/first-look.md', look, 'nbs/first-look')  # the links of nbs/, not its page
    for room, files in rooms:
        sources = [str(file.relative_to(ROOT)) for file in files]
        site.add(f'learn/{room}.md', room_page(room, files, site.folder / f'learn/{room}-figures'), *sources)


def add_notebooks(site: Site, names: list[str]):
    "The notebooks of papers and recipes with their stored outputs; those of papers with what can be downloaded."
    of_all = [ROOT / f'nbs/{name}.ipynb' for name in OF_ALL_PAPERS]
    parts = {'papers': [*(ROOT / 'nbs/papers').glob('*.ipynb'), *of_all]}
    parts['recipes'] = recipe_files()
    for part, files in parts.items():
        for file in sorted(files):
            address = str(file.relative_to(ROOT))
            note = f'*Stored outputs of `{address}`; the tests run its cells with the `smoke` preset.*'
            page = page_of(file, site.folder / part / f'{file.stem}-figures')
            below = foot(file, names) if part == 'papers' else ''
            site.add(f'{part}/{file.stem}.md', f'{note}\n\n{page}{below}', address)


def add_documents(site: Site):
    "docs/ and what stands at the top of the repository."
    for file in sorted((ROOT / 'docs').glob('*.md')):
        is_front = file.name == 'README.md'
        address = f'docs/{file.name}'
        site.add('carrying-on.md' if is_front else file.name, read(address), address, *(['docs'] if is_front else []))
    protocols = {file.name: read(f'docs/protocols/{file.name}') for file in (ROOT / 'docs/protocols').glob('*.md')}
    for name, text in sorted(protocols.items()):
        site.add(f'protocols/{name}', text, f'docs/protocols/{name}')
    listed = '\n'.join(f'- [{title_of(text, name)}]({name})' for name, text in sorted(protocols.items()))
    said = 'What each paper did, exactly, with its gaps marked.'
    site.add('protocols/index.md', f'# Protocols\n\n{said}\n\n{listed}\n', 'docs/protocols')
    for name, address in (('contributing', 'CONTRIBUTING.md'), ('changelog', 'CHANGELOG.md')):
        site.add(f'{name}.md', read(address), address)
    address = 'medir_nb/registry/published/README.md'
    site.add('published.md', read(address), address)


def lean_cells(text: str) -> str:
    "A CSV of printed cells that doesn't say a value twice: `text` stays where it differs from `value`."
    rows = list(csv.DictReader(io.StringIO(text)))
    for row in rows:
        if row['text'] == row['value']:
            row['text'] = ''
    lean = io.StringIO()
    writer = csv.DictWriter(lean, list(rows[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return lean.getvalue()


def copy_files(folder: Path) -> list[str]:
    "Figures with their data, and the printed cells; what is large travels packed."
    figures = folder / 'figures'
    figures.mkdir(parents=True)
    for file in sorted((ROOT / 'figures').iterdir()):
        if file.suffix == '.csv' and file.stat().st_size > 4_000:
            (figures / f'{file.name}.gz').write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
        elif file.suffix in ('.csv', '.svg'):
            shutil.copyfile(file, figures / file.name)
        elif file.name.endswith('_tables.md'):
            (figures / f'{file.stem}.zip').write_bytes(packed_tables(file.read_text(encoding='utf-8')))
    for file in sorted((ROOT / 'medir_nb/registry/published').glob('*.csv')):
        lean = lean_cells(file.read_text(encoding='utf-8')).encode()
        (figures / f'{file.stem}.published.csv.gz').write_bytes(gzip.compress(lean, 9, mtime=0))
    shutil.copytree(HERE / 'web', folder / 'assets')
    return sorted(file.name for file in figures.iterdir())


def navigation(site: Site, rooms) -> list:
    "The order of the pages, as mkdocs reads it."
    from medir_nb.core.settings import registry

    def titled(addresses):
        return [{title_of(site.pages[address], address): address} for address in addresses]

    def below(part):
        return sorted(a for a in site.pages if a.startswith(f'{part}/') and a != f'{part}/index.md')

    papers = [f'papers/{name}.md' for paper in PAPERS for name in registry('papers')[paper]['notebooks']]
    papers += [address for address in below('papers') if address not in papers]

    carry = [f'{name}.md' for name in CARRY if f'{name}.md' in site.pages]
    guides = [f'{name}.md' for name in GUIDES if f'{name}.md' in site.pages]
    carry += [a for a in sorted(site.pages) if '/' not in a and a not in (*carry, *guides, 'index.md')]
    chapters = [{room: f'learn/{room}.md'} for room, _ in rooms]
    learn = [
        {'A first look': 'learn/first-look.md'},
        {'Guides': titled(guides)},
        {'Systems and settings': 'learn/settings.md'},
        {'Recipes': titled(below('recipes'))},
        {'The rooms': chapters},
    ]
    return [
        {'Home': 'index.md'},
        {'Learn': ['learn/index.md', *learn]},
        {'Papers': ['papers/index.md', *titled(papers)]},
        {'Leaderboard': 'leaderboard/index.md'},
        {'API': ['api/index.md', *({group.capitalize(): f'api/{group}.md'} for group in GROUPS)]},
        {'Carrying on': [*titled(carry), {'Protocols': ['protocols/index.md', *titled(below('protocols'))]}]},
    ]


def stage(folder: Path):
    "Write everything that `mkdocs build` reads."
    from medir_nb.workbook.board_pages import write_board
    from medir_nb.workbook.boards import board

    if folder.is_dir():
        shutil.rmtree(folder)
    site, data, rooms = Site(folder), board(folder=ROOT / 'figures'), library()
    names = copy_files(folder)
    (folder / 'leaderboard').mkdir()
    write_board(folder / 'leaderboard/board.html', data, home_link='../index.html')
    site.add('index.md', front_page(data), 'nbs/index.ipynb', 'README.md')
    add_library(site, rooms)
    add_notebooks(site, names)
    site.add('papers/index.md', papers_index(names), 'nbs/papers', 'medir_nb/registry/papers.yaml')
    count, rows = f'{len(data["cells"]["row"]):,}', f'{len(data["systems"]):,}'
    site.add('leaderboard/index.md', template('leaderboard', count=count, rows=rows))
    add_documents(site)
    site.write()
    (folder / 'nav.json').write_text(json.dumps(navigation(site, rooms), ensure_ascii=False, indent=1))


if __name__ == '__main__':
    stage(Path(sys.argv[1]))
