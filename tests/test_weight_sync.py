import pytest

from bnpo.config import TINY_MODEL
from conftest import report_of

pytestmark = pytest.mark.sampler
SKIPPED = "weight sync after step 4 failed: the sampler's and the learner's"


def in_sync(*arguments) -> dict:
    """Return the report of sync_check on two ranks, whose real syncs were right."""
    report = report_of(2, "sync_check", *arguments)
    assert max(report["differences"]) < 1e-4
    assert report["gap_max"] < 1e-4  # sampler and learner agree on every token that was trained on, too
    assert report["errors"]["whole"] == [None, None]
    assert report["errors"]["skipped"][0].startswith(SKIPPED)
    return report


def test_tied_head():
    report = in_sync(TINY_MODEL)
    assert {"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight", "lm_head.weight"} <= set(
        report["compared"]
    )
    errors = report["errors"]
    assert errors["skipped"][1].startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    assert errors["head left out"][0].startswith(SKIPPED)
    # On CPUs the head that vLLM computes with is a packed copy, whose bits cannot be compared.
    assert errors["head left out"][1] is None
    assert "model.embed_tokens.weight of rank 1's sampler differ" in errors["one value of rank 1"][1]
    assert errors["no embedding"][1].endswith("holds no tensor model.embed_tokens.weight to compare")
    # A lost update of a small learning rate is seen by the bits alone.
    scores, bits = errors["lost"]
    assert scores is None
    assert bits.startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    assert "model.layers.1.input_layernorm.weight" in bits


def test_untied_head_and_padding_rows_that_are_never_sampled(untied_model):
    """The rows past the tokenizer's length have by far the largest logits: unmasked, nearly every token is one."""
    report = in_sync(untied_model)
    assert report["ids_ok"]
    # An untied head is a parameter of its own: nothing to leave out.
    assert report["errors"]["head left out"] == [None, None]


def test_merged_lora_is_synced_and_a_lost_update_of_it_is_seen():
    """On CPUs vLLM packs the tensors that LoRA changes, so their bits cannot be compared. On GPUs two of them can."""
    assert "model.layers.1.input_layernorm.weight" in in_sync(TINY_MODEL, "--lora-rank", "4")["compared"]


def test_the_checks_hold_for_each_shard_of_a_shared_sampler():
    report = in_sync(TINY_MODEL, "--sampler-ranks", 2)
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(report["compared"])
    scores, bits = report["errors"]["lost"]
    assert scores is None
    assert bits.startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    assert "model.embed_tokens.weight of rank 1's sampler differ" in report["errors"]["one value of rank 1"][1]
    assert report["errors"]["drawn apart"].startswith("the ranks of one sampler drew other tokens")
