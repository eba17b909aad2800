"""The learner under DeepSpeed ZeRO-3, on one rank and on two, against plain PyTorch."""

from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from bnpo.config import TINY_MODEL, parse_train_config
from bnpo.policy.patches import compute_buffers_again
from conftest import make_model, report_of
from programs.learner_check import COMMON, SETTINGS, VOCABULARY, fixed_experience, long_answer

pytestmark = pytest.mark.program


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    make_model(
        folder, vocab_size=151936, hidden_size=32, num_attention_heads=1, num_key_value_heads=1
    )
    return folder


@pytest.fixture(scope="module")
def wide_layers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    make_model(folder, vocab_size=262, hidden_size=512, intermediate_size=512)
    return folder


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """Heads of size 128 that attend sharply, by what is where."""
    folder = tmp_path_factory.mktemp("long")
    model = make_model(folder, vocab_size=262, hidden_size=256)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 10
        layer.self_attn.k_proj.weight.data *= 10
    model.lm_head.weight.data *= 5
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=["one rank", "two ranks"])
def report(request, wide_model, wide_layers, long_model) -> dict:
    models = (long_model, wide_model, wide_layers)
    return report_of(request.param, "learner_check", *models)


def test_the_moments_exist_before_the_first_update(report, request):
    """Otherwise the sampler would get their memory."""
    ranks = 1 + ("two ranks" in request.node.name)
    parameters = AutoModelForCausalLM.from_pretrained(TINY_MODEL).num_parameters()
    for setting in ("one update", "mini-batches"):  # the latter is offloaded
        assert report[setting]["moments"] >= 2 * parameters / ranks


def logprobs_of(model, prompt, answer, temperature, vocabulary):
    logits = (
        model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1, :vocabulary]
        / temperature
    )
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(answer)[:, None])[:, 0]


@cache
def plain_updates(config, updates: int, setting: str):
    """The same updates from the definitions: one answer at a time, no micro-batches, no ranks."""
    wide = setting == "wide head"
    model = AutoModelForCausalLM.from_pretrained(config.data.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-4,
        betas=config.update.betas,
        weight_decay=config.update.weight_decay,
        eps=1e-8,
    )
    experience, norms = fixed_experience(setting), []
    for _ in range(updates):
        with torch.no_grad():
            old = [
                logprobs_of(model, p, a, config.sampling.temperature, VOCABULARY[wide])
                for p, a in zip(experience.prompts, experience.answers, strict=True)
            ]
        norms.append([])
        for _ in range(config.batch.ppo_iterations):
            for mini_batch in np.split(np.arange(12), config.batch.mini_batches):
                terms = []
                for i in mini_batch:
                    logprobs = logprobs_of(
                        model,
                        experience.prompts[i],
                        experience.answers[i],
                        config.sampling.temperature,
                        VOCABULARY[wide],
                    )
                    ratio, advantage = torch.exp(logprobs - old[i]), experience.advantages[i]
                    clipped = ratio.clamp(1 - config.update.clip_low, 1 + config.update.clip_high)
                    term = -torch.minimum(ratio * advantage, clipped * advantage)
                    if config.update.importance_cap:
                        sampler = torch.tensor(experience.sampler_logprobs[i], dtype=torch.float32)
                        term = term * torch.exp(old[i] - sampler).clamp(
                            max=config.update.importance_cap
                        )
                    terms.append(term)
                loss = {
                    "seq-mean-token-sum": lambda t: torch.stack([x.sum() for x in t]).mean(),
                    "token-mean": lambda t: torch.cat(t).mean(),
                    "seq-mean-token-mean": lambda t: torch.stack([x.mean() for x in t]).mean(),
                }[config.update.aggregation](terms)
                optimizer.zero_grad()
                loss.backward()
                norm = torch.nn.utils.clip_grad_norm_(
                    model.parameters(), config.update.max_grad_norm
                ).item()
                if np.isfinite(norm):
                    norms[-1].append(norm)
                    optimizer.step()
    with torch.no_grad():
        scores = [
            logprobs_of(model, p, a, 1.0, VOCABULARY[wide]).tolist()
            for p, a in zip(experience.prompts, experience.answers, strict=True)
        ]
    return [np.mean(part) for part in norms], scores


ROUNDED = {"infinite loss", "infinite gradient in bf16", "fp16", "overflow in fp16"}
"""Settings that are not computed in fp32 throughout."""


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting not in ROUNDED])
def test_updates_are_those_of_plain_pytorch(report, wide_model, wide_layers, setting):
    flags = [
        {"WIDE": str(wide_model), "LAYERS": str(wide_layers)}.get(flag, flag)
        for flag in SETTINGS[setting]
    ]
    config, _ = parse_train_config([*COMMON, *flags], has_cuda=False)
    norms, scores = plain_updates(config, 2, setting)
    found = report[setting]
    np.testing.assert_allclose([m["grad_norm"] for m in found["metrics"]], norms, rtol=1e-3)
    # Logged before clipping
    assert found["metrics"][0]["grad_norm"] > 2 * config.update.max_grad_norm
    moved = np.concatenate(scores) - np.concatenate(plain_updates(config, 0, setting)[1])
    difference = np.concatenate(found["scores"]) - np.concatenate(scores)
    assert np.abs(difference).max() < 0.01 * np.abs(moved).max()


def test_updates_that_are_not_finite_are_skipped_and_counted(report):
    # In how many of the updates; those around them are plain PyTorch's, by the test above.
    settings = [setting for setting in SETTINGS if setting in report]
    skipped = {
        setting: [m["updates/skipped"] for m in report[setting]["metrics"]] for setting in settings
    }
    expected = {setting: [0, 0] for setting in settings}
    expected |= {
        "infinite gradient": [2, 2],
        "infinite gradient in bf16": [1, 1],
        "infinite loss": [2, 2],
    }
    if "overflow in fp16" in settings:
        expected["overflow in fp16"] = [1, 1]
    # Answers 4 to 7 are the second update's.
    assert skipped == expected
    assert {*SETTINGS} - {*settings} <= {"fp16", "overflow in fp16"}
    for setting in {"infinite gradient in bf16", "overflow in fp16"} & {*settings}:
        assert report[setting]["scores"] == report[setting]["before"]
        assert np.isnan(report[setting]["metrics"][0]["grad_norm"])


@pytest.mark.usefixtures("float16")
def test_fp16_has_the_gradients_of_fp32_without_its_loss_scale(report):
    config, _ = parse_train_config(
        [*COMMON, *SETTINGS["fp16"], "--dtype", "float32"], has_cuda=False
    )
    norms, scores = plain_updates(config, 2, "fp16")
    np.testing.assert_allclose(
        [m["grad_norm"] for m in report["fp16"]["metrics"]], norms, rtol=0.02
    )
    moved = np.concatenate(scores) - np.concatenate(plain_updates(config, 0, "fp16")[1])
    difference = np.concatenate(report["fp16"]["scores"]) - np.concatenate(scores)
    assert np.abs(difference).mean() < 0.05 * np.abs(moved).mean()


def test_clipping_acts_only_after_the_first_update_of_a_batch(report):
    assert (
        report["one update"]["metrics"][0]["clipped_low"]
        == report["one update"]["metrics"][0]["clipped_high"]
        == 0
    )
    assert (
        sum(
            report["two iterations"]["metrics"][0][side] for side in ("clipped_low", "clipped_high")
        )
        > 0
    )


def test_rotary_frequencies_in_bf16_are_those_of_plain_transformers(report, long_model):
    plain = AutoModelForCausalLM.from_pretrained(long_model, dtype=torch.bfloat16)
    expected = {
        name: [str(buffer.dtype), buffer.tolist()] for name, buffer in plain.named_buffers()
    }
    assert expected["model.rotary_emb.inv_freq"][0] == "torch.float32"
    for when in ("loaded", "resumed"):
        assert report["long"][when]["buffers"] == expected


def test_a_long_answer_in_bf16_is_scored_as_exactly_as_by_plain_transformers_to_its_end(
    report, long_model
):
    def plain_scores(dtype: torch.dtype) -> np.ndarray:
        """Scores by bf16 weights, computed in `dtype` up to the head."""
        plain = AutoModelForCausalLM.from_pretrained(long_model, dtype=torch.bfloat16).to(dtype)
        compute_buffers_again(plain)
        with torch.no_grad():
            hidden = (
                plain.base_model(torch.tensor([[1, *answer]])).last_hidden_state[0, :-1].float()
            )
        logits = hidden @ plain.lm_head.weight.detach().float().T
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(answer)[:, None])[:, 0].numpy()

    answer = long_answer()
    exact = plain_scores(torch.float32)
    rounding = np.abs(plain_scores(torch.bfloat16) - exact)
    for when in ("loaded", "resumed"):
        gaps = np.abs(np.array(report["long"][when]["scores"]) - exact)
        for part in (slice(500), slice(-500, None)):
            assert gaps[part].mean() <= 1.1 * rounding[part].mean()
