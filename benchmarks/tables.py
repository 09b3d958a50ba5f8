"""Markdown tables."""

from collections.abc import Iterable, Sequence


def markdown(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a heading. Floats get three digits."""

    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(_text(cell) for cell in cells) + " |"

    rule = "|---|" + "---:|" * (len(header) - 1)
    return "\n".join([f"### {title}", "", line(header), rule, *map(line, rows), ""])


def _text(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:#.3g}"


def size(count: float) -> str:
    """Bytes, in the unit that keeps them short."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
