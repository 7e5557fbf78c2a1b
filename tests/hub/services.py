"""Services on loopback for the rows that are services: embeddings and chat, in the manner of conftest's Fake."""

import json, os, re, sys, zlib
from pathlib import Path
import numpy as np
from conftest import Fake, chat_answer

TESTS = Path(__file__).parents[1]


def embed(body):
    "A vector a text: a sum of one a word, so that like texts are near; 16 dimensions."

    def vector(text):
        # Voyage is told the role, and embeds a query and a document apart
        words = [*text.lower().split(), body.get('input_type', '')]
        return np.sum([np.random.default_rng(zlib.crc32(w.encode())).normal(size=16) for w in words], axis=0).tolist()

    data = [{'index': i, 'embedding': vector(t)} for i, t in enumerate(body['input'])]
    return {'data': data, 'usage': {'total_tokens': 1}}


# what a step of CMIRB's recipe is answered, by the key that its prompt asks for; the text stands last
STEPS = {
    'medical': lambda text: True,
    'order': lambda text: [2, 0, 1],
    'evidence': lambda text: text[:24],
    'answer': lambda text: text[:12],
    'score': lambda text: 5,
}


def chat(body):
    """Grades where passages are to be judged: a third are relevant, and now and then a judge is of its own mind.
    A step of CMIRB where one is asked for; else an echo."""
    prompt = body['messages'][-1]['content']
    passages = re.findall(r'^Passage-(\d+): (.*)$', prompt, re.M)
    step = re.search(r'\{"(medical|order|evidence|answer|score)": ', prompt)
    if step and not passages:
        text = re.split(r'(?:Text|文字|Evidence|依据)[:：] ?', prompt)[-1]
        return chat_answer(json.dumps({step[1]: STEPS[step[1]](text)}))
    if not passages:
        return chat_answer(f'echo: {prompt}')

    def grade(text):
        likes = zlib.crc32(text.encode()) % 3 == 0
        differs = zlib.crc32(f'{body["model"]} {text}'.encode()) % 7 == 0
        return 'S' if likes != differs else 'D'

    return chat_answer(json.dumps({f'Passage-{number}': grade(text) for number, text in passages}))


class Services:
    def __init__(self):
        self.embedding, self.chat = Fake(answer=embed), Fake(answer=chat)

    def close(self):
        for fake in (self.embedding, self.chat):
            fake.close()

    @property
    def environment(self):
        return {'MEDIR_EMBEDDING_URL': self.embedding.url, 'MEDIR_LLM_URL': self.chat.url}


def make_environment(folder, name):
    "The environment `name` below `folder`: a Python that is this one, behind a script."
    python = Path(folder) / name / 'bin' / 'python'
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def process_environment(hub, base, services=None, github=None, **more):
    """What a process needs to see the Hub on loopback and no other address, with folders of its own below `base`.
    HF_HUB_OFFLINE of the tests is taken away; `github`: the folder of repositories that git finds in GitHub's place."""
    from medir_nb.core import registry

    base = Path(base)
    for name in registry('environments'):
        make_environment(base / 'environments', name)
    gone = ('HF_HUB_OFFLINE', 'HF_TOKEN', 'MEDIR_DATA', 'MEDIR_REGISTRY', 'MEDIR_CASSETTES')
    kept = {k: v for k, v in os.environ.items() if k not in gone and not k.lower().endswith('_proxy')}
    folders = {'HF_HOME': 'hf', 'MEDIR_HOME': 'home', 'HOME': '', 'MEDIR_ENVIRONMENTS': 'environments'}
    own = {name: str(base / folder) for name, folder in folders.items()} | {'HF_ENDPOINT': hub.url}
    own |= dict.fromkeys(('HF_HUB_DISABLE_XET', 'HF_HUB_DISABLE_TELEMETRY', 'HF_HUB_DISABLE_PROGRESS_BARS'), '1')
    own |= dict.fromkeys(('HTTP_PROXY', 'HTTPS_PROXY'), 'http://127.0.0.1:9') | {'NO_PROXY': '127.0.0.1,localhost'}
    own |= {'PYTHONPATH': os.pathsep.join([str(TESTS.parent), str(TESTS)]), 'PYTHONWARNINGS': 'ignore'}
    own |= {'OMP_NUM_THREADS': '1', 'MEDIR_PROGRESS': '0', 'TOKENIZERS_PARALLELISM': 'false'}
    if github:
        own |= {'GIT_CONFIG_COUNT': '1', 'GIT_CONFIG_VALUE_0': 'https://github.com/'}
        own['GIT_CONFIG_KEY_0'] = f'url.file://{github}/.insteadOf'
    return {**kept, **own, **(services.environment if services else {}), **more}
