"""How large the updates of an optimizer are, as its builder says to :func:`transfer`."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

SizeRule: TypeAlias = Literal["adam", "sgd", "spectral"]
"""How the size of an update depends on the gradient: entries of one size whatever it is, in
proportion to it, or singular values of one size."""


class UpdateSize(NamedTuple):
    """How the size of an optimizer's updates depends on the gradient and on a matrix's shape.

    The argument `update_size` of :func:`transformation` and :func:`optimizer`, which
    :func:`transfer` reads. `arguments` are those that the builder was called with, by name.

    rule: ``"adam"`` where entries have one size whatever the gradient's is, ``"sgd"`` where updates
    are in proportion to it, ``"spectral"`` where the singular values of matrices have one size.
    numbers: the argument that says which leaves are matrices; the rule is theirs, and the other
    leaves follow ``"adam"``.
    factor: ``(arguments, rows, columns) -> number``, the optimizer's own factor of the shape.
    power: ``arguments -> number``, of outputs by inputs, for the spectral rule.
    eps_power: the power of the gradient that `eps` is added to.
    of_entries: whether `eps` is added entry by entry, as in Adam.
    grafting: the argument that may name another rule, which sets the length of updates.

    >>> import gradtx
    >>> @gradtx.optimizer(update_size=UpdateSize("spectral", "numbers"))
    ... def plain_muon(learning_rate: gradtx.checks.LearningRate, numbers=None):
    ...     return gradtx.muon(learning_rate, muon_weight_dimension_numbers=numbers, scale="none")
    >>> tx = gradtx.transfer(plain_muon(0.1), {"kernel": (8, 16)}, {"kernel": (32, 16)})
    >>> gradtx.transfer_multipliers(tx)["kernel"].rate
    0.5
    """

    rule: SizeRule
    numbers: str | None = None
    factor: Callable[[Mapping[str, Any], int, int], float] = lambda arguments, rows, columns: 1.0
    power: Callable[[Mapping[str, Any]], float] = lambda arguments: 0.5
    eps_power: int = 1
    of_entries: bool = False
    grafting: str | None = None


DeclaredSize: TypeAlias = Literal["adam", "proportional"] | UpdateSize
"""What a builder says: ``"adam"`` for ``UpdateSize("adam")``, or ``"proportional"`` where updates
are in proportion to those taken, as with :func:`sgd` and with wrappers that change no sizes."""
