"""What is rare or new, under a weaker promise, and the names that Optax keeps in `optax.contrib`.

A name of this module that is neither in ``gradtx.__all__`` nor Optax's may change, or go, between
two minor versions; CHANGELOG then says what to do. All can be had as ``gradtx.NAME`` too.
"""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
