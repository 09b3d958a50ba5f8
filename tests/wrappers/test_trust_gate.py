"""The gate between the momentum and a preconditioned direction, against the records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.wrappers import trust_gate
from tests.optimizers.matrices import check, on_matrices
from tests.optimizers.papers import adam

FADING = gradtx.linear_schedule(0.6, 0.0, 4)


def cosine(x, y):
    sizes = np.linalg.norm(x) * np.linalg.norm(y)
    return np.sum(x * y) / sizes if sizes else 0.0


def fourth(x):
    """The fourth root of the sum of the fourth powers of the singular values."""
    return np.sum(np.linalg.svd(x, compute_uv=False) ** 4) ** 0.25


def resized(x, like):
    size = fourth(x)
    return x * fourth(like) / size if size else 0 * x


def gated(g, s, t, *, nesterov, floor, cap, agreement, alignment, power):
    s.setdefault("momentum", np.zeros_like(g))
    s["momentum"] = 0.7 * s["momentum"] + 0.3 * g
    m = 0.7 * s["momentum"] + 0.3 * g if nesterov else s["momentum"]
    return mixed(g, m, adam(g, s, t, 0.9, 0.8, 0.1), floor(t), cap, agreement, alignment, power)


def mixed(g, m, d, floor, cap, agreement, alignment, power):
    d = resized(d, m)
    a = np.clip((cosine(d, m) - agreement) / (1 - agreement), 0, 1)
    b = np.clip((cosine(d, g) - alignment) / max(cosine(m, g) - alignment, 1e-8), 0, 1)
    trust = min(max((a * b) ** power, floor), cap)
    return resized(m + trust * (d - m), m)


def falling(t):
    return 0.6 * max(0, 1 - (t - 1) / 4)


@pytest.mark.quick(1)
@pytest.mark.paper("trust_gate")
@pytest.mark.parametrize(
    ("nesterov", "floor", "cap", "agreement", "alignment", "power"),
    [(True, 0.0, 1.0, 0.2, 0.0, 1.0), (False, FADING, 0.75, 0.5, 0.1, 0.6)],
)
@on_matrices
def test_trust_gate(name, shape, nesterov, floor, cap, agreement, alignment, power):
    tx = gradtx.trust_gate(
        gradtx.scale_by_adam(0.9, 0.8, 0.1),
        *(0.7, floor, cap, agreement, alignment, power),
        nesterov=nesterov,
    )
    given = {"floor": falling if callable(floor) else lambda t: floor, "cap": cap}
    given |= {"agreement": agreement, "alignment": alignment, "power": power}

    def update(g, s, t, p):
        return -0.3 * gated(g, s, t, nesterov=nesterov, **given)

    check(gradtx.chain(tx, gradtx.scale(-0.3)), update, name, shape)


def against(direction, **given):
    """The update where the inner direction is `direction` of the gradient, without momentum."""
    tx = gradtx.trust_gate(gradtx.stateless_with_tree_map(direction), 0.0, **given)
    g = jnp.array([[2.0, 1.0], [0.0, 1.0]])
    return g, tx.update(g, tx.init(g), g)[0]


@pytest.mark.slow
def test_a_direction_against_the_momentum_is_replaced_by_it():
    g, u = against(lambda g, _: -g)
    np.testing.assert_allclose(u, g, rtol=1e-6)


@pytest.mark.slow
def test_a_direction_along_the_gradient_where_the_momentum_is_not():
    """By less than the least that it is compared with, and so followed in part."""
    g, m, d = np.float32([[[1, 0], [0, 0]], [[0, 0], [0, 1]], [[6e-9, 1], [0, 1]]])
    tx = gradtx.trust_gate(gradtx.stateless_with_tree_map(lambda *_: d), 0.5, nesterov=False)
    u, _ = tx.update(g, tx.init(g)._replace(momentum=2 * m - g), g)
    np.testing.assert_allclose(u, mixed(g, m, d, 0.0, 1.0, 0.2, 0.0, 1.0), rtol=1e-5)


def test_norms_multiply_by_the_shorter_side():
    for shape in ((1, 2, 8), (1, 8, 2)):
        jaxpr = jax.make_jaxpr(trust_gate._norm)(jnp.zeros(shape))
        products = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]
        # JAX 0.8 puts the batch of one between the two sides, and later versions drop it.
        sides = [[n for n in eqn.outvars[0].aval.shape if n > 1] for eqn in products]
        assert sides == [[2, 2]]


@pytest.mark.slow
def test_the_size_of_a_direction_does_not_count():
    g, u = against(lambda g, _: 50 * jnp.sign(g))
    _, other = against(lambda g, _: jnp.sign(g))
    np.testing.assert_allclose(u, other, rtol=1e-5)
    np.testing.assert_allclose(fourth(np.asarray(u)), fourth(np.asarray(g)), rtol=1e-5)


@pytest.mark.slow
def test_a_floor_keeps_a_part_of_a_direction_against_the_momentum():
    g, u = against(lambda g, _: -g, floor=0.25)
    np.testing.assert_allclose(u, g, rtol=1e-6)  # half of the momentum, of its size again
    g, u = against(lambda g, _: -g, floor=0.75)
    np.testing.assert_allclose(u, -g, rtol=1e-6)


def test_tiny_gradients_are_as_good_as_others():
    tx = gradtx.trust_gate(gradtx.scale_by_sign(), 0.0)
    g = jnp.array([[2.0, 1.0], [0.0, 1.0]])
    found, wanted = (tx.update(x, tx.init(x))[0] for x in (1e-20 * g, g))
    np.testing.assert_allclose(1e20 * found, wanted, rtol=1e-5)


def test_a_cap_wins_over_a_larger_floor():
    _, u = against(lambda g, _: jnp.sign(g), floor=0.9, cap=0.3)
    _, capped = against(lambda g, _: jnp.sign(g), cap=0.3)
    np.testing.assert_array_equal(u, capped)


@pytest.mark.slow
def test_stacked_matrices_have_gates_of_their_own():
    numbers = gradtx.MuonDimensionNumbers(1, 2)
    tx = gradtx.trust_gate(gradtx.scale_by_sign(), weight_dimension_numbers=numbers)
    alone = gradtx.trust_gate(gradtx.scale_by_sign())
    rng = np.random.default_rng(0)
    g = jnp.asarray(rng.normal(size=(3, 4, 5)) * np.array([1, 9, 0.1])[:, None, None], jnp.float32)
    together, state = tx.update(g, tx.init(g))
    each = [alone.update(x, alone.init(x))[0] for x in g]
    np.testing.assert_allclose(together, jnp.stack(each), rtol=1e-5, atol=1e-7)
    assert state.momentum.shape == g.shape


@pytest.mark.slow
def test_leaves_that_are_not_matrices_are_the_inner_transformations():
    tx = gradtx.trust_gate(gradtx.scale_by_sign())
    g = {"b": jnp.array([0.5, -2.0]), "w": jnp.ones((2, 2))}
    updates, state = jax.jit(tx.update)(g, tx.init(g))
    assert updates["b"].tolist() == [1.0, -1.0]
    assert state.momentum["b"] is None
    rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, 2)), (2, 2))
    with pytest.raises(TypeError, match="trust_gate looks at whole leaves"):
        tx.update({"b": g["b"], "w": rows}, tx.init(g))


@pytest.mark.slow
def test_soap_with_stale_bases_is_gated():
    """Gradients whose eigenvectors turn: between refreshes the gate is open only in part."""
    rng = np.random.default_rng(0)
    soap = gradtx.scale_by_soap(0.95, 0.9, precondition_frequency=100)
    tx, plain = gradtx.trust_gate(soap), soap
    p = jnp.zeros((6, 4))
    state, other = tx.init(p), plain.init(p)
    for _ in range(5):
        g = jnp.asarray(rng.normal(size=(6, 4)), jnp.float32)
        u, state = tx.update(g, state)
        d, other = plain.update(g, other)
    assert bool(jnp.all(jnp.isfinite(u)))
    assert 0.3 < cosine(np.asarray(u), np.asarray(d)) < 0.999
