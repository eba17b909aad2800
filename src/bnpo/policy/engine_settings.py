"""Settings of the sampler's engine, in a module that does not import vLLM (which takes seconds)."""

from dataclasses import dataclass

PREFILL_TOKENS = 8192
"""Prompt tokens that the sampler processes at once, at least."""
MOST_SEQUENCES = 512
"""Answers that the sampler draws at once, at most: the size of vLLM's largest CUDA graph. More run without graphs."""

MOST_REQUESTS = 4096
"""Requests that the engine holds at once. Those of a large evaluation would fill its memory, and delay its start."""


@dataclass(frozen=True)
class EngineSettings:
    """What a `Sampler` is made with."""

    max_tokens: int
    """Longest prompt plus answer."""
    dtype: str
    gpu_memory: float | None = 0.5
    """Share of the memory of its GPUs that the sampler takes. Unused on CPUs."""
    sequences: int | None = None
    """Answers drawn at once on GPUs, at most. None: vLLM's default, which knows the GPU but not the batch."""
    enforce_eager: bool = False  # run without CUDA graphs
    tensor_parallel: int = 1
    """Number of GPUs that share one copy of the model."""


def attention_backend(capability: int, can_compile: bool) -> str | None:
    """Return the attention of a GPU of this major compute capability. None: vLLM chooses.

    On Blackwell servers vLLM would choose FlashInfer, and fail where its kernels cannot be compiled.
    """
    return "FLASH_ATTN" if capability == 10 and not can_compile else None
