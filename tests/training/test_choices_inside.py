"""Leaves are chosen by whole parameters, also where a step sees a layer or some of the leaves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradtx
from tests.training.test_inside import (
    LAYERS,
    assert_bits,
    assert_same,
    batch,
    loss,
    parameters,
    trained,
)

# A layer of "a" and "b" has 128 entries, one of "c" 8; the whole stacks have 512 and 32.
WHOLE_C, WHOLE_A = 20, 300


def of_tree(chooses):
    return lambda params: jax.tree.map(chooses, params)


def of_path(chooses):
    return lambda path, x: chooses(x)


def of_both(chooses):
    """A function of paths and leaves that also asks for the path."""
    return lambda path, x: path.startswith("layers") and chooses(x)


def counts(params):
    """The leaves with more than a third of the mean size of all leaves that are there."""
    sizes = [x.size for x in jax.tree.leaves(params)]
    return jax.tree.map(lambda x: x.size > np.mean(sizes) / 3, params)


def large(x):
    return x.size > WHOLE_C


def long(x):
    return min(x.shape) > 1


def largest(x):
    return isinstance(x, jax.Array) and x.size > WHOLE_A


def by_size(x):
    return "large" if largest(x) else "small"


def groups(labels):
    return gradtx.partition({"large": gradtx.trace(0.9), "small": gradtx.trace(0.5)}, labels)


decay = functools.partial(gradtx.add_decayed_weights, 0.3)
LINKS = {
    "mask of a tree": gradtx.masked(gradtx.trace(0.9), of_tree(large)),
    "mask of a path": gradtx.masked(gradtx.trace(0.8), of_path(long)),
    "mask of path and shape": gradtx.masked(gradtx.trace(0.7), of_both(large)),
    "mask within a mask": gradtx.masked(
        gradtx.masked(gradtx.trace(0.6), counts), ["layers", "head"]
    ),
    "labels of a tree": groups(of_tree(by_size)),
    "labels of a path": groups(of_path(by_size)),
    "mask within a group": gradtx.partition(
        {"large": gradtx.masked(gradtx.trace(0.4), counts), "small": gradtx.identity()},
        of_path(by_size),
    ),
    "decay of a tree": decay(of_tree(large)),
    "decay of a path": decay(of_path(long)),
    "frozen by path": gradtx.freeze(of_path(lambda x: not large(x))),
    "frozen by tree": gradtx.freeze(of_tree(lambda x: x.size in (8, 16))),
    "types of a copy": gradtx.master_weights(
        gradtx.chain(
            gradtx.masked(gradtx.trace(0.9), of_path(lambda x: large(x) and x.dtype != "bfloat16")),
            gradtx.scale(0.1),
        )
    ),
    "codecs within codecs": gradtx.store(
        gradtx.chain(gradtx.store(gradtx.trace(0.9), "bf16", min_size=WHOLE_C), gradtx.trace(0.8)),
        {"1.trace": "int8"},
        min_size=WHOLE_A,
    ),
}
AROUND = {
    "selective": gradtx.selective_transform(
        gradtx.adam(1e-2), freeze_mask=of_path(lambda x: not large(x))
    ),
    "adamw": gradtx.adamw(1e-2, weight_decay=0.5, mask=of_tree(long)),
}


@pytest.mark.slow
def test_choices_of_every_kind_have_the_bits_of_the_ordinary_step():
    """All in one program; those that fail are found by the next test."""
    left_out = ("types of a copy", "codecs within codecs")  # which take a step of their own
    links = [tx for name, tx in LINKS.items() if name not in left_out]
    assert_bits(loss, gradtx.chain(*links, gradtx.scale(-0.1)), steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LINKS, *AROUND])
@pytest.mark.filterwarnings("ignore:make_step. the parameter")
def test_a_choice_by_shapes_has_the_bits_of_the_ordinary_step(name):
    tx = AROUND.get(name) or gradtx.chain(LINKS[name], gradtx.scale(-0.1))
    dtype = jnp.bfloat16 if name == "types of a copy" else jnp.float32
    assert_bits(loss, tx, dtype, steps=3)


@pytest.mark.slow
def test_what_is_trained_and_inside_is_chosen_by_whole_leaves():
    assert_bits(loss, LINKS["mask within a mask"], trainable=of_path(large))
    step = gradtx.make_step(loss, gradtx.sgd(0.1), inside=of_both(large))
    assert set(step.inside(parameters(), *batch()).inside) == {f"layers/{k}" for k in "abc"}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x if len(x) > 3 else 2 * x,
        lambda x: x + jnp.full_like(x, x.size),
        lambda x: x * jnp.float32(x.size),
        lambda x: x * np.full(x.shape[-1], x.size, np.float32),
    ],
    ids=["branch", "filled", "number", "array"],
)
def test_a_formula_that_differs_for_one_layer_is_refused(f):
    tx = gradtx.chain(gradtx.stateless_with_tree_map(lambda g, p: f(g)), gradtx.sgd(0.1))
    plan = gradtx.make_step(loss, tx, inside=True).inside(parameters(), *batch())
    assert "stateless_with_tree_map cannot run on one layer" in plan.refused
    assert "depends on the number of layers" in plan.refused


def named():
    """The parameters by names that say their roles, and a matrix outside of the stacks."""
    p = parameters()
    layers = {
        "a": {"kernel": p["layers"]["a"]},
        "b": {"kernel": p["layers"]["b"]},
        "c": {"bias": p["layers"]["c"]},
    }
    return {
        "embed": {"embedding": p["embed"]},
        "head": {"kernel": p["head"]},
        "layers": layers,
    }


def of_named(params, x, y):
    of = {k: next(iter(v.values())) for k, v in params["layers"].items()}
    return loss(
        {"embed": params["embed"]["embedding"], "head": params["head"]["kernel"], "layers": of},
        x,
        y,
    )


TWO, STACKED = gradtx.MuonDimensionNumbers((0,), (1,)), gradtx.MuonDimensionNumbers((1,), (2,))
# The rule names a leaf outside of the stacks, and the roles those of one scan.
ROLES = gradtx.ByRole(rules=(("head", "matrix"),), stacked=(("layers", 1),))
TABLE = {
    "embed": {"embedding": None},
    "head": {"kernel": TWO},
    "layers": {"a": {"kernel": STACKED}, "b": {"kernel": STACKED}, "c": {"bias": None}},
}


def by_shapes(params):
    """The same by shapes alone: of one layer the bias would be a matrix too."""

    def of(x):
        if x.shape == (8, 8):
            return TWO
        return STACKED if x.ndim == 3 and x.shape[0] == LAYERS else None

    numbers = jax.tree.map(of, params)
    numbers["embed"]["embedding"] = None
    return numbers


MATRICES = {
    "adamuon": gradtx.adamuon,
    "apollo": functools.partial(gradtx.apollo, rank=2),
    "muon": gradtx.muon,
    "muon2": gradtx.muon2,
    "muon2, factored": functools.partial(gradtx.muon2, factored=True),
    "muown": gradtx.muown,
    "newton_muon": gradtx.newton_muon,
    "normuon": gradtx.normuon,
    "polargrad": gradtx.polargrad,
}


def matrix_optimizer(name, numbers):
    argument = "muon_weight_dimension_numbers" if name == "muon" else "weight_dimension_numbers"
    return MATRICES[name](1e-2, **{argument: numbers})


def assert_close(one, other):
    """To rounding: on a CPU a product of a batch is computed by another routine than of one."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert bool(jnp.max(jnp.abs(a - b)) <= 2e-5 * jnp.max(jnp.abs(b)))


@pytest.mark.slow
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_by_roles_tables_and_functions_take_the_ordinary_step(name):
    tx = matrix_optimizer(name, ROLES)
    new, state, value = trained(of_named, tx, params=named(), inside=True)
    want, of_ordinary, was = trained(of_named, tx, params=named())
    assert_close((new, value), (want, was))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, of_ordinary)

    def program(numbers):
        tx = matrix_optimizer(name, numbers)

        def step(params, state):
            return gradtx.minimize(of_named, tx, params, state, *batch(), inside=True)

        params = named()
        return str(jax.make_jaxpr(step)(params, jax.eval_shape(tx.init, params)))

    assert program(ROLES) == program(TABLE) == program(by_shapes)


SPECS = [
    (None, "d"),
    (None, "d", None),
    (None, ("d",)),
    (None, ("d",), None),
    ((), "d"),
    ((), ("d", "one"), ()),
    ("one", "d"),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_sharding_is_read_by_what_it_divides(spec):
    """However a specification is written, with an axis of one device in it or not."""
    mesh = jax.make_mesh((8, 1), ("d", "one"), axis_types=(AxisType.Auto,) * 2)
    place = NamedSharding(mesh, P(*spec))
    whole = NamedSharding(mesh, P())
    params = {
        "embed": jnp.ones((8, 8)),
        "head": jnp.ones((8, 8)),
        "layers": {
            "a": jnp.ones((8, 8, 16)),
            "b": jnp.ones((8, 16, 8)),
            "c": jnp.ones((8, 8)),
        },
    }
    layers = {"a": place, "b": place, "c": whole}
    placed = jax.device_put(params, {"embed": whole, "head": whole, "layers": layers})
    tx = gradtx.adam(1e-2)
    sharding = gradtx.state_sharding(tx, placed)
    plan = gradtx.make_step(loss, tx, sharding=sharding, inside=True).inside(placed, *batch())
    assert plan.refused is None
    assert dict(plan.inside) == dict.fromkeys(("layers/a", "layers/b", "layers/c"), 8)


def test_slots_that_are_divided_further_are_still_refused():
    mesh = jax.make_mesh((8, 1), ("d", "one"), axis_types=(AxisType.Auto,) * 2)
    params = jax.device_put(parameters(), NamedSharding(mesh, P(None, None)))
    tx = gradtx.adam(1e-2)
    sharding = gradtx.state_sharding(tx, params, zero="d", min_size=0)
    step = gradtx.make_step(loss, tx, sharding=sharding, inside=True)
    with pytest.raises(ValueError, match="divided further than the parameters"):
        step.inside(params, *batch())
    alone = gradtx.state_sharding(tx, params, zero="one", min_size=0)
    step = gradtx.make_step(loss, tx, sharding=alone, inside=True)
    assert step.inside(params, *batch()).refused is None


def halves(params):
    """Gradients of the leaves outside of the stacks alone."""
    grads = jax.tree.map(jnp.ones_like, params)
    return {**grads, "layers": jax.tree.map(lambda x: None, grads["layers"])}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_roles_are_those_of_all_leaves_where_some_have_no_gradient(compiled):
    """The program of a step outside of `jit` is another where other leaves are whole."""
    tx, params = gradtx.muon(0.02, muon_weight_dimension_numbers=ROLES), named()
    step = functools.partial(gradtx.apply_gradients, tx)
    run, state = jax.jit(step) if compiled else step, tx.init(params)
    full = jax.tree.map(jnp.ones_like, params)
    for _ in range(2):  # a step of an optimizer that ran once is a program
        new, after = run(halves(params), params, state)
        want, _ = run(full, params, state)
        assert_same(new["layers"], params["layers"])
        assert_same((new["embed"], new["head"]), (want["embed"], want["head"]))
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


@pytest.mark.parametrize("trainable", ["embed", "layers"])
def test_a_rule_may_name_a_leaf_that_is_not_trained(trainable):
    """By a pattern, or a predicate that may choose it."""
    is_head = lambda path, x: path == "head/kernel" and x.ndim == 2  # noqa: E731
    params = gradtx.select(named(), trainable)
    for rules in ROLES.rules, ((is_head, "matrix"),):
        tx = gradtx.muon(
            0.02, muon_weight_dimension_numbers=gradtx.ByRole(rules, stacked=ROLES.stacked)
        )
        grads = jax.tree.map(jnp.ones_like, params)
        updates, _ = jax.eval_shape(tx.update, grads, tx.init(params), params)
        assert jax.tree.structure(updates) == jax.tree.structure(params)
    with pytest.raises(ValueError, match="the rule for 'heads' matches no leaf"):
        gradtx.ByRole((("heads", "matrix"),)).check(params)


def test_choices_are_those_of_all_leaves_where_some_have_no_gradient():
    """A count of leaves, of whatever form the gradients are, packed or split."""
    params = parameters()
    for tx in (
        gradtx.masked(gradtx.trace(0.9), counts),
        gradtx.split_leaves(
            gradtx.masked(gradtx.trace(0.9), counts), {"head": gradtx.SplitLeaf(1, (4, 4))}
        ),
        gradtx.partition(
            {"large": gradtx.trace(0.9), "small": gradtx.identity()},
            lambda p: jax.tree.map(lambda large: "large" if large else "small", counts(p)),
        ),
    ):
        state = tx.init(params)
        _, after = gradtx.apply_gradients(tx, halves(params), params, state)
        assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


@pytest.mark.parametrize("name", MATRICES)
def test_slots_of_a_leaf_without_a_gradient_stay(name):
    tx, params = matrix_optimizer(name, ROLES), named()
    state = jax.eval_shape(tx.init, params)
    step = functools.partial(gradtx.apply_gradients, tx)
    _, after = jax.eval_shape(step, halves(params), params, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
