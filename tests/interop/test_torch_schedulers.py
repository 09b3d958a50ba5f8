"""PyTorch's schedulers handed over with their optimizer, against PyTorch itself."""

# Sees mutants of: torch_optimizers.

import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.interop import from_torch
from tests import oracle
from tests.interop.handover import go_on, gradients

torch = pytest.importorskip("torch")
TO = torch.optim
LR = torch.optim.lr_scheduler
SHAPES = ((3, 2), (2,))
BEFORE, AFTER = 8, 14


def tensors():
    return [
        torch.nn.Parameter(torch.tensor(oracle.parameters(i, s), dtype=torch.float32))
        for i, s in enumerate(SHAPES)
    ]


def train(optimizer, scheduler, params, gs, every=1, start=0):
    for t, g in enumerate(gs, start=start + 1):
        for p, x in zip(params, g, strict=True):
            p.grad = torch.from_numpy(x.copy())
        optimizer.step()
        if t % every == 0:
            scheduler.step()
    return [p.detach().numpy().copy() for p in params]


def check(optimizer, scheduler, ps, every=1):
    gs = gradients(SHAPES, BEFORE + AFTER)
    params = train(optimizer, scheduler, ps, gs[:BEFORE], every)
    tx, state = from_torch(optimizer, params, scheduler=scheduler, steps_per_epoch=every)
    got, _ = go_on(tx, state, params, gs[BEFORE:])
    want = train(optimizer, scheduler, ps, gs[BEFORE:], every, BEFORE)
    for mine, theirs, before in zip(got, want, params, strict=True):
        assert np.abs(theirs - before).max() > 1e-3
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)
    return tx


SCHEDULERS = {
    "LambdaLR": lambda o: LR.LambdaLR(o, lambda t: 0.9**t),
    "MultiplicativeLR": lambda o: LR.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o: LR.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda o: LR.MultiStepLR(o, [3, 10, 10], 0.5),
    "ConstantLR": lambda o: LR.ConstantLR(o, 0.3, 12),
    "LinearLR": lambda o: LR.LinearLR(o, 0.1, 0.8, 12),
    "ExponentialLR": lambda o: LR.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: LR.PolynomialLR(o, 15, 2.0),
    "CosineAnnealingLR": lambda o: LR.CosineAnnealingLR(o, 7, 0.01),
    "CosineAnnealingWarmRestarts": lambda o: LR.CosineAnnealingWarmRestarts(o, 5, 2, 0.01),
    "CyclicLR": lambda o: LR.CyclicLR(o, 0.01, 0.2, 4, 3, "triangular2"),
    "OneCycleLR": lambda o: LR.OneCycleLR(o, 0.2, 26),
    "SequentialLR": lambda o: LR.SequentialLR(
        o, [LR.LinearLR(o, 0.1, 1.0, 4), LR.ExponentialLR(o, 0.9), LR.StepLR(o, 2)], [4, 12]
    ),
    "ChainedScheduler": lambda o: LR.ChainedScheduler(
        [LR.LinearLR(o, 0.2, 1.0, 12), LR.ExponentialLR(o, 0.9), LR.MultiStepLR(o, [9], 0.5)]
    ),
    "SWALR": lambda o: TO.swa_utils.SWALR(o, 0.01, 12),
}
MORE = {
    "OneCycleLR, without a way down": lambda o: LR.OneCycleLR(o, 0.2, 26, pct_start=1.0),
    "OneCycleLR, phases that overlap": lambda o: LR.OneCycleLR(
        o, 0.2, 26, pct_start=0.6, three_phase=True
    ),
    "ConstantLR, of no steps": lambda o: LR.ConstantLR(o, 0.3, 0),
    "CyclicLR, exp_range": lambda o: LR.CyclicLR(o, 0.01, 0.2, 4, mode="exp_range", gamma=0.9),
    "OneCycleLR, linear, three phases": lambda o: LR.OneCycleLR(
        o, 0.2, 25, anneal_strategy="linear", three_phase=True, cycle_momentum=False
    ),
    "SWALR, linear, over": lambda o: TO.swa_utils.SWALR(o, 0.01, 5, "linear"),
    "SWALR, linear": lambda o: TO.swa_utils.SWALR(o, 0.01, 15, "linear"),
    "StepLR, to 0": lambda o: LR.StepLR(o, 12, 0.0),
    "ExponentialLR, to 0, after a warm-up": lambda o: LR.SequentialLR(
        o, [LR.ConstantLR(o, 0.5, 9), LR.ExponentialLR(o, 0.0)], [12]
    ),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", [*SCHEDULERS, *MORE])
def test_a_schedule_goes_on(name):
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1, momentum=0.9)
    check(optimizer, {**SCHEDULERS, **MORE}[name](optimizer), ps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Adam", "AdamW", "Adadelta", "Adagrad", "Adafactor", "Adamax", "NAdam", "RAdam"]
)
def test_with_other_optimizers(name):
    ps = tensors()
    rate = 10.0 if name == "Adadelta" else 0.1
    optimizer = getattr(TO, name)(ps, rate, weight_decay=0.01)
    check(optimizer, LR.ExponentialLR(optimizer, 0.9), ps)


@pytest.mark.parametrize("name", ["AdamW", "RMSprop", "SGD"])
def test_momentum_is_cycled(name):
    """With dampening its state has a counter of its own, which is the clock of the momentum."""
    ps = tensors()
    options = {} if name == "AdamW" else {"momentum": 0.9}
    options |= {"dampening": 0.5} if name == "SGD" else {}
    optimizer = getattr(TO, name)(ps, 0.01, **options)
    tx = check(optimizer, LR.OneCycleLR(optimizer, 0.05, 30, base_momentum=0.5), ps)
    assert "piecewise_interpolate" in repr(tx)


def test_groups_have_rates_of_their_own():
    ps = tensors()
    optimizer = TO.SGD([{"params": ps[:1], "lr": 0.1}, {"params": ps[1:], "lr": 0.01}])
    check(optimizer, LR.LambdaLR(optimizer, [lambda t: 0.9**t, lambda t: 1.1**t]), ps)


@pytest.mark.parametrize("every", [2, 3])
def test_stepped_once_an_epoch(every):
    """Handed over at the end of an epoch, and in the middle of one."""
    ps = tensors()
    optimizer = TO.AdamW(ps, 0.1)
    tx = check(optimizer, LR.ExponentialLR(optimizer, 0.5), ps, every)
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx


def test_stepped_once_an_epoch_by_what_counts_no_steps():
    """Handed over at an epoch's end; a scaler changes nothing of that."""
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1, momentum=0.9)
    scheduler = LR.ExponentialLR(optimizer, 0.5)
    check(optimizer, scheduler, ps, BEFORE // 2)
    given = {"scheduler": scheduler, "steps_per_epoch": BEFORE // 2}
    params = [p.detach().numpy() for p in ps]
    plain, state = from_torch(optimizer, params, **given)
    assert gradtx.tree.get(state, "count") == 5 * (BEFORE // 2)
    scaled, _ = from_torch(
        optimizer, params, **given, scaler=torch.amp.GradScaler("cpu", 64.0, growth_interval=9)
    )
    assert scaled == gradtx.dynamic_loss_scale(plain, 64.0, 9, 2.0, 0.0)


def test_begun_in_the_middle_of_a_run():
    ps = tensors()
    optimizer = TO.AdamW(ps, 0.1)
    for g in gradients(SHAPES, 5):
        for p, x in zip(ps, g, strict=True):
            p.grad = torch.from_numpy(x.copy())
        optimizer.step()
    tx = check(optimizer, TO.swa_utils.SWALR(optimizer, 0.01, 12), ps)
    np.testing.assert_allclose(gradtx.hyperparams(tx)["learning_rate"], 0.1, rtol=1e-6)


@pytest.mark.parametrize("frozen", [3, 5])
def test_an_epoch_is_one_for_all_parameters(frozen):
    """One of two layers is frozen at first, so that it has not taken the steps of the optimizer."""
    ps = tensors()
    optimizer = TO.Adam(ps, 0.1)
    scheduler = LR.ExponentialLR(optimizer, 0.5)
    gs = gradients(SHAPES, 14)

    def step(t, g):
        for p, x in zip(ps, g, strict=True):
            p.grad = None if p is ps[1] and t <= frozen else torch.from_numpy(x.copy())
        optimizer.step()
        if t % 4 == 0:
            scheduler.step()

    for t, g in enumerate(gs[:6], start=1):
        step(t, g)
    params = [p.detach().numpy().copy() for p in ps]
    tx, state = from_torch(optimizer, params, scheduler=scheduler, steps_per_epoch=4)
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    got, _ = go_on(tx, state, params, gs[6:])
    for t, g in enumerate(gs[6:], start=7):
        step(t, g)
    for mine, p in zip(got, ps, strict=True):
        np.testing.assert_allclose(mine, p.detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("steps", [8, 9, 11])
def test_an_epoch_begun_at_an_unknown_step_is_refused(steps):
    """The scheduler is made after one step of one of two layers."""
    ps = tensors()
    optimizer = TO.Adam(ps, 0.1)
    ps[0].grad = torch.ones(SHAPES[0])
    optimizer.step()
    scheduler = LR.ExponentialLR(optimizer, 0.5)
    params = train(optimizer, scheduler, ps, gradients(SHAPES, steps), 4)
    with pytest.raises(ValueError, match="does not say how far the epoch in progress is"):
        from_torch(optimizer, params, scheduler=scheduler, steps_per_epoch=4)


@pytest.mark.parametrize("taken", [0, 3])
def test_a_group_that_is_frozen_so_far_has_taken_no_steps(taken):
    """Its bias correction begins when it does, and its rate is the scheduler's."""
    ps = tensors()
    optimizer = TO.Adam([{"params": ps[:1]}, {"params": ps[1:]}], 0.1)
    scheduler = LR.ExponentialLR(optimizer, 0.5)
    gs = gradients(SHAPES, 8)
    for g in gs[:taken]:
        ps[0].grad = torch.from_numpy(g[0].copy())
        optimizer.step()
        scheduler.step()
    params = [p.detach().numpy().copy() for p in ps]
    tx, state = from_torch(optimizer, params, scheduler=scheduler)
    got, _ = go_on(tx, state, params, gs[taken:])
    want = train(optimizer, scheduler, ps, gs[taken:])
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


def plateaus(optimizer, mode, **options):
    options = {"patience": 1, "factor": 0.5, "cooldown": 1, "min_lr": 0.01, **options}
    return LR.ReduceLROnPlateau(optimizer, mode, **options)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("kind", ["rel", "abs"])
def test_reduce_on_plateau(mode, kind):
    """Stepped before the optimizer, as its counterpart is; the state goes over."""
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1, momentum=0.9)
    scheduler = plateaus(optimizer, mode, threshold_mode=kind, threshold=0.01)
    metrics = [5.0, 4.0, 4.2, 4.3, 4.1, 3.99, 5.0, 6.0, 7.0, 3.0, 3.0, 3.1, 2.0, 3.0, 3.0, 3.0]
    gs = gradients(SHAPES, len(metrics))

    def step(metric, g):
        scheduler.step(metric)
        for p, x in zip(ps, g, strict=True):
            p.grad = torch.from_numpy(x.copy())
        optimizer.step()
        return optimizer.param_groups[0]["lr"]

    half = len(metrics) // 3
    for metric, g in zip(metrics[:half], gs[:half], strict=True):
        step(metric, g)
    params = [jnp.asarray(p.detach().numpy().copy()) for p in ps]
    tx, state = from_torch(optimizer, params, scheduler=scheduler)
    rate = optimizer.param_groups[0]["lr"]
    seen = set()
    for metric, g in zip(metrics[half:], gs[half:], strict=True):
        params, state = gradtx.apply_gradients(tx, g, params, state, value=metric)
        now = step(metric, g)
        seen.add(now)
        np.testing.assert_allclose(gradtx.tree.get(state, "scale") * rate, now, rtol=1e-6)
    assert len(seen) > 1
    for mine, p in zip(params, ps, strict=True):
        np.testing.assert_allclose(mine, p.detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["rel", "abs"])
@pytest.mark.parametrize(("rate", "least"), [(0.1, 0.1), (0.005, 1.0)])
def test_the_tolerance_and_the_least_scale_of_a_plateau(kind, rate, least):
    """A rate that is below the least is left alone."""
    ps = tensors()
    optimizer = TO.SGD(ps, rate)
    scheduler = plateaus(optimizer, "min", threshold_mode=kind, threshold=0.25)
    tx, _ = from_torch(optimizer, [p.detach().numpy() for p in ps], scheduler=scheduler)
    found = [gradtx.hyperparams(tx)[name] for name in ("rtol", "atol", "min_scale")]
    assert found == [0.25 * (kind == "rel"), 0.25 * (kind == "abs"), pytest.approx(least)]


def test_a_plateau_is_judged_once_an_epoch():
    """As PyTorch does: the epoch's last step is the first that a reduction affects."""
    ps = tensors()
    optimizer = TO.Adam(ps, 0.1)
    scheduler = LR.ReduceLROnPlateau(optimizer, patience=2, factor=0.5)
    gs = gradients(SHAPES, 3)

    def epoch():
        for g in gs:
            for p, x in zip(ps, g, strict=True):
                p.grad = torch.from_numpy(x.copy())
            optimizer.step()
        scheduler.step(1.0)
        return optimizer.param_groups[0]["lr"]

    epoch()
    params = [jnp.asarray(p.detach().numpy().copy()) for p in ps]
    with pytest.raises(ValueError, match="taken 3 steps and ReduceLROnPlateau 1: pass steps_per_"):
        from_torch(optimizer, params, scheduler=scheduler)
    with pytest.raises(ValueError, match="3 steps, which are no whole epochs of 2, .* at the end"):
        from_torch(optimizer, params, scheduler=scheduler, steps_per_epoch=2)
    tx, state = from_torch(optimizer, params, scheduler=scheduler, steps_per_epoch=3)
    update = jax.jit(tx.update)
    rates = []
    for _ in range(8):
        for g in gs:
            _, state = update(g, state, params, value=1.0)
        rates.append(epoch())
        found = gradtx.hyperparams(tx, state)["learning_rate"]
        np.testing.assert_allclose(found, rates[-1], rtol=1e-6)
    assert rates[1] == 0.1
    assert rates[-1] == 0.025


@pytest.mark.parametrize("eps", [1e-8, 0.02, 0.2])
def test_a_reduction_of_up_to_eps_is_not_made(eps):
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1)
    scheduler = LR.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, eps=eps)
    zeros = [np.zeros(shape, np.float32) for shape in SHAPES]
    rates, there = [], []

    def step(metric):
        scheduler.step(metric)
        for p, x in zip(ps, zeros, strict=True):
            p.grad = torch.from_numpy(x)
        optimizer.step()
        return optimizer.param_groups[0]["lr"]

    step(1.0)
    params = [jnp.asarray(p.detach().numpy().copy()) for p in ps]
    tx, state = from_torch(optimizer, params, scheduler=scheduler)
    for metric in range(2, 7):
        _, state = tx.update(zeros, state, params, value=float(metric))
        rates.append(float(gradtx.hyperparams(tx, state)["learning_rate"]))
        there.append(step(float(metric)))
    np.testing.assert_allclose(rates, there, rtol=1e-6)
    assert len(set(there)) == {1e-8: 5, 0.02: 2, 0.2: 1}[eps]


def test_a_scheduler_that_has_taken_fewer_steps_asks_for_their_number():
    ps = tensors()
    optimizer = TO.AdamW(ps, 0.1)
    scheduler = LR.StepLR(optimizer, 3, 0.5)
    params = train(optimizer, scheduler, ps, gradients(SHAPES, 4), every=2)
    with pytest.raises(ValueError, match="taken 4 steps and StepLR 2: pass steps_per_epoch"):
        from_torch(optimizer, params, scheduler=scheduler)


def test_every_scheduler_is_known():
    there = {
        name
        for name, cls in inspect.getmembers(LR, inspect.isclass)
        if issubclass(cls, LR.LRScheduler) and not name.startswith("_") and name != "LRScheduler"
    }
    assert there | {"SWALR"} == set(SCHEDULERS) | {"ReduceLROnPlateau"}


def untraceable(t):
    return 1.0 if t < 5 else 0.1


class Mine(LR.LRScheduler):
    def get_lr(self):
        return self.base_lrs


REFUSED = {
    "Mine": (lambda o: Mine(o), "'Mine' is not known; there are Chained"),
    "function": (lambda o: LR.LambdaLR(o, untraceable), "jnp.where for if"),
    "integers": (
        lambda o: LR.LambdaLR(o, lambda t: 10 ** -(t // 1000)),
        r"is 0.1 at epoch 1024, and 0 when compiled.* write it with floats",
    ),
    "scale_fn": (
        lambda o: LR.CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: 1.0),
        "a scale_fn of its own",
    ),
    "chained": (
        lambda o: LR.ChainedScheduler([LR.ExponentialLR(o, 0.9), LR.CosineAnnealingLR(o, 5)]),
        "ChainedScheduler of CosineAnnealingLR: only those that multiply",
    ),
    "sequential": (
        lambda o: LR.SequentialLR(
            o, [LR.ExponentialLR(o, 0.9), LR.MultiplicativeLR(o, lambda t: 0.5)], [3]
        ),
        "MultiplicativeLR the first",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, says = REFUSED[name]
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1, momentum=0.9)
    with pytest.raises(ValueError, match=says):
        from_torch(optimizer, [p.detach().numpy() for p in ps], scheduler=make(optimizer))


def test_refused_with_these_optimizers():
    ps = tensors()
    params = [p.detach().numpy() for p in ps]
    for optimizer, make, says in (
        (TO.Rprop(ps), lambda o: LR.ExponentialLR(o, 0.9), "not a multiple of the rate"),
        (TO.ASGD(ps), lambda o: LR.ExponentialLR(o, 0.9), "not a multiple of the rate"),
        (TO.Adafactor(ps), LR.ReduceLROnPlateau, "not a multiple of the rate"),
        (TO.LBFGS(ps), lambda o: LR.ExponentialLR(o, 0.9), "takes no scheduler"),
        (
            TO.Muon(ps[:1], momentum=0.9),
            lambda o: LR.OneCycleLR(o, 0.2, 26),
            "its momentum cannot follow",
        ),
    ):
        given = params[:1] if isinstance(optimizer, TO.Muon) else params
        with pytest.raises(ValueError, match=says):
            from_torch(optimizer, given, scheduler=make(optimizer))


def test_a_rate_set_by_hand_is_refused():
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1)
    scheduler = LR.ExponentialLR(optimizer, 0.9)
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(ValueError, match="in force is 0.5, and ExponentialLR gives 0.1 at its"):
        from_torch(optimizer, [p.detach().numpy() for p in ps], scheduler=scheduler)


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", [*SCHEDULERS, "ReduceLROnPlateau"])
def test_a_group_added_after_the_scheduler_is_refused(name):
    ps = tensors()
    optimizer = TO.SGD(ps[:1], 0.1, momentum=0.9)
    scheduler = {**SCHEDULERS, "ReduceLROnPlateau": LR.ReduceLROnPlateau}[name](optimizer)
    optimizer.add_param_group({"params": ps[1:]})
    with pytest.raises(ValueError, match="group 1: .* was made before this group was added"):
        from_torch(optimizer, [p.detach().numpy() for p in ps], scheduler=scheduler)


def test_of_several_schedulers_one_was_made_before_a_group():
    ps = tensors()
    optimizer = TO.SGD(ps[:1], 0.1)
    early = LR.ExponentialLR(optimizer, 0.9)
    optimizer.add_param_group({"params": ps[1:]})
    scheduler = LR.ChainedScheduler([LR.ExponentialLR(optimizer, 0.9), early])
    with pytest.raises(ValueError, match="group 1: .* was made before this group was added"):
        from_torch(optimizer, [p.detach().numpy() for p in ps], scheduler=scheduler)


def test_a_chain_of_one_scheduler():
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1)
    scheduler = LR.ChainedScheduler([LR.ConstantLR(optimizer, 0.5, 3)])
    tx, _ = from_torch(optimizer, [p.detach().numpy() for p in ps], scheduler=scheduler)
    np.testing.assert_allclose(gradtx.hyperparams(tx)["learning_rate"], 0.05, rtol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: LR.CosineAnnealingLR(o, 7, 0.01),
        lambda o: LR.CosineAnnealingWarmRestarts(o, 5, 2, 0.01),
        lambda o: TO.swa_utils.SWALR(o, 0.01, 12),
        lambda o: LR.OneCycleLR(o, 0.2, 26, base_momentum=0.0),
    ],
)
def test_a_way_from_zero_is_refused(make):
    ps = tensors()
    optimizer = TO.SGD(ps, 0.0, momentum=0.9)
    scheduler = make(optimizer)
    with pytest.raises(ValueError, match="goes from 0 to 0.*, which is not a multiple of 0"):
        from_torch(optimizer, [p.detach().numpy() for p in ps], scheduler=scheduler)


@pytest.mark.parametrize(("every", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_bad_steps_per_epoch(every, error):
    ps = tensors()
    with pytest.raises(error, match="steps_per_epoch must be"):
        from_torch(TO.SGD(ps, 0.1), [p.detach().numpy() for p in ps], steps_per_epoch=every)


@pytest.mark.parametrize(
    "function",
    [
        lambda t: jnp.maximum(0.0, 1 - t / 100),
        lambda t: 1 - t / 100,
        lambda t: 0.5 * (1 + jnp.cos(jnp.pi * t / 30)),
        lambda t: (1 - t / 100) ** 0.9,
    ],
)
def test_functions_that_pass_through_0(function):
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1)
    from_torch(
        optimizer, [p.detach().numpy() for p in ps], scheduler=LR.LambdaLR(optimizer, function)
    )


def test_onecycle_in_straight_lines():
    """As docs/coming_from.md has it."""
    n, p, k = 100, 0.1, 29
    schedule = gradtx.join_schedules(
        [gradtx.linear_schedule(p / 25, p, k), gradtx.linear_schedule(p, p / 25e4, n - 1 - k)], [k]
    )
    optimizer = TO.SGD(tensors(), 0.1)
    scheduler = LR.OneCycleLR(optimizer, p, n, anneal_strategy="linear", cycle_momentum=False)
    for t in range(n):
        np.testing.assert_allclose(schedule(t), optimizer.param_groups[0]["lr"], rtol=1e-4)
        optimizer.step()
        scheduler.step() if t < n - 1 else None
