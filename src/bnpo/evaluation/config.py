"""Every flag of eval.py, with its default and meaning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bnpo.flags import NotNegative, Planning, Positive, one_of
from bnpo.grading.rewards import GRADERS


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate a model: pass@1 over several sampled runs of every problem, with error bars; every sample is kept."""

    ckpt: str
    """Hugging Face folder, hub name, or a run's folder (<run> or <run>/last: its last checkpoint, <run>/best)."""
    base: str | None = None
    """Another model to evaluate likewise and to compare with, problem by problem."""
    suite: str = "auto"
    """A suite of evals/ (paper, paper-format, quick, quick-format, arithmetic, arithmetic-quick), or the path of one.
    `auto` is what the run's preset trains for, and paper for other models."""
    runs: tuple[str, ...] = ()
    """Other numbers of runs than the suite's: N for all data sets, or NAME=N."""
    limit: int | None = None
    """Only the first so many problems of each data set."""
    output_dir: Path | None = None
    """Folder for samples.jsonl and results.json; by default evals/results/<suite>-<model>-<hash>. An interrupted
    evaluation goes on where it stopped."""
    seed: NotNegative[int] = 0
    """Seeds the sampling of every problem and run."""
    grader: Annotated[str, *one_of(GRADERS)] = "default"
    """How accuracy is judged: our rules, or those of the authors' released code."""
    dtype: Annotated[str, *one_of(("auto", "bfloat16", "float32"))] = "auto"
    """Arithmetic of the sampler; auto is bfloat16 on GPUs, float32 elsewhere."""
    data_parallel: Positive[int | None] = None
    """Samplers side by side; by default as many as the GPUs allow."""
    tensor_parallel: Positive[int] = 1
    """GPUs that share one sampler's model."""
    gpu_memory: float = 0.9
    """Share of GPU memory for a sampler."""
    enforce_eager: bool = False
    """Run without CUDA graphs: slower, but starts at once."""
    planning: tyro.conf.OmitArgPrefixes[Planning] = Planning()
