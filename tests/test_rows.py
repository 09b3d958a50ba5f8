"""Rows themselves: what any indices mean, sums, norms, arithmetic, and what is refused."""

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import gradtx
from gradtx import Rows
from gradtx.leaves.rows import add_rows, gather_rows, is_inside

TABLE = (5, 2)


def dense(indices, values, shape=TABLE):
    """What rows mean, one by one."""
    table = np.zeros(shape)
    for i, value in zip(np.ravel(indices), np.reshape(values, (-1, *shape[1:])), strict=True):
        if 0 <= i < shape[0]:
            table[i] += value
    return table


def some(indices, dtype=jnp.float32):
    values = np.random.default_rng(len(indices)).normal(size=(len(indices), 2))
    return Rows(jnp.asarray(indices, jnp.int32), jnp.asarray(values, dtype), TABLE)


def lists_of(size):
    return st.lists(st.integers(-7, 9), min_size=size, max_size=size)


@pytest.mark.slow
@hypothesis.given(st.sampled_from([0, 2, 12]).flatmap(lists_of))
def test_any_indices(indices):
    """Duplicates, negative ones, too large ones, none, more than the table has rows."""
    rows = some(indices)
    want = dense(indices, rows.values)
    np.testing.assert_allclose(rows.to_dense(), want, rtol=1e-6, atol=1e-6)
    once = rows.coalesce()
    assert once.values.shape == rows.values.shape
    found = np.asarray(once.indices)
    assert (np.diff(found) > 0).all()
    named = found[found < TABLE[0]]
    assert set(named) == {i for i in indices if 0 <= i < TABLE[0]}
    np.testing.assert_allclose(once.values[: len(named)], want[named], rtol=1e-6, atol=1e-6)
    assert not once.values[len(named) :].any()
    np.testing.assert_allclose(gradtx.global_norm(rows), np.linalg.norm(want), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int32"])
def test_any_integers(dtype):
    shape = (300, 1)
    indices = jnp.asarray(np.array([0, 100, 100, -1]).astype(dtype))
    rows = Rows(indices, jnp.ones((4, 1)), shape)
    want = dense(np.asarray(indices).astype(np.int64), np.ones((4, 1)), shape)
    np.testing.assert_array_equal(rows.to_dense(), want)


@pytest.mark.slow
def test_64_bit_indices():
    with jax.enable_x64(True):
        rows = Rows(jnp.array([2**32 + 1, 1, -(2**32)]), jnp.ones((3, 2)), TABLE)
        np.testing.assert_array_equal(rows.to_dense(), dense([1], [[1, 1]]))


@pytest.mark.slow
@pytest.mark.parametrize("index", [2**32 + 1, -(2**32) + 1, 2**31])
def test_no_index_is_cut_off(index):
    """JAX makes 32 bits of 64: a hashed id would hit another row."""
    far = np.array([3, index])
    with pytest.raises(ValueError, match=f"fit into 32 bits .* {index} does not"):
        Rows(far, jnp.ones((2, 2)), TABLE)
    with pytest.raises(ValueError, match="take: ids must fit into 32 bits"):
        gradtx.sparse.take(jnp.ones(TABLE), far)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(
            Rows(far, jnp.ones((2, 2)), TABLE).to_dense(), dense([3], [[1, 1]])
        )


@pytest.mark.slow
def test_what_is_not_rows_of_numbers():
    for indices in ([1.5], np.array([1.0]), [True], ["1"], None):
        with pytest.raises(TypeError, match="Rows: indices must be integers"):
            Rows(indices, jnp.ones((1, 2)), TABLE)
    for values in (jnp.ones((1, 2), int), [[1, 2]], np.ones((1, 2), bool), None):
        with pytest.raises(TypeError, match="values must be floating point or complex"):
            Rows([1], values, TABLE)
    np.testing.assert_array_equal(Rows([1], [[1.0, 2.0]], TABLE).to_dense(), dense([1], [[1, 2]]))
    assert not Rows([], np.ones((0, 2)), TABLE).to_dense().any()


def test_a_table_of_more_rows_than_32_bits_count():
    rows = Rows(jnp.array([1]), jnp.ones((1,)), (2**31,))
    with pytest.raises(ValueError, match="needs jax_enable_x64"):
        rows.coalesce()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_a_table_may_have_more_rows_than_the_type_of_its_indices_counts(dtype):
    most, rows = np.iinfo(dtype).max, 2**32 + 5
    with jax.enable_x64(True):
        indices = jnp.asarray(np.array([3, most, 3], dtype))
        found = Rows(indices, jnp.ones((3, 2)), (rows, 2)).coalesce()
        assert found.indices.tolist() == [3, most, rows + 2]
        assert found.values.tolist() == [[2, 2], [1, 1], [0, 0]]
        below = np.array([-1, 0], "int8")  # a negative one names no row, however many there are
        assert is_inside(jnp.asarray(below), rows).tolist() == [False, True]
    sizes = [is_inside(jnp.array([126, 127], jnp.int8), n).tolist() for n in (126, 127, 128, 129)]
    assert sizes == [[False, False], [True, False], [True, True], [True, True]]


@pytest.mark.slow
def test_indices_of_any_shape():
    rows = Rows(jnp.array([[2, 0], [2, 9]]), jnp.ones((2, 2, 2)), TABLE)
    np.testing.assert_array_equal(rows.to_dense(), dense([2, 0, 2], np.ones((3, 2))))
    np.testing.assert_array_equal(rows.coalesce().indices, [0, 2, 7, 8])
    one = Rows(jnp.array(3), jnp.ones(2), TABLE)
    np.testing.assert_array_equal(one.to_dense(), dense([3], np.ones((1, 2))))


@pytest.mark.slow
def test_a_vector_is_a_table_of_numbers():
    rows = Rows(jnp.array([1, 1, 3]), jnp.array([1.0, 2.0, 4.0]), (4,))
    np.testing.assert_array_equal(rows.to_dense(), [0, 3, 0, 4])


@pytest.mark.slow
def test_duplicates_are_summed_in_single_precision():
    """4,096 ones in bfloat16, whose numbers are even beyond 256."""
    rows = Rows(jnp.zeros(4096, int), jnp.ones((4096, 2), jnp.bfloat16), TABLE)
    assert rows.to_dense()[0].tolist() == [4096, 4096]
    assert rows.dtype == rows.coalesce().dtype == jnp.bfloat16


@pytest.mark.slow
def test_what_is_not_finite_stays_in_its_row():
    rows = Rows(jnp.array([0, 7, 1]), jnp.array([[1.0, 1], [jnp.nan, 1], [jnp.inf, 1]]), TABLE)
    found = np.asarray(rows.to_dense())
    assert np.isinf(found[1, 0])
    assert not np.isnan(found).any()


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("values", ["float32", "bfloat16"])
def test_rows_are_added_to_what_the_table_holds(dtype, values):
    """In float32, and rounded once; there is no row 7."""
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=TABLE), dtype)
    rows = Rows(jnp.array([3, 7, 0]), jnp.asarray(rng.normal(size=(3, 2)), values), TABLE)
    want = np.array(table, np.float32)
    want[[3, 0]] += np.asarray(rows.values, np.float32)[[0, 2]]
    np.testing.assert_array_equal(add_rows(table, rows), jnp.asarray(want, dtype))


@pytest.mark.slow
def test_wider_rows_are_rounded_after_their_addition():
    with jax.enable_x64(True):
        rows = Rows(jnp.array([1]), jnp.full((1, 2), 2.0**-24 + 2.0**-52), TABLE)
        new = add_rows(jnp.ones(TABLE, jnp.float32), rows)
        assert new[1].tolist() == [1 + 2.0**-23] * 2


@pytest.mark.slow
def test_rows_are_added_to_short_floats_at_random_with_a_key():
    table = jnp.ones((64, 1), jnp.bfloat16)
    rows = Rows(jnp.arange(64), jnp.full((64, 1), 2.0**-9, jnp.bfloat16), table.shape)
    up = add_rows(table, rows, jax.random.key(0)) > 1
    assert 0 < up.sum() < 32
    assert not (add_rows(table, rows) > 1).any()


@pytest.mark.slow
def test_rows_past_the_last_are_gathered_as_zeros():
    table = jnp.arange(1.0, 4.0)[:, None]
    assert gather_rows(table, jnp.array([2, 3])).tolist() == [[3], [0]]
    assert gather_rows(table, jnp.array([[3], [4]])).tolist() == [[[0]], [[0]]]


@pytest.mark.slow
def test_arithmetic():
    a, b, table = some([3, 1, 3]), some([0, 3]), jnp.ones(TABLE)
    for found, want in [
        (a + b, a.to_dense() + b.to_dense()),
        (a - b, a.to_dense() - b.to_dense()),
        (-a, -a.to_dense()),
        (2 * a, 2 * a.to_dense()),
        (a * jnp.float32(2), 2 * a.to_dense()),
        (np.float32(2) * a, 2 * a.to_dense()),
        (jnp.float32(2) * a, 2 * a.to_dense()),
        (a / 2, a.to_dense() / 2),
        (sum([a, b], start=table), table + a.to_dense() + b.to_dense()),
    ]:
        found = found.to_dense() if isinstance(found, Rows) else found
        chex.assert_trees_all_close(found, want, rtol=1e-6, atol=1e-6)
    for found in (a + table, table + a, np.ones(TABLE) + a):
        chex.assert_trees_all_close(found, 1 + a.to_dense(), rtol=1e-6)
    chex.assert_trees_all_close(table - a, 1 - a.to_dense(), rtol=1e-6)


@pytest.mark.slow
def test_rows_left_over_stay_zero_whatever_becomes_of_the_others():
    """They are marked as coalesced, and no sum over them may count what a function makes of 0."""
    rows = Rows(jnp.array([1, 1, 9]), jnp.ones((3, 2)), TABLE).coalesce()
    new = rows.with_values(1 / rows.values)
    np.testing.assert_array_equal(new.to_dense(), dense([1], np.full((1, 2), 0.5)))
    assert float(gradtx.global_norm(new)) == pytest.approx(0.5**0.5)
    tx = gradtx.chain(gradtx.scale_by_adam(eps=0.0), gradtx.clip_by_global_norm(1.0))
    updates, _ = tx.update(rows, tx.init(jnp.zeros(TABLE)))
    np.testing.assert_allclose(updates.to_dense()[1], 0.5**0.5, rtol=1e-6)


@pytest.mark.slow
def test_it_crosses_jit_scan_and_vmap():
    rows = some([3, 1, 3])
    chex.assert_trees_all_close(jax.jit(lambda r: 2 * r)(rows).to_dense(), 2 * rows.to_dense())

    def step(carry, r):
        return carry + r, r * 2

    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), rows)
    total, doubled = jax.lax.scan(step, jnp.zeros(TABLE), stacked)
    chex.assert_trees_all_close(total, 2 * rows.to_dense(), rtol=1e-6)
    # What a scan stacked is the sum over its steps: rows of micro-batches need nothing else.
    chex.assert_trees_all_close(doubled.to_dense(), 4 * rows.to_dense(), rtol=1e-6)
    tables = jax.vmap(lambda r: r.to_dense())(stacked)
    chex.assert_trees_all_close(tables, jnp.stack([rows.to_dense()] * 2))


class TestRefused:
    def test_no_integers(self):
        with pytest.raises(TypeError, match="indices must be integers, not float32.*tree.map"):
            jax.tree.map(lambda x: 0.5 * x, some([1, 2]))

    def test_another_trailing_shape(self):
        with pytest.raises(ValueError, match=r"the trailing shape must be \(2,\)"):
            Rows(jnp.array([1]), jnp.ones((1, 3)), TABLE)

    def test_an_index_too_many(self):
        with pytest.raises(ValueError, match="an index for each row"):
            Rows(jnp.array([1, 2]), jnp.ones((1, 2)), TABLE)

    def test_a_scalar_table(self):
        with pytest.raises(ValueError, match="at least one dimension"):
            Rows(jnp.array([1]), jnp.ones(1), ())

    def test_another_table(self):
        rows = some([1])
        with pytest.raises(ValueError, match=r"\(5, 2\) and \(6, 2\) cannot be added"):
            rows + Rows(jnp.array([1]), jnp.ones((1, 2)), (6, 2))
        with pytest.raises(ValueError, match=r"\(5, 2\) cannot be added to \(6, 2\)"):
            jnp.ones((6, 2)) + rows
        with pytest.raises(
            ValueError, match=r"the parameter is \(6, 2\) and its gradient \(5, 2\)"
        ):
            gradtx.apply_gradients(gradtx.sgd(0.1), rows, jnp.ones((6, 2)), ())

    def test_a_product_with_an_array(self):
        with pytest.raises(ValueError, match=r"by a number, not by shape \(5, 2\)"):
            some([1]) * jnp.ones(TABLE)


@pytest.mark.parametrize("name", ["lamb", "lars", "stable_adamw", "adamp"])
def test_whoever_refuses_rows_has_the_name_that_users_know(name):
    tx, table = getattr(gradtx, name)(0.1, weight_decay=0.1), jnp.ones((4, 2))
    with pytest.raises(TypeError, match=f"^scale_by_{name} looks at whole leaves"):
        tx.update(some([1, 2]), tx.init(table), table)


@pytest.mark.slow
def test_another_library_that_takes_rows_apart_is_told_of_dense_rows():
    optax = pytest.importorskip("optax")
    tx, rows = gradtx.chain(optax.adam(0.1)), some([1, 2])
    table = jnp.zeros(rows.shape)
    with pytest.raises(ValueError, match="another library .* put dense_rows around it"):
        tx.update(rows, tx.init(table))
    tx = gradtx.dense_rows(tx)
    assert tx.update(rows, tx.init(table))[0].shape == rows.shape
