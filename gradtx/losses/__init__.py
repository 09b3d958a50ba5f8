"""Losses: plain functions of predictions and targets, under Optax's names where it has them.

All are computed, and returned, in at least float32: the loss of predictions in bfloat16 or float16
is float32. Optax computes in their type, where the square of an error of 300 overflows in float16.
Gradients have the type of the predictions. 0 log 0 counts as 0, and its gradient is finite.
"""

from typing import TYPE_CHECKING

from gradtx.losses.classification import (
    hinge_loss,
    multiclass_hinge_loss,
    multiclass_perceptron_loss,
    multiclass_sparsemax_loss,
    perceptron_loss,
    poly_loss_cross_entropy,
    safe_softmax_cross_entropy,
    sigmoid_binary_cross_entropy,
    sigmoid_focal_loss,
    softmax_cross_entropy,
    softmax_cross_entropy_with_integer_labels,
    sparsemax_loss,
)
from gradtx.losses.ctc import ctc_loss, ctc_loss_with_forward_probs
from gradtx.losses.divergence import (
    convex_kl_divergence,
    generalized_kl_divergence,
    kl_divergence,
    kl_divergence_with_log_targets,
)
from gradtx.losses.embedding import (
    cosine_distance,
    cosine_similarity,
    ntxent,
    triplet_margin_loss,
)
from gradtx.losses.fenchel_young import make_fenchel_young_loss
from gradtx.losses.linear import linear_softmax_cross_entropy
from gradtx.losses.ranking import ranking_softmax_loss
from gradtx.losses.regression import (
    absolute_error,
    huber_loss,
    l2_loss,
    log_cosh,
    squared_error,
)
from gradtx.losses.segmentation import (
    binary_dice_loss,
    dice_loss,
    multiclass_generalized_dice_loss,
)
from gradtx.losses.smoothing import smooth_labels
from gradtx.names.namespace import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__)[1]  # its private modules: see gradtx._src

__all__ = [
    "absolute_error",
    "binary_dice_loss",
    "convex_kl_divergence",
    "cosine_distance",
    "cosine_similarity",
    "ctc_loss",
    "ctc_loss_with_forward_probs",
    "dice_loss",
    "generalized_kl_divergence",
    "hinge_loss",
    "huber_loss",
    "kl_divergence",
    "kl_divergence_with_log_targets",
    "l2_loss",
    "linear_softmax_cross_entropy",
    "log_cosh",
    "make_fenchel_young_loss",
    "multiclass_generalized_dice_loss",
    "multiclass_hinge_loss",
    "multiclass_perceptron_loss",
    "multiclass_sparsemax_loss",
    "ntxent",
    "perceptron_loss",
    "poly_loss_cross_entropy",
    "ranking_softmax_loss",
    "safe_softmax_cross_entropy",
    "sigmoid_binary_cross_entropy",
    "sigmoid_focal_loss",
    "smooth_labels",
    "softmax_cross_entropy",
    "softmax_cross_entropy_with_integer_labels",
    "sparsemax_loss",
    "squared_error",
    "triplet_margin_loss",
]
