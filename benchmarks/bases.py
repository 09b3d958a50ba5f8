"""Losses of bases by products beside those of QR, with the same settings and seeds.

    python -m benchmarks.bases [--only soap] [--problems transformer]    run what is missing
    python -m benchmarks.bases --docs                                    its table into docs/

SOAP and three of its kin on the leaderboard's transformer and convolutions, at every step and at
every tenth. SOAP has the setting that the leaderboard found for it, with QR at every tenth step;
the others have that one's decays and the best of six rates, tried on one other seed with QR at
every tenth step. Nothing is searched with products. Runs have half the leaderboard's steps.
"""

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import gradtx
from benchmarks.leaderboard import results, search
from benchmarks.leaderboard.problems import PROBLEMS, Problem
from benchmarks.leaderboard.spaces import Space
from benchmarks.leaderboard.statistics import interval
from benchmarks.results import Table, with_tables

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "choosing_measured.md"
TITLE = "Bases by products beside QR"
BUILDS = {
    "soap": gradtx.soap,
    "kl_soap": gradtx.kl_soap,
    "soap_muon": gradtx.soap_muon,
    "kl_shampoo": gradtx.kl_shampoo,
}
RATES = dict.fromkeys(("kl_soap", "soap_muon", "kl_shampoo"), 3e-3)
FACTORS = np.array([1 / 3, 1, 3, 9, 27, 81])
OVER = ("convolutions", "transformer")
STEPS = 150
EVERY = (10, 1)
BASES = ("qr", "products")

Found = dict[str, Any]


def read() -> Found:
    return results.load("bases", RESULTS)


def problem_of(name: str) -> Problem:
    return PROBLEMS[name]()._replace(steps=STEPS)


def space(name: str, every: int, basis: str, setting: dict[str, float]) -> Space:
    build = functools.partial(BUILDS[name], precondition_frequency=every, basis=basis)
    return Space(build, setting, {}, "", ("learning_rate",))


def setting(problem: str, name: str) -> dict[str, float]:
    """What all runs of an optimizer on a problem have, found with QR at every tenth step."""
    found = dict(results.load(problem)["soap"]["setting"])
    if name == "soap":
        return found
    key = f"{problem} {name} rate"
    if key not in read():
        rates = RATES[name] * FACTORS
        runs = search.Runs(problem_of(problem), space(name, 10, "qr", found))
        tried = search.repeated(found, len(rates)) | {"learning_rate": rates}
        last = runs(tried, np.full(len(rates), search.SEARCH_SEED))[:, -1]
        best = int(np.argmin(np.where(np.isfinite(last), last, np.inf)))
        losses = [search.number(x) for x in last]
        tuned = {"rate": search.number(rates[best]), "losses": losses}
        results.keep("bases", key, tuned, RESULTS)
    return found | {"learning_rate": read()[key]["rate"]}


def run(problems: list[str], only: list[str]) -> None:
    for name in only:
        for problem in problems:
            for every, basis in ((e, b) for e in EVERY for b in BASES):
                key = f"{problem} {name} {every} {basis}"
                if key in read():
                    continue
                start, chosen = time.monotonic(), setting(problem, name)
                runs = search.Runs(problem_of(problem), space(name, every, basis, chosen))
                curves = runs(search.repeated(chosen, search.SEEDS), np.arange(search.SEEDS))
                third, last = curves[:, search.POINTS // 3], curves[:, -1]
                results.keep(
                    "bases",
                    key,
                    {
                        "setting": chosen,
                        "losses": [search.number(x) for x in last],
                        "after a third": [search.number(x) for x in third],
                        "microseconds_a_step": search.number(1e6 * runs.seconds / runs.steps),
                    },
                    RESULTS,
                )
                print(f"{key:38} {last.mean():8.4g} {time.monotonic() - start:6.1f} s", flush=True)


def compared(products: list[float], by_qr: list[float]) -> tuple[str, str]:
    """The geometric mean of the losses over QR's, its 95 % interval, and p, paired by seed."""
    ratios = np.array(products) / np.array(by_qr)
    low, high = interval(ratios)
    p = float(stats.ttest_1samp(np.log(ratios), 0).pvalue)
    return f"{np.exp(np.log(ratios).mean()):.3f} ({low:.3f} to {high:.3f})", f"{p:.2g}"


def table() -> Table:
    header = ["problem, optimizer, every", "QR's loss", "after a third", "p", "at the end", "p"]
    rows, found = [], read()
    for problem, name, every in ((p, n, e) for p in OVER for n in BUILDS for e in EVERY):
        pair = [found.get(f"{problem} {name} {every} {basis}") for basis in BASES]
        if all(pair):
            by_qr, products = pair
            columns = [
                compared(products[when], by_qr[when]) for when in ("after a third", "losses")
            ]
            mean = np.exp(np.log(by_qr["losses"]).mean())
            label = f"{problem}, {name}, {every}"
            rows.append([label, f"{mean:.4g}", *columns[0], *columns[1]])
    return Table(TITLE, header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Losses of bases by products beside QR's.")
    parser.add_argument("--only", nargs="*", choices=BUILDS, default=list(BUILDS))
    parser.add_argument("--problems", nargs="*", choices=OVER, default=list(OVER))
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args()
    if given.docs:
        PAGE.write_text(with_tables(PAGE.read_text(), [table()]))
    else:
        run(given.problems, given.only)
        print("\n".join(table().lines()))
