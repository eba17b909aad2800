"""Compare training with the code of an earlier commit, in turns.

    python benchmarks/commits.py COMMIT [--model smollm2] [--flags="--temperature 0.2"]

Old and new runs take turns, so that a slow minute of the machine affects both. The learning rate is
so small that both sample nearly the same answers. Rows, each for `old` and `new`:

- step_seconds: median over all measured steps
- <phase>_seconds: median of each phase
- step_ratio, update_ratio, generate_ratio: median of the new steps over that of the old ones
"""

import argparse
import shlex
import subprocess
import tempfile

from common import PHASES, ROOT, median, read_case, row, training_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", metavar="COMMIT")
    parser.add_argument("--flags", default="", help="more flags of train.py, as one text")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each code (default: 4)")
    case, args = read_case(parser)
    flags = ("--lr", "1e-6", *shlex.split(args.flags))
    old, new = [], []
    with tempfile.TemporaryDirectory() as folder:
        worktree = ["git", "worktree", "add", "--quiet", "--detach", folder, args.commit]
        subprocess.run(worktree, cwd=ROOT, check=True)
        try:
            for _ in range(args.rounds):
                old += training_steps(case, *flags, root=folder)
                new += training_steps(case, *flags)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)
    for name, steps in (("old", old), ("new", new)):
        row(f"{name}_step_seconds", median(steps, "seconds/total"))
        for phase in PHASES:
            row(f"{name}_{phase}_seconds", median(steps, f"seconds/{phase}"))
    for name, metric in (("step", "total"), ("update", "update"), ("generate", "generate")):
        metric = f"seconds/{metric}"
        row(f"{name}_ratio", median(new, metric) / median(old, metric))


if __name__ == "__main__":
    main()
