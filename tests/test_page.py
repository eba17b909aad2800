"""The page of a real run, in a real browser."""

import json
import re
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import scipy

from browser import Visitor, answers_of, lines_of
from conftest import json_lines, run_ranks
from runpage.page import write_page

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs axe-playwright-python"
)
pytestmark = pytest.mark.sampler
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"> \\boxed{7}"
SUITE = {
    "datasets": {"arithmetic": {"data": "arithmetic", "problems": 20, "repetitions": 2}},
    **{
        "temperature": 0.6,
        "top_p": 1.0,
        "template": "chat",
        "max_prompt_tokens": 64,
        "max_answer_tokens": 64,
    },
}
VIEWS = ("curves", "density", "estimators", "answers", "questions", "evaluations")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run in which one answer is replaced by a hostile text."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "suite.json").write_text(json.dumps(SUITE))
    run = folder / "run"
    flags = (
        "--questions-per-step",
        8,
        "--samples-per-question",
        8,
        "--max-answer-tokens",
        40,
        "--steps",
        6,
    )
    flags += (
        "--rollouts-every",
        2,
        "--watch-questions",
        2,
        "--eval-every",
        6,
        "--eval-suite",
        folder / "suite.json",
    )
    run_ranks(
        1,
        "train.py",
        "--preset",
        "tiny",
        *flags,
        "--lr",
        "1e-3",
        "--warmup-steps",
        1,
        "--output-dir",
        run,
    )
    assert (run / "report.html").stat().st_size > 100_000  # written by the run itself
    file = run / "rollouts" / "step-000003.jsonl"
    rows = json_lines(file)
    rows[0] |= {"answer": HOSTILE, "failed": True}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


@pytest.fixture(scope="module")
def other(run) -> Path:
    """A copy that claims to be another seed of the same setting, killed while it wrote its
    metrics.
    """
    other = run.with_name("other")
    shutil.copytree(run, other, symlinks=True)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"seed": 1}))
    (other / "end.json").unlink()
    lines = (other / "metrics.jsonl").read_text().splitlines(keepends=True)
    (other / "metrics.jsonl").write_text("".join(lines[:5]) + lines[5][:40])
    return other


@pytest.fixture(scope="module")
def visitor(browser, run, other):
    write_page(run / "report.html", [run, other])
    visitor = Visitor(browser, run / "report.html")
    yield visitor
    assert visitor.complaints == []
    assert {url.partition("#")[0] for url in visitor.requests} <= {visitor.file.as_uri()}


def numbers(cells: list[str]) -> list[float]:
    """Return the numbers in cells of the page, without the dashes of missing values."""
    return [float(cell.strip("✓✗ ").replace("−", "-")) for cell in cells if cell != "–"]


def test_curves_carry_the_numbers_of_the_metrics(visitor, run, other):
    visitor.open()
    plots = visitor.plots()
    lines, others = lines_of(run), {line["step"]: line for line in lines_of(other)}
    assert {
        "reward/mean",
        "grad_norm",
        "beta/alpha",
        "beta/V",
        "entropy",
        "answers/truncated",
    } < plots.keys()
    for metric in plots.keys() - {"seconds", "lengths", "grad_norm/cv", "eval/average/pass1"}:
        steps, values = plots[metric]
        assert steps == [line["step"] for line in lines]
        for line, value in zip(lines, values, strict=True):
            known = [
                seed.get(metric)
                for seed in (line, others.get(line["step"], {}))
                if seed.get(metric) is not None
            ]
            assert value == (pytest.approx(np.mean(known)) if known else None)
    answers = [row for row in answers_of(run) + answers_of(other) if row["step"] == 1]
    for curve, is_right in zip(plots["lengths"][1:3], (1, 0), strict=True):
        tokens = [row["tokens"] for row in answers if row["rewards"]["accuracy"] == is_right]
        assert curve[steps.index(1)] == (pytest.approx(np.mean(tokens)) if tokens else None)
    steps, *tops = plots["seconds"]
    phases = ("generate", "reward", "gather", "update", "sync", "watch", "evaluate")
    sums = [sum(line.get(f"seconds/{phase}", 0) for phase in phases) for line in lines_of(other)]
    assert tops[-1] == pytest.approx(sums)
    assert visitor.tab.text_content("h1") == "run, other"
    assert visitor.column("status", "Runs") == ["done", "still running or killed"]


def test_the_weight_of_a_group_is_what_its_advantages_were_multiplied_by(visitor, run):
    visitor.open()
    groups = defaultdict(list)
    for row in answers_of(run):
        groups[row["group"]].append(row)
    checked = 0
    for (name, _), rows in groups.items():
        p = np.mean([row["rewards"]["accuracy"] for row in rows])
        if 0 < p < 1 and not any(row.get("failed") for row in rows):
            weight = visitor.tab.evaluate(
                "([p, step]) => weight(p, data.runs[0].fits[''][step])", [p, int(name[5:])]
            )
            for row in rows:
                assert row["advantage"] == pytest.approx((row["rewards"]["accuracy"] - p) * weight)
                checked += 1
    assert checked > 20


def test_a_visitor_points_at_a_step_opens_an_answer_and_moves_the_slider(visitor, run):
    visitor.open()
    over = visitor.tab.locator("[data-metric='reward/mean'] .u-over")
    for step in (1, 4, 3):
        over.hover(position={"x": over.bounding_box()["width"] * step / 6, "y": 50})
        shown = visitor.tab.locator(
            "figure:not([data-metric=seconds]) .u-series:first-child .u-value"
        )
        assert set(shown.all_text_contents()) == {str(step)}  # all charts follow
    over.click(position={"x": over.bounding_box()["width"] * 3 / 6, "y": 50})
    visitor.tab.wait_for_function("() => S.step === 3")
    visitor.settle()
    here = [row for row in answers_of(run) if row["step"] == 3]
    texts = [row["answer"] for row in here]
    place = max(i for i, text in enumerate(texts) if texts.count(text) == 1)
    visitor.choose("list", "single")
    visitor.tab.locator("#view tbody a").nth(place).click()
    visitor.settle()
    assert visitor.tab.text_content("h1") == f"Question {here[place]['id']}"
    visitor.choose("text", "source")
    assert visitor.tab.text_content(".card.focus .text") == texts[place]
    visitor.tab.get_by_role("link", name="Density").click()
    lines = {line["step"]: line for line in lines_of(run)}
    for step, key in {6: "End", 5: "ArrowLeft", 1: "Home", 2: "ArrowRight"}.items():
        visitor.tab.press("[name=step]", key)
        visitor.settle()
        alpha, beta = lines[step]["beta/alpha"], lines[step]["beta/beta"]
        assert visitor.message().startswith(f"Step {step}: α {alpha:.3g}, β {beta:.3g}")
        p, density, *_ = visitor.plots()["density"]
        assert density == pytest.approx(scipy.stats.beta.pdf(p, alpha, beta).tolist())


def test_filters_search_and_sorting(visitor, run):
    visitor.open("view=answers&run=0&list=single")
    rows, watched = answers_of(run), 2 * 8 * 4  # after steps 0, 2, 4 and 6
    groups = defaultdict(set)
    for row in rows:
        groups[row["group"]].add(row["rewards"]["accuracy"])
    assert visitor.count() == len(rows) + watched
    visitor.choose("step", "3")
    here = [row for row in rows if row["step"] == 3]
    assert visitor.count() == len(here) == 64
    for flag, wanted in {
        "cut off": [row for row in here if row["cut_off"]],
        "no final answer": [
            row for row in here if "\\boxed{" not in row["answer"] or row["cut_off"]
        ],
        "grading failed": [row for row in here if row.get("failed")],
        "equal": [row for row in here if len(groups[row["group"]]) == 1],
        "watched": [],
        "": here,
    }.items():
        visitor.choose("only", flag)
        assert visitor.count() == len(wanted), flag
    visitor.choose("reward", "1")
    assert visitor.count() == sum(row["rewards"]["accuracy"] == 1 for row in here)
    visitor.choose("reward", "")
    for falling in (True, False):
        visitor.sort("length")
        assert numbers(visitor.column("length")) == sorted(
            (row["tokens"] for row in here), reverse=falling
        )
    for column in ("reward", "gap"):
        visitor.sort(column)
        # For those without a mouse
        assert visitor.tab.evaluate("document.activeElement.textContent") == f"{column} ▼"
        values = numbers(visitor.column(column))
        assert len(values) > 10
        assert values == sorted(values, reverse=True)
    visitor.tab.locator("h1").click()
    visitor.tab.keyboard.press("/")
    visitor.tab.keyboard.type("ONERROR=")
    visitor.tab.wait_for_function("() => $('message').textContent.startsWith('1 of')")
    visitor.tab.fill("[name=q]", here[-1]["prompt"].split("\n")[1].removesuffix("<|im_end|>"))
    visitor.tab.wait_for_function("() => $('message').textContent.startsWith('8 of')")
    assert visitor.tab.evaluate("document.activeElement.name") == "q"


def test_a_text_that_is_html_stays_text(visitor, run):
    row = next(row for row in answers_of(run) if row["answer"] == HOSTILE)
    visitor.open(f"step=3&question={row['id']}&run=0")
    visitor.tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    card = visitor.tab.locator(".card:has-text('grading failed')")
    assert "</script><img src=x onerror=\"document.title='owned'\">" in card.text_content()
    assert "grading failed" in card.text_content()
    assert visitor.tab.locator("img").count() == 0
    assert visitor.tab.locator(".card math").count() > 0  # mathematics is typeset
    assert visitor.tab.title() == "run, other · BNPO"
    visitor.choose("text", "source")
    visitor.tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert "\\boxed{7}" in card.text_content()
    assert visitor.tab.locator(".card .text math").count() == 0


@pytest.mark.parametrize(
    ("scheme", "width", "rules"),
    [
        ("light", 1280, {}),
        ("dark", 1280, {"runOnly": ["color-contrast"]}),
        ("light", 390, {"runOnly": ["target-size"]}),
    ],
    ids=["light", "dark", "narrow"],
)
def test_every_view_fits_and_axe_finds_no_serious_fault(
    browser, visitor, run, tmp_path, scheme, width, rules
):
    seen = Visitor(browser, run / "report.html", color_scheme=scheme)
    seen.tab.set_viewport_size({"width": width, "height": 900})
    question = answers_of(run)[0]["id"]
    for view in VIEWS:
        seen.open(f"view={view}&question={question}&run=0&step=3")
        # To be looked at: pytest --basetemp=FOLDER
        seen.tab.screenshot(path=tmp_path / f"{view}.png")
        assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width, view
        found = axe.Axe().run(seen.tab, options=rules).response
        assert len(found["passes"]) > (0 if rules else 10)
        faults = [
            fault for fault in found["violations"] if fault["impact"] in ("serious", "critical")
        ]
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in faults] == [], view
    paper = seen.tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) > 600) == (scheme == "light")
    assert seen.complaints == []
