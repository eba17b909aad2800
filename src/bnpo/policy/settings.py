"""What the sampler is made with; known without vLLM, which takes seconds to import."""

from dataclasses import dataclass

PREFILL_TOKENS = 8192
"""Prompt tokens that the sampler takes at once, at least."""
MOST_SEQUENCES = 1024
"""Answers that the sampler draws at once, at most: with more the logits of a step would fill gigabytes."""


@dataclass(frozen=True)
class SamplerSettings:
    """`max_tokens` is the longest prompt plus answer. On GPUs the sampler takes the share `gpu_memory` of the memory of
    `tensor_parallel` GPUs, and draws up to `sequences` answers at once (None: as many as vLLM takes by default, which
    knows the GPU but not the batch)."""

    max_tokens: int
    dtype: str
    gpu_memory: float | None = 0.5
    sequences: int | None = None
    enforce_eager: bool = False
    tensor_parallel: int = 1
