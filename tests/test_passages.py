"""Documents cut into passages: nothing is lost, every system searches the same, and documents come out as from all passages."""

import dataclasses, json
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QRELS, QUERIES, write_beir
from test_reranker import shared_words  # noqa: F401 - a fixture
from medir_nb.core import MedirError
from medir_nb.data import Corpus, PassageSplitter, load_task, parse_windows, task_from_frames
from medir_nb.data.passage_splitter import (
    length_in_words,
    documents_of,
    passage_table,
    passage_texts,
    sentence_places,
    unit_places,
)
from medir_nb.evaluator import compare, evaluate
from medir_nb.retrieval import check_system, aggregate_passages, pending, search, sort_run, system_settings

SETTINGS = [
    'tokens=7,overlap=2',
    'tokens=1',
    'tokens=5,overlap=4,score=mean,k=2',
    'sentences=2,overlap=1',
    'sentences=1,score=mean',
]


def long_task(n=40, language='en', seed=0, **fields):
    "Documents of 1 to 40 sentences about a few findings, one of which fills the lists with its passages."
    rng = np.random.default_rng(seed)
    findings = 'fever cough rash migraine anaemia asthma insulin statin fracture nausea'.split()
    if language == 'zh':
        findings = ['发热', '咳嗽', '皮疹', '头痛', '贫血', '哮喘', '胰岛素', '他汀', '骨折', '恶心']

    def sentence(finding):
        others = rng.choice(findings, 3)
        return f'{finding}，{"".join(others)}。' if language == 'zh' else f'The {finding} came with {" ".join(others)}.'

    lengths = [60, *rng.integers(1, 14, n - 1)]
    between = '' if language == 'zh' else ' '
    rows = [
        (
            f'd{i}',
            f'Case {i}',
            between.join(sentence(findings[0] if i == 0 else rng.choice(findings)) for _ in range(m)),
        )
        for i, m in enumerate(lengths)
    ]
    documents = pd.DataFrame(rows, columns=['id', 'title', 'text'])
    queries = pd.DataFrame(
        [(f'q{i}', f'{a} {b}') for i, (a, b) in enumerate(zip(findings, findings[3:]))], columns=['id', 'text']
    )
    qrels = pd.DataFrame(
        [(q, f'd{i}', 1) for i, q in enumerate(queries.id)], columns=['query_id', 'doc_id', 'relevance']
    )
    return task_from_frames(documents, queries, qrels, language=language, **fields)


# ---------------------------------------------------------------- what is cut


def random_text(rng):
    parts = [
        'fever',
        'x' * 130,
        '发热三天，咳嗽。',
        'Dr. A. B. Lee, M.D.',
        '\n\n',
        '  ',
        '5 mg/kg (p < 0.05).',
        '…',
        'かぜ',
        '🙂',
        '\u200b',
        '\t',
    ]
    return ' '.join(rng.choice(parts, rng.integers(0, 60)))


@pytest.mark.parametrize('said', SETTINGS)
@pytest.mark.parametrize('seed', range(8))
def test_every_word_stands_in_a_passage(said, seed):
    windows, text, language = parse_windows(said), random_text(np.random.default_rng(seed)), ('en', 'zh')[seed % 2]
    passages = passage_texts(text, windows, language)
    if windows.unit == 'tokens':
        parts = [[passage[b:e] for b, e in unit_places(passage)] for passage in passages]
        units = parts[0] + [unit for part in parts[1:] for unit in part[windows.overlap :]]
        assert max(map(len, parts)) <= windows.size and all(unit in text for unit in units)
    else:
        units = [text[begin:end] for begin, end in sentence_places(text, language)]
        assert all(any(unit in passage for passage in passages) for unit in units)
    assert ''.join(''.join(units).split()) == ''.join(text.split())


@pytest.mark.parametrize('said', SETTINGS)
def test_a_corpus_loses_no_word_and_repeats_only_the_overlap(said, tmp_path):
    windows, corpus = parse_windows(said), long_task().corpus
    table = passage_table(corpus, windows, home_folder=tmp_path)
    bodies = {}
    for document, (title, body) in zip(table.documents, table.rows(), strict=True):
        bodies.setdefault(document, []).append(body)
        assert title == corpus.rows()[corpus._position[document]][0] or windows.size == 1
    assert list(bodies) == list(corpus.ids) and {d: len(b) for d, b in bodies.items()} == dict(table.sizes)
    for document, (_, whole) in zip(corpus.ids, corpus.rows(), strict=True):
        parts = bodies[document]
        assert set(' '.join(parts).split()) >= set(whole.split())
        if windows.unit == 'tokens' and windows.size > 1:
            units = sum(map(length_in_words, parts))
            assert units == length_in_words(whole) + windows.overlap * (len(parts) - 1)


def test_long_words_and_sentences_are_cut():
    sequence, table = 'ACGT' * 1000, ' '.join(f'{i} mg' for i in range(1000))
    assert ''.join(passage_texts(sequence, PassageSplitter('tokens', 10))) == sequence
    parts = passage_texts(table, PassageSplitter('sentences', 3, 1))
    assert len(parts) > 5 and max(map(length_in_words, parts)) <= 300 and parts[-1].endswith('999 mg')
    assert len(unit_places('发热3天')) == 4


def test_a_title_longer_than_the_window_is_text(tmp_path):
    from medir_nb.data.corpus import write_table

    title = ' '.join(f'word{i}' for i in range(50))
    corpus = write_table([('a', title, 'body', ''), ('b', '', '', '')], None, Corpus)
    table = passage_table(corpus, PassageSplitter('tokens', 10), home_folder=tmp_path)
    assert ' '.join(table.texts()).split() == [*title.split(), 'body'] and table.sizes == {'a': 6, 'b': 1}


def test_a_short_document_is_one_passage_with_its_text(beir, tmp_path, fake_minilm):
    task = load_task(str(beir), passages='tokens=400')
    cut = task.searched()
    assert cut.corpus.texts() == task.corpus.texts() and list(documents_of(cut.corpus.ids)) == list(task.corpus.ids)
    whole = search('minilm', load_task(str(beir)), 5)
    before = len(fake_minilm)
    by_passages = search('minilm', task, 5)
    assert len(fake_minilm) == before  # the vectors are those of the whole documents
    pd.testing.assert_frame_equal(whole.run, by_passages.run)


def test_the_table_is_made_once_and_streamed(tmp_path, monkeypatch):
    from medir_nb.data import passage_splitter as module

    task = long_task(passages=PassageSplitter('tokens', 7, 2))
    first = task.searched(tmp_path).corpus
    monkeypatch.setattr(module, 'passage_records', None)  # would fail if it were asked again
    again = task.searched(tmp_path)
    assert again.corpus.fingerprint == first.fingerprint and again.searched(tmp_path) is again
    assert len(list((tmp_path / 'corpora').glob('passages-*.arrow'))) == 1
    mean = dataclasses.replace(task, passages=PassageSplitter('tokens', 7, 2, 'mean', 2))
    assert mean.searched(tmp_path).corpus.fingerprint == first.fingerprint  # how it folds cuts nothing


def test_the_fingerprint_changes_only_where_passages_are_set():
    whole, cut = long_task(), long_task(passages=PassageSplitter('tokens', 7))
    assert whole.fingerprint == dataclasses.replace(cut, passages=None).fingerprint != cut.fingerprint
    others = {str(w): dataclasses.replace(whole, passages=w).fingerprint for w in map(parse_windows, SETTINGS)}
    assert len(set(others.values())) == len(SETTINGS)


@pytest.mark.parametrize(
    'said,why',
    [
        ('tokens=0', 'size is 0'),
        ('tokens=5,overlap=5', 'leaves nothing new'),
        ('tokens=5,sentences=2', 'by tokens and by sentences'),
        ('tokens=5,score=best', "score is 'best'"),
        ('tokens=5,score=mean,k=0', 'k is 0'),
        ('tokens', 'no name=value'),
        ('tokens=5,tokens=6', 'stands twice'),
        ('size=5,stride=2', "unknown setting 'stride'"),
        ({'unit': 'words', 'size': 5}, "unit is 'words'"),
        ({'tokens': 5.5}, 'size is 5.5'),
        ({'tokens': True}, 'size is True'),
        (7, 'says nothing of passages'),
    ],
)
def test_what_says_nothing_is_one_line(said, why):
    with pytest.raises(MedirError) as error:
        parse_windows(said)
    assert why in str(error.value) and '\n' not in str(error.value)


# ---------------------------------------------------------------- what systems make of it


def brute_force(system, task, k):
    "The first documents by the scores of all passages, folded in plain Python."
    cut = task.searched()
    plain = dataclasses.replace(cut, corpus=Corpus(cut.corpus.table, {}), passages=None)
    run = search(system, plain, len(plain.corpus), keep_self=True).run
    found = {}
    for query, passage, score in run.itertuples(index=False):
        found.setdefault((query, passage.rpartition('#')[0]), []).append(score)
    rows = []
    for (query, document), scores in found.items():
        wanted = min(task.passages.k, cut.corpus.sizes[document]) if task.passages.score == 'mean' else 1
        best = [*sorted(scores, reverse=True), *[0.0] * wanted][:wanted]
        rows.append((query, document, sum(best) / wanted))
    frame = sort_run(pd.DataFrame(rows, columns=['query_id', 'doc_id', 'score']))
    return frame[frame.groupby('query_id', sort=False).cumcount() < k].reset_index(drop=True)


@pytest.mark.medium
@pytest.mark.parametrize('system', ['bm25', 'minilm'])
@pytest.mark.parametrize('said', SETTINGS)
def test_documents_come_out_as_from_all_passages(system, said, fake_minilm):
    task = long_task(passages=parse_windows(said))
    for k in (1, 3, 10):
        got, wanted = search(system, task, k, keep_self=True).run, brute_force(system, task, k)
        in_order = wanted.set_index('query_id').loc[list(dict.fromkeys(got.query_id))].reset_index()
        assert got.doc_id.tolist() == in_order.doc_id.tolist()
        np.testing.assert_allclose(got.score, in_order.score, rtol=1e-6)


def test_chinese_documents_are_cut_too(fake_minilm):
    for said in ('tokens=12,overlap=3', 'sentences=2'):
        task = long_task(language='zh', passages=parse_windows(said))
        assert task.searched().corpus.sizes['d0'] >= 30
        got, wanted = search('bm25', task, 5).run, brute_force('bm25', task, 5)
        assert sorted(got.doc_id) == sorted(wanted.doc_id)


def test_one_long_document_does_not_hide_the_others(fake_minilm):
    task = long_task(n=30, passages=PassageSplitter('sentences', 1))
    assert task.searched().corpus.sizes['d0'] == 60
    run = search('minilm', task, 10).run
    assert (run.groupby('query_id').size() == 10).all() and not run.duplicated(['query_id', 'doc_id']).any()


def test_a_reranker_reads_the_passages_of_the_first_documents(shared_words):  # noqa: F811
    task = long_task(passages=PassageSplitter('sentences', 2, 1, k=2))
    first = search('bm25', task, 5).run
    got = search('bm25>monobert@5', task, 100)
    assert set(map(tuple, got.run[['query_id', 'doc_id']].values)) == set(
        map(tuple, first[['query_id', 'doc_id']].values)
    )
    assert got.stats['scored_pairs'] + got.stats['cached_pairs'] <= 2 * 5 * len(task.queries)
    assert pending('bm25>monobert@5', task)['to_score'] == 0
    whole = search('bm25>monobert@5(complete=true)', task, 10).run
    assert (whole.groupby('query_id').size() >= got.run.groupby('query_id').size()).all()
    for query, documents in got.run.groupby('query_id').doc_id:
        # as before, and the others follow
        assert whole[whole.query_id == query].doc_id.tolist()[: len(documents)] == documents.tolist()


def test_fusion_and_expansion_search_passages(tmp_path, fake_minilm):
    task = long_task(passages=PassageSplitter('tokens', 9, 2))
    texts = tmp_path / 'texts.jsonl'
    texts.write_text(''.join(json.dumps({'id': q, 'hy_doc': 'rash and insulin'}) + '\n' for q in task.queries.ids))
    for system in ('rrf(bm25,minilm)', f'minilm+hyde(file:{texts})', f'bm25+query2doc(file:{texts})'):
        check_system(system, task)
        answer = search(system, task, 7)
        assert set(answer.run.doc_id) <= set(task.corpus.ids) and answer.stats['passages'] == len(
            task.searched().corpus
        )
        assert (answer.run.groupby('query_id').size() == 7).all()


def test_a_reranking_task_orders_the_documents_of_its_candidates(fake_minilm):
    task = long_task(passages=PassageSplitter('tokens', 9, 2))
    ids = task.corpus.ids
    rows = [(q, d) for i, q in enumerate(task.queries.ids) for d in ids[i : i + 6]]
    task = dataclasses.replace(task, kind='reranking', candidates=pd.DataFrame(rows, columns=['query_id', 'doc_id']))
    for system in ('bm25', 'minilm', 'rrf(bm25,minilm)'):
        run = search(system, task, 3).run
        assert sorted(map(tuple, run[['query_id', 'doc_id']].values)) == sorted(rows)


def test_discarded_pairs_leave_the_documents(fake_minilm):
    task = long_task(passages=PassageSplitter('tokens', 9, 2))
    first = search('minilm', task, 1).run
    away = first[['query_id', 'doc_id']][~first.doc_id.isin(task.qrels.doc_id)]
    judged = dataclasses.replace(task, discarded=away)
    assert len(judged.searched().discarded) == sum(task.searched().corpus.sizes[d] for d in away.doc_id)
    scores = evaluate(judged, 'minilm')
    left = pd.MultiIndex.from_frame(scores.run[['query_id', 'doc_id']])
    assert not pd.MultiIndex.from_frame(away).isin(left).any()


def test_the_own_document_of_a_query_is_left_out_with_all_its_passages(fake_minilm):
    task = long_task(n=20)
    both = pd.DataFrame({'id': task.corpus.ids, 'text': task.corpus.texts()})
    qrels = pd.DataFrame([('d0', 'd1', 1), ('d5', 'd6', 1)], columns=['query_id', 'doc_id', 'relevance'])
    own = task_from_frames(both, both, qrels, passages=PassageSplitter('tokens', 6, 1))
    for system in ('bm25', 'minilm'):
        got = search(system, own, 8)
        assert not (got.run.query_id == got.run.doc_id).any() and got.stats['self_matches'] >= 2
        assert (got.run.groupby('query_id').size() == 8).all()


# ---------------------------------------------------------------- what a reader says and sees


def test_a_folder_says_how_it_is_cut(beir, medir, home):
    (beir / 'walk.yaml').write_text('name: tiny\npassages:\n  tokens: 6\n  overlap: 2\n')
    assert load_task(str(beir)).passages == PassageSplitter('tokens', 6, 2)
    assert load_task(str(beir), passages='none').passages is None
    assert load_task(str(beir), passages='sentences=1').passages == PassageSplitter('sentences', 1)
    assert load_task(str(beir), limit=5).passages == PassageSplitter('tokens', 6, 2)
    (beir / 'walk.yaml').write_text('passages: {tokens: many}\n')
    with pytest.raises(MedirError, match='walk.yaml: size is'):
        load_task(str(beir))
    done = medir('evaluate', beir, '--system', 'bm25')
    assert done.code == 2 and done.err.count('\n') == 1


def test_tables_say_that_passages_were_searched(beir, medir, fake_minilm, tmp_path):
    out = tmp_path / 'rows.json'
    done = medir('evaluate', beir, '--system', 'bm25', '--passages', 'tokens=6,overlap=2', '--json', out)
    assert done.code == 0 and 'tokens=6,overlap=2' in done.out and 'passages' in done.out
    row = json.loads(out.read_text())[0]
    assert row['passages'] == row['settings']['passages'] == 'tokens=6,overlap=2'
    plain = medir('evaluate', beir, '--system', 'bm25')
    assert 'passages' not in plain.out
    done = medir('compare', beir, 'bm25', 'minilm', '--passages', 'tokens=6')
    assert done.code == 0 and 'passages tokens=6' in done.err
    done = medir('evaluate', beir, '--system', 'bm25', '--passages', 'token=6')
    assert done.code == 2 and 'have no size' in done.err


def test_whole_documents_and_passages_are_compared(beir, fake_minilm):
    whole, cut = evaluate(str(beir), 'minilm'), evaluate(str(beir), 'minilm', passages='tokens=6')
    assert 'passages' not in system_settings('minilm', whole.task) and cut.settings['passages'] == 'tokens=6'
    assert compare(whole, cut).n_queries == 3


@pytest.mark.medium
def test_real_abstracts_are_cut_and_found(medir_data, home):
    folder = medir_data / 'nfcorpus'
    if not folder.is_dir():
        pytest.skip('no nfcorpus below MEDIR_DATA')
    task = load_task(str(folder), limit=400, passages='tokens=50,overlap=10')
    cut = task.searched()
    words = [set(text.split()) for text in task.corpus.texts()]
    found = {document: set() for document in task.corpus.ids}
    for document, text in zip(cut.corpus.documents, cut.corpus.texts(), strict=True):
        found[document] |= set(text.split())
    assert all(own <= found[document] for document, own in zip(task.corpus.ids, words, strict=True))
    got, wanted = search('bm25', task, 10, keep_self=True).run, brute_force('bm25', task, 10)
    assert sorted(got.doc_id) == sorted(wanted.doc_id)


def test_write_beir_stays_whole(tmp_path):
    "A task without passages is searched as ever."
    task = load_task(str(write_beir(tmp_path / 'tiny', DOCUMENTS, QUERIES, QRELS)))
    assert task.searched() is task and aggregate_passages is not None
