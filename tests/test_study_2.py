"""The second study: its list of runs, its registration, and the statistics that only it needs."""

import subprocess
from collections import Counter
from itertools import product

import numpy as np
import pytest

from bnpo.config import check_config, parse_train_config
from bnpo.files import ROOT, InputError
from study.design import REGIMES
from study.power import chance_below, pilot_deviation
from study.registry import CLIFF_SEEDS, PARTS_2, PRIOR_GRID, PRIOR_METHODS, PRIOR_SEEDS, ROWS_2
from study.rows import Rows
from study.statistics import sign_flip, smallest_found

REGISTRATION = "docs/study-2.md"
"""Where the plan was when it was registered."""
PLAN = ROOT / "docs" / "study" / "plan-2.md"


def tuning_rows(best: float) -> list[dict]:
    """Rows of tuning runs at each rate of the grid and beyond. Areas are largest at `best`."""
    rates = (*PRIOR_GRID.rates, *PRIOR_GRID.beyond.values())
    rows = []
    for regime, method, lr, seed in product(REGIMES, PRIOR_METHODS, rates, PRIOR_GRID.seeds):
        row = {"part": "prior-tuning", "regime": regime, "method": method, "lr": lr, "seed": seed}
        rows.append(row | {"evals": {"0": 1 - abs(lr - best)}})
    return rows


def every_run(rows: list[dict] | None) -> list:
    return [run for part in PARTS_2.values() for run in part(rows)]


def test_runs_are_those_of_the_registration():
    assert {name: len(list(part(None))) for name, part in PARTS_2.items()} == {
        "cliff": 240,
        "cliff-controls": 24,
        "prior-tuning": 240,
        "prior": 180,
        "prior-controls": 24,
        "prior-same-rate": 12,
    }
    inside, at_the_end = (len(every_run(tuning_rows(best))) for best in (2e-4, 4e-4))
    assert at_the_end - inside == 60
    assert not {*CLIFF_SEEDS, *PRIOR_SEEDS, *PRIOR_GRID.seeds} & {*range(12), 100, 101, 200}
    assert (len(CLIFF_SEEDS), len(PRIOR_SEEDS)) == (40, 12)


def test_every_run_is_one_that_train_py_takes_and_has_a_name_of_its_own():
    runs = every_run(tuning_rows(2e-4))
    assert max(Counter(run.name for run in runs).values()) == 1
    for run in {(run.part, run.method): run for run in runs}.values():
        config, _ = parse_train_config(list(run.command()), has_cuda=False)
        check_config(config, ranks=1)
        assert (config.update.lr, config.sampling.seed) == (run.lr, run.seed)
        assert config.batch.steps == {"cliff": 24, "concentrated": 6}.get(run.regime, 12)
        assert config.update.max_grad_norm == (1e9 if run.method.endswith("unclipped") else 1)
        assert config.method.algo == run.method.split()[0]


def test_learning_rates_are_tuned_and_controls_take_rloos():
    rows = tuning_rows(4e-4)
    rates = {run.lr for part in ("prior", "prior-controls") for run in PARTS_2[part](rows)}
    assert rates == {4e-4}
    with pytest.raises(InputError, match=r"spread, eb: learning rate 0\.00014 was not tried yet; run --only prior-tun"):
        list(PARTS_2["prior"]([]))


def test_exact_sign_flips_of_forty_seeds():
    """Against random signs; and with one outlier, which decides the sign of every sum, the p-value is known."""
    rng = np.random.default_rng(0)
    differences = rng.normal(0.3, 1, size=40)
    signs = rng.choice([-1, 1], size=(400_000, 40))
    share = (np.abs(signs @ differences) >= abs(differences.sum())).mean()
    assert sign_flip(differences) == pytest.approx(share, abs=4 * np.sqrt(share / 400_000))
    assert sign_flip(np.full(40, 0.1)) == 2 / 2**40
    assert sign_flip(np.tile([0.1, -0.1], 20)) == 1


def test_sample_size_by_simulation():
    """docs/study/plan-2.md, "Sample size": the difference that 40 seeds find, and where intervals end without one."""
    deviation, rng = pilot_deviation(), np.random.default_rng(0)
    found = smallest_found(deviation, 40, 0.05)
    assert (round(deviation, 1), round(found, 1)) == (12.2, 5.6)
    cells = [deviation, 2.0227 * deviation / np.sqrt(40), found, smallest_found(deviation, 40, 0.05 / 4)]
    page = PLAN.read_text(encoding="utf-8")
    assert f"| cliff | 40 | {' | '.join(f'{cell:.2f}' for cell in cells)} | 5 |" in page
    samples = rng.normal(0, deviation, size=(20_000, 40))
    half = 2.0227 * samples.std(axis=1, ddof=1) / np.sqrt(40)
    assert (samples.mean(axis=1) + half < 5).mean() == pytest.approx(chance_below(5, deviation, 40), abs=0.02)
    assert (np.abs(samples.mean(axis=1) + found) > half).mean() == pytest.approx(0.8, abs=0.02)


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone: the age of commits is unknown")
def test_the_registration_is_older_than_every_row():
    """The commits that computed the rows have the registration, and the file of rows was added after it."""
    if not ROWS_2.exists():
        pytest.skip("no run of the second study has a row")
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone does not have the registration's commit")
    registered = git("log", "--diff-filter=A", "--format=%H", "--", REGISTRATION).split()[-1]
    added = git("log", "--diff-filter=A", "--format=%H", "--", str(ROWS_2.relative_to(ROOT))).split()
    for commit in {*added, *(row["commit"] for row in Rows(ROWS_2).all)}:
        git("merge-base", "--is-ancestor", registered, commit)  # fails otherwise
    assert registered not in added
