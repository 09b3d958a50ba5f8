"""Pictures twice, for pages that are light and for pages that are dark."""

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt


def light_and_dark(draw: Callable[[Path], None], out: Path) -> None:
    """``draw(out)`` for light pages, and with ``_dark`` after the name for dark ones."""
    for suffix, style in (("", "default"), ("_dark", "dark_background")):
        with plt.style.context(style):
            draw(out.with_stem(out.stem + suffix))
