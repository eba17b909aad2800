"""Theorem 1 and docs/theory.md, whether a Beta distribution fits, and the frozen studies."""

import re

import numpy as np
import pytest

from conftest import python
from fit_check import Args, beta_p_value, simulate_fits

M = 16
"""Answers to a question."""


@pytest.mark.program
def test_theorem_1_is_confirmed():
    output = python("scripts/verify_theorem.py").stdout
    assert float(re.search(r"minimum_distance: (\S+)", output)[1]) < 1e-6
    assert "domain_errors: 0 " in output
    assert float(re.search(r"monte_carlo_largest_z: (\S+)", output)[1]) < 4
    # At a = b = 3/2 the best Beta density is GRPO's.
    assert re.search(r"1\.5 .* 1\.5 .*0\.822 .* 1\.000 .* 1\.000", output)
    # docs/theory.md: no signal under the assumption, the least squared cosine and its limits,
    # the best weight.
    for name in ("mean_gradient_largest_z", "squared_cosine_largest_z"):
        assert float(re.search(rf"{name}: (\S+)", output)[1]) < 4
    assert 0.75 <= float(re.search(r"squared_cosine_least: (\S+)", output)[1]) < 0.751
    assert float(re.search(r"squared_cosine_limits: (\S+)", output)[1]) < 1e-3
    assert float(re.search(r"best_weight_share: (\S+)", output)[1]) <= 1


def test_p_values_keep_their_level_if_a_beta_is_true_and_are_small_if_none_fits():
    rng = np.random.default_rng(0)
    batches = rng.binomial(M, rng.beta(0.7, 1.3, (200, 24)))
    true = np.array([beta_p_value(right, M, 39, seed) for seed, right in enumerate(batches)])
    assert (true <= 0.05).mean() < 0.1
    assert 0.4 < true.mean() < 0.65
    # Half of the questions are solved half of the time, the others always or never
    p = rng.choice([0, 0.5, 1], p=[0.25, 0.5, 0.25], size=(50, 64))
    assert np.mean([beta_p_value(right, M, 99) <= 0.05 for right in rng.binomial(M, p)]) > 0.9


def test_bias_and_deviation_of_the_fit():
    """Sample moments take noise for spread, so their a + b is too small; corrected ones are not,
    and scatter more.
    """
    moments = ("sample", "corrected")
    sample, corrected = (simulate_fits(5, 5, name, Args(batches=400))[:, 0] for name in moments)
    assert sample.mean() < 1 + 5 / 3 - 0.4 < corrected.mean()
    assert sample.std() < corrected.std()
