"""How large a difference must be to be found: formulas checked by simulation, and the programs that print them."""

import json

import numpy as np
import pytest

import compare
from bnpo.config import TINY_MODEL, Planning
from bnpo.evaluation.program import EvalConfig
from bnpo.evaluation.scores import (
    describe_detectable,
    describe_difference,
    describe_score,
    detectable,
    paired_bootstrap,
)
from bnpo.files import InputError, write_json, write_json_lines
from bnpo.planning.dry_run import dry_run_evaluation


def test_a_difference_of_the_detectable_size_is_found_in_80_percent():
    rng = np.random.default_rng(0)
    problems, repetitions = 300, 8
    rates = rng.beta(1, 1, problems) * 0.8
    low, _ = detectable(problems, repetitions, float(np.mean(rates * (1 - rates))), error=1.0)
    found = 0
    for _ in range(1000):
        first, second = (rng.binomial(repetitions, p) / repetitions for p in (rates, rates + low))
        d = second - first
        found += abs(d.mean()) > 1.96 * d.std(ddof=1) / np.sqrt(problems)
    assert 0.75 < found / 1000 < 0.85


def test_the_average_of_data_sets_finds_less_than_each():
    assert describe_detectable({"a": (0.03, 0.3)}) == "a 3.0 to 30.0"
    assert describe_detectable({"a": (0.03, 0.3), "b": (0.04, 0.4)}).endswith("b 4.0 to 40.0, average 2.5 to 25.0")


def test_a_difference_that_cannot_be_estimated_is_no_0():
    """All answers wrong, all right, every problem with the same score, and answers that are not random."""
    none = "cannot be estimated, as all its problems have the same score"
    assert describe_detectable({"a": detectable(30, 4, 0.0, 0.0), "b": (0.03, 0.3)}) == f"a {none}, b 3.0 to 30.0"
    assert describe_detectable({"a": detectable(30, 2, 0.1, 1e-17)}) == f"a {none}"
    assert describe_detectable({"a": detectable(30, 4, 0.0, 0.1)}) == "a ? to 39.6"
    zeros = paired_bootstrap({"a": np.zeros(30)}, seed=0)["a"]
    assert describe_difference(zeros) == ("+0.0", "-", "1.0000", "-")
    both = paired_bootstrap({"a": np.zeros(30), "b": np.arange(30) / 30}, seed=0)
    assert [report["detectable"] is None for report in both.values()] == [True, False, False]
    assert describe_score({"pass1": 0.0, "se": 0.0}, problems=500) == "0.0 (below 0.6)"
    assert describe_score({"pass1": 1.0, "se": 0.0}, problems=2) == "100.0 (above 0.0)"


def test_a_dry_run_prints_the_detectable_difference(capsys):
    dry_run_evaluation(EvalConfig(str(TINY_MODEL), suite="arithmetic", planning=Planning(dry_run=True)))
    printed = capsys.readouterr().out
    assert "arithmetic: 500 problems x 4 repetitions" in printed
    assert "in points: arithmetic 4.4 to 8.9\n" in printed


def test_with_unrelated_scores_the_second_bound_holds():
    rng = np.random.default_rng(1)
    first = rng.beta(0.5, 0.5, 400)
    _, high = detectable(400, 1, 0.0, first.std(ddof=1) / 20)
    differences = {"x": rng.beta(0.5, 0.5, 400) - first}
    assert paired_bootstrap(differences, seed=0)["x"]["detectable"] == pytest.approx(high, rel=0.1)


def evaluated(folder, right, suite="mine"):
    datasets = {"a": {"problems": len(right), "repetitions": 2, "sha256": "0"}}
    write_json_lines(
        folder / "samples.jsonl",
        [
            {"dataset": "a", "index": i, "repetition": r, "correct": x}
            for i, xs in enumerate(right)
            for r, x in enumerate(xs)
        ],
    )
    write_json(folder / "protocol.json", {"suite": {"name": suite, "datasets": datasets}, "grader": "default"})
    return folder


def test_several_checkpoints_are_corrected_by_holm(tmp_path, capsys):
    rng = np.random.default_rng(0)
    right = [(rng.random((200, 2)) < p).tolist() for p in (0.5, 0.62, 0.5)]
    folders = [evaluated(tmp_path / name, answers) for name, answers in zip("xyz", right, strict=True)]
    compare.main(compare.Args(tuple(folders)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line and "to" in line]
    assert [line[0] for line in lines] == [str(folder) for folder in folders[1:]]
    p_values = [float(line[5]) for line in lines]
    holm = [float(line[6]) for line in lines]
    assert holm[0] == pytest.approx(2 * p_values[0], abs=1e-3) or holm[0] == p_values[0]
    assert max(holm) >= max(p_values)
    assert float(lines[0][1]) == pytest.approx(100 * (np.mean(right[1]) - np.mean(right[0])), abs=0.06)


def test_folders_that_cannot_be_compared_are_refused(tmp_path):
    first = evaluated(tmp_path / "first", [[True, False]] * 3)
    other = evaluated(tmp_path / "other", [[True, False]] * 3, suite="another")
    with pytest.raises(InputError, match=r"other: has another suite than .*first"):
        compare.main(compare.Args((first, other)))
    lines = (first / "samples.jsonl").read_text().splitlines(keepends=True)
    (other / "samples.jsonl").write_text("".join(lines[:4]))
    (other / "protocol.json").write_text(json.dumps(json.loads((first / "protocol.json").read_text())))
    with pytest.raises(InputError, match="has 4 of 6 samples; finish it by repeating its command"):
        compare.main(compare.Args((first, other)))
    with pytest.raises(InputError, match="at least two"):
        compare.main(compare.Args((first,)))
