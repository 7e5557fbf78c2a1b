"""What mkdocs does beside: the order of the pages, and pages and a search without needless bytes."""

import json
import re
from pathlib import Path

# what no page asks for: maps of scripts, word lists of other languages, lists for robots and other sites
UNASKED = ('assets/**/*.map', 'assets/javascripts/lunr/**/*', 'nav.json', 'objects.inv', 'sitemap.xml*')
SHOWN = 160  # characters of a section that search reads and shows


def on_config(config):
    nav = Path(config['docs_dir']) / 'nav.json'
    if nav.is_file():
        config['nav'] = json.loads(nav.read_text(encoding='utf-8'))
    return config


def on_post_page(output, page, config):
    "Blanks between elements carry nothing outside of code; around the article, they carry nothing at all."
    before, mark, rest = output.partition('<article')
    article, end, after = rest.partition('</article>')
    return ''.join((framed(before), mark, outside_code(article, without_blanks), end, framed(after)))


def outside_code(text, change):
    parts = re.split(r'(<(pre|textarea|script)\b.*?</\2>)', text, flags=re.S)
    return ''.join(part if i % 3 == 1 else change(part) for i, part in enumerate(parts) if i % 3 != 2)


def framed(text):
    "Header, navigation and footer, which are laid out by style alone."
    return outside_code(text, lambda part: re.sub(r'\s*\n\s*(?=<)|(?<=>)\s*\n\s*', '', without_blanks(part)))


def without_blanks(text):
    "HTML closes cells and rows by itself where the next one begins."
    return re.sub(r'</t[dhr]>\s*(?=<t[dhr]\b|</tr>|</t(?:body|head|able)>)', '', re.sub(r'\s*\n\s*', '\n', text))


def shortened(entry):
    "An entry of the search: a heading and the beginning of its prose, without code, tables and names."
    text = re.sub(r'<(pre|table|blockquote)\b.*?</\1>|<[^>]+>', ' ', entry['text'], flags=re.S)
    text = ' '.join(text.split())
    if len(text) > SHOWN:
        text = text[:SHOWN].rpartition(' ')[0] + ' …'
    return {**entry, 'text': text}


def on_post_build(config):
    "A search of headings and prose; no file that no page asks for."
    site = Path(config['site_dir'])
    index = site / 'search/search_index.json'
    found = json.loads(index.read_text(encoding='utf-8'))
    found['docs'] = [shortened(entry) for entry in found['docs']]
    index.write_text(json.dumps(found, ensure_ascii=False, separators=(',', ':')), encoding='utf-8')
    for pattern in UNASKED:
        for file in site.glob(pattern):
            if file.is_file():
                file.unlink()
