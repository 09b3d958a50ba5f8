"""Training: taking gradients, applying updates, compiling steps."""

from gradtx.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
