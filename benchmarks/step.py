"""Measure the seconds per step of `deepspeed train.py`, its phases, its floor, and how it scales.

    python benchmarks/step.py [--model smollm2] [--figure docs/figures/step.png]

The floor is the time of the unavoidable parts of a step (benchmarks/floor.py). Runs of the program
and of the floor take turns, so that a slow minute of the machine affects both. Rows:

- step_seconds, and <phase>_seconds of each phase
- resident_gigabytes: most memory of a rank
- floor_<part>_seconds_<n>_processes, for one process, and for one process per rank
- floor_ratio: step_seconds over the faster floor. floor_ratio_one_process and floor_ratio_shared
  use other floors
- generate_ratio: seconds of our sampling, with waiting for the slowest rank, over those of the
  faster bare vLLM
- update_gflops, floor_gflops, gflops_ratio: 10^9 operations per second of our update and of bare
  PyTorch's, our share. Ours count tokens with which several texts begin once, as they are computed
- floor_gradient_difference: relative difference of the gradient norms of both training floors
- sync_share: share of the weight sync in a step
- scaling_token_cost_2 and _4: seconds per token with 2 and 4 times the questions, only with the
  tiny model
"""

import argparse
import json
import resource
import statistics
from pathlib import Path

from common import PHASES, Case, launch, median, read_case, row, training_steps

from bnpo.config import PRESETS

LR = ("--lr", "1e-6")
"""So small that the answers stay as those of the floor, which has no weight sync."""
PARTS = ("generate", "train", "train_shared")


def floor(processes: int, case: Case) -> dict:
    """Return what benchmarks/floor.py measured."""
    output = launch(
        processes, "benchmarks/floor.py", str(case.steps), str(case.warm_up), *case.flags
    )
    return json.loads(
        next(line for line in output.splitlines() if line.startswith("FLOOR "))[len("FLOOR ") :]
    )


def of_floors(results: list[dict], name: str) -> float:
    """Return the median of what the floors measured under `name`, over all steps."""
    return statistics.median(value for result in results for value in result[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind")
    parser.add_argument("--figure", type=Path, help="file for a figure of the phases")
    case, arguments = read_case(parser)
    ours: list[dict] = []
    floors: dict[int, list[dict]] = {processes: [] for processes in (1, case.ranks)}
    for round_ in range(arguments.rounds):
        ours += training_steps(case, *LR)
        if round_ == 0:  # the largest process that has ended so far is a rank
            resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        for processes, results in floors.items():
            results.append(floor(processes, case))
    step = median(ours, "seconds/total")
    row("step_seconds", step)
    row("resident_gigabytes", resident / 1e9)
    phases = {phase: median(ours, f"seconds/{phase}") for phase in PHASES}
    for phase, value in phases.items():
        row(f"{phase}_seconds", value)
    faster = compare(floors, step)
    row("generate_ratio", (phases["generate"] + phases["gather"]) / faster["generate"])
    gflops = 1e3 * median(ours, "tflops/per_second") * case.ranks
    bare = max(of_floors(results, "gflops") for results in floors.values())
    row("update_gflops", gflops)
    row("floor_gflops", bare)
    row("gflops_ratio", gflops / bare)
    row("sync_share", phases["sync"] / step)
    if case.flags == ("--preset", "tiny"):
        scale(case, ours)
    if arguments.figure:
        draw(arguments.figure, phases, step, faster)


def compare(floors: dict[int, list[dict]], step: float) -> dict[str, float]:
    """Print the rows of the floors, by number of processes. Return the seconds of the fastest
    parts.
    """
    seconds = {
        (processes, part): of_floors(results, part)
        for processes, results in floors.items()
        for part in PARTS
    }
    for (processes, part), value in seconds.items():
        row(f"floor_{part}_seconds_{processes}_processes", value)
    last = floors[max(floors)][0]
    for name in ("train_answers", "train_shared_answers", "gradient_difference"):
        row(f"floor_{name}", last[name])
    faster = {part: min(seconds[processes, part] for processes in floors) for part in PARTS}
    row("floor_ratio", step / (faster["generate"] + faster["train"]))
    row("floor_ratio_shared", step / (faster["generate"] + faster["train_shared"]))
    row("floor_ratio_one_process", step / (seconds[1, "generate"] + seconds[1, "train"]))
    return faster


def scale(case: Case, ours: list[dict]) -> None:
    """Measure steps with more questions. `ours` are the metrics of usual steps."""
    cost = {1: median(ours, "seconds/total") / median(ours, "tokens/sampled")}
    for times in (2, 4):
        questions = times * PRESETS["tiny"].batch.questions_per_step
        rows = training_steps(case, *LR, "--questions-per-step", str(questions))
        row(f"step_seconds_{times}_times_the_questions", median(rows, "seconds/total"))
        cost[times] = median(rows, "seconds/total") / median(rows, "tokens/sampled")
        row(f"scaling_token_cost_{times}", cost[times] / cost[1])


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
