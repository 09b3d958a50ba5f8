"""The names of Optax's private module `linear_algebra`."""

from gradtx._src import public

__getattr__ = public(__name__)
