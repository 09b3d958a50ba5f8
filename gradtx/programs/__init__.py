"""Programs as JAX traces them: how they are run, read and kept from being traced twice."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
