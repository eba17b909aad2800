"""Run the benchmarks, and compare their rows with those recorded for this type of machine in benchmarks/rows.

    python benchmarks/run.py [--only NAMES] [--keep]

Prints each row when it is measured, and then a table with the recorded rows and the targets. Rows that are worse than
the recorded ones by more than 10 %, and rows that miss their targets, are listed below it. --keep records the rows.
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from common import ROOT
from rich.console import Console
from rich.table import Table

ALL = ("parts", "sharing", "step", "rivals", "evaluator")
AIMS = {
    "repeated_prompts": ("<=", 0.05),
    "rank_imbalance": ("<=", 0.05),
    "logits_memory_ratio": ("<=", 0.15),
    "logits_gradient_error": ("<=", 1e-5),
    "prompt_sharing_ratio_tiny": (">=", 1.5),
    "prompt_sharing_ratio_300_150": (">=", 1.9),
    "prompt_sharing_ratio_130_600": (">=", 1.05),
    "prompt_sharing_ratio_130_600_cut": (">=", 0.98),
    "prompt_sharing_ratio_60_uneven": (">=", 0.98),
    "prompt_sharing_ratio_one_answer_each": (">=", 0.98),
    "floor_ratio": ("<=", 0.97),
    "sync_share": ("<=", 0.05),
    "scaling_token_cost_2": ("<=", 1.10),
    "scaling_token_cost_4": ("<=", 1.10),
    "checkpoint_share": ("<=", 0.05),
    "trl_ratio": (">=", 3.0),
    "eval_sampler_ratio": (">=", 0.9),
}
"""Targets. They are ratios, because seconds cannot be compared between machines."""
WORSE = 1.10


@dataclass
class Args:
    only: tuple[str, ...] = ALL
    """Benchmarks to run. A benchmark may have flags: "step --model smollm2"."""
    keep: bool = False
    """Write the rows to benchmarks/rows. Rows of other benchmarks stay there."""


def kind() -> str:
    """Return the type of this machine: the maker and the number of its cores."""
    cpuinfo = Path("/proc/cpuinfo")
    maker = re.search("AMD|Intel", cpuinfo.read_text()) if cpuinfo.exists() else None
    return f"{maker[0].lower() if maker else platform.machine()}-{len(os.sched_getaffinity(0))}-cores"


def measure(benchmark: str) -> dict[str, float]:
    """Run a benchmark, and return the rows that it prints."""
    rows = {}
    name, *flags = shlex.split(benchmark)
    command = [sys.executable, "-u", f"benchmarks/{name}.py", *flags]
    # Ranks use gloo, which cannot reduce-scatter tensors on GPUs.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.fullmatch(r"([\w.-]+): (\S+)\n", line):
                rows[found[1]] = float(found[2])
    if process.returncode:
        sys.exit(f"benchmarks/{name}.py failed")
    return rows


def worse(name: str, value: float, kept: float) -> bool:
    """Return whether a row is worse than the recorded one by more than 10 %: more seconds, or farther from its target.

    Rows without seconds and without a target are never worse.
    """
    relation = AIMS[name][0] if name in AIMS else "<=" if "seconds" in name else None
    return {"<=": value > WORSE * kept, ">=": value < kept / WORSE, None: False}[relation]


def misses(name: str, value: float) -> bool:
    """Return whether a row has a target and misses it."""
    relation, aim = AIMS.get(name, ("", 0.0))
    return {"<=": value > aim, ">=": value < aim, "": False}[relation]


def show(rows: dict[str, float], kept: dict[str, float]) -> None:
    """Print the rows beside the recorded ones, and which of them are worse or miss their targets."""
    table = Table("row", "value", f"recorded for {kind()}", "target")
    for name, value in rows.items():
        recorded = f"{kept[name]:.4g}" if name in kept else ""
        table.add_row(name, f"{value:.4g}", recorded, " ".join(map(str, AIMS.get(name, ()))))
    Console(width=100).print(table)
    for name, value in rows.items():
        if name in kept and worse(name, value, kept[name]):
            print(f"worse by more than 10 %: {name} is {value:.4g}, was {kept[name]:.4g}")
        if misses(name, value):
            print(f"misses its target: {name} is {value:.4g}, should be {' '.join(map(str, AIMS[name]))}")


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    path = ROOT / "benchmarks" / "rows" / f"{kind()}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    rows: dict[str, float] = {}
    for name in args.only:
        rows |= measure(name)
    show(rows, kept)
    if args.keep:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(kept | rows, indent=2) + "\n")
        print(f"recorded in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
