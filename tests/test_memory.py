"""Temporary bytes of a donated step: deterministic, so asserted."""

import jax
import jax.numpy as jnp
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
    "clip and adamw": lambda: gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3)),
    "clip and adamw, scheduled": lambda: gradtx.chain(
        gradtx.clip_by_global_norm(1.0),
        gradtx.adamw(gradtx.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100)),
    ),
}


@pytest.mark.parametrize("name", NO_COPY)
def test_no_parameter_sized_temporaries(name):
    tx = NO_COPY[name]()
    p = jax.ShapeDtypeStruct((4096, N // 4096), jnp.float32)
    state = jax.eval_shape(tx.init, p)

    def step(p, state, g, value):
        updates, state = tx.update(g, state, p, value=value)
        return gradtx.apply_updates(p, updates), state

    value = jax.ShapeDtypeStruct((), jnp.float32)
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(p, state, p, value).compile()
    # Scalars: the norm, the bias corrections, what is passed between kernels.
    assert compiled.memory_analysis().temp_size_in_bytes <= 1024
