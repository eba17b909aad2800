"""A real model, SmolLM2-135M-Instruct, in whole programs: number formats, LoRA, ranks, Ctrl-C,
resume, evaluation.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from bnpo.config import preset_config
from bnpo.files import ROOT, SMOLLM2, file_hash, whole_json_lines
from bnpo.policy.folder import whole_model
from bnpo.policy.speed import TIMINGS
from conftest import forked, python, run_ranks, temporary_folder

pytestmark = [pytest.mark.extra, pytest.mark.real_model, pytest.mark.sampler]

FLAGS = ("--preset", "smollm2", "--questions-per-step", 4, "--samples-per-question", 4)
FLAGS += ("--eval-every", 0, "--watch-questions", 0, "--rollouts-every", 0, "--save-every", 100)
STEPS = 4


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the model, which is fetched once for all tests."""
    with FileLock(f"{SMOLLM2}.lock"):
        command = [sys.executable, "scripts/get_model.py", "smollm2"]
        got = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if got.returncode:
        pytest.skip(f"no SmolLM2-135M-Instruct: {got.stderr.strip().splitlines()[-1]}")
    return SMOLLM2


@pytest.fixture(scope="module")
def straight(smollm2, tmp_path_factory) -> Path:
    """A run in the preset's format, which depends on the machine, without an interruption."""
    run = tmp_path_factory.mktemp("real") / "run"
    run_ranks(1, "train.py", *FLAGS, "--steps", STEPS, "--output-dir", run)
    return run


def steps_of(run: Path) -> list[dict]:
    """The metrics of the steps, without times and speeds."""
    lines = whole_json_lines(run / "metrics.jsonl")
    return [
        {name: value for name, value in line.items() if not name.startswith(TIMINGS)}
        for line in lines
    ]


def assert_it_trains(run: Path, steps: int) -> None:
    lines = whole_json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(np.isfinite(line["loss"]) and line["bad_steps"] == 0 for line in lines)
    assert any(line["grad_norm"] > 0 for line in lines)
    assert all(line["sync/difference"] < 0.1 for line in lines)
    assert json.loads((run / "end.json").read_text()) == {"step": steps, "why": "done"}


def test_a_run_trains_and_its_checkpoint_loads_in_transformers_and_in_vllm(
    straight, smollm2, tmp_path
):
    assert_it_trains(straight, STEPS)
    trained = AutoModelForCausalLM.from_pretrained(straight / "last", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    moved = [
        (a - b).abs().max().item()
        for a, b in zip(trained.parameters(), base.parameters(), strict=True)
    ]
    assert 0 < max(moved) < 1e-2
    tokenizer = AutoTokenizer.from_pretrained(straight / "last")
    # The system prompt of the model's own template is gone, in the checkpoint too.
    text = tokenizer.apply_chat_template([{"role": "user", "content": "1+1=?"}], tokenize=False)
    assert "named SmolLM" not in text

    for name, model in (("trained", straight / "last"), ("base", smollm2)):
        flags = ("--ckpt", model, "--suite", "word-problems", "--limit", 8)
        run_ranks(0, "eval.py", *flags, "--output-dir", tmp_path / name)
        assert len(whole_json_lines(tmp_path / name / "samples.jsonl")) == 8
    protocol = json.loads((tmp_path / "trained" / "protocol.json").read_text())
    assert protocol["grader"] == "last_number"
    compared = python("scripts/compare_evaluations.py", tmp_path / "base", tmp_path / "trained")
    assert "paired by problem" in compared.stdout


def test_a_run_that_is_stopped_by_ctrl_c_and_resumed_equals_one_that_was_not(straight, tmp_path):
    run = tmp_path / "run"
    flags = (*FLAGS, "--steps", STEPS, "--output-dir", run)
    with temporary_folder() as folder, forked(1, "train.py", *flags, environment=folder) as job:
        deadline = time.monotonic() + 300
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
            assert time.monotonic() < deadline, job.output.read_text()[-3000:]
            time.sleep(0.1)
        psutil.Process(job.processes[0]).send_signal(signal.SIGINT)
        done = job.result()
    assert done.returncode == 0, done.stdout[-3000:]
    assert json.loads((run / "end.json").read_text())["why"] == "signalled"
    stopped = len(steps_of(run))
    assert 1 <= stopped < STEPS
    assert "stopped (--resume continues)" in done.stdout
    resumed = run_ranks(1, "train.py", *flags, "--resume")
    assert f"continuing after step {stopped}" in resumed.stdout
    assert steps_of(run) == steps_of(straight)
    weights = "last/model.safetensors"
    assert file_hash(run / weights) == file_hash(straight / weights)


def test_lora_on_two_ranks_in_float32(smollm2, tmp_path):
    run = tmp_path / "run"
    flags = ("--dtype", "float32", "--lora-rank", 8, "--steps", 3, "--output-dir", run)
    run_ranks(2, "train.py", *FLAGS, *flags)
    assert_it_trains(run, 3)
    assert max(line["sync/difference"] for line in whole_json_lines(run / "metrics.jsonl")) < 1e-3
    with whole_model(run / "last") as merged:
        assert AutoModelForCausalLM.from_pretrained(merged).config.model_type == "llama"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_formats(smollm2, dtype, request, tmp_path):
    request.getfixturevalue(dtype)  # which skips the test on a CPU that has no such arithmetic
    if preset_config("smollm2", has_cuda=False).hardware.dtype == dtype:
        pytest.skip("this is the preset's format on this CPU, which the other tests use")
    run = tmp_path / "run"
    run_ranks(1, "train.py", *FLAGS, "--dtype", dtype, "--steps", 3, "--output-dir", run)
    assert_it_trains(run, 3)
