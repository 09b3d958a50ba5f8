"""The steps of a transformation in the methods that an optimizer of Keras has."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from gradtx.checkpoint.config import check_depth, from_config, to_config
from gradtx.checkpoint.state_dict import load_state_dict, state_dict
from gradtx.composition.apply import take_step
from gradtx.core.pair import GradientTransformation
from gradtx.core.traits import Links
from gradtx.estimators.estimator import Estimator
from gradtx.inspection.hyperparams import hyperparams, replace
from gradtx.inspection.iterations import is_accumulation, iterations, step_counters
from gradtx.inspection.slots import map_slots, walk_slots
from gradtx.leaves.paths import path_string
from gradtx.numerics import cast, own_copy
from gradtx.programs.tracing import is_tracer
from gradtx.training.estimated import (
    estimate,
    estimator_of,
    inner_state_of,
    key_in,
    optimizer_of,
    with_flat,
)
from gradtx.training.loss_scale import divides, scale_in
from gradtx.training.minimize import apply_gradients, scalar_loss
from gradtx.transforms.parameter_averages import eval_params
from gradtx.types import State


def _rates(tx: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The learning rates among the hyperparameters, by the paths that `replace` takes."""
    if tx.declaration is None or tx.declaration.builder.static:  # takes no traced number
        return
    for name in ("learning_rate", "adam_learning_rate"):
        rate = tx.declaration.arguments.get(name)
        if rate is not None:
            yield prefix + name, rate
    for name, child in tx.children:
        yield from _rates(child, f"{prefix}{name}.")


def _window(tx: GradientTransformation, state: Any) -> tuple[GradientTransformation, Any] | None:
    """The accumulation that all gradients pass through, with its state; None if there is none."""
    if tx.facet(Estimator) is not None:
        return _window(optimizer_of(tx), inner_state_of(tx, state))
    if is_accumulation(state):
        return tx, state
    links = tx.facet(Links)
    pairs = zip(links.each, links.states(state), strict=True) if links else ()
    return next(filter(None, (_window(link, part) for link, part in pairs)), None)


def _batches(tx: GradientTransformation, state: Any) -> Any:
    """How many batches a state has seen, which Keras counts; None if the state does not say."""
    window = _window(tx, state)
    if window is None:
        return None if next(step_counters(state), None) is None else iterations(state)
    tx, state = window
    arguments = {} if tx.declaration is None else tx.declaration.arguments
    every = arguments.get("every", arguments.get("every_k_schedule"))
    if every is None or callable(every):
        return None
    return state.gradient_step * every + state.mini_step


def _mentioned(config: Any) -> Iterator[str]:
    """The names of builders and functions in the configuration of a transformation."""
    if isinstance(config, Mapping):
        yield from (config[k] for k in ("name", "object", "named") if k in config)
        config = list(config.values())
    for part in config if isinstance(config, list) else ():
        yield from _mentioned(part)


def _key_kind(leaf: Any) -> Any:
    """The name of a random key's generator; None for an array that is no key."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_impl(leaf) if is_key else None


def _numbers(leaf: Any) -> Any:
    """An array, or the integers behind a random key."""
    return leaf if _key_kind(leaf) is None else jax.random.key_data(leaf)


def _is_on_host(leaf: Any) -> bool:
    """Whether an array was put where :func:`offload` keeps it."""
    return bool(leaf.sharding.memory_kind == "pinned_host")


def _slot_paths(state: Any) -> list[str]:
    """The paths of the variables for which a state has slots."""
    trees = (tree for _, _, tree in walk_slots(state) if isinstance(tree, dict))
    return list(dict.fromkeys(path for tree in trees for path in tree))


def _without_model(paths: list[str]) -> list[str]:
    """Paths without the model's name, if they all begin with one."""
    parts = [path.partition("/") for path in paths]
    named = len({top for top, _, _ in parts}) == 1 and all("/" in rest for _, _, rest in parts)
    return [rest for _, _, rest in parts] if named else paths


def _renamed(state: Any, paths: list[str]) -> Any:
    """A state whose slots have these paths, if only the name of the model before them differs.

    Keras numbers a model that has no name, so that the same model made again has another one.
    """
    old_paths = _slot_paths(state)
    new_paths = dict(zip(_without_model(paths), paths, strict=True))
    renamed = {
        old: new_paths.get(rest)
        for old, rest in zip(old_paths, _without_model(old_paths), strict=True)
    }
    if set(old_paths) <= set(paths) or None in renamed.values():
        return state

    def rename(holder: Any, name: str, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        return type(tree)((renamed[path], slot) for path, slot in tree.items())

    return map_slots(state, rename)


def _shown(paths: Iterable[str]) -> str:
    return f"{', '.join(paths) or 'none':.200}"


def _step(
    tx: GradientTransformation, grads: Any, params: Any, state: Any, extra_args: Any
) -> tuple[Any, Any]:
    """The parameters and the state after one step of `tx`."""
    if all(g is None or g.shape == params[path].shape for path, g in grads.items()):
        return apply_gradients(tx, grads, params, state, **extra_args)
    # Gradients of single examples, which have a dimension more: `tx` says if it takes none.
    return take_step(tx, grads, state, params, **extra_args)


_Base: Any = object
"""Stands for Keras's base class, which is not imported here."""


class KerasSteps(_Base):  # type: ignore[misc]
    """The methods of a Keras optimizer whose steps are those of a transformation.

    They come before those of ``keras.optimizers.Optimizer`` in a class that has both as bases, and
    import Keras only when they are called.
    """

    def __init__(
        self,
        tx: GradientTransformation,
        learning_rate: Any = None,
        state: State | None = None,
        loss_scale_factor: float | None = None,
        name: str = "gradtx",
    ) -> None:
        if not isinstance(tx, GradientTransformation):
            raise TypeError(
                f"keras_optimizer takes a transformation, such as gradtx.adamw(1e-3), not "
                f"{getattr(tx, '__name__', repr(tx)):.80}: call the builder, and "
                "gradtx.chain(tx) makes one of a pair of another library"
            )
        rates = dict(_rates(tx))
        numbers = [] if any(map(callable, rates.values())) else list(map(float, rates.values()))
        first = next(filter(None, numbers), 0.0)
        # Keras would take the tuple `tx` apart, and variables of the model for its own.
        self.__dict__.update(
            _tx=tx,
            _rates=rates,
            _ratios=[rate / first if first else 1.0 for rate in numbers],
            _first_rate=first,
            _initial_state=state,
            _extra_args={},
            _flat=None,
        )
        if learning_rate is None:
            learning_rate = first if numbers else self._rate_of_tx
        else:
            self._check_settable()
        super().__init__(
            learning_rate if callable(learning_rate) else float(learning_rate),
            loss_scale_factor=loss_scale_factor,
            name=name,
        )

    def build(self, variables: Any) -> None:
        """Make the state of `tx` as variables of Keras."""
        if self.built:
            return
        trained: dict[str, Any] = {}
        for i, v in enumerate(variables):
            if not self._overwrite_variable_with_gradient(v):  # a scale of float8
                trained[f"{v.path}:{i}" if v.path in trained else v.path] = v
        self.__dict__.update(_trained=trained)
        state = new = self._tx.init(self.params)
        if self._initial_state is not None:
            state = self._continued(self._initial_state)
        super().build(variables)  # once there is a state, or nothing is built
        paths, structure = jax.tree_util.tree_flatten_with_path(new)
        leaves = jax.tree.leaves(state)
        self.__dict__.update(
            _initial_state=None,
            _structure=structure,
            _kinds=list(map(_key_kind, leaves)),
            _slots=[
                self._slot(path_string(path), _numbers(like), _numbers(leaf))
                for (path, like), leaf in zip(paths, leaves, strict=True)
            ],
        )

    def _continued(self, state: Any) -> Any:
        """A state of `tx` for these variables, whose steps Keras then counts on from."""
        state = _renamed(state, list(self._trained))
        try:
            state = load_state_dict(self._tx, self.params, state_dict(state))
        except ValueError as error:
            error.add_note(
                f"keras_optimizer: the slots are those of {_shown(_slot_paths(state))}, and "
                f"the variables {_shown(self._trained)}: make the state for parameters "
                "{v.path: v.value for v in model.trainable_variables} of this model, and give "
                "models and layers a name, or Keras numbers them anew"
            )
            raise
        batches = _batches(self._tx, state)
        if batches is not None:
            self._iterations.assign(batches)
        return state

    def _slot(self, path: str, like: Any, value: Any) -> Any:
        """A Keras variable for a leaf of the state, sharded as ``init`` made the leaf."""
        import keras

        layout, distribution = None, keras.distribution.distribution()
        if isinstance(like.sharding, jax.sharding.NamedSharding) or _is_on_host(like):
            layout = like.sharding
        elif distribution is not None:
            mesh = distribution.device_mesh
            layout = keras.distribution.TensorLayout([None] * like.ndim, mesh)
        with keras.name_scope(self.name):
            slot = keras.Variable(
                own_copy(value), trainable=False, layout=layout, name=path.replace("/", "_")
            )
        self._track_variable(slot)
        return slot

    @property
    def params(self) -> Any:
        """The trained variables' values, by path and in their order."""
        # Not a dict, of which JAX sorts the keys: a model made again may have other names.
        return OrderedDict((path, v.value) for path, v in self._trained.items())

    @property
    def state(self) -> State | None:
        """The state of `tx`; None before there are variables."""
        if not self.built:
            return None
        leaves = [
            v.value if kind is None else jax.random.wrap_key_data(v.value, impl=kind)
            for v, kind in zip(self._slots, self._kinds, strict=True)
        ]
        return self._structure.unflatten(leaves)

    @state.setter
    def state(self, state: State) -> None:
        if not self.built:
            self.__dict__.update(_initial_state=state)
            return
        self._assign_state(self._continued(state))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state":  # Keras would take it apart, to track its arrays
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _assign_state(self, state: Any) -> None:
        for slot, leaf in zip(self._slots, jax.tree.leaves(state), strict=True):
            slot.assign(_numbers(leaf))

    def assign_eval_params(self) -> None:
        """Set the trained variables to the averages in the state, as Keras does after `fit`.

        Raises:
            ValueError: there are no variables yet, or the state holds no average.
        """
        params = self.params if self.built else {}
        new = eval_params(self._tx, self.state, params) if params else params
        if all(new[path] is params[path] for path in params):
            raise ValueError(
                "keras_optimizer: there is no average to assign: train with "
                "chain(tx, ema_params(0.99, start=1)) first"
            )
        for path, v in self._trained.items():
            v.assign(own_copy(new[path]))  # a step gives up the buffers of both

    def __repr__(self) -> str:
        return f"keras_optimizer({self.tx!r})"

    @property
    def loss_scale_factor(self) -> float | None:
        """The number that multiplies the loss, besides a scale of `tx`."""
        factor: float | None = self.__dict__.get("_factor")
        return factor

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: float | None) -> None:
        # Keras's LossScaleOptimizer sets it in the optimizer that it wraps.
        if "_factor" in self.__dict__ and divides(self.tx):
            raise ValueError(
                "keras_optimizer: dynamic_loss_scale finds a scale, and so does Keras's "
                "LossScaleOptimizer around it: leave one out. compile(auto_scale_loss=False) "
                "leaves out Keras's, which the policy mixed_float16 puts there"
            )
        self.__dict__.update(_factor=factor)

    def scale_loss(self, loss: Any) -> Any:
        """The loss that is differentiated, multiplied by the scale that `tx` found."""
        loss = super().scale_loss(loss)
        scale = scale_in(self.tx, self.state)
        return loss if scale is None else loss * cast(scale, loss.dtype)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any, **extra_args: Any
    ) -> Any:
        """As in Keras, with extra arguments for `tx`, such as the loss as `value`."""
        self.__dict__.update(_extra_args=extra_args)
        try:
            return super().stateless_apply(optimizer_variables, grads, trainable_variables)
        finally:
            self.__dict__.update(_extra_args={})

    def stateless_minimize(
        self,
        loss_fn: Any,
        optimizer_variables: Any,
        trainable_variables: Any,
        has_aux: bool = False,
    ) -> Any:
        """A step with estimated gradients: the value and the new variables.

        Args:
            loss_fn: ``trainable_variables -> value`` or, with `has_aux`, ``-> (value, aux)``.
            optimizer_variables: as in ``stateless_apply``.
            trainable_variables: as there.
            has_aux: whether `loss_fn` returns something besides the value.

        Returns:
            ``(value, trainable_variables, optimizer_variables)``, with ``(value, aux)`` in
            place of the value if `has_aux`.
        """
        import keras

        estimator = estimator_of(self._tx)
        if estimator is None:
            raise ValueError(
                "keras_optimizer: stateless_minimize estimates gradients, and the optimizer "
                "does not say how: pass gradients=gradtx.spsa(...) to keras_optimizer"
            )
        mapping = list(zip(self.variables, optimizer_variables, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            key, scale = key_in(self.state), self.scale_loss(jnp.ones([], float))
        value, grads, aux, flat = estimate(
            estimator,
            scalar_loss(loss_fn, has_aux, any_shape=True),
            list(trainable_variables),
            key,
            lambda value: cast(scale, value.dtype),
            has_aux,
        )
        self.__dict__.update(_flat=flat)
        try:
            new, slots = self.stateless_apply(
                optimizer_variables, grads, trainable_variables, value=value
            )
        finally:
            self.__dict__.update(_flat=None)
        return ((value, aux) if has_aux else value), new, slots

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        """Take the step of `tx` for the variables that have a gradient."""
        if self._tx.facet(Estimator) is not None and self._flat is None:
            raise ValueError(
                "keras_optimizer: gradients are estimated, and these are those of a backward "
                "pass: call self.optimizer.stateless_minimize(loss, optimizer_variables, "
                "trainable_variables) in a train_step of your own"
            )
        by_variable = {id(v): g for v, g in zip(trainable_variables, grads, strict=True)}
        gradients = OrderedDict((k, by_variable.get(id(v))) for k, v in self._trained.items())
        tx = self._with_rate(jnp.asarray(self.learning_rate)) if self._ratios else self._tx
        try:
            params, state = _step(tx, gradients, self.params, self.state, self._extra_args)
        except (TypeError, ValueError) as error:
            error.add_note(
                "keras_optimizer: Keras gives an optimizer only gradients; what else a "
                "transformation asks for is passed in a train_step of your own: "
                "self.optimizer.stateless_apply(optimizer_variables, grads, "
                "trainable_variables, value=loss)"
            )
            raise
        if self._flat is not None:
            state = with_flat(state, self._flat)
        for path, v in self._trained.items():
            v.assign(params[path])
        self._assign_state(state)

    def _rate_of_tx(self) -> Any:
        """The current learning rate of `tx`, where Keras sets none; 1 if `tx` has no rate."""
        current = hyperparams(self._tx, self.state)
        return next((current.get(path, 1.0) for path in self._rates), 1.0)

    def _check_settable(self) -> None:
        if self._ratios:
            return
        why = (
            f"{self._tx!r:.200} has no hyperparameter learning_rate: "
            "chain(..., scale_by_learning_rate(1e-3)) has one"
        )
        for path, rate in self._rates.items():
            if callable(rate):
                why = f"{path} is a schedule, {rate!r:.200}: make `tx` with a number"
        raise ValueError(f"keras_optimizer: the learning rate cannot be set, since {why}")

    def _with_rate(self, rate: Any) -> GradientTransformation:
        rates = {k: rate * ratio for k, ratio in zip(self._rates, self._ratios, strict=True)}
        return replace(self._tx, rates)

    @property
    def tx(self) -> GradientTransformation:
        """The transformation, with the current learning rate."""
        if not self._ratios:
            return self._tx
        rate = jnp.asarray(self.learning_rate)
        if is_tracer(rate):
            return self._with_rate(rate)
        is_first = rate == jnp.asarray(self._first_rate, rate.dtype)
        return self._tx if is_first else self._with_rate(float(rate))

    @property
    def iterations(self) -> Any:
        """The number of steps: of batches, or of windows where `tx` accumulates."""
        window = _window(self._tx, self.state) if self.built else None
        return super().iterations if window is None else window[1].gradient_step

    @property
    def learning_rate(self) -> Any:
        """The learning rate: a variable, or the current value of a schedule."""
        return self._get_current_learning_rate()

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self._check_settable()
        super(KerasSteps, type(self)).learning_rate.fset(self, learning_rate)

    def get_config(self) -> dict[str, Any]:
        """The configuration of the Keras optimizer, with the configuration of `tx` in it."""
        return {
            "tx": to_config(self._tx),
            "learning_rate": super().get_config()["learning_rate"] if self._ratios else None,
            "loss_scale_factor": self.loss_scale_factor,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        """The optimizer that `get_config` described."""
        check_depth("keras_optimizer", config)
        import keras

        look_up = keras.saving.get_registered_object
        objects = {name: look_up(name, custom_objects) for name in _mentioned(config["tx"])}
        registered = {name: each for name, each in objects.items() if each is not None}
        tx = from_config(config["tx"], registered)
        return super().from_config({**config, "tx": tx}, custom_objects)
