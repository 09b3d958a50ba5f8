"""The contexts of JAX's that gradtx defines, all of them made at once.

Each is part of the keys of JAX's caches from then on: one that was made while a step is traced
would have the step traced and compiled again at its second call.
"""

import jax

check_indices = jax.make_user_context(False)
"""A context manager, ``with check_indices(True):``, in which an index outside its table is an
error. It is for debugging: programs compiled in it look at every index, and report to the
host. Outside it such an index names no row."""

for_comparison = jax.make_user_context(False)
"""Whether a program is not run but compared with that for other shapes, on which it must not
depend: leaves of one shape are not computed together, and a single entry is not special."""

differentiating = jax.make_user_context(False)
"""Whether a loss is traced for its derivative: no function that looks up is cached under it."""
