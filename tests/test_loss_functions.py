"""What evaluates the loss gets a function of all parameters, wherever it stands."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.core.pair import GradientTransformation, GradientTransformationExtraArgs
from gradtx.declarations.declaration import Declaration
from gradtx.estimators.estimator import Estimator
from tests.catalogue import CATALOGUE

PARAMS = {
    "a": np.array([0.5, -1.0, 2.0], np.float32),
    "b": np.array([1.0, -2.0], np.float32),
    "w": np.arange(6, dtype=np.float32).reshape(3, 2) - 2.5,
}


def loss(p):
    """All leaves meet in a product, so that none can be left out."""
    total = jnp.sum(p["w"].astype(jnp.float32) @ p["b"]) - jnp.sum(p["a"]) + 1
    return total**2 + sum(jnp.sum(jnp.square(x.astype(jnp.float32) - 0.5)) for x in p.values())


ZOOM = gradtx.scale_by_zoom_linesearch(4)
OPTIMIZERS = {
    "backtracking": lambda: gradtx.chain(
        gradtx.sgd(0.5), gradtx.scale_by_backtracking_linesearch(20, store_grad=True)
    ),
    "extragradient": lambda: gradtx.extragradient(gradtx.sgd(0.01)),
    "lbfgs": lambda: gradtx.lbfgs(memory_size=2, linesearch=ZOOM),
    "lbfgsb": lambda: gradtx.lbfgsb(lower=-3.0, upper=3.0, memory_size=2),
    "bfgs": lambda: gradtx.bfgs(linesearch=ZOOM),
    "ssbroyden": lambda: gradtx.ssbroyden(linesearch=ZOOM),
    "zoom": lambda: gradtx.chain(gradtx.sgd(0.1), ZOOM),
    "sophia": lambda: gradtx.sophia(0.1),
    "adahessian": lambda: gradtx.adahessian(0.1),
}

# What takes the steps of what it is put around, in the first step, without rounding.
SAME_STEPS = {
    *("apply_if_finite", "compensated", "dense_rows", "dynamic_loss_scale", "flatten", "guard"),
    *("local_sgd", "lookahead", "master_weights", "offload", "share_value", "skip_if_none"),
    *("sparse_loco", "split_leaves", "split_real_and_imaginary", "static", "stochastic_rounding"),
}


def with_inner(value, tx):
    """An argument of a wrapper with `tx` in place of the last transformation in it."""
    if isinstance(value, GradientTransformation):
        return tx
    if isinstance(value, dict):
        return {key: with_inner(part, tx) for key, part in value.items()}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return value[0], with_inner(value[1], tx)
    if isinstance(value, tuple) and value:
        return *value[:-1], with_inner(value[-1], tx)
    return value


def wrappers():
    """Each transformation of the catalogue that is built around another: a function of it."""
    found = {}
    for name, entry in CATALOGUE.items():
        tx = entry.made
        measures = {"lbfgs", "bfgs", "ssbroyden", "monitor", "sizes_and_directions"}
        if tx.children and name not in measures:
            found[name] = functools.partial(around, tx.declaration)
    found["store"] = lambda tx: gradtx.store(tx, "bf16", min_size=1, exempt=())
    found["transfer"] = lambda tx: gradtx.transfer(tx, NARROW, PARAMS, rule="sgd")
    return found


NARROW = {"a": np.zeros(3), "b": np.zeros(1), "w": np.zeros((3, 1))}


def around(declaration, tx):
    arguments = dict(declaration.arguments)
    name = next(n for n, x in arguments.items() if with_inner(x, tx) is not x)
    arguments[name] = with_inner(arguments[name], tx)
    declared = Declaration(declaration.builder, arguments)
    return GradientTransformationExtraArgs.declared(declared)


WRAPPERS = wrappers()


def by_hand(tx, params, steps=1):
    state = tx.init(params)
    for _ in range(steps):
        value, grads = jax.value_and_grad(loss)(params)
        extra = {"value": value, "grad": grads, "value_fn": loss}
        if "dynamic_loss_scale" in repr(tx):
            grads = gradtx.tree.scale(gradtx.loss_scale(state), grads)
        updates, state = tx.update(grads, state, params, **extra)
        params = gradtx.apply_updates(params, updates)
    return params


def by_minimize(tx, params, steps=1):
    state = tx.init(params)
    for _ in range(steps):
        params, state, _ = gradtx.minimize(loss, tx, params, state)
    return params


@pytest.mark.slow
def test_all_that_evaluates_the_loss_is_tried():
    """The optimizers above are those of the catalogue that call it."""
    calls = []

    def counted(p):
        calls.append(None)
        return loss(p)

    def evaluates(tx):
        calls.clear()
        params = jax.tree.map(jnp.asarray, PARAMS)
        state = jax.eval_shape(tx.init, params)
        extra = {"value": jnp.float32(1), "value_fn": counted}
        run = functools.partial(tx.update, **extra)
        try:
            jax.eval_shape(lambda g, s, p: run(g, s, p, grad=g), params, state, params)
        except ValueError:  # of gradients of single examples
            return False
        return bool(calls)

    found = {name for name, entry in CATALOGUE.items() if evaluates(entry.make())}
    parts = {"hutchinson_estimator_diag_hessian", "scale_by_sophia", "scale_by_adahessian"}
    searches = {"scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"}
    assert found == set(OPTIMIZERS) - {"backtracking", "zoom"} | parts | searches


PARTS = {
    "masked": lambda tx: gradtx.masked(tx, "b"),
    "partition": lambda tx: gradtx.partition(
        {"one": tx, "none": gradtx.set_to_zero()}, [("b", "one"), ("*", "none")]
    ),
    "selective_transform": lambda tx: gradtx.selective_transform(tx, freeze_mask=["a", "w"]),
    "in a chain": lambda tx: gradtx.chain(
        gradtx.partition({"one": tx, "none": gradtx.set_to_zero()}, [("b", "one"), ("*", "none")])
    ),
    "flattened": lambda tx: gradtx.masked(gradtx.flatten(tx), "b"),
    "a part of a split leaf": lambda tx: gradtx.split_leaves(
        gradtx.masked(tx, "b"), {"w": gradtx.SplitLeaf(1, {"x": 1, "y": 1})}
    ),
    "no gradient": None,
}


# Hutchinson's estimate draws signs for each leaf that it sees, by their number.
OTHER_SIGNS = {"a part of a split leaf", "no gradient"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "compiled"),
    [*((name, False) for name in OPTIMIZERS), ("backtracking", True), ("extragradient", True)],
)
def test_a_part_sees_the_loss_of_all(optimizer, compiled):
    """The step of a part is that of a loss of this part alone."""
    tx = OPTIMIZERS[optimizer]()
    value, grads = jax.value_and_grad(loss)(PARAMS)

    def step(tx, grads, params, value_fn):
        extra = {"value": value, "grad": grads, "value_fn": value_fn}
        return tx.update(grads, tx.init(params), params, **extra)[0]

    alone = step(tx, grads["b"], PARAMS["b"], lambda b: loss({**PARAMS, "b": b}))
    assert np.any(alone)
    for name, part in PARTS.items():
        chosen, given = (tx, {**grads, "a": None, "w": None}) if part is None else (part(tx), grads)
        run = functools.partial(step, chosen, value_fn=loss)
        moved = (jax.jit(run) if compiled else run)(given, PARAMS)["b"]
        if optimizer in ("sophia", "adahessian") and name in OTHER_SIGNS:
            assert np.any(moved)
        else:
            np.testing.assert_allclose(moved, alone, rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_named_arguments_and_gradients_of_all():
    """A function with further arguments, and one that returns gradients."""

    def scaled(p, factor):
        return factor * loss(p)

    search = gradtx.chain(gradtx.sgd(0.5), gradtx.scale_by_backtracking_linesearch(6))
    tx, state = gradtx.masked(search, "b"), None
    value, grads = jax.value_and_grad(loss)(PARAMS)
    state, extra = tx.init(PARAMS), {"value": value, "grad": grads}
    plain = tx.update(grads, state, PARAMS, value_fn=loss, **extra)[0]
    given = tx.update(grads, state, PARAMS, value_fn=scaled, factor=1.0, **extra)[0]
    np.testing.assert_array_equal(plain["b"], given["b"])

    game = gradtx.masked(gradtx.extragradient(gradtx.sgd(0.01)), "b")
    second = game.update(grads, game.init(PARAMS), PARAMS, grad_fn=jax.grad(loss))[0]
    same = game.update(grads, game.init(PARAMS), PARAMS, value_fn=loss)[0]
    np.testing.assert_allclose(second["b"], same["b"], rtol=1e-6)

    climb = gradtx.chain(gradtx.normalize(), gradtx.sgd(0.1))
    sam = gradtx.masked(gradtx.sam(gradtx.sgd(0.01), climb, opaque_mode=True), "b")
    moved = sam.update(grads, sam.init(PARAMS), PARAMS, grad_fn=lambda p, i: jax.grad(loss)(p))[0]
    ahead = PARAMS["b"] + 0.1 * grads["b"] / jnp.linalg.norm(grads["b"])
    np.testing.assert_allclose(
        moved["b"], -0.01 * jax.grad(loss)({**PARAMS, "b": ahead})["b"], rtol=1e-5
    )


# The names of what refuses: a rule that needs whole leaves, or what is around it.
REFUSED = (
    r"^exact_rows: |per-example gradients|^transfer: |"
    r"^\w+ looks at whole leaves and cannot run on the Rows at 'w'|"
    r"^\w+: the gradient at 'w' is Rows|^proximal: \w+ does not multiply"
)
# One of each kind: the others are made of the same links.
KINDS = ("backtracking", "extragradient", "lbfgs", "lbfgsb", "bfgs", "sophia")


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", KINDS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_each_wrapper_around_what_evaluates_the_loss(wrapper, optimizer):
    """By hand and by `minimize` the steps are the same, and `solve` has a program for them."""

    def solved():
        return jax.eval_shape(lambda p: gradtx.solve(loss, p, tx, max_steps=3), PARAMS)

    tx = None
    try:
        tx = WRAPPERS[wrapper](OPTIMIZERS[optimizer]())
        taken = by_minimize(tx, PARAMS, 2)
    except (TypeError, ValueError) as error:
        assert re.search(REFUSED, str(error))
        if tx is not None:
            with pytest.raises((TypeError, ValueError), match=REFUSED):
                solved()
        return
    if tx.facet(Estimator) is not None:  # by hand there are no losses to estimate from
        with pytest.raises(ValueError, match="the gradients of the optimizer are estimated"):
            solved()
        return
    for a, b in zip(*map(jax.tree.leaves, (taken, by_hand(tx, PARAMS, 2))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    solved()
    if wrapper in SAME_STEPS:
        plain = by_minimize(OPTIMIZERS[optimizer](), PARAMS)
        own = by_minimize(tx, PARAMS)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), own, plain)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["backtracking", "extragradient", "lbfgs", "lbfgsb", "bfgs"])
@pytest.mark.parametrize("wrapper", ["compensated", "master_weights", "stochastic_rounding"])
def test_parameters_in_bfloat16(wrapper, optimizer):
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), PARAMS)
    tx = WRAPPERS[wrapper](OPTIMIZERS[optimizer]())
    moved = by_minimize(tx, params, 3)
    assert loss(moved) < 0.9 * loss(params)
    jax.eval_shape(lambda p: gradtx.solve(loss, p, tx, max_steps=3), params)


@pytest.mark.slow
def test_a_search_starts_where_its_parameters_are():
    """Not where the gradient was taken: `decay_first` has moved them, and `sam` moves them back."""
    search = gradtx.chain(gradtx.sgd(0.5), gradtx.scale_by_backtracking_linesearch(20))
    climb = gradtx.chain(gradtx.normalize(), gradtx.sgd(0.5))

    def valley(x):
        return jnp.sum(jnp.square(x - jnp.array([1.0, -1.0])) * jnp.array([1.0, 4.0]))

    x = jnp.array([3.0, 2.0])
    tx = gradtx.sam(search, climb)
    state = tx.init(x)
    for _ in range(2):
        value, grad = jax.value_and_grad(valley)(x)
        updates, state = tx.update(grad, state, x, value=value, grad=grad, value_fn=valley)
        x = x + updates
    info = state.opt_state[1].info
    assert info.decrease_error == 0
    assert valley(x) < valley(jnp.array([3.0, 2.0]))
    ours = gradtx.chain(gradtx.sgd(0.5), gradtx.scale_by_backtracking_linesearch(20))
    start = jnp.array([3.0, 2.0])
    at = start + 0.5 * jax.grad(valley)(start) / jnp.linalg.norm(jax.grad(valley)(start))
    value, grad = jax.value_and_grad(valley)(start)
    step, _ = ours.update(
        jax.grad(valley)(at), ours.init(start), start, value=value, grad=grad, value_fn=valley
    )
    np.testing.assert_allclose(x, start + step, rtol=1e-6)


@pytest.mark.slow
def test_solve_takes_a_value_only_where_the_search_ended():
    """What changes the step of a search afterwards has the search's state, and not its point."""
    search = gradtx.chain(gradtx.sgd(0.3), ZOOM)

    def valley(x):
        return jnp.sum((x - 1) ** 2 * (x + 2) ** 2)

    for tx in (gradtx.cautious(search), gradtx.decay_first(search, 0.1)):
        found = gradtx.solve(valley, jnp.full(2, 3.0), tx, max_steps=2)
        np.testing.assert_allclose(found.value, valley(found.params), rtol=1e-5)


@pytest.mark.slow
def test_a_loss_of_one_device_is_not_that_of_all():
    """Devices that share a value would each search along a loss of their own."""
    tx = gradtx.share_value(OPTIMIZERS["backtracking"](), "data")
    x = jnp.ones(2)

    def step(target):
        def valley(x):
            return jnp.sum((x - target) ** 2)

        value, grad = jax.value_and_grad(valley)(x)
        return tx.update(grad, tx.init(x), x, value=value, grad=grad, value_fn=valley)[0]

    with pytest.raises(ValueError, match="share_value: what evaluates the loss"):
        jax.vmap(step, axis_name="data")(jnp.arange(2.0))
    assert np.any(step(3.0))
