"""A user's program under strict type checkers: no error, and types that say something."""

import json
import os
import pathlib
import runpy
import shutil
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent
PROGRAM = TESTS / "typed_program.py"


@pytest.mark.slow
def test_the_program_runs():
    runpy.run_path(str(PROGRAM))


@pytest.mark.slow
def test_mypy(tmp_path):
    pytest.importorskip("mypy")
    options = ["--strict", "--follow-imports=silent", "--config-file=", "--cache-dir", "."]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(PROGRAM)],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "Success: no issues found in 1 source file\n", done.stdout + done.stderr


@pytest.mark.slow
def test_pyright(tmp_path):
    """Where it is installed: ``pip install basedpyright``, whose wheel brings Node along."""
    checker = shutil.which("basedpyright") or shutil.which("pyright")
    if checker is None:
        pytest.skip("needs pyright or basedpyright on the path")
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "reportUnnecessaryTypeIgnoreComment": "error",
                "reportUnusedExpression": "none",
                "extraPaths": [str(TESTS.parent)],
            }
        )
    )
    done = subprocess.run(
        [checker, "--pythonpath", sys.executable, "--outputjson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = json.loads(done.stdout)
    found = [(d["range"]["start"]["line"] + 1, d["message"]) for d in said["generalDiagnostics"]]
    assert found == []
    assert said["summary"]["filesAnalyzed"] == 1
