"""A Hub on loopback that serves every id and commit of the registries: what it says, what each row makes of it, and
every paper run whole.

`pytest tests/test_hub.py -m "not slow"` is the server's own contract; `-m slow -k "not whole"` adds each row of the
registries; `-m slow` runs the presets and batches as well. $MEDIR_KEEP names a folder that keeps what they wrote."""

import csv, json, os, re, subprocess, sys, time
from pathlib import Path
import pytest
from conftest import table
from hub import whole
from hub.data import collection, data_repositories, make_github, on_the_hub, RELEASED, released_files, small_registry
from hub.data import write_rows
from hub.models import GTE_CODE, HEAD, HEADS, HIDDEN, model_repositories, served
from hub.server import Hub, Repository
from hub.services import process_environment, Services, TESTS
from medir_nb.core import at_home, registry
from medir_nb.workbook import receipts

PINNED, COPY = 'a1' * 20, 'c0' * 20
OWN_ROWS = [{'id': 'd1', 'text': 'statins'}, {'id': 'd2', 'text': '高血压'}]
CARD = """---
configs:
- config_name: corpus
  data_files:
  - split: corpus
    path: corpus/corpus.parquet
---
A card.
"""


def own_files(folder):
    (folder / 'README.md').write_text(CARD)
    (folder / 'config.json').write_text('{"model_type": "bert"}')
    (folder / 'model.safetensors').write_bytes(bytes(range(256)) * 100)
    write_rows(folder / 'corpus' / 'corpus.parquet', OWN_ROWS)


def run(code, environment, timeout=300):
    command = [sys.executable, '-c', code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def corpus_lines(row):
    columns = row['columns']
    body = 'is a text of more words than a passage takes, said once and then said again in other words, at some length '
    texts = {'id': 'd{}', 'title': 'On part {}', 'text': f'Part {{}} {body * 3}'}
    return [{columns[name]: text.format(n) for name, text in texts.items() if name in columns} for n in range(3)]


def set_parts(row):
    "(configuration, split) → two lines of a labelled set in its fields."
    if row['rule'] == 'judged':
        lines = {
            'corpus': [{'_id': f'd{n}', 'title': '', 'text': f'passage {n}'} for n in range(2)],
            'queries': [{'_id': f'q{n}', 'text': f'claim {n}'} for n in range(2)],
            'qrels': [{'query-id': f'q{n}', 'corpus-id': f'd{n}', 'score': 1.0} for n in range(2)],
        }
        return {tuple(row['parts'][part]): rows for part, rows in lines.items()}
    first = {name: of if isinstance(of, str) else of[0] for name, of in row['fields'].items()}
    made = [{of: 1 if name == 'label' else f'{name} {n}' for name, of in first.items()} for n in range(2)]
    return {tuple(config): made for config in row['configs']}


def built(parts):
    "What builds a repository of these parts: Parquet, and a card where the configurations have names."

    def build(folder):
        cards = ''
        for (config, split), rows in parts.items():
            path = f'{config.removeprefix("dir:")}/{split}/0000.parquet'  # as the Hub's Parquet copy lays it out
            write_rows(folder / path, rows)
            named = f'- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {path}\n'
            cards += '' if config.startswith('dir:') else named
        (folder / 'README.md').write_text(f'---\nconfigs:\n{cards}---\n' if cards else 'A script.\n')

    return build


_READ_ALL = """
import itertools, json
from medir_nb.core import registry
from medir_nb.data import corpus_pairs
from medir_nb.trainer import load_labelled
open_rows = lambda kind: [n for n, r in registry(kind).items() if r.get('hub') and r.get('access', 'open') == 'open']
out = {name: list(corpus_pairs(name)) for name in open_rows('pretraining')}
out |= {name: load_labelled(name).rows for name in open_rows('tuning')}
print(json.dumps(out))
"""


@pytest.mark.slow
def test_every_open_corpus_and_set_is_read_in_the_layout_of_its_row(tmp_path):
    "At its commit, or at the one that the Hub names: that of its Parquet copy where the row asks for that."
    is_open = lambda row: row.get('hub') and row.get('access', 'open') == 'open'
    corpora, sets = ({n: r for n, r in registry(kind).items() if is_open(r)} for kind in ('pretraining', 'tuning'))
    parts = {row['hub']: {tuple(row['configs']): corpus_lines(row)} for row in corpora.values()}
    parts |= {row['hub']: set_parts(row) for row in sets.values()}
    rows = corpora | sets
    pinned = {row['hub']: commit for row in rows.values() if len(commit := row.get('revision', 'unknown')) == 40}
    sets = [Repository('datasets', hub, built(of), [pinned.get(hub, PINNED), COPY]) for hub, of in parts.items()]
    with Hub(sets, tmp_path / 'hub') as served_hub:
        found = run(_READ_ALL, process_environment(served_hub, tmp_path))
        asked = {a.revision for a in served_hub.fetched('datasets', rows['stackexchange']['hub'])}
    assert set(found) == set(rows) and len(found) == 15
    drawn = ('pubmed', 'msmarco-passages')  # of which a seeded share is kept
    for name, of_one in found.items():
        kinds = {'title', 'crop'} if name in drawn else {rows[name].get('pairs')}
        assert of_one or name in drawn, name
        assert {row.get('made_by') for row in of_one} <= kinds, name
        assert all(row['query'] and row['pos'] for row in of_one), name
    assert COPY in asked and PINNED not in asked


_READ_RELEASED = """
import csv
import json
from collections import Counter
from pathlib import Path
from medir_nb.trainer import TuningData, write_tuning_data
def rows(name, **groups):
    data = TuningData(sets=['bmretriever-released'], **groups)
    return write_tuning_data(data, Path(name)).mined.rows
whole, labelled = rows('whole'), rows('labelled', groups=['biomedical', 'general'])
print(json.dumps([Counter(row['source'] for row in whole), len(labelled), whole[0]]))
"""


@pytest.mark.medium
def test_released_rows_are_read_from_the_one_file_of_their_repository(tmp_path):
    "JSON lines beside a card without configurations, at the commit that the Hub serves; no negative is mined."
    row = registry('tuning')['bmretriever-released']
    with Hub([Repository('datasets', row['hub'], released_files(row), [PINNED])], tmp_path / 'hub') as served_hub:
        code = f'import os; os.chdir({str(tmp_path)!r})\n{_READ_RELEASED}'
        sources, labelled, first = run(code, process_environment(served_hub, tmp_path))
        asked = {a.revision for a in served_hub.fetched('datasets', row['hub']) if a.path == row['files'][0]}
    of_one = sources['bmretriever-released/medquad']
    twice = {'medquad': of_one, 'fever': of_one, 'synthetic': 2 * of_one}
    assert asked == {PINNED} and sources == {f'bmretriever-released/{name}': count for name, count in twice.items()}
    assert labelled == 2 * of_one > 20 and first['instruction'] == RELEASED[0] and len(first['neg']) == 1


_TAKEN = f"""
import json, datasets, huggingface_hub as h
from pathlib import Path
datasets.disable_progress_bars()
folder = Path(h.snapshot_download('owner/name', revision={PINNED!r}))
files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob('*') if p.is_file())
out = {{'files': files, 'size': (folder / files[-1]).stat().st_size, 'sha': h.HfApi().model_info('owner/name').sha}}
out['rows'] = datasets.load_dataset('owner/name', 'corpus', split='corpus', revision={PINNED!r}).to_list()
absent = dict(
    repository=lambda: h.snapshot_download('owner/nothing', revision={PINNED!r}),
    revision=lambda: h.hf_hub_download('owner/name', 'config.json', revision='0' * 40),
    entry=lambda: h.hf_hub_download('owner/name', 'nothing.json'),
)
for name, call in absent.items():
    try: call()
    except Exception as e: out[name] = type(e).__name__
print(json.dumps(out))
"""


@pytest.mark.medium
def test_huggingface_hub_and_datasets_take_it_for_the_hub(tmp_path):
    "A snapshot with a file that breaks off in the middle, a data set, and each refusal by its class."
    repositories = [Repository(kind, 'owner/name', own_files, [PINNED]) for kind in ('models', 'datasets')]
    with Hub(repositories, tmp_path / 'small') as small:
        with small.faulty('models', 'owner/name', cut={'model.safetensors', 'config.json'}):
            out = run(_TAKEN, process_environment(small, tmp_path))
    files = ['README.md', 'config.json', 'corpus/corpus.parquet', 'model.safetensors']
    refused = {'repository': 'RepositoryNotFoundError', 'revision': 'RevisionNotFoundError'}
    refused['entry'] = 'RemoteEntryNotFoundError'
    assert out == {'files': files, 'size': 25600, 'sha': PINNED, 'rows': OWN_ROWS, **refused}
    fetched = small.fetched('models', 'owner/name')
    assert len([a for a in fetched if a.method == 'GET' and a.path == 'model.safetensors']) == 2  # cut off, then whole
    assert {a.revision for a in small.fetched('datasets', 'owner/name')} == {PINNED, '(large)'}


@pytest.fixture(scope='module')
def hub(tmp_path_factory):
    with Hub([*model_repositories(), *data_repositories()], tmp_path_factory.mktemp('store')) as h:
        yield h


@pytest.fixture(scope='module')
def services():
    found = Services()
    yield found
    found.close()


class Checked:
    "`ask(kind, names)`: what hub/check.py says of rows, from a process of its own; rows of a kind are asked once."

    def __init__(self, hub, base, services):
        self.hub, self.base, self.services, self.known = hub, base, services, {}
        self.registry = small_registry(base / 'registry')

    def process(self, kind, names, base=None, hub=None, github=None, **more):
        told = {'MEDIR_REGISTRY': str(self.registry), **more}
        environment = process_environment(hub or self.hub, base or self.base, self.services, github, **told)
        command = [sys.executable, str(TESTS / 'hub' / 'check.py'), kind, *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return {row['name']: {**row, 'stderr': done.stderr} for row in map(json.loads, done.stdout.splitlines())}

    def __call__(self, kind, name):
        if kind not in self.known:
            self.known[kind] = self.process(kind, NAMES[kind])
        return self.known[kind][name]


@pytest.fixture(scope='module')
def checked(hub, tmp_path_factory, services):
    return Checked(hub, tmp_path_factory.mktemp('rows'), services)


@pytest.fixture(scope='module')
def github(tmp_path_factory):
    "The folder of repositories in GitHub's place, and their commits."
    folder = tmp_path_factory.mktemp('github')
    return folder, make_github(folder)


ENCODERS = {n: r for n, r in registry('models').items() if r.get('kind') == 'encoder' and not r.get('package')}
WRITERS = {n: r for n, r in registry('llms').items() if not r.get('package')}
TASKS = {n: r for n, r in registry('tasks').items() if on_the_hub(r)}
GENERATIONS = [
    f'r2med-biology/{method}/{n}'
    for n, r in WRITERS.items()
    for field in ('hub_splits', 'likely_splits')
    for method in r.get(field, {}).get('r2med', {})
]
CMIRB = [n for n, r in TASKS.items() if 'git' in r]
NAMES = {
    'encoder': list(ENCODERS),
    'writer': list(WRITERS),
    'served_writer': [n for n, r in WRITERS.items() if r['backend'] == 'openai'],
    'reranker': [n for n, r in registry('rerankers').items() if served(r)],
    'task': list(TASKS),
    'corpus': [n for n, r in registry('corpora').items() if 'git' not in r],
    'generations': GENERATIONS,
}


CODE_ASKED_BY_NAME = {('models', 'nvidia/NV-Embed-v2'), ('models', GTE_CODE)}


def refusal(row):
    "How a row that cannot run from the Hub says so, or None."
    if row.get('backend') == 'remote':
        return 'its published code runs nowhere here'
    if row.get('checkpoint'):
        return 'its weights were never released, and none were trained here'
    if row.get('backend') == 'openai' and row.get('kind') != 'encoder':  # an encoder's service is on loopback, too
        return 'it is a service, whose weights nobody has'
    if row.get('hub') == 'pile-of-law/pile-of-law':
        return 'this revision is a script, which datasets no longer runs'
    return None


def answered(found, row):
    "The answer of a row that runs, or None where it refused for its reason; nothing may crash."
    assert 'crash' not in found, found
    said = refusal(row)
    if said is None:
        assert 'error' not in found, found
        return found
    assert said in found['error'] and '\n' not in found['error'], found
    return None


@pytest.mark.slow
@pytest.mark.parametrize('name', ENCODERS)
def test_an_encoder_loads_and_encodes_with_its_instruction(checked, name):
    row = ENCODERS[name]
    found = answered(checked('encoder', name), row)
    if found is None:
        return
    service = row['backend'] in ('openai', 'voyage')
    for role in ('query', 'document'):
        part = found[role]
        assert part['finite'] and part['apart'] > 1e-3
        of_tokens = row.get('representation') == 'multi_vector'
        width = row['dim'] if of_tokens else 16 if service else HEAD if row['hub'].startswith(HEADS) else HIDDEN
        assert part['dim'] > 100 if row.get('representation') == 'sparse' else part['dim'] == width
        if not service:
            assert all(abs(norm - 1) < 2e-3 for norm in part['norms'][:2]) == row['normalize']
            assert min(part['tokens']) > 3
    apart = any(row.get(field) for field in ('document', 'query_brackets', 'document_pair_template'))
    plain = row['query_template'] == row['document_template'] == '{text}'
    same = plain and not apart and not of_tokens and row['backend'] != 'voyage'
    assert (found['query']['first'] == found['document']['first']) == same


@pytest.mark.slow
@pytest.mark.parametrize('name', WRITERS)
def test_a_language_model_writes_with_the_transformers_backend(checked, name):
    found = answered(checked('writer', name), WRITERS[name])
    if found:
        assert all(1 <= n <= 4 for n in found['tokens']) and found['texts'][0] != found['texts'][1]
        # the chat form stands around the question, and a system turn where there is one; a bare row has neither
        around = 20 if WRITERS[name]['system'] else 10 if WRITERS[name]['chat'] != '{prompt}' else 5
        assert found['prompts'][0] > around


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES['served_writer'])
def test_a_served_language_model_is_asked_at_its_address(checked, name):
    assert checked('served_writer', name)['texts'] == ['echo: What lowers cholesterol?']


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES['reranker'])
def test_a_reranker_scores_pairs(checked, name):
    found = answered(checked('reranker', name), registry('rerankers')[name])
    scores, answers = found['scores'], registry('rerankers')[name].get('answers', ())
    assert len(answers) < 2 or all(0 < score < 1 for score in scores)
    assert scores[0] != scores[1] and all(abs(score) < 1e3 for score in scores) and min(found['tokens']) > 5


@pytest.mark.slow
@pytest.mark.parametrize('name', TASKS)
def test_a_task_loads_with_its_counts(checked, name):
    row = TASKS[name]
    found = answered(checked('task', name), row)
    if found is None:
        return
    assert found['kind'] == row['kind']
    if row['kind'] == 'pairs':
        assert found['pairs'] == 6
        return
    documents, queries, qrels = collection(name, row)
    assert (found['queries'], found['language']) == (len(queries), row['language'])
    # nested rows show a document once for each query, and judge it
    nested = 'nested' in row['configs']
    shown = len(documents) * (len(queries) if nested else 1)
    assert found['documents'] == shown and found['qrels'] == (shown if nested else len(qrels))
    # without a recorded commit it is the one that the Hub serves (the git repository of such rows does not answer here)
    served_commit = checked.hub.at('datasets', row['hub']).commits[0]
    assert found['revision'] == (served_commit if row['revision'] == 'unknown' else row['revision'])
    assert found['labels'] == (len(queries) if row.get('labels') else 0)
    assert (found['candidates'] or 0) == (len(qrels) if 'top_ranked' in row['configs'] else 0)


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES['corpus'])
def test_a_corpus_loads(checked, name):
    found = answered(checked('corpus', name), registry('corpora')[name])
    assert found is None or found['documents'] > 10


@pytest.mark.slow
def test_tasks_texts_and_documents_of_a_git_repository(checked, github, tmp_path):
    folder, commits = github
    own = small_registry(tmp_path / 'registry', commits)
    mark = len(checked.hub.asked)
    ask = lambda kind, names: checked.process(kind, names, base=tmp_path, github=folder, MEDIR_REGISTRY=str(own))
    found = ask('task', CMIRB)
    assert len(CMIRB) == 10
    for name, task in found.items():
        documents, queries, qrels = collection(name, TASKS[name])
        assert (task['queries'], task['documents'], task['qrels']) == (len(queries), len(documents), len(qrels)), task
        # a commit on record before one that is not: the three sets of C-MTEB come from the Hub
        pinned = TASKS[name]['revision']
        assert task['revision'] == (pinned if pinned != 'unknown' else f'll0ruc/AutoMIR1@{commits["ll0ruc/AutoMIR1"]}')
    texts = ask('generations', [f'{n}/hyde/{llm}' for n in CMIRB for llm in ('qwen2-7b', 'qwen2-7b-slhyde')])
    assert all('error' not in t and all(len(x) == 1 for x in t['texts']) for t in texts.values()), texts
    assert ask('corpus', ['automir-training'])['automir-training']['documents'] == 44
    assert not [a for a in checked.hub.asked[mark:] if a.id and a.id.startswith('CMIRB/')]


@pytest.mark.slow
@pytest.mark.parametrize('name', GENERATIONS)
def test_published_texts_reach_their_model(checked, name):
    task, method, llm = name.split('/')
    found = checked('generations', name)
    assert len(found['texts']) == len(collection(task, TASKS[task])[1]) and found['stats']['generated'] == 0
    assert all(t.endswith(f'({method}, {llm})') and not t.startswith('hm') for (t,) in found['texts'])


@pytest.mark.slow
def test_nothing_but_the_pinned_commits_is_fetched(hub, checked):
    """Where no commit is on record the Hub is asked once for the one that it serves. Exceptions: NV-Embed's own code
    asks for its tokenizer by name, and files of GTE-multilingual name the repository of its code and no commit."""
    for kind in NAMES:
        checked(kind, NAMES[kind][0])
    known = [a for a in hub.fetched() if (a.kind, a.id) in hub.repositories and a.revision != '(large)']
    assert strays(hub) == CODE_ASKED_BY_NAME
    every = [*ENCODERS.values(), *WRITERS.values(), *registry('rerankers').values()]
    rows = [row for row in every if served(row) and refusal(row) is None]
    fetched = {(a.id, a.revision) for a in known if a.method == 'GET' and a.kind == 'models'}
    unrecorded = {('models', row['hub']) for row in rows if row['revision'] == 'unknown'}
    pinned = {(row['hub'], row['revision']) for row in rows if row['revision'] != 'unknown'}
    assert pinned | {(id, hub.at('models', id).commit('main')) for _, id in unrecorded} <= fetched
    sets = [*TASKS.values(), *registry('corpora').values()]
    unrecorded |= {('datasets', row['hub']) for row in sets if row.get('revision') == 'unknown' and row.get('hub')}
    assert {(a.kind, a.id) for a in known if a.path == '(info)' and a.revision == 'main'} == unrecorded


def strays(hub):
    known = [a for a in hub.fetched() if (a.kind, a.id) in hub.repositories and a.path != '(info)']
    return {(a.kind, a.id) for a in known if a.revision not in (*hub.at(a.kind, a.id).commits, '(large)')}


def told(found):
    return {k: v for k, v in found.items() if k != 'stderr'}


@pytest.mark.slow
def test_what_was_fetched_once_is_found_offline(hub, checked, tmp_path):
    "In another home folder, so that nothing but the Hub's cache is left."
    asked = {
        'encoder': ['bge-small-en-v1.5', 'contriever', 'dragon', 'repllama', 'gtr-l'],
        'reranker': ['monobert', 'rankllama'],
        'writer': ['r1-qwen-32b'],
        'task': ['nfcorpus', 'cmirb-covid', 'relish', 'biosses'],
        'generations': ['r2med-biology/hyde/o3-mini'],
    }
    for kind, names in asked.items():
        before, mark = {n: checked(kind, n) for n in names}, len(hub.asked)
        after = checked.process(kind, names, HF_HUB_OFFLINE='1', MEDIR_HOME=str(tmp_path / 'home'))
        assert [told(after[n]) for n in names] == [told(before[n]) for n in names] and len(hub.asked) == mark


BGE, LACKS = 'BAAI/bge-small-en-v1.5', 'lacks a file that the Hub lists there'
AT = f'{BGE}@5c38ec7c'
MODEL, DATA = ('models', BGE), ('datasets', 'mteb/nfcorpus')
GATED = 'is gated: its owner grants access; ask for it at https://huggingface.co/'
FAULTS = {  # what is wrong, and what is said of a model and of a data set; None: nothing, and all is as without it
    'gated': (dict(gated=403), f'{AT} {GATED}{BGE}, then log in', f'default/test {GATED}datasets/mteb/nfcorpus,'),
    'missing': (dict(missing=('model.safetensors', 'corpus/corpus.jsonl')), f'{AT} {LACKS}', f'corpus/corpus {LACKS}'),
    'slow': (dict(delay=0.2), None, None),
    'cut off': (dict(cut={'model.safetensors', 'tokenizer.json', 'corpus/corpus.jsonl'}), None, None),
}


@pytest.mark.slow
@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_is_one_line_or_no_matter(hub, checked, tmp_path, fault):
    faults, *said = FAULTS[fault]
    asked = zip((MODEL, DATA), ('weights', 'task'), ('bge-small-en-v1.5', 'nfcorpus'), said)
    for repository, kind, name, line in asked:
        wanted, start = checked.process(kind, [name])[name], time.monotonic()
        with hub.faulty(*repository, **{key: set(v) if key == 'cut' else v for key, v in faults.items()}):
            found = checked.process(kind, [name], base=tmp_path / kind)[name]
        if line is None:
            assert told(found) == told(wanted)
        else:
            assert line in found['error'] and '\n' not in found['error']
        assert time.monotonic() - start < 60


@pytest.mark.slow
def test_a_silent_hub_is_found_out_once(checked, tmp_path):
    names, start = ['bge-small-en-v1.5', 'contriever', 'e5-small-v2', 'gte-small'], time.monotonic()
    with Hub([], tmp_path / 'store') as other:
        other.silent = True
        found = checked.process('weights', names, base=tmp_path, hub=other)
    assert all(f'nor reachable ({other.url} does not answer)' in row['error'] for row in found.values())
    assert time.monotonic() - start < 30 and len(other.fetched()) <= 1


MISDESCRIBED = """
bge-small-en-v1.5 | pooling | mean | pools by mean, its row says cls; {row}, or write bge-small-en-v1.5(pooling=mean)
e5-small-v2 | architecture | mpnet | is of the architecture mpnet, its row says bert; {row}
bmretriever-2b | architecture | llama | is of the architecture llama, its row says gemma; {row}
gtr-l | pooling | cls | pools by cls and normalises, its row says mean and normalises; {row}
gtr-xl | normalize |  | pools by mean, its row says mean and normalises; {row}
"""  # row, what is served in place of it, and what is said


@pytest.mark.slow
def test_a_model_that_its_row_misdescribes_fails(checked, tmp_path):
    rows = table(MISDESCRIBED)
    wrong = {name: {**ENCODERS[name], field: value or False} for name, field, value, _ in rows}
    wrong['gte-small'] = {**ENCODERS['gte-small'], 'normalize': False}
    with Hub(model_repositories(wrong, {}, {}), tmp_path / 'store') as other:
        found = checked.process('encoder', list(wrong), base=tmp_path, hub=other)
    for name, _, _, said in rows:
        line = said.replace('{row}', 'correct the registry row')
        assert found[name]['error'] == f'model {name}: the checkpoint {line}'
    # a row may normalise where the checkpoint does not, and it is said
    said = 'model gte-small: the checkpoint does not normalise its vectors, its row does; the row counts'
    assert found['gte-small']['query']['norms'] == [1.0, 1.0] and said in found['gte-small']['stderr']


# and how many of its runs cannot work on any machine: ChatGLM3 is not trained
BATCHES = dict.fromkeys('bmretriever bmretriever_sizes bmretriever_remade retrievers r2med mar medteb'.split(), 0)
BATCHES['automir'] = 1


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    folder = Path(os.environ.get('MEDIR_KEEP') or tmp_path_factory.mktemp('whole'))
    print('\nthe executed notebooks are kept below', folder / 'home' / 'runs')
    return folder


def test_every_paper_preset_stands_in_a_batch():
    batches = set(BATCHES)
    named = {(r['notebook'], r['preset']) for name in batches for r in whole.batch(name)['runs']}
    papers = {(f.parent.name, f.stem) for f in (whole.ROOT / 'params').glob('*/*.yaml') if f.stem in ('paper', 'legal')}
    assert papers <= named
    assert {f.stem for f in (whole.ROOT / 'params' / 'batches').glob('*.yaml')} == {*batches, 'smoke'}
    assert set(whole.OVERRIDES) <= named


@pytest.mark.slow
@pytest.mark.parametrize('name', BATCHES)
def test_a_batch_runs_whole(hub, services, github, base, name):
    folder, commits = github
    rows = small_registry(base / 'registry', commits, llms=whole.writers(), models=whole.towers())
    told = {'MEDIR_REGISTRY': rows, 'MEDIR_DATA': whole.write_data(base / 'data'), 'MEDIR_ROOT': whole.ROOT}
    told['MEDIR_LLM_BACKEND'] = '' if name in whole.AS_THE_ROW_SAYS else 'transformers'
    environment = process_environment(hub, base, services, folder, **{key: str(value) for key, value in told.items()})
    with at_home(base / 'home'):
        before = {receipt['output'] for receipt in receipts()}
    runs = whole.batch(name)['runs']
    command = [sys.executable, '-m', 'medir_nb.workbook', 'run', str(whole.write_batch(name, base / 'batches'))]
    limit = 300 * max(5, len(runs))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    with at_home(base / 'home'):
        made = [receipt for receipt in receipts() if receipt['output'] not in before]
    assert len(made) == len(runs) - BATCHES[name], done.stderr[-3000:]
    for run in runs:
        found = [made_by for made_by in made if all(made_by[key] == run[key] for key in ('notebook', 'preset'))]
        assert found or BATCHES[name], run
        for receipt in found:
            output = Path(receipt['output'])
            text = whole.notebook_text(output)
            assert 'Traceback' not in text and not re.search(r'^\w*(Error|Exception)\b', text, re.M), output
            kept = output.parent / 'not_run.json'
            missing = json.loads(kept.read_text()) if kept.is_file() else []
            expected = whole.expected_absent(run, base / 'home')
            assert {(row['system'], row['task']) for row in missing} == set(expected), output
            assert all(re.search(expected[row['system'], row['task']], row['why']) for row in missing), output
    assert strays(hub) <= CODE_ASKED_BY_NAME


_KILLED_AFTER = 1  # runs


@pytest.mark.slow
def test_reproduce_takes_what_fits_and_goes_on_after_a_kill(hub, services, github, tmp_path):
    "Three pieces of a minute; killed after a run, the same line repeats none and closes with the page."
    folder, commits = github
    told = {'MEDIR_REGISTRY': small_registry(tmp_path / 'registry', commits), 'MEDIR_ROOT': whole.ROOT}
    environment = process_environment(hub, tmp_path, services, folder, **{k: str(v) for k, v in told.items()})
    command = [sys.executable, '-m', 'medir_nb.workbook', 'run', 'reproduce', '--hours', '0.06']
    kept = tmp_path / 'home' / 'receipts'
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(before := set(kept.glob('*.json'))) < _KILLED_AFTER:
        assert first.poll() is None
        time.sleep(0.2)
    first.kill()
    first.wait()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = done.stdout.split()
    (batch,) = (tmp_path / 'home' / 'batches').glob('*.yaml')
    planned = json.loads(batch.read_text())['runs']
    assert len(outputs) == len(planned) == len(list(kept.glob('*.json'))) > _KILLED_AFTER
    assert before < set(kept.glob('*.json')) and done.stderr.count('reused reproduce') >= _KILLED_AFTER
    with (Path(outputs[-1]).parent / 'measured.csv').open() as file:
        measured = list(csv.DictReader(file))
    pairs = sum(len(run['parameters']['tasks']) for run in planned[:-1])
    assert pairs == 3 and len(measured) >= pairs
    assert all(row['verdict'] and row['measured'] and row['printed'] for row in measured)
