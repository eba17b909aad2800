r"""Make the regimes of the study: questions of the built-in task, by how often the tiny model answers them right.

    python scripts/study/make_study_data.py        # about 10 minutes on 2 cores; seed 0 gives the committed files

Every question of a pool is answered 32 times at temperature 1. A regime takes the first questions whose share of right
answers lies in its range, for each split: those for training, for choosing learning rates (validation), and for what is
reported (test). The splits cannot overlap (`bnpo.data`). Written to data/study: the questions, with their shares,
and the suites that evaluate them. docs/study/plan.md says what the regimes are for.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

# Started as a file, this folder is first on the path, where `statistics` would hide the module of the standard library.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import tyro
from tqdm import tqdm

from bnpo.config import TINY_MODEL
from bnpo.data import Problem, arithmetic_problems, encode_prompt, sampling_seeds
from bnpo.files import ROOT, write_json_lines
from bnpo.grading.grader import Grader
from bnpo.policy.engine_settings import EngineSettings
from bnpo.policy.folder import load_tokenizer
from bnpo.policy.sampler import Sampler

POOLS = {"train": 1700, "validation": 500, "test": 1900}
"""Questions of every split that are tried."""
TAKEN = {"train": 480, "validation": 125, "test": 500}
"""Questions of every split that a regime takes."""
AT_ONCE = 100
"""Questions that vLLM gets at a time: with a hundred thousand answers in its queue it slows down tenfold."""
REGIMES = {"spread": (0.0, 1.0), "concentrated": (0.25, 0.75), "rare": (0.0, 0.2)}
"""Lowest and highest share of right answers."""
SUITES = {regime: (regime, "chat") for regime in REGIMES} | {"tags": ("spread", "think")}
"""Suite -> the regime whose questions it evaluates, and the template."""


@dataclass
class Args:
    output_dir: Path = ROOT / "data" / "study"
    """Folder to write."""
    answers: int = 32
    """Answers to every question."""
    seed: int = 0
    """Seeds the answers."""


def shares_right(sampler: Sampler, tokenizer, grader: Grader, problems: list[Problem], args: Args) -> np.ndarray:
    """The share of right answers to each of `problems` [n]."""
    prompts = [encode_prompt(tokenizer, problem.problem) for problem in problems]
    seeds = sampling_seeds(args.seed, 0, range(len(problems)))
    shares = np.zeros(len(problems))
    for first in tqdm(range(0, len(problems), AT_ONCE), mininterval=10):
        part = slice(first, first + AT_ONCE)
        groups = sampler.sample(prompts[part], seeds[part], n=args.answers, max_tokens=128, temperature=1.0)
        for number, _, answers in groups:
            texts = tokenizer.batch_decode([answer.token_ids for answer in answers], skip_special_tokens=True)
            shares[first + number] = grader(texts, [problems[first + number].answer] * len(texts)).rewards.mean()
    return shares


def main(args: Args) -> None:
    tokenizer = load_tokenizer(TINY_MODEL, 192)
    sampler = Sampler(str(TINY_MODEL), tokenizer, EngineSettings(max_tokens=192, dtype="float32"))
    grader = Grader()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for split, tried in POOLS.items():
        problems = arithmetic_problems(split, tried)
        shares = shares_right(sampler, tokenizer, grader, problems, args)
        for regime, (low, high) in REGIMES.items():
            chosen = np.flatnonzero((shares >= low) & (shares <= high))[: TAKEN[split]]
            assert len(chosen) == TAKEN[split], f"{regime}, {split}: only {len(chosen)} of {tried} lie in its range"
            rows = [vars(problems[i]) | {"accuracy": round(float(shares[i]), 4)} for i in chosen]
            write_json_lines(args.output_dir / f"{regime}-{split}.jsonl", rows)
            taken = shares[chosen]
            print(f"{regime}, {split}: mean {taken.mean():.3f}, variance {taken.var(ddof=1):.4f}", flush=True)
    for name, (regime, template) in SUITES.items():
        for split in ("validation", "test"):
            data = {"data": f"data/study/{regime}-{split}.jsonl", "repetitions": 4}
            suite = {"datasets": {name: data}, "temperature": 0.6, "top_p": 1.0, "template": template}
            suite |= {"max_prompt_tokens": 64, "max_answer_tokens": 128}
            (args.output_dir / f"{name}-{split}.json").write_text(json.dumps(suite, indent=2) + "\n")
    grader.close()
    sampler.close()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
