"""Golden numbers: legacy TensorFlow optimizers, dense and sparse, on fixed gradients.

    python -m venv tf && tf/bin/pip install tensorflow-cpu tf-keras
    tf/bin/python tests/golden/make_tensorflow.py

writes tensorflow.npz beside this file: for each optimizer the table after each step. Rerun it only
to add an optimizer; tests/interop/test_tensorflow.py reads what it wrote.
"""

import os
import pathlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
import tf_keras

STEPS, SHAPE = 12, (5, 3)
V1 = tf.compat.v1.train
V2 = tf_keras.optimizers.legacy


def gradients():
    """Dense gradients, and for the sparse run the two rows that each step sees."""
    rng = np.random.default_rng(0)
    rows = np.stack([rng.choice(SHAPE[0] - 1, 2, replace=False) for _ in range(STEPS)])
    return rng.normal(size=(STEPS, *SHAPE)).astype(np.float32), rows


OPTIMIZERS = {
    "v2 sgd": lambda: V2.SGD(0.1),
    "v2 momentum": lambda: V2.SGD(0.1, momentum=0.9),
    "v2 nesterov": lambda: V2.SGD(0.1, momentum=0.9, nesterov=True),
    "v2 adam": lambda: V2.Adam(0.01, epsilon=1e-3),
    "v2 amsgrad": lambda: V2.Adam(0.01, epsilon=1e-3, amsgrad=True),
    "v2 adagrad": lambda: V2.Adagrad(0.1, epsilon=1e-3),
    "v2 rmsprop": lambda: V2.RMSprop(0.01, epsilon=1e-3),
    "v2 rmsprop momentum": lambda: V2.RMSprop(0.01, momentum=0.9, epsilon=1e-3),
    "v2 rmsprop centered": lambda: V2.RMSprop(0.01, momentum=0.9, centered=True, epsilon=1e-2),
    "v2 adadelta": lambda: V2.Adadelta(1.0, epsilon=1e-3),
    "v2 adamax": lambda: V2.Adamax(0.01, epsilon=1e-3),
    "v2 nadam": lambda: V2.Nadam(0.01, epsilon=1e-3),
    "v2 ftrl": lambda: V2.Ftrl(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.1, beta=0.1
    ),
    "v1 gradient descent": lambda: V1.GradientDescentOptimizer(0.1),
    "v1 momentum": lambda: V1.MomentumOptimizer(0.1, 0.9),
    "v1 nesterov": lambda: V1.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "v1 adam": lambda: V1.AdamOptimizer(0.01, epsilon=1e-3),
    "v1 adagrad": lambda: V1.AdagradOptimizer(0.1, initial_accumulator_value=0.2),
    "v1 adadelta": lambda: V1.AdadeltaOptimizer(1.0, epsilon=1e-3),
    "v1 rmsprop": lambda: V1.RMSPropOptimizer(0.01, momentum=0.9, epsilon=1e-3),
    "v1 rmsprop centered": lambda: V1.RMSPropOptimizer(
        0.01, momentum=0.9, epsilon=1e-2, centered=True
    ),
    "v1 ftrl": lambda: V1.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.1
    ),
    "v1 proximal gradient descent": lambda: V1.ProximalGradientDescentOptimizer(
        0.1, l1_regularization_strength=0.2, l2_regularization_strength=0.5
    ),
    "v1 proximal adagrad": lambda: V1.ProximalAdagradOptimizer(
        0.1, l1_regularization_strength=0.2, l2_regularization_strength=0.5
    ),
    "v1 adagrad da": lambda: V1.AdagradDAOptimizer(
        0.1, tf.Variable(0, dtype=tf.int64), 0.1, 0.05, 0.1
    ),
}


def run(make, sparse):
    g, rows = gradients()
    table = tf.Variable(start())
    optimizer = make()
    path = []
    for t in range(STEPS):
        grad = tf.constant(g[t])
        if sparse:
            kept = tf.constant(rows[t], tf.int64)
            grad = tf.IndexedSlices(tf.gather(grad, kept), kept, tf.constant(SHAPE, tf.int64))
        optimizer.apply_gradients([(grad, table)])
        if isinstance(optimizer, V1.AdagradDAOptimizer):
            optimizer._global_step.assign_add(1)
        path.append(table.numpy())
    return np.stack(path)


def start():
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


def main():
    g, rows = gradients()
    made = {"gradients": g, "rows": rows, "start": start()}
    for name, make in OPTIMIZERS.items():
        for kind in ("dense", "sparse"):
            made[f"{name}, {kind}"] = run(make, kind == "sparse")
    versions = f"tensorflow {tf.__version__}, tf-keras {tf_keras.__version__}"
    made["versions"] = np.array(versions)
    np.savez_compressed(pathlib.Path(__file__).with_name("tensorflow.npz"), **made)
    print(versions, len(made))


if __name__ == "__main__":
    main()
