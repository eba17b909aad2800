"""The learner under DeepSpeed ZeRO-3, on one rank and on two, against plain PyTorch."""

from functools import cache

import numpy as np
import pytest
import torch
from learner_check import SETTINGS, VOCABULARY, fixed_batch, learner_config
from shared import pairs
from transformers import AutoModelForCausalLM

from bnpo.config import TINY_MODEL
from conftest import make_model, report_of

pytestmark = pytest.mark.program
ROUNDED = {"infinite loss", "infinite gradient in bf16", "fp16", "overflow in fp16"}
"""Settings that are not computed in fp32 throughout."""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[str, str]:
    wide, layers = map(tmp_path_factory.mktemp, ("wide", "layers"))
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    make_model(wide, vocab_size=151936, hidden_size=32, **heads)
    make_model(layers, vocab_size=262, hidden_size=512, intermediate_size=512)
    return str(wide), str(layers)


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def report(request, models) -> dict:
    return report_of(request.param, "learner_check", *models)


def logprobs_of(model, prompt, answer, temperature, vocabulary):
    logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1, :vocabulary]
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs.gather(1, torch.tensor(answer)[:, None])[:, 0]


def loss_of(terms: list[torch.Tensor], aggregation: str, longest: int) -> torch.Tensor:
    """From the terms of each answer's tokens, where answers have at most `longest` tokens."""
    if aggregation == "token-mean":
        return torch.cat(terms).mean()
    if aggregation == "seq-mean-token-sum-norm":
        return torch.stack([x.sum() / longest for x in terms]).mean()
    of_answers = [x.mean() if aggregation == "seq-mean-token-mean" else x.sum() for x in terms]
    return torch.stack(of_answers).mean()


@cache
def plain_updates(config, updates: int, setting: str):
    """Mean gradient norms, scores and first old log-probabilities of the same updates, from the
    definitions: one answer at a time, no micro-batches, no ranks.
    """
    update, vocabulary = config.update, VOCABULARY[setting == "wide head"]
    model = AutoModelForCausalLM.from_pretrained(config.data.model, dtype=torch.float32)
    settings = {"betas": update.betas, "weight_decay": update.weight_decay, "eps": 1e-8}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **settings)
    batch, advantages = fixed_batch(setting)

    def logprobs(temperature: float) -> list[torch.Tensor]:
        with torch.no_grad():
            return [
                logprobs_of(model, prompt, answer.token_ids, temperature, vocabulary)
                for prompt, answer in pairs(batch)
            ]

    norms, first_old = [], logprobs(config.sampling.temperature)
    for _ in range(updates):
        old = logprobs(config.sampling.temperature)
        norms.append([])
        parts = np.split(np.arange(12), config.batch.mini_batches)
        for mini_batch in parts * config.batch.ppo_iterations:
            terms = []
            for i in mini_batch:
                prompt, answer = pairs(batch)[i]
                new = logprobs_of(
                    model, prompt, answer.token_ids, config.sampling.temperature, vocabulary
                )
                ratio, advantage = torch.exp(new - old[i]), advantages.flat[i]
                clipped = ratio.clamp(1 - update.clip_low, 1 + update.clip_high)
                terms.append(-torch.minimum(ratio * advantage, clipped * advantage))
                if update.importance_cap:
                    gap = old[i] - torch.tensor(answer.logprobs, dtype=torch.float32)
                    terms[-1] = terms[-1] * torch.exp(gap).clamp(max=update.importance_cap)
            optimizer.zero_grad()
            loss_of(terms, update.aggregation, config.sampling.max_answer_tokens).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), update.max_grad_norm).item()
            if np.isfinite(norm):
                norms[-1].append(norm)
                optimizer.step()
    return [np.mean(part) for part in norms], torch.cat(logprobs(1.0)).numpy(), first_old


def test_updates_are_those_of_plain_pytorch(report, models):
    for setting in SETTINGS.keys() - ROUNDED:
        config, case = learner_config(setting, *models), report[setting]
        norms, scores, old = plain_updates(config, 2, setting)
        found = [metrics["grad_norm"] for metrics in case["metrics"]]
        np.testing.assert_allclose(found, norms, rtol=1e-3, err_msg=setting)
        assert found[0] > 2 * config.update.max_grad_norm  # logged before clipping
        moved = scores - plain_updates(config, 0, setting)[1]
        difference = np.concatenate(case["scores"]) - scores
        assert np.abs(difference).max() < 0.01 * np.abs(moved).max(), setting
        # Of the answers with a gradient; those of the last question have none
        assert sorted(map(int, case["old"])) == list(range(9)), setting
        for i, logprobs in case["old"].items():
            np.testing.assert_allclose(logprobs, old[int(i)], atol=1e-4, err_msg=setting)


@pytest.mark.usefixtures("float16")
def test_fp16_has_the_gradients_of_fp32_without_its_loss_scale(report, models):
    config, case = learner_config("fp16", *models, "--dtype", "float32"), report["fp16"]
    norms, scores, _ = plain_updates(config, 2, "fp16")
    np.testing.assert_allclose([m["grad_norm"] for m in case["metrics"]], norms, rtol=0.02)
    moved = scores - plain_updates(config, 0, "fp16")[1]
    difference = np.concatenate(case["scores"]) - scores
    assert np.abs(difference).mean() < 0.05 * np.abs(moved).mean()


def test_updates_that_are_not_finite_are_skipped_and_counted(report):
    # Those around them are plain PyTorch's, by the test above
    skipped = {
        setting: [metrics["updates/skipped"] for metrics in report[setting]["metrics"]]
        for setting in SETTINGS.keys() & report.keys()
    }
    expected = {"infinite gradient": [2, 2], "infinite loss": [2, 2]}
    whole = {"infinite gradient in bf16", "overflow in fp16"} & skipped.keys()
    expected |= {setting: [1, 1] for setting in whole}
    assert {setting: counts for setting, counts in skipped.items() if any(counts)} == expected
    assert SETTINGS.keys() - skipped.keys() <= {"fp16", "overflow in fp16"}
    for setting in whole:
        assert report[setting]["scores"] == report[setting]["before"]
        assert np.isnan(report[setting]["metrics"][0]["grad_norm"])


def test_tokens_that_sampler_and_learner_find_differently_likely_are_counted(report):
    case, (batch, _) = report["one update"], fixed_batch()
    answers = [answer for group in batch.groups for answer in group.answers]
    ratios = [np.exp(old - answers[int(i)].logprobs) for i, old in case["old"].items()]
    outside = np.abs(np.concatenate(ratios) - 1) > 0.1
    found = case["metrics"][0]["sampler_learner_ratio_outside"]
    assert found == pytest.approx(outside.mean())
    assert 0.5 < found < 1


def test_clipping_acts_only_after_the_first_update_of_a_batch(report):
    for setting, clips in (("one update", False), ("two iterations", True)):
        metrics = report[setting]["metrics"][0]
        assert (metrics["clipped_low"] + metrics["clipped_high"] > 0) == clips


def test_gradients_are_summed_in_fp32(report):
    """In bf16 the sum of many micro-batches would lose small ones."""
    for setting in ("one update", "infinite gradient in bf16"):
        assert report[setting]["types"] == ["torch.float32", "torch.float32"]


def test_the_moments_exist_before_the_first_update(report):
    """Otherwise the sampler would get their memory."""
    parameters = AutoModelForCausalLM.from_pretrained(TINY_MODEL).num_parameters()
    for setting in ("one update", "mini-batches"):  # the latter is offloaded
        assert report[setting]["moments"] >= 2 * parameters / report["ranks"]


def test_rotary_frequencies_in_bf16_are_those_of_plain_transformers(report, models):
    plain = AutoModelForCausalLM.from_pretrained(models[1], dtype=torch.bfloat16)
    expected = {name: [str(x.dtype), x.tolist()] for name, x in plain.named_buffers()}
    assert expected["model.rotary_emb.inv_freq"][0] == "torch.float32"
    assert report["buffers"] == [expected, expected]  # as loaded, and after resuming
