"""LoRA's own steps against their papers and PEFT's code, and wherever the factors may lie."""

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import gradtx
from gradtx import ByRole
from gradtx.composition.factors import Factors
from tests.optimizers.papers import adam

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "lora.npz"
SHAPES = {"lora_a": (5, 2), "lora_b": (2, 4)}
TREE = {"q": SHAPES, "k": {"lora_a": (3, 2), "lora_b": (2, 6)}, "head": (4, 3), "norm": (4,)}


def drawn(seed, shapes=TREE, steps=None, dtype=np.float64):
    """Normal numbers for a tree of shapes, for one step or several."""
    rng = np.random.default_rng(seed)
    first = () if steps is None else (steps,)

    def draw(shape):
        x = rng.normal(size=(*first, *shape))
        if np.issubdtype(dtype, np.complexfloating):
            x = x + 1j * rng.normal(size=x.shape)
        return x.astype(dtype)

    return jax.tree.map(draw, shapes, is_leaf=lambda x: isinstance(x, tuple))


def path_of(tx, p, gs):
    """The parameters after each step, one compiled scan."""

    def step(carry, g):
        p, state = carry
        updates, state = tx.update(g, state, p)
        p = gradtx.apply_updates(p, updates)
        return (p, state), p

    return jax.jit(lambda p, gs: jax.lax.scan(step, (p, tx.init(p)), gs)[1])(p, gs)


def transcribed(update, p, gs):
    """The same by ``update(g, p, t, slots) -> steps`` of a pair, or of one leaf, in NumPy."""
    slots, path = {n: {} for n in p}, []
    steps = len(jax.tree.leaves(gs)[0])
    for t in range(1, steps + 1):
        g = jax.tree.map(lambda x, t=t: x[t - 1], gs)
        p = {n: jax.tree.map(np.add, p[n], update(g[n], p[n], t, slots[n])) for n in p}
        path.append(p)
    return jax.tree.map(lambda *xs: np.stack(xs), *path)


def each(function, g, p, t, slots):
    """A rule of one leaf on a pair or on a leaf."""
    if not isinstance(g, dict):
        return function("", g, slots, t, p)
    return {n: function(n, g[n], slots.setdefault(n, {}), t, p[n]) for n in g}


def inverse(x, damping):
    return np.linalg.inv(x + damping * np.eye(len(x)))


def plus(g, p, t, slots):
    """Hayou et al. 2024: AdamW with the rate of A, times the ratio for B and for vectors."""

    def one(name, g, s, t, p):
        rate = 0.05 * (3.0 if name == "lora_b" or g.ndim == 1 else 1.0)
        return -rate * (adam(g, s, t, 0.7, 0.8, 0.1) + 0.4 * p)

    return each(one, g, p, t, slots)


def fa(g, p, t, slots):
    """Zhang et al. 2023: A stays; the gradient of B is divided by the Gram matrix of A."""

    def one(name, g, s, t, p):
        if name == "lora_a":
            return 0 * p
        return -0.05 * (adam(g, s, t, 0.7, 0.8, 0.1, hat=True) + 0.4 * p)

    if isinstance(g, dict):
        a = p["lora_a"]
        g = {**g, "lora_b": inverse(a.T.conj() @ a, 0.3) @ g["lora_b"] / 1.5**2}
    return each(one, g, p, t, slots)


def preconditioned(g, p, damping=0.3):
    """Zhang and Pilanci 2024, equations 1 and 2, with damping."""
    if not isinstance(g, dict):
        return g
    a, b = p["lora_a"], p["lora_b"]
    return {
        "lora_a": g["lora_a"] @ inverse(b @ b.T.conj(), damping),
        "lora_b": inverse(a.T.conj() @ a, damping) @ g["lora_b"],
    }


def metric(g, p, t, slots):
    def one(name, g, s, t, p):
        return -0.05 * (adam(g, s, t, 0.7, 0.8, 0.1) + 0.4 * p)

    return each(one, preconditioned(g, p), p, t, slots)


OURS = {
    "lora_plus": (lambda **o: gradtx.lora_plus(0.05, 3.0, 0.7, 0.8, 0.1, 0.4, **o), plus),
    "lora_fa": (
        lambda **o: gradtx.lora_fa(0.05, 1.5, 0.7, 0.8, 0.1, 0.4, damping=0.3, **o),
        fa,
    ),
    "riemannian_lora": (
        lambda **o: gradtx.riemannian_lora(0.05, 0.7, 0.8, 0.1, 0.4, damping=0.3, **o),
        metric,
    ),
}


def same(got, want, rtol=1e-9, atol=1e-12):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), got, want)


@pytest.mark.quick(1)
@pytest.mark.paper("lora_plus", "lora_fa", "riemannian_lora")
@pytest.mark.parametrize("name", OURS)
def test_they_are_their_papers(name):
    make, update = OURS[name]
    p, gs = drawn(0), drawn(1, steps=6)
    with jax.enable_x64(True):
        got = path_of(make(), *jax.tree.map(jnp.asarray, (p, gs)))
    same(got, transcribed(update, p, gs))


@pytest.mark.slow
def test_scaled_gradient_descent():
    """Also on complex factors: gradients point along the steepest ascent."""
    tx = gradtx.chain(gradtx.scale_by_riemannian_lora(0.3), gradtx.sgd(0.05))

    def update(g, p, t, slots):
        return jax.tree.map(lambda x: -0.05 * x, preconditioned(g, p))

    for dtype in (np.float64, np.complex128):
        p, gs = drawn(0, dtype=dtype), drawn(1, steps=4, dtype=dtype)
        with jax.enable_x64(True):
            got = path_of(tx, *jax.tree.map(jnp.asarray, (p, gs)))
        same(got, transcribed(update, p, gs))


def nested(flat, prefix):
    """The parameters of a test of the golden numbers as a tree, by their names in PyTorch."""
    tree = {}
    for name, x in flat.items():
        test, _, path = name.partition("/")
        if test == prefix:
            *above, last = path.split(".")
            at = tree
            for part in above:
                at = at.setdefault(part, {})
            at[last] = x
    return tree


PEFT = {
    "plus": lambda: gradtx.lora_plus(0.02, 5.0, 0.8, 0.9, 1e-3),
    "plus sgd": lambda: gradtx.chain(
        gradtx.trace(0.9), gradtx.scale_by_lora_plus(5.0), gradtx.scale_by_learning_rate(0.02)
    ),
    "fa": lambda: gradtx.lora_fa(0.02, 1.5),
    "metric": lambda: gradtx.riemannian_lora(0.02, 0.8, 0.9, 1e-3, 0.1, damping=0.05),
    "metric sgd": lambda: gradtx.chain(gradtx.scale_by_riemannian_lora(), gradtx.sgd(0.005)),
}


@pytest.mark.quick(1)
@pytest.mark.library("lora_plus", "lora_fa", "riemannian_lora")
@pytest.mark.parametrize("name", PEFT)
def test_they_are_pefts(name):
    """In PyTorch's names and layout, where A is (rank, inputs); see golden/make_lora.py."""
    with np.load(GOLDEN) as golden:
        flat = dict(golden)
    gs, want = nested(flat, "gradients"), nested(flat, name)
    trained = {f"start/{n.partition('/')[2]}" for n in flat if n.startswith("gradients/")}
    p = nested({n: x for n, x in flat.items() if n in trained}, "start")
    got = path_of(PEFT[name](), p, gs)
    moved = jax.tree.map(lambda x, y: float(np.max(np.abs(x - y))), want, p)
    assert sum(x > 0.01 for x in jax.tree.leaves(moved)) >= 5
    same(got, want, rtol=1e-5, atol=1e-6)


def as_torch(tree):
    """The same factors with the names and the layout of PyTorch."""
    return {
        n: {f"lora_{k[-1].upper()}": {"weight": np.swapaxes(x, -1, -2)} for k, x in v.items()}
        if isinstance(v, dict)
        else v
        for n, v in tree.items()
    }


def renamed(a, b):
    def convert(tree):
        return {
            n: {a: v["lora_a"], b: v["lora_b"]} if isinstance(v, dict) else v
            for n, v in tree.items()
        }

    return convert


LAYOUTS = {
    "torch": (as_torch, {}),
    "qwix": (renamed("w_lora_a", "w_lora_b"), {}),
    "keras": (renamed("lora_kernel_a", "lora_kernel_b"), {}),
    "own names": (
        renamed("down", "up"),
        {"pairs": ("*/down", "*/up"), "roles": ByRole(convention="in_out")},
    ),
    "own function": (
        renamed("u", "v"),
        {"pairs": lambda tree: [("k/u", "k/v"), ("q/u", "q/v")]},
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OURS)
def test_names_and_layouts_of_factors(name, layout):
    convert, options = LAYOUTS[layout]
    make, _ = OURS[name]
    p, gs = drawn(0, dtype=np.float32), drawn(1, steps=3, dtype=np.float32)
    want = convert(jax.device_get(path_of(make(), p, gs)))
    same(path_of(make(**options), convert(p), convert(gs)), want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_scanned_layers_are_the_layers(name):
    """Three layers in one leaf, with the axis of layers first, in both layouts."""
    make, _ = OURS[name]
    p, gs = drawn(0, SHAPES, 3, np.float32), drawn(1, SHAPES, 6, np.float32)
    gs = jax.tree.map(lambda g: g.reshape(2, 3, *g.shape[1:]), gs)
    apart = {str(i): jax.tree.map(lambda x, i=i: x[i], p) for i in range(3)}
    gs_apart = {str(i): jax.tree.map(lambda x, i=i: x[:, i], gs) for i in range(3)}
    paths = path_of(make(), apart, gs_apart)
    want = {"q": jax.tree.map(lambda *xs: np.stack(xs, 1), *paths.values())}
    tx = make(roles=ByRole(stacked=(("q", 1),)))
    same(path_of(tx, {"q": p}, {"q": gs}), want, rtol=1e-5, atol=1e-6)
    same(path_of(tx, as_torch({"q": p}), as_torch({"q": gs})), as_torch(want), 1e-5, 1e-6)


@pytest.mark.slow
def test_heads_of_an_einsum():
    """Qwix: A is (inputs, rank) and B (rank, heads, width), or A is (heads, width, rank)."""
    p = drawn(0, {"w_lora_a": (5, 2), "w_lora_b": (2, 3, 2)}, dtype=np.float32)
    flat = {"lora_a": p["w_lora_a"], "lora_b": p["w_lora_b"].reshape(2, 6)}
    tx = gradtx.scale_by_riemannian_lora(0.3)
    got, _ = tx.update(p, tx.init(p), p)
    want, _ = tx.update(flat, tx.init(flat), flat)
    same(got["w_lora_a"], want["lora_a"], 1e-5, 1e-6)
    same(got["w_lora_b"].reshape(2, 6), want["lora_b"], 1e-5, 1e-6)
    roles = gradtx.describe(tx, p).roles
    assert (roles["w_lora_a"].columns, roles["w_lora_b"].rows) == ((1,), (0,))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", OURS)
def test_a_frozen_base_costs_nothing(name):
    """No slots and no bytes beside those of the factors; and of LoRA-FA's A none either."""
    tx = OURS[name][0]()
    p = {**drawn(0, dtype=np.float32), "base": np.ones((64, 64), np.float32)}
    trained = ["*/lora_a", "*/lora_b"]

    def loss(p):
        return sum(jnp.sum((p[n]["lora_a"] @ p[n]["lora_b"] - 1) ** 2) for n in "qk") + jnp.sum(
            p["base"]
        )

    step = gradtx.make_step(loss, tx, trainable=trained)
    state = step.init(p)
    kept = [n for n in ("lora_a", "lora_b") if not (name == "lora_fa" and n == "lora_a")]
    numbers = 2 * sum(p[layer][n].size for layer in "qk" for n in kept)
    arrays = [x for x in jax.tree.leaves(state) if x.ndim]
    assert sum(x.nbytes for x in arrays) == 4 * numbers
    new, state, _ = step(jax.tree.map(jnp.asarray, p), state)
    for path in ("base", "head", "norm"):
        np.testing.assert_array_equal(new[path], p[path])
    moved = {n: bool(np.any(new["q"][n] != p["q"][n])) for n in SHAPES}
    assert moved == {"lora_a": name != "lora_fa", "lora_b": True}


LINKS = {
    "plus": lambda: gradtx.scale_by_lora_plus(3.0),
    "fa": lambda: gradtx.scale_by_lora_fa(1.5, 0.3),
    "metric": lambda: gradtx.scale_by_riemannian_lora(0.3),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("frozen", SHAPES)
@pytest.mark.parametrize("name", LINKS)
def test_the_gradient_of_either_factor_may_be_missing(name, frozen):
    """Where the other factor is frozen, or, for LoRA-FA, its gradient is not taken."""
    tx, p, g = LINKS[name](), drawn(0, SHAPES, dtype=np.float32), drawn(1, SHAPES, dtype=np.float32)
    want, _ = tx.update(g, tx.init(p), p)
    got, _ = tx.update({**g, frozen: None}, tx.init(p), p)
    same({**got, frozen: 0.0}, {**want, frozen: 0.0}, rtol=1e-6)
    assert got[frozen] is None


@pytest.mark.slow
def test_lora_fa_needs_no_gradient_of_a():
    tx, p = gradtx.lora_fa(0.1), drawn(0, SHAPES, dtype=np.float32)
    g = drawn(1, SHAPES, dtype=np.float32)
    want, _ = tx.update(g, tx.init(p), p)
    got, _ = tx.update({**g, "lora_a": None}, tx.init(p), p)
    assert got["lora_a"] is None
    same(got["lora_b"], want["lora_b"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_a_step_of_the_metric_does_not_depend_on_how_the_product_is_divided(dtype):
    """A (times c) and B (divided by c) take the steps of A and B, with almost no damping."""
    target = drawn(2, {"w": (5, 4)}, dtype=dtype)["w"]
    tx = gradtx.chain(gradtx.scale_by_riemannian_lora(1e-9), gradtx.sgd(0.1))

    def loss(p):
        return jnp.sum(jnp.abs(p["lora_a"] @ p["lora_b"] - target) ** 2)

    def moved(mix):
        p = drawn(0, SHAPES, dtype=dtype)
        p = {"lora_a": p["lora_a"] @ mix, "lora_b": np.linalg.inv(mix) @ p["lora_b"]}
        p = jax.tree.map(jnp.asarray, p)
        g = gradtx.compute_gradients(loss, p)[1]
        u, _ = tx.update(g, tx.init(p), p)
        new = gradtx.apply_updates(p, u)
        assert loss(new) < loss(p)
        return new["lora_a"] @ new["lora_b"]

    mix = np.diag([3.0, 0.2]).astype(dtype) + drawn(3, {"m": (2, 2)}, dtype=dtype)["m"] / 10
    same(moved(mix), moved(np.eye(2, dtype=dtype)), rtol=1e-3, atol=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("name", OURS)
def test_factors_may_be_divided_over_devices(name, kind):
    """Inputs of A and outputs of B over eight devices: the numbers of one, and all that devices
    exchange are sums of squares of the rank."""
    shapes = {n: {"lora_a": (16, 4), "lora_b": (4, 8)} for n in "qk"}
    p, gs = drawn(0, shapes, dtype=np.float32), drawn(1, shapes, 2, np.float32)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    places = {"lora_a": P("x", None), "lora_b": P(None, "x")}
    tx = OURS[name][0]()
    want = path_of(tx, p, gs)

    def divide(tree):
        return {
            layer: {n: jax.device_put(x, NamedSharding(mesh, places[n])) for n, x in pair.items()}
            for layer, pair in tree.items()
        }

    def step(p, state, g):
        updates, state = tx.update(g, state, p)
        return gradtx.apply_updates(p, updates), state

    with jax.set_mesh(mesh):
        divided = divide(p)
        state = tx.init(divided)
        slot = gradtx.get_slot(state, "nu")["q"]["lora_b"]
        assert slot.sharding.is_equivalent_to(divided["q"]["lora_b"].sharding, 2)
        compiled = jax.jit(step).lower(divided, state, divided).compile()
        sent = re.findall(
            r"= (.*) (all-\w+|collective-\w+|reduce-scatter)(?:-start)?\(", compiled.as_text()
        )
        assert {kind for _, kind in sent} == (set() if name == "lora_plus" else {"all-reduce"})
        assert all(set(re.findall(r"f32\[(.*?)\]", shape)) == {"2,4,4"} for shape, _ in sent)
        for i in range(2):
            g = divide(jax.tree.map(lambda x, i=i: x[i], gs))
            divided, state = compiled(divided, state, g)
            same(divided, jax.tree.map(lambda x, i=i: x[i], want), rtol=1e-5, atol=1e-5)


def test_patterns_and_roles_are_data():
    roles = ByRole(stacked=(("blocks", 1),), convention="in_out")
    for pairs in (("*/down", "*/up"), [("a/u", "a/v"), ("b/u", "b/v")]):
        tx = gradtx.lora_fa(0.1, pairs=pairs, roles=roles)
        config = json.loads(json.dumps(gradtx.to_config(tx)))
        assert gradtx.from_config(config) == tx
        assert "down" in repr(tx) or "a/u" in repr(tx)


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_store_and_partition(name):
    """Beside another optimizer of the rest, and with slots of one and of two bytes."""
    make, _ = OURS[name]
    p, gs = drawn(0, dtype=np.float32), drawn(1, steps=3, dtype=np.float32)
    groups = {"lora": make(), "rest": gradtx.sgd(0.1)}
    tx = gradtx.partition(groups, [("q", "lora"), ("k", "lora"), ("*", "rest")])
    got, want = path_of(tx, p, gs), path_of(make(), p, gs)
    same({n: got[n] for n in "qk"}, {n: want[n] for n in "qk"}, 1e-6, 1e-6)
    same(got["head"], p["head"] - 0.1 * np.cumsum(gs["head"], 0), 1e-5, 1e-6)
    for codec, share in (("bf16", 0.7), ("int8", 0.5)):
        stored = gradtx.store(make(), {"mu": codec, "nu": codec}, min_size=1)
        assert gradtx.describe(stored, p).slot_bytes < share * gradtx.describe(make(), p).slot_bytes
        same(path_of(stored, p, gs), want, 0.1, 0.05)
    apart = gradtx.partition(groups, [("*/lora_a", "lora"), ("*", "rest")])
    with pytest.raises(ValueError, match=r"'k/lora_b' is left out, and belongs to 'k/lora_a'"):
        apart.init(p)


def ones(*shape):
    return jnp.ones(shape)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("options", "tree", "match"),
    [
        ({}, {"w": ones(2, 2)}, "no leaf is a factor of LoRA by its name: .* the leaves are w"),
        ({}, {"lora_a": ones(3, 2)}, "'lora_a' is a factor .* no other .* 'lora_b'"),
        ({}, {"l": {"lora_B": ones(3, 2)}}, "'l/lora_B' is a factor .*'l/lora_A'"),
        (
            {"roles": ByRole((("down", "lora_a"),))},
            {"down": ones(3, 2)},
            "'down' is a factor .* give their patterns by pairs",
        ),
        ({}, {"lora_a": ones(3, 2), "lora_b": ones(4, 2)}, "have the ranks 2 and 4"),
        ({}, {"lora_a": ones(3), "lora_b": ones(4, 2)}, "'lora_b' is a factor .*'lora_a'"),
        ({"pairs": ("a", "b")}, {"a": ones(3), "b": ones(4, 2)}, "'a', of .* fewer than two axes"),
        (
            {},
            {"lora_a": ones(4, 3, 2), "lora_b": ones(4, 2, 5)},
            "have the ranks 2 and 4 in 1 and 1 layers: say by roles=ByRole",
        ),
        ({}, {"lora_a": ones(2, 3, 2), "lora_b": ones(2, 2, 5)}, "may be those of stacked layers"),
        (
            {"roles": ByRole(stacked=(("lora_a", 1),))},
            {"lora_a": ones(4, 3, 2), "lora_b": ones(2, 5)},
            "in 4 and 1 layers",
        ),
        ({"pairs": ("*/a", "*/b")}, {"l": {"a": ones(3, 2)}}, r"'\*/b' matches no leaf"),
        ({"pairs": lambda tree: [("a", "b", "c")]}, {n: ones(2, 2) for n in "abc"}, "two leaves"),
    ],
)
def test_what_is_no_pair_is_refused_by_its_path(options, tree, match):
    for make in (gradtx.scale_by_lora_plus, gradtx.scale_by_lora_fa, gradtx.riemannian_lora):
        given = (0.1,) if make is gradtx.riemannian_lora else ()
        with pytest.raises(ValueError, match=match):
            tx = make(*given, **options)
            state = tx.init(tree)
            tx.update(tree, state, tree)


@pytest.mark.parametrize(("a", "b"), [((2, 2), (2, 3, 5)), ((5, 3, 2), (2, 5, 6))])
def test_factors_of_several_axes_are_taken_where_they_cannot_be_layers(a, b):
    """One has no axis to spare, or their first axes have other lengths."""
    tree = {"lora_a": ones(*a), "lora_b": ones(*b)}
    assert Factors("here", None, None).pairs(tree) == [("lora_a", "lora_b")]


@pytest.mark.slow
def test_singular_factors_take_finite_steps():
    """More ranks than inputs, and factors of zeros: PEFT's pseudoinverse, and no noise."""
    p = {"lora_a": ones(1, 3), "lora_b": jnp.zeros((3, 2))}
    for make in (gradtx.scale_by_lora_fa, gradtx.scale_by_riemannian_lora):
        tx = make(damping=1e-8)
        g = {"lora_a": ones(1, 3), "lora_b": ones(3, 2)}
        u, _ = tx.update(g, tx.init(p), p)
        assert bool(jnp.all(jnp.abs(u["lora_b"]) < 1.0))
        zero = jax.tree.map(jnp.zeros_like, p)
        for x in jax.tree.leaves(tx.update(zero, tx.init(zero), zero)[0]):
            np.testing.assert_array_equal(x, 0.0)


@pytest.mark.parametrize("name", OURS)
def test_roles_are_described(name):
    p = drawn(0, dtype=np.float32)
    found = gradtx.describe(OURS[name][0](), {**p, "strange": np.ones((2, 3, 4, 5))})
    assert {path: role.kind for path, role in found.roles.items()} == {
        f"{layer}/{n}": n for layer in "qk" for n in SHAPES
    }
    assert "q/lora_a: lora_a, rows (0,), columns (1,)" in str(found)


@pytest.mark.slow
def test_vectors_may_keep_the_rate_of_a():
    p = drawn(0, dtype=np.float32)
    for vectors, factor in ((True, 3.0), (False, 1.0)):
        tx = gradtx.scale_by_lora_plus(3.0, vectors=vectors)
        u, _ = tx.update(p, tx.init(p))
        np.testing.assert_allclose(u["norm"], factor * p["norm"], rtol=1e-6)
        np.testing.assert_array_equal(u["head"], p["head"])
        tx = gradtx.lora_plus(0.1, 3.0, vectors=vectors)
        u, _ = tx.update(p, tx.init(p), p)
        np.testing.assert_allclose(u["norm"], -0.1 * factor * np.sign(p["norm"]), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gradtx.scale_by_lora_fa, gradtx.scale_by_riemannian_lora])
def test_bfloat16_factors_take_the_steps_of_float32_rounded(make):
    """Products and inverses are those of float32, whatever the factors are kept in."""
    tx = make(damping=0.3)
    p, g = jax.tree.map(lambda x: jnp.asarray(x, jnp.bfloat16), (drawn(0), drawn(1)))
    got, _ = tx.update(g, tx.init(p), p)
    p, g = jax.tree.map(lambda x: x.astype(jnp.float32), (p, g))
    want, _ = tx.update(g, tx.init(p), p)
    assert {x.dtype for x in jax.tree.leaves(got)} == {jnp.dtype(jnp.bfloat16)}
    same(jax.tree.map(lambda x: np.asarray(x, np.float32), got), want, rtol=2**-8, atol=0)
