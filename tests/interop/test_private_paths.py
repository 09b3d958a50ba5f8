"""Code that imports Optax's private paths runs with gradtx's name in place of Optax's."""

import importlib
import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx import _src
from gradtx.absences import PASSED_ON

MODULES = ("alias", "base", "combine", "linear_algebra", "numerics", "transform", "update")
MODULES += ("utils", "wrappers")


@pytest.mark.parametrize("module", MODULES)
def test_what_a_private_module_of_optax_passes_on_is_here(module):
    theirs = importlib.import_module(f"optax._src.{module}")
    ours = importlib.import_module(f"gradtx._src.{module}")
    public = {name for name in vars(theirs) if name in gradtx.__all__}
    public = {name for name in public if not inspect.ismodule(getattr(theirs, name))}
    assert public
    assert {name for name in public if getattr(ours, name) is not getattr(gradtx, name)} == set()


@pytest.mark.parametrize("name", _src.OTHERS)
def test_private_names_are_there(name):
    assert getattr(_src.base, name) is not None


@pytest.mark.slow
def test_private_functions_compute_what_optax_s_do():
    from gradtx._src import numerics, transform, utils
    from gradtx._src.utils import canonicalize_dtype, cast_tree
    from gradtx.contrib._muon import MuonDimensionNumbers, orthogonalize_via_newton_schulz

    assert MuonDimensionNumbers is gradtx.MuonDimensionNumbers
    assert transform.scale_by_learning_rate is gradtx.scale_by_learning_rate
    assert canonicalize_dtype(None) is None
    assert canonicalize_dtype("bfloat16") == jnp.bfloat16
    tree = {"a": jnp.ones(2), "b": jnp.zeros(3)}
    assert jax.tree.map(lambda x: x.dtype, cast_tree(tree, jnp.bfloat16)) == dict.fromkeys(
        tree, jnp.bfloat16
    )
    assert numerics.abs_sq(3.0 - 4.0j) == 25.0
    assert (
        utils.canonicalize_key(7) == jax.random.key(7) == utils.canonicalize_key(jax.random.key(7))
    )
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
    coeffs = (3.4445, -4.775, 2.0315)
    theirs = importlib.import_module("optax.contrib._muon").orthogonalize_via_newton_schulz
    np.testing.assert_allclose(
        orthogonalize_via_newton_schulz(x, jnp.array(coeffs)),
        theirs(x, jnp.array(coeffs)),
        atol=2e-5,
    )
    given = (np.array(coeffs), 2, "frobenius", 0.5)
    np.testing.assert_allclose(
        orthogonalize_via_newton_schulz(x, *given), theirs(x, *given), atol=2e-5
    )
    with pytest.raises(ValueError, match="ns_steps must be an integer of at least 1, not 0"):
        orthogonalize_via_newton_schulz(x, np.array(coeffs), 0)
    with pytest.raises(ValueError, match="scale_by_muon"):
        orthogonalize_via_newton_schulz(x[None], jnp.array(coeffs))


def test_other_private_names_are_missing():
    with pytest.raises(ImportError):
        from gradtx._src.base import xyzzy  # noqa: F401
    with pytest.raises(AttributeError, match="xyzzy"):
        _ = _src.xyzzy
    assert optax.GradientTransformation is not gradtx.GradientTransformation


def test_importing_gradtx_imports_none_of_them():
    program = (
        "import sys, gradtx\n"
        "gradtx.adam, gradtx.contrib.muon\n"
        "assert not [name for name in sys.modules if 'gradtx._src' in name or '_muon' in name]\n"
        "assert gradtx._src.base.EmptyState is gradtx.EmptyState\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("module", PASSED_ON)
def test_modules_that_are_passed_on_have_optax_s_names(module):
    ours = importlib.import_module(f"gradtx.{module}")
    theirs = importlib.import_module(f"optax.{module}")
    public = [name for name in vars(theirs) if not name.startswith("_")]
    assert public
    assert getattr(gradtx, module) is ours
    assert all(getattr(ours, name) is getattr(theirs, name) for name in public)
    assert not hasattr(ours, "__wrapped__")
    with pytest.raises(AttributeError, match="xyzzy"):
        _ = ours.xyzzy


@pytest.mark.parametrize("module", PASSED_ON)
def test_without_optax_they_say_so(module, monkeypatch):
    ours = importlib.import_module(f"gradtx.{module}")
    monkeypatch.setitem(sys.modules, f"optax.{module}", None)
    with pytest.raises(ImportError, match=f"gradtx.{module}.name is Optax's own.*install Optax"):
        _ = ours.name
