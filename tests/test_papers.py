"Printed cells of papers beside measured ones: rows, means, verdicts, claims, speeds, figures; what stored pages hold."

import html, itertools, json, re, subprocess, sys
from dataclasses import replace
from pathlib import Path
import numpy as np, pandas as pd, pytest
from conftest import refuses
from medir_nb.core import MedirError, read_yaml, registry, rows as more_rows, to_markdown
from medir_nb.data import load_task, task_from_frames
from medir_nb.evaluator import Scores, Speed
from medir_nb.papers import audit, beside_speeds, case_instructions, experiment, gain_figure, independent_results
from medir_nb.papers import independent_verdict, leave_one_out, Ledger, long_name, means_of, paper_tasks, printed_cases
from medir_nb.papers import printed_expression, printed_speeds, published, ranking_agreement, recomputed_means
from medir_nb.papers import save_figure, second_ranking, Seeds, setting_switches, speed_caveat, Switch, SwitchKey
from medir_nb.papers import task_table, task_tests, throughput_figure, with_independent, with_means, worth_table
from medir_nb.papers.audits import claims_on_cells
from medir_nb.retrieval import parse, pending

ROOT = Path(__file__).parents[1]
R2MED, CMIRB = paper_tasks('r2med'), paper_tasks('automir')


def preset(name):
    return read_yaml(ROOT / f'params/{name}.yaml')


def of_r2med(table, **more):
    return published('r2med', table, **{'measure': 'nDCG@10', 'task': R2MED} | more)


def frame(**columns):
    return pd.DataFrame({name: [value] for name, value in columns.items()})


def one_query(name, system, value, registered=True):
    "A score of one query on a task that passes for the registry's."
    judged = frame(query_id='q', doc_id='a', relevance=1)
    task = task_from_frames(frame(_id='a', text='高血压病'), frame(_id='q', text='高血压'), judged)
    row = registry('tasks')[name]
    own = {'language': row.get('language', 'en'), 'split': row.get('split', 'test'), 'registered': registered}
    measures = ('nDCG@10', 'R@100')
    values = pd.DataFrame({'query_id': 'q', 'measure': measures, 'value': value})
    task = replace(task, name=name, **own)
    return Scores(task, system, system, values, measures=measures, stats={'dtype': 'float32'})


def of_one_query(*names):
    return {name: {**registry('tasks')[name], 'queries': 1, 'documents': 1, 'qrels': 1} for name in names}


def measured(ledger, task=None):
    rows = ledger.frame[ledger.frame.measured.notna()]
    return rows if task is None else rows[rows.task == task]


@pytest.mark.medium
def test_78_systems_of_r2med_with_their_cells_and_what_each_would_need():
    tables = {name: Ledger(with_means(of_r2med(name))) for name in ('base', 'gar', 'reranker')}
    assert {name: len(one.table()) for name, one in tables.items()} == {'base': 15, 'gar': 57, 'reranker': 6}
    needs = {}
    for ledger in tables.values():
        cells = ledger.frame[ledger.frame.task.notna()]
        assert cells.groupby(['system', 'variant']).task.nunique().eq(8).all() and set(ledger.counts()) == {'not run'}
        needs |= dict(ledger.needs())
        for row in ledger.rows:
            assert needs[row.label] and parse(str(row.systems[0])) == row.systems[0]  # an expression that can be typed
    assert needs['Biology'] == 'R2MED/Biology'
    for system, what in {
        'nv': 'torch==2.4.0, transformers==4.44.2',
        'hyde(gpt4)+bge': "the authors' text of GPT-4o",
        'openai': 'OPENAI_API_KEY',
        'search-o1(qwq-32b)+nv': 'searches were not published',
        'nv>monobert@10': 'castorini/monobert-large-msmarco',
    }.items():
        assert what in needs[system]


NV = 'nv-embed-v2(max_document_tokens=4096,max_query_tokens=4096)'
E5 = 'e5-mistral(dtype=float32,max_document_tokens=2048,max_query_tokens=2048)'


@pytest.mark.parametrize(
    'table, system, expression',
    [
        ('base', 'bm25', 'bm25(gensim)'),
        ('base', 'contriever', 'contriever(similarity=cos)'),
        ('base', 'medcpt', 'medcpt-article'),
        ('gar', 'hyde(huatuo-o1-70b)+bm25', 'bm25(gensim)+hyde(huatuo-o1-70b@authors)'),
        ('gar', 'query2doc(gpt4)+nv', f'{NV}+query2doc(gpt-4o@authors)'),
        ('gar', 'search-r1(qwen-3b-ins)+bge', 'bge-large-en-v1.5+search-r1(searchr1-3b@authors)'),
        ('leaderboard', 'E5-mistral-7b-instruct + ReasonRank(32B)', f'{E5}>listwise(reasonrank-32b,words=380)@100'),
        ('leaderboard', 'Search-O1 (QwQ-32b) + BM25', 'bm25(gensim)+search-o1(qwq-32b@authors)'),
        ('leaderboard', 'MedCPT', 'medcpt(max_query_tokens=512,similarity=cos,titles=false)'),
    ],
)
def test_a_printed_system_as_an_expression(table, system, expression):
    assert set(map(printed_expression, of_r2med(table, system=system).itertuples())) == {expression}


def mar_rows(table):
    "Printed system of MAR → its expression, rows that are no system left out."
    cells = published('mar', table)
    cells = cells[cells.measure.notna() & ~cells.system.str.startswith(('Average', '('))]
    return {cell.system: printed_expression(cell) for cell in cells.itertuples()}


@pytest.mark.parametrize('table, count', [('Table 9', 14), ('Table 3', 13), ('Table 4', 5)])
def test_every_printed_system_of_mar_has_a_row(table, count):
    found = mar_rows(table)
    assert len(found) == count == len(set(found.values())) and set(found.values()) <= set(registry('models'))


def test_a_name_of_mars_table_3_is_the_tuned_model_and_nobody_elses():
    before, after, models = mar_rows('Table 9'), mar_rows('Table 3'), registry('models')
    both = set(before) & set(after)
    assert len(both) == 11 and all(after[name] == f'{before[name]}-medteb' for name in both)
    for name in both:
        plain, tuned = models[before[name]], models[after[name]]
        assert tuned['checkpoint'] == after[name] and 'checkpoint' not in plain
        assert [tuned[field] for field in ('params', 'pooling')] == [plain[field] for field in ('params', 'pooling')]
    cells = published('mar', 'Table 9').drop_duplicates('system').set_index('system').variant
    sizes = cells.str.removeprefix('params ').str.partition(';')[0]
    assert all(models[row]['size'] == sizes[name] for name, row in before.items())
    own_code = {name for name in before.values() if models[name]['remote_code']}
    assert own_code == {'gte-multilingual-base', 'gte-qwen2-1.5b-instruct', 'gte-qwen2-7b-instruct'}


def test_the_paper_presets_of_medteb_name_all_that_is_printed():
    paper = preset('medteb_evaluation/paper')
    tuned = {f'{name}-medteb' for name in paper['tuned']}
    table3, table4 = (set(mar_rows(table).values()) for table in ('Table 3', 'Table 4'))
    assert set(paper['systems']) == set(mar_rows('Table 9').values()) and table4 == set(paper['own_systems'])
    assert tuned | {'mar-4b', 'mar-8b'} == table3 and sorted(paper['tasks']) == sorted(paper_tasks('mar'))
    assert set(paper['speed_systems']) == table3 | table4 and paper['speed_task'] in paper['tuned_tasks']
    assert paper['asymmetric'] == ['mar-4b', 'mar-8b']
    again, printed = preset('medteb_construction/paper'), published('mar', 'Table 13')
    assert set(again['audit_tasks']) == set(printed.task)
    assert set(printed.variant) == {f'top-{again["audit_k"]} from {again["audit_retriever"]}'}


@pytest.mark.medium
def test_the_paper_preset_of_r2med_plans_offline(medir):
    paper = preset('r2med_retrieval/paper')
    assert set(paper['tasks']) == set(R2MED)
    assert {str(parse(system)) for system in paper['systems']} == set(registry('systems')['r2med'])
    ran = medir('plan', 'r2med_retrieval', '--preset', 'paper')
    rows = [line for line in ran.out.splitlines() if line.startswith('| r2med-')]
    assert ran.code == 0 and len(rows) == 8 * 16 and not [row for row in rows if 'cannot run' in row]


def test_every_published_system_of_r2med_has_a_name_that_a_reader_knows():
    names = [long_name(label) for label in task_table(of_r2med(['base', 'gar', 'reranker'])).index]
    short = {'nv', 'bge', 'grit', 'sfr', 'gpt4', 'qwen', 'hyde', 'lamer', 'query2doc', 'inst', 'bmr'}
    assert len(set(names)) == 78
    assert not [n for n in names if set(re.split(r'[\s,+@-]+', n.partition('>')[0])) & short]
    assert long_name('nv>monobert@10') == 'NV-Embed-v2 > monoBERT-large @ 10' and long_name('my own') == 'my own'


def test_printed_means_follow_from_printed_cells_or_are_named():
    tables = ['Table 2', 'Table 3', 'Table 4', 'Table 12', 'Table 13', 'README leaderboard']
    means = recomputed_means(published('automir', tables))
    assert means.agrees.all() and means.groupby('table').size()[tables].tolist() == [12, 24, 24, 9, 8, 12]
    odd = recomputed_means(published('bmretriever', ['Table 2', 'Table 4'])).query('not agrees')
    assert odd.groupby('table').size().to_dict() == {'Table 2': 2, 'Table 4': 4}
    assert recomputed_means(published('r2med', 'leaderboard')).query('system == "MedCPT"').agrees.all()
    both = means_of('mar')
    assert sorted(both['Avg CMed'] + both['Avg. New']) == sorted(both['Avg(5 tasks)'])


def test_means_that_a_paper_does_not_print_stand_beside_their_cells():
    base = with_means(of_r2med('base'))
    nv = base[base.system == 'nv'].set_index('dataset')
    assert nv.index[:3].tolist() == ['Biology', 'Bioinformatics', 'Medical-Sciences']
    assert nv.value['avg'] == pytest.approx(0.31432, abs=5e-6) and nv.source['avg'] == "mean of the row's cells"
    cases = nv.value[['PMC-Clinical', 'IIYi-Clinical']].mean()
    assert nv.value['group:clinical case'] == pytest.approx(cases, rel=1e-12)
    board = with_means(of_r2med('leaderboard', task=None, system='MedCPT'))
    [printed] = board[board.dataset == 'avg'].source
    assert 'index.html' in printed  # what is printed stays
    part = with_means(base[base.task.notna() & (base.task != R2MED[0])])
    assert 'avg' not in set(part.dataset) and (part.dataset == 'group:clinical case').sum() == 15


def test_all_29_cells_of_automirs_released_files_equal_the_printed_table():
    files, table = (published('automir', name, measure='nDCG@10') for name in ('results_json', 'Table 2'))
    names = {'bge-large-zh-v1.5': 'BGE(large)', 'bge': 'BGE(large)', 'HyDE (qwen+bge)': 'HyDE', 'hyde': 'HyDE'}
    names |= {'SL-HyDE (qwen+bge)': 'SL-HyDE', 'sl-hyde': 'SL-HyDE'}
    both = files.dropna(subset='task').replace({'system': names}).merge(table, on=['system', 'task'])
    assert len(both) == files.task.notna().sum() == 29
    assert (both.value_x / both.scale_x - both.value_y / both.scale_y).abs().max() <= 5.1e-5


def test_group_means_are_measured_on_tasks_that_the_table_does_not_print():
    system, cells = 'me5-large+hyde(qwen2-7b)', published('automir', 'Table 4')
    values, rows = dict(zip(CMIRB, np.linspace(0.1, 0.9, 10))), {('Qwen2+mE5', 'HyDE'): system}
    scores = [one_query(task, system, value, registered=False) for task, value in values.items()]
    ledger, one_short = Ledger(cells, scores, systems=rows), Ledger(cells, scores[1:], systems=rows)
    means = measured(ledger).set_index('dataset').measured / 100
    groups = {name: tasks for name, tasks in means_of('automir').items() if ' ' not in name}
    for group, tasks in groups.items():
        assert means[group] == pytest.approx(np.mean([values[task] for task in tasks]))
    assert list(ledger.table()) == ['group', 'system', 'Know.', 'Consu.', 'News', 'Post', 'Literature', 'avg']
    assert 'intfloat/multilingual-e5-large' in ledger.to_markdown()
    whole = {group for group, tasks in groups.items() if CMIRB[0] not in tasks}
    assert set(measured(one_short).dataset) == whole


def test_a_row_that_could_not_run_says_what_happened():
    rows = {'SL-HyDE': 'bge-large-zh-slhyde+hyde(qwen2-7b-slhyde)'}
    failed = {(rows['SL-HyDE'], 'cmirb-covid'): MedirError('no tuned weights'), ('minilm', 'hpo-lay'): MedirError('x')}
    ledger = Ledger(published('automir', 'Table 2'), not_run=failed, systems=rows)
    cell = ledger.frame[(ledger.frame.system == 'SL-HyDE') & (ledger.frame.task == 'cmirb-covid')]
    assert cell.verdict.item() == 'not run: no tuned weights' and ('SL-HyDE', 'no tuned weights') in ledger.needs()


def test_another_setting_stands_apart_and_a_switch_explains_a_cell_that_it_reproduces(own_registry):
    own_registry(tasks=of_one_query('nfcorpus'))
    cells = published('bmretriever', 'Table 2')
    cell = cells[(cells.system == 'BMRETRIEVER-410M') & (cells.task == 'nfcorpus')].iloc[0]
    exact = cell.value / cell.scale
    runs = {'': exact + 0.002, '(autocast=float16)': exact, '(autocast=float16,similarity=cos)': 0.1}
    scores = [one_query('nfcorpus', f'bmretriever-410m{more}', value) for more, value in runs.items()]
    scores.append(one_query('nfcorpus', 'minilm(autocast=float16)', exact))
    switches = setting_switches(cells, scores, 'autocast')
    assert switches == {SwitchKey('bmretriever-410m', 'nfcorpus', 'nDCG@10'): Switch('autocast=float16', exact)}
    found = measured(Ledger(cells, scores, switches=switches), 'nfcorpus').set_index('label').verdict
    assert found['BMRETRIEVER-410M'] == 'explained: autocast=float16'
    assert found['bmretriever-410m(autocast=float16)'] == 'not comparable: other settings than the row'


def test_a_document_of_ones_own_stands_apart_from_automirs_row(own_registry):
    own_registry(tasks=of_one_query('cmirb-covid'))
    hyde, tuned = 'bge-large-zh-v1.5+hyde(qwen2-7b', 'bge-large-zh-slhyde+hyde(qwen2-7b-slhyde'
    rows = {'HyDE': f'{hyde}@authors)', 'SL-HyDE': f'{tuned}@authors)'}
    systems = [*rows.values(), f'{hyde})', f'{hyde},prompt=mine.txt)', f'{tuned})']
    ledger = Ledger(published('automir', 'Table 2'), [one_query('cmirb-covid', s, 0.5) for s in systems], systems=rows)
    found = measured(ledger, 'cmirb-covid').set_index('label')
    anew, here = 'its text was written anew', 'its retriever was trained here'
    assert found.verdict.to_dict() | {'HyDE': ''} == {
        'HyDE': '',  # the row that can be compared
        f'{hyde})': f'not comparable: {anew}',
        f'{hyde},prompt=mine.txt)': f'not comparable: {anew}',
        f'{tuned}@authors)': f'not comparable: {here}',
        f'{tuned})': f'not comparable: {anew}; {here}',
    }
    assert found.difference.notna().tolist() == [label == 'HyDE' for label in found.index]


def test_seeds_of_a_row_apart_are_one_row_below_the_rule_that_it_has(own_registry):
    own_registry(tasks=of_one_query('cmirb-covid'))
    tuned, own = 'bge-large-zh-slhyde+hyde(qwen2-7b-slhyde{})', 'SL-HyDE Qwen2+BGE'
    more = {'mean(q,d)': '', 'w/ con. (string concat)': ',fusion=concat', 'w/ K-D. (5 hyp. docs)': ',n=5'}
    rows = {(own, variant): tuned.format(f'@authors{setting}') for variant, setting in more.items()}
    drawn = [(rule, seed) for rule in ('', ',fusion=concat') for seed in (43, 44)]
    ran = [one_query('cmirb-covid', tuned.format(f'{rule},seed={seed}'), seed / 100) for rule, seed in drawn]
    ledger = Ledger(published('automir', 'Table 5'), ran, systems=rows)
    apart = [(r.label, r.beside.variant, len(r.scores['cmirb-covid', 'nDCG@10'])) for r in ledger.rows if r.apart]
    concat = (tuned.format(',fusion=concat'), 'w/ con. (string concat)', 2)
    assert sorted(apart) == sorted([(tuned.format(''), 'mean(q,d)', 2), concat])


def test_sentence_pairs_have_a_part_in_a_mean():
    tasks = ('nfcorpus', 'scifact', 'scidocs', 'trec-covid')
    four = [one_query(task, 'bm25', 0.5, registered=False) for task in tasks]
    texts = {'sentence1': list('abcdef'), 'sentence2': list('ghijkl'), 'score': [0.0, 1.0, 2.0, 3.0, 4.0, 2.0]}
    pairs = replace(four[0].task, name='biosses', kind='pairs', pairs=pd.DataFrame(texts))
    predicted = np.array([0.1, 0.3, 0.2, 0.8, 0.9, 0.5])
    about = {'measures': ('Spearman',), 'stats': {'dtype': ''}}
    sts = Scores(pairs, 'bm25', 'bm25', four[0].frame[:0], pair_scores=predicted, **about)
    five = measured(Ledger(published('bmretriever', 'Table 2'), [*four, sts])).query('dataset == "Avg. All"').iloc[0]
    assert five.measured == pytest.approx((4 * 0.5 + sts.mean('Spearman')) / 5)
    assert five.low <= five.measured <= five.high


@pytest.mark.parametrize('paper, table, cells', [('bmretriever', 3, 170), ('mar', 3, 78), ('automir', 2, 132)])
def test_a_table_is_laid_out_before_anything_ran(paper, table, cells):
    assert Ledger(published(paper, table)).counts() == {'not run': cells}
    refuses(lambda: Ledger(published(paper, table), systems={'Okapy': 'bm25'}), 'no published row is called')


def test_seeds_of_a_name_are_one_system(capsys):
    named = {'alone': ['bm25'], 'both': ['bm25(k1=0.9)', 'bm25(k1=2)', 'no-such-model'], 'none': ['no-such-model']}
    run = experiment(['hpo-lay'], named, limit=60)
    assert 'no-such-model on hpo-lay: not run: ' in capsys.readouterr().out and len(run.scores) == 3
    seeds = Seeds.of(run.scores, named)
    table = seeds.table().set_index('system')
    assert table.seeds.to_dict() == {'alone': 1, 'both': 2} and table.least['both'] <= table.most['both']
    first, second = seeds.groups['hpo-lay[limit=60]']['both']
    mean = (first.mean('nDCG@10') + second.mean('nDCG@10')) / 2
    assert seeds.first['both'].mean('nDCG@10') == pytest.approx(mean)
    assert set(seeds.figure_rows().system) == set(table.index)
    assert seeds.tests()[['a', 'b']].values.tolist() == [['alone', 'both']]
    [answer] = worth_table([(seeds.first['alone'], seeds.first['both'])], 'whole').to_dict('records')
    assert answer['than the whole'] in ('better', 'worse', 'no difference shown') and worth_table([], 'whole').empty


def test_tasks_are_tested_exactly_and_corrected_by_hand():
    differences = pd.DataFrame(np.ones((2, 8)), index=['a', 'b'])
    differences.loc['b'] = [1, 1, 1, 1, -1, -1, -1, -1]
    got = task_tests(differences)
    assert got.p.tolist() == [2 / 256, 1.0] and got['p (Holm)'].tolist() == [4 / 256, 1.0]
    # by hand: all 2⁸ ways to set the signs
    values = np.array([0.3, 0.1, -0.2, 0.4, 0.05, 0.2, 0.15, -0.01])
    sums = [abs(np.dot(signs, values)) for signs in itertools.product((1, -1), repeat=8)]
    by_hand = np.mean(np.array(sums) >= abs(values.sum()) - 1e-12)
    assert task_tests(pd.DataFrame([values])).p[0] == pytest.approx(by_hand)
    many = task_tests(pd.DataFrame(np.ones((49, 8))))
    assert many['p (Holm)'].min() == pytest.approx(49 * 2 / 256)  # more comparisons than eight tasks can bear


def three_tasks():
    "Three systems on three tasks: `a` leads by one task alone."
    values = {'llm': [None, 'x', None], 't1': [0.9, 0.3, 0.1], 't2': [0.1, 0.3, 0.2], 't3': [0.2, 0.4, 0.3]}
    return pd.DataFrame(values, index=pd.Index(['a', 'b', 'c'], name='label'))


def test_leaving_one_task_out_by_hand():
    got = leave_one_out(three_tasks(), ['t1', 't2', 't3']).set_index(['left_out', 'system'])
    assert [got['rank']['', s] for s in 'abc'] == [1, 2, 3] and [got['rank']['t1', s] for s in 'abc'] == [3, 1, 2]
    assert got['mean']['t1', 'b'] == pytest.approx(0.35) and len(got) == 12
    equal = three_tasks().assign(t1=0.3, t2=0.3, t3=0.3)
    assert leave_one_out(equal, ['t1', 't2', 't3'])['rank'].eq(1).all()  # equal means share a rank


def audit_of(values, *claims, **about):
    tasks = ['medteb-retrieval', 'medteb-rerank', 'medteb-sts']
    rows = [(system, task, value) for system, three in values.items() for task, value in zip(tasks, three)]
    cells = published('mar', 'Table 3').iloc[[0] * len(rows)].reset_index(drop=True)
    cells[['system', 'task', 'value']] = pd.DataFrame(rows)
    told = [{'reading': 'r', 'source': 's', 'table': 'Table 3', 'of': 'a'} | claim for claim in claims]
    with more_rows('claims', {'mar': {'claims': told, **about}}):
        return audit('mar', cells)


def test_audit_by_hand():
    values = {'a': (90, 10, 20), 'b': (30, 30, 40), 'c': (10, 20, 30)}  # a leads by one task alone
    others = {'than': 'label != "a"'}
    got = audit_of(
        values,
        others,
        {'of': 'b', 'than': 'c', 'said': 'by far'},
        {'of': 'all', 'by': 'most', 'printed': 40.0, 'words': 'only 40'},
        {'of': 'few', 'by': 'most', 'printed': 40.0},
        {**others, 'each': 'task'},
        {'of': 'b', 'than': 'c', 'ratio': True, 'at_least': 'twice'},
        {'pairs': [['a', 'b'], ['b', 'c']]},
        {'pairs': [['a', 'b'], ['b', 'c'], ['c', 'a']], 'mostly': True},
        {'of': 'all', 'by': 'most', 'column': 'rank', 'at_most': 2},
        groups={'few': 'label != "a"'},
        limits={'twice': 2},
    )
    assert got.holds.tolist() == ['yes', 'yes', 'yes', 'no', 'no', 'no', 'yes', 'yes', 'no']
    found = ['40.00; 33.33 (b); above 2 of 2', '33.33; 20.00; 3 of 3 tasks, +10.00 to +20.00', '40.00 (a)', '33.33 (b)']
    assert got.found.tolist()[:4] == found and got.found.tolist()[4:6] == ['1 of 3 tasks, −20.00 to +60.00', '166.67']
    assert got.printed.tolist()[:4] == ['', 'by far', '40.0', '40.0'] and got.words[2] == '“only 40”'
    ends = ['changes without Retrieval', 'the same', '35.0 (without Retrieval) to 55.0 (without Rerank)']
    assert got['leaving one task out'].tolist()[:3] == ends and got['leaving one task out'][4] == ''


def test_a_text_rounds_what_a_table_prints():
    # 41.3495 stands in a table as 41.35, and so in a text as 41.4; rounded at once it is 41.3
    claims = [{'printed': printed} for printed in (41.4, 41.3, 41.35, 41.5, 41.2, 41.36)]
    assert audit_of({'a': (41.3495,) * 3}, *claims).holds.tolist() == ['yes'] * 3 + ['no'] * 3


def test_every_claim_of_the_four_papers_is_read():
    counts = {paper: len(audit(paper)) for paper in registry('claims')}
    assert counts == {'r2med': 19, 'bmretriever': 19, 'automir': 16, 'mar': 16}


def test_the_headline_numbers_of_r2med():
    table = task_table(of_r2med(['base', 'gar', 'reranker']))
    wide = 100 * table[R2MED].mean(axis=1)
    assert len(wide) == 78 and wide.idxmax() == 'query2doc(gpt4)+nv'
    printed = {'nv': 31.43, 'grit': 31.12, 'bm25': 15.13, 'medcpt': 7.87, 'query2doc(gpt4)+nv': 41.65}
    printed |= {'hyde(o3-mini)+nv': 41.35, 'nv>rankllama@10': 29.93, 'nv>rankllama@100': 22.79}
    assert wide[list(printed)].to_dict() == pytest.approx(printed, abs=0.0051)
    first = leave_one_out(table[table.table == 'base'], R2MED).query('rank == 1').set_index('left_out').system
    assert set(first) == {'nv', 'grit', 'sfr', 'bmr-7b'} and first['r2med-pmc-clinical'] == 'bmr-7b'
    refuses(lambda: task_table(of_r2med(['base', 'gar'], measure=None)), 'has two values on')


def test_every_printed_speed_has_its_row_and_its_figures():
    printed, cells = printed_speeds(), published('bmretriever', 'Table 11')
    assert len(printed) * 2 == len(cells) and printed.row.isin(registry('models')).all()
    assert sorted([*printed['documents/s'], *printed['latency, ms']]) == sorted(cells.value)
    by_row = printed.set_index('row')
    assert by_row.loc['bmretriever-7b', 'µs a number'] == pytest.approx(1000 * 58.6 / 4096)
    # a document goes through one of MedCPT's towers
    assert by_row.loc['medcpt', 'parameters, 10⁹'] == pytest.approx(0.109, abs=1e-3)
    refuses(lambda: printed_speeds('bmretriever', 'Table 2'), 'it prints no speeds')


def test_measured_speeds_stand_beside_and_are_not_compared():
    about = 9.0, 9.9, 1.0, 100, 384, 8, 20.0, 256, '1,024 tokens', 'float32', 'cpu'
    rates = {'bmretriever-1b(autocast=float16)': 20.0, 'bmretriever-1b': 10.0, 'minilm': 70.0}
    table = beside_speeds(printed_speeds(), [Speed(name, name, rate, *about) for name, rate in rates.items()])
    assert len(table) == 8 + 2  # two settings of one printed row, and one that is not printed
    both = table[table['here: documents/s'].notna()]
    assert both['here: documents/s'].tolist() == [20.0, 10.0, 70.0] and both['documents/s'].tolist()[:2] == [194.0] * 2
    assert not [column for column in table if 'difference' in column or 'verdict' in column]
    assert 'A, 3 cores, B' in speed_caveat({'cpu': 'A', 'cores': 3, 'gpu': 'B'})


def test_printed_cases_name_tasks_and_their_own_instructions():
    cases = printed_cases()
    right = cases[cases['called relevant']]
    assert len(cases) == 8 and right.system.tolist() == ['BMRetriever'] * 2 and set(right.instruction) == {'on'}
    assert not case_instructions().same.any()
    refuses(lambda: printed_cases('automir'), 'no cases and examples of')


def test_the_same_data_is_the_same_picture_and_no_data_is_none(tmp_path):
    rows = [(p, r, f'{n} ×', d) for p, d in (('A', 0.1), ('B', -0.1)) for r in ('bm25', 'minilm') for n in (1, 3)]
    data = pd.DataFrame(rows, columns=['panel', 'row', 'column', 'difference'])
    data = data.assign(low=data.difference - 0.05, high=data.difference + 0.05)
    one, two = (save_figure('gain', data, gain_figure, tmp_path / name) for name in 'ab')
    assert one.png.read_bytes() == two.png.read_bytes() and one.svg.read_bytes() == two.svg.read_bytes()
    assert all(f'<!-- {text} -->' in one.svg.read_text() for text in ('+0.100', '−0.100', 'A', 'B'))
    assert save_figure('gain', data.iloc[:0], gain_figure, tmp_path) == 'nothing was measured'
    with pytest.raises(MedirError, match="did you mean 'panels'"):
        save_figure('gain', data.rename(columns={'panel': 'panels'}), gain_figure, tmp_path)


def test_names_stand_at_their_marks_and_cover_no_other(tmp_path):
    from matplotlib.text import Text

    rows = [(f'system number {i}', 50 + i, 0.70 + 0.004 * i) for i in range(8)]
    data = pd.DataFrame(rows, columns=['system', 'queries_per_second', 'value']).assign(kind='symmetric', measure='m')
    rate, value = data.queries_per_second, data.value
    data = data.assign(least=rate - 2, most=rate + 2, low=value - 0.01, high=value + 0.01)
    figure = throughput_figure(save_figure('f', data, throughput_figure, tmp_path).csv)
    figure.canvas.draw()
    words = [note for note in figure.axes[0].texts if note.get_text()]
    boxes = [Text.get_window_extent(note, figure.canvas.get_renderer()) for note in words]
    assert len(words) == 8 and not [1 for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


def code_cells(path):
    return [cell for cell in json.loads(path.read_text(encoding='utf-8'))['cells'] if cell['cell_type'] == 'code']


def source(cell):
    return ''.join(cell['source'])


def texts(cell):
    for output in cell['outputs']:
        data = output.get('data', {})
        for kind in ('text/plain', 'text/html', 'text/markdown'):
            yield html.unescape(''.join(data.get(kind, ())))
        yield ''.join(output.get('text', ()))


@pytest.mark.parametrize('path', sorted((ROOT / 'nbs/papers').glob('*.ipynb')), ids=lambda path: path.stem)
def test_a_stored_page_shows_tests_and_names_no_machine(path):
    own = re.compile(r'(?<!M)RR@|(?<!M)AP@|R\(rel|nDCG\(gains')  # names of ir_measures
    for cell in code_cells(path):
        code, stored = source(cell), '\n'.join(texts(cell))
        assert not own.search(stored), code[:80]
        assert not re.findall(r'(?<![\w.:/])/(?:tmp|root|home|work|Users)/', stored), code[:80]
        if 'tests_table(' in code and '[' in stored:
            assert re.search(r'[+−]\d\.\d{3} \[[+−]\d\.\d{3}, [+−]\d\.\d{3}\]', stored), code[:80]
            assert not re.search(r'\d\.\d{4,}', stored), code[:80]


def test_smoke_runs_read_nothing_of_the_readers_data():
    for path in (ROOT / 'params').glob('*/smoke.yaml'):
        parameters = read_yaml(path)
        assert not parameters.get('local_systems') and not parameters.get('gold_tasks'), path


AUDITS = {'automir_cmirb': 'automir', 'bmretriever_evaluation': 'bmretriever'}
AUDITS |= {'medteb_evaluation': 'mar', 'r2med_retrieval': 'r2med'}


@pytest.mark.parametrize('name', AUDITS)
def test_a_stored_audit_is_what_the_published_cells_give(name):
    cells = code_cells(ROOT / f'nbs/papers/{name}.ipynb')
    [shown] = [cell for cell in cells if 'display(audited)' in source(cell)]
    now = audit(AUDITS[name])
    [stored] = [output['data'] for output in shown['outputs']]
    rows = re.findall(r'<tr>(.*?)</tr>', ''.join(stored['text/html']), re.S)
    fields = [[html.unescape(field) for field in re.findall(r'<td>(.*?)</td>', row)] for row in rows]
    fields = [row for row in fields if row]
    assert len(fields) == len(now) and {'yes', 'no'} == set(now.holds)
    for was, row in zip(fields, now.to_numpy().tolist()):  # a page cuts long cells
        assert was == [text[: len(cell) - 3] + '...' if cell.endswith('...') else text for text, cell in zip(row, was)]
    kept = {'bmretriever_evaluation': 'bmretriever', 'r2med_retrieval': 'r2med'}.get(name, name)
    tables = (ROOT / f'figures/{kept}_tables.md').read_text(encoding='utf-8')
    assert to_markdown(now) in tables, 'the table to download is another one'


def test_a_row_of_efficiency_says_what_stands_beside_it():
    kept = json.loads((ROOT / 'figures/efficiency.json').read_text(encoding='utf-8'))
    how = {'ratio': lambda a, b: a / b, 'MB more': lambda a, b: a - b, 's': lambda a, b: a, 'pairs/s': lambda a, b: a}
    for row in kept['rows']:
        value = how[row['result is']](row['this project'], row['other'])
        # numbers are kept with three decimals; a ratio of small ones is off by that
        assert row['the other is'] and value == pytest.approx(row['result'], rel=0.02, abs=0.002), row['what']
        sign, bound = [*row['target'].split(), '', ''][:2]
        met = row['result'] >= float(bound) if sign == '≥' else row['result'] <= float(bound or 'inf')
        assert row['met'] == (('yes' if met else 'no') if sign else ''), row['what']


@pytest.mark.parametrize('split', ['', ', train-kin'])
def test_a_decoder_became_a_retriever_on_both_splits(split):
    "On held-out wordings, three seeds, beside systems that need no training; intervals do not touch."
    stored = pd.read_csv(ROOT / 'figures/bmretriever_training_scores.csv')
    scores = stored[stored.measure == 'nDCG@10'].set_index('system')
    before, after = scores.loc['untrained'], scores.loc[f'both stages{split}']
    assert {'bm25(bm25s)', 'minilm', 'mpnet'} <= set(scores.index) and before.n_queries == after.n_queries == 200
    assert after.value - before.value >= 0.30 and after.low > before.high
    table = (ROOT / 'figures/bmretriever_training_tables.md').read_text(encoding='utf-8')
    [row] = [line.split('|') for line in table.splitlines() if line.startswith(f'| hpo-lay | both stages{split} ')]
    assert f'{after.value:.3f}' in row[3] and row[10].strip() == '3'


def texts_of_demos():
    "(task, expression with generated text) of the embedded tasks in the demos of the papers' notebooks."
    for path in sorted((ROOT / 'params').glob('*/demo.yaml')):
        demo = read_yaml(path)
        for task in sorted(set(demo.get('tasks', [])) & {'hpo-lay', 'hpo-overlap', 'zh-lay'}):
            for system in [s for s in demo.get('systems', []) if '+' in s]:
                yield pytest.param(task, system, id=f'{path.parent.name}-{task}-{system}')


@pytest.mark.medium
@pytest.mark.parametrize('task, system', list(texts_of_demos()))
def test_a_demo_replays_every_text(task, system, home):
    "Whoever runs a demo has neither the model nor hours."
    assert pending(system, load_task(task)).get('to_generate', 0) == 0  # feedback wants no model


def test_the_self_learning_demo_replays_both_generators(home):
    demo, task = read_yaml(ROOT / 'params/automir_slhyde/demo.yaml'), load_task('hpo-lay')
    for generator in (demo['generator'], demo['given_generator']):
        assert pending(f'minilm+hyde({generator},{demo["expansion"]})', task)['to_generate'] == 0
    assert pending(f'minilm+hyde({demo["generator"]},max_tokens=95)', task)['to_generate'] == len(task.queries)


def beside(paper, table, **filters):
    cells = published(paper, table, **filters)
    return with_independent(cells.assign(expression=[printed_expression(cell) for cell in cells.itertuples()]))


def test_r2meds_systems_agree_as_often_as_was_counted_by_hand():
    cells = beside('r2med', 'base', retriever=['bge', 'e5', 'sfr', 'grit'])
    cells = cells[cells.task.str.startswith('r2med-')]
    counts = cells.groupby(['retriever', 'independent_verdict']).size().unstack(fill_value=0)
    counted = counts[['confirmed', 'near', 'differs']].T.to_dict('list')
    assert counted == {'bge': [160, 0, 0], 'e5': [2, 26, 132], 'grit': [4, 41, 115], 'sfr': [0, 26, 134]}


@pytest.mark.parametrize(
    'retriever, task, differing', [('sfr', 'treatment', (0.442, 0.336)), ('grit', 'clinical', (0.371, 0.277))]
)
def test_the_largest_differences_are_found(retriever, task, differing):
    (cell,) = beside('r2med', 'base', retriever=retriever, task=f'r2med-pmc-{task}', measure='nDCG@10').itertuples()
    assert (round(cell.value, 3), round(cell.independent, 3)) == differing and cell.independent_verdict == 'differs'
    assert cell.independent_source.startswith('embeddings-benchmark/results@f4cc6c8:results/')


def test_what_two_numbers_say():
    found = [independent_verdict(0.345, 0.0005, value, '') for value in (0.34549, 0.34551, 0.3501)]
    same = independent_verdict(0.345, 0.0005, 0.345, 'embeddings-benchmark/results@f4cc6c8:results/x.json')
    assert [*found, same] == ['confirmed', 'near', 'differs', 'same run']
    differing = 'data at 1234567, here 89abcde'
    assert independent_verdict(0.345, 0.0005, 0.345, '', differing) == f'other revision: confirmed, {differing}'


def test_no_second_number_where_the_system_is_another():
    cells = beside('r2med', 'gar', retriever='bge', measure='nDCG@10')
    assert len(cells) and cells.independent.isna().all()
    assert beside('r2med', 'base', retriever='bm25').independent.isna().all()


def test_a_ranking_changes_with_second_numbers_and_an_equal_one_agrees():
    cells = beside('r2med', 'base', measure='nDCG@10')
    cells = cells[cells.task.str.startswith('r2med-')]
    ranks = second_ranking(cells)
    assert ranks.loc['grit', ['printed rank', 'second rank']].tolist() == [2, 4]
    agreement = ranking_agreement(cells, draws=50)
    assert agreement['low'] <= agreement['tau'] < 1
    assert ranking_agreement(cells.assign(independent=None), draws=5)['tau'] == 1


def result_file(folder, model, task, content):
    file = folder / 'results' / model / '0123456789abcdef0123456789abcdef01234567' / f'{task}.json'
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


def test_a_checkout_is_converted_and_read_from_a_readers_folder(tmp_path, monkeypatch):
    scores = {'hf_subset': 'default', 'languages': ['eng-Latn'], 'main_score': 0.5, 'ndcg_at_10': 0.5, 'map_at_5': 0.4}
    new = {'mteb_version': '2.1.0', 'task_name': 'NFCorpus', 'evaluation_time': 1.0, 'dataset_revision': 'f' * 40}
    new['scores'] = {'test': [scores], 'train': [{**scores, 'ndcg_at_10': 0.9}]}
    old = {'mteb_version': '1.0.0', 'mteb_dataset_name': 'SciFact', 'dataset_revision': 'e' * 40}
    old['test'] = {'ndcg_at_10': 0.6, 'evaluation_time': 1.0}
    checkout = tmp_path / 'checkout'
    result_file(checkout, 'intfloat__e5-large-v2', 'NFCorpus', new)
    result_file(checkout, 'intfloat__e5-large-v2', 'SciFact', old)
    result_file(checkout, 'nobody__knows-it', 'NFCorpus', new)
    git = ['git', '-C', checkout, '-c', 'user.name=a', '-c', 'user.email=a@b']
    for command in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'results']):
        subprocess.run([*git, *command], check=True)
    target = tmp_path / 'registry' / 'independent' / 'mteb.csv'
    command = [sys.executable, ROOT / 'tools' / 'convert_independent.py', checkout, target]
    assert '2 result files, 1 models, 2 tasks' in subprocess.check_output(command, text=True, cwd=ROOT)
    monkeypatch.setenv('MEDIR_REGISTRY', str(target.parents[1]))
    found = independent_results().groupby(['task', 'measure']).value.first().to_dict()
    nfcorpus = {('nfcorpus', 'AP@5'): 0.4, ('nfcorpus', 'nDCG@10'): 0.5}
    assert found == nfcorpus | {('scifact', 'nDCG@10'): 0.6}


def test_a_claim_that_changes_without_a_task_hangs_on_its_two_cells():
    on_cells = claims_on_cells('bmretriever')
    before = on_cells[on_cells.reading == '7B comes before E5-Mistral']
    assert set(before.task) == {'scifact', 'scidocs'} and before.groupby('task').size().tolist() == [2, 2]
    assert (before.share == 1).all()
    among = on_cells[on_cells.reading == 'Grit-LM comes first, before BMRetriever-7B']
    assert among.groupby('task').share.sum().round(6).eq(2).all() and among.share.min() < 0.1 < 1 == among.share.max()
