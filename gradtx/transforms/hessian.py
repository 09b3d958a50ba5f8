"""Estimators of the diagonal of the Hessian, in place of the updates."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx import tree
from gradtx.checks import Positive
from gradtx.core.pair import (
    GradientTransformation,
    GradientTransformationExtraArgs,
    transformation,
    with_extra_args_support,
)
from gradtx.engine.lift import needed
from gradtx.leaves.paths import leaves_with_path, map_present, path_string
from gradtx.leaves.rows import is_rows
from gradtx.numerics import abs_sq, cast, widen
from gradtx.types import Array, Key, Params, PyTree, State, Updates
from gradtx.types.keys import check_key, own_key


class HutchinsonState(NamedTuple):
    """key: a random key."""

    key: Key


def check_real_arrays(where: str, updates: Updates) -> None:
    """Raise TypeError if a gradient is complex or `Rows`."""
    for path, g in leaves_with_path(updates)[0]:
        if is_rows(g) or jnp.iscomplexobj(g):
            kind = "is Rows of a table" if is_rows(g) else "is complex"
            raise TypeError(
                f"{where}: the gradient at {path_string(path)!r} {kind}; the diagonal of the "
                "Hessian is that of whole real arrays"
            )


def chosen_estimator(estimator: GradientTransformation | None) -> GradientTransformation:
    """The estimator that an optimizer was passed, else Hutchinson's."""
    return with_extra_args_support(
        hutchinson_estimator_diag_hessian() if estimator is None else estimator
    )


def asked(
    where: str, updates: Updates, params: Params | None, extra_args: dict[str, Any]
) -> tuple[Updates, Params, dict[str, Any]]:
    """What an optimizer calls its estimator with: wide gradients, parameters, and the loss."""
    params = needed(where, updates, params)
    check_real_arrays(where, updates)
    # The estimate has the type of the gradients: squares must not be rounded to 16 bits.
    wide = tree.map_updates(lambda g: widen(jnp.asarray(g)), updates)
    if extra_args.get("obj_fn") is None:
        extra_args = {**extra_args, "obj_fn": extra_args.get("value_fn")}
    return wide, params, extra_args


def _estimator(
    where: str, random_seed: Any, estimate: Callable[[Array, Params, dict[str, Any]], PyTree]
) -> GradientTransformation:
    """A transformation whose updates are ``estimate(key, params, extra_args)``."""
    seed = 0 if random_seed is None else random_seed
    check_key(where, "random_seed", seed)

    def update(
        updates: Updates, state: State, params: Params | None = None, **extra_args: Any
    ) -> tuple[Updates, State]:
        params = needed(where, updates, params)
        check_real_arrays(where, updates)
        key, subkey = jax.random.split(state.key)
        diagonal = estimate(subkey, params, extra_args) if jax.tree.leaves(params) else params
        diagonal = map_present(lambda g, h: cast(h, g.dtype), updates, diagonal)
        return diagonal, HutchinsonState(key)

    return GradientTransformationExtraArgs(lambda params: HutchinsonState(own_key(seed)), update)


@transformation
def hutchinson_estimator_diag_hessian(random_seed: Any = None) -> GradientTransformation:
    r"""Hutchinson's estimate of the diagonal of the Hessian, in place of the updates.

    .. math:: \hat h = r \odot \nabla^2 f(\theta)\, r, \qquad r_i = \pm 1 \text{ at random}

    Args:
        random_seed: a random key or an integer seed; 0 by default.

    ``update`` takes the loss as an extra argument: ``obj_fn``, a function of the parameters as in
    Optax, or ``value_fn``, which :func:`minimize`, :func:`make_step` and :func:`solve` pass. The
    product with the Hessian costs about two gradients.

    State: `HutchinsonState`.

    Raises:
        ValueError: ``update`` is called without parameters or without a loss.
        TypeError: a leaf is complex or `Rows`.

    Source: M. F. Hutchinson, A Stochastic Estimator of the Trace of the Influence Matrix, 1990;
    H. Liu et al., Sophia, 2023, arXiv:2305.14342, algorithm 1 (there with normal `r`).

    >>> tx = hutchinson_estimator_diag_hessian()
    >>> p = jnp.array([1.0, 2.0])
    >>> tx.update(p, tx.init(p), p, obj_fn=lambda p: jnp.sum(p**3))[0].tolist()
    [6.0, 12.0]
    """

    def estimate(key: Array, params: Params, extra_args: dict[str, Any]) -> PyTree:
        loss = extra_args.get("obj_fn") or extra_args.get("value_fn")
        if loss is None:
            raise ValueError(
                "hutchinson_estimator_diag_hessian: the Hessian is of a loss, so update needs "
                "obj_fn or value_fn; minimize, make_step and solve pass it"
            )
        signs = tree.random_like(key, params, jax.random.rademacher, jnp.float32)
        signs = tree.cast_like(signs, params)
        _, product = jax.jvp(jax.grad(loss), (params,), (signs,))
        return tree.mul(product, signs)

    return _estimator("hutchinson_estimator_diag_hessian", random_seed, estimate)


@transformation
def gnb_estimator_diag_hessian(
    sampled_loss_fn: Callable[..., Any], batch_size: Positive, random_seed: Any = None
) -> GradientTransformation:
    r"""The Gauss-Newton-Bartlett estimate of the diagonal of the Hessian.

    .. math:: \hat h = B\, \hat g \odot \hat g, \qquad
        \hat g = \nabla_\theta \frac{1}{B} \sum_{b=1}^{B} \ell(f_\theta(x_b), \hat y_b), \quad
        \hat y_b \sim p(\cdot \mid f_\theta(x_b))

    It is never negative, and costs one gradient.

    Args:
        sampled_loss_fn: ``(params, key, *sample_args) -> value``, the mean loss :math:`\ell` of a
            batch on labels :math:`\hat y` that it draws from what the model predicts (no gradient
            goes through the draw). ``update`` takes ``sample_args``, a tuple, such as the inputs of
            the batch, as an extra argument.
        batch_size: :math:`B`, the number of draws in the mean.
        random_seed: a random key or an integer seed; 0 by default.

    State: `HutchinsonState`.

    Raises:
        ValueError: ``update`` is called without parameters.
        TypeError: a leaf is complex or `Rows`.

    Source: H. Liu et al., Sophia: A Scalable Stochastic Second-order Optimizer for Language Model
    Pre-training, 2023, arXiv:2305.14342, algorithm 2.

    >>> def sampled_loss(params, key, x):
    ...     logits = x @ params
    ...     labels = jax.random.categorical(key, logits)
    ...     return -jax.nn.log_softmax(logits)[jnp.arange(len(x)), labels].mean()
    >>> tx, p = gnb_estimator_diag_hessian(sampled_loss, batch_size=8), jnp.ones((3, 2))
    >>> h, _ = tx.update(p, tx.init(p), p, sample_args=(jnp.ones((8, 3)),))
    >>> h.shape, bool((h >= 0).all())
    ((3, 2), True)
    """

    def estimate(key: Array, params: Params, extra_args: dict[str, Any]) -> PyTree:
        arguments = extra_args.get("sample_args", ())
        grads = jax.grad(lambda p: sampled_loss_fn(p, key, *arguments))(params)
        return jax.tree.map(lambda g: batch_size * abs_sq(widen(g)), grads)

    return _estimator("gnb_estimator_diag_hessian", random_seed, estimate)
