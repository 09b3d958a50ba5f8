"""Configurations: text and back, and hostile text."""

# Sees mutants of: declared_schedule.

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.checkpoint.config import check_depth
from gradtx.declarations.declaration import Declared
from gradtx.transforms import trust
from tests import catalogue
from tests.catalogue import CATALOGUE
from tests.places import keys, walk

CUSTOM = {f.__name__: f for f in vars(catalogue).values() if callable(f) and hasattr(f, "__name__")}
TX = gradtx.chain(
    gradtx.clip_by_global_norm(float("inf")),
    gradtx.adamw(
        gradtx.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100),
        b1=jnp.float32(0.85),
        mu_dtype=jnp.bfloat16,
        mask=["*/kernel", "head"],
    ),
)


def text_and_back(tx, **options):
    return gradtx.from_config(
        json.loads(json.dumps(gradtx.to_config(tx), allow_nan=False)), **options
    )


def test_a_whole_chain():
    back = text_and_back(TX)
    assert back == TX
    assert repr(back) == repr(TX)
    np.testing.assert_array_equal(jax.tree.leaves(back)[0], np.float32(0.85))


def test_it_is_readable():
    assert gradtx.to_config(gradtx.clip(1.0)) == {
        "gradtx": 1,
        "name": "clip",
        "arguments": {"max_delta": 1.0},
    }


@pytest.mark.slow
def test_the_state_goes_on_under_the_read_transformation():
    p = {"head": jnp.ones(2), "a": {"kernel": jnp.ones(2)}}
    state = TX.init(p)
    _, state = TX.update(p, state, p)
    again, _ = text_and_back(TX).update(p, state, p)
    want, _ = TX.update(p, state, p)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), again, want))


@gradtx.transformation
def twice(factor: gradtx.checks.Number = 2.0):
    return gradtx.elementwise(gradtx.EmptyState, None, lambda g, s, t: (g * factor, {}))


def everything(path, leaf):
    return True


class Axes(NamedTuple):
    rows: int
    columns: int


@gradtx.transformation
def along(axes: Axes):
    return gradtx.identity()


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.scale_by_muon(weight_dimension_numbers=gradtx.MuonDimensionNumbers((0, 1), -1)),
        gradtx.muon(
            0.1,
            muon_weight_dimension_numbers={
                "a": gradtx.MuonDimensionNumbers([0], 1),
                "b": None,
            },
        ),
        gradtx.galore(0.1, weight_dimension_numbers=gradtx.GaLoreDimensionNumbers(1, (0, 2))),
    ],
    ids=["scale_by_muon", "muon", "galore"],
)
def test_named_tuples(tx):
    back = text_and_back(tx)
    assert back == tx
    assert repr(back) == repr(tx)


def test_named_tuples_of_one_s_own():
    tx = along(Axes(0, 1))
    custom = {"along": along}
    assert text_and_back(tx, custom_objects={**custom, "Axes": Axes}) == tx
    with pytest.raises(ValueError, match="'Axes' is not a NamedTuple of gradtx"):
        text_and_back(tx, custom_objects=custom)


@pytest.mark.parametrize(
    ("named", "error", "says"),
    [
        ({"named": 1, "fields": {}}, TypeError, "named must be a string"),
        ({"named": "MuonDimensionNumbers", "fields": []}, TypeError, "fields a dict"),
        ({"named": "MuonDimensionNumbers", "fields": {"rows": 0}}, ValueError, "has the fields"),
        ({"named": "adam", "fields": {"init": 1, "update": 2}}, ValueError, "not a NamedTuple"),
        ({"named": "GradientTransformation", "fields": {}}, ValueError, "not a NamedTuple"),
        ({"named": "os", "fields": {}}, ValueError, "not a NamedTuple"),
    ],
)
def test_bad_named_tuples(named, error, says):
    config = gradtx.to_config(gradtx.scale_by_muon())
    config["arguments"]["weight_dimension_numbers"] = named
    with pytest.raises(error, match=says):
        gradtx.from_config(config)


def test_custom_objects():
    tx = gradtx.chain(twice(3.0), gradtx.masked(gradtx.clip(1.0), everything))
    assert text_and_back(tx, custom_objects={"twice": twice, "everything": everything}) == tx
    with pytest.raises(ValueError, match="there is no 'twice'"):
        text_and_back(tx)
    with pytest.raises(ValueError, match="'everything' is not known"):
        text_and_back(tx, custom_objects={"twice": twice})


def test_steps_that_are_integers_of_numpy():
    steps = dict.fromkeys(np.array([10, 20]), 0.5)
    schedule = gradtx.piecewise_constant_schedule(1.0, steps)
    again = text_and_back(schedule)
    assert again == schedule
    assert float(again(15)) == 0.5


class PlainPair(NamedTuple):
    """A transformation as Optax makes one."""

    init: Callable[..., Any]
    update: Callable[..., Any]


@pytest.mark.parametrize("key", [None, 2, 0.5, math.inf, True])
def test_keys_of_dicts(key):
    tx = gradtx.partition({key: gradtx.sgd(0.1)}, {"w": key})
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx


def test_a_dict_with_a_key_that_no_dict_has():
    config = gradtx.to_config(gradtx.partition({2: gradtx.sgd(0.1)}, {"w": 2}))
    config["arguments"]["transforms"]["dict"][0][0] = [1, 2]
    with pytest.raises(TypeError, match="transforms: a key of a dict"):
        gradtx.from_config(config)


def test_what_is_not_data_cannot_be_written():
    by_hand = gradtx.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s))
    for tx in (by_hand, gradtx.chain(PlainPair(*by_hand), gradtx.clip(1.0))):
        with pytest.raises(TypeError, match="made by hand"):
            gradtx.to_config(tx)
    with pytest.raises(
        TypeError, match="masked.mask: .* use path patterns .*, or a named function"
    ):
        gradtx.to_config(gradtx.masked(gradtx.clip(1.0), lambda path, leaf: True))


@pytest.mark.parametrize(
    ("config", "error", "says"),
    [
        (None, TypeError, "a configuration is a dict"),
        ({}, ValueError, "not a configuration of gradtx"),
        ({"gradtx": 2, "name": "adam", "arguments": {}}, ValueError, "version"),
        ({"gradtx": 1, "name": "adamm", "arguments": {}}, ValueError, "there is no 'adamm'"),
        ({"gradtx": 1, "name": "adam", "arguments": {}}, ValueError, "learning_rate.*missing"),
        ({"gradtx": 1, "name": "adam"}, ValueError, "mean nothing"),
        ({"gradtx": 1, "name": "adam", "arguments": []}, TypeError, "arguments a dict"),
        ({"gradtx": 1, "name": "sgd", "arguments": {"lr": 1}}, ValueError, "unknown arguments"),
        ({"gradtx": 1, "name": "sgd", "arguments": {"learning_rate": "1"}}, TypeError, "sgd"),
        (
            {"gradtx": 1, "name": "adam", "arguments": {"learning_rate": 1, "b1": 2}},
            ValueError,
            "b1",
        ),
        (
            {"gradtx": 1, "name": "sgd", "arguments": {"learning_rate": 10**400}},
            ValueError,
            "fit into a float",
        ),
        ({"gradtx": 1, "name": "chain", "arguments": {"args": 3}}, TypeError, "must be a list"),
        ({"gradtx": 1, "name": "chain", "arguments": {"args": [3]}}, TypeError, "transformation"),
        ({"gradtx": 1, "dtype": "float32"}, ValueError, "describes no transformation"),
    ],
)
def test_bad_configurations(config, error, says):
    with pytest.raises(error, match=says):
        gradtx.from_config(config)


TAGS = [
    "name",
    "arguments",
    "gradtx",
    "tuple",
    "dict",
    "array",
    "dtype",
    "key",
    "object",
    "named",
    "fields",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(TAGS) | st.text(max_size=5),
            inner,
            max_size=3,
        )
        | st.fixed_dictionaries(
            {
                "name": st.sampled_from(["adam", "chain", "masked", "named_chain", "os.system"]),
                "arguments": st.dictionaries(
                    st.sampled_from(["learning_rate", "args", "mask", "inner", "b1"]),
                    inner,
                    max_size=3,
                ),
            }
        )
    ),
    max_leaves=8,
)


@pytest.mark.slow
@hypothesis.given(JSON)
@hypothesis.settings(max_examples=300)
def test_hostile_configurations_give_clear_errors(value):
    for config in (value, {"gradtx": 1, **value} if isinstance(value, dict) else [value]):
        try:
            made = gradtx.from_config(config)
        except (ValueError, TypeError) as error:
            assert str(error)
        else:
            assert isinstance(made, Declared)


@pytest.mark.slow
@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_damaged_configurations_give_clear_errors(data):
    """A good configuration with one value, somewhere in it, replaced or left out."""
    name = data.draw(st.sampled_from(sorted(CATALOGUE)))
    config = json.loads(json.dumps(gradtx.to_config(CATALOGUE[name].make())))
    node, key = data.draw(st.sampled_from([(n, k) for n in walk(config) for k in keys(n)]))
    if data.draw(st.booleans()):
        node[key] = data.draw(JSON)
    else:
        del node[key]
    try:
        made = gradtx.from_config(config, custom_objects=CUSTOM)
    except (ValueError, TypeError) as error:
        assert str(error)
    else:
        assert isinstance(made, Declared)


@pytest.mark.parametrize("tag", ["gradtx", "float", "name"])
def test_deep_values_are_an_error(tag):
    deep = []
    for _ in range(10_000):
        deep = [deep]
    config = {"gradtx": 1, "name": "sgd", "arguments": {"learning_rate": {tag: deep}}}
    for bad in (config, {**config, tag: deep}):
        with pytest.raises(ValueError, match="too deeply"):
            gradtx.from_config(bad)


def test_deep_nesting_is_an_error():
    config = {"name": "chain", "arguments": {"args": []}}
    for _ in range(500):
        config = {"name": "chain", "arguments": {"args": [config]}}
    with pytest.raises(ValueError, match="too deeply"):
        gradtx.from_config({"gradtx": 1, **config})


@gradtx.transformation
def holding(value: Any):
    return gradtx.identity()


NESTS = {
    "list": lambda x: [x],
    "tuple": lambda x: {"tuple": [x]},
    "dict": lambda x: {"dict": [["key", x]]},
    "named": lambda x: {"named": "Axes", "fields": {"rows": x, "columns": 0}},
    "declared": lambda x: {"name": "holding", "arguments": {"value": x}},
}


@pytest.mark.parametrize("kind", NESTS)
def test_values_may_be_nested_to_64_levels_and_no_deeper(kind):
    custom = {"holding": holding, "Axes": Axes}
    value = None
    for _ in range(63):
        value = NESTS[kind](value)

    def read(value):
        config = {"gradtx": 1, "name": "holding", "arguments": {"value": value}}
        return gradtx.from_config(config, custom)

    assert gradtx.to_config(read(value))["arguments"]["value"] == value
    with pytest.raises(ValueError, match="too deeply"):
        read(NESTS[kind](value))


@pytest.mark.slow
def test_data_are_walked_through_to_255_levels_and_a_million_entries():
    deep = []
    for _ in range(254):
        deep = [deep]
    check_depth("it", deep)
    with pytest.raises(ValueError, match="it: the configuration is nested too deeply"):
        check_depth("it", [deep])
    large = [[0] * 999] * 1000
    check_depth("it", large)
    with pytest.raises(ValueError, match="it: the configuration is too large"):
        check_depth("it", [*large, 0])


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1 + 2j, -3j, 4], [5, 6, 7 - 8j]], np.complex64),
        np.array(np.inf - 1j, np.complex64),
        np.array([[1, 2]], np.float32),
    ],
    ids=str,
)
def test_arrays_come_back_as_those_of_jax(array):
    found = text_and_back(holding(jnp.asarray(array)), custom_objects={"holding": holding})
    found = found.declaration.arguments["value"]
    assert isinstance(found, jax.Array)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


def test_arrays_of_types_that_jax_has_not_enabled_come_back_as_those_of_numpy():
    array = np.array([1 / 3])
    found = text_and_back(holding(array), custom_objects={"holding": holding})
    found = found.declaration.arguments["value"]
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "name",
    [
        "save_checkpoint",
        "load_checkpoint",
        "from_config",
        "make_step",
        "eager_programs",
        "schedule",
        "register_serialization",
        "inject_hyperparams",
        "state_dict",
        "transformation",
        "solve",
    ],
)
def test_what_does_more_than_compute_cannot_be_named(name):
    f = {"object": name}
    with pytest.raises(ValueError, match=f"the object '{name}' is not known"):
        gradtx.from_config({"gradtx": 1, "name": "stateless", "arguments": {"f": f}})


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("grokfast_ma", "window_size"),
        ("lbfgs", "memory_size"),
        ("scale_by_lbfgs", "memory_size"),
        ("guard", "window"),
        ("mechanize", "num_betas"),
        ("muon", "ns_steps"),
        ("dion2", "ns_steps"),
        ("aggregate_chunked_top_k", "chunk"),
        ("aggregate_int8", "block_size"),
    ],
)
def test_sizes_that_would_fill_the_memory_are_refused(name, argument):
    config = json.loads(json.dumps(gradtx.to_config(CATALOGUE[name].make())))
    assert argument in config["arguments"]
    gradtx.from_config(config, CUSTOM)
    config["arguments"][argument] = 2**31 - 1
    with pytest.raises(ValueError, match=f"{name}: a configuration may set {argument} to at most"):
        gradtx.from_config(config, CUSTOM)


def test_functions_of_gradtx_need_no_custom_objects():
    tx = gradtx.chain(
        gradtx.monitor(
            {"one": gradtx.transforms.trust.norm, "all": gradtx.tree.norm, "build": gradtx.adam}
        ),
        gradtx.project(gradtx.projections.projection_simplex),
        gradtx.accumulate(gradtx.sgd(0.1), 2, should_skip_update_fn=gradtx.skip_not_finite),
    )
    back = gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx))))
    assert back == tx
    measures = back.declaration.arguments["args"][0].declaration.arguments["measures"]
    assert measures["one"] is trust.norm
    assert measures["all"] is gradtx.tree.norm
    for name in ("tree._leaves", "tree.jnp", "config.to_config", "tree.global_norm.__globals__"):
        with pytest.raises(ValueError, match="not known"):
            gradtx.from_config(
                {"gradtx": 1, "name": "stateless", "arguments": {"f": {"object": name}}}
            )


def namesakes():
    """A builder, a schedule, a function and a NamedTuple with the names of gradtx's."""

    @gradtx.transformation
    def lion(learning_rate: float):
        return gradtx.scale(-2 * learning_rate)

    @gradtx.schedule
    def constant_schedule(value: float):
        return lambda count: 2 * value

    def skip_not_finite(updates, gradient_step, params):
        return jnp.array(True), ()

    class LookaheadParams(NamedTuple):
        fast: Any

    return lion, constant_schedule, skip_not_finite, LookaheadParams


@pytest.mark.parametrize("kind", ["builder", "schedule", "function", "tuple"])
def test_what_has_a_name_of_gradtx_is_not_taken_for_it(kind):
    lion, constant_schedule, skip_not_finite, pair = namesakes()
    tx, own = {
        "builder": lambda: (lion(0.1), lion),
        "schedule": lambda: (gradtx.sgd(constant_schedule(0.1)), constant_schedule),
        "function": lambda: (
            gradtx.accumulate(gradtx.sgd(0.1), 2, should_skip_update_fn=skip_not_finite),
            skip_not_finite,
        ),
        "tuple": lambda: (gradtx.masked(gradtx.sgd(0.1), pair(True)), pair),
    }[kind]()
    config = json.loads(json.dumps(gradtx.to_config(tx)))
    with pytest.raises(ValueError, match="custom_objects"):
        gradtx.from_config(config)
    assert gradtx.from_config(config, {own.__name__: own}) == tx


@gradtx.transformation
def limited(rate: gradtx.checks.NonNegative, /, *links: Any, last: Any = 1.0, **more: Any):
    return gradtx.chain(gradtx.scale(rate * last * sum(more.values())), *links)


def test_arguments_of_every_kind():
    tx = limited(0.5, gradtx.scale(2.0), gradtx.scale(3.0), last=4.0, a=1.0, b=2.0)
    assert gradtx.from_config(gradtx.to_config(tx), {"limited": limited}) == tx
    assert limited(0.5, last=4.0) == gradtx.from_config(
        gradtx.to_config(limited(0.5, last=4.0)), {"limited": limited}
    )


def rate_of(value):
    def rate(count):
        return value

    return rate


def test_functions_of_one_name_are_refused():
    one, other = rate_of(0.1), rate_of(0.2)
    both = {"a": gradtx.sgd(one), "b": gradtx.sgd(other)}
    with pytest.raises(TypeError, match="two functions are called 'rate'"):
        gradtx.to_config(gradtx.partition(both, [("a", "a"), ("b", "b")]))
    tx = gradtx.chain(gradtx.sgd(jax.jit(one)), gradtx.sgd(jax.jit(one)))
    assert gradtx.to_config(tx)
    tx = gradtx.chain(gradtx.sgd(one), gradtx.sgd(one))
    assert gradtx.from_config(gradtx.to_config(tx), {"rate": one}) == tx


@pytest.mark.parametrize("kind", [float, complex, np.float16, "bfloat16"])
def test_types_by_any_name(kind):
    tx = (
        gradtx.adam(0.1, mu_dtype=kind)
        if kind is not complex
        else gradtx.trace(0.9, False, complex)
    )
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
