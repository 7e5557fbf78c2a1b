"""Have a language model write what the notebooks replay, and put it where it travels with the package.

    python tools/record.py [FIRST LAST]     the lines of params/recordings.yaml, or some of them (counted from 1)
    python tools/record.py --collect        add what the home folder's cassettes hold to medir_nb/registry/cassettes

Texts are stored as they are written, so a stopped run goes on where it was. What each line took is printed and appended
to HOME/recordings.jsonl.
"""

import json
import os
import sys
import time
from pathlib import Path

from medir_nb.core import MedirError, home, read_yaml
from medir_nb.data import load_task
from medir_nb.generator import Cassettes
from medir_nb.retrieval import parse
from medir_nb.retrieval.chain import expanded_texts
from medir_nb.workbook import run_notebook

ROOT = Path(__file__).resolve().parent.parent


def jobs() -> list[dict]:
    "The lines of params/recordings.yaml."
    return read_yaml(ROOT / 'params' / 'recordings.yaml')['recordings']


def record(job: dict) -> dict:
    "Write what is missing of one line; how much that was, and how long it took."
    start = time.perf_counter()
    if 'notebook' in job:
        run_notebook(job['notebook'], preset=job['preset'])
        return {**job, 'seconds': round(time.perf_counter() - start, 1)}
    task = load_task(os.path.expandvars(job['task']))
    expansion = parse(f'bm25+{job["expansion"]}').expansion
    stats = expanded_texts(task, expansion, 'sparse').stats
    return {**job, 'queries': len(task.queries), 'seconds': round(time.perf_counter() - start, 1), **stats}


def added(source: Path, target: Path) -> int:
    "Add to the cassette `target` the generations of `source` that it lacks; how many these were."
    written = target.read_text(encoding='utf-8').splitlines() if target.is_file() else []
    known = {json.loads(line)['key'] for line in written}
    fresh = [line for line in source.read_text(encoding='utf-8').splitlines() if json.loads(line)['key'] not in known]
    with open(target, 'a', encoding='utf-8') as cassette:
        cassette.writelines(f'{line}\n' for line in fresh)
    return len(fresh)


def collect_all(recorded: list[dict]):
    "Add what was written to the package; models that write into one file are one."
    expansions = [parse(f'bm25+{job["expansion"]}').expansion for job in recorded if 'expansion' in job]
    for source in sorted({Cassettes(model).path for _, model, _ in expansions}):
        target = ROOT / 'medir_nb' / 'registry' / 'cassettes' / source.name
        if not source.is_file():
            print(f'{source.name}: nothing was written in this home folder')
            continue
        print(f'{source} → {target}: {added(source, target):,} generations more')


def main(arguments: list[str]):
    chosen = jobs()
    if arguments == ['--collect']:
        collect_all(chosen)
        return
    first, last = map(int, arguments) if arguments else (1, len(chosen))
    for job in chosen[first - 1 : last]:
        try:
            done = record(job)
        except MedirError as error:
            done = {**job, 'failed': str(error)}
        with open(home() / 'recordings.jsonl', 'a') as log:
            log.write(json.dumps(done, ensure_ascii=False) + '\n')
        print(json.dumps(done, ensure_ascii=False), flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
