"""Declarations: an optimizer as data, with the hyperparameters that change from step to step."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
