"""Models of every family train, stay in sync, are saved for others to load, and resume exactly.

`python dev/models_table.py` does the same with more families, and writes the table of docs/models.md.
"""

import json
import re
from pathlib import Path

import pytest

from bnpo.files import ROOT
from conftest import run_ranks
from families import ALSO_TRAINED, NOT_TRAINED, REFUSED_LATER, TRAINED, make_family

DTYPES = {"float32": 1e-6, "bfloat16": 0.02}
"""Largest mean difference per token between two computations with equal weights."""


def train_family(folder: Path, family: str, dtype: str) -> dict:
    """What tests/programs/family_check.py reports of a random model of `family` on two ranks."""
    make_family(folder / family, family, **(TRAINED | ALSO_TRAINED)[family])
    output = run_ranks(2, "tests/programs/family_check.py", folder / family, dtype).stdout
    return json.loads(output.rpartition("REPORT ")[2])


def check_report(report: dict, dtype: str) -> None:
    assert report["names"] == []  # of the checkpoint's tensors, none is missing for transformers and none is too many
    assert report["moved"] > 0.01
    assert report["resumed"]
    assert max(report[name] for name in ("transformers", "vllm", "sync")) < DTYPES[dtype]


@pytest.mark.sampler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", TRAINED)
def test_a_family_trains_in_sync_and_resumes_exactly(family, dtype, tmp_path):
    check_report(train_family(tmp_path, family, dtype), dtype)


def refuse_family(folder: Path, family: str) -> str:
    """The reason with which train.py refuses a random model of `family`, in one line before its first update."""
    settings, reason = REFUSED_LATER[family]
    model, run = folder / family, folder / "run"
    make_family(model, family, **settings)
    flags = ("--preset", "tiny", "--model", model, "--eval-every", 0, "--watch-questions", 0, "--output-dir", run)
    done = run_ranks(2, "train.py", *flags, check=False)
    assert done.returncode == 2
    [line] = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {model}: {reason}")
    assert "Traceback" not in done.stdout
    assert not (run / "metrics.jsonl").exists()
    return reason


@pytest.mark.sampler
@pytest.mark.parametrize("family", ["cohere2", "diffllama"])
def test_others_are_refused_in_one_line_before_the_first_update(family, tmp_path):
    refuse_family(tmp_path, family)


def test_the_list_of_families_is_current():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    listed = text.partition("families train:\n\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == (TRAINED | ALSO_TRAINED).keys()
    assert f"These {len(TRAINED | ALSO_TRAINED)} families train:" in " ".join(text.split())
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    refused = NOT_TRAINED | REFUSED_LATER
    assert {family.strip("`"): reason for family, reason in rows} == {name: why for name, (_, why) in refused.items()}
