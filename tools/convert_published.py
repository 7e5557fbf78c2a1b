"""Make medir_nb/registry/published/PAPER.csv: every number that the four papers publish, one tidy row per printed cell.

    python tools/convert_published.py FOLDER_OF_CSVS [TARGET]

FOLDER_OF_CSVS holds one CSV per table or results folder (columns paper, table, system, variant, dataset,
metric, value, source, some with more). Only facts are taken: numbers, the names they stand beside, and where
they are printed. Two files that are derived from others are checked against those and left out.

Columns of the result (the paper is the name of the file):
  table         "Table 2", or the part of a repository ("results_json", "gar", "leaderboard", ...)
  system, variant, dataset, metric      as printed there
  task, measure the registry's task name and the ir_measures name; null where there is none
  value, text   the number (null where the text is none, such as "10M") and the text
  scale         1 or 100: what a perfect score would be printed as (1 for all that is no score)
  printed_step  10 ** -decimals, in the printed scale; half of it is the rounding. Sources that went through
                floats drop trailing zeros (78.9 for 78.90), so decimals are the most that the table prints
                for that metric
  group         the size group of BMRetriever's Tables 2 and 3
  method, llm, retriever, reranker, depth      R2MED's systems, null elsewhere (llm is a leaderboard's rewriter)
  doubt         why a cell cannot be right or should not be met, else null
  source        where it is printed: paper and table, or repository@commit:path
"""

import re
import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path

import pandas as pd

DERIVED = ['bmretriever_fig1_data.csv', 'r2med_ndcg10_wide.csv']

PAPERS = {'BMRetriever': 'bmretriever', 'MAR': 'mar', 'automir': 'automir', 'r2med': 'r2med'}

# Dataset names as printed -> registry task. Names of one paper never mean another thing in another paper.
TASKS = {
    # AutoMIR (MAR's Table 13 re-annotates two of these under their C-MTEB names)
    "MedExam": "cmirb-medexam", "DuBaike": "cmirb-dubaike", "DXYDisease": "cmirb-dxydisease",
    "Medical": "cmirb-medical", "MedicalRetrieval": "cmirb-medical",
    "Cmedqa": "cmirb-cmedqa", "CmedqaRetrieval": "cmirb-cmedqa",
    "DXYConsult": "cmirb-dxyconsult", "Covid": "cmirb-covid", "IIYiPost": "cmirb-iiyipost",
    "CSLCite": "cmirb-cslcite", "CSLRel": "cmirb-cslrel",
    "legal_summarization": "legal-summarization",
    "legalbench_contracts_qa": "legal-contracts-qa", "legalbench_lobbying": "legal-lobbying",
    # R2MED
    "Biology": "r2med-biology", "Bioinformatics": "r2med-bioinformatics",
    "Medical-Sciences": "r2med-medical-sciences", "MedXpertQA-Exam": "r2med-medxpertqa-exam",
    "MedQA-Diag": "r2med-medqa-diag", "PMC-Treatment": "r2med-pmc-treatment",
    "PMC-Clinical": "r2med-pmc-clinical", "IIYi-Clinical": "r2med-iiyi-clinical",
    # BMRetriever (R2MED's authors ran NFCorpus as a sanity check)
    "NFCorpus": "nfcorpus", "BEIR_NFCorpus": "nfcorpus", "SciFact": "scifact", "SciDocs": "scidocs",
    "Trec-COVID": "trec-covid", "BIOSSES": "biosses", "BioASQ": "bioasq", "PubMedQA": "pubmedqa",
    "iCliniq": "icliniq", "DrugBank": "drugbank", "MeSH": "mesh", "RELISH": "relish",
    # MAR
    "MedTEB-Retrieval": "medteb-retrieval", "Retrieval": "medteb-retrieval",
    "MedTEB-Rerank": "medteb-rerank", "Rerank": "medteb-rerank",
    "MedTEB-STS": "medteb-sts", "Synonym STS": "medteb-sts",
    "CMedQAv1-reranking": "cmedqa-v1-reranking", "CMedQA-v1-rk.": "cmedqa-v1-reranking",
    "CMedQAv2-reranking": "cmedqa-v2-reranking", "CMedQA-v2-rk.": "cmedqa-v2-reranking",
}  # fmt: skip

MEASURES = {'ndcg': 'nDCG', 'recall': 'R', 'r': 'R', 'precision': 'P', 'p': 'P', 'map': 'AP', 'mrr': 'RR'}
WHOLE = {'Spearman', 'Pearson'}  # measures without a cutoff that keep their name
MEANS = {'mean', 'Avg Score'}  # of cells of several measures

# Cells that cannot be right: (paper, table, start of system, variant or None, dataset, metric or None) -> why.
DOUBTS = {
    ('bmretriever', 'Table 2', 'COCO-DR', None, 'Avg. All', None): "the cells' mean is 0.5684",
    ('bmretriever', 'Table 2', 'LLM2Vec', None, 'Avg. All', None): "the cells' mean is 0.6068: cut, not rounded",
    ('bmretriever', 'Table 4', 'Contriever', None, 'Avg. Retr.', None): "the cells' mean is 0.3610",
    ('bmretriever', 'Table 4', 'Contriever', None, 'Avg. All', None): "the cells' mean is 0.4450",
    ('bmretriever', 'Table 4', 'E5-Large-v2', None, 'Avg. All', None): "the cells' mean is 0.5436: cut, not rounded",
    ('bmretriever', 'Table 4', 'BMRETRIEVER', '2B', 'Avg. All', None): "the cells' mean is 0.5946",
    ('bmretriever', 'Table 2', 'BMRETRIEVER', '7B', '(model)', 'pretraining_pairs'): 'appendix B.1 says 1M for 7B',
    ('bmretriever', 'Table 3', 'SGPT-2.7B', None, 'DrugBank', 'R@1'): "above this row's MRR@5, which is impossible",
    ('bmretriever', 'Table 3', 'SGPT-2.7B', None, 'DrugBank', 'MRR@5'): "below this row's R@1, which is impossible",
    ('bmretriever', 'Table 3', 'E5-Large-v2', None, 'DrugBank', 'R@1'): "above this row's MRR@5, which is impossible",
    ('bmretriever', 'Table 3', 'E5-Large-v2', None, 'DrugBank', 'MRR@5'): "below this row's R@1, which is impossible",
    ('bmretriever', 'Table 3', 'InstructOR-XL', None, 'DrugBank', 'MRR@5'): 'at most 79.75 with one gold document',
    ('bmretriever', 'Table 3', 'InstructOR-XL', None, 'MeSH', 'MRR@5'): 'at most 44.9 with one gold document',
    ('bmretriever', 'Table 3', 'BMRETRIEVER-1B', None, 'MeSH', 'MRR@5'): 'at most 47.9 with one gold document',
    ('bmretriever', 'Table 3', 'BMRETRIEVER-2B', None, 'MeSH', 'MRR@5'): 'at most 58.45 with one gold document',
    ('mar', 'Table 4', 'Q:Medical-Embedder-8B', None, 'MedTEB-Retrieval', None): 'another value in the later version',
    ('mar', 'Table 4', 'Q:Medical-Embedder-8B', None, 'MedTEB-Rerank', None): 'another value in the later version',
    ('mar', 'Table 13', 'GPT-4o', None, None, 'orig_pos_per_query'): 'inside the top 50 only, not of the full qrels',
    ('mar', 'Table 19', 'Fine-tuning', None, None, 'Epochs'): 'appendix G: 1 where it initialises MAR',
}
for size in ('410M', '2B', '7B'):
    DOUBTS['bmretriever', 'Table 3', f'BMRETRIEVER-{size}', None, 'PubMedQA', 'R@20'] = (
        'three sizes share 74.6: a ceiling'
    )
for name in ('NFCorpus', 'SciFact', 'SciDocs'):
    DOUBTS['bmretriever', 'Table 4', 'Contriever', None, name, None] = 'equals the supervised row of Table 2'

# What the CSVs note inside a cell goes to `doubt`, so that `text` is only what is printed.
REMARKS = {
    '20,000 (cell shared with Rerank?)': ('20,000', 'the cell may be shared with Rerank'),
    '50,000 (cell shared with v2?)': ('50,000', 'the cell may be shared with CMedQA-v2'),
    '(blank in text)': ('', 'the cell is blank'),
}

COLUMNS = [
    "paper", "table", "system", "variant", "dataset", "metric", "task", "measure", "value", "text", "scale",
    "printed_step", "group", "method", "llm", "retriever", "reranker", "depth", "doubt", "source",
]  # fmt: skip


def read(path):
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def number(text):
    "The Decimal that `text` prints, thousands commas allowed, or None."
    try:
        return Decimal(text.replace(',', '')) if re.fullmatch(r'[-\d.,]+(e-?\d+)?', text) else None
    except InvalidOperation:
        return None


def measure(metric):
    "ir_measures' name of a printed metric; `mean` for a mean over several measures; None for what is no measure."
    if metric in WHOLE:
        return metric
    if metric in MEANS:
        return 'mean'
    found = re.fullmatch(r'([a-z]+)(?:(?:@|_at_)(\d+))?(?: \(assumed\))?', metric.lower())
    if not found or found[1] not in MEASURES:
        return None
    return MEASURES[found[1]] + (f'@{found[2]}' if found[2] else '')


def source_and_group(row):
    "The citation with the papers' own names, and the size group of Tables 2 and 3."
    source, _, group = row['source'].partition('; group=')
    source = source.replace('seed002', 'BMRetriever').replace('seed003', 'MAR').replace(' (percent)', '')
    if source.startswith('EMNLP25_AutoMIR.pdf'):
        source = f'AutoMIR {row["table"]} (Findings of EMNLP 2025, 2025.findings-emnlp.1305)'
    if (row['paper'], row['table']) == ('bmretriever', 'Table 3'):
        group = row['variant']
    return source, re.sub(r'\(([<>]) ?', r'(\1', group) or None


def doubt(row):
    for (paper, table, system, variant, dataset, metric), why in DOUBTS.items():
        if (
            (row['paper'], row['table']) == (paper, table)
            and row['system'].startswith(system)
            and variant in (None, row['variant'])
            and dataset in (None, row['dataset'])
            and metric in (None, row['metric'])
        ):
            return why
    return None


def scale(row):
    "100 for scores printed in percent. AutoMIR's and R2MED's files say it; the others follow the tables."
    if row.get('scale'):
        return int(row['scale'])
    percent = row['paper'] == 'mar' or row['table'] == 'Table 3'
    return 100 if percent and row['measure'] else 1


def tidy(path):
    "The rows of one CSV, in its order."
    rows = []
    for row in read(path).to_dict('records'):
        row['paper'] = PAPERS[row['paper']]
        if row['paper'] in ('bmretriever', 'mar'):
            row['table'] = ('Table ' if row['table'].isdigit() else 'Appendix ') + row['table']
        if 'rewriter' in row:  # the leaderboard writes "-" for none
            row['llm'] = row['rewriter'].removesuffix('-')
            row['reranker'] = row['reranker'].removesuffix('-')
        row['text'], remark = REMARKS.get(row['value'], (row['value'], None))
        row['decimal'] = number(row['text'])
        row['value'] = None if row['decimal'] is None else float(row['decimal'])
        row['task'] = TASKS.get(row['dataset'])
        row['measure'] = measure(row['metric'])
        row['doubt'] = remark or doubt(row)
        row['scale'] = scale(row)
        row['source'], row['group'] = source_and_group(row)
        rows.append(row)
    decimals = {}
    for row in rows:
        if row['decimal'] is not None:
            key = row['table'], row['metric']
            decimals[key] = max(decimals.get(key, 0), -row['decimal'].as_tuple().exponent)
    for row in rows:
        known = row['decimal'] is not None
        row['printed_step'] = float(Decimal(1).scaleb(-decimals[row['table'], row['metric']])) if known else None
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def check_derived(folder, cells):
    "Every number of the two derived files follows from the other files."
    figure = read(folder / DERIVED[0])
    table = cells[(cells.paper == 'bmretriever') & (cells.table == 'Table 2')]
    factor = {'M': 1e6, 'B': 1e9}
    for row in figure.itertuples():
        own = table[(table.system == row.system) & (table.variant == row.variant)].set_index('dataset')
        if row.metric == 'params':
            size = own[own.metric == 'params'].text.iloc[0]
            follows = float(size[:-1]) * factor[size[-1]]
        elif row.metric == 'avg_all_printed':
            follows = own.value['Avg. All']
        else:
            follows = own.value[['NFCorpus', 'SciFact', 'SciDocs', 'Trec-COVID', 'BIOSSES']].mean()
        assert abs(follows - float(row.value)) < 1e-4, row

    wide = read(folder / DERIVED[1])
    keys = ['table', 'method', 'llm', 'retriever', 'reranker', 'depth']
    r2med = cells[(cells.paper == 'r2med') & (cells.measure == 'nDCG@10') & (cells.dataset != 'BEIR_NFCorpus')]
    found = r2med.fillna(dict.fromkeys(keys, '')).pivot_table(index=keys, columns='dataset', values='value') * 100
    for row in wide.to_dict('records'):
        own = found.loc[tuple(row[k] for k in keys)]
        for name in set(row) - set(keys) - {'avg'}:
            assert abs(own[name] - float(row[name])) < 6e-4, (row, name)
        names = [n for n in row if n in TASKS]
        assert len(names) == 8 and abs(own[names].mean() - float(row['avg'])) < 6e-4, row


def main(folder, target):
    folder, target = Path(folder), Path(target)
    frames = {p.name: tidy(p) for p in sorted(folder.glob('*.csv')) if p.name not in DERIVED}
    for name, frame in frames.items():
        assert len(frame) == len(read(folder / name)), name
        print(f'{len(frame):6} {name}')
    cells = pd.concat(frames.values(), ignore_index=True).replace({'': None})
    cells['text'] = cells.text.fillna('')
    cells['value'] = cells.value.astype(float)
    cells['printed_step'] = cells.printed_step.astype(float)
    check_derived(folder, cells)
    cells['depth'] = cells.depth.astype('Int64')
    for paper, rows in cells.groupby('paper'):
        file = target / f'{paper}.csv'
        rows.drop(columns='paper').to_csv(file, index=False)
        print(f'{len(rows):6} rows, {file.stat().st_size:,} bytes in {file.name}')


if __name__ == '__main__':
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else Path(__file__).parents[1] / 'medir_nb/registry/published')
