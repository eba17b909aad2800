"""Grade labelled cases: the command line of `python -m bnpo.answers`."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from bnpo.answers.equality import final_answer
from bnpo.answers.rewards import Grader
from bnpo.files import InputError, read_json_lines


def grade_cases(path: Path, grader: str = "default") -> dict:
    """Grade the JSON lines of `path`: strings `gold` and `prediction` (a text with a box, or a bare answer) and perhaps
    the boolean `equal` that is expected. Raises InputError naming file and line.

    Returns n, agreement (share of the labelled cases, None without any), the disagreeing cases, and answers a second.
    """
    cases = []
    for where, case in read_json_lines(path):
        for field, kind in (("gold", str), ("prediction", str), ("equal", bool)):
            if not isinstance(case.get(field, True if field == "equal" else None), kind):
                raise InputError(f"{where}: field '{field}' must be a {kind.__name__}")
        cases.append(case)
    texts = [
        c["prediction"] if final_answer(c["prediction"]) is not None else f"\\boxed{{{c['prediction']}}}" for c in cases
    ]
    pool = Grader(grader=grader)
    pool([r"\boxed{1+x}"], ["x+1"])  # the workers are up before the clock starts
    started = time.perf_counter()
    verdicts = pool(texts, [case["gold"] for case in cases])[:, 0]
    seconds = time.perf_counter() - started
    pool.close()
    labelled = [(case, verdict) for case, verdict in zip(cases, verdicts, strict=True) if "equal" in case]
    return {
        "n": len(cases),
        "agreement": sum(v == c["equal"] for c, v in labelled) / len(labelled) if labelled else None,
        "false_positives": [case for case, verdict in labelled if verdict and not case["equal"]],
        "false_negatives": [case for case, verdict in labelled if case["equal"] and not verdict],
        "per_second": len(cases) / seconds,
    }


@dataclass(frozen=True)
class CasesConfig:
    """Grade JSON-lines cases and compare with their labels."""

    cases: tyro.conf.Positional[Path]
    """File with the fields `gold`, `prediction` and, if known, `equal`, one case a line."""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print one JSON object in place of the report."""
    grader: Literal["default", "reference"] = "default"
    """The rule: ours, or that of the authors' released code."""


def main() -> None:
    """Command line of `python -m bnpo.answers`."""
    config = tyro.cli(CasesConfig, prog="python -m bnpo.answers")
    try:
        report = grade_cases(config.cases, config.grader)
    except InputError as error:
        sys.exit(f"error: {error}")
    if config.json:
        print(json.dumps(report, ensure_ascii=False))
        return
    for kind in ("false_positives", "false_negatives"):
        print(f"{kind.replace('_', ' ')}: {len(report[kind])}")
        for case in report[kind]:
            print(f"  gold {case['gold']!r}, prediction {case['prediction']!r}")
    agreement = "no case is labelled" if report["agreement"] is None else f"agreement {report['agreement']:.4f}"
    print(f"{report['n']} cases, {agreement}, {report['per_second']:.0f} answers a second")


if __name__ == "__main__":
    # Worker processes import the main module again, and warn where its spec says that it is imported already.
    __spec__ = None
    main()
