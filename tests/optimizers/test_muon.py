"""Muon against its authors' iteration and Optax; one batch for equal shapes."""

# Sees mutants of: matrices.

import functools
import os
import pathlib
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle
from tests.optimizers.matrices import HARD, gradients
from tests.optimizers.papers import adam, look_ahead, mean, newton_schulz
from tests.programs import equations

DION = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
)


@pytest.mark.quick(3)
@pytest.mark.paper("muon")
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
@pytest.mark.parametrize("how", ["frobenius", "spectral", "aol", "schatten"])
@pytest.mark.parametrize("coeffs", [(3.4445, -4.7750, 2.0315), DION], ids=["one", "many"])
def test_muon(how, coeffs, shape):
    """Jordan et al. 2024, with bias corrections, the factor of the shape, and decay."""
    rows = DION if coeffs is DION else [coeffs] * 3
    adaptive, eps = how == "aol", 20.0 if how in ("aol", "schatten") else 0.1
    factor = np.sqrt(max(1.0, shape[1] / shape[0]))

    def update(g, s, t, p):
        m = look_ahead(mean(s, "m", g, 0.8), g, t, 0.8)
        u = newton_schulz(m, rows, how, eps)
        u = np.sum(m * u) * u if adaptive else u
        return -0.05 * (factor * u + 0.3 * p)

    tx = gradtx.muon(
        0.05, coeffs, 3, 0.8, eps, weight_decay=0.3, preconditioning=how, adaptive=adaptive
    )
    oracle.check(tx, update, atol=1e-7, shape=shape, dtype=np.float64)


@pytest.mark.paper("muon")
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
def test_muon_without_looking_ahead_and_with_one_root_mean_square(shape):
    """The presets of coefficients too; Liu et al. 2025, equation 4."""

    def update(g, s, t, p):
        m = mean(s, "m", g, 0.8) / (1 - 0.8**t)
        return -0.05 * 0.2 * np.sqrt(max(shape)) * newton_schulz(m, [(3.4445, -4.7750, 2.0315)] * 5)

    tx = gradtx.muon(0.05, "standard", 5, 0.8, 0.1, nesterov=False, consistent_rms=0.2)
    oracle.check(tx, update, atol=1e-7, shape=shape, dtype=np.float64)


@pytest.mark.paper("muon")
@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_without_bias_correction(nesterov):
    """Momentum as in Jordan's code."""

    def update(g, s, t, p):
        m = mean(s, "m", g, 0.8)
        m = 0.2 * g + 0.8 * m if nesterov else m
        return -0.05 * newton_schulz(m, [(3.4445, -4.7750, 2.0315)] * 5)

    tx = gradtx.muon(0.05, ns_steps=5, beta=0.8, eps=0.1, nesterov=nesterov, bias_correction=False)
    oracle.check(tx, update, atol=1e-7, shape=(4, 3), dtype=np.float64)


@pytest.mark.paper("muon")
@pytest.mark.parametrize(("rate", "nesterov"), [(None, True), (0.07, False)])
def test_what_is_no_matrix_is_trained_by_adamw(rate, nesterov):
    def update(g, s, t, p):
        u = adam(g, s, t, 0.7, 0.6, 0.1, 0.2, nesterov) + 0.4 * p
        return -(0.05 if rate is None else rate) * u

    tx = gradtx.muon(
        0.05,
        eps=0.1,
        nesterov=nesterov,
        adam_b1=0.7,
        adam_b2=0.6,
        adam_eps_root=0.2,
        adam_weight_decay=0.4,
        adam_learning_rate=rate,
    )
    oracle.check(tx, update, atol=1e-7, shape=(5,), dtype=np.float64)


@pytest.mark.quick(2)
@pytest.mark.paper("muon")
@pytest.mark.parametrize("name", ["polar_express", "cans", "deepseek", "cubic"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 12)])
def test_coefficients_by_name_and_other_factors_of_the_shape(name, shape):
    """On matrices that are iterated on as they are, and on those iterated on by their squares."""
    rows = [(*row, 0.0)[:3] for row in gradtx.muon_coefficients(name, 4)]

    def update(g, s, t, p):
        m = look_ahead(mean(s, "m", g, 0.8), g, t, 0.8)
        return -0.05 * np.sqrt(shape[1] / shape[0]) * newton_schulz(m, rows)

    tx = gradtx.muon(0.05, name, 4, 0.8, 0.1, scale="scion")
    oracle.check(tx, update, atol=1e-7, shape=shape, dtype=np.float64)


@pytest.mark.paper("muon")
def test_decay_may_be_cautious_and_scheduled():
    """Chen et al. 2025: only where the step and the parameter have one sign."""

    def update(g, s, t, p):
        m = look_ahead(mean(s, "m", g, 0.8), g, t, 0.8)
        u = newton_schulz(m, [(3.4445, -4.7750, 2.0315)] * 5)
        return -0.05 * (u + np.where(u * p >= 0, 0.3 / t, 0) * p)

    tx = gradtx.muon(
        0.05, beta=0.8, eps=0.1, weight_decay=lambda count: 0.3 / (count + 1), cautious_decay=True
    )
    oracle.check(tx, update, atol=1e-7, shape=(4, 3), dtype=np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [lambda path, leaf: "norm" not in path, ["body/*", "table"]])
def test_a_mask_reaches_muons_leaves_and_another_adams(mask):
    """As in Optax the first leaves Adam's alone; the same one in both places reaches all."""
    params = {
        "body": {"bias": jnp.ones(2), "kernel": jnp.ones((3, 2))},
        "norm": {"matrix": jnp.ones((2, 2)), "scale": jnp.ones(2)},
        "table": jnp.ones((2, 1, 2)),
    }
    zeros = gradtx.tree.zeros_like(params)

    def decayed(**masks):
        tx = gradtx.muon(0.1, weight_decay=0.5, adam_weight_decay=0.25, **masks)
        updates, _ = tx.update(zeros, tx.init(params), params)
        return [float(jnp.max(u)) for u in jax.tree.leaves(updates)]

    alone = decayed(weight_decay_mask=mask)
    np.testing.assert_allclose(alone, [-0.025, -0.05, 0, -0.025, -0.025], atol=1e-7)
    both = decayed(weight_decay_mask=mask, adam_weight_decay_mask=mask)
    np.testing.assert_allclose(both, [-0.025, -0.05, 0, 0, -0.025], atol=1e-7)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", HARD)
def test_hard_matrices(name):
    """Ill-conditioned, of low rank, zero, and with one side of length 1."""

    def update(g, s, t, p):
        m = look_ahead(mean(s, "m", g, 0.8), g, t, 0.8)
        factor = np.sqrt(max(1.0, g.shape[1] / g.shape[0]))
        return -0.05 * factor * newton_schulz(m, [(3.4445, -4.7750, 2.0315)] * 5)

    gs, tx = gradients(name), gradtx.muon(0.05, beta=0.8, eps=0.1)
    p = np.zeros(gs.shape[1:])
    with jax.enable_x64(True):
        got = oracle.run(tx, p, gs, np.float64)
    np.testing.assert_allclose(got, oracle.transcribe(update, p, gs), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axis", "shape", "numbers"),
    [
        (1, (4, 9), gradtx.MuonDimensionNumbers(0, 1, heads=(1, 3))),
        (0, (12, 5), gradtx.MuonDimensionNumbers(0, 1, heads=(0, 3))),
        (0, (12, 5), gradtx.MuonDimensionNumbers(1, 0, heads=(-2, 3))),
        (2, (2, 4, 9), gradtx.MuonDimensionNumbers(1, 2, heads=(2, 3))),
    ],
)
def test_heads_are_matrices_of_their_own(axis, shape, numbers):
    """An array of three heads takes the steps of three arrays, factor of the shape included."""
    g = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    parts = jnp.split(g, 3, axis)
    whole, apart = (
        gradtx.muon(0.1, muon_weight_dimension_numbers=given)
        for given in (numbers, numbers._replace(heads=None))
    )
    together = jax.jit(whole.update)(g, whole.init(g), g)[0]
    step = jax.jit(apart.update)
    alone = [step(part, apart.init(part), part)[0] for part in parts]
    np.testing.assert_allclose(together, jnp.concatenate(alone, axis), rtol=1e-5, atol=1e-6)


def test_heads_that_do_not_fit_are_refused():
    g = jnp.ones((4, 9))
    for heads in [(1, 2), (2, 3), (1, 0)]:
        numbers = gradtx.MuonDimensionNumbers(0, 1, heads=heads)
        tx = gradtx.muon(0.1, muon_weight_dimension_numbers=numbers)
        with pytest.raises(ValueError, match=r"shape \(4, 9\)"):
            tx.update(g, tx.init(g), g)
    numbers = gradtx.MuonDimensionNumbers(1, 2, heads=(0, 2))
    with pytest.raises(ValueError, match="2 heads"):
        gradtx.scale_by_shape(None, numbers).update(jnp.ones((4, 2, 2)), ())


TREES = {"a": (3, 5), "b": (4,), "c": (5, 3), "d": (2, 3, 5), "e": (3, 5), "f": (2, 3, 4)}


def tree(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {n: jnp.asarray(rng.normal(size=shape), dtype) for n, shape in TREES.items()}


def numbers(lib):
    make = getattr(lib, "MuonDimensionNumbers", None) or optax.contrib.MuonDimensionNumbers
    return {
        "a": make(),
        "b": None,
        "c": make(1, 0),
        "d": make(1, 2),
        "e": make(),
        "f": make((0, 1), 2),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False, "weight_decay": 0.1, "consistent_rms": 0.2, "adam_weight_decay": 0.1},
        {"ns_coeffs": "dion", "adaptive": True, "adam_learning_rate": 0.01},
    ],
    ids=["default", "decay", "dion"],
)
def test_like_optax(options):
    """Batch axes, several axes, a fallback to Adam; in float64, where nothing is lost.

    Optax takes one dual norm for all matrices of a leaf, so batch axes are left out for that.
    """
    names, paths = [n for n in TREES if n != "d" or not options.get("adaptive")], []

    def taken(values):
        return {name: values[name] for name in names}

    with jax.enable_x64(True):
        for lib, build in ((gradtx, gradtx.muon), (optax, optax.contrib.muon)):
            tx = build(0.02, muon_weight_dimension_numbers=taken(numbers(lib)), **options)

            @jax.jit
            def step(p, state, g, tx=tx):
                updates, state = tx.update(g, state, p)
                return jax.tree.map(jnp.add, p, updates), state

            p = taken(tree(0))
            state = tx.init(p)
            for i in range(100):
                p, state = step(p, state, taken(tree(i + 1)))
            paths.append(p)
    for name in names:
        np.testing.assert_allclose(paths[0][name], paths[1][name], rtol=1e-5, atol=1e-7)


def test_the_default_takes_what_has_two_dimensions():
    p = tree(0, np.float32)
    state = gradtx.muon(0.1).init(p)
    momenta = state.inner_states["muon"].inner_state[0].mu
    assert [n for n, m in momenta.items() if m is not None] == ["a", "c", "e"]


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (2, 4, 6)])
def test_equal_shapes_are_one_batch(shape):
    """The matrix products of the step are as many for thirty matrices as for one."""
    tx = gradtx.scale_by_muon(weight_dimension_numbers=gradtx.MuonDimensionNumbers(-2, -1))

    def products(n):
        p = [jnp.ones(shape)] * n
        step = functools.partial(tx.update, state=tx.init(p))
        return equations(jax.make_jaxpr(step)(p).jaxpr).count("dot_general")

    assert 0 < products(1) == products(30) <= 3


def compiled(tx, n):
    p = [jnp.ones((64, 128))] * n

    def step(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    traced = jax.jit(step, donate_argnums=(0, 1)).trace(p, tx.init(p), p)
    # Stacking is one operation in new versions of JAX and these, for each matrix, in old ones.
    stacking = {"broadcast_in_dim", "concatenate", "squeeze"}
    names = [name for name in equations(traced.jaxpr.jaxpr) if name not in stacking]
    return len(names), traced.lower().compile().as_text()


@pytest.mark.slow
def test_what_grows_with_the_number_of_equal_matrices():
    """One matrix more is nine operations and three kernels, fewer than Adam has; no product."""
    (few, few_text), (many, many_text) = (compiled(gradtx.muon(0.1), n) for n in (16, 24))
    adam = [compiled(gradtx.adam(0.1), n)[0] for n in (16, 24)]
    assert many - few == 8 * 9 < adam[1] - adam[0]

    def kernels(text):
        return text.split("\nENTRY")[1].count(" fusion(")

    assert kernels(many_text) - kernels(few_text) <= 8 * 3
    for operation in (" while(", " dot(", " custom-call("):
        assert many_text.count(operation) == few_text.count(operation)
    assert " dot(" in many_text or " custom-call(" in many_text


@pytest.mark.slow
def test_kernels_on_chips_that_are_not_here():
    """Of sixteen matrices at most half of Optax's, on whatever chip there is a compiler for.

    The eighteen products of the iterations on Gram matrices are kernels each, however many matrices
    there are.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.matrices", "16"],
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("| 16 "))
    _, *kernels = (map(float, cell.split("/")) for cell in row.split("|")[3:-1])
    for ours, theirs in kernels:
        assert ours < theirs / 2, row


def test_errors_name_the_leaf():
    p = {"layer": {"b": jnp.ones(3)}}
    tx = gradtx.scale_by_muon()
    with pytest.raises(ValueError, match="layer/b"):
        tx.update(p, tx.init(p))
    tx = gradtx.scale_by_muon(weight_dimension_numbers=gradtx.MuonDimensionNumbers(0, -1))
    with pytest.raises(ValueError, match="twice"):
        tx.update(p, tx.init(p))
    with pytest.raises(ValueError, match="prefix"):
        gradtx.muon(0.1, muon_weight_dimension_numbers={"other": None}).init(p)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["frobenius", "spectral", "aol", "schatten"])
def test_gradients_whose_squares_overflow(how):
    """A power of 2 in front of the gradient changes no bit of the step."""
    tx = gradtx.muon(0.1, eps=0.0, preconditioning=how)
    g = jnp.asarray(HARD["random"], jnp.float32)
    g = g / jnp.max(jnp.abs(g)) * 1.5
    steps = jax.jit(jax.vmap(lambda g: tx.update(g, tx.init(g), jnp.zeros_like(g))[0]))(
        jnp.stack([g * 2.0**k for k in (0, 10, 66, 122)])
    )
    assert np.all(np.abs(steps[0]).max() > 0.02)
    for other in steps[1:]:
        np.testing.assert_array_equal(other, steps[0])


@pytest.mark.quick(2)
@pytest.mark.parametrize("how", ["frobenius", "spectral", "aol", "schatten"])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_a_zero_gradient_is_no_step(how, dtype):
    p = jnp.zeros((3, 2), dtype)
    tx = gradtx.scale_by_muon(preconditioning=how)
    assert tx.update(p, tx.init(p))[0].tolist() == [[0.0] * 2] * 3


@pytest.mark.paper("scale_by_shape")
@pytest.mark.parametrize("shape", [(4, 3), (3, 5)])
@pytest.mark.parametrize("rms", [None, 0.3])
@pytest.mark.parametrize("outputs_first", [False, True])
def test_scale_by_shape_is_the_papers(shape, rms, outputs_first):
    """Jordan et al. 2024; with `rms` Liu et al. 2025, equation 4."""
    numbers = gradtx.MuonDimensionNumbers(1, 0) if outputs_first else None
    d_out, d_in = shape if outputs_first else shape[::-1]
    factor = np.sqrt(max(1, d_out / d_in)) if rms is None else rms * np.sqrt(max(shape))
    tx, g = gradtx.scale_by_shape(rms, numbers), np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    updates, _ = tx.update(jnp.asarray(g), tx.init(g))
    np.testing.assert_allclose(updates, factor * g, rtol=1e-6)


@pytest.mark.quick(2)
@pytest.mark.paper("scale_by_shape")
@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (1, 3), (2, 0)])
def test_factors_by_name(shape):
    """Liu et al. 2025, equation 4; Pethick et al. 2025, table 2 with the root mean square."""
    d_in, d_out = shape
    wanted = {
        "jordan": np.sqrt(max(1, d_out / d_in)),
        "moonshot": 0.2 * np.sqrt(max(shape)),
        "scion": np.sqrt(d_out / d_in),
        "none": 1.0,
    }
    g = jnp.ones(shape)
    for name, factor in wanted.items():
        tx = gradtx.scale_by_shape(scale=name)
        np.testing.assert_allclose(tx.update(g, tx.init(g))[0], factor * g, rtol=1e-6)


def test_one_factor_of_the_shape_at_a_time():
    with pytest.raises(ValueError, match="not both"):
        gradtx.muon(0.1, consistent_rms=0.2, scale="scion")
    with pytest.raises(ValueError, match="scale must be"):
        gradtx.scale_by_shape(scale="shape")


@pytest.mark.quick(1)
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_beside_pytorch(adjust, nesterov):
    """Its own iteration in bfloat16; what is rounded differs, within a hundredth."""
    scale = {"original": "jordan", "match_rms_adamw": "moonshot"}[adjust]
    torch = pytest.importorskip("torch")
    gs = oracle.gradients(shape=(6, 4), steps=5)
    tensor = torch.tensor(oracle.parameters(shape=(6, 4)), requires_grad=True)
    peer = torch.optim.Muon([tensor], 0.1, adjust_lr_fn=adjust, nesterov=nesterov)
    tx = gradtx.muon(
        0.1,
        eps=1e-7,
        weight_decay=0.1,
        nesterov=nesterov,
        bias_correction=False,
        muon_weight_dimension_numbers=gradtx.MuonDimensionNumbers(1, 0),
        ns_dtype=jnp.bfloat16,
        scale=scale,
    )
    p = jnp.asarray(tensor.detach().numpy(), jnp.float32)
    state = tx.init(p)
    for g in gs:
        tensor.grad = torch.tensor(g)
        peer.step()
        updates, state = tx.update(jnp.asarray(g, jnp.float32), state, p)
        p = gradtx.apply_updates(p, updates)
    np.testing.assert_allclose(p, tensor.detach().numpy(), atol=0.02)


def test_coefficients_by_name_are_configured_and_kept():
    tx = gradtx.muon(0.1, "polar_express", ns_steps=6, ns_dtype=jnp.bfloat16)
    again = gradtx.from_config(gradtx.to_config(tx))
    assert again == tx
    p = {"w": jnp.ones((2, 8))}
    coeffs = again.init(p).inner_states["muon"].inner_state[0].ns_coeffs
    np.testing.assert_allclose(coeffs, gradtx.muon_coefficients("polar_express", 6), rtol=1e-6)


@pytest.mark.slow
def test_coefficients_are_those_of_the_state():
    """As in Optax: a run goes on with those with which it began."""
    g = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2)), jnp.float32)
    before = (2.0, -1.5, 0.5)
    state = gradtx.scale_by_muon(before).init(g)
    theirs = optax.contrib.scale_by_muon(ns_coeffs=before).init(g)
    got, kept = gradtx.scale_by_muon().update(g, state)
    want, _ = optax.contrib.scale_by_muon().update(g, theirs)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_array_equal(kept.ns_coeffs, state.ns_coeffs)


@pytest.mark.slow
def test_a_batch_of_matrices_has_a_norm_for_each():
    g = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 4)), jnp.float32)
    numbers = gradtx.MuonDimensionNumbers(1, 2)
    for make in (gradtx.scale_by_polargrad, gradtx.scale_by_normuon, gradtx.scale_by_adamuon):
        both, one = make(weight_dimension_numbers=numbers), make()
        together = both.update(g, both.init(g))[0]
        alone = [one.update(x, one.init(x))[0] for x in g]
        np.testing.assert_allclose(together, jnp.stack(alone), rtol=1e-4, atol=1e-5)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["normuon", "adamuon", "polargrad", "scion", "muown"])
def test_other_leaves_have_an_optimizer_of_their_own(name):
    p = {"b": jnp.ones(3), "w": jnp.ones((3, 3))}
    tx = getattr(gradtx, name)(0.1, others=gradtx.sgd(1.0))
    updates, _ = tx.update(p, tx.init(p), p)
    np.testing.assert_allclose(updates["b"], -1.0)
    assert bool(jnp.all(updates["w"] != -1.0))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["muon", "dion2", "soap_muon", "muown"])
def test_coefficients_may_be_an_array(name):
    """One transformation serves two runs, each of which gives up the arrays of its state."""
    rows = (3.4445, -4.7750, 2.0315)
    p = {"w": jnp.eye(4, 3)}

    def trained(tx):
        step = gradtx.make_step(lambda p: jnp.sum((p["w"] - 1) ** 2), tx)
        now = jax.tree.map(jnp.copy, p)
        state = step.init(now)
        for _ in range(2):
            now, state, _ = step(now, state)
        return now

    tx = getattr(gradtx, name)(0.1, ns_coeffs=jnp.array(rows))
    want = trained(getattr(gradtx, name)(0.1, ns_coeffs=rows))
    for _ in range(2):
        chex.assert_trees_all_close(trained(tx), want, atol=1e-6)


@pytest.mark.slow
def test_each_matrix_of_a_leaf_has_its_own_dual_norm():
    small, large = jnp.eye(2), 10 * jnp.eye(2)
    tx = gradtx.scale_by_muon(adaptive=True, nesterov=False)
    layers = gradtx.MuonDimensionNumbers(1, 2)
    many = gradtx.scale_by_muon(adaptive=True, nesterov=False, weight_dimension_numbers=layers)
    stack = jnp.stack([small, large])
    updates, _ = many.update(stack, many.init(stack))
    for x, u in zip(stack, updates, strict=True):
        np.testing.assert_allclose(u, tx.update(x, tx.init(x))[0], rtol=1e-5, atol=1e-6)
