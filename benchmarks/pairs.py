"""The optimizers that both libraries have. To benchmark another, add a line to `PAIRS`."""

from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple


class Pair(NamedTuple):
    """One optimizer, as the expression that builds it in each library's namespace."""

    label: str
    gradtx: str
    optax: str


def same(label: str, expression: str) -> Pair:
    return Pair(label, expression, expression)


PAIRS = [
    same("sgd", "sgd(1e-3)"),
    same("sgd, momentum", "sgd(1e-3, momentum=0.9)"),
    same("adam", "adam(1e-3)"),
    same("adamw", "adamw(1e-3)"),
    same("adagrad", "adagrad(1e-3)"),
    same("rmsprop", "rmsprop(1e-3)"),
    same("lion", "lion(1e-3)"),
    same("clip + adamw", "chain(clip_by_global_norm(1.0), adamw(1e-3))"),
]


class Library(NamedTuple):
    """A library, and the transformation that an expression builds in it."""

    name: str
    tx: Any
    apply_updates: Callable[[Any, Any], Any]

    def step(self, params: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        # Some optimizers need the loss; those that do not ignore it.
        updates, state = self.tx.update(gradients, state, params, value=1.0)
        return self.apply_updates(params, updates), state


class Names(dict[str, Any]):
    """A library's public names, looked up when asked for: gradtx loads them one by one.

    Optax has some of them in its `contrib`.
    """

    def __init__(self, library: ModuleType) -> None:
        super().__init__()
        self.library = library

    def __missing__(self, name: str) -> Any:
        for place in (self.library, getattr(self.library, "contrib", None)):
            if hasattr(place, name):
                return getattr(place, name)
        raise KeyError(name)


def build(module: str, expression: str) -> Library:
    library: ModuleType = import_module(module)
    # The expressions are those above or the user's own command line: nothing foreign is evaluated.
    tx = eval(expression, {}, Names(library))
    return Library(module, library.with_extra_args_support(tx), library.apply_updates)


def libraries(pair: Pair) -> tuple[Library, Library]:
    return build("gradtx", pair.gradtx), build("optax", pair.optax)


def chosen(words: Iterable[str]) -> list[Pair]:
    """The pairs that are named, all if none is; a word that is no label is an expression."""
    known = {pair.label: pair for pair in PAIRS}
    return [known.get(word) or same(word, word) for word in words] or PAIRS
