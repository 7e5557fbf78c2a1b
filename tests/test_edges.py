"""Odd files, odd servers, odd notebooks: one line each, and nothing else happens."""

import json, os, re, socket, stat, threading, time
from pathlib import Path
import pytest
from conftest import write_beir, write_lines
from medir_nb import core, data, workbook
from medir_nb.core import atomic_path, MedirError, parse_options, Server, write_json

# ---------------------------------------------------------------- files that are no files


def test_a_device_stays_a_device_and_a_link_a_link(tmp_path, medir, beir):
    assert medir('evaluate', beir, '--system', 'bm25', '--json', '/dev/null').code == 0
    assert stat.S_ISCHR(os.stat('/dev/null').st_mode)
    (tmp_path / 'target.json').write_text('old')
    (tmp_path / 'link.json').symlink_to(tmp_path / 'target.json')
    write_json(tmp_path / 'link.json', {'a': 1})
    assert (tmp_path / 'link.json').is_symlink() and json.loads((tmp_path / 'target.json').read_text()) == {'a': 1}


def test_a_pipe_is_written_through(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / 'pipe').read_text()))
    reader.start()
    write_json(tmp_path / 'pipe', [1])
    reader.join(10)
    assert (
        json.loads(read[0]) == [1]
        and stat.S_ISFIFO(os.stat(tmp_path / 'pipe').st_mode)
        and len(list(tmp_path.iterdir())) == 1
    )


def test_nothing_is_left_of_a_write_that_failed(tmp_path):
    (tmp_path / 'x').write_text('old')
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / 'x') as new:
        new.write_text('half')
        1 / 0
    assert (tmp_path / 'x').read_text() == 'old' and len(list(tmp_path.iterdir())) == 1


# ---------------------------------------------------------------- annotations are read, not run


@pytest.mark.parametrize(
    'annotation',
    [
        '__import__("os").system("touch ran")',
        'list[__import__("os").system("touch ran")]',
        '[open("ran", "w")][0]',
        '(lambda: open("ran", "w"))()',
        'str if open("ran", "w") else int',
        'Literal[open("ran", "w")]',
        'str | open("ran", "w")',
        'Optional[print]',
        'type("x", (), {})',
        'Path',
    ],
)
def test_an_annotation_is_never_run(annotation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = {
        'cells': [
            {
                'cell_type': 'code',
                'metadata': {'tags': ['parameters']},
                'source': [f'n: {annotation} = 1'],
                'outputs': [],
                'execution_count': None,
            }
        ],
        'metadata': {},
        'nbformat': 4,
        'nbformat_minor': 5,
    }
    write_json(tmp_path / 'evil.ipynb', notebook)
    with pytest.raises(MedirError, match='is no type of a parameter'):
        workbook.schema(tmp_path / 'evil.ipynb')
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize(
    'source, said',
    [
        ('n: int = (', 'is no Python'),
        ('n: int = open("x")', 'is no plain value'),
        ('n = 1', 'is no annotated parameter'),
        ('n: int', 'is no annotated parameter'),
    ],
)
def test_an_odd_parameters_cell_is_one_line(source, said, tmp_path):
    write_json(
        tmp_path / 'odd.ipynb',
        {
            'cells': [
                {'cell_type': 'markdown'},
                {'cell_type': 'code', 'metadata': {'tags': ['parameters']}, 'source': [source]},
            ]
        },
    )
    with pytest.raises(MedirError, match=said) as e:
        workbook.schema(tmp_path / 'odd.ipynb')
    assert '\n' not in str(e.value) and 'odd.ipynb' in str(e.value)


def test_the_types_that_notebooks_use():
    found = {n: workbook.schema(p) for n, p in workbook.notebooks().items()}
    assert len(found) >= 8 and found['automir_slhyde']['tasks'] == (list[str], ['hpo-lay'])


# ---------------------------------------------------------------- ids, grades, measures


def task_with(
    tmp_path, queries=(('q1', 'heart'),), qrels=(('q1', 'd1', 1),), documents=(('d1', '', 'heart'), ('d2', '', 'lung'))
):
    return write_beir(tmp_path / 'own', list(documents), list(queries), list(qrels))


@pytest.mark.parametrize('bad', ['a\0b', True, ['x'], {'x': 1}, None, ''])
def test_an_id_is_text_or_a_number(bad, tmp_path):
    folder = task_with(tmp_path)
    write_lines(folder / 'corpus.jsonl', [{'_id': 'd1', 'text': 'heart'}, {'_id': bad, 'text': 'lung'}])
    with pytest.raises(MedirError, match='the id') as e:
        data.load_task(str(folder))
    assert 'corpus.jsonl:2' in str(e.value)


def test_a_run_with_a_nul_in_an_id_is_refused(tmp_path):
    from medir_nb.retrieval import read_run

    (tmp_path / 'x.run').write_bytes(b'q1 Q0 d1\0x 1 2.0 t\n')
    with pytest.raises(MedirError, match='x.run:1: an id holds a NUL'):
        read_run(tmp_path / 'x.run')


@pytest.mark.parametrize(
    'grade', ['3000000000', '1_0', '1e3', 'true', '0x1', '', '1.5', '-3000000000', '9' * 5000, 'nan', 'inf']
)
def test_a_grade_is_a_small_whole_number(grade, tmp_path):
    folder = task_with(tmp_path, qrels=[('q1', 'd1', grade)])
    start = time.monotonic()
    with pytest.raises(MedirError, match='grade') as e:
        data.load_task(str(folder))
    assert 'test.tsv:2' in str(e.value) and len(str(e.value)) < 6000 and time.monotonic() - start < 5


def test_grades_in_plain_spellings_are_read(tmp_path):
    folder = task_with(tmp_path, qrels=[('q1', 'd1', ' 2 '), ('q1', 'd2', '1.0')])
    assert sorted(data.load_task(str(folder)).qrels.relevance) == [1, 2]


def test_judgements_of_zeros_alone_are_refused(tmp_path, medir):
    ran = medir('evaluate', task_with(tmp_path, qrels=[('q1', 'd1', 0)]), '--system', 'bm25')
    assert ran.code == 2 and 'no grade is above 0' in ran.err and 'nan' not in ran.out


def test_a_measure_named_twice_is_one(beir, medir):
    ran = medir('evaluate', beir, '--system', 'bm25', '--measures', 'MRR@10,nDCG@10,RR@10,nDCG@10')
    assert ran.code == 0 and ran.out.count('| RR@10') == 1 and ran.out.count('| nDCG@10') == 1


# ---------------------------------------------------------------- servers


def ask(server, **patience):
    import httpx

    with httpx.Client() as client:
        return Server(
            'llm x',
            server.url,
            own_variable='MEDIR_TEST_KEY',
            **{'attempts': 2, 'pause': 0.01, 'longest_pause': 0.05, **patience},
        ).ask(client, 'chat/completions', {'messages': [{'content': 'p'}]}, lambda body: body)


@pytest.mark.parametrize('asked', ['3600', '-5', 'nan', 'inf', '1e400', 'soon', 'Wed, 21 Oct 2099 07:28:00 GMT'])
def test_a_server_may_not_ask_for_any_pause(asked, fake):
    server = fake((429, '{}', {'retry-after': asked}))
    start = time.monotonic()
    assert ask(server)[0] and time.monotonic() - start < 5 and server.asked == 2


@pytest.mark.parametrize('cut', range(180, 204, 3))
def test_a_key_on_the_cut_is_not_shown(cut, fake, monkeypatch):
    monkeypatch.setenv('MEDIR_TEST_KEY', 'secret-0123456789abcdef')
    server = fake((401, 'x' * cut + 'secret-0123456789abcdef'))
    with pytest.raises(MedirError) as e:
        ask(server)
    assert not re.search('secret|0123|cdef', str(e.value)), str(e.value)


@pytest.fixture
def dripping():
    "A server whose body comes a byte at a time, for ever."
    listener, stop = socket.create_server(('127.0.0.1', 0)), threading.Event()

    def serve():
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    def drip(connection):
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n')
                while not stop.is_set():
                    connection.sendall(b' ')
                    time.sleep(0.05)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    yield f'http://127.0.0.1:{listener.getsockname()[1]}/v1'
    stop.set()
    listener.close()


def test_a_body_that_never_ends_is_given_up(dripping):
    import types

    start = time.monotonic()
    with pytest.raises(MedirError, match='no answer within 0.5 s after 2 attempts'):
        ask(types.SimpleNamespace(url=dripping), timeout=0.5)
    assert time.monotonic() - start < 10


# ---------------------------------------------------------------- YAML

LAUGHS = 'a: &a [x,x,x,x,x,x,x,x]\n' + ''.join(
    f'{n}: &{n} [{",".join(["*" + p] * 8)}]\n' for p, n in zip('abcdefgh', 'bcdefghi')
)


def test_aliases_that_grow_are_refused(tmp_path):
    with pytest.raises(MedirError, match='an alias'):
        core.read_yaml(write_lines(tmp_path / 'x.yaml', LAUGHS.splitlines()))
    with pytest.raises(MedirError, match='is no YAML'):
        parse_options(['x=[&a [1], *a]'])
    with pytest.raises(MedirError, match='is no YAML'):
        parse_options(['x=' + '[' * 5000])


# ---------------------------------------------------------------- what a run reads is in its key


def keys_of(parameters, change):
    "The key before and after a change of the world."
    path = workbook.find_notebook('bmretriever_evaluation')
    before = workbook.receipt_key(path, parameters)[0]
    assert workbook.receipt_key(path, parameters)[0] == before
    change()
    return before, workbook.receipt_key(path, parameters)[0]


def checkpoint(home, name, kind, revision):
    write_json(home / 'checkpoints' / name / 'medir.json', {'kind': kind, 'revision': revision})


@pytest.mark.parametrize(
    'systems, name',
    [
        (['tuned'], 'tuned'),
        (['bm25>ranked@10'], 'ranked'),
        (['bm25+hyde(writer)'], 'writer'),
        (['rrf(bm25,tuned)'], 'tuned'),
    ],
)
def test_a_checkpoint_trained_again_is_another_run(systems, name, home):
    checkpoint(home, name, 'encoder', 'a')
    before, after = keys_of({'systems': systems}, lambda: checkpoint(home, name, 'encoder', 'b'))
    assert before != after


@pytest.mark.parametrize(
    'text', ['bm25+hyde(file:{path})', 'bm25+hyde(smollm2,prompt={path})', '{path}', 'bm25>{path}@10']
)
def test_a_file_in_an_expression_is_read(text, tmp_path, home):
    file = tmp_path / 'own.txt'
    file.write_text('one')
    before, after = keys_of({'systems': [text.format(path=file)]}, lambda: file.write_text('two'))
    assert before != after
    before, after = keys_of({'options': {'prompts': {'hyde': str(file)}}}, lambda: file.write_text('three'))
    assert before != after


def test_a_corpus_below_the_data_folder_is_read(tmp_path, home, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    write_lines(tmp_path / 'huatuo-encyclopedia' / 'corpus.jsonl', [{'id': 1, 'doc': 'x'}])
    before, after = keys_of(
        {'documents': 'huatuo-encyclopedia'},
        lambda: write_lines(tmp_path / 'huatuo-encyclopedia' / 'corpus.jsonl', [{'id': 1, 'doc': 'y'}]),
    )
    assert before != after


@pytest.mark.parametrize(
    'variable, systems, counts',
    [
        ('MEDIR_LLM_URL', ['bm25+hyde(smollm2)'], True),
        ('MEDIR_LLM_BACKEND', ['bm25+hyde(smollm2)'], True),
        ('MEDIR_LLM_OPTIONS', ['bm25+hyde(smollm2)'], True),
        ('MEDIR_LLM_URL', ['bm25'], False),
        ('MEDIR_EMBEDDING_URL', ['voyage-3'], True),
        ('MEDIR_EMBEDDING_URL', ['minilm'], False),
    ],
)
def test_another_server_is_another_run_of_what_asks_it(variable, systems, counts, home, monkeypatch):
    for name in ('MEDIR_LLM_URL', 'MEDIR_LLM_BACKEND', 'MEDIR_LLM_OPTIONS', 'MEDIR_EMBEDDING_URL'):
        monkeypatch.delenv(name, raising=False)
    before, after = keys_of({'systems': systems}, lambda: monkeypatch.setenv(variable, '{"x": 1}'))
    assert (before != after) == counts


def test_a_cassette_may_grow_and_must_not_change(home, tmp_path):
    tape = write_lines(home / 'cassettes' / 'smollm2.jsonl', [{'key': 'a'}])
    receipt = {'cassettes': workbook.records.cassettes_read({'systems': ['bm25+hyde(smollm2)']})}
    assert list(receipt['cassettes']) == [str(tape)] and workbook.records.cassettes_read({'systems': ['bm25']}) == {}
    with open(tape, 'a') as file:
        file.write('{"key": "b"}\n')
    assert workbook.records.same_cassettes(receipt)
    tape.write_text(tape.read_text().replace('"a"', '"x"'))
    assert not workbook.records.same_cassettes(receipt)
    tape.unlink()
    assert not workbook.records.same_cassettes(receipt)


def test_what_a_run_makes_is_no_part_of_its_key(home):
    before, after = keys_of(
        {'generator_name': 'tuned', 'systems': ['bm25']}, lambda: checkpoint(home, 'tuned', 'llm', 'b')
    )
    assert before == after


def test_a_path_in_an_expression_does_not_hang_on_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = workbook.parameters.absolute_paths(
        {
            'systems': ['bm25+hyde(file:./a.jsonl)', './model', 'minilm>../r@10', 'nv-embed-v2(max_query_tokens=4)'],
            'prompts': {'hyde': './p.txt'},
            'n': 1,
        }
    )
    assert found == {
        'systems': [
            f'bm25+hyde(file:{tmp_path}/a.jsonl)',
            f'{tmp_path}/model',
            f'minilm>{tmp_path.parent}/r@10',
            'nv-embed-v2(max_query_tokens=4)',
        ],
        'prompts': {'hyde': f'{tmp_path}/p.txt'},
        'n': 1,
    }


# ---------------------------------------------------------------- what did not run is said


@pytest.fixture
def compare_notebook(tmp_path, monkeypatch):
    "A workbook whose only notebook compares `systems` on a folder."
    root, folder = tmp_path / 'workbook', write_beir(tmp_path / 'tiny')
    write_lines(root / 'settings.ini', ['[DEFAULT]'])
    cells = [
        ('code', "folder: str = ''\nsystems: list[str] = ['bm25']", ['parameters']),
        (
            'code',
            'from medir_nb.evaluator import evaluate_grid\nscores, not_run = evaluate_grid([folder], systems)\nlen(scores), len(not_run)',
            [],
        ),
    ]
    write_json(
        root / 'nbs' / 'grid.ipynb',
        {
            'cells': [
                {
                    'cell_type': kind,
                    'metadata': {'tags': tags},
                    'source': source.splitlines(True),
                    'outputs': [],
                    'execution_count': None,
                    'id': f'c{i}',
                }
                for i, (kind, source, tags) in enumerate(cells)
            ],
            'metadata': {'kernelspec': {'name': 'python3', 'display_name': 'python3', 'language': 'python'}},
            'nbformat': 4,
            'nbformat_minor': 5,
        },
    )
    monkeypatch.setenv('MEDIR_ROOT', str(root))
    return root, folder


@pytest.mark.medium
def test_a_system_that_fails_is_on_stderr_and_in_the_exit_status(compare_notebook, medir, home):
    root, folder = compare_notebook
    ran = medir('run', 'grid', '-p', f'folder={folder}', '-p', 'systems=[bm25,minilmm]')
    assert ran.code == 1 and 'not run: minilmm on ' in ran.err and "did you mean 'minilm'" in ran.err
    (receipt,) = workbook.receipts()
    assert [r['system'] for r in workbook.missing_results(receipt)] == ['minilmm'] and workbook.valid_receipt(
        receipt['key']
    ) is None
    assert '1 rows did not run' in medir('status').out
    again = medir('run', 'grid', '-p', f'folder={folder}', '-p', 'systems=[bm25,minilmm]')
    assert again.code == 1 and again.out.startswith('executed') and len(workbook.receipts()) == 1


@pytest.mark.medium
def test_what_was_never_released_is_no_failure(compare_notebook, medir, home):
    root, folder = compare_notebook
    for word in ('executed', 'unchanged since'):
        ran = medir('run', 'grid', '-p', f'folder={folder}', '-p', 'systems=[bm25,cpt-text-xl]')
        assert ran.code == 0 and ran.out.startswith(word) and 'not run' not in ran.err


@pytest.mark.medium
def test_a_batch_says_which_of_its_runs_lack_rows(compare_notebook, medir, home):
    root, folder = compare_notebook
    write_lines(
        root / 'params' / 'batches' / 'two.yaml',
        [
            'runs:',
            f'- {{notebook: grid, parameters: {{folder: "{folder}", systems: [bm25]}}}}',
            f'- {{notebook: grid, parameters: {{folder: "{folder}", systems: [bm25, minilmm]}}}}',
        ],
    )
    ran = medir('run', 'two')
    assert (
        ran.code == 2
        and 'run 1: grid lacks 1 rows (minilmm on' in ran.err.splitlines()[-1]
        and len(workbook.receipts()) == 2
    )


# ---------------------------------------------------------------- nothing runs under another name, and nothing is left behind


def test_a_precision_is_checked_for_every_system(medir, beir):
    ran = medir('evaluate', beir, '--system', 'bm25', '--dtype', 'int8')
    assert ran.code == 2 and "unknown precision 'int8'" in ran.err


def test_a_folder_wins_over_a_registry_row_of_its_name(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    monkeypatch.chdir(tmp_path)
    write_beir(tmp_path / 'nfcorpus')
    task = data.load_task('nfcorpus')
    assert (
        len(task.corpus) == 12
        and not task.registered
        and 'nfcorpus is a folder here and a task of the registry' in capfd.readouterr().err
    )
    (tmp_path / 'scifact').mkdir()  # an empty folder is no task
    with pytest.raises(MedirError):
        data.load_task('scifact')


@pytest.mark.medium
def test_a_checkpoint_serves_at_the_lengths_of_its_base(home, tmp_path):
    from medir_nb.encoder import encoder_spec
    from medir_nb.trainer import train_encoder

    pairs = write_lines(tmp_path / 'pairs.jsonl', [{'query': f'query {i}', 'pos': [f'document {i}']} for i in range(4)])
    train_encoder(
        model='minilm',
        data=str(pairs),
        output='capped',
        batch_size=2,
        negatives=1,
        max_steps=1,
        hypothetical=False,
        max_document_tokens=16,
        max_query_tokens=8,
    )
    spec, base = encoder_spec('capped'), encoder_spec('minilm')
    assert (
        (spec.max_query_tokens, spec.max_document_tokens)
        == (base.max_query_tokens, base.max_document_tokens)
        == (256, 256)
    )


@pytest.mark.medium
def test_a_killed_batch_leaves_no_run_behind(compare_notebook, home):
    import signal, subprocess, sys

    root, folder = compare_notebook
    cells = json.loads((root / 'nbs' / 'grid.ipynb').read_text())
    cells['cells'][1]['source'] = ['import time\n', 'time.sleep(60)']
    write_json(root / 'nbs' / 'grid.ipynb', cells)
    write_lines(root / 'params' / 'batches' / 'one.yaml', ['runs:', '- {notebook: grid}'])
    batch = subprocess.Popen(
        [sys.executable, '-m', 'medir_nb.workbook', 'run', 'one'],
        env={**os.environ, 'MEDIR_ROOT': str(root)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def children():
        return [
            p
            for p in Path('/proc').glob('[0-9]*')
            if str(home).encode() in _read(p / 'cmdline')
            or str(home).encode() in _read(p / 'environ')
            and b'ipykernel' in _read(p / 'cmdline')
        ]

    end = time.monotonic() + 60
    while len(children()) < 2 and time.monotonic() < end:
        time.sleep(0.2)
    assert len(children()) >= 2
    batch.send_signal(signal.SIGKILL)
    batch.wait()
    end = time.monotonic() + 30
    while children() and time.monotonic() < end:
        time.sleep(0.3)
    assert not children()


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b''


# ---------------------------------------------------------------- rows of a registry for a block, or set late


def test_rows_stand_over_a_registry_for_a_block():
    mine = {**core.registry('models')['minilm'], 'pooling': 'cls'}
    with core.rows('models', {'mine': mine, 'minilm': {**mine, 'label': 'outer'}}) as outer:
        assert outer['mine'] == mine and core.registry('models')['minilm']['label'] == 'outer'
        with core.rows('models', {'minilm': {**mine, 'label': 'inner'}}):
            assert core.registry('models')['minilm']['label'] == 'inner' and 'mine' in core.registry('models')
        assert core.registry('models')['minilm']['label'] == 'outer' and 'mine' not in core.registry('tasks')
    assert 'mine' not in core.registry('models') and core.registry('models')['minilm']['pooling'] == 'mean'


def test_rows_go_with_a_block_that_fails_and_are_seen_by_threads():
    seen = []
    with pytest.raises(ZeroDivisionError), core.rows('models', {'mine': {}}):
        thread = threading.Thread(target=lambda: seen.append('mine' in core.registry('models')))
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert seen == [True] and 'mine' not in core.registry('models')


def test_rows_reach_what_reads_a_registry():
    from medir_nb.encoder import encoder_spec

    with core.rows('models', {'mine': {**core.registry('models')['minilm'], 'query_template': 'query: {text}'}}):
        assert encoder_spec('mine').query_template == 'query: {text}'
    with pytest.raises(MedirError, match="unknown|did you mean 'minilm'"):
        encoder_spec('mine')
    copy = {**core.registry('tasks')['zh-lay'], 'measures': ['nDCG@3']}
    with core.rows('tasks', {'zh-lay': copy}):
        assert data.load_task('zh-lay').measures == ('nDCG@3',)


@pytest.mark.parametrize(
    'new, says', [({'minilm': 'a text'}, "the row 'minilm' is no mapping"), ({7: {}}, '7 is no name of a row')]
)
def test_rows_of_another_kind_are_refused(new, says):
    with pytest.raises(MedirError, match=says), core.rows('models', new):
        pytest.fail('accepted')
    assert isinstance(core.registry('models')['minilm'], dict) and 7 not in core.registry('models')


def test_an_own_registry_may_be_named_after_the_first_use(tmp_path, monkeypatch):
    before = core.registry('models')
    for folder in ('one', 'two'):
        write_lines(tmp_path / folder / 'models.yaml', [json.dumps({f'mine-{folder}': {'kind': 'encoder'}})])
    for folder in ('one', 'two'):
        monkeypatch.setenv('MEDIR_REGISTRY', str(tmp_path / folder))
        assert set(core.registry('models')) - set(before) == {f'mine-{folder}'}
    with core.rows('models', {'third': {}}):
        assert {'mine-two', 'third'} <= set(core.registry('models'))
    monkeypatch.delenv('MEDIR_REGISTRY')
    assert core.registry('models') == before
    # a file that was edited is read again on request
    monkeypatch.setenv('MEDIR_REGISTRY', str(tmp_path / 'two'))
    write_lines(tmp_path / 'two' / 'models.yaml', [json.dumps({'edited': {}})])
    core.registry.cache_clear()
    assert 'edited' in core.registry('models')
