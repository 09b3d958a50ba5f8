"""What the tests of papers share: moments, steps with a loss beside them, a PyTorch optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle

# Losses that fall on the whole, as the models of MoMo and Polyak want them.
VALUES = 30 * np.exp(-np.arange(oracle.STEPS) / 30) + np.random.default_rng(2).random(oracle.STEPS)


def mean(s, name, x, decay):
    """The exponential moving average of `x`, kept in the slot `name`."""
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def moments(g, s, t, b1, b2):
    """Adam's moments, corrected for their start at zero; the slots ``m`` and ``v`` are not."""
    return mean(s, "m", g, b1) / (1 - b1**t), mean(s, "v", g * g, b2) / (1 - b2**t)


def look_ahead(m, g, t, b1):
    """Nesterov momentum, Dozat 2016, of the slot `m`."""
    return b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)


def adam(g, s, t, b1, b2, eps, eps_root=0.0, nesterov=False, hat=False):
    """Kingma and Ba 2015, algorithm 1, and its epsilon-hat of section 2 where `hat` says so."""
    m, v = moments(g, s, t, b1, b2)
    m = look_ahead(s["m"], g, t, b1) if nesterov else m
    return m / (np.sqrt(v + eps_root) + (eps / np.sqrt(1 - b2**t) if hat else eps))


def run(tx, p, gs, values=VALUES, dtype=np.float32):
    """As `oracle.run`, on any tree, with a loss for each step."""

    def step(carry, given):
        g, value = given
        p, state = carry
        updates, state = gradtx.with_extra_args_support(tx).update(g, state, p, value=value)
        p = gradtx.apply_updates(p, updates)
        return (p, state), p

    p, gs, values = jax.tree.map(lambda x: jnp.asarray(x, dtype), (p, gs, values))
    return jax.jit(lambda p, xs: jax.lax.scan(step, (p, tx.init(p)), xs)[1])(p, (gs, values))


def check(tx, update, *, values=VALUES, drift=0.0, dtype=np.float32):
    """As `oracle.check`, with losses; on a slope, where there is a `drift`, distances grow."""
    p, gs = oracle.parameters(), oracle.gradients() + drift
    with jax.enable_x64(dtype == np.float64):
        got = run(tx, p, gs, values, dtype)
    np.testing.assert_allclose(got, oracle.transcribe(update, p, gs), rtol=1e-5, atol=1e-5)


def norm(x):
    return np.sqrt(np.sum(x * x))


def beside_torch(tx, make, steps=100, seed=0, atol=2e-5):
    """Compare `tx` with a PyTorch optimizer, run in float64; returns that and its parameter."""
    torch = pytest.importorskip("torch")
    p, gs = oracle.parameters(), oracle.gradients(seed, steps=steps)
    tensor = torch.tensor(p, requires_grad=True)
    peer, path = make(torch.optim, [tensor]), []
    for g in gs:
        tensor.grad = torch.tensor(g)
        peer.step()
        path.append(tensor.detach().numpy().copy())
    np.testing.assert_allclose(oracle.run(tx, p, gs), np.stack(path), rtol=1e-5, atol=atol)
    return peer, tensor


def newton_schulz(x, rows, how="frobenius", eps=0.1):
    """The quintic iteration of Jordan et al. 2024, in float64."""
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    if how == "frobenius":
        x = x / (np.linalg.norm(x) + eps)
    elif how == "spectral":
        x = x / (np.linalg.norm(x, 2) + eps)
    elif how == "aol":
        x = x / np.sqrt(np.maximum(np.abs(x @ x.T).sum(1, keepdims=True), eps))
    else:
        x = x / np.sqrt(np.maximum(np.linalg.norm(x @ x.T), eps))
    for a, b, c in rows:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if turned else x
