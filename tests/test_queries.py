"""Queries for documents: sampled, asked, checked, sent round, measured; logs; calls that repeat, add, are stopped or refused."""

import json, os, random, re, signal, subprocess, sys, time
import numpy as np, pytest
from conftest import DOCUMENTS, write_lines
from medir_nb.core import MedirError, registry
from medir_nb.generator import configure, llm
from medir_nb.generator.methods import wording
from medir_nb.generator.toy import ToyServer
from medir_nb.walk import (
    Walk,
    add_log,
    log_queries,
    query_fault,
    read_queries,
    read_report,
    sample_documents,
    walk_corpus,
)
from medir_nb.walk import write_queries
from medir_nb.walk.queries import QueryReport, round_trip, style_table
from medir_nb.walk.usable import drawn_stretch
from medir_nb.walk.usable import STYLES, first_line

NOUN = {
    'd01': 'statins', 'd02': 'metoprolol', 'd03': 'metformin', 'd04': 'insulin', 'd05': 'salbutamol', 'd06': 'influenza',
    'd07': 'triptans', 'd08': 'anaemia', 'd09': 'fracture', 'd10': 'appendicitis', 'd11': 'levothyroxine',
}  # fmt: skip


@pytest.fixture
def walk(tmp_path):
    walk = Walk.begin(tmp_path / 'W', name='W', documents='notes', language='en')
    write_lines(walk.path('corpus.jsonl'), [{'_id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS if b])
    return walk


def noun_in(prompt):
    text = prompt.split('Text: ')[1].lower()
    return next(noun for noun in NOUN.values() if noun in text)


def good(messages):
    "A usable answer in every style."
    prompt = messages[-1]['content']
    noun = noun_in(prompt)
    if 'search box' in prompt:
        return f'{noun} use'
    if 'clinician' in prompt:
        return f'Which evidence supports {noun}?'
    return f'Many doctors rely on {noun}.' if 'states something' in prompt else f'why was I told of {noun}?'


@pytest.fixture
def writer():
    "`writer(function)` puts a server behind `smollm2`; its `asked` counts."
    servers = []

    def start(function=good, **options):
        servers.append(ToyServer(function))
        configure('smollm2', backend='openai', base_url=servers[-1].url, **options)
        return servers[-1]

    yield start
    configure('smollm2')
    for server in servers:
        server.close()


def how(**more):
    return {'retriever': 'bm25', **more}


def refused(call, *said):
    with pytest.raises(MedirError) as e:
        call()
    assert '\n' not in str(e.value) and all(part in str(e.value) for part in said), str(e.value)


def files(walk):
    "What a walk holds, but for the record of when each step began."
    paths = [path for path in walk.folder.rglob('*') if path.suffix in ('.jsonl', '.json', '.tsv')]
    return {path.name: path.read_bytes() for path in paths if path.name != 'steps.jsonl'}


# ---------------------------------------------------------------- prompts


@pytest.mark.parametrize('language', ['en', 'zh'])
def test_every_style_has_its_wording_in_both_languages(language):
    prompts = {style: wording('walk-query', None, language, style, '', 'prompt') for style in STYLES}
    assert len(set(prompts.values())) == len(STYLES) == 4 and all('{document}' in prompt for prompt in prompts.values())
    assert set(registry('methods')['walk-query']['wording'][language]) == set(STYLES)


# ---------------------------------------------------------------- samples


def make_walk(tmp_path, texts):
    walk = Walk.begin(tmp_path / 'S', name='S', documents='x')
    write_lines(walk.path('corpus.jsonl'), [{'_id': f'd{i:03}', 'title': '', 'text': t} for i, t in enumerate(texts)])
    return walk


def test_samples_are_seeded_nested_and_from_all_lengths(tmp_path):
    rng = random.Random(3)
    words = [f'w{i:03}' for i in range(500)]
    texts = [' '.join(rng.choices(words, k=5 + i)) for i in range(80)]
    corpus = walk_corpus(make_walk(tmp_path, texts))
    taken = sample_documents(corpus, 20, 1)
    assert taken == sample_documents(corpus, 40, 1)[:20] != sample_documents(corpus, 20, 2)
    quarters = np.bincount([i // 20 for i in taken], minlength=4)
    assert (quarters == 5).all() and len(set(taken)) == 20
    assert sorted(sample_documents(corpus, 1000, 1)) == list(range(80))


def test_what_says_the_same_is_sampled_once(tmp_path):
    base = ' '.join(f'w{i}' for i in range(60))
    corpus = walk_corpus(make_walk(tmp_path, [base, base, base.replace('w59', 'other'), 'another text altogether']))
    assert len(sample_documents(corpus, 10)) == 2


def test_of_a_long_document_different_places_are_read():
    text = ' '.join(f'Number {i} is a sentence of a guideline.' for i in range(400))
    read = {drawn_stretch(text, seed) for seed in range(30)}
    assert len(read) > 20 and all(part in text and 450 <= len(part) <= 1000 for part in read)
    assert drawn_stretch('short', 1) == 'short'


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ('answer', 'query'),
    [
        ('"why am I pale?"', 'why am I pale?'),
        ('Question: why am I pale?\nAnswer: iron', 'why am I pale?'),
        ('\n\n1. why am I pale?\n2. who is', 'why am I pale?'),
        ('**why am I pale?**', 'why am I pale?'),
        ('问题：为什么面色苍白？', '为什么面色苍白？'),
        ('', ''),
    ],
)
def test_the_query_in_an_answer(answer, query):
    assert first_line(answer) == query


@pytest.mark.parametrize(
    ('text', 'style', 'faults', 'reason'),
    [
        ('why am I so pale', 'lay', [], ''),
        ('anaemia', 'keyword', [], ''),
        ('', 'lay', ['empty'], 'empty'),
        ('?!', 'keyword', [], 'empty'),
        ('Which words would somebody', 'lay', ['repeats the prompt'], 'repeats the prompt'),
        ('为什么我的脸色这么苍白呢', 'lay', ['wrong language'], 'in another language'),
        ('I cannot answer that', 'lay', [], 'a comment of the model'),
        ('The clinician wants to know about iron', 'clinical', [], 'a comment of the model'),
        ('what does this passage say on iron', 'lay', [], 'points to the text'),
        ('本文讲了什么内容呢', 'lay', [], 'points to the text'),
        ('Iron and BLOOD!', 'lay', [], 'repeats the title'),
        ('one two three four five six seven eight nine ten eleven', 'keyword', [], 'too long'),
        ('why do people who', 'lay', ['cut off'], 'too long'),
        ('iron why', 'clinical', [], 'no question'),
        ('lack of iron is the commonest cause', 'statement', [], 'copied from the document'),
        ('lack of iron', 'lay', [], ''),
        ('why am I so pale', 'lay', ['prompt shortened'], ''),
    ],
)
def test_faults_by_hand(text, style, faults, reason):
    document = 'Iron and blood. Lack of iron is the commonest cause of anaemia.'
    assert query_fault(text, style, faults, text, 'Iron and blood', document) == reason


# ---------------------------------------------------------------- writing


def test_queries_judgements_and_report(walk, writer):
    server = writer()
    report = write_queries(walk, **how())
    assert llm('smollm2')._backend is None  # what comes next has its memory
    rows = read_queries(walk)
    assert report.written == len(rows) == 44 == server.asked and {row['style'] for row in rows} == set(STYLES)
    assert all(row['origin'] == 'synthetic' and row['model'] == 'smollm2' and 0 <= row['overlap'] <= 1 for row in rows)
    assert len({row['_id'] for row in rows}) == 44
    task = walk.task('synthetic')
    assert len(task.qrels) == 44 and (task.qrels.relevance == 1).all()
    own = {row['_id']: row['document'] for row in rows}
    assert dict(zip(task.qrels.query_id, task.qrels.doc_id, strict=True)) == own
    by_style = {row['style']: row for row in report.styles}
    assert by_style['keyword']['overlap'] == 0.5 and by_style['keyword']['bm25'] > 0.9
    assert 'stand in their document' in repr(report) and 'favours BM25' in repr(report)
    assert (
        repr(report).startswith('44 queries written by a language model\n') and repr(QueryReport()) == 'no queries yet'
    )
    json.loads((walk.folder / 'queries.json').read_text(), parse_constant=pytest.fail)


def test_the_same_call_again_does_nothing(walk, writer):
    server = writer()
    write_queries(walk, **how(styles=['lay']))
    before, asked = files(walk), server.asked
    write_queries(walk, **how(styles=['lay']))
    assert files(walk) == before and server.asked == asked == 11


def test_what_does_not_fit_into_the_minutes_is_written_by_the_next_call(walk, writer):
    server = writer()
    settings = how(styles=['keyword', 'lay'], sample=8)
    part = write_queries(walk, minutes=1e-9, **settings)
    assert server.asked == 2 and {row['document'] for row in read_queries(walk)} < set(NOUN)  # one document, whole
    assert '2 asked for' in repr(part) and '7 documents were left when the minutes were used' in repr(part)
    first = read_queries(walk)
    whole = write_queries(walk, minutes=60, **settings)
    # one call in two sittings: its line counts both, and asks for nothing more
    [line] = [line for line in repr(whole).splitlines() if line.startswith('smollm2: ')]
    assert server.asked == 16 and '16 asked for' in line and '16 added' in line and 'were left' not in line
    assert read_queries(walk)[: len(first)] == first and len({row['_id'] for row in read_queries(walk)}) == 16
    write_queries(walk, minutes=60, **settings)
    assert server.asked == 16


def test_minutes_end_within_a_group_whose_pace_nobody_knew(walk, writer, monkeypatch):
    "What was asked before takes no time, so the next group is large; it ends behind the style in which time runs out."
    from types import SimpleNamespace
    from medir_nb.walk import queries

    server, clock, ask = writer(), [0.0], queries.ask_about

    def slow(*asked):
        before, answers = server.asked, ask(*asked)
        clock[0] += 40 * (server.asked > before)
        return answers

    monkeypatch.setattr(queries, 'ask_about', slow)
    monkeypatch.setattr(queries, 'time', SimpleNamespace(perf_counter=lambda: clock[0]))
    settings = how(styles=['keyword', 'lay'], sample=11)
    write_queries(walk, minutes=1e-9, **settings)
    assert server.asked == 2
    part = write_queries(walk, minutes=0.5, **settings)
    assert server.asked == 10 and 'were left when the minutes were used' in repr(part)
    whole = write_queries(walk, **settings)
    assert server.asked == 22 and 'were left' not in repr(whole)
    assert len({row['_id'] for row in read_queries(walk)}) == len(read_queries(walk)) == whole.written


def test_a_model_that_takes_long_to_load_has_its_own_pace(walk, writer, monkeypatch):
    "Loading comes before the first answer, and says nothing of how many documents fit into what is left."
    from types import SimpleNamespace
    from medir_nb.walk import queries

    server, clock, ask = writer(), [0.0], queries.ask_about

    def slow(*asked):
        before, answers = server.asked, ask(*asked)
        clock[0] += 150 * (before == 0 < server.asked) + 10 * (server.asked - before)
        return answers

    monkeypatch.setattr(queries, 'ask_about', slow)
    monkeypatch.setattr(queries, 'time', SimpleNamespace(perf_counter=lambda: clock[0]))
    write_queries(walk, minutes=4, **how(styles=['keyword', 'lay'], sample=11))
    # 170 s for the first document, 70 s are left: three more at 20 s
    assert server.asked == 8 and clock[0] == 230
    # four documents are there; the group behind them has no known pace, and is cut where its second style begins
    server.asked, clock[0] = 0, 0.0
    part = write_queries(walk, minutes=4.5, **how(styles=['keyword', 'lay'], sample=11))
    assert server.asked > 5 and clock[0] <= 270 and 'were left' in repr(part)


def test_another_style_a_larger_sample_and_a_log_add(walk, writer, tmp_path):
    server = writer()
    write_queries(walk, **how(styles=['lay'], sample=4))
    first = read_queries(walk)
    assert len(first) == 4
    write_queries(walk, **how(styles=['lay'], sample=8))
    assert read_queries(walk)[:4] == first and len(read_queries(walk)) == 8 and server.asked == 8
    write_queries(walk, **how(styles=['keyword'], sample=4))
    write_lines(tmp_path / 'log.txt', ['is metformin dangerous'])
    report = add_log(walk, tmp_path / 'log.txt')
    rows = read_queries(walk)
    assert len(rows) == 13 and rows[:4] == first and report.logged == 1 and len(report.calls) == 4
    assert len(walk.task('synthetic').queries) == 12  # a log has no judgements of a model


def test_what_is_dropped_is_counted_by_reason(walk, writer):
    def answers(messages):
        prompt = messages[-1]['content']
        noun = noun_in(prompt)
        return {
            'statins': 'Sure! Here it is',
            'metoprolol': '',
            'metformin': 'What does the text say?',
            'insulin': 'why was I told of salbutamol?',  # also the next one's, and of another document
            'salbutamol': 'why was I told of salbutamol?',
        }.get(noun, good(messages))

    writer(answers)
    report = write_queries(walk, **how(styles=['lay'], first=1))
    [call] = report.calls
    assert call['faults'] == {
        'lay': {
            'usable': 7,
            'a comment of the model': 1,
            'empty': 1,
            'points to the text': 1,
            'repeats another query': 1,
        }
    }
    assert sum(call['faults']['lay'].values()) == 11 and call['added'] == call['found'] <= 7
    assert '1 points to the text' in repr(report) and '1 repeats another query' in repr(report)


def test_a_query_of_another_document_does_not_come_back(walk):
    corpus = walk_corpus(walk)
    row = {'text': 'influenza vaccination in autumn', 'origin': 'synthetic', 'style': 'lay'}
    rows = [{**row, '_id': 'right', 'document': 'd06'}, {**row, '_id': 'wrong', 'document': 'd09'}]
    assert [row['_id'] for row in round_trip(walk, rows, corpus, 'bm25', 1)] == ['right']
    assert round_trip(walk, [], corpus, 'bm25') == []


def test_weak_queries_are_refused_and_nothing_is_written(walk, writer):
    server = writer(lambda messages: f'who is number {len(messages[-1]["content"])} today')
    call = lambda **more: write_queries(walk, **how(styles=['lay'], most_repeated=1.0, **more))
    refused(call, 'find their document among the first 3 of bm25', 'stronger model with --llm', '--least')
    assert not (walk.folder / 'queries.jsonl').exists() and not (walk.folder / 'qrels/synthetic.tsv').exists()
    asked = server.asked
    assert call(least=0.0).calls and server.asked == asked  # taken on the reader's word, from the cassette


def test_a_model_that_repeats_itself_is_stopped_early(tmp_path, writer):
    walk = make_walk(tmp_path, [f'{noun} helps number {i}' for i, noun in enumerate(list(NOUN.values()) * 6)])
    server = writer(lambda messages: 'why am I always so tired?')
    refused(lambda: write_queries(walk, **how(styles=['lay'], sample=66)), 'repeat', 'stronger model')
    assert server.asked < 40


def test_refusals(walk, writer):
    writer()
    refused(lambda: write_queries(walk, **how(styles=['layy'])), "unknown style 'layy'", "did you mean 'lay'?")
    refused(lambda: write_queries(walk, **how(sample=0)), '0 documents')
    refused(lambda: write_queries(walk, **how(retriever='bm26')), 'bm26')
    refused(lambda: write_queries(walk, 'smolm2', **how()), 'smolm2')
    (walk.folder / 'corpus.jsonl').unlink()
    refused(lambda: write_queries(walk, **how()), 'corpus.jsonl is not there yet', 'medir look FOLDER makes it')


def test_nobody_is_asked_in_a_replay(walk, writer):
    server = writer()
    refused(lambda: write_queries(walk, **how(replay=True)), 'the cassette lacks')
    write_queries(walk, **how(styles=['lay']))
    asked = server.asked
    for path in ('queries.jsonl', 'queries.json'):
        (walk.folder / path).unlink()
    assert write_queries(walk, **how(styles=['lay'], replay=True)).written == 11 and server.asked == asked


def test_several_queries_a_document(walk, writer):
    drawn = iter(range(1000))
    writer(lambda messages: f'why was I told of {noun_in(messages[-1]["content"])} {next(drawn)} times?')
    report = write_queries(walk, **how(styles=['lay'], per_style=3))
    rows = read_queries(walk)
    assert report.written == 33 and {row['number'] for row in rows} == {0, 1, 2}


def test_a_smaller_overlap_and_a_table_by_style(walk):
    rows = [
        {
            '_id': 'a',
            'text': 'metformin glucose',
            'origin': 'synthetic',
            'style': 'keyword',
            'document': 'd03',
            'overlap': 1.0,
        },
        {'_id': 'b', 'text': 'sugar tablets', 'origin': 'synthetic', 'style': 'lay', 'document': 'd03', 'overlap': 0.0},
    ]
    write_lines(walk.path('queries.jsonl'), rows)
    table = style_table(walk, ['bm25']).set_index('style')
    assert table.bm25.to_dict() == {'keyword': 1.0, 'lay': 0.0} and table.overlap.to_dict() == {
        'keyword': 1.0,
        'lay': 0.0,
    }


# ---------------------------------------------------------------- logs


def test_logs_of_every_kind(tmp_path):
    texts = ['why am I pale', 'Why am I PALE?', '', 'swollen toe']
    (tmp_path / 'a.txt').write_text('\ufeff' + '\r\n'.join(texts), encoding='utf-8')
    (tmp_path / 'b.csv').write_text('day;Question\n' + '\n'.join(f'1;{t}' for t in texts), encoding='utf-8')
    write_lines(tmp_path / 'c.jsonl', [{'n': 1, 'query': t} for t in texts])
    found = [log_queries(tmp_path / name, []) for name in ('a.txt', 'b.csv', 'c.jsonl')]
    assert all([row['text'] for row in rows] == ['why am I pale', 'swollen toe'] for rows, _ in found)
    assert all(counts['repeated'] == 1 and counts['kept'] == 2 for _, counts in found)
    assert len({json.dumps(rows) for rows, _ in found}) == 1


def test_a_question_on_two_lines_of_a_table_stays_two_words(tmp_path):
    (tmp_path / 'a.csv').write_text('day,question\n1,"why am I\npale"\n2,is insulin safe\n')
    rows, counts = log_queries(tmp_path / 'a.csv', [])
    assert [row['text'] for row in rows] == ['why am I pale', 'is insulin safe'] and counts['lines'] == 2


def test_personal_data_of_a_log_are_masked_and_counted(walk, tmp_path, capfd):
    secret = 'jo.doe@example.org'
    write_lines(tmp_path / 'log.txt', [f'send the result to {secret}', 'is insulin safe', 'is insulin safe'])
    report = add_log(walk, tmp_path / 'log.txt')
    counts = report.calls[0]['counts']
    assert counts['with personal data masked'] == 1 and counts['repeated'] == 1 and report.logged == 2
    assert all(secret.encode() not in content for content in files(walk).values())
    said = capfd.readouterr()
    assert 'it is masked' in said.err and secret not in said.err + said.out
    assert {row['origin'] for row in read_queries(walk)} == {'log'} and not (walk.folder / 'qrels').exists()
    before = files(walk)
    add_log(walk, tmp_path / 'log.txt')
    assert files(walk) == before


@pytest.mark.parametrize(
    ('name', 'text', 'said'),
    [
        ('none.txt', None, 'no such file'),
        ('a.csv', 'day,user\n1,2\n', 'no column of questions among day, user'),
        ('a.csv', 'question\nam I pale, or ill?\n', 'more cells than the first line names'),
        ('a.csv', 'question\n"am I pale\nis insulin safe\n', 'no CSV (unexpected end of data)'),
        ('a.jsonl', '{"query": 7}\n', "the question '7' is no text"),
        ('a.jsonl', '{"query": \n', 'malformed JSON'),
        ('a.txt', b'na\xefve', 'not UTF-8'),
    ],
)
def test_logs_that_cannot_be_read(walk, tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(lambda: add_log(walk, tmp_path / name), name, said)
    assert not (walk.folder / 'queries.jsonl').exists()


def test_queries_of_the_readers_own_stay_and_odd_ones_are_refused(walk, writer):
    writer()
    write_lines(walk.path('queries.jsonl'), [{'_id': 'mine', 'text': 'what is metformin'}])
    write_queries(walk, **how(styles=['lay']))
    rows = read_queries(walk)
    assert rows[0]['_id'] == 'mine' and rows[0]['origin'] == 'log' and len(rows) == 12
    write_lines(walk.path('queries.jsonl'), [{'_id': 'a', 'text': 'x'}, {'_id': 'a', 'text': 'y'}])
    refused(lambda: write_queries(walk, **how(styles=['keyword'])), 'queries.jsonl:2', 'stands twice')


# ---------------------------------------------------------------- the command


def test_the_command(walk, writer, medir, tmp_path):
    writer()
    write_lines(tmp_path / 'log.txt', ['is metformin dangerous'])
    line = ['queries', walk.folder, '--llm', 'smollm2', '--styles', 'lay,keyword', '--retriever', 'bm25']
    out = medir(*line, '--log', tmp_path / 'log.txt')
    assert (
        out.code == 0
        and '22 queries written by a language model, 1 question of a log' in out.out
        and 'next: medir label' in out.out
    )
    assert re.search(r'\| lay +\| 11 ', out.out) and 'up to 120 queries' in out.err
    assert medir(*line).code == 0 and read_report(walk).written == 22
    out = medir('queries', tmp_path)
    assert out.code == 2 and 'this folder holds no walk' in out.err and out.err.count('\n') == 1
    out = medir('queries', walk.folder, '--llm', 'smollm2', '--styles', 'lya', '--retriever', 'bm25')
    assert out.code == 2 and "did you mean 'lay'?" in out.err.splitlines()[-1]


@pytest.mark.medium
def test_a_kill_keeps_answers_and_the_same_line_goes_on(walk, tmp_path):
    slow = lambda messages: (time.sleep(0.05), good(messages))[1]
    server = ToyServer(slow)
    environment = os.environ | {
        'MEDIR_LLM_OPTIONS': json.dumps({'backend': 'openai', 'base_url': server.url, 'concurrency': 1})
    }
    line = [
        sys.executable,
        '-m',
        'medir_nb.workbook',
        'queries',
        walk.folder,
        '--llm',
        'smollm2',
        '--retriever',
        'bm25',
    ]
    worker = subprocess.Popen(
        list(map(str, line)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 30
    while server.asked < 30 and time.monotonic() < end and worker.poll() is None:
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    before = server.asked
    assert before > 0 and not (walk.folder / 'queries.jsonl').exists()
    done = subprocess.run(list(map(str, line)), env=environment, capture_output=True, text=True)
    server.close()
    assert done.returncode == 0, done.stderr
    assert len(read_queries(walk)) == 44 and server.asked < before + 44  # what was answered is not asked again
