"""The tree of every state against Optax's: classes, fields, keys, shapes and types.

Flax's ``from_state_dict`` and Orbax compare these: where they are equal each library reads the
other's checkpoints, and elsewhere `from_optax_state` and `to_optax_state` do.
"""

# Sees mutants of: optax.

import functools
import inspect

import jax
import jax.numpy as jnp
import optax
import pytest

import gradtx
from gradtx import checks
from tests.catalogue import CATALOGUE, builders
from tests.quick import quick
from tests.test_contracts import two

MASK = {"b": False, "w": True}
# Where a tree is another, and why; docs/coming_from_optax.md says so.
MOMENTS = "the second moment is kept in float32 or wider, also where the first is in bfloat16"
DIFFERENT = {
    ("ademamix", "mu_dtype"): MOMENTS,
    ("scale_by_ademamix", "mu_dtype"): MOMENTS,
}
# What makes ours do as Optax's, which is not the default.
LIKE_OPTAX = {name: {"proj_type": "reverse_std"} for name in ("galore", "scale_by_galore")}
# What stands for a transformation among the arguments, built by the library in question.
INNER = ("inner", "optimizer", "adv_optimizer", "base_optimizer", "fast_optimizer")
# Values that are neither a number nor found by the name or the default.
VALUES = {
    "threshold": [6.0],
    "eta_plus": [1.5],
    "key": [jax.random.key(0)],
    "seed": [0],
    "step_size_fn": [lambda count: 0.25],
    "should_transform_fn": [lambda step, **extra: True],
    "param_labels": [{"b": "x", "w": "y"}],
    "mask_compatible_extra_args": [True],
}
# Their makers are compared in the catalogue, with functions, parameters or chains of their own.
BY_CATALOGUE = {
    *("chain", "named_chain", "stateless", "stateless_with_tree_map", "lookahead", "monitor"),
    *("snapshot", "measure_with_ema", "split_real_and_imaginary", "scale_by_muon"),
    *("hutchinson_estimator_diag_hessian", "differentially_private_aggregate", "dpsgd"),
}


def tree_of(state):
    """A state's structure; `None` and ``MaskedNode`` are alike."""
    if state is None or type(state).__name__ == "MaskedNode":
        return None
    if hasattr(state, "_fields"):
        return type(state).__name__, {f: tree_of(getattr(state, f)) for f in state._fields}
    if isinstance(state, dict):
        return {str(k): tree_of(v) for k, v in state.items()}
    if isinstance(state, tuple | list):
        return [tree_of(part) for part in state]
    if not jax.tree_util.all_leaves([state]):
        return [type(state).__name__, *map(tree_of, jax.tree.leaves(state))]
    if jnp.issubdtype(state.dtype, jax.dtypes.prng_key):
        return "uint32[2]"  # Sophia's keys are typed here, and two words there
    return f"{state.dtype}{list(state.shape)}"


def found(lib, name):
    """A builder; Optax warns of some that have moved to ``contrib``."""
    contrib = getattr(optax.contrib, name, None) if lib is optax else None
    return contrib or getattr(lib, name, None)


def built(lib, name, arguments):
    own = {
        key: value(lib) if isinstance(value, functools.partial) else value
        for key, value in arguments.items()
    }
    as_theirs = LIKE_OPTAX.get(name, {}) if lib is gradtx else {}
    return found(lib, name)(**as_theirs, **own)


def init_tree(make):
    return tree_of(jax.eval_shape(lambda p: make().init(p), two()))


def runs(make):
    """Whether Optax, which checks nothing, runs with these arguments."""

    def step(p):
        tx = optax.with_extra_args_support(make())
        more = {"value": p["b"][0], "grad": p, "value_fn": lambda q: q["b"][0]}
        return tx.update(p, tx.init(p), p, **more)

    try:
        jax.eval_shape(step, two())
    except Exception:  # whatever it says
        return False
    return True


def groups(lib):
    return {"x": lib.adam(0.1), "y": lib.sgd(0.1, momentum=0.9)}


def candidates(builder, name, parameter):
    """Values for an argument other than its default, schedules among them."""
    allowed = checks.hyperparameter_range(builder.hints.get(name))
    if name in INNER:
        return [functools.partial(lambda lib: lib.adam(0.1))]
    if name == "transforms":
        return [functools.partial(groups)]
    if name in VALUES:
        return VALUES[name]
    if "mask" in name:
        return [MASK]
    if "dtype" in name:
        return [jnp.dtype(jnp.bfloat16)]
    if isinstance(parameter.default, bool):
        return [not parameter.default]
    if allowed is None:
        return []
    return [3] if allowed.integer else [0.25, lambda count: 0.25]


def cases():
    for builder in builders():
        name = builder.name
        theirs = found(optax, name)
        if theirs is None or "schedules" in builder.function.__module__ or name in BY_CATALOGUE:
            continue
        known = inspect.signature(theirs).parameters
        shared = {n: p for n, p in builder.signature.parameters.items() if n in known}
        values = {n: candidates(builder, n, p) for n, p in shared.items()}
        needed = {n: values[n][0] for n, p in shared.items() if p.default is p.empty and values[n]}
        for argument in ("", *shared):
            yield (
                name,
                argument,
                [{**needed, argument: v} for v in values[argument]] if argument else [needed],
            )


CASES = {name: [] for name, _, _ in cases()}
for _name, _argument, _given in cases():
    CASES[_name].append((_argument, _given))


@pytest.mark.quick(6)
@pytest.mark.filterwarnings("ignore")  # Optax's own
@pytest.mark.parametrize("name", quick(CASES, *[*CASES][::8]))
def test_every_argument_leaves_the_tree_as_it_is_in_optax(name):
    compared = 0
    for argument, given in CASES[name]:
        for arguments in given:
            theirs, ours = (
                functools.partial(built, lib, name, arguments) for lib in (optax, gradtx)
            )
            scheduled = callable(arguments.get(argument)) and argument not in (*INNER, "transforms")
            if scheduled and not runs(theirs):
                continue  # it takes no schedule there
            alike = init_tree(ours) == init_tree(theirs)
            assert alike != ((name, argument) in DIFFERENT), (argument, arguments.get(argument))
            compared += 1
    assert compared > 0


TWINS = [name for name, entry in CATALOGUE.items() if entry.optax is not None]


@pytest.mark.quick(51)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TWINS)
def test_the_catalogue_has_the_trees_of_optax(name):
    entry = CATALOGUE[name]
    assert init_tree(entry.make) == init_tree(entry.optax)


def combined(lib):
    """Masks and schedules together, in groups, in windows, injected."""
    rate = lib.linear_schedule(0.1, 0.0, 10)
    lars = functools.partial(lib.lars, rate, trust_ratio_mask=MASK)
    return {
        "adamw": lib.adamw(rate, weight_decay=rate, mask=MASK),
        "lamb": lib.lamb(rate, weight_decay=rate, mask=MASK),
        "lars": lars(weight_decay=rate, weight_decay_mask=MASK),
        "groups": lib.partition(groups(lib), {"b": "x", "w": "y"}),
        "windows": lib.MultiSteps(lib.adamw(rate, mask=MASK), 2),
        "injected": lib.inject_hyperparams(lib.adamw)(rate, b1=0.5),
        "named": lib.named_chain(("b", lib.clip(1.0)), ("a", lib.sgd(rate, momentum=0.9))),
    }


@pytest.mark.parametrize("name", combined(gradtx))
def test_combinations(name):
    ours, theirs = (combined(lib)[name] for lib in (gradtx, optax))
    assert init_tree(lambda: ours) == init_tree(lambda: theirs)
