"""Sharding: where the state lies on a mesh, and what a step moves, from shapes alone."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
