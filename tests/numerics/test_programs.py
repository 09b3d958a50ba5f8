"""What is asked of traced programs: which equations matter, and the parts of a scan."""

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.programs.interpreter import equations, needed, scan_sizes, uses


def test_equations_are_needed_for_what_is_wanted_or_for_their_effects():
    def run(x):
        jax.debug.callback(lambda _: None, x)
        a = jnp.sin(x)
        b = jnp.cos(a)
        return jnp.exp(a), b

    jaxpr = jax.make_jaxpr(run)(1.0).jaxpr
    exp, cos = jaxpr.outvars
    (sin,) = (eqn.outvars[0] for eqn in jaxpr.eqns if eqn.primitive.name == "sin")

    def names(wanted, known=(), effects=False):
        return [e.primitive.name for e in needed(jaxpr, wanted, known, effects)]

    assert names([exp]) == ["sin", "exp"]
    assert names([cos]) == ["sin", "cos"]
    assert names([cos], known=[sin]) == ["cos"]
    assert names([cos], effects=True) == ["debug_callback", "sin", "cos"]


def test_a_scan_has_constants_and_carries():
    def run(c, carry, xs):
        def body(now, x):
            a, b, n = now
            return (a + x[0] * c, b * x[1], n + 1), (a, b)

        return jax.lax.scan(body, (*carry, 0), xs)

    xs = np.ones((4, 2), np.float32), np.ones(4, np.float32)
    jaxpr = jax.make_jaxpr(run)(jnp.ones(2), (jnp.ones(2), 1.0), xs).jaxpr
    (scan,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    assert scan_sizes(scan) == (1, 3)


def test_where_variables_are_computed_and_read():
    def run(x, y):
        a = x * y
        return a * a, jnp.sin(x)

    jaxpr = jax.make_jaxpr(run)(1.0, 2.0).jaxpr
    (x, y), (square, sin) = jaxpr.invars, jaxpr.outvars
    a = jaxpr.eqns[0].outvars[0]
    computed, read = uses(jaxpr.eqns)
    assert computed == {a: 0, square: 1, sin: 2}
    assert read == {x: [(0, 0), (2, 0)], y: [(0, 1)], a: [(1, 0), (1, 1)]}


def test_equations_within_programs_and_their_turns():
    def run(x):
        x = jax.lax.scan(lambda c, _: (jax.jit(jnp.sin)(c), None), x, None, length=3)[0]
        return jax.lax.cond(
            x > 0, jnp.cos, lambda x: jax.lax.while_loop(lambda x: x < 1, jnp.tan, x), x
        )

    jaxpr = jax.make_jaxpr(run)(1.0).jaxpr
    turns = {eqn.primitive.name: turns for eqn, turns in equations(jaxpr)}
    assert [turns[name] for name in ("scan", "sin", "cos", "tan")] == [1, 3, 1, 1]
    inside = {
        eqn.primitive.name for eqn, _ in equations(jaxpr, lambda eqn: eqn.primitive.name == "scan")
    }
    assert "jit" in " ".join(inside)
    assert not inside & {"sin", "cos"}
