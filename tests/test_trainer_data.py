"""The data of trainings: documents, texts by a model, selection and negatives, labelled sets, thinning, lists."""

import gzip, json, os, re, signal, subprocess, sys, textwrap, time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np, pytest
from conftest import ASKED, chat_answer, FOUND, in_full, refuses, table, TINY_ROW, write_beir, write_lines
from tiny_models import make_model

from medir_nb import generator as g
from medir_nb.core import registry, rows as more_rows
from medir_nb.data import load_task, perturbations
from medir_nb.generator import Generation
from medir_nb.papers import published
from medir_nb.retrieval import search
from medir_nb.retrieval.nearest import unit
from medir_nb.trainer import brainstorm_tasks, Candidate, candidates, check_tuning_row, curate
from medir_nb.trainer import diverse_vectors, diversify, draw_negatives, half_of, hard_negatives
from medir_nb.trainer import hypothesize, labelled_pairs, Lists, load_documents, load_labelled, load_sets
from medir_nb.trainer import mine, Pairs, read_rows, Scale, select, synthesize_queries
from medir_nb.trainer import train_encoder, tuning_table, TuningData, write_examples
from medir_nb.trainer import write_queries, write_tuning_data
from medir_nb.trainer.curation import judged_lists, retrieved_candidates
from medir_nb.trainer.negative_mining import search_task
from medir_nb.trainer.synthetic import example_blocks, read_answer, WrittenExample, WrittenQuery, WrittenTasks
from medir_nb.trainer.stage_data import group_of
from medir_nb.trainer.labelled_sets import file_rows

ROOT = Path(__file__).parent.parent

TEXTS = """A sudden loss of vision in one eye. | Pain in the lower back after lifting.
A rash of small red blisters along a nerve. | Swelling of the ankles towards the evening.
A dry cough that lasts for weeks. | Ringing in both ears without an outer sound."""
DOCS = {f'd{i}': text for i, text in enumerate(sum(table(TEXTS), ()), 1)}


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
        g.llm('smollm2')._backend = out
        return out

    yield use
    g.models.loaded_llm.cache_clear()
    g.cassettes._cassette.cache_clear()


rows = lambda: [{'id': i, 'doc': d} for i, d in DOCS.items()]
queried = lambda: [{'id': i, 'text': ' '.join(d.split()[:4]), 'doc': d} for i, d in DOCS.items()]


def test_documents_come_from_a_file_a_folder_or_a_task(tmp_path, home):
    lines = [{'id': 'a', 'doc': 'one'}, {'_id': 'b', 'title': 'T', 'text': 'two'}, {'id': 'c', 'doc': ' '}]
    file = write_lines(tmp_path / 'corpus.jsonl', [*lines, {'id': 'd', 'doc': 'one'}])
    found = load_documents(str(file))
    assert found.rows == [{'id': 'a', 'doc': 'one'}, {'id': 'b', 'doc': 'T two'}]
    assert found.stats == {'kept': 2, 'empty': 1, 'repeated': 1} and load_documents(str(tmp_path)).rows == found.rows
    a, b, other = (load_documents('hpo-lay:train', 20, seed=seed).rows for seed in (42, 42, 1))
    assert a == b != other and len(a) == 20


def test_no_training_document_answers_a_test_query(home):
    test = load_task('hpo-lay')
    answers = {test.corpus.text(d) for d in test.qrels[test.qrels.relevance > 0].doc_id}
    of_training = lambda **how: {row['doc'] for row in load_documents('hpo-lay:train', 0, **how)}
    assert not answers & of_training(without=['hpo-lay']) and answers & of_training()


def test_a_corpus_row_reads_its_folder_and_its_hub_layout(tmp_path, home, monkeypatch, own_registry):
    lines = [{'questions': [[f'q{i}']], 'answers': [f'first part {i}', 'second']} for i in range(30)]
    hub = write_lines(tmp_path / 'hub' / 'train.jsonl', lines).parent
    row = {'hub': str(hub), 'revision': 'f' * 40, 'configs': ['default', 'train'], 'field': 'answers'}
    own_registry(corpora={'tiny': {**row, 'documents': 7, 'seed': 1, 'language': 'en', 'note': ''}})
    found = load_documents('tiny')
    assert len(found) == 7 and found.stats['not sampled'] == 23
    assert all(re.fullmatch(r'first part \d+ second', row['doc']) for row in found)
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    write_lines(tmp_path / 'tiny' / 'corpus.jsonl', [{'id': 1, 'doc': 'mine'}])
    assert load_documents('tiny').rows == [{'id': '1', 'doc': 'mine'}]


def test_documents_of_stage_one_are_read_and_sampled_before_they_are_held(home, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    articles = [{'id': i, 'title': f'Title {i}', 'content': f'Abstract {i} of a trial.'} for i in range(40)]
    for name in ('pubmed', 'textbooks'):
        file = tmp_path / registry('pretraining')[name]['folder'] / 'x.jsonl'
        write_lines(file, [*articles, articles[0], {'id': 'e', 'title': 't', 'content': ''}])
    with more_rows('pretraining', {'pubmed': {**registry('pretraining')['pubmed'], 'share': 0}}):
        found, whole = load_documents('pubmed', 10, seed=1), load_documents('pubmed')
    assert len(found) == 10 and found.stats == {'kept': 10, 'repeated': 1, 'empty': 1, 'not sampled': 30}
    assert whole.rows[0] == {'id': '0', 'doc': 'Title 0 Abstract 0 of a trial.'} and len(whole) == 40
    assert found.rows == [row for row in whole if row in found.rows]  # in their order
    assert load_documents('textbooks', 1).rows[0]['doc'].startswith('Abstract')  # a title there is that of a book


def test_sentences_of_a_task_of_pairs_are_left_out(home, tmp_path):
    pairs = [{'sentence1': 'The drug lowers pressure.', 'sentence2': 'It is white.', 'score': 1}]
    write_lines(tmp_path / 'sts' / 'pairs.jsonl', pairs)
    texts = ['The drug  lowers pressure.', 'It is white.', 'It is black.']
    corpus = write_lines(tmp_path / 'x.jsonl', [{'id': i, 'doc': text} for i, text in enumerate(texts)])
    kept = load_documents(str(corpus), without=[str(tmp_path / 'sts')])
    assert [row['id'] for row in kept] == ['2'] and kept.stats['relevant to an evaluation query'] == 2


def test_every_style_has_two_pairs_and_the_paper_has_seven():
    blocks, printed = registry('examples'), 'MedExam DuBaike DXYDisease Medical Cmedqa DXYConsult Covid'
    assert len(blocks['zh']) == 7 and {block['like'] for block in blocks['zh'].values()} == set(printed.split())
    assert all(len(block['pairs']) == 2 for styles in blocks.values() for block in styles.values())
    assert example_blocks('zh', ['exam'])['exam'].count('文字：') == 2
    refuses(lambda: example_blocks('zh', ['exams']), "did you mean 'exam'")


def test_a_query_a_document_its_style_fixed_by_its_id(speaker, home):
    said = speaker(lambda r: f'what about {r.id}?')
    whole, half = (synthesize_queries(some, 'smollm2') for some in (rows(), rows()[:3]))
    assert whole.rows[:3] == half.rows and [row['text'] for row in half] == [f'what about d{i}?' for i in (1, 2, 3)]
    assert len(said.asked) == 6 and all(DOCS[r.id] in r.prompt for r in said.asked)  # the second call replayed
    many = synthesize_queries([{'id': str(i), 'doc': 'x'} for i in range(40)], 'smollm2', most_repeated=1)
    assert {row['task'] for row in many} == set(registry('examples')['en'])
    asked = next(r for r in said.asked if r.id == 'd1').sampling
    assert (asked.temperature, asked.top_p, asked.repetition_penalty, asked.max_tokens) == (1.0, 0.8, 1.05, 512)


def test_faulty_queries_are_counted_and_strict_drops_them(speaker, home):
    copied, chinese = 'Pain in the lower back', '这是什么病以及应该怎么治疗'
    answers = dict(zip(DOCS, ('', copied, chinese, 'swollen feet', 'swollen feet', 'ears ring'), strict=True))
    speaker(lambda r: answers[r.id])
    loose, strict = (synthesize_queries(rows(), 'smollm2', strict=s) for s in (False, True))
    assert loose.stats == {'kept': 5, 'empty': 1, 'copied from the document': 1, 'wrong language': 1, 'repeated': 1}
    assert [row['id'] for row in strict] == ['d4', 'd6'] and '1 empty' in repr(loose)


def test_candidates_that_cannot_be_used_are_counted(speaker, home):
    speaker(lambda r: '' if r.id == 'd1' or (r.id == 'd2' and r.index) else f'passage {r.index} about {r.id}')
    found = candidates(queried(), 'smollm2', 3)
    lost = {'without a usable candidate': 1, 'with fewer candidates than asked': 1}
    assert found.stats == {'kept': 5, 'candidates: empty': 5, **lost}
    texts = {'text': 'Pain in the lower', 'rewrite_queries': ['passage 0 about d2']}
    assert found.rows[0] == {'id': 'd2', **texts, 'doc': DOCS['d2']}
    hot = {'temperature': 1.2, 'top_p': 0.9, 'top_k': 50, 'presence_penalty': 1.0, 'max_tokens': 512}
    row = registry('methods')['candidates']
    assert (row['n'], row['sampling']) == (5, hot)


class Axes:
    "An encoder whose vectors are written down: the ranks below were worked out by hand."

    name, revision, similarity = 'axes', '1', 'cos'
    V = {'doc a': [1, 0, 0], 'doc b': [0, 1, 0], 'doc c': [0.8, 0.6, 0], 'q': [0.6, 0, 0.8], 'nowhere': [-1, -1, 0]}
    V |= {'h0': [0, 1, 0], 'h1': [1, 0.1, 0], 'h2': [0.9, 0.5, 0], 'Qa': [1, 0, 0]}
    V |= {'qa': [1, 0, 0], 'qb': [0, 1, 0], 'a': [1, 0.1, 0], 'a2': [1, 0.2, 0], 'b': [0, 1, 0.1], 'c': [0, 0, 1]}

    def encode(self, texts):
        return np.array([self.V[t] for t in texts], np.float32)


def made(*texts):
    by_document = {'doc a': list(texts), 'doc b': ['h0'], 'doc c': ['h2']}
    return [{'id': doc, 'text': 'q', 'rewrite_queries': of, 'doc': doc} for doc, of in by_document.items()]


def test_selection_takes_the_best_rank_and_the_first_of_equals(home):
    first = select(made('h0', 'h2', 'h1', 'h1'), Axes()).rows[0]
    assert [(j, r) for j, r, _ in first['rerank_id']] == [(0, 2), (1, 1), (2, 0), (3, 0)]
    assert first['target_id'] == 2 and first['top_rewrite_query'] == 'h1'
    # with the query in it, h2 finds its document as well, and comes first: the mean of q and h2 is (.75, .25, .4)
    assert select(made('h0', 'h2', 'h1'), Axes(), fusion='mean').rows[0]['rerank_id'][1][1] == 1
    assert abs(first['rerank_id'][2][2] - 1 / np.sqrt(1.01)) < 1e-5


def test_a_document_that_no_candidate_finds_is_kept_or_dropped_and_counted(home):
    kept, dropped = (select(made('nowhere', 'h0'), Axes(), depth=1, unretrieved=way) for way in ('keep', 'drop'))
    assert (len(kept), len(dropped)) == (3, 2) and kept.stats['found by none of its candidates'] == 1
    assert kept.rows[0]['rerank_id'] == [[0, 1, 0.0], [1, 1, 0.0]] and kept.rows[0]['target_id'] == 0
    doubled = [*made('h1'), {'id': '4', 'text': 'q', 'rewrite_queries': ['h1'], 'doc': 'doc a'}]
    assert [row['rerank_id'][0][1] for row in select(doubled, Axes())] == [0, 0, 0, 0]  # one document, not two


def test_hypothetical_documents_see_the_query_alone(speaker, home):
    said = speaker(lambda r: '' if r.id == '2' else f'about {r.id}')
    found = hypothesize(queried(), 'smollm2', settings={'temperature': 0.7})
    assert [row['rewrite_query'] for row in found] == [f'about {i}' if i != 2 else '' for i in range(6)]
    assert found.stats['queries without one'] == 1 and said.asked[0].sampling.temperature == 0.7
    assert not any(document in r.prompt for r in said.asked for document in DOCS.values())


def test_negatives_come_from_the_window_without_own_texts(home):
    found = hard_negatives(queried(), 'minilm', 2, (1, 4))
    task = search_task([(row['id'], row['text']) for row in queried()], list(DOCS.items()))
    ranked = search(task, 'minilm', 6, keep_self=True).run.groupby('query_id').doc_id.apply(list)
    for row, (i, document) in zip(found, DOCS.items()):
        negatives = set(row['neg'])
        assert negatives <= {DOCS[x] for x in ranked[i][1:4]} - {document} and len(negatives) == len(row['neg']) == 2
    assert found.rows == hard_negatives(queried(), 'minilm', 2, (1, 4)).rows
    assert found.rows != hard_negatives(queried(), 'minilm', 2, (1, 4), seed=1).rows


def test_a_negative_is_never_the_query_or_its_hypothetical_document(home):
    query = queried()[0]['text']
    doubled = [{**queried()[0], 'rewrite_query': 'made up'}, *queried()[1:]]
    doubled += [{'id': 'x', 'text': 'other', 'doc': query}, {'id': 'y', 'text': 'another', 'doc': 'made up'}]
    found = hard_negatives(doubled, 'minilm', 8, (0, 8))
    assert not {DOCS['d1'], query, 'made up'} & {*found.rows[0]['neg']}
    assert found.stats['own texts left out of a window'] >= 3


def test_fewer_candidates_than_negatives_are_filled_up_and_counted(home):
    found = hard_negatives(queried(), 'minilm', 4, (4, 6))
    assert all(len(row['neg']) == 4 for row in found) and found.stats['filled up at random'] >= 12
    short = hard_negatives(queried()[:3], 'minilm', 5, (0, 3))
    assert all(len(row['neg']) == 2 for row in short) and short.stats['with fewer negatives than asked'] == 3
    refuses(lambda: hard_negatives(queried(), 'minilm', 2, (5, 5)), 'holds no rank')


def test_the_hypothetical_document_takes_part_in_the_search(home):
    guesses = {'doc a': 'h0', 'doc b': '', 'doc c': ''}
    some = [{'id': doc, 'text': doc, 'rewrite_query': guess, 'doc': doc} for doc, guess in guesses.items()]
    some[0]['text'] = 'q'
    # q alone ranks a, c, b; the mean of q and h0, (.3, .5, .4), ranks c, b, a
    assert hard_negatives(some, Axes(), 1, (1, 2)).rows[0]['neg'] == ['doc b']
    assert hard_negatives(some, Axes(), 1, (1, 2), query='alone').rows[0]['neg'] == ['doc c']


def test_labels_give_positives_and_no_labelled_negative(tmp_path, home, medir):
    queries = [('q1', 'loss of vision'), ('q2', 'pain in the back'), ('q3', 'ears')]
    judged = [('q1', 'd1', 2), ('q1', 'd5', 1), ('q2', 'd2', 1), ('q2', 'd4', 1), ('q3', 'd6', 0)]
    write_beir(tmp_path / 'task', [(i, '', d) for i, d in DOCS.items()], queries, judged)
    found = labelled_pairs(str(tmp_path / 'task'), 'bm25', n=2, window=(0, 6))
    positives = {'loss of vision': [DOCS['d1']], 'pain in the back': [DOCS['d2'], DOCS['d4']]}
    assert {row['query']: row['pos'] for row in found} == positives
    assert not {DOCS['d1'], DOCS['d5']} & set(found.rows[0]['neg'])
    assert not {DOCS['d2'], DOCS['d4']} & set(found.rows[1]['neg'])
    assert found.stats['without a relevant document'] == 1
    out = tmp_path / 'pairs.jsonl'
    parameters = ('-p', 'retriever=bm25', '-p', 'n=2', '-p', 'window=[0,6]')
    ran = medir('mine', 'labelled_pairs', tmp_path / 'task', out, *parameters, '--home', home)
    assert ran.code == 0 and read_rows(out, 'query', 'pos', 'neg') == found.rows, ran.err


def test_halves_of_changes_share_none_and_a_row_keeps_what_answers_it(home, tmp_path):
    "What one half puts in the place of what, the other never does; the kinds are those under which a question stays."
    texts, kinds = load_task('hpo-lay').queries.texts()[:60], ['typing error', 'lay wording']
    rows = [{'query': text, 'pos': ['p'], 'neg': ['n']} for text in texts]
    path = write_lines(tmp_path / 'rows.jsonl', map(json.dumps, rows))
    for half in 'ab':
        more = mine('augment', str(path), tmp_path / f'{half}.jsonl', kinds=kinds, half=half)
        added = [row for row in more if row['query'] not in texts]
        assert len(more) == len(rows) + len(added) > 70
        assert all((row['pos'], row['neg']) == (['p'], ['n']) for row in more)
        rule = half_of(perturbations('en', kinds=['lay wording'])['lay wording'], half)
        assert bool(rule('Kidney stones')) == bool(rule('my kidney stones since May')) == (half == 'a')
    wrong = lambda: mine('augment', str(path), tmp_path / 'c.jsonl', kinds=['negation'])
    refuses(wrong, "no kind 'negation' under which a question stays the same")


def test_steps_run_from_file_to_file(tmp_path, speaker, home, medir):
    speaker(lambda r: f'text about {r.id} {r.index}')
    write_lines(tmp_path / 'corpus.jsonl', rows())
    files = corpus, query, init, chosen = [tmp_path / f'{name}.jsonl' for name in ('c', 'query', 'init', 'chosen')]
    mine('load_documents', str(tmp_path / 'corpus.jsonl'), corpus, home)
    mine('synthesize_queries', corpus, query, home, model='smollm2')
    mine('candidates', query, init, home, model='smollm2', n=2)
    ran = medir('mine', 'select', init, chosen, '-p', 'retriever=minilm')
    assert ran.code == 0 and '6 rows' in ran.out, ran.err
    fields = {'id', 'text', 'rerank_id', 'target_id', 'top_rewrite_query', 'doc'}
    assert set(read_rows(chosen)[0]) == fields and all(file.is_file() for file in files)


def protocol_table():
    text = (ROOT / 'docs' / 'protocols' / 'bmretriever.md').read_text()
    part = text[text.index('[P Table 9') : text.index('a sampled subset')]
    lines = [[cell.strip() for cell in line.strip('|').split('|')] for line in part.splitlines() if line[:2] == '| ']
    table = {cells[0].lower().replace(' ', ''): cells[4] for cells in lines[1:]}
    return {name: table['mednli'] if text == '(the same)' else text for name, text in table.items()}


def test_every_row_is_whole_and_carries_the_instruction_of_table_9():
    for name, row in registry('tuning').items():
        check_tuning_row(name, row)
        assert row['sources'] and row['licence'] and (row.get('hub') or row.get('get'))
    printed, sets = protocol_table(), {n: row for n, row in registry('tuning').items() if not row.get('by_line')}
    assert {name: row['instruction'] for name, row in sets.items()} == printed and len(printed) == 12
    by_domain = tuning_table(here=False).query('printed > 0').groupby('domain').printed.sum()
    assert by_domain.to_dict() == {'biomedical': 127_600, 'general': 832_000}  # the paper's totals
    cells = published('bmretriever', 'Table 9')
    by_title = {row['title']: row for row in sets.values()}
    assert set(cells.dataset) == set(by_title)
    for cell in cells.itertuples():
        row = by_title[cell.dataset]
        assert (row['printed'], row['domain']) == (in_full(cell.text), cell.variant.lower()), cell.dataset
        # of HealthcareMagic the paper prints 30K without a star, and the data hold several times as many
        is_sampled = cell.text.endswith('*') or cell.dataset == 'HealthcareMagic'
        assert bool(row.get('sampled')) == is_sampled, cell.dataset


SET_LINES = {
    'stackexchange': ({'title_body': 'Why? Body', 'upvoted_answer': 'Because.'}, 'Why? Body', ['Because.'], []),
    'medquad': ({'question': 'What?', 'answer': 'That.'}, 'What?', ['That.'], []),
    'gooaq': ({'question': 'What?', 'answer': 'That.', 'short_answer': None}, 'What?', ['That.'], []),
    'eli5': ({'title': 'Why?', 'answers': {'text': ['a', 'b', 'c'], 'score': [1, 9, 9]}}, 'Why?', ['b'], []),
    'msmarco': ('query\tpositive\tnegative', 'query', ['positive'], ['negative']),
    'nli': ('sent0,sent1,hard_neg\n"A, b.",A.,Not A.', 'A, b.', ['A.'], ['Not A.']),
}
TURNS = {'file_name': 'healthcaremagic_1.txt', 'dialogue_turns': {'speaker': [0, 0, 1, 0], 'utterance': list('pqdx')}}
SET_LINES['healthcaremagic'] = (TURNS, 'p q', ['d'], [])
PASSAGES = {'question': 'Who?', 'positive_ctxs': [{'title': 'T', 'text': 'gold'}, {'title': 'U', 'text': 'other'}]}
PASSAGES |= {'negative_ctxs': [], 'hard_negative_ctxs': [{'title': None, 'text': 'hard'}]}
SET_LINES['nq'] = (PASSAGES, 'Who?', ['T gold'], ['hard'])


@pytest.mark.parametrize('name', SET_LINES)
def test_a_line_of_each_set_becomes_a_row(name, tmp_path, home):
    line, query, pos, neg = SET_LINES[name]
    kind = {'msmarco': 'tsv', 'nli': 'csv', 'nq': 'json'}.get(name, 'jsonl')
    text = line if isinstance(line, str) else json.dumps([line] if kind == 'json' else line)
    file = write_lines(tmp_path / f'x.{kind}', [text])
    mined = load_labelled(name, path=str(file))
    instruction = registry('tuning')[name]['instruction']
    want = {'id': f'{name}/0', 'query': query, 'pos': pos, 'neg': neg, 'instruction': instruction, 'source': name}
    assert mined.rows == [want]
    assert Pairs(mined.write(tmp_path / 'out.jsonl'), 0).rows[0].query == query


SHARED = ['statins lower cholesterol', 'statins spare the heart', 'statins hurt muscles', 'statins cost little']
OTHERS = ['metformin lowers glucose', 'iron cures anaemia', 'water cures thirst']


def written_by(writer):
    "The rows of a writer of training files, where one query has four answers, each in a row of its own."
    if writer == 'hard_negatives':
        rows = [{'id': str(i), 'text': 'what do statins do', 'doc': text} for i, text in enumerate(SHARED)]
        rows += [{'id': f'o{i}', 'text': text, 'doc': text} for i, text in enumerate(OTHERS)]
        return hard_negatives(rows, 'bm25', 2, (0, 7))
    rows = [{'id': f's/{i}', 'query': 'what do statins do', 'pos': [text], 'neg': []} for i, text in enumerate(SHARED)]
    if writer == 'draw_negatives':
        rows = [{**row, 'source': f's{i % 2}'} for i, row in enumerate(rows)]
        brought = {'id': 'b', 'query': ' what do  statins do', 'pos': ['x'], 'neg': [*SHARED, *OTHERS], 'source': 's0'}
        return draw_negatives([*rows, brought], 'bm25', 2)
    if writer == 'labelled_pairs':
        documents = [(f'd{i}', text) for i, text in enumerate([*SHARED, *OTHERS])]
        asked = search_task([(f'q{i}', 'what do statins do') for i in range(4)], documents)
        judged = asked.qrels.assign(doc_id=[f'd{i}' for i in range(4)])
        return labelled_pairs(replace(asked, qrels=judged), 'bm25', n=2, window=(0, 7))
    judge = lambda asked: ['A' if c.document == SHARED[int(c.query_id)] else 'C' for c in asked]
    queries = [{'id': str(i), 'text': 'what do statins do'} for i in range(4)]
    return curate(queries, [{'id': t, 'doc': t} for t in [*SHARED, *OTHERS]], 'bm25', judge)


@pytest.mark.parametrize('writer', ['hard_negatives', 'labelled_pairs', 'draw_negatives', 'curate'])
def test_what_answers_a_query_in_another_row_is_none_of_its_negatives(writer, home):
    mined = written_by(writer)
    about = [row for row in mined if row['query'].split() == 'what do statins do'.split()]
    assert len(about) >= 4 and not any(set(SHARED) & set(row['neg']) for row in about)


@pytest.mark.parametrize('name', ['mednli', 'mqp'])
def test_contradictions_are_hard_negatives_of_their_premise(name, tmp_path, home):
    names = ('sentence1', 'sentence2', 'gold_label') if name == 'mednli' else ('question_1', 'question_2', 'label')
    same, different = ('entailment', 'contradiction') if name == 'mednli' else (1, 0)
    said = [('p', 'entailed', same), ('p', 'contradicted', different), ('p', 'neither', 'neutral')]
    said += [('lonely', 'contradicted', different), ('torn', 'both', same), ('torn', 'both', different)]
    said += [(' ', 'x', same), ('same', 'same', same), ('empty', None, same)]
    file = write_lines(tmp_path / 'pairs.jsonl', [dict(zip(names, line, strict=True)) for line in said])
    mined = load_labelled(name, path=str(file))
    found = [(r['query'], r['pos'], r['neg']) for r in mined]
    assert found == [('p', ['entailed'], ['contradicted']), ('torn', ['both'], [])]
    once = ('labelled neither', 'negatives that are positives too', 'queries without a positive', 'empty query')
    once += ('query and positive are one text', 'empty positive')
    assert mined.stats == {'kept': 2, 'lines put to an earlier one of their query': 2, **dict.fromkeys(once, 1)}


def test_a_collection_gives_the_documents_of_the_highest_grade(tmp_path, home):
    write_beir(tmp_path / 'F', split='train')
    mined = load_labelled('fever', path=str(tmp_path / 'F'))
    assert [r['id'] for r in mined] == ['fever/q1', 'fever/q2', 'fever/q3']
    assert mined.rows[0]['pos'][0].startswith('Beta blockers') and len(mined.rows[0]['pos']) == 1
    assert mined.stats['empty query or positive'] == 1  # q4, of which nothing is relevant
    refuses(lambda: load_labelled('fever', path=str(tmp_path / 'F'), split='dev'), "no qrels of split 'dev'")


def test_documents_that_judges_refused_are_the_negatives(tmp_path, home):
    write_beir(tmp_path / 'F', split='train')
    graded = {('q1', 'd02'): 2, ('q1', 'd03'): 0, ('q1', 'd04'): 0, ('q1', 'd01'): 1, ('q2', 'd03'): 1}
    qrels = ['query-id\tcorpus-id\tscore', *(f'{q}\t{d}\t{grade}' for (q, d), grade in graded.items())]
    write_lines(tmp_path / 'F' / 'qrels' / 'train.tsv', qrels)
    corpus = {row['_id']: row for row in map(json.loads, (tmp_path / 'F' / 'corpus.jsonl').read_text().splitlines())}
    first, second = load_labelled('fever', path=str(tmp_path / 'F')).rows
    assert len(first['pos']) == 1 and len(first['neg']) == 2 and not second['neg']
    assert all(any(corpus[doc]['text'] in text for text in first['neg']) for doc in ('d03', 'd04'))
    # nobody has to mine for a query that brings its negatives
    drawn = draw_negatives([first], 'no such retriever', n=2)
    assert sorted(drawn.rows[0]['neg']) == sorted(first['neg'])


def test_an_array_is_read_an_object_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr('medir_nb.trainer.labelled_sets._A_PART', 7)
    items = [{'question': 'ä]' * i, 'n': [{}, i]} for i in range(20)]
    with gzip.open(tmp_path / 'x.json.gz', 'wt', encoding='utf-8') as stream:
        json.dump(items, stream, indent=2, ensure_ascii=False)
    assert [item for item, _ in file_rows(tmp_path / 'x.json.gz')] == items


def test_lists_of_sets(tmp_path, home, monkeypatch, capsys):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    file = str(write_lines(tmp_path / 'm.jsonl', [{'question': 'a', 'answer': 'b'}]))
    refuses(lambda: load_sets(['medquat'], leave_out=True), "did you mean 'medquad'")
    refuses(lambda: load_sets(['medquad', 'mednli'], {'medquad': file}), 'tuning set mednli: it needs a licence')
    mined = load_sets(['medquad', 'mednli'], {'medquad': file}, leave_out=True)
    assert mined.stats == {'kept': 1, 'medquad: kept': 1, 'mednli: not at hand': 1}
    assert 'mednli: it needs a licence' in capsys.readouterr().err


FEVER = 'Given a claim, retrieve documents that support or refute the claim'
HOPS = 'Given a multi-hop question, retrieve documents that can help answer the question'  # of the authors' prompt.py
TOLD_BEFORE = f'{FEVER}\nQuery: q'
RELEASED_LAYOUTS = [
    {'query': 'q', 'positive': 'p', 'negative': 'n', 'instruction': FEVER},
    {'question': 'q', 'pos': ['p'], 'neg': ['n'], 'prompt': FEVER},
    {'query': TOLD_BEFORE, 'positive': 'Represent this passage\npassage: p', 'negative': 'n'},
    {'query': f'{FEVER}. Query: q', 'positive': 'Represent this passage. Passage: p', 'negative': 'n'},
    {'query': TOLD_BEFORE, 'positive_passages': [{'title': '', 'text': 'p'}], 'negative_passages': [{'text': 'n'}]},
]


@pytest.mark.parametrize('line', RELEASED_LAYOUTS)
def test_a_released_row_is_read_in_the_layouts_that_such_files_have(line, tmp_path, home):
    [row] = load_labelled('bmretriever-released', path=str(write_lines(tmp_path / 'x.jsonl', [line]))).rows
    want = {'query': 'q', 'pos': ['p'], 'neg': ['n'], 'instruction': FEVER, 'source': 'bmretriever-released/fever'}
    assert row == {'id': 'bmretriever-released/0', **want}


def test_released_rows_stay_one_a_line_and_are_told_apart_by_their_instruction(tmp_path, home):
    given = [FEVER, HOPS, 'Given a sentence, retrieve sentences with the same meaning', 'Find leaflets for a drug', '']
    line = {'query': 'one query', 'negative': 'n'}
    lines = [{**line, 'positive': f'p{n}', 'instruction': told} for n, told in enumerate(given)]
    file = write_lines(tmp_path / 'x.jsonl', lines)
    mined = load_labelled('bmretriever-released', path=str(file))
    sources = [row['source'].partition('/')[2] for row in mined]
    assert sources == ['fever', 'hotpotqa', 'mednli+mqp', 'synthetic', '']
    assert [group_of(row['source']) for row in mined] == ['general', 'general', 'biomedical', 'synthetic', '']
    assert mined.rows[4]['instruction'] and mined.stats['without an instruction of their own'] == 1
    assert len(load_labelled('bmretriever-released', path=str(file), limit=3)) == 3
    data = {'sets': ['bmretriever-released'], 'paths': {'bmretriever-released': str(file)}}
    assert write_tuning_data(TuningData(**data), tmp_path / 'd').rows == 5  # each brought its negative
    grouped = TuningData(**data, groups=['biomedical', 'general'])
    refuses(lambda: write_tuning_data(grouped, tmp_path / 'd'), 'names no instruction, so its group is unknown')


def test_a_group_that_holds_nothing_is_named(tmp_path, home, capsys):
    lines = [{'query': f'q{n}', 'positive': f'p{n}', 'negative': 'n', 'instruction': FEVER} for n in range(3)]
    file = str(write_lines(tmp_path / 'x.jsonl', lines))
    data = {'sets': ['bmretriever-released'], 'paths': {'bmretriever-released': file}}
    assert write_tuning_data(TuningData(**data, groups=['biomedical', 'general']), tmp_path / 'd').rows == 3
    assert 'no row is synthetic, so a training without synthetic data is the whole one' in capsys.readouterr().err


def test_the_hub_is_read_where_no_folder_is_at_hand(tmp_path, home, own_registry, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    lines = [{'question': f'what is {i}', 'answer': f'it is {i}'} for i in range(30)]
    for part in ('one', 'two'):
        write_lines(tmp_path / 'hub' / part / 'train.jsonl', lines[:20] if part == 'one' else lines[15:])
    row = {'instruction': 'Find it', 'revision': 'f' * 40}
    pairs = {'rule': 'question-answer', 'fields': {'query': 'question', 'positive': 'answer'}}
    configs = [[f'dir:{part}', 'train'] for part in ('one', 'two')]
    tiny = {**row, **pairs, 'hub': str(tmp_path / 'hub'), 'configs': configs}
    own_registry(tuning={'tiny': tiny, 'few': {**tiny, 'sampled': True, 'printed': 7}})
    whole = load_labelled('tiny')
    assert len(whole) == 30 and whole.stats['lines put to an earlier one of their query'] == 5
    few = load_labelled('few')
    assert len(few) == 7 and {r['query'] for r in few} < {r['query'] for r in whole}
    # a folder of that name wins over the Hub
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path / 'data'))
    write_lines(tmp_path / 'data' / 'tiny' / 'pairs.jsonl', lines[:2])
    assert len(load_labelled('tiny')) == 2


def example(*texts):
    return json.dumps(dict(zip(WrittenExample.model_fields, texts, strict=True)))


def test_answers_fit_their_schema_or_say_why_not():
    broken = ['{"query": {"a": 1}', '{query} {"query": "a"}', '{"a":' * 100_000]  # the whole inside is no answer
    of_queries = dict.fromkeys(['{"query": "a {b} c"}', 'Sure! {"query": "a"} Hope it helps.'], '')
    of_queries |= {'': 'no JSON object', '{"query": 3}': 'a field of another kind', '{"query": " "}': 'an empty field'}
    of_queries |= {'{"Query": "a"}': 'a field is missing', **dict.fromkeys(broken, 'broken JSON')}
    read = {text: read_answer(text, WrittenQuery, []) for text in of_queries}
    assert {text: answer.fault for text, answer in read.items()} == of_queries
    assert all((answer.value is None) == bool(answer.fault) for answer in read.values())
    for text, met in {'{"query": "a': 'cut off', '{"query": "a"}': 'wrong language'}.items():
        assert read_answer(text, WrittenQuery, [met])[:2] == (None, met), text
    lists = [read_answer(text, WrittenTasks, []).fault for text in ('["a", "b"]', '{"tasks": ["a"]}')]
    same = [read_answer(example(*texts), WrittenExample, []).fault for texts in ('baa', 'aab')]
    assert lists == ['', 'JSON of another shape']
    assert same == ['both documents are one text', 'the query is its document']


@pytest.fixture
def writer(home, monkeypatch, fake):
    "`writer(write)` makes smollm2 a server on this machine that answers by `write(prompt)`."
    monkeypatch.delenv('MEDIR_REPLAY', raising=False)

    def use(write):
        server = fake(answer=lambda body: chat_answer(write(body['messages'][-1]['content'])))
        g.configure('smollm2', backend='openai', base_url=server.url)
        return server

    return use


FINDINGS = [{'id': f'd{i}', 'doc': f'Finding number {i} is seen in disease {i * i}.'} for i in range(12)]
number_of = lambda prompt: int(re.search(r'Finding number (\d+)', prompt)[1])
asked_about = lambda prompt: json.dumps({'query': f'what is seen in case {number_of(prompt)}?'})


def test_queries_are_written_counted_and_replayed(writer, home):
    odd = ['{"query": "cut', 'I cannot.', 'Here: {"query": "which disease has it?"}']
    odd = dict(enumerate([*odd, '{"query": "Finding number 3"}', '{"query": "which disease has it?"}']))
    server = writer(lambda prompt: odd.get(number_of(prompt)) or asked_about(prompt))
    written = write_queries(FINDINGS, 'smollm2')
    broken = {'broken: broken JSON': 1, 'broken: no JSON object': 1}
    assert written.stats == {'kept': 8, **broken, 'unwrapped': 1, 'copied from the passage': 1, 'repeated': 1}
    assert written.rows[0]['pos'] == [FINDINGS[2]['doc']] and written.rows[0]['id'] == 'synthetic-queries/d2'
    usage = written.usage
    assert (usage.answers, usage.asked, usage.prompt_tokens) == (12, 12, 120) and 'no price on record' in repr(written)
    again = write_queries(FINDINGS, 'smollm2', replay=True)
    assert again.rows == written.rows and again.usage.asked == 0 and server.asked == 12 and '$0.00' in repr(again)
    covid = write_queries(FINDINGS[5:], 'smollm2', 'covid', source='covid')
    assert covid.rows[0]['id'] == 'covid/d5' and 'COVID-19 related articles' in covid.rows[0]['instruction']


def test_tasks_are_distinct_and_asking_ends_with_ideas(writer, home):
    said = [['A search.', '1. a SEARCH'], ['For type 1 diabetes', 'For type 2 diabetes'], 'prose']
    answers = iter([*said, *[['A search']] * 50])
    server = writer(lambda prompt: json.dumps(next(answers)))
    tasks = brainstorm_tasks('smollm2', calls=30, n=2, most_repeated=0.5)
    # which of three spellings is met first hangs on the order in which the requests end
    kept = sorted(r['task'].lower().strip('1. ') for r in tasks)
    assert kept == ['a search', 'for type 1 diabetes', 'for type 2 diabetes']
    assert tasks.stats['repeated tasks'] == 6 and tasks.stats['broken: no JSON list'] == 1
    assert server.asked == 8 and [n for what, n in tasks.stats.items() if 'not made' in what] == [22]
    assert len({r['id'] for r in tasks}) == 3
    assert len(Path(g.llm('smollm2').cassettes.path).read_text().splitlines()) == 8  # eight draws, not one eight times


def test_examples_take_their_values_by_task_and_number(writer, home):
    prompts = []

    def write(prompt):
        prompts.append(prompt)
        values = {'user_query': f'q {len(prompt)} {hash(prompt)}', 'positive_document': 'word ' * 60}
        return json.dumps({**values, 'hard_negative_document': 'short'})

    writer(write)
    tasks = [{'id': f't{i}', 'task': f'Find things of kind {i}'} for i in range(9)]
    written = write_examples(tasks, 'smollm2', n=2)
    assert len(written) == 18 and len(prompts) == 18
    values = registry('methods')['task-example']['values']
    assert all(row['drawn'][slot] in options for row in written for slot, options in values.items())
    assert len({tuple(r['drawn'].values()) for r in written}) > 8
    assert written.stats['documents shorter than asked'] >= 18
    some = write_examples(tasks[3:5], 'smollm2', n=1)
    assert some.rows == [r for r in written if r['id'].endswith(('t3-0', 't4-0'))]
    assert Pairs(written.write(home / 'x.jsonl'), 1).rows[0].neg == ['short']


def training_rows():
    rows = [('s/1', 'qa', 'a', ''), ('s/2', 'qb', 'b', ''), ('s/3', ' Qa', 'a2', ''), ('o/1', 'qc', 'c', 'xyz')]
    common = lambda i: {'id': i, 'instruction': i[0].upper(), 'source': i[0]}
    return [{**common(i), 'query': query, 'pos': [pos], 'neg': [*neg]} for i, query, pos, neg in rows]


def test_a_negative_comes_from_the_own_source_and_answers_nothing(home):
    drawn = draw_negatives(training_rows(), Axes(), top=4)
    by_id = {r['id']: r['neg'] for r in drawn}
    assert by_id['s/1'] == by_id['s/3'] == ['b']  # a2 answers the same question in another row
    assert by_id['s/2'][0] in ('a', 'a2') and by_id['o/1'][0] in 'xyz' and len(by_id['o/1']) == 1
    assert drawn.stats == {'kept': 4, 'that brought their negatives': 1}
    assert [{**r, 'neg': []} for r in drawn] == [{**r, 'neg': []} for r in training_rows()]
    seeds = {tuple(draw_negatives(training_rows(), Axes(), seed=s).rows[1]['neg']) for s in range(9)}
    assert seeds == {('a',), ('a2',)}


def graded_task(folder, n=60):
    "A collection of `n` documents and three judged queries, of which the first has a document of a lower grade."
    documents = [{'_id': f'd{i}', 'title': '', 'text': f'text {i}'} for i in range(n)]
    documents += [{'_id': 'twin', 'title': '', 'text': 'text 0'}, {'_id': 'empty', 'title': '', 'text': ' '}]
    write_lines(folder / 'corpus.jsonl', documents)
    write_lines(folder / 'queries.jsonl', [{'_id': f'q{i}', 'text': f'query {i}'} for i in range(3)])
    judged = [('q0', 'd0', 2), ('q0', 'd3', 1), ('q1', 'd1', 1), ('q2', 'd2', 1)]
    lines = ['query-id\tcorpus-id\tscore', *('\t'.join(map(str, j)) for j in judged)]
    write_lines(folder / 'qrels' / 'train.tsv', lines)
    return str(folder)


class Near:
    "An encoder in whose eyes text i is next to query 0, then text i + 1 …"

    name, revision, similarity = 'near', '1', 'cos'

    def encode(self, texts):
        turn = [0.001 * int(t.split()[1]) if t.strip() else 3.0 for t in texts]
        return np.array([[np.cos(a), np.sin(a)] for a in turn], np.float32)


def drawn_by_seed(searched, data, seeds=range(40), **more):
    rows_ = load_labelled('fever', path=data, **more).rows
    how = {'searched': searched, 'paths': {'fever': data}, 'top': 20}
    drawn = [draw_negatives(rows_, Near(), seed=seed, **how).rows for seed in seeds]
    return {row['query']: {r[i]['neg'][0] for r in drawn if r[i]['neg']} for i, row in enumerate(rows_)}


@pytest.mark.medium
def test_negatives_come_from_the_entire_corpus_of_a_collection(tmp_path, home):
    data = graded_task(tmp_path / 'fever')
    of_rows = {f'query {i}': {f'text {j}' for j in range(3) if j != i} for i in range(3)}
    assert drawn_by_seed('rows', data) == of_rows
    found = drawn_by_seed('corpus', data)
    ranks = {f'text {i}' for i in range(20)}
    # the first twenty ranks of the corpus, whatever rows were drawn; no twin of the answer and none of a lower grade
    assert all(len(texts) > 10 and texts <= ranks for texts in found.values())
    assert not found['query 0'] & {'text 0', 'text 3'} and 'text 4' in found['query 2']
    assert all('' not in texts for texts in found.values())
    few = drawn_by_seed('corpus', data, limit=2)
    assert len(few) == 2 and all(found[query] == texts for query, texts in few.items())


def test_a_set_of_lines_is_searched_over_all_its_answers(tmp_path, home):
    lines = [{'question': f'query {i}', 'answer': f'text {i}'} for i in range(60)]
    file = str(write_lines(tmp_path / 'gooaq.jsonl', lines))
    [row] = load_labelled('gooaq', path=file, limit=1).rows
    drawn = lambda searched: draw_negatives([row], Near(), searched=searched, paths={'gooaq': file}).rows[0]['neg']
    assert drawn('rows') == [] and len(drawn('corpus')) == 1 and drawn('corpus') != row['pos']
    data = TuningData(sets=['gooaq'], paths={'gooaq': file}, limit=1, miner='bm25')
    assert data.searched == 'corpus'  # the paper's way is the default
    write_lines(tmp_path / 'gooaq.jsonl', [line for line in lines if line['answer'] not in row['pos']])
    refuses(lambda: drawn('corpus'), 'gooaq: the positives of gooaq/', ' are not in its corpus')


def clumps(n, dim=48, seed=0, spread=0.5, centres=None):
    "Unit vectors around some centres, with a few that stand several times."
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(centres or max(2, n // 12), dim))
    vectors = middle[rng.integers(len(middle), size=n)] + spread * rng.normal(size=(n, dim))
    vectors[rng.integers(n, size=n // 10)] = vectors[rng.integers(n, size=n // 10)]
    return unit(vectors.astype(np.float32))


def test_a_finished_filter_is_not_repeated_and_other_vectors_are_another_filter(home, monkeypatch):
    vectors = clumps(300)
    before = diverse_vectors(vectors, seeds=10)
    with monkeypatch.context() as patch:
        patch.setattr('medir_nb.trainer.curation.GrowingIndex.let_in', lambda *_: pytest.fail('it was finished'))
        assert list(diverse_vectors(vectors, seeds=10)) == list(before)
    changed = vectors.copy()
    changed[7] = vectors[8]
    diverse_vectors(changed, seeds=10)
    assert len(list(home.glob('diversity/*/kept.npz'))) == 2


KILLED = """
    import sys, time, numpy as np
    sys.path.insert(0, sys.argv[1])
    from test_trainer_data import clumps
    from medir_nb.encoder.store import Vectors
    from medir_nb.trainer import diverse_vectors, curation

    class Slow(Vectors):
        def take(self, positions):
            time.sleep(0.1)
            return super().take(positions)

    curation._BLOCK, curation._PAUSE = 40, 0
    vectors = clumps(2000)
    diverse_vectors(Slow([vectors], np.arange(2000)), 'query', 50)
"""


@pytest.mark.medium
def test_a_killed_filter_goes_on_and_keeps_the_same(home, tmp_path, monkeypatch):
    command = [sys.executable, '-c', textwrap.dedent(KILLED), str(Path(__file__).parent)]
    job, done = subprocess.Popen(command), []
    while not done and job.poll() is None:
        time.sleep(0.1)
        done = [n for state in home.glob('diversity/*/kept.npz') if (n := int(np.load(state)['done'])) >= 200]
    os.kill(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    [state] = home.glob('diversity/*/kept.npz')
    assert 200 <= int(np.load(state)['done']) < 2000
    resumed = diverse_vectors(clumps(2000), 'query', 50)
    assert len(list(home.glob('diversity/*/kept.npz'))) == 1
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'another'))
    assert list(resumed) == list(diverse_vectors(clumps(2000), 'query', 50))


def test_rows_are_thinned_by_their_field(fake_minilm, home, tmp_path):
    texts = [*['kidney stone pain'] * 3, 'rash on hands', ' ', 'cough at night']
    rows = [{'id': str(i), 'text': text} for i, text in enumerate(texts)]
    kept = diversify(rows, 'minilm', side='query', seeds=0, order='given')
    assert [row['id'] for row in kept] == ['0', '1', '3', '5']
    assert kept.stats == {'kept': 4, 'empty': 1, 'said already': 1}
    strict = diversify(rows, 'minilm', side='query', n=0, seeds=0, order='given')
    assert [row['id'] for row in strict] == ['0', '3', '5']
    source, output = write_lines(tmp_path / 'rows.jsonl', rows), tmp_path / 'thinned.jsonl'
    how = {'retriever': 'minilm', 'side': 'query', 'seeds': 0, 'order': 'given'}
    assert mine('diversify', str(source), output, **how).rows == kept.rows == read_rows(output)


def topic_judge(asked):
    "S where the topic agrees and the remedy is a short one, nothing for one remedy, D elsewhere."
    vote = lambda c: 'S' if c.doc_id[1] == c.query_id[1] and c.doc_id[-1] in '12' else 'D'
    return [None if c.doc_id.endswith('-7') else vote(c) for c in asked]


def curated(home, judge=topic_judge, lists=None, **changes):
    return curate(ASKED, FOUND, 'bm25', judge, lists=lists, language='en', **changes)


def test_judged_documents_become_rows_that_the_trainer_reads(home, tmp_path):
    rows = curated(home, top=28, lists=Lists(positives=1, negatives=5), instruction='find help')
    assert len(rows) == 4 and all(len(row['pos']) == 1 and len(row['neg']) == 5 for row in rows)
    for row in rows:
        topic = row['query'].split()[-1]
        assert topic in row['pos'][0] and row['pos'][0].split()[-1] in ('x', 'xx')
        assert not any(topic in text and text.split()[-1] in ('x', 'xx', 'x' * 7) for text in row['neg'])
    pairs = Pairs(rows.write(tmp_path / 'rows.jsonl'), negatives=5, instructions=True)
    assert len(pairs) == 4 and pairs.counts['filled_negatives'] == 0 and pairs.instructions == ['find help'] * 4
    assert rows.stats == {'kept': 4, 'pairs without a usable vote': 16, 'pairs judged': 112}


def test_queries_without_a_positive_and_short_lists_are_counted(home):
    rows = curated(home, lambda asked: ['S' if c.query_id == 'q0' else 'D' for c in asked], top=3)
    assert len(rows) == 1 and rows.rows[0]['neg'] == []
    assert rows.stats['queries without a positive'] == 3 and rows.stats['with fewer negatives than asked'] == 1


def test_rows_of_a_query_share_no_positive_and_draws_hang_on_the_query(home):
    lists = Lists(positives=1, negatives=3, rows=5)
    rows, again = curated(home, top=28, lists=lists), curated(home, top=28, lists=lists)
    assert rows.rows == again.rows and len(rows) == 8
    assert [row['id'] for row in rows][:2] == ['curated/q0', 'curated/q0#1']
    assert len({(row['query'], row['pos'][0]) for row in rows}) == 8
    first = Lists(negatives=2, draw='first').drawn('q', ['a', 'b'], ['c', 'd', 'e'])
    assert first == [(['a'], ['c', 'd'])]


def test_the_cut_of_a_scale_decides_exactly():
    asked, own = [[Candidate('q', 'query', str(i), 'text') for i in range(6)]], Scale(('S',), ('A', 'B', 'C', 'D'))
    votes = {'grades': ['S', 'A', 'B', 'D', None, 'X'], 'binary': [True, False, None, 'S', False, True]}
    for scale, cast, wanted in ((own, [*'SABCD', ''], (1, 4)), *((s, v, (2, 2)) for s, v in votes.items())):
        counts = Counter()
        [(good, bad)] = judged_lists(asked, lambda _, cast=cast: cast, scale, counts)
        assert (len(good), len(bad), counts['pairs without a usable vote']) == (*wanted, 6 - sum(wanted))


def test_candidates_are_asked_once_in_order_and_the_query_itself_is_no_candidate(home):
    documents = [*FOUND, {'id': 'same', 'doc': ASKED[0]['text']}]
    asked = []
    found = retrieved_candidates(ASKED, documents, 'bm25', 10)
    judged_lists(found, lambda some: asked.extend(some) or ['D'] * len(some), 'grades', Counter())
    assert len(asked) == len(set(asked)) and ('q0', 'same') not in {c[::2] for c in asked}
    assert [c.query_id for c in asked] == sorted(c.query_id for c in asked)


@pytest.mark.medium
def test_instructions_that_a_model_cannot_take(tmp_path, own_registry):
    row = TINY_ROW | {'hub': make_model('bert', tmp_path / 'bert'), 'pooling': 'mean'}
    told = {'query_template': '{instruction}\nQuery: {text}', 'default_instruction': 'Given a query, retrieve passages'}
    own_registry(models={'tiny-mute': row, 'tiny-apart': {**row, **told, 'prompt_in_pooling': False}})
    lines = [{'query': f'what is {i}', 'pos': [f'it is {i}'], 'instruction': told} for i, told in enumerate('ab')]
    settings = {'data': write_lines(tmp_path / 'x.jsonl', lines), 'negatives': 1, 'batch_size': 2, 'max_steps': 1}
    wrong = lambda: train_encoder(model='tiny-apart', output='apart', **settings)
    refuses(wrong, 'leaves the prompt out of its pooling', 'from line to line')
    assert train_encoder(model='tiny-mute', output='mute', **settings).steps == 1  # it has no place for them


@pytest.mark.slow
def test_real_sets_have_the_sizes_that_are_known(medir_data, home):
    medquad, mqp = load_labelled('medquad'), load_labelled('mqp')
    assert len(medquad) == 14_979 and len(mqp) == 1_524 and all(len(r['neg']) == 1 for r in mqp)
    drawn = draw_negatives(medquad.rows[:300], 'bm25')
    assert all(not set(r['neg']) & set(r['pos']) for r in drawn)
