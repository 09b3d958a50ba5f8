"""The step inside of the backward pass against the ordinary one."""

# Sees mutants of: encoded, interpreter.

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType

import gradtx
from benchmarks.hlo import collectives
from gradtx.backward.layerwise import norm_for
from gradtx.composition.gate import reads_entries
from gradtx.composition.views import LeafByLeaf, SameGradients
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.memory import HOST
from gradtx.types import Key
from tests.catalogue import CATALOGUE, optimizers

pytestmark = pytest.mark.compiled

LAYERS, WIDTH = 4, 8


def parameters(dtype=jnp.float32):
    shapes = {
        "embed": (WIDTH, WIDTH),
        "head": (WIDTH, WIDTH),
        "layers": {
            "a": (LAYERS, WIDTH, 2 * WIDTH),
            "b": (LAYERS, 2 * WIDTH, WIDTH),
            "c": (LAYERS, WIDTH),
        },
    }
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    shapes, structure = jax.tree.flatten(shapes, is_leaf=is_shape)
    keys = jax.random.split(jax.random.key(0), len(shapes))
    pairs = zip(keys, shapes, strict=True)
    return structure.unflatten([0.3 * jax.random.normal(k, s).astype(dtype) for k, s in pairs])


def in_two_types():
    """The parameters, of which some outside and inside of the scan are in bfloat16."""
    params, narrow = parameters(), lambda x: x.astype(jnp.bfloat16)
    layers = {**params["layers"], "b": narrow(params["layers"]["b"])}
    return {**params, "head": narrow(params["head"]), "layers": layers}


def of_layers(layers):
    """The parameters with so many layers."""
    params = parameters()
    return {**params, "layers": jax.tree.map(lambda x: x[:layers], params["layers"])}


def batch(dtype=jnp.float32):
    x, y = jax.random.normal(jax.random.key(1), (2, 5, WIDTH))
    return x.astype(dtype), y.astype(dtype)


def layer(h, w):
    return h + jnp.tanh(h @ w["a"]) @ w["b"] + w["c"], None


def loss(params, x, y, *, body=layer):
    h, _ = jax.lax.scan(body, jnp.tanh(x @ params["embed"]), params["layers"])
    return jnp.mean((h @ params["head"] - y) ** 2)


def remat(params, x, y):
    return loss(params, x, y, body=jax.checkpoint(layer))


def trained(loss, tx, dtype=jnp.float32, steps=2, params=None, **options):
    params = parameters(dtype) if params is None else jax.tree.map(jnp.copy, params)
    step = gradtx.make_step(loss, tx, **options)
    state = step.init(params)
    for _ in range(steps):
        params, state, value = step(params, state, *batch(dtype))
    return params, state, value


# Of a later XLA the two programs take products and sums as one in other places.
SAME_BITS = jax.__version_info__ < (0, 11)


def is_rounded(a, b, most=4e-6):
    """Whether entries differ by 4 parts in a million of the largest, a unit of the type, or a code.

    Such are the roundings of two steps: of a difference of two gradients one part in a million.
    """
    dtype = a.dtype
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.max(abs(a - b), initial=0) <= max(most, jnp.finfo(dtype).eps) * np.max(abs(b))
    return np.max(abs(a - b), initial=0) <= 1


def assert_same(one, other, most=4e-6):
    """The same bits, or with a later JAX the same but for roundings."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for (path, a), b in zip(
        jax.tree_util.tree_flatten_with_path(one)[0], jax.tree.leaves(other), strict=True
    ):
        assert a.dtype == b.dtype
        same = bool(jnp.all(a == b)) or (not SAME_BITS and is_rounded(a, b, most))
        assert same, jax.tree_util.keystr(path)


def assert_bits(loss, tx, dtype=jnp.float32, **options):
    ordinary = trained(loss, tx, dtype, **options)
    assert_same(trained(loss, tx, dtype, inside=True, **options), ordinary)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("of", [loss, remat])
@pytest.mark.filterwarnings("ignore:make_step. the parameter")
def test_parameters_state_and_value_have_the_bits_of_the_ordinary_step(of, dtype):
    assert_bits(of, gradtx.adamw(1e-2), dtype)


@pytest.mark.slow
def test_a_schedule_counts_each_step_once():
    rate = gradtx.linear_schedule(1e-2, 0.0, 4)
    assert_bits(loss, gradtx.adamw(rate, mask=lambda p: jax.tree.map(lambda x: x.ndim > 2, p)))


def casting(params, x, y):
    """Parameters that are cast before the scan, whose carry is in bfloat16."""
    layers = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params["layers"])
    h, _ = jax.lax.scan(jax.checkpoint(layer), x.astype(jnp.bfloat16), layers)
    return jnp.mean((h.astype(jnp.float32) @ params["head"] @ params["embed"] - y) ** 2)


def two_scans(params, x, y):
    """One scan of some stacks in a compiled function, one in reverse of another, with sums."""

    @jax.jit
    def first(h, layers):
        body = lambda h, w: (jnp.tanh(h @ w["a"]) @ w["b"] * jnp.mean(params["head"]), jnp.sum(h))  # noqa: E731
        return jax.lax.scan(body, h, {"a": layers["a"], "b": layers["b"]})

    h, sums = first(x @ params["embed"], params["layers"])
    h, _ = jax.lax.scan(
        lambda h, w: (jnp.sin(h + w + params["head"][0]), None),
        h,
        params["layers"]["c"],
        reverse=True,
    )
    return jnp.mean((h @ params["embed"].T - y) ** 2) + 1e-3 * jnp.sum(sums)


def with_keys(params, x, y):
    """A carry with a random key, and other arrays that the scan reads."""

    def body(carry, given):
        h, key = carry
        w, scale = given
        key, now = jax.random.split(key)
        keep = jax.random.bernoulli(now, 0.8, h.shape)
        return (jnp.where(keep, layer(h, w)[0], h) * scale, key), None

    start = x @ params["embed"], jax.random.key(3)
    given = params["layers"], jnp.linspace(1.0, 1.2, LAYERS)
    (h, _), _ = jax.lax.scan(body, start, given)
    return jnp.mean((h @ params["head"] - y) ** 2)


def blocks(params, x, y):
    """Scans within a scan: the stacks are of blocks of layers."""

    def block(h, w):
        inner = jax.tree.map(lambda w: jnp.stack([w, 0.5 * w]), w)
        return jax.lax.scan(jax.checkpoint(layer), h, inner)

    h, _ = jax.lax.scan(block, x @ params["embed"], params["layers"])
    return jnp.mean((h @ params["head"] - y) ** 2)


def with_carries(params, x, y):
    """Of three carries the first counts, the second is set anew, and the third begins at zero."""

    def body(carry, w):
        turn, m, h = carry
        h = layer(h * m + m + 0.1 * x, w)[0] * (1.0 + 0.1 * y)
        return (turn + 1.0, jnp.cos(x), h), None

    start = 0.0, x @ params["embed"], jnp.zeros_like(x)
    (_, m, h), _ = jax.lax.scan(body, start, params["layers"])
    return jnp.mean((h @ params["head"] - y) ** 2) + jnp.sum(m)


@pytest.mark.slow
@pytest.mark.parametrize("of", [two_scans, with_keys, blocks, casting, with_carries])
def test_scans_of_many_kinds_are_found_in_the_loss(of):
    assert_bits(of, gradtx.sgd(0.1, momentum=0.9))


def named(h, w):
    hidden = checkpoint_name(jnp.tanh(h @ w["a"]), "hidden")
    return h + hidden @ w["b"] + w["c"], None


POLICIES = {
    "all": jax.checkpoint_policies.everything_saveable,
    "none": jax.checkpoint_policies.nothing_saveable,
    "products": jax.checkpoint_policies.dots_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("hidden"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_of_checkpoint_is_kept(name):
    """Around the body or inside of it: the bits, and as many products in the derivative's loop."""
    tx = gradtx.adam(1e-2)
    bodies = [
        jax.checkpoint(named, policy=POLICIES[name]),
        lambda h, w: (jax.checkpoint(named, policy=POLICIES[name])(h, w)[0] * 1.5, None),
    ]
    for body in bodies:

        def of(params, x, y, body=body):
            return loss(params, x, y, body=body)

        assert_bits(of, tx)
    products = []
    for inside in (None, True):

        def step(params, state, x, y, inside=inside):
            return gradtx.minimize(of, tx, params, state, x, y, inside=inside)

        text = jax.jit(step).lower(parameters(), tx.init(parameters()), *batch()).compile()
        products.append(text.as_text().count(" dot("))
    assert products[0] == products[1]


@pytest.mark.slow
def test_what_else_the_loss_returns_is_returned():
    def with_aux(params, x, y):
        value = loss(params, x, y)
        return value, {"twice": 2 * value}

    assert_bits(with_aux, gradtx.sgd(0.1), has_aux=True)


@pytest.mark.slow
def test_leaves_that_are_not_trained_stay():
    assert_bits(loss, gradtx.adam(1e-2), trainable="layers/*")
    assert_bits(loss, gradtx.sgd(0.1), trainable=("layers/a", "head"))
    ordinary = trained(loss, gradtx.sgd(0.1), trainable=("layers/*", "head"))
    chosen = trained(loss, gradtx.sgd(0.1), trainable=("layers/*", "head"), inside="layers/b")
    assert_same(chosen, ordinary)


@pytest.mark.slow
def test_leaves_are_chosen_by_patterns():
    tx = gradtx.sgd(0.1)
    step = gradtx.make_step(loss, tx, inside="layers/a")
    plan = step.inside(parameters(), *batch())
    assert dict(plan.inside) == {"layers/a": LAYERS}
    assert plan.outside["layers/b"] == "it is not chosen"
    assert_same(trained(loss, tx, inside="layers/a"), trained(loss, tx))


@pytest.mark.slow
def test_a_plan_says_what_is_inside_and_why_the_others_are_not():
    plan = gradtx.make_step(loss, gradtx.sgd(0.1), inside=True).inside(parameters(), *batch())
    assert dict(plan.inside) == dict.fromkeys(("layers/a", "layers/b", "layers/c"), LAYERS)
    assert plan.bytes == 4 * (LAYERS - 1) * (2 * 2 * WIDTH**2 + WIDTH)
    assert set(plan.outside) == {"embed", "head"}
    assert "dot_general" in plan.outside["embed"]
    assert "ordinary step" in str(plan)


@pytest.mark.slow
def test_a_leaf_that_is_read_elsewhere_is_refused_by_name_or_gets_its_gradient_in_full():
    def twice(params, x, y):
        return loss(params, x, y) + jnp.sum(params["layers"]["c"] ** 2)

    with pytest.raises(ValueError, match="'layers/c' cannot be updated inside: it is read more"):
        trained(twice, gradtx.sgd(0.1), inside="layers/c")
    assert_bits(twice, gradtx.sgd(0.1))


@pytest.mark.slow
def test_a_loss_without_a_scan_is_refused():
    with pytest.raises(ValueError, match="no scan of the loss .*embed: it is read by dot_general"):
        trained(lambda p, x, y: jnp.mean((x @ p["embed"] - y) ** 2), gradtx.sgd(0.1), inside=True)


class OneDraw(NamedTuple):
    rng_key: Key


def one_draw():
    return gradtx.elementwise(
        OneDraw,
        None,
        lambda g, s, t: (g * jax.random.uniform(s.rng_key), {}),
        start={"rng_key": jax.random.key(0)},
    )


@gradtx.transformation
def one_draw_for_all():
    """Gradients times one random number for each leaf, which the layers of a stack share."""
    return one_draw()


@gradtx.transformation
def _hidden():
    return one_draw()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("tx", "name"),
    [
        (gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adam(1e-2)), "clip_by_global_norm"),
        (gradtx.apply_if_finite(gradtx.sgd(0.1), 3), "apply_if_finite"),
        (gradtx.lamb(1e-2), "scale_by_lamb"),
        (gradtx.chain(gradtx.trace(0.9), gradtx.clip_by_norm(1.0)), "clip_by_norm"),
        (gradtx.chain(one_draw_for_all(), gradtx.sgd(0.1)), "one_draw_for_all"),
        (gradtx.guard(gradtx.sgd(0.1)), "guard"),
        (gradtx.cautious(gradtx.adam(1e-2)), "cautious"),
    ],
)
def test_what_needs_all_layers_is_refused_by_name(tx, name):
    with pytest.raises(ValueError, match=f"inside: {name} cannot run on one layer at a time"):
        trained(loss, tx, inside=True, steps=1)


def at_each(x, numbers):
    return numbers.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)) * x


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("f", "why"),
    [
        (
            lambda x: x * jax.lax.broadcasted_iota(x.dtype, (len(x), *[1] * (x.ndim - 1)), 0),
            "mul with numbers that differ between layers",
        ),
        (
            lambda x: at_each(*jax.device_put((x, jnp.arange(len(x))))),
            "mul with numbers that differ between layers",
        ),
        (lambda x: jnp.concatenate([2 * x[:1], x[1:]]), "a slice of some of the layers"),
        (lambda x: x - jnp.zeros_like(x).at[:-1].set(1.0), "sub with numbers that differ"),
        (lambda x: jnp.concatenate([x[1:], 0 * x[:1]]), "a slice of some of the layers"),
        (lambda x: jnp.stack([2 * jnp.unstack(x)[0], *jnp.unstack(x)[1:]]), "(unstack|split)"),
    ],
)
def test_what_computes_layers_unlike_each_other_is_refused(f, why):
    tx = gradtx.chain(gradtx.stateless_with_tree_map(lambda g, p: f(g)), gradtx.sgd(0.1))
    step = gradtx.make_step(loss, tx, inside=True)
    with pytest.raises(ValueError, match=f"stateless_with_tree_map cannot run on one .*: {why}"):
        step(parameters(), step.init(parameters()), *batch())


@pytest.mark.quick(1)
@pytest.mark.parametrize(("layers", "parts"), [(4, 4), (2, 2), (4, 8)])
def test_parts_that_happen_to_be_layers_are_refused(layers, parts):
    """A leaf is cut into so many parts, whatever the number of layers."""

    def signs(g, p):
        mean = jnp.mean(jnp.abs(g.reshape(parts, -1)), axis=1, keepdims=True)
        return (mean * jnp.sign(g.reshape(parts, -1))).reshape(g.shape)

    tx = gradtx.chain(gradtx.stateless_with_tree_map(signs), gradtx.sgd(0.1))
    with pytest.raises(ValueError, match="stateless_with_tree_map cannot run on one .*: reshape"):
        trained(loss, tx, params=of_layers(layers), inside=True, steps=1)


FORMULA = "its formula for a stack depends on the number of layers"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layers", "f", "why"),
    [
        (2, lambda x: x * (1 + len(x) % 2), FORMULA),
        (4, lambda x: x * (1 + len(x) % 2), FORMULA),
        (4, lambda x: x / len(x), FORMULA),
        (4, lambda x: x * (1 + (len(x) > 2)), FORMULA),
        (4, lambda x: jax.lax.fori_loop(0, len(x), lambda i, x: 0.9 * x, x), FORMULA),
        (4, lambda x: x ** len(x), FORMULA),
        (2, lambda x: x * jnp.sum(x), "reduce_sum"),
    ],
)
def test_what_depends_on_the_number_of_layers_is_refused(layers, f, why):
    tx = gradtx.chain(gradtx.stateless_with_tree_map(lambda g, p: f(g)), gradtx.sgd(0.1))
    with pytest.raises(ValueError, match=f"stateless_with_tree_map cannot run on one .*: {why}"):
        trained(loss, tx, params=of_layers(layers), inside=True, steps=1)


def test_what_has_no_public_name_is_named_by_what_it_is_in():
    tx = gradtx.chain(gradtx.accumulate(_hidden(), 2), gradtx.sgd(0.1))
    with pytest.raises(ValueError, match=r"inside: accumulate cannot run .*random numbers that"):
        trained(loss, tx, inside=True, steps=1)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("tx", "instead"),
    [
        (gradtx.guard(gradtx.sgd(0.1)), "conditionally_mask skips a step by the value of the loss"),
        (gradtx.apply_if_finite(gradtx.sgd(0.1), 3), "conditionally_mask skips a step by"),
        (gradtx.cautious(gradtx.adam(1e-2)), "cautious(..., rescale=False) does"),
    ],
)
def test_a_refusal_says_what_to_use_instead(tx, instead):
    plan = gradtx.make_step(loss, tx, inside=True).inside(parameters(), *batch())
    assert instead in plan.refused


@pytest.mark.slow
@pytest.mark.parametrize("limit", [jnp.inf, 0.0], ids=["taken", "skipped"])
def test_a_step_is_skipped_by_the_value_of_the_loss(limit):
    """The loss is known before the backward pass, so that each layer decides as all do."""
    tx = gradtx.conditionally_mask(
        gradtx.adamw(1e-2),
        lambda step, *, value, **_: value < limit,
        forward_extra_args=True,
    )
    assert_bits(loss, tx)
    params, state, _ = trained(loss, tx, inside=True)
    if not limit:
        assert_same((params, state.inner_state), (parameters(), tx.init(params).inner_state))


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["int4_dithered", "bf16"])
def test_random_keys_stay_where_a_step_is_not_taken(codec):
    """Dithered codes can only be read with the key with which they were written."""
    tx = gradtx.accumulate(gradtx.store(gradtx.adam(1e-2), codec, min_size=1), 2)
    ordinary = trained(loss, tx, steps=3)
    one = trained(loss, tx, steps=3, inside=True)
    assert_same(one, ordinary)
    twice = trained(loss, tx, steps=2, inside=True)
    for name in ("mu", "nu"):
        kept, before = (gradtx.get_slot(state, name) for _, state, _ in (one, twice))
        assert_same(kept, before)


@pytest.mark.slow
def test_the_mask_of_cautious_alone_has_the_bits_of_the_ordinary_step():
    assert_bits(loss, gradtx.cautious(gradtx.adam(1e-2), rescale=False))


def wide(params):
    """Stacks that are large enough for statistics, and whose gradients are zero."""
    h, _ = jax.lax.scan(lambda h, w: (h + 0.0 * jnp.sum(w["a"] + w["b"]), None), 0.0, params["l"])
    return h + 0.0 * jnp.sum(params["out"])


def drawn(tx, params, inside=True, steps=1):
    step = gradtx.make_step(wide, tx, inside=inside, donate=False)
    state = step.init(params)
    for _ in range(steps):
        params, state, _ = step(params, state)
    return params, state


def stacks(value=0.0, dtype=jnp.float32, size=4000):
    a = jnp.full((LAYERS, size), value, dtype)
    return {"l": {"a": a, "b": a}, "out": a}


def assert_independent(samples):
    """Samples of deviation 1, in rows: no row is like another; bounds of five deviations."""
    rows = np.concatenate([np.asarray(x, np.float64) for x in jax.tree.leaves(samples)])
    n = rows.shape[1]
    assert np.max(np.abs(rows.mean(1))) < 5 / n**0.5
    assert np.max(np.abs(rows @ rows.T / n - np.eye(len(rows)))) < 5 * (2 / n) ** 0.5


@pytest.mark.slow
def test_noise_is_drawn_for_each_layer_by_itself():
    tx, params = gradtx.add_noise(1.0, 0.0, 3), stacks()
    new, state = drawn(tx, params)
    again, _ = drawn(tx, params)
    assert_same(again, new)
    later, _ = drawn(tx, params, steps=2)
    assert_independent([new, jax.tree.map(jnp.subtract, later, new)])
    _, ordinary = drawn(tx, params, inside=None)
    assert_same(state, ordinary)  # the count and the key of the next step


@pytest.mark.slow
def test_parameters_are_rounded_at_random_in_each_layer_by_itself():
    tx = gradtx.stochastic_rounding(gradtx.chain(gradtx.add_decayed_weights(1.0), gradtx.sgd(2e-3)))
    new, state = drawn(tx, stacks(1.0, jnp.bfloat16))
    below, share = 1 - 2.0**-8, 2e-3 * 2**8  # the next number below 1, and how often it is reached
    hits = jax.tree.map(lambda x: np.asarray(x, np.float64) == below, new)
    ones = jax.tree.map(lambda x: np.asarray(x, np.float64) == 1, new)
    assert all(np.all(a ^ b) for a, b in zip(*map(jax.tree.leaves, (hits, ones)), strict=True))
    assert_independent(jax.tree.map(lambda x: (x - share) / (share * (1 - share)) ** 0.5, hits))
    assert_same(state, drawn(tx, stacks(1.0, jnp.bfloat16), inside=None)[1])


DRAWN_CODECS = {
    "dithered": gradtx.Codec("int4_dithered"),
    "dithered, padded": gradtx.Codec("int4_dithered", block=6, axis=-1),
    "random": gradtx.Codec("int8", rounding="stochastic"),
    "random scales": gradtx.Codec("int8_companded"),
    "random, without blocks": gradtx.Codec("bf16", rounding="stochastic"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN_CODECS)
def test_codes_of_a_layer_have_the_random_numbers_that_they_have_in_the_stack(name):
    """After steps that read what was drawn, and of a stack whose rows differ from its layers."""
    tx = gradtx.store(gradtx.adamw(1e-2), DRAWN_CODECS[name], min_size=0)
    assert_bits(loss, tx, params=of_layers(2), steps=3)


ALLOWED = [
    *("acprop", "adabelief", "adabound", "adadelta", "adagrad", "adagrad_da", "adagrad_decay"),
    *("adam", "adamax", "adamaxw", "adamw", "adan", "ademamix", "adopt", "amsgrad", "asgd"),
    *("cocob", "diffgrad", "ftrl", "laprop", "lion", "madgrad", "mars_adamw", "nadam"),
    *("nadamw", "optimistic_adam", "optimistic_adam_v2", "optimistic_gradient_descent"),
    *(
        "proximal_adagrad",
        "proximal_gradient_descent",
        "qhadam",
        "radam",
        "rmsprop",
        "rowwise_adagrad",
    ),
    *("rowwise_adam", "rprop", "schedule_free_adamw", "schedule_free_sgd", "sgd", "sign_sgd"),
    *(
        "signum",
        "simplified_ademamix",
        "tiger",
        "yogi",
    ),
]
# In float32 a CPU sums a row in another order, or does not compute a product and a sum as one.
ROUNDED = ("adagrad_decay", "rowwise_adagrad", "rowwise_adam")
DRAWN = ("noisy_sgd",)  # its noise is another


def is_allowed(name):
    return name in ALLOWED or reads_entries(CATALOGUE[name].made)


EACH = sorted({*optimizers(), *ALLOWED} - {*DRAWN})
ALL_ALLOWED = [name for name in EACH if is_allowed(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*EACH} - {*ALL_ALLOWED}))
def test_each_other_optimizer_is_refused_by_name(name):
    with pytest.raises(ValueError, match=r"^inside: \w+ cannot run on one layer at a time"):
        trained(loss, CATALOGUE[name].make(), inside=True, steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALL_ALLOWED if name not in ROUNDED])
@pytest.mark.filterwarnings("ignore:make_step. the parameter")
def test_each_allowed_optimizer_has_the_bits_of_the_ordinary_step(name):
    assert_bits(loss, CATALOGUE[name].make(), params=in_two_types())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.filterwarnings("ignore:make_step. the parameter")
def test_an_optimizer_whose_sums_are_in_another_order_differs_by_rounding(name, dtype):
    """In bfloat16 not even by that."""
    tx = CATALOGUE[name].make()
    one, other = trained(loss, tx, dtype, inside=True), trained(loss, tx, dtype)
    if dtype != jnp.float32:
        assert_same(one, other)
        return
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        within = bool(jnp.max(jnp.abs(a - b)) <= 2e-7 * jnp.max(jnp.abs(b)))
        assert within or (not SAME_BITS and is_rounded(a, b))


@pytest.mark.slow
def test_each_layer_of_a_stack_is_clipped_by_its_own_norm():
    clip = gradtx.chain(
        gradtx.masked(gradtx.clip_by_norm(1e-3, stacked=True), "layers"),
        gradtx.masked(gradtx.clip_by_norm(1e-3), lambda path, _: not path.startswith("layers")),
    )
    assert_bits(loss, gradtx.chain(clip, gradtx.sgd(0.1)))
    step = gradtx.make_step(loss, clip, inside=True)
    assert step.inside(parameters(), *batch()).refused is None


CLIPPED = {
    "two passes": (
        lambda c: gradtx.clip_by_global_norm(c, two_pass=True),
        gradtx.clip_by_global_norm,
    ),
    "the last step's": (gradtx.clip_by_last_norm, gradtx.clip_by_last_norm),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n == "two passes" else pytest.param(n, marks=pytest.mark.slow) for n in CLIPPED]
)
def test_clipping_by_the_norm_of_all_gradients(name):
    """To rounding: squares are summed layer by layer. A limit that is not reached: to bits."""
    ours, ordinary = CLIPPED[name]
    for limit in (0.02, 1e9):
        tx = gradtx.chain(ours(limit), gradtx.sgd(0.1, momentum=0.9))
        twin = gradtx.chain(ordinary(limit), gradtx.sgd(0.1, momentum=0.9))
        one, other = trained(loss, tx, inside=True, steps=3), trained(loss, twin, steps=3)
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            close = 1e-6 * jnp.max(jnp.abs(b)) if limit < 1 or b.ndim == 0 else 0
            assert bool(jnp.max(jnp.abs(a - b)) <= close)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.parametrize("scale", [1e20, 1e-25])
def test_a_norm_whose_square_is_no_number_clips_as_in_the_ordinary_step(name, scale):
    def scaled(params, x, y):
        return scale * loss(params, x, y)

    tx = gradtx.chain(CLIPPED[name][0](1e-2 * min(scale, 1)), gradtx.sgd(0.1 / min(scale, 1)))
    one, other = trained(scaled, tx, inside=True), trained(scaled, tx)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6 * np.max(np.abs(b)))
    assert not bool(jnp.all(one[0]["head"] == parameters()["head"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIPPED)
def test_a_norm_of_all_gradients_takes_no_memory_for_them(name):
    """Over 40 layers of 256 kB the ordinary step holds all gradients, the step inside about six."""
    p = {"a": jax.ShapeDtypeStruct((40, 128, 256), jnp.float32)}
    p["b"] = jax.ShapeDtypeStruct((40, 256, 128), jnp.float32)
    x = jax.ShapeDtypeStruct((4, 128), jnp.float32)

    def of(params, x):
        turn = jax.checkpoint(lambda h, w: (h + jnp.tanh(h @ w["a"]) @ w["b"], None))
        return jnp.mean(jax.lax.scan(turn, x, params)[0] ** 2)

    held = []
    for inside, make in zip((True, None), CLIPPED[name], strict=True):
        tx = gradtx.chain(make(1.0), gradtx.adamw(1e-3))
        step = gradtx.make_step(of, tx, inside=inside)
        compiled = step.lower(p, jax.eval_shape(tx.init, p), x).compile()
        held.append(compiled.memory_analysis().temp_size_in_bytes)
    gradients = 40 * 2 * 128 * 256 * 4
    assert held[0] < 0.2 * gradients < gradients < held[1]


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.chain(gradtx.trace(0.9), gradtx.clip_by_last_norm(1.0)),
        gradtx.masked(gradtx.clip_by_global_norm(1.0, two_pass=True), "layers"),
    ],
    ids=["second", "masked"],
)
def test_a_norm_of_other_than_all_gradients_is_refused(tx):
    with pytest.raises(
        ValueError, match=r"clips by the norm of the gradients of all leaves.*first"
    ):
        trained(loss, tx, inside=True, steps=1)


@gradtx.optimizer
def clipped_first(clip):
    return gradtx.chain(clip, gradtx.sgd(0.1))


@gradtx.optimizer
def renamed(inner):
    return inner


def by_hand(inner, *facets):
    return GradientTransformation(inner.init, inner.update, inner=(inner,), facets=facets)


CLIP = gradtx.clip_by_global_norm(0.02, two_pass=True)


@pytest.mark.parametrize(
    "tx",
    [
        clipped_first(CLIP),
        gradtx.store(clipped_first(CLIP)),
        renamed(CLIP),
        renamed(clipped_first(renamed(CLIP))),
        gradtx.static(CLIP),
        by_hand(CLIP, SameGradients()),
    ],
)
def test_what_hands_the_gradients_of_all_leaves_on(tx):
    assert norm_for(tx) == {"update"}


@pytest.mark.parametrize(
    "tx",
    [gradtx.chain(CLIP, CLIP), clipped_first(gradtx.masked(CLIP, "layers")), by_hand(CLIP)],
)
def test_what_may_not_hand_the_gradients_of_all_leaves_on(tx):
    with pytest.raises(ValueError, match="clip_by_global_norm clips by the norm .* of all leaves"):
        norm_for(tx)


@pytest.mark.slow
def test_a_user_s_optimizer_may_begin_with_the_norm_of_all_gradients():
    tx, twin = (
        clipped_first(gradtx.clip_by_global_norm(0.02, two_pass=on)) for on in (True, False)
    )
    one, other = trained(loss, tx, inside=True, steps=2), trained(loss, twin, steps=2)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert bool(jnp.max(jnp.abs(a - b)) <= 1e-6 * jnp.max(jnp.abs(b)))


def test_the_plan_says_which_part_of_the_optimizer_needs_all_layers():
    tx = gradtx.chain(gradtx.clip_by_norm(1.0), gradtx.adam(1e-2))
    plan = gradtx.make_step(loss, tx, inside=True).inside(parameters(), *batch())
    assert "clip_by_norm cannot run on one layer" in plan.refused
    assert "stacked=True" in plan.refused
    assert plan.refused in str(plan)


def steps_from(params, state, tx, inside, steps):
    step = gradtx.make_step(loss, tx, inside=inside)
    for _ in range(steps):
        params, state, value = step(params, state, *batch())
    return params, state, value


RESUMED = {
    "adamw": gradtx.adamw(gradtx.linear_schedule(1e-2, 0.0, 8)),
    "codes": gradtx.store(
        gradtx.adamw(1e-2), gradtx.Codec("int8", rounding="stochastic"), min_size=0
    ),
    "noise": gradtx.chain(gradtx.add_noise(0.1, 0.5, 3), gradtx.sgd(0.1, momentum=0.9)),
    "accumulate": gradtx.accumulate(gradtx.sgd(0.1, momentum=0.9), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_that_is_saved_and_resumed_takes_the_same_steps(name, tmp_path):
    tx, path = RESUMED[name], str(tmp_path / "run.npz")
    want = steps_from(parameters(), tx.init(parameters()), tx, True, 4)
    params, state, _ = steps_from(parameters(), tx.init(parameters()), tx, True, 2)
    gradtx.save_checkpoint(path, params, state, tx, step=2)
    del params, state
    run = gradtx.load_checkpoint(path, params=parameters())
    assert_same(steps_from(run.params, run.state, run.tx, True, 2), want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "accumulate"])
@pytest.mark.parametrize("first", [None, True])
def test_a_state_dict_goes_on_inside_and_outside(name, first):
    tx = RESUMED[name]
    want = steps_from(parameters(), tx.init(parameters()), tx, None, 4)
    params, state, _ = steps_from(parameters(), tx.init(parameters()), tx, first, 2)
    state = gradtx.load_state_dict(tx, params, gradtx.state_dict(state, tx))
    assert_same(steps_from(params, state, tx, None if first else True, 2), want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["codes", "noise"])
def test_a_state_with_random_numbers_has_the_form_and_the_keys_of_the_ordinary_one(name):
    tx = RESUMED[name]
    given = [steps_from(parameters(), tx.init(parameters()), tx, x, 2)[1] for x in (None, True)]
    one, other = (gradtx.state_dict(state, tx) for state in given)
    one.pop("gradtx"), other.pop("gradtx")  # the header has sums of the arrays
    assert one.keys() == other.keys()
    keys = [path for path in one if "key" in path]
    assert keys
    for path, x in one.items():
        assert (x.shape, x.dtype) == (other[path].shape, other[path].dtype)
        assert path not in keys or np.array_equal(x, other[path])


def kinds_of_memory(tree):
    return [x.sharding.memory_kind for x in jax.tree.leaves(tree)]


OFFLOADED = {
    "adamw": lambda: gradtx.adamw(1e-2),
    "bf16": lambda: gradtx.store(gradtx.adamw(1e-2), "bf16", min_size=0),
    "int8": lambda: gradtx.store(gradtx.adamw(1e-2), min_size=0),
}


@pytest.mark.slow
@pytest.mark.usefixtures("host_memory")
@pytest.mark.parametrize(
    "name", [n if n == "adamw" else pytest.param(n, marks=pytest.mark.slow) for n in OFFLOADED]
)
@pytest.mark.parametrize("min_size", [16, pytest.param(200, marks=pytest.mark.slow)])
def test_slots_on_the_host_stay_there_and_come_in_layer_by_layer(name, min_size):
    """With 200 the stacks are on the host, though a single layer of them would not be."""
    make = OFFLOADED[name]
    tx = gradtx.offload(make(), min_size=min_size)
    want = jax.device_get(trained(loss, make()))
    params, state, value = trained(loss, tx, inside=True)
    assert kinds_of_memory(state) == kinds_of_memory(tx.init(parameters()))
    assert "pinned_host" in kinds_of_memory(state)
    assert_same(jax.device_get((params, state.inner_state, value)), want)


def test_slots_that_are_on_the_host_by_the_program_alone_are_there_in_the_loop():
    """What is compiled ahead is not told where its arguments lie."""
    tx = gradtx.offload(gradtx.adamw(1e-2), min_size=64)

    def step(params, state):
        return gradtx.minimize(loss, tx, params, state, *batch(), inside=True)

    params = parameters()
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, tx.init(params))
    )
    program = jax.make_jaxpr(step)(*shapes)
    loops = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "scan"]
    on_host = [[v.aval.memory_space == HOST for v in eqn.invars] for eqn in loops]
    assert [sum(each) for each in on_host] == [0, 4]


def test_the_plan_says_what_the_link_to_the_host_carries():
    """Of the stacks a and b, with 128 entries a layer; those of c are too few to be on the host."""
    params = parameters()
    for tx, bytes_of_a_layer in [
        (gradtx.adamw(1e-2), 0),
        (gradtx.offload(gradtx.adamw(1e-2), min_size=64), 2 * 2 * 128 * 4),
        (gradtx.chain(gradtx.clip(1.0), gradtx.offload(OFFLOADED["bf16"](), min_size=64)), 1024),
    ]:
        plan = gradtx.make_step(loss, tx, inside=True).inside(params, *batch())
        assert plan.host_bytes == bytes_of_a_layer
        line = f"{bytes_of_a_layer:,} bytes of slots come from the host at each layer"
        assert (line in str(plan)) == bool(bytes_of_a_layer)


def test_the_plan_counts_the_scan_that_brings_most_from_the_host():
    tx = gradtx.offload(gradtx.adamw(1e-2), min_size=16)
    plan = gradtx.make_step(two_scans, tx, inside=True).inside(parameters(), *batch())
    assert plan.inside == {"layers/a": LAYERS, "layers/b": LAYERS, "layers/c": LAYERS}
    assert plan.host_bytes == 2 * 2 * 128 * 4


@pytest.mark.slow
def test_codes_of_a_layer_are_those_of_the_stack():
    assert_bits(loss, gradtx.store(gradtx.adamw(1e-2), min_size=0))


@pytest.mark.slow
def test_sums_of_gradients_and_what_rounding_lost_are_slots():
    assert_bits(loss, gradtx.accumulate(gradtx.sgd(0.1), 2))
    assert_bits(loss, gradtx.compensated(gradtx.sgd(0.1)), jnp.bfloat16)


@pytest.mark.slow
def test_matrices_whose_batch_is_the_layers_are_allowed():
    """To rounding: on a CPU a product of a batch is computed by another routine than of one."""

    def numbers(params):
        two = gradtx.MuonDimensionNumbers(0, 1)
        stacked = gradtx.MuonDimensionNumbers(1, 2)
        return {"embed": two, "head": None, "layers": {"a": stacked, "b": stacked, "c": None}}

    tx = gradtx.muon(1e-2, muon_weight_dimension_numbers=numbers)
    pairs = zip(
        jax.tree.leaves(trained(loss, tx, inside=True)),
        jax.tree.leaves(trained(loss, tx)),
        strict=True,
    )
    for a, b in pairs:
        assert bool(jnp.allclose(a, b, rtol=1e-4, atol=1e-6))
    with pytest.raises(ValueError, match="scale_by_muon cannot run on one layer"):
        trained(loss, gradtx.muon(1e-2), inside=True)  # the stack of "c" is taken for a matrix


def sharded(tx, stacks, kind=AxisType.Auto, **options):
    """Steps with and without inside on eight devices, and the messages of each."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    place = lambda *spec: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))  # noqa: E731
    # Two leaves of two shapes outside: a single one would be divided by the bias correction in
    # another way, as docs/inside.md says.
    shapes = {"embed": (64, 64), "head": (64, 32), "layers": {"a": (8, 64, 256), "b": (8, 256, 64)}}
    places = {
        "embed": place("d"),
        "head": place("d"),
        "layers": dict.fromkeys("ab", place(*stacks)),
    }

    def of(params, x, y):
        def whole(tree):  # on explicit axes the loss says where it gathers parameters
            return tree if kind is AxisType.Auto else jax.sharding.reshard(tree, place())

        def turn(h, w):
            w = whole(w)
            return h + jnp.tanh(h @ w["a"]) @ w["b"], None

        h, _ = jax.lax.scan(jax.checkpoint(turn), x @ whole(params["embed"]), params["layers"])
        return jnp.mean((h @ whole(params["head"]) - y) ** 2)

    def start():
        made = jax.tree.map(
            lambda s: 0.1 * jax.random.normal(jax.random.key(s[-1]), s),
            shapes,
            is_leaf=lambda s: isinstance(s, tuple),
        )
        return jax.device_put(made, places)

    x, y = jax.random.normal(jax.random.key(1), (2, 32, 64))
    xs = jax.device_put((x, y[:, :32]), place())
    sharding = gradtx.state_sharding(tx, start(), **options)
    found = []
    for inside in (None, True):
        step = gradtx.make_step(of, tx, sharding=sharding, inside=inside)
        params = start()
        state = step.init(params)
        compiled = step.lower(params, state, *xs).compile()
        for _ in range(2):
            params, state, value = compiled(step.tx, params, state, xs, None)
        kept = jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), params, places)
        assert all(jax.tree.leaves(kept))
        found.append(((params, state, value), collectives(compiled.as_text())))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(
    "tx", [gradtx.sgd(0.1, momentum=0.9), gradtx.adamw(1e-2)], ids=["momentum", "adamw"]
)
def test_a_sharded_step_has_the_bits_and_the_messages_of_the_ordinary_one(tx, kind):
    (ordinary, of_ordinary), (new, messages) = sharded(tx, (None, "d"), kind)
    assert_same(new, ordinary)
    assert len(messages) <= len(of_ordinary), (messages, of_ordinary)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_ALLOWED)
def test_each_allowed_optimizer_on_a_sharding_has_the_bits_of_the_ordinary_step(name):
    """Squares of rows are summed over devices in another order: these differ by rounding."""
    (ordinary, of_ordinary), (new, messages) = sharded(CATALOGUE[name].make(), (None, "d"))
    assert len(messages) <= len(of_ordinary), (messages, of_ordinary)
    if not name.startswith("rowwise_"):
        # Their slots have small gradients divided by their own size, and so their roundings.
        assert_same(new, ordinary, 1e-4 if name in ("adadelta", "laprop") else 4e-6)
        return
    for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(ordinary), strict=True):
        assert bool(jnp.max(jnp.abs(a - b)) <= 1e-5 * jnp.max(jnp.abs(b)))


@pytest.mark.slow
def test_divided_codes_are_drawn_as_in_the_ordinary_step():
    codec = gradtx.Codec("int4_dithered", block=16, axis=-1)
    tx = gradtx.store(gradtx.sgd(0.1, momentum=0.9), codec, min_size=0)
    (ordinary, _), (new, _) = sharded(tx, (None, "d"))
    assert_same(new, ordinary)


@pytest.mark.slow
@pytest.mark.usefixtures("host_memory")
def test_divided_slots_on_the_hosts_have_the_bits_and_the_messages_of_the_ordinary_step():
    tx = gradtx.offload(gradtx.sgd(0.1, momentum=0.9), min_size=64)
    (ordinary, of_ordinary), (new, messages) = sharded(tx, (None, "d"))
    assert set(kinds_of_memory(new[1])) == {"pinned_host"}
    assert_same(jax.device_get(new), jax.device_get(ordinary))
    assert len(messages) <= len(of_ordinary)


@pytest.mark.slow
def test_slots_that_are_divided_further_than_parameters_are_refused():
    with pytest.raises(ValueError, match="divided further than the parameters"):
        sharded(gradtx.sgd(0.1, momentum=0.9), (), zero="d", min_size=0)


@pytest.mark.slow
def test_layers_that_are_divided_between_devices_get_the_ordinary_step():
    with pytest.raises(ValueError, match="layers/a: its layers are divided between devices"):
        sharded(gradtx.adamw(1e-2), ("d",))


def test_solve_refuses_the_step_inside_and_says_what_to_use():
    with pytest.raises(ValueError, match=r"solve: inside= is not possible.*minimize\(..., inside"):
        gradtx.solve(loss, parameters(), gradtx.sgd(0.1), *batch(), inside=True)


@pytest.mark.slow
def test_several_steps_in_one_loop():
    tx, params = gradtx.adam(1e-2), parameters()
    step = gradtx.make_step(loss, tx, steps=2, inside=True)
    batches = jax.tree.map(lambda x: jnp.stack([x, x]), batch())
    new, _, values = step(params, step.init(params), *batches)
    ordinary = gradtx.make_step(loss, tx, steps=2)
    want, _, of_ordinary = ordinary(parameters(), tx.init(parameters()), *batches)
    chex.assert_trees_all_equal((new, values), (want, of_ordinary))


def test_a_stack_that_is_cast_twice_gets_the_ordinary_step():
    """The second cast rounds what the first has rounded: a layer is not cast once."""

    def twice(params, x, y):
        rounded = jax.tree.map(lambda w: w.astype(jnp.bfloat16).astype(jnp.float32), params)
        return loss(rounded, x, y)

    step = gradtx.make_step(twice, gradtx.sgd(0.1), inside=True)
    with pytest.raises(ValueError, match="inside"):
        step(parameters(), gradtx.sgd(0.1).init(parameters()), *batch())


@pytest.mark.parametrize(
    "tx",
    [
        gradtx.stateless(lambda g, p: jax.tree.map(lambda x: x / len(jax.tree.leaves(g)), g)),
        gradtx.GradientTransformation(lambda p: (), lambda g, s, p=None: (g, s)),
    ],
    ids=["stateless", "by hand"],
)
def test_what_may_count_the_leaves_is_refused(tx):
    step = gradtx.make_step(loss, tx, inside=True)
    with pytest.raises(ValueError, match="sees all leaves"):
        step(parameters(), tx.init(parameters()), *batch())


@pytest.mark.slow
def test_what_says_that_it_goes_leaf_by_leaf_is_not_refused():
    def halved(updates, state, params=None):
        return jax.tree.map(lambda g: -g / 2, updates), state

    tx = GradientTransformation(lambda p: (), halved, facets=(LeafByLeaf(),))
    one, other = trained(loss, tx, inside=True, steps=1), trained(loss, gradtx.scale(-0.5), steps=1)
    jax.tree.map(np.testing.assert_array_equal, one[0], other[0])


def test_no_gradient_of_a_stack_is_in_the_program():
    """No array of the shape of a stack is made but parameters and slots, which are written."""

    def step(params, state, x, y):
        return gradtx.minimize(remat, tx, params, state, x, y, inside=True)

    tx, params = gradtx.sgd(0.1), parameters()
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, tx.init(params), *batch())
    hlo = compiled.compile().as_text()
    assert " copy(" not in "".join(x for x in hlo.splitlines() if f" f32[{LAYERS},{WIDTH}," in x)


@pytest.mark.slow
def test_sharded_parameters_have_the_same_bits():
    """On eight devices, each with an eighth of every layer: the same numbers."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "d"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    tx = gradtx.adam(1e-2)

    def of(params, x, y):
        turn = jax.checkpoint(lambda h, w: (h + jnp.tanh(h @ w["a"]) @ w["b"], None))
        return jnp.mean((jax.lax.scan(turn, x, params)[0] - y) ** 2)

    def put(tree):
        return jax.tree.map(lambda x: jax.device_put(x, place if x.ndim == 3 else whole), tree)

    params = put({name: parameters()["layers"][name] for name in "ab"})
    state = put(tx.init(params))
    found = []
    for inside in (None, True):

        def step(params, state, x, y, inside=inside):
            return gradtx.minimize(of, tx, params, state, x, y, inside=inside)

        out = *jax.tree.map(lambda x: x.sharding, (params, state)), None
        found.append(jax.jit(step, out_shardings=out)(params, state, *put(batch())))
        assert found[-1][0]["a"].sharding.is_equivalent_to(place, 3)
    assert_same(found[1], found[0])


def mapped(tx, gathers, inside):
    """Steps within shard_map on eight devices, a part of the batch each, and the messages."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    spec = jax.sharding.PartitionSpec
    params = parameters()
    of_params = jax.tree.map(
        lambda p: spec(*[None] * (p.ndim - 1), "d") if gathers else spec(), params
    )

    def whole(tree):
        gather = lambda w: jax.lax.all_gather(w, "d", axis=w.ndim - 1, tiled=True)  # noqa: E731
        return jax.tree.map(gather, tree) if gathers else tree

    def of(params, x, y):
        body = jax.checkpoint(lambda h, w: layer(h, whole(w)))
        h, _ = jax.lax.scan(body, jnp.tanh(x @ whole(params["embed"])), params["layers"])
        return jax.lax.pmean(jnp.mean((h @ whole(params["head"]) - y) ** 2), "d")

    def step(params, state, x, y):
        return gradtx.minimize(of, tx, params, state, x, y, inside=inside)

    state = tx.init(params)
    of_state = gradtx.tree.map_params(
        tx, lambda _, s: s, state, of_params, transform_non_params=lambda _: spec()
    )
    run = jax.jit(
        jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(of_params, of_state, spec("d"), spec("d")),
            out_specs=(of_params, of_state, spec()),
        )
    )
    xs = jax.random.normal(jax.random.key(1), (2, 16, WIDTH))
    text = run.lower(params, state, *xs).compile().as_text()
    for _ in range(2):
        params, state, value = run(params, state, *xs)
    return (params, state, value), collectives(text)


@pytest.mark.slow
@pytest.mark.parametrize("gathers", [False, True])
def test_within_shard_map(gathers):
    """Parameters on every device, or an eighth on each: the same numbers and messages.

    Where gradients are only summed, the ordinary step sends those of all leaves together.
    """
    tx = gradtx.sgd(0.1, momentum=0.9)
    (ordinary, sent), (new, messages) = (mapped(tx, gathers, inside) for inside in (None, True))
    for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(ordinary), strict=True):
        assert bool(jnp.max(jnp.abs(a - b)) <= 3e-7 * jnp.max(jnp.abs(b)))
    if gathers:
        assert sorted(messages) == sorted(sent)
        assert sum(m.kind == "reduce-scatter" for m in messages) == 5
    assert sum(m.bytes for m in messages) == sum(m.bytes for m in sent)


@pytest.mark.slow
def test_two_passes_within_shard_map():
    tx = gradtx.chain(gradtx.clip_by_global_norm(0.02, two_pass=True), gradtx.sgd(0.1))
    for gathers in (False, True):
        (ordinary, _), (new, _) = (mapped(tx, gathers, inside) for inside in (None, True))
        for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(ordinary), strict=True):
            assert bool(jnp.max(jnp.abs(a - b)) <= 1e-6 * jnp.max(jnp.abs(b)))


@pytest.mark.slow
def test_the_scans_of_flax_are_found():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, h, _):
            return h + nn.Dense(WIDTH)(jnp.tanh(nn.Dense(2 * WIDTH)(h))), None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            stack = nn.scan(
                nn.remat(Block),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=LAYERS,
            )
            return nn.Dense(WIDTH)(stack(name="stack")(nn.Dense(WIDTH)(x), None)[0])

    net, (x, _) = Net(), batch()
    params = net.init(jax.random.key(0), x)

    def of(params, x, y):
        return jnp.mean((net.apply(params, x) - y) ** 2)

    tx = gradtx.adam(1e-2)
    plan = gradtx.make_step(of, tx, inside=True).inside(params, *batch())
    assert len(plan.inside) == 4
    assert all(path.startswith("params/stack/") for path in plan.inside)
    ordinary = trained(of, tx, params=params)
    assert_same(trained(of, tx, params=params, inside=True), ordinary)


@pytest.mark.slow
def test_scans_over_stacked_modules_of_equinox_are_found():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        a: eqx.nn.Linear
        b: eqx.nn.Linear

        def __init__(self, key):
            one, two = jax.random.split(key)
            self.a = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=one)
            self.b = eqx.nn.Linear(2 * WIDTH, WIDTH, key=two)

        def __call__(self, h):
            return h + self.b(jnp.tanh(self.a(h)))

    class Net(eqx.Module):
        blocks: Block
        out: eqx.nn.Linear

        def __call__(self, x):
            stacked, rest = eqx.partition(self.blocks, eqx.is_array)
            body = jax.checkpoint(lambda h, arrays: (eqx.combine(arrays, rest)(h), None))
            return self.out(jax.lax.scan(body, x, stacked)[0])

    one, two = jax.random.split(jax.random.key(0))
    blocks = eqx.filter_vmap(Block)(jax.random.split(one, LAYERS))
    net = Net(blocks, eqx.nn.Linear(WIDTH, WIDTH, key=two))
    params, static = eqx.partition(net, eqx.is_inexact_array)

    def of(params, x, y):
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    tx = gradtx.adam(1e-2)
    plan = gradtx.make_step(of, tx, inside=True).inside(params, *batch())
    assert len(plan.inside) == 4
    assert_same(trained(of, tx, params=params, inside=True), trained(of, tx, params=params))


@pytest.mark.slow
def test_the_layer_stack_of_haiku_is_found():
    hk = pytest.importorskip("haiku")

    def forward(x):
        def block(h):
            return h + hk.Linear(WIDTH)(jnp.tanh(hk.Linear(2 * WIDTH)(h)))

        return hk.Linear(WIDTH)(hk.experimental.layer_stack(LAYERS)(block)(x))

    net, (x, _) = hk.without_apply_rng(hk.transform(forward)), batch()
    params = net.init(jax.random.key(0), x)

    def of(params, x, y):
        return jnp.mean((net.apply(params, x) - y) ** 2)

    tx = gradtx.adam(1e-2)
    plan = gradtx.make_step(of, tx, inside=True).inside(params, *batch())
    assert len(plan.inside) == 4
    assert all("layer_stack" in path for path in plan.inside)
    assert_same(trained(of, tx, params=params, inside=True), trained(of, tx, params=params))


@pytest.mark.slow
def test_the_scans_of_nnx_are_found():
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
            self.b = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, h):
            return h + self.b(jnp.tanh(self.a(h)))

    class Net(nnx.Module):
        def __init__(self, rngs):
            make = nnx.vmap(Block, in_axes=0, out_axes=0)
            self.layers = nnx.split_rngs(splits=LAYERS)(make)(rngs)
            self.out = nnx.Linear(WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x):
            run = nnx.scan(lambda h, block: block(h), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return self.out(run(x, self.layers))

    graph, params = nnx.split(Net(nnx.Rngs(0)))

    def of(params, x, y):
        return jnp.mean((nnx.merge(graph, params)(x) - y) ** 2)

    tx = gradtx.adam(1e-2)
    plan = gradtx.make_step(of, tx, inside=True).inside(params, *batch())
    assert len(plan.inside) == 4
    ordinary = trained(of, tx, params=params)
    assert_same(trained(of, tx, params=params, inside=True), ordinary)
