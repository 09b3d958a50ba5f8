"""LoRA's own steps: a larger rate for `B`, `B` alone, and the metric of the product `A B`."""

from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, LearningRate, NonNegative, Positive
from gradtx.composition.chain import chain
from gradtx.composition.factors import Factors
from gradtx.composition.groups import selective_transform
from gradtx.composition.roles import ByRole
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.tuples import Related
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import damped_inverse
from gradtx.numerics import precise
from gradtx.optimizers.adam import scale_by_adam
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DType, PyTree


def _gram(x: Array) -> Array:
    return x.mT.conj() @ x


@transformation
def scale_by_lora_plus(
    ratio: NonNegative = 16.0,
    *,
    vectors: bool = True,
    pairs: Related | None = None,
    roles: ByRole | None = None,
) -> GradientTransformation:
    r"""Multiply the updates of LoRA's factor `B`, which begins at zero, by a ratio of rates.

    .. math:: u^A = g^A, \qquad u^B = \lambda g^B

    for layers :math:`x (W + s A B)`. Other leaves pass unchanged.

    Args:
        ratio: :math:`\lambda = \eta_B / \eta_A \ge 0`; at least 1 by the paper, which takes 16.
        vectors: also multiply leaves of fewer than two dimensions, such as biases and norms that
            are trained beside LoRA, as the authors' code and PEFT do.
        pairs: path patterns of `A` and `B`, ``("*/down", "*/up")``, whose ``*`` stands for the
            same, or a list of such pairs; a function from the tree to pairs of paths; None for the
            names that `ByRole` knows.
        roles: says which axes are the rank and those of stacked layers; ``ByRole()`` by default.

    State: none.

    Raises:
        ValueError: there is no pair of factors, a factor has no partner, or their ranks differ.

    Source: S. Hayou, N. Ghosh and B. Yu, LoRA+: Efficient Low Rank Adaptation of Large Models,
    2024, arXiv:2402.12354, and https://github.com/nikhil-ghosh-berkeley/loraplus.

    >>> g = {"lora_a": jnp.ones((3, 1)), "lora_b": jnp.ones((1, 2))}
    >>> tx = scale_by_lora_plus(4.0)
    >>> tx.update(g, tx.init(g))[0]["lora_b"].tolist()
    [[4.0, 4.0]]
    """
    factors = Factors("scale_by_lora_plus", pairs, roles)

    def rule(g: Any, s: Any, t: Any) -> Any:
        return (g[0], None if g[1] is None else ratio * g[1]), {}

    def others(g: Array, s: Any, t: Any) -> Any:
        return ratio * g if g.ndim < 2 else g, {}

    return factors.tuplewise(rule, on_others=others if vectors else None)


@transformation
def scale_by_lora_fa(
    scaling: Positive = 1.0,
    damping: Positive = 1e-8,
    *,
    pairs: Related | None = None,
    roles: ByRole | None = None,
) -> GradientTransformation:
    r"""The gradient of LoRA's factor `B` for which the product comes closest to the full gradient.

    .. math:: u^A = 0, \qquad u^B = \frac{1}{s^2} (A^* A + \delta I)^{-1} g^B

    for layers :math:`x (W + s A B)`: among all changes of `B` it is the one for which
    :math:`s A u^B` is nearest to the gradient of `W`. Other leaves pass unchanged.

    Args:
        scaling: :math:`s > 0`, by which the model multiplies :math:`A B`, usually
            :math:`\alpha / r`.
        damping: :math:`\delta > 0`. An eigenvalue of :math:`A^* A` that is 0 beside the largest,
            within the precision of the type, has the inverse 0, as in PEFT.
        pairs: which leaves are `A` and `B`; this and the next are as in :func:`scale_by_lora_plus`.
        roles: says which axes are the rank and those of stacked layers.

    State: none. A gradient of `A` is not needed: it may be `None` where the parameter is passed.

    Raises:
        ValueError: ``update`` is called without parameters, a parameter of a pair is left out,
            there is no pair of factors, a factor has no partner, or their ranks differ.

    Source: L. Zhang, L. Zhang, S. Shi, X. Chu and B. Li, LoRA-FA: Memory-efficient Low-rank
    Adaptation for Large Language Models Fine-tuning, 2023, arXiv:2308.03303; the correction of the
    gradient is that of LoraFAOptimizer in https://github.com/huggingface/peft.

    >>> tx = scale_by_lora_fa()
    >>> p = {"lora_a": jnp.array([[2.0], [0.0]]), "lora_b": jnp.zeros((1, 2))}
    >>> g = {"lora_a": jnp.ones((2, 1)), "lora_b": jnp.ones((1, 2))}
    >>> {k: u.tolist() for k, u in tx.update(g, tx.init(p), p)[0].items()}
    {'lora_a': [[0.0], [0.0]], 'lora_b': [[0.25, 0.25]]}
    """
    factors = Factors("scale_by_lora_fa", pairs, roles)

    @precise
    def rule(g: Any, s: Any, t: Any, p: Any) -> Any:
        still = None if g[0] is None else jnp.zeros_like(g[0])
        if g[1] is None:
            return (still, None), {}
        return (still, damped_inverse(_gram(p[0]), damping) @ g[1] / scaling**2), {}

    return factors.tuplewise(rule, dimensions=factors.dimensions)


@transformation
def scale_by_riemannian_lora(
    damping: Positive = 1e-2,
    *,
    pairs: Related | None = None,
    roles: ByRole | None = None,
) -> GradientTransformation:
    r"""Precondition the gradients of LoRA's factors by each other, as the metric of `A B` has it.

    .. math:: u^A = g^A (B B^* + \delta I)^{-1}, \qquad u^B = (A^* A + \delta I)^{-1} g^B

    for layers :math:`x (W + s A B)`. A step with these does not depend on how a product is divided
    between its factors. Other leaves pass unchanged.

    ``chain(scale_by_riemannian_lora(), sgd(0.1))`` is the paper's scaled gradient descent; any
    other optimizer may follow.

    Args:
        damping: :math:`\delta > 0`. An eigenvalue that is 0 beside the largest, within the
            precision of the type, has the inverse 0.
        pairs: which leaves are `A` and `B`; this and the next are as in :func:`scale_by_lora_plus`.
        roles: says which axes are the rank and those of stacked layers.

    State: none. The inverses are of size `r x r`, computed in at least float32, those of one rank
    as one batch.

    Raises:
        ValueError: ``update`` is called without parameters, a parameter of a pair is left out,
            there is no pair of factors, a factor has no partner, or their ranks differ.

    Source: F. Zhang and M. Pilanci, Riemannian Preconditioned LoRA for Fine-Tuning Foundation
    Models, 2024, arXiv:2402.02347, equations 1 and 2.

    >>> tx = scale_by_riemannian_lora(1e-6)
    >>> p = {"lora_a": jnp.array([[2.0], [0.0]]), "lora_b": jnp.array([[0.0, 0.5]])}
    >>> u, _ = tx.update(p, tx.init(p), p)
    >>> u["lora_a"].round(3).tolist(), u["lora_b"].round(3).tolist()
    ([[8.0], [0.0]], [[0.0, 0.125]])
    """
    factors = Factors("scale_by_riemannian_lora", pairs, roles)

    @precise
    def rule(g: Any, s: Any, t: Any, p: Any) -> Any:
        a, b = p
        on_a = None if g[0] is None else g[0] @ damped_inverse(_gram(b.mT.conj()), damping)
        on_b = None if g[1] is None else damped_inverse(_gram(a), damping) @ g[1]
        return (on_a, on_b), {}

    return factors.tuplewise(rule, dimensions=factors.dimensions)


@optimizer
def lora_plus(
    learning_rate: LearningRate,
    ratio: NonNegative = 16.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    *,
    vectors: bool = True,
    mu_dtype: DType | None = None,
    pairs: Related | None = None,
    roles: ByRole | None = None,
) -> GradientTransformation:
    r"""LoRA+: AdamW with a larger learning rate for LoRA's factor `B`, which begins at zero.

    .. math::
        \theta_t = \theta_{t-1} - \eta \lambda_\theta \left(
            \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon} + \omega \theta_{t-1} \right), \qquad
        \lambda_A = 1, \quad \lambda_B = \lambda

    for layers :math:`x (W + s A B)`, with the moments of :func:`adam`. For another optimizer put
    :func:`scale_by_lora_plus` before the learning rate:
    ``chain(scale_by_lion(), scale_by_lora_plus(16.0), scale_by_learning_rate(1e-4))``.

    Args:
        learning_rate: :math:`\eta`, that of `A`; a number, an array, or a schedule. The authors
            halve what plain LoRA takes.
        ratio: :math:`\lambda \ge 0`, that of the rates of `B` and `A`.
        b1: :math:`\beta_1`, decay of the first moment; this and the next two as in
            :func:`scale_by_adam`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root of the second moment.
        weight_decay: :math:`\omega \ge 0`, multiplied by the rate of each leaf.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        vectors: leaves of fewer than two dimensions also have the rate of `B`, as in PEFT.
        mu_dtype: the type of the first moment.
        pairs: which leaves are `A` and `B`; this and the next are as in :func:`scale_by_lora_plus`.
        roles: says which axes are the rank and those of stacked layers.

    Source: S. Hayou, N. Ghosh and B. Yu, LoRA+: Efficient Low Rank Adaptation of Large Models,
    2024, arXiv:2402.12354, and https://github.com/nikhil-ghosh-berkeley/loraplus.

    >>> tx, p = lora_plus(0.1, 4.0), {"lora_a": jnp.ones((3, 1)), "lora_b": jnp.zeros((1, 2))}
    >>> updates, _ = tx.update({k: jnp.ones_like(x) for k, x in p.items()}, tx.init(p), p)
    >>> float(updates["lora_a"][0, 0].round(3)), float(updates["lora_b"][0, 0].round(3))
    (-0.10000000149011612, -0.4000000059604645)
    """
    return chain(
        scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_lora_plus(ratio, vectors=vectors, pairs=pairs, roles=roles),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def lora_fa(
    learning_rate: LearningRate,
    scaling: Positive = 1.0,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-6,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    damping: Positive = 1e-8,
    *,
    mu_dtype: DType | None = None,
    pairs: Related | None = None,
    roles: ByRole | None = None,
) -> GradientTransformation:
    r"""LoRA-FA: LoRA's `A` stays as it was drawn, and `B` follows the full gradient by AdamW.

    .. math::
        \tilde g_t &= \frac{1}{s^2} (A^* A + \delta I)^{-1} g^B_t, &
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) \tilde g_t, \\
        \nu_t &= \beta_2 \nu_{t-1} + (1 - \beta_2) |\tilde g_t|^2, &
        B_t &= B_{t-1} - \eta \left( \frac{\sqrt{1 - \beta_2^t}}{1 - \beta_1^t}
            \frac{\mu_t}{\sqrt{\nu_t} + \epsilon} + \omega B_{t-1} \right)

    for layers :math:`x (W + s A B)`. `A` has no slots. Other leaves take the steps of AdamW.

    Where the model stops the gradient at `A`, by ``jax.lax.stop_gradient``, what the gradient of
    `A` would need is not kept for the backward pass, which is what the paper saves.

    Args:
        learning_rate: :math:`\eta`; a number, an array, or a schedule.
        scaling: :math:`s > 0`, by which the model multiplies :math:`A B`.
        b1: :math:`\beta_1` in :math:`[0, 1)`, decay of the first moment.
        b2: :math:`\beta_2` in :math:`[0, 1)`, decay of the second moment.
        eps: :math:`\epsilon \ge 0`, added before the bias correction, as in PEFT.
        weight_decay: :math:`\omega \ge 0`, multiplied by the learning rate. PEFT decays what the
            step has already moved.
        mask: which parameters decay, as in :func:`add_decayed_weights`; never `A`.
        damping: :math:`\delta > 0`, as in :func:`scale_by_lora_fa`.
        mu_dtype: the type of the first moment.
        pairs: which leaves are `A` and `B`; this and the next are as in :func:`scale_by_lora_plus`.
        roles: says which axes are the rank and those of stacked layers.

    The correction is computed in at least float32, where PEFT rounds it to bfloat16 on machines
    that have this type.

    Source: L. Zhang, L. Zhang, S. Shi, X. Chu and B. Li, LoRA-FA: Memory-efficient Low-rank
    Adaptation for Large Language Models Fine-tuning, 2023, arXiv:2308.03303; the correction of the
    gradient is that of LoraFAOptimizer in https://github.com/huggingface/peft.

    >>> tx, p = lora_fa(0.1), {"lora_a": jnp.ones((3, 1)), "lora_b": jnp.zeros((1, 2))}
    >>> updates, state = tx.update({k: jnp.ones_like(x) for k, x in p.items()}, tx.init(p), p)
    >>> updates["lora_a"].sum().item(), updates["lora_b"].round(3).tolist()
    (0.0, [[-0.10000000149011612, -0.10000000149011612]])
    """
    factors = Factors("lora_fa", pairs, roles)

    def frozen(tree: PyTree) -> PyTree:
        return factors.mask(tree, 0)

    moments = scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype, epsilon_hat=True)
    return chain(
        scale_by_lora_fa(scaling, damping, pairs=pairs, roles=roles),
        selective_transform(
            chain(moments, add_decayed_weights(weight_decay, mask)), freeze_mask=frozen
        ),
        scale_by_learning_rate(learning_rate),
    )


@optimizer
def riemannian_lora(
    learning_rate: LearningRate,
    b1: Decay = 0.9,
    b2: Decay = 0.999,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    damping: Positive = 1e-2,
    *,
    mu_dtype: DType | None = None,
    pairs: Related | None = None,
    roles: ByRole | None = None,
) -> GradientTransformation:
    r"""Riemannian preconditioned LoRA: AdamW on gradients in the metric of the product.

    .. math::
        \tilde g^A &= g^A (B B^* + \delta I)^{-1}, \qquad
        \tilde g^B = (A^* A + \delta I)^{-1} g^B, \\
        \mu_t &= \beta_1 \mu_{t-1} + (1 - \beta_1) \tilde g_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |\tilde g_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left( \frac{\hat\mu_t}{\sqrt{\hat\nu_t} + \epsilon}
            + \omega \theta_{t-1} \right)

    for layers :math:`x (W + s A B)`; other leaves take the steps of :func:`adamw`. The paper calls
    it scaled AdamW. With :func:`sgd` instead, ``chain(scale_by_riemannian_lora(), sgd(0.1))``, it
    is the paper's scaled gradient descent.

    Args:
        learning_rate: :math:`\eta`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the first moment; this and the next two as in
            :func:`scale_by_adam`.
        b2: :math:`\beta_2`, decay of the second moment.
        eps: :math:`\epsilon`, added to the root of the second moment.
        weight_decay: :math:`\omega \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        damping: :math:`\delta > 0`. As in PEFT; where the factors are small it decides how much is
            left of plain AdamW.
        mu_dtype: the type of the first moment.
        pairs: which leaves are `A` and `B`; this and the next are as in :func:`scale_by_lora_plus`.
        roles: says which axes are the rank and those of stacked layers.

    Source: F. Zhang and M. Pilanci, Riemannian Preconditioned LoRA for Fine-Tuning Foundation
    Models, 2024, arXiv:2402.02347, algorithm 1.

    >>> import gradtx
    >>> start = {"lora_a": 10 * jnp.ones((2, 1)), "lora_b": 0.1 * jnp.ones((1, 2))}
    >>> def loss(p):
    ...     return jnp.sum((p["lora_a"] @ p["lora_b"] - 2) ** 2)
    >>> result = gradtx.solve(loss, start, riemannian_lora(0.05), max_steps=200)
    >>> bool(loss(result.params) < 1e-3)
    True
    """
    return chain(
        scale_by_riemannian_lora(damping, pairs=pairs, roles=roles),
        scale_by_adam(b1, b2, eps, mu_dtype=mu_dtype),
        add_decayed_weights(weight_decay, mask),
        scale_by_learning_rate(learning_rate),
    )
