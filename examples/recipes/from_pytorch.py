"""Continue a run that began in PyTorch.

`from_torch` reads the optimizer and returns the same transformation with the same state, so the
next step here is what it would have been there. `order` lists the names in the order of the
optimizer's parameters.

Search: PyTorch, migrate, convert optimizer state, continue training
"""

import jax.numpy as jnp
import numpy as np
import torch

import gradtx

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x, y = torch.randn(16, 3), torch.randn(16, 1)


def torch_step():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


for _ in range(5):
    torch_step()

params = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
tx, state = gradtx.interop.from_torch(optimizer, params, order=list(params))


def loss(params, x, y):
    return jnp.mean((x @ params["weight"].T + params["bias"] - y) ** 2)


params, state, value = gradtx.minimize(loss, tx, params, state, x.numpy(), y.numpy())
torch_step()
print(tx)
np.testing.assert_allclose(params["weight"], model.weight.detach().numpy(), rtol=1e-4, atol=1e-6)
