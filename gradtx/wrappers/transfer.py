"""Hyperparameters of a small model on a large one: each leaf gets its own multiples of them."""

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, get_args

import jax.numpy as jnp

from gradtx.checks import check_choice
from gradtx.composition.groups import partition
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.composition.multipliers import (
    HeadForm,
    Multipliers,
    MultipliersByPath,
    Shapes,
    SizeRule,
    abstract,
    growths,
    multipliers_of,
    pattern_of,
    shapes_of,
)
from gradtx.composition.roles import ByRole
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
    with_extra_args_support,
)
from gradtx.core.traits import Scope
from gradtx.declarations.declaration import Kept
from gradtx.inspection.description import multipliers_in
from gradtx.inspection.hyperparams import map_transformations, replace, with_arguments
from gradtx.leaves.matrix_layout import MatrixDimensions, as_matrices
from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.numerics import rms
from gradtx.optimizers.muon import shape_factor
from gradtx.schedules.products import multiply_schedules
from gradtx.types import Params, ParamsT, PyTree


class _StepSize(NamedTuple):
    """The rule on which the size of an optimizer's updates depends.

    rule: of matrices if `numbers` is the argument that says which leaves these are, otherwise of
    all leaves; factor: ``(arguments, rows, columns) -> number``, the optimizer's own factor of the
    shape; power: ``arguments -> number``, of outputs by inputs; eps_power: the power of the
    gradient that `eps` is added to; of_entries: whether that is entry by entry, as in Adam.
    """

    rule: SizeRule
    numbers: str | None = None
    factor: Callable[[Mapping[str, Any], int, int], float] = lambda arguments, rows, columns: 1.0
    power: Callable[[Mapping[str, Any]], float] = lambda arguments: 0.5
    eps_power: int = 1
    of_entries: bool = False


def _muon_factor(arguments: Mapping[str, Any], rows: int, columns: int) -> float:
    # What multiplies all factors alike, such as r, does not count, and may be traced.
    fixed = None if arguments["consistent_rms"] is None else 1.0
    return float(shape_factor(rows, columns, arguments.get("scale", "jordan"), fixed))


def _longer(arguments: Mapping[str, Any], rows: int, columns: int) -> float:
    return float(max(rows, columns) ** 0.5)


_ENTRIES = (
    *("adabelief", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "ademamix", "adopt"),
    *("amsgrad", "laprop", "lion", "nadam", "nadamw", "rmsprop", "sign_sgd", "signum", "tiger"),
    *("yogi", "scale_by_adam", "scale_by_adamax", "scale_by_adan", "scale_by_ademamix"),
    *("scale_by_adopt", "scale_by_amsgrad", "scale_by_belief", "scale_by_laprop"),
    *("scale_by_lion", "scale_by_nadam", "scale_by_rms", "scale_by_rss", "scale_by_sign"),
    *("scale_by_tiger", "scale_by_yogi"),
)
_NUMBERS = "weight_dimension_numbers"
_SOAP = _StepSize(
    "spectral",
    _NUMBERS,
    # Independent entries of size 1, of gradients that are noise, have this norm in any bases. With
    # a basis on one side alone, a gradient of rank one has such entries on the other.
    lambda arguments, rows, columns: (
        max(rows, columns) ** 0.5 if arguments["one_sided"] else rows**0.5 + columns**0.5
    ),
)
_SHAMPOO = _StepSize(
    "spectral", _NUMBERS, power=lambda arguments: 1 - 2 / arguments["root"], eps_power=2
)
_KNOWN: dict[str, _StepSize] = {
    **dict.fromkeys(_ENTRIES, _StepSize("adam")),
    "sgd": _StepSize("sgd"),
    "muon": _StepSize("spectral", "muon_weight_dimension_numbers", _muon_factor),
    "normuon": _StepSize("spectral", _NUMBERS, _longer),
    "adamuon": _StepSize("spectral", _NUMBERS, _longer),
    "muon2": _StepSize(
        "spectral",
        _NUMBERS,
        lambda arguments, rows, columns: float(shape_factor(rows, columns, "scion")),
        of_entries=True,
    ),
    # Its epsilon is added to the moments of inputs, which are as large at every width.
    "newton_muon": _StepSize("spectral", _NUMBERS, _muon_factor, eps_power=0),
    "soap": _SOAP,
    "scale_by_soap": _SOAP,
    "shampoo": _SHAMPOO,
    "scale_by_shampoo": _SHAMPOO,
}
# What leaves the size of updates as it is, or changes it alike for all leaves.
_NEUTRAL = frozenset(
    (
        *("accumulate", "add_cautious_decayed_weights", "add_decayed_weights", "apply_if_finite"),
        *("cautious", "centralize", "chain", "clip", "clip_by_global_norm", "compensated"),
        *("count_steps", "decay_first", "dynamic_loss_scale", "ema_params", "exact_rows", "guard"),
        *("identity", "lookahead", "masked", "master_weights", "measure_with_ema", "monitor"),
        *("multi_steps", "named_chain", "offload", "scale", "scale_by_learning_rate"),
        *("scale_by_batch_size", "scale_by_schedule", "skip_if_none", "snapshot", "static"),
        *("stochastic_rounding", "store", "swa_params", "zero_nans"),
    )
)
_RATES = ("learning_rate", "adam_learning_rate")
_DECAYS = ("weight_decay", "adam_weight_decay")
# The power of the gradient that each is added to.
_EPSILONS = {"eps": 1, "eps_root": 2, "initial_accumulator_value": 2}
_ADAM_EPSILONS = {"grafting_eps": 1, "adam_eps_root": 2}


class _LeafMultipliers(NamedTuple):
    """The multipliers of a leaf, and one for the epsilon of the Adam beside a matrix optimizer."""

    said: Multipliers
    entry: float


class _NumbersByPath(NamedTuple):
    """A function from a tree, or a part of it, to the dimension numbers of its leaves."""

    numbers: dict[str, Any]

    def __call__(self, tree: PyTree) -> PyTree:
        leaves, treedef = leaves_with_path(tree)
        return treedef.unflatten(
            [None if x is None else self.numbers[path_string(path)] for path, x in leaves]
        )


@transformation(native_schedules=True)
def transfer(
    inner: GradientTransformation,
    small: Annotated[Any, Kept(shapes_of)],
    params: Annotated[Any, Kept(shapes_of)],
    roles: ByRole | None = None,
    *,
    rule: SizeRule | None = None,
    head: HeadForm = "initial",
) -> GradientTransformation:
    r"""Fit the hyperparameters of an optimizer tuned on a small model to a large one.

    A matrix that has :math:`m_{in}` times as many inputs and :math:`m_{out}` times as many outputs
    as in the small model, in a model with :math:`m_L` times as many layers, gets

    .. math::
        \eta \leftarrow \eta \cdot \begin{cases}
            1 / (a\, m_{in}) & \text{adam} \\
            m_L\, m_{out} / (a^2 m_{in}) & \text{sgd} \\
            \sqrt{m_{out} / m_{in}}\, k_{small} / (a\, k_{large}) & \text{spectral}
        \end{cases}

        \lambda \leftarrow \lambda\, \eta_{small} / \eta_{large}, \qquad
        \epsilon \leftarrow \epsilon \cdot \frac{a}{m_L} \cdot \begin{cases}
            1 / m_{out} & \text{adam} \\
            \sqrt{m_{in} / m_{out}} & \text{spectral}
        \end{cases}

    with :math:`m_{in} = 1` for embeddings, norms, biases and other vectors. `k` is the optimizer's
    own factor of a matrix's shape, as :func:`scale_by_shape` has it, so that its effect is not
    applied twice. The rules keep the change that an update makes to the activations the same at
    every width; they hold if the model does the rest, which :func:`transfer_multipliers` says for
    each leaf:

    - initial values of :math:`\sigma \leftarrow \sigma \min(1, \sqrt{m_{out} / m_{in}})
      / (a \sqrt{m_{in}})`, which :func:`transfer_initial` sets;
    - with ``head="multiplier"``, outputs of the head multiplied by :math:`a = 1 / m_{in}`;
      otherwise :math:`a = 1`, and the initial values of the head are :math:`1 / m_{in}` as large;
    - what a layer adds to the residual stream is multiplied by :math:`1 / m_L`;
    - attention divides by the size of a head, not by its root, if that size changes.

    Args:
        inner: the optimizer with the hyperparameters of the small model: one of those below, alone,
            in a chain, or in wrappers that leave the size of updates alone.
        small: the parameters of the small model, or ``jax.ShapeDtypeStruct`` in their place, as
            ``jax.eval_shape`` returns them. Layers may be fewer, in a list or stacked.
        params: those of the large model.
        roles: what the leaves are; by default the `ByRole` of `inner`, or ``ByRole()``.
        rule: how the size of the updates depends on the gradient, for an optimizer not named below:
            ``"adam"`` where entries have one size whatever the gradient's is, ``"sgd"`` where
            updates are in proportion to it, ``"spectral"`` where the singular values of matrices
            have one size.
        head: what keeps the outputs small at the start: the head's initial values, or a factor in
            the model, which tied embeddings need.

    The rule follows from the name: ``"adam"`` for adabelief, adagrad, adam, adamax, adamaxw, adamw,
    adan, ademamix, adopt, amsgrad, laprop, lion, nadam, nadamw, rmsprop, sign_sgd, signum, tiger
    and yogi; ``"sgd"`` for sgd; ``"spectral"`` for the matrices of muon, muon2, newton_muon,
    normuon, adamuon, soap and shampoo, whose other leaves follow ``"adam"``. Shampoo with grafting
    follows ``"adam"`` or ``"sgd"``, whose steps set its length; without grafting its factor is
    :math:`(m_{out} / m_{in})^{1 - 2/p}`, with its root `p`. The epsilon of muon2 grows as Adam's
    does; that of newton_muon, which is added to the moments of inputs, stays.

    State: that of `inner`, in which each optimizer is a `PartitionState` of the leaves with equal
    multipliers if there are several such groups.

    Raises:
        ValueError: a leaf has no counterpart in the small model, or its role, the axis along which
            it grew or the rule is not clear. The error names the path, and what to pass.
        TypeError: `inner`, or a part of it, is no declared transformation.

    The multiplier of weight decay keeps its product with the learning rate, as in `mup`.

    Source: G. Yang et al., Tensor Programs V, 2022, arXiv:2203.03466, tables 3 (``"initial"``) and
    8 (``"multiplier"``); N. Dey et al., CompleteP, 2025, arXiv:2505.01618 (depth, epsilon, decay);
    G. Yang, J. Simon and J. Bernstein, A Spectral Condition for Feature Learning, 2023,
    arXiv:2310.17813 (spectral, initial values). S. Qiu et al., Hyperparameter Transfer Enables
    Consistent Gains of Matrix-Preconditioned Optimizers Across Scales, 2025, arXiv:2512.05620, also
    treat Shampoo and SOAP. The rules here for these two are our own: they assume gradients of rank
    one for Shampoo and for SOAP's ``one_sided``, and gradients that are noise for SOAP, whose
    updates then have the spectral norm :math:`\sqrt{d_{in}} + \sqrt{d_{out}}`; in docs/transfer.md
    SOAP's best rate moves accordingly.

    >>> import gradtx, jax
    >>> def shapes(n):
    ...     return {"wte": (9, n), "mlp": {"kernel": (n, n)}, "head": {"kernel": (n, 9)}}
    >>> def model(n):
    ...     return jax.tree.map(jnp.zeros, shapes(n), is_leaf=lambda x: isinstance(x, tuple))
    >>> tx = transfer(gradtx.adam(0.1), model(16), model(64))
    >>> for path, multipliers in gradtx.transfer_multipliers(tx).items():
    ...     print(path, multipliers.rate, multipliers.initial, multipliers.why)
    head/kernel 0.25 0.25 inputs x 4
    mlp/kernel 0.25 0.5 inputs x 4, outputs x 4
    wte 1.0 1.0 outputs x 4
    """
    if rule is not None:
        check_choice("transfer", "rule", rule, get_args(SizeRule))
    check_choice("transfer", "head", head, get_args(HeadForm))
    inner = with_extra_args_support(inner)
    known = _known(inner, rule)
    if _rates(inner) != 1:
        raise ValueError(
            f"transfer: {inner!r:.200} has {_rates(inner)} learning rates in turn, and needs one: "
            "an argument `learning_rate`, such as that of scale_by_learning_rate"
        )
    how = roles or _roles_in(inner) or ByRole()
    leaves = _leaves(small, params, how, known, inner, head)
    numbers = _numbers_of(inner, known, params)
    transferred = _transferred(
        inner, leaves, None if numbers is None else _NumbersByPath(numbers), known
    )
    said = {path: leaf.said for path, leaf in leaves.items()}
    return transferred.with_facets(MultipliersByPath(said))


def _declared(tx: GradientTransformation) -> list[GradientTransformation]:
    """`tx` and the transformations among its arguments, at every depth.

    Raises:
        TypeError: one was made by hand, or by another library.
    """
    if tx.declaration is None:
        raise TypeError(
            f"transfer: {tx!r:.80} was made by hand, and its hyperparameters cannot be read; build "
            "it with gradtx's builders, or chain it outside of transfer"
        )
    return [tx, *(x for _, child in tx.children for x in _declared(child))]


def _arguments(tx: GradientTransformation) -> Mapping[str, Any]:
    assert tx.declaration is not None
    return tx.declaration.arguments


def _name(tx: GradientTransformation) -> str:
    assert tx.declaration is not None
    return tx.declaration.name


def _known(inner: GradientTransformation, rule: SizeRule | None) -> dict[str, _StepSize]:
    """The rules of the optimizers within `inner` for the size of their updates, by name."""
    every = _declared(inner)
    names = dict.fromkeys(map(_name, every))
    if rule is not None:  # what is around others leaves their arguments to them
        alone = {_name(tx) for tx in every if not tx.children}
        return {name: _StepSize(rule) for name in names if name in alone - _NEUTRAL}
    known = {name: _KNOWN[name] for name in names if name in _KNOWN}
    unknown = [name for name in names if name not in _NEUTRAL and name not in _KNOWN]
    if unknown or len({(x.rule, x.numbers) for x in known.values()}) != 1:
        problem = (
            f"it is not known on what the updates of {', '.join(unknown)} depend"
            if unknown
            else f"there is not one optimizer in it but {', '.join(known) or 'none'}"
        )
        raise ValueError(
            f"transfer: {problem}: pass rule, one of {get_args(SizeRule)}, or put transfer around "
            "the optimizer alone"
        )
    return known


def _is_site(tx: GradientTransformation, known: Mapping[str, _StepSize]) -> bool:
    """Whether a transformation has hyperparameters of its own that differ from leaf to leaf."""
    return _name(tx) in known or any(name in _arguments(tx) for name in (*_RATES, *_DECAYS))


def _rates(tx: GradientTransformation) -> int:
    """The number of learning rates that multiply an update, one after another."""
    has_rate, counts = int(_RATES[0] in _arguments(tx)), [_rates(child) for _, child in tx.children]
    return has_rate + (
        sum(counts) if _name(tx) in ("chain", "named_chain") else max(counts, default=0)
    )


def _roles_in(inner: GradientTransformation) -> ByRole | None:
    arguments = [x for tx in _declared(inner) for x in _arguments(tx).values()]
    return next((x for x in arguments if isinstance(x, ByRole)), None)


def _numbers_of(
    inner: GradientTransformation, known: Mapping[str, _StepSize], shapes: Shapes
) -> dict[str, Any] | None:
    """The dimension numbers of each leaf, None where there is no matrix optimizer."""
    for tx in _declared(inner):
        how = known.get(_name(tx))
        if how is not None and how.numbers is not None:
            argument, tree = _arguments(tx)[how.numbers], abstract(shapes)
            if not shapes:
                return {}
            numbers = MatrixDimensions(dimension_numbers(argument), MuonDimensionNumbers)
            paths = [path_string(path) for path, _ in leaves_with_path(tree)[0]]
            return dict(zip(paths, numbers.of("transfer", tree), strict=True))
    return None


def _leaves(
    small: Shapes,
    large: Shapes,
    roles: ByRole,
    known: Mapping[str, _StepSize],
    inner: GradientTransformation,
    head: HeadForm,
) -> dict[str, _LeafMultipliers]:
    """The multipliers of each leaf."""
    how = next(iter(known.values()))
    arguments = next(_arguments(tx) for tx in _declared(inner) if _name(tx) in known)
    numbers = _numbers_of(inner, known, large)
    multipliers = {}
    for path, (role, growth) in growths("transfer", small, large, roles).items():
        rule, factor, power = how.rule, 1.0, 0.5
        number = None if numbers is None else numbers[path]
        if (numbers is not None and number is None) or (
            rule == "spectral" and numbers is None and not role.columns
        ):
            rule = "adam"
        elif number is not None and arguments.get("grafting") in ("adam", "sgd"):
            rule = arguments["grafting"]
        elif number is not None:
            old, new = (
                as_matrices("transfer", path, shape, number) for shape in (growth.like, large[path])
            )
            by = new.rows / max(old.rows, 1), new.columns / max(old.columns, 1)
            if all(by):
                growth = growth._replace(inputs=by[0], outputs=by[1])
                factor = how.factor(arguments, new.rows, new.columns)
                factor /= how.factor(arguments, old.rows, old.columns)
            power = how.power(arguments)
        said, entry = multipliers_of(role, growth, rule, head, power, factor)
        said = said._replace(epsilon=entry) if how.of_entries else said
        multipliers[path] = _LeafMultipliers(said, entry)
    return multipliers


def _transferred(
    tx: GradientTransformation,
    leaves: Mapping[str, _LeafMultipliers],
    numbers: _NumbersByPath | None,
    known: Mapping[str, _StepSize],
) -> GradientTransformation:
    """`tx`, in which a transformation whose hyperparameters differ is a partition of leaves."""
    if not _is_site(tx, known):
        new = {
            name: map_transformations(
                value, name, lambda child, at: _transferred(child, leaves, numbers, known)
            )
            for name, value in _arguments(tx).items()
        }
        return with_arguments(tx, new)
    if any(r.scope in (Scope.TREE, Scope.TUPLE) or r.of_tree for r in tx.rules or ()):
        raise ValueError(
            f"transfer: {tx!r:.80} reads several leaves together, and cannot have other "
            "hyperparameters for some of them"
        )
    how = known.get(_name(tx), _StepSize("sgd"))
    # Sorted, as JAX sorts the paths where it takes the declaration apart and puts it together.
    keys = {path: _multiples(tx, leaf, how) for path, leaf in sorted(leaves.items())}
    labels = {key: str(i) for i, key in enumerate(dict.fromkeys(keys.values()))}
    numbers_argument = {} if how.numbers is None or numbers is None else {how.numbers: numbers}
    groups = {label: _multiplied(tx, dict(key), numbers_argument) for key, label in labels.items()}
    if len(groups) < 2:
        return next(iter(groups.values()), tx)
    return partition(
        groups, functools.partial(_label, {path: labels[key] for path, key in keys.items()})
    )


def _label(by_path: Mapping[str, str], path: str, leaf: Any) -> str:
    """The label of a leaf's group."""
    if path not in by_path:
        raise ValueError(
            f"transfer: {path!r} is not among the parameters for which it was made: "
            f"{', '.join(by_path)}"
        )
    return by_path[path]


def _multiples(
    tx: GradientTransformation, leaf: _LeafMultipliers, how: _StepSize
) -> tuple[tuple[str, float], ...]:
    """The factors of the hyperparameters of an optimizer for one leaf, by their names."""
    arguments, said = _arguments(tx), leaf.said
    by = dict.fromkeys(_RATES, said.rate) | dict.fromkeys(_DECAYS, said.decay)
    for name, power in _EPSILONS.items():
        inside = name == "eps" and arguments.get("eps_in_sqrt", False)
        by[name] = said.epsilon ** (2 if inside else how.eps_power * power)
    by |= {name: leaf.entry**power for name, power in _ADAM_EPSILONS.items()}
    return tuple(
        (name, round(x, 12))
        for name, x in by.items()
        if arguments.get(name) is not None
        and arguments[name] is not False
        and _counts(arguments[name])
    )


def _counts(value: Any) -> bool:
    """Whether a factor changes a hyperparameter: it does not change the number 0."""
    return not isinstance(value, int | float) or value != 0


def _multiplied(
    tx: GradientTransformation, by: Mapping[str, float], others: Mapping[str, Any]
) -> GradientTransformation:
    arguments = _arguments(tx)

    def product(value: Any, factor: float) -> Any:
        if factor == 1:
            return value
        return multiply_schedules(value, factor) if callable(value) else value * factor

    return replace(tx, {**{k: product(arguments[k], x) for k, x in by.items()}, **others})


def transfer_multipliers(tx: GradientTransformation) -> dict[str, Multipliers]:
    """The factors by which :func:`transfer` multiplies the hyperparameters of each leaf.

    Args:
        tx: a transformation with a `transfer` somewhere in it.

    Raises:
        ValueError: there is none in it.

    >>> import gradtx, jax.numpy as jnp
    >>> tx = transfer(gradtx.sgd(0.1), {"b": jnp.zeros(2)}, {"b": jnp.zeros(8)})
    >>> transfer_multipliers(tx)["b"].rate
    4.0
    """
    multipliers = multipliers_in(tx)
    if multipliers:
        return multipliers
    raise ValueError(f"transfer_multipliers: there is no transfer in {tx!r:.200}")


def transfer_initial(tx: GradientTransformation, params: ParamsT, small: Params) -> ParamsT:
    """Initial values of the large model, of the size that :func:`transfer` counts on.

    Args:
        tx: a transformation with a `transfer` somewhere in it.
        params: initial values of the large model, at any scale.
        small: those of the small model, as it was tuned; a leaf whose layer is not in the small
            model takes the size of a leaf that is like it.

    Returns:
        The parameters, each leaf multiplied by one number, so that its root mean square is that of
        the small model's times the leaf's `initial`. Leaves of zeros stay.

    >>> import gradtx, jax.numpy as jnp
    >>> small, large = {"head": {"w": jnp.ones((2, 3))}}, {"head": {"w": jnp.ones((8, 3))}}
    >>> tx = transfer(gradtx.sgd(0.1), small, large)
    >>> transfer_initial(tx, large, small)["head"]["w"][0].tolist()
    [0.25, 0.25, 0.25]
    """
    multipliers = transfer_multipliers(tx)
    old = {path_string(path): x for path, x in leaves_with_path(small)[0]}
    of_kind = {pattern_of(path): x for path, x in old.items()}

    leaves, treedef = leaves_with_path(params)
    new: list[Any] = []
    for path, x in leaves:
        name = path_string(path)
        if x is None:
            new.append(None)
            continue
        like: Any = old.get(name, of_kind.get(pattern_of(name)))
        has, want = rms(x), rms(like) * multipliers[name].initial
        factor = jnp.where((has > 0) & (want > 0), want / jnp.where(has > 0, has, 1), 1)
        new.append((x * factor).astype(x.dtype))
    initial: ParamsT = treedef.unflatten(new)
    return initial
