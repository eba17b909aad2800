"""The GPUs that torch can use, and the refusal where the machine has some that it cannot. Nothing here starts CUDA."""

import ctypes
import os
from pathlib import Path

import torch

from bnpo.files import InputError

DRIVERS = {12: "R525", 13: "R580"}
"""Oldest NVIDIA driver for the releases of CUDA, by their first number; from NVIDIA's CUDA compatibility guide."""


def has_cuda(optional: bool = False) -> bool:
    """Whether torch can use a GPU of this machine.

    Raises InputError where there is one that it cannot use; where GPUs are `optional`, they are hidden from this
    process instead, and the answer is no.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    present = any(Path("/dev").glob("nvidia[0-9]*")) and not hidden
    problem = cuda_problem(torch.version.cuda, present, driver_cuda(), torch.cuda.is_available())
    if problem and not optional:
        raise InputError(problem)
    if problem:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return torch.cuda.is_available()


def cuda_problem(build: str | None, present: bool, driver: int, available: bool) -> str | None:
    """Why torch, built for CUDA `build` (None: for CPUs), cannot use the GPUs of this machine, in one line; None where
    nothing is wrong.

    `present`: there is the file of a GPU, not hidden by the user. `driver`: what `driver_cuda` returns. `available`:
    what torch says, which asks the driver's management library alone and overlooks that a driver is too old.
    """
    if build is None or not present:
        return None
    major = int(build.split(".")[0])
    if available and driver >= 1000 * major:
        return None
    if not driver:
        found = "libcuda.so.1 is not found: no driver, or a container without the NVIDIA runtime"
    elif driver < 1000 * major:
        found = f"the driver here knows CUDA {driver // 1000}.{driver % 1000 // 10} at most"
    else:
        found = "the driver is new enough, yet no GPU is usable (nvidia-smi may say why)"
    return (
        f"this machine has a GPU that torch, built for CUDA {build}, cannot use; {found}. It needs NVIDIA driver "
        f"{DRIVERS.get(major, f'for CUDA {major}')} or newer: update it, start the container with its runtime "
        "(--gpus all), or use the CPU: CUDA_VISIBLE_DEVICES= in front of the command"
    )


def driver_cuda() -> int:
    """The newest CUDA that the driver knows, 1000 * major + 10 * minor, as its own library says; 0 without one."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    version = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name: the GPUs of this process, none on CPUs. Raises InputError as `has_cuda`."""
    count = torch.cuda.device_count() if has_cuda() else 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return (named.split(",") if named else [str(i) for i in range(count)])[:count]
