"""`--dry-run`: what a training run or an evaluation reads and needs. The hours are estimates from data sheets."""

import json
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from bnpo.algorithm.weights import ACCURACIES, exact_objective, exact_weight, gains, shares
from bnpo.config import Planning, TrainConfig, flat_settings, json_settings
from bnpo.data import chat_template, check_enough, encode_problems, load_sources
from bnpo.evaluation.program import EvalConfig, check, chosen_suite
from bnpo.evaluation.scores import detectable
from bnpo.evaluation.suites import Suite, dataset_problems, encode_prompts, load_suite, longest_sequence
from bnpo.files import ROOT, InputError
from bnpo.planning.memory import DTYPE_BYTES, GIB, ModelShape, check_sampler_ranks, plan_memory, read_shape
from bnpo.policy.folder import check_model, load_tokenizer, local_folder, model_config, model_folder
from bnpo.policy.sampling import MOST_SEQUENCES
from bnpo.policy.speed import GPUS

BANDWIDTH_USE = 0.6  # share of the bandwidth that sampling reaches
SAMPLING_USE = 0.4  # share of the operations that sampling reaches: few rows per product
MFU = 0.35  # share of the operations that an update reaches
PASS_SECONDS = 0.005  # of a pass that draws a token of each answer, besides the GPU's work: scheduling and launching
START_SECONDS = 180.0  # imports, loading models, CUDA graphs
PROMPT_TOKENS = 103.0  # mean of MATH with Qwen2.5-Math's tokenizer and template, assumed where no tokenizer is at hand


def data_sheet(gpu: str) -> tuple[int, float, float]:
    """Return the bytes of memory of `gpu`, and its bytes and bf16 operations per second. Raises InputError."""
    known = {name.replace(" ", "-"): sheet for name, sheet in GPUS.items() if sheet[1]}
    if gpu not in known:
        raise InputError(f"--gpu: unknown GPU '{gpu}'; known: {', '.join(known)}")
    tflops, memory, bandwidth = known[gpu]
    return int(memory * GIB), bandwidth * 1e12, tflops * 1e12


@dataclass(frozen=True)
class Inputs:
    """What a training run or an evaluation reads. `lines` says it."""

    shape: ModelShape
    prompt: float  # mean tokens of a prompt
    longest: int  # tokens of the longest prompt plus answer
    longest_answer: int
    steps: int  # 0 for an evaluation
    eval_answers: int  # of one evaluation
    lines: list[str]


def sampling_seconds(inputs: Inputs, planning: Planning, answers: int, at_once: int, size: int) -> float:
    """Return the seconds in which samplers on `size` of the GPUs each draw `answers` in bf16, `at_once` per sampler.

    Finished answers are replaced while others wait. The last ones take until the longest possible answer is done.
    """
    answers = ceil(answers / max(1, (planning.gpus or 1) // size))  # of a sampler
    shape, (_, bandwidth, operations) = inputs.shape, data_sheet(planning.gpu)
    mean = min(planning.answer_tokens, inputs.longest_answer)
    passes = max(0, answers / at_once - 1) * mean + inputs.longest_answer  # each draws a token of all answers at work
    cache = 4 * shape.key_heads * shape.head_size * shape.layers * (inputs.prompt + mean)  # bytes read for a token
    reading = (passes * 2 * shape.parameters + answers * mean * cache) / (bandwidth * BANDWIDTH_USE)
    computing = answers * mean * 2 * shape.parameters / (operations * SAMPLING_USE)
    return max(reading, computing) / size + passes * PASS_SECONDS


def plan_training(config: TrainConfig, inputs: Inputs) -> tuple[dict[str, float], list[str]]:
    """Return the seconds of a run on the GPUs of --gpu by what takes them, and lines about their memory.

    There are no seconds if the run does not fit. Raises InputError for an unknown GPU.
    """
    batch, planning, shape, every = config.batch, config.planning, inputs.shape, config.logging.eval_every
    ranks, sharing = planning.gpus or 1, config.hardware.sampler_ranks
    memory, _, operations = data_sheet(planning.gpu)
    check_sampler_ranks(shape, sharing, min(ranks, 8))  # of a machine
    plan = plan_memory(shape, config, inputs.longest, ranks, memory)
    lines = [f"memory per rank on {ranks} x {planning.gpu} with {memory / GIB:.1f} GiB, estimated:", str(plan)]
    if plan.offloaded:
        lines.append(f"CPU memory per rank: {plan.offloaded / GIB:.1f} GiB")
    if plan.problem:
        return {}, [*lines, plan.problem]
    lines.append(f"sampler: {plan.gpu_memory:.0%} of the GPU memory, {plan.sequences} answers at once")
    answers = batch.questions_per_step * batch.samples_per_question
    # The answers to a question share its prompt. With LoRA, the model has no gradients of its own weights.
    tokens = batch.questions_per_step * inputs.prompt + answers * min(planning.answer_tokens, inputs.longest_answer)
    update = (4 if config.update.lora_rank else 6) * shape.parameters * tokens / (ranks * operations * MFU)
    evaluations = ceil(inputs.steps / every) + 1 if every else 0  # at the start, every so many steps and at the end
    seconds = {
        "sampling": inputs.steps * sampling_seconds(inputs, planning, answers, plan.sequences, sharing),
        "updates": inputs.steps * batch.ppo_iterations * update,
        "evaluations": evaluations * sampling_seconds(inputs, planning, inputs.eval_answers, plan.sequences, sharing),
        "start": START_SECONDS,
    }
    return seconds, lines


def evaluation_seconds(config: EvalConfig, inputs: Inputs) -> dict[str, float]:
    """Return the seconds of an evaluation in bf16 by what takes them. Raises InputError for an unknown GPU."""
    sampling = sampling_seconds(inputs, config.planning, inputs.eval_answers, MOST_SEQUENCES, config.tensor_parallel)
    return {"sampling": sampling, "start": START_SECONDS}


def checkpoints(config: TrainConfig, shape: ModelShape, steps: int) -> tuple[int, int]:
    """Return the bytes of a checkpoint, and how many exist at once: those kept, the best, and one that is written.

    A checkpoint has the model (merged if there is an adapter), master weights and AdamW's moments.
    """
    adapter, saves = shape.adapter(config), ceil(steps / config.folder.save_every)
    size = DTYPE_BYTES[config.hardware.dtype] * (shape.parameters + adapter)
    count = min(config.folder.keep or saves, saves) + bool(config.logging.eval_every) + 1
    return size + 12 * (adapter or shape.parameters), count


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
    model_config(folder, longest)
    tokenizer = load_tokenizer(folder, longest) if any(folder.glob("tokenizer*")) else None
    return folder, read_shape(folder), tokenizer


def training_inputs(config: TrainConfig) -> Inputs:
    """Return what a training run and its evaluations read. Raises InputError for wrong files."""
    data, batch, limit = config.data, config.batch, config.sampling.max_prompt_tokens
    suite = load_suite(config.logging.eval_suite) if config.logging.eval_every else None
    longest = longest_sequence(config, suite)
    folder, shape, tokenizer = find_model(data.model, longest)
    check_model(folder, longest)
    problems, _ = load_sources(data.train_data, config.columns)
    mean, lines = PROMPT_TOKENS, [f"{' '.join(data.train_data)}: {len(problems):,} problems"]
    if tokenizer:
        tokenizer.chat_template = chat_template(tokenizer, data.template, data.system_prompt, data.thinking)
        kept, prompts = encode_problems(problems, tokenizer, limit)
        check_enough(kept, batch.questions_per_step, data.train_data)
        lines[0] += f", {len(problems) - len(kept)} of them left out: prompt over {limit} tokens"
        lines.append(f"the longest of the other prompts has {max(map(len, prompts))} tokens")
        for problem, prompt in zip(kept[:2], prompts[:2], strict=True):
            lines.append(f"prompt of problem {problem.id}:\n{tokenizer.decode(prompt)}\nanswer: {problem.answer}")
        problems, mean = kept, fmean(map(len, prompts))
    else:
        lines[0] += ", not counted in tokens: the tokenizer cannot be downloaded"
    eval_answers = 0
    if suite:
        evaluation = evaluation_inputs(data.model, suite)
        eval_answers, lines = evaluation.eval_answers, lines + evaluation.lines
    epoch, answers = len(problems) // batch.questions_per_step, batch.questions_per_step * batch.samples_per_question
    steps = batch.steps or batch.epochs * epoch
    size, count = checkpoints(config, shape, steps)
    lines.append(
        f"{steps:,} steps of {batch.questions_per_step} x {batch.samples_per_question} answers ({epoch} steps per "
        f"epoch), {steps * batch.ppo_iterations * batch.mini_batches:,} optimizer steps, {steps * answers:,} answers"
    )
    lines.append(f"disk: {size / 1e9:.2f} GB per checkpoint x {count}: {size * count / 1e9:.1f} GB")
    return Inputs(shape, mean, longest, config.sampling.max_answer_tokens, steps, eval_answers, lines)


def evaluation_inputs(name: str, suite: Suite) -> Inputs:
    """Return what an evaluation of model `name` reads. Raises InputError like `training_inputs`."""
    longest = suite.max_prompt_tokens + suite.max_answer_tokens
    _, shape, tokenizer = find_model(name, longest)
    answers, lines = 0, []
    for dataset_name, dataset in suite.datasets.items():
        problems, repetitions = dataset_problems(dataset), dataset.repetitions
        if tokenizer:
            encode_prompts(problems, suite, tokenizer)  # refuses prompts that are too long
        count = len(problems)
        answers += count * repetitions
        lines.append(f"{suite.name}: {dataset_name}: {count} problems x {repetitions} repetitions")
        found = 100 * detectable(error=sqrt(0.25 / count))  # with the largest variance that problems can have
        lines[-1] += f"; a true difference of {found:.1f} points to any other model is found (power 80 %)"
    lines.append(f"{answers:,} answers per evaluation")
    return Inputs(shape, PROMPT_TOKENS, longest, suite.max_answer_tokens, 0, answers, lines)


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
    seconds, lines = plan_training(config, inputs) if config.planning.gpu else ({}, [])
    print_plan(json_settings(config), [*inputs.lines, *objective_lines(config), *lines], seconds, config.planning)


def dry_run_evaluation(config: EvalConfig) -> None:
    """Print what `eval.py` would do. Raises InputError for what it would refuse."""
    check(config)
    suite = chosen_suite(config, local_folder(config.ckpt) or Path(config.ckpt))
    for ckpt in [config.ckpt, config.base] if config.base else [config.ckpt]:
        inputs = evaluation_inputs(ckpt, suite)
        seconds = evaluation_seconds(config, inputs) if config.planning.gpu else {}
        settings = flat_settings(config) | {"ckpt": ckpt, "suite": asdict(suite)}
        print_plan(settings, inputs.lines, seconds, config.planning)


def print_plan(settings: dict, lines: list[str], seconds: dict[str, float], planning: Planning) -> None:
    """Print `settings` as JSON, `lines`, and the estimated hours of a run with what they assume."""
    print(json.dumps(settings, indent=2, default=str), *lines, sep="\n")
    if planning.gpu is None:
        print("no estimate of memory and hours: name a GPU with --gpu")
    elif seconds:
        parts = ", ".join(f"{name} {value / 3600:.2f}" for name, value in seconds.items())
        hours = sum(seconds.values()) / 3600
        print(f"estimate: {hours:.1f} hours, {hours * (planning.gpus or 1):.1f} GPU-hours (in hours: {parts})")
        print(f"it assumes {planning.answer_tokens} tokens per answer (--answer-tokens), and docs/reproduce.md")
