import json

import pytest

from bnpo.config import TINY_MODEL
from conftest import run_ranks


def report(*arguments) -> dict:
    output = run_ranks(2, "tests/programs/sync_check.py", *arguments).stdout
    return json.loads(next(line for line in output.splitlines() if line.startswith("REPORT "))[len("REPORT ") :])


@pytest.fixture(scope="module")
def tied() -> dict:
    return report(TINY_MODEL)


@pytest.mark.sampler
def test_tied_head(tied):
    assert max(tied["differences"]) < 1e-4
    assert tied["gap_max"] < 1e-4  # sampler and learner agree on every token that was trained on, too
    assert tied["errors"]["whole"] == [None, None]
    assert "model.embed_tokens.weight of rank 1's sampler differ" in tied["errors"]["one value of rank 1"][1]
    for case in ("skipped", "head left out"):
        assert tied["errors"][case][0].startswith("weight sync after step 4 failed: the sampler's and the learner's")
    assert tied["errors"]["skipped"][1].startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    # On CPUs the head that vLLM computes with is a packed copy, whose bits cannot be compared.
    assert tied["errors"]["head left out"][1] is None


@pytest.mark.sampler
def test_a_lost_update_of_a_small_learning_rate_is_seen_by_the_bits_alone(tied):
    scores, bits = tied["errors"]["lost"]
    assert scores is None
    assert bits.startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    assert "model.layers.1.input_layernorm.weight" in bits


@pytest.mark.sampler
def test_what_is_compared(tied):
    assert {"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight", "lm_head.weight"} <= set(
        tied["compared"]
    )
    assert tied["errors"]["no embedding"][1].endswith("holds no tensor model.embed_tokens.weight to compare")


@pytest.mark.sampler
def test_untied_head_and_padding_rows_that_are_never_sampled(untied_model):
    """The rows past the tokenizer's length have by far the largest logits: unmasked, nearly every token is one."""
    found = report(untied_model)
    assert max(found["differences"]) < 1e-4
    assert found["gap_max"] < 1e-4
    assert found["ids_ok"]
    assert found["errors"]["skipped"][0].startswith("weight sync after step 4 failed")
    # An untied head is a parameter of its own: nothing to leave out.
    assert found["errors"]["head left out"] == found["errors"]["whole"] == [None, None]


@pytest.mark.sampler
def test_merged_lora_is_synced_and_a_lost_update_of_it_is_seen():
    found = report(TINY_MODEL, "--lora-rank", "4")
    assert max(found["differences"]) < 1e-4
    assert found["gap_max"] < 1e-4
    assert found["errors"]["whole"] == [None, None]
    # On CPUs vLLM packs the tensors that LoRA changes, so their bits cannot be compared. On GPUs two of them can.
    assert found["errors"]["skipped"][0].startswith("weight sync after step 4 failed: the sampler's and the learner's")
    assert "model.layers.1.input_layernorm.weight" in found["compared"]
