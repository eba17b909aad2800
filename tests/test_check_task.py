"""The share of questions with a signal, from the Beta distribution of their accuracies."""

import numpy as np
import pytest

from check_task import enough_answers, signal_share


@pytest.mark.parametrize(("a", "b", "m"), [(0.5, 2.0, 2), (0.5, 2.0, 16), (8.0, 2.0, 4)])
def test_the_share_is_that_of_drawn_questions(a, b, m):
    rng = np.random.default_rng(0)
    right = rng.binomial(m, rng.beta(a, b, 100_000))
    mixed = ((right > 0) & (right < m)).mean()
    assert signal_share(m, a, b) == pytest.approx(mixed, abs=0.006)


def test_the_figures_of_one_distribution():
    shares = [signal_share(m, 0.5, 2.0) for m in (2, 4, 8, 16)]
    assert np.round(shares, 2).tolist() == [0.23, 0.42, 0.57, 0.68]
    assert enough_answers(0.5, 2.0) == 8  # 16 answers give a signal to 1.2 times the questions
    assert enough_answers(50.0, 50.0) == 4
