"""The pages, the Makefile, the pins and the installation agree with the code and with each
other.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import mathequal
from bnpo.files import ROOT

FOLDERS = ("", "docs", "data", "examples", "studies/2026-11")
FOLDERS += ("src/bnpo_estimators", "src/mathequal")
PAGES = [
    str(page.relative_to(ROOT))
    for folder in FOLDERS
    for page in sorted((ROOT / folder).glob("*.md"))
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PATHS = r"(?:\.ci|benchmarks|dev|docs|evals|examples|scripts|src|studies|tests)/[\w./-]*\w"
"""A path from the repository's root in a text."""


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page} links to {target}"


def diffs() -> list[tuple[str, list[str]]]:
    """The diffs in docs/architecture.md: each one's file, and its lines with their signs."""
    found: list[tuple[str, list[str]]] = []
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("+++ b/"):
                found.append((line.removeprefix("+++ b/"), []))
            elif not line.startswith("--- a/"):
                found[-1][1].append(line)
    return found


@pytest.mark.parametrize(("file", "lines"), diffs())
def test_diffs_fit_the_code(file, lines):
    """The code has their lines in this order, before the change or, in a user's copy, after it."""
    code = (ROOT / file).read_text(encoding="utf-8").splitlines()
    for sign in "+-":
        rest = iter(code)
        missing = [line for line in lines if not line.startswith(sign) and line[1:] not in rest]
        if not missing:
            return
    raise AssertionError(f"{file} has no line {missing[0]!r} where docs/architecture.md shows it")


@pytest.mark.parametrize("page", [*PAGES, "Makefile"])
def test_programs_and_files_that_are_named_exist(page):
    """Pages may name programs of earlier commits as files without their folder."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(rf"(?<![\w./-]){PATHS}", re.sub(r"`[^`]*` of commit", "", text))
    programs = [name for name in named if name.endswith(".py") or page in ("Makefile", "README.md")]
    assert [path for path in programs if not (ROOT / path).exists()] == []
    for module in re.findall(r"python -m (\w+)", text):
        known = module in ("pip", "pytest")
        assert known or (ROOT / "src" / module / "__main__.py").exists()


def test_make_has_the_targets_that_pages_name():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {".venv/.ready", *re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}
    pages = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    used = set(re.findall(r"^    make ([\w./-]+)", pages, re.MULTILINE))
    assert {"demo", "test", "check"} <= used <= targets


def test_the_grader_judges_the_examples_of_its_page():
    text = (ROOT / "docs" / "grader.md").read_text(encoding="utf-8")
    lines = text.partition("## Examples")[2].partition("\n## ")[0].splitlines()
    rows = [
        [re.findall(r"`([^`]+)`", cell) for cell in line.split(" | ")]
        for line in lines
        if line.startswith("| `")
    ]
    assert len(rows) > 10
    for [reference], equal, different in rows:
        assert [answer for answer in equal if not mathequal.equal(reference, answer)] == []
        assert [answer for answer in different if mathequal.equal(reference, answer)] == []


def pins(name: str) -> dict[str, str]:
    """The versions in a file of requirements, by package."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def test_the_lock_has_the_versions_of_the_requirements():
    """All but two that torch's build for GPUs, which the lock has for CPUs too, has set."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    locked = {(package["name"], package["version"]) for package in lock["package"]}
    wanted = {*pins("requirements.txt").items(), *pins("requirements-cpu.txt").items()}
    assert {name for name, _ in wanted - locked} == {"apache-tvm-ffi", "triton"}
    # Nothing else is installed, and the lock is of the present pyproject.toml
    names = {name for name, _ in locked}
    assert names == {name for name, _ in wanted} | {"bnpo"}
    [own] = [package for package in lock["package"] if package["name"] == "bnpo"]
    specifiers = {row["name"]: row.get("specifier", "") for row in own["metadata"]["requires-dist"]}
    extras = PROJECT["optional-dependencies"].values()
    for requirement in [*PROJECT["dependencies"], *(line for lines in extras for line in lines)]:
        name, specifier = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        assert specifiers.pop(name) == specifier
    assert specifiers == {}


def run(*command: str | Path) -> subprocess.CompletedProcess:
    """Run a Python that reads our packages from PYTHONPATH, where .pth files do not count: it has
    all requirements, but not bnpo, which the .pth file of an editable installation adds.
    """
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.program
def test_requirements_install_the_repository_itself(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "new"], check=True)
    python, ours = tmp_path / "new" / "bin" / "python", tmp_path / "ours.txt"
    assert "No module named 'bnpo'" in run(python, "train.py", "--help").stderr
    for name in ("requirements.txt", "requirements-cpu.txt"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        [line] = [line for line in lines if not line.startswith("#") and "==" not in line]
        ours.write_text(f"{line}\n")
    # The other lines are installed already, and setuptools among them: nothing is downloaded.
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    done = run(python, "-m", "pip", "install", *offline, "-r", ours)
    assert done.returncode == 0, done.stderr
    for program in (["train.py"], ["eval.py"], ["scripts/reproduce.py"], ["-m", "runpage"]):
        done = run(python, *program, "--help")
        assert done.returncode == 0, done.stderr
        assert "usage: " in done.stdout


@pytest.mark.extra
@pytest.mark.program
def test_the_estimators_can_be_installed_alone(tmp_path):
    """With NumPy and SciPy only. There, README and tests of the package pass."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def alone(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    source = shutil.copytree(ROOT / "src" / "bnpo_estimators", tmp_path / "source")
    alone(sys.executable, "-m", "venv", "new")
    python = tmp_path / "new" / "bin" / "python"
    alone(python, "-m", "pip", "install", source)
    listed = json.loads(alone(python, "-m", "pip", "list", "--format=json"))
    installed = {package["name"] for package in listed}
    assert installed - {"pip", "setuptools"} == {"bnpo-estimators", "numpy", "scipy"}
    where = "import bnpo_estimators; print(bnpo_estimators.__file__)"
    folder = Path(alone(python, "-c", where).strip()).parent
    assert tmp_path / "new" in folder.parents
    assert (folder / "py.typed").is_file()
    alone(python, "-m", "doctest", source / "README.md")
    alone(python, "-m", "pip", "install", "pytest", "hypothesis")
    tests = (ROOT / "tests" / "estimators", "-c", "/dev/null", "--rootdir", tmp_path)
    tests += ("--confcutdir", ROOT / "tests" / "estimators", "--hypothesis-profile", "ci")
    alone(python, "-m", "pytest", "-q", *tests)
    alone(python, "-m", "pytest", "-q", "--doctest-modules", folder, *tests[1:5])
