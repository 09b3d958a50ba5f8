"""Factorize a matrix of ratings: by rows, which costs what a batch touches, and by whole tables.

    python examples/recommender.py
    python examples/recommender.py --users 1000000 --semantics lazy exact
    python examples/recommender.py --optimizer rowwise_adagrad --learning-rate 0.1

The ratings are made up, since no package of the usual registry carries real ones: a few users rate
much and a few items are rated by many (a power law), and a rating is the product of two hidden
factors, with biases and noise. Prints time and error of each run; draws `recommender.png`.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")  # before pyplot, so that no display is needed
import matplotlib.pyplot as plt
import numpy as np
from tqdm import tqdm

import gradtx
from gradtx import sparse

RANK = 4  # of the hidden factors
NOISE = 0.3

Params = dict[str, jax.Array]


class Ratings(NamedTuple):
    users: np.ndarray
    items: np.ndarray
    stars: np.ndarray

    def part(self, of: slice) -> "Ratings":
        return Ratings(*(column[of] for column in self))


class History(NamedTuple):
    losses: np.ndarray  # one per step
    seconds: float  # compiling left out
    error: float  # root mean square, on ratings that were held out


def make_ratings(users: int, items: int, count: int, rng: np.random.Generator) -> Ratings:
    def power_law(size: int) -> np.ndarray:
        # Names are shuffled, so that the popular ones do not lie side by side in memory.
        return rng.permutation(size)[(size * rng.random(count) ** 3).astype(int)]

    who, what = power_law(users), power_law(items)
    hidden = [rng.normal(size=(size, RANK)).astype(np.float32) for size in (users, items)]
    bias = [0.5 * rng.normal(size=size).astype(np.float32) for size in (users, items)]
    product = np.sum(hidden[0][who] * hidden[1][what], axis=1) / RANK**0.5
    noise = NOISE * rng.normal(size=count)
    return Ratings(who, what, (3 + product + bias[0][who] + bias[1][what] + noise).astype("f4"))


def init(users: int, items: int, dimension: int, mean: float, seed: int) -> Params:
    keys = jax.random.split(jax.random.key(seed))
    return {
        "user": 0.1 * jax.random.normal(keys[0], (users, dimension)),
        "item": 0.1 * jax.random.normal(keys[1], (items, dimension)),
        "user bias": jnp.zeros(users),
        "item bias": jnp.zeros(items),
        "mean": jnp.float32(mean),
    }


def predict(params: Params, ratings: Ratings) -> jax.Array:
    user = sparse.take(params["user"], ratings.users)
    item = sparse.take(params["item"], ratings.items)
    user_bias = sparse.take(params["user bias"], ratings.users)
    item_bias = sparse.take(params["item bias"], ratings.items)
    return jnp.sum(user * item, axis=-1) + user_bias + item_bias + params["mean"]


def loss(params: Params, ratings: Ratings) -> jax.Array:
    return jnp.mean((predict(params, ratings) - ratings.stars) ** 2)


error = jax.jit(lambda params, ratings: jnp.sqrt(loss(params, ratings)))


def with_semantics(
    tx: gradtx.GradientTransformation, semantics: str
) -> gradtx.GradientTransformation:
    """What becomes of the rows that a step does not touch."""
    tables = ["user", "item", "user bias", "item bias"]
    return {
        "lazy": tx,
        "exact": gradtx.exact_rows(tx, tables),
        "dense": gradtx.dense_rows(tx),
    }[semantics]


def train(
    tx: gradtx.GradientTransformation, params: Params, data: Ratings, test: Ratings, batch: int
) -> History:
    step, losses = gradtx.make_step(loss, tx), []
    params = jax.tree.map(jnp.copy, params)  # the steps write into them
    state = step.init(params)
    compiled = step.lower(params, state, data.part(slice(batch))).compile()
    started = time.perf_counter()
    with tqdm(range(0, len(data.stars) - batch + 1, batch), unit="step") as progress:
        for number, start in enumerate(progress):
            part = data.part(slice(start, start + batch))
            params, state, value = compiled(tx, params, state, (part,), None)
            losses.append(value)
            if number % 100 == 99:  # to ask at every step would be to wait at every step
                progress.set_postfix(loss=f"{float(value):.3f}")
    jax.block_until_ready(params)
    seconds = time.perf_counter() - started
    if isinstance(state, gradtx.ExactRowsState):
        params, state = sparse.catch_up(tx, params, state)
    return History(np.asarray(losses), seconds, float(error(params, test)))


def draw(runs: dict[str, History], title: str, out: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for name, history in runs.items():
        width = max(1, len(history.losses) // 100)
        smooth = history.losses[: len(history.losses) // width * width].reshape(-1, width).mean(1)
        steps = width * (np.arange(len(smooth)) + 0.5)
        left.plot(steps, smooth, label=name)
        right.plot(steps / len(history.losses) * history.seconds, smooth, label=name)
    left.set(xlabel="step", ylabel="mean squared error of a batch", yscale="log")
    right.set(xlabel="seconds", xscale="log")
    right.legend(frameon=False)
    figure.suptitle(title, fontsize=10)
    for ax in (left, right):
        ax.axhline(NOISE**2, color="0.6", linestyle=":", linewidth=1)
        ax.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Factorize a matrix of ratings.")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--ratings", type=int, default=3_000_000)
    parser.add_argument("--dimension", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--optimizer", default="adam", metavar="NAME", help="any of gradtx's")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument(
        "--semantics",
        nargs="+",
        choices=("lazy", "exact", "dense"),
        default=["lazy", "dense"],
        help="what becomes of rows that a step does not touch; a run for each",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("recommender.png"), metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    ratings = make_ratings(args.users, args.items, args.ratings, np.random.default_rng(args.seed))
    held_out = args.ratings // 20
    test, data = ratings.part(slice(held_out)), ratings.part(slice(held_out, None))
    start = init(args.users, args.items, args.dimension, data.stars.mean(), args.seed)
    tx = getattr(gradtx, args.optimizer)(args.learning_rate)
    print(f"{tx!r} on {args.users:,} users and {args.items:,} items, {args.batch} ratings a step")
    runs = {}
    for semantics in args.semantics:
        history = train(with_semantics(tx, semantics), start, data, test, args.batch)
        runs[semantics] = history
        milliseconds = 1e3 * history.seconds / len(history.losses)
        print(f"{semantics}: {milliseconds:.2f} ms a step, test error {history.error:.3f}")
    print(f"predicting the mean: {np.std(test.stars):.3f}; the noise: {NOISE:.3f}")
    draw(runs, f"{args.optimizer}, {args.users:,} x {args.items:,}", args.out)
    print(f"loss curves drawn in {args.out}")


if __name__ == "__main__":
    main()
