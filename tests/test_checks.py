"""What no hyperparameter can be is refused by its name, when it is built or first used."""

# Sees mutants of: check.

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.checks import Decay, NonNegative, Positive, PositiveInt, check, is_array, size_of
from gradtx.types import DTYPE, Where
from tests import test_contracts as contracts
from tests.catalogue import CATALOGUE


def raises(count):
    raise KeyError(count)


# What may be an argument of no kind, a number or a type; a sweep is refused where nothing maps it.
WRONG = [
    "flaot32",
    jnp.int8,
    object,
    np.ones((2, 3), np.float32),
    jnp.ones((), "int4"),
    len,
    np.ones(1, np.float32),
    jnp.ones((), "float8_e4m3fn"),
    lambda path, leaf: 1.0,
    jax.random.key(0),
    lambda count: "text",
    optax.sgd,
    lambda count: jnp.ones(3),
    raises,
]


@pytest.mark.quick(38)
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_what_is_wrong_is_named(name):
    declaration = CATALOGUE[name].make().declaration
    builder = declaration.builder
    checked = [
        argument
        for argument, hint in builder.hints.items()
        if builder.is_number(argument) or DTYPE in str(hint)
    ]
    params, grads = contracts.params(), contracts.take(contracts.grads(1), 0)
    for i, argument in enumerate(checked):
        for wrong in WRONG[i % 7 :: 7]:
            with pytest.raises((TypeError, ValueError), match=argument):
                tx = builder.public(**{**declaration.arguments, argument: wrong})
                jax.eval_shape(
                    lambda p, g, tx=tx: contracts.step(tx, (p, tx.init(p)), g), params, grads
                )


@pytest.mark.parametrize("value", [2**31, 2**70, np.int64(2**40), np.array(2**40)])
def test_integers_beyond_32_bits(value):
    with pytest.raises(ValueError, match="every.*32 bits"):
        gradtx.accumulate(gradtx.sgd(0.1), value)
    tx = gradtx.sgd(value) if not isinstance(value, np.ndarray) else gradtx.sgd(float(value))
    assert float(tx.update(jnp.float32(1.0), tx.init(0.0))[0]) == -float(value)


def taught(count):
    """A schedule that asks for the value of its argument."""
    return 0.1 if count < 3 else 0.01


class Falling:
    def __call__(self, count):
        return 1 / (count + 1.0)


@pytest.mark.parametrize(
    "rate",
    [
        taught,
        lambda count, factor=2.0: factor * count,
        lambda *args: 0.1,
        lambda: 0.1,
        Falling(),
        Falling().__call__,
        jnp.cos,
        np.cos,
        optax.cosine_decay_schedule(0.1, 10),
        gradtx.cosine_decay_schedule(0.1, 10),
        jax.jit(lambda count: jnp.where(count < 3, 0.1, 0.01)),
        lambda count: 1,
        lambda count: np.float64(0.1),
    ],
)
def test_functions_of_the_count_are_schedules(rate):
    tx = gradtx.sgd(rate)
    tx.update(jnp.float32(1.0), tx.init(0.0))


@pytest.mark.parametrize("made", [complex, np.complex64, np.array, jnp.array])
def test_a_complex_number_is_in_no_interval(made):
    with pytest.raises(TypeError, match=r"clip: max_delta must be a number in \[0, inf\]"):
        gradtx.clip(made(1 + 0j))


def test_no_number_of_numpys_is_complex_where_none_of_pythons_is():
    with pytest.raises(TypeError, match="value must be a number"):
        gradtx.constant_schedule(np.complex64(1))


@pytest.mark.parametrize(
    "dtype", ["bfloat16", jnp.bfloat16, np.float32, np.dtype("float16"), float, "complex64", None]
)
def test_types_of_slots(dtype):
    """Means of complex gradients stay complex."""
    tx = gradtx.adam(0.1, mu_dtype=dtype)
    real, number = (gradtx.get_slot(tx.init(jnp.ones(2, p)), "mu") for p in ("f4", "complex64"))
    assert real.dtype == ("f4" if dtype is None else jax.dtypes.canonicalize_dtype(dtype))
    assert number.dtype == "complex64"


@pytest.mark.parametrize(
    ("dtype", "meant"), [("bf16", "bfloat16"), ("f16", "float16"), ("f32", "float32")]
)
def test_short_names_of_types_are_refused_with_the_whole_one(dtype, meant):
    with pytest.raises(TypeError, match=f"mu_dtype must be .*'{dtype}'; write '{meant}'"):
        gradtx.adamw(0.1, mu_dtype=dtype)


@pytest.mark.parametrize("dtype", ["int8", "f16", "c32", np.longdouble, "nothing", 3])
def test_types_that_jax_cannot_keep_are_refused_when_built(dtype):
    with pytest.raises(TypeError, match="adam: mu_dtype must be a floating-point type"):
        gradtx.adam(0.1, mu_dtype=dtype)


SIZES = sorted(
    (name, argument)
    for name, entry in CATALOGUE.items()
    for argument, hint in entry.made.declaration.builder.hints.items()
    if size_of(hint) is not None
)


@pytest.mark.quick(4)
@pytest.mark.parametrize(("name", "argument"), SIZES)
def test_what_no_size_can_be_is_refused_by_its_name(name, argument):
    """It decides shapes, loops or memory, and so is a number that is known at once."""
    declaration = CATALOGUE[name].make().declaration
    size = size_of(declaration.builder.hints[argument])
    wrong = [size.least - 1, 1.5, True, jnp.int32(8), np.ones(1), lambda count: 8, "8"]
    for value in wrong if size.integer else [0.0, *wrong[1:]]:
        with pytest.raises(ValueError, match=f"{name}: {argument} must be"):
            declaration.builder.public(**{**declaration.arguments, argument: value})


def test_sizes_and_fractions_of_arrays_are_annotations():
    """What decides shapes is refused before the builder runs, and ``help`` shows a number."""
    assert {
        *(("guard", "window"), ("guard", "warmup"), ("store", "min_size"), ("store", "seed")),
        *(("aggregate_int8", "block_size"), ("aggregate_power_sgd", "rank")),
        *(("aggregate_top_k", "fraction"), ("aggregate_dct", "chunk"), ("demo", "fraction")),
    } <= set(SIZES)
    parameters = inspect.signature(gradtx.demo).parameters
    assert str(parameters["chunk"]) == "chunk: int = 64"
    assert str(parameters["fraction"]) == "fraction: float = 0.0078125"


@pytest.mark.parametrize("value", [1, None])
def test_a_size_may_be_none_where_its_annotation_says_so(value):
    check("here", "size", value, PositiveInt | None)
    with pytest.raises(ValueError, match="here: size must be an integer of at least 1, not 0"):
        check("here", "size", 0, PositiveInt | None)
    with pytest.raises(ValueError, match="here: size must be an integer"):
        check("here", "size", None, PositiveInt)


@pytest.mark.parametrize(
    ("name", "value", "hint", "ascends"),
    [
        ("learning_rate", -1.0, NonNegative, True),
        ("learning_rate", 0.0, Positive, False),
        ("learning_rate", np.inf, Positive, False),
        ("learning_rate", np.nan, NonNegative, False),
        ("learning_rate", np.array([1.0, -1.0]), NonNegative, True),
        ("b1", -1.0, NonNegative, False),
    ],
)
def test_a_rate_below_zero_is_told_how_to_ascend(name, value, hint, ascends):
    with pytest.raises(ValueError, match=f"sgd: {name} must be a number in") as caught:
        check("sgd", name, value, hint)
    assert ("to ascend, chain(scale(-1.0), sgd(...))" in str(caught.value)) == ascends


@pytest.mark.parametrize("kind", [np.float64, np.float32, jnp.bfloat16])
def test_numbers_in_an_array_of_numpy_are_in_the_range(kind):
    """Their values are known. Those of JAX's arrays may not be."""
    for wrong in ([0.5, 1.0], [np.nan, 0.5], [-0.5, 0.5], 1.0):
        with pytest.raises(ValueError, match=r"here: b1 must be a number in \[0, 1\), not array"):
            check("here", "b1", np.asarray(wrong, kind), Decay)
        check("here", "b1", jnp.array(wrong), Decay)
    for right in ([0.0, 0.5], 0.5, []):
        check("here", "b1", np.asarray(right, kind), Decay)
    with pytest.raises(ValueError, match="clip_by_global_norm: max_norm must be"):
        gradtx.clip_by_global_norm(np.array(-1.0))


def test_hyperparameters_that_are_arrays_are_numeric():
    for value in (jnp.ones(2), np.ones(()), jnp.int32(1)):
        assert is_array(value)
    for value in (jnp.array(True), np.ones(2, bool), np.float32(1.0), 1.0):
        assert not is_array(value)


@pytest.mark.parametrize("true", [True, np.True_, np.array(True), jnp.array(True)])
def test_a_tree_of_booleans_chooses_leaves(true):
    check("here", "mask", {"a": true, "b": False}, Where)
    for wrong in (np.ones(1, bool), np.ones(()), 1):
        with pytest.raises(TypeError, match="here: mask must be a path pattern"):
            check("here", "mask", {"a": true, "b": wrong}, Where)


def test_the_module_lists_ranges_and_checks_alone():
    names = dir(gradtx.checks)
    assert {"Decay", "Positive", "PositiveInt", "check", "ArgumentError"} <= set(names)
    assert not {"jax", "jnp", "np", "Any", "Annotated", "functools", "SCHEDULE"} & set(names)
