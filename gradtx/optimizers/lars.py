"""LARS."""

from gradtx.checks import NonNegative, Number
from gradtx.compose import chain
from gradtx.masking import masked
from gradtx.pair import GradientTransformation, optimizer
from gradtx.paths import Where
from gradtx.transforms.averaging import trace
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.transforms.trust import scale_by_trust_ratio


@optimizer
def lars(
    learning_rate: NonNegative,
    weight_decay: NonNegative = 0.0,
    weight_decay_mask: Where = True,
    trust_coefficient: NonNegative = 0.001,
    eps: NonNegative = 0.0,
    trust_ratio_mask: Where = True,
    momentum: Number = 0.9,
    nesterov: bool = False,
) -> GradientTransformation:
    r"""LARS: momentum whose steps, in each leaf, are in proportion to the parameter.

    .. math:: d = g + \lambda\theta, \qquad
        m \leftarrow \mu m + \eta \frac{c \lVert\theta\rVert}{\lVert d\rVert + \epsilon}\, d, \qquad
        \theta \leftarrow \theta - m

    The ratio is 1 where one of the norms is 0.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        weight_decay: :math:`\lambda \ge 0`.
        weight_decay_mask: which parameters decay, as in :func:`add_decayed_weights`.
        trust_coefficient: :math:`c \ge 0`.
        eps: :math:`\epsilon \ge 0`.
        trust_ratio_mask: which leaves are scaled by their ratio; the others take plain momentum.
        momentum: :math:`\mu`, usually 0 to 1.
        nesterov: use Nesterov momentum.

    The paper's denominator is :math:`\lVert g\rVert + \lambda\lVert\theta\rVert`; this is the norm
    of the sum, as Optax has it.

    State: that of :func:`trace`.

    Source: Y. You, I. Gitman and B. Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888, algorithm 1.

    >>> tx = lars(0.1, weight_decay=1e-4, trust_ratio_mask="*/kernel")
    """
    return chain(
        add_decayed_weights(weight_decay, weight_decay_mask),
        masked(scale_by_trust_ratio(0.0, trust_coefficient, eps), trust_ratio_mask),
        scale_by_learning_rate(learning_rate),
        trace(momentum, nesterov),
    )
