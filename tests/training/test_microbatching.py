"""Micro-batches and gradients of single examples against the whole batch."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests.distributed.meshes import counted, mesh, on


def loss(p, x, y):
    return jnp.mean((jnp.tanh(x @ p["w"]) + p["b"] - y) ** 2)


def params(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return {"w": jnp.asarray(rng.normal(size=(4, 3)), dtype), "b": jnp.zeros(3, dtype)}


def batch(n=12, dtype=jnp.float32):
    rng = np.random.default_rng(1)
    return jnp.asarray(rng.normal(size=(n, 4)), dtype), jnp.asarray(rng.normal(size=(n, 3)), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4, 5, 12, 20])
def test_a_mean_is_that_of_the_whole_batch(size):
    """Also where the last part is smaller, or there is only a smaller part."""
    with jax.enable_x64(True):
        full = jax.value_and_grad(loss)
        parts = jax.jit(gradtx.microbatch(full, (1, 2), size, "mean"))
        p, data = params(jnp.float64), batch(dtype=jnp.float64)
        chex.assert_trees_all_close(parts(p, *data), full(p, *data), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 5])
def test_concatenation_keeps_the_order(size):
    def each(x, *, y):
        return x["a"].T * 2 + y[:, None], jnp.sum(y), {"n": jnp.sum(y > 0)}

    x, y = {"a": jnp.arange(36.0).reshape(3, 12)}, jnp.linspace(0, 2, 12)
    how = ("concat", "sum", "sum")
    parts = gradtx.microbatch(each, 0, size, how, argnames="y", in_axes=(1, 0))
    chex.assert_trees_all_close(parts(x, y=y), each(x, y=y), rtol=1e-6)


@pytest.mark.slow
def test_another_dimension_and_a_traced_number_of_parts():
    x = jnp.arange(24.0).reshape(2, 12)

    @jax.jit
    def some(n):
        parts = gradtx.microbatch(jnp.mean, 0, 4, "mean", in_axes=1, num_real_microbatches=n)
        return parts(x)

    assert float(some(3)) == pytest.approx(float(x.mean()))
    assert float(some(1)) == pytest.approx(float(x.reshape(2, 4, 3)[:, :, 0].mean()))


@pytest.mark.slow
def test_like_optax():
    x, y = batch()
    ours = gradtx.microbatch(jax.grad(loss), (1, 2), 4, "sum")
    theirs = optax.microbatch(jax.grad(loss), (1, 2), 4)
    chex.assert_trees_all_close(ours(params(), x, y), theirs(params(), x, y), rtol=1e-5)


def test_memory_falls_with_the_size_of_a_part():
    def wide(p, x):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ p) @ p.T) ** 2)

    p, x = jax.ShapeDtypeStruct((32, 256), "f4"), jax.ShapeDtypeStruct((1024, 32), "f4")

    def temporaries(size):
        parts = jax.jit(gradtx.microbatch(jax.grad(wide), 1, size, "mean"))
        return parts.lower(p, x).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(64) < temporaries(None) / 8


@pytest.mark.slow
def test_a_sharded_batch_stays_where_it_is():
    """Every part has a share of each device: the batch is not gathered."""
    m = mesh(data=8)
    parts = jax.jit(gradtx.microbatch(jax.grad(loss), (1, 2), 16, "mean"))
    p, data = jax.device_put(params(), on(m)), jax.device_put(batch(64), on(m, "data"))
    found = counted(parts.lower(p, *data).compile())
    assert set(found) <= {"all-reduce"}
    want = jax.grad(loss)(params(), *batch(64))
    chex.assert_trees_all_close(parts(p, *data), want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_half_precision_is_added_in_single():
    x = jnp.full(4096, 1.0, jnp.bfloat16)
    assert float(gradtx.microbatch(jnp.sum, 0, 1)(x)) == 4096
    assert gradtx.microbatch(jnp.sum, 0, 1)(x).dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "at least 1"),
        ((0, 2, "median"), "'median'"),
        ((0, 5, "sum", 3), "needs a batch that 5 divides"),
        (((0, 1), 2), "one size"),
    ],
)
def test_bad_input(arguments, message):
    *rest, real = arguments if len(arguments) == 4 else (*arguments, None)
    with pytest.raises(ValueError, match=message):
        parts = gradtx.microbatch(lambda x, y: x, *rest, num_real_microbatches=real)
        parts(jnp.arange(12.0), jnp.arange(11.0))


def test_a_mean_of_integers_and_a_scalar_to_concatenate():
    for size in (2, 8):  # of a batch that is smaller than a part too
        with pytest.raises(ValueError, match="mean of int32"):
            gradtx.microbatch(jnp.sum, 0, size, "mean")(jnp.arange(4))
        with pytest.raises(ValueError, match="scalar"):
            gradtx.microbatch(jnp.sum, 0, size, "concat")(jnp.arange(4))
    with pytest.raises(TypeError, match="microbatch_size"):
        gradtx.microbatch(jnp.sum, 0, 2.5)


class TestPerExample:
    def gradients(self):
        rng = np.random.default_rng(2)
        return {k: rng.normal(size=(6, *v.shape)) for k, v in params().items()}

    def test_mean(self):
        g = self.gradients()
        tx = gradtx.per_example()
        updates, _ = tx.update(jax.tree.map(jnp.asarray, g), tx.init(params()), params())
        chex.assert_trees_all_close(updates, {k: v.mean(0) for k, v in g.items()}, rtol=1e-5)

    def test_clipped_mean(self):
        g = self.gradients()
        norms = np.sqrt(sum((v**2).reshape(6, -1).sum(1) for v in g.values()))
        factors = np.minimum(1, 0.7 / norms)
        want = {k: np.tensordot(factors, v, 1) / 6 for k, v in g.items()}
        tx = gradtx.per_example(0.7)
        updates, _ = tx.update(jax.tree.map(jnp.asarray, g), tx.init(params()), params())
        chex.assert_trees_all_close(updates, want, rtol=1e-5)

    @pytest.mark.slow
    def test_over_devices(self):
        """Clipped examples of all devices: the mean over all of them."""
        g = jax.tree.map(jnp.asarray, self.gradients())
        tx = gradtx.chain(gradtx.per_example(0.7), gradtx.aggregate("data"))

        def update(g):
            return tx.update(g, tx.init(params()), params())[0]

        shards = jax.tree.map(lambda x: x.reshape(3, 2, *x.shape[1:]), g)
        got = jax.tree.map(lambda x: x[0], jax.vmap(update, axis_name="data")(shards))
        whole = gradtx.per_example(0.7)
        want, _ = whole.update(g, whole.init(params()), params())
        chex.assert_trees_all_close(got, want, rtol=1e-5)


def test_a_batch_dimension_counted_from_the_end():
    x = jnp.arange(15.0).reshape(3, 5)
    parts = gradtx.microbatch(jnp.transpose, 0, 2, "concat", in_axes=-1)
    np.testing.assert_array_equal(parts(x), x.T)


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_no_part_is_counted_twice(how):
    call = gradtx.microbatch(getattr(jnp, how), 0, 2, how, num_real_microbatches=jnp.int32(6))
    assert call(jnp.arange(8.0)) == getattr(jnp, how)(jnp.arange(8.0))
    for parts in (0, 5, -1, np.int64(6)):
        with pytest.raises(ValueError, match="from 1 to the 4 parts"):
            gradtx.microbatch(getattr(jnp, how), 0, 2, how, num_real_microbatches=parts)(
                jnp.arange(8.0)
            )


@pytest.mark.slow
def test_concatenation_keeps_the_order_of_several_rows_of_each_example():
    x = jnp.arange(10).reshape(5, 2)
    for size in (1, 2, 3):
        parts = gradtx.microbatch(lambda x: x.reshape(-1), 0, size, "concat")
        assert parts(x).tolist() == list(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_rows_of_all_parts_are_gathered(how, size):
    """Their indices are not added."""
    combined = jnp.sum if how == "sum" else jnp.mean

    def loss(table, ids, x):
        return combined(x * gradtx.sparse.take(table, ids)[:, 0])

    full = gradtx.sparse.value_and_grad(loss)
    table, ids, x = jnp.zeros((10, 1)), jnp.array([1, 2, 3, 4, 1]), jnp.arange(5.0)
    _, want = full(table, ids, x)
    _, found = jax.jit(gradtx.microbatch(full, (1, 2), size, how))(table, ids, x)
    assert isinstance(found, gradtx.Rows)
    np.testing.assert_allclose(found.to_dense(), want.to_dense(), rtol=1e-6)
    few = gradtx.microbatch(full, (1, 2), 1, how, num_real_microbatches=1)
    with gradtx.sparse.check_indices(True):
        _, found = few(table, ids, x)
    np.testing.assert_allclose(found.to_dense(), full(table, ids[:1], x[:1])[1].to_dense())
    with pytest.raises(ValueError, match="Rows cannot be concatenated"):
        gradtx.microbatch(full, (1, 2), size, ("sum", "concat"))(table, ids, x)


@pytest.mark.slow
@pytest.mark.parametrize("size", [512, 4096])
def test_rows_of_half_precision_are_averaged_in_single(size):
    """A part of such a mean would vanish, or be rounded to a few digits."""

    def rows(ids, x):
        return gradtx.Rows(ids, x[:, None] / x.shape[0], (4, 1))

    mean = gradtx.microbatch(rows, (0, 1), 1, "mean")
    found = mean(jnp.ones(size, int), jnp.full(size, 1e-4, jnp.float16))
    assert found.dtype == jnp.float16
    np.testing.assert_allclose(found.to_dense()[1], 1e-4, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.uint8, bool, jnp.int32])
def test_short_integers_are_summed_in_a_longer_type(dtype):
    x = jnp.asarray([100, 100, 100, 0, 1], jnp.int32).astype(dtype)
    found = gradtx.microbatch(lambda x: jnp.cumsum(x, dtype=dtype)[-1:], 0, 1)(x)
    assert found.dtype == jnp.sum(x).dtype
    assert found.tolist() == [int(jnp.sum(x))]
    mixed = gradtx.microbatch(lambda x: jnp.max(x, keepdims=True), 0, 2)(x)
    assert mixed.tolist() == [int(x[0]) + int(x[1]) + int(x[4])]


@pytest.mark.slow
def test_a_mean_of_large_numbers_and_a_short_number_of_parts():
    x = jnp.full(8, 1e38)
    assert gradtx.microbatch(jnp.mean, 0, 4, "mean")(x / 2) == jnp.float32(0.5e38)
    for kind in (jnp.uint8, jnp.int8):
        few = jax.jit(lambda n, x: gradtx.microbatch(jnp.sum, 0, 1, num_real_microbatches=n)(x))
        assert few(kind(3), jnp.ones(300)) == 3


def test_positions_from_the_end_and_arguments_that_are_not_there():
    f, x = (lambda p, x: jnp.sum(p * x)), jnp.arange(4.0)
    assert gradtx.microbatch(f, -1, 2)(1.0, x) == 6
    for missing in (1, -3, 2):
        with pytest.raises(ValueError, match="microbatch: there is no argument"):
            gradtx.microbatch(f, missing, 2)(1.0, x=x)
