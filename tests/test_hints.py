"""What errors advise users of other libraries to do, and those who made a mistake."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

P = {"a": {"w": np.ones(2, np.float32)}}
TX = gradtx.adam(0.1)


def loss(p):
    return jnp.sum(p["a"]["w"] ** 2)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: gradtx.adam(lr=0.1),
            "adam: there is no argument 'lr': did you mean learning_rate",
        ),
        (lambda: gradtx.adam(0.1, betas=(0.9, 0.99)), "did you mean b1 and b2"),
        (lambda: gradtx.lion(0.1, betas=(0.9, 0.99)), "did you mean b1 and b2"),
        (lambda: gradtx.dynamic_loss_scale(TX, init_scale=8.0), "did you mean loss_scale?"),
        (lambda: gradtx.dynamic_loss_scale(TX, growth_interval=8), "did you mean period?"),
        (lambda: gradtx.rmsprop(0.1, epsilon=0.1), "did you mean eps?"),
        (lambda: gradtx.adam(0.1, weight_decay=0.1), "'weight_decay': adamw has it"),
        (lambda: gradtx.sgd(0.1, weight_decay=0.1), r"'weight_decay': chain\(add_decayed_weights"),
        (lambda: gradtx.scale(0.1, colour=3), "'colour': the arguments are step_size"),
        (lambda: gradtx.cosine_decay_schedule(0.1, decay_step=3), "did you mean decay_steps"),
        (
            lambda: gradtx.solve(loss, P, TX, maxiter=5),
            "solve: .*'maxiter': .* max_steps",
        ),
        (lambda: gradtx.solve(loss, P, TX, gtol=0.1), "did you mean tol?"),
        (lambda: gradtx.minimize(loss, P, method="adam"), "minimize: .*: did you mean tx?"),
        (lambda: gradtx.make_step(loss, TX, colour=3), "'colour': the arguments are loss_fn, tx"),
        (lambda: gradtx.adam(), "adam: missing a required argument: 'learning_rate'"),
    ],
)
def test_an_unknown_argument(call, says):
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: gradtx.minimize(TX, loss, P, TX.init(P)),
            "minimize takes loss_fn, tx, params, state, .* given a transformation, a function, a d",
        ),
        (lambda: gradtx.minimize(loss, TX, TX.init(P), P), "a function, a transformation, a state"),
        (lambda: gradtx.minimize(loss, P, TX, TX.init(P)), "a function, a dict, a transformation"),
        (
            lambda: gradtx.apply_gradients(TX, P, TX.init(P), P),
            "grads, params, state, .* a state, ",
        ),
        (lambda: gradtx.apply_gradients(P, TX, P, TX.init(P)), "it was given a dict, a transform"),
        (lambda: gradtx.make_step(TX, loss), "make_step takes loss_fn, tx, in this order"),
        (lambda: gradtx.solve(loss, TX, P), "solve takes loss_fn, params, tx, in this order"),
    ],
)
def test_arguments_in_another_order(call, says):
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: gradtx.chain(gradtx.clip, TX), r"call it, clip\(\.\.\.\)"),
        (lambda: gradtx.accumulate(gradtx.adam, 2), r"call it, adam\(\.\.\.\)"),
        (lambda: gradtx.minimize(loss, gradtx.adam, P, None), r"call it, adam\(\.\.\.\)"),
        (lambda: gradtx.chain([gradtx.clip(1.0), TX]), r"not list .*: chain\(\*links\) makes one"),
    ],
)
def test_what_is_no_transformation_yet(call, says):
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda t: TX.init(t),
        lambda t: TX.update(t, TX.init(P), P),
        lambda t: gradtx.minimize(loss, TX, t, TX.init(P)),
        lambda t: gradtx.apply_gradients(TX, P, t, TX.init(P)),
    ],
)
def test_a_tensor_of_pytorch(call):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"at 'a/w' there is a torch.Tensor: .* jnp.asarray\(x.det"):
        call({"a": {"w": torch.ones(2)}})


def test_a_schedule_that_branches():
    """Outside of jit it may."""
    tx = gradtx.adam(lambda count: 0.1 if count < 1 else 0.01)
    state = tx.init(P)
    for wanted in (0.1, 0.01):
        updates, state = tx.update(P, state, P)
        np.testing.assert_allclose(updates["a"]["w"], -wanted, rtol=1e-5)
    with pytest.raises(TypeError, match="learning_rate is a function that .* jnp.where"):
        jax.jit(tx.update)(P, state, P)


@pytest.mark.parametrize("tx", [gradtx.scale_by_adam(), gradtx.chain(gradtx.clip(1.0), TX)])
def test_the_state_of_another(tx):
    with pytest.raises((TypeError, ValueError), match="load_state_dict.* and match_state_dict"):
        tx.update(P, gradtx.trace(0.9).init(P), P)


def test_a_warmup_longer_than_the_whole():
    with pytest.raises(
        ValueError, match="warmup_cosine_decay_schedule: decay_steps .* 100, not 50"
    ):
        gradtx.warmup_cosine_decay_schedule(0.0, 1.0, 100, 50)


@pytest.mark.parametrize("schedule", [lambda count: -0.1, gradtx.linear_schedule(-0.1, 0.0, 9)])
def test_a_schedule_that_starts_below_zero(schedule):
    with pytest.raises(
        ValueError, match=r"ftrl: learning_rate must be .* starts at -0.1; to ascend"
    ):
        gradtx.ftrl(schedule).init(jnp.zeros(2))

    def started(x):
        with pytest.raises(ValueError, match="starts at -0.1"):
            gradtx.ftrl(schedule).init(x)
        return x

    assert not jax.make_jaxpr(started)(1.0).eqns


EXPRESSION = re.compile("a/.*")
PREDICATE = ", or a predicate (path, leaf) -> bool"
LABEL = ", or a function (path, leaf) -> label"
HEADS = gradtx.ClippedHeads(0)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: gradtx.select(P, EXPRESSION), PREDICATE),
        (lambda: gradtx.select(P, ["a", EXPRESSION]), PREDICATE),
        (lambda: gradtx.make_step(loss, TX, trainable=EXPRESSION)(P, TX.init(P)), PREDICATE),
        (lambda: gradtx.compute_gradients(loss, P, trainable=EXPRESSION), PREDICATE),
        (lambda: gradtx.solve(loss, P, TX, trainable=EXPRESSION), PREDICATE),
        (lambda: gradtx.masked(TX, EXPRESSION), PREDICATE),
        (lambda: gradtx.masked(TX, ["a", EXPRESSION]), PREDICATE),
        (lambda: gradtx.adamw(0.1, mask=EXPRESSION), PREDICATE),
        (lambda: gradtx.freeze(EXPRESSION), PREDICATE),
        (lambda: gradtx.exact_rows(TX, EXPRESSION), PREDICATE),
        (lambda: gradtx.partition({"b": TX}, [(EXPRESSION, "b")]), LABEL),
        (lambda: gradtx.partition({"b": TX}, {EXPRESSION: "b"}), LABEL),
        (lambda: gradtx.ByRole(rules=[(EXPRESSION, "head")]).roles(P), PREDICATE),
        (lambda: gradtx.ByRole(stacked=[(EXPRESSION, 1)]).roles(P), "'*/bias'"),
        (lambda: gradtx.store(TX, {"mu": {EXPRESSION: "int8"}}), "'*/bias'"),
        (lambda: gradtx.store(TX, exempt=EXPRESSION), "'*/bias'"),
        (lambda: gradtx.store(TX, exempt=["a", EXPRESSION]), "'*/bias'"),
        (lambda: gradtx.qk_clip({EXPRESSION: HEADS}), "'*/bias'"),
        (lambda: gradtx.accumulate(TX, 2, rows={EXPRESSION: 3}), "'*/bias'"),
    ],
)
def test_a_regular_expression_in_place_of_a_path_pattern(call, instead):
    """Where it is given to a builder, when it is built."""
    with pytest.raises(TypeError) as caught:
        call()
    says = "is a regular expression; write a path pattern, such as 'head' or '*/bias'"
    assert says in str(caught.value)
    assert str(caught.value).endswith(instead)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AdamW", "adamw"),
        ("SGD", "sgd"),
        ("RMSProp", "rmsprop"),
        ("OneCycle", "cosine_onecycle_schedule"),
        ("OneCycleLR", "cosine_onecycle_schedule"),
        ("WSD", "wsd_schedule"),
        ("trapezoidal_schedule", "wsd_schedule"),
        ("warmup_stable_decay", "wsd_schedule"),
        ("warmup_stable_decay_schedule", "wsd_schedule"),
        ("independent_weight_decay", "decay_first"),
        ("decoupled_weight_decay", "decay_first"),
        ("fully_decoupled_weight_decay", "decay_first"),
        ("AdamC", "decay_first"),
        ("corrected_decay", "decay_first"),
        ("corrected_weight_decay", "decay_first"),
        ("warmup_cosine", "warmup_cosine_decay_schedule"),
        ("clip_grad_norm", "clip_by_global_norm"),
        ("clip_grad_norm_", "clip_by_global_norm"),
        ("clip_grad_value_", "clip"),
        ("ReduceLROnPlateau", "reduce_on_plateau"),
        ("GradScaler", "dynamic_loss_scale"),
        ("adamm", "adam"),
    ],
)
def test_a_name_that_others_use(name, meant):
    with pytest.raises(AttributeError, match=f"did you mean {meant!r}"):
        getattr(gradtx, name)
    assert hasattr(gradtx, meant)


@pytest.mark.parametrize("tx", [TX, gradtx.chain(TX), gradtx.inject_hyperparams(gradtx.sgd)(0.1)])
def test_a_transformation_takes_no_assignment(tx):
    """It would do nothing, without a word."""
    with pytest.raises(AttributeError, match=r"replace\(tx, learning_rate=...\) makes another"):
        tx.learning_rate = 0.5
    with pytest.raises(AttributeError, match="does not change"):
        gradtx.GradientTransformation(TX.init, TX.update).lr = 0.5


def test_a_short_name_finds_a_hyperparameter():
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.accumulate(gradtx.sgd(0.25), 2))
    found = gradtx.hyperparams(tx, tx.init(P))
    assert found["learning_rate"] == found["1.inner.learning_rate"] == 0.25
    assert "learning_rate" in found
    assert "learning_rate" not in list(found)  # it lists paths
    assert jax.tree.map(lambda x: x, found) == found == dict(found)
    assert jax.jit(lambda: gradtx.hyperparams(tx))()["learning_rate"] == 0.25
    twice = gradtx.hyperparams(gradtx.chain(gradtx.sgd(0.1), gradtx.adam(0.2)))
    with pytest.raises(KeyError, match=r"occurs at 0\.learning_rate, 1\.learning_rate"):
        twice["learning_rate"]
    with pytest.raises(KeyError, match="'rate' does not exist; there are 0.learning_rate"):
        twice["rate"]
