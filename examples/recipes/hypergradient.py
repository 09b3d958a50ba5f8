"""Tune a hyperparameter by the gradient of the validation loss.

`solve` with `implicit=True` differentiates the solution, whichever optimizer found it: here the
weights of a ridge regression with respect to the strength of each penalty.

Search: bilevel optimization, implicit differentiation, hypergradient, regularization, JAXopt
"""

import jax
import jax.numpy as jnp

import gradtx

kx, kn = jax.random.split(jax.random.key(0))
x = jax.random.normal(kx, (80, 20))
true = jnp.where(jnp.arange(20) < 5, 1.0, 0.0)  # of 20 inputs, 5 matter
y = x @ true + jax.random.normal(kn, (80,))
train, valid = slice(0, 40), slice(40, 80)


def loss(w, log_strengths):
    penalty = jnp.sum(jnp.exp(log_strengths) * w**2)
    return jnp.mean((x[train] @ w - y[train]) ** 2) + penalty


def validation(log_strengths):
    result = gradtx.solve(
        loss, jnp.zeros(20), gradtx.lbfgs(), log_strengths, tol=1e-4, implicit=True
    )
    return jnp.mean((x[valid] @ result.params - y[valid]) ** 2)


tx = gradtx.adam(0.2)
step = gradtx.make_step(validation, tx)
log_strengths = jnp.full(20, -3.0)
state = step.init(log_strengths)
values = []
for _ in range(40):
    log_strengths, state, value = step(log_strengths, state)
    values.append(float(value))
matter, rest = log_strengths[:5].mean(), log_strengths[5:].mean()
print(f"validation loss {values[0]:.2f} -> {values[-1]:.2f}")
print(f"mean log strength of what matters {float(matter):.1f}, of the rest {float(rest):.1f}")
assert values[-1] < 0.9 * values[0]
assert matter < rest
