"""A reproducible workbook for medical information retrieval.

    import medir_nb as mr

    task = mr.load_task('hpo-lay')                  # a registry name, or a folder of documents, queries and judgements
    bm25 = mr.evaluate(task, 'bm25')
    fused = mr.evaluate(task, 'rrf(bm25,minilm)')
    mr.compare(bm25, fused)                         # the difference, its test, and the queries behind it

The names below are loaded when they are first used; everything else lies in the rooms: `medir_nb.core`, `data`, `encoder`,
`generator`, `retrieval`, `trainer`, `evaluator`, `judging`, `papers`, `study`, `integrations`, `workbook`.
"""

__version__ = "0.1.0"

import lazy_loader

_NAMES = {
    'data': ['load_task', 'task_from_frames'],
    'encoder': ['Encoder', 'contract'],
    'retrieval': ['search'],
    'evaluator': ['evaluate', 'compare'],
    'papers': ['experiment', 'published', 'Ledger'],
    'integrations': ['index', 'open_index'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
