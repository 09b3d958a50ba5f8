"""The step being taken, and the scalars of its number alone: bias corrections."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.numerics.mathematics import log_of
from gradtx.numerics.precision import cast
from gradtx.types import Array, DType


def increment(count: Array) -> Array:
    """`count + 1`, saturating at the largest number that its type holds."""
    last = np.array(jnp.iinfo(count.dtype).max - 1, count.dtype)  # no Python int: may be large
    return jnp.minimum(count, last) + 1


def safe_increment(count: Any) -> Array:
    """`count + 1`, or `count` if that is the largest number that its type holds.

    Args:
        count: an integer or a floating-point number.

    Raises:
        ValueError: it is neither.

    >>> safe_increment(jnp.array([7, 127], jnp.int8)).tolist()
    [8, 127]
    """
    count = jnp.asarray(count)
    if jnp.issubdtype(count.dtype, jnp.floating):
        return jnp.minimum(count + 1, jnp.finfo(count.dtype).max)
    if not jnp.issubdtype(count.dtype, jnp.integer):
        raise ValueError(f"safe_increment: count must be a number, not {count.dtype}")
    return increment(count)


safe_int32_increment = safe_increment


_MOST = 64  # distinct numbers of one leaf


class Step:
    """The step being taken, counted from 1 as papers count, with scalars that depend on it alone.

    In arithmetic it is its number: ``lr / t**0.5``. Scalars belong to the step and not to the leaf:
    a bias correction is traced once however many leaves use it.

    Attributes:
        count: the number as an integer.
        number: the number in the type in which the leaf is computed.
    """

    def __init__(self, count: Array, dtype: DType) -> None:
        self.count = count
        self.number = count.astype(dtype)
        self._made: dict[Any, tuple[Any, Array]] = {}
        self._others = 0
        self._leaf: Any = 0

    def __jax_array__(self) -> Array:
        return self.number

    def __add__(self, other: Any) -> Array:
        return self.number + other

    def __radd__(self, other: Any) -> Array:
        return other + self.number

    def __sub__(self, other: Any) -> Array:
        return self.number - other

    def __rsub__(self, other: Any) -> Array:
        return other - self.number

    def __mul__(self, other: Any) -> Array:
        return self.number * other

    def __rmul__(self, other: Any) -> Array:
        return other * self.number

    def __truediv__(self, other: Any) -> Array:
        return self.number / other

    def __rtruediv__(self, other: Any) -> Array:
        return other / self.number

    def __pow__(self, other: Any) -> Array:
        return self.number**other

    def __rpow__(self, other: Any) -> Array:
        return other**self.number

    def __mod__(self, other: Any) -> Array:
        return self.number % other

    def __neg__(self) -> Array:
        return -self.number

    def __eq__(self, other: object) -> Any:
        return self.number == other

    def __ne__(self, other: object) -> Any:
        return self.number != other

    def __lt__(self, other: Any) -> Any:
        return self.number < other

    def __le__(self, other: Any) -> Any:
        return self.number <= other

    def __gt__(self, other: Any) -> Any:
        return self.number > other

    def __ge__(self, other: Any) -> Any:
        return self.number >= other

    __hash__ = object.__hash__

    def of_leaf(self, leaf: Any) -> "Step":
        """This step for one leaf, by whose number :meth:`distinct` tells leaves apart."""
        step = copy.copy(self)
        step._leaf, step._others = leaf, 0
        return step

    def branched(self) -> "Step":
        """This step with all that it has computed, and without what this one will compute."""
        step = copy.copy(self)
        step._made = dict(self._made)
        return step

    def distinct(self) -> Array:
        """A number that nothing else gets, so that XLA shares nothing that is made of it."""
        self._others += 1
        other = self._leaf * _MOST + self._others
        return self.number + jnp.asarray(other, self.number.dtype)

    def before(self) -> "Step":
        """The step before this one; before the first step, the first step itself."""
        return Step(jnp.maximum(self.count - 1, 1), self.number.dtype)

    def once(self, name: str, key: Any, make: Callable[[], Array]) -> Array:
        """The result of `make`, which is called once for each name and key, and then remembered."""
        at = name, key if isinstance(key, float | int | tuple) else id(key)
        if at not in self._made:
            # The key is kept so that its id is not given to another array.
            self._made[at] = key, make()
        return self._made[at][1]

    @property
    def remembered(self) -> int:
        """How many scalars it remembers."""
        return len(self._made)

    def forget(self, after: int) -> None:
        """Forget the scalars that it computed after the first ones, this many."""
        for at in list(self._made)[after:]:
            del self._made[at]

    def bias_correction(self, decay: Any, ahead: int = 0) -> Array:
        r""":math:`1 - \beta^{t + a}`, accurate also where it is small.

        ``expm1`` of the logarithm taken in double precision: a float32 power would give
        :math:`1 - 0.999^1` with an error of 1e-5.
        """
        return self.once(f"correction {ahead}", decay, lambda: -self.less_one(decay, ahead))

    def debiasing(self, decay: Any) -> Array:
        r""":math:`1 / (1 - \beta^t)`, with one operation fewer."""
        return self.once("debiasing", decay, lambda: -1 / self.less_one(decay))

    def less_one(self, decay: Any, ahead: int = 0) -> Array:
        r""":math:`\beta^{t + a} - 1`, by which to divide, with one operation fewer."""

        def power_less_one() -> Array:
            power = jnp.expm1((self.number + ahead) * log_of(decay))
            return cast(power, self.number.dtype)

        return self.once(f"less one {ahead}", decay, power_less_one)


def debias(moment: Array, decay: Any, t: Step, *, divided: bool = False) -> Array:
    r"""Adam's bias correction :math:`m / (1 - \beta^t)`.

    If the result is `divided` next, this is a division too: XLA merges the two, and computes one
    number fewer. Otherwise a product is cheaper.
    """
    return -moment / t.less_one(decay) if divided else moment * t.debiasing(decay)


def epsilon_hat(eps: Any, decay: Any, t: Step) -> Any:
    r"""The addend of the corrected root that adds :math:`\epsilon` to the root before correction.

    .. math:: \sqrt{\hat\nu} + \frac{\epsilon}{\sqrt{1 - \beta^t}}
        = \frac{\sqrt{\nu} + \epsilon}{\sqrt{1 - \beta^t}}
    """
    return eps * t.once("epsilon hat", decay, lambda: jax.lax.rsqrt(t.bias_correction(decay)))


def nesterov_mean(mu: Array, g: Array, decay: Any, t: Step) -> Array:
    r"""The look-ahead first moment of NAdam.

    .. math:: \beta \frac{\mu}{1-\beta^{t+1}} + (1-\beta) \frac{g}{1-\beta^t}
    """
    of_mu = t.once("of mu", decay, lambda: decay / t.bias_correction(decay, ahead=1))
    of_g = t.once("of g", decay, lambda: (1 - decay) / t.bias_correction(decay))
    return mu * of_mu + g * of_g
