"""What a sampler is made with, in a module that imports neither torch nor vLLM (which take
seconds).
"""

from dataclasses import dataclass

PREFILL_TOKENS = 8192  # of prompts that the sampler processes at once, at least
# Answers drawn at once, at most: vLLM's largest CUDA graph; more would run without graphs
MOST_SEQUENCES = 512
MOST_MEMORY = 0.9  # of a GPU
# Requests that the engine holds at once: all of a large evaluation would fill its memory
MOST_REQUESTS = 4096


@dataclass(frozen=True)
class EngineSettings:
    """What a `Sampler` is made with."""

    max_tokens: int  # longest prompt plus answer
    dtype: str
    # Share of the memory of its GPUs that the sampler takes; None: what is free, up to MOST_MEMORY.
    # Unused on CPUs
    gpu_memory: float | None = 0.5
    # Answers drawn at once on GPUs, at most; None: vLLM's default for the GPU
    sequences: int | None = None
    enforce_eager: bool = False  # run without CUDA graphs
    tensor_parallel: int = 1  # GPUs that share one copy of the model
    sleeps: bool = True  # it can free its memory for a learner
