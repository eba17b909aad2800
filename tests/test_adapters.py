"""The estimators in TRL, verl and tunix, with the real packages, and what their own names mean
(docs/conformance.md).

The packages stand in folders of their own: make .venv/trl/.ready .venv/verl/.ready
.venv/tunix/.ready
"""

import json
import os
import subprocess
import sys

import pytest

from bnpo.files import ROOT

FOLDERS = {name: ROOT / ".venv" / name for name in ("trl", "verl")}


def needs(*packages):
    missing = [name for name in packages if not (FOLDERS[name] / name).is_dir()]
    return pytest.mark.skipif(
        bool(missing), reason=f"not installed: make .venv/{'/.ready .venv/'.join(missing)}/.ready"
    )


def output_of(program, *arguments, **environment):
    """Return the lines that a program prints, with TRL, verl and the examples on its path."""
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT / "examples", *FOLDERS.values())))
    environment = os.environ | {"PYTHONPATH": path} | environment
    command = [sys.executable, "-W", "ignore", str(ROOT / program), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@needs("verl")
@pytest.mark.extra
@pytest.mark.program
def test_verl_finds_our_estimators_and_gets_our_advantages():
    """verl imports the module itself, as its users ask for with an environment variable."""
    lines = output_of(
        "tests/programs/verl_adapter_check.py", VERL_USE_EXTERNAL_MODULES="verl_advantages"
    )
    found = json.loads(lines[-1])
    assert found["largest_difference"] < 1e-6
    assert {"bnpo", "eb", "signbalance"} < set(found["registered"])
    assert found["scores"] == [1.0, 0.0]
    assert found["refusal"] == "a question has 1 answers, another 2: all need the same number"


@pytest.mark.skipif(
    not (FOLDERS["verl"].parent / "tunix" / ".ready").exists(),
    reason="not installed: make .venv/tunix/.ready",
)
@pytest.mark.extra
@pytest.mark.program
def test_a_step_of_tunix_with_our_advantages():
    """With JAX, in its own environment, where bnpo is not installed."""
    python = ROOT / ".venv" / "tunix" / "bin" / "python"
    program = ROOT / "tests" / "programs" / "tunix_adapter_check.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "examples"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [python, "-W", "ignore", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["answers"] == 16
    assert found["signal"] > 0.1
    assert found["moved"] > 1e-4
    assert found["step_difference"] < 1e-6
    assert found["largest_difference"] < 1e-6


@needs("trl")
@pytest.mark.extra
@pytest.mark.program
def test_a_step_of_trl_with_our_advantages(tmp_path):
    found = json.loads(output_of("tests/programs/trl_adapter_check.py", tmp_path)[-1])
    assert found["step"] == 1
    assert found["trained"]
    assert 0 <= found["accuracy"] <= 1
    assert found["signal"] > 0.1
    assert found["step_difference"] < 1e-6
    assert found["logged_difference"] < 1e-6
