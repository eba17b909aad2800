"""examples/bnpo_in_150_lines.py computes what src/bnpo/ computes, with torch and transformers
alone.
"""

import bnpo_in_150_lines as one_file
import numpy as np
import pytest
import torch

from bnpo_estimators import Method, compute_advantages
from conftest import report_of


@pytest.mark.parametrize(
    "right",  # answers of 16 to each question
    [
        [1, 4, 9, 15, 0, 16],
        [8, 8, 8, 7, 8, 8, 8, 8],  # accuracies that nearly coincide: a + b is limited
        [5, 5, 5],
        [0, 16, 16, 0],  # no Beta distribution has such a variance
        [0, 0, 0],
        [16, 16],
    ],
)
def test_advantages_are_those_of_the_block(right):
    rewards = (np.arange(16) < np.array(right)[:, None]).astype(float)  # [n, m]
    expected = compute_advantages(Method("bnpo"), rewards[:, :, None]).values
    found = one_file.bnpo_advantages(torch.from_numpy(rewards))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.program
def test_its_update_is_that_of_the_learner():
    found = report_of(1, "one_file_check")
    assert len(set(found["accuracies"])) > 2  # the Beta fit has something to fit
    assert len(set(found["lengths"])) > 2
    assert found["micro-batches"] > 1
    np.testing.assert_allclose(*found["advantages"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(*found["loss"], rtol=1e-5)
    assert found["compared"] == found["weights"]
    assert found["gradient difference"] < 1e-5 * found["gradient norm"]
