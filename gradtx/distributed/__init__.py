"""Many devices: aggregation, compression, sharded state, infrequent communication."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
