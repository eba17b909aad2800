"""How rows of benchmarks are compared. The benchmarks themselves are not tests."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

import pytest

from bnpo.config import TINY_MODEL, parse_train_config
from bnpo.files import ROOT


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("bench_run", ROOT / "benchmarks" / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_run", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("argv", "preset", "model", "ranks", "steps"),
    [
        ([], "tiny", None, None, 10),
        (["--model", "smollm2", "--ranks", "2"], "smollm2", "data/models/SmolLM2-135M-Instruct", 2, 4),
        (["--model", "data/tiny-model", "--steps", "3"], "smollm2", "data/tiny-model", 1, 3),
    ],
)
def test_the_model_of_a_benchmark_is_a_preset_or_a_folder(bench, monkeypatch, argv, preset, model, ranks, steps):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["step.py", *argv])
    case, _ = sys.modules["common"].read_case(argparse.ArgumentParser())
    config, _ = parse_train_config(case.flags, has_cuda=False)
    assert config.preset == preset
    assert Path(config.data.model) == (ROOT / model if model else TINY_MODEL)
    assert case.ranks == (ranks or len(os.sched_getaffinity(0)))
    assert case.steps == steps
