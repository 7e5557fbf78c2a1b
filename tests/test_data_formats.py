"Documents as they come: every format that is read, small ones made here, whole, damaged, and without the libraries."

import io, json, random, subprocess, sys, zipfile
import docx as word, openpyxl, pandas as pd, pptx as slides, pytest, xlsxwriter
from pypdf import PdfWriter
from conftest import write_lines
from medir_nb.core import MedirError
from medir_nb.core.files import decoded, not_utf8
from medir_nb.data.documents import place_of
from medir_nb.data.pages import paragraphs
from medir_nb.data.raw import FORMATS, read_file
from medir_nb.data.readers import read_judgements
from medir_nb.study.reading import write_documents


def pdf(pages, outline=(), **encrypt):
    "A PDF with `(x, y, text)` pieces on each page; `None` is a page with a picture alone."
    objects = [b'<</Type/Catalog/Pages 2 0 R>>', b'', b'<</Type/Font/Subtype/Type1/BaseFont/Courier>>']
    image = b'<</Type/XObject/Subtype/Image/Width 1/Height 1/ColorSpace/DeviceGray/BitsPerComponent 8/Length 1>>'
    objects.append(image + b'stream\n\0\nendstream')
    for pieces in pages:
        drawn = [f'BT /F 9 Tf {x} {y} Td ({text}) Tj ET' for x, y, text in pieces or []] or ['/I Do']
        content = '\n'.join(drawn).encode('latin1')
        objects.append(b'<</Length %d>>stream\n%s\nendstream' % (len(content), content))
        page = '<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents %d 0 R'
        page += '/Resources<</Font<</F 3 0 R>>/XObject<</I 4 0 R>>>>>>'
        objects.append((page % len(objects)).encode())
    kids = ' '.join(f'{6 + 2 * n} 0 R' for n in range(len(pages)))
    objects[1] = f'<</Type/Pages/Count {len(pages)}/Kids[{kids}]>>'.encode()
    raw, places = b'%PDF-1.4\n', []
    for number, body in enumerate(objects, 1):
        places.append(len(raw))
        raw += b'%d 0 obj%s endobj\n' % (number, body)
    table = ''.join(f'{place:010d} 00000 n \n' for place in places)
    raw += f'xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}'.encode()
    raw += f'trailer<</Size {len(objects) + 1}/Root 1 0 R>>\n'.encode()
    writer = PdfWriter(clone_from=io.BytesIO(raw + b'startxref\n%d\n%%%%EOF\n' % raw.rindex(b'xref\n0')))
    parent = None
    for title, page in outline:
        parent = writer.add_outline_item(title=title, page_number=page, parent=parent)
    if encrypt:
        writer.encrypt(**encrypt)
    writer.add_metadata({'/Title': 'Renal colic', '/Author': 'A. Author'})
    writer.write(out := io.BytesIO())
    return out.getvalue()


def lines_of(texts, x=50, top=760):
    return [(x, top - 14 * n, text) for n, text in enumerate(texts) if text]


def saved(file):
    file.save(out := io.BytesIO())
    return out.getvalue()


def docx():
    file = word.Document()
    file.core_properties.title = 'Pain'
    file.add_heading('Renal colic', 1)
    file.add_heading('Treatment', 2)
    file.add_paragraph('Diclofenac comes first.')
    table = file.add_table(1, 2)
    table.cell(0, 0).text, table.cell(0, 1).text = 'Diclofenac', '75 mg'
    return saved(file)


def pptx():
    file = slides.Presentation()
    for title, text in (('Sepsis', 'Cultures before antibiotics.'), ('Treatment', 'Diclofenac comes first.')):
        slide = file.slides.add_slide(file.slide_layouts[1])
        slide.shapes.title.text, slide.placeholders[1].text = title, text
    return saved(file)


def xlsx():
    file = openpyxl.Workbook()
    for row in (['id', 'title', 'text', 'Year'], ['r1', 'Colic', 'Diclofenac comes first.', 2024], [None] * 4):
        file.active.append(row)
    return saved(file)


def packed(entries):
    with zipfile.ZipFile(out := io.BytesIO(), 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


PROSE = 'Diclofenac comes first in renal colic, and paracetamol where it must not be given. ' * 4
HTML = f"""<!doctype html><html><head><title>Colic</title><style>p{{}}</style><script>track()</script></head><body>
<nav><a href="/">Home</a> <a href="/w">Wards</a></nav><div class="cookie-banner">We use cookies.</div>
<main><h1>Renal colic</h1><p>{PROSE}</p><h2>Treatment</h2><p>{PROSE}</p></main><footer>Imprint</footer></body></html>"""
CONDITION = {
    'resourceType': 'Condition',
    'id': 'c1',
    'recordedDate': '2024-05-01',
    'text': {'div': '<div xmlns="http://www.w3.org/1999/xhtml"><p>Renal colic</p></div>'},
    'code': {'coding': [{'code': 'N23', 'display': 'Unspecified renal colic'}]},
    'note': [{'text': 'Diclofenac comes first.'}],
}
FHIR = {'resourceType': 'Bundle', 'entry': [{'resource': CONDITION}]}
CDA = """<ClinicalDocument xmlns="urn:hl7-org:v3"><id extension="L7"/><title>Discharge</title>
<component><structuredBody>
<component><section><title>Treatment</title><text><table><tr><td>Diclofenac comes first.</td><td>75 mg</td></tr></table>
</text><entry><act><code displayName="renal colic"/></act></entry></section></component></structuredBody></component>
</ClinicalDocument>"""
MAIL = 'From: a@example.org\nSubject: Colic\nContent-Type: multipart/mixed; boundary=x\n\n'
MAIL += '--x\n\nDiclofenac comes first.\n--x\n'
MAIL += 'Content-Disposition: attachment; filename=more.txt\n\nMost stones pass.\n--x--\n'
FIRST = [(50, 700, 'Diclofenac comes first.')]


ROW = {'_id': '1', 'text': 'Diclofenac comes first.', 'year': 2024}
WHOLE = {
    'a.parquet': lambda: pd.DataFrame([ROW]).to_parquet(),
    'a.txt': lambda: b'Diclofenac comes first.',
    'a.md': lambda: b'---\ntitle: Colic\nyear: 2024\n---\n# Renal colic\n## Treatment\nDiclofenac comes first.\n',
    'a.jsonl': lambda: json.dumps(ROW).encode(),
    'a.json': lambda: json.dumps(FHIR).encode(),
    'a.xml': lambda: CDA.encode(),
    'a.csv': lambda: b'Nr;Frage;Antwort;Jahr\n1;Kolik?;"Diclofenac comes first.";2024\n',
    'a.tsv': lambda: b'id\ttitle\ttext\tyear\n1\tColic\tDiclofenac comes first.\t2024\n',
    'a.xlsx': xlsx,
    'a.pdf': lambda: pdf([[(50, 700, 'Stones hurt.')], FIRST], [('Renal colic', 0), ('Treatment', 1)]),
    'a.docx': docx,
    'a.pptx': pptx,
    'a.html': HTML.encode,
    'a.rtf': lambda: b"{\\rtf1\\ansi Diclofenac comes first. M\\'fcdigkeit.\\par}",
    'a.eml': MAIL.encode,
    'a.ris': lambda: b'TY  - JOUR\nTI  - Colic\nAB  - Diclofenac comes\n first.\nPY  - 2024\nDO  - 10.1/x\nER  - \n',
    'a.nbib': lambda: (
        b'PMID- 1\nTI  - Colic\nAB  - Diclofenac\n      comes first.\nDP  - 2024\n\nPMID- 2\nTI  - Gout\n'
    ),
    'a.bib': lambda: b'@article{x, title={Colic}, author={M{\\"u}ller}, abstract={Diclofenac comes first.}, year=2024}',
    'a.zip': lambda: packed({'deep/note.txt': 'Diclofenac comes first.', '.hidden': 'x'}),
}
UNDER = 'Renal colic > Treatment'
KEPT = {  # what else is known of the document with the sentence
    'a.md': {'heading': UNDER, 'year': 2024, 'title': 'Colic'},
    'a.jsonl': {'year': 2024},
    'a.json': {'type': 'Condition', 'recordedDate': '2024-05-01'},
    'a.xml': {'heading': 'Treatment', 'title': 'Discharge'},
    'a.csv': {'Jahr': '2024', 'Frage': 'Kolik?'},
    'a.tsv': {'year': '2024', 'title': 'Colic'},
    'a.xlsx': {'Year': 2024, 'title': 'Colic', 'sheet': 'Sheet'},
    'a.pdf': {'page': 2, 'heading': UNDER, 'title': 'Renal colic', 'author': 'A. Author', 'pages': 2},
    'a.docx': {'heading': UNDER, 'title': 'Pain'},
    'a.pptx': {'page': 2, 'heading': 'Treatment'},
    'a.html': {'title': 'Renal colic', 'heading': 'Renal colic'},
    'a.eml': {'title': 'Colic', 'author': 'a@example.org'},
    'a.ris': {'title': 'Colic', 'year': '2024', 'doi': '10.1/x'},
    'a.nbib': {'title': 'Colic', 'year': '2024'},
    'a.bib': {'title': 'Colic', 'year': '2024', 'author': 'Müller'},
    'a.zip': {'source': 'a.zip/deep/note.txt'},
}


@pytest.fixture(scope='module')
def whole():
    suffixes = {name.removeprefix('a') for name in WHOLE}
    assert all(suffixes & {*kind.suffixes} for kind in FORMATS)
    return {name: make() for name, make in WHOLE.items()}


def items_of(folder, name, content):
    (folder / name).write_bytes(content)
    return list(read_file(folder / name, {}, name))


@pytest.mark.parametrize('name', WHOLE)
def test_a_document_of_every_format_with_its_place_and_fields(name, whole, tmp_path):
    items = items_of(tmp_path, name, whole[name])
    [found] = [d for d in items if 'comes first' in d.text or 'comes first' in d.title]
    told = {'title': found.title} | found.metadata | place_of(found.metadata, found.text.index('comes first'))
    wanted = {'source': name} | KEPT.get(name, {})
    assert {key: told[key] for key in wanted} == wanted
    for unwanted in ('cookies', 'Wards', 'track()', 'Imprint', 'rtf1', '<', 'N23'):
        assert unwanted not in found.text
    texts = {'a.nbib': 'Gout', 'a.eml': 'Most stones pass.', 'a.rtf': 'Müdigkeit', 'a.docx': 'Diclofenac | 75 mg'}
    assert any(texts.get(name, '') in f'{item.title} {item.text}' for item in items)


PIECES = ('Counts of 10', '6', ' or 10', '-3', ' of Ca', '2+')  # every second one stands higher


def raised_docx():
    file = word.Document()
    for paragraph in (file.add_paragraph(), file.add_table(1, 1).cell(0, 0).paragraphs[0]):
        for number, text in enumerate(PIECES):
            paragraph.add_run(text).font.superscript = bool(number % 2) or None
    return saved(file)


def raised_pptx():
    file = slides.Presentation()
    paragraph = file.slides.add_slide(file.slide_layouts[1]).placeholders[1].text_frame.paragraphs[0]
    for number, text in enumerate(PIECES):
        run = paragraph.add_run()
        run.text = text
        if number % 2:
            run.font._element.set('baseline', '30000')
    return saved(file)


def raised_xlsx():
    out = io.BytesIO()
    with xlsxwriter.Workbook(out) as book:
        raised = book.add_format({'font_script': 1})
        sheet = book.add_worksheet()
        sheet.write_row(0, 0, ['title', 'text'])
        sheet.write(1, 0, 'Counts')
        sheet.write_rich_string(1, 1, 'Counts of 10', raised, '6', ' or 10', raised, '-3', ' of Ca', raised, '2+')
    return out.getvalue()


RAISED = {
    'a.xlsx': raised_xlsx,
    'a.docx': raised_docx,
    'a.pptx': raised_pptx,
    'a.rtf': lambda: rb'{\rtf1 Counts of 10{\b\super\insrsid7 6} or 10\super -3\nosupersub  of Ca{\super 2+}.}',
    'a.html': lambda: b'<p>Counts of 10<sup><i>6</i></sup> or <b>10</b><sup> &minus;3</sup> of Ca<sup>2+</sup>',
}


@pytest.mark.parametrize('name', RAISED)
def test_a_raised_number_of_an_office_file_keeps_its_meaning(name, tmp_path):
    [found] = items_of(tmp_path, name, RAISED[name]())
    assert 'Counts of 10^6 or 10^-3 of Ca2+' in found.text.replace('−', '-')


TEXTS = ('.txt', '.md', '.csv', '.tsv', '.jsonl', '.html', '.eml', '.ris', '.nbib', '.bib', '.json', '.xml')


def damages(name, raw, others):
    "Ten ways in which a file is no document of its kind."
    rng = random.Random(name)
    noise = lambda: bytes(rng.choice(b'\0\1\2\3\x0e\x1f\xff\xfe') for _ in range(400))
    other = others['a.pdf' if name != 'a.pdf' else 'a.docx']
    yield b'\0' * 300
    yield noise()
    yield noise() + raw
    yield other
    yield b'\xd0\xcf\x11\xe0' + raw
    yield raw[: rng.randrange(3, 9)] + noise()
    yield raw[: len(raw) // 2] + b'\0' * 50 if name.endswith(TEXTS) else raw[: len(raw) // 2]
    yield raw[: len(raw) // 3] + noise() if name.endswith(TEXTS) else raw[: len(raw) // 3]
    yield others['a.rtf'] if name != 'a.rtf' else others['a.zip']
    yield b'\x89PNG\r\n\x1a\n' + noise()


@pytest.mark.parametrize('name', WHOLE)
def test_ten_damaged_files_of_every_format_are_named_and_nothing_else(name, whole, tmp_path):
    (tmp_path / 'good.txt').write_text('Most stones pass.')
    contents = [*damages(name, whole[name], whole)]
    assert len(contents) == 10
    for number, content in enumerate(contents):
        (tmp_path / f'{number}{name}').write_bytes(content)
    met = write_documents(tmp_path, tmp_path / 'out' / 'corpus.jsonl')
    rows = [json.loads(line)['_id'] for line in (tmp_path / 'out' / 'corpus.jsonl').read_text().splitlines()]
    assert rows == ['good.txt'] and {row['file'] for row in met.unreadable} == {f'{n}{name}' for n in range(10)}
    why = [row['why'] for row in met.unreadable if row['fix']]
    assert len(why) == 10 and all(said and '\n' not in said and 'foreseen' not in said for said in why)


@pytest.mark.parametrize('name', [name for name in WHOLE if not name.endswith(TEXTS)])
def test_bytes_that_changed_give_text_or_a_named_skip(name, whole, tmp_path):
    for seed in range(10):
        rng, raw = random.Random(seed), bytearray(whole[name])
        for _ in range(rng.choice([1, 5, 40])):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        items = items_of(tmp_path, name, bytes(raw))
        assert items and all(isinstance(item, MedirError) or item.where for item in items)


def test_a_wrong_suffix_is_mended_by_what_is_printed(whole, tmp_path):
    for right, wrong in (('a.pdf', 'b.docx'), ('a.docx', 'c.pdf'), ('a.html', 'd.txt'), ('a.pptx', 'e.zip.txt')):
        [fault] = items_of(tmp_path, wrong, whole[right])
        assert 'by its content' in fault.what
        subprocess.run(fault.fix.removeprefix('rename it: '), shell=True, check=True, cwd=tmp_path)
    found = [d for file in sorted(tmp_path.iterdir()) for d in read_file(file)]
    assert len(found) == 4 and not any(isinstance(item, MedirError) for item in found)


def test_archives_that_would_harm(whole, tmp_path):
    bomb = {'swells.txt': b'a' * 5_000_000, 'b.txt': 'Rest.', '../out.txt': 'x', '/abs.txt': 'x'}
    items = items_of(tmp_path, 'a.zip', packed(bomb | {'in.zip': whole['a.zip']}))
    assert [d.text for d in items if not isinstance(d, MedirError)] == ['Rest.']
    said = ' '.join(map(str, items))
    assert all(word in said for word in ('swells to', 'leads out', 'a file in a file')) and len(items) == 5
    locked = bytearray(packed({'a.txt': 'secret'}))
    locked[locked.index(b'PK\1\2') + 8] |= 1
    assert 'encrypted' in str(items_of(tmp_path, 'b.zip', bytes(locked))[0])
    swollen = packed({'word/document.xml': b'a' * 30_000_000})
    assert 'swells' in str(items_of(tmp_path, 'c.docx', swollen)[0]) and not (tmp_path.parent / 'out.txt').exists()


def test_a_pdf_is_read_as_people_read_it(tmp_path):
    page = lambda n, lines: [*lines_of([f'Guideline 2024   page {n} of 3']), *lines]
    left = [f'left line {n} of a page that has more to' for n in range(8)]
    right = [f'right line {n} of the other half page to' for n in range(8)]
    columns = [*lines_of(left, 40, 700), *lines_of(right, 320, 700)]
    broken = ['Non-steroidal drugs are given before opi-', 'oids, and non-', 'steroidal drugs stay first.']
    prose = lines_of(broken, top=700)
    table = [*lines_of(['Drug', 'Diclofenac', 'Ketorolac'], 50, 500), *lines_of(['Dose', '75 mg', '30 mg'], 250, 500)]
    raw = pdf([page(1, columns), page(2, prose), page(3, table), None])
    [found] = items_of(tmp_path, 'g.pdf', raw)
    assert found.text.index('left line 7') < found.text.index('right line 0') and 'Guideline' not in found.text
    assert 'before opioids, and non-steroidal drugs stay first.' in found.text
    assert 'Drug | Dose\nDiclofenac | 75 mg\nKetorolac | 30 mg' in found.text
    assert found.metadata['pages_without_text'] == '4'
    assert place_of(found.metadata, found.text.index('Ketorolac'))['page'] == 3


def test_scans_and_passwords_are_named(tmp_path):
    [scan] = items_of(tmp_path, 's.pdf', pdf([None, None]))
    assert 'no text on its 2 pages (scanned)' in scan.what and 'ocrmypdf s.pdf' in scan.fix
    [locked] = items_of(tmp_path, 'l.pdf', pdf([FIRST], user_password='x', algorithm='RC4-128'))
    assert 'encrypted' in locked.what and 'password' in locked.fix
    [owned] = items_of(tmp_path, 'o.pdf', pdf([FIRST], user_password='', owner_password='x', algorithm='RC4-128'))
    assert owned.text == 'Diclofenac comes first.'


LETTERS = {
    'cp1252': 'Müdigkeit und Übelkeit – Größe 1,70 m, “Précis”, niño',
    'latin1': 'Müdigkeit und Übelkeit, Größe 1,70 m',
    'utf-16le': 'Пациент жалуется на боль в груди и одышку',
    **dict.fromkeys(('utf-16', 'utf-16be', 'utf-8-sig'), 'Müdigkeit und Übelkeit'),
    **dict.fromkeys(('cp1251', 'koi8-r', 'iso8859-5', 'cp866'), 'Пациент жалуется на боль в груди и одышку.'),
    **dict.fromkeys(('euc-jp', 'shift_jis'), '患者は胸痛と呼吸困難を訴えて来院した。'),
    'gb18030': '患者主诉胸痛和呼吸困难,给予阿司匹林治疗。',
    'euc-kr': '환자는 흉통과 호흡곤란을 호소하며 내원하였다.',
    'big5': '患者主訴胸痛和呼吸困難。',
    'iso8859-7': 'Ο ασθενής παραπονείται για πόνο στο στήθος.',
    'cp1250': 'Pacjent skarży się na ból w klatce piersiowej, duszność, kaszel z odkrztuszaniem żółtej plwociny.',
    'iso8859-9': 'Hasta göğüs ağrısı ve nefes darlığından yakınıyor.',
}


@pytest.mark.parametrize('encoding', LETTERS)
def test_an_encoding_is_found_and_the_fix_for_it_works(encoding, tmp_path):
    text, raw = LETTERS[encoding], LETTERS[encoding].encode(encoding)
    assert decoded(raw)[0] == text
    [found] = items_of(tmp_path, 'a.txt', raw)
    assert found.text == text
    if encoding != 'utf-8-sig':
        command = not_utf8(tmp_path / 'a.txt', raw[:64], 'byte 0', sample=raw).fix.partition('convert it: ')[2]
        subprocess.run(command, shell=True, check=True, cwd=tmp_path)
        assert (tmp_path / 'a.txt').read_text(encoding='utf-8-sig') == text


def test_a_damaged_byte_or_row_does_not_spoil_the_others(tmp_path):
    raw = 'Müdigkeit, Übelkeit, Größe'.encode()
    text, encoding = decoded(raw + b'\xe9')
    assert text == 'Müdigkeit, Übelkeit, Größe\ufffd' and 'damaged' in encoding
    (tmp_path / 'a.csv').write_text('id,text\n1,"fever, cough"\n2,"rash" of a child\n3,pain\n')
    first, fault = read_file(tmp_path / 'a.csv')
    assert first.text == 'fever, cough' and 'a.csv:3: a malformed row' in str(fault)


def test_justified_lines_are_no_table_and_hyphens_before_a_conjunction_stay():
    prose = [
        'on  Tuesdays  and  Fridays  all  wards',
        'have   rounds   that   begin   at   eight',
        "o'clock.    Whoever    comes    late",
        'waits outside until the round is over.',
    ]
    assert paragraphs(prose) == [' '.join(' '.join(prose).split())]
    table = ['Hb    7.2   7.4   7.1   7.3', 'WBC   4.1   4.2   4.0   5.1', 'CRP   10    12    9     8']
    assert paragraphs(table) == ['\n'.join(' | '.join(line.split()) for line in table)]
    hyphens = ['Herz-', 'und Kreislauferkrankungen und Müdig-', 'keit']
    assert paragraphs(hyphens) == ['Herz- und Kreislauferkrankungen und Müdigkeit']


@pytest.mark.parametrize('delimiter', ',;\t|')
def test_columns_of_any_table_are_chosen(delimiter, tmp_path):
    rows = ['Nr,Frage,Antwort', '1,Was hilft?,"Ruhe, Tee; oder | nichts"', '2,Und dann?,"zwei\nZeilen"']
    (tmp_path / 'a.csv').write_text('\n'.join(delimiter.join(row.split(',', 2)) for row in rows))
    more = {'columns': {'text': 'Frage+Antwort', 'id': 'Nr'}}
    first, second = read_file(tmp_path / 'a.csv', more)
    assert (first.id, first.text) == ('1', 'Was hilft?\nRuhe, Tee; oder | nichts')
    assert second.text.endswith('zwei\nZeilen')


def test_without_the_libraries_files_are_named_with_what_installs_them(whole, tmp_path, monkeypatch, medir):
    for package in ('pypdf', 'docx', 'pptx', 'openpyxl', 'trafilatura', 'striprtf', 'bibtexparser', 'lxml'):
        monkeypatch.setitem(sys.modules, package, None)
        for name in [name for name in sys.modules if name.startswith(f'{package}.')]:
            monkeypatch.setitem(sys.modules, name, None)
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
    ran = medir('search', tmp_path, 'diclofenac', '--system', 'bm25')
    assert ran.code == 0, ran
    told = [line for line in ran.err.splitlines() if 'is not installed; pip install "medir_nb[documents]"' in line]
    for name in ('a.pdf', 'a.docx', 'a.pptx', 'a.xlsx', 'a.html', 'a.rtf', 'a.bib'):
        assert any(name in line for line in told), name
    assert 'a.txt is not read' not in ran.err


def test_page_heading_and_fields_are_kept_by_an_index_and_its_updates(whole, tmp_path, home, medir):
    folder, index = tmp_path / 'docs', tmp_path / 'index'
    folder.mkdir()
    for name in ('a.pdf', 'a.tsv', 'a.zip'):
        (folder / name).write_bytes(whole[name])
    (folder / 'b.png').write_bytes(b'\x89PNG')
    ran = medir('index', folder, '--system', 'bm25', '--to', index)
    assert ran.code == 0 and '1 .png' in ran.err and '3 added' in ran.out
    asked = lambda: json.loads(medir('search', index, 'which drug comes first', '--json').out)[0]['hits']
    by_id = {hit['id']: hit for hit in asked()}
    assert by_id['a.pdf']['page'] == 2 and by_id['a.pdf']['heading'] == 'Renal colic > Treatment'
    assert by_id['a.pdf']['sentence'] == 'Diclofenac comes first.' and by_id['a.pdf']['source'] == 'a.pdf'
    assert by_id['1']['metadata'] == {'year': '2024'}
    assert 'p. 2, Renal colic > Treatment' in medir('search', index, 'which drug comes first').out
    (folder / 'a.pdf').write_bytes(whole['a.pdf'][:200])
    ran = medir('index', index, '--update', folder)
    assert ran.code == 2 and '1 document would be deleted, though a.pdf is there' in ran.err
    (folder / 'a.pdf').write_bytes(whole['a.pdf'])
    (folder / 'a.tsv').write_bytes(whole['a.tsv'].decode().encode('utf-16'))
    same = medir('index', index, '--update', folder)
    assert same.code == 0 and '0 added, 0 changed, 0 deleted' in same.out and 'utf-16' in same.err
    assert {hit['id']: hit for hit in asked()} == by_id


def test_fields_of_a_corpus_are_kept(tmp_path, home, medir):
    rows = [{'_id': 'd1', 'text': 'Rest.', 'metadata': {'page': 4}, 'ward': 'B2'}, {'_id': 'd2', 'text': 'Tea.'}]
    write_lines(tmp_path / 'corpus.jsonl', rows)
    [answer] = json.loads(medir('search', tmp_path, 'rest', '--system', 'bm25', '-k', '1', '--json').out)
    hit = answer['hits'][0]
    assert (hit['id'], hit['page'], hit['metadata']) == ('d1', 4, {'ward': 'B2'})
    assert medir('export', tmp_path, '--system', 'bm25', '--to', tmp_path / 'out').code == 0
    [kept] = (tmp_path / 'out').rglob('corpus.jsonl')
    assert json.loads(kept.read_text().splitlines()[0])['metadata'] == {'page': 4, 'ward': 'B2'}


TABS = 'query-id\tcorpus-id\tscore\nq1\t0 d01\t1\nq1\tQ0 d02\t1'
SPACES = 'query-id corpus-id score\nq1 d01 1'


@pytest.mark.parametrize(
    'text, documents', [(TABS, ['0 d01', 'Q0 d02']), (SPACES, ['d01']), ('q1\t0 d01\t1\nq1 Q0\td02 1', ['d01', 'd02'])]
)
def test_a_header_settles_what_separates_the_columns(tmp_path, text, documents):
    path = tmp_path / 'test.tsv'
    path.write_text(text)
    assert read_judgements(path).doc_id.tolist() == documents
