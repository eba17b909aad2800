"""The program `python -m bnpo.report` on handwritten runs: what it leaves out, prints and
refuses.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import fit_check as script
from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import ALGORITHMS, Method
from bnpo.config import flat_settings, parse_train_config
from bnpo.files import ROOT, InputError, file_hash, step_name, write_json, write_json_lines
from bnpo.report import __main__ as program
from bnpo.report.page import write_page
from bnpo.report.run_files import all_advantages
from browser import Visitor
from conftest import json_lines
from fit_check import beta_p_value, fitted_counts

WORDS = np.array([f"word{i}" for i in range(2000)])
M = 16
"""Answers to a question."""


def write_run(
    run: Path,
    batches: dict[int, np.ndarray],
    *flags: str,
    steps: int = 0,
    words: int = 5,
    lengths=None,
):
    """Write a run with the recorded answers of some steps, whose rewards [n, m] are `batches`.
    Return its folder.
    """
    rng, (n, m) = np.random.default_rng(0), next(iter(batches.values())).shape
    flags = (
        "--preset",
        "tiny",
        "--questions-per-step",
        str(n),
        "--samples-per-question",
        str(m),
        *flags,
    )
    config, _ = parse_train_config([*flags, "--output-dir", str(run)], has_cuda=False)
    names = (
        "grad_norm",
        "entropy",
        "answers/mean_tokens",
        "beta/alpha",
        "beta/beta",
        "beta/a",
        "beta/b",
    )
    names += (
        "seconds/generate",
        "seconds/update",
        "seconds/total",
        "sampler_learner_gap_mean",
        "reward/se",
    )
    lines = [
        {"step": step, "reward/mean": 0.25, **dict.fromkeys(names, step % 9 + 1)}
        for step in range(1, 1 + max(steps, *batches))
    ]
    lines[-1]["reward/mean"] = 0.5
    run.mkdir()
    write_json(run / "config.json", flat_settings(config) | {"answer_tags": False})
    write_json_lines(run / "metrics.jsonl", lines)
    for step, rewards in batches.items():
        tokens = np.full((n, m), words) if lengths is None else lengths
        values = compute_advantages(config.method, rewards[:, :, None], lengths=tokens).values
        rows = []
        for i, j in np.ndindex(n, m):
            question = {
                "id": f"q{i}",
                "prompt": "What is $3 + 4$?",
                "reference": "7",
                "cut_off": False,
            }
            answer = {
                "answer": " ".join(rng.choice(WORDS, words)) + " \\boxed{7}",
                "tokens": int(tokens[i, j]),
            }
            rows.append(
                question
                | answer
                | {"rewards": {"accuracy": rewards[i, j]}, "advantage": values[i, j]}
            )
        write_json_lines(run / "rollouts" / f"{step_name(step)}.jsonl", rows)
    return run


def with_right(*counts: int) -> np.ndarray:
    """Return rewards [n, M] with so many right answers to each question."""
    return (np.arange(M) < np.array(counts)[:, None]).astype(float)


@pytest.fixture
def run(tmp_path) -> Path:
    rewards = np.random.default_rng(0).integers(0, 2, (2, 10)).astype(float)
    return write_run(tmp_path / "run", {1: rewards, 3: rewards}, steps=4)


def test_a_long_run_says_what_is_left_out(browser, tmp_path):
    rewards = np.random.default_rng(0).integers(0, 2, (5, 10)).astype(float)
    run = write_run(
        tmp_path / "long", dict.fromkeys(range(1, 2001, 8), rewards), steps=2000, words=800
    )
    write_page(tmp_path / "long.html", [run])
    assert (tmp_path / "long.html").stat().st_size < 30e6
    seen = Visitor(browser, tmp_path / "long.html")
    seen.open()
    lost = re.search(r"Not shown: (\d+) of 250 files of rollouts\.", seen.message())
    assert 5_000 < (250 - int(lost[1])) * 50 <= 10_000
    seen.open("view=answers")
    assert seen.count() == (250 - int(lost[1])) * 50
    assert seen.complaints == []


@pytest.mark.program
def test_evaluations_by_subject_and_level_with_flips_in_both_directions(browser, tmp_path):
    parts = [("Algebra", 1), ("Algebra", 5), ("Geometry", 5)]
    problems = [{"id": f"p{i}", "problem": f"What is ${i}$?", "answer": str(i)} for i in range(3)]
    named = [
        problem | {"subject": s, "level": n}
        for problem, (s, n) in zip(problems, parts, strict=True)
    ]
    write_json_lines(tmp_path / "data.jsonl", named)
    suite = {
        "datasets": {"set": {"data": str(tmp_path / "data.jsonl"), "problems": 3, "repetitions": 1}}
    }
    for name, verdicts in {"base": (0, 1, 0), "trained": (1, 0, 0)}.items():
        usual = {"dataset": "set", "repetition": 0, "text": name, "answer": "7"}
        samples = [
            {"index": i, "id": f"p{i}", "correct": right} for i, right in enumerate(verdicts)
        ]
        write_json_lines(tmp_path / name / "samples.jsonl", [usual | sample for sample in samples])
        write_json(tmp_path / name / "protocol.json", {"suite": suite})
    write_page(tmp_path / "page.html", [tmp_path / "base", tmp_path / "trained"])
    seen = Visitor(browser, tmp_path / "page.html")
    seen.open()
    rows = [
        row.locator("th, td").all_text_contents()
        for row in seen.tab.locator("table").first.locator("tr").all()
    ]
    assert [(row[0], row[1], *row[5:]) for row in rows[1:]] == [
        ("Algebra", "2", "1", "1"),
        ("Geometry", "1", "0", "0"),
        ("level 1", "1", "1", "0"),
        ("level 5", "2", "0", "1"),
        ("set", "3", "1", "1"),
    ]
    assert sorted(seen.column("change")) == ["▲ gained", "▼ lost"]
    seen.choose("changed", "lost")
    assert seen.column("problem") == ["p1"]
    seen.tab.locator("table").last.get_by_text("p1").click()
    seen.settle()
    assert seen.tab.locator(".side .text").all_text_contents() == ["base", "trained"]
    assert seen.tab.locator(".asked math").count() == 1
    assert "✓ 1" in seen.tab.locator(".side").first.text_content()
    assert "✗ 0" in seen.tab.locator(".side").last.text_content()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"runs": ()}, "no folder is given. Name the folder of a run: python -m bnpo.report"),
        (
            {"runs": (Path("nowhere"),)},
            "nowhere: neither a run nor an evaluation; name a folder that train.py",
        ),
        (
            {"runs": (Path("nowhere"),), "text": True},
            "nowhere: has no metrics.jsonl with a step in it",
        ),
        ({"output": Path("/proc/page.html")}, "/proc/page.html: cannot be written"),
    ],
)
def test_what_cannot_be_shown_is_a_line_with_the_cure(run, flags, message):
    with pytest.raises(InputError, match=message):
        program.main(program.Args(**{"runs": (run,)} | flags))


@pytest.mark.program
def test_ids_that_questions_share_keep_their_answers_apart(browser, run):
    """Neighbours with one id: two different questions, and one question twice. Token data are
    found by place.
    """
    file = run / "rollouts" / "step-000001.jsonl"
    rows = json_lines(file)
    asked = ["first", "second", "second"]
    rows = [
        rows[0] | {"id": "q", "prompt": asked[place // 10], "tokens": place} for place in range(30)
    ]
    write_json_lines(file, rows)
    tokens = {
        "id": "q",
        "sample": 2,
        "place": 12,
        "texts": ["a"],
        "sampler": [-1.0],
        "learner": [-1.5],
    }
    write_json_lines(run / "tokens" / file.name, [tokens])
    (run / "rollouts" / "step-000003.jsonl").unlink()
    write_page(run / "page.html", [run])
    seen = Visitor(browser, run / "page.html")
    seen.open("view=answers")
    assert seen.message() == "30 of 30 answers"
    assert seen.tab.evaluate("data.questions.map((question) => question.prompt)") == [
        "first",
        "second",
    ]
    answers = seen.tab.evaluate("data.rows")
    assert [answer["question"] for answer in answers] == [0] * 10 + [1] * 20
    assert [answer["sample"] for answer in answers] == [*range(10), *range(20)]
    assert [answer["gap"] for answer in answers if answer["gap"]] == [0.5]
    assert seen.tab.evaluate("textOf(data.rows[12])")[2]["texts"] == ["a"]


@pytest.mark.program
def test_a_run_that_has_only_begun(browser, run):
    (run / "metrics.jsonl").write_text('{"step": 1, "rew')
    for file in (run / "rollouts").iterdir():
        file.unlink()
    write_page(run / "page.html", [run])
    seen = Visitor(browser, run / "page.html")
    for view in ("curves", "density", "estimators", "answers", "questions", "evaluations"):
        seen.open(f"view={view}")
    seen.press("n")
    assert seen.complaints == []


def test_vendored_files_are_what_was_released():
    folder = Path(program.__file__).parent / "vendor"
    rows = [
        line.split(" | ")
        for line in (folder / "README.md").read_text().splitlines()
        if line.endswith(" |")
    ][2:]
    listed = {row[0].removeprefix("| "): row[3].removesuffix(" |") for row in rows}
    found = {
        file.name: file_hash(file)
        for file in folder.iterdir()
        if file.suffix in (".js", ".css", ".woff2")
    }
    assert listed == found


def test_fitted_counts_have_the_moments_of_the_counts():
    right = np.random.default_rng(0).binomial(M, np.random.default_rng(1).beta(1, 2, size=50))
    k, chances = np.arange(M + 1), fitted_counts(right, M)
    mean = (k * chances).sum()
    assert mean == pytest.approx(right.mean())
    assert ((k - mean) ** 2 * chances).sum() == pytest.approx(right.var(ddof=1), rel=0.01)
    assert fitted_counts(np.array([0, 0]), M).tolist() == [1.0] + [0.0] * M
    np.testing.assert_allclose(
        fitted_counts(np.array([0, M, M, M]), M)[[0, M]], [0.25, 0.75], atol=1e-5
    )


@pytest.mark.parametrize(("a", "b"), [(0.7, 1.3), (5, 5)])
def test_p_values_keep_their_level_if_a_beta_is_true(a, b):
    rng = np.random.default_rng(0)
    p_values = np.array(
        [beta_p_value(rng.binomial(M, rng.beta(a, b, 24)), M, 39, seed) for seed in range(200)]
    )
    assert (p_values <= 0.05).mean() < 0.1
    assert 0.4 < p_values.mean() < 0.65


def test_p_values_are_small_if_no_beta_fits():
    """Half of the questions are solved half of the time, the others always or never."""
    rng = np.random.default_rng(0)
    p = rng.choice([0, 0.5, 1], p=[0.25, 0.5, 0.25], size=(50, 64))
    assert np.mean([beta_p_value(right, M, 99) <= 0.05 for right in rng.binomial(M, p)]) > 0.9


def test_bias_and_deviation_of_the_fit(capsys):
    """Sample moments take noise for spread, so their a + b is too small; corrected ones are not,
    and scatter more.
    """
    args = script.Args(batches=400)
    sample, corrected = (
        script.simulate_fits(5, 5, moments, args)[:, 0] for moments in ("sample", "corrected")
    )
    assert sample.mean() < 1 + 5 / 3 - 0.4 < corrected.mean()
    assert sample.std() < corrected.std()
    script.main(script.Args(moments=True, batches=20))
    page = (ROOT / "docs" / "estimators.md").read_text(encoding="utf-8")
    for moments in ("sample", "corrected"):
        fits = script.simulate_fits(5, 1.5, moments, script.Args())[:, :2]
        bias, deviation = fits.mean(axis=0) - [1 + 5 / 3, 1.5], fits.std(axis=0, ddof=1)
        cells = [f"{x:+.2f} ± {y:.2f}" for x, y in zip(bias, deviation, strict=True)]
        assert " | ".join(cells) in next(
            line for line in page.splitlines() if line.startswith("| 5 | 1.5 |")
        )
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]) == 9


@pytest.mark.parametrize("algo", ["bnpo", "opo", "shrinkage"])
def test_what_every_estimator_would_have_made_of_a_batch(tmp_path, algo):
    """The estimator of the run has its own advantages again. Others have those of the real
    functions.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, size=(6, M))
    rewards = with_right(0, 2, 5, 8, 13, 16)
    folder = write_run(tmp_path / "run", {1: rewards}, "--algo", algo, lengths=lengths)
    rows = json_lines(folder / "rollouts" / "step-000001.jsonl")
    config = json.loads((folder / "config.json").read_text())
    assert all_advantages(rows[:-1], config) is None  # the batch is not whole
    found = all_advantages(rows, config)
    assert found.keys() == ALGORITHMS.keys() - {"remax", "beta", "weight"}
    np.testing.assert_allclose(
        found[algo], [row["advantage"] for row in rows], rtol=5e-5, atol=1e-12
    )
    for name in ("grpo", "eb", "reinforce_pp"):
        expected = compute_advantages(Method(name), rewards[:, :, None], lengths=lengths).values
        np.testing.assert_allclose(found[name], expected.ravel(), rtol=5e-5, atol=1e-12)


@pytest.mark.program
def test_the_page_shows_them(browser, tmp_path):
    batches = {1: with_right(0, 2, 5, 8), 2: with_right(1, 1, 4, 16)}
    rloo = compute_advantages(Method("rloo"), batches[2][:, :, None]).values
    folder = write_run(tmp_path / "run", batches, "--algo", "grpo")
    write_page(folder / "page.html", [folder])
    seen = Visitor(browser, folder / "page.html")
    seen.open("view=density&step=2")
    caption = seen.tab.locator("figure").first.text_content()
    assert "bars: density of the accuracies of 4 questions, step 2" in caption
    seen.open("view=estimators&step=2")
    assert "Step 2: the advantages that other estimators would have given" in seen.message()
    rows = [row.locator("th, td").all_text_contents() for row in seen.tab.locator("table tr").all()]
    heads, cosines, *questions = rows
    assert heads[:3] == ["question", "reward: accuracy", "answers"]
    assert (cosines[0], cosines[heads.index("grpo")]) == ("cosine", "1")
    assert len(questions) == 7  # two kinds of answers to three questions, one to the last
    wrong = questions[0]
    assert (wrong[0], wrong[1], wrong[2]) == ("q0", "0", "15")
    assert wrong[heads.index("grpo")] == "−0.25"
    assert wrong[heads.index("rloo")] == "−0.0667"
    own = np.array(
        [row["advantage"] for row in json_lines(folder / "rollouts" / "step-000002.jsonl")]
    )
    cosine = (rloo.ravel() * own).sum() / np.linalg.norm(rloo) / np.linalg.norm(own)
    assert float(cosines[heads.index("rloo")]) == pytest.approx(cosine, abs=5e-4)
    assert seen.complaints == []
