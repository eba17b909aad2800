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

from bnpo.policy.speed import TIMINGS
from conftest import run_ranks

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
        "bnpo, one rank": ["b761fa7080e92abc", "f8253651c78008d2", "f7d3316cca8fcc8b"],
        "bnpo, two ranks": ["7ee773264d6882f8", "f8253651c78008d2", "b4072c504760bbfc"],
        "remax decomposed, one rank": ["bf88991d5964306d", "ca0e61637951f1e2", "d72c1196551a457f"],
        "remax decomposed, two ranks": ["826e7e12308eaec3", "ca0e61637951f1e2", "439db32abdd780c7"],
        "reinforce_pp decomposed, one rank": ["756e8c4e2addbe21", "c14283ffa6f6fb2f", "b7cd286d50def283"],
        "reinforce_pp decomposed, two ranks": ["e6d9fb7a55d28ef1", "c14283ffa6f6fb2f", "079718ef884c0487"],
    },
    "91d6e1a39503f677 on 2 cores": {
        "bnpo, one rank": ["451d6795f5526720", "f8253651c78008d2", "cd63e23f1ed2028f"],
        "bnpo, two ranks": ["0dfd6dcbc4f646be", "f8253651c78008d2", "1e985e4d4f9e0806"],
        "remax decomposed, one rank": ["e6611053d542a781", "ca0e61637951f1e2", "0db7694dcccbd886"],
        "remax decomposed, two ranks": ["0e43a989441fe8d9", "ca0e61637951f1e2", "00e828cb131c1bbf"],
        "reinforce_pp decomposed, one rank": ["c3bcd7351256da96", "c14283ffa6f6fb2f", "438cde690d8fe3b6"],
        "reinforce_pp decomposed, two ranks": ["262254b3a72bb968", "c14283ffa6f6fb2f", "4a10359403151eca"],
    },
}
"""By machine (`arithmetic()`) and run: hashes of metrics, rollouts and weights."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def arithmetic() -> str:
    """Last bits depend on the processor's instructions and on the number of cores."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    return f"{digest((a @ b).softmax(-1).numpy().tobytes())} on {len(os.sched_getaffinity(0))} cores"


def results(run: Path) -> list[str]:
    """Hashes of the metrics, the rollouts and the weights of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{k: line[k] for k in sorted(line) if not k.startswith(TIMINGS)} for line in lines]
    rollouts = b"".join(file.read_bytes() for file in sorted((run / "rollouts").iterdir()))
    weights = (run / "last" / "model.safetensors").read_bytes()
    return [digest(json.dumps(metrics).encode()), digest(rollouts), digest(weights)]


@pytest.mark.skipif(arithmetic() not in RECORDED, reason=f"nothing is recorded for the arithmetic {arithmetic()}")
@pytest.mark.parametrize("name", RUNS)
def test_results_are_the_recorded_ones(name, tmp_path):
    ranks, *flags = RUNS[name]
    # A quarter of the preset's questions: several micro-batches a rank all the same.
    often = ("--questions-per-step", 8, "--steps", 6, "--rollouts-every", 1, "--watch-questions", 0, "--eval-every", 0)
    run_ranks(ranks, "train.py", "--preset", "tiny", *flags, *often, "--output-dir", tmp_path / "run")
    assert results(tmp_path / "run") == RECORDED[arithmetic()].get(name)
