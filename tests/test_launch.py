"""What happens before the work: scripts/launch.py, imports, which GPUs are seen, what is said of
useless ones.
"""

import json
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch.distributed as dist

from bnpo.config import TINY_MODEL
from bnpo.evaluation.program import fleet
from bnpo.files import InputError
from bnpo.grading.grader import Grader
from bnpo.policy.sampling import EngineSettings
from bnpo.ranks import has_cuda
from conftest import ROOT, python, users_environment
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
        ("3", 2, "CUDA_VISIBLE_DEVICES=3: DeepSpeed's launcher needs the numbers of GPUs, as"),
        (
            "GPU-8f3c",
            1,
            "CUDA_VISIBLE_DEVICES=GPU-8f3c: DeepSpeed's launcher needs the numbers of GPUs, as",
        ),
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
    assert read_launcher_flags(["--num_gpus", "2", "--hostfile", "h"]) == (
        2,
        ["--num_gpus", "2", "--hostfile", "h"],
    )


@pytest.mark.deadline
@pytest.mark.program
@pytest.mark.parametrize(
    ("flags", "seconds", "message"),
    [
        (("--train-data", "absent.jsonl"), 5, "absent.jsonl: no such data file"),
        (
            ("--train-data", "examples/data.jsonl", "--answer-field", "x"),
            5,
            "data.jsonl:1: field 'x' is missing",
        ),
        (
            ("--train-data", "examples/data.jsonl", "--questions-per-step", "512"),
            5,
            "512 different questions are",
        ),
        (("--model", "/absent/model"), 5, "/absent/model: no such model folder"),
        (
            ("--model", "{unsafe}"),
            5,
            "unsafe: holds no *.safetensors; write it with save_pretrained",
        ),
        (
            ("--questions-per-step", "3"),
            5,
            "--questions-per-step 3 cannot be divided by 2 ranks. Use a multiple of 2",
        ),
        (("--output-dir", "{run}"), 5, "run: holds a run. Continue it with --resume, replace it"),
        # By code of transformers:
        (
            ("--model", "{gemma2}"),
            60,
            "gemma2: cannot be trained: the learner's attention has no capped attention log",
        ),
        (
            ("--model", "{short}"),
            60,
            "short: its tokenizer has 262 tokens, its model 200; take the tokenizer of this",
        ),
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
    (tmp_path / "run" / "config.json").write_text('{"preset": "tiny"}')
    (tmp_path / "run" / "raises.jinja").write_text("{{ raise_exception('no') }}")
    family_config("gemma2", **NOT_TRAINED["gemma2"][0]).save_pretrained(tmp_path / "gemma2")
    family_config("qwen2", vocab_size=200).save_pretrained(tmp_path / "short")
    (tmp_path / "unsafe" / "model.safetensors").rename(tmp_path / "unsafe" / "model.bin")
    command = [
        *LAUNCH,
        "--output-dir",
        str(tmp_path / "new"),
        *(flag.format(**folders) for flag in flags),
    ]
    started = time.monotonic()
    refused = subprocess.run(
        command, cwd=ROOT, env=users_environment(), capture_output=True, text=True, check=False
    )
    assert time.monotonic() - started < seconds
    assert refused.returncode == 2
    # On a busy machine a rank may have printed its preset.
    assert refused.stdout in ("", "preset tiny (from --preset)\n")
    assert re.fullmatch(f"error: .*{re.escape(message)}.*\n", refused.stderr)


@pytest.mark.sampler
def test_two_runs_that_start_together_do_not_disturb_each_other(tmp_path):
    flags = (
        "--questions-per-step",
        "4",
        "--samples-per-question",
        "2",
        "--max-answer-tokens",
        "8",
        "--steps",
        "1",
    )
    flags += ("--eval-every", "0", "--watch-questions", "0", "--output-dir")
    environment = users_environment() | {"OMP_NUM_THREADS": "1"}
    make_family(tmp_path / "gemma3", "gemma3_text", **TRAINED["gemma3_text"])
    outputs = [tmp_path / "a", tmp_path / "b"]
    programs = []
    for output, model in zip(outputs, (TINY_MODEL, tmp_path / "gemma3"), strict=True):
        with (tmp_path / f"{output.name}.log").open("w") as log:
            command = [*LAUNCH, *flags, str(output), "--model", str(model)]
            programs.append(
                subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            )
    for program, output in zip(programs, outputs, strict=True):
        assert program.wait(timeout=300) == 0, (tmp_path / f"{output.name}.log").read_text()[-3000:]
        [metrics] = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
        assert metrics["sync/difference"] < 1e-5
        assert (output / "last" / "config.json").is_file()


HEAVY = ("torch", "transformers", "deepspeed", "vllm", "wandb")


@pytest.mark.program
def test_what_workers_and_refusals_need_imports_nothing_heavy_and_changes_nothing():
    modules = "train, eval, bnpo.config, bnpo.data, bnpo.grading.rewards, bnpo.evaluation.program"
    code = (
        f"import os, sys; before = dict(os.environ); import {modules}; print(before == os.environ, "
        "*sys.modules)"
    )
    same, *imported = python("-c", code).stdout.split()
    assert same == "True"
    assert {*HEAVY, "sympy", "scipy.special"} & set(imported) == set()


@pytest.mark.program
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            ("train.py", "--preset", "tiny", "--lr", "0"),
            "error: --lr: is 0.0, must be greater than 0",
        ),
        (("train.py", "--preset", "tiny", "--gpus", "2"), "error: --gpus: needs --dry-run"),
        (
            ("eval.py", "--ckpt", "x", "--seed", "-1"),
            "error: --seed: is -1, must be greater than or equal to 0",
        ),
    ],
)
def test_wrong_flags_are_refused_before_anything_heavy_is_imported(program, message):
    refused = python("-X", "importtime", *program)
    imported = {
        line.rpartition("|")[2].strip()
        for line in refused.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert refused.returncode != 0
    assert message in refused.stderr + refused.stdout
    assert "bnpo.config" in imported
    assert set(HEAVY) & imported == set()


def test_workers_of_the_grader_import_nothing_heavy(tmp_path):
    """Under pytest, whose own main file they import, after torch was imported in this process."""
    assert "torch" in sys.modules
    file = tmp_path / "mine.py"
    file.write_text(
        f"import sys\ndef light(text, reference):\n    return not set({HEAVY}) & set(sys.modules)\n"
    )
    grader = Grader(("accuracy", f"{file}:light"), workers=1)
    assert grader(["1"], ["1"]).rewards.tolist() == [[0.0, 1.0]]
    # Math-verify is there now
    assert grader([r"\boxed{1+x}"], ["x+1"]).rewards.tolist() == [[1.0, 1.0]]
    assert grader(["1"], ["1"]).rewards.tolist() == [[0.0, 1.0]]
    grader.close()


def test_a_sampler_that_is_killed_while_it_starts_ends_the_program(tmp_path):
    others = set(multiprocessing.active_children())  # workers of graders that other tests use

    def kill() -> None:
        while not (members := set(multiprocessing.active_children()) - others):
            time.sleep(0.01)
        members.pop().kill()

    killer = threading.Thread(target=kill)
    killer.start()
    ends = pytest.raises(
        RuntimeError, match="a sampler's process ended with status -9; its error is above"
    )
    settings, sampling = (
        EngineSettings(max_tokens=192, dtype="float32"),
        {"prompts": [[1]], "seeds": [0]},
    )
    with ends:
        next(fleet(tmp_path, [], 1, settings, sampling))
    killer.join()


@pytest.mark.parametrize(
    ("build", "gpu", "available", "refused"),
    [
        ("13.0", True, True, False),
        (None, True, False, False),  # torch for CPUs
        ("13.0", False, False, False),
        ("13.0", True, False, True),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_line_with_the_cure(
    build, gpu, available, refused, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("torch.version.cuda", build)
    monkeypatch.setattr("torch.cuda.is_available", lambda: available)
    monkeypatch.setattr("bnpo.ranks.expects_cuda", lambda: gpu)
    if not refused:
        assert has_cuda() == available
        return
    with pytest.raises(
        InputError, match=r"cannot use the GPU of this machine\. Update .* in front of the command$"
    ):
        has_cuda()
    assert has_cuda(optional=True) == available
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
