"""Pages that are made from the code and the registries: the API, and every setting on one page."""

import ast
import importlib
import re
from collections import namedtuple
from pathlib import Path
from notebooks import fenced, public_definitions

ROOMS = 'core data encoder generator retrieval trainer evaluator judging papers study workbook'.split()

# pages of the API: a page a room would be more frame than content
GROUPS = {
    'foundations': 'core data',
    'encoding': 'encoder generator',
    'retrieval': 'retrieval',
    'training': 'trainer',
    'evaluation': 'evaluator judging papers',
    'use': 'study workbook',
}

# every variable of the environment that the code reads; a test compares the names with the code
VARIABLES = {
    'MEDIR_HOME': 'where stores, checkpoints, runs and receipts live; `--home` comes first, `./.medir` last',
    'MEDIR_DATA': 'folder with data sets that are at hand; looked at before git and the Hub',
    'MEDIR_REGISTRY': 'folder with YAML files whose rows are added to the registries and come first',
    'MEDIR_ROOT': 'the workbook, where the current folder is none',
    'MEDIR_ENVIRONMENTS': 'folder of the Python environments that workers run in',
    'MEDIR_CASSETTES': 'folder of recorded generations',
    'MEDIR_PRIVATE': '1 refuses every connection that leaves this machine, as `--private` does',
    'MEDIR_PRIVATE_GUARD': 'set by `--private` for the processes that it starts: the file of the guard',
    'MEDIR_PRIVATE_RECORD': 'set by `--private` for the processes that it starts: where refusals are written',
    'MEDIR_PRIVATE_SITE': 'set by `--private` for the processes that it starts: the folder of its `sitecustomize`',
    'MEDIR_REPLAY': 'only recorded generations are used, no language model is asked',
    'MEDIR_LLM_BACKEND': "transformers, vllm or openai: what writes, in place of the row's own",
    'MEDIR_STORE_URL': 'address of the server that holds the vectors of an index (`--store`)',
    'MEDIR_SERVE_KEY': 'key that `medir serve` asks for, and that a searcher sends',
    'MEDIR_LLM_URL': "server that speaks OpenAI's language, for every language model",
    'MEDIR_LLM_OPTIONS': 'options of the backend as JSON',
    'MEDIR_LLM_KEY': 'key of that server; stored nowhere',
    'MEDIR_EMBEDDING_KEY': 'key of the server below; stored nowhere',
    'MEDIR_EMBEDDING_URL': "server that speaks OpenAI's language, for embedding services",
    'MEDIR_PROGRESS': '0: no bars and no clocks',
    'MEDIR_DEBUG': 'show the traceback of an error, too',
    'MEDIR_PRESET': 'set by a run: the preset that its notebook was given',
    'MEDIR_OUT': 'set by a run: the folder that its notebook writes into',
    'MEDIR_PARENT': 'set by a batch: the process that a run ends with',
    'MEDIR_PROCESSES': 'processes that share a training, in place of one a GPU; 1: none but its own',
    'MEDIR_ENGINE': 'ray or ray:ADDRESS: what starts the processes of a training, over the nodes of a cluster',
    'MEDIR_LAUNCHER': 'set by a training that starts others: the process that they end with',
    'OPENAI_API_KEY': 'key of that service; stored nowhere',
    'VOYAGE_API_KEY': 'key of that service; stored nowhere',
    'DEEPSEEK_API_KEY': 'key of that service; stored nowhere',
    'ARK_API_KEY': 'key of that service (Doubao); stored nowhere',
    'HF_HUB_OFFLINE': '1: no connection to the Hub is opened',
    'HF_ENDPOINT': 'another address of the Hub',
    'HF_TOKEN': 'key of the Hub, for weights and data behind an agreement; its library reads it',
    'OMP_NUM_THREADS': 'threads of a process; where several runs of a batch work at once, 1 unless it is set',
    'CUDA_VISIBLE_DEVICES': 'which GPUs are seen',
    'RAY_USAGE_STATS_ENABLED': '1: Ray reports its use to its makers; 0 here, unless it is set',
    'ATEN_CPU_CAPABILITY': 'holds torch to an older processor, as in `avx2`',
    'ONEDNN_MAX_CPU_ISA': 'holds its matrix products to one, too',
    'RANK': 'set by `torchrun`: the number of a process of a training',
    'WORLD_SIZE': 'set by `torchrun`: how many there are',
    'COLUMNS': 'width of tables in characters, also where they go into a file',
}
DOOR = (
    'What `from medir_nb.{room} import …` gives. What modules use of each other beside it stands in '
    '[the chapter](../learn/{room}.md) by name.'
)
EXITS = [
    (0, 'all that was asked for is done'),
    (
        1,
        'a run or a batch finished, and rows are missing that could have been measured; the table and stderr name them',
    ),
    (2, 'a mistake in the command, in a file or in the data; one line on stderr says what, where and what to do'),
    (130, 'stopped by Ctrl-C; what was finished is kept, the same line goes on'),
]


def rooms_here(root: Path) -> list[str]:
    "The rooms in the order of the road, those that exist."
    return [room for room in ROOMS if (root / 'medir_nb' / room).is_dir()]


def door_tree(root: Path, room: str) -> ast.Module:
    return ast.parse((root / 'medir_nb' / room / '__init__.py').read_text(encoding='utf-8'))


def room_doc(root: Path, room: str) -> str:
    return ast.get_docstring(door_tree(root, room)) or ''


def door_of(root: Path, room: str) -> dict[str, list[str]]:
    "The names at a room's door by their module, in the order of the door."
    said = {ast.unparse(n.targets[0]): n.value for n in door_tree(root, room).body if isinstance(n, ast.Assign)}
    if 'MODULES' in said:
        # the browser's check imports this file where the package is not installed
        from medir_nb._door import names_of

        modules = [name for n in ast.walk(said['MODULES']) if isinstance(n, ast.Constant) for name in n.value.split()]
        return names_of(root / 'medir_nb' / room, modules)
    return ast.literal_eval(said['_NAMES'])


def names_at_door(root: Path, room: str) -> list[str]:
    return [name for names in door_of(root, room).values() for name in names]


def module_part(file: Path, room: str, door: list[str]) -> str:
    "What a module gives to its room's door, with the comments of its parameters."
    source = file.read_text(encoding='utf-8')
    shown = [entry for entry in public_definitions(source) if entry[0] in door]
    if not shown:
        return ''
    parts = [f'### {room}.{file.stem}', ast.get_docstring(ast.parse(source)) or ''] if file.stem != room else []
    for name, signature, said in shown:
        parts += [f'#### {name} {{: #{anchor_of(room, name)} }}', fenced(signature, 'python'), said]
    return '\n\n'.join(part for part in parts if part)


def anchor_of(room: str, name: str) -> str:
    return f'{room}-{name}'


def room_part(root: Path, room: str) -> str:
    "The reference of a room: what stands at its door, module by module in the order of the door."
    door, order, folder = names_at_door(root, room), list(door_of(root, room)), root / 'medir_nb' / room
    files = sorted(folder.glob('[a-z]*.py'), key=lambda f: (f.stem not in order, [*order, f.stem].index(f.stem)))
    defined = {name for file in files for name, _, _ in public_definitions(file.read_text(encoding='utf-8'))}
    values = ', '.join(f'`{name}`' for name in door if name not in defined)
    parts = [f'## {room}', room_doc(root, room), DOOR.format(room=room), values and f'Values: {values}.']
    return '\n\n'.join(part for part in [*parts, *(module_part(file, room, door) for file in files)] if part)


def api_place(room: str) -> str:
    "The page on which a room's reference stands."
    return next(name for name, rooms in GROUPS.items() if room in rooms.split())


def api_page(root: Path, group: str) -> str:
    "The reference of some rooms that work together."
    rooms = [room for room in GROUPS[group].split() if room in rooms_here(root)]
    return '\n\n'.join([f'# {group.capitalize()}', *(room_part(root, room) for room in rooms)]) + '\n'


def plain(text: str) -> str:
    "Text that Markdown, its attributes and HTML take for letters alone."
    return re.sub(r'[^\w\s.,:;()@%–-]|_', lambda found: f'&#{ord(found[0])};', str(text))


def table(head: list[str], rows: list) -> str:
    def cell(value):
        return str(value).replace('|', '\\|').replace('\n', ' ')

    lines = ['| ' + ' | '.join(head) + ' |', '|' + '---|' * len(head)]
    return '\n'.join(lines + ['| ' + ' | '.join(map(cell, row)) + ' |' for row in rows])


SETTING = ['setting', 'default', 'meaning']
Field = namedtuple('Field', 'name kind default said')


def commented_fields(module: str, name: str) -> list[Field]:
    "The fields of a class with kind, default and comment, read off its source."
    file = Path(importlib.import_module(module).__file__)
    source = file.read_text(encoding='utf-8')
    lines = source.splitlines()
    node = next(n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name)
    found = []
    for field in node.body:
        if isinstance(field, ast.AnnAssign):
            said = lines[field.end_lineno - 1].partition('  # ')[2]
            default = f'`{ast.unparse(field.value)}`' if field.value else 'the row must say it'
            found.append(Field(field.target.id, ast.unparse(field.annotation), default, said))
    return found


ABOUT = ('name', 'label', 'tried', 'licence', 'size', 'architecture', 'params')  # what a row says and no run reads
IN_A_LINE = ('str', 'int', 'bool')  # kinds of a value that an expression can say


def without_braces(text: str) -> str:
    "A comment in which Markdown finds no attributes: {body} at the end of a cell would be taken for some."
    return text.replace('{', '&#123;').replace('}', '&#125;')


def settings_and_others(fields: list[Field], is_setting) -> tuple[list[tuple], str]:
    "The rows of a table of settings, and in words what else stands in a row of the registry."
    fields = [field for field in fields if field.name not in ABOUT]
    rows = [(f'`{f.name}`', f.default, without_braces(f.said)) for f in fields if is_setting(f)]
    return rows, ', '.join(f'`{f.name}`' for f in fields if not is_setting(f))


def encoder_tables() -> dict[str, str]:
    "What an expression may say of an encoder, and what its row alone says."
    of_row = ('EncoderRow', 'EncoderSpec')
    fields = [field for name in of_row for field in commented_fields('medir_nb.encoder.model_row', name)]
    rows, others = settings_and_others(fields, lambda field: field.kind in IN_A_LINE)
    return {'encoder': table(SETTING, rows), 'encoder_row': others}


def reranker_tables() -> dict[str, str]:
    "What an expression may say of a reranker, and what its row alone says."
    from medir_nb.retrieval.reranker_model import SETTINGS

    fields = commented_fields('medir_nb.retrieval.reranker_model', 'RerankerSpec')
    rows, others = settings_and_others(fields, lambda field: field.name in SETTINGS)
    complete = '`complete`', '`False`', 'True: the documents below the depth follow, in their old order'
    return {'reranker': table(SETTING, [*rows, complete]), 'reranker_row': others, 'reading': reading_table()}


MEANS = {
    'window': 'passages of a prompt',
    'step': 'by how many the windows move up; half a window unless it is said',
    'passes': 'over the whole list',
    'top': 'places that are settled; the others keep their old order',
    'words': 'of a passage, or characters of a Chinese one',
}


def reading_table() -> str:
    "What an expression may say of a language model that orders the head of a list."
    from medir_nb.core.settings import registry

    methods = {name: row for name, row in registry('methods').items() if row['kind'] == 'reranking'}
    said = [
        (f'`{name}`', f'`{s}`', f'`{value}`', MEANS[s])
        for name, row in methods.items()
        for s, value in row['settings'].items()
    ]
    return table(['method', *SETTING], said)


def expansion_methods() -> dict[str, dict]:
    from medir_nb.core.settings import registry

    return {name: row for name, row in registry('methods').items() if row['kind'] == 'expansion'}


def where_it_holds(setting: str) -> str:
    "The methods and the retriever for which a setting of an expansion means something; empty where for all."
    from medir_nb.generator.methods import SAMPLING_FIELDS, expansion_settings

    if setting in SAMPLING_FIELDS:
        return ''
    methods, kinds = expansion_methods(), ('sparse', 'dense')
    holds = {(m, kind) for m in methods for kind in kinds if setting in expansion_settings(m, (), kind)}
    retrievers = [kind for kind in kinds if any(kind == of for _, of in holds)]
    names = [name for name in methods if any(name == of for of, _ in holds)]
    said = [f'`{name}`' for name in names] if len(names) < len(methods) else []
    return ', '.join([*said, *(f'a {kind} retriever' for kind in retrievers if len(retrievers) == 1)])


def expansion_table() -> str:
    "Everything that an expression may say of an expansion."
    from medir_nb.generator.methods import SAMPLING_FIELDS, ExpansionSettings

    of_methods = {'form', 'fusion'}.union(*expansion_methods().values()) - {'r1_mode'}
    rows = []
    for field in commented_fields('medir_nb.generator.methods', 'ExpansionSettings'):
        if field.name == 'model_config':
            continue
        about = ExpansionSettings.model_fields[field.name]
        whose = "the model's" if field.name in SAMPLING_FIELDS else "the method's" if field.name in of_methods else ''
        takes = about.description or 'a name'
        rows.append((f'`{field.name}`', takes, whose or f'`{about.default!r}`', field.said, where_it_holds(field.name)))
    return table(['setting', 'takes', 'default', 'meaning', 'only for'], rows)


PRESETS = {
    'smoke': 'offline, one thread, seconds; generations replayed; what the tests run',
    'demo': 'offline, embedded models, minutes on a CPU; what the stored outputs show',
    'showcase': 'a demo that trains longer, whose outputs are stored',
    'mini': 'small public tasks and models; needs the Hub once',
    'paper': "the paper's own models, data and settings, on a GPU",
    'remade': 'as paper, with data that the authors released made anew',
    'legal': "a paper's own models on another domain, by parameters alone",
}


def bm25_settings() -> dict[str, str]:
    "What the page says of BM25."
    from medir_nb.retrieval import ANALYZERS, BM25_CHINESE, BM25_DEFAULTS, BM25_PRESETS
    from medir_nb.retrieval import FIELDS, QUERY_WEIGHTS, SCORERS, STOPWORDS

    def mapping(values):
        return ','.join(f'{k}={v}' for k, v in values.items())

    return {
        'defaults': mapping(BM25_DEFAULTS),
        'chinese': mapping(BM25_CHINESE),
        'words': ', '.join(f'`bm25({name})` is `{mapping(values)}`' for name, values in BM25_PRESETS.items()),
        'stopwords': ', '.join(STOPWORDS),
        'weights': ', '.join(QUERY_WEIGHTS),
        'scorers': ', '.join(SCORERS),
        'fields': ', '.join(FIELDS),
        'analyzers': table(['analyzer', 'is'], [(f'`{k}`', v) for k, v in ANALYZERS.items()]),
    }


def measures_table() -> str:
    "The measures that tasks name, the most used first."
    from medir_nb.core.settings import registry
    from medir_nb.evaluator.scores import measure_label

    tasks = {}
    for name, row in registry('tasks').items():
        for measure in row.get('measures', ['nDCG@10', 'R@100']):
            tasks.setdefault(str(measure), []).append(name)
    rows = [(f'`{m}`', measure_label(m), len(tasks[m])) for m in sorted(tasks, key=lambda m: -len(tasks[m]))]
    return table(['measure', 'printed as', 'tasks that name it'], rows)


def methods_table() -> str:
    "The methods of expansion with their rules."
    fields = ('reads', 'n', 'sparse', 'dense')
    cells = [(f'`{name}`', *(row.get(field, '') for field in fields)) for name, row in expansion_methods().items()]
    return table(['method', 'reads', 'texts', 'sparse', 'dense'], cells)


def settings_page(root: Path) -> str:
    "The grammar of systems with every setting, measures, presets, variables of the environment, exit codes."
    batches = ', '.join(f'`{file.stem}`' for file in sorted(root.glob('params/batches/*.yaml')))
    text = (Path(__file__).parent / 'pages/settings.md').read_text(encoding='utf-8')
    return text.format(
        **bm25_settings(),
        **encoder_tables(),
        **reranker_tables(),
        methods=methods_table(),
        expansion=expansion_table(),
        measures=measures_table(),
        presets=table(['preset', 'is'], [(f'`{name}`', said) for name, said in PRESETS.items()]),
        batches=batches,
        variables=table(['variable', 'is'], [(f'`{name}`', said) for name, said in VARIABLES.items()]),
        exits=table(['code', 'means'], [(f'`{code}`', said) for code, said in EXITS]),
    )
