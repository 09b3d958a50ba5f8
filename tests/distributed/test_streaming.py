"""Streaming DiLoCo: against the paper's algorithm in float64, and what it sends."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

import gradtx
from tests.distributed.meshes import counted
from tests.distributed.test_low_communication import (
    LAYERS,
    SHAPES,
    SIZE,
    STEPS,
    N,
    compiled,
    gradients,
    nesterov,
    run,
    start,
)
from tests.programs import equations
from tests.quick import quick


@pytest.mark.quick(1)
@pytest.mark.paper("streaming_diloco")
@pytest.mark.parametrize(
    "of",
    quick(
        [(6, 0, 2), (6, 2, 2), (9, 2, 3), (3, 0, 3), (2, 1, 2), (4, 2, 2), (2, 2, 1)],
        (9, 2, 3),
        (2, 1, 2),
        (2, 2, 1),
    ),
    ids=str,
)
def test_streaming_diloco_follows_the_algorithm(of):
    """Rows of `w` are divided by the fragments; the entries of `b` are not, and the last part has
    fewer. One fragment that arrives when it is sent again is sent from where it has arrived."""
    (every, delay, fragments), mixing, rate = of, 0.3, 0.1
    tx = gradtx.streaming_diloco(
        gradtx.sgd(rate), nesterov(), every, "data", fragments, delay, mixing
    )
    got, _ = run(tx)
    share = {k: -(-s[0] // fragments) for k, s in SHAPES.items()}
    parts = {k: [slice(i * n, (i + 1) * n) for i in range(fragments)] for k, n in share.items()}
    interval = every // fragments
    for k, s in SHAPES.items():
        theta, anchor, v, sent = np.stack([start()[k]] * N), start()[k], np.zeros(s), {}
        for t in range(1, STEPS + 1):
            theta = theta - rate * gradients()[k][:, t - 1]
            for at in (t - delay, t) if delay else (t,):
                if at <= 0 or at % interval:
                    continue
                here = parts[k][(at // interval - 1) % fragments]
                if at == t:
                    sent[t] = (anchor[here] - theta[:, here]).mean(0)
                if at == t - delay:
                    v[here] = 0.9 * v[here] + sent[at]
                    anchor[here] = anchor[here] - 0.7 * (0.9 * v[here] + sent[at])
                    theta[:, here] = mixing * theta[:, here] + (1 - mixing) * anchor[here]
            np.testing.assert_allclose(got[k][:, t - 1], theta, rtol=1e-12, err_msg=f"{k} {t}")


@pytest.mark.slow
def test_one_fragment_without_delay_is_diloco():
    inner = gradtx.adam(0.1)
    want, _ = run(gradtx.diloco(inner, nesterov(), 4, "data"))
    got, _ = run(gradtx.streaming_diloco(inner, nesterov(), 4, "data", 1))
    chex.assert_trees_all_close(got, want, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("fragments", quick([2, 8], 8))
def test_the_peak_of_fragments(fragments):
    """One message of one part in F; the program is no longer for more fragments."""
    program, said = compiled(
        gradtx.streaming_diloco(gradtx.sgd(0.1), nesterov(), 16, "data", fragments), LAYERS
    )
    assert counted(program) == {"all-reduce": (1, 4 * SIZE // fragments)}
    assert said.peak_message_bytes == 4 * SIZE // fragments
    assert said.message_bytes == 4 * SIZE // 16


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 1])
def test_only_what_is_on_the_way_is_held(delay):
    tx = gradtx.streaming_diloco(gradtx.sgd(0.1), nesterov(), 8, "data", 4, delay)
    state = tx.init({"w": jnp.ones((8, 2))})
    assert state.sending["w"].size == delay * 8 * 2 // 4


@pytest.mark.slow
def test_states_of_fragments_are_read_out_of_codecs():
    """bfloat16 has all bits of the momentum after one synchronization of each fragment."""
    whole, kept = (
        gradtx.streaming_diloco(gradtx.sgd(1.0), outer, 2, "data", 2)
        for outer in (nesterov(), gradtx.store(nesterov(), "bf16", min_size=1))
    )

    def moved(tx):
        p = {"w": jnp.arange(8.0).reshape(4, 2)}

        def run(g):
            state, found = tx.init(p), p
            for _ in range(2):
                updates, state = tx.update(g, state, found)
                found = gradtx.apply_updates(found, updates)
            return found, gradtx.tree.cast(state.outer_states, jnp.float32)

        g = {"w": jnp.stack([p["w"] + 1, p["w"] + 3])}
        return jax.jit(jax.vmap(run, axis_name="data"))(g)[0]

    chex.assert_trees_all_equal(moved(kept), moved(whole))


def test_fragments_in_int8():
    outer = gradtx.chain(gradtx.aggregate_int8("data"), nesterov())
    tx = gradtx.streaming_diloco(gradtx.sgd(0.1), outer, 16, "data", 8)
    said = gradtx.describe(tx, {k: jnp.zeros(s) for k, s in LAYERS.items()})
    assert said.peak_message_bytes < 4 * SIZE / 8 / 3.9


def test_a_message_in_every_step_is_in_no_branch_and_waits_for_no_gradient():
    tx = gradtx.streaming_diloco(gradtx.sgd(0.1), nesterov(), 4, "data", 4, delay=1)

    def step(p, state, g):
        return tx.update(g, state, p)

    p = {"w": jnp.zeros((8, 2))}
    jaxpr = jax.make_jaxpr(jax.vmap(step, axis_name="data", axis_size=2, in_axes=None))
    assert "cond" not in equations(jaxpr(p, tx.init(p), p).jaxpr)
    reduced = jax.make_jaxpr(step, axis_env=[("data", 2)])(p, tx.init(p), p).jaxpr
    known = {reduced.invars[-1]}  # what depends on the gradient
    sums = [e for e in reduced.eqns if e.primitive.name.startswith("psum")]
    for equation in reduced.eqns:
        if known & {v for v in equation.invars if not isinstance(v, Literal)}:
            known |= set(equation.outvars)
    assert len(sums) == 1
    assert not known & set(sums[0].outvars)


@pytest.mark.slow
def test_a_leaf_without_a_gradient_where_its_fragment_is_sent():
    """Its second entry never has a gradient but 0: no change of another fragment moves it."""
    outer = gradtx.sgd(1.0)
    tx = gradtx.streaming_diloco(gradtx.sgd(0.1), outer, 4, "d", fragments=2, delay=1)
    p = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    state = tx.init(p)
    for t in range(1, 6):
        grads = {"a": jnp.ones(2), "b": None if t == 4 else jnp.array([1.0, 0.0])}
        updates, state = tx.update(grads, state, p)
        p = gradtx.apply_updates(p, updates)
    assert p["b"][1] == state.anchor["b"].ravel()[1] == 0
