"""What a promise is: a function that tries something many times and says what failed."""

import dataclasses


@dataclasses.dataclass
class Outcome:
    """tried: how many times; failures: a line for each, which says how to have it again;
    known: the exceptions that docs/reliability.md lists; notes: figures to be printed beside."""

    tried: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    known: list[str] = dataclasses.field(default_factory=list)
    notes: dict[str, float] = dataclasses.field(default_factory=dict)

    def check(self, good: bool, what: str, known: bool = False) -> None:
        """One more try; what is known to fail, and does not, is a failure of the list."""
        self.tried += 1
        if known:
            (self.failures if good else self.known).append(f"{what}: not so" if good else what)
        elif not good:
            self.failures.append(what)


def raised(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
