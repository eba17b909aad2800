"""Every script of examples/ and every command of its README trains, here for one short step of a tiny model."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from bnpo.files import ROOT
from conftest import json_lines, run_ranks

README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
COMMANDS = [line.strip() for line in README.splitlines() if line.startswith("    examples/")]
SMALL = "--questions-per-step 4 --samples-per-question 4 --max-prompt-tokens 64 --max-answer-tokens 64 --steps 1"
SMALL += " --eval-every 0 --watch-questions 0 --rollouts-every 1"
MODELS = {
    "smollm2.sh": "tiny-model",
    "paper-1.5b.sh": "tiny-model",
    "paper-7b.sh": "tiny-model",
    "paper-format.sh": "tags-model",
}
"""Script -> the tiny model that stands in for a larger one."""
SCRIPTS = [f"examples/{script.name}" for script in (ROOT / "examples").glob("*.sh")]


def started_with(command: str, folder: Path) -> list[str]:
    """Return what an example runs `deepspeed` with, from the repository's root. Nothing is started."""
    launcher = folder / "deepspeed"
    launcher.write_text("#!/bin/sh\npwd\nprintf '%s\\n' \"$@\"\n")
    launcher.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    words = [str(ROOT / shlex.split(command)[0]), *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    where, *arguments = done.stdout.splitlines()
    assert Path(where) == ROOT
    return arguments


def test_the_readme_names_every_script_and_uses_the_reward_and_the_data():
    for script in SCRIPTS:
        assert f"`{Path(script).name}`" in README
    assert any("examples/reward.py:shows_work" in command for command in COMMANDS)
    assert any("examples/data.jsonl" in command for command in COMMANDS)


@pytest.mark.sampler
@pytest.mark.parametrize("command", [*(script for script in SCRIPTS if "tiny" not in script), *COMMANDS])
def test_it_trains(command, tmp_path):
    flags = f"{SMALL} --output-dir {tmp_path / 'run'}"
    script = Path(shlex.split(command)[0]).name
    if script in MODELS:
        flags += f" --model data/{MODELS[script]} --train-data examples/data.jsonl"
    run_ranks(1, *started_with(f"{command} {flags}", tmp_path))
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["preset"] == script.removesuffix(".sh")
    assert json.loads((tmp_path / "run" / "end.json").read_text())["why"] == "done"
    [step] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert step["step"] == 1
