"""Deep compositions: groups in wrappers in chains, drawn at random, keep every promise."""

import functools
import json
import pathlib
import pickle
import re

import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from gradtx.composition.apply import take_step
from tests.catalogue import is_bias, is_even, is_matrix, matrix_or_not

CUSTOM = {f.__name__: f for f in (is_bias, is_even, is_matrix, matrix_or_not)}

PARAMS = {
    "a": {"b": jnp.array([0.5, -1.0, 2.0]), "w": jnp.arange(6.0).reshape(2, 3) - 2.5},
    "c": jnp.float32(0.25),
}
GRADS = jax.tree.map(
    lambda p: jnp.asarray(np.random.default_rng(0).normal(size=(3, *p.shape)), jnp.float32), PARAMS
)

LINKS = st.sampled_from(
    [
        gradtx.adam(gradtx.linear_schedule(0.1, 0.0, 9)),
        gradtx.adamw(0.1, weight_decay=0.1),
        gradtx.sgd(jnp.float32(0.1), momentum=0.9),
        gradtx.lion(0.1),
        gradtx.adafactor(0.1, 2),
        gradtx.clip_by_global_norm(0.5),
        gradtx.add_noise(0.01, 0.5, key=1),
        gradtx.ema_params(0.5),
        gradtx.project("l2_ball"),
        gradtx.freeze(is_bias),
        gradtx.identity(),
    ]
)


def sam(tx):
    return gradtx.sam(tx, gradtx.chain(gradtx.normalize(), gradtx.sgd(0.1)))


WRAPPERS = st.sampled_from(
    [
        lambda tx: gradtx.masked(tx, is_matrix),
        lambda tx: gradtx.accumulate(tx, 2, should_skip_update_fn=gradtx.skip_not_finite),
        lambda tx: gradtx.multi_steps(tx, 2),
        lambda tx: gradtx.apply_if_finite(tx, 2),
        lambda tx: gradtx.conditionally_mask(tx, is_even),
        lambda tx: gradtx.conditionally_transform(tx, is_even),
        lambda tx: gradtx.lookahead(tx, 2, 0.5),
        lambda tx: gradtx.selective_transform(tx, freeze_mask=is_bias),
        lambda tx: gradtx.split_real_and_imaginary(tx),
        lambda tx: gradtx.flatten(tx),
        sam,
    ]
)


def larger(inner):
    """What contains one or several of `inner`."""
    return st.one_of(
        st.builds(lambda wrap, tx: wrap(tx), WRAPPERS, inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda txs: gradtx.chain(*txs)),
        st.builds(lambda x, y: gradtx.named_chain(("x", x), ("y", y)), inner, inner),
        st.builds(lambda x, y: gradtx.partition({"a": x, "b": y}, matrix_or_not), inner, inner),
    )


SHALLOW = larger(LINKS)
DEEP = larger(larger(larger(LINKS)))


def step(tx, carry, g):
    params, state = carry
    updates, state = tx.update(g, state, params)
    return (gradtx.apply_updates(params, updates), state), updates


def whole_step(tx, carry, g):
    """The same by the transformation's own `step`, if it has one."""
    params, state = carry
    return take_step(tx, g, state, params), None


def same_bits(a, b):
    unwrap = gradtx.tree.unwrap_random_key_data
    chex.assert_trees_all_equal_shapes_and_dtypes(unwrap(a), unwrap(b))
    chex.assert_trees_all_equal(unwrap(a), unwrap(b))


def keeps_every_promise(tx, eager=False):
    # As data: a configuration through JSON, a pickle, a string.
    assert gradtx.from_config(json.loads(json.dumps(gradtx.to_config(tx))), CUSTOM) == tx
    assert pickle.loads(pickle.dumps(tx)) == tx
    assert "<function" not in repr(tx)

    # Three compiled steps, a scan of three that are taken whole, and three that are not compiled
    # are the same; the state keeps its form.
    start = PARAMS, tx.init(PARAMS)
    compiled = jax.jit(functools.partial(step, tx))
    carry = start
    for i in range(3):
        carry, _ = compiled(carry, jax.tree.map(lambda g, i=i: g[i], GRADS))
        chex.assert_trees_all_equal_shapes_and_dtypes(carry[0], PARAMS)
        assert jax.tree.structure(carry[1]) == jax.tree.structure(start[1])
    scan = functools.partial(jax.lax.scan, functools.partial(whole_step, tx))
    scanned, _ = jax.jit(scan)(start, GRADS)
    chex.assert_trees_all_close(scanned[0], carry[0], rtol=1e-5, atol=1e-6)
    if eager:
        with jax.disable_jit():
            plain = PARAMS, tx.init(PARAMS)
            for i in range(3):
                plain, _ = step(tx, plain, jax.tree.map(lambda g, i=i: g[i], GRADS))
        chex.assert_trees_all_close(plain[0], carry[0], rtol=2e-5, atol=1e-6)

    # The state as named arrays, and the run goes on with the same bits.
    params, state = carry
    flat = {k: np.asarray(x) for k, x in sorted(gradtx.state_dict(state, tx).items())}
    again = gradtx.from_config(gradtx.saved_config(flat), CUSTOM)
    loaded = gradtx.load_state_dict(again, params, flat)
    same_bits(loaded, state)
    g = jax.tree.map(lambda g: g[0], GRADS)
    same_bits(compiled((params, loaded), g), compiled(carry, g))


@pytest.mark.slow
@hypothesis.settings(max_examples=4)
@hypothesis.given(SHALLOW)
def test_shallow_compositions(tx):
    keeps_every_promise(tx)


@pytest.mark.slow
@hypothesis.settings(max_examples=30)
@hypothesis.given(DEEP)
def test_deep_compositions(tx):
    keeps_every_promise(tx, eager=True)


@pytest.mark.slow
def test_the_code_of_the_page_runs():
    page = (pathlib.Path(__file__).parent.parent / "docs" / "composition.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    match = names["match"]
    # From Adam to AMSGrad behind a clip: every slot is kept, the new one is named.
    assert {path.split("/")[2] for path in match.missing} == {"nu_max"}
    assert match.changed == {"1/0": "ScaleByAdamState before, ScaleByAmsgradState now"}
    assert match.extra == []
    assert match.kept["1/0/mu/body/w"] == "0/mu/body/w"
