"""Roles of leaves: by default on the shapes of public models, by rules, where they are unclear."""

import inspect
import itertools
import pathlib
import re

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import gradtx
from gradtx import ByRole, Role
from tests.catalogue import CATALOGUE, optimizers

SHAPES = sorted((pathlib.Path(__file__).parents[1] / "golden" / "shapes").glob("*.txt"))


def spread(path):
    """The paths that ``layers.[0-3]`` stands for."""
    parts = re.split(r"\[(\d+)-(\d+)\]", path)
    ranges = [range(int(a), int(b) + 1) for a, b in zip(parts[1::3], parts[2::3], strict=True)]
    for numbers in itertools.product(*ranges):
        texts = itertools.chain.from_iterable(
            itertools.zip_longest(parts[::3], map(str, numbers), fillvalue="")
        )
        yield "".join(texts)


def role(kind, axes="||"):
    parts = (part.split(",") if part else () for part in axes.split("|"))
    return Role(kind, *(tuple(map(int, part)) for part in parts))


def read(file):
    """The options, the shapes and the roles of a model."""
    options, shapes, roles = {}, {}, {}
    for line in file.read_text().splitlines()[1:]:
        if line.startswith("# "):
            name, value = line[2:].split("=")
            if name == "stacked":
                value = ((value, 1),)
            if name == "rule":
                name, (where, given) = "rules", value.split(":")
                value = ((where, role(*given.split())),)
            options[name] = value
            continue
        path, shape, *said = line.split()
        for one in spread(path):
            shapes[one] = jax.ShapeDtypeStruct(tuple(map(int, shape.split(","))), jnp.float32)
            roles[one] = role(*said)
    return ByRole(**options), shapes, roles


@pytest.mark.parametrize("file", SHAPES, ids=lambda file: file.stem)
def test_every_leaf_of_a_public_model_has_the_right_role(file):
    by, shapes, roles = read(file)
    assert len(shapes) >= 10
    assert by.roles(shapes) == roles


def test_there_are_models_of_every_sort():
    assert len(SHAPES) >= 12
    kinds = {role.kind for file in SHAPES for role in read(file)[2].values()}
    assert kinds == {
        *("matrix", "convolution", "depthwise", "embedding", "head", "norm", "bias", "vector")
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss_20b", "vit_b16_scanned"])
def test_muon_takes_what_has_the_role(name):
    """Its dimension numbers are the roles' on the whole tree and on the part that it sees."""
    (file,) = (file for file in SHAPES if file.stem == name)
    by, shapes, roles = read(file)
    tx = gradtx.muon(0.1, muon_weight_dimension_numbers=by)
    state = jax.eval_shape(tx.init, shapes)
    chosen = {p for p, r in roles.items() if r.kind in ("matrix", "convolution")}
    muon = state.inner_states["muon"].inner_state[0].mu
    assert {p for p, slot in muon.items() if slot is not None} == chosen
    first = {p: x for p, x in shapes.items() if not re.search(r"[1-9]\d*\.", p)}
    updates, _ = jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), first)
    assert jax.tree.map(lambda x: x.shape, updates) == {p: x.shape for p, x in first.items()}


FAMILIES = [
    "adamuon",
    "apollo",
    "conda",
    "dion2",
    "dion3",
    "fira",
    "kl_shampoo",
    "kl_soap",
    "kron",
    "muon2",
    "muown",
    "normuon",
    "polargrad",
    "scion",
    "shampoo",
    "soap",
    "soap_muon",
    "splus",
]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_takes_what_has_the_role(name):
    (file,) = (file for file in SHAPES if file.stem == "vit_b16_scanned")
    by, shapes, roles = read(file)
    tx = getattr(gradtx, name)(0.1, weight_dimension_numbers=by)
    chosen = {p for p, r in roles.items() if r.kind in ("matrix", "convolution")}
    state = jax.eval_shape(tx.init, shapes)
    slots = jax.tree.leaves(
        state, is_leaf=lambda x: isinstance(x, dict) and shapes.keys() == x.keys()
    )
    held = [
        {p for p, x in slot.items() if x is not None} for slot in slots if isinstance(slot, dict)
    ]
    assert chosen in held
    assert "matrix" in str(gradtx.describe(tx, shapes))


def test_flax_and_equinox_have_opposite_conventions():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Embed(7, 4)(x)
            x = nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), x)
            return nn.Dense(3, name="head")(nn.relu(nn.Dense(8)(x)))

    flax = jax.eval_shape(Net().init, jax.random.key(0), jnp.zeros((1, 5), jnp.int32))["params"]
    found = ByRole().roles(flax)
    assert found["Dense_0/kernel"] == Role("matrix", (0,), (1,))
    assert found["MultiHeadDotProductAttention_0/query/kernel"] == Role("matrix", (0,), (1, 2))
    assert found["MultiHeadDotProductAttention_0/out/kernel"] == Role("matrix", (0, 1), (2,))
    assert found["head/kernel"].kind == "head"
    assert found["Embed_0/embedding"].kind == "embedding"
    assert found["LayerNorm_0/scale"].kind == "norm"

    mlp = eqx.filter_eval_shape(eqx.nn.MLP, 4, 3, 8, 2, key=jax.random.key(0))
    found = ByRole().roles(eqx.filter(mlp, lambda x: hasattr(x, "shape")))
    assert found["layers/0/weight"] == Role("matrix", (1,), (0,))
    assert found["layers/0/bias"].kind == "bias"


def found(shapes, **options):
    leaves = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes.items()}
    return list(ByRole(**options).roles(leaves).values())


@pytest.mark.parametrize("name", ["", "attn/"])
def test_heads_are_known_by_the_four_projections_of_an_attention(name):
    shapes = {f"{name}{n}/kernel": (32, 4, 8) for n in ("key", "query", "value")}
    shapes[f"{name}out/kernel"] = (4, 8, 32)
    key, out, query, value = found(shapes)  # by their paths
    assert key == query == value == Role("matrix", (0,), (1, 2))
    assert out == Role("matrix", (0, 1), (2,))
    layers = dict.fromkeys(shapes, (3, 32, 32))
    with pytest.raises(ValueError, match="may be stacked layers"):
        found(layers)
    assert found(layers, stacked=[("*", 1)]) == [Role("matrix", (1,), (2,), (0,))] * 4


@pytest.mark.parametrize(
    ("path", "shape", "stacked", "want"),
    [
        ("a/kernel", (3, 3, 64, 128), 0, Role("convolution", (0, 1, 2), (3,))),
        ("a/kernel", (6, 3, 3, 64, 128), 1, Role("convolution", (1, 2, 3), (4,), (0,))),
        ("a/weight", (6, 128, 64, 3, 3), 1, Role("convolution", (2, 3, 4), (1,), (0,))),
        ("conv/kernel", (4, 1, 128), 0, Role("depthwise", (0, 1), (2,))),
        ("conv/kernel", (3, 3, 1, 2), 0, Role("depthwise", (0, 1, 2), (3,))),
        ("conv/kernel", (3, 3, 1, 1), 0, Role("convolution", (0, 1, 2), (3,))),
        ("patch_embedding/weight", (768, 3, 16), 0, Role("convolution", (1, 2), (0,))),
        ("experts/kernel", (8, 64, 32), 0, Role("matrix", (1,), (2,), (0,))),
        ("experts/weight", (8, 32, 64), 0, Role("matrix", (2,), (1,), (0,))),
        ("norm/weight", (4,), 0, Role("norm")),
        ("norm/weight", (3, 4), 0, Role("matrix", (1,), (0,))),
        ("embeddings/weight", (4,), 0, Role("embedding")),
        ("embeddings/weight", (9, 4), 0, Role("embedding")),
        ("embeddings/kernel", (9, 4), 0, Role("matrix", (0,), (1,))),
    ],
)
def test_a_role_follows_from_name_and_shape(path, shape, stacked, want):
    layers = [(path, stacked)] if stacked else []
    assert found({path: shape}, stacked=layers) == [want]


TREE = {"a": {"weight": jnp.ones((3, 4))}, "b": {"weight": jnp.ones((3, 4))}}


def test_rules_go_before_the_default():
    def is_b(path, leaf):
        return path[0] == "b" and leaf.ndim == 2

    by = ByRole((("a", "embedding"), (is_b, Role("matrix", (0,), (1,)))))
    assert by.roles(TREE) == {"a/weight": Role("embedding"), "b/weight": Role("matrix", (0,), (1,))}
    numbers = by(TREE)
    assert numbers["a"]["weight"] is None
    assert numbers["b"]["weight"] == gradtx.MuonDimensionNumbers((0,), (1,))
    heads = ByRole((("b", "head"),), matrices=("matrix", "head"))
    assert heads(TREE)["b"]["weight"] == gradtx.MuonDimensionNumbers((1,), (0,))


@pytest.mark.parametrize(
    ("by", "tree", "match"),
    [
        (ByRole((("c", "head"),)), TREE, "'c' matches no leaf"),
        (ByRole(stacked=(("c", 1),)), TREE, "'c' matches no leaf"),
        (ByRole((("a", "head"), ("*/weight", "matrix"))), TREE, "'a/weight' is in the rules"),
        (ByRole((("a", "weights"),)), TREE, "none of the kinds"),
        (ByRole(), {"a": {"kernel": jnp.ones((2, 3, 4))}}, "'a/kernel', of shape .*stacked"),
        (ByRole(), {"query": {"kernel": jnp.ones((2, 64, 3, 4))}}, "'query/kernel', of .*stacked"),
        (ByRole(), {"a": {"matrix": jnp.ones((3, 4))}}, "'a/matrix', of shape .*what it is"),
    ],
)
def test_what_is_unclear_is_refused(by, tree, match):
    with pytest.raises(ValueError, match=match):
        by.roles(tree)
    with pytest.raises(ValueError, match=match):
        gradtx.muon(0.1, muon_weight_dimension_numbers=by).init(tree)


def test_describe_prints_the_roles():
    tree = {**TREE, "h": [{"lm_head": {"weight": jnp.ones((2, 3))}}] * 2}
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.muon(0.1, muon_weight_dimension_numbers=ByRole()))
    lines = str(gradtx.describe(tx, tree)).splitlines()
    assert lines[-3:] == [
        "a/weight: matrix, rows (1,), columns (0,), batch ()",
        "b/weight: matrix, rows (1,), columns (0,), batch ()",
        "h/*/lm_head/weight x 2: head, rows (1,), columns (0,), batch ()",
    ]


def test_roles_are_data():
    by = ByRole((("a", "embedding"), ("b", Role("matrix", (0,), (1,)))), "out_in")
    tx = gradtx.muon(0.1, muon_weight_dimension_numbers=by)
    again = gradtx.from_config(gradtx.to_config(tx))
    assert again.declaration.arguments["muon_weight_dimension_numbers"] == by
    assert jax.tree.structure(again.init(TREE)) == jax.tree.structure(tx.init(TREE))


LORA = [  # names, and shapes of A and B, with their rows and columns
    ("mlp/lora_a", "mlp/lora_b", (5, 2), (2, 4), (0,), (1,)),  # flax.nnx.LoRA, EasyDeL
    ("mlp/kernel_lora_a", "mlp/kernel_lora_b", (5, 2), (2, 4), (0,), (1,)),  # Qwix on Flax
    ("q/w_lora_a", "q/w_lora_b", (5, 2), (2, 4), (0,), (1,)),  # Qwix and Tunix
    ("dense/lora_kernel_a", "dense/lora_kernel_b", (5, 2), (2, 4), (0,), (1,)),  # Keras
    ("e/lora_embeddings_a", "e/lora_embeddings_b", (9, 2), (2, 4), (0,), (1,)),
    ("q/lora_a/kernel", "q/lora_b/kernel", (5, 2), (2, 4), (0,), (1,)),
    ("q/lora_A/weight/array", "q/lora_B/weight/array", (2, 5), (4, 2), (1,), (0,)),  # Levanter
    ("q/lora_A/default/weight", "q/lora_B/default/weight", (2, 5), (4, 2), (1,), (0,)),  # PEFT
    ("q.lora_A.weight", "q.lora_B.weight", (2, 5), (4, 2), (1,), (0,)),
    ("wte/lora_embedding_A", "wte/lora_embedding_B", (2, 9), (4, 2), (1,), (0,)),
    ("q/lora_down/weight", "q/lora_up/weight", (2, 5), (4, 2), (1,), (0,)),  # kohya-ss
]


@pytest.mark.parametrize(("a", "b", "shape_a", "shape_b", "rows", "columns"), LORA)
def test_factors_of_lora(a, b, shape_a, shape_b, rows, columns):
    """By the names of the common codes; beside them biases stay biases."""
    bias = f"{b}/bias"
    tree = {a: jnp.ones(shape_a), b: jnp.ones(shape_b), bias: jnp.ones(4)}
    found = ByRole().roles(tree)
    assert found == {
        a: Role("lora_a", rows, columns),
        b: Role("lora_b", rows, columns),
        bias: Role("bias"),
    }
    stacked = {path: jnp.ones((3, *x.shape)) for path, x in tree.items()}
    behind = tuple(tuple(axis + 1 for axis in axes) for axes in (rows, columns))
    found = ByRole(stacked=(("*", 1),)).roles(stacked)
    assert found[a] == Role("lora_a", *behind, (0,))
    assert found[b] == Role("lora_b", *behind, (0,))


@pytest.mark.parametrize(
    ("path", "shape", "convention", "role"),
    [
        ("q/lora_a", (2, 5), "out_in", Role("lora_a", (1,), (0,))),
        ("q/lora_B/weight", (2, 4), "in_out", Role("lora_b", (0,), (1,))),
        ("q/w_lora_b", (2, 3, 4), "auto", Role("lora_b", (0,), (1, 2))),
        ("o/w_lora_a", (3, 4, 2), "auto", Role("lora_a", (0, 1), (2,))),
        ("conv/lora_A/weight", (2, 5, 3, 3), "auto", Role("lora_a", (1, 2, 3), (0,))),
        ("conv/lora_B/weight", (4, 2, 1, 1), "auto", Role("lora_b", (1,), (0, 2, 3))),
        ("conv/lora_b/kernel", (1, 1, 2, 4), "auto", Role("lora_b", (2,), (0, 1, 3))),
        ("explora_b/kernel", (2, 4), "auto", Role("matrix", (0,), (1,))),
    ],
)
def test_axes_of_factors_of_lora(path, shape, convention, role):
    assert ByRole(convention=convention).roles({path: jnp.ones(shape)}) == {path: role}


def test_a_rule_with_a_role_says_which_factor_a_leaf_is():
    given = Role("lora_a", (1,), (0,))
    by, leaf = ByRole((("q/first", given), ("q/second", "lora_b"))), jnp.ones((2, 5))
    assert by.factors({"q": {"first": leaf, "second": leaf}}) == {
        "q/first": "lora_a",
        "q/second": "lora_b",
    }
    assert by.as_kind("q/first", leaf, "lora_a") == given


def test_what_lies_beside_factors_is_none():
    """A bias is known by its name, whatever its shape; layers are no axes of a leaf's own."""
    tree = {"bias": jnp.ones((3, 4)), "scale": jnp.ones((3, 4)), "kernel": jnp.ones((3, 2, 4))}
    assert ByRole(stacked=(("q/*", 1),)).factors({"q": {"lora_b": tree}}) == {
        "q/lora_b/kernel": "lora_b"
    }
    assert ByRole().factors({"q": {"lora_b": {"bias": None, "kernel": None}}}) == {
        "q/lora_b/kernel": "lora_b"
    }


def test_a_factor_is_a_matrix_where_its_module_would_be_one():
    """As before it was known for a factor: that of a head, or a table, has another optimizer."""
    tree = {
        "mlp/lora_a/kernel": jnp.ones((4, 2)),
        "head/lora_a": jnp.ones((4, 2)),
        "wte/lora_a": jnp.ones((4, 2)),
        "mlp/lora_b/bias": jnp.ones(2),
    }
    numbers = ByRole()(tree)
    assert numbers.pop("mlp/lora_a/kernel") == gradtx.MuonDimensionNumbers((0,), (1,))
    assert list(numbers.values()) == [None] * 3
    assert ByRole().roles({"q/lora_a/scale": jnp.ones(2)}) == {"q/lora_a/scale": Role("norm")}


ASKS = "weight_dimension_numbers"
OF_MATRICES = [
    name for name in optimizers() if ASKS in inspect.signature(getattr(gradtx, name)).parameters
]


@pytest.mark.parametrize("name", OF_MATRICES)
def test_a_rule_that_matches_no_leaf_is_refused_by_every_matrix_optimizer(name):
    """A misspelt rule would train the leaf as what its name says."""
    tx = gradtx.replace(CATALOGUE[name].make(), **{ASKS: ByRole(rules=(("haed", "head"),))})
    with pytest.raises(ValueError, match="the rule for 'haed' matches no leaf"):
        jax.eval_shape(tx.init, {"head": {"kernel": jnp.ones((4, 6))}})
