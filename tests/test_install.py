"""The installation without make: `pip install -r requirements*.txt` in the clone makes its programs start."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bnpo.files import ROOT

PROGRAMS = (["train.py"], ["eval.py"], ["scripts/reproduce.py"], ["-m", "bnpo.report"])


@pytest.fixture(scope="module")
def fresh_environment(tmp_path_factory) -> Path:
    """The Python of a new environment. It reads our packages from PYTHONPATH, where .pth files do not count.

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
