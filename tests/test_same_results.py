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

SMALL = ("--questions-per-step", 8)
"""A quarter of the preset's: several micro-batches a rank all the same. Its whole step runs on two ranks."""
DECOMPOSED = ("--decompose", "--rewards", "accuracy,format", *SMALL)
RUNS = {
    "bnpo, one rank": (1, "--algo", "bnpo", *SMALL),
    "bnpo, two ranks": (2, "--algo", "bnpo"),
    "remax decomposed, one rank": (1, "--algo", "remax", *DECOMPOSED),
    "remax decomposed, two ranks": (2, "--algo", "remax", *DECOMPOSED),
    "reinforce_pp decomposed, one rank": (1, "--algo", "reinforce_pp", *DECOMPOSED),
    "reinforce_pp decomposed, two ranks": (2, "--algo", "reinforce_pp", *DECOMPOSED),
}
"""Number of ranks, then flags."""
RECORDED = {
    "bnpo, one rank": {"metrics": "0f694a747ab91afe", "rollouts": "f654d7b78cb3fd67", "weights": "f7d3316cca8fcc8b"},
    "bnpo, two ranks": {"metrics": "83d1ab368eead1e5", "rollouts": "fb9987665fa0551a", "weights": "23a1e46dab396b89"},
    "remax decomposed, one rank": {
        "metrics": "f5822bb62c0b1fb6",
        "rollouts": "e443119842d5ecd2",
        "weights": "d72c1196551a457f",
    },
    "remax decomposed, two ranks": {
        "metrics": "f288514f0c62bd9b",
        "rollouts": "e443119842d5ecd2",
        "weights": "439db32abdd780c7",
    },
    "reinforce_pp decomposed, one rank": {
        "metrics": "6f438fd47f09164b",
        "rollouts": "97f8efccac8a4c92",
        "weights": "b7cd286d50def283",
    },
    "reinforce_pp decomposed, two ranks": {
        "metrics": "d274d1960e81dbc1",
        "rollouts": "97f8efccac8a4c92",
        "weights": "079718ef884c0487",
    },
}
ARITHMETIC = "692ca92a848e941d on 2 cores"
"""What `arithmetic` says of the machine on which they were recorded."""


SINCE = {"reward/se", "cut_off"}
"""Names of metrics and of what is kept of an answer that are younger than the record: left out of the comparison."""


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
    metrics = [{k: line[k] for k in sorted(line) if not k.startswith(TIMINGS) and k not in SINCE} for line in lines]
    answers = [line for file in sorted((run / "rollouts").iterdir()) for line in file.read_text().splitlines()]
    rows = [{k: v for k, v in json.loads(answer).items() if k not in SINCE} for answer in answers]
    rollouts = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    weights = (run / "last" / "model.safetensors").read_bytes()
    return {"metrics": digest(json.dumps(metrics).encode()), "rollouts": digest(rollouts), "weights": digest(weights)}


@pytest.mark.skipif(arithmetic() != ARITHMETIC, reason=f"recorded with other arithmetic than {arithmetic()}")
@pytest.mark.parametrize("name", RUNS)
def test_results_are_the_recorded_ones(name, tmp_path):
    ranks, *flags = RUNS[name]
    often = ("--steps", 6, "--rollouts-every", 1, "--watch-questions", 0, "--eval-every", 0)
    run_ranks(ranks, "train.py", "--preset", "tiny", *flags, *often, "--output-dir", tmp_path / "run")
    assert results(tmp_path / "run") == RECORDED[name]
