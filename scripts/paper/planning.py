"""What the rows of a table need together: `scripts/reproduce.py --dry-run`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bnpo.config import Planning, check_config, json_settings
from bnpo.evaluation.program import chosen_suite
from bnpo.evaluation.suites import Suite
from bnpo.planning.cost import assumption_lines
from bnpo.planning.dry_run import disk_problem, plan_evaluation, plan_training, training_lines
from bnpo.planning.fit import flags_text
from bnpo.planning.gpus import speed_of
from bnpo.planning.inputs import PlanInputs, evaluation_inputs, training_inputs
from paper.rows import Row

GPUS = ("H20", "A100-80GB", "H100", "H200")  # of the overview
GPU_COUNTS = (1, 4, 8)


@dataclass(frozen=True)
class RowCost:
    """What a row needs."""

    steps: int  # of the optimizer
    tokens: float  # sampled
    checkpoint: int  # bytes
    checkpoints: int  # that exist at once
    flags: str  # with which alone it fits
    hours: float | None  # None: it does not fit


@dataclass(frozen=True)
class ModelInputs:
    """What the rows of one model read."""

    suite: Suite
    evaluation: PlanInputs
    training: PlanInputs | None  # None: its only row is the base model


def plan_rows(rows: Sequence[Row], planning: Planning) -> None:
    """Print what `rows` need: on the GPU of --gpu, or on every known GPU.

    Raises InputError for wrong files, unknown models or GPUs, and questions that cannot be divided by the ranks.
    """
    for row in rows:
        if row.train:
            check_config(row.train, planning.gpus or 1)
    inputs = _read_inputs(rows)
    gpus = [planning.gpu] if planning.gpu else GPUS
    speeds = [speed_of(gpu, model.evaluation.model.shape) for gpu in gpus for model in inputs.values()]
    for model in inputs:
        _print_model(model, rows, inputs[model], planning)
    print("", *assumption_lines(speeds, planning.answer_tokens), sep="\n")
    if planning.gpu:
        _print_rows(rows, inputs, planning)
    else:
        _print_overview(rows, inputs, planning)


def _read_inputs(rows: Sequence[Row]) -> dict[str, ModelInputs]:
    """Return what the rows read, by model."""
    inputs: dict[str, ModelInputs] = {}
    for row in rows:
        if row.model not in inputs:
            suite = chosen_suite(row.evaluate, Path())
            inputs[row.model] = ModelInputs(suite, evaluation_inputs(row.model, suite), None)
        if row.train and inputs[row.model].training is None:
            inputs[row.model] = replace(inputs[row.model], training=training_inputs(row.train))
    return inputs


def row_cost(row: Row, inputs: ModelInputs, planning: Planning) -> RowCost:
    """Return what a row needs."""
    evaluation = plan_evaluation(replace(row.evaluate, planning=planning), inputs.evaluation, inputs.suite)
    hours = sum(evaluation.seconds.values()) / 3600
    if row.train is None:
        return RowCost(0, evaluation.tokens, 0, 0, "", hours if evaluation.seconds else None)
    training = plan_training(replace(row.train, planning=planning), inputs.training)
    hours += sum(training.seconds.values()) / 3600
    return RowCost(
        steps=training.optimizer_steps,
        tokens=evaluation.tokens + training.tokens,
        checkpoint=training.checkpoint,
        checkpoints=training.most_checkpoints,
        flags=flags_text(training.changes),
        hours=hours if training.seconds else None,
    )


def _print_model(model: str, rows: Sequence[Row], inputs: ModelInputs, planning: Planning) -> None:
    """Print the settings, the data, and the memory of a rank."""
    print(f"\n# {model}")
    trained = [row for row in rows if row.train and row.model == model]
    if trained:
        config = trained[0].train
        print(f"\nsettings of {trained[0].name}:\n{json.dumps(json_settings(config), indent=2)}")
        plan = plan_training(replace(config, planning=planning), inputs.training)
        print(*inputs.training.lines, *training_lines(plan), sep="\n")
    print(*inputs.evaluation.lines, sep="\n")
    print(f"{inputs.evaluation.eval_answers:,} answers per evaluation")


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
