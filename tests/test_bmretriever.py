"""A tiny random decoder becomes a retriever in two stages: end token, order, kills, adapters, switches and keys."""

import json, re, shutil, signal, subprocess, sys
from pathlib import Path
import numpy as np, pandas as pd, pytest, yaml
from conftest import in_full, refuses, write_lines
from test_alignment import opened
from test_trainer import CHATML, same_weights
from safetensors.numpy import load_file
from tiny_models import close, make_model
from transformers import AutoTokenizer
from medir_nb.core import checkpoint_record, MedirError, registry, rows as own_rows
from medir_nb.data import load_task
from medir_nb.encoder import contract, Encoder, encoder_spec, save_encoder, Tokens
from medir_nb.papers import published
from medir_nb.trainer import beside_table_8, PairData, printed_training, stage_data, train_encoder, train_retriever
from medir_nb.trainer import TuningData, Watch, write_pair_data, write_tuning_data
from medir_nb.trainer.two_stages import BackboneReading, changed_fields, retriever_settings

ROOT = Path(__file__).parents[1]
WORDS = 'statins metformin insulin asthma vaccine migraine anaemia fracture appendix thyroid heart liver'.split()
DECODER = {'kind': 'encoder', 'backend': 'transformers', 'revision': 'tiny', 'pooling': 'lasttoken', 'append_eos': True}
DECODER |= {'normalize': False, 'similarity': 'cos', 'max_query_tokens': 24, 'max_document_tokens': 32}
DECODER |= {'query_template': '{instruction}\nQuery: {text}', 'document_template': '{text}'}
DECODER |= {'default_instruction': 'Given a query, retrieve passages'}


def chatting(model, tokenizer):
    "Backbones are often chat models, whose tokenizers bring a form of their own."
    tokenizer.chat_template = CHATML


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp('decoders')
    return {
        'tiny-decoder': make_model('llama', base / 'llama', change=chatting),
        'other-decoder': make_model('mistral', base / 'mistral', seed=1),
        'tiny-encoder': make_model('bert', base / 'bert'),
    }


@pytest.fixture
def rows(folders, own_registry, tmp_path, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    rows = {name: dict(DECODER, hub=folders[name]) for name in ('tiny-decoder', 'other-decoder')}
    rows['tiny-encoder'] = dict(DECODER, hub=folders['tiny-encoder'], pooling='mean', append_eos=False)
    other = {'hub': folders['other-decoder'], 'revision': 'tiny'}
    rows['two-decoders'] = dict(rows['tiny-decoder'], document=other)
    own_registry(models=rows)


@pytest.fixture
def abstracts(tmp_path):
    text = 'A note of many words says that {} is given once a day to {} adults.'
    lines = [{'title': f'On {word} in type {n}', 'text': text.format(word, n)} for n, word in enumerate(WORDS)]
    return write_lines(tmp_path / 'abstracts.jsonl', lines)


@pytest.fixture
def written(tmp_path):
    lines = [
        {'id': f'{source}/{word}', 'query': f'what is {word}', 'pos': [f'{word} is a drug of type {n}']}
        | {'neg': [f'the risk of {word} attacks'], 'instruction': f'Find what {source} says', 'source': source}
        for source, words in (('synthetic-queries', WORDS[:6]), ('medquad', WORDS[6:10]), ('nli', WORDS[10:]))
        for n, word in enumerate(words)
    ]
    return write_lines(tmp_path / 'written.jsonl', lines)


@pytest.fixture
def small(rows, abstracts, written, tmp_path):
    steps = {'batch_size': 2, 'learning_rate': 1e-2, 'save_steps': 2}
    data = {'pretraining_data': {'sources': [str(abstracts)], 'near': 0}, 'tuning_data': {'files': [str(written)]}}
    how = {'lora': {'r': 4, 'alpha': 8, 'dropout': 0.1}, 'data_folder': str(tmp_path / 'data')}
    stages = {'pretraining': {**steps, 'max_steps': 4}, 'tuning': {**steps, 'max_steps': 4, 'gradient_cache': 1}}
    return {'backbone': 'tiny-decoder', 'name': 'mine', **data, **how, **stages}


@pytest.mark.medium
def test_both_stages_end_in_a_folder_that_opens_elsewhere(small, tmp_path):
    "Prompts, similarity and end token are in the folder; the vectors are those of the project."
    retriever = train_retriever(small)
    assert retriever.checkpoints == {'pretraining': 'mine-pretrained', 'tuning': 'mine'}
    assert retriever.table().steps.tolist() == [4, 4] and set(retriever.history().run) == {'pretraining', 'tuning'}
    elsewhere = shutil.copytree(retriever.trained['tuning'].folder, tmp_path / 'elsewhere')
    plain = opened(elsewhere)
    assert plain.similarity_fn_name == 'dot' and plain.prompts['query'] == 'Given a query, retrieve passages\nQuery: '
    assert plain.prompts['document'] == 'Represent this passage\npassage: '
    encoder, texts = Encoder('mine'), ['statins', 'metformin and insulin ' * 30]
    for role, call in (('query', plain.encode_query), ('document', plain.encode_document)):
        rendered = encoder.render([('', text) for text in texts], role, encoder.spec.default_instruction)
        close(np.asarray(call(texts)), encoder.encode(rendered, role).vectors)


@pytest.mark.medium
def test_the_end_token_stands_behind_every_text_also_a_cut_one(small, beir, tmp_path):
    retriever = train_retriever(small, stages=['pretraining'])
    shown = contract(Encoder('mine'), load_task(str(beir)))
    eos = Encoder('mine').tokens('query').tokenizer.eos_token_id
    assert [row['token_ids'][-1] for row in shown.rows] == [eos, eos]
    texts = ['', 'statins', 'metformin and insulin ' * 40]
    spec = encoder_spec('mine')
    elsewhere = shutil.copytree(retriever.trained['pretraining'].folder, tmp_path / 'elsewhere')
    tokenizer = AutoTokenizer.from_pretrained(elsewhere)
    for role, limit in (('query', 24), ('document', 32)):
        ids, _, cut = Tokens(spec, role, tokenizer)(texts)
        assert {row[-1] for row in ids} == {eos} and len(ids[2]) == limit and cut.tolist() == [False, False, True]
    plain = tokenizer(texts, truncation=True, max_length=10)['input_ids']
    assert {row[-1] for row in plain} == {eos} and len(plain[2]) == 10


@pytest.mark.medium
@pytest.mark.parametrize('backbone', ['tiny-decoder', 'other-decoder'])
def test_the_vector_of_the_end_token_hangs_on_neither_side_nor_batch(small, backbone):
    "Padding left or right, texts alone or beside longer ones: the same to 1e-5, here and in sentence-transformers."
    folder = train_retriever(small, stages=['pretraining'], backbone=backbone).trained['pretraining'].folder
    texts = ['statins', 'metformin and insulin in type 2', *(f'{word} once a day' for word in WORDS), 'insulin ' * 60]
    vectors = {}
    for side in ('left', 'right'):
        model = opened(folder)
        model.tokenizer.padding_side = side
        for size in (1, 3, len(texts)):
            vectors[side, size] = model.encode_query(texts, batch_size=size)
    own = Encoder('mine')
    rendered = own.render([('', text) for text in texts], 'query', own.spec.default_instruction)
    vectors['own', len(texts)] = own.encode(rendered, 'query').vectors
    vectors['own', 1] = np.concatenate([own.encode([text], 'query').vectors for text in rendered])
    longest = np.abs(vectors['left', 1]).max()
    for how, found in vectors.items():
        assert np.abs(found - vectors['left', 1]).max() < 1e-5 * max(1.0, longest), how


@pytest.mark.medium
def test_without_end_token_and_instruction(small):
    retriever = train_retriever(small, stages=['tuning'], reading={'instruction': False, 'end_token': False})
    tokenizer = AutoTokenizer.from_pretrained(retriever.trained['tuning'].folder)
    assert tokenizer('statins')['input_ids'][-1] != tokenizer.eos_token_id
    spec = encoder_spec('mine')
    assert (spec.query_template, spec.document_template) == ('{text}', '{text}')


@pytest.mark.medium
def test_a_retriever_goes_on_taking_the_instruction_of_a_task(small):
    "It was trained under one a line; the folder alone knows the default."
    train_retriever(small)
    spec, task = encoder_spec('mine'), load_task('hpo-lay', limit=40)
    assert '{instruction}' in spec.query_template
    encoder = Encoder('mine')
    assert encoder.instruction(task) == task.instruction('default') != spec.default_instruction
    assert encoder.render([('', 'x')], 'query', encoder.instruction(task))[0].startswith(task.instruction('default'))


@pytest.mark.medium
def test_what_is_saved_is_merged_and_its_matrices_lie_beside_it(small):
    retriever = train_retriever(small, stages=['pretraining'])
    folder = retriever.trained['pretraining'].folder
    folders = (folder, registry('models')['tiny-decoder']['hub'])
    merged, base = (load_file(Path(f) / 'model.safetensors') for f in folders)
    matrices = load_file(folder / 'adapter' / 'query.safetensors')
    assert set(merged) == set(base) and not any('lora' in name for name in merged)
    name = next(name for name in base if name.endswith('layers.0.self_attn.q_proj.weight'))
    a, b = (matrices[f'base_model.model.{name.removesuffix(".weight")}.lora_{x}.weight'] for x in 'AB')
    np.testing.assert_allclose(merged[name], base[name] + 8 / 4 * b @ a, atol=1e-5)
    assert np.abs(b).max() > 0
    same = [n for n in base if 'embed' in n or 'norm' in n]
    assert same and all((merged[n] == base[n]).all() for n in same)  # what has no adapter stays


BACKBONES = ['tiny-decoder', 'two-decoders']  # one tower, and one a role


def plain_vectors(folder):
    model, texts = opened(folder), ['statins', 'metformin and insulin ' * 30]
    return {'query': model.encode_query(texts), 'document': model.encode_document(texts)}


def same_vectors(a, b, atol=1e-5):
    for role in a:
        np.testing.assert_allclose(a[role], b[role], rtol=0, atol=atol, err_msg=role)


@pytest.mark.medium
@pytest.mark.parametrize('backbone', BACKBONES)
def test_merged_or_not_stage_two_begins_with_the_same_vectors(small, backbone, tmp_path):
    "A step that moves nothing shows what stage II begins with: the vectors of stage I, and one first loss."
    lora = {**small['lora'], 'dropout': 0.0}
    still = dict(small['tuning'], learning_rate=1e-30, max_steps=1)
    one = {**small, 'backbone': backbone, 'lora': lora, 'pretrained_name': 'first', 'tuning': still}
    merged, unmerged = train_retriever(one), train_retriever(one, name='unmerged', merge=False)
    first = plain_vectors(merged.trained['pretraining'].folder)
    untrained = Encoder(encoder_spec(backbone, **changed_fields(BackboneReading())))
    before = plain_vectors(save_encoder(untrained, tmp_path / 'before'))
    assert all(np.abs(first[role] - before[role]).max() > 1e-3 for role in first)  # stage I did something
    for retriever in (merged, unmerged):
        same_vectors(plain_vectors(retriever.trained['tuning'].folder), first)
    assert unmerged.trained['tuning'].loss == pytest.approx(merged.trained['tuning'].loss, rel=1e-4)
    roles = ['document', 'query'] if backbone == 'two-decoders' else ['query']
    for retriever in (merged, unmerged):
        adapters = (retriever.trained['tuning'].folder / 'adapter').glob('*.safetensors')
        assert sorted(file.stem for file in adapters) == roles


_KILLED_BETWEEN = """
import json, os, signal, sys
from medir_nb.trainer import two_stages
two_stages.write_tuning_data = lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL)
two_stages.train_retriever(json.loads(sys.argv[1]))
"""


@pytest.mark.medium
@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('merge', [True, False])
def test_killed_between_the_stages_it_ends_where_it_would_have(small, backbone, merge):
    settings = {**small, 'backbone': backbone, 'merge': merge}
    child = subprocess.run([sys.executable, '-c', _KILLED_BETWEEN, json.dumps(settings)], capture_output=True)
    assert child.returncode == -signal.SIGKILL, child.stderr[-2000:]
    assert checkpoint_record('mine-pretrained') and not checkpoint_record('mine')
    whole, done = train_retriever(settings, name='whole'), train_retriever(settings)
    assert done.trained['pretraining'].reused and not whole.trained['pretraining'].reused
    for stage in ('pretraining', 'tuning'):
        a, b = done.trained[stage], whole.trained[stage]
        np.testing.assert_array_equal(a.history.loss, b.history.loss)
        same_vectors(plain_vectors(a.folder), plain_vectors(b.folder), atol=0)


def test_an_adapter_of_another_shape_or_base_is_refused(small):
    train_retriever(small, stages=['pretraining'])
    other = {'name': 'b', 'stages': ['tuning'], 'start': 'mine', 'merge': False, 'lora': {'r': 2, 'alpha': 8}}
    refuses(lambda: train_retriever(small, **other), 'has the shape')
    settings = dict(model='other-decoder', data=str(Path(small['data_folder']) / 'pretraining.jsonl'), output='c')
    with pytest.raises(MedirError, match='trained on tiny-decoder, not on other-decoder'):
        train_encoder(settings, lora=small['lora'], adapter='mine', negatives=0, batch_size=2)


@pytest.mark.parametrize(
    'change, said',
    [
        ({'stages': []}, 'its stages are none'),
        ({'stages': ['tuning', 'pretraining']}, 'its stages are none, twice or out of order'),
        ({'lora': None, 'merge': False}, 'no adapter'),
        ({'size': '3B'}, "no size '3B'"),
        ({'stages': ['tuning'], 'tuning_data': {'sets': ['mednli']}}, 'needs a licence'),
        ({'stages': ['tuning'], 'start': 'never'}, 'no such checkpoint'),
    ],
)
def test_a_fault_is_one_line(small, change, said):
    refuses(lambda: train_retriever({**small, **change}), said)


@pytest.mark.medium
@pytest.mark.parametrize('merge', [True, False])
@pytest.mark.parametrize('at', [('pretraining', 3), ('tuning', 1), ('tuning', 3)])
def test_a_stopped_stage_goes_on_to_the_same_end(small, at, merge):
    class Stop(Watch):
        met = 0  # last steps that were seen: that of stage I comes first

        def __call__(self, lines, now=False):
            stage = ('pretraining', 'tuning')[Stop.met]
            if (stage, lines[-1]['step']) == at and not now:
                raise KeyboardInterrupt
            if now and lines[-1]['step'] == 4:
                Stop.met += 1

    small = {**small, 'merge': merge}
    whole = train_retriever(small, name='whole')
    with pytest.raises(KeyboardInterrupt):
        train_retriever(small, watch=Stop(None))
    done = train_retriever(small)
    for stage, trained in done.trained.items():
        assert trained.steps == 4 and trained.loss == whole.trained[stage].loss
        np.testing.assert_array_equal(trained.history.loss, whole.trained[stage].history.loss)
        same_weights(trained.folder, whole.trained[stage].folder)
    assert done.trained['pretraining'].reused == (at[0] == 'tuning')


SWITCHES = [
    {'reading': {'instruction': False}},
    {'reading': {'similarity': 'cos'}},
    {'lora': None},
    {'lora': {'r': 2, 'alpha': 8, 'dropout': 0.1}},
]


@pytest.mark.medium
@pytest.mark.parametrize('change', SWITCHES, ids=lambda change: json.dumps(change)[:40])
def test_a_switch_changes_the_key(small, change):
    one = {**small, 'stages': ['pretraining'], 'pretraining': {'max_steps': 1, 'batch_size': 2}}
    train_retriever(one, name='a')
    train_retriever({**one, **change}, name='b')
    assert checkpoint_record('a')['revision'] != checkpoint_record('b')['revision']


def test_groups_and_portions_of_stage_two(small, written, tmp_path):
    def ids(**settings):
        data = TuningData(files=[str(written)], **settings)
        return {row['id'] for row in write_tuning_data(data, tmp_path / 'd').mined}

    whole = ids()
    assert len(whole) == 12 and {i.split('/')[0] for i in ids(groups=['biomedical'])} == {'medquad'}
    assert {i.split('/')[0] for i in ids(groups=['general', 'biomedical'])} == {'medquad', 'nli'}
    half = ids(portion=0.5)
    assert ids(portion=0.4) <= half < whole


def test_a_duplicate_of_another_source_is_left_out_also_when_one_of_them_changes(tmp_path, abstracts):
    other = write_lines(tmp_path / 'other.jsonl', [{'title': 'T', 'text': 'of its own and of eight words it is'}])
    data, folder = PairData(sources=[str(abstracts), str(other)], near=0), tmp_path / 'data'
    assert write_pair_data(data, folder).rows == 13
    more = '{"title": "U", "text": "another one that has eight words of its own"}'
    write_lines(other, [*abstracts.read_text().splitlines()[:5], more])
    assert write_pair_data(data, folder).table['in the mixture'].tolist() == [12, 1]


def test_weights_and_limits_of_the_mixture(tmp_path, abstracts, monkeypatch):
    lines = [{'title': f'T{n}', 'text': f'an abstract that has {n} and nine words'} for n in range(60)]
    other = write_lines(tmp_path / 'other.jsonl', lines)
    sources = [str(abstracts), str(other)]
    data = PairData(sources=sources, weights={sources[0]: 20}, most=12, near=0)
    table = write_pair_data(data, tmp_path / 'd').table.set_index('source')['in the mixture']
    assert table.sum() == 12 and table[sources[0]] > table[sources[1]]
    assert write_pair_data(PairData(sources=[str(other)], longest=8, near=0), tmp_path / 'e').rows == 60


@pytest.mark.medium
def test_a_line_of_table_8_gives_what_it_prints(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    known, sizes = registry('pretraining'), {'arxiv': 300, 'medrxiv': 60, 'textbooks': 20}
    own = {name: {**known[name], 'pairs': 'title'} for name in sizes}
    own['arxiv']['pairs_about'], own['textbooks']['pairs_about'] = 120, 50
    for name, size in sizes.items():
        text = known[name]['columns']['text']
        documents = [{'title': f'{name} {n}', text: f'what {name} says in its text {n}, in words'} for n in range(size)]
        write_lines(tmp_path / known[name]['folder'] / 'x.jsonl', documents)
    notes = [{'title': f'mine {n}', 'text': f'eight words of a note {n} are here'} for n in range(30)]
    write_lines(tmp_path / 'mine.jsonl', notes)

    def made(**settings):
        data = PairData(sources=[*sizes, str(tmp_path / 'mine.jsonl')], near=0, **settings)
        table = write_pair_data(data, tmp_path / 'd').table
        return table, {row['query'] for row in map(json.loads, (tmp_path / 'd' / 'pretraining.jsonl').open())}

    with own_rows('pretraining', own):
        assert made()[0]['in the mixture'].tolist() == [300, 60, 20, 30]
        (table, whole), (_, tenth) = made(as_printed=True), made(as_printed=True, portion=0.1)
        shown = beside_table_8(table).set_index('line')
    arxiv, medrxiv, *others = table['in the mixture']
    # a line that is short gives all, and so does a source of no line
    assert arxiv + medrxiv == 120 and arxiv > 2 * medrxiv > 0 and others == [20, 30]
    papers = {title for title in tenth if 'rxiv' in title}
    assert len(papers) == 12 and tenth < whole  # a tenth of the printed number, within the whole
    assert shown.loc['arXiv, MedRxiv, BioRxiv', ['printed', 'in the mixture', 'short by']].tolist() == [120, 120, 0]
    assert shown.loc['Textbooks', ['sources', 'short by']].tolist() == ['textbooks', 30]
    assert shown.loc['PubMed', ['sources', 'in the mixture']].tolist() == ['none here', 0]
    assert beside_table_8(table[3:]).empty


def test_the_printed_sizes_are_those_of_table_8():
    cells = published('bmretriever', 'Table 8')
    assert stage_data.printed_sizes('bmretriever') == {cell.dataset: in_full(cell.text) for cell in cells.itertuples()}
    for notebook in ('bmretriever_training', 'bmretriever_ablations'):
        data = yaml.safe_load((ROOT / 'params' / notebook / 'paper.yaml').read_text())['pretraining_data']
        assert data['as_printed'] and set(map(stage_data._line_of, data['sources'])) == set(cells.dataset)
    lines = beside_table_8(pd.DataFrame({'source': ['arxiv'], 'documents': [9], 'pairs': [8], 'in the mixture': [7]}))
    assert lines.line.tolist() == cells.dataset.tolist() and lines['in the mixture'].sum() == 7


def test_what_is_not_at_hand_may_be_left_out(tmp_path, abstracts, capsys):
    data = PairData(sources=[str(abstracts), 's2orc', 'nowhere'], leave_out=True, near=0)
    made = write_pair_data(data, tmp_path / 'd')
    assert made.table.source.tolist() == [str(abstracts)]
    said = capsys.readouterr()
    assert 's2orc' in said.err + said.out and 'nowhere' in said.err + said.out


def test_figures_4b_and_5_are_in_the_batch_at_every_size():
    runs = yaml.safe_load((ROOT / 'params' / 'batches' / 'bmretriever_sizes.yaml').read_text())['runs']
    preset = yaml.safe_load((ROOT / 'params' / 'bmretriever_ablations' / 'paper.yaml').read_text())
    of_size = {}
    for run in runs:
        if run['notebook'] == 'bmretriever_ablations':
            own = preset | run.get('parameters', {})
            of_size.setdefault(own['size'], set()).update(own['ablations'])
    figures = {'full', 'stage I only', 'without pre-training', 'without instruction', 'cosine'}
    assert set(of_size) == {'410M', '1B', '2B', '7B'} and all(figures <= rows for rows in of_size.values())
    seven = [run['parameters']['pretraining_data'] for run in runs if run.get('parameters', {}).get('size') == '7B']
    assert [data['most'] for data in seven] == [1_000_000] * 2  # B.1


def test_the_baselines_of_table_4_have_rows_of_weights_that_saw_no_labels():
    models, cells = registry('models'), published('bmretriever', 'Table 4')
    printed = {name: row for row in models.values() for name in row.get('published_as') or ()}
    tuned = {row.get('hub') for name, row in models.items() if name in ('contriever', 'coco-dr', 'e5-large-v2')}
    for system in set(cells.system) - {'BMRETRIEVER'}:
        row = printed[system]
        assert row['hub'] not in tuned and row['sources']['hub'] and row['note'], system
    assert 'unsup' in printed['LLM2Vec* (2024)']['adapter']['hub']


def test_rates_and_batches_are_those_of_the_protocol():
    text = (ROOT / 'docs' / 'protocols' / 'bmretriever.md').read_text()
    rows = [line.strip('|').split('|') for line in text.splitlines() if line.startswith('| ')]
    lines = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows if len(cells) == 5}
    sizes = ('410M', '1B', '2B', '7B')

    def rates(stage):
        return next(cells for name, cells in lines.items() if re.search(f'(rate|lr).*{stage}$', name, re.I))

    for size, batch, one, two in zip(sizes, lines['global batch'], rates('Stage I'), rates('Stage II'), strict=True):
        printed = printed_training(size)
        assert printed['pretraining']['batch_size'] == printed['tuning']['batch_size'] == int(batch)
        assert [stage['learning_rate'] for stage in printed.values()] == [float(one), float(two)]
        assert [stage['epochs'] for stage in printed.values()] == [2, 1]
        for stage in printed.values():
            assert (stage['temperature'], stage['warmup_steps'], stage['precision']) == (1.0, 100, 'bf16')
            assert stage['max_query_tokens'] == stage['max_document_tokens'] == 512
    settings = retriever_settings(backbone='smollm2', name='x')
    assert (settings.lora.r, settings.lora.alpha, settings.reading.similarity) == (16, 32, 'dot')
