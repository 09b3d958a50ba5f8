"""A transformation as a static value."""

import jax

from gradtx.core.pair import GradientTransformation, transformation, with_extra_args_support
from gradtx.programs.tracing import is_tracer


@transformation(native_schedules=True, update_size="proportional")
def static(inner: GradientTransformation) -> GradientTransformation:
    """`inner` as a pytree without leaves: its array hyperparameters are constants.

    A transformation is data: its array hyperparameters are traced, swept and mapped over. A host
    that holds it as a static attribute, such as a static field of an Equinox module, warns of
    arrays there or refuses them. This hides them: it is hashed and compared by their values, so
    that equal ones compile once.

    Args:
        inner: the transformation, whose hyperparameters must not be traced.

    Returns:
        The transformation, with the same states.

    Raises:
        TypeError: a hyperparameter is traced.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = gradtx.sgd(jnp.float32(0.5))
    >>> len(jax.tree.leaves(tx)), len(jax.tree.leaves(static(tx)))
    (1, 0)
    >>> static(tx) == static(gradtx.sgd(jnp.float32(0.5)))
    True
    """
    if any(map(is_tracer, jax.tree.leaves(inner))):
        raise TypeError("static: a hyperparameter is traced, so its value is not known")
    return with_extra_args_support(inner)


static.builder.static = True  # type: ignore[attr-defined]
