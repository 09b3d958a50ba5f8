"""Classes of containers that libraries which write states have to be told of, one by one."""

from typing import Any, TypeVar

_D = TypeVar("_D", bound=dict[str, Any])
_T = TypeVar("_T")

dicts: list[type[dict[str, Any]]] = []
"""Classes of dicts, which are written as dicts."""

nodes: list[type[Any]] = []
"""Classes of nodes of trees, which are written as dicts of their parts."""


def written_as_dict(cls: type[_D]) -> type[_D]:
    """Let libraries write instances of this class of dicts as dicts: a class decorator."""
    dicts.append(cls)
    return cls


def written_by_names(cls: type[_T]) -> type[_T]:
    """Let libraries write instances of this class of nodes as dicts of parts: a class decorator.

    It goes above the one that registers the class with JAX, which says the names.
    """
    nodes.append(cls)
    return cls
