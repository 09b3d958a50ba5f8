"""Conversion to and from other libraries: Keras, PyTorch, Optax.

None of them is imported here: objects are read through their attributes, configurations as data.
Only :func:`keras_optimizer`, which makes an object of Keras, imports it when it is called. Its
class is registered with Keras as soon as both are imported, and ``keras.models.load_model`` finds
it.
"""

from gradtx.interop.hosts import with_extra_args as with_extra_args
from gradtx.interop.keras import from_keras as from_keras
from gradtx.interop.keras_optimizer import (
    keras_objects as keras_objects,
    keras_optimizer as keras_optimizer,
)
from gradtx.interop.keras_registration import register_with_keras
from gradtx.interop.optax import (
    from_optax_state as from_optax_state,
    to_optax as to_optax,
    to_optax_state as to_optax_state,
)
from gradtx.interop.torch import from_torch as from_torch
from gradtx.interop.weights import get_weights as get_weights, set_weights as set_weights

__all__ = [
    "from_keras",
    "from_optax_state",
    "from_torch",
    "get_weights",
    "keras_objects",
    "keras_optimizer",
    "set_weights",
    "to_optax",
    "to_optax_state",
    "with_extra_args",
]

register_with_keras()
