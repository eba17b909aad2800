"""Grade labelled cases or one pair: the command line of `python -m mathequal`."""

import argparse
import json
import sys
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

from mathequal import final_answer, result_of, start_equal, submit


def read_cases(path: Path) -> list[dict]:
    """Return the objects of a JSON-lines file. Ends the program with the line that is none."""
    if not path.is_file():
        sys.exit(f"error: {path}: no such data file")
    cases = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            case = json.loads(line)
            texts = case["gold"], case["prediction"], ""
            if set(map(type, texts)) != {str} or type(case.get("equal", True)) is not bool:
                raise TypeError
        except (ValueError, TypeError, LookupError):  # ValueError: of json and of UTF-8
            fields = "the strings gold and prediction and, if known, the boolean equal"
            sys.exit(f"error: {path}:{number}: is no JSON object with {fields}")
        cases.append(case)
    return cases


def start_verdict(rule: str, reference: str, text: str) -> Future:
    """Return the future of the verdict on a text with a box or a bare answer, or of a Failure."""
    answer = final_answer(text)
    if rule == "paper":
        boxed = f"\\boxed{{{text}}}" if answer is None else text
        return submit("mathequal.released:released_verdict", reference, boxed)
    return start_equal(reference, text if answer is None else answer)


def grade_cases(cases: list[dict], rule: str) -> dict:
    """Grade cases with the strings `gold` and `prediction` and, if known, the boolean `equal` that
    is expected.

    Returns n, agreement (share of the labelled cases, None without any), the cases that disagree,
    and the number of cases without a verdict by the reason (they count as different).
    """
    calls = [start_verdict(rule, case["gold"], case["prediction"]) for case in cases]
    outcomes = [result_of(call) for call in calls]
    labelled = [
        (case, outcome is True)
        for case, outcome in zip(cases, outcomes, strict=True)
        if "equal" in case
    ]
    wrong = [case for case, verdict in labelled if verdict != case["equal"]]
    return {
        "n": len(cases),
        "agreement": 1 - len(wrong) / len(labelled) if labelled else None,
        "false_positives": [case for case in wrong if not case["equal"]],
        "false_negatives": [case for case in wrong if case["equal"]],
        "failures": dict(
            Counter(outcome.kind for outcome in outcomes if not isinstance(outcome, bool))
        ),
    }


def main() -> None:
    """Grade JSON-lines cases and compare with their labels, or grade one pair."""
    parser = argparse.ArgumentParser(prog="python -m mathequal", description=__doc__)
    cases_help = (
        "JSON-lines file with gold, prediction (a text with a box, or a bare answer) and, if "
        "known, equal"
    )
    rules_help = "default: the rules of RULES.md; paper: the rule of the authors' released code"
    parser.add_argument("cases", nargs="?", type=Path, help=cases_help)
    # REMAINDER, since an answer may begin with a minus sign
    parser.add_argument(
        "--pair", nargs=argparse.REMAINDER, help="grade GOLD ANSWER; must come last"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the report on cases as one line of JSON"
    )
    parser.add_argument(
        "--grader", choices=("default", "paper"), default="default", help=rules_help
    )
    arguments = parser.parse_args()
    pair = arguments.pair or []
    if len(pair) != (2 if arguments.cases is None else 0):
        parser.error("give a file of cases, or --pair GOLD ANSWER, which must come last")
    if pair:
        verdict = result_of(start_verdict(arguments.grader, *pair))
        failure = "" if isinstance(verdict, bool) else f" (no verdict: {verdict.kind})"
        print("equal" if verdict is True else f"different{failure}")
        return
    report = grade_cases(read_cases(arguments.cases), arguments.grader)
    print(json.dumps(report, ensure_ascii=False, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
