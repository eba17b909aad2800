"""Records of a run: metrics.jsonl, Weights & Biases, and the progress shown on the terminal."""

import json
import math
import os
import secrets
import shlex
import time
from datetime import timedelta
from pathlib import Path

from bnpo.config import TrainConfig, flat_settings
from bnpo.files import InputError, flush, line_of, writing

WANDB_MODES = ("disabled", "offline", "online")  # from the one that sends least
FINISH_SECONDS = 15.0  # for uploading the rest to W&B at the end


class Tracker:
    """Writes metrics.jsonl and prints a line per step. Rank 0 only."""

    def __init__(self, config: TrainConfig, steps: int, done: int):
        self._run = config.folder.output_dir
        flag = config.logging.wandb
        variable = os.environ.get("WANDB_MODE")
        mode = wandb_mode(flag, variable)
        if flag != "disabled" and variable not in (None, "", flag):
            print(f"W&B: {mode}, since --wandb is {flag} and WANDB_MODE is {variable}", flush=True)
        # Not W&B's own disabled mode, which leaves two folders per run in the temporary directory.
        self._wandb = None if mode == "disabled" else WandbLog(config, mode)
        self._reward_names = config.data.reward_names
        self._steps, self._done_before, self._started = steps, done, time.perf_counter()

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Add a line to metrics.jsonl, for a training step or for the start (0)."""
        # JSON has no nan.
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        path = self._run / "metrics.jsonl"
        with writing(path):
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step} | finite) + "\n")
            # Before the checkpoint of this step is on disk: a resumed run does not repeat the step
            flush(path)
        if step == 0:  # the evaluation of the starting model is no part of the first step
            self._started = time.perf_counter()
        if self._wandb:
            self._wandb.log(step, metrics)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Write the metrics of a training step, and print a line."""
        self.write(step, metrics)
        # Only steps of this start: an earlier start may have run on other hardware.
        seconds_per_step = (time.perf_counter() - self._started) / (step - self._done_before)
        left = timedelta(seconds=round(seconds_per_step * (self._steps - step)))
        rewards = [f"{name} {metrics[f'reward/{name}']:.3f}" for name in self._reward_names]
        if failed := metrics.get("answers/left_out"):
            rewards.append(f"{failed:.1%} of the answers left out")
        print(
            f"step {step}/{self._steps}: reward {metrics['reward/mean']:.3f} "
            f"({', '.join(rewards)}), {metrics['answers/mean_tokens']:.0f} tokens per answer, "
            f"gradient norm {metrics['grad_norm']:.2g}, {metrics['seconds/total']:.1f} s, "
            f"{left} left",
            flush=True,
        )

    def close(self) -> None:
        if self._wandb:
            self._wandb.close()


def wandb_mode(flag: str, variable: str | None) -> str:
    """Return the mode of W&B: that of --wandb or of WANDB_MODE, whichever sends less."""
    asked = {"dryrun": "offline", "run": "online"}.get(variable or "", variable)  # W&B's old names
    return min(flag, asked, key=WANDB_MODES.index) if asked in WANDB_MODES else flag


class WandbLog:
    """A W&B run, with all data in <run>/wandb, which continues when the training run is resumed.

    W&B's own variables are respected. A failing start raises InputError; later errors are printed.
    """

    def __init__(self, config: TrainConfig, mode: str):
        folder = config.folder.output_dir
        environment = os.environ
        id_file = folder / "wandb" / "id"
        if not id_file.exists():
            with writing(id_file):
                id_file.parent.mkdir(exist_ok=True)
                id_file.write_text(secrets.token_hex(4))
        environment.setdefault("WANDB_SILENT", "true")  # read by the import
        import wandb  # takes a second, and most runs do not use it

        self._failed = False
        try:
            self._run = wandb.init(
                mode=mode,
                project=environment.get("WANDB_PROJECT", "bnpo"),
                name=environment.get("WANDB_NAME", folder.name),
                id=environment.get("WANDB_RUN_ID", id_file.read_text()),
                dir=environment.get("WANDB_DIR", folder),
                config=flat_settings(config),
                # Without it the server would replace the run of the same id by a new one.
                resume="allow" if mode == "online" else None,
                settings=wandb.Settings(
                    console="off", finish_timeout=FINISH_SECONDS, finish_timeout_raises=True
                ),
            )
        except Exception as error:  # of many kinds
            raise InputError(
                f"--wandb: W&B cannot start ({line_of(error)}); record it offline with "
                "WANDB_MODE=offline, and upload it later with `wandb sync`"
            ) from error
        # W&B's own steps only grow: it would drop the rows of a run that was resumed from an
        # earlier step.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Log the metrics of a step. The first time that W&B fails, print a line."""
        try:
            self._run.log({"step": step} | metrics)
        except Exception as error:  # none is a reason to end the run
            if not self._failed:
                self._failed = True
                print(
                    f"W&B lacks data of this run ({line_of(error)}). The run continues", flush=True
                )

    def close(self) -> None:
        """End the W&B run, and say if it was not uploaded completely."""
        folder = Path(self._run.dir).parent
        try:
            self._run.finish()
        except Exception:  # the run is done, and its data are in the folder
            command = shlex.join(["wandb", "sync", str(folder)])
            print(f"W&B did not get everything. To upload the run: {command}")
