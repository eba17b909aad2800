"""What `--dry-run` and scripts/plan.py print: a run or an evaluation that is not started."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bnpo.config import TrainConfig, changed_settings
from bnpo.evaluation.program import EvalConfig, chosen_suite
from bnpo.files import InputError
from bnpo.policy.folder import local_folder
from bnpo_estimators import exact_objective, exact_weight, method_gains
from planner import Planning
from planner.hours import START_SECONDS, TrainingPlan, plan_training, sampling_seconds
from planner.inputs import evaluation_inputs, training_inputs

ACCURACIES = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
"""Accuracies at which tables show weights and objectives."""


def objective_lines(config: TrainConfig) -> list[str]:
    """Return what training with `weight`, `beta` or `pass_at_k`, whose objective the user sets,
    maximises as a table, line by line: exact for rewards of 0 and 1.
    """
    if not config.method.estimator.settings:
        return []
    m = config.batch.samples_per_question
    method = replace(config.method, reward_weights=None)  # of one reward
    gain = method_gains(method, m, config.batch.questions_per_step)  # [m]
    values = {"accuracy p": ACCURACIES, "weight": exact_weight(ACCURACIES, gain)}
    values["objective"] = exact_objective(ACCURACIES, gain)
    lines = [
        f"what training maximises with {m} answers per question, exactly for rewards of 0 and 1:"
    ]
    return lines + [
        f"{name:<11}" + "".join(f"{value:>10.4g}" for value in row) for name, row in values.items()
    ]


def dry_run_training(config: TrainConfig, planning: Planning | None = None) -> None:
    """Print what `train.py` would do, and with `planning` the memory and hours that it would take.
    Raises InputError for what it would refuse, and for a run that does not fit the GPUs.
    """
    inputs = training_inputs(config)
    plan = plan_training(config, inputs, planning) if planning else TrainingPlan([])
    lines = [*changed_settings(config), *inputs.lines, *objective_lines(config), *plan.lines]
    print_plan(lines, plan.seconds, planning)
    if plan.problem:
        raise InputError(plan.problem)
    if planning is None:
        print("all settings: python train.py --print-config ...")
        print("memory and hours on GPUs: python scripts/plan.py --gpu H100 train.py ...")


def dry_run_evaluation(config: EvalConfig, planning: Planning | None = None) -> None:
    """Print what `eval.py` would do, like `dry_run_training`."""
    suite = chosen_suite(config, local_folder(config.ckpt) or Path(config.ckpt))
    inputs, seconds = evaluation_inputs(config.ckpt, suite), {}
    if planning:
        size, gpus = config.tensor_parallel, planning.gpus or 1
        samplers = config.data_parallel or max(1, gpus // size)
        if samplers * size > gpus:
            raise InputError(
                f"--data-parallel {samplers} times --tensor-parallel {size}: needs --gpus "
                f"{samplers * size} or more"
            )
        busy = replace(planning, gpus=samplers * size)
        sampling = sampling_seconds(inputs, busy, inputs.answers, size)
        seconds = {"sampling": sampling, "start": START_SECONDS}
    print_plan([f"model {config.ckpt}", *inputs.lines], seconds, planning)
    if planning is None:
        print("hours on GPUs: python scripts/plan.py --gpu H100 eval.py ...")


def print_plan(lines: list[str], seconds: dict[str, float], planning: Planning | None) -> None:
    """Print `lines`, and the estimated hours of a run with what they assume."""
    print(*lines, sep="\n")
    if planning and seconds:
        parts = ", ".join(f"{name} {value / 3600:.2f}" for name, value in seconds.items())
        hours = sum(seconds.values()) / 3600
        print(
            f"estimate: {hours:.1f} hours, {hours * (planning.gpus or 1):.1f} GPU-hours (in hours: "
            f"{parts})\nit assumes {planning.answer_tokens} tokens per answer (--answer-tokens), "
            "and docs/reproduce.md"
        )
