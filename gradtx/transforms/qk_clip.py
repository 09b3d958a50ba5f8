"""QK-clip: scaling the weights of queries and keys to keep attention logits below a threshold."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import Positive, check_patterns
from gradtx.composition.without_state import without_state
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
)
from gradtx.engine.lift import needed, refused_rows
from gradtx.leaves.paths import aligned, leaves_with_path, mask_tree, matches, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import cast, real_dtype, widen
from gradtx.types import Array, Params, Updates


class ClippedHeads(NamedTuple):
    r"""Where in an array the heads are, and what it is multiplied by.

    axis: along which the heads lie side by side; power: of :math:`\gamma`; heads: how many there
    are, if fewer than logits, as with grouped queries: then several in a row share one, which takes
    their least :math:`\gamma`.
    """

    axis: int
    power: float = 0.5
    heads: int | None = None


@transformation
def qk_clip(
    heads: Mapping[str, ClippedHeads], threshold: Positive = 100.0
) -> GradientTransformation:
    r"""After the step, shrink the queries and keys of heads whose attention logits grew too large.

    .. math:: \gamma_h = \min\Bigl(1, \frac{\tau}{S_h}\Bigr), \qquad
        u_h \leftarrow \gamma_h^{\alpha} (\theta_h + u_h) - \theta_h

    with :math:`S_h` the largest logit of head `h` in this step's batch. Put it last in a chain,
    after the learning rate.

    Args:
        heads: by path pattern, where a leaf has its heads and its power :math:`\alpha`: 1/2 for
            queries and keys; in multi-head latent attention 1/2 for the parts without position, 1
            for the queries with position, and none (no pattern) for the shared keys with position.
        threshold: :math:`\tau > 0`.

    ``update`` takes the logits as the extra argument ``max_logits``: an array ``(heads,)``, or
    ``(layers, heads)`` for layers stacked along the first axis, or a dict of these by the
    path pattern of a layer, ``{"layers/3/attention": ...}``. Without it, where they were not
    measured, nothing is clipped.

    State: none.

    Raises:
        ValueError: a pattern matches no leaf, a leaf has no logits or several, its axis cannot be
            divided into the heads, or ``update`` is called without parameters.
        TypeError: the update of a leaf with heads is `Rows`.

    Source: Kimi Team, Kimi K2: Open Agentic Intelligence, 2025, arXiv:2507.20534, algorithm 1.

    >>> import gradtx
    >>> tx = gradtx.chain(gradtx.sgd(0.0), qk_clip({"q": ClippedHeads(1), "k": ClippedHeads(1)}))
    >>> p = {"q": jnp.ones((1, 4)), "k": jnp.ones((1, 4)), "v": jnp.ones((1, 4))}
    >>> updates, _ = tx.update(p, tx.init(p), p, max_logits=jnp.array([50.0, 400.0]))
    >>> gradtx.apply_updates(p, updates)["q"].tolist()
    [[1.0, 1.0, 0.5, 0.5]]
    """
    if not isinstance(heads, Mapping):
        raise TypeError(f"qk_clip: heads must be a dict, not {heads!r:.80}")
    check_patterns("qk_clip: heads", heads)
    clipped = {pattern: ClippedHeads(*where) for pattern, where in heads.items()}

    def shrunk(
        updates: Updates, params: Params | None, *, max_logits: Any = None, **extra_args: Any
    ) -> Updates:
        params = needed("qk_clip", updates, params)
        if max_logits is None:
            return updates
        leaves, treedef = leaves_with_path(updates)
        ps = aligned(
            "qk_clip: updates and parameters are different trees", updates, treedef, params
        )
        out = []
        for (path, u), p in zip(leaves, ps, strict=True):
            where = of_path("qk_clip: heads", clipped, path_string(path), required=False)
            if u is None or where is None:
                out.append(u)
                continue
            if is_rows(u):
                raise refused_rows("qk_clip", path)
            logits = max_logits
            if isinstance(max_logits, Mapping):
                logits = of_path("qk_clip: max_logits", max_logits, path_string(path))
            wide, p = widen(u), widen(jnp.asarray(p))
            logits = jnp.asarray(logits, real_dtype(wide.dtype))
            factor = _factor(path_string(path), p.shape, where, logits, threshold)
            out.append(cast(factor * (p + wide) - p, u.dtype))
        return treedef.unflatten(out)

    # A mask of these patterns is refused unless each matches a leaf.
    return without_state(shrunk, check=lambda params: mask_tree(params, tuple(clipped)))


def of_path(what: str, choices: Mapping[str, Any], path: str, *, required: bool = True) -> Any:
    """The value of the one pattern that matches a path."""
    matching = [pattern for pattern in choices if matches(path, pattern)]
    if len(matching) > 1 or (required and not matching):
        names = " and ".join(map(repr, matching)) or f"none of {', '.join(choices)}"
        raise ValueError(f"{what}: {path!r} matches {names}")
    return choices[matching[0]] if matching else None


def _factor(
    path: str, shape: tuple[int, ...], where: ClippedHeads, logits: Array, threshold: Any
) -> Array:
    """What a leaf is multiplied by, in a shape that broadcasts to its own."""
    gamma = jnp.where(logits > threshold, threshold / logits, 1)
    *layers, measured = logits.shape if logits.ndim else (0,)
    count = measured if where.heads is None else where.heads
    inside = -len(shape) <= where.axis < len(shape)
    axis = where.axis % len(shape) if inside else 0
    if (
        not inside
        or not count
        or measured % count
        or shape[axis] % count
        or tuple(layers) != shape[: len(layers)]
        or axis < len(layers)
    ):
        raise ValueError(
            f"qk_clip: {path!r}, of shape {shape}, has no {count or 'heads'} heads along axis "
            f"{where.axis} for max_logits of shape {logits.shape}"
        )
    least = jnp.min(gamma.reshape(*layers, count, measured // count), -1)
    entries = jnp.repeat(least**where.power, shape[axis] // count, axis=-1)
    ones = [1] * (len(shape) - len(layers))
    ones[axis - len(layers)] = shape[axis]
    return entries.reshape(*layers, *ones)
