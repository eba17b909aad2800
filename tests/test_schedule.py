"""Rows of a table side by side: who gets how many GPUs, and what runs when one fails."""

import threading
from pathlib import Path

import pytest

from bnpo.files import InputError
from conftest import refused
from paper.planning import _cell, plan_rows
from paper.rows import Choice, Row, chosen_rows
from paper.schedule import Devices, equal_sizes, fastest_sizes, run_rows, wall_hours
from planner import Planning


def rows(**numbers: int) -> list[Row]:
    """So many rows of each model."""
    return [
        Row(Path(f"{model}-{i}"), model, "bnpo", (), ())
        for model, number in numbers.items()
        for i in range(number)
    ]


def hours(row: Row, gpus: int) -> float | None:
    """A small model waits for its longest answers; a large one needs four GPUs."""
    if row.model == "small":
        return {1: 10.0, 2: 8.0, 4: 7.0, 8: 6.5}[gpus]
    return {4: 20.0, 8: 15.0}.get(gpus)


@pytest.mark.parametrize(
    ("numbers", "gpus", "sizes", "total"),
    [
        ({"small": 5}, 8, {"small": 1}, 10),
        ({"small": 1}, 8, {"small": 8}, 6.5),
        ({"small": 9}, 8, {"small": 1}, 20),  # one row is left for a second round
        ({"large": 5}, 8, {"large": 4}, 60),
        ({"large": 1}, 8, {"large": 8}, 15),
        # The small rows together, and then both large ones.
        ({"small": 4, "large": 2}, 8, {"small": 2, "large": 4}, 28),
        ({"large": 1}, 2, None, None),
        ({"small": 2}, 1, {"small": 1}, 20),
    ],
)
def test_rows_get_the_gpus_with_which_all_are_done_first(numbers, gpus, sizes, total):
    chosen = rows(**numbers)
    assert fastest_sizes(chosen, hours, gpus) == sizes
    if sizes:
        assert wall_hours(chosen, hours, sizes, gpus) == total


def test_rows_share_the_devices_equally_if_asked():
    assert equal_sizes(rows(small=3), 2, 5) == {"small": 2}
    with refused("--rows-at-once 3: this machine has 2 GPUs or cores"):
        equal_sizes(rows(small=3), 3, 2)


def test_rows_run_side_by_side_each_on_its_own_devices_and_a_failure_stops_no_other():
    together = threading.Barrier(2, timeout=60)
    used = {}

    def run(row: Row, names: list[str]) -> None:
        used[row.name] = names
        if row.name in ("small-0", "small-1"):
            together.wait()  # passes only if both run at once
        if row.name == "small-1":
            raise InputError("small-1 failed")

    devices = Devices(("0", "1"), are_gpus=True)
    errors = run_rows(rows(small=4), {"small": 1}, devices, run, lambda: False)
    assert errors == ["small-1 failed"]
    assert used.keys() == {f"small-{i}" for i in range(4)}
    assert used["small-0"] != used["small-1"]
    assert all(len(names) == 1 for names in used.values())


def test_shards_are_disjoint_and_make_the_table():
    def names(shard: str) -> list[str]:
        return [row.name for row in chosen_rows(Choice(table="table1", shard=shard))]

    whole = names("1/1")
    parts = [name for part in (1, 2, 3) for name in names(f"{part}/3")]
    assert sorted(parts) == sorted(whole)
    assert len(whole) == 12
    # The two rows that are only evaluated are on different machines
    parts = [names(f"{part}/6") for part in range(1, 7)]
    assert [sum("base" in name for name in part) for part in parts] == [0, 0, 0, 0, 1, 1]
    for shard in ("0/3", "4/3", "2", "a/b", "-1/2"):
        with refused(f"--shard {shard}: is not a part such as 2/4"):
            names(shard)


def test_a_dry_run_counts_the_gpus_of_its_table_not_those_of_this_machine():
    assert _cell(rows(small=2), hours, gpus=1, rows_at_once=2) == "too few GPUs"
    assert _cell(rows(small=2), hours, gpus=4, rows_at_once=2) == "8.0 (2 each)"


def test_a_dry_run_plans_the_gpus_that_a_row_gets(capsys):
    chosen = chosen_rows(Choice(table="table1", preset="tiny"))
    plan_rows(chosen, Planning(gpu="H100", gpus=8), rows_at_once=None)
    printed = capsys.readouterr().out
    assert "memory per rank on 1 x H100" in printed
    assert "--sampler-ranks:" not in printed  # a row has one GPU, so there is nothing to compare
    assert "(1 each) |" in printed
    plan_rows(chosen, Planning(gpu="H100", gpus=8), rows_at_once=2)
    assert "memory per rank on 4 x H100" in capsys.readouterr().out
