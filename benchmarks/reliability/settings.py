"""JAX's strict settings, one at a time, over the whole catalogue.

Those that act while a step is traced see one traced; those that look at what was computed see a
compiled step run, whose arrays are already on the device.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any

import jax

from benchmarks.reliability.outcome import Outcome, raised
from tests.catalogue import CATALOGUE
from tests.test_contracts import INFINITE_AT_FIRST, grads, params, step, take

FEW = ("adam", "rmsprop", "sgd")


def traced(tx: Any, p: Any, g: Any) -> None:
    state = jax.eval_shape(tx.init, p)
    jax.eval_shape(functools.partial(_step, tx), p, state, g)


def leaks(tx: Any, p: Any, g: Any) -> None:
    jax.jit(functools.partial(_step, tx)).trace(p, tx.init(p), g)


def eager(tx: Any, p: Any, g: Any) -> None:
    _step(tx, p, tx.init(p), g)


def _step(tx: Any, p: Any, state: Any, g: Any) -> Any:
    return step(tx, (p, state), g)


# The setting, what it is to be, and what is done under it.
TRACED: dict[str, tuple[Any, Callable[..., None]]] = {
    "jax_numpy_dtype_promotion": ("strict", traced),
    "jax_numpy_rank_promotion": ("raise", traced),
    "jax_enable_x64": (True, traced),
    "jax_enable_custom_prng": (True, traced),
    "jax_check_tracer_leaks": (True, leaks),
    "jax_disable_jit": (True, eager),
}
DEBUG = ("jax_debug_nans", "jax_debug_infs")
GUARD = "jax_transfer_guard"

# What does not run under a setting, as docs/reliability.md says.
KNOWN = {"jax_debug_infs, init": INFINITE_AT_FIRST}


def settings(quick: bool) -> Outcome:
    done = Outcome()
    p, g = params(), take(grads(1), 0)
    passed: collections.Counter[str] = collections.Counter()

    def tried(name: str, flag: str, wanted: Any, act: Callable[[], Any], what: str = "") -> None:
        before = getattr(jax.config, flag)
        jax.config.update(flag, wanted)
        try:
            jax.block_until_ready(act())
            says = ""
        except Exception as error:
            says = raised(error)
        finally:
            jax.config.update(flag, before)
        at = flag + what
        passed[at] += not says
        done.check(not says, f"{at}: {name}: {says}", name in KNOWN.get(at, ()))

    for name in FEW if quick else sorted(CATALOGUE):
        tx = CATALOGUE[name].make()
        for flag, (wanted, act) in TRACED.items():
            tried(name, flag, wanted, functools.partial(act, tx, p, g))
        run = jax.jit(functools.partial(_step, tx))
        arguments = p, tx.init(p), g
        run(*arguments)
        tried(name, GUARD, "disallow", functools.partial(run, *arguments))
        for flag in DEBUG:
            # A function of its own: what was compiled before may run without a look at results.
            fresh = jax.jit(functools.partial(_step, tx))
            tried(name, flag, True, functools.partial(fresh, *arguments))
            start = jax.jit(lambda p, tx=tx: tx.init(p))
            tried(name, flag, True, functools.partial(start, p), ", init")
    done.notes = {f"passed {at}": count for at, count in passed.items()}
    return done
