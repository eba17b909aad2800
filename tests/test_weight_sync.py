"""The weight sync and its checks, with a sampler per rank and with samplers that ranks share."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bnpo.config import TINY_MODEL
from bnpo.policy.weight_sync import comparable
from conftest import json_lines, report_of, run_ranks

FAILED = "weight sync after step 4 failed: "
SKIPPED = FAILED + "the sampler's and the learner's"
EMBEDDING, LAYER = "model.embed_tokens.weight", "model.layers.1.input_layernorm.weight"


def in_sync(*arguments) -> dict:
    """Return the report of sync_check on two ranks, whose real syncs were right."""
    report = report_of(2, "sync_check", *arguments)
    assert max(report["differences"]) < 1e-4
    # Sampler and learner agree on every token that was trained on, too
    assert report["gap_max"] < 1e-4
    # Rank 0, whose own difference is small, stops, too
    assert report["rank 1 is off"].startswith("weight sync after step 3 failed: the sampler's and")
    assert report["errors"]["whole"] == [None, None]
    assert report["errors"]["skipped"][0].startswith(SKIPPED)
    return report


def assert_lost_updates_are_seen(report: dict) -> None:
    errors = report["errors"]
    assert f"{EMBEDDING} of rank 1's sampler differ" in errors["one value of rank 1"][1]
    scores, bits = errors["lost"]  # of a small learning rate: seen by the bits alone
    assert scores is None
    assert bits.startswith(FAILED + EMBEDDING)


@pytest.mark.sampler
def test_lost_updates_and_a_lost_head_are_seen():
    report = in_sync(TINY_MODEL)
    assert {EMBEDDING, LAYER, "lm_head.weight"} <= set(report["compared"])
    assert_lost_updates_are_seen(report)
    errors = report["errors"]
    assert LAYER in errors["lost"][1]
    assert errors["skipped"][1].startswith(FAILED + EMBEDDING)
    assert errors["head left out"][0].startswith(SKIPPED)
    # On CPUs the head that vLLM computes with is a packed copy, whose bits cannot be compared.
    assert errors["head left out"][1] is None
    assert f"{EMBEDDING} (missing) of rank 0's sampler" in errors["no embedding"][1]


@pytest.mark.sampler
def test_an_untied_head_and_padding_rows_that_are_never_sampled(untied_model):
    """The rows past the tokenizer's length have by far the largest logits: unmasked, nearly
    every token is one.
    """
    report = in_sync(untied_model)
    assert report["ids_ok"]
    # An untied head is a parameter of its own: nothing to leave out.
    assert report["errors"]["head left out"] == [None, None]


@pytest.mark.sampler
def test_the_checks_hold_for_each_shard_of_a_shared_sampler():
    report = in_sync(TINY_MODEL, "--sampler-ranks", 2)
    assert {EMBEDDING, "lm_head.weight"} <= set(report["compared"])
    assert_lost_updates_are_seen(report)
    drawn_apart = report["errors"]["drawn apart"]
    assert drawn_apart.startswith("ranks that share a sampler drew different tokens")


@pytest.mark.sampler
@pytest.mark.extra
def test_merged_lora_is_synced_and_a_forgotten_sync_of_it_is_seen():
    """On CPUs vLLM packs the tensors that LoRA changes, so their bits cannot be compared. On
    GPUs two of them can.
    """
    assert LAYER in in_sync(TINY_MODEL, "--lora-rank", "4")["compared"]


FLAGS = "--preset tiny --questions-per-step 8 --samples-per-question 4 --rollouts-every 1"
FLAGS += " --watch-questions 2 --algo remax"
REWARD = """
from pathlib import Path

def counted(text: str, reference: str) -> float:
    with open(Path(__file__).with_suffix(".calls"), "a") as calls:
        print("call", file=calls)
    return len(text) % 2
"""


def train(folder: Path, ranks: int, *flags) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "reward.py").write_text(REWARD)
    flags += ("--rewards", f"accuracy,{folder / 'reward.py'}:counted")
    run_ranks(ranks, "train.py", *FLAGS.split(), *flags, "--output-dir", folder / "run")
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("one") / "alone", 1, "--eval-every", 2, "--steps", 2)


def rollouts(folder: Path, step: int) -> list[dict]:
    """Lines of rollouts without the folder in the names of the rewards."""
    rows = json_lines(folder / f"run/rollouts/step-{step:06}.jsonl")
    return [row | {"rewards": list(row["rewards"].values())} for row in rows]


@pytest.mark.sampler
def test_two_ranks_as_one_sampler_draw_what_one_rank_draws(alone, tmp_path):
    flags = ("--sampler-ranks", 2, "--eval-every", 2, "--steps", 2)
    runs = alone, train(tmp_path / "shared", 2, *flags)
    for step in (1, 2):
        expected, found = (rollouts(run, step) for run in runs)
        assert len(found) == 8 * 4
        assert found == expected
        tokens = [json_lines(run / f"run/tokens/step-{step:06}.jsonl") for run in runs]
        for one, two in zip(*tokens, strict=True):
            assert two["ids"] == one["ids"]
            for who in ("sampler", "learner"):
                # The learner has no log-probabilities of an answer without a gradient.
                assert np.abs(np.array(two[who] or [0]) - np.array(one[who] or [0])).max() < 1e-5
    for step in (0, 2):
        expected, found = (
            json_lines(run / f"run/evals/step-{step:06}/samples.jsonl") for run in runs
        )
        assert found == expected
    watched = [json_lines(run / "run/watch/step-000002.jsonl") for run in runs]
    assert [row["answer"] for row in watched[1]] == [row["answer"] for row in watched[0]]
    metrics = [json_lines(run / "run/metrics.jsonl") for run in runs]
    assert metrics[1][2]["sync/difference"] < 1e-5
    assert metrics[1][1]["tokens/greedy"] == metrics[0][1]["tokens/greedy"] > 0
    # No answer is graded twice
    calls = [len((run / "reward.calls").read_text().splitlines()) for run in runs]
    assert calls[0] == calls[1] > 0


@pytest.mark.sampler
@pytest.mark.extra
def test_four_ranks_are_two_samplers(alone, tmp_path):
    flags = ("--sampler-ranks", 2, "--eval-every", 0, "--steps", 1)
    assert rollouts(train(tmp_path / "four", 4, *flags), 1) == rollouts(alone, 1)


def test_a_shard_is_compared_with_its_part_of_the_whole():
    whole = torch.arange(35).view(7, 5)
    padded = torch.cat([whole, torch.full((5, 5), -1)])  # [12, 5]
    for size in (1, 2, 3, 4):
        pairs = [comparable(whole, shard, place) for place, shard in enumerate(padded.chunk(size))]
        # Nothing is left out, and no padding is compared
        assert torch.equal(torch.cat([part for part, _ in pairs]), whole)
        assert all(torch.equal(*pair) for pair in pairs)
    columns = torch.arange(24).view(4, 6)
    for place, shard in enumerate(columns.chunk(2, dim=1)):
        assert torch.equal(*comparable(columns, shard, place))
        assert not torch.equal(*comparable(columns, shard, 1 - place))
        assert not torch.equal(*comparable(columns, shard + 1, place))
