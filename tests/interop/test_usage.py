"""``python -m gradtx check``: the names of Optax in a code base that are missing or differ."""

import subprocess
import sys

import pytest

from gradtx.__main__ import main
from gradtx.interop.usage import Use, uses, verdict

SOURCE = """
import optax
import optax.contrib as oc
import optax.tree_utils as otu
from optax import nnls, losses as lo
from optax._src import base
from . import optax as mine


def train(params, optax_state):
    tx = optax.chain(optax.clip(1.0), oc.momo(1e-3), optax.adam(1e-3))
    loss = lo.l2_loss(otu.tree_l2_norm(params))
    state: optax.OptState = tx.init(params)
    return optax.assignment.hungarian_algorithm, optax.adamm, self.optax.nope, base.EmptyState
"""


def test_uses_are_found_by_import_and_by_attribute():
    assert uses(SOURCE) == [
        Use(3, "contrib"),
        Use(4, "tree_utils"),
        Use(5, "losses"),
        Use(5, "nnls"),
        Use(6, "_src.base"),
        Use(11, "adam"),
        Use(11, "chain"),
        Use(11, "clip"),
        Use(11, "contrib.momo"),
        Use(12, "losses.l2_loss"),
        Use(12, "tree_utils.tree_l2_norm"),
        Use(13, "OptState"),
        Use(14, "_src.base.EmptyState"),
        Use(14, "adamm"),
        Use(14, "assignment.hungarian_algorithm"),
    ]


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("adam", None, ""),
        ("MultiSteps.update", None, ""),
        ("contrib.muon", None, ""),
        ("tree_utils.tree_l2_norm", None, ""),
        ("contrib.*", None, ""),
        ("__version__", "differs", "Optax 0.2.8"),
        ("contrib.momo", "differs", "one plus the decay"),
        ("rprop", "differs", "of this step"),
        ("assignment.hungarian_algorithm", "missing", "linear_sum_assignment"),
        ("nnls", "missing", "gradtx.solve"),
        ("adamm", "missing", "did you mean 'adam"),
        ("_src.base.EmptyState", "missing", "use gradtx.EmptyState"),
        ("_src.xyzzy", "missing", "private in Optax"),
    ],
)
def test_verdicts(name, kind, text):
    found = verdict(name)
    assert (found and found[0]) == kind
    assert found is None or text in found[1]


def test_a_directory_is_read(tmp_path, capsys):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "train.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text("import jax\n")
    assert main(["check", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'inner' / 'train.py'}:5: optax.nnls is missing: use ")
    assert lines[-1] == "files: 2; names of Optax: 15 used, 5 missing, 1 different"
    assert len(lines) == 7


def test_what_only_differs_is_no_failure(tmp_path, capsys):
    file = tmp_path / "train.py"
    file.write_text("import optax\n\ntx = optax.rprop(1e-3)\n")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}:3: optax.rprop differs: ")


def test_what_cannot_be_read(tmp_path, capsys):
    (tmp_path / "old.py").write_text("print 'hello'\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "old.py: cannot be read: " in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none")]) == 1
    assert "no such file or directory" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path):
    (tmp_path / "a.py").write_text("from optax import adam\n")
    command = [sys.executable, "-m", "gradtx", "check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "files: 1; names of Optax: 1 used, 0 missing, 0 different\n"
    assert subprocess.run(command[:3], capture_output=True, check=False).returncode == 2
