"""Transformations as data: lawful pytrees, which compare and hash, also within other libraries."""

# Sees mutants of: static.

import copy
import fractions
import functools
import inspect
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.declarations.declaration import Builder, _number, publish
from tests import catalogue
from tests.catalogue import CATALOGUE

NAMES = sorted(CATALOGUE)
CUSTOM = {f.__name__: f for f in vars(catalogue).values() if callable(f) and hasattr(f, "__name__")}


@functools.cache
def swept(name):
    """A transformation of the catalogue with arrays for all numbers that may be arrays."""
    tx = CATALOGUE[name].make()
    for path, value in gradtx.hyperparams(tx).items():
        if isinstance(value, float):
            try:
                tx = gradtx.replace(tx, {path: jnp.float32(value)})
            except (TypeError, ValueError, jax.errors.ConcretizationTypeError):
                continue  # this one has to be a number
    return tx


def is_none(x):
    return x is None


PLACEHOLDERS = [True, None, object(), 0.5, "text", (), [1, 2], jax.ShapeDtypeStruct((), "float32")]


@pytest.mark.quick(80)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_lawful_pytree(name):
    """Its structure does not depend on what stands in its leaves."""
    tx = swept(name)
    leaves, treedef = jax.tree.flatten(tx)
    for placeholder in PLACEHOLDERS:
        mapped = jax.tree.map(lambda x, p=placeholder: p, tx)
        assert treedef.flatten_up_to(mapped) == [placeholder] * len(leaves)
        # Also within another one, and through another round.
        again = jax.tree.map(lambda x, y: y, tx, mapped, is_leaf=is_none)
        assert treedef.flatten_up_to(again) == [placeholder] * len(leaves)
        assert jax.tree.map(lambda x, y: x, tx, mapped) == tx
    assert jax.tree.unflatten(treedef, leaves) == tx
    assert hash(jax.tree.unflatten(treedef, leaves)) == hash(tx)


@pytest.mark.quick(92)
@pytest.mark.parametrize("name", NAMES)
def test_equinox_parts_and_combines_it(name):
    eqx = pytest.importorskip("equinox")
    tx = swept(name)
    arrays, rest = eqx.partition(tx, eqx.is_array)
    assert eqx.combine(arrays, rest) == tx
    assert not jax.tree.leaves(rest)
    assert jax.tree.leaves(eqx.filter(tx, eqx.is_array)) == jax.tree.leaves(tx)
    mask = jax.tree.map(lambda _: True, tx)
    assert eqx.combine(*eqx.partition(tx, mask)) == tx


@pytest.mark.parametrize("name", ["adam", "chain", "muon", "accumulate", "partition", "scale"])
def test_trees_of_axes_and_shardings(name):
    tx = swept(name)
    many = jax.tree.map(lambda x: jnp.stack([x, x]), tx)
    for axis in (0, None):
        axes = jax.tree.map(lambda _, axis=axis: axis, tx)
        given = many if axis == 0 else tx
        total = jax.vmap(lambda t, _: sum(jax.tree.leaves(t)), (axes, 0))(given, jnp.zeros(2))
        np.testing.assert_allclose(total, [sum(jax.tree.leaves(tx))] * 2, rtol=1e-6)
    where = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    placed = jax.jit(lambda t: t, in_shardings=(jax.tree.map(lambda _: where, tx),))(tx)
    assert placed == tx
    assert all(x.devices() == {jax.devices()[1]} for x in jax.tree.leaves(placed))


def test_equal_arrays_are_equal_and_hash_alike():
    rates = [0.1, np.nan, -0.0]
    made = [gradtx.scale(f(x)) for x in rates for f in (jnp.float32, jnp.bfloat16)]
    made += [gradtx.scale(0.1), gradtx.scale(np.array(0.1, np.float64))]
    again = [copy.deepcopy(pickle.loads(pickle.dumps(tx))) for tx in made]
    for i, tx in enumerate(made):
        assert [tx == other for other in again] == [i == j for j in range(len(made))]
        assert hash(tx) == hash(again[i])
    assert len({hash(tx) for tx in made}) == len(made)
    assert gradtx.scale(np.array(0.1, "float32")) == gradtx.scale(jnp.float32(0.1))


def test_a_traced_hyperparameter_has_no_hash():
    with pytest.raises(TypeError, match="scale has a hyperparameter that is traced"):
        jax.jit(lambda x: hash(gradtx.scale(x)) or x)(jnp.float32(1.0))
    with pytest.raises(TypeError, match="static: a hyperparameter is traced"):
        jax.jit(lambda x: gradtx.static(gradtx.scale(x)))(jnp.float32(1.0))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_keys_are_values(impl):
    tx, again, other = (
        gradtx.add_noise(0.1, 0.5, key=jax.random.key(i, impl=impl)) for i in (3, 3, 4)
    )
    back = gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx))))
    for same in (again, pickle.loads(pickle.dumps(tx)), back):
        assert same == tx
        assert hash(same) == hash(tx)
    assert other != tx
    assert gradtx.add_noise(0.1, 0.5, key=jax.random.key(3, impl="threefry2x32")) != tx or (
        impl == "threefry2x32"
    )


def test_keys_of_earlier_configurations():
    config = gradtx.to_config(gradtx.add_noise(0.1, 0.5, key=jax.random.key(3)))
    config["arguments"]["key"] = {"key": [0, 3]}
    want = gradtx.add_noise(0.1, 0.5, key=jax.random.key(3))
    assert gradtx.from_config(config) == want
    for bad in ({"key": [0, 3], "impl": "dice"}, {"key": [0, 3], "impl": 3}, {"key": [1]}):
        config["arguments"]["key"] = bad
        with pytest.raises(ValueError, match="not a key of a random generator"):
            gradtx.from_config(config)


@pytest.mark.parametrize(
    "array",
    [
        jnp.array([0.5 - 2j, complex(np.inf, np.nan)], "complex64"),
        np.array(0.1),
        np.array(1e-300 + 1e300j),
        jnp.uint32(2**32 - 1),
        np.array([2**63 - 1, -1]),
        jnp.array([True, False]),
        jnp.bfloat16(0.1),
    ],
    ids=lambda x: str(x.dtype),
)
def test_arrays_in_configurations_keep_every_bit(array):
    tx = gradtx.project("box", None, {"lower": array, "upper": 1.0})
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx), allow_nan=False))) == tx


def test_what_the_caller_changes_later_changes_nothing():
    rate, limits, links = np.array(0.5), {"scale": np.array(2.0)}, [("b", "a"), ("*", "b")]
    scaled = gradtx.scale(rate)
    projected = gradtx.project("l2_ball", None, limits)
    grouped = gradtx.partition({"a": gradtx.sgd(0.1), "b": gradtx.adam(0.1)}, links)
    before = [repr(tx) for tx in (scaled, projected, grouped)]
    rate[...], limits["scale"][...], links[0] = 7.0, 7.0, ("c", "a")
    limits["more"] = 1.0
    assert [repr(tx) for tx in (scaled, projected, grouped)] == before
    assert float(scaled.update(jnp.float32(1.0), scaled.init(0.0))[0]) == 0.5


def adam_and_its_like():
    rate = jnp.asarray(0.1)
    return {
        "array": gradtx.adam(rate),
        "numpy": gradtx.adam(np.array(0.1)),
        "injected": gradtx.inject_hyperparams(gradtx.adam)(rate),
        "chain": gradtx.chain(gradtx.scale(jnp.array(1.0)), gradtx.adam(0.1)),
        "number": gradtx.adam(0.1),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", adam_and_its_like())
def test_a_static_attribute_of_flax_nnx(name):
    nnx = pytest.importorskip("flax.nnx")
    traces, x = [], jnp.ones((3, 2))

    @nnx.jit
    def step(model, optimizer):
        traces.append(None)
        grads = nnx.grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        optimizer.update(model, grads)

    for _ in range(2):  # an equal one compiles nothing anew
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        before = model.kernel[...]
        held = gradtx.static(adam_and_its_like()[name])
        step(model, nnx.Optimizer(model, held, wrt=nnx.Param))
        np.testing.assert_allclose(abs(model.kernel[...] - before), 0.1, rtol=1e-3)
    assert len(traces) == 1


def test_data_of_flax_nnx():
    """Swept, where nnx is told that transformations are data."""
    nnx = pytest.importorskip("flax.nnx")

    class Held(nnx.Pytree):
        def __init__(self, tx):
            self.tx = nnx.data(tx)

    many = Held(gradtx.sgd(jnp.array([0.1, 0.2])))
    step = jax.vmap(lambda held: held.tx.update(jnp.ones(()), held.tx.init(jnp.ones(())))[0])
    np.testing.assert_allclose(step(many), [-0.1, -0.2])


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", adam_and_its_like())
def test_a_static_field_and_a_leaf_of_equinox(name):
    eqx = pytest.importorskip("equinox")

    class Static(eqx.Module):
        tx: object = eqx.field(static=True)

    class Data(eqx.Module):
        tx: object

    traces = []

    @eqx.filter_jit
    def first(holder):
        traces.append(None)
        return holder.tx.update(jnp.ones(3), holder.tx.init(jnp.ones(3)))[0]

    for kind, hide in ((Static, gradtx.static), (Data, lambda tx: tx)):
        traces.clear()
        for _ in range(2):
            move = first(kind(hide(adam_and_its_like()[name])))
            np.testing.assert_allclose(move, -0.1, rtol=1e-3)
        assert len(traces) == 1
    other = {"array": gradtx.adam(jnp.asarray(0.2)), "number": gradtx.adam(0.2)}.get(name)
    if other is not None:
        first(Data(other))
        assert len(traces) == (1 if name == "array" else 2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("eps_rot", "did you mean eps_root\\?$"),
        ("ep_rot", "did you mean eps_root\\?$"),
        ("weight_decay", "adamw has it, and chain"),
        ("zzz", "the arguments are learning_rate, b1, "),
    ],
)
def test_an_unknown_argument_has_a_hint(given, says):
    with pytest.raises(TypeError, match=f"there is no argument '{given}': {says}"):
        gradtx.adam(0.1, **{given: 0.5})


def test_integers_that_jax_may_not_hold_become_floats():
    kinds = {n: type(_number(n)) for n in (2**31 - 1, 1 - 2**31, 2**31, -(2**31))}
    assert list(kinds.values()) == [int, int, float, float]
    for n in (np.uint32(2**31 + 5), np.uint64(2**40)):
        assert gradtx.clip(n) == gradtx.clip(float(n)), "NumPy's number is negative in 32 bits"


def test_arrays_in_a_repr():
    assert "learning_rate=0.5" in repr(gradtx.sgd(jnp.float32(0.5)))
    assert "learning_rate=<float32[2]>" in repr(gradtx.sgd(jnp.ones(2)))


@pytest.mark.parametrize("schedules", [True, False])
def test_a_signature_says_whether_there_may_be_schedules(schedules):
    def scaled(rate: gradtx.checks.NonNegative = 1.0):
        return rate

    builder = Builder(scaled, native=schedules)
    built = publish(lambda rate=1.0: scaled(rate), builder, schedules=schedules)
    assert ("schedule" in str(inspect.signature(built)).lower()) == schedules
    assert builder.native == schedules


@pytest.mark.parametrize(
    "make",
    [
        lambda first, second, rate: gradtx.store(
            gradtx.sgd(rate, 0.9), {"*": {first: "int8", second: "int4"}}, min_size=0
        ),
        lambda first, second, rate: gradtx.split_leaves(
            gradtx.sgd(rate, 0.9), {"a*": gradtx.SplitLeaf(0, {first: 1, second: 3})}
        ),
    ],
)
def test_an_order_that_counts_is_kept(make):
    """JAX sorts the keys of a dict, whose first pattern counts, or whose parts lie in order."""

    def kinds(state):
        return [(jax.tree_util.keystr(k), x.shape, x.dtype) for k, x in leaves_of(state)]

    leaves_of = jax.tree_util.tree_leaves_with_path
    params = {"a": jnp.ones((4, 64))}
    tx, other = (make(*names, jnp.float32(0.1)) for names in (("b*", "a*"), ("a*", "b*")))
    if "store" in repr(tx):
        tx, other = (make(*names, jnp.float32(0.1)) for names in (("a*", "*"), ("*", "a*")))
    assert tx != other
    assert repr(tx) != repr(other)
    for each in (tx, other):
        want = kinds(each.init(params))
        mapped = jax.tree.map(lambda x: x, each)
        assert kinds(mapped.init(params)) == want
        inner = jax.jit(lambda tx: tx.init(params))(each)
        assert kinds(inner) == want
        assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(each)))) == each


def test_arguments_in_order_are_copied():
    sizes = [2, 2]
    tx = gradtx.split_leaves(gradtx.adam(0.1), {"*": gradtx.SplitLeaf(0, sizes)})
    before = repr(tx)
    sizes.append(9)
    assert repr(tx) == before


def test_numbers_of_other_kinds():
    for rate in (fractions.Fraction(1, 8), np.longdouble(0.125), np.float16(0.125)):
        assert gradtx.adam(rate) == gradtx.adam(0.125)
    assert gradtx.adam(0.1, mu_dtype="bfloat16") == gradtx.adam(0.1, mu_dtype=jnp.bfloat16)
    masked = gradtx.masked(gradtx.sgd(0.1), {"a": np.array(True)})
    assert masked == gradtx.masked(gradtx.sgd(0.1), {"a": True})
    numbers = gradtx.MuonDimensionNumbers(np.int64(0), np.int64(1))
    tx = gradtx.muon(0.1, muon_weight_dimension_numbers=numbers)
    assert gradtx.from_config(gradtx.to_config(tx)) == tx


def test_replace_checks_what_a_call_checks():
    cosine = gradtx.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100)
    with pytest.raises(ValueError, match="warmup"):
        gradtx.replace(cosine, warmup_steps=200)
    with pytest.raises(ValueError, match="nonsense"):
        gradtx.replace(gradtx.muon(0.1), ns_coeffs="nonsense")
    injected = gradtx.inject_hyperparams(gradtx.sgd)(learning_rate=0.1)
    with pytest.raises(ValueError, match=r"state.hyperparams\['learning_rate'\]"):
        gradtx.replace(injected, learning_rate=0.5)
