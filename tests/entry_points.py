"""Finds entry points that import torch, vLLM or DeepSpeed before they call `setup_environment()`.
Imports none of them.

An entry point is where a process begins: a file that is run, or a function that a new process is
started with. The code is only read, so every `if` and `try` counts as taken.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (".", "src", "scripts", "dev", "benchmarks", "tests", "tests/programs")
"""Folders on the path of imports, from `root`."""
HEAVY = {"deepspeed", "torch", "torchaudio", "torchvision", "transformers", "trl", "vllm"}
"""Packages that read the environment, or set up logging, when they are imported."""


class Code:
    """The Python files of the repository in folder `root`."""

    def __init__(self, root: Path = ROOT):
        self.root = root

    def forgetful(self) -> list[str]:
        """Return `file: entry point` for each entry point that imports a heavy package before
        the call.
        """
        return [
            f"{file.relative_to(self.root)}: {name}"
            for file in self.files()
            for name in self.forgotten_in(file)
        ]

    def files(self) -> list[Path]:
        """Return the files with code of this repository."""
        below = [file for folder in FOLDERS[1:-1] for file in (self.root / folder).rglob("*.py")]
        return sorted([*self.root.glob("*.py"), *below])

    def forgotten_in(self, file: Path) -> Iterator[str]:
        """Yield the entry points in `file` that import a heavy package before the call."""
        tree = parse(file)
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        guards = [
            node
            for node in tree.body
            if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
        ]
        is_script = not functions and file.parent.name in ("", "scripts", "dev", "benchmarks")
        of_guard = {name for guard in guards for name in called_names(guard)}
        of_processes = set(process_targets(tree))
        if (guards or is_script or of_processes) and not self.is_safe(tree.body):
            yield "its imports"
        calls_at_import = any(self.calls(node) for node in tree.body)
        calls_in_guard = any(self.calls(node) for guard in guards for node in guard.body)
        for name in sorted((of_guard | of_processes) & functions.keys()):
            body = functions[name].body
            if calls_at_import or (calls_in_guard and name not in of_processes):
                continue
            # Where the function does not import a heavy package itself, the functions that it calls
            # may.
            calls_first = self.is_safe(body) and any(self.calls(node) for node in body)
            if not calls_first and any(
                self.is_heavy(module) for module in imports_of(ast.walk(tree))
            ):
                yield f"{name}()"

    def is_safe(self, body: Iterable[ast.stmt]) -> bool:
        """Return whether no statement imports a heavy package before one that calls
        `setup_environment`.
        """
        for node in body:
            if self.calls(node):
                return True
            if any(self.is_heavy(module) for module in imports_of(outside_functions(node))):
                return False
        return True

    def calls(self, node: ast.stmt) -> bool:
        """Return whether a statement is the call, or imports a module of the repository that
        makes it.
        """
        if is_call(node):
            return True
        files = [self.find(module) for module in imports_of([node])]
        return any(is_call(inner) for file in files if file for inner in parse(file).body)

    def is_heavy(self, module: str) -> bool:
        """Return whether importing `module` imports a heavy package, directly or through this
        repository.
        """
        waiting, seen = [module], set()
        while waiting:
            name = waiting.pop()
            if name.split(".")[0] in HEAVY:
                return True
            for parent in parents_of(name):
                file = self.find(parent)
                if file and parent not in seen:
                    seen.add(parent)
                    waiting += imports_at_import(file)
        return False

    @cache  # noqa: B019 - one object for each test
    def find(self, module: str) -> Path | None:
        """Return the file of a module, or None if it is not of this repository."""
        for folder in FOLDERS:
            path = self.root / folder / module.replace(".", "/")
            for file in (path / "__init__.py", path.with_suffix(".py")):
                if file.exists():
                    return file
        return None


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def imports_at_import(file: Path) -> list[str]:
    """Return the modules that `file` imports while it is imported itself."""
    return [module for node in parse(file).body for module in imports_of(outside_functions(node))]


def parents_of(module: str) -> list[str]:
    """Return the modules that importing `a.b.c` imports: a, a.b and a.b.c."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def is_call(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node.value) == "setup_environment()"


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield `node` and what is in it, but not what is in functions, or for type checkers only."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from outside_functions(child)


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules that import statements among `nodes` name; for `from a import b`, a and
    a.b.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def called_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the functions that are called anywhere in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def process_targets(tree: ast.AST) -> Iterator[str]:
    """Yield the names of the functions that new processes start with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Process"):
            yield from (
                ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "target"
            )
