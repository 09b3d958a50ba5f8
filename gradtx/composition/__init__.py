"""Composition: transformations in sequence, on some of the leaves, or in groups."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
