"""Golden numbers: optimizers of matrices by their authors' code, on fixed gradients.

    for name in nikhilvyas/SOAP yorkerlin/KL-Methods facebookresearch/optimizers; do
        git clone https://github.com/$name clones/${name#*/}
    done
    TORCHDYNAMO_DISABLE=1 python tests/golden/make_matrices.py clones

with PyTorch on a CPU writes matrices.npz beside this file: by the name of a test and of a matrix,
the parameter after each step. Rerun it only to add an optimizer. It was run with SOAP at a1e5535,
KL-Methods at a02e622 and optimizers at f606606.
"""

import importlib.util
import pathlib
import sys

import numpy as np
import torch

STEPS, SHAPES = 20, {"a": (4, 3), "b": (2, 3)}


def gradients():
    # So nearly square that the first gradient determines all vectors of a basis but their signs.
    rng = np.random.default_rng(0)
    return {n: rng.normal(size=(STEPS, *shape)) for n, shape in SHAPES.items()}


def load(folder, path, name):
    """One file of a clone as a module, without what its package imports."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(folder, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(build):
    """The parameters after each step; each begins at 0."""
    gs = {n: torch.tensor(g, dtype=torch.float32) for n, g in gradients().items()}
    p = {n: torch.nn.Parameter(torch.zeros(shape)) for n, shape in SHAPES.items()}
    optimizer, path = build(list(p.values())), {n: [] for n in p}
    for t in range(STEPS):
        for n, x in p.items():
            x.grad = gs[n][t].clone()
        optimizer.step()
        for n, x in p.items():
            path[n].append(x.detach().numpy().copy())
    return {n: np.stack(x) for n, x in path.items()}


def main(folder):
    soap = load(folder, "SOAP/soap.py", "soap")
    sys.path.append(str(pathlib.Path(folder, "optimizers")))
    from distributed_shampoo import AdamPreconditionerConfig, DistributedShampoo

    kl = load(folder, "KL-Methods/optim/kl_opt.py", "kl_opt")
    builds = {
        "soap": lambda p: soap.SOAP(
            p, lr=0.01, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.0, precondition_frequency=4
        ),
        "soap one basis": lambda p: soap.SOAP(
            p, lr=0.01, eps=1e-12, weight_decay=0.0, precondition_frequency=1, max_precond_dim=3
        ),
        "kl_shampoo": lambda p: kl.KLOpt(
            p, lr=0.01, eps=1e-3, weight_decay=0.0, precondition_frequency=4,
            cast_dtype=torch.float32,
        ),
        "kl_soap": lambda p: kl.KLOpt(
            p, lr=0.01, eps=1e-12, weight_decay=0.0, precondition_frequency=4, using_klsoap=True,
            cast_dtype=torch.float32,
        ),
        "shampoo": lambda p: DistributedShampoo(
            p, lr=0.01, betas=(0.9, 0.95), epsilon=1e-6, max_preconditioner_dim=3,
            precondition_frequency=2, start_preconditioning_step=2,
            grafting_config=AdamPreconditionerConfig(beta2=0.95, epsilon=1e-8),
        ),
    }  # fmt: skip
    found = {f"{n}/{leaf}": x for n, b in builds.items() for leaf, x in run(b).items()}
    found |= {f"gradients/{n}": g.astype(np.float32) for n, g in gradients().items()}
    np.savez_compressed(pathlib.Path(__file__).with_name("matrices.npz"), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
