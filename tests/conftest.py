"""Eight virtual CPU devices for every test, set before JAX starts."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import hypothesis

# Deterministic, and without a time limit: the first example of a test compiles.
hypothesis.settings.register_profile("gradtx", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.load_profile("gradtx")
