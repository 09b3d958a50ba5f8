"""What a transformation can do and needs, whatever is around it: honoured, or refused by name.

Every transformation of the catalogue that holds others gets one that has something in its record in
the place of each of them.
"""

import dataclasses
import inspect
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from gradtx.backward.layerwise import norm_for
from gradtx.composition.apply import take_step
from gradtx.composition.gate import Decision, gate
from gradtx.composition.nearest import nearest_in
from gradtx.core.pair import GradientTransformation, reduced_axes
from gradtx.core.traits import not_handed_on
from gradtx.declarations.declaration import Declaration
from gradtx.inspection.description import communications, multipliers_in, roles_in
from gradtx.names.namespace import homes
from gradtx.sparse import take
from gradtx.storage import is_encoded
from gradtx.training.minimize import before_gradients
from gradtx.training.rounding import rounded_with
from tests.catalogue import CATALOGUE, FACTORS
from tests.quick import quick

RNG = np.random.default_rng(0)
SHAPES = {"w": (4, 6), "v": (4, 6), "b": (4,), **FACTORS}
PARAMS = {k: jnp.asarray(RNG.normal(size=n), jnp.float32) for k, n in SHAPES.items()}
GRADS = {k: jnp.asarray(RNG.normal(size=n), jnp.float32) for k, n in SHAPES.items()}
RATE = gradtx.piecewise_constant_schedule(1.0)


def put_in(value, inner, at):
    """An argument with `inner` in place of the transformation that is the next of `at`."""
    if isinstance(value, GradientTransformation):
        return inner if next(at) else value
    if isinstance(value, dict):
        return {k: put_in(v, inner, at) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(put_in(v, inner, at) for v in value)
    return value


def in_catalogue():
    """``inner -> transformation`` for each place in each transformation that holds others."""
    cases = {}
    for name, entry in CATALOGUE.items():
        tx = gradtx.with_extra_args_support(entry.made)
        for i, (place, _) in enumerate(tx.children):

            def around(inner, tx=tx, i=i):
                at = (j == i for j in itertools.count())
                declared = tx.declaration
                arguments = {n: put_in(v, inner, at) for n, v in declared.arguments.items()}
                return type(tx).declared(Declaration(declared.builder, arguments))

            cases[f"{name}-{place}"] = around
    return cases


def without_extra(inner):
    """A pair made by hand that has the record of another, and takes no extra arguments."""

    def update(updates, state, params=None):
        return inner.update(updates, state, params)

    facets = [each for each in inner.traits.facets if not getattr(each, "runs_steps", False)]
    before = inner.before_gradients
    return GradientTransformation(
        inner.init, update, before_gradients=before, facets=facets, inner=(inner,)
    )


def by_a_schedule(inner):
    def factory(rate):
        return gradtx.chain(inner, gradtx.scale(rate))

    return gradtx.inject_hyperparams(factory)(rate=RATE)


@gradtx.optimizer
def named(inner):
    return gradtx.accumulate(inner, 1)


def placed(inner):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    params = jax.device_put(PARAMS, NamedSharding(mesh, PartitionSpec()))
    sharding = gradtx.state_sharding(gradtx.adam(0.1), params, zero="data", min_size=1)
    return sharding.placed(inner)


FUNCTIONS = {
    "inject_hyperparams": lambda tx: gradtx.inject_hyperparams(lambda rate: tx)(rate=1.0),
    "inject_hyperparams of a schedule": by_a_schedule,
    "inject_stateful_hyperparams": lambda tx: gradtx.inject_stateful_hyperparams(lambda r: tx)(1.0),
    "MultiSteps": lambda tx: gradtx.with_extra_args_support(gradtx.MultiSteps(tx, 1)),
    "multi_transform": lambda tx: gradtx.multi_transform({"a": tx}, "a"),
    "optimizer": named,
    "replace": lambda tx: gradtx.replace(gradtx.guard(gradtx.sgd(0.1)), inner=tx),
    "with_extra_args": lambda tx: gradtx.interop.with_extra_args(tx, weight=1.0),
    "with_extra_args_support": gradtx.with_extra_args_support,
    "with_extra_args_support by hand": lambda tx: gradtx.with_extra_args_support(without_extra(tx)),
    "rounding_key": lambda tx: rounded_with(tx, jax.random.key(0)),
    "sharding": placed,
    "another update": lambda tx: gradtx.chain(tx)._replace(update=gradtx.chain(tx).update),
}
AROUND = in_catalogue() | FUNCTIONS
FEW = (
    "accumulate-inner",
    "chain-1",
    "inject_hyperparams",
    "masked-inner",
    "partition-transforms.a",
)
FEW += ("rounding_key", "sharding", "store-inner")
everywhere = pytest.mark.parametrize("name", quick(AROUND, *FEW))


def around(name, inner):
    """The transformation around `inner`, or a skipped test where it is refused at once."""
    try:
        tx = AROUND[name](inner)
        jax.eval_shape(tx.init, PARAMS)
    except (TypeError, ValueError) as refusal:
        pytest.skip(f"refused: {refusal!s:.60}")
    return tx


def test_every_public_function_of_a_transformation_to_another_is_here():
    def is_one(function):
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return False
        takes = any("GradientT" in str(p.annotation) for p in signature.parameters.values())
        return takes and "GradientT" in str(signature.return_annotation)

    public = [n for n in homes("gradtx") if callable(getattr(gradtx, n)) and n not in CATALOGUE]
    assert {n for n in public if is_one(getattr(gradtx, n))} <= set(FUNCTIONS)


class Priority(NamedTuple):
    level: int


@not_handed_on
class Measured(NamedTuple):
    level: int


OF_THE_SAME_STEPS = ("rounding_key", "sharding", "static-inner", "store-inner", "with_extra_args")
OF_THE_SAME_STEPS += ("with_extra_args_support by hand",)


@everywhere
def test_a_facet_of_a_user_s(name):
    inner = gradtx.scale_by_lbfgsb(lower=0.0).with_facets(Priority(3), Measured(3))
    tx = around(name, inner)
    for kind in (Priority, Measured):
        assert {part.facet(kind) for part in tx.saying(kind)} == {kind(3)}
    if name in OF_THE_SAME_STEPS:
        assert tx.facet(Priority) == Priority(3)
        assert (tx.facet(Measured) is None) == (name != "static-inner")  # which is the inner one


def test_who_says_a_facet():
    urgent = gradtx.scale(0.5).with_facets(Priority(3))
    tx = gradtx.chain(urgent, gradtx.store(urgent), gradtx.scale(2.0))
    assert tx.facet(Priority) is None
    assert tx.saying(Priority) == (urgent, urgent)
    assert urgent.with_facets(Priority(4)).traits.facets[-1] == Priority(4)
    assert urgent.with_facets(Priority(4)).saying(Priority)[0].facet(Priority).level == 4
    assert gradtx.scale(0.5).saying(Priority) == ()
    updates, _ = urgent.update(2.0, urgent.init(0.0))
    assert updates == 1.0


def test_facets_of_two_classes_with_the_same_content_are_two_programs():
    def told(tx):
        return jnp.float32(tx.facet(Priority) is not None)

    tx = GradientTransformation(gradtx.scale(1.0).init, gradtx.scale(1.0).update)
    run = jax.jit(told)
    assert run(tx.with_facets(Measured(1))) == 0
    assert run(tx.with_facets(Priority(1))) == 1
    assert run(tx.with_facets(Priority({"w": 1}))) == 1  # which has no hash


class Prior(NamedTuple):
    mean: Any


@dataclasses.dataclass(frozen=True)
class Center:
    mean: Any


@pytest.mark.parametrize("kind", [Prior, Center])
def test_arrays_in_facets_are_compared_by_their_values(kind):
    """Each array has its own program; in a dataclass of a user's these are not compared."""
    tx = GradientTransformation(gradtx.scale(1.0).init, gradtx.scale(1.0).update)
    run = jax.jit(lambda tx: jnp.sum(tx.facet(kind).mean))
    one, two = (tx.with_facets(kind(np.full(3, x))) for x in (1.0, 2.0))
    assert [run(each) for each in (one, two, one)] == [3, 6, 3]
    assert run._cache_size() == 2
    assert (one == tx.with_facets(kind(np.ones(3)))) == (kind is Prior)
    assert one != two


def test_pairs_of_the_same_functions_that_say_other_things_differ():
    """As static arguments of a compiled function too."""
    tx = GradientTransformation(lambda params: (), lambda g, s, p=None, **_: (g, s))
    here, there = (tx._replace(step=lambda g, s, p, by=by, **_: (p + by, s)) for by in (1.0, 2.0))
    run = jax.jit(lambda tx, x: gradtx.apply_gradients(tx, x, x, ())[0], static_argnums=0)
    assert [float(run(each, 0.0)) for each in (here, there, here)] == [1, 2, 1]
    assert tx == tx._replace() != tx.with_facets(Priority(1)) != tx.with_facets(Measured(1))
    assert gradtx.scale(1.0) != gradtx.scale(1.0).with_facets(Priority(1))


@pytest.mark.parametrize("facet", [Priority, 3, None, ("urgent",)])
def test_what_is_no_facet_is_refused(facet):
    with pytest.raises(TypeError, match="a record of a class of its own"):
        gradtx.scale(0.5).with_facets(facet)
    with pytest.raises(TypeError, match="a record of a class of its own"):
        GradientTransformation(min, max, facets=(facet,))


@everywhere
def test_what_comes_before_gradients(name):
    tx = around(name, gradtx.exact_rows(gradtx.adam(0.1)))
    try:
        assert before_gradients(tx) is not None
    except ValueError as refusal:
        assert "exact_rows must be the outermost" in str(refusal)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(AROUND, "with_extra_args"))
def test_rows_are_exact_under_what_does_not_refuse(name):
    tx, dense = (
        around(name, t) for t in (gradtx.exact_rows(gradtx.adam(0.1), "w"), gradtx.adam(0.1))
    )
    try:
        before = before_gradients(tx)
    except ValueError:
        return
    if name.startswith("exact_rows"):
        return  # this refuses another inside when rows catch up
    got = want = PARAMS
    state, whole = tx.init(PARAMS), dense.init(PARAMS)
    for i in (0, 1, 2):
        rows = jnp.array([i, 3])
        got, state, _ = gradtx.minimize(lambda p, i: of_rows(take, p, i), tx, got, state, rows)
        want, whole, _ = gradtx.minimize(
            lambda p, i: of_rows(jnp.take, p, i, axis=0), dense, want, whole, rows
        )
    got, _ = before(got, state, lambda: got)
    # Steps that are taken at once are rounded to codes once.
    encoded = any(map(is_encoded, jax.tree.leaves(state, is_leaf=is_encoded)))
    close = {"atol": 1e-3} if encoded else {"rtol": 1e-6}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **close), got, want)


def by_hand(inner):
    return gradtx.GradientTransformation(inner.init, inner.update)


def of_a_gate(inner):
    def decide(updates, state, params, extra_args):
        return Decision(jnp.array(True), inner, state, lambda state, _: state, extra_args)

    return gate(inner.init, decide)


@pytest.mark.parametrize("hidden", [by_hand, of_a_gate, optax.chain])
def test_what_no_record_shows_is_seen_by_its_state(hidden):
    tx = hidden(gradtx.exact_rows(gradtx.adam(0.1), "w"))
    rows, state = jnp.array([1, 3]), tx.init(PARAMS)
    with pytest.raises(ValueError, match="exact_rows must be the outermost"):
        gradtx.minimize(lambda p, i: of_rows(take, p, i), tx, PARAMS, state, rows)
    grads = jax.tree.map(jnp.zeros_like, PARAMS) | {"w": gradtx.Rows(rows, GRADS["w"][:2], (4, 6))}
    with pytest.raises(ValueError, match="exact_rows must be the outermost"):
        gradtx.apply_gradients(tx, grads, PARAMS, state)


def of_rows(take, params, rows, **how):
    return jnp.sum(take(params["w"], rows, **how) ** 2)


@everywhere
def test_the_set_to_which_parameters_are_kept(name):
    tx = around(name, gradtx.scale_by_lbfgsb(lower=0.0, upper=0.5))
    nearest = nearest_in(tx)
    assert nearest is not None
    moved = nearest(PARAMS, 1.0)
    assert any(np.any(moved[k] != p) for k, p in PARAMS.items())
    for k, p in PARAMS.items():
        want = p if np.array_equal(moved[k], p) else np.clip(p, 0.0, 0.5)
        np.testing.assert_array_equal(moved[k], want)


@everywhere
def test_what_is_sent(name):
    tx = around(name, gradtx.chain(gradtx.aggregate("somewhere"), gradtx.sgd(0.1)))
    assert "somewhere" in reduced_axes(tx)
    assert any("somewhere" in each.over for each in communications(tx))


@everywhere
def test_multipliers(name):
    shapes = {"wte": jnp.zeros((9, 4)), "head": {"kernel": jnp.zeros((4, 9))}}
    inner = gradtx.transfer(gradtx.adam(0.1), shapes, shapes)
    assert multipliers_in(around(name, inner)) == multipliers_in(inner)


@pytest.mark.quick(4)
@everywhere
def test_who_takes_the_norm_of_all_gradients(name):
    tx = around(name, gradtx.clip_by_global_norm(1.0, two_pass=True))
    try:
        uses = norm_for(tx)
    except ValueError as refusal:
        assert "clip_by_global_norm" in str(refusal)
        return
    assert uses == {"update"}
    told, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS, grad_norm=jnp.float32(4.0))
    other = around(name, gradtx.scale(0.25))
    want, _ = other.update(GRADS, other.init(PARAMS), PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), told, want)


@everywhere
def test_roles(name):
    inner = gradtx.scale_by_lora_plus(4.0, pairs=("lora_a", "lora_b"))
    tx = around(name, inner)
    try:
        roles = roles_in(tx, PARAMS)
    except ValueError as refusal:  # halves of a factor are no factor
        assert "scale_by_lora_plus" in str(refusal)
        return
    assert set(roles) >= set(roles_in(inner, PARAMS)) > set()


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(AROUND, "guard-inner", "chain-1"))
def test_a_whole_step_of_one_that_is_several(name):
    tx = around(name, gradtx.sophia(0.1, update_interval=2))
    if tx.step is None:
        return  # the updates are added
    params, state = PARAMS, tx.init(PARAMS)
    value = {"value": jnp.float32(1.0), "grad": GRADS, "value_fn": quadratic}
    updates, want = tx.update(GRADS, state, params, **value)
    new, got = take_step(tx, GRADS, state, params, **value)
    chosen = gradtx.apply_updates(params, updates), want
    jax.tree.map(assert_close, (new, got), chosen)


def assert_close(x, y):
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def quadratic(params):
    return sum(jnp.sum(x**2) for x in jax.tree.leaves(params))


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(AROUND, "accumulate-inner", "rounding_key", "sharding"))
def test_the_scale_of_a_loss_multiplies_it_or_is_refused(name):
    scaled, plain = (
        around(name, tx) for tx in (gradtx.dynamic_loss_scale(gradtx.sgd(0.1)), gradtx.sgd(0.1))
    )
    want, state = PARAMS, plain.init(PARAMS)
    got, of_scaled = PARAMS, scaled.init(PARAMS)
    try:
        for _ in range(2):
            got, of_scaled, _ = gradtx.minimize(quadratic, scaled, got, of_scaled)
    except ValueError as refusal:
        assert "dynamic_loss_scale" in str(refusal)
        return
    for _ in range(2):
        want, state, _ = gradtx.minimize(quadratic, plain, want, state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)
