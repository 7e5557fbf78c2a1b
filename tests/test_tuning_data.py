"""Data of an instruction fine-tuning: labelled sets, written rows, negatives, contamination; and what goes wrong with each."""

import gzip, json, re
from dataclasses import replace
from pathlib import Path
import numpy as np, pytest
from conftest import in_full, write_beir, write_lines
from test_models import make_model
from medir_nb import generator as g
from medir_nb.core import MedirError, registry, rows
from medir_nb.data import load_task
from medir_nb.data.pretraining import LAYOUTS
from medir_nb.encoder import Encoder, encoder_spec, load_sentence_transformer
from medir_nb.generator.toy_llm import ToyServer
from medir_nb.papers import published
from medir_nb.trainer import (
    brainstorm_tasks,
    check_tuning_row,
    consistent_rows,
    contamination,
    draw_negatives,
    leave_rows,
    load_documents,
    load_labelled,
    load_sets,
    mine,
    mixture_table,
    PairBatches,
    Pairs,
    rows_file,
    searched_corpus,
    train_encoder,
    tuning_table,
    TuningData,
    without_test_queries,
    write_corpus_queries,
    write_examples,
    write_queries,
    write_tuning_data,
)
from medir_nb.trainer.contamination_check import QueryIndex, word_sequences, words_of
from medir_nb.trainer.conversions import RULES, Converted
from medir_nb.trainer.labelled_sets import ByQuery
from medir_nb.trainer.tuning_sets import file_rows
from medir_nb.trainer.answer_parsing import WrittenExample, WrittenQuery, WrittenTasks, json_in, read_answer
from medir_nb.trainer.stage_data import group_of

ROOT = Path(__file__).parent.parent


# ---------------------------------------------------------------- rows of the registry


def protocol_table():
    "Set → instruction, as docs/protocols prints Table 9."
    text = (ROOT / 'docs' / 'protocols' / 'bmretriever.md').read_text()
    part = text[text.index('[P Table 9') : text.index('a sampled subset')]
    lines = [[cell.strip() for cell in line.strip('|').split('|')] for line in part.splitlines() if line[:2] == '| ']
    table = {cells[0].lower().replace(' ', ''): cells[4] for cells in lines[1:]}
    return {name: table['mednli'] if text == '(the same)' else text for name, text in table.items()}


def test_every_row_is_whole_and_carries_the_instruction_of_table_9():
    for name, row in registry('tuning').items():
        check_tuning_row(name, row)
        assert row['sources'] and row['licence'] and (row.get('hub') or row.get('get'))
    printed, sets = protocol_table(), {n: row for n, row in registry('tuning').items() if not row.get('by_line')}
    assert {name: row['instruction'] for name, row in sets.items()} == printed and len(printed) == 12
    by_domain = tuning_table(here=False).query('printed > 0').groupby('domain').printed.sum()
    assert by_domain.to_dict() == {'biomedical': 127_600, 'general': 832_000}  # the paper's totals
    cells = published('bmretriever', 'Table 9')
    by_title = {row['title']: row for row in sets.values()}
    assert set(cells.dataset) == set(by_title)
    for cell in cells.itertuples():
        row = by_title[cell.dataset]
        assert (row['printed'], row['domain']) == (in_full(cell.text), cell.variant.lower()), cell.dataset
        # of HealthcareMagic the paper prints 30K without a star, and the data hold several times as many
        is_sampled = cell.text.endswith('*') or cell.dataset == 'HealthcareMagic'
        assert bool(row.get('sampled')) == is_sampled, cell.dataset
        assert row['layout'] in LAYOUTS


@pytest.mark.parametrize(
    'change, why',
    [
        ({'rule': 'question-answers'}, 'did you mean .question-answer'),
        ({'fields': {'query': 'q'}}, "reads 'positive'"),
        ({'fields': {'query': 'q', 'positive': 'a', 'positives': 'b'}}, "reads no 'positives'"),
        ({'instruction': ' '}, 'no instruction'),
        ({'access': 'closed'}, "access is 'closed'"),
        ({'layout': 'seen'}, "no layout 'seen'"),
        ({'colour': 'red'}, "unknown field 'colour'"),
        ({'printed': 'many'}, 'printed is'),
        ({'hub': '', 'access': 'open', 'files': []}, 'does not say where it comes from'),
    ],
)
def test_a_row_that_cannot_be_read_says_why(change, why):
    with pytest.raises(MedirError, match=why):
        check_tuning_row('mine', {**registry('tuning')['medquad'], **change})


# ---------------------------------------------------------------- conversion

SET_LINES = {
    'stackexchange': ({'title_body': 'Why? Body', 'upvoted_answer': 'Because.'}, 'Why? Body', ['Because.'], []),
    'medquad': ({'question': 'What?', 'answer': 'That.'}, 'What?', ['That.'], []),
    'gooaq': ({'question': 'What?', 'answer': 'That.', 'short_answer': None}, 'What?', ['That.'], []),
    'eli5': ({'title': 'Why?', 'answers': {'text': ['a', 'b', 'c'], 'score': [1, 9, 9]}}, 'Why?', ['b'], []),
    'healthcaremagic': (
        {'file_name': 'healthcaremagic_1.txt', 'dialogue_turns': {'speaker': [0, 0, 1, 0], 'utterance': list('pqdx')}},
        'p q',
        ['d'],
        [],
    ),
    'msmarco': ('query\tpositive\tnegative', 'query', ['positive'], ['negative']),
    'nq': (
        {
            'question': 'Who?',
            'positive_ctxs': [{'title': 'T', 'text': 'gold'}, {'title': 'U', 'text': 'other'}],
            'negative_ctxs': [],
            'hard_negative_ctxs': [{'title': None, 'text': 'hard'}],
        },
        'Who?',
        ['T gold'],
        ['hard'],
    ),
    'nli': ('sent0,sent1,hard_neg\n"A, b.",A.,Not A.', 'A, b.', ['A.'], ['Not A.']),
}


@pytest.mark.parametrize('name', SET_LINES)
def test_a_line_of_each_set_becomes_a_row(name, tmp_path, home):
    line, query, pos, neg = SET_LINES[name]
    kind = {'msmarco': 'tsv', 'nli': 'csv', 'nq': 'json'}.get(name, 'jsonl')
    text = line if isinstance(line, str) else json.dumps([line] if kind == 'json' else line)
    file = write_lines(tmp_path / f'x.{kind}', [text])
    mined = load_labelled(name, path=str(file))
    instruction = registry('tuning')[name]['instruction']
    want = {'id': f'{name}/0', 'query': query, 'pos': pos, 'neg': neg, 'instruction': instruction, 'source': name}
    assert mined.rows == [want]
    assert Pairs(mined.write(tmp_path / 'out.jsonl'), 0).rows[0].query == query


@pytest.mark.parametrize('name', ['mednli', 'mqp'])
def test_contradictions_are_hard_negatives_of_their_premise(name, tmp_path, home):
    names = ('sentence1', 'sentence2', 'gold_label') if name == 'mednli' else ('question_1', 'question_2', 'label')
    same, different = ('entailment', 'contradiction') if name == 'mednli' else (1, 0)
    said = [
        ('p', 'entailed', same),
        ('p', 'contradicted', different),
        ('p', 'neither', 'neutral'),
        ('lonely', 'contradicted', different),
        ('torn', 'both', same),
        ('torn', 'both', different),
        (' ', 'x', same),
        ('same', 'same', same),
        ('empty', None, same),
    ]
    file = write_lines(tmp_path / 'pairs.jsonl', [dict(zip(names, line, strict=True)) for line in said])
    mined = load_labelled(name, path=str(file))
    assert [(r['query'], r['pos'], r['neg']) for r in mined] == [
        ('p', ['entailed'], ['contradicted']),
        ('torn', ['both'], []),
    ]
    assert mined.stats == {
        'kept': 2,
        'labelled neither': 1,
        'lines put to an earlier one of their query': 2,
        'negatives that are positives too': 1,
        'queries without a positive': 1,
        'empty query': 1,
        'query and positive are one text': 1,
        'empty positive': 1,
    }


def test_both_layouts_of_a_dialogue_and_its_lacks():
    says = RULES['dialogue']
    assert says(['patient: a: b', 'doctor: c', 'patient: d']) == ('a: b', ['c'], [])
    assert says([{'speaker': 'Patient', 'utterance': 'a'}, {'speaker': 'Doctor', 'utterance': 'c'}])[:2] == ('a', ['c'])
    assert (
        says(['patient: a'])[:2] == ('a', []) and says(['doctor: hello'])[:2] == ('', ['hello']) and says([])[0] == ''
    )


def test_dialogues_of_another_forum_are_left_out(tmp_path, home):
    said = [
        {'file_name': f'{forum}.txt', 'utterances': [f'patient: {forum}', 'doctor: y']}
        for forum in ('icliniq', 'healthcaremagic')
    ]
    mined = load_labelled('healthcaremagic', path=str(write_lines(tmp_path / 'x.jsonl', said)))
    assert [r['query'] for r in mined] == ['healthcaremagic'] and mined.stats['of another source'] == 1


def test_a_collection_gives_the_documents_of_the_highest_grade(tmp_path, home):
    write_beir(tmp_path / 'F', split='train')
    mined = load_labelled('fever', path=str(tmp_path / 'F'))
    assert [r['id'] for r in mined] == ['fever/q1', 'fever/q2', 'fever/q3']
    assert mined.rows[0]['pos'][0].startswith('Beta blockers') and len(mined.rows[0]['pos']) == 1
    assert mined.stats['empty query or positive'] == 1  # q4, of which nothing is relevant
    with pytest.raises(MedirError, match="no qrels of split 'dev'"):
        load_labelled('fever', path=str(tmp_path / 'F'), split='dev')


def test_documents_that_judges_refused_are_the_negatives(tmp_path, home):
    write_beir(tmp_path / 'F', split='train')
    graded = {('q1', 'd02'): 2, ('q1', 'd03'): 0, ('q1', 'd04'): 0, ('q1', 'd01'): 1, ('q2', 'd03'): 1}
    qrels = ['query-id\tcorpus-id\tscore', *(f'{q}\t{d}\t{grade}' for (q, d), grade in graded.items())]
    write_lines(tmp_path / 'F' / 'qrels' / 'train.tsv', qrels)
    corpus = {row['_id']: row for row in map(json.loads, (tmp_path / 'F' / 'corpus.jsonl').read_text().splitlines())}
    first, second = load_labelled('fever', path=str(tmp_path / 'F')).rows
    assert len(first['pos']) == 1 and len(first['neg']) == 2 and not second['neg']
    assert all(any(corpus[doc]['text'] in text for text in first['neg']) for doc in ('d03', 'd04'))
    # nobody has to mine for a query that brings its negatives
    drawn = draw_negatives([first], 'no such retriever', n=2)
    assert sorted(drawn.rows[0]['neg']) == sorted(first['neg'])


def test_rows_that_another_notebook_leaves_are_read_by_their_name(tmp_path, home):
    row = {'id': 'own/1', 'query': 'a', 'pos': ['b'], 'neg': ['c'], 'instruction': 'Find', 'source': 'own'}
    with pytest.raises(MedirError, match='write them: medir run mar_pretraining --preset paper') as error:
        write_tuning_data(TuningData(files=['mar-triples']), tmp_path)
    assert '\n' not in str(error.value)
    left = leave_rows(write_lines(tmp_path / 'rows.jsonl', [row]), 'mar-triples')
    made = write_tuning_data(TuningData(files=['mar-triples']), tmp_path / 'data')
    assert made.mined.rows == [row] and tmp_path / 'home' in left.parents
    assert rows_file(tmp_path / 'rows.jsonl') == tmp_path / 'rows.jsonl'


@pytest.mark.parametrize(
    'file, lines, why',
    [
        ('x.jsonl', ['{"question": "a"}'], r"x.jsonl:1: field 'answer' is missing"),
        ('x.jsonl', ['{"question": "a", "answer": ""}'], 'no row is left of 1 .1 empty positive'),
        ('x.jsonl', ['{"question": "a", '], 'x.jsonl:1: malformed JSON'),
        ('x.json', ['{"question": "a"}'], "x.json:1: field 'answer' is missing"),
        ('x.json', ['[{"question": "a", "answer": "b"}, {"ques'], 'malformed JSON after item 1'),
        ('x.tsv', ['question\tanswer', 'a\tb\tc'], 'x.tsv:2: 3 columns instead of 2'),
        ('x.csv', ['question,answer', 'a,b,c'], 'x.csv:2: not 2 columns'),
        ('x.xml', ['<a/>'], 'a file .xml is not read'),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, home, file, lines, why):
    with pytest.raises(MedirError, match=why):
        load_labelled('medquad', path=str(write_lines(tmp_path / file, lines)))


def test_a_line_of_another_shape_is_named(tmp_path, home):
    file = write_lines(tmp_path / 'x.jsonl', [{'title': 'a', 'answers': {'text': ['x'], 'score': []}}])
    with pytest.raises(MedirError, match='x.jsonl:1: this line is none of the rule best-answer'):
        load_labelled('eli5', path=str(file))


def test_a_file_that_is_not_text_is_one_line(tmp_path, home):
    (tmp_path / 'x.csv').write_bytes(b'question,answer\n\xff\xfe,b\n')
    (tmp_path / 'x.json.gz').write_bytes(b'[nothing of gzip')
    for file in ('x.csv', 'x.json.gz'):
        with pytest.raises(MedirError, match='cannot be read'):
            load_labelled('medquad', path=str(tmp_path / file))


def test_an_array_is_read_an_object_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr('medir_nb.trainer.tuning_sets._A_PART', 7)
    items = [{'question': 'ä]' * i, 'n': [{}, i]} for i in range(20)]
    with gzip.open(tmp_path / 'x.json.gz', 'wt', encoding='utf-8') as stream:
        json.dump(items, stream, indent=2, ensure_ascii=False)
    assert [item for item, _ in file_rows(tmp_path / 'x.json.gz')] == items


@pytest.mark.parametrize('name, says', [('mednli', 'licence.*PhysioNet'), ('msmarco', 'by hand.*triples.train.small')])
def test_a_gated_set_says_how_to_get_it(name, says, monkeypatch, tmp_path, home):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    with pytest.raises(MedirError, match=rf'tuning set {name}: it needs .*\$MEDIR_DATA/{name}: .*') as e:
        load_labelled(name)
    assert re.search(says, str(e.value)) and '\n' not in str(e.value)
    # with the licence's files in their folder it is read
    (tmp_path / name).mkdir()
    with pytest.raises(MedirError, match='none of its files is here'):
        load_labelled(name)
    line = {'sentence1': 'a', 'sentence2': 'b', 'gold_label': 'entailment'}
    for file in ('mli_train_v1.jsonl', 'mli_test_v1.jsonl'):
        write_lines(tmp_path / name / file, [line | {'sentence1': file}])
    if name == 'mednli':
        assert [r['query'] for r in load_labelled(name)] == ['mli_train_v1.jsonl', 'mli_test_v1.jsonl']


def test_lists_of_sets(tmp_path, home, monkeypatch, capsys):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    file = str(write_lines(tmp_path / 'm.jsonl', [{'question': 'a', 'answer': 'b'}]))
    with pytest.raises(MedirError, match="'medquad' stands 2 times"):
        load_sets(['medquad', 'nq', 'medquad'])
    with pytest.raises(MedirError, match='did you mean .medquad'):
        load_sets(['medquat'], leave_out=True)
    with pytest.raises(MedirError, match='tuning set mednli: it needs a licence'):
        load_sets(['medquad', 'mednli'], {'medquad': file})
    mined = load_sets(['medquad', 'mednli'], {'medquad': file}, leave_out=True)
    assert mined.stats == {'kept': 1, 'medquad: kept': 1, 'mednli: not at hand': 1}
    assert 'mednli: it needs a licence' in capsys.readouterr().err
    with pytest.raises(MedirError, match='no such file'):
        load_labelled('medquad', path=str(tmp_path / 'none.jsonl'))


def test_a_sample_hangs_on_seed_and_query_alone():
    lines = [(f'q{i % 50}', f'a{i}') for i in range(200)]

    def sample(lines, seed=42):
        gathered = ByQuery(10, seed=seed)
        for number, (query, answer) in enumerate(lines):
            gathered.add(str(number), Converted(query, [answer], []))
        assert sum(r['lines'] for r in gathered.rows.values()) + gathered.counts['lines not sampled'] == len(lines)
        return {query: sorted(row['pos']) for query, row in gathered.rows.items()}

    some = sample(lines)
    assert len(some) == 10 and all(len(pos) == 4 for pos in some.values())
    assert sample(lines[::-1]) == some and sample(lines, 1).keys() != some.keys()


def test_healthcaremagic_is_cut_to_what_table_9_prints(tmp_path, home, own_registry):
    row = registry('tuning')['healthcaremagic']
    assert row['printed'] == 30_000 < row['lines']
    own_registry(tuning={'healthcaremagic': {**row, 'printed': 30}})
    turns = lambda n: [f'patient: complaint {n}', f'doctor: answer {n}']
    said = [{'file_name': 'healthcaremagic.txt', 'utterances': turns(n)} for n in range(40)]
    mined = load_labelled('healthcaremagic', path=str(write_lines(tmp_path / 'x.jsonl', said)))
    assert len(mined) == 30 and mined.stats['lines not sampled'] == 10


FEVER = 'Given a claim, retrieve documents that support or refute the claim'
HOPS = 'Given a multi-hop question, retrieve documents that can help answer the question'  # of the authors' prompt.py
RELEASED_LAYOUTS = {
    'flat': {'query': 'q', 'positive': 'p', 'negative': 'n', 'instruction': FEVER},
    'lists': {'question': 'q', 'pos': ['p'], 'neg': ['n'], 'prompt': FEVER},
    'before the query': {
        'query': f'{FEVER}\nQuery: q',
        'positive': 'Represent this passage\npassage: p',
        'negative': 'n',
    },
    'as printed': {'query': f'{FEVER}. Query: q', 'positive': 'Represent this passage. Passage: p', 'negative': 'n'},
    'tevatron': {
        'query': f'{FEVER}\nQuery: q',
        'positive_passages': [{'docid': '1', 'title': '', 'text': 'p'}],
        'negative_passages': [{'docid': '2', 'title': None, 'text': 'n'}],
    },
}


@pytest.mark.parametrize('kind', ['json', 'jsonl', 'array.json'])
@pytest.mark.parametrize('layout', RELEASED_LAYOUTS)
def test_a_released_row_is_read_in_the_layouts_that_such_files_have(layout, kind, tmp_path, home):
    line = RELEASED_LAYOUTS[layout]
    file = write_lines(tmp_path / f'x.{kind}', [json.dumps([line] if kind == 'array.json' else line)])
    [row] = load_labelled('bmretriever-released', path=str(file)).rows
    want = {'query': 'q', 'pos': ['p'], 'neg': ['n'], 'instruction': FEVER, 'source': 'bmretriever-released/fever'}
    assert row == {'id': 'bmretriever-released/0', **want}


def test_released_rows_stay_one_a_line_and_are_told_apart_by_their_instruction(tmp_path, home):
    given = [FEVER, HOPS, 'Given a sentence, retrieve sentences with the same meaning', 'Find leaflets for a drug', '']
    lines = [
        {'query': 'one query', 'positive': f'p{n}', 'negative': 'n', 'instruction': i} for n, i in enumerate(given)
    ]
    file = write_lines(tmp_path / 'x.jsonl', lines)
    mined = load_labelled('bmretriever-released', path=str(file))
    sources = [row['source'].partition('/')[2] for row in mined]
    assert sources == ['fever', 'hotpotqa', 'mednli+mqp', 'synthetic', '']
    assert [group_of(row['source']) for row in mined] == ['general', 'general', 'biomedical', 'synthetic', '']
    assert mined.rows[4]['instruction'] and mined.stats['without an instruction of their own'] == 1
    assert len(load_labelled('bmretriever-released', path=str(file), limit=3)) == 3
    data = {'sets': ['bmretriever-released'], 'paths': {'bmretriever-released': str(file)}}
    assert (
        write_tuning_data(TuningData(**data), tmp_path / 'd').rows == 5
    )  # nothing is mined: each brought its negative
    with pytest.raises(MedirError, match='names no instruction, so its group is unknown'):
        write_tuning_data(TuningData(**data, groups=['biomedical', 'general']), tmp_path / 'd')


def test_a_group_that_holds_nothing_is_named(tmp_path, home, capsys):
    lines = [{'query': f'q{n}', 'positive': f'p{n}', 'negative': 'n', 'instruction': FEVER} for n in range(3)]
    file = str(write_lines(tmp_path / 'x.jsonl', lines))
    data = {
        'sets': ['bmretriever-released'],
        'paths': {'bmretriever-released': file},
        'groups': ['biomedical', 'general'],
    }
    assert write_tuning_data(TuningData(**data), tmp_path / 'd').rows == 3
    assert 'no row is synthetic, so a training without synthetic data is the whole one' in capsys.readouterr().err
    written = {'query': 'q9', 'positive': 'p', 'negative': 'n', 'instruction': 'Find leaflets for a drug'}
    write_lines(tmp_path / 'x.jsonl', [*lines, written])
    assert write_tuning_data(TuningData(**data), tmp_path / 'd').rows == 3
    assert 'the whole one' not in capsys.readouterr().err


def test_a_released_file_of_another_layout_names_what_it_has(tmp_path, home):
    file = write_lines(tmp_path / 'x.jsonl', [{'q': 'a', 'd+': 'b', 'd-': 'c'}])
    with pytest.raises(MedirError, match=r"field 'query' is missing \(found: q, d\+, d-\)"):
        load_labelled('bmretriever-released', path=str(file))


def test_own_sets_need_a_row_and_a_file(tmp_path, home, own_registry):
    row = {'rule': 'triple', 'fields': {'query': 'a', 'positive': 'b', 'negative': 'c'}, 'files': ['own.tsv']}
    own_registry(tuning={'own': {**row, 'columns': ['a', 'b', 'c'], 'instruction': 'Find it'}})
    write_lines(tmp_path / 'own' / 'own.tsv', ['1\t2\t3', '1\t4\t5', '6\t7\t8'])
    mined = load_labelled('own', path=str(tmp_path / 'own'))
    assert [(r['query'], r['pos'], r['neg']) for r in mined] == [('1', ['2', '4'], ['3', '5']), ('6', ['7'], ['8'])]
    assert load_labelled('own', path=str(tmp_path / 'own'), negatives=1).rows[0]['neg'] == ['3']
    assert len(load_labelled('own', path=str(tmp_path / 'own'), limit=1)) == 1


def test_the_hub_is_read_where_no_folder_is_at_hand(tmp_path, home, own_registry, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    lines = [{'question': f'what is {i}', 'answer': f'it is {i}'} for i in range(30)]
    for part in ('one', 'two'):
        write_lines(tmp_path / 'hub' / part / 'train.jsonl', lines[:20] if part == 'one' else lines[15:])
    row = {'instruction': 'Find it', 'revision': 'f' * 40}
    pairs = {'rule': 'question-answer', 'fields': {'query': 'question', 'positive': 'answer'}}
    configs = [[f'dir:{part}', 'train'] for part in ('one', 'two')]
    own_registry(
        tuning={
            'tiny': {**row, **pairs, 'hub': str(tmp_path / 'hub'), 'configs': configs},
            'few': {**row, **pairs, 'hub': str(tmp_path / 'hub'), 'configs': configs, 'sampled': True, 'printed': 7},
        }
    )
    whole = load_labelled('tiny', home_folder=home)
    assert len(whole) == 30 and whole.stats['lines put to an earlier one of their query'] == 5
    few = load_labelled('few', home_folder=home)
    assert len(few) == 7 and {r['query'] for r in few} < {r['query'] for r in whole}
    # a folder of that name wins over the Hub
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path / 'data'))
    write_lines(tmp_path / 'data' / 'tiny' / 'pairs.jsonl', lines[:2])
    assert len(load_labelled('tiny', home_folder=home)) == 2


def test_without_a_connection_the_hub_says_what_is_missing(home, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    with pytest.raises(MedirError, match='no commit of lavita/MedQuAD is on record'):
        load_labelled('medquad', home_folder=home)
    with pytest.raises(MedirError, match='hf download mteb/fever'):
        load_labelled('fever', home_folder=home)
    with pytest.raises(MedirError, match='did you mean .fever'):
        load_labelled('feverish', home_folder=home)


def test_a_gated_set_of_the_hub_names_its_page(home, monkeypatch):
    def refuse(hub, *place):
        raise OSError(f'Dataset {hub!r} is a gated dataset on the Hub.')

    monkeypatch.delenv('MEDIR_DATA', raising=False)
    monkeypatch.setattr('medir_nb.data.hub._load_rows', refuse)
    with pytest.raises(MedirError, match='mteb/fever.*is gated: its owner grants access'):
        load_labelled('fever', home_folder=home)


# ---------------------------------------------------------------- answers of a language model


@pytest.mark.parametrize(
    'text, value, fault, wrapped',
    [
        ('{"query": "a"}', {'query': 'a'}, '', False),
        ('  \n{"query": "a"}\n', {'query': 'a'}, '', False),
        ('```json\n{"query": "a"}\n```', {'query': 'a'}, '', True),
        ('Sure! {"query": "a"} Hope it helps.', {'query': 'a'}, '', True),
        ('{"query": "a {b} c"}', {'query': 'a {b} c'}, '', False),
        ('{"query": {"a": 1}', None, 'broken JSON', False),  # the whole inside is no answer
        ('{"query": "a",}', None, 'broken JSON', False),
        ('{"query": "line\nbreak"}', None, 'broken JSON', False),
        ("{'query': 'a'}", None, 'broken JSON', False),
        ('{query} {"query": "a"}', None, 'broken JSON', False),
        ('{"query": "a"}{"query": "b"}', None, 'several JSON values', False),
        ('{"query": "a", "query": "b"}', None, 'a field twice', False),
        ('[{"query": "a"}]', None, 'JSON of another shape', False),
        ('query: a', None, 'no JSON object', False),
        ('', None, 'no JSON object', False),
        ('{"a":' * 100_000, None, 'broken JSON', False),
    ],
)
def test_json_is_unwrapped_and_never_guessed(text, value, fault, wrapped):
    assert json_in(text, dict) == (value, fault, wrapped)


@pytest.mark.parametrize(
    'schema, text, faults, fault',
    [
        (WrittenQuery, '{"query": "a"}', [], ''),
        (WrittenQuery, '{"query": "a", "why": 1}', [], ''),
        (WrittenQuery, '{"query": 3}', [], 'a field of another kind'),
        (WrittenQuery, '{"query": null}', [], 'a field of another kind'),
        (WrittenQuery, '{"query": " "}', [], 'an empty field'),
        (WrittenQuery, '{"Query": "a"}', [], 'a field is missing'),
        (WrittenQuery, '{"query": "a', ['cut off'], 'cut off'),
        (WrittenQuery, '{"query": "a"}', ['cut off'], ''),
        (WrittenQuery, '{"query": "a"}', ['wrong language'], 'wrong language'),
        (WrittenTasks, '["a", "b"]', [], ''),
        (WrittenTasks, '```\n["a"]\n```', [], ''),
        (WrittenTasks, '["a", 3]', [], 'a field of another kind'),
        (WrittenTasks, '{"tasks": ["a"]}', [], 'JSON of another shape'),
        (
            WrittenExample,
            json.dumps(dict.fromkeys(WrittenExample.model_fields, 'a')),
            [],
            'both documents are one text',
        ),
        (
            WrittenExample,
            '{"user_query": "a", "positive_document": "a", "hard_negative_document": "b"}',
            [],
            'the query is its document',
        ),
    ],
)
def test_answers_fit_their_schema_or_say_why_not(schema, text, faults, fault):
    read = read_answer(text, schema, faults)
    assert read.fault == fault and (read.value is None) == bool(fault)


@pytest.fixture
def writer(home, monkeypatch):
    "`writer(write)` makes smollm2 a server on this machine that answers by `write(prompt)`."
    monkeypatch.delenv('MEDIR_REPLAY', raising=False)
    servers = []

    def use(write):
        g.models.loaded_llm.cache_clear()
        servers.append(ToyServer(lambda messages: write(messages[-1]['content'])))
        g.configure('smollm2', backend='openai', base_url=servers[-1].url)
        return servers[-1]

    yield use
    g.configure('smollm2')
    g.models.loaded_llm.cache_clear()
    g.cassettes._cassette.cache_clear()
    for server in servers:
        server.close()


DOCS = [{'id': f'd{i}', 'doc': f'Finding number {i} is seen in disease {i * i}.'} for i in range(12)]
number_of = lambda prompt: int(re.search(r'Finding number (\d+)', prompt)[1])
asked_about = lambda prompt: json.dumps({'query': f'what is seen in case {number_of(prompt)}?'})


def test_queries_are_written_counted_and_replayed(writer, home):
    odd = {
        0: '{"query": "cut',
        1: 'I cannot.',
        2: 'Here: {"query": "which disease has it?"}',
        3: '{"query": "Finding number 3"}',
        4: '{"query": "which disease has it?"}',
    }
    server = writer(lambda prompt: odd.get(number_of(prompt)) or asked_about(prompt))
    written = write_queries(DOCS, 'smollm2', home_folder=home)
    assert written.stats == {
        'kept': 8,
        'broken: broken JSON': 1,
        'broken: no JSON object': 1,
        'unwrapped': 1,
        'copied from the passage': 1,
        'repeated': 1,
    }
    assert written.rows[0]['pos'] == [DOCS[2]['doc']] and written.rows[0]['id'] == 'synthetic-queries/d2'
    assert {r['instruction'] for r in written} == {
        'Given a question, retrieve Pubmed passages that answer the question.'
    }
    usage = written.usage
    assert (usage.answers, usage.asked, usage.prompt_tokens) == (12, 12, 480) and 'no price on record' in repr(written)
    again = write_queries(DOCS, 'smollm2', home_folder=home, replay=True)
    assert again.rows == written.rows and again.usage.asked == 0 and server.asked == 12 and '$0.00' in repr(again)
    covid = write_queries(DOCS[5:], 'smollm2', 'covid', source='covid', home_folder=home)
    assert covid.rows[0]['id'] == 'covid/d5' and 'COVID-19 related articles' in covid.rows[0]['instruction']


def test_queries_of_several_corpora_stand_under_an_instruction_each(writer, home, tmp_path):
    writer(asked_about)
    places = [str(write_lines(tmp_path / f'{name}.jsonl', DOCS[i::2])) for i, name in enumerate(('pubmed', 'meadow'))]
    written = write_corpus_queries(dict(zip(places, ('question', 'covid'))), 'smollm2', n=4, home_folder=home)
    assert len(written) == 8 and written.usage.answers == 8 and len({row['id'] for row in written}) == 8
    by_source = {row['source']: row['instruction'] for row in written}
    assert [i.split(',')[0] for i in by_source.values()] == ['Given a question', 'Given a query on COVID-19']
    # a hard negative comes from the passages of the same corpus
    drawn = draw_negatives(written.rows, 'bm25', home_folder=home)
    of = {row['pos'][0]: row['source'] for row in written}
    assert all(of[text] == row['source'] for row in drawn for text in row['neg'])
    alone = write_corpus_queries({places[0]: 'question'}, 'smollm2', n=4, home_folder=home)
    assert {row['source'] for row in alone} == {'synthetic-queries'}
    with pytest.raises(MedirError, match='names no corpus'):
        write_corpus_queries({}, 'smollm2')


def test_documents_of_stage_one_are_read_and_sampled_before_they_are_held(home, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    articles = [{'id': i, 'title': f'Title {i}', 'content': f'Abstract {i} of a trial.'} for i in range(40)]
    for name in ('pubmed', 'textbooks'):
        row = registry('pretraining')[name]
        write_lines(
            tmp_path / row['folder'] / 'x.jsonl', [*articles, articles[0], {'id': 'e', 'title': 't', 'content': ''}]
        )
    with rows('pretraining', {'pubmed': {**registry('pretraining')['pubmed'], 'share': 0}}):
        found = load_documents('pubmed', 10, seed=1)
        whole = load_documents('pubmed')
    assert len(found) == 10 and found.stats == {'kept': 10, 'repeated': 1, 'empty': 1, 'not sampled': 30}
    assert whole.rows[0] == {'id': '0', 'doc': 'Title 0 Abstract 0 of a trial.'} and len(whole) == 40
    assert found.rows == [row for row in whole if row in found.rows]  # in their order
    assert load_documents('textbooks', 1).rows[0]['doc'].startswith('Abstract')  # a title there is that of a book
    with pytest.raises(MedirError, match="unknown corpus 'pubmet'; did you mean 'pubmed'"):
        load_documents('pubmet')


def test_sentences_of_a_task_of_pairs_are_left_out(home, tmp_path):
    pairs = [{'sentence1': 'The drug lowers pressure.', 'sentence2': 'It is white.', 'score': 1}]
    write_lines(tmp_path / 'sts' / 'pairs.jsonl', pairs)
    texts = ['The drug  lowers pressure.', 'It is white.', 'It is black.']
    corpus = write_lines(tmp_path / 'x.jsonl', [{'id': i, 'doc': text} for i, text in enumerate(texts)])
    kept = load_documents(str(corpus), without=[str(tmp_path / 'sts')])
    assert [row['id'] for row in kept] == ['2'] and kept.stats['relevant to an evaluation query'] == 2


def test_a_stopped_run_goes_on_where_it_was(writer, home):
    first = writer(asked_about)
    write_queries(DOCS[:5], 'smollm2', home_folder=home)
    assert first.asked == 5
    second = writer(asked_about)
    written = write_queries(DOCS, 'smollm2', home_folder=home)
    assert second.asked == 7 == written.usage.asked and written.usage.answers == 12


def test_a_price_on_record_is_counted_for_what_was_asked_now(writer, home):
    writer(asked_about)
    price = {'price': {'models': {'smollm2': {'input': 100.0, 'output': 1000.0}}}}
    with rows('costs', price):
        usage = write_queries(DOCS, 'smollm2', home_folder=home).usage
        assert usage.dollars == pytest.approx((480 * 100 + usage.answer_tokens * 1000) / 1e6) and usage.dollars > 0
        assert write_queries(DOCS, 'smollm2', home_folder=home).usage.dollars == 0


@pytest.mark.medium
def test_a_model_that_repeats_itself_is_stopped(writer, home):
    server = writer(lambda prompt: '{"query": "What is this?"}')
    many = [{'id': str(i), 'doc': f'Finding number {i}.'} for i in range(100)]
    with pytest.raises(MedirError, match='15 of the first 16 answers of smollm2 repeat'):
        write_queries(many, 'smollm2', home_folder=home)
    assert server.asked == 16
    assert write_queries(many, 'smollm2', home_folder=home, most_repeated=1).stats == {'kept': 1, 'repeated': 99}


def test_a_model_that_writes_no_json_is_one_line(writer, home):
    writer(lambda prompt: f'No JSON for {number_of(prompt)}')
    with pytest.raises(MedirError, match='no row is left of 12 .12 broken: no JSON object'):
        write_queries(DOCS, 'smollm2', home_folder=home)


def test_tasks_are_distinct_and_asking_ends_with_ideas(writer, home):
    answers = iter(
        [['A search.', '1. a SEARCH'], ['For type 1 diabetes', 'For type 2 diabetes'], 'prose'] + [['A search']] * 50
    )
    server = writer(lambda prompt: json.dumps(next(answers)))
    tasks = brainstorm_tasks('smollm2', calls=30, n=2, most_repeated=0.5, home_folder=home)
    # which of three spellings is met first hangs on the order in which the requests end
    kept = sorted(r['task'].lower().strip('1. ') for r in tasks)
    assert kept == ['a search', 'for type 1 diabetes', 'for type 2 diabetes']
    assert tasks.stats['repeated tasks'] == 6 and tasks.stats['broken: no JSON list'] == 1
    assert server.asked == 8 and [n for what, n in tasks.stats.items() if 'not made' in what] == [22]
    assert len({r['id'] for r in tasks}) == 3
    assert (
        len(Path(g.llm('smollm2', home).cassettes.path).read_text().splitlines()) == 8
    )  # eight draws, not one eight times


def test_examples_take_their_values_by_task_and_number(writer, home):
    prompts = []

    def write(prompt):
        prompts.append(prompt)
        values = {'user_query': f'q {len(prompt)} {hash(prompt)}', 'positive_document': 'word ' * 60}
        return json.dumps({**values, 'hard_negative_document': 'short'})

    writer(write)
    tasks = [{'id': f't{i}', 'task': f'Find things of kind {i}'} for i in range(9)]
    written = write_examples(tasks, 'smollm2', n=2, home_folder=home)
    assert len(written) == 18 and len(prompts) == 18
    values = registry('methods')['task-example']['values']
    assert all(row['drawn'][slot] in options for row in written for slot, options in values.items())
    assert all(any(f'{r["instruction"]}\n' in p and r['drawn']['num_words'] in p for p in prompts) for r in written)
    assert len({tuple(r['drawn'].values()) for r in written}) > 8
    assert written.stats['documents shorter than asked'] >= 18
    some = write_examples(tasks[3:5], 'smollm2', n=1, home_folder=home)
    assert some.rows == [r for r in written if r['id'].endswith(('t3-0', 't4-0'))]
    assert Pairs(written.write(home / 'x.jsonl'), 1).rows[0].neg == ['short']


def test_the_lists_are_those_of_the_paper_and_the_prompts_are_not():
    row = registry('methods')['task-example']
    assert [len(v) for v in row['values'].values()] == [3, 3, 3, 5, 3]
    assert row['values']['query_type'][0] == 'extremely long-tail' and row['values']['num_words'][1] == '50-100 words'
    text = ' '.join(
        registry('methods')[name]['wording']['en']['question'] for name in ('brainstorm-tasks', 'task-example')
    )
    assert 'Be creative' not in text and 'You have been assigned' not in text and 'Brainstorm' not in text


def test_own_wording_needs_its_slot(writer, home, tmp_path):
    writer(lambda prompt: json.dumps({'query': prompt[:12]}))
    own = write_lines(tmp_path / 'own.txt', ['Q for {document}'])
    written = write_queries(DOCS[:1], 'smollm2', prompt=str(own), home_folder=home)
    assert written.rows[0]['query'] == 'Q for Findin'
    bad = str(write_lines(tmp_path / 'bad.txt', ['nothing']))
    with pytest.raises(MedirError, match='{document} is missing'):
        write_queries(DOCS[:1], 'smollm2', prompt=bad, home_folder=home)
    with pytest.raises(MedirError, match='{task} is missing'):
        write_examples([{'id': 'a', 'task': 'b'}], 'smollm2', prompt=bad, home_folder=home)
    with pytest.raises(MedirError, match='has no instruction'):
        write_queries(DOCS[:1], 'smollm2', 'poem', home_folder=home)


# ---------------------------------------------------------------- negatives and the round trip


class Axes:
    "An encoder whose vectors are written down."

    name, revision, similarity = 'axes', '1', 'cos'
    V = {'qa': [1, 0, 0], 'qb': [0, 1, 0], 'a': [1, 0.1, 0], 'a2': [1, 0.2, 0], 'b': [0, 1, 0.1], 'c': [0, 0, 1]}

    def encode(self, texts):
        return np.array([self.V[t] for t in texts], np.float32)


def training_rows():
    return [
        {'id': 's/1', 'query': 'qa', 'pos': ['a'], 'neg': [], 'instruction': 'I', 'source': 's'},
        {'id': 's/2', 'query': 'qb', 'pos': ['b'], 'neg': [], 'instruction': 'I', 'source': 's'},
        {'id': 's/3', 'query': 'qa', 'pos': ['a2'], 'neg': [], 'instruction': 'I', 'source': 's'},
        {'id': 'o/1', 'query': 'qc', 'pos': ['c'], 'neg': ['x', 'y', 'z'], 'instruction': 'J', 'source': 'o'},
    ]


def test_a_negative_comes_from_the_own_source_and_answers_nothing(home):
    drawn = draw_negatives(training_rows(), Axes(), top=4, home_folder=home)
    by_id = {r['id']: r['neg'] for r in drawn}
    assert by_id['s/1'] == by_id['s/3'] == ['b']  # a2 answers the same question in another row
    assert by_id['s/2'][0] in ('a', 'a2') and by_id['o/1'][0] in 'xyz' and len(by_id['o/1']) == 1
    assert drawn.stats == {'kept': 4, 'that brought their negatives': 1}
    assert [{**r, 'neg': []} for r in drawn] == [{**r, 'neg': []} for r in training_rows()]
    seeds = {tuple(draw_negatives(training_rows(), Axes(), seed=s, home_folder=home).rows[1]['neg']) for s in range(9)}
    assert seeds == {('a',), ('a2',)}


def graded_task(folder, n=60):
    "A collection of `n` documents and three judged queries, of which the first has a document of a lower grade."
    documents = [{'_id': f'd{i}', 'title': '', 'text': f'text {i}'} for i in range(n)]
    documents += [{'_id': 'twin', 'title': '', 'text': 'text 0'}, {'_id': 'empty', 'title': '', 'text': ' '}]
    write_lines(folder / 'corpus.jsonl', documents)
    write_lines(folder / 'queries.jsonl', [{'_id': f'q{i}', 'text': f'query {i}'} for i in range(3)])
    judged = [('q0', 'd0', 2), ('q0', 'd3', 1), ('q1', 'd1', 1), ('q2', 'd2', 1)]
    write_lines(
        folder / 'qrels' / 'train.tsv', ['query-id\tcorpus-id\tscore', *('\t'.join(map(str, j)) for j in judged)]
    )
    return str(folder)


class Near:
    "An encoder in whose eyes text i is next to query 0, then text i + 1 …"

    name, revision, similarity = 'near', '1', 'cos'

    def encode(self, texts):
        turn = [0.001 * int(t.split()[1]) if t.strip() else 3.0 for t in texts]
        return np.array([[np.cos(a), np.sin(a)] for a in turn], np.float32)


def drawn_by_seed(searched, data, seeds=range(40), **more):
    "What each query of the task's rows draws, over many seeds."
    rows_ = load_labelled('fever', path=data, **more).rows
    how = {'searched': searched, 'paths': {'fever': data}, 'top': 20}
    drawn = [draw_negatives(rows_, Near(), seed=seed, **how).rows for seed in seeds]
    return {row['query']: {r[i]['neg'][0] for r in drawn if r[i]['neg']} for i, row in enumerate(rows_)}


@pytest.mark.medium
def test_negatives_come_from_the_entire_corpus_of_a_collection(tmp_path, home):
    data = graded_task(tmp_path / 'fever')
    assert drawn_by_seed('rows', data) == {
        'query 0': {'text 1', 'text 2'},
        'query 1': {'text 0', 'text 2'},
        'query 2': {'text 0', 'text 1'},
    }
    found = drawn_by_seed('corpus', data)
    ranks = {f'text {i}' for i in range(20)}
    # the first twenty ranks of the corpus, whatever rows were drawn of it; neither a twin of the answer nor one of a lower grade
    assert all(len(texts) > 10 and texts <= ranks for texts in found.values())
    assert not found['query 0'] & {'text 0', 'text 3'} and 'text 4' in found['query 2']
    assert all('' not in texts for texts in found.values())
    few = drawn_by_seed('corpus', data, limit=2)
    assert len(few) == 2 and all(found[query] == texts for query, texts in few.items())


@pytest.mark.medium
def test_a_task_with_a_split_is_searched_whole(home):
    rows_ = load_labelled('hpo-lay:train', limit=3, home_folder=home).rows
    whole = searched_corpus('hpo-lay:train', home_folder=home)
    assert len(whole.corpus) == len(load_task('hpo-lay', 'train').corpus) > 1000 and searched_corpus('my ward') is None
    drawn = draw_negatives(rows_, 'bm25', searched='corpus', home_folder=home).rows
    own = {text for row in rows_ for text in row['pos']}
    assert [row['neg'][0] not in own for row in drawn] == [True] * 3
    relevant = {query: {whole.corpus.text(d) for d in ids} for query, ids in whole.answers.items()}
    assert not any(row['neg'][0] in relevant[row['query']] for row in drawn)


def test_a_set_of_lines_is_searched_over_all_its_answers(tmp_path, home):
    lines = [{'question': f'query {i}', 'answer': f'text {i}'} for i in range(60)]
    file = str(write_lines(tmp_path / 'gooaq.jsonl', lines))
    [row] = load_labelled('gooaq', path=file, limit=1).rows
    drawn = lambda searched: draw_negatives([row], Near(), searched=searched, paths={'gooaq': file}).rows[0]['neg']
    assert drawn('rows') == [] and len(drawn('corpus')) == 1 and drawn('corpus') != row['pos']
    data = TuningData(sets=['gooaq'], paths={'gooaq': file}, limit=1, miner='bm25')
    assert data.searched == 'corpus'  # the paper's way is the default
    with pytest.raises(MedirError, match="searched='row' does not fit"):
        draw_negatives([row], Near(), searched='row')
    write_lines(tmp_path / 'gooaq.jsonl', [line for line in lines if line['answer'] not in row['pos']])
    with pytest.raises(MedirError, match='gooaq: the positives of gooaq/.* are not in its corpus'):
        drawn('corpus')


def test_too_few_negatives_are_counted(home):
    rows_ = training_rows()[:1]
    found = draw_negatives(rows_, Axes(), home_folder=home)
    assert found.rows[0]['neg'] == [] and found.stats['with fewer negatives than asked'] == 1
    more = draw_negatives(rows_, Axes(), passages={'s': ['c', 'a']}, home_folder=home)
    assert more.rows[0]['neg'] == ['c']
    with pytest.raises(MedirError, match="the id .'s/1'. stands in more than one row"):
        draw_negatives(rows_ * 2, Axes(), home_folder=home)


def test_a_row_is_kept_where_its_passage_is_among_the_first(home):
    kept = consistent_rows(training_rows()[:3], Axes(), k=1, home_folder=home)
    assert [r['id'] for r in kept] == ['s/1', 's/2'] and kept.stats == {'kept': 2, 'not among the first 1': 1}
    assert kept.rows == training_rows()[:2]
    first, second = training_rows()[:2]
    astray = [{**first, 'query': 'qb'}, {**second, 'query': 'qa'}]
    with pytest.raises(MedirError, match='no row is left of 2 .2 not among the first 1'):
        consistent_rows(astray, Axes(), k=1, home_folder=home)


def test_the_steps_run_from_file_to_file(tmp_path, home):
    source = write_lines(
        tmp_path / 'm.jsonl', [{'question': f'what about {d["id"]}', 'answer': d['doc']} for d in DOCS]
    )
    mine('load_labelled', 'medquad', tmp_path / '1.jsonl', home, path=str(source))
    mine('draw_negatives', str(tmp_path / '1.jsonl'), tmp_path / '2.jsonl', home, retriever='bm25', n=1)
    mine('without_test_queries', str(tmp_path / '2.jsonl'), tmp_path / '3.jsonl', home, tasks=['hpo-lay'])
    lines = [json.loads(line) for line in (tmp_path / '3.jsonl').read_text().splitlines()]
    assert len(lines) == 12 and set(lines[0]) == {'id', 'query', 'pos', 'neg', 'instruction', 'source'}
    bare = str(write_lines(tmp_path / 'bare.jsonl', [{'id': '1', 'query': 'a'}]))
    with pytest.raises(MedirError, match="field 'pos' is missing"):
        mine('draw_negatives', bare, tmp_path / '4.jsonl', home, retriever='bm25')


def test_a_mixture_is_shown_by_source():
    table = mixture_table(training_rows()).set_index('source')
    assert table.loc['s', 'rows'] == 3 and table.loc['s', 'share'] == 0.75 and table.loc['o', 'negatives'] == 3
    assert table.loc['s', 'instruction'] == 'I'
    mixed = mixture_table([r | {'source': ''} for r in training_rows()])
    assert mixed.instruction[0] == '2 of them'


# ---------------------------------------------------------------- contamination


def test_words_and_sequences():
    assert words_of('Ａ β-blocker, “SAFE”?') == ['a', 'β', 'blocker', 'safe'] and words_of('高血压x') == [
        '高',
        '血',
        '压',
        'x',
    ]
    assert word_sequences('a b c d', 3) == {('a', 'b', 'c'), ('b', 'c', 'd')}
    assert word_sequences('a b', 3) == {('a', 'b')} and word_sequences(' ?', 3) == set()
    assert words_of("Bell's palsy") == words_of('BELL’S palsy') == ['bells', 'palsy']
    index = QueryIndex(['a b c d', 'a b', 'A, B', '', 'a'], 3, 2)
    assert index.compare('a-b') == {1: (True, 1.0), 2: (True, 1.0)} and index.compare('?') == {}
    assert index.compare('x b c d a b') == {0: (False, 0.5), 1: (False, 1.0), 2: (False, 1.0)}
    assert index.compare('b a') == {} and index.compare('A') == {4: (True, 1.0)}


def test_test_queries_in_training_are_found_shown_and_taken_out(tmp_path, home):
    folder = str(write_beir(tmp_path / 'F'))
    training = [
        {'query': 'Drugs after a heart attack?', 'source': 'one'},
        {'query': 'what is the first treatment of type 2 diabetes in adults', 'source': 'two'},
        {'query': 'treatment of a snake', 'source': 'two'},
        {'query': 'unrelated', 'source': 'one'},
    ]
    report = contamination(training, [folder, 'hpo-lay'], n=3, threshold=0.9, home_folder=home)
    table = report.table().set_index('test set')
    assert list(table.loc['F'])[:4] == [4, 1, 1, 0.5] and list(table.loc['hpo-lay'])[:4] == [200, 0, 0, 0.0]
    shown = report.examples(1)
    assert list(shown['training query']) == ['Drugs after a heart attack?'] and shown.same[0]
    assert 'Contamination(2 of 204' in repr(report)
    loose = contamination(training, [folder], n=2, threshold=0.3, home_folder=home)
    assert set(loose.hits.overlap) == {1.0, 1 / 3}
    assert len(contamination(training, [folder], n=2, threshold=0.3, shortest=5, home_folder=home).hits) == 2
    clean = without_test_queries(training, [folder], n=3, threshold=0.9, home_folder=home)
    assert [r['query'] for r in clean] == ['treatment of a snake', 'unrelated']
    assert clean.stats == {'kept': 2, 'too close to F': 2}
    with pytest.raises(MedirError, match='no row is left'):
        without_test_queries(training[:1], [folder], home_folder=home)
    with pytest.raises(MedirError, match='threshold=0'):
        contamination(training, [folder], threshold=0)


@pytest.mark.medium
def test_tasks_that_are_not_at_hand_are_named(home, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    report = contamination([{'query': load_task('hpo-lay').queries.texts()[0]}], home_folder=home)
    assert 'icliniq' in report.not_read and 'hpo-lay' in report.sizes and len(report.hits) >= 1
    empty = contamination([], ['hpo-lay'], home_folder=home)
    assert empty.table()['the same'].sum() == 0 and len(empty.examples()) == 0


# ---------------------------------------------------------------- what a training reads

TOLD = '{instruction}\nQuery: {text}'
TINY = dict(
    kind='encoder',
    load='transformers',
    revision='tiny',
    pooling='mean',
    normalize=True,
    similarity='cos',
    max_query_tokens=40,
    max_document_tokens=40,
    query_template=TOLD,
    document_template='{text}',
    default_instruction='Given a query, retrieve passages',
)


@pytest.fixture(scope='module')
def tiny_folder(tmp_path_factory):
    return make_model('bert', tmp_path_factory.mktemp('tuned') / 'bert')


@pytest.fixture
def tiny(tiny_folder, own_registry):
    own_registry(
        models={
            'tiny-told': dict(TINY, hub=tiny_folder),
            'tiny-mute': dict(TINY, hub=tiny_folder, query_template='query: {text}', default_instruction=''),
            'tiny-apart': dict(TINY, hub=tiny_folder, prompt_in_pooling=False),
        }
    )


def tuning_file(path, instructions):
    lines = [
        {'query': f'what is {i}', 'pos': [f'it is {i}'], 'neg': [f'it is not {i}'], 'instruction': told, 'source': 's'}
        for i, told in enumerate(instructions)
    ]
    return str(write_lines(path, lines))


@pytest.mark.medium
def test_each_query_is_trained_under_the_instruction_of_its_line(tiny, tmp_path, home):
    said = ['Find the fact', 'Find the fact', 'Check the claim', '']
    file = tuning_file(tmp_path / 'x.jsonl', said)
    settings = {'data': file, 'negatives': 1, 'batch_size': 4, 'max_steps': 1}
    by_line = train_encoder(model='tiny-told', output='by-line', **settings)
    one = train_encoder(model='tiny-told', output='one', instruction='Find the fact', **settings)
    none = train_encoder(model='tiny-told', output='none', instruction='', **settings)
    losses = [float(t.history.loss.iloc[0]) for t in (by_line, one, none)]
    assert len({round(loss, 6) for loss in losses}) == 3
    # what it saw is what encode gives it
    model = load_sentence_transformer(replace(encoder_spec('tiny-told'), dtype='float32'), device='cpu')
    encoder, pairs = Encoder('tiny-told'), Pairs(file, 1, instructions=True)
    default = encoder.spec.default_instruction
    batch = PairBatches(pairs, encoder, dict.fromkeys(('query', 'document'), model.tokenizer), default)(
        [{'row': i} for i in range(4)]
    )
    wanted = [
        encoder.tokens('query')(encoder.render([('', pair.query)], 'query', told or default))[0][0]
        for pair, told in zip(pairs.rows, said, strict=True)
    ]
    masks = batch['query_attention_mask'].sum(1)
    assert [row[:n].tolist() for row, n in zip(batch['query_input_ids'], masks, strict=True)] == wanted


def test_lines_without_instructions_have_the_key_that_they_had(tmp_path):
    file = tuning_file(tmp_path / 'x.jsonl', ['', ''])
    told = tuning_file(tmp_path / 'y.jsonl', ['I', 'J'])
    assert Pairs(file, instructions=True).content() == Pairs(told).content() == Pairs(file).rows
    found = Pairs(told, instructions=True)
    assert found.content() == [found.rows, ['I', 'J']] and found.counts['instructions'] == 2


@pytest.mark.medium
def test_instructions_that_a_model_cannot_take(tiny, tmp_path, home):
    file = tuning_file(tmp_path / 'x.jsonl', ['Find the fact', 'Check the claim'])
    settings = {'data': file, 'negatives': 1, 'batch_size': 2, 'max_steps': 1}
    with pytest.raises(MedirError, match='leaves the prompt out of its pooling.*from line to line'):
        train_encoder(model='tiny-apart', output='apart', **settings)
    assert train_encoder(model='tiny-mute', output='mute', **settings).steps == 1  # it has no place for them
    bad = str(write_lines(tmp_path / 'bad.jsonl', [{'query': 'a', 'pos': ['b'], 'instruction': 3}]))
    with pytest.raises(MedirError, match="bad.jsonl:1: 'instruction' is neither text"):
        train_encoder(model='tiny-told', output='bad', **{**settings, 'data': bad})


# ---------------------------------------------------------------- real sets


@pytest.mark.slow
def test_real_sets_have_the_sizes_that_are_known(medir_data, home):
    medquad, mqp = load_labelled('medquad', home_folder=home), load_labelled('mqp', home_folder=home)
    assert len(medquad) == 14_979 and len(mqp) == 1_524 and all(len(r['neg']) == 1 for r in mqp)
    drawn = draw_negatives(medquad.rows[:300], 'bm25', home_folder=home)
    assert all(not set(r['neg']) & set(r['pos']) for r in drawn)


@pytest.mark.slow
def test_medquad_shares_no_query_with_nfcorpus_but_all_with_itself(medir_data, home):
    medquad = load_labelled('medquad', home_folder=home)
    report = contamination(medquad, [str(medir_data / 'medquad_qa')], home_folder=home)
    table = report.table()
    assert table['the same'][0] == table.queries[0]
    other = contamination(medquad, [str(medir_data / 'nfcorpus')], home_folder=home).table()
    assert other['the same'][0] < 0.05 * other.queries[0]
