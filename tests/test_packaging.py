"""What is shipped: a wheel and a source archive that install and import without anything else."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gradtx
from gradtx.names.namespace import MOVED

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


REPOSITORY = "https://example.org/owner/gradtx"


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """What a wheel says of itself, built from a source archive that knew the repository."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("released")

    def build(target, root, **more):
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
        env = {k: v for k, v in os.environ.items() if k != "GRADTX_REPOSITORY"} | more
        subprocess.run(command, cwd=root, env=env, check=True, capture_output=True)

    build("sdist", ROOT, GRADTX_REPOSITORY=REPOSITORY)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    build("wheel", folder / archive.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        name = next(n for n in opened.namelist() if n.endswith("/METADATA"))
        return opened.read(name).decode()


@pytest.mark.slow
def test_an_index_of_packages_shows_links_that_lead_somewhere(metadata):
    head, _, readme = metadata.partition("\n\n")
    shown = dict(re.findall(r"^Project-URL: (.*), (.*)$", head, re.MULTILINE))
    assert set(shown) == {"Source", "Documentation", "Changelog", "Issues"}
    assert "Author: the gradtx contributors" in head
    links = re.findall(r"\]\(([^)]*)\)", readme)
    assert len(links) > 15
    for link in [*links, *shown.values()]:
        assert link.startswith("https://"), link
        inside, _, path = link.partition(f"{REPOSITORY}/blob/v{gradtx.__version__}/")
        assert inside or (ROOT / path).exists(), link


def test_one_version_is_named_everywhere():
    """In the places that .ci/release compares, and the changelog that it asks for."""
    text = {name: (ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff")}
    version = re.escape(gradtx.__version__)
    assert re.search(f'^version = "{version}"$', text["pyproject.toml"], re.MULTILINE)
    assert re.search(f"^version: {version}$", text["CITATION.cff"], re.MULTILINE)
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{version}\]", changes, re.MULTILINE)
    assert len(changes) < 8000


def test_what_the_changelog_names_is_there():
    """Public names, arguments and modules; what is to be removed is in gradtx.names.namespace."""
    text, _, removed = (ROOT / "CHANGELOG.md").read_text().partition("### To be removed")
    named = {n for n in re.findall(r"`([a-z]\w*(?:_\w+)+)", text) if not hasattr(gradtx, n)}
    assert named <= {"keras_optimizer", "scale_by_"}
    for old in re.findall(r"`([A-Z]\w+|norm|rms)`", removed):
        assert old == "ZeroGradient" or f"gradtx.{old}" in MOVED
    pages = re.findall(r"\((docs/\w+\.md)\)", text)
    assert len(pages) > 2
    assert all((ROOT / page).exists() for page in pages)


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
