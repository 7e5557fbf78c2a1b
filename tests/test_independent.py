"""Second numbers: what others measured beside what is printed."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from medir_nb.papers.independent import independent_results, independent_verdict, ranking_agreement, second_ranking
from medir_nb.papers.independent import with_independent
from medir_nb.papers import published
from medir_nb.papers.audits import claims_on_cells
from medir_nb.papers.table_rows import printed_expression

ROOT = Path(__file__).parents[1]


def beside(paper, table, **filters):
    cells = published(paper, table, **filters)
    return with_independent(cells.assign(expression=[printed_expression(cell) for cell in cells.itertuples()]))


def test_r2meds_systems_agree_as_often_as_was_counted_by_hand():
    cells = beside('r2med', 'base', retriever=['bge', 'e5', 'sfr', 'grit'])
    cells = cells[cells.task.str.startswith('r2med-')]
    counts = cells.groupby(['retriever', 'independent_verdict']).size().unstack(fill_value=0)
    counted = counts[['confirmed', 'near', 'differs']].T.to_dict('list')
    assert counted == {'bge': [160, 0, 0], 'e5': [2, 26, 132], 'grit': [4, 41, 115], 'sfr': [0, 26, 134]}


@pytest.mark.parametrize(
    ('retriever', 'task', 'printed', 'independent'),
    [('sfr', 'r2med-pmc-treatment', 0.442, 0.336), ('grit', 'r2med-pmc-clinical', 0.371, 0.277)],
)
def test_the_largest_differences_are_found(retriever, task, printed, independent):
    (cell,) = beside('r2med', 'base', retriever=retriever, task=task, measure='nDCG@10').itertuples()
    assert (round(cell.value, 3), round(cell.independent, 3)) == (printed, independent)
    assert cell.independent_verdict == 'differs'
    assert cell.independent_source.startswith('embeddings-benchmark/results@f4cc6c8:results/')


@pytest.mark.parametrize(
    ('printed', 'independent', 'source', 'differing', 'said'),
    [
        (0.345, 0.34549, '', '', 'confirmed'),
        (0.345, 0.34551, '', '', 'near'),
        (0.345, 0.3501, '', '', 'differs'),
        (0.345, 0.345, 'embeddings-benchmark/results@f4cc6c8:results/x.json', '', 'same run'),
        (0.345, 0.345, '', 'data at 1234567, here 89abcde', 'other revision: confirmed, data at 1234567, here 89abcde'),
    ],
)
def test_what_two_numbers_say(printed, independent, source, differing, said):
    assert independent_verdict(printed, 0.0005, independent, source, differing) == said


def test_no_second_number_where_the_system_is_another():
    cells = beside('r2med', 'gar', retriever='bge', measure='nDCG@10')
    assert len(cells) and cells.independent.isna().all()
    assert beside('r2med', 'base', retriever='bm25').independent.isna().all()


def test_a_ranking_changes_with_second_numbers_and_an_equal_one_agrees():
    cells = beside('r2med', 'base', measure='nDCG@10')
    cells = cells[cells.task.str.startswith('r2med-')]
    ranks = second_ranking(cells)
    assert ranks.loc['grit', ['printed rank', 'second rank']].tolist() == [2, 4]
    agreement = ranking_agreement(cells, draws=50)
    assert agreement['low'] <= agreement['tau'] < 1
    assert ranking_agreement(cells.assign(independent=None), draws=5)['tau'] == 1


def result_file(folder, model, task, content):
    file = folder / 'results' / model / '0123456789abcdef0123456789abcdef01234567' / f'{task}.json'
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


def test_a_checkout_is_converted_and_read_from_a_readers_folder(tmp_path, monkeypatch):
    scores = {'hf_subset': 'default', 'languages': ['eng-Latn'], 'main_score': 0.5, 'ndcg_at_10': 0.5, 'map_at_5': 0.4}
    new = {'mteb_version': '2.1.0', 'task_name': 'NFCorpus', 'evaluation_time': 1.0, 'dataset_revision': 'f' * 40}
    new['scores'] = {'test': [scores], 'train': [{**scores, 'ndcg_at_10': 0.9}]}
    old = {'mteb_version': '1.0.0', 'mteb_dataset_name': 'SciFact', 'dataset_revision': 'e' * 40}
    old['test'] = {'ndcg_at_10': 0.6, 'evaluation_time': 1.0}
    checkout = tmp_path / 'checkout'
    result_file(checkout, 'intfloat__e5-large-v2', 'NFCorpus', new)
    result_file(checkout, 'intfloat__e5-large-v2', 'SciFact', old)
    result_file(checkout, 'nobody__knows-it', 'NFCorpus', new)
    git = ['git', '-C', checkout, '-c', 'user.name=a', '-c', 'user.email=a@b']
    for command in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'results']):
        subprocess.run([*git, *command], check=True)
    target = tmp_path / 'registry' / 'independent' / 'mteb.csv'
    command = [sys.executable, ROOT / 'tools' / 'convert_independent.py', checkout, target]
    assert '2 result files, 1 models, 2 tasks' in subprocess.check_output(command, text=True, cwd=ROOT)
    monkeypatch.setenv('MEDIR_REGISTRY', str(target.parents[1]))
    results = independent_results()
    assert results.groupby(['task', 'measure']).value.first().to_dict() == {
        ('nfcorpus', 'AP@5'): 0.4,
        ('nfcorpus', 'nDCG@10'): 0.5,
        ('scifact', 'nDCG@10'): 0.6,
    }


def test_the_packaged_file_is_as_its_readme_says():
    table = pd.read_csv(ROOT / 'medir_nb' / 'registry' / 'independent' / 'mteb.csv')
    told = f'{len(table)} result files, {table.model.nunique()} models, {table.task.nunique()} tasks'
    assert told in (ROOT / 'medir_nb' / 'registry' / 'independent' / 'README.md').read_text()


def test_a_claim_that_changes_without_a_task_hangs_on_its_two_cells():
    on_cells = claims_on_cells('bmretriever')
    before = on_cells[on_cells.reading == '7B comes before E5-Mistral']
    assert set(before.task) == {'scifact', 'scidocs'} and before.groupby('task').size().tolist() == [2, 2]
    assert (before.share == 1).all()
    among = on_cells[on_cells.reading == 'Grit-LM comes first, before BMRetriever-7B']
    assert among.groupby('task').share.sum().round(6).eq(2).all() and among.share.min() < 0.1 < 1 == among.share.max()
