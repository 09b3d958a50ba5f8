"""The commands of ``python -m gradtx``: each takes parsed arguments and gives an exit code."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
