"""Devices decide alike, and second gradients are those of all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.distributed.meshes import P, mesh

START = {"w": jnp.ones(1)}
BAD, LARGE = 2.0**15 * jnp.inf, 2.0**15


def mean_step(rate=0.1):
    return gradtx.chain(gradtx.aggregate("d"), gradtx.sgd(rate))


def on_two(function, *data):
    """The results of two devices, one row each."""
    return jax.vmap(function, axis_name="d")(*map(jnp.asarray, data))


def steps(tx, gradients):
    """The parameter after steps of two devices, and the last states."""

    def of_one(gradients):
        p, state, path = jnp.zeros(1), tx.init(jnp.zeros(1)), []
        for g in gradients:
            u, state = tx.update(g[None], state, p)
            p = p + u
            path.append(p[0])
        return jnp.stack(path), state

    return on_two(of_one, gradients)


GATES = {
    "dynamic_loss_scale": lambda: gradtx.dynamic_loss_scale(mean_step(), LARGE),
    "apply_if_finite": lambda: gradtx.apply_if_finite(mean_step(0.1 / LARGE), 9),
    "guard": lambda: gradtx.guard(mean_step(0.1 / LARGE)),
    "accumulate": lambda: gradtx.accumulate(
        mean_step(0.1 / LARGE), 1, should_skip_update_fn=gradtx.skip_not_finite
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GATES)
def test_a_gradient_that_one_device_refuses_moves_none(name):
    path, state = steps(GATES[name](), [[BAD, LARGE], [LARGE, LARGE]])
    np.testing.assert_allclose(path[:, 0], 0)
    # After the overflow the scale is halved, and gradients of the same size are twice as large.
    want = -0.2 if name == "dynamic_loss_scale" else -0.1
    np.testing.assert_allclose(path[:, 1], want, rtol=1e-6)
    if name == "dynamic_loss_scale":
        np.testing.assert_array_equal(state.loss_scale, LARGE / 2)


@pytest.mark.parametrize("check_vma", [False, True])
def test_a_gate_in_a_shard_map(check_vma):
    """Where one device took the step alone, the program would wait for the other forever."""
    tx = gradtx.dynamic_loss_scale(mean_step(), LARGE)

    def loss(p, x):
        return jnp.sum(p["w"] * x)

    def step(p, state, x):
        new, state, _ = gradtx.minimize(loss, tx, p, state, x)
        return new, gradtx.loss_scale(state)

    mapped = jax.shard_map(
        step,
        mesh=mesh(d=2),
        in_specs=(P(), P(), P("d")),
        out_specs=P(),
        check_vma=check_vma,
    )
    for x, want in (([1e38, 1.0], 1.0), ([1.0, 3.0], 0.8)):
        new, scale = jax.jit(mapped)(START, tx.init(START), jnp.array(x))
        np.testing.assert_allclose(new["w"], want, rtol=1e-6)
        assert scale == (LARGE / 2 if want == 1.0 else LARGE)


@pytest.mark.parametrize("name", GATES)
def test_updates_of_a_gate_in_a_shard_map_are_the_same_on_all_devices(name):
    """Also where no step is taken: gradients differ between devices, and their mean does not."""
    tx = GATES[name]()

    def updates(x):
        return tx.update({"w": x}, tx.init(START), START)[0]

    mapped = jax.jit(jax.shard_map(updates, mesh=mesh(d=2), in_specs=P("d"), out_specs=P()))
    np.testing.assert_allclose(mapped(jnp.array([LARGE, 3 * LARGE]))["w"], -0.2, rtol=1e-6)
    np.testing.assert_array_equal(mapped(jnp.array([BAD, LARGE]))["w"], 0)


@pytest.mark.slow
def test_a_window_ends_on_all_devices():
    tx = gradtx.accumulate(mean_step(1.0), 2, noise_decay=0.9, up_to=8)
    quiet, noisy = [1.0] * 12, [9.0, -7.0] * 6
    path, state = steps(tx, [quiet, noisy])
    np.testing.assert_array_equal(path[0], path[1])
    np.testing.assert_array_equal(state.mini_step[0], state.mini_step[1])
    assert path[0, -1] != path[0, 1]


def quadratic(p, x):
    return jnp.mean(p["w"] ** 2 * x)


def stepped(tx, check_vma, **extra):
    """The parameter after a step on the examples 1 and 3, on two devices."""

    def step(p, state, x):
        extra_args = {name: make(x) for name, make in extra.items()}
        p, _, _ = gradtx.minimize(quadratic, tx, p, state, x, extra_args=extra_args)
        return p["w"][None]

    mapped = jax.shard_map(
        step,
        mesh=mesh(d=2),
        in_specs=(P(), P(), P("d")),
        out_specs=P("d"),
        check_vma=check_vma,
    )
    return jax.jit(mapped)(START, tx.init(START), jnp.array([1.0, 3.0])).ravel()


@pytest.mark.parametrize("check_vma", [False, True])
def test_the_second_gradient_of_extragradient(check_vma):
    tx = gradtx.extragradient(mean_step())
    # From 1 a step leads to 0.6, where the gradient of the mean loss is 2.4.
    np.testing.assert_allclose(stepped(tx, check_vma), 0.76, rtol=1e-6)


def grad_fn(x):
    return lambda p, i: jax.grad(quadratic)(p, x)


@pytest.mark.parametrize("check_vma", [False, True])
def test_the_gradients_of_sam_at_the_worse_point(check_vma):
    climb = gradtx.chain(gradtx.normalize(), gradtx.sgd(0.5))
    sam = gradtx.sam(gradtx.sgd(0.1), climb, opaque_mode=True, batch_axis_name="d")
    tx = gradtx.chain(gradtx.aggregate("d"), sam)
    # The gradient of the mean loss at 1.5 is 6.
    np.testing.assert_allclose(stepped(tx, check_vma, grad_fn=grad_fn), 0.4, rtol=1e-6)


@pytest.mark.slow
def test_sam_weighs_what_it_averages():
    """In the climb by an aggregation of its own, and at the worse point."""
    weights, examples = [1.0, 3.0], [1.0, 3.0]
    adversary = gradtx.chain(gradtx.aggregate("d"), gradtx.sgd(0.1))
    tx = gradtx.sam(gradtx.sgd(0.1), adversary, opaque_mode=True, batch_axis_name="d")

    def moved(weight, x):
        g = jax.grad(quadratic)(START, x)
        updates, _ = tx.update(g, tx.init(START), START, weight=weight, grad_fn=grad_fn(x))
        return updates["w"][0]

    # The mean example is 2.5: a climb by 0.1 * 5, and the gradient there.
    np.testing.assert_allclose(on_two(moved, weights, examples), -0.1 * 5 * 1.5, rtol=1e-6)
