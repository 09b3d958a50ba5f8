"""Transfer: multipliers against the papers' tables, and updates against optimizers made by hand."""

import json
import pathlib
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx import ByRole, Role
from gradtx.composition.multipliers import Growth, multipliers_of
from gradtx.wrappers import transfer
from tests.catalogue import builders, optimizers
from tests.composition.test_roles import SHAPES, read


def model(width, layers=2):
    """Shapes of a transformer."""
    n = width
    found = {"wte": (11, n), "ln_f": {"scale": (n,)}, "head": {"kernel": (n, 11), "bias": (11,)}}
    for i in range(layers):
        found[f"layer_{i}"] = {
            "attn": {"kernel": (n, 3 * n), "bias": (3 * n,)},
            "ln": {"scale": (n,)},
            "down": {"kernel": (4 * n, n)},
        }
    shape = jax.ShapeDtypeStruct
    return jax.tree.map(lambda s: shape(s, jnp.float32), found, is_leaf=lambda x: type(x) is tuple)


def values(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), jnp.float32), shapes)


def found(tx, **fields):
    """The multipliers by path: rate, decay, epsilon, initial, output."""
    names = ("rate", "decay", "epsilon", "initial", "output")
    every = gradtx.transfer_multipliers(tx)
    return {path: tuple(getattr(x, name) for name in names) for path, x in every.items()}


M = 4.0
ADAM = {  # tables 3 and 8 of Tensor Programs V by fan-in and fan-out; epsilon of CompleteP
    "initial": {
        "wte": (1, 1, 1 / M, 1, 1),
        "ln_f/scale": (1, 1, 1 / M, 1, 1),
        "layer_0/attn/kernel": (1 / M, M, 1 / M, M**-0.5, 1),
        "layer_0/attn/bias": (1, 1, 1 / M, 1, 1),
        "head/kernel": (1 / M, M, 1, 1 / M, 1),
        "head/bias": (1, 1, 1, 1, 1),
    },
    "multiplier": {
        "wte": (1, 1, 1 / M, 1, 1),
        "layer_0/down/kernel": (1 / M, M, 1 / M, M**-0.5, 1),
        "head/kernel": (1, 1, 1 / M, 1, 1 / M),
    },
}
SGD = {
    "initial": {"wte": M, "ln_f/scale": M, "layer_0/attn/kernel": 1, "head/kernel": 1 / M},
    "multiplier": {"wte": M, "layer_0/attn/bias": M, "layer_0/down/kernel": 1, "head/kernel": M},
}


@pytest.mark.parametrize("head", ["initial", "multiplier"])
@pytest.mark.parametrize("build", [gradtx.adamw, gradtx.lion, gradtx.adagrad, gradtx.sign_sgd])
def test_adam_like_follows_the_tables(build, head):
    got = found(gradtx.transfer(build(0.1), model(16), model(64), head=head))
    for path, want in ADAM[head].items():
        np.testing.assert_allclose(got[path], want, err_msg=path)


@pytest.mark.parametrize("head", ["initial", "multiplier"])
def test_sgd_follows_the_tables(head):
    got = found(gradtx.transfer(gradtx.sgd(0.1), model(16), model(64), head=head))
    for path, want in SGD[head].items():
        np.testing.assert_allclose(got[path][:2], (want, 1 / want), err_msg=path)


@pytest.mark.parametrize(
    ("tx", "factor"),
    [
        (gradtx.muon(0.1, scale="jordan"), lambda i, o: max(1, o / i) ** 0.5),
        (gradtx.muon(0.1, scale="scion"), lambda i, o: (o / i) ** 0.5),
        (gradtx.muon(0.1, scale="moonshot"), lambda i, o: 0.2 * max(i, o) ** 0.5),
        (gradtx.muon(0.1, consistent_rms=0.3), lambda i, o: 0.3 * max(i, o) ** 0.5),
        (gradtx.muon(0.1, scale="none"), lambda i, o: 1.0),
        (gradtx.normuon(0.1), lambda i, o: max(i, o) ** 0.5),
        (gradtx.muon2(0.1), lambda i, o: (o / i) ** 0.5),
        (gradtx.newton_muon(0.1), lambda i, o: max(i, o) ** 0.5),
        (gradtx.newton_muon(0.1, consistent_rms=None), lambda i, o: max(1, o / i) ** 0.5),
        (gradtx.soap(0.1), lambda i, o: i**0.5 + o**0.5),
        (gradtx.soap(0.1, one_sided=True), lambda i, o: max(i, o) ** 0.5),
        (gradtx.shampoo(0.1, grafting="none"), lambda i, o: 1.0),
        (gradtx.shampoo(0.1, grafting="adam"), None),
        (gradtx.lamb(0.1), lambda i, o: 1.0),
    ],
    ids=lambda x: repr(x)[:40] if isinstance(x, tuple) else "",
)
def test_a_matrix_moves_by_the_root_of_outputs_by_inputs(tx, factor):
    """The rate times what the optimizer itself does grows as the spectral condition says."""
    small = {"up": {"kernel": (16, 24)}, "in": {"kernel": (10, 16)}, "bias": (16,)}
    large = {"up": {"kernel": (64, 48)}, "in": {"kernel": (10, 64)}, "bias": (64,)}
    small |= {"row": {"kernel": (1, 16)}, "column": {"kernel": (16, 1)}}
    large |= {"row": {"kernel": (4, 64)}, "column": {"kernel": (64, 3)}}
    shapes = [flat(s) for s in (small, large)]
    got = found(gradtx.transfer(tx, *shapes, rule="spectral" if "lamb" in repr(tx) else None))
    for path in ("up/kernel", "in/kernel", "row/kernel", "column/kernel"):
        (i, o), (a, b) = (s[path] for s in shapes)
        if "grafting='adam'" in repr(tx):
            np.testing.assert_allclose(got[path][0], i / a)
            continue
        want = ((b / o) / (a / i)) ** 0.5 * factor(i, o) / factor(a, b)
        np.testing.assert_allclose(got[path][0], want, err_msg=path)
    assert got["bias"][0] == 1


def flat(tree, at=""):
    return {
        path: shape
        for name, x in tree.items()
        for path, shape in (
            flat(x, f"{at}{name}/") if isinstance(x, dict) else {at + name: x}
        ).items()
    }


def test_the_optimizers_that_are_listed_are_those_that_say_their_size():
    """In the docstring, and in the table of the page."""
    said = {"adam": set(), "sgd": set(), "spectral": set()}
    for builder in builders():
        size = getattr(builder, "update_size", None)
        if builder.name in optimizers() and size is not None:
            said["sgd" if size == "proportional" else size.rule].add(builder.name)
    text = gradtx.transfer.__doc__.partition("The rule is what")[2].partition(" Shampoo with")[0]
    listed = {r: set(re.findall(r"\w+", t)) for r, t in re.findall(r'``"(\w+)"`` for([^`]*)', text)}
    assert {r: names & {*optimizers()} for r, names in listed.items()} == said
    page = (pathlib.Path(__file__).parents[2] / "docs" / "transfer.md").read_text()
    for rule, names in said.items():
        row = page.partition(f'\n| `"{rule}"` |')[2].partition("\n")[0].split("|")[2]
        assert {*re.findall(r"\w+", row)} - {"matrices", "of"} == names


def signs(learning_rate: gradtx.checks.LearningRate):
    return gradtx.chain(gradtx.scale_by_sign(), gradtx.scale_by_learning_rate(learning_rate))


def test_an_optimizer_of_ones_own_says_its_size():
    """By its decorator; its name says nothing, even if it is another's."""
    tx = gradtx.optimizer(update_size="adam")(signs)(0.1)
    own, known = (found(gradtx.transfer(x, model(16), model(64))) for x in (tx, gradtx.adam(0.1)))
    assert own == known

    def adam(learning_rate: gradtx.checks.LearningRate):
        return gradtx.lamb(learning_rate)

    with pytest.raises(ValueError, match="updates of adam depend"):
        gradtx.transfer(gradtx.optimizer(adam)(0.1), model(16), model(64))


def test_a_matrix_optimizer_of_ones_own_says_a_record():
    @gradtx.optimizer(
        update_size=gradtx.UpdateSize(
            "spectral", "numbers", lambda arguments, rows, columns: arguments["scale"] * columns
        )
    )
    def wider(
        learning_rate: gradtx.checks.LearningRate,
        numbers: gradtx.types.DimensionNumbers = None,
        scale: float = 2.0,
    ):
        return gradtx.muon(learning_rate, muon_weight_dimension_numbers=numbers)

    shapes = {"w/kernel": (4, 6), "bias": (6,)}, {"w/kernel": (16, 12), "bias": (12,)}
    tx = gradtx.transfer(wider(0.1), *shapes)
    got = found(tx)
    assert got["w/kernel"][0] == pytest.approx((2 / 4) ** 0.5 / 2)
    assert got["bias"][0] == 1
    state = jax.eval_shape(tx.init, {path: jnp.zeros(shape) for path, shape in shapes[1].items()})
    assert len(state.inner_states) == 2


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("spectral", "update_size must be one of"),
        (gradtx.UpdateSize("muon"), "update_size.rule must be one of"),
        (gradtx.UpdateSize("spectral", "learning_rates"), "did you mean learning_rate"),
        (gradtx.UpdateSize("spectral", grafting="graft"), "no argument 'graft'"),
    ],
)
def test_a_size_that_is_none_is_refused(size, says):
    with pytest.raises(ValueError, match=f"signs: {says}|signs: update_size: .*{says}"):
        gradtx.optimizer(update_size=size)(signs)


@pytest.mark.parametrize("rule", [None, "sgd"])
def test_a_chain_without_an_optimizer_is_as_sgd(rule):
    links = gradtx.trace(0.9), gradtx.scale_by_learning_rate(0.1)
    tx = gradtx.transfer(gradtx.chain(*links), model(16), model(64), rule=rule)
    own = gradtx.transfer(gradtx.sgd(0.1, momentum=0.9), model(16), model(64))
    assert gradtx.transfer_multipliers(tx) == gradtx.transfer_multipliers(own)


def test_layers_change_epsilon_alone_for_adam_and_the_rate_for_sgd():
    """CompleteP: rates stay where what layers add is divided by their number."""
    shapes = model(16, 2), model(64, 6)
    every = gradtx.transfer_multipliers(gradtx.transfer(gradtx.adamw(0.1), *shapes))
    assert every["layer_5/attn/kernel"].rate == 1 / 4
    assert every["layer_5/attn/kernel"].residual == pytest.approx(1 / 3)
    assert every["layer_5/attn/kernel"].epsilon == pytest.approx(1 / 12)
    assert every["layer_4/ln/scale"].epsilon == pytest.approx(1 / 12)
    assert every["ln_f/scale"].epsilon == every["wte"].epsilon == 1 / 4
    sgd = gradtx.transfer_multipliers(gradtx.transfer(gradtx.sgd(0.1), *shapes))
    assert sgd["layer_5/attn/kernel"].rate == pytest.approx(3)
    stacked = [{"blocks": {"kernel": (n, m, m)}} for n, m in ((2, 16), (6, 64))]
    tx = gradtx.transfer(gradtx.adam(0.1), *map(flat, stacked), ByRole(stacked=(("blocks", 1),)))
    assert gradtx.transfer_multipliers(tx)["blocks/kernel"].epsilon == pytest.approx(1 / 12)


def test_the_second_layer_is_like_the_only_one():
    shapes = model(16, 1), model(16, 2)
    every = gradtx.transfer_multipliers(gradtx.transfer(gradtx.adam(0.1), *shapes))
    assert every["layer_1/attn/kernel"].residual == 1 / 2
    assert every["layer_1/attn/kernel"] == every["layer_0/attn/kernel"]


def test_an_axis_of_no_entries_does_not_grow():
    shapes = {"w/kernel": (0, 8)}, {"w/kernel": (0, 16)}
    rate, _, epsilon, *_ = found(gradtx.transfer(gradtx.adam(0.1), *shapes))["w/kernel"]
    assert (rate, epsilon) == (1, 1 / 2)


@pytest.mark.parametrize("head", ["initial", "multiplier"])
def test_epsilon_of_a_matrix_grows_as_the_norm_of_its_gradient(head):
    """That of one example: a product of two vectors, each entry as large as Adam's epsilon says."""
    role, growth = Role("head", (0,), (1,)), Growth(4.0, 2.0, 3.0)
    adam, spectral = (
        multipliers_of(role, growth, rule, head, 0.5, 1.0)[0] for rule in ("adam", "spectral")
    )
    assert spectral.epsilon == pytest.approx(adam.epsilon * np.linalg.norm(np.ones((4, 2)), 2))
    # What divides the outputs divides what a step changes in them too.
    assert spectral.rate == pytest.approx((2 / 4) ** 0.5 * (4 if head == "multiplier" else 1))


@pytest.mark.parametrize(
    ("tx", "powers"),
    [
        (gradtx.adam(0.1, eps_root=0.1), {"eps": 1, "eps_root": 2}),
        (gradtx.rmsprop(0.1, eps_in_sqrt=True), {"eps": 2}),
        (gradtx.rmsprop(0.1, eps_in_sqrt=False), {"eps": 1}),
        (gradtx.shampoo(0.1, grafting="adam"), {"eps": 2, "grafting_eps": 1}),
        (gradtx.shampoo(0.1, grafting="sgd"), {"eps": 2}),
        (gradtx.soap(0.1), {"eps": 1}),
        (gradtx.newton_muon(0.1), {"eps": 0}),
    ],
    ids=lambda x: repr(x)[:40] if isinstance(x, tuple) else "",
)
def test_epsilon_grows_as_the_power_of_the_gradient_that_it_is_added_to(tx, powers):
    made = multipliers_of(
        Role("matrix", (0,), (1,)), Growth(4.0, 2.0, 3.0), "adam", "initial", 0.5, 1.0
    )
    eps_power = tx.declaration.builder.update_size.eps_power
    by = dict(transfer._multiples(tx, transfer._LeafMultipliers(*made), eps_power))
    assert {name: by[name] for name in powers} == {
        name: pytest.approx((1 / 6) ** power) for name, power in powers.items()
    }


def test_the_epsilon_of_entries_grows_as_adams():
    """Muon² adds it to the roots of means of squares, before it takes the matrix as a whole."""
    got, want = (
        {path: each[2] for path, each in found(gradtx.transfer(tx, model(16), model(64))).items()}
        for tx in (gradtx.muon2(0.1), gradtx.adam(0.1))
    )
    assert got == want


@pytest.mark.slow
def test_newton_muon_takes_the_moments_of_inputs():
    """In groups of leaves too: with a multiple of the rate, its step on a matrix is as long."""
    small, large = {"a": {"kernel": (4, 4)}}, {"a": {"kernel": (8, 8)}, "bias": (8,)}
    small |= {"bias": (4,)}
    params = {path: jnp.ones(shape) for path, shape in flat(large).items()}
    grads = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size) * 1.0).reshape(x.shape), params)
    moments = {"a/kernel": gradtx.input_moments(jnp.eye(8) * 3)}
    inner = gradtx.newton_muon(0.1, every=1)
    tx = gradtx.transfer(inner, flat(small), flat(large))
    rate = gradtx.transfer_multipliers(tx)["a/kernel"].rate
    got, _ = tx.update(grads, tx.init(params), params, input_moments=moments)
    own, _ = inner.update(grads, inner.init(params), params, input_moments=moments)
    np.testing.assert_allclose(got["a/kernel"], rate * own["a/kernel"], rtol=1e-5)


def test_a_rule_reaches_the_optimizer_within_others():
    """Beside one that has no rate too; two that multiply one another are not known."""
    inner = gradtx.partition({"a": gradtx.lamb(0.1), "b": gradtx.set_to_zero()}, lambda *_: "a")
    tx = gradtx.transfer(inner, model(16), model(64), rule="adam")
    labels = jax.eval_shape(tx.init, model(64)).inner_states["a"].inner_state.inner_states
    own = gradtx.transfer(gradtx.lamb(0.1), model(16), model(64), rule="adam")
    assert labels.keys() == jax.eval_shape(own.init, model(64)).inner_states.keys()
    with pytest.raises(ValueError, match="2 learning rates"):
        gradtx.transfer(gradtx.schedule_free(gradtx.sgd(0.1), 0.1), {}, {}, rule="sgd")


@gradtx.transformation
def with_rate(inner, learning_rate: gradtx.checks.LearningRate = 0.1):
    return gradtx.chain(inner, gradtx.scale_by_learning_rate(learning_rate))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: with_rate(gradtx.scale_by_adam()), "with_rate has learning_rate.*adam.* has eps"),
        (
            lambda: with_rate(gradtx.masked(gradtx.add_decayed_weights(0.1), True)),
            "with_rate has learning_rate, .*add_decayed_weights inside of it has weight_decay",
        ),
        (lambda: gradtx.mechanize(gradtx.adam(1.0)), "mechanize has weight_decay.*learning_rate"),
    ],
)
def test_a_wrapper_with_a_rate_of_its_own_hides_no_hyperparameters(build, says):
    with pytest.raises(ValueError, match=says):
        gradtx.transfer(build(), model(16), model(64), rule="adam")


@pytest.mark.parametrize("inside", ["trace", "adam"])
def test_a_wrapper_with_a_rate_of_its_own_around_what_has_none(inside):
    """A decay of zero is none, and the rate inside is reached."""
    trace, adam = gradtx.trace(0.9), gradtx.adam(0.1)
    inner = with_rate(trace, 0.1) if inside == "trace" else gradtx.mechanize(adam, 0.0)
    tx = gradtx.transfer(inner, model(16), model(64), rule="adam")
    arguments = [part.declaration.arguments for part in tx.within if part.declaration is not None]
    rates = {each.get("learning_rate") for each in arguments} - {None}
    assert {0.1, 0.025} == {rate for rate in rates if isinstance(rate, float)}


TRANSFERS = {
    "chain": lambda tx: gradtx.chain(gradtx.clip_by_global_norm(1.0), tx),
    "accumulate": lambda tx: gradtx.accumulate(tx, 1),
    "alone": lambda tx: tx,
}


@pytest.mark.slow
@pytest.mark.parametrize("around", sorted(TRANSFERS))
def test_each_leaf_takes_the_steps_of_its_own_hyperparameters(around):
    """Against an AdamW for each leaf; the norm is that of the whole tree."""
    small, large = model(4), model(8)
    rate = gradtx.linear_schedule(0.1, 0.0, 10)
    inner = gradtx.adamw(rate, eps=0.3, eps_root=0.02, weight_decay=0.5)
    tx = gradtx.transfer(TRANSFERS[around](inner), small, large)
    p = values(large)
    said = found(tx)
    state, got = tx.init(p), p
    for seed in (1, 2):
        updates, state = jax.jit(tx.update)(values(large, seed), state, got)
        got = gradtx.apply_updates(got, updates)
    own = {
        path: gradtx.adamw(
            lambda t, r=r: rate(t) * r, eps=0.3 * e, eps_root=0.02 * e * e, weight_decay=0.5 * d
        )
        for path, (r, d, e, *_) in said.items()
    }
    want, states = p, {}
    for seed in (1, 2):
        g = values(large, seed)
        if around == "chain":
            norm = gradtx.global_norm(g)
            g = jax.tree.map(lambda x, n=norm: x / jnp.maximum(n, 1), g)

        def one(path, x, y):
            name = "/".join(k.key for k in path)
            u, states[name] = own[name].update(x, states.get(name) or own[name].init(y), y)
            return y + u

        want = jax.tree_util.tree_map_with_path(one, g, want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_links_of_a_chain_are_as_the_optimizer():
    small, large = model(4), model(8)
    chain = gradtx.chain(
        gradtx.scale_by_adam(eps=0.3),
        gradtx.add_decayed_weights(0.5),
        gradtx.scale_by_learning_rate(0.1),
    )
    g, p = values(large, 1), values(large)
    results = []
    for inner in (chain, gradtx.adamw(0.1, eps=0.3, weight_decay=0.5)):
        tx = gradtx.transfer(inner, small, large)
        results.append(tx.update(g, tx.init(p), p)[0])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7), *results)


def test_it_is_data_and_is_described():
    tx = gradtx.transfer(
        gradtx.muon(0.1, muon_weight_dimension_numbers=ByRole()), model(4), model(8)
    )
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx)))) == tx
    assert pickle.loads(pickle.dumps(tx)) == tx
    text = str(gradtx.describe(gradtx.chain(gradtx.clip(1.0), tx), model(8)))
    assert "layer_*/attn/kernel x 2: matrix, spectral: epsilon x 1" not in text
    assert (
        "layer_*/attn/kernel x 2: matrix, spectral: initial x 0.7071 (inputs x 2, outputs x 2)"
        in text
    )
    assert "head/kernel: head, adam: rate x 0.5, decay x 2, initial x 0.5 (inputs x 2)" in text
    changed = gradtx.replace(tx, learning_rate=0.2)
    assert gradtx.hyperparams(changed)["learning_rate"] == 0.2


def test_the_order_of_paths_changes_no_state():
    """JAX sorts a dict of shapes, where it takes a transformation apart, and JSON may."""
    shapes = [{"w/kernel": (n, n), "b/bias": (n,)} for n in (4, 8)]
    tx = gradtx.transfer(gradtx.adam(0.1), *shapes)
    again = gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx), sort_keys=True)))
    p = jax.tree.map(jnp.zeros, shapes[1], is_leaf=lambda x: type(x) is tuple)
    states = [jax.eval_shape(made.init, p) for made in (tx, again)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])


@pytest.mark.slow
def test_it_stores_slots_and_keeps_equal_models_as_they_are():
    p = values(model(8))
    tx = gradtx.store(gradtx.transfer(gradtx.adam(0.1), model(4), model(8)), "int8", min_size=1)
    updates, _ = tx.update(p, tx.init(p), p)
    assert jax.tree.structure(updates) == jax.tree.structure(p)
    same = gradtx.transfer(gradtx.adam(0.1), model(8), model(8))
    assert jax.tree.structure(same.init(p)) == jax.tree.structure(gradtx.adam(0.1).init(p))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: gradtx.transfer(gradtx.lamb(0.1), {}, {}), "updates of lamb depend: pass rule"),
        (lambda: gradtx.transfer(gradtx.scale_by_adam(), {}, {}), "0 learning rates"),
        (
            lambda: gradtx.transfer(
                gradtx.chain(gradtx.scale_by_soap(), gradtx.shampoo(0.1)), {}, {}
            ),
            "not one optimizer in it but scale_by_soap, shampoo",
        ),
        (
            lambda: gradtx.transfer(gradtx.normuon(0.1, others=gradtx.scale(-0.1)), {}, {}),
            "not one optimizer in it but normuon, scale",
        ),
        (lambda: gradtx.transfer(gradtx.adam(0.1), {"u": (3, 4)}, {"u": (6, 8)}), "'u', of shape"),
        (
            lambda: gradtx.transfer(gradtx.adam(0.1), {"b": (3,)}, {"c/b": (6,)}),
            "'c/b'.*no such leaf",
        ),
        (
            lambda: gradtx.transfer(gradtx.adam(0.1), {"wte": (3, 4)}, {"wte": (6, 8)}),
            "'wte'.*not clear which axis is the width",
        ),
        (
            lambda: gradtx.transfer(
                gradtx.adam(0.1),
                {"e": (2, 4, 4)},
                {"e": (4, 8, 8)},
                ByRole((("e", Role("matrix", (1,), (2,), (0,))),)),
            ),
            "no rule is known for more matrices",
        ),
    ],
)
def test_what_is_unclear_is_an_error(build, says):
    with pytest.raises(ValueError, match=says):
        build()


def test_another_leaf_is_refused_by_its_path():
    tx = gradtx.transfer(gradtx.adam(0.1), model(4), model(8))
    with pytest.raises(ValueError, match="'other' is not among the parameters"):
        tx.init({"other": jnp.zeros(3)})


@pytest.mark.quick(1)
@pytest.mark.parametrize("file", SHAPES, ids=lambda file: file.stem)
def test_public_models_have_a_rule_for_every_leaf(file):
    """Each axis that holds the width, and no other, is halved in the small one."""
    by, shapes, roles = read(file)
    width = max(
        {n for s in shapes.values() for n in s.shape},
        key=lambda n: sum(n in s.shape for s in shapes.values()),
    )
    small = {p: tuple(n // 2 if n == width else n for n in s.shape) for p, s in shapes.items()}
    rules = [*by.rules]
    for path, role in roles.items():
        grown = [i for i, n in enumerate(shapes[path].shape) if n == width]
        if len(grown) > 1 and not role.columns:
            rules.append((path, Role(role.kind, (), tuple(grown))))
    clear = by._replace(rules=rules)
    try:
        tx = gradtx.transfer(gradtx.adamw(0.1), small, shapes, clear)
    except ValueError as error:
        assert "more matrices" in str(error) or "in the rules for" in str(error)
        return
    every = gradtx.transfer_multipliers(tx)
    assert set(every) == set(shapes)
    for path, x in every.items():
        if roles[path].columns and roles[path].kind != "depthwise":
            halves = sum(shapes[path].shape[i] == width for i in roles[path].rows)
            assert x.rate == 0.5**halves, path


@pytest.mark.slow
def test_initial_values_have_the_size_of_the_small_model():
    small, large = values(model(32)), values(model(64), 1)
    tx = gradtx.transfer(gradtx.adam(0.1), model(32), model(64))
    small["ln_f"]["scale"] = jnp.zeros(32)
    got = gradtx.transfer_initial(tx, jax.tree.map(lambda x: x / 2, large), small)
    np.testing.assert_array_equal(got["ln_f"]["scale"], large["ln_f"]["scale"] / 2)
    size = lambda x: float(jnp.sqrt(jnp.mean(x**2)))  # noqa: E731
    assert size(got["head"]["kernel"]) == pytest.approx(size(small["head"]["kernel"]) / 2, rel=1e-5)
    up = size(small["layer_0"]["attn"]["kernel"]) / 2**0.5
    assert size(got["layer_0"]["attn"]["kernel"]) == pytest.approx(up, rel=1e-5)
