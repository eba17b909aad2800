"""The page of runs: one HTML file with all its data, which needs no server and no network."""

import base64
import gzip
import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template

from bnpo.files import InputError, step_of, whole_json_lines, write_whole, writing
from runpage.run_files import (
    all_advantages,
    eval_problems,
    evaluations,
    open_folder,
    read_answers,
    run_data,
    shown_name,
)

PARTS, VENDOR = Path(__file__).with_name("page"), Path(__file__).with_name("vendor")
MAX_ANSWERS = 10_000
"""Texts of answers on a page from training batches, and as many from evaluations."""


def write_page(path: Path, folders: Sequence[Path]) -> None:
    """Write the page of the runs and evaluations in `folders`. Raises InputError."""
    page = page_of(folders)
    if path.is_dir():
        raise InputError(f"-o {path}: is a folder; name the file, such as {path / 'report.html'}")
    with writing(path, "-o names another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [page])  # or not at all: a browser may read it at any time


def page_of(folders: Sequence[Path]) -> str:
    """Return the page of the runs and evaluations in `folders`. Raises InputError.

    The page's scripts compute from its data all that they can, such as bands over seeds and fitted
    densities.
    """
    opened = [(folder, open_folder(folder)) for folder in folders]
    runs = [(folder, config) for folder, config in opened if "protocol" not in config]
    now = datetime.now()
    data = {"made": f"{now:%Y-%m-%d %H:%M}", "madeAt": now.timestamp(), "leftOut": []}
    data["runs"] = [run_data(folder, config) for folder, config in runs]
    chunks: list[str] = []
    add_answers(data, chunks, runs)
    add_evaluations(data, chunks, opened)
    title = ", ".join(shown_name(folder, config) for folder, config in opened)
    return fill_template(title, data, chunks)


def answer_files(runs: Sequence[tuple[Path, dict]], kind: str) -> list[tuple[int, int, Path]]:
    """Return (run, step, path) of the files of answers of one kind (`watch` or `rollouts`),
    ordered by run and step.
    """
    paths = [
        (run, path)
        for run, (folder, _) in enumerate(runs)
        for path in (folder / kind).glob("step-*.jsonl")
    ]
    # A file without a step only looks like one, such as a user's copy.
    return sorted((run, step_of(path), path) for run, path in paths if step_of(path) is not None)


def add_answers(data: dict, chunks: list[str], runs: Sequence[tuple[Path, dict]]) -> None:
    """Add answers, their questions and their batches to `data`, and the texts to `chunks`, one
    per file.
    """
    watched, batches = (answer_files(runs, kind) for kind in ("watch", "rollouts"))
    # Answers per step of each run
    sizes = [config["questions_per_step"] * config["samples_per_question"] for _, config in runs]
    shown = thinned(batches, sum(sizes[run] for run, _, _ in batches), "files of rollouts", data)
    # Ids need not be unique: data sets may use one id for different problems
    questions: dict[tuple, int] = {}
    data["rows"], data["batches"] = [], []
    for run, step, path in sorted(shown + watched):
        config, rows, texts = runs[run][1], whole_json_lines(path), []
        where = {
            "run": run,
            "step": step,
            "watched": path.parent.name == "watch",
            "chunk": len(chunks),
        }
        for row, (facts, text) in zip(rows, read_answers(path, rows, config), strict=True):
            question = questions.setdefault(
                (row["id"], row["prompt"], row["reference"]), len(questions)
            )
            data["rows"].append(where | {"question": question} | facts)
            texts.append(text)
        chunks.append(packed(texts))
        if not where["watched"] and (advantages := all_advantages(rows, config)):
            data["batches"].append({"run": run, "step": step, "advantages": advantages})
    data["questions"] = [
        dict(zip(("id", "prompt", "reference"), key, strict=True)) for key in questions
    ]


def add_evaluations(data: dict, chunks: list[str], opened: Sequence[tuple[Path, dict]]) -> None:
    """Add the evaluations and their problems to `data`, and texts of answers to `chunks`, one
    per evaluation.
    """
    found = [
        facts_and_texts
        for folder, config in opened
        for facts_and_texts in evaluations(folder, config)
    ]
    answers = sum(len(answers) for _, texts in found for answers in texts)
    for facts, texts in thinned(found, answers, "texts of evaluations", data):
        facts["chunk"] = len(chunks)
        chunks.append(packed(texts))
    data["evals"] = [facts for facts, _ in found]
    seen: Counter[str] = Counter()
    for facts in data["evals"]:  # evaluations of one model may differ in their settings only
        seen[facts["name"]] += 1
        if seen[facts["name"]] > 1:
            facts["name"] += f" ({seen[facts['name']]})"
    data["problems"] = dict(problem for _, config in opened for problem in eval_problems(config))


def thinned(items: list, answers: int, name: str, data: dict) -> list:
    """Return every k-th item and the last, with at most MAX_ANSWERS of all `answers`. Note how
    many are left out.
    """
    every = max(1, -(-answers // MAX_ANSWERS))
    shown = items[(len(items) - 1) % every :: every]
    if len(shown) < len(items):
        data["leftOut"].append(f"{len(items) - len(shown)} of {len(items)} {name}")
    return shown


def in_json(content: object) -> object:
    """Return `content` with texts such as `inf` for numbers that JSON does not have."""
    if isinstance(content, dict):
        return {name: in_json(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [in_json(value) for value in content]
    is_missing = isinstance(content, float) and not math.isfinite(content)
    return str(content) if is_missing else content


def packed(content: object) -> str:
    """Return `content` as JSON, compressed, in base64, which has no character with a meaning in
    HTML.
    """
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return base64.b64encode(
        gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)
    ).decode()


def fill_template(title: str, data: dict, chunks: Sequence[str]) -> str:
    """Return the page: the template with styles, scripts and data.

    Answers are untrusted text. The page's policy allows only the script with this hash and no
    network access, so that text which became part of the document could do nothing.
    """
    font = base64.b64encode((VENDOR / "Temml.woff2").read_bytes()).decode()
    # Libraries come first: our styles override theirs, and our scripts call them.
    style = "\n".join(
        path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.css")), PARTS / "page.css"]
    )
    script = "\n".join(
        path.read_text("utf-8")
        for path in [*sorted(VENDOR.glob("*.js")), *sorted(PARTS.glob("*.js"))]
    )
    texts = {"data": packed(in_json(data))} | {
        f"chunk{number}": chunk for number, chunk in enumerate(chunks)
    }
    blocks = [
        f'<script type="text/plain" id="{name}">{text}</script>' for name, text in texts.items()
    ]
    return Template((PARTS / "page.html").read_text("utf-8")).substitute(
        title=escape(title),
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style.replace("Temml.woff2", f"data:font/woff2;base64,{font}"),
        script=script,
        blocks="\n".join(blocks),
    )
