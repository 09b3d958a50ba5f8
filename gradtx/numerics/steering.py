"""Steering of XLA's compiler: what a formula cannot say, and the program needs."""

from collections.abc import Iterable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from gradtx.numerics.precision import real_dtype
from gradtx.types import Array


def sums(*terms: list[Array]) -> list[Array]:
    """The sum of all entries of each of several lists of leaves: real, and alike in their shapes.

    On an NVIDIA GPU one reduction for each leaf: a kernel with several cannot write over the slots
    that they read, and XLA copies these. Elsewhere a reduction each, which a TPU's compiler fuses.

    >>> [float(x) for x in sums([jnp.arange(3.0), jnp.ones(2)], [jnp.ones(3), jnp.ones(2)])]
    [5.0, 5.0]
    """

    def together(*of_leaf: Array) -> tuple[Array, ...]:
        def add(x: tuple[Array, ...], y: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(a + b for a, b in zip(x, y, strict=True))

        zeros = tuple(jnp.zeros([], x.dtype) for x in of_leaf)
        return tuple(jax.lax.reduce(of_leaf, zeros, add, range(of_leaf[0].ndim)))

    def apart(*of_leaf: Array) -> tuple[Array, ...]:
        return tuple(jnp.sum(x) for x in of_leaf)

    totals = [jnp.zeros([])] * len(terms)
    for of_leaf in zip(*terms, strict=True):
        summed = jax.lax.platform_dependent(*of_leaf, cuda=together, default=apart)
        totals = [a + b for a, b in zip(totals, summed, strict=True)]
    return totals


def after(x: Any, first: Array, *, on: Literal["cpu", "others", "all"] = "cpu") -> Array:
    """`x`, which XLA's compiler for CPUs now cannot compute before `first`; NaN where that is NaN.

    An array that is overwritten in place is copied if something else still reads it. What
    overwrites it is therefore made to wait: for a sum over the old values, or, entry by entry, for
    another new slot. It also keeps XLA from storing what two kernels have in common, where each can
    compute it: a number too, since its sums are library calls, before which it writes a number that
    occurs twice, be it for two leaves, out to their size.

    Other chips need no order. But what is made twice of large arrays may be stored there too; `on`
    says where a number waits, with which it is made.
    """
    x = x if hasattr(x, "dtype") else jnp.asarray(x, real_dtype(first.dtype))
    # Both branches differ along the same axes of a shard_map.
    x = vary(x, varying_axes(jax.typeof(first)) - varying_axes(jax.typeof(x)))

    def wait(x: Array, first: Array) -> Array:
        return jnp.where(is_computed(first), x, 0)

    def free(x: Array, first: Array) -> Array:
        return jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, first.shape))

    cpu, default = {"cpu": (wait, free), "others": (free, wait), "all": (wait, wait)}[on]
    return jax.lax.platform_dependent(x, first, cpu=cpu, default=default)


def is_computed(x: Array) -> Array:
    """True, which XLA's compiler learns only by computing the real number `x`.

    A loop that writes into an array in place and depends on this waits for what reads the old one.
    """
    x = x.real
    return jnp.isnan(x) | (x >= -jnp.inf)


def replace_slot(old: Array, new: Array, number: Array, *readers: Array) -> Array:
    """`new` in the place of the slot `old`, which the new slots `readers` are made of.

    A slot that becomes the gradient is a copy, which no chip fuses with the rest of the step. Where
    XLA makes one kernel of a step, naming the old value fuses it; on a CPU, where every slot has a
    kernel, the copy waits for those that read the old value. `number` is any that is not negative.
    """

    def wait() -> Array:
        value = new
        for reader in readers:
            value = after(value, jnp.abs(reader))
        return value

    return jax.lax.platform_dependent(cpu=wait, default=lambda: jnp.where(number < 0, old, new))


def is_tracer(x: Any) -> bool:
    """Whether `x` is a value that is not known yet."""
    return isinstance(x, jax.core.Tracer)


def varying_axes(kind: Any) -> frozenset[str]:
    """The axes of a ``shard_map`` along which an array of a type differs, as far as JAX knows."""
    for name in ("mat", "manual_axis_type"):  # since jax 0.10, of arrays and of their shapes
        manual = getattr(kind, name, None)
        if manual is not None:
            return frozenset(manual.varying)
    return frozenset(getattr(kind, "vma", ()) or ())


def vary(x: Any, axes: Iterable[str]) -> Any:
    """`x`, which the ``shard_map`` it is in is told to take for different along these axes."""
    axes = tuple(sorted(axes))
    if not axes:
        return x
    lax: Any = jax.lax  # which has pvary alone before jax 0.8.2
    return lax.pcast(x, axes, to="varying") if hasattr(lax, "pcast") else lax.pvary(x, axes)
