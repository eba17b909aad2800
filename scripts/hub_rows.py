"""Rows of data sets as they are on the Hugging Face hub, turned into the fields that all our
data files have.
"""

import re
from collections.abc import Callable

from bnpo.data import last_box

Row = dict[str, object]
MATHARENA = ("HMMT-Feb-2025", "HMMT-Nov-2025", "HMMT-Feb-2026", "BRUMO-2025", "CMIMC-2025")
"""Contests whose files on the hub have the columns of MathArena."""
FIELDS = ("id", "problem", "answer", "solution", "subject", "level", "source")


def whole_number(value: float | str) -> str:
    """Return an answer of AMC, AIME or SVAMP as digits. The files on the hub hold 27, 27.0 or
    text.
    """
    if not float(value).is_integer():
        raise ValueError(f"the answer {value!r} is not a whole number")
    return str(int(float(value)))


def contest_id(url: str) -> str:
    """Return 2023-AMC12A-1 for the address .../2023_AMC_12A_Problems/Problem_1."""
    *_, contest, number = re.split(r"/|_Problems/Problem_", url)
    return f"{contest.replace('AMC_', 'AMC').replace('_', '-')}-{number}"


def aime_id(year: int, n: int) -> str:
    """Return the id of problem n, from 0: 15 problems of the first exam come first, then 15 of
    the second.
    """
    return f"{year}-AIME-{'I' if n < 15 else 'II'}-{n % 15 + 1}"


def gsm8k_answer(text: str) -> str:
    """Return what follows ####. Numbers above 999 have commas."""
    _, mark, answer = text.rpartition("####")
    if not mark:
        raise ValueError(f"no #### in the answer '{text[:60]}'")
    return answer.strip().replace(",", "")


def svamp_problem(row: Row) -> str:
    """Return the body as a sentence, and the question."""
    body = row["Body"].strip()
    return f"{body}{'' if body.endswith('.') else '.'} {row['Question'].strip()}"


def _gsm8k(split: str) -> dict:
    answer = lambda row: gsm8k_answer(row["answer"])  # noqa: E731
    return {
        "id": lambda row: f"{split}/{row['n']}",
        "problem": "question",
        "answer": answer,
        "solution": "answer",
    }


def _contest(identify: Callable[[Row], object], problem: str = "problem") -> dict:
    return {"id": identify, "problem": problem, "answer": lambda row: whole_number(row["answer"])}


def _matharena(contest: str) -> dict:
    return {
        "id": lambda row: f"{contest}-{row['problem_idx']}",
        "problem": "problem",
        "answer": lambda row: str(row["answer"]),
        "subject": lambda row: ", ".join(row.get("problem_type") or ()) or None,
    }


CONVERSIONS: dict[str, dict[str, str | Callable[[Row], object]]] = {
    "math_train": {
        "id": lambda row: f"train/{row['n']}",
        "problem": "problem",
        "answer": lambda row: last_box(row["solution"]),
        "solution": "solution",
        "subject": "type",
        # Two problems have "Level ?".
        "level": lambda row: (
            None if row["level"] == "Level ?" else int(row["level"].removeprefix("Level "))
        ),
    },
    "math500": {
        "id": lambda row: row["unique_id"].removesuffix(".json"),
        **{name: name for name in ("problem", "answer", "solution", "subject", "level")},
    },
    "amc23": _contest(lambda row: contest_id(row["url"]), problem="question"),
    "aime2024": {
        "id": lambda row: contest_id(row["url"]),
        "problem": "problem",
        # The solution is only a box with the answer
        "answer": lambda row: whole_number(last_box(row["solution"])),
    },
    "aime2025": _contest(lambda row: aime_id(2025, row["n"])),
    "aime2026": _contest(lambda row: aime_id(2026, row["problem_idx"] - 1)),
    "gsm8k_test": _gsm8k("test"),
    "gsm8k_train": _gsm8k("train"),
    "svamp": {
        "id": "ID",
        "problem": svamp_problem,
        "answer": lambda row: whole_number(row["Answer"]),
        "solution": "Equation",
        "subject": "Type",
    },
    "minerva_math": {
        "id": lambda row: f"minerva/{row['idx']}",
        "problem": "problem",
        "answer": lambda row: last_box(row["solution"]),
        "solution": "solution",
        "subject": "type",
    },
    "olympiadbench": {
        "id": lambda row: f"OE_TO_maths_en_COMP/{row['id']}",
        "problem": "question",
        "answer": lambda row: ",".join(row["final_answer"]),
        "solution": lambda row: "\n\n".join(row["solution"]),
        "subject": "subfield",
    },
    "amo_bench_p": {
        "id": lambda row: f"AMO-{row['question_id']}",
        # The problem is followed by the format that the authors' own grader reads.
        "problem": lambda row: row["prompt"].partition("After solving the above problem")[0],
        "answer": lambda row: (
            last_box(row["answer"]) if r"\boxed" in row["answer"] else row["answer"]
        ),
        "solution": "solution",
    },
    **{contest.lower().replace("-", "_"): _matharena(contest) for contest in MATHARENA},
}
"""By set and field: the column of the hub's files, or a function of the row. `n` is the number
of the row, from 0."""


def convert_rows(name: str, rows: list[Row]) -> list[Row]:
    """Return the rows of set `name` with FIELDS. Raises KeyError, TypeError, ValueError or
    AttributeError.
    """
    if name == "svamp":  # its two files hold a random split
        rows = sorted(rows, key=lambda row: int(row["ID"].removeprefix("chal-")))
    if name == "amo_bench_p":  # only a judge can grade descriptions
        rows = [row for row in rows if row["answer_type"] != "description"]
    converted = []
    for n, row in enumerate(rows):
        fields = dict.fromkeys(FIELDS) | {
            "source": "MATH-train" if name == "math_train" else name.upper()
        }
        for field, source in CONVERSIONS[name].items():
            fields[field] = row[source] if isinstance(source, str) else source(row | {"n": n})
        converted.append(fields)
    return converted
