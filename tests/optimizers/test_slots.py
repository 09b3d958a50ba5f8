"""What slots are, over several optimizers."""

import jax.numpy as jnp
import pytest

import gradtx


@pytest.mark.parametrize(
    ("make", "slot"),
    [
        (gradtx.scale_by_belief, "nu"),
        (gradtx.scale_by_adadelta, "e_x"),
        (gradtx.scale_by_adamax, "nu"),
        (gradtx.scale_by_adan, "n"),
        (gradtx.scale_by_amsgrad, "nu_max"),
        (gradtx.scale_by_nadam, "nu"),
        (gradtx.scale_by_radam, "nu"),
        (gradtx.scale_by_yogi, "nu"),
        (gradtx.scale_by_acprop, "nu"),
        (gradtx.scale_by_adopt, "nu"),
        (gradtx.scale_by_ademamix, "nu"),
        (gradtx.scale_by_simplified_ademamix, "n"),
    ],
)
def test_squares_are_real_and_single(make, slot):
    for dtype in (jnp.bfloat16, jnp.complex64):
        assert getattr(make().init(jnp.zeros(2, dtype)), slot).dtype == jnp.float32


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("adafactor", 128 + 256 + 1),
        ("sm3", 128 + 256 + 128 * 256),  # with momentum, as in Optax
        ("adam_mini", 256 + 128 * 256),
        ("came", 2 * (128 + 256) + 1 + 128 * 256),
        ("novograd", 1 + 128 * 256),
    ],
)
def test_state_is_as_small_as_the_algorithm_s(name, numbers):
    description = gradtx.describe(getattr(gradtx, name)(0.1), jnp.zeros((128, 256)))
    # A count of 4 bytes, where there is one.
    assert 0 <= description.state_bytes - 4 * numbers <= 4
