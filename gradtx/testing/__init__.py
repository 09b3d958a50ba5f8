"""Contracts that a transformation of your own should keep, tried with JAX and NumPy alone.

>>> import gradtx
>>> gradtx.testing.check_rule(gradtx.sgd(0.1), contracts=["state keeps its form"]).ok
True
"""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
