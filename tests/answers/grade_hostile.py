"""Grade hostile texts one a call from two threads, each call timed; prints one JSON line.

Run by test_hostile.py, in a working directory of its own, as `grade_hostile.py TIME_LIMIT`.
"""

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from hostile import PAIRS, huge_pairs

from bnpo.grading.grader import Grader


def main(time_limit: float) -> None:
    grader = Grader(("accuracy", "format"), workers=2, time_limit=time_limit)

    def grade(pair: tuple[str, str]) -> tuple[float, list[float], Counter[str]]:
        started = time.perf_counter()
        grades = grader([pair[1]], [pair[0]], tags=True)
        return time.perf_counter() - started, grades.rewards[0].tolist(), grades.failures

    pairs = [*PAIRS, *huge_pairs()]
    with ThreadPoolExecutor(2) as threads:
        seconds, values, failures = zip(*threads.map(grade, pairs), strict=True)
    report = {
        "graded": len(values),
        "values": sorted({value for row in values for value in row}),
        "right": [pair for pair, row in zip(pairs, values, strict=True) if row[0] == 1],
        # A call may take ten times its limit by the clock
        "late": [
            text[:80] for late, text in zip(seconds, pairs, strict=True) if late > 20 * time_limit
        ],
        "failures": sum(failures, Counter()),
    }
    grader.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main(float(sys.argv[1]))
