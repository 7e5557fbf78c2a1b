"""What mkdocs does beside: the order of the pages, formulas, and pages and a search without needless bytes."""

import configparser
import html
import json
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# what no page asks for: maps of scripts, word lists of other languages, lists for robots and other sites
UNASKED = ('assets/**/*.map', 'assets/javascripts/lunr/**/*', 'nav.json', 'sitemap.xml.gz', 'sitemap.xml')
# what of the theme's style no page of ours has; a rule goes where each of its selectors is of that kind
UNUSED = re.compile(
    r'tabbed-|admonition|\[dir=rtl\]|md-tag|\.keys|mermaid|critic|md-post|twemoji|task-list|footnote|md-consent'
    r'|md-feedback|md-annotation|arithmatex|md-social|md-source|md-banner|md-author'
    r'|data-md-color-(?:primary|accent)=(?!indigo)'
)
# words of the markup that stand thousands of times; site.css and site.js know the short ones. A block without a class
# is Python, which most blocks are
SHORT = {
    '<pre class="highlight"><code': '<pre><code',
    '<code class="language-python">': '<code>',
    '<code class="language-text">': '<code class=out>',
}
# what stands in every frame and does nothing there: dots for a link's text cut short, a state of tabs that no page has
IDLE = (
    (
        re.compile(r'(<a [^<>]*class="md-nav__link[^<>]*>)\s*<span class="md-ellipsis">([^<>]*)</span>\s*</a>'),
        r'\1\2</a>',
    ),
    (re.compile(r'<script>var target=document.getElementById\(location.hash[^<]*</script>'), ''),
    (re.compile(r' xmlns="http://www.w3.org/2000/svg"'), ''),
)
# what every page repeats: how it remembers a reader's choices, his colours, the settings of the theme's script; the
# choice of colours and the field of the search, which do nothing without a script
REPEATED = (
    ('scope', re.compile(r'<script>(__md_scope=.*?)</script>')),
    ('palette', re.compile(r'<script>(var palette=.*?)</script>')),
    ('config', re.compile(r'<script id="__config" type="application/json">(.*?)</script>')),
    ('colours', re.compile(r'(<form class="md-header__option" data-md-component="palette">.*?</form>)', re.S)),
    ('search', re.compile(r'(<div class="md-search" .*?</div>)(?=\s*</nav>\s*</header>)', re.S)),
)
FRAME = """{
const base = document.currentScript.getAttribute('src').replace(/\\/?assets\\/frame\\.js$/, '') || '.'
SCOPE
__md_palette = () => {PALETTE}
__md_config = () => {
  const config = CONFIG, said = document.createElement('script')
  config.search = (base === '.' ? '' : base + '/') + config.search
  Object.assign(said, {id: '__config', type: 'application/json', textContent: JSON.stringify({...config, base})})
  document.body.append(said)
}
__md_colours = () => document.currentScript.insertAdjacentHTML('beforebegin', COLOURS)
__md_search = () => document.currentScript.insertAdjacentHTML('beforebegin', SEARCH)
}
"""
# a formula as arithmatex leaves it, and a figure right behind it
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>(?=(\d?))', re.S)
SHOWN = 60  # characters of a section that search reads and shows


def on_config(config):
    "The order of the pages; which version they are of; where mike builds them, the choice of another one."
    nav = Path(config['docs_dir']) / 'nav.json'
    if nav.is_file():
        config['nav'] = json.loads(nav.read_text(encoding='utf-8'))
    config['copyright'] = version_text(ROOT, os.environ.get('MIKE_DOCS_VERSION', ''))
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


def on_page_content(html, page, config, files):
    "Formulas, before search and frame read the page; the names of its tables, which search would lose."
    config['extra'].setdefault('names', {}).update(names_of(html, page.url))
    return with_formulas(html, page.file.src_uri)


def with_formulas(text, where=''):
    "Formulas as MathML, which browsers draw without script or font; an amount of dollars stays one."

    def drawn(found):
        kind, formula, behind = found[1], html.unescape(found[2]), found[3]
        if behind and kind == 'span':
            return f'${found[2]}$'  # from $5 to $10: what ends a formula has no figure behind it
        return mathml(formula, kind == 'div', where)

    return FORMULA.sub(drawn, text)


def mathml(formula, is_block, where=''):
    "One formula; what cannot be drawn stops the build with its page."
    from math_core import LatexError, LatexToMathML
    from mkdocs.exceptions import PluginError

    try:
        return LatexToMathML(fancy_error=False).convert_with_local_state(formula.strip(), displaystyle=is_block)
    except LatexError as e:
        advice = 'write it in LaTeX that math-core knows, or a dollar sign as code'
        raise PluginError(f'{where}: the formula {formula.strip()!r} cannot be drawn ({e}); {advice}') from e


def on_post_page(output, page, config):
    "Blanks between elements carry nothing outside of code; around the article, they carry nothing at all."
    if page:
        output = with_one_frame(output, base_of(page.url), config['extra'].setdefault('frame', {}))
    before, mark, rest = output.partition('<article')
    article, end, after = rest.partition('</article>')
    for long, short in SHORT.items():
        article = article.replace(long, short)
    return ''.join((framed(before), mark, outside_code(article, tightened), end, framed(after)))


def base_of(url):
    "The site's first folder, as a page of it names it."
    return '/'.join(['..'] * url.count('/')) or '.'


def without_base(name, text, base):
    "A text that pages repeat, without the place of the page."
    if name == 'scope':
        return text.replace(f'new URL("{base}",location)', 'new URL(base,location)')
    if name == 'config':
        config = json.loads(text)
        search = config['search'].removeprefix(f'{base}/')
        return json.dumps({**config, 'base': '', 'search': search}, separators=(',', ':'))
    if name in ('colours', 'search'):
        return json.dumps(framed(text))
    return text


def with_one_frame(output, base, frame):
    "A page that reads from one file what every page repeats; `frame` holds the texts of that file."
    found = {name: pattern.search(output) for name, pattern in REPEATED}
    if not all(found.values()):
        return output
    texts = {name: without_base(name, match[1], base) for name, match in found.items()}
    frame.update(frame or texts)
    if texts != frame:
        return output
    file = 'assets/frame.js' if base == '.' else f'{base}/assets/frame.js'
    output = output.replace(found['scope'][0], f'<script src="{file}"></script>')
    for name in ('palette', 'config', 'colours', 'search'):
        output = output.replace(found[name][0], f'<script>__md_{name}()</script>')
    return output


def frame_script(frame):
    "The file of what every page repeats."
    return re.sub('SCOPE|PALETTE|CONFIG|COLOURS|SEARCH', lambda found: frame[found[0].lower()], FRAME)


def outside_code(text, change):
    parts = re.split(r'(<(pre|textarea|script)\b.*?</\2>)', text, flags=re.S)
    return ''.join(part if i % 3 == 1 else change(part) for i, part in enumerate(parts) if i % 3 != 2)


def framed(text):
    "Header, navigation and footer, which are laid out by style alone."
    for idle, left in IDLE:
        text = idle.sub(left, text)
    return outside_code(text, lambda part: re.sub(r'\s*\n\s*(?=<)|(?<=>)\s*\n\s*', '', tightened(part)))


def tightened(text):
    "HTML without what its rules let go: blanks, closing tags, quotation marks around a word, a mark for Markdown."

    def unquoted(tag):
        return re.sub(r'(?<==)"([^"\'=<>`\s]*[^"\'=<>`\s/])"(?=[\s>])', r'\1', tag[0])

    text = without_blanks(text).replace(' markdown="0"', '')
    return re.sub(r'<[a-z](?:[^<>"]|"[^"]*")*>', unquoted, text)


def without_blanks(text):
    "HTML closes cells, rows, paragraphs and items by itself where the next one begins."
    text = re.sub(r'</li>\s*(?=<li\b|</[ou]l>)', '', text)
    text = re.sub(r'</p>\s*(?=<(?:p|h[1-6]|ul|ol|pre|table|div|blockquote)\b|</(?:div|blockquote)>)', '', text)
    text = re.sub(r'</t[dhr]>\s*(?=<t[dhr]\b|</tr>|</t(?:body|head|able)>)', '', re.sub(r'\s*\n\s*', '\n', text))
    return re.sub(r'</thead>\s*(?=<tbody>)|</tbody>\s*(?=</table>)', '', text)


def names_of(page, url):
    "The code words in the first column of tables (settings, measures, variables) by the address of their section."
    found = {}
    first, *sections = re.split(r'<h[1-6] id="([^"]+)"', page)
    for anchor, section in zip(['', *sections[::2]], [first, *sections[1::2]]):
        cells = re.findall(r'<tr[^>]*>\s*<td[^>]*>(.*?)</td>', section, re.S)
        names = [name for cell in cells for name in re.findall(r'<code[^>]*>(.*?)</code>', cell, re.S)]
        if names:
            found[f'{url}#{anchor}' if anchor else url] = list(dict.fromkeys(names))
    return found


def shortened(entry, names=()):
    "An entry of the search: a heading, the beginning of its prose, and the names that its tables explain."
    text = re.sub(r'<(pre|table|blockquote|summary)\b.*?</\1>|<[^>]+>', ' ', entry['text'], flags=re.S)
    text = ' '.join(text.split())
    if len(text) > SHOWN:
        text = text[:SHOWN].rpartition(' ')[0] + ' …'
    said = text.split()
    return {**entry, 'text': ' '.join([text, *(name for name in names if name not in said)]).strip()}


def classes_of(site):
    "The classes that pages have, and every word of a script, which may be one."
    pages = (file.read_text(encoding='utf-8') for file in site.rglob('*.html'))
    names = {
        name
        for page in pages
        for found in re.findall(r'class=("[^"]*"|[^\s>]+)', page)
        for name in found.strip('"').split()
    }
    scripts = (file.read_text(encoding='utf-8') for file in site.glob('assets/**/*.js'))
    return names.union(*(re.findall(r'[\w-]+', script) for script in scripts))


def pruned(style, classes=None):
    "A style sheet without rules of what no page has."

    def idle(selector):
        asked = re.findall(r'\.(-?[A-Za-z_][\w-]*)', re.sub(r':not\([^)]*\)|"[^"]*"', '', selector))
        return UNUSED.search(selector) or (classes is not None and not classes.issuperset(asked))

    def kept(rule):
        return '' if all(map(idle, rule[1].split(','))) else rule[0]

    return re.sub(r'([^{};]+)\{[^{}]*\}', kept, style)


def on_post_build(config):
    "A search of headings, prose and names; no file that no page asks for."
    site = Path(config['site_dir'])
    index = site / 'search/search_index.json'
    found = json.loads(index.read_text(encoding='utf-8'))
    names = config['extra'].get('names', {})
    found['docs'] = [shortened(entry, names.get(entry['location'], ())) for entry in found['docs']]
    index.write_text(json.dumps(found, ensure_ascii=False, separators=(',', ':')), encoding='utf-8')
    if frame := config['extra'].get('frame'):
        (site / 'assets/frame.js').write_text(frame_script(frame), encoding='utf-8')
    classes = classes_of(site)
    for file in site.glob('assets/stylesheets/*.css'):
        file.write_text(pruned(file.read_text(encoding='utf-8'), classes), encoding='utf-8')
    # whoever changes versions looks for the same page in the other's list
    is_version = 'MIKE_DOCS_VERSION' in os.environ
    for pattern in UNASKED[: -1 if is_version else None]:
        for file in site.glob(pattern):
            if file.is_file():
                file.unlink()
