"""`--dry-run`: what a training run or an evaluation needs, as numbers and as text."""

import json
import shutil
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from pathlib import Path

from bnpo.config import Planning, TrainConfig, flat_settings, json_settings
from bnpo.evaluation.program import EvalConfig, check, chosen_suite
from bnpo.evaluation.scores import describe_detectable, detectable
from bnpo.evaluation.suites import Suite
from bnpo.files import InputError
from bnpo.planning import cost, fit
from bnpo.planning.gpus import GpuSpeed, speed_of
from bnpo.planning.inputs import PlanInputs, evaluation_inputs, training_inputs
from bnpo.planning.memory import GIB
from bnpo.policy.engine_settings import MOST_SEQUENCES
from bnpo.policy.folder import local_folder

NO_GPU = "no estimate of memory and hours: name a GPU with --gpu"


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
    run: fit.PlannedRun | None  # None: no --gpu is named
    changes: dict[str, object]  # settings with which alone the run fits; empty if it fits without, or never
    seconds: dict[str, float]  # by what takes them; empty without --gpu, or if it does not fit

    @property
    def with_flags(self) -> str:
        return f" with {fit.flags_text(self.changes)}" if self.changes else ""


@dataclass(frozen=True)
class EvaluationPlan:
    """What an evaluation needs."""

    tokens: float  # of all answers, estimated
    seconds: dict[str, float]  # by what takes them; empty without --gpu


def plan_training(config: TrainConfig, inputs: PlanInputs) -> TrainingPlan:
    """Return what a training run needs. Raises InputError for an unknown GPU."""
    batch, planning, shape = config.batch, config.planning, inputs.model.shape
    longest_answer = config.sampling.max_answer_tokens
    steps = batch.steps or batch.epochs * (inputs.problems // batch.questions_per_step)
    answers = steps * batch.questions_per_step * fit.answers_per_question(config)
    lengths = cost.TokenLengths(inputs.prompt, min(planning.answer_tokens, longest_answer), longest_answer)
    run, changes, seconds = None, {}, {}
    if planning.gpu is not None:
        speed = speed_of(planning.gpu, shape)
        run = fit.PlannedRun.on_gpus(planning.gpus or 1, speed, shape, config, inputs.model.longest)
        fit.check_sampler_ranks(shape, config.hardware.sampler_ranks, run.ranks_here)
        changes = fit.fitting_changes(run)
        fitting_run = run.with_settings(**changes)
        memory = fit.plan_memory(fitting_run)
        if not memory.problem:
            seconds = cost.training_seconds(fitting_run, speed, lengths, memory.sequences, steps, inputs.eval_answers)
    return TrainingPlan(
        config=config,
        inputs=inputs,
        steps=steps,
        optimizer_steps=steps * batch.ppo_iterations * batch.mini_batches,
        answers=answers,
        tokens=answers * lengths.answer,
        checkpoint=cost.checkpoint_bytes(shape, config),
        most_checkpoints=cost.checkpoints_kept(config, steps)[1],
        run=run,
        changes=changes,
        seconds=seconds,
    )


def plan_evaluation(config: EvalConfig, inputs: PlanInputs, suite: Suite) -> EvaluationPlan:
    """Return what an evaluation in bf16 needs. Raises InputError for a GPU that is unknown or too small."""
    planning, model, longest_answer = config.planning, inputs.model, suite.max_answer_tokens
    lengths = cost.TokenLengths(inputs.prompt, min(planning.answer_tokens, longest_answer), longest_answer)
    tokens = inputs.eval_answers * lengths.answer
    if planning.gpu is None:
        return EvaluationPlan(tokens, {})
    speed, gpus = speed_of(planning.gpu, model.shape), config.tensor_parallel
    sampler = fit.SamplerSizes.of(model.shape, 2, gpus, model.longest)
    fixed = sampler.fixed + MOST_SEQUENCES * sampler.logits
    cache = int((config.gpu_memory * speed.memory - fixed) / sampler.token)
    if cache < model.longest:  # not even one answer fits
        raise InputError(
            f"--gpu: {gpus} x {speed.memory / GIB:.1f} GiB are too little for a sampler of {model.name}: its weights "
            f"and workspace take {fixed / GIB:.1f} GiB per GPU. Share them with --tensor-parallel"
        )
    samplers = config.data_parallel or max(1, (planning.gpus or 1) // gpus)
    answers = ceil(inputs.eval_answers / samplers)
    at_once = fit.answers_at_once(min(answers, MOST_SEQUENCES), cache, model.longest)
    seconds = cost.sampling_seconds(
        model.shape, speed, lengths, answers=answers, at_once=at_once, samplers=samplers, gpus=gpus
    )
    return EvaluationPlan(tokens, {"sampling": seconds, "start": cost.START_SECONDS})


def disk_problem(folder: Path, needed: int) -> str:
    """Return why `needed` bytes of checkpoints cannot be written to `folder`, or an empty string."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{folder}: checkpoints need {needed / 1e9:.1f} GB at once, {free / 1e9:.1f} GB are free"
    return text if needed > free else ""


def dry_run_training(config: TrainConfig) -> None:
    """Print what `train.py` would do. Raises InputError for what it would refuse."""
    inputs = training_inputs(config)
    plan = plan_training(config, inputs)
    print(json.dumps(json_settings(config), indent=2))
    objective = config.method.lines(config.batch.questions_per_step, config.batch.samples_per_question)
    print(*inputs.lines, *objective, *training_lines(plan), sep="\n")
    disk = plan.checkpoint * plan.most_checkpoints
    print(f"disk: {plan.checkpoint / 1e9:.2f} GB per checkpoint x {plan.most_checkpoints} at once: {disk / 1e9:.1f} GB")
    problem = disk_problem(config.folder.output_dir, disk)
    if problem:
        print(f"not enough disk space: {problem}")
    if plan.seconds:
        speed = speed_of(config.planning.gpu, inputs.model.shape)
        _print_estimate(plan.seconds, config.planning, speed, plan.with_flags)


def training_lines(plan: TrainingPlan) -> list[str]:
    """Return lines about the amount of work and the memory of a rank."""
    batch, run = plan.config.batch, plan.run
    lines = [
        f"{plan.steps:,} steps of {batch.questions_per_step} x {batch.samples_per_question} answers "
        f"({plan.inputs.problems // batch.questions_per_step} steps per epoch), "
        f"{plan.optimizer_steps:,} optimizer steps, {plan.answers:,} answers, "
        f"about {plan.tokens / 1e6:,.0f} million tokens"
    ]
    if run is None:
        return [*lines, NO_GPU]
    memory = fit.plan_memory(run)
    if memory.problem:
        lines.append(f"does not fit: {fit.explain_problem(run, memory.problem)}")
        memory = fit.plan_memory(run.with_settings(**plan.changes))
    gpus = f"{run.ranks} x {plan.config.planning.gpu} with {run.gpu / GIB:.1f} GiB"
    lines += [f"memory per rank on {gpus}{plan.with_flags}, estimated:", str(memory.rank)]
    if memory.rank.offloaded:
        lines.append(f"CPU memory per rank: {memory.rank.offloaded / GIB:.1f} GiB")
    if not memory.problem:
        lines.append(f"sampler: {memory.gpu_memory:.0%} of the GPU memory, {memory.sequences} answers at once")
        lines += [f"warning: {memory.warning}"] if memory.warning else []
    return lines


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
        limits = {}
        for name, count in inputs.eval_problems.items():  # with the largest variances that answers can have
            limits[name] = detectable(count, suite.datasets[name].repetitions, within=0.25, error=sqrt(0.25 / count))
        print(f"smallest detectable difference at pass@1 of 50 %, in points: {describe_detectable(limits)}")
        if config.planning.gpu is None:
            print(NO_GPU)
            continue
        speed = speed_of(config.planning.gpu, inputs.model.shape)
        weights = 2 * inputs.model.shape.parameters / config.tensor_parallel
        share = f"{config.gpu_memory:.0%} of {speed.memory / GIB:.1f} GiB"
        print(f"memory per GPU: the sampler takes {share}: weights {weights / GIB:.1f} GiB, the rest for its cache")
        _print_estimate(plan.seconds, config.planning, speed)


def _print_estimate(seconds: dict[str, float], planning: Planning, speed: GpuSpeed, flags: str = "") -> None:
    parts = ", ".join(f"{name} {value / 3600:.2f}" for name, value in seconds.items())
    hours = sum(seconds.values()) / 3600
    print(f"estimate{flags}: {hours:.1f} hours, {hours * (planning.gpus or 1):.1f} GPU-hours (in hours: {parts})")
    print(*cost.assumption_lines([speed], planning.answer_tokens), sep="\n")
