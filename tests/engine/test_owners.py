"""Matrices that are divided over a mesh are transformed by one device each."""

# Sees mutants of: matrix_batches, own_batches, places, resharding.

import contextlib
import functools
import math
import re
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import collectives, in_loops
from gradtx.engine.matrices import MatrixDimensions, matrixwise
from gradtx.programs.interpreter import inner_jaxprs
from gradtx.sharding.operations import operations
from tests.test_aot import chips, printed

COLLECTIVE = r"(all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)(?:-start)?\("


def mesh(*sizes, kind=AxisType.Auto):
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes))


def params(seed=0):
    """Six equal matrices, three turned ones, scanned layers, a vector."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), float)

    return {
        "up": [normal(16, 48) for _ in range(6)],
        "down": [normal(48, 16) for _ in range(3)],
        "layers": normal(5, 16, 16),
        "bias": normal(16),
    }


def numbers(tree):
    """The last two axes are rows and columns."""
    one = gradtx.MuonDimensionNumbers(-2, -1)
    return jax.tree.map(lambda p: one if p.ndim > 1 else None, tree)


def muon():
    return gradtx.muon(0.1, muon_weight_dimension_numbers=numbers)


def loss(params, target):
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(target), strict=True)
    return sum(jnp.sum((p - t) ** 2) for p, t in pairs)


def places(on, rows):
    """Rows or columns divided over all axes of the mesh; the vector is not."""

    def one(p):
        axes = on.axis_names
        if p.ndim == 1:
            return NamedSharding(on, PartitionSpec())
        before = (None,) * (p.ndim - 2)
        return NamedSharding(on, PartitionSpec(*before, *((axes, None) if rows else (None, axes))))

    return jax.tree.map(one, params())


def run(tx, sharding=None, steps=3):
    p, target = params(), params(1)
    step = gradtx.make_step(loss, tx, sharding=sharding)
    if sharding is not None:
        p, target = (jax.device_put(x, sharding.params) for x in (p, target))
    state = step.init(p)
    for _ in range(steps):
        p, state, _ = step(p, state, target)
    program = sharding and step.lower(p, state, target).compile().as_text()
    return p, state, program


@functools.cache
def alone():
    return run(muon())[:2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "rows", "zero", "kind", "balance"),
    [
        ((8,), True, None, AxisType.Auto, False),
        ((8,), True, None, AxisType.Auto, True),
        pytest.param((8,), False, None, AxisType.Explicit, False, marks=pytest.mark.slow),
        pytest.param((4, 2), True, None, AxisType.Auto, False, marks=pytest.mark.slow),
        pytest.param((4, 2), False, "x", AxisType.Auto, False, marks=pytest.mark.slow),
        pytest.param((4, 2), False, "x", AxisType.Explicit, True, marks=pytest.mark.slow),
    ],
    ids=[
        "rows",
        "rows, balanced",
        "columns, explicit",
        "rows over two axes",
        "columns and ZeRO",
        "columns and ZeRO, balanced, explicit",
    ],
)
def test_updates_are_those_of_one_device(sizes, rows, zero, kind, balance):
    want = alone()
    where = places(mesh(*sizes, kind=kind), rows)
    sharding = gradtx.state_sharding(
        muon(), params(), where, zero=zero, min_size=1, balance=balance
    )
    begun = {stack.count: stack.first for stack in sharding.owned}
    assert begun == ({3: 0, 6: 3, 5: 1} if balance else {6: None, 3: None, 5: None})
    got, state, program = run(muon(), sharding)
    for a, b in zip(jax.tree.leaves((got, state)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not re.findall(COLLECTIVE, in_loops(program))


@pytest.mark.slow
def test_an_axis_of_one_device_divides_no_matrix():
    """Neither alone nor beside another axis, however the specification is written."""

    def owned(*spec):
        place = NamedSharding(mesh(4, 1), PartitionSpec(*spec))
        w = jax.device_put(jnp.ones((8, 16)), place)
        stacks = gradtx.state_sharding(gradtx.soap(0.1), {"w": w}).owned
        return [(stack.axes, stack.count) for stack in stacks]

    assert owned("y") == owned(None, "y") == owned(("y",), None) == []
    assert owned(("x", "y")) == owned("x", "y") == owned("x") == [(("x",), 1)]


@pytest.mark.slow
def test_an_owner_that_is_partly_filled_transforms_what_it_has():
    """Five matrices on four devices: two have two, one has one beside padding, the last has one of
    another shape."""
    rng = np.random.default_rng(0)
    p = {
        "five": jnp.asarray(rng.normal(size=(5, 8, 16)), float),
        "one": jnp.asarray(rng.normal(size=(8, 8)), float),
    }
    tx = gradtx.scale_by_muon(weight_dimension_numbers=numbers)
    on = mesh(4)
    where = {
        "five": NamedSharding(on, PartitionSpec(None, "x", None)),
        "one": NamedSharding(on, PartitionSpec("x", None)),
    }
    sharding = gradtx.state_sharding(tx, p, where, balance=True)
    assert {stack.count: stack.busy for stack in sharding.owned} == {5: (0, 1, 2), 1: (3,)}
    want, _ = tx.update(p, tx.init(p))
    placed = jax.device_put(p, where)
    got, _ = jax.jit(sharding.placed(tx).update)(placed, jax.device_put(tx.init(p), sharding.state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


@pytest.mark.slow
def test_as_many_messages_as_shapes_and_none_inside():
    """In and out for each shape, whichever number of leaves has it: here all of these are equal."""

    def messages(count):
        tx = gradtx.scale_by_muon()
        shapes = [jax.ShapeDtypeStruct((16, 48), jnp.float32)] * count
        where = NamedSharding(mesh(8), PartitionSpec("x", None))
        sharding = gradtx.state_sharding(tx, shapes, where)
        state = jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
            sharding.abstract,
            sharding.state,
        )
        placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for x in shapes]
        step = jax.jit(sharding.placed(tx).update, out_shardings=([where] * count, sharding.state))
        return re.findall(COLLECTIVE, step.lower(placed, state).compile().as_text())

    assert len(messages(3)) == len(messages(8)) == 2


LAYER = {"qkv": (128, 384), "out": (128, 128), "up": (128, 512), "down": (512, 128)}


def spread(layers, shapes, devices, balance=True):
    """Where Muon's stacks begin, and what the device that has most computes."""
    like = {k: jax.ShapeDtypeStruct((layers, *shape), jnp.float32) for k, shape in shapes.items()}
    tx = gradtx.scale_by_muon(weight_dimension_numbers=numbers)
    plan = gradtx.plan_step(tx, like, {"x": devices}, PartitionSpec(None, "x"), balance=balance)
    assert str(plan).splitlines()[-1].startswith(f"the busiest device: {plan.operations:,} ")
    return {stack.shape: stack for stack in plan.owned}, plan.operations


@pytest.mark.slow
def test_the_busiest_device_leaves_out_the_stack_that_costs_least():
    """24 of each on 16: two stand on each of 12 devices, and each device lacks one of the four."""
    stacks, most = spread(24, LAYER, 16)
    _, without = spread(24, LAYER, 16, balance=False)
    # Longest first: both of the feed-forward net, then `qkv`, then `out`.
    assert {stacks[LAYER[k]].first for k in ("up", "down")} == {0, 12}
    assert (stacks[LAYER["qkv"]].first, stacks[LAYER["out"]].first) == (8, 4)
    assert stacks[LAYER["out"]].busy == tuple(range(4, 16))
    cost = {k: operations(stacks[shape].program) for k, shape in LAYER.items()}
    for shape, stack in stacks.items():  # a device has two of each, which come and go once
        assert jax.tree.map(jnp.shape, stack.program.in_avals)[0] == (2, *shape)
        assert (stack.arrays, stack.bytes) == ((1, 1), (4 * 2 * math.prod(shape),) * 2)
    assert without == sum(cost.values())
    assert most == without - cost["out"]


def test_the_stack_that_costs_most_is_not_the_one_of_the_longest_matrices():
    """A Gram matrix is of the shorter side."""
    stacks, _ = spread(3, {"wide": (16, 1024), "square": (128, 128)}, 16)
    assert (stacks[128, 128].first, stacks[16, 1024].first) == (0, 3)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("count", "each"), [(5, 2), (3, 1)])
def test_a_device_that_has_only_padding_transforms_nothing(count, each):
    """Three of four devices have what there is of one shape, and the last the other matrix."""
    seen = []

    @gradtx.transformation
    def doubling():
        def rule(g, s, t):
            jax.debug.callback(lambda g: seen.append(g.shape), g)
            return 2 * g, {}

        return matrixwise(
            gradtx.EmptyState, None, rule, MatrixDimensions(numbers, gradtx.MuonDimensionNumbers)
        )

    p = {"many": jnp.ones((count, 8, 16)), "one": jnp.ones((8, 8))}
    on = mesh(4)
    where = {
        "many": NamedSharding(on, PartitionSpec(None, "x", None)),
        "one": NamedSharding(on, PartitionSpec("x", None)),
    }
    tx = doubling()
    sharding = gradtx.state_sharding(tx, p, where, balance=True)
    updates, _ = jax.jit(sharding.placed(tx).update)(jax.device_put(p, where), ())
    jax.effects_barrier()
    assert sorted(seen) == sorted([(1, 8, 8), *[(each, 8, 16)] * 3])
    assert all((u == 2).all() for u in updates.values())


def constraints(jaxpr):
    """The shapes of what a program places, with where."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "sharding_constraint":
            yield eqn.outvars[0].aval.shape, eqn.params["sharding"].spec
        for program in inner_jaxprs(eqn):
            yield from constraints(program)


def test_matrices_are_brought_back_while_they_are_one_stack():
    """XLA is told so, and need not find out that one message serves all leaves."""
    tx, like = gradtx.scale_by_muon(), [jax.ShapeDtypeStruct((16, 48), jnp.float32)] * 3
    for spec in (PartitionSpec("x", None), PartitionSpec(None, "x")):
        sharding = gradtx.state_sharding(tx, like, NamedSharding(mesh(4), spec))
        jaxpr = jax.make_jaxpr(sharding.placed(tx).update)(like, sharding.abstract).jaxpr
        own = [axes for shape, axes in constraints(jaxpr) if shape == (4, 16, 48)]
        assert own == [PartitionSpec(("x",)), PartitionSpec(None, *(n and (n,) for n in spec))]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("layers", "shapes", "devices"),
    [
        (16, LAYER, 16),  # every device has something of each
        (31, LAYER, 16),
        (3, {"out": (128, 128)}, 16),  # one stack alone
        (54, {"q": (64, 64), "k": (64, 128)}, 64),  # two that leave no device without either
    ],
)
def test_where_nothing_is_gained_stacks_are_divided_by_themselves(layers, shapes, devices):
    stacks, most = spread(layers, shapes, devices)
    assert all(stack.first is None for stack in stacks.values())
    assert most == spread(layers, shapes, devices, balance=False)[1]


def with_bases(name):
    """SOAP or Shampoo, with epsilons large enough that rounding chooses nothing."""
    make = {"soap": gradtx.soap, "shampoo": gradtx.shampoo}[name]
    return make(0.1, eps=1e-2, precondition_frequency=2, weight_dimension_numbers=numbers)


ONE_OF_EACH = 8 * (16 * 48 + 48 * 16 + 16 * 16)
"""Bytes, in float64, of a matrix of each shape, which a device receives if these are padded."""
TWO_AT_MOST = 8 * (16 * 48 + 48 * 16)
"""Of those on the device that has most, which it receives in one message."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "balance"),
    [
        ("shampoo", False),
        pytest.param("shampoo", True, marks=pytest.mark.slow),
        pytest.param("soap", False, marks=pytest.mark.slow),
        pytest.param("soap", True, marks=pytest.mark.slow),
    ],
)
def test_slots_stay_with_the_owner(name, balance):
    """Of matrices' size a step sends gradients to their owners and updates back, nothing else."""
    with jax.enable_x64(True):
        tx, where = with_bases(name), places(mesh(8), rows=True)
        want = run(tx)[:2]
        sharding = gradtx.state_sharding(tx, params(), where, balance=balance)
        got, state, program = run(tx, sharding)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want[0]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        whole = sharding.whole(state)
        assert jax.tree.map(jnp.shape, whole) == jax.tree.map(jnp.shape, want[1])
        for a, b in zip(*map(jax.tree.leaves, (whole[0].left, want[1][0].left)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        # As it is loaded here, on fewer devices, and where stacks begin elsewhere.
        fewer = gradtx.state_sharding(tx, params(), places(mesh(4), rows=True), balance=balance)
        other = gradtx.state_sharding(tx, params(), where, balance=not balance)
        for each in (sharding, fewer, other) if balance else (sharding,):
            again = each.whole(each.put(whole))
            assert jax.tree.all(jax.tree.map(np.array_equal, again, whole))
    sent = collectives(program)
    messages = [TWO_AT_MOST] * 2 if balance else [2 * ONE_OF_EACH]
    found = [n for kind, n in sent if kind == "all-to-all"]
    assert (found if balance else [sum(found)]) == messages
    assert all(kind == "all-to-all" or n < 16 * 16 for kind, n in sent)  # the loss and its vector


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "balance"), [("bf16", False), ("int4", True)])
def test_codes_stay_with_the_owner(codec, balance):
    """They are those of one device, and a step sends what it does without them."""
    with jax.enable_x64(True):
        tx = gradtx.store(with_bases("shampoo"), codec, min_size=0)
        where = places(mesh(8), rows=True)
        sharding = gradtx.state_sharding(tx, params(), where, balance=balance)
        placed = jax.device_put(params(), sharding.params)
        whole, alone = sharding.whole(sharding.init(tx, placed)), tx.init(params())
        assert jax.tree.structure(whole) == jax.tree.structure(alone)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, whole, alone))
        assert jax.tree.all(
            jax.tree.map(jnp.array_equal, sharding.whole(sharding.put(whole)), whole)
        )
        want, got = run(tx)[0], run(tx, sharding)
    for a, b in zip(jax.tree.leaves(got[0]), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    sent = collectives(got[2])
    messages = [TWO_AT_MOST] * 2 if balance else [2 * ONE_OF_EACH]
    found = [n for kind, n in sent if kind == "all-to-all"]
    assert (found if balance else [sum(found)]) == messages
    assert all(kind == "all-to-all" or n < 16 * 16 for kind, n in sent)
    with pytest.raises(ValueError, match="not one of this sharding"):
        sharding.put(with_bases("shampoo").init(params()))


@pytest.mark.slow
def test_codes_that_a_stack_would_divide_stay_with_their_leaf():
    """Blocks along a batch, leaves in codecs of their own, and keys of random rounding."""
    where = NamedSharding(mesh(8), PartitionSpec(None, "x", None))
    g = [jnp.ones((64, 8, 8)), jnp.ones((64, 8, 8))]
    inside = gradtx.scale_by_shampoo(weight_dimension_numbers=gradtx.MuonDimensionNumbers(1, 2))

    def stacked(codecs):
        tx = gradtx.store(inside, codecs, min_size=0)
        state = gradtx.state_sharding(tx, g, where).state
        return type(state.left[0]).__name__

    assert stacked({"left": gradtx.Codec("int8", axis=1)}) == "Owned"
    assert stacked({"left": gradtx.Codec("int8", axis=0)}) == "Encoded"
    assert stacked({"left": {"0": "int8", "*": "int4"}}) == "Encoded"
    assert stacked({"left": gradtx.Codec("int8", axis=1, rounding="stochastic")}) == "Encoded"


@pytest.mark.slow
@pytest.mark.parametrize("balance", [False, True])
def test_slots_with_the_owner_need_no_mesh_at_hand(balance):
    """An update outside of `make_step` runs on them as they are; a part of a stack is refused."""
    tx = gradtx.scale_by_shampoo(precondition_frequency=1)
    g = [jnp.eye(8), 2 * jnp.eye(8), jnp.ones((16, 8)), jnp.eye(16, 8)]
    where = NamedSharding(mesh(8), PartitionSpec("x"))
    state = gradtx.state_sharding(tx, g, where, balance=balance).init(tx, g)
    assert [x.share.begin for x in state.left] == ([2, 2, 0, 0] if balance else [None] * 4)
    assert (state.left[0].value.shape, state.left[1].value) == ((8, 1, 8, 8), None)
    # One program: of several that communicate, simulated devices may wait for ever.
    got, new = jax.jit(tx.update)(g, state)
    want, _ = tx.update(g, tx.init(g))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    with pytest.raises(ValueError, match="the slots of 2 equal matrices are one stack"):
        tx.update([g[0], None, *g[2:]], state)


def summing():
    """A rule that keeps the sum of all gradients, as entries of the matrix."""

    class SumState(NamedTuple):
        total: gradtx.types.Slots

    def rule(g, s, t):
        total = s.total + g
        return total / jnp.linalg.norm(total, axis=(-2, -1), keepdims=True), {"total": total}

    dimensions = MatrixDimensions(numbers, gradtx.MuonDimensionNumbers)
    return matrixwise(SumState, lambda p: {"total": jnp.zeros_like(p)}, rule, dimensions)


ROWS_OF_TWO_AXES = gradtx.MuonDimensionNumbers((0, 1), 2)
MESSAGES = {
    # What is beside one square matrix on four devices, its dimension numbers, how it is divided,
    # and whether both go in one message.
    "rows": ((8, 16), gradtx.MuonDimensionNumbers(), PartitionSpec("x"), True),
    "the first of two axes": ((4, 6, 5), ROWS_OF_TWO_AXES, PartitionSpec("x"), True),
    "the second of two axes": ((6, 4, 5), ROWS_OF_TWO_AXES, PartitionSpec(None, "x"), False),
    "heads": ((8, 6), gradtx.MuonDimensionNumbers(0, 1, (0, 2)), PartitionSpec("x"), False),
    "other heads": ((8, 6), gradtx.MuonDimensionNumbers(0, 1, (1, 2)), PartitionSpec("x"), True),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", MESSAGES)
def test_balanced_stacks_are_one_message_where_devices_have_blocks(case):
    shape, of_other, spec, in_one = MESSAGES[case]
    rng = np.random.default_rng(0)
    p = {n: jnp.asarray(rng.normal(size=s), float) for n, s in (("a", (8, 8)), ("b", shape))}
    given = {"a": gradtx.MuonDimensionNumbers(), "b": of_other}
    tx = gradtx.scale_by_muon(weight_dimension_numbers=given)
    where = {n: NamedSharding(mesh(4), s) for n, s in (("a", PartitionSpec("x")), ("b", spec))}
    sharding = gradtx.state_sharding(tx, p, where, balance=True)
    assert [stack.in_one_message for stack in sharding.owned] == [in_one] * 2
    want, _ = tx.update(p, tx.init(p))
    state = sharding.init(tx, p)
    got, _ = jax.jit(sharding.placed(tx).update)(jax.device_put(p, where), state)
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_slots_that_travel_with_matrices_are_in_their_message():
    """Sums of gradients do, in the state of `tx.init`; Shampoo's factors go by themselves."""
    rng = np.random.default_rng(0)
    p = {n: jnp.asarray(rng.normal(size=s), float) for n, s in (("a", (8, 8)), ("b", (8, 16)))}
    where = dict.fromkeys(p, NamedSharding(mesh(4), PartitionSpec("x")))
    placed = jax.device_put(p, where)
    for tx, messages in ((summing(), 2), (with_bases("shampoo"), None)):
        update = jax.jit(gradtx.state_sharding(tx, p, where, balance=True).placed(tx).update)
        got, want = (placed, tx.init(p)), (p, tx.init(p))
        for _ in range(2):
            got, want = update(placed, got[1], placed), tx.update(p, want[1], p)
        chex.assert_trees_all_close(got, want, rtol=1e-4, atol=1e-5)
        program = update.lower(
            placed, jax.device_put(tx.init(p), NamedSharding(mesh(4), PartitionSpec())), placed
        ).compile()
        sent = re.findall(COLLECTIVE, program.as_text())
        assert len(sent) == messages if messages else len(sent) > 4


EXPERTS = {
    # Shapes, how they are divided, and what is sent: nothing, or one message in and one out.
    "two leaves": ([(4, 16, 8)] * 2, PartitionSpec("x"), 0),
    "layers first": ([(3, 4, 16, 8)], PartitionSpec(None, "x"), 0),
    "rows too": ([(4, 16, 8)] * 2, PartitionSpec("x", "y"), 2),
    "columns too, layers first": ([(3, 4, 16, 8)], PartitionSpec(None, "x", None, "y"), 2),
}
"""On a mesh of 2 by 4: x divides experts, of which each device then has some whole."""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["placed", "by hand", "explicit"])
@pytest.mark.parametrize("case", EXPERTS)
@pytest.mark.parametrize("name", ["muon", "shampoo"])
def test_experts_stay_where_they_are(name, case, how):
    """So do the slots of a state that was made on the mesh; by hand these say where experts are."""
    shapes, spec, messages = EXPERTS[case]
    rng = np.random.default_rng(0)
    p = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    tx = muon() if name == "muon" else with_bases(name)

    def steps(p, state):
        for _ in range(2):
            updates, state = tx.update(p, state, p)
        return updates, state

    want, kept = steps(p, tx.init(p))
    kind = AxisType.Explicit if how == "explicit" else AxisType.Auto
    where = NamedSharding(mesh(2, 4, kind=kind), spec)
    placed = jax.device_put(p, where)
    sharding = gradtx.state_sharding(tx, placed)
    state = gradtx.init_sharded(tx, placed)
    if how == "placed":
        tx, on_mesh = sharding.placed(tx), contextlib.nullcontext()
    else:
        on_mesh = jax.set_mesh(where.mesh)
    with on_mesh:
        got, new = jax.jit(steps)(placed, state)
        program = jax.jit(tx.update, out_shardings=None).lower(placed, state, placed).compile()
    chex.assert_trees_all_close(got, want, atol=2e-4)
    chex.assert_trees_all_close(sharding.whole(new), kept, atol=1e-4)
    if name == "muon" and how == "by hand":
        return  # without slots of matrices nothing says how leaves are divided
    assert len(re.findall(COLLECTIVE, program.as_text())) == messages
    if name == "shampoo":
        # Of six matrices that four devices share each has at most two.
        shards = {"columns too, layers first": 6}.get(case, 8 if messages else 2)
        of_matrices = sum(x.nbytes for x in jax.tree.leaves(kept) if x.ndim)
        assert sum(x.bytes for x in sharding.leaves if x.shape) == of_matrices // shards


@pytest.mark.slow
def test_a_state_of_experts_is_of_one_mesh():
    """It is refused where experts are divided otherwise, and moves there through its whole form."""
    tx, like = with_bases("shampoo"), [jnp.ones((2, 4, 8, 8))]
    specs = [PartitionSpec(None, "x"), PartitionSpec("x"), PartitionSpec(None, None, "x")]
    first, *others = [gradtx.state_sharding(tx, like, NamedSharding(mesh(2), s)) for s in specs]
    state = first.init(tx, like)
    for other in others:
        run = other.placed(tx).update
        with pytest.raises(ValueError, match="make|made for this mesh"):
            jax.eval_shape(run, like, state, like)
        moved = other.put(first.whole(state))
        assert jax.tree.structure(moved) == jax.tree.structure(other.state)
        jax.eval_shape(run, like, moved, like)
    # By hand, on a mesh that has no axis of this name.
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (like, state))
    renamed = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(renamed), pytest.raises(ValueError, match="made for this mesh"):
        jax.jit(tx.update).trace(*shapes, like)
    # The state of a transformation that is placed already has its stacks.
    chex.assert_trees_all_equal(first.init(first.placed(tx), like), state)


@pytest.mark.slow
def test_the_plan_of_experts_says_what_a_device_transforms():
    """With slots that stay with their leaf, since blocks along a batch are of several experts."""
    like = [jax.ShapeDtypeStruct((4, 16, 8), jnp.float32)] * 2
    tx = gradtx.scale_by_normuon(weight_dimension_numbers=numbers)
    tx = gradtx.store(tx, {"v": gradtx.Codec("int8", axis=0)}, min_size=0)
    (stack,) = gradtx.plan_step(tx, like, {"x": 2, "y": 4}, PartitionSpec("x", "y")).owned
    assert (stack.count, stack.shape, stack.axes) == (4, (16, 8), ("y",))
    assert jax.tree.map(jnp.shape, stack.program.in_avals) == [(1, 16, 8), (1, 8)]


OWNED = """
import itertools, json, sys
from benchmarks import ownership
machine, layers, width, optimizer = sys.argv[1:]
figures = ownership.figures(machine, int(layers), int(width), False, optimizer, counted=False)
for label, found in itertools.islice(figures, 3):
    print(json.dumps(found._asdict()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["v5e:4x4", "h100"])
def test_compiled_for_chips(machine):
    """Four shapes, each brought in and out; three matrices stand on all chips of the mesh.

    As `make_step`, and by `tx.update` alone under `jax.set_mesh` and on explicit axes.
    """
    if {"v5e:4x4": "TPU v5e", "h100": "H100"}[machine] not in chips():
        pytest.skip("no compiler for this chip: see CONTRIBUTING.md")
    lines = printed(OWNED, machine, "3", "256", "muon")
    assert [(x["collectives"], x["in_loops"]) for x in lines] == [(8, 0)] * 3


OVERLAP = """
import json, sys
from benchmarks import ownership
figures = ownership.figures(sys.argv[1], 24, 512, False, counted=False, overlap=True)
print(json.dumps(next(figures)[1]._asdict()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "chip"), [("v5e:4x4", "TPU v5e"), ("h100", "H100")])
def test_messages_of_one_stack_overlap_iterations_of_another(machine, chip):
    """Of eight: the first that comes in and the last that goes out have nothing to overlap."""
    if chip not in chips():
        pytest.skip("no compiler for this chip: see CONTRIBUTING.md")
    (found,) = printed(OVERLAP, machine)
    assert (found["collectives"], found["in_loops"]) == (8, 0)
    assert found["overlapped"] >= 4


ORDER = """
import json
from benchmarks import ownership
import jax, jax.numpy as jnp, gradtx
from jax.sharding import NamedSharding, PartitionSpec
mesh, tx = ownership.mesh_of("v5e:4x4"), gradtx.muon(1e-3)
shapes = ownership.shapes(3, 128) | {f"even{i}": (256, 256) for i in range(16)}
like = {k: jax.ShapeDtypeStruct(shape, jnp.float32) for k, shape in shapes.items()}
places = dict.fromkeys(like, NamedSharding(mesh, PartitionSpec("d")))
kept = gradtx.state_sharding(tx, like, places, balance=True)
update, kept = kept.placed(tx).update, kept.abstract
program = ownership.compiled(tx, update, gradtx.apply_updates, like, places, kept)
print(json.dumps([program.as_text()]))
"""


@pytest.mark.slow
def test_no_message_parts_the_stacks_that_are_balanced():
    """Four of three matrices each on 16 chips, beside one that gives work to every chip.

    One message brings all four there, and one brings them back.
    """
    if "TPU v5e" not in chips():
        pytest.skip("no compiler for this chip: see CONTRIBUTING.md")
    ((text,),) = printed(ORDER)
    entry = text[text.index("\nENTRY") :]
    found = re.findall(r" = \S+ (all-to-all)\(| (while)\(.*shard_map/while", entry)
    order = "".join(sent[:1] or loop[:1] for sent, loop in found)
    assert "awwwwa" in order
    assert order.replace("awwwwa", "") == "awa"


@pytest.mark.slow
def test_bytes_of_factors_compiled_for_chips():
    """16 matrices of each shape on 16 chips: gradients in, updates out, and nothing beside.

    The same holds of SOAP, whose decompositions take two minutes to compile for a TPU.
    """
    if "TPU v5e" not in chips():
        pytest.skip("no compiler for this chip: see CONTRIBUTING.md")
    lines = printed(OWNED, "v5e:4x4", "16", "64", "shampoo")
    assert [x["collectives"] for x in lines] == [8] * 3
    assert all(x["received"] <= 1.1 for x in lines)
