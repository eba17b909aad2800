"""Measure the noise of every estimator's gradient at checkpoints of a run, beside what Theorem 1 predicts.

    python scripts/study/gradient_noise.py            # trains REINFORCE in each regime of the study, then measures
    python scripts/study/gradient_noise.py --regimes rare

The policy is fixed, so all estimators see the same answers: 16 to each question of a regime. Printed, and written to
evals/results/study/noise.json: for batches of 32 questions |E g|^2 / tr Cov(g), the signal-to-noise ratio of the
gradient, BNPO's less each other's, with standard errors over questions; and tr Cov(g) over REINFORCE's, where f
integrates to one as in the theorem, beside the same ratio by the theorem's formula for the Beta distribution that fits
the accuracies. The theorem is about single answers; the gradients of batches also differ by what their questions teach.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

# Started as a file, this folder is first on the path, where `study` is not found and `statistics` hides Python's own.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from bnpo.algorithm.advantages import compute_advantages
from bnpo.algorithm.beta import BetaFit, fit_beta
from bnpo.algorithm.estimators import Method
from bnpo.config import TINY_MODEL
from bnpo.data import encode_prompt, load_problems, sampling_seeds
from bnpo.files import ROOT, InputError, step_name, write_json
from bnpo.grading.grader import Grader
from bnpo.policy.folder import load_tokenizer
from bnpo.policy.sampler import EngineSettings, Sampler
from bnpo.summary import why_ended
from study.design import ANSWERS, COMMON, EVALUATED, REGIMES
from study.noise import Sketch, likeness, measure, sample_gradients, score_sums, standard_error
from study.results import NOISE_COLUMNS, noise_cells
from study.rows import NOISE, chosen_lr, first_grid, read_rows
from verify_theorem import log_variance

ESTIMATORS = ("reinforce", "remax", "grpo", "reinforce_pp", "maxrl", "opo", "bnpo")
"""RLOO is REINFORCE times a constant."""
DENSITIES = ((1.25, 1.25), (1.5, 1.5), (2.0, 2.0))
"""Alpha and beta of fixed densities."""
AT_ONCE = 100
"""Questions that vLLM gets at a time: a long queue slows it down."""


@dataclass
class Args:
    regimes: tuple[Literal[*REGIMES], ...] = REGIMES
    """Regimes to measure."""
    work_dir: Path = ROOT / "runs" / "study" / "noise"
    """Folder for the runs; what is there already is not trained again."""
    output: Path = NOISE
    """File to write; what is in it already is not measured again."""


def train(regime: str, folder: Path) -> None:
    """A run of REINFORCE in `folder`, unless it is there: a checkpoint in the middle and at the end, the learning rate
    that tuning has chosen."""
    if not (folder / "end.json").exists() or why_ended(folder) != "done":
        lr = chosen_lr(read_rows(), regime, "reinforce", first_grid(regime))
        flags = (*COMMON, "--algo", "reinforce", "--train-data", f"data/study/{regime}-train.jsonl", "--lr", f"{lr:g}")
        command = [sys.executable, "scripts/launch.py", "--num_gpus", "1", "train.py", *flags, "--overwrite"]
        _, middle, last = map(str, EVALUATED[regime])
        kept = ("--steps", last, "--eval-every", "0", "--save-every", middle, "--keep", "0")
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *kept, "--output-dir", str(folder)], cwd=ROOT, env=environment, check=True)


def sample(model: Path, regime: str) -> tuple[list[list[int]], list[list[list[int]]], np.ndarray, np.ndarray]:
    """Prompts, answers and rewards [N, m] to all questions of a regime, and rewards [N] of their greedy answers."""
    splits = ("train", "validation", "test")
    problems = [p for split in splits for p in load_problems(ROOT / "data" / "study" / f"{regime}-{split}.jsonl")]
    tokenizer, grader = load_tokenizer(model, 192), Grader()
    sampler = Sampler(str(model), tokenizer, EngineSettings(max_tokens=192, dtype="float32"))
    prompts = [encode_prompt(tokenizer, problem.problem) for problem in problems]
    seeds = sampling_seeds(0, 0, range(len(problems)))
    sampling = {"n": ANSWERS, "max_tokens": 128, "temperature": 1.0, "greedy_too": True}
    answers: list[list[list[int]]] = []
    rewards, greedy = np.zeros((len(problems), ANSWERS)), np.zeros(len(problems))
    for first in range(0, len(problems), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        groups = {group[:2]: group.answers for group in sampler.sample(prompts[part], seeds[part], **sampling)}
        for number in range(len(prompts[part])):
            ids = [answer.token_ids for answer in (*groups[number, False], *groups[number, True])]
            texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
            graded = grader(texts, [problems[first + number].answer] * len(texts)).rewards[:, 0]
            rewards[first + number], greedy[first + number] = graded[:-1], graded[-1]
            answers.append(ids[:-1])
    sampler.close()
    grader.close()
    return prompts, answers, rewards, greedy


def measure_checkpoint(model: Path, regime: str) -> dict:
    """Signal, noise and ratio with standard errors by estimator, and the fit of the accuracies."""
    prompts, answers, rewards, greedy = sample(model, regime)
    lengths = np.array([[len(answer) for answer in group] for group in answers])
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    sketch = Sketch(sum(p.numel() for p in policy.parameters()))
    groups = zip(prompts, answers, rewards, strict=True)
    sums = np.array([score_sums(policy, sketch, *group) for group in groups])  # [N, 2, buckets]

    def advantages(questions: np.ndarray, method: Method) -> np.ndarray:
        extra = {"lengths": lengths[questions], "greedy_rewards": greedy[questions, None]}
        return compute_advantages(method, rewards[questions, :, None], **extra).values  # [n, m]

    methods = {algo: Method(algo) for algo in ESTIMATORS}
    methods |= {f"beta {a:g} {b:g}": Method("beta", beta_parameters=(a, b)) for a, b in DENSITIES}
    gradients = {
        name: sample_gradients(partial(advantages, method=method), rewards, sums) for name, method in methods.items()
    }
    estimates = {name: measure(found) for name, found in gradients.items()}  # [1 + blocks, 3]
    fit, batch_fit = (fit_beta(rewards.mean(1), ANSWERS, moments) for moments in ("corrected", "sample"))
    densities = {"reinforce": (1.0, 1.0), "bnpo": (batch_fit.alpha, batch_fit.beta)}
    densities |= {f"beta {a:g} {b:g}": (a, b) for a, b in DENSITIES}
    result = {"questions": len(prompts), "E": fit.mean, "V": fit.variance, "a": fit.a, "b": fit.b, "methods": {}}
    for name, values in estimates.items():
        errors = standard_error(values[1:])
        row = {key: [values[0, k], errors[k]] for k, key in enumerate(("signal", "noise", "ratio"))}
        less = estimates["bnpo"][:, 2] - values[:, 2]
        row["bnpo_less"] = [less[0], standard_error(less[1:])]
        noises = values[:, 1] / estimates["reinforce"][:, 1]
        row["noise_ratio"] = [noises[0], standard_error(noises[1:])]
        row["cosine"] = likeness(gradients[name], gradients["bnpo"])
        row["theorem"] = predicted(*densities[name], fit) if name in densities else None
        result["methods"][name] = row
    return result


def predicted(alpha: float, beta: float, fit: BetaFit) -> float | None:
    """Variance of a method that divides by a density, over REINFORCE's, by Theorem 1; None where it is infinite, and
    for all where the accuracies have no fit."""
    if fit.edge or alpha >= (fit.a + 3) / 2 or beta >= (fit.b + 3) / 2:
        return None
    return float(np.exp(log_variance(alpha, beta, fit.a, fit.b) - log_variance(1, 1, fit.a, fit.b)))


def show(title: str, result: dict) -> None:
    table = Table("estimator", *NOISE_COLUMNS, title=title)
    for name, cells in noise_cells(result).items():
        table.add_row(name, *cells)
    Console(width=110).print(table)


def main(args: Args) -> None:
    found = json.loads(args.output.read_text()) if args.output.exists() else {}
    commit = subprocess.check_output(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, text=True).strip()
    places = [(regime, step) for regime in args.regimes for step in EVALUATED[regime]]
    for regime, step in places:
        if (name := f"{regime}, step {step}") not in found:
            run = args.work_dir / regime
            if step:
                train(regime, run)
            model = run / "checkpoints" / step_name(step) if step else TINY_MODEL
            started = time.perf_counter()
            found[name] = measure_checkpoint(model, regime) | {"commit": commit}
            found[name]["seconds"] = round(time.perf_counter() - started)
            args.output.parent.mkdir(parents=True, exist_ok=True)
            write_json(args.output, found)
        show(name, found[name])


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except InputError as error:
        sys.exit(f"error: {error}")
