"""A model that searches while it writes: markups, limits, faults, transcripts, replay."""

import json, sys, time, types
from dataclasses import replace
import pytest
from conftest import DOCUMENTS, QUERIES, write_beir, write_lines
from medir_nb import generator as g
from medir_nb.generator.agent import transcript_path
from medir_nb.generator.turns import read_turn
from medir_nb.core import MedirError, registry
from medir_nb.data import load_task
from medir_nb.generator import Cassettes, configure, method_row
from medir_nb.retrieval import expanded_texts, parse, pending, search
from test_generator import forget  # no option, model or cassette of one test reaches another  # noqa: F401

R1, O1, TOOLS = (method_row(m) for m in ('search-r1', 'search-o1', 'search-tools'))

# --- turns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'row,text,finish,act,said',
    [
        (R1, '<think>x</think><search> beta blockers </search>', 'stop', 'search', 'beta blockers'),
        (R1, '<search>gout', 'stop', 'search', 'gout'),  # the server left out the mark at which it stopped
        (R1, '<search>gout', 'length', 'malformed', None),
        (R1, 'gout</search>', 'stop', 'malformed', None),
        (R1, '< search>gout</ search>', 'stop', 'malformed', None),
        (R1, '', 'stop', 'malformed', None),
        (R1, 'It is gout.', 'stop', 'malformed', None),
        (R1, '<search></search>', 'stop', 'search', ''),
        (R1, '<search>a <search>gout</search>', 'stop', 'search', 'gout'),
        (R1, '<search>line\nbreak</search>', 'stop', 'search', 'line\nbreak'),
        (R1, '<search><answer>Gout.', 'stop', 'answer', 'Gout.'),
        (R1, '<search>x <answer>Gout.</answer></search>', 'stop', 'answer', 'Gout.'),
        (R1, '<search>one</search><information>made up</information><search>two</search>', 'stop', 'search', 'one'),
        (R1, '<answer>Gout.</answer><search>more</search>', 'stop', 'answer', 'Gout.'),
        (R1, '<search>x</search><answer>y</answer>', 'stop', 'search', 'x'),
        (R1, '<answer>Gout is', 'length', 'answer', 'Gout is'),
        (R1, '<answer>Gout', 'stop', 'answer', 'Gout'),
        (O1, 'hm <|begin_search_query|>gout<|end_search_query|>', 'stop', 'search', 'gout'),
        (O1, 'It is gout.', 'stop', 'answer', 'It is gout.'),
        (O1, '|<end_search_query|> gout <|end_search_query|>', 'stop', 'malformed', None),
        (O1, '<|begin_search_query|>gout', 'length', 'malformed', None),
        (
            TOOLS,
            '<tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>',
            'tool_calls',
            'search',
            'gout',
        ),
        (
            TOOLS,
            '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"gout\\"}"}</tool_call>',
            'stop',
            'search',
            'gout',
        ),
        (TOOLS, '<tool_call>{"name": "search", "arguments": {"words": "gout"}}</tool_call>', 'stop', 'malformed', None),
        (TOOLS, '<tool_call>gout</tool_call>', 'stop', 'malformed', None),
        (TOOLS, '<tool_call>["x"]</tool_call>', 'stop', 'malformed', None),
        (TOOLS, 'Gout.', 'stop', 'answer', 'Gout.'),
    ],
)
def test_a_turn_is_a_search_an_answer_or_malformed(row, text, finish, act, said):
    turn = read_turn(text, finish, row)
    assert turn.act == act and (said is None or turn.said == said)


def test_what_a_model_wrote_behind_its_search_is_left_out():
    assert (
        read_turn('<think>a</think><search>b</search> <information>made up</information>', 'stop', R1).text
        == '<think>a</think><search>b</search>'
    )


# --- a model that follows a script -----------------------------------------------------------------------------------


def scripted(fake, turns, usage=(40, 9), wait=0, **options):
    """A server whose model says `turns[n]` in its n-th turn (the last again and again), where a text may be a function of what it reads.
    The turn is counted from what is shown, so each query has its own."""

    def answer(body, _=None):
        time.sleep(wait)
        said = [m for m in body['messages'] if m['role'] != 'system']
        n = sum(
            str(m['content']).count(R1['results'][0]) + str(m['content']).count(O1['results'][0]) for m in said[1:]
        ) or sum(m['role'] in ('user', 'tool') for m in said[1:])
        text = turns[min(n, len(turns) - 1)]
        text = text(body) if callable(text) else text
        message = text if isinstance(text, dict) else {'content': text}
        return {
            'choices': [{'message': message, 'finish_reason': options.get('finish', 'stop')}],
            'usage': {'prompt_tokens': usage[0], 'completion_tokens': usage[1]},
        }

    server = fake(*options.get('script', ()), answer=answer, context=options.get('server_context'))
    configure('smollm2', backend='openai', base_url=server.url, pause=0.01, attempts=2, concurrency=1)
    return server


FOUND = '<think>hm</think><search>metoprolol diabetes asthma</search>'
SAID = '<answer>Metoprolol slows the heart rate</answer>'


def texts(task, method='search-r1', kind='sparse', **settings):
    return expanded_texts(task, (method, 'smollm2', tuple(settings.items())), kind)


def lines(task, method='search-r1', **settings):
    return [
        json.loads(l)
        for l in transcript_path(task, (method, 'smollm2', tuple(settings.items())))
        .read_text(encoding='utf-8')
        .splitlines()
    ]


def last(body):
    return body['messages'][-1]['content']


def test_it_searches_reads_and_answers_and_the_answer_is_a_hypothetical_document(beir, fake, tmp_path, fake_minilm):
    task, server = load_task(str(beir)), scripted(fake, [FOUND, SAID])
    answer = search('bm25+search-r1(smollm2)', task)
    first, second = server.bodies[0], next(b for b in server.bodies if b['messages'][-1]['role'] == 'assistant')
    assert (
        answer.stats['generated'] == 8
        and answer.stats['searches'] == 4
        and answer.stats['ended'] == {'answer': 4}
        and not answer.stats['faults']
        and server.asked == 8
    )
    assert (
        'up to 2 times' in last(first)
        and registry('methods')['hyde']['wording']['en']['question'].format(query=QUERIES[0][1]) in last(first)
        and first['stop'] == ['</search>', '</answer>']
        and 'continue_final_message' not in first
    )
    top = search('bm25', replace(task, queries=g.as_queries(['x'], ['metoprolol diabetes asthma'])), 3).run.doc_id
    assert (
        last(second).startswith(FOUND + '\n\n<information>\n[1] ' + task.corpus.text(top[0]))
        and '\n[3] ' in last(second)
        and '[4]' not in last(second)
        and last(second).endswith('</information>\n\n')
        and second['continue_final_message']
    )
    file = write_lines(
        tmp_path / 'h.jsonl', [{'id': q, 'hy_doc': 'Metoprolol slows the heart rate'} for q, _ in QUERIES]
    )
    assert answer.run.equals(search(f'bm25+hyde(file:{file})', task).run)
    assert (
        search('minilm+search-r1(smollm2)', task).run.equals(search(f'minilm+hyde(file:{file})', task).run)
        and server.asked == 8
    )
    assert lines(task)[0] == {
        'query': 'q1',
        'index': 0,
        'turns': [
            {'wrote': FOUND, 'tokens': 9, 'searched': 'metoprolol diabetes asthma', 'found': list(top), 'told': ''},
            {'wrote': SAID, 'tokens': 9},
        ],
        'ended': 'answer',
        'text': 'Metoprolol slows the heart rate',
        'faults': [],
    }


def test_a_table_is_rebuilt_without_a_model_and_the_transcript_with_it(beir, fake, tmp_path, monkeypatch):
    task, server = load_task(str(beir)), scripted(fake, [FOUND, '', SAID])
    first, wrote = search('bm25+search-r1(smollm2,k=2)', task), lines(task, k=2)
    monkeypatch.setenv('MEDIR_CASSETTES', str(Cassettes('smollm2').path.parent))
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'elsewhere'))
    monkeypatch.setenv('MEDIR_REPLAY', '1')
    configure('smollm2')
    g.cassettes._cassette.cache_clear()
    g.models.loaded_llm.cache_clear()
    monkeypatch.setattr(
        g.models, 'BACKENDS', {n: lambda *_, **__: pytest.fail('a model was loaded') for n in g.BACKENDS}
    )
    again = search('bm25+search-r1(smollm2,k=2)', task)
    assert (
        again.run.score.to_numpy().tobytes() == first.run.score.to_numpy().tobytes()
        and again.stats['generated'] == 0
        and again.stats['replayed'] == 12
        and lines(task, k=2) == wrote
    )
    with pytest.raises(MedirError, match=r"lacks the generation of query 'q1' by search-r1\(smollm2\)"):
        search('bm25+search-r1(smollm2,k=3)', task)  # another prompt of the second turn


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_model_that_never_stops_searching_has_to_answer(beir, fake):
    task = load_task(str(beir))
    n = iter(range(10**6))
    server = scripted(
        fake,
        [lambda body: 'It is metoprolol' if last(body).endswith('<answer>') else f'<search>heart {next(n)}</search>'],
    )
    out = texts(task, rounds=3)
    assert (
        server.asked == 4 * 4
        and out.texts == [['It is metoprolol']] * 4
        and out.stats['ended'] == {'rounds': 4}
        and out.stats['searches'] == 12
    )
    assert (
        last(server.bodies[-1]).endswith(
            '\nNo search is left. Write the text that is asked for now.</information>\n\n<answer>'
        )
        and last(server.bodies[-1]).count('<information>') == 3
    )
    server = scripted(fake, ['<search>heart</search>'])
    out = texts(task, rounds=1)
    assert server.asked == 8 and out.texts == [[]] * 4 and out.faults == {'empty': 4, 'kept searching': 4}
    assert search('bm25+search-r1(smollm2,rounds=1)', task).run.equals(
        search('bm25', task).run
    )  # a query without a text stands alone
    server = scripted(fake, ['I know <|begin_search_query|>heart<|end_search_query|>'])
    out = texts(task, 'search-o1', rounds=2)
    assert (
        server.asked == 12
        and out.texts == [['I know']] * 4
        and out.faults == {'repeated search': 4, 'kept searching': 4}
    )


@pytest.mark.parametrize(
    'method,turn,fault',
    [
        ('search-r1', 'gout</search>', 'malformed turn'),
        ('search-r1', '', 'malformed turn'),
        ('search-r1', 'It is gout.', 'malformed turn'),
        ('search-o1', '|<end_search_query|> gout <|end_search_query|>', 'malformed turn'),
        ('search-tools', '<tool_call>{"name"', 'malformed turn'),
        ('search-r1', '<search> \n</search>', 'empty search'),
        ('search-o1', '<|begin_search_query|><|end_search_query|>', 'empty search'),
        ('search-tools', '<tool_call>{"name": "search", "arguments": {"query": ""}}</tool_call>', 'empty search'),
        ('search-r1', '<search>zzz qqq</search>', 'search without hits'),
        ('search-o1', '<|begin_search_query|>the of<|end_search_query|>', 'search without hits'),
    ],
)
def test_a_turn_without_results_is_answered_with_what_was_wrong(beir, fake, method, turn, fault):
    # where the mark of a search was opened and none of an answer is known, what follows is a search
    opened = fault == 'malformed turn' and method == 'search-o1'
    task, server = (
        load_task(str(beir)),
        scripted(
            fake,
            [
                turn,
                *(['metoprolol zzz'] if opened else []),
                SAID if method == 'search-r1' else 'Metoprolol slows the heart rate',
            ],
        ),
    )
    out = texts(task, method)
    assert (
        out.texts == [['Metoprolol slows the heart rate']] * 4
        and out.faults == {fault: 4}
        and server.asked == (12 if opened else 8)
        and out.stats['searches'] == (4 if opened or fault == 'search without hits' else 0)
    )
    told = method_row(method)['told']['en'][
        {'malformed turn': 'malformed', 'empty search': 'empty', 'search without hits': 'nothing'}[fault]
    ]
    # the form that was missed is opened for it
    second = server.bodies[4]
    assert last(second).endswith(method_row(method)['query'][0]) == (
        fault == 'malformed turn' and method != 'search-tools'
    )
    assert (
        told in last(second)
        and lines(task, method)[0]['turns'][0]['told'] == told
        and lines(task, method)[0]['turns'][0]['found'] == []
    )


def test_an_opened_search_is_made(beir, fake):
    task, server = (
        load_task(str(beir)),
        scripted(fake, ['I am not sure.', 'metoprolol diabetes asthma</search> and so on', SAID]),
    )
    out = texts(task)
    assert (
        out.faults == {'malformed turn': 4}
        and out.stats['searches'] == 4
        and lines(task)[0]['turns'][1]['searched'] == 'metoprolol diabetes asthma'
        and out.texts == [['Metoprolol slows the heart rate']] * 4
    )
    assert last(server.bodies[-1]).startswith(
        'I am not sure.\n\n<information>This was neither'
    ) and 'asked for.</information>\n\n<search>metoprolol diabetes asthma</search>\n\n<information>\n[1] ' in last(
        server.bodies[-1]
    )


def test_the_same_search_is_not_made_again(beir, fake, monkeypatch):
    task, server = (
        load_task(str(beir)),
        scripted(fake, ['<search>Heart  attack</search>', '<search>heart attack</search>', SAID]),
    )
    asked = []
    out = g.search_and_write(
        task, ('search-r1', 'smollm2', ()), lambda qs: asked.append(qs) or [[('d02', 'Metoprolol')] for _ in qs]
    )
    assert (
        len(asked) == 1
        and [q for q, _ in asked[0]] == ['q1', 'q2', 'q3', 'q4']
        and out.faults == {'repeated search': 4}
        and out.stats['searches'] == 4
    )
    assert 'This search was made before; what it found stands above.\nNo search is left' in last(server.bodies[-1])


def test_an_endpoint_that_goes_down_costs_nothing_twice(beir, fake, tmp_path):
    task, turns = load_task(str(beir)), [FOUND, '<search>heart attack</search>', SAID]
    whole = scripted(fake, turns)
    expected = texts(task, rounds=3).texts
    assert whole.asked == 12
    own = tmp_path / 'other'
    for down_at in (0, 2, 5, 11):
        home = own / str(down_at)
        run = lambda: expanded_texts(task, ('search-r1', 'smollm2', (('rounds', 3),)), 'sparse', home)
        server = scripted(fake, turns, script=['ok'] * down_at + [(500,), (503, 'gone')])
        with pytest.raises(MedirError, match='503 after 2 attempts for query q'):
            run()
        kept = [
            json.loads(l)
            for l in transcript_path(task, ('search-r1', 'smollm2', (('rounds', 3),)), home).read_text().splitlines()
        ]
        answered = server.asked - 2
        assert (
            down_at <= answered <= down_at + 3 and sum(len(l['turns']) for l in kept) == down_at // 4 * 4
        )  # of whole rounds, whose other requests (four queries) may be under way
        out = run()
        assert (
            server.asked == 12 + 2
            and out.texts == expected
            and out.stats['generated'] == 12 - answered
            and out.stats['replayed'] == answered
        )


def test_the_budget_of_tokens_holds_over_turns(beir, fake):
    task = load_task(str(beir))
    server = scripted(fake, [FOUND, SAID])
    configure('smollm2', backend='openai', base_url=server.url, budget=700, concurrency=1)
    with pytest.raises(MedirError, match='budget of 700 tokens'):
        texts(task)
    spent = g.llm('smollm2').backend.spent
    configure('smollm2', backend='openai', base_url=server.url, concurrency=1)
    assert 0 < spent <= 700 and texts(task).stats['generated'] == 8 - spent // 49 and server.asked == 8


# --- limits ----------------------------------------------------------------------------------------------------------


def test_the_limit_of_tokens(beir, fake):
    task, n = load_task(str(beir)), iter(range(10**6))
    server = scripted(
        fake,
        [lambda body: 'Gout' if last(body).endswith('<answer>') else f'<search>heart {next(n)}</search>'],
        usage=(40, 30),
    )
    out = texts(task, rounds=9, tokens=70)
    limits = [b['max_tokens'] for b in server.bodies]
    assert (
        limits == [64] * 4 + [40] * 4 + [10] * 4 + [64] * 4
        and out.stats['ended'] == {'tokens': 4}
        and out.texts == [['Gout']] * 4
    )  # 70 - 30, 70 - 60, and the answer


def test_the_limit_of_time_is_replayed_where_time_is_not(beir, fake, monkeypatch):
    task, n = load_task(str(beir)), iter(range(10**6))
    server = scripted(
        fake,
        [lambda body: 'Gout' if last(body).endswith('<answer>') else f'<search>heart {next(n)}</search>'],
        wait=0.06,
    )
    out = texts(task, rounds=9, seconds=0.4)
    turns = len(lines(task, rounds=9, seconds=0.4)[0]['turns'])
    assert (
        out.stats['ended'] == {'time': 4}
        and 2 <= turns < 10
        and server.asked == 4 * turns
        and 'The 0.4 s for searching are over.' in last(server.bodies[-1])
    )
    assert pending('bm25+search-r1(smollm2,rounds=9,seconds=0.4)', task)['to_generate'] == 0
    monkeypatch.setenv('MEDIR_REPLAY', '1')
    again = texts(task, rounds=9, seconds=0.4)  # no time passes now, and the way is the same
    assert again.stats['ended'] == {'time': 4} and again.texts == out.texts and again.stats['generated'] == 0
    with pytest.raises(MedirError, match='lacks'):
        texts(task, rounds=9, seconds=0.5)  # another limit is another run


def test_the_limits_of_passages_and_characters(tmp_path, fake):
    long = write_beir(
        tmp_path / 'long',
        [(f'd{i}', '', f'gout {"x" * 90} \n {i}') for i in range(6)],
        [('q1', 'gout')],
        [('q1', 'd1', 1)],
    )
    task, server = load_task(str(long)), scripted(fake, ['<search>gout</search>', SAID])
    texts(task, k=4, characters=50)
    shown = [l for l in last(server.bodies[-1]).split('\n') if l.startswith('[')]
    assert [l.split('</info')[0] for l in shown] == [f'[{i}] {("gout " + "x" * 90)[:50]}' for i in range(1, 5)]


def test_a_full_context_ends_the_text_before_it_breaks(beir, fake):
    task = load_task(str(beir))
    server = scripted(fake, ['Metoprolol slows it. <search>heart</search>', SAID], usage=(2048 - 64 - 9 - 96 + 1, 9))
    out = texts(task)
    assert (
        server.asked == 4
        and out.stats['ended'] == {'context': 4}
        and out.texts == [['Metoprolol slows it.']] * 4
        and out.stats['searches'] == 0
    )
    server = scripted(fake, ['Metoprolol slows it. <search>heart beat</search>', SAID], usage=(2048 - 64 - 9 - 96, 9))
    assert texts(task, seed=7).stats['ended'] == {'answer': 4}


def test_results_that_the_server_finds_too_long_are_shortened_and_stay_so(beir, fake):
    task = load_task(str(beir))
    server = scripted(fake, [FOUND, '<search>diabetes</search>', SAID], server_context=600)
    out = texts(task, k=10, rounds=2, prompt=str(write_lines(beir / 'p.txt', ['{query}'])))
    sent = [b for b in server.bodies if b['messages'][-1]['role'] == 'assistant']
    ok = [b for b in sent if len(last(b)) <= 600]
    assert (
        len(sent) > len(ok) > 0
        and out.texts == [['Metoprolol slows the heart rate']] * 4
        and out.faults['prompt shortened'] > 0
    )
    # the text that is gone on with in the third turn begins with what was sent in the second
    second = [last(b) for b in ok if last(b).count('<information>') == 1]
    assert all(any(last(b).startswith(s) for s in second) for b in ok if last(b).count('<information>') == 2)


# --- other places, backends and corpora ------------------------------------------------------------------------------


def test_results_in_turns_of_the_user(beir, fake):
    task, server = load_task(str(beir)), scripted(fake, [FOUND, '<search>more</search>', 'Metoprolol, no tags'])
    out = texts(task, place='user')
    messages = server.bodies[-1]['messages']
    assert (
        [m['role'] for m in messages] == ['user', 'assistant', 'user', 'assistant', 'user']
        and messages[1]['content'] == FOUND
        and messages[2]['content'].startswith('<information>\n[1] ')
        and messages[4]['content'].endswith('Write the text that is asked for now.</information>')
    )
    assert out.texts == [['Metoprolol, no tags']] * 4 and 'continue_final_message' not in server.bodies[-1]


def test_a_service_that_takes_whole_turns_is_not_asked_to_go_on(beir, fake, monkeypatch):
    task = load_task(str(beir))
    with pytest.raises(
        MedirError, match=r'gpt-4o takes whole turns only.*search-r1\(gpt-4o,place=user\), or \+search-tools'
    ):
        search('bm25+search-r1(gpt-4o)', task)
    with pytest.raises(MedirError, match='place=tool does not fit .search-r1; it takes assistant or user'):
        search('bm25+search-r1(smollm2,place=tool)', task)
    with pytest.raises(MedirError, match='no instruction in .zh'):
        expanded_texts(replace(task, language='zh'), ('search-r1', 'qwq-32b', ()), 'sparse')
    assert {n for n, r in registry('llms').items() if r.get('continues') is False} == {
        n for n, r in registry('llms').items() if r.get('base_url')
    }


def test_tools_are_called_through_the_chat_api_or_in_the_text(beir, fake):
    task = load_task(str(beir))
    call = {
        'content': None,
        'tool_calls': [
            {
                'id': 'x',
                'type': 'function',
                'function': {'name': 'search', 'arguments': '{"query": "metoprolol heart"}'},
            }
        ],
    }
    as_text = 'I look. <tool_call>\n{"name": "search", "arguments": {"query": "metoprolol heart"}}\n</tool_call>'
    for seed, said in enumerate((call, as_text)):
        server = scripted(fake, [said, 'Metoprolol slows the heart rate'])
        out = texts(task, 'search-tools', seed=seed)
        *_, asked, got = server.bodies[-1]['messages']
        assert (
            server.bodies[0]['tools'][0]['function']['name'] == 'search'
            and 'stop' not in server.bodies[0]
            and asked['role'] == 'assistant'
            and got['role'] == 'tool'
            and got['tool_call_id'] == asked['tool_calls'][0]['id']
        )
        assert (
            asked['content'] == ('' if said is call else 'I look. ')
            and json.loads(asked['tool_calls'][0]['function']['arguments']) == {'query': 'metoprolol heart'}
            and got['content'].startswith('\n[1] Beta blockers Metoprolol')
        )
        assert out.texts == [['Metoprolol slows the heart rate']] * 4 and out.stats['searches'] == 4


@pytest.mark.medium
def test_the_loop_runs_with_a_model_in_this_process(beir, monkeypatch, tmp_path):
    "vLLM's interface, answered by a rule: what was begun is part of the prompt, and the text ends before the stop."
    seen = []

    class Tokenizer:
        chat_template = 'x'

        def apply_chat_template(self, messages, add_generation_prompt, tokenize, **k):
            return ''.join(f'<{m["role"]}>{m["content"]}' for m in messages) + '<assistant>'

        def __call__(self, text, **k):
            return {'input_ids': list(map(ord, text))}

    class Engine:
        def __init__(self, **k):
            pass

        def generate(self, prompts, params, use_tqdm):
            said = [''.join(map(chr, p['prompt_token_ids'])) for p in prompts]
            seen.extend(said)
            return [
                types.SimpleNamespace(
                    outputs=[
                        types.SimpleNamespace(
                            text='<answer>Metoprolol slows the heart rate'
                            if '[1]' in s
                            else '<search>metoprolol heart',
                            finish_reason='stop',
                            token_ids=[1],
                        )
                    ]
                )
                for s in said
            ]

    monkeypatch.setitem(sys.modules, 'vllm', types.SimpleNamespace(LLM=Engine, SamplingParams=lambda **k: k))
    monkeypatch.setattr(g.llm_loading, 'hub_folder', lambda hub, revision, where: tmp_path)
    monkeypatch.setattr(g.local_llm, 'load_llm_tokenizer', lambda folder, spec: Tokenizer())
    task = load_task(str(beir))
    out = expanded_texts(task, ('search-r1', 'searchr1-7b', ()), 'sparse')
    assert (
        out.texts == [['Metoprolol slows the heart rate']] * 4
        and len(seen) == 8
        and g.llm('searchr1-7b')._backend is None
    )  # the GPU is free again
    assert (
        seen[4].count('<assistant>') == 1
        and '<assistant><search>metoprolol heart</search>\n\n<information>\n[1] Beta blockers' in seen[4]
    )


def test_it_searches_by_any_system_in_any_tasks_documents(beir, fake, tmp_path, fake_minilm):
    other = write_beir(
        tmp_path / 'other',
        [('o1', '', 'metoprolol of another corpus'), ('q1', '', 'metoprolol heart twin')],
        [('x', 'y')],
        [('x', 'o1', 1)],
    )
    task, server = load_task(str(beir)), scripted(fake, [FOUND, SAID])
    texts(task, corpus=str(other))
    assert [l['turns'][0]['found'] for l in lines(task, corpus=str(other))] == [['q1', 'o1']] * 4
    texts(task, by='rrf(bm25,minilm)')
    ranked = search(
        'rrf(bm25,minilm)', replace(task, queries=g.as_queries(['x'], ['metoprolol diabetes asthma'])), 100
    ).run
    assert lines(task, by='rrf(bm25,minilm)')[0]['turns'][0]['found'] == list(ranked.doc_id[:3])
    # a query that is a document of its own corpus doesn't find itself
    twin = load_task(str(write_beir(tmp_path / 'twin', [*DOCUMENTS, ('q1', '', 'metoprolol diabetes asthma')])))
    texts(twin)
    assert 'q1' not in lines(twin)[0]['turns'][0]['found'] and lines(twin)[1]['turns'][0]['found'][0] == 'q1'
    with pytest.raises(MedirError, match='expanded itself'):
        parse('bm25+search-r1(smollm2,by=rrf(bm25+hyde(smollm2),minilm))')


def test_several_texts_of_a_query(beir, fake):
    task = load_task(str(beir))
    server = scripted(fake, [lambda body: f'<answer>seed {body["seed"]}</answer>'])
    assert texts(task, n=2).texts == [['seed 42', 'seed 43']] * 4


def test_planning_counts_turns_without_asking(beir, fake, fake_minilm):
    from medir_nb.workbook import plan_grid

    task, server = load_task(str(beir)), scripted(fake, [FOUND, SAID])
    count = lambda s: pending(s, task)
    assert (
        count('bm25+search-r1(smollm2)')['to_generate'] == 4 * 3
        and count('minilm+search-r1(smollm2,rounds=5)')['to_generate'] == 4 * 6
        and server.asked == 0
    )
    assert (
        count('minilm+search-r1(smollm2)')['to_encode'] == count('minilm')['to_encode'] + 4
    )  # a text a query, however many turns
    search('bm25+search-r1(smollm2)', task)
    assert count('bm25+search-r1(smollm2)')['to_generate'] == 0 and server.asked == 8
    assert count('bm25+search-r1(smollm2,k=2)')['to_generate'] == 4 * 2  # the first turn is the same
    frame = plan_grid(
        ['r2med-biology'],
        ['bm25(gensim)+search-o1(qwq-32b)', 'bm25(gensim)+hyde(qwq-32b)', 'bm25(gensim)+search-o1(qwq-32b@authors)'],
    )
    assert frame['to generate'].tolist() == [103 * 6, 103, 0]


def test_a_run_of_ones_own_is_not_comparable_with_the_published_one(own_registry):
    from medir_nb.evaluator import score_run
    from medir_nb.papers import Ledger, published
    from medir_nb.retrieval import RUN_COLUMNS
    import pandas as pd

    rows = {
        'search-r1(qwen-7b-ins)+bge': 'bge-large-en-v1.5+search-r1(searchr1-7b@authors)',
        'hyde(qwen-7b)+bge': 'bge-large-en-v1.5+hyde(qwen2.5-7b@authors)',
    }
    cells = published('r2med', 'gar', metric='ndcg@10', system=list(rows))
    from medir_nb.data import task_from_frames

    task = task_from_frames(
        pd.DataFrame({'_id': ['a'], 'text': ['x']}),
        pd.DataFrame({'_id': ['q'], 'text': ['x']}),
        pd.DataFrame({'query_id': ['q'], 'doc_id': ['a'], 'relevance': [1]}),
    )
    task = replace(task, name='r2med-biology', registered=True)
    score = lambda s: score_run(
        task, pd.DataFrame([('q', 'a', 1.0)], columns=RUN_COLUMNS), ['nDCG@10'], s, s, {'dtype': 'float32'}
    )
    ledger = Ledger(
        cells,
        [
            score(s)
            for s in (
                'bge-large-en-v1.5+search-r1(searchr1-7b)',
                'bge-large-en-v1.5+hyde(qwen2.5-7b,seed=1)',
                'bge-large-en-v1.5+search-r1(smollm2)',
            )
        ],
        systems=rows,
    )
    verdicts = dict(ledger.frame[ledger.frame.measured.notna()].groupby('label').verdict.first())
    assert (
        verdicts['bge-large-en-v1.5+search-r1(searchr1-7b)'].startswith(
            'not comparable: unpublished: corpus, retriever'
        )
        and verdicts['bge-large-en-v1.5+hyde(qwen2.5-7b,seed=1)'].startswith(
            'not comparable: its text was written anew'
        )
        and 'no such system' in verdicts['bge-large-en-v1.5+search-r1(smollm2)']
    )
    assert (
        ledger.frame[ledger.frame.measured.notna()].difference.isna().all()
        and next(r.beside.system for r in ledger.rows if 'searchr1-7b)' in r.label and r.beside)
        == 'search-r1(qwen-7b-ins)+bge'
    )


def test_rows_of_markups_state_their_facts():
    for name in ('search-r1', 'search-o1', 'search-tools'):
        row = method_row(name)
        assert (
            set(row['told']['en']) == {'empty', 'again', 'nothing', 'malformed', 'last', 'late'}
            and '{seconds}' in row['told']['en']['late']
            and '{rounds}' in row['instruction']['en']
            and row['sources']
        )
        assert row['query'][1] in row['instruction']['en'] or row['place'] == 'tool'
        assert {f: row[f] for f in ('sparse', 'dense')} == {f: method_row('hyde')[f] for f in ('sparse', 'dense')} and (
            row['answer'] is None
        ) == (name != 'search-r1')


# --- a real model ----------------------------------------------------------------------------------------------------


def goes_on_and_stops(model):
    r = g.Request(
        'Count from one to nine in words.',
        g.Sampling(max_tokens=40),
        turns=({'role': 'assistant', 'content': 'one two three four'},),
        stop=('seven',),
    )
    stopped, free = model.generate([r, replace(r, stop=())])
    assert (
        stopped.text.split()[0] == 'five'
        and 'eight' not in stopped.text
        and stopped.finish == 'stop'
        and stopped.tokens < 40
        and free.text.split()[:4] == ['five', 'six', 'seven', 'eight']
    )


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


@pytest.mark.slow
def test_smollm2_searches_or_is_made_to_answer(beir):
    task = load_task(str(beir))
    out = texts(task, rounds=2, k=2, characters=120)
    assert (
        len(out.texts) == 4
        and sum(out.stats['ended'].values()) == 4
        and 4 <= out.stats['generated'] <= 12
        and any(out.texts)
    )
    for line in lines(task, rounds=2, k=2, characters=120):
        assert (
            1 <= len(line['turns']) <= 3
            and all(t['tokens'] <= 64 for t in line['turns'])
            and not any(
                '</search>' in t['wrote'].split('</search>', 1)[1] for t in line['turns'] if '</search>' in t['wrote']
            )
        )
    goes_on_and_stops(g.llm('smollm2'))
    assert texts(task, rounds=2, k=2, characters=120).stats['generated'] == 0
