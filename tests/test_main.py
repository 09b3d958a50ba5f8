"""``python -m gradtx``: what its commands print, and their exit codes."""

# Sees mutants of: commands.

import importlib
import json
import pathlib
import re
import shlex
import sys
import tomllib

import numpy as np
import pytest

import gradtx
from gradtx.__main__ import main, make_parser
from gradtx.commands.chart import text_chart
from gradtx.commands.reading import read_config, read_shapes
from tests.catalogue import builders

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "command_line.md"


def run(capsys, *argv):
    """The exit code of a command, and what it printed."""
    try:
        code = main(list(argv))
    except SystemExit as end:  # argparse leaves
        code = end.code
    return code, *capsys.readouterr()


@pytest.fixture
def saved(tmp_path):
    def save(data):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return str(path)

    return save


def test_without_a_command_it_prints_help(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out == run(capsys, "--help")[1]
    assert "describe" in out


def test_it_is_installed_as_a_script():
    project = tomllib.loads((PAGE.parent.parent / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["gradtx"].partition(":")
    assert getattr(importlib.import_module(module), name) is main


def matches(out, shown):
    """Whether a text is what the page shows; losses may differ by what compilers round."""
    words, expected = out.split(), shown.split()
    return len(words) == len(expected) and all(
        a == b or (re.match(r"[\d.]+$", b) and float(a) == pytest.approx(float(b), rel=1e-4))
        for a, b in zip(words, expected, strict=True)
    )


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into the directory in which commands run; its name is new each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(text, name="train"):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.slow
def test_the_page_shows_what_is_printed(capsys, module):
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module(example)
    shown = re.findall(
        r"^```console\n\$ python -m gradtx (.*)\n([^`]*?)```$", PAGE.read_text(), re.MULTILINE
    )
    assert [line.split()[0] for line, _ in shown] == [
        "list",
        "describe",
        "plot",
        "find-rate",
        "diff",
        "validate",
    ]
    for line, output in shown:
        _, out, err = run(capsys, *shlex.split(line))
        assert matches(out, output) if line.startswith("find-rate") else out + err == output


def test_every_public_builder_is_listed_once(capsys):
    code, out, _ = run(capsys, "list")
    lines = [line.split(maxsplit=1) for line in out.splitlines() if line.startswith("  ")]
    assert code == 0
    assert len({name for name, _ in lines}) == len(lines)
    assert {getattr(gradtx, name).builder for name, _ in lines} == set(builders())
    assert {"store", "guard", "cosine_decay_schedule"} <= {name for name, _ in lines}
    assert all(len(text) > 10 and ":math:" not in text for _, text in lines)


def test_a_list_is_filtered_by_family_and_by_word(capsys):
    code, out, _ = run(capsys, "list", "LION", "--family", "optimizers")
    assert code == 0
    assert out.startswith("optimizers\n")
    assert {"lion", "scale_by_lion", "mars_lion"} <= {line.split()[0] for line in out.splitlines()}
    assert "\n  adam " not in out
    assert run(capsys, "list", "lion", "--family", "schedules")[::2] == (
        1,
        "nothing has 'lion' in its name or summary\n",
    )
    code, _, err = run(capsys, "list", "--family", "optimisers")
    assert code == 2
    assert "use one of" in err


def test_a_call_and_a_file_build_the_same(saved):
    call = "chain(clip(1.0), masked(gradtx.adam(linear_schedule(1e-3, 0, 5)), ['a', 'b']))"
    schedule = gradtx.linear_schedule(1e-3, 0, 5)
    tx = gradtx.chain(gradtx.clip(1.0), gradtx.masked(gradtx.adam(schedule), ["a", "b"]))
    assert read_config(call) == tx
    assert read_config(saved(gradtx.to_config(tx))) == tx
    groups = "partition({'a': sgd(-1.0), 'b': set_to_zero()}, {'x': ('a', 'b')})"
    assert read_config(groups).declaration.arguments["param_labels"] == {"x": ("a", "b")}


def test_shapes(saved):
    inline = read_shapes("a/w=512x2048,a/b=3:bfloat16,s=")
    file = read_shapes(saved({"a": {"w": [512, 2048], "b": "3:bfloat16"}, "s": []}))
    assert inline == file
    assert inline["a"]["w"].shape == (512, 2048)
    assert str(inline["a"]["b"].dtype) == "bfloat16"
    assert inline["s"].shape == ()
    assert [leaf.shape for leaf in read_shapes(saved([[2, 3], "4"]))] == [(2, 3), (4,)]


def test_describe_prints_the_table(capsys):
    code, out, _ = run(capsys, "describe", "adam(0.1)", "--params", "w=2x3,b=3:bfloat16")
    shapes = read_shapes("w=2x3,b=3:bfloat16")
    assert code == 0
    assert out.startswith(str(gradtx.describe(gradtx.adam(0.1), shapes)))
    assert out.endswith("each parameter: 7.78\n")  # 9 of mu in 30 bytes, of nu in 36, a counter


def test_a_chart_has_its_points_where_they_belong():
    lines = text_chart(np.arange(64), np.where(np.arange(64) == 40, 3.0, 1.0)).splitlines()
    assert lines[0] == "3 |" + " " * 40 + "*"
    assert lines[11] == "1 |" + "*" * 40 + " " + "*" * 23
    assert lines[1:11] == ["  |"] * 10
    assert lines[12:] == ["  +" + "-" * 64, "   0" + "63".rjust(63)]
    gap = text_chart(np.arange(64), np.where(np.arange(64) < 60, 2.0, np.nan)).splitlines()
    assert gap[0] == "2 |" + "*" * 60
    assert len(gap) == 3
    assert text_chart(np.arange(2), np.full(2, np.inf)) == "no value is finite"


def test_defaults_are_what_the_help_says():
    plotting = make_parser().parse_args(["plot", "adam(0.1)"])
    assert plotting.steps == 1000
    finding = make_parser().parse_args(["find-rate", "train:problem"])
    found = (finding.low, finding.high, finding.rates, finding.steps)
    assert found == (1e-5, 1.0, 11, None)


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path, monkeypatch):
    """As ``| head`` is: nothing more is written, and the exit code is 0."""

    def show(arguments):
        raise BrokenPipeError

    monkeypatch.setattr("gradtx.commands.catalogue.show", show)
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["list"]) == 0
        print("more", flush=True)
    assert (tmp_path / "out").read_text() == ""


@pytest.mark.slow
def test_every_schedule_of_a_transformation_is_drawn(capsys, tmp_path):
    call = "chain(adam(linear_schedule(1.0, 0.5, 9), b1=cosine_decay_schedule(0.9, 9)))"
    code, out, _ = run(capsys, "plot", call, "--steps", "9")
    assert code == 0
    assert re.findall(r"^args.*(?=:)", out, re.MULTILINE) == ["args/0/b1", "args/0/learning_rate"]
    assert {"1", "0.5", "0.9", "0"} == set(re.findall(r"^ *(\S+) \|", out, re.MULTILINE))
    pytest.importorskip("matplotlib")
    picture = tmp_path / "schedule.png"
    assert run(capsys, "plot", call, "--png", str(picture)) == (0, "", "")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_has_the_same_room_for_each_schedule(capsys, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib.figure")
    drawn = []
    monkeypatch.setattr(matplotlib.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    call = "adam(constant_schedule(1.0), b1=constant_schedule(0.9))"
    assert run(capsys, "plot", call, "--steps", "9", "--png", "x.png") == (0, "", "")
    assert drawn[0].get_size_inches().tolist() == [7, 1 + 2 * 3]
    titles = [axes.get_title() for axes in drawn[0].axes]
    assert titles == ["b1: constant_schedule", "learning_rate: constant_schedule"]
    assert [axes.lines[0].get_ydata()[0] for axes in drawn[0].axes] == [
        pytest.approx(0.9),
        1.0,
    ]


def test_parameters_of_64_bits_need_them(capsys):
    code, _, err = run(capsys, "describe", "adam(0.1)", "--params", "w=10:float64")
    assert code
    assert "JAX_ENABLE_X64=1" in err


def test_a_picture_needs_matplotlib(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run(capsys, "plot", "constant_schedule(1.0)", "--png", "x.png")
    assert (code, err) == (1, "--png needs matplotlib: pip install matplotlib\n")


def test_diff(capsys, saved):
    one, other = gradtx.to_config(gradtx.adam(1e-3)), "adam(1e-3, b2=0.99)"
    assert run(capsys, "diff", saved(one), "adam(0.001)") == (0, "", "")
    assert run(capsys, "diff", saved(one), other) == (1, "b2: 0.999 -> 0.99\n", "")
    longer = "chain(clip(1.0), sgd(linear_schedule(1, 0, 5)))"
    _, out, _ = run(capsys, "diff", "chain(clip(2.0))", longer)
    assert out.splitlines()[:3] == [
        "args/0/max_delta: 2.0 -> 1.0",
        "args/1: absent -> sgd",
        "args/1/learning_rate: absent -> linear_schedule",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'nu': {'a*': 'int8', '*': None}}", "{'nu': {'*': None, 'a*': 'int8'}}"),
        ("{'n*': {'u': 'int8'}}", "{'n*/u': 'int8'}"),
    ],
)
def test_diff_where_no_value_does(capsys, one, other):
    pair = [f"store(adam(0.1), {codecs})" for codecs in (one, other)]
    code, out, _ = run(capsys, "diff", *pair)
    assert code == 1
    assert one in out
    assert other in out


@pytest.mark.parametrize(
    ("config", "code", "error"),
    [
        ("adam(lr=0.1)", 1, "did you mean learning_rate"),
        ("adam(0.1, b1=2)", 1, "b1 must be a number in [0, 1), not 2"),
        ("adamm(0.1)", 1, "did you mean 'adam'"),
        ("apply_updates(1, 2)", 1, "builds nothing"),
        ("adam", 1, "write 'adam(...)'"),
        ("()", 1, "'()' is not a call of a builder"),
        ("(1.0)", 1, "is not a call of a builder"),
        ("[clip(1.0)]", 1, "is not a call of a builder"),
        ("{'a': (1,)}", 1, "is not a call of a builder"),
        ("adam(0.1", 1, "is not a call: '(' was never closed"),
        ("adam(x)", 1, "'x' is not a literal"),
        ("adam(**{})", 1, "is not a literal"),
        ("stateless({**{'a': 1}})", 1, "is not a literal"),
        ("adam(__import__('os').getpid())", 1, "is not a literal"),
        ("[clip(1.0)].pop()", 1, "is not a literal"),
        ("adam(" + "-" * 100_000 + "1)", 1, "is not a call"),
        ("nowhere.json", 2, "nowhere.json: No such file"),
    ],
)
def test_what_is_no_configuration(capsys, config, code, error):
    found, out, err = run(capsys, "validate", config)
    assert (found, out) == (code, "")
    assert error in err


def test_what_is_a_configuration(capsys):
    valid = f"valid: {gradtx.adam(0.1)!r}\n"
    assert run(capsys, "validate", "adam(0.1)") == (0, valid, "")


PROBLEM = """
import numpy as np, gradtx

def problem():
    batches = np.ones((20, 1), np.float32)
    return lambda p, x: ((p - x) ** 2).sum() / 2, gradtx.sgd, np.zeros(1, np.float32), batches
"""


def test_rates_are_found_on_a_function_of_the_user(capsys, module):
    """In closed form: the loss after n steps of gradient descent is (1 - rate)^(2 n) / 2."""
    module(PROBLEM)
    given = ("find-rate", "train:problem", "--low", "0.01", "--high", "10", "--rates", "4")
    code, out, err = run(capsys, *given, "--steps", "10")
    assert (code, err) == (0, "")
    rates = {line.split()[0]: line.split()[1] for line in out.splitlines()[-4:]}
    assert list(rates) == ["0.01", "0.1", "1", "10"]
    assert out.startswith("suggestion 1, basin 1 to 1\n")
    assert float(rates["0.01"]) == pytest.approx(0.5 * 0.99**18, rel=1e-4)
    assert float(rates["0.1"]) == pytest.approx(0.5 * 0.9**18, rel=1e-4)
    assert rates["10"] == "diverged"


def test_progress_is_shown_in_a_terminal_and_wiped(capsys, module, monkeypatch):
    module(PROBLEM)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, err = run(capsys, "find-rate", "train:problem", "--rates", "4", "--steps", "10")
    shown = err.split("\r")
    assert code == 0
    assert shown[1].strip() == "compiling 10 steps with 4 rates"
    assert shown[-3].strip() == "4 rates: step 10 of 10"
    assert (shown[-2].strip(), shown[-1]) == ("", "")
    assert "step" not in out


def test_progress_is_written_at_most_ten_times_a_second(capsys, module, monkeypatch):
    """The first and the last step always are."""
    times = [0.25, 0.31, 0.37, 0.38]

    def find_rate(*_, progress):
        for step, time in enumerate(times, 1):
            monkeypatch.setattr("gradtx.commands.rates.time.monotonic", lambda time=time: time)
            progress(step, len(times))

    module(PROBLEM)
    monkeypatch.setattr("gradtx.commands.rates.find_rate", find_rate)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, _, err = run(capsys, "find-rate", "train:problem")
    assert re.findall(r"step (\d) of 4", err) == ["1", "3", "4"]


def test_the_directory_of_the_command_comes_before_others(capsys, module, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text("x = 1\n")
    module("def problem(): 1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    _, _, err = run(capsys, "find-rate", "train:problem")
    assert err.endswith("train:problem failed with the ZeroDivisionError above\n")


@pytest.mark.slow
def test_the_rates_are_drawn(capsys, module, tmp_path, monkeypatch):
    module(PROBLEM)
    given = ("find-rate", "train:problem", "--rates", "4", "--png", "rates.png")
    pytest.importorskip("matplotlib")
    assert run(capsys, *given)[0] == 0
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = run(capsys, *given)
    assert (code, err) == (1, "--png needs matplotlib: pip install matplotlib\n")
    assert out.startswith("suggestion")


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (("train",), 2, "write train:problem for the function problem in train.py"),
        (("train.py:problem",), 2, "is not of the form MODULE:FUNCTION"),
        (("a/train:problem",), 2, "is not of the form MODULE:FUNCTION"),
        (("trian:problem",), 1, "there is no module 'trian': run the command in the directory"),
        (("trian.model:problem",), 1, "there is no module 'trian.model'"),
        (
            ("train:problme",),
            1,
            "no function 'problme' in the module 'train': did you mean 'problem'",
        ),
        (("train:wider",), 1, "wider must take no arguments: missing a required argument: 'width'"),
        (("train:x",), 1, "write one that returns (loss_fn, build, params, batches)"),
        (("train:problem", "--low", "1", "--high", "0.1"), 1, "--low 1 must be below --high 0.1"),
        (("train:problem", "--low", "-1"), 2, "'-1' is not a positive number"),
        (("train:problem", "--high", "inf"), 2, "'inf' is not a positive number"),
        (("train:problem", "--rates", "1"), 2, "'1' is not a number of rates, 2 or more"),
        (("train:problem", "--steps", "21"), 1, "--steps 21: train:problem returns 20 batches"),
        (("train:problem", "--low", "9", "--high", "99"), 1, "diverged, from 9 on: try lower ones"),
    ],
)
def test_what_finds_no_rate_is_said_in_a_sentence(capsys, module, argv, code, error):
    module(f"{PROBLEM}\ndef wider(width): pass\n")
    found, out, err = run(capsys, "find-rate", *argv)
    assert (found, out) == (code, "")
    assert error in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        ("None", "train:problem must return (loss_fn, build, params, batches)"),
        ("(loss, gradtx.sgd, 0.0)", "as gradtx.find_rate takes them; it returns 3 values"),
        ("(0.0, gradtx.sgd, 0.0, [])", "must return a loss first"),
        ("(loss, gradtx.sgd(0.1), 0.0, x)", "such as gradtx.adamw or lambda rate"),
        ("(loss, lambda rate: rate, 0.0, x)", "such as gradtx.adamw or lambda rate"),
        ("(loss, gradtx.sgd, 0.0, 1.0)", "one batch for each step along their first axis"),
        ("(loss, gradtx.sgd, np.nan, x)", "the loss of the start is not finite"),
    ],
)
def test_what_a_function_must_return(capsys, module, returned, error):
    text = "import numpy as np, gradtx\nx, loss = np.ones(3), lambda p, x: (p - x) ** 2\n"
    module(f"{text}def problem(): return {returned}\n")
    code, out, err = run(capsys, "find-rate", "train:problem")
    assert (code, out) == (1, "")
    assert error in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nowhere\n", "the import of train failed with the ModuleNotFoundError above"),
        ("def problem(): 1 / 0\n", "train:problem failed with the ZeroDivisionError above"),
        (
            (  # the lowest of the rates is below 2e-5
                "build = lambda rate: 1 / 0 if rate < 2e-5 else gradtx.sgd(rate)\n"
                "def problem(): return (lambda p, x: p), build, 0.0, np.ones(3)\n"
            ),
            "what train:problem returns as build failed with the ZeroDivisionError above",
        ),
        (
            "def problem(): return (lambda p, x: q), gradtx.sgd, 0.0, np.ones(1)\n",
            "the loss of train:problem failed with the NameError above",
        ),
    ],
)
def test_where_code_of_the_user_fails_its_traceback_is_shown(capsys, module, text, error):
    module(f"import numpy as np, gradtx\n{text}")
    code, out, err = run(capsys, "find-rate", "train:problem")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback")
    assert 'train.py", line' in err
    assert err.splitlines()[-1] == error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "not a configuration of gradtx"),
        ({"gradtx": 1, "name": "adam", "arguments": {"lr": 1}}, "unknown arguments ['lr']"),
    ],
)
def test_what_is_no_file_of_a_configuration(capsys, saved, text, error):
    code, _, err = run(capsys, "validate", saved(text))
    assert code == 1
    assert error in err


@pytest.mark.parametrize(
    ("argv", "code", "error"),
    [
        (("describe", "adam(0.1)"), 2, "required: --params"),
        (("describe", "adam(0.1)", "--params", "w=3y4"), 2, "'3y4' is not a shape"),
        (("describe", "adam(0.1)", "--params", "w=3:half5"), 2, "half5"),
        (("describe", "adam(0.1)", "--params", "w=3,w/b=4"), 2, "stands in the way"),
        (("describe", "adam(0.1)", "--params", "w=3,w/b/c=4"), 2, "stands in the way"),
        (("describe", "adam(0.1)", "--params", "w=3,"), 2, "'' is not of the form PATH=SIZES"),
        (("describe", "adam(0.1)", "--params", "no.json"), 2, "no.json: No such file"),
        (("describe", "masked(adam(0.1), 'x')", "--params", "w=3"), 1, "matches no leaf"),
        (("describe", "adam(0.1)", "--params", "w=3:int8"), 1, "w is int8, which is not trained"),
        (("describe", "constant_schedule(1.0)", "--params", "w=3"), 1, "`plot` shows"),
        (("plot", "adam(0.1)"), 1, "no schedule among its arguments"),
        (("plot", "constant_schedule(1.0)", "--steps", "0"), 2, "'0' is not a number of steps"),
        (("plot", "constant_schedule(1.0)", "--png", "/no/x.png"), 2, "/no/x.png: No such file"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(capsys, argv, code, error):
    found, _, err = run(capsys, *argv)
    assert found == code
    assert error in err
