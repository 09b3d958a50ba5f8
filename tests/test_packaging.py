"""What is shipped: a wheel and a source archive that install and import without anything else."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gradtx

ROOT = Path(__file__).parents[1]
PACKAGED = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "gradtx").rglob("*")
    if path.suffix in {".py", ".pyi", ".json", ".typed"}
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with both archives; hatchling builds them without a network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return folder


def imported(place, code):
    """What a fresh interpreter prints that finds gradtx only in `place`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(place)!r}); {code}"],
        cwd=place.parent,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.slow
def test_the_wheel_has_every_file_and_works_installed_and_zipped(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert set(PACKAGED) <= set(archive.namelist())
        assert not [n for n in archive.namelist() if n.startswith(("tests", "docs", "benchmarks"))]
        archive.extractall(tmp_path / "installed")
    code = "import gradtx; print(gradtx.__file__, len(gradtx.__all__), gradtx.adam(0.1))"
    for place in (tmp_path / "installed", wheel):
        out, errors = imported(place, code)
        assert out.startswith(str(place)), errors
        assert out.endswith(f"{len(gradtx.__all__)} {gradtx.adam(0.1)}")


@pytest.mark.slow
def test_without_its_stub_the_import_says_what_is_missing(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "gradtx" / "__init__.pyi").unlink()
    out, errors = imported(tmp_path, "import gradtx")
    assert not out
    assert "ImportError" in errors
    assert "__init__.pyi is missing" in errors


@pytest.mark.slow
def test_the_source_archive_has_what_its_tests_and_pages_need(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    needed = ("README.md", "LICENSE", "CITATION.cff", "docs/conf.py", "docs/curves.json")
    assert {*needed, *PACKAGED, "tests/catalogue.py", "examples/train_digits.py"} <= names


@pytest.mark.slow
def test_pip_finds_everything_that_gradtx_asks_for():
    """Other packages of an environment may disagree among themselves."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert not [line for line in done.stdout.splitlines() if line.startswith("gradtx ")]
