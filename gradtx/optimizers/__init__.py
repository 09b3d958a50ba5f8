"""Optimizers, one family per file: each builder is beside the ``scale_by_*`` that it uses."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
