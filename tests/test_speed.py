"""The peak of a GPU by its name, and the rates of a step."""

import numpy as np
import pytest

from bnpo.policy.speed import TIMINGS, Stopwatch, peak_tflops, speed_metrics


@pytest.mark.parametrize(
    ("name", "peak"),  # as in the data sheets; None: not in the table
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H20", 148),
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9),
        ("NVIDIA RTX 6000 Ada Generation", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA GB200", None),
    ],
)
def test_peaks_by_the_names_of_gpus(name, peak):
    assert peak_tflops(name) == peak


def test_rates_of_a_step():
    watch = Stopwatch()
    watch.seconds |= {"total": 4.0, "update": 2.0}
    metrics = {"tokens/sampled": 100, "update/tflop": 3000.0}
    rates = {"seconds/total": 4.0, "seconds/update": 2.0, "tokens/per_second": 25.0, "tflops/per_second": 750.0}
    rates |= {"sampling/seconds_0": 1.0, "sampling/seconds_1": 3.0, "sampling/imbalance": 1.5}
    sampling = np.array([1.0, 3.0])
    assert speed_metrics(metrics, watch, sampling, gpu="NVIDIA L40") == rates
    assert speed_metrics(metrics, watch, sampling, gpu="NVIDIA H20") == rates | {"mfu": 750 / 148}
    assert all(name.startswith(TIMINGS) for name in rates)
