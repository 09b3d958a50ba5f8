"""Schedule-free learning against a transcription of the paper and against Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import gradients, parameters, run

WARMUP = gradtx.warmup_constant_schedule(0.0, 0.1, 10)


def transcribed(base, rates, beta, power=2.0):
    """The paths of y and x in float64; ``base(g, slots, t, y) -> direction`` without the rate."""
    x, z, slots = parameters().astype(np.float64), parameters().astype(np.float64), {}
    total, best, ys, xs = 0.0, 0.0, [], []
    y = x
    for t, (g, rate) in enumerate(zip(gradients(), rates, strict=True), start=1):
        z = z - rate * base(g, slots, t, y)
        best = max(best, rate)
        total += best**power
        c = best**power / total if total else 0.0
        x = (1 - c) * x + c * z
        y = beta * x + (1 - beta) * z
        ys.append(y)
        xs.append(x)
    return np.stack(ys), np.stack(xs)


def averages(tx):
    """The average after each step."""

    def step(carry, g):
        p, state = carry
        p, state = gradtx.apply_gradients(tx, g, p, state)
        return (p, state), gradtx.eval_params(tx, state, p)

    p, gs = jnp.asarray(parameters(), jnp.float32), jnp.asarray(gradients(), jnp.float32)
    return jax.jit(lambda: jax.lax.scan(step, (p, tx.init(p)), gs)[1])()


def plain(decay=0.0):
    return lambda g, slots, t, y: g + decay * y


def adam(b2=0.99, eps=1e-8, decay=0.1):
    def direction(g, slots, t, y):
        nu = slots["nu"] = b2 * slots.get("nu", 0) + (1 - b2) * g**2
        return g / (np.sqrt(nu / (1 - b2**t)) + eps) + decay * y

    return direction


RAMP = np.minimum(np.arange(50) / 10, 1)


@pytest.mark.quick(2)
@pytest.mark.paper("schedule_free_adamw", "schedule_free_sgd")
@pytest.mark.parametrize(
    ("make", "base", "rates", "beta", "power"),
    [
        (lambda: gradtx.schedule_free_sgd(0.1), plain(), np.full(50, 0.1), 0.9, 2.0),
        (
            lambda: gradtx.schedule_free_sgd(0.2, 10, 0.6, 0.2, 1.5),
            plain(0.2),
            0.2 * RAMP,
            0.6,
            1.5,
        ),
        (
            lambda: gradtx.schedule_free_adamw(0.1, 10, 0.8, 0.99, 0.3, 0.1, 0.7),
            adam(eps=0.3),
            0.1 * RAMP,
            0.8,
            0.7,
        ),
    ],
    ids=["sgd", "sgd with warm-up", "adamw"],
)
def test_it_is_the_paper_s(make, base, rates, beta, power):
    ys, xs = transcribed(base, rates, beta, power)
    np.testing.assert_allclose(run(make(), parameters(), gradients()), ys, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(averages(make()), xs, rtol=1e-5, atol=1e-5)


def test_a_warm_up_may_begin_at_once():
    """The authors' rate is (k + 1) / w at step k."""
    rates = 0.1 * np.minimum((np.arange(50) + 1) / 10, 1)
    tx = gradtx.schedule_free_sgd(0.1, warmup_steps=10, warmup_at_once=True)
    want, _ = transcribed(plain(), rates, 0.9)
    np.testing.assert_allclose(run(tx, parameters(), gradients()), want, rtol=1e-5, atol=1e-5)
    tx = gradtx.schedule_free_adamw(
        0.1, 1, b2=0.99, weight_decay=0.1, warmup_at_once=True
    )  # a warm-up of one step is none
    want = run(
        gradtx.schedule_free_adamw(0.1, b2=0.99, weight_decay=0.1), parameters(), gradients()
    )
    np.testing.assert_allclose(run(tx, parameters(), gradients()), want, rtol=1e-5, atol=1e-6)


def test_the_weights_see_the_schedule_from_its_first_step():
    """Optax weighs step t by the rate of step t + 1: shifted by one, its weights are ours."""
    later = lambda count: WARMUP(count - 1)  # noqa: E731
    ours = run(gradtx.schedule_free(gradtx.sgd(WARMUP), WARMUP), parameters(), gradients())
    theirs = optax.contrib.schedule_free(optax.sgd(WARMUP), later)
    np.testing.assert_allclose(ours, run(theirs, parameters(), gradients()), rtol=1e-5, atol=1e-5)
    skipping = optax.contrib.schedule_free(optax.sgd(WARMUP), WARMUP)
    assert np.abs(ours - run(skipping, parameters(), gradients())).max() > 1e-3


def test_a_schedule_of_b1_moves_the_parameters_between_average_and_iterate():
    betas = np.linspace(0.5, 0.9, 50)
    tx = gradtx.schedule_free(
        gradtx.sgd(0.1), 0.1, b1=lambda count: 0.5 + 0.4 / 49 * jnp.minimum(count, 49)
    )
    _, xs = transcribed(plain(), np.full(50, 0.1), 0.5)
    z, ys = parameters().astype(np.float64), []
    for g, x, beta in zip(gradients(), xs, betas, strict=True):
        z = z - 0.1 * g
        ys.append(beta * x + (1 - beta) * z)
    np.testing.assert_allclose(run(tx, parameters(), gradients()), ys, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(averages(tx), xs, rtol=1e-5, atol=1e-5)


def test_types_of_the_state():
    p = {"w": jnp.ones(2, jnp.bfloat16), "c": jnp.ones(2, jnp.complex64)}
    state = gradtx.schedule_free_sgd(0.1).init(p)
    assert (state.z["w"].dtype, state.z["c"].dtype) == (jnp.float32, jnp.complex64)
    assert {x.dtype for x in (state.b1, state.weight_sum, state.max_lr)} == {jnp.dtype("float32")}
    state = gradtx.schedule_free_sgd(0.1, state_dtype=jnp.bfloat16).init(p)
    assert (state.z["w"].dtype, state.z["c"].dtype) == (jnp.bfloat16, jnp.complex64)


def test_where_the_average_is_found():
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.schedule_free_sgd(0.1))
    p = {"w": jnp.ones(2), "frozen": None}
    p, state = gradtx.apply_gradients(tx, {"w": jnp.ones(2), "frozen": None}, p, tx.init(p))
    found = gradtx.eval_params(tx, state, p)
    np.testing.assert_allclose(found["w"], gradtx.schedule_free_eval_params(state[1], p)["w"])
    np.testing.assert_allclose(found["w"], 0.9, rtol=1e-6)
    with pytest.raises(ValueError, match="takes a ScheduleFreeState, not tuple"):
        gradtx.schedule_free_eval_params(state, p)


def test_parameters_are_needed():
    tx = gradtx.schedule_free_sgd(0.1)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(jnp.ones(1), tx.init(jnp.ones(1)))
