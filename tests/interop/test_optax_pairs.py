"""Pairs of gradtx are pairs of Optax, to `isinstance` and in Optax's chains."""

import copy
import pickle
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import optax
import pytest

import gradtx


def test_a_pair_is_one_of_optax():
    for tx in (gradtx.adam(0.1), gradtx.chain(), gradtx.GradientTransformationExtraArgs(len, len)):
        assert isinstance(tx, optax.GradientTransformation)
        assert isinstance(tx, optax.GradientTransformationExtraArgs)
        assert isinstance(tx, gradtx.GradientTransformation)
        assert type(tx) is gradtx.GradientTransformationExtraArgs
    plain = gradtx.GradientTransformation(len, len)
    assert isinstance(plain, optax.GradientTransformation)
    assert not isinstance(plain, optax.GradientTransformationExtraArgs)
    assert not isinstance(gradtx.adam(0.1), types.FunctionType)


def test_extra_arguments_pass_through_a_chain_of_optax():
    tx = optax.chain(optax.identity(), gradtx.scale_by_polyak(max_learning_rate=1e3))
    updates, _ = tx.update(jnp.float32(2.0), tx.init(jnp.float32(1.0)), jnp.float32(1.0), value=8.0)
    assert float(updates) == pytest.approx(4.0)


@pytest.mark.slow
def test_optax_is_not_imported_for_that():
    program = (
        "import sys, gradtx\n"
        "tx = gradtx.adam(0.1)\n"
        "assert tx.__class__ is type(tx) and isinstance(tx, gradtx.GradientTransformation)\n"
        "assert 'optax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_it_stays_what_it_is():
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.adam(jnp.array(0.1)))
    for other in (
        pickle.loads(pickle.dumps(tx)),
        copy.copy(tx),
        copy.deepcopy(tx),
        jax.tree.map(lambda x: x, tx),
    ):
        assert type(other) is type(tx)
        assert repr(other) == repr(tx)
