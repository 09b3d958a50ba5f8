"""What of a traced step on stored slots is one kernel: traced only, nothing is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import gradtx
from gradtx.kernels.cutting import cuts, inlined
from gradtx.programs.interpreter import runs
from gradtx.storage import Encoded
from gradtx.storage.marked import decode_p, encode_p, marked

SHAPE = (512, 4)
P = jax.ShapeDtypeStruct(SHAPE, jnp.float32)
RATE = jax.ShapeDtypeStruct((), jnp.float32)
RANDOM = gradtx.Codec("bf16", rounding="stochastic")


def slot(*codec, **options):
    given = gradtx.Codec(*codec, **options)
    return marked(jax.eval_shape(lambda x: Encoded.of(x, given), P))


def cut(step, *slots, in_place=True):
    """The kernels of ``step(p, slots, g, rate) -> (new p, new slots, ...)``, and the program."""
    given = P, slots, P, RATE
    leaves, structure = jax.tree.flatten(given)
    closed = jax.make_jaxpr(lambda *x: jax.tree.leaves(step(*structure.unflatten(x))))(*leaves)
    flat = inlined(closed, "cpu", [None] * len(leaves), *leaves).jaxpr
    overwritten = {i: i for i in range(len(jax.tree.leaves(given[:2])) * in_place)}
    return cuts(flat, overwritten, lambda cut: True), flat


def momentum(p, slots, g, rate):
    (old,) = slots
    mu = 0.5 * old.load() + jnp.where(g > 0, rate, g)
    return p - jnp.tanh(rate) * mu, old.store(mu)


@pytest.mark.parametrize("codec", ["int8", "int4", RANDOM.name])
def test_a_step_on_a_leaf_is_one_kernel_from_codes_to_codes(codec):
    given = slot(*(RANDOM if codec == RANDOM.name else [codec]))
    (found,), program = cut(momentum, given)
    p, *parts = program.invars
    parts, g, rate = parts[: len(given.parts)], *program.invars[-2:]
    assert (found.shape, found.blocks) == (SHAPE, given.blocks)
    assert set(found.arrays) == {p, *parts, g}
    assert rate in found.scalars
    assert all(not v.aval.shape for v in found.scalars)
    # The new parameter and the new codes are written in place of the old ones.
    assert len(found.outputs) == 1 + len(parts)
    before = [found.arrays[found.overwrites[i]] for i in range(len(found.outputs))]
    assert dict(zip(found.outputs, before, strict=True)) == dict(
        zip(program.outvars[: len(found.outputs)], [p, *parts], strict=True)
    )
    assert program.eqns[found.last] is found.eqns[-1]
    assert found.codecs == {given.codec}
    assert found.drawn == ([given.codec] if given.key is not None else [])


def test_codes_are_overwritten_even_if_they_are_no_results_of_the_program_s_own():
    (found,), program = cut(momentum, slot("int8"), in_place=False)
    _, *parts, _, _ = program.invars
    before = {found.outputs[i]: found.arrays[k] for i, k in found.overwrites.items()}
    assert before == dict(zip(program.outvars[1:], parts, strict=True))


def test_slots_in_blocks_of_one_size_share_a_kernel():
    def both(p, slots, g, rate):
        mu, nu = (x.load() for x in slots)
        mu, nu = mu + g, nu + g * g
        return p - mu / (nu + 1), [x.store(new) for x, new in zip(slots, (mu, nu), strict=True)]

    assert len(cut(both, slot("int8", block=128), slot("int4", block=128))[0]) == 1
    assert cut(both, slot("int8", block=256), slot("int8", block=128))[0] == []
    (found,), _ = cut(both, slot("int8"), slot(*RANDOM))
    assert found.blocks == slot("int8").blocks


def with_a_norm(p, slots, g, rate):
    new, state = momentum(p, slots, g / jnp.linalg.norm(g), rate)
    return new, state


def with_sums_of_columns(p, slots, g, rate):
    return momentum(p, slots, g - jnp.sum(g, 0), rate)


def with_a_product(p, slots, g, rate):
    return momentum(p, slots, g @ jnp.ones((4, 4)), rate)


def of_the_slot_alone(p, slots, g, rate):
    (old,) = slots
    return p, old.store(rate * old.load())


def with_the_new_parameter_read_before_the_end(p, slots, g, rate):
    (old,) = slots
    mu = old.load() + g
    new = p - mu
    size = jnp.sum(new)
    return new, old.store(mu), size


def with_the_new_parameter_read_at_the_end(p, slots, g, rate):
    (old,) = slots
    mu = old.load() + g
    new, state = p - mu, old.store(mu)
    return new, state, jnp.sum(new)


@pytest.mark.parametrize(
    ("step", "count"),
    [
        (with_a_norm, 1),  # a number, computed before
        (with_sums_of_columns, 0),  # arrays that the kernel would read, and others compute
        (with_a_product, 0),
        (of_the_slot_alone, 0),  # nothing has the shape of the leaf
        (with_the_new_parameter_read_before_the_end, 0),
        (with_the_new_parameter_read_at_the_end, 1),
    ],
)
def test_a_kernel_reads_what_is_in_memory_and_is_read_when_it_is_done(step, count):
    assert len(cut(step, slot("int4"))[0]) == count


def test_a_function_that_sees_no_slot_stays_a_call():
    """It is lowered once, and not for each leaf."""

    @jax.jit
    def other(x):
        return jnp.tanh(x)

    def step(p, slots, g, rate):
        return *momentum(p, slots, g, other(rate)), other(jnp.ones(2))

    kernels, program = cut(step, slot("int8"))
    assert len(kernels) == 1
    names = [eqn.params["name"] for eqn in program.eqns if eqn.primitive.name == "jit"]
    assert names == ["other", "other"]


def test_a_function_of_an_inner_step_on_stored_slots_is_part_of_its_kernel():
    """The slots are in a program of a program, where one equation runs each."""
    tx = gradtx.store(gradtx.adamw(1e-3), {"mu": "bf16", "nu": "int8"}, min_size=1)
    arguments = P, jax.eval_shape(tx.init, P), P
    outer = jax.make_jaxpr(lambda p, s, g: gradtx.apply_gradients(tx, g, p, s))(*arguments)
    (closed,) = [e.params["program"].closed for e in outer.eqns if "program" in e.params]
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in closed.in_avals]
    flat = inlined(closed, "tpu", [None] * len(avals), *avals).jaxpr
    assert {"decode", "encode"} <= {eqn.primitive.name for eqn in flat.eqns}
    called = [v for eqn in flat.eqns if eqn.primitive.name == "jit" for v in eqn.invars]
    assert SHAPE not in {v.aval.shape for v in called}


def test_a_step_on_stored_slots_is_seen_by_whatever_walks_over_a_program():
    tx = gradtx.store(gradtx.adamw(1e-3), min_size=1)
    program = jax.make_jaxpr(tx.update)(P, jax.eval_shape(tx.init, P), P)
    assert "decode" not in {eqn.primitive.name for eqn in program.jaxpr.eqns}
    assert all(runs(program.jaxpr, coded) for coded in (decode_p, encode_p))


@pytest.mark.parametrize(("platform", "want"), [("cpu", 5.0), ("tpu", -1.0)])
def test_a_choice_of_platforms_is_made(platform, want):
    def chosen(x, y):
        return jax.lax.platform_dependent(x, y, cpu=jnp.add, default=jnp.subtract)

    given = jnp.float32(2.0), jnp.float32(3.0)
    flat = inlined(jax.make_jaxpr(chosen)(*given), platform, [None] * 2, *given)
    assert flat.jaxpr.eqns[-1].primitive.name == ("add" if platform == "cpu" else "sub")
    np.testing.assert_array_equal(jaxpr_as_fun(flat)(*given), [want])
