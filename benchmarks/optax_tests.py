"""Optax's own tests on gradtx, a table of how each of its files ends.

    git clone --depth 1 --branch v0.2.8 https://github.com/google-deepmind/optax CHECKOUT
    python -m benchmarks.optax_tests [--optax] [--kept FOLDER] [--again] CHECKOUT \\
      [PART of a file's name ...] [-- pytest's ARGUMENT ...]

Needs Optax of that version, installed. With ``--optax`` the tests are those of Optax itself, some
of which fail with a later JAX. Otherwise a public name of Optax means gradtx's in these tests where
gradtx has it, and Optax's otherwise: its private helpers and what gradtx leaves out.

The whole takes half an hour. With ``--kept FOLDER`` the results of each file are written there when
it has ended, and a later call runs only the other files, unless it is told to run them ``--again``.
Prints a table of the files, one of the tests that fail by their reason, and those without one.
"""

import argparse
import collections
import importlib
import json
import pkgutil
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import jax
import pytest

import gradtx
from benchmarks.tables import markdown
from gradtx.names.namespace import homes

# Optax's packages that gradtx has by the same name; the names of its other modules are top-level.
PACKAGES = ("contrib", "losses", "projections", "schedules", "transforms", "tree", "tree_utils")
# Packages that gradtx leaves out, hence their tests too.
LEFT_OUT = ("assignment", "experimental", "microbatching", "perturbations", "second_order")
# Tests, among those of other packages, of a function that gradtx leaves out.
LEFT_OUT_TESTS = "_src_linear_algebra_test.py::LinearAlgebraTest::test_nnls"
OUTCOMES = ("passed", "skipped", "failed")
# Why tests fail on gradtx, as the page on Optax says it.
ZOOM, BACKTRACKING, INJECT, CONTRIB, GALORE, FINITE = (
    "_src_linesearch_test.py::ZoomLinesearchTest::test_",
    "_src_linesearch_test.py::BacktrackingLinesearchTest::test_",
    "schedules__inject_test.py::InjectHyperparamsTest::test_",
    "contrib__common_test.py::ContribTest::test_",
    "contrib__galore_test.py::GaLoreTest::test_",
    "transforms__conditionality_test.py::ConditionalityTest::test_apply_if_finite_",
)
REASONS = {
    "`galore` projects the shorter side of a matrix": (
        f"{GALORE}3d_memory_reduction_with_dimension_numbers",
        f"{GALORE}dimension_numbers_right_projection",
        f"{GALORE}left_vs_right_projection_state_shapes0",
        f"{GALORE}left_vs_right_projection_state_shapes1",
        f"{GALORE}left_vs_right_projection_state_shapes2",
        f"{GALORE}rank_is_clipped_to_min_dimension",
    ),
    "a state or a hyperparameter is wider than bfloat16, or stays complex": (
        "_src_alias_test.py::AliasTest::test_explicit_dtype24",
        "_src_alias_test.py::AliasTest::test_explicit_dtype27",
        f"{GALORE}mu_dtype_controls_moment_dtype",
        "contrib__schedule_free_test.py::ScheduleFreeTest::test_explicit_dtype3",
        f"{INJECT}hyperparam_default_dtype_bf16",
    ),
    "an error comes when the optimizer is built, not later": (
        "_src_combine_test.py::PartitionTest::test_labels_mismatch2",
        "_src_transform_test.py::TransformTest::test_lion_invalid_mode_raises",
        "transforms__combining_test.py::PartitionTest::test_labels_mismatch2",
    ),
    "with Optax too: JAX has another wording of an error now, twice, and the last digit in "
    "float32": (
        "transforms__clipping_test.py::ClippingTest::test_clip_by_block_rms",
        "transforms__freezing_test.py::FreezeTest::test_bad_structure_raises",
        "transforms__freezing_test.py::SelectiveTransformTest::test_selective_bad_structure",
    ),
    "the zoom line search takes another path and prints other messages": (
        f"{ZOOM}failure_descent_direction",
        f"{ZOOM}failure_flat_fun",
        f"{ZOOM}failure_not_enough_iter",
        f"{ZOOM}failure_too_small_max_stepsize",
    ),
    "`apply_if_finite` lets no NaN in beyond its limit": (
        f"{FINITE}sgd",
        f"{FINITE}sgd_extra_args",
        f"{FINITE}stateful_sgd",
    ),
    "`lbfgs` skips pairs without curvature": (
        "_src_alias_test.py::LBFGSTest::test_against_plain_implementation2",
        "_src_alias_test.py::LBFGSTest::test_against_plain_implementation3",
    ),
    "a line search ignores extra arguments that its loss does not take: another link may take "
    "them": (
        f"{BACKTRACKING}linesearch_raises_on_unused_extra_args",
        f"{ZOOM}zoom_linesearch_raises_on_unused_extra_args",
    ),
    "`dice_loss` does not check that probabilities sum to 1; integer gradients are refused": (
        "losses__segmentation_test.py::DiceLossTest::test_probability_validation",
        f"{INJECT}inject_hyperparams_starts_with_step_count_zero",
    ),
    "the tree: `adagrad` with its `lr_decay` inside `inject_hyperparams`, a typed key": (
        "_src_alias_test.py::AliasTest::test_optimizers_can_be_wrapped_in_inject_hyperparams5",
        f"{CONTRIB}optimizers_can_be_wrapped_in_inject_hyperparams16",
    ),
    "the last digit in float32": ("tree_utils__tree_math_test.py::TreeUtilsTest::test_tree_vdot",),
}


# Names of Optax that its tests got from Optax.
kept: set[str] = set()


class Swapped(types.ModuleType):
    """A module of Optax with gradtx's names in front of its own."""

    def __init__(self, original: types.ModuleType) -> None:
        super().__init__(original.__name__)
        self.__dict__.update(original=original, __path__=getattr(original, "__path__", None))
        package = original.__name__.partition(".")[2].partition(".")[0]
        self.ours = [getattr(gradtx, package)] if package in PACKAGES else []
        self.ours += [] if package.startswith("tree") else [gradtx]

    def __getattr__(self, name: str) -> Any:
        inner = sys.modules.get(f"{self.__name__}.{name}")
        if inner is not None:
            return inner
        for module in self.ours:
            if name in module.__all__ or name in homes(module.__name__):
                return getattr(module, name)
        value = getattr(self.original, name)
        if not name.startswith("__"):
            kept.add(f"{self.__name__}.{name}")
        return value


def swap() -> None:
    """Let every later import of Optax's names give gradtx's."""
    optax = importlib.import_module("optax")
    for module in pkgutil.walk_packages(optax.__path__, "optax."):
        if not module.name.endswith("_test"):
            importlib.import_module(module.name)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "optax" and name != "optax._src.test_utils":
            sys.modules[name] = Swapped(module)


class Ends:
    """How tests end, by file, written to a folder when a file has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        first = report.nodeid not in self.ends and (report.when == "call" or report.skipped)
        if first or report.failed:  # a test that reports parts fails with one of them
            self.ends[report.nodeid] = report.outcome

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        file = nodeid.partition("::")[0]
        self.left[file] -= 1
        if not self.left[file]:
            ends = {name: end for name, end in self.ends.items() if name.startswith(f"{file}::")}
            Path(self.folder, f"{file}.json").write_text(json.dumps(ends, indent=1))
            jax.clear_caches()  # compiled programs of a file take gigabytes

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.left = collections.Counter(item.nodeid.partition("::")[0] for item in session.items)


def reasons_of(ends: dict[str, str]) -> tuple[list[tuple[int, str]], list[str]]:
    """How many tests fail for each reason, and what the reasons do not say of these tests."""
    failed = {name for name, end in ends.items() if end == "failed"}
    known = {name for names in REASONS.values() for name in names}
    other = [f"fails without a reason: {name}" for name in sorted(failed - known)]
    wrong = sorted(known & ends.keys() - failed)
    other += [f"has a reason and does not fail: {name}" for name in wrong]
    return [(len(failed.intersection(names)), why) for why, names in REASONS.items()], other


def main(given: argparse.Namespace, arguments: list[str]) -> int:
    if not given.optax:
        swap()
    with tempfile.TemporaryDirectory() as home:
        # Flat copies: inside of their package the tests would import the Optax around them.
        folder, kept_in = Path(home, "tests"), given.kept or Path(home, "kept")
        folder.mkdir()
        kept_in.mkdir(parents=True, exist_ok=True)
        root, chosen = Path(given.checkout, "optax"), []
        for path in sorted(root.rglob("*_test.py")):
            parts = path.relative_to(root).parts
            name = "_".join(parts)
            if parts[0] not in LEFT_OUT and any(word in name for word in given.part or [""]):
                chosen.append(kept_in / f"{name}.json")
                if given.again or not chosen[-1].exists():
                    shutil.copy(path, Path(folder, name))
        alone = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", folder, folder]
        if any(folder.iterdir()):
            pytest.main([*alone, "--deselect", LEFT_OUT_TESTS, *arguments], [Ends(kept_in)])
            print("Optax's own:", ", ".join(sorted(kept)))
        absent = [f"has no result: {path.stem}" for path in chosen if not path.exists()]
        files = {path.stem: json.loads(path.read_text()) for path in chosen if path.exists()}
    counts = {name: collections.Counter(ends.values()) for name, ends in files.items()}
    counts["all"] = sum(counts.values(), collections.Counter[str]())
    rows = [[name, *(count[o] for o in OUTCOMES)] for name, count in counts.items()]
    print(markdown("Optax's tests", ["file", *OUTCOMES], rows))
    print(*absent, sep="\n")
    if given.optax:
        return 1 if absent else 0
    found, other = reasons_of({name: end for ends in files.values() for name, end in ends.items()})
    print(markdown("Those that fail", ["failed", "because"], [[*row] for row in found]))
    print(*other, sep="\n")
    return 1 if absent or other else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.optax_tests", description=__doc__)
    parser.add_argument("--optax", action="store_true")
    parser.add_argument("--kept", type=Path, metavar="FOLDER")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("part", nargs="*")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    sys.exit(main(parser.parse_args(words[:end]), words[end + 1 :]))
