"""Public names: each package loads those that its stub imports when they are first asked for."""

import functools
import importlib
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where a public name of gradtx's has moved to; it can be had in its old place, with a warning,
# through one release.
MOVED = {
    **{
        f"gradtx.{name}": f"gradtx.checks.{name}"
        for name in (
            "Count",
            "Decay",
            "Fraction",
            "Limit",
            "NonNegative",
            "Number",
            "Positive",
            "PositiveCount",
        )
    },
    # Optax's own older names.
    "gradtx.MaybeUpdateState": "gradtx.ConditionallyTransformState",
    "gradtx.NO_PARAMS_MSG": "gradtx._src.helpers.NO_PARAMS_MSG",
    "gradtx.additive_weight_decay": "gradtx.add_decayed_weights",
    "gradtx.maybe_update": "gradtx.conditionally_transform",
    "gradtx.Idle": "gradtx.engine.zero_gradients.ZeroGradient",
    "gradtx.Message": "gradtx.sharding.planning.Message",
    "gradtx.Step": "gradtx.numerics.Step",
    "gradtx.norm": "gradtx.transforms.trust.norm",
    "gradtx.rms": "gradtx.transforms.trust.rms",
}


@functools.cache
def _stub(package: str) -> str:
    """The text of a package's stub; empty if it has none."""
    root = sys.modules["gradtx"]
    stub = str(Path(str(root.__file__)).parent.joinpath(*package.split(".")[1:], "__init__.pyi"))
    try:
        return root.__spec__.loader.get_data(stub).decode()  # type: ignore[union-attr]  # in a zip too
    except OSError:
        if package != "gradtx":
            return ""
        raise ImportError(
            f"{stub} is missing, and it lists the public names of gradtx: "
            "whatever packed gradtx must take its .pyi files along"
        ) from None


@functools.cache
def face(package: str) -> dict[str, str]:
    """The module of each name of a package's ``__all__``: those that its stub imports by name."""
    # A parser would take most of the time of `import gradtx`.
    imports = re.findall(r"^from (\S+) import (\([^)]*\)|.*)", _stub(package), re.MULTILINE)
    return {name: module for module, names in imports for name in re.findall(r" as (\w+)", names)}


@functools.cache
def rooms(package: str) -> list[str]:
    """The packages whose names are had from this one too: those that its stub imports by star."""
    return re.findall(r"^from (\S+) import \*", _stub(package), re.MULTILINE)


@functools.cache
def homes(package: str) -> dict[str, str]:
    """The module of each public name of a package: those of its face, then those of its rooms."""
    public = dict(face(package))
    for room in rooms(package):
        public |= homes(room)
    return public


def lazy(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package: importing it costs little.

    Args:
        package: its name. Its stub says which names it has, and in which modules they are; its
            own modules can be had as attributes too.
    """
    # Rarely needed modules are imported where they are used, and the stubs of rooms are read when a
    # name is not in the face: what is read here is what `import gradtx` costs.
    public = face(package)
    path = getattr(sys.modules[package], "__path__", None)

    def get(name: str) -> Any:
        home = public.get(name) or homes(package).get(name)
        if home is not None and home != package:
            value = getattr(importlib.import_module(home), name)
        elif path is not None and name[:2] != "__" and is_module(f"{package}.{name}"):
            value = importlib.import_module(f"{package}.{name}")
        elif (new := MOVED.get(f"{package}.{name}")) is not None:
            return moved(f"{package}.{name}", new)
        else:
            raise AttributeError(missing(package, name))
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        import pkgutil

        # The stub says which modules people use by name, if there is one.
        modules = () if public else [m.name for m in pkgutil.iter_modules(path or ())]
        special_names = (name for name in vars(sys.modules[package]) if name.startswith("__"))
        return sorted({*public, *modules, *special_names})

    return list(public), get, names


def is_module(name: str) -> bool:
    """Whether there is a module of this name, in a package that is loaded."""
    from importlib.util import find_spec

    return find_spec(name) is not None


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called gradtx: the last one that is not its own."""
    depth = 1
    # A transformation is built in a cached property, which functools calls.
    while sys._getframe(depth).f_globals.get("__name__", "").startswith(("gradtx.", "functools")):
        depth += 1
    warnings.warn(message, category, stacklevel=depth + 1)


def moved(old: str, new: str) -> Any:
    """The object that has moved from `old` to `new`, with a warning to whoever asks for it."""
    warnings.warn(f"{old} is {new} now, and will be nowhere else", DeprecationWarning, 3)
    module, _, name = new.rpartition(".")
    return getattr(importlib.import_module(module), name)


OTHER_NAMES = {
    "clipgradnorm": ["clip_by_global_norm"],
    "clipgradvalue": ["clip"],
    "onecycle": ["cosine_onecycle_schedule"],
    "onecyclelr": ["cosine_onecycle_schedule"],
    "wsd": ["wsd_schedule"],
    "trapezoidalschedule": ["wsd_schedule"],
    "warmupstabledecay": ["wsd_schedule"],
    "warmupstabledecayschedule": ["wsd_schedule"],
    "independentweightdecay": ["decay_first"],
    "decoupledweightdecay": ["decay_first"],
    "fullydecoupledweightdecay": ["decay_first"],
    "adamc": ["decay_first"],
    "correcteddecay": ["decay_first"],
    "correctedweightdecay": ["decay_first"],
    "warmupcosine": ["warmup_cosine_decay_schedule"],
    "cosineannealinglr": ["cosine_decay_schedule"],
    "reducelronplateau": ["reduce_on_plateau"],
    "gradscaler": ["dynamic_loss_scale"],
    "freezelayers": ["freeze"],
    "gradientaccumulation": ["accumulate"],
    "gradaccumulation": ["accumulate"],
    "gradientclipping": ["clip_by_global_norm"],
    "weightdecay": ["add_decayed_weights"],
    "l2": ["add_decayed_weights"],
    "momentum": ["trace"],
    "nesterov": ["trace"],
    "swa": ["swa_params"],
    "averagedmodel": ["ema_params"],
    "layerwiselrdecay": ["layerwise_rate_decay"],
    "steplr": ["piecewise_constant_schedule"],
    "multisteplr": ["piecewise_constant_schedule"],
    "exponentiallr": ["exponential_decay"],
    "exponentialmovingaverage": ["ema_params"],
}
"""Names in other libraries, in small letters alone: for errors."""


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


@functools.lru_cache(maxsize=256)  # pytest asks a thousand times for a few names
def missing(package: str, name: str) -> str:
    """The error for someone who asks for a name that does not exist."""
    text = f"module {package!r} has no attribute {name!r}"
    if name.startswith("__"):  # Python and its tools ask for many
        return text
    import difflib

    from gradtx.names.absences import LEFT_OUT

    reason = LEFT_OUT.get(f"{package}.{name}".removeprefix("gradtx."))
    if reason is not None:
        return f"{text}: {reason}"
    everything = homes("gradtx")
    if package != "gradtx" and name in everything:
        return f"{text}: use gradtx.{name}"
    public = homes(package) or everything
    close = [meant for meant in OTHER_NAMES.get(_letters(name), ()) if meant in public]
    # A class's name of another library is the same word with other capitals.
    close = close or [each for each in public if _letters(each) == _letters(name)]
    close = close or difflib.get_close_matches(name, public, 1, 0.7)
    return f"{text}: did you mean {close[0]!r}?" if close else text
