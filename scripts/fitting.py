"""Print which settings fit which GPUs, for four sizes of Qwen2.5: the table of docs/gpus.md.

    python scripts/fitting.py

The settings are those that `train.py --dry-run` proposes, which also prints the memory part by part. Like all numbers
for GPUs they are estimates.
"""

from dataclasses import replace

from bnpo.environment import setup_environment

setup_environment()

from bnpo.config import PRESETS, with_settings
from bnpo.files import ROOT
from bnpo.planning.dry_run import run_on, speed_of
from bnpo.planning.memory import GIB, LORA_RANK, PlannedRun, fitting_changes, flags_text, plan_memory, read_shape

MODELS = ("Qwen2.5-Math-1.5B", "Qwen2.5-Math-7B", "Qwen2.5-32B", "Qwen2.5-72B")
MACHINES = (
    (1, "RTX-5080"),
    (1, "RTX-4090"),
    (2, "RTX-4090"),
    (1, "RTX-5090"),
    (1, "L40S"),
    (1, "H100"),
    (1, "RTX-PRO-6000"),
    (4, "H100"),
    (8, "H100"),
    (16, "H100"),
)


def cell(run: PlannedRun) -> str | None:
    """Return the flags with which a run fits, and how many answers a sampler draws at once. None: it does not fit."""
    changes = fitting_changes(run)
    fitting = run.with_settings(**changes)
    plan = plan_memory(fitting)
    if plan.problem or fitting.config.update.lora_rank != run.config.update.lora_rank:
        return None
    host = f", {plan.rank.offloaded / GIB:.0f} GiB" if plan.rank.offloaded else ""
    flags = f"`{flags_text(changes)}`" if changes else "no flag"
    return f"{flags} ({plan.sequences}{host})"


def table() -> list[str]:
    """Return the lines of the table.

    There is no line where a model does not fit, and none for more GPUs of a kind than need no flag.
    """
    lines = [f"| model | GPUs | all weights | `--lora-rank {LORA_RANK}` |", "| --- | --- | --- | --- |"]
    config = PRESETS["paper-1.5b"]
    for model in MODELS:
        shape = read_shape(ROOT / "data" / "models" / model)
        easy = set()  # GPUs on which no flag is needed
        for gpus, gpu in MACHINES:
            if gpu in easy:
                continue
            speed = speed_of(gpu)
            run = run_on(gpus, speed, shape, config, 4096)
            cells = [cell(run), cell(replace(run, config=with_settings(config, lora_rank=LORA_RANK)))]
            if all(text and "no flag" in text for text in cells):
                easy.add(gpu)
            if any(cells):
                texts = " | ".join(text or "does not fit" for text in cells)
                lines.append(f"| {model} | {gpus} x {gpu} ({round(speed.memory / GIB)} GiB) | {texts} |")
    return lines


if __name__ == "__main__":
    print(*table(), sep="\n")
