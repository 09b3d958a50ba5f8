"""Golden numbers: the newer geometries of PSGD by their author's code, on fixed gradients.

    git clone https://github.com/lixilinx/psgd_torch && git -C psgd_torch checkout a8616f1d
    python tests/golden/make_psgd.py psgd_torch

with PyTorch and opt_einsum writes psgd.npz beside this file: the preconditioned gradient after each
step, in float64. What the code draws is left out: the noise is zero, and its bound of a norm is the
one without random vectors that gradtx has, of which the code's own is a refinement. It does not
remember the largest norm (``betaL=0``).
"""

import pathlib
import sys

import numpy as np

STEPS, RATE, SCALE = 12, 0.2, 0.8
SHAPES = {"matrix": (5, 4), "wide": (3, 6)}
FILE = pathlib.Path(__file__).with_name("psgd.npz")


def gradients(shape):
    """Rows and columns that are correlated, in float32 as gradtx sees them."""
    rng = np.random.default_rng(sum(shape))
    mixed = [np.eye(n) + 0.5 * rng.normal(size=(n, n)) for n in shape]
    drawn = rng.normal(size=(STEPS, *shape))
    return (mixed[0] @ drawn @ mixed[1].T).astype(np.float32)


def bound(a):
    import torch

    x = a @ a[:, torch.argmax(torch.linalg.vector_norm(a, dim=0))]
    size = torch.linalg.vector_norm(x)
    return torch.linalg.vector_norm(a @ x) / size if size > 0 else size


def main(folder):
    sys.path.insert(0, folder)
    import psgd
    import torch

    psgd.norm_lower_bound_spd = psgd.norm_lower_bound_skh = bound
    torch.randn_like, torch.rand = torch.zeros_like, torch.ones
    fits = {
        "quadratic": psgd.update_precond_kron_whiten_quad,
        "procrustes": psgd.update_precond_kron_whiten_q0p5eq1p5,
    }
    found = {}
    for geometry, fit in fits.items():
        for name, shape in SHAPES.items():
            gs = torch.tensor(gradients(shape), dtype=torch.float64)
            # Both sides get full factors.
            factors, ways = psgd.init_kron(gs[0], SCALE, max_skew=100.0)
            out = []
            for g in gs:
                fit(factors, ways, g, lr=RATE, betaL=0.0, damping=0.0)
                q, r = factors[0]
                out.append((q.T @ q @ g @ r.T @ r).numpy())
            found[f"{geometry} {name}"] = np.stack(out)
    np.savez(FILE, **found)


if __name__ == "__main__":
    main(sys.argv[1])
