"""What a program does before its work: what it imports, which GPUs its processes see, what it says of a useless one."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bnpo.devices import check_compiler, check_float16, check_free_memory, cuda_problem
from bnpo.evaluation.program import fleet
from bnpo.files import ROOT, InputError
from bnpo.grading.grader import Grader
from bnpo.policy.sampler import EngineSettings

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


@pytest.mark.program
def test_samplers_see_their_own_gpus_from_the_first_instruction_on(tmp_path, monkeypatch):
    """As the kernel recorded it when they were started; for want of settings they end before they load a model."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    started: dict[int, list[str]] = {}

    def watch() -> None:
        deadline = time.monotonic() + 60
        while len(started) < 2 and time.monotonic() < deadline:
            for member in multiprocessing.active_children():
                place = Path(f"/proc/{member.pid}")
                if "spawn_main" in (place / "cmdline").read_text():
                    started[member.pid] = (place / "environ").read_text().split("\0")
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    settings = EngineSettings(max_tokens=192, dtype="float32", tensor_parallel=2)
    ends = pytest.raises(InputError, match=r"not the config\.json of a known language model")
    with ends, fleet(tmp_path, ["4", "5", "6", "7"], 2, settings):
        pass
    watcher.join()
    seen = [line for _, environment in sorted(started.items()) for line in environment if "VISIBLE" in line]
    assert seen == ["CUDA_VISIBLE_DEVICES=4,5", "CUDA_VISIBLE_DEVICES=6,7"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"  # ours is what it was


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


GPU, NO_GPU = True, False


@pytest.mark.parametrize(
    ("build", "present", "driver", "available", "message"),
    [
        ("13.0", GPU, 13000, True, None),
        ("13.0", GPU, 13020, True, None),  # a newer driver
        ("13.2", GPU, 13000, True, None),  # releases of one major number work with its first driver
        (None, GPU, 0, False, None),  # torch for CPUs
        (None, GPU, 12080, False, None),
        ("13.0", NO_GPU, 0, False, None),
        ("13.0", NO_GPU, 13000, False, None),  # a driver without a GPU
        (
            "13.0",
            GPU,
            12080,
            True,
            "CUDA 13.0, cannot use the GPU of this machine: the driver supports CUDA 12.8 at most. ",
        ),
        ("13.0", GPU, 12080, False, "driver R580 or newer is needed. Update the driver, start the container with the "),
        ("12.8", GPU, 11040, False, ". NVIDIA driver R525 or newer is needed. "),
        ("14.1", GPU, 13000, False, ". NVIDIA driver for CUDA 14 or newer is needed. "),
        ("13.0", GPU, 0, False, "libcuda.so.1 is not found: no driver, or a container without the NVIDIA runtime. NV"),
        ("13.0", GPU, 13000, False, "the driver is new enough, but no GPU is usable (nvidia-smi may say why). NVIDIA"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_line_with_the_cure(build, present, driver, available, message):
    problem = cuda_problem(build, present, driver, available)
    if message is None:
        assert problem is None
    else:
        assert message in problem
        assert "\n" not in problem
        assert problem.endswith("or use the CPU: CUDA_VISIBLE_DEVICES= in front of the command")


@pytest.mark.program
def test_the_driver_is_asked_for_its_version(tmp_path):
    source = tmp_path / "driver.c"
    source.write_text("int cuDriverGetVersion(int *version) { *version = 12080; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(source)], check=True)
    command = [sys.executable, "-c", "from bnpo.devices import driver_cuda; print(driver_cuda())"]
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == "12080\n"


def compiler_problem() -> str:
    """Return what `check_compiler` refuses, or an empty text."""
    try:
        check_compiler()
    except InputError as error:
        return str(error)
    return ""


def test_a_missing_compiler_or_header_is_a_line_with_the_cure(monkeypatch, tmp_path):
    for name in ("CC", "CPATH", "C_INCLUDE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    monkeypatch.setattr("shutil.which", lambda program: None)
    assert compiler_problem().endswith("apt-get install gcc python3-dev")
    monkeypatch.setattr("shutil.which", lambda program: "/usr/bin/clang" if program == "clang" else None)
    assert compiler_problem().startswith(f"no Python.h in {tmp_path}, ")
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "Python.h").touch()
    monkeypatch.setenv("CPATH", f":{headers}")
    assert compiler_problem() == ""
    (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CPATH")
    assert compiler_problem() == ""
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setenv("CC", "/opt/cc")
    assert compiler_problem() == ""


def test_float16_is_refused_on_a_cpu_without_it(monkeypatch):
    monkeypatch.setattr("bnpo.devices.trains_in_float16", lambda: False)
    check_float16("bfloat16")
    with pytest.raises(InputError, match=r"--dtype: this CPU has no float16 arithmetic .*; use float32 or bfloat16"):
        check_float16("float16")


def test_only_a_machine_with_gpus_needs_a_compiler(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    check_compiler()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="no C compiler"):
        check_compiler()


def test_a_gpu_that_another_program_uses_is_a_line_with_the_cure(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda gpu: (69 << 30, 80 << 30))
    check_free_memory(69 << 30)
    with pytest.raises(InputError) as error:
        check_free_memory(70 << 30)
    problem = str(error.value)
    assert problem.startswith("GPU 0: 69.0 of 80.0 GiB are free, but a rank of this run takes 70.0. Another program")
    assert "\n" not in problem
