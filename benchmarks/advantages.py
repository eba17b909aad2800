"""Measure the time of computing the advantages of a large batch: 4,096 questions, 64 answers, 3 rewards, one core.

OMP_NUM_THREADS=1 python benchmarks/advantages.py
"""

import statistics
import time

import numpy as np

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import ALGORITHMS, Method

rng = np.random.default_rng(0)
rewards = rng.integers(0, 2, (4096, 64, 3)).astype(float)
SETTINGS = {"beta": {"beta_parameters": (1.5, 1.5)}, "weight": {"weight": "(1-p)**0.5"}}
extra = {"lengths": rng.integers(1, 1000, (4096, 64)), "greedy_rewards": rng.integers(0, 2, (4096, 3)).astype(float)}
for decompose in (False, True):
    for algo in sorted(ALGORITHMS.keys() - ({"gdpo"} if decompose else set())):  # gdpo separates the rewards itself
        method = Method(algo, decompose, **SETTINGS.get(algo, {}))
        seconds = []
        for _ in range(11):
            started = time.perf_counter()
            compute_advantages(method, rewards, **extra)
            seconds.append(time.perf_counter() - started)
        name = f"advantages_ms_{algo}{'_decomposed' if decompose else ''}"
        print(f"{name}: {1000 * statistics.median(seconds):.1f}")
