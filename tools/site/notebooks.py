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


def exported_part(source: str, api: str, door: set[str]) -> str:
    "What an export gives to others, by name and docstring; names at the door lead to their signature."
    lines = []
    for name, _, said in public_definitions(source):
        anchor = f'[`{name}`]({api}#{name.lower()})' if name in door else f'`{name}`'
        first = said.partition('\n\n')[0].replace('\n', ' ')
        lines.append(f'> {anchor}: {first}' if first else f'> {anchor}')
    return '  \n'.join(lines)


def code_parts(source: str, is_lesson: bool, api: str, door: set[str]) -> list[str]:
    "A code cell: a lesson as it stands, an export as what it gives to others."
    source = source.strip()
    if re.match(r'#\|\s*default_exp', source) or not source:
        return []
    if not is_lesson:
        return [exported_part(source, api, door)]
    text = re.sub(r'^#\|.*\n?', '', source, flags=re.M).strip()
    return [fenced(text, 'python')] if text and not is_quiet(source) else []


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
            for i, output in enumerate(cell.get('outputs') or ()):
                parts += output_parts(output, pictures, f'{file.stem}-{number}-{i}')
    return '\n\n'.join(part for part in parts if part.strip()) + '\n'
