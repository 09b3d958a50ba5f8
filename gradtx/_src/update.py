"""The names of Optax's private module `update`."""

from gradtx._src import public

__getattr__ = public(__name__)
