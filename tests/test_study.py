"""The miniature studies: their recorded runs, their statistics, the report of the first."""

import hashlib
import os
import re
from functools import partial
from statistics import fmean, stdev

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from scipy.stats import beta as beta_distribution

from bnpo.config import check_config, parse_train_config
from bnpo.files import ROOT, whole_json_lines
from conftest import python
from study.design import command, tagged_methods
from study.results import write_results
from study.results_2 import write_results_2
from study.rows import RESULTS, ROWS, ROWS_2, compare_with, train_again
from study.statistics import sign_flip, smallest_found
from study.tables import PAGES
from study.weights import base_accuracies, base_weights, cosines

ARITHMETIC = "692ca92a848e941d on 2 cores"
"""The machine that computed the rows, as `arithmetic()` names it."""
FIRST, SECOND = whole_json_lines(ROWS), whole_json_lines(ROWS_2)


def arithmetic() -> str:
    """Last bits depend on the processor's instructions and on the number of cores."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    digest = hashlib.sha256((a @ b).softmax(-1).numpy().tobytes()).hexdigest()[:16]
    return f"{digest} on {len(os.sched_getaffinity(0))} cores"


def test_every_row_is_a_run_that_train_py_takes_and_has_a_name_of_its_own():
    rows = [*FIRST, *SECOND]
    assert len({row["name"] for row in rows}) == len(rows)
    for row in {(row["part"], row["regime"], row["method"]): row for row in rows}.values():
        config, _ = parse_train_config(command(row), has_cuda=False)
        check_config(config, ranks=1)
        assert (config.update.lr, config.sampling.seed) == (row["lr"], row["seed"])
        assert config.batch.steps == {"cliff": 24, "concentrated": 6}.get(row["regime"], 12)
        assert config.update.max_grad_norm == (1e9 if row["method"].endswith("unclipped") else 1)
        assert config.method.algo == row["method"].split()[0].removeprefix("ad-")
        assert config.method.decompose == row["method"].startswith("ad-")
        assert config.method.rescale_advantages == (row["part"] == "scale")
    assert {row["method"] for row in FIRST if row["part"] == "tags"} == set(tagged_methods())


def test_the_sign_flip_test_counts_all_signs():
    differences = np.array([0.5, -0.1, 0.4, 0.3, 0.2])
    signs = 1 - 2 * ((np.arange(32)[:, None] >> np.arange(5)) & 1)
    as_far = np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12
    assert sign_flip(differences) == pytest.approx(as_far.mean())
    assert sign_flip(np.zeros(5)) == 1
    scores, others = [0.824, 0.8255, 0.7935, 0.798, 0.836], [0.8215, 0.826, 0.793, 0.7975, 0.8355]
    # 5, -1, 1, 1, 1 of a size: ties that floats do not see
    assert sign_flip(np.subtract(scores, others)) == 10 / 32


def test_exact_sign_flips_of_forty_seeds():
    """Against random signs; and with one outlier, which decides the sign of every sum, the
    p-value is known.
    """
    rng = np.random.default_rng(0)
    differences = rng.normal(0.3, 1, size=40)
    signs = rng.choice([-1, 1], size=(400_000, 40))
    share = (np.abs(signs @ differences) >= abs(differences.sum())).mean()
    assert sign_flip(differences) == pytest.approx(share, abs=4 * np.sqrt(share / 400_000))
    assert sign_flip(np.full(40, 0.1)) == 2 / 2**40
    assert sign_flip(np.tile([0.1, -0.1], 20)) == 1


def test_the_difference_that_is_found_by_simulation():
    """evals/results/study/plan-2.md, "Sample size": what 40 seeds find at the standard deviation
    of the pilot.
    """
    deviation, rng = 12.24, np.random.default_rng(0)
    found = smallest_found(deviation, 40, 0.05)
    assert f"| {found:.2f} |" in (ROOT / "evals" / "results" / "study" / "plan-2.md").read_text(
        encoding="utf-8"
    )
    samples = rng.normal(found, deviation, size=(20_000, 40))
    half = 2.0227 * samples.std(axis=1, ddof=1) / np.sqrt(40)
    assert (np.abs(samples.mean(axis=1)) > half).mean() == pytest.approx(0.8, abs=0.02)


def test_weights_are_those_of_the_advantages_and_scaled_alike():
    accuracies = base_accuracies("rare")
    for name, (p, weights) in base_weights("rare").items():
        squares = np.interp(accuracies, p, weights) ** 2 * accuracies * (1 - accuracies)
        assert squares.mean() == pytest.approx(1, abs=1e-3), name  # shares are rounded in the file
    p, weights = base_weights("spread")["grpo"]
    np.testing.assert_allclose(
        weights / weights[0], np.sqrt(p[0] * (1 - p[0]) / p / (1 - p)), rtol=1e-5
    )


def test_bnpo_is_no_further_from_reinforce_than_its_density_lets_it_be():
    """With many answers to many alike questions f is a normal density of three times the
    variance of p.
    """
    draw = partial(np.random.Generator.beta, a=50, b=50, size=5_000)
    assert cosines(draw, 1024, ("reinforce", "bnpo"), batches=3) == pytest.approx(
        {"reinforce": 0.75**0.25, "bnpo": 1}, abs=0.01
    )


@pytest.mark.sampler
def test_a_run_that_is_trained_again_is_what_its_row_says(tmp_path):
    stored = next(row for row in FIRST if (row["part"], row["method"]) == ("main", "bnpo"))
    result = train_again(stored, tmp_path / "run", steps=3)
    assert (result["ended"], len(result["curves"]["reward"])) == ("done", 3)
    line = compare_with(stored, result)
    assert line.startswith(
        f"{stored['name']}: done (recorded: done), 0 of 9 curves are equal, pass@1 after step "
    )
    assert "9 of 9 curves are equal" in compare_with(
        result | {"name": "x", "evals": {"0": 0.5}}, result
    )
    if arithmetic() != ARITHMETIC:
        pytest.skip(f"bits were recorded with other arithmetic than {arithmetic()}")
    for name, curve in stored["curves"].items():
        assert result["curves"][name] == curve[:3], name


def figures(folder) -> dict[str, np.ndarray]:
    # Of ceiling.py, which is in an earlier commit, and of the second study
    others = ("theory.png", "cliff.png")
    return {
        file.name: imread(file)
        for file in (folder / "figures").glob("*.png")
        if file.name not in others
    }


def test_the_report_is_what_the_rows_say(tmp_path):
    write_results(FIRST, tmp_path, tmp_path / "tables.md")
    assert (tmp_path / "results.md").read_text() == (PAGES / "results.md").read_text()
    assert (tmp_path / "tables.md").read_text() == (RESULTS / "tables.md").read_text()
    drawn, committed = figures(tmp_path), figures(PAGES)
    assert drawn.keys() == committed.keys()
    for name, pixels in drawn.items():
        np.testing.assert_array_equal(
            pixels, committed[name], err_msg=f"{name}: run scripts/study.py --report"
        )
    assert ROWS.stat().st_size < 5e6


def test_the_report_of_the_second_study_is_what_the_rows_say(tmp_path):
    write_results_2(SECOND, tmp_path, tmp_path / "tables-2.md")
    assert (tmp_path / "results-2.md").read_text() == (PAGES / "results-2.md").read_text()
    assert (tmp_path / "tables-2.md").read_text() == (RESULTS / "tables-2.md").read_text()
    drawn, committed = (imread(folder / "figures" / "cliff.png") for folder in (tmp_path, PAGES))
    np.testing.assert_array_equal(
        drawn, committed, err_msg="cliff.png: run scripts/study.py --report"
    )


def test_numbers_of_the_second_page_computed_again():
    """Means, intervals and differences from the rows, without the study's own statistics."""
    page = (PAGES / "results-2.md").read_text(encoding="utf-8")
    ends = {
        name: [
            row["evals"].get("24", 0)
            for row in SECOND
            if (row["part"], row["method"]) == ("cliff", name)
        ]
        for name in ("bnpo clipped", "grpo clipped")
    }
    mean, half = (
        100 * fmean(ends["bnpo clipped"]),
        100 * 2.0226909 * stdev(ends["bnpo clipped"]) / 40**0.5,
    )
    assert f"{mean:.1f} ± {half:.1f}" in page
    differences = [ours - theirs for ours, theirs in zip(*ends.values(), strict=True)]
    mean, half = 100 * fmean(differences), 100 * 2.0226909 * stdev(differences) / 40**0.5
    assert f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})" in page


def test_the_variation_of_the_gradient_norm_computed_again():
    """The paper's measure of stability, without the study's own statistics."""
    page = (PAGES / "results.md").read_text(encoding="utf-8")
    variations: dict[tuple[str, str], dict[int, float]] = {}  # by regime and method, then seed
    for row in FIRST:
        if row["part"] == "main":
            norms = row["curves"]["grad_norm"]
            runs = variations.setdefault((row["regime"], row["method"]), {})
            runs[row["seed"]] = stdev(norms) / fmean(norms)
    ours, theirs = variations["rare", "bnpo"], variations["rare", "grpo"]
    differences = [ours[seed] - theirs[seed] for seed in ours]
    mean, half = fmean(differences), 2.2009852 * stdev(differences) / 12**0.5
    line = f"| grpo | 12 | {fmean(ours.values()):.2f} | {fmean(theirs.values()):.2f} | {mean:+.3f} "
    assert f"{line}({mean - half:+.3f} to {mean + half:+.3f}) | 100% |" in page
    # BNPO's varies most of the paper's five methods, as the findings say
    for regime in ("spread", "concentrated", "rare"):
        means = {
            method: fmean(variations[regime, method].values())
            for method in ("reinforce", "remax", "grpo", "reinforce_pp", "bnpo")
        }
        assert max(means, key=lambda method: means[method]) == "bnpo"


PAGE = (ROOT / "docs" / "study" / "theory.md").read_text(encoding="utf-8")


def test_the_best_density_of_all_is_a_beta_density():
    """Section 1: with f* = Beta(1 + a/3, 1 + b/3), no density on a grid has a smaller E[v /
    f^2].
    """
    a, b = 2, 5
    p = (np.arange(4000) + 0.5) / 4000
    mass = beta_distribution.pdf(p, a, b) * p * (1 - p)
    best = beta_distribution.pdf(p, 1 + a / 3, 1 + b / 3)
    rng = np.random.default_rng(0)
    for size in (0.01, 0.1, 1):
        for _ in range(20):
            waves = sum(
                rng.normal() * np.cos(k * np.pi * p + rng.uniform(0, 6)) for k in range(1, 6)
            )
            other = best * np.exp(size * waves)
            other /= other.mean()
            assert (mass / other**2).mean() > (mass / best**2).mean()


@pytest.mark.program
def test_theorem_1_is_confirmed():
    output = python("scripts/verify_theorem.py").stdout
    assert float(re.search(r"minimum_distance: (\S+)", output)[1]) < 1e-6
    assert "domain_errors: 0 " in output
    assert float(re.search(r"monte_carlo_largest_z: (\S+)", output)[1]) < 4
    # At a = b = 3/2 the best Beta density is GRPO's.
    assert re.search(r"1\.5 .* 1\.5 .*0\.822 .* 1\.000 .* 1\.000", output)
    # docs/study/theory.md: no signal under the assumption, the least squared cosine and its limits,
    # the best weight.
    for name in ("mean_gradient_largest_z", "squared_cosine_largest_z"):
        assert float(re.search(rf"{name}: (\S+)", output)[1]) < 4
    assert 0.75 <= float(re.search(r"squared_cosine_least: (\S+)", output)[1]) < 0.751
    assert float(re.search(r"squared_cosine_limits: (\S+)", output)[1]) < 1e-3
    assert float(re.search(r"best_weight_share: (\S+)", output)[1]) <= 1
