"""--resample-rounds: which groups the learner takes, how many are drawn, and an exact resume."""

import json

import numpy as np
import pytest

from bnpo.rollouts import has_signal, trained_groups
from conftest import run_ranks

MIXED, RIGHT, WRONG = [[0.0], [1.0]], [[1.0], [1.0]], [[0.0], [0.0]]
"""Rewards [m, K] of a group."""


@pytest.mark.parametrize(
    ("groups", "taken"),
    [
        ([MIXED, RIGHT], [0, 1]),
        ([RIGHT, WRONG, MIXED, RIGHT], [0, 2]),  # one group with a signal, and the first without
        ([RIGHT, MIXED, WRONG, MIXED, MIXED], [1, 3]),
        ([RIGHT, WRONG, RIGHT], [0, 1]),
    ],
)
def test_the_learner_takes_groups_with_a_signal_first(groups, taken):
    assert trained_groups(np.array(groups), 2).tolist() == taken


def test_a_group_has_a_signal_if_any_reward_differs():
    rewards = np.array([[[1, 0], [1, 0]], [[1, 0], [1, 1]], [[0, 1], [1, 1]]])  # [n, m, K]
    assert has_signal(rewards).tolist() == [False, True, True]


@pytest.mark.sampler
def test_more_questions_are_drawn_until_there_are_enough_and_a_resumed_run_draws_the_same(tmp_path):
    def train(name: str, steps: int, *flags: str) -> list[dict]:
        batch = ("--questions-per-step", 4, "--samples-per-question", 2, "--resample-rounds", 2, "--eval-every", 0)
        common = ("--preset", "tiny", *batch, "--rollouts-every", 1, "--watch-questions", 0, "--save-every", 2)
        run_ranks(2, "train.py", *common, "--steps", steps, "--output-dir", tmp_path / name, *flags)
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]

    whole = train("whole", 4)
    drawn = [line["groups/drawn"] for line in whole]
    assert set(drawn) <= {4, 8, 12}
    assert max(drawn) > 4
    for step, (line, count) in enumerate(zip(whole, drawn, strict=True), start=1):
        [file] = (tmp_path / "whole" / "rollouts").glob(f"*{step}.jsonl*")
        rewards = [row["rewards"]["accuracy"] for row in map(json.loads, file.read_text().splitlines())]
        assert len(rewards) == 2 * count
        differ = np.not_equal(rewards[::2], rewards[1::2])  # [questions drawn]
        assert differ.sum() >= 4 or count == 12
        assert differ[:-4].sum() < 4  # no draw was in vain
        assert line["groups/all_equal"] == pytest.approx(1 - differ.mean())
        [file] = (tmp_path / "whole" / "tokens").glob(f"*{step}.jsonl*")
        for row in map(json.loads, file.read_text().splitlines()):
            assert row["place"] // 2 in trained_groups(np.reshape(rewards, (-1, 2, 1)), 4)
            np.testing.assert_allclose(row["learner"], row["sampler"], atol=1e-3)
    train("resumed", 2)
    assert [line["groups/drawn"] for line in train("resumed", 4, "--resume")] == drawn
    assert all((tmp_path / name / "last" / "model.safetensors").is_file() for name in ("whole", "resumed"))
    assert len({(tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("whole", "resumed")}) == 1
