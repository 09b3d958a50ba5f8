"""Training: gradients taken, updates applied, steps compiled."""

from gradtx.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
