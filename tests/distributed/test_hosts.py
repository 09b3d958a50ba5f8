"""Several processes over loopback: the numbers of one, prompt failure, and resuming elsewhere."""

import json
import re
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.processes import ROOT, environment

PROGRAM = [sys.executable, str(ROOT / "examples" / "distributed.py")]
TIMEOUT = 10
PATIENCE = 1200  # for a busy machine; the limits asserted for failures are much shorter
RTOL = 1e-5  # sums over devices are taken in another order

# In one process of the tests: they start up to four of their own.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hosts")]


def run(cwd, *arguments):
    done = subprocess.run(
        [*PROGRAM, *arguments, "--losses", "losses.json"],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return np.array(json.loads((cwd / "losses.json").read_text()))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Three epochs on one device, unbroken."""
    return run(tmp_path_factory.mktemp("alone"), "--epochs", "3")


def test_two_processes_and_then_four(alone, tmp_path):
    """The second epoch goes on from the checkpoint of the first: the losses of one process."""
    for epochs, processes in ((1, 2), (2, 4)):
        same = ("--processes", str(processes), "--timeout", "120")
        losses = run(tmp_path, *same, "--epochs", str(epochs), "--checkpoint", "run.npz")
    np.testing.assert_allclose(losses, alone[: len(losses)], rtol=RTOL)
    assert len(losses) == 2 * len(alone) // 3


def test_saved_on_eight_devices_restored_on_four_and_one(alone, tmp_path):
    """Another number of devices in every epoch: the losses of an unbroken run."""
    for epochs, devices in enumerate(("8", "4", "1"), start=1):
        losses = run(
            tmp_path, "--devices", devices, "--epochs", str(epochs), "--checkpoint", "run.npz"
        )
    np.testing.assert_allclose(losses, alone, rtol=RTOL)


def test_a_killed_process_ends_the_others_and_the_run_goes_on(alone, tmp_path):
    """An error within the engine's time-out, not a hang; then on, on another number of devices."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    options = ["--epochs", "1000", "--checkpoint", "run.npz", "--timeout", str(TIMEOUT)]
    workers = []
    for i in range(2):
        own = ["--processes", "2", "--process", str(i), "--coordinator", f"localhost:{port}"]
        with (tmp_path / f"{i}.log").open("w") as log:
            workers.append(
                subprocess.Popen(
                    [*PROGRAM, *options, *own],
                    cwd=tmp_path,
                    env=environment(),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        deadline = time.monotonic() + PATIENCE
        while "epoch 1:" not in (tmp_path / "0.log").read_text():
            assert time.monotonic() < deadline
            assert workers[0].poll() is None, (tmp_path / "0.log").read_text()
            time.sleep(0.1)
        workers[1].kill()
        killed = time.monotonic()
        code = workers[0].wait(PATIENCE)
        assert code != 0
        # The engine's time-out, and what a busy machine adds to it.
        assert time.monotonic() - killed < 6 * TIMEOUT
        log = (tmp_path / "0.log").read_text()
        assert re.search(r"Error|peer|unhealthy|terminat|Connection", log), log
    finally:
        for worker in workers:
            worker.kill()
    with np.load(tmp_path / "run.npz") as saved:
        done = 3 * len(saved["losses"]) // len(alone)
    more = ("--devices", "4", "--epochs", str(done + 1), "--checkpoint", "run.npz")
    losses = run(tmp_path, *more)
    assert len(losses) == (done + 1) * len(alone) // 3
    shared = min(len(losses), len(alone))
    np.testing.assert_allclose(losses[:shared], alone[:shared], rtol=RTOL)
