"""Paths of hyperparameters and slots, joined by dots, and the short names that stand for them."""

from collections.abc import Iterable


def paths_ending_in(name: str, known: Iterable[str]) -> list[str]:
    """The known paths that end in `name`.

    If there is none, those that end in its last part and have its other parts before, in order.
    """
    known = list(known)
    ending = [path for path in known if path.endswith(f".{name}")]
    if ending or "." not in name:
        return ending
    return [path for path in known if _leads_past(path.split("."), name.split("."))]


def _leads_past(path: list[str], parts: list[str]) -> bool:
    rest = iter(path)
    return path[-1] == parts[-1] and all(part in rest for part in parts)
