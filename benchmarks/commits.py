"""Compare training with the code of an earlier commit, or with other flags of train.py, in turns.

    # old: the code of COMMIT
    python benchmarks/commits.py COMMIT [--model smollm2] [--rounds 4]
    # new: with these flags
    python benchmarks/commits.py --flags="--lora-rank 8"
    # old: the preset's number format
    python benchmarks/commits.py --flags="--dtype bfloat16"

Both kinds of runs take turns, so that a slow minute of the machine affects both. The learning rate
is so small that both sample nearly the same answers. Rows, each for `old` and `new`:

- step_seconds: median over all measured steps
- <phase>_seconds: median of each phase
- gap_mean, gap_max: difference of the log-probabilities of learner and sampler, median of each
  step's
- step_ratio, update_ratio: median of the new steps over that of the old ones
"""

import argparse
import shlex
import subprocess
import tempfile

from common import PHASES, ROOT, Case, median, read_case, row, training_steps

Kinds = dict[str, tuple[str, ...]]
"""Folder of the checkout and more flags, by name."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "commit", metavar="COMMIT", nargs="?", help="commit of the old code (default: this code)"
    )
    parser.add_argument("--flags", default="", help="more flags of the new runs, as one text")
    parser.add_argument("--rounds", type=int, default=4, help="runs of each")
    case, args = read_case(parser)
    kinds: Kinds = {"old": (str(ROOT),), "new": (str(ROOT), *shlex.split(args.flags))}
    if not args.commit:
        return show(case, kinds, args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        worktree = ["git", "worktree", "add", "--quiet", "--detach", folder, args.commit]
        subprocess.run(worktree, cwd=ROOT, check=True)
        try:
            show(case, kinds | {"old": (folder,)}, args.rounds)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


def show(case: Case, kinds: Kinds, rounds: int) -> None:
    """Run both kinds in turns, and print the rows."""
    steps: dict[str, list[dict]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, (root, *flags) in kinds.items():
            steps[name] += training_steps(case, "--lr", "1e-6", *flags, root=root)
    for name, measured in steps.items():
        row(f"{name}_step_seconds", median(measured, "seconds/total"))
        for phase in PHASES:
            row(f"{name}_{phase}_seconds", median(measured, f"seconds/{phase}"))
        for kind in ("mean", "max"):
            row(f"{name}_gap_{kind}", median(measured, f"sampler_learner_gap_{kind}"))
    for ratio, metric in (("step_ratio", "seconds/total"), ("update_ratio", "seconds/update")):
        row(ratio, median(steps["new"], metric) / median(steps["old"], metric))


if __name__ == "__main__":
    main()
