"""The files that a user's Python file imports from beside it, and their hashes, by which a resumed
run notices that one has changed.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from bnpo.files import file_hash


def source_hashes(function: str) -> str:
    """Return the hashes of the file in path/to/file.py:function and of those that it imports."""
    files = sorted(local_sources(Path(function.rpartition(":")[0])))
    return " ".join(map(file_hash, files))


def local_sources(file: Path) -> set[Path]:
    """Return a Python file, and the files beside it that it imports, also through each other. The
    standard library's ModuleFinder fails for folders without __init__.py.
    """
    found: set[Path] = set()
    unread = [file]
    while unread:
        path = unread.pop()
        if path in found:
            continue
        found.add(path)
        for folder, parts in _imported(path):
            # `import a.b` also runs a/__init__.py
            for end in range(1, len(parts) + 1):
                name = (folder or file.parent).joinpath(*parts[:end])
                sources = (name / "__init__.py", name.with_suffix(".py"))
                unread += [source for source in sources if source.is_file()]
    return found


def _imported(path: Path) -> Iterator[tuple[Path | None, list[str]]]:
    """Yield the names that a file imports, as the folder in which they are and their parts. The
    folder is None, unless the name begins with a dot. `from a import b` may mean the file a/b.py,
    or a name in a.py.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the import refuses it with a line of its own
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((None, alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level <= len(path.parents):
            folder = path.parents[node.level - 1] if node.level else None
            base = node.module.split(".") if node.module else []
            yield from ((folder, [*base, alias.name]) for alias in node.names)
