"""Tasks and suites of mteb by name, from a Hub on loopback that serves their data sets in the layouts, ids and revisions that mteb names."""

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys

import pytest

mteb = pytest.importorskip('mteb', reason='the extra medir_nb[mteb] is not installed')

from hub.data import ENGLISH, ENGLISH_QUESTIONS, PAIRS
from hub.mteb_tasks import SUITES, TOLD, commit_of, mteb_repositories
from hub.server import Faults, Hub
from hub.services import TESTS, process_environment
from medir_nb.core import MedirError, NothingToMeasure
from medir_nb.data import expand_tasks, load_mteb, load_task, suite_tasks
from medir_nb.data.mteb_tasks import _KINDS

pytestmark = pytest.mark.filterwarnings('ignore')
OLDER = [task.metadata.name for task in mteb.get_benchmark('R2MED').tasks] + [
    'ChatDoctorRetrieval',
    'BrightBiologyRetrieval',
    'BrightAopsRetrieval',
    'PublicHealthQA/english',
    'CUREv1/es/dermatology',
    'mFollowIR/zho',
]
NEWER = ['NFCorpus', 'IFIRCds', 'CMedQAv2-reranking', 'BIOSSES']
SEVERAL = ['PublicHealthQA', 'CUREv1', 'CUREv1/es', 'mFollowIR']
ASKED = [f'mteb:{name}' for name in [*OLDER, *NEWER, *SEVERAL, 'R2MED', 'MedrxivClusteringP2P.v2', 'NFCorpuss']]


# ---------------------------------------------------------------- a Hub


@pytest.fixture(scope='module')
def hub(tmp_path_factory):
    with Hub(mteb_repositories(), tmp_path_factory.mktemp('store')) as served:
        yield served


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    return tmp_path_factory.mktemp('base')


def checked(hub, base, names, **more):
    "What hub/check.py says of tasks, by name."
    command = [sys.executable, str(TESTS / 'hub' / 'check.py'), 'read', *names]
    environment = process_environment(hub, base, **more)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row['name']: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope='module')
def found(hub, base):
    return checked(hub, base, ASKED)


def medir(hub, base, *arguments, **more):
    "The command, as a process of its own before the Hub on loopback."
    command = [sys.executable, '-m', 'medir_nb.workbook', *map(str, arguments)]
    environment = process_environment(hub, base, **more)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


# ---------------------------------------------------------------- tasks


@pytest.mark.medium
@pytest.mark.parametrize('name', [*OLDER, *(name for name in NEWER if name != 'BIOSSES')])
def test_a_task_opens_in_either_layout(found, name):
    "All texts and judgements come in, whatever the loader leaves them in."
    row = found[f'mteb:{name}']
    assert row.get('called') == f'mteb:{name}', row
    assert len(row['queries']) == len(ENGLISH_QUESTIONS)
    assert len(row['qrels']) == sum(len(relevant) for _, relevant in ENGLISH_QUESTIONS) or 'PublicHealth' in name
    texts = ' '.join(row['documents'].values())
    assert all(text.split('.')[0] in texts for _, text in ENGLISH.values()) or 'PublicHealth' in name
    data = mteb.get_task(name.split('/')[0]).metadata.dataset
    assert row['revision'] == commit_of(data['revision'], data['path']) and len(row['revision']) == 40


@pytest.mark.medium
def test_a_title_stands_before_its_text_and_grades_are_kept(found):
    row = found['mteb:CUREv1/es/dermatology']
    title, text = ENGLISH['d13']
    assert row['documents']['der-d13'] == f'{title} {text}' and row['queries']['der-q3'].endswith('(es)')
    assert ['der-q0', 'der-d02', 2] in row['qrels'] and row['split'] == 'dermatology'
    assert row['instructions']['default'].startswith('Given a question by a medical professional')


@pytest.mark.medium
def test_sentence_pairs_open(found):
    assert [tuple(pair) for pair in found['mteb:BIOSSES']['pairs']] == PAIRS


@pytest.mark.medium
@pytest.mark.parametrize(
    'name, kind, listed',
    [
        ('BrightBiologyRetrieval', 'retrieval', None),
        ('BrightAopsRetrieval', 'reranking', len(ENGLISH) - 1),  # all documents but the one that a query may not see
        ('CMedQAv2-reranking', 'reranking', 12),
        ('mFollowIR/zho', 'reranking', 12),
    ],
)
def test_candidates_come_with_a_task(found, name, kind, listed):
    row = found[f'mteb:{name}']
    assert row['kind'] == kind
    if listed:
        assert len(row['candidates']) == listed * len(row['queries'])
        assert row['kind'] != 'reranking' or 'd12' not in {d for _, d in row['candidates']} or 'Aops' not in name
    else:
        assert row['candidates'] is None


@pytest.mark.medium
def test_the_measure_that_mteb_ranks_by_comes_first(found):
    assert found['mteb:IFIRCds']['measures'][0] == 'nDCG@20'
    assert found['mteb:CMedQAv2-reranking']['measures'][0] == 'AP@1000'
    assert found['mteb:NFCorpus']['measures'] == ['nDCG@10', 'R@100']


@pytest.mark.medium
def test_a_task_of_several_parts_is_refused_and_the_named_one_opens(hub, base, found):
    examples = []
    for name in SEVERAL:
        said, task = found[f'mteb:{name}']['error'], mteb.get_task(name.split('/')[0])
        parts = task.eval_splits if '/' in name else task.hf_subsets
        assert '\n' not in said and f'it has {len(parts)} ' in said and ', '.join(parts) in said
        examples.append(re.search(r'as in (\S+)$', said)[1])
    opened = checked(hub, base, examples)
    assert examples[:2] == ['mteb:PublicHealthQA/english', 'mteb:CUREv1/en/all']
    assert all(opened[example]['called'] == example and opened[example]['queries'] for example in examples)


@pytest.mark.medium
def test_what_is_no_task_of_search_is_said(found):
    assert 'it is of the type Clustering' in found['mteb:MedrxivClusteringP2P.v2']['error']
    assert "did you mean 'NFCorpus'?" in found['mteb:NFCorpuss']['error']
    assert 'it is 8 tasks: mteb:R2MEDBiologyRetrieval, ' in found['mteb:R2MED']['error']


@pytest.mark.medium
def test_one_part_of_a_task_is_fetched_and_no_other(hub, tmp_path):
    hub.forget()
    checked(hub, tmp_path, ['mteb:CUREv1/fr/genetics'])
    asked = [asked.path for asked in hub.fetched('datasets', 'clinia/CUREv1') if asked.path.endswith('.parquet')]
    assert {file.split('/')[0] for file in asked} == {'corpus', 'qrels', 'queries-fr'}


# ---------------------------------------------------------------- instructions of a query


@pytest.mark.medium
@pytest.mark.parametrize('name', ['IFIRCds', 'mFollowIR/zho'])
def test_an_instruction_of_a_query_is_read_behind_it(found, name):
    "As mteb's own models read it."
    row = found[f'mteb:{name}']
    questions = [text for text, _ in ENGLISH_QUESTIONS]
    assert list(row['queries'].values()) == [
        f'{text} {TOLD} ({query_id})' for text, query_id in zip(questions, row['queries'], strict=True)
    ]
    assert row['report']['queries_with_an_instruction'] == len(questions)


@pytest.mark.medium
def test_an_instruction_is_in_the_contract_that_a_model_shows(hub, base, found):
    done = medir(hub, base, 'contract', 'minilm', 'mteb:IFIRCds')
    assert done.returncode == 0 and TOLD in done.stdout, done.stderr[-500:]


# ---------------------------------------------------------------- the whole of mteb by shape


def older_tasks():
    "The tasks over text whose loader leaves dictionaries in the task."
    for task in mteb.get_tasks(exclude_superseded=False, exclude_aggregate=True, exclude_private=False):
        is_read = task.metadata.type in _KINDS and list(task.metadata.modalities) == ['text']
        if is_read and 'self.relevant_docs' in inspect.getsource(sys.modules[type(task).__module__]):
            yield task


def fill(task):
    "What a loader of the older layout leaves in the task; numbers as ids, floats as grades."
    parts = {
        'queries': {7: 'which drug', 8: 'which dose'},
        'corpus': {'1': {'text': 'aspirin', 'title': None}, 'd2': {'text': 'two a day'}, 'd3': 'plain'},
        'relevant_docs': {7: {'1': 1.0}, 8: {'d2': '2', 'd3': 0}},
    }
    for part, value in parts.items():
        by_split = dict.fromkeys(task.metadata.eval_splits, value)
        of_all = dict.fromkeys(task.hf_subsets, by_split) if task.metadata.is_multilingual else by_split
        setattr(task, part, of_all)
    task.data_loaded = True


@pytest.mark.medium
def test_every_task_of_the_older_layout_opens(monkeypatch):
    opened, parts = [], set()
    for task in older_tasks():
        loaded = type(task)
        monkeypatch.setattr(loaded, 'load_data', lambda self, **_: fill(self))
        subset, split = task.hf_subsets[-1], task.eval_splits[-1]
        monkeypatch.setattr('medir_nb.data.mteb_tasks._read_at', lambda data, *_: {**data, 'revision': '1' * 40})
        one = load_mteb('/'.join([task.metadata.name, subset, split]))
        opened.append(task.metadata.name)
        parts.add((len(task.hf_subsets) > 1, len(task.eval_splits) > 1))
        assert one.queries.texts() == ['which drug', 'which dose'] and one.corpus.ids.tolist() == ['1', 'd2', 'd3']
        assert one.qrels.values.tolist() == [['7', '1', 1], ['8', 'd2', 2], ['8', 'd3', 0]]
        assert one.corpus.texts() == ['aspirin', 'two a day', 'plain'] and one.split == split
    assert len(opened) > 60 and len(parts) > 2
    assert {'R2MEDBiologyRetrieval', 'CUREv1', 'PublicHealthQA', 'ChatDoctorRetrieval'} <= set(opened)


# ---------------------------------------------------------------- suites


def test_a_suite_stands_for_its_tasks():
    named, unread = expand_tasks(['hpo-lay', *SUITES, 'mteb:R2MED'])
    assert named[:2] == ['hpo-lay', 'mteb:R2MEDBiologyRetrieval'] and len(named) == len(set(named)) == 1 + 8 + 49 + 3
    assert sum(name.startswith('mteb:CUREv1/') for name in named) == 33 and 'mteb:PublicHealthQA/korean' in named
    assert set(unread) == {'mteb:MedrxivClusteringP2P.v2', 'mteb:MedrxivClusteringS2S.v2'}
    assert all(isinstance(error, NothingToMeasure) for error in unread.values())
    assert suite_tasks('NFCorpus') is None and len(suite_tasks('CQADupstackRetrieval')[0]) == 12


def test_a_suite_is_not_one_task():
    for name in ('MTEB(Medical, v1)', 'mteb:R2MED', 'mteb:CQADupstackRetrieval'):
        with pytest.raises(MedirError, match='it is [0-9]+ tasks: mteb:.*; name one of them, as in mteb:'):
            load_task(name)


def test_a_part_is_named_once():
    with pytest.raises(MedirError, match='mteb:CUREv1/en/all: the split is named twice, all, genetics; leave one'):
        load_task('mteb:CUREv1/en/all', split='genetics')
    with pytest.raises(MedirError, match='mteb:NFCorpus/default/test/1: 1 is too much'):
        load_task('mteb:NFCorpus/default/test/1')
    with pytest.raises(MedirError, match="mteb:NFCorpus/train: it has no split 'train', but test; name one of them"):
        load_task('mteb:NFCorpus/train')


def test_a_folder_wins_over_a_suite_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'R2MED').mkdir()
    assert expand_tasks(['R2MED']) == (['R2MED'], {})


@pytest.mark.medium
def test_evaluate_takes_a_task_and_a_suite(hub, base, tmp_path):
    file = tmp_path / 'scores.json'
    done = medir(hub, base, 'evaluate', 'mteb:R2MEDBiologyRetrieval', '--system', 'bm25', '--json', file)
    assert done.returncode == 0, done.stderr[-1000:]
    [one] = [row for row in json.loads(file.read_text()) if row['measure'] == 'nDCG@10']
    assert one['task'] == 'mteb:R2MEDBiologyRetrieval' and 0.5 < one['value'] < 1
    done = medir(hub, base, 'evaluate', 'R2MED', '--system', 'bm25', '--json', file, '--save-run', tmp_path)
    assert done.returncode == 0, done.stderr[-1000:]
    rows = [row for row in json.loads(file.read_text()) if row['measure'] == 'nDCG@10']
    assert [row['task'] for row in rows] == [f'mteb:{name}' for name in OLDER[:8]]
    assert rows[0]['value'] == one['value'] and len(list(tmp_path.glob('*.run'))) == 8


@pytest.mark.medium
def test_what_of_a_suite_is_not_to_be_had_is_named(hub, base, tmp_path):
    for name in ('English', 'German'):
        hub.at('datasets', f'mteb-private/{name}Healthcare1Retrieval').faults.gated = 403
    file = tmp_path / 'scores.json'
    done = medir(hub, base, 'evaluate', 'RTEB(Health, beta)', '--system', 'bm25', '--json', file)
    assert done.returncode == 2 and len(json.loads(file.read_text())) == 2 * (1 + 33)
    assert '2 of 36 tasks were not evaluated: mteb:EnglishHealthcare1Retrieval, mteb:German' in done.stderr
    assert done.stderr.count('is gated: its owner grants access') == 2


@pytest.mark.medium
def test_a_grid_and_a_plan_take_a_suite(hub, base):
    code = """
import json
from medir_nb.evaluator import evaluate_grid
from medir_nb.workbook import plan_grid
suites = ['R2MED', 'MINERSBitextMining']
scores, not_run = evaluate_grid(suites, ['bm25'], measures=['nDCG@10'])
planned = plan_grid(suites, ['minilm'])
print(json.dumps({
    'scored': [score.task.name for score in scores],
    'not run': {name: [str(error), type(error).__name__] for (_, name), error in not_run.items()},
    'planned': planned[['task', 'data', 'texts to encode', 'note']].values.tolist(),
}))
"""
    environment = process_environment(hub, base)
    done = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    said, of_r2med = json.loads(done.stdout.splitlines()[-1]), [f'mteb:{name}' for name in OLDER[:8]]
    assert said['scored'] == of_r2med and said['not run']
    assert {tuple(why) for why in said['not run'].values()} == {
        (f'{name}: it is of the type BitextMining', 'NothingToMeasure') for name in said['not run']
    }
    texts = len(ENGLISH) + len(ENGLISH_QUESTIONS)
    assert said['planned'][:8] == [[name, 'at hand', texts, ''] for name in of_r2med]
    assert [row[0] for row in said['planned'][8:]] == list(said['not run'])
    assert all('it is of the type BitextMining' in row[3] for row in said['planned'][8:])


@pytest.mark.medium
def test_commands_list_a_suite_and_plan_it_without_data(hub, tmp_path):
    listed = medir(hub, tmp_path, 'tasks', 'MTEB(Medical, v1)', '--json')
    rows = {row['task']: row for row in json.loads(listed.stdout)}
    assert len(rows) == 51 and rows['mteb:NFCorpus']['registry'] == 'nfcorpus'
    assert rows['mteb:MedrxivClusteringS2S.v2']['not read'] == 'it is of the type Clustering'
    planned = medir(hub, tmp_path, 'plan', 'R2MED', '--system', 'bm25', '--json')
    assert planned.returncode == 0 and planned.stdout.count('hf download R2MED/') == 8, planned.stderr[-800:]


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.medium
def test_the_printed_download_is_enough_without_a_network(hub, tmp_path, found):
    "A commit, a branch, and the first digits of a commit."
    addresses = ['mteb:R2MEDBiologyRetrieval', 'mteb:PublicHealthQA/english', 'mteb:IFIRCds']
    environment = process_environment(hub, tmp_path)
    for row in checked(hub, tmp_path, addresses, HF_HUB_OFFLINE='1').values():
        tool, *arguments = re.search(r'`(hf download [^`]+)`', row['error'])[1].split()
        assert '\n' not in row['error'] and 'HF_HUB_OFFLINE is set' in row['error']
        command = [os.path.join(os.path.dirname(sys.executable), tool), *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    mark, opened = len(hub.asked), checked(hub, tmp_path, addresses, HF_HUB_OFFLINE='1')
    for address in addresses:
        assert opened[address].get('queries') == found[address]['queries'], opened[address]
    assert len(hub.asked) == mark


FAULTS = {  # data set: its task, what is wrong, what is said
    'R2MED/Biology': (
        'R2MEDBiologyRetrieval',
        {'gated': 403},
        'its data set is gated: its owner grants access; ask for',
    ),
    'R2MED/PMC-Clinical': (
        'R2MEDPMCClinicalRetrieval',
        {'missing': ('qrels/qrels-00000-of-00001.parquet',)},
        'its data set lacks a file that the Hub lists there',
    ),
    'mteb/nfcorpus': (
        'NFCorpus',
        {},
        'is a script at ec0fa4fe99da2ff19ca1214b7966684033a58814, which datasets no longer',
    ),
    'mteb/scifact': (
        'SciFact',
        None,
        'the Hub has no dataset mteb/scifact, or it is private; correct the name, or log in',
    ),
}


@pytest.mark.medium
def test_a_fault_of_a_data_set_is_one_line(tmp_path):
    served = {repository.id: repository for repository in mteb_repositories()}
    served['mteb/nfcorpus'].build = lambda folder: (folder / 'nfcorpus.py').write_text('import datasets\n')
    for id, (_, faults, _) in FAULTS.items():
        served[id].faults = Faults(**(faults or {}))
    with Hub([served[id] for id, (_, faults, _) in FAULTS.items() if faults is not None], tmp_path / 'store') as faulty:
        said = checked(faulty, tmp_path, [f'mteb:{name}' for name, _, _ in FAULTS.values()])
    for name, _, wanted in FAULTS.values():
        error = said[f'mteb:{name}'].get('error', '')
        assert error.startswith(f'mteb:{name}: ') and wanted in error and '\n' not in error, said[f'mteb:{name}']


def test_a_loader_that_fails_on_its_data_is_said(monkeypatch):
    def stumble(self, **_):
        raise KeyError('q_id')

    monkeypatch.setattr(type(mteb.get_task('R2MEDBiologyRetrieval')), 'load_data', stumble)
    monkeypatch.setattr('medir_nb.data.mteb_tasks.unreachable', lambda: '')
    monkeypatch.setattr('medir_nb.data.mteb_tasks.where_reachable', contextlib.nullcontext)
    monkeypatch.setattr('medir_nb.data.mteb_tasks._read_at', lambda data, *_: data)
    with pytest.raises(MedirError, match="mteb's loader fails on R2MED/Biology@8b9fec2d.*KeyError: 'q_id'"):
        load_mteb('R2MEDBiologyRetrieval')


@pytest.mark.parametrize('grade', [0.5, 'yes', None])
def test_a_grade_that_is_no_whole_number_is_refused(monkeypatch, grade):
    task = mteb.get_task('R2MEDBiologyRetrieval')
    fill(task)
    task.relevant_docs = {'test': {7: {'1': grade}}}
    with pytest.raises(MedirError, match='mteb:R2MEDBiologyRetrieval judgement of 7: grade .* is no whole number'):
        load_mteb(task)


def test_judgements_of_documents_that_are_not_there_can_be_allowed(monkeypatch):
    fill_more = lambda self, **_: (fill(self), self.relevant_docs['test'][7].update(gone=1))
    task_class = type(mteb.get_task('R2MEDBiologyRetrieval'))
    monkeypatch.setattr(task_class, 'load_data', fill_more)
    monkeypatch.setattr('medir_nb.data.mteb_tasks._read_at', lambda data, *_: data)
    with pytest.raises(MedirError, match="'gone' is judged but not in the corpus"):
        load_task('mteb:R2MEDBiologyRetrieval')
    task = load_task('mteb:R2MEDBiologyRetrieval', allow_unknown_qrels=True)
    assert task.report['judgements_of_unknown_document'] == 1


def test_an_object_of_the_reader_stays_as_it_is():
    task = mteb.get_task('PublicHealthQA', hf_subsets=['english', 'french'])
    fill(task)
    with pytest.raises(MedirError, match='it has 2 subsets: english, french'):
        load_mteb(task)
    assert load_mteb(task, subset='french').name == 'mteb:PublicHealthQA/french'
    assert load_mteb(task, subset='english').name == 'mteb:PublicHealthQA/english' and task.queries
