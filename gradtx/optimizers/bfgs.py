"""BFGS with a dense inverse Hessian, and its self-scaled relatives."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from gradtx.checks import NonNegative
from gradtx.composition.chain import chain, identity
from gradtx.core.pair import GradientTransformation, optimizer, transformation
from gradtx.engine.tree import treewise
from gradtx.numerics import Step, compute_dtype, divide, zeros_like
from gradtx.numerics.precision import precise
from gradtx.optimizers.lbfgs import is_curved
from gradtx.transforms.scaling import scale, scale_by_learning_rate
from gradtx.transforms.zoom import scale_by_zoom_linesearch
from gradtx.tree import global_norm, sub
from gradtx.types import Array, Counter, PyTree, Slots, TreeScalar

# `(b, h, n) -> (tau, phi)`: how a member of Broyden's family weighs the old matrix.
Weights = Callable[[Array, Array, int], tuple[Array, Array]]


class ScaleByBFGSState(NamedTuple):
    r"""The inverse Hessian as approximated from all steps, and the last step.

    count: i32[]; params, updates: those of the previous step; directions: those of that step,
    in at least float32; inverse: `H`, a matrix with a row for each entry of the parameters (two for
    a complex one), in at least float32; is_initial: bool[], whether no pair has changed it yet.
    """

    count: Counter
    params: Slots
    updates: Slots
    directions: Slots
    inverse: TreeScalar
    is_initial: TreeScalar


class _Joined:
    """Leaves as one real vector, with zeros for leaves that are not there."""

    def __init__(self, leaves: list[Array], places: list[int], length: int) -> None:
        self.like, self.places, self.length = leaves, places, length
        self.complex = any(map(jnp.iscomplexobj, leaves))
        self.entries = length // 2 if self.complex else length

    def pack(self, leaves: list[Array]) -> Array:
        vector = jnp.zeros(self.entries, jnp.result_type(*leaves))
        for leaf, place in zip(leaves, self.places, strict=True):
            vector = vector.at[place : place + leaf.size].set(leaf.reshape(-1).astype(vector.dtype))
        return jnp.concatenate([vector.real, vector.imag]) if self.complex else vector

    def unpack(self, vector: Array) -> list[Array]:
        if self.complex:
            vector = vector[: self.entries] + 1j * vector[self.entries :]
        out = []
        for leaf, place in zip(self.like, self.places, strict=True):
            part = vector[place : place + leaf.size].reshape(leaf.shape)
            out.append((part if jnp.iscomplexobj(leaf) else part.real).astype(leaf.dtype))
        return out


class _CurvaturePair(NamedTuple):
    """A step and the change of the gradient along it.

    curvature: their product; start: the factor of the old matrix; image: that matrix times the
    change; h: the product of change and image, over the curvature.
    """

    step: Array
    change: Array
    curvature: Array
    start: Array
    image: Array
    h: Array

    def updated(self, matrix: Array, tau: Array, phi: Array) -> Array:
        """The inverse Hessian after the update of Broyden's family with these weights."""
        step, image = self.step, self.image
        of_image = divide(phi - 1, self.change @ image * tau)
        across = divide(-phi, self.curvature * tau)
        of_pair = (1 + divide(phi * self.h, tau)) / self.curvature
        return (
            divide(self.start, tau) * matrix
            + jnp.outer(step, of_pair * step + across * image)
            + jnp.outer(image, across * step + of_image * image)
        )


def _broyden(scaled: bool, weights: Weights) -> GradientTransformation:
    """The member of Broyden's family with these weights."""

    def slots(p: Array) -> dict[str, Array]:
        directions = zeros_like(p, compute_dtype(p.dtype))
        return {"params": zeros_like(p), "updates": zeros_like(p), "directions": directions}

    def start(params: list[Array]) -> dict[str, Any]:
        each = 2 if any(map(jnp.iscomplexobj, params)) else 1
        n = each * sum(p.size for p in params)
        return {"inverse": jnp.eye(n), "is_initial": True}

    @precise
    def rule(g: PyTree, s: Any, t: Step, p: PyTree, *, places: list[int]) -> Any:
        if not g:
            return g, {}
        matrix = s.inverse
        n = matrix.shape[0]
        vectors = _Joined(g, places, n)
        gradient = vectors.pack(g)
        step, change = vectors.pack(sub(p, s.params)), vectors.pack(sub(g, s.updates))
        before, direction = vectors.pack(s.updates), vectors.pack(s.directions)

        later = t.count > 1
        curvature = step @ change
        of_step, of_change, of_direction = map(global_norm, (step, change, direction))
        # After a step of zero only another direction can help: it starts again.
        anew = later & (of_step == 0)
        eps = jnp.finfo(step.dtype).eps
        curved = later & is_curved(curvature, of_step, of_change, eps)
        curvature = jnp.where(curved, curvature, 1)

        unscaled = s.is_initial & scaled
        start = jnp.where(unscaled & curved, divide(divide(curvature, of_change), of_change), 1)
        image = start * (matrix @ change)
        # The step is a multiple of the direction before it, which is `H` times that gradient.
        rate = divide(divide(-(step @ direction), of_direction), of_direction)
        b = divide(-rate * (step @ before), curvature)
        h = divide(change @ image, curvature)
        usual = unscaled | ~curved | ~(b > 0)
        tau, phi = weights(jnp.where(usual, 1, b), jnp.where(usual, 1, h), n)
        tau, phi = jnp.where(usual, 1, tau), jnp.where(usual, 1, phi)

        pair = _CurvaturePair(step, change, curvature, start, image, h)
        new = jnp.where(curved, pair.updated(matrix, tau, phi), matrix)
        new = jnp.where(anew, jnp.eye(n, dtype=new.dtype), new)
        initial = anew | (s.is_initial & ~curved)

        norm = global_norm(gradient)
        shorter = jnp.where(initial & scaled & (norm > 1), 1 / jnp.where(norm > 1, norm, 1), 1)
        out = vectors.unpack(shorter * (new @ gradient))
        return out, {
            "params": p,
            "updates": g,
            "directions": out,
            "inverse": new,
            "is_initial": initial,
        }

    return treewise(ScaleByBFGSState, slots, rule, start=start)


def _bfgs(b: Array, h: Array, n: int) -> tuple[Array, Array]:
    return jnp.ones_like(b), jnp.ones_like(b)


def _ssbfgs(b: Array, h: Array, n: int) -> tuple[Array, Array]:
    return 1 / jnp.maximum(b, 1), jnp.ones_like(b)


def _ssbroyden(b: Array, h: Array, n: int) -> tuple[Array, Array]:
    # By Cauchy's inequality `a` is negative only for rounding.
    a = jnp.maximum(b * h - 1, 0)
    rho = jnp.minimum(1, h / ((1 + a) * (1 + jnp.sqrt(a / (1 + a)))))
    # Where `1 / rho` would be the smaller, `b` is below a half, and so `rho` is 1.
    theta = jnp.maximum(divide(rho - 1, a), jnp.minimum(1, (1 - b) / b))
    sigma = jnp.maximum(1 + a * theta, rho)  # it is that, at least, but for rounding
    root = sigma ** (1 / (1 - n)) if n > 1 else jnp.ones_like(sigma)
    # Where `theta` is above 0 it is at most 1: `root` is the least, of `1 / theta` and `sigma` too.
    return jnp.minimum(1 / jnp.maximum(b, 1) * root, sigma), (1 - theta) / sigma


@transformation
def scale_by_bfgs(scale_init_precond: bool = True, self_scaled: bool = False) -> Any:
    r"""Multiply the gradient by a dense approximation of the inverse Hessian.

    With :math:`s_k = \theta_{k+1} - \theta_k`, :math:`y_k = g_{k+1} - g_k` and
    :math:`v_k = s_k / \langle y_k, s_k \rangle - H_k y_k / \langle y_k, H_k y_k \rangle`, the
    direction is :math:`H g` where `H` starts as the identity and

    .. math:: H_{k+1} = \frac{1}{\tau_k} \left( H_k
        - \frac{H_k y_k y_k^\top H_k}{\langle y_k, H_k y_k \rangle}
        + \langle y_k, H_k y_k \rangle v_k v_k^\top \right)
        + \frac{s_k s_k^\top}{\langle y_k, s_k \rangle}

    with :math:`\tau_k = 1` or, self-scaled,
    :math:`\tau_k = \min(1, \langle y_k, s_k \rangle / \langle s_k, H_k^{-1} s_k \rangle)`.

    Args:
        scale_init_precond: whether the first step is at most as long as 1, and `H` is
            :math:`\langle y, s \rangle / \langle y, y \rangle` times the identity before the first
            pair, whose :math:`\tau` is then 1.
        self_scaled: whether to make the old matrix larger where the last step shows less curvature
            than the matrix does.

    ``update`` needs `params`; all gradients must be of the same function.

    State: `ScaleByBFGSState`. For `n` parameters it holds :math:`n^2` numbers, 8 MB for 1,000 of
    them in float64, and a step takes time in proportion to :math:`n^2`. A leaf without a gradient
    keeps its rows. Complex numbers are two real ones.

    A pair is used only if :math:`\langle y, s \rangle > \varepsilon \lVert y \rVert \lVert s
    \rVert`, with the :math:`\varepsilon` of the type, so that `H` stays positive definite; after a
    step of zero `H` starts again.

    Source: J. Nocedal and S. J. Wright, Numerical Optimization, 2006, algorithm 6.1 and equation
    6.20, doi:10.1007/978-0-387-40065-5; M. Al-Baali, Numerical Experience with a Class of
    Self-Scaling Quasi-Newton Algorithms, 1998, doi:10.1023/A:1022608410710.

    >>> tx, x = scale_by_bfgs(), jnp.array([3.0, 4.0])
    >>> first, state = tx.update(2 * x, tx.init(x), x)
    >>> x = x - first
    >>> second, state = tx.update(2 * x, state, x)
    >>> bool(jnp.allclose(x - second, 0, atol=1e-5))
    True
    """
    return _broyden(scale_init_precond, _ssbfgs if self_scaled else _bfgs)


@transformation
def scale_by_ssbroyden(scale_init_precond: bool = True) -> Any:
    r"""Multiply the gradient by a dense inverse Hessian of the self-scaled Broyden family.

    With :math:`s_k = \theta_{k+1} - \theta_k`, :math:`y_k = g_{k+1} - g_k` and
    :math:`v_k = s_k / \langle y_k, s_k \rangle - H_k y_k / \langle y_k, H_k y_k \rangle`, the
    direction is :math:`H g` where `H` starts as the identity and

    .. math::
        H_{k+1} &= \frac{1}{\tau_k} \left( H_k
            - \frac{H_k y_k y_k^\top H_k}{\langle y_k, H_k y_k \rangle}
            + \phi_k \langle y_k, H_k y_k \rangle v_k v_k^\top \right)
            + \frac{s_k s_k^\top}{\langle y_k, s_k \rangle}, \\
        b &= \frac{\langle s, H^{-1} s \rangle}{\langle y, s \rangle}, \quad
            h = \frac{\langle y, H y \rangle}{\langle y, s \rangle}, \quad a = b h - 1, \quad
            \rho = \min\left(1, h \left(1 - \sqrt{a / (1 + a)}\right)\right), \\
        \theta &= \max\left(\frac{\rho - 1}{a},
            \min\left(\frac{1}{\rho}, \frac{1 - b}{b}\right)\right), \quad
            \sigma = 1 + a \theta, \quad \phi = \frac{1 - \theta}{\sigma}, \\
        \tau &= \min(1, 1 / b) \min(\sigma^{1 / (1 - n)}, 1 / \theta) \text{ if } \theta > 0,
            \text{ else } \min\left(\min(1, 1 / b)\, \sigma^{1 / (1 - n)}, \sigma\right)

    for `n` parameters.

    Args:
        scale_init_precond: whether the first step is at most as long as 1, and `H` is
            :math:`\langle y, s \rangle / \langle y, y \rangle` times the identity before the first
            pair, whose :math:`\tau` and :math:`\phi` are then 1.

    ``update`` needs `params`; all gradients must be of the same function. The rest is as in
    :func:`scale_by_bfgs`.

    State: `ScaleByBFGSState`.

    Source: M. Al-Baali and H. Khalfan, A Wide Interval for Efficient Self-Scaling Quasi-Newton
    Algorithms, 2005, doi:10.1080/10556780410001709448; J. F. Urbán, P. Stefanou and J. A. Pons,
    Unveiling the Optimization Process of Physics Informed Neural Networks, 2024, arXiv:2405.04230,
    after the code of its authors.

    >>> tx, x = scale_by_ssbroyden(), jnp.array([3.0, 4.0])
    >>> first, state = tx.update(2 * x, tx.init(x), x)
    >>> x = x - first
    >>> second, state = tx.update(2 * x, state, x)
    >>> bool(jnp.allclose(x - second, 0, atol=1e-5))
    True
    """
    return _broyden(scale_init_precond, _ssbroyden)


_SEARCH = scale_by_zoom_linesearch(max_linesearch_steps=20, initial_guess_strategy="one")


def _searched(
    rule: GradientTransformation,
    learning_rate: NonNegative | None,
    linesearch: GradientTransformation | None,
) -> GradientTransformation:
    rate = scale(-1.0) if learning_rate is None else scale_by_learning_rate(learning_rate)
    return chain(rule, rate, identity() if linesearch is None else linesearch)


@optimizer
def bfgs(
    learning_rate: NonNegative | None = None,
    scale_init_precond: bool = True,
    self_scaled: bool = False,
    linesearch: GradientTransformation | None = _SEARCH,
) -> GradientTransformation:
    r"""BFGS, plain or self-scaled, with a line search.

    .. math::
        H_{k+1} &= \frac{1}{\tau_k} \left( H_k
            - \frac{H_k y_k y_k^\top H_k}{\langle y_k, H_k y_k \rangle}
            + \langle y_k, H_k y_k \rangle v_k v_k^\top \right)
            + \frac{s_k s_k^\top}{\langle y_k, s_k \rangle}, \\
        \theta_{k+1} &= \theta_k - \eta_k H_k g_k \quad \text{with } \eta_k
            \text{ from the line search}

    with :math:`s`, `y`, `v` and :math:`\tau` as in :func:`scale_by_bfgs`. It is meant for smooth
    losses without noise of up to some thousand parameters; :func:`lbfgs` is for more. :func:`solve`
    runs it to the end and evaluates no point twice.

    Args:
        learning_rate: a factor on the direction before the line search; a number, an array, a
            schedule, or None for 1.
        scale_init_precond: whether to scale the first approximation. It saves the more evaluations
            the larger and steeper a problem is: Rosenbrock's function of 100 variables takes 50
            instead of 425. Some small problems do better without: that of Freudenstein and Roth
            takes 15 instead of 22.
        self_scaled: whether :math:`\tau` may be below 1 (SSBFGS).
        linesearch: finds :math:`\eta`; None for no line search, in which case give a learning rate.

    State: for `n` parameters :math:`n^2` numbers and more.

    Source: J. Nocedal and S. J. Wright, Numerical Optimization, 2006, algorithm 6.1,
    doi:10.1007/978-0-387-40065-5; M. Al-Baali, Numerical Experience with a Class of Self-Scaling
    Quasi-Newton Algorithms, 1998, doi:10.1023/A:1022608410710.

    >>> import gradtx
    >>> result = gradtx.solve(lambda x: jnp.sum((x - 1.0) ** 4), jnp.zeros(3), bfgs(), tol=1e-4)
    >>> int(result.status) == gradtx.Status.CONVERGED
    True
    """
    return _searched(scale_by_bfgs(scale_init_precond, self_scaled), learning_rate, linesearch)


@optimizer
def ssbroyden(
    learning_rate: NonNegative | None = None,
    scale_init_precond: bool = True,
    linesearch: GradientTransformation | None = _SEARCH,
) -> GradientTransformation:
    r"""The self-scaled Broyden method (SSBroyden) with a line search.

    .. math::
        H_{k+1} &= \frac{1}{\tau_k} \left( H_k
            - \frac{H_k y_k y_k^\top H_k}{\langle y_k, H_k y_k \rangle}
            + \phi_k \langle y_k, H_k y_k \rangle v_k v_k^\top \right)
            + \frac{s_k s_k^\top}{\langle y_k, s_k \rangle}, \\
        \theta_{k+1} &= \theta_k - \eta_k H_k g_k \quad \text{with } \eta_k
            \text{ from the line search}

    with :math:`s`, `y`, `v`, :math:`\tau` and :math:`\phi` as in :func:`scale_by_ssbroyden`. It is
    meant for smooth losses without noise that are badly scaled, such as those of networks that
    solve differential equations, with up to some thousand parameters.

    Args:
        learning_rate: a factor on the direction before the line search; a number, an array, a
            schedule, or None for 1.
        scale_init_precond: whether to scale the first approximation.
        linesearch: finds :math:`\eta`; None for no line search, in which case give a learning rate.

    It is for float32 and float64: in bfloat16 differences of rounded gradients scale the whole
    inverse Hessian, and a run on mini-batches ended at 2.4 times the loss of float32.

    State: for `n` parameters :math:`n^2` numbers and more.

    Source: M. Al-Baali and H. Khalfan, A Wide Interval for Efficient Self-Scaling Quasi-Newton
    Algorithms, 2005, doi:10.1080/10556780410001709448; J. F. Urbán, P. Stefanou and J. A. Pons,
    Unveiling the Optimization Process of Physics Informed Neural Networks, 2024, arXiv:2405.04230.

    >>> import gradtx
    >>> loss = lambda x: jnp.sum((x - 1.0) ** 4)
    >>> result = gradtx.solve(loss, jnp.zeros(3), ssbroyden(), tol=1e-4)
    >>> int(result.status) == gradtx.Status.CONVERGED
    True
    """
    return _searched(scale_by_ssbroyden(scale_init_precond), learning_rate, linesearch)
