"""The search that zooms: its conditions, and the valley that Optax finds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.transforms.interval import Point, _cubic, next_interval
from tests.transforms.searches import loss, run


@pytest.mark.slow
def test_zoom_meets_both_conditions():
    tx = gradtx.chain(gradtx.scale(-1.0), gradtx.scale_by_zoom_linesearch(20, curv_rtol=0.1))
    with jax.enable_x64(True):
        x, path = run(gradtx, tx, 25)
        for before, updates, value, grad, state in path:
            slope = float(grad @ updates)
            after, grad_after = jax.value_and_grad(loss)(before + updates)
            assert float(after) <= float(value) + 1e-4 * slope + 1e-6 * abs(float(value))
            assert abs(float(grad_after @ updates)) <= 0.1 * abs(slope) + 1e-12
            # What it keeps belongs to the point that it chose.
            np.testing.assert_allclose(state[1].value, after, rtol=1e-12)
            np.testing.assert_allclose(state[1].grad, grad_after, rtol=1e-8, atol=1e-10)
        assert float(loss(x)) < float(loss(jnp.array([1.0, 2.0, -1.0])))


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.001, 0.3, 40.0, 1e4])
def test_zoom_finds_the_valley_like_optax(start):
    """From any first rate, as Optax does, and with no more evaluations."""
    counts, values = [], []

    def f(x):
        return (x - 3.0) ** 4 + (x - 3.0) ** 2

    for lib in (gradtx, optax):
        tx = lib.chain(lib.scale(-start), lib.scale_by_zoom_linesearch(40, curv_rtol=0.01))
        x = jnp.float32(0.0)
        grad = jax.grad(f)(x)
        updates, state = tx.update(grad, tx.init(x), x, value=f(x), grad=grad, value_fn=f)
        counts.append(int(state[1].info.num_linesearch_steps))
        values.append(float(f(x + updates)))
    assert values[0] < 0.5
    assert counts[0] <= counts[1] + 1


def searched(phi, rate, c1, c2, c3, grow, precision, tol, steps, largest):
    """Moré and Thuente 1994, with SciPy's next trial, and Hager and Zhang's condition as well."""
    dcstep = pytest.importorskip("scipy.optimize._dcsrch").dcstep
    start = best = other = (0.0, *phi(0.0))
    rate, bracketed, width, before = min(rate, largest), False, np.inf, np.inf
    errors = far = (np.finfo(float).max,) * 2
    for count in range(1, steps + 1):
        at = (rate, *phi(rate))
        rise, slope = at[1] - start[1], at[2]
        decrease = rise - c1 * rate * start[2]
        if c3 is not None:
            turned = slope - (2 * c1 - 1) * start[2]
            decrease = min(decrease, max(turned, rise - c3 * abs(start[1])))
        curvature = 0.0 if np.isinf(c2) else abs(slope) - c2 * abs(start[2])
        missed = max(decrease, 0.0), max(curvature, 0.0)
        missed = missed if np.all(np.isfinite(at)) else far
        if max(missed) <= tol:
            return count, at[0], at[1], missed
        step = rate - best[0]
        if at[1] <= best[1]:
            errors = missed
        *ends, rate, bracketed = dcstep(
            *best, *other, *at, bracketed, rate + 1.1 * step, rate + 2 * grow * step
        )
        best, other = tuple(ends[:3]), tuple(ends[3:])
        least, most = sorted((best[0], other[0]))
        if bracketed and most - least >= 0.66 * before:
            rate = (least + most) / 2
        rate = np.clip(rate, 0, largest)
        if bracketed:
            short = most - least <= precision * min(1, most) and best[0] > 0
            if not least < rate < most or short:
                break
            width, before = most - least, width
        elif rate <= at[0]:
            break
    return count, best[0], best[1], errors


def point(rate, value, slope):
    return Point(*map(jnp.float32, (rate, value, slope)))


@pytest.mark.parametrize(
    ("a", "b", "place"), [((0, 0, -1), (1, 0, 1), 0.5), ((0, 0, -3), (1, -1, 0), 1.0)]
)
def test_the_minimum_of_a_cubic_whose_terms_cancel(a, b, place):
    found, there = _cubic(point(*a), point(*b))
    assert (float(found), bool(there)) == (place, True)


@pytest.mark.parametrize(
    ("best", "other", "at", "bracketed", "trial"),
    [
        ((1, 0, -1), (1, 0, -1), (3, np.inf, 0), False, 2.0),  # halfway to what is not finite
        ((0, 0, -1), (3, np.inf, 0), (1, -2, -3), True, 2.0),
        ((0, 0, 0), (0, 0, 0), (1, -2, -3), False, 9.0),  # as far as may be: no slope has turned
    ],
)
def test_the_next_trial_where_no_cubic_says_it(best, other, at, bracketed, trial):
    points = point(*best), point(*other), point(*at)
    found = next_interval(*points, jnp.bool_(bracketed), jnp.float32(0), jnp.float32(9))
    assert float(found[-1]) == trial


LINES = {
    "well": lambda x: -x / (x**2 + 2),
    "flat": lambda x: (x + 0.004) ** 5 - 2 * (x + 0.004) ** 4,
    "waves": lambda x: x**2 / 40 - 2 * x + 0.5 * jnp.sin(3 * x) + 3,
    "corner": lambda x: jnp.sqrt((x - 2) ** 2 + 1e-4) + 1,
}
LIMITS = {
    "strict": (1e-3, 0.1, None, 2.0, 1e-5, 0.0, 30, 1e10),
    "approximate": (0.55, 0.5, 0.5, 1.5, 0.05, 0.0, 30, 1e10),
    "tolerant": (0.1, 0.05, 1e-6, 2.5, 1e-5, 0.02, 30, 8.0),
    "few": (0.1, np.inf, None, 2.0, 0.3, 0.0, 4, 1e10),
}


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_search_is_that_of_more_and_thuente(line):
    with jax.enable_x64(True):
        slope = jax.jit(jax.value_and_grad(LINES[line]))
        zero, one = jnp.zeros(()), jnp.ones(())
        value, grad = slope(zero)
        given = {"value": value, "grad": grad, "value_fn": LINES[line]}
        for name, limits in LIMITS.items():
            c1, c2, c3, grow, precision, tol, steps, largest = limits
            tx = gradtx.scale_by_zoom_linesearch(
                steps, largest, tol, grow, c1, c2, c3, stepsize_precision=precision
            )
            update = jax.jit(functools.partial(tx.update, **given))
            for guess in (1e-3, 0.1, 0.9, 2.9, 10.0, 1e3):
                want = searched(lambda x: tuple(map(float, slope(x))), guess, *limits)
                state = tx.init(zero)._replace(learning_rate=jnp.float64(guess))
                _, state = update(one, state, zero)
                info, said = state.info, f"{name} from {guess}"
                got = info.num_linesearch_steps, state.learning_rate, state.value
                np.testing.assert_allclose(got, want[:3], rtol=1e-8, err_msg=said)
                errors = info.decrease_error, info.curvature_error
                np.testing.assert_allclose(errors, want[3], rtol=1e-6, atol=1e-9, err_msg=said)


def hermite(before, after):
    """The cubic with this value and slope at 0, and those at 1."""
    (a, b), (c, d) = before, after
    rise, turn = c - a - b, d - b
    return lambda x: a + b * x + (3 * rise - turn) * x**2 + (turn - 2 * rise) * x**3


def search_once(f, steps=1, **limits):
    """One search from 0 that first tries 1: the step, and the state."""
    tx, zero = gradtx.scale_by_zoom_linesearch(steps, **limits), jnp.zeros(())
    value, grad = jax.value_and_grad(f)(zero)
    extra = {"value": value, "grad": grad, "value_fn": f}
    return tx.update(jnp.ones(()), tx.init(zero), zero, **extra)


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        ({"slope_rtol": 0.4, "approx_dec_rtol": 0.01}, True),  # 0.05 <= 0.1 and 0.3 <= 0.4
        ({"slope_rtol": 0.4, "approx_dec_rtol": 0.004}, False),  # 0.05 > 0.04
        ({"slope_rtol": 0.43, "approx_dec_rtol": 0.01}, False),  # 0.3 > 0.28
        ({"slope_rtol": 0.4, "approx_dec_rtol": 0.01, "curv_rtol": 0.1}, False),  # 0.3 > 0.2
        ({"slope_rtol": 0.4, "approx_dec_rtol": None, "tol": 0.9}, True),  # 0.85 is missing
        ({"slope_rtol": 0.4, "approx_dec_rtol": None, "tol": 0.8}, False),
    ],
)
def test_a_loss_that_hardly_rises_is_taken_where_the_limits_allow_it(limits, taken):
    update, state = search_once(hermite((10.0, -2.0), (10.05, 0.3)), **limits)
    assert float(update) == float(state.learning_rate) == taken


def test_a_search_ends_when_its_interval_is_short():
    """The minimum is at 0.05, and the slope would have to be zero."""

    def f(x):
        return jnp.exp(20 * x) - 20 * jnp.e * x

    limits = {"slope_rtol": 1e-4, "curv_rtol": 0.0, "approx_dec_rtol": None}
    _, state = search_once(f, 25, **limits, stepsize_precision=0.9)

    def phi(x):
        return np.exp(20 * x) - 20 * np.e * x, 20 * np.exp(20 * x) - 20 * np.e

    want = searched(phi, 1.0, 1e-4, 0.0, None, 2.0, 0.9, 0.0, 25, 1e10)[0]
    assert int(state.info.num_linesearch_steps) == want == 4


@pytest.mark.parametrize(
    ("after", "tol", "printed"),
    [
        ((11.0, 3.0), 0.0, True),
        ((11.0, 3.0), 20.0, False),
        ((7.5, -3.0), 0.0, False),  # it falls enough, and is too steep
    ],
)
def test_a_failed_search_prints_if_asked_to(after, tol, printed, capfd):
    search_once(hermite((10.0, -2.0), after), tol=tol, verbose=True)
    jax.effects_barrier()
    assert ("no sufficient decrease" in capfd.readouterr().out) == printed


def test_no_way_down_is_no_step():
    tx = gradtx.scale_by_zoom_linesearch(10)
    x = jnp.array([1.0, 2.0])
    grad = jax.grad(lambda x: jnp.sum(x**2))(x)
    extra = {"value": jnp.sum(x**2), "grad": grad, "value_fn": lambda x: jnp.sum(x**2)}
    updates, state = tx.update(grad, tx.init(x), x, **extra)
    assert updates.tolist() == [0.0, 0.0]
    assert int(state.info.num_linesearch_steps) == 0
    assert float(state.value) == 5.0
    _, state = search_once(lambda x: (x + 0.25) ** 2)  # a gentle slope is no way down either
    assert int(state.info.num_linesearch_steps) == 0


def test_a_number_put_into_the_state():
    """As Optax's own tests do to choose the first rate."""
    tx, p = gradtx.scale_by_zoom_linesearch(5), jnp.ones(2)
    state = gradtx.tree.set(tx.init(p), learning_rate=1.0)

    def loss(x):
        return jnp.sum(x**2)

    extra = {"value": loss(p), "grad": 2 * p, "value_fn": loss}
    updates, new = tx.update(-2 * p, state, p, **extra)
    assert loss(p + updates) < loss(p)
    assert new.learning_rate.dtype == jnp.float32
