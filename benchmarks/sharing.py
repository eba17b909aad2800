"""Measure what shared prompts save: updates of the learner with and without them, on two ranks with one thread each.

    python benchmarks/sharing.py

Without shared prompts each answer has its own copy of the prompt. The same code packs, splits and attends to these
sequences. Updates of both kinds take turns. Rows for each case:

- prompt_sharing_ratio_*: median seconds without over with shared prompts
- sharing_tokens_*: tokens that the learner computes, with over without
- sharing_gradient_difference_*: largest relative difference of the gradient norms
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import long_model
from common import launch, row

from bnpo.environment import setup_environment

setup_environment()

import numpy as np  # isort: skip
import torch
import torch.distributed as dist

from bnpo.algorithm import batching
from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.batching import MicroBatch, Sequences
from bnpo.algorithm.estimators import Method
from bnpo.config import TINY_MODEL, parse_train_config
from bnpo.data import encode_prompt, load_problems, questions_at, sampling_seeds
from bnpo.grading.grader import Grader
from bnpo.policy import learner as module
from bnpo.policy.folder import load_tokenizer
from bnpo.policy.learner import Experience
from bnpo.policy.sampler import EngineSettings
from bnpo.ranks import gather

ROUNDS = 3
"""Measured updates of each kind and batch, after one that warms up."""
CASES = {
    "300_150": ("4096", (8, 16, 300, 150)),
    "130_600": ("16384", (2, 16, 130, 600)),
    "130_600_cut": ("4096", (2, 16, 130, 600)),
    "60_uneven": ("4096", (8, 16, 60, None)),
    "one_answer_each": ("4096", (128, 1, 60, 100)),
}
"""Budget, then questions, answers to each, tokens of a prompt and of an answer (None: 10 to 900, log-uniform); for the
model of benchmarks/long_model.py. Besides these the tiny model on what it samples."""


def whole_sequences(prompts, answers, indices, device):
    """Do the same as `collate`, but with a copy of the prompt for each answer."""
    pairs = [(prompts[i], answers[i]) for i in indices] or [([0], [0])]
    lengths = np.array([len(prompt) + len(answer) for prompt, answer in pairs])
    ids = torch.tensor([token for prompt, answer in pairs for token in (*prompt, *answer)])
    mask = np.concatenate([np.repeat([False, True], [len(prompt), len(answer)]) for prompt, answer in pairs])
    predicted = torch.from_numpy(mask.nonzero()[0])
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    longest = int(lengths.max())
    return MicroBatch(
        ids,
        torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])),
        Sequences(starts, torch.arange(len(ids)), starts, longest, longest),
        ids[predicted],
        predicted - 1,
        np.array([len(answer) for _, answer in pairs]),
        indices,
    )


def random_batch(questions: int, samples: int, prompt: int, answer: int | None) -> module.Experience:
    rng = np.random.default_rng(0)
    prompts = [tokens for _ in range(questions) for tokens in [rng.integers(20, 110, prompt).tolist()] * samples]
    uneven = np.exp(rng.uniform(np.log(10), np.log(900), len(prompts))).astype(int)
    answers = [rng.integers(20, 110, answer or length).tolist() for length in uneven]
    logprobs = [np.full(len(tokens), -3.0) for tokens in answers]
    return Experience(prompts, answers, logprobs, rng.normal(size=len(prompts)))


def tiny_batches() -> list[module.Experience]:
    """Return the batches of the tiny preset's first ten steps, all sampled from the untrained model."""
    from bnpo.policy.sampler import Sampler

    config, _ = parse_train_config(["--preset", "tiny"], has_cuda=False)
    tokenizer = load_tokenizer(TINY_MODEL, 192)
    problems = load_problems(config.data.train_data[0])
    sampler = Sampler(str(TINY_MODEL), tokenizer, EngineSettings(max_tokens=192, dtype="float32"))
    grader, batches, m = Grader(), [], config.batch.samples_per_question
    for step in range(10):
        questions = questions_at(
            len(problems), config.batch.questions_per_step, step * config.batch.questions_per_step, config.sampling.seed
        )
        prompts = [encode_prompt(tokenizer, problems[q].problem) for q in questions]
        seeds = sampling_seeds(config.sampling.seed, step, questions)
        limits = {"max_tokens": config.sampling.max_answer_tokens, "temperature": config.sampling.temperature}
        groups = sampler.sample(prompts, seeds, n=m, logprobs=True, **limits)
        sampled = {group.prompt_index: group.answers for group in groups}
        flat = [answer for number in range(len(questions)) for answer in sampled[number]]
        texts = tokenizer.batch_decode([answer.token_ids for answer in flat], skip_special_tokens=True)
        rewards = grader(texts, [problems[q].answer for q in questions for _ in range(m)]).rewards
        advantages = compute_advantages(Method("bnpo"), rewards.reshape(len(questions), m, 1)).values
        batches.append(
            Experience(
                [prompt for prompt in prompts for _ in range(m)],
                [list(answer.token_ids) for answer in flat],
                [answer.logprobs for answer in flat],
                advantages.ravel(),
            )
        )
    grader.close()
    return batches


def seconds_of(learner: module.Learner, experience: module.Experience) -> tuple[float, float]:
    """Seconds of an update of all ranks, which leaves the weights as they are, and its gradient norm."""
    dist.barrier()
    started = time.perf_counter()
    norm = learner.update(experience, lr=0.0).grad_norm
    dist.barrier()
    return time.perf_counter() - started, norm


def tokens_of(learner: module.Learner, experience: module.Experience) -> int:
    everything = np.arange(len(experience.answers))
    return sum(gather(sum(len(micro.input_ids) for micro in learner._micro_batches(experience, everything))))


class Case:
    """A learner and its batches, to be measured with and without shared prompts."""

    def __init__(self, model: str, flags: list[str], batches: list[module.Experience]):
        config, _ = parse_train_config(["--preset", "tiny", "--model", model, *flags], has_cuda=False)
        self._learner, self._batches = module.Learner(model, 262, config), batches
        self._alone = {"collate": whole_sequences, "groups_of": lambda prompts: np.arange(len(prompts))}

    @contextmanager
    def _packing(self, *, shared: bool) -> Iterator[None]:
        collate, groups_of = (module.collate, batching.groups_of) if shared else self._alone.values()
        with mock.patch.object(module, "collate", collate), mock.patch.object(batching, "groups_of", groups_of):
            yield

    def seconds(self) -> dict[str, float]:
        """Return the rows of this case."""
        found: dict[bool, list] = {True: [], False: []}
        for _ in range(1 + max(2, ROUNDS // len(self._batches))):
            for experience in self._batches:
                for shared, updates in found.items():
                    with self._packing(shared=shared):
                        updates.append(seconds_of(self._learner, experience))
        tokens = []
        for shared in found:
            with self._packing(shared=shared):
                tokens.append(tokens_of(self._learner, self._batches[0]))
        shared, whole = (np.array(found[shared][len(self._batches) :]) for shared in (True, False))
        return {
            "prompt_sharing_ratio": np.median(whole[:, 0]) / np.median(shared[:, 0]),
            "sharing_tokens": tokens[0] / tokens[1],
            "sharing_gradient_difference": np.abs(shared[:, 1] / whole[:, 1] - 1).max(),
        }


def main() -> None:
    if len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as folder:
            long_model.write(Path(folder))
            output = launch(2, "benchmarks/sharing.py", folder)
        rows = json.loads(next(line for line in output.splitlines() if line.startswith("ROWS "))[len("ROWS ") :])
        for name, value in rows.items():
            row(name, value)
        return
    dist.init_process_group("gloo")
    folder = sys.argv[-1]
    cases = {"tiny": Case(str(TINY_MODEL), [], tiny_batches())}
    for name, (budget, shape) in CASES.items():
        cases[name] = Case(folder, ["--micro-batch-tokens", budget], [random_batch(*shape)])
    rows = {f"{row}_{name}": value for name, case in cases.items() for row, value in case.seconds().items()}
    if dist.get_rank() == 0:
        print("ROWS " + json.dumps(rows), flush=True)
    os._exit(0)  # saves the seconds that vLLM and torch.distributed need to end


if __name__ == "__main__":
    main()
