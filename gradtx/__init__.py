"""gradtx: gradient transformations on JAX, written once and run everywhere."""

from gradtx.namespace import lazy

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy(__name__)
