"""The command line: ``python -m gradtx``."""

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradtx.commands import catalogue, chart, check, configurations, rates
from gradtx.commands.reading import read_function, read_shapes

CONFIG = "a JSON file as to_config writes it, or a call such as 'adamw(learning_rate=0.001)'"
SHAPES = "a JSON file of shapes, or 'w=512x2048,head/b=10:bfloat16'"


def count(what: str, least: int = 1) -> Callable[[str], int]:
    """A function that reads a number of steps or the like, which argparse calls."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) < 2**31:
            raise argparse.ArgumentTypeError(
                f"{text!r:.80} is not a number of {what}, {least} or more"
            )
        return int(text)

    return read


def rate(text: str) -> float:
    """The learning rate in a text of the command line, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not a positive number")
    return value


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; its result has the command's function as `run`."""
    parser = argparse.ArgumentParser(
        prog="python -m gradtx",
        description="Tools of gradtx.",
        epilog="The exit code is 0 if all is well, 1 if something differs, is missing or is "
        "invalid, and 2 if the command cannot be run as it was given.",
    )
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    for add in (_list, _describe, _plot, _find_rate, _diff, _validate, _check):
        add(commands)
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    description = f"{text[0].upper()}{text[1:]}."
    subparser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description
    )
    subparser.set_defaults(run=run)
    return subparser


def _list(commands: Any) -> None:
    parser = _command(
        commands, "list", catalogue.show, "list transformations and schedules by family"
    )
    parser.add_argument("word", nargs="?", default="", help="show those with it in their line")
    parser.add_argument("--family", help="show one: optimizers, transforms, wrappers, schedules...")


def _describe(commands: Any) -> None:
    text = "print what a transformation keeps, and its bytes"
    parser = _command(commands, "describe", configurations.describe, text)
    parser.add_argument("config", metavar="CONFIG", help=CONFIG)
    parser.add_argument("--params", required=True, type=read_shapes, help=SHAPES)


def _plot(commands: Any) -> None:
    text = "draw schedules over steps, alone or in a transformation"
    parser = _command(commands, "plot", chart.plot, text)
    parser.add_argument("config", metavar="CONFIG", help=CONFIG)
    parser.add_argument(
        "--steps", type=count("steps"), default=1000, help="how many (default: 1000)"
    )
    parser.add_argument("--png", metavar="FILE", help="draw a picture, with matplotlib")


def _find_rate(commands: Any) -> None:
    text = "train with many learning rates, and suggest one of them"
    parser = _command(commands, "find-rate", rates.find, text)
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        type=read_function,
        help="a function without arguments that returns (loss_fn, build, params, batches), as "
        "gradtx.find_rate takes them; its module is imported from this directory, or from where "
        "Python finds it",
    )
    for name, default in (("low", 1e-5), ("high", 1.0)):
        parser.add_argument(
            f"--{name}",
            type=rate,
            default=default,
            help=f"the {name}est rate (default: {default:g})",
        )
    parser.add_argument(
        "--rates",
        type=count("rates", 2),
        default=11,
        help="how many, each the same factor above the last (default: 11)",
    )
    parser.add_argument(
        "--steps",
        type=count("steps"),
        help="how many of the batches, the first ones (default: all)",
    )
    parser.add_argument("--png", metavar="FILE", help="draw a picture, with matplotlib")


def _diff(commands: Any) -> None:
    text = "print the arguments in which configurations differ"
    parser = _command(commands, "diff", configurations.diff, text)
    for name in "ab":
        parser.add_argument(name, metavar=name.upper(), help=CONFIG)


def _validate(commands: Any) -> None:
    text = "say whether a configuration can be built"
    parser = _command(commands, "validate", configurations.validate, text)
    parser.add_argument("config", metavar="CONFIG", help=CONFIG)


def _check(commands: Any) -> None:
    text = "list the names of Optax in Python files and notebooks that are missing or differ"
    parser = _command(commands, "check", check.check, text)
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE_OR_DIR")


def main(argv: list[str] | None = None) -> int:
    """Run a command, and give its exit code."""
    try:
        parser = make_parser()
        arguments = parser.parse_args(argv)
        if arguments.run is None:
            parser.print_help()
            return 0
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads has seen enough; Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
