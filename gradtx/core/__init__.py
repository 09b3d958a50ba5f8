"""The pair: what a transformation is and can do, and the one way into it."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
