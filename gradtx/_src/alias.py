"""The names of Optax's private module `alias`."""

from gradtx._src import public

__getattr__ = public(__name__)
