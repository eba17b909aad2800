"""Grade labelled cases: the command line of `python -m mathequal`."""

import sys
import time
from json import dumps
from pathlib import Path
from typing import Literal

import tyro

from bnpo.files import InputError, read_json_lines
from bnpo.grading.grader import Grader
from mathequal.equality import final_answer


def grade_cases(path: Path, grader: str) -> dict:
    """Grade the JSON lines of `path`: strings `gold` and `prediction` (a text with a box, or a bare answer) and perhaps
    the boolean `equal` that is expected. Raises InputError naming file and line.

    Returns n, agreement (share of the labelled cases, None without any), the disagreeing cases, why some have no
    verdict (they count as different), and answers a second.
    """
    cases = []
    for where, case in read_json_lines(path):
        for field, kind in (("gold", str), ("prediction", str), ("equal", bool)):
            if not isinstance(({"equal": False} | case).get(field), kind):
                raise InputError(f"{where}: field '{field}' must be a {kind.__name__}")
        cases.append(case)
    predictions = [case["prediction"] for case in cases]
    texts = [text if final_answer(text) is not None else f"\\boxed{{{text}}}" for text in predictions]
    pool = Grader(grader=grader)
    pool([r"\boxed{1+x}"], ["x+1"])  # the workers are up before the clock starts
    started = time.perf_counter()
    verdicts = pool(texts, [case["gold"] for case in cases])[:, 0]
    seconds = time.perf_counter() - started
    failures = dict(pool.take_failures())
    pool.close()
    labelled = [(case, verdict) for case, verdict in zip(cases, verdicts, strict=True) if "equal" in case]
    wrong = [case for case, verdict in labelled if verdict != case["equal"]]
    return {
        "n": len(cases),
        "agreement": 1 - len(wrong) / len(labelled) if labelled else None,
        "false_positives": [case for case in wrong if not case["equal"]],
        "false_negatives": [case for case in wrong if case["equal"]],
        "failures": failures,
        "per_second": len(cases) / seconds,
    }


def main(
    cases: tyro.conf.Positional[Path],
    json: tyro.conf.FlagCreatePairsOff[bool] = False,
    grader: Literal["default", "reference"] = "default",
) -> None:
    """Grade JSON-lines cases and compare with their labels.

    Args:
        cases: File with the fields `gold`, `prediction` and, if known, `equal`, one case a line.
        json: Print one JSON object in place of the report.
        grader: The rule: ours, or that of the authors' released code.
    """
    try:
        report = grade_cases(cases, grader)
    except InputError as error:
        sys.exit(f"error: {error}")
    if json:
        print(dumps(report, ensure_ascii=False))
        return
    for kind in ("false_positives", "false_negatives"):
        print(f"{kind.replace('_', ' ')}: {len(report[kind])}")
        for case in report[kind]:
            print(f"  gold {case['gold']!r}, prediction {case['prediction']!r}")
    agreement = "no case is labelled" if report["agreement"] is None else f"agreement {report['agreement']:.4f}"
    failed = sum(report["failures"].values())
    print(f"{report['n']} cases, {agreement}, {failed} without a verdict, {report['per_second']:.0f} answers a second")


if __name__ == "__main__":
    # Worker processes import the main module again, and warn where its spec says that it is imported already.
    __spec__ = None
    tyro.cli(main, prog="python -m mathequal")
