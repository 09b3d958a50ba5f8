"""Composition: transformations one after the other, on some of the leaves, in groups."""

from gradtx.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
