"""Grade labelled cases or one pair: the command line of `python -m mathequal`."""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

from mathequal import final_answer, start_equal, submit

RULES = ("default", "paper")
"""Our rule, and that of the authors' released code."""


def read_cases(path: Path) -> list[dict]:
    """Return the objects of a JSON-lines file. Ends the program if the file is missing, empty or malformed."""
    if not path.is_file():
        sys.exit(f"error: {path}: no such data file")
    cases = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            if line.strip():
                cases.append(_case(json.loads(line)))
        except ValueError as error:  # of json and of UTF-8, too
            sys.exit(f"error: {path}:{number}: {error}; the file needs one JSON object per line")
    if not cases:
        sys.exit(f"error: {path}: is empty; it needs one JSON object per line")
    return cases


def _case(case: object) -> dict:
    if not isinstance(case, dict):
        raise ValueError(f"a {type(case).__name__} where a JSON object is needed")
    for field, kind in (("gold", str), ("prediction", str), ("equal", bool)):
        if not isinstance(case.get(field, False if field == "equal" else None), kind):
            raise ValueError(f"field '{field}' must be a {kind.__name__}")
    return case


def start_verdict(rule: str, reference: str, text: str) -> Future:
    """Return the future of the verdict on a text with a box or a bare answer, or of a Failure."""
    answer = final_answer(text)
    if rule == "paper":
        boxed = f"\\boxed{{{text}}}" if answer is None else text
        return submit("mathequal.released:released_verdict", reference, boxed)
    return start_equal(reference, text if answer is None else answer)


def grade(pairs: list[tuple[str, str]], rule: str) -> tuple[list[bool], Counter[str]]:
    """Return the verdicts, and the number of different pairs without one by the reason. Those count as different."""
    started = {pair: start_verdict(rule, *pair) for pair in dict.fromkeys(pairs)}
    outcomes = {pair: call.result() for pair, call in started.items()}
    failures = Counter(outcome.kind for outcome in outcomes.values() if not isinstance(outcome, bool))
    return [outcomes[pair] is True for pair in pairs], failures


def grade_cases(cases: list[dict], rule: str) -> dict:
    """Grade cases with the strings `gold` and `prediction` and, if known, the boolean `equal` that is expected.

    Returns n, agreement (share of the labelled cases, None without any), the cases that disagree, the number of cases
    without a verdict by the reason (they count as different), and answers per second.
    """
    started = time.perf_counter()
    verdicts, failures = grade([(case["gold"], case["prediction"]) for case in cases], rule)
    seconds = time.perf_counter() - started
    labelled = [(case, verdict) for case, verdict in zip(cases, verdicts, strict=True) if "equal" in case]
    wrong = [case for case, verdict in labelled if verdict != case["equal"]]
    return {
        "n": len(cases),
        "agreement": 1 - len(wrong) / len(labelled) if labelled else None,
        "false_positives": [case for case in wrong if not case["equal"]],
        "false_negatives": [case for case in wrong if case["equal"]],
        "failures": dict(failures),
        "per_second": len(cases) / seconds,
    }


def print_report(report: dict) -> None:
    for kind in ("false_positives", "false_negatives"):
        print(f"{kind.replace('_', ' ')}: {len(report[kind])}")
        for case in report[kind]:
            print(f"  gold {case['gold']!r}, prediction {case['prediction']!r}")
    agreement = "no case is labelled" if report["agreement"] is None else f"agreement {report['agreement']:.4f}"
    failed = sum(report["failures"].values())
    print(f"{report['n']} cases, {agreement}, {failed} without a verdict, {report['per_second']:.0f} answers a second")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mathequal", description=__doc__)
    cases_help = "JSON-lines file with gold, prediction (a text with a box, or a bare answer) and, if known, equal"
    rules_help = "default: the rules of RULES.md; paper: the rule of the authors' released code"
    parser.add_argument("cases", nargs="?", type=Path, help=cases_help)
    # REMAINDER, since an answer may begin with a minus sign
    parser.add_argument("--pair", nargs=argparse.REMAINDER, help="grade GOLD ANSWER; must come last")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the report")
    parser.add_argument("--grader", choices=RULES, default="default", help=rules_help)
    arguments = parser.parse_args()
    if (arguments.cases is None) == (arguments.pair is None):
        parser.error("give a file of cases, or --pair GOLD ANSWER")
    if arguments.pair is not None and len(arguments.pair) != 2:
        parser.error("--pair needs GOLD and ANSWER, and must come last")
    return arguments


def main() -> None:
    """Grade JSON-lines cases and compare with their labels, or grade one pair."""
    arguments = parse_arguments()
    cases = read_cases(arguments.cases) if arguments.cases else []
    if arguments.pair:
        [equal], failures = grade([tuple(arguments.pair)], arguments.grader)
        report = {"equal": equal, "failures": dict(failures)}
    else:
        report = grade_cases(cases, arguments.grader)
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False))
    elif not arguments.pair:
        print_report(report)
    elif report["failures"]:
        print(f"different (no verdict: {', '.join(report['failures'])})")
    else:
        print("equal" if report["equal"] else "different")


if __name__ == "__main__":
    main()
