"""How fast a step was: seconds of its phases, tokens a second, and how busy the update kept the GPUs."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

PEAK_TFLOPS = {
    "A100": 312,
    "A800": 312,
    "H20": 148,
    "H100": 989,
    "H100 NVL": 835,
    "H100 PCIe": 756,
    "H200": 989,
    "H200 NVL": 835,
    "H800": 989,
    "H800 PCIe": 756,
    "GH200": 989,
    "B200": 2250,
    "L40S": 362,
    "RTX 4090": 165.2,
    "RTX 5090": 209.5,
    "RTX PRO 6000": 503.8,
    "RTX PRO 6000 Max Q": 438.9,
}
"""Dense bf16 operations a second with fp32 sums, in 10^12, by words of a GPU's name.

From NVIDIA's data sheets and architecture papers; where they give the rate with sparsity alone (H100, H200, B200), half
of it, and for the RTX PRO 6000 an eighth of the rate in FP4 with sparsity."""
OTHER_CHIPS = {"D", "Laptop", "MIG"}
"""Words that make a smaller GPU of a name that is known otherwise, or a slice of one."""


def update_operations(parameters: int, layers: int, hidden: int, tokens: float, pairs: float) -> float:
    """Operations of a forward and a backward pass of `tokens` of which `pairs` attend to each other, twice counted: 6
    for every parameter and token, and causal attention (Chowdhery et al. 2022, appendix B)."""
    return 6 * (parameters * tokens + layers * hidden * pairs)


class Stopwatch:
    """Seconds spent in the named phases of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started


def peak_tflops(gpu: str) -> float | None:
    """Dense bf16 operations a second in 10^12 of the GPU that torch calls `gpu`; None if it is not known.

    >>> peak_tflops("NVIDIA H20-3e"), peak_tflops("NVIDIA H100 PCIe"), peak_tflops("NVIDIA T4")
    (148, 756, None)
    """
    words = set(re.findall(r"\w+", gpu))
    known = [name for name in PEAK_TFLOPS if words.issuperset(name.split())]
    if not known or words & OTHER_CHIPS:
        return None
    return PEAK_TFLOPS[max(known, key=len)]  # the longest: the variant, if it is one


def gpu_name() -> str:
    """What torch calls this rank's GPU; empty on CPUs."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


TIMINGS = ("seconds/", "sampling/", "tokens/per_second", "tflops/per_second", "mfu")
"""How names of metrics begin that differ between runs that are otherwise equal."""


def speed_metrics(
    metrics: dict[str, float], watch: Stopwatch, sampling: np.ndarray, ranks: int, gpu: str
) -> dict[str, float]:
    """Seconds of every phase; how long each rank sampled, from `sampling` [ranks] in seconds, and the slowest over the
    mean, for which the others wait; sampled tokens a second over the whole step; and how busy the update kept each
    rank: in 10^12 operations a second, and, if `gpu` is known, as the share of its peak (MFU)."""
    speed = {f"seconds/{phase}": value for phase, value in watch.seconds.items()}
    speed |= {f"sampling/seconds_{rank}": float(seconds) for rank, seconds in enumerate(sampling)}
    speed["sampling/imbalance"] = float(sampling.max() / sampling.mean())
    speed["tokens/per_second"] = metrics["tokens/sampled"] / watch.seconds["total"]
    speed["tflops/per_second"] = metrics["update/tflop"] / watch.seconds["update"] / ranks
    peak = peak_tflops(gpu)
    if peak is not None:
        speed["mfu"] = speed["tflops/per_second"] / peak
    return speed
