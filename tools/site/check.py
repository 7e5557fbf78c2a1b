"""The built site in a real browser: `make docs-check`.

python tools/site/check.py SITE HOSTILE AXE READER SHOTS VERSIONS HOSTILE_SITE LARGE [CHECK …]: the built site, a
leaderboard of evil names, axe.min.js, a screen reader as a script, a folder for screenshots, a folder in which the site
stands twice, as versions 0.1 and 0.2, a page of a hostile notebook, and a leaderboard of many cells; names of checks
(`board front`) leave all others out. Needs selenium, chromium and its driver ($CHROMIUM, $CHROMEDRIVER; else those of
Debian).
"""

import csv
import functools
import html.parser
import http.server
import io
import json
import os
import re
import sys
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait
from large import CELLS
from stage import LIMIT

WIDTHS = (390, 1024, 1600)
PATIENCE = 600  # seconds that a busy machine may take for a page
ROUNDS = 3  # of which the best counts where something is clocked: a machine may be busy with other work
SHOWN = [
    'index.html',
    'learn/index.html',
    'learn/encoder.html',
    'learn/trainer.html',
    'learn/settings.html',
    'papers/index.html',
    'papers/r2med_retrieval.html',
    'leaderboard/index.html',
    'leaderboard/board.html',
    'api/encoding.html',
]
failures = []


def expect(is_so, what):
    print(('ok   ' if is_so else 'FAIL ') + what, flush=True)
    if not is_so:
        failures.append(what)


# ---------------------------------------------------------------- links


class Links(html.parser.HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(file.read_text(encoding='utf-8'))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ('id', 'name') and value:
                self.ids.add(value)
            elif name in ('href', 'src') and value:
                self.links.append(value)


def check_links(site):
    "Every address of every page is a file of the site, and every anchor an element of it."
    pages = {file.resolve(): Links(file) for file in site.rglob('*.html')}
    broken, outside = [], set()
    for file, page in pages.items():
        for link in page.links:
            parts = urlparse(link)
            if parts.scheme in ('data', 'mailto', 'javascript'):
                continue
            if parts.scheme or link.startswith('//'):
                outside.add(link)
                continue
            path, anchor = urldefrag(link)
            if file.name == '404.html':
                continue
            target = (file.parent / unquote(path)).resolve() if path else file
            target = target / 'index.html' if target.is_dir() else target
            is_state = target.name == 'board.html'  # behind its # stand filters
            if not target.is_file() or (
                anchor and not is_state and target in pages and unquote(anchor) not in pages[target].ids
            ):
                broken.append(f'{file.name}: {link}')
    expect(not broken, f'links of {len(pages)} pages resolve {broken[:8]}')
    print('     addresses outside, none of them loaded:', sorted(outside)[:8])


# ---------------------------------------------------------------- the browser


def browser(width=1024, dark=False, height=1000):
    options = webdriver.ChromeOptions()
    options.binary_location = os.environ.get('CHROMIUM', '/usr/bin/chromium')
    for argument in (
        '--headless=new',
        '--no-sandbox',
        '--disable-gpu',
        '--disable-dev-shm-usage',
        f'--window-size={max(width, 500)},{height}',
    ):
        options.add_argument(argument)
    options.set_capability('goog:loggingPrefs', {'browser': 'ALL', 'performance': 'ALL'})
    driver = webdriver.Chrome(options=options, service=Service(os.environ.get('CHROMEDRIVER', '/usr/bin/chromedriver')))
    driver.command_executor.client_config.timeout = PATIENCE
    driver.set_page_load_timeout(PATIENCE)
    driver.set_script_timeout(PATIENCE)
    set_window(driver, width, dark, height)
    return driver


def set_window(driver, width, dark, height=1000):
    driver.execute_cdp_cmd(
        'Emulation.setDeviceMetricsOverride',
        {'width': width, 'height': height, 'deviceScaleFactor': 1, 'mobile': width < 600},
    )
    driver.execute_cdp_cmd(
        'Emulation.setEmulatedMedia',
        {'features': [{'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}]},
    )


def rest(driver, milliseconds):
    "Let a page do what it has put off, by its own clock: what it began before is done then, however busy the machine."
    driver.execute_async_script('setTimeout(arguments[1], arguments[0])', milliseconds)


def until(driver, script):
    "Wait for what a script returns, and give it."
    return WebDriverWait(driver, PATIENCE, 0.1).until(lambda driver: driver.execute_script(script))


DRAWN = "return document.documentElement.dataset.took !== undefined && document.querySelector('tbody tr') !== null"
OPEN_CELL = """
const cell = document.getElementById('cell')
return cell && cell.open && cell.innerText
"""
OPEN = "return document.getElementById('cell').open && document.getElementById('cell').innerText"


def open_board(driver, address):
    "A leaderboard as it stands behind an address, drawn."
    driver.get('about:blank')
    driver.get(address)
    until(driver, DRAWN)


def visit(driver, address, wait=400):
    "Open a page; a palette that the page before remembered is forgotten."
    driver.get('about:blank')
    origin = '{0.scheme}://{0.netloc}'.format(urlparse(address))
    driver.execute_cdp_cmd('Storage.clearDataForOrigin', {'origin': origin, 'storageTypes': 'local_storage'})
    driver.get(address)
    rest(driver, wait)


def complaints(driver):
    "Errors of the console, and requests to other hosts, since the last call."
    errors = [entry['message'] for entry in driver.get_log('browser') if entry['level'] in ('SEVERE', 'ERROR')]
    outside = []
    for entry in driver.get_log('performance'):
        message = json.loads(entry['message'])['message']
        if message['method'] == 'Network.requestWillBeSent':
            url = urlparse(message['params']['request']['url'])
            if url.scheme in ('http', 'https', 'ws', 'wss') and url.hostname not in ('127.0.0.1', 'localhost'):
                outside.append(message['params']['request']['url'])
    return errors, outside


def check_pages(driver, base, site):
    errors, outside = {}, {}
    for file in sorted(site.rglob('*.html')):
        name = str(file.relative_to(site))
        driver.get(base + name)
        rest(driver, 150)
        errors[name], outside[name] = complaints(driver)
    errors, outside = ({k: v for k, v in found.items() if v} for found in (errors, outside))
    expect(not errors, f'no page complains in the console {dict(list(errors.items())[:3])}')
    expect(not outside, f'no page asks another host {dict(list(outside.items())[:3])}')


AXE = """
const done = arguments[0], first = v => [v.nodes[0].html.slice(0, 160), v.nodes[0].failureSummary]
axe.run(document, {resultTypes: ['violations']}).then(r => done(r.violations.map(v => [v.impact, v.id, ...first(v)])))
"""
FIRST_TASK = """
return [...document.querySelectorAll('tbody tr td:nth-child(5) .open')].map(e => parseFloat(e.textContent))
"""


def check_axe(driver, base, axe):
    for name in SHOWN:
        for dark in (False, True):
            set_window(driver, 1024, dark)
            visit(driver, base + name, 800)
            # the page's own policy forbids scripts of others, so that axe comes by the debugger
            driver.execute_cdp_cmd('Runtime.evaluate', {'expression': axe})
            found = driver.execute_async_script(AXE)
            serious = [v for v in found if v[0] in ('serious', 'critical')]
            expect(not serious, f'axe finds nothing serious on {name}, {"dark" if dark else "light"} {serious[:3]}')


def check_shots(driver, base, shots):
    shots.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        for dark in (False, True):
            set_window(driver, width, dark)
            for name in SHOWN:
                visit(driver, base + name)
                driver.save_screenshot(
                    str(shots / f'{name.replace("/", "_")[:-5]}_{width}_{"dark" if dark else "light"}.png')
                )
                if name == 'index.html' or 'board' in name:
                    wide = driver.execute_script('return document.documentElement.scrollWidth')
                    expect(wide <= width, f'{name} fits {width} pixels ({wide})')


def check_widths(driver, base, site):
    "No page is wider than a telephone: what is wide scrolls in a box of its own."
    set_window(driver, WIDTHS[0], False)
    wide = {}
    for file in sorted(site.rglob('*.html')):
        name = str(file.relative_to(site))
        driver.get(base + name)
        width = driver.execute_script('return document.documentElement.scrollWidth')
        if width > WIDTHS[0]:
            wide[name] = width
    expect(not wide, f'every page fits {WIDTHS[0]} pixels {wide}')


# names that stand in a table alone, and where the search finds them
SOUGHT = {
    'max_document_tokens': 'learn/settings.html#settings-of-an-encoder',
    'showcase': 'learn/settings.html#presets',
    'repetition_penalty': 'learn/settings.html#settings-of-an-expansion',
    'MEDIR_PRIVATE': 'learn/settings.html#variables-of-the-environment',
}
HITS = """
const said = document.querySelector('.md-search-result__meta').textContent
if (!/match|No /.test(said)) return null
return {hits: [...document.querySelectorAll('.md-search-result__link')].map(e => e.getAttribute('href'))}
"""


def check_search(driver, base):
    "The search finds settings, presets and variables by their names."
    for word, place in SOUGHT.items():
        visit(driver, base + 'index.html', 600)
        driver.execute_script("document.getElementById('__search').click()")
        rest(driver, 400)
        driver.find_element(By.CSS_SELECTOR, '.md-search__input').send_keys(word)
        rest(driver, 600)
        hits = until(driver, HITS)['hits']
        expect(any(place in hit for hit in hits), f'the search for {word} finds {place} ({len(hits)} places)')


# ---------------------------------------------------------------- the leaderboard


def names(driver):
    return [e.text.split('\n')[0] for e in driver.find_elements(By.CSS_SELECTOR, 'tbody th')]


def choose(driver, field, value):
    Select(driver.find_element(By.NAME, field)).select_by_value(value)


FILTERS = [
    ('weights', 'open'),
    ('size', '8'),
    ('language', 'zh'),
    ('kind', 'alone'),
    ('way', 'cpu'),
    ('language', ''),
    ('size', ''),
    ('weights', ''),
    ('way', ''),
    ('kind', ''),
]


LAID_OUT = 'return document.body.offsetHeight && document.documentElement.dataset.took'


def processor_time(driver):
    "Milliseconds of processor time that script, style and layout of the page have taken."
    metrics = driver.execute_cdp_cmd('Performance.getMetrics', {})['metrics']
    wanted = ('ScriptDuration', 'RecalcStyleDuration', 'LayoutDuration')
    return 1000 * sum(metric['value'] for metric in metrics if metric['name'] in wanted)


def cells_shown(driver):
    "The cells that filters leave, on all pages of the table, as the line above it says."
    said = driver.find_element(By.ID, 'said').text
    return int(re.search(r'([\d,]+) cells', said)[1].replace(',', ''))


def check_speed(driver, large):
    """Every filter over a leaderboard of many cells, all of them shown before the first one and after the last, by
    processor time, which other work on the machine does not stretch."""
    set_window(driver, 1600, False)
    open_board(driver, large.resolve().as_uri() + '#paper=')
    cells = cells_shown(driver)
    expect(cells >= CELLS, f'{cells:,} cells are shown where filters are clocked')
    driver.execute_cdp_cmd('Performance.enable', {'timeDomain': 'threadTicks'})
    took, by_clock = [], []
    for field, value in FILTERS * ROUNDS:
        before = processor_time(driver)
        choose(driver, field, value)
        by_clock.append(float(driver.execute_script(LAID_OUT)))
        took.append(processor_time(driver) - before)
    driver.execute_cdp_cmd('Performance.disable', {})
    best, clock = (
        max(min(times[number :: len(FILTERS)]) for number in range(len(FILTERS))) for times in (took, by_clock)
    )
    expect(cells_shown(driver) == cells, 'without filters all of them are shown again')
    said = f'{best:.0f} ms of the processor, best of {ROUNDS}; {max(took):.0f} at worst; {clock:.0f} ms by the clock'
    expect(best < 100, f'a filter over {cells:,} cells takes under 100 ms ({said})')


SORTED = "return document.querySelector(`[data-sort='${arguments[0]}']`).closest('th').getAttribute('aria-sort')"
# a retriever that two cores finish within a day on one task of R2MED and not on another
BOTH_WAYS, EASY, HARD = 'BMRetriever-410M', 'r2med-biology', 'r2med-pmc-clinical'
FOCUSED = "const {id, dataset} = document.activeElement; return [id, dataset.row || '', dataset.column || '']"
SAID = "return document.getElementById('said').textContent"


def opened_cell(driver, page, where):
    "What stands in the dialog of a cell, by its link."
    open_board(driver, f'{page}#{where}')
    return until(driver, OPEN)


def texts_of(driver, selector):
    return [e.text.split('\n')[0] for e in driver.find_elements(By.CSS_SELECTOR, f'tbody {selector}')]


def billions(text):
    return float(text[:-2]) * {'M': 0.001, 'B': 1}[text[-1]]


def check_sorting(driver, page):
    "Rank and size sort, the best and the smallest first, and say so to a screen reader."
    open_board(driver, page)
    for name in ('rank', 'size'):
        before = driver.execute_script(SORTED, name)
        driver.find_element(By.CSS_SELECTOR, f'[data-sort="{name}"]').click()
        said = before is None and driver.execute_script(SORTED, name) == 'ascending'
        expect(said and f'sort={name}' in driver.current_url, f'{name} sorts, and its header says it')
        shown = [text for text in texts_of(driver, f'td.{name}') if text[:1].isdigit()]
        found = [(int if name == 'rank' else billions)(text) for text in shown]
        expect(len(found) > 5 and found == sorted(found), f'the best or smallest {name} comes first {shown[:4]}')


def check_runnable(driver, page):
    "What can be run is asked of the shown tasks alone."
    for tasks, is_there in (('', False), (EASY, True), (f'{EASY},{HARD}', False)):
        open_board(driver, f'{page}#weights=open&way=cpu&tasks={tasks}')
        expect(
            (BOTH_WAYS in names(driver)) == is_there,
            f'{BOTH_WAYS} on a CPU, tasks {tasks or "as they come"}: {is_there}',
        )


def check_cells(driver, page):
    "A cell says by what it is measured again, in which environment, by which contract, and for how long."
    opened = opened_cell(driver, page, 'cell=r2med~base~NV-Embed-v2~r2med-biology:nDCG@10')
    lines = ('python3.10 -m venv .medir/environments/nv-embed', 'bin/pip install torch', 'on one 80 GB GPU')
    expect(
        all(line in opened for line in lines), 'a row with an environment of its own says how it is made, and the hours'
    )
    contract = "medir contract 'nv-embed-v2(max_document_tokens=4096,max_query_tokens=4096)' r2med-biology"
    expect(contract in opened, 'its contract is that of its expression')
    opened = opened_cell(driver, page, 'paper=bmretriever&cell=bmretriever~Table 2~BM25~nfcorpus:nDCG@10')
    command = "medir evaluate nfcorpus --system 'bm25(multifield)'"
    said = ('32.5', command, 'k1 0.9', 'none is kept with this file', 'Contract')
    missing = [word for word in said if word not in opened]
    expect(not missing, f'a measured cell has command and contract, whatever the printed row is {missing}')
    where = 'paper=referees&cell=referees~mteb~all-MiniLM-L6-v2 · mteb 0.0.2~nfcorpus:nDCG@10'
    opened = opened_cell(driver, page, where)
    said = ('package 0.1.0', 'float32', '27.95', 'medir contract minilm nfcorpus')
    missing = [word for word in said if word not in opened]
    marked = 'package 0.1.0 (of the registry row' in opened
    expect(not missing and not marked, f'revision, precision and interval of a cell are those of its run {missing}')


def check_ways_back(driver, page):
    "A cell that a link opened gives the focus to its place; a link to nothing says so."
    for more, place in (('', 'cell'), ('&find=bm25', 'board')):
        open_board(driver, f'{page}#cell=r2med~base~NV-Embed-v2~r2med-biology:nDCG@10{more}')
        until(driver, OPEN)
        driver.find_element(By.ID, 'close').click()
        rest(driver, 100)
        found, row, column = driver.execute_script(FOCUSED)
        expect((row and column) if place == 'cell' else found == 'board', f'focus comes back to the {place} {found}')
    open_board(driver, f'{page}#paper=nobody&cell=nonsense')
    said = driver.execute_script(SAID)
    expect('paper “nobody”' in said and 'cell “nonsense”' in said, f'a link to nothing says so ({said[:90]})')
    choose(driver, 'weights', 'open')
    expect('nobody' not in driver.execute_script(SAID), 'until something else is chosen')
    open_board(driver, page)
    expect('not here' not in driver.execute_script(SAID), 'and a link that holds says nothing')


def check_board(driver, address):
    set_window(driver, 1600, False)
    page = address.split('#')[0]
    for check in (check_sorting, check_runnable, check_cells, check_ways_back):
        check(driver, page)
    open_board(driver, address)
    before = names(driver)
    choose(driver, 'weights', 'open')
    after = names(driver)
    expect(
        len(after) < len(before) and 'Voyage-3' in before and 'Voyage-3' not in after, 'a filter leaves open weights'
    )
    driver.find_element(By.CSS_SELECTOR, '[data-sort="r2med-biology:nDCG@10"]').click()
    values = [
        float(e.text.split('\n')[0]) for e in driver.find_elements(By.CSS_SELECTOR, 'tbody tr td:nth-child(5) .open')
    ]
    expect(values == sorted(values, reverse=True) and len(values) == len(after), 'a column sorts')
    driver.find_element(By.CSS_SELECTOR, 'td .open').send_keys(Keys.ARROW_RIGHT)
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    opened = until(driver, OPEN)
    expect(
        all(word in opened for word in ('As printed', 'Source', 'Revision', 'Precision', 'medir evaluate', 'Contract')),
        'a cell opens with the keyboard and says where it comes from',
    )
    open_board(driver, driver.current_url)
    expect(until(driver, OPEN) == opened, 'its link opens the same cell')
    driver.find_element(By.ID, 'close').click()
    expect(driver.execute_script(FIRST_TASK) == values, 'the link keeps filters and sorting')
    driver.refresh()
    until(driver, DRAWN)
    expect(sorted(names(driver)) == sorted(after), 'a reload keeps them, too')
    open_board(driver, address.split('#')[0] + '#paper=r2med&table=leaderboard')
    pdf = driver.execute_cdp_cmd('Page.printToPDF', {})['data']
    expect(len(pdf) > 20_000, 'it prints')
    errors, outside = complaints(driver)
    expect(not errors and not outside, f'none of it complains or asks another host {errors[:2]} {outside[:2]}')


READ_ALOUD = """
const [selector, most, done] = arguments
const reader = window.screenReader, said = []
await reader.start({ container: document.querySelector(selector) })
while (said.length < most) {
  said.push(await reader.lastSpokenPhrase())
  await reader.next()
}
await reader.stop()
done(said)
"""
READ_CHANGES = """
const [field, value, done] = arguments
const reader = window.screenReader, box = document.querySelector(`[name="${field}"]`)
await reader.start({ container: document.body })
box.value = value
for (const kind of ['input', 'change']) box.dispatchEvent(new Event(kind, { bubbles: true }))
setTimeout(async () => {
  const said = await reader.spokenPhraseLog()
  await reader.stop()
  done(said)
}, 1500)
"""


def aloud(driver, script, *arguments):
    "What a screen reader says, phrase by phrase; an error of the script is said, too."
    body = f'(async function () {{ {script} }}).apply(null, arguments).catch(e => arguments[2]([String(e)]))'
    return driver.execute_async_script(body, *arguments)


def check_aloud(driver, page, reader):
    "A screen reader (guidepup's virtual one) says what the leaderboard shows: table, sorting, cells, dialog, changes."
    set_window(driver, 1600, False)
    open_board(driver, f'{page}#paper=r2med&table=base')
    # a module of one export, as a plain script
    module, _, exported = reader.partition('//# sourceMappingURL')[0].rpartition('export{')
    own = dict(pair.split(' as ')[::-1] for pair in exported.partition('}')[0].split(','))['virtual']
    driver.execute_cdp_cmd('Runtime.evaluate', {'expression': f'(() => {{{module};window.screenReader = {own}}})()'})
    table = aloud(driver, READ_ALOUD, '#board', 400)
    title = 'R2MED: A Benchmark for Reasoning-Driven Medical Retrieval: scores × 100'
    expect(table[0] == f'region, {title}' and f'table, {title}' in table, f'a table is named aloud {table[:2]}')
    expect('columnheader, Mean 8 tasks, sorted in descending order' in table, 'and how it is sorted')
    best = table.index('rowheader, NV-Embed-v2 cc-by-nc-4.0')
    expect('button, 27.15 the best here' in table[best:], 'and in a row the system, its licence, its scores')
    driver.find_element(By.CSS_SELECTOR, 'td .open').click()
    until(driver, OPEN)
    cell = aloud(driver, READ_ALOUD, '#cell', 120)
    expect(cell[0] == 'dialog, NV-Embed-v2 on Biology', f'a cell is a dialog with a name {cell[:1]}')
    said = ('27.15', 'heading, Measured, level 3', 'heading, Measure it, level 3', 'heading, Contract, level 3')
    missing = [phrase for phrase in said if phrase not in cell]
    expect(not missing, f'with the score and where it comes from {missing}')
    driver.find_element(By.ID, 'close').click()
    changes = aloud(driver, READ_CHANGES, 'weights', 'open')
    polite = [phrase for phrase in changes if phrase.startswith('polite: ')]
    expect(polite and re.search(r'\d+ systems on 8 tasks', polite[-1]), f'a filter is told when it is done {polite}')


def check_front(driver, base):
    "From the front page, one click leads to each cell that it names, with its source and the command that measures it."
    visit(driver, base + 'index.html')
    shown = (
        'return [...document.querySelectorAll(\'article a[href*="cell="]\')].map(a => [a.href, a.parentNode.innerText])'
    )
    links = driver.execute_script(shown)
    code = driver.execute_script(
        "return [...document.querySelectorAll('article pre')].map(e => e.innerText).join('\\n')"
    )
    expect(len(links) >= 2, f'the front page leads to cells ({len(links)})')
    for link, said in links:
        driver.get('about:blank')
        driver.get(link)
        opened = until(driver, OPEN_CELL)
        value = driver.find_element(By.CSS_SELECTOR, '#cell .big').text
        expect(f'is printed as {value};' in said, f'the front page leads to the cell that it names ({value})')
        expect(all(word in opened for word in ('Source', 'Contract', 'Takes')), 'which says where it comes from')
        (line,) = [line for line in opened.splitlines() if line.startswith('medir evaluate')]
        expect(line in code, f'and its command is that of the front page ({line})')


def check_hostile(driver, file):
    open_board(driver, file.resolve().as_uri() + '#paper=')
    shown = driver.execute_script("return document.querySelector('tbody').textContent")
    for button in driver.find_elements(By.CSS_SELECTOR, 'td .open')[:12]:
        driver.execute_script('arguments[0].click()', button)
        driver.execute_script("document.getElementById('cell').close()")
    ran = driver.execute_script('return window.ran') or driver.title == 'ran'
    expect(
        '<img src=x onerror=' in shown
        and not ran
        and not driver.find_elements(By.CSS_SELECTOR, 'main img, dialog img'),
        'a name with markup is shown as text and never runs',
    )


def check_hostile_notebook(driver, base):
    "Hostile texts in tables, outputs and titles of a notebook's page are texts."
    complaints(driver)
    visit(driver, base + 'index.html', 600)
    driver.execute_script(
        "document.querySelectorAll('article *').forEach(e => e.dispatchEvent(new Event('mouseover')))"
    )
    shown = driver.execute_script("return document.querySelector('article').textContent")
    made = "return document.querySelectorAll('article :is(img, script, svg, iframe, [onclick], [onmouseover])').length"
    links = [e.get_attribute('href') for e in driver.find_elements(By.CSS_SELECTOR, 'article a[href]')]
    ran = driver.execute_script('return window.ran')
    expect(not ran and not driver.execute_script(made), 'markup in a notebook makes no element and never runs')
    expect(shown.count('<img src=x onerror') >= 4 and '=HYPERLINK' in shown, 'and is shown as it stands')
    expect(not [link for link in links if link.startswith('javascript')], f'nor does it make a link that runs {links}')
    errors, outside = complaints(driver)
    expect(not errors and not outside, f'nor asks it anybody {errors[:2]} {outside[:2]}')


FORMULAS = """
const boxes = [...document.querySelectorAll('article math')].map(e => e.getBoundingClientRect())
const withoutCode = e => {
  const copy = e.cloneNode(true)
  copy.querySelectorAll('code').forEach(code => code.remove())
  return copy.textContent
}
const prose = [...document.querySelectorAll('article p')].map(withoutCode).join('\\n')
const drawn = boxes.filter(box => box.width > 0 && box.height > 0)
return [boxes.length, drawn.length, prose.match(/\\$\\S[^$]*\\$|\\\\frac/g) || []]
"""


def check_formulas(driver, base):
    "Formulas of the notebooks are drawn, and none is left as it was typed."
    visit(driver, base + 'learn/trainer.html')
    made, drawn, left = driver.execute_script(FORMULAS)
    expect(made and drawn == made and not left, f'{drawn} of {made} formulas are drawn, none is left raw {left[:3]}')


TABLES = "return [document.querySelectorAll('.output table').length, document.querySelectorAll('button.csv').length]"
SAVED = """
const [number, done] = arguments, make = URL.createObjectURL
HTMLAnchorElement.prototype.click = function () { window.named = this.download }
URL.createObjectURL = blob => { blob.text().then(text => done([window.named, text])); return make(blob) }
document.querySelectorAll('button.csv')[number].click()
"""
SHOWN_TABLE = """
const {rows} = document.querySelectorAll('.output table')[arguments[0]]
return [...rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))
"""


def check_tables(driver, base, site):
    "Each table of a paper's notebook is a CSV file by a button below it."
    for file in sorted((site / 'papers').glob('*.html')):
        visit(driver, f'{base}papers/{file.name}')
        tables, buttons = driver.execute_script(TABLES)
        expect(tables == buttons, f'each table of papers/{file.name} can be saved ({tables}, {buttons})')
    visit(driver, base + 'papers/r2med_retrieval.html')
    shown = driver.execute_script(SHOWN_TABLE, 0)
    name, text = driver.execute_async_script(SAVED, 0)
    saved = list(csv.reader(io.StringIO(text)))
    expect(name == 'r2med_retrieval-1.csv' and saved == shown, f'and holds what is shown ({name}: {saved[:1]})')


SCHEME = "return document.body.getAttribute('data-md-color-scheme')"


def check_colours(driver, base):
    "Colours are those of the reader's system until he chooses others, which the next page keeps."
    for dark, given, chosen in ((False, 'default', 'slate'), (True, 'slate', 'default')):
        set_window(driver, 1024, dark)
        visit(driver, base + 'index.html', 600)
        before = driver.execute_script(SCHEME)
        driver.find_element(By.CSS_SELECTOR, 'label[for^=__palette]:not([hidden])').click()
        rest(driver, 400)
        after = driver.execute_script(SCHEME)
        driver.get(base + 'learn/index.html')
        rest(driver, 600)
        kept = driver.execute_script(SCHEME)
        expect((before, after, kept) == (given, chosen, chosen), f'colours change and stay {before, after, kept}')
    set_window(driver, 1024, False)


def check_versions(driver, base):
    "Each page names its version and leads to the others."
    complaints(driver)
    visit(driver, base + 'latest/learn/settings.html', 1000)
    shown = driver.find_element(By.CSS_SELECTOR, '.md-version__current').get_attribute('textContent')
    links = [e.get_attribute('href') for e in driver.find_elements(By.CSS_SELECTOR, '.md-version__link')]
    foot = driver.find_element(By.CSS_SELECTOR, '.md-copyright').text
    expect('0.2' in shown and 'version 0.2' in foot, f'a page names its version ({shown!r}, {foot!r})')
    expect([link.rstrip('/').split('/')[-1] for link in links] == ['0.2', '0.1'], f'and leads to the others {links}')
    driver.get(links[1])
    rest(driver, 500)
    foot = driver.find_element(By.CSS_SELECTOR, '.md-copyright').text
    expect('version 0.1' in foot and '/0.1/' in driver.current_url, f'whose pages are of that version ({foot!r})')
    errors, outside = complaints(driver)
    expect(not errors and not outside, f'without a complaint or another host {errors[:2]} {outside[:2]}')


def serve(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f'http://127.0.0.1:{server.server_port}/'


def check_size(site):
    files = [file for file in site.rglob('*') if file.is_file() and file.suffix not in ('.png', '.svg')]
    size = sum(file.stat().st_size for file in files)
    expect(size < LIMIT, f'the site without pictures is below {LIMIT / 1e6:.1f} MB ({size / 1e6:.2f} MB)')


def main(site, hostile, axe, reader, shots, versions, hostile_site, large, *only):
    base, driver = serve(site), browser()
    board = (site / 'leaderboard/board.html').resolve().as_uri()
    checks = {
        'links': lambda: check_links(site),
        'size': lambda: check_size(site),
        'formulas': lambda: check_formulas(driver, base),
        'tables': lambda: check_tables(driver, base, site),
        'colours': lambda: check_colours(driver, base),
        'front': lambda: check_front(driver, base),
        'board': lambda: check_board(driver, board),
        'aloud': lambda: check_aloud(driver, board, reader.read_text(encoding='utf-8')),
        'speed': lambda: check_speed(driver, large),
        'search': lambda: check_search(driver, base),
        'widths': lambda: check_widths(driver, base, site),
        'hostile': lambda: check_hostile(driver, hostile),
        'notebook': lambda: check_hostile_notebook(driver, serve(hostile_site)),
        'versions': lambda: check_versions(driver, serve(versions)),
        'shots': lambda: check_shots(driver, base, shots),
        'axe': lambda: check_axe(driver, base, axe.read_text(encoding='utf-8')),
        'pages': lambda: check_pages(driver, base, site),
    }
    try:
        for name in only or checks:
            complaints(driver)
            checks[name]()
    finally:
        driver.quit()
    print(f'{len(failures)} failures; screenshots: {shots}')
    sys.exit(bool(failures))


if __name__ == '__main__':
    main(*map(Path, sys.argv[1:9]), *sys.argv[9:])
