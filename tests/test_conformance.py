"""Our estimators and the formulas of the paper's released code (benchmarks/released.py)."""

import released

from bnpo.files import ROOT

PAGE = (ROOT / "docs" / "conformance.md").read_text(encoding="utf-8")


def test_our_estimators_are_those_of_the_released_code():
    rows = list(released.largest_differences(batches=40))
    assert {label for label, _, _ in rows} >= {f"`--algo {name}`" for name in released.FORMULAS}
    for label, batches, largest in rows:
        assert batches > 30, label
        assert largest < 1e-5, label
        assert f"| {label} |" in PAGE


def test_the_edges_are_documented():
    for row in released.edge_rows():
        assert f"| {' | '.join(row)} |" in PAGE
