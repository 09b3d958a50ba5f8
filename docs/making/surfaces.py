"""Paths of optimizers over two surfaces: a rate that falls to zero, from the best of thirteen."""

from collections.abc import Callable
from html import escape
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from contourpy import contour_generator

import gradtx
from making.pictures import spread

STEPS = 60
RATES = np.logspace(-3, 0.5, 13)
OPTIMIZERS: dict[str, Callable[[Any], gradtx.GradientTransformation]] = {
    "adam": lambda rate: gradtx.adam(rate, b1=0.8, b2=0.9),
    "momentum": lambda rate: gradtx.sgd(rate, momentum=0.8),
    "sgd": gradtx.sgd,
    "lion": lambda rate: gradtx.lion(rate, b1=0.8, b2=0.9),
}
WIDTH, HEIGHT, RIGHT = 400, 250, 76


class Surface(NamedTuple):
    title: str
    loss: Callable[[Any, Any], Any]
    start: tuple[float, float]
    minimum: tuple[float, float]
    x: tuple[float, float]
    y: tuple[float, float]


SURFACES = {
    "valley": Surface(
        "Paths down a curved valley",
        lambda x, y: (1 - x) ** 2 + 10 * (y - x**2) ** 2,
        (-1.3, 1.2),
        (1.0, 1.0),
        (-1.8, 1.8),
        (-0.7, 1.9),
    ),
    "ravine": Surface(
        "Paths into a narrow ravine",
        lambda x, y: 0.5 * x**2 + 15 * y**2,
        (-2.6, 0.7),
        (0.0, 0.0),
        (-3.0, 1.5),
        (-1.1, 1.1),
    ),
}


def path(make: Callable[[Any], gradtx.GradientTransformation], surface: Surface) -> np.ndarray:
    """The points of the run whose losses are lowest on average, one in a row."""
    start = jnp.array(surface.start)

    def run(rate: Any) -> Any:
        tx = make(lambda count: rate * (1 - count / STEPS))

        def step(carry: Any, _: None) -> Any:
            point, state = carry
            grad = jax.grad(lambda p: surface.loss(*p))(point)
            updates, state = tx.update(grad, state, point)
            point = gradtx.apply_updates(point, updates)
            return (point, state), point

        return jax.lax.scan(step, (start, tx.init(start)), None, STEPS)[1]

    points = np.asarray(jax.jit(jax.vmap(run))(jnp.asarray(RATES)), np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = surface.loss(*np.moveaxis(points, -1, 0)).mean(axis=-1)
    best = points[np.nanargmin(np.where(np.isfinite(losses), losses, np.inf))]
    return np.concatenate([[surface.start], best])


def drawn(surface: Surface) -> str:
    """Contours of the loss, and over them the paths with their names at the right."""
    (left, right), (low, high) = surface.x, surface.y

    def places(points: np.ndarray) -> list[tuple[float, float]]:
        across = (points[:, 0] - left) / (right - left) * (WIDTH - RIGHT)
        down = (high - points[:, 1]) / (high - low) * HEIGHT
        return list(zip(across.tolist(), down.tolist(), strict=True))

    def line(points: np.ndarray) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places(points))

    x, y = np.linspace(left, right, 120), np.linspace(low, high, 120)
    heights = surface.loss(*np.meshgrid(x, y))
    contours = contour_generator(x, y, heights)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts += [f"<title>{escape(surface.title)}</title>"]
    parts += [f'<svg width="{WIDTH - RIGHT}" height="{HEIGHT}">']
    for level in np.geomspace(heights.max() * 2e-4, heights.max(), 14):
        parts += [f'<path class="contour" d="{line(p)}"/>' for p in contours.lines(level)]
    paths = {name: path(make, surface) for name, make in OPTIMIZERS.items()}
    for i, points in reversed(list(enumerate(paths.values()))):
        parts += [f'<path class="line line-{i}" d="{line(points)}"/>']
    for a, b in places(np.array([surface.start, surface.minimum])):
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>']
    parts += ["</svg>"]
    for i, (name, at) in enumerate(zip(paths, spread([60.0] * len(paths), 16.0), strict=True)):
        parts += [f'<text x="{WIDTH - RIGHT + 8}" y="{at:.0f}" class="name-{i}">{name}</text>']
    return "".join([*parts, "</svg>"])


def charts() -> dict[str, str]:
    return {name: drawn(surface) for name, surface in SURFACES.items()}
