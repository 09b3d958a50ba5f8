"""Learning rates that decay with the distance of a layer from the outputs."""

import re
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from gradtx.checks import Fraction, NonNegativeInt
from gradtx.composition.chain import chain
from gradtx.composition.roles import ByRole
from gradtx.composition.without_state import without_state
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.leaves.paths import aligned, leaves_with_path, path_string, select
from gradtx.leaves.rows import is_rows
from gradtx.leaves.whole import whole_of
from gradtx.numerics import cast, widen
from gradtx.types import Params, PyTree, Updates


@optimizer
def layerwise_rate_decay(
    inner: GradientTransformation,
    decay: Fraction = 0.75,
    depth: Callable[[str, Any], Any] | None = None,
    top: NonNegativeInt | None = None,
) -> GradientTransformation:
    r"""Multiply the updates of each layer by a power of its distance from the outputs.

    .. math:: u \leftarrow \rho^{D - d}\, u

    Nearly all optimizers multiply their updates by the learning rate. There the factor gives each
    layer a learning rate of its own, for decoupled weight decay too. Put links that must see the
    whole step, such as :func:`ema_params`, after this one in a chain.

    Args:
        inner: the optimizer.
        decay: :math:`\rho` in :math:`[0, 1]`.
        depth: :math:`d` for each leaf: a function ``(path, leaf) -> depth``, an integer of at least
            0, or for a stack of layers one for each entry of the first axis, such as
            ``range(1, 13)``. Unless given, it is 1 plus the first number in the path
            (``"encoder/layers/3/mlp/kernel"`` is at 4); without a number it is 0 for embeddings, by
            their names as in `ByRole` or by ``embed`` in the path, and :math:`D` for other leaves,
            such as a head and the norm before it.
        top: :math:`D \ge 0`; unless given, the largest depth, plus 1 for the leaves after all
            layers if `depth` is not given. Pass it where the optimizer sees a part of the
            parameters.

    State: that of ``chain(inner, ...)``.

    Raises:
        ValueError: no path has a number and `depth` is not given; or a depth is negative, above
            `top`, or one of a list of another length than the leaf.
        TypeError: the update of a leaf with a list of depths is `Rows`.

    Optax, Keras and PyTorch have no such function: there each layer is a group of parameters with
    a learning rate of its own.

    Source: K. Clark et al., ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
    Generators, 2020, arXiv:2003.10555, and H. Bao et al., BEiT: BERT Pre-Training of Image
    Transformers, 2022, arXiv:2106.08254, whose depths these are.

    >>> import gradtx, jax
    >>> layer = {"w": jnp.zeros(1)}
    >>> p = {"embed": jnp.zeros((2, 1)), "head": jnp.zeros(1), "layers": [layer, layer]}
    >>> tx = layerwise_rate_decay(gradtx.sgd(1.0), 0.5)
    >>> grads = gradtx.tree.full_like(p, -1.0)
    >>> updates, _ = tx.update(grads, tx.init(p), p)
    >>> [float(u.ravel()[0]) for u in jax.tree.leaves(updates)]
    [0.125, 1.0, 0.25, 0.5]
    """
    return chain(inner, _scale_by_depth(decay, depth, top))


@transformation
def _scale_by_depth(
    decay: Fraction, depth: Callable[[str, Any], Any] | None, top: NonNegativeInt | None
) -> GradientTransformation:
    def scaled(updates: Updates, params: Params | None, **extra_args: Any) -> Updates:
        del extra_args
        tree = updates if params is None else params
        depths = _depths(whole_of(tree), depth, top)
        keyed, treedef = leaves_with_path(updates)
        problem = "layerwise_rate_decay: the updates and the parameters are different trees"
        aligned(problem, updates, treedef, tree)
        return treedef.unflatten(
            [g if g is None else _scaled(path_string(p), g, decay, depths) for p, g in keyed]
        )

    return without_state(scaled, check=lambda params: _depths(params, depth, top))


def _scaled(path: str, g: Any, decay: Any, distances: dict[str, Any]) -> Any:
    distance = distances[path]
    if np.ndim(distance) and is_rows(g):
        raise TypeError(
            f"layerwise_rate_decay: the update at {path!r} is Rows, and each of its rows has a "
            "depth of its own: make it dense with dense_rows"
        )
    factor = decay ** np.reshape(distance, (-1, *[1] * (g.ndim - 1)) if np.ndim(distance) else ())
    if is_rows(g):
        return g.with_values(cast(widen(g.values) * factor, g.dtype))
    return cast(widen(jnp.asarray(g)) * factor, g.dtype)


def _depths(tree: PyTree, depth: Any, top: int | None) -> dict[str, Any]:
    """How far each leaf is below the top: a number, or one for each entry of the first axis."""
    leaves = {path_string(p): x for p, x in leaves_with_path(tree)[0] if x is not None}
    if depth is None:
        depths, highest = _by_number(tree, leaves)
    else:
        depths = {path: np.asarray(depth(path, x)) for path, x in leaves.items()}
        highest = max((int(np.max(d, initial=0)) for d in depths.values()), default=0)
    highest = highest if top is None else top
    for path, d in depths.items():
        if d is None:
            continue
        is_integer = np.issubdtype(np.asarray(d).dtype, np.integer)
        if not (is_integer and np.all(d >= 0) and np.all(d <= highest)):
            raise ValueError(
                f"layerwise_rate_decay: the depth of {path!r} must be an integer from 0 to "
                f"{highest}, not {d}"
            )
        if np.ndim(d) and np.shape(d) != np.shape(leaves[path])[:1]:
            raise ValueError(
                f"layerwise_rate_decay: {path!r} has the shape {np.shape(leaves[path])}, and "
                f"depth gives {np.size(d)} for the entries of its first axis"
            )
    return {path: np.int32(0) if d is None else highest - d for path, d in depths.items()}


def _by_number(tree: PyTree, leaves: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The depth of each leaf by its path, None for leaves at the top; and the depth of the top."""
    numbers = {path: re.search(r"\d+", path) for path in leaves}
    layers = {path: int(match[0]) + 1 for path, match in numbers.items() if match is not None}
    if leaves and not layers:
        raise ValueError(
            "layerwise_rate_decay: no path has the number of a layer; pass depth, a function "
            f"(path, leaf) -> depth; the leaves are {', '.join(leaves)}"
        )
    others = [path for path in leaves if path not in layers]
    roles = ByRole().roles(select(tree, lambda path, _: path in others)) if others else {}
    depths: dict[str, Any] = {}
    for path in leaves:
        embeds = "embed" in path.lower() or (path in roles and roles[path].kind == "embedding")
        depths[path] = layers.get(path, 0 if embeds else None)
    return depths, max(layers.values(), default=0) + 1
