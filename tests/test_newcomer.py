"What a reader meets with collections and models of his own: settings that differ, titles, limits, checks, plans."

import json, os, signal, subprocess, sys, time
from functools import partial
from types import SimpleNamespace
import pytest, transformers
from conftest import DOCUMENTS, QUERIES, TASK_ROW, refuses, seeded, write_beir, write_lines
from hub.server import Hub, Repository
from hub.services import process_environment
from medir_nb import core, data, encoder, evaluator, generator
from medir_nb.core import MedirError, registry
from medir_nb.data import limit_task, load_task
from medir_nb.encoder import encoder_spec
from medir_nb.evaluator import evaluate
from medir_nb.retrieval import ANALYZERS, analyze, parse, with_max_tokens
from medir_nb.trainer import synthesize_queries
from tiny_models import FAMILIES, as_sentence_transformer, make_model, make_tokenizer


@pytest.fixture
def titled(tmp_path):
    "A folder of which two judged queries have a title."
    folder = write_beir(tmp_path / 'titled')
    titles = {'q1': 'Metformin', 'q2': 'Hip fracture surgery'}
    write_lines(folder / 'queries.jsonl', [{'_id': q, 'title': titles.get(q, ''), 'text': t} for q, t in QUERIES])
    core.console.note_once.cache_clear()
    return folder


def test_a_query_is_its_text_alone_and_the_title_is_reported_once(titled, capfd):
    task = load_task(titled)
    assert task.queries.texts() == [t for _, t in QUERIES]
    assert task.queries.rows(0, 1) == [('', 'drugs after a heart attack')] and task.report['query_titles_unread'] == 2
    load_task(titled)
    (said,) = capfd.readouterr().err.splitlines()
    assert '2 of 4 queries have a title, which is not read' in said and '--query-titles' in said
    assert task.fingerprint == load_task(write_beir(titled.with_name('plain'))).fingerprint


def test_titles_are_read_on_request(titled, capfd):
    task = load_task(titled, query_titles=True)
    assert task.queries.text('q1') == 'Metformin drugs after a heart attack'
    assert 'query_titles_unread' not in task.report
    # a part of a task keeps what was chosen
    assert limit_task(task, 8).queries.text('q1') == 'Metformin drugs after a heart attack'
    assert not capfd.readouterr().err
    assert evaluate(titled, 'bm25', query_titles=True).mean('nDCG@10') != evaluate(titled, 'bm25').mean('nDCG@10')


def test_a_registry_row_says_that_its_queries_are_titled_texts(titled, own_registry, monkeypatch):
    row = {**TASK_ROW, 'folder': 'titled'}
    own_registry(tasks={'with': {**row, 'query_titles': True}, 'without': row})
    monkeypatch.setenv('MEDIR_DATA', str(titled.parent))
    assert load_task('with').queries.text('q1') == 'Metformin drugs after a heart attack'
    untitled = load_task('without'), load_task('with', query_titles=False)
    assert {task.queries.text('q1') for task in untitled} == {'drugs after a heart attack'}


def test_a_comparison_names_each_setting_that_differs_and_what_was_cut(beir, medir, fake_minilm, tmp_path):
    a, b = 'minilm(max_document_tokens=128)', 'minilm(dtype=bfloat16,query_template=Q:{text})'
    out = medir('compare', beir, a, b, '--json', tmp_path / 'c.json')
    assert out.code == 0, out.err
    lines = out.out.splitlines()
    at = lines.index('settings that differ:')
    shown = dict(line.strip().split(': ', 1) for line in lines[at + 1 : at + 4])
    assert set(shown) == {'dtype', 'max_document_tokens', 'query_template'}
    assert shown['dtype'] == f'float32 ({a}) | bfloat16 ({b})'
    # the fake model reads eight words
    long = sum(len(f'{t} {x}'.split()) > 8 for _, t, x in DOCUMENTS)
    cut = f'cut at their limit: {a} {long} of 12 documents and 0 of 4 queries; {b} {long} of 12 documents and '
    assert lines[at + 4].startswith(cut)
    saved = json.loads((tmp_path / 'c.json').read_text())
    assert saved['settings']['max_document_tokens'] == {a: 128, b: 256}
    assert saved['cut'][a] == {'documents': long, 'queries': 0}


@pytest.mark.parametrize(
    'system',
    ['rrf(bm25,{})>ms-marco-minilm@5', 'bm25+search-o1(qwq-32b,by={})', 'text-embedding-3-large'],  # which cuts itself
)
def test_max_tokens_sets_both_lengths_of_all_encoders(system):
    cut = 'minilm(max_document_tokens=64,max_query_tokens=64)'
    assert str(with_max_tokens(system.format('minilm'), 64)) == system.format(cut)


def test_the_commands_take_max_tokens(beir, medir, fake_minilm):
    out = medir('compare', beir, 'minilm', 'bm25', '--max-tokens', '64').out
    assert out.startswith('bm25 − minilm(max_document_tokens=64,max_query_tokens=64)')
    refuses(lambda: evaluate(beir, object(), max_tokens=64), 'lengths of a model object are its own affair')


def test_a_limit_says_what_remains_and_warns_of_dropped_queries(tmp_path, medir):
    "A perfect score of the few queries that are left must not pass in silence."
    documents = [(f'd{i:03d}', '', f'disease{i // 20} sign{i}') for i in range(600)]
    judged = [(f'q{i // 20}', f'd{i:03d}', 1) for i in range(600)]
    folder = write_beir(tmp_path / 'thirty', documents, [(f'q{i}', f'disease{i}') for i in range(30)], judged)
    core.console.note_once.cache_clear()
    out = medir('evaluate', folder, '--system', 'bm25', '--limit', '60', '--measures', 'R@100')
    (warned,) = [line for line in out.err.splitlines() if ' remain; ' in line]
    said = '60 of 600 documents and 3 of 30 queries remain; the judged documents of 27 queries do not fit'
    assert out.code == 0 and f'thirty[limit=60]: {said}' in warned
    whole = medir('evaluate', folder, '--system', 'bm25', '--limit', '600', '--measures', 'R@100')
    assert whole.code == 0 and ' remain; ' not in whole.err
    # all queries fit: what remains is said, and nothing is warned of
    few = write_beir(tmp_path / 'few', documents, [('q0', 'disease0')], [('q0', 'd000', 1)])
    left = medir('evaluate', few, '--system', 'bm25', '--limit', '60').err
    assert '60 of 600 documents and 1 of 1 queries remain' in left and 'do not fit' not in left
    write_lines(tmp_path / 'sts' / 'pairs.jsonl', [{'sentence1': 'a', 'sentence2': 'b', 'score': i} for i in range(9)])
    load_task(tmp_path / 'sts', limit=4)


COMMITS = ['c1' * 20, 'c2' * 20]


def sentence_transformer(folder):
    "A tiny random sentence-transformers model that reads 64 tokens and puts `query: ` before a query."
    as_sentence_transformer(make_model('bert', folder.parent / 'plain-bert'), folder, pooling='cls')
    own = {'prompts': {'query': 'query: ', 'document': ''}, 'similarity_fn_name': 'dot'}
    for name, more in (('config_sentence_transformers', own), ('sentence_bert_config', {'max_seq_length': 64})):
        file = folder / f'{name}.json'
        file.write_text(json.dumps({**(json.loads(file.read_text()) if file.is_file() else {}), **more}))


def pair_model(folder):
    tokenizer = make_tokenizer('bert')
    config = transformers.BertConfig(vocab_size=len(tokenizer), num_labels=1, **FAMILIES['bert'][1])
    with seeded(1):
        model = transformers.BertForSequenceClassification(config)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


@pytest.fixture(scope='module')
def hub(tmp_path_factory):
    builds = {'tiny-encoder': sentence_transformer, 'bare': partial(make_model, 'bert'), 'pairs': pair_model}
    repositories = [Repository('models', f'someone/{name}', build, COMMITS) for name, build in builds.items()]
    with Hub(repositories, tmp_path_factory.mktemp('hub')) as h:
        yield h


ASK = """
import json, os, sys
from medir_nb.core import MedirError
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.evaluator import evaluate
from medir_nb.retrieval import parse
out = {}
for name in sys.argv[2:]:
    try:
        s = evaluate(sys.argv[1], name, ['nDCG@10'])
        out[name] = {'label': s.label, 'value': s.mean('nDCG@10'), 'settings': s.settings}
        out[name]['revision'] = s.stats['revision']
    except MedirError as e: out[name] = {'error': str(e)}
print(json.dumps(out))
"""


def ask(hub, base, task, names, **more):
    "What `names` score on `task` in a process that sees this Hub alone."
    how = {'env': process_environment(hub, base, **more), 'cwd': base, 'capture_output': True, 'text': True}
    done = subprocess.run([sys.executable, '-c', ASK, str(task), *names], timeout=300, **how)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.slow
def test_a_hub_model_without_a_row_is_read_by_its_own_files(hub, beir, tmp_path, medir_process):
    tiny = 'hf:someone/tiny-encoder'
    chains = [tiny, 'someone/tiny-encoder', f'{tiny}@{COMMITS[1]}', f'rrf(bm25,{tiny})', f'{tiny}>hf:someone/pairs@5']
    chains += [f'bm25>someone/pairs@{COMMITS[0]}@5', 'someone/tiny-encoder(max_document_tokens=8)']
    bad = ['hf:someone/bare', 'someone/bare', 'hf:someone/nothing', 'hf:someone', 'hf:someone/tiny-encoder@v9']
    found, notes = ask(hub, tmp_path, beir, [*chains, *bad])
    first = found[tiny]
    own = {'pooling': 'cls', 'similarity': 'dot', 'backend': 'sentence-transformers', 'max_query_tokens': 64}
    own |= {'max_document_tokens': 64, 'query_template': 'query: {text}', 'document_template': '{text}'}
    assert own.items() <= first['settings'].items() and first['revision'].startswith('resolved c1c1c1c on ')
    # resolved once, recorded, and said
    assert notes.count('someone/tiny-encoder: no commit is on record') == 1
    assert found['someone/tiny-encoder']['value'] == first['value'] == found[chains[2]]['value']
    assert found[chains[2]]['revision'] == 'c2c2c2c'
    assert all('value' in found[c] for c in chains), found
    assert found[chains[6]]['settings']['max_document_tokens'] == 8
    errors = [found[b]['error'] for b in bad]
    assert all('\n' not in e for e in errors)
    said = ['no row of it, and its repository has no modules.json'] * 2
    said += ['the Hub has no model someone/nothing, or it is private', 'names no model of the Hub', 'no revision v9']
    assert all(text in error for error, text in zip(errors, said, strict=True)), errors
    # offline, all that was fetched is found
    again, _ = ask(hub, tmp_path, beir, [*chains, 'hf:someone/other'], HF_HUB_OFFLINE='1')
    assert [again[c]['value'] for c in chains] == [found[c]['value'] for c in chains]
    assert 'no commit of someone/other is on record' in again['hf:someone/other']['error']
    # files were asked for at the two commits alone
    asked = {a.revision for a in hub.fetched('models', 'someone/tiny-encoder') if a.path[0] != '('}
    assert asked == {*COMMITS, '(large)'}


def test_a_hub_id_with_a_row_is_that_row():
    for hub_id in ('hf:sentence-transformers/all-MiniLM-L6-v2', 'sentence-transformers/all-minilm-l6-v2'):
        assert str(parse(hub_id)) == 'minilm'
    fused = parse('rrf(bm25,hf:BAAI/bge-large-en-v1.5)>cross-encoder/ms-marco-MiniLM-L6-v2@50')
    assert str(fused).startswith('rrf(bm25,bge-large-en')
    other = encoder_spec(f'hf:BAAI/bge-large-en-v1.5@{"ab" * 20}')
    assert other.revision == 'ab' * 20 and other.pooling == 'cls' and other.name.endswith('ab' * 20)
    refuses(lambda: parse('hf:one/two/three'), 'names no model of the Hub')


def test_an_existing_folder_wins_over_a_hub_id(tmp_path, monkeypatch, capfd):
    folder = tmp_path / 'BAAI' / 'bge-large-en-v1.5'
    paths = {'Transformer': '', 'Pooling': '1_Pooling'}
    modules = [{'type': f'sentence_transformers.models.{kind}', 'path': path} for kind, path in paths.items()]
    write_lines(folder / 'modules.json', [json.dumps(modules)])
    write_lines(folder / 'config.json', ['{"max_position_embeddings": 77}'])
    monkeypatch.chdir(tmp_path)
    core.commits._tell_folder.cache_clear()
    for _ in range(2):
        assert encoder_spec('BAAI/bge-large-en-v1.5').max_query_tokens == 77
    assert encoder_spec('hf:BAAI/bge-large-en-v1.5').hub == 'BAAI/bge-large-en-v1.5'
    (said,) = capfd.readouterr().err.splitlines()
    assert 'the folder is read; write hf:BAAI/bge-large-en-v1.5' in said


LACKING = {
    'bge-large-en': 'neither in the Hub cache nor reachable',
    'voyage-3': 'the key of https://api.voyageai.com/v1 is not set',
    'nv-embed-v2': 'the environment nv-embed that its code needs is not there',
    'minilm>monobert@5': 'neither in the Hub cache nor reachable',
    'minilm+hyde(file:nowhere.jsonl)': 'no such file of generations',
    'minilm+hyde(gpt-4o)': 'the key of https://api.openai.com/v1 is not set',
    'rrf(bm25,voyage-3)>monobert@5': 'the key of',
    'bm25+hyde(qwen2-7b)': 'vllm is not installed',
    'bm25+search-o1(gpt-4o,by=voyage-3)': 'the key of https://api.voyageai.com',
}


@pytest.mark.parametrize('system', LACKING)
def test_what_the_last_system_lacks_is_said_before_the_first_is_encoded(beir, medir, fake_minilm, monkeypatch, system):
    for key in ('VOYAGE_API_KEY', 'OPENAI_API_KEY'):
        monkeypatch.delenv(key, raising=False)
    for command in (('evaluate', beir, '--system', 'minilm', '--system', system), ('compare', beir, 'minilm', system)):
        out = medir(*command)
        said = [line for line in out.err.splitlines() if line.startswith('medir: error')]
        assert out.code == 2 and len(said) == 1 and LACKING[system] in said[0], out.err
        assert not fake_minilm and not out.out


def test_what_is_stored_needs_no_weights(beir, medir, own_registry, fake_minilm, monkeypatch):
    row = {**registry('models')['bge-large-en'], 'hub': 'owner/gone', 'revision': '0' * 40}
    own_registry(models={'gone': row})
    with monkeypatch.context() as patch:
        patch.setattr('medir_nb.retrieval.dense_stage.check_encoder', lambda *a: None)
        first = medir('evaluate', beir, '--system', 'gone', '--measures', 'nDCG@10')
    again = medir('evaluate', beir, '--system', 'gone', '--measures', 'nDCG@10')
    assert first.code == again.code == 0 and len(fake_minilm) > 0
    assert medir('evaluate', beir, '--system', 'gone(max_document_tokens=9)').code == 2


def test_a_grid_says_first_what_cannot_run_and_goes_on(beir, fake_minilm, capfd, monkeypatch):
    monkeypatch.delenv('VOYAGE_API_KEY', raising=False)
    seen, inner = [], evaluator.evaluate

    def watched(*arguments, **options):
        seen.append(capfd.readouterr().err)
        return inner(*arguments, **options)

    monkeypatch.setattr(evaluator.evaluation, 'evaluate', watched)
    scores, not_run = evaluator.evaluate_grid([str(beir)], ['minilm', 'voyage-3'])
    assert [s.system for s in scores] == ['minilm'] and set(not_run) == {('voyage-3', str(beir))}
    assert 'voyage-3 cannot run: model voyage-3: the key of' in seen[0] and len(seen) == 1


def test_models_say_what_runs_here_and_why_not(medir, own_registry, monkeypatch, tmp_path):
    for key in ('VOYAGE_API_KEY', 'OPENAI_API_KEY'):
        monkeypatch.delenv(key, raising=False)
    row = registry('models')['bge-large-en']
    own = {'huge': {'params': int(9e12)}, 'mine': {'hub': str(tmp_path)}, 'absent': {'package': 'no_such_package'}}
    own_registry(models={name: row | changed for name, changed in own.items()})
    out = medir('models')
    cells = [line.split('|') for line in out.out.splitlines() if line.startswith('| ')]
    runs = {row[1].strip(): row[-2].strip() for row in cells}
    said = {
        'bge-large-en': 'no: ≈1.3 GB of weights are not in the Hub cache, and HF_HUB_OFFLINE is set',
        'huge': 'no: ≈36,000.0 GB of weights do not fit into',
        'absent': 'no: the package no_such_package is not installed',
        'voyage-3': 'no: the key of https://api.voyageai.com/v1 is not set',
        'nv-embed-v2': 'no: the environment nv-embed that its code needs is not there',
        'cpt-text-xl': 'no: figures only',
        'gpt-4o': 'no: the key of',
    }
    assert out.code == 0 and {name for name, text in said.items() if not runs[name].startswith(text)} == set()
    assert {runs[name] for name in ('minilm', 'mine', 'smollm2')} == {'yes'}
    monkeypatch.setenv('VOYAGE_API_KEY', 'a-key-of-a-test')
    monkeypatch.setattr(encoder.availability, 'unreachable', lambda: '')
    table = encoder.models_table().set_index('model').runs
    assert table['voyage-3'] == 'yes, asks https://api.voyageai.com/v1'
    assert table['bge-large-en'] == 'yes, after fetching ≈1.3 GB of weights'


def test_a_killed_encoding_keeps_what_slow_models_encoded(tmp_path, fake_minilm, monkeypatch):
    documents = [(f'd{i}', '', f'text number {i}') for i in range(300)]
    folder = write_beir(tmp_path / 'many', documents, [('q', 'text')], [('q', 'd1', 1)])
    inner, calls = encoder.TorchBackend.encode, []

    def slow(self, texts, prompt=''):
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return inner(self, texts, prompt)

    monkeypatch.setattr(encoder.TorchBackend, 'encode', slow)
    monkeypatch.setattr(encoder.store, 'paced', lambda n, most: ((i, min(i + 64, n)) for i in range(0, n, 64)))
    with pytest.raises(KeyboardInterrupt):
        evaluate(folder, 'minilm')
    assert evaluate(folder, 'minilm').stats['encoded_docs'] == 300 - 128


@pytest.fixture
def speaks(home, monkeypatch):
    "`speaks(rule)` makes smollm2 answer by `rule(request)`; the list that it returns holds what was asked."
    monkeypatch.delenv('MEDIR_REPLAY', raising=False)
    asked = []

    def use(rule):
        def stream(requests):
            asked.extend(requests)
            yield [(i, generator.Generation(rule(r), 'stop', 9, 9, 0)) for i, r in enumerate(requests)]

        generator.models.loaded_llm.cache_clear()
        generator.llm('smollm2')._backend = SimpleNamespace(stream=stream)
        return asked

    yield use
    generator.models.loaded_llm.cache_clear()
    generator.cassettes._cassette.cache_clear()


def test_a_miner_whose_answers_repeat_stops_early_and_says_why(speaks, home, tmp_path, medir):
    rows = [{'id': f'd{i}', 'doc': f'A document about condition {i}.', 'text': f'condition {i}'} for i in range(400)]
    asked = speaks(lambda r: 'What is the answer?' if int(r.id[1:]) % 4 == 0 else f'What is {r.id}?')
    with pytest.raises(MedirError, match=r'3 of the first 16 answers of smollm2 repeat .*most_repeated=1'):
        synthesize_queries(rows, 'smollm2')
    assert len(asked) == 16  # not four hundred
    whole = synthesize_queries(rows, 'smollm2', most_repeated=1)
    assert len(whole) == 400 and whole.stats['repeated'] == 99 and len(asked) == 400  # what was written before is kept
    eight = write_lines(tmp_path / 'eight.jsonl', [{'id': r['id'], 'doc': r['doc']} for r in rows[:8]])
    line = ('mine', 'synthesize_queries', eight, tmp_path / 'q.jsonl', '-p', 'model=smollm2', '--home', home)
    out = medir(*line)
    assert out.code == 2 and '1 of the first 8 answers' in out.err and not (tmp_path / 'q.jsonl').exists()
    assert medir(*line, '-p', 'most_repeated=0.2').code == 0


@pytest.mark.slow
def test_a_killed_mine_keeps_each_text_as_it_ends_and_goes_on(tmp_path):
    # long enough that texts end by themselves, at different times
    eight = [{'id': f'd{i}', 'doc': f'{title}. {text}'} for i, (_, title, text) in enumerate(DOCUMENTS[:8])]
    source = write_lines(tmp_path / 'eight.jsonl', eight)
    home, tape = tmp_path / 'own', tmp_path / 'own' / 'cassettes' / 'smollm2.jsonl'
    settings = ('model=smollm2', 'sampling={max_tokens: 500}', 'most_repeated=1')
    command = [sys.executable, '-m', 'medir_nb.workbook', 'mine', 'synthesize_queries', source, tmp_path / 'out.jsonl']
    command = [str(word) for word in [*command, '--home', home, *(word for s in settings for word in ('-p', s))]]
    environment = {**os.environ, 'MEDIR_PROGRESS': '1', 'MEDIR_CASSETTES': ''}
    kept = lambda: len(tape.read_bytes().splitlines()) if tape.is_file() else 0
    with open(tmp_path / 'err', 'wb') as err:
        child = subprocess.Popen(command, env=environment, stderr=err, stdout=subprocess.DEVNULL)
        start, shown = time.monotonic(), None
        while child.poll() is None and not kept() and time.monotonic() - start < 300:
            shown = shown or ((tmp_path / 'err').stat().st_size and time.monotonic() - start)
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
    before = kept()
    assert 0 < before < 8 and shown and shown < 15 and not (tmp_path / 'out.jsonl').exists()
    environment['MEDIR_PROGRESS'] = '0'
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert kept() == 8 and len((tmp_path / 'out.jsonl').read_text().splitlines()) >= 1


def test_grams_are_characters_and_bigrams_with_other_words_once():
    (words,) = analyze(['高血压 ACE抑制剂 5mg'], 'unigram_bigram')
    assert words == '高 血 压 ace 抑 制 剂 5mg 高血 血压 抑制 制剂'.split()
    assert 'unigram_bigram' in ANALYZERS and analyze(['痛'], 'unigram_bigram') == [['痛']]


ANALYZED = ('jieba', 'bigram', 'char', 'unigram_bigram')


def test_the_chinese_default_is_the_best_that_was_measured(medir):
    systems = {'bm25': 'bm25'} | {name: f'bm25(analyzer={name})' for name in ANALYZED}
    scores = {name: evaluate('zh-lay', system, ['nDCG@10']).mean('nDCG@10') for name, system in systems.items()}
    assert scores['bm25'] == scores['unigram_bigram'] > max(scores['jieba'], scores['bigram']) + 0.2
    text = medir('evaluate', '--help').out
    assert all(name in text for name in ANALYZED)


@pytest.mark.slow
def test_the_default_leads_on_the_chinese_pools(medir_data):
    folders = [p for p in sorted((medir_data / 'cmirb_gold').glob('*')) if (p / 'corpus.jsonl').is_file()]
    if not folders:
        pytest.skip('the pools are not below MEDIR_DATA')
    pools = data.pool_tasks([load_task(str(p)) for p in folders])
    scores = {name: [evaluate(pool, f'bm25(analyzer={name})', ['nDCG@10']) for pool in pools] for name in ANALYZED}
    mean = {name: evaluator.macro_average(found) for name, found in scores.items()}
    assert all(mean['unigram_bigram']['value'] > mean[name]['high'] for name in ANALYZED[:3]), mean
