"""What mkdocs does beside: the order of the pages, and pages and a search without needless bytes."""

import configparser
import json
import os
import re
import subprocess
from pathlib import Path

# what no page asks for: maps of scripts, word lists of other languages, lists for robots and other sites
UNASKED = ('assets/**/*.map', 'assets/javascripts/lunr/**/*', 'nav.json', 'sitemap.xml.gz', 'sitemap.xml')
SHOWN = 160  # characters of a section that search reads and shows


def on_config(config):
    "The order of the pages; which version they are of; where mike builds them, the choice of another one."
    nav = Path(config['docs_dir']) / 'nav.json'
    if nav.is_file():
        config['nav'] = json.loads(nav.read_text(encoding='utf-8'))
    config['copyright'] = version_text(Path(config['config_file_path']).parent, os.environ.get('MIKE_DOCS_VERSION', ''))
    if 'MIKE_DOCS_VERSION' in os.environ:
        config['extra']['version'] = {'provider': 'mike'}
    return config


def version_text(root, name=''):
    "The package's version and the commit, as each page's foot shows them; without git, the version alone."
    settings = configparser.ConfigParser()
    settings.read(root / 'settings.ini')
    said = f'medir_nb {settings["DEFAULT"]["version"]}'
    asked = ['git', '-C', str(root), 'describe', '--tags', '--always', '--dirty']
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = ''
    said += f' · version {name} of these pages' if name else ''
    return said + (f' · built from {commit}' if commit else '')


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
    is_version = (
        'MIKE_DOCS_VERSION' in os.environ
    )  # whoever changes versions looks for the same page in the other's list
    for pattern in UNASKED[: -1 if is_version else None]:
        for file in site.glob(pattern):
            if file.is_file():
                file.unlink()
