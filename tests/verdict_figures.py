"""What a verdict promises, measured on collections whose labels are known.

    python tests/verdict_figures.py hpo-lay nfcorpus pubmedqa_pqal scifact medquad_qa@3000

A collection is a name of `medir tasks` or a folder below $MEDIR_DATA; `NAME@N` keeps N documents. Label sets are drawn as
`medir label` hands them out (queries drawn with replacement, those on which the systems differ first, a label for each document that some
system puts among its first `--depth`), and the share of 95 % intervals of the difference to the best system that hold the difference by all
such labels is printed. Vectors are kept in $MEDIR_HOME. `--few` shows that it works."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from medir_nb.core import progress, to_markdown
from medir_nb.data import load_task
from medir_nb.evaluator import evaluate, interval, mean_interval
from medir_nb.evaluator.measures import per_query
from medir_nb.retrieval.runs import first_ranks, sort_run
from medir_nb.walk.pooling import agreeing_queries

MEASURE = 'nDCG@10'
SYSTEMS = ['bm25', 'minilm', 'rrf(bm25,minilm)']


def named_task(name, limit=0):
    "A registry task, or a folder below $MEDIR_DATA; NAME@N keeps N documents."
    name, _, few = name.partition('@')
    folder = Path(os.environ.get('MEDIR_DATA', '.')) / name
    return load_task(str(folder) if folder.is_dir() else name, limit=int(few or limit) or None)


def labelled_pool(task, scores, depth):
    "Rows of a pool, and scores by query (with something relevant in the pool) where nothing but the pool is judged."
    heads = [first_ranks(sort_run(score.run), depth).assign(system=score.system) for score in scores]
    pooled = pd.concat([head.assign(rank=head.groupby('query_id').cumcount() + 1) for head in heads])
    rows = [
        {'query_id': query, 'doc_id': document, 'brought': dict(zip(part.system, part['rank'], strict=True))}
        for (query, document), part in pooled.groupby(['query_id', 'doc_id'])
    ]
    pairs = pooled[['query_id', 'doc_id']].drop_duplicates()
    qrels = pairs.merge(task.qrels, how='left').fillna({'relevance': 0}).astype({'relevance': int})
    columns = {score.system: per_query(qrels, score.run, [MEASURE]).set_index('query_id').value for score in scores}
    found = qrels[qrels.relevance > 0].query_id.unique()
    return rows, pd.DataFrame(columns).loc[found]


def drawn_queries(rows, labels, draw):
    "Queries that so many labels reach, drawn with replacement, those on which systems differ first."
    cost, agreeing = pd.Series([row['query_id'] for row in rows]).value_counts(sort=False), agreeing_queries(rows)
    queries = sorted(draw.choice(cost.index.to_numpy(), len(cost)), key=lambda query: query in agreeing)
    reached = cost[queries].cumsum().to_numpy() <= labels
    return [query for query, is_reached in zip(queries, reached, strict=True) if is_reached]


def calibration(name, args):
    "How often intervals of the difference to the best system hold it, over drawn label sets."
    task = named_task(name, args.limit)
    scores = [evaluate(task, system, [MEASURE]) for system in progress(args.systems, desc=task.name, unit='system')]
    rows, by_query = labelled_pool(task, scores, args.depth)
    agreeing = agreeing_queries(rows)
    differing = by_query[~by_query.index.isin(agreeing)]
    best, draw = differing.mean().idxmax(), np.random.default_rng(args.seed)
    behind = differing.sub(differing[best], axis=0).drop(columns=best)
    true, held, queries = behind.mean(), {'bootstrap': [], "Student's t": []}, []
    for _ in range(args.draws):
        drawn = behind.loc[[query for query in drawn_queries(rows, args.labels, draw) if query in behind.index]]
        queries.append(len(drawn))
        for of, name in ((interval, 'bootstrap'), (mean_interval, "Student's t")):
            ends = [(true[system], *of(drawn[system])) for system in behind]
            held[name] += [low <= value <= high for value, low, high in ends if not np.isnan(low)]
    row = {'collection': task.name, 'queries': round(np.mean(queries), 1), 'best': best}
    return row | {name: round(float(np.mean(hits)), 3) for name, hits in held.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('collections', nargs='+')
    parser.add_argument('--labels', type=int, default=80)
    parser.add_argument('--depth', type=int, default=1)
    parser.add_argument('--draws', type=int, default=200)
    parser.add_argument('--systems', nargs='*', default=SYSTEMS)
    parser.add_argument('--limit', type=int, default=0, help='documents')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--few', action='store_true', help='200 documents, BM25 alone, in a home folder of its own')
    args = parser.parse_args()
    if args.few:
        os.environ['MEDIR_HOME'] = tempfile.mkdtemp()
        args.limit, args.systems = 200, ['bm25', 'bm25(b=0)', 'bm25(k1=0,b=0)']
    print(to_markdown(pd.DataFrame([calibration(name, args) for name in args.collections]), 3))


if __name__ == '__main__':
    main()
