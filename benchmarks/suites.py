"""The tests of a code base that uses Optax, with it and with the import changed.

    python -m benchmarks.suites CHECKOUT [--source FOLDER] [pytest's ARGUMENT ...]
    python -m benchmarks.suites --listed FOLDER [--kept FOLDER] [NAME ...]

Its packages are those of the checkout, or of a FOLDER in it (such as `src`); what they need has to
be installed. Both runs are of copies: every line that imports Optax, or from it, is changed in
one. Prints how many tests pass and fail in each, and the names of those that end otherwise.

With ``--listed`` the code bases are those of `SUITES`, whose checkouts are in a folder by their
names, all or the named ones. With ``--kept`` each run's results are written to another folder when
it has ended, and are not taken again; the table is of all that are there.
"""

import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from benchmarks.tables import markdown

# By pattern what each import of Optax becomes.
IMPORTS = {
    r"^(\s*)import optax((?:\.\w+)*) as ": r"\1import gradtx\2 as ",
    r"^(\s*)import optax((?:\.\w+)*)": r"\1import gradtx\2, gradtx as optax",
    r"^(\s*)from optax\b": r"\1from gradtx",
}
HERE = Path(__file__).parents[1]
ARMS = ("optax", "gradtx")
OUTCOMES = ("passed", "skipped", "failed")


class Suite(NamedTuple):
    """Tests of a code base that reach Optax: the version, its packages' folder, what is run."""

    version: str
    arguments: tuple[str, ...]
    source: str = "."


# Of Optimistix's solvers 8, 9, 21 and 22 in the one file, 13 and 14 in the other, are Optax's.
OPTIMISTIX = "optax or test_minimise.py and (solver8 or solver9 or solver21 or solver22) or "
OPTIMISTIX += "test_least_squares.py and (solver13 or solver14)"
SUITES = {
    "equinox": Suite("9336d82", ("tests/test_closure_to_pytree.py", "-k", "fixup_optax")),
    "flowjax": Suite("19.1.2", ("tests/test_train",)),
    "gpjax": Suite(
        "1.0.0",
        (
            "tests/test_fit.py",
            "tests/test_state_space/test_fit.py",
            "tests/test_natural_gradients.py",
            "tests/test_integration_equinox.py",
            "tests/test_mean_functions.py",
        ),
    ),
    "penzai": Suite(
        "0.2.5",
        (
            "tests/models/simple_mlp_test.py",
            "tests/toolshed/lora_test.py",
            "tests/deprecated/v1/example_models/simple_mlp_test.py",
            "tests/deprecated/v1/toolshed/lora_test.py",
        ),
    ),
    "dynamax": Suite(
        "1.0.3",
        (
            "dynamax/utils/test_optimize.py",
            "dynamax/parameters_test.py",
            "dynamax/linear_gaussian_ssm/models_test.py",
            "dynamax/hidden_markov_model/models/test_models.py",
        ),
    ),
    "ott": Suite(
        "6aace50f",
        (
            "tests/solvers/linear/semidiscrete_test.py",
            "tests/neural/data/semidiscrete_dataloader_test.py",
            "tests/neural/methods/flow_matching_test.py",
            "tests/neural/methods/monge_gap_test.py::TestMongeGapEstimator",
            "tests/neural/methods/neuraldual_test.py",
            "tests/initializers/neural",
            "tests/tools/gaussian_mixture/fit_gmm_pair_test.py",
            "tests/tools/unreg_test.py",
            "tests/math/legendre_test.py",
            "tests/geometry/costs_test.py::TestTICost",
            "tests/geometry/costs_test.py::TestRegTICost",
        ),
        "src",
    ),
    "optimistix": Suite(
        "6415ab1",
        (
            "tests/test_minimise.py",
            "tests/test_least_squares.py",
            "-k",
            OPTIMISTIX,
        ),
    ),
}


def change_imports(folder: Path) -> int:
    """Changes every line of a folder's Python files that imports Optax; how many there are."""
    count = 0
    for file in folder.rglob("*.py"):
        text = file.read_text(errors="surrogateescape")
        if "optax" not in text:
            continue
        for pattern, new in IMPORTS.items():
            text, found = re.subn(pattern, new, text, flags=re.MULTILINE)
            count += found
        file.write_text(text, errors="surrogateescape")
    return count


def ends(folder: Path, source: str, arguments: list[str]) -> dict[str, str]:
    """How each test of a checkout ends, by name."""
    report = folder / "gradtx-report.xml"
    paths = [str(folder / source), str(folder), str(HERE), *sys.path[1:]]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run(
        [*command, f"--junitxml={report}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    if done.returncode > 1:  # neither all passed nor some failed: stopped, or nothing to run
        raise SystemExit(f"{folder.name}: pytest ended with {done.returncode}")
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = {part.tag for part in case}
        end = "failed" if parts & {"failure", "error"} else "skipped"
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = end if parts & {"failure", "error", "skipped"} else "passed"
    return found


def arm(checkout: Path, source: str, arguments: list[str], changed: bool) -> dict[str, str]:
    """How each test ends in a copy, as it is or with the import changed."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, checkout.name)
        shutil.copytree(checkout, folder, ignore=shutil.ignore_patterns(".git"))
        if changed:
            print(f"{checkout.name}: {change_imports(folder)} lines changed", flush=True)
        return ends(folder, source, arguments)


def listed(folder: Path, kept: Path, names: list[str]) -> list[dict[str, dict[str, str]]]:
    """How the tests of the named code bases end in each arm, taken or kept."""
    kept.mkdir(parents=True, exist_ok=True)
    for name in names:
        suite = SUITES[name]
        for which in ARMS:
            file = kept / f"{name}-{which}.json"
            if not file.exists():
                found = arm(folder / name, suite.source, [*suite.arguments], which == "gradtx")
                file.write_text(json.dumps(found, indent=1))
    return [
        {
            name: json.loads(Path(kept, f"{name}-{which}.json").read_text())
            for name in SUITES
            if all(Path(kept, f"{name}-{each}.json").exists() for each in ARMS)
        }
        for which in ARMS
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--source", default=".", metavar="FOLDER")
    parser.add_argument("--listed", action="store_true")
    parser.add_argument("--kept", type=Path)
    given, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as home:
        if given.listed:
            kept = given.kept or Path(home)
            both = listed(given.checkout, kept, arguments or list(SUITES))
        else:
            both = [
                {given.checkout.name: arm(given.checkout, given.source, arguments, changed)}
                for changed in (False, True)
            ]
    rows, other = [], []
    for name in both[0]:
        theirs, ours = (found[name] for found in both)
        row = [name]
        for ended in (theirs, ours):
            counts = collections.Counter(ended.values())
            row.append(", ".join(f"{counts[o]} {o}" for o in OUTCOMES if counts[o]))
        rows.append(row)
        for test in theirs | ours:
            pair = (theirs.get(test, "absent"), ours.get(test, "absent"))
            if pair[0] != pair[1]:
                other.append(f"{name}, {test}: {pair[0]} with Optax, {pair[1]} here")
    print(markdown("Tests of code bases", ["", "with Optax", "the import changed"], rows))
    print(*other, sep="\n")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
