"""``check``: the names of Optax in a code base that are missing here or differ."""

import argparse
import sys

from gradtx.interop.usage import python_files, uses, verdict

VERBS = {"missing": "is missing", "differs": "differs"}


def check(arguments: argparse.Namespace) -> int:
    """List the names of Optax that are missing here or differ; 1 if one is missing or unread."""
    absent = [str(path) for path in arguments.paths if not path.exists()]
    if absent:
        print(f"no such file or directory: {', '.join(absent)}", file=sys.stderr)
        return 1
    files = python_files(arguments.paths)
    counts = {"used": 0, "missing": 0, "differs": 0, "unread": 0}
    for file in files:
        try:
            found = uses(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            counts["unread"] += 1
            print(f"{file}: cannot be read: {error}", file=sys.stderr)
            continue
        counts["used"] += len(found)
        for use in found:
            if (result := verdict(use.name)) is not None:
                kind, text = result
                counts[kind] += 1
                print(f"{file}:{use.line}: optax.{use.name} {VERBS[kind]}: {text}")
    print(
        f"files: {len(files)}; names of Optax: {counts['used']} used, {counts['missing']} missing, "
        f"{counts['differs']} different"
    )
    return int(counts["missing"] + counts["unread"] > 0)
