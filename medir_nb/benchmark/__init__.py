"""A benchmark made with judges: pools, votes, labels, agreement, and the task folder that comes of them."""

from .pools import MERGES, Pool, known_relevant, pool_documents, pool_recall, pool_table
from .votes import CUT, SCALE, Judge, check_votes, collect_votes, fault_counts, grade_counts, is_relevant
from .rules import LexicalJudge, RetrieverJudge, best_threshold, fitted, pair_scores
from .answers import Batch, judging_prompt, read_grades, shuffled_batches
from .judges import JUDGES, ModelJudge, judges_from, judging_costs
from .labels import LABELS, benchmark_task, consensus, label_counts
from .agreement import agreement_table, cohen_table, fleiss, fleiss_kappa, vote_table
from .person import overrule, person_agreement, read_review, write_review
from .ranking import check_independent, ranks_without, scores_under
from .gold import gold_labels, gold_quality, kendall, score_shift, tau_by_pairs, tau_interval
from .reannotation import reannotation, relabelled
from .folders import reranking_task, write_task
from .building import Benchmark, benchmark_row, build_benchmark, pending_calls
from .synonyms import (
    Entry,
    Synonyms,
    hpo_entries,
    read_entries,
    synonym_pairs,
    synonym_rows,
    synonym_sentences,
    synonym_task,
    write_synonyms,
)
from .cmirb import Built, ModelRoles, Roles, answered_quality, build_cmirb

__all__ = [
    'MERGES',
    'Pool',
    'known_relevant',
    'pool_documents',
    'pool_recall',
    'pool_table',
    'CUT',
    'SCALE',
    'Judge',
    'check_votes',
    'collect_votes',
    'fault_counts',
    'grade_counts',
    'is_relevant',
    'LexicalJudge',
    'RetrieverJudge',
    'best_threshold',
    'fitted',
    'pair_scores',
    'Batch',
    'judging_prompt',
    'read_grades',
    'shuffled_batches',
    'JUDGES',
    'ModelJudge',
    'judges_from',
    'judging_costs',
    'LABELS',
    'benchmark_task',
    'consensus',
    'label_counts',
    'agreement_table',
    'cohen_table',
    'fleiss',
    'fleiss_kappa',
    'vote_table',
    'overrule',
    'person_agreement',
    'read_review',
    'write_review',
    'check_independent',
    'ranks_without',
    'scores_under',
    'gold_labels',
    'gold_quality',
    'kendall',
    'score_shift',
    'tau_by_pairs',
    'tau_interval',
    'reannotation',
    'relabelled',
    'reranking_task',
    'write_task',
    'Benchmark',
    'benchmark_row',
    'build_benchmark',
    'pending_calls',
    'Entry',
    'Synonyms',
    'hpo_entries',
    'read_entries',
    'synonym_pairs',
    'synonym_rows',
    'synonym_sentences',
    'synonym_task',
    'write_synonyms',
    'Built',
    'ModelRoles',
    'Roles',
    'answered_quality',
    'build_cmirb',
]
