"""The gradient of a validation loss in a penalty's strength, beside JAXopt and Optimistix.

    python -m benchmarks.hypergradient [ROWS COLUMNS]
    python -m benchmarks.hypergradient --docs           write the table into docs/solutions.md

Ridge by L-BFGS and the lasso by proximal gradient steps, of 10,000 x 1,000 numbers unless told, in
float32. Each library solves and differentiates the solution: to the same tolerance, from zeros, in
one compiled program. Time is the median ratio of seven rounds in turns; memory the temporaries of
that program; the error is that of the derivative to the closed form in float64. Optimistix has no
proximal map.
"""

import argparse
import datetime
import os
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import gradtx
from benchmarks.tables import markdown, put_table
from benchmarks.timing import interleaved, ratio

PAGE = Path(__file__).parents[1] / "docs" / "solutions.md"
ROUNDS, TOLERANCE, MOST = 7, 1e-5, 1000
RIDGE, LASSO = 0.3, 0.05


def squares(w: Any, x: Any, y: Any) -> Any:
    return jnp.mean((x @ w - y) ** 2) / 2


def ridge_loss(w: Any, strength: Any, x: Any, y: Any) -> Any:
    return squares(w, x, y) + strength * jnp.sum(w**2) / 2


def data(rows: int, columns: int) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    x = random.normal(size=(2, rows, columns))
    true = np.where(np.arange(columns) < columns // 10, 1.0, 0.0)
    y = x @ true + random.normal(size=(2, rows))
    return x, y


def exact(x: Any, y: Any, strength: float, free: Any, signs: Any) -> float:
    """The derivative in float64, given which weights are free and what pulls at them."""
    (x, x_valid), (y, y_valid) = x[..., free], y
    hessian = x.T @ x / len(x)
    if signs is None:
        hessian = hessian + strength * np.eye(len(hessian))
        w = np.linalg.solve(hessian, x.T @ y / len(x))
        slope = -np.linalg.solve(hessian, w)
    else:
        w = np.linalg.solve(hessian, x.T @ y / len(x) - strength * signs[free])
        slope = -np.linalg.solve(hessian, signs[free])
    return float((x_valid @ w - y_valid) @ (x_valid @ slope) / len(x_valid))


def ridge_by_jaxopt(strength: Any, x: Any, y: Any) -> Any:
    import jaxopt

    solver = jaxopt.LBFGS(ridge_loss, maxiter=MOST, tol=TOLERANCE)
    return solver.run(jnp.zeros(x.shape[1]), strength, x, y).params


def ridge_by_optimistix(strength: Any, x: Any, y: Any) -> Any:
    import optimistix

    solver = optimistix.LBFGS(rtol=TOLERANCE, atol=TOLERANCE)
    result = optimistix.minimise(
        lambda w, args: ridge_loss(w, *args),
        solver,
        jnp.zeros(x.shape[1]),
        args=(strength, x, y),
        max_steps=MOST,
        throw=False,
    )
    return result.value


def ridge(strength: Any, x: Any, y: Any) -> Any:
    tx, start = gradtx.lbfgs(), jnp.zeros(x.shape[1])
    how: Any = {"max_steps": MOST, "tol": TOLERANCE, "implicit": True}
    return gradtx.solve(ridge_loss, start, tx, strength, x, y, **how).params


def rate_for(x: Any) -> float:
    return float(len(x) / np.linalg.norm(np.asarray(x), 2) ** 2)


def lasso_by_jaxopt(rate: float) -> Callable[..., Any]:
    import jaxopt

    def solution(strength: Any, x: Any, y: Any) -> Any:
        solver = jaxopt.ProximalGradient(
            squares, jaxopt.prox.prox_lasso, stepsize=rate, maxiter=MOST, tol=TOLERANCE
        )
        return solver.run(jnp.zeros(x.shape[1]), strength, x, y).params

    return solution


def lasso(rate: float) -> Callable[..., Any]:
    def solution(strength: Any, x: Any, y: Any) -> Any:
        penalty = {"strength": strength}
        tx = gradtx.proximal(gradtx.sgd(rate), "l1", None, penalty, accelerated=True)
        how: Any = {"max_steps": MOST, "tol": TOLERANCE, "implicit": True}
        return gradtx.solve(squares, jnp.zeros(x.shape[1]), tx, x, y, **how).params

    return solution


def compiled(solution: Callable[..., Any], x: Any, y: Any) -> Any:
    def outer(strength: Any, x: Any, y: Any) -> Any:
        return squares(solution(strength, x[0], y[0]), x[1], y[1])

    return jax.jit(jax.grad(outer)).lower(jnp.float32(0), x, y).compile()


def rows_of(problem: str, runs: dict[str, Any], strength: float, truth: float, xy: Any) -> Any:
    at = jnp.float32(strength)
    programs = {name: compiled(run, *xy) for name, run in runs.items()}
    answers = {name: float(program(at, *xy)) for name, program in programs.items()}

    def call(program: Any) -> Callable[[], None]:
        return lambda: jax.block_until_ready(program(at, *xy))

    seconds = interleaved({name: call(p) for name, p in programs.items()}, ROUNDS)
    for name, program in programs.items():
        memory = program.memory_analysis().temp_size_in_bytes / 1e6
        error = abs(answers[name] / truth - 1)
        times = ratio(seconds[name], seconds["gradtx"])
        yield [problem, name, f"{times:.2f}", f"{memory:.2f}", f"{error:.0e}"]


def table(rows: int, columns: int) -> str:
    x, y = data(rows, columns)
    xy = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    everything = np.ones(columns, bool)
    ridges = {"gradtx": ridge, "JAXopt": ridge_by_jaxopt, "Optimistix": ridge_by_optimistix}
    truth = exact(x, y, RIDGE, everything, None)
    cells = [*rows_of("ridge", ridges, RIDGE, truth, xy)]
    rate = rate_for(xy[0][0])
    lassos = {"gradtx": lasso(rate), "JAXopt": lasso_by_jaxopt(rate)}
    w = np.asarray(jax.jit(lassos["gradtx"])(jnp.float32(LASSO), xy[0][0], xy[1][0]))
    truth = exact(x, y, LASSO, w != 0, np.sign(w))
    cells += rows_of("lasso", lassos, LASSO, truth, xy)
    header = ["problem", "library", "time", "temporaries, MB", "relative error"]
    return markdown("", header, cells)


def circumstances() -> str:
    """When and where the times were taken."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "jaxopt", "optimistix"))
    load, cores = os.getloadavg()[2], os.cpu_count() or 1
    shared = (
        f" that other work shared (load {load:.0f} over 15 minutes): ratios of two runs differ by "
        "up to a third"
    )
    return textwrap.fill(
        f"Taken on {datetime.date.today():%d %B %Y} with {versions}, on {cores} "
        f"cores{shared if load > cores else ''}.",
        width=120,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A hypergradient beside JAXopt and Optimistix.")
    parser.add_argument("size", nargs="*", type=int, default=[10_000, 1_000])
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    text = f"{table(*given.size)}\n{circumstances()}"
    print(text)
    if given.docs:
        put_table(PAGE, "python -m benchmarks.hypergradient", text)


if __name__ == "__main__":
    main()
