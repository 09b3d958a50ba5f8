"""Golden numbers: PSGD's newer geometries and its form of low rank, by their author's code.

    git clone https://github.com/lixilinx/psgd_torch && git -C psgd_torch checkout a8616f1d
    python tests/golden/make_psgd.py psgd_torch

with PyTorch and opt_einsum writes psgd.npz beside this file: the preconditioned gradient after each
step, on fixed gradients in float64. Of the geometries, what the code draws is left out: the noise
is zero, and its bound of a norm is the one without random vectors that gradtx has, of which the
code's own is a refinement. It does not remember the largest norm (``betaL=0``). The form of low
rank, which cannot do without, gets draws that are fixed too.
"""

import pathlib
import sys

import numpy as np

STEPS, RATE, SCALE = 12, 0.2, 0.8
SHAPES = {"matrix": (5, 4), "wide": (3, 6)}
LRA = 10, 3  # entries, and the rank
FILE = pathlib.Path(__file__).with_name("psgd.npz")


def gradients(shape):
    """Rows and columns that are correlated, in float32 as gradtx sees them."""
    rng = np.random.default_rng(sum(shape))
    mixed = [np.eye(n) + 0.5 * rng.normal(size=(n, n)) for n in shape]
    drawn = rng.normal(size=(STEPS, *shape))
    return (mixed[0] @ drawn @ mixed[1].T).astype(np.float32)


def drawn():
    """For the form of low rank: gradients, noise, coins, and `U` and `V` at the start."""
    rng = np.random.default_rng(7)
    mixed = np.eye(LRA[0]) + 0.5 * rng.normal(size=(LRA[0], LRA[0]))
    gs = (rng.normal(size=(STEPS, LRA[0])) @ mixed).astype(np.float32)
    noise, coins = rng.normal(size=(STEPS, LRA[0])), rng.random(STEPS)
    return gs, noise, coins, 0.3 * rng.normal(size=(2, *LRA))


def bound(a):
    import torch

    x = a @ a[:, torch.argmax(torch.linalg.vector_norm(a, dim=0))]
    size = torch.linalg.vector_norm(x)
    return torch.linalg.vector_norm(a @ x) / size if size > 0 else size


def by_lra(psgd, torch):
    gs, noise, coins, (u, v) = map(torch.tensor, drawn())
    factors = [u, v, torch.full((LRA[0], 1), SCALE, dtype=torch.float64)]
    norms, out = [torch.zeros([], dtype=torch.float64) for _ in range(3)], []
    for g, now, coin in zip(gs.double()[..., None], noise[..., None], coins, strict=True):
        torch.randn_like, torch.rand = lambda x, now=now: now, lambda shape, coin=coin: coin
        psgd.update_precond_lra_whiten(factors, norms, g, lr=RATE)
        out.append(psgd.precond_grad_lra(factors, g)[:, 0].numpy())
    return np.stack(out)


def main(folder):
    sys.path.insert(0, folder)
    import psgd
    import torch

    psgd.norm_lower_bound_spd = psgd.norm_lower_bound_skh = bound
    torch.randn_like, torch.rand = torch.zeros_like, torch.ones
    fits = {
        "quadratic": psgd.update_precond_kron_whiten_quad,
        "procrustes": psgd.update_precond_kron_whiten_q0p5eq1p5,
        "quadratic_p": psgd.update_precond_kron_whiten_quad4p,
        "procrustes_p": psgd.update_precond_kron_whiten_pro4p,
    }
    found = {}
    for geometry, fit in fits.items():
        for name, shape in SHAPES.items():
            gs = torch.tensor(gradients(shape), dtype=torch.float64)
            # Both sides get full factors.
            of_p = {"quadratic_p": "QUAD4P", "procrustes_p": "PRO4P"}
            chosen = of_p.get(geometry, "QUAD")
            factors, ways = psgd.init_kron(gs[0], SCALE, max_skew=100.0, dQ=chosen)
            out = []
            for g in gs:
                fit(factors, ways, g, lr=RATE, betaL=0.0, damping=0.0)
                q, r = factors[0]
                direction = q @ g @ r.T if geometry in of_p else q.T @ q @ g @ r.T @ r
                out.append(direction.numpy())
            found[f"{geometry} {name}"] = np.stack(out)
    found["lra"] = by_lra(psgd, torch)
    np.savez(FILE, **found)


if __name__ == "__main__":
    main(sys.argv[1])
