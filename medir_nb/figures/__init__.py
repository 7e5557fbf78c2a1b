"""Figures, each saved with its data."""

from .style import save_figure
from .sizes import size_data, size_figure
from .similarity import similarity_figure
from .scores import gain_figure, scores_figure
from .audit import overlap_figure, ranks_figure
from .training import recall_figure, training_figure
from .expansion import length_figure, spread_figure, weight_figure
from .judges import tau_figure
from .towers import panel_figure, throughput_figure

__all__ = [
    'save_figure',
    'size_data',
    'size_figure',
    'similarity_figure',
    'gain_figure',
    'scores_figure',
    'overlap_figure',
    'ranks_figure',
    'recall_figure',
    'training_figure',
    'length_figure',
    'spread_figure',
    'weight_figure',
    'tau_figure',
    'panel_figure',
    'throughput_figure',
]
