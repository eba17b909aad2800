import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bnpo.algorithm.batching import Lengths, collate, plan_micro_batches


@st.composite
def batches(draw) -> Lengths:
    """Lengths of a batch. Each group of answers has one prompt; the answers of a group are not neighbours."""
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
    assert sorted(i for rank in plans for part in rank for i in part) == list(range(len(lengths.answer_tokens)))
    assert len({len(rank) for rank in plans}) == 1
    assert len(plans[0]) >= 1
    for part in (part for rank in plans for part in rank):
        assert len(part) <= 1 or tokens(lengths, part) <= budget


def real_batch(questions: int, samples: int) -> Lengths:
    rng = np.random.default_rng(0)
    prompts = rng.integers(60, 300, questions).repeat(samples)
    answers = rng.lognormal(6, 0.7, questions * samples).clip(100, 3072).astype(int)
    return Lengths(prompts, answers, np.arange(questions).repeat(samples))


def test_ranks_get_nearly_the_same_tokens():
    for questions, ratio in ((128, 1.03), (32, 1.03), (8, 1.1), (2, 1.1)):
        lengths = real_batch(questions, 16)
        loads = [
            sum(tokens(lengths, part) for part in rank if len(part)) for rank in plan_micro_batches(lengths, 8, 16384)
        ]
        assert max(loads) / np.mean(loads) < ratio
        assert (
            max(loads) < (lengths.prompt_tokens + lengths.answer_tokens).sum() / 8
        )  # the mean load without shared prompts


def test_groups_are_cut_only_where_they_do_not_fit_or_the_ranks_would_wait():
    lengths = real_batch(128, 16)
    parts = [part for rank in plan_micro_batches(lengths, 8, 16384) for part in rank]
    assert sum(len(np.unique(lengths.groups[part])) for part in parts) < 128 * 1.1
    small = Lengths(np.full(6, 100), np.full(6, 10), np.zeros(6, dtype=int))
    assert [[len(part) for part in rank] for rank in plan_micro_batches(small, 1, 1000)] == [[6]]
    assert [[len(part) for part in rank] for rank in plan_micro_batches(small, 2, 1000)] == [[3], [3]]
    assert [[len(part) for part in rank] for rank in plan_micro_batches(small, 1, 160)] == [[3, 3]]


def test_answers_follow_the_prompts_that_they_share():
    prompts, answers = [[1, 2], [3], [1, 2], [9]], [[4], [5, 6, 7], [8, 10], [11]]
    micro = collate(prompts, answers, np.array([2, 1, 0]), "cpu")
    assert micro.input_ids.tolist() == [1, 2, 8, 3, 5, 6]  # answer 0 has one token, and predicts nothing with it
    assert micro.position_ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert micro.sequences.starts.tolist() == [0, 2, 3, 6]
    assert micro.sequences.keys.tolist() == [0, 1, 0, 1, 2, 3, 4, 5]
    assert micro.sequences.key_starts.tolist() == [0, 2, 5, 8]
    assert (micro.sequences.longest, micro.sequences.longest_keys) == (3, 3)
    assert micro.targets.tolist() == [8, 10, 5, 6, 7, 4]
    assert micro.predicting.tolist() == [1, 2, 3, 4, 5, 1]
    assert micro.flat(np.array([10.0, 20, 30, 40])).tolist() == [30, 30, 20, 20, 20, 10]
    assert micro.flat([np.array([1.0]), np.array([2.0, 3, 4]), np.array([5.0, 6]), None]).tolist() == [5, 6, 2, 3, 4, 1]


def test_a_filler_has_one_token_of_zero_weight():
    micro = collate([[1]], [[2]], np.array([], dtype=int), "cpu")
    assert len(micro.targets) == len(micro.predicting) == 1
    assert micro.flat([]).tolist() == [0]
    assert micro.input_ids.dtype == torch.int64
