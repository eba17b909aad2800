"""Run the benchmarks, and say which of their rows miss their targets.

    python benchmarks/run.py [BENCHMARK...] [--keep]    # such as: rivals "step --model smollm2"

Prints each row when it is measured. --keep records the rows in benchmarks/rows, by type of machine.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

from common import ROOT

ALL = ("step", "rivals")
AIMS = {
    "floor_ratio": ("<=", 0.97),
    "sync_share": ("<=", 0.05),
    "scaling_token_cost_2": ("<=", 1.10),
    "scaling_token_cost_4": ("<=", 1.10),
    "trl_ratio": (">=", 3.0),
}
"""Targets. They are ratios, because seconds cannot be compared between machines."""


def kind() -> str:
    """Return the type of this machine: the maker and the number of its cores."""
    cpuinfo = Path("/proc/cpuinfo")
    maker = re.search("AMD|Intel", cpuinfo.read_text()) if cpuinfo.exists() else None
    return (
        f"{maker[0].lower() if maker else platform.machine()}-{len(os.sched_getaffinity(0))}-cores"
    )


def measure(benchmark: str) -> dict[str, float]:
    """Run a benchmark, and return the rows that it prints."""
    rows = {}
    name, *flags = shlex.split(benchmark)
    command = [sys.executable, "-u", f"benchmarks/{name}.py", *flags]
    # Ranks use gloo, which cannot reduce-scatter tensors on GPUs.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.fullmatch(r"([\w.-]+): (\S+)\n", line):
                rows[found[1]] = float(found[2])
    if process.returncode:
        sys.exit(f"benchmarks/{name}.py failed")
    return rows


def misses(rows: dict[str, float]) -> list[str]:
    """Return a line for each row that misses its target."""
    lines = []
    for name, (relation, aim) in AIMS.items():
        value = rows.get(name, aim)
        if (value > aim) if relation == "<=" else (value < aim):
            lines.append(f"misses its target: {name} is {value:.4g}, should be {relation} {aim}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "benchmarks", nargs="*", default=ALL, metavar="BENCHMARK", help="program, with its flags"
    )
    parser.add_argument("--keep", action="store_true", help="record the rows")
    args = parser.parse_args()
    rows: dict[str, float] = {}
    for benchmark in args.benchmarks:
        rows |= measure(benchmark)
    print(*misses(rows), sep="\n")
    if args.keep:
        path = ROOT / "benchmarks" / "rows" / f"{kind()}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(kept | rows, indent=2) + "\n")
        print(f"recorded in {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
