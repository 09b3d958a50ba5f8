"""SpectralSphere: steepest descent on the sphere of matrices of one spectral norm."""

import math
from typing import Any

import jax.numpy as jnp

from gradtx.checks import Decay, NonNegative, Positive, PositiveInt
from gradtx.composition.chain import chain
from gradtx.composition.matrices import matrices_and_others, on_each_matrix
from gradtx.core.pair import (
    GradientTransformation,
    optimizer,
    transformation,
)
from gradtx.linalg.linear_algebra import frobenius_norm, of_norm, real_inner
from gradtx.numerics import abs_sq, divide, precise
from gradtx.numerics.control import repeat
from gradtx.optimizers.adam import adamw
from gradtx.optimizers.muon import scale_by_shape
from gradtx.transforms.momentum import ema
from gradtx.transforms.orthogonal import check_dtype, coefficients, orthogonalized
from gradtx.transforms.scaling import scale, scale_by_learning_rate
from gradtx.types import Array, DimensionNumbers, DType


@precise
def _largest(w: Array, power_iters: int) -> tuple[Array, Array]:
    """The largest singular value of each matrix, and the product of its two vectors.

    The iteration begins at the longest row, which no matrix but zero maps to zero.
    """
    at = jnp.argmax(jnp.sum(abs_sq(w), -1), -1)
    v = jnp.take_along_axis(w, at[:, None, None], -2).mT.conj()

    def again(i: Any, v: Array) -> Array:
        return of_norm(w.mT.conj() @ (w @ v))

    v = repeat(power_iters, again, of_norm(v))
    u = w @ v
    value = frobenius_norm(u)
    return value, divide(u, value) @ v.mT.conj()


@transformation
def scale_by_spectral_sphere(
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 8,
    eps: NonNegative = 1e-8,
    *,
    power_iters: PositiveInt = 10,
    solver_steps: PositiveInt = 20,
    ns_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Orthogonalize an update such that the spectral norm of the matrix stays, to first order.

    .. math::
        \hat M = \frac{M}{\lVert M \rVert_F}, \qquad
        u = \mathrm{NS}(\hat M + \lambda \Theta), \qquad
        \lambda \text{ such that } \langle \Theta, u \rangle = 0

    where :math:`\Theta = u_1 v_1^*` is the product of the singular vectors of the largest singular
    value of `W`, along which alone that value changes. The inner product grows with
    :math:`\lambda`, and bisection finds its zero, which lies within twice the nuclear norm of
    :math:`\hat M` of 0.

    Args:
        ns_coeffs: this, the next and `ns_dtype` as in :func:`scale_by_muon`.
        ns_steps: how many iterations, at each step of the bisection too.
        eps: added to the norm by which the first iterate is divided.
        power_iters: how many steps of power iteration find :math:`\Theta`, from the longest row of
            `W` on.
        solver_steps: steps of the bisection; each halves the interval, and takes as much time as
            one step of Muon.
        ns_dtype: the type in which to iterate.
        weight_dimension_numbers: as in :func:`scale_by_muon`; other leaves are left as they are.
            Unless given, the leaves with two dimensions are matrices.

    State: none. A matrix of zeros has no :math:`\Theta`, and takes the update of Muon.

    Raises:
        ValueError: ``update`` is called without parameters; or as :func:`scale_by_muon` does.
        TypeError: the update of a matrix is `Rows`.

    The authors' code looks for the interval from 0 outward, takes :math:`\lambda = 0` if 10
    doublings from 0.001 have not found it, stops at an inner product below a tolerance, and begins
    the power iteration at a vector of ones.

    Source: T. Xie et al., Controlled LLM Training on Spectral Sphere, 2026, arXiv:2601.08393.

    >>> tx, w = scale_by_spectral_sphere(), jnp.diag(jnp.array([3.0, 1.0]))
    >>> u, _ = tx.update(jnp.array([[9.0, 1.0], [1.0, 0.0]]), tx.init(w), w)
    >>> jnp.abs(u).round(2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    name = "scale_by_spectral_sphere"
    coeffs = coefficients(name, ns_coeffs, ns_steps, "frobenius")
    check_dtype(name, ns_dtype)

    def tangent(m: Array, w: Array) -> Array:
        m = of_norm(m)
        _, theta = _largest(w, power_iters)

        def at(multiplier: Any) -> Array:
            x = m + multiplier * theta
            return orthogonalized(x, jnp.asarray(coeffs), ns_steps, "frobenius", eps, ns_dtype)

        free = at(jnp.zeros([], m.real.dtype))
        most = 2 * jnp.abs(real_inner(m, free))
        along = real_inner(theta, free)
        low, high = jnp.where(along > 0, -most, 0), jnp.where(along < 0, most, 0)

        def halved(i: Any, interval: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = interval
            middle = (low + high) / 2
            below = real_inner(theta, at(middle)) < 0
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        low, high = repeat(solver_steps, halved, (low, high))
        return at((low + high) / 2)

    return on_each_matrix(name, weight_dimension_numbers, tangent)


@transformation
def _from_spectral_sphere(
    radius: Positive,
    power_iters: PositiveInt,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    """Add to the update what brings the matrix, before it, to its spectral norm."""

    def retracted(u: Array, w: Array) -> Array:
        target = radius * math.sqrt(w.shape[-1] / w.shape[-2])
        value, _ = _largest(w, power_iters)
        return u + divide(target * w, value) - w

    return on_each_matrix("spectral_sphere", weight_dimension_numbers, retracted)


@optimizer
def spectral_sphere(
    learning_rate: NonNegative,
    decay: Decay = 0.95,
    radius: Positive = 1.0,
    eps: NonNegative = 1e-8,
    weight_decay: NonNegative = 0.0,
    *,
    ns_coeffs: Any = "polar_express",
    ns_steps: PositiveInt = 8,
    power_iters: PositiveInt = 10,
    solver_steps: PositiveInt = 20,
    ns_dtype: DType | None = None,
    mu_dtype: DType | None = None,
    weight_dimension_numbers: DimensionNumbers | None = None,
    others: GradientTransformation | None = None,
) -> GradientTransformation:
    r"""SpectralSphere: Muon along the sphere of matrices of one spectral norm; AdamW for the rest.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
            R = \rho \sqrt{\frac{d_{out}}{d_{in}}}, \\
        \theta_t &= \frac{R}{\lVert \theta_{t-1} \rVert_2}\, \theta_{t-1}
            - \eta R\; \mathrm{NS}\Bigl(\frac{\mu_t}{\lVert \mu_t \rVert_F}
                + \lambda_t u_1 v_1^*\Bigr), \qquad
            \lambda_t \text{ such that } \langle u_1 v_1^*, \mathrm{NS}(\cdot) \rangle = 0

    with the singular vectors :math:`u_1, v_1` of the largest singular value of
    :math:`\theta_{t-1}`; see :func:`scale_by_spectral_sphere`. A layer then neither enlarges nor
    shrinks what it is given, whatever its width. The first step brings a matrix to the sphere, and
    so does every later one what the step before has left of it.

    Args:
        learning_rate: :math:`\eta \ge 0`; a number, an array, or a schedule.
        decay: :math:`\beta` in :math:`[0, 1)`.
        radius: :math:`\rho > 0`, the spectral norm of a square matrix.
        eps: added to the norm by which the first iterate is divided.
        weight_decay: of the other leaves; the matrices have a size.
        ns_coeffs: coefficients of the iteration.
        ns_steps: iterations.
        power_iters: steps of power iteration, of which there are two in a step.
        solver_steps: steps of the bisection for :math:`\lambda`.
        ns_dtype: the type in which to iterate.
        mu_dtype: the type of the momentum.
        weight_dimension_numbers: as in :func:`scale_by_muon`; a leaf whose numbers are None goes
            to `others`. Unless given, SpectralSphere takes the leaves with two dimensions.
        others: the optimizer of the other leaves; unless given
            ``adamw(learning_rate, weight_decay=weight_decay)``.

    State: `PartitionState` with the groups ``"matrices"`` and ``"others"``.

    Raises:
        ValueError: ``update`` is called without parameters.

    The authors' code multiplies the step by :math:`0.2 \sqrt{\max(d_{in}, d_{out})}` in place of
    `R` unless told otherwise, and has a sum of gradients for its momentum, whose size does not
    matter.

    Source: T. Xie et al., Controlled LLM Training on Spectral Sphere, 2026, arXiv:2601.08393.

    >>> import gradtx
    >>> tx, w = spectral_sphere(0.1), jnp.array([[3.0, 4.0], [1.0, 0.0]])
    >>> state = tx.init(w)
    >>> for _ in range(3):
    ...     w, state = gradtx.apply_gradients(tx, w - 2 * jnp.eye(2), w, state)
    >>> bool(jnp.abs(jnp.linalg.norm(w, 2) - 1) < 0.02)
    True
    """

    def matrices(numbers: Any) -> GradientTransformation:
        return chain(
            ema(decay, debias=False, accumulator_dtype=mu_dtype),
            scale_by_spectral_sphere(
                ns_coeffs,
                ns_steps,
                eps,
                power_iters=power_iters,
                solver_steps=solver_steps,
                ns_dtype=ns_dtype,
                weight_dimension_numbers=numbers,
            ),
            scale_by_shape(None, numbers, scale="scion"),
            scale(radius),
            scale_by_learning_rate(learning_rate),
            _from_spectral_sphere(radius, power_iters, numbers),
        )

    if others is None:
        others = adamw(learning_rate, weight_decay=weight_decay)
    return matrices_and_others("spectral_sphere", matrices, others, weight_dimension_numbers)
