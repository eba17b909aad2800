"""No call of the learner leaves weights gathered or in flight, however large the model is."""

from itertools import pairwise

import pytest
from limits_check import CALLS, all_pairs

from conftest import make_model, report_of

HIDDEN, LAYER = 64, 49_000  # of the small models: elements of a layer but for its biases and norms
# Of the paper's models: elements of a layer and of the embedding, layers, whether the head is tied.
# The 7B and the 32B have more layers, but are far beyond the limits with these.
SIZES = {
    "0.5B": (14.9e6, 136e6, 24, True),
    "1.5B": (46.8e6, 233e6, 28, True),
    "7B": (233e6, 545e6, 10, False),
    "32B": (487e6, 778e6, 10, False),
}
CASES = [
    (1, "1.5B", "--mini-batches 2 --ppo-iterations 2"),
    (2, "7B", "--lora-rank 2"),
]
MORE_CASES = [
    *((1, size, "") for size in SIZES),
    (1, "1.5B", "--gradient-checkpointing"),
    (1, "1.5B", "--offload-optimizer --offload-weights"),
    (1, "1.5B", "--lora-rank 2"),
    (2, "0.5B", ""),
    (2, "1.5B", "--mini-batches 2 --ppo-iterations 2"),
]


def test_the_walk_has_each_call_after_each():
    assert {*pairwise(all_pairs())} == {(a, b) for a in CALLS for b in CALLS}


@pytest.mark.program
@pytest.mark.parametrize(
    ("ranks", "size", "flags"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.extra) for case in MORE_CASES)],
)
def test_calls_in_any_order_release_all_weights(ranks, size, flags, tmp_path):
    layer, embedding, layers, tied = SIZES[size]
    shape = {"intermediate_size": 192, "num_hidden_layers": layers, "num_attention_heads": 4}
    rows = int(embedding / layer * LAYER / HIDDEN)
    shape |= {"vocab_size": rows, "hidden_size": HIDDEN, "tie_word_embeddings": tied}
    make_model(tmp_path, **shape)
    arguments = tmp_path, tmp_path / "scratch", LAYER / layer, *flags.split()
    for within, beyond in report_of(ranks, "limits_check", *arguments):
        assert beyond.startswith("weights ")
        # What ZeRO-3 releases and gathers ahead does not change results.
        assert beyond == within
