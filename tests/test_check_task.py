"""The share of questions with a signal, from the Beta distribution of their accuracies."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bnpo.batch import Answer, Batch, Task
from bnpo.config import PRESETS, check_config, parse_train_config
from check_task import fit_accuracies, report_answers, signal_share, smaller


@pytest.mark.parametrize(("a", "b", "m"), [(0.5, 2.0, 2), (0.5, 2.0, 16), (8.0, 2.0, 4)])
def test_the_share_is_that_of_drawn_questions(a, b, m):
    rng = np.random.default_rng(0)
    right = rng.binomial(m, rng.beta(a, b, 100_000))
    mixed = ((right > 0) & (right < m)).mean()
    assert signal_share(m, a, b) == pytest.approx(mixed, abs=0.006)


@pytest.mark.parametrize(
    ("a", "b", "questions", "bias", "spread"),
    [
        (0.5, 2.0, 16, -0.02, 0.17),
        (0.5, 2.0, 64, 0.0, 0.09),
        (0.5, 20.0, 64, 0.0, 0.09),
        (0.2, 0.2, 64, -0.01, 0.08),
        (0.2, 0.2, 16, -0.06, 0.18),
    ],
)
def test_the_share_of_a_sample_is_nearly_right_on_average(a, b, questions, bias, spread):
    """Four answers to each question, whose accuracies are drawn from Beta(a, b). Samples that no
    distribution fits are left out.
    """
    rng, shares = np.random.default_rng(0), []
    for _ in range(600):
        right = rng.binomial(4, rng.beta(a, b, (questions, 1)), (questions, 1))  # [n, 1]
        rewards = (np.arange(4) < right).astype(float)[:, :, None]  # [n, m, 1]
        batch = Batch.of([[0]] * questions, [[Answer([0], True, None)] * 4] * questions)
        batch = replace(batch, rewards=rewards)
        fit = fit_accuracies(batch, task_with_range(0.0, 1.0), PRESETS["tiny"])
        if fit.a > 0 and fit.b > 0:
            shares.append(signal_share(16, fit.a, fit.b))
    assert np.mean(shares) - signal_share(16, a, b) == pytest.approx(bias, abs=0.015)
    assert np.std(shares) == pytest.approx(spread, abs=0.02)


def task_with_range(lowest: float, highest: float) -> Task:
    return Task([], [], None, SimpleNamespace(ranges=[(lowest, highest)]), answer_tags=False)


def fit_of(rewards, lowest=0.0, highest=1.0):
    batch = Batch.of([[0]] * 4, [[Answer([0], True, None)] * 2] * 4)
    batch = replace(batch, rewards=np.array(rewards, float)[:, :, None])
    return fit_accuracies(batch, task_with_range(lowest, highest), PRESETS["tiny"])


def test_no_share_is_told_from_graded_rewards_or_where_nothing_can_be_fitted(capsys):
    assert fit_of([[0, 0.5], [0.5, 1], [1, 1], [0, 0]]) is None
    assert fit_of(np.full((4, 2), 0.5)) is None
    for rewards in (np.zeros((4, 2)), np.ones((4, 2)), [[0, 0], [1, 1]] * 2):
        report_answers(fit_of(rewards), PRESETS["tiny"])
        assert "How many answers are enough is not known" in capsys.readouterr().out


@pytest.mark.parametrize(("lowest", "highest"), [(-1.0, 1.0), (-np.inf, np.inf)])
def test_a_reward_of_0_and_1_is_fitted_whatever_its_range_is(lowest, highest):
    rewards = [[0, 0], [0, 1], [1, 1], [0, 1]]
    assert fit_of(rewards, lowest, highest) == fit_of(rewards)


def test_fewer_answers_than_pass_at_k_asks_for(tmp_path):
    flags = ("--preset", "smollm2", "--algo", "pass_at_k", "--k", "4")
    config, _ = parse_train_config(flags, has_cuda=False)
    small = smaller(config, questions=4, answers=4, folder=tmp_path / "run")
    check_config(small, ranks=1)
    assert small.method.k == 3


def test_a_run_of_several_gpus_can_be_tried_with_one(tmp_path):
    config, _ = parse_train_config(["--preset", "tiny", "--sampler-ranks", "2"], has_cuda=False)
    assert smaller(config, questions=4, answers=4, folder=tmp_path).hardware.sampler_ranks == 1
