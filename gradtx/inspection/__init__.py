"""Inspection: hyperparameters, slots and sizes of transformations and states."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
