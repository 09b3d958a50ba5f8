"""The command line: ``python -m gradtx``."""

import argparse
import sys
from pathlib import Path

from gradtx.interop.usage import python_files, uses, verdict

VERBS = {"missing": "is missing", "differs": "differs"}


def check(arguments: argparse.Namespace) -> int:
    """List the names of Optax that are missing here or differ; 1 if one is missing or unread."""
    absent = [str(path) for path in arguments.paths if not path.exists()]
    if absent:
        print(f"no such file or directory: {', '.join(absent)}", file=sys.stderr)  # noqa: T201
        return 1
    files = python_files(arguments.paths)
    counts = {"used": 0, "missing": 0, "differs": 0, "unread": 0}
    for file in files:
        try:
            found = uses(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError) as error:
            counts["unread"] += 1
            print(f"{file}: cannot be read: {error}", file=sys.stderr)  # noqa: T201
            continue
        counts["used"] += len(found)
        for use in found:
            if (result := verdict(use.name)) is not None:
                kind, text = result
                counts[kind] += 1
                print(f"{file}:{use.line}: optax.{use.name} {VERBS[kind]}: {text}")  # noqa: T201
    print(  # noqa: T201
        f"files: {len(files)}; names of Optax: {counts['used']} used, {counts['missing']} missing, "
        f"{counts['differs']} different"
    )
    return int(counts["missing"] + counts["unread"] > 0)


def main(argv: list[str] | None = None) -> int:
    """Run a command, and give its exit code."""
    parser = argparse.ArgumentParser(prog="python -m gradtx", description="Tools of gradtx.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    checking = commands.add_parser(
        "check",
        help="list the names of Optax in a code base that are missing here or differ",
        description="Read Python files, without running them, and list the names of Optax in them "
        "that are missing in gradtx or differ, with what to use. The exit code is 1 if one is "
        "missing.",
    )
    checking.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_DIR")
    checking.set_defaults(run=check)
    arguments = parser.parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
