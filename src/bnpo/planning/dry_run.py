"""`--dry-run`: what a training run or an evaluation would take, as text and as numbers."""

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
from bnpo.files import InputError
from bnpo.flags import Planning, flat_settings, with_settings
from bnpo.planning.cost import (
    START_SECONDS,
    Work,
    assumptions,
    checkpoint_bytes,
    checkpoints_kept,
    sampling_seconds,
    training_seconds,
)
from bnpo.planning.fit import (
    Machine,
    Plan,
    at_once,
    fitting_changes,
    flag,
    plan,
    require_plan,
    sampler_bytes,
    token_bytes,
)
from bnpo.planning.gpus import HOST, Speed, speed_of
from bnpo.planning.inputs import Inputs, Model, evaluation_inputs, training_inputs
from bnpo.planning.memory import GIB
from bnpo.policy.folder import local_folder
from bnpo.policy.settings import MOST_SEQUENCES, PREFILL_TOKENS


@dataclass(frozen=True)
class Estimate:
    """Seconds of a program on `gpus` GPUs by what they go to (empty: not asked for, or it does not fit)."""

    gpus: int
    seconds: dict[str, float]

    @property
    def hours(self) -> float:
        return sum(self.seconds.values()) / 3600

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds / 3600:.2f}" for name, seconds in self.seconds.items())
        return f"{self.hours:.1f} hours, {self.hours * self.gpus:.1f} GPU-hours ({parts})"


@dataclass(frozen=True)
class TrainingPlan:
    """A training run: its steps and answers, bytes of a checkpoint and most that are there at once, the plan of a
    rank's memory, the settings with which alone it fits (none: it fits as it is), and the estimate."""

    steps: int
    answers: int
    checkpoint: int
    most_checkpoints: int
    memory: Plan | None
    changes: dict[str, object]
    estimate: Estimate

    @property
    def flags(self) -> str:
        return " ".join(flag(name, value) for name, value in self.changes.items())


def machine(speed: Speed, gpus: int) -> Machine:
    """Machines with up to eight such GPUs each."""
    return Machine(gpus, min(gpus, 8), speed.memory, min(gpus, 8) * HOST)


def training_plan(config: TrainConfig, inputs: Inputs, planning: Planning) -> TrainingPlan:
    """What a run of `config` takes. Raises InputError for a GPU that is not known."""
    gpus, shape, longest = planning.gpus or 1, inputs.model.shape, inputs.model.longest
    steps = config.batch.steps or config.batch.epochs * (inputs.problems // config.batch.questions_per_step)
    saves, most = checkpoints_kept(config, steps)
    checkpoint = checkpoint_bytes(shape, config)
    memory, changes, seconds = None, {}, {}
    if planning.gpu is not None:
        speed = speed_of(planning.gpu, shape)
        memory = plan(shape, config, machine(speed, gpus), longest)
        if memory.lack:
            changes = fitting_changes(shape, config, machine(speed, gpus), longest)
            config = with_settings(config, **changes)
        fitted = plan(shape, config, machine(speed, gpus), longest) if changes else memory
        if not fitted.lack:
            often = [
                ceil(steps / every) + 1 if every else 0
                for every in (config.logging.eval_every, config.logging.rollouts_every)
            ]
            lengths = inputs.prompt, planning.answer_tokens
            work = Work(steps, *lengths, inputs.evaluated, *often, saves, checkpoint)
            seconds = training_seconds(shape, speed, config, gpus, fitted.sequences, work)
    answers = (
        steps * config.batch.questions_per_step * (config.batch.samples_per_question + (config.method.algo == "remax"))
    )
    return TrainingPlan(steps, answers, checkpoint, most, memory, changes, Estimate(gpus, seconds))


def evaluation_estimate(config: EvalConfig, inputs: Inputs, planning: Planning, longest_answer: int) -> Estimate:
    """What an evaluation takes, in bf16. Raises InputError for a GPU that is not known or too small."""
    gpus, shape = planning.gpus or 1, inputs.model.shape
    if planning.gpu is None:
        return Estimate(gpus, {})
    speed = speed_of(planning.gpu, shape)
    samplers = config.data_parallel or max(1, gpus // config.tensor_parallel)
    answers = ceil(inputs.evaluated / samplers)
    sequences = at_once(min(answers, MOST_SEQUENCES), cache_tokens(config, inputs.model, speed), inputs.model.longest)
    lengths = inputs.prompt, planning.answer_tokens, longest_answer
    whole = replace(  # the GPUs of a sampler work as one
        speed, bandwidth=speed.bandwidth * config.tensor_parallel, flops=speed.flops * config.tensor_parallel
    )
    seconds = sampling_seconds(shape, whole, answers, sequences, samplers, *lengths)
    return Estimate(gpus, {"sampling": seconds, "start": float(START_SECONDS)})


def cache_tokens(config: EvalConfig, model: Model, speed: Speed) -> int:
    """Tokens that the cache of a sampler holds. Raises InputError where not even one answer fits."""
    fixed = sampler_bytes(model.shape, 2, max(PREFILL_TOKENS, model.longest), MOST_SEQUENCES)
    room = config.gpu_memory * speed.memory * config.tensor_parallel - fixed
    cache = int(room / token_bytes(model.shape, 2))
    if cache < model.longest:
        raise InputError(
            f"--gpu: {config.tensor_parallel} x {speed.memory / GIB:.1f} GiB are too little for a sampler of "
            f"{model.name}, whose weights and workspace take {fixed / GIB:.1f}; --tensor-parallel shares them"
        )
    return cache


def no_room(folder: Path, needed: int) -> str:
    """Why `needed` bytes cannot be written in `folder`, "" if they can."""
    place = folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return f"{folder}: {needed / 1e9:.1f} GB of checkpoints at once, {free / 1e9:.1f} GB are free" * (needed > free)


def plan_training(config: TrainConfig) -> None:
    """Print what `train.py` would do. Raises InputError, one line, for what it would refuse."""
    planning, inputs = config.planning, training_inputs(config)
    found = training_plan(config, inputs, planning)
    print(json.dumps(json_settings(config), indent=2))
    for line in [*inputs.lines, *training_lines(config, found, inputs, planning)]:
        print(line)
    print(disk_line(config.folder.output_dir, found))
    if found.estimate.seconds:
        print(f"estimate{f' with {found.flags}' * bool(found.flags)}: {found.estimate}")
        print_assumptions([speed_of(planning.gpu, inputs.model.shape)], planning)


def training_lines(config: TrainConfig, found: TrainingPlan, inputs: Inputs, planning: Planning) -> list[str]:
    """How much there is to do, and the memory of a rank."""
    epoch = inputs.problems // config.batch.questions_per_step
    updates = found.steps * config.batch.ppo_iterations * config.batch.mini_batches
    tokens = found.answers * min(planning.answer_tokens, config.sampling.max_answer_tokens)
    lines = [
        f"{found.steps:,} steps of {config.batch.questions_per_step} x {config.batch.samples_per_question} answers, "
        f"{epoch} steps an epoch; {updates:,} optimizer steps; {found.answers:,} answers, "
        f"{tokens / 1e6:,.0f} million tokens (estimate)",
    ]
    if found.memory is None:
        return [*lines, "memory and hours: --gpu names the GPU to plan for"]
    gpus, speed = planning.gpus or 1, speed_of(planning.gpu, inputs.model.shape)
    lines.append(f"memory of a rank, {gpus} x {speed.name} of {speed.memory / GIB:.1f} GiB, by this account:")
    return [*lines, str(found.memory.account), *_fit_lines(config, found, inputs.model, machine(speed, gpus))]


def _fit_lines(config: TrainConfig, found: TrainingPlan, model: Model, on: Machine) -> list[str]:
    """Whether it fits, and the largest micro-batch and cache that do, with the flags that it needs."""
    lines = []
    if found.memory.lack:
        try:
            require_plan(model.shape, config, on, model.longest)
        except InputError as error:
            lines.append(f"does not fit: {error}")
        if not found.changes:
            return lines
        lines.append(f"with {found.flags}:")
        config = with_settings(config, **found.changes)

    def planned(**changes: object) -> Plan:
        return plan(model.shape, with_settings(config, **changes), on, model.longest)

    fitted = planned()
    longest = config.sampling.max_prompt_tokens + config.sampling.max_answer_tokens
    own = config.batch.questions_per_step * config.batch.samples_per_question // on.ranks * longest
    tokens = _largest(range(longest, own + 1, 1024), lambda value: not planned(micro_batch_tokens=value).lack)
    percents = range(round(100 * fitted.gpu_memory), 100)
    percent = _largest(percents, lambda value: not planned(gpu_memory=value / 100).lack)
    return [
        *lines,
        f"sampler: {fitted.gpu_memory:.0%} of the GPU, {fitted.sequences} answers at once, a cache of "
        f"{fitted.cache:,} tokens; the largest that fits: --gpu-memory {percent / 100:g}, "
        f"{planned(gpu_memory=percent / 100).cache:,} tokens",
        f"the largest --micro-batch-tokens that fits: {tokens}",
    ]


def _largest(values: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The last of the ascending `values` that fits; all before it do, and the first."""
    return values[max(0, bisect_left(values, True, key=lambda value: not fits(value)) - 1)]


def disk_line(folder: Path, found: TrainingPlan) -> str:
    needed = found.checkpoint * found.most_checkpoints
    problem = no_room(folder, needed)
    line = f"disk: {found.checkpoint / 1e9:.2f} GB a checkpoint, at most {found.most_checkpoints} at once: "
    return f"{line}{needed / 1e9:.1f} GB{'; no room here: ' * bool(problem)}{problem}"


def print_assumptions(speeds: Sequence[Speed], planning: Planning) -> None:
    print("estimated; it rests on:")
    for line in assumptions(speeds, planning.answer_tokens):
        print(f"  {line}")


def plan_evaluation(config: EvalConfig) -> None:
    """Print what `eval.py` would do. Raises InputError, one line, for what it would refuse."""
    check(config)
    if (config.data_parallel or 1) * config.tensor_parallel > (config.planning.gpus or 1):
        raise InputError("--gpus: are fewer than --data-parallel times --tensor-parallel")
    suite = chosen_suite(config, local_folder(config.ckpt) or Path(config.ckpt))
    for ckpt in [config.ckpt, config.base] if config.base else [config.ckpt]:
        inputs = evaluation_inputs(ckpt, suite)
        print(json.dumps(flat_settings(config) | {"ckpt": ckpt, "suite": asdict(suite)}, indent=2, default=str))
        print(*inputs.lines, sep="\n")
        tokens = inputs.evaluated * min(config.planning.answer_tokens, suite.max_answer_tokens)
        print(f"{inputs.evaluated:,} answers, {tokens / 1e6:,.1f} million tokens (estimate)")
        if config.planning.gpu is None:
            print("memory and hours: --gpu names the GPU to plan for")
            continue
        speed = speed_of(config.planning.gpu, inputs.model.shape)
        cache = cache_tokens(config, inputs.model, speed)
        weights = 2 * inputs.model.shape.parameters / config.tensor_parallel
        print(
            f"memory of a GPU: {config.gpu_memory:.0%} of {speed.memory / GIB:.1f} GiB for the sampler: weights "
            f"{weights / GIB:.1f} GiB, a cache of {cache:,} tokens"
        )
        print(f"estimate: {evaluation_estimate(config, inputs, config.planning, suite.max_answer_tokens)}")
        print_assumptions([speed], config.planning)
