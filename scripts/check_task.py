r"""Sample some answers with the model, prompt and reward of a run, and print what would keep it
from learning.

    # the flags of train.py; 16 questions, 4 answers each
    python scripts/check_task.py --preset smollm2
    python scripts/check_task.py --questions 32 --answers 8 --preset paper-1.5b \
        --train-data mine.jsonl

The questions and seeds are those of the first step of the run. No learner is loaded, so it takes
less memory and time than a run.
"""

import argparse
import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bnpo.environment import expects_cuda, setup_environment
from bnpo.errors import end_on_gpus, error_line

setup_environment()

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from rich.text import Text
from scipy.special import betaln

from bnpo.batch import Batch, Task, has_signal, right_reward, sample_batch
from bnpo.config import TrainConfig, check_config, parse_train_config, with_settings
from bnpo.files import InputError
from bnpo.policy.memory import sampler_settings
from bnpo.ranks import check_cuda, hide_cuda
from bnpo.runs.findings import find, unstated_share
from bnpo.runs.prepare import prepare_run
from bnpo_estimators import BetaFit, fit_beta

SHOWN = 3
"""Answers that are printed as they are."""
ANSWERS = (2, 4, 8, 16, 32, 64)
"""Values of --samples-per-question for which the share of questions with a signal is printed."""
LITTLE = 1.25
"""More answers win little if twice as many, which cost twice as much, give a signal to less than
this many times the questions."""


@dataclass(frozen=True)
class Sample:
    """What was sampled, and how long that took."""

    task: Task
    batch: Batch
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--questions", type=int, default=16, help="number of questions")
    parser.add_argument("--answers", type=int, default=4, help="answers per question, at least 2")
    args, flags = parser.parse_known_args()
    with error_line():
        if args.questions < 1 or args.answers < 2:
            raise InputError("--questions must be at least 1, and --answers at least 2")
        config, preset_line = parse_train_config(flags, expects_cuda())
        print(preset_line, flush=True)
        check_config(config, ranks=1)
        if config.preset == "tiny":  # as train.py
            hide_cuda()
        check_cuda()
        with TemporaryDirectory(prefix="bnpo-check-task-") as folder:
            small = smaller(config, args.questions, args.answers, Path(folder) / "run")
            sample = sample_answers(small)
        # As the run itself, but pass@K has the K that the sampled answers allow
        report(sample, with_settings(config, k=small.method.k))
        end_on_gpus()


def smaller(config: TrainConfig, questions: int, answers: int, folder: Path) -> TrainConfig:
    """Return the settings of a run in `folder` that samples fewer answers per step and evaluates
    nothing.
    """
    changes = {"questions_per_step": questions, "samples_per_question": answers, "mini_batches": 1}
    changes |= {
        "resample_rounds": 0,
        "output_dir": folder,
        "resume": False,
        "eval_every": 0,
        "watch_questions": 0,
        "sampler_ranks": 1,  # this process is the only rank
    }
    if config.method.k:  # below the number of answers
        changes["k"] = min(config.method.k, answers - 1)
    return with_settings(config, **changes)


def sample_answers(config: TrainConfig) -> Sample:
    """Return answers to the questions of the first step of a run. Raises InputError."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}  # as the launcher does
    prepared = prepare_run(config, trains=False)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    from bnpo.policy.sampler import Sampler  # imports vLLM

    engine = sampler_settings(prepared.shape, config, prepared.longest_with_evaluations)
    sampler = Sampler(str(prepared.model), prepared.task.tokenizer, engine)
    try:
        started = time.perf_counter()
        batch = sample_batch(prepared.task, 0, 0, sampler, config)
        seconds = time.perf_counter() - started
    finally:
        sampler.close()
        prepared.task.grader.close()
    return Sample(prepared.task, batch, seconds)


def fit_accuracies(batch: Batch, task: Task, config: TrainConfig) -> BetaFit | None:
    """Return the Beta distribution of the questions' accuracies in the reward of --signal, whose a
    or b is 0 if none fits. None if that reward is not just right or wrong.
    """
    first, *others = config.signal_rewards
    values, counted = batch.rewards[:, :, first], ~batch.failed  # [n, m]
    kept, seen = counted.sum(axis=1) >= 2, np.unique(values[counted])  # [n], [values]
    is_graded = len(seen) > 2 or (len(seen) == 1 and seen[0] not in task.grader.ranges[first])
    if others or is_graded or not kept.any():
        return None
    right = values == right_reward(values, batch.failed, task.grader.ranges[first][1])  # [n, m]
    counts = counted.sum(axis=1)[kept]
    # Corrected, because few answers scatter much: sample moments would take that for a spread of
    # the questions, and promise fewer questions with a signal.
    return fit_beta((right & counted).sum(axis=1)[kept] / counts, counts, "corrected")


def signal_share(m: int, a: float, b: float) -> float:
    """Return the share of questions of which some of m answers are right and some wrong, if their
    accuracies have the distribution Beta(a, b): 1 - E[p^m] - E[(1 - p)^m].

    >>> [round(signal_share(m, 0.5, 2.0), 2) for m in (2, 4, 8, 16)]
    [0.23, 0.42, 0.57, 0.68]
    """
    all_right, all_wrong = betaln(a + m, b) - betaln(a, b), betaln(a, b + m) - betaln(a, b)
    return float(1 - np.exp(all_right) - np.exp(all_wrong))


def enough_answers(a: float, b: float) -> int | None:
    """Return the first of ANSWERS where twice as many answers give a signal to less than LITTLE
    times the questions. None: there is none, as where nearly all questions are too hard.

    >>> enough_answers(0.5, 2.0), enough_answers(50.0, 50.0)  # 0.68 / 0.57 = 1.2
    (8, 4)
    >>> enough_answers(0.5, 50.0)  # with 64 answers 0.34, with 128 0.47
    """
    for m in ANSWERS:
        if signal_share(2 * m, a, b) < LITTLE * signal_share(m, a, b):
            return m
    return None


def report_answers(fit: BetaFit, config: TrainConfig) -> None:
    """Print how many questions would have a signal with other numbers of answers."""
    if not (fit.a > 0 and fit.b > 0):
        print(
            "How many answers are enough is not known. No Beta distribution fits the accuracies, "
            "because the answers\nto each question are nearly all right or nearly all wrong. "
            "Sample more of them: --questions 64 --answers 8\n"
        )
        return
    own, table = config.batch.samples_per_question, Table()
    table.add_column("--samples-per-question")
    table.add_column("questions with a signal", justify="right")
    for m in sorted({*ANSWERS, own}):
        table.add_row(f"{m}{' (this run)' * (m == own)}", f"{signal_share(m, fit.a, fit.b):.0%}")
    Console().print(table)
    enough = enough_answers(fit.a, fit.b)
    if enough:
        advice = f"From {enough} answers on, twice as many win little: a signal for less than"
    else:
        advice = f"Up to {ANSWERS[-1]} answers, twice as many always win a signal for at least"
    print(
        f"by Beta({fit.a:.2f}, {fit.b:.2f}), which fits the accuracies of the sampled questions. "
        f"{advice} {LITTLE - 1:.0%} more questions.\n"
    )


def report(sample: Sample, config: TrainConfig) -> None:
    """Print the table, the first answers and the findings."""
    batch, task = sample.batch, sample.task
    names = config.data.reward_names
    counted, signal = ~batch.failed, config.signal_rewards  # [n, m], indices
    with_signal = has_signal(batch.rewards[:, :, signal], batch.failed)  # [n]
    n, m, _ = batch.rewards.shape
    table = Table(title=f"{n} questions, {m} answers each, of {config.data.model}")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for k, name in enumerate(names):
        low, high = task.grader.ranges[k]
        values = batch.rewards[:, :, k][counted]  # of the answers that count
        if not len(values):  # the findings say why
            continue
        if math.isfinite(high):
            table.add_row(f"mean reward {name}, from {low:g} to {high:g}", f"{values.mean():.3f}")
            table.add_row(f"answers with the highest {name}", f"{(values == high).mean():.1%}")
        else:
            table.add_row(f"mean reward {name}", f"{values.mean():.3f}")
            table.add_row(f"lowest and highest {name}", f"{values.min():g}, {values.max():g}")
    table.add_row("questions with a signal (--signal)", f"{with_signal.mean():.1%}")
    table.add_row("cut off at --max-answer-tokens", f"{1 - batch.finished.mean():.1%}")
    table.add_row("without a final answer", f"{unstated_share([batch], task, config):.1%}")
    table.add_row("answers left out, because a reward failed", f"{batch.failed.mean():.1%}")
    table.add_row("mean length in tokens", f"{batch.lengths.mean():.1f}")
    of_step = config.batch.questions_per_step * config.batch.samples_per_question
    table.add_row(
        f"seconds per step for sampling {of_step} answers, by this sample",
        f"{sample.seconds * of_step / (n * m):.1f}",
    )
    console = Console()
    console.print(table)
    for i in range(min(SHOWN, n)):
        group = batch.groups[i]
        problem, answer = task.problems[group.question], group.answers[0]
        rewards = ", ".join(
            f"{name} {value:g}" for name, value in zip(names, batch.rewards[i, 0], strict=True)
        )
        console.print(f"\nquestion {problem.id}: {problem.text}", markup=False)
        console.print(f"answer, with reference {problem.answer!r}, {rewards}:", markup=False)
        console.print(Text(task.tokenizer.decode(answer.token_ids)))
    print()
    if fit := fit_accuracies(batch, task, config):
        report_answers(fit, config)
    # A run that draws enough questions trains on those with a signal only
    if with_signal.mean() * (1 + config.batch.resample_rounds) >= 1:
        batch = replace(batch, trained_groups=np.flatnonzero(with_signal))
    findings = find([batch], task, config)
    for finding in findings:
        print(f"to change: {finding['text']}.")
    if not findings:
        print(f"nothing to change: {with_signal.mean():.0%} of the questions have a signal.")


if __name__ == "__main__":
    main()
