"""Running a rule against a NumPy float64 transcription of its paper."""

import functools

import jax
import numpy as np

STEPS = 50


def optimized(function):
    """`function` compiled as users have it: with what `conftest` sets, XLA rounds otherwise."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 3})


def gradients(seed=0, shape=(4, 3), steps=STEPS):
    """Gradients that change size and sign, some exactly zero."""
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(steps, *shape)) * np.exp(rng.normal(size=(steps, *(1 for _ in shape))))
    return np.where(rng.random(g.shape) < 0.1, 0.0, g)


def parameters(seed=1, shape=(4, 3)):
    return np.random.default_rng(seed).normal(size=shape)


def run(tx, p, gs, dtype=np.float32, **extra_args):
    """The parameters after each step of `tx` on the gradients `gs`, one compiled scan."""

    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p, **extra_args)
        p = p + updates
        return (p, state), p

    p, gs = np.asarray(p, dtype), np.asarray(gs, dtype)

    @functools.partial(jax.jit)
    def scanned(p, gs):
        return jax.lax.scan(step, (p, tx.init(p)), gs)[1]

    return np.asarray(scanned(p, gs))


def transcribe(update, p, gs):
    """The parameters after each step of ``update(g, slots, t, p) -> step``, in float64."""
    wide = np.result_type(p, np.float64)
    p, slots, path = np.array(p, wide), {}, []
    for t, g in enumerate(np.asarray(gs, wide), start=1):
        p = p + update(g, slots, t, p)
        path.append(p)
    return np.stack(path)


def check(tx, update, rtol=1e-5, atol=1e-5, *, shape=(4, 3), dtype=np.float32):
    """Compare the two over `STEPS` steps; complex numbers are real ones and others."""
    p, gs = parameters(shape=shape), gradients(shape=shape)
    if np.issubdtype(dtype, np.complexfloating):
        p, gs = p + 1j * parameters(2, shape), gs + 1j * gradients(3, shape)
    with jax.enable_x64(np.finfo(dtype).bits == 64):
        got = run(tx, p, gs, dtype)
    np.testing.assert_allclose(got, transcribe(update, p, gs), rtol=rtol, atol=atol)
