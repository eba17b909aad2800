"""The page of runs: one HTML file with all its data, which needs no server and no network."""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template

from bnpo.files import step_of, writing
from bnpo.report.batches import RESAMPLES, beta_p_values, counterfactual, read_batch
from bnpo.report.charts import charts, fits
from bnpo.report.run_files import eval_problems, evaluations, open_folder, read_answers, run_facts

PARTS, VENDOR = Path(__file__).with_name("page"), Path(__file__).with_name("vendor")
MAX_ANSWERS = 10_000
"""Answers of training batches on a page, unless --steps chooses."""
MAX_BYTES = 25_000_000
"""Bytes of packed texts on a page, so that the whole page stays under 30 MB."""
Steps = tuple[int, int] | None
"""First and last step whose answers are shown; None for as many as fit."""


def write_page(path: Path, folders: Sequence[Path], steps: Steps = None) -> None:
    """Write the page of the runs and evaluations in `folders`, with answers of `steps`. Raises InputError."""
    opened = [(folder, open_folder(folder)) for folder in folders]
    runs = [(folder, config) for folder, config in opened if "protocol" not in config]
    all_facts = [run_facts(folder, config) for folder, config in runs]
    configs = [facts.config for facts in all_facts]
    for facts in all_facts:
        facts.setting = configs.index(facts.config)  # the first run with the same config
    data = {"made": f"{datetime.now():%Y-%m-%d %H:%M}", "charts": charts(all_facts), "leftOut": []}
    # The charts hold the metrics that are shown.
    data["runs"] = [vars(facts) | {"fits": fits(facts), "metrics": None} for facts in all_facts]
    chunks: list[str] = []
    add_answers(data, chunks, runs, steps)
    add_evaluations(data, chunks, opened)
    title = ", ".join(folder.resolve().name for folder in folders)
    with writing(path, "-o names another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill_template(title, data, chunks), encoding="utf-8")


def answer_files(runs: Sequence[tuple[Path, dict]], kind: str, steps: Steps) -> list[tuple[int, int, Path]]:
    """Return (run, step, path) of the files of answers of one kind (`watch` or `rollouts`), ordered by run and step."""
    files = []
    for run, (folder, _) in enumerate(runs):
        for path in sorted((folder / kind).glob("step-*.jsonl")):
            step = step_of(path)  # None: a file that only looks like a step's, such as a user's copy
            if step is not None and (not steps or steps[0] <= step <= steps[1]):
                files.append((run, step, path))
    return files


def add_answers(data: dict, chunks: list[str], runs: Sequence[tuple[Path, dict]], steps: Steps) -> None:
    """Add all answers, their questions and their batches to `data`, and the texts to `chunks`, one per file.

    Unless `steps` choose, files are added until the page is full.
    """
    watched_files, rollout_files = (answer_files(runs, kind, steps) for kind in ("watch", "rollouts"))
    rows, batches, questions, shown, left_out = [], [], {}, 0, 0
    # Watched questions come first: they are few, and show the same questions over the whole run.
    for run, step, path in spread(watched_files) + spread(rollout_files):
        watched = path.parent.name == "watch"
        full = is_full(chunks) or (shown >= MAX_ANSWERS and not watched)
        if full and not steps:
            left_out += 1
            continue
        _, config = runs[run]
        answers, texts = read_answers(config, path, questions)
        for place, answer in enumerate(answers):  # `chunk` and `place` say where the answer's text is
            where = {"run": run, "step": step, "watched": watched, "chunk": len(chunks), "place": place}
            rows.append(where | answer)
        chunks.append(packed(texts))
        if watched:
            continue
        shown += len(answers)
        batch = read_batch(path, config["samples_per_question"])
        if batch is not None:
            fit = beta_p_values(batch, config, RESAMPLES)
            batches.append({"run": run, "step": step, "fit": fit} | counterfactual(batch, config))
    if left_out:
        missing = f"{left_out} of {len(watched_files) + len(rollout_files)} answer files"
        data["leftOut"].append(f"{missing}; choose others with --steps 41 60")
    data["batches"] = batches
    data["rows"] = sorted(rows, key=lambda row: (row["run"], row["step"], row["watched"], row["place"]))
    data["questions"] = list(questions.values())


def add_evaluations(data: dict, chunks: list[str], opened: Sequence[tuple[Path, dict]]) -> None:
    """Add the evaluations and their problems to `data`, and texts of answers to `chunks` until the page is full."""
    facts_and_texts, problems = [], {}
    for folder, config in opened:
        facts_and_texts += evaluations(folder, config)
        problems |= eval_problems(config)
    without_texts = 0
    for facts, texts in spread(facts_and_texts):
        if is_full(chunks):
            facts["chunk"] = None
            without_texts += 1
        else:
            facts["chunk"] = len(chunks)
            chunks.append(packed(texts))
    if without_texts:
        missing = f"the answers of {without_texts} of {len(facts_and_texts)} evaluations"
        data["leftOut"].append(f"{missing}; name fewer folders to see them")
    data["evals"] = [facts for facts, _ in facts_and_texts]
    data["problems"] = problems


def is_full(chunks: Sequence[str]) -> bool:
    """Return whether the page holds as many bytes of texts as it may."""
    return sum(map(len, chunks)) > MAX_BYTES


def spread(items: list) -> list:
    """Return `items` in an order whose beginnings are spread over all of them: the last item, then the others by the
    reversed bits of their index (van der Corput). A page that is full early then shows steps from the whole run."""
    order = sorted(range(len(items) - 1), key=lambda index: f"{index:032b}"[::-1])
    return items[-1:] + [items[index] for index in order]


def packed(content: object) -> str:
    """Return `content` as JSON, compressed, in base64, which has no character with a meaning in HTML."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)).decode()


def fill_template(title: str, data: dict, chunks: Sequence[str]) -> str:
    """Return the page: the template with styles, scripts and data.

    Answers are untrusted text. The page's policy allows only the script with this hash and no network access, so that
    text which became part of the document could do nothing.
    """
    font = base64.b64encode((VENDOR / "Temml.woff2").read_bytes()).decode()
    # Libraries come first: our styles override theirs, and our scripts call them.
    style = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.css")), PARTS / "page.css"])
    script = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.js")), *sorted(PARTS.glob("*.js"))])
    blocks = [f'<script type="text/plain" id="data">{packed(data)}</script>']
    for number, chunk in enumerate(chunks):
        blocks.append(f'<script type="text/plain" id="chunk{number}">{chunk}</script>')
    return Template((PARTS / "page.html").read_text("utf-8")).substitute(
        title=escape(title),
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style.replace("Temml.woff2", f"data:font/woff2;base64,{font}"),
        script=script,
        blocks="\n".join(blocks),
    )
