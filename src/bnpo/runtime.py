"""Process settings that torch, DeepSpeed and vLLM read from the environment when they are imported.

Import this module before any of them. Values that the user has set are kept.
"""

import os
import sys
import warnings
from pathlib import Path


def _set_defaults() -> None:
    ranks_here = int(os.environ.get("LOCAL_SIZE", "1"))  # set by the DeepSpeed launcher
    defaults = {
        # Ranks share the cores; a rank that takes all of them slows every other one down.
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // ranks_here)),
        # The sampler lives in the learner's process: weights pass by reference, one process to kill.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
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
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    import torch  # not before OMP_NUM_THREADS is set

    if not torch.cuda.is_available():
        # On CPUs vLLM has one small function compiled: seconds in every process, and nothing gained.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # DeepSpeed compiles its shared-memory collective with ninja, which pip installs beside the interpreter.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # DeepSpeed and vLLM call collectives by names that this torch has renamed; there is nothing a user can do.
    warnings.filterwarnings("ignore", message=r".*`torch\.distributed\.\w+` is deprecated", category=FutureWarning)


_set_defaults()
