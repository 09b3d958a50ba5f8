"""L-BFGS-B against its papers, SciPy's, and published minima."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

MINIMA = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "minima.json").read_text())
RNG = np.random.default_rng(7)
N = 6
HALF = RNG.normal(size=(N, N))
HESSIAN = HALF @ HALF.T + np.diag([1.0, 2, 5, 10, 0.5, 1])
CENTER = np.array([2.0, -1.5, 0.3, 1.0, -2.0, 0.1])


def gradient(x):
    return HESSIAN @ (x - CENTER) + 0.3 * x**3


def hessian(pairs, n):
    """The BFGS updates of a multiple of the identity, one after another, as a matrix."""
    s, y = pairs[-1]
    b = (y @ y) / (y @ s) * np.eye(n)
    for s, y in pairs:
        b = b - np.outer(b @ s, b @ s) / (s @ b @ s) + np.outer(y, y) / (y @ s)
    return b


def cauchy(x, g, low, high, b):
    """The first minimum of the model along P(x - t g), segment by segment."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = np.where(g > 0, (x - low) / g, np.where(g < 0, (x - high) / g, np.inf))
    t = 0.0
    for end in [*np.unique(ends[ends > 0]), np.inf]:
        d = np.where(ends > t, -g, 0.0)
        z = np.clip(x - t * g, low, high) - x
        slope, curvature = g @ d + d @ b @ z, d @ b @ d
        if curvature == 0 or slope >= 0:
            break
        best = t - slope / curvature
        if best < end:
            t = best
            break
        t = end
    point = np.clip(x - t * g, low, high)
    return point, (ends > t) & (point > low) & (point < high)


def goal(x, g, low, high, pairs):
    """Byrd et al. 1995, section 5, with the projection of Morales and Nocedal 2011."""
    if not pairs:
        return np.clip(x - g, low, high)
    b = hessian(pairs, len(x))
    point, free = cauchy(x, g, low, high, b)
    free = np.flatnonzero(free)
    step = np.zeros(len(x))
    rest = (g + b @ (point - x))[free]
    step[free] = -np.linalg.solve(b[np.ix_(free, free)], rest)
    projected = np.clip(point + step, low, high)
    if (projected - x) @ g < 0:
        return projected
    room = np.where(step > 0, high - point, point - low)
    rates = [room[i] / abs(step[i]) for i in free if step[i] != 0]
    return point + min([1.0, *rates]) * step


@pytest.mark.quick(1)
@pytest.mark.paper("lbfgsb")
@pytest.mark.parametrize("memory", [1, 4])
@pytest.mark.parametrize(
    ("low", "high"),
    [(-np.inf, np.inf), (-0.8, 0.9), (np.array([-9, -0.2, -9, -9, -9, 0.05]), np.inf)],
    ids=["none", "both", "some"],
)
def test_the_direction_is_the_papers(memory, low, high):
    """Over steps of half the way, of which each leads to another quadratic model."""
    low, high = np.broadcast_to(low, N), np.broadcast_to(high, N)
    tx = gradtx.scale_by_lbfgsb(low, high, memory)
    x, pairs, before, at_bounds = np.clip(np.linspace(-0.7, 0.8, N), low, high), [], None, 0
    with jax.enable_x64(True):
        update = jax.jit(tx.update)
        state = tx.init(jnp.asarray(x))
        for _ in range(9):
            g = gradient(x)
            if before is not None:
                pairs = [*pairs, (x - before[0], g - before[1])][-memory:]
            target = goal(x, g, low, high, pairs)
            want = target - x
            if not pairs and not np.isfinite([low, high]).all():
                want = want / max(1.0, np.linalg.norm(want))
            got, state = update(jnp.asarray(g), state, jnp.asarray(x))
            np.testing.assert_allclose(-np.asarray(got), want, rtol=1e-7, atol=1e-9)
            at_bounds += int(np.sum((target == low) | (target == high)))
            before, x = (x, g), np.clip(x + 0.5 * want, low, high)
    assert (at_bounds > 5) == np.isfinite([low, high]).any()


# Found at random: the parameters, a factor of the Hessian, the gradient, and the last two steps.
NARROW = [
    ([0.03, 0.56], [[-0.3, -1.9], [0.6, -15.9]], [1.5, 1.7], [[-2.5, 0.1], [-0.1, -1.0]]),
    ([0.58, 0.96], [[1.0, -12.8], [0.2, 4.2]], [1.8, -0.8], [[1.1, -0.9], [0.6, 1.7]]),
    ([0.99, 0.66], [[-0.6, -5.6], [-0.3, -20.0]], [-0.5, -0.7], [[1.6, -0.3], [-0.3, -0.3]]),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(NARROW)))
def test_the_way_is_cut_short_where_the_projection_does_not_descend(case):
    """A narrow valley leads out of the box, and the projection of its lowest point is higher."""
    x, half, g, steps = map(np.asarray, NARROW[case])
    x, b = x + 0.25, half @ half.T + 0.01 * np.eye(2)
    tx = gradtx.scale_by_lbfgsb(0.25, 1.25, 2)
    with jax.enable_x64(True):
        state = tx.init(jnp.asarray(x))
        for point in (x - steps[0] - steps[1], x - steps[1], x):
            got, state = tx.update(jnp.asarray(g + b @ (point - x)), state, jnp.asarray(point))
    low, high, pairs = np.full(2, 0.25), np.full(2, 1.25), [(s, b @ s) for s in steps]
    want = goal(x, g, low, high, pairs)
    np.testing.assert_allclose(x - np.asarray(got), want, rtol=1e-6, atol=1e-9)
    # Neither bound is met before the way is cut short, where a projection would stand on one.
    point, _ = cauchy(x, g, low, high, hessian(pairs, 2))
    newton = x - np.linalg.solve(hessian(pairs, 2), g)
    projected = np.clip(newton, low, high)
    assert (projected - x) @ g > 0
    assert np.abs(want - projected).max() > 0.03
    assert np.abs(want - point).max() > 1e-3


@pytest.mark.slow
def test_ties_bounds_that_are_met_and_slopes_of_zero():
    """Points on faces of a cube, of which several bounds are met at the same rate or at once."""
    rng = np.random.default_rng(11)
    tx, low, high = gradtx.scale_by_lbfgsb(-1.0, 1.0, 3), -np.ones(N), np.ones(N)
    at_once = at_zero = tied = moved = 0
    with jax.enable_x64(True):
        update = jax.jit(tx.update)
        for _ in range(30):
            x = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], N)
            g = rng.choice([-4.0, -1.0, 0.0, 0.25, 1.0], N)
            steps = rng.normal(size=(3, N))
            state = tx.init(jnp.asarray(x))
            for left in (3, 2, 1, 0):
                point = x - steps[3 - left :].sum(0)
                now = g + HESSIAN @ (point - x)
                got, state = update(jnp.asarray(now), state, jnp.asarray(point))
            pairs = [(s, HESSIAN @ s) for s in steps]
            want = goal(x, g, low, high, pairs)
            np.testing.assert_allclose(x - np.asarray(got), want, rtol=1e-6, atol=1e-9)
            at_once += np.sum((x == np.sign(-g)) & (g != 0))
            at_zero += np.sum(g == 0)
            _, free = cauchy(x, g, low, high, hessian(pairs, N))
            met = np.abs(np.where(g > 0, x + 1, 1 - x)[~free & (g != 0)] / g[~free & (g != 0)])
            tied += len(met) - len(np.unique(met))
            moved += np.abs(want - x).max() > 0
    assert min(at_once, at_zero, tied) > 5
    assert moved == 30


@pytest.mark.slow
def test_the_direction_is_the_same_in_other_units_and_without_pairs_of_no_curvature():
    """Of which one is the newest, so that the model starts from the curvature of one before it."""
    low, high, x = np.zeros(N), np.full(N, np.inf), np.linspace(0.1, 0.8, N)
    step, last = np.array([0.3, -0.1, 0.2, 0.1, 0.2, 0.1]), np.full(N, 0.1)
    g = HESSIAN @ (x - CENTER)
    before = g + HESSIAN @ last  # the change is against the step
    points, gs = [x - last - step, x - last, x], [before - HESSIAN @ step, before, g]
    want = goal(x, g, low, high, [(step, HESSIAN @ step)])
    with jax.enable_x64(True):
        tx = gradtx.scale_by_lbfgsb(0.0, None, 4)
        update = jax.jit(tx.update)
        for length, slope in ((1.0, 1.0), (1e-6, 1e-6), (1.0, 1e-10)):
            state = tx.init(jnp.zeros(N))
            for point, g in zip(points, gs, strict=True):
                got, state = update(jnp.asarray(slope * g), state, jnp.asarray(length * point))
            np.testing.assert_allclose(x - got / length, want, rtol=1e-6, atol=1e-9)
    assert 0 < np.sum(want == low) < N


@pytest.mark.slow
def test_no_breakpoint_is_looked_for_before_there_is_a_pair(monkeypatch):
    """Each takes a turn of a loop, and the first direction does not depend on them."""
    from gradtx.optimizers import lbfgsb

    turns, loop = [], lbfgsb.repeat_while

    def counted(going, body, now):
        def noted(now):
            jax.debug.callback(lambda: turns.append(1))
            return body(now)

        return loop(going, noted, now)

    monkeypatch.setattr(lbfgsb, "repeat_while", counted)
    tx, x = gradtx.scale_by_lbfgsb(-1.0, 1.0), jnp.linspace(-0.5, 0.5, 5)
    first, state = tx.update(jnp.full(5, 9.0), tx.init(x), x)
    jax.effects_barrier()
    assert not turns
    np.testing.assert_allclose(x - first, -1, rtol=1e-6)
    jax.block_until_ready(tx.update(jnp.full(5, 8.9), state, x - 0.1))
    jax.effects_barrier()
    assert len(turns) == 5
    turns.clear()
    at_bounds = jnp.array([-1.0, -1.0, 0.1, 0.2, -1.0])
    jax.block_until_ready(tx.update(jnp.full(5, 8.8), state, at_bounds))
    jax.effects_barrier()
    assert len(turns) == 2


@pytest.mark.slow
def test_a_step_of_zero_and_directions_that_do_not_descend_forget_the_pairs():
    tx, x = gradtx.scale_by_lbfgsb(), jnp.array([3.0, 4.0])
    first, state = tx.update(2 * x, tx.init(x), x)
    _, state = tx.update(2 * (x - first), state, x - first)
    assert int(np.sum(np.asarray(state.weights_memory) > 0)) == 1
    again, state = tx.update(jnp.array([0.9, 1.2]), state, x - first)
    np.testing.assert_array_equal(state.weights_memory, 0)
    np.testing.assert_allclose(again, [0.6, 0.8], rtol=1e-6)
    # In a corner that the gradient leads out of.
    tx = gradtx.scale_by_lbfgsb(0.0)
    _, state = tx.update(2 * x, tx.init(x), x)
    none, state = tx.update(jnp.ones(2), state, jnp.zeros(2))
    np.testing.assert_array_equal(none, 0)
    np.testing.assert_array_equal(state.weights_memory, 0)


def test_arguments_reach_the_links():
    links = (
        gradtx.scale_by_lbfgsb(0.0, 1.0, 3),
        gradtx.scale(-1.0),
        gradtx.scale_by_zoom_linesearch(7, initial_guess_strategy="one", lower=0.0, upper=1.0),
    )
    assert gradtx.lbfgsb(0.0, 1.0, 3, 7).expansion == gradtx.chain(*links)


@pytest.mark.slow
def test_bounds_are_trees_prefixes_and_numbers():
    start = {"a": jnp.zeros(2), "b": {"c": jnp.zeros(()), "d": jnp.zeros(3)}}

    def loss(p):
        return sum(jnp.sum((x - 5.0) ** 2) for x in jax.tree.leaves(p))

    lower = {"a": None, "b": 7.0}
    upper = {"a": np.array([1.0, np.inf]), "b": {"c": None, "d": 9.0}}
    found = gradtx.solve(loss, start, gradtx.lbfgsb(lower, upper), tol=1e-4)
    assert int(found.status) == gradtx.Status.CONVERGED
    np.testing.assert_allclose(found.params["a"], [1, 5], rtol=1e-5)
    np.testing.assert_allclose(found.params["b"]["c"], 7)
    np.testing.assert_allclose(found.params["b"]["d"], [7, 7, 7])


@pytest.mark.slow
def test_part_of_the_parameters():
    start = {"a": jnp.zeros(2), "b": jnp.zeros(())}
    tx = gradtx.lbfgsb({"a": 1.0, "b": 2.0})
    found = gradtx.solve(
        lambda p: jnp.sum(p["a"] ** 2) + p["b"], start, tx, tol=1e-4, trainable="a"
    )
    assert int(found.status) == gradtx.Status.CONVERGED
    assert (found.params["a"].tolist(), float(found.params["b"])) == ([1.0, 1.0], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_no_point_outside_is_tried(dtype):
    """Bounds that no type holds exactly, so that a sum may be rounded to the other side."""
    with jax.enable_x64(dtype == jnp.float64):
        low, high = np.full(5, 0.1, dtype), np.array([0.3, 1.7, 1e3, 7.7, 0.11], dtype)
        seen = []

        def loss(x):
            # In single precision, which the thread of the callback has, and by signs alone.
            ends = jnp.sign(jnp.stack([jnp.min(x - low), jnp.max(x - high)]))
            jax.debug.callback(lambda s: seen.append(tuple(s.tolist())), ends.astype(jnp.float32))
            return jnp.sum(jnp.exp(-x) + 0.01 * (x - 4) ** 4) + jnp.prod(x[:3])

        tx = gradtx.lbfgsb(low, high)
        found = gradtx.solve(loss, np.full(5, 9.0, dtype), tx, max_steps=60)
        jax.block_until_ready(found)
        jax.effects_barrier()
    assert found.params.dtype == dtype
    assert len(seen) > 5
    assert all(a >= 0 >= b for a, b in seen)
    assert any(b == 0 for _, b in seen)


BOUNDED = [
    gradtx.lbfgsb,
    gradtx.scale_by_lbfgsb,
    lambda **bounds: gradtx.scale_by_zoom_linesearch(15, **bounds),
]


@pytest.mark.parametrize(
    ("lower", "upper", "error", "match"),
    [
        (1.0, 0.0, ValueError, "lower=1.0 is above upper=0.0"),
        ({"a": 1.0}, {"a": np.zeros(2)}, ValueError, "above"),
        ({"a": 1.0, "b": 2.0}, None, ValueError, "lower is not a tree like"),
        (np.zeros(3), None, ValueError, r"lower at 'a' is \(3,\), which does not fit \(2,\)"),
    ],
)
@pytest.mark.parametrize("make", BOUNDED)
def test_bad_bounds(make, lower, upper, error, match):
    with pytest.raises(error, match=match):
        make(lower=lower, upper=upper).init({"a": jnp.ones(2)})


@pytest.mark.parametrize("make", BOUNDED)
def test_complex_numbers_have_no_bounds(make):
    with pytest.raises(TypeError, match="no order"):
        make(lower=0.0).init(jnp.ones(2, complex))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MINIMA["bounded"]))
def test_published_minima_within_bounds(name):
    from benchmarks.problems import BOUNDED

    problem = BOUNDED[name]()
    with jax.enable_x64(True):
        tx = gradtx.lbfgsb(problem.lower, problem.upper)
        result = gradtx.solve(problem.loss, problem.start, tx, max_steps=3000, tol=1e-5)
    want = MINIMA["bounded"][name]
    assert int(result.status) == gradtx.Status.CONVERGED
    assert float(result.value) <= want + 1e-6 * max(1, abs(want))


@pytest.mark.slow
@pytest.mark.library("lbfgsb")
def test_evaluations_beside_scipy():
    """At most 1.1 times as many in sum to the same norm of the projected gradient."""
    for package in ("scipy", "threadpoolctl"):
        pytest.importorskip(package)
    from benchmarks import quasi_newton

    ours = theirs = 0
    with jax.enable_x64(True):
        for name in ("HS1", "HS5", "HS38", "HATFLDB", "torsion, 196"):
            problem = quasi_newton.BOUNDED[name]()
            result, points = quasi_newton.points(problem, quasi_newton.bounded(problem))
            run = quasi_newton.Theirs(problem)
            assert run.run("L-BFGS-B")
            assert int(result.status) == gradtx.Status.CONVERGED
            assert len(points) == len(set(points))
            ours, theirs = ours + len(points), theirs + run.count
    assert ours <= 1.1 * theirs


def test_bounds_as_scipy_has_them_are_refused_with_what_to_write():
    with pytest.raises(TypeError, match="did you mean lower and upper"):
        gradtx.lbfgsb(bounds=[(0.0, 1.0)])


@pytest.mark.parametrize(
    ("bounds", "params", "says"),
    [
        (([(-2, 0.5), (-2, 2)],), jnp.ones(2), "it has '0/0', and they are one array.*jnp.array"),
        (([-2.0, -2.0], [0.5, 2.0]), jnp.ones(2), "it has '0', and they are one array"),
        (({"a": [0.0, 0.0]},), {"a": jnp.ones(2)}, "'a/0', and at 'a' they are one array"),
    ],
)
def test_bounds_in_lists_are_told_to_be_arrays(bounds, params, says):
    with pytest.raises(ValueError, match=says):
        gradtx.solve(gradtx.global_norm, params, gradtx.lbfgsb(*bounds))


@pytest.mark.slow
def test_bounds_of_scipy():
    lower, upper = jnp.array([(-2, 0.5), (-2, 2)]).T
    tx = gradtx.lbfgsb(lower, upper)
    found = gradtx.solve(lambda x: jnp.sum((x - 3) ** 2), jnp.zeros(2), tx)
    assert found.params.tolist() == [0.5, 2.0]
