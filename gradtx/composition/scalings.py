"""Which parts of a transformation do more than multiply all updates by one number."""

from collections.abc import Iterator

from gradtx.core.pair import GradientTransformation

# The number may depend on the step and on the norm of all gradients.
_SCALINGS = (
    *("identity", "scale", "scale_by_learning_rate", "scale_by_schedule"),
    *("clip_by_global_norm", "normalize_by_global_norm"),
)


def name_of(tx: GradientTransformation) -> str:
    """The name of a transformation's builder, or of its class."""
    return tx.declaration.name if tx.declaration else type(tx).__name__


def beyond_scalings(tx: GradientTransformation) -> Iterator[GradientTransformation]:
    """The parts of `tx` that do more than multiply all updates by one number.

    >>> import gradtx
    >>> list(beyond_scalings(gradtx.sgd(0.1))), len(list(beyond_scalings(gradtx.adam(0.1))))
    ([], 1)
    """
    if tx.parts is not None and tx.traits.on_part is None:
        for part in tx.parts:
            yield from beyond_scalings(part)
    elif name_of(tx) not in _SCALINGS:
        yield tx
