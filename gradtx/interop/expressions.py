"""Regular expressions from configurations: Python's own, where the work can be bounded beforehand.

Python's `re` tries one way after another, which for some patterns takes exponential time. Before it
runs, the number of ways is bounded from the pattern and the text; where it may be large, the
pattern is refused.
"""

import itertools
import math
import re
from typing import NamedTuple

# How many characters a pattern may have, and how many steps a match may take at most: a second.
_LONGEST = 2_000
_MOST_STEPS = 10_000_000

_TOKEN = re.compile(
    r"""\((?:\?(?:[:=!>]|<[=!]|P<\w+>))?       # the start of a group
    | \[\^?\]?(?:\\.|[^\]\\])*\]               # a set
    | \\.                                       # an escape
    | (?:[*+?]|\{(?!\})\d*(?:,\d*)?\})[?+]?     # how often
    | .""",
    re.DOTALL | re.VERBOSE,
)
_FLAGS = re.compile(r"\(\?[aims]+\)")
_OFTEN = {"*": "{0,}", "+": "{1,}", "?": "{0,1}"}


class _Work(NamedTuple):
    """Bounds of the steps that it takes to try a part of a pattern, and of the number of ways.

    Both are floats, so that far too large ones are infinite. varies: whether the part has a
    repetition or an alternative in it.
    """

    steps: float = 1.0
    ways: float = 1.0
    varies: bool = False

    def then(self, after: "_Work") -> "_Work":
        steps, ways = self.steps + self.ways * after.steps, self.ways * after.ways
        return _Work(steps, ways, self.varies or after.varies)

    def otherwise(self, other: "_Work") -> "_Work":
        return _Work(self.steps + other.steps, self.ways + other.ways, True)


def fullmatch(pattern: str, text: str) -> bool:
    """Whether `pattern` matches all of `text`, as ``re.fullmatch`` does.

    Raises:
        re.error: it is not a regular expression, it might take long, as when one repetition is
            inside of another, or it has references to groups, or flags within the pattern, which
            are not taken here.

    >>> fullmatch("(.*/)?(dense|conv)_[0-9]+/kernel", "block/conv_1/kernel")
    True
    """
    return _checked(pattern, text, 1).fullmatch(text) is not None


def search(pattern: str, text: str) -> bool:
    """Whether `pattern` matches a part of `text`, as ``re.search`` does."""
    return _checked(pattern, text, len(text) + 1).search(text) is not None


def _checked(pattern: str, text: str, starts: int) -> re.Pattern[str]:
    """The compiled pattern, if the work of trying it at `starts` positions of `text` is bounded."""
    if len(pattern) > _LONGEST:
        raise re.error(f"{pattern!r:.80} has {len(pattern)} characters, above {_LONGEST}")
    try:
        compiled = re.compile(pattern)
    except (RecursionError, OverflowError) as error:
        raise re.error(f"{pattern!r:.80}: {error}", pattern) from None
    except re.error as error:
        raise re.error(f"{pattern!r:.80}: {error}", pattern) from None
    steps = starts * _work(pattern, text).steps
    if not steps <= _MOST_STEPS:
        raise re.error(
            f"{pattern!r:.80} might take too long: write it without a repetition inside of another "
            "one, and with fewer of them",
            pattern,
        )
    return compiled


def _work(pattern: str, text: str) -> _Work:
    """The work of trying a valid pattern at one position of `text`."""
    flags = _FLAGS.match(pattern)
    tokens = _TOKEN.findall(pattern, flags.end() if flags else 0)
    # With a flag, the text after a repetition need not occur as it is written.
    lost = flags is not None and "i" in flags[0]
    # For each group that is open: the work before the last "|", and the work after it.
    before: list[_Work | None] = [None]
    rows = [_Work()]
    for at, token in enumerate(tokens):
        if token[0] == "(":
            if token == "(" and tokens[at + 1] == "?":
                raise re.error(f"{pattern!r:.80} has a group of a kind that is not taken", pattern)
            before.append(None)
            rows.append(_Work())
            continue
        if token == "|":
            before[-1] = _either(before[-1], rows[-1])
            rows[-1] = _Work()
            continue
        if _is_often(token):  # read with the token that it repeats
            continue
        if token == ")":
            last = _either(before.pop(), rows.pop())
        elif token[0] == "\\" and token[1].isdigit():
            raise re.error(f"{pattern!r:.80} has {token} in it, which is not taken", pattern)
        else:
            last = _Work()
        if at + 1 < len(tokens) and _is_often(tokens[at + 1]):
            follows = "" if lost else _literal(tokens[at + 2 :])
            last = _repeated(last, tokens[at + 1], text, follows)
        rows[-1] = rows[-1].then(last)
    return _either(before[-1], rows[-1])


def _either(before: _Work | None, row: _Work) -> _Work:
    return row if before is None else before.otherwise(row)


def _is_often(token: str) -> bool:
    return token[0] in "*+?" or (token[0] == "{" and token != "{")


def _literal(tokens: list[str]) -> str:
    """The literal characters with which the tokens begin."""
    plain = list(itertools.takewhile(_is_plain, tokens))
    if len(plain) < len(tokens) and _is_often(tokens[len(plain)]):
        plain = plain[:-1]
    return "".join(token[-1] for token in plain)


def _is_plain(token: str) -> bool:
    """Whether a token is a literal character, perhaps escaped."""
    if len(token) == 2 and token[0] == "\\":
        return not token[1].isalnum()
    return len(token) == 1 and token not in "()|.^$*+?"


def _repeated(one: _Work, often: str, text: str, follows: str) -> _Work:
    """The work of a repetition; only matches that end before the text `follows` go on."""
    often = _OFTEN.get(often[0]) or often
    low, comma, high = often.rstrip("?+").strip("{}").partition(",")
    least, unbounded = int(low or 0), bool(comma and not high)
    most = max(least, len(text)) if unbounded else int(high or least)
    if not one.varies:
        ends = min(most, len(text)) + 1
        if follows:
            ends = max(1, sum(text.startswith(follows, at) for at in range(len(text))))
        return _Work(one.steps * most + 1, min(ends, most - least + 1), True)
    if unbounded or most * math.log2(one.ways + 1) > 64:
        return _Work(math.inf, math.inf, True)
    rounds = [one.ways**k for k in range(most + 1)]
    return _Work(one.steps * sum(rounds) + 1, sum(rounds[least:]), True)
