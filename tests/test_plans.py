"""A plan, which is for a compiler, gives the numbers of the formula, which is the paper's."""

# Sees mutants of: step, planned(.

import ast
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.numerics.compiler_hints import formulas
from tests.catalogue import CATALOGUE
from tests.quick import quick

ROOT = pathlib.Path(gradtx.__file__).parent
STEPS = 4


def planned():
    """The names of all formulas that have a plan, as `formulas` gives them."""

    def within(node, outer):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "planned":
            yield ".".join([*outer, node.args[0].id])
        if isinstance(node, ast.FunctionDef):
            outer = [*outer, f"{node.name}.<locals>"]
        for child in ast.iter_child_nodes(node):
            yield from within(child, outer)

    found = set()
    for path in ROOT.rglob("*.py"):
        if "planned(" in (text := path.read_text()):
            module = ".".join(("gradtx", *path.relative_to(ROOT).with_suffix("").parts))
            found |= set(within(ast.parse(text), [module]))
    return found


PLANNED = planned()
MODULES = {name.partition(".<locals>")[0].rpartition(".")[0] for name in PLANNED}
HOME = {name: getattr(gradtx, name).builder.function.__module__ for name in CATALOGUE}
# The entries of the catalogue whose file has a plan, and arguments that the catalogue leaves out.
CASES = {name: entry.make for name, entry in CATALOGUE.items() if HOME[name] in MODULES} | {
    "adadelta, epsilon outside": lambda: gradtx.adadelta(0.1, eps_in_sqrt=False),
    "schedule_free, b1 from a schedule": lambda: gradtx.schedule_free(
        gradtx.sgd(0.1), 0.1, gradtx.linear_schedule(0.5, 0.9, 5)
    ),
    # At small rates the step is the rate, whatever the model says.
    "momo, large rate": lambda: gradtx.momo(100.0),
    "momo_adam, large rate": lambda: gradtx.momo_adam(100.0),
    "lion, refined": lambda: gradtx.scale_by_lion(mode="refined"),
}


# One of each file: mostly the link that has the plan, which the others of the file are made of.
QUICK = {HOME[name]: name for name in reversed(CASES) if name in HOME}.values()


def leaves(name, seed):
    """Leaves of all ranks; one is complex, for what takes complex numbers."""
    rng = np.random.default_rng(seed)
    shapes = {"": (), "b": (5,), "w": (4, 3), "stack": (2, 3, 4), "z": (3, 2)}
    found = {key: jnp.asarray(rng.normal(size=shape)) for key, shape in shapes.items()}
    if CATALOGUE[name.partition(",")[0]].complex:
        found["z"] += 1j * rng.normal(size=shapes["z"])
    return found


def made(name):
    """The transformation, with hyperparameters that are neither their defaults nor 0."""
    tx = CASES[name]()
    given = gradtx.hyperparams(tx)
    tx = gradtx.replace(tx, {k: 0.9 * v or 0.05 for k, v in given.items() if isinstance(v, float)})
    return gradtx.with_extra_args_support(tx)


def steps(name):
    """A function without arguments, not traced yet: the updates and the states of some steps."""
    tx = made(name)

    def loss(p):
        return sum(jnp.sum(jnp.abs(x) ** 2) for x in jax.tree.leaves(p))

    def step(carry, g):
        p, state = carry
        u, state = tx.update(g, state, p, value=loss(p), value_fn=loss)
        return (gradtx.apply_updates(p, u), state), (u, state)

    p = leaves(name, 0)
    gs = jax.tree.map(lambda *x: jnp.stack(x), *(leaves(name, 1 + t) for t in range(STEPS)))
    return lambda: jax.lax.scan(step, (p, tx.init(p)), gs)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(CASES, *QUICK))
def test_a_plan_is_its_formula(name):
    with jax.enable_x64(True):
        by_plan = jax.jit(steps(name))()
        with formulas() as read:
            by_formula = jax.jit(steps(name))()
    assert read
    for got, want in zip(jax.tree.leaves(by_plan), jax.tree.leaves(by_formula), strict=True):
        largest = np.max(np.abs(want), initial=0.0)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14 * largest)


@pytest.mark.slow
def test_every_plan_is_tried():
    with jax.enable_x64(True), formulas() as read:
        for name in CASES:
            jax.eval_shape(steps(name))
    assert read == PLANNED
