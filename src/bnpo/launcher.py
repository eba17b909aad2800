"""Which GPUs DeepSpeed's launcher gives to the ranks. Imports no torch."""

import os

from bnpo.environment import has_nvidia_gpu
from bnpo.files import InputError


def launcher_flags(ranks: int) -> list[str]:
    """Return the flags of `deepspeed` that start `ranks` ranks on the GPUs of CUDA_VISIBLE_DEVICES.

    `--num_gpus` alone would ignore the variable, and take GPU 0 and those that follow. Raises InputError.
    """
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if names in ("", "-1") or not has_nvidia_gpu():
        return ["--num_gpus", str(ranks)]
    gpus = [name.strip() for name in names.split(",")]
    problem = f"CUDA_VISIBLE_DEVICES={names}"
    if not all(gpu.isdecimal() for gpu in gpus):
        raise InputError(f"{problem}: DeepSpeed's launcher needs the numbers of GPUs, as nvidia-smi -L lists them")
    if len(gpus) < ranks:
        raise InputError(f"{problem}: names {len(gpus)} GPUs, but {ranks} ranks are started; lower --num_gpus")
    return ["--include", "localhost:" + ",".join(gpus[:ranks])]
