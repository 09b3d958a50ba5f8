"""Weights of constant size: steps of a constant angle on a sphere."""

from typing import Any, NamedTuple

from gradtx.checks import NonNegative
from gradtx.composition.around import InnerStep, around
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers, each_matrix
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.engine.lift import needed
from gradtx.leaves.matrix_layout import MatrixDimensions, as_matrices
from gradtx.leaves.paths import leaves_with_path
from gradtx.linalg.linear_algebra import with_root_mean_square
from gradtx.numerics import root_mean_square, widen
from gradtx.types import Array, DimensionNumbers, InnerState, Params, Slots, State, Updates


class HyperballState(NamedTuple):
    """radius: real, ``(batch, 1, 1)`` for each leaf; inner_state: the optimizer's."""

    radius: Slots
    inner_state: InnerState


@transformation
def hyperball(
    inner: GradientTransformation,
    learning_rate: NonNegative,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Keep the norm of every matrix constant, and take steps of one relative size.

    .. math:: W_t = R\, n\bigl(W_{t-1} + \eta R\, n(u_t)\bigr), \qquad
        n(X) = \frac{X}{\lVert X \rVert_F}

    with the updates :math:`u_t` of an optimizer, and :math:`R = \lVert W_0 \rVert_F`. This takes
    the place of weight decay, with which the norm would settle at a value that depends only on
    hyperparameters.

    Args:
        inner: the optimizer. Only the direction of its updates of matrices counts, not its learning
            rate; other leaves move by its updates as they are.
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None is not
            treated as a matrix. Unless given, the leaves with two dimensions are matrices.

    State: `HyperballState`, in a `ScheduledState` for a schedule. A matrix of zeros stays one.

    Raises:
        ValueError: ``update`` is called without parameters.
        TypeError: the gradient of a matrix is `Rows`.

    Source: K. Wen et al., Fantastic Pretraining Optimizers and Where to Find Them II: Hyperball
    Optimization, 2026, arXiv:2606.16899, whose :math:`u_t` has the other sign.

    >>> import gradtx, jax.numpy as jnp
    >>> tx, w = hyperball(gradtx.adam(1.0), 0.1), jnp.array([[3.0, 4.0]])
    >>> state = tx.init(w)
    >>> for _ in range(50):
    ...     updates, state = tx.update(2 * (w - jnp.array([[9.0, 0.0]])), state, w)
    ...     w = gradtx.apply_updates(w, updates)
    >>> bool(jnp.allclose(w, jnp.array([[5.0, 0.0]]), atol=0.6))
    True
    >>> round(float(jnp.linalg.norm(w)), 4)
    5.0
    """
    name = "hyperball"
    tx = with_extra_args_support(inner)
    dimensions = MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers)

    def init(params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        radii: list[Any] = []
        for (path, p), number in zip(leaves, dimensions.of(name, params), strict=True):
            if p is None or number is None:
                radii.append(None)
            else:
                radii.append(_size(as_matrices(name, path, p.shape, number).take(widen(p))))
        return HyperballState(treedef.unflatten(radii), tx.init(params))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        params = needed(name, updates, params)
        moved, inner_state = inner_step(updates, state.inner_state, params)

        def turned(u: Array, w: Array, radius: Array) -> Array:
            step = learning_rate * with_root_mean_square(u, radius)
            return with_root_mean_square(w + step, radius) - w

        numbers = weight_dimension_numbers
        out = each_matrix(name, turned, numbers, moved, params, state.radius)
        return out, HyperballState(state.radius, inner_state)

    return around(tx, init, run)


def _size(x: Array) -> Array:
    return root_mean_square(x, (-2, -1)).number
