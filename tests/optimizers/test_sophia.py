"""Sophia against a transcription of its paper and Optax; its estimators against Hessians."""

# Sees mutants of: hessian.

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.oracle import parameters
from tests.programs import temporary_bytes
from tests.quick import quick

WEIGHTS = np.linspace(0.5, 20.0, 12).reshape(4, 3)


def loss(p):
    """Its Hessian is diagonal, so that Hutchinson's estimate is exact."""
    return jnp.sum(jnp.asarray(WEIGHTS, p.dtype) * (p**4 / 4 + p**2 / 2))


def path(tx, steps=60):
    def step(carry, _):
        p, state = carry
        updates, state = tx.update(jax.grad(loss)(p), state, p, obj_fn=loss)
        return (p + updates, state), p + updates

    p = jnp.asarray(parameters(), jnp.float32)
    return jax.jit(lambda: jax.lax.scan(step, (p, tx.init(p)), None, steps)[1])()


def transcribed(rate, b1, b2, eps, gamma, clip, every, decay, hessian_first, debias, steps=60):
    """Algorithm 3 in float64; in the authors' code the estimate comes after the step."""
    p, found = parameters().astype(np.float64), []
    m, h = np.zeros_like(p), np.zeros_like(p)
    for t in range(1, steps + 1):
        g, diagonal = WEIGHTS * (p**3 + p), WEIGHTS * (3 * p**2 + 1)
        m = b1 * m + (1 - b1) * g
        estimated = b2 * h + (1 - b2) * diagonal if t % every == 1 else h
        if hessian_first:
            h = estimated
        mean = m / (1 - b1**t) if debias else m
        u = np.clip(mean / np.maximum(gamma * h, eps), -clip, clip)
        h = estimated
        p = p - rate * (u + decay * p)
        found.append(p)
    return np.stack(found)


@pytest.mark.quick(2)
@pytest.mark.paper("sophia")
@pytest.mark.parametrize("hessian_first", [False, True])
@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("clip", [0.7, None])
def test_it_is_the_paper_s(hessian_first, debias, clip):
    tx = gradtx.sophia(
        0.02,
        0.8,
        0.7,
        2.0,
        0.3,
        gamma=0.3,
        clip_threshold=clip,
        update_interval=4,
        hessian_first=hessian_first,
        bias_correction=debias,
    )
    limit = np.inf if clip is None else clip
    want = transcribed(0.02, 0.8, 0.7, 2.0, 0.3, limit, 4, 0.3, hessian_first, debias)
    np.testing.assert_allclose(path(tx), want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_like_optax():
    ours = gradtx.sophia(0.02, gamma=0.2, update_interval=3)
    theirs = optax.contrib.sophia(0.02, gamma=0.2, update_interval=3)
    np.testing.assert_allclose(path(ours, 100), path(theirs, 100), rtol=1e-5, atol=1e-5)
    around = gradtx.sophia(
        0.02,
        gamma=0.2,
        update_interval=3,
        hessian_diagonal_fn=optax.contrib.hutchinson_estimator_diag_hessian(),
    )
    np.testing.assert_allclose(path(around), path(ours), rtol=1e-5, atol=1e-5)
    p = jnp.asarray(parameters(), jnp.float32)
    state, state_optax = ours.init(p)[0], theirs.init(p)[0]
    assert (type(state).__name__, state._fields) == ("SophiaState", state_optax._fields)


def trained(tx, update, steps=7):
    """A tree in two types, with a leaf that has no gradient."""

    def loss(p):
        return sum(jnp.sum(jnp.cosh(x.astype(jnp.float32))) for x in jax.tree.leaves(p))

    def step(carry, _):
        p, state = carry
        grads = jax.grad(loss)(p) | {"still": None}
        if update:
            updates, state = tx.update(grads, state, p, obj_fn=loss)
            return (gradtx.apply_updates(p, updates), state), None
        return gradtx.apply_gradients(tx, grads, p, state, obj_fn=loss), None

    x = parameters()
    p = {"w": jnp.asarray(x, jnp.float32), "b": jnp.asarray(x[0], jnp.bfloat16), "still": None}
    return jax.jit(lambda: jax.lax.scan(step, (p, tx.init(p)), None, steps)[0])()


def rate(count):
    return 0.1 / (1 + count)


STEPS = {
    "alone": lambda tx: tx,
    "in chains": lambda tx: gradtx.chain(
        gradtx.clip_by_global_norm(0.5), gradtx.named_chain(("a", gradtx.ema(0.5)), ("b", tx))
    ),
    "in wrappers": lambda tx: gradtx.apply_if_finite(gradtx.accumulate(tx, 2), 3),
    "guarded": lambda tx: gradtx.guard(gradtx.chain(gradtx.clip_by_global_norm(0.5), tx)),
    "in codes": lambda tx: gradtx.store(tx, {"nu": "bf16", "mu": "f8_e4m3"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", quick(STEPS, "in chains"))
def test_a_step_in_loops_is_the_update_applied(way):
    """One loop is for steps with an estimate, one for those without."""
    tx = STEPS[way](
        gradtx.sophia(rate, lambda count: 0.9, 0.5, gamma=0.4, weight_decay=0.1, update_interval=3)
    )
    assert tx.step is not None
    compare(trained(tx, update=False), trained(tx, update=True))


@pytest.mark.parametrize("options", [{"hessian_first": True}, {"update_interval": lambda _: 2}])
def test_where_loops_would_save_nothing_or_cannot_be_known_there_are_none(options):
    tx, p = gradtx.sophia(0.1, **options), jnp.ones(2)
    assert tx.step is None
    new, state = gradtx.apply_gradients(tx, p, p, tx.init(p), obj_fn=jnp.sum)
    assert int(state[0].count) == 1
    assert (new < p).all()


def compare(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        assert x.dtype == y.dtype
        x, y = (np.asarray(z, np.float64) for z in (x, y))
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def exact(updates, state, params=None, **extra_args):
    """An estimate without random numbers, whose bits a CPU stores."""
    return jax.tree.map(lambda p: 3 * p**2, params), state


@pytest.mark.parametrize("clipped", [False, True])
def test_a_step_in_loops_stores_the_estimate_alone(clipped):
    """On a CPU; an update applied by hand copies the curvature at every step."""
    estimator = gradtx.GradientTransformationExtraArgs(lambda params: (), exact)
    tx = gradtx.sophia(0.1, hessian_diagonal_fn=estimator)
    if clipped:
        tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), tx)

    def by_hand(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    def in_loops(p, state, g):
        return gradtx.apply_gradients(tx, g, p, state)

    p = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    state, copies = jax.eval_shape(tx.init, p), []
    for step in (by_hand, in_loops):
        run = jax.jit(step, donate_argnums=(0, 1)).lower(p, state, p).compile()
        copies.append(len(re.findall(r"= f32\[1024,1024\]\S* copy\(", run.as_text())))
    assert copies[0] > copies[1] == 0
    assert temporary_bytes(run) < 4.1 * p.size


def test_the_seed_of_an_estimator_is_zero_unless_it_is_given():
    keys = [gradtx.hutchinson_estimator_diag_hessian(*seed).init(1.0).key for seed in ((), (0,))]
    np.testing.assert_array_equal(*map(jax.random.key_data, keys))


@pytest.mark.slow
def test_hutchinson_is_unbiased():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4, 4))
    a = jnp.asarray(a @ a.T, jnp.float32)
    p = jnp.ones(4)

    def estimate(key):
        tx = gradtx.hutchinson_estimator_diag_hessian(key)
        return tx.update(p, tx.init(p), p, value_fn=lambda p: p @ a @ p / 2)[0]

    draws = np.asarray(jax.vmap(estimate)(jax.random.split(jax.random.key(0), 4000)))
    error = draws.std(0) / np.sqrt(len(draws))
    assert error.max() > 0.01
    assert (np.abs(draws.mean(0) - np.diag(a)) < 4 * error + 1e-5).all()


@pytest.mark.slow
def test_gauss_newton_bartlett_is_unbiased():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 3)), rng.normal(size=(3, 4))

    def sampled_loss(params, key, x):
        logits = x @ params
        labels = jax.random.categorical(key, logits)
        return -jax.nn.log_softmax(logits)[jnp.arange(len(x)), labels].mean()

    def estimate(key):
        tx = gradtx.gnb_estimator_diag_hessian(sampled_loss, len(x), key)
        p = jnp.asarray(w, jnp.float32)
        return tx.update(p, tx.init(p), p, sample_args=(jnp.asarray(x, jnp.float32),))[0]

    draws = np.asarray(jax.vmap(estimate)(jax.random.split(jax.random.key(0), 4000)))
    likely = np.exp(x @ w) / np.exp(x @ w).sum(1, keepdims=True)
    # Of the mean cross-entropy: the second derivative for w_ij is the mean of x_i^2 p_j (1 - p_j).
    want = (x**2).T @ (likely * (1 - likely)) / len(x)
    error = draws.std(0) / np.sqrt(len(draws))
    assert error.max() < 0.1
    assert (np.abs(draws.mean(0) - want) < 4.5 * error).all()


@pytest.mark.slow
def test_the_loss_is_there_in_every_entry_point():
    tx = gradtx.sophia(0.05, b2=0.5, gamma=0.5)
    p = jnp.asarray(parameters(), jnp.float32)
    by_hand = path(tx, 3)[-1]
    stepped, state = p, tx.init(p)
    for _ in range(3):
        stepped, state, _ = gradtx.minimize(loss, tx, stepped, state)
    np.testing.assert_allclose(stepped, by_hand, rtol=1e-6)
    np.testing.assert_allclose(gradtx.solve(loss, p, tx, max_steps=3).params, by_hand, rtol=1e-6)
    step = gradtx.make_step(loss, tx)
    stepped, state = jnp.array(p, copy=True), tx.init(p)
    for _ in range(3):
        stepped, state, _ = step(stepped, state)
    np.testing.assert_allclose(stepped, by_hand, rtol=1e-6)


def test_the_samples_of_a_compiled_step_come_with_it():
    def sampled_loss(params, key, x):
        return jnp.sum(x * params) + 0.0 * jax.random.uniform(key)

    estimator = gradtx.gnb_estimator_diag_hessian(sampled_loss, 2.0)
    tx = gradtx.sophia(0.1, hessian_diagonal_fn=estimator, hessian_first=True)
    step = gradtx.make_step(lambda p: jnp.sum(p), tx)
    p = jnp.ones(2)
    state = step.init(p)
    _, state, _ = step(p, state, extra_args={"sample_args": (jnp.array([1.0, 3.0]),)})
    np.testing.assert_allclose(gradtx.get_slot(state, "nu"), [0.02, 0.18], rtol=1e-5)


def test_what_is_missing_is_named():
    tx, p = gradtx.sophia(0.1), jnp.ones(2)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(p, tx.init(p))
    with pytest.raises(ValueError, match="obj_fn or value_fn"):
        tx.update(p, tx.init(p), p)
    c = {"w": jnp.ones(2, jnp.complex64)}
    with pytest.raises(TypeError, match="'w' is complex"):
        tx.update(c, tx.init(c), c, obj_fn=lambda c: jnp.sum(jnp.abs(c["w"])))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("clip", "size", "every", "rates"),
    [
        (0.3, 1, 1, [1.0, 0.0, 0.0]),
        (0.3, 2, 1, [1.0, 0.0, 0.0]),
        (0.3, 1, 2, [0.0]),
        (None, 1, 1, []),
    ],
)
def test_the_fraction_that_is_not_clipped_is_printed(capfd, clip, size, every, rates):
    options = {"verbose": True, "print_win_rate_every_n_steps": every}
    tx = gradtx.sophia(0.1, clip_threshold=clip, **options)
    p = jnp.zeros(size)
    state = tx.init(p)
    update = jax.jit(functools.partial(tx.update, obj_fn=jnp.sum))
    for g in (0.0, 1.0, 1.0):
        _, state = update(jnp.full(size, g), state, p)
    jax.effects_barrier()
    printed = capfd.readouterr().out.splitlines()
    assert printed == [f"Sophia: win rate {rate}" for rate in rates]
