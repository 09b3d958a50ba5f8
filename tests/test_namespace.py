"""Public names: where they are, what stands in for old ones, what is said of those that are not."""

import ast
import importlib
import inspect
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gradtx
from gradtx.names import namespace
from gradtx.names.namespace import MOVED, face, homes, lazy, rooms

# Those of which the top level had each before there were rooms.
EARLIER = (pathlib.Path(__file__).parent / "golden" / "public_names.txt").read_text().split()
ROOMS = [name.removeprefix("gradtx.") for name in rooms("gradtx")]
PACKAGES = sorted(p.parent.name for p in pathlib.Path(gradtx.__file__).parent.glob("*/__init__.py"))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_lists_what_it_has(name):
    package = getattr(gradtx, name)
    listed = [each for each in dir(package) if not each.startswith("_")]
    assert len(listed) > 2
    for each in listed:
        assert hasattr(package, each)


@pytest.mark.parametrize("name", ["gradtx", *rooms("gradtx")])
def test_no_public_name_is_also_a_module_beside_it(name):
    package = importlib.import_module(name)
    modules = {file.stem for file in pathlib.Path(package.__path__[0]).iterdir()}
    names = {each for each, home in homes(name).items() if home != name}
    assert not names & modules


@pytest.mark.parametrize("name", ["gradtx", *rooms("gradtx")])
def test_stubs_are_read_as_python_reads_them(name):
    package = importlib.import_module(name)
    stub = ast.parse(pathlib.Path(package.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    pairs = [(each.name, node.module) for node in imports for each in node.names]
    assert len({each for each, _ in pairs if each != "*"}) + len(rooms(name)) == len(pairs)
    assert face(name) == {each: module for each, module in pairs if each != "*"}
    assert rooms(name) == [module for each, module in pairs if each == "*"]
    assert package.__all__ == [*face(name)]


def test_the_face_is_small():
    assert len(gradtx.__all__) == len({*gradtx.__all__}) <= 300
    assert {"adamw", "chain", "apply_updates", "minimize", "solve", "schedules"} < {*face("gradtx")}


def test_every_earlier_name_is_had_from_the_top_level():
    assert len(EARLIER) == 644
    assert {*EARLIER} <= homes("gradtx").keys()
    for name in EARLIER:
        scope = {}
        exec(f"from gradtx import {name}", scope)
        assert scope[name] is getattr(gradtx, name)


def test_rooms_agree_on_where_a_name_is():
    for room in ("gradtx", *ROOMS):
        package = gradtx if room == "gradtx" else getattr(gradtx, room)
        for name, home in homes(package.__name__).items():
            assert homes("gradtx")[name] == home


def test_every_state_is_in_its_room():
    kept = {name for name in homes("gradtx") if name.endswith(("State", "States"))}
    types = {"OptState", "InnerState"}
    assert kept - types <= {*gradtx.states.__all__}
    assert {name for name in gradtx.__all__ if name in kept} == types | {"EmptyState"}
    for name in gradtx.states.__all__:
        assert inspect.isclass(getattr(gradtx.states, name))


def test_what_is_rare_is_in_contrib_and_not_in_the_face():
    rare = (
        *("streaming_diloco", "sparse_loco", "demo", "dion2", "dion3", "muown", "muon2"),
        *("soap_muon", "newton_muon", "polargrad", "riemannian_lora", "psgd_lra", "ssbroyden"),
        *("trust_gate", "radial_brake", "hyperball"),
    )
    assert {*rare} <= {*gradtx.contrib.__all__} - {*gradtx.__all__}
    assert "may change" in gradtx.contrib.__doc__


def test_a_name_of_a_room_is_suggested_too():
    for wrong, name in (("galor", "galore"), ("ScaleByAdamsState", "ScaleByAdamState")):
        with pytest.raises(AttributeError, match=f"did you mean '{name}'"):
            getattr(gradtx, wrong)


def test_importing_gradtx_reads_no_stub_of_a_room():
    program = (
        "import sys\n"
        "read = []\n"
        "sys.addaudithook(lambda event, args: read.append((event, str(args[:1]))))\n"
        "import gradtx\n"
        "gradtx.states\n"
        "print(*(path for event, path in read if event == 'open' and '.pyi' in path))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    names = {pathlib.Path(path).parent.name for path in done.stdout.split()}
    assert "gradtx" in names
    assert not ({*ROOMS} - {"states"}) & names


def test_completion_shows_no_module_that_is_not_for_users():
    names = [name for name in dir(gradtx) if not name.startswith("__")]
    shown = {name for name in names if inspect.ismodule(getattr(gradtx, name))}
    assert shown == {name for name, home in homes("gradtx").items() if home == "gradtx"}
    assert {*ROOMS} <= shown
    assert not {"absences", "eager", "engine", "host_values", "namespace", "_src"} & set(
        dir(gradtx)
    )


def test_completion_shows_the_face():
    assert {name for name in dir(gradtx) if name[:2] != "__"} == {*gradtx.__all__}
    assert {name for name in dir(gradtx.states) if name[:2] != "__"} == {*gradtx.states.__all__}


def test_names_of_modules_are_those_of_the_top_level():
    for name in ROOMS:
        module = getattr(gradtx, name)
        for each in module.__all__:
            assert getattr(module, each) is getattr(gradtx, each)


def test_imports_of_optax_carry_over():
    from gradtx.contrib import muon
    from gradtx.schedules import cosine_decay_schedule
    from gradtx.transforms import freeze

    assert (muon, cosine_decay_schedule, freeze) == (
        gradtx.muon,
        gradtx.cosine_decay_schedule,
        gradtx.freeze,
    )


@pytest.mark.parametrize("old", MOVED)
def test_what_has_moved_is_had_in_its_old_place_with_a_warning(old):
    place, _, name = old.rpartition(".")
    new_place, _, new_name = MOVED[old].rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{old} is {MOVED[old]} now") as caught:
        found = getattr(sys.modules[place], name)
    assert caught[0].filename == __file__
    assert found is getattr(sys.modules[new_place], new_name)
    assert name not in dir(sys.modules[place])


def test_a_configuration_knows_a_function_by_its_old_name():
    tx = gradtx.monitor({"size": gradtx.transforms.trust.norm})
    config = gradtx.to_config(tx)
    assert gradtx.from_config(config) == tx
    old = json.dumps(config).replace("transforms.trust.norm", "norm")
    assert old != json.dumps(config)
    assert gradtx.from_config(json.loads(old)) == tx


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("gradtx", "nnls", "use gradtx.solve with gradtx.project"),
        ("gradtx", "adamww", "did you mean 'adamw'"),
        ("gradtx", "gradient_accumulation", "did you mean 'accumulate'"),
        ("gradtx", "freeze_layers", "did you mean 'freeze'"),
        ("gradtx", "ExponentialMovingAverage", "did you mean 'ema_params'"),
        ("gradtx", "SWA", "did you mean 'swa_params'"),
        ("gradtx", "xyzzy", "module 'gradtx' has no attribute 'xyzzy'$"),
        ("gradtx.optimizers", "adamw", "use gradtx.adamw"),
        ("gradtx.contrib", "adamw", "use gradtx.adamw"),
        ("gradtx.engine", "adamww", "did you mean 'adamw'"),
        ("gradtx.schedules", "cosine_decay", "did you mean 'cosine_decay_schedule'"),
    ],
)
def test_what_is_said_of_what_is_not_there(module, name, message):
    with pytest.raises(AttributeError, match=message):
        getattr(importlib.import_module(module), name)


def test_names_and_modules_are_had_and_no_module_that_python_runs():
    _, get, _ = lazy("gradtx")
    assert get("adam") is gradtx.optimizers.adam.adam
    assert get("eager") is sys.modules["gradtx.core.eager"]
    with pytest.raises(AttributeError, match="no attribute '__main__'$"):
        get("__main__")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_warning_names_the_line_that_called_gradtx(count):
    """Through as many functions of gradtx's."""
    ours = {"__name__": "gradtx.made_up", "namespace": namespace}
    exec("def one(rest):\n  rest[0](rest[1:]) if rest else namespace.warn('here')", ours)
    with pytest.warns(UserWarning, match="here") as caught:
        ours["one"]([ours["one"]] * (count - 1))
    assert caught[0].filename == __file__


@pytest.mark.slow
def test_a_star_import_and_a_module_left_out():
    program = (
        "from gradtx.contrib import *\nfrom gradtx import *\n"
        "assert muon and adam and losses\n"
        "import gradtx\n"
        "assert gradtx.optimizers.adam.adam is gradtx.adam\n"
        "assert not isinstance(gradtx.adam, type(gradtx))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_masked_node_is_none():
    tree = {"a": gradtx.MaskedNode(), "b": 1.0}
    assert tree["a"] is None
    assert [isinstance(x, gradtx.MaskedNode) for x in (None, 1.0, ())] == [True, False, False]
    state = gradtx.masked(gradtx.trace(0.9), {"a": False, "b": True}).init({"a": 1.0, "b": 2.0})
    kept = jax.tree.map(
        lambda x: x if isinstance(x, gradtx.MaskedNode) else x + 1,
        state.inner_state.trace,
        is_leaf=lambda x: isinstance(x, gradtx.MaskedNode),
    )
    assert kept["a"] is None
    assert float(kept["b"]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["safe_norm", "safe_root_mean_squares"])
def test_the_gradient_of_a_safe_norm(name):
    ours, theirs = getattr(gradtx, name), getattr(optax, name)
    for x in (np.zeros(3), np.array([3.0, 4.0, 0.0]), np.full(3, 1e-3)):
        for least in (0.0, 0.1):
            got, want = (
                jax.jit(jax.value_and_grad(f))(jnp.asarray(x, jnp.float32), least)
                for f in (ours, theirs)
            )
            np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
            np.testing.assert_allclose(got[1], want[1], rtol=1e-6)
            assert np.isfinite(got[1]).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "keywords",
    [{"axis": 1}, {"axis": (0, 1), "ord": "nuc"}, {"ord": 1, "axis": 0, "keepdims": True}, {}],
)
def test_safe_norm_along_axes(keywords):
    x = np.array([[1.0, -2.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    got, want = (np.asarray(lib.safe_norm(x, 0.5, **keywords)) for lib in (gradtx, optax))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.slow
def test_safe_increment_stays_at_the_end():
    for dtype in (jnp.int8, jnp.uint8, jnp.int32, jnp.uint32, jnp.float32, jnp.bfloat16):
        last = (jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo)(dtype).max
        for count in (jnp.asarray(3, dtype), jnp.asarray(last, dtype)):
            got, want = (lib.safe_int32_increment(count) for lib in (gradtx, optax))
            assert (got.dtype, got) == (want.dtype, want)
    with pytest.raises(ValueError, match="must be a number"):
        gradtx.safe_increment(True)


@pytest.mark.slow
def test_power_iteration_finds_the_largest_eigenvalue():
    a = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    a = a @ a.T
    values, vectors = np.linalg.eigh(a.astype(np.float64))
    value, vector = jax.jit(gradtx.power_iteration)(a)
    np.testing.assert_allclose(value, values[-1], rtol=1e-5)
    np.testing.assert_allclose(abs(vector @ vectors[:, -1]), 1.0, rtol=1e-4)
    value, vector = gradtx.power_iteration(
        lambda v: {"x": -3.0 * v["x"]}, v0={"x": jnp.array([1.0, 2.0])}
    )
    np.testing.assert_allclose(value, -3.0, rtol=1e-6)
    assert float(gradtx.power_iteration(jnp.zeros((2, 2)))[0]) == 0.0
    with pytest.raises(ValueError, match="give v0"):
        gradtx.power_iteration(lambda v: v)


def test_older_names_of_tree_functions():
    tree = {"a": jnp.array([3.0, -4.0])}
    utils = gradtx.tree_utils
    assert float(utils.tree_l2_norm(tree)) == 5.0
    assert float(utils.tree_l2_norm(tree, squared=True)) == 25.0
    assert float(utils.tree_l1_norm(tree)) == 7.0
    assert float(utils.tree_linf_norm(tree)) == 4.0
    assert utils.tree_scalar_mul(2.0, tree)["a"].tolist() == [6.0, -8.0]
    assert utils.tree_add_scalar_mul(tree, 2.0, tree)["a"].tolist() == [9.0, -12.0]


def test_types_are_annotations_as_in_optax():
    def init(params: gradtx.Params) -> gradtx.OptState:
        return gradtx.init_empty_state(params)

    made: gradtx.TransformInitFn = init
    assert made({}) == gradtx.EmptyState() == gradtx.ClipState() == gradtx.ScaleState()
    assert gradtx.MultiTransformState is gradtx.PartitionState
    assert inspect.isclass(gradtx.InjectHyperparamsState)


def test_a_wrapped_schedule_is_stateful():
    schedule = gradtx.WrappedSchedule(lambda count: 0.1 * count)
    assert isinstance(schedule, gradtx.StatefulSchedule)
    assert isinstance(schedule, optax.schedules.StatefulSchedule)
    tx = gradtx.inject_hyperparams(gradtx.sgd)(schedule)
    state = tx.init(1.0)
    for _ in range(3):
        _, state = tx.update(jnp.float32(1.0), state)
    np.testing.assert_allclose(state.hyperparams["learning_rate"], 0.2, rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda i, x: gradtx.unitwise_norm(x, i),
        lambda i, x: gradtx.safe_norm(x, 0.0, axis=i),
        lambda i, x: gradtx.losses.softmax_cross_entropy(x, x, axis=i),
        lambda i, x: gradtx.projections.projection_simplex(x, axis=i),
        lambda i, x: gradtx.microbatch(jnp.dot, i, 1, "sum", in_axes=i)(jnp.float32(2.0), x),
        lambda i, x: gradtx.sparse.value_and_grad(lambda y, x: jnp.sum(x**2), i)(0.0, x)[1],
    ],
    ids=["unitwise_norm", "safe_norm", "loss", "projection", "microbatch", "value_and_grad"],
)
def test_an_axis_or_a_position_may_be_an_integer_of_numpy(function):
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(function(np.int64(1), x), function(1, x))
