"""Run the demo: evaluate the tiny model, train it with BNPO on two ranks, evaluate it again, and write a page.

python scripts/demo.py        # `make demo` installs everything first
"""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import torch
import tyro
from rich.console import Console
from rich.table import Table

from bnpo.config import TINY_MODEL
from bnpo.files import ROOT
from bnpo.report.page import write_page


@dataclass
class Args:
    output_dir: Path = ROOT / "runs" / "demo"
    """Folder for the run, the evaluations, summary.json and report.html. An existing folder is deleted first."""
    steps: int = 60
    """Training steps."""
    ranks: int = min(2, torch.cuda.device_count() or 2)
    """Training processes. The default is two, or one on a machine with one GPU."""


def run(*command: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


def pass1(model: Path, folder: Path) -> tuple[float, float]:
    """Evaluate `model` on the arithmetic suite. Return pass@1 and its standard error."""
    run(sys.executable, "eval.py", "--ckpt", str(model), "--suite", "arithmetic", "--output-dir", str(folder))
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    result = results["results"]["arithmetic"]
    return result["pass1"], result["se"]


def main(args: Args) -> None:
    args.output_dir = args.output_dir.resolve()  # train.py and eval.py run in ROOT
    shutil.rmtree(args.output_dir, ignore_errors=True)
    run_dir = args.output_dir / "run"
    base, base_se = pass1(TINY_MODEL, args.output_dir / "base")
    started = time.perf_counter()
    run(
        *(sys.executable, "scripts/launch.py", "--num_gpus", str(args.ranks), "train.py", "--algo", "bnpo"),
        *("--preset", "tiny", "--rollouts-every", "5"),
        *("--steps", str(args.steps), "--output-dir", str(run_dir)),
    )
    seconds = time.perf_counter() - started
    final, final_se = pass1(run_dir / "last", args.output_dir / "final")

    summary = {
        "base_pass1": base,
        "base_se": base_se,
        "final_pass1": final,
        "final_se": final_se,
        "steps": args.steps,
        "train_seconds": seconds,
    }
    (args.output_dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    table = Table(title=f"BNPO on the tiny model: {args.steps} steps on {args.ranks} ranks in {seconds:.0f} s")
    for column in ("model", "pass@1 on 500 held-out questions", "standard error"):
        table.add_column(column)
    table.add_row("base", f"{base:.3f}", f"{base_se:.3f}")
    table.add_row("trained", f"{final:.3f}", f"{final_se:.3f}")
    table.add_row("gain", f"{final - base:+.3f}")
    Console().print(table)
    page = args.output_dir / "report.html"
    write_page(page, [run_dir, args.output_dir / "base", args.output_dir / "final"])
    print(f"open in a browser to see the run, its answers and the evaluations: {page.as_uri()}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
