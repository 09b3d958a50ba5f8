"""Leaves: what they may be (rows, parts of vectors, matrices), their paths, and where they lie."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
