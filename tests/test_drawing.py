"""Tokens drawn on CPUs with one number each, against the definition. tests/test_sampler.py draws
with vLLM.
"""

import pytest
import torch

from bnpo.policy.patches import invert_distribution


def logprobs_of(vocabulary: int, rows: int, only: int | None = None) -> torch.Tensor:
    """Return log-probabilities [rows, vocabulary], of which `only` so many are possible."""
    logits = 3 * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    if only:
        logits[logits < logits.topk(only, dim=1).values[:, -1:]] = -torch.inf
    return logits.log_softmax(dim=1)


@pytest.mark.parametrize(("vocabulary", "only"), [(3, None), (256, 7), (700, None), (5000, 40)])
def test_a_token_is_drawn_for_as_many_numbers_as_its_probability_says(vocabulary, only):
    logprobs, count = logprobs_of(vocabulary, 1, only), 20_000
    shares = torch.linspace(0, 1, count + 1, dtype=torch.float64)[1:, None]
    shares[0] = 2.0**-53  # the least number that is drawn
    tokens = invert_distribution(logprobs.expand(count, -1), shares)
    assert (tokens.diff() >= 0).all()
    numbers = torch.bincount(tokens, minlength=vocabulary)
    assert (numbers - count * logprobs[0].exp()).abs().max() <= 1.01
    assert (numbers[logprobs[0] == -torch.inf] == 0).all()


def test_a_row_does_not_depend_on_the_others_and_may_be_no_number():
    logprobs, shares = logprobs_of(1000, 50), torch.linspace(0.01, 1, 50).double()[:, None]
    tokens = invert_distribution(logprobs, shares)
    for row in range(50):
        assert tokens[row] == invert_distribution(logprobs[row : row + 1], shares[row : row + 1])
    broken = logprobs.clone()
    broken[::2] = torch.nan
    assert (invert_distribution(broken, shares)[1::2] == tokens[1::2]).all()
