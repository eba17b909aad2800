"""Seeded runs give what is recorded here to the last bit: metrics without timings, rollouts and weights.

Recorded so that no rearrangement changes a result. A change that is meant to alter
results replaces the hashes that it alters, and says so in its commit.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from conftest import run_ranks

from bnpo.speed import TIMINGS

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
    "bnpo, one rank": {"metrics": "b761fa7080e92abc", "rollouts": "f8253651c78008d2", "weights": "f7d3316cca8fcc8b"},
    "bnpo, two ranks": {"metrics": "7ee773264d6882f8", "rollouts": "f8253651c78008d2", "weights": "b4072c504760bbfc"},
    "remax decomposed, one rank": {
        "metrics": "bf88991d5964306d",
        "rollouts": "ca0e61637951f1e2",
        "weights": "d72c1196551a457f",
    },
    "remax decomposed, two ranks": {
        "metrics": "826e7e12308eaec3",
        "rollouts": "ca0e61637951f1e2",
        "weights": "439db32abdd780c7",
    },
    "reinforce_pp decomposed, one rank": {
        "metrics": "756e8c4e2addbe21",
        "rollouts": "c14283ffa6f6fb2f",
        "weights": "b7cd286d50def283",
    },
    "reinforce_pp decomposed, two ranks": {
        "metrics": "e6d9fb7a55d28ef1",
        "rollouts": "c14283ffa6f6fb2f",
        "weights": "079718ef884c0487",
    },
}
ARITHMETIC = "692ca92a848e941d on 2 cores"
"""What `arithmetic` says of the machine on which they were recorded."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def arithmetic() -> str:
    """Last bits depend on the processor's instructions and on the number of cores."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    return f"{digest((a @ b).softmax(-1).numpy().tobytes())} on {len(os.sched_getaffinity(0))} cores"


def results(run: Path) -> dict[str, str]:
    """Hashes of what a run has left."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: line[k] for k in sorted(line) if not k.startswith(TIMINGS)} for line in lines]
    rollouts = b"".join(file.read_bytes() for file in sorted((run / "rollouts").iterdir()))
    weights = (run / "last" / "model.safetensors").read_bytes()
    return {"metrics": digest(json.dumps(metrics).encode()), "rollouts": digest(rollouts), "weights": digest(weights)}


@pytest.mark.skipif(arithmetic() != ARITHMETIC, reason=f"recorded with other arithmetic than {arithmetic()}")
@pytest.mark.parametrize("name", RUNS)
def test_results_are_the_recorded_ones(name, tmp_path):
    ranks, *flags = RUNS[name]
    # A quarter of the preset's questions: several micro-batches a rank all the same.
    often = ("--questions-per-step", 8, "--steps", 6, "--rollouts-every", 1, "--watch-questions", 0, "--eval-every", 0)
    run_ranks(ranks, "train.py", "--preset", "tiny", *flags, *often, "--output-dir", tmp_path / "run")
    assert results(tmp_path / "run") == RECORDED[name]
