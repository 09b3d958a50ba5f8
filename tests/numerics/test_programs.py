"""What is asked of traced programs: which equations matter, and the parts of a scan."""

import jax
import jax.numpy as jnp
import numpy as np

from gradtx.programs.interpreter import needed, scan_sizes


def test_equations_are_needed_for_what_is_wanted_or_for_their_effects():
    def run(x):
        jax.debug.callback(lambda _: None, x)
        a = jnp.sin(x)
        b = jnp.cos(a)
        return jnp.exp(a), b

    jaxpr = jax.make_jaxpr(run)(1.0).jaxpr
    exp, cos = jaxpr.outvars
    (sin,) = (eqn.outvars[0] for eqn in jaxpr.eqns if eqn.primitive.name == "sin")

    def names(wanted, given=(), effects=False):
        found = needed(jaxpr, wanted, given, effects)
        return [e.primitive.name for e, x in zip(jaxpr.eqns, found, strict=True) if x]

    assert names([exp]) == ["sin", "exp"]
    assert names([cos]) == ["sin", "cos"]
    assert names([cos], given=[sin]) == ["cos"]
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
