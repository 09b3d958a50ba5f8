"""Linear algebra: products, norms, roots and eigenvectors of matrices."""

from gradtx.names.namespace import lazy

__all__, __getattr__, __dir__ = lazy(__name__)
