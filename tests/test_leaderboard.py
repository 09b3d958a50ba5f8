"""The leaderboard's machinery, on problems with known answers, and what is committed of it."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

pytest.importorskip("sklearn")

from benchmarks.leaderboard import __main__ as command, results, search, statistics
from benchmarks.leaderboard.problems import PROBLEMS, Problem
from benchmarks.leaderboard.spaces import Range, Space, hidden, space, spaces

STEPS = 25


def bowl():
    """Half the square of one number, from 1 plus the seed's noise."""
    return Problem(
        start=lambda key: jnp.asarray([1.0 + 0.1 * jax.random.normal(key)]),
        batch=lambda key: None,
        loss=lambda p, _: 0.5 * jnp.sum(p**2),
        judged=lambda p: 0.5 * jnp.sum(p**2),
        steps=STEPS,
        target=0.05,
        reason="a tenth of the loss at 1",
    )


DESCENT = space(gradtx.sgd, (0.01, Range(1e-2, 10.0)), "none")


def descent(start, rate):
    """The losses of gradient descent, with a warm-up of a step and a cosine to zero."""
    warm = round(0.05 * STEPS)
    t = np.arange(STEPS)
    down = 0.5 * (1 + np.cos(np.pi * np.clip((t - warm) / (STEPS - warm), 0, 1)))
    scale = np.where(t < warm, t / warm, down)
    x = start * np.concatenate([[1.0], np.cumprod(1 - rate * scale)])
    return 0.5 * x**2


@pytest.fixture(scope="module")
def found():
    return search.result(bowl(), DESCENT, trials=8, seeds=4)


@pytest.mark.slow
def test_a_search_finds_the_best_trial_and_runs_it_with_other_seeds(found):
    rates = DESCENT.settings(8)["learning_rate"]
    first, _ = jax.random.split(jax.random.key(search.SEARCH_SEED))
    start = float(bowl().start(first)[0])
    expected = [descent(start, rate)[-1] for rate in rates]
    np.testing.assert_allclose(found["trials"], expected, rtol=1e-3, atol=1e-12)
    best = rates[np.argmin(expected)]
    assert found["setting"]["learning_rate"] == pytest.approx(best, rel=1e-4)

    starts = [float(bowl().start(jax.random.split(jax.random.key(s))[0])[0]) for s in range(4)]
    curves = np.array([descent(x, best) for x in starts])
    np.testing.assert_allclose(found["losses"], curves[:, -1], rtol=1e-2, atol=1e-12)
    np.testing.assert_allclose(found["curve"]["high"], curves.max(0), rtol=1e-2, atol=1e-9)
    assert found["steps"] == [int(np.flatnonzero(c <= 0.05)[0]) for c in curves]
    assert len(set(found["losses"])) == 4

    moved = [descent(start, best * f)[-1] for f in search.FACTORS]
    for got, want in zip(found["basin"], moved, strict=True):
        assert (got is None and want > 1e30) or got == pytest.approx(want, rel=1e-2, abs=1e-12)
    assert found["state_bytes"] == 0
    assert found["microseconds_a_step"] > 0
    json.dumps(found, allow_nan=False)


@pytest.mark.slow
def test_a_batch_of_runs_is_what_they_are_one_after_another():
    settings, seeds = DESCENT.settings(4), np.arange(4)
    one = search.Runs(bowl(), DESCENT)(settings, seeds)
    np.testing.assert_allclose(search.Runs(bowl(), DESCENT, 4)(settings, seeds), one, rtol=1e-5)


@pytest.mark.slow
def test_what_diverges_is_kept_and_counts_with_its_start():
    diverging = space(gradtx.sgd, (1e30, Range(1e30, 1e33)), "none")
    got = search.result(bowl(), diverging, trials=2, seeds=3)
    assert got["trials"] == [None, None]
    assert got["losses"] == got["steps"] == [None] * 3
    np.testing.assert_allclose(statistics.losses(got), got["curve"]["median"][0])
    assert statistics.steps(got) is None
    assert statistics.basin(got, search.FACTORS) is None


@pytest.mark.slow
def test_results_are_resumed_and_refusals_kept(tmp_path, monkeypatch, capsys):
    def refusing(learning_rate):
        raise TypeError("refusing: no such parameters")

    monkeypatch.setattr(results, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "PROBLEMS", {"bowl": bowl})
    both = {"sgd": DESCENT, "refusing": Space(refusing, {"learning_rate": 1.0}, {}, "none")}
    monkeypatch.setattr(command, "spaces", lambda: both)
    monkeypatch.setattr(command, "PRINCIPAL", {"refusing": both["refusing"]})
    command.run(["bowl"], [], minutes=0.0)
    assert not list(tmp_path.iterdir())
    command.run(["bowl"], [], minutes=5.0)
    kept = results.load("bowl")
    assert kept["refusing"]["failure"] == "TypeError: refusing: no such parameters"
    assert len(kept["sgd"]["losses"]) == search.SEEDS
    assert kept["sgd"]["versions"]["jax"] == jax.__version__
    assert capsys.readouterr().out.index("refusing") >= 0
    command.run(["bowl"], [], minutes=5.0)
    assert capsys.readouterr().out == ""
    assert statistics.against("sgd", kept) == {}


def test_intervals_and_tests():
    rng = np.random.default_rng(0)
    a, b = np.exp(rng.normal(0.0, 0.1, 12)), np.exp(rng.normal(0.5, 0.1, 12))
    c = statistics.compare(b, a)
    assert c.low < np.exp(0.5) < c.high
    assert c.low < c.ratio < c.high < 2
    assert statistics.verdict(c) == "worse"
    assert statistics.verdict(statistics.compare(a, b)) == "better"
    assert statistics.verdict(statistics.compare(a, a)) == "no difference seen"
    # Welch's formula, with the p-value by drawing from Student's t.
    a, b = a[:3] * 1.5, b[:3]
    x, y = np.log(b), np.log(a)
    errors = np.array([x.var(ddof=1), y.var(ddof=1)]) / 3
    t = (x.mean() - y.mean()) / np.sqrt(errors.sum())
    freedom = errors.sum() ** 2 / (errors**2 / 2).sum()
    p = np.mean(np.abs(rng.standard_t(freedom, 200_000)) > abs(t))
    assert 0.01 < p < 0.99
    assert statistics.compare(b, a).p == pytest.approx(p, abs=0.005)


def test_a_bootstrapped_interval_holds_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        low, high = statistics.interval(np.exp(rng.normal(size=12)), draws=300)
        held += low < 1 < high
    assert 0.85 < held / 200 < 0.98


def test_holm():
    """By hand: 3 x 0.01, then 2 x 0.02, then 0.03 once, but not below the one before."""
    got = statistics.holm({"c": 0.03, "a": 0.01, "b": 0.02})
    assert got == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})
    assert statistics.holm({"a": 0.9, "b": 0.8})["b"] == 1.0


def test_a_basin_ends_where_the_loss_is_first_too_large():
    factors = (0.01, 0.1, 10**-0.5, 10**0.5, 10.0, 100.0)
    entry = {"trials": [1.0, 2.0, None], "basin": [1.0, 1.3, 1.1, 1.1, 1.19, None]}
    assert statistics.basin(entry, factors) == 1.5
    assert statistics.basin(entry | {"basin": None}, factors) is None


def test_every_optimizer_is_searched_alike():
    from benchmarks.convergence import optimizers

    found = spaces()
    assert set(optimizers()) <= set(found)
    for name, each in found.items():
        settings = each.settings(search.TRIALS)
        assert set(each.ranges) <= set(each.published) == set(settings), name
        assert all(len(x) == search.TRIALS for x in settings.values())
        for argument, span in each.ranges.items():
            x = settings[argument]
            assert x[0] == each.published[argument]
            ends = (1 - span.high, 1 - span.low) if span.below_one else (span.low, span.high)
            assert ends[0] <= x[1:].min() < x[1:].max() <= ends[1]
            if "rate" in argument and argument not in ("learning_rate", "max_learning_rate"):
                assert span.high / span.low == pytest.approx(1000)
        assert each.source
    for name in ("adamuon", "muon2", "newton_muon"):  # the rest of their leaves has AdamW's rate
        assert "adam_learning_rate" in found[name].ranges


def test_hidden_matrices():
    numbers = gradtx.MuonDimensionNumbers()
    w, b = jnp.ones((2, 2)), jnp.ones(2)
    assert hidden({"hidden": {"a": w}, "last": w, "b": b}) == {
        "hidden": {"a": numbers},
        "last": None,
        "b": None,
    }
    assert hidden({"table": w, "b": b}) == {"table": numbers, "b": None}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_committed_is_whole(name):
    entries = results.load(name)
    assert set(entries) <= set(spaces())
    for optimizer, entry in entries.items():
        assert set(entry["versions"]) == {"gradtx", "jax", "numpy", "python"}
        if "failure" not in entry:
            assert len(entry["trials"]) == search.TRIALS, optimizer
            assert len(entry["losses"]) == len(entry["steps"]) == search.SEEDS >= 8
            assert set(entry["setting"]) == set(spaces()[optimizer].published)


def entry(losses):
    """Of twelve seeds whose median loss falls from 9 to its last value in a line."""
    return {
        "losses": list(losses),
        "curve": {"median": list(np.linspace(9, np.median(losses), 101))},
    }


def test_published_orders_are_judged():
    from benchmarks.leaderboard import report

    rng = np.random.default_rng(0)
    base = np.exp(0.01 * rng.normal(size=12))
    entries = {
        "adamw": entry(base),
        "same": entry(base[::-1]),
        "good": entry(0.3 * base),
        "bad": entry(1.03 * base),
        "failed": {"failure": "TypeError"},
    }

    def judged(name, claim):
        return report.judged(report.Order(name, claim, "adamw", "", ""), entries).split(":")[0]

    assert judged("good", report.FEWER) == "seen"
    assert judged("same", report.FEWER) == judged("bad", report.FEWER) == "not seen"
    assert judged("good", report.AT_LEAST) == judged("same", report.AT_LEAST) == "seen"
    assert judged("bad", report.AT_LEAST) == "not seen"
    assert judged("bad", report.NEAR) == "seen"
    assert report.share_of_steps(entry(0 * base - 7), entry(base)) == pytest.approx(0.5, abs=0.02)
    assert report.share_of_steps(entries["bad"], entries["adamw"]) == np.inf
    assert judged("failed", report.NEAR) == judged("missing", report.NEAR) == "not run"


@pytest.mark.slow
def test_page_and_settings_are_those_of_the_results():
    from benchmarks.leaderboard import report

    # Which optimizers wait to be run is no result: it changes with every new one.
    page, expected = (
        re.sub(r"(?m)^Not run on any problem: .*", "", text)
        for text in (report.PAGE.read_text(), report.page())
    )
    assert page == expected
    assert json.loads(report.TUNED.read_text()) == report.tuned()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_starts_above_its_target_and_is_trained(name):
    problem = PROBLEMS[name]()._replace(steps=search.POINTS)
    adam = spaces()["adam"]
    rates = {"learning_rate": np.full(2, 0.03), "b1": np.full(2, 0.9)}
    curves = search.Runs(problem, adam)(rates, np.arange(2))
    assert (curves[:, 0] > 2 * problem.target).all() or name == "transformer"
    assert (curves[:, 0] > problem.target).all()
    assert (curves[:, -1] < 0.8 * curves[:, 0]).all()
