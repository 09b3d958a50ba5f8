"""Train a classifier on the 1,797 handwritten digits that scikit-learn carries.

    python examples/train_digits.py
    python examples/train_digits.py --optimizer lion --learning-rate 3e-4
    python examples/train_digits.py --save-config tx.json
    python examples/train_digits.py --config tx.json

Prints the optimizer and the test accuracy; draws the learning curve into `digits.png`.

Search: complete program, classifier, handwritten digits, command line
"""

import argparse
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")  # before pyplot, so that no display is needed
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import gradtx

BATCH = 64
WIDTHS = (64, 128, 64, 10)  # 8 x 8 pixels in, ten digits out
PEAK = 5e-3
# They compute parameters from the sum of all gradients: a rate of zero would make them zero.
CONSTANT = ("adagrad_da", "ftrl")
# Where that is far from what works: rates by docs/convergence.md.
PEAKS = {
    **dict.fromkeys(("lion", "scion", "sophia"), 1e-3),
    **dict.fromkeys(("apollo", "novograd", "polargrad", "rowwise_adagrad", "sm3"), 0.1),
    **dict.fromkeys(("adagrad", "adagrad_da", "adagrad_decay", "ftrl", "proximal_adagrad"), 0.3),
    "optimistic_gradient_descent": 0.3,
    **dict.fromkeys(("asgd", "noisy_sgd", "proximal_gradient_descent", "sgd", "splus"), 1.0),
    **dict.fromkeys(("lars", "schedule_free_sgd"), 3.0),
    "adadelta": 10.0,
}

Params = list[dict[str, jax.Array]]


class Digits(NamedTuple):
    train_images: np.ndarray
    test_images: np.ndarray
    train_labels: np.ndarray
    test_labels: np.ndarray


class History(NamedTuple):
    losses: list[float]  # one per step
    accuracies: list[float]  # one per epoch, on the test digits


def load(seed: int) -> Digits:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    return Digits(
        *train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)
    )


def init(seed: int) -> Params:
    keys = jax.random.split(jax.random.key(seed), len(WIDTHS) - 1)
    he = jax.nn.initializers.he_normal()
    return [
        {"w": he(key, (rows, columns)), "b": jnp.zeros(columns)}
        for key, rows, columns in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=True)
    ]


def logits(params: Params, images: jax.Array) -> jax.Array:
    *hidden, last = params
    for layer in hidden:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    return images @ last["w"] + last["b"]


def loss(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    log_probabilities = jax.nn.log_softmax(logits(params, images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


@jax.jit
def accuracy(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    return (logits(params, images).argmax(axis=1) == labels).mean()


def batches(digits: Digits, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One epoch in a new order. The incomplete last batch is dropped: one shape, one compile."""
    order = rng.permutation(len(digits.train_labels))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        rows = order[start : start + BATCH]
        yield digits.train_images[rows], digits.train_labels[rows]


def optimizers() -> dict[str, Callable[..., gradtx.GradientTransformation]]:
    """The optimizers that need only a learning rate; and COCOB, which does not need even that."""
    found = {"cocob": gradtx.cocob}
    for name in (*gradtx.__all__, *gradtx.contrib.__all__):
        builder = getattr(getattr(gradtx, name), "builder", None)
        if builder is None or name.startswith("scale_by_"):
            continue
        parameters = builder.signature.parameters
        needed = {key for key, p in parameters.items() if p.default is p.empty}
        if "learning_rate" in parameters and needed <= {"learning_rate"}:
            found[name] = getattr(gradtx, name)
    return dict(sorted(found.items()))


def build(name: str, peak: float | None, steps: int) -> gradtx.GradientTransformation:
    """Clipping, then the optimizer called `name`, mostly with a warm-up and a cosine."""
    known = optimizers()
    if name not in known:
        raise SystemExit(f"gradtx has no optimizer called {name!r}; it has {', '.join(known)}")
    rate = inspect.signature(known[name]).parameters.get("learning_rate")
    if rate is None:
        return known[name]()
    if peak is None:
        # Optimizers that find their own step size come with the factor to leave it at.
        peak = rate.default if isinstance(rate.default, float) else PEAKS.get(name, PEAK)
    schedule = gradtx.warmup_cosine_decay_schedule(
        init_value=peak / 100, peak_value=peak, warmup_steps=steps // 10, decay_steps=steps
    )
    given = peak if name in CONSTANT else schedule
    extra = {"base_lr": peak} if name == "adabound" else {}
    return gradtx.chain(gradtx.clip_by_global_norm(1.0), known[name](given, **extra))


def configured(path: Path) -> gradtx.GradientTransformation:
    """The optimizer of a configuration in a file."""
    try:
        return gradtx.from_config(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"no configuration could be read from {path}: {error}") from None


def train(tx: gradtx.GradientTransformation, digits: Digits, epochs: int, seed: int) -> History:
    params = init(seed)
    state = tx.init(params)
    step = gradtx.make_step(loss, tx)
    rng = np.random.default_rng(seed)
    history = History([], [])
    with tqdm(range(epochs), unit="epoch") as progress:
        for _ in progress:
            # Losses stay on the device until the epoch ends, so that steps need not wait for them.
            losses = []
            for images, labels in batches(digits, rng):
                params, state, value = step(params, state, images, labels)
                losses.append(value)
            history.losses.extend(float(value) for value in losses)
            test = float(accuracy(params, digits.test_images, digits.test_labels))
            history.accuracies.append(test)
            progress.set_postfix(loss=f"{history.losses[-1]:.4f}", accuracy=f"{test:.2%}")
    return history


def draw(history: History, title: str, out: Path) -> None:
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 5.5), sharex=True, layout="constrained")
    steps_per_epoch = len(history.losses) // len(history.accuracies)
    ends = np.arange(1, len(history.accuracies) + 1)
    means = np.reshape(history.losses, (-1, steps_per_epoch)).mean(axis=1)
    upper.plot(
        (np.arange(len(history.losses)) + 1) / steps_per_epoch,
        history.losses,
        color="C0",
        alpha=0.3,
        linewidth=0.8,
        label="each batch",
    )
    upper.plot(ends - 0.5, means, color="C0", label="mean of the epoch")
    upper.set(yscale="log", ylabel="training loss")
    upper.set_title(title, fontsize=10)
    upper.legend(frameon=False)
    errors = 100 * (1 - np.asarray(history.accuracies))
    lower.plot(ends, 100 - errors, ".-", color="C1")
    lower.axhline(97, color="0.6", linestyle=":", linewidth=1)
    lower.set(xlabel="epoch", ylabel="test accuracy, %", ylim=(min(90, 99 - errors.max()), 100.5))
    for ax in (upper, lower):
        ax.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def positive(text: str) -> int:
    """A count of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a classifier on handwritten digits.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--optimizer", default="adamw", metavar="NAME", help="any of gradtx's")
    which.add_argument("--config", type=Path, metavar="FILE", help="a configuration saved before")
    parser.add_argument("--save-config", type=Path, metavar="FILE", help="write the configuration")
    parser.add_argument("--learning-rate", type=float, help="the peak; by default one that works")
    parser.add_argument("--epochs", type=positive, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("digits.png"), metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    digits = load(args.seed)
    steps = args.epochs * (len(digits.train_labels) // BATCH)
    if args.config:
        tx = configured(args.config)
    else:
        tx = build(args.optimizer, args.learning_rate, steps)
    print(repr(tx))
    if args.save_config:
        args.save_config.write_text(json.dumps(gradtx.to_config(tx), indent=2) + "\n")
    history = train(tx, digits, args.epochs, args.seed)
    final = history.accuracies[-1]
    draw(history, f"{args.config or args.optimizer}: {final:.2%} of the test digits", args.out)
    print(f"test accuracy {final:.2%}; learning curve drawn in {args.out}")


if __name__ == "__main__":
    main()
