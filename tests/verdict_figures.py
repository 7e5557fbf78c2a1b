"""How often a verdict's first choice is within .01 nDCG@10 of the best system, with few labels drawn from a real task's judgements.

    python tests/verdict_figures.py hpo-lay nfcorpus medquad_qa --labels 80 --draws 20

A task is a name of `medir tasks` or a folder below $MEDIR_DATA. Of its queries some are drawn, whole, until the judgements of `--labels`
pairs are used; `--labels-as pool` counts every document that some system puts among its first `--depth` as a label, as a person reads
them. In place of queries by a language model there are `--queries FILE` (JSON lines of `_id`, `text`, `document`), else the rarest words of
a document: a poor kind that favours BM25, which the rule must survive. Three rules are compared: people's labels alone, the machine's
queries alone, and both (`walk.evidence.combined`). Times of the systems play no part: `worth` is 0. `--few` shows that it works."""

import argparse
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from medir_nb.core import progress
from medir_nb.data import load_task, task_from_frames
from medir_nb.evaluator import evaluate
from medir_nb.retrieval.bm25 import analyze
from medir_nb.retrieval.runs import first_ranks, sort_run
from medir_nb.walk.rivals import encoders_here
from medir_nb.walk.evidence import combined, score_matrix
from medir_nb.evaluator.measures import per_query

MEASURE = 'nDCG@10'


def named_task(name, limit):
    "A registry task, or a folder below $MEDIR_DATA."
    folder = Path(os.environ.get('MEDIR_DATA', '.')) / name
    return load_task(str(folder) if folder.is_dir() else name, limit=limit or None)


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


def labels_by_query(task, runs, args):
    "How many labels each query costs."
    if args.labels_as == 'judged':
        return task.qrels.groupby('query_id').size()
    heads = pd.concat([first_ranks(sort_run(run), args.depth) for run in runs.values()])
    return heads.drop_duplicates(['query_id', 'doc_id']).groupby('query_id').size()


def labelled_scores(task, runs, queries, whole, args):
    "Scores by query on the labels of some queries; of a pool, with what it does not hold as not relevant."
    if args.labels_as == 'judged':
        return whole.loc[whole.index.isin(queries)]
    heads = pd.concat([first_ranks(sort_run(run), args.depth) for run in runs.values()])
    pooled = heads[heads.query_id.isin(queries)][['query_id', 'doc_id']].drop_duplicates()
    qrels = pooled.merge(task.qrels, how='left').fillna({'relevance': 0}).astype({'relevance': int})
    if not (qrels.relevance > 0).any():
        return whole.iloc[:0]
    columns = {name: per_query(qrels, run, [MEASURE]).set_index('query_id').value for name, run in runs.items()}
    return pd.DataFrame(columns)


def drawn_queries(cost, labels, draw):
    "Whole queries in random order until the labels are used."
    order, used, chosen = draw.permutation(np.array(cost.index, object)), 0, []
    for query in order:
        if used + cost[query] > labels and chosen:
            break
        used += cost[query]
        chosen.append(query)
    return chosen, int(used)


def share_within(task, args):
    "A row: shares of draws in which each rule's choice is within .01 of the best."
    systems = args.systems or default_systems(task.language)
    scores = [evaluate(task, system, [MEASURE]) for system in progress(systems, desc=task.name, unit='system')]
    machine = score_matrix([evaluate(synthetic_task(task, args), system, [MEASURE]) for system in systems], MEASURE)
    whole, runs = score_matrix(scores, MEASURE), {score.system: score.run for score in scores}
    true, cost, draw = whole.mean(), labels_by_query(task, runs, args), np.random.default_rng(args.seed)
    behind = {'people': [], 'machine': [], 'both': []}
    queries, used, shares = [], [], []
    for _ in range(args.draws):
        chosen, n_labels = drawn_queries(cost, args.labels, draw)
        people = labelled_scores(task, runs, chosen, whole, args)
        both = combined(people, machine)
        estimates = {'people': people.mean() if len(people) else machine.mean(), 'machine': machine.mean()}
        for rule, estimate in (estimates | {'both': both.estimate}).items():
            behind[rule].append(true.max() - true[estimate.idxmax()])
        queries.append(len(people))
        used.append(n_labels)
        shares.append(both.people)
    row = {'task': task.name, 'systems': len(systems), 'queries': np.mean(queries), 'labels': np.mean(used)}
    row |= {f'{rule}, within .01': float(np.mean(np.array(lost) <= 0.01)) for rule, lost in behind.items()}
    row |= {f'{rule}, behind': float(np.mean(lost)) for rule, lost in behind.items()}
    return row | {"people's share": float(np.mean(shares)), 'best': true.idxmax()}


def default_systems(language):
    "What a verdict compares here."
    encoders, _ = encoders_here(language)
    return ['bm25', *encoders, *(f'rrf(bm25,{name})' for name in encoders)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tasks', nargs='+')
    parser.add_argument('--labels', type=int, default=80)
    parser.add_argument('--labels-as', choices=['judged', 'pool'], default='judged')
    parser.add_argument('--depth', type=int, default=5, help='of the pool')
    parser.add_argument('--draws', type=int, default=20)
    parser.add_argument('--synthetic', type=int, default=300, help='queries of the machine')
    parser.add_argument('--queries', default='', help='JSON lines of _id, text, document')
    parser.add_argument('--systems', nargs='*', default=[])
    parser.add_argument('--limit', type=int, default=0, help='documents')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--few', action='store_true', help='200 documents, BM25 alone, in a home folder of its own')
    args = parser.parse_args()
    if args.few:
        os.environ['MEDIR_HOME'] = tempfile.mkdtemp()
        args.limit, args.synthetic, args.systems = 200, 50, ['bm25', 'bm25(lucene)', 'bm25(b=0)', 'bm25(k1=0,b=0)']
    rows = [share_within(named_task(name, args.limit), args) for name in args.tasks]
    print(pd.DataFrame(rows).round(3).T.to_string())


if __name__ == '__main__':
    main()
