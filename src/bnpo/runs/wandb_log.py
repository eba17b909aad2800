"""Weights & Biases: all that it shows is written to <run>/wandb, as an offline run; a process of its own uploads it.

So a server that cannot be reached, or is slow, costs the run nothing, and what it did not get is there to be synced.
"""

import multiprocessing
import os
import runpy
import secrets
import signal
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from bnpo.config import TrainConfig
from bnpo.flags import flat_settings
from bnpo.grading.workers import signal_at_program_end

LAST_UPLOAD = 15.0
"""Seconds after the end of a run for what is not uploaded yet."""
TABLE_ROWS = 128
"""Answers of a step in a table: the first so many."""


class Board:
    """A run of W&B; a resumed run goes on in it."""

    def __init__(self, config: TrainConfig):
        os.environ.setdefault("WANDB_SILENT", "true")  # read by the import
        import wandb  # a second, which most runs need not spend

        self._module, run = wandb, config.folder.output_dir
        identity = run / "wandb" / "id"
        identity.parent.mkdir(exist_ok=True)
        if not identity.exists():
            identity.write_text(secrets.token_hex(4))
        settings = {"project": "bnpo", "name": run.name, "id": identity.read_text(), "config": flat_settings(config)}
        quiet = wandb.Settings(silent=True, console="off")
        self._run = wandb.init(**settings, dir=run, mode="offline", settings=quiet)
        self._folder, self._log, self._upload = Path(self._run.dir).parent, run / "wandb" / "upload.log", None
        if config.logging.wandb == "online":
            process = multiprocessing.get_context("spawn").Process
            self._upload = process(target=_upload, args=(self._folder, self._log), daemon=True)
            self._upload.start()

    def log(self, step: int, metrics: dict[str, float], accuracies: np.ndarray | None) -> None:
        """Metrics of a step, which become the summary as well, and the histogram of its questions' accuracies [n]."""
        histogram = {} if accuracies is None else {"groups/accuracy": self._module.Histogram(accuracies)}
        self._run.log(metrics | histogram, step=step)
        self._run.summary.update({name: value for name, value in metrics.items() if name.startswith("eval/")})

    def show(self, name: str, step: int, rows: Sequence[dict]) -> None:
        """A table of answers."""
        if rows:
            lines = [row | row["rewards"] for row in rows[:TABLE_ROWS]]
            columns = [key for key in dict.fromkeys(chain.from_iterable(lines)) if key != "rewards"]
            table = self._module.Table(columns=columns, data=[[line.get(key) for key in columns] for line in lines])
            self._run.log({name: table}, step=step)

    def close(self) -> str | None:
        """End it; what is to be said if not all was uploaded."""
        self._run.finish()
        if self._upload is None:
            return None
        self._upload.join(LAST_UPLOAD)
        if self._upload.exitcode == 0:
            return None
        self._upload.kill()
        return f"W&B did not get everything (see {self._log}); to send it: wandb beta sync {self._folder}"


def _upload(folder: Path, log: Path) -> None:
    """The program `wandb` in a process of its own, which ends when ours does, however that is."""
    signal_at_program_end(signal.SIGKILL)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["WANDB_DIR"] = str(log.parents[1])  # for a log of its own, which otherwise the temporary directory gets
    sys.argv = ["wandb", "beta", "sync", "--live", str(folder)]
    runpy.run_module("wandb", run_name="__main__")
