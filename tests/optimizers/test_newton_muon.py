"""Newton-Muon against the formulas of its paper and the constants of its authors' code."""

import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import newton_schulz
from tests.transforms.test_input_moments import Preconditioner, moments_of, run

ROW = (3.4445, -4.7750, 2.0315)


@pytest.mark.quick(2)
@pytest.mark.paper("newton_muon")
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rms", [1.0, None])
def test_newton_muon(nesterov, rms):
    """Du and Su 2026; the authors' momentum is a sum, of which the iteration sees the direction."""
    shape = (4, 6)
    gs, moments = oracle.gradients(shape=shape, steps=7), moments_of(7, 4)
    now, m, want = Preconditioner(4), 0.0, []
    for t, (g, moment) in enumerate(zip(gs, moments, strict=True), start=1):
        g = now.at(t, moment) @ g
        m = 0.9 * m + g
        direction = newton_schulz(0.9 * m + g if nesterov else m, [ROW] * 3, eps=0.0)
        factor = np.sqrt(max(shape)) if rms else np.sqrt(max(1, shape[1] / shape[0]))
        want.append(-0.02 * factor * direction)
    tx = gradtx.newton_muon(
        *(0.02, 0.9, 0.8, 0.5),
        eps=0.1,
        initial=0.3,
        every=3,
        nesterov=nesterov,
        ns_steps=3,
        consistent_rms=rms,
    )
    updates, _ = run(gradtx.chain(tx), jnp.float32(gs), {"*": jnp.float32(moments)})
    np.testing.assert_allclose(updates, want, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_other_leaves_and_decay():
    """AdamW has what is no matrix, with the same rate and decay, unless it is given."""
    p = {"w": jnp.ones((4, 6)), "b": jnp.ones(3)}
    moments = {"w": jnp.eye(4)}
    tx = gradtx.newton_muon(0.1, weight_decay=0.5, every=1)
    updates, _ = tx.update(p, tx.init(p), p, input_moments=moments)
    np.testing.assert_allclose(updates["b"], -0.1 * (1 + 0.5), rtol=1e-5)
    without = gradtx.newton_muon(0.1, every=1, others=gradtx.sgd(1.0))
    bare, _ = without.update(p, without.init(p), p, input_moments=moments)
    np.testing.assert_allclose(updates["w"], bare["w"] - 0.05, rtol=1e-5)
    np.testing.assert_array_equal(bare["b"], -p["b"])


@pytest.mark.slow
def test_blocks_and_other_constants_reach_the_link():
    """Against the link and Muon put together by hand."""
    p = {"w": jnp.float32(oracle.parameters(shape=(4, 6)))}
    options = {"block_size": 2, "every": 1}
    moments = {"w": jnp.stack([jnp.diag(jnp.array([4.0, 1.0])), jnp.eye(2)])}
    tx = gradtx.newton_muon(0.1, ns_coeffs="polar_express", mu_dtype="bfloat16", **options)
    by_hand = gradtx.chain(
        gradtx.scale_by_input_moments(**options),
        gradtx.scale_by_muon("polar_express", mu_dtype="bfloat16", bias_correction=False),
        gradtx.scale_by_shape(1.0),
        gradtx.scale(-0.1),
    )
    (got, state), (want, other) = (
        t.update(p, t.init(p), p, input_moments=moments) for t in (tx, by_hand)
    )
    np.testing.assert_allclose(got["w"], want["w"], rtol=1e-6)
    assert gradtx.get_slot(state, "matrices.0.1.mu", "w").dtype == jnp.bfloat16
    assert gradtx.get_slot(other, "mu", "w").dtype == jnp.bfloat16
