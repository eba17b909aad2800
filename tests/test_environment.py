"""The environment that torch, DeepSpeed and vLLM find: every entry point sets it up before they
are imported.
"""

import ast
import os
import sys
import warnings
from importlib import metadata

import pytest

from bnpo import environment
from bnpo.environment import DEFAULTS, LAUNCHER, setup_environment
from bnpo.files import ROOT
from entry_points import Code, parse


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """Each test starts without the variables, and leaves this process as it was."""
    before = dict(os.environ)
    for name in (*DEFAULTS, *LAUNCHER, "LOCAL_SIZE", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    with warnings.catch_warnings():
        yield
    os.environ.clear()
    os.environ.update(before)


def test_every_entry_point_calls_setup_environment_before_it_imports_torch():
    assert Code().forgetful() == []


MAIN = "\nif __name__ == '__main__':\n    main()"


@pytest.mark.parametrize(
    ("file", "content", "forgotten"),
    [
        ("train.py", "import torch\nsetup_environment()" + MAIN, ["its imports"]),
        ("train.py", "setup_environment()\nimport torch" + MAIN, []),
        ("train.py", "import bnpo.core\ndef main(): pass" + MAIN, ["its imports", "main()"]),
        ("train.py", "def main():\n    import bnpo.core" + MAIN, ["main()"]),
        ("train.py", "def main():\n    setup_environment()\n    import bnpo.core" + MAIN, []),
        ("train.py", "def main():\n    import bnpo.light" + MAIN, []),
        ("src/bnpo/fleet.py", "def serve():\n    import vllm\nProcess(target=serve)", ["serve()"]),
        (
            "src/bnpo/fleet.py",
            "def serve():\n    setup_environment()\n    import vllm\nProcess(target=serve)",
            [],
        ),
        ("dev/check.py", "from bnpo.core import x\nprint(x)", ["its imports"]),
        ("src/bnpo/library.py", "import torch", []),
    ],
)
def test_entry_points_that_forget_are_found(tmp_path, file, content, forgotten):
    files = {
        "src/bnpo/__init__.py": "",
        "src/bnpo/core.py": "from bnpo.light import y\nimport deepspeed",
        "src/bnpo/light.py": "def y():\n    import torch",
        file: content,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert Code(tmp_path).forgetful() == [f"{file}: {entry_point}" for entry_point in forgotten]


RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_PORT": "29500"}
RANK |= {"MASTER_ADDR": "127.0.0.1", "LOCAL_SIZE": "4"}


@pytest.mark.parametrize(
    "changes",
    [
        {"RANK": "x"},
        {"LOCAL_RANK": "-1"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "1"},  # of which RANK 1 is none
        {"WORLD_SIZE": "0", "RANK": "0", "LOCAL_RANK": "0"},
        {"MASTER_PORT": "tcp"},
        {"MASTER_ADDR": ""},
        {"LOCAL_SIZE": "4(x2)"},
        {"LOCAL_SIZE": "0"},
    ],
)
def test_variables_that_no_launcher_sets_make_no_rank(monkeypatch, changes):
    for name, value in (RANK | changes).items():
        monkeypatch.setenv(name, value)
    setup_environment()
    assert RANK.keys().isdisjoint(os.environ)


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({}, None),  # without a launcher: a program that starts one must not pass its own share on
        ({"LOCAL_SIZE": "4"}, None),
        (RANK, "1"),
        (RANK | {"LOCAL_SIZE": "2"}, "3"),
        (RANK | {"LOCAL_SIZE": "2", "OMP_NUM_THREADS": "5"}, "5"),
    ],
)
def test_ranks_share_the_cores_of_a_machine_and_values_of_the_user_are_kept(
    monkeypatch, given, threads
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))
    for name, value in (given | {"VLLM_LOGGING_LEVEL": "INFO"}).items():
        monkeypatch.setenv(name, value)
    setup_environment()
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert {name: os.environ[name] for name in DEFAULTS} == DEFAULTS | {
        "VLLM_LOGGING_LEVEL": "INFO"
    }


def test_programs_beside_the_interpreter_come_first_once():
    for _ in range(2):
        setup_environment()
    folders = os.environ["PATH"].split(os.pathsep)
    assert folders[0] == os.path.dirname(sys.executable)
    assert folders[1] != folders[0]


@pytest.mark.parametrize(
    ("versions", "hidden"),
    [
        (
            {"torch": "2.13.0+cpu", "torchvision": "0.28.0", "torchaudio": "2.11.0+cpu"},
            {"torchvision"},
        ),
        ({"torch": "2.13.0+cpu"}, set()),
        ({"torch": "2.13.0", "torchvision": "0.28.0"}, set()),
    ],
)
def test_a_build_for_gpus_is_hidden_beside_a_torch_for_cpus(monkeypatch, versions, hidden):
    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    modules = {}
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(environment.sys, "modules", modules)
    setup_environment()
    assert modules == dict.fromkeys(hidden)


PROGRAMS = [
    path
    for folder in ("benchmarks", "dev", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


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
