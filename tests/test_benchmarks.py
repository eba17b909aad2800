"""How rows of benchmarks are compared. The benchmarks themselves are not tests."""

import importlib.util
import json
import sys

import pytest

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
@pytest.mark.parametrize(("name", "rows"), [("gpu", {"gpus": 7.0}), ("step", {})])
def test_only_the_benchmark_of_gpus_sees_gpus(bench, monkeypatch, tmp_path, name, rows):
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    (tmp_path / "benchmarks").mkdir()
    code = "import os; print('gpus:', os.environ['CUDA_VISIBLE_DEVICES'])"
    (tmp_path / "benchmarks" / f"{name}.py").write_text(code)
    assert bench.measure(name) == rows


def test_rows_are_compared_with_those_of_this_kind_of_machine(bench, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    (tmp_path / "benchmarks" / "rows").mkdir(parents=True)
    kept, new = tmp_path / "benchmarks" / "rows" / f"{bench.kind()}.json", tmp_path / "new.json"
    kept.write_text(json.dumps({"floor_ratio": 0.5, "sync_share": 0.01}))
    new.write_text(json.dumps({"floor_ratio": 0.9, "sync_share": 0.01, "trl_ratio": 2.0}))
    monkeypatch.setattr(sys, "argv", ["run.py", "--compare", str(new), "--keep"])
    bench.main()
    printed = capsys.readouterr().out
    assert "worse by more than 10 %: floor_ratio is 0.9, was 0.5\n" in printed
    assert "misses its target: trl_ratio is 2, should be >= 3.0\n" in printed
    assert printed.count("worse") == printed.count("misses") == 1
    assert json.loads(kept.read_text()) == {"floor_ratio": 0.9, "sync_share": 0.01, "trl_ratio": 2.0}
