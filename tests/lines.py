"""Lines of code proper, by folder: no blank lines, comments or docstrings.

python -m tests.lines [FOLDER]

FOLDER is another checkout of the repository, to compare with.
"""

import ast
import collections
import io
import pathlib
import sys
import tokenize

ROOT = pathlib.Path(__file__).parents[1]
OWNERS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def lines_of_code(source):
    """The numbers of the lines on which something but a comment or a docstring stands."""
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, OWNERS) and ast.get_docstring(node, clean=False) is not None:
            found -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return found


def by_folder(root):
    """How many there are in each folder of the package; stubs are left out."""
    package, count = pathlib.Path(root) / "gradtx", collections.Counter()
    for path in sorted(package.rglob("*.py")):
        folder = path.relative_to(package).parts[0] if path.parent != package else "."
        count[folder] += len(lines_of_code(path.read_text()))
    return count


if __name__ == "__main__":
    folders = by_folder(sys.argv[1] if len(sys.argv) > 1 else ROOT)
    for name, number in sorted(folders.items()):
        print(f"{name:13}{number:6,}")
    print(f"{'all':13}{folders.total():6,}")
