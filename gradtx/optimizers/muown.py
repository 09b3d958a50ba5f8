"""Muown."""

import functools
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Decay, NonNegative, PositiveInt
from gradtx.composition.around import InnerStep, around
from gradtx.composition.chain import chain
from gradtx.composition.matrices import MuonDimensionNumbers, matrices_and_others
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
    with_extra_args_support,
)
from gradtx.engine.lift import needed, refused_rows
from gradtx.engine.matrices import Matrices, MatrixDimensions, as_matrices
from gradtx.leaves.paths import aligned, is_leaf, leaves_with_path, merge, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast, norm, widen
from gradtx.optimizers.adam import adamw
from gradtx.optimizers.muon import scale_by_muon, scale_by_shape
from gradtx.programs.tracing import traced_once
from gradtx.transforms.orthogonal import STANDARD
from gradtx.transforms.scaling import scale_by_learning_rate
from gradtx.types import Array, DimensionNumbers, DType, Params, Slots, State, StateOf, Updates

_LEAST = 1e-12  # the size of an output whose weights are all 0


class SizesAndDirectionsState(NamedTuple):
    """The slots of sizes and of directions.

    size: of the weights of each output, ``(batch, columns)``; length: of its direction, which is
    not kept; sizes and directions: the states of their optimizers.
    """

    size: Slots
    length: Slots
    sizes: Annotated[State, StateOf("sizes")]
    directions: Annotated[State, StateOf("directions")]


@transformation
def sizes_and_directions(
    sizes: GradientTransformation,
    directions: GradientTransformation,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Train the size of each output's weights with one optimizer and their direction with another.

    .. math:: W_j = m_j \frac{V_j}{\lVert V_j \rVert}, \qquad
        \frac{\partial L}{\partial m_j} = \Bigl\langle g_j, \frac{W_j}{m_j} \Bigr\rangle, \qquad
        \frac{\partial L}{\partial V_j} = \frac{m_j}{\lVert V_j \rVert}
        \Bigl(g_j - \frac{\partial L}{\partial m_j} \frac{W_j}{m_j}\Bigr)

    for each output (each column) `j` of a matrix, without a change to the model. `V` starts as `W`
    and is made from it again at each step; only its lengths are kept.

    Args:
        sizes: the optimizer of `m`.
        directions: the optimizer of `V`.
        weight_dimension_numbers: as in :func:`scale_by_muon`.

    State: `SizesAndDirectionsState`. Its sizes are those that the weights have if the update is
    applied as it is; after a wrapper that changes it, such as :func:`cautious`, the weights have
    others, and the next update leads from there to the sizes of the state. Where neither optimizer
    moves, as at rates of 0, a weight may move by rounding, since it is made again from both.

    Raises:
        ValueError: ``update`` is called without parameters, or a leaf is not a matrix.

    Source: T. Salimans and D. Kingma, Weight Normalization, 2016, arXiv:1602.07868, inside the
    optimizer as in K. Lion et al., Muown: Row-Norm Control for Muon Optimization, 2026,
    arXiv:2605.10797.

    >>> import gradtx
    >>> tx, w = sizes_and_directions(gradtx.sgd(0.0), gradtx.sgd(0.1)), jnp.array([[3.0], [4.0]])
    >>> new = w + tx.update(jnp.ones((2, 1)), tx.init(w), w)[0]
    >>> round(float(jnp.linalg.norm(new)), 4)
    5.0
    """
    name = "sizes_and_directions"
    dimensions = MatrixDimensions(weight_dimension_numbers, MuonDimensionNumbers)
    on_each = functools.partial(_on_each, name, dimensions)
    of_sizes, of_directions = map(with_extra_args_support, (sizes, directions))

    def init(params: Params) -> State:
        size = _tree_like(params, on_each(_lengths_of_weights, params))
        length = jax.tree.map(jnp.copy, size)  # a buffer cannot be donated twice
        start = of_directions.init(jax.tree.map(widen, params))
        return SizesAndDirectionsState(size, length, of_sizes.init(size), start)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed(name, updates, params)
        parts = on_each(_derivatives, updates, params, state.size, state.length)
        by_size, by_direction, v = (_tree_like(updates, each) for each in _columns(parts, 3))
        moved, sizes_state = of_sizes.update(
            by_size, state.sizes, state.size, **inner_step.extra_args
        )
        turned, directions_state = inner_step(by_direction, state.directions, v)
        size = merge(tree.add(state.size, moved), state.size)  # a leaf may have no gradient
        ends = on_each(_update, turned, v, size, params)
        out, length = (_tree_like(updates, each) for each in _columns(ends, 2))
        length = merge(length, state.length)
        return out, SizesAndDirectionsState(size, length, sizes_state, directions_state)

    return around(of_directions, init, run)


def _on_each(
    name: str,
    dimensions: MatrixDimensions,
    function: Callable[..., Any],
    tree: Any,
    *others: Any,
) -> list[Any]:
    """``function(matrices, leaf, ...)`` of each leaf and those of trees like it.

    It is traced once for all leaves that are alike; a leaf that is None is left out.
    """
    leaves, treedef = leaves_with_path(tree)
    numbers = dimensions.of(name, tree)
    columns = [aligned(f"{name}: two trees differ", tree, treedef, t) for t in others]
    alike: dict[Matrices, list[int]] = {}
    for i, (path, x) in enumerate(leaves):
        if x is None:
            continue
        if is_rows(x):
            raise refused_rows(name, path)
        if numbers[i] is None:
            raise ValueError(
                f"{name}: the dimension numbers of {path_string(path)!r} are None, and every "
                "leaf must be a matrix: use muown, or a mask"
            )
        alike.setdefault(as_matrices(name, path, x.shape, numbers[i]), []).append(i)
    by_index: dict[int, Any] = {}
    for matrices, members in alike.items():
        calls = [(leaves[i][1], *(column[i] for column in columns)) for i in members]
        results = traced_once(name, functools.partial(function, matrices), calls)
        by_index |= zip(members, results, strict=True)
    return [by_index[i] for i in sorted(by_index)]


def _lengths(x: Array) -> Array:
    """The length of each column of each matrix, in at least float32."""
    return jnp.squeeze(norm(x, -2, costly=True).number, -2)


def _lengths_of_weights(matrices: Matrices, p: Array) -> Array:
    """The first sizes: the length of the weights of each output, not quite 0."""
    return jnp.maximum(_lengths(matrices.take(widen(p))), _LEAST)


def _derivatives(matrices: Matrices, g: Array, p: Array, size: Array, length: Array) -> Any:
    """The derivatives by size and direction, and the direction."""
    g, unit = matrices.take(widen(g)), matrices.take(widen(p)) / size[:, None]
    by_size = jnp.sum((unit.conj() * g).real, -2)
    by_direction = (size / length)[:, None] * (g - unit * by_size[:, None])
    return by_size, matrices.put(by_direction), matrices.put(unit * length[:, None])


def _update(matrices: Matrices, step: Array, v: Array, size: Array, p: Array) -> Any:
    """The update, and the length of the new direction."""
    v = matrices.take(v) + matrices.take(widen(step))
    length = jnp.maximum(_lengths(v), _LEAST)
    new = matrices.put((size / length)[:, None] * v)
    return cast(new - widen(p), p.dtype), length


def _tree_like(tree: Any, leaves: Iterable[Any]) -> Any:
    """A tree with these leaves where `tree` has some, None where that has None."""
    rest = iter(leaves)
    return jax.tree.map(lambda x: None if x is None else next(rest), tree, is_leaf=is_leaf)


def _columns(rows: list[Any], count: int) -> list[list[Any]]:
    """The first results of all leaves, the second ones, and so on: also if there is no leaf."""
    return [[row[i] for row in rows] for i in range(count)]


@optimizer
def muown(
    learning_rate: NonNegative,
    decay: Decay = 0.95,
    b1: Decay = 0.9,
    b2: Decay = 0.95,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    *,
    nesterov: bool = False,
    ns_coeffs: Any = STANDARD,
    ns_steps: PositiveInt = 5,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""Muown: Muon for the direction of each output's weights, AdamW for their size.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) \frac{\partial L}{\partial V}, \qquad
            V_t = V_{t-1} - 0.2\, \eta \sqrt{\max(d_{in}, d_{out})}\; \mathrm{NS}(\mu_t), \\
        m_t &= \mathrm{AdamW}_{\eta, \beta_1, \beta_2, \epsilon, \lambda}
            \Bigl(m_{t-1}, \frac{\partial L}{\partial m}\Bigr), \qquad
            W_{t,j} = m_{t,j} \frac{V_{t,j}}{\lVert V_{t,j} \rVert}

    with the derivatives of :func:`sizes_and_directions`. Leaves that are not matrices take the
    steps of :func:`adamw`.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        decay: :math:`\beta` in :math:`[0, 1)`.
        b1: decay of the first moment of sizes, in :math:`[0, 1)`.
        b2: decay of the second, in :math:`[0, 1)`.
        eps: :math:`\epsilon \ge 0`; also added to the norm by which the first iterate is divided.
        weight_decay: :math:`\lambda \ge 0` of the sizes, and of the other leaves.
        nesterov: orthogonalize :math:`\beta \mu_t + (1 - \beta) \partial L / \partial V`.
        ns_coeffs: this and the next two as in :func:`scale_by_muon`.
        ns_steps: how many iterations.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type in which :math:`\mu` is kept; float32 or wider unless given.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, Muown takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Raises:
        ValueError: ``update`` is called without parameters.

    Source: K. Lion et al., Muown: Row-Norm Control for Muon Optimization, 2026, arXiv:2605.10797,
    algorithm 1. Their rows are the columns of `MuonDimensionNumbers`: the weights of one output.

    >>> import gradtx
    >>> tx = muown(gradtx.cosine_decay_schedule(0.3, 200))
    >>> start = jnp.array([[0.5, -0.5], [1.0, 2.0]])
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1) ** 2), start, tx, max_steps=200)
    >>> bool(jnp.allclose(result.params, 1, atol=1e-2))
    True
    """

    def matrices(numbers: Any) -> GradientTransformation:
        directions = chain(
            scale_by_muon(
                ns_coeffs,
                ns_steps,
                decay,
                eps,
                mu_dtype,
                nesterov=nesterov,
                bias_correction=False,
                weight_dimension_numbers=numbers,
                ns_dtype=ns_dtype,
            ),
            scale_by_shape(None, numbers, scale="moonshot"),
            scale_by_learning_rate(learning_rate),
        )
        sizes = adamw(learning_rate, b1, b2, eps, weight_decay=weight_decay)
        return sizes_and_directions(sizes, directions, numbers)

    others = adamw(learning_rate, weight_decay=weight_decay) if others is None else others
    return matrices_and_others("muown", matrices, others, weight_dimension_numbers)
