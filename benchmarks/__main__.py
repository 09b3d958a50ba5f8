"""Every benchmark, as one set of markdown tables.

python -m benchmarks [LABEL or EXPRESSION ...]
"""

import subprocess
import sys

# Those that take the words of the command line, and those that have nothing to choose.
BY_OPTIMIZER = ("steps", "aot")
ALONE = ("leaves", "import_time", "sparse", "accumulation")

if __name__ == "__main__":
    for name in (*BY_OPTIMIZER, *ALONE):
        # A process each: what one benchmark leaves in memory or in the environment stays there.
        words = sys.argv[1:] if name in BY_OPTIMIZER else []
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *words], check=True)
