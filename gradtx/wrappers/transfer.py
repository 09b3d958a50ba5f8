"""Hyperparameters of a small model on a large one: each leaf gets its own multiples of them."""

import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, get_args

import jax.numpy as jnp

from gradtx.checks import check_choice
from gradtx.composition.groups import partition
from gradtx.composition.matrices import MuonDimensionNumbers, dimension_numbers
from gradtx.composition.multipliers import (
    Growth,
    HeadForm,
    Multipliers,
    MultipliersByPath,
    Shapes,
    abstract,
    growths,
    multipliers_of,
    pattern_of,
    shapes_of,
)
from gradtx.composition.roles import ByRole, Role
from gradtx.core.pair import (
    GradientTransformation,
    transformation,
    with_extra_args_support,
)
from gradtx.core.traits import Links, Scope
from gradtx.declarations.declaration import Kept
from gradtx.inspection.description import multipliers_in
from gradtx.inspection.hyperparams import map_transformations, replace, with_arguments
from gradtx.leaves.matrix_layout import MatrixDimensions, as_matrices
from gradtx.leaves.paths import leaves_with_path, path_string
from gradtx.numerics import rms
from gradtx.schedules.products import multiply_schedules
from gradtx.types import Params, ParamsT, PyTree
from gradtx.types.update_size import DeclaredSize, SizeRule, UpdateSize

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
        rule: how the size of the updates depends on the gradient, for an optimizer not named below,
            which does not say it (by `update_size` of :func:`transformation`):
            ``"adam"`` where entries have one size whatever the gradient's is, ``"sgd"`` where
            updates are in proportion to it, ``"spectral"`` where the singular values of matrices
            have one size.
        head: what keeps the outputs small at the start: the head's initial values, or a factor in
            the model, which tied embeddings need.

    The rule is what the optimizer says: ``"adam"`` for adabelief, adagrad, adam, adamax, adamaxw,
    adamw, adan, ademamix, adopt, amsgrad, laprop, lion, nadam, nadamw, rmsprop, sign_sgd, signum,
    tiger and yogi; ``"sgd"`` for sgd, and where no transformation says another; ``"spectral"`` for
    the matrices of muon, muon2, newton_muon, normuon, adamuon, soap and shampoo, whose other leaves
    follow ``"adam"``. Shampoo with grafting
    follows ``"adam"`` or ``"sgd"``, whose steps set its length; without grafting its factor is
    :math:`(m_{out} / m_{in})^{1 - 2/p}`, with its root `p`. The epsilon of muon2 grows as Adam's
    does; that of newton_muon, which is added to the moments of inputs, stays.

    State: that of `inner`, in which each optimizer is a `PartitionState` of the leaves with equal
    multipliers if there are several such groups.

    Raises:
        ValueError: a leaf has no counterpart in the small model, or its role, the axis along which
            it grew or the rule is not clear. The error names the path, and what to pass. Or a
            wrapper has a rate or a decay of its own beside hyperparameters of what is inside.
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
    optimizer, size = _optimizer(inner, rule)
    if _rates(inner) != 1:
        raise ValueError(
            f"transfer: {inner!r:.200} has {_rates(inner)} learning rates in turn, and needs one: "
            "an argument `learning_rate`, such as that of scale_by_learning_rate"
        )
    roles = roles or _roles_in(inner) or ByRole()
    grown = growths("transfer", small, params, roles)
    numbers = _numbers(optimizer, size, params)
    leaves = _leaves(grown, params, optimizer, size, numbers, head)
    transferred = _transferred(inner, leaves, numbers, rule)
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


def _names(every: Iterable[GradientTransformation]) -> str:
    return ", ".join(dict.fromkeys(tx.declaration.name for tx in every if tx.declaration))


def _size(tx: GradientTransformation, rule: SizeRule | None) -> DeclaredSize | None:
    """The size of updates that the builder declares, or `rule` in its place; None if unknown."""
    assert tx.declaration is not None
    size = tx.declaration.builder.update_size
    if size == "proportional" or rule is None:
        return size
    # What is around others leaves their arguments to them.
    return "proportional" if tx.children else UpdateSize(rule)


def _optimizer(
    inner: GradientTransformation, rule: SizeRule | None
) -> tuple[GradientTransformation, UpdateSize]:
    """The optimizer within `inner`, and the size of its updates."""
    every = [(tx, _size(tx, rule)) for tx in _declared(inner)]
    unknown = [tx for tx, size in every if size is None]
    sizes = [(tx, size) for tx, size in every if isinstance(size, UpdateSize)]
    inside = [child for tx, _ in sizes for _, child in tx.children]
    problem = None
    if unknown:
        problem = f"it is not known on what the updates of {_names(unknown)} depend"
    elif inside or len({size for _, size in sizes}) > 1:
        optimizers = _names([*(tx for tx, _ in sizes), *inside])
        problem = f"there is not one optimizer in it but {optimizers}"
    if problem is not None:
        raise ValueError(
            f"transfer: {problem}: pass rule, one of {get_args(SizeRule)}, or put transfer around "
            "the optimizer alone"
        )
    return sizes[0] if sizes else (inner, UpdateSize(rule or "sgd"))


def _is_site(tx: GradientTransformation, rule: SizeRule | None) -> bool:
    """Whether a transformation has hyperparameters of its own that differ from leaf to leaf."""
    return bool(_factors(tx)) or isinstance(_size(tx, rule), UpdateSize)


def _factors(tx: GradientTransformation) -> list[str]:
    """The names of its rates and decays that are multiplied."""
    return [name for name in _multiplied_names(tx) if name in (*_RATES, *_DECAYS)]


def _rates(tx: GradientTransformation) -> int:
    """The number of learning rates that multiply an update, one after another."""
    counts = [_rates(child) for _, child in tx.children]
    in_turn = len(counts) > 1 and tx.facet(Links) is not None
    return (_RATES[0] in _arguments(tx)) + (sum(counts) if in_turn else max(counts, default=0))


def _roles_in(inner: GradientTransformation) -> ByRole | None:
    arguments = [x for tx in _declared(inner) for x in _arguments(tx).values()]
    return next((x for x in arguments if isinstance(x, ByRole)), None)


def _numbers(
    optimizer: GradientTransformation, size: UpdateSize, shapes: Shapes
) -> _NumbersByPath | None:
    """The dimension numbers of each leaf, None for an optimizer that does not ask for them."""
    if size.numbers is None:
        return None
    if not shapes:
        return _NumbersByPath({})
    tree = abstract(shapes)
    dimensions = MatrixDimensions(
        dimension_numbers(_arguments(optimizer)[size.numbers]), MuonDimensionNumbers
    )
    paths = [path_string(path) for path, _ in leaves_with_path(tree)[0]]
    return _NumbersByPath(dict(zip(paths, dimensions.of("transfer", tree), strict=True)))


def _leaves(
    grown: Mapping[str, tuple[Role, Growth]],
    large: Shapes,
    optimizer: GradientTransformation,
    size: UpdateSize,
    numbers: _NumbersByPath | None,
    head: HeadForm,
) -> dict[str, _LeafMultipliers]:
    """The multipliers of each leaf."""
    arguments = _arguments(optimizer)
    grafted: Any = None if size.grafting is None else arguments[size.grafting]
    multipliers = {}
    for path, (role, growth) in grown.items():
        rule, factor, power = size.rule, 1.0, 0.5
        number = None if numbers is None else numbers.numbers[path]
        if (numbers is not None and number is None) or (
            rule == "spectral" and numbers is None and not role.columns
        ):
            rule = "adam"
        elif number is not None and grafted in get_args(SizeRule):
            rule = grafted
        elif number is not None:
            old, new = (
                as_matrices("transfer", path, shape, number) for shape in (growth.like, large[path])
            )
            by = new.rows / max(old.rows, 1), new.columns / max(old.columns, 1)
            if all(by):
                growth = growth._replace(inputs=by[0], outputs=by[1])
                factor = size.factor(arguments, new.rows, new.columns)
                factor /= size.factor(arguments, old.rows, old.columns)
            power = size.power(arguments)
        said, entry = multipliers_of(role, growth, rule, head, power, factor)
        said = said._replace(epsilon=entry) if size.of_entries else said
        multipliers[path] = _LeafMultipliers(said, entry)
    return multipliers


def _transferred(
    tx: GradientTransformation,
    leaves: Mapping[str, _LeafMultipliers],
    numbers: _NumbersByPath | None,
    rule: SizeRule | None,
) -> GradientTransformation:
    """`tx`, in which a transformation whose hyperparameters differ is a partition of leaves."""
    if not _is_site(tx, rule):
        new = {
            name: map_transformations(
                value, name, lambda child, at: _transferred(child, leaves, numbers, rule)
            )
            for name, value in _arguments(tx).items()
        }
        return with_arguments(tx, new)
    if any(r.scope in (Scope.TREE, Scope.TUPLE) or r.of_tree for r in tx.rules or ()):
        raise ValueError(
            f"transfer: {tx!r:.80} reads several leaves together, and cannot have other "
            "hyperparameters for some of them"
        )
    _check_inside(tx)
    declared = _size(tx, rule)
    size = declared if isinstance(declared, UpdateSize) else UpdateSize("sgd")
    # Sorted, as JAX sorts the paths where it takes the declaration apart and puts it together.
    keys = {path: _multiples(tx, leaf, size.eps_power) for path, leaf in sorted(leaves.items())}
    labels = {key: str(i) for i, key in enumerate(dict.fromkeys(keys.values()))}
    numbers_argument = {} if size.numbers is None or numbers is None else {size.numbers: numbers}
    groups = {label: _multiplied(tx, dict(key), numbers_argument) for key, label in labels.items()}
    if len(groups) < 2:
        return next(iter(groups.values()), tx)
    return partition(
        groups, functools.partial(_label, {path: labels[key] for path, key in keys.items()})
    )


def _check_inside(tx: GradientTransformation) -> None:
    """Raise ValueError if hyperparameters inside of what is copied for each group would stay."""
    for child in (child for _, each in tx.children for child in _declared(each)):
        if names := _multiplied_names(child):
            raise ValueError(
                f"transfer: {_names([tx])} has {' and '.join(_factors(tx))}, which would be "
                f"multiplied, and {_names([child])} inside of it has {' and '.join(names)}, which "
                "would not: put transfer around what is inside, or make a chain of both"
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
    tx: GradientTransformation, leaf: _LeafMultipliers, eps_power: int
) -> tuple[tuple[str, float], ...]:
    """The factors of the hyperparameters of an optimizer for one leaf, by their names."""
    arguments, said = _arguments(tx), leaf.said
    by = dict.fromkeys(_RATES, said.rate) | dict.fromkeys(_DECAYS, said.decay)
    for name, power in _EPSILONS.items():
        inside = name == "eps" and arguments.get("eps_in_sqrt", False)
        by[name] = said.epsilon ** (2 if inside else eps_power * power)
    by |= {name: leaf.entry**power for name, power in _ADAM_EPSILONS.items()}
    return tuple((name, round(by[name], 12)) for name in _multiplied_names(tx))


def _multiplied_names(tx: GradientTransformation) -> list[str]:
    """The names of the hyperparameters that are multiplied."""
    arguments = _arguments(tx)
    names = (*_RATES, *_DECAYS, *_EPSILONS, *_ADAM_EPSILONS)
    values = ((name, arguments.get(name)) for name in names)
    return [name for name, x in values if x is not None and x is not False and _counts(x)]


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
