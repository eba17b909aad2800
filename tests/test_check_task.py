"""The share of questions with a signal, from the Beta distribution of their accuracies."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bnpo.batch import Answer, Batch, Task
from bnpo.config import PRESETS, check_config, parse_train_config
from check_task import enough_answers, fit_accuracies, signal_share, smaller


@pytest.mark.parametrize(("a", "b", "m"), [(0.5, 2.0, 2), (0.5, 2.0, 16), (8.0, 2.0, 4)])
def test_the_share_is_that_of_drawn_questions(a, b, m):
    rng = np.random.default_rng(0)
    right = rng.binomial(m, rng.beta(a, b, 100_000))
    mixed = ((right > 0) & (right < m)).mean()
    assert signal_share(m, a, b) == pytest.approx(mixed, abs=0.006)


@pytest.mark.parametrize(("questions", "spread"), [(16, 0.18), (64, 0.09)])
def test_the_share_of_a_small_sample_is_right_on_average(questions, spread):
    """Four answers to each question, whose accuracies are drawn from Beta(0.5, 2)."""
    rng, shares = np.random.default_rng(0), []
    for _ in range(500):
        right = rng.binomial(4, rng.beta(0.5, 2.0, (questions, 1)), (questions, 1))  # [n, 1]
        rewards = (np.arange(4) < right).astype(float)[:, :, None]  # [n, m, 1]
        batch = Batch.of([[0]] * questions, [[Answer([0], True, None)] * 4] * questions)
        batch = replace(batch, rewards=rewards)
        task = Task([], [], None, SimpleNamespace(ranges=[(0.0, 1.0)]), answer_tags=False)
        fit = fit_accuracies(batch, task, PRESETS["tiny"])
        shares.append(signal_share(16, fit.a, fit.b))
    assert np.mean(shares) == pytest.approx(signal_share(16, 0.5, 2.0), abs=0.03)
    assert np.std(shares) == pytest.approx(spread, abs=0.02)


def test_no_share_is_told_from_graded_rewards_or_where_nothing_can_be_fitted():
    batch = Batch.of([[0]] * 4, [[Answer([0], True, None)] * 2] * 4)
    task = Task([], [], None, SimpleNamespace(ranges=[(0.0, 1.0)]), answer_tags=False)
    for rewards in (np.zeros((4, 2)), [[0.5, 1.0]] * 4, [[0, 0], [1, 1]] * 2):
        graded = replace(batch, rewards=np.array(rewards, float)[:, :, None])
        assert fit_accuracies(graded, task, PRESETS["tiny"]) is None


def test_fewer_answers_than_pass_at_k_asks_for(tmp_path):
    flags = ("--preset", "smollm2", "--algo", "pass_at_k", "--k", "4")
    config, _ = parse_train_config(flags, has_cuda=False)
    check_config(smaller(config, questions=4, answers=4, folder=tmp_path / "run"), ranks=1)


def test_the_figures_of_one_distribution():
    shares = [signal_share(m, 0.5, 2.0) for m in (2, 4, 8, 16)]
    assert np.round(shares, 2).tolist() == [0.23, 0.42, 0.57, 0.68]
    assert enough_answers(0.5, 2.0) == 8  # 16 answers give a signal to 1.2 times the questions
    assert enough_answers(50.0, 50.0) == 4
