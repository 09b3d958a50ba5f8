"""Parameters in bfloat16 and float16: where they stand still, and that stochastic rounding moves
them as float32 would."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import gradtx
from benchmarks import low_precision

NARROW = ["bfloat16", "float16"]
CURES = {
    "stochastic_rounding": gradtx.stochastic_rounding,
    "compensated": gradtx.compensated,
    "compensated, int8": lambda tx: gradtx.compensated(tx, "int8"),
    "master_weights": gradtx.master_weights,
}


# The quick suite has one of them.
others = pytest.mark.parametrize(
    "cure",
    [c if c == "compensated" else pytest.param(c, marks=pytest.mark.slow) for c in CURES],
)


def mean(p):
    return float(jnp.mean(p.astype(jnp.float32)))


def trained(tx, steps=1000, n=64, dtype="bfloat16", start=2.0):
    """Parameters after so many steps down a slope of 1, and the state."""
    p = jnp.full(n, start, dtype)

    def body(carry, _):
        p, state = carry
        return gradtx.apply_gradients(tx, jnp.ones_like(p), p, state), None

    return jax.jit(lambda: jax.lax.scan(body, (p, tx.init(p)), length=steps)[0])()


@pytest.mark.parametrize("key", [3, jax.random.key(3)], ids=["seed", "key"])
def test_the_key_of_the_state_begins_as_given(key):
    state = gradtx.stochastic_rounding(gradtx.sgd(0.1), key).init(jnp.ones(2))
    assert state.rounding_key == jax.random.key(3)


@pytest.mark.parametrize("rate", [1e-3, 3e-3])
def test_adamw_never_moves_a_parameter_of_two(rate):
    """What the warning is about: half a unit in the last place below 2 is 1/256."""
    p, _ = trained(gradtx.adamw(rate))
    assert p.tolist() == [2.0] * 64


@pytest.mark.slow
@pytest.mark.parametrize("cure", CURES)
@pytest.mark.parametrize("dtype", NARROW)
def test_each_cure_goes_as_far_as_single_precision(cure, dtype):
    tx = gradtx.adamw(1e-3, mu_dtype="float32")
    p, _ = trained(CURES[cure](tx), dtype=dtype)
    want, _ = trained(tx, dtype="float32")
    # A unit for what is rounded, and an error at each step: by chance a deviation of at most half
    # a unit; a residual's own rounding, which is the same each time while all updates are.
    unit = float(jnp.finfo(dtype).eps)
    kept = {
        "stochastic_rounding": 4.5 * 0.5 * unit * (1000 / 64) ** 0.5,
        "compensated": 1000 * unit * unit / 2,
        "compensated, int8": 1000 * unit * 2 / 508,
        "master_weights": 0,
    }
    assert abs(mean(p) - mean(want)) < unit + kept[cure]
    assert abs(mean(want) - 1.0) < 0.1


def warned(tx, params, **kwargs):
    params = jax.tree.map(jnp.array, params)  # donated
    step = gradtx.make_step(lambda p: jnp.sum(p["w"].astype(jnp.float32)), tx, **kwargs)
    state = step.init(params)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            params, state, _ = step(params, state)
    return [str(w.message) for w in caught]


def test_make_step_warns_once():
    (text,) = warned(gradtx.adamw(1e-3), {"w": jnp.ones(2, jnp.bfloat16)})
    assert "'w' in bfloat16" in text
    assert "below 1/512 of it is lost" in text
    assert "rounding_key" in text
    (text,) = warned(gradtx.adamw(1e-3), {"w": jnp.ones(2, jnp.float16)})
    assert "below 1/4096 of it is lost" in text


@pytest.mark.slow
@pytest.mark.parametrize("cure", CURES)
def test_nothing_is_said_where_nothing_is_lost(cure):
    narrow = {"w": jnp.ones(2, jnp.bfloat16)}
    assert not warned(gradtx.accumulate(CURES[cure](gradtx.adamw(1e-3)), 2), narrow)
    assert not warned(gradtx.adamw(1e-3), narrow, rounding_key=1)
    assert not warned(gradtx.adamw(1e-3), {"w": jnp.ones(2)})
    frozen = {"w": jnp.ones(2), "b": jnp.ones(2, jnp.bfloat16)}
    assert not warned(gradtx.adamw(1e-3), frozen, trainable="w")


# One argument.


def tree(dtype="bfloat16"):
    rng = np.random.default_rng(0)
    return {"b": jnp.asarray(rng.normal(size=5), dtype), "w": jnp.asarray(rng.normal(size=(4, 5)))}


@pytest.mark.slow
def test_the_argument_rounds_each_leaf_by_itself_and_leaves_wide_ones():
    p, u = tree(), jax.tree.map(lambda p: jnp.full(p.shape, 1e-3), tree())
    key = jax.random.key(0)
    got = gradtx.apply_updates(p, u, rounding_key=key)
    chex.assert_trees_all_equal(got["w"], gradtx.apply_updates(p, u)["w"])
    assert got["b"].dtype == jnp.bfloat16
    draws = [
        gradtx.apply_updates(p, u, rounding_key=k)["b"].tolist() for k in jax.random.split(key, 20)
    ]
    assert len({tuple(d) for d in draws}) > 2
    two = {"a": jnp.full(99, 1.0, jnp.bfloat16), "b": jnp.full(99, 1.0, jnp.bfloat16)}
    new = gradtx.apply_updates(two, {"a": two["a"] / 300, "b": two["b"] / 300}, rounding_key=key)
    assert new["a"].tolist() != new["b"].tolist()


@pytest.mark.slow
def test_rows_are_rounded_as_their_table_would_be_on_average():
    table = jnp.full((3, 4000), 1.0, jnp.bfloat16)
    rows = gradtx.Rows(jnp.array([2, 0, 2]), jnp.full((3, 4000), 1e-3), table.shape)
    new = gradtx.apply_updates(table, rows, rounding_key=jax.random.key(1)).astype(jnp.float32)
    means = np.asarray(jnp.mean(new, axis=1))
    np.testing.assert_allclose(means, [1.001, 1.0, 1.002], atol=4.5 * 0.5 * 2**-7 / 4000**0.5)
    assert means[1] == 1.0


@pytest.mark.slow
def test_minimize_takes_a_key_and_the_same_key_gives_the_same_step():
    tx, p = gradtx.sgd(1e-3), jnp.full(1000, 1.0, jnp.bfloat16)

    def run(key):
        return gradtx.minimize(
            lambda p: jnp.sum(p.astype(jnp.float32)), tx, p, tx.init(p), rounding_key=key
        )[0]

    first, again, other = (run(jax.random.key(k)) for k in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert abs(mean(first) - 0.999) < 4.5 * 0.5 * 2**-8 / 1000**0.5


@pytest.mark.slow
def test_make_step_takes_a_key_and_is_resumed_to_the_bit(tmp_path):
    step = gradtx.make_step(
        lambda p, x: jnp.sum(jnp.square(p["w"].astype(jnp.float32) - x)),
        gradtx.adamw(1e-3),
        rounding_key=5,
        donate=False,
    )
    p = {"w": jnp.linspace(-2, 2, 50, dtype=jnp.bfloat16)}

    def run(p, state, xs):
        for x in xs:
            p, state, _ = step(p, state, x)
        return p, state

    whole = run(p, step.init(p), range(6))
    half, state = run(p, step.init(p), range(3))
    flat = gradtx.state_dict(state, step.tx)
    resumed = run(half, gradtx.load_state_dict(step.tx, half, flat), range(3, 6))
    chex.assert_trees_all_equal(resumed[0], whole[0])
    other = gradtx.make_step(lambda p, x: step, gradtx.adamw(1e-3), rounding_key=6)
    assert other.tx != step.tx
    assert gradtx.from_config(gradtx.to_config(step.tx)) == step.tx


@pytest.mark.slow
@others
@pytest.mark.parametrize("dtype", NARROW)
def test_by_hand_and_in_one_step_are_the_same(cure, dtype):
    """What an update leads to when it is added is what `step` gives."""
    tx = CURES[cure](gradtx.adam(0.05))
    rng = np.random.default_rng(1)
    p = jnp.asarray(rng.normal(size=2000), dtype)
    by_hand, other = (p, tx.init(p)), (p, tx.init(p))
    for _ in range(5):
        g = jnp.asarray(rng.normal(size=2000), dtype)
        updates, state = tx.update(g, by_hand[1], by_hand[0])
        assert updates.dtype == dtype
        by_hand = gradtx.apply_updates(by_hand[0], updates), state
        other = gradtx.apply_gradients(tx, g, *other)
    # Where a parameter changes its sign, no update of its type need lead to a given neighbour.
    far = jnp.abs(p) > 0.5
    chex.assert_trees_all_equal(by_hand[0][far], other[0][far])


@pytest.mark.slow
@others
def test_transformations_of_other_libraries_keep_the_types_of_their_states(cure):
    import optax

    tx = CURES[cure](optax.adam(1e-2))
    p = jnp.ones(3, jnp.bfloat16)
    state = tx.init(p)
    _, new = gradtx.apply_gradients(tx, p, p, state)
    chex.assert_trees_all_equal_shapes_and_dtypes(new, state)


@pytest.mark.slow
@others
def test_rows_of_a_table(cure):
    """Those that are touched are what the whole table would be; the others are untouched."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(5, 64)), jnp.bfloat16)
    rows = gradtx.Rows(jnp.array([3, 1, 3]), jnp.ones((3, 64), jnp.bfloat16), table.shape)
    tx = CURES[cure](gradtx.sgd(1e-2))
    p, state = table, tx.init(table)
    q, other = p, state
    run = jax.jit(lambda g, p, state: gradtx.apply_gradients(tx, g, p, state))
    for _ in range(3):
        p, state = run(rows, p, state)
        q, other = run(rows.to_dense(), q, other)
    touched = jnp.array([1, 3])
    if cure == "stochastic_rounding":  # rows draw numbers of their own
        gap = jnp.abs((p - q)[touched].astype(jnp.float32))
        assert float(gap.max()) <= 3 * 2**-6
    else:
        chex.assert_trees_all_equal((p, state), (q, other))
    chex.assert_trees_all_equal(p[jnp.array([0, 2, 4])], table[jnp.array([0, 2, 4])])


@pytest.mark.slow
@others
def test_in_a_window_nothing_is_rounded_and_nothing_lost(cure):
    """Inside of `accumulate` and around it."""
    g = jnp.full(500, 1.0, jnp.bfloat16)
    for tx in (
        gradtx.accumulate(CURES[cure](gradtx.sgd(1e-3)), 4),
        CURES[cure](gradtx.accumulate(gradtx.sgd(1e-3), 4)),
    ):
        p = jnp.full(500, 1.0, jnp.bfloat16)
        start, state = p, tx.init(p)
        run = jax.jit(lambda p, state, tx=tx: gradtx.apply_gradients(tx, g, p, state))
        for i in range(40):
            p, state = run(p, state)
            if i < 3:
                chex.assert_trees_all_equal(p, start)
        atol = 4.5 * 10**0.5 * 0.5 * 2**-8 / 500**0.5 if "stochastic" in cure else 2**-9
        assert abs(mean(p) - 0.99) <= atol


@pytest.mark.slow
@others
def test_divided_state_and_whole_state_agree(cure):
    """A state divided by `state_sharding`, ZeRO too: the same bits."""
    tx = CURES[cure](gradtx.adamw(1e-2))
    mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    p = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(16, 4)), jnp.bfloat16)}
    everywhere = NamedSharding(mesh, PartitionSpec())
    sharding = gradtx.state_sharding(tx, p, {"w": everywhere}, zero="x", min_size=0)
    loss = lambda p, x: jnp.sum(jnp.square(p["w"].astype(jnp.float32) - x))  # noqa: E731
    divided = gradtx.make_step(loss, tx, sharding=sharding, donate=False)
    whole = gradtx.make_step(loss, tx, donate=False)
    state, other, q = divided.init(jax.device_put(p, sharding.params)), whole.init(p), p
    p = jax.device_put(p, sharding.params)
    for x in range(3):
        p, state, _ = divided(p, state, x)
        q, other, _ = whole(q, other, x)
    chex.assert_trees_all_equal(p, q)


@pytest.mark.slow
def test_digits_are_learned_in_bfloat16_with_a_cure_and_not_without():
    """The picture in docs/low_precision.md, with a sixth of its steps."""
    last = {way: low_precision.digits(way, 0, steps=960)[-1] for way in low_precision.WAYS}
    exact = last.pop("float32")
    assert last.pop("bfloat16, to nearest") > 2 * exact
    for way, got in last.items():
        assert abs(got - exact) < 0.02 * exact, way


def test_an_update_of_the_whole_table_from_rows_is_added():
    tx = gradtx.stochastic_rounding(gradtx.dense_rows(gradtx.sgd(0.1, momentum=0.9)))
    results = []
    for whole in (False, True):
        params = {"x": jnp.ones((4, 1))}
        state = tx.init(params)
        for row in (1, 2, 3):
            gradients = {"x": gradtx.Rows(jnp.array([row]), jnp.ones((1, 1)), (4, 1))}
            if whole:
                params, state = gradtx.apply_gradients(tx, gradients, params, state)
            else:
                updates, state = tx.update(gradients, state, params)
                params = gradtx.apply_updates(params, updates)
        results.append(params["x"].ravel())
    np.testing.assert_allclose(results, [[1, 0.729, 0.81, 0.9]] * 2, rtol=1e-6)


def test_a_state_without_a_key():
    params = jnp.ones(2, jnp.bfloat16)
    tx = gradtx.sgd(0.1)
    step = gradtx.make_step(lambda p: jnp.sum(p), tx, rounding_key=0)
    with pytest.raises(TypeError, match=r"make it with step.init\(params\)"):
        step(params, tx.init(params))
