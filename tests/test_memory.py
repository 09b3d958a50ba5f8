"""Temporary bytes of a donated step: deterministic, so asserted."""

import jax
import jax.numpy as jnp
import optax
import pytest

import gradtx

N = 16 * 1024 * 1024

NO_COPY = {
    "sgd": lambda: gradtx.sgd(1e-3),
    "momentum": lambda: gradtx.sgd(1e-3, momentum=0.9),
    "adam": lambda: gradtx.adam(1e-3),
    "adamw": lambda: gradtx.adamw(1e-3),
    "adagrad": lambda: gradtx.adagrad(1e-3),
    "rmsprop": lambda: gradtx.rmsprop(1e-3),
    "lion": lambda: gradtx.lion(1e-3),
    "schedule_free_sgd": lambda: gradtx.schedule_free_sgd(1e-3, weight_decay=0.1),
    "cocob": lambda: gradtx.cocob(),
    "dog": lambda: gradtx.dog(),
    "dowg": lambda: gradtx.dowg(),
    "dadapt_adamw": lambda: gradtx.dadapt_adamw(),
    "prodigy": lambda: gradtx.prodigy(),
    "momo": lambda: gradtx.momo(),
    "momo_adam": lambda: gradtx.momo_adam(),
    "polyak_sgd": lambda: gradtx.polyak_sgd(),
    "mechanize, adam": lambda: gradtx.mechanize(gradtx.adam(1.0)),
    "adan": lambda: gradtx.adan(1e-3, weight_decay=0.1),
    "ftrl": lambda: gradtx.ftrl(1e-3),
    "lamb": lambda: gradtx.lamb(1e-3, weight_decay=0.1),
    "lars": lambda: gradtx.lars(1e-3, weight_decay=0.1),
    "fromage": lambda: gradtx.fromage(1e-3),
    "novograd": lambda: gradtx.novograd(1e-3),
    "stable_adamw": lambda: gradtx.stable_adamw(1e-3),
    "adabelief": lambda: gradtx.adabelief(1e-3),
    "adadelta": lambda: gradtx.adadelta(1e-3),
    "grokfast_ema, adam": lambda: gradtx.chain(gradtx.grokfast_ema(), gradtx.adam(1e-3)),
    "cautious, adam": lambda: gradtx.cautious(gradtx.adam(1e-3), rescale=False),
    "clip and adamw": lambda: gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3)),
    "clip and adamw, scheduled": lambda: gradtx.chain(
        gradtx.clip_by_global_norm(1.0),
        gradtx.adamw(gradtx.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
    ),
}


# What keeps means of rows and columns needs room for some of them, and no more.
FACTORED = {
    "adafactor": lambda: gradtx.adafactor(1e-3, momentum=0.9),
    "came": lambda: gradtx.came(1e-3),
}

# The last gradient, or a quotient that two arrays are made of, is stored once or twice: see
# docs/design.md. Optax stores as much, or more.
NO_MORE_THAN_OPTAX = {
    "acprop": (gradtx.acprop(1e-3), optax.contrib.acprop(1e-3)),
    "optimistic_gradient_descent": (
        gradtx.optimistic_gradient_descent(1e-3),
        optax.optimistic_gradient_descent(1e-3),
    ),
    "optimistic_adam_v2": (gradtx.optimistic_adam_v2(1e-3), optax.optimistic_adam_v2(1e-3)),
    "schedule_free_adamw": (
        gradtx.schedule_free_adamw(1e-3),
        optax.contrib.schedule_free_adamw(1e-3),
    ),
}


def temporary_bytes(tx):
    """Those of the compiled, donated step on one leaf of 16M."""
    tx = gradtx.with_extra_args_support(tx)
    p = jax.ShapeDtypeStruct((4096, N // 4096), jnp.float32)
    state = jax.eval_shape(tx.init, p)

    def step(p, state, g, value):
        updates, state = tx.update(g, state, p, value=value)
        return gradtx.apply_updates(p, updates), state

    value = jax.ShapeDtypeStruct((), jnp.float32)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(p, state, p, value).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", NO_COPY)
def test_no_parameter_sized_temporaries(name):
    # Scalars: the norm, the bias corrections, what is passed between kernels.
    assert temporary_bytes(NO_COPY[name]()) <= 1024


@pytest.mark.parametrize("name", FACTORED)
def test_means_of_rows_and_columns_only(name):
    assert temporary_bytes(FACTORED[name]()) <= 10 * 4 * 4096


@pytest.mark.parametrize("name", NO_MORE_THAN_OPTAX)
def test_no_more_temporaries_than_optax(name):
    ours, theirs = map(temporary_bytes, NO_MORE_THAN_OPTAX[name])
    assert ours <= theirs + 1024  # scalars
