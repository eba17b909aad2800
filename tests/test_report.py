"""The program `python -m bnpo.report` on handwritten runs: what it leaves out, prints and refuses."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from bnpo.config import flat_settings, parse_train_config
from bnpo.files import file_hash, step_name, write_json, write_json_lines
from bnpo.report import __main__ as program
from bnpo.report.page import write_page
from bnpo.report.run_files import read_answers
from browser import Visitor
from conftest import json_lines

WORDS = np.array([f"word{i}" for i in range(2000)])


def write_run(run: Path, steps: int, recorded: int, groups: int, words: int) -> Path:
    """Write a run of `steps` steps with recorded answers of `recorded` of them, to `groups` questions each."""
    rng, m = np.random.default_rng(0), 10
    flags = ["--preset", "tiny", "--questions-per-step", str(groups), "--samples-per-question", str(m)]
    config, _ = parse_train_config([*flags, "--output-dir", str(run)], has_cuda=False)
    names = ("grad_norm", "entropy", "answers/mean_tokens", "beta/alpha", "beta/beta", "beta/a", "beta/b")
    names += ("seconds/generate", "seconds/update", "seconds/total", "sampler_learner_gap_mean", "reward/se")
    lines = [{"step": 1 + step, "reward/mean": 0.25, **dict.fromkeys(names, 1 + step % 9)} for step in range(steps)]
    lines[-1]["reward/mean"] = 0.5
    run.mkdir()
    write_json(run / "config.json", flat_settings(config) | {"answer_tags": False})
    write_json_lines(run / "metrics.jsonl", lines)
    for step in range(1, 1 + steps, steps // recorded):
        rows = []
        for place in range(groups * m):
            answer = " ".join(rng.choice(WORDS, words)) + " \\boxed{7}"
            question = {"id": f"q{place // m}", "prompt": "What is $3 + 4$?", "reference": "7"}
            right = float(rng.random() < 0.5)
            row = {"answer": answer, "tokens": words, "rewards": {"accuracy": right}, "cut_off": False}
            rows.append(question | row | {"advantage": right - 0.5})
        write_json_lines(run / "rollouts" / f"{step_name(step)}.jsonl", rows)
    return run


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", steps=4, recorded=2, groups=2, words=5)


def test_a_long_run_says_what_is_left_out_and_how_to_choose(browser, tmp_path):
    """pytest -s prints the seconds that this takes, which depend on the load of the machine."""
    run = write_run(tmp_path / "long", steps=2000, recorded=250, groups=5, words=800)
    started = time.perf_counter()
    write_page(tmp_path / "long.html", [run])
    made = time.perf_counter() - started
    size = (tmp_path / "long.html").stat().st_size
    seen = Visitor(browser, tmp_path / "long.html")
    started = time.perf_counter()
    seen.open()
    opened = time.perf_counter() - started
    print(f"12,500 answers: made in {made:.1f} s, {size / 1e6:.1f} MB, open in {opened:.2f} s")
    assert size < 30e6
    lost = re.search(r"Not shown: (\d+) of 250 answer files; choose others with --steps 41 60", seen.message())
    assert 5_000 < (250 - int(lost[1])) * 50 <= 10_000
    seen.open("view=answers")
    assert seen.count() == (250 - int(lost[1])) * 50
    assert seen.complaints == []


@pytest.mark.program
def test_evaluations_by_subject_and_level_with_flips_in_both_directions(browser, tmp_path):
    parts = [("Algebra", 1), ("Algebra", 5), ("Geometry", 5)]
    problems = [{"id": f"p{i}", "problem": f"What is ${i}$?", "answer": str(i)} for i in range(3)]
    named = [problem | {"subject": s, "level": n} for problem, (s, n) in zip(problems, parts, strict=True)]
    write_json_lines(tmp_path / "data.jsonl", named)
    suite = {"datasets": {"set": {"data": str(tmp_path / "data.jsonl"), "problems": 3, "repetitions": 1}}}
    for name, verdicts in {"base": (0, 1, 0), "trained": (1, 0, 0)}.items():
        usual = {"dataset": "set", "repetition": 0, "text": name, "answer": "7"}
        samples = [
            {"index": i, "id": f"p{i}", "correct": right, "verdicts": {"default": right == 1, "paper": right > i}}
            for i, right in enumerate(verdicts)
        ]
        write_json_lines(tmp_path / name / "samples.jsonl", [usual | sample for sample in samples])
        write_json(tmp_path / name / "protocol.json", {"suite": suite})
    write_page(tmp_path / "page.html", [tmp_path / "base", tmp_path / "trained"])
    seen = Visitor(browser, tmp_path / "page.html")
    seen.open()
    rows = [row.locator("th, td").all_text_contents() for row in seen.tab.locator("table").first.locator("tr").all()]
    assert [(row[0], row[1], *row[5:]) for row in rows[1:]] == [
        ("Algebra", "2", "1", "1"),
        ("Geometry", "1", "0", "0"),
        ("level 1", "1", "1", "0"),
        ("level 5", "2", "0", "1"),
        ("set", "3", "1", "1"),
    ]
    assert sorted(seen.column("change")) == ["▲ gained", "▼ lost"]
    assert "The rules of grading differ on 1 answers." in seen.message()
    seen.choose("changed", "differ")
    assert seen.column("problem") == ["p1"]
    seen.tab.locator("table").last.get_by_text("p1").click()
    seen.settle()
    assert seen.tab.locator(".side .text").all_text_contents() == ["base", "trained"]
    assert seen.tab.locator(".asked math").count() == 1
    assert "default: right, paper: wrong" in seen.tab.locator(".side").first.text_content()
    assert "default:" not in seen.tab.locator(".side").last.text_content()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"runs": ()}, "error: no folder is given. Name the folder of a run: python -m bnpo.report"),
        ({"runs": (Path("nowhere"),)}, "error: nowhere: neither a run nor an evaluation; name a folder that train.py"),
        ({"runs": (Path("nowhere"),), "text": True}, "error: nowhere: has no metrics.jsonl with a step in it"),
        ({"output": Path("/proc/page.html")}, "error: /proc/page.html: cannot be written"),
    ],
)
def test_what_cannot_be_shown_is_a_line_with_the_cure(run, flags, message):
    with pytest.raises(SystemExit, match=message) as error:
        program.main(program.Args(**{"runs": (run,)} | flags))
    assert "\n" not in str(error.value)


def test_ids_that_questions_share_keep_their_answers_apart(run):
    """Neighbours with one id: two different questions, and one question twice. Token data are found by place."""
    file = run / "rollouts" / "step-000001.jsonl"
    rows = json_lines(file)
    asked = ["first", "second", "second"]
    rows = [rows[0] | {"id": "q", "prompt": asked[place // 10], "tokens": place} for place in range(30)]
    write_json_lines(file, rows)
    tokens = {"id": "q", "sample": 2, "place": 12, "texts": ["a"], "sampler": [-1.0], "learner": [-1.5]}
    write_json_lines(run / "tokens" / file.name, [tokens])
    questions = {}
    answers, texts = read_answers(json.loads((run / "config.json").read_text()), file, questions)
    assert [question["prompt"] for question in questions.values()] == ["first", "second"]
    assert [answer["question"] for answer in answers] == [0] * 10 + [1] * 20
    assert [answer["sample"] for answer in answers] == [*range(10), *range(20)]
    assert [answer["gap"] for answer in answers if answer["gap"]] == [0.5]
    assert texts[12][2]["texts"] == ["a"]


def test_a_summary_for_a_terminal(run, capsys):
    program.main(program.Args((run,), text=True))
    lines = r"run +\S*run: still running or killed after step 4\nreward +0\.25 -> 0\.5\n"
    assert re.match(lines, capsys.readouterr().out)
    write_json(run / "end.json", {"step": 4, "why": "done"})
    program.main(program.Args((run, run), text=True))
    assert capsys.readouterr().out.count("run: done after step 4\n") == 2


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
    rows = [line.split(" | ") for line in (folder / "README.md").read_text().splitlines() if line.endswith(" |")][2:]
    listed = {row[0].removeprefix("| "): row[3].removesuffix(" |") for row in rows}
    found = {file.name: file_hash(file) for file in folder.iterdir() if file.suffix in (".js", ".css", ".woff2")}
    assert listed == found


@pytest.mark.program
def test_steps_choose(browser, run):
    write_page(run / "few.html", [run], (2, 4))
    seen = Visitor(browser, run / "few.html")
    seen.open("view=answers")
    assert seen.message() == "20 of 20 answers"
