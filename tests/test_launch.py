"""scripts/launch.py, as a user calls it."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
import torch.distributed as dist

from bnpo.config import TINY_MODEL
from bnpo.files import InputError
from conftest import ROOT, users_environment
from families import NOT_TRAINED, TRAINED, family_config, make_family
from launch import read_launcher_flags, reserve_port

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


@pytest.mark.parametrize(
    ("visible", "ranks", "flags"),
    [
        (None, 2, "--num_gpus 2"),
        ("", 2, "--num_gpus 2"),
        ("3", 1, "--include localhost:3"),
        ("5, 1,0", 2, "--include localhost:5,1"),
        ("3", 2, "CUDA_VISIBLE_DEVICES=3: names 1 GPUs, but 2 ranks are started; lower --num_gpus"),
        ("GPU-8f3c", 1, "CUDA_VISIBLE_DEVICES=GPU-8f3c: DeepSpeed's launcher needs the numbers of GPUs"),
    ],
)
def test_ranks_get_the_gpus_that_are_visible(visible, ranks, flags, monkeypatch):
    monkeypatch.setattr("bnpo.environment.has_nvidia_gpu", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    given = ["--num_gpus", str(ranks), "--quiet"]
    if not flags.startswith("--"):
        with pytest.raises(InputError, match=re.escape(flags)):
            read_launcher_flags(given)
        return
    assert read_launcher_flags(given) == (ranks, [*flags.split(), "--quiet"])
    assert read_launcher_flags(["--num_gpus", "2", "--hostfile", "h"]) == (2, ["--num_gpus", "2", "--hostfile", "h"])


@pytest.mark.deadline
@pytest.mark.program
@pytest.mark.parametrize(
    ("flags", "seconds", "message"),
    [
        (("--lr", "0"), 5, "--lr: is 0.0, must be greater than 0"),
        (("--questions-per-step", "3"), 5, "--questions-per-step 3 cannot be divided by 2 ranks. Use a multiple of 2"),
        (("--train-data", "absent.jsonl"), 5, "absent.jsonl: no such data file"),
        (("--train-data", "examples/data.jsonl", "--answer-field", "x"), 5, "data.jsonl:1: field 'x' is missing"),
        (
            ("--train-data", "examples/data.jsonl", "--questions-per-step", "512"),
            5,
            "512 different questions are",
        ),
        (("--model", "/absent/model"), 5, "/absent/model: no such model folder"),
        (("--model", "{unsafe}"), 5, "unsafe: holds no weights (*.safetensors); load it with transformers and save it"),
        (("--eval-suite", "nowhere"), 5, "no evaluation suite 'nowhere'"),
        (("--output-dir", "{run}"), 5, "run: holds a run. Delete it with --overwrite"),
        # By code of transformers:
        (("--model", "{gemma2}"), 60, "gemma2: cannot be trained: the learner's attention has no capped attention log"),
        (("--model", "{short}"), 60, "short: its tokenizer has 262 tokens, its model 200; take the tokenizer of this"),
        (
            ("--template", "{run}/raises.jinja"),
            60,
            "the chat template fails for the problem '1+2=?' (TemplateErr",
        ),
    ],
)
def test_a_refusal_is_one_line_within_seconds(flags, seconds, message, tmp_path):
    folders = {name: tmp_path / name for name in ("gemma2", "unsafe", "short", "run")}
    for folder in folders.values():
        shutil.copytree(TINY_MODEL, folder)
    (tmp_path / "run" / "metrics.jsonl").touch()
    (tmp_path / "run" / "raises.jinja").write_text("{{ raise_exception('no') }}")
    family_config("gemma2", **NOT_TRAINED["gemma2"][0]).save_pretrained(tmp_path / "gemma2")
    family_config("qwen2", vocab_size=200).save_pretrained(tmp_path / "short")
    (tmp_path / "unsafe" / "model.safetensors").rename(tmp_path / "unsafe" / "model.bin")
    command = [*LAUNCH, "--output-dir", str(tmp_path / "new"), *(flag.format(**folders) for flag in flags)]
    started = time.monotonic()
    refused = subprocess.run(command, cwd=ROOT, env=users_environment(), capture_output=True, text=True, check=False)
    assert time.monotonic() - started < seconds
    assert refused.returncode == 2
    assert refused.stdout in ("", "preset tiny (asked for)\n")  # on a busy machine a rank may have printed its preset
    assert re.fullmatch(f"error: .*{re.escape(message)}.*\n", refused.stderr)


@pytest.mark.program
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_launcher_that_is_killed_while_it_checks_leaves_nothing(number):
    program = subprocess.Popen(LAUNCH, cwd=ROOT, env=users_environment())
    started = psutil.Process(program.pid)
    while not (checkers := started.children()):
        time.sleep(0.01)
    program.send_signal(signal.SIGSTOP)  # the checks take less than a second
    for each in (number, signal.SIGCONT):
        program.send_signal(each)
    assert program.wait(timeout=30) == -number
    _, alive = psutil.wait_procs(checkers, timeout=30)
    assert alive == []


@pytest.mark.sampler
def test_two_runs_that_start_together_do_not_disturb_each_other(tmp_path):
    flags = ("--questions-per-step", "4", "--samples-per-question", "2", "--max-answer-tokens", "8", "--steps", "1")
    flags += ("--eval-every", "0", "--watch-questions", "0", "--output-dir")
    environment = users_environment() | {"OMP_NUM_THREADS": "1"}
    make_family(tmp_path / "gemma3", "gemma3_text", **TRAINED["gemma3_text"])
    outputs = [tmp_path / "a", tmp_path / "b"]
    programs = []
    for output, model in zip(outputs, (TINY_MODEL, tmp_path / "gemma3"), strict=True):
        with (tmp_path / f"{output.name}.log").open("w") as log:
            command = [*LAUNCH, *flags, str(output), "--model", str(model)]
            programs.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
    for program, output in zip(programs, outputs, strict=True):
        assert program.wait(timeout=300) == 0, (tmp_path / f"{output.name}.log").read_text()[-3000:]
        [metrics] = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
        assert metrics["sync/difference"] < 1e-5
        assert (output / "last" / "config.json").is_file()
