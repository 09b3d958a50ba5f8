"""gradtx.tree: Optax's functions, with `None` leaves, `Rows` and low precision made right."""

import inspect
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx import Rows, tree
from gradtx.leaves.memory import HOST, is_on_host


def draw(seed, dtype=jnp.float32):
    rng = np.random.default_rng(seed)
    return {
        "a": jnp.asarray(rng.normal(size=(2, 3)), dtype),
        "b": (jnp.asarray(rng.normal(size=4), dtype),),
    }


X, Y, Z = draw(0), draw(1), draw(2)
C = jax.tree.map(lambda x, y: x + 1j * y, X, Y)
KEY = jax.random.key(0)

CALLS = {
    "add": (X, Y, Z),
    "sub": (X, Y),
    "mul": (X, Y),
    "div": (X, Y),
    "scale": (2.5, X),
    "add_scale": (X, -0.5, Y),
    "vdot": (C, C),
    "sum": (X,),
    "max": (X,),
    "min": (X,),
    "size": (X,),
    "conj": (C,),
    "real": (C,),
    "norm": (C,),
    "batch_shape": (X, (5, 2)),
    "zeros_like": (X, jnp.bfloat16),
    "ones_like": (X,),
    "full_like": (X, 3.0),
    "clip": (X, -0.5, 0.25),
    "where": (True, X, Y),
    "allclose": (X, Y),
    "cast": (X, jnp.float16),
    "cast_like": (X, draw(1, jnp.bfloat16)),
    "dtype": (X,),
    "split_key_like": (KEY, X),
    "random_like": (KEY, X),
    "unwrap_random_key_data": ({"k": KEY},),
    "update_moment": (X, Y, 0.9, 2),
    "update_infinity_moment": (X, Y, 0.9, 0.25),
    "update_moment_per_elem_norm": (C, Y, 0.9, 2),
    "bias_correction": (X, 0.9, 7),
}
SEARCHES = {"get", "get_all_with_path", "set", "map_params"}


def unwrapped(result):
    return optax.tree.unwrap_random_key_data(result)


def test_every_name_of_optax_is_there_with_its_signature():
    theirs = {n for n in vars(optax.tree) if not n.startswith("_")}
    assert theirs == set(CALLS) | SEARCHES
    for name in theirs:
        ours = inspect.signature(getattr(tree, name)).parameters.values()
        other = inspect.signature(getattr(optax.tree, name)).parameters.values()
        assert [(p.name, p.kind, p.default) for p in ours] == [
            (p.name, p.kind, p.default) for p in other
        ], name


@pytest.mark.quick(7)
@pytest.mark.parametrize("name", CALLS)
def test_equals_optax(name):
    arguments = CALLS[name]
    theirs = arguments if name != "bias_correction" else (X, 0.9, jnp.int32(7))
    ours = unwrapped(getattr(tree, name)(*arguments))
    want = unwrapped(getattr(optax.tree, name)(*theirs))
    if name in ("dtype", "size"):
        assert ours == want
        return
    chex.assert_trees_all_close(ours, want, rtol=2e-6)
    chex.assert_trees_all_equal_dtypes(ours, jax.tree.map(jnp.asarray, want))


@pytest.mark.quick(4)
@pytest.mark.parametrize("order", [None, 1, 2, jnp.inf, "inf", "infinity"])
@pytest.mark.parametrize("squared", [False, True])
def test_norms_equal_optax(order, squared):
    want = optax.tree.norm(C, order, squared)
    np.testing.assert_allclose(tree.norm(C, order, squared), want, rtol=1e-6)


@pytest.mark.parametrize(("count", "compiled"), [(2, True), (40, True), (5, False)])
def test_the_norm_of_many_small_leaves_is_that_of_all(count, compiled):
    """They are summed in stacks, of which the last may be shorter."""
    xs = np.random.default_rng(0).normal(size=(count, 2, 3)).astype(np.float32)
    leaves = [*map(jnp.asarray, xs), *map(jnp.asarray, xs[:, 0, 0])]
    found = (jax.jit(tree.norm) if compiled else tree.norm)(leaves)
    want = np.sqrt(np.sum(xs.astype(float) ** 2) + np.sum(xs[:, 0, 0].astype(float) ** 2))
    np.testing.assert_allclose(found, want, rtol=1e-6)


def test_small_leaves_are_summed_together_and_large_ones_each_by_itself():
    """Few are, on a CPU, one by one: see `_sum_sq_of`."""

    def program(count, size):
        return str(jax.make_jaxpr(tree.norm_sq)([jax.ShapeDtypeStruct((size,), "float32")] * count))

    assert "concatenate" in program(17, 8)
    assert "platform_index" not in program(17, 8)
    assert "platform_index" in program(16, 8)
    assert "concatenate" not in program(17, 1 << 15)


def test_sums_are_added_in_pairs_if_asked():
    leaves = [jnp.float32(x) for x in (1e8, 1.0, -1e8, 1.0)]
    assert float(tree.sum(leaves)) == 1.0
    assert float(tree.sum(leaves, associative_reduction=True)) == 0.0


def test_trees_are_close_within_the_given_tolerances():
    x, y = {"a": jnp.array([1.0, 100.0])}, {"a": jnp.array([1.1, 110.0])}
    assert not tree.allclose(x, y)
    assert tree.allclose(x, y, rtol=0.1)
    assert tree.allclose(x, y, atol=10.5)
    nan = {"a": jnp.array([jnp.nan, 1.0])}
    assert not tree.allclose(nan, nan)
    assert tree.allclose(nan, nan, equal_nan=True)


def test_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="ord must be"):
        tree.norm(X, 3)


@pytest.mark.parametrize("handler", ["promote", "highest", "lowest"])
def test_dtype_of_mixed_trees_equals_optax(handler):
    mixed = {"a": jnp.zeros(1, jnp.float16), "b": jnp.zeros(1), "c": None}
    assert tree.dtype(mixed, handler) == optax.tree.dtype(mixed, handler)
    assert tree.dtype({}) == optax.tree.dtype({})


def test_dtype_errors_name_the_leaf():
    with pytest.raises(ValueError, match="'b' is bfloat16 and 'a' is float16"):
        tree.dtype({"a": jnp.zeros(1, jnp.float16), "b": jnp.zeros(1, jnp.bfloat16)})
    with pytest.raises(ValueError, match="neither of"):
        tree.dtype([jnp.zeros(1, jnp.float16), jnp.zeros(1, jnp.bfloat16)], "highest")
    with pytest.raises(ValueError, match="mixed_dtype_handler"):
        tree.dtype(X, "first")


def test_none_in_any_tree_is_skipped():
    x, y = {"a": jnp.array([1.0, 2.0]), "b": None}, {"a": jnp.array([3.0, 4.0]), "b": jnp.ones(3)}
    assert tree.add(x, y)["b"] is None
    assert tree.sub(y, x)["b"] is None
    assert tree.update_moment(x, y, 0.9, 1)["b"] is None
    assert float(tree.vdot(y, x)) == 11.0
    assert float(tree.sum(x)) == 3.0
    assert tree.size(x) == 2
    assert tree.random_like(KEY, x)["b"] is None


def test_different_trees_are_refused_with_the_path():
    with pytest.raises(ValueError, match="'b' is only in the second"):
        tree.add({"a": 1.0}, {"a": 1.0, "b": 2.0})
    with pytest.raises(ValueError, match="inner product of shapes"):
        tree.vdot(jnp.ones(2), jnp.ones(3))


def test_sums_are_taken_in_single_precision():
    half = {"a": jnp.full(4096, 300.0, jnp.float16)}
    assert float(tree.sum(half)) == 300 * 4096
    assert float(tree.norm(half, squared=True)) == 300.0**2 * 4096
    assert float(tree.vdot(half, half)) == 300.0**2 * 4096
    assert float(tree.sum(half, associative_reduction=True)) == 300 * 4096


def test_sums_of_integers_do_not_wrap_around():
    byte, number = {"q": jnp.array([100, -100], jnp.int8)}, jnp.array([100_000])
    assert float(tree.norm(byte)) == pytest.approx(100 * 2**0.5)
    assert float(tree.norm(byte, 1)) == 200
    assert float(tree.norm({"q": jnp.array([-128], jnp.int8)}, "inf")) == 128
    assert float(tree.norm(100_000)) == 1e5
    assert float(tree.vdot(number, number)) == 1e10
    assert int(tree.sum({"n": jnp.int32(2**24 + 1), "q": byte["q"]})) == 2**24 + 1
    assert float(gradtx.global_norm(byte)) == pytest.approx(100 * 2**0.5)


@pytest.mark.parametrize("nothing", [{}, None, {"a": None, "b": jnp.zeros((0, 2))}])
@pytest.mark.parametrize("order", [1, 2, "inf"])
def test_a_norm_of_nothing_is_zero(order, nothing):
    assert float(tree.norm(nothing, order)) == float(tree.norm(nothing, order, squared=True)) == 0


def test_the_moment_of_an_odd_power_of_complex_numbers():
    got = tree.update_moment_per_elem_norm(C, Y, 0.75, 3)
    want = jax.tree.map(lambda g, m: 0.25 * np.abs(g) ** 3 + 0.75 * np.asarray(m), C, Y)
    chex.assert_trees_all_close(got, want, rtol=2e-6)


def test_bias_correction_is_accurate():
    want = 1 / -np.expm1(np.log(0.99999))
    got = tree.bias_correction(jnp.float32(1.0), 0.99999, 1)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert tree.bias_correction(jnp.bfloat16(1.0), 0.999, 1).dtype == jnp.bfloat16


ROWS = Rows(jnp.array([3, 1, 3, 9]), jnp.arange(8.0).reshape(4, 2) + 1, (5, 2))
OTHER = Rows(jnp.array([0, 1]), jnp.ones((2, 2)), (5, 2))
DENSE = jnp.arange(10.0).reshape(5, 2) - 3


def dense(x):
    return x.to_dense() if isinstance(x, Rows) else x


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add", "sub", "mul", "vdot"])
@pytest.mark.parametrize("pair", [(ROWS, OTHER), (ROWS, DENSE), (DENSE, ROWS)])
def test_rows_count_as_one_leaf(name, pair):
    function = getattr(tree, name)
    got = function(*({"t": x} for x in pair))
    want = function(*({"t": dense(x)} for x in pair))
    got, want = (r["t"] if isinstance(r, dict) else r for r in (got, want))
    np.testing.assert_allclose(dense(got), want)


@pytest.mark.slow
def test_reductions_and_selection_of_rows():
    for name in ("sum", "norm", "max", "min", "size"):
        function = getattr(tree, name)
        np.testing.assert_allclose(function([ROWS]), function([ROWS.to_dense()]), rtol=1e-6)
    for condition in (True, False):
        got = tree.where(condition, [ROWS], [OTHER])[0]
        assert isinstance(got, Rows)
        np.testing.assert_allclose(got.to_dense(), dense(ROWS if condition else OTHER))
    assert isinstance(tree.scale(2.0, ROWS), Rows)
    assert tree.cast(ROWS, jnp.bfloat16).dtype == jnp.bfloat16
    assert bool(tree.allclose([ROWS], [ROWS.to_dense()]))


def optimizers():
    return optax.chain(optax.add_noise(1.0, 0.9, key=0), optax.adam(optax.linear_schedule(1, 0, 9)))


@pytest.mark.parametrize("key", ["count", "mu", "ScaleByAdamState", "AddNoiseState", "absent", "a"])
def test_searches_find_what_optax_finds(key):
    state = {"outer": optimizers().init(X), "count": jnp.int32(4)}

    def shown(found):
        return [(jax.tree_util.keystr(p), repr(v)) for p, v in found]

    ours, theirs = (t.get_all_with_path(state, key) for t in (tree, optax.tree))
    assert shown(ours) == shown(theirs)


def test_get_and_set_follow_optax():
    state = optimizers().init(X)

    def of_adam(path, value):
        return getattr(path[-1], "tuple_name", None) == "ScaleByAdamState"

    assert int(tree.get(state, "count", filtering=of_adam)) == 0
    assert tree.get(state, "absent", 7) == 7
    with pytest.raises(KeyError, match="several 'count'"):
        tree.get(state, "count")
    with pytest.raises(KeyError, match="no 'absent'"):
        tree.set(state, absent=1)
    for arguments, values in [((), {"count": jnp.int32(5)}), ((of_adam,), {"count": 2, "mu": Y})]:
        chex.assert_trees_all_equal(
            unwrapped(tree.set(state, *arguments, **values)),
            unwrapped(optax.tree.set(state, *arguments, **values)),
        )


class Point(NamedTuple):
    """Parameters that are themselves a named tuple."""

    mu: jax.Array
    w: jax.Array


def adam_with_schedule(module):
    return module.adam(module.linear_schedule(1.0, 0.0, 9))


def clipped_momentum(module):
    return module.chain(module.clip(1.0), module.sgd(0.1, momentum=0.9))


@pytest.mark.parametrize("make", [adam_with_schedule, clipped_momentum])
@pytest.mark.parametrize("p", [X, Point(jnp.ones(2), jnp.ones(3)), jnp.ones(2)])
def test_map_params_follows_optax(make, p):
    results = []
    for module in (gradtx, optax):
        tx = make(module)
        spec = jax.tree.map(lambda x: f"spec{x.shape}", p)
        mapped = module.tree.map_params(
            tx,
            lambda slot, s: f"{slot.shape} {s}",
            tx.init(p),
            spec,
            transform_non_params=lambda _: "other",
        )
        results.append(jax.tree.leaves(mapped))
    assert results[0] == results[1]


def test_map_params_of_a_state_that_optax_made():
    """Its classes say nothing of slots, and have the fields of ours."""
    state = optax.adam(0.1).init({"w": jnp.ones(2)})
    mapped = tree.map_params(gradtx.adam(0.1), lambda slot: "slot", state)
    assert mapped[0].mu == mapped[0].nu == {"w": "slot"}


def test_map_params_of_restricted_and_foreign_states():
    p = {"head": jnp.ones(2), "body": jnp.ones(3)}
    tx = gradtx.chain(gradtx.masked(gradtx.scale_by_adam(), "head"), optax.trace(0.9))
    state = tree.map_params(tx, lambda slot, s: s, tx.init(p), {"head": "h", "body": "b"})
    assert state[0].inner_state.mu == {"head": "h", "body": None}
    assert state[1].trace == {"head": "h", "body": "b"}
    tx = gradtx.chain(gradtx.scale_by_adam(), optax.trace(0.9))
    state = tree.map_params(tx, lambda slot: "slot", tx.init(p))
    assert state[1].trace == {"head": "slot", "body": "slot"}


def test_functions_compile():
    got = jax.jit(lambda x, y: (tree.add_scale(x, 2.0, y), tree.norm(x), tree.get(x, "a")))(X, Y)
    chex.assert_trees_all_close(got, (tree.add_scale(X, 2.0, Y), tree.norm(X), X["a"]), rtol=1e-6)


def test_a_multiple_of_a_tree_is_added():
    assert tree.add_scale({"a": 1.0}, 2.0, {"a": 3.0}) == {"a": 7.0}


def test_the_type_of_a_single_leaf():
    assert tree.dtype({"a": jnp.ones(1, jnp.bfloat16)}) == jnp.bfloat16


def test_arrays_in_the_memory_of_the_host_are_known():
    x = jnp.ones(2)
    assert is_on_host(jax.device_put(x, HOST))
    assert not is_on_host(x)


def test_the_moment_of_adamax_is_the_larger_of_both():
    g, m = jnp.array([-3.0, 1.0]), jnp.array([4.0, 8.0])
    assert tree.update_infinity_moment(g, m, 0.5, 0.25).tolist() == [3.25, 4.0]


@pytest.mark.parametrize(("order", "want"), [(2, 25.0), (3, 125.0), (4, 625.0)])
def test_powers_of_complex_numbers_are_those_of_their_size(order, want):
    g = jnp.complex64(3 + 4j)
    new = tree.update_moment_per_elem_norm(g, jnp.float32(0.0), 0.0, order)
    np.testing.assert_allclose(new, want, rtol=1e-6)
    real = tree.update_moment_per_elem_norm(jnp.float32(-5), jnp.float32(0.0), 0.0, order)
    np.testing.assert_allclose(real, want, rtol=1e-6)
