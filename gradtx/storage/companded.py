"""Companded integers: even steps after a function that spreads small numbers."""

import jax.numpy as jnp

from gradtx.storage.draws import Draws
from gradtx.storage.format import Format, largest, rounded
from gradtx.types import Array


class Companded(Format):
    r"""An 8-bit integer for each entry, and a float16 scale `s` for each block.

    A number :math:`x` of a signed slot is kept as :math:`2 a / (1 + |a|)` with :math:`a = x / s`,
    in steps of 1/127; one of a second moment as its root, in steps of :math:`s / 255`, and what is
    positive stays so.
    """

    block = 32

    def encode(self, x: Array, axis: int, signed: bool, draws: Draws | None) -> dict[str, Array]:
        y = x if signed else jnp.sqrt(jnp.maximum(x, 0))
        # A NaN is not at most 0, but jnp.maximum keeps it too.
        scale = largest(y, axis).astype(jnp.float16)
        wide = scale.astype(jnp.float32)
        a = y / jnp.where(wide == 0, 1, wide)
        if signed:
            code = jnp.clip(rounded(127 * (2 * a / (1 + jnp.abs(a))), draws), -127, 127)
            return {"codes": code.astype(jnp.int8), "scale": scale}
        code = jnp.clip(rounded(255 * a, draws), jnp.where(x > 0, 1, 0), 255)
        return {"codes": code.astype(jnp.uint8), "scale": scale}

    def decode(
        self, parts: dict[str, Array], axis: int, signed: bool, draws: Draws | None
    ) -> Array:
        code, scale = (parts[n].astype(jnp.float32) for n in ("codes", "scale"))
        if signed:
            z = code / 127
            return z / (2 - jnp.abs(z)) * scale
        root = code / 255 * scale
        return root * root
