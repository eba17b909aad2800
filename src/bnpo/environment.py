"""Environment of a process that trains or samples: what torch, DeepSpeed and vLLM read when they are imported."""

import logging
import os
import sys
import warnings
from importlib import metadata
from pathlib import Path

DEFAULTS = {
    # The sampler lives in the learner's process: weights pass by reference, and there is one process to kill.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Processes that vLLM starts for tensor parallelism must not be forked: CUDA does not survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Ask the driver's library whether there are GPUs, without starting CUDA, for the same reason.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # Otherwise vLLM pins the threads of every rank to the same first cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Triton computes vLLM's fp32 attention on GPUs. With its default, TF32, results are off by a thousandth.
    "TRITON_F32_DEFAULT": "ieee",
    # Otherwise tensor parallelism on NVSwitch machines compiles an all-reduce, which fails without a CUDA toolkit and
    # sums in no fixed order. vLLM's own takes its place.
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
    # vLLM needs it for CUDA graphs that sleep, and sets it only after the learner's NCCL communicators exist.
    "NCCL_GRAPH_REGISTER": "0",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    # Learner and sampler free memory in turn, in pieces of all sizes. Growing segments leave no holes between them.
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    # Keep compiled GPU kernels in the user's cache, as vLLM and DeepSpeed do, not in the temporary directory.
    "TORCHINDUCTOR_CACHE_DIR": os.path.expanduser("~/.cache/torchinductor"),
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def setup_environment() -> None:
    """Set environment variables, log levels and warning filters. Call it before importing torch, DeepSpeed or vLLM."""
    for name, value in DEFAULTS.items():  # what the user has set stays
        os.environ.setdefault(name, value)
    ranks_here = os.environ.get("LOCAL_SIZE")  # set by the DeepSpeed launcher
    if ranks_here:
        # The ranks of a machine share its cores. A rank that takes all of them slows down every other one.
        threads = max(1, len(os.sched_getaffinity(0)) // int(ranks_here))
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # FlashInfer, vLLM's attention on some GPUs, compiles with ninja, which pip installs beside the interpreter.
    scripts = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if path.split(os.pathsep)[0] != scripts:
        os.environ["PATH"] = f"{scripts}{os.pathsep}{path}"
    # vLLM for CPUs requires torchvision and its like, and pip installs their builds for GPUs, which transformers then
    # fails to import. No text model needs them, so they are hidden: importing them raises ModuleNotFoundError.
    if build_of("torch") == "cpu":
        for package in ("torchaudio", "torchcodec", "torchvision"):
            if build_of(package) not in ("cpu", None):
                sys.modules.setdefault(package, None)
    # At start they warn that there are no GPUs and no Triton. Users of CPUs know that.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    # DeepSpeed and vLLM call collectives by names that this torch has renamed. Users cannot change that.
    warnings.filterwarnings("ignore", message=r".*`torch\.distributed\.\w+` is deprecated", category=FutureWarning)


def build_of(package: str) -> str | None:
    """Return the build in a package's version: `cpu` for 2.13.0+cpu, empty for 2.13.0. None: it is not installed."""
    try:
        return metadata.version(package).partition("+")[2]
    except metadata.PackageNotFoundError:
        return None
