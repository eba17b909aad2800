"""What the rows of a table need together: `scripts/reproduce.py --dry-run`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bnpo.config import Planning, check_config, json_settings
from bnpo.evaluation.program import chosen_suite
from bnpo.planning.dry_run import (
    Inputs,
    assumption_lines,
    disk_problem,
    evaluation_inputs,
    evaluation_seconds,
    plan_training,
    speed_of,
    training_inputs,
)
from bnpo.planning.memory import flags_text
from paper.rows import Row

GPUS = ("H20", "A100-80GB", "H100", "H200")  # of the overview
GPU_COUNTS = (1, 4, 8)
ModelInputs = tuple[Inputs, Inputs | None]
"""What the evaluation and the training of a model's rows read. None: its only row is the base model."""


@dataclass(frozen=True)
class RowCost:
    """What a row needs."""

    steps: int  # of the optimizer
    tokens: float  # sampled
    checkpoint: int  # bytes
    checkpoints: int  # that exist at once
    flags: str  # with which alone it fits
    hours: float | None  # None: it does not fit


def plan_rows(rows: Sequence[Row], planning: Planning) -> None:
    """Print what `rows` need: on the GPU of --gpu, or on every known GPU.

    Raises InputError for wrong files, unknown models or GPUs, and questions that cannot be divided by the ranks.
    """
    for row in rows:
        if row.train:
            check_config(row.train, planning.gpus or 1)
    speeds = [speed_of(gpu) for gpu in ([planning.gpu] if planning.gpu else GPUS)]
    inputs: dict[str, ModelInputs] = {}
    for row in rows:
        evaluation, training = inputs.get(row.model) or (_evaluation_inputs(row), None)
        inputs[row.model] = evaluation, training or (training_inputs(row.train) if row.train else None)
    for model in inputs:
        _print_model(model, rows, inputs[model], planning)
    print("", *assumption_lines(speeds, planning.answer_tokens), sep="\n")
    if planning.gpu:
        _print_rows(rows, inputs, planning)
    else:
        _print_overview(rows, inputs, planning)


def _evaluation_inputs(row: Row) -> Inputs:
    return evaluation_inputs(row.model, chosen_suite(row.evaluate, Path()))


def row_cost(row: Row, inputs: ModelInputs, planning: Planning) -> RowCost:
    """Return what a row needs."""
    evaluation, training = inputs
    suite = chosen_suite(row.evaluate, Path())
    hours = None
    if planning.gpu:
        seconds = evaluation_seconds(replace(row.evaluate, planning=planning), evaluation, suite)
        hours = sum(seconds.values()) / 3600
    tokens = evaluation.eval_answers * min(planning.answer_tokens, suite.max_answer_tokens)
    if row.train is None:
        return RowCost(0, tokens, 0, 0, "", hours)
    plan = plan_training(replace(row.train, planning=planning), training)
    hours = hours + sum(plan.seconds.values()) / 3600 if plan.seconds else None
    flags = flags_text(plan.changes)
    return RowCost(plan.optimizer_steps, tokens + plan.tokens, plan.checkpoint, plan.most_checkpoints, flags, hours)


def _print_model(model: str, rows: Sequence[Row], inputs: ModelInputs, planning: Planning) -> None:
    """Print the settings, the data, and the memory of a rank."""
    print(f"\n# {model}")
    evaluation, training = inputs
    trained = [row for row in rows if row.train and row.model == model]
    if trained:
        config = trained[0].train
        print(f"\nsettings of {trained[0].name}:\n{json.dumps(json_settings(config), indent=2)}")
        print(*training.lines, *plan_training(replace(config, planning=planning), training).lines, sep="\n")
    print(*evaluation.lines, f"{evaluation.eval_answers:,} answers per evaluation", sep="\n")


def _print_rows(rows: Sequence[Row], inputs: dict[str, ModelInputs], planning: Planning) -> None:
    """Print a table of the rows, with their sum as its last line."""
    print("\n| row | optimizer steps | million tokens | hours | GPU-hours | GB on disk | needs |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    gpus = planning.gpus or 1
    costs = [row_cost(row, inputs[row.model], planning) for row in rows]
    for row, cost in zip(rows, costs, strict=True):
        print(_table_line(row.name, cost, gpus, cost.checkpoint * cost.checkpoints))
    steps, tokens = sum(cost.steps for cost in costs), sum(cost.tokens for cost in costs)
    # Every row keeps its checkpoints. Only the row at work has one more, which is being written.
    kept = sum(cost.checkpoint * max(0, cost.checkpoints - 1) for cost in costs)
    disk = kept + max(cost.checkpoint for cost in costs)
    total = RowCost(steps, tokens, 0, 0, "", _sum_hours(costs))
    print(_table_line("all, one after the other", total, gpus, disk))
    problem = disk_problem(rows[0].folder.parent, disk)
    if problem:
        print(f"\nnot enough disk space: {problem}")


def _table_line(name: str, cost: RowCost, gpus: int, disk: int) -> str:
    hours = "does not fit |" if cost.hours is None else f"{cost.hours:.1f} | {cost.hours * gpus:.1f}"
    return f"| {name} | {cost.steps:,} | {cost.tokens / 1e6:,.0f} | {hours} | {disk / 1e9:,.1f} | {cost.flags} |"


def _print_overview(rows: Sequence[Row], inputs: dict[str, ModelInputs], planning: Planning) -> None:
    """Print the hours of all rows, and of the last row of every model, on every known GPU."""
    last_rows = list({row.model: row for row in rows}.values())
    names = [Path(row.model).name for row in last_rows]
    print(f"\n| GPUs | {' | '.join(names)} | all {len(rows)} rows | needs |")
    print(f"| --- | {' | '.join(['---:'] * len(names))} | ---: | --- |")
    for gpu in GPUS:
        for gpus in (planning.gpus,) if planning.gpus else GPU_COUNTS:
            on_gpus = replace(planning, gpu=gpu, gpus=gpus)
            costs = {row.name: row_cost(row, inputs[row.model], on_gpus) for row in rows}
            cells, needs = [], []
            for row, name in zip(last_rows, names, strict=True):
                cost = costs[row.name]
                cells.append(_hours_cell([cost], gpus))
                if cost.flags:
                    needs.append(f"{name}: `{cost.flags}`")
            cells.append(_hours_cell(list(costs.values()), gpus))
            print(f"| {gpus} x {gpu} | {' | '.join(cells)} | {'; '.join(needs)} |")
    print("\nEstimated hours, and GPU-hours in brackets, of the last row of each model and of all rows.")


def _hours_cell(costs: Sequence[RowCost], gpus: int) -> str:
    hours = _sum_hours(costs)
    return "does not fit" if hours is None else f"{hours:.1f} ({hours * gpus:.0f})"


def _sum_hours(costs: Sequence[RowCost]) -> float | None:
    """Return the hours of all rows, or None if one of them does not fit."""
    hours = [cost.hours for cost in costs]
    return None if None in hours else sum(hours)
