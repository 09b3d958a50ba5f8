"""Bases of eigenvectors that follow moving averages, by decompositions or by products alone."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp

from gradtx.checks import check_choice
from gradtx.linalg.linear_algebra import frobenius_norm, identity_like
from gradtx.linalg.products import hermitian_part, product
from gradtx.numerics import abs_sq, divide
from gradtx.numerics.control import branch, repeat
from gradtx.programs.tracing import is_tracer
from gradtx.types import Array

Basis: TypeAlias = Literal["qr", "products"]

FIRST_SWEEPS = 20
MOST_SWEEPS = 4

# Degree 4, through 1 / sqrt(1 + x) at the Chebyshev nodes of [0, 1]: wrong by at most 8.5e-5.
_INVERSE_ROOT = (0.99991554, -0.49570115, 0.33736243, -0.18411854, 0.04969328)


def check_basis(where: str, basis: str) -> None:
    """Raise ValueError unless `basis` is a :data:`Basis`."""
    check_choice(where, "basis", basis, get_args(Basis))


def followed(xs: Sequence[Array], olds: Sequence[Array], every: Any, first: Any) -> list[Array]:
    """Each of `olds` after sweeps towards the eigenvectors of its `xs`.

    A basis that is renewed at each `every`-th step takes as many, at most 4, and 20 at the `first`.

    Compilers take long over each product of a program. Hence one loop has the first sweeps and the
    later ones, and goes over all matrices if they have one shape.
    """
    sweeps = min(every, MOST_SWEEPS) if isinstance(every, int) else jnp.minimum(every, MOST_SWEEPS)

    def one(x: Array, old: Array) -> Array:
        def again(i: Any, q: Array) -> Array:
            return branch((i < sweeps) | first, lambda q: sweep(x, q), lambda q: q, q)

        return old if old.size == 0 else repeat(FIRST_SWEEPS, again, old)

    if any(map(is_tracer, olds)) and len({x.shape for x in olds}) == 1:
        return list(jax.lax.map(lambda each: one(*each), (jnp.stack(xs), jnp.stack(olds))))
    return list(map(one, xs, olds))


def roughly(a: Array, b: Array) -> Array:
    """A product in fewer passes where a chip multiplies float32 in several: see :func:`sweep`."""
    return product(a, b, "high")


def sweep(x: Array, basis: Array) -> Array:
    r"""One step from `basis` towards the eigenvectors of Hermitian `x`, by products alone.

    .. math::
        B &= Q^* A Q, \qquad d = \mathrm{diag}(B), \qquad r_i^2 = \sum_{k \ne i} |B_{ik}|^2, \\
        S_{ij} &= \frac{B_{ij} (d_j - d_i)}{(d_j - d_i)^2 + (r_i^2 + r_j^2) / 32 + \delta^2},
            \qquad S \leftarrow S / \max(1, s), \qquad
        s = \min(\lVert S^4 \rVert_\infty^{1/4}, \lVert S^4 \rVert_F^{1/4}), \\
        W &= Q (I + S)\, p(-S^2), \qquad Q \leftarrow \tfrac32 W - \tfrac12 W W^* W

    Without the last two terms of its denominator, `S` is the skew matrix by which
    :math:`Q (I + S)` has eigenvectors of `A` to first order: Jacobi's rotations of all pairs at
    once. Near the eigenvectors their number of correct digits doubles with each step. The second
    term says how far eigenvalues must be apart for that: pairs that are closer turn less, and
    equal ones do not. The third, where :math:`\delta` is 10 times the rounding of the largest
    entry of `d`, keeps the null space from turning by rounding alone.

    As `s` is at least the spectral norm of `S`, whatever `A` is, the eigenvalues of :math:`-S^2`
    are in [0, 1] after the division. There the polynomial `p` of degree 4 is
    :math:`(1 + x)^{-1/2}` to 8.5e-5, so that `W` is unitary to 1e-4: :math:`I + S` over its
    absolute value. An iteration of Newton and Schulz squares that error, and the errors of rounding
    in `Q` by then, so that nothing adds up.

    The cost is 9 products of square matrices: two for `B`, :math:`S^2`, :math:`S^4`, one for `p`,
    two for `W`, two for the iteration. Muon's five iterations take 15. A matrix of zeros changes
    nothing. Where a chip multiplies float32 in passes of fewer bits, six of the nine may have
    half as many passes: the error that keeps `W` from being unitary is squared, and that of a turn,
    which is added to `Q`, is small beside the turn.

    Measured, float32, off-diagonal part of :math:`Q^* A Q` over its norm, beside QR iteration from
    `eigh` at the first step: for moving averages (decay 0.95) of Gram matrices of rank 4 and size
    128, 0.71 and 0.28 at step 3, 0.39 and 0.19 at 10, 0.065 and 0.092 at 30, 0.064 and 0.12 at 100,
    0.065 and 0.11 at 300; for a fixed matrix with eigenvalues from 1 to 1e-4, both from the
    identity, 0.07 and 0.055 at step 10, 3e-7 and 0.011 at 30.
    Relative to the roots of the diagonal, where small eigenvalues count as much as large ones, the
    same moving averages of rank 4 are less diagonal than by QR at all steps up to 300: 0.29 and
    0.13 at the last. One seed each.
    Gradients in bfloat16 turn such bases away from those in float32: on the linear model of
    tests/test_precision.py the updates of `soap_muon` differ by 15 % after 450 steps or more,
    by less than 3 % with QR, and those of `soap` by 3.3 % in the first 100.
    Compiled ahead of time for one square matrix, `scale_by_soap` takes 1.2 s of processor time for
    an H100 at sides of 1,024 and 4,096. For a TPU v5e it takes 24 s at a side of 768, 35 s at
    1,024, 45 s at 2,048 and 57 s at 4,096, most of it for products of float32 that are unlike each
    other in where their operands are, in precision, or in what is fused with them. Hence
    :func:`gradtx.linalg.products.product`, and one loop for both sides in :func:`followed`.

    >>> a = jnp.array([[2.0, 0.1], [0.1, 1.0]])
    >>> q = sweep(a, jnp.eye(2))
    >>> bool(jnp.abs((q.T @ a @ q)[0, 1]) < 1e-3)
    True
    """
    if x.size == 0:
        return x
    largest = jnp.max(jnp.abs(x), (-2, -1), keepdims=True)
    x = divide(x, largest)  # the squares below neither overflow nor vanish
    b = product(product(basis.mT.conj(), x), basis)
    # A TPU's compiler takes several times as long where it reduces the result of a product in one
    # computation with it. A branch is one of its own.
    some = jnp.any(largest > 0)
    return branch(some, _turned, lambda b, q: q, hermitian_part(b), basis)


def _turned(b: Array, basis: Array) -> Array:
    one = identity_like(b)
    d = jnp.diagonal(b, axis1=-2, axis2=-1).real
    gap = d[..., None, :] - d[..., :, None]
    off = b - b * one
    rows = jnp.sum(abs_sq(off), -1)
    near = (rows[..., None, :] + rows[..., :, None]) / 32
    rounding = 10 * jnp.finfo(d.dtype).eps * jnp.max(jnp.abs(d), -1)[..., None, None]
    s = off * divide(gap, jnp.square(gap) + near + jnp.square(rounding))
    m = -roughly(s, s)
    m2 = roughly(m, m)
    most = _largest_row(s)
    size = branch(jnp.all(most <= 1), lambda m2: jnp.ones_like(most), _size, m2)
    scale = 1 / jnp.maximum(size, 1)
    s, m, m2 = s * scale, m * scale**2, m2 * scale**4
    c = _INVERSE_ROOT
    p = c[0] * one + c[1] * m + c[2] * m2 + roughly(m2, c[3] * m + c[4] * m2)
    w = basis + roughly(basis, p - one + roughly(s, p))
    return w + 0.5 * roughly(w, one - product(w.mT.conj(), w))


def _largest_row(x: Array) -> Array:
    """The largest sum of the absolute values of a row."""
    return jnp.max(jnp.sum(jnp.abs(x), -1), -1)[..., None, None]


def _size(m2: Array) -> Array:
    """A bound of the spectral norm of `S`, from its fourth power."""
    return jnp.minimum(_largest_row(m2), frobenius_norm(m2)) ** 0.25
