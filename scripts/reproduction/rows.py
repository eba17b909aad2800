"""What the rows of a table would take together: `scripts/reproduce.py --dry-run`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bnpo.config import check_config, json_settings
from bnpo.evaluation.program import chosen_suite
from bnpo.evaluation.suites import Suite
from bnpo.flags import Planning
from bnpo.planning.dry_run import evaluation_estimate, no_room, print_assumptions, training_lines, training_plan
from bnpo.planning.gpus import GPUS, check_gpu, speed_of
from bnpo.planning.inputs import Inputs, evaluation_inputs, training_inputs
from reproduction.table import Row

COUNTS = (1, 4, 8)
"""GPUs of the overview."""


def plan_rows(rows: Sequence[Row], planning: Planning) -> None:
    """Print what `rows` would take: on the GPU that is asked for, or on all that can be planned for. Raises InputError
    for files that are wrong, models or a GPU that are not known, questions that its ranks cannot share."""
    if planning.gpu is not None:
        check_gpu(planning.gpu)
    for row in rows:
        if row.train:
            check_config(row.train, planning.gpus or 1)
    planned = _Rows(rows)
    planned.describe(planning)
    planned.assumptions(planning)
    planned.table(planning) if planning.gpu else planned.overview(planning)


@dataclass(frozen=True)
class Cost:
    """Of a row: optimizer steps, tokens sampled, bytes of a checkpoint and most of them at once, the flags with which
    alone it fits, hours (None: it does not fit)."""

    steps: int
    tokens: int
    checkpoint: int
    checkpoints: int
    flags: str
    hours: float | None


class _Rows:
    """The rows of a table, and what they read, which those of a model share."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows
        self._inputs: dict[str, Inputs] = {}
        self._evaluated: dict[str, tuple[Inputs, Suite]] = {}
        for row in rows:
            if row.train and row.model not in self._inputs:
                self._inputs[row.model] = training_inputs(row.train)
            if row.model not in self._evaluated:
                suite = chosen_suite(row.evaluate, Path())
                self._evaluated[row.model] = evaluation_inputs(row.model, suite), suite

    def cost(self, row: Row, planning: Planning) -> Cost:
        """What a row takes."""
        inputs, suite = self._evaluated[row.model]
        evaluation = evaluation_estimate(row.evaluate, inputs, planning, suite.max_answer_tokens)
        tokens = inputs.evaluated * min(planning.answer_tokens, suite.max_answer_tokens)
        if row.train is None:
            return Cost(0, tokens, 0, 0, "", evaluation.hours if evaluation.seconds else None)
        found = training_plan(row.train, self._inputs[row.model], planning)
        tokens += found.answers * min(planning.answer_tokens, row.train.sampling.max_answer_tokens)
        hours = evaluation.hours + found.estimate.hours if found.estimate.seconds else None
        steps = found.steps * row.train.batch.ppo_iterations * row.train.batch.mini_batches
        return Cost(steps, tokens, found.checkpoint, found.most_checkpoints, found.flags, hours)

    def describe(self, planning: Planning) -> None:
        """Print for every model the settings, the data, and the memory of a rank."""
        for model in self._evaluated:
            print(f"\n# {model}")
            if first := next((row for row in self.rows if row.train and row.model == model), None):
                inputs = self._inputs[model]
                print(f"\nsettings of {first.name}:\n{json.dumps(json_settings(first.train), indent=2)}")
                print(*inputs.lines, sep="\n")
                found = training_plan(first.train, inputs, planning)
                print(*training_lines(first.train, found, inputs, planning), sep="\n")
            inputs, _ = self._evaluated[model]
            print(*inputs.lines, sep="\n")
            print(f"{inputs.evaluated:,} answers an evaluation")

    def table(self, planning: Planning) -> None:
        """Print the rows and what they take, the whole last."""
        print("\n| row | optimizer steps | million tokens | hours | GPU-hours | GB on disk | needs |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
        gpus = planning.gpus or 1
        costs = {row.name: self.cost(row, planning) for row in self.rows}
        for name, cost in costs.items():
            print(_line(name, cost, gpus, cost.checkpoint * cost.checkpoints))
        steps, tokens = (sum(getattr(cost, name) for cost in costs.values()) for name in ("steps", "tokens"))
        hours = None if any(cost.hours is None for cost in costs.values()) else sum(c.hours for c in costs.values())
        # What the rows keep, and one checkpoint that is being written.
        kept = sum(cost.checkpoint * max(0, cost.checkpoints - 1) for cost in costs.values())
        disk = kept + max(cost.checkpoint for cost in costs.values())
        print(_line("all, one after the other", Cost(steps, tokens, 0, 0, "", hours), gpus, disk))
        if problem := no_room(self.rows[0].folder.parent, disk):
            print(f"\nno room here: {problem}")

    def assumptions(self, planning: Planning) -> None:
        """Print what the estimates rest on."""
        shapes = [inputs.model.shape for inputs, _ in self._evaluated.values()]
        gpus = [planning.gpu] if planning.gpu else GPUS
        print()
        print_assumptions([speed_of(gpu, shape) for gpu in gpus for shape in shapes], planning)

    def overview(self, planning: Planning) -> None:
        """Print the hours of all rows on every GPU that can be planned for, and those of the last row of a model."""
        last = {row.model: row for row in self.rows}
        names = [Path(model).name for model in last]
        print(f"\n| GPUs | {' | '.join(names)} | all {len(self.rows)} rows | needs |")
        print(f"| --- | {' | '.join('---:' for _ in names)} | ---: | --- |")
        for gpu in GPUS:
            for gpus in (planning.gpus,) if planning.gpus else COUNTS:
                on = replace(planning, gpu=gpu, gpus=gpus)
                costs = {row.name: self.cost(row, on) for row in self.rows}
                cells = [_hours([costs[row.name]], gpus) for row in last.values()]
                needs = [
                    f"{Path(model).name}: `{flags}`" for model, row in last.items() if (flags := costs[row.name].flags)
                ]
                cells.append(_hours(list(costs.values()), gpus))
                print(f"| {gpus} x {gpu} | {' | '.join(cells)} | {'; '.join(needs)} |")
        print("\nEstimated hours, and GPU-hours in brackets, of the last row of each model and of all rows.")


def _line(name: str, cost: Cost, gpus: int, disk: int) -> str:
    hours = "does not fit |" if cost.hours is None else f"{cost.hours:.1f} | {cost.hours * gpus:.1f}"
    return f"| {name} | {cost.steps:,} | {cost.tokens / 1e6:,.0f} | {hours} | {disk / 1e9:,.1f} | {cost.flags} |"


def _hours(costs: list[Cost], gpus: int) -> str:
    if any(cost.hours is None for cost in costs):
        return "does not fit"
    hours = sum(cost.hours for cost in costs)
    return f"{hours:.1f} ({hours * gpus:.0f})"
