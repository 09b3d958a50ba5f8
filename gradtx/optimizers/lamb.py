"""LAMB."""

from gradtx.checks import Decay, NonNegative
from gradtx.compose import chain
from gradtx.optimizers.adam import scale_by_adam
from gradtx.pair import GradientTransformation, optimizer
from gradtx.paths import Where
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.transforms.trust import scale_by_trust_ratio


@optimizer
def lamb(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-6,
    eps_root: NonNegative = 0.0,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
) -> GradientTransformation:
    r"""LAMB: AdamW whose step, in each leaf, is as long as the learning rate times the parameter.

    .. math:: d = u + \lambda\theta, \qquad
        \theta \leftarrow \theta - \eta \frac{\lVert\theta\rVert}{\lVert d\rVert}\, d

    with `u` of :func:`scale_by_adam`; the ratio is 1 where one of the norms is 0.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: decay of the first moment, in :math:`[0, 1)`.
        b2: decay of the second moment, in :math:`[0, 1)`.
        eps: added to the root of the second moment.
        eps_root: added under the root.
        weight_decay: :math:`\lambda \ge 0`.
        mask: which parameters decay, as in :func:`add_decayed_weights`.

    State: that of Adam. The norm of a leaf takes two passes; nothing of its size is stored between.

    Source: Y. You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 Minutes,
    2020, arXiv:1904.00962, algorithm 2 (with the identity for :math:`\phi`).

    >>> lamb(1e-3)
    lamb(learning_rate=0.001, b1=0.9, b2=0.999, eps=1e-06, eps_root=0.0, weight_decay=0.0)
    """
    return chain(
        scale_by_adam(b1, b2, eps, eps_root),
        add_decayed_weights(weight_decay, mask),
        scale_by_trust_ratio(),
        scale_by_learning_rate(learning_rate),
    )
