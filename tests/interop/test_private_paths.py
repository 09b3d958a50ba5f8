"""Code that imports Optax's private paths runs with gradtx's name in place of Optax's."""

# Sees mutants of: helpers.

import importlib
import inspect
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx import _src
from gradtx._src.names import MODULES
from gradtx.names.absences import PASSED_ON
from gradtx.names.namespace import homes
from tests.golden import make_private_paths

OLDER = "_src.clipping"


@pytest.mark.parametrize("module", sorted({*MODULES} - {OLDER}))
def test_a_private_module_has_the_names_of_optax_s(module):
    theirs = importlib.import_module(f"optax.{module}")
    ours = importlib.import_module(f"gradtx.{module}")
    assert vars(theirs).keys() >= {*ours.__all__}
    for name in ours.__all__:
        assert inspect.ismodule(getattr(ours, name)) == inspect.ismodule(getattr(theirs, name))
    here = {n for n in vars(theirs) if n in homes("gradtx") and n[0] != "_"}
    here = {n for n in here if not inspect.ismodule(getattr(theirs, n))}
    assert {*ours.__all__} >= here
    if module.partition(".")[0] not in PASSED_ON:
        same = here - {*_src.OTHERS}
        assert [n for n in same if getattr(ours, n) is not getattr(gradtx, n)] == []


def test_all_of_optax_s_private_modules_are_there():
    """But those of the packages that are not here, and what Optax's tests use."""
    assert {*make_private_paths.private_modules()} == {*MODULES} - {OLDER}
    assert len(MODULES) == 62


def test_a_star_takes_the_names_of_the_module():
    names = {}
    exec("from gradtx._src.alias import *", names)
    assert names["adam"] is gradtx.adam
    assert names["combine"].chain is gradtx.chain
    assert names["jnp"] is jnp
    assert "scale_by_adam" not in names


def test_a_star_takes_what_optax_s_modules_import():
    """Code that takes a star annotates with the names of `typing` that come along."""
    names = {}
    program = (
        "from gradtx._src.alias import *\n"
        "def sgd(\n"
        "    rate: base.ScalarOrSchedule,\n"
        "    momentum: Optional[float] = None,\n"
        "    mask: Optional[Union[Any, Callable[[base.Params], Any]]] = None,\n"
        ") -> base.GradientTransformation:\n"
        "    return transform.trace(momentum)\n"
    )
    exec(program, names)
    assert names["sgd"](0.1, 0.9) == gradtx.trace(0.9)


@pytest.mark.parametrize("module", MODULES)
def test_a_private_module_is_an_attribute_of_its_package(module):
    ours = gradtx
    for part in module.split("."):
        ours = getattr(ours, part)
    assert ours is importlib.import_module(f"gradtx.{module}")


@pytest.mark.parametrize("module", ["losses", "projections", "tree_utils"])
def test_a_package_with_private_modules_has_no_other_names(module):
    with pytest.raises(AttributeError, match="xyzzy"):
        _ = getattr(gradtx, module).xyzzy


def test_a_private_module_lists_its_names():
    assert {"adam", "base", "lbfgs"} <= {*dir(_src.alias)}
    dir(_src.alias).clear()
    assert "adam" in dict(inspect.getmembers(_src.alias, inspect.isfunction))


@pytest.mark.parametrize("module", sorted({*MODULES} - {OLDER}))
def test_functions_of_private_modules_take_arguments_in_optax_s_order(module):
    """Where they are public here too, and not in Optax, no other test compares them."""
    if module.partition(".")[0] in PASSED_ON:
        return
    ours, theirs = both(module)
    for name in {*_src.OTHERS, *ours.__all__} & {*vars(theirs)}:
        wanted = getattr(theirs, name)
        if inspect.isfunction(wanted) and len(inspect.signature(wanted).parameters) > 1:
            names = [*inspect.signature(getattr(ours, name)).parameters]
            want = [*inspect.signature(wanted).parameters]
            if {*names} >= {*want} and name not in ("adabelief", "dpsgd"):
                assert names[: len(want)] == want, name


def test_a_private_module_s_functions_can_be_pickled():
    for name in ("_factored_dims", "_compute_muon_reshape", "_is_weight_dim_nums", "lerp"):
        function = getattr(_src.utils, name)
        assert pickle.loads(pickle.dumps(function)) is function
    by_path = b"cgradtx.transforms._masking\nMaskedState\n."
    assert pickle.loads(by_path) is gradtx.MaskedState


@pytest.mark.parametrize("name", _src.OTHERS)
def test_private_names_are_there(name):
    assert getattr(_src.base, name) is not None


@pytest.mark.slow
def test_the_zoom_search_in_three_functions_finds_what_the_link_does():
    def loss(x):
        return jnp.sum((x - 3.0) ** 4)

    x = jnp.array([0.0, 1.0])
    value, grad = jax.value_and_grad(loss)(x)
    init, step, goes_on = _src.linesearch.zoom_linesearch(20, curv_rtol=0.1)
    state = init(-grad, x, value=value, grad=grad, stepsize_guess=1.0)
    assert bool(goes_on(state))
    state = step(state, lambda x, power: (loss(x), jax.grad(loss)(x)), {"power": 4})
    assert not bool(goes_on(state))
    assert not bool(state.failed)
    reached = x - state.stepsize * grad
    np.testing.assert_allclose(state.value, loss(reached), rtol=1e-5)
    np.testing.assert_allclose(state.grad, jax.grad(loss)(reached), rtol=1e-4)
    # The strong Wolfe conditions.
    slope = -jnp.vdot(grad, grad)
    assert state.value <= value + 1e-4 * state.stepsize * slope
    assert abs(jnp.vdot(state.grad, -grad)) <= 0.1 * abs(slope)
    assert int(state.count) > 1


@pytest.mark.slow
def test_private_functions_compute_what_optax_s_do():
    from gradtx._src.utils import canonicalize_dtype, cast_tree
    from gradtx.contrib._muon import MuonDimensionNumbers, orthogonalize_via_newton_schulz

    from gradtx._src import numerics, transform, utils

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


def both(module):
    """Gradtx's module and Optax's."""
    return importlib.import_module(f"gradtx.{module}"), importlib.import_module(f"optax.{module}")


@pytest.mark.slow
def test_private_functions_of_muon_are_optax_s():
    ours, theirs = both("contrib._muon")
    assert ours._DEFAULT_NS_COEFFS == theirs._DEFAULT_NS_COEFFS
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
    step = 0, x, jnp.array(ours._DEFAULT_NS_COEFFS)
    want = theirs._base_ns_iterator(*step)
    np.testing.assert_allclose(ours._base_ns_iterator(*step), want, rtol=1e-5, atol=1e-5)
    stack = jnp.arange(24.0).reshape(2, 3, 4)
    to, back = ours._compute_muon_reshape(stack, gradtx.MuonDimensionNumbers(2, 0))
    there, _ = theirs._compute_muon_reshape(stack, optax.contrib.MuonDimensionNumbers(2, 0))
    np.testing.assert_array_equal(to(stack), there(stack))
    np.testing.assert_array_equal(back(to(stack)), stack)
    with pytest.raises(ValueError, match="two dimensions"):
        ours._compute_muon_reshape(x[0], gradtx.MuonDimensionNumbers())
    coeffs = jnp.array(ours._DEFAULT_NS_COEFFS)
    for numbers in [(-2, -1), (2, 0), ((0, 1), 2)]:
        orthogonal = ours.orthogonalize_via_newton_schulz(
            stack, coeffs, dimension_numbers=gradtx.MuonDimensionNumbers(*numbers)
        )
        want = theirs.orthogonalize_via_newton_schulz(
            stack, coeffs, dimension_numbers=optax.contrib.MuonDimensionNumbers(*numbers)
        )
        np.testing.assert_allclose(orthogonal, want, atol=1e-4)
        by_shape = ours.scale_by_shape(gradtx.MuonDimensionNumbers(*numbers), 0.2)
        scaled = by_shape.update(stack, by_shape.init(stack))[0]
        theirs_by_shape = theirs.scale_by_shape(optax.contrib.MuonDimensionNumbers(*numbers), 0.2)
        want = theirs_by_shape.update(stack, theirs_by_shape.init(stack))[0]
        np.testing.assert_allclose(scaled, want, rtol=1e-6)
    assert ours._is_weight_dim_nums(gradtx.MuonDimensionNumbers())
    assert not ours._is_weight_dim_nums((0, 1))


@pytest.mark.slow
def test_private_functions_of_adafactor_and_searches_are_optax_s():
    ours, theirs = both("_src.factorized")
    for shape in [(256, 128), (128, 3, 300), (4, 4), (200,), ()]:
        for factored in (True, False):
            asked = shape, factored, 128
            assert ours._factored_dims(*asked) == theirs._factored_dims(*asked)
    want = theirs._decay_rate_pow(7, 0.7)
    np.testing.assert_allclose(ours._decay_rate_pow(7, 0.7), want, rtol=1e-6)
    ours, theirs = both("_src.linesearch")
    asked = (lambda a, b: 0, lambda c, d: 0), {"b": 1, "d": 2, "e": 3}
    assert ours._extract_fns_kwargs(*asked) == theirs._extract_fns_kwargs(*asked)
    ours, theirs = both("contrib._ademamix")
    asked = 0.3, jnp.arange(3.0), jnp.ones(3)
    np.testing.assert_allclose(ours.lerp(*asked), theirs.lerp(*asked), rtol=1e-6)


def test_other_private_names_are_missing():
    with pytest.raises(ImportError):
        from gradtx._src.base import xyzzy  # noqa: F401
    with pytest.raises(AttributeError, match="xyzzy"):
        _ = _src.xyzzy
    assert optax.GradientTransformation is not gradtx.GradientTransformation


@pytest.mark.slow
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


def test_a_pair_says_whose_functions_it_has():
    """As code that logs them, or makes fields of them, expects of Optax's."""
    for name in ("clip_by_global_norm", "adam", "scale"):
        tx = getattr(gradtx, name)(0.5)
        assert tx.init.__qualname__ == f"{name}.<locals>.init_fn"
        assert tx.update.__qualname__ == f"{name}.<locals>.update_fn"
        assert tx.init.__module__ == getattr(gradtx, name).builder.function.__module__
    ours = gradtx.scale(0.5)
    assert ours.update.__qualname__ == optax.scale(0.5).update.__qualname__
    init, update = pickle.loads(pickle.dumps((ours.init, ours.update)))
    assert update(2.0, init(1.0))[0] == 1.0
    foreign = pickle.loads(pickle.dumps(optax.GradientTransformation(*ours)))
    assert foreign.update(2.0, foreign.init(1.0))[0] == 1.0


@pytest.mark.parametrize("name", ["MaybeUpdateState", "additive_weight_decay", "maybe_update"])
def test_a_name_that_optax_has_dropped_warns(name):
    with pytest.warns(DeprecationWarning, match=f"gradtx.{name} is gradtx"):
        assert getattr(gradtx, name) is not None
