"""`--dry-run`: what a training run or an evaluation reads and needs. The hours are estimates from data sheets."""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from bnpo.algorithm.weights import ACCURACIES, exact_objective, exact_weight, gains, shares
from bnpo.config import TrainConfig, flat_settings, json_settings
from bnpo.data import chat_template, check_enough, encode_problems, load_sources
from bnpo.evaluation.program import EvalConfig, check, chosen_suite
from bnpo.evaluation.scores import detectable
from bnpo.evaluation.suites import Suite, dataset_problems, encode_prompts, load_suite, longest_sequence
from bnpo.files import ROOT, InputError
from bnpo.planning.memory import (
    GIB,
    ModelShape,
    PlannedRun,
    answers_per_question,
    check_sampler_ranks,
    number_bytes,
    plan_memory,
    read_shape,
)
from bnpo.policy.folder import check_context, load_tokenizer, local_folder, model_folder
from bnpo.policy.model_check import check_model
from bnpo.policy.sampling import MOST_SEQUENCES
from bnpo.policy.speed import peak_tflops, update_operations

NO_GPU = "no estimate of memory and hours: name a GPU with --gpu"

# GiB of memory as torch reports it, rounded down, and 10^12 bytes per second of bandwidth (the SXM version).
GPUS = {
    "H20": (95.0, 4.0),
    "A100-80GB": (79.1, 2.04),
    "H100": (79.1, 3.35),
    "H200": (139.7, 4.8),
    "L40S": (44.3, 0.864),
    "RTX-PRO-6000": (94.9, 1.79),
    "RTX-5090": (31.3, 1.79),
    "RTX-4090": (23.5, 1.01),
    "RTX-5080": (15.4, 0.96),
}
BANDWIDTH_USE = 0.6  # share of the bandwidth that sampling reaches
SAMPLING_USE = 0.4  # share of the operations that sampling reaches: few rows per product
MFU = 0.35  # share of the operations that an update reaches
TOKEN_SECONDS = 0.005  # per token of all answers together, besides the GPU's work: scheduling and launching
START_SECONDS = 180.0  # imports, loading models, CUDA graphs
# Mean tokens of a MATH prompt by template, with Qwen2.5-Math's tokenizer. Assumed where no tokenizer is at hand.
PROMPT_TOKENS = defaultdict(lambda: 103.0, think=150.0)


@dataclass(frozen=True)
class GpuSpeed:
    """Memory and speed of one GPU, by its data sheet."""

    memory: int  # bytes
    bandwidth: float  # bytes per second
    flops: float  # bf16 operations per second


def speed_of(gpu: str) -> GpuSpeed:
    """Return the speed of `gpu`. Raises InputError for an unknown GPU."""
    if gpu not in GPUS:
        raise InputError(f"--gpu: unknown GPU '{gpu}'; known: {', '.join(GPUS)}")
    memory, bandwidth = GPUS[gpu]
    return GpuSpeed(int(memory * GIB), bandwidth * 1e12, peak_tflops(gpu.replace("-", " ")) * 1e12)


@dataclass(frozen=True)
class TokenLengths:
    """Tokens of a prompt and of an answer on average, and of the longest possible answer."""

    prompt: float
    answer: float
    longest: int


def sampling_seconds(
    shape: ModelShape, speed: GpuSpeed, lengths: TokenLengths, *, answers: int, at_once: int, gpus: int = 1
) -> float:
    """Return the seconds in which a sampler on `gpus` GPUs draws `answers` in bf16, `at_once` at a time.

    While answers wait, every finished one is replaced. Then the batch empties, until the longest answer is done.
    """

    def token_seconds(live: float) -> float:
        # One token for each of `live` answers: weights and cache are read, and the weights multiply one row per answer.
        cache = live * (lengths.prompt + lengths.answer) * 4 * shape.key_heads * shape.head_size * shape.layers
        reading = (2 * shape.parameters + cache) / (speed.bandwidth * BANDWIDTH_USE)
        computing = 2 * shape.parameters * live / (speed.flops * SAMPLING_USE)
        return max(reading, computing) / gpus + TOKEN_SECONDS

    at_once = min(at_once, answers)
    full = (answers - at_once) / at_once * lengths.answer * token_seconds(at_once)
    return full + lengths.longest * token_seconds(at_once * lengths.answer / lengths.longest)


def update_seconds(run: PlannedRun, speed: GpuSpeed, lengths: TokenLengths) -> float:
    """Return the seconds of the updates of one step, if every answer has a gradient. Offloading is not counted."""
    shape, batch = run.shape, run.config.batch
    prompt, answer = lengths.prompt, lengths.answer
    questions, answers = batch.questions_per_step, batch.questions_per_step * batch.samples_per_question
    tokens = questions * prompt + answers * answer  # the answers to a question share one pass of its prompt
    # The mean square of an exponentially distributed length is twice the square of its mean.
    double_pairs = questions * prompt**2 + answers * (2 * answer**2 + 2 * answer * prompt)
    multiplied = shape.parameters if shape.tied else shape.parameters - shape.head  # the embedding is only looked up
    adapter = shape.adapter(run.config)
    frozen = multiplied if adapter else 0
    operations = update_operations(multiplied + adapter, shape.layers, shape.hidden, tokens, double_pairs, frozen)
    return batch.ppo_iterations * operations / (run.ranks * speed.flops * MFU)


def training_seconds(
    run: PlannedRun, speed: GpuSpeed, lengths: TokenLengths, at_once: int, steps: int, eval_answers: int
) -> dict[str, float]:
    """Return the seconds of a training run by what takes them. A sampler draws `at_once` answers at a time."""
    config, ranks, sharing = run.config, run.ranks, run.config.hardware.sampler_ranks

    def sampling(answers: int) -> float:  # of every rank
        at_work = {"answers": answers * sharing, "at_once": at_once, "gpus": sharing}
        return sampling_seconds(run.shape, speed, lengths, **at_work) if answers else 0.0

    every = config.logging.eval_every
    evaluations = ceil(steps / every) + 1 if every else 0  # at the start, every so many steps and at the end
    return {
        "sampling": steps * sampling(config.batch.questions_per_step // ranks * answers_per_question(config)),
        "updates": steps * update_seconds(run, speed, lengths),
        "evaluations": evaluations * sampling(ceil(eval_answers / ranks)),
        "start": START_SECONDS,
    }


def checkpoint_bytes(shape: ModelShape, config: TrainConfig) -> int:
    """Return the bytes of a checkpoint: the model (merged if there is an adapter), master weights, AdamW's moments."""
    adapter = shape.adapter(config)
    return number_bytes(config) * (shape.parameters + adapter) + 12 * (adapter or shape.parameters)


def checkpoints_at_once(config: TrainConfig, steps: int) -> int:
    """Return how many checkpoints of a run exist at once: those kept, the best, and the one that is being written."""
    saves = ceil(steps / config.folder.save_every)
    return min(config.folder.keep or saves, saves) + bool(config.logging.eval_every) + 1


@dataclass(frozen=True)
class Inputs:
    """What a run reads. `lines` says it."""

    shape: ModelShape
    longest: int  # tokens of the longest prompt plus answer
    problems: int  # to train on; 0 for an evaluation
    prompt: float  # mean tokens of a prompt
    eval_problems: dict[str, int]  # of one evaluation, by data set
    eval_answers: int  # of one evaluation
    lines: list[str]


@cache
def find_model(name: str, longest: int) -> tuple[Path, ModelShape, PreTrainedTokenizerBase | None]:
    """Return folder, shape and tokenizer of a model, which is downloaded without its weights.

    Without a network, the models of the paper have their shapes in data/models, but no tokenizer (None). Raises
    InputError if there is no such model, or if its context is shorter than `longest` tokens.
    """
    try:
        folder = model_folder(name, weights=False)
    except InputError:
        folder = local_folder(name) or ROOT / "data" / "models" / Path(name).name
        if not (folder / "config.json").is_file():
            raise
    check_context(folder, longest)
    tokenizer = load_tokenizer(folder, longest) if any(folder.glob("tokenizer*")) else None
    return folder, read_shape(folder), tokenizer


def training_inputs(config: TrainConfig) -> Inputs:
    """Return what a training run and its evaluations read. Raises InputError for wrong files."""
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    longest = longest_sequence(config, suite)
    folder, shape, tokenizer = find_model(config.data.model, longest)
    check_model(folder, longest)
    count, prompt, line = _training_problems(config, tokenizer)
    evaluated = _suite_problems(suite, tokenizer) if suite else ({}, 0, ["no evaluation during training"])
    return Inputs(shape, longest, count, prompt, *evaluated[:2], [line, *evaluated[2]])


def evaluation_inputs(name: str, suite: Suite) -> Inputs:
    """Return what an evaluation of model `name` reads. Raises InputError like `training_inputs`."""
    longest = suite.max_prompt_tokens + suite.max_answer_tokens
    _, shape, tokenizer = find_model(name, longest)
    return Inputs(shape, longest, 0, PROMPT_TOKENS[suite.template], *_suite_problems(suite, tokenizer))


def _training_problems(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, float, str]:
    """Return the number of problems to train on, the mean tokens of a prompt, and lines about both."""
    data, longest = config.data, config.sampling.max_prompt_tokens
    problems, _ = load_sources(data.train_data, config.columns)
    line = f"{' '.join(data.train_data)}: {len(problems):,} problems"
    if tokenizer is None:
        line += ", not counted in tokens: the tokenizer cannot be downloaded"
        return len(problems), PROMPT_TOKENS[data.template], line
    tokenizer.chat_template = chat_template(tokenizer, data.template, data.system_prompt, data.thinking)
    kept, prompts = encode_problems(problems, tokenizer, longest)
    check_enough(kept, config.batch.questions_per_step, data.train_data)
    lengths = [len(prompt) for prompt in prompts]
    line += f", {len(problems) - len(kept)} of them left out: prompt over {longest} tokens"
    line += f"\nthe longest of the other prompts has {max(lengths)} tokens"
    for problem, prompt in zip(kept[:2], prompts[:2], strict=True):
        line += f"\nprompt of problem {problem.id}:\n{tokenizer.decode(prompt)}\nanswer: {problem.answer}"
    return len(kept), float(round(fmean(lengths))), line


def _suite_problems(suite: Suite, tokenizer: PreTrainedTokenizerBase | None) -> tuple[dict[str, int], int, list[str]]:
    """Return the problems by data set and the answers of an evaluation, and a line about every data set."""
    counts, answers, lines = {}, 0, []
    for name, dataset in suite.datasets.items():
        problems = dataset_problems(dataset)
        if tokenizer:
            encode_prompts(problems, suite, tokenizer)  # refuses prompts that are too long
        counts[name] = len(problems)
        answers += len(problems) * dataset.repetitions
        lines.append(f"{suite.name}: {name}: {len(problems)} problems x {dataset.repetitions} repetitions")
    return counts, answers, lines


@dataclass(frozen=True)
class TrainingPlan:
    """What a training run needs. `lines` says it."""

    checkpoint: int  # bytes
    checkpoints: int  # that exist at once
    seconds: dict[str, float]  # by what takes them; empty without --gpu, or if the run does not fit
    lines: list[str]


def plan_training(config: TrainConfig, inputs: Inputs) -> TrainingPlan:
    """Return what a training run needs. Raises InputError for an unknown GPU."""
    batch, gpu, shape = config.batch, config.planning.gpu, inputs.shape
    longest_answer = config.sampling.max_answer_tokens
    lengths = TokenLengths(inputs.prompt, min(config.planning.answer_tokens, longest_answer), longest_answer)
    epoch = inputs.problems // batch.questions_per_step
    steps = batch.steps or batch.epochs * epoch
    updates = steps * batch.ppo_iterations * batch.mini_batches
    answers = steps * batch.questions_per_step * answers_per_question(config)
    lines = [
        f"{steps:,} steps of {batch.questions_per_step} x {batch.samples_per_question} answers ({epoch} steps per "
        f"epoch), {updates:,} optimizer steps, {answers:,} answers, about {answers * lengths.answer / 1e6:,.0f} "
        "million tokens"
    ]
    checkpoint, at_once = checkpoint_bytes(shape, config), checkpoints_at_once(config, steps)
    size = f"{checkpoint / 1e9:.2f} GB per checkpoint x {at_once}: {checkpoint * at_once / 1e9:.1f} GB"
    lines.append(f"disk: {size}")
    seconds = {}
    if gpu is None:
        lines.append(NO_GPU)
    else:
        speed = speed_of(gpu)
        run = PlannedRun(shape, config, inputs.longest, config.planning.gpus or 1, speed.memory)
        check_sampler_ranks(shape, config.hardware.sampler_ranks, min(run.ranks, 8))  # of a machine
        memory = plan_memory(run)
        lines += [f"memory per rank on {run.ranks} x {gpu} with {run.gpu / GIB:.1f} GiB, estimated:", str(memory.rank)]
        if memory.rank.offloaded:
            lines.append(f"CPU memory per rank: {memory.rank.offloaded / GIB:.1f} GiB")
        if memory.problem:
            lines.append(memory.problem)
        else:
            lines.append(f"sampler: {memory.gpu_memory:.0%} of the GPU memory, {memory.sequences} answers at once")
            seconds = training_seconds(run, speed, lengths, memory.sequences, steps, inputs.eval_answers)
    return TrainingPlan(checkpoint, at_once, seconds, lines)


def evaluation_seconds(config: EvalConfig, inputs: Inputs, suite: Suite) -> dict[str, float]:
    """Return the seconds of an evaluation in bf16 by what takes them. Raises InputError for an unknown GPU."""
    gpus, longest_answer = config.tensor_parallel, suite.max_answer_tokens
    lengths = TokenLengths(inputs.prompt, min(config.planning.answer_tokens, longest_answer), longest_answer)
    samplers = config.data_parallel or max(1, (config.planning.gpus or 1) // gpus)
    at_work = {"answers": ceil(inputs.eval_answers / samplers), "at_once": MOST_SEQUENCES, "gpus": gpus}
    sampling = sampling_seconds(inputs.shape, speed_of(config.planning.gpu), lengths, **at_work)
    return {"sampling": sampling, "start": START_SECONDS}


def objective_lines(config: TrainConfig) -> list[str]:
    """Return what training with --algo weight maximises as a table, line by line: exact for rewards of 0 and 1."""
    if config.method.weight is None:
        return []
    m = config.batch.samples_per_question
    gain = gains(*config.method.weights(shares(m), m, config.batch.questions_per_step))  # [m]
    values = {"accuracy p": ACCURACIES, "weight": exact_weight(ACCURACIES, gain)}
    values["objective"] = exact_objective(ACCURACIES, gain)
    lines = [f"what training maximises with {m} answers per question, exactly for rewards of 0 and 1:"]
    return lines + [f"{name:<11}" + "".join(f"{value:>10.4g}" for value in row) for name, row in values.items()]


def dry_run_training(config: TrainConfig) -> None:
    """Print what `train.py` would do. Raises InputError for what it would refuse."""
    inputs = training_inputs(config)
    plan = plan_training(config, inputs)
    print(json.dumps(json_settings(config), indent=2))
    print(*inputs.lines, *objective_lines(config), *plan.lines, sep="\n")
    if plan.seconds:
        print(*estimate_lines(plan.seconds, config), sep="\n")


def dry_run_evaluation(config: EvalConfig) -> None:
    """Print what `eval.py` would do. Raises InputError for what it would refuse."""
    check(config)
    if (config.data_parallel or 1) * config.tensor_parallel > (config.planning.gpus or 1):
        raise InputError("--gpus: must be at least --data-parallel times --tensor-parallel")
    suite = chosen_suite(config, local_folder(config.ckpt) or Path(config.ckpt))
    for ckpt in [config.ckpt, config.base] if config.base else [config.ckpt]:
        inputs = evaluation_inputs(ckpt, suite)
        print(json.dumps(flat_settings(config) | {"ckpt": ckpt, "suite": asdict(suite)}, indent=2, default=str))
        print(*inputs.lines, f"{inputs.eval_answers:,} answers", sep="\n")
        for name, count in inputs.eval_problems.items():
            found = 100 * detectable(error=sqrt(0.25 / count))  # with the largest variance that problems can have
            print(f"{name}: a true difference of {found:.1f} points to any other model is found (power 80 %)")
        gpu = config.planning.gpu
        print(*estimate_lines(evaluation_seconds(config, inputs, suite), config) if gpu else [NO_GPU], sep="\n")


def estimate_lines(seconds: dict[str, float], config: TrainConfig | EvalConfig) -> list[str]:
    """Return the estimated hours of a run, and what they assume."""
    parts = ", ".join(f"{name} {value / 3600:.2f}" for name, value in seconds.items())
    hours, planning = sum(seconds.values()) / 3600, config.planning
    line = f"estimate: {hours:.1f} hours, {hours * (planning.gpus or 1):.1f} GPU-hours (in hours: {parts})"
    return [line, f"it assumes {planning.answer_tokens} tokens per answer (--answer-tokens), and docs/reproduce.md"]
