"""Sequences packed end to end go through a model as they do one by one."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from bnpo.algorithm.batching import collate
from bnpo.config import TINY_MODEL
from bnpo.policy.attention import ATTENTION
from bnpo.policy.model import Policy


def test_packed_logprobs_and_gradients_are_those_of_transformers_one_by_one():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(20, 110, 5).tolist() for _ in range(7)]
    answers = [rng.integers(20, 110, length).tolist() for length in (40, 22, 22, 22, 7, 1, 1)]  # some of equal length
    upstream = torch.randn(sum(map(len, answers)), generator=torch.Generator().manual_seed(0))

    def logprobs_and_gradients(attention, parts):
        model = AutoModelForCausalLM.from_pretrained(TINY_MODEL, attn_implementation=attention, dtype=torch.float64)
        policy = Policy(model, vocab_size=262, temperature=1.0)
        logprobs = torch.cat([policy(collate(prompts, answers, part, "cpu"))[0] for part in parts])
        (logprobs * upstream).sum().backward()
        return logprobs.detach(), torch.cat([p.grad.ravel() for p in model.parameters()])

    packed = logprobs_and_gradients(ATTENTION, [np.arange(7)])
    one_by_one = logprobs_and_gradients("sdpa", np.arange(7)[:, None])
    torch.testing.assert_close(packed[0], one_by_one[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(packed[1], one_by_one[1], rtol=1e-5, atol=1e-6)
