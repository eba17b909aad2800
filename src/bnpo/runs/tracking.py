"""Records of a run: metrics.jsonl, rollouts, Weights & Biases, and the progress shown on the terminal."""

import json
import math
import os
import sys
import time
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from bnpo.config import TrainConfig
from bnpo.files import step_name, write_json_lines, writing
from bnpo.runs.wandb_log import WandbLog

BAD_BATCHES = 10
"""Number of batches of skipped updates that are kept: the last ones."""


class Tracker:
    """Writes metrics.jsonl and shows the progress: a bar on a terminal, otherwise lines. Rank 0 only."""

    def __init__(self, config: TrainConfig, steps: int, done: int):
        self._run = run = config.folder.output_dir
        with writing(run / "metrics.jsonl"):
            self._metrics = (run / "metrics.jsonl").open("a", encoding="utf-8")
        # Not W&B's own disabled mode, which leaves two folders per run in the temporary directory.
        self._wandb = None if config.logging.wandb == "disabled" else WandbLog(config)
        style = {"desc": "step", "bar_format": "{desc} {n}/{total} |{bar}| {remaining} left{postfix}"}
        # nrows: without it tqdm shows nothing on a terminal that reports the size 0.
        self._bar = tqdm(total=steps, initial=done, disable=not sys.stderr.isatty(), nrows=2, **style)
        self._steps, self._done_before, self._started = steps, done, time.perf_counter()

    def log(self, step: int, metrics: dict[str, float], accuracies: np.ndarray) -> None:
        """Record a training step, with the mean reward of each of its questions [n], and show the progress."""
        self.write(step, metrics, accuracies)
        line = f"reward {metrics['reward/mean']:.3f}, gradient norm {metrics['grad_norm']:.2g}, "
        line += f"{metrics['answers/mean_tokens']:.0f} tokens per answer"
        self._bar.set_postfix_str(line, refresh=False)
        self._bar.update()
        if self._bar.disable:
            # Only steps of this start: an earlier start may have run on other hardware.
            seconds_per_step = (time.perf_counter() - self._started) / (step - self._done_before)
            left = tqdm.format_interval(seconds_per_step * (self._steps - step))
            print(f"step {step}/{self._steps}: {line}, {metrics['seconds/total']:.1f} s, {left} left", flush=True)

    def write(self, step: int, metrics: dict[str, float], accuracies: np.ndarray | None = None) -> None:
        """Add a line to metrics.jsonl, for a training step or for the start (0)."""
        # JSON has no nan.
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with writing(self._run / "metrics.jsonl"):
            self._metrics.write(json.dumps({"step": step} | finite) + "\n")
            self._metrics.flush()
            # On disk before the checkpoint of this step is: a resumed run does not repeat the step.
            os.fsync(self._metrics.fileno())
        if self._wandb:
            self._wandb.log(step, metrics, accuracies)

    def save_rows(self, folder: str, step: int, rows: Sequence[dict]) -> None:
        """Write rows of a step as JSON lines into a folder of the run, such as its answers into <run>/rollouts."""
        write_json_lines(self._run / folder / f"{step_name(step)}.jsonl", rows)
        if self._wandb and folder == "rollouts":
            self._wandb.log_table(folder, step, rows)

    def save_bad_batch(self, step: int, rows: Sequence[dict]) -> None:
        """Write the batch of a skipped update into <run>/bad, and delete all but the last BAD_BATCHES batches."""
        self.save_rows("bad", step, rows)
        for old in sorted((self._run / "bad").iterdir())[:-BAD_BATCHES]:
            old.unlink()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line)

    def close(self) -> None:
        """Close the file and the bar, end the W&B run, and say if it was not uploaded completely."""
        self._metrics.close()
        self._bar.close()
        if self._wandb:
            self._wandb.close()
