"""What gradtx costs beside Optax, as ratios taken in one run: ``python -m benchmarks``."""
