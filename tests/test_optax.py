"""The six everyday optimizers against live Optax, to 1e-6; signatures; checkpoints."""

import functools
import inspect

import jax
import numpy as np
import optax
import pytest

import gradtx
from tests import oracle

SIX = {
    "adam": lambda lib: lib.adam(1e-3),
    "adamw": lambda lib: lib.adamw(1e-3, weight_decay=0.1),
    "sgd": lambda lib: lib.sgd(1e-3, momentum=0.9),
    "adagrad": lambda lib: lib.adagrad(1e-3),
    "rmsprop": lambda lib: lib.rmsprop(1e-3),
    "lion": lambda lib: lib.lion(1e-3),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SIX)
def test_a_hundred_steps_like_optax(name):
    p, gs = 1 + np.abs(oracle.parameters()), oracle.gradients(steps=100)
    ours, theirs = (oracle.run(SIX[name](lib), p, gs) for lib in (gradtx, optax))
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=1e-6)


# Where an argument's name, place or default is not Optax's, and why.
DIFFERENT: dict[str, str] = {
    "microbatch": "accumulators are named by strings, not by an enumeration",
    "scale_by_factored_rms": "decay_rate_fn is None for the decay that Optax names by a function",
    "adopt": "clip_value_fn is None for the fourth root that Optax writes as a lambda",
    "scale_by_adopt": "clip_value_fn is None for the fourth root that Optax writes as a lambda",
    "sophia": "hessian_diagonal_fn is None for the estimator that Optax builds there",
    "lbfgs": "the default line search is gradtx's own, with the same arguments",
}


# Where Optax's functions are, and where ours.
PLACES = (
    (optax, gradtx),
    (optax.contrib, gradtx),
    (optax.transforms, gradtx),
    (optax.schedules, gradtx),
    (optax.tree, gradtx.tree),
    (optax.projections, gradtx.projections),
)


def signature(function):
    """Of a class that of its instances: arguments with a place, and those given by name alone."""
    parameters = list(inspect.signature(function).parameters.values())
    named = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    return [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.KEYWORD_ONLY)], named


def has_signature(x):
    wrapped = isinstance(x, functools.partial) or hasattr(x, "__wrapped__")
    return inspect.isfunction(x) or wrapped or (isinstance(x, type) and not issubclass(x, tuple))


def same_default(mine, theirs):
    # float32 is written as a type by one and as a dtype by the other.
    return mine is theirs or mine == theirs or str(mine) == str(theirs)


def test_signatures_are_optax_s():
    """The same names in the same order with the same defaults; what is ours comes after them. What
    is given by name alone has no place."""
    compared = set()
    for theirs, ours in PLACES:
        for name in vars(theirs).keys() & set(dir(ours)):
            pair = getattr(ours, name), getattr(theirs, name)
            if name in DIFFERENT or not all(map(has_signature, pair)):
                continue
            (mine, named), (expected, known) = map(signature, pair)
            assert known.keys() <= named.keys(), name
            mine = [*mine[: len(expected)], *(named[argument] for argument in known)]
            expected = [*expected, *known.values()]
            assert [p.name for p in mine] == [p.name for p in expected], name
            for a, b in zip(mine, expected, strict=True):
                assert same_default(a.default, b.default), (name, a, b)
            compared.add((ours.__name__, name))
    assert len(compared) > 175


# Where a state has other fields than Optax's, and why.
OTHER_FIELDS = {"MaskedNode": "None stands in its place, and no class"}


def test_states_have_optax_s_fields():
    compared = 0
    for theirs, ours in PLACES:
        for name in vars(theirs).keys() & set(dir(ours)):
            mine, expected = getattr(ours, name), getattr(theirs, name)
            if name in OTHER_FIELDS or not hasattr(expected, "_fields"):
                continue
            assert mine._fields[: len(expected._fields)] == expected._fields, name
            compared += 1
    assert compared > 40


def test_deliberate_differences_are_still_there():
    for name in DIFFERENT:
        place, ours = next((p for p in PLACES if hasattr(p[0], name)), (None, None))
        assert place is not None, name
        found = map(signature, (getattr(ours, name), getattr(place, name)))
        mine, expected = ([*placed, *named.values()] for placed, named in found)
        names = [p.name for p in expected]
        alike = [p.name for p in mine[: len(expected)]] == names and all(
            same_default(a.default, b.default) for a, b in zip(mine, expected, strict=False)
        )
        assert not alike, name


def test_the_state_of_optax_goes_on_here():
    p, gs = oracle.parameters().astype(np.float32), oracle.gradients(steps=2).astype(np.float32)
    theirs, ours = optax.adam(1e-3), gradtx.adam(1e-3)
    _, state = theirs.update(gs[0], theirs.init(p), p)
    want, _ = theirs.update(gs[1], state, p)
    got, new = ours.update(gs[1], state, p)
    # Optax's bias correction is off by 1.3e-5, of which the root takes half.
    np.testing.assert_allclose(got, want, rtol=1.3e-5)
    assert jax.tree.structure(new) == jax.tree.structure(state)


def test_inside_an_optax_chain_and_around_optax():
    p, gs = oracle.parameters(), oracle.gradients(steps=10)
    run = functools.partial(oracle.run, p=p, gs=gs)
    want = run(optax.chain(optax.clip(0.5), optax.adam(1e-2)))
    for tx in (
        optax.chain(gradtx.clip(0.5), gradtx.adam(1e-2)),
        gradtx.chain(optax.clip(0.5), gradtx.adam(1e-2)),
        gradtx.chain(gradtx.clip(0.5), optax.adam(1e-2)),
    ):
        np.testing.assert_allclose(run(tx), want, rtol=1e-5, atol=1e-6)
