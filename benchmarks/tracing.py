"""What it takes to trace and lower a step of compositions, before XLA compiles anything.

python -m benchmarks.tracing

Each of gradtx beside what does the same in Optax, in turns, in processor time.
"""

import functools
import gc
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import gradtx
from benchmarks.tables import markdown
from gradtx.wrappers.store import MIN_SIZE

LEAVES, SHAPES = 150, (4, 40)
UNIT = 64  # the smallest side: `store` keeps smaller leaves as they are
ROUNDS = 8
GROUPS = 8
RATE = 1e-3


def matrices(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.shape[0] > 2 * UNIT, tree)


def groups(tree: Any) -> Any:
    return {name: str(int(name) % GROUPS) for name in tree}


def adamw(library: ModuleType) -> Any:
    return library.adamw(RATE)


def unchanged(library: ModuleType) -> Any:
    """A step that applies the gradients: what JAX takes for the arguments alone."""
    init = library.adamw(RATE).init
    return optax.GradientTransformation(init, lambda updates, state, params: (updates, state))


def clipped(library: ModuleType) -> Any:
    return library.chain(library.clip_by_global_norm(1.0), library.adamw(RATE))


def masked(library: ModuleType) -> Any:
    decay = library.masked(library.add_decayed_weights(1e-2), matrices)
    return library.chain(library.adam(RATE), decay)


def grouped(library: ModuleType) -> Any:
    return library.partition({str(i): library.adamw(RATE * (i + 1)) for i in range(GROUPS)}, groups)


def with_norms(tx: Any) -> Any:
    """A transformation of Optax whose state has the norms that `guard` reports."""

    def init(params: Any) -> Any:
        return tx.init(params), [jnp.zeros([])] * 3

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        new, inner = tx.update(updates, state[0], params)
        return new, (inner, list(map(optax.tree.norm, (updates, new, params))))

    return optax.GradientTransformation(init, update)


def stored() -> Any:
    return gradtx.store(gradtx.adamw(RATE), "int8")


class Coded(NamedTuple):
    """A slot in int8, with a scale for each row."""

    codes: jax.Array
    scale: jax.Array


def linear(x: jax.Array) -> jax.Array:
    """The nearest of evenly spaced codes to numbers of size at most 1."""
    return jnp.round(127 * x).astype(jnp.int8)


def of_linear(codes: jax.Array) -> jax.Array:
    return codes / 127


def dynamic_map() -> np.ndarray:
    """The numbers of bitsandbytes' dynamic map of 8 bits, which those of `store` are too."""
    decades = [np.linspace(0.1, 1, 2**k + 1) * 10.0 ** (k - 6) for k in range(7)]
    middles = np.concatenate([(ends[:-1] + ends[1:]) / 2 for ends in decades])
    return np.sort([*-middles, 0, *middles, 1]).astype(np.float32)


NUMBERS = dynamic_map()


def dynamic(x: jax.Array) -> jax.Array:
    """The code of the nearest number of the map."""
    return jnp.searchsorted((NUMBERS[:-1] + NUMBERS[1:]) / 2, x).astype(jnp.uint8)


def of_dynamic(codes: jax.Array) -> jax.Array:
    return jnp.asarray(NUMBERS)[codes]


Coder = Callable[[jax.Array], jax.Array]


def in_int8(tx: Any, code: Coder, number: Coder) -> Any:
    """A transformation of Optax whose large slots are kept in int8, as one would write it oneself.

    Blocks are rows, and second moments are coded like first ones: less than `store` does.
    """

    def encoded(x: jax.Array) -> Any:
        if x.size < MIN_SIZE:
            return x
        scale = jnp.max(jnp.abs(x), -1, keepdims=True)
        return Coded(code(x / jnp.where(scale == 0, 1, scale)), scale)

    def decoded(x: Any) -> jax.Array:
        return number(x.codes) * x.scale if isinstance(x, Coded) else x

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        state = jax.tree.map(decoded, state, is_leaf=lambda x: isinstance(x, Coded))
        updates, state = tx.update(updates, state, params)
        return updates, jax.tree.map(encoded, state)

    return optax.GradientTransformation(lambda p: jax.tree.map(encoded, tx.init(p)), update)


# By name what makes the transformation of gradtx, and that of Optax.
COMPOSITIONS: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    name: (functools.partial(make, gradtx), functools.partial(make, optax))
    for name, make in (
        ("gradients as they are, with the state of `adamw`", unchanged),
        ("`adamw`", adamw),
        ("clipping, `adamw`", clipped),
        ("`adam`, decay under a mask function", masked),
        ("`partition`, eight groups of `adamw`", grouped),
        ("`lamb`", lambda library: library.lamb(RATE)),
        ("`lars`", lambda library: library.lars(RATE)),
    )
} | {
    "`guard` / `apply_if_finite`": (
        lambda: gradtx.guard(gradtx.adamw(RATE)),
        lambda: optax.apply_if_finite(optax.adamw(RATE), 5),
    ),
    "`guard` / `apply_if_finite` and the norms that `guard` reports": (
        lambda: gradtx.guard(gradtx.adamw(RATE)),
        lambda: with_norms(optax.apply_if_finite(optax.adamw(RATE), 5)),
    ),
    "`accumulate` / `MultiSteps`": (
        lambda: gradtx.accumulate(gradtx.adamw(RATE), 4),
        lambda: optax.MultiSteps(optax.adamw(RATE), 4).gradient_transformation(),
    ),
    "`store` in int8 / `adamw`": (
        stored,
        lambda: optax.adamw(RATE),
    ),
    "`store` in int8 / `adamw` with evenly spaced codes by hand": (
        stored,
        lambda: in_int8(optax.adamw(RATE), linear, of_linear),
    ),
    "`store` in int8 / `adamw` with the same codes by hand": (
        stored,
        lambda: in_int8(optax.adamw(RATE), dynamic, of_dynamic),
    ),
}


def lowered(make: Callable[[], Any], params: Any) -> float:
    """The seconds to trace and lower a step."""
    tx = make()

    def step(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(tx.init, params)
    gc.collect()  # it takes as long as some of the traces, and falls to one or the other by chance
    gc.disable()
    start = time.process_time()
    jax.jit(step, donate_argnums=(0, 1)).lower(params, state, params)
    seconds = time.process_time() - start
    gc.enable()
    return seconds


def row(name: str, shapes: int) -> list[object]:
    kinds = [(UNIT * (1 + i % 8), UNIT * (1 + i // 8)) for i in range(shapes)]
    params = {str(i): jax.ShapeDtypeStruct(kinds[i % shapes], jnp.float32) for i in range(LEAVES)}
    makers = COMPOSITIONS[name]
    seconds = [float("inf"), float("inf")]
    for make in makers:  # the first trace in a process pays for what jax imports and caches
        lowered(make, params)
    for _ in range(ROUNDS):
        for i, make in enumerate(makers):
            seconds[i] = min(seconds[i], lowered(make, params))
    ours, theirs = seconds
    return [name, shapes, 1e3 * ours, 1e3 * theirs, ours / theirs]


def table() -> str:
    return markdown(
        f"Tracing and lowering compositions, {LEAVES} leaves",
        ["", "shapes", "gradtx, ms", "optax, ms", "gradtx / optax"],
        [row(name, shapes) for name in COMPOSITIONS for shapes in SHAPES],
    )


if __name__ == "__main__":
    print(table())
