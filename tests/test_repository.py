"""The pages, the Makefile, the pins and the installation agree with the code and with each
other.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import mathequal
from bnpo.config import Planning, TrainConfig, flat_settings
from bnpo.evaluation.program import EvalConfig
from bnpo.files import ROOT

FOLDERS = ("", "docs", "docs/study", "data", "examples", "src/mathequal")
PAGES = [
    str(page.relative_to(ROOT))
    for folder in FOLDERS
    for page in sorted((ROOT / folder).glob("*.md"))
]
PAGES += [*(f"evals/results/study/{name}.md" for name in ("plan", "plan-2", "tables", "tables-2"))]


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


def missing_line(lines: list[str], code: list[str]) -> str | None:
    """The first of `lines` that `code` does not have behind the ones before it."""
    position = 0
    for line in lines:
        if line not in code[position:]:
            return line
        position = code.index(line, position) + 1
    return None


@pytest.mark.parametrize(("file", "lines"), diffs())
def test_diffs_fit_the_code(file, lines):
    """As it is, or with the diff applied, as in a user's own copy."""
    code = (ROOT / file).read_text(encoding="utf-8").splitlines()
    before = [line[1:] for line in lines if not line.startswith("+")]
    after = [line[1:] for line in lines if not line.startswith("-")]
    missing = missing_line(before, code)
    assert missing is None or missing_line(after, code) is None, (
        f"{file} has no line {missing!r} where docs/architecture.md shows it"
    )


LAUNCHER = {"num_gpus", "include", "hostfile", "no_ssh", "node_rank", "master_addr", "master_port"}
"""Flags of `deepspeed`, which scripts/launch.py takes, too."""
OTHERS = {
    "index_url",
    "nodes",
    "ntasks_per_node",
    "gpus_per_node",
    "cpus_per_task",
    "time",
    "signal",
    "job_name",
}
OTHERS |= {"kill_on_bad_exit", "input_key", "label_key", "follow"}
"""Flags of pip, Slurm, git and other projects that pages name."""
PLANNING = {field.name for field in fields(Planning)}
KNOWN = {
    "train.py": {*flat_settings(TrainConfig()), *PLANNING, "help"},
    "eval.py": {*(field.name for field in fields(EvalConfig)), *PLANNING},
}
PROGRAM = re.compile(
    r"\b(train\.py|eval\.py|(?:scripts|benchmarks|dev)/[\w/]+\.py)|-m (bnpo\.report|mathequal)\b"
)
FLAG = re.compile(r"(?<![\w-])--([a-z][\w-]*)")


def flags_in(text: str) -> set[str]:
    """The flags in a text, as names of settings. That of --no-resume is resume."""
    flags = {flag.replace("-", "_") for flag in FLAG.findall(text)}
    return {flag if flag in LAUNCHER else flag.removeprefix("no_") for flag in flags}


def flags_of(program: str) -> set[str]:
    """The flags of a program. Of scripts: flags that it or scripts/paper name, and fields of
    their classes.
    """
    if program in KNOWN:
        return KNOWN[program]
    named = f"src/{program.replace('.', '/')}/__main__.py"
    file = ROOT / (program if program.endswith(".py") else named)
    assert file.exists(), f"{program} does not exist"
    flags = (
        LAUNCHER
        if program == "scripts/launch.py"
        else PLANNING
        if program == "scripts/reproduce.py"
        else set()
    )
    return flags.union(*map(flags_in_source, (file, *(ROOT / "scripts" / "paper").glob("*.py"))))


def flags_in_source(file: Path) -> set[str]:
    source = file.read_text(encoding="utf-8")
    return flags_in(source) | set(re.findall(r"^    (\w+): ", source, re.MULTILINE))


def commands(page: str) -> list[str]:
    """The commands of a page: lines of its indented blocks with what continues them, and code
    within the text.
    """
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [
        line.partition("  #")[0].strip() for line in text.splitlines() if line.startswith("    ")
    ]
    return lines + [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]


@pytest.mark.parametrize("page", PAGES)
def test_programs_have_the_flags_of_commands(page):
    for command in commands(page):
        without_values = re.sub(r"\"[^\"]*\"|'[^']*'", "", command.replace("bash -c 'exec ", ""))
        programs = list(PROGRAM.finditer(without_values))
        ends = [program.start() for program in programs[1:]] + [len(without_values)]
        # The flags behind a program are its own, up to the next program.
        for program, end in zip(programs, ends, strict=False):
            name = program[1] or program[2]
            unknown = flags_in(without_values[program.end() : end]) - flags_of(name)
            assert not unknown, f"{page}: {name} has no flag {unknown}: {command}"


@pytest.mark.parametrize("page", PAGES)
def test_flags_that_a_page_names_exist(page):
    known = set().union(*KNOWN.values(), LAUNCHER, OTHERS)
    for folder in ("scripts", "benchmarks", "dev", "src/mathequal", "src/runpage"):
        known = known.union(*map(flags_in_source, (ROOT / folder).rglob("*.py")))
    assert flags_in((ROOT / page).read_text(encoding="utf-8")) - known == set()


def test_make_has_the_targets_of_commands():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {".venv/.ready", *re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}
    used = {
        command.split()[1]
        for page in PAGES
        for command in commands(page)
        if command.startswith("make ")
    }
    assert used >= {"demo", "test"}
    assert used <= targets


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


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PATHS = r"(?:\.ci|benchmarks|dev|docs|evals|examples|scripts|src|tests)/[\w./-]*\w"
"""A path from the repository's root in a text."""


def test_the_workflow_runs_what_ci_runs_with_the_python_of_the_project():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    [python] = [
        step["with"]["python-version"] for step in steps if "python-version" in step.get("with", {})
    ]
    assert PROJECT["requires-python"].split(",")[0] == f">={python}"  # the oldest


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
    assert [author["family-names"] for author in paper["authors"]] == ["Xiao", "Zhang", "Cao"]
    assert (paper["title"], paper["year"]) == ("BNPO: Beta Normalization Policy Optimization", 2025)


@pytest.mark.parametrize(
    "name", ["Makefile", "CONTRIBUTING.md", "examples/README.md", "data/README.md"]
)
def test_files_that_are_named_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(rf"(?<![\w./-]){PATHS}", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


PROGRAMS = (["train.py"], ["eval.py"], ["scripts/reproduce.py"], ["-m", "runpage"])


@pytest.fixture(scope="module")
def fresh_environment(tmp_path_factory) -> Path:
    """The Python of a new environment. It reads our packages from PYTHONPATH, where .pth files do
    not count.

    So it has all requirements, but not bnpo, which the .pth file of an editable installation adds.
    """
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def run(*command: str | Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.program
def test_requirements_install_the_repository_itself(fresh_environment, tmp_path):
    assert "No module named 'bnpo'" in run(fresh_environment, "train.py", "--help").stderr
    ours = tmp_path / "ours.txt"
    for name in ("requirements.txt", "requirements-cpu.txt"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        [line] = [line for line in lines if not line.startswith("#") and "==" not in line]
        ours.write_text(f"{line}\n")
    # The other lines are installed already, and setuptools among them: nothing is downloaded.
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    done = run(fresh_environment, "-m", "pip", "install", *offline, "-r", ours)
    assert done.returncode == 0, done.stderr
    for program in PROGRAMS:
        done = run(fresh_environment, *program, "--help")
        assert done.returncode == 0, done.stderr
        assert "usage: " in done.stdout
