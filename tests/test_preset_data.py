"""Each name of data in a preset is one that the library opens: a registry's row, a task's split, a reader's folder."""

import functools
import os
import re
import tempfile
from itertools import islice
from pathlib import Path

import pytest
import yaml

from conftest import write_lines
from hub.data import PAIRS, collection, small_registry
from medir_nb import core
from medir_nb.core import MedirError, registry
from medir_nb.data import load_task
from medir_nb.data.pretraining import corpus_pairs
from medir_nb.papers import experiment, published
from medir_nb.trainer import load_documents, load_labelled, rows_file
from medir_nb.trainer.pair import AlignmentData, write_alignment_data
from medir_nb.workbook.declared import notebook_plan
from medir_nb.workbook.trainings import missing_sources

ROOT = Path(__file__).parent.parent
PRESETS = sorted(file for file in ROOT.glob('params/*/*.yaml') if file.parent.name != 'batches')

# parameter → how its names are opened: those of a list, of a mapping's keys or its values, or one name;
# PARAMETER.FIELD is a field of a mapping
ROLES = {
    **dict.fromkeys(
        ('tasks', 'audit_tasks', 'check_tasks', 'similarity_tasks', 'transfer_tasks', 'tuned_tasks', 'weight_tasks'),
        'task',
    ),
    **dict.fromkeys(('task', 'case_task', 'speed_task', 'pairs.task', 'groups.*'), 'task'),
    **dict.fromkeys(('gold_tasks', 'own_tasks', 'pools'), 'gold'),
    **dict.fromkeys(('pretraining_data.sources',), 'pairs'),
    **dict.fromkeys(('tuning_data.sets', 'curated_data.sets', 'training_splits.sets'), 'set'),
    'tuning_data.files': 'rows',
    **dict.fromkeys(('alignment_data.queries', 'alignment_data.documents'), 'text'),
    **dict.fromkeys(('documents', 'query_documents', 'given_queries'), 'documents'),
}
# folders of raw texts that a reader of the showcase has below $MEDIR_DATA
OWN = ('nfcorpus', 'pubmedqa_pqal', 'medquad_qa')
# what is said of data that are known, and not on this machine
ELSEWHERE = (
    r'no commit of \S+ is on record|hf download|needs a licence|fetched by hand|cannot be fetched'
    r'|not in the Hub cache|git|write them: medir run'
)


def write_task(folder, name, row):
    "A registry task as a reader's folder, with a training split."
    if row['kind'] == 'pairs':
        return write_lines(
            folder / 'pairs.jsonl', [dict(zip(('sentence1', 'sentence2', 'score'), p, strict=True)) for p in PAIRS]
        )
    documents, queries, qrels = collection(name, row)
    label = {row['labels']: 'Nervous System'} if row.get('labels') else {}
    write_lines(folder / 'corpus.jsonl', [{'_id': d, 'title': t, 'text': b} for d, t, b in dict.fromkeys(documents)])
    write_lines(folder / 'queries.jsonl', [{'_id': q, 'text': t, **label} for q, t in queries])
    for split in {row.get('split', 'test'), 'train'}:
        write_lines(folder / 'qrels' / f'{split}.tsv', ['q\td\tscore', *(f'{q}\t{d}\t{g}' for q, d, g in qrels)])
    if row['kind'] == 'reranking':
        write_lines(
            folder / 'candidates.tsv', [f'{q}\t{d}' for q, _ in queries for d, _, _ in dict.fromkeys(documents)]
        )


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    "$MEDIR_DATA with every task of the registry in small, and a registry that counts it so."
    folder = tmp_path_factory.mktemp('presets')
    for name, row in registry('tasks').items():
        if not row.get('load'):
            write_task(folder / 'data' / row.get('folder', name), name, row)
    for name in OWN:
        write_task(folder / 'data' / name, 'nfcorpus', registry('tasks')['nfcorpus'])
    small_registry(folder / 'registry')
    return folder


@pytest.fixture
def at_hand(data, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(data / 'data'))
    monkeypatch.setenv('MEDIR_REGISTRY', str(data / 'registry'))
    core.registry.cache_clear()


def names_in(value) -> list[str]:
    if isinstance(value, dict | int):
        return list(value) if isinstance(value, dict) else []
    return [name for name in ([value] if isinstance(value, str) else value) if name]


def named(preset: dict) -> list[tuple[str, str, str]]:
    "(parameter, role, name) of the data that a preset names."
    found = []
    for place, role in ROLES.items():
        parameter, _, field = place.partition('.')
        value = preset.get(parameter) or {}
        if field == '*':
            value = [name for names in value.values() for name in names]
        elif field:
            value = value.get(field, [])
        splits = preset.get('splits', [''])
        found += [(place, role, name.format(split=s)) for name in names_in(value) for s in splits]
    return list(dict.fromkeys(found))


def open_gold(name, tasks):
    assert f'cmirb-{name.lower()}' in registry('tasks'), name


def open_texts(name, tasks):
    with tempfile.TemporaryDirectory() as folder:
        write_alignment_data(AlignmentData(queries=[name], documents=[name], most=2), folder)


OPEN = {
    'task': lambda name, tasks: load_task(os.path.expandvars(name)),
    'gold': open_gold,
    'pairs': lambda name, tasks: list(islice(corpus_pairs(name), 1)),
    'set': lambda name, tasks: load_labelled(name, limit=2),
    'text': open_texts,
    'rows': lambda name, tasks: rows_file(name),
    'documents': lambda name, tasks: load_documents(name, 2, without=tasks),
}


@functools.cache
def opened(role: str, name: str, tasks: tuple) -> str:
    "Nothing, or the one line that says why data cannot be opened; a name is opened once for all presets."
    try:
        OPEN[role](name, list(tasks))
    except MedirError as error:
        return str(error)
    return ''


def resolve_parameters(preset: dict) -> dict:
    "Name → why it is not on this machine; what no registry knows is raised."
    elsewhere = {}
    for place, role, name in named(preset):
        tasks = tuple(preset.get('tasks', ())) if role == 'documents' else ()
        if why := opened(role, name, tasks):
            assert re.search(ELSEWHERE, why), f'{place} names {name!r}: {why}'
            elsewhere[name] = why
    return elsewhere


@pytest.mark.medium
@pytest.mark.parametrize('file', PRESETS, ids=lambda file: f'{file.parent.name}/{file.stem}')
def test_every_data_name_of_every_preset_resolves(file, at_hand):
    preset = yaml.safe_load(file.read_text())
    elsewhere = resolve_parameters(preset)
    # what a plan says is missing is what the registries know to be elsewhere
    for training in notebook_plan(file.parent.name).trainings:
        sources = missing_sources(training.kind, preset.get(training.data, {}))
        # rows that another notebook leaves are named with the run that does
        missing = {name.partition(' (medir run')[0].format(split='train') for name in sources}
        assert missing <= {name for _, _, name in named(preset)}
        assert {name for name in missing if '{' not in name} <= set(elsewhere) | {
            n for n in missing if n.endswith(':train')
        }


def test_written_queries_leave_out_what_a_preset_with_pairs_of_sentences_tests(at_hand, data):
    "The paper's tasks hold BIOSSES, whose sentences are left out of the passages that queries are written for."
    preset = yaml.safe_load((ROOT / 'params' / 'bmretriever_training' / 'remade.yaml').read_text())
    sentence = PAIRS[0][0]
    row = registry('pretraining')['meadow-cord19']
    lines = [{'output': 'A title', 'input': 'Colchicine and rest.'}, {'output': '', 'input': sentence}]
    write_lines(data / 'data' / row['folder'] / 'x.jsonl', lines)
    assert 'biosses' in preset['tasks'] and 'meadow-cord19' in preset['query_documents']
    found = load_documents('meadow-cord19', preset['n_queries'], without=preset['tasks'])
    assert [row['doc'] for row in found] == ['A title Colchicine and rest.']
    assert found.stats['relevant to an evaluation query'] == 1


@pytest.mark.medium
def test_a_table_of_means_over_several_measures_is_measured(at_hand):
    "BMRetriever's Table 5 prints the mean of four nDCG@10 and a Spearman correlation, and none of the five."
    preset = yaml.safe_load((ROOT / 'params' / 'bmretriever_ablations' / 'paper.yaml').read_text())
    run = experiment(preset['tasks'], ['minilm'])
    row, untrained = (('BMRETRIEVER-410M', f'{stage}; data=100%') for stage in ('Fine-tuning', 'Pre-training'))
    ledgers = {
        t: run.ledger(published('bmretriever', t), systems=systems)
        for t, systems in (
            ('Table 5', {row: 'minilm', untrained: ()}),
            ('Table 2', {('BMRETRIEVER-410M', '410M'): 'minilm'}),
        )
    }
    found = {
        t: {c.dataset: c.measured for c in of.frame.query('measured.notna()').itertuples()} for t, of in ledgers.items()
    }
    assert found['Table 5'] == {'Avg. All (5 tasks)': pytest.approx(found['Table 2']['Avg. All'])}
    # a row for which nothing stands is not taken for the released weights of its name
    assert not next(r for r in ledgers['Table 5'].rows if (r.system, r.variant) == untrained).systems
