"""Ownership: which device of a mesh transforms which matrices, and keeps their slots."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
