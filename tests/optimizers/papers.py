"""What the tests of papers share: steps with a loss beside them, and a PyTorch optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests import oracle

# Losses that fall on the whole, as the models of MoMo and Polyak want them.
VALUES = 30 * np.exp(-np.arange(oracle.STEPS) / 30) + np.random.default_rng(2).random(oracle.STEPS)


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


def check(tx, update, rtol=1e-5, atol=1e-5):
    p, gs = oracle.parameters(), oracle.gradients()
    want = oracle.transcribe(update, p, gs)
    np.testing.assert_allclose(run(tx, p, gs), want, rtol=rtol, atol=atol)


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
