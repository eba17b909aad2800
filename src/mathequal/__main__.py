"""Grade labelled cases or one pair: the command line of `python -m mathequal`."""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from mathequal.child import Outcome, VerdictProcess
from mathequal.equality import final_answer, quick_verdict

RULES = ("default", "reference")


class InputError(Exception):
    """Bad input, in one line that names file and line."""


class CaseGrader:
    """Grades pairs by one of RULES, each pair once. `failures` counts the pairs without a verdict by the reason."""

    def __init__(self, rule: str):
        self._rule = rule
        self._child = VerdictProcess()
        self._outcomes: dict[tuple[str, str], Outcome] = {}
        self.failures: Counter[str] = Counter()
        self._child.verdict("slow_verdict", "1+x", "x+1")  # the child is up before a clock starts

    def equal(self, gold: str, prediction: str) -> bool:
        """Whether `prediction`, a text with a box or a bare answer, is equal to `gold`; False without a verdict."""
        if (gold, prediction) not in self._outcomes:
            outcome = self._outcome(gold, prediction)
            self._outcomes[gold, prediction] = outcome
            if outcome.failure:
                self.failures[outcome.failure] += 1
        return self._outcomes[gold, prediction].equal

    def _outcome(self, gold: str, prediction: str) -> Outcome:
        answer = final_answer(prediction)
        if self._rule == "reference":
            text = prediction if answer is not None else f"\\boxed{{{prediction}}}"
            return self._child.verdict("released_verdict", gold, text)
        if answer is None:
            answer = final_answer(f"\\boxed{{{prediction}}}") or ""
        verdict = quick_verdict(gold, answer)
        return self._child.verdict("slow_verdict", gold, answer) if verdict is None else Outcome(verdict)

    def close(self) -> None:
        self._child.close()


def read_cases(path: Path) -> list[dict]:
    """Return the objects of a JSON-lines file. Raises InputError if the file is missing, empty or malformed."""
    if not path.is_file():
        raise InputError(f"{path}: no such data file")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    cases = [_read_case(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not cases:
        raise InputError(f"{path}: is empty; it needs one JSON object per line")
    return cases


def _read_case(place: str, line: str) -> dict:
    try:
        case = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{place}: not JSON ({error}); the file needs one JSON object per line") from error
    if not isinstance(case, dict):
        raise InputError(f"{place}: a {type(case).__name__} where a JSON object is needed")
    for field, kind in (("gold", str), ("prediction", str), ("equal", bool)):
        is_optional = field == "equal"
        if not (isinstance(case.get(field), kind) or (is_optional and field not in case)):
            raise InputError(f"{place}: field '{field}' must be a {kind.__name__}")
    return case


def grade_cases(cases: list[dict], grader: CaseGrader) -> dict:
    """Grade cases with the strings `gold` and `prediction` and, if known, the boolean `equal` that is expected.

    Returns n, agreement (share of the labelled cases, None without any), the cases that disagree, the number of cases
    without a verdict by the reason (they count as different), and answers per second.
    """
    started = time.perf_counter()
    verdicts = [grader.equal(case["gold"], case["prediction"]) for case in cases]
    seconds = time.perf_counter() - started
    labelled, false_positives, false_negatives = 0, [], []
    for case, verdict in zip(cases, verdicts, strict=True):
        if "equal" not in case:
            continue
        labelled += 1
        if verdict and not case["equal"]:
            false_positives.append(case)
        elif case["equal"] and not verdict:
            false_negatives.append(case)
    wrong = len(false_positives) + len(false_negatives)
    return {
        "n": len(cases),
        "agreement": 1 - wrong / labelled if labelled else None,
        "false_positives": false_positives,
        "false_negatives": false_negatives,
        "failures": dict(grader.failures),
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


def grade_pair(gold: str, answer: str, grader: CaseGrader) -> dict:
    """Return `equal`, whether the two are equal, and `failures`, why there is no verdict."""
    return {"equal": grader.equal(gold, answer), "failures": dict(grader.failures)}


def print_verdict(verdict: dict) -> None:
    if verdict["failures"]:
        print(f"different (no verdict: {', '.join(verdict['failures'])})")
    else:
        print("equal" if verdict["equal"] else "different")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mathequal", description=__doc__)
    parser.add_argument(
        "cases",
        nargs="?",
        type=Path,
        help="JSON-lines file with gold, prediction (a text with a box, or a bare answer) and, if known, equal",
    )
    # REMAINDER, since an answer may begin with a minus sign
    parser.add_argument("--pair", nargs=argparse.REMAINDER, help="grade GOLD ANSWER; must come last")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the report")
    parser.add_argument(
        "--grader",
        choices=RULES,
        default="default",
        help="default: the rules of docs/grader.md; reference: the rule of the authors' released code",
    )
    arguments = parser.parse_args()
    if (arguments.cases is None) == (arguments.pair is None):
        parser.error("give a file of cases, or --pair GOLD ANSWER")
    if arguments.pair is not None and len(arguments.pair) != 2:
        parser.error("--pair needs GOLD and ANSWER, and must come last")
    return arguments


def main() -> None:
    """Grade JSON-lines cases and compare with their labels, or grade one pair."""
    arguments = parse_arguments()
    try:
        cases = read_cases(arguments.cases) if arguments.cases else []
    except InputError as error:
        sys.exit(f"error: {error}")
    grader = CaseGrader(arguments.grader)
    report = grade_pair(*arguments.pair, grader) if arguments.pair else grade_cases(cases, grader)
    grader.close()
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False))
    elif arguments.pair:
        print_verdict(report)
    else:
        print_report(report)


if __name__ == "__main__":
    main()
