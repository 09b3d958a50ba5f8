"""Writes gradtx/_src/names.py: Optax's private modules, and what ``import *`` takes from each.

    python -m tests.golden.make_private_paths

Of the installed Optax. A name is left out if gradtx has nothing for it.
"""

import importlib
import inspect
import pathlib
import textwrap

import optax

import gradtx
from gradtx._src import OTHERS, of
from gradtx.names.namespace import is_module

TARGET = pathlib.Path(gradtx.__file__).parent / "_src" / "names.py"
HEAD = '''"""Optax {version}'s private modules, without ``optax.``, and what ``import *`` takes.

``python -m tests.golden.make_private_paths`` writes this file.
"""

MODULES: dict[str, str] = {{
'''
# Modules of older versions, and where their names are now.
OLDER = {"_src.clipping": "transforms._clipping"}


def private_modules():
    """The names of all, tests left out; those whose package gradtx has not either."""
    root = pathlib.Path(optax.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        inside = parts[0] == "_src" or parts[-1].startswith("_")
        if not inside or parts[-1].endswith(("_test", "__init__", "test_utils")):
            continue
        if len(parts) == 2 and is_module(f"gradtx.{parts[0]}"):
            yield ".".join(parts)


def public_names(module, modules):
    """Those that gradtx has too, and of modules those that `import *` needs."""
    ours = of(f"gradtx.{module}")

    def is_here(name, value):
        if inspect.ismodule(value):
            return f"_src.{name}" in modules or name in OTHERS or is_module(f"gradtx.{name}")
        try:
            return ours(name) is not None
        except (AttributeError, ImportError):
            return False

    theirs = vars(importlib.import_module(f"optax.{OLDER.get(module, module)}"))
    return sorted(n for n, value in theirs.items() if n[0] != "_" and is_here(n, value))


def main():
    modules = sorted([*private_modules(), *OLDER])
    text = HEAD.format(version=optax.__version__)
    for module in modules:
        names = " ".join(public_names(module, modules))
        lines = textwrap.wrap(names, 88) or [""]
        if len(lines) == 1 and len(module) + len(names) < 88:
            text += f'    "{module}": "{names}",\n'
            continue
        rest = "".join(f'        "{line} "\n' for line in lines[:-1])
        text += f'    "{module}": (\n{rest}        "{lines[-1]}"\n    ),\n'
    TARGET.write_text(text + "}\n")


if __name__ == "__main__":
    main()
