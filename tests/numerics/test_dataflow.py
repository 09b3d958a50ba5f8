"""What is followed through each form of control flow."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from gradtx.programs.dataflow import Lattice, follow
from gradtx.programs.derivatives import has_while


class Sources(Lattice[frozenset[str]]):
    """The inputs that an array is computed from, and "if" where a predicate chooses it."""

    def number(self, x):
        return frozenset()

    def join(self, a, b, shape):
        return a | b

    def results(self, eqn, known):
        return [frozenset().union(*known)] * len(eqn.outvars)

    def chosen(self, by, known, name):
        deciding = {s if s.startswith("if ") else f"if {s}" for s in by}
        return [k | deciding for k in known]

    def taken(self, known):
        return frozenset(f"{source}[]" for source in known)

    def stacked(self, known):
        return frozenset(f"stack of {source}" for source in known)


@jax.custom_jvp
def doubled(x):
    return 2.0 * x


doubled.defjvp(lambda xs, ts: (doubled(*xs), doubled(*ts)))


@jax.custom_vjp
def tripled(x):
    return 3.0 * x


tripled.defvjp(lambda x: (tripled(x), None), lambda _, g: (g,))


def exchanged(x, y, z):
    """A loop whose first carry is the second of the turn before, and whose third is alone."""
    return lax.fori_loop(0, 3, lambda i, now: (now[1], 2.0 * now[1], 2.0 * now[2]), (x, y, z))


def while_below(x, y, z):
    return lax.while_loop(lambda now: now[0] < z, lambda now: (now[0] + 1.0, now[1] * y), (x, x))


def scanned(x, y, z):
    """A scan: of a constant, of two carries, one of them passed on a turn later, and of rows."""

    def body(now, row):
        return (now[1], 2.0 * row), (x * now[0], 3.0 * row)

    return lax.scan(body, (0.0, 0.0), jnp.stack([y, z]))


def sources(*each):
    return [frozenset(some) for some in each]


CASES = {
    "numbers": (lambda x, y, z: (jnp.ones(2), 1.0, x), sources((), (), "x")),
    "a call": (lambda x, y, z: jax.jit(lambda a, b: (b, a, a * b))(x, y), sources("y", "x", "xy")),
    "a call of what it closes over": (lambda x, y, z: jax.jit(lambda a: a + z)(x), sources("xz")),
    "a checkpoint": (lambda x, y, z: jax.checkpoint(lambda a, b: b * 2.0)(x, y), sources("y")),
    "a derivative of its own": (lambda x, y, z: (doubled(x), tripled(y)), sources("x", "y")),
    "a barrier": (lambda x, y, z: lax.optimization_barrier((x, y)), sources("x", "y")),
    "a choice": (
        lambda x, y, z: lax.cond(x > 0, lambda a, b: (2 * a, b), lambda a, b: (a, 2 * a), y, z),
        [frozenset({"y", "if x"}), frozenset({"y", "z", "if x"})],
    ),
    "a loop": (exchanged, sources("xy", "y", "z")),
    "a loop of unknown length": (
        while_below,
        [frozenset({"x", "if x", "if z"}), frozenset({"x", "y", "if x", "if z"})],
    ),
    "a scan": (
        scanned,
        [
            frozenset({"y[]", "z[]"}),
            frozenset({"y[]", "z[]"}),
            frozenset({"stack of x", "stack of y[]", "stack of z[]"}),
            frozenset({"stack of y[]", "stack of z[]"}),
        ],
    ),
    "loops in a loop": (
        lambda x, y, z: lax.fori_loop(0, 2, lambda i, now: exchanged(*now), (z, y, x)),
        sources("zy", "y", "x"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_followed(name):
    function, expected = CASES[name]
    program = jax.make_jaxpr(function)(1.0, 1.0, 1.0)
    assert follow(program, sources("x", "y", "z"), Sources()) == expected


def test_what_is_not_entered_is_an_equation():
    class Outside(Sources):
        def enters(self, eqn):
            return eqn.primitive.name != "scan"

    program = jax.make_jaxpr(exchanged)(1.0, 1.0, 1.0)
    assert follow(program, sources("x", "y", "z"), Outside()) == sources("xyz", "xyz", "xyz")


def test_numbers_that_a_program_closes_over_are_numbers():
    program = jax.make_jaxpr(lambda x: x * jnp.arange(3.0))(jnp.ones(3))

    class Counted(Sources):
        def number(self, x):
            return frozenset({str(jnp.size(x))})

    (known,) = follow(program, sources("x"), Counted())
    assert "x" in known


def grown(x):
    return lax.while_loop(lambda x: x < 5, lambda x: 2 * x, x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (grown, True),
        (lambda x: x + grown(lax.stop_gradient(x)), False),
        # From the second turn on the loop is of x.
        (
            lambda x: lax.fori_loop(
                0, 3, lambda i, now: (now[0], grown(now[1]) + now[0]), (x, 1.0)
            )[1],
            True,
        ),
        (lambda x: x * grown(jnp.int32(x)), False),  # integers have no derivative
        (lambda x: tripled(grown(jnp.float32(3.0)) * x), False),
        (lambda x: lax.cond(x > 0, grown, lambda x: x, x), True),
    ],
)
def test_loops_that_a_derivative_reaches(function, expected):
    assert has_while(function, 1.0) == expected
