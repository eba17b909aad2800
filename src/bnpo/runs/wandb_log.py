"""Weights & Biases: metrics and answers of a run, logged without letting the server stop or slow the run."""

import os
import secrets
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from bnpo.config import TrainConfig, flat_settings
from bnpo.files import line_of

INIT_SECONDS = 5.0
"""Time that the server has to answer at the start. After it the run is recorded offline."""
FINISH_SECONDS = 15.0
"""Time for uploading the rest at the end."""
TABLE_ROWS = 128
"""Number of answers of a step in a table: the first ones."""


class WandbLog:
    """A W&B run, with all data in <run>/wandb. It is continued when the training run is resumed.

    wandb uploads in a process of its own. If the server does not answer, `wandb.init` waits 90 s and raises an error,
    and `finish` waits without a limit. This class records offline after INIT_SECONDS and ends after FINISH_SECONDS.
    """

    def __init__(self, config: TrainConfig):
        os.environ.setdefault("WANDB_SILENT", "true")  # read by the import
        import wandb  # takes a second, and most runs do not use it

        self._wandb, folder = wandb, config.folder.output_dir
        id_file = folder / "wandb" / "id"
        id_file.parent.mkdir(exist_ok=True)
        if not id_file.exists():
            id_file.write_text(secrets.token_hex(4))
        settings = {"project": "bnpo", "name": folder.name, "id": id_file.read_text(), "dir": folder}
        settings["config"] = flat_settings(config)
        limits = {"init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS, "finish_timeout_raises": True}
        settings["settings"] = wandb.Settings(silent=True, console="off", **limits)
        self._not_uploaded = False
        try:
            # resume: without it the server would replace the run of the same id by a new one.
            resume = "allow" if config.logging.wandb == "online" else None
            self._run = wandb.init(mode=config.logging.wandb, resume=resume, **settings)
        except Exception as error:  # of many kinds; none is a reason to end the run
            reason = line_of(error)
            print(f"W&B cannot be reached ({reason}). The run is recorded offline", flush=True)
            self._not_uploaded = True
            wandb.teardown()  # or the id of the failed attempt would still be in use
            self._run = wandb.init(mode="offline", **settings)
        self._folder = Path(self._run.dir).parent

    def log(self, step: int, metrics: dict[str, float], accuracies: np.ndarray | None) -> None:
        """Log the metrics of a step and the mean rewards of its questions [n]. Scores become the run's summary, too."""
        histogram = {} if accuracies is None else {"groups/accuracy": self._wandb.Histogram(accuracies)}
        self._run.log(metrics | histogram, step=step)
        self._run.summary.update({name: value for name, value in metrics.items() if name.startswith("eval/")})

    def log_table(self, name: str, step: int, rows: Sequence[dict]) -> None:
        """Log the first TABLE_ROWS answers of a step as a table."""
        if rows:
            # Each reward gets a column of its own.
            flat_rows = [row | row["rewards"] for row in rows[:TABLE_ROWS]]
            columns = [key for key in dict.fromkeys(chain.from_iterable(flat_rows)) if key != "rewards"]
            table = self._wandb.Table(columns=columns, data=[[row.get(key) for key in columns] for row in flat_rows])
            self._run.log({name: table}, step=step)

    def close(self) -> None:
        """End the W&B run, and say if it was not uploaded completely."""
        try:
            self._run.finish()
        except Exception:  # whatever fails in W&B, the run is done and its data are in the folder
            self._not_uploaded = True
        if self._not_uploaded:
            print(f"W&B did not get everything. To upload the run: wandb beta sync {self._folder}")
