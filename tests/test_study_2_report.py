"""The report of the second study: verdicts on made-up rows, and that the page is what the rows say."""

from statistics import fmean, stdev

import numpy as np
import pytest
from matplotlib.image import imread

from study.comparisons import Compared
from study.design import EVALUATED
from study.registry import ROWS_2
from study.results import PAGES
from study.results_2 import fall, write_results_2
from study.rows import RESULTS, read_rows
from study.statistics import Paired, paired
from study.verdict_2 import CLIFF_FAMILY, FAMILIES, check, judge, verdict_table

SECOND = read_rows(ROWS_2)
WORKING = {"reinforce clipped at half the rate": 0.1, "maxrl": -0.05}
"""Leads with which the positive controls show what they should."""


def made_up(leads: dict[str, float], noise: float = 0.002) -> list[dict]:
    """The recorded runs with other results. pass@1 is 0.5 plus the lead of the method plus scatter between seeds."""
    rng = np.random.default_rng(3)
    rows = []
    for recorded in SECOND:
        score = 0.5 + leads.get(recorded["method"], 0) + noise * rng.normal()
        row = {name: recorded[name] for name in ("name", "part", "regime", "method", "lr", "seed")}
        row |= {"commit": "0", "ended": "done", "curves": {"grad_norm": [3.0, 4.0, 5.0]}}
        evals = {str(step): score for step in EVALUATED[row["regime"]]}
        rows.append(row | {"evals": recorded["evals"] if row["part"] == "prior-tuning" else evals})
    return rows


def verdicts(rows: list[dict]) -> dict[str, str]:
    return {line: cells[0] for lines in verdict_table(rows).blocks.values() for line, cells in lines.items()}


def test_no_difference_is_equal_if_the_positive_controls_show_theirs():
    found = verdicts(made_up(WORKING))
    assert found["BNPO less GRPO"] == found["eb less RLOO"] == "equal"
    assert found["BNPO is more stable"] == found["a Beta is better as a prior than as a normaliser"] == "against"
    assert {found[f"{family.part}: the null holds"] for family in FAMILIES} == {"yes"}
    found = verdicts(made_up({}))
    assert found["cliff: the positive control is above 0"] == "no"
    assert found["BNPO less GRPO"] == found["BNPO is more stable"] == "undecided"


@pytest.mark.parametrize(
    ("leads", "line", "claim"),
    [
        ({"bnpo clipped": 0.03}, "better", "for"),
        ({"bnpo clipped": -0.03}, "worse", "against"),
        ({"bnpo clipped": -0.03, "bnpo unclipped": 0.03}, "mixed", "undecided"),
        ({"grpo clipped": 0.03, "reinforce clipped": -0.03}, "worse", "against"),
    ],
)
def test_a_difference_of_the_cliff_is_found(leads, line, claim):
    found = verdicts(made_up(WORKING | leads))
    assert (found["BNPO less GRPO"], found["BNPO is more stable"]) == (line, claim)


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([(-0.049, 0.049), (-0.01, 0.03)], "equal"),
        ([(-0.06, 0.049), (-0.01, 0.03)], "not better"),
        ([(-0.06, 0.051), (-0.01, 0.03)], "undecided"),
    ],
)
def test_intervals_beside_the_bound(intervals, verdict):
    differences = [Paired(fmean(interval), *interval, p=0.3, wins=0.5, seeds=40, sd=0.1) for interval in intervals]
    assert judge([Compared(difference, 0.6) for difference in differences], bound=0.05) == verdict


def test_a_prior_that_helps_in_one_regime_is_better():
    found = verdicts(made_up(WORKING | {"eb": 0.02, "curverl": -0.02}))
    assert (found["eb less RLOO"], found["eb less BNPO"], found["CurveRL less RLOO"]) == ("better", "better", "worse")
    assert found["a Beta is better as a prior than as a normaliser"] == "for"
    assert found["a Beta is worth having as a prior"] == "for"


@pytest.mark.parametrize(
    ("leads", "claim"),
    [({"eb": 0.02, "bnpo": 0.02}, "undecided"), ({"bnpo": -0.02}, "against"), ({"eb": -0.02}, "against")],
)
def test_a_prior_is_worth_having_if_it_is_better_than_rloo_and_bnpo(leads, claim):
    assert verdicts(made_up(WORKING | leads))["a Beta is worth having as a prior"] == claim


def test_a_null_that_differs_makes_the_verdicts_of_its_part_invalid():
    found = verdicts(made_up(WORKING | {"rloo unclipped": 0.02, "bnpo clipped": 0.03}))
    assert found["cliff: the null holds"] == "no"
    assert found["BNPO less GRPO"] == found["BNPO is more stable"] == "invalid"
    assert found["eb less RLOO"] == "equal"


def test_numbers_of_the_page_computed_again_with_a_run_that_fails(tmp_path):
    """Means, intervals and differences of the page from the rows, without the study's own statistics."""
    rows = made_up(WORKING | {"bnpo clipped": 0.03}, noise=0.05)
    row = next(row for row in rows if row["name"] == "cliff/cliff-bnpo-clipped-lr0.0004-seed24")
    row |= {"ended": "SyncError", "evals": {"0": 0.06, "6": 0.5}}
    assert fall(row) == 0.5  # it counts as zero
    write_results_2(rows, tmp_path, tmp_path / "tables.md")
    page = (tmp_path / "results-2.md").read_text(encoding="utf-8")
    assert "Failed: cliff/cliff-bnpo-clipped-lr0.0004-seed24 (SyncError)." in page
    assert "| cliff | 240 | 240 | 1 |" in (tmp_path / "tables.md").read_text(encoding="utf-8")
    ends = {
        name: [row["evals"].get("24", 0) for row in rows if (row["part"], row["method"]) == ("cliff", name)]
        for name in ("bnpo clipped", "grpo clipped")
    }
    mean, half = 100 * fmean(ends["bnpo clipped"]), 100 * 2.0226909 * stdev(ends["bnpo clipped"]) / 40**0.5
    assert f"{mean:.1f} ± {half:.1f}" in page
    differences = [ours - theirs for ours, theirs in zip(*ends.values(), strict=True)]
    mean, half = 100 * fmean(differences), 100 * 2.0226909 * stdev(differences) / 40**0.5
    assert f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})" in page
    assert check(rows, CLIFF_FAMILY, CLIFF_FAMILY.null) == paired(
        np.array([r["evals"]["24"] for r in rows if r["method"] == "rloo unclipped"])
        - np.array([r["evals"]["24"] for r in rows if r["method"] == "reinforce unclipped"][:12])
    )


def test_the_report_is_what_the_rows_say(tmp_path):
    write_results_2(SECOND, tmp_path, tmp_path / "tables-2.md")
    assert (tmp_path / "results-2.md").read_text() == (PAGES / "results-2.md").read_text()
    assert (tmp_path / "tables-2.md").read_text() == (RESULTS / "tables-2.md").read_text()
    drawn, committed = (imread(folder / "figures" / "cliff.png") for folder in (tmp_path, PAGES))
    np.testing.assert_array_equal(drawn, committed, err_msg="cliff.png: run scripts/study.py --report")
