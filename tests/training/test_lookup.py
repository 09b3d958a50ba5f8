"""Look-ups in a loss: what is differentiated, under which transformations, and what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import gradtx
from gradtx import sparse
from gradtx.backward.lookup import looked_up
from gradtx.sparse import take
from tests.quick import quick

RNG = np.random.default_rng(0)
PARAMS = {
    "table": jnp.asarray(RNG.normal(size=(10, 3)), jnp.float32),
    "w": jnp.asarray(RNG.normal(size=3), jnp.float32),
}
IDS = jnp.array([3, 1, 3, 9, -1, 12])


def score(params, ids):
    return jnp.tanh(take(params["table"], ids) @ params["w"])


score_jitted = jax.jit(score)


def in_scan(params, ids):
    def body(carry, i):
        half = params["w"] / 2  # before the table
        row = take(params["table"], i)
        return carry + jnp.tanh(row @ (half + half)) * carry, jnp.sum(row)

    last, sums = jax.lax.scan(body, jnp.float32(1.0), ids, reverse=True)
    return last + jnp.sum(sums**2)


def in_nested_scans(params, ids):
    table = params["table"]

    def outer(carry, pair):
        def inner(carry, i):
            return carry + jnp.sum(jnp.sin(take(table, i)) * params["w"]), None

        return jax.lax.scan(inner, carry, pair)[0], None

    return jax.lax.scan(outer, jnp.float32(0.0), ids.reshape(3, 2))[0]


def chained(params, ids):
    """The second look-up depends on what the first gives."""
    first = take(params["table"], ids)
    return jnp.sum(first * take(params["table"], jnp.argmax(first, axis=1)))


LOSSES = {
    "once": lambda p, i: jnp.sum(score(p, i)),
    "twice": lambda p, i: jnp.sum(score(p, i)) * jnp.mean(score(p, i[:2] + 1)),
    "in jit": lambda p, i: jnp.sum(score_jitted(p, i)),
    "in vmap": lambda p, i: jnp.sum(jax.vmap(lambda j: score(p, j))(i)),
    "in vmap and jit": lambda p, i: jnp.sum(jax.vmap(score_jitted, (None, 0))(p, i.reshape(2, 3))),
    "in scan": in_scan,
    "in nested scans": in_nested_scans,
    "in checkpoint": lambda p, i: jnp.sum(jax.checkpoint(score_jitted)(p, i)),
    "cast": lambda p, i: jnp.sum(take(p["table"].astype(jnp.bfloat16), i).astype(jnp.float32) ** 2),
    "chained": chained,
    "no rows": lambda p, i: jnp.sum(score(p, i[:0])) + jnp.sum(p["w"]),
    "one row": lambda p, i: jnp.sum(take(p["table"], i[0])),
}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", quick([False, True], True), ids=["eager", "jit"])
@pytest.mark.parametrize("name", LOSSES)
def test_rows_are_the_gradient(name, compiled):
    differentiate = sparse.value_and_grad(LOSSES[name])
    value, grads = (jax.jit(differentiate) if compiled else differentiate)(PARAMS, IDS)
    want_value, want = jax.value_and_grad(LOSSES[name])(PARAMS, IDS)
    assert isinstance(grads["table"], gradtx.Rows)
    chex.assert_trees_all_close(value, want_value, rtol=1e-5)
    chex.assert_trees_all_close(grads["table"].to_dense(), want["table"], rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(grads["w"], want["w"], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_jitted_function_that_was_traced_before_is_looked_into():
    score_jitted(PARAMS, IDS)
    for _ in range(2):
        grads = gradtx.compute_gradients(LOSSES["in jit"], PARAMS, IDS)[1]
        assert isinstance(grads["table"], gradtx.Rows)


@pytest.mark.slow
def test_no_table_is_made_where_few_rows_are_looked_up():
    table = jnp.zeros((100_000, 8))
    step = gradtx.make_step(lambda p, i: jnp.sum(jnp.sin(take(p, i))), gradtx.adam(0.1))
    compiled = step.lower(table, step.init(table), IDS).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 10_000


@pytest.mark.slow
def test_a_table_used_as_a_whole_is_dense_and_says_so():
    def tied(params, ids):
        return jnp.sum(jnp.tanh(take(params["table"], ids) @ params["table"].T))

    with pytest.warns(UserWarning, match="'table' is looked up and also used as a whole"):
        _, grads = sparse.value_and_grad(tied)(PARAMS, IDS)
    chex.assert_trees_all_close(grads["table"], jax.grad(tied)(PARAMS, IDS)["table"], rtol=1e-5)


@pytest.mark.slow
def test_a_returned_table_is_dense():
    def loss(table, ids):
        return jnp.sum(take(table, ids)), table

    with pytest.warns(UserWarning, match="used as a whole, by 'return'"):
        (_, aux), grad = sparse.value_and_grad(loss, has_aux=True)(PARAMS["table"], IDS)
    chex.assert_trees_all_equal(aux, PARAMS["table"])
    assert isinstance(grad, jax.Array)


@pytest.mark.slow
def test_a_table_computed_from_a_parameter_is_dense_and_says_so():
    with pytest.warns(UserWarning, match="computed from parameters"):
        _, grad = sparse.value_and_grad(lambda t: jnp.sum(take(2 * t, IDS)))(PARAMS["table"])
    assert isinstance(grad, jax.Array)
    assert float(grad[3, 0]) == 4


@pytest.mark.slow
def test_vmap_over_tables_is_dense_and_says_so():
    tables = jnp.stack([PARAMS["table"], 2 * PARAMS["table"]])

    def loss(tables):
        rows = jax.vmap(take, (0, None))(tables, IDS)
        return jnp.sum(rows**2), rows

    with pytest.warns(UserWarning, match="under a vmap over tables"):
        (_, rows), grads = sparse.value_and_grad(loss, has_aux=True)(tables)
    chex.assert_trees_all_equal(rows, jnp.stack([take(table, IDS) for table in tables]))
    times = jnp.zeros(10).at[jnp.array([3, 1, 3, 9])].add(1)
    chex.assert_trees_all_close(grads, 2 * tables * times[:, None], rtol=1e-6)


def test_frozen_tables_are_looked_up_without_gradients():
    step = gradtx.make_step(LOSSES["once"], gradtx.sgd(0.1), trainable="w", donate=False)
    params, _, _ = step(PARAMS, step.init(PARAMS), IDS)
    chex.assert_trees_all_equal(params["table"], PARAMS["table"])
    assert not np.allclose(params["w"], PARAMS["w"])


@pytest.mark.slow
def test_complex_rows_are_conjugated_by_compute_gradients():
    table = jnp.array([[1 + 2j], [3j]])

    def loss(table):
        return jnp.sum(jnp.abs(take(table, jnp.array([1]))) ** 2)

    _, grad = gradtx.compute_gradients(loss, table)
    chex.assert_trees_all_close(grad.to_dense()[1], 2 * table[1])


@pytest.mark.slow
def test_several_arguments_and_aux():
    def loss(table, ids, w, scale=1.0):
        rows = take(table, ids)
        return scale * jnp.sum(rows @ w), rows

    differentiate = sparse.value_and_grad(loss, argnums=(0, 2), has_aux=True)
    (value, rows), (table, w) = differentiate(PARAMS["table"], IDS, PARAMS["w"], scale=2.0)
    chex.assert_trees_all_close(value, 2 * jnp.sum(rows @ PARAMS["w"]), rtol=1e-6)
    assert isinstance(table, gradtx.Rows)
    chex.assert_trees_all_close(w, 2 * rows.sum(0), rtol=1e-6)


@pytest.mark.slow
def test_minimize_make_step_and_solve_agree_with_whole_tables():
    def whole(params, ids):
        inside = (ids >= 0) & (ids < 10)
        rows = params["table"][jnp.where(inside, ids, 0)] * inside[:, None]
        return jnp.sum(jnp.tanh(rows @ params["w"]))

    tx = gradtx.chain(gradtx.clip_by_global_norm(0.5), gradtx.sgd(0.1))
    want = gradtx.minimize(whole, tx, PARAMS, tx.init(PARAMS), IDS)
    got = gradtx.minimize(LOSSES["once"], tx, PARAMS, tx.init(PARAMS), IDS)
    step = gradtx.make_step(LOSSES["once"], tx, donate=False)
    chex.assert_trees_all_close(got, want, rtol=1e-5)
    chex.assert_trees_all_close(step(PARAMS, tx.init(PARAMS), IDS), want, rtol=1e-5)
    found = gradtx.solve(LOSSES["once"], PARAMS, tx, IDS, max_steps=1)
    chex.assert_trees_all_close(found.params, want[0], rtol=1e-5)


@pytest.mark.slow
def test_outside_the_table_is_no_row():
    assert take(PARAMS["table"], jnp.array([-1, 10])).tolist() == [[0.0] * 3] * 2
    assert take(PARAMS["table"], np.array([200], np.uint8)).tolist() == [[0.0] * 3]
    differentiate = sparse.value_and_grad(lambda i, t: jnp.sum(take(t, i)), argnums=1)
    _, grad = differentiate(jnp.array([-1, 10]), PARAMS["table"])
    assert not grad.to_dense().any()


@pytest.mark.slow
def test_outside_the_table_is_an_error_when_asked():
    with sparse.check_indices(True):
        with pytest.raises(IndexError, match="2 of 6 indices are outside a table of 10 rows"):
            take(PARAMS["table"], IDS)
        chex.assert_trees_all_equal(jax.jit(take)(PARAMS["table"], IDS[:4]).shape, (4, 3))
        with pytest.raises(jax.errors.JaxRuntimeError, match="outside a table of 10 rows"):
            jax.block_until_ready(jax.jit(take)(PARAMS["table"], IDS))
            jax.effects_barrier()
        with pytest.raises(IndexError, match="1 of 1 indices"):
            gradtx.Rows(jnp.array([10]), jnp.ones((1, 3)), (10, 3)).coalesce()


class TestRefused:
    def test_ids_that_depend_on_the_parameters_before_rows_catch_up(self):
        with pytest.raises(ValueError, match="looked up in 'table' depends on the parameters"):
            looked_up(lambda params: chained(params, IDS), PARAMS)

    def test_ids_that_are_no_integers(self):
        with pytest.raises(TypeError, match="ids must be integers, not float32"):
            take(PARAMS["table"], jnp.ones(2))

    def test_a_scalar_for_a_table(self):
        with pytest.raises(ValueError, match="at least one dimension"):
            take(1.0, jnp.array([0]))

    def test_a_table_without_rows(self):
        with pytest.raises(ValueError, match=r"of the shape \(0, 3\), has no rows"):
            take(jnp.zeros((0, 3)), jnp.array([0]))
        assert take(jnp.zeros((0, 3)), jnp.zeros(0, int)).shape == (0, 3)

    def test_a_loss_that_is_no_scalar(self):
        with pytest.raises(ValueError, match=r"must be a scalar, not of shape \(6,\)"):
            sparse.value_and_grad(score)(PARAMS, IDS)

    def test_inside_cond(self):
        def loss(params):
            return jax.lax.cond(IDS[0] > 0, lambda: jnp.sum(score(params, IDS)), lambda: 0.0)

        with pytest.raises(ValueError, match="'table' inside 'cond'.*look up before it"):
            gradtx.compute_gradients(loss, PARAMS)

    @pytest.mark.slow
    def test_inside_shard_map(self):
        mesh = Mesh(np.array(jax.devices()[:2]), ("data",))

        def loss(params):
            spread = jax.shard_map(
                lambda p, i: jax.lax.psum(jnp.sum(score(p, i)), "data"),
                mesh=mesh,
                in_specs=(PartitionSpec(), PartitionSpec("data")),
                out_specs=PartitionSpec(),
            )
            return spread(params, IDS)

        with pytest.raises(ValueError, match="'table' inside 'shard_map'"):
            gradtx.compute_gradients(loss, PARAMS)

    def test_inside_a_function_with_its_own_derivative(self):
        @jax.custom_vjp
        def embed(table):
            return jnp.sum(take(table, IDS))

        embed.defvjp(lambda t: (embed(t), t), lambda t, g: (g * jnp.ones_like(t),))
        with pytest.raises(ValueError, match="inside 'custom_vjp_call'"):
            gradtx.compute_gradients(embed, PARAMS["table"])


@pytest.mark.parametrize("length", [2, 3])
def test_what_a_scan_looks_up_next_by_what_it_has_looked_up_is_refused(length):
    """The first turn reads data alone; the carry of the later ones is computed from rows."""

    def decoded(params):
        def body(carry, _):
            token, before = carry
            e = take(params["table"], before)
            return (jnp.argmax(e), token), jnp.sum(e)

        return jnp.sum(jax.lax.scan(body, (jnp.int32(1), jnp.int32(2)), length=length)[1])

    with pytest.raises(ValueError, match="looked up in 'table' depends on the parameters"):
        looked_up(decoded, PARAMS)


@pytest.mark.parametrize("call", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_place_that_is_counted_beside_parameters_is_data(call):
    """In the carry of a scan whose body is called, beside what is computed from rows."""
    tokens = jnp.array([1, 2, 3])

    def loss(params):
        @call
        def body(carry, _):
            h, i = carry
            return (jnp.tanh(h + take(params["table"], tokens[i]) @ params["w"]), i + 1), None

        return jax.lax.scan(body, (jnp.float32(0), jnp.int32(0)), length=3)[0][0]

    found = looked_up(loss, PARAMS)["table"]
    assert sorted(found.indices.ravel().tolist()) == [1, 2, 3]
