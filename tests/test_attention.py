"""Sequences packed end to end go through a model as they do one by one."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from bnpo.attention import ATTENTION
from bnpo.batching import collate
from bnpo.config import TINY_MODEL
from bnpo.policy import Policy


def test_packed_logprobs_and_gradients_are_those_of_rows_and_of_transformers():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(20, 110, rng.integers(2, 9)).tolist() for _ in range(7)]
    answers = [rng.integers(20, 110, rng.integers(1, 40)).tolist() for _ in range(7)]
    upstream = torch.randn(sum(map(len, answers)), generator=torch.Generator().manual_seed(0))
    found = {}
    for packed, attention in ((False, "sdpa"), (False, ATTENTION), (True, ATTENTION)):
        model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, attn_implementation=attention, dtype=torch.float64)
        policy = Policy(model, vocab_size=262, temperature=1.0)
        batch = collate(prompts, answers, np.arange(7), "cpu", packed=packed)
        logprobs, _ = policy(batch)
        (logprobs * upstream).sum().backward()
        gradients = torch.cat([p.grad.ravel() for p in model.parameters()])
        found[packed, attention] = (logprobs.detach(), gradients)
    expected = found.pop((False, "sdpa"))
    for logprobs, gradients in found.values():
        torch.testing.assert_close(logprobs, expected[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradients, expected[1], rtol=1e-5, atol=1e-6)
