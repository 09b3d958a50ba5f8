"""Regular expressions from configurations, matched in bounded time.

Python's own backtrack, which for some patterns takes exponential time.
"""

import functools
import re
from collections.abc import Callable

# From where in the text an expression begins to where it may end.
Ends = Callable[[int], frozenset[int]]

_TOKEN = re.compile(
    r"""\((?:\?(?:[:=!]|P<\w+>))?               # the start of a group
    | \[\^?\]?(?:\\.|[^\]\\])*\]               # a set
    | \\.                                       # an escape
    | (?:[*+?]|\{\d+(?:,\d*)?\}|\{,\d+\})[?+]?  # how often
    | .""",
    re.DOTALL | re.VERBOSE,
)
_FLAGS = re.ASCII | re.IGNORECASE | re.MULTILINE | re.DOTALL
_OFTEN = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def fullmatch(pattern: str, text: str) -> bool:
    """Whether `pattern` matches all of `text`, as ``re.fullmatch`` does.

    Raises:
        re.error: it is not a regular expression, or it has what is not supported here: lookbehind,
            references to groups, or characters given by number.

    >>> fullmatch("(.*/)?(dense|conv)_[0-9]+/kernel", "block/conv_1/kernel")
    True
    """
    return len(text) in _Reader(pattern, text).whole()(0)


def search(pattern: str, text: str) -> bool:
    """Whether `pattern` matches a part of `text`, as ``re.search`` does."""
    ends = _Reader(pattern, text).whole()
    return any(ends(start) for start in range(len(text) + 1))


class _Reader:
    """Reads a pattern as functions from a position in a text to the positions where matches end."""

    def __init__(self, pattern: str, text: str) -> None:
        try:
            self.flags = re.compile(pattern).flags & _FLAGS
        except (RecursionError, OverflowError) as error:
            raise re.error(str(error), pattern) from None
        self.pattern, self.text = pattern, text
        self.tokens = _TOKEN.findall(re.sub(r"^\(\?[aims]+\)", "", pattern))[::-1]

    def whole(self) -> Ends:
        try:
            return self.either()
        except RecursionError:
            raise re.error("it is nested too deeply", self.pattern) from None

    def either(self) -> Ends:
        ways = [self.sequence()]
        while self.tokens and self.tokens[-1] == "|":
            self.tokens.pop()
            ways.append(self.sequence())
        return functools.cache(lambda at: frozenset().union(*(way(at) for way in ways)))

    def sequence(self) -> Ends:
        parts = []
        while self.tokens and self.tokens[-1] not in ("|", ")"):
            parts.append(self.part())

        def ends(at: int) -> frozenset[int]:
            places = frozenset([at])
            for part in parts:
                places = frozenset().union(*map(part, places))
            return places

        return functools.cache(ends)

    def part(self) -> Ends:
        token = self.tokens.pop()
        if token[0] == "(":
            if token == "(" and self.tokens[-1][0] == "?":
                raise re.error("it has a group of a kind that is not taken", self.pattern)
            one = self.group(token)
        elif token[0] == "\\" and token[1] in "0123456789xuUN":
            raise re.error(f"it has {token} in it, which is not taken", self.pattern)
        else:
            one = self.single(token)
        if self.tokens and self.tokens[-1] != "{" and self.tokens[-1][0] in "*+?{":
            one = self.repeated(one, self.tokens.pop())
        return one

    def group(self, start: str) -> Ends:
        inner = self.either()
        self.tokens.pop()
        if start in ("(?=", "(?!"):
            wanted = start == "(?="
            return lambda at: frozenset([at] if bool(inner(at)) == wanted else ())
        return inner

    def single(self, token: str) -> Ends:
        """One character, or a position such as that of ``^`` or of the end of a word."""
        plain = len(token) == 1 and token not in ".^$"
        one = re.compile(re.escape(token) if plain else token, self.flags)

        def ends(at: int) -> frozenset[int]:
            found = one.match(self.text, at)
            return frozenset([found.end()] if found else ())

        return functools.cache(ends)

    def repeated(self, one: Ends, often: str) -> Ends:
        if often[-1] == "+" and len(often) > 1:
            raise re.error(f"it has {often} in it, which is not taken", self.pattern)
        often = often.removesuffix("?") or "?"
        low, high = _OFTEN.get(often) or self.times(often)

        def ends(at: int) -> frozenset[int]:
            # After as many rounds as there are places, nothing new is found.
            rounds = len(self.text) + 1
            places = frozenset([at])
            for _ in range(min(low, rounds)):
                places = frozenset().union(*map(one, places))
            found = places
            for _ in range(rounds if high is None else min(high - low, rounds)):
                places = frozenset().union(*map(one, places)) - found
                if not places:
                    break
                found |= places
            return found

        return functools.cache(ends)

    def times(self, often: str) -> tuple[int, int | None]:
        low, comma, high = often.strip("{}").partition(",")
        return int(low or 0), int(high) if high else None if comma else int(low)
