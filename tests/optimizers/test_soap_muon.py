"""SOAP-Muon against its paper."""

import numpy as np
import pytest

import gradtx
from tests.optimizers import matrix_trees
from tests.optimizers.papers import adam, newton_schulz
from tests.optimizers.test_soap import of_soap

STANDARD = (3.4445, -4.7750, 2.0315)


@pytest.mark.quick(1)
@pytest.mark.paper("soap_muon")
@pytest.mark.parametrize(("entry_root", "coeffs", "steps"), [(True, None, 1), (False, STANDARD, 3)])
def test_soap_muon(entry_root, coeffs, steps):
    """Vyas et al. 2025: precondition, then orthogonalize, then a root mean square of 1."""
    rows = [STANDARD] * steps if coeffs else [STANDARD] * 5 + [(1.5, -0.5, 0.0)] * 2

    def polish(a):
        o = newton_schulz(a, rows, eps=1e-7)
        r = np.sign(o) * np.sqrt(abs(o)) if entry_root else o
        size = np.sqrt(np.mean(r * r))
        return r / size if size else r

    given = {} if coeffs is None else {"ns_coeffs": coeffs}
    tx = gradtx.soap_muon(
        0.05, 0.7, 0.8, 0.1, 0.3, None, 0.6, 3, 5, ns_steps=steps, entry_root=entry_root, **given
    )
    update = of_soap(0.7, 0.8, 0.1, 0.6, 3, 5, polish=polish)

    def other(g, s, t, p):
        return -0.05 * (adam(g, s, t, 0.7, 0.8, 0.1) + 0.3 * p)

    def decayed(g, s, t, p):
        return -0.05 * (update(g, s, t, p) + 0.3 * p)

    # The root of an entry that is nearly 0 makes its rounding large.
    without = ("ill-conditioned", "rank two") if entry_root else ()
    matrix_trees.check(tx, decayed, other, steps=9, without=without)
