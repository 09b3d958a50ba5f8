"""Which optimizers may run on one layer at a time, as far as their transformations say it."""

from gradtx.composition.views import LeafByLeaf, OtherLeaves, SameGradients, TakesNorm
from gradtx.core.communication import Communication
from gradtx.core.explanations import public_name
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Links, Scope

_BY_THE_LOSS = (
    " (conditionally_mask skips a step by the value of the loss: conditionally_mask(tx, lambda "
    "step, *, value, **_: jnp.isfinite(value), forward_extra_args=True))"
)

_IN_ITS_PLACE = {
    "clip_by_global_norm": " (clip_by_last_norm does), give it two_pass=True as the first link",
    "guard": _BY_THE_LOSS,
    "apply_if_finite": _BY_THE_LOSS,
    "cautious": " (cautious(..., rescale=False) does)",
}
"""What to use in place of a transformation that needs all layers."""


def refuse_by_kind(tx: GradientTransformation) -> None:
    """Raise ValueError if something in `tx` is of a kind that needs more than one layer."""
    for part in (tx, *tx.within):
        by_hand = " made by hand" if part.declaration is None else ""
        name = public_name(part) or f"a transformation{by_hand}"
        if part.rule is not None and part.rule.scope is Scope.TUPLE:
            raise ValueError(
                f"inside: {name} cannot run on one layer at a time: it looks at several leaves "
                "together, and a layer may come without some of them; make the step without inside"
            )
        inside = part.parts if part.declaration is None else part.inside
        if not inside and not _is_known(part):
            raise ValueError(
                f"inside: {name} sees all leaves, and a layer comes without the others: write "
                "the rule by gradtx.elementwise, rowwise or matrixwise, or make the step without "
                "inside"
            )
        if part.before_gradients is not None:
            raise ValueError(
                f"inside: {name} changes parameters before their gradients are taken; make the "
                "step without inside"
            )
        if part.facet(Communication) is not None:
            raise ValueError(
                f"inside: {name} sends gradients between devices by itself; make the step without "
                "inside, or shard the batch and leave the sum to JAX"
            )


def norm_for(tx: GradientTransformation) -> set[str]:
    """The uses of the norm of all gradients: ``"update"``, ``"state"``, both or none.

    Raises:
        ValueError: a transformation that uses the norm does not see the gradients of all leaves.
    """
    first = tx
    while (taken := first.facet(TakesNorm)) is None and _hands_gradients_on(first):
        first = first.inside[0]
    for i, part in enumerate(tx.saying(TakesNorm)):
        if i or part.facet(TakesNorm) is not taken:
            raise ValueError(
                f"inside: {public_name(part)} clips by the norm of the gradients of all leaves, as "
                "the first link of a chain: put it first, for all leaves, or make the step without "
                "inside"
            )
    return set() if taken is None else {taken.use}


def _hands_gradients_on(tx: GradientTransformation) -> bool:
    """Whether the first transformation inside of `tx` sees the gradients that `tx` sees."""
    hands_on = tx.facet(Links) is not None or tx.facet(SameGradients) is not None
    return hands_on and bool(tx.inside)


def _is_known(tx: GradientTransformation) -> bool:
    """Whether it is known that the update of a leaf by `tx` depends on no other leaf.

    Tests show it for gradtx's own builders, except where a function is a user's.
    """
    if tx.facet(LeafByLeaf) is not None:
        return True
    if tx.rule is not None and tx.rule.scope is not Scope.TREE:
        return True
    builder = None if tx.declaration is None else tx.declaration.builder
    from_gradtx = builder is not None and builder.function.__module__.startswith("gradtx.")
    return from_gradtx and tx.facet(OtherLeaves) is None


def in_its_place(name: str) -> str:
    """What to use in place of the transformation of this name; empty if nothing is known."""
    of_norms = " (clip_by_norm(..., stacked=True) does, of the norm of each layer)"
    return _IN_ITS_PLACE.get(name, of_norms if name.startswith("clip_by_") else "")
