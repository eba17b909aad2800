"""The weight sync and its checks, with a sampler per rank and with samplers that ranks share."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bnpo.config import TINY_MODEL
from bnpo.files import ROOT, InputError
from bnpo.policy.memory import ModelShape, check_sampler_ranks
from bnpo.policy.weight_sync import comparable
from conftest import json_lines, report_of, run_ranks

SKIPPED = "weight sync after step 4 failed: the sampler's and the learner's"


def in_sync(*arguments) -> dict:
    """Return the report of sync_check on two ranks, whose real syncs were right."""
    report = report_of(2, "sync_check", *arguments)
    assert max(report["differences"]) < 1e-4
    # Sampler and learner agree on every token that was trained on, too
    assert report["gap_max"] < 1e-4
    assert report["errors"]["whole"] == [None, None]
    assert report["errors"]["skipped"][0].startswith(SKIPPED)
    return report


@pytest.mark.sampler
def test_tied_head():
    report = in_sync(TINY_MODEL)
    assert {
        "model.embed_tokens.weight",
        "model.layers.1.input_layernorm.weight",
        "lm_head.weight",
    } <= set(report["compared"])
    errors = report["errors"]
    assert errors["skipped"][1].startswith(
        "weight sync after step 4 failed: model.embed_tokens.weight"
    )
    assert errors["head left out"][0].startswith(SKIPPED)
    # On CPUs the head that vLLM computes with is a packed copy, whose bits cannot be compared.
    assert errors["head left out"][1] is None
    assert (
        "model.embed_tokens.weight of rank 1's sampler differ" in errors["one value of rank 1"][1]
    )
    assert "model.embed_tokens.weight (missing) of rank 0's sampler" in errors["no embedding"][1]
    # A lost update of a small learning rate is seen by the bits alone.
    scores, bits = errors["lost"]
    assert scores is None
    assert bits.startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    assert "model.layers.1.input_layernorm.weight" in bits


@pytest.mark.sampler
def test_untied_head_and_padding_rows_that_are_never_sampled(untied_model):
    """The rows past the tokenizer's length have by far the largest logits: unmasked, nearly
    every token is one.
    """
    report = in_sync(untied_model)
    assert report["ids_ok"]
    # An untied head is a parameter of its own: nothing to leave out.
    assert report["errors"]["head left out"] == [None, None]


@pytest.mark.sampler
def test_merged_lora_is_synced_and_a_lost_update_of_it_is_seen():
    """On CPUs vLLM packs the tensors that LoRA changes, so their bits cannot be compared. On
    GPUs two of them can.
    """
    assert (
        "model.layers.1.input_layernorm.weight"
        in in_sync(TINY_MODEL, "--lora-rank", "4")["compared"]
    )


@pytest.mark.sampler
def test_the_checks_hold_for_each_shard_of_a_shared_sampler():
    report = in_sync(TINY_MODEL, "--sampler-ranks", 2)
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(report["compared"])
    scores, bits = report["errors"]["lost"]
    assert scores is None
    assert bits.startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    assert (
        "model.embed_tokens.weight of rank 1's sampler differ"
        in report["errors"]["one value of rank 1"][1]
    )
    assert report["errors"]["drawn apart"].startswith("the ranks of one sampler drew other tokens")


FLAGS = (
    "--preset",
    "tiny",
    "--questions-per-step",
    8,
    "--samples-per-question",
    4,
    "--rollouts-every",
    1,
)
FLAGS += ("--watch-questions", 2, "--eval-every", 2, "--algo", "remax")
REWARD = """
from pathlib import Path

def counted(text: str, reference: str) -> float:
    with open(Path(__file__).with_suffix(".calls"), "a") as calls:
        print("call", file=calls)
    return len(text) % 2
"""


def train(folder: Path, ranks: int, *flags, steps: int = 2) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "reward.py").write_text(REWARD)
    flags += ("--rewards", f"accuracy,{folder / 'reward.py'}:counted", "--steps", steps)
    run_ranks(ranks, "train.py", *FLAGS, *flags, "--output-dir", folder / "run")
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("one") / "alone", 1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("two") / "shared", 2, "--sampler-ranks", 2)


def unnamed(row: dict) -> dict:
    """A line of rollouts without the folder in the names of its rewards."""
    return row | {"rewards": list(row["rewards"].values())}


@pytest.mark.sampler
def test_two_ranks_as_one_sampler_draw_what_one_rank_draws(alone, shared):
    for step in ("000001", "000002"):
        name = f"rollouts/step-{step}.jsonl"
        expected, found = (json_lines(folder / "run" / name) for folder in (alone, shared))
        assert len(found) == 8 * 4
        assert [unnamed(row) for row in found] == [unnamed(row) for row in expected]
        tokens = [
            json_lines(folder / f"run/tokens/step-{step}.jsonl") for folder in (alone, shared)
        ]
        for one, two in zip(*tokens, strict=True):
            assert two["ids"] == one["ids"]
            for who in ("sampler", "learner"):
                # The learner has no log-probabilities of an answer without a gradient.
                assert np.abs(np.array(two[who] or [0]) - np.array(one[who] or [0])).max() < 1e-5
    for name in ("evals/step-000000/samples.jsonl", "evals/step-000002/samples.jsonl"):
        assert json_lines(shared / "run" / name) == json_lines(alone / "run" / name)
    watched = [json_lines(folder / "run/watch/step-000002.jsonl") for folder in (alone, shared)]
    assert [row["answer"] for row in watched[1]] == [row["answer"] for row in watched[0]]
    metrics = json_lines(shared / "run" / "metrics.jsonl")
    assert metrics[2]["sync/difference"] < 1e-5
    assert (
        metrics[1]["tokens/greedy"]
        == json_lines(alone / "run" / "metrics.jsonl")[1]["tokens/greedy"]
        > 0
    )


@pytest.mark.sampler
def test_no_answer_is_graded_twice(alone, shared):
    calls = [len((folder / "reward.calls").read_text().splitlines()) for folder in (alone, shared)]
    assert calls[0] == calls[1] > 0


@pytest.mark.sampler
def test_four_ranks_are_two_samplers(alone, tmp_path):
    folder = train(tmp_path / "four", 4, "--sampler-ranks", 2, "--eval-every", 0, steps=1)
    expected, found = (
        json_lines(run / "run/rollouts/step-000001.jsonl") for run in (alone, folder)
    )
    assert [unnamed(row) for row in found] == [unnamed(row) for row in expected]


def test_a_shard_is_compared_with_its_part_of_the_whole():
    whole = torch.arange(35).view(7, 5)
    padded = torch.cat([whole, torch.full((5, 5), -1)])  # [12, 5]
    for size in (1, 2, 3, 4):
        shards = padded.chunk(size)
        compared = [comparable(whole, shard, place)[0] for place, shard in enumerate(shards)]
        # Nothing is left out, and no padding is compared
        assert torch.equal(torch.cat(compared), whole)
        assert all(
            torch.equal(*comparable(whole, shard, place)) for place, shard in enumerate(shards)
        )
    columns = torch.arange(24).view(4, 6)
    for place, shard in enumerate(columns.chunk(2, dim=1)):
        assert torch.equal(*comparable(columns, shard, place))
        assert not torch.equal(*comparable(columns, shard, 1 - place))
        assert not torch.equal(*comparable(columns, shard + 1, place))


@pytest.mark.parametrize(("size", "ranks_here"), [(3, 4), (5, 5), (3, 3)])
def test_what_cannot_be_shared_is_refused(size, ranks_here):
    """Three ranks do not divide four, five not the 12 heads, three not the width."""
    shape = ModelShape(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B")
    for fitting in (1, 2, 4):  # of two key heads, ranks hold the same
        check_sampler_ranks(shape, fitting, 4)
    message = (
        f"--sampler-ranks {size}: must divide the {ranks_here} ranks of a machine, 12 heads and a "
        "width of 8960"
    )
    with pytest.raises(InputError, match=message):
        check_sampler_ranks(shape, size, ranks_here)
