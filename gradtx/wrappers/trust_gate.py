"""A gate between the momentum and a preconditioned direction."""

from typing import NamedTuple

import jax.numpy as jnp

from gradtx.checks import Decay, Fraction, Positive
from gradtx.composition.around import InnerStep, around
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.engine.lift import refused_rows
from gradtx.leaves.matrix_layout import MatrixDimensions, as_matrices
from gradtx.leaves.paths import aligned, leaves_with_path
from gradtx.leaves.rows import is_rows
from gradtx.linalg.linear_algebra import frobenius_norm, real_inner
from gradtx.numerics import cast, divide, ema, precise, root, widen
from gradtx.types import Array, DimensionNumbers, InnerState, Params, Slots, State, Updates


class TrustGateState(NamedTuple):
    """momentum: like the parameters that are matrices; inner_state: the inner transformation's."""

    momentum: Slots
    inner_state: InnerState


@transformation
def trust_gate(
    inner: GradientTransformation,
    decay: Decay = 0.95,
    floor: Fraction = 0.0,
    cap: Fraction = 1.0,
    min_agreement: Decay = 0.2,
    min_alignment: Decay = 0.0,
    power: Positive = 1.0,
    *,
    nesterov: bool = True,
    weight_dimension_numbers: DimensionNumbers | None = None,
) -> GradientTransformation:
    r"""Follow a preconditioned direction of matrices as far as momentum and gradient agree with it.

    .. math::
        \mu_t &= \beta \mu_{t-1} + (1 - \beta) g_t, \qquad
        m_t = \beta \mu_t + (1 - \beta) g_t, \qquad
        s_t = \frac{\lVert m_t \rVert}{\lVert d_t \rVert} d_t, \\
        a_t &= \mathrm{clip}\Bigl(\frac{\cos(s_t, m_t) - c_a}{1 - c_a}\Bigr), \qquad
        b_t = \mathrm{clip}\Bigl(\frac{\cos(s_t, g_t) - c_b}
            {\max(\cos(m_t, g_t) - c_b, 10^{-8})}\Bigr), \\
        w_t &= m_t + \min(\max((a_t b_t)^p, \gamma_{\min}), \gamma_{\max}) (s_t - m_t), \qquad
        u_t = \frac{\lVert m_t \rVert}{\lVert w_t \rVert} w_t

    where :math:`d_t` is the direction of `inner`, `clip` is to :math:`[0, 1]`, the cosines are
    those of matrices as vectors, and :math:`\lVert X \rVert = \lVert X X^* \rVert_F^{1/2}` is the
    Schatten-4 norm. A direction that has left the momentum, or points less along the gradient than
    the momentum does, as in a basis that has become stale, is replaced by the momentum.

    Args:
        inner: gives the direction, such as :func:`scale_by_soap`. It sees the gradients, and alone
            transforms those of leaves that are not matrices.
        decay: :math:`\beta` in :math:`[0, 1)`.
        floor: :math:`\gamma_{\min}` in :math:`[0, 1]`; a number, an array, or a schedule.
        cap: :math:`\gamma_{\max}` in :math:`[0, 1]`; likewise. It takes precedence over a larger
            floor.
        min_agreement: :math:`c_a` in :math:`[0, 1)`.
        min_alignment: :math:`c_b` in :math:`[0, 1)`.
        power: :math:`p > 0`.
        nesterov: otherwise :math:`m_t = \mu_t`.
        weight_dimension_numbers: as in :func:`scale_by_muon`. Unless given, the leaves with two
            dimensions are matrices.

    Put :func:`scale_by_muon` with ``beta=0`` after it and then the learning rate, as in the source.
    The source's SOAP takes the second moment of :math:`m_t` in the bases, not of the gradient; the
    gate is the same.

    State: `TrustGateState`; the momentum in the types of the parameters.

    Raises:
        TypeError: the gradient of a matrix is `Rows`.

    Source: https://github.com/KellerJordan/modded-nanogpt/pull/321, with these defaults; there a
    floor of 0.45 fades to 0 from step 1,375 to 1,625, and until then the cap is 0.85.

    >>> import gradtx
    >>> tx = trust_gate(gradtx.scale_by_sign(), decay=0.0)
    >>> g = jnp.array([[2.0, 0.0], [0.0, 1.0]])
    >>> (10 * tx.update(g, tx.init(g))[0]).astype(int).tolist()
    [[17, 0], [0, 16]]
    """
    name = "trust_gate"
    tx = with_extra_args_support(inner)
    dimensions = MatrixDimensions(dimension_numbers(weight_dimension_numbers), MuonDimensionNumbers)

    @precise
    def gated(direction: Array, g: Array, m: Array) -> Array:
        (m, largest), (d, _), (g, _) = map(_of_size_one, (m, direction, g))
        size = _norm(m)
        s = d * divide(size, _norm(d))
        agreement = jnp.clip((_cosine(s, m) - min_agreement) / (1 - min_agreement), 0, 1)
        least = jnp.maximum(_cosine(m, g) - min_alignment, 1e-8)
        alignment = jnp.clip((_cosine(s, g) - min_alignment) / least, 0, 1)
        trust = jnp.minimum(jnp.maximum((agreement * alignment) ** power, floor), cap)
        w = m + trust * (s - m)
        return largest * (w * divide(size, _norm(w)))

    def init(params: Params) -> State:
        leaves, treedef = leaves_with_path(params)
        numbers = dimensions.of(name, params)
        pairs = zip(leaves, numbers, strict=True)
        mu = [None if p is None or n is None else jnp.zeros_like(p) for (_, p), n in pairs]
        return TrustGateState(treedef.unflatten(mu), tx.init(params))

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Updates, State]:
        new, inner_state = inner_step(updates, state.inner_state, params)
        leaves, treedef = leaves_with_path(updates)
        problem = "trust_gate: gradients and state are different trees"
        columns = [aligned(problem, updates, treedef, tree) for tree in (new, state.momentum)]
        numbers = dimensions.of(name, updates)
        out, momenta = [], []
        for (path, g), d, mu, number in zip(leaves, *columns, numbers, strict=True):
            if g is None or mu is None or number is None:
                out.append(d)
                momenta.append(mu)
                continue
            if is_rows(g):
                raise refused_rows(name, path)
            how, wide = as_matrices(name, path, g.shape, number), widen(g)
            new_mu = ema(wide, widen(mu), decay)
            m = ema(wide, new_mu, decay) if nesterov else new_mu
            u = gated(*map(how.take, (widen(d), wide, m)))
            out.append(cast(how.put(u), d.dtype))
            momenta.append(cast(new_mu, mu.dtype))
        return treedef.unflatten(out), TrustGateState(treedef.unflatten(momenta), inner_state)

    return around(tx, init, run)


def _of_size_one(x: Array) -> tuple[Array, Array]:
    """Matrices divided by their largest entry, so that no power overflows, and this entry."""
    largest = jnp.max(jnp.abs(x), (-2, -1), keepdims=True, initial=0)
    return divide(x, largest), largest


def _norm(x: Array) -> Array:
    """The root of the norm of the smaller Gram matrix: the sum of fourth powers, to 1/4."""
    short = x if x.shape[-2] <= x.shape[-1] else x.mT
    return root(frobenius_norm(short @ short.mT.conj()))


def _cosine(x: Array, y: Array) -> Array:
    return divide(real_inner(x, y), frobenius_norm(x) * frobenius_norm(y))
