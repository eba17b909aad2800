"""What a training run or an evaluation reads, and its size. Loads no weights."""

from dataclasses import dataclass
from functools import cache
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from bnpo.config import TrainConfig
from bnpo.data import describe_gaps, load_sources
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
from bnpo.grading.rewards import BUILT_IN, forms_of
from bnpo.policy.folder import (
    check_model,
    check_prompts,
    load_tokenizer,
    local_folder,
    model_config,
    model_folder,
)
from bnpo.policy.memory import DTYPE_BYTES, ModelShape
from bnpo.prompts import SYSTEM_PROMPTS, chat_template, describe_problems, encode_problems

# Mean of MATH with Qwen2.5-Math's tokenizer and template, assumed where no tokenizer is at hand
PROMPT_TOKENS = 103.0


@dataclass(frozen=True)
class Inputs:
    """What a training run or an evaluation reads. `lines` says it."""

    shape: ModelShape
    prompt: float  # mean tokens of a prompt
    longest: int  # tokens of the longest prompt plus answer
    longest_answer: int
    answers: int  # of a step, or of an evaluation
    lines: list[str]
    # Of a training run:
    steps: int = 0
    evaluation: "Inputs | None" = None  # each of its evaluations


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
    forms = forms_of(data.rewards)
    problems, _ = load_sources(data.train_data, config.columns, forms)
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
        system = data.system_prompt or SYSTEM_PROMPTS.get(data.template)
        lines += describe_problems(kept, tokenizer, system)
        problems, mean = kept, fmean(map(len, prompts))
        lines += own_settings(suite, data.grader, tokenizer) if suite else []
    else:
        lines[0] += ", not counted in tokens: the tokenizer cannot be downloaded"
    epoch = len(problems) // batch.questions_per_step  # steps
    if not epoch:  # with a tokenizer, `encode_problems` has refused it
        raise InputError(
            f"--questions-per-step: is {batch.questions_per_step}, and the data have only "
            f"{len(problems)} problems; lower it"
        )
    lines += describe_gaps(problems, forms)
    check_references(problems, data.train_data, data.rewards, data.grader)
    if not set(data.rewards) <= set(BUILT_IN):  # calls the user's own, as the start of a run does
        example = {"example": problems[0].answer, "fields": problems[0].fields}
        Grader(data.rewards, users_range=config.users_range, workers=1, **example).close()
    evaluation = None
    if suite:
        evaluation = evaluation_inputs(data.model, override(suite, (), None, data.grader))
        lines += evaluation.lines
    steps = batch.steps or batch.epochs * epoch
    return Inputs(
        shape=shape,
        prompt=mean,
        longest=longest,
        longest_answer=config.sampling.max_answer_tokens,
        answers=batch.questions_per_step * batch.samples_per_question,
        lines=lines + _describe_run(config, shape, steps, epoch),
        steps=steps,
        evaluation=evaluation,
    )


def _describe_run(config: TrainConfig, shape: ModelShape, steps: int, epoch: int) -> list[str]:
    """Return lines about the size of a run and of its checkpoints, where `epoch` are the steps of
    one pass over the data.
    """
    batch = config.batch
    answers = steps * batch.questions_per_step * batch.samples_per_question
    most = ""
    if batch.resample_rounds:
        most = f", up to {answers * (1 + batch.resample_rounds):,} with --resample-rounds"
    size, count = checkpoints(config, shape, steps)
    return [
        f"{steps:,} steps of {batch.questions_per_step} x {batch.samples_per_question} answers "
        f"({epoch} steps per epoch), {steps * batch.ppo_iterations * batch.mini_batches:,} "
        f"optimizer steps, {answers:,} answers{most}",
        f"disk: {size / 1e9:.2f} GB per checkpoint x {count}: {size * count / 1e9:.1f} GB",
    ]


def evaluation_inputs(name: str, suite: Suite) -> Inputs:
    """Return what an evaluation of model `name` reads. Raises InputError like `training_inputs`."""
    longest = suite.longest
    _, shape, tokenizer = find_model(name, longest)
    problems_by_name = suite_problems(suite)
    answers, prompt_tokens, lines = 0, 0.0, []
    for dataset_name, dataset in suite.datasets.items():
        problems, repetitions = problems_by_name[dataset_name], dataset.repetitions
        check_references(problems, [dataset.data], ["accuracy"], suite.grader)
        count, mean = len(problems), PROMPT_TOKENS
        if tokenizer:  # refuses prompts that are too long
            mean = fmean(map(len, encode_prompts(problems, suite, tokenizer)))
        answers += count * repetitions
        prompt_tokens += count * repetitions * mean
        # Problems are assumed to have the largest possible variance
        found = 100 * detectable(error=sqrt(0.25 / count))
        lines.append(
            f"{suite.name}: {dataset_name}: {count} problems x {repetitions} repetitions; a true "
            f"difference of {found:.1f} points to an unrelated model is found (power 80 %)"
        )
    lines.append(
        f"{answers:,} answers per evaluation, of at most {suite.max_answer_tokens} tokens, at "
        f"temperature {suite.temperature:g}, judged by the rule {suite.grader}"
    )
    return Inputs(
        shape=shape,
        prompt=prompt_tokens / answers,
        longest=longest,
        longest_answer=suite.max_answer_tokens,
        answers=answers,
        lines=lines,
    )
