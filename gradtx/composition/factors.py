"""The two factors of LoRA: which leaves are `A` and `B` of one product, and their rank."""

import math
from typing import Any

import jax.numpy as jnp

from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.composition.roles import ByRole, Role, RoleKind, RolesOfLeaves, lora_kind, lora_partner
from gradtx.core.pair import GradientTransformation
from gradtx.engine.lift import RuleFn
from gradtx.engine.matrices import MatrixDimensions
from gradtx.engine.tuples import Related, check_related, tuples_of, tuplewise
from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.types import EmptyState, PyTree


class Factors:
    """The leaves of a tree that are factors of LoRA, and the pairs that they form.

    Args:
        where: the transformation, for errors.
        pairs: the paths of `A` and `B`, as for :func:`tuplewise`; None to go by their roles.
        roles: says which axis is the rank; None for ``ByRole()``.

    Raises:
        TypeError: `pairs` is neither patterns nor a function, or `roles` is no `ByRole`.
        ValueError: the patterns are not pairs.
    """

    def __init__(self, where: str, pairs: Related | None, roles: ByRole | None) -> None:
        roles = ByRole() if roles is None else roles
        if not isinstance(roles, ByRole):
            raise TypeError(f"{where}: roles must be a ByRole, not {roles!r:.80}")
        if pairs is not None:
            check_related(f"{where}: pairs", pairs)
        self.where, self.given, self.roles = where, pairs, roles

    def tuplewise(self, rule: RuleFn, **others: Any) -> GradientTransformation:
        """Lift a rule of pairs without state, as :func:`gradtx.tuplewise` does."""
        tx = tuplewise(EmptyState, None, rule, self.pairs, **others)
        return tx.with_facets(RolesOfLeaves(self.found))

    @property
    def dimensions(self) -> MatrixDimensions:
        """The rows and columns of each factor: `A` is (inputs, rank), `B` is (rank, outputs)."""
        return MatrixDimensions(self.numbers, MuonDimensionNumbers)

    def pairs(self, tree: PyTree) -> list[tuple[str, str]]:
        """The paths of `A` and `B` of each product.

        Raises:
            ValueError: there is none, a factor has no partner, or their ranks differ.
        """
        leaves = _leaves(tree)
        paths = list(leaves)
        if all(leaf is None for leaf in leaves.values()):
            return []
        related = self._by_role if self.given is None else self.given
        index_tuples = tuples_of(f"{self.where}: pairs", tree, related)
        if any(len(one) != 2 for one in index_tuples):
            raise ValueError(f"{self.where}: pairs must be of two leaves, A and B")
        named = [(paths[a], paths[b]) for a, b in index_tuples]
        for pair in named:
            self._check(pair, leaves)
        return named

    def found(self, tree: PyTree) -> dict[str, Role]:
        """The role of each factor that is there, by its path."""
        leaves = _leaves(tree)
        return {
            path: role
            for pair in self.pairs(tree)
            for path, role in zip(pair, self._roles(pair, leaves), strict=True)
            if role is not None
        }

    def numbers(self, tree: PyTree) -> PyTree:
        """The dimension numbers of each factor, None for other leaves."""
        roles = self.found(tree)
        numbers = [
            MuonDimensionNumbers(roles[path].rows, roles[path].columns) if path in roles else None
            for path in _leaves(tree)
        ]
        return leaves_with_path(tree)[1].unflatten(numbers)

    def mask(self, tree: PyTree, factor: int) -> PyTree:
        """A tree of booleans: whether a leaf is a factor `A` (0), or a factor `B` (1)."""
        chosen = {pair[factor] for pair in self.pairs(tree)}
        return leaves_with_path(tree)[1].unflatten([path in chosen for path in _leaves(tree)])

    def _by_role(self, tree: PyTree) -> list[tuple[str, str]]:
        leaves, kinds = _leaves(tree), self.roles.factors(tree)
        if not kinds:
            raise ValueError(
                f"{self.where}: no leaf is a factor of LoRA by its name: give the patterns of "
                "their paths by pairs, such as ('*/down', '*/up'); the leaves are "
                f"{', '.join(leaves)}"
            )
        pairs = []
        for path, kind in kinds.items():
            partner = lora_partner(path) if lora_kind(path) else None
            other = "lora_b" if kind == "lora_a" else "lora_a"
            if leaves[path] is None and partner not in kinds:
                continue  # perhaps a scale beside the factors, whose shape is not known
            if partner is None or kinds.get(partner) != other:
                expected = "give their patterns by pairs" if partner is None else repr(partner)
                raise ValueError(
                    f"{self.where}: {path!r} is a factor of LoRA, and there is no other that it is "
                    f"multiplied by: {expected}"
                )
            if kind == "lora_a":
                pairs.append((path, partner))
        return pairs

    def _roles(self, pair: tuple[str, str], leaves: dict[str, Any]) -> list[Role | None]:
        kinds: tuple[RoleKind, RoleKind] = ("lora_a", "lora_b")
        return [
            None if leaves[path] is None else self.roles.as_kind(path, leaves[path], kind)
            for path, kind in zip(pair, kinds, strict=True)
        ]

    def _check(self, pair: tuple[str, str], leaves: dict[str, Any]) -> None:
        """Raise ValueError unless the factors `A` and `B` can be multiplied, in one way only."""
        a, b = self._roles(pair, leaves)
        if a is None or b is None:
            return
        shapes = [tuple(jnp.shape(leaves[path])) for path in pair]
        layers = [
            math.prod(s[i] for i in role.batch) for s, role in zip(shapes, (a, b), strict=True)
        ]
        ranks = [
            math.prod(s[i] for i in axes)
            for s, axes in zip(shapes, (a.columns, b.rows), strict=True)
        ]
        problem = None
        if layers[0] != layers[1] or ranks[0] != ranks[1]:
            problem = (
                f"have the ranks {ranks[0]} and {ranks[1]} in {layers[0]} and {layers[1]} layers"
            )
        elif not a.batch and min(map(len, shapes)) > 2 and shapes[0][0] == shapes[1][0]:
            problem = "may be those of stacked layers, or of one with several axes"
        if problem is not None:
            raise ValueError(
                f"{self.where}: {pair[0]!r} and {pair[1]!r}, of the shapes {shapes[0]} and "
                f"{shapes[1]}, {problem}: say by roles=ByRole(stacked=..., convention=..., "
                "rules=...) which axes are those of layers, and which is the rank"
            )


def _leaves(tree: PyTree) -> dict[str, Any]:
    return {path_string(path): leaf for path, leaf in leaves_with_path(tree)[0]}
