"""The same encoder on the same task through mteb and through this library gives the same numbers."""

import json, os
import numpy as np, pandas as pd, pytest
from medir_nb.data import load_task
from medir_nb.encoder import Encoder
from medir_nb.evaluator import evaluate, per_query

MEASURES = {
    'nDCG@10': 'ndcg_at_10',
    'R@100': 'recall_at_100',
    'AP@10': 'map_at_10',
    'P@10': 'precision_at_10',
    'RR@10': 'mrr_at_10',
    'nDCG@100': 'ndcg_at_100',
    'R@10': 'recall_at_10',
}
PER_QUERY = {'nDCG@10': 'ndcg_cut_10', 'R@100': 'recall_100', 'AP@10': 'map_cut_10', 'P@10': 'P_10'}


def through_mteb(task, model, folder):
    "Scores of mteb, its values per query, and the run that it saved."
    import mteb
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    found = {}

    class Local(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name='LocalPool',
            dataset={'path': 'local', 'revision': 'local'},
            description='A pool on this machine',
            type='Retrieval',
            category='t2t',
            eval_splits=['test'],
            eval_langs=['eng-Latn'],
            main_score='ndcg_at_10',
        )

        def load_data(self, *args, **kwargs):
            if self.data_loaded:
                return
            relevant = {
                q: dict(zip(g.doc_id, g.relevance.astype(int))) for q, g in task.qrels.groupby('query_id', sort=False)
            }
            rows = task.corpus.rows()
            self.dataset = {
                'default': {
                    'test': {
                        'corpus': Dataset.from_dict(
                            {'id': list(task.corpus.ids), 'title': [t for t, _ in rows], 'text': [b for _, b in rows]}
                        ),
                        'queries': Dataset.from_dict({'id': list(task.queries.ids), 'text': task.queries.texts()}),
                        'relevant_docs': relevant,
                        'top_ranked': None,
                    }
                }
            }
            self.data_loaded = True

        def task_specific_scores(self, scores, *args, **kwargs):
            found.update(scores)
            return {}

    result = mteb.evaluate(
        model,
        Local(),
        cache=None,
        prediction_folder=folder,
        show_progress_bar=False,
        co2_tracker=False,
        encode_kwargs={'batch_size': 32},
    )
    predictions = json.loads(next(folder.glob('*LocalPool*')).read_text())['default']['test']
    run = pd.DataFrame(
        [(q, d, s) for q, docs in predictions.items() for d, s in docs.items()], columns=['query_id', 'doc_id', 'score']
    )
    return result.task_results[0].scores['test'][0], found, run


def near_ties(run, depth=101, start=0):
    "Queries of which two neighbours between ranks `start` and `depth` differ by less than 1e-6."
    return {
        q for q, g in run.groupby('query_id') if (np.diff(np.sort(g.score.to_numpy())[::-1][start:depth]) > -1e-6).any()
    }


def check_parity(task, home, folder, room=0.0):
    "`room`: how far a mean may be off, since two documents that differ by rounding alone may swap."
    model = Encoder('minilm', home_folder=home).backend('query').model
    theirs, per, run = through_mteb(task, model, folder)
    ours = evaluate(task, 'minilm', list(MEASURES), home_folder=home)
    for measure, name in MEASURES.items():  # mteb keeps five decimals
        ours_here, theirs_here = round(ours.mean(measure), 5), round(theirs[name], 5)
        assert ours_here == theirs_here or abs(ours_here - theirs_here) < room, (measure, ours_here, theirs_here)
    # their run, our scorer
    scored = per_query(task.qrels, run, list(PER_QUERY))
    assert len(scored) == len(PER_QUERY) * len(per)
    for measure, name in PER_QUERY.items():
        # recall asks only who is in: a near-tie matters at its cut, and not above it
        tied = near_ties(run, 101, 99) if measure == 'R@100' else near_ties(run, 11)
        assert len(tied) < 0.2 * len(task.queries), (measure, len(tied))
        for row in scored[scored.measure == measure].itertuples():
            if row.query_id not in tied:
                assert row.value == pytest.approx(per[row.query_id][name], abs=1e-9), (measure, row.query_id)
    # our run, their run: the same documents in the same order, but for rounding
    mine = ours.run[~ours.run.query_id.isin(near_ties(run))].merge(run, how='left', on=['query_id', 'doc_id'])
    assert mine.score_y.notna().all() and (mine.score_x - mine.score_y).abs().max() < 2e-6
    return ours


@pytest.fixture(scope='module')
def shared_home(tmp_path_factory):
    return tmp_path_factory.mktemp('home')


@pytest.fixture
def all_cores():
    "Long encodings may use every core."
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(before)


@pytest.mark.medium
def test_mteb_on_a_pool_of_hpo(shared_home, tmp_path):
    ours = check_parity(load_task('hpo-lay', limit=300), shared_home, tmp_path / 'predictions')
    assert 0.5 < ours.mean('nDCG@10') < 1


def test_bm25_on_nfcorpus(medir_data):
    scores = evaluate('nfcorpus', 'bm25(bm25s)')
    row = scores.rows()[0]
    assert (row['measure'], row['n_queries'], len(scores.task.corpus)) == ('nDCG@10', 323, 3633) and 0.319 <= row[
        'value'
    ] <= 0.324


@pytest.mark.slow
def test_minilm_on_nfcorpus(medir_data, shared_home, all_cores):
    scores = evaluate('nfcorpus', 'minilm', home_folder=shared_home)
    assert scores.mean('nDCG@10') == pytest.approx(0.3159, abs=2e-4) and scores.mean('R@100') == pytest.approx(
        0.3115, abs=4e-4
    )


@pytest.mark.slow
def test_mteb_on_nfcorpus(medir_data, shared_home, all_cores, tmp_path):
    check_parity(load_task('nfcorpus'), shared_home, tmp_path / 'predictions', room=1e-4)
