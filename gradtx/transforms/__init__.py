"""Transforms for use in any chain, one family per file."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
