"""Transforms that any chain may hold, a family a file."""
