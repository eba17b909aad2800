"""Grade hostile texts one a call from two threads, each call timed; prints one JSON line.

Run by test_hostile.py, in a working directory of its own, as `grade_hostile.py SEED COUNT
TIME_LIMIT`.
"""

import json
import sys
import threading
import time
from collections import Counter

from hostile import hostile_answers

from bnpo.grading.grader import Grader


def main(seed: int, count: int, time_limit: float) -> None:
    grader = Grader(("accuracy", "format"), workers=2, time_limit=time_limit)
    pairs = list(hostile_answers(seed, count))
    values: dict[int, list[float]] = {}
    seconds: dict[int, float] = {}
    in_rank: list[float] = []  # seconds of processor time that each call takes in this process
    failures: dict[int, Counter[str]] = {}

    def grade(share: range) -> None:
        for i in share:
            reference, text = pairs[i]
            started = time.perf_counter()
            started_in_rank = time.thread_time()
            outcomes = grader.submit([text], [reference], tags=True)
            in_rank.append(time.thread_time() - started_in_rank)
            grades = grader.collect(outcomes)
            seconds[i] = time.perf_counter() - started
            values[i], failures[i] = grades.rewards[0].tolist(), grades.failures

    threads = [threading.Thread(target=grade, args=(range(first, count, 2),)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = {
        "graded": len(seconds),
        "values": sorted({value for row in values.values() for value in row}),
        "right": [pairs[i] for i, row in values.items() if row[0] == 1],
        "late": [[taken, *pairs[i]] for i, taken in seconds.items() if taken > 3 * time_limit],
        "in_rank": max(in_rank),
        "failures": sum(failures.values(), Counter()),
    }
    grader.close()
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
