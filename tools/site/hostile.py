"""A site of one page, made of a notebook whose every text wants to run: python tools/site/hostile.py FOLDER.

`make docs-check` builds it with the settings of the site and looks whether anything ran.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from notebooks import page_of
from reference import plain, table

EVIL = [
    '<img src=x onerror="window.ran=1">',
    '</code></pre><script>window.ran=1</script><img src=x onerror="window.ran=1">',
    '[look](javascript:window.ran=1) ![x](javascript:window.ran=1)',
    'x {: onclick="window.ran=1" onmouseover="window.ran=1" }',
    '<svg onload="window.ran=1"></svg>',
    '$\\href{javascript:window.ran=1}{x}$',
    '=HYPERLINK("javascript:window.ran=1")',
    '``` \n<img src=x onerror="window.ran=1">',
    '{{ config }} {% raw %}',
]


def hostile_notebook() -> dict:
    "Every hostile text in every kind of output."
    from html import escape

    cells = '<tr>' + ''.join(f'<td>{escape(text)}<td>{text}' for text in EVIL)
    lines = ['| system | nDCG@10 |', '|---|---|', *(f'| {text.replace(chr(10), " ")} | 1 |' for text in EVIL)]
    outputs = [
        {'output_type': 'stream', 'name': 'stdout', 'text': '\n'.join(EVIL)},
        {'output_type': 'execute_result', 'data': {'text/plain': repr(EVIL)}},
        {'output_type': 'display_data', 'data': {'text/html': f'<table onclick="window.ran=1">{cells}</table>'}},
        {'output_type': 'display_data', 'data': {'text/markdown': '\n'.join(lines)}},
        {'output_type': 'display_data', 'data': {'text/markdown': '\n\n'.join(EVIL)}},
    ]
    outputs += [{'output_type': 'stream', 'name': 'stderr', 'text': '\n'.join([text, ''])} for text in EVIL]
    code = {'cell_type': 'code', 'source': f'show({EVIL!r})', 'outputs': outputs}
    formula = r'A formula is text, too: $\text{<img src=x onerror="window.ran=1">}$, and $5 to $10 are none.'
    return {'cells': [{'cell_type': 'markdown', 'source': f'# Hostile\n\n{formula}'}, code]}


def main(folder: Path):
    pages = folder / 'pages'
    pages.mkdir(parents=True, exist_ok=True)
    file = folder / 'hostile.ipynb'
    file.write_text(json.dumps(hostile_notebook()), encoding='utf-8')
    cells = table(['system', 'title'], [(plain(text), plain(text)) for text in EVIL])
    (pages / 'index.md').write_text(f'{page_of(file, folder)}\n\n{cells}\n', encoding='utf-8')
    root = Path(__file__).resolve().parents[2]
    settings = [
        f'INHERIT: {root}/mkdocs.yml',
        'docs_dir: pages',
        'site_dir: site',
        f'hooks: [{root}/tools/site/hook.py]',
    ]
    (folder / 'mkdocs.yml').write_text('\n'.join([*settings, 'extra_css: []', 'extra_javascript: []']) + '\n')


if __name__ == '__main__':
    main(Path(sys.argv[1]))
