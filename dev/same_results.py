"""Compare seeded runs of an earlier commit and of this code, bit by bit.

    python dev/same_results.py COMMIT              # all runs of RUNS
    python dev/same_results.py COMMIT --only LoRA  # those whose names have this in them

Metrics without timings, rollouts, tokens and weights must be equal. The last bits depend on the
processor, so nothing is recorded: both codes run on this machine, one after the other.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bnpo.files import ROOT, SMOLLM2
from bnpo.policy.speed import TIMINGS

DECOMPOSED = "--decompose --rewards accuracy,format"
RUNS = {
    "bnpo, one rank": (1, "--algo bnpo"),
    "bnpo, two ranks": (2, "--algo bnpo"),
    "remax decomposed, two ranks": (2, f"--algo remax {DECOMPOSED}"),
    "reinforce_pp decomposed, one rank": (1, f"--algo reinforce_pp {DECOMPOSED}"),
    "LoRA": (1, "--algo grpo --lora-rank 4"),
    "mini-batches, two ranks": (2, "--algo bnpo --mini-batches 2 --ppo-iterations 2"),
    "bf16, checkpointing": (1, "--algo rloo --dtype bfloat16 --gradient-checkpointing"),
    "resampling, weights": (1, f"--resample-rounds 1 --reward-weights 1 0.2 {DECOMPOSED}"),
    # After scripts/get_model.py smollm2
    "SmolLM2": (1, f"--preset smollm2 --model {SMOLLM2} --samples-per-question 4 --steps 3"),
}
"""Number of ranks and flags, of which later ones win. A quarter of the preset's questions still
makes several micro-batches per rank."""
COMMON = "--preset tiny --questions-per-step 8 --steps 4 --rollouts-every 1 --watch-questions 0"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", metavar="COMMIT")
    parser.add_argument("--only", default="", help="a part of the names of runs")
    args = parser.parse_args()
    differing = []
    with tempfile.TemporaryDirectory() as scratch:
        old, worktree = Path(scratch, "old"), ["git", "worktree"]
        subprocess.run([*worktree, "add", "-q", "--detach", old, args.commit], cwd=ROOT, check=True)
        try:
            for name in [name for name in RUNS if args.only in name]:
                parts = [results(code, name, Path(scratch)) for code in (old, ROOT)]
                unequal = [part for part in parts[0] if parts[0][part] != parts[1][part]]
                differing += [name] if unequal else []
                print(f"{name}: {', '.join(unequal) + ' differ' if unequal else 'equal'}")
        finally:
            subprocess.run([*worktree, "remove", "--force", old], cwd=ROOT, check=True)
    sys.exit(1 if differing else 0)


def results(code: Path, name: str, scratch: Path) -> dict[str, str]:
    """Return hashes of what the run `name` of the checkout `code` writes."""
    ranks, flags = RUNS[name]
    run = scratch / "run"
    command = [sys.executable, "scripts/launch.py", "--num_gpus", str(ranks), "train.py"]
    command += [*COMMON.split(), *flags.split(), "--eval-every", "0", "--output-dir", str(run)]
    shutil.rmtree(run, ignore_errors=True)
    environment = os.environ | {"PYTHONPATH": str(code / "src")}
    done = subprocess.run(command, cwd=code, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} of {code} failed:\n{done.stdout}{done.stderr}")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [
        {key: value for key, value in json.loads(line).items() if not key.startswith(TIMINGS)}
        for line in lines
    ]
    files = {"metrics": json.dumps(metrics, sort_keys=True).encode()}
    for folder in ("rollouts", "tokens"):
        files[folder] = b"".join(file.read_bytes() for file in sorted((run / folder).iterdir()))
    weights = sorted((run / "last").glob("*.safetensors"))
    files["weights"] = b"".join(file.read_bytes() for file in weights)
    return {part: hashlib.sha256(content).hexdigest() for part, content in files.items()}


if __name__ == "__main__":
    main()
