"""Remove one rule of the grader at a time, and print what changes: which rules are needed, and by what.

    BNPO_DATA=<folder with the sets> python dev/remove_rules.py

A rule is a row of a table of rewrites, or a compiled pattern of a module. For each, the number of references of all
data sets (also those in the folder's subfolder `more`) that are read otherwise without it, and the labelled pairs of
tests/answers whose verdict changes. A rule with neither can go.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from mathequal import compare, formula, read, text, values, words

ROOT = Path(__file__).resolve().parents[1]
NEVER = re.compile(r"(?!)()()()()()()")  # with groups, which replacements name
TABLES = {"text": (text.BEFORE_WORDS, text.AFTER_WORDS), "formula": (formula._REWRITES,)}
MODULES = (text, words, values, read)


def rules() -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Yield the name of each rule, and the functions that remove it and put it back."""
    for module, tables in TABLES.items():
        for rows in tables:
            for i, (pattern, replacement) in enumerate(rows):

                def put(row: tuple, rows: list = rows, i: int = i) -> None:
                    rows[i] = row

                row = (pattern, replacement)
                yield (
                    f"{module}: {pattern.pattern}",
                    lambda put=put: put((NEVER, "")),
                    lambda put=put, row=row: put(row),
                )
    for module in MODULES:
        for name, pattern in list(vars(module).items()):
            if isinstance(pattern, re.Pattern):

                def assign(new: re.Pattern, name: str = name) -> None:
                    for other in (*MODULES, compare, formula):
                        if name in vars(other):
                            setattr(other, name, new)

                remove, restore = (lambda new=new, assign=assign: assign(new) for new in (NEVER, pattern))
                yield f"{module.__name__.removeprefix('mathequal.')}: {name}", remove, restore


def readings(texts: list[str]) -> dict[str, str]:
    for cached in (text.spelled, read.read, formula.expression):
        cached.cache_clear()
    return {one: repr(read.read(one)) for one in texts}


def verdicts(pairs: list[tuple[str, str]]) -> list[bool]:
    found = []
    for pair in pairs:
        try:
            found.append(compare.verdict(*pair))
        except (ArithmeticError, LookupError, TypeError, ValueError):
            found.append(False)
    return found


def main() -> None:
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
    references = set()
    for file in (*folder.glob("*.jsonl"), *folder.glob("more/*.jsonl")):
        problems = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        references |= {str(problem["answer"]) for problem in problems if problem.get("answer")}
    lines = (ROOT / "tests" / "answers" / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    pairs = [(case["gold"], case["prediction"]) for case in cases]
    texts = [*sorted(references), *{one for pair in pairs for one in pair} - references]
    whole, labels = readings(texts), dict(zip(pairs, verdicts(pairs), strict=True))
    for name, remove, restore in rules():
        remove()
        changed = {one for one, reading in readings(texts).items() if reading != whole[one]}
        # Rows that formula.py applies, and patterns of sides and names, change no reading, so all verdicts are tried.
        touched = [pair for pair in pairs if name.startswith("formula") or changed & {*pair}]
        now = verdicts(touched)
        restore()
        lost = [pair for pair, verdict in zip(touched, now, strict=True) if verdict != labels[pair]]
        print(f"{len(changed & references):5} references, {len(lost):4} verdicts: {name}", flush=True)
        for pair in lost[:3]:
            print(f"{'':12}{labels[pair]} no more: {pair}", flush=True)


if __name__ == "__main__":
    main()
