"""No call of the learner leaves weights gathered or in flight, however large the model is."""

from itertools import pairwise

import pytest

from conftest import make_model, report_of
from programs.limits_check import CALLS, CASES, LAYER, SIZES, all_pairs

pytestmark = pytest.mark.program
HIDDEN = 64
"""With it, a layer of these models has LAYER elements, but for its biases and norms."""


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> list:
    folders = []
    for name, size in SIZES.items():
        folders.append(tmp_path_factory.mktemp(name))
        make_model(
            folders[-1],
            vocab_size=int(size.embedding / size.layer * LAYER / HIDDEN),
            hidden_size=HIDDEN,
            intermediate_size=192,
            num_hidden_layers=size.layers,
            num_attention_heads=4,
            tie_word_embeddings=size.tied,
        )
    return folders


def test_the_walk_has_each_call_after_each():
    walk = all_pairs()
    assert {*pairwise(walk)} == {(a, b) for a in CALLS for b in CALLS}


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_in_any_order_release_all_weights(models, ranks, tmp_path):
    for report in report_of(ranks, "limits_check", *models, tmp_path):
        assert len(report) == len(CASES[ranks])
        assert {case: result["fault"] for case, result in report.items() if "fault" in result} == {}
        # What ZeRO-3 releases and gathers ahead does not change results.
        within = {case: result["within"] for case, result in report.items() if "within" in result}
        assert within
        assert within == {case: {"weights": report[case]["weights"]} for case in within}
