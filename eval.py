"""Evaluate a model: pass@1 over several sampled runs, with its standard error.

python eval.py --ckpt runs/tiny-bnpo-seed0/last --suite arithmetic
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from bnpo import runtime  # noqa: F401 - sets what the libraries below read when imported


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate a model: pass@1 over several sampled runs, with its standard error."""

    ckpt: str
    """Hugging Face folder (such as <run>/last) or hub name."""
    suite: str = "arithmetic"
    """A file of evals/, without .json: data sets, runs, temperature, lengths."""
    output: Path | None = None
    """File for the results as JSON; by default only the console shows them."""
    seed: int = 0
    """Seeds the sampling of every problem and run."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Arithmetic of the sampler; auto is bfloat16 on GPUs, float32 elsewhere."""


def evaluate(config: EvalConfig) -> dict:
    """Run the suite; returns protocol and results. Raises InputError before the model is loaded."""
    from bnpo.checkpoint import load_tokenizer, model_folder
    from bnpo.evaluation import dataset_problems, encode_prompts, load_suite, pass_at_1, run_dataset

    suite = load_suite(config.suite)
    problems = {name: dataset_problems(dataset) for name, dataset in suite.datasets.items()}
    folder = model_folder(config.ckpt)
    longest = suite.max_prompt_tokens + suite.max_answer_tokens
    tokenizer = load_tokenizer(folder, longest)
    prompts = {name: encode_prompts(problems[name], suite, tokenizer) for name in problems}

    import torch

    from bnpo.rewards import Grader
    from bnpo.sampler import Sampler

    auto = "bfloat16" if torch.cuda.is_available() else "float32"
    sampler = Sampler(
        str(folder),
        tokenizer,
        max_tokens=longest,
        dtype=auto if config.dtype == "auto" else config.dtype,
        seed=config.seed,
        gpu_memory=0.9,
    )
    grader = Grader()
    results = {}
    for name, dataset in suite.datasets.items():
        correct = run_dataset(
            problems[name], prompts[name], dataset.runs, suite, sampler, tokenizer, grader, config.seed
        )
        score, error = pass_at_1(correct)
        results[name] = {"pass1": score, "se": error, "problems": len(correct), "runs": dataset.runs}
        print(
            f"{name}: pass@1 {score:.4f} +- {error:.4f} (standard error over {len(correct)} problems x {dataset.runs} "
            f"runs, temperature {suite.temperature})",
            flush=True,
        )
    if failures := grader.take_failures():
        print(f"grading failures, scored 0: {dict(failures)}")
    grader.close()
    sampler.close()
    return {"ckpt": config.ckpt, "seed": config.seed, "suite": asdict(suite), "results": results}


def main() -> None:
    import tyro

    from bnpo.problems import InputError

    config = tyro.cli(EvalConfig)
    try:
        results = evaluate(config)
    except InputError as error:
        sys.exit(f"error: {error}")
    if config.output:
        config.output.parent.mkdir(parents=True, exist_ok=True)
        config.output.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
