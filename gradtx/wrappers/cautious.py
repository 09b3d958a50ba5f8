"""Cautious updates: keeping only the entries of an update that go against the gradient."""

from typing import Any

import jax.numpy as jnp

from gradtx.composition.around import InnerStep, around
from gradtx.core.pair import GradientTransformation, transformation
from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast, real_dtype, widen
from gradtx.numerics.compiler_hints import delay, planned
from gradtx.types import Array, DType, Params, State, Updates


@transformation(update_size="proportional")
def cautious(
    inner: GradientTransformation, *, flip_sign: bool = True, rescale: bool = True
) -> GradientTransformation:
    r"""Keep only the entries of an optimizer's updates that go against the gradient; scale them up.

    .. math:: \phi_i = [u_i g_i < 0], \qquad
        u \leftarrow \frac{\phi \odot u}{\max(\mathrm{mean}(\phi), 10^{-3})}

    with the mean over a leaf.

    Args:
        inner: the optimizer. What follows it in a chain is not masked: the paper adds the weight
            decay after the mask.
        flip_sign: whether `inner` flips the sign, as an optimizer does. Around a single
            ``scale_by_*``, whose updates point along the gradient, pass False:
            ``chain(cautious(scale_by_adam(), flip_sign=False), add_decayed_weights(0.1),
            scale_by_learning_rate(1e-3))`` is the paper's C-AdamW.
        rescale: whether to divide by the mean, as the authors' code does; the paper's algorithm 1
            adds a small number to it, and its algorithm 2 divides :math:`n` by
            :math:`\sum\phi + 1`.

    For complex numbers the real part of :math:`\bar u g` counts.

    State: that of `inner`.

    Raises:
        TypeError: a leaf is `Rows` of a table and `rescale` is on, which needs all of its rows.

    Source: K. Liang et al., Cautious Optimizers: Improving Training with One Line of Code, 2024,
    arXiv:2411.16085, algorithms 1 and 2.

    >>> import gradtx
    >>> tx = cautious(gradtx.sgd(1.0, momentum=0.5))
    >>> p = jnp.zeros(2)
    >>> state = tx.init(p)
    >>> for g in (jnp.array([4.0, 4.0]), jnp.array([4.0, -1.0])):
    ...     updates, state = tx.update(g, state, p)
    >>> updates.tolist()
    [-12.0, 0.0]
    """

    def descends(u: Array, g: Array, sign: Array) -> Array:
        # A NaN is kept: in its place a zero would hide that its slots never recover.
        return ~(sign * (jnp.conj(u) * widen(g)).real <= 0)

    def factor(mask: Array, dtype: DType) -> Array:
        return 1 / jnp.maximum(jnp.mean(mask, dtype=dtype), 1e-3)

    def rule(u: Array, g: Array, sign: Array) -> Array:
        mask = descends(u, g, sign)
        return jnp.where(mask, u, 0) * factor(mask, sign.dtype)

    def plan(u: Array, g: Array, sign: Array) -> Array:
        """The rule with a mask that is computed twice, so that it is not stored before its mean."""
        ratio = factor(descends(u, g, sign), sign.dtype)
        again = descends(u, g, delay(sign, after=ratio, on="all but cpu"))
        return jnp.where(again, u, 0) * ratio

    rescaled = planned(rule, plan)

    def masked(u: Array, g: Array) -> Array:
        wide = widen(u)
        sign = jnp.asarray(-1 if flip_sign else 1, real_dtype(wide.dtype))
        if rescale and u.size:
            return cast(rescaled(wide, g, sign), u.dtype)
        return cast(jnp.where(descends(wide, g, sign), wide, 0), u.dtype)

    def on_leaf(path: Any, u: Any, g: Any) -> Any:
        if u is None or g is None:
            return None
        if is_rows(g) and rescale:
            raise TypeError(
                f"cautious takes the mean over whole leaves and cannot run on the Rows at "
                f"{path_string(path)!r}: pass rescale=False, or make the gradient dense with "
                "to_dense()"
            )
        if is_rows(u):
            u = u.coalesce()
            return u.with_values(masked(u.values, g.coalesce().values))
        return masked(u, g.to_dense() if is_rows(g) else jnp.asarray(g))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        out, state = inner_step(updates, state, params)
        leaves, treedef = leaves_with_path(updates)
        moved = treedef.flatten_up_to(out)
        pairs = zip(leaves, moved, strict=True)
        return treedef.unflatten([on_leaf(path, u, g) for (path, g), u in pairs]), state

    return around(inner, None, run)
