"""Rules on matrices: one rule is lifted over all matrices of a tree.

:mod:`gradtx.leaves.matrix_layout` says which axes of a leaf are rows and columns, and
:mod:`gradtx.engine.matrix_batches` runs the rule.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Rule, Scope
from gradtx.engine.lift import (
    RuleFn,
    SlotsFn,
    Start,
    each_slots,
    label_of,
    lift,
    reads_params,
)
from gradtx.engine.matrix_batches import Batched, OnLeafFn, in_batches, with_owners
from gradtx.engine.scopes import scope
from gradtx.leaves.matrix_layout import (
    Matrices,
    MatrixDimensions,
    as_matrices,
    axes_of,
    names_axes,
)
from gradtx.leaves.shardings import shardings_are_known
from gradtx.numerics import accumulator_dtype, full, zeros_like
from gradtx.types import Array, PyTree, slot_fields

# What the file of a matrix rule imports.
__all__ = [
    "FactorFn",
    "Matrices",
    "MatrixDimensions",
    "as_matrices",
    "axes_of",
    "matrixwise",
    "names_axes",
    "one_for_each_column",
    "one_for_each_row",
]

FactorFn = Callable[[Matrices, Array], Array]


def one_for_each_row(matrices: Matrices, p: Array) -> Array:
    """A real factor that begins with a zero for each row of each matrix."""
    return full((matrices.sizes[0], matrices.rows), 0, accumulator_dtype(p), beside=p)


def one_for_each_column(matrices: Matrices, p: Array) -> Array:
    """A real factor that begins with a zero for each column of each matrix."""
    return full((matrices.sizes[0], matrices.columns), 0, accumulator_dtype(p), beside=p)


@scope
def matrixwise(
    state: type,
    slots: SlotsFn | None,
    rule: RuleFn,
    dimensions: MatrixDimensions,
    *,
    on_entries: RuleFn | None = None,
    factors: Mapping[str, FactorFn] | None = None,
    on_leaf: OnLeafFn | None = None,
    on_others: RuleFn | None = None,
    slots_of_others: SlotsFn | None = None,
    start: Start | None = None,
) -> GradientTransformation:
    """Lift a rule that treats each matrix independently: products, roots, singular values.

    Matrices of one shape and type go through the rule as one batch, whichever leaves they are in:
    what is traced, compiled and launched does not grow with their number.

    Args:
        state: a state class, as in :func:`elementwise`.
        slots: ``p -> {name: array}``, slots of the shape of the parameter: those of `on_entries` if
            there is one; otherwise of `rule`, which sees them as batches like the gradient's. None
            if each begins as zeros like the parameter, or there are none.
        rule: ``(g, s, t) -> (direction, {name: new factor})`` of a batch `g` of shape
            ``(n, rows, columns)``; each factor has the batch in front. ``s.group`` numbers the
            batches of a tree from 0, and each batch has its own `Key`, as has each leaf that goes
            through a rule by itself.
        dimensions: which axes of each leaf are rows and columns, and which leaves are not matrices:
            those go through `on_entries` or `on_others` only.
        on_entries: a rule as in :func:`elementwise`, such as a momentum, that every leaf goes
            through first, by itself.
        factors: ``{name: (matrices, p) -> array}``, the slots of `rule` for one leaf, with first
            dimension ``matrices.sizes[0]``: one number for each matrix, row or column, or square
            factors. A leaf that is not a matrix has None.
        on_leaf: ``(before, after, matrices) -> direction``, a final step on each leaf, in its own
            shape.
        on_others: without `on_entries`, a rule as in :func:`leafwise` for leaves that are not
            matrices; unless it is given, these are left as they are.
        slots_of_others: ``p -> {name: array}``, slots that `on_others` has besides `slots`. A leaf
            that is a matrix has None, or the factor of that name.
        start: the initial values of the fields other than slots and counters.

    Raises:
        ValueError: a leaf lacks axes that its numbers name.
        TypeError: an argument is of another kind; a gradient is `Rows`, since a matrix is
            transformed as a whole.

    >>> import gradtx, jax.numpy as jnp
    >>> from typing import NamedTuple
    >>> class Numbers(NamedTuple):
    ...     reduction_axis: int = 0
    ...     output_axis: int = 1
    >>> @gradtx.transformation
    ... def unit_columns():
    ...     def rule(g, s, t):
    ...         return g / jnp.linalg.norm(g, axis=1, keepdims=True), {}
    ...
    ...     return matrixwise(gradtx.EmptyState, None, rule, MatrixDimensions(None, Numbers))
    >>> tx = unit_columns()
    >>> tx.update(jnp.array([[3.0], [4.0]]), tx.init(jnp.zeros((2, 1))))[0].round(1).tolist()
    [[0.6000000238418579], [0.800000011920929]]
    """
    if not isinstance(dimensions, MatrixDimensions):
        raise TypeError(f"matrixwise: dimensions must be MatrixDimensions, not {dimensions!r:.80}")
    lifted = Rule(Scope.MATRIX, state, rule, on_rows=False)
    label = label_of(rule)
    factor_functions, of_others = dict(factors or {}), slots_of_others or (lambda p: {})
    some = bool(factor_functions or slots_of_others)

    def zeros(p: Array) -> dict[str, Any]:
        others = {*factor_functions, *of_others(p)}
        return {name: zeros_like(p) for name in slot_fields(state) if name not in others}

    def first(params: PyTree, leaves: list[Any], paths: list[Any]) -> list[Any]:
        initial_slots: list[Any] = each_slots(state, slots or zeros)(params, leaves, paths)
        numbers = dimensions.of(label, params)
        for i, number in enumerate(numbers if some else ()):
            p = leaves[i]
            if p is not None:
                how = None if number is None else as_matrices(label, paths[i], p.shape, number)
                if how is None:
                    initial_slots[i] |= dict.fromkeys(factor_functions) | of_others(p)
                else:
                    initial_slots[i] |= dict.fromkeys(of_others(p)) | {
                        n: f(how, p) for n, f in factor_functions.items()
                    }
        if shardings_are_known() and (factor_functions or on_entries is None):
            with_owners(label, batched, numbers, leaves, paths, initial_slots)
        return initial_slots

    alone = on_entries or on_others
    batched = Batched(rule, tuple(factor_functions), on_entries is None, on_leaf)
    transform = in_batches(batched, dimensions, alone, every=on_entries is not None)
    takes_params = alone is not None and reads_params(alone)
    return lift(lifted, first, transform, start=start, takes_params=takes_params)
