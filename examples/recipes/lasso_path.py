"""The path of the lasso: which weights stay as the penalty grows.

A proximal step makes weights exactly zero. One compiled program solves for all strengths at once,
and `implicit=True` says how fast each weight moves along its path.

Search: lasso, L1, sparse regression, proximal gradient, FISTA, regularization path, JAXopt
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import gradtx

kx, kn = jax.random.split(jax.random.key(0))
x = jax.random.normal(kx, (50, 8))
y = x @ jnp.array([3.0, -2.0, 1.5, 1.0, 0.0, 0.0, 0.0, 0.0]) + jax.random.normal(kn, (50,))
rate = 1 / jnp.linalg.norm(x.T @ x / 50, 2)


def loss(w):
    return jnp.mean((x @ w - y) ** 2) / 2


def weights(strength):
    tx = gradtx.proximal(gradtx.sgd(rate), "l1", arguments={"strength": strength}, accelerated=True)
    return gradtx.solve(loss, jnp.zeros(8), tx, max_steps=500, implicit=True).params


strengths = jnp.linspace(0.01, 3.5, 60)
path = jax.vmap(weights)(strengths)
slopes = jax.vmap(jax.jacfwd(weights))(strengths)

for at in (0, 10, 30, 59):
    print(f"strength {strengths[at]:.2f}: {int((path[at] != 0).sum())} weights are not zero")

figure, axes = plt.subplots(figsize=(6, 3.5))
axes.plot(strengths, path)
axes.set_xlabel("strength of the penalty")
axes.set_ylabel("weight")

# Between the kinks the path is straight, so the slope predicts the next point.
ahead = path[:-1] + slopes[:-1] * (strengths[1] - strengths[0])
straight = ((path[:-1] != 0) == (path[1:] != 0)).all(1)
assert jnp.allclose(ahead[straight], path[1:][straight], atol=1e-3)
assert (path[0] != 0).sum() > (path[10] != 0).sum() > (path[59] != 0).sum()
