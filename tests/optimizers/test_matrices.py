"""Contracts of every optimizer of matrices: within wrappers, and what its steps leave out."""

# Sees mutants of: staggered: bool.

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.checks import marks
from gradtx.types import DIMENSIONS
from tests.catalogue import CATALOGUE, matrix_or_not, optimizers
from tests.programs import equations
from tests.quick import quick

WINDOWS = 3


def takes(name, kind):
    """Whether an argument of the builder is of this kind."""
    return any(kind in marks(hint) for hint in getattr(gradtx, name).builder.hints.values())


NAMES = [name for name in optimizers() if takes(name, DIMENSIONS)]


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4)])
@pytest.mark.parametrize(
    "name",
    [
        "orthogonalize",
        "scale_by_adamuon",
        "scale_by_dion",
        "scale_by_muon",
        "scale_by_muon2",
        "scale_by_normuon",
        "scale_by_polargrad",
        "scale_by_shape",
    ],
)
def test_which_axes_are_rows_is_not_guessed(name, shape):
    tx, p = getattr(gradtx, name)(), {"w": jnp.ones(shape)}
    with pytest.raises(ValueError, match=f"{name}: at 'w', of shape .*: which axes are rows"):
        tx.update(p, tx.init(p), p)


def draw(seed, *steps):
    """Two matrices of one shape, one of another, and a vector."""
    rng = np.random.default_rng(seed)
    shapes = {"a": (4, 3), "b": (4, 3), "c": (3, 4), "bias": (3,)}
    return {n: jnp.asarray(rng.normal(size=(*steps, *x)), jnp.float32) for n, x in shapes.items()}


def path_of(tx, p, gs, change=lambda u, g: u):
    """The parameters after each compiled step on stacked gradients; `change` is of each update."""
    update, state, path = jax.jit(tx.update), tx.init(p), []
    for t in range(len(gs[min(gs)])):
        g = {n: gs[n][t] for n in p}
        u, state = update(g, state, p)
        p = {n: p[n] + change(u[n], g[n]) for n in p}
        path.append(p)
    return path


def masked(u, g):
    """Liang et al. 2024, algorithm 1, for an update that goes down."""
    phi = np.asarray(u) * np.asarray(g) < 0
    return phi * u / max(phi.mean(), 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(NAMES, "galore", "muon"))
def test_accumulated_in_a_partition_and_cautious(name):
    """As by the definitions of the three, from the optimizer alone on the matrices alone: the mean
    of a window, the group's own leaves, and the entries that go against the gradient."""
    tx, others = CATALOGUE[name].make(), gradtx.adam(0.1)
    groups = {"a": gradtx.cautious(tx), "b": others}
    wrapped = gradtx.accumulate(gradtx.partition(groups, matrix_or_not), 2)
    p, micro = draw(0), draw(1, 2 * WINDOWS)
    found = path_of(wrapped, p, micro)
    means = {n: x.reshape(WINDOWS, 2, *x.shape[1:]).mean(1) for n, x in micro.items()}
    bias, matrices = {"bias": p.pop("bias")}, p
    want = zip(path_of(tx, matrices, means, masked), path_of(others, bias, means), strict=True)
    for t, (of_matrices, of_bias) in enumerate(want):
        for n, x in (of_matrices | of_bias).items():
            np.testing.assert_allclose(found[2 * t + 1][n], x, rtol=2e-5, atol=2e-6, err_msg=n)


DECOMPOSITIONS = {"eigh", "qr", "svd", "triangular_solve", "while"}
FREQUENCIES = {"precondition_frequency", "update_proj_gap", "preconditioner_update_probability"}
AMORTIZED = [
    name
    for name, entry in CATALOGUE.items()
    if FREQUENCIES & {*getattr(gradtx, name).builder.hints} and "apollo" not in name
]


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", AMORTIZED)
def test_decompositions_are_branches(name):
    """A step at which none is due computes none: they are nowhere but in conditions."""
    tx, p = CATALOGUE[name].make(), draw(0)
    jaxpr = jax.make_jaxpr(tx.update)(p, jax.eval_shape(tx.init, p), p).jaxpr
    of_products = tx.declaration.arguments.get("basis") == "products"
    decomposed = DECOMPOSITIONS & {*equations(jaxpr)}
    if of_products:
        decomposed -= {"while"}  # of norms
    assert bool(decomposed) != of_products
    assert not DECOMPOSITIONS & {*equations(jaxpr, without={"cond"})}


# What is new when it is due, and when that is for the first shape, and for one that comes after it.
STAGGERED = {
    "scale_by_conda": ("basis", [1, 6, 11], [1, 5, 10]),
    "scale_by_fira": ("projector", [1, 6, 11], [1, 5, 10]),
    "scale_by_galore": ("projector", [1, 6, 11], [1, 5, 10]),
    "scale_by_kl_shampoo": ("left_basis", [1, 6, 11], [1, 5, 10]),
    "scale_by_kl_soap": ("left_basis", [1, 6, 11], [1, 5, 10]),
    "scale_by_shampoo": ("left_root", [5, 10], [4, 9]),
    "scale_by_soap": ("left_basis", [1, 6, 11], [1, 5, 10]),
    "scale_by_soap_muon": ("left_basis", [1, 6, 11], [1, 5, 10]),
    "scale_by_splus": ("left_basis", [1, 5, 10], [1, 4, 9]),
}


def test_every_optimizer_that_may_be_staggered_is_here():
    public = {n for n in CATALOGUE if "staggered" in getattr(gradtx, n).builder.hints}
    assert public == {*STAGGERED} | {n.removeprefix("scale_by_") for n in STAGGERED}


@pytest.mark.slow
@pytest.mark.parametrize("whole", quick([False, True], False), ids=["rule", "optimizer"])
@pytest.mark.parametrize("name", quick(STAGGERED, "scale_by_soap"))
def test_shapes_take_turns(name, whole):
    """Each has its decompositions every so many steps, the second shape a step before the first."""
    slot, *want = STAGGERED[name]
    every = min(FREQUENCIES & {*getattr(gradtx, name).builder.hints})
    given = {every: 5, "staggered": True}
    if whole:
        tx = getattr(gradtx, name.removeprefix("scale_by_"))(0.1, **given)
    else:
        tx = getattr(gradtx, name)(**given)
    p, gs = draw(0), draw(1, 11)
    del p["bias"], p["b"]

    def step(state, g):
        state = tx.update(g, state, p)[1]
        return state, gradtx.get_slot(state, slot)

    start = tx.init(p)
    _, seen = jax.jit(lambda gs: jax.lax.scan(step, start, gs))({n: gs[n] for n in p})
    first = gradtx.get_slot(start, slot)
    for n, steps in zip("ac", want, strict=True):
        path = np.concatenate([first[n][None], seen[n]])
        assert [t for t in range(1, 12) if np.any(path[t] != path[t - 1])] == steps
