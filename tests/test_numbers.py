"""Every number in the prose of README, of the pages that it leads to and of the front notebook equals its source, or stands on a short list with its reason."""

import json, re
from pathlib import Path
import pandas as pd, pytest, yaml

ROOT = Path(__file__).parent.parent
WORDS = 'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen'.split()
# a figure that is no part of a name (R2MED, nDCG@10, Qwen2.5-Coder-1.5B), or a number in words
NUMBER = re.compile(
    rf'(?<![\w@.,-])[.]?\d[\d,.]*(?<![,.])(?!\w)|\b(?:{"|".join(WORDS[2:])}|twenty|dozen|hundred|thousand|half)\b', re.I
)

# what no file of the repository knows, and why it may stand in prose
KNOWN = {
    r'95 % bootstrap intervals': 'the level of an interval, the default of evaluate',
    r'release \d{4}-\d\d-\d\d': 'a date',
    r'`code` \| half a minute;': 'an estimate for the slowest machine',
    r'nDCG@10 also': 'the name of a measure',
    r'a LoRA or two checkpoints': 'what a row may consist of, and no count',
}


def cleaned(text):
    "Prose without code, comments, addresses and what `make coverage` writes, which a test of its own holds to its source."
    text = re.sub(r'<!-- (coverage|measured) -->.*?<!-- /\1 -->', '', text, flags=re.S)
    text = re.sub(r'<!--.*?-->', '', text, flags=re.S)
    text = re.sub(r'^```.*?^```$', '', text, flags=re.S | re.M)
    text = re.sub(r'!?\[([^\]]*)\]\([^)]*\)', r'\1', text)
    return re.sub(r'`[^`\n]+`', '`code`', text)


# what a visitor reads: the README, and the pages that say more of the same
FRONT = ['README.md', *(f'docs/{name}.md' for name in ('commands', 'own_documents', 'training', 'rerunning'))]


def readme():
    return '\n\n'.join((ROOT / name).read_text(encoding='utf-8') for name in FRONT)


def front_notebook():
    cells = json.loads((ROOT / 'nbs/index.ipynb').read_text())['cells']
    return '\n\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'markdown')


def lines_of_code(text, heading):
    "How many lines of code stand in the first block below a heading."
    block = re.search(rf'^## {heading}\n.*?^```\w+\n(.*?)^```', text, re.S | re.M)[1]
    return len([line for line in block.splitlines() if line.strip()])


def word(number):
    return WORDS[number]


def default_of(function, name):
    import inspect

    return inspect.signature(function).parameters[name].default


def demo_scores():
    return pd.read_csv(ROOT / 'figures/bmretriever_scores.csv').set_index(['system', 'measure'])


def score_lines():
    "The lines of README's table of scores, from the stored ones."
    rows, measures = demo_scores(), ['R@1 strict', 'R@5 strict', 'MRR@5 strict', 'nDCG@10']
    for system in ('bm25', 'minilm', 'smollm2', 'rrf(bm25,minilm)'):
        found = [rows.loc[(system, measure)] for measure in measures]
        shown = [f'{row["value"]:.3f} [{row["low"]:.3f}, {row["high"]:.3f}]' for row in found]
        yield f'| {system} | {" | ".join(shown)} |'


def loop_scores():
    "nDCG@10 of SL-HyDE's demo by system, and the p of its gain, as README writes them."
    scores = pd.read_csv(ROOT / 'figures/automir_slhyde_scores.csv')
    scores = scores[(scores.task == 'hpo-lay') & (scores.measure == 'nDCG@10')].set_index('system').value
    tests = (ROOT / 'figures/automir_slhyde_tables.md').read_text()
    p = float(re.search(r'^\| hpo-lay  \| untuned +\| SL-HyDE is better +\| (0\.\d+)', tests, re.M)[1])
    return {name: f'{value:.3f}'[1:] for name, value in scores.items()} | {'p': f'{p:.3f}'[1:]}


def demo_counts():
    from medir_nb.data import load_task

    task = load_task('hpo-lay')
    return len(task.corpus), len(task.queries), len({query.partition('#')[0] for query in task.queries.ids})


def toy_documents(folder):
    from medir_nb.judging.study_folder import write_toy_documents

    return len(write_toy_documents(folder / 'texts.jsonl').read_text().splitlines())


CITED = {'bmretriever': 'BMRetriever', 'automir': 'AutoMIR / CMIRB', 'r2med': 'R2MED'}


def cited(citation):
    "Authors and year."
    return [citation.partition(',')[0], re.findall(r'\d{4}', citation)[-1]]


def readme_claims(folder):
    "(sentence with slots, values)"
    from medir_nb.core.settings import registry
    from medir_nb.papers import published
    from medir_nb.papers.claims import published_gains
    from medir_nb.papers.papers import paper_row, paper_tasks
    from medir_nb.judging.study_folder import StudySettings
    from medir_nb.judging.sheets import MOST_PAIRS
    from medir_nb.study.queries import STYLES
    from medir_nb.workbook.cli_study import queries_command

    text, r2med, loop = readme(), published('r2med'), loop_scores()
    by_table = r2med[r2med.table.isin(['base', 'gar', 'reranker'])].groupby('table')
    printed = sum(len(part[['system', 'variant']].drop_duplicates()) for _, part in by_table)
    table2 = published('bmretriever', 'Table 2')
    means = table2[table2.doubt.fillna('').str.startswith("the cells' mean")]
    documents, wordings, terms = demo_counts()
    demo = yaml.safe_load((ROOT / 'params/automir_slhyde/demo.yaml').read_text())
    papers = [name for name, row in registry('papers').items() if not row.get('referees')]
    tasks = len(paper_tasks('r2med'))
    return [
        *((f'| {label} ({{}}, {{}}) |', cited(paper_row(name)['citation'])) for name, label in CITED.items()),
        ('| {} tasks, {} retrievers,', [word(tasks), word(r2med[r2med.table == 'base'].system.nunique())]),
        ('all {} published systems with their cells', [printed]),
        ('{} printed expansions and what each adds', [len(published_gains()) // tasks]),
        ('{} rerankers, why they lose', [word(r2med[r2med.table == 'reranker'].reranker.nunique())]),
        ('its {} tasks, Tables', [word(len(paper_tasks('mar')))]),
        ('## {} commands', [word(lines_of_code(text, 'Two commands')).capitalize()]),
        ('## {} lines of Python', [word(lines_of_code(text, 'Six lines of Python')).capitalize()]),
        (
            'On a machine with Python {} and pip',
            [re.search(r'command -v python([\d.]+)', (ROOT / 'Makefile').read_text())[1]],
        ),
        ('{:,} definitions, {} wordings of {} terms', [documents, wordings, terms]),
        *((line, []) for line in score_lines()),
        ("the paper's own Figure {} from", [1]),
        ('with the {} means that do not match their rows marked', [word(len(means))]),
        ('Model size against average, BMRetriever Table {}', [2]),
        ('would take more than {:g} minutes for your documents', [StudySettings.model_fields['minutes'].default]),
        ('write questions of {} styles, for {} minutes', [word(len(STYLES)), default_of(queries_command, 'minutes')]),
        ('sheets of at most {} pairs', [MOST_PAIRS]),
        ('takes these steps on {} short texts', [toy_documents(folder)]),
        ('wrote for {} definitions', [demo['n_documents']]),
        ('trains MiniLM with {} seeds', [word(len(demo['training_seeds']))]),
        ('(nDCG@10 {} against {}, p {} by Holm', [loop['SL-HyDE'], loop['untuned'], loop['p']]),
        ('by the untuned models ({})', [loop['HyDE']]),
        ('shuffled pairs ({})', [loop['control: shuffled pairs']]),
        ('what the {} papers did', [word(len(papers))]),
        ('{} systems look for', [word(len(demo_scores().index.unique('system'))).capitalize()]),
    ]


def front_claims(folder):
    from medir_nb.core.settings import registry
    from medir_nb.papers import published

    papers = [name for name, row in registry('papers').items() if not row.get('referees')]
    documents, wordings, _ = demo_counts()
    packaged = {row['title'].removesuffix('-full') for row in registry('tasks').values() if row['paper'] == 'embedded'}
    cells = json.loads((ROOT / 'nbs/index.ipynb').read_text())['cells']
    code = ''.join(next(cell['source'] for cell in cells if cell['cell_type'] == 'code'))
    lines = len([line for line in code.splitlines() if line.strip()])
    printed = sum(len(published(name)) for name in papers)
    return [
        ('rerun {} papers', [word(len(papers))]),
        ('a small language model and {} tasks come in packages', [word(len(packaged))]),
        ('## {} lines', [word(lines).capitalize()]),
        ('{} things that patients say, {:,} clinical definitions', [wordings, documents]),
        ('{:,} published cells are in the package', [printed]),
    ]


PAGES = {'README.md': (readme, readme_claims), 'nbs/index.ipynb': (front_notebook, front_claims)}


@pytest.mark.parametrize('name', PAGES)
def test_every_number_of_the_prose_equals_its_source(name, tmp_path):
    page, claims = PAGES[name]
    prose = cleaned(page())
    said = [sentence.format(*values) for sentence, values in claims(tmp_path)]
    assert [sentence for sentence in said if sentence not in prose] == []
    # what no sentence above holds to a source
    spans = [found.span() for sentence in said for found in re.finditer(re.escape(sentence), prose)]
    spans += [found.span() for pattern in KNOWN for found in re.finditer(pattern, prose)]
    spans += [found.span() for found in re.finditer(NUMBERED, prose)]
    loose = [found for found in NUMBER.finditer(prose) if not any(a <= found.start() < b for a, b in spans)]
    assert [prose[max(0, found.start() - 30) : found.end() + 20] for found in loose] == []


# tables and figures of a paper, which the notebook behind them has
NUMBERED = r'\b(?:Table|Figure)s? \d+(?:(?:, | and )\d+)*'


def test_the_readme_names_tables_that_the_notebooks_have():
    found = re.findall(
        rf'({NUMBERED}(?:(?:, | and )(?:{NUMBERED}))*)[^|;]*?\((?:\.\./)?(nbs/papers/\w+\.ipynb)\)', readme()
    )
    assert len(found) >= 7
    for said, file in found:
        cells = json.loads((ROOT / file).read_text())['cells']
        text = '\n'.join(''.join(cell['source']) for cell in cells)
        of_notebook, of_readme = (
            {
                (kind, n)
                for kind, ns in re.findall(r'(Table|Figure)s? (\d+(?:(?:, | and )\d+)*)', t)
                for n in re.findall(r'\d+', ns)
            }
            for t in (text, said)
        )
        assert of_readme <= of_notebook, (file, of_readme - of_notebook)
