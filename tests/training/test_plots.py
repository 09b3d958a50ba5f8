"""Plots of solutions and of runs: what is in the figure, and how it is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.later import later

later("matplotlib")


def valley(p):
    return (1 - p["x"]) ** 2 + 10 * (p["y"] - p["x"] ** 2) ** 2


def quartic(x):
    return 2 * x**4 + 3 * x**3 + 2


START = {"x": jnp.array(-1.2), "y": jnp.array(1.0)}


def solved(loss, start, rate, steps=20):
    return gradtx.solve(loss, start, gradtx.sgd(rate), max_steps=steps, record=True)


@pytest.mark.slow
def test_losses_and_the_way_through_the_plane_of_two_parameters(tmp_path):
    runs = {"slow": solved(valley, START, 1e-3), "fast": solved(valley, START, 1e-2)}
    figure = gradtx.plot_runs(runs, valley)
    losses, plane = figure.axes
    assert [line.get_label() for line in losses.lines] == ["slow", "fast"]
    for line, found in zip(losses.lines, runs.values(), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), found.path.values)
    assert losses.get_yscale() == "log"
    assert (plane.get_xlabel(), plane.get_ylabel()) == ("x", "y")
    first, end = plane.lines[:2]
    np.testing.assert_array_equal(first.get_xdata(), runs["slow"].path.params["x"])
    np.testing.assert_array_equal(first.get_ydata(), runs["slow"].path.params["y"])
    assert end.get_xdata()[0] == runs["slow"].params["x"]
    assert len(plane.collections) == 1  # the contours of the loss
    figure.savefig(tmp_path / "runs.png")
    assert (tmp_path / "runs.png").stat().st_size > 1000


@pytest.mark.slow
def test_runs_of_a_vmap_and_of_ones_own():
    rates = jnp.array([1e-3, 1e-2])
    stack = jax.vmap(lambda rate: solved(quartic, jnp.array(2.0), rate, 5))(rates)
    losses, line = gradtx.plot_runs({"sgd": stack, "mine": [3.0, -1.0, 0.5]}, quartic).axes
    assert [each.get_label() for each in losses.lines] == ["sgd 0", "sgd 1", "mine"]
    assert losses.get_yscale() == "linear"  # a loss is below zero
    np.testing.assert_array_equal(line.lines[1].get_xdata(), stack.path.params[0])
    np.testing.assert_allclose(line.lines[1].get_ydata(), stack.path.values[0])
    assert line.get_ylabel() == "loss"


@pytest.mark.slow
def test_one_solution_ends_where_it_stopped():
    found = solved(quartic, jnp.array(2.0), 0.1, 30)  # which diverges
    assert int(found.status) == gradtx.Status.DIVERGED
    (losses, _) = found.plot(quartic).axes
    assert len(losses.lines[0].get_xdata()) == int(found.steps) + 1
    assert losses.get_legend() is None
    many = solved(lambda x: jnp.sum(x**2), jnp.ones(3), 0.1, 2)
    assert len(many.plot().axes) == 1


@pytest.mark.slow
def test_what_cannot_be_drawn_is_refused_by_name():
    many = solved(lambda x: jnp.sum(x**2), jnp.ones(3), 0.1, 2)
    with pytest.raises(ValueError, match="there is no run"):
        gradtx.plot_runs({})
    with pytest.raises(ValueError, match="'a' was not recorded: solve"):
        gradtx.plot_runs({"a": many._replace(path=None)})
    with pytest.raises(ValueError, match="parameters of a solution are one or two numbers"):
        many.plot(quartic)
    for bad in (3.0, "losses", [[1.0], [2.0]]):
        with pytest.raises(TypeError, match="'a' must be a Solution or a sequence of losses"):
            gradtx.plot_runs({"a": bad})
