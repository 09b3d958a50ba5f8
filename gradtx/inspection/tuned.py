"""Settings that did best on the problems of the leaderboard."""

import difflib
import functools
import json
from pathlib import Path
from typing import NamedTuple


class TunedSettings(NamedTuple):
    """settings: arguments, by problem; ranges: of each argument, the least and the largest."""

    settings: dict[str, dict[str, float]]
    ranges: dict[str, tuple[float, float]]


@functools.cache
def _tuned() -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = json.loads(
        Path(__file__).with_name("tuned.json").read_text(encoding="utf-8")
    )
    return found


def tuned_settings(name: str) -> TunedSettings:
    """The settings of an optimizer that a short search found on real, small problems.

    They are where to begin a search, or what to try when there is none: the problems have 650 to
    15,000 parameters and 300 to 500 steps, and larger ones want smaller learning rates. Those of
    `learning_rate` and `adam_learning_rate` are the peaks of a warm-up of 5 % and a cosine to zero,
    except for optimizers without a schedule, such as :func:`schedule_free_adamw`.
    `adam_learning_rate` is that of the AdamW for what a matrix optimizer leaves. Docs and
    ``benchmarks/leaderboard`` say how they were found, and how sure it is that one optimizer is
    better than another.

    Args:
        name: an optimizer's name, such as ``"muon"``; also ``"sgd, momentum"``,
            ``"hyperball, adam"`` and ``"hyperball, muon"``.

    Raises:
        ValueError: nothing was found of that name.

    >>> import gradtx
    >>> found = tuned_settings("adamw")
    >>> sorted(found.ranges)
    ['b1', 'learning_rate', 'weight_decay']
    >>> tx = gradtx.adamw(**found.settings["logistic"])
    """
    found = _tuned()
    if name not in found:
        near = difflib.get_close_matches(str(name), found, n=3) or sorted(found)
        raise ValueError(f"tuned_settings: nothing was found of {name!r}; try {', '.join(near)}")
    settings = {problem: dict(arguments) for problem, arguments in found[name].items()}
    values: dict[str, list[float]] = {}
    for arguments in settings.values():
        for argument, value in arguments.items():
            values.setdefault(argument, []).append(value)
    return TunedSettings(settings, {key: (min(v), max(v)) for key, v in values.items()})
