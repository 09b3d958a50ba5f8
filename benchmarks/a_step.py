"""The files and functions of gradtx that one step enters, as docs/a_step.md describes them.

    python -m benchmarks.a_step

Printed: the files in the order in which a step enters them while JAX traces it, with the functions
called in each; how many functions and calls there are; the files of a step that is compiled
already; and those of an eager step. Calls include comprehensions, which are functions before
Python 3.12.
"""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import gradtx

ROOT = pathlib.Path(gradtx.__file__).parent


def loss(params: Any, x: Any) -> Any:
    return jnp.sum((params["w"] * x) ** 2)


def called(run: Callable[[], Any]) -> list[tuple[str, str, int]]:
    """The functions of gradtx that are called while `run` runs: file, name and line of each."""
    calls = []

    def note(frame: Any, event: str, _: Any) -> None:
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            code = frame.f_code
            where = path.relative_to(ROOT).as_posix()
            calls.append((where, code.co_qualname, code.co_firstlineno))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls


def a_step(size: int, **options: Any) -> Callable[[], Any]:
    tx = gradtx.chain(gradtx.clip_by_global_norm(1.0), gradtx.adamw(1e-3))
    params, x = {"w": jnp.ones(size)}, jnp.ones(size)
    step, state = gradtx.make_step(loss, tx, **options), tx.init(params)
    return lambda: step(params, state, x)


def an_eager_step() -> Callable[[], Any]:
    """Of packed leaves, with a schedule, and a pair made by hand that keeps a slot."""
    tx = gradtx.hyperball(gradtx.sgd(0.1), gradtx.linear_schedule(0.1, 0.0, 10))
    params = gradtx.pack({"w": jnp.ones((2, 2)), "v": jnp.ones((2, 2))})
    state = tx.init(params)
    return lambda: tx.update(params, state, params)


def main() -> None:
    a_step(3)()  # what is done once in a process is done
    calls = called(a_step(4))
    files = dict.fromkeys(file for file, *_ in calls)
    functions = dict.fromkeys(c for c in calls if not c[1].rpartition(".")[2].startswith("<"))
    for file in files:
        names = dict.fromkeys(name for where, name, _ in functions if where == file)
        print(f"{file}: {', '.join(names)}")
    print(f"traced: {len(files)} files, {len(functions)} functions, {len(calls)} calls")
    compiled = a_step(5, donate=False)
    compiled()
    print("compiled:", ", ".join(dict.fromkeys(file for file, *_ in called(compiled))))
    print("eager:", ", ".join(dict.fromkeys(file for file, *_ in called(an_eager_step()))))


if __name__ == "__main__":
    main()
