"""Language models behind one call, cassettes, expansion methods and what goes wrong with them."""
import json, os, signal, subprocess, sys, time
from dataclasses import asdict, replace
from pathlib import Path
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QUERIES, write_beir, write_lines
from medir_nb import generator as g
from medir_nb.core import MedirError, registry
from medir_nb.data import load_task
from medir_nb.encoder import Encoder, encode_corpus
from medir_nb.generator import LLM, Cassette, Cassettes, Generation, Request, Sampling, answer_of, configure, expand, fuse_dense, fuse_sparse, import_generations, judge, llm_spec
from medir_nb.systems import parse, pending, search

@pytest.fixture(autouse=True)
def forget(monkeypatch):
    "No option, model or cassette of one test reaches another."
    for name in ('MEDIR_REPLAY', 'MEDIR_LLM_URL', 'MEDIR_LLM_BACKEND', 'MEDIR_LLM_OPTIONS', 'MEDIR_CASSETTES', 'MEDIR_LLM_KEY', 'OPENAI_API_KEY'): monkeypatch.delenv(name, raising=False)
    clear = lambda: (g._OPTIONS.clear(), g._llm.cache_clear(), g._cassette.cache_clear())
    clear(); yield; clear()

made = lambda text='a text', **k: Generation(text, *{'finish': 'stop', 'prompt_tokens': 3, 'tokens': 2, 'cut': 0, **k}.values())

# --- keys ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('field', [*asdict(Sampling())])
def test_every_sampling_field_changes_the_key(field):
    spec, sampling = llm_spec('smollm2'), Sampling()
    assert Request('p', sampling).key(spec) != Request('p', replace(sampling, **{field: getattr(sampling, field) + 1})).key(spec)

def test_the_key_is_of_what_is_asked_and_of_whom():
    spec, base = llm_spec('smollm2'), Request('p')
    others = [(replace(base, **c), spec) for c in ({'prompt': 'q'}, {'system': 's'}, {'index': 1}, {'cut': (0, 1)})] + [(base, replace(spec, **c)) for c in ({'revision': 'x'}, {'hub': 'x'}, {'chat': '<{prompt}>'}, {'chat_options': {'enable_thinking': True}}, {'context': 9})]
    keys = [r.key(s) for r, s in [(base, spec), *others]]
    assert len(set(keys)) == len(keys)
    assert replace(base, id='q1', what='hyde').key(replace(spec, backend='vllm', label='y')) == base.key(spec)

# --- cassettes -------------------------------------------------------------------------------------------------------

def test_a_cassette_gives_back_what_it_got_without_prompts(tmp_path):
    tape, text = Cassette(tmp_path/'t.jsonl'), 'Zeile\nzwei \u2028 "quoted" 高血压 \ud800'
    tape.append({'k1': made(text, finish='length', cut=7)})
    found = Cassette(tmp_path/'t.jsonl').find(['k1', 'k2'])
    assert found == {'k1': made(text.replace('\ud800', '?'), finish='length', cut=7)}
    assert set(json.loads((tmp_path/'t.jsonl').read_text())) == {'key', 'text', 'finish', 'usage', 'cut'}

def test_the_first_of_two_lines_counts(tmp_path):
    a, b = Cassette(tmp_path/'t.jsonl'), Cassette(tmp_path/'t.jsonl')
    a.find(['k']); b.append({'k': made('first')}); a.append({'k': made('second')})
    assert a.find(['k'])['k'].text == 'first' and len((tmp_path/'t.jsonl').read_text().splitlines()) == 1
    with open(tmp_path/'t.jsonl', 'a') as f: f.write(json.dumps({'key': 'k', 'text': 'third', 'finish': 'stop', 'usage': {}}) + '\n')
    assert Cassette(tmp_path/'t.jsonl').find(['k'])['k'].text == 'first'

@pytest.mark.parametrize('keep', [1, 5, 20, -1])
def test_a_torn_last_line_is_named_skipped_and_made_again(tmp_path, capsys, keep):
    path = tmp_path/'t.jsonl'
    Cassette(path).append({'k1': made('one'), 'k2': made('two')})
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:keep])
    tape = Cassette(path)
    assert tape.find(['k1', 'k2']) == {'k1': made('one')} and 't.jsonl:2' in (err := capsys.readouterr().err) and 'torn' in err
    tape.append({'k2': made('again'), 'k3': made('three')})
    found = Cassette(path).find(['k1', 'k2', 'k3'])
    assert found['k3'].text == 'three' and found['k2'].text == ('two' if keep == -1 else 'again')      # -1 lost only its line end
    assert tape.find(['k2']) == {'k2': found['k2']}

@pytest.mark.parametrize('line', ['[]', '{}', 'null', '{"key": "x"}', '\x00\x00', '{"key": "x", "text": "y", "finish": "stop", "usage": 3}'])
def test_foreign_lines_are_named_and_skipped(tmp_path, capsys, line):
    path = tmp_path/'t.jsonl'
    Cassette(path).append({'k1': made('one')})
    with open(path, 'a') as f: f.write(line + '\n')
    Cassette(path).append({'k2': made('two')})
    assert len(Cassette(path).find(['k1', 'k2', 'x'])) == 2 and 't.jsonl:2' in capsys.readouterr().err

_WRITER = '''
import sys
from medir_nb.generator import Cassette, Generation
tape, name, i = Cassette(sys.argv[1]), sys.argv[2], 0
while i < int(sys.argv[3]):
    tape.append({f"{name}-{i + j}": Generation(f"text of {name} {i + j} " * 400, "stop", 1, 1, 0) for j in range(4)}); i += 4
    print(i, flush=True)
'''
def _writer(path, name, n): return subprocess.Popen([sys.executable, '-c', _WRITER, str(path), name, str(n)], stdout=subprocess.PIPE, text=True)

def test_two_processes_write_one_cassette(tmp_path):
    jobs = [_writer(tmp_path/'t.jsonl', n, 60) for n in 'ab']
    for j in jobs: j.communicate(timeout=60); assert j.returncode == 0
    keys = [f'{n}-{i}' for n in 'ab' for i in range(60)]
    assert set(Cassette(tmp_path/'t.jsonl').find(keys)) == set(keys)

def test_kill_9_while_appending_loses_nothing_that_was_acknowledged(tmp_path):
    path, job = tmp_path/'t.jsonl', _writer(tmp_path/'t.jsonl', 'a', 10**9)
    acknowledged = 0
    for _ in range(25): acknowledged = int(job.stdout.readline())
    job.send_signal(signal.SIGKILL); job.wait(); job.stdout.close()
    tape = Cassette(path)
    assert len(tape.find([f'a-{i}' for i in range(acknowledged)])) == acknowledged
    tape.append({'b': made('after')})                          # the lock of the dead process is free
    assert Cassette(path).find(['b'])['b'].text == 'after'

def test_a_full_disk_is_said(tmp_path, monkeypatch):
    tape = Cassette(tmp_path/'t.jsonl'); tape.append({'k': made()})
    def full(*_): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, 'write', full)
    with pytest.raises(MedirError, match='could not be stored.*No space'): tape.append({'k2': made()})
    monkeypatch.undo()
    assert len(Cassette(tmp_path/'t.jsonl').find(['k', 'k2'])) == 1

def test_cassettes_of_other_folders_are_read_and_never_written(tmp_path, monkeypatch, home):
    Cassette(tmp_path/'given/smollm2.jsonl').append({'k': made('given')})
    monkeypatch.setenv('MEDIR_CASSETTES', str(tmp_path/'given'))
    before = (tmp_path/'given/smollm2.jsonl').read_bytes()
    tapes = Cassettes('smollm2'); tapes.append({'k2': made('own')})
    assert {k: v.text for k, v in tapes.find(['k', 'k2']).items()} == {'k': 'given', 'k2': 'own'}
    assert (tmp_path/'given/smollm2.jsonl').read_bytes() == before and (home/'cassettes/smollm2.jsonl').is_file()

# --- a served model --------------------------------------------------------------------------------------------------

def served(fake, **options): return LLM('smollm2', **{'backend': 'openai', 'base_url': fake.url, 'pause': 0.01, 'timeout': 0.4, **options})
ask = lambda *texts: [Request(t, id=f'q{i}') for i, t in enumerate(texts, 1)]

def test_requests_carry_sampling_and_run_concurrently(fake):
    server = fake()
    model = LLM('qwen3-32b', backend='openai', base_url=server.url, served_as='my-name')
    texts = [f'prompt {i}' for i in range(20)]
    got = model.generate([Request(t, Sampling(0.5, 0.8, 20, 1.1, 0.3, 99, 7), 'be brief', index=2) for t in texts])
    assert [x.text for x in got] == [f'echo: {t}' for t in texts] and got[0][1:] == ('stop', 10, 5, 0)
    assert {k: v for k, v in server.bodies[0].items() if k != 'messages'} == {'model': 'my-name', 'temperature': 0.5, 'top_p': 0.8, 'top_k': 20, 'repetition_penalty': 1.1, 'presence_penalty': 0.3, 'max_tokens': 99, 'seed': 9, 'chat_template_kwargs': {'enable_thinking': True}}
    assert server.bodies[0]['messages'][0] == {'role': 'system', 'content': 'be brief'}

def test_a_service_gets_its_own_field_names(fake):
    server = fake()
    LLM('o3-mini', backend='openai', base_url=server.url).generate([Request('p', Sampling(max_tokens=8))])
    assert server.bodies[0]['max_completion_tokens'] == 8 and not {'temperature', 'top_p', 'max_tokens'} & set(server.bodies[0])

@pytest.mark.parametrize('fault', [(429,), (500,), (503, 'not json'), 'broken', 'cut', 'hang', (200, '{"choices": []}')], ids=str)
def test_what_passes_is_tried_again(fake, fault):
    server = fake(fault, fault)
    model = served(server)
    assert model.generate(ask('p'))[0].text == 'echo: p' and server.asked == 3 and model.backend.server.retries == 2

def test_retry_after_is_honoured(fake):
    server, start = fake((429, '{}', {'retry-after': '0.7'})), time.monotonic()
    served(server).generate(ask('p'))
    assert 0.7 <= time.monotonic() - start < 3

def test_a_server_that_stays_broken_is_given_up_with_the_query_named(fake):
    server = fake(*[(500,)] * 9)
    with pytest.raises(MedirError, match='answered 500 after 3 attempts for query q1'): served(server, attempts=3).generate(ask('p'))
    assert server.asked == 3
    with pytest.raises(MedirError, match='connection failed'): LLM('smollm2', backend='openai', base_url='http://127.0.0.1:9', attempts=2, pause=0.01).generate(ask('p'))

@pytest.mark.parametrize('code', [401, 404, 422])
def test_what_does_not_pass_is_said_at_once(fake, code):
    server = fake((code, '{"error": "no"}'))
    with pytest.raises(MedirError, match=f'answered {code}'): served(server).generate(ask('p'))
    assert server.asked == 1

def test_a_failure_keeps_what_was_generated_and_the_next_run_asks_only_for_the_rest(fake):
    server = fake('ok', 'ok', (401,))
    with pytest.raises(MedirError): served(server, concurrency=1).generate(ask('a', 'b', 'c'))
    asked = server.asked
    assert [x.text for x in served(server, concurrency=1).generate(ask('a', 'b', 'c'))] == ['echo: a', 'echo: b', 'echo: c'] and server.asked == asked + 1

def test_the_budget_stops_before_it_is_exceeded(fake):
    server = fake()
    model = served(server, budget=100, concurrency=1)
    with pytest.raises(MedirError, match='budget of 100 tokens'): model.generate([Request(f'p{i}', Sampling(max_tokens=30)) for i in range(9)])
    assert 0 < model.backend.spent <= 100 and server.asked == model.backend.spent // 15
    more = served(server, budget=10_000, concurrency=4); more.generate([Request(f'p{i}', Sampling(max_tokens=30)) for i in range(9)])
    assert server.asked == 9

def test_a_prompt_beyond_the_servers_context_is_shortened_in_its_cut(fake):
    server = fake(context=100)
    got = served(server).generate([Request('Question: ' + 'x' * 300 + ' Answer:', Sampling(max_tokens=8), cut=(10, 310))])[0]
    sent = server.bodies[-1]['messages'][0]['content']
    assert sent.startswith('Question: xx') and sent.endswith(' Answer:') and 20 < len(sent) <= 100 and got.cut == 318 - len(sent)

def test_no_key_reaches_a_cassette_a_message_or_another_server(fake, monkeypatch, home, capsys):
    secret = 'sk-' + 'very-secret-0123456789'
    monkeypatch.setenv('MEDIR_LLM_KEY', secret); monkeypatch.setenv('OPENAI_API_KEY', 'vendor-' + secret)
    server = fake(f'text:your key is {secret}', (400, json.dumps({'error': f'bad key {secret}'})))
    model = served(server, concurrency=1)
    model.generate(ask('p'))
    with pytest.raises(MedirError) as e: model.generate(ask('another'))
    assert server.headers[0]['authorization' if 'authorization' in server.headers[0] else 'Authorization'] == f'Bearer {secret}'
    stored = ''.join(p.read_text() for p in home.rglob('*.jsonl'))
    assert 'your key is' in stored and secret not in stored + str(e.value) + capsys.readouterr().err + repr(vars(model.backend))
    LLM('gpt-4o', base_url=server.url).generate(ask('p'))       # not the vendor's address: not the vendor's key
    assert 'vendor-' not in str(server.headers)

def test_a_vendor_without_its_key_is_not_called():
    with pytest.raises(MedirError, match="generation of query 'q1'.*OPENAI_API_KEY"): LLM('gpt-4o').generate(ask('p'))

# --- other backends --------------------------------------------------------------------------------------------------

def test_vllm_gets_its_parallel_options_and_each_requests_sampling(monkeypatch, tmp_path):
    import types
    seen = {}
    class Tokenizer:
        chat_template = 'x'
        def apply_chat_template(self, messages, add_generation_prompt, tokenize, **k): seen['chat'] = k; return ' '.join(m['content'] for m in messages)
        def __call__(self, text, **k): return {'input_ids': [len(w) for w in text.split()]}
    class Engine:
        def __init__(self, **k): seen.update(k)
        def get_tokenizer(self): return Tokenizer()
        def generate(self, prompts, params, use_tqdm): seen['params'] = params; return [types.SimpleNamespace(outputs=[types.SimpleNamespace(text=str(p['prompt_token_ids']), finish_reason='length', token_ids=[1, 2])]) for p in prompts]
    monkeypatch.setitem(sys.modules, 'vllm', types.SimpleNamespace(LLM=Engine, SamplingParams=lambda **k: k))
    monkeypatch.setattr(g, '_hub_folder', lambda hub, revision, where: tmp_path)
    model = LLM('qwen3-32b', tensor_parallel_size=4, gpu_memory_utilization=0.5)
    got = model.generate([Request('one two', Sampling(0.7, 0.9, max_tokens=5)), Request('one two', Sampling(0.7, 0.9, max_tokens=5), index=1)])
    assert [x.text for x in got] == ['[3, 3]'] * 2 and got[0].finish == 'length' and got[0].tokens == 2
    assert seen['tensor_parallel_size'] == 4 and seen['gpu_memory_utilization'] == 0.5 and seen['max_model_len'] == 40960 and seen['dtype'] == 'bfloat16' and seen['chat'] == {'enable_thinking': True}
    assert seen['params'][0]['temperature'] == 0.7 and seen['params'][0]['top_k'] == -1 and seen['params'][0]['seed'] == 42 != seen['params'][1]['seed']

@pytest.mark.parametrize('build,why', [(lambda: LLM('smollm'), "did you mean 'smollm2'"), (lambda: LLM('smollm2', backend='vlm'), "did you mean 'vllm'"), (lambda: LLM('qwen2-7b', backend='vllm').backend, 'vllm is not installed'),
    (lambda: LLM('huatuo-o1-70b', backend='transformers').backend, 'commit is unknown'), (lambda: LLM('qwen2-7b-slhyde', backend='transformers').backend, 'not released'), (lambda: LLM('chatglm3-6b', backend='transformers').backend, 'comes with the weights'),
    (lambda: LLM('qwen2-7b', backend='transformers').backend, 'neither in the Hub cache'), (lambda: LLM('smollm2', backend='openai').backend, 'no address'), (lambda: LLM('smollm2', backend='openai', base_url='http://x', speed=3).backend, 'speed'), (lambda: LLM('./nothing').backend, 'config.json is missing')])
def test_a_model_that_cannot_be_asked_says_why(build, why, monkeypatch):
    monkeypatch.setitem(sys.modules, 'vllm', None)
    with pytest.raises(MedirError, match=why): build()

def test_a_long_prompt_loses_the_end_of_its_cut_by_tokens():
    encode = lambda r: r.prompt.split()
    ids, sent, cut = g._fit(encode, Request('Ask: a b c d e f Answer:', cut=(5, 16)), 5, 'x')
    assert ids == 'Ask: a b c Answer:'.split() or len(ids) == 5 and ids[-1].endswith('Answer:')
    assert cut == len('Ask: a b c d e f Answer:') - len(sent.prompt)
    with pytest.raises(MedirError, match='still exceeds'): g._fit(encode, Request('Ask: a Answer:', cut=(5, 6)), 1, 'x')
    with pytest.raises(MedirError, match='leaves no room'): g._room(llm_spec('smollm2'), Sampling(max_tokens=2048))

def test_sampling_filters_and_is_a_draw_from_the_softmax():
    torch = pytest.importorskip('torch')
    logits, ids = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([[9, 0]])
    def draws(s, n=3000): 
        generators = [torch.Generator().manual_seed(5)]
        return np.bincount([int(g._pick(logits, ids[:, :0], [0], 0, [s], generators).argmax()) for _ in range(n)], minlength=4) / n
    assert np.abs(draws(Sampling(temperature=1.0)) - logits.softmax(1).numpy()[0]).max() < 0.03
    assert (draws(Sampling(temperature=1.0, top_k=2), 200) > 0).tolist() == [True, True, False, False]
    assert (draws(Sampling(temperature=1.0, top_p=0.6), 200) > 0).tolist() == [True, False, False, False]
    assert draws(Sampling(), 3).tolist() == [1, 0, 0, 0]
    # penalties: the prompt's token 0 counts for repetition, not for presence; padding counts for neither
    penalised = g._pick(logits, torch.tensor([[1, 0]]), [1], 2, [Sampling(repetition_penalty=2.0, presence_penalty=1.0)], [None])
    assert penalised.tolist() == [[1.0, 1.0, 0.0, -1.0]]
    assert g._pick(logits, torch.tensor([[1, 0]]), [1], 1, [Sampling(presence_penalty=1.0)], [None]).tolist() == [[1.0, 1.0, 0.0, -1.0]]

# --- answers and faults ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize('text,mark,answer', [('a</think> b</think>\n c', {'after': '</think>'}, ('c', True)), ('never closed', {'after': '</think>'}, ('never closed', False)), ('## Thinking\nx\n\n## Final Response\n\nAspirin', {'after': 'Final Response'}, ('Aspirin', True)),
    ('<answer>one</answer><answer>two</answer>', {'tag': 'answer'}, ('one', True)), ('no tag ', {'tag': 'answer'}, ('no tag', False)), (' plain ', {}, ('plain', True))])
def test_the_answer_of_a_reasoning_model(text, mark, answer): assert answer_of(text, mark) == answer

PROMPT = 'Below is a medical question. Write one passage of a medical text that answers it.\n\nQuestion: why am I tired\nPassage:'
@pytest.mark.parametrize('generation,language,faults,usable', [
    (made(''), 'en', ['empty'], ''), (made(' \n'), 'en', ['empty'], ''), (made('Anaemia makes people tired.'), 'en', [], 'Anaemia makes people tired.'), (made('Anaemia makes', finish='length'), 'en', ['cut off'], 'Anaemia makes'),
    (made(PROMPT), 'en', ['repeats the prompt', 'empty'], ''), (made(PROMPT + ' Anaemia makes people tired.'), 'en', ['repeats the prompt'], 'Anaemia makes people tired.'), (made('why am I tired'), 'en', ['repeats the prompt', 'empty'], ''),
    (made('贫血会使人感到疲劳乏力'), 'en', ['wrong language'], '贫血会使人感到疲劳乏力'), (made('贫血会使人感到疲劳乏力'), 'zh', [], '贫血会使人感到疲劳乏力'), (made('Anaemia makes people tired.'), 'zh', ['wrong language'], 'Anaemia makes people tired.'), (made('x' * 9, cut=4), 'en', ['prompt shortened'], 'x' * 9)])
def test_faults_are_named(generation, language, faults, usable):
    assert judge(generation, PROMPT, 'why am I tired', language) == (usable, faults)

# --- methods and fusion ----------------------------------------------------------------------------------------------

def test_fusion_rules_by_hand():
    q, h = np.array([3.0, 0.0]), np.array([[0.0, 1.0], [0.0, 5.0]])
    assert fuse_dense(q, h, 'mean').tolist() == [1.0, 2.0] and fuse_dense(q, h[:1], 'mean').tolist() == [1.5, 0.5]      # lengths weigh
    assert fuse_dense(q, h, 'alone').tolist() == [0.0, 3.0] and fuse_dense(q, h[:0], 'alone').tolist() == [3.0, 0.0]
    assert fuse_sparse('q', ['a', 'b'], 'alone') == 'a b' and fuse_sparse('q', ['a', 'b'], 'concat', 3) == 'q q q a b' and fuse_sparse('q', ['a'], 'concat', 0) == 'a'
    assert fuse_sparse('q', ['a'], 'concat', 2, '', ' ') == 'qq a' and fuse_sparse('q', [], 'alone') == 'q'

PAPER = {('hyde', 'sparse'): 'alone', ('hyde', 'dense'): 'mean', ('query2doc', 'sparse'): 'concat', ('query2doc', 'dense'): 'concat', ('lamer', 'sparse'): 'concat', ('lamer', 'dense'): 'mean', ('search-o1', 'sparse'): 'alone'}
@pytest.mark.parametrize('method,kind', PAPER)
def test_methods_follow_the_papers_table(method, kind):
    s = g.expansion_settings(method, (), kind)
    assert s['fusion'] == PAPER[method, kind] and s['n'] == 1 and s.get('repeat') == (None if kind == 'dense' else 2 if method == 'query2doc' else 1) and s.get('k') == (10 if method == 'lamer' else None)
    assert (registry('methods')['query2doc']['sparse_join'], registry('methods')['query2doc']['dense_join']) == ('', '[SEP]')

@pytest.mark.parametrize('typed,printed', [('bm25+hyde(smollm2,n=1,temperature=0.7)', 'bm25+hyde(smollm2)'), ('bm25+hyde(smollm2,seed=3,repeat=2,fusion=concat)', 'bm25+hyde(smollm2,fusion=concat,repeat=2,seed=3)'), ('minilm+lamer(gpt-4o,k=10)', 'minilm+lamer(gpt-4o)'),
    ('minilm+hyde(file:a/b.jsonl)', 'minilm+hyde(file:a/b.jsonl)'), ('minilm+hyde(qwen2-7b@authors,fusion=mean)', 'minilm+hyde(qwen2-7b@authors)'), ('minilm+hyde(x,hypothetical=query)', 'minilm+hyde(x,hypothetical=query)')])
def test_expansions_print_back_without_defaults(typed, printed): assert str(parse(typed)) == printed and parse(printed) == parse(typed)

@pytest.mark.parametrize('typed,why', [('bm25+hide(x)', "did you mean 'hyde'"), ('bm25+candidates(x)', 'unknown expansion'), ('bm25+hyde(x,m=2)', 'no setting'), ('bm25+hyde(x,fusion=mean)', 'alone, concat with a sparse'), ('minilm+hyde(x,repeat=2)', 'no setting'), ('bm25+hyde(x,k=3)', 'no setting'),
    ('bm25+hyde(x,n=0)', 'positive'), ('bm25+hyde(x,n=1.5)', 'positive'), ('bm25+hyde(x,temperature=-1)', 'from 0'), ('bm25+hyde(x,top_p=2)', 'up to 1'), ('bm25+hyde(x,form=poem)', 'question'), ('bm25+hyde(x,strict=3)', 'true or false'), ('bm25+hyde(x,n=2,n=2)', 'stands twice')])
def test_malformed_expansions_say_why(typed, why):
    with pytest.raises(MedirError, match=why): parse(typed)

def test_every_wording_fills_in_and_follows_the_language():
    for name, row in registry('methods').items():
        for language, forms in row['wording'].items():
            for form, text in forms.items():
                needed = {'query': {'query'}, 'passages': {'query', 'passages'}, 'document': {'document'}}[row['reads']]
                assert needed <= set(__import__('re').findall(r'\{(\w+)\}', text)), (name, form)
                assert (g.cjk_share([text.replace('query', '').replace('document', '').replace('passages', '').replace('examples', '')]) > 0.9) == (language == 'zh')
        assert set(row['forms'].values()) <= {f for w in row['wording'].values() for f in w} | {'none'}
    assert g.fill('a {query} b {passages}', 'passages', query='{passages}', passages='P') == ('a {passages} b P', (15, 16))

def test_a_tasks_group_chooses_the_form(beir):
    task = load_task(str(beir))
    as_ = lambda name, language='zh': g.wording('hyde', replace(task, name=name, registered=True), language)
    zh, en = registry('methods')['hyde']['wording']['zh'], registry('methods')['hyde']['wording']['en']
    assert [as_(n) for n in ('cmirb-medexam', 'cmirb-iiyipost', 'cmirb-cslrel[limit=9]')] == [zh['question'], zh['title'], zh['text']]
    assert [as_(n, 'en') for n in ('r2med-biology', 'r2med-pmc-treatment', 'r2med-pmc-clinical', 'hpo-lay')] == [en['post'], en['case'], en['similar_case'], en['term']] and as_('mine', 'en') == en['question']
    assert g.wording('hyde', task, 'zh', 'title') == zh['title']
    with pytest.raises(MedirError, match='no wording'): g.wording('hyde', task, 'de')
    with pytest.raises(MedirError, match='@authors or file:PATH'): g.wording('search-o1', task, 'en')

def test_own_wording_comes_from_a_file(beir, tmp_path, fake):
    server, task = fake(), load_task(str(beir))
    own = write_lines(tmp_path/'own.txt', ['Say {query}!'])
    configure('smollm2', backend='openai', base_url=server.url)
    expand(task, ('hyde', 'smollm2', (('prompt', str(own)),)))
    assert sorted(b['messages'][-1]['content'].strip() for b in server.bodies) == sorted(f'Say {q}!' for _, q in QUERIES)
    with pytest.raises(MedirError, match='no such file'): expand(task, ('hyde', 'smollm2', (('prompt', 'none.txt'),)))
    with pytest.raises(MedirError, match='{query} is missing'): expand(task, ('hyde', 'smollm2', (('prompt', str(write_lines(tmp_path/'bad.txt', ['hi']))),)))

def test_lamer_shows_the_top_passages(beir, fake):
    server, task = fake(), load_task(str(beir))
    configure('smollm2', backend='openai', base_url=server.url, concurrency=1)
    expand(task, ('lamer', 'smollm2', (('k', 2),)), 'sparse')
    top = search('bm25(lucene)', task, 2).run
    shown = server.bodies[0]['messages'][-1]['content']
    assert ''.join(f'\n[{i}]. {task.corpus.text(d)}' for i, d in enumerate(top[top.query_id == 'q1'].doc_id, 1)) in shown and '[3].' not in shown

# --- whole systems ---------------------------------------------------------------------------------------------------

TEXTS = {'q1': 'Metoprolol slows the heart', 'q2': 'Metformin is the first drug', 'q3': 'Levothyroxine replaces the hormone', 'q4': 'antivenom'}

def test_bm25_with_a_file_is_bm25_asked_with_its_texts(beir, tmp_path):
    task = load_task(str(beir))
    file = write_lines(tmp_path/'h.jsonl', [{'id': q, 'hy_doc': t} for q, t in TEXTS.items()])
    by_hand = lambda make: search('bm25', replace(task, queries=g.as_queries(task.queries.ids, [make(task.queries.text(q), TEXTS[q]) for q in task.queries.ids])), task.name and 100).run
    pd.testing.assert_frame_equal(search(f'bm25+hyde(file:{file})', task).run, by_hand(lambda q, h: h))
    pd.testing.assert_frame_equal(search(f'bm25+hyde(file:{file},fusion=concat,repeat=3)', task).run, by_hand(lambda q, h: f'{q} {q} {q} {h}'))
    pd.testing.assert_frame_equal(search(f'bm25+query2doc(file:{file})', task).run, by_hand(lambda q, h: f'{q}{q} {h}'))
    assert search(f'bm25+hyde(file:{file})', task).stats['replayed'] == 4

def test_dense_vectors_are_the_mean_of_query_and_plain_texts(beir, tmp_path, fake_minilm, own_registry):
    own_registry(models={'prompted': {**registry('models')['minilm'], 'query_template': 'query: {text}'}, 'contrary': {**registry('models')['minilm'], 'query_template': 'query: {text}', 'hypothetical': 'query'}})
    task = load_task(str(beir))
    file = write_lines(tmp_path/'h.jsonl', [{'_id': q, 'rewrite_queries': [t, t + ' twice', 'a third']} for q, t in TEXTS.items()])
    encoder = Encoder('prompted')
    expanded = expand(task, ('hyde', f'file:{file}', (('n', 2),)))
    got, _ = g.dense_queries(encoder, task, expanded)
    raw = lambda text: encoder.encode([text], 'query').vectors[0]
    wanted = [(raw('query: ' + task.queries.text(q)) + raw(t) + raw(t + ' twice')) / 3 for q, t in TEXTS.items()]
    assert np.allclose(got, wanted, atol=1e-5)
    got, _ = g.dense_queries(Encoder('contrary'), task, expand(task, ('hyde', f'file:{file}', (('fusion', 'alone'),))))
    assert np.allclose(got, [raw('query: ' + t) for t in TEXTS.values()], atol=1e-5)
    got, _ = g.dense_queries(encoder, task, expand(task, ('query2doc', f'file:{file}', ())))
    assert np.allclose(got[0], raw('query: ' + task.queries.text('q1') + '[SEP]' + TEXTS['q1']), atol=1e-5)
    first = search(f'prompted+hyde(file:{file})', task)
    again = search(f'prompted+hyde(file:{file})', task)
    assert again.stats['encoded_queries'] == 0 and first.run.equals(again.run)

def test_replay_is_bit_identical_without_a_model(beir, fake, monkeypatch, fake_minilm):
    server, task = fake(), load_task(str(beir))
    configure('smollm2', backend='openai', base_url=server.url)
    systems = ['bm25+hyde(smollm2)', 'minilm+hyde(smollm2,n=2)', 'bm25+lamer(smollm2,k=3)', 'minilm+query2doc(smollm2)']
    first = [search(s, task) for s in systems]
    asked = server.asked
    assert first[0].stats['generated'] == 4 and first[1].stats == {**first[1].stats, 'generated': 4, 'replayed': 4}        # n=1 is the first of n=2
    configure('smollm2'); g._cassette.cache_clear()
    def never(*_, **__): raise AssertionError('a model was loaded')
    monkeypatch.setattr(g, 'BACKENDS', {n: never for n in g.BACKENDS})
    for s, one in zip(systems, first):
        again = search(s, task)
        assert again.run.equals(one.run) and again.run.score.to_numpy().tobytes() == one.run.score.to_numpy().tobytes() and again.stats['generated'] == 0
    assert server.asked == asked

def test_a_missing_entry_says_which(beir, tmp_path, monkeypatch):
    task = load_task(str(beir))
    monkeypatch.setenv('MEDIR_REPLAY', '1')
    with pytest.raises(MedirError, match=r"lacks the generation of query 'q1' by hyde\(smollm2\) and 3 more"): search('bm25+hyde(smollm2)', task)
    monkeypatch.delenv('MEDIR_REPLAY'); monkeypatch.setitem(sys.modules, 'vllm', None)
    with pytest.raises(MedirError, match=r"query 'q1' by hyde\(qwen2-7b\).*cannot be asked: vllm is not installed"): search('bm25+hyde(qwen2-7b)', task)
    file = write_lines(tmp_path/'h.jsonl', [{'id': q, 'hy_doc': t} for q, t in TEXTS.items() if q != 'q3'])
    with pytest.raises(MedirError, match=r"query 'q3' by hyde\(file:.*is missing"): search(f'bm25+hyde(file:{file})', task)
    with pytest.raises(MedirError, match='authors. generations of hyde.qwen2-7b. for tiny are not at hand'): search('bm25+hyde(qwen2-7b@authors)', task)
    with pytest.raises(MedirError, match='unknown language model'): search('bm25+hyde(qwen)', task)
    with pytest.raises(MedirError, match='writes en, the task is in .zh'): search('bm25+hyde(smollm2)', replace(task, language='zh'))

@pytest.mark.parametrize('row', [{'id': 'q1', 'text': 'x', 'rewrite_query': 'h'}, {'_id': 'q1', 'text': 'x', 'rewrite': 'h'}, {'id': 'q1', 'hy_doc': 'h'}])
def test_authors_files_are_read_from_the_tasks_folder_or_imported(beir, tmp_path, row):
    task = load_task(str(beir))
    name = {'rewrite_query': 'qwen/query-rewrite.jsonl', 'rewrite': 'hyde_qwen.jsonl', 'hy_doc': 'hyde/qwen-7b.jsonl'}[list(row)[-1]]
    model = 'qwen2.5-7b' if 'hy_doc' in row else 'qwen2-7b'
    lines = [{**row, next(iter(row)): q, list(row)[-1]: t} for q, t in TEXTS.items()]
    file = write_lines(beir/name, lines)
    one = search(f'bm25+hyde({model}@authors)', task)
    assert import_generations(file, 'elsewhere', 'hyde', model, 'authors') == 4
    file.unlink()
    two = search(f'bm25+hyde({model}@authors)', replace(task, name='elsewhere[limit=9]', source=''))
    assert one.run.equals(two.run)
    with pytest.raises(MedirError): search(f'bm25+query2doc({model}@authors)', replace(task, name='elsewhere', source=''))
    import_generations(write_lines(tmp_path/'x.jsonl', lines[:2]), 'elsewhere', 'hyde', model, 'rerun')
    with pytest.raises(MedirError, match="query 'q3' by hyde.*@rerun"): search(f'bm25+hyde({model}@rerun)', replace(task, name='elsewhere', source=''))

@pytest.mark.parametrize('line,why', [('{"text": "x"}', 'no id'), ('{"id": "q1", "text": "x"}', 'no generated text'), ('{"id"', 'JSON'), ('3', 'h.jsonl')])
def test_malformed_files_of_generations_are_named(tmp_path, line, why):
    with pytest.raises(MedirError) as e: g.read_generations(write_lines(tmp_path/'h.jsonl', ['{"id": "q0", "hy_doc": "x"}', line]))
    assert 'h.jsonl:2' in str(e.value) and why in str(e.value)

def test_faults_are_counted_and_a_query_without_an_answer_stands_alone(beir, tmp_path):
    task = load_task(str(beir))
    file = write_lines(tmp_path/'h.jsonl', [{'id': q, 'hy_doc': t} for q, t in {**TEXTS, 'q1': '', 'q2': '二甲双胍是治疗糖尿病的首选药物', 'q3': QUERIES[2][1]}.items()])
    answer = search(f'bm25+hyde(file:{file})', task)
    assert answer.stats['faults'] == {'empty': 2, 'repeats the prompt': 1, 'wrong language': 1} and answer.stats['queries_alone'] == 2
    plain = search('bm25', task).run
    alone = lambda run, q: run[run.query_id == q].reset_index(drop=True)
    assert alone(answer.run, 'q1').equals(alone(plain, 'q1')) and not alone(answer.run, 'q2').equals(alone(plain, 'q2'))
    assert search(f'bm25+hyde(file:{file},strict=true)', task).stats['queries_alone'] == 3

def test_planning_counts_generations_without_making_any(beir, fake_minilm):
    task = load_task(str(beir))
    assert pending('bm25+hyde(smollm2,n=3)', task)['to_generate'] == 12 and pending('minilm+hyde(smollm2)', task)['to_encode'] == 12 + 4 + 4
    assert pending('rrf(bm25,bm25+hyde(smollm2))', task)['to_generate'] == 4

def test_rows_of_language_models_state_their_facts():
    for name, row in registry('llms').items():
        assert row['backend'] in g.BACKENDS and row['languages'] and set(row['sampling']) <= set(asdict(Sampling())) and row['context'] > row['sampling']['max_tokens'] and row['licence'] and row['sources'], name
        assert row['chat'] == 'template' or '{prompt}' in row['chat']
        assert len(row['revision']) == 40 or row['backend'] == 'openai' or row.get('package') or row['revision'] == 'unknown'
    assert len({p for r in registry('llms').values() for p in r['published_as']}) == 15 and len(g.llms_table()) == 16

def test_pairs_are_not_expanded(tmp_path):
    from medir_nb.systems import score_pairs
    write_lines(tmp_path/'p/pairs.jsonl', [{'sentence1': 'a', 'sentence2': 'b', 'score': 1}, {'sentence1': 'a', 'sentence2': 'c', 'score': 0}])
    with pytest.raises(MedirError, match='neither expanded'): score_pairs('minilm+hyde(smollm2)', load_task(str(tmp_path/'p')))

def test_the_committed_cassette_still_answers_what_is_asked():
    task = load_task('hpo-lay')
    assert pending('bm25+hyde(smollm2)', task)['to_generate'] == 0
    path = Cassettes('smollm2').all[-1].path
    rows = [json.loads(l) for l in path.read_text(encoding='utf-8').splitlines()]
    assert len(rows) == len({r['key'] for r in rows}) >= 200 and all(set(r) <= {'key', 'text', 'finish', 'usage', 'cut'} for r in rows) and 'Below is how a patient' not in path.read_text(encoding='utf-8')
    answer = search('bm25+hyde(smollm2,fusion=concat,repeat=3)', task)
    assert answer.stats['generated'] == 0 and answer.stats['replayed'] == 200

# --- real models -----------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_smollm2_in_process(tmp_path):
    model = LLM('smollm2')
    long = 'fever ' * 3000
    requests = [Request('What is a stroke? Answer in one sentence.', Sampling(max_tokens=24)), Request('What is fever?', Sampling(temperature=0.8, top_p=0.9, max_tokens=12)), Request('What is fever?', Sampling(temperature=0.8, top_p=0.9, max_tokens=12), index=1),
        Request(f'Summarise: {long} Summary:', Sampling(max_tokens=8), cut=(11, 11 + len(long)))]
    got = model.generate(requests)
    assert 'stroke' in got[0].text.lower() and all(x.text for x in got) and got[1].text != got[2].text and all(x.tokens <= r.sampling.max_tokens for x, r in zip(got, requests))
    assert got[3].cut > 0 and got[3].prompt_tokens <= 2048 - 8 and got[0].cut == 0
    # a request draws its own noise: alone it says the same as in a batch, rounding aside
    other = LLM('smollm2', home_folder=tmp_path/'other', dtype='float32')
    alone = other.backend._batch([g._fit(lambda r: g._rendered(other.backend.tokenizer, other.spec, r), requests[1], 2000, '')], requests[1:2])
    pair = other.backend._batch([g._fit(lambda r: g._rendered(other.backend.tokenizer, other.spec, r), r, 2000, '') for r in requests[:2]], requests[:2])
    assert alone[0].text == pair[1].text
    assert LLM('smollm2').generate(requests, replay=True) == got

@pytest.mark.slow
def test_a_real_server():
    "For instance vLLM's: `vllm serve DIR --served-model-name NAME`, then MEDIR_TEST_SERVER=http://localhost:8000/v1 MEDIR_TEST_MODEL=NAME."
    if not os.environ.get('MEDIR_TEST_SERVER'): pytest.skip('MEDIR_TEST_SERVER names no server')
    model = LLM('smollm2', backend='openai', base_url=os.environ['MEDIR_TEST_SERVER'], served_as=os.environ.get('MEDIR_TEST_MODEL', ''))
    long = 'fever ' * 6000
    got = model.generate([Request('What is a stroke? Answer in one sentence.', Sampling(max_tokens=24)), Request('What is fever?', Sampling(0.8, 0.9, max_tokens=9)), Request(f'Summarise: {long} Summary:', Sampling(max_tokens=8), cut=(11, 11 + len(long)))])
    assert 'stroke' in got[0].text.lower() and got[1].text and 0 < got[1].tokens <= 9 and got[1].prompt_tokens > 5 and got[2].cut > 0 and got[2].prompt_tokens > 100
    assert model.generate([Request('What is fever?', Sampling(0.8, 0.9, max_tokens=9))], replay=True)[0] == got[1]

@pytest.mark.slow
def test_the_authors_documents_lift_chinese_bm25(medir_data):
    from medir_nb.evaluator import evaluate
    folders = {n: medir_data/'cmirb_gold'/f'{n}Retrieval' for n in ('MedExam', 'DuBaike', 'DXYDisease', 'CSLRelated')}
    if not all(f.is_dir() for f in folders.values()): pytest.skip('cmirb_gold is not in MEDIR_DATA')
    tasks = {n: load_task(str(f)) for n, f in folders.items()}
    import pyarrow as pa
    pool, seen = [], set()
    for n, t in tasks.items():
        for i, (title, body) in zip(t.corpus.ids, t.corpus.rows()): pool.append((f'{n}/{i}', title, body))
    from medir_nb.data import Corpus
    corpus = Corpus(pa.table({c: pa.array(v, pa.large_string()) for c, v in zip(('id', 'title', 'body'), zip(*pool))}))
    for n in ('MedExam', 'DuBaike'):
        t = tasks[n]
        pooled = replace(t, corpus=corpus, qrels=t.qrels.assign(doc_id=f'{n}/' + t.qrels.doc_id))
        score = lambda s: evaluate(pooled, s).mean('nDCG@10')
        plain, more = score('bm25'), score('bm25+hyde(qwen2-7b@authors,fusion=concat)')
        print(n, plain, more)
        assert more > plain + 0.01, (n, plain, more)

TABLE = '''
import sys
for name in ('torch', 'transformers', 'vllm', 'httpx'): sys.modules[name] = None      # an import of them fails
from medir_nb.evaluator import evaluate_grid
from medir_nb.ledger import table_apart
scores, not_run = evaluate_grid(['hpo-lay'], ['bm25', 'bm25+hyde(smollm2)', 'bm25+hyde(smollm2,fusion=concat,repeat=3)'])
assert not not_run, not_run
print(table_apart(scores).drop(columns='vectors').to_csv(), *(s.frame.value.to_numpy().tobytes().hex() for s in scores), *(s.run.score.to_numpy().tobytes().hex() for s in scores))
'''

def test_a_whole_table_replays_from_the_committed_cassette_without_a_model(tmp_path):
    # two processes, two fresh homes, no library that could run or reach a language model
    replay = lambda n: subprocess.run([sys.executable, '-c', TABLE], capture_output=True, text=True, env={**os.environ, 'MEDIR_REPLAY': '1', 'MEDIR_HOME': str(tmp_path/f'home{n}')})
    first, second = replay(1), replay(2)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout and 'hyde(smollm2,fusion=concat,repeat=3)' in first.stdout and len(first.stdout) > 10_000
