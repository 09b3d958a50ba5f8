"""Shampoo."""

from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax.numpy as jnp

from gradtx import numerics
from gradtx.checks import Decay, NonNegative, PositiveCount, PositiveInt, check_choice
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.matrices import (
    FactorFn,
    Matrices,
    MatrixDimensions,
    matrixwise,
)
from gradtx.leaves.paths import Where
from gradtx.linalg.linear_algebra import eigen_inverse_root, frobenius_norm, newton_inverse_root
from gradtx.numerics import (
    Step,
    abs_sq,
    accumulator_dtype,
    compute_dtype,
    debias,
    divide,
    ema,
    full,
    precise,
    zero_mean,
    zeros_like,
)
from gradtx.numerics.control import branch
from gradtx.optimizers.soap import adam_of, finite_or, gram
from gradtx.transforms.decay import descent
from gradtx.types import Array, Counter, DimensionNumbers, DType, Slots
from gradtx.types.update_size import UpdateSize

Grafting: TypeAlias = Literal["adam", "sgd", "none"]
RootMethod: TypeAlias = Literal["eigen", "newton"]

UPDATE_SIZE = UpdateSize(
    "spectral",
    "weight_dimension_numbers",
    power=lambda arguments: 1 - 2 / arguments["root"],
    eps_power=2,
    grafting="grafting",
)


class ScaleByShampooState(NamedTuple):
    """count: i32[]; mu and nu: like the parameters; a matrix has nu only if Adam is grafted.

    left, right: moving averages of g g* and g* g of each block of a matrix, (n, blocks, b, b);
    left_root, right_root: their inverse roots. None for a leaf that is not a matrix.
    """

    count: Counter
    mu: Slots
    nu: Slots
    left: Slots
    right: Slots
    left_root: Slots
    right_root: Slots


class Grid(NamedTuple):
    """How matrices are cut into blocks of equal size; the last ones are padded with zeros."""

    rows: int
    columns: int
    height: int
    width: int

    @property
    def counts(self) -> tuple[int, int]:
        """How many rows and columns of blocks there are."""
        return -(-self.rows // self.height), -(-self.columns // self.width)

    def cut(self, x: Array) -> Array:
        """Matrices ``(n, rows, columns)`` as ``(n, blocks, height, width)``."""
        down, across = self.counts
        fill = down * self.height - self.rows, across * self.width - self.columns
        x = jnp.pad(x, ((0, 0), (0, fill[0]), (0, fill[1])))
        x = x.reshape(len(x), down, self.height, across, self.width).swapaxes(2, 3)
        return x.reshape(len(x), down * across, self.height, self.width)

    def joined(self, x: Array) -> Array:
        """The matrices that were cut into these blocks."""
        down, across = self.counts
        x = x.reshape(len(x), down, across, self.height, self.width).swapaxes(2, 3)
        x = x.reshape(len(x), down * self.height, across * self.width)
        return x[:, : self.rows, : self.columns]


def blocks_of(rows: int, columns: int, size: int) -> Grid:
    """Grid of at most `size` rows and columns; a side of at most `size` is not cut."""
    return Grid(rows, columns, max(min(rows, size), 1), max(min(columns, size), 1))


def _squares(size: int) -> dict[str, FactorFn]:
    def side(axis: int) -> FactorFn:
        def factor(matrices: Matrices, p: Array) -> Array:
            blocks = blocks_of(matrices.rows, matrices.columns, size)
            n = (blocks.height, blocks.width)[axis]
            count = blocks.counts[0] * blocks.counts[1]
            return full((matrices.sizes[0], count, n, n), 0, compute_dtype(p.dtype), beside=p)

        return factor

    return {"left": side(0), "right": side(1), "left_root": side(0), "right_root": side(1)}


@transformation(update_size=UPDATE_SIZE)
def scale_by_shampoo(
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    eps: NonNegative = 1e-12,
    precondition_frequency: PositiveCount = 10,
    block_size: PositiveInt = 1024,
    root: PositiveInt = 4,
    grafting: Grafting = "adam",
    grafting_eps: NonNegative = 1e-8,
    *,
    root_method: RootMethod = "eigen",
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Multiply a matrix from both sides by inverse roots of its gradients' second moments.

    For each block of a matrix,

    .. math::
        L_t &= \beta_2 L_{t-1} + (1 - \beta_2) g_t g_t^*, \qquad
        R_t = \beta_2 R_{t-1} + (1 - \beta_2) g_t^* g_t, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \\
        P_t &= \left(\frac{L_t}{1 - \beta_2^t} + \epsilon I\right)^{-1/p}, \qquad
        Q_t = \left(\frac{R_t}{1 - \beta_2^t} + \epsilon I\right)^{-1/p}
            \qquad \text{if } T \mid t, \text{ otherwise as before}, \\
        d_t &= P_t \frac{\mu_t}{1 - \beta_1^t} Q_t, \qquad
        u_t = d_t \frac{\lVert a_t \rVert}{\lVert d_t \rVert}

    where :math:`a_t`, the step of the method whose length is grafted on, is
    :math:`\hat\mu_t / (\sqrt{\hat\nu_t} + \epsilon_a)` (Adam's) or :math:`\hat\mu_t` (that of SGD
    with momentum). Until the first roots, :math:`u_t = a_t`. A root that is not finite, because the
    decomposition or the iteration failed, is discarded: the previous one stays. Leaves that are not
    matrices take the steps of :func:`scale_by_adam`.

    Args:
        b1: :math:`\beta_1`, decay of the momentum, in :math:`[0, 1)`.
        b2: :math:`\beta_2`, decay of the second moments, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`, added to the eigenvalues.
        precondition_frequency: :math:`T \ge 1`, steps from one root to the next. Between them none
            is computed.
        block_size: the most rows and columns of a block, at least 1.
        root: `p`, at least 1: 4 for Shampoo, 2 if each factor is to do as much as both together.
        grafting: ``"adam"``, ``"sgd"`` or ``"none"``, for which :math:`u_t = d_t`, and
            :math:`\hat\mu_t` until the first roots.
        grafting_eps: :math:`\epsilon_a \ge 0`; also of the leaves that are not matrices.
        root_method: ``"eigen"``, by eigenvalues, or ``"newton"``, by the coupled Newton iteration,
            which consists of products, but in float32 needs an :math:`\epsilon` of at least 1e-6 of
            the largest eigenvalue.
        staggered: each batch of matrices of one shape gets its new roots one step earlier than the
            batch before it, so that no one step computes them all.
        mu_dtype: the type of the momentum; the parameter's unless given.
        weight_dimension_numbers: as in :func:`scale_by_soap`.

    State: `ScaleByShampooState`; factors and roots in float32 or wider.

    Raises:
        ValueError: `block_size` or `root` is less than 1, or a name is unknown.

    The authors' code can also sum second moments (:math:`\beta_2 = 1`); this always averages them.

    Source: V. Gupta, T. Koren and Y. Singer, Shampoo: Preconditioned Stochastic Tensor
    Optimization, 2018, arXiv:1802.09568; R. Anil et al., Scalable Second Order Optimization for
    Deep Learning, 2020, arXiv:2002.09018 (blocks, grafting, Newton); H.-J. M. Shi et al., A
    Distributed Data-Parallel PyTorch Implementation of the Distributed Shampoo Optimizer for
    Training Neural Networks At-Scale, 2023, arXiv:2309.06497.

    >>> tx = scale_by_shampoo(precondition_frequency=1, grafting="none")
    >>> g = jnp.array([[3.0, -1.0], [3.0, 1.0]])
    >>> (10 * tx.update(g, tx.init(g))[0]).astype(int).tolist()
    [[7, -7], [7, 7]]
    """
    check_choice("scale_by_shampoo", "grafting", grafting, get_args(Grafting))
    check_choice("scale_by_shampoo", "root_method", root_method, get_args(RootMethod))
    inverse_root = eigen_inverse_root if root_method == "eigen" else newton_inverse_root
    with_nu = grafting == "adam"

    def momentum(p: Array) -> dict[str, Array]:
        return {"mu": zero_mean(p, mu_dtype)}

    def squares(p: Array) -> dict[str, Array]:
        return {"nu": zeros_like(p, accumulator_dtype(p))}

    @precise
    def rule(g: Array, s: Any, t: Step) -> Any:
        new = {"mu": ema(g, s.mu, b1)} | ({"nu": ema(abs_sq(g), s.nu, b2)} if with_nu else {})
        grafted = mean = debias(new["mu"], b1, t)
        if with_nu:
            grafted = divide(mean, numerics.root(debias(new["nu"], b2, t)) + grafting_eps)
        blocks = blocks_of(g.shape[1], g.shape[2], block_size)
        cut = blocks.cut(g)
        left, right = gram(cut, s.left, b2), gram(cut.mT.conj(), s.right, b2)

        def fresh(roots: tuple[Array, Array]) -> tuple[Array, Array]:
            here = t.branched()  # what is computed in this branch is not known outside of it
            means = (debias(x, b2, here) for x in (left, right))
            first, second = (inverse_root(x, root, eps) for x in means)
            return finite_or(first, roots[0]), finite_or(second, roots[1])

        due = (t.count + (s.group if staggered else 0)) % precondition_frequency == 0
        roots = branch(due, fresh, lambda roots: roots, (s.left_root, s.right_root))
        d, a = roots[0] @ blocks.cut(mean) @ roots[1], blocks.cut(grafted)
        has_roots = frobenius_norm(d) > 0
        ratio = 1.0 if grafting == "none" else divide(frobenius_norm(a), frobenius_norm(d))
        u = blocks.joined(jnp.where(has_roots, d * ratio, a))
        factors = {"left": left, "right": right, "left_root": roots[0], "right_root": roots[1]}
        return u, new | factors

    return matrixwise(
        ScaleByShampooState,
        (lambda p: momentum(p) | squares(p)) if with_nu else momentum,
        rule,
        MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers),
        factors=_squares(block_size),
        on_others=adam_of(b1, b2, grafting_eps),
        slots_of_others=None if with_nu else squares,
    )


@optimizer(update_size=UPDATE_SIZE)
def shampoo(
    learning_rate: NonNegative,
    b1: Decay = 0.9,
    b2: Decay = 0.99,
    eps: NonNegative = 1e-12,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    precondition_frequency: PositiveCount = 10,
    block_size: PositiveInt = 1024,
    root: PositiveInt = 4,
    grafting: Grafting = "adam",
    grafting_eps: NonNegative = 1e-8,
    *,
    root_method: RootMethod = "eigen",
    staggered: bool = False,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Shampoo: gradients multiplied from both sides by inverse roots of their second moments.

    For each block of a matrix,

    .. math::
        L_t &= \beta_2 L_{t-1} + (1 - \beta_2) g_t g_t^*, \qquad
        R_t = \beta_2 R_{t-1} + (1 - \beta_2) g_t^* g_t, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) g_t, \\
        d_t &= \left(\frac{L_s}{1 - \beta_2^s} + \epsilon I\right)^{-1/p}
            \frac{\mu_t}{1 - \beta_1^t}
            \left(\frac{R_s}{1 - \beta_2^s} + \epsilon I\right)^{-1/p}, \\
        \theta_t &= \theta_{t-1} - \eta \left( \frac{\lVert a_t \rVert}{\lVert d_t \rVert} d_t
            + \lambda \theta_{t-1} \right)

    where `s` is the last multiple of `T` and :math:`a_t` Adam's step, as
    :func:`scale_by_shampoo` says in full. Leaves that are not matrices take the steps of
    :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        b1: :math:`\beta_1`, decay of the momentum; this and the next two as in
            :func:`scale_by_shampoo`.
        b2: :math:`\beta_2`, decay of the second moments.
        eps: :math:`\epsilon`, added to the eigenvalues.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        precondition_frequency: `T`, steps from one root to the next; this and the rest as in
            :func:`scale_by_shampoo`.
        block_size: the most rows and columns of a block.
        root: `p`.
        grafting: whose length a step has: Adam's, that of SGD with momentum, or its own.
        grafting_eps: Adam's epsilon.
        root_method: by eigenvalues or by the coupled Newton iteration.
        staggered: new roots of different shapes at different steps.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: which leaves are matrices, and how.

    Source: V. Gupta, T. Koren and Y. Singer, Shampoo: Preconditioned Stochastic Tensor
    Optimization, 2018, arXiv:1802.09568; R. Anil et al., Scalable Second Order Optimization for
    Deep Learning, 2020, arXiv:2002.09018.

    >>> import gradtx
    >>> tx = shampoo(0.1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((2, 2)), tx, max_steps=300)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    >>> shampoo(0.1, block_size=4).init(jnp.zeros((8, 3)))[0].left.shape
    (1, 2, 4, 4)
    """
    return descent(
        scale_by_shampoo(
            b1,
            b2,
            eps,
            precondition_frequency,
            block_size,
            root,
            grafting,
            grafting_eps,
            root_method=root_method,
            staggered=staggered,
            mu_dtype=mu_dtype,
            weight_dimension_numbers=weight_dimension_numbers,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
