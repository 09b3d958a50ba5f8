"""The names of Optax's private module `base`."""

from gradtx._src import public

__getattr__ = public(__name__)
