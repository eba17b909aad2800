"""Ranks that share a sampler: the same results as with a sampler per rank, and checks of each rank's shard."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bnpo.config import TINY_MODEL
from bnpo.files import ROOT, InputError
from bnpo.planning.memory import check_sampler_ranks, read_shape
from bnpo.policy.speed import TIMINGS
from bnpo.policy.weight_sync import comparable
from conftest import run_ranks
from test_weight_sync import report

FLAGS = ("--preset", "tiny", "--questions-per-step", 8, "--samples-per-question", 4, "--rollouts-every", 1)
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


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
        expected, found = (lines(folder / "run" / name) for folder in (alone, shared))
        assert len(found) == 8 * 4
        assert [unnamed(row) for row in found] == [unnamed(row) for row in expected]
        tokens = [lines(folder / f"run/tokens/step-{step}.jsonl") for folder in (alone, shared)]
        for one, two in zip(*tokens, strict=True):
            assert two["ids"] == one["ids"]
            for who in ("sampler", "learner"):
                # The learner has no log-probabilities of an answer without a gradient.
                assert np.abs(np.array(two[who] or [0]) - np.array(one[who] or [0])).max() < 1e-5
    for name in ("evals/step-000000/samples.jsonl", "evals/step-000002/samples.jsonl"):
        assert lines(shared / "run" / name) == lines(alone / "run" / name)
    watched = [lines(folder / "run/watch/step-000002.jsonl") for folder in (alone, shared)]
    assert [row["answer"] for row in watched[1]] == [row["answer"] for row in watched[0]]
    metrics = lines(shared / "run" / "metrics.jsonl")
    assert metrics[2]["sync/difference"] < 1e-5
    assert metrics[1]["tokens/greedy"] == lines(alone / "run" / "metrics.jsonl")[1]["tokens/greedy"] > 0


@pytest.mark.sampler
def test_no_answer_is_graded_twice(alone, shared):
    calls = [len((folder / "reward.calls").read_text().splitlines()) for folder in (alone, shared)]
    assert calls[0] == calls[1] > 0


@pytest.mark.sampler
def test_a_resumed_run_is_the_same(shared, tmp_path):
    folder = train(tmp_path / "stopped", 2, "--sampler-ranks", 2, steps=1)
    train(folder, 2, "--sampler-ranks", 2, "--resume", steps=2)
    found, expected = (lines(run / "run" / "metrics.jsonl")[-1] for run in (folder, shared))
    assert found["step"] == 2

    def untimed(metrics: dict) -> dict:
        kept = {name: value for name, value in metrics.items() if not name.startswith(TIMINGS)}
        return {re.sub("reward/.*counted", "reward/counted", name): value for name, value in kept.items()}

    assert untimed(found) == untimed(expected)


@pytest.mark.sampler
def test_four_ranks_are_two_samplers(alone, tmp_path):
    folder = train(tmp_path / "four", 4, "--sampler-ranks", 2, "--eval-every", 0, steps=1)
    expected, found = (lines(run / "run/rollouts/step-000001.jsonl") for run in (alone, folder))
    assert [unnamed(row) for row in found] == [unnamed(row) for row in expected]


@pytest.mark.sampler
def test_the_checks_of_a_sync_hold_for_each_shard():
    found = report(TINY_MODEL, "--sampler-ranks", 2)
    assert max(found["differences"]) < 1e-4
    assert found["gap_max"] < 1e-4
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(found["compared"])
    assert found["errors"]["whole"] == [None, None]
    assert found["errors"]["skipped"][0].startswith("weight sync after step 4 failed: the sampler's and the learner's")
    scores, bits = found["errors"]["lost"]
    assert scores is None
    assert bits.startswith("weight sync after step 4 failed: model.embed_tokens.weight")
    assert "model.embed_tokens.weight of rank 1's sampler differ" in found["errors"]["one value of rank 1"][1]
    assert found["errors"]["drawn apart"].startswith("the ranks of one sampler drew other tokens")


def test_a_shard_is_compared_with_its_part_of_the_whole():
    whole = torch.arange(35).view(7, 5)
    padded = torch.cat([whole, torch.full((5, 5), -1)])  # [12, 5]
    for size in (1, 2, 3, 4):
        shards = padded.chunk(size)
        compared = [comparable(whole, shard, place)[0] for place, shard in enumerate(shards)]
        assert torch.equal(torch.cat(compared), whole)  # nothing is left out, and no padding is compared
        assert all(torch.equal(*comparable(whole, shard, place)) for place, shard in enumerate(shards))
    columns = torch.arange(24).view(4, 6)
    for place, shard in enumerate(columns.chunk(2, dim=1)):
        assert torch.equal(*comparable(columns, shard, place))
        assert not torch.equal(*comparable(columns, shard, 1 - place))
        assert not torch.equal(*comparable(columns, shard + 1, place))


@pytest.mark.parametrize(("size", "ranks_here"), [(3, 4), (5, 5), (3, 3)])
def test_what_cannot_be_shared_is_refused(size, ranks_here):
    """Three ranks do not divide four, five not the 12 heads, three not the width."""
    message = f"--sampler-ranks {size}: must divide the {ranks_here} ranks of a machine, the model's 12 heads and its"
    with pytest.raises(InputError, match=message):
        check_sampler_ranks(read_shape(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B"), size, ranks_here)


def test_key_heads_that_are_fewer_than_ranks_are_repeated():
    shape = read_shape(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B")
    for size in (1, 2, 4):
        check_sampler_ranks(shape, size, 4)
    with pytest.raises(InputError, match="and divide or be divided by its 4 key heads"):
        check_sampler_ranks(replace(shape, intermediate=9000, key_heads=4), 3, 3)


@pytest.mark.program
def test_a_run_with_the_wrong_number_of_ranks_ends_with_one_line(tmp_path):
    flags = ("--preset", "tiny", "--sampler-ranks", 2, "--output-dir", tmp_path / "run")
    ended = run_ranks(1, "train.py", *flags, check=False)
    assert "error: --sampler-ranks 2: must divide the 1 ranks of a machine" in ended.stdout
    assert not (tmp_path / "run").exists()
