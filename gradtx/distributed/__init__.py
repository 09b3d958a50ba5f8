"""What devices send each other: aggregation, compression, infrequent communication."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
