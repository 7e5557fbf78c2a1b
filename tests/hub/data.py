"""A small data set in the row's own layout for every task and corpus that the Hub holds."""

import json, random, shutil, subprocess
from pathlib import Path
from conftest import DOCUMENTS, table, write_lines
from hub.server import Repository
from medir_nb.core import registry

MORE = table("""
d13 | Gout | Colchicine and rest shorten an attack of gout; allopurinol lowers uric acid between attacks.
d14 | Pneumonia | Amoxicillin treats pneumonia that was caught outside a hospital; confusion is a sign of severity.
d15 | Stroke | Thrombolysis within four and a half hours improves the outcome of an ischaemic stroke.
d16 | Eczema | Emollients and mild steroid creams calm the itch of eczema in children.
d17 | Sepsis | Antibiotics within an hour and fluids by weight are the first treatment of sepsis.
d18 | Shingles | A vaccine against shingles is offered to older adults; antivirals help within 72 hours of the rash.
""")
ENGLISH = {i: (title, text) for i, title, text in [*DOCUMENTS, *MORE]}
ENGLISH_QUESTIONS = [  # text, relevant documents with their grades
    ('which drugs are given after a heart attack', {'d02': 2, 'd01': 1}),
    ('first treatment of type 2 diabetes', {'d03': 2, 'd04': 1}),
    ('why am I tired and gaining weight', {'d11': 1}),
    ('how is an attack of gout shortened', {'d13': 1}),
    ('time window for treating a stroke', {'d15': 2}),
    ('what calms the itch of a child', {'d16': 1}),
    ('vaccines for people older than 65', {'d06': 2, 'd18': 2}),
    ('pain in the right lower abdomen', {'d10': 1}),
    ('when should antibiotics start in sepsis', {'d17': 2, 'd14': 1}),
    ('tablets that stop a migraine', {'d07': 1}),
]
PAIRS = [
    ('The drug lowered blood pressure.', 'Blood pressure fell with the drug.', 3.6),
    ('Mutations of this gene cause deafness.', 'The vaccine is given in autumn.', 0.2),
    ('Glucose production in the liver is reduced.', 'The liver makes less glucose.', 3.2),
    ('Surgery lowered mortality.', 'Mortality was lower after surgery within two days.', 2.6),
    ('Iron deficiency causes anaemia.', 'The tumour grew in mice.', 0.4),
    ('Itching improved with emollients.', 'Emollients helped against itching, but not sleep.', 2.2),
]
# what tokenizers are trained on: the texts of the data sets and of the prompts
PHRASES = [
    'Given a query, retrieve passages that are relevant to the query',
    'Represent this sentence for searching relevant passages: ',
    'Instruct: Query: query: passage: Represent this passage',
    'Write a passage that answers the question. Question: Passage: Document:',
    'You are a helpful assistant.',
    '请写一段医学文字回答下面的问题。问题：文字：查询: 结果: 为这个句子生成表示以用于检索相关文章：',
]


def chinese():
    "The passages and questions of the registry's Chinese task."
    rows = registry('zh-lay')
    passages = {i: ('', text) for i, text in rows['passages'].items()}
    return passages, [(asked['text'], dict.fromkeys(asked['relevant'], 1)) for asked in rows['questions']]


def _sentences():
    passages, questions = chinese()
    texts = [' '.join(pair) for pair in [*ENGLISH.values(), *passages.values()]]
    asked = [text for text, _ in [*ENGLISH_QUESTIONS, *questions]]
    return [*texts, *asked, *(sentence for *pair, _ in PAIRS for sentence in pair), *PHRASES]


SENTENCES = _sentences()


def collection(name, row):
    "`(documents, queries, qrels)` of a task: 14 documents (id, title, text), 5 queries (id, text), always the same."
    rng = random.Random(name)
    pool, questions = chinese() if row['language'] == 'zh' else (ENGLISH, ENGLISH_QUESTIONS)
    asked = rng.sample(questions, 9 if row.get('labels') and name.endswith('biology') else 5)
    kept = dict.fromkeys(d for _, relevant in asked for d in relevant)
    others = [d for d in pool if d not in kept]
    kept = [*kept, *rng.sample(others, max(3, 14 - len(kept)))]
    rng.shuffle(kept)
    ids = {d: f'{name[:3]}-{n}' for n, d in enumerate(kept)}
    documents = [(ids[d], *pool[d]) for d in kept]
    if row.get('distinct_documents'):
        documents.append(documents[0])
    if row.get('length_unit') == 'characters' and (row.get('mean_document_length') or 0) > 2000:
        longer = ' '.join([documents[-1][2], *(text for _, text in ENGLISH.values())] * 5)  # than encoders read
        documents[-1] = (*documents[-1][:2], longer)
    queries = [(f'q{n}', text) for n, (text, _) in enumerate(asked)]
    qrels = [(f'q{n}', ids[d], grade) for n, (_, relevant) in enumerate(asked) for d, grade in relevant.items()]
    if 'relevant' in row:  # documents that were judged and are not relevant
        judged = {(q, d) for q, d, _ in qrels}
        qrels += [(q, d, 0) for q, _ in queries for d in rng.sample(list(ids.values()), 3) if (q, d) not in judged]
    return documents, queries, qrels


def counts(name, row):
    if row['kind'] == 'pairs':
        return {'pairs': len(PAIRS)}
    documents, queries, qrels = collection(name, row)
    found = {
        'queries': len(queries),
        'documents': len(documents),
        'distinct_documents': len({d for d, _, _ in documents}),
        'qrels': len(qrels),
        'relevant': sum(g > 0 for _, _, g in qrels),
    }
    return {k: v for k, v in found.items() if isinstance(row.get(k), int)}


def write_rows(path, rows):
    "Rows as parquet or JSON lines, whichever the name says."
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == '.parquet':
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write_lines(path, rows)


def write_configs(folder, parts, kind, card=True):
    "`{(config, split): rows}` as files, and a card that names them."
    found = {}
    for (config, split), rows in parts.items():
        file = f'{config}/{split}-00000-of-00001.parquet' if kind == 'parquet' else f'{config}/{split}.jsonl'
        write_rows(folder / file, rows)
        found.setdefault(config, []).append((split, file))
    head = ''
    for config, files in found.items():
        head += f'- config_name: {config}\n  data_files:\n'
        head += ''.join(f'  - split: {split}\n    path: {file}\n' for split, file in files)
    named = f'---\nconfigs:\n{head}---\n\nA small data set in the layout of the real one.\n'
    (folder / 'README.md').write_text(named if card else 'A small data set.\n')


def published_texts(paper, queries):
    "The generations that a paper's authors publish: `{(method, split): rows}` as the rows of llms.yaml name them."
    out = {}
    for name, llm in registry('llms').items():
        likely = {method: names[0] for method, names in llm.get('likely_splits', {}).get(paper, {}).items()}
        for method, split in {**llm.get('hub_splits', {}).get(paper, {}), **likely}.items():
            mark, wrap = llm.get('answer', {}), '{}'
            if 'tag' in mark:
                wrap = f'<{mark["tag"]}> {{}} </{mark["tag"]}>'
            elif 'after' in mark:
                wrap = f'hm {mark["after"]} {{}}'
            texts = [f'{ENGLISH[i][1]} ({method}, {name})' for i in sorted(ENGLISH)]
            out[method, split] = [
                {'id': query, 'text': text, 'hy_doc': wrap.format(texts[n]), 'doc_id': []}
                for n, (query, text) in enumerate(queries)
            ]
    return out


def task_files(name, row):
    "`{repository id: build(folder)}` of a task: its data set, and that of its judgements where it is another."
    configs, hub = {k: tuple(v) for k, v in row['configs'].items()}, row['hub']
    if row['kind'] == 'pairs':
        rows = [{'sentence1': a, 'sentence2': b, 'score': s} for a, b, s in PAIRS]
        return {hub: lambda folder: write_configs(folder, {configs['pairs']: rows}, 'jsonl')}
    documents, queries, qrels = collection(name, row)
    if 'nested' in configs:
        text = {d: {'doc_id': d, 'title': title, 'abstract': body} for d, title, body in documents}
        asked = [{'doc_id': q, 'title': t, 'abstract': ''} for q, t in queries]
        rows = [{'query': query, 'candidates': list(text.values())} for query in asked]
        grades = {(q, d): g for q, d, g in qrels}
        # every candidate is judged
        judged = [{'query_id': q, 'cand_id': d, 'score': grades.get((q, d), 0)} for q, _ in queries for d in text]
        file = Path(configs['qrels'][0].removeprefix('dir:')) / f'{configs["qrels"][1]}_qrel.jsonl'
        return {
            hub: lambda folder: write_configs(folder, {configs['nested']: rows}, 'parquet'),
            row['qrels_hub']['hub']: lambda folder: write_rows(folder / file, judged),
        }
    if row['paper'] in ('r2med', 'automir') and not hub.startswith('mteb/'):
        parts = {
            configs['corpus']: [{'id': d, 'text': f'{t} {b}'.strip()} for d, t, b in documents],
            configs['queries']: [{'id': q, 'text': t} for q, t in queries],
            configs['qrels']: [{'q_id': q, 'p_id': d, 'score': g} for q, d, g in qrels],
        }
    else:
        parts = {
            configs['corpus']: [{'_id': d, 'title': t, 'text': b} for d, t, b in documents],
            configs['queries']: [{'_id': q, 'text': t} for q, t in queries],
            configs['qrels']: [{'query-id': q, 'corpus-id': d, 'score': float(g)} for q, d, g in qrels],
        }
    if row.get('labels'):
        systems = ['Circulatory System', 'Nervous System']
        asked = enumerate(parts[configs['queries']])
        parts[configs['queries']] = [{**query, row['labels']: systems[n > 7]} for n, query in asked]
    if 'top_ranked' in configs:
        listed = [{'query-id': q, 'corpus-ids': [d for i, d, _ in qrels if i == q]} for q, _ in queries]
        parts[configs['top_ranked']] = listed
    parts |= published_texts(row['paper'], queries)
    kind = 'parquet' if row['language'] == 'zh' else 'jsonl'
    return {hub: lambda folder: write_configs(folder, parts, kind)}


def corpus_rows(row):
    "The documents of a corpus, in the field that its row names; a list where the real one has lists."
    english = [f'{title}. {text}' for title, text in ENGLISH.values() if text]
    texts = [text for _, text in chinese()[0].values()] if row['language'] == 'zh' else english
    rows = [[text] if row['field'] == 'answers' else text for text in texts]
    return [{'questions': [[f'{n}?']], row['field']: told} for n, told in enumerate(rows)]


def corpus_files(name, row):
    def build(folder):
        config, split = row['configs']
        if config == 'default':
            write_rows(folder / f'{split}_datasets.jsonl', corpus_rows(row))
        else:  # a script, which datasets no longer runs
            (folder / f'{row["hub"].split("/")[1]}.py').write_text('import datasets\n')
            write_rows(folder / 'data' / f'{split}.{config}.jsonl', corpus_rows(row))

    return build


RELEASED = [  # an instruction of each group of BMRetriever's rows, and one that a language model thought of
    'Given a question, retrieve relevant documents that answer the question',
    'Given a claim, retrieve documents that support or refute the claim',
    'Given a question, retrieve Pubmed passages that answer the question.',
    'Given the name of a symptom, find leaflets for patients',
]


def released_files(row):
    "`build(folder)` of rows released for training: a file of JSON lines, each with its own instruction and negative."

    def build(folder):
        texts = [(title or 'A note', text) for title, text in ENGLISH.values() if text]
        lines = [
            {'instruction': asked, 'query': f'{title}, {kind}.{n}?', 'positive': text, 'negative': texts[n - 1][1]}
            for kind, asked in enumerate(RELEASED)
            for n, (title, text) in enumerate(texts)
        ]
        write_lines(folder / row['files'][0], lines)

    return build


def carded(build, hub):
    "`build(folder)` with the two files that every repository has; the Hub keeps large ones apart."

    def both(folder):
        build(folder)
        if not (folder / 'README.md').is_file():
            (folder / 'README.md').write_text(f'---\npretty_name: {hub}\n---\nA tiny stand-in.\n')
        large = ''.join(f'*.{kind} filter=lfs diff=lfs merge=lfs -text\n' for kind in ('parquet', 'safetensors'))
        (folder / '.gitattributes').write_text(large)

    return both


def on_the_hub(row):
    return row.get('hub') not in (None, 'unknown')


def data_repositories(tasks=None, corpora=None):
    """A repository for each Hub id of the rows (those of the registries unless given), at the commits that they name;
    and one of each set of training rows that its authors released."""
    out = []
    for name, row in (registry('tasks') if tasks is None else tasks).items():
        if on_the_hub(row):
            revisions = {row['hub']: row['revision']}
            if other := row.get('qrels_hub'):
                revisions[other['hub']] = other['revision']
            out += [(hub, revisions[hub], build) for hub, build in task_files(name, row).items()]
    for name, row in (registry('corpora') if corpora is None else corpora).items():
        if on_the_hub(row):
            out.append((row['hub'], row['revision'], corpus_files(name, row)))
    if tasks is None:
        released = [row for row in registry('tuning').values() if row.get('by_line')]
        out += [(row['hub'], row['revision'], released_files(row)) for row in released]
    return [
        Repository('datasets', hub, carded(build, hub), [] if revision in (None, 'unknown') else [revision])
        for hub, revision, build in out
    ]


def _of_repository(row):
    source, path = row['git'].split(' ', 1)
    return source.partition('@')[0], path


def git_files(paper='automir'):
    "`{repository: {path: rows}}` of rows that name a git repository: tasks with published texts, training documents."
    out = {}
    for name, row in registry('tasks').items():
        if 'git' not in row:
            continue
        repository, path = _of_repository(row)
        files = out.setdefault(repository, {})
        documents, queries, qrels = collection(name, row)
        files[f'{path}/corpus.jsonl'] = [{'id': d, 'text': f'{t} {b}'.strip()} for d, t, b in documents]
        files[f'{path}/query.jsonl'] = [{'id': q, 'text': t} for q, t in queries]
        files[f'{path}/qrels.jsonl'] = [{'q_id': q, 'p_id': d, 'score': g} for q, d, g in qrels]
        texts = [b for _, _, b in documents]
        for llm in registry('llms').values():
            for file in llm.get('authors', []):
                if file.endswith(('query-rewrite.jsonl', 'query-rewrite-sft.jsonl')):
                    answers = zip(queries, texts)
                    files[f'{path}/{file}'] = [{'id': q, 'text': t, 'rewrite_query': made} for (q, t), made in answers]
    for row in registry('corpora').values():
        if 'git' in row:
            repository, path = _of_repository(row)
            passages = enumerate(text for _, text in chinese()[0].values())
            out[repository][path] = [
                {'id': i, 'task': 'MedExam', 'text': f'{text[:8]}是什么？', row['field']: text} for i, text in passages
            ]
    return out


def make_github(folder):
    "Repositories that git finds in GitHub's place (see services.process_environment): `{repository: commit}`."
    commits = {}
    author = ['-c', 'user.name=nobody', '-c', 'user.email=nobody@example.org']
    for repository, files in git_files().items():
        at = Path(folder) / repository
        for path, rows in files.items():
            write_rows(at / path, rows)
        allow = [['config', f'uploadpack.{what}', 'true'] for what in ('allowAnySHA1InWant', 'allowFilter')]
        for command in (['init', '-q'], *allow, ['add', '.'], [*author, 'commit', '-q', '-m', 'data']):
            subprocess.run(['git', *command], cwd=at, check=True, capture_output=True)
        head = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=at, check=True, capture_output=True, text=True)
        commits[repository] = head.stdout.strip()
    return commits


MEDTEB, MEDTEB_QUERIES = ('medteb-retrieval', 'medteb-rerank'), 12  # a reader's own, the last with candidates


def small_registry(folder, commits=None, **more):
    """Write `folder` for $MEDIR_REGISTRY: the packaged rows of tasks and corpora with other counts, and rows of `more`.
    `commits` are those of the repositories on loopback: what a commit is called follows from what is in it."""

    def at(row):
        if 'git' not in row or not commits:
            return {}
        repository, path = _of_repository(row)
        return {'git': f'{repository}@{commits[repository]} {path}'}

    tasks = {n: {**r, **counts(n, r), **at(r)} for n, r in registry('tasks').items() if on_the_hub(r)}
    tasks |= {n: registry('tasks')[n] for n in MEDTEB}
    count = lambda row: min(row['documents'], len(corpus_rows(row)))
    corpora = {n: {**r, 'documents': count(r), **at(r)} for n, r in registry('corpora').items()}
    shutil.rmtree(folder, ignore_errors=True)
    for name, rows in {'tasks': tasks, 'corpora': corpora, **more}.items():
        write_lines(folder / f'{name}.yaml', [json.dumps(rows, ensure_ascii=False)])
    return folder
