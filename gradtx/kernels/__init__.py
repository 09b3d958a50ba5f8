"""Kernels launched by hand: of a step on stored slots, and of sums over rows and columns."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
