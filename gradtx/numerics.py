"""Array mathematics of a rule: one leaf at a time, in at least single precision."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from gradtx.types import Array, DType, PyTree


def compute_dtype(dtype: DType) -> DType:
    """The type in which arithmetic on numbers stored as `dtype` is done: float32 or wider."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return jnp.dtype(jnp.float32)
    return dtype


def real_dtype(dtype: DType) -> DType:
    """The type of the absolute value of numbers of type `dtype`."""
    return jnp.finfo(dtype).dtype


def scalar_dtype(arrays: Sequence[Any]) -> DType:
    """The type of a number that belongs to several arrays: real, float32 or wider."""
    if not arrays:
        return jnp.dtype(jnp.float32)
    return real_dtype(compute_dtype(jnp.result_type(*(x.dtype for x in arrays))))


def cast(x: Array, dtype: DType) -> Array:
    """`x` as a strong `dtype`; nothing is traced where it is that already."""
    if x.dtype == dtype and not getattr(x, "weak_type", False):
        return x
    return x.astype(dtype)


def as_arrays(tree: PyTree) -> PyTree:
    """`tree` with floating-point arrays in the place of Python's numbers, and all else as it is.

    >>> as_arrays({"a": 1, "b": None})
    {'a': Array(1., dtype=float32), 'b': None}
    """
    if not any(type(x) in (int, float) for x in jax.tree.leaves(tree)):
        return tree
    return jax.tree.map(lambda x: jnp.asarray(x, float) if type(x) in (int, float) else x, tree)


def widen(x: Array) -> Array:
    """`x` in the type in which rules compute."""
    return cast(x, compute_dtype(x.dtype))


def zeros_like(x: Array, dtype: DType | None = None) -> Array:
    """Zeros of the shape, sharding and (unless given) type of `x`."""
    return jnp.zeros_like(x, dtype=dtype)


def full_like(x: Array, value: Any, dtype: DType | None = None) -> Array:
    """`value` in the shape, sharding and (unless given) type of `x`."""
    return jnp.full_like(x, value, dtype=dtype)


def accumulator_dtype(x: Array, dtype: DType | None = None) -> DType:
    """The type of a slot that sums squares of `x`: real, and float32 or wider unless given.

    In bfloat16 a second moment with a decay of 0.999 would never decay (half a unit in the last
    place is 0.2 %), and in float16 small squares would vanish.
    """
    return jnp.dtype(dtype) if dtype is not None else real_dtype(compute_dtype(x.dtype))


def increment(count: Array) -> Array:
    """`count + 1`, saturating at the largest number that its type holds."""
    return jnp.minimum(count, jnp.iinfo(count.dtype).max - 1) + 1


def abs_sq(x: Array) -> Array:
    """The squared absolute value, real also for complex `x`."""
    if jnp.iscomplexobj(x):
        return jnp.square(x.real) + jnp.square(x.imag)
    return jnp.square(x)


def sum_sq(x: Array) -> Array:
    """The sum of squared absolute values, in at least float32.

    >>> float(sum_sq(jnp.full(10, 300.0, jnp.float16)))
    900000.0
    """
    return jnp.sum(abs_sq(widen(x)))


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


def ema(new: Array, old: Array, decay: Any) -> Array:
    """The exponential moving average ``decay * old + (1 - decay) * new``."""
    return decay * old + (1 - decay) * new


def all_finite(x: Array) -> Array:
    """Whether no entry is NaN or infinite.

    Told by a sum, for which XLA on CPUs stores nothing: it would store an array of booleans.

    >>> bool(all_finite(jnp.array([1e30, jnp.inf])))
    False
    """
    return jnp.sum(x * 0) == 0


def any_nan(x: Array) -> Array:
    """Whether an entry is NaN: the sum of the signs then is.

    >>> bool(any_nan(jnp.array([jnp.inf, -jnp.inf]))), bool(any_nan(jnp.array([jnp.nan])))
    (False, True)
    """
    if jnp.iscomplexobj(x):
        return any_nan(x.real) | any_nan(x.imag)
    return jnp.isnan(jnp.sum(jnp.sign(widen(x))))


def cube_root(x: Array) -> Array:
    """The cube root of numbers that are not negative, to 3e-6 in float32.

    By a logarithm, which is computed for many entries at once: XLA for CPUs calls the C library's
    ``cbrt`` for one entry after the other, which takes fifteen times as long.

    >>> cube_root(jnp.array([0.0, 8.0])).round(5).tolist()
    [0.0, 2.0]
    """
    return jnp.exp(jnp.log(x) / 3)


def divide(x: Array, y: Array) -> Array:
    """``x / y``, and 0 where `y` is 0.

    >>> divide(jnp.array([0.0, 3.0]), jnp.array([0.0, 2.0])).tolist()
    [0.0, 1.5]
    """
    return jnp.where(y == 0, 0, x / jnp.where(y == 0, 1, y))


def row_mean(x: Array) -> Array:
    """The mean of each row, along the first dimension, with the other dimensions of length 1.

    >>> row_mean(jnp.array([[1.0, 3.0], [4.0, 4.0]])).tolist()
    [[2.0], [4.0]]
    """
    return x if x.ndim < 2 else jnp.mean(x, axis=tuple(range(1, x.ndim)), keepdims=True)


def one_per_row(x: Array) -> Array:
    """The first entry of each row: an array of the shape, and the sharding, of `row_mean`."""
    return x if x.ndim < 2 else x[(slice(None), *(slice(0, 1) for _ in x.shape[1:]))]


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
    more = varying_axes(jax.typeof(first)) - varying_axes(jax.typeof(x))
    x = jax.lax.pcast(x, tuple(more), to="varying") if more else x

    def wait(x: Array, first: Array) -> Array:
        return jnp.where(jnp.isnan(first), jnp.nan, x)

    def free(x: Array, first: Array) -> Array:
        return jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, first.shape))

    cpu, default = {"cpu": (wait, free), "others": (free, wait), "all": (wait, wait)}[on]
    return jax.lax.platform_dependent(x, first, cpu=cpu, default=default)


def is_computed(x: Array) -> Array:
    """True, which XLA's compiler learns only by computing the real number `x`.

    A loop that writes into an array in place and depends on this waits for what reads the old one.
    """
    return jnp.isnan(x) | (x >= -jnp.inf)


def shrink(x: Array, l1: Any, l2: Any = 0.0) -> Array:
    """The proximal map of ``l1 |x| + l2 |x|^2 / 2``: entries of at most `l1` become 0.

    >>> shrink(jnp.array([3.0, -0.5]), 1.0, 1.0).tolist()
    [1.0, -0.0]
    """
    return jnp.sign(x) * (jnp.maximum(jnp.abs(x) - l1, 0) / (1 + l2))


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


class Step:
    """The step being taken, counted from 1 as papers count, with what depends on it alone.

    Scalars belong to the step and not to the leaf: a bias correction is traced once however many
    leaves use it.
    """

    def __init__(self, count: Array, dtype: DType) -> None:
        self.number = count.astype(dtype)
        self._made: dict[Any, tuple[Any, Array]] = {}
        self._others = 0

    def another(self) -> Array:
        """A number that nobody else gets, for `after`: what leaves have in common is stored."""
        self._others += 1
        return self.number + self._others

    def once(self, name: str, key: Any, make: Callable[[], Array]) -> Array:
        """What `make` returns, computed when first asked for by this name and key."""
        at = name, key if isinstance(key, float | int | tuple) else id(key)
        if at not in self._made:
            # The key is kept so that its id is not given to another array.
            self._made[at] = key, make()
        return self._made[at][1]

    def bias_correction(self, decay: Any, ahead: int = 0) -> Array:
        r""":math:`1 - \beta^{t + a}`, accurate also where it is small.

        ``expm1`` of the logarithm taken in double precision: a float32 power would give
        :math:`1 - 0.999^1` with an error of 1e-5.
        """
        return self.once(f"correction {ahead}", decay, lambda: -self.less_one(decay, ahead))

    def debiasing(self, decay: Any) -> Array:
        r""":math:`1 / (1 - \beta^t)`, in one operation less."""
        return self.once("debiasing", decay, lambda: -1 / self.less_one(decay))

    def less_one(self, decay: Any, ahead: int = 0) -> Array:
        r""":math:`\beta^{t + a} - 1`, by which to divide, in one operation less."""
        return self.once(f"less one {ahead}", decay, lambda: self._decayed(decay, ahead))

    def _decayed(self, decay: Any, ahead: int) -> Array:
        if isinstance(decay, float | int):
            log: Any = math.log(decay) if decay > 0 else -math.inf
        else:
            log = jnp.log(decay)
        return cast(jnp.expm1((self.number + ahead) * log), self.number.dtype)


def debias(moment: Array, decay: Any, t: Step, *, divided: bool = False) -> Array:
    r"""Adam's bias correction :math:`m / (1 - \beta^t)`.

    What is `divided` next is divided here too: XLA makes one division of both, and computes a
    number less. Else a product is cheaper.
    """
    return -moment / t.less_one(decay) if divided else moment * t.debiasing(decay)


def epsilon_hat(eps: Any, decay: Any, t: Step) -> Any:
    r"""What added to the corrected root is :math:`\epsilon` added to the root before correction.

    .. math:: \sqrt{\hat\nu} + \frac{\epsilon}{\sqrt{1 - \beta^t}}
        = \frac{\sqrt{\nu} + \epsilon}{\sqrt{1 - \beta^t}}
    """
    return eps * t.once("epsilon hat", decay, lambda: jax.lax.rsqrt(t.bias_correction(decay)))


def nesterov_mean(mu: Array, g: Array, decay: Any, t: Step) -> Array:
    r"""The look-ahead first moment of Nadam.

    .. math:: \beta \frac{\mu}{1-\beta^{t+1}} + (1-\beta) \frac{g}{1-\beta^t}
    """
    of_mu = t.once("of mu", decay, lambda: decay / t.bias_correction(decay, ahead=1))
    of_g = t.once("of g", decay, lambda: (1 - decay) / t.bias_correction(decay))
    return mu * of_mu + g * of_g


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
