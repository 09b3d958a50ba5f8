"""``python -m gradtx check``: the names of Optax in a code base that are missing or differ."""

# Sees mutants of: check.

import json
import os
import subprocess
import sys

import pytest

from gradtx.__main__ import main
from gradtx.interop.usage import Use, uses, verdict, verdicts

SOURCE = """
import optax
import optax.contrib as oc
import optax.tree_utils as otu
from optax import nnls, losses as lo
from optax._src import base
from . import optax as mine


def train(params, optax_state):
    tx = optax.chain(optax.clip(1.0), oc.momo(1e-3, weight_decay=0.1), optax.adam(1e-3))
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
        ("assignment.hungarian_algorithm", "differs", "linear_sum_assignment"),
        ("nnls", "missing", "gradtx.solve"),
        ("adamm", "missing", "did you mean 'adam"),
        ("_src.base.EmptyState", None, ""),
        ("_src.utils.canonicalize_dtype", None, ""),
        ("_src.base.xyzzy", "missing", "gradtx._src.base has public names"),
        ("_src.base._adam", "missing", "use gradtx.adam"),
        ("_src.factorized.scale_by_factored_rms", None, ""),
        ("_src.alias.*", None, ""),
        ("transforms._masking.masked", None, ""),
        ("schedules._schedule", None, ""),
        ("schedules._schedule._xyzzy", "missing", "gradtx.schedules._schedule has public names"),
        ("radam", "differs", "1.2e-2"),
        ("additive_weight_decay", "differs", "dropped it, in 0.1.8; gradtx.add_decayed_weights"),
        ("hvp", "missing", "dropped it, in 0.1.8; Optax has deprecated it; use jax.jvp"),
        ("contrib.prism", "missing", "since its development version 0.2.9"),
        ("contrib.normuon", None, ""),
        ("contrib._muon.muon", None, ""),
        ("contrib._muon", None, ""),
        ("losses._classification", None, ""),
        ("losses._regression.l2_loss", None, ""),
        ("projections._projections.projection_simplex", None, ""),
        ("tree_utils._state_utils.tree_get", None, ""),
        ("tree_utils._state_utils.xyzzy", "missing", "_state_utils has public names"),
        ("_src.linear_algebra.nnls", "missing", "gradtx.solve"),
        ("_src.utils.multi_normal", "missing", "jax.random.normal"),
        ("_src.transform.additive_weight_decay", "differs", "dropped it, in 0.1.8"),
        ("_src.contrib", "missing", "private in Optax"),
        ("_src.xyzzy", "missing", "private in Optax"),
    ],
)
def test_verdicts(name, kind, text):
    found = verdict(name)
    assert (found and found[0]) == kind
    assert found is None or text in found[1]


def test_what_is_in_a_module_that_is_left_out_is_left_out_for_its_reason():
    assert verdict("experimental.microbatching") == verdict("experimental")


def test_a_directory_is_read(tmp_path, capsys):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "train.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text("import jax\n")
    assert main(["check", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'inner' / 'train.py'}:5: optax.nnls is missing: use ")
    assert lines[-1] == (
        "files: 2; names of Optax: 15 used, 2 missing, 0 called otherwise, 2 different"
    )
    assert len(lines) == 5


def test_what_only_differs_is_no_failure(tmp_path, capsys):
    file = tmp_path / "train.py"
    file.write_text("import optax\n\ntx = optax.rprop(1e-3)\n")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}:3: optax.rprop differs: ")


ODD = """
import optax.contrib
import optax as ox
from optax import MaskedNode, scale_by_learning_rate
from optax import adam as make

a = optax.contrib.muon(1e-3)
b = getattr(ox, "nnls"), getattr(ox, "also", None), getattr(ox, "rprop")
ox.mine = make
ox.contrib.ours, c = 1, 2
d = ox.mine(1), ox.contrib.ours, ox.yours
setattr(ox, "yours", 3)
e = [x for x in y if isinstance(x, MaskedNode)]
f = scale_by_learning_rate(1e-3), ox.scale_by_learning_rate(learning_rate=None)
g = make(1e-3, beta=0.9), ox.clip(), ox.clip(*args), ox.adam(1e-3, **more), ox.sgd(1, 2, 3, 4, 5, 6)
h = MaskedNode(), type(x) is ox.MaskedNode
"""


def checked(capsys, *paths):
    """The exit code of the command, the lines that it prints but for the last, and the errors."""
    code = main(["check", *map(str, paths)])
    out, err = capsys.readouterr()
    return code, out.splitlines()[:-1], err


def test_what_a_file_does_is_told_from_what_it_might_do(tmp_path, capsys):
    (tmp_path / "a.py").write_text(ODD)
    code, lines, _ = checked(capsys, tmp_path)
    assert code == 1
    said = [line.removeprefix(f"{tmp_path / 'a.py'}:").split(": optax.")[:2] for line in lines]
    assert [(at, " ".join(text.split()[:2])) for at, text in said] == [
        ("8", "nnls is"),
        ("8", "rprop differs:"),
        ("14", "scale_by_learning_rate differs:"),
        ("15", "adam is"),
        ("15", "clip is"),
        ("15", "sgd is"),
        ("16", "MaskedNode differs:"),
        ("16", "MaskedNode differs:"),
    ]
    assert "called otherwise: got an unexpected keyword argument 'beta'; its" in lines[3]
    assert "called otherwise: missing a required argument: 'max_delta'; its" in lines[4]
    assert "called otherwise: too many positional arguments; its" in lines[5]


IN_SOME_USES = {
    "dpsgd(0.1, 1.0, 1.0)": True,
    "dpsgd(0.1, 1.0, 1.0, 7)": False,
    "dpsgd(0.1, 1.0, 1.0, seed=7)": False,
    "dpsgd(0.1, 1.0, 1.0, **options)": False,
    "contrib.differentially_private_aggregate(1.0, 1.0)": True,
    "contrib.differentially_private_aggregate(1.0, 1.0, key=key)": False,
    "inject_hyperparams(optax.adam)(0.1)": False,
    "inject_hyperparams(optax.adam)(learning_rate=rate)": False,
    "inject_hyperparams(optax.adamw)(0.1, mask=chosen)": True,
    "inject_hyperparams(optax.adamw)(0.1, **options)": True,
    "inject_hyperparams(optax.adamw)(lambda count: 0.1)": True,
    "inject_hyperparams(optax.adamw)": True,
    "microbatch(f, 0, 4)": False,
    "microbatch(f, 0, 4, accumulator=total)": True,
    "contrib.schedule_free(tx, 0.1)": False,
    "contrib.schedule_free(tx, learning_rate=rate)": True,
    "momo(0.1)": False,
    "momo(0.1, weight_decay=0.1)": True,
    "polyak_sgd()": False,
    "rprop(0.1)": True,
}


@pytest.mark.parametrize("call", IN_SOME_USES)
def test_what_differs_in_some_uses_is_said_of_those(call):
    name = call.partition("(")[0]
    found = verdicts(uses(f"import optax\ntx = optax.{call}"), set())
    kinds = {kind for use, kind, _ in found if use.name == name}
    assert kinds == ({"differs"} if IN_SOME_USES[call] else set())


@pytest.mark.parametrize(
    ("call", "refused"),
    [("clip()", True), ("clip(*args)", False), ("clip(**more)", False), ("clip(1, *args)", False)],
)
def test_arguments_that_are_not_written_out_may_fit(call, refused):
    found = verdicts(uses(f"import optax\ntx = optax.{call}"), set())
    assert [kind for _, kind, _ in found] == ["refused"] * refused


def test_what_differs_is_also_said_to_be_called_otherwise():
    found = verdicts(uses("import optax\ntx = optax.rprop(0.1, beta=1)"), set())
    assert [kind for _, kind, _ in found] == ["refused", "differs"]


def test_code_for_another_python_names_the_one_that_reads(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import optax\nprint(f'{optax.adam' '}')\n")
    code, _, err = checked(capsys, tmp_path)
    assert code == 1
    assert f"read by Python {sys.version_info[0]}.{sys.version_info[1]}" in err


def test_what_one_file_sets_on_the_module_is_known_in_all(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import optax\noptax.extra = 3\n")
    (tmp_path / "b.py").write_text("import optax\nprint(optax.extra, optax.extra.more)\n")
    assert checked(capsys, tmp_path) == (0, [], "")
    assert checked(capsys, tmp_path / "b.py")[0] == 1


def test_every_call_of_the_catalogue_fits_its_signature():
    """What is the same in both libraries is not said to be called otherwise."""
    for name in ("adam", "lion", "sgd", "contrib.muon", "chain", "apply_updates", "MaskedNode"):
        found = uses(f"import optax\noptax.{name}(*args, **options)")
        assert [kind for _, kind, _ in verdicts(found, set()) if kind == "refused"] == []


NOTEBOOK = {
    "nbformat": 4,
    "cells": [
        {"cell_type": "markdown", "source": ["import optax; optax.nnls"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install optax\n"]},
        {"cell_type": "code", "source": "%%time\nimport optax as ox\nif ox:\n    !ls\nx = %pwd"},
        {"cell_type": "code", "source": ["y = (1\n", "  % 2)\n", "ox.nnls(\n", "  1)"]},
        {"cell_type": "code", "source": "%%bash\nfor x in y; do"},
        {"cell_type": "code", "source": "not python (ox"},
        {"cell_type": "code", "source": "ox.adam?\nox.adamm"},
        {"cell_type": "code", "source": "not python, and nothing of Optax ("},
        {"cell_type": "code", "source": "%%time\nif (3 % 2 == 0):\n  x = (3\n  % ox.nnls)"},
        {"cell_type": "code", "source": "# title\n!ls -l \\\n  --all \\\n  .\nox.nnls"},
        {"cell_type": "code", "source": "!ls \\\n  --all\nox.nnls"},
        {"cell_type": "code", "source": "ox.nnls\n!ls \\\n  --all"},
        {"cell_type": "code", "source": "ox.nnls\n!ls \\"},
        {"cell_type": "code", "source": "!echo \0\nox.nnls"},
    ],
}


@pytest.mark.parametrize("old", [False, True])
def test_a_notebook_is_read_cell_by_cell(tmp_path, capsys, old):
    notebook = NOTEBOOK
    if old:  # the third format
        cells = [{"cell_type": c["cell_type"], "input": c["source"]} for c in NOTEBOOK["cells"]]
        notebook = {"nbformat": 3, "worksheets": [{"cells": cells}]}
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps(notebook))
    code, lines, err = checked(capsys, tmp_path)
    assert code == 1
    assert [line.removeprefix(f"{path}:").split(" is ")[0] for line in lines] == [
        "cell 4:3: optax.nnls",
        "cell 7:2: optax.adamm",
        "cell 9:4: optax.nnls",
        "cell 10:5: optax.nnls",
        "cell 11:3: optax.nnls",
        "cell 12:1: optax.nnls",
        "cell 13:1: optax.nnls",
        "cell 14:2: optax.nnls",
    ]
    assert err.startswith(f"{path}: cannot be read: cell 6: ")
    assert f"{path}: not read, nothing of Optax is in it: cell 8: " in err
    assert err.count("\n") == 2


@pytest.mark.parametrize("text", ["[]", "{", '{"cells": 3}', '{"cells": [3]}', "[" * 100_000])
def test_what_is_no_notebook_is_a_fault_of_its_file(tmp_path, capsys, text):
    (tmp_path / "a.ipynb").write_text(text)
    (tmp_path / "b.py").write_text("from optax import nnls\n")
    code, lines, err = checked(capsys, tmp_path)
    assert (code, len(lines)) == (1, 1)
    assert err.startswith(f"{tmp_path / 'a.ipynb'}: cannot be read: ")


BAD = {
    "signs": b"x = optax" + b"-" * 50_000 + b"1",
    "attributes": b"x = optax" + b".b" * 50_000,
    "zero": b"x = 'optax\0'",
    "encoding": "# coding: utf-8\nx = 'optax é'".encode("latin-1"),
    "unknown encoding": b"# coding: nothing\nimport optax",
    "later": b"def f(: optax",
    "mark": b"\xff\xfeoptax",
}


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_file_does_not_stop_the_others(tmp_path, capsys, bad):
    (tmp_path / "a.py").write_bytes(BAD[bad])
    (tmp_path / "b.py").write_text("from optax import nnls\n")
    code, lines, err = checked(capsys, tmp_path)
    assert (code, len(lines)) == (1, 1)
    assert err.startswith(f"{tmp_path / 'a.py'}: cannot be read: ")
    assert len(err) < 400


@pytest.mark.parametrize("bad", [b"print 'hello'", b"\xff\xfe", b"# coding: nothing\n", b"def f(:"])
def test_what_cannot_be_read_is_no_fault_if_nothing_of_optax_stands_in_it(tmp_path, capsys, bad):
    (tmp_path / "a.py").write_bytes(bad)
    code, lines, err = checked(capsys, tmp_path)
    assert (code, lines) == (0, [])
    assert "a.py: not read, nothing of Optax is in it: " in err


GOOD = {
    "mark": b"\xef\xbb\xbfimport optax\noptax.nnls\n",
    "declared": "# -*- coding: latin-1 -*-\nimport optax\nx = 'é'; optax.nnls".encode("latin-1"),
    "escapes": b"import optax\nx = '\\d'; optax.nnls\n",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("good", GOOD)
def test_bytes_are_read_as_python_reads_them(tmp_path, capsys, good):
    (tmp_path / "a.py").write_bytes(GOOD[good])
    code, lines, err = checked(capsys, tmp_path)
    assert (code, len(lines), err) == (1, 1, "")


def test_regular_files_of_the_folder_alone_are_read(tmp_path, capsys):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside").mkdir()
    for place in ("inside/own.py", "outside/other.py"):
        (tmp_path / place).write_text("from optax import nnls\n")
    os.mkfifo(inside / "pipe.py")
    (inside / "folder.py").mkdir()
    (inside / "device.py").symlink_to("/dev/zero")
    (inside / "broken.py").symlink_to("nowhere")
    (inside / "other.py").symlink_to(tmp_path / "outside" / "other.py")
    (inside / "tree").symlink_to(tmp_path / "outside")
    (inside / "again.py").symlink_to("own.py")
    code, lines, err = checked(capsys, inside)
    assert (code, err) == (1, "")
    assert [line.split(":")[0] for line in lines] == [
        str(inside / "again.py"),
        str(inside / "own.py"),
    ]
    for odd in ("pipe.py", "device.py"):
        code, lines, err = checked(capsys, inside / odd)
        assert (code, lines) == (1, [])
        assert "it is not a regular file" in err
    with (inside / "large.py").open("wb") as file:
        file.truncate(10**9)
    assert "large.py: cannot be read: it has more than" in checked(capsys, inside)[2]


def test_names_that_a_star_imports_are_not_read(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import math\nfrom optax import *\nx = nnls(A, b)\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "a.py: cannot be read: line 2: `import *`" in capsys.readouterr().err


def test_what_cannot_be_read(tmp_path, capsys):
    (tmp_path / "old.py").write_text("import optax\nprint 'hello'\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "old.py: cannot be read: " in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none")]) == 1
    assert "no such file or directory" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path):
    (tmp_path / "a.py").write_text("from optax import adam\n")
    command = [sys.executable, "-m", "gradtx", "check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (
        done.stdout
        == "files: 1; names of Optax: 1 used, 0 missing, 0 called otherwise, 0 different\n"
    )
    assert subprocess.run(command[:4], capture_output=True, check=False).returncode == 2
