"""Speed of a step: seconds per phase, tokens per second, and how well the update used the GPUs."""

import re

import numpy as np
import torch

from bnpo.algorithm.batching import sort_texts, training_text
from bnpo.batch import Batch

# GPUs by words of their names, PCIe versions first: peak in 10^12 dense bf16 operations per second
# with fp32 sums. From NVIDIA's data sheets and architecture papers. Where they give only the rate
# with sparsity, half of it is used.
PEAKS = {
    "A100": 312,
    "A100 80GB": 312,
    "A800": 312,
    "H20": 148,
    "H100 PCIe": 756,
    "H100": 989,
    "H200": 989,
    "H800 PCIe": 756,
    "H800": 989,
    "GH200": 989,
    "B200": 2250,
    "L40S": 362,
    "RTX 4090": 165.2,
    "RTX 5080": 112.6,
    "RTX 5090": 209.5,
    "RTX PRO 6000": 503.8,
}
OTHER_CHIPS = {"D", "Laptop", "MIG", "NVL", "Max"}  # in names of slower variants, or of slices
TIMINGS = ("seconds/", "sampling/", "tokens/per_second", "tflops/per_second", "mfu")
"""Prefixes of metrics that differ between runs with equal results."""


def training_operations(model: torch.nn.Module, batch: Batch, advantages: np.ndarray) -> float:
    """Return the operations of a training pass of a partitioned `model` over the answers of `batch`
    whose `advantages` [q, m] are not 0 (Chowdhery et al. 2022, appendix B).

    A parameter takes 6 per token, 2 less if it is frozen. A pair of tokens takes 12 per layer and
    hidden unit. Every distinct beginning of the answers with their prompts counts once. Work that
    is repeated in gradient checkpointing, or in several micro-batches, does not count.
    """
    trained = zip(batch.trained_answers, advantages[batch.trained_groups].flat, strict=True)
    texts = [
        training_text(prompt, answer.token_ids)
        for (prompt, answer), advantage in trained
        if advantage != 0
    ]
    order, shared = sort_texts(texts)
    lengths = np.array([len(texts[i]) for i in order])
    tokens = (lengths - shared).sum()
    # Pairs of a token and an earlier one: about L^2 / 2 in a text of L tokens
    double_pairs = (lengths**2 - shared**2).sum()
    # An embedding that is not tied to the head is only a look-up table.
    table = None if model.config.tie_word_embeddings else model.get_input_embeddings().weight
    multiplied = [parameter for parameter in model.parameters() if parameter is not table]
    per_token = sum(
        parameter.ds_numel * (6 if parameter.requires_grad else 4) for parameter in multiplied
    )
    per_pair = 6 * model.config.num_hidden_layers * model.config.hidden_size
    return float(per_token * tokens + per_pair * double_pairs)


def peak_tflops(gpu: str) -> float | None:
    """Return the peak of a GPU in 10^12 operations per second, from its name in torch. None: it
    is not known.
    """
    words = set(re.findall(r"\w+", gpu))
    peaks = [peak for name, peak in PEAKS.items() if words.issuperset(name.split())]
    return peaks[0] if peaks and not words & OTHER_CHIPS else None


def gpu_name() -> str:
    """Return the name of this rank's GPU. Empty on CPUs."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def speed_metrics(
    metrics: dict[str, float], seconds: dict[str, float], sampling: np.ndarray, gpu: str
) -> dict[str, float]:
    """Return the speed metrics of a step, from its other `metrics`, the `seconds` of its phases and
    the seconds that each rank sampled [ranks].
    """
    speed = {f"seconds/{phase}": value for phase, value in seconds.items()}
    speed |= {f"sampling/seconds_{rank}": float(time) for rank, time in enumerate(sampling)}
    # The other ranks wait for the slowest one.
    speed["sampling/imbalance"] = float(sampling.max() / sampling.mean())
    speed["tokens/per_second"] = metrics["tokens/sampled"] / seconds["total"]
    # Per rank, so that it can be compared with the peak of a GPU.
    speed["tflops/per_second"] = metrics["update/tflop"] / seconds["update"] / len(sampling)
    peak = peak_tflops(gpu)
    if peak is not None:  # mfu: model FLOPs utilization, the share of the peak
        speed["mfu"] = speed["tflops/per_second"] / peak
    return speed
