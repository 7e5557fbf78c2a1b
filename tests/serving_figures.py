"""Figures of an index and its service, each a line of JSON; measure them on a machine that does nothing else.

    python tests/serving_figures.py build  --documents 100000 --folder DIR [--system minilm] [--random-vectors]
    python tests/serving_figures.py live   --folder DIR [--share 0.01]
    python tests/serving_figures.py load   --folder DIR [--rate 20] [--seconds 600] [--bad 0.05]

`build` indexes passages of about 60 words, `live` changes a share of them under a running service, and `load` asks at a
fixed rate, whatever the answers take, with a share of bad requests."""

import argparse, json, os, random, signal, subprocess, sys, threading, time
from pathlib import Path

import httpx, numpy as np, pandas as pd

from medir_nb.data import load_task


def sentences():
    texts = load_task('hpo-lay-full').corpus.texts()
    return [sentence.strip() + '.' for text in texts for sentence in text.split('. ') if len(sentence) > 20]


def passage(parts, rng, words=60):
    chosen, count = [], 0
    while count < words:
        chosen.append(rng.choice(parts))
        count += len(chosen[-1].split())
    return ' '.join(chosen)


def questions_of(n, seed=1):
    texts = load_task('hpo-lay-full').queries.texts()
    return random.Random(seed).choices(texts, k=n)


def use_random_vectors():
    "Documents get vectors drawn from a hash of their text: searching takes as long, and building takes seconds."
    import xxhash

    from medir_nb.encoder import array_vectors
    from medir_nb.retrieval import nearest

    def random_vectors(encoder, corpus, role, instruction=''):
        seeds = [xxhash.xxh3_64_intdigest(text.encode()) for text in corpus.texts()]
        rows = [np.random.default_rng(seed).standard_normal(encoder.spec.dim or 384, np.float32) for seed in seeds]
        counted = {'encoded': 0, 'cached': len(corpus), 'seconds': 0.0}
        rows = np.array(rows, np.float32).reshape(len(corpus), -1)
        return array_vectors(rows, np.zeros(len(corpus), int), np.zeros(len(corpus), bool), counted)

    nearest.encode_corpus = random_vectors


def build(given):
    from medir_nb.retrieval import build_index

    if given.random_vectors:
        use_random_vectors()
    rng, parts = random.Random(0), sentences()
    rows = [(f'p{place:07d}', passage(parts, rng)) for place in range(given.documents)]
    documents, start = pd.DataFrame(rows, columns=['id', 'text']), time.perf_counter()
    built = build_index(documents, given.system, given.folder, given.store)
    told = {'documents': len(documents), 'seconds': time.perf_counter() - start, 'encoded': built.encoded}
    told |= {name: getattr(given, name) for name in ('system', 'store', 'random_vectors')}
    return told | {'bytes': sum(path.stat().st_size for path in Path(given.folder).rglob('*') if path.is_file())}


def live(given):
    "A running service is sent a share of the documents anew: how long until it finds the last, what it says meanwhile."

    from medir_nb.retrieval import Index

    index = Index(given.folder)
    rng, parts = random.Random(7), sentences()
    chosen = rng.sample(list(index.corpus.ids), max(1, int(given.share * len(index))))
    changed = [
        {'_id': doc_id, 'text': f'{passage(parts, rng)} Zanzibarium {number}.'} for number, doc_id in enumerate(chosen)
    ]
    server = Server(given.folder, '--updates')
    client, waited, said, faults = server.client, [], [], 0
    start = time.perf_counter()
    promised = client.post('/documents', json={'documents': changed}).json()
    acknowledged = time.perf_counter() - start
    while True:
        asked = time.perf_counter()
        answer = client.post('/search', json={'query': f'zanzibarium {len(changed) - 1}'})
        waited.append(time.perf_counter() - asked)
        faults += answer.status_code != 200
        health = client.get('/health').json()
        if health['update'] and (not said or said[-1][1] != health['update']):
            said.append((round(time.perf_counter() - start, 1), health['update']))
        if answer.json().get('generation', 0) >= promised['promise']:
            break
        time.sleep(0.05)
    seconds = time.perf_counter() - start
    first = answer.json()['hits'][0]['id']
    server.stop()
    told = {'changed': len(changed), 'acknowledged_after': acknowledged, 'found_after': seconds}
    told |= {'first_hit_right': first == chosen[-1], 'faults': faults, 'said': said}
    return told | {'ms_meanwhile': np.percentile(np.array(waited) * 1000, [50, 95, 100]).round(1).tolist()}


class Server:
    "`medir serve` as a process of its own."

    def __init__(self, folder, *more, **streams):
        command = [sys.executable, '-m', 'medir_nb.workbook', 'serve', str(folder), '--port', '0', *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, **streams)
        line = self.process.stdout.readline()
        assert line.startswith('http://'), line
        self.url = line.split()[0]
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def memory(self, kind='RssAnon'):
        "Memory in MB: its own (RssAnon), or pages of files that the system may take back (RssFile)."
        status = Path(f'/proc/{self.process.pid}/status').read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind)) / 1024

    def stop(self, number=signal.SIGTERM):
        os.killpg(self.process.pid, number)
        self.client.close()
        return self.process.wait(60)


BAD = ['{"query": ', '{"query": ""}', '{"query": "x", "k": 0}', '{"query": "x", "top": 3}']
BAD += ['{"query": "' + 'x' * 2_000_000 + '"}']


def load(given):
    from concurrent.futures import ThreadPoolExecutor

    server, guard, rng = Server(given.folder), threading.Lock(), random.Random(3)
    waited, bad, faults, memory = [], [], [], []
    asked = questions_of(2000)
    client = httpx.Client(base_url=server.url, timeout=30, limits=httpx.Limits(max_connections=64))

    def ask(question, due):
        try:
            answer = client.post('/search', json={'query': question, 'k': 10})
            with guard:
                waited.append(time.perf_counter() - due)
                if answer.status_code != 200:
                    faults.append(answer.status_code)
        except httpx.HTTPError as error:
            faults.append(repr(error))

    def misbehave(body):
        try:
            answer = client.post('/search', content=body, headers={'content-type': 'application/json'})
            bad.append(400 <= answer.status_code < 500 and 'error' in answer.json())
        except httpx.HTTPError as error:
            faults.append(repr(error))

    for question in asked[:20]:
        client.post('/search', json={'query': question})
    start, number = time.perf_counter(), 0
    with ThreadPoolExecutor(64) as pool:
        while (due := start + number / given.rate) < start + given.seconds:
            time.sleep(max(0.0, due - time.perf_counter()))
            pool.submit(ask, asked[number % len(asked)], due)
            if rng.random() < given.bad:
                pool.submit(misbehave, rng.choice(BAD))
            number += 1
            if number % max(1, int(10 * given.rate)) == 0:
                memory.append(server.memory())
    memory.append(server.memory())
    files = server.memory('RssFile')
    status = server.stop()
    quantiles = np.percentile(np.array(waited) * 1000, [50, 95, 99, 100]).round(2).tolist()
    told = {'requests': number, 'rate': given.rate, 'seconds': given.seconds, 'exit_status': status}
    told |= {'ms': dict(zip(('p50', 'p95', 'p99', 'max'), quantiles)), 'faults': len(faults)}
    told |= {'first_fault': str(faults[:1]), 'bad_requests': len(bad), 'bad_answered_well': sum(bad)}
    # of its own memory, a number a minute
    return told | {'own_memory_mb': [round(own) for own in memory[::6]], 'file_pages_mb': round(files)}


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['build', 'live', 'load'])
    parser.add_argument('--folder', required=True)
    parser.add_argument('--random-vectors', action='store_true')
    options = {'documents': 100_000, 'system': 'minilm', 'store': 'flat', 'share': 0.01}
    for name, default in (options | {'rate': 20.0, 'seconds': 600.0, 'bad': 0.05}).items():
        parser.add_argument(f'--{name}', type=type(default), default=default)
    given = parser.parse_args()
    print(json.dumps({'what': given.what, **globals()[given.what](given)}))
