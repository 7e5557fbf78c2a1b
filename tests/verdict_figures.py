"""How often a verdict's first choice is within .01 nDCG@10 of the best system, with few labels drawn from a real task's judgements.

    python tests/verdict_figures.py hpo-lay nfcorpus pubmedqa_pqal medquad_qa --labels 80 --draws 20

A task is a name of `medir tasks` or a folder below $MEDIR_DATA; `NAME@N` keeps N documents. Labels come from its judgements in one of
several ways (`--labels-as`). `judged`: queries are drawn, and all that is judged of each, until the labels are used. `pool@D`: as
`medir label` asks; every document that some system puts among its first D costs a label, relevant or not, and queries on which all systems
agree come last. In place of queries by a language model there are `--queries FILE` (JSON lines of `_id`, `text`, `document`), else the
rarest words of a document: a poor kind that favours BM25, which the rule must survive.

Three rules are compared: the mean of people's labels alone, the machine's queries alone, and both (`walk.evidence.combined`). Times of the
systems play no part: `worth` is 0. Vectors are kept in $MEDIR_HOME, so a second call is arithmetic. `--few` shows that it works."""

import argparse
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from medir_nb.core import progress, to_markdown
from medir_nb.data import load_task, task_from_frames
from medir_nb.evaluator import evaluate
from medir_nb.evaluator.measures import per_query
from medir_nb.retrieval.bm25 import analyze
from medir_nb.retrieval.runs import first_ranks, sort_run
from medir_nb.walk.evidence import combined, score_matrix
from medir_nb.walk.pooling import MOST_QUERIES, differing_first, stands_for
from medir_nb.walk.rivals import encoders_here

MEASURE = 'nDCG@10'
CLOSE = 0.01


def named_task(name, limit=0):
    "A registry task, or a folder below $MEDIR_DATA; NAME@N keeps N documents."
    name, _, few = name.partition('@')
    folder = Path(os.environ.get('MEDIR_DATA', '.')) / name
    return load_task(str(folder) if folder.is_dir() else name, limit=int(few or limit) or None)


def rare_words(task, n, words=4, seed=0):
    "Queries of the rarest words of `n` documents, with the document that each comes from."
    tokens = (
        analyze(task.corpus.texts(), 'english', 'en')
        if task.language == 'en'
        else analyze(task.corpus.texts(), 'bigram', 'en')
    )
    often = Counter(token for of_text in tokens for token in set(of_text))
    draw, rows = np.random.default_rng(seed), []
    for i in draw.permutation(len(tokens)):
        known = [token for token in dict.fromkeys(tokens[i]) if often[token] > 1]
        if len(known) >= words:
            best = sorted(known, key=lambda token: often[token])[:words]
            rows.append((f's{i}', ' '.join(best), task.corpus.ids[i]))
        if len(rows) == n:
            break
    return pd.DataFrame(rows, columns=['id', 'text', 'document'])


def synthetic_task(task, args):
    "The task with queries of a machine."
    if args.queries:
        rows = pd.read_json(args.queries, lines=True, dtype=False).rename(columns={'_id': 'id'})
        rows = rows[rows.document.isin(task.corpus.ids)].head(args.synthetic)
    else:
        rows = rare_words(task, args.synthetic, seed=args.seed)
    qrels = pd.DataFrame({'query_id': rows.id, 'doc_id': rows.document, 'relevance': 1})
    corpus = pd.DataFrame({'id': task.corpus.ids, 'text': task.corpus.texts()})
    made = task_from_frames(corpus, rows[['id', 'text']], qrels, name=f'{task.name}[machine]')
    return replace(made, language=task.language)


class Judged:
    "Whole queries with all that is judged of them."

    def __init__(self, task, scores):
        self.scores = score_matrix(scores, MEASURE)
        self.cost = task.qrels[task.qrels.query_id.isin(self.scores.index)].groupby('query_id').size()

    def order(self, queries):
        return queries

    def ties(self, queries, chosen):
        return 0


class Pool:
    "Queries with the first documents of each system, read as `medir label` hands them out."

    def __init__(self, task, scores, depth):
        heads = [first_ranks(sort_run(score.run), depth).assign(system=score.system) for score in scores]
        pooled = pd.concat([head.assign(rank=head.groupby('query_id').cumcount() + 1) for head in heads])
        self.rows = {}
        for (query, document), part in pooled.groupby(['query_id', 'doc_id']):
            brought = dict(zip(part.system, part['rank'], strict=True))
            self.rows.setdefault(query, []).append({'query_id': query, 'doc_id': document, 'brought': brought})
        self.cost = pd.Series({query: len(rows) for query, rows in self.rows.items()})
        pairs = pooled[['query_id', 'doc_id']].drop_duplicates()
        qrels = pairs.merge(task.qrels, how='left').fillna({'relevance': 0}).astype({'relevance': int})
        columns = {score.system: per_query(qrels, score.run, [MEASURE]).set_index('query_id').value for score in scores}
        found = qrels[qrels.relevance > 0].query_id.unique()
        self.scores = pd.DataFrame(columns).loc[found]

    def order(self, queries):
        rows = [row for query in queries[:MOST_QUERIES] for row in self.rows[query]]
        return list(dict.fromkeys(row['query_id'] for row in differing_first(rows)))

    def ties(self, queries, chosen):
        rows = [row for query in queries[:MOST_QUERIES] for row in self.rows[query]]
        return stands_for(rows, chosen) - int(self.scores.index.isin(chosen).sum())


def label_source(name, task, scores):
    "`judged`, or `pool@D`."
    return Pool(task, scores, int(name.partition('@')[2] or 1)) if name.startswith('pool') else Judged(task, scores)


def drawn_labels(source, labels, draw):
    "Scores of people, ties beside them, and how many labels were used."
    queries = list(draw.permutation(np.array(source.cost.index, object)))
    used, chosen = 0, []
    for query in source.order(queries):
        if used + source.cost[query] > labels and chosen:
            break
        used += source.cost[query]
        chosen.append(query)
    return source.scores[source.scores.index.isin(chosen)], source.ties(queries, chosen), len(chosen), int(used)


def with_interval(hits):
    "A share with its 95 % interval (Wilson)."
    from scipy.stats import binomtest

    low, high = binomtest(int(sum(hits)), len(hits)).proportion_ci(method='wilson')
    return f'{np.mean(hits):.2f} [{low:.2f}, {high:.2f}]'


def share_within(source, true, machine, labels, args):
    "What each rule's choice loses, draw by draw."
    draw, behind, about = np.random.default_rng(args.seed), {'people': [], 'machine': [], 'both': []}, []
    alone = combined(None, machine).estimate
    for _ in range(args.draws):
        people, ties, queries, used = drawn_labels(source, labels, draw)
        both = combined(people, machine, ties)
        estimates = {'people': people.mean() if len(people) else alone, 'machine': alone, 'both': both.estimate}
        for rule, estimate in estimates.items():
            behind[rule].append(true.max() - true[estimate.idxmax()])
        about.append((queries, used, both.people))
    row = dict(zip(('queries', 'labels', "people's share"), np.mean(about, axis=0).round(2), strict=True))
    row |= {f'{rule}, within {CLOSE:g}': with_interval(np.array(lost) <= CLOSE) for rule, lost in behind.items()}
    return row | {f'{rule}, behind': round(float(np.mean(lost)), 4) for rule, lost in behind.items()}


def task_rows(name, args):
    "A row for each way and number of labels of a task."
    task = named_task(name, args.limit)
    systems = args.systems or default_systems(task.language)
    scores = [evaluate(task, system, [MEASURE]) for system in progress(systems, desc=task.name, unit='system')]
    machine = score_matrix([evaluate(synthetic_task(task, args), system, [MEASURE]) for system in systems], MEASURE)
    true = score_matrix(scores, MEASURE).mean().sort_values(ascending=False)
    print(f'{task.name}: {", ".join(f"{system} {value:.3f}" for system, value in true.items())}')
    for way in args.labels_as:
        source = label_source(way, task, scores)
        for labels in args.labels:
            yield {'task': task.name, 'labels as': way} | share_within(source, true, machine, labels, args)


def default_systems(language):
    "What a verdict compares here."
    encoders, _ = encoders_here(language)
    return ['bm25', *encoders, *(f'rrf(bm25,{name})' for name in encoders)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tasks', nargs='+')
    parser.add_argument('--labels', type=int, nargs='+', default=[80])
    parser.add_argument('--labels-as', nargs='+', default=['judged', 'pool@1'], help='judged, pool@1, pool@5, …')
    parser.add_argument('--draws', type=int, default=20)
    parser.add_argument('--synthetic', type=int, default=300, help='queries of the machine')
    parser.add_argument('--queries', default='', help='JSON lines of _id, text, document')
    parser.add_argument('--systems', nargs='*', default=[])
    parser.add_argument('--limit', type=int, default=0, help='documents')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--csv', default='', help='a file for the table')
    parser.add_argument('--few', action='store_true', help='200 documents, BM25 alone, in a home folder of its own')
    args = parser.parse_args()
    if args.few:
        os.environ['MEDIR_HOME'] = tempfile.mkdtemp()
        args.limit, args.synthetic, args.systems = 200, 50, ['bm25', 'bm25(lucene)', 'bm25(b=0)', 'bm25(k1=0,b=0)']
    table = pd.DataFrame([row for name in args.tasks for row in task_rows(name, args)])
    if args.csv:
        table.to_csv(args.csv, index=False)
    print(to_markdown(table))


if __name__ == '__main__':
    main()
