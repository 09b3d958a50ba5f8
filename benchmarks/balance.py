"""How evenly matrices are divided over devices where they do not divide, by counting operations.

    python -m benchmarks.balance

The operations of Muon on the device that has most, over an equal share of all: with every stack of
equal matrices divided by itself; with `balance=True`, where each begins at the device at which the
one before it ends; and with every matrix where there is least so far, longest first, which gradtx
does not do.
"""

import heapq

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

import gradtx
from benchmarks.tables import markdown
from gradtx.sharding.operations import equal_share, operations

FORMS = {
    "four matrices": [(4, 12), (4, 4), (4, 16), (16, 4)],
    "seven, as in Llama": [(4, 4), (4, 1), (4, 1), (4, 4), (4, 14), (4, 14), (14, 4)],
}
"""The matrices of a layer in quarters of the width; the first are of `benchmarks.ownership`."""
CASES = [("four matrices", 24, n) for n in (8, 16, 64, 256)]
CASES += [("four matrices", 64, 256), ("four matrices", 96, 256)]
CASES += [("seven, as in Llama", 80, n) for n in (64, 256, 1024)]
WIDTH = 4096


def loads(form: str, layers: int, devices: int) -> list[float]:
    """The greatest share of a device over an equal one, divided in the three ways."""
    like = {
        str(i): jax.ShapeDtypeStruct((layers, m * WIDTH // 4, n * WIDTH // 4), jnp.float32)
        for i, (m, n) in enumerate(FORMS[form])
    }
    tx = gradtx.muon(1e-3, muon_weight_dimension_numbers=gradtx.MuonDimensionNumbers(1, 2))
    rows = PartitionSpec(None, "d")
    plans = [
        gradtx.plan_step(tx, like, {"d": devices}, rows, balance=balance)
        for balance in (False, True)
    ]
    stacks = plans[0].owned
    apart = [0] * devices
    for cost, count in sorted((operations(x.program) // x.each, x.count) for x in stacks)[::-1]:
        for _ in range(count):
            heapq.heapreplace(apart, apart[0] + cost)
    return [x / equal_share(stacks) for x in (*(p.operations for p in plans), max(apart))]


if __name__ == "__main__":
    rows = [
        [f"{layers} x {form}", devices, *(f"{x:.2f}" for x in loads(form, layers, devices))]
        for form, layers, devices in CASES
    ]
    header = ["layers", "devices", "by itself", "`balance=True`", "one by one"]
    print(markdown("Operations of the busiest device over an equal share", header, rows))
