"Raw documents to training pairs: readers, passages, duplicates, the ten corpora, files of pairs and their mixture."

import functools, gzip, itertools, json, multiprocessing, os, pickle, random, subprocess, sys
from collections import Counter
from pathlib import Path
import pytest
from conftest import DOCUMENTS, in_full, write_beir, write_lines
from medir_nb.core import MedirError, registry, rows
from medir_nb.data import (
    Document,
    Duplicates,
    Mixture,
    PairFile,
    PairSettings,
    corpus_pairs,
    make_pairs,
    pretraining_table,
    raw_documents,
    read_documents,
    sampled,
    split_by_group,
    without_duplicates,
    write_pairs,
)
from medir_nb.data.text_pairs import two_passages, word_places
from medir_nb.data.pretraining import LAYOUTS, check_pretraining_row
from medir_nb.papers import published

PUBMED = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2026//EN" "pubmed_260101.dtd">
<PubmedArticleSet>
<!-- a comment -->
<PubmedArticle><MedlineCitation Status="MEDLINE"><PMID Version="1">101</PMID>
<Article><ArticleTitle>CO<sub>2</sub> and <i>breathing</i>.</ArticleTitle>
<Abstract><AbstractText Label="AIM">To see what carbon dioxide does to breathing.</AbstractText>
<AbstractText Label="RESULTS">Breathing became deeper &amp; faster.</AbstractText>
<CopyrightInformation>All rights.</CopyrightInformation></Abstract></Article>
<OtherAbstract Language="fre"><AbstractText>Le souffle.</AbstractText></OtherAbstract>
<CommentsCorrectionsList><CommentsCorrections><PMID>99</PMID></CommentsCorrections></CommentsCorrectionsList>
</MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>102</PMID><Article><ArticleTitle>[Not Available].</ArticleTitle>
</Article></MedlineCitation></PubmedArticle>
<PubmedBookArticle><BookDocument><PMID>103</PMID><Book><BookTitle>Genes</BookTitle></Book>
<ArticleTitle>Marfan</ArticleTitle><Abstract><AbstractText>A disorder of tissue.</AbstractText></Abstract>
</BookDocument></PubmedBookArticle>
<DeleteCitation><PMID>7</PMID></DeleteCitation>
</PubmedArticleSet>
"""
JATS = """<?xml version="1.0"?>
<!DOCTYPE article PUBLIC "-//NLM//DTD JATS (Z39.96) 1.2//EN" "JATS-archivearticle1.dtd">
<article xmlns:xlink="http://www.w3.org/1999/xlink"><front><journal-meta><journal-title>J</journal-title></journal-meta>
<article-meta><article-id pub-id-type="pmid">55</article-id><article-id pub-id-type="pmc">PMC55</article-id>
<title-group><article-title>Thiamine in heart failure</article-title></title-group>
<abstract abstract-type="teaser"><p>Read this.</p></abstract>
<abstract><sec><title>Aim</title><p>Thiamine was given to forty people with heart failure.</p></sec></abstract>
</article-meta></front>
<body><sec><title>Methods</title><p>They took it for <bold>a month</bold>.</p><table-wrap><td>17</td></table-wrap></sec></body>
<back><ref-list><ref><article-title>Another</article-title></ref></ref-list></back>
<sub-article><front-stub><title-group><article-title>Review</article-title></title-group></front-stub>
<body><p>I liked it.</p></body></sub-article></article>
"""


def words(n, start=0, stem='w'):
    return ' '.join(f'{stem}{k}' for k in range(start, start + n))


def read(source, **more):
    return list(read_documents(source, **more))


# --- readers ---------------------------------------------------------------------------------------------------------


def test_a_folder_of_every_format_is_one_stream_in_the_order_of_names(tmp_path):
    (tmp_path / 'a.txt').write_text('\ufeffScurvy.\n', encoding='utf-8')
    (tmp_path / 'b.txt.gz').write_bytes(gzip.compress('Ménière.'.encode()))
    write_lines(tmp_path / 'c' / 'd.jsonl', [{'pmid': 3, 'title': None, 'abstract': 'Rickets.'}])
    (tmp_path / 'c' / 'e.jsonl.gz').write_bytes(gzip.compress(b'{"id": "x", "title": "T", "content": "C"}\n'))
    (tmp_path / 'f.xml.gz').write_bytes(gzip.compress(PUBMED.encode()))
    (tmp_path / 'g.nxml').write_text(JATS)
    (tmp_path / 'h.csv').write_text('1,2')
    (tmp_path / '.cache').mkdir()
    (tmp_path / '.cache' / 'i.txt').write_text('hidden')
    counts = Counter()
    documents = read(tmp_path, counts=counts)
    assert [d.id for d in documents] == ['a', 'b', '3', 'x', '101', '102', '103', 'PMC55']
    assert (documents[0].text, documents[1].text, documents[2].title) == ('Scurvy.\n', 'Ménière.', '')
    assert counts == {'files': 6, 'documents': 8, 'files of other kinds': 1}


def test_pubmed_citations(tmp_path):
    (tmp_path / 'p.xml').write_text(PUBMED)
    first, second, third = read(tmp_path / 'p.xml')
    assert first.title == 'CO2 and breathing.'
    assert first.text == 'To see what carbon dioxide does to breathing. Breathing became deeper & faster.'
    assert second[:3] == ('102', '', '') and third[:3] == ('103', 'Marfan', 'A disorder of tissue.')


def test_jats_articles(tmp_path):
    (tmp_path / 'p.xml').write_text(JATS)
    [article] = read(tmp_path / 'p.xml')
    assert article[:4] == (
        'PMC55',
        'Thiamine in heart failure',
        'Aim Thiamine was given to forty people with heart failure.',
        'Methods They took it for a month.',
    )


def test_articles_within_other_elements_and_a_namespace(tmp_path):
    one = JATS[JATS.index('<article ') :]
    spaced = one.replace('<article ', '<article xmlns="https://jats.nlm.nih.gov/ns" ', 1)
    (tmp_path / 'set.xml').write_text(f'<pmc-articleset>{one}{one}</pmc-articleset>')
    (tmp_path / 'oai.xml').write_text(f'<OAI><record><metadata>{spaced}</metadata></record></OAI>')
    (tmp_path / 'empty.xml').write_text('<PubmedArticleSet></PubmedArticleSet>')
    documents = read(tmp_path)
    assert [d.id for d in documents] == ['PMC55'] * 3 and len({d[:4] for d in documents}) == 1


def test_chapters_of_ncbi_bookshelf(tmp_path):
    (tmp_path / 'article-17.nxml').write_text(
        '<!DOCTYPE book-part-wrapper PUBLIC "-//NLM//DTD BITS Book Interchange DTD v2.0//EN" "BITS-book2.dtd">'
        '<book-part-wrapper id="NBK17"><book-meta><book-title-group><book-title>StatPearls</book-title>'
        '</book-title-group></book-meta><book-part book-part-type="chapter"><book-part-meta><title-group>'
        '<title>Croup</title></title-group></book-part-meta><body><sec><title>Etiology</title><p>A virus.</p></sec>'
        '<sec><title>Treatment</title><p>Dexamethasone.</p></sec></body></book-part></book-part-wrapper>'
    )
    [chapter] = read(tmp_path)
    assert chapter[:4] == ('NBK17', 'Croup', '', 'Etiology A virus. Treatment Dexamethasone.')


def test_the_corpus_alone_is_read_of_a_task(tmp_path):
    write_beir(tmp_path)
    assert [d.id for d in read(tmp_path)] == [i for i, _, _ in DOCUMENTS]


FAULTS = {
    'a stray sign': (PUBMED.replace('&amp;', '&').encode(), r'p\.xml:8: malformed XML'),
    'cut': (PUBMED[:900].encode(), r'p\.xml:\d+: malformed XML'),
    'of another kind': (b'<html><p>404</p></html>', r'p\.xml: neither a citation of PubMed'),
    'empty': (b'', r'p\.xml:1: malformed XML \(no element found'),
    'an unknown name': (
        JATS.replace('Thiamine in', '&beta; in').encode(),
        r'p\.xml:5: malformed XML \(undefined entity',
    ),
    'an unknown encoding': (b'<?xml version="1.0" encoding="klingon"?><article/>', r'p\.xml.*encoding'),
    'another encoding': (b'<article><front>\xff\xfe</front></article>', r'p\.xml:1: malformed XML'),
    'too deep': (
        b'<article><body>' + b'<p>' * 30_000 + b'</p>' * 30_000 + b'</body></article>',
        r'p\.xml: its elements',
    ),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_a_broken_xml_file_among_many_is_named_or_skipped_and_counted(fault, tmp_path, capsys):
    content, said = FAULTS[fault]
    (tmp_path / 'a.xml').write_text(JATS)
    (tmp_path / 'p.xml').write_bytes(content)
    (tmp_path / 'z.xml').write_text(JATS)
    with pytest.raises(MedirError, match=said) as e:
        read(tmp_path)
    assert '\n' not in str(e.value)
    counts = Counter()
    documents = read(tmp_path, skip_broken=True, counts=counts)
    assert documents[0].id == documents[-1].id == 'PMC55' and counts['broken files'] == 1 and counts['files'] == 3
    assert 'p.xml' in (said := capsys.readouterr().err) and 'left out' in said and said.count('\n') == 1


def test_entities_are_neither_fetched_nor_multiplied(tmp_path):
    (tmp_path / 'secret.txt').write_text('a key')
    fetch = f'<!DOCTYPE article [<!ENTITY x SYSTEM "file://{tmp_path}/secret.txt">]>'
    lines = '<!ENTITY a0 "ha">' + ''.join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    body = '<article><front><article-meta/></front><body><p>{}</p></body></article>'
    (tmp_path / 'fetch.xml').write_text(fetch + body.format('&x;'))
    (tmp_path / 'laughs.xml').write_text(f'<!DOCTYPE article [{lines}]>' + body.format('&a9;'))
    for name in ('fetch.xml', 'laughs.xml'):
        with pytest.raises(MedirError, match='malformed XML'):
            read(tmp_path / name)


@pytest.mark.parametrize(
    'name, content, said',
    [
        ('a.xml.gz', gzip.compress(PUBMED.encode())[:200], 'a.xml.gz: broken gzip'),
        ('a.txt.gz', b'no gzip', 'a.txt.gz: broken gzip'),
        ('a.txt', b'M\xe9ni\xe8re', 'a.txt: not UTF-8'),
        ('a.jsonl', b'{"text": "x"}\n{"text": \n', 'a.jsonl:2: malformed JSON'),
        ('a.jsonl', b'{"title": "x"}\n', "a.jsonl:1: field 'text' is missing"),
        ('a.pdf', b'%PDF', 'no raw documents here'),
    ],
)
def test_other_broken_files_are_named(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MedirError, match=said):
        read(tmp_path)
    with pytest.raises(MedirError, match='no such file'):
        read(tmp_path / 'nowhere')


def test_a_sample_hangs_on_the_documents_alone():
    documents = [Document(str(n), '', f'text {n}') for n in range(2000)]
    kept = [d.id for d in sampled(documents, 0.3)]
    assert sorted(kept) == sorted(d.id for d in sampled(documents[::-1], 0.3)) and 500 < len(kept) < 700
    assert kept != [d.id for d in sampled(documents, 0.3, seed=7)]
    assert list(sampled(documents, 0)) == list(sampled(documents, 1)) == documents
    with pytest.raises(MedirError, match='share'):
        sampled(documents, 2)


# --- passages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('n', [16, 17, 40, 333, 5000])
def test_passages_are_disjoint_and_of_the_lengths_that_were_asked_for(n):
    settings, text = PairSettings(), words(n)
    starts = set()
    for seed in range(300):
        pair = two_passages(text, word_places(text), settings, random.Random(seed))
        one, other = (set(passage.split()) for passage in pair)
        assert not one & other and all(passage in text for passage in pair)
        low, high = max(8, min(int(0.1 * n), 300)), max(8, min(int(0.5 * n), 300))
        assert all(low <= len(passage.split()) <= high for passage in pair)
        starts.add(int(pair[0].split()[0][1:]))
    assert n < 20 or len(starts) > min(n // 4, 60)  # all of the text is drawn from


def test_chinese_is_cropped_by_characters():
    text = '维生素C缺乏会导致坏血病，海员因此常患此病，直到发现柠檬可以预防为止。'
    [row] = make_pairs([Document('1', '', text)], PairSettings(fewest_words=5))
    passage = row['pos'][0]
    assert row['query'] in text and passage in text and passage not in row['query'] and len(row['query']) >= 5


def test_what_gives_no_pair_is_counted_by_reason():
    documents = [
        Document('titled', 'A title', words(20)),
        Document('no title', '', words(20)),
        Document('no abstract', 'A title', '', words(30)),
        Document('short', '', words(15)),
        Document('empty', '', ''),
        Document('short abstract', 'A title', 'No abstract available.'),
    ]
    counts = Counter()
    made = [(row['id'], row['made_by']) for row in make_pairs(documents, counts=counts)]
    assert made == [('titled', 'title'), ('no title', 'crop'), ('no abstract', 'crop')]
    assert counts == {
        'documents with pairs': 3,
        'documents without a pair': 3,
        'pairs by title': 1,
        'pairs by crop': 2,
        'empty title': 3,
        'abstract too short': 2,
        'too short to crop': 3,
    }
    titles = [row['id'] for row in make_pairs(documents, PairSettings(kind='title'))]
    crops = [row['id'] for row in make_pairs(documents, PairSettings(kind='crop'))]
    assert titles == ['titled'] and crops == ['titled', 'no title', 'no abstract']


def test_a_window_makes_several_pairs_each_of_its_own_part():
    rows = list(make_pairs([Document('1', '', words(205))], PairSettings(kind='crop', window=50)))
    assert len(rows) == 4  # the last five words are too few
    for part, row in enumerate(rows):
        numbers = [int(word[1:]) for word in f'{row["query"]} {row["pos"][0]}'.split()]
        assert 50 * part <= min(numbers) and max(numbers) < 50 * (part + 1)


@pytest.mark.parametrize(
    'settings',
    [{'kind': 'crops'}, {'longest': 0.6}, {'shortest': 0}, {'fewest_words': 0}, {'most_words': 3}, {'window': 9}],
)
def test_settings_that_cannot_be_met_are_refused(settings):
    with pytest.raises(MedirError):
        PairSettings(**settings)


def _pairs_of_file(path):
    return [json.dumps(row) for row in make_pairs(read_documents(path), PairSettings(seed=5))]


def test_workers_and_the_order_of_files_change_no_pair(tmp_path):
    draw = random.Random(3)
    for n in range(6):
        write_lines(
            tmp_path / f'{n}.jsonl', [{'id': f'{n}/{k}', 'text': words(draw.randint(10, 90))} for k in range(40)]
        )
    files = sorted(tmp_path.iterdir())
    alone = list(itertools.chain.from_iterable(map(_pairs_of_file, files)))
    with multiprocessing.get_context('fork').Pool(3) as pool:
        together = list(itertools.chain.from_iterable(pool.imap_unordered(_pairs_of_file, files[::-1])))
    assert len(alone) > 150 and sorted(alone) == sorted(together)
    (tmp_path / 'moved').mkdir()
    moved = files[0].rename(tmp_path / 'moved' / 'again.jsonl')
    assert _pairs_of_file(moved) == alone[: len(_pairs_of_file(moved))]


# --- duplicates ------------------------------------------------------------------------------------------------------


def test_exact_and_near_duplicates_are_left_out_and_counted():
    text = words(150)
    documents = [
        Document('first', 'T', text),
        Document('spaced', 'T', text.replace(' ', '\n').upper()),
        Document('corrected', 'T', text.replace('w70', 'x')),
        Document('half', 'T', words(75) + ' ' + words(75, stem='v')),
        Document('other', 'T', words(150, stem='u')),
        Document('other again', 'T', words(150, stem='u')),
    ]
    duplicates, counts = Duplicates(), Counter()
    assert [d.id for d in duplicates.without(documents, counts)] == ['first', 'half', 'other']
    assert counts == duplicates.counts == {'exact duplicate': 2, 'near duplicate': 1}
    assert [d.id for d in Duplicates(near=0).without(documents)] == ['first', 'corrected', 'half', 'other']


def test_chance_is_no_duplicate():
    "Documents that share half of their text stay, however many there are."
    documents = [Document(str(n), '', words(60) + ' ' + words(60, stem=f'd{n}x')) for n in range(300)]
    assert len(list(Duplicates().without(documents))) == 300


def test_a_window_forgets_near_duplicates_and_no_exact_ones():
    between = [Document(str(n), '', words(100, stem=f'd{n}x')) for n in range(10)]
    near, exact = Document('near', '', words(99)), Document('exact', '', words(100))
    stream = [Document('first', '', words(100)), *between, near, exact]
    assert [d.id for d in Duplicates(window=100).without(stream)][-1] == '9'
    assert [d.id for d in Duplicates(window=5).without(stream)][-1] == 'near'


@pytest.mark.parametrize('near', [0.5, 0.8, 0.95])
def test_the_likeness_that_counts_may_be_chosen(near):
    "Of 200 words, one that is changed in the middle changes 5 of 196 runs, twenty change about 100."
    changed = ' '.join('x' if k % 10 == 0 else f'w{k}' for k in range(200))
    documents = [
        Document('1', '', words(200)),
        Document('2', '', words(200).replace('w99', 'x')),
        Document('3', '', changed),
    ]
    assert [d.id for d in Duplicates(near=near).without(documents)] == (['1', '3'] if near < 0.95 else ['1', '2', '3'])


@pytest.mark.parametrize('settings', [{'near': 1}, {'near': 0.2}, {'near': -1}, {'window': 0}])
def test_what_an_index_cannot_hold_is_refused(settings):
    with pytest.raises(MedirError, match='duplicates'):
        Duplicates(**settings)


def test_one_object_serves_several_corpora(tmp_path):
    for name in ('one', 'two'):
        write_lines(tmp_path / f'{name}.jsonl', [{'title': 'T', 'text': words(30)}, {'title': name, 'text': words(30)}])
    duplicates, counts = Duplicates(near=0), Counter()
    assert len(list(corpus_pairs(tmp_path / 'one.jsonl', duplicates=duplicates, counts=counts))) == 2
    assert len(list(corpus_pairs(tmp_path / 'two.jsonl', duplicates=duplicates, counts=counts))) == 1
    assert counts['documents'] == 4 and counts['exact duplicate'] == 1 and counts['documents with pairs'] == 3


# --- splits ----------------------------------------------------------------------------------------------------------


def pages(n, answers=2, shared=()):
    "A collection of questions about `n` pages, and the page of each; the first questions of `shared` pages have one answer."
    import pandas as pd
    from medir_nb.data import task_from_frames

    ids = [f'{page}-{k}' for page in range(n) for k in range(answers)]
    qrels = [(i, i, 1) for i in ids] + [(f'{page}-0', f'{shared[0]}-0', 1) for page in shared[1:]]
    frames = (
        pd.DataFrame({'id': [*ids, 'idle'], 'text': [words(30, stem=f'{i}x') for i in [*ids, 'idle']]}),
        pd.DataFrame({'id': ids, 'text': [f'question {i}' for i in ids]}),
        pd.DataFrame(qrels, columns=['query_id', 'doc_id', 'relevance']),
    )
    return task_from_frames(*frames, name='pages'), {i: i.split('-')[0] for i in ids}


def test_a_split_shares_neither_a_page_nor_an_answer():
    task, page_of = pages(60, shared=range(40))
    rest, held_out = split_by_group(task, page_of, share=0.3)
    assert not set(rest.groups.values()) & set(held_out.groups.values()) and 5 < len(set(held_out.groups.values())) < 35
    assert set(rest.corpus.ids) & set(held_out.corpus.ids) == {'idle'}
    assert rest.report['answers_of_both_parts'] == 1 and '0-0' not in [*rest.corpus.ids, *held_out.corpus.ids]
    for part in (rest, held_out):
        assert part.report['queries_without_relevant'] == 0 and not part.registered
        assert set(part.groups) == set(part.queries.ids)
    again = split_by_group(task, page_of, share=0.3)[1]
    assert list(again.queries.ids) == list(held_out.queries.ids)
    assert list(split_by_group(task, page_of, share=0.3, seed=1)[1].queries.ids) != list(held_out.queries.ids)


@pytest.mark.parametrize('share, said', [(0, 'share'), (1, 'share'), (1e-9, 'no query is held out')])
def test_a_split_that_leaves_a_side_empty_is_refused(share, said):
    task, page_of = pages(3)
    with pytest.raises(MedirError, match=said):
        split_by_group(task, page_of, share=share)
    with pytest.raises(MedirError, match='belong together'):
        split_by_group(task, share=0.5)


def test_a_question_whose_answer_is_a_repetition_goes_with_it():
    import pandas as pd
    from medir_nb.data import task_from_frames

    texts = {'a': words(60), 'b': words(60).replace('w30', 'x'), 'c': words(60, stem='v')}
    qrels = pd.DataFrame({'query_id': ['q', 'r', 's'], 'doc_id': list(texts), 'relevance': 1})
    questions = pd.DataFrame({'id': ['q', 'r', 's'], 'text': ['one', 'two', 'three']})
    task = task_from_frames(pd.DataFrame({'id': list(texts), 'text': list(texts.values())}), questions, qrels)
    kept = without_duplicates(task)
    assert (list(kept.corpus.ids), list(kept.queries.ids)) == (['a', 'c'], ['q', 's'])
    assert kept.report['near duplicate'] == 1 and len(without_duplicates(task, Duplicates(near=0)).corpus) == 3


# --- the ten corpora -------------------------------------------------------------------------------------------------


def test_the_rows_of_table_8_and_of_mar():
    table = registry('pretraining')
    for name, row in table.items():
        check_pretraining_row(name, row)
        assert row['pairs'] in ('title', 'crop', 'itself') and row['licence'] and row['get'] and row['sources'], name
    ours = {name: row for name, row in table.items() if row.get('paper') == 'bmretriever'}
    assert len(ours) == 10 and sum(row.get('pairs_about', 0) for row in ours.values()) == 11_011_000
    assert len({row['line'] for row in ours.values()}) == 8 and len(pretraining_table('')) == len(table)
    assert len(pretraining_table()) == 11 and list(pretraining_table('mar').access) == ['unreleased'] * 3 + ['open']
    assert {name for name, row in ours.items() if row['access'] == 'licence'} == {'statpearls', 's2orc'}
    assert {row['layout'] for row in ours.values()} <= set(LAYOUTS)  # each says how far its layout is known
    printed = published('bmretriever', 'Table 8')
    sizes = {cell.dataset: in_full(cell.text) for cell in printed.itertuples()}
    assert sizes == {row['line']: row['pairs_about'] for row in ours.values() if 'pairs_about' in row}


@pytest.mark.parametrize(
    'change, said',
    [
        ({'pear': 1}, 'unknown field'),
        ({'pairs_about': '8M'}, 'pairs_about is'),
        ({'pairs': 'titled'}, 'no kind'),
        ({'access': 'gated'}, 'no access'),
        ({'share': 3}, 'share is'),
        ({'layout': 'seen'}, 'no layout'),
        ({'configs': ['default']}, 'configs'),
        ({'columns': {'abstract': 'x'}}, 'no column'),
        ({'hub': '', 'get': ''}, 'where the data are'),
    ],
)
def test_a_faulty_row_is_refused(change, said):
    with rows('pretraining', {'mine': {**registry('pretraining')['litcovid'], **change}}):
        with pytest.raises(MedirError, match=said) as e:
            raw_documents('mine')
    assert 'corpus mine' in str(e.value)


def test_a_row_is_read_from_its_folder_by_its_columns(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    lines = [{'input': f'An abstract of nine words is here today {n}.', 'output': f'Title {n}'} for n in range(3)]
    write_lines(tmp_path / 'medical_meadow_cord19' / 'part.jsonl', lines)
    write_lines(tmp_path / 'textbooks' / 'Anatomy.jsonl', [{'id': 'a', 'title': 'Anatomy', 'content': words(40)}])
    made = list(corpus_pairs('meadow-cord19'))
    assert [row['query'] for row in made] == ['Title 0', 'Title 1', 'Title 2'] and made[0]['corpus'] == 'meadow-cord19'
    assert [row['made_by'] for row in corpus_pairs('textbooks')] == ['crop']
    assert [row['made_by'] for row in corpus_pairs('meadow-cord19', PairSettings(kind='crop', fewest_words=3))] == [
        'crop'
    ] * 3


def test_a_row_is_read_from_the_hub_in_its_share(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path / 'none'))
    write_lines(
        tmp_path / 'copy' / 'data.jsonl', [{'docid': str(n), 'title': '-', 'text': words(30, n)} for n in range(200)]
    )
    row = {
        **registry('pretraining')['msmarco-passages'],
        'hub': str(tmp_path / 'copy'),
        'configs': ['default', 'train'],
    }
    counts = Counter()
    with rows('pretraining', {'mine': {**row, 'share': 0.25}}):
        made = list(corpus_pairs('mine', counts=counts))
    assert 25 < len(made) < 75 and counts['documents'] == 200 and {row['made_by'] for row in made} == {'crop'}


@pytest.mark.parametrize('name, says', [('statpearls', 'NBK430685'), ('s2orc', 'semanticscholar')])
def test_what_cannot_be_fetched_says_how_to_get_it(name, says, monkeypatch, tmp_path):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    with pytest.raises(MedirError, match=says) as e:
        corpus_pairs(name)
    assert f'$MEDIR_DATA/{name}' in str(e.value) and '\n' not in str(e.value)


def test_an_unknown_corpus_is_answered_with_the_nearest():
    with pytest.raises(MedirError, match="did you mean 'textbooks'"):
        raw_documents('textbook')


# --- files of pairs --------------------------------------------------------------------------------------------------


def some_rows(n, name='q'):
    return [{'query': f'{name} {k}', 'pos': [f'Ménière {name}\n{k}']} for k in range(n)]


def test_a_file_of_pairs_is_read_by_number(tmp_path):
    file = tmp_path / 'a.jsonl'
    report = write_pairs(some_rows(100), file, Counter(documents=120))
    pairs = PairFile(file)
    assert list(pairs) == some_rows(100) and pairs[-1] == pairs[99]
    sent = pickle.loads(pickle.dumps(pairs))  # as a data loader sends it to its workers
    assert sent[7] == pairs[7]
    assert (
        report == pairs.report and report['counts'] == {'documents': 120} and pairs.fingerprint == report['fingerprint']
    )
    with pytest.raises(IndexError):
        pairs[100]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    file = tmp_path / 'a.jsonl'
    write_pairs(some_rows(10), file)

    def broken():
        yield from some_rows(5, 'new')
        raise MedirError('a fault')

    for faulty in (broken(), []):
        with pytest.raises(MedirError):
            write_pairs(faulty, file)
        assert list(PairFile(file)) == some_rows(10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['a.jsonl', 'a.report.json']


@pytest.mark.parametrize('edit', [lambda b: b[:-20], lambda b: b + b'{}\n', lambda b: b.replace(b'q 3', b'q 4', 1)])
def test_an_edited_file_is_noticed(edit, tmp_path):
    file = tmp_path / 'a.jsonl'
    write_pairs(some_rows(10), file)
    file.write_bytes(edit(file.read_bytes()))
    with pytest.raises(MedirError, match='not those of its report'):
        PairFile(file)


def test_a_file_of_ones_own_needs_no_report(tmp_path):
    file = tmp_path / 'own.jsonl'
    file.write_text('{"query": "a", "pos": "b"}\n[1]\n{"query": "c"}')
    pairs = PairFile(file)
    assert len(pairs) == 3 and pairs[2] == {'query': 'c'}
    with pytest.raises(MedirError, match='own.jsonl:2'):
        pairs[1]
    (tmp_path / 'empty.jsonl').touch()
    for missing in ('empty.jsonl', 'none.jsonl'):
        with pytest.raises(MedirError):
            PairFile(tmp_path / missing)


def test_the_trainer_takes_a_file_of_pairs(tmp_path, home):
    "Rows of a pre-training are rows of `task: contrastive`, without hard negatives."
    from medir_nb.trainer.contrastive import ContrastiveSettings
    from medir_nb.trainer.encoders import encoder_recipe

    write_lines(tmp_path / 'raw.jsonl', [{'title': f'Title {n}', 'text': words(20, n)} for n in range(12)])
    write_pairs(corpus_pairs(tmp_path / 'raw.jsonl'), tmp_path / 'pairs.jsonl')
    config = ContrastiveSettings(
        model='minilm', data=str(tmp_path / 'pairs.jsonl'), output='x', negatives=0, batch_size=4
    )
    recipe = encoder_recipe(config, lambda *_: None)
    assert recipe.counts['rows'] == 12 and recipe.content == PairFile(tmp_path / 'pairs.jsonl').fingerprint


def test_rows_on_disk_make_the_batches_that_rows_in_memory_make(tmp_path, home):
    import torch
    from medir_nb.encoder import Encoder
    from medir_nb.trainer import DiskPairs, PairBatches, Pairs

    documents = [Document(str(n), f'Title {n % 5}', words(20, n)) for n in range(12)]  # titles repeat
    write_pairs(make_pairs(documents), tmp_path / 'pairs.jsonl')
    encoder = Encoder('minilm')
    tokenizers = dict.fromkeys(('query', 'document'), encoder.tokens('query').tokenizer)
    kinds = (Pairs(tmp_path / 'pairs.jsonl', negatives=0), DiskPairs(tmp_path / 'pairs.jsonl'))
    one, other = (PairBatches(pairs, encoder, tokenizers)([{'row': n} for n in (3, 8, 0)]) for pairs in kinds)
    assert one.keys() == other.keys() and one['counts'] == other['counts']
    tensors = [name for name in one if torch.is_tensor(one[name]) and name != 'label']
    assert tensors and all(torch.equal(one[name], other[name]) for name in tensors)
    # the order of a query's positives is that of a set
    assert torch.equal(one['label'].sort(dim=1).values, other['label'].sort(dim=1).values)
    assert one['label'].shape == (3, 1 + 3)
    with pytest.raises(MedirError, match='no hard negatives'):
        DiskPairs(tmp_path / 'pairs.jsonl', negatives=1)


# --- the mixture -----------------------------------------------------------------------------------------------------


@pytest.fixture
def streams(tmp_path):
    files = {}
    for name, size in {'a': 17, 'b': 5, 'c': 29}.items():
        files[name] = tmp_path / f'{name}.jsonl'
        write_pairs(some_rows(size, name), files[name])
    return files


def epochs(mixture, n=2):
    return [[row['query'] for row in mixture] for _ in range(n)]


@pytest.mark.medium
@pytest.mark.parametrize('once', [True, False])
@pytest.mark.parametrize('weights', [None, {'a': 1, 'b': 2, 'c': 1.5}])
def test_a_mixture_goes_on_exactly_from_any_pair_of_either_epoch(streams, once, weights):
    make = functools.partial(Mixture, streams, weights, once=once)
    whole = list(itertools.chain(*epochs(make())))
    going, states = make(), []
    for epoch in range(2):
        states.append(json.dumps(going.state()))
        for _ in going:
            states.append(json.dumps(going.state()))
    assert max(map(len, states)) < 1500
    # a state after the last pair of an epoch is followed by the first pair of the next
    first_epoch = len(epochs(make(), 1)[0])
    for n in range(0, len(states), max(1, len(states) // 110)):
        n_shown = n if n <= first_epoch else n - 1
        resumed = make()
        resumed.resume(json.loads(states[n]))
        rest = list(itertools.chain(*epochs(resumed, 2 if n <= first_epoch else 1)))
        assert whole[:n_shown] + rest == whole, n


def test_each_pair_is_shown_once_an_epoch_and_epochs_differ(streams):
    first, second, third = epochs(Mixture(streams), 3)
    assert len(first) == len(set(first)) == 51 and set(first) == set(second) == set(third) and first != second != third
    assert epochs(Mixture(streams), 1) == [first] and epochs(Mixture(streams, seed=1), 1) != [first]


def test_weights_say_how_often_where_short_streams_begin_again(tmp_path):
    files = {name: tmp_path / f'{name}.jsonl' for name in 'ab'}
    for name, size in (('a', 1000), ('b', 100)):
        write_pairs(some_rows(size, name), files[name])
    often = Counter(row['stream'] for row in Mixture(files, {'a': 2, 'b': 1}, once=False))
    assert often['a'] >= 1000 and 0.4 < often['b'] / often['a'] < 0.6


def test_a_function_is_a_stream(tmp_path, streams):
    write_lines(tmp_path / 'raw.jsonl', [{'id': str(n), 'text': words(40, n)} for n in range(20)])
    both = {'raw': functools.partial(corpus_pairs, str(tmp_path / 'raw.jsonl')), 'a': streams['a']}
    with pytest.raises(MedirError, match='give weights'):
        Mixture(both)
    make = lambda: Mixture(both, {'raw': 2, 'a': 1})
    [whole] = epochs(make(), 1)
    stopped = make()
    before = [row['query'] for row in itertools.islice(iter(stopped), 11)]
    resumed = make()
    resumed.resume(stopped.state())
    assert before + [row['query'] for row in resumed] == whole and len(whole) == 37


@pytest.mark.medium
def test_another_process_goes_on(streams, tmp_path):
    mixture = Mixture(streams)
    rows_shown = list(itertools.islice(iter(mixture), 20))
    state = mixture.state()
    [whole] = epochs(Mixture(streams), 1)
    script = (
        'import json, sys; from medir_nb.data import Mixture; given = json.load(sys.stdin); m = Mixture(given["files"])'
    )
    script += '; m.resume(given["state"]); print(json.dumps([row["query"] for row in m]))'
    given = json.dumps({'files': {name: str(file) for name, file in streams.items()}, 'state': state})
    done = subprocess.run([sys.executable, '-c', script], input=given, capture_output=True, text=True, check=True)
    assert [row['query'] for row in rows_shown] + json.loads(done.stdout) == whole


def test_a_state_of_another_mixture_is_refused(streams):
    state = Mixture(streams).state()
    write_pairs(some_rows(6, 'b'), streams['b'])
    for other in (Mixture(streams), Mixture(streams, seed=1), Mixture(streams, once=False)):
        with pytest.raises(MedirError, match='another mixture'):
            other.resume(state)


@pytest.mark.parametrize(
    'weights', [{'a': 1, 'b': 1}, {'a': 1, 'b': 0, 'c': 1}, {'a': 1, 'b': 1, 'c': 1, 'd': 1}, {'a': 'x'}]
)
def test_weights_that_say_nothing_are_refused(streams, weights):
    with pytest.raises(MedirError, match='weights of the mixture'):
        Mixture(streams, weights)
    with pytest.raises(MedirError, match='no stream'):
        Mixture({})


# --- real data, memory -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not Path(os.environ.get('MEDIR_DATA', '-'), 'nfcorpus').is_dir(), reason='no nfcorpus in $MEDIR_DATA'
)
def test_pairs_of_nfcorpus():
    counts = Counter()
    made = list(corpus_pairs(Path(os.environ['MEDIR_DATA'], 'nfcorpus'), duplicates=Duplicates(near=0), counts=counts))
    assert counts['documents'] == 3633 and counts['exact duplicate'] + counts['documents with pairs'] == 3633
    assert len(made) == counts['pairs by title'] > 3500


PEAK = """
import json, resource, sys
from medir_nb.data import PairSettings, corpus_pairs, write_pairs
report = write_pairs(corpus_pairs(sys.argv[1], PairSettings(kind='crop')), sys.argv[2])
print(report['pairs'], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def peak(source, target):
    done = subprocess.run([sys.executable, '-c', PEAK, source, target], capture_output=True, text=True, check=True)
    return map(int, done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['jsonl', 'xml'])
def test_memory_is_flat_from_10_000_to_200_000_documents(kind, tmp_path):
    megabytes = {}
    for n in (10_000, 200_000):
        file = tmp_path / f'{n}.{kind}'
        with open(file, 'w') as stream:
            if kind == 'jsonl':
                stream.writelines(json.dumps({'title': f'Title {k}', 'text': words(50, k)}) + '\n' for k in range(n))
            else:
                record = '<PubmedArticle><PMID>{0}</PMID><ArticleTitle>T{0}</ArticleTitle><Abstract><AbstractText>{1}'
                record += '</AbstractText></Abstract></PubmedArticle>\n'
                stream.write('<PubmedArticleSet>')
                stream.writelines(record.format(k, words(50, k)) for k in range(n))
                stream.write('</PubmedArticleSet>')
        made, megabytes[n] = peak(str(file), str(tmp_path / f'{n}.out.jsonl'))
        assert made == n
    assert megabytes[200_000] < megabytes[10_000] + 10, megabytes
