import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bnpo.algorithm.batching import Lengths, collate, plan_micro_batches
from bnpo.algorithm.loss import AGGREGATIONS, clipped_surrogate, importance_weights, token_logprobs, token_weights
from bnpo.config import check_config, parse_train_config

VOCABULARY, HIDDEN, NORM_LENGTH = 50, 16, 12


@pytest.fixture
def case():
    """A float64 bigram 'model' (embedding, head), and 20 answers of uneven length with all inputs of the loss."""
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, generator=generator, requires_grad=True)
    head = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64, generator=generator, requires_grad=True)
    prompts = [rng.integers(0, VOCABULARY, rng.integers(1, 6)).tolist() for _ in range(5)] * 4
    answers = [rng.integers(0, VOCABULARY, rng.integers(1, 13)).tolist() for _ in range(20)]
    old = [rng.normal(-3.9, 0.5, len(answer)) for answer in answers]
    return embedding, head, prompts, answers, old, rng.normal(size=20)


def test_the_flag_takes_the_aggregations_that_there_are():
    for name in AGGREGATIONS:
        check_config(parse_train_config(["--aggregation", name], has_cuda=True)[0], ranks=1)
    with pytest.raises(SystemExit):  # tyro names the flag and its values
        parse_train_config(["--aggregation", "sum"], has_cuda=True)


def gradients(loss, *parameters):
    return torch.autograd.grad(loss, parameters)


def by_micro_batches(case, aggregation, ranks, budget, clip=(0.2, 0.28)):
    """The loss as the learner computes it, one rank after the other."""
    embedding, head, prompts, answers, old, advantages = case
    lengths = np.array([len(answer) for answer in answers])
    weights = token_weights(lengths, aggregation, NORM_LENGTH)
    total = torch.zeros((), dtype=torch.float64)
    for micro_batches in plan_micro_batches(Lengths.of(prompts, answers), ranks, budget):
        for part in micro_batches:
            micro = collate(prompts, answers, part, "cpu")
            logits = embedding[micro.input_ids][micro.predicting] @ head.T
            logprobs = torch.log_softmax(logits, -1).gather(1, micro.targets[:, None])[:, 0]
            flat = [micro.flat(values, torch.float64) for values in (old, advantages, weights)]
            total = total + clipped_surrogate(logprobs, *flat, *clip).loss
    return total


def directly(case, aggregation):
    """The same loss, answer by answer and token by token from its definition."""
    embedding, head, prompts, answers, old, advantages = case
    sums, lengths = [], [len(answer) for answer in answers]
    for prompt, answer, old_logprobs, advantage in zip(prompts, answers, old, advantages, strict=True):
        tokens, terms = prompt + answer, []
        for t in range(len(prompt), len(tokens)):
            logprob = torch.log_softmax(head @ embedding[tokens[t - 1]], -1)[tokens[t]]
            ratio = torch.exp(logprob - old_logprobs[t - len(prompt)])
            terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage))
        sums.append(torch.stack(terms).sum())
    sums, lengths = torch.stack(sums), torch.tensor(lengths)
    return {
        "seq-mean-token-sum": sums.mean(),
        "token-mean": sums.sum() / lengths.sum(),
        "seq-mean-token-mean": (sums / lengths).mean(),
        "seq-mean-token-sum-norm": (sums / NORM_LENGTH).mean(),
    }[aggregation]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(("ranks", "budget"), [(1, 10**6), (1, 1), (1, 40), (2, 40), (3, 25), (7, 64), (30, 64)])
def test_value_and_gradient_do_not_depend_on_the_split(case, aggregation, ranks, budget):
    expected, loss = directly(case, aggregation), by_micro_batches(case, aggregation, ranks, budget)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    for got, want in zip(gradients(loss, *case[:2]), gradients(expected, *case[:2]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-12)


def test_unknown_aggregation_lists_the_known():
    with pytest.raises(ValueError, match="seq-mean-token-sum-norm"):
        token_weights(np.array([1]), "sum", 1)


STEPS = {"none": None, "scaled": lambda logits: logits / 8, "capped": lambda logits: 3 * torch.tanh(logits / 3)}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("top_k", [None, 5])
@pytest.mark.parametrize("chunk", [1, 7 * 40, 10**6])
def test_chunked_logprobs_and_entropies_are_those_of_log_softmax(chunk, top_k, temperature, with_bias, steps):
    torch.manual_seed(0)
    hidden = torch.randn(23, HIDDEN, requires_grad=True)
    head = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    bias = torch.randn(VOCABULARY, requires_grad=True) if with_bias else None
    targets = torch.randint(0, 40, (23,))  # ids 40 to 49 are padding rows
    logits = hidden @ head.t() + (bias if with_bias else 0)
    logits = (steps(logits) if steps else logits)[:, :40] / temperature
    if top_k:  # the five most likely tokens and the target
        rank = logits.argsort(dim=1, descending=True).argsort(dim=1)  # [23, 40]
        logits = logits.where((rank < top_k) | F.one_hot(targets, 40).bool(), -1e9)
    everything = torch.log_softmax(logits, -1)
    expected = everything.gather(1, targets[:, None])[:, 0]
    settings = {"top_k": top_k, "bias": bias, "steps": steps, "with_entropy": True, "chunk": chunk}
    got, entropy = token_logprobs(hidden, head, targets, 40, temperature, **settings)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(entropy, -(everything.exp() * everything).sum(dim=1))
    assert not entropy.requires_grad
    upstream = torch.randn(23)
    inputs = (hidden, head, bias) if with_bias else (hidden, head)
    theirs = gradients((upstream * expected).sum(), *inputs)
    for a, b in zip(gradients((upstream * got).sum(), *inputs), theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert (theirs[1][40:] == 0).all()


def test_logprobs_of_a_bfloat16_model_are_not_rounded_to_bfloat16():
    torch.manual_seed(0)
    hidden = torch.randn(500, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(VOCABULARY, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (500,))
    exact = torch.log_softmax(hidden.float() @ head.float().t(), -1).gather(1, targets[:, None])[:, 0]
    got, _ = token_logprobs(hidden, head, targets, VOCABULARY, 1.0, chunk=VOCABULARY)
    torch.testing.assert_close(got, exact)
    # The head's gradient is summed over 500 chunks: in bfloat16 it would stop growing.
    ours = gradients(got.sum(), head)[0]
    theirs = gradients(
        torch.log_softmax(hidden.detach().float() @ head.float().t(), -1).gather(1, targets[:, None]).sum(), head
    )[0]
    assert (ours - theirs).norm() < 0.01 * theirs.norm()


def test_clipping_takes_the_gradient_away_on_the_outer_side_only():
    logprobs = torch.log(torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5])).requires_grad_()
    advantages = torch.tensor([1.0, -1, 1, 1, -1])
    surrogate = clipped_surrogate(logprobs, torch.zeros(5), advantages, torch.ones(5), 0.2, 0.28)
    gradient = torch.autograd.grad(surrogate.loss, logprobs)[0]
    torch.testing.assert_close(gradient, torch.tensor([-0.5, 0, -1, 0, 1.5]))
    assert (surrogate.clipped_low, surrogate.clipped_high) == (1, 1)


def test_importance_weights_are_truncated_and_carry_no_gradient():
    old = torch.log(torch.tensor([0.1, 0.2, 0.9])).requires_grad_()
    weights = importance_weights(old, torch.log(torch.tensor([0.2, 0.2, 0.3])), cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([0.5, 1, 2]))
    assert not weights.requires_grad
