"""DoG and DoWG against their papers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.optimizers.papers import check, norm


def dog(first, decay=0.0, first_rate=None):
    """Ivgi et al. 2023: the largest distance so far over the root of the summed squares."""

    def update(g, s, t, p):
        s.setdefault("start", p)
        g = g + decay * p
        s["G"] = s.get("G", 0.0) + np.sum(g * g)
        s["r"] = max(s.get("r", first(p)), norm(p - s["start"]))
        rate = s["r"] / np.sqrt(s["G"] + 20.0)
        return -(first_rate if t == 1 and first_rate is not None else rate) * g

    return update


@pytest.mark.paper("dog", "scale_by_distance_over_gradients")
@pytest.mark.parametrize(
    ("make", "update"),
    [
        (lambda: gradtx.dog(0.5, ("heuristic", 0.02), 20.0), dog(lambda p: 0.02 * (1 + norm(p)))),
        (lambda: gradtx.dog(0.5, ("distance", 0.1), 20.0), dog(lambda p: 0.1)),
        (
            lambda: gradtx.dog(0.5, ("learning_rate", 0.01), 20.0, 0.3),
            dog(lambda p: 0.0, 0.3, 0.01),
        ),
        (
            lambda: gradtx.scale_by_distance_over_gradients(0.02, 20.0, global_scale=-0.5),
            dog(lambda p: 0.02 * (1 + norm(p))),
        ),
    ],
    ids=["heuristic", "distance", "learning_rate", "layerwise"],
)
def test_dog_is_the_papers(make, update):
    check(make(), lambda *args: 0.5 * update(*args), drift=0.5)


@pytest.mark.paper("dowg")
@pytest.mark.parametrize("first", [None, 0.01])
def test_dowg_is_the_papers(first):
    """Khaled et al. 2023, algorithm 1."""

    def update(g, s, t, p):
        s.setdefault("start", p)
        g = g + 0.3 * p
        s["r2"] = max(s.get("r2", first or 0.1), np.sum((p - s["start"]) ** 2))
        s["v"] = s.get("v", 0.0) + s["r2"] * np.sum(g * g)
        return -0.5 * s["r2"] / (np.sqrt(s["v"]) + 0.1) * g

    check(gradtx.dowg(0.5, first, 0.1, 0.3), update)


@pytest.mark.slow
def test_numbers_of_the_tree_are_wide():
    p = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(2, jnp.bfloat16)}
    _, state, _ = gradtx.dog().init(p)
    assert state.max_dist.dtype == state.sum_sq_norm_grads.dtype == jnp.float32
    # In float16 this sum is infinite.
    g = jax.tree.map(lambda x: 300 * x, p)
    updates, state = gradtx.dog().update(g, gradtx.dog().init(p), p)
    assert float(state[1].sum_sq_norm_grads) == 4 * 300**2
    assert updates["a"].dtype == jnp.float16


@pytest.mark.slow
def test_dog_moves_only_the_touched_rows():
    table = {"table": jnp.ones((5, 2))}
    tx = gradtx.dog(init_step=("distance", 0.1))
    rows = gradtx.Rows(jnp.array([3, 1]), jnp.ones((2, 2)), (5, 2))
    updates, _ = tx.update({"table": rows}, tx.init(table), table)
    assert isinstance(updates["table"], gradtx.Rows)
    np.testing.assert_allclose(updates["table"].values, -0.05, rtol=1e-6)


def test_a_first_step_of_nothing_is_refused():
    with pytest.raises(ValueError, match=r"init_step\[1\]"):
        gradtx.dog(init_step=("distance", 0.0))
