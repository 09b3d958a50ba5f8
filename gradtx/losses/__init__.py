"""Losses: plain functions of predictions and targets, under Optax's names where it has them.

All are computed, and returned, in at least float32: the loss of predictions in bfloat16 or float16
is float32. Optax computes in their type, where the square of an error of 300 overflows in float16.
Gradients have the type of the predictions. 0 log 0 counts as 0, and its gradient is finite.
"""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
