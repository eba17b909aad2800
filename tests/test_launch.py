"""scripts/launch.py, as a user calls it."""

import re
import socket
import subprocess
import sys
import time

import pytest
import torch.distributed as dist

from conftest import ROOT, users_environment
from launch import reserve_port

LAUNCH = [sys.executable, "scripts/launch.py", "--num_gpus", "2", "train.py", "--preset", "tiny"]


def test_a_reserved_port_is_for_the_ranks_alone():
    first, second = reserve_port(), reserve_port()
    port = first.getsockname()[1]
    assert port != second.getsockname()[1]
    socket.create_server(("", port)).close()  # as ranks.check_port tries it
    store = dist.TCPStore("127.0.0.1", port, world_size=1, is_master=True)
    store.set("run", "ours")
    assert store.get("run") == b"ours"
    for reserved in (first, second):
        reserved.close()


@pytest.mark.deadline
@pytest.mark.program
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--algo", "ppo"), "--algo: unknown algo 'ppo'; known: bnpo"),
        (("--questions-per-step", "3"), "--questions-per-step 3 cannot be divided by 2 ranks. Use a multiple of 2"),
        (("--train-data", "absent.jsonl"), "absent.jsonl: no such data file"),
        (("--train-data", "examples/data.jsonl", "--answer-field", "x"), "examples/data.jsonl:1: field 'x' is missing"),
        (("--model", "/absent/model"), "/absent/model: no such model folder"),
        (("--eval-suite", "nowhere"), "no evaluation suite 'nowhere'"),
        (("--output-dir", "{run}"), "run: holds a run. Delete it with --overwrite"),
    ],
)
def test_a_refusal_is_one_line_within_five_seconds(flags, message, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    command = [*LAUNCH, *(flag.format(run=tmp_path / "run") for flag in flags)]
    started = time.monotonic()
    refused = subprocess.run(command, cwd=ROOT, env=users_environment(), capture_output=True, text=True, check=False)
    assert time.monotonic() - started < 5
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.fullmatch(f"error: .*{re.escape(message)}.*\n", refused.stderr)


@pytest.mark.sampler
def test_two_runs_that_start_together_do_not_disturb_each_other(tmp_path):
    flags = ("--questions-per-step", "4", "--samples-per-question", "2", "--max-answer-tokens", "8", "--steps", "1")
    flags += ("--eval-every", "0", "--watch-questions", "0", "--output-dir")
    environment = users_environment() | {"OMP_NUM_THREADS": "1"}
    outputs = [tmp_path / "a", tmp_path / "b"]
    programs = []
    for output in outputs:
        with (tmp_path / f"{output.name}.log").open("w") as log:
            command = [*LAUNCH, *flags, str(output)]
            programs.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    for program, output in zip(programs, outputs, strict=True):
        assert program.wait(timeout=300) == 0, (tmp_path / f"{output.name}.log").read_text()[-3000:]
        assert (output / "last" / "config.json").is_file()
