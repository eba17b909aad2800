"""The miniature studies: their recorded runs, their statistics, the report of the first."""

import subprocess
from collections import defaultdict
from functools import partial
from itertools import product

import numpy as np
import pytest
from matplotlib.image import imread

from bnpo.config import check_config, parse_train_config
from bnpo.files import ROOT
from study.again import compare_with, train_again
from study.design import ALGORITHMS, EVALUATED, GRID, REGIMES, SEEDS, command
from study.paper import average_error, paper_table
from study.registry import CLIFF_SEEDS, PRIOR_GRID, PRIOR_SEEDS, REGISTERED, ROWS_2, method_flags, tagged_methods
from study.results import PAGES, write_results
from study.rows import RESULTS, ROWS, area, chosen_lr, final, read_rows
from study.statistics import sign_flip, smallest_found, t_interval
from study.verdict import verdict_table
from study.weights import base_accuracies, base_weights, cosines
from test_same_results import arithmetic

ARITHMETIC = "692ca92a848e941d on 2 cores"
"""The machine that computed the rows, as `arithmetic()` names it."""
FIRST, SECOND = read_rows(), read_rows(ROWS_2)


def test_every_row_is_a_run_that_train_py_takes_and_has_a_name_of_its_own():
    rows = [*FIRST, *SECOND]
    assert len({row["name"] for row in rows}) == len(rows)
    for row in {(row["part"], row["regime"], row["method"]): row for row in rows}.values():
        config, _ = parse_train_config(command(row, method_flags(row["part"], row["method"])), has_cuda=False)
        check_config(config, ranks=1)
        assert (config.update.lr, config.sampling.seed) == (row["lr"], row["seed"])
        assert config.batch.steps == {"cliff": 24, "concentrated": 6}.get(row["regime"], 12)
        assert config.update.max_grad_norm == (1e9 if row["method"].endswith("unclipped") else 1)
        assert config.method.algo == row["method"].split()[0].removeprefix("ad-")
        assert config.method.decompose == row["method"].startswith("ad-")
        assert config.method.rescale_advantages == (row["part"] == "scale")
    assert {row["method"] for row in FIRST if row["part"] == "tags"} == set(tagged_methods())


def test_runs_are_those_that_were_registered_and_seeds_are_paired():
    seeds = defaultdict(set)
    for row in (*FIRST, *SECOND):
        seeds[row["part"], row["regime"], row["method"]].add(row["seed"])
    expected = {"tuning": (100, 101), "tags-tuning": (100, 101), "cliff": CLIFF_SEEDS}
    expected |= {"cliff-controls": CLIFF_SEEDS[:12], "prior-tuning": PRIOR_GRID.seeds}
    expected |= {part: PRIOR_SEEDS for part in ("prior", "prior-controls", "prior-same-rate")}
    for (part, *_), found in seeds.items():
        assert found == set(expected.get(part, SEEDS))
    counts = {part: sum(row["part"] == part for row in SECOND) for part in REGISTERED}
    assert 0 <= counts.pop("prior-tuning") - REGISTERED["prior-tuning"] <= 60
    assert counts.items() < REGISTERED.items()
    # No seed of the second study was used before, neither in the first study nor in the pilot.
    assert not {*CLIFF_SEEDS, *PRIOR_SEEDS, *PRIOR_GRID.seeds} & {*SEEDS, 100, 101, 200}


def test_the_learning_rate_is_that_of_the_greatest_area():
    rows = [
        {"part": "tuning", "regime": "rare", "method": "bnpo", "lr": lr, "seed": seed, "evals": evals}
        for lr, end in ((5e-5, 0.5), (1e-4, 0.7), (2e-4, 0.7), (4e-4, 0.2))
        for seed, evals in ((100, {"0": 0.1, "6": 0.3, "12": end}), (101, {"0": 0.1}))
    ]
    assert final(rows[0]) == 0.5
    assert area(rows[0]) == pytest.approx((0.1 / 2 + 0.3 + 0.5 / 2) / 2)
    assert area(rows[1]) == pytest.approx(0.1 / 2 / 2)  # it failed: what it did not reach counts 0
    assert chosen_lr(rows, "rare", "bnpo", GRID) == 1e-4


def test_the_t_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        mean, half = t_interval(rng.normal(0.3, 1, size=12))
        covered += abs(mean - 0.3) < half
    assert 0.94 < covered / 2000 < 0.96


def test_the_sign_flip_test_counts_all_signs():
    differences = np.array([0.5, -0.1, 0.4, 0.3, 0.2])
    signs = 1 - 2 * ((np.arange(32)[:, None] >> np.arange(5)) & 1)
    as_far = np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12
    assert sign_flip(differences) == pytest.approx(as_far.mean())
    assert sign_flip(np.zeros(5)) == 1
    scores, others = [0.824, 0.8255, 0.7935, 0.798, 0.836], [0.8215, 0.826, 0.793, 0.7975, 0.8355]
    assert sign_flip(np.subtract(scores, others)) == 10 / 32  # 5, -1, 1, 1, 1 of a size: ties that floats do not see


def test_exact_sign_flips_of_forty_seeds():
    """Against random signs; and with one outlier, which decides the sign of every sum, the p-value is known."""
    rng = np.random.default_rng(0)
    differences = rng.normal(0.3, 1, size=40)
    signs = rng.choice([-1, 1], size=(400_000, 40))
    share = (np.abs(signs @ differences) >= abs(differences.sum())).mean()
    assert sign_flip(differences) == pytest.approx(share, abs=4 * np.sqrt(share / 400_000))
    assert sign_flip(np.full(40, 0.1)) == 2 / 2**40
    assert sign_flip(np.tile([0.1, -0.1], 20)) == 1


def test_the_difference_that_is_found_by_simulation():
    """evals/results/study/plan-2.md, "Sample size": what 40 seeds find at the standard deviation of the pilot."""
    deviation, rng = 12.24, np.random.default_rng(0)
    found = smallest_found(deviation, 40, 0.05)
    assert f"| {found:.2f} |" in (ROOT / "evals" / "results" / "study" / "plan-2.md").read_text(encoding="utf-8")
    samples = rng.normal(found, deviation, size=(20_000, 40))
    half = 2.0227 * samples.std(axis=1, ddof=1) / np.sqrt(40)
    assert (np.abs(samples.mean(axis=1)) > half).mean() == pytest.approx(0.8, abs=0.02)


def outcome(leads: dict[str, float], noise: float = 0.004) -> list[dict]:
    """Rows of the parts that decide: pass@1 of 0.6 and scatter between seeds, BNPO ahead of `leads` by so much."""
    rng = np.random.default_rng(1)  # with 0 chance puts BNPO below another by p 0.04
    rows = []
    for part, regime, method in [
        *product(["main"], REGIMES, ALGORITHMS),
        *product(["adaptive"], ["concentrated", "rare"], ["beta 1.25 1.25", "beta 2 2", "beta 1.5 2"]),
        *product(["scale"], ["concentrated"], ALGORITHMS),
    ]:
        for seed in SEEDS:
            score = 0.6 - leads.get(method, 0) + noise * rng.normal()
            row = {"part": part, "regime": regime, "method": method, "lr": 1e-4, "seed": seed, "ended": "done"}
            curves = {"alpha": [1.5], "beta": [2.0]}
            rows.append(row | {"evals": {str(step): score for step in (0, 3, 6, 12)}, "curves": curves})
    return rows


FIXED = {name: 0.03 for name in ("beta 1.25 1.25", "beta 2 2", "beta 1.5 2")}
PLACES = [f"{regime}, step {step}" for regime in REGIMES for step in EVALUATED[regime]]
AHEAD, NOT_AHEAD = (
    {"methods": {"reinforce": {"bnpo_less": [0.3, 0.1]}, "grpo": {"bnpo_less": [less, 0.1]}}} for less in (0.21, 0.19)
)


@pytest.mark.parametrize(
    ("leads", "verdict", "because"),
    [
        ({}, "against", "all intervals contain 0 and end below 2 points"),
        ({"reinforce": 0.03, "grpo": 0.03} | FIXED, "for", "its own first fit: concentrated, at the end"),
        ({"reinforce": 0.03, "grpo": 0.03}, "undecided", "above both in: spread, at the end; spread, area; conc"),
        ({"reinforce": 0.03} | FIXED, "undecided", "ending beyond 2 points in: spread, at the end"),
        ({"reinforce": 0.03, "grpo": -0.03} | FIXED, "against", "below REINFORCE or GRPO: spread, at the end"),
    ],
)
def test_the_verdict_follows_the_registered_rules(leads, verdict, because):
    lines = verdict_table(outcome(leads), dict.fromkeys(PLACES, AHEAD)).blocks["claim"]
    assert lines["BNPO learns better"][0] == verdict
    assert because in lines["BNPO learns better"][1]


def test_nulls_that_differ_and_checkpoints_where_bnpo_is_above_both_by_two_errors_are_counted():
    for number, verdict in ((4, "not supported"), (5, "for")):
        noise = dict.fromkeys(PLACES[:number], AHEAD) | dict.fromkeys(PLACES[number:], NOT_AHEAD)
        lines = verdict_table(outcome({"rloo": 0.03}), noise).blocks["claim"]
        assert lines["its gradient is less noisy"] == [verdict, f"above both at {number} of 9 checkpoints"]
        assert lines["the nulls hold"][0] == "no"
        assert lines["the nulls hold"][1].endswith("; 0 of 48 pairs of runs have the same curve")


def test_weights_are_those_of_the_advantages_and_scaled_alike():
    accuracies = base_accuracies("rare")
    for name, (p, weights) in base_weights("rare").items():
        squares = np.interp(accuracies, p, weights) ** 2 * accuracies * (1 - accuracies)
        assert squares.mean() == pytest.approx(1, abs=1e-3), name  # shares are rounded in the file
    p, weights = base_weights("spread")["grpo"]
    np.testing.assert_allclose(weights / weights[0], np.sqrt(p[0] * (1 - p[0]) / p / (1 - p)), rtol=1e-5)


def test_bnpo_is_no_further_from_reinforce_than_its_density_lets_it_be():
    """With many answers to many alike questions f is a normal density of three times the variance of p."""
    draw = partial(np.random.Generator.beta, a=50, b=50, size=20_000)
    assert cosines(draw, 1024, ("reinforce", "bnpo"), batches=3) == pytest.approx(
        {"reinforce": 0.75**0.25, "bnpo": 1}, abs=0.01
    )


def test_errors_of_the_papers_averages():
    assert average_error([0.5, 0, 0, 0], "over problems") == pytest.approx(np.sqrt(0.25 / 500) / 4)
    assert average_error([1, 0.5, 0, 0], "over answers") == pytest.approx(np.sqrt(0.25 / 640) / 4)
    block = paper_table().blocks["Qwen2.5-Math-7B"]
    assert (block["GRPO"][0], block["GRPO"][3]) == ("47.1", "+0.7")


@pytest.mark.sampler
def test_a_run_that_is_trained_again_is_what_its_row_says(tmp_path):
    stored = next(row for row in FIRST if (row["part"], row["method"]) == ("main", "bnpo"))
    result = train_again(stored, tmp_path / "run", steps=3)
    assert (result["ended"], len(result["curves"]["reward"])) == ("done", 3)
    line = compare_with(stored, result)
    assert line.startswith(f"{stored['name']}: done (recorded: done), 0 of 9 curves are equal, pass@1 after step ")
    assert "9 of 9 curves are equal" in compare_with(result | {"name": "x", "evals": {"0": 0.5}}, result)
    if arithmetic() != ARITHMETIC:
        pytest.skip(f"bits were recorded with other arithmetic than {arithmetic()}")
    for name, curve in stored["curves"].items():
        assert result["curves"][name] == curve[:3], name


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: the age of commits is unknown")
def test_the_registration_is_older_than_every_row():
    """The commits that computed the rows have the registration, and the file of rows was added after it.

    The registration was docs/study-2.md then.
    """
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone does not have the registration's commit")
    registered = git("log", "--diff-filter=A", "--format=%H", "--", "docs/study-2.md").split()[-1]
    added = git("log", "--diff-filter=A", "--format=%H", "--", str(ROWS_2.relative_to(ROOT))).split()
    for commit in {*added, *(row["commit"] for row in SECOND)}:
        git("merge-base", "--is-ancestor", registered, commit)  # fails otherwise
    assert registered not in added


def figures(folder) -> dict[str, np.ndarray]:
    others = ("theory.png", "cliff.png")  # of ceiling.py, which is in an earlier commit, and of the second study
    return {file.name: imread(file) for file in (folder / "figures").glob("*.png") if file.name not in others}


def test_the_report_is_what_the_rows_say(tmp_path):
    write_results(FIRST, tmp_path, tmp_path / "tables.md")
    assert (tmp_path / "results.md").read_text() == (PAGES / "results.md").read_text()
    assert (tmp_path / "tables.md").read_text() == (RESULTS / "tables.md").read_text()
    drawn, committed = figures(tmp_path), figures(PAGES)
    assert drawn.keys() == committed.keys()
    for name, pixels in drawn.items():
        np.testing.assert_array_equal(pixels, committed[name], err_msg=f"{name}: run scripts/study.py --report")
    assert ROWS.stat().st_size < 5e6
