"""SOAP-Muon against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers import matrix_trees
from tests.optimizers.matrices import check_named
from tests.optimizers.papers import adam, newton_schulz
from tests.optimizers.test_soap import of_soap

STANDARD = (3.4445, -4.7750, 2.0315)


@pytest.mark.slow
@pytest.mark.paper("soap_muon")
@pytest.mark.parametrize(
    ("entry_root", "coeffs", "steps", "beta", "one_sided"),
    [(True, None, 1, 0.6, False), (False, STANDARD, 3, None, True)],
)
def test_soap_muon(entry_root, coeffs, steps, beta, one_sided):
    """Vyas et al. 2025: precondition, then orthogonalize, then a root mean square of 1."""
    rows = [STANDARD] * steps if coeffs else [STANDARD] * 5 + [(1.5, -0.5, 0.0)] * 2

    def polish(a):
        o = newton_schulz(a, rows, eps=1e-7)
        r = np.sign(o) * np.sqrt(abs(o)) if entry_root else o
        size = np.sqrt(np.mean(r * r))
        return r / size if size else r

    given = {} if coeffs is None else {"ns_coeffs": coeffs}
    given |= {"ns_steps": steps, "entry_root": entry_root, "one_sided": one_sided}
    tx = gradtx.soap_muon(0.05, 0.7, 0.8, 0.1, 0.3, None, beta, 3, 5, **given)
    update = of_soap(0.7, 0.8, 0.1, beta or 0.8, 3, 5, one_sided, polish)

    def other(g, s, t, p):
        return -0.05 * (adam(g, s, t, 0.7, 0.8, 0.1) + 0.3 * p)

    def decayed(g, s, t, p):
        return -0.05 * (update(g, s, t, p) + 0.3 * p)

    # The root of an entry that is nearly 0 makes its rounding large.
    without = ("ill-conditioned", "rank two") if entry_root else ()
    matrix_trees.check(tx, decayed, other, steps=9, without=without)


@pytest.mark.slow
def test_coefficients_by_name():
    check_named(gradtx.scale_by_soap_muon)
