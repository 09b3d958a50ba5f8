"""Looking up rows of a table, and differentiating with respect to these rows.

A look-up is a primitive of its own, so that it can be found in a traced loss: under `vmap`, inside
`jit`, `scan` and `checkpoint`. The loss is then run with zeros added to the result of each look-up,
and differentiated with respect to the zeros: their gradient is that of the rows, and the table's
gradient is never formed.
"""

import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
from jax.extend.core import Primitive, Var
from jax.extend.core.primitives import convert_element_type_p, jit_p, scan_p
from jax.interpreters import ad, batching, mlir

from gradtx.leaves.paths import path_string, with_paths
from gradtx.leaves.rows import (
    Rows,
    gather_rows,
    index_dtype,
    is_inside,
    refuse_outside,
    row_indices,
)
from gradtx.leaves.shardings import explicit_mesh
from gradtx.programs.contexts import differentiating
from gradtx.programs.interpreter import called, inner_jaxprs, interpret, is_in, scan_sizes
from gradtx.programs.tracing import vary, varying_axes
from gradtx.types import Array, PyTree


def take(table: Any, ids: Any) -> Array:
    """The rows of a table at some indices: ``table[ids]``, for use inside a loss.

    When :func:`value_and_grad`, :func:`gradtx.minimize` or :func:`gradtx.make_step` differentiates
    the loss, the gradient of a table that is only looked up is `Rows`, and its cost depends only on
    the rows looked up. The table may be looked up several times, under ``vmap``, and inside
    ``jit``, ``scan`` and ``checkpoint``. Elsewhere, as under ``jax.grad``, this is an ordinary
    differentiable function.

    Args:
        table: an array of shape ``(rows, ...)``, itself a parameter (or one cast to another type).
        ids: integers of any shape. One outside the table, or negative, gives a row of zeros and no
            gradient: see :data:`check_indices`.

    Returns:
        An array of shape ``(*ids.shape, *table.shape[1:])``.

    Raises:
        TypeError: the ids are not integers.
        ValueError: the table is a scalar, or has no rows, or an id needs 64 bits, which JAX
            truncates unless ``jax_enable_x64`` is set, or the table's rows or the ids are sharded
            over `Explicit` axes of a mesh.

    >>> take(jnp.array([[1.0], [2.0], [3.0]]), jnp.array([2, 0, 7])).tolist()
    [[3.0], [1.0], [0.0]]
    """
    table, ids = jnp.asarray(table), jnp.asarray(row_indices("take", "ids", ids))
    if table.ndim == 0:
        raise ValueError("take: a table has at least one dimension, and this is a scalar")
    if ids.size and not table.shape[0]:
        raise ValueError(f"take: the table, of the shape {table.shape}, has no rows")
    mesh = explicit_mesh((table, ids))
    if mesh is not None and any(
        [*jax.typeof(table).sharding.spec[:1], *jax.typeof(ids).sharding.spec]
    ):
        raise ValueError(
            "take: the table or the ids are divided over Explicit axes, on which JAX cannot tell "
            "where the rows go: make the mesh with axis_types=(jax.sharding.AxisType.Auto,)"
        )
    if differentiating.value:
        raise _LooksUp
    size = table.shape[0]
    inside = is_inside(ids, size)
    refuse_outside("take", inside, size)
    dtype = index_dtype(size)
    return take_p.bind(table, jnp.where(inside, ids.astype(dtype), jnp.asarray(size, dtype)))


class _LooksUp(Exception):
    """The exception that ends the tracing of a loss at its first look-up of rows."""


take_p = Primitive("take_rows")


def _gather(table: Array, ids: Array) -> Array:
    """A look-up by JAX's own operations, by which the primitive is differentiated and batched."""
    return table.at[ids].get(mode="fill", fill_value=0)


def _abstract(table: Any, ids: Any) -> Any:
    return jax.make_jaxpr(_gather)(table, ids).out_avals[0]


def _differentiated(primals: Any, tangents: Any) -> Any:
    (table, ids), (change, _) = primals, tangents
    rows = take_p.bind(table, ids)
    if isinstance(change, ad.Zero):
        return rows, ad.Zero(jax.typeof(rows).to_tangent_aval())
    return rows, _gather(change, ids)


def _batched(arguments: Any, dims: Any) -> Any:
    (table, ids), (of_table, of_ids) = arguments, dims
    if of_table is None:
        return take_p.bind(table, jnp.moveaxis(ids, of_ids, 0)), 0
    warnings.warn(
        "sparse.take: under a vmap over tables their gradients are dense; make one table of them, "
        "and add to the ids where each begins",
        stacklevel=2,
    )
    return jax.vmap(_gather, in_axes=(of_table, of_ids))(table, ids), 0


take_p.def_impl(jax.jit(gather_rows))
take_p.def_abstract_eval(_abstract)
ad.primitive_jvps[take_p] = _differentiated
batching.primitive_batchers[take_p] = _batched
mlir.register_lowering(take_p, mlir.lower_fun(gather_rows, multiple_results=False))


class _Call(NamedTuple):
    """A call of a jaxpr to which tables may be passed.

    program: what is called; passed: how many of its first inputs may be tables;
    lead: the leading dimensions that the call adds to what is looked up in it.
    """

    program: Any
    passed: int
    lead: tuple[int, ...] = ()

    @property
    def jaxpr(self) -> Any:
        return self.program.jaxpr


_CHECKPOINT = ("checkpoint", "remat2")  # the primitive has no public place in all versions of JAX


def _call(eqn: Any) -> _Call | None:
    if eqn.primitive is jit_p or eqn.primitive.name in _CHECKPOINT:
        return _Call(called(eqn), len(eqn.invars))
    if eqn.primitive is scan_p:
        return _Call(called(eqn), scan_sizes(eqn)[0], (eqn.params["length"],))
    return None


class _Parameter(NamedTuple):
    """An input of a traced loss: its position, path and type."""

    position: int
    path: str
    dtype: Any


Known = Mapping[Var, _Parameter | None]
"""Variables that are parameters, as they are or cast once; None for those computed from these."""


class _Lookup(NamedTuple):
    """A look-up in a traced loss.

    table: the parameter that it reads; rows: the type of its result; lead: the leading dimensions
    before that shape; chained: whether the ids depend on parameters.
    """

    table: _Parameter
    rows: Any
    lead: tuple[int, ...]
    chained: bool

    def zeros(self) -> Array:
        """An increment of zero for the rows, varying over the same axes of a mesh."""
        zeros = jnp.zeros((*self.lead, *self.rows.shape), self.table.dtype)
        return vary(zeros, varying_axes(self.rows))


def _held(eqn: Any, known: Known) -> dict[int, _Parameter | None]:
    """The inputs of an equation that are parameters, by their positions in the equation."""
    return {at: known[v] for at, v in enumerate(eqn.invars) if is_in(v, known)}


def _lookups(
    jaxpr: Any, known: dict[Var, _Parameter | None], other_uses: dict[int, str]
) -> list[_Lookup]:
    """The look-ups in `jaxpr`, in order.

    This is not a lattice of :mod:`gradtx.programs.dataflow`: it enters what `_run` rewrites, in the
    order in which `_run` does.

    Args:
        jaxpr: the program.
        known: what is known of its inputs; extended in place to its other variables.
        other_uses: collects other uses of parameters.
    """
    lookups = []

    def use(by: str, inputs: Iterable[_Parameter | None]) -> None:
        other_uses.update(
            {p.position: by for p in inputs if p is not None and p.position not in other_uses}
        )

    for eqn in jaxpr.eqns:
        parameters, call = _held(eqn, known), _call(eqn)
        if not parameters:
            continue
        results: dict[Var, _Parameter | None] = dict.fromkeys(eqn.outvars)
        if eqn.primitive is take_p:
            if parameters[0] is None:
                warnings.warn(
                    "sparse.take: a table that is computed from parameters makes their gradients "
                    "dense; look up the parameter itself, and compute with its rows",
                    stacklevel=2,
                )
            else:
                lookups.append(_Lookup(parameters[0], eqn.outvars[0].aval, (), 1 in parameters))
        elif _is_cast(eqn, parameters):
            results = dict.fromkeys(eqn.outvars, parameters[0])
        elif call is not None:
            use(eqn.primitive.name, [p for at, p in parameters.items() if at >= call.passed])
            inner = {
                call.jaxpr.invars[at]: p if at < call.passed else None
                for at, p in parameters.items()
            }
            if eqn.primitive is scan_p:
                inner = _with_carries(eqn, call.jaxpr, inner)
            lookups += [
                lookup._replace(lead=(*call.lead, *lookup.lead))
                for lookup in _lookups(call.jaxpr, inner, other_uses)
            ]
            pairs = zip(eqn.outvars, call.jaxpr.outvars, strict=True)
            results = {v: None for v, within in pairs if is_in(within, inner)}
        else:
            _refuse_within(eqn, parameters)
            use(eqn.primitive.name, parameters.values())
        known |= results
    use("return", [known[v] for v in jaxpr.outvars if is_in(v, known)])
    return lookups


def _with_carries(
    eqn: Any, body: Any, known: dict[Var, _Parameter | None]
) -> dict[Var, _Parameter | None]:
    """What is known of a scan's body, with the carries computed from parameters in some turn."""
    consts, carries = scan_sizes(eqn)
    begun, ended = body.invars[consts : consts + carries], body.outvars[:carries]
    while True:
        after = dict(known)
        _lookups(body, after, {})
        pairs = zip(begun, ended, strict=True)
        new = {v: None for v, end in pairs if is_in(end, after) and v not in known}
        if not new:
            return known
        known = {**known, **new}


def _is_cast(eqn: Any, parameters: Mapping[int, _Parameter | None]) -> bool:
    """Whether an equation casts a table, so that its rows may be cast instead."""
    table = parameters.get(0)
    if eqn.primitive is not convert_element_type_p or table is None:
        return False
    return bool(eqn.invars[0].aval.dtype == table.dtype)


def _refuse_within(eqn: Any, parameters: Mapping[int, _Parameter | None]) -> None:
    for jaxpr in inner_jaxprs(eqn):
        # The operands of a branch, a loop or a shard come last among the inputs.
        before = len(eqn.invars) - len(jaxpr.invars)
        inner: dict[Var, _Parameter | None] = {
            jaxpr.invars[at - before]: p for at, p in parameters.items() if at >= before
        }
        for lookup in _lookups(jaxpr, inner, {}):
            raise ValueError(
                f"sparse.take of {lookup.table.path!r} inside {eqn.primitive.name!r} cannot be "
                "differentiated by rows: look up before it, and pass it the rows"
            )


def _run(
    program: Any, args: Sequence[Any], tables: Known, increments: Iterator[Array]
) -> tuple[list[Any], list[Array]]:
    """The results of a program with an increment added to each look-up, and the ids looked up."""
    tables, ids = dict(tables), []

    def compute(eqn: Any, inputs: list[Any]) -> list[Any] | None:
        parameters, call = _held(eqn, tables), _call(eqn)
        if parameters and eqn.primitive is take_p:
            rows = take_p.bind(*inputs) + next(increments)
            ids.append(inputs[1])
            return [rows.astype(eqn.outvars[0].aval.dtype)]
        if _is_cast(eqn, parameters):
            # The rows will be cast, not the table.
            tables[eqn.outvars[0]] = parameters[0]
            return inputs
        if parameters and call is not None:
            inner = {call.jaxpr.invars[at]: table for at, table in parameters.items()}
            outputs, looked = _run_call(eqn, call, inputs, inner, increments)
            ids.extend(looked)
            return outputs
        return None

    return interpret(program, args, compute), ids


def _run_call(
    eqn: Any,
    call: _Call,
    inputs: Sequence[Any],
    tables: Known,
    increments: Iterator[Array],
) -> tuple[list[Any], list[Array]]:
    if eqn.primitive is jit_p:
        return _run(call.program, inputs, tables, increments)
    mine = list(itertools.islice(increments, len(_lookups(call.jaxpr, dict(tables), {}))))
    if eqn.primitive.name in _CHECKPOINT:

        @functools.partial(
            jax.checkpoint, prevent_cse=eqn.params["prevent_cse"], policy=eqn.params["policy"]
        )
        def again(inputs: Any, mine: Any) -> Any:
            return _run(call.program, inputs, tables, iter(mine))

        return again(inputs, mine)
    consts, init, xs = _split(inputs, *scan_sizes(eqn))

    def body(carry: Any, x: Any) -> Any:
        x, mine = x
        outputs, looked = _run(call.program, [*consts, *carry, *x], tables, iter(mine))
        return outputs[: len(init)], (outputs[len(init) :], looked)

    params = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    last, (ys, looked) = jax.lax.scan(body, init, (xs, mine), **params)
    return [*last, *ys], looked


def _split(inputs: Sequence[Any], *sizes: int) -> tuple[list[Any], ...]:
    rest = iter(inputs)
    return *(list(itertools.islice(rest, size)) for size in sizes), list(rest)


class _Traced:
    """A traced function of a tree of parameters, and its look-ups."""

    def __init__(self, function: Callable[[PyTree], Any], tree: PyTree) -> None:
        keyed, self.treedef = with_paths(tree)
        self.leaves = [leaf for _, leaf in keyed]
        with differentiating(False):
            self.program, out = jax.make_jaxpr(function, return_shape=True)(tree)
        self.inputs, self.out = self.program.jaxpr.invars, jax.tree.structure(out)
        parameters = [
            _Parameter(i, path_string(path), leaf.dtype) for i, (path, leaf) in enumerate(keyed)
        ]
        other_uses: dict[int, str] = {}
        known: dict[Var, _Parameter | None] = dict(zip(self.inputs, parameters, strict=True))
        lookups = _lookups(self.program.jaxpr, known, other_uses)
        for table in dict.fromkeys(lookup.table for lookup in lookups):
            if table.position in other_uses:
                warnings.warn(
                    f"the table at {table.path!r} is looked up and also used as a whole, by "
                    f"{other_uses[table.position]!r}: its gradient is dense",
                    stacklevel=2,
                )
        self.lookups = [lookup for lookup in lookups if lookup.table.position not in other_uses]
        self.tables = {lookup.table.position: lookup.table for lookup in self.lookups}

    def run(self, leaves: Sequence[Any], increments: Sequence[Array]) -> tuple[Any, list[Array]]:
        """The function's results with the increments added to its look-ups, and the ids."""
        tables = {self.inputs[i]: table for i, table in self.tables.items()}
        out, ids = _run(self.program, leaves, tables, iter(increments))
        return jax.tree.unflatten(self.out, out), ids

    def zeros(self) -> list[Array]:
        """An increment of zero for each look-up."""
        return [lookup.zeros() for lookup in self.lookups]

    def rows(self, ids: Sequence[Array], values: Sequence[Array]) -> dict[int, Rows]:
        """For each table, by position, its rows at the indices looked up."""
        rows = {}
        for i in self.tables:
            mine = [k for k, lookup in enumerate(self.lookups) if lookup.table.position == i]
            row = self.leaves[i].shape[1:]
            rows[i] = Rows(
                jnp.concatenate([ids[k].reshape(-1) for k in mine]),
                jnp.concatenate([values[k].reshape(-1, *row) for k in mine]),
                self.leaves[i].shape,
            )
        return rows


def looked_up(function: Callable[[PyTree], Any], tree: PyTree) -> PyTree:
    """The rows of each table that a function looks up; only their indices have a meaning.

    Returns:
        A tree like `tree`, whose leaves stay unless they are tables that are only looked up.

    Raises:
        ValueError: what is looked up depends on the parameters.
    """
    traced = _Traced(function, tree)
    for lookup in traced.lookups:
        if lookup.chained:
            raise ValueError(
                f"what is looked up in {lookup.table.path!r} depends on the parameters, of which "
                "rows may have to catch up first: use dense_rows, or the lazy update"
            )
    zeros = traced.zeros()
    rows = traced.rows(traced.run(traced.leaves, zeros)[1], zeros)
    leaves = [rows.get(i, leaf) for i, leaf in enumerate(traced.leaves)]
    return jax.tree.unflatten(traced.treedef, leaves)


def vjp(
    function: Callable[[PyTree], tuple[Any, Any]], tree: PyTree
) -> tuple[Any, Callable[[Any], PyTree], Any]:
    """``jax.vjp(function, tree, has_aux=True)``, with `Rows` for tables that are only looked up."""
    try:
        with differentiating(True):
            value, pull, aux = jax.vjp(function, tree, has_aux=True)
        return value, lambda seed: pull(seed)[0], aux
    except _LooksUp:
        pass
    traced = _Traced(function, tree)

    def run(dense: dict[int, Array], increments: list[Array]) -> tuple[Any, Any]:
        leaves = [dense.get(i, leaf) for i, leaf in enumerate(traced.leaves)]
        (value, aux), ids = traced.run(leaves, increments)
        return value, (aux, ids)

    dense = {i: leaf for i, leaf in enumerate(traced.leaves) if i not in traced.tables}
    value, pull, (aux, ids) = jax.vjp(run, dense, traced.zeros(), has_aux=True)

    def pull_rows(seed: Any) -> PyTree:
        cotangents, changes = pull(seed)
        cotangents |= traced.rows(ids, changes)
        return jax.tree.unflatten(traced.treedef, [cotangents[i] for i in sorted(cotangents)])

    return value, pull_rows, aux


def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """``jax.value_and_grad``, but the gradients of tables that are only looked up are `Rows`.

    Args:
        fun: a function that returns a scalar or, with `has_aux`, ``(scalar, aux)``; it looks tables
            up with :func:`take`.
        argnums: the position or positions of the arguments to differentiate with respect to.
        has_aux: whether `fun` returns something besides the scalar.

    Returns:
        A function of the same arguments that returns ``(value, gradients)`` or
        ``((value, aux), gradients)``. A table that is also used as a whole, such as an embedding
        that is also the output layer, has a dense gradient, with a warning.

    Raises:
        ValueError: the value is not a scalar; or a table is looked up where its rows cannot be
            followed: inside ``cond``, ``while_loop``, ``shard_map`` or a function with a custom
            derivative.

    >>> def loss(table, ids):
    ...     return jnp.sum(take(table, ids) ** 2)
    >>> value, grad = value_and_grad(loss)(jnp.ones((1000, 2)), jnp.array([3, 5, 3]))
    >>> float(value), grad
    (6.0, Rows(3 of (1000, 2), float32))
    """
    several = isinstance(argnums, Sequence)
    positions = tuple(argnums) if isinstance(argnums, Sequence) else (operator.index(argnums),)

    @functools.wraps(fun)
    def differentiated(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        chosen = tuple(args[i] for i in positions) if several else args[positions[0]]

        def function(chosen: Any) -> tuple[Any, Any]:
            arguments = list(args)
            for i, argument in zip(positions, chosen if several else (chosen,), strict=True):
                arguments[i] = argument
            out = fun(*arguments, **kwargs)
            value, aux = out if has_aux else (out, None)
            if jnp.shape(value) != ():
                raise ValueError(
                    f"value_and_grad: the loss must be a scalar, not of shape {jnp.shape(value)}"
                )
            return value, aux

        value, pull, aux = vjp(function, jax.tree.map(jnp.asarray, chosen))
        grads = pull(jnp.ones_like(value))
        return ((value, aux) if has_aux else value), grads

    return differentiated
