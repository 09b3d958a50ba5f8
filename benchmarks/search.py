"""How often L-BFGS evaluates a loss until the norm of its gradient is 1e-5, against SciPy's.

    python -m benchmarks.search [NAME ...]

In float64. The counts are those of the points that the loss is called with, and are deterministic
except for rounding.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize
from sklearn import datasets
from threadpoolctl import threadpool_limits

import gradtx
from benchmarks.tables import markdown

TOLERANCE = 1e-5
MOST = 10_000


class Problem(NamedTuple):
    loss: Callable[..., jax.Array]
    start: np.ndarray
    args: tuple[np.ndarray, ...] = ()


def rosenbrock(n: int) -> Problem:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    return Problem(loss, np.resize([-1.2, 1.0], n))


def quadratic(n: int, condition: float) -> Problem:
    def loss(x: jax.Array, scales: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum(scales * x**2)

    return Problem(loss, np.ones(n), (np.geomspace(1, condition, n),))


def turned(n: int, condition: float) -> Problem:
    """A quadratic whose axes are not those of the coordinates."""

    def loss(x: jax.Array, matrix: jax.Array, b: jax.Array) -> jax.Array:
        return 0.5 * x @ matrix @ x - b @ x

    rng = np.random.default_rng(n)
    axes, _ = np.linalg.qr(rng.normal(size=(n, n)))
    matrix = (axes * np.geomspace(1, condition, n)) @ axes.T
    return Problem(loss, np.zeros(n), (matrix, rng.normal(size=n)))


def logistic() -> Problem:
    """Logistic regression on scikit-learn's breast cancer data, with a small L2 penalty."""

    def loss(w: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean(jnp.logaddexp(0, -y * (x @ w))) + 0.005 * w @ w

    x, y = datasets.load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    return Problem(loss, np.zeros(31), (np.c_[x, np.ones(len(x))], 2.0 * y - 1))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "Rosenbrock, 2 dimensions": lambda: rosenbrock(2),
    "Rosenbrock, 10": lambda: rosenbrock(10),
    "Rosenbrock, 100": lambda: rosenbrock(100),
    "Rosenbrock, 1,000": lambda: rosenbrock(1000),
    "quadratic, 20, condition 1e3": lambda: quadratic(20, 1e3),
    "quadratic, 20, condition 1e4": lambda: quadratic(20, 1e4),
    "quadratic, 50, condition 1e3, turned": lambda: turned(50, 1e3),
    "logistic regression, breast cancer": logistic,
}


def scipy_s(problem: Problem) -> int:
    """The evaluations that SciPy's L-BFGS-B needs until the norm is small enough."""
    both = jax.jit(jax.value_and_grad(problem.loss))
    norms: list[float] = []

    def evaluate(x: np.ndarray) -> tuple[Any, np.ndarray]:
        value, grad = map(np.asarray, both(x, *problem.args))
        norms.append(float(np.linalg.norm(grad)))
        return value, grad

    options = {
        "ftol": 0,
        "gtol": TOLERANCE / len(problem.start) ** 0.5,  # it bounds the largest entry
        "maxiter": MOST,
        "maxfun": MOST,
    }
    # Threads that wait for each other over vectors of a thousand numbers take 15 times as long.
    with threadpool_limits(1):
        optimize.minimize(evaluate, problem.start, jac=True, method="L-BFGS-B", options=options)
    return 1 + next(i for i, norm in enumerate(norms) if norm <= TOLERANCE)


def gradtx_s(problem: Problem) -> tuple[gradtx.Solution, list[bytes]]:
    """The solution of `solve`, and every point at which it evaluated the loss."""
    points: list[bytes] = []

    def counted(x: jax.Array, *args: Any) -> jax.Array:
        # As integers: in the thread of a callback float64 is not enabled, and would be rounded.
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        jax.debug.callback(lambda bits: points.append(np.asarray(bits).tobytes()), bits)
        return problem.loss(x, *args)

    result = gradtx.solve(
        counted, problem.start, gradtx.lbfgs(), *problem.args, max_steps=MOST, tol=TOLERANCE
    )
    jax.block_until_ready(result)
    jax.effects_barrier()
    return result, points


@jax.enable_x64(True)
def row(name: str) -> list[object]:
    problem = PROBLEMS[name]()
    _, points = gradtx_s(problem)
    theirs = scipy_s(problem)
    return [name, f"{len(points):,}", f"{theirs:,}", len(points) / theirs]


if __name__ == "__main__":
    header = ["problem", "gradtx", "SciPy", "gradtx / SciPy"]
    rows = map(row, sys.argv[1:] or PROBLEMS)
    print(markdown("Evaluations of L-BFGS until the gradient's norm is 1e-5", header, rows))
