"""The loss, micro-batches and packed attention against their definitions."""

from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from bnpo.algorithm.batching import collate, plan_micro_batches
from bnpo.algorithm.loss import LogprobHead, clipped_surrogate, importance_weights, token_weights
from bnpo.config import Aggregation
from bnpo.policy.model import ATTENTION, Policy

VOCABULARY, HIDDEN, NORM_LENGTH = 50, 16, 12


def normal(*shape: int, seed: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator, requires_grad=True)


@pytest.fixture
def case():
    """A float64 bigram 'model' (embedding, head), and 20 answers of uneven length to 5 prompts,
    many of which begin alike, with all inputs of the loss, which float32 holds exactly.
    """
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, rng.integers(1, 6)).tolist() for _ in range(5)] * 4
    answers = [rng.integers(0, 2, rng.integers(1, 13)).tolist() for _ in range(20)]
    old = [np.float32(rng.normal(-3.9, 0.5, len(answer))) for answer in answers]
    model = normal(VOCABULARY, HIDDEN, seed=0), normal(VOCABULARY, HIDDEN, seed=1)
    return *model, prompts, answers, old, np.float32(rng.normal(size=20))


def texts_of(prompts, answers) -> list[list[int]]:
    """What passes through the model."""
    return [prompt + answer[:-1] for prompt, answer in zip(prompts, answers, strict=True)]


def by_micro_batches(case, aggregation, ranks, budget):
    """The loss as the learner computes it, one rank after the other."""
    embedding, head, prompts, answers, old, advantages = case
    weights = token_weights(np.array(list(map(len, answers))), aggregation, NORM_LENGTH)
    total = torch.zeros((), dtype=torch.float64)
    for micro_batches in plan_micro_batches(texts_of(prompts, answers), ranks, budget):
        for part in micro_batches:
            micro = collate(prompts, answers, part, "cpu")
            logits = embedding[micro.input_ids][micro.predicting] @ head.T
            logprobs = torch.log_softmax(logits, -1).gather(1, micro.targets[:, None])[:, 0]
            logprobs = logprobs[micro.predictions]
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
    ratios, advantages = torch.tensor([0.5, 0.5, 0.5, 1.5]), torch.tensor([-1.0, -1, 1, 1])
    _, low, high = clipped_surrogate(ratios.log(), zeros[:4], advantages, ones[:4], 0.2, 0.28)
    assert (low, high) == (2, 1)


def test_importance_weights_are_truncated_and_carry_no_gradient():
    old = torch.log(torch.tensor([0.1, 0.2, 0.9])).requires_grad_()
    weights = importance_weights(old, torch.log(torch.tensor([0.2, 0.2, 0.3])), cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([0.5, 1, 2]))
    assert not weights.requires_grad


def distinct_tokens(texts) -> int:
    """Count the distinct beginnings of texts."""
    nodes: dict[tuple[int, int], int] = {}  # of a trie, by their parent and token
    for text in texts:
        node = 0
        for token in text:
            node = nodes.setdefault((node, token), len(nodes) + 1)
    return len(nodes)


TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=40)


@given(texts=TEXTS, ranks=st.integers(1, 8), budget=st.integers(1, 200))
def test_every_text_is_trained_on_once_and_no_rank_waits_for_another(texts, ranks, budget):
    plans = plan_micro_batches(texts, ranks, budget)
    parts = [part for rank in plans for part in rank]
    assert sorted(i for part in parts for i in part) == list(range(len(texts)))
    assert {len(rank) for rank in plans} == {max(1, len(plans[0]))}
    for part in parts:
        assert len(part) <= 1 or distinct_tokens([texts[i] for i in part]) <= budget


def real_texts(questions: int) -> list[list[int]]:
    """Texts of realistic lengths, 16 with each prompt."""
    rng, texts = np.random.default_rng(0), []
    for prompt in rng.integers(60, 300, questions):
        question = rng.integers(1000, size=prompt).tolist()
        lengths = rng.lognormal(6, 0.7, 16).clip(100, 3072).astype(int)
        texts += [question + rng.integers(1000, size=length).tolist() for length in lengths]
    return texts


@pytest.mark.parametrize(("questions", "ratio"), [(128, 1.03), (32, 1.05), (8, 1.1), (2, 1.25)])
def test_micro_batches_are_full_and_ranks_do_not_wait(questions, ratio):
    texts = real_texts(questions)
    plans = plan_micro_batches(texts, 8, 16384)
    loads = np.array([[distinct_tokens([texts[i] for i in part]) for part in r] for r in plans])
    mean = distinct_tokens(texts) / 8  # tokens of a rank
    # In every micro-batch, the other ranks wait for the one with most tokens
    assert loads.max(axis=0).sum() < ratio * mean
    assert loads.shape[1] == np.ceil(1.05 * mean / 16384)


def test_each_distinct_beginning_passes_once_and_each_prediction_is_made_once():
    prompts = [[1, 2], [3], [1, 2], [1, 2], [1, 2]]
    answers = [[4, 4], [5, 6, 7], [8, 10], [8, 9, 11], [8, 10]]
    micro = collate(prompts, answers, np.array([3, 2, 1, 0, 4]), "cpu")
    # Answers 0, 1 and 3; the text of 2 and 4 is a beginning of that of 3. Last tokens do not pass.
    assert micro.input_ids.tolist() == [4, 3, 5, 6, 1, 2, 8, 9]
    assert micro.position_ids.tolist() == [2, 0, 1, 2, 0, 1, 2, 3]
    assert micro.sequences.starts.tolist() == [0, 1, 4, 8]
    assert micro.sequences.keys.tolist() == [4, 5, 0, 1, 2, 3, 4, 5, 6, 7]
    assert micro.sequences.key_starts.tolist() == [0, 3, 6, 10]
    assert (micro.sequences.longest, micro.sequences.longest_keys) == (4, 4)
    assert micro.predicting.tolist() == [0, 1, 2, 3, 5, 5, 6, 6, 7]
    assert micro.targets.tolist() == [4, 5, 6, 7, 4, 8, 9, 10, 11]
    assert micro.predictions.tolist() == [5, 6, 8, 5, 7, 1, 2, 3, 4, 0, 5, 7]
    values = micro.per_token(np.arange(5))  # each answer has its own
    assert values.tolist() == [3, 3, 3, 2, 2, 1, 1, 1, 0, 0, 4, 4]
    of_tokens = np.split(np.arange(12), [2, 5, 7, 10])
    assert micro.per_token(of_tokens).tolist() == [7, 8, 9, 5, 6, 2, 3, 4, 0, 1, 10, 11]
    filler = collate(prompts, answers, np.array([], dtype=int), "cpu")
    assert len(filler.targets) == len(filler.predicting) == len(filler.predictions) == 1
    assert filler.per_token([]).tolist() == [0]  # its only token has no weight
    assert filler.input_ids.dtype == torch.int64


RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(20, 110, length).tolist() for length in (5, 9, 5, 1)]
OWNERS = [0, 0, 1, 2, 0, 3, 2, 3, 1, 0]
"""The prompt of each answer."""
LENGTHS = (40, 22, 22, 22, 7, 1, 1, 600, 22, 22)
ANSWERS = [RNG.integers(20, 110, length).tolist() for length in LENGTHS]
# Beginnings that answers to one prompt share: of one that goes on, to the end, twice, and in turn
for answer, beginning, common in ((1, 0, 22), (4, 0, 7), (9, 4, 7), (3, 6, 1), (8, 2, 21)):
    ANSWERS[answer][:common] = ANSWERS[beginning][:common]
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
    micro = collate(prompts, ANSWERS, np.array(part), "cpu")
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
    "gemma2": ("gemma2", WINDOWED | CAPPED),
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
