"""Rows that a step does not touch: `exact_rows` against the dense update, over 200 random steps."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx import sparse
from gradtx.sparse.exact import _horizon, _SlotsOfRows, _take
from gradtx.sparse.separable import check_separable, treats_rows_alone
from tests.catalogue import CATALOGUE, optimizers
from tests.quick import quick

SIGNS = gradtx.stateless(lambda u, p: jax.tree.map(jnp.sign, u))

ROWS, COLUMNS, STEPS, BATCH = 40, 3, 200, 5
SCHEDULE = gradtx.warmup_cosine_decay_schedule(0.0, 0.05, 20, STEPS)

OPTIMIZERS = {
    "adam, scheduled": lambda: gradtx.adam(SCHEDULE),
    # Rows wait for longer than these take to forget.
    "adam, short memory": lambda: gradtx.adam(SCHEDULE, b1=0.5, b2=0.9),
    "momentum, short memory": lambda: gradtx.sgd(0.02, momentum=0.3),
    "rmsprop": lambda: gradtx.rmsprop(0.01, initial_scale=1.0),
    "adamw": lambda: gradtx.adamw(0.01, weight_decay=0.1),
    "momentum": lambda: gradtx.sgd(0.02, momentum=0.9),
    "rmsprop, momentum": lambda: gradtx.rmsprop(0.01, initial_scale=1.0, momentum=0.9),
    "ema, clipped, L2": lambda: gradtx.chain(
        gradtx.clip_by_global_norm(0.5),
        gradtx.add_decayed_weights(0.1),
        gradtx.ema(0.9),
        gradtx.scale_by_learning_rate(SCHEDULE),
    ),
}
# Every entry, or row, by itself: with those above all that catch up.
MORE = {
    "acprop": lambda: gradtx.acprop(0.01),
    "adagrad_da": lambda: gradtx.adagrad_da(0.05),
    "adamaxw": lambda: gradtx.adamaxw(0.01, weight_decay=0.1),
    "asgd": lambda: gradtx.asgd(0.01),
    "cocob": lambda: gradtx.cocob(0.05),
    "diffgrad": lambda: gradtx.diffgrad(0.01),
    "mars_adamw": lambda: gradtx.mars_adamw(0.01, max_norm=None),
    "nadamw": lambda: gradtx.nadamw(0.01, weight_decay=0.1),
    "optimistic_adam": lambda: gradtx.optimistic_adam(0.01),
    "optimistic_adam_v2": lambda: gradtx.optimistic_adam_v2(0.01),
    "optimistic_gradient_descent": lambda: gradtx.optimistic_gradient_descent(0.02),
    "proximal_adagrad": lambda: gradtx.proximal_adagrad(0.05),
    "proximal_gradient_descent": lambda: gradtx.proximal_gradient_descent(0.02),
    "simplified_ademamix": lambda: gradtx.simplified_ademamix(1e-4),
    "nesterov": lambda: gradtx.sgd(0.02, momentum=0.9, nesterov=True),
    "adagrad": lambda: gradtx.adagrad(0.05),
    "adagrad_decay": lambda: gradtx.adagrad_decay(0.05, 0.1, 30, 0.5),
    "rowwise_adagrad": lambda: gradtx.rowwise_adagrad(0.05),
    "rowwise_adam": lambda: gradtx.rowwise_adam(0.01),
    "adadelta": lambda: gradtx.adadelta(0.5),
    "adabelief": lambda: gradtx.adabelief(0.01),
    "adabound": lambda: gradtx.adabound(0.01),
    "adamax": lambda: gradtx.adamax(0.01),
    "adan": lambda: gradtx.adan(0.01),
    "ademamix": lambda: gradtx.ademamix(0.01),
    "adopt": lambda: gradtx.adopt(0.01),
    "amsgrad": lambda: gradtx.amsgrad(0.01),
    "ftrl": lambda: gradtx.ftrl(0.1, l1_regularization_strength=0.01),
    "laprop": lambda: gradtx.laprop(0.01),
    "lion": lambda: gradtx.lion(1e-3, weight_decay=0.1),
    "madgrad": lambda: gradtx.madgrad(0.01),
    "nadam": lambda: gradtx.nadam(0.01),
    "qhadam": lambda: gradtx.qhadam(0.01),
    "radam": lambda: gradtx.radam(0.01),
    "rprop": lambda: gradtx.rprop(0.01),
    "sign_sgd": lambda: gradtx.sign_sgd(1e-3),
    "signum": lambda: gradtx.signum(1e-3),
    "tiger": lambda: gradtx.tiger(1e-3),
    "yogi": lambda: gradtx.yogi(0.01),
}


def batches():
    """Ids of a power law, so that rows come often, twice in a batch, seldom or never."""
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.5, size=(STEPS, BATCH)) - 1
    ids[:, 0] = rng.integers(0, ROWS - 5, STEPS)
    return jnp.asarray(ids % ROWS), jnp.asarray(rng.normal(size=(STEPS, BATCH)), jnp.float32)


def params():
    rng = np.random.default_rng(1)
    table = jnp.asarray(rng.normal(size=(ROWS, COLUMNS)), jnp.float32)
    return {"table": table, "w": jnp.asarray(rng.normal(size=COLUMNS), jnp.float32)}


def loss(p, ids, targets):
    return jnp.mean((jnp.tanh(sparse.take(p["table"], ids)) @ p["w"] - targets) ** 2)


def adapted():
    """The parameters of a model of which LoRA trains a part."""
    rng = np.random.default_rng(2)
    shapes = {"lora_a": (COLUMNS, 2), "lora_b": (2, COLUMNS)}
    return params() | {k: jnp.asarray(rng.normal(size=n), jnp.float32) for k, n in shapes.items()}


def adapted_loss(p, ids, targets):
    rows = sparse.take(p["table"], ids)
    return jnp.mean((jnp.tanh(rows + rows @ p["lora_a"] @ p["lora_b"]) @ p["w"] - targets) ** 2)


def train(tx, steps=STEPS, of=loss, start=params):
    def step(carry, batch):
        p, state, value = gradtx.minimize(of, tx, *carry, *batch)
        return (p, state), value

    ids, targets = batches()
    run = jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), (ids[:steps], targets[:steps])))
    return run(start())


def check(make, tables=None, **model):
    (want, dense), values = train(gradtx.dense_rows(make()), **model)
    exact = gradtx.exact_rows(make(), tables)
    (p, state), found = train(exact, **model)
    chex.assert_trees_all_close(found, values, rtol=1e-5, atol=1e-5)
    p, state = sparse.catch_up(exact, p, state)
    chex.assert_trees_all_close(p, want, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(state.inner_state, dense, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_slot_fades_for_as_long_as_its_row_was_not_touched():
    """Also after the steps in which the row could still move; who has caught up has missed none."""
    tx, table = gradtx.exact_rows(gradtx.sgd(1.0, momentum=0.3)), jnp.zeros((2, 1))
    state, step = tx.init(table), jax.jit(functools.partial(gradtx.apply_gradients, tx))
    for row in (0, *[1] * 40):
        grads = gradtx.Rows(jnp.array([row]), jnp.ones((1, 1)), table.shape)
        table, state = step(grads, table, state)
    caught_up = sparse.catch_up(tx, table, state)
    (trace,) = gradtx.get_slot(caught_up[1], "trace")[0]
    np.testing.assert_allclose(trace, 0.3**40, rtol=1e-5)
    chex.assert_trees_all_equal(sparse.catch_up(tx, *caught_up), caught_up)


@pytest.mark.slow
def test_a_step_without_a_gradient_of_a_table_is_none_for_its_rows():
    inner = gradtx.sgd(1.0, momentum=0.5)
    tx, dense = gradtx.exact_rows(inner), gradtx.dense_rows(inner)
    p = whole = {"table": jnp.zeros((3, 1)), "bias": jnp.zeros(2)}
    state, dense_state = tx.init(p), dense.init(whole)
    for row in (0, None, 1, None, None):
        table = None if row is None else gradtx.Rows(jnp.array([row]), jnp.ones((1, 1)), (3, 1))
        grads = {"table": table, "bias": jnp.ones(2)}
        p, state = gradtx.apply_gradients(tx, grads, p, state)
        whole, dense_state = gradtx.apply_gradients(dense, grads, whole, dense_state)
    chex.assert_trees_all_equal(sparse.catch_up(tx, p, state)[0], whole)


@pytest.mark.slow
def test_rows_of_a_leaf_that_is_no_table_are_refused():
    """A vector is one only where it is named; its rows would stay behind without a word.

    Where tables are named, another leaf is lazy on purpose.
    """
    vector, grads = {"v": jnp.zeros(3)}, {"v": gradtx.Rows(jnp.array([1]), jnp.ones(1), (3,))}
    tx = gradtx.exact_rows(gradtx.sgd(1.0, momentum=0.5))
    with pytest.raises(ValueError, match="at 'v' is Rows, and the leaf is not among the tables"):
        tx.update(grads, tx.init(vector), vector)
    named = gradtx.exact_rows(gradtx.sgd(1.0, momentum=0.5), "v")
    p, state = vector, named.init(vector)
    for g in (grads, {"v": jnp.zeros(3)}):
        p, state = gradtx.apply_gradients(named, g, p, state)
    assert p["v"].tolist() == [0.0, -1.5, 0.0]
    both, grads = {**vector, "lazy": jnp.zeros(3)}, {**grads, "lazy": grads["v"]}
    updates, _ = named.update(grads, named.init(both), both)
    assert updates["lazy"].to_dense().tolist() == [0.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("inner", "horizon"),
    [
        (gradtx.sgd(0.1, momentum=0.3), 19),  # 0.3**19 is below 2**-32
        (gradtx.adamw(0.1), None),  # the decay of weights does not end
        (gradtx.chain(gradtx.adam(0.1), gradtx.count_steps()), 212),
        (gradtx.chain(gradtx.adam(0.1), gradtx.snapshot("n", gradtx.tree.norm)), 212),
        (gradtx.partition({"x": gradtx.chain(gradtx.trace(0.9), SIGNS)}, "x"), None),
        # What Optax keeps is not known to fade.
        (gradtx.chain(optax.trace(0.9), gradtx.sgd(0.1, momentum=0.3)), None),
    ],
)
def test_a_row_moves_until_all_its_slots_have_faded(inner, horizon):
    slots = _SlotsOfRows(inner, inner.init(jnp.ones((4, 2))), jnp.array([0]))
    assert _horizon(inner, jnp.ones((1, 2)), slots.take(), slots) == horizon


def test_rules_with_slots_and_a_counter_alone_are_not_inspected():
    """That of NAdam keeps a product of its decays too."""
    for tx in (gradtx.adam(0.1), gradtx.sgd(0.1, momentum=0.9)):
        assert treats_rows_alone(tx)
    assert not treats_rows_alone(gradtx.scale_by_nadam())


def test_a_norm_of_rows_of_one_number_is_one_of_all_rows():
    tx, table = gradtx.chain(gradtx.adam(0.1), gradtx.clip_by_global_norm(1.0)), jnp.ones((4, 1))
    with pytest.raises(ValueError, match="computed from the updates of all rows"):
        check_separable(tx, table, tx.init(table), table)


def test_rows_past_the_last_are_taken_as_is_said():
    assert _take(jnp.arange(3), jnp.array([1, 5]), 7).tolist() == [1, 7]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(OPTIMIZERS, "adam, scheduled", "ema, clipped, L2"))
def test_equals_dense(name):
    check(OPTIMIZERS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_equals_dense_too(name):
    check(MORE[name])


LORA = {
    # With Adam's usual epsilon, rounding decides the step of a row whose gradient nearly vanishes.
    "lora_plus": lambda: gradtx.lora_plus(0.01, eps=1e-2),
    "lora_fa": lambda: gradtx.lora_fa(0.01),
    "riemannian_lora": lambda: gradtx.riemannian_lora(0.01),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LORA)
def test_a_table_beside_factors_of_lora_equals_dense(name):
    check(LORA[name], "table", of=adapted_loss, start=adapted)


REFUSED = {
    # They divide by what they learn of all parameters, or need the loss, or do not count steps.
    "dog": "max_dist' in the state changes",
    "dowg": "in the state changes",
    "polyak_sgd": "needs the loss",
    "schedule_free_adamw": "makes whole tables",
    "schedule_free_sgd": "makes whole tables",
}


HERE = {"adam", "adamw", "sgd", *MORE, *LORA, *REFUSED}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in optimizers() if CATALOGUE[n].rows and n not in HERE])
def test_an_optimizer_of_the_catalogue_equals_dense(name):
    """One that is not above, as the catalogue has it: a new one needs no line here."""
    check(CATALOGUE[name].make)


@pytest.mark.slow
def test_lazy_is_something_else():
    """Else the test above would show nothing."""
    make = OPTIMIZERS["momentum"]
    lazy, dense = train(make())[0][0], train(gradtx.dense_rows(make()))[0][0]
    assert float(jnp.max(jnp.abs(lazy["table"] - dense["table"]))) > 0.01


@pytest.mark.slow
def test_a_chosen_table_and_a_group():
    """The rest is dense, also a matrix that is no table, and no row of it is recorded."""

    def loss(p, ids, targets):
        rows = sparse.take(p["table"], ids) @ p["matrix"]
        return jnp.mean((rows @ p["w"] - targets) ** 2)

    start = {**params(), "matrix": jnp.eye(COLUMNS)}
    groups = {"slow": gradtx.adam(1e-3), "fast": gradtx.sgd(0.01, momentum=0.9)}
    inner = gradtx.partition(groups, [("table", "fast"), ("*", "slow")])
    ids, targets = batches()

    def run(tx):
        p, state = start, tx.init(start)
        step = gradtx.make_step(loss, tx, donate=False)
        for i in range(12):
            p, state, _ = step(p, state, ids[i], targets[i])
        return p, state

    exact = gradtx.exact_rows(inner, "table")
    p, state = run(exact)
    assert state.last["matrix"] is None
    assert state.last["table"].shape == (ROWS, 1)
    p, state = sparse.catch_up(exact, p, state)
    want, dense = run(gradtx.dense_rows(inner))
    chex.assert_trees_all_close((p, state.inner_state), (want, dense), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_norms_of_what_is_no_table():
    check(
        lambda: gradtx.partition(
            {"rows": gradtx.adam(0.01), "rest": gradtx.lamb(0.01)},
            [("table", "rows"), ("*", "rest")],
        )
    )


@pytest.mark.slow
def test_parameters_that_are_not_trained():
    tx, (ids, targets) = gradtx.exact_rows(gradtx.adam(0.1)), batches()
    step = gradtx.make_step(loss, tx, trainable="table", donate=False)
    p, state, _ = step(params(), step.init(params()), ids[0], targets[0])
    p, state, _ = step(p, state, ids[1], targets[1])
    chex.assert_trees_all_equal(p["w"], params()["w"])
    assert int(state.count) == 2


@pytest.mark.slow
def test_two_halves_catch_up_too():
    tx, p = gradtx.exact_rows(gradtx.sgd(0.1, momentum=0.9)), params()["table"]
    want, state, dense = p, tx.init(p), gradtx.sgd(0.1, momentum=0.9).init(p)
    for row in (1, 2, 1, 3, 3, 1):
        grads = gradtx.Rows(jnp.array([row, row]), jnp.ones((2, COLUMNS)), p.shape)
        p, state = gradtx.apply_gradients(tx, grads, p, state)
        want, dense = gradtx.apply_gradients(
            gradtx.sgd(0.1, momentum=0.9), grads.to_dense(), want, dense
        )
    np.testing.assert_allclose(p[1], want[1], rtol=1e-6)
    assert not np.allclose(p[2], want[2])
    p, state = jax.jit(functools.partial(sparse.catch_up, tx))(p, state)
    chex.assert_trees_all_close((p, state.inner_state), (want, dense), rtol=1e-6)


@pytest.mark.slow
def test_a_dense_gradient_touches_every_row():
    tx, p = gradtx.exact_rows(gradtx.sgd(0.1, momentum=0.9)), params()["table"]
    state = tx.init(p)
    rows = gradtx.Rows(jnp.array([1]), jnp.ones((1, COLUMNS)), p.shape)
    want, dense = p, gradtx.sgd(0.1, momentum=0.9).init(p)
    for grads in (rows, rows, jnp.ones_like(p)):
        p, state = gradtx.apply_gradients(tx, grads, p, state)
        full = grads.to_dense() if isinstance(grads, gradtx.Rows) else grads
        want, dense = gradtx.apply_gradients(gradtx.sgd(0.1, momentum=0.9), full, want, dense)
    assert (state.last == 3).all()
    chex.assert_trees_all_close((p, state.inner_state), (want, dense), rtol=1e-6)


@pytest.mark.slow
def test_no_table_is_copied():
    p = jnp.zeros((100_000, 8))
    step = gradtx.make_step(
        lambda p, i: jnp.sum(jnp.sin(sparse.take(p, i))), gradtx.exact_rows(gradtx.adam(0.1))
    )
    compiled = step.lower(p, step.init(p), jnp.arange(10)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 20_000


def catch_up_once(tx):
    gradtx.minimize(loss, tx, params(), tx.init(params()), *(x[0] for x in batches()))


class TestRefused:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", REFUSED)
    def test_an_optimizer_that_does_not_let_rows_step_alone(self, name):
        with pytest.raises((TypeError, ValueError), match=f"exact_rows.*{REFUSED[name]}"):
            catch_up_once(gradtx.exact_rows(CATALOGUE[name].make()))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "inner",
        [
            lambda: gradtx.chain(gradtx.adam(0.1), gradtx.clip_by_global_norm(1.0)),
            lambda: gradtx.chain(
                gradtx.add_decayed_weights(0.1), gradtx.clip_by_global_norm(1.0), gradtx.sgd(0.1)
            ),
        ],
        ids=["of updates", "of decayed gradients"],
    )
    def test_a_norm_of_what_rows_missed(self, inner):
        with pytest.raises(ValueError, match="computed from the updates of all rows.*dense_rows"):
            catch_up_once(gradtx.exact_rows(inner()))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["accumulate", "multi_steps", "apply_every", "lookahead"])
    def test_a_window(self, name):
        with pytest.raises((TypeError, ValueError), match="exact_rows"):
            catch_up_once(gradtx.exact_rows(CATALOGUE[name].make()))

    @pytest.mark.slow
    def test_a_window_of_rows(self):
        tx = gradtx.exact_rows(gradtx.accumulate(gradtx.adam(0.1), 2, rows={"table": 10}))
        with pytest.raises(ValueError, match="'mini_step' in the state changes"):
            catch_up_once(tx)

    @pytest.mark.slow
    def test_steps_that_may_be_left_out(self):
        tx = gradtx.exact_rows(gradtx.apply_if_finite(gradtx.adam(0.1), 3))
        with pytest.raises(ValueError, match="'notfinite_count' in the state changes"):
            catch_up_once(tx)

    @pytest.mark.slow
    def test_a_slot_of_the_whole_table(self):
        with pytest.raises(ValueError, match=r"slot of the shape \(\)"):
            catch_up_once(gradtx.exact_rows(gradtx.zero_nans()))

    @pytest.mark.slow
    def test_a_rule_that_looks_at_whole_leaves(self):
        tx = gradtx.exact_rows(gradtx.lamb(0.1))
        with pytest.raises(TypeError, match="whole leaves.*'table'.*dense_rows"):
            gradtx.minimize(loss, tx, params(), tx.init(params()), *(x[0] for x in batches()))

    @pytest.mark.parametrize(
        "around",
        [
            lambda tx: gradtx.chain(gradtx.clip(1.0), tx),
            lambda tx: gradtx.accumulate(tx, 2),
            gradtx.dense_rows,
            gradtx.exact_rows,
        ],
        ids=["chain", "accumulate", "dense_rows", "exact_rows"],
    )
    def test_inside_another(self, around):
        says = r"exact_rows must be the outermost.* write exact_rows\(chain\(\.\.\.\)\)"
        with pytest.raises(ValueError, match=says):
            catch_up_once(around(gradtx.exact_rows(gradtx.adam(0.1))))

    def test_what_is_looked_up_depends_on_the_parameters(self):
        tx, p = gradtx.exact_rows(gradtx.adam(0.1)), params()

        def loss(p):
            first = sparse.take(p["table"], jnp.array([0]))
            return jnp.sum(sparse.take(p["table"], jnp.argmax(first, axis=1)))

        with pytest.raises(ValueError, match="'table' depends on the parameters"):
            gradtx.minimize(loss, tx, p, tx.init(p))

    def test_a_state_of_another_transformation(self):
        tx = gradtx.adam(0.1)
        with pytest.raises(TypeError, match="a state of exact_rows"):
            sparse.catch_up(tx, params(), tx.init(params()))


def test_functions_without_arguments_are_refused():
    """What they were at a step that a row missed is not known later."""
    with pytest.raises(ValueError, match="function without arguments"):
        gradtx.exact_rows(gradtx.chain(gradtx.clip(1.0), gradtx.sgd(lambda: 0.1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "inner",
    [
        gradtx.signum(0.01),
        gradtx.chain(gradtx.scale_by_adam(), gradtx.scale_by_sign(), gradtx.scale(-0.01)),
        gradtx.chain(gradtx.trace(0.9), gradtx.clip(1e-3), gradtx.scale(-1.0)),
        gradtx.chain(gradtx.trace(0.9), SIGNS),
    ],
)
def test_directions_that_do_not_fade_with_their_momentum(inner):
    """Steps are then taken one by one, though each slot's factor is known."""
    tx, table = gradtx.exact_rows(inner), jnp.zeros((2, 1))
    exact, dense = (table, tx.init(table)), (table, inner.init(table))
    rows = gradtx.Rows(jnp.array([0]), jnp.ones((1, 1)), (2, 1))
    other = gradtx.Rows(jnp.array([1]), jnp.ones((1, 1)), (2, 1))
    steps = [jax.jit(functools.partial(gradtx.apply_gradients, each)) for each in (tx, inner)]
    for t in range(300):
        g = rows if t == 0 else other
        exact = steps[0](g, *exact)
        dense = steps[1](g.to_dense(), *dense)
    caught_up, _ = gradtx.sparse.catch_up(tx, *exact)
    np.testing.assert_allclose(caught_up, dense[0], rtol=1e-5)
