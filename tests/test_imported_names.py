"""Programs that no test runs import only names that exist. Their code is read, not run."""

import ast

import pytest

from bnpo.files import ROOT
from entry_points import Code, parse

PROGRAMS = [path for folder in ("benchmarks", "dev", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]


def names_in(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports at its top level."""
    names = set()
    for node in tree.body:
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef | ast.ClassDef):
                names.add(inner.name)
            elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                names.add(inner.id)
            elif isinstance(inner, ast.alias):
                names.add(inner.asname or inner.name)
    return names


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_imported_names_exist(program):
    code, missing = Code(), []
    for node in ast.walk(parse(program)):
        if not isinstance(node, ast.ImportFrom) or code.find(node.module) is None:
            continue
        known = names_in(parse(code.find(node.module)))
        for alias in node.names:
            if alias.name not in known and code.find(f"{node.module}.{alias.name}") is None:
                missing.append(f"{node.module}.{alias.name}")
    assert missing == []
