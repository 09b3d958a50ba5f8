"""Checkpoints: configurations and states as data, and matching states to transformations."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
