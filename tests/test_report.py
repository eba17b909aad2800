"""The program `python -m runpage` on handwritten runs: what it leaves out, prints and
refuses.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy

import fit_check as script
from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.estimators import Method
from bnpo.algorithm.registry import ESTIMATORS
from bnpo.config import flat_settings, parse_train_config
from bnpo.files import ROOT, InputError, file_hash, step_name, write_json, write_json_lines
from bnpo.grading.rewards import reward_name
from browser import Visitor
from conftest import json_lines
from fit_check import beta_p_value, fitted_counts
from runpage import __main__ as program
from runpage.page import RunPage, write_page
from runpage.run_files import all_advantages, with_trained_mean

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
    """Write a run with the recorded answers of some steps, whose rewards [n, m] or [n, m, K] are
    `batches`. Return its folder.
    """
    rng, (n, m) = np.random.default_rng(0), next(iter(batches.values())).shape[:2]
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
    names = list(map(reward_name, config.data.rewards))
    for step, batch in batches.items():
        rewards = batch.reshape(n, m, -1)
        tokens = np.full((n, m), words) if lengths is None else lengths
        values = compute_advantages(config.method, rewards, lengths=tokens).values
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
                | {
                    "rewards": dict(zip(names, rewards[i, j].tolist(), strict=True)),
                    "advantage": values[i, j],
                }
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
        ({"runs": ()}, "no folder is given. Name the folder of a run: python -m runpage"),
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
    assert seen.message().startswith("30 of 30 answers. Groups: 2, of which 0 mixed.")
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
    assert found.keys() == ESTIMATORS.keys() - {"remax", "beta", "weight"}
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


VIEWS = ("curves", "density", "estimators", "answers", "questions", "evaluations")


def one_page(browser, *folders: Path) -> Visitor:
    """Return a visitor of the page of some runs and evaluations."""
    write_page(folders[0] / "page.html", folders)
    return Visitor(browser, folders[0] / "page.html")


@pytest.mark.program
def test_rewards_with_weights_are_shown_as_they_are_trained(browser, tmp_path):
    """Every wrong answer has the format's reward, and some right ones do not."""
    accuracy = with_right(2, 5, 12)  # [n, M]
    rewards = np.stack([accuracy, np.where(np.arange(M) < 1, 0, 1) * np.ones((3, 1))], axis=2)
    flags = ("--rewards", "accuracy,format", "--reward-weights", "1", "0.2")
    run = write_run(tmp_path / "run", {1: rewards}, *flags)
    means = rewards.mean(axis=(0, 1))
    line = json_lines(run / "metrics.jsonl")[0]
    line |= {"reward/mean": rewards.mean(), "reward/accuracy": means[0], "reward/format": means[1]}
    method = Method("bnpo", reward_weights=(1, 0.2))
    [fit] = compute_advantages(method, rewards).fits
    line |= {"beta/a": fit.a, "beta/b": fit.b, "beta/alpha": fit.alpha, "beta/beta": fit.beta}
    write_json_lines(run / "metrics.jsonl", [line])
    trained = rewards @ [1 / 1.2, 0.2 / 1.2]  # [n, M]
    seen = one_page(browser, run)
    seen.open()
    plots = seen.plots()
    assert plots["reward/mean"][1] == [pytest.approx(trained.mean())]
    assert plots["reward/accuracy"][1] == [pytest.approx(means[0])]
    assert plots["reward/format"][1] == [pytest.approx(means[1])]
    caption = seen.tab.text_content("[data-metric='reward/mean'] figcaption p")
    assert "weighted 1 × accuracy + 0.2 × format" in caption
    script = "[...data.groups.values()].map(group => [accuracy(group), rightShare(group)])"
    shown = np.array(seen.tab.evaluate(script))
    np.testing.assert_allclose(shown[:, 0], trained.mean(axis=1))
    np.testing.assert_allclose(shown[:, 1], accuracy.mean(axis=1))
    script = (
        "[...data.groups.values()].map(group => group.map(r => "
        "[(r.reward - accuracy(group)) * weight(accuracy(group), data.runs[0].fits[''][1]), "
        "r.advantage]))"
    )
    computed, trained_on = np.array(seen.tab.evaluate(script)).reshape(-1, 2).T
    np.testing.assert_allclose(computed, trained_on, rtol=1e-9)
    seen.open("view=questions&question=q0&step=1")
    titles = seen.tab.locator(".kinds h3").all_text_contents()
    assert titles == ["2 × 7, right", "14 × 7, wrong"]
    wrong = seen.tab.locator(".kinds > section").last.locator(".card")
    assert wrong.count() == 14
    assert set(wrong.evaluate_all("cards => cards.map(card => card.className.trim())")) == {
        "card wrong"
    }
    assert "✗ 0.167 · accuracy 0, format 1" in wrong.first.text_content()
    assert seen.complaints == []


def test_the_weighted_mean_of_new_runs_is_not_changed():
    config = {"rewards": ["accuracy", "format"], "reward_weights": [1, 0.2]}
    parts = {"reward/accuracy": 0.5, "reward/format": 1.0}
    new = {"reward/mean": 0.7 / 1.2, "reward/se": 0.1, **parts}
    assert with_trained_mean(new, config) == new
    old = with_trained_mean({"reward/mean": 0.75, "reward/se": 0.1, **parts}, config)
    assert old["reward/mean"] == pytest.approx(0.7 / 1.2)
    assert old["reward/se"] is None
    plain = {"reward/mean": 0.75, "reward/se": 0.1, **parts}
    assert with_trained_mean(plain, config | {"reward_weights": None}) == plain
    assert with_trained_mean({"eval/average": 0.5}, config) == {"eval/average": 0.5}


@pytest.mark.program
def test_an_answer_that_did_not_count_is_in_no_statistic(browser, tmp_path):
    run = write_run(tmp_path / "run", {1: with_right(8, 4)})
    file = run / "rollouts" / "step-000001.jsonl"
    rows = json_lines(file)
    for row in rows[:4]:  # right ones of the first question
        row |= {"rewards": {"accuracy": 0.0}, "failed": True, "advantage": 0.0}
    write_json_lines(file, rows)
    seen = one_page(browser, run)
    seen.open("view=questions&question=q0&step=1")
    assert "Step 1: p = 0.333" in seen.tab.locator("h2").all_text_contents()
    titles = seen.tab.locator(".kinds h3").all_text_contents()
    assert titles == ["4 × 7, right", "8 × 7, wrong", "4 × 7, not graded"]
    assert seen.complaints == []


@pytest.mark.program
def test_answers_are_grouped_and_mixed_questions_come_first(browser, tmp_path):
    run = write_run(tmp_path / "run", {1: with_right(0, 15, 16, 3)})
    file = run / "rollouts" / "step-000001.jsonl"
    rows = json_lines(file)
    for row in rows:
        number = 9 if row["rewards"]["accuracy"] else 11
        row |= {"prompt": f"{row['id']}: 3 * 3 = ?", "reference": "9"}
        row["answer"] = f"It is \\boxed{{{number}}}"
    write_json_lines(file, rows)
    seen = one_page(browser, run)
    seen.open("view=answers")
    assert seen.message().startswith("64 of 64 answers. Groups: 4, of which 2 mixed.")
    cards = seen.tab.locator("article.group")
    assert [title[:2] for title in cards.locator("h2").all_text_contents()] == [
        "q1",
        "q3",
        "q0",
        "q2",
    ]
    assert cards.first.locator("li").all_text_contents() == ["15 × 9, right", "1 × 11, wrong"]
    assert "Reference: 9" in cards.first.text_content()
    cards.first.locator("a").click()
    seen.settle()
    assert seen.tab.locator(".kinds h3").all_text_contents() == ["15 × 9, right", "1 × 11, wrong"]
    assert seen.tab.locator(".kinds .card").count() == 2
    assert "same text × 15" in seen.tab.locator(".kinds .card").first.text_content()
    assert seen.complaints == []


@pytest.mark.program
def test_findings_and_configuration_are_on_top(browser, run):
    write_json(run / "findings.json", [{"kind": "cut_off", "text": "97% of <b> are cut off"}])
    seen = one_page(browser, run)
    seen.open()
    assert seen.tab.locator(".findings li").all_text_contents() == ["97% of <b> are cut off"]
    shown = dict(
        zip(
            seen.tab.locator(".facts dt").all_text_contents(),
            seen.tab.locator(".facts dd").all_text_contents(),
            strict=True,
        )
    )
    assert shown["algo"] == "bnpo"
    assert shown["model"] == "data/tiny-model"
    assert shown["lr"] == "0.0001"
    assert shown["questions_per_step *"] == "2"  # the preset has another value
    tops = [
        seen.tab.locator(f"#view {part}").first.bounding_box()["y"]
        for part in (".findings", ".facts", "figure")
    ]
    assert tops == sorted(tops)


@pytest.mark.program
def test_no_object_and_no_hash_is_shown(browser, tmp_path):
    """Two runs on other data, of which config.json has hashes, and two evaluations."""
    folders, digest = [], "0123456789abcdef" * 4
    for i, algo in enumerate(("bnpo", "grpo")):
        run = write_run(tmp_path / algo, {1: with_right(3, 5)}, "--algo", algo)
        config = json.loads((run / "config.json").read_text())
        facts = {
            "data_sources": [{"source": "a.jsonl", "sha256": digest[i:]}],
            "evaluated": {"datasets": {}, "sha256": digest[i:]},
        }
        write_json(run / "config.json", config | facts)
        samples = [{"dataset": "set", "repetition": 0, "text": "7", "answer": "7"}]
        samples = [samples[0] | {"index": 0, "id": "p0", "correct": bool(i)}]
        evaluation = tmp_path / f"quick-{digest[i : i + 8]}"
        write_json_lines(evaluation / "samples.jsonl", samples)
        suite = {"datasets": {"set": {"data": "x", "problems": 1, "sha256": digest[i:]}}}
        protocol = {
            "ckpt": f"checkpoints/{algo}",
            "checkpoint_sha256": digest[i:],
            "suite": suite | {"temperature": 0.6, "system_prompt": "Think of it. " * 90},
            "versions": {"torch": "2"},
            "grader": {"rule": "default", "seconds": [5]},
        }
        write_json(evaluation / "protocol.json", protocol)
        folders += [run, evaluation]
    seen = one_page(browser, *folders)
    for view in VIEWS:
        seen.open(f"view={view}&question=q0&step=1")
        seen.tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        text = seen.tab.inner_text("body")
        assert "[object Object]" not in text
        assert "undefined" not in text
        assert not re.search("[0-9a-f]{8}", text)
        if view == "curves":
            assert "data_sources, evaluated" in text  # what differs, but not its hash
    rows = [row.locator("th, td").all_text_contents() for row in seen.tab.locator("table tr").all()]
    assert ["setting", "quick", "quick (2)"] in rows
    assert ["model", "checkpoints/bnpo", "checkpoints/grpo"] in rows
    assert ["temperature", "0.6", "0.6"] in rows
    assert ["grader", *["rule default, seconds 5"] * 2] in rows
    [prompt] = [row[1] for row in rows if row[0] == "system_prompt"]
    assert len(prompt) < 80


@pytest.mark.program
def test_the_fit_stands_beside_the_density_that_divides(browser, run):
    lines = json_lines(run / "metrics.jsonl")
    fit = {"beta/a": 0.9, "beta/b": 3.0, "beta/alpha": 1.3, "beta/beta": 2.0}
    lines[0] |= fit | {"beta/E": 3 / 13, "beta/V": 0.04}
    lines[2] |= dict.fromkeys(("beta/a", "beta/b"), 0.0) | {"beta/alpha": 1.0, "beta/beta": 1.0}
    write_json_lines(run / "metrics.jsonl", lines)
    seen = one_page(browser, run)
    seen.open("view=density&step=1")
    p, divisor, fitted = seen.plots()["density"]
    assert divisor == pytest.approx(scipy.stats.beta.pdf(p, 1.3, 2).tolist())
    assert fitted == pytest.approx(scipy.stats.beta.pdf(p, 0.9, 3).tolist())
    legend = seen.tab.text_content("[data-metric=density] .u-legend")
    assert "divisor: Beta(1.3, 2)" in legend
    assert "fit: Beta(0.9, 3)" in legend
    assert "The fit Beta(a, b) = Beta(0.9, 3) has the mean 0.231" in seen.message()
    seen.open("view=density&step=3")
    assert len(seen.plots()["density"]) == 2
    assert "No Beta distribution fits" in seen.message()
    assert seen.complaints == []


@pytest.mark.program
def test_axes_of_constants_smoothing_and_logarithms(browser, run):
    lines = [
        {"step": i, "reward/mean": 0.0, "grad_norm": 10.0**i, "lr": 1e-6, "entropy": i - 2}
        for i in range(1, 9)
    ]
    write_json_lines(run / "metrics.jsonl", lines)
    seen = one_page(browser, run)
    seen.open()
    scale = "metric => document.querySelector(`[data-metric='${metric}']`).plot.scales.y"
    for metric, least, most in (("reward/mean", -0.1, 1), ("lr", 0, 1.5e-6)):
        axis = seen.tab.evaluate(scale, metric)
        assert least <= axis["min"] <= 0, metric
        assert axis["max"] >= most, metric
    seen.choose("smooth", "5")
    assert seen.plots()["entropy"][1] == [-1, -0.5, 0, 0.5, 1, 2, 3, 4]
    seen.choose("axis", "log")
    assert seen.tab.evaluate(scale, "grad_norm")["distr"] == 3
    assert seen.tab.evaluate(scale, "entropy")["distr"] == 1  # it has values below 0
    assert seen.complaints == []


@pytest.mark.program
def test_the_page_of_a_run_that_goes_on_is_read_again(browser, run):
    write_page(run / "page.html", [run])
    seen = Visitor(browser, run / "page.html")
    seen.tab.clock.install()
    seen.open("view=answers")
    assert "reloads every 30 s" in seen.tab.text_content("#made")
    lines = json_lines(run / "metrics.jsonl")
    write_json_lines(run / "metrics.jsonl", [*lines, lines[-1] | {"step": 5}])
    write_json(run / "end.json", {"step": 5, "why": "done"})
    write_page(run / "page.html", [run])
    seen.tab.mouse.move(5, 5)
    seen.tab.clock.fast_forward(29_000)
    seen.tab.mouse.move(9, 9)  # somebody is there
    seen.tab.clock.fast_forward(2_000)
    assert seen.tab.evaluate("data.runs[0].steps.length") == 4
    seen.tab.clock.fast_forward(31_000)
    seen.tab.wait_for_function("() => data?.runs[0].steps.length === 5")
    seen.settle()
    assert seen.tab.text_content("h1") == "Answers"  # the same view
    assert "reloads" not in seen.tab.text_content("#made")  # now the run has ended
    assert seen.complaints == []


def test_a_page_that_cannot_be_written_is_a_line_and_ends_nothing(run, capsys):
    page = RunPage(run)
    page.refresh()
    written = (run / "report.html").stat().st_mtime_ns
    assert capsys.readouterr().out == ""
    page.refresh()  # at once: it would take more than its share of the time
    assert (run / "report.html").stat().st_mtime_ns == written
    (run / "config.json").write_text("{")
    page.write()
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("the page was not written (InputError: ")
    assert line.endswith(f"Try again: python -m runpage {run}")
    assert (run / "report.html").stat().st_mtime_ns == written
