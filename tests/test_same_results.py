"""Seeded runs give what is recorded here to the last bit: metrics without timings, rollouts and
weights.

Recorded so that no rearrangement changes a result. A change that is meant to alter
results replaces the hashes that it alters, and says so in its commit.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from bnpo.policy.speed import TIMINGS
from conftest import json_lines, run_ranks

pytestmark = pytest.mark.sampler

DECOMPOSED = ("--decompose", "--rewards", "accuracy,format")
RUNS = {
    "bnpo, one rank": (1, "--algo", "bnpo"),
    "bnpo, two ranks": (2, "--algo", "bnpo"),
    "remax decomposed, one rank": (1, "--algo", "remax", *DECOMPOSED),
    "remax decomposed, two ranks": (2, "--algo", "remax", *DECOMPOSED),
    "reinforce_pp decomposed, one rank": (1, "--algo", "reinforce_pp", *DECOMPOSED),
    "reinforce_pp decomposed, two ranks": (2, "--algo", "reinforce_pp", *DECOMPOSED),
}
"""Number of ranks, then flags."""
RECORDED = {
    "692ca92a848e941d on 2 cores": {
        "bnpo, one rank": ["3af5ab44e43b862f", "f8253651c78008d2", "39fbca9c6fe52c38"],
        "bnpo, two ranks": ["32b692c3fbbc5765", "f8253651c78008d2", "3c0fc82925a12c6e"],
        "remax decomposed, one rank": ["913d191b6fabb2dd", "ca0e61637951f1e2", "6132926bf79eddc5"],
        "remax decomposed, two ranks": ["5cd159599493d3c0", "ca0e61637951f1e2", "42c0ae90d8fdf0f4"],
        "reinforce_pp decomposed, one rank": [
            "2b6c1bce55c271a5",
            "c14283ffa6f6fb2f",
            "8b60cc41516de260",
        ],
        "reinforce_pp decomposed, two ranks": [
            "7e92ed010a1c88d6",
            "c14283ffa6f6fb2f",
            "1a8b904267b651c1",
        ],
    },
    "91d6e1a39503f677 on 2 cores": {
        "bnpo, one rank": ["7fcd02deafc0c214", "f8253651c78008d2", "d9745c75e1c208c6"],
        "bnpo, two ranks": ["a21d5a204106afbf", "f8253651c78008d2", "83b5c8a057b331c6"],
        "remax decomposed, one rank": ["6414ce3286b9ea86", "ca0e61637951f1e2", "28cd1c60d37bf333"],
        "remax decomposed, two ranks": ["6228a96221fe912b", "ca0e61637951f1e2", "aece663cfcc18a54"],
        "reinforce_pp decomposed, one rank": [
            "559b663810fe97ae",
            "c14283ffa6f6fb2f",
            "73221a94feb6237e",
        ],
        "reinforce_pp decomposed, two ranks": [
            "3e0544e950bcfa66",
            "c14283ffa6f6fb2f",
            "ed956aaea8fd4c41",
        ],
    },
}
"""By machine (`arithmetic()`) and run: hashes of metrics, rollouts and weights."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def arithmetic() -> str:
    """Last bits depend on the processor's instructions and on the number of cores."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    return (
        f"{digest((a @ b).softmax(-1).numpy().tobytes())} on {len(os.sched_getaffinity(0))} cores"
    )


def results(run: Path) -> list[str]:
    """Hashes of the metrics, the rollouts and the weights of a run."""
    lines = json_lines(run / "metrics.jsonl")
    metrics = [{k: line[k] for k in sorted(line) if not k.startswith(TIMINGS)} for line in lines]
    rollouts = b"".join(file.read_bytes() for file in sorted((run / "rollouts").iterdir()))
    weights = (run / "last" / "model.safetensors").read_bytes()
    return [digest(json.dumps(metrics).encode()), digest(rollouts), digest(weights)]


@pytest.mark.skipif(
    arithmetic() not in RECORDED, reason=f"nothing is recorded for the arithmetic {arithmetic()}"
)
@pytest.mark.parametrize("name", RUNS)
def test_results_are_the_recorded_ones(name, tmp_path):
    ranks, *flags = RUNS[name]
    # A quarter of the preset's questions: several micro-batches a rank all the same.
    often = (
        "--questions-per-step",
        8,
        "--steps",
        6,
        "--rollouts-every",
        1,
        "--watch-questions",
        0,
        "--eval-every",
        0,
    )
    run_ranks(
        ranks, "train.py", "--preset", "tiny", *flags, *often, "--output-dir", tmp_path / "run"
    )
    assert results(tmp_path / "run") == RECORDED[arithmetic()].get(name)
