"""Inspection: hyperparameters, slots and sizes of transformations and states."""

from gradtx.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
