"""GaLore."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp

from gradtx.checks import LearningRate, NonNegative, Number, PositiveInt, check_choice
from gradtx.composition.around import InnerStep, around
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
    with_extra_args_support,
)
from gradtx.declarations.declaration import Formerly
from gradtx.engine.leaves import gradient, load, store
from gradtx.engine.lift import refused_rows
from gradtx.engine.matrices import Matrices, MatrixDimensions, as_matrices, axes_of, names_axes
from gradtx.leaves.paths import Where, is_leaf, leaves_with_path, path_string
from gradtx.leaves.rows import is_rows
from gradtx.linalg.decompositions import singular_vectors
from gradtx.numerics import cast, increment, widen
from gradtx.numerics.control import branch
from gradtx.optimizers.adam import scale_by_adam
from gradtx.optimizers.fira import is_due
from gradtx.transforms.decay import descent
from gradtx.types import (
    Array,
    Counter,
    DimensionNumbers,
    InnerState,
    Params,
    PyTree,
    Slots,
    State,
    Updates,
)


class GaLoreDimensionNumbers(NamedTuple):
    """Which axes of an array are the rows of a matrix and which the columns; none is left out.

    reduction_axis: the rows, one axis or several; output_axis: the columns.
    """

    reduction_axis: Sequence[int] | int = 0
    output_axis: Sequence[int] | int = 1


class GaLoreState(NamedTuple):
    """count: i32[]; base_optimizer_state: that of projected gradients; projector: (side, r).

    With both sides projected, the projector of the rows stands above that of the columns, in one
    array. The projector of a leaf that is not projected has shape (0, 0).
    """

    count: Counter
    base_optimizer_state: InnerState
    projector: Slots


ProjType: TypeAlias = Literal["std", "reverse_std", "left", "right", "full"]


class _LowRankProjection:
    """How one leaf is projected: onto the first singular vectors of one of its sides, or both."""

    def __init__(self, path: Any, x: Array, numbers: Any, rank: int, proj_type: str) -> None:
        self.matrices: Matrices = as_matrices("scale_by_galore", path, x.shape, numbers)
        rows, columns = self.matrices.rows, self.matrices.columns
        named = [
            axis
            for axes in (numbers.reduction_axis, numbers.output_axis)
            for axis in axes_of(axes, x.ndim)
        ]
        if len(named) != x.ndim or self.matrices.sizes[0] > 1:
            raise ValueError(
                f"scale_by_galore: at {path_string(path)!r}, {numbers} must name all {x.ndim} axes "
                f"of an array of shape {x.shape}, as one matrix"
            )
        tall = rows >= columns
        short, long = ("right", "left") if tall else ("left", "right")
        sides = {"std": (short,), "reverse_std": (long,), "full": ("left", "right")}
        # The side from which a projector is multiplied: from the left, it projects the rows.
        self.sides = sides.get(proj_type, (proj_type,))
        self.rank = min(rank, rows, columns)
        self.options = f"rank={rank} and proj_type={proj_type!r}"
        left, right = (side in self.sides for side in ("left", "right"))
        self.shape = rows * left + columns * right, self.rank
        self.low = self.rank if left else rows, self.rank if right else columns

    def matrix(self, g: Array) -> Array:
        """The matrix that a gradient is."""
        return widen(gradient(self.matrices.take(g)[0], None))

    def leaf(self, u: Array) -> Array:
        """A matrix in the shape of its leaf."""
        return self.matrices.put(u[None])

    def projector(self, g: Array, old: Array, due: Array) -> Array:
        """The projector of this step: if one is due, made from the gradient."""
        if tuple(old.shape) != self.shape:
            raise ValueError(
                f"scale_by_galore: a projector of the shape {tuple(old.shape)} is not that of "
                f"{self.options}, {self.shape}; with proj_type='reverse_std' states of Optax go on"
            )
        return branch(due, lambda g, old: store(old, self.vectors(g)), lambda g, old: old, g, old)

    def vectors(self, g: Array) -> Array:
        """The first singular vectors of each projected side."""
        vectors = dict(zip(("left", "right"), singular_vectors(g), strict=True))
        return jnp.concatenate([vectors[side][:, : self.rank] for side in self.sides])

    def _bases(self, p: Array) -> tuple[Array | None, Array | None]:
        """The projectors of the rows and of the columns; None for a side that is not projected."""
        left = p[: self.matrices.rows] if "left" in self.sides else None
        right = p[-self.matrices.columns :] if "right" in self.sides else None
        return left, right

    def down(self, g: Array, p: Array) -> Array:
        """The gradient in the subspace."""
        left, right = self._bases(p)
        g = g if left is None else left.mT.conj() @ g
        return g if right is None else g @ right

    def up(self, u: Array, p: Array) -> Array:
        """The direction of the whole matrix, from that in the subspace."""
        left, right = self._bases(p)
        u = u if left is None else left @ u
        return u if right is None else u @ right.mT.conj()


def _projections(
    dimensions: MatrixDimensions, rank: int, proj_type: str, tree: PyTree
) -> tuple[list[Any], Any, list[_LowRankProjection | None]]:
    """The leaves of a tree, its structure, and how each leaf is projected, if it is."""
    leaves, treedef = leaves_with_path(tree)
    for path, x in leaves:
        if is_rows(x):
            raise refused_rows("scale_by_galore", path)
    numbers = dimensions.of("scale_by_galore", tree)
    leaf_projections = [
        None if x is None or n is None else _LowRankProjection(path, x, n, rank, proj_type)
        for (path, x), n in zip(leaves, numbers, strict=True)
    ]
    return [x for _, x in leaves], treedef, leaf_projections


def _first_projector(p: Array, projection: _LowRankProjection | None) -> Array:
    """Zeros, in the shape of the leaf's projector."""
    return jnp.zeros((0, 0) if projection is None else projection.shape, p.dtype)


def _dimensions(declared: DimensionNumbers | None) -> MatrixDimensions:
    """The dimension numbers of all leaves, where one `GaLoreDimensionNumbers` may be for them."""

    def of_leaf(x: Any) -> Any:
        projected = x is not None and (x.ndim == 2 or (declared is not None and x.ndim > 2))
        return declared or GaLoreDimensionNumbers() if projected else None

    def of_leaves(tree: PyTree) -> PyTree:
        return jax.tree.map(of_leaf, tree, is_leaf=is_leaf)

    of_each = declared is None or names_axes(declared)
    return MatrixDimensions(of_leaves if of_each else declared, GaLoreDimensionNumbers)


@transformation
def scale_by_galore(
    rank: PositiveInt = 128,
    update_proj_gap: PositiveInt = 200,
    scale: Number = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    *,
    staggered: bool = False,
    proj_type: Annotated[ProjType, Formerly("reverse_std")] = "std",
) -> Any:
    r"""Transform gradients in a low-rank subspace.

    .. math:: u = \alpha P\, \rho(P^\top g)

    with :math:`P \in \mathbb{R}^{m \times r}` the first `r` left singular vectors of the gradient
    at every `T`-th step, and :math:`\rho` the base transformation; a matrix with more rows than
    columns, or as many, is multiplied from the right. The slots of :math:`\rho` have only `r` rows
    (or columns).

    Args:
        rank: :math:`r \ge 1`, at most the shorter side of a matrix.
        update_proj_gap: :math:`T \ge 1`, steps from one projector to the next.
        scale: :math:`\alpha`.
        base_optimizer: :math:`\rho`, which must need no parameters; `scale_by_adam()` unless given.
        weight_dimension_numbers: `GaLoreDimensionNumbers` for all leaves with at least two
            dimensions, a tree of them or a prefix of it, or a function from the parameters to such
            a tree, as `ByRole` is; a leaf whose numbers are None is not projected. Unless given,
            the leaves with two dimensions are.
        staggered: each leaf gets its later projectors one step earlier than the one before it, so
            that no one of these steps computes them all.
        proj_type: which side of a matrix is projected: ``"std"``, the shorter one, as in the paper
            and by default in the authors' code; ``"reverse_std"``, the longer one, as in Optax,
            whose moments are smaller and whose projectors are larger; ``"left"``, the rows;
            ``"right"``, the columns; or ``"full"``, both, so that the slots of :math:`\rho` are
            :math:`r \times r` and :math:`u = \alpha P \rho(P^\top g\, Q)\, Q^\top` with `Q` the
            right singular vectors. These are the authors' names. A matrix of as many rows as
            columns is projected from the right by ``"std"``, from the left by ``"reverse_std"``.

    State: `GaLoreState`. Products alone, as :func:`scale_by_soap` has them, find a whole basis,
    without an order; here only the first vectors of one gradient are wanted.

    Raises:
        ValueError: dimension numbers do not name every axis of their leaf once, there is no such
            `proj_type`, or a state was made with another.

    Products and decomposition are taken in at least float32, and complex matrices are projected
    with the conjugate transpose; Optax multiplies in the gradient's type, and only transposes. A
    state from Optax, or from a gradtx without `proj_type`, is one of ``"reverse_std"``;
    configurations and pickles without the argument are read as that.

    Source: J. Zhao et al., GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection,
    2024, arXiv:2403.03507, algorithm 2.

    >>> tx = scale_by_galore(rank=1)
    >>> tx.init(jnp.zeros((6, 4))).base_optimizer_state.mu.shape
    (6, 1)
    """
    check_choice("scale_by_galore", "proj_type", proj_type, get_args(ProjType))
    base = with_extra_args_support(scale_by_adam() if base_optimizer is None else base_optimizer)

    dimensions = _dimensions(weight_dimension_numbers)
    projections = partial(_projections, dimensions, rank, proj_type)

    # By hand rather than by `matrixwise`: this wraps another transformation, which sees all leaves,
    # the projected ones in other shapes.
    def init(params: Params) -> State:
        leaves, treedef, leaf_projections = projections(params)
        pairs = list(zip(leaves, leaf_projections, strict=True))
        projectors = [None if p is None else _first_projector(p, how) for p, how in pairs]
        low = [p if how is None else jnp.zeros(how.low, p.dtype) for p, how in pairs]
        inner = base.init(treedef.unflatten(low))
        return GaLoreState(jnp.zeros([], jnp.int32), inner, treedef.unflatten(projectors))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        del params
        leaves, treedef, leaf_projections = projections(updates)
        projectors = treedef.flatten_up_to(state.projector)
        low, axes = list(leaves), dict[int, Array]()
        for i, projection in enumerate(leaf_projections):
            if projection is None:
                continue
            g = projection.matrix(leaves[i])
            due = is_due(state.count, update_proj_gap, len(axes) if staggered else 0)
            projectors[i] = projection.projector(g, projectors[i], due)
            axes[i] = load(projectors[i])
            low[i] = cast(projection.down(g, axes[i]), leaves[i].dtype)
        inner, base_state = inner_step(treedef.unflatten(low), state.base_optimizer_state)
        out = treedef.flatten_up_to(inner)
        for i, projection in enumerate(leaf_projections):
            if projection is not None:
                full = projection.leaf(projection.up(widen(out[i]), axes[i]))
                out[i] = cast(scale * full, leaves[i].dtype)
        new = GaLoreState(increment(state.count), base_state, treedef.unflatten(projectors))
        return treedef.unflatten(out), new

    return around(base, init, run)


@optimizer
def galore(
    learning_rate: LearningRate,
    rank: PositiveInt = 128,
    update_proj_gap: PositiveInt = 200,
    scale: Number = 1.0,
    base_optimizer: GradientTransformation | None = None,
    weight_decay: NonNegative = 0.0,
    mask: Where | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    *,
    staggered: bool = False,
    proj_type: Annotated[ProjType, Formerly("reverse_std")] = "std",
) -> GradientTransformation:
    r"""GaLore: Adam, or another rule, on gradients projected onto a low-rank subspace.

    .. math::
        P_t &= \begin{cases}
            \text{the first } r \text{ left singular vectors of } g_t
                & \text{if } T \mid t - 1, \\
            P_{t-1} & \text{otherwise,} \end{cases} \\
        h_t &= P_t^\top g_t, \qquad
        \mu_t = \beta_1 \mu_{t-1} + (1 - \beta_1) h_t, \qquad
        \nu_t = \beta_2 \nu_{t-1} + (1 - \beta_2) |h_t|^2, \\
        \theta_t &= \theta_{t-1} - \eta \left(\alpha P_t
            \frac{\mu_t / (1 - \beta_1^t)}{\sqrt{\nu_t / (1 - \beta_2^t)} + \epsilon}
            + \lambda \theta_{t-1}\right)

    A matrix with more rows than columns, or as many, is projected from the right; so the shorter
    side is, as in the paper and by default in the authors' code. Optax projects the longer one:
    ``proj_type="reverse_std"`` does as it does. Leaves that are not projected take the same steps
    with :math:`\alpha = 1` and :math:`P = I`. Here :math:`\beta_1 = 0.9`,
    :math:`\beta_2 = 0.999` and :math:`\epsilon = 10^{-8}`; another `base_optimizer` takes the
    place of this Adam.

    Args:
        learning_rate: :math:`\eta`, below 0 to ascend; a number, an array, or a schedule.
        rank: :math:`r`, that of the subspace; this and the next three as in
            :func:`scale_by_galore`.
        update_proj_gap: :math:`T`, steps from one projector to the next.
        scale: :math:`\alpha`, a factor of the direction of projected leaves.
        base_optimizer: transforms the projected gradients; `scale_by_adam()` unless given.
        weight_decay: :math:`\lambda \ge 0`, multiplied by the learning rate.
        mask: which parameters decay, as in :func:`add_decayed_weights`.
        weight_dimension_numbers: which leaves are matrices, and how.
        staggered: later projectors of different leaves at different steps.
        proj_type: which side of a matrix is projected, as in :func:`scale_by_galore`.

    Source: J. Zhao et al., GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection,
    2024, arXiv:2403.03507, algorithm 2.

    >>> import gradtx
    >>> tx = galore(0.1, rank=1)
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), jnp.zeros((6, 4)), tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    >>> gradtx.get_slot(result.state, "mu").shape
    (6, 1)
    """
    return descent(
        scale_by_galore(
            rank,
            update_proj_gap,
            scale,
            base_optimizer,
            weight_dimension_numbers,
            staggered=staggered,
            proj_type=proj_type,
        ),
        learning_rate,
        weight_decay,
        mask,
    )
