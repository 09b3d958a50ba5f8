"""The backward pass: gradients of rows that are looked up, and steps inside it, layer by layer."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
