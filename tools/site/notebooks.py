"""A notebook as a Markdown page: prose, lessons with their outputs, and what it exports by name and docstring."""

import ast
import html
import html.parser
import json
import re
from pathlib import Path

KEPT = set('table thead tbody tfoot tr th td caption p div span br b strong i em small code pre ul ol li'.split())
KEPT |= set('sub sup h1 h2 h3 h4 details summary'.split())
DROPPED = {'style', 'script', 'iframe', 'object', 'svg', 'math', 'template'}  # with all that is inside
ATTRIBUTES = {'colspan', 'rowspan', 'scope', 'open'}


class Cleaner(html.parser.HTMLParser):
    "HTML of an output with tables and text alone: no script, no style, no handler, no address."

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.parts, self.inside = [], 0

    def handle_starttag(self, tag, attributes):
        if tag in DROPPED:
            self.inside += 1
        elif not self.inside and tag in KEPT:
            kept = ''.join(f' {k}="{html.escape(v or "")}"' for k, v in attributes if k in ATTRIBUTES)
            self.parts.append(f'<{tag}{kept}>')

    def handle_endtag(self, tag):
        if tag in DROPPED:
            self.inside = max(0, self.inside - 1)
        elif not self.inside and tag in KEPT and tag != 'br':
            self.parts.append(f'</{tag}>')

    def handle_data(self, text):
        if not self.inside:
            self.parts.append(html.escape(text, quote=False))


def clean_html(text: str) -> str:
    "One line of safe HTML, which Markdown leaves as it is."
    cleaner = Cleaner()
    cleaner.feed(text)
    cleaner.close()
    text = re.sub(r'\s*\n\s*', ' ', ''.join(cleaner.parts))
    text = re.sub(r'> <(/?(?:table|thead|tbody|tr|th|td)\b)', r'><\1', text)
    return re.sub(r'<(div|p|span)>\s*</\1>', '', text).strip()


def joined(value) -> str:
    return value if isinstance(value, str) else ''.join(value or ())


def fenced(text: str, language: str = '') -> str:
    "A fenced block, whatever the text holds."
    fence = '`' * max(3, 1 + max((len(run) for run in re.findall('`+', text)), default=0))
    return f'{fence}{language}\n{text.rstrip()}\n{fence}'


def rendered(text: str) -> str:
    "Markdown of an output as HTML, in which markup is text; what is left of it passes `clean_html`."
    from markdown_it import MarkdownIt

    return MarkdownIt('commonmark', {'html': False}).enable('table').render(text)


# ---------------------------------------------------------------- what is exported


def head_of(source: str, node) -> str:
    "The lines of a definition before its body, comments beside the parameters included."
    lines = source.splitlines()
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
    body = node.body[0]
    last = body.lineno - 1 if body.lineno > node.lineno else node.lineno
    return '\n'.join(line for line in lines[first:last] if line.strip())


def fields_of(source: str, node) -> str:
    "The annotated fields of a class, with their comments."
    lines = source.splitlines()
    return '\n'.join(lines[f.lineno - 1] for f in node.body if isinstance(f, ast.AnnAssign))


def definition(source: str, node) -> tuple[str, str]:
    "Signature and docstring of a function or class, methods included."
    text = head_of(source, node)
    if isinstance(node, ast.ClassDef):
        fields = fields_of(source, node)
        methods = [
            m for m in node.body if isinstance(m, ast.FunctionDef) and (m.name == '__init__' or m.name[0] != '_')
        ]
        text += f'\n{fields}' if fields else ''
        for method in methods:
            said = ast.get_docstring(method)
            text += f'\n\n{head_of(source, method)}' + (f'\n        "{said}"' if said else '')
    return text, ast.get_docstring(node) or ''


def public_definitions(source: str) -> list[tuple[str, str, str]]:
    "(name, signature, docstring) of what a source defines for others."
    tree = ast.parse(source)
    kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    return [(n.name, *definition(source, n)) for n in tree.body if isinstance(n, kinds) and n.name[0] != '_']


# ---------------------------------------------------------------- a page


NOTES = 2  # of a cell that stand on the page as they are; more are folded
NOISE = re.compile(r'\[IPKernelApp\] WARNING')  # of Jupyter itself


def note_lines(text: str) -> list[str]:
    "What a cell said beside its results: a line that was drawn again as it ended, one that came again once."
    lines = [line.rpartition('\r')[2].rstrip() for line in text.rstrip('\r\n').split('\n')]
    counts = {}
    for line in lines:
        if line and not NOISE.match(line):
            counts[line] = counts.get(line, 0) + 1
    return [line if count == 1 else f'{line} ({count} times)' for line, count in counts.items()]


def notes_part(lines: list[str]) -> list[str]:
    "Notes of a cell: a few as they are, many behind one line."
    if len(lines) <= NOTES:
        return [fenced('\n'.join(lines), 'text')] if lines else []
    summary = f'<summary>{len(lines)} notes of this cell</summary>'
    said = html.escape('\n'.join(lines), quote=False).replace('\n', '&#10;')  # one line, which Markdown leaves as it is
    return [f'<details class="notes" markdown="0">{summary}<pre><code class="out">{said}</code></pre></details>']


def outputs_parts(outputs: list[dict], pictures: Path, stem: str) -> list[str]:
    "The outputs of a cell: printed lines that follow each other as one block, what it noted beside them at the end."
    parts, noted, before = [], '', None
    for number, output in enumerate(outputs):
        is_stream = output['output_type'] == 'stream'
        if is_stream and output.get('name') == 'stderr':
            noted += joined(output['text'])
            continue
        if is_stream and before is not None:
            before['text'] = joined(before['text']) + joined(output['text'])
            continue
        before = dict(output) if is_stream else None
        parts.append((before or output, f'{stem}-{number}'))
    shown = [part for output, name in parts for part in output_parts(output, pictures, name)]
    return shown + notes_part(note_lines(noted))


def output_parts(output: dict, pictures: Path, stem: str) -> list[str]:
    "One output; a picture goes into a file of its own."
    if output['output_type'] == 'stream':
        return [fenced(joined(output['text']), 'text')]
    data = output.get('data') or {}
    if 'image/png' in data:
        import base64

        pictures.mkdir(parents=True, exist_ok=True)
        (pictures / f'{stem}.png').write_bytes(base64.b64decode(joined(data['image/png'])))
        return [f'![figure of the cell above]({pictures.name}/{stem}.png)']
    if 'text/html' in data:
        return [f'<div class="output" markdown="0">{clean_html(joined(data["text/html"]))}</div>']
    if 'text/markdown' in data:
        return [f'<div class="output said" markdown="0">{clean_html(rendered(joined(data["text/markdown"])))}</div>']
    text = joined(data.get('text/plain'))
    return [fenced(text, 'text')] if text.strip() else []


def is_quiet(source: str) -> bool:
    "A lesson's cell that a page does without: hidden ones, and those that only import."
    if re.search(r'^#\|\s*hide\b', source, re.M):
        return True
    try:
        body = ast.parse(re.sub(r'^[%!].*$', '', source, flags=re.M)).body
    except SyntaxError:
        return False
    return bool(body) and all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body)


def without_asserts(source: str) -> str:
    "A lesson without the lines in which it tests itself; they run with the notebook."
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return source
    left = {n for node in body if isinstance(node, ast.Assert) for n in range(node.lineno, node.end_lineno + 1)}
    return '\n'.join(line for n, line in enumerate(source.splitlines(), 1) if n not in left)


def exported_part(source: str, api: str, door: set[str]) -> str:
    "What an export gives to others: names at the door lead to their reference, others stand with their docstring."
    found = public_definitions(source)
    lines = [', '.join(f'[`{name}`]({api}-{name})' for name, _, _ in found if name in door)]
    for name, _, said in found:
        if name not in door:
            first = said.partition('\n\n')[0].replace('\n', ' ')
            lines.append(f'`{name}`: {first}' if first else f'`{name}`')
    return '  \n'.join(f'> {line}' for line in lines if line)


def code_parts(source: str, is_lesson: bool, api: str, door: set[str]) -> list[str]:
    "A code cell: a lesson as it stands, an export as what it gives to others."
    source = source.strip()
    if re.match(r'#\|\s*default_exp', source) or not source:
        return []
    if not is_lesson:
        return [exported_part(source, api, door)]
    text = '' if is_quiet(source) else without_asserts(re.sub(r'^#\|.*\n?', '', source, flags=re.M)).strip()
    return [fenced(text, 'python')] if text else []


def shifted(text: str, by: int) -> str:
    "Prose with its headings deeper by some levels."
    return re.sub(r'^(#{1,5}) ', lambda m: '#' * min(6, len(m[1]) + by) + ' ', text, flags=re.M)


def page_of(file: Path, pictures: Path, deeper: int = 0, api: str = '', door: set[str] = frozenset()) -> str:
    "A notebook as Markdown."
    parts = []
    for number, cell in enumerate(json.loads(file.read_text(encoding='utf-8'))['cells']):
        source = joined(cell['source'])
        if cell['cell_type'] == 'markdown':
            parts.append(shifted(source, deeper))
        elif cell['cell_type'] == 'code':
            parts += code_parts(source, not re.match(r'#\|\s*export', source.strip()), api, door)
            parts += outputs_parts(cell.get('outputs') or [], pictures, f'{file.stem}-{number}')
    return '\n\n'.join(part for part in parts if part.strip()) + '\n'
