"""The relatives of Adam against their papers, Optax and PyTorch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import gradtx
from tests import oracle


def mean(s, name, x, decay):
    s[name] = decay * s.get(name, 0.0) + (1 - decay) * x
    return s[name]


def adabelief(g, s, t, p, b1=0.9, b2=0.999, eps=1e-16):
    """Zhuang et al. 2020, algorithm 2."""
    m = mean(s, "m", g, b1)
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * (g - m) ** 2 + eps
    return -0.01 * (m / (1 - b1**t)) / (np.sqrt(s["v"] / (1 - b2**t)) + eps)


def adamax(g, s, t, p, b1=0.9, b2=0.999):
    """Kingma and Ba 2015, algorithm 2."""
    m = mean(s, "m", g, b1)
    s["u"] = np.maximum(b2 * s.get("u", 0.0), np.abs(g) + 1e-8)
    return -0.01 / (1 - b1**t) * m / s["u"]


def adamaxw(g, s, t, p):
    return adamax(g, s, t, p) - 0.01 * 0.1 * p


def adan(g, s, t, p, b1=0.02, b2=0.08, b3=0.01):
    """Xie et al. 2022, algorithm 1, in its own decays, with bias corrections."""
    d = g - s.get("g", g)
    s["g"] = g
    m, v = mean(s, "m", g, 1 - b1), mean(s, "v", d, 1 - b2)
    n = mean(s, "n", (g + (1 - b2) * d) ** 2, 1 - b3)
    m, v, n = m / (1 - (1 - b1) ** t), v / (1 - (1 - b2) ** t), n / (1 - (1 - b3) ** t)
    return -0.01 * (m + (1 - b2) * v) / (np.sqrt(n + 1e-8) + 1e-8)


def amsgrad(g, s, t, p, b1=0.9, b2=0.999):
    """Reddi et al. 2018, algorithm 2: no bias correction."""
    m, v = mean(s, "m", g, b1), mean(s, "v", g * g, b2)
    s["max"] = np.maximum(s.get("max", 0.0), v)
    return -0.01 * m / (np.sqrt(s["max"]) + 1e-8)


def nadam(g, s, t, p, b1=0.9, b2=0.999, psi=4e-3):
    """Dozat 2016, with its schedule of the momentum."""
    now, ahead = (b1 * (1 - 0.5 * 0.96 ** (i * psi)) for i in (t, t + 1))
    s["product"] = s.get("product", 1.0) * now
    m, v = mean(s, "m", g, b1), mean(s, "v", g * g, b2)
    m = ahead * m / (1 - s["product"] * ahead) + (1 - now) * g / (1 - s["product"])
    return -0.01 * m / (np.sqrt(v / (1 - b2**t)) + 1e-8)


def radam(g, s, t, p, b1=0.9, b2=0.999):
    """Liu et al. 2020, algorithm 2, with the threshold 5."""
    m, v = mean(s, "m", g, b1) / (1 - b1**t), mean(s, "v", g * g, b2) / (1 - b2**t)
    end = 2 / (1 - b2) - 1
    rho = end - 2 * t * b2**t / (1 - b2**t)
    if rho < 5:
        return -0.01 * m
    r = np.sqrt((rho - 4) * (rho - 2) * end / ((end - 4) * (end - 2) * rho))
    return -0.01 * r * m / (np.sqrt(v) + 1e-8)


def yogi(g, s, t, p, b1=0.9, b2=0.999):
    """Zaheer et al. 2018, algorithm 2, with both moments starting at 1e-6 and corrected."""
    s["m"] = b1 * s.get("m", 1e-6) + (1 - b1) * g
    v = s.get("v", 1e-6)
    s["v"] = v - (1 - b2) * np.sign(v - g * g) * g * g
    return -0.01 * s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + 1e-3)


def acprop(g, s, t, p, b1=0.9, b2=0.999, eps=1e-16):
    """Zhuang et al. 2021, with the denominator of the step before."""
    root = np.sqrt(s["v"] / (1 - b2 ** (t - 1))) if t > 1 else 1.0
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * (g - s.get("m", 0.0)) ** 2 + eps
    mean(s, "m", g, b1)
    return -0.001 * g / (root + eps)


def adopt(g, s, t, p, b1=0.9, b2=0.9999):
    """Taniguchi et al. 2024, with clipping."""
    if t == 1:
        s["m"], s["v"] = 0.0, g * g
        return 0.0 * g
    c = np.clip(g / np.maximum(np.sqrt(s["v"]), 1e-6), -((t - 1) ** 0.25), (t - 1) ** 0.25)
    mean(s, "v", g * g, b2)
    return -0.01 * mean(s, "m", c, b1)


def ademamix(g, s, t, p, b1=0.9, b2=0.999, b3=0.99):
    """Pagliardini et al. 2024, algorithm 1, with alpha rising to 5 in 10 steps."""
    m1, m2, v = mean(s, "m1", g, b1), mean(s, "m2", g, b3), mean(s, "v", g * g, b2)
    alpha = 5 * min((t - 1) / 10, 1)
    u = (m1 / (1 - b1**t) + alpha * m2) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
    return -0.01 * (u + 0.1 * p)


def simplified(g, s, t, p, b1=0.99, b2=0.95):
    """Morwani et al. 2025, with alpha 2."""
    s["m"] = b1 * s.get("m", 0.0) + g
    n = mean(s, "n", g * g, b2) / (1 - b2**t)
    return -1e-3 * (s["m"] + 2 * g) / (np.sqrt(n) + 1e-8)


PAPERS = {
    "adabelief": (lambda: gradtx.adabelief(0.01), adabelief),
    "adamax": (lambda: gradtx.adamax(0.01), adamax),
    "adamaxw": (lambda: gradtx.adamaxw(0.01, weight_decay=0.1), adamaxw),
    "adan": (lambda: gradtx.adan(0.01, difference_weight=0.92), adan),
    "amsgrad": (
        lambda: gradtx.amsgrad(0.01, bias_correction_mu=False, bias_correction_nu=False),
        amsgrad,
    ),
    "nadam": (lambda: gradtx.nadam(0.01, momentum_decay=4e-3), nadam),
    "radam": (lambda: gradtx.radam(0.01), radam),
    "yogi": (lambda: gradtx.yogi(0.01), yogi),
    "acprop": (lambda: gradtx.acprop(0.001), acprop),
    "adopt": (lambda: gradtx.adopt(0.01), adopt),
    "ademamix": (
        lambda: gradtx.ademamix(
            0.01, b3=0.99, alpha=gradtx.linear_schedule(0.0, 5.0, 10), weight_decay=0.1
        ),
        ademamix,
    ),
    "simplified_ademamix": (lambda: gradtx.simplified_ademamix(1e-3, alpha=2.0), simplified),
}

# AdaBelief and ACProp divide by deviations of 1e-8 where a gradient is 0 at first, and steps of
# 1e3 follow: a relative bound is the only one that means something.
LOOSE = {"adabelief": 1e-4, "acprop": 1e-4}


@pytest.mark.parametrize("name", PAPERS)
def test_it_is_the_papers(name):
    make, update = PAPERS[name]
    oracle.check(make(), update, rtol=LOOSE.get(name, 1e-5), atol=1e-4 if name in LOOSE else 1e-5)


def torch_run(build, p, gs):
    """The parameters after each step of an optimizer of PyTorch, in float64."""
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.tensor(p, dtype=torch.float64))
    optimizer, path = build(torch.optim, [parameter]), []
    for g in gs:
        parameter.grad = torch.tensor(g, dtype=torch.float64)
        optimizer.step()
        path.append(parameter.detach().numpy().copy())
    return np.stack(path)


TORCH = {
    "amsgrad": (
        lambda: gradtx.amsgrad(0.01, max_before_correction=True),
        lambda o, p: o.Adam(p, lr=0.01, amsgrad=True),
    ),
    "nadam": (
        lambda: gradtx.nadam(0.01, momentum_decay=4e-3),
        lambda o, p: o.NAdam(p, lr=0.01),
    ),
    "radam": (lambda: gradtx.radam(0.01), lambda o, p: o.RAdam(p, lr=0.01)),
    "adamax": (lambda: gradtx.adamax(0.01), lambda o, p: o.Adamax(p, lr=0.01)),
    "adadelta": (lambda: gradtx.adadelta(), lambda o, p: o.Adadelta(p, lr=1.0)),
    "rprop": (lambda: gradtx.rprop(0.01), lambda o, p: o.Rprop(p, lr=0.01)),
}


@pytest.mark.parametrize("name", TORCH)
def test_it_is_pytorchs(name):
    make, build = TORCH[name]
    p, gs = oracle.parameters(), oracle.gradients(seed=3, steps=100)
    # PyTorch takes Rprop's gradient after a change of sign for 0, as here, and RAdam's epsilon
    # stands before its correction, which changes less than the tolerance.
    np.testing.assert_allclose(
        oracle.run(make(), p, gs), torch_run(build, p, gs), rtol=1e-5, atol=1e-5
    )


def test_radam_is_optaxs_in_double_precision():
    """In float32 Optax's length is off: its first adapted steps by 0.6 %."""
    with jax.enable_x64(True):
        p, gs = oracle.parameters(), oracle.gradients(steps=100)
        ours = oracle.run(gradtx.radam(0.01), p, gs, dtype=np.float64)
        theirs = oracle.run(optax.radam(0.01), p, gs, dtype=np.float64)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize("b2", [0.0, 0.5, 0.9, 0.999, 0.999999])
def test_radam_is_finite_for_every_decay(b2):
    path = oracle.run(gradtx.radam(0.01, b2=b2), oracle.parameters(), oracle.gradients())
    assert np.isfinite(path).all()


def test_nadam_without_a_schedule_is_adam_with_nesterov():
    p, gs = oracle.parameters(), oracle.gradients()
    want = oracle.run(gradtx.adam(0.01, nesterov=True), p, gs)
    np.testing.assert_array_equal(oracle.run(gradtx.nadam(0.01), p, gs), want)
    np.testing.assert_array_equal(oracle.run(gradtx.nadamw(0.01, weight_decay=0.0), p, gs), want)


def test_nadam_schedules_nesterov_momentum_only():
    with pytest.raises(ValueError, match="momentum_decay"):
        gradtx.nadam(0.01, nesterov=False, momentum_decay=4e-3)


def test_ademamix_without_the_slow_momentum_is_adam():
    p, gs = oracle.parameters(), oracle.gradients()
    np.testing.assert_allclose(
        oracle.run(gradtx.ademamix(0.01, alpha=0.0), p, gs),
        oracle.run(gradtx.adam(0.01), p, gs),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_adopt_without_clipping_is_optaxs(nesterov):
    p, gs = oracle.parameters(), oracle.gradients()
    options = {"nesterov": nesterov, "use_clipping": False, "eps": 0.1}
    np.testing.assert_allclose(
        oracle.run(gradtx.adopt(0.01, **options), p, gs),
        oracle.run(optax.contrib.adopt(0.01, **options), p, gs),
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize(
    ("make", "slot"),
    [
        (gradtx.scale_by_belief, "nu"),
        (gradtx.scale_by_adadelta, "e_x"),
        (gradtx.scale_by_adamax, "nu"),
        (gradtx.scale_by_adan, "n"),
        (gradtx.scale_by_amsgrad, "nu_max"),
        (gradtx.scale_by_nadam, "nu"),
        (gradtx.scale_by_radam, "nu"),
        (gradtx.scale_by_yogi, "nu"),
        (gradtx.scale_by_acprop, "nu"),
        (gradtx.scale_by_adopt, "nu"),
        (gradtx.scale_by_ademamix, "nu"),
        (gradtx.scale_by_simplified_ademamix, "n"),
    ],
)
def test_squares_are_real_and_single(make, slot):
    for dtype in (jnp.bfloat16, jnp.complex64):
        assert getattr(make().init(jnp.zeros(2, dtype)), slot).dtype == jnp.float32


@pytest.mark.parametrize("make", [gradtx.adabelief, gradtx.adadelta, gradtx.adopt, gradtx.rprop])
def test_no_copy_of_a_slot(make):
    """Optax's step copies one slot, Adadelta's two."""
    n = 1 << 16
    p = jax.ShapeDtypeStruct((n,), jnp.float32)
    tx = make(0.01)

    def step(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    state = jax.eval_shape(tx.init, p)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(p, state, p).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < n
