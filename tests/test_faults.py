"""What goes wrong in a run, caused for real: ranks that die or raise, numbers that are not
finite, several machines.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from bnpo.config import TINY_MODEL
from bnpo.errors import report
from bnpo.policy.speed import TIMINGS
from conftest import ROOT, free_port, json_lines, run_ranks, temporary_folder, users_environment

SMALL = ("--preset", "tiny", "--questions-per-step", 4, "--samples-per-question", 4)
SMALL += ("--max-answer-tokens", 32, "--watch-questions", 0)


def start_rank(rank: int, port: int, output: Path, fault: str) -> subprocess.Popen:
    """One of three ranks of a run that meet at a port."""
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    command = [sys.executable, "tests/programs/lifeline_check.py", fault]
    with output.open("w") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)


@pytest.mark.program
@pytest.mark.parametrize(("fault", "status"), [("rank 2 killed", -9), ("rank 2 raises", 1)])
def test_ranks_without_a_launcher_notice_in_a_collective_that_one_has_ended(
    fault, status, tmp_path
):
    port = free_port()
    ranks = [start_rank(rank, port, tmp_path / str(rank), fault) for rank in range(3)]
    assert [rank.wait(timeout=300) for rank in ranks] == [1, 1, status]
    outputs = [(tmp_path / str(rank)).read_text() for rank in range(3)]
    assert ("MemoryError: a fault of rank 2" in outputs[2]) == (status == 1)
    assert all("gloo" in output for output in outputs[:2])
    assert "failed: RuntimeError: " in outputs[0]
    assert "failed: " not in outputs[1]


@pytest.mark.sampler  # it fails before vLLM starts, but needs vLLM's build for CPUs
def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("", 0)) as another:
        port = another.getsockname()[1]
        run = ("train.py", *SMALL, "--steps", 1, "--output-dir", tmp_path / "run")
        refused = run_ranks(2, *run, check=False, environment={"MASTER_PORT": str(port)})
    assert refused.returncode == 2
    [line] = re.findall("error: .*", refused.stdout)
    assert line.startswith("error: the ranks cannot connect (DistNetworkError: ")
    assert str(port) in line
    assert "Traceback" not in refused.stdout
    assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]


# Longer than a launcher takes to notice that another rank has ended, shorter than ranks wait
LATE = 12


@pytest.mark.program
@pytest.mark.parametrize(
    ("stage", "message", "expected"),
    [
        ("checks", "the same", ["error: the same"]),
        ("met", "the same", ["error: the same"]),
        pytest.param("own", "of {rank}", ["error: of 1"], marks=pytest.mark.extra),
        pytest.param("met", "of {rank}", ["error: of 0"], marks=pytest.mark.extra),
    ],
)
def test_an_error_of_several_ranks_is_printed_once_however_late_the_first_is(
    stage, message, expected
):
    failed = run_ranks(2, "tests/programs/failing_rank.py", stage, message, LATE, check=False)
    assert re.findall("error: .*", failed.stdout) == expected
    assert "Traceback" not in failed.stdout
    assert failed.returncode == 2


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.sampler
def test_both_programs_refuse_weights_that_are_nan_by_name(tmp_path):
    """test_weights.py has other damages."""
    model, run = shutil.copytree(TINY_MODEL, tmp_path / "model"), tmp_path / "run"
    tensors = load_file(model / "model.safetensors")
    tensors[NORM].fill_(torch.nan)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    commands = {
        2: ("train.py", *SMALL, "--steps", 1, "--eval-every", 0, "--model", model),
        0: ("eval.py", "--suite", "arithmetic", "--ckpt", model),
    }
    for ranks, command in commands.items():
        failed = run_ranks(ranks, *command, "--output-dir", run, check=False)
        assert failed.returncode == 2
        [line] = re.findall("error: .*", failed.stdout)
        assert f"{NORM} has numbers that are NaN" in line
        assert str(model) in line
        assert "Traceback" not in failed.stdout
        assert not (run / "metrics.jsonl").exists()


def test_too_little_gpu_memory_is_a_line_with_the_cure(capsys):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nOf 80")
    assert report(error) == 1
    line = capsys.readouterr().err
    assert line.startswith("error: OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. ")
    assert "Lower --micro-batch-tokens or --gpu-memory. scripts/plan.py" in line
    assert line.count("\n") == 1


@pytest.mark.sampler
def test_a_fault_of_ours_keeps_its_traceback(tmp_path):
    run = tmp_path / "run"
    flags = (*SMALL, "--steps", 1, "--eval-every", 0, "--output-dir", run)
    failed = run_ranks(2, "tests/programs/internal_error.py", *flags, check=False)
    assert failed.returncode == 1
    [line] = re.findall("error: .*", failed.stdout)
    assert line.startswith("error: the program failed (KeyError: 'a fault of ours'). ")
    assert line.endswith(f"{run / 'error.txt'}")
    assert failed.stdout.count("Traceback") == 1
    kept = (run / "error.txt").read_text()
    assert "in check_start" in kept
    assert kept.rstrip().endswith("KeyError: 'a fault of ours'")


def start(output: Path, run: Path, *launcher_flags: object) -> subprocess.Popen:
    """A launcher with one core a rank; two machines would not know that they share the cores."""
    command = [sys.executable, "scripts/launch.py", *launcher_flags, "train.py", *SMALL]
    command += ["--steps", 50, "--save-every", 2, "--eval-every", 0, "--rollouts-every", 1]
    command = list(map(str, [*command, "--output-dir", run]))
    environment = users_environment() | {"OMP_NUM_THREADS": "1"}
    with output.open("w") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)


def kill_rank(rank: int, run: Path, launchers: list[subprocess.Popen], output: Path) -> None:
    """SIGKILL for `rank` once step 2 has its checkpoint. All processes must end by themselves."""
    while not (run / "checkpoints" / "step-000002").exists():
        assert all(launcher.poll() is None for launcher in launchers), output.read_text()[-5000:]
        time.sleep(0.1)
    started = [psutil.Process(launcher.pid).children(recursive=True) for launcher in launchers]
    everyone = list(chain.from_iterable(started))
    graders = [p for p in everyone if "mathequal.workers" in " ".join(p.cmdline())]
    assert len(graders) > 2
    programs = [p for p in everyone if "train.py" in p.cmdline() and "RANK" in p.environ()]
    [victim] = [process for process in programs if process.environ()["RANK"] == str(rank)]
    victim.send_signal(signal.SIGKILL)
    for launcher in launchers:
        assert launcher.wait(timeout=180) != 0
    _, alive = psutil.wait_procs(everyone, timeout=30)
    assert alive == []


@pytest.fixture(scope="module")
def one_machine(tmp_path_factory) -> Path:
    """A run of two ranks whose rank 0 was killed."""
    folder = tmp_path_factory.mktemp("one")
    output, run = folder / "output", folder / "run"
    launcher = start(output, run, "--num_gpus", 2, "--master_port", free_port())
    kill_rank(0, run, [launcher], output)
    return folder


@pytest.mark.sampler
def test_a_killed_rank_ends_the_job(one_machine):
    output = (one_machine / "output").read_text()
    assert "exits with return code = -9" in output
    assert "\nerror: a rank was killed by signal 9." in output
    assert not (one_machine / "run" / "end.json").exists()  # rank 0 writes it


@pytest.mark.extra
@pytest.mark.sampler
def test_two_launchers_compute_what_one_does_and_end_together(one_machine, tmp_path):
    run, hosts = tmp_path / "run", tmp_path / "hosts"
    hosts.write_text("machine-0 slots=1\nmachine-1 slots=1\n")
    place = ("--hostfile", hosts, "--no_ssh", "--master_addr", "127.0.0.1")
    place += ("--master_port", free_port(), "--node_rank")
    launchers = [start(tmp_path / f"output{i}", run, *place, i) for i in range(2)]
    kill_rank(1, run, launchers, tmp_path / "output0")
    assert "exits with return code = -9" in (tmp_path / "output1").read_text()
    assert "gloo" in json.loads((run / "end.json").read_text())["why"]
    metrics = [json_lines(folder / "metrics.jsonl")[:2] for folder in (run, one_machine / "run")]
    for line in chain(*metrics):
        for name in [name for name in line if name.startswith(TIMINGS)]:
            del line[name]
    assert metrics[0] == metrics[1]
    assert [line["step"] for line in metrics[0]] == [1, 2]
    for file in ("rollouts/step-000002.jsonl", "checkpoints/step-000002/model.safetensors"):
        assert (one_machine / "run" / file).read_bytes() == (run / file).read_bytes()


@pytest.mark.sampler
def test_a_run_of_bad_updates_keeps_its_batches_and_its_weights_and_stops(tmp_path):
    """The advantages of this estimator are too large for fp32."""
    run, estimator = tmp_path / "run", tmp_path / "huge.py"
    estimator.write_text(
        "from bnpo_estimators import estimator\n\n\n@estimator()\ndef huge(batch):\n"
        "    return 1e39 * (batch.rewards - batch.accuracies)\n"
    )
    flags = ("--algo", f"{estimator}:huge", "--save-every", 1)
    flags += ("--questions-per-step", 8, "--samples-per-question", 16)
    flags += ("--eval-every", 0, "--rollouts-every", 0, "--steps", 9, "--output-dir", run)
    failed = run_ranks(2, "train.py", *SMALL, *flags, check=False)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stdout
    [line] = re.findall("error: .*", failed.stdout)
    assert "was not finite in 3 steps in a row, up to step 3" in line
    assert f"{run}/rollouts" in line
    end = json.loads((run / "end.json").read_text())
    assert end["step"] == 3
    assert end["why"].startswith("RunError: ")
    lines = json_lines(run / "metrics.jsonl")
    assert [line["bad_steps"] for line in lines] == [1, 2, 3]
    assert {line["updates/skipped"] for line in lines} == {1}
    assert lines[0]["loss"] is lines[0]["grad_norm"] is None
    assert lines[0]["sync/difference"] < 1e-4
    saved = load_file(run / "checkpoints" / "step-000001" / "model.safetensors")
    for name, weight in load_file(TINY_MODEL / "model.safetensors").items():
        assert torch.equal(saved[name], weight)
    kept = sorted(path.name for path in (run / "rollouts").iterdir())
    assert kept == [f"step-00000{step}.jsonl" for step in (1, 2, 3)]
    rows = json_lines(run / "rollouts" / "step-000002.jsonl")
    assert len(rows) == 128
    assert any(row["advantage"] for row in rows)
    assert len(json_lines(run / "tokens" / "step-000002.jsonl")) == 32


@pytest.mark.sampler
def test_a_signal_during_an_evaluation_loses_nothing_of_the_step(tmp_path):
    suite, run = tmp_path / "suite.json", tmp_path / "run"
    dataset = {"data": "arithmetic", "problems": 4, "repetitions": 1}
    sampling = {"temperature": 0.6, "top_p": 1.0, "template": "chat"}
    sampling |= {"max_prompt_tokens": 64, "max_answer_tokens": 32}
    suite.write_text(json.dumps({"datasets": {"arithmetic": dataset}, **sampling}))
    flags = (*SMALL, "--watch-questions", 2, "--steps", 2, "--rollouts-every", 1, "--eval-every", 1)
    flags += ("--eval-suite", suite, "--output-dir", run)
    run_ranks(1, "tests/programs/signalled_evaluation.py", *flags)
    assert json.loads((run / "end.json").read_text()) == {"step": 1, "why": "signalled"}
    assert (run / "last").resolve().name == "step-000001"
    assert (run / "evals" / "step-000001" / "results.json").exists()
    watched = json_lines(run / "watch" / "step-000001.jsonl")
    assert len(watched) == 2 * 4
    run_ranks(1, "train.py", *flags, "--resume")
    watched = sorted(file.stem for file in (run / "watch").iterdir())
    assert watched == [f"step-00000{step}" for step in (0, 1, 2)]


@pytest.mark.extra
@pytest.mark.sampler
def test_a_launcher_under_nohup_with_a_full_disk_and_one_that_is_killed(tmp_path):
    """SIGHUP, which nohup ignores, stops nothing. Without their launcher the ranks stop after
    their step.
    """
    run = tmp_path / "run"
    command = [sys.executable, "scripts/launch.py", "--num_gpus", "2", "train.py", *SMALL]
    command += ["--steps", 1000, "--eval-every", 0, "--output-dir", run]
    with open("/dev/full", "w") as full, temporary_folder() as folder:
        launcher = subprocess.Popen(
            list(map(str, command)),
            **{"cwd": ROOT, "env": users_environment() | folder | {"OMP_NUM_THREADS": "1"}},
            **{"stdout": full, "stderr": full},
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )

        def wait_for_steps(steps: int) -> None:
            metrics = run / "metrics.jsonl"
            while not metrics.exists() or metrics.read_text().count("\n") < steps:
                assert launcher.poll() is None
                time.sleep(0.1)

        wait_for_steps(1)
        everyone = psutil.Process(launcher.pid).children(recursive=True)
        for process in (launcher, *everyone):
            process.send_signal(signal.SIGHUP)
        wait_for_steps((run / "metrics.jsonl").read_text().count("\n") + 3)
        launcher.kill()
        assert launcher.wait(timeout=10) == -signal.SIGKILL
        _, alive = psutil.wait_procs(everyone, timeout=300)
        assert alive == []
    end = json.loads((run / "end.json").read_text())
    assert end == {"step": (run / "metrics.jsonl").read_text().count("\n"), "why": "signalled"}
    assert (run / "last").resolve().name == f"step-{end['step']:06d}"


ONE_STEP = (*SMALL, "--steps", 1, "--eval-every", 0)
CANNOT_CONNECT = (
    r"error: the ranks cannot connect \(RuntimeError: .*eth99\); .* correct or unset "
    r"GLOO_SOCKET_IFNAME, "
)


NO_NETWORK = {"GLOO_SOCKET_IFNAME": "eth99"}
TOO_STRICT = ("--sync-tolerance", 1e-12)


@pytest.mark.parametrize(
    ("environment", "flags", "message"),
    [
        pytest.param(NO_NETWORK, (), CANNOT_CONNECT, marks=pytest.mark.sampler),
        pytest.param({}, TOO_STRICT, "error: .*--sync-tolerance", marks=pytest.mark.sampler),
    ],
)
def test_a_run_that_cannot_start_says_so_once_and_leaves_no_run(
    environment, flags, message, tmp_path
):
    run = tmp_path / "run"
    command = ("train.py", *ONE_STEP, *flags, "--output-dir", run)
    failed = run_ranks(2, *command, check=False, environment=environment)
    assert failed.returncode in (1, 2)
    assert len(re.findall("error: .*", failed.stdout)) == 1
    assert re.search(message, failed.stdout)
    assert "Traceback" not in failed.stdout
    assert [path.name for path in run.iterdir()] == [".lock"]
