"""Complex leaves as pairs of real ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import OnPart
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.leaves.paths import is_leaf
from gradtx.leaves.rows import is_rows
from gradtx.transforms.parameter_averages import averaged
from gradtx.types import InnerState, Params, PyTree, State, Updates


class SplitRealAndImaginaryArrays(NamedTuple):
    """The real and imaginary parts of a complex array."""

    real: Any
    imaginary: Any


class SplitRealAndImaginaryState(NamedTuple):
    """inner_state: the inner transformation's, on the parts."""

    inner_state: InnerState

    def eval_params(self, params: Params) -> Params:
        """The parameters with the averages of their parts."""
        return from_real_pairs(averaged(self.inner_state, real_pairs(params)))


def real_pairs(tree: PyTree) -> PyTree:
    """The tree with the two parts of each complex leaf in its place."""

    def on_leaf(x: Any) -> Any:
        if is_rows(x):
            if not jnp.iscomplexobj(x.values):
                return x
            parts = x.with_values(x.values.real), x.with_values(x.values.imag)
            return SplitRealAndImaginaryArrays(*parts)
        if x is None or not jnp.iscomplexobj(x):
            return x
        return SplitRealAndImaginaryArrays(jnp.real(x), jnp.imag(x))

    return jax.tree.map(on_leaf, tree, is_leaf=is_leaf)


def _is_pair(x: Any) -> bool:
    return is_leaf(x) or isinstance(x, SplitRealAndImaginaryArrays)


def from_real_pairs(tree: PyTree) -> PyTree:
    """The inverse of :func:`real_pairs`."""

    def on_leaf(x: Any) -> Any:
        if not isinstance(x, SplitRealAndImaginaryArrays):
            return x
        if is_rows(x.real):
            return x.real.with_values(jax.lax.complex(x.real.values, x.imaginary.values))
        return jax.lax.complex(x.real, x.imaginary)

    return jax.tree.map(on_leaf, tree, is_leaf=_is_pair)


@transformation
def split_real_and_imaginary(inner: GradientTransformation) -> GradientTransformation:
    """Run a transformation on the real and the imaginary parts of complex leaves.

    Args:
        inner: the transformation; it sees real leaves only. Real leaves pass unchanged.

    State: `SplitRealAndImaginaryState`; the slots of a complex leaf are
    `SplitRealAndImaginaryArrays`. Give it the conjugate of what ``jax.grad`` returns;
    :func:`minimize` and :func:`compute_gradients` already conjugate.

    >>> import gradtx
    >>> tx = split_real_and_imaginary(gradtx.scale_by_sign())
    >>> complex(tx.update(jnp.complex64(2 - 3j), tx.init(jnp.complex64(0)))[0])
    (1-1j)
    """
    tx = with_extra_args_support(inner)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        parts = None if params is None else real_pairs(params)
        inner_step = inner_step.seen_as(from_real_pairs, real_pairs)
        new, inner_state = inner_step(real_pairs(updates), state.inner_state, parts)
        return from_real_pairs(new), SplitRealAndImaginaryState(inner_state)

    def init(params: Params) -> State:
        return SplitRealAndImaginaryState(tx.init(real_pairs(params)))

    def on_part(_: int, function: Callable[[Any], Any], tree: PyTree) -> PyTree:
        return from_real_pairs(function(real_pairs(tree)))

    return around(tx, init, run, facets=(OnPart(on_part),))
