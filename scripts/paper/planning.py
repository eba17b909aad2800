"""What the rows of a table need together: `scripts/reproduce.py --dry-run`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bnpo.config import Planning, check_config, flat_settings
from bnpo.evaluation.program import chosen_suite
from bnpo.planning import (
    START_SECONDS,
    Inputs,
    checkpoints,
    data_sheet,
    evaluation_inputs,
    plan_training,
    sampling_seconds,
    training_inputs,
)
from paper.rows import Row

GPUS = ("H20", "A100-80GB", "H100", "H200")  # of the table
GPU_COUNTS = (1, 4, 8)
ModelInputs = tuple[Inputs, Inputs | None]
"""What the evaluation and the training of a model's rows read. None: its only row is the base
model."""


@dataclass(frozen=True)
class RowCost:
    """What a row needs."""

    checkpoint: int  # bytes
    checkpoints: int  # that exist at once
    hours: float | None  # None: it does not fit


def plan_rows(rows: Sequence[Row], planning: Planning) -> None:
    """Print what `rows` need: settings, data and memory of each model, disk space, and the hours on
    GPUs.

    Raises InputError for wrong files, unknown models or GPUs, and questions that cannot be divided
    by the ranks.
    """
    for row in rows:
        if row.train:
            check_config(row.train, planning.gpus or 1)
    gpus = (planning.gpu,) if planning.gpu else GPUS
    data_sheet(gpus[0])  # refuses an unknown GPU
    inputs: dict[str, ModelInputs] = {}
    for row in rows:
        suite = chosen_suite(row.evaluate, Path())
        evaluation, training = inputs.get(row.model) or (evaluation_inputs(row.model, suite), None)
        inputs[row.model] = (
            evaluation,
            training or (training_inputs(row.train) if row.train else None),
        )
    for model, (evaluation, training) in inputs.items():
        print(f"\n# {model}")
        if trained := [row for row in rows if row.train and row.model == model]:
            config = trained[0].train
            print(
                f"\nsettings of {trained[0].name}:\n{json.dumps(flat_settings(config), indent=2)}"
            )
            memory = (
                plan_training(replace(config, planning=planning), training)[1]
                if planning.gpu
                else []
            )
            print(*training.lines, *memory, sep="\n")
        print(*evaluation.lines, sep="\n")
    print(
        f"\nThe hours assume {planning.answer_tokens} tokens per answer (--answer-tokens), and "
        "docs/reproduce.md."
    )
    # Every row keeps its checkpoints. Only the row at work has one more, which is being written.
    costs = [row_cost(row, inputs[row.model], replace(planning, gpu=gpus[0])) for row in rows]
    disk = sum(cost.checkpoint * max(0, cost.checkpoints - 1) for cost in costs) + max(
        c.checkpoint for c in costs
    )
    print(f"\ndisk: {disk / 1e9:,.1f} GB for all rows")
    _print_hours(rows, inputs, planning, gpus)


def row_cost(row: Row, inputs: ModelInputs, planning: Planning) -> RowCost:
    """Return what a row needs on the GPUs of `planning`."""
    evaluation, training = inputs
    sampling = sampling_seconds(
        evaluation, planning, evaluation.eval_answers, row.evaluate.tensor_parallel
    )
    hours = (sampling + START_SECONDS) / 3600
    if row.train is None:
        return RowCost(0, 0, hours)
    seconds, _ = plan_training(replace(row.train, planning=planning), training)
    hours = hours + sum(seconds.values()) / 3600 if seconds else None
    return RowCost(*checkpoints(row.train, training.shape, training.steps), hours)


def _print_hours(
    rows: Sequence[Row],
    inputs: dict[str, ModelInputs],
    planning: Planning,
    gpu_models: Sequence[str],
) -> None:
    """Print the hours of all rows, and of the last row of every model."""
    last_rows = list({row.model: row for row in rows}.values())
    names = [Path(row.model).name for row in last_rows]
    print(f"\n| GPUs | {' | '.join(names)} | all {len(rows)} rows |")
    print(f"| --- | {' | '.join(['---:'] * len(names))} | ---: |")
    for gpu in gpu_models:
        for gpus in (planning.gpus,) if planning.gpus else GPU_COUNTS:
            on_gpus = replace(planning, gpu=gpu, gpus=gpus)
            costs = {row.name: row_cost(row, inputs[row.model], on_gpus) for row in rows}
            last_costs = [costs[row.name] for row in last_rows]
            cells = [_hours_cell([cost], gpus) for cost in last_costs] + [
                _hours_cell(list(costs.values()), gpus)
            ]
            print(f"| {gpus} x {gpu} | {' | '.join(cells)} |")
    print(
        "\nEstimated hours, and GPU-hours in brackets, of the last row of each model and of all "
        "rows."
    )


def _hours_cell(costs: Sequence[RowCost], gpus: int) -> str:
    hours = [cost.hours for cost in costs]
    return "does not fit" if None in hours else f"{sum(hours):.1f} ({sum(hours) * gpus:.0f})"
