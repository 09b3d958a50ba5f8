"""Eight virtual CPU devices for every test, set before JAX starts."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
# On a busy machine the threads of eight devices meet late: by default XLA gives up after 40 s.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_force_host_platform_device_count=8"
    + " --xla_cpu_collective_call_warn_stuck_timeout_seconds=600"
    + " --xla_cpu_collective_call_terminate_timeout_seconds=600"
)

import hypothesis

# Deterministic, and without a time limit: the first example of a test compiles.
hypothesis.settings.register_profile("gradtx", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.load_profile("gradtx")
