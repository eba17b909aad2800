"""Which GPUs torch can use, and an error for GPUs that it cannot use. Nothing here initializes CUDA."""

import ctypes
import os
from pathlib import Path

import torch

from bnpo.files import InputError

DRIVERS = {12: "R525", 13: "R580"}
"""Oldest NVIDIA driver by major version of CUDA, from NVIDIA's CUDA compatibility guide."""


def has_cuda(optional: bool = False) -> bool:
    """Return whether torch can use a GPU. Raises InputError for one that it cannot use, or hides it if `optional`."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    present = any(Path("/dev").glob("nvidia[0-9]*")) and not hidden
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
