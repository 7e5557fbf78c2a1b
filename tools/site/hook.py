"""What mkdocs does beside: the order of the pages from the staged folder, and pages without needless blanks."""

import json
import re
from pathlib import Path


def on_config(config):
    nav = Path(config['docs_dir']) / 'nav.json'
    if nav.is_file():
        config['nav'] = json.loads(nav.read_text(encoding='utf-8'))
    return config


def on_post_page(output, page, config):
    "Blanks between elements carry nothing outside of code."
    parts = re.split(r'(<(pre|textarea|script)\b.*?</\2>)', output, flags=re.S)
    return ''.join(part if i % 3 == 1 else without_blanks(part) for i, part in enumerate(parts) if i % 3 != 2)


def without_blanks(text):
    "HTML closes cells and rows by itself where the next one begins."
    return re.sub(r'</t[dhr]>\s*(?=<t[dhr]\b|</tr>|</t(?:body|head|able)>)', '', re.sub(r'\s*\n\s*', '\n', text))


def shortened(entry):
    "An entry of the search without code and with the beginning of its prose alone."
    text = re.sub(r'<(pre|table)\b.*?</\1>|<code>[^<]*</code>\s*$|<[^>]+>', ' ', entry['text'], flags=re.S)
    return {**entry, 'text': ' '.join(text.split())[:240]}


def on_post_build(config):
    "Files that no page asks for: maps of scripts, word lists of languages that the site is not in."
    site = Path(config['site_dir'])
    index = site / 'search/search_index.json'
    found = json.loads(index.read_text(encoding='utf-8'))
    found['docs'] = [shortened(entry) for entry in found['docs']]
    index.write_text(json.dumps(found, ensure_ascii=False, separators=(',', ':')), encoding='utf-8')
    for pattern in ('assets/**/*.map', 'assets/javascripts/lunr/**/*', 'nav.json', 'objects.inv', 'sitemap.xml*'):
        for file in site.glob(pattern):
            if file.is_file():
                file.unlink()
