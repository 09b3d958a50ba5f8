"""Loss scaling, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx


def test_the_scale_falls_at_once_and_rises_after_a_period():
    tx = gradtx.dynamic_loss_scale(gradtx.sgd(1.0), 8.0, period=2, factor=4.0, min_loss_scale=1.5)
    p = jnp.zeros(1)
    state = tx.init(p)
    scales, updates = [], []
    for g in (1.0, jnp.inf, jnp.nan, 1.0, 1.0, 1.0):
        u, state = tx.update(jnp.full(1, g) * gradtx.loss_scale(state), state, p)
        scales.append(float(gradtx.loss_scale(state)))
        updates.append(float(u[0]))
    assert scales == [8.0, 2.0, 1.5, 1.5, 6.0, 6.0]
    assert updates == [-1.0, 0.0, 0.0, -1.0, -1.0, -1.0]


@pytest.mark.parametrize(
    "skip",
    [
        gradtx.skip_not_finite,
        functools.partial(gradtx.skip_large_updates, max_squared_norm=1e9),
    ],
)
def test_a_scale_that_would_see_nothing_that_is_not_finite_is_refused(skip):
    scaled = gradtx.dynamic_loss_scale(gradtx.sgd(0.1))
    tx = gradtx.accumulate(scaled, 2, should_skip_update_fn=skip)
    with pytest.raises(ValueError, match=r"dynamic_loss_scale is inside.*skip_"):
        tx.init(jnp.zeros(1))
    gradtx.accumulate(scaled, 2).init(jnp.zeros(1))


def test_the_scale_never_leaves_the_normal_numbers():
    tx = gradtx.dynamic_loss_scale(gradtx.sgd(1.0), 8.0, period=1, min_loss_scale=0.0)
    p = jnp.zeros(1)

    @jax.jit
    def after(g, state):
        return jax.lax.scan(lambda s, _: (tx.update(g, s, p)[1], None), state, length=300)[0]

    for g, want in ((0.0, 2.0**126), (jnp.inf, 2.0**-126)):
        state = after(jnp.full(1, g), tx.init(p))
        assert gradtx.loss_scale(state) == want
        scaled = jnp.full(1, 2.0) * gradtx.loss_scale(state)
        np.testing.assert_allclose(tx.update(scaled, state, p)[0], [-2.0])


def test_a_step_left_out_leaves_the_slots():
    tx = gradtx.dynamic_loss_scale(gradtx.adam(0.1))
    p = jnp.ones(2)
    _, state = tx.update(jnp.ones(2), tx.init(p), p)
    _, after = tx.update(jnp.array([1.0, jnp.inf]), state, p)
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, state.inner_state)


def test_small_gradients_survive_float16():
    p = jnp.ones(2, jnp.float16)
    tx = gradtx.dynamic_loss_scale(gradtx.sgd(1.0), loss_scale=2.0**15)
    state = tx.init(p)

    def grad(scale):
        return jax.grad(lambda p: jnp.sum(p.astype(jnp.float32) * 2e-8) * scale)(p)

    assert not np.any(grad(1.0))
    assert np.all(grad(gradtx.loss_scale(state)))


def test_a_state_without_a_scale():
    with pytest.raises(ValueError, match="holds 0 states"):
        gradtx.loss_scale(gradtx.adam(0.1).init(jnp.ones(2)))


KEY = jax.random.key(0)
EXAMPLES = jax.random.normal(KEY, (16, 4))


def squares(p, x=EXAMPLES):
    return jnp.mean(jnp.square(x @ p))


def in_layers(p, x=EXAMPLES):
    def layer(h, w):
        return jnp.tanh(h @ w), None

    return jnp.mean(jnp.square(jax.lax.scan(layer, x, p)[0]))


def by_steps(tx, p, **options):
    step = gradtx.make_step(squares, tx, donate=False, **options)
    state, steps = step.init(p), options.get("steps")
    for _ in range(20 // (steps or 1)):
        batches = () if steps is None else (jnp.stack([EXAMPLES] * steps),)
        p, state, value = step(p, state, *batches)
    return p, jnp.ravel(value)[-1]


def by_minimize(tx, p):
    state = tx.init(p)
    for _ in range(20):
        p, state, value = gradtx.minimize(squares, tx, p, state)
    return p, value


def by_hand(tx, p):
    state = tx.init(p)
    for _ in range(20):
        scale = gradtx.loss_scale(state)
        value, grads = gradtx.compute_gradients(squares, p, grad_loss=scale)
        p, state = gradtx.apply_gradients(tx, grads, p, state)
    return p, value


def by_solve(tx, p):
    path = gradtx.solve(squares, p, tx, max_steps=20, record=True).path
    return path.params[-1], path.values[-2]


WAYS = {
    "make_step": by_steps,
    "four steps a call": lambda tx, p: by_steps(tx, p, steps=4),
    "rounding": lambda tx, p: by_steps(tx, p, rounding_key=3),
    "minimize": by_minimize,
    "by hand": by_hand,
    "solve": by_solve,
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", WAYS)
def test_the_loss_is_scaled_wherever_its_gradient_is_taken(way):
    """A power of two scales without rounding, so that the steps have the same bits."""
    scaled, value = WAYS[way](gradtx.dynamic_loss_scale(gradtx.sgd(0.1), period=7), jnp.ones(4))
    plain, expected = by_minimize(gradtx.sgd(0.1), jnp.ones(4))
    np.testing.assert_allclose(scaled, plain, rtol=1e-6)
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def scaled(inner):
    return gradtx.dynamic_loss_scale(inner, 2.0**10, period=3)


AROUND = {
    "chain": lambda of: gradtx.chain(of(gradtx.sgd(0.1)), gradtx.ema_params(0.9)),
    "chain in a chain": lambda of: gradtx.chain(gradtx.chain(of(gradtx.sgd(0.1)))),
    "named chain": lambda of: gradtx.named_chain(("a", of(gradtx.sgd(0.1)))),
    "accumulate": lambda of: gradtx.accumulate(of(gradtx.sgd(0.4)), 4),
    "inside of it": lambda of: of(gradtx.accumulate(gradtx.sgd(0.4), 4)),
    "clip": lambda of: of(gradtx.chain(gradtx.clip_by_global_norm(0.1), gradtx.sgd(0.1))),
    "master weights": lambda of: gradtx.master_weights(of(gradtx.sgd(0.1))),
    "compensated": lambda of: gradtx.compensated(of(gradtx.sgd(0.1))),
    "offload": lambda of: gradtx.offload(of(gradtx.sgd(0.1))),
    "lbfgs": lambda of: of(gradtx.lbfgs()),
    "sophia": lambda of: of(gradtx.sophia(0.1)),
    "extragradient": lambda of: of(gradtx.extragradient(gradtx.sgd(0.1))),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", AROUND)
def test_what_may_be_around_and_inside(name):
    with_scale, _ = by_minimize(AROUND[name](scaled), jnp.ones(4))
    plain, _ = by_minimize(AROUND[name](lambda tx: tx), jnp.ones(4))
    np.testing.assert_allclose(with_scale, plain, rtol=1e-5, atol=1e-7)
    assert np.any(np.abs(with_scale - 1) > 1e-2)


REFUSED = {
    "after a clip": lambda tx: gradtx.chain(gradtx.clip(1.0), tx),
    "of some leaves": lambda tx: gradtx.masked(tx, lambda path, x: True),
    "in a group": lambda tx: gradtx.partition({"a": tx}, "a"),
    "twice": gradtx.dynamic_loss_scale,
    "in a guard": lambda tx: gradtx.apply_if_finite(tx, 3),
    "a second gradient": gradtx.extragradient,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_sees_the_scaled_gradient_first_is_refused(name):
    tx, p = REFUSED[name](scaled(gradtx.sgd(0.1))), jnp.ones(4)
    state = tx.init(p)
    runs = (
        lambda: gradtx.minimize(squares, tx, p, state),
        lambda: gradtx.make_step(squares, tx, donate=False)(p, state),
        lambda: gradtx.solve(squares, p, tx, max_steps=2),
    )
    for run in runs:
        with pytest.raises(ValueError, match="dynamic_loss_scale must be the outermost"):
            run()


def test_it_is_refused_inside_of_the_backward_pass():
    layers = jnp.stack([jnp.eye(4)] * 3)
    step = gradtx.make_step(in_layers, scaled(gradtx.sgd(0.1)), inside=True, donate=False)
    with pytest.raises(ValueError, match="inside: dynamic_loss_scale cannot run on one layer"):
        step(layers, step.init(layers))


@pytest.mark.slow
def test_a_scale_that_overflows_is_no_divergence():
    """Float16 overflows until the scale has fallen; then the loss falls."""
    p = jnp.full(4, 2.0, jnp.float16)
    tx = gradtx.dynamic_loss_scale(gradtx.sgd(0.1), 2.0**24)
    found = gradtx.solve(lambda p: jnp.sum(p**2), p, tx, max_steps=60, tol=1e-2)
    assert int(found.status) == gradtx.Status.CONVERGED
    assert 10 < int(found.steps) < 60
    lost = gradtx.solve(lambda p: jnp.sum(p**2) + jnp.sqrt(p[0] * 0), p, tx, max_steps=60)
    assert int(lost.status) == gradtx.Status.DIVERGED


@pytest.mark.library("dynamic_loss_scale")
def test_two_hundred_steps_of_torch():
    """Parameters, scale and growth of GradScaler, with infinities and overflows on the way."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    factors = np.where(rng.random(200) < 0.05, np.inf, 1.0).astype(np.float32)
    factors[60:64] = np.inf
    start = np.array([1.0, -2.0, 0.5, 3.0], np.float32)

    theirs = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.SGD([theirs], lr=1e-4, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=9)

    def loss(p, factor):
        return jnp.sum((p - 100) ** 2) * factor

    tx = gradtx.dynamic_loss_scale(gradtx.sgd(1e-4, momentum=0.9), 2.0**120, 9, 2.0, 0.0)
    ours = jnp.asarray(start)
    step = gradtx.make_step(loss, tx)
    state = step.init(ours)
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale(((theirs - 100) ** 2).sum() * float(factor)).backward()
        scaler.step(optimizer)
        scaler.update()
        ours, state, _ = step(ours, state, factor)
        assert float(gradtx.loss_scale(state)) == scaler.get_scale()
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-7)
    assert int(state.counter) == scaler._get_growth_tracker()
