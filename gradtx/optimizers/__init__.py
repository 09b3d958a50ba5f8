"""Optimizers, a family a file: the builder beside the ``scale_by_*`` that it uses."""
