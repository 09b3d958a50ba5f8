"""Where states lie, for the whole catalogue; steps that keep them there."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import gradtx
from gradtx.sharding.divided_state import DividedState, _part
from gradtx.sharding.padding import Padded, is_padded, unpadded
from gradtx.sharding.placement import Placement, inherited, spread
from tests.catalogue import CATALOGUE
from tests.distributed.meshes import THIRDS, P, all_lie_on, counted, mesh, on
from tests.quick import quick
from tests.test_contracts import step

NAMES = sorted(CATALOGUE)
PAIR = {"data": 4, "model": 2}


def params(name=None):
    """Small, but with every case: divided by one axis or two, not divided, square, a vector."""
    rng = np.random.default_rng(0)
    shapes = {"b": (8,), "odd": (6, 5), "square": (8, 8), "w": (16, 6)}
    shapes |= CATALOGUE[name].leaves if name else {}
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


def places(m, name=None):
    found = {
        "b": on(m),
        "lora_a": on(m, "data"),
        "lora_b": on(m, None, "model"),
        "odd": on(m),
        "square": on(m, None, "model"),
        "w": on(m, "data", "model"),
    }
    return {k: found[k] for k in params(name)}


@functools.cache
def sharding_of(name, zero):
    m = mesh(**PAIR)
    tx = CATALOGUE[name].make()
    return gradtx.state_sharding(tx, params(name), places(m, name), zero=zero, min_size=16)


@pytest.mark.quick(27)
@pytest.mark.parametrize("name", NAMES)
def test_every_leaf_of_every_state_has_a_place(name):
    """Without allocating: a sharding for every leaf, the parameter's own for what is like it."""
    tx, m = CATALOGUE[name].make(), mesh(**PAIR)
    found = gradtx.state_sharding(tx, params(name), places(m, name), min_size=16)
    shapes = jax.eval_shape(found.placed(tx).init, params(name))
    assert jax.tree.structure(found.state) == jax.tree.structure(shapes)
    for x, place in zip(jax.tree.leaves(shapes), jax.tree.leaves(found.state), strict=True):
        assert place.mesh == m
        place.shard_shape(x.shape)  # raises if it does not divide the shape
    for slot in gradtx.slot_names(shapes):
        tree = gradtx.get_slot(shapes, slot)
        if jax.tree.structure(tree) != jax.tree.structure(params(name)):
            continue
        given = gradtx.get_slot(found.state, slot)
        for key, p in params(name).items():
            if tree[key].shape == p.shape:
                own = places(m, name)[key].with_memory_kind(given[key].memory_kind)
                assert given[key].is_equivalent_to(own, p.ndim)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", quick(NAMES, "adafactor", "adam", "galore", "muon", "sm3"))
def test_zero_divides_what_is_large(name):
    """No slot of 16 entries or more stays whole along `zero`, unless nothing can divide it."""
    tx, m = CATALOGUE[name].make(), mesh(**PAIR)
    found = gradtx.state_sharding(tx, params(name), places(m, name), zero="data", min_size=16)
    shapes = jax.eval_shape(found.placed(tx).init, params(name))
    leaves = jax.tree.leaves(found.abstract, is_leaf=is_padded)
    assert [tuple(x.shape) for x in leaves] == [x.shape for x in jax.tree.leaves(shapes)]
    trees = [gradtx.get_slot(shapes, name) for name in gradtx.slot_names(shapes)]
    slots = {id(x) for x in jax.tree.leaves(trees)}
    if name == "store":
        return  # a block of codes is not divided; tests/wrappers/test_store.py has larger leaves
    for leaf, x in zip(leaves, jax.tree.leaves(shapes), strict=True):
        spec = (leaf.value if is_padded(leaf) else leaf).sharding.spec
        if id(x) in slots and x.size >= 16 and any(n % 4 == 0 for n in x.shape):
            assert "data" in jax.tree.leaves(tuple(spec)), (x, spec)


# After one gradient most of a factor's null space has no direction of its own: rounding chooses
# the basis there, and Adam's division makes steps of full size of what it chose: see
# test_rounding_chooses_the_bases_of_factors_without_full_rank.
CHOSEN_BY_ROUNDING = {"kl_soap", "scale_by_kl_soap", "scale_by_soap", "soap", "soap_muon"}
CHOSEN_BY_ROUNDING |= {"scale_by_soap_muon", "scale_by_splus", "splus"}


@pytest.mark.usefixtures("host_memory_of_offload")
@pytest.mark.slow
@pytest.mark.parametrize("name", THIRDS[1])
def test_a_sharded_run_is_the_run_on_one_device(name):
    """Two steps with `zero`: state made in its sharding, kept there, and the same numbers."""
    got, want = sharded_and_alone(CATALOGUE[name].make(), sharding_of(name, "data"), name)
    if name in CHOSEN_BY_ROUNDING:
        chex.assert_tree_all_finite(got)
    else:
        chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("build", [gradtx.soap, gradtx.soap_muon])
def test_bases_of_the_smaller_sides_are_those_on_one_device(build):
    """Their factors have full rank after one gradient: docs/distributed.md names this way out."""
    tx = build(0.003, one_sided=True)
    found = gradtx.state_sharding(tx, params(), places(mesh(**PAIR)), zero="data", min_size=16)
    chex.assert_trees_all_close(*sharded_and_alone(tx, found), rtol=1e-5, atol=1e-5)


def sharded_and_alone(tx, found, name=None):
    """The parameters after two steps, sharded and on one device."""
    m, p = mesh(**PAIR), params(name)
    # Of full rank: orthogonalization magnifies the rounding of a singular value of zero.
    rng = np.random.default_rng(3)
    g = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), p)

    def twice(p, state, g):
        def body(carry, _):
            return step(tx, carry, g)[0], None

        return jax.lax.scan(body, (p, state), length=2)[0]

    want, _ = jax.jit(twice)(p, tx.init(p), g)
    placed = jax.device_put(p, places(m, name))
    state = found.init(tx, placed)
    assert all_lie_on(state, found.state)
    run = jax.jit(twice, out_shardings=(found.params, found.state))
    got, state = run(placed, state, jax.device_put(g, found.gradients))
    assert all_lie_on(state, found.state)
    return got, want


def test_one_eighth_of_the_bytes():
    """Under `zero` a device holds an eighth of the slots, within the padding."""
    m, tx = mesh(data=8), gradtx.adamw(1e-3)
    p = {"w": jnp.zeros((64, 32)), "odd": jnp.zeros((37, 29)), "b": jnp.zeros(32)}
    found = gradtx.state_sharding(tx, p, on(m), zero="data", min_size=64)
    bytes_ = {leaf.path: leaf.bytes for leaf in found.leaves}
    assert bytes_["0/mu/w"] == 64 * 32 * 4 // 8
    assert bytes_["0/nu/odd"] == min(40 * 29, 37 * 32) * 4 // 8
    assert bytes_["0/mu/b"] == 32 * 4
    assert found.bytes_per_device == 4 + sum(
        2 * bytes_[f"0/mu/{name}"] for name in ("w", "odd", "b")
    )
    placed = jax.device_put(p, on(m))
    state = gradtx.init_sharded(tx, placed, zero="data", min_size=64)
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(state))
    assert held == found.bytes_per_device
    assert isinstance(state[0].mu["odd"], Padded)
    assert "padded" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda: gradtx.adamw(1e-3),
        lambda: gradtx.adafactor(1e-3),
        lambda: gradtx.soap(1e-3),
        lambda: gradtx.aggregate_power_sgd("data"),
        lambda: gradtx.diloco(gradtx.adam(1e-3), gradtx.sgd(0.7, momentum=0.9), 10, "data"),
    ],
)
def test_a_state_is_never_whole_on_one_device(build):
    """What a device needs to make its part, random numbers included, is of that part's size."""
    tx, m = build(), mesh(data=8)
    p = {"b": jnp.zeros(1024), "w": jnp.zeros((1024, 512))}
    found = gradtx.state_sharding(tx, p, on(m), zero="data")
    placed = jax.device_put(p, found.params)
    made = jax.jit(found.init, static_argnums=0).lower(tx, placed).compile().memory_analysis()
    assert made.temp_size_in_bytes <= 4 * 1024 * 512 // 8
    assert made.output_size_in_bytes <= found.bytes_per_device + 1024  # and pointers to them


def test_zero_over_two_axes():
    """One after the other, on dimensions of their own; so do the gradients go."""
    m, tx = mesh(x=4, y=2), gradtx.adamw(1e-3)
    p = {"odd": jnp.zeros((37, 29)), "w": jnp.zeros((64, 32)), "y": jnp.zeros((64, 32))}
    given = {"odd": on(m), "w": on(m), "y": on(m, "y")}
    found = gradtx.state_sharding(tx, p, given, zero=("x", "y"), min_size=64)
    first, last = found.reductions
    assert (first["w"].spec, last["w"].spec) == (P("x"), P("x", "y"))
    assert (first["y"].spec, last["y"].spec) == (P("y", "x"), P("y", "x"))
    assert found.state[0].mu["w"] == last["w"] == found.gradients["w"]
    leaves = {leaf.path: leaf for leaf in found.leaves}
    assert leaves["0/mu/w"].bytes == 64 * 32 * 4 // 8
    assert leaves["0/mu/w"].note == "dimension 0 over 'x'; dimension 1 over 'y'"
    assert leaves["0/mu/odd"].bytes == 40 * 29 * 4 // 8


@pytest.mark.parametrize(
    ("shape", "probe", "want"),
    [
        ((16, 6), (5, 7), ((("data",), ("model",)), "as the parameter")),
        ((1, 6), (1, 7), (((), ("model",)), "reduced")),
        ((6,), (7,), ((("model",),), "by dimensions of the parameter")),
        ((6, 3), (7, 3), ((("model",), ()), "by dimensions of the parameter")),
        ((3,), (7,), None),  # of the probe's size, but not of the parameter's
    ],
)
def test_a_dimension_lies_as_the_one_that_it_comes_from(shape, probe, want):
    dims = ("data",), ("model",)
    found = inherited(shape, probe, (16, 6), (5, 7), dims, mesh(**PAIR))
    assert (found and (found.dims, found.note)) == want


@pytest.mark.parametrize("balance", [False, True])
def test_places_are_for_the_state_that_is_made_there(balance):
    """Balanced, the slots of stacks that an owner keeps begin at different devices."""
    tx, where = gradtx.shampoo(0.1), on(mesh(data=8), "data")
    like = {k: jax.ShapeDtypeStruct(s, jnp.float32) for k, s in (("a", (16, 24)), ("b", (8, 32)))}
    found = gradtx.state_sharding(tx, like, where, balance=balance)
    made = jax.eval_shape(found.placed(tx).init, like)
    assert jax.tree.structure(found.abstract) == jax.tree.structure(made)


def test_a_report_has_columns():
    tx, m = gradtx.sgd(0.1, momentum=0.9), mesh(data=8)
    found = gradtx.state_sharding(
        tx, {"a": jnp.zeros((64, 32)), "b": jnp.zeros(3)}, on(m), zero="data", min_size=64
    )
    first = str(P("data"))  # older versions of JAX write its name in full
    rows = [
        ("leaf", "shape", "sharding", "bytes per device", ""),
        ("0/trace/a", "(64, 32)", first, "1,024", "dimension 0 over 'data'"),
        ("0/trace/b", "(3,)", str(P()), "12", "small, left alone"),
        ("all", "", "", "1,036", ""),
    ]
    widths = len("0/trace/a"), len("(64, 32)"), len(first), len("bytes per device"), 0
    cells = [[cell.ljust(n) for cell, n in zip(row, widths, strict=True)] for row in rows]
    assert str(found).splitlines() == ["  ".join(row).rstrip() for row in cells]


@pytest.mark.parametrize(("pad", "shape"), [(False, (12,)), (True, (16,))])
def test_a_dimension_over_two_axes_has_parts_of_both(pad, shape):
    """12 entries over 4 devices are 3 each, which 2 more do not divide, though they divide 12."""
    here = Placement((("x",),), (12,), "")
    found = spread(here, mesh(x=4, y=2), ("y",), 0, pad)
    assert found.shape == shape
    assert found.dims == ((("x", "y"),) if pad else (("x",),))


def quadratic(p, x, y):
    return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2)


def weights(rows=32, columns=48):
    rng = np.random.default_rng(1)
    return {
        "a": jnp.asarray(rng.normal(size=(rows, columns)), jnp.float32),
        "b": jnp.asarray(rng.normal(size=(columns, 8)), jnp.float32),
    }


def batch():
    rng = np.random.default_rng(2)
    return (
        jnp.asarray(rng.normal(size=(16, 32)), jnp.float32),
        jnp.asarray(rng.normal(size=(16, 8)), jnp.float32),
    )


def zero_step(tx, p, m, **options):
    found = gradtx.state_sharding(tx, p, on(m), **options)
    made = gradtx.make_step(quadratic, tx, sharding=found)
    placed = jax.device_put(p, on(m))
    return found, made, placed, made.init(placed), jax.device_put(batch(), on(m, m.axis_names))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "zero"), [({"data": 8}, None), ({"data": 8}, "data"), ({"x": 4, "y": 2}, ("x", "y"))]
)
def test_make_step_keeps_places_and_equals_one_device(axes, zero):
    tx, m = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-2)), mesh(**axes)
    options = {"zero": zero, "min_size": 64}
    found, sharded, p, state, data = zero_step(tx, weights(), m, **options)
    alone = gradtx.make_step(quadratic, tx)
    q, alone_state = weights(), alone.init(weights())
    for _ in range(3):
        old = p
        p, state, value = sharded(p, state, *data)
        q, alone_state, alone_value = alone(q, alone_state, *batch())
        assert old["a"].is_deleted()  # donated
        assert all_lie_on((p, state), (found.params, found.state))
        np.testing.assert_allclose(value, alone_value, rtol=1e-5)
    chex.assert_trees_all_close(p, q, rtol=1e-5, atol=1e-6)
    assert sharded._compiled._cache_size() == 1


@pytest.mark.slow
def test_collectives_of_data_parallel_and_of_zero():
    """Data parallel: one fused all-reduce of the gradients. ZeRO: one gather of each parameter.

    XLA's CPU backend has no reduce-scatter pass: it reduces whole and slices. docs/distributed.md
    has what a TPU's makes of the same program.
    """
    tx, m = gradtx.adamw(1e-2), mesh(data=8)
    gradient_bytes = sum(x.nbytes for x in jax.tree.leaves(weights()))

    def compiled(**options):
        _, made, p, state, data = zero_step(tx, weights(), m, **options)
        return made.lower(p, state, *data).compile()

    plain = counted(compiled())
    assert plain == {"all-reduce": (1, gradient_bytes + 4)}  # and the loss
    zero = counted(compiled(zero="data", min_size=64))
    assert zero == {"all-reduce": (1, gradient_bytes + 4), "all-gather": (2, gradient_bytes)}


def test_no_parameter_sized_temporaries_are_added():
    """The update under ZeRO needs its own share of the gathered parameters, and nothing more."""
    tx, m = gradtx.adamw(1e-3), mesh(data=8)
    p = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    found = gradtx.state_sharding(tx, p, on(m), zero="data")
    kept = jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=found.gradients)

    def update(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    places = found.gradients, found.state
    compiled = jax.jit(update, donate_argnums=(0, 1), out_shardings=places)
    memory = compiled.lower(kept, found.abstract, kept).compile().memory_analysis()
    assert memory.temp_size_in_bytes <= 1024


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_padded_state_moves_to_another_mesh(kind):
    """As through its whole form, which is made in one program."""
    tx, p = gradtx.adam(1e-2), {"a": jnp.ones((37, 29)), "b": jnp.ones((31, 3))}

    def over(devices):
        m = jax.make_mesh((devices,), ("data",), axis_types=(kind,))
        return gradtx.state_sharding(tx, p, on(m), zero="data", min_size=1)

    first, other = over(8), over(4)
    state = first.init(tx, jax.device_put(p, first.params))
    assert is_padded(state[0].mu["a"])
    whole = first.whole(state)
    chex.assert_trees_all_equal(whole, tx.init(p))
    assert len(jax.make_jaxpr(unpadded)(state).eqns) == 1
    for each in (first, other):
        chex.assert_trees_all_equal(each.put(state), each.put(whole))
        assert jax.tree.structure(each.put(state)) == jax.tree.structure(each.state)


@pytest.mark.slow
def test_a_saved_state_goes_on_elsewhere():
    """Padding and shards are of one mesh; what is saved is whole, and fits any other."""
    tx, p = gradtx.adamw(1e-2), weights(37, 29)
    x, y = batch()
    data = jnp.pad(x, ((0, 0), (0, 5))), y

    def run(devices, p, flat, steps):
        m = mesh(data=devices)
        found = gradtx.state_sharding(tx, p, on(m), zero="data", min_size=64)
        made = gradtx.make_step(quadratic, tx, sharding=found)
        placed = jax.device_put(p, on(m))
        state = made.init(placed)
        if flat is not None:
            state = found.put(gradtx.load_state_dict(tx, placed, flat))
        for _ in range(steps):
            placed, state, value = made(placed, state, *data)
        flat = gradtx.state_dict(found.whole(state), tx)
        return jax.tree.map(np.asarray, placed), {k: np.asarray(v) for k, v in flat.items()}, value

    p8, flat8, _ = run(8, p, None, 2)
    want_p, want_flat, want = run(8, p8, flat8, 2)
    assert flat8["0/mu/a"].shape == (37, 29)
    for devices in (4, 1):
        got_p, got_flat, got = run(devices, p8, flat8, 2)
        np.testing.assert_allclose(got, want, rtol=1e-5)
        chex.assert_trees_all_close(got_p, want_p, rtol=1e-5, atol=1e-6)
        assert got_flat.keys() == want_flat.keys()


def test_states_of_other_libraries():
    m, p = mesh(**PAIR), params()
    found = gradtx.state_sharding(optax.adamw(1e-3), p, places(m), zero="data", min_size=16)
    adam = found.state[0]
    assert adam.mu["w"] == on(m, "data", "model")
    assert adam.nu["square"] == on(m, "data", "model")
    assert adam.count == on(m)


def test_a_parameter_that_is_no_tree_has_slots_like_it():
    m = mesh(**PAIR)
    found = gradtx.state_sharding(optax.adam(1e-3), jnp.zeros((8, 4)), on(m, "data")).state[0]
    assert (found.mu, found.nu, found.count) == (on(m, "data"), on(m, "data"), on(m))


def test_a_factor_of_a_square_lies_as_the_side_that_it_is_of():
    """Its own shape does not say which that is; that of a probe does."""
    m, tx = mesh(**PAIR), gradtx.adafactor(1e-3, min_dim_size_to_factor=4)
    (found, *_) = gradtx.state_sharding(tx, {"s": jnp.zeros((8, 8))}, on(m, None, "model")).state
    assert (found.v_row["s"], found.v_col["s"]) == (on(m), on(m, "model"))


def test_nothing_is_tried_where_every_slot_divides(monkeypatch):
    def runs(plan, found):
        raise AssertionError("tried")

    monkeypatch.setattr(DividedState, "runs", runs)
    p = {"w": jnp.zeros((64, 32))}
    gradtx.state_sharding(gradtx.adam(1e-3), p, on(mesh(data=8)), zero="data", min_size=64)


def test_no_block_of_a_slot_in_a_codec_is_divided():
    """514 entries are two blocks of 172 and one of 170; random keys are everywhere."""
    m, codec = mesh(**PAIR), gradtx.Codec("int8", rounding="stochastic")
    tx = gradtx.store(gradtx.trace(0.9), codec, min_size=1)
    p = {"b": jnp.zeros((6, 512)), "even": jnp.zeros(1024), "odd": jnp.zeros(514)}
    given = {"b": on(m, "model"), "even": on(m, "data"), "odd": on(m, "model")}
    slots = gradtx.state_sharding(tx, p, given).state.trace
    for name, place in (("b", given["b"]), ("even", given["even"]), ("odd", on(m))):
        assert slots[name].parts == {"codes": place, "scale": place}
        assert slots[name].key == on(m)
    slots = gradtx.state_sharding(tx, p, on(m), zero="data", min_size=600).state.trace
    for name, place in (("b", on(m)), ("even", on(m, "data")), ("odd", on(m))):
        assert slots[name].parts == {"codes": place, "scale": place}


@jax.tree_util.register_pytree_node_class
class Blocks:
    """A slot as a storage wrapper keeps it: codes in blocks of 8, and a scale for each."""

    def __init__(self, codes, scales, shape):
        self.codes, self.scales, self.shape = codes, scales, shape

    def tree_flatten(self):
        return (self.codes, self.scales), self.shape

    @classmethod
    def tree_unflatten(cls, shape, children):
        return cls(*children, shape)


@pytest.mark.slow
def test_slots_in_blocks_lie_with_their_parameter():
    adam, p = gradtx.scale_by_adam(), {"w": jnp.zeros((16, 24)), "b": jnp.zeros(3)}

    def blocks(x):
        n = -(-x.size // 8)
        return Blocks(jnp.zeros((n, 8), jnp.int8), jnp.zeros(n), x.shape)

    def init(p):
        state = adam.init(p)
        return state._replace(mu=jax.tree.map(blocks, state.mu))

    m = mesh(**PAIR)
    tx = gradtx.GradientTransformation(init, adam.update)
    mu = gradtx.state_sharding(tx, p, {"w": on(m, "data", "model"), "b": on(m)}).state.mu
    assert mu["w"].codes == mu["w"].scales == on(m, ("data", "model"))
    assert mu["b"].codes == on(m)


def over_columns(path, slot):
    assert isinstance(slot, jax.ShapeDtypeStruct)
    return P(None, "data") if path.startswith("0/mu/") else None


@pytest.mark.slow
@pytest.mark.parametrize("zero", [None, "data"])
@pytest.mark.parametrize("slots", [{"0/mu/*": P(None, "data")}, over_columns])
def test_slots_may_lie_otherwise_than_their_parameters(slots, zero):
    """And the steps are those on one device, which leave them there."""
    tx, m = gradtx.adamw(1e-2), mesh(data=8)
    options = {"zero": zero, "min_size": 64, "slots": slots}
    found, sharded, p, state, data = zero_step(tx, weights(), m, **options)
    assert found.state[0].mu == {"a": on(m, None, "data"), "b": on(m, None, "data")}
    rest = on(m) if zero is None else on(m, None, "data")
    assert found.state[0].nu == {"a": rest, "b": on(m) if zero is None else on(m, "data")}
    assert {x.path: x.note for x in found.leaves}["0/mu/a"] == "as given by slots"
    alone = gradtx.make_step(quadratic, tx)
    q, alone_state = weights(), alone.init(weights())
    for _ in range(3):
        p, state, _ = sharded(p, state, *data)
        q, alone_state, _ = alone(q, alone_state, *batch())
        assert all_lie_on((p, state), (found.params, found.state))
    chex.assert_trees_all_close((p, state[0].mu), (q, alone_state[0].mu), rtol=1e-5, atol=1e-6)
    held = state[0].mu["a"].addressable_shards[0].data.nbytes
    assert held == weights()["a"].nbytes // 8


def test_the_first_pattern_that_fits_says_where_a_slot_lies():
    m, p = mesh(**PAIR), {"b": jnp.zeros(8), "w": jnp.zeros((16, 6))}
    slots = {"*/mu/w": P("data"), "*/w": P("model"), "0/nu/b": P(("data", "model"))}
    (adam, *_) = gradtx.state_sharding(gradtx.adam(1e-3), p, on(m), slots=slots).state
    assert adam.mu == {"b": on(m), "w": on(m, "data")}
    assert adam.nu == {"b": on(m, ("data", "model")), "w": on(m, "model")}
    assert adam.count == on(m)


@pytest.mark.slow
def test_untrained_parameters_have_places_and_no_slots():
    m, p = mesh(data=8), weights()
    tx = gradtx.sgd(1e-2, momentum=0.9)
    found = gradtx.state_sharding(
        tx, gradtx.select(p, "a"), {"a": on(m), "b": on(m)}, zero="data", min_size=64
    )
    assert found.state[0].trace["b"] is None
    made = gradtx.make_step(quadratic, tx, sharding=found, trainable="a")
    placed = jax.device_put(p, on(m))
    after, state, _ = made(placed, made.init(placed), *jax.device_put(batch(), on(m, "data")))
    assert all_lie_on(state, found.state)
    np.testing.assert_array_equal(after["b"], weights()["b"])


@pytest.mark.parametrize(
    ("shape", "of", "dims"),
    [
        ((64, 64), (64, 128), ((), ("data",))),
        ((16, 12), (64, 12), (("data",), ())),
        ((16, 8, 6), (64, 8, 6), (("data",), (), ("model",))),
        ((64, 2), (64, 16), (("model",), ("data",))),  # not divided by four
        ((6, 16, 4), (8, 16, 4), (("data",), ("model",), ())),
    ],
)
def test_a_slot_of_a_part_lies_as_the_parameter_where_that_divides_it(shape, of, dims):
    (axis,) = (i for i, (a, b) in enumerate(zip(shape, of, strict=True)) if a != b)
    even = shape[axis] % 4 == 0
    want = tuple(d if even or i != axis else () for i, d in enumerate(dims))
    part = _part(shape, of, dims, mesh(**PAIR))
    assert (part.dims, part.shape) == (want, shape)


@pytest.mark.parametrize("shape", [(16, 8), (16,), (8, 4), (16, 1), (16, 32), (16, 4, 2)])
def test_what_is_shorter_along_no_or_several_dimensions_is_no_part(shape):
    assert _part(shape, (16, 8), ((), ()), mesh(**PAIR)) is None


class TestBadInput:
    def test_a_parameter_without_a_mesh(self):
        with pytest.raises(TypeError, match="'w'.*NamedSharding"):
            gradtx.state_sharding(gradtx.adam(0.1), {"w": jnp.zeros(8)})

    def test_parameters_on_different_meshes(self):
        p = {"v": jnp.zeros(8), "w": jnp.zeros(8)}
        apart = {"v": on(mesh(data=8)), "w": on(mesh(data=4))}
        with pytest.raises(ValueError, match="'w' is on"):
            gradtx.state_sharding(gradtx.adam(0.1), p, apart)

    def test_a_mesh_that_does_not_divide(self):
        with pytest.raises(ValueError, match=r"does not divide the parameter at 'w', of shape"):
            gradtx.state_sharding(
                gradtx.adam(0.1), {"w": jax.ShapeDtypeStruct((6,), "f4")}, on(mesh(data=8), "data")
            )

    def test_another_tree_of_shardings(self):
        with pytest.raises(ValueError, match="different trees.*'w'"):
            gradtx.state_sharding(gradtx.adam(0.1), {"w": jnp.zeros(8)}, {"v": on(mesh(data=8))})

    def test_an_unknown_axis(self):
        with pytest.raises(ValueError, match="zero='dat' is not an axis.*'data'"):
            gradtx.state_sharding(gradtx.adam(0.1), jnp.zeros(8), on(mesh(data=8)), zero="dat")
        with pytest.raises(ValueError, match="zero='dat' is not an axis"):
            both = ("data", "dat")
            gradtx.state_sharding(gradtx.adam(0.1), jnp.zeros(8), on(mesh(data=8)), zero=both)

    @pytest.mark.parametrize(
        ("slots", "error", "match"),
        [
            ({"*/mu/w": P("data")}, ValueError, r"does not divide the slot at '0/mu/w', of shape"),
            ({"*/mu/w": P("dat")}, ValueError, r"does not divide the slot at '0/mu/w'"),
            ({"*/mu/w": P(None, None)}, ValueError, r"does not divide the slot at '0/mu/w'"),
            ({"mu": P()}, ValueError, "pattern 'mu' of slots chooses none.* 0/mu/w, 0/nu/w"),
            ({"*/mu/w": "data"}, TypeError, "gives 'data' for '0/mu/w', not a PartitionSpec"),
            ({3: P()}, TypeError, "slots: a path pattern is a string"),
            (P("data"), TypeError, "slots must be"),
        ],
    )
    def test_places_of_slots(self, slots, error, match):
        with pytest.raises(error, match=match):
            gradtx.state_sharding(
                gradtx.adam(0.1), {"w": jnp.zeros(6)}, on(mesh(data=8)), slots=slots
            )

    def test_no_parameters(self):
        with pytest.raises(ValueError, match="no parameters"):
            gradtx.state_sharding(gradtx.adam(0.1), {}, on(mesh(data=8)))

    def test_a_state_for_other_parameters(self):
        tx, m = gradtx.adam(0.1), mesh(data=8)
        found = gradtx.state_sharding(tx, {"w": jnp.zeros(8)}, on(m))
        with pytest.raises(ValueError, match="'0/mu/w' has the shape"):
            found.put(tx.init({"w": jnp.zeros(9)}))
        with pytest.raises(ValueError, match="'0/mu/w' is only"):
            found.put(tx.init({"v": jnp.zeros(8)}))

    def test_a_state_made_for_another_sharding(self):
        tx, m = gradtx.adam(0.1), mesh(data=8)
        _, made, p, _, data = zero_step(tx, weights(), m, zero="data", min_size=64)
        state = jax.device_put(tx.init(weights()), on(m))
        with pytest.raises(ValueError, match=r"state: '0/mu/a' lies on .* move it"):
            made(p, state, *data)

    def test_parameters_and_state_on_different_meshes(self):
        tx = gradtx.adam(0.1)
        _, made, _, state, data = zero_step(tx, weights(), mesh(data=8))
        with pytest.raises(ValueError, match=r"params: 'a' lies on"):
            made(jax.device_put(weights(), on(mesh(data=4))), state, *data)

    def test_donated_buffers_used_again(self):
        tx = gradtx.adam(0.1)
        _, made, p, state, data = zero_step(tx, weights(), mesh(data=8))
        made(p, state, *data)
        with pytest.raises(ValueError, match=r"params: 'a' was given up to an earlier step"):
            made(p, state, *data)


def test_a_group_of_whole_subtrees_has_slots_like_its_parameters():
    """In its slots one None stands for all leaves of another group."""
    m = mesh(**PAIR)
    p = {"body": {"w": jnp.zeros((16, 6)), "b": jnp.zeros(8)}, "head": (jnp.zeros((8, 8)), None)}
    lie = {"body": {"w": on(m, "data", "model"), "b": on(m)}, "head": (on(m, None, "model"), None)}
    groups = {"x": gradtx.adam(0.1), "y": gradtx.sgd(0.1, 0.9)}
    tx = gradtx.partition(groups, {"body": "x", "head": "y"})
    found = gradtx.state_sharding(tx, p, lie)
    assert jax.tree.structure(found.state) == jax.tree.structure(jax.eval_shape(tx.init, p))
    for end, spec in (("mu/body/w", P("data", "model")), ("trace/head/0", P(None, "model"))):
        assert [leaf.spec for leaf in found.leaves if leaf.path.endswith(end)] == [spec]


def test_zero_that_divides_nothing_says_so_with_the_size_that_would():
    """Once, as a warning, and where the sharding or a plan is printed."""
    params = {"w": jax.ShapeDtypeStruct((64, 8), jnp.float32), "b": jnp.zeros(8)}
    four = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    places = jax.sharding.NamedSharding(four, P())
    wanted = "zero='data' divides no slot, .* min_size=512 divides the largest, min_size=8 all"
    with pytest.warns(UserWarning, match=wanted) as caught:
        sharding = gradtx.state_sharding(gradtx.adam(1e-3), params, places, zero="data")
    assert caught[0].filename == __file__
    assert f"advice: {sharding.advice}" in str(sharding)
    with pytest.warns(UserWarning, match=wanted):
        plan = gradtx.plan_step(gradtx.adam(1e-3), params, {"data": 4}, batch="data", zero="data")
    assert f"advice: {plan.sharding.advice}" in str(plan)
    for size in (512, 8):
        quiet = gradtx.state_sharding(gradtx.adam(1e-3), params, places, zero="data", min_size=size)
        assert quiet.advice is None
    assert gradtx.state_sharding(gradtx.sgd(1e-3), params, places, zero="data").advice is None


@pytest.mark.slow
def test_a_loaded_state_that_was_not_placed():
    """SOAP's matrices lie in stacks, which devices share out; a file has none."""
    where = on(mesh(data=4), "data")
    params = {k: jax.device_put(jnp.ones((8, 8)), where) for k in "ab"}
    tx = gradtx.soap(0.1)
    sharding = gradtx.state_sharding(tx, params)
    step = gradtx.make_step(
        lambda p: sum(jnp.sum(x**2) for x in p.values()), tx, sharding=sharding, donate=False
    )
    loaded = sharding.whole(step.init(params))
    with pytest.raises(ValueError, match=r"in another form.*place it by sharding.put\(state\)"):
        step(params, loaded)
    step(params, sharding.put(loaded))
