"""What every transformation promises, tried over the catalogue."""

import copy
import functools
import json
import pickle
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.checks import hyperparameter_range, marks, size_of
from gradtx.estimators.estimator import Estimator
from gradtx.leaves.rows import is_rows
from gradtx.types import DIMENSIONS, WHERE
from tests import catalogue
from tests.catalogue import CATALOGUE
from tests.oracle import optimized
from tests.quick import quick

NAMES = sorted(CATALOGUE)
CUSTOM = {f.__name__: f for f in vars(catalogue).values() if callable(f) and hasattr(f, "__name__")}


def some(*chosen, of=NAMES):
    """The whole catalogue, or a part `of` it, of which only some are quick tests.

    What is compiled for one transformation stays in the process that compiled it."""
    return pytest.mark.parametrize("name", quick(of, *chosen, together=True))


every = some(*NAMES)

# Those that compile more run an optimizer's rule within the optimizer.
WHOLE = [name for name in NAMES if not catalogue.has_an_optimizer(name)]
whole = some(*WHOLE, of=WHOLE)


# Of those that take more than a moment for each, a newcomer's suite shows a few: each scope, a
# chain, a group, a wrapper and an average.
FEW = ("adafactor", "clip_by_global_norm", "ema_params", "lamb", "masked", "muon", "scale_by_adam")
sample = some(*FEW)
whole_sample = some(*FEW, of=WHOLE)


WITHOUT_ENTRIES = {"x0": (0,), "x03": (0, 3), "x203": (2, 0, 3), "x30": (3, 0)}


def array(x, dtype):
    """By NumPy: JAX would compile a program for each shape and type."""
    return jax.device_put(np.asarray(x).astype(jnp.dtype(dtype)))


def two(name=None, dtype=jnp.float32):
    """A vector and a matrix, and leaves that the transformation of this name looks for."""
    rng = np.random.default_rng(0)
    shapes = {"b": (3,), "w": (3, 2), **(CATALOGUE[name].leaves if name else {})}
    return {n: array(rng.normal(size=shape), dtype) for n, shape in shapes.items()}


def params(name=None, dtype=jnp.float32):
    """These, and leaves without entries: whatever is promised holds beside them."""
    empty = {n: array(np.zeros(shape), dtype) for n, shape in WITHOUT_ENTRIES.items()}
    return two(name, dtype) | empty


def grads(steps, name=None, dtype=jnp.float32, seed=1, of=params):
    """Gradients for this many steps, stacked."""
    rng = np.random.default_rng(seed)

    def draw(p):
        g = rng.normal(size=(steps, *p.shape))
        if jnp.issubdtype(dtype, jnp.complexfloating):
            g = g + 1j * rng.normal(size=g.shape)
        return array(g, dtype)

    return jax.tree.map(draw, of(name, dtype))


def value_fn(p):
    return sum(jnp.sum(jnp.abs(x).astype(jnp.float32) ** 2) for x in jax.tree.leaves(p))


def step(tx, carry, g):
    """One step as `minimize` takes it: the extra arguments are always there."""
    p, state = carry
    extra = {"value": value_fn(p), "grad": g, "value_fn": value_fn}
    if takes_examples(tx):
        g = jax.tree.map(lambda x: x if is_rows(x) else x[None], g, is_leaf=is_rows)
    updates, state = gradtx.with_extra_args_support(tx).update(g, state, p, **extra)
    return (gradtx.apply_updates(p, updates), state), updates


def takes_examples(tx):
    """Whether gradients are those of single examples: here of one."""
    name = getattr(getattr(tx, "declaration", None), "name", None)
    return name in CATALOGUE and CATALOGUE[name].examples


@functools.cache
def stepper(name):
    """One compiled step, as other files take it too."""
    return jax.jit(functools.partial(step, CATALOGUE[name].make()))


STEPS = 3


@functools.cache
def runner(name):
    """Steps in a compiled scan: from a carry and gradients to the last carry and the updates.

    Most contracts run this one program for each type of parameters."""
    tx = CATALOGUE[name].make()

    def run(carry, gs):
        traces = []

        def body(carry, g):
            traces.append(None)
            return step(tx, carry, g)

        carry, updates = jax.lax.scan(body, carry, gs)
        assert len(traces) == 1  # it traces again where a weak type has changed
        assert avals(updates) == avals(gs)
        return carry, updates

    return jax.jit(run)


def compiled(name, p=None, gs=None, state=None):
    """Some steps from the start, or from a state: the last carry and the updates."""
    p = params(name) if p is None else p
    gs = grads(STEPS, name) if gs is None else gs
    return runner(name)((p, CATALOGUE[name].make().init(p) if state is None else state), gs)


@functools.cache
def start(name):
    """The carry before the first step, of float32."""
    p = params(name)
    return p, CATALOGUE[name].make().init(p)


@functools.cache
def reference(name):
    """The run with which those in other settings are compared: steps from the start."""
    return runner(name)(start(name), grads(STEPS, name))


def avals(tree):
    return jax.tree.flatten(jax.tree.map(jax.typeof, tree))


def uncompiled(tx, carry, gs):
    """The same, operation by operation: what one transformation compiled, the next one reuses."""
    updates = []
    for i in range(len(gs["b"])):
        before = avals(carry)
        with gradtx.eager_programs(False):
            carry, update = step(tx, carry, take(gs, i))
        assert avals(carry) == before
        chex.assert_trees_all_equal_shapes_and_dtypes(update, carry[0])
        updates.append(update)
    return carry, updates


def take(tree, i):
    """By NumPy too, as `array` is."""
    return jax.tree.map(lambda x: jax.device_put(np.array(np.asarray(x)[i])), tree)


def put(x, index, value):
    """The array with this value there."""
    x = np.array(x)
    x[index] = value
    return jax.device_put(x)


def assert_finite(tree):
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            assert np.all(np.isfinite(np.asarray(leaf)))


def test_catalogue_holds_every_public_transformation():
    others = ("gradtx.schedules.", "gradtx.estimators.")
    public = {b.name for b in catalogue.builders() if not b.function.__module__.startswith(others)}
    assert public == set(CATALOGUE)


@every
def test_scan_keeps_shapes_types_and_structure(name):
    """lax.scan refuses a step that changes the shapes or types of its state, and would trace again
    where only a weak type changed: `runner` looks at that."""
    (after, _), updates = runner(name).eval_shape(start(name), grads(STEPS, name))
    assert avals(after) == avals(params(name))
    assert avals(updates) == avals(grads(STEPS, name))


@pytest.mark.quick(1)
@some("accumulate", "apply_every", "dynamic_loss_scale", "lookahead", "sam")
def test_counters_at_the_end_of_their_type_stay_there_or_begin_again(name):
    """None becomes negative, so that a window would not end for two billion steps."""
    last = np.int32(2**31 - 1)
    is_count = lambda x: x.dtype == jnp.int32 and not x.shape  # noqa: E731
    at_end = lambda x: jax.device_put(last) if is_count(x) else x  # noqa: E731
    state = jax.tree.map(at_end, CATALOGUE[name].make().init(params(name)))
    (p, after), _ = compiled(name, state=state)
    assert all(x >= 0 for x in jax.tree.leaves(after) if is_count(x))
    assert_finite(p)


RATED = [
    n for n in catalogue.optimizers() if "learning_rate" in gradtx.hyperparams(CATALOGUE[n].made)
]
# Decay beside the rate, parameters from the sum of gradients, a sphere, and rounding.
RESTLESS = {"adafactor", "adagrad_da", "muown", "spectral_sphere"}


@pytest.mark.quick(2)
@some("adamw", "madgrad", of=RATED)
def test_an_optimizer_rests_at_a_rate_of_0(name):
    """A warm-up may begin there."""
    tx = gradtx.replace(CATALOGUE[name].make(), learning_rate=array(0.0, jnp.float32))
    p, gs = two(name), grads(2, name, of=two)
    carry = p, tx.init(p)
    for i in range(2):
        with gradtx.eager_programs(False):
            carry, _ = step(tx, carry, take(gs, i))
    moved = any(np.any(np.asarray(carry[0][n]) != np.asarray(p[n])) for n in p)
    assert name in RESTLESS or not moved


@functools.cache
def compilations():
    """The programs that XLA compiled, from now on."""
    seen = []

    def listen(event, duration, **about):
        if event.endswith("backend_compile_duration"):
            seen.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seen


WRAPPERS = [n for n in NAMES if "wrappers" in getattr(gradtx, n).builder.function.__module__]


@pytest.mark.slow
@some("accumulate", of=WRAPPERS)
def test_no_trace_outlives_its_step(name):
    tx = CATALOGUE[name].make()
    p, g = two(name), take(grads(1, name, of=two), 0)
    state = tx.init(p)
    with jax.checking_leaks():
        jax.jit(lambda s, g: step(tx, (p, s), g)).trace(state, g)


@pytest.mark.quick(1)
@some(
    "acprop",
    "adagrad_decay",
    "adam",
    "kron",
    "muon",
    "reduce_on_plateau",
    "shampoo",
    "splus",
    of=WHOLE,
)
def test_strict_promotion(name):
    """Of types and of ranks, of matrices and of whole stacks of them."""
    tx = CATALOGUE[name].make()
    shapes = {"stack": (2, 3, 4), "stacks": (2, 2, 3, 2), "row": (1, 3)}
    p = {**params(name), **{n: jnp.ones(shape) for n, shape in shapes.items()}}
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        state = jax.eval_shape(tx.init, p)
        jax.eval_shape(lambda p, s: step(tx, (p, s), p), p, state)


@pytest.mark.quick(1)
@some("kron", "scale_by_muon", "scale_by_soap")
def test_a_cpu_factorizes_one_matrix_at_a_time(name):
    """A batch waits in one of XLA's threads for the others: on several devices, forever."""
    tx = CATALOGUE[name].make()
    p = {**params(name), "w_too": params(name)["w"]}
    state = jax.eval_shape(tx.init, p)
    text = jax.jit(lambda p, s: step(tx, (p, s), p)).lower(p, state).as_text()
    calls = [line for line in text.splitlines() if "@lapack_" in line]
    assert calls or name not in {"kron", "scale_by_soap"}
    assert not [call for call in calls if re.search(r"tensor<(\d+x){3}", call)]


def numbers(state):
    """The arrays of a state, random keys as their bits."""
    return [
        np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
        for x in jax.tree.leaves(state)
    ]


# Rules of whole leaves, and optimizers in which masks choose between such rules.
RULES = {name: CATALOGUE[name].made.traits.rule for name in WHOLE}
OF_LEAVES = [name for name, rule in RULES.items() if rule is not None and rule.scope == "leaf"]
OF_LEAVES += ["lamb", "lars", "stable_adamw"]


@pytest.mark.quick(1)
@some("lamb", of=OF_LEAVES)
def test_leaves_alike_take_the_steps_that_they_take_by_themselves(name):
    """Of four leaves of a kind, or more, all but the first are traced as one function."""
    tx, rng = CATALOGUE[name].make(), np.random.default_rng(0)

    def draw():
        leaves = {f"{i}": array(rng.normal(size=(5, 3)), jnp.float32) for i in range(5)}
        return leaves | {"b": array(rng.normal(size=4), jnp.float32)}

    p, gs = draw(), [draw(), draw()]
    carry = one_by_one = p, tx.init(p)
    run = jax.jit(functools.partial(step, tx))
    for g in gs:
        carry, updates = run(carry, g)
        with gradtx.eager_programs(False):
            one_by_one, want = step(tx, one_by_one, g)
        chex.assert_trees_all_close(updates, want, rtol=2e-5, atol=1e-6)
    chex.assert_trees_all_close(numbers(carry), numbers(one_by_one), rtol=2e-5, atol=1e-6)


# They compare a number that all parameters, or the loss, make with the last one; where the clean
# runs agree on which is larger, nothing shows that a state has read them.
COMPARES = {"bfgs", "guard", "lbfgs", "prodigy", "reduce_on_plateau", "ssbroyden"}


@pytest.mark.quick(1)
@some("acprop", "adam", "lamb", "mars_adamw", "muon", "optimistic_gradient_descent")
def test_a_parameter_that_is_nan_reaches_only_the_slots_that_read_it(name):
    """An entry of the state reads the parameters if it changes when they do."""
    if name in COMPARES:
        pytest.skip("it reads all parameters")
    (_, state), _ = reference(name)
    others = [
        jax.tree.map(lambda p, k=k: jax.device_put(k * np.asarray(p) + k), params(name))
        for k in (-0.5, 3.0)
    ]
    moved = [numbers(compiled(name, p)[0][1]) for p in others]
    with_nan = {**params(name), "w": put(params(name)["w"], (0, 1), np.nan)}
    spoilt = numbers(compiled(name, with_nan)[0][1])
    for clean, got, *same in zip(numbers(state), spoilt, *moved, strict=True):
        reads = np.any([x != clean for x in same], axis=0)
        np.testing.assert_array_equal(got[~reads], clean[~reads])


@pytest.mark.slow
@whole
def test_complex(name):
    if not CATALOGUE[name].complex:
        pytest.skip(CATALOGUE[name].why)
    p, gs = params(name, jnp.complex64), grads(STEPS, name, jnp.complex64)
    (new, _), updates = compiled(name, p, gs)
    assert_finite((new, updates))


REAL_TYPES = [
    (name, argument)
    for name in WHOLE
    if CATALOGUE[name].complex and CATALOGUE[name].made.declaration
    for argument in CATALOGUE[name].made.declaration.arguments
    if argument.endswith("dtype") and argument != "param_dtype"
]


@pytest.mark.parametrize(("name", "argument"), REAL_TYPES)
def test_a_real_type_for_a_mean_keeps_complex_numbers_complex(name, argument):
    """As `mu_dtype=bfloat16` is for a tree of which some leaves are complex."""
    tx, p = CATALOGUE[name].make(), params(name, jnp.complex64)
    arguments = tx.declaration.arguments
    own = tx.declaration.builder.public(**{**arguments, argument: None})
    real = tx.declaration.builder.public(**{**arguments, argument: jnp.float32})
    states = (jax.tree.leaves(jax.eval_shape(tx.init, p)) for tx in (own, real))
    for before, now in zip(*states, strict=True):
        assert jnp.issubdtype(before.dtype, jnp.complexfloating) == jnp.issubdtype(
            now.dtype, jnp.complexfloating
        )


def reads(function, *arguments):
    """Whether what a function computes depends on its first argument, as the trace shows it."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return jax.interpreters.partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1][0]


@pytest.mark.slow
@every
def test_what_the_initial_state_alone_reads_is_no_schedule(name):
    """A schedule would be taken without effect: the numbers of `checks.Initial...`."""
    tx = CATALOGUE[name].make()
    if not tx.declaration:
        pytest.skip("it is not declared")
    builder, arguments = tx.declaration.builder, tx.declaration.arguments
    carry, g = (params(name), jax.eval_shape(tx.init, params(name))), take(grads(1, name), 0)
    for argument, value in arguments.items():
        allowed = hyperparameter_range(builder.hints.get(argument))
        if allowed is None or allowed.integer:
            continue
        if value is None and allowed.at_start:  # unless it is given the state begins elsewhere
            with pytest.raises(TypeError, match="it says where the state begins"):
                builder.public(**{**arguments, argument: gradtx.constant_schedule(1.0)})
        if type(value) not in (int, float):
            continue

        def made(x, argument=argument):
            return builder.public(**{**arguments, argument: x})

        def begun(x, p, made=made):
            return made(x).init(p)

        def stepped(x, carry, g, made=made):
            return step(made(x), carry, g)

        x = jnp.float32(value)
        if reads(begun, x, carry[0]) and not reads(stepped, x, carry, g):
            assert allowed.at_start, argument
            with pytest.raises(TypeError, match="it says where the state begins"):
                made(gradtx.constant_schedule(value))
        elif name not in SOMETIMES:
            assert not allowed.at_start, argument


# An optimizer that estimates a bound reads where it begins at each step too.
SOMETIMES = ("momo_adam",)


def hyperparameters(tx):
    """The hyperparameters that may be schedules and whose range ends at a number, with that number.

    Counts are left out.
    """
    builder, arguments = tx.declaration.builder, tx.declaration.arguments
    for argument, value in arguments.items():
        allowed = gradtx.checks.hyperparameter_range(builder.hints.get(argument))
        if allowed is None or allowed.integer or allowed.at_start:
            continue
        if type(value) not in (int, float):
            continue
        for end in allowed.low, allowed.high:
            if np.isfinite(end) and end in allowed:
                yield argument, value, end


@pytest.mark.quick(1)
@some("adam", "add_noise", of=WHOLE)
def test_hyperparameters_scheduled_to_the_ends_of_their_ranges(name):
    """Compiled once: a run for each end of each of them, while the others stay as they are."""
    tx = CATALOGUE[name].make()
    cases = list(hyperparameters(tx))
    if not cases or "schedule" in CATALOGUE[name].why:
        pytest.skip(CATALOGUE[name].why or "it has no hyperparameter with an end")
    starts = {a: np.full(len(cases), value, np.float32) for a, value, _ in cases}
    ends = {a: np.array([c[2] if c[0] == a else v for c in cases]) for a, v, _ in cases}

    def run(starts, ends, gs):
        given = {a: gradtx.polynomial_schedule(starts[a], ends[a], 0.9, 3) for a in starts}
        scheduled = tx.declaration.builder.public(**{**tx.declaration.arguments, **given})
        return jax.lax.scan(functools.partial(step, scheduled), (p, scheduled.init(p)), gs)

    p = two(name)  # `test_a_schedule_around_a_schedule` has leaves without entries beside them
    gs = grads(5, name, of=two)
    (last, _), updates = optimized(jax.vmap(run, (0, 0, None)))(starts, ends, gs)
    for i, case in enumerate(cases):
        for leaf in jax.tree.leaves(take((last, updates), i)):
            assert np.all(np.isfinite(leaf)), case


@some("clip_by_norm", "ema", "scale_by_adam")
def test_a_schedule_around_a_schedule(name):
    """Each counts its own steps."""
    tx = CATALOGUE[name].make()
    given = {a: gradtx.linear_schedule(v, v, 3) for a, v, _ in hyperparameters(tx)}
    if not given or CATALOGUE[name].examples or "schedule" in CATALOGUE[name].why:
        pytest.skip(CATALOGUE[name].why or "it has no hyperparameter")
    inner = tx.declaration.builder.public(**{**tx.declaration.arguments, **given})
    around = gradtx.decay_first(inner, gradtx.linear_schedule(0.1, 0.0, 3))
    carry = params(name), jax.eval_shape(around.init, params(name))
    after, _ = jax.eval_shape(functools.partial(step, around), carry, take(grads(1, name), 0))
    assert avals(after[1]) == avals(carry[1])


@every
def test_empty_tree(name):
    tx = CATALOGUE[name].make()
    (new, _), updates = step(tx, ({}, tx.init({})), {})
    assert new == {}
    assert updates == {}


@pytest.mark.quick(1)
@whole_sample
def test_bare_array(name):
    tx, p, g = CATALOGUE[name].make(), params(name)["w"], grads(1, name)["w"][0]
    carry = p, tx.init(p)
    (new, _), updates = jax.eval_shape(functools.partial(step, tx), carry, g)
    assert avals(new) == avals(p)
    assert avals(updates) == avals(g)


@pytest.mark.slow
@whole
def test_python_numbers_are_taken_like_arrays(name):
    """Outside of `jit`, where nothing else makes arrays of them."""
    if CATALOGUE[name].examples:
        pytest.skip("a number has no dimension for examples")
    tx = gradtx.with_extra_args_support(CATALOGUE[name].make())

    def taken(number):
        p, g = {"a": number(1.5), "b": number(-2)}, {"a": number(0.5), "b": number(1)}
        extra = {"value": value_fn(jax.tree.map(jnp.asarray, p)), "grad": g, "value_fn": value_fn}
        return tx.update(g, tx.init(p), p, **extra)

    try:
        want = taken(jnp.float32)
    except ValueError as error:  # what wants a matrix says so of a number too
        with pytest.raises(ValueError, match=re.escape(str(error))):
            taken(lambda x: x)
        return
    got = taken(lambda x: x)
    chex.assert_trees_all_equal_shapes_and_dtypes(got[0], want[0])
    chex.assert_trees_all_close(got[0], want[0], rtol=1e-6)


@every
def test_it_is_data(name):
    tx = CATALOGUE[name].make()
    assert repr(tx).startswith(f"{name}(")
    assert "<function" not in repr(tx)
    assert "object at 0x" not in repr(tx)
    again = CATALOGUE[name].make()
    assert tx == again
    assert hash(tx) == hash(again)
    assert copy.copy(tx) == tx
    assert copy.deepcopy(tx) == tx
    assert pickle.loads(pickle.dumps(tx)) == tx
    leaves, treedef = jax.tree.flatten(tx)
    assert jax.tree.unflatten(treedef, leaves) == tx
    assert treedef == jax.tree.structure(again)
    init, update = tx
    assert callable(init)
    assert callable(update)


@every
def test_config_round_trip(name):
    tx = CATALOGUE[name].make()
    text = json.dumps(gradtx.to_config(tx), allow_nan=False)
    assert gradtx.from_config(json.loads(text), custom_objects=CUSTOM) == tx


# They read the value of a number that a schedule may be.
NOT_INJECTED = {"mechanize", "offload"}


@some(*{*FEW}.difference(NOT_INJECTED), of=NAMES)
def test_a_compiled_start_with_the_numbers_in_the_state(name):
    tx = CATALOGUE[name].make()
    builder = tx.declaration.builder
    kinds = {p.kind.name for p in builder.signature.parameters.values()}
    if "VAR_POSITIONAL" in kinds or name in NOT_INJECTED:
        pytest.skip("its arguments are transformations, or it reads a number")
    injected = gradtx.inject_hyperparams(builder.public)(**tx.declaration.arguments)
    state = jax.eval_shape(injected.init, params(name))
    assert {a for a, *_ in hyperparameters(tx)} <= set(state.hyperparams)


@pytest.mark.quick(2)
@whole_sample
def test_arrays_that_passed_a_pickle(name):
    """Data loaders and pickled checkpoints give arrays whose type is equal to NumPy's own, and not
    the same object; what is computed from them may have that type too."""
    tx = CATALOGUE[name].make()
    builder, arguments = tx.declaration.builder, tx.declaration.arguments
    arrays = {a: np.array(value, np.float32) for a, value, _ in hyperparameters(tx)}

    def of(through):
        given = {**arguments, **{a: through(x) for a, x in arrays.items()}}
        of_arrays = builder.public(**given) if arrays else tx
        carry = jax.tree.map(through, (params(name), of_arrays.init(params(name))))
        return step(of_arrays, carry, jax.tree.map(through, take(grads(1, name), 0)))[0]

    chex.assert_trees_all_equal(of(_through_a_pickle)[0], of(_as_numpy)[0])


@sample
def test_a_state_for_shapes(name):
    """What does not depend on the parameters' values is made; the rest are shapes too."""
    tx = CATALOGUE[name].make()
    p = two(name)  # a leaf without entries depends on nothing
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), p)
    state, made = tx.init(shapes), tx.init(p)
    other = tx.init(jax.tree.map(lambda x: 2 * x, p))
    chex.assert_trees_all_equal_shapes_and_dtypes(state, made)
    for got, x, y in zip(*map(jax.tree.leaves, (state, made, other)), strict=True):
        if isinstance(got, jax.ShapeDtypeStruct):
            assert np.any(np.asarray(x) != np.asarray(y))
        else:
            chex.assert_trees_all_equal(got, x)


def _as_numpy(x):
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def _through_a_pickle(x):
    x = _as_numpy(x)
    return pickle.loads(pickle.dumps(x)) if isinstance(x, np.ndarray) else x


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", quick(["float16", "float32", "bfloat16", "float64"], "float16"))
@whole_sample
def test_zero_gradients_give_finite_steps(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        p = params(name, jnp.dtype(dtype))
        gs = jax.tree.map(lambda x: array(np.zeros((STEPS, *x.shape)), x.dtype), p)
        (new, _), updates = compiled(name, p, gs)
        assert_finite((new, updates))


@some("dynamic_loss_scale")
def test_a_long_time_without_gradients_leaves_the_state_finite(name):
    run, (p, state) = runner(name), start(name)
    gs = jax.tree.map(lambda x: array(np.zeros(x.shape), x.dtype), grads(STEPS, name))
    for _ in range(600 // STEPS):
        (_, state), _ = run((p, state), gs)
    for before, after in zip(*map(jax.tree.leaves, (start(name)[1], state)), strict=True):
        if jnp.issubdtype(after.dtype, jnp.inexact):
            assert np.all(np.isfinite(after) | ~np.isfinite(before))


@sample
def test_a_new_state_can_be_donated(name):
    """No buffer is in it twice, and none is a parameter's."""
    leaves = jax.tree.leaves(start(name))
    arrays = [x for x in leaves if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key) and x.size]
    pointers = [x.unsafe_buffer_pointer() for x in arrays]
    assert len(set(pointers)) == len(pointers)


def loss(p, scale):
    return scale * value_fn(p).astype(jnp.float32)


@pytest.mark.slow
@whole
def test_make_step_and_solve(name):
    """Both pass on what line searches and the like want; the step is compiled once."""
    entry = CATALOGUE[name]
    if entry.examples:
        pytest.skip("it wants a gradient for each example")
    tx, calls = entry.make(), []

    def counted(p, scale):
        calls.append(None)
        return loss(p, scale)

    made = gradtx.make_step(counted, tx)
    p = two(name)
    p, state, _ = made(p, made.init(p), 0.5, extra_args={"unknown": 1.0})
    traced = len(calls)
    for _ in range(2):
        p, state, _ = made(p, state, 0.5, extra_args={"unknown": 2.0})
    assert len(calls) == traced
    if tx.facet(Estimator) is not None:
        with pytest.raises(ValueError, match="solve: the gradients of the optimizer are estimated"):
            gradtx.solve(loss, two(name), tx, 0.5)
        return
    solution = gradtx.solve(loss, two(name), tx, 0.5, max_steps=3)
    chex.assert_trees_all_close(solution.params, p, rtol=1e-5, atol=1e-6)


# For leaves to be chosen, and for the rows and columns of matrices.
WRONG_KINDS = {
    WHERE: [3, 1.5, {"w": "kernel"}, {"w": 3}, lambda: True, lambda a, b, c: True, jnp.ones(2)],
    DIMENSIONS: [5, "kernel", {"w": (0, 1)}, lambda: None, lambda path, leaf: None, jnp.ones(2)],
}
CHOOSING = [
    (name, argument, kind)
    for name in NAMES
    if (declared := CATALOGUE[name].made.declaration) is not None
    for argument, hint in declared.builder.hints.items()
    for kind in WRONG_KINDS
    if argument != "return" and kind in marks(hint)
]


@pytest.mark.parametrize(("name", "argument", "kind"), CHOOSING, ids=lambda x: str(x))
def test_a_choice_of_a_wrong_kind_is_refused_by_name(name, argument, kind):
    """When it is built, and not inside of JAX when it is first used."""
    tx = CATALOGUE[name].make()
    for bad in WRONG_KINDS[kind]:
        with pytest.raises(TypeError, match=f"{tx.declaration.name}: {argument} "):
            gradtx.replace(tx, {argument: bad})


BAD = [name for name in NAMES if CATALOGUE[name].bad]


def test_what_has_a_hyperparameter_has_arguments_that_must_be_refused():
    def is_checked(hint):
        return hyperparameter_range(hint) is not None or size_of(hint) is not None

    hints = {name: getattr(gradtx, name).builder.hints.values() for name in NAMES}
    assert [name for name in NAMES if name not in BAD and any(map(is_checked, hints[name]))] == []


@some(*BAD, of=BAD)
def test_bad_arguments_are_refused(name):
    build = getattr(gradtx, name)
    for arguments in CATALOGUE[name].bad:
        with pytest.raises((ValueError, TypeError)) as caught:
            build(**arguments)
        assert name in str(caught.value)


@sample
def test_another_tree_is_refused(name):
    tx, (_, state) = CATALOGUE[name].make(), start(name)
    with pytest.raises((ValueError, TypeError)):
        gradtx.apply_gradients(tx, {"b": params(name)["b"]}, params(name), state)
    wrong = {**params(name), "w": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match="w"):
        gradtx.apply_gradients(tx, wrong, params(name), state)


@sample
def test_slots_are_named_and_described(name):
    tx, (_, state) = CATALOGUE[name].make(), start(name)
    names = gradtx.slot_names(state)
    for slot in names:
        tree = gradtx.get_slot(state, slot)
        assert jax.tree.structure(gradtx.set_slot(state, slot, tree)) == jax.tree.structure(state)
    description = gradtx.describe(tx, params(name))
    held = [x for x in jax.tree.leaves(state) if hasattr(x, "dtype")]
    assert description.state_bytes == sum(x.size * x.dtype.itemsize for x in held)
    assert [slot.name for slot in description.slots] == names
    assert name in str(description)


@pytest.mark.quick(2)
@sample
def test_parameters_to_evaluate_are_like_the_parameters(name):
    """The parameters themselves, unless the state holds an average."""
    (p, state), _ = reference(name)
    found = gradtx.eval_params(CATALOGUE[name].make(), state, p)
    assert avals(found) == avals(p)
    assert_finite(found)
    averages = jax.tree.leaves(state, is_leaf=lambda x: hasattr(x, "eval_params"))
    if not any(hasattr(x, "eval_params") for x in averages):
        chex.assert_trees_all_equal(found, p)


@pytest.mark.quick(1)
@whole_sample
@pytest.mark.filterwarnings("ignore:.*cannot be read row by row")
def test_rows(name):
    """On rows of a table: what the dense rule does to them, the others untouched; or an error.

    Of the shapes that were compiled for the tests above."""
    tx, table = CATALOGUE[name].make(), {"table": params(name)["w"]}
    touched = gradtx.Rows(jnp.array([2, 1, 2]), jnp.ones((3, 2)), (3, 2))
    carry = table, tx.init(table)
    if not CATALOGUE[name].rows:
        with pytest.raises(TypeError, match="table"):
            step(tx, carry, {"table": touched})
        return
    (got, _), _ = step(tx, carry, {"table": touched})
    (want, _), _ = step(tx, carry, {"table": touched.to_dense()})
    rows = jnp.array([1, 2])
    chex.assert_trees_all_close(got["table"][rows], want["table"][rows], rtol=1e-5)
    chex.assert_trees_all_equal(
        jnp.delete(got["table"], rows, axis=0), jnp.delete(table["table"], rows, axis=0)
    )


TWINS = [name for name in NAMES if CATALOGUE[name].optax is not None]
# Their parameters grow at each step; Optax's norms overflow long before the numbers do.
OVERFLOWING = {"floor_update_ratio", "sizes_and_directions"}
OVERFLOWING |= {"scale_by_param_block_norm", "scale_by_param_block_rms"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_like_optax(name):
    """A hundred steps against Optax: the same updates, the same state fields."""
    ours, theirs = CATALOGUE[name].make(), CATALOGUE[name].optax()

    def run(tx):
        def scanned(p, gs):
            return jax.lax.scan(functools.partial(step, tx), (p, tx.init(p)), gs)

        gs = grads(100, name, of=two)  # at leaves without entries some of Optax's stop
        if CATALOGUE[name].examples and not takes_examples(tx):
            gs = jax.tree.map(lambda g: g[:, None], gs)
        return jax.jit(scanned)(two(name), gs)

    (_, state), updates = run(ours)
    (_, state_optax), updates_optax = run(theirs)
    if name in OVERFLOWING:
        updates, updates_optax = (
            jax.tree.map(lambda x, y: jnp.where(jnp.isfinite(y), x, 0), each, updates_optax)
            for each in (updates, updates_optax)
        )
    # Optax's bias correction is off by 1.3e-5 (a float32 power), of which the root takes half.
    # MoMo's rate is a difference of sums: float32 moves steps by 0.6e-6, Optax's too, of which
    # float64 has the same to 1e-15.
    atol = 2e-6 if name == "momo_adam" else 1e-6
    chex.assert_trees_all_close(updates, updates_optax, rtol=1e-5, atol=atol)
    assert fields(state) == fields(state_optax)


@pytest.mark.quick(1)
@some("adafactor", "asam", "came", "ftrl", "mechanize", "scale_by_adadelta", "scale_by_adopt")
def test_a_huge_gradient_loses_no_entry(name):
    """Its square is infinite in float32. It comes second, when every slot holds something."""
    gs = grads(STEPS, name)
    gs["w"] = put(gs["w"], (1, 0, 1), 1e30)
    gs["b"] = put(gs["b"], (1, 0), -1e30)
    carry, updates = runner(name)(start(name), gs)
    (p, _), later = runner(name)(carry, grads(STEPS, name, seed=2))
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves((p, updates, later)))


# As in Optax, the state of a chain has a part for each of its links.
CHAINS = {"chain", "fromage", "polyak_sgd", "sign_sgd"}


@pytest.mark.slow
def test_what_keeps_no_state_takes_any():
    """``clip(1.0).update(g, None)`` is an idiom of Optax's users, as ``{}`` and ``()`` are."""
    made = {name: CATALOGUE[name].make() for name in NAMES if name not in CHAINS}
    states = {name: jax.eval_shape(tx.init, params(name)) for name, tx in made.items()}
    stateless = [name for name, state in states.items() if not jax.tree.leaves(state)]
    assert len(stateless) > 30
    step_of = gradtx.eager_programs(False)(step)  # each of them, not only the first
    for name in stateless:
        tx, g = made[name], take(grads(1, name), 0)
        want = step_of(tx, (params(name), tx.init(params(name))), g)[1]
        for other in (None, {}, ()):
            (_, after), updates = step_of(tx, (params(name), other), g)
            chex.assert_trees_all_equal(updates, want)
            assert not jax.tree.leaves(after)


@pytest.mark.slow
@some("scale_by_zoom_linesearch")
def test_no_operation_makes_an_infinity_or_a_nan(name):
    """Under the flags with which users look for where theirs come from. Before the first step a
    state may hold an infinity, and after a search that failed."""
    tx, p = CATALOGUE[name].make(), params(name)
    with jax.debug_infs(True), jax.debug_nans(True):
        uncompiled(tx, (p, tx.init(p)), grads(2, name))


# A value, the best so far, is infinite at the start, in Optax's states too.
INFINITE_AT_FIRST = {
    "lbfgs",
    "reduce_on_plateau",
    "scale_by_backtracking_linesearch",
    "scale_by_zoom_linesearch",
}


@pytest.mark.parametrize("name", sorted(INFINITE_AT_FIRST))
def test_only_a_compiled_start_returns_the_infinities_that_optax_has(name):
    """JAX looks at what compiled functions return; docs/reliability.md lists this exception."""
    tx = CATALOGUE[name].make()
    with jax.debug_infs(True):
        tx.init(params(name))
        with pytest.raises(FloatingPointError, match="inf"):
            jax.block_until_ready(jax.jit(tx.init)(params(name)))


def fields(state):
    """The state classes that hold arrays, with their fields."""
    if not jax.tree.leaves(state):
        return None
    if hasattr(state, "_fields"):
        return type(state).__name__, tuple(fields(x) for x in state), state._fields
    if isinstance(state, dict):
        return tuple(fields(x) for x in state.values())
    if isinstance(state, tuple | list):
        return tuple(fields(x) for x in state)
    return None
