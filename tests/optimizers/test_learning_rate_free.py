"""COCOB, DoG, DoWG, D-Adaptation, Prodigy, MoMo and Polyak's step against the papers, and Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle

# Losses that fall on the whole, as the models of MoMo and Polyak want them.
VALUES = 30 * np.exp(-np.arange(oracle.STEPS) / 30) + np.random.default_rng(2).random(oracle.STEPS)


def run(tx, p, gs, values=VALUES, dtype=np.float32):
    """As `oracle.run`, on any tree, with a loss for each step."""

    def step(carry, given):
        g, value = given
        p, state = carry
        updates, state = gradtx.with_extra_args_support(tx).update(g, state, p, value=value)
        p = gradtx.apply_updates(p, updates)
        return (p, state), p

    p, gs, values = jax.tree.map(lambda x: jnp.asarray(x, dtype), (p, gs, values))
    return jax.jit(lambda p, xs: jax.lax.scan(step, (p, tx.init(p)), xs)[1])(p, (gs, values))


def check(tx, update, rtol=1e-5, atol=1e-5):
    p, gs = oracle.parameters(), oracle.gradients()
    want = oracle.transcribe(update, p, gs)
    np.testing.assert_allclose(run(tx, p, gs), want, rtol=rtol, atol=atol)


def norm(x):
    return np.sqrt(np.sum(x * x))


def positive(x):
    return max(x, 0.0)


@pytest.mark.parametrize("alpha", [100.0, 2.0])
def test_cocob_is_the_papers(alpha):
    """Orabona and Tommasi 2017, algorithm 2, on decayed gradients."""

    def update(g, s, t, p):
        s.setdefault("w", p)
        g = g + 0.1 * p
        s["L"] = np.maximum(s.get("L", 1e-8), abs(g))
        s["G"] = s.get("G", 0.0) + abs(g)
        s["R"] = np.maximum(s.get("R", 0.0) - g * (p - s["w"]), 0)
        s["theta"] = s.get("theta", 0.0) - g
        bet = s["theta"] / (s["L"] * np.maximum(s["G"] + s["L"], alpha * s["L"]))
        return s["w"] + bet * (s["L"] + s["R"]) - p

    check(gradtx.cocob(alpha=alpha, weight_decay=0.1), update)


def dog(first, decay=0.0, first_rate=None, eps=1e-8):
    """Ivgi et al. 2023: the largest distance so far over the root of the summed squares."""

    def update(g, s, t, p):
        s.setdefault("start", p)
        g = g + decay * p
        s["G"] = s.get("G", 0.0) + np.sum(g * g)
        s["r"] = max(s.get("r", first(p)), norm(p - s["start"]))
        rate = s["r"] / np.sqrt(s["G"] + eps)
        return -(first_rate if t == 1 and first_rate is not None else rate) * g

    return update


@pytest.mark.parametrize(
    ("tx", "update"),
    [
        (gradtx.dog(), dog(lambda p: 1e-6 * (1 + norm(p)))),
        (gradtx.dog(0.5, ("distance", 0.1)), dog(lambda p: 0.1)),
        (
            gradtx.dog(init_step=("learning_rate", 0.01), weight_decay=0.1),
            dog(lambda p: 0.0, 0.1, 0.01),
        ),
        (
            gradtx.scale_by_distance_over_gradients(1e-3, global_scale=-1.0),
            dog(lambda p: 1e-3 * (1 + norm(p))),
        ),
    ],
    ids=["heuristic", "distance", "learning_rate", "layerwise"],
)
def test_dog_is_the_papers(tx, update):
    factor = tx.declaration.arguments.get("learning_rate", 1.0)
    check(tx, lambda *args: factor * update(*args))


def test_dowg_is_the_papers():
    """Khaled et al. 2023, algorithm 1."""

    def update(g, s, t, p):
        s.setdefault("start", p)
        s["r2"] = max(s.get("r2", 0.01), np.sum((p - s["start"]) ** 2))
        s["v"] = s.get("v", 0.0) + s["r2"] * np.sum(g * g)
        return -s["r2"] / (np.sqrt(s["v"]) + 1e-4) * g

    check(gradtx.dowg(init_estim_sq_dist=0.01), update)


def correction(t, b1=0.9, b2=0.999):
    return np.sqrt(1 - b2**t) / (1 - b1**t)


def test_dadapt_adamw_is_the_papers():
    """Defazio and Mishchenko 2023, algorithm 5, corrected for the start at zero."""
    b1, b2, root = 0.9, 0.999, np.sqrt(0.999)

    def update(g, s, t, p):
        rate = s.get("d", 1e-3) * correction(t)
        past = s.get("s", np.zeros_like(g)) / (np.sqrt(s.get("v", 0.0)) + 1e-8)
        s["r"] = root * s.get("r", 0.0) + (1 - root) * rate * np.sum(g * past)
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * rate * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
        s["s"] = root * s.get("s", 0.0) + (1 - root) * rate * g
        s["d"] = max(s.get("d", 1e-3), s["r"] / ((1 - root) * np.sum(abs(s["s"]))))
        return -s["m"] / (np.sqrt(s["v"]) + 1e-8) - 0.1 * rate * p

    check(gradtx.dadapt_adamw(estim_lr0=1e-3, weight_decay=0.1), update)


@pytest.mark.parametrize("safe", [False, True])
def test_prodigy_is_the_papers(safe):
    """Mishchenko and Defazio 2023, algorithm 4, with the weights of the authors' code."""
    b1, b2, b3, first = 0.9, 0.999, 0.99, 1e-2

    def update(g, s, t, p):
        s.setdefault("start", p)
        d = s.get("d", first)
        rate = d * correction(t)
        s["r"] = b3 * s.get("r", 0.0) + d / first * rate * np.sum(g * (s["start"] - p))
        s["s"] = b3 * s.get("s", 0.0) + d / first * (d if safe else rate) * g
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * d * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * d * d * g * g
        s["d"] = max(d, 2 * s["r"] / np.sum(abs(s["s"])))
        return -rate * (s["m"] / (np.sqrt(s["v"]) + s["d"] * 1e-8) + 0.1 * p)

    tx = gradtx.prodigy(
        beta3=0.99, estim_lr0=1e-2, estim_lr_coef=2.0, weight_decay=0.1, safeguard_warmup=safe
    )
    check(tx, update)


def momo(alpha, beta, decay, adapt, bound, adam=False):
    """Schaipp et al. 2024, algorithms 1 (2 with `adam`) and 3, decay by division."""
    b2, eps, shrink = 0.999, 1e-8, 1 + alpha * decay

    def update(g, s, t, p):
        b = 0.0 if t == 1 and not adam else beta
        rho = 1 - beta**t if adam else 1.0
        s["f"] = b * s.get("f", 0.0) + (1 - b) * VALUES[t - 1]
        s["d"] = b * s.get("d", 0.0) + (1 - b) * g
        s["c"] = b * s.get("c", 0.0) + (1 - b) * np.sum(g * p)
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
        scale = eps + np.sqrt(s["v"] / (1 - b2**t)) if adam else 1.0
        square, slope = np.sum(s["d"] ** 2 / scale), np.sum(s["d"] * p)
        least = s.get("lb", bound)
        if adapt:
            cap = shrink * (s["f"] - s["c"]) + slope
            if cap < shrink * rho * least:
                least = max(cap / (2 * rho * shrink), bound)
        gap = positive(shrink * (s["f"] - rho * least - s["c"]) + slope)
        tau = min(alpha / rho, gap / square)
        s["lb"] = least
        if adapt:
            s["lb"] = max((s["f"] + slope - s["c"] - tau * square / 2) / rho, bound)
        return (p - tau * s["d"] / scale) / shrink - p

    return update


@pytest.mark.parametrize(
    ("decay", "adapt", "bound"), [(0.0, False, 0.0), (0.1, False, 1.0), (0.1, True, -5.0)]
)
def test_momo_is_the_papers(decay, adapt, bound):
    kwargs = {"weight_decay": decay, "adapt_lower_bound": adapt, "lower_bound": bound}
    check(gradtx.momo(0.5, **kwargs), momo(0.5, 0.9, decay, adapt, bound))
    check(gradtx.momo_adam(0.05, **kwargs), momo(0.05, 0.9, decay, adapt, bound, adam=True))


@pytest.mark.parametrize("variant", ["sps", "sps+"])
def test_polyak_is_the_papers(variant):
    """Loizou et al. 2021, the bounded step; the scaling multiplies the step."""

    def update(g, s, t, p):
        gap = VALUES[t - 1] - 12.0
        gap = positive(gap) if variant == "sps+" else gap
        return -0.5 * min(gap / (np.sum(g * g) + 0.1), 0.7) * g

    check(gradtx.polyak_sgd(0.7, 0.5, f_min=12.0, eps=0.1, variant=variant), update)


contrib = optax.contrib
LIKE_OPTAX = {
    "cocob": lambda lib: lib.cocob(0.5),
    "dog": lambda lib: lib.dog(0.5, ("learning_rate", 1e-2), weight_decay=0.1),
    "dowg": lambda lib: lib.dowg(weight_decay=0.1),
    "dadapt_adamw": lambda lib: lib.dadapt_adamw(),
    "prodigy": lambda lib: lib.prodigy(),
    "prodigy with a schedule": lambda lib: lib.prodigy(optax.linear_schedule(1.0, 0.0, 100)),
    "momo": lambda lib: lib.momo(optax.linear_schedule(1.0, 0.0, 100), adapt_lower_bound=True),
    "momo_adam": lambda lib: lib.momo_adam(),
}


@pytest.mark.parametrize("name", LIKE_OPTAX)
def test_like_optax_in_double_precision(name):
    """A hundred steps: Optax's float32 is left out, its algorithm compared."""
    build, values = LIKE_OPTAX[name], np.linspace(30, 1, 100)
    with jax.enable_x64(True):
        p = {"a": oracle.parameters(), "b": np.array(0.5)}
        gs = {"a": oracle.gradients(steps=100), "b": oracle.gradients(3, (), 100)}
        ours = run(build(gradtx), p, gs, values, np.float64)
        theirs = run(build(contrib), p, gs, values, np.float64)
        for k in p:
            np.testing.assert_allclose(ours[k], theirs[k], rtol=1e-8, atol=1e-10)


TREEWISE = {
    "dog": lambda: gradtx.dog(),
    "dowg": lambda: gradtx.dowg(),
    "dadapt_adamw": lambda: gradtx.dadapt_adamw(),
    "prodigy": lambda: gradtx.prodigy(),
    "momo": lambda: gradtx.momo(0.5),
    "momo_adam": lambda: gradtx.momo_adam(),
    "polyak_sgd": lambda: gradtx.polyak_sgd(),
}


@pytest.mark.parametrize("name", TREEWISE)
def test_leaves_are_looked_at_together(name):
    p, gs = oracle.parameters(), oracle.gradients()
    whole = run(TREEWISE[name](), p, gs)
    parts = {"a": p[:1, 0].reshape(()), "b": p[:1, 1:], "c": None, "d": p[1:]}
    parts_gs = {"a": gs[:, 0, 0], "b": gs[:, :1, 1:], "c": None, "d": gs[:, 1:]}
    split = run(TREEWISE[name](), parts, parts_gs)
    # Sums over leaves round in another order, by what the largest entries have for a last place.
    atol = 1e-6 * np.abs(whole).max()
    np.testing.assert_allclose(split["a"], whole[:, 0, 0], rtol=1e-5, atol=atol)
    np.testing.assert_allclose(split["b"], whole[:, :1, 1:], rtol=1e-5, atol=atol)
    np.testing.assert_allclose(split["d"], whole[:, 1:], rtol=1e-5, atol=atol)


@pytest.mark.parametrize("name", ["dadapt_adamw", "prodigy"])
def test_a_run_that_starts_with_zero_gradients_or_a_zero_rate_goes_on(name):
    """Optax's estimate is NaN from the first step on."""
    build = getattr(gradtx, name)
    p, gs = oracle.parameters(), oracle.gradients()
    want = run(build(estim_lr0=1e-2), p, gs)
    waited = run(build(estim_lr0=1e-2), p, np.concatenate([0 * gs[:3], gs]), np.ones(53))
    assert np.all(np.isfinite(waited))
    np.testing.assert_array_equal(waited[2], np.float32(p))
    assert np.linalg.norm(waited[-1] - p) > 0.5 * np.linalg.norm(want[-1] - p)
    warm = run(build(gradtx.linear_schedule(0.0, 1.0, 10), estim_lr0=1e-2), p, gs)
    assert np.all(np.isfinite(warm))
    assert np.linalg.norm(warm[-1] - p) > 0.1


@pytest.mark.parametrize("name", ["momo", "momo_adam", "polyak_sgd"])
def test_the_loss_must_be_given_and_is_by_minimize(name):
    tx, p = getattr(gradtx, name)(), {"w": jnp.ones(2)}
    state = tx.init(p)
    with pytest.raises(ValueError, match="value=loss"):
        tx.update(p, state, p)
    with pytest.raises(ValueError, match="one number"):
        tx.update(p, state, p, value=jnp.ones(2))
    new, _, value = gradtx.minimize(lambda p: jnp.sum(p["w"] ** 2), tx, p, state)
    assert float(value) == 2.0
    assert float(new["w"][0]) < 1.0


@pytest.mark.parametrize("name", ["dog", "dowg", "dadapt_adamw", "prodigy", "momo"])
def test_parameters_are_asked_for(name):
    tx, p = getattr(gradtx, name)(), {"w": jnp.ones(2)}
    with pytest.raises(ValueError, match=f"{name}.* needs the parameters"):
        tx.update(p, tx.init(p), value=1.0)
    with pytest.raises(ValueError, match="'w'"):
        tx.update(p, tx.init(p), {"w": jnp.ones(3)}, value=1.0)


def test_numbers_of_the_tree_are_wide():
    p = {"a": jnp.ones(2, jnp.float16), "b": jnp.ones(2, jnp.bfloat16)}
    _, state, _ = gradtx.dog().init(p)
    assert state.max_dist.dtype == state.sum_sq_norm_grads.dtype == jnp.float32
    # In float16 this sum is infinite.
    g = jax.tree.map(lambda x: 300 * x, p)
    updates, state = gradtx.dog().update(g, gradtx.dog().init(p), p)
    assert float(state[1].sum_sq_norm_grads) == 4 * 300**2
    assert updates["a"].dtype == jnp.float16


def test_dog_moves_only_the_touched_rows():
    table = {"table": jnp.ones((5, 2))}
    tx = gradtx.dog(init_step=("distance", 0.1))
    rows = gradtx.Rows(jnp.array([3, 1]), jnp.ones((2, 2)), (5, 2))
    updates, _ = tx.update({"table": rows}, tx.init(table), table)
    assert isinstance(updates["table"], gradtx.Rows)
    np.testing.assert_allclose(updates["table"].values, -0.05, rtol=1e-6)


def test_complex_entries_are_pairs_of_real_ones():
    """Norms and inner products of complex leaves are those of their parts."""
    p, gs = oracle.parameters(), oracle.gradients()
    pc, gc = p[:, :2] + 1j * p[:, 1:], gs[:, :, :2] + 1j * gs[:, :, 1:]
    pair = {"re": p[:, :2], "im": p[:, 1:]}
    gs_pair = {"re": gs[:, :, :2], "im": gs[:, :, 1:]}
    for name in ("dog", "dowg", "momo", "polyak_sgd"):
        tx = TREEWISE[name]()
        whole = _run_complex(tx, pc, gc)
        parts = run(tx, pair, gs_pair)
        np.testing.assert_allclose(whole.real, parts["re"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(whole.imag, parts["im"], rtol=1e-4, atol=1e-5)


def _run_complex(tx, p, gs):
    def step(carry, given):
        g, value = given
        updates, state = tx.update(g, carry[1], carry[0], value=value)
        return (carry[0] + updates, state), carry[0] + updates

    p, gs = jnp.asarray(p, jnp.complex64), jnp.asarray(gs, jnp.complex64)
    values = jnp.asarray(VALUES, jnp.float32)
    return jax.jit(lambda p, xs: jax.lax.scan(step, (p, tx.init(p)), xs)[1])(p, (gs, values))
