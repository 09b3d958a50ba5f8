"""Any transformation as an optimizer of Keras: under `fit`, in its files, with its callbacks."""

import functools
from typing import Any

from gradtx.core.pair import GradientTransformation
from gradtx.estimators.estimator import Estimator
from gradtx.interop.keras_steps import KerasSteps
from gradtx.training.estimated import estimating
from gradtx.types import State


def keras_optimizer(
    tx: GradientTransformation,
    learning_rate: Any = None,
    *,
    state: State | None = None,
    loss_scale_factor: float | None = None,
    name: str = "gradtx",
    gradients: Estimator | None = None,
    **options: Any,
) -> Any:
    """A transformation as an optimizer of Keras 3, for ``compile`` and ``fit`` on the JAX backend.

    Args:
        tx: the transformation. Its parameters are the trainable variables by their paths: patterns
            and masks see ``"dense/kernel"``.
        learning_rate: a number, a schedule of Keras, or a function without arguments, in place of
            the rate of `tx`, which is where it starts by default.
        state: a state to continue from, such as :func:`from_keras` returned for parameters
            ``{v.path: v.value for v in model.trainable_variables}``; by default a new one. The name
            of the model, which Keras numbers if it has none, may be another.
        loss_scale_factor: the factor of the loss when gradients are taken, by which they are then
            divided; ``keras.optimizers.LossScaleOptimizer`` around this finds it by itself.
        name: the optimizer's name.
        gradients: how gradients are estimated without a backward pass, such as :func:`spsa`; None
            for those of Keras. It puts :func:`estimated_gradients` around `tx`.
        options: none; the other options of Keras are parts of `tx`: the error says which.

    Returns:
        An instance of ``keras.optimizers.Optimizer``, with the attributes `tx`, the transformation
        with the learning rate in force, and `state`, the present state, which can be set;
        ``hyperparams(optimizer.tx, optimizer.state)`` reads both. The averages of
        :func:`ema_params` are ``eval_params(optimizer.tx, optimizer.state, optimizer.params)``, by
        path; ``optimizer.assign_eval_params()`` puts them into the model, which Keras does by
        itself at the end of a `fit` with ``use_ema``.

    Raises:
        ImportError: Keras is not installed.
        RuntimeError: Keras runs on another backend than JAX.
        TypeError: `tx` is not a transformation, or an option is one of Keras's own.
        ValueError: `learning_rate` is given, and `tx` has no number in its place. In ``build``,
            which `fit` calls: `state` is not one of `tx` for these variables.

    ``optimizer.learning_rate`` is a variable, which callbacks set: it takes the place of the
    hyperparameter `learning_rate` of `tx`, wherever that is. If there are several, as in the groups
    of a :func:`partition`, it is the first that is not zero, and the others keep their ratios to
    it. Setting it is an error if the rate of `tx` is a schedule, or if it has none: it is then 1.

    Around :func:`accumulate`, ``optimizer.iterations`` counts windows, as it does under Keras's own
    ``gradient_accumulation_steps``. A schedule of Keras counts micro-batches there, and so it does
    here; a schedule inside of `tx` counts the steps of its transformation, which are windows.

    A file that Keras wrote is read with ``load_model(path)``, once `gradtx.interop` is imported.

    Keras gives an optimizer nothing but gradients. A transformation that asks for the loss, as
    :func:`reduce_on_plateau` does, works in a ``train_step`` of your own, which passes it on:
    ``self.optimizer.stateless_apply(optimizer_variables, grads, trainable_variables, value=loss)``.

    Keras's own ``train_step`` takes gradients by a backward pass. Where they are estimated, one of
    your own calls ``value, trainable_variables, optimizer_variables =
    self.optimizer.stateless_minimize(loss, optimizer_variables, trainable_variables)`` with a
    function of the list of trainable variables, which returns the value or, with `has_aux`, a pair.

    >>> import gradtx
    >>> import keras, numpy as np  # doctest: +SKIP
    >>> x, y = np.ones((8, 3)), np.ones((8, 1))  # doctest: +SKIP
    >>> model = keras.Sequential([keras.layers.Dense(1)])  # doctest: +SKIP
    >>> model.compile(keras_optimizer(gradtx.muon(0.02)), loss="mse")  # doctest: +SKIP
    >>> model.fit(x, y)  # doctest: +SKIP
    >>> keras_optimizer(gradtx.sgd(0.1), clipnorm=1.0)
    Traceback (most recent call last):
    TypeError: keras_optimizer: there is no option 'clipnorm': pass chain(clip_by_norm(...), tx)
    """
    for option in options:
        instead = _INSTEAD.get(option)
        hint = f"pass {instead}" if instead else "it takes learning_rate, state and name"
        raise TypeError(f"keras_optimizer: there is no option {option!r}: {hint}")
    if gradients is not None:
        tx = estimating("keras_optimizer", tx, gradients)
    optimizer_class = _keras_class()
    return optimizer_class(
        tx, learning_rate, state=state, loss_scale_factor=loss_scale_factor, name=name
    )


_INSTEAD = {
    "clipnorm": "chain(clip_by_norm(...), tx)",
    "clipvalue": "chain(clip(...), tx)",
    "global_clipnorm": "chain(clip_by_global_norm(...), tx)",
    "weight_decay": "a tx with weight_decay, such as adamw, or decay_first(tx, decay=...)",
    "use_ema": "chain(tx, ema_params(0.99, start=1)), and optimizer.assign_eval_params() after fit",
    "ema_momentum": "chain(tx, ema_params(..., start=1))",
    "ema_overwrite_frequency": "chain(tx, ema_params(0.99, start=1, overwrite_every=...))",
    "gradient_accumulation_steps": "accumulate(tx, every=...)",
}
"""The counterpart of each option of Keras's base class."""


def keras_objects() -> dict[str, Any]:
    """The class of :func:`keras_optimizer`, for files that Keras wrote.

    Returns:
        The argument of ``keras.models.load_model(path, custom_objects=keras_objects())``. Builders
        and functions of your own that occur in the transformation go beside it, by name:
        ``keras_objects() | {"my_mask": my_mask}``. A process that has imported `gradtx.interop`
        needs only these.

    Raises:
        ImportError: Keras is not installed.
        RuntimeError: Keras runs on another backend than JAX.

    >>> import keras  # doctest: +SKIP
    >>> path = "model.keras"  # doctest: +SKIP
    >>> model = keras.models.load_model(path, keras_objects())  # doctest: +SKIP
    """
    optimizer_class = _keras_class()
    return {f"gradtx>{optimizer_class.__name__}": optimizer_class}


@functools.cache
def _keras_class() -> Any:
    """The class of the Keras optimizer, which is defined when Keras is first needed."""
    try:
        import keras
    except ImportError as error:
        raise ImportError("keras_optimizer: Keras is not installed: pip install keras") from error
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            f"keras_optimizer: Keras runs on its {keras.backend.backend()} backend, and gradtx on "
            'JAX: set os.environ["KERAS_BACKEND"] = "jax" before Keras is imported'
        )
    base: Any = keras.optimizers.Optimizer

    @keras.saving.register_keras_serializable("gradtx")
    class TransformationOptimizer(KerasSteps, base):  # type: ignore[misc]
        """An optimizer of Keras whose steps are those of a transformation."""

    return TransformationOptimizer
