"""Every script of examples/ and every command of its README trains, here for one short step of a
tiny model.
"""

import doctest
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from countdown import countdown

from bnpo.files import ROOT
from conftest import json_lines, run_ranks

README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in README.splitlines() if line.startswith("    examples/")]
SMALL = (
    "--questions-per-step 4 --samples-per-question 4 --max-prompt-tokens 64 --max-answer-tokens 64 "
    "--steps 1"
)
SMALL += " --eval-every 0 --watch-questions 0 --rollouts-every 1"
STAND_INS = {
    # Its rule needs references that are numbers
    "smollm2.sh": "--model data/tiny-model --train-data word-problems --max-prompt-tokens 160",
    "paper-1.5b.sh": "--model data/tiny-model --train-data examples/data.jsonl",
    "paper-7b.sh": "--model data/tiny-model --train-data examples/data.jsonl",
    "paper-format.sh": "--model data/tags-model --train-data examples/data.jsonl",
}
"""Script -> a tiny model and data, in place of the larger ones."""
SCRIPTS = [f"examples/{script.name}" for script in (ROOT / "examples").glob("*.sh")]


def started_with(command: str, folder: Path) -> list[str]:
    """Return what an example runs `scripts/launch.py` with, from the repository's root. Nothing is
    started.
    """
    launcher = folder / "python"
    launcher.write_text("#!/bin/sh\npwd\nprintf '%s\\n' \"$@\"\n")
    launcher.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    words = [str(ROOT / shlex.split(command)[0]), *shlex.split(command)[1:]]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    where, program, *arguments = done.stdout.splitlines()
    assert (Path(where), program) == (ROOT, "scripts/launch.py")
    return arguments


def test_the_examples_of_the_estimators_package_print_what_its_page_says():
    page = ROOT / "src" / "bnpo_estimators" / "README.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 10
    assert failed == 0


@pytest.mark.extra
@pytest.mark.sampler
@pytest.mark.parametrize(
    "command", [*(script for script in SCRIPTS if "tiny" not in script), *COMMANDS]
)
def test_it_trains(command, tmp_path):
    flags = f"{SMALL} --output-dir {tmp_path / 'run'}"
    script = Path(shlex.split(command)[0]).name
    flags += f" {STAND_INS.get(script, '')}"
    run_ranks(1, *started_with(f"{command} {flags}", tmp_path))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["preset"] == script.removesuffix(".sh")
    assert json.loads((tmp_path / "run" / "end.json").read_text())["why"] == "done"
    [step] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert step["step"] == 1


REFERENCE = "100: 4 19 44"


@pytest.mark.program
def test_every_problem_has_the_solution_that_comes_with_it(tmp_path):
    path = tmp_path / "countdown.jsonl"
    command = [sys.executable, "examples/countdown.py", "--output", str(path), "--problems", "500"]
    subprocess.run(command, cwd=ROOT, check=True)
    rows = json_lines(path)
    assert len({row["problem"] for row in rows}) == 500
    for row in rows:
        target, _, numbers = row["answer"].partition(": ")
        assert 1 <= int(target) <= 1000
        assert len(numbers.split()) in (3, 4)
        assert countdown(f"so \\boxed{{{row['solution']}}}", row["answer"]) == 1
        assert countdown(f"so \\boxed{{{row['solution']} + 1}}", row["answer"]) == 0


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        (r"(44-19) \times 4 = 100", REFERENCE, 1),
        (r"4\cdot\left(44-19\right)", REFERENCE, 1),
        ("$(44-19)×4$", REFERENCE, 1),
        ("8/(3-8/3)", "24: 3 3 8 8", 1),  # fractions are exact
        (r"\frac{44-19}{4}*16", "100: 4 16 19 44", 1),
        ("100", REFERENCE, 0),  # not from the numbers
        ("(44-19)*4*(19/19)", REFERENCE, 0),  # a number twice
        ("(44-19)**4", REFERENCE, 0),
        ("44/(19-19)", REFERENCE, 0),
        ("__import__('os').system('touch /tmp/owned')", REFERENCE, 0),
        ("9**9**9**9", REFERENCE, 0),
        ("(" * 150 + "1" + ")" * 150, REFERENCE, 0),
        ("", REFERENCE, 0),
    ],
)
def test_expressions_are_computed_exactly_and_nothing_else_is_run(answer, reference, right):
    assert countdown(f"\\boxed{{{answer}}}", reference) == right
    assert countdown(answer, reference) == 0  # no box
