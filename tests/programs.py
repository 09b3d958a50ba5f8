"""What traced and compiled programs consist of."""

import contextlib
import sys

import jax
import jaxlib
import pytest

from gradtx.programs.interpreter import inner_jaxprs

# Since this version XLA's compiler for CPUs calls a library for sums. Before it stores what is
# summed and sums it in pieces, in `jnp.sum(x * x)` too.
SUMS_STORE_NOTHING = (0, 10, 2)


def equations(jaxpr, without=()):
    """The names of the operations, those of inner programs included; not those `without`."""
    kept = [eqn for eqn in jaxpr.eqns if eqn.primitive.name not in without]
    inner = [program for eqn in kept for program in inner_jaxprs(eqn)]
    return [e.primitive.name for e in kept] + [n for j in inner for n in equations(j, without)]


def distinct_equations(jaxpr, seen=None):
    """How many there are if an inner program that is called again and again counts once."""
    seen = {} if seen is None else seen
    if id(jaxpr) in seen:
        return 0
    seen[id(jaxpr)] = jaxpr  # kept, or another could get its place in memory
    inner = [program for eqn in jaxpr.eqns for program in inner_jaxprs(eqn)]
    return len(jaxpr.eqns) + sum(distinct_equations(j, seen) for j in inner)


def temporary_bytes(compiled):
    """The bytes beside arguments and results; skips a program whose sums take them in any case."""
    old = jaxlib.version.__version_info__ < SUMS_STORE_NOTHING
    if old and " reduce-window(" in compiled.as_text():
        pytest.skip(f"jaxlib {jaxlib.__version__} stores what a large sum is over")
    return compiled.memory_analysis().temp_size_in_bytes


@contextlib.contextmanager
def an_h100():
    """As where an H100 is: since JAX 0.12 kernels are lowered for a known GPU alone."""
    if jax.__version_info__ < (0, 12):
        yield
        return
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((1,), ("x",), axis_types=auto, abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


def without(monkeypatch, *backends):
    """As with a JAX whose Pallas has lost some backends, by their modules' names."""
    from jax.experimental import pallas

    for name in backends:
        monkeypatch.delattr(pallas, name, raising=False)
        monkeypatch.setitem(sys.modules, f"jax.experimental.pallas.{name}", None)


GPU_KERNELS = {
    "Triton": "custom_call @__gpu$xla.gpu.triton",
    "Mosaic GPU": "custom_call @mosaic_gpu_v2",
}
"""What a lowered program has for each kernel, by its compiler."""


def gpu_kernels(lowered):
    """How many kernels of each compiler a program for GPUs has, where it has any."""
    text = lowered.as_text()
    return {name: n for name, call in GPU_KERNELS.items() if (n := text.count(call))}
