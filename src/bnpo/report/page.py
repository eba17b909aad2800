"""The page of runs: one HTML file with all its data, which needs no server and no network."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template

from bnpo.files import InputError
from bnpo.report.charts import charts, fits
from bnpo.report.leavings import eval_problems, evaluations, open_folder, read_answers, run_facts, step_files

PARTS, VENDOR = Path(__file__).with_name("page"), Path(__file__).with_name("vendor")
MOST_ANSWERS = 10_000
"""Answers of batches that are shown unless --steps or --questions choose."""
MOST_BYTES = 25_000_000
"""Bytes of texts, by which the page stays under 30 MB."""


def packed(content: object) -> str:
    """JSON, compressed, in characters that no parser of HTML takes for anything else."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), compresslevel=6, mtime=0)).decode()


def parse_steps(parts: Sequence[str]) -> list[range]:
    """The steps of `1` and `41-60`. Raises InputError."""
    if odd := [part for part in parts if not re.fullmatch(r"\d+(-\d+)?", part)]:
        raise InputError(f"--steps: '{odd[0]}' is neither a step nor like 41-60")
    return [range(int(part.partition("-")[0]), int(part.rpartition("-")[2]) + 1) for part in parts]


def write_page(path: Path, folders: Sequence[Path], steps: Sequence[str] = (), only: Sequence[str] = ()) -> None:
    """Write the page of runs and evaluations, with answers of `steps` to the questions `only`. Raises InputError."""
    opened = [(folder, open_folder(folder)) for folder in folders]
    runs = [(folder, config) for folder, config in opened if "protocol" not in config]
    facts = [run_facts(folder, config) for folder, config in runs]
    for fact in facts:
        fact["setting"] = [other["config"] for other in facts].index(fact["config"])
    chunks: list[str] = []
    rows, questions, left_out = answers_of(runs, chunks, parse_steps(steps), set(only))
    found = [pair for folder, config in opened for pair in evaluations(folder, config)]
    for fact, texts in spread(found):
        fact["chunk"] = None if sum(map(len, chunks)) > MOST_BYTES else len(chunks)
        chunks += [packed(texts)] if fact["chunk"] is not None else []
    if lost := sum(fact["chunk"] is None for fact, _ in found):
        left_out.append(f"the answers of {lost} of {len(found)} evaluations; name fewer folders to see them")
    problems = {key: problem for _, config in opened for key, problem in eval_problems(config).items()}
    data = {"made": f"{datetime.now():%Y-%m-%d %H:%M}", "charts": charts(facts), "leftOut": left_out, "rows": rows}
    data |= {"questions": questions, "evals": [fact for fact, _ in found], "problems": problems}
    data["runs"] = [{k: v for k, v in fact.items() if k != "metrics"} | {"fits": fits(fact)} for fact in facts]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(packed(data), chunks, ", ".join(f.resolve().name for f in folders)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); -o names another file") from error


def answers_of(runs: Sequence, chunks: list[str], steps: list[range], only: set[str]) -> tuple[list, list, list[str]]:
    """The rows of all answers, those of `read_answers` with the number of the run, the step, and where the text is; the
    questions; and what is said of steps left out. The texts are added to `chunks`: of watched questions first, then of
    steps as long as there is room, unless they were chosen."""
    rows, questions, files = [], {}, {"watch": [], "rollouts": []}
    for number, (folder, config) in enumerate(runs):
        for kind, found in files.items():
            kept = step_files(folder, kind).items()
            found += [(number, s, path, config) for s, path in kept if not steps or any(s in part for part in steps)]
    shown, size = 0, 0
    for number, step, path, config in spread(files["watch"]) + spread(files["rollouts"]):
        watched = path.parent.name == "watch"
        if not (steps or only) and (size > MOST_BYTES or (shown >= MOST_ANSWERS and not watched)):
            continue
        found, texts = read_answers(config, path, questions, only)
        where = {"run": number, "step": step, "watched": watched, "chunk": len(chunks)}
        rows += [where | {"place": place} | row for place, row in enumerate(found)]
        chunks.append(packed(texts))
        shown, size = shown + len(found) * (not watched), size + len(chunks[-1])
    files = len(files["watch"]) + len(files["rollouts"])
    notes = [f"{files - len(chunks)} of {files} files of answers; --steps 1,41-60 or --questions ID,ID choose others"]
    rows.sort(key=lambda row: (row["run"], row["step"], row["watched"], row["place"]))
    return rows, list(questions.values()), notes if len(chunks) < files else []


def spread(items: list) -> list:
    """`items` in an order of which every beginning is spread over all of them (van der Corput's: bits in reverse),
    after the last."""
    order = sorted(range(len(items) - 1), key=lambda place: f"{place:032b}"[::-1])
    return items[-1:] + [items[place] for place in order]


def fill(data: str, chunks: Sequence[str], names: str) -> str:
    """The page's template with styles, scripts and data. Only the script with this hash may run, and nothing may be
    fetched: a text that came to be part of the document would be dead."""
    font = base64.b64encode((VENDOR / "Temml.woff2").read_bytes()).decode()
    style = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.css")), PARTS / "page.css"])
    script = "\n".join(path.read_text("utf-8") for path in [*sorted(VENDOR.glob("*.js")), PARTS / "page.js"])
    blocks = {"data": data} | {f"chunk{number}": chunk for number, chunk in enumerate(chunks)}
    return Template((PARTS / "page.html").read_text("utf-8")).substitute(
        title=escape(names),
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style.replace("Temml.woff2", f"data:font/woff2;base64,{font}"),
        script=script,
        blocks="\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in blocks.items()),
    )
