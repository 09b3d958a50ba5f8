"""Every row of docs/coming_from.md: its code runs, and does what the left side says."""

import functools
import json
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.names.namespace import homes
from tests.quick import quick

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "coming_from.md").read_text(encoding="utf-8")
PARAMS = {"bias": jnp.array([1.0, -2.0]), "kernel": jnp.arange(6.0).reshape(3, 2) - 1.5}
GRADS = {"bias": jnp.array([0.5, 3.0]), "kernel": jnp.ones((3, 2))}


def loss(params):
    return sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))


def rows():
    """The left side and the code of each row, in the order of the page."""
    for line in PAGE.splitlines():
        cells = re.match(r"\| (.*?) \| (`.*`) \|$", line)
        if cells:
            yield cells[1], re.findall(r"`([^`]+)`", cells[2])


ROWS = list(rows())
NAMES = [f"{i}: {left}" for i, (left, _) in enumerate(ROWS)]


class FakeKeras:
    """What from_keras looks at in an optimizer, so that the page is tested without Keras too."""

    built = True

    def __init__(self):
        w = gradtx.interop.get_weights(gradtx.adam(0.1).init(PARAMS))
        bias_mu, kernel_mu, bias_nu, kernel_nu = w[1:]
        arrays = [np.int32(3), np.float32(0.25), kernel_mu, kernel_nu, bias_mu, bias_nu]
        self.variables = [type("Variable", (), {"value": a}) for a in arrays]

    def get_config(self):
        return namespace()["config"]


FakeKeras.__name__ = "Adam"


class FakeTorch:
    """Likewise an optimizer of PyTorch."""

    def __init__(self):
        (group,) = namespace()["saved"]["param_groups"]
        self.param_groups = [{**group, "params": [PARAMS["kernel"], PARAMS["bias"]]}]

    def state_dict(self):
        return namespace()["saved"]


FakeTorch.__name__ = "SGD"


class ExponentialLR:
    """And one of its schedulers."""

    base_lrs, gamma, last_epoch = (1.0,), 0.5, 1


def parts():
    """Where the halves of each parameter lie."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"bias": jax.P("data"), "kernel": jax.P(None, "data")}
    return {k: jax.sharding.NamedSharding(mesh, spec) for k, spec in specs.items()}


def namespace():
    names = {name: getattr(gradtx, name) for name in homes("gradtx")}
    tx = gradtx.adam(0.1)
    alone = gradtx.skip_if_none(gradtx.adam(jnp.array(0.1)))
    groups = gradtx.partition({"0": alone, "1": alone}, [("kernel", "0"), ("bias", "1")])
    group = {"params": [0, 1], "lr": 0.5, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0}
    buffers = [np.full((3, 2), 2.0, np.float32), np.full(2, 3.0, np.float32)]
    return names | {
        "jax": jax,
        "jnp": jnp,
        "optax": optax,
        "params": jax.tree.map(jnp.copy, PARAMS),  # a step gives its arguments up
        "tx_of_groups": groups,
        "state_of_groups": groups.init(PARAMS),
        "step_of_groups": gradtx.make_step(loss, groups),
        "wider": {**PARAMS, "head": jnp.ones(2)},
        "grads": GRADS,
        "loss": loss,
        "tx": tx,
        "state": tx.init(PARAMS),
        "optax_state": optax.adam(0.1).init(PARAMS),
        "config": {
            "learning_rate": 0.25,
            "beta_1": 0.9,
            "beta_2": 0.999,
            "epsilon": 1e-7,
            "amsgrad": False,
        },
        "old_config": {"learning_rate": 0.5, "decay": 0.0, "momentum": 0.9, "nesterov": False},
        "old_weights": [np.int64(3), *buffers],
        "saved": {
            "state": {i: {"momentum_buffer": b} for i, b in enumerate(buffers)},
            "param_groups": [{**group, "nesterov": False, "maximize": False}],
        },
        "indices": jnp.array([2]),
        "values": jnp.ones((1, 2)),
        "device": jax.devices()[1],
        "parts": parts(),
        "now": lambda: 0.25,
        "before": lambda updates, params: gradtx.tree.scale(2.0, updates),
        "after": lambda updates, params: gradtx.tree.scale(2.0, updates),
    }


def run(code):
    """The results of the pieces of code, and the names after them."""
    names = namespace()
    if "keras_optimizer" in code[0]:
        names["keras_optimizer"] = FakeKeras()
    if "torch_optimizer" in code[0]:
        names["torch_optimizer"] = FakeTorch()
        names["scheduler"] = ExponentialLR()
    results = []
    for piece in code:
        assigned = re.match(r"([\w, ]+?) = (?!=)", piece)
        if assigned:
            exec(piece, names)  # the page's own code
            results.append(names[assigned[1].split(",")[0]])
        else:
            results.append(eval(piece, names))
    return results, names


def moves(tx, params=PARAMS, grads=GRADS, steps=1, **extra):
    """The parameters after steps of `tx` on the same gradients."""
    state = tx.init(params)
    for _ in range(steps):
        params, state = gradtx.apply_gradients(tx, grads, params, state, value=1.0, **extra)
    return params


def same(tree, other, rtol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-7), tree, other)


def trains(results, names):
    """Transformations that take a finite step which is not zero, and that are data."""
    for tx in results:
        new = moves(tx)
        assert all(bool(jnp.all(jnp.isfinite(p))) for p in jax.tree.leaves(new))
        assert any(bool(jnp.any(new[k] != PARAMS[k])) for k in PARAMS)
        assert "(" in repr(tx)


def steps_like(*formulas):
    """One step of each is what a NumPy formula ``(parameter, gradient) -> parameter`` says."""

    def check(results, names):
        for tx, want in zip(results, formulas, strict=True):
            got = moves(tx)
            for k, p in PARAMS.items():
                wanted = want(np.asarray(p), np.asarray(GRADS[k]))
                np.testing.assert_allclose(got[k], wanted, rtol=1e-5, atol=1e-6)

    return check


def minimized(results, names):
    assert float(loss(names["params"])) < float(names["value"])


def scheduled(want, counts=60):
    """Schedules with the values of a formula."""

    def check(results, names):
        (schedule,) = results
        got = [float(schedule(t)) for t in range(counts)]
        np.testing.assert_allclose(got, [want(t) for t in range(counts)], rtol=1e-5, atol=1e-8)
        assert gradtx.multiply_schedules(1.0, schedule)(3) == pytest.approx(got[3])

    return check


def piecewise(*pieces):
    return lambda t: next(value for before, value in pieces if before is None or t < before)


def cosine(start, end, part):
    return end + (start - end) * (1 + math.cos(math.pi * part)) / 2


def one_cycle(t, peak=0.1, total=100):
    up, end = 0.3 * total - 1, total - 1
    if t <= up:
        return cosine(peak / 25, peak, t / up)
    return cosine(peak, peak / 25 / 1e4, (t - up) / (end - up))


def cyclic(t):
    cycle, since = divmod(t, 30)
    height = since / 20 if since < 20 else 1 - (since - 20) / 10
    return 0.01 + 0.09 * height * 0.5**cycle


def restarts(start, first, mul, m_mul, alpha):
    def value(t):
        length, scale = first, 1.0
        while t >= length:
            t, length, scale = t - length, length * mul, scale * m_mul
        return start * ((1 - alpha) * scale * cosine(1, 0, t / length) + alpha)

    return value


def polynomial_cycle(t):
    steps = 100 * max(1, math.ceil(t / 100))
    return (0.1 - 0.01) * (1 - t / steps) + 0.01


def keras_state(results, names):
    assert int(gradtx.tree.get(names["state"], "count")) == 3
    assert names["tx"] == gradtx.adam(0.25, eps=1e-7, epsilon_hat=True)


def torch_state(results, names):
    assert names["tx"] == gradtx.sgd(0.5, momentum=0.9)
    want = {"bias": jnp.full(2, 3.0), "kernel": jnp.full((3, 2), 2.0)}
    same(gradtx.get_slot(names["state"], "trace"), want)


def old_keras_state(results, names):
    want = {"bias": jnp.full(2, 3.0), "kernel": jnp.full((3, 2), 2.0)}
    same(gradtx.get_slot(names["state"], "trace"), want)


def torch_schedule(results, names):
    state = names["state"]
    same(gradtx.get_slot(state, "trace", "bias"), 3.0)
    rates = []
    for _ in range(3):
        rates.append(float(gradtx.hyperparams(names["tx"], state)["learning_rate"]))
        state = gradtx.apply_gradients(names["tx"], GRADS, PARAMS, state)[1]
    np.testing.assert_allclose(rates, [0.5, 0.25, 0.125], rtol=1e-6)


def aggregates(factor):
    """Two replicas, of which one has three times the gradient, take one step with their sum."""

    def check(results, names):
        (tx,) = results
        first = tx.declaration.arguments["args"][0]
        replicas = jax.tree.map(lambda g: jnp.stack([g, 3 * g]), GRADS)

        def step(tx):
            return jax.vmap(lambda g: tx.update(g, tx.init(PARAMS), PARAMS)[0], axis_name="data")

        for replica in range(2):
            got = jax.tree.map(lambda u, i=replica: u[i], step(first)(replicas))
            same(got, gradtx.tree.scale(factor, GRADS))
        whole = jax.tree.leaves(step(tx)(replicas))
        assert any(bool(jnp.any(leaf != 0)) for leaf in whole)
        for leaf in whole:
            np.testing.assert_array_equal(leaf[0], leaf[1])

    return check


def clips(results, names):
    norms = [float(gradtx.global_norm(tx.update(GRADS, tx.init(PARAMS))[0])) for tx in results]
    np.testing.assert_allclose(norms[0], math.sqrt(2.0), rtol=1e-6)  # each leaf by its norm
    np.testing.assert_allclose(norms[1], math.sqrt(0.25 + 1 + 6), rtol=1e-6)
    np.testing.assert_allclose(norms[2], 1.0, rtol=1e-6)


def clips_in_order(results, names):
    want = gradtx.tree.map_updates(lambda g: np.minimum(g, 0.5), GRADS)
    want = {k: g / max(1.0, np.linalg.norm(g)) for k, g in want.items()}
    norm = math.sqrt(sum(np.sum(g**2) for g in want.values()))
    assert norm > 1
    same(moves(results[0]), {k: PARAMS[k] - 0.1 * g / norm for k, g in want.items()})


def overwritten_rate(results, names):
    """It takes the old state, and nothing is compiled again."""
    step = jax.jit(lambda tx, state: gradtx.apply_gradients(tx, GRADS, PARAMS, state))
    _, state = step(gradtx.adam(jnp.array(0.1)), names["state"])
    new, state = step(results[0], state)
    assert step._cache_size() == 1
    assert int(gradtx.tree.get(state, "count")) == 2
    size = gradtx.global_norm(gradtx.tree.sub(new, PARAMS)) / math.sqrt(8)
    np.testing.assert_allclose(size, 0.01, rtol=1e-4)


def counts_micro_batches(results, names):
    """The schedule falls by 0.0025 a micro-batch, and a step has the rate of its window's last."""
    accumulates(4, average=True)(results, names)
    tx, params = results[0], PARAMS
    state = tx.init(params)
    for count in range(8):
        new, state = gradtx.apply_gradients(tx, GRADS, params, state)
        if count % 4 == 3:
            size = gradtx.global_norm(gradtx.tree.sub(new, params)) / math.sqrt(8)
            np.testing.assert_allclose(size, 0.1 - 0.0025 * count, rtol=1e-4)
        params = new


def first_is_doubled(results, names):
    seen = {}

    def note(updates, params):
        seen["grad"] = updates
        return updates

    links = results[0].declaration.arguments["args"]
    tx = gradtx.chain(links[0], gradtx.stateless(note), *links[1:])
    moves(tx)
    same(seen["grad"], gradtx.tree.scale(2.0, GRADS))


def step_is_doubled(results, names):
    plain = gradtx.tree.sub(moves(gradtx.adam(0.1)), PARAMS)
    same(gradtx.tree.sub(moves(results[0]), PARAMS), gradtx.tree.scale(2.0, plain), rtol=1e-5)


def accumulates(window, average):
    def check(results, names):
        (tx,) = results
        early = moves(tx, steps=window - 1)
        same(early, PARAMS)
        assert any(bool(jnp.any(moves(tx, steps=window)[k] != PARAMS[k])) for k in PARAMS)
        if not average:
            same(moves(tx, steps=window), gradtx.tree.add_scale(PARAMS, -0.1 * window, GRADS))

    return check


def grouped(first, second, where):
    """The leaf `where` moves by the one transformation, the rest by the other."""

    def check(results, names):
        got = moves(results[-1])
        for key in PARAMS:
            tx = first if key == where else second
            np.testing.assert_allclose(got[key], moves(tx)[key], rtol=1e-6)

    return check


def group_added(results, names):
    state, wider = names["state"], names["wider"]
    assert set(state.inner_states) == {"0", "1"}
    assert gradtx.get_slot(state, "mu")["kernel"].shape == (3, 2)
    grads = {**GRADS, "head": jnp.ones(2)}
    new, _ = gradtx.apply_gradients(names["tx"], grads, wider, state)
    np.testing.assert_allclose(new["head"], 0.9)


def rate_set(*rates):
    """The step has these rates, and takes the state of before."""

    def check(results, names):
        step = results[-1]
        found = gradtx.hyperparams(step.tx).items()
        got = [value for name, value in found if name.endswith("learning_rate")]
        np.testing.assert_allclose(got, rates)
        before = names["step_of_groups"] if len(rates) > 1 else results[0]
        params, state, _ = before(names["params"], before.init(names["params"]))
        step(params, state)
        assert step._compiled is before._compiled
        assert step._compiled._cache_size() == 1

    return check


def frozen(*leaves):
    """All leaves but these move, by one step of Adam; theirs keep their slots and counts."""

    def check(results, names):
        for i, key in enumerate(("kernel", "bias")):
            moved = bool(jnp.any(names["params"][key] != PARAMS[key]))
            count = names["state"].inner_states[str(i)].inner_state[0].count
            assert (moved, int(count)) == (key not in leaves, int(key not in leaves))

    return check


def averaged(results, names):
    tx = names["tx"]
    same(results[-1], PARAMS)
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    params, state = gradtx.apply_gradients(tx, grads, PARAMS, tx.init(PARAMS))
    held = gradtx.eval_params(tx, state, params)
    assert jax.tree.structure(held) == jax.tree.structure(params)


def overwritten(results, names):
    (tx,) = results
    params, state = PARAMS, tx.init(PARAMS)
    for _ in range(10):
        params, state = gradtx.apply_gradients(tx, GRADS, params, state)
    same(params, gradtx.eval_params(tx, state, params))


def meta_gradient(results, names):
    """The derivative of the loss after a step by the rate: minus a product of gradients."""
    after = gradtx.tree.add_scale(PARAMS, -0.1, GRADS)
    want = -gradtx.tree.vdot(jax.grad(loss)(after), GRADS)
    np.testing.assert_allclose(results[0], want, rtol=1e-5)


def rate_by_call(results, names):
    step, (new, _) = results
    same(new, moves(gradtx.adam(0.25)), rtol=1e-5)
    step = gradtx.make_step(loss, gradtx.sgd(step.tx.declaration.arguments["learning_rate"]))
    params = jax.tree.map(jnp.copy, PARAMS)  # the step gives its arguments up
    params, _, _ = step(params, step.init(params))
    same(params, gradtx.tree.scale(1 - 2 * 0.25, PARAMS))


def no_decay_of_bias(results, names):
    zero = jax.tree.map(jnp.zeros_like, GRADS)
    got = moves(results[0], grads=zero)
    np.testing.assert_array_equal(got["bias"], PARAMS["bias"])
    assert bool(jnp.all(jnp.abs(got["kernel"]) < jnp.abs(PARAMS["kernel"])))


def ascends(results, names):
    got = moves(results[0])
    assert all(bool(jnp.all(got[k] > PARAMS[k])) for k in PARAMS)


def warm_nadam(results, names):
    trains(results, names)
    assert not np.allclose(moves(results[0])["bias"], moves(gradtx.nadam(1e-3))["bias"], rtol=1e-7)


def only_kernel_moves(results, names):
    new = results[-1][0]
    np.testing.assert_array_equal(new["bias"], PARAMS["bias"])
    assert bool(jnp.any(new["kernel"] != PARAMS["kernel"]))


def only_bias_moves(results, names):
    new = results[-1][0]
    np.testing.assert_array_equal(new["kernel"], PARAMS["kernel"])
    assert bool(jnp.all(new["bias"] != PARAMS["bias"]))


def sparse(results, names):
    only_kernel_moves(results, names)
    new = results[-1][0]
    np.testing.assert_array_equal(new["kernel"][:2], PARAMS["kernel"][:2])
    assert bool(jnp.all(new["kernel"][2] < PARAMS["kernel"][2]))


def projected(results, names):
    got = moves(results[0])
    assert float(got["kernel"].min()) == 0.0
    assert float(got["bias"].min()) < 0.0


def equals(want):
    """The last result is this value, or tree of values."""

    def check(results, names):
        if isinstance(want, gradtx.GradientTransformation | list):
            assert results[-1] == want
        else:
            same(results[-1], want)

    return check


def applied(factor=1.0):
    """A step of Adam on the gradients times a factor was taken."""

    def check(results, names):
        params = names["params"] if results[-1] is names["params"] else results[-1][0]
        same(params, moves(gradtx.adam(0.1), grads=gradtx.tree.scale(factor, GRADS)))

    return check


def same_step_as(other):
    """Any of the results steps as another transformation does."""

    def check(results, names):
        for tx in results:
            same(moves(tx, steps=3), moves(other, steps=3), rtol=1e-5)

    return check


def shrunk(results, names):
    zero = jax.tree.map(jnp.zeros_like, GRADS)
    got = moves(results[0], grads=zero)
    assert all(bool(jnp.all(jnp.abs(got[k]) < jnp.abs(PARAMS[k]))) for k in PARAMS)


def plateaus(results, names):
    """The first epoch has the best value; the eleventh after it is one more than the patience."""
    tx = results[0]
    update = jax.jit(tx.update)
    state = tx.init(PARAMS)
    for count in range(1, 12 * 500 + 1):
        _, state = update(GRADS, state, PARAMS, value=1.0)
        if count in (12 * 500 - 1, 12 * 500):
            rate = gradtx.hyperparams(tx, state)["learning_rate"]
            np.testing.assert_allclose(rate, 0.01 if count == 12 * 500 else 0.1, rtol=1e-6)


def loss_scales(results, names):
    assert float(results[-1]) == 2.0**15


def skips_infinite(results, names):
    tx = results[0]
    state = tx.init(PARAMS)
    bad = {**GRADS, "bias": jnp.array([jnp.inf, 1.0])}
    new, after = gradtx.apply_gradients(tx, bad, PARAMS, state)
    same(new, PARAMS)
    assert float(gradtx.loss_scale(after)) == float(gradtx.loss_scale(state)) / 2


def config_data(results, names):
    config = json.loads(json.dumps(results[-1]))
    assert gradtx.from_config(config) == names["tx"]


def rows_of_a_table(results, names):
    (rows,) = results
    np.testing.assert_array_equal(rows.to_dense(), [[0, 0], [0, 0], [1, 1]])


def restored(results, names):
    same(names["state"], names["tx"].init(PARAMS))


def gradients(results, names):
    value, grads = results[-1] if isinstance(results[-1], tuple) else (results[-1], names["grads"])
    np.testing.assert_allclose(value, loss(PARAMS))
    same(grads, gradtx.tree.scale(2.0, PARAMS))


def numbers(*values):
    """The learning rates at steps 0 and 50."""

    def check(results, names):
        for tx, (first, later) in zip(results, values, strict=True):
            assert float(gradtx.hyperparams(tx)["learning_rate"]) == pytest.approx(first)
            state = tx.init(PARAMS)
            state = gradtx.tree.set(state, count=jnp.int32(50))
            assert float(gradtx.hyperparams(tx, state)["learning_rate"]) == pytest.approx(later)

    return check


def places(results, names):
    """Each slot lies where its parameter does."""
    held = gradtx.get_slot(names["state"], "mu", "kernel")
    assert held.devices() == {names["device"]}


def partitioned(results, names):
    kernel = gradtx.get_slot(names["state"], "mu", "kernel")
    assert kernel.sharding == names["parts"]["kernel"]
    assert {x.data.shape for x in kernel.addressable_shards} == {(3, 1)}


def hat(p, g, rate=1e-3, eps=1e-7):
    m, v = 0.1 * g, 0.001 * g**2
    return p - rate * math.sqrt(0.001) / 0.1 * m / (np.sqrt(v) + eps)


def shrink(x, rate, l1, l2):
    return np.sign(x) * np.maximum(abs(x) - rate * l1, 0) / (1 + rate * l2)


def follow_the_leader(p, g, rate=0.1, l1=0.01):
    root = np.sqrt(0.1 + g**2)
    linear = g - (root - math.sqrt(0.1)) / rate * p
    return (np.clip(linear, -l1, l1) - linear) * rate / root


def rms_outside(p, g):
    return p - 0.01 * g / (np.sqrt(0.01 * g**2) + 1e-8)


def factors_step(*expected):
    """The first steps of diagonal factors of LoRA, whose gradients are their values."""

    def check(results, names):
        p = {"lora_a": jnp.diag(jnp.array([1.0, 2.0])), "lora_b": jnp.diag(jnp.array([3.0, 4.0]))}
        for tx, want in zip(results, expected, strict=True):
            u = tx.update(p, tx.init(p), p)[0]
            same([jnp.diagonal(u[name]) for name in p], [np.broadcast_to(x, 2) for x in want])

    return check


CHECKS = {
    # a run in progress
    "a Keras optimizer": keras_state,
    "its `serialize` dict": equals(gradtx.adam(0.25, eps=1e-7, epsilon_hat=True)),
    "its `get_config` dict": equals(gradtx.adam(0.25, eps=1e-7, epsilon_hat=True)),
    "OptimizerV2's `get_config` and `get_weights`": old_keras_state,
    "a PyTorch optimizer": torch_state,
    "its `state_dict`": torch_state,
    "with its scheduler": torch_schedule,
    "an Optax state": lambda r, n: same(n["state"], gradtx.adam(0.1).init(PARAMS)),
    "back to Optax": lambda r, n: same(n["optax_state"], optax.adam(0.1).init(PARAMS)),
    "Adam adds epsilon before the bias correction (Keras)": steps_like(hat),
    "AMSGrad takes the maximum before it (both)": steps_like(lambda p, g: p - 1e-3 * np.sign(g)),
    "momentum with the learning rate inside (Keras)": steps_like(lambda p, g: p - 0.1 * g),
    "RMSprop adds epsilon outside of the root (PyTorch)": steps_like(rms_outside),
    "Adagrad does (PyTorch)": steps_like(lambda p, g: p - 0.01 * np.sign(g)),
    "Adamax adds epsilon to the denominator (Keras)": steps_like(
        lambda p, g: p - 1e-3 * g / (abs(g) + 1e-7)
    ),
    "Nadam's momentum warms up (Keras, PyTorch)": warm_nadam,
    "Adafactor factors the last two dimensions (both)": trains,
    "and bounds means from below (PyTorch)": trains,
    "weights decay before the step is computed (Keras)": lambda r, n: same(
        moves(r[0]), moves(gradtx.lamb(1e-3), gradtx.tree.scale(1 - 1e-3 * 0.004, PARAMS))
    ),
    # tf.keras
    "`minimize(loss, var_list)`": minimized,
    "`minimize(..., grad_loss)`": minimized,
    "`minimize` with some variables": only_bias_moves,
    "`tape.gradient`, `minimize(..., tape)`": gradients,
    "`apply_gradients(grads_and_vars)`": applied(),
    "gradients processed in between": applied(0.5),
    "a variable without a gradient": only_kernel_moves,
    "`gradient_aggregator` (sum over replicas)": aggregates(4.0),
    "its own function, or none": same_step_as(gradtx.adam(0.1)),
    "`gradient_transformers`, after the aggregator": aggregates(2.0),
    "`clipnorm`, `clipvalue`, `global_clipnorm`": clips,
    "several of them, in OptimizerV2's order (here that of the chain)": clips_in_order,
    "variable constraints": projected,
    "learning rate as number, array, schedule": numbers((0.1, 0.1), (0.1, 0.1), (0.1, 0.05)),
    "as a function without arguments, called at each step": rate_by_call,
    "`optimizer.learning_rate = 0.01`": overwritten_rate,
    "`optimizer.learning_rate`": equals(0.1),
    "`iterations`": equals(0),
    "the same for what counts nothing, such as `sgd(0.1)`": equals(0),
    "`get_slot_names()`": equals(["mu", "nu"]),
    "`get_slot(var, name)`": equals(jnp.zeros((3, 2))),
    "setting a slot": lambda r, n: same(gradtx.get_slot(n["state"], "mu", "kernel"), 1.0),
    "`get_weights()`, iteration first": lambda r, n: same(
        n["weights"], [0, *([np.zeros(2), np.zeros((3, 2))] * 2)]
    ),
    "`set_weights(weights)`": restored,
    "`set_weights` of what TensorFlow's `get_weights` gave": old_keras_state,
    "`get_config()`": config_data,
    "`from_config(config, custom_objects)`": equals(gradtx.adam(0.1)),
    "slots on the device of their variable": places,
    # TensorFlow 1
    "`compute_gradients`, `apply_gradients(global_step)`": lambda r, n: same(
        r[0][0], moves(gradtx.adam(0.1), grads=gradtx.tree.scale(2.0, PARAMS))
    ),
    "several optimizers over collections of variables": grouped(
        gradtx.adam(0.1), gradtx.ftrl(0.1), "bias"
    ),
    "a partitioned variable has partitioned slots": partitioned,
    "Adagrad with its initial accumulator": steps_like(
        lambda p, g: p - 0.1 * g / np.sqrt(0.1 + g**2)
    ),
    "Momentum, Nesterov": steps_like(lambda p, g: p - 0.1 * g, lambda p, g: p - 0.1 * 1.9 * g),
    "Adam": steps_like(functools.partial(hat, rate=0.1, eps=1e-8)),
    "RMSProp, centered": steps_like(
        lambda p, g: p - 0.1 * g / np.sqrt(0.9 + 0.1 * g**2 + 1e-10),
        lambda p, g: p - 0.1 * g / np.sqrt(0.9 + 0.1 * g**2 - (0.1 * g) ** 2 + 1e-8),
    ),
    "Adadelta": steps_like(lambda p, g: p - np.sqrt(1e-8 / (0.05 * g**2 + 1e-8)) * g),
    "Ftrl": steps_like(follow_the_leader),
    "ProximalGradientDescent": steps_like(lambda p, g: shrink(p - 0.1 * g, 0.1, 0.01, 0.01)),
    "ProximalAdagrad": steps_like(
        lambda p, g: shrink(
            p - 0.1 * g / np.sqrt(0.1 + g**2), 0.1 / np.sqrt(0.1 + g**2), 0.01, 0.01
        )
    ),
    "AdagradDA": steps_like(
        lambda p, g: -np.sign(g) * np.maximum(abs(g) - 0.01, 0) * 0.1 / np.sqrt(0.1 + g**2)
    ),
    "L1 and L2 shrinkage after another rule": shrunk,
    "AdagradDecay (DeepRec)": steps_like(lambda p, g: p - 0.1 * g / np.sqrt(0.1 + g**2)),
    "gradients of N steps gathered, applied once": accumulates(4, average=False),
    "diffGrad": steps_like(lambda p, g: p - 1e-3 * np.sign(g) / (1 + np.exp(-abs(g)))),
    "`IndexedSlices`": rows_of_a_table,
    # Keras 3
    "`use_ema`, `ema_momentum`; Keras's `fit` ends with the average as weights, here you take it": (
        averaged
    ),
    "`ema_overwrite_frequency`": overwritten,
    "`loss_scale_factor`": lambda r, n: same(
        r[-1][0], moves(gradtx.adam(0.1), grads=gradtx.tree.scale(2.0, PARAMS))
    ),
    "`LossScaleOptimizer`": loss_scales,
    "`gradient_accumulation_steps` (schedules count windows here, micro-batches there)": (
        counts_micro_batches
    ),
    "`exclude_from_weight_decay(var_names)`: say which decay, by pattern, or by a function with a "
    "name": no_decay_of_bias,
    "`MultiOptimizer`": grouped(gradtx.adam(0.1), gradtx.sgd(0.1), "kernel"),
    "`CosineDecayRestarts`": scheduled(restarts(0.1, 100, 2.0, 0.9, 0.0), 350),
    "`InverseTimeDecay`": scheduled(lambda t: 0.1 / (1 + 0.5 * t / 100)),
    "`PiecewiseConstantDecay` (a boundary ends its piece)": scheduled(
        piecewise((101, 0.1), (None, 0.01)), 120
    ),
    "`PolynomialDecay(cycle=True)`": scheduled(polynomial_cycle, 250),
    # torch.optim
    "parameter groups": grouped(gradtx.adam(0.1), gradtx.adam(0.01), "kernel"),
    "`add_param_group`": group_added,
    '`param_groups[0]["lr"] = 0.01`; save `step.tx`, which has the new rate': rate_set(0.01),
    '`param_groups[1]["lr"] = 0.01`, one group of several': rate_set(0.1, 0.01),
    "`lr` of all groups": rate_set(0.01, 0.01),
    "`requires_grad_(False)` for the kernel, in the middle of a run": frozen("kernel"),
    "`requires_grad_(True)` again": frozen(),
    "`state_dict()`": lambda r, n: same(n["saved"]["0/mu/kernel"], jnp.zeros((3, 2))),
    "`load_state_dict(saved)`": restored,
    "`maximize=True`": ascends,
    "`weight_decay` of SGD, Adam (L2)": steps_like(lambda p, g: p - 0.1 * (g + 0.01 * p)),
    "`weight_decay` of AdamW, by default 0.01 (here 1e-4)": steps_like(
        lambda p, g: p - 0.1 * (np.sign(g) + 0.01 * p)
    ),
    "`register_step_pre_hook`": first_is_doubled,
    "`register_step_post_hook`": step_is_doubled,
    "`differentiable=True` (meta-gradients)": meta_gradient,
    "`zero_grad()`": gradients,
    "`step(closure)` of LBFGS": minimized,
    "`SparseAdam`": sparse,
    "`clip_grad_norm_`, `clip_grad_value_`": lambda r, n: same(
        [gradtx.global_norm(tx.update(GRADS, tx.init(PARAMS))[0]) for tx in r],
        [1.0, math.sqrt(0.25 + 1 + 6)],
    ),
    "`GradScaler`, which starts at 2**16 (here 2**15)": skips_infinite,
    "`AveragedModel`, SWA, of steps 110, 120, ...": averaged,
    "PEFT's `create_loraplus_optimizer`": factors_step((-1e-4, -16e-4)),
    "PEFT's `create_lorafa_optimizer`": factors_step((0.0, -1e-4)),
    "PEFT's `create_riemannian_optimizer`": factors_step(
        (-1e-4, -1e-4), ([-0.1 / 9.01, -0.2 / 16.01], [-0.3 / 1.01, -0.4 / 4.01])
    ),
    # schedulers
    "`LambdaLR`": scheduled(lambda t: 0.1 * 0.95**t),
    "`MultiplicativeLR`": scheduled(lambda t: 0.1 * 0.95**t, 20),
    "`StepLR`": scheduled(lambda t: 0.1 * 0.1 ** (t // 30), 100),
    "`MultiStepLR`": scheduled(piecewise((30, 0.1), (80, 0.01), (None, 0.001)), 100),
    "`ConstantLR`": scheduled(piecewise((5, 0.1 / 3), (None, 0.1))),
    "`LinearLR`": scheduled(lambda t: 0.1 * (1 / 3 + (1 - 1 / 3) * min(t, 5) / 5)),
    "`ExponentialLR`": scheduled(lambda t: 0.1 * 0.9**t),
    "`PolynomialLR`": scheduled(lambda t: 0.1 * (1 - min(t, 5) / 5) ** 2),
    "`CosineAnnealingLR`": scheduled(lambda t: cosine(0.1, 0.01, t / 10)),
    "`CosineAnnealingWarmRestarts`": scheduled(lambda t: restarts(0.1, 10, 2, 1.0, 0.1)(t), 80),
    "`CyclicLR`": scheduled(cyclic, 70),
    "`OneCycleLR`": scheduled(one_cycle, 100),
    "`OneCycleLR` with AdamW or Adam, whose `b1` it cycles too unless `cycle_momentum=False`": (
        trains
    ),
    "`SequentialLR`": scheduled(lambda t: 0.01 + 0.018 * t if t < 5 else 0.1 * 0.9 ** (t - 5)),
    "`ChainedScheduler`": scheduled(lambda t: 0.1 * (1 / 3 + (1 - 1 / 3) * min(t, 5) / 5) * 0.9**t),
    "`ReduceLROnPlateau(patience=10)`, stepped once an epoch of 500 steps": plateaus,
    "a scheduler stepped once an epoch": scheduled(lambda t: 0.1 if t < 15_000 else 0.01, 60),
}


def test_every_row_has_one_check():
    assert [left for left, _ in ROWS] == list(CHECKS)


@pytest.mark.quick(3)
@pytest.mark.parametrize("left", quick(CHECKS, *[*CHECKS][::6]))
def test_row(left):
    CHECKS[left](*run(dict(ROWS)[left]))


TORCH = {
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda t: 0.95**t),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda t: 0.95),
    "StepLR": lambda s, o: s.StepLR(o, 30, 0.1),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [30, 80], 0.1),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 1 / 3, 5),
    "LinearLR": lambda s, o: s.LinearLR(o, 1 / 3, 1.0, 5),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 5, 2.0),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 10, 0.01),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 10, 2, 0.01),
    "CyclicLR": lambda s, o: s.CyclicLR(o, 0.01, 0.1, 20, 10, "triangular2", cycle_momentum=False),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, 0.1, 100, cycle_momentum=False),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, 1.0, 5), s.ExponentialLR(o, 0.9)], [5]
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.LinearLR(o, 1 / 3, 1.0, 5), s.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", TORCH)
def test_schedulers_beside_pytorch(name):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    scheduler = TORCH[name](torch.optim.lr_scheduler, optimizer)
    want = []
    for _ in range(60):
        want.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    ((schedule,), _) = run(dict(ROWS)[f"`{name}`"])
    got = [float(schedule(t)) for t in range(60)]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_one_cycle_of_adamw_beside_pytorch():
    torch = pytest.importorskip("torch")
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.AdamW([p], 0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 100)
    (row,) = (code for left, code in ROWS if left.startswith("`OneCycleLR` with AdamW"))
    ((tx,), _) = run(row)
    params = jnp.array([1.0, -2.0])
    state, step = tx.init(params), jax.jit(functools.partial(gradtx.apply_gradients, tx))
    for grads in np.random.default_rng(0).normal(size=(99, 2)).astype(np.float32):
        p.grad = torch.tensor(grads)
        optimizer.step()
        scheduler.step()
        params, state = step(jnp.asarray(grads), params, state)
    np.testing.assert_allclose(params, p.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("total", "pct_start", "div_factor", "final_div_factor"),
    [(100, 0.3, 25.0, 1e4), (37, 0.25, 10.0, 100.0), (8, 0.13, 3.0, 7.0), (50, 0.0, 25.0, 1e4)],
)
def test_one_cycle_is_that_of_pytorch_to_the_last_digits(
    total, pct_start, div_factor, final_div_factor
):
    torch = pytest.importorskip("torch")
    numbers = pct_start, div_factor, final_div_factor
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    keywords = dict(zip(("pct_start", "div_factor", "final_div_factor"), numbers, strict=True))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total, cycle_momentum=False, **keywords
    )
    want = []
    for count in range(total):
        want.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if count + 1 < total:
            scheduler.step()
    with jax.enable_x64(True):
        schedule = gradtx.cosine_onecycle_schedule(total, 0.1, *numbers, convention="torch")
        got = [float(schedule(count)) for count in range(total)]
    np.testing.assert_allclose(got, want, rtol=1e-14)


@pytest.mark.slow
def test_a_plateau_counts_epochs_as_pytorch_does():
    """Its patience is one less; an epoch is judged by the mean of its values."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    tx = gradtx.chain(
        gradtx.sgd(0.1), gradtx.reduce_on_plateau(factor=0.5, patience=3, accumulation_size=4)
    )
    state, update = tx.init(PARAMS), jax.jit(tx.update)
    means = [3.0, 2.0, 2.0, 2.5, 2.0, 1.0, 1.5, 1.2, 1.1, 1.05, 0.5, 0.6]
    for mean in means:
        for offset in (-0.3, 0.1, 0.4, -0.2):
            _, state = update(GRADS, state, PARAMS, value=jnp.float32(mean + offset))
        scheduler.step(mean)
        got = gradtx.hyperparams(tx, state)["learning_rate"]
        np.testing.assert_allclose(got, optimizer.param_groups[0]["lr"], rtol=1e-6)
    assert optimizer.param_groups[0]["lr"] == 0.1 / 4


class Torch:
    """PyTorch's side of a row: an optimizer of parameters with the same values."""

    def __init__(self, torch):
        self.torch = torch
        self.tensors = {
            name: torch.nn.Parameter(torch.tensor(np.array(p))) for name, p in PARAMS.items()
        }
        self.kernel, self.bias = self.tensors["kernel"], self.tensors["bias"]

    def step(self, optimizer):
        """A step on the gradients of `loss`, of those tensors that require one."""
        optimizer.zero_grad()
        sum((p**2).sum() for p in self.tensors.values()).backward()
        optimizer.step()

    def __iter__(self):
        return iter((self.kernel, self.bias))


def hooked(optimizer):
    def double(*_):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad *= 2

    optimizer.register_step_pre_hook(double)
    return optimizer


OPTIMIZERS = {
    "parameter groups": (
        lambda o, t: o.Adam([{"params": [t.kernel]}, {"params": [t.bias], "lr": 0.01}], 0.1)
    ),
    "`maximize=True`": lambda o, t: o.Adam(t, 0.1, maximize=True),
    "`weight_decay` of SGD, Adam (L2)": (
        lambda o, t: o.SGD(t, 0.1, momentum=0.9, weight_decay=0.01)
    ),
    "`weight_decay` of AdamW, by default 0.01 (here 1e-4)": lambda o, t: o.AdamW(
        t, 0.1, weight_decay=0.01
    ),
    "`register_step_pre_hook`": lambda o, t: hooked(o.Adam(t, 0.1)),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("left", OPTIMIZERS)
def test_optimizers_beside_pytorch(left):
    t = Torch(pytest.importorskip("torch"))
    optimizer = OPTIMIZERS[left](t.torch.optim, t)
    results, _ = run(dict(ROWS)[left])
    step = gradtx.make_step(loss, results[0], donate=False)
    params, state = PARAMS, step.init(PARAMS)
    for _ in range(4):
        t.step(optimizer)
        params, state, _ = step(params, state)
    same(params, {name: p.detach().numpy() for name, p in t.tensors.items()}, rtol=1e-5)


@pytest.mark.slow
def test_rates_groups_and_freezing_in_the_middle_of_a_run_beside_pytorch():
    t = Torch(pytest.importorskip("torch"))
    optimizer = t.torch.optim.Adam([{"params": [t.kernel]}, {"params": [t.bias]}], 0.1)
    names = namespace()
    tx, params, state = names["tx_of_groups"], PARAMS, names["state_of_groups"]
    step = gradtx.make_step(loss, tx, donate=False)

    def both(params, state, step, times):
        for _ in range(times):
            t.step(optimizer)
            params, state, _ = step(params, state)
            got = {name: p.detach().numpy() for name, p in t.tensors.items()}
            same(params, got, rtol=1e-5)
        return params, state

    params, state = both(params, state, step, 2)
    optimizer.param_groups[1]["lr"] = 0.01
    step = step.replace({"transforms.1.learning_rate": jnp.array(0.01)})
    params, state = both(params, state, step, 2)
    t.kernel.requires_grad_(False)
    part = gradtx.make_step(loss, step.tx, trainable="bias", donate=False)
    params, state = both(params, state, part, 3)
    t.kernel.requires_grad_(True)
    params, state = both(params, state, step, 3)
    t.tensors["head"] = t.torch.nn.Parameter(t.torch.ones(2))
    optimizer.add_param_group({"params": [t.tensors["head"]], "lr": 0.3})
    params = {**params, "head": jnp.ones(2)}
    transforms = {**step.tx.declaration.arguments["transforms"], "2": gradtx.adam(0.3)}
    labels = [*step.tx.declaration.arguments["param_labels"], ("head", "2")]
    tx = gradtx.partition(transforms, labels)
    before, state = state, gradtx.regroup(tx, params, state)
    same(*(gradtx.get_slot(s, "0.0.nu")["kernel"] for s in (before, state)))
    both(params, state, gradtx.make_step(loss, tx, donate=False), 3)


def test_a_group_is_added_to_a_run_that_began_without_groups():
    """As the page says below the table."""
    tx, names = gradtx.adam(0.1), namespace()
    params, state = gradtx.apply_gradients(tx, GRADS, PARAMS, tx.init(PARAMS))
    wider = {**params, "head": jnp.ones(2)}
    tx = gradtx.partition({"0": tx, "1": gradtx.sgd(0.1)}, [("head", "1"), ("*", "0")])
    line = 'regroup(tx, wider, PartitionState({"0": MaskedState(state)}))'
    assert f"`state = {line}`" in PAGE
    new = eval(line, {**names, "tx": tx, "wider": wider, "state": state})  # the page's own code
    same(new.inner_states["0"].inner_state[0].nu["bias"], state[0].nu["bias"])
    assert int(new.inner_states["0"].inner_state[0].count) == 1


def test_what_from_torch_made_is_shown():
    t = Torch(pytest.importorskip("torch"))
    optimizer = t.torch.optim.SGD(
        [{"params": [t.kernel]}, {"params": [t.bias], "lr": 0.01}], 0.1, momentum=0.9
    )
    tx, _ = gradtx.interop.from_torch(optimizer, PARAMS, order=["kernel", "bias"])
    shown = re.search(r"```text\n(partition.*?)```", PAGE, re.DOTALL)[1]
    one_line = "".join(line.strip() + " " * line.endswith(",") for line in shown.splitlines())
    assert repr(tx) == re.sub(r", (?=[)}])", "", one_line)


def from_scratch():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {}
    exec(blocks[-1], names)  # the page's own code
    return blocks[-1], names


@pytest.mark.slow
def test_optimizers_from_scratch():
    code, names = from_scratch()
    defined = re.findall(r"@gradtx.transformation\n(def .*?)(?=\n\n\n|\Z)", code, re.DOTALL)
    assert all(len(body.strip().splitlines()) < 25 for body in defined)
    twins = {
        "gradient_descent": gradtx.sgd(1e-3),
        "momentum": gradtx.chain(gradtx.scale_by_learning_rate(1e-3), gradtx.trace(0.7)),
        "adam_from_scratch": gradtx.adam(1e-3, eps=1e-7),
        "diffgrad_from_scratch": gradtx.diffgrad(1e-3),
    }
    for name, twin in twins.items():
        tx = names[name]()
        same_step_as(twin)([tx], {})
        assert repr(tx).startswith(f"{name}(learning_rate=0.001")
        custom = {name: names[name]}
        text = json.dumps(gradtx.to_config(tx))
        assert gradtx.from_config(json.loads(text), custom_objects=custom) == tx
        rows = gradtx.Rows(jnp.array([2]), jnp.ones((1, 2)), (3, 2))
        grads = {"kernel": rows, "bias": None}
        only_kernel_moves([gradtx.apply_gradients(tx, grads, PARAMS, tx.init(PARAMS))], {})
        state = tx.init(jax.device_put(PARAMS, parts()))
        for slot in gradtx.slot_names(state):
            assert gradtx.get_slot(state, slot, "kernel").sharding == parts()["kernel"]
    assert gradtx.slot_names(names["adam_from_scratch"]().init(PARAMS)) == ["v", "s"]
