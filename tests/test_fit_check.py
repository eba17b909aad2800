"""Whether a Beta distribution fits: its p-values, the script, and what other estimators would have made of a batch."""

import importlib.util
import json

import numpy as np
import pytest
from scipy.stats import betabinom

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import ALGORITHMS, Method
from bnpo.config import flat_settings, parse_train_config
from bnpo.files import ROOT, InputError, write_json, write_json_lines
from bnpo.report.page import write_page
from bnpo.report.run_files import counterfactual, read_batch
from browser import Visitor
from paper.goodness import beta_p_value, distance, fitted_counts

SPEC = importlib.util.spec_from_file_location("fit_check", ROOT / "scripts" / "fit_check.py")
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)
M = 16


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a run whose batches have the given counts of right answers [steps][n]."""

    def run(counts, *flags, lengths=None):
        folder = tmp_path / "run"
        flags = ("--preset", "tiny", *flags, "--samples-per-question", str(M), "--output-dir", str(folder))
        config, _ = parse_train_config(list(flags), has_cuda=False)
        folder.mkdir()
        write_json(folder / "config.json", flat_settings(config) | {"answer_tags": False})
        lines = [{"step": step, "reward/mean": 0.5} for step in range(1, 1 + len(counts))]
        write_json_lines(folder / "metrics.jsonl", lines)
        for step, right in enumerate(counts, start=1):
            rewards = (np.arange(M) < np.array(right)[:, None]).astype(float)[:, :, None]
            tokens = np.ones(rewards.shape[:2], int) if lengths is None else lengths
            values = compute_advantages(config.method, rewards, lengths=tokens).values
            rows = [
                {
                    "id": f"q{i}",
                    "tokens": int(tokens[i, j]),
                    "rewards": {"accuracy": rewards[i, j, 0]},
                    **{"prompt": f"What is {i}?", "reference": "7", "answer": "\\boxed{7}", "cut_off": False},
                    "advantage": values[i, j],
                }
                for i in range(len(right))
                for j in range(M)
            ]
            write_json_lines(folder / "rollouts" / f"step-{step:06d}.jsonl", rows)
        return folder

    return run


def test_fitted_counts_have_the_moments_of_the_counts():
    right = np.random.default_rng(0).binomial(M, np.random.default_rng(1).beta(1, 2, size=50))
    k, chances = np.arange(M + 1), fitted_counts(right, M)
    mean = (k * chances).sum()
    assert mean == pytest.approx(right.mean())
    assert ((k - mean) ** 2 * chances).sum() == pytest.approx(right.var(ddof=1), rel=0.01)
    assert fitted_counts(np.array([0, 0]), M).tolist() == [1.0] + [0.0] * M
    np.testing.assert_allclose(fitted_counts(np.array([0, M, M, M]), M)[[0, M]], [0.25, 0.75], atol=1e-5)


def test_the_distance_of_counts_from_their_own_shares_is_zero():
    right = np.array([0, 1, 1, 3])
    assert distance(right, np.array([0.25, 0.5, 0, 0.25])) == 0


@pytest.mark.parametrize(("a", "b"), [(0.7, 1.3), (5, 5)])
def test_p_values_keep_their_level_if_a_beta_is_true(a, b):
    rng = np.random.default_rng(0)
    p_values = np.array([beta_p_value(rng.binomial(M, rng.beta(a, b, 24)), M, 39, seed) for seed in range(200)])
    assert (p_values <= 0.05).mean() < 0.1
    assert 0.4 < p_values.mean() < 0.65


def test_p_values_are_small_if_no_beta_fits():
    """Half of the questions are solved half of the time, the others always or never."""
    rng = np.random.default_rng(0)
    p = rng.choice([0, 0.5, 1], p=[0.25, 0.5, 0.25], size=(50, 64))
    assert np.mean([beta_p_value(right, M, 99) <= 0.05 for right in rng.binomial(M, p)]) > 0.9


def test_the_script_on_a_run(write, capsys):
    rng = np.random.default_rng(0)
    folder = write([*betabinom.rvs(M, 1, 2, size=(3, 16), random_state=rng), [0] * 16])
    script.main(script.Args((folder,), resamples=19))
    out = capsys.readouterr().out
    lines = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    assert [line[1].strip() for line in lines] == ["1", "2", "3", "4"]
    assert lines[3][-2].strip() == "-"
    assert "of 3 batches have p <= 0.05" in out


def test_bias_and_deviation_of_the_fit(capsys):
    """Sample moments take noise for spread, so their a + b is too small; corrected ones are not, and scatter more."""
    args = script.Args(batches=400)
    sample, corrected = (script.simulate_fits(5, 5, moments, args)[:, 0] for moments in ("sample", "corrected"))
    assert sample.mean() < 1 + 5 / 3 - 0.4 < corrected.mean()
    assert sample.std() < corrected.std()
    script.main(script.Args(moments=True, batches=20))
    page = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    for moments in ("sample", "corrected"):
        fits = script.simulate_fits(5, 1.5, moments, script.Args())[:, :2]
        bias, deviation = fits.mean(axis=0) - [1 + 5 / 3, 1.5], fits.std(axis=0, ddof=1)
        cells = [f"{x:+.2f} ± {y:.2f}" for x, y in zip(bias, deviation, strict=True)]
        assert " | ".join(cells) in next(line for line in page.splitlines() if line.startswith("| 5 | 1.5 |"))
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]) == 9


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "nothing to do: name the folder of a run"),
        ({"runs": ("nowhere",)}, "neither a run nor an evaluation"),
        ({"moments": True, "answers": 1}, "--answers: is 1, must be at least 2"),
    ],
)
def test_bad_arguments(args, message, tmp_path):
    args = args | {"runs": tuple(tmp_path / name for name in args.get("runs", ()))}
    with pytest.raises(InputError, match=message):
        script.main(script.Args(**args))


def test_a_run_without_batches_is_named(write):
    with pytest.raises(InputError, match="has no whole batch with rewards of 0 and 1; train with --rollouts-every 1"):
        script.main(script.Args((write([]),)))


def test_batches_that_are_not_whole_are_left_out(write):
    folder = write([[1, 2, 3]])
    file = folder / "rollouts" / "step-000001.jsonl"
    assert read_batch(file, M).ids == ["q0", "q1", "q2"]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    assert read_batch(file, M) is None


@pytest.mark.parametrize("algo", ["bnpo", "opo", "shrinkage"])
def test_what_every_estimator_would_have_made_of_a_batch(write, algo):
    """The estimator of the run has its own advantages again, with cosine 1. Others have those of the real functions."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, size=(6, M))
    folder = write([[0, 2, 5, 8, 13, 16]], "--algo", algo, lengths=lengths)
    config = json.loads((folder / "config.json").read_text())
    batch = read_batch(folder / "rollouts" / "step-000001.jsonl", M)
    found = counterfactual(batch, config)
    assert set(found["estimators"]) == ALGORITHMS.keys() - {"remax", "beta", "weight"}
    cosines = dict(zip(found["estimators"], found["cosines"], strict=True))
    assert cosines[algo] == pytest.approx(1)
    for name in ("grpo", "eb", "reinforce_pp"):
        values = compute_advantages(Method(name), batch.rewards, lengths=lengths).values
        expected = (values * batch.advantages).sum() / np.linalg.norm(values) / np.linalg.norm(batch.advantages)
        assert cosines[name] == pytest.approx(expected)
        place = found["estimators"].index(name)
        for question, reward, count, advantages in found["questions"]:
            i = batch.ids.index(question)
            same = batch.rewards[i, :, 0] == reward[0]
            assert count == same.sum()
            np.testing.assert_allclose(values[i, same], advantages[place], rtol=5e-3, atol=1e-12)


@pytest.mark.program
def test_the_page_shows_them(browser, write):
    folder = write([[0, 2, 5, 8], [1, 1, 4, 16]], "--algo", "grpo")
    write_page(folder / "page.html", [folder])
    seen = Visitor(browser, folder / "page.html")
    seen.open("view=density&step=2")
    caption = seen.tab.locator("figure").first.text_content()
    assert "bars: density of the accuracies of 4 questions, step 2" in caption
    seen.open("view=estimators&step=2")
    assert "Step 2: the advantages that other estimators would have given" in seen.message()
    rows = [row.locator("th, td").all_text_contents() for row in seen.tab.locator("table tr").all()]
    heads, cosines, *questions = rows
    assert (heads[:3], cosines[0], cosines[heads.index("grpo")]) == (
        ["question", "reward: accuracy", "answers"],
        "cosine",
        "1",
    )
    assert len(questions) == 7  # two kinds of answers to three questions, one to the last
    wrong = questions[0]
    assert (wrong[0], wrong[1], wrong[2]) == ("q0", "0", "15")
    assert wrong[heads.index("grpo")] == "−0.25"
    assert wrong[heads.index("rloo")] == "−0.0667"
    assert seen.complaints == []
