"""The leaderboard's machinery, on problems with known answers, and what is committed of it."""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gradtx

pytest.importorskip("sklearn")

from benchmarks.leaderboard import __main__ as command, report, results, search, statistics
from benchmarks.leaderboard.problems import PROBLEMS, Problem
from benchmarks.leaderboard.spaces import Range, Space, hidden, outside, space, spaces

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


@pytest.fixture
def small(monkeypatch):
    """The bowl as the only problem, and two optimizers of which one raises an error."""

    def refusing(learning_rate):
        raise RuntimeError("no such parameters")

    both = {"sgd": DESCENT, "refusing": Space(refusing, {"learning_rate": 1.0}, {}, "none")}
    for module in (command, report):
        monkeypatch.setattr(module, "PROBLEMS", {"bowl": bowl})
        monkeypatch.setattr(module, "spaces", lambda: both)
        monkeypatch.setattr(module, "PRINCIPAL", {"refusing": both["refusing"]})
    monkeypatch.setattr(command, "outside", lambda name: DESCENT)
    return both


@pytest.mark.slow
def test_results_are_resumed_and_failures_said_and_tried_again(tmp_path, small, capsys):
    assert command.main(["--minutes", "0", "--out", str(tmp_path)]) == 0
    assert not list(tmp_path.iterdir())
    for _ in range(2):  # the second time there is nothing else to run
        assert command.main(["--out", str(tmp_path)]) == 1
        said = capsys.readouterr()
        assert "refusing" in said.err
        assert "failed: RuntimeError: no such parameters" in said.err
        entries = results.load("bowl", tmp_path)
        assert list(entries) == ["sgd"]
    assert said.out == ""
    assert len(entries["sgd"]["losses"]) == search.SEEDS
    assert entries["sgd"]["versions"]["jax"] == jax.__version__
    assert statistics.against("sgd", entries) == {}


def two_seeds(losses):
    made = entry(losses)
    more = {"steps": [1, 1], "trials": [1.0], "basin": [1.0] * len(search.FACTORS)}
    more |= {"setting": {"learning_rate": 0.1}, "state_bytes": 4, "microseconds_a_step": 1.0}
    made["curve"] = dict.fromkeys(("median", "low", "high"), made["curve"]["median"][:26])
    return made | more | {"versions": {"jax": "1"}}


@pytest.mark.slow
def test_a_report_stays_in_its_folder_and_shows_what_is_from_outside(tmp_path, small, monkeypatch):
    shipped = [report.SHIPPED.page, report.SHIPPED.tuned, *report.SHIPPED.pictures.glob("lead*")]
    before = {path: path.stat().st_mtime_ns for path in shipped}
    monkeypatch.setattr(results, "RESULTS", tmp_path / "theirs")
    results.save("bowl", {"adamw": two_seeds([1.0, 1.1]), "sgd": two_seeds([2.0, 2.2])})
    out = tmp_path / "mine"
    results.save("bowl", {"mine.adam:build": two_seeds([0.5, 0.6])}, out)
    figures = []
    monkeypatch.setattr(report, "light_and_dark", lambda draw, path: draw(path))
    monkeypatch.setattr(report, "ORDERS", ())
    monkeypatch.setattr(report, "panels", lambda: panels_of_one(figures))
    assert command.main(["--report", "--out", str(out)]) == 0
    assert "| mine.adam:build |" in (out / "leaderboard.md").read_text()
    assert "mine.adam:build" in json.loads((out / "tuned.json").read_text())
    assert {path.name for path in out.glob("*.png")} == {
        f"leaderboard_{kind}.png" for kind in ("curves", "costs", "basins")
    }
    labels = [figure.axes[0].get_legend_handles_labels()[1] for figure in figures]
    assert all("mine.adam:build" in each for each in labels)
    assert before == {path: path.stat().st_mtime_ns for path in shipped}


def panels_of_one(figures):
    figure, ax = report.plt.subplots()
    figures.append(figure)
    return figure, {"bowl": ax}


def test_an_optimizer_from_outside(tmp_path, monkeypatch, capsys):
    (tmp_path / "outsider.py").write_text(
        "import gradtx\n"
        "from benchmarks.leaderboard.spaces import Range, space\n"
        "def build(learning_rate=0.02, weight_decay=0.1):\n"
        "    return gradtx.adamw(learning_rate, weight_decay=weight_decay)\n"
        "def bare(b1):\n"
        "    return gradtx.adam(0.1, b1)\n"
        "own = space(gradtx.sgd, (0.5, Range(0.1, 1.0)), 'me')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    derived = outside("outsider:build")
    assert derived.published == {"learning_rate": 0.02, "weight_decay": 0.1}
    span = derived.ranges["learning_rate"]
    assert (span.high / span.low, span.low * span.high) == pytest.approx((1000, 0.02**2))
    assert derived.scheduled == ("learning_rate",)
    assert outside("outsider:bare").published == {"b1": 0.9}
    assert outside("outsider:own").published == {"learning_rate": 0.5}
    for name, said in {
        "outsider:missing": "there is no 'missing' in the module 'outsider'",
        "outsider:number": "must be a function of hyperparameters, or a Space, not 3",
        "nowhere:build": "No module named 'nowhere'",
        "adamq": "there is no 'adamq'; there are adamw",
    }.items():
        with pytest.raises(SystemExit):
            command.main(["--only", name, "--out", str(tmp_path / "out")])
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
    rng = np.random.default_rng(0)
    base = np.exp(0.01 * rng.normal(size=12))
    entries = {
        "adamw": entry(base),
        "same": entry(base[::-1]),
        "good": entry(0.3 * base),
        "bad": entry(1.03 * base),
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
    assert judged("missing", report.NEAR) == "not run"


@pytest.mark.slow
def test_page_and_settings_are_those_of_the_results():
    # Which optimizers wait to be run is no result: it changes with every new one.
    entries = report.known(report.SHIPPED.results)
    page, expected = (
        re.sub(r"(?m)^Not run on any problem: .*", "", text)
        for text in (report.SHIPPED.page.read_text(), report.page(entries))
    )
    assert json.loads(report.SHIPPED.tuned.read_text()) == report.tuned(entries)
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the transformer learns Python's help, which has other characters here")
    assert page == expected


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
