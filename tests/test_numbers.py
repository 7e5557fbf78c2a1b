"Numbers in the prose of README, of the pages that it leads to and of the front notebook equal their sources."

import json, re
from pathlib import Path
import pandas as pd, yaml
from medir_nb.core import registry
from medir_nb.data import load_task
from medir_nb.papers import paper_tasks, published, published_gains

ROOT = Path(__file__).parent.parent
WORDS = 'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen'.split()
FRONT = [
    'README.md',
    *(f'docs/{name}.md' for name in ('commands', 'own_documents', 'serving', 'training', 'rerunning')),
]
PAPERS = [name for name, row in registry('papers').items() if not row.get('referees')]


def demo_counts():
    "Definitions, wordings and terms of the embedded task."
    task = load_task('hpo-lay')
    return len(task.corpus), len(task.queries), len({query.partition('#')[0] for query in task.queries.ids})


def score_lines():
    "The lines of README's table of scores, from the stored ones."
    rows = pd.read_csv(ROOT / 'figures/bmretriever_scores.csv').set_index(['system', 'measure'])
    for system in ('bm25', 'minilm', 'smollm2', 'rrf(bm25,minilm)'):
        found = [rows.loc[(system, measure)] for measure in ('R@1 strict', 'R@5 strict', 'MRR@5 strict', 'nDCG@10')]
        shown = [f'{row["value"]:.3f} [{row["low"]:.3f}, {row["high"]:.3f}]' for row in found]
        yield f'| {system} | {" | ".join(shown)} |'


def loop_scores():
    "nDCG@10 of SL-HyDE's demo by system, and the p of its gain, as README writes them."
    scores = pd.read_csv(ROOT / 'figures/automir_slhyde_scores.csv')
    scores = scores[(scores.task == 'hpo-lay') & (scores.measure == 'nDCG@10')].set_index('system').value
    tests = (ROOT / 'figures/automir_slhyde_tables.md').read_text()
    p = float(re.search(r'^\| hpo-lay  \| untuned +\| SL-HyDE is better +\| (0\.\d+)', tests, re.M)[1])
    return {name: f'{value:.3f}'[1:] for name, value in scores.items()} | {'p': f'{p:.3f}'[1:]}


def test_numbers_of_the_readme_and_its_pages_equal_their_sources():
    prose = '\n\n'.join((ROOT / name).read_text(encoding='utf-8') for name in FRONT)
    r2med, loop, tasks = published('r2med'), loop_scores(), len(paper_tasks('r2med'))
    table2 = published('bmretriever', 'Table 2')
    means = table2[table2.doubt.fillna('').str.startswith("the cells' mean")]
    demo = yaml.safe_load((ROOT / 'params/automir_slhyde/demo.yaml').read_text())
    documents, wordings, terms = demo_counts()
    said = [
        *score_lines(),
        f'{WORDS[tasks]} tasks, {WORDS[r2med[r2med.table == "base"].system.nunique()]} retrievers,',
        f'{len(published_gains()) // tasks} printed expansions and what each adds',
        f'{WORDS[r2med[r2med.table == "reranker"].reranker.nunique()]} rerankers, why they lose',
        f'its {WORDS[len(paper_tasks("mar"))]} tasks, Tables',
        f'{documents:,} definitions, {wordings} wordings of {terms} terms',
        f'with the {WORDS[len(means)]} means that do not match their rows marked',
        f'wrote for {demo["n_documents"]} definitions',
        f'(nDCG@10 {loop["SL-HyDE"]} against {loop["untuned"]}, p {loop["p"]} by Holm',
        f'by the untuned models ({loop["HyDE"]})',
        f'shuffled pairs ({loop["control: shuffled pairs"]})',
        f'what the {WORDS[len(PAPERS)]} papers did',
    ]
    assert [sentence for sentence in said if sentence not in prose] == []


def test_numbers_of_the_front_notebook_equal_their_sources():
    cells = json.loads((ROOT / 'nbs/index.ipynb').read_text())['cells']
    prose = '\n\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'markdown')
    documents, wordings, _ = demo_counts()
    assert f'{wordings} things that patients say, {documents:,} clinical definitions' in prose
    assert f'{sum(len(published(name)) for name in PAPERS):,} published cells are in the package' in prose
