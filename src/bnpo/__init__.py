"""BNPO: Beta Normalization Policy Optimization, and the methods its paper compares with.

Importing it sets what torch, DeepSpeed and vLLM read from the environment when they are imported, so import it before
them; values that the user has set are kept. It imports none of them, so that worker processes start fast and none
touches a GPU that is not its own.
"""

import logging
import os
import sys
import warnings
from pathlib import Path


def _set_defaults() -> None:
    defaults = {
        # The sampler lives in the learner's process: weights pass by reference, one process to kill.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # What vLLM starts under tensor parallelism must not be forked: CUDA does not survive that.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # Whether there are GPUs is asked of the driver's library, without CUDA, which would not survive a fork either.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # vLLM would pin each rank's threads to the same first cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # Triton, with which vLLM attends in float32 on GPUs, would round to TF32: a thousandth off.
        "TRITON_F32_DEFAULT": "ieee",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        # What learner and sampler free in turn is of all sizes: segments that grow leave no holes between them.
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        # What is compiled for GPUs is kept where vLLM and DeepSpeed keep theirs, not in the temporary directory.
        "TORCHINDUCTOR_CACHE_DIR": os.path.expanduser("~/.cache/torchinductor"),
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if ranks_here := os.environ.get("LOCAL_SIZE"):  # set by the DeepSpeed launcher
        # Ranks share the cores; a rank that takes all of them slows every other one down.
        defaults["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // int(ranks_here)))
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    # FlashInfer, with which vLLM attends on some GPUs, compiles with ninja, which pip installs beside the interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    # What they warn of when they start is no news: CPUs, and Triton without any. Errors are.
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())
    # DeepSpeed and vLLM call collectives by names that this torch has renamed; there is nothing a user can do.
    warnings.filterwarnings("ignore", message=r".*`torch\.distributed\.\w+` is deprecated", category=FutureWarning)


_set_defaults()
