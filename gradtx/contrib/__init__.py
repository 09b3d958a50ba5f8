"""The names that Optax keeps in `optax.contrib`; all are at the top level too."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
