"""Our estimators and the formulas of the paper's released code (benchmarks/released.py)."""

import sys

import pytest

from bnpo.files import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import released

PAGE = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")


def test_our_estimators_are_those_of_the_released_code():
    rows = list(released.largest_differences(batches=40))
    assert {label for label, _, _ in rows} >= {f"`--algo {name}`" for name in released.FORMULAS}
    for label, batches, largest in rows:
        assert batches > 30, label
        assert largest < 1e-5, label
        assert f"| {label} |" in PAGE


@pytest.mark.parametrize("algo", ["grpo", "bnpo", "reinforce_pp"])
def test_another_formula_is_found(algo, monkeypatch):
    """A weight that is off by a thousandth shows in the rows of this estimator and in no other."""
    formula = released.FORMULAS[algo]
    changed = released.FORMULAS | {algo: lambda *batch: 1.001 * formula(*batch)}
    monkeypatch.setattr(released, "FORMULAS", changed)
    differing = [
        label for label, _, largest in released.largest_differences(batches=5) if largest > 1e-5
    ]
    assert differing == [f"`--algo {algo}`", f"`--algo {algo} --decompose`"]


def test_the_edges_are_documented():
    for row in released.edge_rows():
        assert f"| {' | '.join(row)} |" in PAGE
