"""The contracts: the promises of any transformation, each tried on a small case."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.checkpoint.config import from_config, to_config
from gradtx.checks import hyperparameter_range
from gradtx.core.eager import eager_programs
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Scope
from gradtx.inspection.hyperparams import replace
from gradtx.testing.trial import (
    STEPS,
    Trial,
    forms_differ,
    from_numbers,
    not_finite,
    numbers,
    shapes,
    values_differ,
)
from gradtx.types import KEY, Params, state_fields
from gradtx.types.keys import is_key


class Broken(Exception):
    """A contract does not hold; the text says where."""


class DoesNotApply(Exception):
    """A contract asks for something that the transformation does not have; the text says what."""


class Contract(NamedTuple):
    """A contract: its name, its promise, and the function that tries it."""

    name: str
    promise: str
    check: Callable[[Trial], None]


CONTRACTS: list[Contract] = []


Check: TypeAlias = Callable[[Trial], None]


def contract(name: str, promise: str) -> Callable[[Check], Check]:
    """Register a function that raises `Broken` or `DoesNotApply` as a contract."""

    def register(check: Check) -> Check:
        CONTRACTS.append(Contract(name, promise, check))
        return check

    return register


def _require_same(problem: str, difference: str) -> None:
    if difference:
        raise Broken(f"{problem}: {difference}")


@contract("init", "makes arrays, whose shapes and types jax.eval_shape tells")
def _init_is_traced(t: Trial) -> None:
    with eager_programs(False):
        state = t.tx.init(t.params)
    for leaf in jax.tree.leaves(state):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            raise Broken(f"the state has a leaf that is no array: {leaf!r:.80}")
    traced = jax.eval_shape(t.tx.init, t.params)
    _require_same("outside of jit and in it", forms_differ(shapes(state), shapes(traced)))


@contract("updates keep their form", "structure, shapes and types are those of the parameters")
def _updates_are_like_parameters(t: Trial) -> None:
    with eager_programs(False):
        updates, _ = t.step(t.gradient, t.tx.init(t.params), t.params)
    _require_same("parameters and updates", forms_differ(shapes(t.params), shapes(updates)))


@contract("state keeps its form", "a step keeps structure, shapes and types, as lax.scan asks")
def _states_are_alike(t: Trial) -> None:
    with eager_programs(False):
        before = t.tx.init(t.params)
        after = t.step(t.gradient, before, t.params)[1]
    _require_same("the states before and after a step", forms_differ(before, after))


@contract("compiles", "update is traced by jax.jit, once for all steps")
def _step_is_traced(t: Trial) -> None:
    traces: list[None] = []

    def counted(*args: Any) -> Any:
        traces.append(None)
        return t.step(*args)

    step, state = jax.jit(counted), t.tx.init(t.params)
    for _ in range(STEPS):
        _, state = step(t.gradient, state, t.params)
    if len(traces) > 1:
        raise Broken(f"{STEPS} steps were traced {len(traces)} times")


@contract("compiled equals eager", "steps under jax.jit are those outside; Python keeps nothing")
def _compiled_equals_eager(t: Trial) -> None:
    t.eager_run  # noqa: B018  # runs first: a count kept in Python goes on from there
    for got, want in zip(t.compiled_run[0], t.eager_run[0], strict=True):
        _require_same("compiled and not", values_differ(got, want, 2e-5, 1e-6))
    compiled, eager = numbers(t.compiled_run[1]), numbers(t.eager_run[1])
    _require_same("compiled and not, the states", values_differ(compiled, eager, 2e-5, 1e-6))


@contract("pure", "the same arguments give the same results")
def _same_arguments_same_results(t: Trial) -> None:
    again = t.eager(t.params, t.gradients)
    _require_same("two runs from the start", values_differ(again[0], t.eager_run[0]))
    _require_same("two runs, the states", values_differ(*map(numbers, (again[1], t.eager_run[1]))))


@contract("changes nothing in place", "arguments are as they were, NumPy's arrays too")
def _arguments_stay(t: Trial) -> None:
    treedef: Any
    with eager_programs(False):
        state = t.tx.init(t.params)
        arguments = _with_numpy((t.gradient, state, t.params))
        leaves, treedef = jax.tree.flatten(arguments)
        before = [x if is_key(x) else np.array(x).tobytes() for x in leaves]
        t.step(*arguments)
    after, other = jax.tree.flatten(arguments)
    if other != treedef:
        raise Broken("a container among the arguments has other keys or lengths after the call")
    names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(arguments)]
    for name, x, y in zip(names, before, after, strict=True):
        if not is_key(x) and x != np.asarray(y).tobytes():
            raise Broken(f"(gradients, state, parameters){name} has other values after the call")


def _with_numpy(tree: Any) -> Any:
    return jax.tree.map(
        lambda x: np.array(x) if isinstance(x, jax.Array) and not is_key(x) else x, tree
    )


@contract("None leaves", "stay None, and change no other update")
def _absent_leaves_stay_absent(t: Trial) -> None:
    params, gradient = _with_a_leaf(t, None)
    (updates,), _ = t.eager(params, [gradient])
    if (absent := updates.get(_BESIDE)) is not None:
        raise Broken(f"the update of a leaf that is None is {absent!r:.80}")
    (want,), _ = t.eager(_in_dict(t.params), [_in_dict(t.gradient)])
    _require_same("with it and without", values_differ(updates, {**want, _BESIDE: None}))


@contract("leaves without entries", "are taken, and leave the others finite")
def _empty_leaves_are_taken(t: Trial) -> None:
    if forms_differ(shapes(t.params), shapes(t.gradient)):
        raise DoesNotApply("the gradients are not like the parameters")
    empty = jnp.zeros((0, 3), jnp.float32)
    params, gradient = _with_a_leaf(t, empty)
    (updates,), _ = t.eager(params, [gradient])
    _require_same("its update", forms_differ(shapes(empty), shapes(updates[_BESIDE])))
    _require_same("beside it", not_finite(updates))


_BESIDE = "a leaf beside"


def _with_a_leaf(t: Trial, leaf: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters and the gradients with a leaf more."""
    params, gradient = _in_dict(t.params), _in_dict(t.gradient)
    try:
        t.tx.init({**params, _BESIDE: jnp.ones((3, 2))})
    except (TypeError, ValueError) as error:  # it finds leaves by their paths
        raise DoesNotApply("it takes no tree with another leaf") from error
    return {**params, _BESIDE: leaf}, {**gradient, _BESIDE: leaf}


def _in_dict(tree: Any) -> dict[str, Any]:
    """A dict as it is, so that its leaves keep the paths by which they are found; others in one."""
    named = isinstance(tree, dict) and all(isinstance(key, str) for key in tree)
    return tree if named else {"tree": tree}


@contract("scope", "a rule of entries or rows treats each alone")
def _parts_are_updated_alike(t: Trial) -> None:
    rules = t.tx.rules or ()
    if not rules or not {rule.scope for rule in rules} <= {Scope.ENTRY, Scope.ROW}:
        raise DoesNotApply("it is not all of entries or rows, as far as it says")
    if any(KEY in state_fields(rule.state).values() for rule in rules):
        raise DoesNotApply("it draws random numbers")
    of_entries = all(rule.scope is Scope.ENTRY for rule in rules)

    def part(tree: Any, at: slice) -> Any:
        def of(x: Any) -> Any:
            return x if not x.ndim else x[at, ..., at] if of_entries and x.ndim > 1 else x[at]

        return jax.tree.map(of, tree)

    full_updates, _ = t.eager(t.params, [t.gradient] * STEPS)
    kind = "entry" if of_entries else "row"
    # A sum over what comes before leaves the first alone, and one over what comes after the last.
    for which, at in (("first", slice(1)), ("last", slice(-1, None))):
        try:
            part_updates, _ = t.eager(part(t.params, at), [part(t.gradient, at)] * STEPS)
        except (TypeError, ValueError) as error:  # of a hyperparameter for each entry
            raise DoesNotApply("it does not take a part of a leaf") from error
        difference = values_differ(part(full_updates, at), part_updates, rtol=1e-4, atol=1e-6)
        _require_same(f"the {which} {kind} beside others, and alone", difference)


@contract("zero gradients", "give finite updates")
def _zero_gradients_are_finite(t: Trial) -> None:
    zeros = [jax.tree.map(jnp.zeros_like, t.gradient)] * STEPS
    updates, _ = t.compiled(t.params, zeros)
    _require_same("an update", not_finite(updates))


@contract("vmap", "several runs at once take the steps that each takes alone")
def _mapped_equals_single(t: Trial) -> None:
    others = jax.tree.map(lambda x: x * jnp.asarray(-1.5, x.dtype), (t.params, t.gradient))
    pairs = zip(*map(jax.tree.leaves, ((t.params, t.gradient), others)), strict=True)
    structure: Any = jax.tree.structure((t.params, t.gradient))
    params, gradients = structure.unflatten([jnp.stack(pair) for pair in pairs])

    def first(params: Params, gradients: Any) -> Any:
        return t.step(gradients, t.tx.init(params), params)[0]

    got = jax.jit(jax.vmap(first))(params, gradients)
    alone = jax.jit(first)
    for i, single in enumerate(((t.params, t.gradient), others)):
        mapped = jax.tree.map(lambda x, i=i: x[i], got)
        _require_same("mapped and alone", values_differ(mapped, alone(*single), 1e-4, 1e-6))


@contract("low precision", "bfloat16 and float16 stay; a step is that of float32, rounded")
def _half_precision_is_kept(t: Trial) -> None:
    for dtype in (jnp.bfloat16, jnp.float16):
        half = _cast((t.params, t.gradient), dtype)
        single = _cast(half, jnp.float32)
        state = t.tx.init(half[0])
        updates, after = t.jitted(half[1], state, half[0])
        name = jnp.dtype(dtype).name
        _require_same(
            f"{name} parameters and updates", forms_differ(shapes(half[0]), shapes(updates))
        )
        _require_same(f"the states in {name}", forms_differ(state, after))
        want = t.jitted(single[1], t.tx.init(single[0]), single[0])[0]
        eps = float(jnp.finfo(dtype).eps)
        different = values_differ(_cast(updates, jnp.float32), want, 4 * eps, 1e-6)
        _require_same(f"computed in {name} and in float32", different)


@contract("double precision", "updates are float64, and the state keeps its types")
def _double_precision_is_kept(t: Trial) -> None:
    if any(not _is_real(x) for x in jax.tree.leaves(t.params)):
        raise DoesNotApply("the parameters are not all real")
    want = t.eager_run[0][0]
    with jax.enable_x64(True):
        params, gradients = _cast((t.params, t.gradient), jnp.float64)
        (updates,), state = t.eager(params, [gradients])
        _require_same("parameters and updates", forms_differ(shapes(params), shapes(updates)))
        different = forms_differ(t.tx.init(params), state)
        _require_same("the states before and after a step", different)
        single = jax.tree.map(lambda x, like: x.astype(like.dtype), updates, want)
    _require_same("computed in float64 and in float32", values_differ(single, want, 1e-4, 1e-5))


def _is_real(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if _is_real(x) else x, tree)


@contract("donation", "a new state shares no array with itself or the parameters")
def _new_states_can_be_donated(t: Trial) -> None:
    kept, given = _buffers(t.tx.init(t.params)), _buffers(t.params)
    if len(set(kept)) < len(kept) or set(kept) & set(given):
        raise Broken("an array of the state is a parameter, or is in the state twice; copy it")


def _buffers(tree: Any) -> list[int]:
    """Where the arrays of a tree begin that have entries and are on one device."""
    arrays = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array) and not is_key(x)]
    here = [x for x in arrays if x.size and x.is_fully_addressable and len(x.devices()) == 1]
    return [x.unsafe_buffer_pointer() for x in here]


@contract("resuming", "from a state kept as NumPy's arrays, with the same bits")
def _restored_states_go_on(t: Trial) -> None:
    _, state = t.compiled_run
    if not jax.tree.leaves(state):
        raise DoesNotApply("it keeps no state")
    back = from_numbers(numbers(state), state)
    (got,), _ = t.compiled(t.params, [t.gradient], back)
    (want,), _ = t.compiled(t.params, [t.gradient], state)
    _require_same("resumed and not", values_differ(got, want))


@contract("another tree", "gradients of another tree than the state's are refused")
def _other_trees_are_refused(t: Trial) -> None:
    params, gradient = t.params, t.gradient
    like: Any = jax.tree.structure(params)
    if like == jax.tree.structure(0):  # as each array of a state is
        params, gradient = {"leaf": params}, {"leaf": gradient}
        like = jax.tree.structure(params)
    state = t.tx.init(params)

    def mirrors(x: Any) -> bool:
        return bool(jax.tree.structure(x) == like)

    if not any(map(mirrors, jax.tree.leaves(state, is_leaf=mirrors))):
        raise DoesNotApply("it keeps nothing for each parameter")
    wrong = {"another": gradient, "tree": gradient}
    try:
        with eager_programs(False):
            t.step(wrong, state, {"another": params, "tree": params})
    except Exception:  # whatever refuses it
        return
    raise Broken("a tree with each leaf twice was taken with a state for each leaf once")


@contract("array hyperparameters", "may be traced arrays, as in a sweep or a schedule")
def _hyperparameters_are_traced(t: Trial) -> None:
    builder, arguments = _declared(t.tx)
    arrays = {
        name: jnp.float32(value)
        for name, value in arguments.items()
        if (allowed := hyperparameter_range(builder.hints.get(name))) is not None
        and not allowed.integer
        and type(value) in (int, float)
    }
    if not arrays:
        raise DoesNotApply("no argument has a range of gradtx.checks, or none is a number")

    @jax.jit
    def first(arrays: Any, gradients: Any, params: Any) -> Any:
        tx = replace(t.tx, arrays)
        return Trial(tx, params).step(gradients, tx.init(params), params)[0]

    got = first(arrays, t.gradient, t.params)
    _require_same("arrays and numbers", values_differ(got, t.eager_run[0][0], 1e-3, 1e-5))


@contract("configuration", "to_config and from_config, through JSON, make an equal one")
def _configurations_are_read_back(t: Trial) -> None:
    _declared(t.tx)
    config = json.loads(json.dumps(to_config(t.tx), allow_nan=False))
    back = from_config(config, custom_objects=_objects(t.tx))
    if back != t.tx:
        raise Broken(f"{back!r:.100} was read back from the configuration")


def _declared(tx: GradientTransformation) -> tuple[Any, dict[str, Any]]:
    if tx.declaration is None:
        raise DoesNotApply("it was not built by a function under @transformation")
    return tx.declaration.builder, dict(tx.declaration.arguments)


def _objects(tx: GradientTransformation) -> dict[str, Any]:
    """The objects that a configuration names: builders within, functions among the arguments."""
    objects: dict[str, Any] = {}
    for each in (tx, *(child for _, child in tx.children)):
        if each.declaration is None:
            continue
        builder = each.declaration.builder
        objects[builder.name] = builder.public
        for value in jax.tree.leaves(dict(each.declaration.arguments)):
            if callable(value) and hasattr(value, "__name__"):
                objects[value.__name__] = value
        if each is not tx:
            objects |= _objects(each)
    return objects
