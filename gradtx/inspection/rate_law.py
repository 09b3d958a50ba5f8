"""A law for the best learning rate, fitted to runs: a power of width, tokens and batch size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RateLaw:
    """The result of :func:`fit_rate_law`: log rate as a linear function of logs.

    names: the quantities in the law; exponents: their powers; errors: their standard errors;
    constant: the log of the rate where each is 1; deviation: that of a run's log rate from the law;
    ranges: the least and largest value of each among the runs; runs: how many.
    """

    names: tuple[str, ...]
    exponents: tuple[float, ...]
    errors: tuple[float, ...]
    constant: float
    deviation: float
    ranges: tuple[tuple[float, float], ...]
    runs: int
    inverse: tuple[tuple[float, ...], ...]

    def predict(self, *, extrapolate: bool = False, **at: float) -> tuple[float, float]:
        """The rate at some values of all `names`, and the factor of one standard error.

        Args:
            extrapolate: whether a value may lie outside of those of the runs.
            at: the values by name.

        Returns:
            ``(rate, factor)``: a new run's best rate lies within rate / factor and rate * factor
            with the probability of one standard error.

        Raises:
            ValueError: a name is missing, unknown or not positive, or its value is beyond those of
                the runs without `extrapolate`.
        """
        if set(at) != set(self.names) or not all(x > 0 for x in at.values()):
            raise ValueError(
                f"predict takes a positive number for each of {', '.join(self.names)}, not {at!r}"
            )
        for name, (low, high) in zip(self.names, self.ranges, strict=True):
            if not (extrapolate or low <= at[name] <= high):
                raise ValueError(
                    f"predict: {name} = {at[name]:g} is beyond the runs, which have {low:g} to "
                    f"{high:g}; pass extrapolate=True to go there"
                )
        x = np.array([1.0, *(math.log(at[name]) for name in self.names)])
        log = float(x @ np.array([self.constant, *self.exponents]))
        spread = self.deviation * math.sqrt(1 + float(x @ np.array(self.inverse) @ x))
        return math.exp(log), math.exp(spread)

    def __str__(self) -> str:
        powers = [
            f"{n}^({e:.3g} +- {s:.2g})"
            for n, e, s in zip(self.names, self.exponents, self.errors, strict=True)
        ]
        return " ".join([f"rate = {math.exp(self.constant):.4g}", *powers])


def fit_rate_law(runs: Sequence[Mapping[str, Any]]) -> RateLaw:
    r"""Fit the best learning rates of several runs as a power law.

    .. math:: \log \eta = c + \sum_i a_i \log x_i + \sigma z

    by least squares. The standard errors are those of the estimates under independent :math:`z`.

    Args:
        runs: for each, ``{"rate": ..., name: value, ...}``: the best rate, and quantities on which
            it may depend, such as width, tokens and batch, under the same names for all. At least
            two more runs than names.

    Raises:
        ValueError: there are too few runs, a number is not positive, the names differ from run to
            run, or the values do not tell the names apart.

    >>> law = fit_rate_law([{"width": w, "rate": 1 / w} for w in (32, 64, 128)])
    >>> round(law.exponents[0], 6)
    -1.0
    """
    names = tuple(name for name in (runs[0] if runs else ()) if name != "rate")
    if not names or len(runs) < len(names) + 2:
        raise ValueError(
            f"fit_rate_law: {len(runs)} runs are too few for {len(names)} names besides 'rate'; "
            "there must be a name, and two more runs than names"
        )
    for run in runs:
        if set(run) != {*names, "rate"} or not all(x > 0 for x in run.values()):
            raise ValueError(
                f"fit_rate_law: each run has positive numbers for rate and {', '.join(names)}, "
                f"not {dict(run)!r:.200}"
            )
    x = np.array([[1.0, *(math.log(run[name]) for name in names)] for run in runs])
    y = np.log(np.array([float(run["rate"]) for run in runs]))
    if np.linalg.matrix_rank(x) < x.shape[1]:
        raise ValueError(
            f"fit_rate_law: the runs do not tell {', '.join(names)} apart: vary each by itself"
        )
    inverse = np.linalg.inv(x.T @ x)
    coefficients = np.linalg.lstsq(x, y, rcond=None)[0]
    deviation = math.sqrt(float(np.sum((y - x @ coefficients) ** 2)) / (len(runs) - x.shape[1]))
    errors = deviation * np.sqrt(np.diag(inverse))
    values = [[float(run[name]) for run in runs] for name in names]
    return RateLaw(
        names,
        tuple(map(float, coefficients[1:])),
        tuple(map(float, errors[1:])),
        float(coefficients[0]),
        deviation,
        tuple((min(v), max(v)) for v in values),
        len(runs),
        tuple(tuple(map(float, row)) for row in inverse),
    )
