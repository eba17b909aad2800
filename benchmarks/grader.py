"""Measure the time of grading answers to real problems of MATH, with workers that have started.

BNPO_DATA=<folder with math_train.jsonl> python benchmarks/grader.py
"""

import os
import statistics
import time
from pathlib import Path

import numpy as np

from bnpo.data import load_problems
from bnpo.files import ROOT
from bnpo.grading.grader import Grader

BATCHES = 12
ANSWERS = 512
SINGLES = 1_000


def main() -> None:
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
    references = [problem.answer for problem in load_problems(folder / "math_train.jsonl") if problem.answer]
    rng = np.random.default_rng(0)
    grader = Grader()

    def answer(kind: int, reference: str) -> str:
        """Return a right answer, a wrong one (the answer of another problem), or one without a box."""
        other = references[rng.integers(len(references))]
        return (f"So it is $\\boxed{{{reference}}}$.", f"So it is $\\boxed{{{other}}}$.", f"So it is {reference}.")[
            kind
        ]

    seconds = []
    for _ in range(BATCHES + 2):  # the first two warm the workers up
        chosen = [references[i] for i in rng.integers(len(references), size=ANSWERS)]
        texts = [answer(i % 3, reference) for i, reference in enumerate(chosen)]
        started = time.perf_counter()
        grader(texts, chosen)
        seconds.append(time.perf_counter() - started)
    print(f"grader_batch_seconds: {statistics.median(seconds[2:]):.3f}")
    print(f"grader_batch_seconds_max: {max(seconds[2:]):.3f}")

    seconds = []
    for i in range(SINGLES):
        reference = references[rng.integers(len(references))]
        text = answer(i % 3, reference)
        started = time.perf_counter()
        grader([text], [reference])
        seconds.append(time.perf_counter() - started)
    print(f"grader_single_median_seconds: {statistics.median(seconds):.6f}")
    print(f"grader_single_p99_seconds: {np.quantile(seconds, 0.99):.4f}")
    grader.close()


if __name__ == "__main__":
    main()
