"""Training rows, losses and stages."""

from .._door import open_door

MODULES = (
    'losses mined_rows synthetic negative_mining augmentation labelled_sets contamination_check tuning_rows curation '
    'training_settings pairs progress safe_training loop encoders late_encoder sft cross_encoder stage_data two_stages '
    'retromae pair alignment launch splade'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)

# each of these registers its kinds
from . import augmentation, contamination_check, curation, labelled_sets, mined_rows  # noqa: E402
from . import negative_mining, synthetic, tuning_rows  # noqa: E402
from . import alignment, cross_encoder, encoders, late_encoder, pair  # noqa: E402
from . import retromae, sft, splade, two_stages  # noqa: E402
