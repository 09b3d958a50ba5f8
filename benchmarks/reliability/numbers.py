"""Numbers at the ends of their types: gradients, counters, and a million steps."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.reliability.outcome import Outcome
from tests.catalogue import CATALOGUE
from tests.test_contracts import params, step

DTYPES = ("float32", "bfloat16", "float16")
FEW = ("adam", "lion", "rmsprop", "sgd")
LAST = 2**31 - 1

# These count the steps of a window, of which there are never that many.
WINDOWS = {"apply_every", "asam", "dynamic_loss_scale", "gsam", "lookahead", "sam"}

# Where a step is not finite, as docs/reliability.md says.
# They divide by the last step's slot, here epsilon alone; float16 cannot hold the result.
SMALL = {"float16, zero", "float16, smallest"}
EXTREME = {"acprop": SMALL, "scale_by_acprop": SMALL}


def gradients(dtype: Any) -> dict[str, Any]:
    about = jnp.finfo(dtype)
    return {
        "zero": 0.0,
        "smallest": about.smallest_subnormal,
        "tiny": about.tiny,
        "negative tiny": -about.tiny,
        "large": about.max / 16,
        "negative large": -about.max / 16,
        "largest": about.max,
    }


def finite(tree: Any) -> bool:
    inexact = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return all(np.all(np.isfinite(np.asarray(x).astype(np.float32))) for x in inexact)


def extremes(quick: bool) -> Outcome:
    """A step by each gradient and then one by an ordinary gradient, operation by operation: what a
    type's operations compile, the next transformation has. What the largest finite gradient does
    is counted and not promised: sums of two such are infinite by definition."""
    done, overflown = Outcome(), 0
    for name in FEW if quick else sorted(CATALOGUE):
        tx = CATALOGUE[name].make()
        for dtype in DTYPES:
            p = params(name, jnp.dtype(dtype))
            ordinary = jax.tree.map(jnp.cos, p)
            for kind, g in gradients(dtype).items():
                grads = jax.tree.map(functools.partial(jnp.full_like, fill_value=g), p)
                carry, first = step(tx, (p, tx.init(p)), grads)
                _, second = step(tx, carry, ordinary)
                what, good = f"{dtype}, {kind}", finite((first, second))
                if kind == "largest":
                    overflown += not good
                else:
                    done.check(good, f"{name}, {what}", what in EXTREME.get(name, ()))
    done.notes = {"not finite at the largest": overflown}
    return done


def counters(quick: bool) -> Outcome:
    """Every step counter of every state at its last value: it stays there, and steps go on."""
    done = Outcome()
    p = params()
    grads = jax.tree.map(jnp.cos, p)
    for name in FEW if quick else sorted(CATALOGUE):
        tx = CATALOGUE[name].make()
        state = tx.init(p)
        paths = [path for path, x in jax.tree.leaves_with_path(state) if is_counter(path, x)]
        if not paths:
            continue
        carry = p, jax.tree.map_with_path(lambda at, x, paths=paths: last(x, at in paths), state)
        for _ in range(2):
            carry, updates = step(tx, carry, grads)
        counts = [x for path, x in jax.tree.leaves_with_path(carry[1]) if path in paths]
        done.check(finite((carry[0], updates)), f"{name}: a step that is not finite")
        good = all(np.all(np.asarray(x) >= 0) for x in counts)
        done.check(good, f"{name}: a negative counter", name in WINDOWS)
    return done


def is_counter(path: Any, x: Any) -> bool:
    name = jax.tree_util.keystr(path[-1:], simple=True) if path else ""
    return x.dtype == jnp.int32 and ("count" in name or "step" in name)


def last(x: Any, wanted: bool) -> Any:
    return jnp.full_like(x, LAST) if wanted else x


def steps(quick: bool) -> Outcome:
    """Adam on a number, in one scan in float32, against the paper's equations in float64."""
    done, count = Outcome(), 20_000 if quick else 1_000_000
    rate, b1, b2, eps = 1e-3, 0.9, 0.999, 1e-8
    grads = np.random.default_rng(0).normal(0.3, 1.0, count).astype(np.float32)
    tx = gradtx.adam(rate, b1=b1, b2=b2, eps=eps)

    @jax.jit
    def run(state: Any, grads: Any) -> Any:
        def body(state: Any, g: Any) -> Any:
            updates, state = tx.update(g, state)
            return state, updates

        return jax.lax.scan(body, state, grads)

    state, updates = run(tx.init(jnp.float32(0.0)), grads)
    m = v = 0.0
    wanted = np.empty(count)
    for i, g in enumerate(grads.astype(np.float64)):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        wanted[i] = -rate * m / (1 - b1 ** (i + 1)) / (np.sqrt(v / (1 - b2 ** (i + 1))) + eps)
    error = float(np.max(np.abs(np.asarray(updates, np.float64) - wanted)) / rate)
    done.tried = count
    if error > 1e-5:
        done.failures.append(f"an update is {error:.1e} learning rates off")
    if int(gradtx.tree.get(state, "count")) != count:
        done.failures.append("the counter is not the number of steps")
    done.notes = {"largest error in learning rates": error}
    return done
