"""The scans that are found in a loss, and why a parameter is not updated in one."""

import jax
import jax.numpy as jnp
import pytest

from gradtx.backward.scans import Loops


def summed(w, h=0.0):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h + jnp.sum(w)), None), h, w)[0]


@pytest.mark.parametrize("layers", [2, 3])
def test_a_scan_of_two_turns_or_more_is_found(layers):
    loops = Loops(lambda w: [summed(w)], [jnp.ones((layers, 4))])
    assert [(stage.length, [s.leaf for s in stage.stacks]) for stage in loops.stages] == [
        (layers, [0])
    ]
    assert not loops.why_not


@pytest.mark.parametrize(
    ("f", "layers", "why"),
    [
        (lambda w: [summed(w)], 1, "its scan has a single turn"),
        (lambda w: [summed(w), w], 3, "the loss returns it"),
        (lambda w: [jnp.zeros(())], 3, "the loss does not read it"),
        (lambda w: [summed(jnp.ones(3), w[0, 0])], 3, "it is read by slice, not by a scan"),
        (lambda w: [summed(w, jnp.sum(w))], 3, "it is read more than once, by reduce_sum and scan"),
        (
            lambda w: [jax.lax.scan(lambda h, x: (h + jnp.sum(w), None), 0.0, jnp.ones(3))[0]],
            3,
            "every layer of a scan reads all of it",
        ),
        (
            lambda w: [jax.lax.cond(jnp.sum(jnp.ones(2)) > 0, summed, lambda w: 0.0, w)],
            3,
            "it is read inside of cond, not by a scan",
        ),
    ],
)
def test_why_a_parameter_is_not_updated_in_a_scan(f, layers, why):
    loops = Loops(f, [jnp.ones((layers, 4))])
    assert not loops.stages
    assert loops.why_not[0].startswith(why)
