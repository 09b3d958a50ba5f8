"""Composition: transformations one after the other, on some of the leaves, in groups."""
