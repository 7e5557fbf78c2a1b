"""`--private`: nothing but loopback is reached, from this process, its children and its workers, and the record says who tried."""

import asyncio, multiprocessing, os, socket, subprocess, sys, threading, time
import pytest
from medir_nb import core
from medir_nb.core import guard, nothing_leaves, private_line, private_report, refusal_in

ELSEWHERE = '192.0.2.1'  # set aside for documentation; no network routes it


def refused(call, *arguments):
    "The message of a call that the guard must refuse, at once."
    began = time.monotonic()
    with pytest.raises(guard.Refused) as error:
        call(*arguments)
    assert time.monotonic() - began < 1
    return str(error.value)


@pytest.fixture
def private(home):
    before = dict(os.environ)
    with nothing_leaves() as record:
        yield record
    assert dict(os.environ) == before and not guard.is_active()


@pytest.fixture
def listener():
    "A server on loopback that takes connections."
    with socket.create_server(('127.0.0.1', 0)) as server:
        yield server.getsockname()


def reach(address):
    "For children: what comes of a connection."
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError as error:
        return f'{type(error).__name__}: {error}'
    return 'reached'


# ---------------------------------------------------------------- this process


def test_elsewhere_is_refused_at_once_and_loopback_answers(private, listener):
    assert '192.0.2.1:443' in refused(socket.create_connection, (ELSEWHERE, 443))
    assert '2001:db8::1' in refused(socket.create_connection, ('2001:db8::1', 443))
    assert 'look-up of example.org' in refused(socket.getaddrinfo, 'example.org', 80)
    assert 'look-up of example.org' in refused(socket.gethostbyname, 'example.org')
    assert 'look-up of 192.0.2.1' in refused(socket.gethostbyaddr, ELSEWHERE)
    assert reach(listener) == 'reached' and socket.getaddrinfo('localhost', 80) and socket.getaddrinfo(ELSEWHERE, 80)
    told = private_report()
    assert sum(told['refused'].values()) == 5 and told['refused']['look-up of example.org'] == 2
    assert told['processes'] == 1 and '5 attempts' in private_line()


def test_loopback_of_ipv6_answers(private):
    if not socket.has_ipv6:
        pytest.skip('this Python has no IPv6')
    try:
        server = socket.create_server(('::1', 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip('this machine has no IPv6')
    with server:
        assert reach(server.getsockname()[:2]) == 'reached'


def test_every_way_to_a_socket_is_watched(private):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as packets:
        assert ELSEWHERE in refused(packets.sendto, b'x', (ELSEWHERE, 53))
        assert ELSEWHERE in refused(packets.sendto, b'x', 0, (ELSEWHERE, 53))
        assert ELSEWHERE in refused(packets.sendmsg, [b'x'], [], 0, (ELSEWHERE, 53))
        assert ELSEWHERE in refused(packets.connect, (ELSEWHERE, 53))
    with socket.socket() as stream:
        assert ELSEWHERE in refused(stream.connect_ex, (ELSEWHERE, 443))
        assert 'example.org:443' in refused(stream.connect, ('example.org', 443))  # before the name is looked up
        assert 'listening' in refused(stream.bind, ('0.0.0.0', 8765))
        stream.bind(('127.0.0.1', 0))
    import _socket

    with pytest.raises(guard.Refused):
        _socket.socket().connect((ELSEWHERE, 443))

    async def ask():
        await asyncio.open_connection(ELSEWHERE, 443)

    with pytest.raises(guard.Refused):
        asyncio.run(ask())
    caught = []
    thread = threading.Thread(target=lambda: caught.append(reach((ELSEWHERE, 443))))
    thread.start()
    thread.join()
    assert caught[0].startswith('Refused')


def test_sockets_of_files_stay(private, temporary):
    path = str(temporary / 'private.sock')
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    os.unlink(path)
    assert private_report()['refused'] == {}


def test_a_block_ends(home, monkeypatch, listener):
    monkeypatch.setenv('HTTPS_PROXY', 'http://127.0.0.1:3128')
    with nothing_leaves():
        assert 'HTTPS_PROXY' not in os.environ and core.is_private() and core.offline()
        with nothing_leaves() as inner:  # a block inside a block is part of it
            refused(socket.create_connection, (ELSEWHERE, 443))
        assert guard.is_active() and private_report()['refused'] == private_report(inner)['refused']
    assert os.environ['HTTPS_PROXY'] and not core.is_private() and not guard.is_active()
    assert private_line().startswith('This did not run under --private')


def test_errors_of_libraries_hold_the_refusal(private):
    import httpx, urllib.error, urllib.request

    with pytest.raises(httpx.ConnectError) as error:
        httpx.get(f'http://{ELSEWHERE}/')
    assert refusal_in(error.value) == f'--private refuses {ELSEWHERE}:80'
    with pytest.raises(urllib.error.URLError, match='--private refuses look-up of example.org'):
        urllib.request.urlopen('http://example.org/')
    assert refusal_in(ValueError('other')) == '' and refusal_in(None) == ''


def test_a_server_elsewhere_is_asked_once_in_one_line(private):
    import httpx
    from medir_nb.core.server import Server

    server, began = Server('model far-away', f'http://{ELSEWHERE}/v1'), time.monotonic()
    with pytest.raises(core.MedirError) as error, httpx.Client() as client:
        server.ask(client, 'embeddings', {}, lambda answer: answer)
    assert time.monotonic() - began < 5 and 'model far-away: --private refuses 192.0.2.1:80' in str(error.value)
    assert sum(private_report()['refused'].values()) == 1


def test_the_hub_s_client_says_one_line(private):
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from medir_nb.data import load_task
    from medir_nb.core.network import unreachable

    for call in (
        lambda: hf_hub_download('owner/model', 'config.json'),
        lambda: snapshot_download('owner/model'),
        lambda: HfApi().model_info('owner/model'),
    ):
        with pytest.raises(Exception) as error:
            call()
        assert isinstance(error.value, (OSError, ValueError, RuntimeError))
    assert unreachable() == '--private lets nothing leave this machine'
    with pytest.raises(core.MedirError) as error:
        load_task('hf:owner/set')
    assert '--private lets nothing leave this machine' in str(error.value) and '\n' not in str(error.value)


# ---------------------------------------------------------------- children and workers

CHILD = f'import socket; socket.create_connection(("{ELSEWHERE}", 443), timeout=5)'


def test_a_child_is_covered(private, listener):
    for command in ([sys.executable, '-c', CHILD], [sys.executable, '-u', '-W', 'ignore', '-c', CHILD]):
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode and f'--private refuses {ELSEWHERE}:443' in ended.stderr.splitlines()[-1]
    fine = f'import socket; socket.create_connection({listener!r}).close()'
    grandchild = f'import subprocess, sys; sys.exit(subprocess.run([sys.executable, "-c", {CHILD!r}]).returncode)'
    assert subprocess.run([sys.executable, '-c', fine]).returncode == 0
    assert subprocess.run([sys.executable, '-c', grandchild], stderr=subprocess.DEVNULL).returncode
    told = private_report()
    assert told['processes'] == 1 + 5 and told['refused'] == {f'{ELSEWHERE}:443': 3} and told['programs'] == {}


@pytest.mark.parametrize('method', ['fork', 'spawn', 'forkserver'])
def test_a_worker_of_multiprocessing_is_covered(private, method, listener):
    with multiprocessing.get_context(method).Pool(1) as pool:
        said = pool.map(reach, [(ELSEWHERE, 443), listener, ('example.org', 443)])
    assert said == [
        f'Refused: --private refuses {ELSEWHERE}:443',
        'reached',
        'Refused: --private refuses look-up of example.org',
    ]
    assert private_report()['refused'] == {f'{ELSEWHERE}:443': 1, 'look-up of example.org': 1}
    assert private_report()['processes'] >= 2


def test_a_python_that_reads_no_environment_is_started_under_guard(private, tmp_path):
    script = tmp_path / 'worker.py'
    script.write_text(CHILD)
    ended = subprocess.run([sys.executable, '-I', *core.guarded_script(script)], capture_output=True, text=True)
    assert ended.returncode and '--private refuses' in ended.stderr
    assert private_report()['programs'] == {}


def test_what_the_guard_cannot_enter_is_named(private):
    subprocess.run(['true'])
    subprocess.run('true', shell=True)
    subprocess.run([sys.executable, '-I', '-c', ''])
    subprocess.run([sys.executable, '-c', ''], env={})
    os.system('true')
    programs = private_report()['programs']
    assert programs['true'] == 1 and programs['sh'] == 2 and sum(programs.values()) == 5
    assert 'true' in private_line() and 'programs that are not Python' in private_line()


def test_a_child_that_cannot_be_put_under_guard_does_not_run(private, tmp_path):
    broken = {**os.environ, guard.GUARD: str(tmp_path / 'nothing.py')}
    ended = subprocess.run([sys.executable, '-c', 'print(1)'], env=broken, capture_output=True, text=True)
    assert ended.returncode == 2 and not ended.stdout and 'cannot be put under guard' in ended.stderr


def test_the_sitecustomize_behind_ours_runs_too(home, tmp_path, monkeypatch):
    (tmp_path / 'site').mkdir()
    (tmp_path / 'site' / 'sitecustomize.py').write_text('import sys\nsys.from_behind = True\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path / 'site'), prepend=os.pathsep)
    with nothing_leaves():
        command = [sys.executable, '-c', 'import sys; print(sys.from_behind, sys._medir_guard.active)']
        assert subprocess.run(command, capture_output=True, text=True).stdout.split() == ['True', 'True']


def test_a_record_survives_a_torn_line_and_a_full_one(private):
    with open(private, 'a') as stream:
        stream.write('{"pid": 1, "refu')
    assert private_report()['processes'] == 1
    with pytest.raises(core.MedirError, match='no such record'):
        private_report(private.with_name('other.jsonl'))


def test_a_loop_that_tries_for_ever_fills_no_disk(private):
    for _ in range(1500):
        with pytest.raises(guard.Refused):
            socket.create_connection((ELSEWHERE, 443))
    assert len(private.read_text().splitlines()) <= 1001


# ---------------------------------------------------------------- the command


@pytest.mark.medium
def test_the_command_is_private_wherever_the_word_stands(medir_process, beir, home):
    for line in (
        ['--private', 'evaluate', beir, '--system', 'bm25'],
        ['evaluate', beir, '--private', '--system', 'bm25'],
    ):
        done = medir_process(*line, HF_HUB_OFFLINE='0')
        assert done.code == 0 and 'nDCG@10' in done.out
        assert 'held to this machine' in done.err.splitlines()[-1]
    by_variable = medir_process('tasks', MEDIR_PRIVATE='1')
    assert by_variable.code == 0 and 'held to this machine' in by_variable.err
    assert len(list((home / 'private').glob('record-*.jsonl'))) == 3


def test_a_private_command_that_needs_the_hub_ends_in_one_line(medir_process, tmp_path):
    done = medir_process(
        'evaluate', 'hf:owner/set', '--system', 'bm25', '--private', '--home', tmp_path / 'h', HF_HUB_OFFLINE='0'
    )
    assert done.code == 2 and not done.out
    [error] = [line for line in done.err.splitlines() if line.startswith('medir: error')]
    assert '--private lets nothing leave this machine' in error
    assert list((tmp_path / 'h' / 'private').glob('record-*.jsonl'))


def test_the_command_in_this_process_leaves_no_guard(medir, beir):
    assert medir('evaluate', beir, '--system', 'bm25', '--private').code == 0
    assert not guard.is_active() and not core.is_private()
