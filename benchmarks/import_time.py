"""What `import gradtx` costs after `import jax`, each time in a fresh process.

python -m benchmarks.import_time
"""

import json
import statistics
import subprocess
import sys
from typing import NamedTuple

from benchmarks.tables import markdown

PROCESSES = 7
# Timed within one process: the difference between two processes is mostly the noise of jax's own
# import. A backend that exists after the import is a device that was touched.
PROGRAM = """
import json, sys, time
start = time.perf_counter(); import jax
middle = time.perf_counter(); import {module}
end = time.perf_counter()
from jax._src import xla_bridge
devices = xla_bridge.backends_are_initialized()
print(json.dumps([middle - start, end - middle, devices]))
"""


class Import(NamedTuple):
    jax: float
    module: float
    touches_devices: bool


def once(module: str) -> Import:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    return Import(*json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def table() -> str:
    modules = ("gradtx", "optax")
    for module in modules:
        once(module)  # writes the bytecode and warms the disk's cache
    runs: dict[str, list[Import]] = {module: [] for module in modules}
    for _ in range(PROCESSES):
        for module in modules:
            runs[module].append(once(module))
    rows = []
    for module, imports in runs.items():
        jax_ms = 1e3 * statistics.median(run.jax for run in imports)
        ms = 1e3 * statistics.median(run.module for run in imports)
        touched = "yes" if any(run.touches_devices for run in imports) else "no"
        rows.append([module, ms, ms / jax_ms, touched])
    return markdown(
        f"Import time beyond `import jax`; median of {PROCESSES} processes",
        ["module", "ms", "over jax's own", "touches devices"],
        rows,
    )


if __name__ == "__main__":
    print(table())
