"""The run of each transformation in other settings: the numbers are those of the reference."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.catalogue import CATALOGUE
from tests.test_contracts import (
    STEPS,
    WHOLE,
    array,
    assert_finite,
    avals,
    compilations,
    compiled,
    grads,
    numbers,
    params,
    reference,
    runner,
    start,
    take,
    uncompiled,
)


def operation_by_operation(name):
    """Outside of `jit` too, and a further step compiles nothing.

    JAX's loops and conditions get new functions there (see gradtx.numerics.control), and what is
    compiled for these is kept forever. A step that is one program has the bits of `jit`: see
    test_eager.py."""
    tx, gs = CATALOGUE[name].make(), grads(STEPS, name)
    carry, updates = uncompiled(tx, start(name), gs)
    seen = compilations()
    seen.clear()
    uncompiled(tx, carry, take(gs, slice(1)))
    assert not seen
    carry_compiled, updates_compiled = reference(name)
    want = [take(updates_compiled, i) for i in range(2)]
    return (updates[:2], numbers(carry)), (want, numbers(carry_compiled))


def two_at_once(name):
    """Under `vmap` a run has the first step that it has alone."""
    batch = jax.tree.map(lambda p: jax.device_put(np.stack([p, 2 * np.asarray(p)])), params(name))
    both = (grads(STEPS, name, seed=seed) for seed in (1, 2))
    gs = jax.tree.map(lambda *g: jax.device_put(np.stack(g)), *both)
    _, updates = jax.jit(jax.vmap(functools.partial(compiled, name)))(batch, gs)
    got, want = [], []
    for i in range(2):
        p = take(batch, i)
        first, alone = take(take(updates, i), 0), take(compiled(name, p, take(gs, i))[1], 0)
        got.append(gradtx.apply_updates(p, first))
        want.append(gradtx.apply_updates(p, alone))
    return got, want


def cast(tree, dtype):
    return jax.tree.map(lambda x: array(x, dtype), tree)


def in_halves(dtype, name):
    """Arithmetic is done in float32 on what is stored; only what comes out is rounded."""
    p, gs = cast((params(name), grads(STEPS, name)), dtype)
    (new, _), updates = compiled(name, p, gs)
    assert_finite((new, updates))
    _, single = compiled(name, *cast((p, gs), jnp.float32))
    return take(cast(updates, jnp.float32), 0), take(single, 0)


def in_doubles(name):
    """Of parameters in float64 the first step is that of float32, which goes beside them too."""
    _, single = reference(name)
    with jax.enable_x64(True):
        gs = cast(grads(STEPS, name), jnp.float64)
        _, double = compiled(name, cast(params(name), jnp.float64), gs)
        double = cast(double, jnp.float32)
        jax.eval_shape(functools.partial(compiled, name), params(name), grads(STEPS, name))
    return take(double, 0), take(single, 0)


def from_a_saved_state(name):
    """A state survives as named arrays, and a run goes on from it with the same bits."""
    run, gs = runner(name), grads(STEPS, name)
    (p, state), _ = reference(name)
    leaves, treedef = jax.tree.flatten(state)
    # Where they were, which is the host's memory for those of `offload`.
    named = [jax.device_put(through_numpy(x), x.sharding) for x in leaves]
    back = jax.tree.unflatten(treedef, named)
    chex.assert_trees_all_equal_shapes_and_dtypes(back, state)
    return run((p, back), gs)[1], run((p, state), gs)[1]


def through_numpy(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(np.asarray(jax.random.key_data(x)))
    return jnp.asarray(np.asarray(x))


def beside_nothing(name):
    """With a leaf that has no gradient or parameter the program is the same, or else its numbers
    are: a key may be drawn for that leaf too."""
    run, init = runner(name), CATALOGUE[name].make().init
    p, gs = params(name), grads(STEPS, name)
    q, hs = {**p, "frozen": None}, {**gs, "frozen": None}
    (new, _), updates = run.eval_shape((q, init(q)), hs)
    assert new.pop("frozen", "") is None
    assert updates.pop("frozen", "") is None
    assert avals(new) == avals(p)
    if str(run.trace((q, init(q)), hs).jaxpr) == str(run.trace((p, init(p)), gs).jaxpr):
        return (), ()
    (new, _), updates = compiled(name, q, hs)
    (want, _), want_updates = reference(name)
    frozen = {"frozen": None}
    return (new, updates), ({**want, **frozen}, {**want_updates, **frozen})


def beside_the_largest(dtype, name, want):
    """A quarter of the precision of the largest number where rounded terms nearly cancel."""
    if not CATALOGUE[name].cancels:
        return 1e-6
    largest = max(np.max(np.abs(x), initial=0) for x in jax.tree.leaves(want))
    return float(jnp.finfo(dtype).eps) * largest / 4


class Setting(NamedTuple):
    """How steps are taken, and how near the numbers are.

    run: from a name to what the setting gives and what it should give, mostly the reference's;
    rtol, atol: by how much they may differ, the latter a number or from the name and what is
    wanted; why: the word at which an entry of the catalogue says why it cannot; quick: the
    transformation of which this is in a newcomer's suite."""

    run: Callable
    rtol: float
    atol: float | Callable
    why: str | None = None
    quick: str | None = None


def rounded(dtype):
    """Twice the precision of the type: the number before it was rounded is rounded itself."""
    run, atol = (functools.partial(f, dtype) for f in (in_halves, beside_the_largest))
    return Setting(run, 2 * float(jnp.finfo(dtype).eps), atol, "precision")


SETTINGS = {
    # XLA takes sums and products in another order, or as one.
    "operations": Setting(operation_by_operation, 2e-5, 1e-6, quick="adam"),
    # So it does for a batch of matrices.
    "vmap": Setting(two_at_once, 1e-5, 1e-6),
    "bfloat16": rounded(jnp.bfloat16),
    "float16": rounded(jnp.float16),
    # What float32 rounds in one step.
    "float64": Setting(in_doubles, 1e-4, 1e-5),
    # The same program.
    "saved": Setting(from_a_saved_state, 0, 0, quick="adafactor"),
    # Another program, if it draws a key for the leaf.
    "frozen": Setting(beside_nothing, 1e-5, 1e-6, quick="adafactor"),
}


def cases():
    """All in one process for each name: they share its start, its program and its reference."""
    for setting, (*_, why, quick) in SETTINGS.items():
        for name in WHOLE:
            if why is None or why not in CATALOGUE[name].why:
                marks = [pytest.mark.xdist_group(name)]
                marks += [] if name == quick else [pytest.mark.slow]
                yield pytest.param(name, setting, marks=marks, id=f"{name}-{setting}")


@pytest.mark.usefixtures("host_memory_of_offload")
@pytest.mark.parametrize(("name", "setting"), list(cases()))
def test_a_run_in_another_setting_has_the_numbers_of_the_reference(name, setting):
    run, rtol, atol, *_ = SETTINGS[setting]
    got, want = run(name)
    atol = atol(name, want) if callable(atol) else atol
    chex.assert_trees_all_close(got, want, rtol=rtol, atol=atol)
