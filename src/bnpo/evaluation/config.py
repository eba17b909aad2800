"""Every flag of eval.py, with its default and meaning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bnpo.flags import NotNegative, Planning, Positive, one_of
from bnpo.grading.rewards import GRADERS


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate a model: pass@1 over several repetitions of every problem, with error bars. Saves every sample."""

    ckpt: str = ""
    """Model to evaluate: a Hugging Face folder, a LoRA adapter's folder, a hub name, or the folder of a training run
    (<run> or <run>/last for its last checkpoint, <run>/best for its best)."""
    regrade: Path | None = None
    """Grade the samples in this folder of an evaluation again, without a model, and show which verdicts change. Goes
    with --grader only."""
    base: str | None = None
    """Second model, evaluated in the same way and compared with --ckpt problem by problem."""
    suite: str = "auto"
    """Evaluation suite: a name from evals/ (such as paper, school, olympiad, contests-2025, contests-2026) or the path
    of a JSON file. `auto` uses the suite of the preset that trained --ckpt, and paper for other models."""
    runs: tuple[str, ...] = ()
    """Repetitions per problem, in place of the suite's: N for all data sets, or NAME=N for one."""
    limit: int | None = None
    """Evaluate only the first LIMIT problems of each data set."""
    output_dir: Path | None = None
    """Folder for samples.jsonl and results.json, by default evals/results/<suite>-<model>-<hash>. Repeat an interrupted
    command to continue it."""
    seed: NotNegative[int] = 0
    """Seed of the sampling."""
    grader: Annotated[str | None, tyro.conf.arg(metavar=f"{{{','.join(GRADERS)},path/to/file.py:function}}")] = None
    """Rule of the scores: `default` is this project's, `reference` the authors' released code. A function of your own
    is like a reward, and an answer is correct if it returns 1. The default is the suite's rule."""
    dtype: Annotated[str, *one_of(("auto", "bfloat16", "float16", "float32"))] = "auto"
    """Number format of the sampler. `auto` is bfloat16 on GPUs and float32 on CPUs."""
    data_parallel: Positive[int | None] = None
    """Number of samplers that work side by side, by default as many as the GPUs allow."""
    tensor_parallel: Positive[int] = 1
    """Number of GPUs per sampler. Raise it for a model that does not fit on one GPU."""
    gpu_memory: float = 0.9
    """Share of each GPU's memory that a sampler may use."""
    enforce_eager: bool = False
    """Start faster, but sample more slowly: without CUDA graphs."""
    planning: tyro.conf.OmitArgPrefixes[Planning] = Planning()
