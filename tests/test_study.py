"""The miniature study: its list of runs, its statistics, its measure of noise, and that a row can be made again."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import make_model
from test_same_results import ARITHMETIC, arithmetic

from bnpo.config import check_config, parse_train_config
from bnpo.files import ROOT, InputError
from bnpo.study import noise
from bnpo.study.jobs import run_side_by_side
from bnpo.study.registry import PARTS, REGIMES, StudyRun, first_fit
from bnpo.study.results import write_results
from bnpo.study.rows import ROWS, Rows, area, chosen_lr, final
from bnpo.study.statistics import paired, sign_flip

EVERY_RUN = [run for part in PARTS.values() for run in part(lambda regime, method: 1e-4)]


def test_every_run_is_one_that_train_py_takes_and_has_a_name_of_its_own():
    assert len({run.name for run in EVERY_RUN}) == len(EVERY_RUN)
    for run in {run.flags: run for run in EVERY_RUN if run.part not in ("tuning", "adaptive")}.values():
        config, _ = parse_train_config(list(run.command()), has_cuda=False)
        check_config(config, ranks=1)
        assert (config.lr, config.seed) == (run.lr, run.seed)


def test_seeds_are_paired_and_tuning_has_its_own():
    seeds = defaultdict(set)
    for run in EVERY_RUN:
        seeds[run.part.endswith("tuning"), run.part, run.regime, run.method].add(run.seed)
    tuning = {frozenset(found) for (is_tuning, *_), found in seeds.items() if is_tuning}
    counted = {frozenset(found) for (is_tuning, *_), found in seeds.items() if not is_tuning}
    assert tuning == {frozenset({100, 101})}
    assert counted == {frozenset(range(12))}


def test_the_first_fit_is_narrow_where_questions_are_alike_and_leans_where_they_are_hard():
    fits = {regime: first_fit(regime) for regime in REGIMES}
    assert min(fits["concentrated"]) > max(fits["spread"])
    assert fits["rare"][1] > 2 * fits["rare"][0]


def test_the_learning_rate_is_that_of_the_greatest_area():
    rows = [
        {"part": "tuning", "regime": "rare", "method": "bnpo", "lr": lr, "seed": seed, "evals": evals}
        for lr, end in ((5e-5, 0.5), (1e-4, 0.7), (2e-4, 0.7), (4e-4, 0.2))
        for seed, evals in ((100, {"0": [0.1, 0], "6": [0.3, 0], "12": [end, 0]}), (101, {"0": [0.1, 0]}))
    ]
    assert final(rows[0]) == 0.5
    assert area(rows[0]) == pytest.approx((0.1 / 2 + 0.3 + 0.5 / 2) / 2)
    assert area(rows[1]) == pytest.approx(0.1 / 2 / 2)  # it failed: what it did not reach counts 0
    assert chosen_lr(rows, "rare", "bnpo") == 1e-4
    with pytest.raises(InputError, match=r"rare, bnpo: learning rate 0\.0004 was not tried yet; run --only tuning"):
        chosen_lr(rows[:-2], "rare", "bnpo")


def test_the_t_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        first = rng.normal(0.3, 1, size=12)
        second = np.zeros(12)
        mean, half = first.mean(), 2.2009852 * first.std(ddof=1) / np.sqrt(12)  # Student's t, 11 degrees of freedom
        covered += abs(mean - 0.3) < half
    difference = paired(first, second)
    assert (difference.low, difference.high) == pytest.approx((mean - half, mean + half), abs=1e-6)
    assert 0.94 < covered / 2000 < 0.96


def test_the_sign_flip_test_counts_all_signs():
    differences = np.array([0.5, -0.1, 0.4, 0.3, 0.2])
    signs = 1 - 2 * ((np.arange(32)[:, None] >> np.arange(5)) & 1)
    as_far = np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12
    assert sign_flip(differences) == pytest.approx(as_far.mean())
    assert sign_flip(np.zeros(5)) == 1


def test_signal_and_noise_of_gradients_that_are_known():
    rng = np.random.default_rng(0)
    mean, spread = rng.normal(size=50), rng.uniform(0.5, 2, size=50)
    trials = [noise.signal_and_noise(mean + spread * rng.normal(size=(20, 50))) for _ in range(400)]
    for estimates, truth in zip(np.transpose(trials), ((mean**2).sum(), (spread**2).sum()), strict=True):
        assert abs(estimates.mean() - truth) < 4 * estimates.std() / np.sqrt(len(estimates))


def test_sums_of_scores_make_the_gradient_of_the_loss(tmp_path):
    model = make_model(tmp_path, vocab_size=32, hidden_size=16)
    prompt, answers = [1, 2, 3], [[4, 5, 6], [7], [8, 9], [10, 11, 12, 13]]
    right = np.array([1, 0, 0, 1])
    sums = noise.score_sums(model, torch.Tensor.numpy, prompt, answers, right)[None]
    found = noise.batch_gradients(lambda q: np.array([[0.5, -0.5, -0.5, 0.5]]), right[None], sums, np.array([[0]]))
    loss = torch.zeros(())
    for answer, advantage in zip(answers, (0.5, -0.5, -0.5, 0.5), strict=True):
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        loss = loss + advantage / 4 * logits.log_softmax(-1)[range(len(answer)), answer].sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in gradients]).numpy()
    np.testing.assert_allclose(found[0], expected, atol=1e-6 * np.abs(expected).max())


def test_the_sketch_keeps_inner_products():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(20_000, generator=generator) for _ in range(2))
    y += 0.5 * x
    found = [sketch(x) @ sketch(y) for sketch in (noise.Sketch(20_000, 1024, seed) for seed in range(30))]
    bound = (2 * (x @ x) * (y @ y) / 1024).sqrt().item()
    assert abs(np.mean(found) - (x @ y).item()) < 4 * bound / np.sqrt(30)
    assert np.std(found) < 1.5 * bound


@dataclass(frozen=True)
class Short(StudyRun):
    """A run that stops after `steps`: until then it computes what the whole one does."""

    steps: int = 1

    def command(self) -> tuple[str, ...]:
        words = list(super().command())
        words[words.index("--steps") + 1] = str(self.steps)
        words[words.index("--eval-every") + 1] = "0"
        return tuple(words)


@pytest.mark.sampler
def test_runs_become_rows_whatever_comes_of_them_and_are_not_repeated(tmp_path):
    good = Short("main", "rare", "bnpo", ("--algo", "bnpo"), 1e-4, 0)
    bad = Short("main", "rare", "grpo", ("--algo", "grpo", "--rewards", "accuracy,nothing.py:none"), 1e-4, 0)
    rows = Rows(tmp_path / "rows.jsonl")
    run_side_by_side([good, bad], rows, tmp_path / "work", jobs=2)
    found = {row["method"]: row for row in rows.all}
    assert found["bnpo"]["ended"] == "done"
    assert len(found["bnpo"]["curves"]["grad_norm"]) == 1
    assert found["grpo"]["ended"].startswith("exit status 1")
    assert "nothing.py" in (tmp_path / "work" / f"{bad.name}.log").read_text()
    again = Rows(tmp_path / "rows.jsonl")
    assert again.all == rows.all
    run_side_by_side([good, bad], again, tmp_path / "work", jobs=2)
    assert len(again.all) == 2


@pytest.mark.sampler
@pytest.mark.skipif(arithmetic() != ARITHMETIC, reason=f"recorded with other arithmetic than {arithmetic()}")
def test_a_run_of_the_study_is_what_its_row_says(tmp_path):
    stored = Rows().all[0]
    place = (stored[key] for key in ("part", "regime", "method"))
    run = Short(*place, ("--algo", stored["method"]), stored["lr"], stored["seed"], steps=3)
    rows = Rows(tmp_path / "rows.jsonl")
    run_side_by_side([run], rows, tmp_path / "work", jobs=1)
    [row] = rows.all
    for name, curve in stored["curves"].items():
        assert row["curves"][name] == curve[:3], name


def test_the_report_is_what_the_rows_say(tmp_path):
    write_results(Rows().all, tmp_path / "results.md")
    assert (tmp_path / "results.md").read_text() == (ROOT / "docs" / "results.md").read_text()
    assert ROWS.stat().st_size < 5e6
