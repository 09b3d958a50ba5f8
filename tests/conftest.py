"""Eight virtual CPU devices and one folder of programs for every test, set before JAX starts."""

import atexit
import gc
import itertools
import os
import shutil
import tempfile
from collections import defaultdict

import hypothesis
import jaxlib
import pytest

flags = [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
# XLA aborts at a flag that it does not know.
version = jaxlib.version.__version_info__
known = (0, 8) <= version < (0, 13)
if known:
    # XLA gives up on a virtual device that has waited 40 s for a core, and ends the process.
    flags += ["--xla_cpu_collective_call_terminate_timeout_seconds=1200"]
# Tests compile thousands of small programs and run each a few times: the older code generator
# without optimization takes half the time. With GRADTX_CODEGEN=default it is the one that users
# have, as in one step of .ci/run.
if known and os.environ.get("GRADTX_CODEGEN") != "default":
    flags += ["--xla_cpu_parallel_codegen_split_count=1", "--xla_backend_optimization_level=0"]
    if version < (0, 11):
        flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join(flags)
os.environ["JAX_PLATFORMS"] = "cpu"

# What one worker has compiled the others read; .ci/run names a folder for all of its commands.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled = tempfile.mkdtemp(prefix="gradtx-tests-")
    atexit.register(shutil.rmtree, compiled, ignore_errors=True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Deterministic, and without a time limit: the first example of a test compiles.
hypothesis.settings.register_profile("gradtx", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.load_profile("gradtx")


def pytest_addoption(parser):
    parser.addoption(
        "--slow",
        choices=("all", "changed", "turn"),
        default="all",
        help="which slow tests, with `-m ''`: see tests/selection.py",
    )
    parser.addoption(
        "--slowest", type=int, default=0, help="so many tests that took longest, all cases together"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Of a file of tests its tests: the examples that are run are in docstrings of gradtx."""
    return [each for each in (yield) if type(each) is pytest.Module]


# Examples of docstrings, which cannot have a mark, that take a third of a second.
LONG_EXAMPLES = {
    *("Draws", "Encoded", "Implicit", "Rows", "catch_up", "cosine_similarity", "ctc_loss"),
    *("dion", "evolution_strategies", "exact_rows", "forward_gradients", "guard", "guard_report"),
    *("in_storage_of", "kron", "lbfgs", "multiclass_sparsemax_loss", "muon", "ntxent", "of_norm"),
    *("per_example_global_norm_clip", "per_example_layer_norm_clip", "plot_runs"),
    *("poly_loss_cross_entropy", "projection_birkhoff", "projection_box_section"),
    *("projection_simplex", "projection_transport", "root_plus", "rounded_to", "safe_norm"),
    *("sigmoid_focal_loss", "soap", "softmax_cross_entropy"),
    *("softmax_cross_entropy_with_integer_labels", "sweep", "zoom_linesearch"),
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks what `quick` leaves out as slow, before pytest deselects that."""
    cases = defaultdict(list)
    for item in items:
        if hasattr(item, "dtest") and item.name.rpartition(".")[2] in LONG_EXAMPLES:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for found in cases.values():
        (count,) = found[0].get_closest_marker("quick").args
        chosen = {i * len(found) // count for i in range(count)}
        for i, item in enumerate(found):
            if i not in chosen:
                item.add_marker(pytest.mark.slow)
    from tests.selection import FIXED, left_out, names_of_sweeps, since_last_passed

    # Of a sweep over the catalogue a newcomer's suite has those that cover the others.
    quick = [item for item in items if not item.get_closest_marker("slow")]
    for item, name in names_of_sweeps(quick).items():
        if name not in FIXED:
            item.add_marker(pytest.mark.slow)
    if config.getoption("slow") != "all":
        out = left_out(items, since_last_passed(config.getoption("slow") == "changed"))
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Quick tests of a file run in one process, for they share what is compiled, unless they have a
    group of their own; and xdist, which after each test counts what is left of every group, has few
    of them. Slow ones take too long for that: one process would wait for the other's last file."""
    if config.getoption("dist") != "loadgroup" or config.option.markexpr != "not slow":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Scheduling(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            group = super()._split_scope(nodeid)
            return group if group != nodeid else nodeid.partition("::")[0]

    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter, config):
    """The tests that took longest, in seconds of all their cases."""
    count = config.getoption("slowest")
    if not count:
        return
    seconds, cases = defaultdict(float), defaultdict(int)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                test = report.nodeid.partition("[")[0]
                seconds[test] += report.duration
                cases[test] += report.when == "call"
    terminalreporter.section(f"the {count} slowest of {len(seconds)} tests")
    for test in sorted(seconds, key=seconds.get)[: -count - 1 : -1]:
        terminalreporter.line(f"{seconds[test]:7.1f} s {cases[test]:5} cases  {test}")
    terminalreporter.line(f"{sum(seconds.values()):7.1f} s in all")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is collected and imported stays: the garbage collector need not look at it meanwhile."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Nor after it: what is there now stays to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


finished = itertools.count(1)


def pytest_runtest_teardown():
    """JAX 0.10 remembers no program at all once 8,192 jitted functions are alive in a process."""
    if next(finished) % 1000 == 0:
        import jax

        jax.clear_caches()


@pytest.fixture
def host_memory():
    """Skips where compiled programs know only one memory."""
    import jax

    space = jax.memory.Space.Host
    moved = jax.jit(lambda x: jax.device_put(x, space))(jax.numpy.ones(8))
    if moved.sharding.memory_kind != "pinned_host":
        pytest.skip("this jaxlib compiles for a CPU as if it had no memory of the host's")


@pytest.fixture
def host_memory_of_offload(request, name):
    """Skips there the entry `offload` of the catalogue, of a test with a case for each `name`."""
    if name == "offload":
        request.getfixturevalue("host_memory")
