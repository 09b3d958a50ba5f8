"""What `import gradtx` costs after `import jax`, each time in a fresh process.

python -m benchmarks.import_time
"""

import json
import statistics
import subprocess
import sys
from typing import NamedTuple

from benchmarks.tables import markdown
from benchmarks.timing import with_bytecode

PROCESSES = 7
# By name what runs after `import jax`: gradtx loads the module of a name when it is asked for.
IMPORTS = {
    "gradtx": "import gradtx",
    "gradtx.adam": "import gradtx; gradtx.adam",
    "optax": "import optax",
}
# Timed within one process: the difference between two processes is mostly the noise of jax's own
# import. Processor time, and no garbage collection, which now and then goes through all that jax
# has made. A backend that exists after the import is a device that was touched.
PROGRAM = """
import gc, json, time
gc.disable()
start = time.process_time(); import jax, jax.numpy
middle = time.process_time(); {statement}
end = time.process_time()
from jax._src import xla_bridge
devices = xla_bridge.backends_are_initialized()
print(json.dumps([middle - start, end - middle, devices]))
"""


class Import(NamedTuple):
    jax: float
    module: float
    touches_devices: bool


def once(statement: str) -> Import:
    command = [sys.executable, "-c", PROGRAM.format(statement=statement)]
    done = subprocess.run(command, check=True, capture_output=True, env=with_bytecode())
    return Import(*json.loads(done.stdout))


def table() -> str:
    for statement in IMPORTS.values():
        once(statement)  # writes the bytecode and warms the disk's cache
    runs: dict[str, list[Import]] = {name: [] for name in IMPORTS}
    for _ in range(PROCESSES):
        for name, statement in IMPORTS.items():
            runs[name].append(once(statement))
    rows = []
    for name, imports in runs.items():
        jax_ms = 1e3 * statistics.median(run.jax for run in imports)
        ms = 1e3 * statistics.median(run.module for run in imports)
        touched = "yes" if any(run.touches_devices for run in imports) else "no"
        rows.append([name, ms, ms / jax_ms, touched])
    return markdown(
        f"Import time beyond `import jax`; median of {PROCESSES} processes",
        ["module", "ms", "over jax's own", "touches devices"],
        rows,
    )


if __name__ == "__main__":
    print(table())
