"""Optax's module for linear assignment, passed on to code that imports it if Optax is installed."""

from gradtx.names.absences import passed_on

__path__: list[str] = []  # it has private modules: see gradtx._src
__getattr__ = passed_on(__name__)
