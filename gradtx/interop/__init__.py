"""Ways over from other libraries: Keras, PyTorch, Optax.

None of them is imported here: optimizers are read by their attributes, configurations as data.
"""

from gradtx.interop.keras import from_keras as from_keras
from gradtx.interop.torch import from_torch as from_torch
