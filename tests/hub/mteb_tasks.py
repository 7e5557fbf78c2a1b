"""Data sets of mteb's tasks in their own layouts, at the ids and revisions that mteb names."""

import hashlib, re
from hub.data import ENGLISH, ENGLISH_QUESTIONS, PAIRS, write_configs
from hub.server import Repository

TOLD = 'Take only what a doctor may do at once.'  # an instruction of one query


def judged(prefix=''):
    documents = [{'_id': f'{prefix}{d}', 'title': t, 'text': b} for d, (t, b) in ENGLISH.items()]
    queries = [{'_id': f'{prefix}q{n}', 'text': text} for n, (text, _) in enumerate(ENGLISH_QUESTIONS)]
    qrels = [
        {'query-id': f'{prefix}q{n}', 'corpus-id': f'{prefix}{d}', 'score': float(grade)}
        for n, (_, relevant) in enumerate(ENGLISH_QUESTIONS)
        for d, grade in relevant.items()
    ]
    return documents, queries, qrels


def told(queries, text):
    "An instruction of each query."
    return [{'query-id': query['_id'], 'instruction': f'{text} ({query["_id"]})'} for query in queries]


def listed(documents, queries):
    "The first documents as candidates of each query."
    ids = [document['_id'] for document in documents[:12]]
    return [{'query-id': query['_id'], 'corpus-ids': ids} for query in queries]


def beir(split='test', prefix='', **more):
    "mteb's second layout: a configuration a part."
    documents, queries, qrels = judged(prefix)
    parts = {('corpus', 'corpus'): documents, ('queries', 'queries'): queries, ('default', split): qrels}
    if 'instruction' in more:
        parts['instruction', 'instruction'] = told(queries, more['instruction'])
    if 'top_ranked' in more:
        parts['top_ranked', split] = listed(documents, queries)
    return parts


def r2med(prefix):
    "R2MED: ids and texts without a title, judgements as q_id and p_id."
    documents, queries, qrels = judged(prefix)
    return {
        ('corpus', 'corpus'): [{'id': d['_id'], 'text': f'{d["title"]} {d["text"]}'.strip()} for d in documents],
        ('query', 'query'): [{'id': q['_id'], 'text': q['text']} for q in queries],
        ('qrels', 'qrels'): [{'q_id': j['query-id'], 'p_id': j['corpus-id'], 'score': int(j['score'])} for j in qrels],
    }


def cure(task):
    "CUREv1: corpus and judgements by discipline, questions by discipline and language; `all` is the union of them."
    parts = {}
    for split in [split for split in task.metadata.eval_splits if split != 'all']:
        documents, queries, qrels = judged(f'{split[:3]}-')
        parts |= {('corpus', split): documents, ('qrels', split): qrels}
        for language in task.metadata.eval_langs:
            asked = [{**query, 'text': f'{query["text"]} ({language})'} for query in queries]
            parts[f'queries-{language}', split] = asked
    return parts


def public_health(task):
    "PublicHealthQA: a line a question in each language; the Arabic ones have lines without an answer."
    english = [{'question': text, 'answer': ENGLISH[next(iter(relevant))][1]} for text, relevant in ENGLISH_QUESTIONS]
    arabic = [{'question': f'سؤال {n}', 'answer': f'جواب عن المرض رقم {n}'} for n in range(4)]
    parts = {(language, 'test'): english for language in task.metadata.eval_langs}
    return parts | {('arabic', 'test'): [*arabic, {'question': 'سؤال', 'answer': None}]}


def bright(task):
    documents, queries, qrels = judged()
    gold = {q['_id']: [j['corpus-id'] for j in qrels if j['query-id'] == q['_id']] for q in queries}
    empty = {'reasoning': '', 'gold_answer': '', 'excluded_ids': ['N/A']}
    asked = [{'id': query['_id'], 'query': query['text'], **empty} for query in queries]
    examples = [row | dict.fromkeys(('gold_ids', 'gold_ids_long'), gold[row['id']]) for row in asked]
    texts = [{'id': d['_id'], 'content': d['text']} for d in documents]
    # of the puzzles, a query may not see some documents
    hidden = [{**example, 'excluded_ids': ['d12']} for example in examples]
    parts = {('documents', domain): texts for domain in ('biology', 'aops')}
    return parts | {('examples', 'biology'): examples, ('examples', 'aops'): hidden}


def follow_ir(task):
    "mFollowIR: parts by language, an instruction a query, candidates, and what an instruction changes."
    parts = {}
    for language in task.metadata.eval_langs:
        documents, queries, qrels = judged(f'{language}-')
        parts |= {
            (f'corpus-{language}', 'corpus'): documents,
            (f'queries-{language}', 'queries'): queries,
            (f'instruction-{language}', 'instruction'): told(queries, TOLD),
            (f'default-{language}', 'test'): qrels,
            (f'top_ranked-{language}', 'top_ranked'): listed(documents, queries),
            (f'qrel_diff-{language}', 'qrel_diff'): listed(documents[:1], queries[:1]),
        }
    return parts


def pairs(task):
    return {('default', 'test'): [{'sentence1': a, 'sentence2': b, 'score': s} for a, b, s in PAIRS]}


def chat_doctor(task):
    documents, queries, qrels = judged()
    texts = [{'_id': d['_id'], 'text': d['text']} for d in documents]
    return {('corpus', 'corpus'): texts, ('queries', 'queries'): queries, ('default', 'test'): qrels}


LAYOUTS = {
    'CUREv1': cure,
    'PublicHealthQA': public_health,
    'ChatDoctorRetrieval': chat_doctor,
    'BrightBiologyRetrieval': bright,
    'BrightAopsRetrieval': bright,
    'IFIRCds': lambda task: beir(instruction=TOLD),
    'mFollowIR': follow_ir,
    'BIOSSES': pairs,
    'CMedQAv2-reranking': lambda task: beir(top_ranked=True),
}
SUITES = ('R2MED', 'MTEB(Medical, v1)', 'RTEB(Health, beta)')


def layout(task):
    if task.metadata.name.startswith('R2MED'):
        return r2med(f'{task.metadata.name[5:8]}-')
    make = LAYOUTS.get(task.metadata.name, lambda task: beir(task.metadata.eval_splits[0]))
    return make(task)


def commit_of(revision, path):
    "The commit that a revision means: a short one begins it, a branch is at any."
    whole = hashlib.sha1(path.encode()).hexdigest()
    return revision + whole[len(revision) :] if re.fullmatch('[0-9a-f]+', revision) else whole


def repository(task):
    data = task.metadata.dataset
    build = lambda folder: write_configs(folder, layout(task), 'parquet')
    return Repository('datasets', data['path'], build, [commit_of(data['revision'], data['path'])])


def mteb_repositories(names=()):
    "A repository for each task of the suites that is read here, and for each of `names`."
    import mteb

    found = {task.metadata.name: task for suite in SUITES for task in mteb.get_benchmark(suite).tasks}
    found |= {name: mteb.get_task(name) for name in [*LAYOUTS, *names]}
    return [repository(task) for task in found.values() if task.metadata.type != 'Clustering']
