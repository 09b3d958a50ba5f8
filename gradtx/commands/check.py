"""``check``: the names of Optax in a code base that are missing here or differ."""

import argparse
import sys

from gradtx.interop.usage import python_files, read, verdicts

VERBS = {"missing": "is missing", "refused": "is called otherwise", "differs": "differs"}


def check(arguments: argparse.Namespace) -> int:
    """List the names of Optax that are missing here or differ; 1 if something will not run."""
    absent = [str(path) for path in arguments.paths if not path.exists()]
    if absent:
        print(f"no such file or directory: {', '.join(absent)}", file=sys.stderr)
        return 1
    readings = {file: read(file) for file in python_files(arguments.paths)}
    assigned = {name for reading in readings.values() for name in reading.assigned}
    counts = {"used": 0, "missing": 0, "refused": 0, "differs": 0, "unread": 0}
    for file, reading in readings.items():
        for fault in reading.faults:
            counts["unread"] += 1
            print(f"{file}: cannot be read: {fault}", file=sys.stderr)
        for note in reading.notes:
            print(f"{file}: not read, nothing of Optax is in it: {note}", file=sys.stderr)
        counts["used"] += len(reading.uses)
        for use, kind, text in verdicts(reading.uses, assigned):
            counts[kind] += 1
            cell = f"cell {use.cell}:" if use.cell else ""
            print(f"{file}:{cell}{use.line}: optax.{use.name} {VERBS[kind]}: {text}")
    print(
        f"files: {len(readings)}; names of Optax: {counts['used']} used, "
        f"{counts['missing']} missing, {counts['refused']} called otherwise, "
        f"{counts['differs']} different"
    )
    return int(counts["missing"] + counts["refused"] + counts["unread"] > 0)
