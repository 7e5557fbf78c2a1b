"""The tool that puts what a language model wrote where it travels with the package."""

import importlib.util, json
from pathlib import Path

from conftest import write_lines

ROOT = Path(__file__).resolve().parent.parent


def tool():
    "The module tools/record.py."
    spec = importlib.util.spec_from_file_location('record_tool', ROOT / 'tools' / 'record.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_collecting_adds_what_is_missing_and_keeps_what_was_there(tmp_path):
    lines = {key: json.dumps({'key': key, 'text': f'text of {key}'}) for key in 'abc'}
    travels = write_lines(tmp_path / 'package.jsonl', [lines['a'], lines['b']])
    at_home = write_lines(tmp_path / 'home.jsonl', [lines['b'], lines['c']])
    assert tool().added(at_home, travels) == 1
    assert travels.read_text().splitlines() == list(lines.values())
    assert tool().added(at_home, travels) == 0


def test_a_first_cassette_is_the_whole_of_what_was_written(tmp_path):
    at_home = write_lines(tmp_path / 'home.jsonl', [json.dumps({'key': 'a', 'text': 'one'})])
    assert tool().added(at_home, tmp_path / 'new.jsonl') == 1
    assert (tmp_path / 'new.jsonl').read_text() == at_home.read_text()
