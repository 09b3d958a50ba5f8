"""Meshes of the eight virtual devices, and what tests do on them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import gradtx
from benchmarks.hlo import by_kind, collectives
from tests.catalogue import CATALOGUE, has_an_optimizer

P = PartitionSpec
N = 8


def mesh(**axes):
    """A mesh with axes of these sizes: ``mesh(data=4, model=2)``."""
    n = int(np.prod(list(axes.values())))
    devices = np.array(jax.devices()[:n]).reshape(tuple(axes.values()))
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def on(m, *spec):
    return NamedSharding(m, P(*spec))


def counted(compiled):
    """``{kind: (how many, bytes)}`` of a compiled program."""
    return by_kind(collectives(compiled.as_text()))


def all_lie_on(tree, shardings):
    same = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), tree, shardings)
    return jax.tree.all(same)


def params(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return {
        "b": jnp.asarray(rng.normal(size=3), dtype),
        "w": jnp.asarray(rng.normal(size=(2, 3)), dtype),
    }


def batch(dtype=jnp.float32, examples=16):
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(examples, 2)), dtype)
    return x, jnp.asarray(rng.normal(size=(examples, 3)), dtype)


def loss(p, x, y):
    return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2)


def split(data):
    """A part of a batch for each device."""
    return jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), data)


def under_pmap(function, p, data):
    """What device 0 has at the end."""
    out = jax.pmap(lambda d: function(p, d), axis_name="data")(split(data))
    return jax.tree.map(lambda x: x[0], out)


def under_vmap(function, p, data):
    """The same program on one device, for all of them."""
    out = jax.vmap(lambda d: function(p, d), axis_name="data")(split(data))
    return jax.tree.map(lambda x: x[0], out)


def under_shard_map(function, p, data, check_vma=False):
    specs = {"in_specs": (P(), P("data")), "out_specs": P(), "check_vma": check_vma}
    return jax.jit(jax.shard_map(function, mesh=mesh(data=N), **specs))(p, data)


def under_jit(function, p, data):
    """With sharded arrays: the program is that of one device."""
    m = mesh(data=N)
    return jax.jit(function)(*jax.device_put((p, data), (on(m), on(m, "data"))))


def entrywise(name):
    """Whether it is an optimizer or a link whose rules read nothing beyond an entry or a row."""
    where, rules = getattr(gradtx, name).builder.function.__module__, CATALOGUE[name].made.rules
    own = where.startswith(("gradtx.optimizers.", "gradtx.transforms."))
    return own and bool(rules) and all(r.scope in {"entry", "row"} and not r.of_tree for r in rules)


def thirds():
    """The catalogue three times, for three tests that run it on eight devices.

    What is entry-wise is divided like any other array, and is in one of them, as is a rule whose
    optimizer is in all; the rest are in all.
    """
    names = sorted(CATALOGUE)
    alike = [name for name in names if entrywise(name)]
    inner = [name for name in names if has_an_optimizer(name) and name not in alike]
    once = {*alike, *inner}
    return [[n for n in names if n not in once or n in alike[i::3] + inner[i::3]] for i in range(3)]


THIRDS = thirds()


def steps_of_devices(tx, start, gradients, weight=None):
    """The parameters of all devices after each step, in float64, and their last states."""

    def device(gs, weight):
        def step(carry, g):
            p, state = carry
            extra = {} if weight is None else {"weight": weight}
            updates, state = tx.update(g, state, p, **extra)
            p = gradtx.apply_updates(p, updates)
            return (p, state), p

        p = jax.tree.map(jnp.asarray, start)
        (_, state), found = jax.lax.scan(step, (p, tx.init(p)), gs)
        return found, state

    with jax.enable_x64(True):
        gs = jax.tree.map(jnp.asarray, gradients)
        axes = (0, None if weight is None else 0)
        return jax.jit(jax.vmap(device, in_axes=axes, axis_name="data"))(gs, weight)
