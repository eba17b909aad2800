"""What a run leaves to read: metrics.jsonl, rollouts, Weights & Biases, and what tells how far it is."""

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
from bnpo.runs.board import Board

BAD_BATCHES = 10


class Tracker:
    """Writes one line a step to <run>/metrics.jsonl and tells how far the run is: a bar that moves on a terminal, lines
    elsewhere. Make one on rank 0 only."""

    def __init__(self, config: TrainConfig, steps: int, done: int):
        self._run = run = config.folder.output_dir
        with writing(run / "metrics.jsonl"):
            self._metrics = (run / "metrics.jsonl").open("a", encoding="utf-8")
        # Not W&B's own disabled mode, which leaves two folders of every run in the temporary directory.
        self._board = None if config.logging.wandb == "disabled" else Board(config)
        bar = "{desc} {n}/{total} |{bar}| {remaining} left{postfix}"
        # Of two rows, since tqdm shows nothing on a terminal that does not know its size and says 0.
        self._bar = tqdm(
            total=steps, initial=done, desc="step", disable=not sys.stderr.isatty(), bar_format=bar, nrows=2
        )
        self._steps, self._first, self._started = steps, done, time.perf_counter()

    def log(self, step: int, metrics: dict[str, float], accuracies: np.ndarray) -> None:
        """Log a training step, with the `accuracies` [n] of its questions, and tell of it."""
        self.write(step, metrics, accuracies)
        told = f"reward {metrics['reward/mean']:.3f}, gradient norm {metrics['grad_norm']:.2g}"
        told += f", {metrics['answers/mean_tokens']:.0f} tokens an answer"
        self._bar.set_postfix_str(told, refresh=False)
        self._bar.update()
        if self._bar.disable:
            pace = (time.perf_counter() - self._started) / (step - self._first)
            left = tqdm.format_interval(pace * (self._steps - step))
            print(f"step {step}/{self._steps}: {told}, {metrics['seconds/total']:.1f} s, {left} left", flush=True)

    def write(self, step: int, metrics: dict[str, float], accuracies: np.ndarray | None = None) -> None:
        """Add a line to metrics.jsonl, of a training step or of the start (0)."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no nan
        with writing(self._run / "metrics.jsonl"):
            self._metrics.write(json.dumps({"step": step} | finite) + "\n")
            self._metrics.flush()
            os.fsync(self._metrics.fileno())  # before a checkpoint of this step is
        if self._board:
            self._board.log(step, metrics, accuracies)

    def save_rows(self, folder: str, step: int, rows: Sequence[dict]) -> None:
        """Keep rows of a step as JSON lines in a folder of the run, such as its answers in <run>/rollouts."""
        write_json_lines(self._run / folder / f"{step_name(step)}.jsonl", rows)
        if self._board and folder == "rollouts":
            self._board.show(folder, step, rows)

    def save_bad_batch(self, step: int, rows: Sequence[dict]) -> None:
        """Keep what a skipped update was computed from in <run>/bad, for the last BAD_BATCHES such steps."""
        folder = self._run / "bad"
        write_json_lines(folder / f"{step_name(step)}.jsonl", rows)
        for old in sorted(folder.iterdir())[:-BAD_BATCHES]:
            old.unlink()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line)

    def close(self) -> None:
        self._metrics.close()
        self._bar.close()
        if self._board and (lacking := self._board.close()):
            print(lacking)
