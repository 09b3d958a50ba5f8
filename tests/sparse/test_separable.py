"""Whether rows may take steps by themselves: random chains of what does and does not mix rows."""

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import gradtx
from gradtx import sparse
from gradtx.sparse.separable import check_separable

ROWS, COLUMNS, STEPS = 7, 3, 6
RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.normal(size=(ROWS, COLUMNS)), jnp.float32)
IDS = jnp.asarray(RNG.integers(0, ROWS - 1, (STEPS, 2)))
TARGETS = jnp.asarray(RNG.normal(size=(STEPS, 2, COLUMNS)), jnp.float32)


def of_values(function):
    return gradtx.stateless(lambda updates, params: gradtx.tree.map_updates(function, updates))


def norm(x, axis=None):
    return jnp.sqrt(jnp.sum(x**2, axis=axis, keepdims=True) + 1e-3)


def damped_by_gradients():
    """Momentum times a number of the gradients of all rows, which is not 1 where a row has none."""
    momentum = gradtx.trace(0.9)

    def update(updates, state, params=None, **extra_args):
        damping = 1 / (1 + gradtx.global_norm(updates))
        moved, state = momentum.update(updates, state, params)
        return gradtx.tree.map_updates(lambda u: damping * u, moved), state

    return gradtx.GradientTransformationExtraArgs(momentum.init, update)


def halved_until_small(x):
    return jax.lax.while_loop(lambda x: jnp.max(abs(x)) > 0.5, lambda x: 0.5 * x, x)


def summed_by_a_scan(x, axis):
    rows = jnp.moveaxis(x, axis, 0)
    _, sums = jax.lax.scan(lambda now, row: (now + row, now + row), jnp.zeros_like(rows[0]), rows)
    return jnp.moveaxis(sums, 0, axis)


LINKS = {
    "trace": lambda: gradtx.trace(0.9),
    "adam": gradtx.scale_by_adam,
    "rowwise": gradtx.scale_by_rowwise_adam,
    "decay": lambda: gradtx.add_decayed_weights(0.1),
    "decay of large leaves": lambda: gradtx.add_decayed_weights(
        0.1, lambda p: jax.tree.map(lambda x: x.size > 2 * COLUMNS, p)
    ),
    "clip": lambda: gradtx.clip_by_global_norm(0.1),
    "scale": lambda: gradtx.scale(0.5),
    "sign": lambda: of_values(jnp.sign),
    "norm of a column": lambda: of_values(lambda x: x / norm(x, 0)),
    "norm of a row": lambda: of_values(lambda x: x / norm(x, 1)),
    "damped by a column": lambda: of_values(lambda x: x * jnp.exp(-norm(x, 0))),
    "without the mean": lambda: of_values(lambda x: x - jnp.mean(x, 0)),
    "the rows before": lambda: of_values(lambda x: x + jnp.roll(x, 1, 0)),
    "sorted": lambda: of_values(lambda x: jnp.sort(x, 0)),
    "products of rows": lambda: of_values(lambda x: x @ x.T @ x),
    "by the number of rows": lambda: of_values(lambda x: x * len(x)),
    "within a row": lambda: of_values(lambda x: jnp.cumsum(jnp.sort(x, 1), 1)),
    "a choice by all rows": lambda: of_values(
        lambda x: jax.lax.cond(jnp.sum(x**2) > 0.1, lambda x: 2 * x, lambda x: x / 2, x)
    ),
    "a choice of what to add": lambda: of_values(
        lambda x: jax.lax.cond(jnp.sum(x**2) > 0.1, lambda x: x + 1, lambda x: x, x)
    ),
    "a loop": lambda: of_values(lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y / 2 + x, x)),
    "a loop until all rows are small": lambda: of_values(halved_until_small),
    "a scan over columns": lambda: of_values(lambda x: summed_by_a_scan(x, 1)),
    "a scan over rows": lambda: of_values(lambda x: summed_by_a_scan(x, 0)),
    "damped by gradients": damped_by_gradients,
}
MIXED = (
    ("trace", "norm of a column"),
    ("trace", "clip"),
    ("trace", "products of rows"),
    ("without the mean", "trace"),
    ("clip", "damped by gradients"),
    ("trace", "a choice by all rows"),
    ("a choice of what to add", "trace"),
    ("trace", "a loop until all rows are small"),
    ("a scan over rows", "trace"),
)
SEPARATE = (
    ("norm of a column", "trace"),
    ("clip", "decay of large leaves", "trace"),
    ("damped by a column", "adam", "norm of a row"),
    ("trace", "within a row"),
    ("a choice by all rows", "a loop", "trace", "a scan over columns"),
)


def chain(names):
    return gradtx.chain(*(LINKS[n]() for n in names), gradtx.scale(-0.1))


def is_separate(names):
    tx = chain(names)
    try:
        check_separable(tx, TABLE, tx.init(TABLE), TABLE)
    except (TypeError, ValueError) as refusal:
        assert "exact_rows: " in str(refusal)
        return False
    return True


def loss(table, ids, targets):
    return jnp.sum((sparse.take(table, ids) - targets) ** 2)


def trained(tx):
    def step(carry, batch):
        params, state, _ = gradtx.minimize(loss, tx, *carry, *batch)
        return (params, state), None

    return jax.lax.scan(step, (TABLE, tx.init(TABLE)), (IDS, TARGETS))[0]


def check_equals_dense(names):
    @jax.jit
    def ends():
        exact = gradtx.exact_rows(chain(names))
        return sparse.catch_up(exact, *trained(exact))[0], trained(gradtx.dense_rows(chain(names)))

    got, (want, _) = ends()
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", MIXED, ids=", ".join)
def test_what_mixes_rows_is_refused(names):
    assert not is_separate(names)


def test_a_row_of_another_table_is_another_row():
    def added(updates, params):
        return {"a": updates["a"] + updates["b"], "b": updates["b"]}

    params = {"a": TABLE, "b": TABLE}
    tx = gradtx.chain(gradtx.stateless(added), gradtx.trace(0.9), gradtx.scale(-0.1))
    with pytest.raises(ValueError, match="computed from the updates of all rows"):
        check_separable(tx, params, tx.init(params), params)


@pytest.mark.quick(1)
@pytest.mark.parametrize("lengths", [(9, 6), (20_000, 20_000), (3, 9, 9, 9, 9, 20_000)])
def test_tables_may_differ_in_length(lengths):
    params = [jnp.ones((n, 2)) for n in lengths] + [jnp.ones((9, 1))]
    tx = chain(("clip", "adam"))
    check_separable(tx, params, tx.init(params), params)


@pytest.mark.slow
@pytest.mark.parametrize("names", SEPARATE, ids=", ".join)
def test_what_does_not_is_the_dense_update(names):
    assert is_separate(names)
    check_equals_dense(names)


@pytest.mark.slow
@hypothesis.given(st.lists(st.sampled_from(sorted(LINKS)), min_size=1, max_size=4).map(tuple))
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
def test_any_chain_that_is_accepted_is_the_dense_update(names):
    if is_separate(names):
        check_equals_dense(names)
