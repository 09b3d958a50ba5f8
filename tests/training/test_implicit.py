"""Derivatives of a solution, against closed forms and finite differences in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import Implicit
from gradtx.composition.nearest import EndsElsewhere, Nearest, Penalty
from gradtx.composition.scalings import Scaling

RNG = np.random.default_rng(0)
X, V = RNG.normal(size=(30, 5)), RNG.normal(size=(10, 5))
Y = X @ np.arange(5.0) + RNG.normal(size=30)


@pytest.fixture(autouse=True)
def _in_float64():
    with jax.enable_x64(True):
        yield


def differences(function, at, width=1e-5):
    """The Jacobian by central differences."""
    at = np.asarray(at, float)
    columns = []
    for i in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[i] = width
        columns.append((np.asarray(function(at + step)) - function(at - step)) / (2 * width))
    return columns[0] if at.ndim == 0 else np.stack(columns, -1)


def squares(w, x, y):
    return jnp.mean((x @ w - y) ** 2) / 2


def ridge_loss(w, strength):
    return squares(w, X, Y) + strength * jnp.sum(w**2) / 2


def ridge(strength, implicit=True):
    tx = gradtx.lbfgs()
    result = gradtx.solve(
        ridge_loss, jnp.zeros(5), tx, strength, tol=1e-11, max_steps=100, implicit=implicit
    )
    return result.params


def closed(strength):
    return jnp.linalg.solve(X.T @ X / 30 + strength * jnp.eye(5), X.T @ Y / 30)


@pytest.mark.slow
def test_ridge_in_closed_form():
    def both(w):
        return lambda s: jnp.sum((V @ w(s)) ** 2)

    np.testing.assert_allclose(jax.grad(both(ridge))(0.3), jax.grad(both(closed))(0.3), rtol=1e-7)


@pytest.mark.slow
def test_both_modes_second_derivatives_and_a_map():
    def outer(w, strength):
        return jnp.sum((V @ w(strength)) ** 2)

    def exact(strength):
        return outer(closed, strength)

    def curve(strength):
        return outer(ridge, strength)

    same = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    same(jax.jvp(curve, (0.3,), (1.0,))[1], jax.grad(exact)(0.3))
    for second in (jax.grad(jax.grad(curve)), jax.jacfwd(jax.grad(curve))):
        same(second(0.3), jax.grad(jax.grad(exact))(0.3))
    same(jax.jacfwd(ridge)(0.3), jax.jacrev(closed)(0.3))
    at = jnp.array([0.1, 0.3])
    same(jax.jit(jax.vmap(jax.grad(curve)))(at), jax.vmap(jax.grad(exact))(at))
    for method in ("gmres", "bicgstab"):
        options = Implicit(method, tol=1e-10)
        same(jax.jacrev(lambda s, options=options: ridge(s, options))(0.3), jax.jacrev(closed)(0.3))


@pytest.mark.slow
def test_lasso_with_respect_to_the_strength_and_the_data():
    """Given which weights are zero, the others solve a linear system."""

    def lasso(strength, y):
        tx = gradtx.proximal_gradient_descent(0.3, strength)
        result = gradtx.solve(squares, jnp.zeros(5), tx, X, y, max_steps=3000, implicit=True)
        return result.params

    strength = jnp.array(0.9)
    w = lasso(strength, Y)
    free = np.flatnonzero(np.asarray(w))
    assert 0 < len(free) < 5

    def on_free(strength, y):
        part = X[:, free]
        right = part.T @ y / 30 - strength * np.sign(np.asarray(w))[free]
        return jnp.zeros(5).at[free].set(jnp.linalg.solve(part.T @ part / 30, right))

    np.testing.assert_allclose(w, on_free(strength, Y), rtol=1e-7)
    for i in (0, 1):
        exact = jax.jacfwd(on_free, i)(strength, Y)
        np.testing.assert_allclose(jax.jacrev(lasso, i)(strength, Y), exact, atol=1e-8)
        np.testing.assert_allclose(jax.jacfwd(lasso, i)(strength, Y), exact, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("around", [lambda tx: tx, gradtx.guard], ids=["alone", "guarded"])
def test_what_holds_an_active_bound_gives_zeros(around):
    def solution(target, upper):
        tx = around(gradtx.lbfgsb(0.0, upper))

        def loss(x, target):
            return jnp.sum((x - target) ** 2)

        return gradtx.solve(loss, jnp.zeros(3), tx, target, tol=1e-9, implicit=True).params

    by_target, by_upper = jax.jacrev(solution, (0, 1))(jnp.array([1.0, 3.0, -1.0]), jnp.array(2.0))
    np.testing.assert_allclose(by_target, np.diag([1.0, 0.0, 0.0]), atol=1e-12)
    np.testing.assert_allclose(by_upper, [0.0, 1.0, 0.0], atol=1e-12)


@pytest.mark.slow
def test_the_dual_of_a_support_vector_machine_on_a_simplex():
    kernel = X[:8] @ X[:8].T + np.eye(8)

    def dual(a, scores):
        return a @ kernel @ a / 2 - scores @ a

    def solution(scores, scale=2.0):
        tx = gradtx.chain(
            gradtx.sgd(0.03), gradtx.project("simplex", None, {"scale": jnp.asarray(scale)})
        )
        start = jnp.full(8, 0.25)
        return gradtx.solve(dual, start, tx, scores, max_steps=5000, implicit=True).params

    scores = jnp.asarray(RNG.normal(size=8))
    assert 1 < np.count_nonzero(np.asarray(solution(scores))) < 8
    exact = differences(solution, scores)
    np.testing.assert_allclose(jax.jacrev(solution)(scores), exact, atol=1e-6)
    by_scale = jax.jacfwd(lambda scale: solution(scores, scale))(2.0)
    by_hand = differences(lambda scale: solution(scores, scale), 2.0)
    np.testing.assert_allclose(by_scale, by_hand, atol=1e-6)


@pytest.mark.slow
def test_bilevel_weights_of_examples_and_any_tree():
    """Parameters and arguments are trees, with integers, None and keys among the arguments."""
    labels = np.asarray(RNG.integers(0, 3, 12))

    def loss(p, data):
        logits = data["x"] @ p["w"] + p["b"]
        each = gradtx.softmax_cross_entropy_with_integer_labels(logits, data["labels"])
        decay = jnp.sum(p["w"] ** 2) + jnp.sum(p["b"] ** 2)
        return jnp.mean(jax.nn.sigmoid(data["weights"]) * each) + 0.05 * decay

    def outer(weights):
        start = {"w": jnp.zeros((5, 3)), "b": jnp.zeros(3), "none": None}
        data = {"x": X[:12], "labels": labels, "weights": weights, "none": None}
        data["key"] = jax.random.key(0)
        tx = gradtx.lbfgs()
        result = gradtx.solve(loss, start, tx, data, tol=1e-9, max_steps=200, implicit=True)
        logits = X[12:] @ result.params["w"] + result.params["b"]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[:, 0]) + result.value

    weights = jnp.asarray(RNG.normal(size=12))
    exact = differences(outer, weights)
    np.testing.assert_allclose(jax.grad(outer)(weights), exact, atol=1e-6)


@pytest.mark.slow
def test_the_start_has_no_derivative_and_what_is_frozen_has_one():
    def loss(p, data):
        return jnp.sum((p["a"] - data["x"][data["i"]] * p["b"]) ** 2)

    def outer(start, data):
        tx = gradtx.sgd(0.5)
        return gradtx.solve(loss, start, tx, data, trainable="a", implicit=True).params["a"][0]

    start = {"a": jnp.ones(2), "b": jnp.array(3.0)}
    data = {"x": jnp.array([5.0, 7.0]), "i": jnp.array([1, 0])}
    by_start, by_data = jax.grad(outer, (0, 1), allow_int=True)(start, data)
    np.testing.assert_array_equal(by_start["a"], [0.0, 0.0])
    np.testing.assert_allclose(by_start["b"], 7.0)
    np.testing.assert_allclose(by_data["x"], [0.0, 3.0])
    assert by_data["i"].dtype == jax.dtypes.float0


@pytest.mark.slow
def test_complex_and_packed_parameters_and_half_precision():
    def loss(p, c):
        z = p["z"] - c * (1 + 2j)
        return jnp.sum(z.real**2 + z.imag**2) + jnp.sum((p["x"] - c**2) ** 2)

    def outer(c, start):
        result = gradtx.solve(loss, start, gradtx.sgd(0.25), c, implicit=True, max_steps=200)
        p = gradtx.unpack(result.params)
        return p["z"].real.sum() + p["z"].imag.sum() + p["x"].sum()

    start = {"z": jnp.zeros(1, complex), "x": jnp.zeros(2)}
    np.testing.assert_allclose(jax.grad(outer)(0.5, start), 3 + 2, rtol=1e-9)
    np.testing.assert_allclose(jax.grad(outer)(0.5, gradtx.pack(start)), 3 + 2, rtol=1e-9)

    def half(c):
        result = gradtx.solve(
            lambda x, c: jnp.sum((x - c) ** 2),
            jnp.zeros(2, "bfloat16"),
            gradtx.sgd(0.5),
            c,
            implicit=True,
        )
        return result.params

    jacobian = jax.jacrev(half)(jnp.bfloat16(0.5))
    assert jacobian.dtype == "bfloat16"
    np.testing.assert_array_equal(jacobian.astype(float), [1.0, 1.0])


@pytest.mark.slow
def test_what_a_loss_closes_over():
    def best(target):
        return gradtx.solve(
            lambda x: jnp.sum((x - target**2) ** 2), jnp.zeros(2), gradtx.lbfgs(), implicit=True
        ).params

    exact = np.diag([2.0, 6.0])
    np.testing.assert_allclose(jax.jacrev(best)(jnp.array([1.0, 3.0])), exact, rtol=1e-9)
    np.testing.assert_allclose(jax.jacfwd(best)(jnp.array([1.0, 3.0])), exact, rtol=1e-9)


@pytest.mark.slow
def test_a_solution_that_is_not_unique_has_a_derivative_with_a_ridge():
    """Without one the system is singular, and what it has no solution for gives NaN."""

    def flat(x, target):
        return (x[0] - target) ** 2 + 0.0 * x[1]

    def line(x, target):
        return target * x[0] + 0.0 * x[1] ** 2

    def derivative(loss, implicit):
        def solution(target):
            tx, start = gradtx.sgd(0.5), jnp.zeros(2)
            result = gradtx.solve(loss, start, tx, target, max_steps=9, implicit=implicit)
            return result.params

        return jax.jacfwd(solution)(2.0)

    np.testing.assert_allclose(derivative(flat, Implicit(ridge=1e-9)), [1.0, 0.0], atol=1e-8)
    assert np.isnan(derivative(line, True)).all()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps():
    def needed(steps):
        def outer(s):
            tx = gradtx.sgd(0.1)
            result = gradtx.solve(ridge_loss, jnp.zeros(5), tx, s, max_steps=steps, implicit=True)
            return jnp.sum(result.params)

        compiled = jax.jit(jax.grad(outer)).lower(0.3).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert needed(10_000) == needed(10)


@pytest.mark.parametrize(
    ("tx", "implicit", "error", "words"),
    [
        (gradtx.sgd(0.1), 1, TypeError, "implicit must be True, False or Implicit"),
        (gradtx.sgd(0.1), Implicit("lu"), ValueError, "implicit.method must be"),
        (gradtx.sgd(0.1), Implicit(tol=0.0), ValueError, "implicit.tol must be above 0"),
        (gradtx.sgd(0.1), Implicit(ridge=-1.0), ValueError, "implicit.ridge must be at least 0"),
        (gradtx.sgd(0.1), Implicit(rate=0.0), ValueError, "implicit.rate must be above 0"),
        (gradtx.sgd(0.1), Implicit(max_steps=0), ValueError, "implicit.max_steps"),
        (gradtx.lbfgsb(0.0), Implicit("cg"), ValueError, "use 'gmres' or 'bicgstab'"),
        (gradtx.adamw(0.1), True, ValueError, r"adamw\(weight_decay=0.0001\)"),
        (
            gradtx.chain(gradtx.sgd(0.1), gradtx.shrink_params(0.1)),
            True,
            ValueError,
            r"shrink_params\(l1=0.1\)",
        ),
        (
            gradtx.chain(gradtx.adam(0.1), gradtx.project("simplex")),
            True,
            ValueError,
            "scale_by_adam in a chain with project",
        ),
        (
            gradtx.chain(gradtx.lbfgs(), gradtx.project("box", None, {"lower": 0.0, "upper": 1.0})),
            True,
            ValueError,
            "scale_by_lbfgs in a chain with project",
        ),
        *(
            (gradtx.chain(first, gradtx.proximal(gradtx.sgd(0.1), "l2_ball")), True, ValueError, w)
            for first, w in (
                (gradtx.scale_by_adam(), "scale_by_adam in a chain with proximal.*inner optimizer"),
                (gradtx.chain(gradtx.identity(), gradtx.scale(0.5)), "scale in a chain with prox"),
            )
        ),
        (
            gradtx.chain(gradtx.adam(0.1), gradtx.masked(gradtx.project("simplex"), True)),
            True,
            ValueError,
            "scale_by_adam in a chain with masked",
        ),
        (
            gradtx.chain(gradtx.lbfgs(), gradtx.keep_params_nonnegative()),
            True,
            ValueError,
            "scale_by_lbfgs in a chain with keep_params_nonnegative",
        ),
        (
            gradtx.chain(
                gradtx.sgd(0.1), gradtx.project("non_negative"), gradtx.project("l2_ball")
            ),
            True,
            ValueError,
            "project in a chain with project.*what sets have in common",
        ),
        (
            gradtx.chain(gradtx.sgd(0.1), gradtx.project("simplex"), gradtx.scale_by_adam()),
            True,
            ValueError,
            "scale_by_adam in a chain with project",
        ),
        (
            gradtx.chain(gradtx.sgd(0.1), gradtx.freeze("a")),
            True,
            ValueError,
            "set_to_zero, .*pass trainable=",
        ),
        (
            gradtx.chain(gradtx.centralize(), gradtx.sgd(0.1)),
            True,
            ValueError,
            "centralize, which moves no mean",
        ),
        (gradtx.ftrl(0.1, l1_regularization_strength=0.2), True, ValueError, r"ftrl\(l1_reg"),
        (
            gradtx.ftrl(0.1, l2_shrinkage_regularization_strength=0.2),
            True,
            ValueError,
            r"ftrl\(l2_shrinkage",
        ),
        (gradtx.decay_first(gradtx.sgd(0.1), 0.05), True, ValueError, r"decay_first\(decay=0.05"),
        (
            gradtx.proximal_gradient_descent(0.1, gradtx.linear_schedule(1.0, 0.1, 10)),
            True,
            ValueError,
            "l1_regularization_strength is a schedule",
        ),
    ],
)
def test_what_is_refused(tx, implicit, error, words):
    with pytest.raises(error, match=words):
        gradtx.solve(lambda x: jnp.sum(x**2), jnp.ones(2), tx, implicit=implicit)


def after(rate, start, target, steps=7, **how):
    def loss(x, target):
        return jnp.sum((x - target) ** 4)

    tx = gradtx.adam(rate)
    return gradtx.solve(loss, start, tx, target, max_steps=steps, unrolled=True, **how).value


@pytest.mark.slow
def test_the_derivative_of_the_steps_in_both_modes():
    at = jnp.array(0.1), jnp.array([1.0, -1.0]), jnp.array(2.0)
    by_rate, by_start, by_target = jax.grad(after, (0, 1, 2))(*at)
    np.testing.assert_allclose(by_rate, differences(lambda r: after(r, *at[1:]), 0.1), rtol=1e-6)
    exact = differences(lambda s: after(at[0], s, at[2]), at[1])
    np.testing.assert_allclose(by_start, exact, rtol=1e-6)
    forward = jax.jvp(lambda t: after(*at[:2], t), (at[2],), (1.0,))[1]
    np.testing.assert_allclose(forward, by_target, rtol=1e-9)
    np.testing.assert_allclose(forward, differences(lambda t: after(*at[:2], t), 2.0), rtol=1e-6)


@pytest.mark.slow
def test_what_comes_after_the_end_has_no_part_in_the_derivative():
    """At the end momentum and differences are zero, and so are the roots that are divided by."""

    def solution(target):
        return gradtx.solve(
            lambda x, t: jnp.sum((x - t) ** 2),
            jnp.zeros(2),
            gradtx.sgd(0.5),
            target,
            max_steps=50,
            unrolled=True,
        ).params

    np.testing.assert_allclose(jax.jacrev(solution)(jnp.ones(2)), np.eye(2))


@pytest.mark.slow
def test_the_memory_of_the_steps_grows_as_a_root():
    def needed(steps):
        start = jnp.ones(1000)
        derivative = jax.jit(jax.grad(lambda s: after(0.1, s, 2.0, steps)))
        return derivative.lower(start).compile().memory_analysis().temp_size_in_bytes

    assert needed(1600) < 6 * needed(100)


@pytest.mark.slow
def test_a_line_search_is_unrolled_forward():
    def solution(strength):
        result = gradtx.solve(
            ridge_loss, jnp.zeros(5), gradtx.lbfgs(), strength, max_steps=30, unrolled=True
        )
        return result.params

    np.testing.assert_allclose(jax.jacfwd(solution)(0.3), jax.jacfwd(closed)(0.3), rtol=1e-6)
    with pytest.raises(TypeError, match="forward mode alone"):
        jax.jacrev(solution)(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", ["lbfgs", "bfgs"])
def test_a_search_that_has_arrived_takes_no_steps_by_roundings(name, dtype):
    """These would have derivatives that are noise: -9e5 or NaN in float32 after sixty steps."""
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=n), dtype) for n in ((20, 4), 20))

    def solution(strength):
        loss = lambda w: squares(w, x, y) + strength * jnp.sum(w**2) / 2  # noqa: E731
        tx = getattr(gradtx, name)()
        return gradtx.solve(loss, jnp.zeros(4, dtype), tx, max_steps=60, unrolled=True).params

    def exact(strength):
        return jnp.linalg.solve(x.T @ x / 20 + strength * jnp.eye(4, dtype=dtype), x.T @ y / 20)

    at, tolerance = jnp.asarray(0.3, dtype), 1e-4 if dtype == jnp.float32 else 1e-8
    found = jax.jit(jax.jacfwd(solution))(at)
    np.testing.assert_allclose(found, jax.jacfwd(exact)(at), rtol=tolerance, atol=tolerance)


def test_one_derivative_or_the_other():
    with pytest.raises(ValueError, match="pass one of them"):
        gradtx.solve(ridge_loss, jnp.zeros(5), gradtx.sgd(0.1), 1.0, implicit=True, unrolled=True)


@pytest.mark.slow
def test_a_link_that_keeps_parameters_from_being_negative():
    def solution(target):
        def loss(x, target):
            return jnp.sum((x - target) ** 2)

        tx = gradtx.chain(gradtx.sgd(0.25), gradtx.keep_params_nonnegative())
        return gradtx.solve(loss, jnp.ones(2), tx, target, implicit=True).params

    exact = jax.jacrev(solution)(jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(exact, [[1.0, 0.0], [0.0, 0.0]], atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_hypergradients_of_jaxopt():
    jaxopt = pytest.importorskip("jaxopt")
    labels = jnp.asarray(np.sign(Y))

    def loss(w, strength):
        return jnp.mean(jax.nn.softplus(-labels * (X @ w))) + strength * jnp.sum(w**2)

    def theirs(strength):
        solver = jaxopt.LBFGS(loss, maxiter=200, tol=1e-11)
        return solver.run(jnp.zeros(5), strength).params

    def ours(strength):
        tx = gradtx.lbfgs()
        result = gradtx.solve(loss, jnp.zeros(5), tx, strength, tol=1e-10, implicit=True)
        return result.params

    def lasso_of_theirs(strength):
        solver = jaxopt.ProximalGradient(
            squares, jaxopt.prox.prox_lasso, stepsize=0.3, maxiter=3000, tol=1e-12
        )
        return solver.run(jnp.zeros(5), strength, X, Y).params

    def lasso(strength):
        tx = gradtx.proximal(gradtx.sgd(0.3), "l1", None, {"strength": strength}, True)
        result = gradtx.solve(squares, jnp.zeros(5), tx, X, Y, max_steps=3000, implicit=True)
        return result.params

    np.testing.assert_allclose(jax.jacrev(ours)(0.1), jax.jacrev(theirs)(0.1), atol=1e-6)
    at = jnp.array(0.9)
    np.testing.assert_allclose(jax.jacrev(lasso)(at), jax.jacrev(lasso_of_theirs)(at), atol=1e-6)


@pytest.mark.slow
def test_leaves_with_terms_of_their_own():
    """JAX transposes a linear solve only if its whole right-hand side is differentiated."""

    def solution(target):
        def loss(p, target):
            return jnp.sum((p["x"] - target) ** 2) + jnp.sum(p["y"] ** 2) + jnp.sum(p["none"])

        start = {"x": 1.0, "y": jnp.ones(2, "float32"), "none": jnp.zeros((0, 3))}
        return gradtx.solve(loss, start, gradtx.sgd(0.5), target, implicit=True).params["x"]

    np.testing.assert_allclose(jax.grad(solution)(2.0), 1.0)
    np.testing.assert_allclose(jax.grad(jax.grad(lambda t: solution(t**2)))(2.0), 2.0)


@pytest.mark.slow
def test_where_it_diverged_the_derivative_is_nan():
    def end(target):
        def loss(x, target):
            return target * jnp.log(x)

        return gradtx.solve(loss, -1.0, gradtx.sgd(0.5), target, implicit=True).params

    value, slope = jax.value_and_grad(end)(1.0)
    assert float(value) == -1.0
    assert np.isnan(slope)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [gradtx.adam(0.01), gradtx.sgd(0.1, momentum=0.5)])
def test_a_box_after_what_treats_each_entry_by_itself(inner):
    def solution(target):
        def loss(x, target):
            return jnp.sum((x - target) ** 2) + x[0] * x[1]

        box = gradtx.project("box", None, {"lower": 0.0, "upper": 1.0})
        tx = gradtx.chain(inner, box)
        result = gradtx.solve(loss, jnp.ones(3) / 2, tx, target, max_steps=2000, implicit=True)
        return result.params

    exact = np.diag([0.0, 1.0, 0.0])
    np.testing.assert_allclose(jax.jacrev(solution)(jnp.array([3.0, 1.0, -1.0])), exact, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tx",
    [
        gradtx.chain(gradtx.sgd(0.2), *(gradtx.project("simplex", leaf) for leaf in "ab")),
        gradtx.chain(
            gradtx.sgd(0.2),
            gradtx.project("non_negative"),
            gradtx.project("box", None, {"lower": -1.0, "upper": 0.5}),
        ),
        gradtx.chain(
            gradtx.proximal_gradient_descent(0.2, 0.1),
            gradtx.project("box", None, {"lower": 0.0, "upper": 0.5}),
        ),
        gradtx.chain(gradtx.identity(), gradtx.proximal(gradtx.sgd(0.2), "simplex", "a")),
        gradtx.chain(
            gradtx.sgd(1.0), gradtx.project("simplex"), gradtx.scale_by_backtracking_linesearch(20)
        ),
    ],
    ids=["two leaves", "two boxes", "a penalty and a box", "after the identity", "a search"],
)
def test_chains_that_end_at_the_solution(tx):
    def solution(target):
        def loss(p, target):
            return jnp.sum((p["a"] - target) ** 2) + jnp.sum((p["b"] - target[:2]) ** 2)

        start = {"a": jnp.zeros(3), "b": jnp.zeros(2)}
        result = gradtx.solve(loss, start, tx, target, max_steps=300, implicit=True)
        return jnp.concatenate([result.params["a"], result.params["b"]])

    target = jnp.array([0.3, 0.6, -0.2])
    np.testing.assert_allclose(
        jax.jacrev(solution)(target), differences(solution, target), atol=1e-6
    )


@pytest.mark.slow
def test_optimal_transport_by_projections():
    """The plan of least cost and squares, in its costs and in both marginals.

    Each row is projected onto a simplex; a penalty pulls the sums of columns to theirs.
    """
    cost = jnp.asarray(RNG.uniform(size=(4, 5)))
    rows, columns = (jnp.asarray(RNG.uniform(0.5, 1.5, n)) for n in (4, 5))

    def plan(cost, rows, columns):
        def into_simplices(tree, rate, scales):
            return jax.vmap(gradtx.projections.projection_simplex)(tree, scales)

        def loss(plan, cost, columns):
            gap = jnp.sum(plan, 0) - columns
            return jnp.sum(cost * plan) + 0.1 * jnp.sum(plan**2) + 2 * jnp.sum(gap**2)

        tx = gradtx.proximal(
            gradtx.sgd(0.06), into_simplices, None, {"scales": rows / jnp.sum(rows)}, True
        )
        columns = columns / jnp.sum(columns)
        return gradtx.solve(
            loss, jnp.full((4, 5), 0.05), tx, cost, columns, max_steps=3000, implicit=True
        ).params

    at = cost, rows, columns
    zeros = int(jnp.sum(plan(*at) == 0))
    assert 0 < zeros < 16
    for i, by in enumerate(jax.jacrev(plan, (0, 1, 2))(*at)):
        by_hand = differences(lambda x, i=i: plan(*at[:i], x, *at[i + 1 :]), at[i])
        np.testing.assert_allclose(by, by_hand.reshape(by.shape), atol=1e-6)


@pytest.mark.slow
def test_optimal_transport_on_its_polytope():
    """Both marginals as constraints, against the projection by which it has a closed form."""
    cost = jnp.asarray(RNG.uniform(size=(3, 4)))
    rows, columns = jnp.array([0.2, 0.5, 0.3]), jnp.array([0.1, 0.4, 0.3, 0.2])

    def plan(cost, rows):
        def loss(plan, cost):
            return jnp.sum(cost * plan) + jnp.sum(plan**2) / 2

        sums = {"marginals": (rows, columns), "tol": 1e-14}
        tx = gradtx.chain(gradtx.sgd(0.5), gradtx.project("transport", None, sums))
        start = jnp.zeros((3, 4))
        return gradtx.solve(loss, start, tx, cost, max_steps=100, implicit=True).params

    def closed_form(cost, rows):
        return gradtx.projections.projection_transport(-cost, (rows, columns), tol=1e-14)

    np.testing.assert_allclose(plan(cost, rows), closed_form(cost, rows), atol=1e-9)
    by_cost, by_rows = jax.jacrev(plan, (0, 1))(cost, rows)
    exact = differences(lambda c: plan(c, rows), cost).reshape(by_cost.shape)
    np.testing.assert_allclose(by_cost, exact, atol=1e-6)
    exact = jax.jacrev(lambda r: closed_form(cost, r))(rows)
    np.testing.assert_allclose(by_rows, exact, atol=1e-6)


@pytest.mark.slow
def test_the_dual_of_logistic_regression():
    """Its entropies keep the multipliers between their bounds."""
    labels = np.sign(Y)

    def primal(strength):
        def loss(w, strength):
            each = jax.nn.softplus(-labels * (X @ w))
            return jnp.sum(each) + strength * jnp.sum(w**2) / 2

        start = jnp.zeros(5)
        tx = gradtx.lbfgs()
        return gradtx.solve(loss, start, tx, strength, tol=1e-11, implicit=True).params

    def by_dual(strength):
        def loss(a, strength):
            w = (a * labels) @ X
            entropy = jax.scipy.special.xlogy(a, a) + jax.scipy.special.xlogy(1 - a, 1 - a)
            return jnp.sum(w**2) / (2 * strength) + jnp.sum(entropy)

        tx = gradtx.lbfgsb(1e-9, 1 - 1e-9)
        a = gradtx.solve(
            loss, jnp.full(30, 0.5), tx, strength, tol=1e-9, max_steps=500, implicit=True
        ).params
        return (a * labels) @ X / strength

    at = jnp.array(2.0)
    exact = differences(by_dual, at)
    np.testing.assert_allclose(by_dual(at), primal(at), atol=1e-7)
    np.testing.assert_allclose(jax.jacrev(by_dual)(at), exact, atol=1e-6)
    np.testing.assert_allclose(jax.jacrev(primal)(at), exact, atol=1e-6)


def by_method(spread, implicit, scale=1.0):
    """The derivative of a solution whose Hessian is that scale times ``diag(1, 1 + spread)``."""
    curvatures = jnp.array([1.0, 1.0 + spread])

    def loss(x, target):
        return scale * (jnp.sum(curvatures * x**2) / 2 - target * jnp.sum(x))

    def solution(target):
        tx = gradtx.sgd(0.1)
        return gradtx.solve(loss, jnp.zeros(2), tx, target, implicit=implicit).params

    return jax.jvp(solution, (0.0,), (1.0,))[1]


@pytest.mark.slow
def test_how_exact_the_linear_system_is_solved():
    """A step of conjugate gradients leaves the residual ``spread / (2 + spread)``, relatively."""
    exact = functools.partial(np.testing.assert_allclose, rtol=1e-9)
    for scale in (1e-6, 1e6):
        exact(by_method(2.0, True, scale), [1, 1 / 3])
        # Half a percent is near enough, and above one percent is no solution.
        one_step = by_method(0.01, Implicit(max_steps=1), scale)
        exact(one_step, [2 / 2.01, 2 / 2.01])
        exact(by_method(0.01, Implicit(tol=0.006), scale), one_step)
        assert np.isnan(by_method(0.03, Implicit(max_steps=1), scale)).all()
    exact(by_method(2.0, Implicit(max_steps=2)), [1, 1 / 3])
    assert np.isnan(by_method(2.0, Implicit("bicgstab", max_steps=2))).all()
    exact(by_method(2.0, Implicit("bicgstab", max_steps=3)), [1, 1 / 3])
    exact(by_method(2.0, Implicit("gmres", max_steps=1)), [1, 1 / 3])
    # A larger tolerance is what is asked for.
    assert np.isfinite(by_method(0.1, Implicit(tol=0.1))).all()


@pytest.mark.slow
def test_the_default_tolerance():
    rng = np.random.default_rng(1)
    curvatures = jnp.asarray(np.logspace(0, 3, 30))
    right = jnp.asarray(rng.normal(size=30))

    def derivative(implicit):
        def solution(target):
            def loss(x, target):
                return jnp.sum(curvatures * x**2) / 2 - target * jnp.sum(right * x)

            start = jnp.zeros(30)
            return gradtx.solve(loss, start, gradtx.sgd(1e-4), target, implicit=implicit).params

        return jax.jvp(solution, (0.0,), (1.0,))[1]

    tol = float(np.finfo(float).eps ** (2 / 3))
    default = derivative(True)
    np.testing.assert_array_equal(default, derivative(Implicit(tol=tol)))
    for other in (tol / 30, tol * 30):
        assert not np.array_equal(default, derivative(Implicit(tol=other)))


@gradtx.transformation
def of_ones_own(facet=None, rate: gradtx.checks.NonNegative = 0.5):
    """Half of the updates, which says what it is told to say."""

    def rule(g, s, t):
        return rate * g, {}

    facets = () if facet is None else (facet,)
    return gradtx.leafwise(gradtx.EmptyState, None, rule).with_facets(*facets)


def at_least_one(params, rate):
    return jax.tree.map(lambda p: jnp.maximum(p, 1.0), params)


def tried(tx):
    gradtx.solve(lambda x: jnp.sum((x - 2.0) ** 2), jnp.zeros(2), tx, implicit=True, max_steps=1)


BOX = gradtx.project("box", None, {"lower": 0.0, "upper": 1.0})
FALLING = gradtx.linear_schedule(1.0, 0.1, 10)


@pytest.mark.parametrize(
    ("facet", "words"),
    [
        (EndsElsewhere("stops early: wait"), "of_ones_own, which stops early: wait"),
        (Penalty({"strength": 0.1}), r"of_ones_own\(strength=0.1\), which moves"),
    ],
)
def test_a_user_s_own_says_why_it_is_refused(facet, words):
    with pytest.raises(ValueError, match=words):
        tried(gradtx.chain(of_ones_own(facet), gradtx.scale(-1.0)))


@pytest.mark.slow
def test_a_user_s_own_says_why_it_is_not_refused():
    with pytest.raises(ValueError, match="of_ones_own in a chain with project"):
        tried(gradtx.chain(of_ones_own(), gradtx.scale(-1.0), BOX))
    for by in ("step", "norm", "past"):
        tried(gradtx.chain(of_ones_own(Scaling(by)), gradtx.scale(-1.0), BOX))
    tried(gradtx.chain(gradtx.normalize_by_update_norm(), gradtx.scale(-1.0), BOX))
    tried(gradtx.chain(gradtx.scale(-1.0), of_ones_own(Penalty({"strength": 0}))))
    with pytest.raises(ValueError, match="of_ones_own does not multiply .* accelerated=True"):
        gradtx.proximal(of_ones_own(Scaling("past")), "l1", arguments={"strength": 1.0})


@pytest.mark.slow
def test_the_map_of_a_user_s_own():
    def chained(*links, **how):
        return gradtx.chain(of_ones_own(Nearest(at_least_one, **how)), *links)

    tried(chained(gradtx.adam(0.1), by_entry=True))
    with pytest.raises(ValueError, match="scale_by_adam in a chain with of_ones_own"):
        tried(chained(gradtx.adam(0.1)))
    penalized = of_ones_own(Nearest(at_least_one, at_own_rate=True))
    with pytest.raises(ValueError, match="scale in a chain with of_ones_own.*inner optimizer"):
        tried(gradtx.chain(gradtx.scale(0.5), penalized))
    tried(of_ones_own(Nearest(at_least_one, rate="rate"), FALLING))
    with pytest.raises(ValueError, match="of_ones_own, where rate is a schedule"):
        tried(of_ones_own(Nearest(at_least_one), FALLING))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cg", "gmres", "bicgstab"])
def test_a_derivative_whose_square_is_no_number(method):
    """The solution is `a`, whatever multiplies what is differentiated, or the loss."""
    a = jnp.float32([1.0, 2.0])

    def solution(a, factor=1.0):
        def loss(x):
            return factor * jnp.sum((x - a) ** 2) / 2

        tx = gradtx.sgd(1.0 / factor)
        how = Implicit(method)
        return gradtx.solve(loss, jnp.zeros_like(a), tx, max_steps=2, implicit=how).params

    for size in (1e-30, 1e-20, 1e20, 1e30):
        found = jax.grad(lambda a, size=size: size * jnp.sum(solution(a)))(a)
        np.testing.assert_allclose(found, size * np.ones(2), rtol=1e-5)
    if method == "cg":
        for factor in (1e-20, 1e19):
            found = jax.jacfwd(functools.partial(solution, factor=factor))(a)
            np.testing.assert_allclose(found, np.eye(2), rtol=1e-5, atol=1e-6)
    assert np.isnan(jax.grad(lambda a: jnp.inf * jnp.sum(solution(a)))(a)).all()


@pytest.mark.slow
def test_a_number_in_a_field_may_be_an_array_that_is_known():
    def tried(ridge):
        def loss(x, a):
            return jnp.sum((x - a) ** 2) / 2

        def solution(a):
            how = Implicit(ridge=ridge)
            tx = gradtx.sgd(1.0)
            return gradtx.solve(loss, jnp.zeros(()), tx, a, max_steps=2, implicit=how).params

        return jax.grad(solution)(2.0)

    assert tried(jnp.float32(1.0)) == tried(1.0) == 0.5
    with pytest.raises(TypeError, match=r"implicit\.ridge must be a number, and is traced"):
        jax.jit(tried)(1.0)
