"""The results of the contracts for a transformation, as an object that prints."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["holds", "fails", "does not apply"]

_WIDTH = 100


@dataclass(frozen=True)
class ContractResult:
    """One contract, and whether it holds.

    Attributes:
        name: its short name.
        promise: what it asks, in a line.
        outcome: ``"holds"``, ``"fails"`` or ``"does not apply"``.
        reason: why it fails or does not apply; otherwise empty.
    """

    name: str
    promise: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class RuleReport:
    """The results of :func:`check_rule`; ``print`` shows them.

    Attributes:
        transformation: the transformation, as it prints.
        results: a `ContractResult` for each contract.
        scope: what an entry of an update is computed from, at most; None where `init` and `update`
            are written by hand, of which nothing is known.
        abilities: for each ability that some transformations lack, the reason why this one does;
            empty if it does not.
        parameter_bytes: the bytes of the parameters.
        state_bytes: the bytes of the state; None if `init` fails.
        undivided: leaves of the state that stay whole on every device where the parameters are
            divided; None if that could not be tried.
        communicates: the devices' messages in a step where the parameters are divided, or why it
            could not be tried.
    """

    transformation: str
    results: tuple[ContractResult, ...]
    scope: str | None
    abilities: dict[str, str] = field(default_factory=dict)
    parameter_bytes: int = 0
    state_bytes: int | None = None
    undivided: tuple[str, ...] | None = None
    communicates: str = ""

    @property
    def failures(self) -> tuple[ContractResult, ...]:
        """The contracts that fail."""
        return tuple(result for result in self.results if result.outcome == "fails")

    @property
    def ok(self) -> bool:
        """Whether no contract fails."""
        return not self.failures

    def raise_for_failures(self, allow: Iterable[str] = ()) -> None:
        """Raise AssertionError with this report if a contract fails, as the last line of a test.

        Args:
            allow: the names of contracts that may fail.

        Raises:
            AssertionError: another contract fails.
            ValueError: `allow` has a name that none of the contracts in the report has.
        """
        allowed = set(allow)
        if unknown := sorted(allowed - {result.name for result in self.results}):
            names = ", ".join(result.name for result in self.results)
            raise ValueError(f"raise_for_failures: no contract is called {unknown[0]!r}: {names}")
        if any(result.name not in allowed for result in self.failures):
            raise AssertionError(str(self))

    def __str__(self) -> str:
        outcomes = [result.outcome for result in self.results]
        counts = {each: outcomes.count(each) for each in ("holds", "fails", "does not apply")}
        head = ", ".join(f"{outcome}: {n}" for outcome, n in counts.items())
        lines = [textwrap.shorten(self.transformation, _WIDTH, placeholder="..."), head]
        shown = {"holds": "holds", "fails": "FAILS", "does not apply": "-"}
        width = max((len(result.name) for result in self.results), default=0)
        for result in self.results:
            lines.append(f"  {shown[result.outcome]:5}  {result.name:{width}}  {result.promise}")
            lines += _indented(result.reason, 9)
        lines.append(f"scope: {self.scope or 'not known: init and update are written by hand'}")
        if self.state_bytes is not None:
            beside = f"{self.state_bytes:,} bytes, beside {self.parameter_bytes:,} of parameters"
            lines.append(f"state: {beside}")
        division = "all of the state is divided with its parameters"
        if self.undivided is None:
            division = "not tried"
        elif self.undivided:
            division = f"whole on every device: {', '.join(self.undivided)}"
        lines.append(f"sharded: {division}")
        if self.communicates:
            lines += _indented(self.communicates, 9)
        for name, reason in self.abilities.items():
            lines += [f"{name}: {'no' if reason else 'yes'}", *_indented(reason, 9)]
        return "\n".join(lines)


def _indented(text: str, by: int) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=" " * by, subsequent_indent=" " * by, max_lines=4
    )
