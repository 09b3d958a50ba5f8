"""Many devices: aggregation, compression, sharded state, infrequent communication."""

from gradtx.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
