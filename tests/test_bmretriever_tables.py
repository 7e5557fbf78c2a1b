"Instructions left out, systems side by side, their speed, and the threshold of RELISH."

import numpy as np, pandas as pd, pytest
from conftest import write_beir, write_lines
from medir_nb.core import registry
from medir_nb.data import load_task, task_from_frames, task_reading
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.evaluator import evaluate, instruction_effect, measure_speeds, order_bounds, score_run, side_by_side
from medir_nb.evaluator import speed_table, system_speed, with_and_without, without_instruction
from medir_nb.evaluator.comparison import chosen_queries, first_passage
from medir_nb.retrieval import parse


class Counting:
    "An encoder of a reader's own that counts what it is asked for."

    similarity = 'dot'

    def __init__(self):
        self.batches = []

    def encode(self, texts, **_):
        self.batches.append(len(texts))
        return np.array([[len(t), t.count('e'), 1.0] for t in texts], np.float32)


def test_an_instruction_is_left_out_and_the_template_stays(beir):
    task = load_task(str(beir))
    task.instructions = {'default': 'Find it'}
    on, off = Encoder('bmretriever-410m'), Encoder(encoder_spec('bmretriever-410m', instruct=False))
    text = lambda encoder: encoder.render([('', 'X')], 'query', encoder.instruction(task))
    assert text(on) == ['Find it\nQuery: X'] and text(off) == ['\nQuery: X']
    task.instructions = {}
    assert off.instruction(task) == ''  # nor the model's default
    assert on.spec.vector_key('query') == off.spec.vector_key('query')  # texts differ, weights do not


def test_systems_with_and_without_their_instruction():
    assert without_instruction('smollm2') == 'smollm2(instruct=false)'
    assert without_instruction('bmretriever-410m(autocast=fp16)') == 'bmretriever-410m(autocast=float16,instruct=false)'
    for alone in ('bm25', 'minilm', 'rrf(bm25,smollm2)', 'smollm2+hyde(smollm2)', 'smollm2(instruct=false)'):
        assert without_instruction(alone) == ''
    assert str(parse('smollm2(instruct=true)')) == 'smollm2'
    both = with_and_without(['bm25', 'smollm2', 'no-such-model', 'bm25'])
    assert both == ['bm25', 'smollm2', 'smollm2(instruct=false)', 'no-such-model']


@pytest.fixture
def graded():
    docs = pd.DataFrame({'id': list('abcd'), 'text': ['one', 'two', 'three', 'four']})
    queries = pd.DataFrame({'id': ['q1', 'q2', 'q3'], 'text': ['first', 'second', 'third']})
    judged = [('q1', 'a', 2), ('q1', 'b', 1), ('q1', 'c', 0), ('q2', 'b', 2), ('q3', 'd', 1)]
    qrels = pd.DataFrame(judged, columns=['query_id', 'doc_id', 'relevance'])
    return task_from_frames(docs, queries, qrels, name='graded')


def ranked(task, **firsts):
    "A run with the named document first, the others behind it in the order of their ids."
    found = []
    for query_id, first in firsts.items():
        order = [first, *(d for d in 'abcd' if d != first)]
        found += [(query_id, doc_id, 9.0 - rank) for rank, doc_id in enumerate(order)]
    return pd.DataFrame(found, columns=['query_id', 'doc_id', 'score'])


def scored(task, system, **firsts):
    return score_run(task, ranked(task, **firsts), ['RR'], system=system)


def test_what_stands_first_is_told_by_its_grade(graded):
    score = scored(graded, 'bm25', q1='b', q2='a', q3='c')
    assert first_passage(score, 'q1') == ('b', 'relevant (1)') and first_passage(score, 'q2') == ('a', 'not judged')
    assert first_passage(scored(graded, 'bm25', q1='c'), 'q1') == ('c', 'not relevant (0)')
    assert first_passage(scored(graded, 'bm25', q1='c'), 'q2') == ('', 'nothing found')
    graded.relevant_from = 2
    assert first_passage(score, 'q1') == ('b', 'not relevant (1)')


def test_the_rule_prefers_queries_in_which_the_instruction_decides(graded, capsys):
    plain = scored(graded, 'bm25', q1='d', q2='b', q3='d')
    on = scored(graded, 'smollm2', q1='a', q2='b', q3='d')
    off = scored(graded, 'smollm2(instruct=false)', q1='a', q2='b', q3='a')
    scores = [plain, on, off]
    assert chosen_queries(scores, n=2) == ['q3', 'q1']  # q2: all are right
    assert chosen_queries(scores, ['second'], n=2) == ['q2', 'q3'] and chosen_queries(scores, ['q1'], n=1) == ['q1']
    assert chosen_queries(scores, ['not there', 'q1'], n=1) == ['q1']
    assert "graded has no query 'not there'" in capsys.readouterr().err
    shown = side_by_side(scores, n=1, characters=2)
    assert shown['query'].tolist() == ['third'] * 3 and shown['rank'].tolist() == [1, 1, 4]
    assert shown.instruction.tolist() == ['takes none', 'takes none', 'off']  # these runs tell no settings
    assert shown['first passage'].tolist() == ['fo …', 'fo …', 'on …']
    (effect,) = instruction_effect(scores).to_dict('records')
    assert list(effect.values()) == ['smollm2', 3, 1, 2, 1, 0, 0]
    assert side_by_side([]).empty and instruction_effect([]).empty


def test_the_speed_of_an_own_model_counts_its_documents_once(beir):
    model = Counting()
    speed = system_speed(model, str(beir), documents=5, queries=2, searched=30, repeats=3)
    assert model.batches[:4] == [5, 5, 5, 5]  # once untimed, three times timed
    assert set(model.batches[4:]) == {1}
    assert (speed.documents, speed.searched, speed.dimension) == (5, 30, 3) and np.isnan(speed.tokens)
    assert speed.documents_per_second > 0 and 0 < speed.query_ms <= speed.query_p95_ms


def test_a_speed_says_what_it_hangs_on(beir):
    speeds, not_run = measure_speeds(['bm25', 'minilm'], str(beir), documents=4, queries=2, searched=20)
    sparse, dense = speeds
    assert not not_run and dense.precision == 'float32' and dense.longest == 256 and dense.batch.endswith(' tokens')
    encoded = Encoder('minilm').encode(load_task(str(beir)).corpus.texts(0, 4), 'document')
    assert dense.tokens == pytest.approx(encoded.tokens.mean()) and dense.dimension == 384
    assert sparse.searched == sparse.documents == 12 and sparse.search_ms == sparse.query_ms
    table = speed_table(speeds)
    assert table['tokens a document'].tolist()[0] == '' and table['among documents'].tolist() == ['12', '20']
    assert list(speed_table([]).columns) == list(table.columns)


@pytest.fixture
def relish(tmp_path, monkeypatch):
    "RELISH as a folder below $MEDIR_DATA: articles as queries, candidates with grades from 0 to 2."
    folder = tmp_path / 'data' / 'relish'
    docs = [
        ('d1', 'Scurvy', 'gums bleed'),
        ('d2', 'Rickets', 'soft bones'),
        ('d3', 'Gout', 'crystals'),
        ('d4', 'Flu', ''),
    ]
    qrels = [('q1', 'd1', 1), ('q1', 'd2', 2), ('q1', 'd3', 0), ('q2', 'd3', 2), ('q2', 'd4', 0)]
    write_beir(folder, docs, [('q1', ''), ('q2', '')], qrels, split='evaluation')
    titled = [('q1', 'Soft bones', 'of children'), ('q2', 'Crystals', 'in a toe')]
    write_lines(folder / 'queries.jsonl', [{'_id': i, 'title': t, 'text': b} for i, t, b in titled])
    monkeypatch.setenv('MEDIR_DATA', str(folder.parent))
    return load_task('relish')


def test_relish_is_read_as_its_row_says(relish):
    reading, row = task_reading('relish'), registry('tasks')['relish']
    assert relish.queries.texts() == ['Soft bones of children', 'Crystals in a toe']
    assert reading['query'] == 'title and text'
    assert relish.relevant_from == reading['relevant from grade'] == row['relevant_from'] == 1
    assert 'unknown for the paper' in reading['threshold from'] and relish.kind == 'reranking'
    assert load_task('relish', query_titles=False).queries.texts() == ['of children', 'in a toe']
    assert task_reading('nfcorpus')['threshold from'] == 'not stated: 1 by default'


def test_map_of_relish_hangs_on_the_threshold(relish):
    run = pd.DataFrame({'query_id': 'q1', 'doc_id': ['d1', 'd2', 'd3'], 'score': [3.0, 2.0, 1.0]})
    score = score_run(relish, run, ['AP', 'AP(rel=2)'])
    by_grade = {m: score.values(m)['q1'] for m in ('AP', 'AP(rel=2)')}
    assert by_grade == {'AP': 1.0, 'AP(rel=2)': 0.5}  # d1 is of grade 1 and stands before d2
    bounds = order_bounds(evaluate(relish, 'bm25'), 9, ('AP', 'AP(rel=2)', 'nDCG'), n=4)
    assert (bounds.loc['perfect'] == 1).all() and (bounds.loc['random'] <= 1).all()
