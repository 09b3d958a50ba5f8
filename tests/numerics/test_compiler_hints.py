"""Steering changes what is stored, and no value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gradtx.numerics import Step
from gradtx.numerics.compiler_hints import (
    Recomputed,
    delay,
    fuse,
    recompute,
    replace,
    sums_in_one_pass,
    true_after,
)

ANY = np.array([0.0, -0.0, 1.5, -3e38, np.inf, -np.inf, np.nan], np.float32)
X, AFTER = (jnp.asarray(x).reshape(-1) for x in np.meshgrid(ANY, ANY))
# Each with arrays of which it gives the first.
SAME = {
    "delay": lambda x, y: delay(x, after=y),
    "delay on every chip": lambda x, y: delay(x, after=y, on="all"),
    "replace": lambda x, y: replace(y, x, y),
    "fuse": lambda x, y: fuse(x, after=y),
    "recompute": jax.vmap(lambda x, y: recompute(lambda x: x, x, after=y)),
}


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["compiled", "eager"])
@pytest.mark.parametrize("name", SAME)
def test_values_stay_as_they_are(name, wrap):
    np.testing.assert_array_equal(wrap(SAME[name])(X, AFTER), X)


@pytest.mark.parametrize("part", [1, 1j])
def test_complex_values_stay_as_they_are(part):
    x, after = X + 1j * X[::-1], part * AFTER
    got = jax.jit(lambda x, y: delay(x, after=y))(x, after)
    np.testing.assert_array_equal((got.real, got.imag), (x.real, x.imag))


def test_the_condition_is_true():
    assert bool(jnp.all(jax.jit(true_after)(X)))


def test_recompute_is_the_function_to_the_last_bit():
    """Whatever it takes from around it: numbers, arrays, what a step keeps, calls within."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 50)), jnp.float32)

    def run(steered):
        def step(x, weights, count):
            t = Step(count, jnp.float32)

            def f(x, y):
                return {"a": jnp.where(x > 0, x * weights, 0.5) / (t.debiasing(0.9) + 1e-3), "b": y}

            first = recompute(f, x, x + 1, after=t) if steered else f(x, x + 1)
            length = jnp.sum(first["a"])
            again = recompute(f, x, x + 1, after=length) if steered else f(x, x + 1)
            return again, length + t.debiasing(0.9)

        return jax.jit(step)(x, 2 * x, jnp.int32(3))

    for got, want in zip(
        *(jax.tree.leaves(run(steered)) for steered in (True, False)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kept", [False, True], ids=["new scalar", "scalar that is there"])
def test_what_is_computed_several_times_is_traced_once(kept):
    """Where the step must first compute a scalar outside of the trace, it is traced once more."""
    x = jnp.asarray(np.random.default_rng(1).normal(size=20), jnp.float32)
    traced = []

    def f(t, x):
        traced.append(x)
        return x * t.debiasing(0.9) + 0.3

    @jax.jit
    def several(x, count):
        t = Step(count, jnp.float32)
        if kept:
            t.debiasing(0.9)
        again = Recomputed(lambda x: f(t, x), x)
        first = again(after=t)
        return first, again(after=jnp.sum(first)), again.at_once(), t.debiasing(0.9)

    *got, _ = several(x, jnp.int32(3))
    assert len(traced) == (1 if kept else 3)
    want = jax.jit(lambda x, count: f(Step(count, jnp.float32), x))(x, jnp.int32(3))
    for each in got:
        np.testing.assert_array_equal(each, want)


@pytest.mark.slow
def test_recompute_has_the_derivative_of_the_function():
    def f(x):
        return jnp.sin(3.0 * x)

    x = jnp.linspace(0.0, 1.0, 5)
    got = jax.jit(jax.grad(lambda x: jnp.sum(recompute(f, x, after=jnp.sum(x)))))(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: jnp.sum(f(x)))(x), rtol=1e-6)


@pytest.mark.parametrize("chip", ["cuda", "default"])
def test_sums_in_one_pass(monkeypatch, chip):
    """On an NVIDIA GPU too: what is meant for it is computed here."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *x, **on: on[chip](*x))
    xs = [jnp.arange(6.0).reshape(2, 3), jnp.ones(4)]
    got = sums_in_one_pass(xs, [2 * x for x in xs])
    np.testing.assert_allclose(got, [19, 38])


@pytest.mark.slow
def test_sums_have_derivatives_where_one_of_them_is_constant(monkeypatch):
    """In reverse and in forward mode, compiled and mapped over; on a GPU too."""
    constant = jnp.arange(3.0)

    def total(x):
        of_x, of_both, of_neither = sums_in_one_pass([x**3], [x * constant], [constant])
        return of_x + of_both + of_neither

    def derivatives(xs):
        turned = jax.jacfwd(jax.grad(total))(xs[0])
        return jax.vmap(jax.grad(total))(xs), jax.vmap(jax.jacfwd(total))(xs), turned

    xs = jnp.arange(6.0).reshape(2, 3)
    want = 3 * xs**2 + constant, 3 * xs**2 + constant, jnp.diag(6 * xs[0])
    chips = jax.lax.platform_dependent, lambda *x, cuda, default: cuda(*x)
    for chosen in chips:
        monkeypatch.setattr(jax.lax, "platform_dependent", chosen)
        for got, right in zip(jax.jit(lambda x: derivatives(x))(xs), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-6)
