"""Precision and execution follow the processor; results do not."""

import sys
from pathlib import Path

import numpy as np, pytest
from medir_nb import encoder
from medir_nb.encoder import contract, Encoder, encoder_spec, processor, Vectors
from medir_nb.core import read_json
from medir_nb.data import load_task
from medir_nb.evaluator import evaluate
from medir_nb.retrieval import dense_search, encoder_of, parse, Product

sys.path.insert(0, str(Path(__file__).parents[1] / 'tools'))
from store_outputs import page_outputs

NO_BF16 = {'ATEN_CPU_CAPABILITY': 'avx2', 'ONEDNN_MAX_CPU_ISA': 'AVX2'}  # what a lesser processor offers


@pytest.fixture
def lesser(monkeypatch):
    "A processor without instructions for bfloat16."
    if not processor.instructions():
        pytest.skip('this torch does not tell what the processor offers')
    for name, value in NO_BF16.items():
        monkeypatch.setenv(name, value)
    if any(name.endswith('bf16') for name in processor.instructions()):
        pytest.skip("torch's switches take nothing away from this processor")


def test_weights_in_bf16_are_computed_in_fp32_without_its_instructions(lesser):
    spec, asked = encoder_spec('smollm2'), encoder_spec('smollm2', dtype='bf16')
    assert (spec.dtype, asked.dtype) == ('float32', 'bfloat16')
    assert spec.vector_key('document') != asked.vector_key('document')
    assert encoder_spec('smollm2', device='cuda').dtype == 'bfloat16', 'a GPU computes what the row says'
    assert encoder_of(parse('smollm2(dtype=bf16)')).spec.dtype == 'bfloat16'
    assert encoder_of(parse('smollm2'), dtype='bf16').spec.dtype == 'bfloat16'
    assert encoder_spec('minilm').dtype == 'float32'


def test_a_precision_that_is_written_out_stays_in_the_expression(lesser):
    assert str(parse('smollm2(dtype=fp32)')) == 'smollm2(dtype=float32)'
    assert str(parse('smollm2(dtype=bf16)')) == 'smollm2(dtype=bfloat16)'
    assert str(parse('bm25>rankllama@10(dtype=fp16)')) == 'bm25>rankllama@10(dtype=float16)'


@pytest.mark.medium
def test_table_and_contract_name_the_precision(lesser, tmp_path):
    task = load_task('hpo-lay', limit=12)
    assert {row['dtype'] for row in evaluate(task, 'smollm2', home_folder=tmp_path).rows()} == {'float32'}
    told = repr(contract(Encoder('smollm2', device='cpu', home_folder=tmp_path), task))
    assert 'float32 (stored in bfloat16, for which this processor has no instructions)' in told
    asked = repr(contract(Encoder('smollm2', dtype='bf16', device='cpu', home_folder=tmp_path), task))
    assert 'no instructions' not in asked


def test_a_run_says_how_its_vectors_were_computed(monkeypatch, tmp_path):
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path))
    Encoder('minilm', device='cpu', home_folder=tmp_path / 'home').encode(['a cough'], 'document')
    told = read_json(tmp_path / 'execution.json')['model minilm']
    assert told['dtype'] == 'float32' and 'tokens a batch' in told['execution']
    assert told['instructions'] == list(processor.instructions())


def tuned_encoder(home, monkeypatch):
    "An encoder for which every trial pays."
    monkeypatch.setattr(encoder.tuning, '_WORTH_A_TRIAL', 0)
    return Encoder('minilm', device='cpu', home_folder=home)


def texts_of_all_lengths(n=200):
    rng = np.random.default_rng(0)
    words = 'fever cough rash pain acute chronic renal hepatic of the with and'.split()
    return [' '.join(rng.choice(words, rng.integers(1, 12))) for _ in range(n)]


@pytest.mark.medium
def test_a_trial_is_made_once_said_and_remembered(monkeypatch, tmp_path, capfd):
    texts = texts_of_all_lengths()
    first = tuned_encoder(tmp_path / 'home', monkeypatch)
    vectors = first.encode(texts, 'document').vectors
    assert 'model minilm on this processor' in capfd.readouterr().err
    encoder.free_models()
    again = tuned_encoder(tmp_path / 'home', monkeypatch)
    assert again.backend('document').execution == first.backend('document').execution
    assert np.allclose(again.encode(texts, 'document').vectors, vectors, atol=1e-6)
    assert 'on this processor' not in capfd.readouterr().err


def test_what_a_trial_says_is_not_stored_in_a_page(capsys, tmp_path):
    processor.remember('model', 'a model', processor.Trial(processor.Execution(), 1.2, 20.0, 4), tmp_path)
    said = capsys.readouterr().err
    stream = lambda *lines: {'output_type': 'stream', 'name': 'stderr', 'text': list(lines)}
    table = {'output_type': 'display_data', 'data': {'text/plain': [said]}}
    assert said.startswith('medir: a model on this processor: ')
    assert page_outputs([stream(said), stream('medir: first\n', said, 'last\n', said), table]) == [
        stream('medir: first\n', 'last\n'),
        table,
    ]


def test_every_execution_gives_the_same_vectors(tmp_path):
    texts = texts_of_all_lengths(60)
    backend = Encoder('minilm', device='cpu', home_folder=tmp_path).backend('document')
    found = {}
    for kernel in processor.KERNELS:
        for threads, budget in ((1, 64), (2, 4096)):
            backend.use(processor.Execution(kernel, threads, budget))
            found[kernel, threads] = backend.in_batches(*lengths_and_run(backend, texts))
    reference = found.pop(('torch', 1))
    for vectors in found.values():
        assert np.abs(vectors - reference).max() < 1e-5
        assert (vectors * reference).sum(1).min() >= 0.999999


def lengths_and_run(backend, texts):
    ids, segments, _ = backend.tokenize(texts)
    lengths = np.array([len(i) for i in ids], np.int32)
    return lengths, lambda batch: backend._forward([ids[i] for i in batch], None, 0)


def test_an_execution_that_changes_vectors_is_not_taken(monkeypatch, tmp_path):
    def other_vectors(model, kernel):
        if kernel == 'torch':
            model[0].model.embeddings.word_embeddings.weight.data.neg_()

    monkeypatch.setattr(processor, '_WORTHWHILE', 1e9)  # every candidate is fast enough
    monkeypatch.setattr(encoder.tuning, 'use_kernel', other_vectors)
    chosen = tuned_encoder(tmp_path, monkeypatch)
    chosen.encode(texts_of_all_lengths(), 'document')
    assert chosen.backend('document').execution.kernel == 'onednn'
    encoder.free_models()


def test_a_trial_whose_memory_is_torn_is_made_again(tmp_path):
    trial = processor.Trial(processor.Execution(budget=512), 1.5, 2.0, 3)
    processor.remember('model', 'a model', trial, tmp_path)
    assert processor.remembered('model', home_folder=tmp_path) == trial.choice
    next((tmp_path / 'processor').glob('*.json')).write_text('{"model": {"choice": {"speed": 9}}}')
    assert processor.remembered('model', home_folder=tmp_path) is None


@pytest.mark.parametrize('product', [Product('faiss', 100), Product('numpy', 100), Product('numpy', 7)])
def test_every_product_finds_the_same_documents(product, monkeypatch, tmp_path):
    from medir_nb.retrieval import nearest as search

    rng = np.random.default_rng(0)
    documents, queries = rng.normal(size=(300, 16)).astype(np.float32), rng.normal(size=(9, 16)).astype(np.float32)
    names = [f'd{i}' for i in range(300)]
    monkeypatch.setattr(search, '_product_for', lambda *a: product)
    run = dense_search(
        queries, Vectors([documents], np.arange(300)), list('abcdefghi'), names, k=5, similarity='dot', device='cpu'
    )
    expected = np.argsort(-(queries @ documents.T), axis=1)[:, :5]
    assert list(run.doc_id) == [names[i] for row in expected for i in row]


def test_a_large_search_is_tried_once(monkeypatch, tmp_path, capfd):
    from medir_nb.retrieval import nearest as search

    monkeypatch.setattr(search, '_LARGE_SEARCH', 0)
    rng = np.random.default_rng(0)
    documents, queries = rng.normal(size=(12_000, 32)).astype(np.float32), rng.normal(size=(20, 32)).astype(np.float32)
    runs = [
        dense_search(
            queries,
            Vectors([documents], np.arange(12_000)),
            range(20),
            range(12_000),
            k=10,
            device='cpu',
            home_folder=tmp_path,
        )
        for _ in range(2)
    ]
    assert runs[0].equals(runs[1]) and capfd.readouterr().err.count('search of 32 numbers for 32 queries') == 1


def test_a_plan_counts_what_the_run_will_encode(lesser, monkeypatch, tmp_path):
    from medir_nb import retrieval

    planned = []

    def none_missing(encoder, keys, role):
        planned.append(encoder.spec.dtype)
        return np.empty(0, int)

    monkeypatch.setattr(retrieval.dense_stage, 'missing_texts', none_missing)
    monkeypatch.setattr(processor, '_on_gpu', lambda device: device is None)  # a GPU beside a lesser processor
    retrieval.pending('smollm2', load_task('hpo-lay', limit=12), home_folder=tmp_path)
    assert set(planned) == {'bfloat16'} == {encoder_of(parse('smollm2')).spec.dtype}
