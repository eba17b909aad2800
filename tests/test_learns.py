"""Training learns, and the programs that a newcomer starts first do what the README says."""

import json
import re
import subprocess
import sys

import pytest

from bnpo.files import ROOT
from conftest import json_lines, users_environment

pytestmark = pytest.mark.sampler


def program(*command: object) -> str:
    """Return what a program prints, started as a user does."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env=users_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_training_learns(tmp_path):
    """Eight steps double the share of right answers to held-out questions, and the run's end has
    a page and a summary.
    """
    run = tmp_path / "run"
    flags = ("--preset", "tiny", "--steps", 8, "--lr", "2e-4", "--warmup-steps", 2, "--seed", 0)
    flags += ("--questions-per-step", 16, "--eval-every", 8, "--watch-questions", 0)
    launch = ("scripts/launch.py", "--num_gpus", 1, "train.py")
    printed = program(*launch, *flags, "--output-dir", run)
    lines = json_lines(run / "metrics.jsonl")
    [before, after] = [line["eval/average"] for line in lines if "eval/average" in line]
    assert after >= before + 0.2
    rewards = [line["reward/mean"] for line in lines if "reward/mean" in line]
    rates = [line["lr"] for line in lines if line["step"]]
    assert rates == pytest.approx([1e-4] + 7 * [2e-4])  # warm-up, and no further change
    assert all(0 < line["entropy"] < 6 for line in lines if line["step"])
    assert sum(rewards[-2:]) / 2 >= rewards[0] + 0.2
    assert f"run            {run}: done after step 8" in printed
    assert (run / "report.html").stat().st_size > 100_000


def test_check_task_says_whether_a_model_can_learn_from_a_task():
    printed = program("scripts/check_task.py", "--preset", "tiny", "--questions", 8)
    assert "8 questions, 4 answers each" in printed
    assert "mean reward accuracy, from 0 to 1" in printed
    assert printed.count("\nquestion ") == 3
    assert " 16 (this run) " in printed
    assert re.search(
        r"Beta\([\d.]+, [\d.]+\), which fits the accuracies of the sampled questions\. From \d+",
        printed,
    )
    assert "to change: " in printed


@pytest.mark.extra
def test_the_demo_evaluates_trains_and_writes_a_page(tmp_path):
    folder = tmp_path / "demo"
    printed = program("scripts/demo.py", "--steps", 2, "--output-dir", folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    for name in ("base", "final"):
        results = json.loads((folder / name / "results.json").read_text())["results"]["arithmetic"]
        assert results["pass1"] == summary[f"{name}_pass1"]
    assert "BNPO on tiny: 2 steps on 2 ranks" in printed
    assert "step   2  0." in printed
    page = (folder / "report.html").read_text()
    assert "<title>run, base, final · BNPO</title>" in page
