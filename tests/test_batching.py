import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bnpo.algorithm.batching import collate, plan


@given(
    lengths=st.lists(st.integers(1, 3000), max_size=60),
    ranks=st.integers(1, 8),
    budget=st.integers(1, 10_000),
)
def test_every_answer_is_trained_on_once_and_no_rank_waits_for_another(lengths, ranks, budget):
    lengths = np.array(lengths, dtype=np.int64)
    plans = plan(lengths, ranks, budget)
    assert sorted(i for micro_batches in plans for part in micro_batches for i in part) == list(range(len(lengths)))
    assert len({len(micro_batches) for micro_batches in plans}) == 1
    assert len(plans[0]) >= 1
    for micro_batches in plans:
        for part in micro_batches:
            assert len(part) <= 1 or lengths[part].sum() <= budget


def test_ranks_get_nearly_the_same_tokens():
    lengths = np.random.default_rng(0).lognormal(6, 0.7, 512).clip(100, 3072).astype(int)
    loads = [sum(lengths[part].sum() for part in micro) for micro in plan(lengths, 8, 16384)]
    assert max(loads) / min(loads) < 1.01


def test_sequences_lie_end_to_end_and_values_of_answer_tokens_flat():
    micro = collate([[1, 2], [3], [9]], [[4], [5, 6, 7], [8]], np.array([1, 0]), "cpu")
    assert micro.input_ids.tolist() == [3, 5, 6, 7, 1, 2, 4]
    assert micro.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert micro.input_ids[micro.answer_mask].tolist() == [5, 6, 7, 4]
    assert (micro.starts.tolist(), micro.longest) == ([0, 4, 7], 4)
    assert micro.flat(np.array([10.0, 20, 30])).tolist() == [20, 20, 20, 10]
    assert micro.flat([np.array([1.0]), np.array([2.0, 3, 4]), None]).tolist() == [2, 3, 4, 1]


def test_a_filler_has_one_token_of_zero_weight():
    micro = collate([[1]], [[2]], np.array([], dtype=int), "cpu")
    assert int(micro.answer_mask.sum()) == 1
    assert micro.flat([]).tolist() == [0]
    assert micro.input_ids.dtype == torch.int64
