"""What the rows of a table need together: `scripts/reproduce.py --dry-run`."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from bnpo.config import check_config, flat_settings
from bnpo.evaluation.program import chosen_suite
from bnpo.files import short_name
from bnpo.policy.speed import OTHER_CHIPS, gpu_name
from bnpo.ranks import visible_gpus
from paper.rows import Row
from paper.schedule import Devices, Sizes, equal_sizes, fastest_sizes, wall_hours
from planner import Planning
from planner.hours import SHEETS, START_SECONDS, data_sheet, plan_training, sampling_seconds
from planner.inputs import Inputs, checkpoints, evaluation_inputs, training_inputs

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


def plan_rows(rows: Sequence[Row], planning: Planning, rows_at_once: int | None) -> None:
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
    inputs = read_inputs(rows)
    sizes: Sizes | None = None
    if planning.gpu:
        hours = estimated_hours(rows, planning)
        sizes = sizes_on(rows, hours, planning.gpus or 1, rows_at_once)
    for model, (evaluation, training) in inputs.items():
        print(f"\n# {model}")
        if trained := [row for row in rows if row.train and row.model == model]:
            config = trained[0].train
            print(
                f"\nsettings of {trained[0].name}:\n{json.dumps(flat_settings(config), indent=2)}"
            )
            print(*training.lines, sep="\n")
            if planning.gpu:
                # What a row runs on, or all GPUs if rows do not fit
                gpus_of_row = sizes[model] if sizes else planning.gpus
                plan = plan_training(config, training, replace(planning, gpus=gpus_of_row))
                print(*plan.lines, sep="\n")
                if plan.problem:
                    print(plan.problem)
        print(*evaluation.lines, sep="\n")
    print(
        f"\nThe hours assume {planning.answer_tokens} tokens per answer (--answer-tokens), and "
        "docs/reproduce.md."
    )
    # A row that runs has one checkpoint more, the one that is being written. All may run at once.
    costs = [row_cost(row, inputs[row.model], replace(planning, gpu=gpus[0])) for row in rows]
    disk = sum(cost.checkpoint * cost.checkpoints for cost in costs)
    print(f"\ndisk: {disk / 1e9:,.1f} GB for all rows")
    _print_hours(rows, planning, gpus, rows_at_once)


def plan_devices(rows: Sequence[Row], rows_at_once: int | None) -> tuple[Devices, Sizes]:
    """Return this machine's GPUs or cores, and how many of them each model's rows get.

    Without `rows_at_once`, rows get the number of GPUs with which all are done first by the
    estimate, or all GPUs if there is no estimate for them. On CPUs a row gets all cores.
    """
    if gpus := visible_gpus():
        devices = Devices(tuple(gpus), are_gpus=True)
    else:
        devices = Devices(tuple(map(str, sorted(os.sched_getaffinity(0)))), are_gpus=False)
    count = len(devices.names)
    if rows_at_once is None and (gpu := known_gpu(gpu_name())):
        planning = Planning(gpu=gpu)
        if sizes := fastest_sizes(rows, estimated_hours(rows, planning), count):
            return devices, sizes
    return devices, equal_sizes(rows, rows_at_once or 1, count)


def known_gpu(name: str) -> str | None:
    """Return how --gpu calls a GPU that torch calls `name`. None: a dry run does not know it."""
    words = set(re.findall(r"\w+", name))
    known = [gpu for gpu in SHEETS if words.issuperset(gpu.split())]
    return max(known, key=len).replace(" ", "-") if known and not words & OTHER_CHIPS else None


def estimated_hours(rows: Sequence[Row], planning: Planning) -> Callable[[Row, int], float | None]:
    """Return a function of a row and a number of GPUs: the hours of the row. None: it does not
    fit, or the ranks do not divide its questions, or its --sampler-ranks the ranks.
    """
    inputs = read_inputs(rows)

    @cache
    def hours_of(model: str, trained: bool, gpus: int) -> float | None:
        # All trained rows of a model take equally long.
        row = next(row for row in rows if (row.model, bool(row.train)) == (model, trained))
        if trained:
            batch, sharing = row.train.batch, row.train.hardware.sampler_ranks
            if batch.questions_per_step % gpus or min(gpus, 8) % sharing:  # 8 in a machine
                return None
        return row_cost(row, inputs[model], replace(planning, gpus=gpus)).hours

    return lambda row, gpus: hours_of(row.model, bool(row.train), gpus)


def read_inputs(rows: Sequence[Row]) -> dict[str, ModelInputs]:
    """Return what the rows of each model read. Raises InputError for wrong files."""
    inputs: dict[str, ModelInputs] = {}
    for row in rows:
        suite = chosen_suite(row.evaluate, Path())
        evaluation, training = inputs.get(row.model) or (evaluation_inputs(row.model, suite), None)
        inputs[row.model] = (
            evaluation,
            training or (training_inputs(row.train) if row.train else None),
        )
    return inputs


def row_cost(row: Row, inputs: ModelInputs, planning: Planning) -> RowCost:
    """Return what a row needs on the GPUs of `planning`."""
    evaluation, training = inputs
    sampling = sampling_seconds(
        evaluation, planning, evaluation.answers, row.evaluate.tensor_parallel
    )
    hours = (sampling + START_SECONDS) / 3600
    if row.train is None:
        return RowCost(0, 0, hours)
    seconds = plan_training(row.train, training, planning).seconds
    hours = hours + sum(seconds.values()) / 3600 if seconds else None
    return RowCost(*checkpoints(row.train, training.shape, training.steps), hours)


def sizes_on(
    rows: Sequence[Row],
    hours: Callable[[Row, int], float | None],
    gpus: int,
    rows_at_once: int | None,
) -> Sizes | None:
    """Return how many of `gpus` each model's rows get: an equal share with `rows_at_once`, else the
    number with which all are done first. None: they do not fit, or there are too few GPUs.
    """
    if rows_at_once is None:
        return fastest_sizes(rows, hours, gpus)
    return equal_sizes(rows, rows_at_once, gpus) if rows_at_once <= gpus else None


def _print_hours(
    rows: Sequence[Row], planning: Planning, gpu_models: Sequence[str], rows_at_once: int | None
) -> None:
    """Print the hours of each model's rows and of the whole table, with rows side by side."""
    rows_by_model: dict[str, list[Row]] = {}
    for row in rows:
        rows_by_model.setdefault(short_name(row.model), []).append(row)
    heads = [f"{model}, {len(own)} rows" for model, own in rows_by_model.items()]
    if len(heads) > 1:
        heads.append(f"all {len(rows)} rows")
    print(f"\n| GPUs | {' | '.join(heads)} |")
    print(f"| --- | {' | '.join(['---:'] * len(heads))} |")
    for gpu in gpu_models:
        hours = estimated_hours(rows, replace(planning, gpu=gpu))
        for gpus in (planning.gpus,) if planning.gpus else GPU_COUNTS:
            parts = [*rows_by_model.values(), rows][: len(heads)]
            cells = [_cell(part, hours, gpus, rows_at_once) for part in parts]
            print(f"| {gpus} x {gpu} | {' | '.join(cells)} |")
    print(
        "\nEstimated hours until all rows are done, side by side, with the number of GPUs that "
        "each row gets."
    )


def _cell(
    rows: Sequence[Row],
    hours: Callable[[Row, int], float | None],
    gpus: int,
    rows_at_once: int | None,
) -> str:
    """Return the hours of `rows` side by side, with the GPUs of a row if they have one model."""
    if rows_at_once and rows_at_once > gpus:
        return "too few GPUs"
    sizes = sizes_on(rows, hours, gpus, rows_at_once)
    total = sizes and wall_hours(rows, hours, sizes, gpus)
    if not total:
        return "does not fit"
    return f"{total:.1f}" + f" ({next(iter(sizes.values()))} each)" * (len(sizes) == 1)
