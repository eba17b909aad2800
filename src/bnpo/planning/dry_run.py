"""`--dry-run`: what a training run or an evaluation reads and needs. The hours are estimates from data sheets."""

import json
import shutil
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean

import numpy as np
from huggingface_hub import try_to_load_from_cache
from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig, flat_settings, json_settings
from bnpo.data import chat_template, check_enough, encode_problems, load_sources
from bnpo.evaluation.program import EvalConfig, check, chosen_suite
from bnpo.evaluation.scores import describe_detectable, detectable
from bnpo.evaluation.suites import Suite, dataset_problems, encode_prompts, load_suite, longest_sequence
from bnpo.files import ROOT, InputError
from bnpo.planning.memory import (
    GIB,
    MemoryPlan,
    ModelShape,
    PlannedRun,
    SamplerNeeds,
    answers_per_question,
    check_sampler_ranks,
    explain_problem,
    fitting_changes,
    flags_text,
    number_bytes,
    plan_memory,
    read_shape,
)
from bnpo.policy.folder import check_context, load_tokenizer, local_folder
from bnpo.policy.model_check import check_model
from bnpo.policy.sampling import MOST_SEQUENCES
from bnpo.policy.speed import peak_tflops, update_operations

NO_GPU = "no estimate of memory and hours: name a GPU with --gpu"

# GiB of memory as torch reports it, rounded down, 10^12 bytes per second of bandwidth (the SXM version), and GiB of CPU
# memory per GPU, which are assumed.
GPUS = {
    "H20": (95.0, 4.0, 256),
    "A100-80GB": (79.1, 2.04, 256),
    "H100": (79.1, 3.35, 256),
    "H200": (139.7, 4.8, 256),
    "L40S": (44.3, 0.864, 128),
    "RTX-PRO-6000": (94.9, 1.79, 128),
    "RTX-5090": (31.3, 1.79, 64),
    "RTX-4090": (23.5, 1.01, 64),
    "RTX-5080": (15.4, 0.96, 64),
}
BANDWIDTH_USE = 0.6  # share of the bandwidth that sampling reaches
SAMPLING_USE = 0.4  # share of the operations that sampling reaches: few rows per product
MFU = 0.35  # share of the operations that an update reaches
TOKEN_SECONDS = 0.005  # per token of all answers together, besides the GPU's work: scheduling and launching
EXCHANGE_SECONDS = 20e-6  # per sum over the GPUs of a sampler, of which every layer needs two per token
LINK = 50e9  # bytes per second to other GPUs or to CPU memory
START_SECONDS = 180.0  # imports, loading models, CUDA graphs
# Mean tokens of a MATH prompt by template, with Qwen2.5-Math's tokenizer. Assumed where no tokenizer is at hand.
PROMPT_TOKENS = defaultdict(lambda: 103.0, think=150.0)


@dataclass(frozen=True)
class GpuSpeed:
    """Memory and speed of one GPU, by its data sheet."""

    name: str
    memory: int  # bytes
    bandwidth: float  # bytes per second
    flops: float  # bf16 operations per second
    host: int  # bytes of CPU memory per GPU


def speed_of(gpu: str) -> GpuSpeed:
    """Return the speed of `gpu`. Raises InputError for an unknown GPU."""
    if gpu not in GPUS:
        raise InputError(f"--gpu: unknown GPU '{gpu}'; known: {', '.join(GPUS)}")
    memory, bandwidth, host = GPUS[gpu]
    return GpuSpeed(gpu, int(memory * GIB), bandwidth * 1e12, peak_tflops(gpu.replace("-", " ")) * 1e12, host * GIB)


def run_on(gpus: int, gpu: GpuSpeed, shape: ModelShape, config: TrainConfig, longest: int) -> PlannedRun:
    """Return a run on machines of at most 8 GPUs with the assumed CPU memory."""
    here = min(gpus, 8)
    return PlannedRun(shape, config, longest, gpus, here, gpu.memory, here * gpu.host)


@dataclass(frozen=True)
class TokenLengths:
    """Tokens of a prompt and of an answer on average, and of the longest possible answer."""

    prompt: float
    answer: float
    longest: int


def sampling_seconds(
    shape: ModelShape, speed: GpuSpeed, lengths: TokenLengths, *, answers: int, at_once: int, samplers: int, gpus=1
) -> float:
    """Return the seconds of the slowest of `samplers` on `gpus` GPUs each.

    Each draws `answers` in bf16, `at_once` at a time. Their lengths are assumed to be exponentially distributed and cut
    off at the longest. Such lengths have no memory: the answers at work look alike while finished ones are replaced.
    """
    token_cache = 2 * 2 * shape.key_heads * shape.head_size * shape.layers  # bytes of its keys and values

    def token_seconds(live: np.ndarray, context: np.ndarray) -> np.ndarray:
        # One token for each of `live` answers: weights and cache are read, and the weights multiply one row per answer.
        reading = (2 * shape.parameters + live * token_cache * context) / (speed.bandwidth * BANDWIDTH_USE)
        computing = 2 * shape.parameters * live / (speed.flops * SAMPLING_USE)
        sums = EXCHANGE_SECONDS + 2 * shape.hidden * live / LINK  # of the hidden states, over the GPUs
        return np.maximum(reading, computing) / gpus + 2 * shape.layers * sums * (gpus > 1) + TOKEN_SECONDS

    mean, at_once = lengths.answer, min(at_once, answers)
    # While answers wait, every finished one is replaced and the batch stays full. Prompts, read once, are not counted.
    full = (answers - at_once) * mean / at_once * token_seconds(np.array(at_once), np.array(lengths.prompt + mean))
    # Then the batch empties. All ranks wait until the last answer of the slowest sampler is done.
    ages = np.arange(lengths.longest)  # [longest]
    alive = np.exp(-ages / mean)
    any_alive = 1 - (1 - alive) ** (at_once * samplers)
    return float(full + (any_alive * token_seconds(at_once * alive, lengths.prompt + ages)).sum())


def update_seconds(run: PlannedRun, speed: GpuSpeed, lengths: TokenLengths) -> float:
    """Return the seconds of the updates of one step, if every answer has a gradient."""
    shape, batch, hardware, ranks = run.shape, run.config.batch, run.config.hardware, run.ranks
    prompt, answer = lengths.prompt, lengths.answer
    questions, answers = batch.questions_per_step, batch.questions_per_step * batch.samples_per_question
    tokens = questions * prompt + answers * answer  # the answers to a question share one pass of its prompt
    # The mean square of an exponentially distributed length is twice the square of its mean.
    double_pairs = questions * prompt**2 + answers * (2 * answer**2 + 2 * answer * prompt)
    multiplied = shape.parameters if shape.tied else shape.parameters - shape.head  # the embedding is only looked up
    adapter = shape.adapter(run.config)
    frozen = multiplied if adapter else 0
    operations = update_operations(multiplied + adapter, shape.layers, shape.hidden, tokens, double_pairs, frozen)
    computing = operations / (ranks * speed.flops * MFU)
    # In every micro-batch, offloaded fp32 gradients go to CPU memory and back, and offloaded weights come twice.
    micro_batches = ceil(tokens / ranks / hardware.micro_batch_tokens)
    offloaded = 8 * (adapter or shape.parameters) * hardware.offload_optimizer
    offloaded += 4 * shape.parameters * hardware.offload_weights
    copying = micro_batches * offloaded / ranks / LINK
    # Copies run beside the backward pass, two thirds of the computation.
    return batch.ppo_iterations * (computing / 3 + max(2 * computing / 3, copying))


def training_seconds(
    run: PlannedRun, speed: GpuSpeed, lengths: TokenLengths, at_once: int, steps: int, eval_answers: int
) -> dict[str, float]:
    """Return the seconds of a training run by what takes them. A sampler draws `at_once` answers at a time."""
    config, ranks, sharing = run.config, run.ranks, run.config.hardware.sampler_ranks

    def sampling(answers: int) -> float:  # of every rank
        samplers = {"answers": answers * sharing, "at_once": at_once, "samplers": ranks // sharing, "gpus": sharing}
        return sampling_seconds(run.shape, speed, lengths, **samplers) if answers else 0.0

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


def disk_problem(folder: Path, needed: int) -> str:
    """Return why `needed` bytes of checkpoints cannot be written to `folder`, or an empty string."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    text = f"{folder}: checkpoints need {needed / 1e9:.1f} GB at once, {free / 1e9:.1f} GB are free"
    return text if needed > free else ""


@dataclass(frozen=True)
class Inputs:
    """What a run reads, counted without a network."""

    shape: ModelShape
    longest: int  # tokens of the longest prompt plus answer
    problems: int  # to train on; 0 for an evaluation
    prompt: float  # mean tokens of a prompt
    eval_answers: int  # of one evaluation
    eval_problems: dict[str, int]  # of one evaluation, by data set
    lines: list[str]  # all this, to be printed


@cache
def find_model(name: str, longest: int) -> tuple[Path, ModelShape, PreTrainedTokenizerBase | None]:
    """Return folder, shape and tokenizer (None: not here) of a model from a folder, the hub's cache or data/models.

    Raises InputError if it is in none of them, or if its context is shorter than `longest` tokens.
    """
    folder = local_folder(name)
    if folder is None:
        cached = try_to_load_from_cache(name, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else ROOT / "data" / "models" / Path(name).name
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{name}: no config.json in a folder of this name, in the Hugging Face cache or in data/models. A dry run "
            "downloads nothing: download the model first, or give the path of a copy"
        )
    check_context(folder, longest)
    tokenizer = load_tokenizer(folder, longest) if any(folder.glob("tokenizer*")) else None
    return folder, read_shape(folder), tokenizer


def training_inputs(config: TrainConfig) -> Inputs:
    """Return what a training run and its evaluations read. Raises InputError for wrong files."""
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    longest = longest_sequence(config, suite)
    folder, shape, tokenizer = find_model(config.data.model, longest)
    check_model(folder, longest)
    problems, prompt, line = _training_problems(config, tokenizer)
    counts, answers, lines = _suite_problems(suite, tokenizer) if suite else ({}, 0, ["no evaluation during training"])
    return Inputs(shape, longest, problems, prompt, answers, counts, [line, *lines])


def evaluation_inputs(name: str, suite: Suite) -> Inputs:
    """Return what an evaluation of model `name` reads. Raises InputError like `training_inputs`."""
    longest = suite.max_prompt_tokens + suite.max_answer_tokens
    _, shape, tokenizer = find_model(name, longest)
    counts, answers, lines = _suite_problems(suite, tokenizer)
    return Inputs(shape, longest, 0, PROMPT_TOKENS[suite.template], answers, counts, lines)


def _training_problems(config: TrainConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, float, str]:
    """Return the number of problems to train on, the mean tokens of a prompt, and lines about both."""
    data, longest = config.data, config.sampling.max_prompt_tokens
    sources, usual_prompt = data.train_data, PROMPT_TOKENS[data.template]
    missing = _missing_problems(sources[0])
    if missing is not None:
        return missing, usual_prompt, f"{sources[0]}: missing, so the plan assumes its {missing:,} problems"
    problems, _ = load_sources(sources, config.columns)
    line = f"{' '.join(sources)}: {len(problems):,} problems"
    if tokenizer is None:
        return len(problems), usual_prompt, f"{line}, not counted in tokens: the tokenizer is not on this machine"
    tokenizer.chat_template = chat_template(tokenizer, data.template, data.system_prompt, data.thinking)
    kept, prompts = encode_problems(problems, tokenizer, longest)
    check_enough(kept, config.batch.questions_per_step, sources)
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
        count, note = _missing_problems(dataset.data), ""
        if count is not None:
            count, note = min(count, dataset.problems or count), f" ({dataset.data} is missing)"
        else:
            problems = dataset_problems(dataset)
            count = len(problems)
            if tokenizer:
                encode_prompts(problems, suite, tokenizer)  # refuses prompts that are too long
        counts[name] = count
        answers += count * dataset.repetitions
        lines.append(f"{suite.name}: {name}: {count} problems x {dataset.repetitions} repetitions{note}")
    return counts, answers, lines


def _missing_problems(data: str) -> int | None:
    """Return how many problems a missing file of the paper has. None: it is not missing, or not one of the paper's."""
    path = Path(data)
    if path.suffix != ".jsonl" or path.exists() or (ROOT / path).exists():
        return None
    manifest = json.loads((ROOT / "data" / "manifest.json").read_text(encoding="utf-8"))
    return manifest["sets"].get(path.stem, {}).get("rows")


@dataclass(frozen=True)
class TrainingPlan:
    """What a training run needs."""

    optimizer_steps: int
    tokens: float  # of all answers, estimated
    checkpoint: int  # bytes
    most_checkpoints: int  # that exist at once
    changes: dict[str, object]  # settings with which alone the run fits; empty if it fits without, or never
    seconds: dict[str, float]  # by what takes them; empty without --gpu, or if it does not fit
    lines: list[str]  # all this, to be printed

    @property
    def disk(self) -> int:
        """Bytes of all checkpoints that exist at once."""
        return self.checkpoint * self.most_checkpoints


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
    changes, seconds = {}, {}
    if gpu is None:
        lines.append(NO_GPU)
    else:
        speed = speed_of(gpu)
        run = run_on(config.planning.gpus or 1, speed, shape, config, inputs.longest)
        check_sampler_ranks(shape, config.hardware.sampler_ranks, run.ranks_here)
        changes = fitting_changes(run)
        fitting = run.with_settings(**changes)
        memory = plan_memory(fitting)
        if not memory.problem:
            seconds = training_seconds(fitting, speed, lengths, memory.sequences, steps, inputs.eval_answers)
        lines += _memory_lines(run, changes, memory)
    sizes = checkpoint_bytes(shape, config), checkpoints_at_once(config, steps)
    return TrainingPlan(updates, answers * lengths.answer, *sizes, changes, seconds, lines)


def _memory_lines(run: PlannedRun, changes: dict[str, object], memory: MemoryPlan) -> list[str]:
    """Return lines about the memory of a rank of `run`, which is `memory` with `changes` of its settings."""
    problem = plan_memory(run).problem
    lines = [f"does not fit: {explain_problem(run, problem)}"] if problem else []
    gpus = f"{run.ranks} x {run.config.planning.gpu} with {run.gpu / GIB:.1f} GiB"
    flags = f" with {flags_text(changes)}" if changes else ""
    lines += [f"memory per rank on {gpus}{flags}, estimated:", str(memory.rank)]
    if memory.rank.offloaded:
        lines.append(f"CPU memory per rank: {memory.rank.offloaded / GIB:.1f} GiB")
    if not memory.problem:
        lines.append(f"sampler: {memory.gpu_memory:.0%} of the GPU memory, {memory.sequences} answers at once")
    return lines


def evaluation_seconds(config: EvalConfig, inputs: Inputs, suite: Suite) -> dict[str, float]:
    """Return the seconds of an evaluation in bf16 by what takes them. Raises InputError for a GPU that is too small."""
    speed, gpus, longest_answer = speed_of(config.planning.gpu), config.tensor_parallel, suite.max_answer_tokens
    lengths = TokenLengths(inputs.prompt, min(config.planning.answer_tokens, longest_answer), longest_answer)
    needs, share = SamplerNeeds.of(inputs.shape, 2, gpus, inputs.longest), config.gpu_memory * speed.memory
    if share < needs.least:
        raise InputError(
            f"--gpu: {gpus} x {speed.memory / GIB:.1f} GiB are too little for a sampler of {config.ckpt}, which needs "
            f"{needs.least / GIB:.1f} GiB per GPU. Share it with --tensor-parallel"
        )
    samplers = config.data_parallel or max(1, (config.planning.gpus or 1) // gpus)
    answers = ceil(inputs.eval_answers / samplers)
    settings = {"answers": answers, "at_once": needs.at_once(share, min(answers, MOST_SEQUENCES))}
    sampling = sampling_seconds(inputs.shape, speed, lengths, **settings, samplers=samplers, gpus=gpus)
    return {"sampling": sampling, "start": START_SECONDS}


def dry_run_training(config: TrainConfig) -> None:
    """Print what `train.py` would do. Raises InputError for what it would refuse."""
    inputs = training_inputs(config)
    plan = plan_training(config, inputs)
    print(json.dumps(json_settings(config), indent=2))
    print(*inputs.lines, *plan.lines, sep="\n")
    print(f"disk: {plan.checkpoint / 1e9:.2f} GB per checkpoint x {plan.most_checkpoints}: {plan.disk / 1e9:.1f} GB")
    problem = disk_problem(config.folder.output_dir, plan.disk)
    if problem:
        print(f"not enough disk space: {problem}")
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
        limits = {}
        for name, count in inputs.eval_problems.items():  # with the largest variances that answers can have
            limits[name] = detectable(count, suite.datasets[name].repetitions, within=0.25, error=sqrt(0.25 / count))
        print(f"smallest detectable difference at pass@1 of 50 %, in points: {describe_detectable(limits)}")
        gpu = config.planning.gpu
        print(*estimate_lines(evaluation_seconds(config, inputs, suite), config) if gpu else [NO_GPU], sep="\n")


def estimate_lines(seconds: dict[str, float], config: TrainConfig | EvalConfig) -> list[str]:
    """Return the estimated hours of a run, and what they assume."""
    parts = ", ".join(f"{name} {value / 3600:.2f}" for name, value in seconds.items())
    hours, gpus = sum(seconds.values()) / 3600, config.planning.gpus or 1
    line = f"estimate: {hours:.1f} hours, {hours * gpus:.1f} GPU-hours (in hours: {parts})"
    return [line, *assumption_lines([speed_of(config.planning.gpu)], config.planning.answer_tokens)]


def assumption_lines(speeds: list[GpuSpeed], answer_tokens: int) -> list[str]:
    """Return what the estimates assume of answers and of every GPU. docs/reproduce.md has the other assumptions."""
    lines = [f"the estimate assumes {answer_tokens} tokens per answer on average (--answer-tokens), and:"]
    for speed in speeds:
        lines.append(
            f"  {speed.name}: {speed.flops / 1e12:.0f} TFLOP/s in bf16 and {speed.bandwidth / 1e12:.2f} TB/s (data "
            f"sheet), {speed.host / GIB:.0f} GiB of CPU memory per GPU, updates at {MFU:.0%} of the operations (MFU)"
        )
    return lines
