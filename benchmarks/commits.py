"""Compare the time per step of the working tree with that of an earlier commit.

    python benchmarks/commits.py COMMIT [--model smollm2] [--rounds 4]

Both train in turns, so that a slow minute of the machine affects both. Rows, each for `old` and `new`:

- mean_step_seconds, step_seconds: mean and median over all measured steps
- <phase>_seconds: median of each phase
- step_ratio: median of the new steps over that of the old ones
"""

import argparse
import statistics
import subprocess
import tempfile

from common import PHASES, ROOT, Case, median, read_case, row, training_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", metavar="COMMIT")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each")
    case, arguments = read_case(parser)
    with tempfile.TemporaryDirectory() as folder:
        worktree = ["git", "worktree", "add", "--quiet", "--detach", folder, arguments.commit]
        subprocess.run(worktree, cwd=ROOT, check=True)
        try:
            steps = measure({"old": folder, "new": ROOT}, case, arguments.rounds)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)
    for name, measured in steps.items():
        row(f"{name}_mean_step_seconds", statistics.fmean(step["seconds/total"] for step in measured))
        row(f"{name}_step_seconds", median(measured, "seconds/total"))
        for phase in PHASES:
            row(f"{name}_{phase}_seconds", median(measured, f"seconds/{phase}"))
    row("step_ratio", median(steps["new"], "seconds/total") / median(steps["old"], "seconds/total"))


def measure(roots: dict, case: Case, rounds: int) -> dict[str, list[dict]]:
    """Return the metrics of all measured steps by name of the checkout."""
    steps: dict[str, list[dict]] = {name: [] for name in roots}
    for _ in range(rounds):
        for name, root in roots.items():
            steps[name] += training_steps(case, root=root)
    return steps


if __name__ == "__main__":
    main()
