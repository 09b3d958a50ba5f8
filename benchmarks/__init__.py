"""What gradtx costs against Optax, as ratios taken in one run: ``python -m benchmarks``."""
