"""The six everyday optimizers against live Optax, to 1e-6; states; checkpoints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.names.namespace import homes
from tests import oracle

SIX = {
    "adam": lambda lib: lib.adam(1e-3),
    "adamw": lambda lib: lib.adamw(1e-3, weight_decay=0.1),
    "sgd": lambda lib: lib.sgd(1e-3, momentum=0.9),
    "adagrad": lambda lib: lib.adagrad(1e-3),
    "rmsprop": lambda lib: lib.rmsprop(1e-3),
    "lion": lambda lib: lib.lion(1e-3),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SIX)
def test_a_hundred_steps_like_optax(name):
    p, gs = 1 + np.abs(oracle.parameters()), oracle.gradients(steps=100)
    ours, theirs = (oracle.run(SIX[name](lib), p, gs) for lib in (gradtx, optax))
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=1e-6)


# Where Optax's states are, and where ours.
PLACES = (
    (optax, gradtx),
    (optax.contrib, gradtx),
    (optax.transforms, gradtx),
    (optax.schedules, gradtx),
    (optax.tree, gradtx.tree),
    (optax.projections, gradtx.projections),
)


# Where a state has other fields than Optax's, and why.
OTHER_FIELDS = {"MaskedNode": "None stands in its place, and no class"}


def test_states_have_optax_s_fields():
    compared = 0
    for theirs, ours in PLACES:
        for name in vars(theirs).keys() & {*ours.__all__, *homes(ours.__name__)}:
            mine, expected = getattr(ours, name), getattr(theirs, name)
            if name in OTHER_FIELDS or not hasattr(expected, "_fields"):
                continue
            assert mine._fields[: len(expected._fields)] == expected._fields, name
            compared += 1
    assert compared > 40


def test_the_state_of_optax_goes_on_here():
    p, gs = oracle.parameters().astype(np.float32), oracle.gradients(steps=2).astype(np.float32)
    theirs, ours = optax.adam(1e-3), gradtx.adam(1e-3)
    _, state = theirs.update(gs[0], theirs.init(p), p)
    want, _ = theirs.update(gs[1], state, p)
    got, new = ours.update(gs[1], state, p)
    # Optax's bias correction is off by 1.3e-5, of which the root takes half.
    np.testing.assert_allclose(got, want, rtol=1.3e-5)
    assert jax.tree.structure(new) == jax.tree.structure(state)


@pytest.mark.slow
def test_inside_an_optax_chain_and_around_optax():
    p, gs = oracle.parameters(), oracle.gradients(steps=10)
    run = functools.partial(oracle.run, p=p, gs=gs)
    want = run(optax.chain(optax.clip(0.5), optax.adam(1e-2)))
    for tx in (
        optax.chain(gradtx.clip(0.5), gradtx.adam(1e-2)),
        gradtx.chain(optax.clip(0.5), gradtx.adam(1e-2)),
        gradtx.chain(gradtx.clip(0.5), optax.adam(1e-2)),
    ):
        np.testing.assert_allclose(run(tx), want, rtol=1e-5, atol=1e-6)


def total(tx, p, gs, dtype):
    """The sum of the updates in float64; the parameters move as they do in their type."""

    def step(carry, g):
        p, state, total = carry
        updates, state = tx.update(g, state, p)
        return (optax.apply_updates(p, updates), state, total + updates.astype("float64")), None

    def scanned(p, gs):
        carry = p, tx.init(p), p.astype("float64") * 0
        return jax.lax.scan(step, carry, gs)[0][2]

    return np.asarray(oracle.optimized(scanned)(jnp.asarray(p, dtype), jnp.asarray(gs, dtype)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "there", "here"), [("adamw", 0.08, 0.0006), ("lion", 0.04, 0.0025)]
)
def test_in_bfloat16_optax_strays_from_itself_in_float64(name, there, here):
    """docs/coming_from_optax.md has the numbers."""
    rng = np.random.default_rng(0)
    gs = 0.01 * rng.normal(size=(1000, 64, 32)) * np.exp(rng.normal(size=(64, 32))) + 0.003
    p = rng.normal(size=(64, 32))
    with jax.enable_x64(True):
        exact = total(getattr(optax, name)(1e-3), p, gs, "float64")
        off = [
            np.linalg.norm(total(getattr(lib, name)(1e-3), p, gs, jnp.bfloat16) - exact)
            / np.linalg.norm(exact)
            for lib in (optax, gradtx)
        ]
    assert 0.8 * there < off[0] < 1.2 * there
    assert off[1] < 1.1 * here
