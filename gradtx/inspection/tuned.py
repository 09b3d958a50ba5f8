"""Settings that did best on the problems of the leaderboard."""

import difflib
import functools
import json
from pathlib import Path
from typing import NamedTuple


class TunedSettings(NamedTuple):
    """settings: arguments by problem; ranges: the least and the largest value of each argument."""

    settings: dict[str, dict[str, float]]
    ranges: dict[str, tuple[float, float]]


@functools.cache
def _tuned() -> dict[str, dict[str, dict[str, float]]]:
    by_optimizer: dict[str, dict[str, dict[str, float]]] = json.loads(
        Path(__file__).with_name("tuned.json").read_text(encoding="utf-8")
    )
    return by_optimizer


def tuned_settings(name: str) -> TunedSettings:
    """The settings of an optimizer that a short search found on real, small problems.

    They are a place to start a search, or something to try without one: the problems have 650 to
    about 19,000 parameters and run for 300 to 500 steps, and larger ones need smaller learning
    rates. `learning_rate` and `adam_learning_rate` are peaks, after a warm-up of 5 % of the steps
    and before a cosine to zero, except for optimizers without a schedule, such as
    :func:`schedule_free_adamw`. `adam_learning_rate` is for AdamW, which trains the leaves that a
    matrix optimizer does not. The leaderboard in the docs says how the settings were found, and how
    certain it is that one optimizer is better than another.

    Args:
        name: an optimizer's name, such as ``"muon"``; also ``"sgd, momentum"``,
            ``"hyperball, adam"`` and ``"hyperball, muon"``.

    Raises:
        ValueError: there are no settings under that name.

    >>> import gradtx
    >>> tuned = tuned_settings("adamw")
    >>> sorted(tuned.ranges)
    ['b1', 'learning_rate', 'weight_decay']
    >>> tx = gradtx.adamw(**tuned.settings["logistic"])
    """
    by_optimizer = _tuned()
    if name not in by_optimizer:
        near = difflib.get_close_matches(str(name), by_optimizer, n=3) or sorted(by_optimizer)
        raise ValueError(
            f"tuned_settings: there are no settings of {name!r}; try {', '.join(near)}"
        )
    settings = {problem: dict(arguments) for problem, arguments in by_optimizer[name].items()}
    values: dict[str, list[float]] = {}
    for arguments in settings.values():
        for argument, value in arguments.items():
            values.setdefault(argument, []).append(value)
    return TunedSettings(settings, {key: (min(v), max(v)) for key, v in values.items()})
