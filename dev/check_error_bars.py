"""Do the error bars tell the truth? 16 runs of the tiny model against 256 runs, on the same questions.

    python dev/check_error_bars.py [--questions 400]

Both evaluations have seeds of their own. On the same questions they differ by the noise of sampling alone, so the
difference is compared with the standard error that the evaluator states (over problems; it must be well inside) and
with that of sampling alone, from the spread over runs (it should be about 1).
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from bnpo.config import TINY_MODEL
from bnpo.files import ROOT
from bnpo.report.read import read_results


@dataclass
class Args:
    output_dir: Path = ROOT / "evals" / "results" / "error-bars"
    """Folder for both evaluations."""
    questions: int = 400
    """Questions of the arithmetic suite."""
    runs: tuple[int, int] = (16, 256)
    """Runs of the two evaluations."""


def main(args: Args) -> None:
    args.output_dir = args.output_dir.resolve()  # eval.py runs in another folder
    results = []
    for seed, runs in enumerate(args.runs):
        folder = args.output_dir / f"{runs}-runs"
        command = [sys.executable, "eval.py", "--ckpt", str(TINY_MODEL), "--suite", "arithmetic", "--seed", str(seed)]
        command += ["--limit", str(args.questions), "--runs", str(runs), "--output-dir", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True)
        results.append(read_results(folder)["results"]["arithmetic"])
    few, many = results
    difference = few["pass1"] - many["pass1"]
    sampling = np.hypot(few["sd_runs"] / np.sqrt(few["runs"]), many["sd_runs"] / np.sqrt(many["runs"]))
    for result in results:
        print(f"{result['runs']} runs: pass@1 {result['pass1']:.5f}, standard error over problems {result['se']:.5f}")
    print(f"difference {difference:+.5f}: {abs(difference) / few['se']:.2f} of the stated standard error")
    print(f"noise of sampling alone {sampling:.5f}: the difference is {abs(difference) / sampling:.2f} of it")
    if abs(difference) > 1.96 * few["se"]:
        sys.exit("the evaluations differ by more than the stated error allows")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
