"""Prompts and their answers packed in one row go through a model as pairs do one by one."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from bnpo.algorithm.batching import collate
from bnpo.policy.model import ATTENTION, Policy

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(20, 110, length).tolist() for length in (5, 9, 5, 1)]
OWNERS = [0, 0, 1, 2, 0, 3, 2, 3, 1, 0]
"""The prompt of each answer."""
ANSWERS = [RNG.integers(20, 110, length).tolist() for length in (40, 22, 22, 22, 7, 1, 1, 600, 22, 22)]
UPSTREAM = [torch.randn(len(answer), generator=torch.Generator().manual_seed(i)) for i, answer in enumerate(ANSWERS)]


def model_of(attention: str, key_heads: int, checkpointing: bool) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=120, num_key_value_heads=key_heads, **shape, attn_implementation=attention)
    model = Qwen2ForCausalLM(config).double()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def logprobs_and_gradients(model, logprobs_of, parts):
    logprobs = {}
    for part in parts:
        logprobs |= logprobs_of(model, part)
    sum((logprobs[i] * UPSTREAM[i]).sum() for i in logprobs).backward()
    return (
        torch.cat([logprobs[i].detach() for i in sorted(logprobs)]),
        torch.cat([p.grad.ravel() for p in model.parameters()]),
    )


def of_the_policy(model, part):
    prompts = [PROMPTS[owner] for owner in OWNERS]
    micro = collate(prompts, ANSWERS, np.array(part), "cpu")
    logprobs, _ = Policy(model, vocab_size=110)(micro, temperature=0.7)
    return dict(zip(part, logprobs.split(micro.lengths.tolist()), strict=True))


def of_transformers(model, part):
    """From the definition: the softmax over the tokens that can be sampled, at the temperature."""
    (i,) = part
    prompt, answer = PROMPTS[OWNERS[i]], torch.tensor(ANSWERS[i])
    logits = model(torch.tensor([prompt + ANSWERS[i]])).logits[0, len(prompt) - 1 : -1, :110] / 0.7
    return {i: torch.log_softmax(logits, -1).gather(1, answer[:, None])[:, 0]}


@pytest.mark.parametrize("parts", [[list(range(10))], [[9, 1, 5, 2], [4, 0, 8], [7], [6, 3]]], ids=["whole", "cut"])
@pytest.mark.parametrize(("key_heads", "checkpointing"), [(4, False), (2, True), (1, False)])
def test_shared_prompts_have_the_logprobs_and_gradients_of_whole_sequences(parts, key_heads, checkpointing):
    packed = logprobs_and_gradients(model_of(ATTENTION, key_heads, checkpointing), of_the_policy, parts)
    alone = [[i] for i in range(10)]
    one_by_one = logprobs_and_gradients(model_of("sdpa", key_heads, False), of_transformers, alone)
    torch.testing.assert_close(packed[0], one_by_one[0].float(), rtol=1e-5, atol=1e-6)
    assert (packed[1] - one_by_one[1]).norm() < 1e-6 * one_by_one[1].norm()


WINDOWED = {"sliding_window": 7, "head_dim": 32}
FAMILIES = {
    "mistral": WINDOWED,
    "gemma3_text": WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]},
    "cohere2": WINDOWED | {"layer_types": ["full_attention", "sliding_attention"]},
    "gemma2": WINDOWED | {"attn_logit_softcapping": None, "final_logit_softcapping": 2.0},
    "granite": {"logits_scaling": 8.0},
    "phi": {"attention_dropout": 0.0},
}
"""Models with windows shorter than the sequences, and with steps behind the head: scales, a cap, a bias."""


@pytest.mark.parametrize("family", FAMILIES)
def test_windows_and_steps_behind_the_head_are_those_of_the_models_own_code(family):
    shape = {"vocab_size": 120, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
    models = []
    for attention in (ATTENTION, "eager"):
        config = AutoConfig.for_model(family, **shape | FAMILIES[family])
        torch.manual_seed(0)
        models.append(AutoModelForCausalLM.from_config(config, attn_implementation=attention).double())
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        noise = torch.randn(parameters[0].shape, generator=torch.Generator().manual_seed(0)) / 10
        for parameter in parameters:
            parameter.data += noise  # a bias is zero at first
    ours = logprobs_and_gradients(models[0], of_the_policy, [[9, 1, 5, 2], [4, 0, 8, 7, 6, 3]])
    theirs = logprobs_and_gradients(models[1], of_transformers, [[i] for i in range(10)])
    torch.testing.assert_close(ours[0], theirs[0].float(), rtol=1e-5, atol=1e-5)
    assert (ours[1] - theirs[1]).norm() < 1e-6 * theirs[1].norm()
