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

from bnpo.files import InputError, step_of
from bnpo.report.charts import charts, fits
from bnpo.report.run_files import eval_problems, evaluations, read_answers, run_facts
from bnpo.report.read import open_folder

PARTS, VENDOR = Path(__file__).with_name("page"), Path(__file__).with_name("vendor")
MOST_ANSWERS = 10_000
"""Answers of batches that are shown unless --steps or --questions choose."""
MOST_BYTES = 25_000_000
"""Bytes of texts, by which the page stays under 30 MB."""


def packed(content: object) -> str:
    """JSON, compressed, in characters that no parser of HTML takes for anything else."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)).decode()


Steps = tuple[int, int] | None
"""The first and the last; None: all, as far as there is room."""


def write_page(path: Path, folders: Sequence[Path], steps: Steps = None, only: Sequence[str] = ()) -> None:
    """Write the page of runs and evaluations, with answers of `steps` to the questions `only` (if it names any).
    Raises InputError."""
    opened = [(folder, open_folder(folder)) for folder in folders]
    runs = [(folder, config) for folder, config in opened if "protocol" not in config]
    facts = [run_facts(folder, config) for folder, config in runs]
    for fact in facts:
        fact["setting"] = [other["config"] for other in facts].index(fact["config"])
    data = {"made": f"{datetime.now():%Y-%m-%d %H:%M}", "charts": charts(facts), "chunks": [], "leftOut": []}
    data["runs"] = [fact | {"fits": fits(fact), "metrics": None} for fact in facts]
    add_answers(data, runs, steps, set(only))
    add_evaluations(data, opened)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(data.pop("chunks"), data, ", ".join(f.resolve().name for f in folders)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); -o names another file") from error


def add_answers(data: dict, runs: Sequence[tuple[Path, dict]], steps: Steps, only: set[str]) -> None:
    """Add to `data` the rows of all answers, those of `read_answers` with run, step and where the text is, and the
    questions. The texts go to its chunks: of watched questions first, then of steps as long as there is room, unless
    they were chosen."""
    files: dict[str, list] = {"watch": [], "rollouts": []}
    for number, (folder, config) in enumerate(runs):
        for kind, found in files.items():
            kept = [(step_of(path), path) for path in sorted((folder / kind).glob("step-*.jsonl"))]
            kept = [(s, path) for s, path in kept if s is not None and (not steps or steps[0] <= s <= steps[1])]
            found += [(number, s, path, config) for s, path in kept]
    rows, questions, chunks, shown = [], {}, data["chunks"], 0
    for number, step, path, config in spread(files["watch"]) + spread(files["rollouts"]):
        watched = path.parent.name == "watch"
        if not (steps or only) and (sum(map(len, chunks)) > MOST_BYTES or (shown >= MOST_ANSWERS and not watched)):
            continue
        found, texts = read_answers(config, path, questions, only)
        where = {"run": number, "step": step, "watched": watched, "chunk": len(chunks)}
        rows += [where | {"place": place} | row for place, row in enumerate(found)]
        chunks.append(packed(texts))
        shown += len(found) * (not watched)
    count = sum(map(len, files.values()))
    if lost := count - len(chunks):
        data["leftOut"].append(f"{lost} of {count} files of answers; --steps 41 60 or --questions ID,ID choose others")
    data["rows"] = sorted(rows, key=lambda row: (row["run"], row["step"], row["watched"], row["place"]))
    data["questions"] = list(questions.values())


def add_evaluations(data: dict, opened: Sequence[tuple[Path, dict]]) -> None:
    """Add to `data` the evaluations and their problems, and the texts of answers as long as there is room."""
    chunks, found = data["chunks"], [pair for folder, config in opened for pair in evaluations(folder, config)]
    for fact, texts in spread(found):
        fact["chunk"] = len(chunks) if sum(map(len, chunks)) < MOST_BYTES else None
        chunks += [packed(texts)] if fact["chunk"] is not None else []
    if lost := sum(fact["chunk"] is None for fact, _ in found):
        data["leftOut"].append(f"the answers of {lost} of {len(found)} evaluations; name fewer folders to see them")
    data["evals"] = [fact for fact, _ in found]
    data["problems"] = {key: problem for _, config in opened for key, problem in eval_problems(config).items()}


def spread(items: list) -> list:
    """`items` in an order of which every beginning is spread over all of them (van der Corput's: bits in reverse),
    after the last."""
    order = sorted(range(len(items) - 1), key=lambda place: f"{place:032b}"[::-1])
    return items[-1:] + [items[place] for place in order]


def fill(chunks: Sequence[str], data: dict, names: str) -> str:
    """The page's template with styles, scripts and data. Only the script with this hash may run, and nothing may be
    fetched: a text that came to be part of the document would be dead."""
    font = base64.b64encode((VENDOR / "Temml.woff2").read_bytes()).decode()
    style = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.css")), PARTS / "page.css"])
    script = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.js")), *sorted(PARTS.glob("*.js"))])
    blocks = {"data": packed(data)} | {f"chunk{number}": chunk for number, chunk in enumerate(chunks)}
    return Template((PARTS / "page.html").read_text("utf-8")).substitute(
        title=escape(names),
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style.replace("Temml.woff2", f"data:font/woff2;base64,{font}"),
        script=script,
        blocks="\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in blocks.items()),
    )
