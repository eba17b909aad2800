"""Compute log-probabilities and the loss of micro-batches on a GPU of fake tensors, and print the
devices as JSON.

    devices_check.py LIBRARY

LIBRARY is device_guard.cpp, compiled. Fake tensors compute nothing, but refuse to mix devices.
There is no backward pass, which needs a real GPU.
"""

import json
import sys
from dataclasses import replace

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.batching import collate
from bnpo.algorithm.loss import clipped_surrogate, importance_weights
from bnpo.config import TINY_MODEL
from bnpo.policy import model as policy_model
from bnpo.policy.model import ATTENTION, Policy

GPU = "cuda:0"
PROMPTS = [[1, 2, 3]] * 4 + [[4]]
ANSWERS = [[5] * length for length in (1, 9, 9, 40, 7)]


def device_of_loss(policy: Policy, indices: list[int], prompts_on: str = GPU) -> str:
    batch = collate(PROMPTS, ANSWERS, np.array(indices, dtype=np.int64), GPU)
    batch = replace(batch, input_ids=batch.input_ids.to(prompts_on))
    for top_k in (None, 50):
        logprobs = policy(batch, temperature=0.7, top_k=top_k)  # [answer tokens]
        ones = batch.per_token(np.ones(5))
        weights = importance_weights(ones, ones, 2.0)
        loss, *_ = clipped_surrogate(logprobs, ones, ones, weights, 0.2, 0.2)
    return str(loss.device)


def main() -> None:
    policy_model.compute_capability = lambda: (9, 0)  # the GPU is described, too
    torch.ops.load_library(sys.argv[1])
    config, settings = AutoConfig.from_pretrained(TINY_MODEL), {"attn_implementation": ATTENTION}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **settings)
    with FakeTensorMode(allow_non_fake_inputs=True):
        policy = Policy(model.to_empty(device=GPU), config.vocab_size - 2)
        cases = {"beginnings shared": [0, 1, 2, 3], "nothing shared": [3, 4], "no answers": []}
        report = {name: device_of_loss(policy, indices) for name, indices in cases.items()}
        try:
            device_of_loss(policy, [3, 4], prompts_on="cpu")
        except RuntimeError as error:
            report["a prompt on the CPU"] = "mixed" if "device" in str(error) else str(error)
    print("REPORT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
