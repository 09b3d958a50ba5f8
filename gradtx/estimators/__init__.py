"""Estimators of gradients: from values of the loss alone, or from derivatives along directions."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
