"""Files of data sets in the hub's own formats, made from our rows: the reverse of
`hub_rows.convert_rows`.
"""

import json
import random
import re

import pyarrow
import pyarrow.parquet

from prepare_data import SOURCES

AMO_FORMAT = (
    "After solving the above problem, please output your final answer in the following "
    "format:\n### ..."
)
WIKI = "https://artofproblemsolving.com/wiki/index.php"


def hub_row(name: str, n: int, row: dict) -> dict:
    """What `convert_rows` is to read, with the columns of the hub's file."""
    problem, answer, solution = row["problem"], row["answer"], row["solution"]
    number = row["id"].rpartition("-" if "-" in row["id"] else "/")[2]
    if name.startswith(("hmmt", "brumo", "cmimc")):
        fields = {"problem_idx": int(number), "problem": problem, "answer": answer}
        return fields | ({"problem_type": row["subject"].split(", ")} if row["subject"] else {})
    contest, _, exam_number = row["id"].replace("AMC", "AMC-").replace("-", "_").rpartition("_")
    url = f"{WIKI}/{contest}_Problems/Problem_{exam_number}"
    body, _, question = problem.rpartition(". ")
    columns = {
        "math_train": lambda: (
            {"problem": problem, "level": f"Level {row['level'] or '?'}", "type": row["subject"]}
            | {"solution": solution}
        ),
        "math500": lambda: (
            {"problem": problem, "solution": solution, "answer": answer, "subject": row["subject"]}
            | {"level": row["level"], "unique_id": f"{row['id']}.json"}
        ),
        "aime2024": lambda: {
            "id": 60 + n,
            "problem": problem,
            "solution": f"\\boxed{{{answer}}}",
            "url": url,
        },
        "aime2025": lambda: {"problem": problem, "answer": int(answer), "id": str(n)},
        "aime2026": lambda: {"problem_idx": n + 1, "answer": int(answer), "problem": problem},
        "amc23": lambda: {"id": n, "answer": float(answer), "url": url, "question": problem},
        "gsm8k_test": lambda: {"question": problem, "answer": solution},
        "gsm8k_train": lambda: {"question": problem, "answer": solution},
        # Every second body has no full stop of its own.
        "svamp": lambda: (
            {"ID": row["id"], "Body": body + "." * (n % 2), "Question": question, "Answer": answer}
            | {"Equation": solution, "Type": row["subject"]}
        ),
        "minerva_math": lambda: {
            "problem": problem,
            "solution": solution,
            "type": row["subject"],
            "idx": n,
        },
        "olympiadbench": lambda: (
            {"id": int(row["id"].partition("/")[2]), "question": problem, "context": None}
            | {"solution": solution.split("\n\n"), "final_answer": re.split(r",(?=\$)", answer)}
            | {"subfield": row["subject"]}
        ),
        "amo_bench_p": lambda: (
            {"question_id": int(number), "prompt": problem + AMO_FORMAT, "solution": solution}
            | {"answer": f"$\\boxed{{{answer}}}$", "answer_type": "number"}
        ),
    }
    return columns[name]()


def hub_files(name: str, rows: list[dict]) -> dict[str, bytes]:
    """The files of set `name` on the hub, by path, with `rows` as their content."""
    rows, files = [hub_row(name, n, row) for n, row in enumerate(rows)], SOURCES[name].files
    if name == "svamp":  # a random split
        random.Random(0).shuffle(rows)
    if name == "amo_bench_p":
        rows.insert(
            1, rows[0] | {"question_id": 2, "answer": "All of them.", "answer_type": "description"}
        )
    share, content = -(-len(rows) // len(files)), {}
    for i, file in enumerate(files):
        part = rows[i * share : (i + 1) * share]
        if file.endswith(".parquet"):
            buffer = pyarrow.BufferOutputStream()
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(part), buffer)
            content[file] = buffer.getvalue().to_pybytes()
        else:
            content[file] = "".join(json.dumps(row) + "\n" for row in part).encode()
    return content
