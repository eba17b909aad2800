"""The bounds of the sync pass correct computations in every number format, and refuse faults."""

from pathlib import Path

import pytest

from conftest import report_of, run_ranks
from families import TRAINED, make_family, make_sharp

TEXTS = (
    "Tom has 5 apples and buys 7 more. How many apples does Tom have now? Natalia sold clips to 48 of her friends in "
    "April, and then she sold half as many clips in May. How many clips did Natalia sell altogether in April and May?",
    "Let a be a positive real number such that all the roots of x^3 + ax^2 + ax + 1 = 0 are real. Find the smallest "
    "possible value of a.",
    "1+1=? 2",
)
FAULTS = {"attention scale", "packed answers mix", "layer of another", "rotary base"}
pytestmark = pytest.mark.sampler


def check(folder: Path, dtype: str, faults: set[str]) -> None:
    report = report_of(1, "bounds_check", folder, dtype, *TEXTS)
    refused = {name for name, error in report["errors"].items() if "explains" in error}
    assert refused >= faults, report["errors"]
    # Answers at three temperatures and random tokens. The bound is that of the text that is rounded least.
    assert max(report["gaps"]) < report["bound"]
    for healthy in report["checks"]:  # other texts of the task
        assert max(healthy["learner"], healthy["apart"]) < 2 * healthy["rounding"] + 2e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_a_deep_model_with_sharp_predictions(dtype, tmp_path, request):
    if dtype == "float16":
        request.getfixturevalue("float16")
    make_sharp(tmp_path)
    check(tmp_path, dtype, FAULTS)


def test_a_window_that_is_ignored(tmp_path):
    make_family(tmp_path / "model", "gemma3_text", **TRAINED["gemma3_text"])
    check(tmp_path / "model", "bfloat16", {"window ignored", "packed answers mix", "attention scale"})


def test_logits_that_are_not_scaled(tmp_path):
    make_family(tmp_path / "model", "granite", **TRAINED["granite"])
    check(tmp_path / "model", "bfloat16", {"logits not scaled or capped"})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_tiny_preset_starts_in_16_bits_without_another_flag(dtype, tmp_path, request):
    if dtype == "float16":
        request.getfixturevalue("float16")
    flags = ("--preset", "tiny", "--dtype", dtype, "--steps", 2, "--eval-every", 0, "--output-dir", tmp_path / "run")
    run_ranks(1, "train.py", *flags, "--questions-per-step", 4, "--samples-per-question", 4)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2
