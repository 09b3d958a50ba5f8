"""A run that continues from its saved state on other numbers of devices: 8, 4, 2, 1 and 8 again."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.reliability.outcome import Outcome, raised
from tests.catalogue import CATALOGUE, optimizers
from tests.test_contracts import step

DEVICES = (8, 4, 2, 1, 8)
FEW = ("adamw",)


def params() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in {"b": (8,), "odd": (6, 5), "w": (16, 6)}.items()
    }


def gradient(i: int) -> dict[str, Any]:
    rng = np.random.default_rng(100 + i)
    return {k: rng.normal(size=p.shape).astype(np.float32) for k, p in params().items()}


def whole_run(tx: Any) -> tuple[Any, Any]:
    p = jax.tree.map(jnp.asarray, params())
    carry = p, tx.init(p)
    run = jax.jit(functools.partial(_update, tx))
    for i in range(len(DEVICES)):
        carry = run(*carry, gradient(i))
    return carry


def elastic_run(tx: Any) -> tuple[Any, Any]:
    """One step on each number of devices, the state through a state dict between them."""
    p, flat = params(), None
    for i, count in enumerate(DEVICES):
        mesh = Mesh(np.array(jax.devices()[:count]), ("data",))
        found = gradtx.state_sharding(
            tx, p, NamedSharding(mesh, PartitionSpec()), zero="data", min_size=8
        )
        placed = jax.device_put(p, found.params)
        if flat is None:
            state = found.init(tx, placed)
        else:
            state = found.put(gradtx.load_state_dict(tx, jax.tree.map(jnp.asarray, p), flat))
        run = jax.jit(functools.partial(_update, tx), out_shardings=(found.params, found.state))
        placed, state = run(placed, state, jax.device_put(gradient(i), found.gradients))
        whole = found.whole(state)
        flat = {k: np.asarray(x) for k, x in gradtx.state_dict(whole, tx).items()}
        p = jax.tree.map(np.asarray, placed)
    return p, whole


def _update(tx: Any, p: Any, state: Any, g: Any) -> Any:
    return step(tx, (p, state), g)[0]


def elastic(quick: bool) -> Outcome:
    done = Outcome()
    for name in FEW if quick else optimizers():
        tx = CATALOGUE[name].make()
        try:
            ours, wanted = elastic_run(tx)[0], whole_run(tx)[0]
        except Exception as error:
            done.check(False, f"{name}: {raised(error)}")
            continue
        far = max(
            float(np.max(np.abs(x - np.asarray(y)) / np.maximum(1, np.abs(y))))
            for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True)
        )
        done.check(far <= 1e-6, f"{name}: {far:.1e} from the run on one device")
    return done
