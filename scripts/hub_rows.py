"""Rows of data sets as they are on the Hugging Face hub, turned into the fields that all our data files have."""

import re
from collections.abc import Callable

from mathequal import final_answer

Row = dict[str, object]
FIELDS = ("id", "problem", "answer", "solution", "subject", "level", "source")


def last_box(solution: str) -> str:
    r"""Return the content of the last \boxed or \fbox of a solution. Two of MATH have no braces: `\boxed 2`."""
    boxes = re.split(r"\\(?:boxed|fbox) *", solution)[1:]
    if not boxes:
        raise ValueError(f"no box in the solution '{solution[:60]}'")
    if not boxes[-1].startswith("{"):
        return re.match(r"[^\s$.,]*", boxes[-1])[0]
    answer = final_answer(r"\boxed" + boxes[-1])
    if answer is None:
        raise ValueError(f"a box without end in the solution '{solution[:60]}'")
    return answer


def whole_number(value: float | str) -> str:
    """Return an answer of AMC, AIME or SVAMP as digits. The files on the hub hold 27, 27.0 or text."""
    if not float(value).is_integer():
        raise ValueError(f"the answer {value!r} is not a whole number")
    return str(int(float(value)))


def contest_id(url: str) -> str:
    """Return 2023-AMC12A-1 for the address .../2023_AMC_12A_Problems/Problem_1."""
    *_, contest, number = re.split(r"/|_Problems/Problem_", url)
    return f"{contest.replace('AMC_', 'AMC').replace('_', '-')}-{number}"


def aime_id(year: int, n: int) -> str:
    """Return the id of problem n, from 0: 15 problems of the first exam come first, then 15 of the second."""
    return f"{year}-AIME-{'I' if n < 15 else 'II'}-{n % 15 + 1}"


def _math_train(n: int, row: Row) -> Row:
    level = row["level"].removeprefix("Level ")  # two problems have "Level ?"
    return {
        "id": f"train/{n}",
        "problem": row["problem"],
        "answer": last_box(row["solution"]),
        "solution": row["solution"],
        "subject": row["type"],
        "level": int(level) if level != "?" else None,
    }


def _math500(n: int, row: Row) -> Row:
    fields = {name: row[name] for name in ("problem", "answer", "solution", "subject", "level")}
    return {"id": row["unique_id"].removesuffix(".json"), **fields}


def _amc23(n: int, row: Row) -> Row:
    return {"id": contest_id(row["url"]), "problem": row["question"], "answer": whole_number(row["answer"])}


def _aime2024(n: int, row: Row) -> Row:
    answer = whole_number(last_box(row["solution"]))  # the solution is only a box with the answer
    return {"id": contest_id(row["url"]), "problem": row["problem"], "answer": answer}


def _aime2025(n: int, row: Row) -> Row:
    return {"id": aime_id(2025, n), "problem": row["problem"], "answer": whole_number(row["answer"])}


def _aime2026(n: int, row: Row) -> Row:
    number = aime_id(2026, row["problem_idx"] - 1)
    return {"id": number, "problem": row["problem"], "answer": whole_number(row["answer"])}


def _gsm8k(n: int, row: Row) -> Row:
    _, mark, answer = row["answer"].rpartition("####")
    if not mark:
        raise ValueError(f"no #### in the answer '{row['answer'][:60]}'")
    # Numbers above 999 have commas.
    return {"problem": row["question"], "answer": answer.strip().replace(",", ""), "solution": row["answer"]}


def _gsm8k_test(n: int, row: Row) -> Row:
    return {"id": f"test/{n}", **_gsm8k(n, row)}


def _gsm8k_train(n: int, row: Row) -> Row:
    return {"id": f"train/{n}", **_gsm8k(n, row)}


def _svamp(n: int, row: Row) -> Row:
    body = row["Body"].strip()
    stop = "" if body.endswith(".") else "."
    return {
        "id": row["ID"],
        "problem": f"{body}{stop} {row['Question'].strip()}",
        "answer": whole_number(row["Answer"]),
        "solution": row["Equation"],
        "subject": row["Type"],
    }


def _minerva_math(n: int, row: Row) -> Row:
    fields = {"problem": row["problem"], "answer": last_box(row["solution"]), "solution": row["solution"]}
    return {"id": f"minerva/{row['idx']}", **fields, "subject": row["type"]}


def _olympiadbench(n: int, row: Row) -> Row:
    return {
        "id": f"OE_TO_maths_en_COMP/{row['id']}",
        "problem": row["question"],
        "answer": ",".join(row["final_answer"]),
        "solution": "\n\n".join(row["solution"]),
        "subject": row["subfield"],
    }


def _amo_bench_p(n: int, row: Row) -> Row | None:
    if row["answer_type"] == "description":
        return None  # only a judge can grade it
    # The problem is followed by the format that the authors' own grader reads.
    problem, _, _ = row["prompt"].partition("After solving the above problem")
    answer = last_box(row["answer"]) if r"\boxed" in row["answer"] else row["answer"]
    return {"id": f"AMO-{row['question_id']}", "problem": problem, "answer": answer, "solution": row["solution"]}


def _matharena(label: str) -> Callable[[int, Row], Row]:
    def convert(n: int, row: Row) -> Row:
        subject = ", ".join(row.get("problem_type") or ()) or None
        fields = {"problem": row["problem"], "answer": str(row["answer"]), "subject": subject}
        return {"id": f"{label}-{row['problem_idx']}", **fields}

    return convert


CONVERSIONS: dict[str, Callable[[int, Row], Row | None]] = {
    "math_train": _math_train,
    "math500": _math500,
    "amc23": _amc23,
    "aime2024": _aime2024,
    "aime2025": _aime2025,
    "aime2026": _aime2026,
    "gsm8k_test": _gsm8k_test,
    "gsm8k_train": _gsm8k_train,
    "svamp": _svamp,
    "minerva_math": _minerva_math,
    "olympiadbench": _olympiadbench,
    "amo_bench_p": _amo_bench_p,
    "hmmt_feb_2025": _matharena("HMMT-Feb-2025"),
    "hmmt_nov_2025": _matharena("HMMT-Nov-2025"),
    "hmmt_feb_2026": _matharena("HMMT-Feb-2026"),
    "brumo_2025": _matharena("BRUMO-2025"),
    "cmimc_2025": _matharena("CMIMC-2025"),
}
"""By set: the function that converts row n of the hub's files. None: the row is left out."""


def convert_rows(name: str, rows: list[Row]) -> list[Row]:
    """Return the rows of set `name` with FIELDS. Raises KeyError, TypeError, ValueError or AttributeError."""
    if name == "svamp":  # its two files hold a random split
        rows = sorted(rows, key=lambda row: int(row["ID"].removeprefix("chal-")))
    converted = []
    for n, row in enumerate(rows):
        fields = CONVERSIONS[name](n, row)
        if fields is not None:
            source = "MATH-train" if name == "math_train" else name.upper()
            converted.append(dict.fromkeys(FIELDS) | fields | {"source": source})
    return converted
