"""``list``: the public transformations and schedules, by family."""

import argparse
import re
import sys

import gradtx
from gradtx.checkpoint.config import find_builder
from gradtx.names.namespace import homes


def families() -> dict[str, dict[str, str]]:
    """The summary of each public builder by its name, by the package that it is in."""
    summaries: dict[str, dict[str, str]] = {}
    for name, home in homes("gradtx").items():
        if find_builder(name) is not None:
            text = str(getattr(gradtx, name).__doc__).partition("\n")[0]
            plain = re.sub(r":\w+:(?=`)", "", text)  # no roles of Sphinx
            summaries.setdefault(home.split(".")[1], {})[name] = plain
    return summaries


def show(arguments: argparse.Namespace) -> int:
    """Print all names, or those of one family or with a word in them; 1 if there are none."""
    everything = families()
    if arguments.family not in (None, *everything):
        known = ", ".join(everything)
        print(f"there is no family {arguments.family!r}: use one of {known}", file=sys.stderr)
        return 2
    word = arguments.word.lower()
    matches = {
        family: [(n, text) for n, text in names.items() if word in f"{n} {text}".lower()]
        for family, names in everything.items()
        if arguments.family in (None, family)
    }
    width = max((len(name) for rows in matches.values() for name, _ in rows), default=0)
    for family, rows in matches.items():
        if rows:
            print(family, *(f"  {name:{width}}  {text}" for name, text in rows), sep="\n")
    if not any(matches.values()):
        print(f"nothing has {arguments.word!r} in its name or summary", file=sys.stderr)
        return 1
    return 0
