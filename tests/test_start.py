"""What a program does before its work: what it imports, which GPUs its processes see, what it says of a useless one."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

from bnpo.evaluation.program import fleet
from bnpo.files import ROOT, InputError
from bnpo.grading.grader import Grader
from bnpo.policy.sampling import EngineSettings
from bnpo.ranks import has_cuda

HEAVY = ("torch", "transformers", "deepspeed", "vllm", "wandb")


@pytest.mark.program
def test_what_workers_and_refusals_need_imports_nothing_heavy():
    modules = "train, eval, bnpo.config, bnpo.grading.rewards, bnpo.evaluation.program, bnpo.evaluation.program"
    command = [sys.executable, "-c", f"import sys, {modules}; print(*sys.modules)"]
    imported = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "bnpo.grading.rewards" in imported
    assert {*HEAVY, "sympy", "scipy.special"} & set(imported) == set()


@pytest.mark.program
@pytest.mark.parametrize(
    ("given", "threads"),
    [({}, None), ({"LOCAL_SIZE": str(2 * len(os.sched_getaffinity(0)))}, "1"), ({"OMP_NUM_THREADS": "7"}, "7")],
)
def test_the_environment_gets_what_is_not_set(given, threads):
    """Threads for the ranks of a launcher alone: a program that starts one must not pass its own share on."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "VLLM_LOGGING_LEVEL": "INFO"} | given
    code = "import json, os; from bnpo.environment import setup_environment; setup_environment(); "
    command = [sys.executable, "-c", code + "print(json.dumps(dict(os.environ)))"]
    after = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert after["VLLM_LOGGING_LEVEL"] == "INFO"
    assert (after["PYTORCH_NVML_BASED_CUDA_CHECK"], after["VLLM_WORKER_MULTIPROC_METHOD"]) == ("1", "spawn")
    assert after.get("OMP_NUM_THREADS") == threads


@pytest.mark.program
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (("train.py", "--preset", "tiny", "--lr", "0"), "error: --lr: is 0.0, must be greater than 0"),
        (("train.py", "--preset", "tiny", "--gpus", "2"), "error: --gpus: needs --dry-run"),
        (("eval.py", "--ckpt", "x", "--seed", "-1"), "error: --seed: is -1, must be greater than or equal to 0"),
    ],
)
def test_wrong_flags_are_refused_before_anything_heavy_is_imported(program, message):
    command = [sys.executable, "-X", "importtime", *program]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    imported = {
        line.rpartition("|")[2].strip() for line in refused.stderr.splitlines() if line.startswith("import time:")
    }
    assert refused.returncode != 0
    assert message in refused.stderr + refused.stdout
    assert "bnpo.config" in imported
    assert set(HEAVY) & imported == set()


def test_workers_of_the_grader_import_nothing_heavy(tmp_path):
    """Under pytest, whose own main file they import, after torch was imported in this process."""
    assert "torch" in sys.modules
    file = tmp_path / "mine.py"
    file.write_text(f"import sys\ndef light(text, reference):\n    return not set({HEAVY}) & set(sys.modules)\n")
    grader = Grader(("accuracy", f"{file}:light"), workers=1)
    assert grader(["1"], ["1"]).rewards.tolist() == [[0.0, 1.0]]
    assert grader([r"\boxed{1+x}"], ["x+1"]).rewards.tolist() == [[1.0, 1.0]]  # math-verify is there now
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
    ends = pytest.raises(RuntimeError, match="a sampler's process ended with status -9; its error is above")
    with ends, fleet(tmp_path, [], 1, EngineSettings(max_tokens=192, dtype="float32")):
        pass
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
def test_a_gpu_that_torch_cannot_use_is_a_line_with_the_cure(build, gpu, available, refused, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr("torch.version.cuda", build)
    monkeypatch.setattr("torch.cuda.is_available", lambda: available)
    monkeypatch.setattr("bnpo.ranks.has_nvidia_gpu", lambda: gpu)
    if not refused:
        assert has_cuda() == available
        return
    with pytest.raises(InputError, match=r"cannot use the GPU of this machine\. Update .* in front of the command$"):
        has_cuda()
    assert has_cuda(optional=True) == available
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
