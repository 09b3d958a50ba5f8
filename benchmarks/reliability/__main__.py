"""What the library promises about failures, tried as often as docs/reliability.md says.

    python -m benchmarks.reliability [NAME ...] [--quick] [--json FILE]

NAME is one of `kills`, `plain_kills`, `files`, `inputs`, `elastic`, `settings`, `extremes`,
`counters`, `steps`, `memory` and `mutants`; without one it is all of them. Each prints a line: how
often it was tried, how often that failed, what is known to fail, and the seconds. `--quick` is the
short form that tests/test_reliability.py runs.
"""

import argparse
import importlib
import json
import os
import pathlib
import sys
import time

DEVICES = "--xla_force_host_platform_device_count=8"

MODULES = {
    "kills": "kills",
    "plain_kills": "kills",
    "files": "files",
    "inputs": "inputs",
    "elastic": "elastic",
    "settings": "settings",
    "extremes": "numbers",
    "counters": "numbers",
    "steps": "numbers",
    "memory": "memory",
    "mutants": "rules",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    given = parser.parse_args()
    if unknown := set(given.names) - set(MODULES):
        parser.error(f"no such promise: {', '.join(sorted(unknown))}; there are {list(MODULES)}")
    # Before jax is imported: `elastic` needs eight devices, and they may be virtual.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}".strip()
    results = {}
    for name in given.names or MODULES:
        promise = getattr(importlib.import_module(f"benchmarks.reliability.{MODULES[name]}"), name)
        start = time.perf_counter()
        done = promise(quick=given.quick)
        seconds = round(time.perf_counter() - start, 1)
        notes = "".join(f", {key} {value:,.6g}" for key, value in done.notes.items())
        known = f", {len(done.known)} known" if done.known else ""
        failed = f"{done.tried:,} tried, {len(done.failures):,} failed{known}"
        print(f"{name}: {failed}{notes}, {seconds} s", flush=True)
        for line in done.failures[:40]:
            print(f"  {line}", flush=True)
        results[name] = {**vars(done), "seconds": seconds}
        if given.json:
            given.json.write_text(json.dumps(results, indent=1) + "\n")
    return any(result["failures"] for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
