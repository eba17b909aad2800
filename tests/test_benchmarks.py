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
    ("name", "value", "kept", "is_worse"),
    [
        ("floor_ratio", 1.0, 0.9, True),
        ("floor_ratio", 0.98, 0.9, False),
        ("floor_ratio", 0.5, 0.9, False),
        ("trl_ratio", 2.7, 3.0, True),
        ("trl_ratio", 2.8, 3.0, False),
        ("trl_ratio", 9.0, 3.0, False),
        ("step_seconds", 2.3, 2.0, True),
        ("step_seconds", 2.1, 2.0, False),
        ("trl_processes", 8.0, 2.0, False),
    ],
)
def test_a_row_is_worse_in_the_direction_of_its_aim(bench, name, value, kept, is_worse):
    assert bench.worse(name, value, kept) == is_worse


@pytest.mark.program
def test_rows_are_what_a_benchmark_prints_without_gpus(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    (tmp_path / "benchmarks").mkdir()
    code = "import os, sys; print('step_seconds: 1.5', 'no row', 'flags: ' + sys.argv[1], sep='\\n')"
    code += "; print('gpus:', os.environ['CUDA_VISIBLE_DEVICES'])"
    (tmp_path / "benchmarks" / "step.py").write_text(code)
    assert bench.measure("step 4") == {"step_seconds": 1.5, "flags": 4.0}


def test_rows_are_compared_with_those_of_this_kind_of_machine(bench, capsys):
    bench.show({"floor_ratio": 0.9, "sync_share": 0.01, "trl_ratio": 2.0}, {"floor_ratio": 0.5, "sync_share": 0.01})
    printed = capsys.readouterr().out
    assert "worse by more than 10 %: floor_ratio is 0.9, was 0.5\n" in printed
    assert "misses its target: trl_ratio is 2, should be >= 3.0\n" in printed
    assert printed.count("worse") == printed.count("misses") == 1


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
