"""The names of Optax's private module `contrib._muon`, for code that imports them from there."""

from gradtx._src import public

__getattr__ = public(__name__)
