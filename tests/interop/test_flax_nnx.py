"""Models of Flax nnx: leaves are named as in the model, whatever objects hold them."""

# Sees mutants of: paths.

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.leaves.paths import leaves_with_path, path_string

nnx = pytest.importorskip("flax.nnx")
as_pure = getattr(nnx, "as_pure", nnx.pure)  # Flax 0.12.0, beside the oldest JAX, has the latter

WIDTH = 4


class Model(nnx.Module):
    """A transformer's parts, under names that say as little as names may; and what is no Param."""

    def __init__(self, rngs):
        self.embed = nnx.Embed(5, WIDTH, rngs=rngs)
        self.pos = nnx.Param(jnp.full((3, WIDTH), 0.1))
        self.mix = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
        self.seen = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.value = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 5, rngs=rngs)

    def __call__(self, tokens):
        x = self.seen(self.embed(tokens) + self.pos[...])
        return self.head(self.value(self.drop(x + self.mix(x))))


TOKENS = jnp.array([[0, 1, 2], [3, 4, 0]])
MATRICES = {
    *(f"mix/{name}/kernel" for name in ("query", "key", "value", "out")),
    "value/kernel",
}


def loss(model):
    logits = model(TOKENS)
    return gradtx.softmax_cross_entropy_with_integer_labels(logits, TOKENS[:, ::-1]).mean()


def trained(tx, steps=3):
    """The model, its optimizer, and its parameters after each step."""
    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    held = [flat(nnx.state(model, nnx.Param))]

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(loss)(model))

    for _ in range(steps):
        step(model, optimizer)
        held.append(flat(nnx.state(model, nnx.Param)))
    return model, optimizer, held


def flat(tree):
    """The leaves by path, as NumPy arrays; without those that are None."""
    leaves = [(path_string(path), x) for path, x in leaves_with_path(tree)[0] if x is not None]
    keys = jax.dtypes.prng_key
    return {
        path: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, keys) else x)
        for path, x in leaves
    }


def params():
    return nnx.state(Model(nnx.Rngs(0)), nnx.Param)


@pytest.mark.slow
def test_paths_are_those_of_the_model():
    names = {"embed/embedding", "pos", "seen/scale", "seen/bias", "head/kernel", "head/bias"}
    names |= {"mix/value/bias", "value/bias", "mix/query/bias", "mix/key/bias", "mix/out/bias"}
    want = names | MATRICES
    assert set(flat(params())) == want
    assert set(flat(as_pure(params()))) == want  # as nnx.Optimizer passes them at each step


@pytest.mark.slow
def test_a_leaf_that_is_named_value_keeps_its_name():
    class Attention(nnx.Module):
        def __init__(self):
            self.value = nnx.Param(jnp.ones(2))
            self.inside = nnx.Dict({"value": nnx.Param({"value": jnp.ones(3)})})

    assert set(flat(nnx.state(Attention(), nnx.Param))) == {"value", "inside/value/value"}
    eqx = pytest.importorskip("equinox")

    class Projections(eqx.Module):
        value: jax.Array

    assert set(flat({"attention": Projections(jnp.ones(2))})) == {"attention/value"}


@pytest.mark.slow
def test_boxes_of_linen_are_not_in_paths():
    nn = pytest.importorskip("flax.linen")
    start = nn.with_partitioning(nn.initializers.ones, (None, "x"))
    boxed = nn.Dense(3, kernel_init=start).init(jax.random.key(0), jnp.ones((1, 2)))
    assert set(flat(boxed)) == {"params/kernel", "params/bias"}


@pytest.mark.slow
def test_roles():
    roles = gradtx.ByRole().roles(params())
    kinds = {path: role.kind for path, role in roles.items()}
    assert {path for path, kind in kinds.items() if kind == "matrix"} == MATRICES
    assert {kinds[path] for path in kinds if path.endswith("bias")} == {"bias"}
    assert kinds["pos"] == kinds["embed/embedding"] == "embedding"
    assert kinds["head/kernel"] == "head"
    assert roles["mix/value/kernel"] == gradtx.Role("matrix", (0,), (1, 2))
    assert roles["mix/out/kernel"] == gradtx.Role("matrix", (0, 1), (2,))
    assert roles["value/kernel"] == gradtx.Role("matrix", (0,), (1,))


def test_stacked_projections_are_not_taken_for_heads():
    names = ("query", "key", "value", "out")
    layers = {"a": {name: {"kernel": jnp.ones((2, 4, 4))} for name in names}}
    with pytest.raises(ValueError, match="stacked"):
        gradtx.ByRole().roles(layers)
    found = gradtx.ByRole(stacked=(("a", 1),)).roles(layers)
    assert set(found.values()) == {gradtx.Role("matrix", (1,), (2,), (0,))}
    heads = {"query": (2, 4, 2, 2), "key": (2, 4, 2, 2), "value": (2, 4, 2, 2), "out": (2, 2, 2, 4)}
    layers = {"a": {name: {"kernel": jnp.ones(shape)} for name, shape in heads.items()}}
    found = gradtx.ByRole(stacked=(("a", 1),)).roles(layers)
    assert found["a/key/kernel"] == gradtx.Role("matrix", (1,), (2, 3), (0,))
    assert found["a/out/kernel"] == gradtx.Role("matrix", (1, 2), (3,), (0,))


@pytest.mark.slow
def test_muon_adamw_and_an_average_through_the_optimizer():
    tx = gradtx.chain(
        gradtx.muon(0.02, muon_weight_dimension_numbers=gradtx.ByRole()), gradtx.ema_params(0.5)
    )
    model, optimizer, held = trained(tx)
    inner = optimizer.opt_state[0].inner_states["muon"].inner_state
    assert set(flat(gradtx.get_slot(inner, "mu"))) == MATRICES
    average = held[0]
    for now in held[1:]:
        average = {path: 0.5 * x + 0.5 * now[path] for path, x in average.items()}
    whole = nnx.state(model)
    for given in (whole, nnx.state(model, nnx.Param), as_pure(whole), model):
        found = gradtx.eval_params(tx, optimizer.opt_state, given)
        assert jax.tree.structure(found) == jax.tree.structure(given)
        got = flat(found)
        for path, x in flat(given).items():
            np.testing.assert_allclose(got[path], average.get(path, x), rtol=1e-5, atol=1e-7)
    path = "mix/value/kernel"
    slot = gradtx.get_slot(optimizer.opt_state, "average", path)
    np.testing.assert_allclose(slot, average[path], rtol=1e-5, atol=1e-7)
    state = gradtx.set_slot(optimizer.opt_state, "average", jnp.zeros_like(slot), path)
    assert not np.any(gradtx.get_slot(state, "average", path))
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.opt_state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("pattern", "*/kernel"),
        ("patterns", ["mix", "head/kernel"]),
        ("predicate", lambda path, leaf: path.endswith("bias")),
    ],
)
def test_what_chooses_leaves_chooses_the_same_at_every_step(name, choice):
    """`init` sees nnx's objects, `update` arrays."""
    tx = gradtx.chain(
        gradtx.masked(gradtx.trace(0.5), choice), gradtx.masked(gradtx.scale(0.0), choice)
    )
    _, optimizer, held = trained(tx, steps=2)
    rested = {path for path in held[0] if np.array_equal(held[0][path], held[-1][path])}
    chosen = {
        "pattern": MATRICES | {"head/kernel"},
        "patterns": {path for path in held[0] if path.startswith("mix/")} | {"head/kernel"},
        "predicate": {path for path in held[0] if path.endswith("bias")},
    }[name]
    assert set(flat(gradtx.get_slot(optimizer.opt_state, "trace"))) == chosen
    assert rested - {"mix/key/bias"} == chosen - {"mix/key/bias"}  # its gradient is zero, rounded


@pytest.mark.slow
def test_labels_by_pattern():
    tx = gradtx.partition(
        {"a": gradtx.sgd(0.1), "b": gradtx.set_to_zero()}, [("*/kernel", "a"), ("*", "b")]
    )
    _, _, held = trained(tx, steps=1)
    moved = {path for path in held[0] if not np.array_equal(held[0][path], held[-1][path])}
    assert moved == MATRICES | {"head/kernel"}


@pytest.mark.slow
def test_the_step_of_a_schedule_is_read_from_the_optimizer():
    tx = gradtx.sgd(gradtx.linear_schedule(1.0, 0.0, 4))
    _, optimizer, _ = trained(tx, steps=2)
    assert float(gradtx.hyperparams(tx, optimizer.opt_state)["learning_rate"]) == 0.5


@pytest.mark.slow
def test_the_report_of_a_guard_is_in_arrays():
    tx = gradtx.dynamic_loss_scale(gradtx.guard(gradtx.adamw(0.01)), 2.0)
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: jnp.mean(model(x)))(model))
        return gradtx.guard_report(optimizer.opt_state)

    for report in (
        step(model, optimizer, jnp.ones((1, 2))),
        gradtx.guard_report(optimizer.opt_state),
    ):
        assert all(isinstance(x, jax.Array) for x in report)
        assert "taken          1\n" in str(report)
        assert f"{report.learning_rate:.4g}, {report.loss_scale:.1f}" == "0.01, 2.0"


@pytest.mark.slow
def test_factors_of_lora():
    """As Flax names them, beside a frozen layer: what `trainable` leaves out has no slots."""
    layer = nnx.LoRA(3, 2, 4, base_module=nnx.Linear(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))
    graph, start = nnx.split(layer)
    tx = gradtx.chain(gradtx.scale_by_riemannian_lora(), gradtx.sgd(0.1, momentum=0.5))
    x = jnp.ones((5, 3))

    def loss(p):
        return jnp.mean((nnx.merge(graph, p)(x) - 1) ** 2)

    step = gradtx.make_step(loss, tx, trainable=["lora_a", "lora_b"], donate=False)
    state = step.init(start)
    assert sum(slot.size for slot in jax.tree.leaves(state)) == 6 + 8
    p, before = start, loss(start)
    for _ in range(30):
        p, state, value = step(p, state)
    assert value < before / 100
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(p["base_module"][name][...], start["base_module"][name][...])


def in_groups(labels):
    return gradtx.partition({True: gradtx.adam(0.1), False: gradtx.sgd(0.1)}, labels)


TREES = {
    "variables": lambda params: params,
    "arrays": as_pure,
    "dicts": lambda params: nnx.to_pure_dict(params),
}


@pytest.mark.slow
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    "compose",
    [
        in_groups,
        lambda mask: gradtx.masked(gradtx.trace(0.5), mask),
        lambda mask: gradtx.adamw(0.1, weight_decay=0.5, mask=mask),
        lambda mask: gradtx.chain(gradtx.sgd(0.1), gradtx.freeze(mask)),
        lambda mask: gradtx.selective_transform(gradtx.sgd(0.1), freeze_mask=mask),
    ],
)
def test_a_tree_that_is_mapped_from_the_state_of_a_model(compose, tree):
    """Of its variables, of the arrays in them, or of dicts: as a function of the leaves."""

    def run(choice):
        model = nnx.Sequential(
            nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 2, rngs=nnx.Rngs(1))
        )
        optimizer = nnx.Optimizer(model, compose(choice(model)), wrt=nnx.Param)
        for _ in range(2):
            grads = nnx.grad(lambda model: (model(jnp.ones((1, 2))) ** 2).sum())(model)
            optimizer.update(model, grads)
        return flat(nnx.state(model, nnx.Param))

    def mapped(model):
        return jax.tree.map(lambda x: x.ndim > 1, TREES[tree](nnx.state(model, nnx.Param)))

    found, expected = run(mapped), run(lambda _: lambda path, x: x.ndim > 1)
    assert all(np.array_equal(found[path], expected[path]) for path in expected)


def test_labels_of_another_model_say_where_they_differ():
    labels = jax.tree.map(lambda x: True, nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param))
    with pytest.raises(ValueError, match="labels are not .* they have no 'bias', their leaves"):
        in_groups(labels).init({"kernel": jnp.ones((2, 3))})
