"""A small network fine-tuned without a backward pass, and with one: equal memory, equal time.

    python -m benchmarks.finetuning
    python -m benchmarks.finetuning --docs      write the table into docs/without_backward.md

A residual network of four layers learns scikit-learn's digits by AdamW, and then the same digits
mirrored. Memory is what the compiled step holds beside parameters and batch: temporaries and state.
AdamW runs with the batch of the others, and with the largest batch whose step fits into the memory
of MeZO's. Time is the processor's, as the ratio to a step of MeZO, taken in turns in one process;
everything then runs for as many steps as fit into the time of MeZO's. Learning rates are the best
of a few on another seed, by the loss on the training set after that time.
"""

import argparse
import datetime
import math
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from sklearn import datasets

import gradtx
from benchmarks.tables import markdown, put_table
from benchmarks.timing import interleaved, ratio

PAGE = Path(__file__).parents[1] / "docs" / "without_backward.md"
WIDTH, LAYERS, BATCH, TRAINED_ON = 32, 4, 512, 1280
PRETRAINING, STEPS, SEEDS, ROUNDS, AT_ONCE = 400, 3000, 5, 21, 10
RATES = {
    "MeZO": (3e-4, 1e-3, 3e-3),
    "forward gradients": (3e-4, 1e-3, 3e-3),
    "evolution strategies": (1e-4, 3e-4, 1e-3),
    "AdamW": (1e-3, 3e-3, 1e-2),
}
ESTIMATORS = {
    "MeZO": gradtx.spsa(1e-3, distribution="normal"),
    "forward gradients": gradtx.forward_gradients(),
    "evolution strategies": gradtx.evolution_strategies(16, 1e-2),
}


class Method(NamedTuple):
    """How the network is fine-tuned: the name of the way, and the batch."""

    name: str
    batch: int

    def tx(self, rate: float) -> Any:
        """The optimizer, whose rate is an argument of its compiled step."""
        number = jnp.float32(rate)
        if self.name == "AdamW":
            return gradtx.adamw(number)
        return gradtx.estimated_gradients(gradtx.sgd(number), ESTIMATORS[self.name])


class Task(NamedTuple):
    """Images and labels."""

    images: Any
    labels: Any


def tasks() -> dict[str, Task]:
    """The digits and their mirror images, of which some are left out of the training."""
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    upright = images[order].reshape(-1, 8, 8) / 8 - 1

    def task(images: Any, part: slice) -> Task:
        flat = images[part].reshape(-1, 64)
        return Task(jnp.asarray(flat, jnp.float32), jnp.asarray(labels[order][part]))

    learnt, left = slice(TRAINED_ON), slice(TRAINED_ON, None)
    mirrored = upright[:, :, ::-1]
    return {
        "upright": task(upright, learnt),
        "mirrored": task(mirrored, learnt),
        "left": task(mirrored, left),
    }


def network(key: Any) -> Any:
    keys, normal = jax.random.split(key, 4), jax.random.normal
    return {
        "embed": normal(keys[0], (64, WIDTH)) / 8,
        "layers": {
            "a": normal(keys[1], (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5,
            "b": normal(keys[2], (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5 / 2,
        },
        "head": normal(keys[3], (WIDTH, 10)) / WIDTH**0.5,
    }


def logits(p: Any, x: Any) -> Any:
    def layer(h: Any, w: Any) -> Any:
        return h + jnp.tanh(h @ w["a"]) @ w["b"], None

    return jax.lax.scan(layer, x @ p["embed"], p["layers"])[0] @ p["head"]


def loss(p: Any, x: Any, y: Any) -> Any:
    found = jax.nn.log_softmax(logits(p, x))
    return -jnp.mean(jnp.take_along_axis(found, y[:, None], 1))


@jax.jit
def errors(p: Any, task: Task) -> Any:
    return 100 * jnp.mean(jnp.argmax(logits(p, task.images), -1) != task.labels)


whole_loss = jax.jit(lambda p, task: loss(p, *task))


def steps_with(batch: int) -> Callable[..., Any]:
    """``(tx, params, state, key, steps, task) -> (params, state, key)``, compiled."""

    def run(tx: Any, params: Any, state: Any, key: Any, steps: Any, task: Task) -> Any:
        def step(_: Any, carry: Any) -> Any:
            params, state, key = carry
            key, drawn = jax.random.split(key)
            chosen = jax.random.randint(drawn, (batch,), 0, len(task.images))
            x, y = task.images[chosen], task.labels[chosen]
            params, state, _ = gradtx.minimize(loss, tx, params, state, x, y, inside=True)
            return params, state, key

        return jax.lax.fori_loop(0, steps, step, (params, state, key))

    return jax.jit(run)


class Runs:
    """The compiled steps of all batches, on one set of tasks."""

    def __init__(self) -> None:
        self.tasks = tasks()
        self._steps: dict[int, Any] = {}
        self._pretrained: dict[int, Any] = {}

    def advance(self, batch: int) -> Callable[..., Any]:
        if batch not in self._steps:
            self._steps[batch] = steps_with(batch)
        return self._steps[batch]

    def pretrained(self, seed: int) -> Any:
        if seed not in self._pretrained:
            tx, params = gradtx.adamw(3e-3), network(jax.random.key(seed))
            key, of = jax.random.key(100 + seed), self.tasks["upright"]
            done = self.advance(64)(tx, params, tx.init(params), key, PRETRAINING, of)
            self._pretrained[seed] = done[0]
        return self._pretrained[seed]

    def start(self, method: Method, rate: float, seed: int) -> tuple[Any, ...]:
        tx, params = method.tx(rate), self.pretrained(seed)
        return tx, params, tx.init(params), jax.random.key(200 + seed)

    def tuned(self, method: Method, rate: float, seed: int, steps: int) -> Any:
        """The parameters after so many steps."""
        begin = self.start(method, rate, seed)
        return self.advance(method.batch)(*begin, steps, self.tasks["mirrored"])[0]

    def steps_to(self, target: float, method: Method, rate: float, seed: int) -> int:
        """How many steps a method takes to a loss on the whole training set, at least one."""
        tx, *carry = self.start(method, rate, seed)
        steps, now = 0, math.inf
        while now > target:
            carry = self.advance(method.batch)(tx, *carry, 1, self.tasks["mirrored"])
            steps, now = steps + 1, float(whole_loss(carry[0], self.tasks["mirrored"]))
        return steps

    def best_rate(self, method: Method, steps: int) -> float:
        def last(rate: float) -> float:
            params = self.tuned(method, rate, SEEDS, steps)
            found = float(whole_loss(params, self.tasks["mirrored"]))
            return found if np.isfinite(found) else np.inf

        return min(RATES[method.name], key=last)

    def seconds(self, methods: list[Method]) -> dict[Method, list[float]]:
        def call(method: Method) -> Callable[[], None]:
            begin = self.start(method, 0.0, 0)
            args = (*begin, AT_ONCE, self.tasks["mirrored"])
            return lambda: jax.block_until_ready(self.advance(method.batch)(*args))

        # That of the processor, since others may use the machine.
        runs = {method: call(method) for method in methods}
        return interleaved(runs, ROUNDS, clock=time.process_time)


def memory(method: Method) -> int:
    """Bytes of the compiled step beside parameters and batch."""
    step = gradtx.make_step(loss, method.tx(0.1), inside=True)
    p = jax.eval_shape(network, jax.random.key(0))
    state = jax.eval_shape(step.init, p)
    x = jax.ShapeDtypeStruct((method.batch, 64), jnp.float32)
    y = jax.ShapeDtypeStruct((method.batch,), jnp.int32)
    temporaries = step.lower(p, state, x, y).compile().memory_analysis().temp_size_in_bytes
    slots = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
    return int(temporaries) + sum(x.size * x.dtype.itemsize for x in slots)


def fitting(name: str, most: int) -> Method:
    """The method with the largest batch, of a power of two, whose step fits."""
    batch = BATCH
    while batch > 1 and memory(Method(name, batch)) > most:
        batch //= 2
    return Method(name, batch)


def spread(values: list[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table() -> str:
    runs, reference = Runs(), Method("MeZO", BATCH)
    budget = memory(reference)
    small = fitting("AdamW", budget)
    adamw = Method("AdamW", BATCH)
    methods = [*(Method(name, BATCH) for name in ESTIMATORS), adamw, small]
    seconds = runs.seconds(methods)
    times = {m: ratio(seconds[m], seconds[reference]) for m in methods}
    steps = {m: round(STEPS / times[m]) for m in methods}
    rates = {m: runs.best_rate(m, steps[m]) for m in methods}
    before = [runs.pretrained(seed) for seed in range(SEEDS)]

    def cells(params: list[Any]) -> list[str]:
        losses = [float(whole_loss(p, runs.tasks["mirrored"])) for p in params]
        wrong = [float(errors(p, runs.tasks["left"])) for p in params]
        return [spread(losses, 3), spread(wrong, 1)]

    rows = [["before", "", "", "", "", *cells(before), ""]]
    for m in methods:
        after = [runs.tuned(m, rates[m], seed, steps[m]) for seed in range(SEEDS)]
        fewer = "1" if m == adamw else ""
        if m.name != "AdamW":
            targets = [float(whole_loss(p, runs.tasks["mirrored"])) for p in after]
            found = [runs.steps_to(t, adamw, rates[adamw], i) for i, t in enumerate(targets)]
            fewer = spread([steps[m] / n for n in found], 0)
        kilobytes = f"{memory(m) / 1e3:.0f}"
        told = [f"{m.name}, {rates[m]:g}", m.batch, kilobytes, f"{times[m]:.2f}", f"{steps[m]:,}"]
        rows.append([*told, *cells(after), fewer])
        print(*rows[-1], flush=True)
    header = ["method, rate", "batch", "kB", "time of a step", "steps", "loss in training"]
    header += ["errors on other images, %", "steps for one of AdamW"]
    return markdown("", header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning with and without a backward pass.")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    taken = f"Taken on {datetime.date.today():%d %B %Y} with jax {version('jax')} on a CPU."
    text = f"{table()}\n{taken}"
    print(text)
    if given.docs:
        put_table(PAGE, "python -m benchmarks.finetuning", text)


if __name__ == "__main__":
    main()
