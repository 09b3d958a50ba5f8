"""How evenly stacks of matrices are divided over devices, by counting operations alone.

    python -m benchmarks.balance

The operations of an iteration of Newton and Schulz on the device that has most, over an equal
share: with every stack divided by itself, as gradtx does; with stacks that begin at different
devices, longest first; and with every matrix where there is least so far, longest first. A device
that has none of a stack is taken to skip it in the last two.
"""

import heapq
from collections import Counter

from benchmarks.tables import markdown

Shape = tuple[int, int]
FORMS: dict[str, list[Shape]] = {
    "four matrices": [(4, 12), (4, 4), (4, 16), (16, 4)],
    "seven, as in Llama": [(4, 4), (4, 1), (4, 1), (4, 4), (4, 14), (4, 14), (14, 4)],
}
"""The matrices of a layer in quarters of the width; the first are of `benchmarks.ownership`."""
CASES = [("four matrices", 24, n) for n in (8, 16, 64, 256)]
CASES += [("four matrices", 64, 256), ("four matrices", 96, 256)]
CASES += [("seven, as in Llama", 80, n) for n in (64, 256, 1024)]


def stacks(form: str, layers: int) -> dict[Shape, int]:
    """How many matrices there are of each shape."""
    return {shape: layers * count for shape, count in Counter(FORMS[form]).items()}


def operations(shape: Shape) -> int:
    """X X^T, its square, and the sum of both times X."""
    m, n = sorted(shape)
    return 2 * m * m * (n + m + n)


def loads(form: str, layers: int, devices: int) -> tuple[float, float, float]:
    """The greatest share of a device over an equal one, divided in the three ways."""
    found = sorted(stacks(form, layers).items(), key=lambda item: -operations(item[0]))
    equal = sum(operations(shape) * n for shape, n in found) / devices
    alone = sum(operations(shape) * -(-n // devices) for shape, n in found)
    rolled = [0] * devices
    for shape, n in found:
        each = -(-n // devices)
        cost, busy = operations(shape) * each, -(-n // each)
        begun = [
            [x + cost * ((i - first) % devices < busy) for i, x in enumerate(rolled)]
            for first in range(devices)
        ]
        rolled = min(begun, key=lambda x: (max(x), sum(y * y for y in x)))
    apart = [0] * devices
    for shape, n in found:
        for _ in range(n):
            heapq.heapreplace(apart, apart[0] + operations(shape))
    return alone / equal, max(rolled) / equal, max(apart) / equal


if __name__ == "__main__":
    rows = [
        [f"{layers} x {form}", devices, *(f"{x:.2f}" for x in loads(form, layers, devices))]
        for form, layers, devices in CASES
    ]
    header = ["layers", "devices", "by itself", "begun apart", "one by one"]
    print(markdown("Operations of the busiest device over an equal share", header, rows))
