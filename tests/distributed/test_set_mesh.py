"""`tx.update` by hand, in `jit`, on a mesh with `Auto` axes that `jax.set_mesh` makes known."""

# Sees mutants of: shardings, owners.

import contextlib
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import by_kind, collectives, group_size

ROWS, COLUMNS, WHOLE = PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec()


def mesh(*sizes, kind=AxisType.Auto):
    return jax.make_mesh(sizes, ("x", "y")[: len(sizes)], axis_types=(kind,) * len(sizes))


def params():
    rng = np.random.default_rng(0)
    shapes = {"up": (16, 48), "down": (48, 16), "out": (16, 16)}
    return {
        f"{i}/{name}": jnp.asarray(rng.normal(size=shape), float)
        for i in range(6)
        for name, shape in shapes.items()
    }


def make(name):
    if name == "muon":
        return gradtx.muon(0.1)
    # Epsilons so large that rounding chooses no basis.
    return getattr(gradtx, name)(0.1, eps=1e-2, precondition_frequency=2)


def compiled(update, *args):
    program = jax.jit(update).lower(*args).compile()
    kinds = by_kind(collectives(program.as_text()))
    return {kind: count for kind, (count, _) in kinds.items()}, program


def two_steps(tx, p):
    def step(p, state):
        updates, state = tx.update(p, state, p)
        return gradtx.apply_updates(p, updates), state

    step = jax.jit(step)
    return step(*step(p, tx.init(p)))


@functools.cache
def alone(name):
    with jax.enable_x64(True):
        return two_steps(make(name), params())


@pytest.mark.slow
@pytest.mark.parametrize("spec", [ROWS, COLUMNS, WHOLE], ids=["rows", "columns", "whole"])
@pytest.mark.parametrize("sizes", [(8,), (4, 2)])
@pytest.mark.parametrize("name", ["muon", "shampoo", "soap"])
def test_equals_the_run_on_one_device(name, sizes, spec):
    want = alone(name)
    with jax.enable_x64(True), jax.set_mesh(on := mesh(*sizes)):
        got = two_steps(make(name), jax.device_put(params(), NamedSharding(on, spec)))
    assert got[0]["0/up"].sharding.is_equivalent_to(NamedSharding(on, spec), 2)
    if name == "soap":  # the signs of eigenvectors are rounding's
        got, want = got[0], want[0]
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_matrices_are_computed_by_their_owners():
    """One exchange in, one out, none in the iteration; updates lie as the gradients do."""
    tx, p = gradtx.orthogonalize(), {str(i): jnp.ones((8, 16)) * (i + 1) for i in range(6)}
    for spec in (ROWS, COLUMNS):
        placed = jax.device_put(p, NamedSharding(mesh(8), spec))
        with jax.set_mesh(mesh(8)):
            sent, program = compiled(tx.update, placed, tx.init(p), placed)
        assert sent == {"all-to-all": 2}
        assert program.output_shardings[0]["0"].spec == spec


def test_of_whole_gradients_only_updates_are_sent():
    tx, p = gradtx.orthogonalize(), {str(i): jnp.ones((8, 16)) * (i + 1) for i in range(6)}
    with jax.set_mesh(mesh(8)):
        placed = jax.device_put(p, NamedSharding(mesh(8), WHOLE))
        assert compiled(tx.update, placed, tx.init(p), placed)[0] == {"all-gather": 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_factors_go_to_their_owners_as_stacks(kind):
    """Of a state that lies as `tx.init` made it: two messages for each stack of a factor."""
    tx, on = make("shampoo"), mesh(8, kind=kind)
    with jax.set_mesh(on):
        p = jax.device_put(params(), NamedSharding(on, ROWS))
        sent, _ = compiled(tx.update, p, tx.init(p), p)
    stacks = 3 * (1 + 4)  # of three shapes: the gradient, two factors and two roots
    assert sum(sent.values()) <= 2 * stacks


@pytest.mark.slow
def test_where_nothing_can_be_divided_nothing_changes():
    """Without a mesh, on one device, under `vmap`, and in a `shard_map` with axes of its own."""
    tx, p = gradtx.orthogonalize(), {"w": jnp.ones((8, 8, 16))}
    by_rows = jax.device_put(p, NamedSharding(mesh(8), ROWS))

    def update(p):
        return tx.update(p, tx.init(p))[0]

    one = {"w": p["w"][0]}
    assert "shard_map" not in str(jax.make_jaxpr(update)(one))
    with jax.set_mesh(mesh(1)):
        assert "shard_map" not in str(jax.make_jaxpr(update)(one))
    with jax.set_mesh(mesh(8)):
        assert "shard_map" in str(jax.make_jaxpr(update)(one))
        assert compiled(jax.vmap(update), by_rows)[0] == {}
        inside = jax.shard_map(jax.vmap(update), in_specs=ROWS, out_specs=ROWS)
        assert compiled(inside, by_rows)[0] == {}
        got = update(one)  # not compiled
    np.testing.assert_allclose(got["w"], update(one)["w"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [
        ("shampoo", AxisType.Auto, "npz"),
        ("shampoo", AxisType.Explicit, "orbax"),
        ("soap", AxisType.Auto, "safetensors"),
        ("soap", AxisType.Explicit, "npz"),
    ],
)
def test_what_a_rule_keeps_stays_with_the_owner(name, kind, form, tmp_path):
    """With a state of `init_sharded`, gradients come and updates go; the run is saved and goes on
    on another mesh."""

    def run(p, state):
        updates, state = tx.update(p, state, p)
        return gradtx.apply_updates(p, updates), state

    tx, step = make(name), jax.jit(run)
    want = alone(name)[0]
    with jax.enable_x64(True):
        with jax.set_mesh(on := mesh(8, kind=kind)):
            p = jax.device_put(params(), NamedSharding(on, ROWS))
            state = gradtx.init_sharded(tx, p)
            sent, _ = compiled(run, p, state)
            assert sent == {"all-to-all": 2 * 3}
            p, state = step(p, state)
            gradtx.save_checkpoint(tmp_path / "run", p, state, tx, form=form)
        found = gradtx.load_checkpoint(tmp_path / "run", tx, params(), form=form)
        assert jax.tree.structure(found.state) == jax.tree.structure(tx.init(params()))
        here = run(found.params, found.state)[0]
        with jax.set_mesh(on := mesh(4, kind=kind)):
            p = jax.device_put(found.params, NamedSharding(on, COLUMNS))
            there = step(p, gradtx.state_sharding(tx, p).put(found.state))[0]
    for path, x in want.items():
        np.testing.assert_allclose(here[path], x, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(there[path], x, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["placed", "auto", "explicit"])
def test_no_matrix_leaves_its_node(how):
    """Each node has all matrices, divided over its chips. By hand, the state says over what."""
    tx, p = make("shampoo"), {str(i): jnp.ones((8, 16)) * (i + 1) for i in range(4)}
    kind = AxisType.Explicit if how == "explicit" else AxisType.Auto
    on = jax.make_mesh((2, 4), ("node", "chip"), axis_types=(kind,) * 2)
    p = jax.device_put(p, NamedSharding(on, PartitionSpec("chip")))
    sharding = gradtx.state_sharding(tx, p)
    state = sharding.init(tx, p)
    with contextlib.nullcontext() if how == "placed" else jax.set_mesh(on):
        update = sharding.placed(tx).update if how == "placed" else tx.update
        sent, program = compiled(update, p, state, p)
    assert sent == {"all-to-all": 2}
    sizes = [group_size(x) for x in re.findall("replica_groups=.*", program.as_text())]
    assert sizes == [4, 4]


@pytest.mark.slow
def test_a_state_for_another_mesh_is_refused():
    tx, p = make("shampoo"), {str(i): jnp.ones((8, 16)) for i in range(4)}
    state = gradtx.init_sharded(tx, jax.device_put(p, NamedSharding(mesh(4), ROWS)))
    with jax.set_mesh(mesh(8)):
        p = jax.device_put(p, NamedSharding(mesh(8), ROWS))
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
        with pytest.raises(ValueError, match=r"a stack of 4 over .*it would be one of 8 over"):
            jax.eval_shape(jax.jit(tx.update), p, like, p)


def test_a_balanced_state_for_more_devices_is_refused():
    """The stacks are as long on fewer of them, but one begins inside of a device's part."""
    tx = gradtx.scale_by_shampoo()
    counts = {(32, 16): 5, (16, 16): 6, (16, 8): 5}
    p = [jax.ShapeDtypeStruct(shape, "float32") for shape, n in counts.items() for _ in range(n)]

    def plan(devices):
        where = NamedSharding(mesh(devices), ROWS)
        return gradtx.state_sharding(tx, p, where, balance=True)

    with pytest.raises(ValueError, match="a stack of 8 .* from 5 on, .* one of 8 .* 2 on each"):
        jax.eval_shape(plan(4).placed(tx).update, p, plan(8).abstract, p)


@pytest.mark.slow
def test_stacks_are_written_one_by_one(monkeypatch):
    """Where the transformation keeps stacks they are loaded as such, also as they were written."""
    tx, p = make("shampoo"), {"a": jnp.eye(8, 16), "b": jnp.ones((8, 16))}
    on = NamedSharding(mesh(4), ROWS)
    sharding = gradtx.state_sharding(tx, jax.device_put(p, on))
    placed = sharding.placed(tx)
    state = placed.init(p)
    saved = gradtx.state_dict(state)
    assert {"0/left/a", "0/left/b"} <= saved.keys()
    monkeypatch.setattr("gradtx.checkpoint.state_dict.apart", lambda state: state)
    stacks = gradtx.state_dict(state)
    monkeypatch.undo()
    assert "0/left/a/value" in stacks
    for flat in (saved, stacks):
        again = gradtx.load_state_dict(placed, p, flat)
        assert jax.tree.structure(again) == jax.tree.structure(state)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, again, state))
    with pytest.warns(UserWarning, match="extra: 1/mu"):
        again = gradtx.load_state_dict(placed, p, stacks | {"1/mu": jnp.ones(3)}, strict=False)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, again, state))
    again = gradtx.load_state_dict(tx, p, saved)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, again, sharding.whole(state)))


@pytest.mark.slow
def test_stacks_of_experts_in_order_are_refused(monkeypatch):
    """An older version wrote them so; as a stack of today each matrix would be another's."""
    tx = gradtx.scale_by_shampoo(weight_dimension_numbers=gradtx.MuonDimensionNumbers(2, 3))
    p = {"experts": jnp.ones((3, 4, 8, 8))}
    where = NamedSharding(mesh(2, 4), PartitionSpec(None, "y", "x"))
    placed = gradtx.state_sharding(tx, p, where).placed(tx)
    monkeypatch.setattr("gradtx.checkpoint.state_dict.apart", lambda state: state)
    stacks = gradtx.state_dict(placed.init(p))
    monkeypatch.undo()
    assert "left/experts/value" in stacks
    with pytest.raises(ValueError, match="left/experts"):
        gradtx.load_state_dict(placed, p, stacks)


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
def test_a_step_of_layers_in_a_scan(inside):
    """Also where each layer is updated inside of the backward pass."""
    rng = np.random.default_rng(0)
    layers = jnp.asarray(rng.normal(size=(4, 16, 16)) / 4, jnp.float32)
    x = jnp.asarray(rng.normal(size=(8, 16)), jnp.float32)
    tx = gradtx.muon(0.05, muon_weight_dimension_numbers=gradtx.MuonDimensionNumbers(-2, -1))

    def loss(w, x):
        return jnp.mean(jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0] ** 2)

    def trained(w):
        step = gradtx.make_step(loss, tx, inside=inside)
        state = step.init(w)
        for _ in range(2):
            w, state, _ = step(w, state, x)
        return w

    want = trained(jnp.array(layers))
    with jax.set_mesh(mesh(8)):
        got = trained(jax.device_put(layers, NamedSharding(mesh(8), COLUMNS)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_describe_says_what_would_help():
    """Where matrices are divided over axes that only the compiler knows of."""
    by_rows, everywhere = (NamedSharding(mesh(8), spec) for spec in (ROWS, WHOLE))
    typed = NamedSharding(mesh(8, kind=AxisType.Explicit), ROWS)
    p = {"w": jnp.ones((8, 16))}

    def advice(tx, place):
        return gradtx.describe(tx, jax.device_put(p, place)).advice

    tx = gradtx.chain(gradtx.clip(1.0), gradtx.muon(0.1))
    told = advice(tx, by_rows)
    assert "jax.set_mesh(mesh)" in told
    assert "state_sharding(tx, params)" in told
    assert str(gradtx.describe(tx, jax.device_put(p, by_rows))).endswith(f"advice: {told}")
    like = {"w": jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=by_rows)}
    assert gradtx.describe(tx, like).advice == told
    assert advice(tx, everywhere) is advice(tx, typed) is advice(gradtx.adam(0.1), by_rows) is None
    with jax.set_mesh(mesh(8)):
        assert advice(tx, by_rows) is None
