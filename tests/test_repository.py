"""Files around the code agree with it: the Makefile, the workflow, the citation."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from bnpo.files import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PATHS = r"(?:\.ci|benchmarks|dev|docs|evals|examples|scripts|src|tests)/[\w./-]*\w"
"""A path from the repository's root in a text."""


def test_the_workflow_runs_what_ci_runs_with_the_python_of_the_project():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    assert steps[-1] == {"run": ".ci/run"}
    [python] = [step["with"]["python-version"] for step in steps if "python-version" in step.get("with", {})]
    assert PROJECT["requires-python"].split(",")[0] == f">={python}"  # the oldest


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert paper["url"] == PROJECT["urls"]["Paper"]
    assert [author["family-names"] for author in paper["authors"]] == ["Xiao", "Zhang", "Cao"]
    assert (paper["title"], paper["year"]) == ("BNPO: Beta Normalization Policy Optimization", 2025)


@pytest.mark.parametrize("name", ["Makefile", "CONTRIBUTING.md", "examples/README.md", "data/README.md"])
def test_files_that_are_named_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    named = set(re.findall(rf"(?<![\w./-]){PATHS}", text))
    assert named
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_packages_keep_to_their_budgets_of_lines():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    budgets = {path: int(most.replace(",", "")) for path, most in re.findall(r"\| `([\w/]+)/`.*\| ([\d,]+) \|", text)}
    assert budgets.keys() >= {"src/bnpo", "src/mathequal", "scripts", "benchmarks"}
    lines = {path: sum(map(number_of_lines, (ROOT / path).rglob("*.py"))) for path in budgets}
    assert {path: count for path, count in lines.items() if count > budgets[path]} == {}


def test_pages_keep_to_their_budgets_of_lines():
    assert number_of_lines(ROOT / "README.md") <= 120
    assert sum(map(number_of_lines, (ROOT / "docs").rglob("*.md"))) <= 2000


def number_of_lines(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())
