"""From texts to vectors."""

from .._door import open_door

MODULES = (
    'backends model_row model_folders encoder_rows loading tokens local services environments model contracts '
    'store small_vectors availability saving multi_vector towers sparse shards'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)

# each of these registers its kinds
from . import local, services, environments, small_vectors, multi_vector, sparse  # noqa: E402
