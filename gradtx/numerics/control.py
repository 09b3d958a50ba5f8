"""Conditionals and loops: XLA's in a compiled step, Python's outside of one.

Outside, XLA's would be recompiled at each call, since their branches are new functions each time,
and JAX would cache every program.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from gradtx.numerics.steering import is_tracer

_T = TypeVar("_T")


def branch(condition: Any, yes: Callable[..., _T], no: Callable[..., _T], *operands: Any) -> _T:
    """``yes(*operands)`` if `condition` holds, otherwise ``no(*operands)``; the results are alike.

    >>> branch(True, lambda x: x + 1, lambda x: x, 1)
    2
    """
    if is_tracer(condition):
        chosen: _T = jax.lax.cond(condition, yes, no, *operands)
        return chosen
    return (yes if condition else no)(*operands)


def repeat_while(going: Callable[[_T], Any], body: Callable[[_T], _T], now: _T) -> _T:
    """``now = body(now)`` as long as ``going(now)``.

    >>> repeat_while(lambda n: n < 5, lambda n: 2 * n, 1)
    8
    """
    while not is_tracer(more := going(now)):
        if not more:
            return now
        now = body(now)
    last: _T = jax.lax.while_loop(going, body, now)
    return last


def repeat(times: int, body: Callable[[Any, _T], _T], now: _T) -> _T:
    """``now = body(i, now)`` for `i` from 0 to `times` - 1.

    >>> repeat(3, lambda i, n: n + i, 0)
    3
    """
    if any(map(is_tracer, jax.tree.leaves(now))):
        last: _T = jax.lax.fori_loop(0, times, body, now)
        return last
    for i in range(times):
        now = body(i, now)
    return now


def fold(body: Callable[[_T, Any], _T], now: _T, xs: Any) -> _T:
    """``now = body(now, x)`` for each entry `x` of the array `xs` along its first axis.

    >>> float(fold(lambda n, x: n + x, jax.numpy.zeros([]), jax.numpy.arange(3.0)))
    3.0
    """
    if any(map(is_tracer, jax.tree.leaves(now))):
        last: _T = jax.lax.scan(lambda n, x: (body(n, x), None), now, xs)[0]
        return last
    for x in xs:
        now = body(now, x)
    return now
