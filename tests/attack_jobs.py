"A server of one thread that forks itself for each job of tests/test_attack.py; requests and answers are lines of JSON."

import json, os, sys, time, traceback
from pathlib import Path


def _logged(log, words):
    "One line in a log that several processes append to."
    with open(log, 'a', encoding='utf-8') as file:
        file.write(json.dumps(words) + '\n')


def encode(task, model, out, log, pause):
    "Search a folder with an encoder, in blocks of four texts; each text that is encoded is logged."
    from medir_nb import encoder, retrieval
    from medir_nb.data import load_task

    encoder.store._BLOCK = 4
    plain = encoder.TorchBackend.encode

    def counted(self, texts, prompt=''):
        _logged(log, texts)
        time.sleep(pause)
        return plain(self, texts, prompt)

    encoder.TorchBackend.encode = counted
    retrieval.write_run(retrieval.search(load_task(task), model, 20, device='cpu').run, out)


def write(url, n, out):
    "n generations of a server, put on a cassette."
    from medir_nb.core import write_json
    from medir_nb.generator import LLM, Request

    model = LLM('smollm2', backend='openai', base_url=url, concurrency=2, pause=0.01)
    write_json(out, [g.text for g in model.generate([Request(f'prompt {i}', id=str(i)) for i in range(n)])])


def mine(url, documents, folder, model):
    "Queries of a server, their candidate documents, the best of these and hard negatives by an encoder: a file a step."
    from medir_nb import generator, trainer

    generator.configure('smollm2', backend='openai', base_url=url, concurrency=2, pause=0.01)
    names = ('queries', 'candidates', 'selected', 'pairs')
    queries, candidates, selected, pairs = (Path(folder) / f'{name}.jsonl' for name in names)
    written = dict(model='smollm2', language='en')
    trainer.mine('synthesize_queries', documents, queries, **written, styles=['finding'])
    trainer.mine('candidates', queries, candidates, **written, n=2)
    trainer.mine('select', candidates, selected, retriever='bm25')
    trainer.mine('hard_negatives', queries, pairs, retriever=model, n=2, window=[0, 5])


def train(settings, log, pause):
    "A training; each step that is computed is logged."
    from medir_nb import trainer

    plain = trainer.loop.metrics_callback

    def recorder(*arguments):
        made = plain(*arguments)

        class Logged(type(made)):
            def on_step_end(self, args, state, control, **kwargs):
                _logged(log, state.global_step)
                time.sleep(pause)
                return super().on_step_end(args, state, control, **kwargs)

        made.__class__ = Logged
        return made

    trainer.loop.metrics_callback = recorder
    trainer.train(settings)


JOBS = {'encode': encode, 'write': write, 'mine': mine, 'train': train}


def run(job, arguments, environment, said):
    "The forked process: it does one job and ends."
    os.setsid()
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(environment)
    try:
        JOBS[job](**arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main():
    import sentence_transformers  # noqa: F401
    import torch
    import transformers.trainer  # noqa: F401
    from medir_nb import evaluator, trainer  # noqa: F401

    torch.set_num_threads(1)
    print(json.dumps('ready'), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if 'wait' in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request['wait'], 0)[1])
        elif not (answer := os.fork()):
            run(**request)
        print(json.dumps(answer), flush=True)


if __name__ == '__main__':
    main()
