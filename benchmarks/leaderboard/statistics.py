"""How sure: intervals by the bootstrap, Welch's tests, Holm's correction for many of them.

All on the logarithms of losses, whose differences are ratios: losses of different problems then
compare, and a run twice as bad weighs as much as one twice as good.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

SIGNIFICANT = 0.01


class Comparison(NamedTuple):
    """The geometric mean of the losses over that of others, its 95 % interval, and p."""

    ratio: float
    low: float
    high: float
    p: float


def losses(entry: Mapping[str, Any]) -> np.ndarray:
    """Those of all seeds; a run that diverged counts with the loss that it began with."""
    start = entry["curve"]["median"][0]
    return np.array([start if x is None else x for x in entry["losses"]])


def interval(of: np.ndarray, to: np.ndarray | None = None, draws: int = 10_000) -> tuple[Any, Any]:
    """The 95 % interval of a geometric mean, or of the ratio of two, by the bootstrap."""
    rng = np.random.default_rng(0)

    def means(x: np.ndarray) -> np.ndarray:
        return np.log(x)[rng.integers(len(x), size=(draws, len(x)))].mean(1)

    found = means(of) - (0 if to is None else means(to))
    low, high = np.exp(np.quantile(found, (0.025, 0.975)))
    return float(low), float(high)


def compare(of: np.ndarray, to: np.ndarray) -> Comparison:
    p = float(stats.ttest_ind(np.log(of), np.log(to), equal_var=False).pvalue)
    ratio = np.exp(np.log(of).mean() - np.log(to).mean())
    return Comparison(float(ratio), *interval(of, to), p)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Adjusted for as many tests, so that one error among all of them is as rare as in one."""
    found, largest = {}, 0.0
    for i, name in enumerate(sorted(p, key=lambda name: p[name])):
        largest = max(largest, min(1.0, (len(p) - i) * p[name]))
        found[name] = largest
    return found


def against(reference: str, entries: Mapping[str, Any]) -> dict[str, Comparison]:
    """Each optimizer of a problem against one of them, with p adjusted for their number."""
    to = losses(entries[reference])
    found = {
        name: compare(losses(entry), to) for name, entry in entries.items() if name != reference
    }
    adjusted = holm({name: each.p for name, each in found.items()})
    return {name: each._replace(p=adjusted[name]) for name, each in found.items()}


def verdict(comparison: Comparison) -> str:
    if not comparison.p < SIGNIFICANT:
        return "no difference seen"
    return "better" if comparison.ratio < 1 else "worse"


def steps(entry: Mapping[str, Any]) -> float | None:
    """The median steps to the target, None unless most seeds reach it."""
    found = np.median([np.inf if x is None else x for x in entry["steps"]])
    return float(found) if np.isfinite(found) else None


def basin(entry: Mapping[str, Any], factors: tuple[float, ...], most: float = 1.2) -> float | None:
    """The decades of learning rates around the one found whose loss is at most `most` times its.

    Of rates half a decade apart each counts for half a decade, up to the first that is worse.
    """
    tried = [x for x in entry["trials"] if x is not None]
    if entry["basin"] is None or not tried:
        return None
    bound = most * min(tried)
    within = {f: x is not None and x <= bound for f, x in zip(factors, entry["basin"], strict=True)}
    count = 0
    for side in (sorted(f for f in factors if f > 1), sorted(f for f in factors if f < 1)[::-1]):
        for factor in side:
            if not within[factor]:
                break
            count += 1
    return count / 2
