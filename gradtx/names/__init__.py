"""Names: which are public, where each is, what is said of those that are not."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
