"""Whole models of other libraries: saved in one call, and resumed bit for bit in their types."""

import jax
import jax.numpy as jnp
import pytest

import gradtx

X = jax.random.normal(jax.random.key(0), (8, 3))


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    unwrap = gradtx.tree.unwrap_random_key_data
    for x, y in zip(jax.tree.leaves(unwrap(a)), jax.tree.leaves(unwrap(b)), strict=True):
        assert x.dtype == y.dtype
        assert jnp.array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "compose", [gradtx.adamw, lambda rate: gradtx.guard(gradtx.sgd(rate, 0.9))]
)
def test_a_model_of_nnx_with_dropout_and_batch_norm_goes_on(compose, tmp_path):
    nnx = pytest.importorskip("flax.nnx")
    tx = compose(0.1)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)])
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.layers[1](self.layers[0](x)))

    @nnx.jit
    def step(model, optimizer):
        grads = nnx.grad(lambda model: (model(X) ** 2).sum())(model)
        optimizer.update(model, grads)

    def begun(seed):
        model = Model(nnx.Rngs(seed))
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    model, optimizer = begun(0)
    step(model, optimizer)
    _, params, rest = nnx.split(model, nnx.Param, ...)
    path = tmp_path / "run.npz"
    gradtx.save_checkpoint(path, params, optimizer.opt_state, tx, model_state=rest, step=1)
    step(model, optimizer)

    other, its_optimizer = begun(1)
    _, params, rest = nnx.split(other, nnx.Param, ...)
    state = its_optimizer.opt_state
    run = gradtx.load_checkpoint(path, params=params, state=state, model_state=rest)
    for found, like in ((run.params, params), (run.model_state, rest), (run.state, state)):
        assert jax.tree.structure(found) == jax.tree.structure(like)
    nnx.update(other, run.params, run.model_state)
    its_optimizer.opt_state = run.state
    step(other, its_optimizer)
    same(nnx.state(other), nnx.state(model))
    same(its_optimizer.opt_state, optimizer.opt_state)

    # The names of arrays are those of the model, so that they are found without a template.
    assert gradtx.load_checkpoint(path).params["layers"]["0"]["kernel"].shape == (3, 4)
    wrong = jax.tree.map(lambda x: x, state.inner_state if hasattr(state, "inner_state") else ())
    with pytest.raises(ValueError, match="the saved state are not those of the tree"):
        gradtx.load_checkpoint(path, params=params, state=wrong, model_state=rest)


@pytest.mark.slow
def test_a_matched_state_goes_into_the_optimizer_of_nnx():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    adam = gradtx.adam(gradtx.linear_schedule(0.1, 0.0, 10))
    before = nnx.Optimizer(model, adam, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        optimizer.update(model, nnx.grad(lambda model: (model(X) ** 2).sum())(model))

    step(model, before)
    flat = gradtx.state_dict(before.opt_state)
    groups = {"frozen": gradtx.set_to_zero(), "rest": adam}
    tx = gradtx.partition(groups, [("bias", "frozen"), ("*", "rest")])
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    params, state = nnx.state(model, nnx.Param), optimizer.opt_state
    fit = gradtx.match_state_dict(tx, params, flat, state=state)
    loaded = gradtx.load_state_dict(adam, params, flat, state=before.opt_state)
    same(loaded, before.opt_state)
    assert jax.tree.structure(fit.state) == jax.tree.structure(state)
    optimizer.opt_state, bias = fit.state, model.bias[...]
    step(model, optimizer)
    assert int(gradtx.iterations(optimizer.opt_state)) == 2
    same(model.bias[...], bias)
    with pytest.raises(ValueError, match="match_state_dict: the saved state are not those of"):
        gradtx.match_state_dict(tx, params, flat, state=before.opt_state)


@pytest.mark.slow
def test_a_model_of_equinox_with_batch_norm_goes_on(tmp_path):
    eqx = pytest.importorskip("equinox")
    tx = gradtx.adam(0.1)

    class Model(eqx.Module):
        layer: eqx.nn.Linear
        norm: eqx.nn.BatchNorm

        def __init__(self, key):
            self.layer = eqx.nn.Linear(3, 4, key=key)
            self.norm = eqx.nn.BatchNorm(4, "batch", mode="ema")

        def __call__(self, x, kept):
            return self.norm(self.layer(x), kept)

    def begun(seed):
        model, kept = eqx.nn.make_with_state(Model)(jax.random.key(seed))
        params, static = eqx.partition(model, eqx.is_inexact_array)
        return params, static, kept

    @jax.jit
    def step(params, state, kept):
        def loss(params):
            model = eqx.combine(params, static)
            run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            y, new = run(X, kept)
            return jnp.sum(y**2), new

        grads, kept = jax.grad(loss, has_aux=True)(params)
        updates, state = tx.update(grads, state, params)
        return gradtx.apply_updates(params, updates), state, kept

    params, static, kept = begun(0)
    params, state, kept = step(params, tx.init(params), kept)
    path = tmp_path / "run.npz"
    gradtx.save_checkpoint(path, params, state, tx, model_state=kept)
    later = step(params, state, kept)
    params, static, kept = begun(1)
    run = gradtx.load_checkpoint(path, params=params, model_state=kept)
    same(step(run.params, run.state, run.model_state), later)
