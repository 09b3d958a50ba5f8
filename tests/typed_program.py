"""A program as a user writes it: test_typing.py has strict type checkers read it, and runs it."""

from typing import TYPE_CHECKING, Any, NamedTuple, assert_type

import jax
import jax.numpy as jnp
from jax import Array

import gradtx
from gradtx import GradientTransformationExtraArgs, TrainStep, came, projections, tree
from gradtx.contrib import dion3, muon
from gradtx.schedules import cosine_decay_schedule
from gradtx.states import ScaleByAdamState
from gradtx.training.solve import Path, Solution


class Model(NamedTuple):
    w: Array
    b: Array


def loss(model: Model, x: Array, y: Array) -> Array:
    return gradtx.squared_error(x @ model.w + model.b, y).mean()


def loss_and_error(model: Model, x: Array, y: Array) -> tuple[Array, dict[str, Array]]:
    error = x @ model.w + model.b - y
    return gradtx.losses.l2_loss(error).mean(), {"largest": jnp.abs(error).max()}


x, y = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(4, 4), (4,)]))
model = Model(y, y[0])

# Schedules, optimizers, chains.
rate = cosine_decay_schedule(0.1, 100)
adamw = gradtx.adamw(
    rate,
    b1=jnp.exp(-0.1),
    weight_decay=lambda count: 0.1 / (1 + count),
    mask=lambda path, p: p.ndim > 1,
)
tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.sgd(lambda: 0.1, momentum=0.9), adamw)
assert_type(adamw, GradientTransformationExtraArgs)
assert_type(tx, GradientTransformationExtraArgs)
assert_type(muon(0.1, mu_dtype="bfloat16"), GradientTransformationExtraArgs)
assert_type(gradtx.inject_hyperparams(gradtx.sgd)(0.1), gradtx.GradientTransformation)

# A step of one's own: updates, states and parameters keep their types.
state = tx.init(model)
assert_type(state, Any)
counts = [gradtx.scale_by_adam().init(model).count]
value, grads = gradtx.compute_gradients(loss, model, x, y)
assert_type(value, Array)
assert_type(tx.update(grads, state, model), tuple[Model, Any])
updates, state = tx.update(grads, state, model, value=value)
assert_type(gradtx.apply_updates(model, updates), Model)
assert_type(gradtx.apply_gradients(tx, grads, model, state), tuple[Model, Any])
init, update = tx
assert_type(update(grads, init(model), model), tuple[Model, Any])

# One call: the value is what the loss returns.
assert_type(gradtx.minimize(loss, tx, model, state, x, y), tuple[Model, Any, Array])
model, state, told = gradtx.minimize(loss_and_error, tx, model, state, x, y, has_aux=True)
assert_type(told, tuple[Array, dict[str, Array]])
found = gradtx.solve(lambda w: jnp.sum((w - 1) ** 2), {"w": y}["w"], gradtx.lbfgs(), max_steps=3)
if TYPE_CHECKING:
    assert_type(gradtx.solve(loss, model, tx, x, y), Solution[Model])
    assert_type(gradtx.solve(loss, model, tx, x, y, record=True).path, Path[Model] | None)

step = gradtx.make_step(loss, tx, donate=False)
assert_type(step, TrainStep[Array])
assert_type(step(model, state, x, y), tuple[Model, Any, Array])
watched = gradtx.make_step(
    loss_and_error, gradtx.guard(tx), has_aux=True, report=True, donate=False
)
assert_type(watched, TrainStep[tuple[Array, dict[str, Array]], gradtx.GuardReport])
model, state, (value, aux), report = watched(model, watched.init(model), x, y)
assert_type(aux, dict[str, Array])
assert_type(report.update_norm, Array)

# States: their class says which fields they have.
adam_state = gradtx.scale_by_adam().init(model)
assert isinstance(adam_state, gradtx.ScaleByAdamState)
assert_type(adam_state.count, Array)
assert_type(gradtx.slot_names(state), list[str])
assert_type(gradtx.iterations(state), Array)
assert_type(gradtx.replace(adamw, weight_decay=0.0), GradientTransformationExtraArgs)
stored = gradtx.store(adamw, {"mu": "int8"})
assert_type(stored, GradientTransformationExtraArgs)
saved = gradtx.state_dict(state)
assert_type(saved, dict[str, Array])
assert_type(gradtx.load_state_dict(gradtx.guard(tx), model, saved), Any)

# What the rooms have, under their names and under gradtx's.
assert isinstance(adam_state, ScaleByAdamState)
for optimizer in (came(0.1), dion3(0.1), gradtx.contrib.came(0.1), gradtx.dion3(0.1)):
    assert_type(optimizer, GradientTransformationExtraArgs)
assert_type(gradtx.scale_by_bfgs(), GradientTransformationExtraArgs)
assert_type(gradtx.sgd(gradtx.inverse_time_decay(0.1, 10, 0.5)), GradientTransformationExtraArgs)
assert_type(gradtx.Link(1e9), gradtx.sharding.Link)
if TYPE_CHECKING:
    assert_type(gradtx.aggregate_bf16("data"), GradientTransformationExtraArgs)
    assert_type(gradtx.fit_rate_law([]), gradtx.measuring.RateLaw)

# Configurations.
config = gradtx.to_config(gradtx.adam(rate))
assert_type(config, dict[str, Any])
assert_type(gradtx.from_config(config), gradtx.GradientTransformation)

# Trees.
assert_type(tree.add(model, tree.scale(2.0, grads)), Model)
assert_type(projections.projection_l2_ball(model, 1.0), Model)
assert_type(gradtx.select(model, "w"), Model)
assert_type(gradtx.incremental_update(model, model, 0.1), Model)
assert_type(gradtx.global_norm(grads), Array)

if TYPE_CHECKING:
    # What is refused: a checker reports each comment below that is not needed.
    gradtx.adamw("fast")  # type: ignore[arg-type]
    gradtx.sgd([0.1])  # type: ignore[arg-type]
    gradtx.sgd(lambda count: "fast")  # type: ignore[arg-type]
    gradtx.adamw(0.1, nesterov="yes")  # type: ignore[arg-type]
    gradtx.adamw(0.1, beta1=0.9)  # type: ignore[call-arg]
    gradtx.chain(gradtx.adam)  # type: ignore[arg-type]
    gradtx.minimize(loss, tx, {"w": y}, state)  # type: ignore[misc]
    gradtx.contrib.adamw(0.1)  # type: ignore[attr-defined]
