"""Transforms that any chain may hold, a family a file."""

from gradtx.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
