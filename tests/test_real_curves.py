"""Rows, table and figure of the runs of a real model (scripts/real_curves.py)."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

import real_curves
from bnpo.files import InputError

# metrics.jsonl by method and seed: greedy accuracies after steps 0 and 2, rewards of steps 1, 2 and 3.
RUNS = {
    ("bnpo", 0): ((0.3, 0.8), (0.25, 0.5, 0.75)),
    ("bnpo", 1): ((0.3, 0.9), (0.35, 0.5, 0.65)),
    ("grpo", 0): ((0.3, 0.7), (0.25, 0.5, 0.5)),
}


def write_run(folder, algo, seed, greedy, rewards, **settings):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"preset": "smollm2", "algo": algo, "seed": seed} | settings))
    lines = [{"step": 0, "eval/average": greedy[0]}]
    lines += [{"step": step, "reward/mean": reward, "grad_norm": 1.0} for step, reward in enumerate(rewards, 1)]
    lines[2]["eval/average"] = greedy[1]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(real_curves, "ROWS", tmp_path / "rows")
    for (algo, seed), accuracies in RUNS.items():
        real_curves.add(write_run(tmp_path / f"{algo}{seed}", algo, seed, *accuracies))
    trl = write_run(tmp_path / "trl", "grpo", 0, (0.3, 0.6), (0.2, 0.4, 0.6), trainer="trl")
    assert real_curves.add(trl).name == "trl-grpo-seed0.jsonl"
    return tmp_path / "rows"


def test_the_table_has_means_and_ranges_over_seeds(rows):
    assert [" | ".join(cells) for cells in real_curves.lines(real_curves.read())] == [
        "GRPO | 1 | 30.0 (30.0 to 30.0) at 0 | 70.0 (70.0 to 70.0) at 2"
        " | 25.0 (25.0 to 25.0) at 0 | 50.0 (50.0 to 50.0) at 2",
        "BNPO | 2 | 30.0 (30.0 to 30.0) at 0 | 85.0 (80.0 to 90.0) at 2"
        " | 30.0 (25.0 to 35.0) at 0 | 70.0 (65.0 to 75.0) at 2",
        "GRPO of TRL | 1 | 30.0 (30.0 to 30.0) at 0 | 60.0 (60.0 to 60.0) at 2"
        " | 20.0 (20.0 to 20.0) at 0 | 60.0 (60.0 to 60.0) at 2",
    ]


def test_the_figure_has_a_line_and_a_band_for_each_method(rows, tmp_path):
    greedy, sampled = real_curves.draw(real_curves.read()).axes
    assert [line.get_label() for line in greedy.get_lines()] == ["GRPO", "BNPO", "GRPO of TRL"]
    np.testing.assert_allclose(greedy.get_lines()[1].get_xydata(), [[0, 0.3], [2, 0.85]])
    np.testing.assert_allclose(sampled.get_lines()[1].get_ydata(), [0.3, 0.5, 0.7])
    band = sampled.collections[1].get_paths()[0].vertices
    assert {tuple(point) for point in band.round(6)} >= {(0, 0.25), (0, 0.35), (2, 0.65), (2, 0.75)}
    real_curves.main(["--output", str(tmp_path / "new" / "figure.png")])
    assert plt.imread(tmp_path / "new" / "figure.png").shape[1] == real_curves.WIDTH * 200


def test_other_folders_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(real_curves, "ROWS", tmp_path / "rows")
    with pytest.raises(InputError, match="rows: has no rows; make them with --add"):
        real_curves.read()
    with pytest.raises(InputError, match=r"config.json: cannot be read"):
        real_curves.add(tmp_path)
    other = write_run(tmp_path / "other", "remax", 0, (0.3, 0.8), (0.2, 0.5))
    with pytest.raises(InputError, match="other: is a run of remax; known: reinforce, grpo, reinforce_pp, bnpo, trl-"):
        real_curves.add(other)
