"""Whatever is given for a configuration or a state dict: an error that says so, and no code runs.

Input `i` is made with the seed `i` alone: `one(i)` has it again.
"""

import copy
import functools
import json
import random
import sys
import warnings
from typing import Any

import numpy as np

import gradtx
from benchmarks.reliability.outcome import Outcome, raised
from tests.catalogue import CATALOGUE
from tests.places import keys, walk
from tests.test_contracts import CUSTOM, params

# Modules that nothing here imports, and functions that must not be called.
BAIT = ["this.s", "antigravity.webbrowser", "os.system", "subprocess.run", "builtins.eval"]
FORBIDDEN = {
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
    "ctypes.dlopen",
}
TAGS = ["name", "arguments", "gradtx", "tuple", "dict", "array", "dtype", "key", "object", "named"]
SCALARS = [None, True, 0, -1, 2**31, 2**70, 0.5, -0.0, 1e308, float("nan"), float("inf"), ""]
TEXTS = ["adam", "chain", "float32", "nan", "é\0", "../x", "__import__('os').system('id')", *BAIT]


def value(rng: random.Random, depth: int = 3) -> Any:
    kind = rng.randrange(6 if depth else 3)
    if kind < 2:
        return rng.choice(SCALARS)
    if kind == 2:
        return rng.choice(TEXTS)
    inner = [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 3:
        return inner
    if kind == 4:
        return {rng.choice([*TAGS, *TEXTS]): x for x in inner}
    return {"name": rng.choice(["adam", *BAIT]), "arguments": {"args": inner}}


def damage(tree: Any, rng: random.Random) -> Any:
    """Up to three values, somewhere in it, replaced, left out, or moved from elsewhere."""
    for _ in range(rng.randint(1, 3)):
        places = [(node, key) for node in walk(tree) for key in keys(node)]
        if not places:
            return value(rng)
        node, key = rng.choice(places)
        if rng.random() < 0.3:
            del node[key]
        elif rng.random() < 0.3:
            other, at = rng.choice(places)
            node[key] = copy.deepcopy(other[at]) if at in keys(other) else value(rng)
        else:
            node[key] = value(rng)
    return tree


@functools.cache
def saved(name: str) -> tuple[Any, str, dict[str, Any]]:
    tx = CATALOGUE[name].make()
    flat = gradtx.state_dict(tx.init(params()), tx)
    return tx, json.dumps(gradtx.to_config(tx)), {k: np.asarray(x) for k, x in flat.items()}


def edited(flat: dict[str, Any], rng: random.Random) -> Any:
    """A state dict with arrays lost, renamed, cut, of another type, or replaced by what is not an
    array; some with another header."""
    flat = dict(flat)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(sorted(flat, key=str) or ["gradtx"])
        x = flat.pop(path, None)
        match rng.randrange(7):
            case 0:
                pass
            case 1:
                flat[rng.choice(["0/mu/w", f"{path}/x", path[:-1], "", 3])] = x
            case 2:
                flat[path] = value(rng)
            case 3:
                flat[path] = np.asarray(x).reshape(-1)[: rng.randrange(3)]
            case 4:
                dtype = rng.choice(["float64", "int8", "complex64", "bool", "U3", "O"])
                flat[path] = np.zeros(np.shape(x), dtype)
            case 5:
                flat[path] = rng.choice([x, flat, [x], {"a": x}])
            case _:
                flat[path] = x
                header = {"version": 3, "states": [], "config": None, "checksums": {}, "dtypes": {}}
                text = json.dumps(damage(header, rng))
                flat["gradtx"] = np.frombuffer(text.encode(), np.uint8)
    return flat if rng.random() < 0.97 else value(rng)


def one(i: int, names: list[str]) -> None:
    """Raises what the library raises for input `i`."""
    rng = random.Random(i)
    tx, config, flat = saved(rng.choice(names))
    if i % 2:
        config = damage(json.loads(config), rng) if rng.random() < 0.8 else value(rng)
        gradtx.from_config(config, custom_objects=CUSTOM)
    else:
        gradtx.load_state_dict(tx, params(), edited(flat, rng), strict=rng.random() < 0.7)


def inputs(quick: bool) -> Outcome:
    done, refused, ran = Outcome(), 0, []
    names = sorted(CATALOGUE)[:: 40 if quick else 1]
    for name in names:
        saved(name)
    watching = True

    def watch(event: str, arguments: Any) -> None:
        if watching and event in FORBIDDEN:
            ran.append(f"{event} {arguments}")

    sys.addaudithook(watch)
    before = set(sys.modules)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in range(300 if quick else 20_000):
            try:
                one(i, names)
                says = ""
            except (ValueError, TypeError) as error:
                refused += 1
                says = "" if str(error) else "an error without words"
            except BaseException as error:
                says = raised(error)
            done.check(not says, f"input {i}: {says}")
    watching = False
    done.failures += [f"ran: {each}" for each in ran]
    baits = {bait.partition(".")[0] for bait in BAIT} & (set(sys.modules) - before)
    done.failures += [f"imported: {bait}" for bait in sorted(baits)]
    done.notes = {"refused": refused}
    return done
