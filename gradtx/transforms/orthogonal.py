"""Orthogonalization: bringing the singular values of a matrix near 1."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checks import check_choice, check_integer
from gradtx.linalg.linear_algebra import identity_like, spectral_norm
from gradtx.numerics import abs_sq, cast, real_dtype, root, unit
from gradtx.numerics.control import fold
from gradtx.types import Array, DType

Preconditioning: TypeAlias = Literal["frobenius", "spectral", "aol", "schatten"]

STANDARD = (3.4445, -4.7750, 2.0315)


class _Schedule(NamedTuple):
    """Coefficients by iteration; whether the last may be repeated; the safety factor in use."""

    coefficients: tuple[tuple[float, ...], ...]
    repeats: bool = False
    safety: float = 1.0


_YOU = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)

_SCHEDULES: dict[str, _Schedule] = {
    # K. Jordan et al., Muon: An Optimizer for Hidden Layers in Neural Networks, 2024.
    "standard": _Schedule((STANDARD,), repeats=True),
    # J. You; used by K. Ahn et al., Dion: Distributed Orthonormalized Updates, 2025.
    "dion": _Schedule(_YOU),
    # N. Amsel et al., The Polar Express, 2025, arXiv:2505.16932, algorithm 1.
    "polar_express": _Schedule(
        (
            (8.28721201814563, -23.595886519098837, 17.300387312530933),
            (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
            (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
            (3.3184196573706015, -2.488488024314874, 0.51004894012372),
            (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
            (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
            (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
            (1.875, -1.25, 0.375),
        ),
        repeats=True,
        safety=1.01,
    ),
    # E. Grishina et al., Accelerating Newton-Schulz Iteration for Orthogonalization via
    # Chebyshev-type Polynomials, 2025, arXiv:2506.10935; the numbers as in NVIDIA's Emerging
    # Optimizers.
    "cans": _Schedule(
        (
            (8.4703, -25.1081, 18.6293),
            (4.1828, -3.1087, 0.5806),
            (3.9619, -2.9541, 0.5630),
            (3.2866, -2.4647, 0.5074),
            (2.2737, -1.6447, 0.4162),
        )
    ),
    # T. Boissin et al., Turbo-Muon: Accelerating Orthogonality-Based Optimization with
    # Pre-Conditioning, 2025, arXiv:2512.04632: one iteration fewer after the preconditioning "aol".
    # Their code has had other numbers, some of which change the sign of singular values near 1.
    "turbo": _Schedule(_YOU[1:]),
    # DeepSeek-AI, DeepSeek-V4, 2026: eight of Jordan's, then two that converge.
    "deepseek": _Schedule((STANDARD,) * 8 + ((2.0, -1.5, 0.5),) * 2),
    # How Much Orthogonalization Does Muon Need?, 2026, arXiv:2606.00371: no square of A.
    "cubic": _Schedule(
        (
            (3.3656576, -3.3420992),
            (2.5744352, -1.4957376),
            (2.5368962, -1.4312570),
            (2.4418906, -1.2764040),
            (2.2230472, -0.9630650),
        )
    ),
}


def muon_coefficients(
    name: str, steps: int = 5, safety: float | None = None
) -> tuple[tuple[float, ...], ...]:
    r"""The coefficients of a published Newton-Schulz iteration, for ``ns_coeffs``.

    Args:
        name: ``"standard"`` (Jordan et al. 2024), ``"dion"`` (the five of Ahn et al. 2025),
            ``"polar_express"`` (Amsel et al. 2025), ``"cans"`` (the five of Grishina et al. 2025),
            ``"turbo"`` (the four of Boissin et al. 2025, which go with
            ``preconditioning="aol"``), ``"deepseek"`` (DeepSeek-V4's eight of the first and two
            that converge) or ``"cubic"`` (five pairs, without the square of the Gram matrix).
        steps: how many iterations, at least 1, for ``"standard"`` and ``"polar_express"``, which
            repeat their last; the others have a length of their own.
        safety: :math:`s \ge 1`: all polynomials but the last one that was published are
            :math:`p(x / s)`, so that rounding brings no singular value above the interval on which
            the next is bounded; of ``"standard"``, which has one, all iterations but the last.
            Unless given, it is 1.01 for ``"polar_express"``, as in its paper, whose code divides
            the first iterate by it too, and 1 for the others.

    Returns:
        A tuple of :math:`(a, b, c)`, or :math:`(a, b)`, for each iteration.

    Raises:
        ValueError: there is no such name, or `steps` or `safety` is less than 1.

    >>> muon_coefficients("standard", 2)
    ((3.4445, -4.775, 2.0315), (3.4445, -4.775, 2.0315))
    >>> muon_coefficients("polar_express", safety=1.05)[0][0].__round__(4)
    7.8926
    """
    if name not in _SCHEDULES:
        raise ValueError(f"muon_coefficients: {name!r} is none of {', '.join(_SCHEDULES)}")
    check_integer("muon_coefficients", "steps", steps)
    schedule = _SCHEDULES[name]
    s = schedule.safety if safety is None else safety
    if not s >= 1:
        raise ValueError(f"muon_coefficients: safety must be at least 1, not {safety}")
    *others, last = schedule.coefficients
    if schedule.repeats and not others:
        others = [last] * (steps - 1)
    safe = [tuple(c / s ** (2 * i + 1) for i, c in enumerate(row)) for row in others]
    rows = (*safe, last)
    return (*rows, *[last] * steps)[:steps] if schedule.repeats else rows


def coefficients(where: str, coeffs: Any, steps: int, how: str) -> Any:
    """The coefficients of the iterations as an array, after checking the arguments."""
    check_integer(where, "ns_steps", steps)
    if isinstance(coeffs, str) and coeffs in _SCHEDULES:
        coeffs = STANDARD if coeffs == "standard" else muon_coefficients(coeffs, steps)
    polynomials = coeffs if isinstance(coeffs, jax.Array) else np.asarray(coeffs)
    if (
        polynomials.ndim not in (1, 2)
        or polynomials.shape[-1] not in (2, 3)
        or polynomials.shape[0] == 0
    ):
        raise ValueError(
            f"{where}: ns_coeffs must be two or three numbers, a tuple of such pairs or triples, "
            f"or one of {', '.join(_SCHEDULES)}, not {coeffs!r}"
        )
    check_choice(where, "preconditioning", how, get_args(Preconditioning))
    return polynomials


def check_dtype(where: str, dtype: DType | None) -> None:
    """Raise TypeError unless the iterations may be in `dtype`."""
    if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"{where}: ns_dtype must be a real floating-point type, not {dtype}")


# Both forms take as many operations where the longer side is this many times the shorter, however
# many iterations there are between two restarts.
_BREAK_EVEN = 1.5
# With more, in bfloat16, the rounding error of A grows by more than a restart can mend.
_ITERATIONS_PER_GRAM = 3


def _shrink(x: Array) -> Array:
    """For each matrix the power of 2 that brings its largest entry to between 1 and 2."""
    kind = jnp.finfo(x.dtype)
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x)), (-2, -1), keepdims=True, initial=0)
    # The reciprocal of a larger power would be subnormal; epsilon is multiplied by it too.
    least = float(kind.tiny) / float(kind.eps)
    power = unit(jnp.clip(largest, least, kind.max / 4), largest.dtype) * 2.0**kind.nmant
    return 1 / power


def _norm(x: Array) -> Array:
    """The norm of each matrix, whose entries have squares here."""
    return root(jnp.sum(abs_sq(x), (-2, -1), keepdims=True))


class _Iteration(NamedTuple):
    """The Newton-Schulz iteration in two types.

    wide: that in which products are summed, and of Gram matrices; narrow: that of the operands of
    products and of `X` between iterations; None for the same.
    """

    wide: DType
    narrow: DType | None

    def product(self, x: Array, y: Array) -> Array:
        """`X Y`, for operands in the narrow type."""
        if self.narrow is None:
            return x @ y
        x, y = x.astype(self.narrow), y.astype(self.narrow)
        return jnp.matmul(x, y, preferred_element_type=self.wide)

    def rounded(self, x: Array) -> Array:
        """An `X` between iterations."""
        return x if self.narrow is None else x.astype(self.narrow)

    def gram(self, x: Array) -> Array:
        """`A = X X*`."""
        return self.product(x, x.mT.conj())

    def without_identity(self, a: Array, c: Array) -> Array:
        """`F - a I`, for the coefficients `c`."""
        return c[1] * a if len(c) == 2 else c[1] * a + c[2] * self.product(a, a)

    def step(self, x: Array, a: Array, c: Array) -> Array:
        """The next `X`."""
        multiple = c[0] * cast(x, self.wide)
        return self.rounded(multiple + self.product(self.without_identity(a, c), x))

    def steps_on_gram(self, x: Array, a: Array, rows: Sequence[Array]) -> Array:
        """The `X` after several iterations on `A`."""
        identity = identity_like(a)
        q: Any = None
        for i, c in enumerate(rows):
            z = self.without_identity(a, c)
            q = c[0] * identity + z if q is None else c[0] * q + self.product(z, q)
            if i + 1 < len(rows):
                za = c[0] * a + self.product(z, a)
                a = c[0] * za + self.product(za, z)
        return self.rounded(self.product(q, x))


def _or_one(divisor: Array) -> Array:
    """The divisor of a matrix, but 1 for a matrix of zeros."""
    return jnp.where(divisor == 0, 1, divisor)


def _first_iterate(
    x: Array, how: str, eps: Any, iteration: _Iteration
) -> tuple[Array, Array | None]:
    """The first iterate, and its Gram matrix if the preconditioning computes that."""
    a: Any = None
    # By a power of 2, so that squares cannot overflow and all bits stay as they are.
    shrink = _shrink(x)
    x, eps = x * shrink, eps * shrink
    if how == "frobenius":
        x = x / _or_one(_norm(x) + eps)
    elif how == "spectral":
        x = x / _or_one(spectral_norm(x) + eps)
    else:
        a = iteration.gram(x)
        of_rows = how == "aol"
        size = jnp.sum(jnp.abs(a), axis=-1, keepdims=True) if of_rows else _norm(a)
        s = jax.lax.rsqrt(_or_one(jnp.maximum(size, eps * shrink)))
        x, a = x * s, a * s * s.mT
    return iteration.rounded(x), a


def orthogonalized(
    x: Array,
    coeffs: Array,
    steps: int,
    how: str,
    eps: Any,
    dtype: DType | None = None,
    *,
    gram: bool | None = None,
) -> Array:
    r"""Newton-Schulz iterations on a batch of matrices.

    .. math:: A = X X^\top, \qquad F = a I + b A + c A^2, \qquad X \leftarrow F X

    on the orientation that has the smaller `A`. Where one side is more than 1.5 times as long as
    the other, three iterations at a time go through `A` alone,

    .. math:: Q \leftarrow F Q, \qquad A \leftarrow F A F, \qquad X \leftarrow Q X

    with `X` multiplied only by the last `Q`. Then `A` is computed from `X` again, since its
    rounding errors grow.

    Args:
        x: a batch of matrices.
        coeffs: a row of coefficients, or one for each iteration; pairs have no `c`.
        steps: iterations if there is one row.
        how: the preconditioning, which divides the first iterate.
        eps: added to that divisor.
        dtype: the type of the operands of products and of `X` between iterations. Products are
            summed, and `A` and `Q` kept, in the type of `x`.
        gram: whether to iterate on `A`; None to decide by the shape.

    Source of the iteration on `A`: J. Zhang et al., Gram Newton-Schulz: A Fast, Hardware-Aware
    Newton-Schulz Algorithm for Muon, 2026, which also restarts it.
    """
    is_wide = x.shape[-2] <= x.shape[-1]
    x = x if is_wide else x.mT  # the smaller Gram matrix
    rows = jnp.broadcast_to(coeffs, (steps, coeffs.size)) if coeffs.ndim == 1 else coeffs
    rows = rows.astype(real_dtype(x.dtype))
    if gram is None:
        gram = x.shape[-1] > _BREAK_EVEN * x.shape[-2]
    if dtype is not None and jnp.iscomplexobj(x):
        raise TypeError(f"a complex matrix is not orthogonalized in {dtype}: leave out ns_dtype")
    iteration = _Iteration(x.dtype, dtype)
    x, a = _first_iterate(x, how, eps, iteration)
    if gram:
        for i in range(0, len(rows), _ITERATIONS_PER_GRAM):
            a = iteration.gram(x) if a is None or i else a
            x = iteration.steps_on_gram(x, a, [*rows[i : i + _ITERATIONS_PER_GRAM]])
    else:
        if a is not None:
            x, rows = iteration.step(x, a, rows[0]), rows[1:]
        x = fold(lambda x, c: iteration.step(x, iteration.gram(x), c), x, rows)
    x = cast(x, iteration.wide)
    return x if is_wide else x.mT
