"""Training: taking gradients, applying updates, compiling steps."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
