"The report of a walk: one file, nothing outside, nothing that runs, and what is missing is named."

import json, sys
from html.parser import HTMLParser

import pytest

from medir_nb.core import MedirError, nothing_leaves, write_json
from medir_nb.core.files import file_fingerprint
from medir_nb.encoder import encoder_spec
from medir_nb.walk import give_verdict, look
from medir_nb.walk.folder import Walk
from medir_nb.walk.pages import stands_on
from medir_nb.walk.folder import note_step, walk_steps
from medir_nb.walk.report import walk_line
from medir_nb.walk.report import (
    render_report,
    report_sections,
    section,
    verdict_sections,
    write_report,
)
from medir_nb.walk.toy import write_toy_walk

PAIR = ['bm25', 'bm25(b=0)']
ATTACKS = [
    '<script>alert(1)</script>',
    '</td></table><script src=//evil.example/x.js></script>',
    '"><img src=x onerror=alert(1)>',
    '<a href="javascript:alert(1)">look</a>',
    '{{ 7*7 }} {% raw %}',
    '=HYPERLINK("http://evil.example","click")',
    '</title><script>alert(2)</script>',
    '<style>body{background:url(http://evil.example)}</style>',
    '&lt;script&gt;alert(3)&lt;/script&gt;',
    '<svg onload=alert(4)>',
]
VOID = {'meta', 'img', 'br', 'link', 'input', 'hr'}


class Page(HTMLParser):
    "Elements, attributes, texts, and whether everything is closed."

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open, self.listings = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open[-1:] == ['pre']:
            self.listings.append(data)
        if self.open[-1:] != ['style']:
            self.texts.append(data)

    def named(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return ' '.join(' '.join(self.texts).split())


@pytest.fixture
def walk(tmp_path):
    return write_toy_walk(tmp_path / 'conditions')


@pytest.fixture
def judged(walk):
    give_verdict(walk, [*PAIR, 'bm25(lucene)'], clock=False)
    return walk


def harmless(page: Page):
    "Nothing that runs, and nothing outside."
    names = {name for name, _ in page.elements}
    assert not names & {'script', 'iframe', 'object', 'embed', 'link', 'a', 'form', 'svg', 'base'}
    for _, attrs in page.elements:
        assert not [name for name in attrs if name.startswith('on')]
        for name in ('src', 'href', 'action', 'data', 'srcset', 'poster'):
            assert attrs.get(name, 'data:image/png;base64,').startswith('data:image/png;base64,')
    assert not page.open


def test_the_page_is_whole_accessible_and_refers_to_nothing(judged):
    path = write_report(judged)
    page = Page(path.read_text(encoding='utf-8'))
    harmless(page)
    assert page.named('html')[0]['lang'] == 'en' and len(page.named('h1')) == len(page.named('title')) == 1
    headings = [int(name[1]) for name, _ in page.elements if name in ('h1', 'h2', 'h3')]
    assert headings[0] == 1 and set(headings[1:]) == {2}
    assert all(attrs.get('scope') in ('col', 'row') for attrs in page.named('th'))
    assert len(page.named('caption')) == len(page.named('table')) > 4
    assert all(attrs.get('alt') for attrs in page.named('img'))
    text = path.read_text(encoding='utf-8')
    assert 'http://' not in text and 'https://' not in text and 'url(' not in text
    assert 'prefers-color-scheme: dark' in text and '@media print' in text


def test_it_holds_the_verdict_its_tests_and_the_texts(judged):
    page = Page(render_report(judged))
    content = json.loads(judged.path('verdict.json').read_text())
    assert page.text.count(content['sentence']) == 1 and 'Paired tests, people' in page.text
    assert content['changed'][0]['text'] in page.text and 'Queries that changed most' in page.text
    assert 'file corpus.jsonl' in page.text and 'python' in page.text


def test_a_look_is_told_in_words(tmp_path):
    folder = tmp_path / 'notes'
    folder.mkdir()
    for number in range(4):
        (folder / f'{number}.txt').write_text(f'Note {number}. ' + 'The wound is cleaned and dressed with gauze. ' * 9)
    (folder / 'copy.txt').write_text((folder / '0.txt').read_text())
    (folder / 'latin.txt').write_bytes('Rücksprache'.encode('latin-1'))
    look(folder, tmp_path / 'walk', passages={'sentences': 1}, candidates=['minilm'])
    found = json.loads((tmp_path / 'walk/look.json').read_text())
    counts = {row['what']: (row['number'], row['which']) for row in found['tables']['documents']}
    assert counts['in the corpus'] == ('4', '') and counts['exact duplicates, left out'][0] == '1'
    assert counts['files that could not be read'] == ('1', 'latin.txt: not UTF-8 (byte 1)')
    assert found['lines'][0].startswith('4 documents; half have ') and found['tables']['encoders'][0]['limit'] == '256'


def test_a_bar_counts_the_parts_of_the_page(judged, monkeypatch):
    module, bars = sys.modules['medir_nb.walk.report'], []

    def progress(items, **how):
        bars.append((how['desc'], len(items)))
        return items

    monkeypatch.setattr(module, 'progress', progress)
    write_report(judged)
    assert bars == [('report', 6)]


def test_people_are_counted_without_whoever_settled(walk):
    rows = ['q1,gout,anna,2', '"a, b",gout,anna,1', 'q1,gout,ben,0', 'q1,gout,adjudicated,2']
    walk.path('labels/votes.csv').write_text('\n'.join(['query_id,doc_id,annotator,grade', *rows]) + '\n')
    assert ', by 2 people.' in Page(render_report(walk)).text


@pytest.mark.medium
@pytest.mark.parametrize('attack', ATTACKS)
def test_a_strangers_text_is_shown_and_never_runs(tmp_path, attack):
    walk = write_toy_walk(tmp_path / 'w')
    Walk.begin(walk.folder, name=attack, documents=attack, language='en')
    for file in ('corpus.jsonl', 'queries.jsonl'):
        rows = [json.loads(line) for line in walk.path(file).read_text().splitlines()]
        for row in rows:
            row['text'] = f'{row["text"]} {attack}'
            row.update(title=attack, style=attack) if file == 'corpus.jsonl' else row.update(style=attack)
        walk.path(file).write_text(''.join(json.dumps(row) + '\n' for row in rows))
    give_verdict(walk, PAIR, clock=False)
    write_json(
        walk.path('look.json'),
        {'lines': [attack], 'tables': {'documents': [{attack: attack}], attack: [{'a': attack}]}},
    )
    one = {'system': attack, 'method': attack, 'sentence': attack, 'better': False, 'trained_on': []}
    lost = {'task': attack, 'measure': 'nDCG@10', 'difference': -0.1, 'low': -0.2, 'high': -0.05, 'p_holm': 0.0001}
    tables = {'table': [{attack: attack}], 'forgetting': [lost]}
    write_json(walk.path('adapt.json'), {'adaptations': [one | tables]})
    content = json.loads(walk.path('verdict.json').read_text())
    content['systems'][0]['system'] = attack
    write_json(walk.path('verdict.json'), content | {'left_out': {attack: attack}, 'choice': attack})
    page = Page(render_report(walk, private=attack))
    assert '−0.100 [−0.200, −0.050]' in page.text and '<0.001' in page.text
    harmless(page)
    assert page.text.count(' '.join(attack.split())) >= 8


def test_missing_steps_are_named_with_their_command(tmp_path):
    walk = Walk.begin(tmp_path / 'w', name='empty', documents='notes/')
    page = Page(render_report(walk))
    harmless(page)
    for command in ('medir look', 'medir queries', 'medir label', 'medir verdict', 'medir adapt'):
        assert command in page.text


@pytest.mark.medium
def test_the_figure_is_a_data_uri(walk, medir):
    assert medir('verdict', walk.folder, '--system', PAIR[0], '--system', PAIR[1]).code == 0
    assert medir('report', walk.folder, '--to', walk.folder / 'out.html').code == 0
    page = Page((walk.folder / 'out.html').read_text())
    harmless(page)
    assert page.named('img')[0]['src'].startswith('data:image/png;base64,')


def chosen(walk, system):
    "The walk with another choice in its verdict."
    content = json.loads(walk.path('verdict.json').read_text())
    write_json(walk.path('verdict.json'), content | {'choice': system})
    return walk


@pytest.mark.medium
def test_the_page_holds_the_contract_of_what_was_chosen_and_a_receipt(judged, fake_minilm):
    page = Page(render_report(chosen(judged, 'rrf(bm25,minilm)')))
    harmless(page)
    [minilm] = [one for one in page.listings if one.startswith('model')]
    task = judged.task('test')
    [query], [(title, body)] = task.queries.rows(0, 1), task.corpus.rows(0, 1)
    for name in ('revision', 'pooling', 'similarity'):
        assert str(getattr(encoder_spec('minilm'), name)) in minilm, name
    assert query[1] in minilm and f'{title} {body}'[:80] in minilm and 'of at most 256' in minilm
    [sparse] = [one for one in page.listings if one.startswith('k1')]
    assert 'k1        1.5' in sparse and 'b         0.75' in sparse
    assert 'Contract of minilm' in page.text and 'Contract of bm25' in page.text
    receipt = page.text.partition(' Receipt ')[2]
    for name in ('corpus.jsonl', 'queries.jsonl', 'qrels/test.tsv', 'verdict.json'):
        assert f'file {name} {file_fingerprint(judged.path(name))}' in receipt
    content = json.loads(judged.path('verdict.json').read_text())
    assert content['provenance']['versions']['bm25s'] in receipt and content['provenance']['machine']['cpu'] in receipt
    assert '://' not in page.text


@pytest.mark.medium
def test_a_contract_that_cannot_be_shown_says_why(judged):
    page = Page(render_report(chosen(judged, 'rrf(bm25,./gone)')))
    harmless(page)
    assert 'Contract of rrf(bm25,./gone) It cannot be shown here: ' in page.text


def test_a_line_on_privacy_has_its_place(judged):
    assert 'nothing left this machine' in Page(render_report(judged, private='nothing left this machine')).text


def test_the_line_says_which_steps_were_private(walk, home, tmp_path):
    with nothing_leaves():
        for step in ('look', 'queries', 'label'):
            note_step(walk, step)
        give_verdict(walk, PAIR, clock=False)
        text = Page(write_report(walk).read_text()).text
    said = 'All steps of this walk (look, queries, label, verdict, report) ran under --private.'
    assert said in text and 'no connection elsewhere was tried' in text and 'look before you send this on' in text
    note_step(walk, 'queries')
    line = walk_line(walk)
    assert line.startswith('Not all steps of this walk ran under --private: queries ran without --private, and what')
    assert walk_line(walk, tmp_path / 'elsewhere') == ''  # the records are not there
    assert 'Not all steps' in Page(write_report(walk).read_text()).text


def test_a_step_without_a_line_is_not_known_to_be_private(walk, home):
    with nothing_leaves():
        note_step(walk, 'verdict')
    assert 'how look, queries, label ran is not recorded' in walk_line(walk)
    (walk.folder / 'steps.jsonl').unlink()
    assert walk_line(walk) == '' and walk_steps(walk) == []
    assert '--private' not in Page(render_report(walk, walk_line(walk))).text


def test_a_folder_without_a_walk_is_one_line(tmp_path, medir):
    ran = medir('report', tmp_path)
    assert ran.code == 2 and 'medir look' in ran.err
    with pytest.raises(MedirError, match='holds no walk'):
        write_report(tmp_path)


def test_a_torn_file_is_named(walk):
    walk.path('queries.jsonl').write_text('{"_id": ')
    with pytest.raises(MedirError, match='malformed JSON'):
        render_report(walk)


def test_an_earlier_verdict_is_said_beside_its_sentence_and_in_the_receipt(judged, medir):
    assert 'of earlier' not in Page(render_report(judged)).text
    then = file_fingerprint(judged.path('corpus.jsonl'))
    path = judged.path('corpus.jsonl')
    path.write_text(path.read_text() + json.dumps({'_id': 'new', 'title': '', 'text': 'a new leaflet'}) + '\n')
    ran = medir('report', judged.folder)
    said = 'he verdict is of earlier documents: run medir verdict'
    page = Page(judged.path('report.html').read_text())
    harmless(page)
    assert ran.code == 0 and f't{said} {judged.folder} again' in ran.err
    # a page that is sent on holds no place of this machine
    assert page.text.count(f'T{said} {judged.folder.name} again.') == 1 and str(judged.folder) not in page.text
    assert f'corpus.jsonl at the verdict {then}' in page.text
    assert f'file corpus.jsonl {file_fingerprint(path)}' in page.text


def test_the_index_of_a_walk_says_that_the_verdict_is_old(judged, medir):
    assert medir('index', judged.folder, '--system', 'bm25').code == 0
    asked = ('search', judged.path('index'), 'asthma')
    assert 'of earlier' not in medir(*asked).err
    path = judged.path('corpus.jsonl')
    path.write_text(path.read_text() + json.dumps({'_id': 'new', 'title': '', 'text': 'a new leaflet'}) + '\n')
    ran = medir(*asked)
    assert ran.code == 0 and f'the verdict is of earlier documents: run medir verdict {judged.folder} again' in ran.err


def test_an_earlier_adaptation_is_said(walk):
    one = {'system': 'x', 'method': 'queries', 'sentence': 'It is better.', 'better': True, 'trained_on': []}
    one |= {'measured_on': 'synthetic', 'stands_on': stands_on(walk), 'table': []}
    write_json(walk.path('adapt.json'), {'adaptations': [one, one | {'method': 'labels', 'stands_on': None}]})
    walk.path('qrels/test.tsv').unlink()
    assert 'of earlier' not in Page(render_report(walk)).text  # it was measured on synthetic queries
    path = walk.path('corpus.jsonl')
    path.write_text(path.read_text() + json.dumps({'_id': 'new', 'title': '', 'text': 'a new leaflet'}) + '\n')
    text = Page(render_report(walk)).text
    assert text.count(f'This is of earlier documents: run medir adapt {walk.folder.name} again.') == 1


def test_labels_are_counted_as_the_verdict_counts_them(walk):
    lines = walk.path('qrels/test.tsv').read_text().splitlines()
    # one query for which nothing was relevant, and one whose document is gone
    first = lines[1].split('\t')[0]
    lines = [line.replace('\t1', '\t0') if line.startswith(first) else line for line in lines]
    gone = lines[-1].split('\t')[0].removeprefix('p-')
    walk.path('qrels/test.tsv').write_text('\n'.join(lines) + '\n')
    rows = [json.loads(line) for line in walk.path('corpus.jsonl').read_text().splitlines()]
    walk.path('corpus.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows if row['_id'] != gone))
    verdict = give_verdict(walk, PAIR, clock=False)
    text = Page(render_report(walk)).text
    many = verdict.content['judged']['people']
    assert many == 34 and f'{many} labelled queries' in verdict.sentence
    assert f' pairs of {many} queries.' in text and 'Left out: 2 queries for which nothing was relevant.' in text


def test_a_query_in_conflict_is_not_said_to_have_nothing_relevant(walk):
    lines = walk.path('qrels/test.tsv').read_text().splitlines()
    first = lines[1].split('\t')[0]
    lines = [line.replace('\t1', '\t0') if line.startswith(f'{first}\t') else line for line in lines]
    walk.path('qrels/test.tsv').write_text('\n'.join(lines) + '\n')
    assert 'Left out: 1 query for which nothing was relevant.' in Page(render_report(walk)).text
    rows = [f'{first},other,anna,2', f'{first},other,ben,0']
    walk.path('labels/votes.csv').write_text('\n'.join(['query_id,doc_id,annotator,grade', *rows]) + '\n')
    text = Page(render_report(walk)).text
    assert 'Left out: 1 query on which people differ.' in text and 'nothing was relevant' not in text


def test_a_torn_verdict_is_named_as_the_index_names_it(judged, medir):
    judged.path('verdict.json').write_text('{"sentence": "Take')
    for command in ('report', 'index'):
        ran = medir(command, judged.folder)
        assert ran.code == 2 and 'verdict.json: this is no verdict; run medir verdict again' in ran.err


def test_a_torn_record_of_adaptations_is_named_before_anything_is_trained(judged, medir):
    judged.path('adapt.json').write_text('{"adaptations": [')
    for command in (('report',), ('verdict',), ('adapt', '--minutes', '1')):
        ran = medir(command[0], judged.folder, *command[1:])
        assert ran.code == 2 and 'adapt.json: this is no record of adaptations; delete it' in ran.err


def test_cells_are_what_a_reader_sees():
    assert section('s', [], [{'a': None, 'b': 1.0, 'c': float('nan')}])['rows'] == [['', '1.000', '']]


def test_a_cell_is_not_cut_within_a_word_and_nothing_is_said_twice(judged):
    "On a telephone columns of `nDCG@1 0` and `encod er` stood side by side."
    text = render_report(judged)
    page = Page(text)
    cells = [value for part in report_sections(judged) for row in part['rows'] for value in row]
    assert any(len(value) > 24 for value in cells) and any(len(value) <= 24 for value in cells)
    roomy = [name for name, attrs in page.elements if attrs.get('class') == 'long']
    assert len(roomy) == sum(len(value) > 24 for value in cells)
    assert 'td { overflow-wrap' not in text and '.long { overflow-wrap: anywhere' in text
    headings = [
        part['heading'] for part in report_sections(judged) if part['rows'] and part['caption'] == part['heading']
    ]
    assert len([1 for attrs in page.named('caption') if attrs.get('class') == 'same']) == len(headings) > 2


def test_a_log_has_no_column_of_styles(walk):
    queries = walk.path('queries.jsonl')
    rows = [json.loads(line) for line in queries.read_text().splitlines()]
    written = [row | {'style': 'lay', 'overlap': 0.5} for row in rows]
    queries.write_text(''.join(json.dumps(row) + '\n' for row in written))
    assert 'share of words from their document' in Page(render_report(walk)).text
    asked = [{'_id': row['_id'], 'text': row['text'], 'origin': 'log'} for row in rows]
    queries.write_text(''.join(json.dumps(row) + '\n' for row in asked))
    [part] = [part for part in report_sections(walk) if part['heading'] == 'Queries']
    assert part['columns'] == ['origin', 'queries', 'example']


def test_a_page_names_no_folder_of_this_machine(tmp_path, medir):
    "Whoever gives a whole path to the look sends a page that holds its last name alone."
    folder = tmp_path / 'notes'
    folder.mkdir()
    for name in ('gout', 'asthma', 'sepsis'):
        (folder / f'{name}.txt').write_text(f'{name} is a disease that is treated early and well')
    look(str(folder), tmp_path / 'walk', candidates=['minilm'])
    walk = Walk.open(tmp_path / 'walk')
    assert walk.settings.documents == str(folder)
    page = Page(render_report(walk)).text
    assert 'From notes.' in page and str(tmp_path) not in page
    left_out = {'mpnet': f'name it, or medir look {folder} --to {walk.folder} --minutes 20'}
    content = {
        'walk': 'walk',
        'sentence': 's',
        'reasons': [],
        'judged': {},
        'tests': {},
        'agreement': [],
        'systems': [],
    }
    write_json(walk.path('verdict.json'), content | {'left_out': left_out, 'not_run': {}})
    [part] = [part for part in verdict_sections(walk) if part['heading'] == 'Not compared']
    assert part['rows'] == [['mpnet', 'name it, or medir look notes --to walk --minutes 20']]
