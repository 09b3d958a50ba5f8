"""Plans of steps: against arithmetic by hand, and against compiled programs."""

import importlib.util
import json
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import gradtx
from benchmarks import planning
from benchmarks.hlo import by_kind, collectives, in_loops
from gradtx.ownership.owners import Stack
from gradtx.sharding.operations import messages, operations
from tests.distributed.meshes import P, counted, mesh, on
from tests.processes import ROOT
from tests.test_aot import printed

S = jax.ShapeDtypeStruct
W = {"b": S((64,), jnp.float32), "w": S((1024, 256), jnp.float32)}
WHOLE = 4 * 1024 * 256


def sent(plan):
    return {(m.what, m.kind, m.axes): m.bytes for m in plan.messages}


def test_plain_data_parallelism():
    plan = gradtx.plan_step(gradtx.adamw(1e-3), W, {"data": 8}, batch="data")
    assert sent(plan) == {("gradients", "all-reduce", ("data",)): WHOLE + 256}
    assert plan.received == 2 * 7 * (WHOLE + 256) // 8
    assert plan.parameter_bytes == WHOLE + 256
    assert plan.state_bytes == 2 * (WHOLE + 256) + 4
    assert (plan.devices, plan.parameters) == (8, 1024 * 256 + 64)


def test_what_the_link_to_the_host_carries():
    tx = gradtx.offload(gradtx.adamw(1e-3))
    plan = gradtx.plan_step(tx, W, {"data": 8}, batch="data", zero="data")
    assert plan.host_bytes == 2 * (WHOLE // 8)
    assert plan.state_bytes == plan.host_bytes + 2 * 256 + 4
    assert f"of the state {plan.host_bytes:,} on the host" in str(plan)
    assert gradtx.plan_step(gradtx.adamw(1e-3), W, {"data": 8}).host_bytes == 0


def test_zero_scatters_and_gathers_along_one_axis_after_the_other():
    plan = gradtx.plan_step(
        gradtx.adamw(1e-3), W, {"x": 4, "y": 2}, batch=("x", "y"), zero=("x", "y")
    )
    assert sent(plan) == {
        ("gradients", "reduce-scatter", ("x",)): WHOLE,
        ("gradients", "reduce-scatter", ("y",)): WHOLE // 4,
        ("parameters", "all-gather", ("x",)): WHOLE,
        ("parameters", "all-gather", ("y",)): WHOLE // 4,
        ("gradients", "all-reduce", ("x", "y")): 256,  # of the vector, which is small
    }
    assert plan.state_bytes == 2 * (WHOLE // 8 + 256) + 4


def test_zero_scatters_in_the_order_of_the_axes_that_are_given():
    plan = gradtx.plan_step(
        gradtx.adamw(1e-3), W["w"], {"x": 4, "y": 2}, batch=("x", "y"), zero=("y", "x")
    )
    assert sent(plan) == {
        ("gradients", "reduce-scatter", ("y",)): WHOLE,
        ("gradients", "reduce-scatter", ("x",)): WHOLE // 2,
        ("parameters", "all-gather", ("y",)): WHOLE,
        ("parameters", "all-gather", ("x",)): WHOLE // 2,
    }
    assert plan.received == 2 * (WHOLE * 1 // 2 + WHOLE // 2 * 3 // 4)


@pytest.mark.parametrize("zero", [None, "data"])
def test_an_update_reads_and_writes_what_a_device_has(zero):
    """Gradient, parameter and both slots are read, the last three written; under ZeRO an eighth of
    each, and then the gathered parameter."""
    plan = gradtx.plan_step(
        gradtx.adamw(1e-3), W["w"], {"data": 8}, batch="data", zero=zero, memory=1e9
    )
    own = WHOLE // 8 if zero else WHOLE
    count = 4
    moved = 3 * own + 2 * (2 * own + count) + (WHOLE if zero else 0)
    assert plan.update_seconds == pytest.approx(moved / 1e9, rel=1e-12)


def test_parameters_divided_over_the_batch_are_gathered_for_both_passes():
    specs = {"b": P(), "w": P("data", "model")}
    plan = gradtx.plan_step(
        gradtx.sgd(0.1), W, {"pod": 3, "data": 4, "model": 2}, specs, batch=("pod", "data")
    )
    assert sent(plan) == {
        ("gradients", "reduce-scatter", ("data",)): WHOLE // 2,
        ("parameters", "all-gather", ("data",)): WHOLE,
        ("gradients", "all-reduce", ("pod",)): WHOLE // 8,
        ("gradients", "all-reduce", ("pod", "data")): 256,
    }


FEW = {
    "one": (gradtx.spsa(), 2, 2),
    "three": (gradtx.spsa(samples=3), 6, 6),
    "derivatives": (gradtx.forward_gradients(2), 4, 2),
    "population": (gradtx.evolution_strategies(10, 0.1), 10, 10),
}


@pytest.mark.parametrize("name", FEW)
def test_replicas_with_estimated_gradients_exchange_numbers_of_the_loss(name):
    """In as many messages as there are evaluations; parameters are gathered for each number."""
    estimator, numbers, evaluations = FEW[name]
    tx = gradtx.estimated_gradients(gradtx.adam(1e-3), estimator)
    losses = {("losses", "all-reduce", ("data",)): 4 * numbers}
    link = gradtx.Link(1e9, 1e-3)
    plan = gradtx.plan_step(tx, W, {"data": 8}, batch="data", links={"data": link})
    assert sent(plan) == losses
    (message,) = plan.messages
    latency = 2 * 3 * 1e-3 * evaluations
    assert message.seconds == pytest.approx(latency + message.received / 1e9, rel=1e-6)
    divided = gradtx.plan_step(tx, W, {"data": 8}, {"b": P(), "w": P("data")}, batch="data")
    assert sent(divided) == losses | {("parameters", "all-gather", ("data",)): numbers * WHOLE}
    after = gradtx.plan_step(tx, W, {"data": 8}, batch="data", zero="data")
    assert sent(after) == losses | {("parameters", "all-gather", ("data",)): WHOLE}
    assert sent(gradtx.plan_step(tx, W, {"model": 8}, P(None))) == {}


def test_the_page_about_estimated_gradients_has_the_plan_that_it_prints():
    mezo = gradtx.estimated_gradients(gradtx.sgd(1e-6), gradtx.spsa(distribution="normal"))
    stack = {"w": S((24, 1024, 4096), jnp.float32)}
    page = (ROOT / "docs" / "without_backward.md").read_text()
    assert f"```text\n{gradtx.plan_step(mezo, stack, {'data': 16}, batch='data')}\n```" in page
    assert f"`{str(gradtx.describe(mezo, stack)).splitlines()[-1]}`" in page


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["replicated", "divided", "zero"])
@pytest.mark.parametrize("name", ["one", "derivatives"])
def test_estimates_on_a_mesh_send_what_is_planned(name, layout):
    """As the compiled step, whose loop has two turns: two losses, or two derivatives."""
    tx = gradtx.estimated_gradients(gradtx.adam(1e-3), FEW[name][0])
    m = mesh(data=8)
    specs = {"v": P(), "w": P("data") if layout == "divided" else P()}
    shapes = {"v": (1024, 8), "w": (64, 1024)}
    params = {k: S(shapes[k], jnp.float32, sharding=on(m, *specs[k])) for k in shapes}
    zero = "data" if layout == "zero" else None
    sharding = gradtx.state_sharding(tx, params, zero=zero)

    def loss(p, x, y):
        return jnp.mean((jnp.tanh(x @ p["w"]) @ p["v"] - y) ** 2)

    step = gradtx.make_step(loss, tx, sharding=sharding)
    x, y = (S((64, n), jnp.float32, sharding=on(m, "data")) for n in (64, 8))
    program = step.lower(params, sharding.abstract, x, y).compile().as_text()
    whole, turns = 4 * 64 * 1024, 2
    found = by_kind(collectives(in_loops(program)))
    places, reduced = found.pop("all-reduce")  # SPSA's loss stands in another loop for equal values
    expected = {"losses": turns * reduced // places}
    if layout == "divided":
        expected["parameters"] = turns * found.pop("all-gather")[1] // places
    assert found == {}
    if layout == "zero":
        expected["parameters"] = whole
    plan = gradtx.plan_step(tx, sharding.like, {"data": 8}, specs, batch="data", zero=zero)
    assert {m.what: m.bytes for m in plan.messages} == expected
    # Nothing is sent outside of the loops but the parameters that ZeRO gathers after the step.
    once = by_kind(collectives(program))
    assert once["all-reduce"] == (places, reduced)
    if layout == "zero":
        assert once["all-gather"] == (1, whole)


def test_what_links_send():
    """DiLoCo one all-reduce in so many steps, SparseLoCo what everyone gathers from everyone."""
    outer = gradtx.sgd(0.7, momentum=0.9, nesterov=True)
    dense = gradtx.diloco(gradtx.adamw(1e-3), outer, 100, "pod")
    sparse = gradtx.sparse_loco(gradtx.adamw(1e-3), 100, "pod")
    given = {"batch": "data", "specs": {"b": P(), "w": P(None, "data")}}
    one = gradtx.plan_step(dense, W, {"pod": 6, "data": 4}, **given)
    own = WHOLE // 4 + 256
    assert sent(one)["parameters of the devices", "all-reduce", ("pod",)] == math.ceil(own / 100)
    two = gradtx.plan_step(sparse, W, {"pod": 6, "data": 4}, **given)
    # 16 chunks of 64 x 64, and one of 64.
    message = 16 * 264 + 2 * 2 + 8
    kind = "parameters of the devices", "all-gather", ("pod",)
    assert sent(two)[kind] == 6 * math.ceil(message / 100)


@pytest.mark.parametrize("link", ["aggregate", "aggregate_bf16"])
def test_what_aggregation_sends_are_gradients(link):
    tx = gradtx.chain(getattr(gradtx, link)("data"), gradtx.adamw(1e-3))
    plan = gradtx.plan_step(tx, W, {"data": 8})
    size = (WHOLE + 256) // (2 if link == "aggregate_bf16" else 1)
    assert sent(plan) == {("gradients", "all-reduce", ("data",)): size}


def test_a_part_of_a_leaf_need_not_be_one_that_the_optimizer_takes():
    """On 128 devices each has half a head."""
    heads = gradtx.MuonDimensionNumbers(0, 1, heads=(1, 64))
    tx = gradtx.scale_by_soap(weight_dimension_numbers={"b": None, "w": heads})
    plan = gradtx.plan_step(tx, W, {"model": 128}, {"b": P(), "w": P(None, "model")})
    assert plan.parameter_bytes == WHOLE // 128 + 256


def test_seconds():
    """The quick axis takes all, the slow one what is left to a device; every turn has latency."""
    links = {"far": gradtx.Link(1e6, 1e-3), "near": gradtx.Link(1e9, 1e-6)}
    plan = gradtx.plan_step(
        gradtx.sgd(0.1),
        S((1000,), jnp.float32),
        {"far": 2, "near": 4},
        batch=("far", "near"),
        links=links,
        memory=1e9,
    )
    near = 2 * (4000 * 3 / 4 / 1e9 + 2 * 1e-6)
    far = 2 * (1000 * 1 / 2 / 1e6 + 1e-3)
    assert plan.messages[0].seconds == pytest.approx(near + far)
    assert plan.update_seconds == pytest.approx(3 * 4000 / 1e9)
    assert plan.seconds == pytest.approx(near + far + 12e-6)
    assert str(plan).splitlines() == [
        "1,000 parameters, 8 devices, far=2 x near=4",
        "bytes of a device: parameters 4,000, state 0",
        "                       over        bytes  received     ms",
        "gradients: all-reduce  far x near  4,000     7,000   3.01",
        "update                                              0.012",
        "all                                          7,000   3.02",
    ]


def test_an_all_to_all_is_as_slow_as_the_slowest_of_its_axes():
    """Each device keeps an eighth of what it has: 8 rows of each of eight matrices."""
    links = {"far": gradtx.Link(1e6, 1e-3), "near": gradtx.Link(1e9, 1e-6)}
    params = {f"{i}": S((64, 80), jnp.float32) for i in range(8)}
    plan = gradtx.plan_step(
        gradtx.muon(1e-3), params, {"near": 4, "far": 2}, P(("far", "near")), links=links
    )
    (message,) = plan.messages
    there = 4 * 64 * 80
    assert (message.what, message.kind, message.bytes) == ("matrices", "all-to-all", 2 * there)
    assert message.received == 2 * there * 7 // 8
    assert message.seconds == pytest.approx(message.received / 1e6 + 1e-3)


@pytest.mark.parametrize("balance", [False, True])
def test_stacks_are_balanced_if_that_is_asked_for(balance):
    """Three matrices and one: unbalanced, the first device has one of each."""
    params = {f"a{i}": S((16, 24), jnp.float32) for i in range(3)} | {"b": S((8, 32), jnp.float32)}
    plan = gradtx.plan_step(gradtx.muon(1e-3), params, {"data": 8}, P("data"), balance=balance)
    assert {stack.first for stack in plan.owned} == ({0, 3} if balance else {None})
    assert plan.sharding.balance is balance
    three, one = (operations(s.program) for s in sorted(plan.owned, key=lambda s: -s.count))
    assert plan.operations == (max(three, one) if balance else three + one)
    share = (3 * three + one) / 8
    assert f"{plan.operations / share:.2f} of equal shares" in str(plan)
    # Padded, a device receives a matrix of each shape; in one message, as much as the larger one.
    larger, both = 4 * 16 * 24, 4 * (16 * 24 + 8 * 32)
    (message,) = plan.messages
    assert message.bytes == 2 * (larger if balance else both)
    one_message = f"2 shapes in one message: 2 collectives, {larger:,} bytes there and {larger:,}"
    assert (one_message in str(plan)) is balance


def test_messages_of_stacks_are_those_of_the_device_that_receives_most():
    """In one message a device receives what it has of several stacks; alone, of each."""

    def stack(count, first, sizes, axes=("x",), *, in_one_message=True):
        return Stack(count, (2, 2), 4, axes, first, (1, 1), sizes, None, in_one_message)

    # Devices 0 and 1; 1 and 2; 3 alone.
    together = [stack(2, 0, (10, 20)), stack(2, 1, (3, 5)), stack(1, 3, (11, 22))]
    assert messages(together) == [(("x",), 13, 25)]
    alone = stack(4, None, (7, 9), in_one_message=False)
    other = stack(1, 0, (1, 2), ("y",))
    found = [(("x",), 7, 9), (("x",), 13, 25), (("y",), 1, 2)]
    assert messages([*together, alone, other]) == found


def test_operations_are_those_of_products_in_all_turns():
    """A program inside counts once, one in a scan as often as it runs."""
    a, b = jnp.zeros((2, 3)), jnp.zeros((3, 4))

    def turns(a, b):
        return jax.lax.scan(lambda carry, _: (carry, jax.jit(jnp.matmul)(a, b)), 0, length=5)

    assert operations(jax.make_jaxpr(jax.jit(jnp.matmul))(a, b)) == 2 * 2 * 3 * 4
    assert operations(jax.make_jaxpr(turns)(a, b)) == 5 * 2 * 2 * 3 * 4


@pytest.mark.slow
def test_matrices_that_have_an_owner_are_as_in_the_compiled_step():
    """Bytes and collectives of the all-to-alls; the operations of five iterations by hand."""
    shapes = {f"{i}/{n}": s for i in range(8) for n, s in (("up", (64, 80)), ("out", (64, 64)))}
    m = mesh(data=8)
    params = {k: S(s, jnp.float32, sharding=on(m, "data")) for k, s in shapes.items()}
    tx = gradtx.muon(1e-3)
    sharding = gradtx.state_sharding(tx, params)
    placed = sharding.placed(tx)
    step = jax.jit(lambda g, s, p: placed.update(g, s, p), donate_argnums=(0, 1))
    program = step.lower(params, sharding.abstract, params).compile()
    plan = gradtx.plan_step(tx, params, {"data": 8}, P("data"))
    assert {k: b for (_, k, _), b in sent(plan).items()} == {
        k: b for k, (_, b) in counted(program).items()
    }
    assert sum(sum(stack.arrays) for stack in plan.owned) == counted(program)["all-to-all"][0]
    assert [stack.each for stack in plan.owned] == [1, 1]
    # X X^T, its square, and the sum of both times X.
    assert plan.operations == sum(5 * 2 * 64 * 64 * (n + 64 + n) for n in (80, 64))
    for text in (str(plan), str(sharding)):
        assert "8 matrices (64, 80): 1 whole on each of 8 devices; 2 collectives" in text


def test_more_devices_than_there_are():
    tx = gradtx.muon(1e-3)
    params = {f"w{i}": S((1024, 1024), jnp.bfloat16) for i in range(100)}
    plan = gradtx.plan_step(tx, params, {"pod": 384, "data": 16, "model": 16}, P("data", "model"))
    assert plan.devices == 98_304
    assert plan.owned[0].devices == 256
    assert plan.parameter_bytes == 100 * 1024 * 1024 * 2 // 256


def test_an_unknown_axis():
    with pytest.raises(ValueError, match="batch='dat' is not an axis.*'data'"):
        gradtx.plan_step(gradtx.sgd(0.1), W, {"data": 2}, batch="dat")


@pytest.mark.slow
def test_the_page_has_the_figures_of_the_command():
    page = (ROOT / "docs" / "planning.md").read_text()
    assert all(table.strip() in page for table in planning.tables())


PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from benchmarks import meshes
import gradtx
layout = meshes.LAYOUTS[1]
found = meshes.compiled(layout, "v5e:16x16", 512)
params = [
    {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in meshes.shapes(512).items()}
    for _ in range(meshes.BLOCKS)
]
plan = gradtx.plan_step(
    gradtx.adamw(1e-3), params, {"x": 16, "y": 16}, batch=layout.data, zero=layout.data
)
planned = {}
for m in plan.messages:
    planned[m.what] = planned.get(m.what, 0) + m.bytes
print(json.dumps([found.state, found.collectives, plan.state_bytes, planned]))
"""


@pytest.mark.slow
def test_a_step_on_256_chips_holds_and_sends_what_is_planned():
    """XLA reduces some of the second scatter whole: the same bytes, under another name."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: see CONTRIBUTING.md")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    state, collectives, planned_state, planned = json.loads(done.stdout.splitlines()[-1])
    sizes = {kind: size for kind, (_, size) in collectives.items()}
    assert state == planned_state
    assert sizes["all-gather"] == planned["parameters"]
    loss = 4
    assert sizes["reduce-scatter"] + sizes["all-reduce"] - loss == planned["gradients"]


DIVIDED = """
import json
from benchmarks import hlo, meshes
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import gradtx
mesh, tx = meshes.mesh_of("v5e:16x16"), gradtx.adamw(1e-3)
specs = [{n: P() if n == "norm" else P("x") for n in meshes.SPECS}] * meshes.BLOCKS

def array(shape, spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

params = [{n: array(s, of[n]) for n, s in meshes.shapes(512).items()} for of in specs]
sharding = gradtx.state_sharding(tx, params)
step = gradtx.make_step(meshes.loss, tx, sharding=sharding)
batch = array((256, 256, 512), P(("x", "y")))
program = step.lower(params, sharding.abstract, batch).compile().as_text()
plan = gradtx.plan_step(tx, sharding.like, {"x": 16, "y": 16}, specs, batch=("x", "y"))
planned = {}
for m in plan.messages:
    planned[m.kind] = planned.get(m.kind, 0) + m.bytes
found = hlo.by_kind(hlo.collectives(program))
print(json.dumps([{k: n for k, (_, n) in found.items()}, planned, hlo.overlapped(program)]))
"""


@pytest.mark.slow
def test_gathers_of_divided_parameters_on_256_chips():
    """Reduced as planned; gathered once or twice in bfloat16, which is what products read there."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: see CONTRIBUTING.md")
    (line,) = printed(DIVIDED)
    found, planned, overlapped = line
    assert found["reduce-scatter"] == planned["reduce-scatter"]
    assert found["all-reduce"] == planned["all-reduce"] + 4  # and the loss
    in_float32 = 2 * found["all-gather"]
    assert planned["all-gather"] / 2 <= in_float32 <= planned["all-gather"]
    assert overlapped  # between the start of a gather and its end lie products
    assert all(overlapped)


def test_axes_that_the_mesh_lacks():
    params = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    tx = gradtx.diloco(gradtx.sgd(0.1), gradtx.sgd(0.7), 4, "pd")
    with pytest.raises(ValueError, match="there is no axis 'pd', over which tx sends"):
        gradtx.plan_step(tx, params, {"data": 8})
    with pytest.raises(TypeError, match="mesh must be a dict of sizes by axis"):
        gradtx.plan_step(gradtx.sgd(0.1), params, 8)


def test_a_mesh_in_place_of_its_sizes():
    params = {"w": jax.ShapeDtypeStruct((8, 8), jnp.float32)}
    want = gradtx.plan_step(gradtx.adam(0.1), params, {"data": 1})
    for same in (jax.make_mesh((1,), ("data",)), AbstractMesh((1,), ("data",)), [("data", 1)]):
        assert str(gradtx.plan_step(gradtx.adam(0.1), params, same, zero=())) == str(want)
