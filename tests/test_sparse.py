"Learned sparse encoders: equal to the library's, in the store, in an index, behind an expansion, and what is refused."

import re, shutil
from dataclasses import replace

import numpy as np, pandas as pd, pytest, torch, transformers
from conftest import refuses, seeded, table, write_lines
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

from medir_nb.core import MedirError
from medir_nb.core.places import at_home
from medir_nb.data import limit_task, load_task
from medir_nb.encoder import Encoder, VectorStore, encode_corpus, encoder_spec
from medir_nb.generator.expansion import Expanded
from medir_nb.generator.methods import expansion_settings, method_row
from medir_nb.retrieval import Index, Job, ask, parse, pending, retriever_of, score_pairs, search
from medir_nb.retrieval.updates import build_index, change_index
from medir_nb.trainer import train_splade
from tiny_models import SIZES, TEXTS, make_tokenizer


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "A masked language model as `SparseEncoder` saves it, one with a table of query weights, and both without a head."
    root, tokenizer = tmp_path_factory.mktemp('sparse'), make_tokenizer('bert')
    config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZES)
    with seeded(3):
        model, weights = transformers.AutoModelForMaskedLM.from_config(config).eval(), torch.rand(len(tokenizer))
    for part in (tokenizer, model):
        part.save_pretrained(root / 'plain')
    splade = SparseEncoder(str(root / 'plain'), device='cpu', similarity_fn_name='dot')
    splade.save(str(root / 'splade'))
    document = [Transformer(str(root / 'plain'), transformer_task='fill-mask'), SpladePooling('max', 'log1p_relu')]
    router = Router.for_query_document([SparseStaticEmbedding(tokenizer, weights)], document)
    SparseEncoder(modules=[router], similarity_fn_name='dot', device='cpu').save(str(root / 'idf'))
    body = Transformer(str(root / 'plain'))
    SentenceTransformer(modules=[body, Pooling(32)], device='cpu').save(str(root / 'dense'))
    shutil.copytree(root / 'splade', root / 'headless')
    model.bert.save_pretrained(root / 'headless')
    return root


@pytest.fixture
def task():
    return limit_task(load_task('hpo-lay'), 40)


@pytest.mark.parametrize('name', ['splade', 'idf', 'splade(max_active_dims=5)', 'idf(similarity=cos)'])
def test_vectors_and_scores_are_the_librarys(folders, task, name):
    name, _, settings = name.partition('(')
    library = SparseEncoder(str(folders / name), device='cpu')
    library.max_active_dims = 5 if 'dims' in settings else None
    library.similarity_fn_name = 'cosine' if 'cos' in settings else 'dot'
    expression = f'{folders / name}({settings}' if settings else str(folders / name)
    encoder = retriever_of(parse(expression)).encoder(Job(task))
    texts = [f'{title} {body}'.strip() for title, body in TEXTS]
    for role in ('query', 'document'):
        theirs = getattr(library, f'encode_{role}')(texts).to_dense().numpy()
        ours = encoder.encode(encoder.render(TEXTS, role), role)
        assert np.abs(theirs - ours.vectors.toarray()).max() < 1e-5
    sides = library.encode_query(task.queries.texts()), library.encode_document(task.corpus.texts())
    scores = library.similarity(*sides)
    scores = (scores.to_dense() if scores.is_sparse else scores).numpy()
    run, again = search(task, expression, k=7).run, search(task, expression, k=7)
    assert again.run.equals(run) and again.stats['encoded_docs'] == 0
    for row, query_id in enumerate(task.queries.ids):
        found = run[run.query_id == query_id].score.to_numpy()
        best = np.sort(scores[row])[::-1][:7]
        assert np.allclose(found, best[best > 0], rtol=1e-5)


def test_a_pool_an_index_an_update_and_a_store_hold_the_same_vectors(folders, task, tmp_path):
    name = str(folders / 'splade')
    ids = list(task.corpus.ids)
    pool = pd.DataFrame([(q, d) for q in task.queries.ids for d in ids[::5]], columns=['query_id', 'doc_id'])
    reranked = replace(task, kind='reranking', candidates=pool)
    with at_home(tmp_path / 'home'):
        whole = search(task, name, k=len(ids)).run.set_index(['query_id', 'doc_id']).score
        ordered = search(reranked, name).run.set_index(['query_id', 'doc_id']).score
        assert np.allclose(ordered, whole.reindex(ordered.index), rtol=1e-6) and len(ordered) == len(pool)
        store = VectorStore(encoder_spec(name), 'document')
        block = next(store.folder.glob('block-*.safetensors'))
        block.write_bytes(block.read_bytes()[:-9])
        assert pending(name, task)['to_encode'] == len(ids)
        assert encode_corpus(Encoder(name), task.corpus, 'document').stats['encoded'] == len(ids)
        assert list(store.folder.glob('*.bad'))
    rows = pd.DataFrame({'id': ids, 'text': task.corpus.texts()})
    questions = task.queries.texts()[:4]
    with at_home(tmp_path / 'other'):
        build_index(rows[:30], name, tmp_path / 'index')
        assert change_index(tmp_path / 'index', everything=rows[5:]).encoded == 10
        found = Index(tmp_path / 'index').search(questions, k=5)
    with at_home(tmp_path / 'home'):
        asked = replace(task, queries=task.queries.take(range(4)), corpus=task.corpus.take(range(5, 40)))
        fresh = search(asked, name, k=5, keep_self=True).run
    assert list(found.doc_id) == list(fresh.doc_id) and np.allclose(found.score, fresh.score, rtol=1e-6)


def test_texts_join_a_query_as_words_or_by_their_vectors(folders, task, tmp_path):
    "As BM25's, the whole weighed as one text; or a mean of vectors, by the numbers of the rule."
    name, queries = str(folders / 'splade'), task.queries.texts()
    texts = [['small organ', 'a womb of low volume'], [], *[['organ']] * (len(queries) - 2)]
    with at_home(tmp_path):
        for joined, kind in (('text', 'sparse'), ('vectors', 'dense')):
            expression = f'{name}(joined={joined})'
            stage = retriever_of(parse(expression))
            assert stage.kind == kind
            settings = expansion_settings('hyde', (), kind)
            run = search(task, expression, 5, expanded=Expanded(texts, settings, method_row('hyde'), {}, {})).run
            encoder = stage.encoder(Job(task))
            vectors = lambda strings: encoder.encode(strings, 'query').vectors.toarray()
            if kind == 'sparse':
                asked = vectors([' '.join(own) or query for query, own in zip(queries, texts, strict=True)])
            else:
                asked = np.stack([vectors([q, *own]).mean(0) for q, own in zip(queries, texts, strict=True)])
            documents = encode_corpus(encoder, task.corpus, 'document').chunk().toarray()
            best = np.sort(asked @ documents.T, axis=1)[:, ::-1][:, :5]
            assert np.allclose(run.score.to_numpy().reshape(-1, 5), best, rtol=1e-5)


def test_the_contract_names_the_heaviest_terms_and_sentences_are_compared(folders, task, tmp_path):
    with at_home(tmp_path):
        told = retriever_of(parse(f'{folders / "idf"}(max_active_dims=12)')).reads(Job(task)).splitlines()
        frame = pd.DataFrame({'sentence1': ['gout'], 'sentence2': ['gout'], 'score': [1.0]})
        pairs = replace(task, kind='pairs', pairs=frame)
        assert score_pairs(str(folders / 'splade'), pairs).run == pytest.approx([1.0], abs=1e-6)
    query, document = told[-2:]
    terms = re.findall(r'(\S+) (\d+\.\d\d)', document.split('heaviest')[1])
    assert 'vector       static' in '\n'.join(told) and len(terms) == 10
    assert document.startswith('document     12 terms')
    assert [float(weight) for _, weight in terms] == sorted((float(weight) for _, weight in terms), reverse=True)
    assert {term for term, _ in terms} <= set(make_tokenizer('bert').get_vocab()) and query.startswith('query')


REFUSED = """
dense(representation=sparse) | it has no masked-language head
headless | do not hold the tensors of its architecture
splade(dimensions=8) | dimensions has no meaning for sparse vectors
dense(max_active_dims=8) | max_active_dims has no meaning for dense vectors
splade(joined=word) | unknown joined 'word'
splade(representation=sprase) | did you mean 'sparse'?
"""


@pytest.mark.parametrize('expression, said', table(REFUSED))
def test_what_has_no_meaning_is_refused_in_one_line(folders, task, expression, said):
    refuses(lambda: search(task, str(folders / expression)), said)


@pytest.mark.parametrize('base', ['dense', 'splade', 'idf'])
def test_a_training_leaves_a_system_and_an_index_keeps_its_weights(folders, task, tmp_path, base):
    "From an encoder without a head, from a sparse one, from one with a table for queries; taken up a second time."
    rows = [{'query': text, 'pos': [task.corpus.text(doc)]} for text, doc in zip(task.queries.texts(), task.corpus.ids)]
    data = write_lines(tmp_path / 'pairs.jsonl', rows)
    settings = {'model': str(folders / base), 'data': str(data), 'output': f'from-{base}', 'negatives': 0}
    settings |= {'batch_size': 4, 'max_steps': 2, 'warmup_steps': 0, 'head_bias': -1.0}
    done = train_splade(settings)
    assert train_splade(settings).reused and not done.reused
    spec = encoder_spec(f'from-{base}')
    assert (spec.representation, spec.similarity, spec.dim) == ('sparse', 'dot', len(make_tokenizer('bert')))
    assert {'base_loss', 'document_regularizer_loss'} <= set(done.history.columns)
    with at_home(tmp_path / 'elsewhere'), pytest.raises(MedirError):
        encoder_spec(f'from-{base}')
    build_index(task.corpus.texts(), f'from-{base}(max_active_dims=9)', tmp_path / 'index', with_model=True)
    question = task.queries.texts()[:1]
    found = Index(tmp_path / 'index').search(question, k=3)
    asked = ask(f'from-{base}(max_active_dims=9)', task.corpus.texts(), question, k=3).run
    assert found.doc_id.tolist() == asked.doc_id.tolist() and np.allclose(found.score, asked.score, rtol=1e-5)
    stage = retriever_of(parse(f'from-{base}'))
    about = stage.export(Job(task), tmp_path / 'out', 'sparse')
    assert len(pd.read_parquet(tmp_path / 'out' / about['files'][1])) == len(task.corpus)
    assert (tmp_path / 'out' / about['model'] / 'modules.json').is_file()
