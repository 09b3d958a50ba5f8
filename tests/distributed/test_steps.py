"""Steps on eight devices of a CPU come to their end, however few cores it has."""

import subprocess
import sys

import pytest

from tests.catalogue import optimizers
from tests.processes import environment


def taken(axes, steps, names, patience):
    """The names of optimizers whose steps ended in so many seconds; see steps.py.

    Each has a limit there too, so that what waits is said.
    """
    env = environment()
    env["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
    command = [sys.executable, "-m", "tests.distributed.steps", axes, str(steps), *names]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=patience, check=False
    )
    assert done.returncode == 0, f"after {done.stdout.split()[-1:]}: {done.stderr[-3000:]}"
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "steps"), [("Auto", 3), ("Explicit", 1)])
def test_triangular_systems_are_solved_on_all_devices(axes, steps):
    """A batch of them waits in one of XLA's threads for the others, forever."""
    assert taken(axes, steps, ["kron"], 150) == ["kron"]


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "steps"), [("Auto", 3), ("Explicit", 1)])
@pytest.mark.parametrize("part", range(4))
def test_no_optimizer_waits_forever(part, axes, steps):
    names = optimizers()[part::4]
    assert taken(axes, steps, names, 600) == names
