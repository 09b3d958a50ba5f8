"""Applying updates, and a slot that is overwritten when the parameters are new."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.composition.apply import take_step
from gradtx.composition.chain import chain_reading_old

LINKS = (gradtx.scale_by_optimistic_gradient(), gradtx.scale_by_learning_rate(0.1))
PARAMS = {"a": jnp.arange(3.0), "b": jnp.ones((2, 2), jnp.bfloat16), "frozen": None}


def gradient(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), p.dtype), PARAMS)


@pytest.mark.parametrize("params", [PARAMS, None], ids=["parameters", "none"])
def test_chain_reading_old_is_a_chain(params):
    kept, chained = chain_reading_old("previous_gradient", *LINKS), gradtx.chain(*LINKS)
    state = other = kept.init(PARAMS)
    for seed in range(3):
        updates, state = jax.jit(kept.update)(gradient(seed), state, params)
        expected, other = jax.jit(chained.update)(gradient(seed), other, params)
        chex.assert_trees_all_equal((updates, state), (expected, other))
        chex.assert_trees_all_equal_dtypes((updates, state), (expected, other))


def test_a_slot_is_kept_beside_a_parameter_that_is_not_a_number():
    kept = chain_reading_old("previous_gradient", *LINKS)
    params = {**PARAMS, "a": jnp.array([-jnp.inf, jnp.nan, jnp.inf])}
    _, state = jax.jit(kept.update)(gradient(0), kept.init(params), params)
    chex.assert_trees_all_equal(state[0].previous_gradient, gradient(0))


@pytest.mark.slow
def test_each_leaf_is_rounded_with_a_key_of_its_own():
    p = {"a": jnp.ones(64, jnp.bfloat16), "b": jnp.ones(64, jnp.bfloat16)}
    u = jax.tree.map(lambda x: jnp.full(x.shape, 2**-9), p)  # a quarter of a unit above 1
    new = gradtx.apply_updates(p, u, rounding_key=jax.random.key(0))
    up = {n: np.asarray(x > 1) for n, x in new.items()}
    assert all(0 < x.sum() < 32 for x in up.values())
    assert (up["a"] != up["b"]).any()
    assert gradtx.apply_updates({}, {}, rounding_key=jax.random.key(0)) == {}


@pytest.mark.slow
def test_rows_are_added_to_a_table_of_their_shape():
    table = jnp.zeros((4, 2))
    rows = gradtx.Rows(jnp.array([3, 1]), jnp.ones((2, 2)), table.shape)
    assert gradtx.apply_updates(table, rows).tolist() == [[0, 0], [1, 1], [0, 0], [1, 1]]
    with pytest.raises(ValueError, match=r"the parameter is \(5, 2\) and the update \(4, 2\)"):
        gradtx.apply_updates(jnp.zeros((5, 2)), rows)
    with pytest.raises(TypeError, match="the parameter is float32 and the update complex64"):
        gradtx.apply_updates(table, rows.with_values(1j * rows.values))


def test_a_step_names_what_updates_lack():
    tx = gradtx.sgd(0.1)
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    for run in (lambda step, *trees: step(*trees), jax.eval_shape):
        with pytest.raises(ValueError, match="parameters and updates .*'b' is only in the first"):
            run(lambda u, p: take_step(tx, u, tx.init(p), p), {"a": params["a"]}, params)


def test_moving_averages_of_trees_like_optax():
    new, old = ({"w": jnp.linspace(a, b, 3), "none": None} for a, b in ((2.0, 5.0), (-1.0, 3.0)))
    got = gradtx.incremental_update(new, old, 0.25)
    chex.assert_trees_all_close(got, optax.incremental_update(new, old, 0.25), rtol=1e-6)
    short = jax.tree.map(lambda x: x.astype(jnp.bfloat16), old)
    assert gradtx.incremental_update(new, short, 0.25)["w"].dtype == jnp.bfloat16
    counts = jnp.arange(60)
    for step in (0.001, 0.1, 0.3, 0.7):
        np.testing.assert_array_equal(gradtx.incremental_update(counts, counts, step), counts)
    assert gradtx.incremental_update(1.0, 0.0, 0.25) == 0.25


@pytest.mark.slow
def test_a_copy_is_renewed_at_every_third_step_like_optax():
    new, old = {"w": jnp.ones(2)}, {"w": jnp.zeros(2)}
    for steps in range(7):
        got, want = (lib.periodic_update(new, old, steps, 3) for lib in (gradtx, optax))
        chex.assert_trees_all_equal(got, want, {"w": jnp.full(2, float(steps % 3 == 0))})


@pytest.mark.parametrize("renewed", [gradtx.incremental_update, gradtx.periodic_update])
def test_what_replaces_a_tensor_has_its_shape(renewed):
    """Optax's `incremental_update` returns a tensor of another shape than the old one."""
    new, old = {"a": jnp.ones(3), "b": jnp.ones((2, 3))}, {"a": jnp.ones(3), "b": jnp.ones(3)}
    more = {"incremental_update": (0.5,), "periodic_update": (0, 2)}[renewed.__name__]
    with pytest.raises(ValueError, match=r"'b' the new tensor is \(2, 3\) and the old one \(3,\)"):
        renewed(new, old, *more)


def test_describe_warns_of_steps_that_rounding_loses():
    narrow = {"a": jnp.ones(2), "v": jnp.ones(2, jnp.bfloat16), "w": jnp.ones(2, jnp.bfloat16)}
    told = gradtx.describe(gradtx.adam(1e-3), narrow)
    assert "'v' and 1 more in bfloat16" in told.warning
    assert told.warning in str(told)
    assert gradtx.describe(gradtx.compensated(gradtx.adam(1e-3)), narrow).warning is None
    assert "warning" not in str(gradtx.describe(gradtx.adam(1e-3), {"a": jnp.ones(2)}))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "share"), [("bfloat16", 256), ("float16", 2048)])
def test_the_share_below_which_updates_are_lost(dtype, share):
    """One of a share and less is lost by no number."""
    p = 1 + jnp.arange(share // 2, dtype=dtype) / (share // 2)
    said = gradtx.describe(gradtx.sgd(0.1), p).warning
    assert f"in {dtype} is" in said
    assert f"below 1/{2 * share} of it is lost, one below 1/{share} may be" in said

    def moved(part):
        return [bool(each) for step in (p, -p) for each in (p + step * part != p)]

    assert not any(moved(0.99 / (2 * share)))
    assert True in (below := moved(0.99 / share))
    assert False in below
    assert all(moved(1.01 / share))
