"""Sizes by name."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import gradtx


def test_a_frozen_base_in_integers_is_left_out_by_select():
    model = {"base": jax.ShapeDtypeStruct((8, 8), jnp.int8), "a": jnp.ones((8, 2))}
    with pytest.raises(
        TypeError, match=r"at 'base' is int8: .* select\(params, ...\) for init, desc"
    ):
        gradtx.describe(gradtx.adam(0.1), model)
    assert gradtx.describe(gradtx.adam(0.1), gradtx.select(model, "a")).state_bytes == 2 * 64 + 4


def test_describe_counts_bytes_without_allocating():
    big = {"w": jax.ShapeDtypeStruct((10**6, 10**6), jnp.bfloat16)}
    described = gradtx.describe(gradtx.adamw(1e-3), big)
    assert {slot.name: slot.bytes for slot in described.slots} == {
        "mu": 2 * 10**12,
        "nu": 4 * 10**12,
    }
    assert described.state_bytes == 6 * 10**12 + 4
    assert "(1000000, 1000000)" in str(described)


def test_a_pair_of_another_library_and_leaves_of_several_kinds():
    adam = gradtx.adam(1e-3)
    pair = NamedTuple("Pair", [("init", Any), ("update", Any)])(adam.init, adam.update)
    p = {"w": jax.ShapeDtypeStruct((3, 2), jnp.float32), "b": 1.0, "none": None}
    described = gradtx.describe(pair, p)
    assert (described.parameters, described.state_bytes) == (7, 2 * 28 + 4)
    assert described.transformation == repr(pair)


def test_it_begins_with_one_short_line():
    p = {"w": jnp.zeros((512, 8))}
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3, mask="w"))
    first, second = str(gradtx.describe(tx, p)).splitlines()[:2]
    assert first == "chain: 4,096 parameters, 32,772 bytes of state"
    assert second == repr(tx)


def test_a_codec_without_signs_under_lion():
    """A momentum below the least number of float16 is zero, and its entry has no direction."""
    p = {"w": jnp.zeros((64, 128))}

    def warned(tx):
        return gradtx.describe(tx, p).warning

    lion, random = gradtx.lion(1e-3), gradtx.Codec("int4", rounding="stochastic")
    for codec in ("f16", "int4", "int4_companded"):
        assert f"signs of 0.mu in {codec}, which are lost" in warned(gradtx.store(lion, codec))
    for tx in (lion, *(gradtx.store(lion, c) for c in ("bf16", "int8", random))):
        assert warned(tx) is None
    assert warned(gradtx.store(gradtx.adamw(1e-3), "f16")) is None


def test_the_table_of_a_model_by_its_roles():
    """Slots of more than four shapes name four; leaves of one role share a line."""
    layer = {"kernel": jnp.zeros((4, 8)), "bias": jnp.zeros(8)}
    p = {
        "embedding": jnp.zeros((9, 4)),
        "head": {"kernel": jnp.zeros((8, 2)), "bias": jnp.zeros(2), "scale": jnp.zeros(())},
        "layers": [layer, layer],
    }
    tx = gradtx.muon(0.02, muon_weight_dimension_numbers=gradtx.ByRole())
    said = str(gradtx.describe(tx, p)).splitlines()
    assert said[said.index("parameters: 135 in 540 bytes") + 1 :] == [
        "slot                type     shapes                               bytes",
        "adam.0.mu           float32  (9, 4), (2,), (8, 2), () and 1 more    284",
        "nu                  float32  (9, 4), (2,), (8, 2), () and 1 more    284",
        "muon.0.mu           float32  (4, 8) x 2                             256",
        "counters and other                                                   20",
        "all                                                                 844",
        "embedding: embedding",
        "head/bias: bias",
        "head/kernel: head, rows (0,), columns (1,), batch ()",
        "head/scale: norm",
        "layers/*/bias x 2: bias",
        "layers/*/kernel x 2: matrix, rows (0,), columns (1,), batch ()",
    ]


def test_the_table_of_what_devices_send():
    """Of what a step sends on average, the most is told where it is more."""
    p = {"w": jnp.zeros((64, 64))}
    sgd = gradtx.sgd(0.1)
    for tx, sent in (
        (gradtx.diloco(sgd, sgd, 4, "data"), "4,096 bytes, at most 16,384 at once"),
        (gradtx.aggregate("data"), "16,384 bytes"),
    ):
        last = str(gradtx.describe(tx, p)).splitlines()[-1]
        assert last == f"sent by each device in a step: {sent}"


def test_replicas_exchange_numbers_where_gradients_are_estimated():
    """No gradient; an optimizer that reduces gradients anyway gets the advice to leave that."""
    p, spsa = {"w": jnp.zeros((64, 64))}, gradtx.spsa(samples=3)
    few = gradtx.describe(gradtx.estimated_gradients(gradtx.sgd(0.1), spsa), p)
    assert (few.loss_numbers, few.message_bytes, few.advice) == (6, 0, None)
    assert str(few).splitlines()[-1] == "between replicas in a step: 6 numbers, no gradient"
    reducing = gradtx.chain(gradtx.aggregate("data"), gradtx.sgd(0.1))
    all_of_it = gradtx.describe(gradtx.estimated_gradients(reducing, spsa), p)
    assert (all_of_it.loss_numbers, all_of_it.message_bytes) == (0, 4 * 64 * 64)
    assert "over 'data'" in all_of_it.advice
    assert "jax.lax.pmean in the loss in its place, replicas exchange 6 numbers" in str(all_of_it)
    assert gradtx.describe(reducing, p).advice is None
