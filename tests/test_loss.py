"""The loss, micro-batches and packed attention against their definitions."""

from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.batching import Lengths, collate, plan_micro_batches
from bnpo.algorithm.loss import LogprobHead, clipped_surrogate, importance_weights, token_weights
from bnpo.config import Aggregation
from bnpo.policy.model import ATTENTION, Policy

VOCABULARY, HIDDEN, NORM_LENGTH = 50, 16, 12


def normal(*shape: int, seed: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator, requires_grad=True)


@pytest.fixture
def case():
    """A float64 bigram 'model' (embedding, head), and 20 answers of uneven length to 5 prompts
    with all inputs of the loss, which float32 holds exactly.
    """
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, rng.integers(1, 6)).tolist() for _ in range(5)] * 4
    answers = [rng.integers(0, VOCABULARY, rng.integers(1, 13)).tolist() for _ in range(20)]
    old = [np.float32(rng.normal(-3.9, 0.5, len(answer))) for answer in answers]
    model = normal(VOCABULARY, HIDDEN, seed=0), normal(VOCABULARY, HIDDEN, seed=1)
    return *model, prompts, answers, old, np.float32(rng.normal(size=20))


def by_micro_batches(case, aggregation, ranks, budget):
    """The loss as the learner computes it, one rank after the other."""
    embedding, head, prompts, answers, old, advantages = case
    groups = np.arange(20) % 5
    lengths = Lengths(np.array(list(map(len, prompts))), np.array(list(map(len, answers))), groups)
    weights = token_weights(lengths.answer_tokens, aggregation, NORM_LENGTH)
    total = torch.zeros((), dtype=torch.float64)
    for micro_batches in plan_micro_batches(lengths, ranks, budget):
        for part in micro_batches:
            micro = collate(prompts, answers, groups, part, "cpu")
            logits = embedding[micro.input_ids][micro.predicting] @ head.T
            logprobs = torch.log_softmax(logits, -1).gather(1, micro.targets[:, None])[:, 0]
            of_tokens = [micro.per_token(values) for values in (old, advantages, weights)]
            total = total + clipped_surrogate(logprobs, *of_tokens, 0.2, 0.28)[0]
    return total


def directly(case, aggregation):
    """The same loss, answer by answer and token by token from its definition."""
    embedding, head, prompts, answers, old, advantages = case
    sums, lengths = [], torch.tensor([len(answer) for answer in answers])
    for prompt, answer, old_logprobs, advantage in zip(
        prompts, answers, old, advantages.tolist(), strict=True
    ):
        tokens, terms = prompt + answer, []
        for t in range(len(prompt), len(tokens)):
            logprob = torch.log_softmax(head @ embedding[tokens[t - 1]], -1)[tokens[t]]
            ratio = torch.exp(logprob - float(old_logprobs[t - len(prompt)]))
            terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
        sums.append(torch.stack(terms).sum())
    sums = torch.stack(sums)
    return {
        "seq-mean-token-sum": sums.mean(),
        "token-mean": sums.sum() / lengths.sum(),
        "seq-mean-token-mean": (sums / lengths).mean(),
        "seq-mean-token-sum-norm": (sums / NORM_LENGTH).mean(),
    }[aggregation]


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_value_and_gradient_do_not_depend_on_the_split(case, aggregation):
    expected = directly(case, aggregation)
    gradients = torch.autograd.grad(expected, case[:2])
    for ranks, budget in ((1, 10**6), (1, 1), (1, 40), (2, 40), (3, 25), (30, 64)):
        loss = by_micro_batches(case, aggregation, ranks, budget)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)  # weights are in float32
        for got, want in zip(torch.autograd.grad(loss, case[:2]), gradients, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


STEPS = {
    "none": None,
    "scaled": lambda logits: logits / 8,
    "capped": lambda logits: 3 * torch.tanh(logits / 3),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("top_k", [None, 5])
def test_chunked_logprobs_are_those_of_log_softmax(top_k, temperature, with_bias, steps):
    hidden, head = (normal(n, HIDDEN, seed=n, dtype=torch.float32) for n in (23, VOCABULARY))
    bias = normal(VOCABULARY, seed=2, dtype=torch.float32) if with_bias else None
    # Ids 40 to 49 are padding rows
    targets = torch.randint(0, 40, (23,), generator=torch.Generator().manual_seed(0))
    logits = hidden @ head.t() + (bias if with_bias else 0)
    logits = (steps(logits) if steps else logits)[:, :40] / temperature
    if top_k:  # the five most likely tokens and the target
        rank = logits.argsort(dim=1, descending=True).argsort(dim=1)  # [23, 40]
        logits = logits.where((rank < top_k) | F.one_hot(targets, 40).bool(), -1e9)
    expected = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    upstream = torch.linspace(-1, 2, 23)
    inputs = (hidden, head, bias) if with_bias else (hidden, head)
    theirs = torch.autograd.grad((upstream * expected).sum(), inputs)
    assert (theirs[1][40:] == 0).all()
    for chunk in (1, 7 * 40, 10**6):
        got = LogprobHead(head, bias, 40, steps)(hidden, targets, temperature, top_k, chunk)
        torch.testing.assert_close(got, expected)
        ours = torch.autograd.grad((upstream * got).sum(), inputs)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)


def test_logprobs_of_a_bfloat16_model_are_not_rounded_to_bfloat16():
    hidden, head = (normal(n, HIDDEN, seed=n).bfloat16().detach() for n in (500, VOCABULARY))
    head.requires_grad_()
    targets = torch.arange(500) % VOCABULARY
    exact = torch.log_softmax(hidden.float() @ head.float().t(), -1).gather(1, targets[:, None])
    got = LogprobHead(head, None, VOCABULARY)(hidden, targets, 1.0, chunk=VOCABULARY)
    torch.testing.assert_close(got, exact[:, 0])
    # The head's gradient is summed over 500 chunks: in bfloat16 it would stop growing.
    ours, theirs = (torch.autograd.grad(values.sum(), head)[0] for values in (got, exact))
    assert (ours - theirs).norm() < 0.01 * theirs.norm()


def test_clipping_takes_the_gradient_away_on_the_outer_side_only():
    logprobs = torch.log(torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5])).requires_grad_()
    advantages = torch.tensor([1.0, -1, 1, 1, -1])
    zeros, ones = torch.zeros(5), torch.ones(5)
    loss, *clipped = clipped_surrogate(logprobs, zeros, advantages, ones, 0.2, 0.28)
    [gradient] = torch.autograd.grad(loss, logprobs)
    torch.testing.assert_close(gradient, torch.tensor([-0.5, 0, -1, 0, 1.5]))
    assert clipped == [1, 1]


def test_importance_weights_are_truncated_and_carry_no_gradient():
    old = torch.log(torch.tensor([0.1, 0.2, 0.9])).requires_grad_()
    weights = importance_weights(old, torch.log(torch.tensor([0.2, 0.2, 0.3])), cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([0.5, 1, 2]))
    assert not weights.requires_grad


@st.composite
def batches(draw) -> Lengths:
    """Lengths of a batch. The answers of a group are not neighbours."""
    prompts = np.array(draw(st.lists(st.integers(1, 500), min_size=1, max_size=12)))
    groups = np.array(draw(st.lists(st.integers(0, len(prompts) - 1), max_size=60)), dtype=np.int64)
    answers = draw(st.lists(st.integers(1, 3000), min_size=len(groups), max_size=len(groups)))
    return Lengths(prompts[groups], np.array(answers, dtype=np.int64), groups)


def tokens(lengths: Lengths, part: np.ndarray) -> int:
    """Count the tokens of the answers in `part` and of their prompts, each prompt once."""
    first = np.unique(lengths.groups[part], return_index=True)[1]
    return lengths.prompt_tokens[part][first].sum() + lengths.answer_tokens[part].sum()


@given(lengths=batches(), ranks=st.integers(1, 8), budget=st.integers(1, 10_000))
def test_every_answer_is_trained_on_once_and_no_rank_waits_for_another(lengths, ranks, budget):
    plans = plan_micro_batches(lengths, ranks, budget)
    parts = [part for rank in plans for part in rank]
    assert sorted(i for part in parts for i in part) == list(range(len(lengths.answer_tokens)))
    assert {len(rank) for rank in plans} == {max(1, len(plans[0]))}
    assert all(len(part) <= 1 or tokens(lengths, part) <= budget for part in parts)


def real_batch(questions: int) -> Lengths:
    rng = np.random.default_rng(0)
    prompts = rng.integers(60, 300, questions).repeat(16)
    answers = rng.lognormal(6, 0.7, questions * 16).clip(100, 3072).astype(int)
    return Lengths(prompts, answers, np.arange(questions).repeat(16))


@pytest.mark.parametrize(("questions", "ratio"), [(128, 1.03), (32, 1.03), (8, 1.1), (2, 1.1)])
def test_ranks_get_nearly_the_same_tokens(questions, ratio):
    lengths = real_batch(questions)
    plans = plan_micro_batches(lengths, 8, 16384)
    loads = [sum(tokens(lengths, part) for part in rank if len(part)) for rank in plans]
    assert max(loads) / np.mean(loads) < ratio
    # The mean load without shared prompts
    assert max(loads) < (lengths.prompt_tokens + lengths.answer_tokens).sum() / 8
    if questions == 128:  # few groups are cut
        parts = [part for rank in plans for part in rank]
        assert sum(len(np.unique(lengths.groups[part])) for part in parts) < 128 * 1.1


def test_groups_are_cut_only_where_they_do_not_fit_or_the_ranks_would_wait():
    small = Lengths(np.full(6, 100), np.full(6, 10), np.zeros(6, dtype=int))
    for ranks, budget, sizes in ((1, 1000, [[6]]), (2, 1000, [[3], [3]]), (1, 160, [[3, 3]])):
        plans = plan_micro_batches(small, ranks, budget)
        assert [[len(part) for part in rank] for rank in plans] == sizes


def test_answers_follow_the_prompts_that_they_share():
    prompts, answers = [[1, 2], [3], [1, 2], [9]], [[4], [5, 6, 7], [8, 10], [11]]
    micro = collate(prompts, answers, [7, 8, 7, 9], np.array([2, 1, 0]), "cpu")
    # Answer 0 has one token, and predicts nothing with it
    assert micro.input_ids.tolist() == [1, 2, 8, 3, 5, 6]
    assert micro.position_ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert micro.sequences.starts.tolist() == [0, 2, 3, 6]
    assert micro.sequences.keys.tolist() == [0, 1, 0, 1, 2, 3, 4, 5]
    assert micro.sequences.key_starts.tolist() == [0, 2, 5, 8]
    assert (micro.sequences.longest, micro.sequences.longest_keys) == (3, 3)
    assert micro.targets.tolist() == [8, 10, 5, 6, 7, 4]
    assert micro.predicting.tolist() == [1, 2, 3, 4, 5, 1]
    assert micro.per_token(np.array([10.0, 20, 30, 40])).tolist() == [30, 30, 20, 20, 20, 10]
    of_tokens = [np.array([1.0]), np.array([2.0, 3, 4]), np.array([5.0, 6]), None]
    assert micro.per_token(of_tokens).tolist() == [5, 6, 2, 3, 4, 1]
    filler = collate(prompts, answers, [7, 8, 7, 9], np.array([], dtype=int), "cpu")
    assert len(filler.targets) == len(filler.predicting) == 1
    assert filler.per_token([]).tolist() == [0]  # its only token has no weight
    assert filler.input_ids.dtype == torch.int64


RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(20, 110, length).tolist() for length in (5, 9, 5, 1)]
OWNERS = [0, 0, 1, 2, 0, 3, 2, 3, 1, 0]
"""The prompt of each answer."""
LENGTHS = (40, 22, 22, 22, 7, 1, 1, 600, 22, 22)
ANSWERS = [RNG.integers(20, 110, length).tolist() for length in LENGTHS]
PARTS = {
    "whole": [list(range(10))],
    "cut": [[9, 1, 5, 2], [4, 0, 8], [7], [6, 3]],
    "alone": [[i] for i in range(10)],
}


def tiny_model(family: str, attention: str, **settings: object):
    """A float64 model of two layers, with noise on every weight: a bias is zero at first."""
    shape = {"vocab_size": 120, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(family, **shape | settings)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).double()
    for i, parameter in enumerate(model.parameters()):
        parameter.data += normal(*parameter.shape, seed=i).detach() / 10
    return model.train()


def logprobs_and_gradients(model, logprobs_of, parts) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs = {}
    for part in parts:
        logprobs |= logprobs_of(model, part)
    sum((logprobs[i] * torch.linspace(-1, 2, LENGTHS[i])).sum() for i in logprobs).backward()
    gradients = torch.cat([parameter.grad.ravel() for parameter in model.parameters()])
    return torch.cat([logprobs[i].detach() for i in range(10)]), gradients


def of_the_policy(model, part):
    prompts = [PROMPTS[owner] for owner in OWNERS]
    micro = collate(prompts, ANSWERS, OWNERS, np.array(part), "cpu")
    logprobs = Policy(model, vocab_size=110)(micro, temperature=0.7)
    return dict(zip(part, logprobs.split(micro.lengths.tolist()), strict=True))


def of_transformers(model, part):
    """From the definition: the softmax over the tokens that can be sampled, at the temperature."""
    (i,) = part
    prompt, answer = PROMPTS[OWNERS[i]], torch.tensor(ANSWERS[i])
    logits = model(torch.tensor([prompt + ANSWERS[i]])).logits[0, len(prompt) - 1 : -1, :110] / 0.7
    return {i: torch.log_softmax(logits, -1).gather(1, answer[:, None])[:, 0]}


WINDOWED = {"sliding_window": 7, "head_dim": 32}
CAPPED = {"attn_logit_softcapping": None, "final_logit_softcapping": 2.0}
MODELS = {
    "qwen2 with as many key heads": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2": ("qwen2", {}),
    "qwen2 with one key head": ("qwen2", {"num_key_value_heads": 1}),
    "mistral": ("mistral", WINDOWED),
    "gemma3": ("gemma3_text", WINDOWED | {"layer_types": ["sliding_attention", "full_attention"]}),
    "cohere2": ("cohere2", WINDOWED | {"layer_types": ["full_attention", "sliding_attention"]}),
    "gemma2": (
        "gemma2",
        WINDOWED | CAPPED,
    ),
    "granite": ("granite", {"logits_scaling": 8.0}),
    "phi": ("phi", {"attention_dropout": 0.0}),
}
"""Models with windows shorter than the sequences, and with steps behind the head: scales, a cap,
a bias."""


@pytest.mark.parametrize("name", MODELS)
def test_packed_answers_have_the_logprobs_and_gradients_of_the_models_own_code(name):
    family, settings = MODELS[name]
    plain = tiny_model(family, "eager", **settings)
    logprobs, gradients = logprobs_and_gradients(plain, of_transformers, PARTS["alone"])
    for parts in ("whole", "cut"):
        model = tiny_model(family, ATTENTION, **settings)
        if parts == "cut":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        found = logprobs_and_gradients(model, of_the_policy, PARTS[parts])
        torch.testing.assert_close(found[0], logprobs.float(), rtol=1e-5, atol=1e-5)
        assert (found[1] - gradients).norm() < 1e-6 * gradients.norm()
