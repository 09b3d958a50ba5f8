"""The runs of one optimizer on one problem: its search, its figure over seeds, its basin.

Each run is the same function of a setting and a seed, compiled once and called for a few runs at a
time. One after another they take no longer on a processor than as a batch, and conditions stay
conditions; `together` makes a batch of them, for an accelerator.
"""

import contextlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.leaderboard.problems import Problem
from benchmarks.leaderboard.spaces import Space

TRIALS, SEEDS, AT_ONCE, POINTS = 16, 12, 4, 25
FACTORS = tuple(float(x) for x in 10 ** np.array([-2, -1.5, -1, -0.5, 0.5, 1, 1.5, 2]))
WARMUP = 0.05
SEARCH_SEED = 1000  # not one of those that are reported

Setting = dict[str, np.ndarray]


def curve(problem: Problem, space: Space, setting: dict[str, Any], seed: Any) -> jax.Array:
    """The judged loss at the start and, from there on, at each of `POINTS` equal distances."""
    chosen = dict(setting)
    for name in space.scheduled:
        chosen[name] = gradtx.warmup_cosine_decay_schedule(
            0.0, chosen[name], round(WARMUP * problem.steps), problem.steps
        )
    tx = gradtx.with_extra_args_support(space.build(**chosen))

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        params, state = carry
        batch = problem.batch(key)
        value, grads = jax.value_and_grad(problem.loss)(params, batch)
        updates, state = tx.update(
            grads,
            state,
            params,
            value=value,
            loss=value,
            grad=grads,
            value_fn=lambda p, **_: problem.loss(p, batch),
        )
        return (gradtx.apply_updates(params, updates), state), None

    def judged(params: Any, state: Any) -> jax.Array:
        with contextlib.suppress(ValueError):  # it keeps no average
            params = gradtx.eval_params(tx, state, params)
        return problem.judged(params)

    def some(carry: Any, keys: jax.Array) -> tuple[Any, jax.Array]:
        carry, _ = jax.lax.scan(step, carry, keys)
        return carry, judged(*carry)

    first, rest = jax.random.split(jax.random.key(seed))
    params = problem.start(first)
    state = tx.init(params)
    keys = jax.random.split(rest, (POINTS, problem.steps // POINTS))
    _, losses = jax.lax.scan(some, (params, state), keys)
    return jnp.concatenate([judged(params, state)[None], losses])


class Runs:
    """Runs of an optimizer on a problem, in one program for any settings and seeds."""

    def __init__(self, problem: Problem, space: Space, together: int | None = None) -> None:
        def all_of(settings: Any, seeds: Any) -> jax.Array:
            return jax.lax.map(
                lambda one: curve(problem, space, *one), (settings, seeds), batch_size=together
            )

        self._problem, self._space, self._run = problem, space, jax.jit(all_of)
        self.steps, self.seconds = 0, 0.0

    def __call__(self, settings: Setting, seeds: np.ndarray) -> np.ndarray:
        """The curves. They stop being finite where a run diverges."""
        found = []
        for i in range(0, len(seeds), AT_ONCE):
            part = {
                name: jnp.asarray(x[i : i + AT_ONCE], jnp.float32) for name, x in settings.items()
            }
            args = part, jnp.asarray(seeds[i : i + AT_ONCE])
            if i == 0 and not self.steps:
                self._run.lower(*args).compile()
            start = time.process_time()
            found.append(np.asarray(self._run(*args)))
            # Of the processor: a machine that is shared has other work meanwhile.
            self.seconds += time.process_time() - start
            self.steps += len(args[1]) * self._problem.steps
        return np.concatenate(found)


def state_bytes(problem: Problem, space: Space) -> int:
    """Of the state of an optimizer at its published settings."""
    tx = space.build(**space.published)
    params = jax.eval_shape(problem.start, jax.random.key(0))
    state = jax.eval_shape(tx.init, params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))


def repeated(setting: dict[str, float], count: int) -> Setting:
    return {name: np.full(count, value) for name, value in setting.items()}


def steps_to(target: float, problem: Problem, losses: np.ndarray) -> int | None:
    """The first step at which the loss was judged to be at most the target."""
    below = np.flatnonzero(losses <= target)
    return int(below[0]) * (problem.steps // POINTS) if len(below) else None


def number(x: float) -> float | None:
    """With five digits, since JSON has no infinities and nobody needs more."""
    return float(f"{x:.5g}") if np.isfinite(x) else None


def result(
    problem: Problem, space: Space, trials: int = TRIALS, seeds: int = SEEDS
) -> dict[str, Any]:
    """All that is kept of an optimizer on a problem, as JSON has it; None where it diverged."""
    runs = Runs(problem, space)
    settings = space.settings(trials)
    found = runs(settings, np.full(trials, SEARCH_SEED))[:, -1]
    best = int(np.argmin(np.where(np.isfinite(found), found, np.inf)))
    setting = {name: number(x[best]) for name, x in settings.items()}
    curves = runs(repeated(setting, seeds), np.arange(seeds))
    last = curves[:, -1]
    basin = None
    if space.rate is not None:
        moved = repeated(setting, len(FACTORS))
        moved[space.rate] = moved[space.rate] * FACTORS
        basin = [number(x) for x in runs(moved, np.full(len(FACTORS), SEARCH_SEED))[:, -1]]
    return {
        "trials": [number(x) for x in found],
        "setting": setting,
        "losses": [number(x) for x in last],
        "steps": [steps_to(problem.target, problem, x) for x in curves],
        "basin": basin,
        "curve": {
            name: [number(x) for x in of(curves, axis=0)]
            for name, of in (("median", np.median), ("low", np.min), ("high", np.max))
        },
        "state_bytes": state_bytes(problem, space),
        "microseconds_a_step": number(1e6 * runs.seconds / runs.steps),
    }
