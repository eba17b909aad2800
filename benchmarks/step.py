"""Measure the seconds per step of `deepspeed train.py`, its phases, its floor, and how it scales.

    python benchmarks/step.py [--figure docs/step.png]

The floor is the time of the unavoidable parts of a step (benchmarks/floor.py). Runs of the program and of the floor
take turns, so that a slow minute of the machine affects both. Rows:

- step_seconds, and <phase>_seconds of each phase
- floor_generate_seconds, floor_train_seconds, floor_train_shared_seconds: for one process, and for one process per core
- floor_ratio: step_seconds over the faster floor. floor_ratio_one_process and floor_ratio_shared use other floors
- floor_gradient_difference: relative difference of the gradient norms of both training floors
- sync_share: share of the weight sync in a step
- scaling_token_cost_2 and _4: seconds per token with 2 and 4 times the questions, over those of the preset
- checkpoint_share: seconds of saving over the seconds of the steps between two checkpoints
"""

import argparse
import json
import os
import statistics
from pathlib import Path

from common import PHASES, WARM_UP, launch, median, row, training_steps

from bnpo.config import PRESETS

STEPS, ROUNDS = 10, 2
"""Measured steps per run, and runs of each kind."""


def floor(processes: int) -> dict:
    output = launch(processes, "benchmarks/floor.py", str(STEPS), str(WARM_UP))
    return json.loads(next(line for line in output.splitlines() if line.startswith("FLOOR "))[len("FLOOR ") :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="file for a figure of the phases")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    lr = ("--lr", "1e-6")  # so small that the floor, which has no weight sync, samples the same answers
    ours, floors = [], {1: [], cores: []}
    for _ in range(ROUNDS):
        ours += training_steps(cores, STEPS, *lr)
        for processes, results in floors.items():
            results.append(floor(processes))
    step = median(ours, "seconds/total")
    row("step_seconds", step)
    seconds = {
        (processes, part): statistics.median(second for result in results for second in result[part])
        for processes, results in floors.items()
        for part in ("generate", "train", "train_shared")
    }
    for (processes, part), value in seconds.items():
        row(f"floor_{part}_seconds_{processes}_processes", value)
    for part in ("train", "train_shared"):
        row(f"floor_{part}_answers", floors[cores][0][f"{part}_answers"])
    row("floor_gradient_difference", floors[cores][0]["gradient_difference"])
    faster = {part: min(seconds[p, part] for p in floors) for part in ("generate", "train", "train_shared")}
    row("floor_ratio", step / (faster["generate"] + faster["train"]))
    row("floor_ratio_shared", step / (faster["generate"] + faster["train_shared"]))
    row("floor_ratio_one_process", step / sum(seconds[1, part] for part in ("generate", "train")))
    phases = {phase: median(ours, f"seconds/{phase}") for phase in PHASES}
    for phase, value in phases.items():
        row(f"{phase}_seconds", value)
    row("sync_share", phases["sync"] / step)
    cost = {1: step / median(ours, "tokens/sampled")}
    for times in (2, 4):
        rows = training_steps(cores, STEPS, *lr, "--questions-per-step", str(32 * times))
        row(f"step_seconds_{times}_times_the_questions", median(rows, "seconds/total"))
        cost[times] = median(rows, "seconds/total") / median(rows, "tokens/sampled")
        row(f"scaling_token_cost_{times}", cost[times] / cost[1])
    saves = training_steps(cores, STEPS, *lr, "--save-every", "1")
    row("checkpoint_seconds", median(saves, "seconds/save"))
    interval = PRESETS["tiny"].folder.save_every * median(saves, "seconds/total")
    row("checkpoint_share", median(saves, "seconds/save") / interval)
    if arguments.figure:
        draw(arguments.figure, phases, step, faster)


def draw(path: Path, phases: dict[str, float], step: float, floor: dict[str, float]) -> None:
    """Draw a bar for the phases of a step, and one for the floor."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 2.4), layout="constrained")
    colors = dict(zip((*PHASES, "rest"), plt.cm.tab10.colors, strict=False))
    left = 0.0
    for phase, seconds in {**phases, "rest": step - sum(phases.values())}.items():
        axes.barh("step", seconds, left=left, color=colors[phase], label=f"{phase} {seconds:.2f} s")
        left += seconds
    axes.barh("floor", floor["generate"], color=colors["generate"])
    axes.barh("floor", floor["train"], left=floor["generate"], color=colors["update"])
    axes.invert_yaxis()
    axes.set_xlabel("seconds (medians)")
    axes.legend(ncols=6, loc="upper center", bbox_to_anchor=(0.5, 1.3), frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
