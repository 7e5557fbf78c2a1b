"Weighted fusion, feedback and synonyms: equal to an independent computation, and refused in one line."

import collections, json

import numpy as np, pandas as pd, pytest
from conftest import refuses

from medir_nb.core.places import at_home
from medir_nb.data import load_task, task_from_frames, vocabulary
from medir_nb.encoder import Encoder
from medir_nb.evaluator import evaluate, fusion_weights, tune_fusion
from medir_nb.retrieval import linear, parse, rrf, search, system_settings
from medir_nb.retrieval.chain import chain_of, check_system
from medir_nb.retrieval.stages import Job


def frame(**lists):
    return pd.DataFrame([('q', doc, score) for doc, score in lists.items()], columns=['query_id', 'doc_id', 'score'])


def made_task(texts, queries=('child fever',)):
    corpus = pd.DataFrame({'id': [f'd{i:02}' for i in range(len(texts))], 'text': texts})
    asked = pd.DataFrame({'id': [f'q{i}' for i in range(len(queries))], 'text': queries})
    qrels = pd.DataFrame({'query_id': asked.id, 'doc_id': 'd00', 'relevance': 1})
    return task_from_frames(corpus, asked, qrels, name='made', language='en')


@pytest.mark.parametrize('seed', range(5))
def test_a_weighted_sum_is_that_of_pyserini_and_ranx(seed):
    "pyserini: a missing document takes its list's lowest score; ranx: min-max, then 0. Both give one order."
    rng = np.random.default_rng(seed)
    lists = [dict(zip(rng.permutation(list('abcdefghij'))[:7], rng.normal(size=7) * 9, strict=True)) for _ in range(2)]
    fused = linear([frame(**scores) for scores in lists], (0.3, 0.7))
    expected = collections.Counter()
    for weight, scores in zip((0.3, 0.7), lists, strict=True):
        low, high = min(scores.values()), max(scores.values())
        for doc in set().union(*lists):
            expected[doc] += weight * ((scores.get(doc, low) - (low + high) / 2) / (high - low) + 0.5)
    assert dict(zip(fused.doc_id, fused.score, strict=True)) == pytest.approx(dict(expected))
    z = linear([frame(**scores) for scores in lists], (0.3, 0.7), 'z')
    by_z = collections.Counter()
    for weight, scores in zip((0.3, 0.7), lists, strict=True):
        values = np.array(list(scores.values()))
        for doc in set().union(*lists):
            by_z[doc] += weight * (scores.get(doc, values.min()) - values.mean()) / values.std()
    above = {doc: score - min(by_z.values()) for doc, score in by_z.items()}
    assert dict(zip(z.doc_id, z.score - z.score.min(), strict=True)) == pytest.approx(above, abs=1e-9)


def test_edges_of_a_weighted_sum():
    assert linear([frame(a=3.0, b=3.0), frame(c=1.0)], (0.5, 0.5)).score.tolist() == [0.5] * 3
    assert linear([frame(a=3.0, b=1.0, c=-1e30), frame(c=1.0)], (0.5, 0.5)).doc_id.tolist()[-1] == 'b'
    weighted = rrf([frame(a=2.0, b=1.0), frame(b=9.0)], weights=(2, 1), constant=30)
    assert weighted.set_index('doc_id').score.to_dict() == pytest.approx({'a': 2 / 31, 'b': 2 / 32 + 1 / 31})


def rm3_of_anserini(query, texts, scores, df, n, terms=10, weight=0.5):
    "Anserini's `Rm3Reranker`, a number at a time in single precision, for words without ties."
    f, model = np.float32, collections.defaultdict(lambda: np.float32(0))
    for text, score in zip(texts, scores, strict=True):
        words = [w for w in set(text) if 2 <= len(w) <= 20 and f(df[w]) / f(n) <= f(0.1)]
        kept = sorted((-list(text).count(w), w) for w in words)[:terms]
        norm = f(sum(-c for c, _ in kept))
        for c, w in kept:
            model[w] += f(-c) / norm * f(score)
    best = sorted(model, key=lambda w: (-model[w], w))[:terms]
    total = sum(float(model[w]) for w in best)
    shares = {w: float(model[w]) / total for w in best}
    return {w: weight * query.count(w) / len(query) + (1 - weight) * shares.get(w, 0) for w in {*query, *best}}


@pytest.mark.parametrize('system', ['bm25', 'bm25(lucene)', 'bm25(bm25s)'])
@pytest.mark.parametrize('seed', range(3))
def test_rm3_is_anserinis(system, seed, tmp_path):
    rng = np.random.default_rng(seed)
    words = np.array([f'w{chr(97 + i // 26)}{chr(97 + i % 26)}x' for i in range(200)])
    texts = [' '.join(rng.choice(words, int(rng.integers(5, 30)))) for _ in range(120)]
    query = ' '.join(rng.choice(words, 3))
    with at_home(tmp_path):
        task = made_task(texts, [query])
        stage = chain_of(f'{system}+rm3').before[0]
        [found] = stage.run(Job(task)).queries.words
        first = search(task, system, 10, keep_self=True).run
        df = collections.Counter(word for text in texts for word in set(text.split()))
        listed = [task.corpus.text(doc).split() for doc in first.doc_id]
        assert found == pytest.approx(rm3_of_anserini(query.split(), listed, first.score, df, 120), rel=1e-5)
        again = search(task, f'{system}+rm3', 20).run
        index = chain_of(system).prepared(Job(task)).index
        alone = sum(weight * np.asarray(index.scores({word: 1.0}), float) for word, weight in found.items())
        assert again.score.to_numpy() == pytest.approx(np.sort(alone)[::-1][: len(again)], rel=1e-4)


@pytest.mark.medium
@pytest.mark.parametrize('name, figures', [('nfcorpus', (0.34600, 0.32291)), ('scifact', (0.64573, 0.91467))])
def test_rm3_scores_as_anserini_does(name, figures, medir_data):
    "Of Anserini 0.24 on the same documents: IndexCollection -storeDocvectors, SearchCollection -bm25 -rm3 -hits 100."
    found = evaluate(name, 'bm25(lucene)+rm3', ['nDCG@10', 'R@100'])
    assert tuple(round(found.mean(measure), 5) for measure in found.measures) == figures


def test_rocchio_is_pyserinis_and_its_query_alone_changes_nothing(tmp_path):
    texts = [
        'fever of a child',
        'a broken leg',
        'rash and fever',
        'pain of the chest',
        'a cough',
        'a child with a rash',
    ]
    with at_home(tmp_path):
        task, encoder = made_task(texts), Encoder('minilm')
        [query] = encoder.encode(['child fever'], 'query').vectors
        documents = encoder.encode(texts, 'document').vectors
        first = np.argsort(-documents @ query)[:5]
        moved = 0.4 * query + 0.6 * documents[first].mean(0)
        expected = documents @ moved / np.linalg.norm(moved)  # pyserini's vector, by cosine
        run = search(task, 'minilm+rocchio', 6).run
        assert run.score.to_numpy() == pytest.approx(np.sort(expected)[::-1], abs=1e-5)
        same, plain = search(task, 'minilm+rocchio(alpha=1,beta=0)', 6).run, search(task, 'minilm', 6).run
        assert list(same.doc_id) == list(plain.doc_id) and list(same.score) == pytest.approx(list(plain.score))
        assert search(task, 'minilm(stored=int8)+rocchio', 3).run.doc_id[0] == run.doc_id[0]


OBO = 'ontology: toy\n\n[Term]\nid: T:1\nname: Seizure\nsynonym: "Fit" EXACT []\nsynonym: "Attack" BROAD []\n'
OBO += '\n[Term]\nid: T:2\nname: Febrile seizure\nsynonym: "Fever fit" EXACT layperson []\n'
OBO += '\n[Term]\nid: T:3\nname: Old\nis_obsolete: true\n'
TERM = '<Term><String>{}</String></Term>'.format
MESH = '<DescriptorRecordSet><DescriptorRecord><DescriptorName><String>Seizure</String></DescriptorName><ConceptList>'
MESH += f'<Concept PreferredConceptYN="Y"><TermList>{TERM("Seizure")}{TERM("Fit")}</TermList></Concept>'
MESH += f'<Concept PreferredConceptYN="N"><TermList>{TERM("Aura")}</TermList></Concept>'
MESH += '</ConceptList></DescriptorRecord></DescriptorRecordSet>'
FILES = {'a.obo': OBO, 'a.csv': 'Seizure,Fit\nFebrile seizure,Fever fit\n', 'a.xml': MESH}


@pytest.mark.parametrize('name', FILES)
def test_wordings_of_each_kind_of_file(name, tmp_path):
    (tmp_path / name).write_text(FILES[name])
    words = vocabulary(f'file:{tmp_path / name}')
    assert words.additions('a child with SEIZURES, often') == ['Fit'] and words.additions('a leg') == []
    if name != 'a.xml':  # the longest wording wins, and what stands there is not said again
        assert words.additions('febrile seizures') == ['Fever fit'] and words.additions('seizure or fit') == []


MALFORMED = {'b.obo': {'no ontology': 'no [Term]', '[Term]\nid: T:1\n': 'T:1 has no name'}}
MALFORMED['b.csv'] = {'a,b\nc\n': 'b.csv:2: 1 columns instead of 2', 'a,\n': 'an empty cell', 'a,"b\n': 'no table'}
MALFORMED['b.csv'] |= {'': 'the table is empty', b'\xff\xfe': 'not UTF-8'}
MALFORMED |= {'b.xml': {'<a><b>': 'no XML', '<a/>': 'no DescriptorRecord'}}
MALFORMED |= {'b.txt': {'a,b': 'no ending of a vocabulary'}}


@pytest.mark.parametrize('name', MALFORMED)
def test_a_malformed_vocabulary_is_one_line(name, tmp_path):
    for text, said in MALFORMED[name].items():
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        refuses(lambda: check_system(f'bm25+synonyms(file:{tmp_path / name})', made_task(['a leg'])), said)


def test_synonyms_find_and_are_refused_where_they_are_the_answers(tmp_path):
    path = tmp_path / 'a.obo'
    path.write_text(OBO)
    texts, system = ['a fit of a child', 'leg', 'pain'], f'bm25+synonyms(file:{path})'
    with at_home(tmp_path / 'home'):
        assert list(search(made_task(texts, ['seizures']), system, 3).run.doc_id) == ['d00']
        assert len(search(made_task(texts, ['seizures']), 'bm25', 3).run) == 0
        before = system_settings(system, made_task(texts))
        path.write_text(OBO.replace('Fit', 'Spell'))
        assert system_settings(system, made_task(texts)) != before
        judged = made_task(texts, ['seizures'])
        judged.judged_from = ('toy',)
        refuses(lambda: search(judged, system, 3), 'holds the judgements of this task')
    for task in map(load_task, ('hpo-lay', 'hpo-lay-full')):
        refuses(lambda task=task: check_system('rrf(bm25,minilm+synonyms(hpo))', task), 'holds the judgements')
    check_system('bm25+synonyms(hpo)', load_task('hpo-overlap'))
    assert json.loads(json.dumps(system_settings('bm25+rm3', made_task(texts))))['expansion'] == 'rm3'


def test_weights_are_tuned_without_the_queries_that_they_are_reported_on(tmp_path):
    "A planted task: what a fold's queries say must not move the weights of that fold, and groups stay together."
    rng = np.random.default_rng(0)
    texts = [' '.join(rng.choice([f'word{chr(97 + i)}' for i in range(20)], 6)) for _ in range(30)]
    with at_home(tmp_path):
        task = made_task(texts, texts)
        task.qrels = pd.DataFrame({'query_id': task.queries.ids, 'doc_id': task.corpus.ids, 'relevance': 1})
        task.groups = {query: f'g{i // 3}' for i, query in enumerate(task.queries.ids)}
        systems = ['bm25', 'bm25(k1=9,b=0)']
        tuning = tune_fusion(task, systems, step=0.25, folds=5)
        assert str(parse(tuning.expression)) == tuning.expression and tuning.group.max() == 9
        task.qrels = task.qrels[~task.qrels.query_id.isin(['q0', 'q1', 'q2'])]
        again = tune_fusion(task, systems, step=0.25, folds=9)
        assert len(again.weights) == 9 and len(again.tuned) == 27
        values, found = rng.random((30, 5)), []

        def planted(*_):
            return pd.DataFrame(np.column_stack([values, values[:, 0]]), index=[f'q{i}' for i in range(30)])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fusion_weights, '_fused_values', planted)
            found.append(tune_fusion(task, systems, step=0.25, folds=10))
            values[:3] = 1 - values[:3]  # one group, which is one fold
            found.append(tune_fusion(task, systems, step=0.25, folds=10))
        same = (found[0].weights == found[1].weights).all(axis=1)
        assert same.any()  # the fold of the changed group chose as before
        unchanged = found[0].tuned.iloc[:3].to_numpy() + found[1].tuned.iloc[:3].to_numpy()
        assert unchanged == pytest.approx(np.ones(3))
    refuses(lambda: tune_fusion(task, ['bm25']), 'at least two')
    refuses(lambda: tune_fusion(task, systems, folds=99), '99 folds of')
    refuses(lambda: fusion_weights.weight_grid(2, 0.3), 'does not divide 1')
