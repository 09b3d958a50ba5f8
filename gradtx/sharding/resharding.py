"""A transformation on a mesh: gradients come to where it works on them, updates go back."""

import contextlib
import functools
from collections.abc import Iterable
from typing import Any, Protocol

import jax

from gradtx.composition.apply import take_step
from gradtx.composition.around import InnerStep, around
from gradtx.composition.views import SameGradients
from gradtx.core.pair import GradientTransformation
from gradtx.leaves.paths import is_leaf, path_string, with_paths
from gradtx.leaves.rows import is_rows
from gradtx.leaves.shardings import explicit_axes, known_shardings
from gradtx.types import Params, PyTree, State, Updates


class Shardings(Protocol):
    """The result of :func:`state_sharding`: the shardings of parameters, gradients and state."""

    @property
    def params(self) -> PyTree: ...
    @property
    def reductions(self) -> tuple[PyTree, ...]: ...
    @property
    def state(self) -> PyTree: ...
    def init(self, tx: GradientTransformation, params: Params) -> State: ...
    def placed(self, tx: GradientTransformation) -> GradientTransformation: ...


def resharded(
    tx: GradientTransformation, reductions: tuple[PyTree, ...], balance: bool
) -> GradientTransformation:
    """A transformation that reshards gradients for the slots of `tx`, and its updates back.

    Resharding goes in stages, so that each reduction or gather is along one axis of the mesh.
    Matrices whose slots are divided are transformed whole, each by the device that has its slots.

    Args:
        tx: the transformation.
        reductions: trees of shardings like the gradients, which get them one after another; None
            for a leaf that is not resharded.
        balance: whether stacks of matrices that do not divide begin at different devices.
    """
    shardings = {path_string(path): sharding for path, sharding in with_paths(reductions[-1])[0]}

    def through(tree: PyTree, shardings: Iterable[PyTree]) -> PyTree:
        for sharding in shardings:
            tree = put(tree, sharding)
        return tree

    def owned() -> contextlib.AbstractContextManager[None]:
        return known_shardings(shardings, balance=balance)

    def init(params: Params) -> State:
        with owned():
            return tx.init(params)

    def run(
        inner_step: InnerStep, updates: Updates, state: State, params: Params | None
    ) -> tuple[Any, State]:
        updates = through(updates, reductions)
        with owned():
            result, state = inner_step(updates, state, params)
        return through(result, reversed(reductions)), state

    step = functools.partial(take_step, tx)
    return around(tx, init, run, step=step, same_steps=True, facets=(SameGradients(),))


def put(tree: PyTree, shardings: PyTree) -> PyTree:
    """A tree with its arrays constrained to a tree of shardings, in a compiled program."""

    def on_leaf(x: Any, where: Any) -> Any:
        if x is None or where is None or is_rows(x):
            return x
        # On explicit axes this runs under `automatic`, which has set the mesh.
        target = where.spec if explicit_axes(where.mesh) else where
        return jax.lax.with_sharding_constraint(x, target)

    return jax.tree.map(on_leaf, tree, shardings, is_leaf=is_leaf)
