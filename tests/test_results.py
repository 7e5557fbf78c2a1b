"What the stored results of the notebooks say: their numbers, names and figures, and that they are the same on every machine."

import ast, html, itertools, json, re
from pathlib import Path
import numpy as np
import pandas as pd
import pytest, yaml
from medir_nb.core import read_yaml, to_markdown
from medir_nb.data import load_task, statistics_table, task_from_frames, tasks_table
from medir_nb.evaluator import compare_all, gain_counts, score_run
from medir_nb.papers import audit, long_name, p_text, paper_tasks, paper_tasks_table, published, task_table, task_tests
from medir_nb.papers import tests_table as shown_tests  # pytest would take the name for a test
from medir_nb.retrieval import pending

ROOT = Path(__file__).parents[1]
PAPERS = sorted((ROOT / 'nbs/papers').glob('*.ipynb'))
R2MED = paper_tasks('r2med')


def cells(path):
    return [c for c in json.loads(path.read_text(encoding='utf-8'))['cells'] if c['cell_type'] == 'code']


def source(cell):
    return ''.join(cell['source'])


def texts(cell):
    "The stored outputs of a cell as text."
    for output in cell['outputs']:
        data = output.get('data', {})
        for kind in ('text/plain', 'text/html', 'text/markdown'):
            yield html.unescape(''.join(data.get(kind, ())))
        yield ''.join(output.get('text', ()))


def cell_with(notebook, text):
    (found,) = [c for c in cells(ROOT / 'nbs' / notebook) if text in source(c)]
    return found


# ---------------------------------------------------------------- numbers


def runs(name, n_systems):
    "Scores of some runs on a small task."
    docs = pd.DataFrame({'id': ['d1', 'd2', 'd3'], 'text': ['a b', 'c', 'd']})
    queries = pd.DataFrame({'id': ['q1', 'q2'], 'text': ['a', 'c']})
    qrels = pd.DataFrame({'query_id': ['q1', 'q2'], 'doc_id': ['d1', 'd2'], 'relevance': [1, 1]})
    task = task_from_frames(docs, queries, qrels, name=name)
    rank = lambda i: pd.DataFrame(
        [(q, d, float(-((j + i) % 3))) for q in ('q1', 'q2') for j, d in enumerate(docs.id)],
        columns=['query_id', 'doc_id', 'score'],
    )
    return [score_run(task, rank(i), ['RR@3'], system=f's{i}') for i in range(n_systems)]


def test_a_task_with_a_single_system_leaves_the_other_tests_numbers():
    from medir_nb.papers.experiments import all_pairs

    tests = all_pairs(runs('two', 3) + runs('one', 1))
    for name in ('difference', 'low', 'high', 'p', 'p_holm'):
        assert tests[name].dtype == float, name
    thirds = pd.concat([compare_all([]), pd.DataFrame({'difference': [1 / 3]})]).round(3)
    assert thirds.difference.tolist() == [0.333]


def test_tests_are_shown_in_the_unit_and_digits_of_scores():
    tests = compare_all(runs('x', 2))
    shown = shown_tests(tests)
    assert shown.measure.tolist() == ['MRR@3'] and not {'low', 'high', 'p_holm'} & set(shown)
    assert re.fullmatch(r'[+−]\d\.\d{3} \[[+−]\d\.\d{3}, [+−]\d\.\d{3}\]', shown.difference[0])
    assert [p_text(p) for p in (0.0004, 0.0005, 0.0312)] == ['<0.001', '0.001', '0.031']


@pytest.mark.parametrize('path', PAPERS, ids=lambda p: p.stem)
def test_stored_tests_are_shown_and_measures_have_their_labels(path):
    own = re.compile(r'(?<!M)RR@|(?<!M)AP@|R\(rel|nDCG\(gains')  # names of ir_measures
    for cell in cells(path):
        code, stored = source(cell), '\n'.join(texts(cell))
        assert '.tests.round' not in code and not own.search(stored), code[:80]
        if 'tests_table(' in code and '[' in stored:
            assert re.search(r'[+−]\d\.\d{3} \[[+−]\d\.\d{3}, [+−]\d\.\d{3}\]', stored), code[:80]
            assert not re.search(r'\d\.\d{4,}', stored), code[:80]


# ---------------------------------------------------------------- the same on every machine


def test_stored_runs_read_nothing_of_the_readers_data():
    for preset in (ROOT / 'params').glob('*/smoke.yaml'):
        parameters = yaml.safe_load(preset.read_text(encoding='utf-8'))
        for name in ('local_systems', 'gold_tasks'):
            assert not parameters.get(name), (preset, name)
    for path in PAPERS:
        assert 'tasks_table(' not in re.sub(r'paper_tasks_table\(', '', '\n'.join(map(source, cells(path)))), path.stem


def test_tables_of_tasks_hang_on_no_folder(tmp_path, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    papers = ('bmretriever', 'automir', 'r2med')
    before = [paper_tasks_table(p, ['zh-lay']) for p in papers]
    small = statistics_table(['r2med-biology', 'zh-lay'], counted=['zh-lay'])
    (tmp_path / 'nfcorpus').mkdir()
    (tmp_path / 'nfcorpus' / 'corpus.jsonl').write_text('{"_id": "1", "text": "a"}\n', encoding='utf-8')
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    assert tasks_table().set_index('task').data['nfcorpus'] == '$MEDIR_DATA'
    assert all(a.equals(paper_tasks_table(p, ['zh-lay'])) for a, p in zip(before, papers))
    assert small['from'].tolist() == ['registry', 'registry', 'data']
    assert before[0].set_index('task').measures['zh-lay'] == 'nDCG@10, R@1, MRR@10'


# ---------------------------------------------------------------- stored help


def test_stored_help_is_the_real_one():
    from typer.testing import CliRunner
    from medir_nb.workbook import app

    cell = cell_with('10_workbook/35_cli.ipynb', "CliRunner().invoke(app, ['--help'])")
    real = [line.rstrip() for line in CliRunner().invoke(app, ['--help'], env={'COLUMNS': '80'}).output.splitlines()]
    stored = [line.rstrip() for line in ast.literal_eval(next(t for t in texts(cell) if t.startswith('[')))]
    assert stored == real
    assert [line for line in stored if 'mine ' not in line] != real  # one without a command fails


# ---------------------------------------------------------------- R2MED's claims


def test_words_of_a_claim_stand_beside_how_they_are_read():
    frame = pd.DataFrame({'t1': [0.4, 0.2], 't2': [0.2, 0.2]}, index=['a', 'b'])
    claims = [
        {'words': 'only 30.0', 'reading': 'the highest mean', 'source': 'abstract', 'printed': 30.0},
        {'reading': 'a is first', 'source': 'this project', 'value': lambda f: f['mean'].idxmax() == 'a'},
    ]
    claims[0]['value'] = lambda f: f['mean'].max()
    got = audit(frame, ['t1', 't2'], claims)
    assert got.words.tolist() == ['“only 30.0”', ''] and got.reading.tolist() == ['the highest mean', 'a is first']


def test_the_abstract_is_credited_with_its_own_words_alone():
    stored = '\n'.join(texts(cell_with('papers/r2med_retrieval.ipynb', 'audited = audit(')))
    quoted = set(re.findall('“(.+?)”', stored))
    known = set(re.findall('“(.+?)”', (ROOT / 'docs/protocols/r2med.md').read_text(encoding='utf-8')))
    assert len(quoted) == 5 and quoted <= known
    rows = re.findall(r'<tr>(.*?)</tr>', stored, re.S)
    fields = [[re.sub('<.*?>', '', f) for f in re.findall(r'<t[dh][^>]*>(.*?)</t[dh]>', row, re.S)] for row in rows]
    by_source = [(f[1], f[2]) for f in fields if len(f) > 5 and f[2] in ('abstract', 'this project')]
    assert len(by_source) == 16 and all(bool(words) == (source == 'abstract') for words, source in by_source)


@pytest.mark.parametrize('name', ['automir_cmirb', 'bmretriever_evaluation'])
def test_a_stored_audit_is_what_the_published_cells_give(name):
    notebook = json.loads((ROOT / f'nbs/papers/{name}.ipynb').read_text(encoding='utf-8'))['cells']
    heads = [i for i, c in enumerate(notebook) if c['cell_type'] == 'markdown' and source(c).startswith('## ')]
    (first,) = [i for i in heads if source(notebook[i]).startswith('## The claim audit')]
    section = notebook[first + 1 : next(i for i in heads if i > first)]
    imports = next(source(c) for c in notebook if 'from medir_nb.papers import' in source(c))
    shown, known = [], {'ten': paper_tasks('automir'), 'display': lambda frame: shown.append(frame)}
    exec('\n'.join([imports, *map(source, section)]), known)
    (frame,) = shown
    (stored,) = [o['data'] for c in section for o in c['outputs']]
    rows = re.findall(r'<tr>(.*?)</tr>', ''.join(stored['text/html']), re.S)
    fields = [[html.unescape(f) for f in re.findall(r'<td>(.*?)</td>', row)] for row in rows]
    assert fields == frame.to_numpy().tolist() and len(frame) > 10 and {'yes', 'no'} == set(frame.holds)
    said = frame[frame.printed != '']
    assert len(said) and (said.source != 'this project').all()
    tables = (ROOT / f'figures/{name.removesuffix("_evaluation")}_tables.md').read_text(encoding='utf-8')
    assert to_markdown(frame) in tables, 'the table to download is another one'


def test_modest_is_decided_by_the_mean_and_not_by_the_best_of_many():
    cell = cell_with('papers/r2med_retrieval.ipynb', 'def is_modest(')
    space = {'modest': 0.05}
    body = [f for f in ast.parse(source(cell)).body if getattr(f, 'name', '') == 'is_modest']
    exec(compile(ast.Module(body, []), 'cell', 'exec'), space)
    is_modest = lambda *gains: space['is_modest'](pd.Series(gains))
    assert is_modest(0.01, 0.01, 0.01, 0.12) and not is_modest(0.04, 0.07) and not is_modest(-0.2, 0.01)


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


def test_stored_questions_are_few_and_corrected():
    stored = '\n'.join(texts(cell_with('papers/r2med_generation.ipynb', 'asked = task_tests(')))
    assert 'p (Holm)' in stored and stored.count('0.039') and '8 of 8' in stored
    code = '\n'.join(map(source, cells(ROOT / 'nbs/papers/r2med_generation.ipynb')))
    assert 'interval(' not in code  # no bootstrap of eight values


def test_a_grid_is_counted():
    grid = pd.DataFrame({'panel': ['a', 'a', 'b'], 'difference': [0.1, -0.1, 0.0]})
    grid = grid.assign(low=[0.05, -0.2, -0.1], high=[0.2, -0.05, 0.1])
    got = gain_counts(grid, 'panel').set_index('panel')
    assert got.loc['a', ['cells', 'gain', 'lose', 'open']].tolist() == [2, 1, 1, 0] and got.open['b'] == 1
    kept = gain_counts(pd.read_csv(ROOT / 'figures/automir_gains.csv'), 'panel')
    stored = '\n'.join(texts(cell_with('papers/automir_cmirb.ipynb', "gain_counts(whole, 'panel')")))
    assert all(panel in stored for panel in kept.panel)  # the grid that is spoken of is on the page


# ---------------------------------------------------------------- names


def test_every_published_system_has_a_name_that_a_reader_knows():
    table = task_table(published('r2med', ['base', 'gar', 'reranker'], measure='nDCG@10', task=R2MED))
    names = [long_name(label) for label in table.index]
    assert len(set(names)) == 78
    short = {'nv', 'bge', 'grit', 'sfr', 'gpt4', 'qwen', 'hyde', 'lamer', 'query2doc', 'inst', 'bmr'}
    assert not [n for n in names if set(re.split(r'[\s,+@-]+', n.partition('>')[0])) & short]
    assert long_name('hyde(gpt4)+nv') == 'NV-Embed-v2 + HyDE, GPT-4o'
    assert long_name('nv>monobert@10') == 'NV-Embed-v2 > monoBERT-large @ 10' and long_name('my own') == 'my own'


# ---------------------------------------------------------------- figures


def saved(tmp_path, frame, draw):
    from medir_nb.papers import save_figure

    path = save_figure('f', frame, draw, tmp_path).csv
    figure = draw(path)
    figure.canvas.draw()
    return figure


def extents(figure, artists):
    renderer = figure.canvas.get_renderer()
    return [a.get_window_extent(renderer) for a in artists]


def inside(figure, artists):
    "Whether all are within the picture."
    width, height = figure.canvas.get_width_height()
    return all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= width and b.y1 <= height for b in extents(figure, artists))


LOSSES = {
    'generator': [3.67, 4.03],
    'SL-HyDE': [0, 8.89e-5],
    'no hypothetical documents': [0, 1.07e-6],
    'x': [0, 0.026],
}


@pytest.mark.medium
def test_two_losses_are_no_curve_and_their_labels_fit(tmp_path):
    from medir_nb.papers import training_figure

    two = pd.concat([pd.DataFrame({'run': run, 'step': [1, 2], 'loss': loss}) for run, loss in LOSSES.items()])
    figure = saved(tmp_path, two, training_figure)
    assert all(line.get_linestyle() == 'None' for axes in figure.axes for line in axes.lines)
    assert 'no trend' in ''.join(t.get_text() for t in figure.texts)
    for left, right in zip(figure.axes, figure.axes[1:]):
        labels = [t for t in right.get_yticklabels() if t.get_text()]
        assert min(b.x0 for b in extents(figure, labels)) > left.bbox.x1
    for frame in (two, two[two.run == 'generator'], two[two.run == 'no hypothetical documents']):
        alone = saved(tmp_path, frame.drop(columns='run') if frame.run.nunique() == 1 else frame, training_figure)
        assert inside(alone, [alone.axes[0].yaxis.label])
    many = pd.DataFrame({'step': range(30), 'loss': np.linspace(1, 0.1, 30)})
    drawn = saved(tmp_path, many, training_figure)
    assert drawn.axes[0].lines[0].get_linestyle() == '-' and not drawn.texts


def test_the_labels_of_gains_by_length_fit(tmp_path):
    from medir_nb.papers import length_figure

    rows = [
        {'system': s, 'query_id': f'q{i}', 'length': 30 + i, 'difference': i / 9 - 0.75}
        for s in 'abcd'
        for i in range(13)
    ]
    figure = saved(tmp_path, pd.DataFrame(rows), length_figure)
    assert inside(figure, [figure.axes[0].yaxis.label, *figure.axes[0].get_yticklabels()])


def test_a_line_over_ranks_that_nobody_measured_is_dashed(tmp_path):
    from medir_nb.papers import recall_figure

    curves = {'alone': ((1, 0.1), (10, 0.5), (100, 0.9)), 'other': ((1, 0.1), (10, 0.4), (25, 0.6), (100, 0.9))}
    rows = [('p', s, k, v) for s, curve in curves.items() for k, v in curve]
    figure = saved(tmp_path, pd.DataFrame(rows, columns=['panel', 'system', 'k', 'value']), recall_figure)
    solid, dashed = ([l for l in figure.axes[0].lines if l.get_linestyle() == s] for s in ('-', '--'))
    assert [l.get_xdata().tolist() for l in dashed] == [[10, 100]]
    first = next(l for l in solid if 0.5 in l.get_ydata())
    assert np.isnan(first.get_ydata().astype(float)).sum() == 1  # the solid line breaks off there
    assert 'dashed' in ''.join(t.get_text() for t in figure.texts)


def test_the_legend_of_overlap_hides_nothing_and_the_axis_says_what_it_is(tmp_path):
    from medir_nb.papers import overlap_figure

    rng = np.random.default_rng(0)
    parts = [
        pd.DataFrame(
            {'kind': k, 'system': s, 'query_id': range(40), 'overlap': rng.random(40), 'score': rng.random(40)}
        )
        for k in ('words', 'cosine')
        for s in ('bm25', 'minilm', 'oracle')
    ]
    figure = saved(tmp_path, pd.concat(parts).assign(random=0.2), overlap_figure)
    for axes, kind in zip(figure.axes, ('words', 'cosine')):
        legend, label = extents(figure, [axes.get_legend(), axes.xaxis.label])
        assert legend.y1 <= axes.bbox.y0 and legend.y1 <= label.y0 + 1 and legend.y0 >= 0
        assert axes.get_xlabel().startswith(kind)
    heading, remark = extents(figure, figure.texts[:2])
    assert heading.x1 < remark.x0


def test_columns_of_ranks_have_one_axis(tmp_path):
    from medir_nb.papers import ranks_figure

    systems = [f'system {i}' for i in range(40)]
    rows = [
        {'left_out': out, 'system': s, 'rank': i + 1, 'kind': 'x'} for out in ('', 't') for i, s in enumerate(systems)
    ]
    figure = saved(tmp_path, pd.DataFrame(rows), ranks_figure)
    left, right = figure.axes
    assert left.get_xlim() == right.get_xlim() and left.get_xticks().tolist() == right.get_xticks().tolist()


def test_titles_of_spread_panels_do_not_meet(tmp_path):
    from medir_nb.papers import spread_figure
    from medir_nb.papers import published_gains

    gains = published_gains()
    data = gains.assign(panel=gains.retriever.map(long_name), row=gains.method + ' ' + gains.llm)
    figure = saved(tmp_path, data, spread_figure)
    titles = extents(figure, [axes._left_title for axes in figure.axes])
    assert all(a.x1 < b.x0 for a, b in zip(titles, titles[1:])) and titles[-1].x1 <= figure.canvas.get_width_height()[0]


# ---------------------------------------------------------------- efficiency


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
    of_memory = [row for row in kept['rows'] if 'memory' in row['what'] and row['target']]
    assert of_memory and all('no peer' in row['the other is'] for row in of_memory)
    stored = '\n'.join(texts(cell_with('efficiency.ipynb', "kept = find_root() / 'figures'")))
    assert to_markdown(pd.DataFrame(kept['rows']), 3).strip() in stored  # the page shows the file


# ---------------------------------------------------------------- what a training brought


LEAST_GAIN = 0.30  # nDCG@10 from the untrained decoder to both stages


@pytest.mark.parametrize('split', ['', ', train-kin'])
def test_a_decoder_became_a_retriever_on_both_splits(split):
    "On held-out wordings, three seeds, beside systems that need no training; intervals do not touch."
    stored = pd.read_csv(ROOT / 'figures/bmretriever_training_scores.csv')
    scores = stored[stored.measure == 'nDCG@10'].set_index('system')
    before, after = scores.loc['untrained'], scores.loc[f'both stages{split}']
    assert {'bm25(bm25s)', 'minilm', 'mpnet'} <= set(scores.index) and before.n_queries == after.n_queries == 200
    assert after.value - before.value >= LEAST_GAIN and after.low > before.high
    showcase = read_yaml(ROOT / 'params/bmretriever_training/showcase.yaml')
    assert len(showcase['training_seeds']) == 3 and showcase['splits'] == ['train', 'train-kin']
    table = (ROOT / 'figures/bmretriever_training_tables.md').read_text(encoding='utf-8')
    [row] = [line.split('|') for line in table.splitlines() if line.startswith(f'| hpo-lay | both stages{split} ')]
    assert f'{after.value:.3f}' in row[3] and row[10].strip() == '3'


def test_pages_of_bmretriever_say_how_many_seeds_stand_behind_a_number():
    table = (ROOT / 'figures/bmretriever_training_tables.md').read_text(encoding='utf-8').splitlines()
    scored = [line.split('|') for line in table if line.startswith('| hpo-lay | ') and line.count('|') > 12]
    seeds = {row[2].strip(): row[10].strip() for row in scored}
    assert (seeds['both stages'], seeds['stage II alone']) == ('3', '1')
    pages = {path.stem: path for path in PAPERS if path.stem in ('bmretriever_training', 'bmretriever_ablations')}
    said = {
        name: '\n'.join(source(cell) for cell in json.loads(path.read_text(encoding='utf-8'))['cells'])
        for name, path in pages.items()
    }
    assert 'three seeds of both stages and one of stage II alone' in said['bmretriever_ablations']
    # the figure of the losses has one seed of each split; what is said of the others stands in the table of trainings
    assert 'The losses of the first seed of each split' in said['bmretriever_training']
    stage_one = [line.split('|') for line in table if line.startswith('| pretraining ')]
    losses = {row[2].strip(): float(row[6]) for row in stage_one}
    first = losses.pop('smollm2-bmr-showcase-train-kin-pretrained')
    numbers = (
        f'at {first:.2f}, where the other five end between {min(losses.values()):.2f} and {max(losses.values()):.2f}'
    )
    assert len(losses) == 5 and numbers in said['bmretriever_training']


@pytest.mark.parametrize('path', PAPERS, ids=lambda path: path.stem)
def test_stored_outputs_name_no_folder_of_one_machine(path):
    stored = '\n'.join(text for cell in cells(path) for text in texts(cell))
    assert not re.findall(r'(?<![\w.:/])/(?:tmp|root|home|work|Users)/', stored)


def test_stored_outputs_hold_no_trial_of_a_processor():
    said = re.compile(r'^medir: .* on this processor: ', re.MULTILINE)
    pages = [path for path in (ROOT / 'nbs').rglob('*.ipynb') if ' on this processor: ' in path.read_text('utf-8')]
    assert not [path.name for path in pages if said.search('\n'.join(t for cell in cells(path) for t in texts(cell)))]


# ---------------------------------------------------------------- demos replay


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
    assert pending(system, load_task(task))['to_generate'] == 0


def test_the_self_learning_demo_replays_both_generators(home):
    demo = read_yaml(ROOT / 'params/automir_slhyde/demo.yaml')
    task = load_task('hpo-lay')
    for generator in (demo['generator'], demo['given_generator']):
        system = f'minilm+hyde({generator},{demo["expansion"]})'
        assert pending(system, task)['to_generate'] == 0
    assert pending(f'minilm+hyde({demo["generator"]},max_tokens=95)', task)['to_generate'] == len(task.queries)
