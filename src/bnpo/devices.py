"""Which GPUs torch can use, and one-line errors for what a machine with GPUs lacks.

Only `check_free_memory` initializes CUDA.
"""

import ctypes
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

from bnpo.environment import has_nvidia_gpu
from bnpo.files import InputError

DRIVERS = {12: "R525", 13: "R580"}
"""Oldest NVIDIA driver by major version of CUDA, from NVIDIA's CUDA compatibility guide."""


def has_cuda(optional: bool = False) -> bool:
    """Return whether torch can use a GPU. Raises InputError for one that it cannot use, or hides it if `optional`."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    present = has_nvidia_gpu() and not hidden
    problem = cuda_problem(torch.version.cuda, present, driver_cuda(), torch.cuda.is_available())
    if problem and not optional:
        raise InputError(problem)
    if problem:  # libraries would fail at the GPU that they see
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return torch.cuda.is_available()


def cuda_problem(build: str | None, present: bool, driver: int, available: bool) -> str | None:
    """Return in one line why torch, built for CUDA `build` (None: for CPUs), cannot use the GPUs. None: it can.

    `present`: there is a GPU that the user has not hidden. `driver`, `available`: what `has_cuda` passes.
    """
    if build is None or not present:
        return None
    major = int(build.split(".")[0])
    # torch asks only the management library of the driver, and does not notice a driver that is too old.
    if available and driver >= 1000 * major:
        return None
    if not driver:
        reason = "libcuda.so.1 is not found: no driver, or a container without the NVIDIA runtime"
    elif driver < 1000 * major:
        reason = f"the driver supports CUDA {driver // 1000}.{driver % 1000 // 10} at most"
    else:
        reason = "the driver is new enough, but no GPU is usable (nvidia-smi may say why)"
    needed = DRIVERS.get(major, f"for CUDA {major}")
    return (
        f"torch, built for CUDA {build}, cannot use the GPU of this machine: {reason}. NVIDIA driver {needed} or newer "
        "is needed. Update the driver, start the container with the NVIDIA runtime (--gpus all), or use the CPU: "
        "CUDA_VISIBLE_DEVICES= in front of the command"
    )


def driver_cuda() -> int:
    """Return the newest CUDA version that the driver supports: 1000 * major + 10 * minor, or 0 without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    version = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def visible_gpus() -> list[str]:
    """Return the GPUs of this process, as CUDA_VISIBLE_DEVICES names them. Raises InputError like `has_cuda`."""
    count = torch.cuda.device_count() if has_cuda() else 0
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = names.split(",") if names else list(map(str, range(count)))
    return gpus[:count]  # CUDA ignores names after one that it does not know


def check_compiler() -> None:
    """Raise InputError if torch can use a GPU, and Triton lacks something to compile its launchers of GPU kernels.

    Triton would fail only after the model is loaded, with the errors of a compiler.
    """
    if not torch.cuda.is_available():
        return
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):  # as Triton looks for it
        raise InputError("no C compiler (gcc), which GPU kernels need. Install it: apt-get install gcc python3-dev")
    folders = [sysconfig.get_paths()["include"]]
    for name in ("CPATH", "C_INCLUDE_PATH"):  # where a compiler also looks
        folders += os.environ.get(name, "").split(os.pathsep)
    if not any((Path(folder) / "Python.h").is_file() for folder in folders if folder):
        problem = f"no Python.h in {folders[0]}, which GPU kernels need"
        raise InputError(f"{problem}. Install it: apt-get install python3-dev")


def trains_in_float16() -> bool:
    """Return whether DeepSpeed trains in float16 here: on a GPU, or on a CPU that has instructions for it."""
    from deepspeed.accelerator import get_accelerator  # takes seconds to import

    return bool(get_accelerator().is_fp16_supported())


def end_on_gpus() -> None:
    """End this process with success if it has used a GPU, before libraries can crash as the interpreter shuts down."""
    if torch.cuda.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def check_float16(dtype: str) -> None:
    """Raise InputError for float16 where DeepSpeed would refuse it, after the model is loaded."""
    if dtype == "float16" and not trains_in_float16():
        raise InputError("--dtype: this CPU has no float16 arithmetic (AVX512-FP16); use float32 or bfloat16")


def check_free_memory(needed: int) -> None:
    """Raise InputError if this rank's GPU has less than `needed` bytes free, because other programs use it."""
    gpu = int(os.environ.get("LOCAL_RANK", "0"))
    free, total = torch.cuda.mem_get_info(gpu)
    if free < needed:
        raise InputError(
            f"GPU {gpu}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free, but a rank of this run takes "
            f"{needed / 2**30:.1f}. Another program uses this GPU. End it (nvidia-smi lists programs), or use other "
            "GPUs: deepspeed --include localhost:1 train.py ..."
        )
