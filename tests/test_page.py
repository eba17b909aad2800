"""The page of runs: what it is made of, and in a real browser what a visitor sees and finds."""

import base64
import gzip
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import scipy

from bnpo.config import flat_settings, parse_train_config
from bnpo.files import step_name, whole_json_lines, write_json, write_json_lines
from bnpo.grading.rewards import reward_name
from bnpo_estimators import ESTIMATORS, Method, compute_advantages
from conftest import json_lines, refused, run_ranks
from runpage import __main__ as program
from runpage.end import page_at_end
from runpage.page import add_answers, page_of, write_page
from runpage.run_files import all_advantages, evaluations, open_folder, signal_reward
from runpage.serve import HTTPServer, PageHandler

M = 16
"""Answers to a question."""
VIEWS = ("curves", "density", "estimators", "answers", "questions", "evaluations")
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"> \\boxed{7}"
METRICS = ("grad_norm", "entropy", "answers/mean_tokens", "beta/alpha", "beta/beta", "beta/a")
METRICS += ("beta/b", "seconds/generate", "seconds/update", "seconds/total", "reward/se")


def write_run(run: Path, batches: dict[int, np.ndarray], *flags: str, steps=0, lengths=None):
    """Write a run with the recorded answers of some steps, whose rewards [n, m] or [n, m, K] are
    `batches`, and return its folder.
    """
    n, m = next(iter(batches.values())).shape[:2]
    sizes = ("--questions-per-step", str(n), "--samples-per-question", str(m))
    flags = ("--preset", "tiny", *sizes, *flags, "--output-dir", str(run))
    config, _ = parse_train_config(flags, has_cuda=False)
    lines = [
        {"step": step, "reward/mean": 0.25, **dict.fromkeys(METRICS, step % 9 + 1)}
        for step in range(1, 1 + max(steps, *batches))
    ]
    lines[-1]["reward/mean"] = 0.5
    run.mkdir()
    write_json(run / "config.json", flat_settings(config) | {"answer_tags": False})
    write_json_lines(run / "metrics.jsonl", lines)
    names = list(map(reward_name, config.data.rewards))
    tokens = np.full((n, m), 5) if lengths is None else lengths
    for step, batch in batches.items():
        rewards = batch.reshape(n, m, -1)
        values = compute_advantages(config.method, rewards, lengths=tokens).values
        rows = [
            {"id": f"q{i}", "prompt": f"q{i}: $3 + 4$ = ?", "reference": "7", "cut_off": False}
            | {"answer": f"text {step} {i} {j} \\boxed{{7}}", "tokens": int(tokens[i, j])}
            | {"rewards": dict(zip(names, rewards[i, j].tolist(), strict=True))}
            | {"advantage": values[i, j]}
            for i, j in np.ndindex(n, m)
        ]
        write_json_lines(run / "rollouts" / f"{step_name(step)}.jsonl", rows)
    return run


def with_right(*counts: int) -> np.ndarray:
    """Return rewards [n, M] with so many right answers to each question."""
    return (np.arange(M) < np.array(counts)[:, None]).astype(float)


@pytest.fixture
def run(tmp_path) -> Path:
    rewards = np.random.default_rng(0).integers(0, 2, (2, 10)).astype(float)
    return write_run(tmp_path / "run", {1: rewards, 3: rewards}, steps=4)


# What needs no browser


@pytest.mark.parametrize(
    "flags", [(), ("--signal", "format"), ("--signal", "all"), ("--reward-weights", "0", "1")]
)
def test_the_page_takes_the_reward_that_training_takes_for_right(flags):
    flags = ("--preset", "tiny", "--rewards", "accuracy,format", *flags)
    config, _ = parse_train_config(flags, has_cuda=False)
    assert signal_reward(flat_settings(config)) == config.signal_rewards[0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"runs": ()}, "no folder is given. Name the folder of a run: python -m runpage"),
        ({"runs": (Path("nowhere"),)}, "nowhere: neither a run nor an evaluation; name a folder"),
        ({"serve": True, "port": 99_999}, "--port 99999: .*Choose another one, or 0"),
        ({"output": Path("/proc/page.html")}, "/proc/page.html: cannot be written"),
        ({"output": Path()}, "-o .: is a folder; name the file, such as report.html"),
    ],
)
def test_what_cannot_be_shown_is_a_line_with_the_cure(run, flags, message):
    with refused(message):
        program.main(program.Args(**{"runs": (run,)} | flags))


def train(run: Path, rank: int = 0, error: BaseException | None = None, config: str = "") -> None:
    """Claim a run's folder and end as a training does."""
    with page_at_end(run, rank=rank):
        text = config or (run / "config.json").read_text()
        (run / "config.json").rename(run / "earlier")
        (run / "config.json").write_text(text)
        if error:
            raise error


@pytest.mark.parametrize("error", [None, ValueError("mine"), SystemExit(1)])
def test_training_leaves_a_page_however_it_ends(run, capsys, error):
    if error:
        with pytest.raises(type(error)) as raised:
            train(run, error=error)
        assert raised.value is error
    else:
        train(run)
    assert (run / "report.html").stat().st_size > 100_000
    assert ("reward         0.25 -> 0.5" in capsys.readouterr().out) == (error is None)


def test_a_page_that_cannot_be_written_is_a_line_and_hides_no_error(run, capsys):
    with pytest.raises(ValueError, match="mine"):
        train(run, error=ValueError("mine"), config="{")
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("the page was not written (InputError: ")
    assert line.endswith(f"Try again: python -m runpage {run}")


def test_other_ranks_and_a_training_that_did_not_claim_the_folder_leave_no_page(run, capsys):
    with page_at_end(run, rank=0):
        pass
    train(run, rank=1)
    assert not (run / "report.html").exists()
    assert capsys.readouterr().out == ""


def test_a_served_page_is_made_anew_for_each_request(run):
    handler = lambda *arguments: PageHandler([run], *arguments)  # noqa: E731
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        assert "<title>run · BNPO</title>" in urllib.request.urlopen(address).read().decode()
        (run / "config.json").write_text("{}")
        with pytest.raises(urllib.error.HTTPError, match="500") as error:
            urllib.request.urlopen(address)
        assert b"neither a run nor an evaluation" in error.value.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}other")
        server.shutdown()


@pytest.mark.parametrize("algo", ["bnpo", "opo", "shrinkage"])
def test_what_every_estimator_would_have_made_of_a_batch(tmp_path, algo):
    """The estimator of the run has its own advantages again. Others have those of the real
    functions.
    """
    lengths = np.random.default_rng(0).integers(1, 30, size=(6, M))
    rewards = with_right(0, 2, 5, 8, 13, 16)
    folder = write_run(tmp_path / "run", {1: rewards}, "--algo", algo, lengths=lengths)
    rows = json_lines(folder / "rollouts" / "step-000001.jsonl")
    config = json.loads((folder / "config.json").read_text())
    assert all_advantages(rows[:-1], config) is None  # the batch is not whole
    found = all_advantages(rows, config)
    assert found.keys() == ESTIMATORS.keys() - {"remax", "beta", "pass_at_k", "weight"}
    own = [row["advantage"] for row in rows]
    np.testing.assert_allclose(found[algo], own, rtol=5e-5, atol=1e-12)
    for name in ("grpo", "eb", "reinforce_pp"):
        expected = compute_advantages(Method(name), rewards[:, :, None], lengths=lengths).values
        np.testing.assert_allclose(found[name], expected.ravel(), rtol=5e-5, atol=1e-12)


def test_settings_that_json_does_not_have_are_text(tmp_path):
    folder = write_run(tmp_path / "run", {1: with_right(3, 5)}, "--max-grad-norm", "inf")
    page = page_of([folder])
    data = re.search(r'id="data">([^<]*)<', page)[1]
    text = gzip.decompress(base64.b64decode(data)).decode()
    [of_run] = json.loads(text, parse_constant=pytest.fail)["runs"]
    assert of_run["config"]["max_grad_norm"] == "inf"


def test_an_unfinished_evaluation_is_called_so_and_a_users_copy_is_none(run):
    sample = {"dataset": "a", "id": "1", "index": 0, "repetition": 0, "correct": True}
    sample |= {"text": "7", "answer": "7"}
    for place in ("step-000000", "step-000100", "step-000100.keep"):
        (run / "evals" / place).mkdir(parents=True)
        write_json_lines(run / "evals" / place / "samples.jsonl", [sample])
    config = open_folder(run)
    names = [facts["name"] for facts, _ in evaluations(run, config)]
    assert names == ["run, step 0", "run, step 100"]
    folder = run.parent / "row" / "eval"
    folder.mkdir(parents=True)
    suite = {"datasets": {"a": {"problems": 1, "repetitions": 2}}}
    for repetitions, name in ((1, "row/eval (unfinished: 1 of 2 answers)"), (2, "row/eval")):
        samples = [sample | {"repetition": j} for j in range(repetitions)]
        write_json_lines(folder / "samples.jsonl", samples)
        [(facts, _)] = evaluations(folder, {"protocol": {"suite": suite}})
        assert facts["name"] == name


def test_ids_that_questions_share_keep_their_answers_apart(run):
    """Two different questions with one id. Token data are found by place."""
    file = run / "rollouts" / "step-000001.jsonl"
    rows = [row | {"id": "q", "prompt": row["id"]} for row in json_lines(file)]
    write_json_lines(file, rows)
    tokens = {"place": 12, "texts": ["a"], "sampler": [-1.0], "learner": [-1.5]}
    write_json_lines(run / "tokens" / file.name, [tokens])
    config, data = json.loads((run / "config.json").read_text()), {"leftOut": []}
    add_answers(data, [], [(run, config)])
    assert [row["question"] for row in data["rows"]][:20] == [0] * 10 + [1] * 10
    assert [row["place"] for row in data["rows"] if row["gap"] == 0.5] == [12]


# In a browser


class Visitor:
    """A browser tab with the page of some runs, its requests, and what its console complains of."""

    def __init__(self, browser, *folders: Path, **settings):
        self.file = folders[0] / "page.html"
        write_page(self.file, folders)
        size = {"width": 1280, "height": 900}
        self.tab = browser.new_context(**{"viewport": size} | settings).new_page()
        self.complaints, self.requests = [], []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str = "") -> "Visitor":
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.file.as_uri()}#{address}")
        return self.settle()

    def settle(self) -> "Visitor":
        """Wait until the page has been drawn."""
        self.tab.wait_for_timeout(100)  # the browser reacts to a key or a link a little later
        # As a function: the page's policy forbids evaluating text.
        self.tab.wait_for_function("() => $('view').ariaBusy === 'false'")
        return self

    def choose(self, name: str, value: str) -> None:
        self.tab.select_option(f"[name={name}]", value)
        self.settle()

    def texts(self, place: str) -> list[str]:
        return self.tab.locator(place).all_text_contents()

    def column(self, name: str, label: str = "") -> list[str]:
        """Return the cells of a column of the last table, or of the one with a label."""
        table = f"#view .scroll{label and f'[aria-label={label}]'} table >> nth=-1"
        heads = [head.strip(" ▼▲") for head in self.texts(f"{table} >> thead th")]
        return self.texts(f"{table} >> tbody tr > :nth-child({1 + heads.index(name)})")

    def plots(self) -> dict[str, list]:
        """Return the values of every chart by metric, x first."""
        script = "f => [f.dataset.metric, f.plot.data.map(ys => [...ys])]"
        return dict(self.tab.evaluate(f"[...document.querySelectorAll('figure')].map({script})"))

    def message(self) -> str:
        return self.tab.text_content("#message")

    def count(self) -> int:
        return int(self.message().split(" of ")[0])


def in_browser(test):
    return pytest.mark.extra(pytest.mark.program(test))


@pytest.fixture(scope="module")
def real_run(tmp_path_factory) -> Path:
    """A finished run in which one answer is replaced by a hostile text."""
    folder = tmp_path_factory.mktemp("page")
    suite = {"datasets": {"a": {"data": "arithmetic", "problems": 20, "repetitions": 2}}}
    suite |= {"temperature": 0.6, "top_p": 1.0, "template": "chat", "max_answer_tokens": 64}
    write_json(folder / "suite.json", suite | {"max_prompt_tokens": 64})
    flags = ("--questions-per-step", 8, "--samples-per-question", 8, "--max-answer-tokens", 40)
    flags += ("--steps", 3, "--rollouts-every", 2, "--watch-questions", 2, "--eval-every", 3)
    flags += ("--eval-suite", folder / "suite.json", "--output-dir", folder / "run")
    run_ranks(1, "train.py", "--preset", "tiny", *flags)
    file = folder / "run" / "rollouts" / "step-000003.jsonl"
    rows = json_lines(file)
    rows[0] |= {"answer": HOSTILE, "failed": True}
    write_json_lines(file, rows)
    return folder / "run"


@pytest.mark.extra
@pytest.mark.sampler
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_of_a_real_run(browser, real_run, scheme, width):
    """Curves have the numbers of the metrics, a text that is HTML stays text, nothing is loaded,
    and every view fits, also for people who see little.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    viewport = {"width": width, "height": 900}
    seen = Visitor(browser, real_run, color_scheme=scheme, viewport=viewport).open()
    lines = whole_json_lines(real_run / "metrics.jsonl")
    plots = seen.plots()
    assert {"reward/mean", "grad_norm", "beta/alpha", "entropy"} < plots.keys()
    for metric in plots.keys() & lines[-1].keys():
        steps, values = plots[metric]
        assert steps == [line["step"] for line in lines]
        assert values == pytest.approx([line.get(metric) for line in lines]), metric
    rows = json_lines(real_run / "rollouts" / "step-000003.jsonl")
    seen.open(f"view=questions&step=3&question={rows[0]['id']}&run=0")
    seen.tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    card = seen.tab.locator(".card:has-text('grading failed')")
    assert HOSTILE.partition(" \\")[0] in card.text_content()
    assert seen.tab.locator("img").count() == 0
    assert seen.tab.title() == "run · BNPO"
    for view in VIEWS:
        seen.open(f"view={view}&question={rows[0]['id']}&run=0&step=3")
        assert seen.tab.evaluate("document.documentElement.scrollWidth") <= width, view
        faults = axe.Axe().run(seen.tab).response["violations"]
        serious = [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")]
        assert serious == [], view
    assert seen.complaints == []
    assert {url.partition("#")[0] for url in seen.requests} <= {seen.file.as_uri(), "about:blank"}


@in_browser
def test_filters_search_and_sorting(browser, tmp_path):
    run = write_run(tmp_path / "run", {1: with_right(0, 15, 16, 3), 2: with_right(1, 2, 3, 16)})
    seen = Visitor(browser, run).open("view=answers")
    # The mixed questions come first, and answers with the same result are one line
    assert seen.message().startswith("128 of 128 answers. Groups: 8, of which 5 mixed.")
    assert [title[:2] for title in seen.texts("article.group h2")][-3:] == ["q0", "q2", "q3"]
    seen.choose("list", "single")
    seen.choose("step", "1")
    assert seen.count() == 64
    seen.choose("only", "equal")
    assert seen.count() == 32
    seen.choose("only", "")
    seen.choose("reward", "1")
    assert seen.count() == 34
    seen.choose("reward", "")
    seen.tab.locator("th button:has-text('reward')").click()
    seen.settle()
    values = [float(cell.strip("✓✗ ")) for cell in seen.column("reward")]
    assert values == sorted(values, reverse=True)
    seen.tab.keyboard.press("/")
    seen.tab.keyboard.type("TEXT 1 3 7")
    seen.tab.wait_for_function("() => $('message').textContent.startsWith('1 of')")
    assert seen.complaints == []


@in_browser
def test_evaluations_by_subject_and_level_with_flips_in_both_directions(browser, tmp_path):
    parts = [("Algebra", 1), ("Algebra", 5), ("Geometry", 5)]
    problems = [
        {"id": f"p{i}", "problem": f"What is ${i}$?", "answer": str(i), "subject": s, "level": n}
        for i, (s, n) in enumerate(parts)
    ]
    write_json_lines(tmp_path / "data.jsonl", problems)
    data = {"data": str(tmp_path / "data.jsonl"), "problems": 3, "repetitions": 1}
    for name, verdicts in {"base": (0, 1, 0), "trained": (1, 0, 0)}.items():
        usual = {"dataset": "set", "repetition": 0, "text": name, "answer": "7"}
        samples = [
            usual | {"index": i, "id": f"p{i}", "correct": right}
            for i, right in enumerate(verdicts)
        ]
        write_json_lines(tmp_path / name / "samples.jsonl", samples)
        write_json(tmp_path / name / "protocol.json", {"suite": {"datasets": {"set": data}}})
    seen = Visitor(browser, tmp_path / "base", tmp_path / "trained").open()
    table = seen.tab.locator("table").first.locator("tr").all()
    rows = [row.locator("th, td").all_text_contents() for row in table]
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
    assert seen.complaints == []


@in_browser
def test_rewards_with_weights_are_shown_as_they_are_trained(browser, tmp_path):
    """Every wrong answer has the format's reward, and some right ones do not. One that failed is
    in no statistic.
    """
    accuracy = with_right(2, 5, 12)  # [n, M]
    rewards = np.stack([accuracy, np.where(np.arange(M) < 1, 0, 1) * np.ones((3, 1))], axis=2)
    flags = ("--rewards", "accuracy,format", "--reward-weights", "1", "0.2")
    run = write_run(tmp_path / "run", {1: rewards}, *flags)
    trained = rewards @ [1 / 1.2, 0.2 / 1.2]  # [n, M]
    seen = Visitor(browser, run).open()
    caption = seen.tab.text_content("[data-metric='reward/mean'] figcaption p")
    assert "weighted mean as trained: 1 × accuracy + 0.2 × format" in caption
    script = "[...data.groups.values()].map(group => [accuracy(group), rightShare(group)])"
    shown = np.array(seen.tab.evaluate(script))
    np.testing.assert_allclose(shown, np.stack([trained.mean(1), accuracy.mean(1)], axis=1))
    file = run / "rollouts" / "step-000001.jsonl"
    failed = {"failed": True, "advantage": 0.0}
    rows = [row | (failed if i == 0 else {}) for i, row in enumerate(json_lines(file))]
    write_json_lines(file, rows)
    seen = Visitor(browser, run).open("view=questions&question=q0&step=1")
    assert seen.texts(".kinds h3") == ["1 × 7, right", "14 × 7, wrong", "1 × 7, not graded"]
    assert seen.complaints == []


@in_browser
def test_densities_and_the_advantages_of_other_estimators(browser, tmp_path):
    batches = {1: with_right(0, 2, 5, 8), 2: with_right(1, 1, 4, 16)}
    run = write_run(tmp_path / "run", batches, "--algo", "grpo")
    lines = json_lines(run / "metrics.jsonl")
    lines[0] |= {"beta/a": 0.9, "beta/b": 3.0, "beta/alpha": 1.3, "beta/beta": 2.0}
    lines[1] |= dict.fromkeys(("beta/a", "beta/b"), 0.0)
    write_json_lines(run / "metrics.jsonl", lines)
    seen = Visitor(browser, run).open("view=density&step=1")
    p, divisor, fitted = seen.plots()["density"]
    assert divisor == pytest.approx(scipy.stats.beta.pdf(p, 1.3, 2).tolist())
    assert fitted == pytest.approx(scipy.stats.beta.pdf(p, 0.9, 3).tolist())
    assert "No Beta distribution fits" in seen.open("view=density&step=2").message()
    seen.open("view=estimators&step=2")
    rows = [row.locator("th, td").all_text_contents() for row in seen.tab.locator("table tr").all()]
    heads, cosines, wrong, *_ = rows
    assert (cosines[0], cosines[heads.index("grpo")]) == ("cosine", "1")
    assert (wrong[:3], wrong[heads.index("grpo")]) == (["q0", "0", "15"], "−0.25")
    assert wrong[heads.index("rloo")] == "−0.0667"
    assert seen.complaints == []


@in_browser
def test_a_mean_over_seeds_ends_with_the_first_of_them(browser, tmp_path):
    """Runs that differ only in their seeds share a line. Another method has one of its own."""
    lengths = {"a": ("0", "bnpo", 5), "b": ("1", "bnpo", 3), "c": ("0", "grpo", 6)}
    runs = [
        write_run(tmp_path / name, {1: with_right(4)}, "--seed", seed, "--algo", algo, steps=steps)
        for name, (seed, algo, steps) in lengths.items()
    ]
    x, bnpo, grpo, *_ = Visitor(browser, *runs).open().plots()["reward/mean"]
    assert x == [1, 2, 3, 4, 5, 6]
    assert bnpo == pytest.approx([0.25, 0.25, (0.25 + 0.5) / 2, None, None, None])
    assert grpo == [0.25] * 5 + [0.5]


@in_browser
def test_a_run_that_has_only_begun_and_findings_on_top(browser, run):
    write_json(run / "findings.json", [{"kind": "cut_off", "text": "97% of <b> are cut off"}])
    seen = Visitor(browser, run).open()
    assert seen.texts(".findings li") == ["97% of <b> are cut off"]
    facts = dict(zip(seen.texts(".facts dt"), seen.texts(".facts dd"), strict=True))
    assert (facts["algo"], facts["questions_per_step *"]) == ("bnpo", "2")  # not the preset's
    (run / "metrics.jsonl").write_text('{"step": 1, "rew')
    for file in (run / "rollouts").iterdir():
        file.unlink()
    seen = Visitor(browser, run)
    for view in VIEWS:
        seen.open(f"view={view}")
    assert seen.complaints == []
