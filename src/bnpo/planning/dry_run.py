"""`--dry-run`: what a training run or an evaluation needs, as numbers and as text."""

import json
import shutil
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path

from bnpo.config import TrainConfig, json_settings
from bnpo.evaluation.config import EvalConfig
from bnpo.evaluation.program import check, chosen_suite
from bnpo.evaluation.suites import Suite
from bnpo.files import InputError
from bnpo.flags import flat_settings, with_settings
from bnpo.planning.cost import (
    START_SECONDS,
    TokenLengths,
    assumption_lines,
    checkpoint_bytes,
    checkpoints_kept,
    sampling_seconds,
    training_seconds,
)
from bnpo.planning.fit import (
    Machine,
    MemoryPlan,
    PlannedRun,
    answers_at_once,
    answers_per_question,
    explain_problem,
    fitting_changes,
    flags_text,
    plan_memory,
    sampler_bytes,
    token_bytes,
)
from bnpo.planning.gpus import speed_of
from bnpo.planning.inputs import PlanInputs, evaluation_inputs, training_inputs
from bnpo.planning.memory import GIB
from bnpo.policy.folder import local_folder
from bnpo.policy.settings import MOST_SEQUENCES, PREFILL_TOKENS
from bnpo.task import longest_sequence

NO_GPU = "no estimate of memory and hours: name a GPU with --gpu"


@dataclass(frozen=True)
class Estimate:
    """Seconds of a program on `gpus` GPUs by what takes them; empty without --gpu, or if it does not fit."""

    gpus: int
    seconds: dict[str, float]

    @property
    def hours(self) -> float:
        return sum(self.seconds.values()) / 3600

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds / 3600:.2f}" for name, seconds in self.seconds.items())
        return f"{self.hours:.1f} hours, {self.hours * self.gpus:.1f} GPU-hours (in hours: {parts})"


@dataclass(frozen=True)
class TrainingPlan:
    """What a training run needs."""

    config: TrainConfig
    inputs: PlanInputs
    steps: int
    optimizer_steps: int
    answers: int
    tokens: float  # of all answers, estimated
    checkpoint: int  # bytes
    most_checkpoints: int  # that exist at once
    run: PlannedRun | None  # None: no --gpu is named
    memory: MemoryPlan | None
    changes: dict[str, object]  # settings with which alone the run fits; empty if it fits without, or never
    estimate: Estimate


@dataclass(frozen=True)
class EvaluationPlan:
    """What an evaluation needs."""

    tokens: float  # of all answers, estimated
    cache: int  # tokens that fit a sampler's cache
    estimate: Estimate


def plan_training(config: TrainConfig, inputs: PlanInputs) -> TrainingPlan:
    """Return what a training run needs. Raises InputError for an unknown GPU."""
    batch, planning, shape = config.batch, config.planning, inputs.model.shape
    steps = batch.steps or batch.epochs * (inputs.problems // batch.questions_per_step)
    answers = steps * batch.questions_per_step * answers_per_question(config)
    longest_answer = config.sampling.max_answer_tokens
    lengths = TokenLengths(inputs.prompt, min(planning.answer_tokens, longest_answer), longest_answer)
    gpus = planning.gpus or 1
    run, memory, changes, seconds = None, None, {}, {}
    if planning.gpu is not None:
        speed = speed_of(planning.gpu, shape)
        run = PlannedRun(shape, config, Machine.assumed(gpus, speed.memory), inputs.model.longest)
        memory = plan_memory(run)
        changes = fitting_changes(run) if memory.problem else {}
        fitting_run = run.with_settings(**changes)
        fitting = plan_memory(fitting_run)
        if not fitting.problem:
            at_once = fitting.sequences
            seconds = training_seconds(
                shape, speed, fitting_run.config, gpus, at_once, lengths, steps, inputs.eval_answers
            )
    return TrainingPlan(
        config=config,
        inputs=inputs,
        steps=steps,
        optimizer_steps=steps * batch.ppo_iterations * batch.mini_batches,
        answers=answers,
        tokens=answers * lengths.answer,
        checkpoint=checkpoint_bytes(shape, config),
        most_checkpoints=checkpoints_kept(config, steps)[1],
        run=run,
        memory=memory,
        changes=changes,
        estimate=Estimate(gpus, seconds),
    )


def plan_evaluation(config: EvalConfig, inputs: PlanInputs, suite: Suite) -> EvaluationPlan:
    """Return what an evaluation in bf16 needs. Raises InputError for a GPU that is unknown or too small."""
    planning, model = config.planning, inputs.model
    gpus = planning.gpus or 1
    answer = min(planning.answer_tokens, suite.max_answer_tokens)
    tokens = inputs.eval_answers * answer
    if planning.gpu is None:
        return EvaluationPlan(tokens, 0, Estimate(gpus, {}))
    speed = speed_of(planning.gpu, model.shape)
    fixed = sampler_bytes(model.shape, 2, max(PREFILL_TOKENS, model.longest), MOST_SEQUENCES)
    share = config.gpu_memory * speed.memory * config.tensor_parallel
    cache = int((share - fixed) / token_bytes(model.shape, 2))
    if cache < model.longest:  # not even one answer fits
        raise InputError(
            f"--gpu: {config.tensor_parallel} x {speed.memory / GIB:.1f} GiB are too little for a sampler of "
            f"{model.name}: its weights and workspace take {fixed / GIB:.1f} GiB. Share them with --tensor-parallel"
        )
    samplers = config.data_parallel or max(1, gpus // config.tensor_parallel)
    answers = ceil(inputs.eval_answers / samplers)
    # The GPUs of one sampler work as one GPU that is faster by their number.
    bandwidth, flops = speed.bandwidth * config.tensor_parallel, speed.flops * config.tensor_parallel
    seconds = sampling_seconds(
        model.shape,
        replace(speed, bandwidth=bandwidth, flops=flops),
        TokenLengths(inputs.prompt, answer, suite.max_answer_tokens),
        answers=answers,
        at_once=answers_at_once(min(answers, MOST_SEQUENCES), cache, model.longest),
        samplers=samplers,
    )
    return EvaluationPlan(tokens, cache, Estimate(gpus, {"sampling": seconds, "start": START_SECONDS}))


def disk_problem(folder: Path, needed: int) -> str:
    """Return why `needed` bytes of checkpoints cannot be written to `folder`, or an empty string."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed <= free:
        return ""
    return f"{folder}: checkpoints need {needed / 1e9:.1f} GB at once, {free / 1e9:.1f} GB are free"


def dry_run_training(config: TrainConfig) -> None:
    """Print what `train.py` would do. Raises InputError for what it would refuse."""
    inputs = training_inputs(config)
    plan = plan_training(config, inputs)
    print(json.dumps(json_settings(config), indent=2))
    print(*inputs.lines, *training_lines(plan), sep="\n")
    disk = plan.checkpoint * plan.most_checkpoints
    print(f"disk: {plan.checkpoint / 1e9:.2f} GB per checkpoint x {plan.most_checkpoints} at once: {disk / 1e9:.1f} GB")
    problem = disk_problem(config.folder.output_dir, disk)
    if problem:
        print(f"not enough disk space: {problem}")
    if plan.estimate.seconds:
        print(f"estimate{f' with {flags_text(plan.changes)}' if plan.changes else ''}: {plan.estimate}")
        speed = speed_of(config.planning.gpu, inputs.model.shape)
        print(*assumption_lines([speed], config.planning.answer_tokens), sep="\n")


def training_lines(plan: TrainingPlan) -> list[str]:
    """Return lines about the amount of work and the memory of a rank."""
    batch, run = plan.config.batch, plan.run
    lines = [
        f"{plan.steps:,} steps of {batch.questions_per_step} x {batch.samples_per_question} answers "
        f"({plan.inputs.problems // batch.questions_per_step} steps per epoch), "
        f"{plan.optimizer_steps:,} optimizer steps, {plan.answers:,} answers, about {plan.tokens / 1e6:,.0f} million "
        "tokens"
    ]
    if run is None:
        return [*lines, NO_GPU]
    gpu = f"{plan.config.planning.gpu} with {run.machine.gpu / GIB:.1f} GiB"
    lines += [f"memory per rank on {run.machine.ranks} x {gpu}, estimated:", str(plan.memory.memory)]
    if plan.memory.problem:
        lines.append(f"does not fit: {explain_problem(run, plan.memory)}")
        if not plan.changes:
            return lines
        lines.append(f"with {flags_text(plan.changes)}:")
    return lines + _largest_fitting(run.with_settings(**plan.changes))


def _largest_fitting(run: PlannedRun) -> list[str]:
    """Return lines about the sampler of a run that fits, and the largest values of two flags with which it still fits."""

    def plan_with(**changes: object) -> MemoryPlan:
        return plan_memory(run.with_settings(**changes))

    plan, longest, batch = plan_with(), longest_sequence(run.config, None), run.config.batch
    rank_tokens = batch.questions_per_step * batch.samples_per_question // run.machine.ranks * longest
    micro_batches = range(longest, rank_tokens + 1, 1024)
    tokens = _last_fitting(micro_batches, lambda value: not plan_with(micro_batch_tokens=value).problem)
    percents = range(round(100 * plan.gpu_memory), 100)
    percent = _last_fitting(percents, lambda value: not plan_with(gpu_memory=value / 100).problem)
    largest_cache = plan_with(gpu_memory=percent / 100).cache
    return [
        f"sampler: {plan.gpu_memory:.0%} of the GPU memory, {plan.sequences} answers at once, a cache of "
        f"{plan.cache:,} tokens",
        f"largest --gpu-memory that fits: {percent / 100:g} (a cache of {largest_cache:,} tokens)",
        f"largest --micro-batch-tokens that fits: {tokens}",
    ]


def _last_fitting(values: Sequence[int], fits: Callable[[int], bool]) -> int:
    """Return the last of the ascending `values` that fits, by bisection; the first if none does."""
    return values[max(0, bisect_left(values, True, key=lambda value: not fits(value)) - 1)]


def dry_run_evaluation(config: EvalConfig) -> None:
    """Print what `eval.py` would do. Raises InputError for what it would refuse."""
    check(config)
    if (config.data_parallel or 1) * config.tensor_parallel > (config.planning.gpus or 1):
        raise InputError("--gpus: must be at least --data-parallel times --tensor-parallel")
    suite = chosen_suite(config, local_folder(config.ckpt) or Path(config.ckpt))
    for ckpt in [config.ckpt, config.base] if config.base else [config.ckpt]:
        inputs = evaluation_inputs(ckpt, suite)
        print(json.dumps(flat_settings(config) | {"ckpt": ckpt, "suite": asdict(suite)}, indent=2, default=str))
        print(*inputs.lines, sep="\n")
        plan = plan_evaluation(config, inputs, suite)
        print(f"{inputs.eval_answers:,} answers, about {plan.tokens / 1e6:,.1f} million tokens")
        if config.planning.gpu is None:
            print(NO_GPU)
            continue
        speed = speed_of(config.planning.gpu, inputs.model.shape)
        weights = 2 * inputs.model.shape.parameters / config.tensor_parallel
        print(
            f"memory per GPU: the sampler takes {config.gpu_memory:.0%} of {speed.memory / GIB:.1f} GiB: weights "
            f"{weights / GIB:.1f} GiB, a cache of {plan.cache:,} tokens"
        )
        print(f"estimate: {plan.estimate}")
        print(*assumption_lines([speed], config.planning.answer_tokens), sep="\n")
