"""Pairs are pooled, handed out blind, graded, read and decided; what spreadsheets and people make of a sheet; kills and refusals."""

import csv, html, json, os, signal, subprocess, sys, time
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, write_lines
from medir_nb.core import MedirError
from medir_nb.evaluator import evaluate
from medir_nb.systems import search
from medir_nb.walk import (
    Labels,
    Sitting,
    Walk,
    candidates,
    decisions,
    excerpt,
    gather_votes,
    grade_by_keyboard,
    judge_pairs,
    kappa_table,
    label_widget,
    labelling_order,
    make_pool,
    read_labels,
    read_pool,
    read_sheet,
    read_votes,
    sheet_records,
    walk_power,
    write_sheet,
)
from medir_nb.evaluator.power import USUAL_SPREAD
from medir_nb.benchmark.tables import csv_rows, write_csv
from medir_nb.walk.folder import read_queries
from medir_nb.walk.folder import NothingRelevant
from medir_nb.benchmark import kappa_of
from medir_nb.walk.labelling import judge_table
from medir_nb.walk.pooling import agreeing_queries, differing_first, pool_settings
from medir_nb.walk.sheets import COLUMNS, next_queries

TWO = ['bm25', 'bm25(lucene)']
QUERIES = [
    ('q1', 'drug after a heart attack', 'log'),
    ('q2', 'first drug for type 2 diabetes', 'log'),
    ('q3', 'tired and weight gain', 'synthetic'),
    ('q4', 'attack relieved by inhaled drug', 'synthetic'),
    ('q5', 'pain in the right lower abdomen', 'synthetic'),
]


@pytest.fixture
def walk(tmp_path):
    "A walk through eleven documents with two queries of a log and three synthetic ones."
    walk = Walk.begin(tmp_path / 'W', name='W', documents='notes')
    write_lines(walk.path('corpus.jsonl'), [{'_id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS if b])
    source = {'q3': 'd11', 'q4': 'd05', 'q5': 'd10'}
    style = {'q3': 'lay', 'q4': 'keyword', 'q5': 'lay'}
    rows = [{'_id': i, 'text': t, 'origin': o} for i, t, o in QUERIES]
    rows = [row | ({'style': style[i], 'document': d} if (d := source.get(i := row['_id'])) else {}) for row in rows]
    write_lines(walk.path('queries.jsonl'), rows)
    return walk


def how(walk, **more):
    return {'systems': TWO, 'depth': 3, 'home_folder': walk.folder.parent / 'home', **more}


def fill(path, grade):
    "Grade every open line of a sheet; `grade` gets the row."
    rows = [row for row, _ in csv_rows(path)]
    write_csv(path, COLUMNS, [{**row, 'grade': row['grade'] or grade(row)} for row in rows])
    return path


def by_words(row):
    shared = set(row['query'].lower().split()) & set(row['document'].lower().split())
    return str(min(2, len(shared) // 2))


def refused(call, *said):
    with pytest.raises(MedirError) as e:
        call()
    assert '\n' not in str(e.value) and all(part in str(e.value) for part in said), str(e.value)


# ---------------------------------------------------------------- what is handed out


def pooled_row(query_id, doc_id, **brought):
    return {'pair': f'p{query_id}{doc_id}', 'query_id': query_id, 'doc_id': doc_id, 'brought': brought}


def test_queries_on_which_all_systems_agree_are_asked_last():
    pool = [pooled_row(q, 'd', a=1, b=1) for q in ('q0', 'q3')]
    pool += [pooled_row('q1', 'd', a=1), pooled_row('q1', 'e', b=1)]
    # the same documents in another order: no agreement
    pool += [pooled_row('q2', 'd', a=1, b=2), pooled_row('q2', 'e', a=2, b=1)]
    asked = list(dict.fromkeys(row['query_id'] for row in differing_first(pool)))
    assert asked == ['q1', 'q2', 'q0', 'q3'] and sorted(differing_first(pool), key=str) == sorted(pool, key=str)
    assert agreeing_queries(pool) == {'q0', 'q3'}


def test_a_pool_is_made_by_what_a_verdict_compares(walk, monkeypatch):
    monkeypatch.setattr('medir_nb.walk.rivals.encoders_here', lambda language: ([], {}))
    home = walk.folder.parent / 'home'
    pool = make_pool(walk, home_folder=home)
    wanted = candidates(walk, 'en').systems
    assert pool_settings(walk) == (wanted, 1) and {name for row in pool for name in row['brought']} == set(wanted)
    assert all(rank == 1 for row in pool for rank in row['brought'].values())
    assert [row['query_id'] for row in differing_first(pool)] == [row['query_id'] for row in pool]


def test_a_pool_and_a_verdict_search_the_same_passages(walk):
    "The answer stands in a long document: its passage is found first, the whole of it is not."
    filler = [f'Nothing of note number {n} was written down on that day.' for n in range(40)]
    long = ' '.join([*filler, 'Colchicine eases an attack of gout within hours.', *filler])
    short = 'Rest eases gout, which is an attack of uric acid crystals on a joint of the foot in old age.'
    documents = [{'_id': 'long', 'title': '', 'text': long}, {'_id': 'short', 'title': '', 'text': short}]
    write_lines(walk.path('corpus.jsonl'), documents)
    write_lines(walk.path('queries.jsonl'), [{'_id': 'q', 'text': 'what eases an attack of gout', 'origin': 'log'}])
    walk.path('qrels/test.tsv').write_text('query-id\tcorpus-id\tscore\nq\tlong\t2\n')
    home, first = walk.folder.parent / 'home', {}
    for said in ({}, {'sentences': 1}):
        cut = Walk.begin(walk.folder, **walk.settings.model_dump() | {'passages': said})
        pool = make_pool(cut, ['bm25(lucene)'], home_folder=home)
        run = search('bm25(lucene)', cut.task(home_folder=home), k=1, home_folder=home).run
        assert [row['doc_id'] for row in pool] == list(run.doc_id[:1])
        first[str(said)] = pool[0]['doc_id']
    assert list(first.values()) == ['short', 'long']
    # what people label already is not pooled in another way
    write_sheet(cut, 'anna', systems=['bm25(lucene)'], home_folder=home)
    whole = Walk.begin(walk.folder, **walk.settings.model_dump() | {'passages': {}})
    refused(
        lambda: make_pool(whole, ['bm25(lucene)'], home_folder=home),
        'passages sentences=1, not none',
        'look again with --passages sentences=1, or',
    )


def test_a_sheet_is_blind_shuffled_whole_and_opens_in_a_spreadsheet(walk):
    anna, ben = (write_sheet(walk, name, **how(walk)) for name in ('anna', 'ben'))
    assert anna.read_bytes().startswith(b'\xef\xbb\xbf') and (walk.folder / 'labels/guideline.md').is_file()
    rows = {path: [row for row, _ in csv_rows(path)] for path in (anna, ben)}
    assert list(rows[anna][0]) == list(COLUMNS) and all(not row['grade'] for row in rows[anna])
    text = anna.read_text()
    assert not any(word in text for word in ('bm25', 'rank', 'score', 'd01'))
    # the same pairs in another order; the documents of a query stand together
    pairs = [[row['pair'] for row in rows[path]] for path in (anna, ben)]
    assert sorted(pairs[0]) == sorted(pairs[1]) and pairs[0] != pairs[1]
    queries = [row['query'] for row in rows[anna]]
    assert len({*queries}) == 1 + sum(a != b for a, b in zip(queries, queries[1:]))
    # whole queries: every pooled pair of each that is on the sheet
    pool = {row['pair']: row for row in read_pool(walk)}
    on_sheet = {pool[pair]['query_id'] for pair in pairs[0]}
    assert {pair for pair, row in pool.items() if row['query_id'] in on_sheet} == set(pairs[0])


def test_the_order_of_documents_does_not_follow_the_ranks(walk):
    rows = csv_rows(write_sheet(walk, 'anna', **how(walk)))
    best = {row['pair']: min(row['brought'].values()) for row in read_pool(walk)}
    ranks = [best[row['pair']] for row, _ in rows]
    by_query = pd.DataFrame({'query': [row['query'] for row, _ in rows], 'rank': ranks}).groupby('query')['rank']
    assert not all(part.is_monotonic_increasing for _, part in by_query)


def test_a_call_without_new_grades_changes_nothing(walk):
    first = write_sheet(walk, 'anna', **how(walk))
    before = {path.name: path.read_bytes() for path in first.parent.iterdir()}
    assert write_sheet(walk, 'anna', **how(walk)) == first
    assert {path.name: path.read_bytes() for path in first.parent.iterdir()} == before


def test_a_sheet_is_the_same_for_the_same_seed(walk, tmp_path):
    text = write_sheet(walk, 'anna', **how(walk)).read_bytes()
    (walk.folder / 'labels').rename(tmp_path / 'away')
    assert write_sheet(walk, 'anna', **how(walk)).read_bytes() == text
    (walk.folder / 'labels').rename(tmp_path / 'again')
    assert write_sheet(walk, 'anna', **how(walk, seed=7)).read_bytes() != text


def test_sittings_hold_at_most_so_many_pairs_and_end(walk):
    handed_out = []
    for sitting in range(1, 10):
        try:
            path = write_sheet(walk, 'anna', **how(walk, most=8))
        except MedirError as e:
            assert 'nothing is left to label for anna' in str(e)
            break
        assert path.name == f'{sitting:02d}-anna.csv' and 0 < len(csv_rows(path)) <= 8
        handed_out += [row['pair'] for row, _ in csv_rows(fill(path, by_words))]
    assert sorted(handed_out) == sorted(row['pair'] for row in read_pool(walk)) and len(set(handed_out)) == len(
        handed_out
    )


def test_without_overlap_two_people_share_nothing_and_with_half_some():
    pool = [{'pair': f'p{q}-{d}', 'query_id': f'q{q}', 'doc_id': f'd{d}'} for q in range(40) for d in range(4)]
    for overlap, low, high in ((0.0, 0, 0), (0.5, 5, 35), (1.0, 40, 40)):
        anna = next_queries(pool, [], 'anna', 1000, overlap)
        record = {'file': 'x', 'annotator': 'anna', 'pairs': [row['pair'] for row in anna]}
        ben = {row['query_id'] for row in next_queries(pool, [record], 'ben', 1000, overlap)}
        assert low <= len(ben) <= high and len(anna) == 160


def test_questions_of_the_log_come_first_and_styles_in_turn():
    rows = [{'_id': f's{i}', 'origin': 'synthetic', 'style': 'ab'[i % 5 == 0]} for i in range(20)]
    rows += [{'_id': f'l{i}', 'origin': 'log'} for i in range(3)]
    order = labelling_order(rows, 1)
    assert [row['origin'] for row in order[:3]] == ['log'] * 3 and order != labelling_order(rows, 2)
    assert labelling_order(rows[::-1], 1) == order  # the order of the file says nothing
    styles = [row['style'] for row in order[3:11]]
    assert styles.count('a') == styles.count('b') == 4


def test_formulas_are_text(walk):
    cells = ['=HYPERLINK("x")', '+1 stroke', '-stroke', '@stroke', '\t=stroke']
    write_lines(
        walk.path('corpus.jsonl'), [{'_id': f'd{i}', 'title': '', 'text': t + ' stroke'} for i, t in enumerate(cells)]
    )
    write_lines(walk.path('queries.jsonl'), [{'_id': 'q1', 'text': '=stroke', 'origin': 'log'}])
    for row, _ in csv_rows(write_sheet(walk, 'anna', **how(walk))):
        assert row['query'] == "'=stroke" and row['document'].startswith("'")


@pytest.mark.parametrize(
    'text',
    ['很长的文字。' * 300 + '缺铁性贫血使人面色苍白。' + '很长的文字。' * 300, 'x' * 5000, 'Sentence one. ' * 400],
)
def test_an_excerpt_is_short_and_a_part_of_its_text(text):
    query = '为什么面色苍白 pale'
    shown = excerpt(query, text, 200)
    assert len(shown) <= 204 and shown.strip('… ').replace(' ', '') in text.replace(' ', '')
    assert '苍白' not in text or '苍白' in shown


# ---------------------------------------------------------------- what comes back


def test_from_sheets_to_judgements_that_a_task_reads(walk, medir):
    for name in ('anna', 'ben'):
        fill(write_sheet(walk, name, **how(walk)), by_words)
    labels = read_labels(walk, home_folder=how(walk)['home_folder'])
    assert labels.open_conflicts == 0 and labels.how == {'agreed': len(read_pool(walk))}
    assert labels.agreement[0]['kappa'] == 1 and 'too few to show any difference' in repr(labels)
    task = walk.task('test', how(walk)['home_folder'])
    assert set(task.qrels.relevance) <= {0, 1, 2} and task.qrels.relevance.max() == 2
    assert len(task.qrels) == len(read_pool(walk))
    assert 0 <= evaluate(task, 'bm25', ['nDCG@10']).mean('nDCG@10') <= 1
    assert json.loads((walk.folder / 'labels/labels.json').read_text(), parse_constant=pytest.fail)['votes'] == 2 * len(
        task.qrels
    )
    out = medir('evaluate', walk.folder, '--system', 'bm25', '--measures', 'nDCG@10')
    assert out.code == 0 and 'judged' in out.out


def test_conflicts_are_shown_settled_and_taken_back(walk):
    grades = iter('012' * 99)
    fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    fill(write_sheet(walk, 'ben', **how(walk)), lambda row: next(grades))
    first = read_labels(walk, with_power=False)
    sheet = walk.folder / 'labels' / 'adjudication.csv'
    rows = [row for row, _ in csv_rows(sheet)]
    assert first.open_conflicts == len(rows) == first.how['conflict'] > 3
    assert all('anna' in row['said'] and 'ben' in row['said'] and row['document'] for row in rows)
    judgements = walk.folder / 'qrels/test.tsv'
    judged = lambda: {line.split('\t')[0] for line in judgements.read_text().splitlines()[1:]}
    text_of = {row['text']: row['_id'] for row in read_queries(walk)}
    disputed = {text_of[row['query']] for row in rows}
    before = judged() if judgements.is_file() else set()
    # an unsettled pair would count as not relevant: its query waits
    assert not before & disputed and first.disputed == len(disputed) > len(before)
    one = rows[0]['query']
    settle = lambda row: {**row, 'grade': '2', 'comment': 'agreed by talk'} if row['query'] == one else row
    settled = sum(row['query'] == one for row in rows)
    write_csv(sheet, list(rows[0]), [settle(row) for row in rows])
    second = read_labels(walk, with_power=False)
    assert second.how['adjudicated'] == settled and second.votes == first.votes
    assert judged() == before | {text_of[one]} and second.disputed == first.disputed - 1
    again = [row for row, _ in csv_rows(sheet)]
    kept = [row for row in again if row['grade']]
    assert len(again) == len(rows) and [row['comment'] for row in kept] == ['agreed by talk'] * settled
    # a grade that is erased takes the decision back
    write_csv(sheet, list(rows[0]), [{**row, 'grade': ''} for row in again])
    assert read_labels(walk, with_power=False).open_conflicts == len(rows)
    assert (judged() if judgements.is_file() else set()) == before


def test_a_query_in_conflict_has_no_score_and_the_verdict_says_so(walk, medir):
    "Anna and ben differ on one pair: it is neither relevant nor not, and unjudged it would be the latter."
    for name in ('anna', 'ben'):
        sheet = fill(write_sheet(walk, name, **how(walk, depth=1)), lambda row: '2')
    rows = [row for row, _ in csv_rows(sheet)]
    write_csv(sheet, COLUMNS, [{**rows[0], 'grade': '0'}, *rows[1:]])
    labels = read_labels(walk, with_power=False)
    [waits] = {row['_id'] for row in read_queries(walk) if row['text'] == rows[0]['query']}
    assert labels.disputed == labels.open_conflicts == 1 and labels.queries == len(QUERIES) - 1
    assert waits not in (walk.folder / 'qrels/test.tsv').read_text()
    read = medir('label', walk.folder, '--read').out
    assert 'left out: 1 query on which people differ, until it is settled (labels/adjudication.csv)' in read
    assert f'without these queries: medir verdict {walk.folder}' in read
    out = medir('verdict', walk.folder, '--system', TWO[0], '--system', TWO[1], '--no-costs').out
    assert f'{len(QUERIES) - 1} labelled queries' in out
    assert 'Left out: 1 labelled query on which people differ; labels/adjudication.csv settles them.' in out
    settled = [{**row, 'grade': '2'} for row, _ in csv_rows(walk.folder / 'labels/adjudication.csv')]
    write_csv(walk.folder / 'labels/adjudication.csv', list(settled[0]), settled)
    assert read_labels(walk, with_power=False).queries == len(QUERIES)
    assert 'Left out' not in medir('verdict', walk.folder, '--system', TWO[0], '--system', TWO[1], '--no-costs').out


def test_a_query_counts_when_all_of_it_was_seen(walk):
    path = write_sheet(walk, 'anna', **how(walk))
    rows = [row for row, _ in csv_rows(path)]
    last = rows[-1]['query']
    graded = [{**row, 'grade': '1'} for row in rows[:-1]] + [rows[-1]]
    write_csv(path, COLUMNS, graded)
    labels = read_labels(walk, with_power=False)
    assert labels.unfinished == 1 and labels.queries == len({row['query'] for row in rows}) - 1
    # a word why there is no grade is enough
    write_csv(path, COLUMNS, [*graded[:-1], {**rows[-1], 'comment': 'in another language'}])
    labels = read_labels(walk, with_power=False)
    assert labels.unfinished == 0 and labels.pairs == len(rows) - 1 and last
    refused(lambda: write_sheet(walk, 'anna', **how(walk)), 'nothing is left')


def test_a_query_without_anything_relevant_is_counted(walk):
    fill(write_sheet(walk, 'anna', **how(walk)), lambda row: '0' if 'tired' in row['query'] else '1')
    labels = read_labels(walk, with_power=False)
    assert (
        labels.nothing_relevant == 1 and labels.queries == len(QUERIES) - 1 and 'nothing was relevant' in repr(labels)
    )


def test_sorted_deleted_and_respelt_lines_are_no_fault(walk):
    path = fill(write_sheet(walk, 'anna', **how(walk)), lambda row: '1')
    rows = [row for row, _ in csv_rows(path)]
    with path.open('w', encoding='utf-8', newline='') as file:  # semicolons, no BOM, 1.0 and blanks, empty lines
        writer = csv.DictWriter(file, [*COLUMNS, ''], delimiter=';')
        writer.writeheader()
        writer.writerows([{**row, 'grade': ' 1,0 '} for row in reversed(rows[1:])])
        file.write(';;;;;\n\n')
    assert list(read_sheet(path, [row['pair'] for row in rows]).grade) == ['1'] * (len(rows) - 1)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda rows: rows[2].update(grade='3'), [':4', "the grade '3'", 'write 0, 1, 2']),
        (lambda rows: rows[2].update(grade='yes'), [':4', "'yes'"]),
        (lambda rows: rows[2].update(pair='1E+05'), [':4', 'was not handed out']),
        (lambda rows: rows[2].update(pair=rows[0]['pair']), [':4', 'stands twice', 'first at 2']),
        (lambda rows: rows[2].update(pair=''), [':4', 'was not handed out']),
        (lambda rows: [row.pop('grade') for row in rows], [':1', "no column 'grade'"]),
    ],
)
def test_what_cannot_be_read_is_said_with_its_line(walk, change, said):
    path = write_sheet(walk, 'anna', **how(walk))
    rows = [row for row, _ in csv_rows(path)]
    change(rows)
    write_csv(path, list(rows[0]), rows)
    refused(lambda: read_labels(walk, with_power=False), path.name, *said)
    assert not (walk.folder / 'qrels/test.tsv').exists()


def test_a_sheet_in_another_encoding_says_how_to_save_it(walk):
    path = write_sheet(walk, 'anna', **how(walk))
    path.write_bytes(path.read_bytes().replace(b',,\r', ',1,naïve\r'.encode('latin1')))
    refused(lambda: read_labels(walk), path.name, 'not UTF-8', 'convert it')


def test_a_filled_sheet_is_not_written_over_and_a_lost_one_is_written_again(walk):
    path = write_sheet(walk, 'anna', **how(walk))
    text = path.read_bytes()
    path.unlink()
    assert write_sheet(walk, 'anna', **how(walk)).read_bytes() == text
    fill(path, by_words)
    filled, records = path.read_bytes(), walk.folder / 'labels' / 'sheets.json'
    records.write_text('[]')  # somebody lost the list of what was handed out
    refused(lambda: write_sheet(walk, 'anna', **how(walk)), 'somebody has filled in this sheet')
    assert path.read_bytes() == filled


def test_a_copy_under_another_name_is_named(walk, capfd):
    path = fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    path.rename(path.with_name('01-anna (1).csv'))
    assert read_labels(walk, with_power=False).votes == 0
    assert '01-anna (1).csv' in capfd.readouterr().err


def test_a_sheet_that_was_read_and_is_gone_is_named_and_loses_no_grade(walk, capfd):
    path = fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    before = read_labels(walk, with_power=False)
    path.unlink()
    assert read_labels(walk, with_power=False) == before and before.votes > 0
    assert '01-anna.csv is not in labels/: put it back' in capfd.readouterr().err


def test_votes_from_elsewhere_stay_and_are_checked(walk):
    fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    n = len(gather_votes(walk))
    path = walk.folder / 'labels' / 'votes.csv'
    path.write_bytes(path.read_bytes() + b'q1,d09,clara,2\r\n')
    assert len(gather_votes(walk)) == n + 1 and (read_votes(walk).annotator == 'clara').sum() == 1
    for line, said in (
        (b'q1,d09,clara,1\r\n', 'twice'),
        (b'q1,d09,dora,5\r\n', "the grade '5'"),
        (b'q1,,dora,1\r\n', 'without'),
    ):
        good = path.read_bytes()
        path.write_bytes(good + line)
        refused(lambda: read_votes(walk), f'votes.csv:{n + 3}', said)
        path.write_bytes(good)


def test_an_emptied_grade_is_a_vote_taken_back(walk):
    path = fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    n = len(gather_votes(walk))
    rows = [row for row, _ in csv_rows(path)]
    write_csv(path, COLUMNS, [{**rows[0], 'grade': ''}, *rows[1:]])
    assert len(gather_votes(walk)) == n - 1


def test_judgements_of_somebody_else_are_not_written_over(walk):
    write_lines(walk.path('qrels/test.tsv'), ['query-id\tcorpus-id\tscore', 'q1\td02\t1'])
    fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    refused(lambda: read_labels(walk, with_power=False), 'were not written by medir label', 'move the file away')
    assert 'q1\td02\t1' in (walk.folder / 'qrels/test.tsv').read_text()


@pytest.mark.parametrize('name', ['', '../x', 'a b', 'adjudicated', 'x' * 41, '=anna'])
def test_names_that_cannot_be_files_are_refused(walk, name):
    refused(lambda: write_sheet(walk, name, **how(walk)), 'cannot name a person')


def test_the_sign_that_a_name_may_not_have_is_named(walk):
    refused(lambda: write_sheet(walk, 'Ann Lee', **how(walk)), "'Ann Lee' cannot name a person: it holds a space")
    refused(lambda: write_sheet(walk, 'ann/lee', **how(walk)), "it holds '/'")


def test_other_refusals(walk):
    refused(lambda: write_sheet(walk, 'anna', **how(walk, most=5)), 'no room for one whole query')
    refused(lambda: write_sheet(walk, 'anna', **how(walk, overlap=2)), 'the overlap is 2')
    write_sheet(walk, 'anna', **how(walk))
    refused(lambda: write_sheet(walk, 'ben', **how(walk, depth=2)), 'depth 3, not 2', 'move the folder labels/ away')
    refused(lambda: write_sheet(walk, 'ben', **how(walk, seed=7)), 'seed 0, not 7', 'move the folder labels/ away')
    (walk.folder / 'queries.jsonl').unlink()
    refused(lambda: write_sheet(walk, 'ben', **how(walk)), 'there are no queries yet', 'medir queries')


def test_queries_of_a_later_call_are_pooled_behind(walk):
    fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    before = read_pool(walk)
    path = walk.folder / 'queries.jsonl'
    path.write_text(
        path.read_text() + json.dumps({'_id': 'q9', 'text': 'vaccination of adults', 'origin': 'log'}) + '\n'
    )
    second = write_sheet(walk, 'anna', **how(walk))
    assert second.name == '02-anna.csv' and read_pool(walk)[: len(before)] == before
    assert {row['query'] for row, _ in csv_rows(second)} == {'vaccination of adults'}


# ---------------------------------------------------------------- agreement


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


def votes_of(rng, queries, depth, agree):
    grades = rng.integers(0, 3, (queries, depth))
    other = np.where(rng.random(grades.shape) < agree, grades, rng.integers(0, 3, grades.shape))
    pairs = [(f'q{q}', f'd{d}') for q in range(queries) for d in range(depth)]
    columns = ['query_id', 'doc_id', 'annotator', 'grade']
    rows = [(*p, name, int(g)) for name, of in (('a', grades), ('b', other)) for p, g in zip(pairs, of.ravel())]
    return pd.DataFrame(rows, columns=columns)


def test_intervals_of_kappa_cover_and_narrow_with_more_queries():
    truth, covered, widths = 0.6, 0, {}
    for seed in range(40):
        row = kappa_table(votes_of(np.random.default_rng(seed), 30, 5, truth), n=300).iloc[0]
        covered += row.low <= truth <= row.high
        widths[30] = row.high - row.low
    assert covered >= 34
    row = kappa_table(votes_of(np.random.default_rng(1), 200, 5, truth), n=300).iloc[0]
    assert row.high - row.low < widths[30] and row.weighted_low < row.weighted < row.weighted_high


def test_people_without_a_common_pair_have_no_kappa():
    votes = pd.DataFrame([('q', 'd', 'a', 1), ('q', 'e', 'b', 1)], columns=['query_id', 'doc_id', 'annotator', 'grade'])
    assert kappa_table(votes).iloc[0].pairs == 0 and np.isnan(kappa_table(votes).kappa[0])


def test_decisions_by_hand():
    said = {'a': {'x': 1}, 'b': {'x': 1, 'y': 1}, 'c': {'x': 0, 'y': 2}, 'd': {'x': 0, 'y': 0, 'z': 1}}
    said |= {'e': {'x': 0, 'y': 1, 'z': 2}, 'f': {'x': 0, 'y': 2, 'adjudicated': 1}}
    rows = [('q', d, name, g) for d, of in said.items() for name, g in of.items()]
    decided = decisions(pd.DataFrame(rows, columns=['query_id', 'doc_id', 'annotator', 'grade'])).set_index('doc_id')
    assert decided.how.to_dict() == {
        'a': 'one person',
        'b': 'agreed',
        'c': 'conflict',
        'd': 'majority',
        'e': 'conflict',
        'f': 'adjudicated',
    }
    assert decided.grade.dropna().to_dict() == {'a': 1, 'b': 1, 'd': 0, 'f': 1}


def test_judges_stand_beside_and_never_among_the_labels(walk, fake, own_registry):
    fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    read_labels(walk, with_power=False)
    judgements = (walk.folder / 'qrels/test.tsv').read_bytes()

    def answer(body):
        n = body['messages'][-1]['content'].count('Passage-')
        grades = json.dumps({f'Passage-{i}': 'S' for i in range(n)})
        return {'choices': [{'message': {'content': grades}, 'finish_reason': 'stop'}], 'usage': {}}

    from medir_nb.generator import configure

    configure('smollm2', backend='openai', base_url=fake(answer=answer).url)
    table = judge_pairs(walk, ['smollm2', 'words'], how(walk)['home_folder']).set_index('judge')
    configure('smollm2')
    assert set(table.index) == {'smollm2', 'words≥0.5'} and (table.pairs + table.unread == len(read_pool(walk))).all()
    again = judge_pairs(walk, ['words'], how(walk)['home_folder'])
    assert len(again) == 2  # what the other said before stays
    read_labels(walk, with_power=False)
    assert (walk.folder / 'qrels/test.tsv').read_bytes() == judgements
    refused(lambda: judge_pairs(walk, ['smolm2']), "did you mean 'smollm2'?")


def test_power_before_and_after(walk):
    home = how(walk)['home_folder']
    assert walk_power(walk, 16, TWO, home).source == 'other collections'  # three synthetic queries say too little
    words = 'asthma sepsis stroke gout scurvy rickets measles mumps anthrax rabies tetanus'.split()
    write_lines(walk.path('corpus.jsonl'), [{'_id': w, 'title': '', 'text': f'{w} is a disease'} for w in words])
    rows = [{'_id': f's{w}', 'text': w, 'origin': 'synthetic', 'document': w} for w in words]
    write_lines(walk.path('queries.jsonl'), rows)
    write_lines(walk.path('qrels/synthetic.tsv'), ['query-id\tcorpus-id\tscore', *(f's{w}\t{w}\t1' for w in words)])
    # all systems do alike on every query: nothing follows for how much differences spread
    before = walk_power(walk, 16, TWO, home)
    assert before.source == 'other collections, since synthetic queries tell no two systems apart'
    assert before.spread == USUAL_SPREAD and repr(before).startswith(
        '16 labelled queries would show a difference of 0.1'
    )
    fill(write_sheet(walk, 'anna', **how(walk)), by_words)
    fill_all = lambda row: '2' if row['query'] in row['document'] else '0'
    path = walk.folder / 'labels/01-anna.csv'
    write_csv(path, COLUMNS, [{**row, 'grade': fill_all(row)} for row, _ in csv_rows(path)])
    labels = read_labels(walk, home_folder=home)
    assert 'labels and synthetic queries tell no two systems apart' in labels.power and labels.queries == len(words)
    assert labels.power.startswith(f'{len(words)} queries show a difference of 0.2')
    # two documents of a query change places between the systems
    rows = [{'_id': w, 'title': '', 'text': f'{w} is a disease'} for w in words]
    rows += [{'_id': f'{w}2', 'title': '', 'text': f'{w} {w} and much else that is said at length'} for w in words[:5]]
    write_lines(walk.path('corpus.jsonl'), rows)
    assert walk_power(walk, None, ['bm25', 'bm25(b=0,k1=3)'], home).source.endswith('that differ most on labels')


def test_before_the_first_label_power_speaks_of_queries_to_come(walk, medir):
    out = medir('label', walk.folder, '--annotator', 'anna', '--system', TWO[0], '--system', TWO[1], '--depth', 3)
    assert 'until now: 5 labelled queries are too few to show any difference' in out.out
    # whoever reads sheets without a grade is told the same
    power = read_labels(walk, home_folder=how(walk)['home_folder']).power
    assert power in out.out and power.startswith('with the sheets until now: 5 labelled queries are too few')


def test_before_the_first_sheet_nothing_is_said_of_power(walk):
    make_pool(walk, TWO, 3, home_folder=how(walk)['home_folder'])
    assert read_labels(walk, home_folder=how(walk)['home_folder']).power == ''


# ---------------------------------------------------------------- what changes while people label


def without_documents(walk, *gone):
    "The corpus of a later look, in which some documents are no more."
    path = walk.path('corpus.jsonl')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [row for row in rows if row['_id'] not in gone])


def test_a_document_that_is_gone_takes_its_grade_along_and_nothing_else(walk, medir, capfd):
    home = how(walk)['home_folder']
    fill(write_sheet(walk, 'anna', **how(walk)), lambda row: '1')
    fill(write_sheet(walk, 'ben', **how(walk)), lambda row: '0' if 'pain' in row['query'] else '1')
    before = read_labels(walk, home_folder=home)
    [(query, lost), *_] = [(row['query_id'], row['doc_id']) for row in read_pool(walk) if row['query_id'] == 'q1']
    others = sum(row['doc_id'] == lost for row in read_pool(walk))
    without_documents(walk, lost)
    after = read_labels(walk, with_power=False)
    assert after.votes == before.votes and after.unfinished == 0 and after.gone == others
    assert after.pairs == before.pairs - others and 'no longer there' in repr(after)
    capfd.readouterr()
    assert len(walk.task('test', home).qrels) == before.pairs - others
    assert 'qrels/test.tsv: 1 judged document is no longer there: its ' in capfd.readouterr().err
    walk.task('test', home)
    assert 'no longer there' not in capfd.readouterr().err  # once is enough
    out = medir('label', walk.folder, '--read', '--judge', 'words')
    assert out.code == 0 and 'judges beside people' in out.out
    out = medir('verdict', walk.folder, '--system', TWO[0], '--system', TWO[1], '--no-costs')
    assert out.code == 0 and f'{after.queries} labelled quer' in ' '.join(out.out.split())


def test_a_document_that_is_gone_is_not_handed_out(walk):
    [first, *_] = read_pool(walk) or make_pool(walk, TWO, 3, home_folder=how(walk)['home_folder'])
    without_documents(walk, first['doc_id'])
    assert first['pair'] not in {row['pair'] for row, _ in csv_rows(write_sheet(walk, 'anna', **how(walk)))}


def test_a_query_that_is_gone_is_no_fault(walk):
    fill(write_sheet(walk, 'anna', **how(walk)), lambda row: '1')
    queries = read_labels(walk, with_power=False).queries
    rows = [json.loads(line) for line in walk.path('queries.jsonl').read_text().splitlines()]
    write_lines(walk.path('queries.jsonl'), [row for row in rows if row['_id'] != 'q1'])
    after = read_labels(walk, with_power=False)
    assert after.queries == queries - 1 and after.gone > 0 and after.unfinished == 0
    assert walk.task('test', how(walk)['home_folder']).qrels.query_id.nunique() == queries - 1


def test_grades_that_are_all_taken_back_decide_nothing(walk, capfd):
    path = fill(write_sheet(walk, 'anna', **how(walk)), lambda row: '1')
    judgements = walk.folder / 'qrels/test.tsv'
    assert read_labels(walk, with_power=False).queries == len(QUERIES) and judgements.is_file()
    rows = [row for row, _ in csv_rows(path)]
    write_csv(path, COLUMNS, [{**row, 'grade': ''} for row in rows])
    after = read_labels(walk, with_power=False)
    assert after.votes == 0 and not judgements.exists() and 'is removed' in capfd.readouterr().err
    assert json.loads((walk.folder / 'labels/labels.json').read_text())['votes'] == 0
    fill(path, lambda row: '1')
    assert read_labels(walk, with_power=False).queries == len(QUERIES) and judgements.is_file()
    # one grade is left, of a query with more: nothing is finished, and the judgements of before go, too
    asked = [row['query'] for row in rows]
    kept = next(i for i, row in enumerate(rows) if asked.count(row['query']) > 1)
    write_csv(path, COLUMNS, [row | {'grade': '2' if i == kept else ''} for i, row in enumerate(rows)])
    unfinished = read_labels(walk, with_power=False)
    assert unfinished.votes == 1 and not judgements.exists()


def test_judgements_of_somebody_else_stay_where_nobody_labelled(walk):
    write_lines(walk.path('qrels/test.tsv'), ['query-id\tcorpus-id\tscore', 'q1\td02\t1'])
    write_sheet(walk, 'anna', **how(walk))
    assert read_labels(walk, with_power=False).votes == 0 and (walk.folder / 'qrels/test.tsv').is_file()


@pytest.mark.parametrize('torn', [b'', b'\xef\xbb\xbf', b'\r\n', b'pair,query,document,grade,comment\r\n'])
def test_a_sheet_that_a_save_left_empty_wipes_no_vote(walk, torn):
    path = fill(write_sheet(walk, 'anna', **how(walk)), lambda row: '1')
    read_labels(walk, with_power=False)
    votes, judgements = read_votes(walk), (walk.folder / 'qrels/test.tsv').read_bytes()
    path.write_bytes(torn)
    refused(lambda: read_labels(walk, with_power=False), path.name, 'the sheet is empty', 'save it again')
    assert read_votes(walk).equals(votes) and (walk.folder / 'qrels/test.tsv').read_bytes() == judgements
    # handed out again, it has what was read of it
    path.unlink()
    refused(lambda: write_sheet(walk, 'anna', **how(walk)), 'nothing is left to label')
    assert read_labels(walk, with_power=False).votes == len(votes)


@pytest.mark.parametrize('torn', ['', '[{"file": "01-', '{}', '[{"file": "01-anna.csv"}]'])
def test_a_torn_list_of_sheets_is_said(walk, torn):
    fill(write_sheet(walk, 'anna', **how(walk)), lambda row: '1')
    (walk.folder / 'labels/sheets.json').write_text(torn)
    for call in (lambda: read_labels(walk, with_power=False), lambda: write_sheet(walk, 'ben', **how(walk))):
        refused(call, 'sheets.json', 'list of sheets', 'bring a copy of the file back')


def test_nothing_relevant_is_no_dead_end(walk, medir):
    "All grades are 0: every command says what to do, and a deeper pool leads on."
    systems, labels = ['--system', TWO[0], '--system', TWO[1]], [walk.folder / 'labels/01-anna.csv']
    assert medir('label', walk.folder, '--annotator', 'anna', *systems).code == 0
    n = len(csv_rows(fill(labels[0], lambda row: '0')))
    out = medir('label', walk.folder, '--read')
    assert f'next: nothing relevant among {n} pairs: label more queries (medir label ' in out.out
    assert '--depth 3)' in out.out and 'fill in the sheets' not in out.out
    out = medir('verdict', walk.folder, *systems)
    assert out.code == 2 and f'nothing relevant among {n} judged pairs' in out.err and 'columns' not in out.err
    with pytest.raises(NothingRelevant, match='pool deeper'):
        walk.task('test')
    out = medir('label', walk.folder, '--annotator', 'anna')
    assert out.code == 2 and 'nothing is left to label for anna' in out.err and '--depth N' in out.err
    out = medir('label', walk.folder, '--annotator', 'anna', '--depth', 3)
    assert out.code == 0 and '02-anna.csv' in out.out and 'what was labelled stays' in out.err
    fill(walk.folder / 'labels/02-anna.csv', lambda row: '1')
    out = medir('label', walk.folder, '--read')
    # a query that the deeper pool brings nothing to stays without
    assert f'judged: {len(read_pool(walk)) - 1} pairs of 4 queries' in out.out
    assert medir('verdict', walk.folder, *systems, '--no-costs').code == 0


def test_synthetic_queries_decide_where_people_found_nothing(walk, medir):
    source = {'q3': 'd11', 'q4': 'd05', 'q5': 'd10'}
    lines = [f'{query}\t{document}\t1' for query, document in source.items()]
    write_lines(walk.path('qrels/synthetic.tsv'), ['query-id\tcorpus-id\tscore', *lines])
    fill(write_sheet(walk, 'anna', **how(walk, depth=1)), lambda row: '0')
    read_labels(walk, with_power=False)
    out = medir('verdict', walk.folder, '--system', TWO[0], '--system', TWO[1], '--no-costs')
    assert out.code == 0 and 'nothing relevant among' in out.err and 'No label of people counts here' in out.out


def test_a_query_in_conflict_is_not_said_to_have_nothing_relevant(walk, medir):
    "Anna found what ben did not: nobody knows yet whether anything is relevant."
    fill(write_sheet(walk, 'anna', **how(walk, depth=1)), lambda row: '2')
    fill(write_sheet(walk, 'ben', **how(walk, depth=1)), lambda row: '0')
    labels = read_labels(walk, with_power=False)
    assert labels.open_conflicts == len(read_pool(walk)) and labels.nothing_relevant == labels.queries == 0
    out = medir('label', walk.folder, '--read')
    assert 'next: settle the conflicts in' in out.out and 'nothing was relevant' not in out.out


# ---------------------------------------------------------------- a pool that grows


def test_a_system_joins_the_pool_after_labelling_began(walk, fake_minilm):
    sheet = fill(write_sheet(walk, 'anna', **how(walk, depth=1)), by_words)
    before, filled, first = read_labels(walk, with_power=False), sheet.read_bytes(), read_pool(walk)
    second = write_sheet(walk, 'anna', **how(walk, systems=['minilm'], depth=1))
    pool = read_pool(walk)
    assert pool_settings(walk)[0] == [*TWO, 'minilm'] and sheet.read_bytes() == filled
    assert {row['pair'] for row in first} < {row['pair'] for row in pool}
    assert all('minilm' in ranks for ranks in (row['brought'] for row in pool if row.get('joined')))
    # the new pairs alone are handed out, and nothing on the sheet says who brought them
    joined = {row['pair'] for row in pool} - {row['pair'] for row in first}
    assert {row['pair'] for row, _ in csv_rows(second)} == joined and 'minilm' not in second.read_text()
    # until somebody begins with them, what was said counts
    waiting = read_labels(walk, with_power=False)
    assert (waiting.queries, waiting.votes) == (before.queries, before.votes) and waiting.joined == len(joined)
    fill(second, lambda row: '2')
    after = read_labels(walk, with_power=False)
    assert after.votes == before.votes + len(joined) and after.joined == after.unfinished == 0
    # another person gets all of it on one sheet, in an order that is drawn
    whole = [row['pair'] for row, _ in csv_rows(write_sheet(walk, 'ben', **how(walk, depth=1)))]
    assert set(whole) == {row['pair'] for row in pool} and set(whole[-len(joined) :]) != joined


def test_a_joined_query_waits_once_it_is_begun(walk):
    fill(write_sheet(walk, 'anna', **how(walk, depth=1)), lambda row: '1')
    path = write_sheet(walk, 'anna', **how(walk, depth=3))
    rows = [row for row, _ in csv_rows(path)]
    write_csv(path, COLUMNS, [rows[0] | {'grade': '1'}, *rows[1:]])
    labels = read_labels(walk, with_power=False)
    assert labels.unfinished == 1 and labels.queries == len(QUERIES) - 1


def test_joined_pairs_stand_among_new_queries(walk):
    fill(write_sheet(walk, 'anna', **how(walk, depth=1)), lambda row: '1')
    more = [
        {'_id': f'n{i}', 'text': text, 'origin': 'log'}
        for i, text in enumerate(['heart attack pain', 'first drug for asthma'])
    ]
    rows = [json.loads(line) for line in walk.path('queries.jsonl').read_text().splitlines()]
    write_lines(walk.path('queries.jsonl'), rows + more)
    on_sheet = [row['pair'] for row, _ in csv_rows(write_sheet(walk, 'anna', **how(walk, depth=3)))]
    by_pair = {row['pair']: row for row in read_pool(walk)}
    has_joined = [bool(by_pair[pair].get('joined')) for pair in on_sheet]
    assert any(has_joined) and not all(has_joined)
    assert has_joined not in (sorted(has_joined), sorted(has_joined, reverse=True))


def test_a_pool_whose_growth_was_cut_short_grows_again(walk, monkeypatch):
    write_sheet(walk, 'anna', **how(walk, depth=1))
    module, before = sys.modules['medir_nb.walk.pooling'], (walk.folder / 'labels/pool.json').read_bytes()
    real = module.write_json

    def killed(path, value):
        raise KeyboardInterrupt if path.name == 'pool.json' else real(path, value)

    monkeypatch.setattr(module, 'write_json', killed)
    with pytest.raises(KeyboardInterrupt):
        make_pool(walk, TWO, 3, home_folder=how(walk)['home_folder'])
    monkeypatch.undo()
    assert (walk.folder / 'labels/pool.json').read_bytes() == before
    grown = make_pool(walk, TWO, 3, home_folder=how(walk)['home_folder'])
    assert grown == read_pool(walk) and len({row['pair'] for row in grown}) == len(grown)
    assert pool_settings(walk)[1] == 3


# ---------------------------------------------------------------- where there is no κ


def test_one_grade_for_all_is_said_instead_of_a_number(walk, medir):
    for name in ('anna', 'ben'):
        fill(write_sheet(walk, name, **how(walk)), lambda row: '1')
    same = read_labels(walk, with_power=False)
    assert 'κ is undefined: both always gave the same grade' in repr(same) and 'nan' not in repr(same)
    judge_pairs(walk, ['words'], how(walk)['home_folder'])
    table = judge_table(walk)
    assert table.one_grade[0] == 'people' and table[['kappa', 'low', 'high']].isna().all(axis=None)
    out = medir('label', walk.folder, '--read', '--wide')
    assert 'words≥0.5: κ says nothing: people gave one grade to every pair' in out.out and '| one_grade' not in out.out
    path = walk.folder / 'labels/01-ben.csv'
    rows = [row for row, _ in csv_rows(path)]
    write_csv(path, COLUMNS, [{**row, 'grade': str(i % 3)} for i, row in enumerate(rows)])
    assert 'κ says nothing: anna gave one grade to every pair' in repr(read_labels(walk, with_power=False))


def test_a_single_query_has_a_kappa_without_an_interval():
    rows = [
        ('q', f'd{i}', name, grade) for name, grades in (('a', '0120'), ('b', '0121')) for i, grade in enumerate(grades)
    ]
    votes = pd.DataFrame(rows, columns=['query_id', 'doc_id', 'annotator', 'grade']).astype({'grade': int})
    said = repr(Labels(agreement=kappa_table(votes).to_dict('records')))
    assert 'κ 0.6' in said and 'nan' not in said


# ---------------------------------------------------------------- sittings


def test_a_sitting_saves_each_grade_and_goes_on(walk):
    sitting = Sitting.open(walk, 'anna', **how(walk))
    first = sitting.current['pair']
    sitting.grade('2')
    assert Sitting(sitting.path).done == 1 and sitting.current['pair'] != first
    sitting.grade('', 'not in English')
    sitting.undo()
    sitting.undo()
    sitting.undo()  # nothing is left to take back
    assert sitting.done == 0 and sitting.current['pair'] == first
    refused(lambda: sitting.grade('3'), "the grade '3'")
    while sitting.current:
        sitting.grade('1')
    assert sitting.done == len(sitting.rows) == len(read_pool(walk))
    refused(lambda: sitting.grade('1'), 'every pair has a grade')
    assert read_labels(walk, with_power=False).votes == sitting.done


def test_a_sitting_goes_on_in_a_spreadsheet_and_back(walk):
    sitting = Sitting.open(walk, 'anna', **how(walk))
    sitting.grade('2')
    rows = [row for row, _ in csv_rows(sitting.path)]
    write_csv(sitting.path, COLUMNS, rows[:1] + [{**rows[1], 'grade': '0'}] + rows[2:])
    assert Sitting.open(walk, 'anna', **how(walk)).current['pair'] == rows[2]['pair']
    write_csv(sitting.path, COLUMNS, [{**row, 'grade': 'x'} for row in rows])
    refused(lambda: Sitting.open(walk, 'anna', **how(walk)), "the grade 'x'")


def test_by_keyboard(walk):
    answers, shown = iter(['9', '1', 'u', '2', '? cut off', '?', 'q']), []
    sitting = grade_by_keyboard(Sitting.open(walk, 'anna', **how(walk)), lambda _: next(answers), shown.append)
    assert sitting.done == 2 and [row['grade'] for row in sitting.rows[:2]] == ['2', '']
    assert sitting.rows[1]['comment'] == 'cut off'
    assert shown[-1] == f'2 of {len(sitting.rows)} pairs done, all of it is saved; the same line goes on'

    def gone(_):
        raise EOFError

    assert grade_by_keyboard(Sitting(sitting.path), gone, shown.append).done == 2
    grade_by_keyboard(Sitting(sitting.path), lambda _: '0', shown.append)
    assert shown[-1] == f'This sheet is done. Then: medir label {walk.folder} --read'


def test_the_widget_says_how_to_get_what_it_needs(walk, monkeypatch):
    monkeypatch.setitem(sys.modules, 'ipywidgets', None)
    refused(lambda: label_widget(walk, 'anna', **how(walk)), 'pip install "medir_nb[label]"')


def test_the_buttons_of_the_real_widget_fill_a_sheet(walk):
    pytest.importorskip('ipywidgets', reason='ipywidgets is not installed (the extra label)')
    shown, buttons, comment = label_widget(walk, 'anna', **how(walk)).children
    click = {button.description: button.click for button in buttons.children}
    path = walk.folder / 'labels/01-anna.csv'
    first = Sitting(path).current
    assert html.escape(first['query']) in shown.value and '0 of ' in shown.value
    click['no grade']()
    assert 'comment' in shown.value and Sitting(path).done == 0
    comment.value = 'two languages'
    click['no grade']()
    click['1 helps']()
    click['undo']()
    click['2 answers']()
    rows = [row for row, _ in csv_rows(path)]
    assert [(row['grade'], row['comment']) for row in rows[:3]] == [('', 'two languages'), ('2', ''), ('', '')]
    while Sitting(path).current:
        click['0 does not help']()
    assert 'medir label' in shown.value and '--read' in shown.value
    assert read_labels(walk, with_power=False).votes == len(rows) - 1


_IN_A_NOTEBOOK = """
import os
from medir_nb.core.console import progress
from medir_nb.walk import Walk
from medir_nb.walk.sitting import label_widget
with progress(total=2, desc='slow') as bar:
    bar.delay = 0
    bar.update(1)
    bar.refresh()
label_widget(Walk.open({folder!r}), 'anna', systems={systems!r}, home_folder={home!r})
"""


@pytest.mark.medium
def test_in_a_notebook_the_widget_is_shown_and_bars_are_a_text_that_ends_empty(walk, home, monkeypatch):
    pytest.importorskip('ipywidgets', reason='ipywidgets is not installed (the extra label)')
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv('MEDIR_PROGRESS', '1')
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join(filter(None, sys.path)))
    code = _IN_A_NOTEBOOK.format(folder=str(walk.folder), systems=TWO, home=str(home))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    outputs = NotebookClient(notebook, timeout=300, kernel_name='python3').execute().cells[0].outputs
    widgets = [one for one in outputs if 'application/vnd.jupyter.widget-view+json' in one.get('data', {})]
    written = ''.join(one.text for one in outputs if one.output_type == 'stream')
    bars = [one.data for one in outputs if one.output_type == 'display_data' and one not in widgets]
    assert len(widgets) == 1 and bars == [{'text/plain': ''}]
    assert 'slow' not in written and 'Warning' not in written


def test_the_widgets_buttons_grade_and_undo(walk, monkeypatch):
    "With a stand-in for ipywidgets that has what the widget uses."
    import types

    class Part:
        def __init__(self, children=(), **fields):
            self.children, self.value = children, ''
            self.__dict__.update(fields)

        def on_click(self, call):
            self.call = call

        def click(self):
            self.call(self)

    monkeypatch.setitem(
        sys.modules, 'ipywidgets', types.SimpleNamespace(HTML=Part, Text=Part, Button=Part, HBox=Part, VBox=Part)
    )
    shown, buttons, comment = label_widget(walk, 'anna', **how(walk)).children
    click = {button.description: button.click for button in buttons.children}
    path = walk.folder / 'labels/01-anna.csv'
    click['2 answers']()
    click['no grade']()  # without a word why: it asks for one
    assert Sitting(path).done == 1 and '1 of ' in shown.value
    comment.value = 'two languages'
    click['no grade']()
    click['undo']()
    assert Sitting(path).done == 1 and comment.value == ''
    for _ in range(len(csv_rows(path)) + 2):
        click['0 does not help']()
    assert Sitting(path).done == len(csv_rows(path)) and 'done' in shown.value


# ---------------------------------------------------------------- the command


def test_the_command_from_a_sheet_to_a_table(walk, medir):
    systems = ['--system', TWO[0], '--system', TWO[1], '--depth', 3]
    out = medir('label', walk.folder, '--annotator', 'anna', *systems)
    path = walk.folder / 'labels/01-anna.csv'
    assert out.code == 0 and str(path) in out.out and 'pairs to grade' in out.out
    fill(path, by_words)
    assert medir('label', walk.folder, '--annotator', 'ben').code == 0  # the pool's own systems and depth
    fill(walk.folder / 'labels/01-ben.csv', lambda row: '1')
    out = medir('label', walk.folder, '--read', '--judge', 'words', '--wide')
    assert out.code == 0 and 'anna and ben agree on' in out.out and 'judges beside people' in out.out
    assert 'conflicts; write the grade you settle on' in out.out and 'drug after a heart attack' in out.out
    assert f'without these queries: medir verdict {walk.folder}' in out.out


def test_the_command_says_what_is_missing(walk, medir, tmp_path):
    out = medir('label', tmp_path, '--annotator', 'anna')
    assert out.code == 2 and 'this folder holds no walk' in out.err and out.err.count('\n') == 1
    out = medir('label', walk.folder, '--ask')
    assert out.code == 2 and 'give --annotator NAME' in out.err
    out = medir('label', walk.folder)
    assert out.code == 0 and '0 grades (nobody yet)' in out.out
    assert f'next: medir label {walk.folder} --annotator NAME hands out a sheet' in out.out
    medir('label', walk.folder, '--annotator', 'anna', '--system', TWO[0])
    assert f'next: fill in the sheets in {walk.folder}/labels' in medir('label', walk.folder, '--read').out


@pytest.mark.medium
def test_kills_lose_no_grade(walk, tmp_path):
    "A process that grades is killed at random moments; the sheet is always whole, and every grade that was said is in it."
    path = write_sheet(walk, 'anna', **how(walk))
    script = (
        'import sys, time\nfrom medir_nb.walk.sitting import Sitting\ns = Sitting(sys.argv[1])\n'
        'print("ready", flush=True)\n'
        'while s.current:\n    s.grade("1"); print(s.done, flush=True); time.sleep(0.005)\n'
    )
    rng, n = np.random.default_rng(3), len(csv_rows(path))
    for _ in range(3):
        worker = subprocess.Popen(
            [sys.executable, '-c', script, path], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        assert worker.stdout.readline() == 'ready\n'
        time.sleep(float(rng.uniform(0.005, 0.05)))
        worker.send_signal(signal.SIGKILL)
        said = [int(line) for line in worker.stdout.read().split()]
        worker.wait()
        rows = csv_rows(path)
        assert len(rows) == n and all(row['grade'] in ('', '1') for row, _ in rows)
        assert len(read_sheet(path, sheet_records(walk)[0]['pairs'])) >= max(said, default=0)
