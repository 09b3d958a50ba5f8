"""PyTorch optimizers handed over in the middle of a run, against PyTorch itself."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.interop import from_torch
from tests import oracle
from tests.interop.handover import go_on, gradients
from tests.quick import quick

torch = pytest.importorskip("torch")
TO = torch.optim
SHAPES = ((4, 3), (3, 2), (2,))
STEPS = 20


def tensors():
    made = [
        torch.tensor(oracle.parameters(i, s), dtype=torch.float32) for i, s in enumerate(SHAPES)
    ]
    return [torch.nn.Parameter(t) for t in made]


def train(optimizer, params, gs):
    for g in gs:
        for p, x in zip(params, g, strict=True):
            p.grad = torch.from_numpy(x.copy())
        optimizer.step()
    return [p.detach().numpy().copy() for p in params]


def two_groups(ps):
    return TO.Adam(
        [{"params": ps[:1], "lr": 0.1}, {"params": ps[1:], "weight_decay": 0.1}], lr=0.01
    )


OPTIMIZERS = {
    "sgd": lambda ps: TO.SGD(ps, 0.1, weight_decay=0.1),
    "sgd momentum": lambda ps: TO.SGD(ps, 0.1, momentum=0.9, dampening=0.5, maximize=True),
    "sgd nesterov": lambda ps: TO.SGD(ps, 0.1, momentum=0.9, nesterov=True),
    "adam": lambda ps: TO.Adam(ps, 0.01, eps=1e-3, weight_decay=0.1, maximize=True),
    "amsgrad": lambda ps: TO.Adam(ps, 0.01, eps=1e-3, amsgrad=True),
    "adamw": lambda ps: TO.AdamW(ps, 0.01, weight_decay=0.1),
    "adamw amsgrad": lambda ps: TO.AdamW(ps, 0.01, weight_decay=0.1, amsgrad=True),
    "adagrad": lambda ps: TO.Adagrad(ps, 0.1, lr_decay=0.1, weight_decay=0.1, eps=1e-2),
    "adagrad start": lambda ps: TO.Adagrad(ps, 0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda ps: TO.RMSprop(ps, 0.01, weight_decay=0.1, eps=1e-3),
    "rmsprop momentum": lambda ps: TO.RMSprop(ps, 0.01, momentum=0.9),
    "rmsprop centered": lambda ps: TO.RMSprop(ps, 0.01, momentum=0.9, centered=True, alpha=0.9),
    "adadelta": lambda ps: TO.Adadelta(ps, weight_decay=0.1),
    "adamax": lambda ps: TO.Adamax(ps, 0.01, weight_decay=0.1),
    "nadam": lambda ps: TO.NAdam(ps, 0.01, weight_decay=0.1),
    "nadam decoupled": lambda ps: TO.NAdam(ps, weight_decay=0.1, decoupled_weight_decay=True),
    "radam": lambda ps: TO.RAdam(ps, 0.01, weight_decay=0.1, eps=1e-3),
    "radam decoupled": lambda ps: TO.RAdam(ps, 0.01, weight_decay=1.0, decoupled_weight_decay=True),
    "asgd": lambda ps: TO.ASGD(ps, 0.1, lambd=0.1, t0=25, weight_decay=0.1),
    "rprop": lambda ps: TO.Rprop(ps, 0.01),
    "adafactor": lambda ps: TO.Adafactor(ps, 0.1, weight_decay=0.1),
    "two groups": two_groups,
}


QUICK = ("sgd momentum", "adam", "adamw amsgrad", "rmsprop centered", "two groups")


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(OPTIMIZERS, *QUICK))
def test_a_run_goes_on(name):
    """Twenty steps in PyTorch, handed over, twenty more on both sides."""
    ps = tensors()
    optimizer = OPTIMIZERS[name](ps)
    gs = gradients(SHAPES, 2 * STEPS)
    params = train(optimizer, ps, gs[:STEPS])
    tx, state = from_torch(optimizer, params)
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    saved = from_torch(optimizer.state_dict(), params, class_name=type(optimizer).__name__)
    assert saved[0] == tx
    jax.tree.map(np.testing.assert_array_equal, saved[1], state)
    got, state = go_on(tx, state, params, gs[STEPS:])
    want = train(optimizer, ps, gs[STEPS:])
    for mine, theirs, before in zip(got, want, params, strict=True):
        assert np.abs(theirs - before).max() > 1e-3
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)
    if name == "asgd":
        for mine, p in zip(gradtx.get_slot(state, "ax"), ps, strict=True):
            np.testing.assert_allclose(mine, optimizer.state[p]["ax"], rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("adjust", [None, "match_rms_adamw"])
def test_muon_goes_on_but_for_its_bfloat16(adjust, monkeypatch):
    # What PyTorch rounds to bfloat16 it does not round here: the formulas are compared.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    ps = tensors()[:2]
    optimizer = TO.Muon(ps, 0.01, weight_decay=0.1, adjust_lr_fn=adjust)
    gs = [g[:2] for g in gradients(SHAPES, 2 * STEPS)]
    params = train(optimizer, ps, gs[:STEPS])
    got, _ = go_on(*from_torch(optimizer, params), params, gs[STEPS:])
    for mine, theirs in zip(got, train(optimizer, ps, gs[STEPS:]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_sparse_adam_goes_on_with_rows():
    p = tensors()[0]
    optimizer = TO.SparseAdam([p], 0.01)
    rng = np.random.default_rng(0)

    def draw():
        return rng.integers(0, 4, 2), rng.normal(size=(2, 3)).astype(np.float32)

    def step(indices, values):
        p.grad = torch.sparse_coo_tensor(indices[None], values, (4, 3), check_invariants=True)
        optimizer.step()

    for _ in range(STEPS):
        step(*draw())
    table = jnp.asarray(p.detach().numpy().copy())
    tx, state = from_torch(optimizer, [table])
    params = [table]
    apply = jax.jit(lambda p, s, g: gradtx.apply_gradients(tx, g, p, s))
    for _ in range(STEPS):
        indices, values = draw()
        step(indices, values)
        rows = gradtx.Rows(jnp.asarray(indices), jnp.asarray(values), (4, 3))
        params, state = apply(params, state, [rows])
    np.testing.assert_allclose(params[0], p.detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("lr", [0.01, 9.0])
def test_the_first_step_of_rprop_is_within_its_bounds(lr):
    ps = tensors()
    start = [p.detach().numpy().copy() for p in ps]
    optimizer = TO.Rprop(ps, lr, step_sizes=(0.05, 2.0))
    gs = gradients(SHAPES, 2)
    got, _ = go_on(*from_torch(optimizer, start), start, gs)
    for mine, theirs in zip(got, train(optimizer, ps, gs), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def test_what_is_maximized_has_gradients_of_the_other_sign():
    tx, _ = from_torch(saved(maximize=True), [np.zeros(2)], class_name="SGD")
    assert tx == gradtx.chain(gradtx.scale(-1.0), gradtx.sgd(0.1, 0.9))


@pytest.mark.slow
def test_groups_that_have_taken_different_numbers_of_steps_count_their_own():
    group = TO.Adam(tensors()).state_dict()["param_groups"][0]
    groups = [{**group, "params": [0]}, {**group, "params": [1]}]
    for steps, labels in (((3, 4), {"0/0", "1/1"}), ((3, 3), {"0", "1"})):
        states = {
            i: {"step": n, "exp_avg": np.ones(2), "exp_avg_sq": np.ones(2)}
            for i, n in enumerate(steps)
        }
        source = {"state": states, "param_groups": groups}
        _, state = from_torch(source, [np.ones(2), np.ones(2)], class_name="Adam")
        assert set(state.inner_states) == labels


def test_adamw_of_versions_that_did_not_say_how_it_decays():
    source = TO.AdamW(tensors(), 0.1).state_dict()
    source["param_groups"][0].pop("decoupled_weight_decay", None)
    params = [p.detach().numpy() for p in tensors()]
    assert (
        from_torch(source, params, class_name="AdamW")[0]
        == from_torch(TO.AdamW(tensors(), 0.1), params)[0]
    )


def test_new_slots_of_rmsprop_are_zero():
    ps = tensors()
    _, state = from_torch(TO.RMSprop(ps, 0.1), [p.detach().numpy() for p in ps])
    assert not any(x.any() for x in gradtx.get_slot(state, "nu"))


@pytest.mark.parametrize("size", [1e-1, 1e-4, 1e-6, 1e-9])
def test_small_gradients_meet_the_lower_bounds_of_adafactor(size):
    """That of the mean of the rows acts on gradients below 3e-4, that of the squares below 1e-7."""
    ps = tensors()
    optimizer = TO.Adafactor(ps, 0.1)
    gs = [[np.float32(size) * x for x in g] for g in gradients(SHAPES, 8)]
    params = train(optimizer, ps, gs[:4])
    tx, state = from_torch(optimizer, params)
    got, _ = go_on(tx, state, params, gs[4:])
    want = train(optimizer, ps, gs[4:])
    for mine, theirs, old in zip(got, want, params, strict=True):
        np.testing.assert_allclose(mine - old, theirs - old, rtol=2e-4, atol=2e-6)


def test_the_epsilon_of_adafactor_is_that_of_the_type_unless_given():
    ps = tensors()
    for eps, dtype, want in (
        (None, torch.float32, 2.0**-23),
        (None, torch.bfloat16, 2.0**-7),
        (0.25, torch.bfloat16, 0.25),
        (0.0, torch.float32, 0.0),
    ):
        optimizer = TO.Adafactor([torch.nn.Parameter(p.to(dtype)) for p in ps], eps=(eps, 1e-3))
        params = [jnp.ones(s, str(dtype).removeprefix("torch.")) for s in SHAPES]
        tx, _ = from_torch(optimizer, params)
        assert gradtx.hyperparams(tx)["torch_eps"] == want
    empty = TO.Adafactor([{"params": ps}, {"params": []}])
    assert from_torch(empty, [jnp.ones(s) for s in SHAPES])[0]


def test_a_scheduler_has_changed_the_rate():
    ps = tensors()
    optimizer = TO.SGD(ps, 1.0)
    scheduler = TO.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(optimizer, ps, gradients(SHAPES, 1))
    scheduler.step()
    tx, _ = from_torch(optimizer, [p.detach().numpy() for p in ps])
    assert gradtx.hyperparams(tx)["learning_rate"] == 0.5


@pytest.mark.slow
def test_a_tree_in_another_order_and_types():
    ps = tensors()
    optimizer = TO.Adam(ps, torch.tensor(0.01))
    train(optimizer, ps, gradients(SHAPES, 1))
    for p in ps:
        optimizer.state[p]["exp_avg"] = optimizer.state[p]["exp_avg"].to(torch.bfloat16)
    names = ["w0", "a1", "m2"]
    params = {n: p.detach().numpy() for n, p in zip(names, ps, strict=True)}
    _, state = from_torch(optimizer, params, order=names)
    for name, p in zip(names, ps, strict=True):
        mine = gradtx.get_slot(state, "mu", name)
        np.testing.assert_array_equal(mine, optimizer.state[p]["exp_avg"].float())


@pytest.mark.slow
def test_a_parameter_without_gradient_so_far_has_new_slots():
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1, momentum=0.9)
    ps[0].grad = torch.ones(4, 3)
    optimizer.step()
    _, state = from_torch(optimizer, [p.detach().numpy() for p in ps])
    sums = [float(jnp.sum(x)) for x in gradtx.get_slot(state, "trace")]
    assert sums == [12.0, 0.0, 0.0]


GROUP = {
    "params": [0],
    "lr": 0.1,
    "momentum": 0.9,
    "dampening": 0,
    "weight_decay": 0,
    "nesterov": False,
    "maximize": False,
}


def saved(group=None, state=None, **changes):
    made = {**(GROUP if group is None else group), **changes}
    return {"state": state or {}, "param_groups": [made]}


def without(key):
    return {k: v for k, v in GROUP.items() if k != key}


@pytest.mark.parametrize(
    ("source", "name", "error", "says"),
    [
        (3, "SGD", TypeError, "an optimizer or its state dict"),
        (saved(), None, ValueError, "pass class_name"),
        (saved(), "LBFGZ", ValueError, "'LBFGZ' is not known; there are ASGD"),
        ({"state": {}}, "SGD", ValueError, "'param_groups' is missing"),
        ({**saved(), "more": 1}, "SGD", ValueError, "unknown options 'more'"),
        ({"state": {}, "param_groups": []}, "SGD", TypeError, "must be a list"),
        ({"state": {}, "param_groups": [3]}, "SGD", TypeError, "must be a dict"),
        (saved(without("momentum")), "SGD", ValueError, "'momentum' is missing"),
        (saved(beta=1), "SGD", ValueError, "unknown options 'beta'"),
        (saved(lr="fast"), "SGD", TypeError, "lr must be a number"),
        (
            saved(lr=3.4028235677973366e38),
            "SGD",
            ValueError,
            "lr must be a finite number of float32",
        ),
        (saved(nesterov=1), "SGD", TypeError, "true or false"),
        (saved(params=[0, 1]), "SGD", ValueError, "2 parameters, and there are 1 leaves"),
        (saved(params=[]), "SGD", ValueError, "0 parameters, and there are 1 leaves"),
        (saved(params=None), "SGD", TypeError, "SGD: params must be a list"),
        (
            {"state": {}, "param_groups": [GROUP, {**GROUP, "params": None}]},
            "SGD",
            TypeError,
            "SGD, group 1: params must be a list",
        ),
        (saved(state={0: 3}), "SGD", TypeError, "the state of '0' must be a dict"),
        (saved(state={0: {"momentum_buffer": np.ones(3)}}), "SGD", ValueError, "shape"),
        (saved(state={0: {"momentum_buffer": "x"}}), "SGD", TypeError, "not an array"),
        (saved(state={0: {"exp_avg": np.ones(2)}}), "SGD", ValueError, "unknown entries"),
        (
            saved(state={0: {"momentum_buffer": np.full(2, 1j)}}),
            "SGD",
            ValueError,
            "'trace' of '0' is real, and the value is complex128",
        ),
        (
            saved(state={0: {"momentum_buffer": np.array([1.0, 1e39])}}),
            "SGD",
            ValueError,
            "'trace' of '0' would not be finite in float32",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_input(source, name, error, says):
    with pytest.raises(error, match=says):
        from_torch(source, [np.zeros(2, np.float32)], class_name=name)


NO_NUMBERS = {
    "several": lambda: torch.tensor([0.1, 0.2]),
    "none": lambda: torch.zeros(0),
    "no data": lambda: torch.zeros((), device="meta"),
    "numpy": lambda: np.array([0.1, 0.2]),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("make", [TO.SGD, TO.Adam, TO.Adafactor, TO.Muon, TO.LBFGS, TO.RMSprop])
def test_a_tensor_that_is_no_number_is_named_wherever_it_is(make, value):
    p = torch.nn.Parameter(torch.ones(3, 3))
    optimizer = make([p], lr=0.1, **({"momentum": 0.9} if make is TO.SGD else {}))
    if make is not TO.LBFGS:
        p.grad = torch.ones(3, 3)
        optimizer.step()
    wrong = NO_NUMBERS[value]()
    refused = []

    def is_refused(name, state, group):
        source = {"state": {0: state}, "param_groups": [group]}
        try:
            from_torch(source, [np.zeros((3, 3), np.float32)], class_name=make.__name__)
        except (TypeError, ValueError) as error:
            refused.append(name if name in str(error) else None)

    saved = optimizer.state_dict()
    state, group = saved["state"].get(0, {}), saved["param_groups"][0]
    for name, old in group.items():
        is_refused(name, state, {**group, name: wrong})
        if isinstance(old, tuple):
            is_refused(name, state, {**group, name: (wrong, *old[1:])})
    for name in state:
        is_refused("", {**state, name: wrong}, group)
    is_refused("state", wrong, group)
    assert None not in refused
    assert {"lr", "state"} <= set(refused)
    assert {"betas", "eps"} <= set(refused) or make is not TO.Adam


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_parameters_of_a_module(dtype):
    """As PyTorch names them: a flat dict, in another order than JAX's."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    model = model.to(getattr(torch, dtype))
    optimizer = TO.AdamW(model.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 3, dtype=getattr(torch, dtype))).square().mean().backward()
        optimizer.step()

    step()
    params = dict(model.named_parameters())
    tx, state = from_torch(optimizer, params, order=list(params))
    held = {name: gradtx.get_slot(state, "mu", name) for name in params}
    for name, p in params.items():
        want = optimizer.state[p]["exp_avg"].float().numpy()
        np.testing.assert_array_equal(np.asarray(held[name], np.float32), want)
        assert held[name].dtype == dtype
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(held))


@pytest.mark.filterwarnings("error")
def test_parameters_of_another_width():
    """PyTorch's float64 is JAX's float32 unless it is set to have it."""
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
    for x64, dtype in ((False, "float32"), (True, "float64")):
        with jax.enable_x64(x64):
            _, state = from_torch(TO.SGD([p], 0.1, momentum=0.9), [p])
            assert gradtx.get_slot(state, "trace", "0").dtype == dtype


def test_complex_parameters():
    p = torch.nn.Parameter(torch.tensor([1.0 + 2.0j, -1.0j]))
    optimizer = TO.SGD([p], 0.1, momentum=0.9)
    gs = np.array([[0.5 - 1.0j, 2.0], [1.0j, 1.0]], np.complex64)
    params = train(optimizer, [p], [[gs[0]]])
    tx, state = from_torch(optimizer, params)
    got, _ = gradtx.apply_gradients(tx, [gs[1]], params, state)
    np.testing.assert_allclose(got, train(optimizer, [p], [[gs[1]]]), rtol=1e-6)
    with pytest.raises(ValueError, match="the two parts of a complex parameter"):
        from_torch(TO.Adam([p]), params)


def test_the_names_of_parameters_tell_which_is_which():
    """Two leaves of one shape, which JAX orders differently from PyTorch."""
    ps = [torch.nn.Parameter(torch.full((2,), float(i))) for i in range(2)]
    named = [("layer.b", ps[0]), ("layer.a", ps[1])]
    optimizer = TO.SGD(named, 0.1, momentum=0.9)
    train(optimizer, ps, [[np.full(2, 1.0, np.float32), np.full(2, 2.0, np.float32)]])
    saved = optimizer.state_dict()
    flat = {"layer.a": ps[1], "layer.b": ps[0]}
    for source in (optimizer, saved):
        for params in (flat, {"layer": {"a": np.ones(2), "b": np.ones(2)}}):
            _, state = from_torch(source, params, class_name="SGD")
            sums = [float(x.sum()) for x in jax.tree.leaves(gradtx.get_slot(state, "trace"))]
            assert sums == [4.0, 2.0]
    nameless = TO.SGD(ps, 0.1, momentum=0.9)
    nameless.load_state_dict({**saved, "param_groups": nameless.state_dict()["param_groups"]})
    for source in (nameless, nameless.state_dict()):
        with pytest.raises(ValueError, match="nothing says which of the leaves"):
            from_torch(source, flat, class_name="SGD")
    with pytest.raises(ValueError, match=r"parameter there \(layer.b, layer.a\)"):
        from_torch(optimizer, {"x": ps[0], "y": ps[1]})
    groups = [{**GROUP, "params": [i], "lr": 0.1 * i} for i in range(2)]
    with pytest.raises(ValueError, match="nothing says which"):
        from_torch(
            {"state": {}, "param_groups": groups},
            {"a": np.ones(2), "b": np.ones(3)},
            class_name="SGD",
        )
    with pytest.raises(
        ValueError, match=r"parameter 1 there has the shape \(2,\), and the leaf 'b' here"
    ):
        from_torch(nameless, {"a": np.ones(2), "b": np.ones(3)})
    with pytest.raises(TypeError, match="param_names must be a list of strings"):
        from_torch(
            {"state": {}, "param_groups": [{**GROUP, "param_names": [3]}]}, flat, class_name="SGD"
        )


@pytest.mark.parametrize("scheduled", [False, True])
def test_the_first_gradient_of_a_parameter_is_not_damped(scheduled):
    ps = tensors()
    optimizer = TO.SGD(ps, 0.1, momentum=0.9, dampening=0.5)
    scheduler = TO.lr_scheduler.ExponentialLR(optimizer, 0.9) if scheduled else None
    gs = gradients(SHAPES, 6)

    def step(g, frozen):
        for i, (p, x) in enumerate(zip(ps, g, strict=True)):
            p.grad = None if i in frozen else torch.from_numpy(x.copy())
        optimizer.step()
        if scheduled:
            scheduler.step()

    for g in gs[:3]:
        step(g, {1})
    params = [p.detach().numpy().copy() for p in ps]
    tx, state = from_torch(optimizer, params, scheduler=scheduler)
    assert set(state.inner_states) == ({"0/0", "0/1"} if scheduled else {"0/0", "0/1", "0/2"})
    got, _ = go_on(tx, state, params, gs[3:])
    for g in gs[3:]:
        step(g, set())
    for mine, p in zip(got, ps, strict=True):
        np.testing.assert_allclose(mine, p.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_gradient_of_none_counts_as_a_step_unless_each_counts_its_own():
    """PyTorch leaves such a parameter's count alone."""
    ps = tensors()[1:]
    optimizer = TO.Adam(ps)
    gs = [g[1:] for g in gradients(SHAPES, 4)]
    params = train(optimizer, ps, gs[:2])
    tx, state = from_torch(optimizer, params)
    late = gradtx.apply_gradients(tx, [None, gs[2][1]], params, state)
    at_once, _ = gradtx.apply_gradients(tx, gs[3], params, state)
    assert not bool(jnp.array_equal(gradtx.apply_gradients(tx, gs[3], *late)[0][0], at_once[0]))
    with pytest.raises(ValueError, match="chain scale_by_schedule last"):
        scheduler = TO.lr_scheduler.ExponentialLR(optimizer, 0.9)
        from_torch(optimizer, params, scheduler=scheduler, own_steps=True)
    with pytest.raises(TypeError, match="own_steps must be True, False or None"):
        from_torch(optimizer, params, own_steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [None, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda ps: TO.Adam(ps, 0.1, weight_decay=0.1),
        lambda ps: TO.AdamW([{"params": ps[:1], "lr": 0.05}, {"params": ps[1:]}], 0.1),
        lambda ps: TO.Adagrad(ps, 0.1, lr_decay=0.5),
        lambda ps: TO.NAdam(ps, 0.1),
        lambda ps: TO.RAdam(ps, 0.1),
        lambda ps: TO.Adamax(ps, 0.1),
        lambda ps: TO.ASGD(ps, 0.1, lambd=0.1, t0=2.0),
        lambda ps: TO.SGD(ps, 0.1, momentum=0.9, dampening=0.5),
        lambda ps: TO.Rprop(ps, 0.1),
    ],
    ids=["Adam", "groups", "Adagrad", "NAdam", "RAdam", "Adamax", "ASGD", "SGD", "Rprop"],
)
def test_a_parameter_without_a_gradient_rests_as_in_pytorch(make, asked):
    """Before the hand-over, unless it is asked for, and after it, one after the other."""
    ps = tensors()
    optimizer = make(ps)
    gs = gradients(SHAPES, 11)

    def step(g, frozen):
        for i, (p, x) in enumerate(zip(ps, g, strict=True)):
            p.grad = None if i in frozen else torch.from_numpy(x.copy())
        optimizer.step()

    for t, g in enumerate(gs[:4]):
        step(g, {0} if t < 2 and asked is None else set())
    params = [p.detach().numpy().copy() for p in ps]
    tx, state = from_torch(optimizer, params, own_steps=asked)
    resting = [{0}, {1, 2}, {1}, set(), {2}, {0}, set()]
    for g, frozen in zip(gs[4:], resting, strict=True):
        step(g, frozen)
        given = [None if i in frozen else x for i, x in enumerate(g)]
        params, state = gradtx.apply_gradients(tx, given, params, state)
    for mine, p in zip(params, ps, strict=True):
        np.testing.assert_allclose(mine, p.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheduled", [False, True])
def test_parameters_that_have_taken_different_numbers_of_steps(scheduled):
    """Two layers are frozen at first; the bias correction of each counts its own steps."""
    ps = tensors()
    optimizer = TO.Adam(ps, 0.1)
    scheduler = TO.lr_scheduler.ExponentialLR(optimizer, 0.9) if scheduled else None
    gs = gradients(SHAPES, 12)

    def step(g, frozen):
        for i, (p, x) in enumerate(zip(ps, g, strict=True)):
            p.grad = None if i in frozen else torch.from_numpy(x.copy())
        optimizer.step()
        if scheduled:
            scheduler.step()

    for t, g in enumerate(gs[:6]):
        step(g, {0, 1} if t < 4 else {0})
    params = [p.detach().numpy().copy() for p in ps]
    tx, state = from_torch(optimizer, params, scheduler=scheduler)
    assert set(state.inner_states) == (
        {"0/0", "0/2", "0/6"} if scheduled else {"0/0", "0/1", "0/2"}
    )
    got, _ = go_on(tx, state, params, gs[6:])
    for g in gs[6:]:
        step(g, set())
    for mine, p in zip(got, ps, strict=True):
        np.testing.assert_allclose(mine, p.detach().numpy(), rtol=1e-5, atol=1e-6)


def valley(p, q, lib):
    """A curved valley in two parameters of different shapes."""
    x, y = p.reshape(-1), q.reshape(-1)
    return (
        lib.sum((1 - x[:-1]) ** 2 + 5 * (x[1:] - x[:-1] ** 2) ** 2)
        + lib.sum((y - x[:2]) ** 2)
        + lib.sum(y**4)
    )


def lbfgs_in_torch(dtype=torch.float64, **options):
    start = [oracle.parameters(0, (3, 2)), oracle.parameters(1, (2,))]
    ps = [torch.nn.Parameter(torch.tensor(0.5 * p, dtype=dtype)) for p in start]
    optimizer = TO.LBFGS(ps, tolerance_grad=0.0, tolerance_change=0.0, **options)

    def closure():
        optimizer.zero_grad()
        value = valley(*ps, torch)
        value.backward()
        return value

    return ps, optimizer, closure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "rtol", "history"),
    [
        ("float32", 1e-5, 5),
        pytest.param("float32", 1e-5, 100, marks=pytest.mark.slow),
        pytest.param("float64", 1e-8, 5, marks=pytest.mark.slow),
        pytest.param("float64", 1e-8, 100, marks=pytest.mark.slow),
    ],
)
def test_lbfgs_goes_on(dtype, rtol, history):
    with jax.enable_x64(dtype == "float64"):
        ps, optimizer, closure = lbfgs_in_torch(
            getattr(torch, dtype), lr=0.3, max_eval=100, history_size=history
        )
        optimizer.step(closure)  # twenty iterations
        params = [jnp.asarray(p.detach().numpy().copy()) for p in ps]
        tx, state = from_torch(optimizer, params)
        assert gradtx.tree.get(state, "count") == STEPS
        saved = from_torch(optimizer.state_dict(), params, class_name="LBFGS")
        assert saved[0] == tx
        jax.tree.map(np.testing.assert_array_equal, saved[1], state)
        step = jax.jit(lambda p, s: gradtx.minimize(lambda p: valley(*p, jnp), tx, p, s)[:2])
        got, anew = params, (params, tx.init(params))
        for _ in range(STEPS):
            got, state = step(got, state)
            anew = step(*anew)
        optimizer.step(closure)
        for mine, p, forgot in zip(got, ps, anew[0], strict=True):
            theirs = p.detach().numpy()
            np.testing.assert_allclose(mine, theirs, rtol=rtol)
            assert np.abs(forgot - theirs).max() > 1e-4  # it does depend on the memory


@pytest.mark.slow
def test_lbfgs_with_a_line_search_goes_on():
    """The next direction is PyTorch's; the line search is our own and finds the minimum."""
    with jax.enable_x64(True):
        ps, optimizer, closure = lbfgs_in_torch(line_search_fn="strong_wolfe", max_iter=6)
        optimizer.step(closure)
        params = [jnp.asarray(p.detach().numpy().copy()) for p in ps]
        tx, state = from_torch(optimizer, params)
        value, grads = gradtx.compute_gradients(lambda p: valley(*p, jnp), params)
        direction, _ = gradtx.scale_by_lbfgs(100).update(grads, state[0], params)
        optimizer.param_groups[0]["max_iter"] = 1
        optimizer.step(closure)
        row = np.concatenate([np.ravel(d) for d in direction])
        np.testing.assert_allclose(-row, optimizer.state[ps[0]]["d"].numpy(), rtol=1e-8)
        step = jax.jit(lambda p, s: gradtx.minimize(lambda p: valley(*p, jnp), tx, p, s))
        for _ in range(20):
            params, state, value = step(params, state)
            optimizer.step(closure)
        np.testing.assert_allclose(value, closure().detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_a_new_lbfgs(search):
    ps, optimizer, _ = lbfgs_in_torch(line_search_fn=search)
    params = [jnp.asarray(p.detach().numpy(), jnp.float32) for p in ps]
    tx, state = from_torch(optimizer, params)
    jax.tree.map(np.testing.assert_array_equal, state, tx.init(params))
    ours = gradtx.scale_by_zoom_linesearch(25, slope_rtol=1e-4, initial_guess_strategy="one")
    assert tx == gradtx.lbfgs(1.0, 100, linesearch=search and ours)


def test_the_order_of_what_lbfgs_keeps_is_asked_for_even_among_different_shapes():
    """It is one vector of all parameters, in which a wrong order shows nowhere."""
    module = torch.nn.Linear(3, 2)
    params = {"weight": jnp.zeros((2, 3)), "bias": jnp.zeros(2)}

    def closure():
        optimizer.zero_grad()
        value = (module(torch.ones(3)) ** 2).sum() + module.bias.sum()
        value.backward()
        return value

    optimizer = TO.LBFGS(module.parameters(), max_iter=1)
    optimizer.step(closure)
    saved = optimizer.state_dict()
    with pytest.raises(ValueError, match="nothing says which of the leaves"):
        from_torch(saved, params, class_name="LBFGS")
    _, state = from_torch(saved, params, class_name="LBFGS", order=["weight", "bias"])
    named = TO.LBFGS(module.named_parameters(), max_iter=1)
    named.load_state_dict(saved)
    _, found = from_torch(named, params)
    for slots in (gradtx.get_slot(s, "updates") for s in (state, found)):
        want = saved["state"][0]["prev_flat_grad"].numpy()
        np.testing.assert_array_equal(slots["weight"].ravel(), want[:6])
        np.testing.assert_array_equal(slots["bias"], want[6:])


def test_what_lbfgs_keeps_of_many_parameters_is_cut_at_each():
    ps = [torch.nn.Parameter(torch.ones(shape)) for shape in ((2,), (3, 2), (), (4,))]
    optimizer = TO.LBFGS(ps, max_iter=1)

    def closure():
        optimizer.zero_grad()
        value = sum(((i + 1) * p**2).sum() for i, p in enumerate(ps))
        value.backward()
        return value

    optimizer.step(closure)
    _, state = from_torch(optimizer, [jnp.ones(p.shape) for p in ps])
    for i, (got, p) in enumerate(zip(gradtx.tree.get(state, "updates"), ps, strict=True)):
        np.testing.assert_array_equal(got, np.full(p.shape, 2.0 * (i + 1)))


def damaged_lbfgs(**changes):
    ps, optimizer, closure = lbfgs_in_torch(max_iter=3)
    optimizer.step(closure)
    saved = optimizer.state_dict()
    group = {k: v for k, v in changes.items() if k in saved["param_groups"][0]}
    saved["param_groups"][0].update(group)
    saved["state"][0].update({k: v for k, v in changes.items() if k not in group})
    return saved, [p.detach().numpy() for p in ps]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"history_size": 0}, ValueError, "history_size must be from 1 to"),
        ({"history_size": 10**9}, ValueError, "history_size must be from 1 to"),
        ({"line_search_fn": "golden"}, ValueError, "None or 'strong_wolfe'"),
        ({"n_iter": -1}, ValueError, "n_iter must be an integer of at least 0"),
        ({"n_iter": None}, TypeError, "n_iter must be a number"),
        ({"d": np.ones(3)}, ValueError, r"d must have the shape \(8,\), not \(3,\)"),
        ({"old_dirs": 3}, TypeError, "old_dirs must be a list"),
        ({"old_dirs": []}, ValueError, "must be of one length"),
        ({"ro": ["x", "y"]}, TypeError, "ro must be a number"),
        ({"d": np.ones(8, np.complex64)}, ValueError, "d must be real, not complex64"),
        ({"prev_flat_grad": np.full(8, np.nan)}, ValueError, "would not be finite"),
        ({"t": 6e37, "d": np.full(8, 1e3, np.float32)}, ValueError, "would not be finite"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_bad_lbfgs(changes, error, says):
    source, params = damaged_lbfgs(**changes)
    with pytest.raises(error, match=says):
        from_torch(source, params, class_name="LBFGS")


def test_every_optimizer_is_known():
    there = {
        name for name in dir(TO) if isinstance(getattr(TO, name), type) and name != "Optimizer"
    }
    tried = {type(make(tensors())).__name__ for make in OPTIMIZERS.values()}
    assert there == tried | {"LBFGS", "Muon", "SparseAdam"}


def scaled_steps(optimizer, scaler, p, gs):
    """Steps of PyTorch under its own loss scaling; the parameter and the scale after each."""
    after = []
    for g in gs:
        optimizer.zero_grad()
        scaler.scale((p * torch.from_numpy(g)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        after.append((p.detach().numpy().copy(), scaler.get_scale()))
    return after


def test_loss_scaling_goes_on():
    """Gradients that are not finite are among those before and after the handover."""
    gs = [oracle.parameters(i, (3,)).astype(np.float32) for i in range(12)]
    for i in (3, 8):
        gs[i][1] = np.inf
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = TO.Adam([p], 0.1)
    scaler = torch.amp.GradScaler("cpu", 0.25, growth_factor=4.0, backoff_factor=0.25)
    scaler.set_growth_interval(3)
    scaled_steps(optimizer, scaler, p, gs[:6])
    params = [p.detach().numpy().copy()]
    tx, state = from_torch(optimizer, params, scaler=scaler)
    saved = from_torch(optimizer, params, scaler=scaler.state_dict())
    assert saved[0] == tx
    assert gradtx.from_config(gradtx.to_config(tx)) == tx
    assert int(state.counter) == 2  # of three: one more, and the scale grows
    for g, (want, scale) in zip(gs[6:], scaled_steps(optimizer, scaler, p, gs[6:]), strict=True):
        scaled = [jnp.asarray(g) * gradtx.loss_scale(state)]
        updates, state = tx.update(scaled, state, params)
        params = gradtx.apply_updates(params, updates)
        np.testing.assert_allclose(params[0], want, rtol=1e-6)
        assert float(gradtx.loss_scale(state)) == scale


def test_a_scaler_that_cannot_go_on():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = TO.SGD([p], 0.1)
    plain = from_torch(optimizer, [np.ones(3)])
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert from_torch(optimizer, [np.ones(3)], scaler=off)[0] == plain[0]
    uneven = torch.amp.GradScaler("cpu", growth_factor=2.0, backoff_factor=0.25)
    with pytest.raises(ValueError, match=r"grows by 2.0 and shrinks by 0.25"):
        from_torch(optimizer, [np.ones(3)], scaler=uneven)
    with pytest.raises(TypeError, match="a GradScaler or its state dict"):
        from_torch(optimizer, [np.ones(3)], scaler=3.0)
    with pytest.raises(ValueError, match="'growth_factor' is missing"):
        from_torch(optimizer, [np.ones(3)], scaler={"scale": 2.0})


def test_a_shape_that_does_not_fit_is_given_to_no_name():
    """Without names a weight is not called by the name of the leaf that it does not fit."""
    layer = torch.nn.Linear(3, 4)
    leaves = {"bias": np.ones(4), "weight": np.ones((4, 3))}
    with pytest.raises(ValueError, match=r"parameter 0 there.*order=.*named_parameters") as caught:
        from_torch(TO.AdamW(layer.parameters()), leaves)
    assert "bias has" not in str(caught.value)
    from_torch(TO.AdamW(layer.named_parameters()), leaves)


def test_a_rate_of_asgd_from_before_is_refused():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = TO.ASGD([p], 0.1)
    p.grad = torch.ones(2)
    optimizer.step()
    from_torch(optimizer, [p.detach().numpy()])
    optimizer.param_groups[0]["lr"] = 1.0
    words = "the next step at '0' has the rate 0.0999992.*from an earlier lr"
    with pytest.raises(ValueError, match=words):
        from_torch(optimizer, [p.detach().numpy()])


def test_lbfgs_that_began_at_the_end():
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = TO.LBFGS([p])

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    params = [p.detach().numpy()]
    tx, state = from_torch(optimizer, params)
    assert jax.tree.structure(state) == jax.tree.structure(tx.init(params))
