"""What a run leaves to read: metrics.jsonl, rollouts, Weights & Biases, and the progress bar."""

import json
import math
import os
import secrets
from collections.abc import Iterable
from dataclasses import asdict

from tqdm import tqdm

from bnpo.config import TrainConfig
from bnpo.files import step_name, write_json_lines, writing

BAD_BATCHES = 10


def _start_wandb(config: TrainConfig):
    """A run of W&B with its files in <run>/wandb; a resumed run goes on there as well."""
    import wandb  # a second, which most runs need not spend

    run = config.output_dir
    identity = run / "wandb" / "id"
    identity.parent.mkdir(exist_ok=True)
    if not identity.exists():
        identity.write_text(secrets.token_hex(4))
    settings = {"project": "bnpo", "name": run.name, "dir": run, "config": asdict(config)}
    return wandb.init(**settings, mode=config.wandb, id=identity.read_text(), resume="allow")


class Tracker:
    """Writes one line a step to <run>/metrics.jsonl and moves the progress bar; make one on rank 0 only."""

    def __init__(self, config: TrainConfig, steps: int, done: int):
        self._run = run = config.output_dir
        with writing(run / "metrics.jsonl"):
            self._metrics = (run / "metrics.jsonl").open("a", encoding="utf-8")
        self._bar = tqdm(total=steps, initial=done, desc="step", unit="step")
        # Not W&B's own disabled mode, which leaves two folders of every run in the temporary directory.
        self._wandb = None if config.wandb == "disabled" else _start_wandb(config)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log a training step and move the bar."""
        self.write(step, metrics)
        self._bar.set_postfix(
            reward=f"{metrics['reward/mean']:.3f}", grad_norm=f"{metrics['grad_norm']:.2g}", refresh=False
        )
        self._bar.update()

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Log what belongs to no training step, such as the evaluation before the first (step 0)."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON has no nan
        with writing(self._run / "metrics.jsonl"):
            self._metrics.write(json.dumps({"step": step} | finite) + "\n")
            self._metrics.flush()
            os.fsync(self._metrics.fileno())  # before a checkpoint of this step is
        if self._wandb:
            self._wandb.log(metrics, step=step)

    def save_rollouts(self, step: int, rows: Iterable[dict]) -> None:
        """Keep the answers of a step as JSON lines in <run>/rollouts."""
        write_json_lines(self._run / "rollouts" / f"{step_name(step)}.jsonl", rows)

    def save_bad_batch(self, step: int, rows: Iterable[dict]) -> None:
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
        if self._wandb:
            self._wandb.finish()
