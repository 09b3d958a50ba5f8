"""Roles of leaves: matrix, convolution, embedding, head, norm or bias, and their axes' roles."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from gradtx.checks import check_patterns
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.leaves.paths import leaves_with_path, matches, path_string
from gradtx.types import PyTree

RoleKind: TypeAlias = Literal[
    "matrix",
    "convolution",
    "depthwise",
    "embedding",
    "head",
    "norm",
    "bias",
    "vector",
    "lora_a",
    "lora_b",
]
Convention: TypeAlias = Literal["auto", "in_out", "out_in"]


class Role(NamedTuple):
    """The kind of a leaf, and which of its axes are rows (inputs), columns (outputs) and batch."""

    kind: RoleKind
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()


class RolesOfLeaves(NamedTuple):
    """For what a transformation takes the leaves that it knows.

    of: ``params -> {path: role}``.
    """

    of: Callable[[Any], Mapping[str, Role]]


class ByRole(NamedTuple):
    r"""Roles of leaves by their paths and shapes; a function from parameters to dimension numbers.

    Pass it where a matrix optimizer takes dimension numbers, to have embeddings, heads and
    everything that is not a matrix trained by the other optimizer: ``muon(0.02,
    muon_weight_dimension_numbers=ByRole())``. :func:`describe` then prints the roles.

    Args:
        rules: pairs ``(where, role)`` that take precedence over the default: `where` is a path
            pattern or a predicate ``(path, leaf) -> bool``, `role` a `Role`, or a kind alone, with
            axes by the default.
        convention: ``"in_out"`` where arrays are ``(inputs, outputs)``, as in Flax, Haiku and
            Keras; ``"out_in"`` for ``(outputs, inputs)``, as in PyTorch and Equinox. ``"auto"``
            goes by the leaf's name: `kernel` and `w` are the first, `weight` is the second.
        stacked: pairs ``(pattern, n)``: the first `n` axes of the leaves that a path pattern names
            are those of stacked layers, as ``nn.scan`` makes them.
        matrices: the kinds that have dimension numbers. A factor of LoRA has them where a leaf of
            another name would, so not in a table or a head.

    The default goes by the last names of a path: a `bias`, `b` or `offset` is a bias; a `scale`, or
    a leaf in a module named for a norm, a norm; `embedding`, `wte`, `pos_embed` and the like an
    embedding; `head`, `lm_head`, `classifier` and the like a head. Otherwise an array of one
    dimension is a vector, one of two a matrix, and one of more, if its path says so, a convolution,
    depthwise if its filters have one input; leading axes are batch in modules named for experts or
    einsums; in Flax's attention modules, known by their `query`, `key`, `value` and `out`, heads
    belong to rows or columns. The factors of LoRA are known by the names that Flax's ``nnx.LoRA``,
    EasyDeL and Keras, Qwix and Tunix (``w_lora_a``), Levanter and PEFT (``lora_A``), and kohya-ss
    (``lora_down``) give them: the columns of `A` and the rows of `B` are the rank. Where a leaf is
    called neither `kernel` nor `weight`, a small letter is ``(inputs, rank)``, a capital
    ``(rank, inputs)``.

    Raises:
        ValueError: a rule matches nothing, two match one leaf, or an array of three or more
            dimensions, or of an unknown convention, fits none of these cases. The errors name the
            path.

    >>> import numpy as np
    >>> p = {"wte": {"embedding": np.ones((9, 4))}, "mlp": {"kernel": np.ones((4, 8))}}
    >>> for path, role in ByRole().roles(p).items():
    ...     print(path, role.kind, role.rows, role.columns)
    mlp/kernel matrix (0,) (1,)
    wte/embedding embedding () ()
    """

    rules: Sequence[tuple[Any, Any]] = ()
    convention: Convention = "auto"
    stacked: Sequence[tuple[str, int]] = ()
    matrices: Sequence[RoleKind] = ("matrix", "convolution")

    def roles(self, params: PyTree) -> dict[str, Role]:
        """The role of each leaf, by its path."""
        self.check(params)
        leaves = leaves_with_path(params)[0]
        named = {path_string(path): p for path, p in leaves}
        attention = _attention(named, self._layers)
        return {path: self._role(path, p, attention) for path, p in named.items() if p is not None}

    def check(self, params: PyTree) -> None:
        """Raise ValueError if a rule matches none of the parameters."""
        patterns = [where for where, _ in self.rules if not callable(where)]
        check_patterns("ByRole: rules", patterns, ", or a predicate (path, leaf) -> bool")
        check_patterns("ByRole: stacked", [where for where, _ in self.stacked])
        leaves = {path_string(path): p for path, p in leaves_with_path(params)[0]}
        for where, _ in (*self.rules, *self.stacked):
            # A leaf that is None is left out here, and a predicate cannot be asked about it.
            if not any(
                (p is None and callable(where)) or _chosen(where, path, p)
                for path, p in leaves.items()
            ):
                raise ValueError(
                    f"ByRole: the rule for {where!r} matches no leaf; the leaves are "
                    f"{', '.join(leaves)}"
                )

    def __call__(self, params: PyTree) -> PyTree:
        """The dimension numbers of each leaf, None for a leaf that is not a matrix.

        Rules may match nothing here: call :meth:`check` first, with all parameters.
        """
        leaves, treedef = leaves_with_path(params)
        named = [(path_string(path), p) for path, p in leaves]
        attention = _attention(dict(named), self._layers)
        roles = [None if p is None else self._role(path, p, attention) for path, p in named]
        return treedef.unflatten(
            [
                MuonDimensionNumbers(role.rows, role.columns)
                if role is not None and _without_lora(role.kind, path, p.ndim) in self.matrices
                else None
                for role, (path, p) in zip(roles, named, strict=True)
            ]
        )

    def factors(self, tree: PyTree) -> dict[str, RoleKind]:
        """The leaves that are factors of LoRA, by their paths, with the factor that each is."""
        kinds: dict[str, RoleKind] = {}
        for keys, leaf in leaves_with_path(tree)[0]:
            path = path_string(keys)
            roles = [role for where, role in self.rules if _chosen(where, path, leaf)]
            kind: Any = lora_kind(path)
            if roles:
                kind = roles[0] if isinstance(roles[0], str) else Role(*roles[0]).kind
            elif _BIASES.match(_names(path)[0]) or (
                leaf is not None and len(leaf.shape) - self._layers(path) < 2
            ):
                kind = None
            if kind in ("lora_a", "lora_b"):
                kinds[path] = kind
        return kinds

    def as_kind(self, path: str, leaf: Any, kind: RoleKind) -> Role:
        """The role of a leaf of a known kind: by a rule with a `Role`, or the default."""
        roles = [role for where, role in self.rules if _chosen(where, path, leaf)]
        if roles and isinstance(roles[0], Role | tuple):
            return Role(*roles[0])
        return _default(path, tuple(leaf.shape), self._layers(path), self.convention, kind, set())

    def _layers(self, path: str) -> int:
        """How many leading axes of a leaf are those of stacked layers."""
        return sum(n for where, n in self.stacked if matches(path, where))

    def _role(self, path: str, leaf: Any, attention: set[str]) -> Role:
        rules = [(where, role) for where, role in self.rules if _chosen(where, path, leaf)]
        if len(rules) > 1:
            raise ValueError(
                f"ByRole: {path!r} is in the rules for {' and '.join(repr(w) for w, _ in rules)}"
            )
        kind_or_role = rules[0][1] if rules else None
        if isinstance(kind_or_role, Role | tuple):
            return Role(*kind_or_role)
        if kind_or_role is not None and kind_or_role not in get_args(RoleKind):
            raise ValueError(
                f"ByRole: {kind_or_role!r} is none of the kinds {', '.join(get_args(RoleKind))}"
            )
        shape, layers = tuple(leaf.shape), self._layers(path)
        return _default(path, shape, layers, self.convention, kind_or_role, attention)


def _chosen(where: Any, path: str, leaf: Any) -> bool:
    return bool(where(path, leaf)) if callable(where) else matches(path, where)


_BIASES = re.compile(r"^(b|bias|biases|offset|beta|\w+_bias|bias_\w+)$")
_NORMS = re.compile(r"norm|^(ln|bn|rms)(_?\w*\d*)?$|^layer_?norm")
_TABLES = re.compile(
    r"embed|^(emb|wte|wpe|shared|cls|token|probe|codebook)$|(class|cls|mask|dist|register|latent)_tokens?$"
    r"|relative_(attention|position)_bias|^rel_pos|^pos(ition|itions|_enc|itional_encoding)?$"
)
_HEADS = re.compile(r"^(lm_head|head|heads|classifier|logits|unembed(ding)?|embed_out|score)$")
_HEADS_ALONE = (["output"], ["fc"], ["decoder"], ["proj_out"])
_EXPERTS = re.compile(r"expert|einsum|^moe")
_LARGEST_WINDOW = 32  # of a convolution that is not called one
_FLAX_ATTENTION = re.compile(r"^(MultiHeadDotProductAttention|MultiHeadAttention|SelfAttention)")
_PROJECTIONS = ("query", "key", "value", "out")


def _attention(leaves: Mapping[str, Any], layers: Callable[[str], int]) -> set[str]:
    """The modules that hold the four projections of an attention with heads as axes of their own.

    Stacked layers of projections that are matrices have as many axes, but other shapes.
    """

    def shape_of_layer(path: str) -> tuple[int, ...] | None:
        leaf = leaves[path]
        return None if leaf is None else tuple(leaf.shape)[layers(path) :]

    modules = set()
    for path in leaves:
        if not f"/{path}".endswith("/query/kernel"):
            continue
        module = path.removesuffix("query/kernel")
        if not all(f"{module}{name}/kernel" in leaves for name in _PROJECTIONS):
            continue
        query, out = shape_of_layer(path), shape_of_layer(f"{module}out/kernel")
        # A leaf that another optimizer trains has no shape here.
        if query is None or out is None or query[1:] == out[:-1]:
            modules.add(module)
    return modules


def _default(
    path: str,
    shape: tuple[int, ...],
    layers: int,
    convention: Convention,
    kind: RoleKind | None,
    attention: set[str],
) -> Role:
    """The role of a leaf by its path, its shape and, if it is known, its kind."""
    leaf, module, modules = _names(path)
    batch, axes = tuple(range(layers)), tuple(range(layers, len(shape)))
    implied = kind or _by_name(leaf, module, modules, len(axes))
    if kind is None and implied != "bias" and len(axes) > 1:
        implied = lora_kind(path) or implied
    if implied in ("lora_a", "lora_b"):
        return _factor(path, leaf, shape, implied, convention, layers)
    if implied not in (None, "matrix", "convolution", "depthwise", "head"):
        return Role(implied)
    if len(axes) < 2:
        return Role("vector")
    inputs_first = _inputs_first(leaf, convention)
    if inputs_first is None and not (implied == "head" and len(axes) == 2):
        raise ValueError(
            f"ByRole: the name of {path!r}, of shape {shape}, does not say what it is: give a "
            "rule with its kind or Role, or a convention if it is a weight, as all leaves of such "
            "names then are"
        )
    if len(axes) == 2:
        row, column = axes if inputs_first else axes[::-1]
        return Role(implied or "matrix", (row,), (column,), batch)
    if len(axes) == 3 and _has_heads(path, attention):
        split = 1 if module in ("query", "key", "value") else 2
        return Role(implied or "matrix", axes[:split], axes[split:], batch)
    among_experts = any(map(_EXPERTS.search, [*modules, leaf]))
    window = shape[layers : layers + 2] if inputs_first else shape[-2:]
    has_small_window = len(axes) == 4 and max(window) <= _LARGEST_WINDOW
    if _is_called_convolution(path) or (has_small_window and not among_experts):
        is_depthwise, rows, columns = _filters(shape, axes, bool(inputs_first))
        if is_depthwise and (kind or "depthwise") == "depthwise":
            return Role("depthwise", rows, columns, batch)
        return Role(implied or "convolution", rows, columns, batch)
    if among_experts:
        row, column = axes[-2:] if inputs_first else axes[-2:][::-1]
        return Role(implied or "matrix", (row,), (column,), (*batch, *axes[:-2]))
    raise ValueError(
        f"ByRole: {path!r}, of shape {shape}, may be stacked layers, experts, heads or a "
        "convolution: say which by `stacked`, or by a rule with a Role"
    )


def _has_heads(path: str, attention: set[str]) -> bool:
    """Whether a leaf is a projection in an attention module of Flax, with an axis of heads."""
    leaf, module, modules = _names(path)
    if any(map(_FLAX_ATTENTION.match, modules)):
        return True
    return module in _PROJECTIONS and path.removesuffix(f"{module}/{leaf}") in attention


def _is_called_convolution(path: str) -> bool:
    leaf, _, modules = _names(path)
    return any("conv" in name.lower() for name in (*modules, leaf)) or "patch" in path


def _filters(
    shape: tuple[int, ...], axes: tuple[int, ...], inputs_first: bool
) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """Whether filters have a single input, and the rows and columns of a convolution."""
    rows, columns = (axes[:-1], axes[-1:]) if inputs_first else (axes[1:], axes[:1])
    inputs = shape[axes[-2]] if inputs_first else shape[axes[1]]
    return inputs == 1 and shape[columns[0]] > 1, rows, columns


_LORA = re.compile(r"(?:^|(?<=[/._]))(lora_(?:[a-z]+_)?)([abAB]|down|up)(?=$|[/.])")
_PARTNERS = {"a": "b", "A": "B", "down": "up"} | {"b": "a", "B": "A", "up": "down"}
"""The names of the factors in flax/nnx/nn/lora.py of google/flax, layers/linears/_lora.py of
erfanzar/EasyDeL, qwix/_src/providers/lora.py of google/qwix, lora.py of stanford-crfm/levanter,
src/layers/core/dense.py of keras-team/keras and networks/lora.py of kohya-ss/sd-scripts."""


def lora_kind(path: str) -> Literal["lora_a", "lora_b"] | None:
    """The factor of LoRA, `A` or `B`, that a leaf is by its path; None for other leaves.

    >>> lora_kind("mlp/kernel_lora_a"), lora_kind("mlp/lora_B/weight"), lora_kind("mlp/kernel")
    ('lora_a', 'lora_b', None)
    """
    lora_names = _LORA.findall(path)
    if not lora_names:
        return None
    return "lora_a" if lora_names[-1][1] in ("a", "A", "down") else "lora_b"


def lora_partner(path: str) -> str:
    """The path of the factor of LoRA with which a factor is multiplied.

    >>> lora_partner("mlp/lora_B/weight")
    'mlp/lora_A/weight'
    """
    last = list(_LORA.finditer(path))[-1]
    return path[: last.start(2)] + _PARTNERS[last[2]] + path[last.end() :]


def _without_lora(kind: RoleKind, path: str, ndim: int) -> RoleKind:
    """The kind of a leaf; of a factor of LoRA, the kind of the leaf that it adapts."""
    if kind not in ("lora_a", "lora_b"):
        return kind
    return _by_name(*_names(path), ndim) or "matrix"


def _names(path: str) -> tuple[str, str, list[str]]:
    """The names in a path: the leaf's, its module's, and those of all modules around it."""
    names = [name for name in re.split(r"[/.]", path) if name not in ("", "~", "params")]
    leaf, modules = names[-1] if names else "", names[:-1]
    return leaf, next((m for m in reversed(modules) if not m.isdigit()), ""), modules


def _factor(
    path: str,
    leaf: str,
    shape: tuple[int, ...],
    kind: Literal["lora_a", "lora_b"],
    convention: Convention,
    layers: int,
) -> Role:
    """The role of a factor of LoRA, whose rank is the last of its axes, or the first of layers."""
    axes = tuple(range(layers, len(shape)))
    if len(axes) < 2:
        raise ValueError(
            f"ByRole: {path!r}, of shape {shape}, is a factor of LoRA, and has fewer than two axes"
            + (" beside those of stacked layers" if layers else "")
        )
    inputs_first = _inputs_first(leaf, convention)
    if inputs_first is None:
        lora_names = _LORA.findall(path)
        inputs_first = not (lora_names and lora_names[-1][1] in ("A", "B"))
    rank = axes[-1] if inputs_first == (kind == "lora_a") else axes[0]
    if kind == "lora_b" and len(axes) == 4 and "conv" in path.lower():
        rank = axes[-2] if inputs_first else axes[1]
    others = tuple(axis for axis in axes if axis != rank)
    rows, columns = (others, (rank,)) if kind == "lora_a" else ((rank,), others)
    return Role(kind, rows, columns, tuple(range(layers)))


def _by_name(leaf: str, module: str, modules: list[str], ndim: int) -> RoleKind | None:
    """The kind that the last names of a path imply, whatever the shape; None if they imply none."""
    name, last = leaf.lower(), module.lower()
    if _BIASES.match(name):
        return "bias"
    if name in ("scale", "gamma") or (_NORMS.search(last) and ndim < 2) or _NORMS.search(name):
        return "norm"
    if _TABLES.search(name) or (_TABLES.search(last) and name != "kernel" and ndim <= 2):
        return "embedding"
    if _HEADS.match(last) or modules in _HEADS_ALONE or modules[:1] == ["final_layer"]:
        return "head"
    return None


def _inputs_first(leaf: str, convention: Convention) -> bool | None:
    if convention != "auto":
        return convention == "in_out"
    if leaf in ("kernel", "w"):
        return True
    if leaf == "weight" or leaf.endswith("_weight"):
        return False
    return None
