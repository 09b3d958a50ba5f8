"""The coordinate check passes what transfers, and fails what does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

WIDTHS = (64, 128, 256, 512)
BATCH = (np.random.default_rng(0).normal(size=(16, 8)), np.arange(16) % 4)


def initial(width):
    rng = np.random.default_rng(width)
    shapes = {"in": (8, width), "mid": (width, width), "head": (width, 4)}
    return {
        name: {"kernel": jnp.asarray(rng.normal(size=s) / s[0] ** 0.5, jnp.float32)}
        for name, s in shapes.items()
    }


def activations(p, batch):
    first = jax.nn.relu(batch[0] @ p["in"]["kernel"])
    second = jax.nn.relu(first @ p["mid"]["kernel"])
    return {"first": first, "second": second, "out": second @ p["head"]["kernel"]}


def loss(p, batch):
    scores = activations(p, batch)["out"]
    return jnp.mean(gradtx.softmax_cross_entropy_with_integer_labels(scores, batch[1]))


OPTIMIZERS = {
    "adam": lambda: gradtx.adam(3e-3),
    "lion": lambda: gradtx.lion(1e-3, weight_decay=0.0),
    "muon": lambda: gradtx.muon(0.03, scale="moonshot"),
    "sgd": lambda: gradtx.sgd(0.1),
}


def checked(name, transferred):
    small = initial(WIDTHS[0])

    def make(width):
        params, tx = initial(width), OPTIMIZERS[name]()
        if transferred:
            tx = gradtx.transfer(tx, small, params)
            params = gradtx.transfer_initial(tx, params, small)
        return params, tx

    return gradtx.coordinate_check(make, loss, activations, BATCH, WIDTHS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in ("adam", "muon"))) for n in OPTIMIZERS],
)
def test_it_passes_with_transfer_and_fails_without(name):
    found = checked(name, True)
    assert found.passed, str(found)
    wrong = checked(name, False)
    assert not wrong.passed, str(wrong)
    assert "failed: " in str(wrong)


def test_slopes_are_powers_and_there_is_a_picture():
    found = gradtx.CoordinateCheck((2, 4, 8), {"x": (1.0, 1.0, 1.0)}, {"x": (1.0, 4.0, 16.0)}, 0.2)
    np.testing.assert_allclose(found.slopes["x"], (0, 2), atol=1e-12)
    assert found.failures == ("x",)
    pytest.importorskip("matplotlib")
    assert len(found.plot().axes) == 2


def test_a_table_has_the_slopes_of_all_activations():
    """Those of zeros are flat, and what is zero at some widths alone has none."""
    sizes = {"rising": (0.2, 0.4), "a": (0.0, 0.0), "b": (0.0, 0.5), "c": (np.inf, 1.0)}
    found = gradtx.CoordinateCheck((2, 4), sizes, dict.fromkeys(sizes, (0.25, 0.5)), 1.5)
    assert str(found).splitlines() == [
        "powers of the width, within 1.5: failed: b, c",
        "activation    size  change",
        "rising       +1.00   +1.00",
        "a            +0.00   +1.00",
        "b             +nan   +1.00",
        "c             +nan   +1.00",
    ]


def test_bad_widths_are_refused():
    with pytest.raises(ValueError, match="widths"):
        gradtx.coordinate_check(lambda w: None, loss, activations, BATCH, (64,))


@pytest.mark.slow
def test_sizes_of_half_precision_do_not_overflow():
    """What one step changes in them is its rate times the gradient, which is 1."""

    def make(width):
        return {"w": jnp.full(width, 300.0, jnp.float16)}, gradtx.sgd(0.5)

    def look(p, x):
        return {"w": p["w"]}

    found = gradtx.coordinate_check(
        make, lambda p, x: jnp.sum(p["w"]), look, 0.0, (4, 16), steps=1, bound=0.1
    )
    assert found.sizes["w"] == (300.0, 300.0)
    assert found.changes["w"] == (0.5, 0.5)
    assert found.bound == 0.1


@pytest.mark.slow
def test_a_run_in_which_nothing_moves_does_not_pass():
    """Such as steps that parameters in bfloat16 round away."""

    def make(width):
        return {"w": jnp.full(width, 2.0, jnp.bfloat16)}, gradtx.sgd(1e-4)

    def seen(p, x):
        return {"w": p["w"], "one": p["w"][:1]}

    check = gradtx.coordinate_check(
        make, lambda p, x: jnp.sum(p["w"].astype("float32")), seen, 0.0, (4, 64)
    )
    assert sorted(check.failures) == ["one", "w"]
    assert not check.passed


@pytest.mark.slow
def test_a_batch_of_two_and_what_make_returns():
    def made(width):
        return {"w": jnp.ones(width) / width}, gradtx.sgd(0.1 / width)

    def loss(p, x, y):
        return (x * p["w"].sum() - y) ** 2

    def look(p, x, y):
        return {"sum": x * p["w"].sum()}

    assert gradtx.coordinate_check(made, loss, look, (1.0, 2.0), (4, 16)).passed
    with pytest.raises(TypeError, match=r"make must return \(params, tx\)"):
        gradtx.coordinate_check(lambda width: jnp.ones(width), loss, look, (1.0, 2.0), (4, 16))
