"""Plans of runs: the memory of a rank, whether a run fits, and what `--dry-run` prints.

The memory is checked at every start, before a model is loaded. The bytes follow from DeepSpeed's
settings, the shape of the model and what learner, sampler and loss allocate. Tests compare their
sum with the CPU memory of real learners: it is off by at most 15 %. What a pass of a large model
takes is compared with what it allocates on fake tensors: it is off by at most 5 %. The hours are
estimates from data sheets.
"""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean

import psutil
import torch
import torch.distributed as dist
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from transformers import PreTrainedTokenizerBase

from bnpo.algorithm.loss import LOGIT_CHUNK
from bnpo.algorithm.registry import find_estimator
from bnpo.algorithm.weights import ACCURACIES, exact_objective, exact_weight, gains, shares
from bnpo.config import Planning, TrainConfig, flat_settings
from bnpo.data import load_sources
from bnpo.evaluation.program import EvalConfig, check, chosen_suite
from bnpo.evaluation.scores import detectable
from bnpo.evaluation.suites import (
    Suite,
    check_references,
    encode_prompts,
    load_suite,
    longest_sequence,
    override,
    own_settings,
    suite_problems,
)
from bnpo.files import ROOT, InputError, short_name
from bnpo.grading.grader import Grader
from bnpo.grading.rewards import BUILT_IN
from bnpo.policy.folder import (
    check_model,
    check_prompts,
    empty_model,
    load_tokenizer,
    local_folder,
    model_config,
    model_folder,
)
from bnpo.policy.learner import REDUCE_BUCKET
from bnpo.policy.lora import adapted_layers
from bnpo.policy.model import elements, layers
from bnpo.policy.sampling import MOST_SEQUENCES, PREFILL_TOKENS
from bnpo.policy.speed import GPUS
from bnpo.prompts import chat_template, encode_problems
from bnpo.ranks import gather

GIB = 2**30
CONTEXTS = 3 * 2**29  # a rank's CUDA context with its kernels, and NCCL's buffers
ASLEEP = 2**30  # what vLLM keeps while it sleeps: workspaces and compiled kernels
GRAPHS = 2**30  # vLLM's CUDA graphs; part of its share of the GPU, in CPU memory while it sleeps
USABLE = 0.97  # share of a GPU's memory that a plan may use; the rest is lost between allocations
DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
BANDWIDTH_USE = 0.6  # share of the bandwidth that sampling reaches
SAMPLING_USE = 0.4  # share of the operations that sampling reaches: few rows per product
MFU = 0.35  # share of the operations that an update reaches
# Seconds of a pass that draws a token of each answer, beside the GPU's work: scheduling and
# launching kernels
PASS_SECONDS = 0.005
START_SECONDS = 180.0  # imports, loading models, CUDA graphs
# Mean of MATH with Qwen2.5-Math's tokenizer and template, assumed where no tokenizer is at hand
PROMPT_TOKENS = 103.0


class ModelShape:
    """The sizes of a Hugging Face model on which its memory and speed depend. Only config.json
    is read, no weights.
    """

    def __init__(self, folder: Path):
        config = model_config(folder)
        model = empty_model(folder, config)

        def largest(setting: str, default: int) -> int:
            # Layers may differ in size. Older families do not have all settings.
            return max(
                getattr(layer, setting, None) or default for layer in config.per_layer_config[:]
            )

        self.parameters = elements(model)  # a tied head counts once
        # Number of layers, and elements of the largest
        self.layers, self.layer = config.num_hidden_layers, max(map(elements, layers(model)))
        head = model.get_output_embeddings().weight  # [vocabulary, hidden]
        self.vocabulary, self.hidden, self.head = len(head), config.hidden_size, head.numel()
        self.tied_head = head is model.get_input_embeddings().weight
        # Width of the feed-forward layer
        self.intermediate = largest("intermediate_size", 4 * self.hidden)
        self.heads = largest("num_attention_heads", 1)
        self.key_heads = largest("num_key_value_heads", self.heads)
        # Width of a query, key or value
        self.head_size = largest("head_dim", self.hidden // self.heads)
        # Inputs and outputs of all linear layers that LoRA adapts: elements of an adapter of rank
        # 1.
        self.adapted = sum(sum(layer.weight.shape) for layer in adapted_layers(model).values())


@dataclass(frozen=True)
class MemoryPlan:
    """How a rank divides its GPU memory. On CPUs nothing is planned and vLLM's defaults hold."""

    # Bytes by phase of a step and by part
    phases: dict[str, Counter[str]] = field(default_factory=dict)
    offloaded: int = 0  # bytes of CPU memory
    gpu_memory: float | None = None  # the sampler's share
    sequences: int | None = None  # answers that the sampler draws at once
    least: int = 0  # bytes that the sampler needs
    most: int = 0  # bytes that it can use
    problem: str = ""  # one line on why the run does not fit and what to try

    def __str__(self) -> str:
        """Return a table in GiB, parts down and phases across."""
        rows = {
            part: [sizes[part] for sizes in self.phases.values()]
            for part in sum(self.phases.values(), Counter())
        }
        rows["total"] = [sizes.total() for sizes in self.phases.values()]
        lines = [
            f"{part:<14}" + "".join(f"{size / GIB:11.2f}" for size in sizes)
            for part, sizes in rows.items()
        ]
        return "\n".join(
            [f"{'GiB':<14}" + "".join(f"{phase:>11}" for phase in self.phases), *lines]
        )


def learner_memory(
    shape: ModelShape, config: TrainConfig, ranks: int, device: str = "cuda"
) -> MemoryPlan:
    """Return the memory of one of `ranks` ranks without its sampler. Tests compare it with
    learners on the CPU.
    """
    batch, hardware, size = config.batch, config.hardware, DTYPE_BYTES[config.hardware.dtype]
    adapter, on_gpu = shape.adapted * (config.update.lora_rank or 0), not hardware.offload_optimizer
    trained = adapter or shape.parameters
    # Trained elements, and bytes of weights, of a rank
    partition, weights = ceil(trained / ranks), size * ceil((shape.parameters + adapter) / ranks)
    bucket = min(REDUCE_BUCKET, trained)  # elements of gradients that are reduced together
    held = Counter(weights=weights * (not hardware.offload_weights))
    held["gradients"] = 4 * partition * on_gpu + 4 * bucket  # in fp32
    held["optimizer"] = 12 * partition * on_gpu  # fp32 weights and moments
    held["CUDA and NCCL"] = CONTEXTS
    # Beside gradients, fp32 weights and moments, an offloaded optimizer has the gradients again.
    offloaded = 20 * partition * (not on_gpu) + weights * hardware.offload_weights
    # DeepSpeed gathers weights, and keeps some for their next use. One rank has all of them, unless
    # they are offloaded.
    zero = DeepSpeedZeroConfig(stage=3)
    gathered = size * min(zero.max_live_parameters + shape.layer + shape.head, shape.parameters)
    gathered *= ranks > 1 or hardware.offload_weights
    # Gradients in the order of the ranks. The embedding is reduced alone if it is larger than a
    # bucket.
    reduction = 4 * max(bucket, 0 if adapter else shape.head)
    # AdamW copies gradients group by group, but not offloaded ones. Those in fp16 are all checked
    # for overflows.
    copied = (
        5 * partition if hardware.dtype == "float16" else 4 * min(partition, zero.sub_group_size)
    )
    longest = longest_sequence(config, None)
    answers = batch.questions_per_step * batch.samples_per_question // ranks
    tokens = min(answers * longest, max(hardware.micro_batch_tokens, longest))  # of a micro-batch
    passes = gathered + pass_memory(shape, config, tokens, LOGIT_CHUNK[device])
    # After the weight sync, the learner scores an answer beside the sampler, which takes more than
    # sampling.
    scoring = (
        gathered
        + size * longest * (6 * shape.hidden + 3 * shape.intermediate)
        + logit_bytes(size) * min(longest * shape.vocabulary, LOGIT_CHUNK[device])
    )
    # `activations` are all that exists only for a while.
    work = {"update": max(passes, copied * on_gpu, 2 * reduction), "sampling": scoring}
    return MemoryPlan(
        {phase: held + Counter(activations=taken) for phase, taken in work.items()}, offloaded
    )


def logit_bytes(size: int) -> int:
    """Return the bytes of a logit: it is in fp32, and so is its gradient, which models in 16 bits
    (`size` 2) copy to their own format.
    """
    return 4 if size == 4 else 4 + size


def pass_memory(shape: ModelShape, config: TrainConfig, tokens: int, chunk: int) -> int:
    """Return the bytes of activations, and of gradients until they are reduced, in a forward and
    backward pass over `tokens`.

    The head has at most `chunk` logits at once. Tests compare this with what the learner's model
    allocates on fake tensors.
    """
    size, lora = DTYPE_BYTES[config.hardware.dtype], bool(config.update.lora_rank)
    checkpointing = config.hardware.gradient_checkpointing
    # Activations in elements per token. For its backward pass, a layer saves those of norms,
    # attention and feed-forward layer, or with gradient checkpointing only its input. Norms that
    # LoRA freezes save less.
    of_layer = (
        (5 if lora else 7) * shape.hidden
        + (3 * shape.heads + 2 * shape.key_heads) * shape.head_size
        + 4 * shape.intermediate
    )
    saved = shape.layers * (shape.hidden if checkpointing else of_layer)
    # In the backward pass of a layer, which computes its activations again. The gradient of a tied
    # head waits for that of the embedding. A layer's gradients of weights come when it has freed
    # more than they take.
    backward = shape.hidden + 2 * shape.intermediate + of_layer * checkpointing
    waiting = shape.head if shape.tied_head and not lora else 0  # elements
    in_layer = size * (tokens * backward + waiting)
    # The head has its input, and the gradient of it, and a chunk of logits.
    logits = min(tokens * shape.vocabulary, max(shape.vocabulary, chunk))
    of_logits = logit_bytes(size) * logits
    if lora:
        of_head = of_logits
    elif logits == tokens * shape.vocabulary:
        # DeepSpeed then copies the gradient of its weights to fp32.
        of_head = size * shape.head + max(of_logits, 4 * shape.head)
    else:
        # The gradient of its weights is a sum over the chunks, in fp32. When a chunk is added to
        # it, there are two of them, but the logits are no longer there.
        of_head = max(of_logits + 4 * shape.head, size * logits + 8 * shape.head)
    in_head = size * tokens * 5 * shape.hidden + of_head
    return size * tokens * saved + max(in_layer, in_head)


def plan_memory(
    shape: ModelShape, config: TrainConfig, longest: int, ranks: int, gpu: int
) -> MemoryPlan:
    """Return how each of `ranks` ranks divides the `gpu` bytes of its GPU.

    The sampler gets prompts plus answers of up to `longest` tokens. Its share is --gpu-memory. By
    default it is what the learner leaves, but at most what the answers of a step can use. In a run
    it is measured once the learner exists (`sampler_share`).
    """
    batch, hardware, size = config.batch, config.hardware, DTYPE_BYTES[config.hardware.dtype]
    sharing, given = hardware.sampler_ranks, hardware.gpu_memory
    # Its baseline is an answer too
    needs = find_estimator(config.method.algo).needs
    per_question = batch.samples_per_question + ("greedy_rewards" in needs)
    answers = batch.questions_per_step * sharing // ranks * per_question  # of a sampler
    # What a GPU needs for all answers: its part of the weights, the workspace of a prefill, CUDA
    # graphs.
    prefill = max(PREFILL_TOKENS, longest) * (3 * shape.intermediate // sharing + 6 * shape.hidden)
    fixed = size * (shape.parameters // sharing + prefill) + GRAPHS + ASLEEP
    # For a token, keys and values: of fewer key heads than GPUs, each is on several. For an answer,
    # fp32 logits thrice.
    token = 2 * size * shape.layers * shape.head_size * max(1, ceil(shape.key_heads / sharing))
    logits = 12 * shape.vocabulary
    least = fixed + logits + token * longest  # for one answer at a time
    # Twice what all answers at once can use, because vLLM's needs are an estimate.
    most = 2 * (fixed + logits * min(answers, MOST_SEQUENCES) + token * longest * answers)
    plan = learner_memory(shape, config, ranks)
    left = USABLE * gpu - plan.phases["sampling"].total()
    share = int(given * gpu) if given else int(max(least, min(left, most)))
    # The cache must hold a quarter of the longest for each answer. Of more answers vLLM would evict
    # some.
    sequences = max(1, min(answers, int((share - fixed) / (token * longest / 4 + logits))))
    plan.phases["update"]["sampler"], plan.phases["sampling"]["sampler"] = ASLEEP, share
    phase, parts = max(plan.phases.items(), key=lambda item: item[1].total())
    problem = ""
    if parts.total() > USABLE * gpu:
        part, taken = parts.most_common(1)[0]
        problem = (
            f"'{phase}' takes {parts.total() / GIB:.1f} GiB per rank, of which {taken / GIB:.1f} "
            f"are '{part}'"
        )
        problem += (
            "; try a lower --micro-batch-tokens or --gpu-memory, --gradient-checkpointing, "
            "--lora-rank 32, "
        )
        problem += (
            "more ranks, --offload-optimizer, --sampler-ranks 2 or --offload-weights (docs/gpus.md)"
        )
    elif share < least:
        problem = f"the sampler needs {least / GIB:.1f} GiB; raise --gpu-memory, or leave it out"
    if problem:
        problem = (
            f"{config.data.model}: does not fit {ranks} x {gpu / GIB:.1f} GiB of GPU memory: "
            f"{problem}"
        )
    gpu_memory = given or int(1000 * share / gpu) / 1000
    return replace(
        plan, gpu_memory=gpu_memory, sequences=sequences, least=least, most=most, problem=problem
    )


def check_sampler_ranks(shape: ModelShape, size: int, ranks_here: int) -> None:
    """Raise InputError if `size` ranks cannot share a sampler of this model, on a machine of
    `ranks_here` ranks.
    """
    keys = shape.key_heads  # vLLM repeats key heads if there are too few
    if any(count % size for count in (ranks_here, shape.heads, shape.intermediate)) or (
        keys % size and size % keys
    ):
        divided = (
            f"the {ranks_here} ranks of a machine, {shape.heads} heads and a width of "
            f"{shape.intermediate}"
        )
        raise InputError(
            f"--sampler-ranks {size}: must divide {divided}, and divide or be divided by {keys} "
            "key heads"
        )


def plan_here(config: TrainConfig, model: Path, longest: int) -> MemoryPlan:
    """Return the plan of a run on this machine's GPUs. Raises InputError if GPUs or CPU memory
    are too small for it.
    """
    shape, ranks, cuda = (
        ModelShape(model),
        int(os.environ.get("WORLD_SIZE", "1")),
        torch.cuda.is_available(),
    )
    ranks_here = int(os.environ.get("LOCAL_SIZE", ranks))
    check_sampler_ranks(shape, config.hardware.sampler_ranks, ranks_here)
    learner = learner_memory(shape, config, ranks, "cuda" if cuda else "cpu")
    held = learner.offloaded + (0 if cuda else learner.phases["update"].total() - CONTEXTS)
    if ranks_here * held > (memory := psutil.virtual_memory().total):
        problem = (
            f"needs {ranks_here * held / GIB:.0f} GiB of CPU memory, this machine has "
            f"{memory / GIB:.0f}"
        )
        raise InputError(
            f"{config.data.model}: {problem}; try --lora-rank 32, or more machines (docs/gpus.md)"
        )
    if not cuda:
        return MemoryPlan()
    # The smallest GPU, so that all ranks here plan alike.
    gpu = min(
        torch.cuda.get_device_properties(gpu).total_memory
        for gpu in range(torch.cuda.device_count())
    )
    plan = plan_memory(shape, config, longest, ranks, gpu)
    if plan.problem:
        raise InputError(plan.problem)
    return plan


def sampler_share(plan: MemoryPlan, config: TrainConfig) -> float | None:
    """Return the share of its GPU that the sampler gets: what the learner leaves free. A collective
    on GPUs.

    The learner must hold all that it keeps from step to step. Raises InputError on all ranks if too
    little is left.
    """
    if not plan.phases or config.hardware.gpu_memory is not None:
        return plan.gpu_memory
    # NCCL allocates its buffers with the first collective
    dist.all_reduce(torch.zeros(1, device="cuda"))
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    left = min(plan.most, free - plan.phases["sampling"]["activations"] - (1 - USABLE) * total)
    # Rounded down, and equal on all ranks, which sample equally many answers.
    share = min(gather(max(0, int(1000 * left / total)) / 1000))
    if share * total < plan.least:
        problem = (
            f"beside the learner {share * total / GIB:.1f} GiB of a GPU are left for the sampler"
        )
        raise InputError(
            f"{problem}, which needs {plan.least / GIB:.1f}. Use --offload-optimizer or more ranks"
        )
    return share


def data_sheet(gpu: str) -> tuple[int, float, float]:
    """Return the bytes of memory of `gpu`, and its bytes and bf16 operations per second. Raises
    InputError.
    """
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


def sampling_seconds(
    inputs: Inputs, planning: Planning, answers: int, size: int, most: int = MOST_SEQUENCES
) -> float:
    """Return the seconds in which samplers on `size` GPUs each draw `answers` in bf16, `most` at
    once per sampler.

    Finished answers are replaced while others wait. The last ones take until the longest possible
    answer is done.
    """
    answers = ceil(answers / max(1, (planning.gpus or 1) // size))  # of a sampler
    shape, (_, bandwidth, operations) = inputs.shape, data_sheet(planning.gpu)
    mean = min(planning.answer_tokens, inputs.longest_answer)
    # Each pass draws a token of all answers at work
    passes = max(0, answers / most - 1) * mean + inputs.longest_answer
    # Bytes read for a token
    cache = 4 * shape.key_heads * shape.head_size * shape.layers * (inputs.prompt + mean)
    reading = (passes * 2 * shape.parameters + answers * mean * cache) / (bandwidth * BANDWIDTH_USE)
    computing = answers * mean * 2 * shape.parameters / (operations * SAMPLING_USE)
    return max(reading, computing) / size + passes * PASS_SECONDS


def step_seconds(config: TrainConfig, inputs: Inputs, plan: MemoryPlan) -> tuple[float, float]:
    """Return the seconds in which one step samples and updates on the GPUs of --gpu, evaluations
    left out.
    """
    batch, planning, shape = config.batch, config.planning, inputs.shape
    _, _, operations = data_sheet(planning.gpu)
    answers = batch.questions_per_step * batch.samples_per_question
    sharing = config.hardware.sampler_ranks
    sampling = sampling_seconds(inputs, planning, answers, sharing, plan.sequences)
    # The answers to a question share its prompt. With LoRA, the model has no gradients of its own
    # weights.
    answer_tokens = batch.samples_per_question * min(planning.answer_tokens, inputs.longest_answer)
    tokens = batch.questions_per_step * (inputs.prompt + answer_tokens)
    of_token = (4 if config.update.lora_rank else 6) * shape.parameters  # operations
    update = of_token * tokens / ((planning.gpus or 1) * operations * MFU)
    return sampling, batch.ppo_iterations * update


def compare_sampler_ranks(config: TrainConfig, inputs: Inputs) -> list[str]:
    """Return a line on the seconds per step with each value of --sampler-ranks with which the run
    fits, or no line if there is only one such value.
    """
    ranks = config.planning.gpus or 1
    memory, _, _ = data_sheet(config.planning.gpu)
    seconds = {}
    for sharing in range(1, min(ranks, 8) + 1):
        try:
            check_sampler_ranks(inputs.shape, sharing, min(ranks, 8))
        except InputError:
            continue
        shared = replace(config, hardware=replace(config.hardware, sampler_ranks=sharing))
        plan = plan_memory(inputs.shape, shared, inputs.longest, ranks, memory)
        if not plan.problem:
            seconds[sharing] = sum(step_seconds(shared, inputs, plan))
    if len(seconds) < 2:
        return []
    values = ", ".join(f"{value:.1f} with {sharing}" for sharing, value in seconds.items())
    return [
        f"seconds per step by --sampler-ranks: {values}; the fastest is --sampler-ranks "
        f"{min(seconds, key=seconds.get)} (communication within a sampler is not counted)"
    ]


def plan_training(config: TrainConfig, inputs: Inputs) -> tuple[dict[str, float], list[str]]:
    """Return the seconds of a run on the GPUs of --gpu by what takes them, and lines about their
    memory.

    There are no seconds if the run does not fit. Raises InputError for an unknown GPU.
    """
    planning, shape, every = config.planning, inputs.shape, config.logging.eval_every
    ranks, sharing = planning.gpus or 1, config.hardware.sampler_ranks
    memory, _, _ = data_sheet(planning.gpu)
    check_sampler_ranks(shape, sharing, min(ranks, 8))  # of a machine
    plan = plan_memory(shape, config, inputs.longest, ranks, memory)
    lines = [
        f"memory per rank on {ranks} x {planning.gpu} with {memory / GIB:.1f} GiB, estimated:",
        str(plan),
    ]
    if plan.offloaded:
        lines.append(f"CPU memory per rank: {plan.offloaded / GIB:.1f} GiB")
    lines += compare_sampler_ranks(config, inputs)
    if plan.problem:
        return {}, [*lines, plan.problem]
    lines.append(
        f"sampler: {plan.gpu_memory:.0%} of the GPU memory, {plan.sequences} answers at once"
    )
    # Evaluations are made at the start, every so many steps and at the end
    evaluations = ceil(inputs.steps / every) + 1 if every else 0
    sampling, update = step_seconds(config, inputs, plan)
    seconds = {
        "sampling": inputs.steps * sampling,
        "updates": inputs.steps * update,
        "evaluations": evaluations
        * sampling_seconds(inputs, planning, inputs.eval_answers, sharing, plan.sequences),
        "start": START_SECONDS,
    }
    return seconds, lines


def checkpoints(config: TrainConfig, shape: ModelShape, steps: int) -> tuple[int, int]:
    """Return the bytes of a checkpoint, and how many exist at once: those kept, the best, and one
    that is written.

    A checkpoint has the model (merged if there is an adapter), master weights and AdamW's moments.
    """
    adapter = shape.adapted * (config.update.lora_rank or 0)
    saves = ceil(steps / (config.folder.save_every or steps))
    size = DTYPE_BYTES[config.hardware.dtype] * (shape.parameters + adapter) + 12 * (
        adapter or shape.parameters
    )
    return size, min(config.folder.keep or saves, saves) + bool(config.logging.eval_every) + 1


@cache
def find_model(name: str, longest: int) -> tuple[Path, ModelShape, PreTrainedTokenizerBase | None]:
    """Return folder, shape and tokenizer of a model, which is downloaded without its weights.

    Without a network, the models of the paper have their shapes in data/models, but no tokenizer
    (None). Raises InputError if there is no such model, or if its context is shorter than `longest`
    tokens.
    """
    try:
        folder = model_folder(name, weights=False)
    except InputError:
        folder = local_folder(name) or ROOT / "data" / "models" / short_name(name)
        if not (folder / "config.json").is_file():
            raise
    model_config(folder, longest)
    tokenizer = load_tokenizer(folder, longest) if any(folder.glob("tokenizer*")) else None
    return folder, ModelShape(folder), tokenizer


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
        tokenizer.chat_template = chat_template(
            tokenizer, data.template, data.system_prompt, data.thinking
        )
        kept, prompts = encode_problems(problems, tokenizer, limit, batch.questions_per_step)
        lines[0] += f", {len(problems) - len(kept)} of them left out: prompt over {limit} tokens"
        lines.append(f"the longest of the other prompts has {max(map(len, prompts))} tokens")
        for problem, prompt in zip(kept[:2], prompts[:2], strict=True):
            lines.append(
                f"prompt of problem {problem.id}:\n{tokenizer.decode(prompt)}\nanswer: "
                f"{problem.answer}"
            )
        check_prompts(folder, tokenizer, prompts)
        problems, mean = kept, fmean(map(len, prompts))
        lines += own_settings(suite, data.grader, tokenizer) if suite else []
    else:
        lines[0] += ", not counted in tokens: the tokenizer cannot be downloaded"
    check_references(problems, data.train_data, data.rewards, data.grader)
    if not set(data.rewards) <= set(BUILT_IN):  # calls the user's own, as the start of a run does
        example = problems[0].answer
        Grader(data.rewards, users_range=config.users_range, workers=1, example=example).close()
    evaluation = Inputs(shape, mean, longest, 0, 0, 0, [])
    if suite:
        evaluation = evaluation_inputs(data.model, override(suite, (), None, data.grader))
    epoch, answers = (
        len(problems) // batch.questions_per_step,
        batch.questions_per_step * batch.samples_per_question,
    )
    steps = batch.steps or batch.epochs * epoch
    size, count = checkpoints(config, shape, steps)
    lines += [
        *evaluation.lines,
        f"{steps:,} steps of {batch.questions_per_step} x {batch.samples_per_question} answers "
        f"({epoch} steps per epoch), {steps * batch.ppo_iterations * batch.mini_batches:,} "
        f"optimizer steps, {steps * answers:,} answers",
        f"disk: {size / 1e9:.2f} GB per checkpoint x {count}: {size * count / 1e9:.1f} GB",
    ]
    return Inputs(
        shape,
        mean,
        longest,
        config.sampling.max_answer_tokens,
        steps,
        evaluation.eval_answers,
        lines,
    )


def evaluation_inputs(name: str, suite: Suite) -> Inputs:
    """Return what an evaluation of model `name` reads. Raises InputError like `training_inputs`."""
    longest = suite.max_prompt_tokens + suite.max_answer_tokens
    _, shape, tokenizer = find_model(name, longest)
    answers, lines, problems_by_name = 0, [], suite_problems(suite)
    for dataset_name, dataset in suite.datasets.items():
        problems, repetitions = problems_by_name[dataset_name], dataset.repetitions
        check_references(problems, [dataset.data], ["accuracy"], suite.grader)
        if tokenizer:
            encode_prompts(problems, suite, tokenizer)  # refuses prompts that are too long
        count = len(problems)
        answers += count * repetitions
        # Problems are assumed to have the largest possible variance
        found = 100 * detectable(error=sqrt(0.25 / count))
        lines.append(
            f"{suite.name}: {dataset_name}: {count} problems x {repetitions} repetitions; a true "
            f"difference of {found:.1f} points to any other model is found (power 80 %)"
        )
    lines.append(f"{answers:,} answers per evaluation")
    return Inputs(shape, PROMPT_TOKENS, longest, suite.max_answer_tokens, 0, answers, lines)


def objective_lines(config: TrainConfig) -> list[str]:
    """Return what training with --algo weight maximises as a table, line by line: exact for
    rewards of 0 and 1.
    """
    if config.method.weight is None:
        return []
    m = config.batch.samples_per_question
    gain = gains(*config.method.weights(shares(m), m, config.batch.questions_per_step))  # [m]
    values = {"accuracy p": ACCURACIES, "weight": exact_weight(ACCURACIES, gain)}
    values["objective"] = exact_objective(ACCURACIES, gain)
    lines = [
        f"what training maximises with {m} answers per question, exactly for rewards of 0 and 1:"
    ]
    return lines + [
        f"{name:<11}" + "".join(f"{value:>10.4g}" for value in row) for name, row in values.items()
    ]


def dry_run_training(config: TrainConfig) -> None:
    """Print what `train.py` would do. Raises InputError for what it would refuse."""
    inputs = training_inputs(config)
    seconds, lines = plan_training(config, inputs) if config.planning.gpu else ({}, [])
    print_plan(
        flat_settings(config),
        [*inputs.lines, *objective_lines(config), *lines],
        seconds,
        config.planning,
    )


def dry_run_evaluation(config: EvalConfig) -> None:
    """Print what `eval.py` would do. Raises InputError for what it would refuse."""
    check(config)
    suite = chosen_suite(config, local_folder(config.ckpt) or Path(config.ckpt))
    for ckpt in [config.ckpt, config.base] if config.base else [config.ckpt]:
        inputs = evaluation_inputs(ckpt, suite)
        seconds = {}
        if config.planning.gpu:
            sampling = sampling_seconds(
                inputs, config.planning, inputs.eval_answers, config.tensor_parallel
            )
            seconds = {"sampling": sampling, "start": START_SECONDS}
        settings = flat_settings(config) | {"ckpt": ckpt, "suite": asdict(suite)}
        print_plan(settings, inputs.lines, seconds, config.planning)


def print_plan(
    settings: dict, lines: list[str], seconds: dict[str, float], planning: Planning
) -> None:
    """Print `settings` as JSON, `lines`, and the estimated hours of a run with what they assume."""
    print(json.dumps(settings, indent=2, default=str), *lines, sep="\n")
    if planning.gpu is None:
        print("no estimate of memory and hours: name a GPU with --gpu")
    elif seconds:
        parts = ", ".join(f"{name} {value / 3600:.2f}" for name, value in seconds.items())
        hours = sum(seconds.values()) / 3600
        print(
            f"estimate: {hours:.1f} hours, {hours * (planning.gpus or 1):.1f} GPU-hours (in hours: "
            f"{parts})"
        )
        print(
            f"it assumes {planning.answer_tokens} tokens per answer (--answer-tokens), and "
            "docs/reproduce.md"
        )
