"""Seeded runs give what is recorded here to the last bit: metrics without timings, rollouts and weights.

Recorded before the package was rearranged, so that no rearrangement changes a result. A change that is meant to alter
results replaces the hashes that it alters, and says so in its commit.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from conftest import run_ranks

pytestmark = pytest.mark.sampler

TWO_REWARDS = ("--rewards", "accuracy,format")
RUNS = {
    "bnpo, one rank": (1, "--algo", "bnpo"),
    "bnpo, two ranks": (2, "--algo", "bnpo"),
    "remax decomposed, one rank": (1, "--algo", "remax", "--decompose", *TWO_REWARDS),
    "remax decomposed, two ranks": (2, "--algo", "remax", "--decompose", *TWO_REWARDS),
    "reinforce_pp decomposed, one rank": (1, "--algo", "reinforce_pp", "--decompose", *TWO_REWARDS),
    "reinforce_pp decomposed, two ranks": (2, "--algo", "reinforce_pp", "--decompose", *TWO_REWARDS),
}
"""Number of ranks, then flags."""
RECORDED = {
    "bnpo, one rank": {"metrics": "4321a93d5bd3d5da", "rollouts": "fb9987665fa0551a", "weights": "e8a7ed881ff991a1"},
    "bnpo, two ranks": {"metrics": "b6dad2a403d009a6", "rollouts": "fb9987665fa0551a", "weights": "742cbbeb632ed890"},
    "remax decomposed, one rank": {
        "metrics": "f4d7c6d00bf106b1",
        "rollouts": "39480a3291628c4e",
        "weights": "e12957ff27d6c9f2",
    },
    "remax decomposed, two ranks": {
        "metrics": "60f3923dc8054e9c",
        "rollouts": "39480a3291628c4e",
        "weights": "c91c3eb9e20d9161",
    },
    "reinforce_pp decomposed, one rank": {
        "metrics": "72c6021224d8eda1",
        "rollouts": "6b5313580a84f8ea",
        "weights": "cb059236aaa107aa",
    },
    "reinforce_pp decomposed, two ranks": {
        "metrics": "6aeb199655bd6844",
        "rollouts": "6b5313580a84f8ea",
        "weights": "7ed34a351610b3f3",
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
    timings = ("seconds/", "tokens/per_second", "tflops/per_second")
    metrics = [{name: line[name] for name in sorted(line) if not name.startswith(timings)} for line in lines]
    rollouts = b"".join(file.read_bytes() for file in sorted((run / "rollouts").iterdir()))
    weights = (run / "last" / "model.safetensors").read_bytes()
    return {"metrics": digest(json.dumps(metrics).encode()), "rollouts": digest(rollouts), "weights": digest(weights)}


@pytest.mark.skipif(arithmetic() != ARITHMETIC, reason=f"recorded with other arithmetic than {arithmetic()}")
@pytest.mark.parametrize("name", RUNS)
def test_results_are_the_recorded_ones(name, tmp_path):
    ranks, *flags = RUNS[name]
    often = ("--steps", 6, "--rollouts-every", 1, "--eval-every", 0)
    run_ranks(ranks, "train.py", "--preset", "tiny", *flags, *often, "--output-dir", tmp_path / "run")
    assert results(tmp_path / "run") == RECORDED[name]
