"""The tasks of Optax's example notebooks, in scripts of our own, with both libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import gradtx

X = jax.random.normal(jax.random.key(0), (16, 3))
Y = X @ jnp.array([1.0, -2.0, 0.5]) + 0.3
START = {"w": jnp.zeros(3), "b": jnp.zeros(())}
STEPS = 6


def loss(p, x=X, y=Y):
    return jnp.mean((x @ p["w"] + p["b"] - y) ** 2)


def lookahead(lib):
    tx = lib.lookahead(lib.adam(0.1), sync_period=3, slow_step_size=0.5)
    p = lib.LookaheadParams.init_synced(START)
    state = tx.init(p)
    for _ in range(STEPS):
        updates, state = tx.update(jax.grad(loss)(p.fast), state, p)
        p = lib.apply_updates(p, updates)
    return p.slow


def sharpness_aware(lib):
    tx = lib.contrib.sam(lib.sgd(0.05), lib.chain(lib.contrib.normalize(), lib.sgd(0.1)), 2)
    p, state = START, tx.init(START)
    for _ in range(STEPS):
        updates, state = tx.update(jax.grad(loss)(p), state, p)
        p = lib.apply_updates(p, updates)
    return p


def meta_learning(lib):
    """The rate of an inner loop, learned through it."""

    def trained(rate):
        tx, p = lib.inject_hyperparams(lib.sgd)(learning_rate=0.1), START
        state = tx.init(p)
        for _ in range(3):
            state.hyperparams["learning_rate"] = jax.nn.sigmoid(rate)
            updates, state = tx.update(jax.grad(loss)(p), state, p)
            p = lib.apply_updates(p, updates)
        return loss(p)

    outer, rate = lib.adam(0.3), jnp.float32(-2.0)
    state = outer.init(rate)
    for _ in range(STEPS):
        updates, state = outer.update(jax.grad(trained)(rate), state)
        rate = lib.apply_updates(rate, updates)
    return rate


def adversarial(lib):
    """Inputs ascend by a negative rate while the parameters descend."""
    tx, up = lib.adam(0.1), lib.chain(lib.scale_by_sign(), lib.sgd(-0.05))
    p, state = START, tx.init(START)
    for _ in range(STEPS):
        moves, _ = up.update(jax.grad(loss, 1)(p, X), up.init(X))
        worst = lib.apply_updates(X, moves)
        updates, state = tx.update(jax.grad(loss)(p, worst), state, p)
        p = lib.apply_updates(p, updates)
    return p


def searched(lib, tx, steps):
    """The parameters and the count after steps of a line search that keeps its gradient."""
    value_and_grad = lib.value_and_grad_from_state(loss)

    def step(carry, _):
        p, state = carry
        value, grad = value_and_grad(p, state=state)
        updates, state = tx.update(grad, state, p, value=value, grad=grad, value_fn=loss)
        return (lib.apply_updates(p, updates), state), None

    (p, state), _ = jax.lax.scan(step, (START, tx.init(START)), length=steps)
    return p, lib.tree.get(state, "count")


def second_order(lib):
    """At the minimum, since the two zoom searches try other rates on the way there."""
    return searched(lib, lib.lbfgs(), 12)


def second_order_backtracking(lib):
    search = lib.scale_by_backtracking_linesearch(15, store_grad=True)
    return searched(lib, lib.chain(lib.scale_by_lbfgs(), lib.scale(-1.0), search), 4)


# Two classes of small pictures, and layers to tell them apart.
PICTURES = jax.random.normal(jax.random.key(1), (24, 12))
LABELS = (PICTURES[:, 0] * PICTURES[:, 1] > 0).astype(jnp.int32)
LAYERS = {
    f"layer{i}": {
        "kernel": jax.random.normal(jax.random.key(i), shape) / shape[0] ** 0.5,
        "bias": jnp.zeros(shape[1]),
    }
    for i, shape in enumerate([(12, 8), (8, 2)])
}


def entropy(lib, p, x, y):
    hidden = jax.nn.tanh(x @ p["layer0"]["kernel"] + p["layer0"]["bias"])
    logits = hidden @ p["layer1"]["kernel"] + p["layer1"]["bias"]
    return lib.losses.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def trained(lib, tx, params=LAYERS, loss=entropy, batch=8, per_example=False):
    """The parameters and the state after two epochs in batches, `value` given to those who ask."""
    evaluate = jax.value_and_grad(lambda p, x, y: loss(lib, p, x, y))
    if per_example:
        evaluate = jax.vmap(evaluate, (None, 0, 0))

    @jax.jit
    def step(p, state, x, y):
        value, grads = evaluate(p, x, y)
        extra = {"value": value} if isinstance(tx, lib.GradientTransformationExtraArgs) else {}
        updates, state = tx.update(grads, state, p, **extra)
        return lib.apply_updates(p, updates), state

    p, state = params, tx.init(params)
    for _ in range(2):
        for i in range(0, len(PICTURES), batch):
            p, state = step(p, state, PICTURES[i : i + batch], LABELS[i : i + batch])
    return p, state


def classifier(lib):
    return trained(lib, lib.adam(0.01))[0]


def flax_example(lib):
    return trained(lib, lib.chain(lib.scale_by_adam(), lib.scale(-0.01)))[0]


def residual_network(lib):
    """A schedule of one cycle, and momentum, in Flax's TrainState."""
    train_state = pytest.importorskip("flax.training.train_state")
    rate = lib.linear_onecycle_schedule(6, 0.5)
    held = train_state.TrainState.create(
        apply_fn=None, params=LAYERS, tx=lib.sgd(rate, momentum=0.9)
    )

    @jax.jit
    def step(held, x, y):
        return held.apply_gradients(grads=jax.grad(lambda p: entropy(lib, p, x, y))(held.params))

    for i in [0, 8, 16] * 2:
        held = step(held, PICTURES[i : i + 8], LABELS[i : i + 8])
    return held.params


def accumulated(lib):
    """A schedule that counts windows, not batches."""
    rate = lib.piecewise_constant_schedule(0.5, {1: 0.1})
    return trained(lib, lib.MultiSteps(lib.sgd(rate), every_k_schedule=3))[0]


def private(lib):
    """Clipped gradients of single pictures, without noise: each library draws its own."""
    return trained(lib, lib.contrib.dpsgd(0.5, 0.3, 0.0, seed=1337), per_example=True)[0]


def plateau(lib):
    lower = lib.contrib.reduce_on_plateau(0.5, patience=1, rtol=0.2, accumulation_size=2)
    tx = lib.chain(lib.adam(0.03), lower)
    p, state = trained(lib, tx)
    scale = lib.tree.get(state, "scale")
    assert scale < 1
    return p, scale


def orthogonalized(lib):
    tokens = lib.contrib.MuonDimensionNumbers((0,), (1,))
    dimensions = {k: {"kernel": tokens, "bias": None} for k in LAYERS}
    return trained(lib, lib.contrib.muon(0.05, muon_weight_dimension_numbers=dimensions))[0]


def schedule_free(lib):
    p, state = trained(lib, lib.contrib.schedule_free_adamw(0.05, weight_decay=0.01))
    return p, lib.contrib.schedule_free_eval_params(state, p)


def without_a_rate(lib):
    return trained(lib, lib.contrib.prodigy(1.0, estim_lr0=1e-3))[0]


def frozen(lib):
    mask = {"layer0": True, "layer1": False}
    frozen, free = lib.set_to_zero(), lib.adam(0.1)
    return [
        trained(lib, tx)[0]
        for tx in (
            lib.chain(free, lib.transforms.freeze(mask)),
            lib.transforms.selective_transform(free, freeze_mask=mask),
            lib.chain(free, lib.masked(frozen, mask)),
            lib.partition({"up": free, "no": frozen}, {"layer0": "no", "layer1": "up"}),
        )
    ]


def language_model(lib):
    """One head of attention over letters, AdamW."""
    width, letters = (
        8,
        jnp.asarray([ord(c) % 16 for c in "to be or not to be that is the question"]),
    )
    keys = jax.random.split(jax.random.key(2), 5)
    shapes = {"embed": (16, width), "q": (width,) * 2, "k": (width,) * 2, "v": (width,) * 2}
    shapes["out"] = (width, 16)
    params = {
        n: jax.random.normal(k, s) * 0.3 for k, (n, s) in zip(keys, shapes.items(), strict=True)
    }
    assert lib.tree.size(params) == 2 * 16 * width + 3 * width**2

    def loss(lib, p, x, y):
        del x, y
        h = p["embed"][letters[:-1]]
        mask = jnp.tril(jnp.ones((len(h), len(h)), bool))
        scores = jnp.where(mask, (h @ p["q"]) @ (h @ p["k"]).T / width**0.5, -jnp.inf)
        logits = (h + jax.nn.softmax(scores) @ (h @ p["v"])) @ p["out"]
        return lib.softmax_cross_entropy_with_integer_labels(logits, letters[1:]).mean()

    return trained(lib, lib.adamw(0.01), params, loss)[0]


def played(lib, tx, steps, start, gradient):
    """The last of the points that steps in a scan pass."""

    def step(carry, _):
        p, state = carry
        updates, state = tx.update(gradient(p), state, p)
        return (lib.apply_updates(p, updates), state), None

    (p, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=steps)
    return p


def two_players(lib):
    """x y, which one player minimizes and the other maximizes."""
    return [
        played(lib, tx, 30, (jnp.ones(()), jnp.ones(())), lambda p: (p[1], -p[0]))
        for tx in (
            lib.sgd(0.1),
            lib.optimistic_gradient_descent(0.1),
            lib.adam(0.05, nesterov=True),
            lib.optimistic_adam_v2(0.05, alpha=0.5, nesterov=True),
        )
    ]


def valley(lib):
    """Rosenbrock's function, by AdEMAMix with schedules of its own."""
    tx = lib.contrib.ademamix(
        0.01,
        b3=lib.schedules.linear_schedule(0.9, 0.99, 20),
        alpha=lib.schedules.linear_schedule(0.0, 5.0, 20),
    )
    gradient = jax.grad(lambda p: 8 * (p[0] - 1) ** 2 + 3 * (p[1] - p[0] ** 2) ** 2)
    return played(lib, tx, 30, jnp.array([-3.0, 5.0]), gradient)


TASKS = [
    *(lookahead, sharpness_aware, meta_learning, adversarial, second_order),
    *(second_order_backtracking, classifier, flax_example, residual_network, accumulated),
    *(private, plateau, orthogonalized, schedule_free, without_a_rate, frozen, language_model),
    *(two_players, valley),
]


@pytest.mark.quick(1)
@pytest.mark.filterwarnings("ignore:.seed. is deprecated")  # by Optax's own dpsgd
@pytest.mark.parametrize("task", TASKS)
def test_both_libraries_agree(task):
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=5e-5, atol=1e-5),
        task(gradtx),
        task(optax),
    )
