"""Transforms for use in any chain, one family per file."""

from gradtx.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
