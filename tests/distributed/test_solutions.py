"""Derivatives of solutions on a mesh: as on one device, divided like what they are of."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gradtx
from gradtx import Implicit

P = PartitionSpec
TARGETS = {"a": ("d", "m"), "b": ("m", "d"), "c": ("d",)}


def mesh_of(kind):
    return jax.make_mesh((4, 2), ("d", "m"), axis_types=(kind,) * 2)


def targets():
    rng = np.random.default_rng(0)
    sizes = {"a": (8, 8), "b": (8, 8), "c": (8,)}
    return {name: rng.uniform(0.5, 2.0, size) for name, size in sizes.items()}


def divided(tree, mesh):
    return {k: jax.device_put(x, NamedSharding(mesh, P(*TARGETS[k]))) for k, x in tree.items()}


def loss(p, targets):
    each = jax.tree.map(lambda x, t: jnp.sum((x - t) ** 4) + jnp.sum(x**2), p, targets)
    return each["a"] + each["b"] + each["c"] + jnp.sum(p["c"]) ** 2 / 10


def outer(make, implicit, targets):
    start = jax.tree.map(jnp.zeros_like, targets)
    tx = make(targets)
    result = gradtx.solve(loss, start, tx, targets, max_steps=300, implicit=implicit)
    return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(result.params))


OPTIMIZERS = {
    "cg": (lambda targets: gradtx.sgd(0.05), True),
    "gmres": (lambda targets: gradtx.sgd(0.05), Implicit("gmres")),
    "bounds": (lambda targets: gradtx.lbfgsb(None, jax.tree.map(lambda t: t / 4, targets)), True),
    "penalty": (
        lambda targets: gradtx.proximal(
            gradtx.sgd(0.05), "l1", "c", {"strength": jnp.sum(targets["c"]) / 10}, True
        ),
        True,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_on_one_device(name, kind):
    mesh = mesh_of(kind)
    with jax.enable_x64(True):
        derivative = jax.jit(jax.grad(functools.partial(outer, *OPTIMIZERS[name])))
        want = derivative(targets())
        at = divided(targets(), mesh)
        got = derivative(at)
        for key, each in got.items():
            np.testing.assert_allclose(each, want[key], rtol=1e-6, atol=1e-9)
            assert each.sharding.is_equivalent_to(at[key].sharding, each.ndim)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cg", "gmres"])
def test_the_vectors_of_the_linear_system_stay_divided(name):
    """Joined into one vector, leaves that lie differently would be exchanged at each product."""
    at = divided(targets(), mesh_of(AxisType.Auto))
    derivative = jax.jit(jax.grad(functools.partial(outer, *OPTIMIZERS[name])))
    program = derivative.lower(at).compile().as_text()
    assert "all-to-all(" not in program
    assert "collective-permute(" not in program
    # An inner product in JAX's GMRES puts a leaf together.
    assert name == "gmres" or "all-gather(" not in program
