"""What acts on any transformation: guarding, accumulating, averaging, injecting."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
