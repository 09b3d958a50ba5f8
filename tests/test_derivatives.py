"""Derivatives of updates, forward and reverse, against finite differences in double precision."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import gradtx
from gradtx.checks import hyperparameter_range
from tests.catalogue import CATALOGUE
from tests.test_contracts import some, takes_examples

TRANSFORMATIONS = {
    "adam": lambda: gradtx.adam(0.1),
    "adaptive_grad_clip": lambda: gradtx.adaptive_grad_clip(0.3),
    "clip_by_block_rms": lambda: gradtx.clip_by_block_rms(0.5),
    "clip_by_global_norm": lambda: gradtx.clip_by_global_norm(0.7),
    "clip_by_norm": lambda: gradtx.clip_by_norm(0.7),
    "fromage": lambda: gradtx.fromage(0.1),
    "lamb": lambda: gradtx.lamb(0.1, weight_decay=0.1),
    "lars": lambda: gradtx.lars(0.1, weight_decay=0.1, trust_coefficient=1.0),
    "mars_adamw": lambda: gradtx.mars_adamw(0.1),
    "muon": lambda: gradtx.muon(0.1),
    "normalize": lambda: gradtx.normalize(),
    "shampoo": lambda: gradtx.shampoo(0.1),
    "soap": lambda: gradtx.soap(0.1),
    "scale_by_trust_ratio": lambda: gradtx.scale_by_trust_ratio(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TRANSFORMATIONS, key=lambda n: (n != "soap", n)))
def test_three_steps(name):
    """With respect to the size of the gradients and that of the parameters."""
    rng = np.random.default_rng(0)
    p, g, weights = rng.normal(size=(3, 3, 4))
    tx = TRANSFORMATIONS[name]()

    def last(sizes):
        params = sizes[0] * p
        state = tx.init(params)
        for i in range(3):
            updates, state = tx.update(sizes[1] * g * (i + 1) + params, state, params)
            params = params + updates
        return jnp.sum(weights * jnp.sin(params))

    with jax.enable_x64():
        at, step = jnp.array([1.0, 1.0]), 1e-6
        value = jax.jit(last)
        want = [float(value(at + step * e) - value(at - step * e)) / (2 * step) for e in np.eye(2)]
        for derivative in (jax.jacfwd, jax.jacrev):
            got = jax.jit(derivative(last))(at)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["clip_by_global_norm", "clip_by_norm", "clip_by_block_rms"])
def test_a_clip_of_zeros(name):
    """It is the identity there; with respect to the limit nothing changes."""
    zero = jnp.zeros((2, 2))

    def updates(g, limit):
        tx = getattr(gradtx, name)(limit)
        return tx.update(g, tx.init(zero))[0]

    for derivative in (jax.jacfwd, jax.jacrev):
        by_gradient, by_limit = jax.jit(derivative(updates, (0, 1)))(zero, jnp.float32(1))
        np.testing.assert_array_equal(by_gradient.reshape(4, 4), np.eye(4))
        np.testing.assert_array_equal(by_limit, 0)


def because(*reasons):
    """A reason for each of the transformations that are named after it."""
    return {name: why for why, names in reasons for name in names.split()}


# Loops of unknown length have a derivative in forward mode alone.
FORWARD_ALONE = because(
    (
        "a line search, or a search for a point between bounds, goes on until it is good enough",
        """
        bfgs lbfgs scale_by_backtracking_linesearch scale_by_lbfgsb scale_by_zoom_linesearch
        ssbroyden
        """,
    ),
    ("Newton's iteration for a root of a matrix goes on until it has converged", "shampoo"),
)

# Where finite differences do not show the derivative, or there is none.
ANYWHERE = because(
    (
        "what it keeps is rounded: finite differences are those of the rounding",
        "clip_by_last_norm dynamic_loss_scale multi_steps store",
    ),
    ("JAX does not differentiate a scan whose state changes its memory", "offload"),
    ("its second step has no finite derivative, and why is not known", "lbfgsb"),
    (
        "max compares a product with itself, which XLA rounds in two ways without optimization",
        "cocob",
    ),
)

# Where all gradients are zero, and there is no derivative. The test sees that there is none.
AT_ZERO = because(
    (
        "it takes signs",
        """
        adamuon demo lion mars_lion rprop scale_by_adamuon scale_by_lion scale_by_rprop
        scale_by_sign scale_by_splus scale_by_tiger sign_sgd signum splus tiger
        """,
    ),
    (
        "it takes a direction, or an update of a length that does not depend on the gradient's",
        """
        adaptive_normalize asam floor_update_ratio gsam hyperball normalize normuon sam
        scale_by_dion scale_by_dion2 scale_by_dion3 scale_by_distributed_dion scale_by_lamb
        scale_by_lars scale_by_normuon scale_by_soap_muon scale_by_spectral_sphere
        scale_by_stable_spam soap_muon spectral_sphere stable_spam
        """,
    ),
    (
        "it compares with zero: rows without a gradient, signs that agree, a step of no length",
        """
        add_cautious_decayed_weights add_row_decayed_weights adamp apollo bfgs cautious
        keep_params_nonnegative lbfgs radial_brake scale_by_adamp scale_by_apollo
        scale_by_backtracking_linesearch ssbroyden
        """,
    ),
    (
        "the subspace turns with the gradient, however small that is",
        "dion2 dion3 fira galore scale_by_fira scale_by_galore",
    ),
    ("the first step leads to where the projection has a kink", "project"),
)

# There is one, and it is not had.
NOT_AT_ZERO = because(
    ("a gradient that is zero everywhere is skipped, by a comparison", "guard"),
    (
        "forward and reverse mode agree and are off by up to a third, and why is not known",
        "kron psgd_lra scale_by_kron scale_by_psgd_lra",
    ),
    (
        "what there is of a gradient to agree with the last one is 0 of 0, which counts as nothing",
        "trust_gate",
    ),
    (
        "a search ends at once where nothing slopes, and near there at a step of 0",
        "scale_by_zoom_linesearch",
    ),
)


def numbers(tx):
    """The hyperparameters, but for counts and those at an end of their range.

    Where finite differences cannot tell an epsilon from nothing, it is larger.
    """
    builder, arguments = tx.declaration.builder, tx.declaration.arguments
    if "VAR_POSITIONAL" in {p.kind.name for p in builder.signature.parameters.values()}:
        return {}
    ranges = {name: hyperparameter_range(builder.hints.get(name)) for name in arguments}
    return {
        name: np.float64(value if abs(value) > 1e-3 else 0.1)
        for name, value in arguments.items()
        if ranges[name] is not None and not ranges[name].integer and type(value) in (int, float)
        if value not in (ranges[name].low, ranges[name].high)
    }


def with_large_epsilons(tx):
    """Those of the transformations within, too."""
    found = {} if tx.declaration.name == "injected" else gradtx.hyperparams(tx)
    small = {path: 0.1 for path, x in found.items() if isinstance(x, float) and 0 < x < 1e-3}
    return gradtx.replace(tx, small) if small else tx


def updates_of(name, unravel):
    """Two updates in a scan, as a function of parameters, gradients and hyperparameters."""
    tx = with_large_epsilons(CATALOGUE[name].make())

    def value_fn(p):
        return sum(jnp.sum(jnp.square(x)) for x in jax.tree.leaves(p))

    def run(x):
        p, gs, given = unravel(x)
        arguments = {**tx.declaration.arguments, **given}
        of_arrays = tx.declaration.builder.public(**arguments) if given else tx
        of_arrays = gradtx.with_extra_args_support(of_arrays)

        def step(carry, g):
            p, state = carry
            extra = {"value": value_fn(p), "grad": g, "value_fn": value_fn}
            if takes_examples(tx):
                g = jax.tree.map(lambda x: x[None], g)
            updates, state = of_arrays.update(g, state, p, **extra)
            return (gradtx.apply_updates(p, updates), state), updates

        return ravel_pytree(jax.lax.scan(step, (p, of_arrays.init(p)), gs)[1])[0]

    return run


@pytest.mark.slow
@some(
    "adafactor", "adopt", "clip_by_global_norm", "dadapt_adamw", "lamb", "masked", "scale_by_adam"
)
def test_two_steps_of_all(name):
    """With respect to gradients, parameters and hyperparameters, together in one direction."""
    if name in ANYWHERE:
        pytest.skip(ANYWHERE[name])
    rng = np.random.default_rng(0)
    shapes = {"b": (3,), "w": (3, 2), **CATALOGUE[name].leaves}
    p = {n: rng.normal(size=shape) for n, shape in shapes.items()}
    gs = {n: rng.normal(size=(2, *shape)) for n, shape in shapes.items()}
    given = {} if "schedule" in CATALOGUE[name].why else numbers(CATALOGUE[name].make())
    with jax.enable_x64():
        at, unravel = ravel_pytree((p, gs, given))
        run = updates_of(name, unravel)
        direction = rng.normal(size=at.shape)
        weights = rng.normal(size=jax.eval_shape(run, at).shape)

        @jax.jit
        def program(x):
            value, forward = jax.jvp(run, (x,), (direction,))
            if name in FORWARD_ALONE:
                return value, forward, weights @ forward
            return value, forward, jax.grad(lambda x: weights @ run(x))(x) @ direction

        check(program, at, direction, weights, (1e-6, 1e-7))
        at, _ = ravel_pytree((p, jax.tree.map(np.zeros_like, gs), given))
        if name in AT_ZERO or name in NOT_AT_ZERO:
            assert all(np.isfinite(part).all() for part in program(at))
            assert is_linear_near(program, at, rng.normal(size=(9, *at.shape))) != (name in AT_ZERO)
        else:
            check(program, at, direction, weights, (1e-7, 1e-10, 1e-14))


def is_linear_near(program, at, directions):
    """Whether changes at short distances are those of a linear map."""

    def slope(direction, step):
        return np.asarray(program(at + step * direction)[0] - program(at)[0]) / step

    def is_linear(a, b, step):
        along, other, both = (slope(d, step) for d in (a, b, a + b))
        odds = slope(-a, step) + along, both - along - other, slope(a, step / 100) - along
        return max(np.max(np.abs(odd)) for odd in odds) < 1e-5 * max(1e-3, np.max(np.abs(along)))

    pairs = list(itertools.pairwise(directions))
    return any(all(is_linear(a, b, step) for a, b in pairs) for step in (1e-7, 1e-10, 1e-14))


def check(program, at, direction, weights, steps):
    """The larger step is less precise; the smaller one is for an epsilon that stayed small."""
    _, forward, reverse = program(at)
    ends = [(program(at + h * direction)[0], program(at - h * direction)[0], h) for h in steps]
    wants = [np.asarray(after - before) / (2 * h) for after, before, h in ends]
    wrong = [np.max(np.abs(forward - want)) / max(1e-3, np.max(np.abs(want))) for want in wants]
    assert min(wrong) < 1e-4, (forward, wants)
    size = np.sum(np.abs(weights * forward))
    np.testing.assert_allclose(reverse, weights @ forward, rtol=1e-8, atol=1e-8 * size + 1e-12)
