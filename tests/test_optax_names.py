"""Every public name of the installed Optax is here, with its parameters, or left out."""

import inspect
import pathlib
import warnings

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.absences import DIFFERENT, LEFT_OUT
from tests.catalogue import CATALOGUE

TESTS = pathlib.Path(__file__).parent

# Arguments whose defaults are values that only Optax could have.
OTHER_DEFAULTS = {
    "lbfgs": "linesearch",  # a pair of Optax's
    "scale_by_factored_rms": "decay_rate_fn",  # a private function
    "microbatch": "accumulator",  # of an enumeration
    "adopt": "clip_value_fn",  # a lambda
    "scale_by_adopt": "clip_value_fn",
    "sophia": "hessian_diagonal_fn",  # a pair of Optax's
}


def public_names(module, path=""):
    """Dotted names of all that is public in a module of Optax and in those below it."""
    for name in {**vars(module), **getattr(module, "_deprecations", {})}:
        value = vars(module).get(name)
        if name.startswith("_") or name in {"Any", "NamedTuple", "Protocol", "Sequence"}:
            continue
        if not inspect.ismodule(value):
            yield path + name
        elif value.__name__.startswith("optax."):
            yield from public_names(value, f"{path}{name}.")


ALL = list(public_names(optax))


def found_in(library, path):
    for part in path.split("."):
        library = getattr(library, part)
    return library


def left_out(path):
    parts = path.split(".")
    return any(".".join(parts[: i + 1]) in LEFT_OUT for i in range(len(parts)))


def parameters(function):
    return list(inspect.signature(function).parameters.values())


def by_place_and_name(function):
    """The parameters whose place counts, and those that are given by name alone."""
    named = {p.name: p for p in parameters(function) if p.kind is p.KEYWORD_ONLY}
    return [p for p in parameters(function) if p.kind is not p.KEYWORD_ONLY], named


def test_all_are_looked_at():
    assert len(ALL) > 400
    modules = {"contrib", "losses", "projections", "schedules", "transforms", "tree", "tree_utils"}
    assert {path.split(".")[0] for path in ALL} >= modules


@pytest.mark.quick(204)
@pytest.mark.parametrize("path", ALL)
def test_it_is_here_or_left_out(path):
    if left_out(path):
        with pytest.raises(AttributeError, match="use "):
            found_in(gradtx, path)
        return
    ours = found_in(gradtx, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = found_in(optax, path)
    if not inspect.isroutine(theirs) and not (inspect.isclass(theirs) and inspect.isclass(ours)):
        return  # an annotation
    if getattr(theirs, "_is_protocol", False):
        assert ours._is_protocol
        return
    (ours, named), (theirs, known) = by_place_and_name(ours), by_place_and_name(theirs)
    assert [p.name for p in ours[: len(theirs)]] == [q.name for q in theirs]
    assert known.keys() <= named.keys()
    both = [*zip(ours, theirs, strict=False), *((named[name], q) for name, q in known.items())]
    for p, q in both:
        assert p.kind == q.kind
        if OTHER_DEFAULTS.get(path.rpartition(".")[2]) != q.name:
            assert p.default == q.default
    for p in [*ours[len(theirs) :], *(named[name] for name in named.keys() - known.keys())]:
        assert p.default is not p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)


def test_tables_name_what_is_there():
    everything = set(ALL) | {path.rpartition(".")[0] for path in ALL} | {"monte_carlo"}
    assert LEFT_OUT.keys() <= everything | {"experimental"}
    assert DIFFERENT.keys() <= {path.rpartition(".")[2] for path in ALL} | {"__version__"}


def test_what_is_said_instead_works():
    """Of what can be said in a line."""
    m = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    w, q = jnp.linalg.eigh(m)
    root = (q * w ** (-1 / 4)) @ q.T
    np.testing.assert_allclose(root, optax.matrix_inverse_pth_root(m, 4)[0], rtol=1e-4, atol=1e-5)
    b = jnp.array([5.0, -6.0])
    tx = gradtx.chain(gradtx.sgd(0.05), gradtx.project("non_negative"))
    found = gradtx.solve(lambda x: jnp.sum((m @ x - b) ** 2), jnp.zeros(2), tx, max_steps=300)
    np.testing.assert_allclose(found.params, optax.nnls(m, b, 300), atol=1e-4)


# Of both libraries, and compared live elsewhere than in test_contracts.test_like_optax, or not.
COMPARED = {
    "hutchinson_estimator_diag_hessian": "optimizers/test_sophia.py",
    "sophia": "optimizers/test_sophia.py",
    "lbfgs": "optimizers/test_lbfgs.py",
    "scale_by_lbfgs": "optimizers/test_lbfgs.py",
    "scale_by_zoom_linesearch": "transforms/test_zoom.py",
    "radam": "optimizers/test_radam.py",
    "partition": "composition/test_groups.py",
    "selective_transform": "composition/test_groups.py",
    "lookahead": "wrappers/test_lookahead.py",
    "monitor": "transforms/test_monitoring.py",
    "measure_with_ema": "transforms/test_monitoring.py",
    "sam": "wrappers/test_sam.py",
    "masked": "composition/test_masking.py",
    "stateless": "composition/test_chain.py",
    "stateless_with_tree_map": "composition/test_chain.py",
    "optimistic_adam": "optimizers/test_optimistic.py",
}
NOT_COMPARED = {
    "scale_by_radam": "as radam",
    "scale_by_muon": "as muon",
    "scale_by_galore": "as galore",
    "rprop": "Optax's update is that of the step before; compared with its paper",
    "scale_by_rprop": "Optax's update is that of the step before; compared with its paper",
}


def test_what_both_have_is_compared_live():
    both = {n for n in CATALOGUE if n in vars(optax) or n in vars(optax.contrib)}
    twins = {name for name, entry in CATALOGUE.items() if entry.optax is not None}
    assert both - twins == COMPARED.keys() | NOT_COMPARED.keys()
    for name, file in COMPARED.items():
        assert name in (TESTS / file).read_text()
