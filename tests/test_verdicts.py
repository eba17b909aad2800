"""The verdicts of the study on SmolLM2, by the rules of its page."""

import pytest
from scipy import stats
from verdicts import (
    Difference,
    decomposition,
    differences,
    harm,
    lead,
    mechanism,
    norm_variation,
    stability,
    variation_around_trend,
)

from bnpo.config import flat_settings, parse_train_config
from bnpo.files import write_json, write_json_lines


def difference(mean: float, half: float, p: float) -> Difference:
    return Difference("bnpo", "grpo", 5, mean, mean - half, mean + half, p)


UP, DOWN, UP_A_LITTLE, DOWN_A_LITTLE = (
    difference(3, 1, 0.01),
    difference(-3, 1, 0.01),
    difference(1, 2, 0.4),
    difference(-1, 2, 0.4),
)


@pytest.mark.parametrize(
    ("judge", "found", "verdict"),
    [
        (lead, [UP, UP, UP_A_LITTLE, UP_A_LITTLE], "for the paper"),
        (lead, [UP, UP, UP, DOWN_A_LITTLE], "undecided"),  # its mean is not the highest
        (lead, [UP, UP_A_LITTLE, UP_A_LITTLE, UP_A_LITTLE], "undecided"),
        (lead, [UP, UP, UP, DOWN], "against the paper"),
        (stability, [DOWN, DOWN], "for the paper"),
        (stability, [DOWN, DOWN_A_LITTLE], "undecided"),
        (stability, [DOWN, UP], "against the paper"),
        (decomposition, [UP, UP], "for the paper"),
        (decomposition, [UP, UP_A_LITTLE], "undecided"),
        (decomposition, [UP, DOWN], "against the paper"),
        (harm, [UP], "BNPO for the claim"),
        (harm, [DOWN, UP_A_LITTLE], "BNPO against the claim, BNPO undecided"),
    ],
)
def test_verdicts_follow_the_registered_rules(judge, found, verdict):
    assert judge(found) == verdict


def test_the_mechanism_holds_if_grpo_has_the_largest_energy_in_every_seed():
    energies = {"grpo": {0: 0.3, 1: 0.2}, "bnpo": {0: 0.1, 1: 0.1}, "AD-grpo": {0: 0.2, 1: 0.1}}
    assert mechanism(energies) == "holds"
    energies["bnpo"][1] = 0.2
    assert mechanism(energies) == "does not hold"


def test_the_variation_of_the_norm_leaves_out_skipped_updates_and_its_trend(tmp_path):
    config, _ = parse_train_config(("--preset", "tiny"), has_cuda=False)
    write_json(tmp_path / "config.json", flat_settings(config))
    lines = [{"step": step, "grad_norm": norm} for step, norm in ((1, 1.0), (2, None), (3, 3.0))]
    write_json_lines(tmp_path / "metrics.jsonl", lines)
    assert norm_variation(tmp_path) == pytest.approx(2**0.5 / 2)
    assert variation_around_trend(tmp_path) == pytest.approx(0, abs=1e-12)


def test_differences_are_paired_by_seed_and_corrected_by_holm():
    values = {
        "bnpo": {0: 40.0, 1: 44.0, 2: 41.0},
        "grpo": {0: 39.0, 1: 40.0, 2: 39.5, 3: 90.0},
        "remax": {1: 43.9, 2: 41.2},
        "reinforce": {2: 0.0},  # one common seed says nothing
    }
    grpo, remax = differences(values, [("bnpo", b) for b in ("grpo", "remax", "reinforce")])
    expected = [stats.ttest_1samp(x, 0).pvalue for x in ([1.0, 4.0, 1.5], [0.1, -0.2])]
    assert (grpo.seeds, remax.seeds) == (3, 2)
    assert grpo.p == pytest.approx(2 * expected[0])
    assert remax.p == pytest.approx(max(expected[1], 2 * expected[0]))
