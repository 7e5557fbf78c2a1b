"""Mining training pairs: every step against answers worked out by hand, and what goes wrong on the way."""

import json
import numpy as np, pandas as pd, pytest
from conftest import write_beir, write_lines
from medir_nb import generator as g
from medir_nb.core import MedirError, registry
from medir_nb.generator import Generation
from medir_nb.trainer import (
    candidates,
    example_blocks,
    hard_negatives,
    hypothesize,
    labelled_pairs,
    load_documents,
    mine,
    read_rows,
    round_trip,
    select,
    shuffle_pairs,
    synthesize_queries,
)

DOCS = {
    'd1': 'A sudden loss of vision in one eye.',
    'd2': 'Pain in the lower back after lifting.',
    'd3': 'A rash of small red blisters along a nerve.',
    'd4': 'Swelling of the ankles towards the evening.',
    'd5': 'A dry cough that lasts for weeks.',
    'd6': 'Ringing in both ears without an outer sound.',
}


class Speaker:
    "A stand-in for the language model behind `LLM.generate`: it answers by a rule and keeps what it was asked."

    def __init__(self, rule):
        self.rule, self.asked = rule, []

    def stream(self, requests):
        self.asked += requests
        yield [(i, Generation(self.rule(r), 'stop', 9, 9, 0)) for i, r in enumerate(requests)]


@pytest.fixture
def speaker(home, monkeypatch):
    "`speaker(rule)` makes smollm2 answer by `rule(request)`; cassettes, prompts and judging are the real ones."
    monkeypatch.delenv('MEDIR_REPLAY', raising=False)

    def use(rule):
        g.models.loaded_llm.cache_clear()
        out = Speaker(rule)
        g.llm('smollm2', home)._backend = out
        return out

    yield use
    g.models.loaded_llm.cache_clear()
    g.cassettes._cassette.cache_clear()


rows = lambda: [{'id': i, 'doc': d} for i, d in DOCS.items()]
queried = lambda: [{'id': i, 'text': ' '.join(d.split()[:4]), 'doc': d} for i, d in DOCS.items()]


def test_documents_come_from_a_file_a_folder_or_a_task(tmp_path, home):
    write_lines(
        tmp_path / 'corpus.jsonl',
        [
            {'id': 'a', 'doc': 'one'},
            {'_id': 'b', 'title': 'T', 'text': 'two'},
            {'id': 'c', 'doc': ' '},
            {'id': 'd', 'doc': 'one'},
        ],
    )
    found = load_documents(str(tmp_path / 'corpus.jsonl'))
    assert found.rows == [{'id': 'a', 'doc': 'one'}, {'id': 'b', 'doc': 'T two'}] and found.stats == {
        'kept': 2,
        'empty': 1,
        'repeated': 1,
    }
    assert load_documents(str(tmp_path)).rows == found.rows
    a, b = load_documents('hpo-lay:train', 20), load_documents('hpo-lay:train', 20)
    assert a.rows == b.rows and len(a) == 20 and load_documents('hpo-lay:train', 20, seed=1).rows != a.rows


def test_no_training_document_answers_a_test_query(home):
    from medir_nb.data import load_task

    test = load_task('hpo-lay')
    answers = {test.corpus.text(d) for d in test.qrels[test.qrels.relevance > 0].doc_id}
    assert not answers & {r['doc'] for r in load_documents('hpo-lay:train', 0, without=['hpo-lay'])}
    assert answers & {r['doc'] for r in load_documents('hpo-lay:train', 0)}


@pytest.mark.parametrize(
    'lines, where, why',
    [
        (['{"id": "a", "doc": "x"}', '{"id": "a"'], ':2', 'malformed'),
        (['{"doc": "x"}'], ':1', "'id' is missing"),
        (['{"id": "a"}'], ':1', "'doc' is missing"),
        (['{"id": "a", "doc": ""}'], '', 'no document is left'),
    ],
)
def test_a_bad_corpus_is_named_by_line(tmp_path, home, lines, where, why):
    (tmp_path / 'corpus.jsonl').write_text('\n'.join(lines) + '\n')
    with pytest.raises(MedirError) as e:
        load_documents(str(tmp_path / 'corpus.jsonl'))
    assert why in str(e.value) and f'corpus.jsonl{where}' in str(e.value)


def test_a_corpus_without_a_known_commit_says_what_to_do(home):
    with pytest.raises(
        MedirError, match='no commit of FreedomIntelligence/huatuo_encyclopedia_qa is on record.*HF_HUB_OFFLINE'
    ):
        load_documents('huatuo-encyclopedia')
    with pytest.raises(MedirError, match='did you mean .huatuo-encyclopedia'):
        load_documents('huatuo-encyclopaedia')


def test_a_corpus_row_reads_its_folder_and_its_hub_layout(tmp_path, home, monkeypatch, own_registry):
    data = tmp_path / 'hub'
    data.mkdir()
    (data / 'train.jsonl').write_text(
        ''.join(
            json.dumps({'questions': [[f'q{i}']], 'answers': [f'first part {i}', 'second']}) + '\n' for i in range(30)
        )
    )
    own_registry(
        corpora={
            'tiny': {
                'hub': str(data),
                'revision': 'f' * 40,
                'configs': ['default', 'train'],
                'field': 'answers',
                'documents': 7,
                'seed': 1,
                'language': 'en',
                'note': '',
            }
        }
    )
    found = load_documents('tiny')
    assert (
        len(found) == 7
        and found.stats['not sampled'] == 23
        and all(r['doc'].startswith('first part') and r['doc'].endswith('second') for r in found)
    )
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    (tmp_path / 'tiny').mkdir()
    write_lines(tmp_path / 'tiny' / 'corpus.jsonl', [{'id': 1, 'doc': 'mine'}])
    assert load_documents('tiny').rows == [{'id': '1', 'doc': 'mine'}]


def test_every_style_has_two_pairs_and_the_paper_has_seven():
    blocks = registry('examples')
    assert len(blocks['zh']) == 7 and {b['like'] for b in blocks['zh'].values()} == {
        'MedExam',
        'DuBaike',
        'DXYDisease',
        'Medical',
        'Cmedqa',
        'DXYConsult',
        'Covid',
    }
    assert all(
        len(b['pairs']) == 2 and all(set(p) == {'text', 'query'} for p in b['pairs'])
        for part in blocks.values()
        for b in part.values()
    )
    assert example_blocks('zh', ['exam'])['exam'].count('文字：') == 2
    with pytest.raises(MedirError, match='did you mean .exam'):
        example_blocks('zh', ['exams'])


def test_a_query_a_document_its_style_fixed_by_its_id(speaker, home):
    said = speaker(lambda r: f'what about {r.id}?')
    all_of_them, half = (synthesize_queries(r, 'smollm2', home_folder=home) for r in (rows(), rows()[:3]))
    assert all_of_them.rows[:3] == half.rows and [r['text'] for r in half] == [
        'what about d1?',
        'what about d2?',
        'what about d3?',
    ]
    assert len(said.asked) == 6 and all(DOCS[r.id] in r.prompt for r in said.asked)  # the second call replayed
    styles = {
        r['task']
        for r in synthesize_queries(
            [{'id': str(i), 'doc': 'x'} for i in range(40)], 'smollm2', home_folder=home, most_repeated=1
        )
    }
    assert styles == set(registry('examples')['en'])
    asked = next(r for r in said.asked if r.id == 'd1').sampling
    assert (asked.temperature, asked.top_p, asked.repetition_penalty, asked.max_tokens) == (1.0, 0.8, 1.05, 512)


def test_faulty_queries_are_counted_and_strict_drops_them(speaker, home):
    answers = {
        'd1': '',
        'd2': 'Pain in the lower back',
        'd3': '这是什么病以及应该怎么治疗',
        'd4': 'swollen feet',
        'd5': 'swollen feet',
        'd6': 'ears ring',
    }
    speaker(lambda r: answers[r.id])
    loose, strict = (synthesize_queries(rows(), 'smollm2', strict=s, home_folder=home) for s in (False, True))
    assert loose.stats == {'kept': 5, 'empty': 1, 'copied from the document': 1, 'wrong language': 1, 'repeated': 1}
    assert [r['id'] for r in strict] == ['d4', 'd6'] and '1 empty' in repr(loose)


def test_an_llm_that_answers_nothing_is_one_clear_line(speaker, home):
    speaker(lambda r: ' ')
    with pytest.raises(MedirError, match='no row is left of 6 \\(6 empty\\)'):
        synthesize_queries(rows(), 'smollm2', home_folder=home)


def test_a_model_of_another_language_is_refused(home):
    with pytest.raises(MedirError, match="smollm2 writes en.*'zh'"):
        synthesize_queries([{'id': '1', 'doc': '高血压患者应当限制食盐的摄入。'}], 'smollm2', home_folder=home)


def test_a_document_longer_than_the_context_is_cut_and_counted(home, monkeypatch):
    # a real tokenizer counts; only the forward pass is left out
    monkeypatch.delenv('MEDIR_REPLAY', raising=False)
    g.models.loaded_llm.cache_clear()
    model = g.llm('smollm2', home)
    model._backend = g.TransformersBackend.__new__(g.TransformersBackend)
    from medir_nb.encoder import encoder_spec, load_tokenizer

    model._backend.tokenizer = load_tokenizer(encoder_spec('minilm'))
    model._backend.spec, model._backend.batch_tokens = model.spec, 4096
    model._backend._batch = lambda fitted, requests, tell=None: [
        Generation('why', 'stop', len(ids), 1, cut) for ids, _, cut in fitted
    ]
    found = synthesize_queries([{'id': 'long', 'doc': 'pain and swelling ' * 4000}], 'smollm2', home_folder=home)
    assert found.stats == {'kept': 1, 'prompt shortened': 1}
    g.models.loaded_llm.cache_clear()


def test_candidates_that_cannot_be_used_are_counted(speaker, home):
    speaker(lambda r: '' if r.id == 'd1' or (r.id == 'd2' and r.index) else f'passage {r.index} about {r.id}')
    found = candidates(queried(), 'smollm2', 3, home_folder=home)
    assert found.stats == {
        'kept': 5,
        'candidates: empty': 5,
        'without a usable candidate': 1,
        'with fewer candidates than asked': 1,
    }
    assert found.rows[0] == {
        'id': 'd2',
        'text': 'Pain in the lower',
        'rewrite_queries': ['passage 0 about d2'],
        'doc': DOCS['d2'],
    }
    asked = registry('methods')['candidates']
    assert (asked['n'], asked['sampling']) == (
        5,
        {'temperature': 1.2, 'top_p': 0.9, 'top_k': 50, 'presence_penalty': 1.0, 'max_tokens': 512},
    )


class Axes:
    "An encoder whose vectors are written down: the ranks below were worked out by hand."

    name, revision, similarity = 'axes', '1', 'cos'
    V = {
        'doc a': [1, 0, 0],
        'doc b': [0, 1, 0],
        'doc c': [0.8, 0.6, 0],
        'q': [0.6, 0, 0.8],
        'h0': [0, 1, 0],
        'h1': [1, 0.1, 0],
        'h2': [0.9, 0.5, 0],
        'nowhere': [-1, -1, 0],
    }

    def encode(self, texts):
        return np.array([self.V[t] for t in texts], np.float32)


made = lambda *texts: [
    {'id': '1', 'text': 'q', 'rewrite_queries': list(texts), 'doc': 'doc a'},
    {'id': '2', 'text': 'q', 'rewrite_queries': ['h0'], 'doc': 'doc b'},
    {'id': '3', 'text': 'q', 'rewrite_queries': ['h2'], 'doc': 'doc c'},
]


def test_selection_takes_the_best_rank_and_the_first_of_equals(home):
    found = select(made('h0', 'h2', 'h1', 'h1'), Axes(), home_folder=home)
    first = found.rows[0]
    assert (
        [(j, r) for j, r, _ in first['rerank_id']] == [(0, 2), (1, 1), (2, 0), (3, 0)]
        and first['target_id'] == 2
        and first['top_rewrite_query'] == 'h1'
    )
    # with the query in it, h2 finds its document as well, and comes first: the mean of q and h2 is (.75, .25, .4)
    assert select(made('h0', 'h2', 'h1'), Axes(), fusion='mean', home_folder=home).rows[0]['rerank_id'][1][1] == 1
    assert abs(first['rerank_id'][2][2] - 1 / np.sqrt(1.01)) < 1e-5


@pytest.mark.parametrize('unretrieved, kept', [('keep', 3), ('drop', 2)])
def test_a_document_that_no_candidate_finds_is_kept_or_dropped_and_counted(home, unretrieved, kept):
    found = select(made('nowhere', 'h0'), Axes(), depth=1, unretrieved=unretrieved, home_folder=home)
    assert len(found) == kept and found.stats['found by none of its candidates'] == 1
    if kept == 3:
        assert found.rows[0]['rerank_id'] == [[0, 1, 0.0], [1, 1, 0.0]] and found.rows[0]['target_id'] == 0


def test_the_same_text_twice_is_one_document(home):
    doubled = [*made('h1'), {'id': '4', 'text': 'q', 'rewrite_queries': ['h1'], 'doc': 'doc a'}]
    assert [r['rerank_id'][0][1] for r in select(doubled, Axes(), home_folder=home)] == [0, 0, 0, 0]


def test_bm25_can_select_and_mine_too(home):
    rows_ = [{**r, 'rewrite_queries': ['nothing of it', r['doc']]} for r in queried()]
    assert [r['target_id'] for r in select(rows_, 'bm25', home_folder=home)] == [1] * 6
    assert all(r['pos'][0] not in r['neg'] for r in hard_negatives(queried(), 'bm25', 2, (0, 4), home_folder=home))


def test_hypothetical_documents_see_the_query_alone(speaker, home):
    said = speaker(lambda r: '' if r.id == '2' else f'about {r.id}')
    found = hypothesize(queried(), 'smollm2', settings={'temperature': 0.7}, home_folder=home)
    assert [r['rewrite_query'] for r in found] == [
        'about 0',
        'about 1',
        '',
        'about 3',
        'about 4',
        'about 5',
    ] and found.stats['queries without one'] == 1
    assert (
        not any(d in r.prompt for r in said.asked for d in DOCS.values()) and said.asked[0].sampling.temperature == 0.7
    )


def test_negatives_come_from_the_window_without_own_texts(home):
    found = hard_negatives(queried(), 'minilm', 2, (1, 4), home_folder=home)
    from medir_nb.data import task_from_frames
    from medir_nb.retrieval import search

    task = task_from_frames(
        pd.DataFrame({'id': list(DOCS), 'text': list(DOCS.values())}),
        pd.DataFrame({'id': list(DOCS), 'text': [r['text'] for r in queried()]}),
        pd.DataFrame({'query_id': list(DOCS), 'doc_id': list(DOCS), 'relevance': 1}),
    )
    ranked = search('minilm', task, 6, home_folder=home, keep_self=True).run.groupby('query_id').doc_id.apply(list)
    for r, (i, d) in zip(found, DOCS.items()):
        assert {*r['neg']} <= {DOCS[x] for x in ranked[i][1:4]} - {d} and len({*r['neg']}) == len(r['neg']) == 2
    assert found.rows == hard_negatives(queried(), 'minilm', 2, (1, 4), home_folder=home).rows
    assert found.rows != hard_negatives(queried(), 'minilm', 2, (1, 4), seed=1, home_folder=home).rows


def test_a_negative_is_never_the_query_or_its_hypothetical_document(home):
    doubled = queried() + [
        {'id': 'x', 'text': 'other', 'doc': queried()[0]['text']},
        {'id': 'y', 'text': 'another', 'doc': 'made up'},
    ]
    doubled[0]['rewrite_query'] = 'made up'
    found = hard_negatives(doubled, 'minilm', 8, (0, 8), home_folder=home)
    assert (
        not {DOCS['d1'], queried()[0]['text'], 'made up'} & {*found.rows[0]['neg']}
        and found.stats['own texts left out of a window'] >= 3
    )


def test_fewer_candidates_than_negatives_are_filled_up_and_counted(home):
    found = hard_negatives(queried(), 'minilm', 4, (4, 6), home_folder=home)
    assert all(len(r['neg']) == 4 for r in found) and found.stats['filled up at random'] >= 12
    short = hard_negatives(queried()[:3], 'minilm', 5, (0, 3), home_folder=home)
    assert all(len(r['neg']) == 2 for r in short) and short.stats['with fewer negatives than asked'] == 3
    with pytest.raises(MedirError, match='holds no rank'):
        hard_negatives(queried(), 'minilm', 2, (5, 5), home_folder=home)


def test_the_hypothetical_document_takes_part_in_the_search(home):
    row = [
        {'id': '1', 'text': 'q', 'rewrite_query': 'h0', 'doc': 'doc a'},
        {'id': '2', 'text': 'q', 'rewrite_query': '', 'doc': 'doc b'},
        {'id': '3', 'text': 'q', 'rewrite_query': '', 'doc': 'doc c'},
    ]
    # q alone ranks a, c, b; the mean of q and h0, (.3, .5, .4), ranks c, b, a
    assert hard_negatives(row, Axes(), 1, (1, 2), home_folder=home).rows[0]['neg'] == ['doc b']
    assert hard_negatives(row, Axes(), 1, (1, 2), query='alone', home_folder=home).rows[0]['neg'] == ['doc c']


def test_the_bar_of_a_search_counts_queries(monkeypatch):
    "It was named for pairs and counted parts of 512 queries."
    from medir_nb.trainer import selection

    bars, real = [], selection.progress
    monkeypatch.setenv('MEDIR_PROGRESS', '1')

    def seen(*items, **kwargs):
        bars.append((kwargs, real(*items, **kwargs)))
        return bars[-1][1]

    monkeypatch.setattr(selection, 'progress', seen)
    monkeypatch.setattr(selection, '_QUERIES_A_PART', 2)
    rows = [{'id': str(i), 'text': text, 'doc': text} for i, text in enumerate(DOCS.values())]
    selection.rank_texts(rows, None, 'bm25', selection.texts_task(rows, 'en'), 2, 'mean', {}, 'labelled pairs')
    [(kwargs, bar)] = bars
    assert kwargs == {'total': len(rows), 'desc': 'labelled pairs: search', 'unit': 'query'} and bar.n == len(rows)


def test_labels_give_positives_and_no_labelled_negative(tmp_path, home, medir):
    write_beir(
        tmp_path / 'task',
        [(i, '', d) for i, d in DOCS.items()],
        [('q1', 'loss of vision'), ('q2', 'pain in the back'), ('q3', 'ears')],
        [('q1', 'd1', 2), ('q1', 'd5', 1), ('q2', 'd2', 1), ('q2', 'd4', 1), ('q3', 'd6', 0)],
    )
    found = labelled_pairs(str(tmp_path / 'task'), 'bm25', n=2, window=(0, 6), home_folder=home)
    assert [(r['query'], r['pos']) for r in found] == [
        ('loss of vision', [DOCS['d1']]),
        ('pain in the back', [DOCS['d2'], DOCS['d4']]),
    ]
    assert (
        not {DOCS['d1'], DOCS['d5']} & set(found.rows[0]['neg'])
        and not {DOCS['d2'], DOCS['d4']} & set(found.rows[1]['neg'])
        and found.stats['without a relevant document'] == 1
    )
    assert found.rows == labelled_pairs(str(tmp_path / 'task'), 'bm25', n=2, window=(0, 6), home_folder=home).rows
    ran = medir(
        'mine',
        'labelled_pairs',
        tmp_path / 'task',
        tmp_path / 'pairs.jsonl',
        '-p',
        'retriever=bm25',
        '-p',
        'n=2',
        '-p',
        'window=[0,6]',
        '--home',
        home,
    )
    assert ran.code == 0 and read_rows(tmp_path / 'pairs.jsonl', 'query', 'pos', 'neg') == found.rows, ran.err
    with pytest.raises(MedirError, match='holds no rank'):
        labelled_pairs(str(tmp_path / 'task'), 'bm25', window=(6, 6), home_folder=home)


def test_the_round_trip_keeps_what_finds_itself(home):
    bad = [*queried(), {'id': 'z', 'text': 'ringing in the ears', 'doc': 'A broken collar bone.'}]
    found = round_trip(bad, 'minilm', 1, home_folder=home)
    assert [r['id'] for r in found] == list(DOCS) and found.stats == {'kept': 6, 'not among the first 1': 1}


def test_shuffled_pairs_keep_all_texts_and_no_pair(home):
    training = hard_negatives(
        [{**r, 'rewrite_query': f'h {r["id"]}'} for r in queried()], 'minilm', 2, (0, 6), home_folder=home
    ).rows
    mixed = shuffle_pairs(training)
    assert all(
        a['pos'] != b['pos'] and a['query'] == b['query'] and not set(b['pos']) & set(b['neg'])
        for a, b in zip(training, mixed)
    )
    assert sorted(r['rewrite_query'] for r in mixed) == sorted(r['rewrite_query'] for r in training)


def test_steps_run_from_file_to_file(tmp_path, speaker, home, medir):
    speaker(lambda r: f'text about {r.id} {r.index}')
    write_lines(tmp_path / 'corpus.jsonl', rows())
    mine('load_documents', str(tmp_path / 'corpus.jsonl'), tmp_path / 'c.jsonl', home)
    mine('synthesize_queries', tmp_path / 'c.jsonl', tmp_path / 'query.jsonl', home, model='smollm2')
    mine('candidates', tmp_path / 'query.jsonl', tmp_path / 'init.jsonl', home, model='smollm2', n=2)
    # the rest needs no language model and runs as a reader would run it
    out = medir('mine', 'select', tmp_path / 'init.jsonl', tmp_path / 'llm_train_data.jsonl', '-p', 'retriever=minilm')
    assert out.code == 0 and '6 rows' in out.out, out.err
    assert set(read_rows(tmp_path / 'llm_train_data.jsonl')[0]) == {
        'id',
        'text',
        'rerank_id',
        'target_id',
        'top_rewrite_query',
        'doc',
    }
    assert (
        medir(
            'mine',
            'hard_negatives',
            tmp_path / 'query.jsonl',
            tmp_path / 'emb_train_data.jsonl',
            '-p',
            'retriever=minilm',
            '-p',
            'n=2',
            '-p',
            'window=[1,5]',
        ).code
        == 0
    )
    assert set(read_rows(tmp_path / 'emb_train_data.jsonl')[0]) == {'query', 'pos', 'rewrite_query', 'neg'}


@pytest.mark.parametrize(
    'step, parameters, why',
    [
        ('selekt', {}, "did you mean 'select'"),
        ('select', {'retriver': 'minilm'}, "did you mean 'retriever'"),
        ('select', {}, "needs 'retriever'"),
        ('candidates', {'model': 'smollm2'}, "'text' is missing"),
    ],
)
def test_a_wrong_step_or_parameter_is_one_line(tmp_path, home, step, parameters, why):
    write_lines(tmp_path / 'c.jsonl', rows())
    with pytest.raises(MedirError) as e:
        mine(step, tmp_path / 'c.jsonl', tmp_path / 'o.jsonl', home, **parameters)
    assert why in str(e.value)
