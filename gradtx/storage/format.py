"""Common to all formats: blocks of numbers with a scale, and rounding to nearest or at random."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gradtx.storage.draws import Draws
from gradtx.types import Array

NEAREST, STOCHASTIC, SCALE = "nearest", "stochastic", "scale"
TINY = float(jnp.finfo(jnp.float32).tiny)
MOST = 2.0**126
"""The largest scale: XLA divides by the reciprocal, and that of a larger one would become 0."""


class Codec(NamedTuple):
    """A form in which a slot can be kept, by its name, with options. It is data.

    Attributes:
        name: ``"int8"`` for example; docs/storage.md lists all.
        block: how many entries share a scale, 2 or more; None for as many as the source of the
            format has.
        axis: the axis along which a block lies; None for the first of those that need the fewest
            blocks. Along the last axis, rows of a table can be read and written by themselves.
        signed: whether entries may be negative; None to go by the slot: second moments are not.
        rounding: ``"nearest"``; ``"stochastic"``: up or down with the probabilities that make the
            expected result exact, for numbers between the least and the largest that a block can
            represent (signed ``int4`` and ``int8`` have no code for minus the scale, and unsigned
            ``int4`` has none below 1/16 of the scale). ``f8_expanded`` and the companded formats
            round a function of the number, whose expected value is exact. In ``int8_companded``
            also ``"scale"``, in which only the scale of a block is rounded so. None for nearest,
            but for second moments, which would stand still or fall too fast, ``"stochastic"`` in
            ``bf16`` and ``f16`` and ``"scale"`` in ``int8_companded``.

    >>> Codec("int8", block=64)
    Codec(name='int8', block=64, axis=None, signed=None, rounding=None)
    """

    name: str
    block: int | None = None
    axis: int | None = None
    signed: bool | None = None
    rounding: str | None = None


class Format:
    """How numbers become codes. A subclass defines it once, for arrays of any shape.

    Attributes:
        block: how many entries share a scale by default; None if each is kept alone.
        per_byte: how many codes there are in a byte.
        roundings: the ways of rounding that it has.
        of_averages: the default way of rounding for moving averages that are not negative.
        keeps_signs: whether Lion, whose step is the sign of its momentum, learns with the
            momentum in this format while gradients become small.
        drawn: whether codes can only be read with the key with which they were written.
        types: the types, by name, of the parts that `encode` gives in float32 and that are kept in
            a shorter type, of which they are numbers.
    """

    block: int | None = None
    per_byte: int = 1
    roundings: tuple[str, ...] = (NEAREST, STOCHASTIC)
    of_averages: str = NEAREST
    keeps_signs: bool = True
    drawn: bool = False
    types: Mapping[str, Any] = MappingProxyType({})

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        """The parts in which numbers are kept, with the same number of dimensions.

        Args:
            x: the numbers, in float32, with the entries of a block along one axis.
            axis: that axis, which has length 1 in parts such as scales.
            signed: whether they may be negative.
            draws: random numbers, for stochastic rounding, or None.
        """
        raise NotImplementedError

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        """The numbers, in float32."""
        raise NotImplementedError


def largest(x: Array, axis: int) -> Array:
    """The largest absolute value of each block, at most `MOST`; NaN if one of its entries is."""
    return within(jnp.max(jnp.abs(x), axis, keepdims=True), 0, MOST)


def over(x: Array, scale: Array) -> Array:
    """`x` divided by the scale of its block; a block below the least normal number becomes 0."""
    return x / jnp.where(scale < TINY, 1, scale)


def rounded(x: Array, draws: Draws | None) -> Array:
    """The nearest integers, halves up, or with draws one of the two around each number.

    >>> rounded(jnp.array([0.5, 1.4]), None).tolist()
    [1.0, 1.0]
    """
    return jnp.floor(x + (0.5 if draws is None else draws.uniform(x.shape)))


def within(x: Array, least: Array | float, most: Array | float) -> Array:
    """`x` between bounds, without the care for NaN that costs ``jnp.clip`` most of its time."""
    x = jnp.where(x < least, least, x)
    return jnp.where(x > most, most, x)


def integer(x: Array) -> Array:
    """Whole numbers of size below 2**22 as int32: then they are the last bits of ``x + 3 * 2**22``.

    A conversion looks for numbers that do not fit, which on a CPU takes longer than all of `code`.

    >>> integer(jnp.array([-128.0, 0.0, 255.0])).tolist()
    [-128, 0, 255]
    """
    bits = jax.lax.bitcast_convert_type(x + 3 * 2.0**22, jnp.int32)
    return bits - 0x4B400000


def between(
    x: Array,
    code: Array,
    other: Callable[[Array], Array],
    value: Callable[[Array], Array],
    draws: Draws | None,
) -> Array:
    """The nearest code or the one on the other side of `x`, so that the expected value is `x`.

    Args:
        x: the numbers.
        code: the code nearest to each.
        other: ``rising -> code``, the next code above or below.
        value: the number that a code stands for.
        draws: random numbers; None for the nearest.
    """
    if draws is None:
        return code
    here = value(code)
    beyond = other(x > here)
    gap = jnp.abs(value(beyond) - here)
    chance = jnp.abs(x - here) / jnp.where(gap > 0, gap, 1)
    return jnp.where(draws.uniform(x.shape) < chance, beyond, code)
