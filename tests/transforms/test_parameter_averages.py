"""Averages of the parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle
from tests.oracle import gradients, parameters, run

P = jnp.asarray(parameters(), jnp.float32)


GS = jnp.asarray(gradients(), jnp.float32)


def final_state(tx):
    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        return (p + updates, state), None

    return jax.jit(lambda: jax.lax.scan(step, (P, tx.init(P)), GS)[0])()


@pytest.mark.paper("ema_params")
@pytest.mark.parametrize(
    ("every", "window", "debias"),
    [(None, 1, False), (3, 1, False), (2, 3, False), (3, 1, True)],
)
def test_an_average_in_the_place_of_the_parameters(every, window, debias):
    """At each step of each `every`-th window of steps they are the average."""

    def update(g, s, t, p):
        kept = 0.8 * (1 - 0.8 ** (t - 1)) / (1 - 0.8**t) if debias else 0.8
        s["a"] = kept * s.get("a", p) + (1 - kept) * (p - 0.05 * g)
        due = every is not None and -(-t // window) % every == 0
        return s["a"] - p if due else -0.05 * g

    average = gradtx.ema_params(0.8, overwrite_every=every, window=window, debias=debias)
    oracle.check(gradtx.chain(gradtx.sgd(0.05), average), update)


@pytest.mark.paper("ema_params")
@pytest.mark.parametrize("debias", [False, True])
def test_a_part_of_the_way_to_the_average_over_the_tail(debias):
    """The tail average of https://github.com/KellerJordan/modded-nanogpt/pull/325."""
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.ema_params(0.8, start=12, debias=debias))
    assert len(GS) > 20

    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        p = p + updates
        return (p, state), (p, gradtx.eval_params(tx, state, p, weight=0.3))

    _, (path, got) = jax.jit(lambda: jax.lax.scan(step, (P, tx.init(P)), GS))()
    path, want = np.asarray(path, np.float64), []
    for t, p in enumerate(path, start=1):
        tail = path[12:t] if debias else path[11:t]
        weights = 0.8 ** np.arange(len(tail))[::-1]
        if not debias and len(tail):
            weights[1:] *= 0.2
        mean = np.tensordot(weights / weights.sum(), tail, 1) if len(tail) else p
        want.append(0.7 * p + 0.3 * mean)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_part_of_the_way_in_the_types_of_the_parameters():
    """The average is not rounded before; a leaf without one is the parameter itself."""
    params = {"a": jnp.full(1, 256.0, jnp.bfloat16), "n": jnp.ones(1, jnp.int32), "f": len}
    tx = gradtx.ema_params(0.5)
    state = tx.init({"a": jnp.full(1, 257.0), "n": None, "f": None})
    got = gradtx.eval_params(tx, state, params, weight=jnp.float32(10.0))
    assert got["a"].dtype == jnp.bfloat16
    assert float(got["a"][0]) == 266.0
    assert gradtx.eval_params(tx, state, params, weight=2)["a"].tolist() == [258.0]
    assert got["n"] is params["n"]
    assert got["f"] is len
    pair = gradtx.LookaheadParams.init_synced(jnp.ones(1))
    tx = gradtx.lookahead(gradtx.sgd(1.0), 2, 0.5)
    with pytest.raises(ValueError, match="not a tree like the parameters"):
        gradtx.eval_params(tx, tx.init(pair), pair, weight=0.5)
    assert gradtx.eval_params(tx, tx.init(pair), pair, weight=1) is pair.slow


@pytest.mark.paper("ema_params", "swa_params")
def test_averages_of_parameters():
    """Polyak and Juditsky 1992; Izmailov et al. 2018, algorithm 1."""
    path = np.asarray(run(gradtx.sgd(0.1), P, GS), np.float64)
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.ema_params(0.9))
    want = np.asarray(P, np.float64)
    for p in path:
        want = 0.9 * want + 0.1 * p
    p, state = final_state(tx)
    np.testing.assert_allclose(gradtx.eval_params(tx, state, p), want, rtol=1e-5, atol=1e-6)
    tx = gradtx.chain(gradtx.sgd(0.1), gradtx.swa_params(start=5, every=7))
    state, p = tx.init(P), P
    step = jax.jit(tx.update)
    for t, g in enumerate(GS, start=1):
        updates, state = step(g, state, p)
        p = p + updates
        taken = path[:t][5 + 7 - 1 :: 7]
        want = taken.mean(0) if len(taken) else path[t - 1]
        np.testing.assert_allclose(gradtx.eval_params(tx, state, p), want, rtol=1e-5, atol=1e-6)


def test_average_of_some_leaves_and_of_none():
    params = {"a": jnp.ones(1), "b": jnp.ones(1, jnp.bfloat16)}
    tx = gradtx.masked(gradtx.ema_params(0.5), "b")
    _, state = tx.update(params, tx.init(params), params)
    found = gradtx.eval_params(tx, state, params)
    assert float(found["b"][0]) == 1.5
    assert found["b"].dtype == jnp.bfloat16
    assert float(found["a"][0]) == 1.0
    plain = gradtx.sgd(1.0)
    assert gradtx.eval_params(plain, plain.init(params), params) == params


def test_parameters_of_numpy_and_groups_of_whole_subtrees():
    """In the state one None stands for all the leaves below of another group."""
    params = {"a": {"w": np.ones(2, np.float32)}, "b": (np.ones(3, np.float32), None)}
    groups = {"x": gradtx.ema_params(0.5), "y": gradtx.identity()}
    tx = gradtx.partition(groups, {"a": "x", "b": "y"})
    _, state = tx.update(params, tx.init(params), params)
    for weight, want in ((1.0, 1.5), (0.5, 1.25)):
        found = gradtx.eval_params(tx, state, params, weight)
        np.testing.assert_array_equal(found["a"]["w"], [want] * 2)
        np.testing.assert_array_equal(found["b"][0], np.ones(3))


class OfOne(NamedTuple):
    """A state of one's own, with an average of one leaf."""

    a: jax.Array

    def eval_params(self, params):
        return {"a": self.a, "b": None}


def test_leaves_of_which_a_state_has_no_average_are_the_parameters():
    p = {"a": jnp.ones(1), "b": jnp.ones(1)}
    found = gradtx.eval_params(gradtx.identity(), OfOne(jnp.zeros(1)), p)
    np.testing.assert_array_equal([found["a"], found["b"]], [[0.0], [1.0]])


@pytest.mark.paper("ema_params")
@pytest.mark.parametrize(("every_leaf", "frozen"), [(False, 0.0), (True, 1.0)])
def test_the_average_of_a_leaf_without_a_gradient(every_leaf, frozen):
    tx, p = (
        gradtx.ema_params(0.75, every_leaf=every_leaf),
        {"a": jnp.ones(1), "b": jnp.full(1, 4.0)},
    )
    start = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    _, state = tx.update({"a": jnp.ones(1), "b": None}, tx.init(start), p)
    found = gradtx.eval_params(tx, state, p)
    np.testing.assert_allclose([found["a"], found["b"]], [[0.5], [frozen]])
    partial = gradtx.eval_params(tx, tx.init({**start, "b": None}), p)
    np.testing.assert_allclose([partial["a"], partial["b"]], [[0.0], [4.0]])


@pytest.mark.parametrize("every", [40, 41, 47])
def test_swa_takes_every_snapshot(every):
    tx = gradtx.chain(gradtx.sgd(1.0), gradtx.swa_params(every=every))
    params = jnp.zeros(1)

    def step(_, now):
        updates, state = tx.update(jnp.ones(1), now[1], now[0])
        return gradtx.apply_updates(now[0], updates), state

    params, state = jax.lax.fori_loop(0, 3 * every, step, (params, tx.init(params)))
    assert gradtx.eval_params(tx, state, params).tolist() == [-2.0 * every]


@pytest.mark.parametrize(("t", "overwritten"), [(20, False), (21, False), (22, True), (28, True)])
def test_a_window_ends_with_its_last_step(t, overwritten):
    tx = gradtx.ema_params(0.5, overwrite_every=2, window=7)
    state = tx.init(jnp.zeros(1))._replace(count=jnp.int32(t - 1), average=jnp.array([5.0]))
    updates, state = jax.jit(tx.update)(jnp.ones(1), state, jnp.zeros(1))
    assert updates.tolist() == (state.average if overwritten else jnp.ones(1)).tolist()


@pytest.mark.parametrize("decay", [0.9, 0.999, 0.99999, 0.999999])
def test_without_the_start_the_first_average_is_the_parameters(decay):
    tx = gradtx.ema_params(decay, debias=True)
    state = jax.jit(tx.update)(jnp.ones(1), tx.init(jnp.zeros(1)), jnp.zeros(1))[1]
    np.testing.assert_allclose(state.average, 1, rtol=2e-7)
