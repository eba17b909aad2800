"""Check the evaluator's error bars: compare 16 repetitions with 256 repetitions on the same
questions.

    python dev/check_error_bars.py [--questions 400]

A repetition is one sampled answer to each question. The two evaluations of the tiny model have
different seeds but the same questions, so they differ only by the noise of sampling. Their
difference must be well below the evaluator's standard error, which covers the choice of problems,
too. It should be about as large as the noise of sampling alone.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from bnpo.config import TINY_MODEL
from bnpo.files import ROOT


@dataclass
class Args:
    output_dir: Path = ROOT / "evals" / "results" / "error-bars"
    """Folder for both evaluations."""
    questions: int = 400
    """Questions of the arithmetic suite."""
    runs: tuple[int, int] = (16, 256)
    """Repetitions of the two evaluations."""


def main(args: Args) -> None:
    args.output_dir = args.output_dir.resolve()  # eval.py runs in ROOT
    results = []
    for seed, runs in enumerate(args.runs):
        folder = args.output_dir / f"{runs}-runs"
        command = [
            sys.executable,
            "eval.py",
            "--ckpt",
            str(TINY_MODEL),
            "--suite",
            "arithmetic",
            "--seed",
            str(seed),
        ]
        command += [
            "--limit",
            str(args.questions),
            "--repetitions",
            str(runs),
            "--output-dir",
            str(folder),
        ]
        subprocess.run(command, cwd=ROOT, check=True)
        content = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        results.append(content["results"]["arithmetic"])
    few, many = results
    difference = few["pass1"] - many["pass1"]
    sampling = np.hypot(
        few["sd_repetitions"] / np.sqrt(few["repetitions"]),
        many["sd_repetitions"] / np.sqrt(many["repetitions"]),
    )
    for result in results:
        print(
            f"{result['repetitions']} repetitions: pass@1 {result['pass1']:.5f}, standard error "
            f"{result['se']:.5f}"
        )
    print(
        f"difference {difference:+.5f}: {abs(difference) / few['se']:.2f} times the standard error"
    )
    print(
        f"noise of sampling alone {sampling:.5f}: the difference is "
        f"{abs(difference) / sampling:.2f} times as large"
    )
    if abs(difference) > 1.96 * few["se"]:
        sys.exit("the evaluations differ by more than 1.96 standard errors")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
