"""GaLore against its paper and Optax."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle
from tests.optimizers.papers import adam

LEFT = {
    "std": lambda rows, columns: rows < columns,
    "reverse_std": lambda rows, columns: rows >= columns,
    "left": lambda rows, columns: True,
    "right": lambda rows, columns: False,
    "full": lambda rows, columns: True,
}


@pytest.mark.quick(4)
@pytest.mark.paper("galore")
@pytest.mark.parametrize("kind", LEFT)
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (4,)])
def test_galore(shape, kind):
    """Zhao et al. 2024, algorithm 2: Adam on the projected gradient, a new projector every 7th.

    There the shorter side is projected, which is "std" in the authors' code, and both with "full".
    A vector is no matrix: Adam trains it as it is."""
    matrix = len(shape) == 2
    left = matrix and LEFT[kind](*shape)
    right = matrix and (kind == "full" or not left)

    def down(g, s):
        g = s["p"].T @ g if left else g
        return g @ s["q"] if right else g

    def up(u, s):
        u = s["p"] @ u if left else u
        u = u @ s["q"].T if right else u
        return 0.5 * u if matrix else u

    def update(g, s, t, p):
        if matrix and (t - 1) % 7 == 0:
            u, _, vh = np.linalg.svd(g, full_matrices=False)
            s["p"], s["q"] = u[:, :2], vh[:2].T
        return -0.05 * (up(adam(down(g, s), s, t, 0.8, 0.7, 0.1), s) + 0.3 * p)

    base = gradtx.scale_by_adam(0.8, 0.7, 0.1)
    given = {} if kind == "std" else {"proj_type": kind}
    tx = gradtx.galore(0.05, 2, 7, 0.5, base, 0.3, **given)
    oracle.check(tx, update, atol=1e-7, shape=shape, dtype=np.float64)


def test_a_matrix_keeps_what_it_keeps_in_the_authors_code():
    """12 x 5 at rank 3: their gradient in the subspace is 12 x 3."""
    shapes = {
        kind: gradtx.scale_by_galore(3, proj_type=kind).init(jnp.zeros((12, 5))) for kind in LEFT
    }
    low = {kind: state.base_optimizer_state.mu.shape for kind, state in shapes.items()}
    one = {"std": (12, 3), "reverse_std": (3, 5), "left": (3, 5), "right": (12, 3)}
    assert low == {**one, "full": (3, 3)}
    assert shapes["full"].projector.shape == (12 + 5, 3)


def test_what_was_written_before_the_sides_had_names_goes_on():
    """Configurations and pickles without the argument projected the longer side, as Optax does."""
    p = jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32)
    then = gradtx.galore(0.1, 2, proj_type="reverse_std")
    _, state = then.update(p, then.init(p), p)
    config = gradtx.to_config(then)
    assert config["arguments"].pop("proj_type") == "reverse_std"
    remake, (kind, builder, arguments) = then.__reduce__()
    lacking = {name: x for name, x in arguments.items() if name != "proj_type"}
    for now in (gradtx.from_config(config), remake(kind, builder, lacking)):
        assert now == then
        chex.assert_trees_all_equal(now.update(p, state, p), then.update(p, state, p))
    with pytest.raises(ValueError, match="proj_type='reverse_std'"):
        gradtx.galore(0.1, 2).update(p, state, p)
    with pytest.raises(ValueError, match="proj_type must be one of"):
        gradtx.galore(0.1, proj_type="both")


def numbers(kind):
    return {"a": kind((0, 2), 1), "b": None, "c": kind(1, 0)}


@pytest.mark.slow
def test_like_optax():
    """Several axes, a leaf that is not projected, another base optimizer."""
    shapes = {"a": (2, 3, 4), "b": (3,), "c": (4, 6)}
    rng = np.random.default_rng(0)
    gs = {n: jnp.asarray(rng.normal(size=(100, *s)), jnp.float32) for n, s in shapes.items()}
    p = {n: jnp.zeros(s) for n, s in shapes.items()}

    def run(tx):
        def step(carry, g):
            p, state = carry
            updates, state = tx.update(g, state, p)
            return (jax.tree.map(jnp.add, p, updates), state), None

        return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), gs)[0])(p)

    ours, state = run(
        gradtx.galore(
            0.01,
            2,
            10,
            base_optimizer=gradtx.trace(0.9),
            weight_dimension_numbers=numbers(gradtx.GaLoreDimensionNumbers),
            proj_type="reverse_std",
        )
    )
    theirs, state_optax = run(
        optax.contrib.galore(
            0.01,
            2,
            10,
            base_optimizer=optax.trace(0.9),
            weight_dimension_numbers=numbers(optax.contrib.GaLoreDimensionNumbers),
        )
    )
    for name in shapes:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5)
    shape_of = functools.partial(jax.tree.map, jnp.shape)
    assert jax.tree.leaves(shape_of(state)) == jax.tree.leaves(shape_of(state_optax))


def test_state_is_of_low_rank():
    p = jnp.zeros((64, 32))
    state = gradtx.scale_by_galore(rank=4).init(p)
    entries = sum(x.size for x in jax.tree.leaves(state) if x.ndim)
    assert entries == 32 * 4 + 2 * 64 * 4


@pytest.mark.parametrize("kind", ["std", "full"])
def test_full_rank_loses_nothing(kind):
    """With the rank of the matrix and a base that does nothing, the gradient comes back."""
    g = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)) + 1j, jnp.complex64)
    tx = gradtx.scale_by_galore(3, base_optimizer=gradtx.identity(), proj_type=kind)
    np.testing.assert_allclose(tx.update(g, tx.init(g))[0], g, rtol=1e-5, atol=1e-5)


def test_every_axis_must_be_named():
    tx = gradtx.scale_by_galore(weight_dimension_numbers=gradtx.GaLoreDimensionNumbers())
    with pytest.raises(ValueError, match="all 3 axes"):
        tx.init(jnp.zeros((2, 3, 4)))


def test_one_spec_for_all_that_can_be_matrices():
    tx = gradtx.scale_by_galore(1, weight_dimension_numbers=gradtx.GaLoreDimensionNumbers())
    state = tx.init({"b": jnp.zeros(3), "w": jnp.zeros((4, 2))})
    assert state.projector["b"].shape == (0, 0)
    assert state.projector["w"].shape == (2, 1)


def test_leaves_are_matrices_by_their_roles():
    params = {"embedding": jnp.ones((5, 3)), "kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}
    state = gradtx.scale_by_galore(2, weight_dimension_numbers=gradtx.ByRole()).init(params)
    assert jax.tree.map(jnp.shape, state.projector) == {
        "embedding": (0, 0),
        "kernel": (3, 2),
        "bias": (0, 0),
    }


def test_several_matrices_in_one_leaf_are_refused_by_its_path():
    """A projector is that of one matrix; of several, the first alone would be projected."""
    for numbers, shape in (
        (gradtx.MuonDimensionNumbers(0, 1, heads=(1, 2)), (4, 6)),
        (gradtx.ByRole(stacked=(("kernel", 1),)), (2, 4, 6)),
    ):
        tx = gradtx.scale_by_galore(weight_dimension_numbers=numbers)
        with pytest.raises(ValueError, match=r"at 'kernel', .* as one matrix"):
            tx.init({"kernel": jnp.ones(shape)})
