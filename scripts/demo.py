"""Run the demo.

    # a tiny model; `make demo` installs everything first
    python scripts/demo.py
    # SmolLM2-135M-Instruct on word problems: `make demo MODEL=smollm2`
    python scripts/demo.py --model smollm2

It evaluates a model, trains it with BNPO, evaluates it again, and writes a page.
"""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bnpo.environment import run_program, setup_environment

setup_environment()

import torch
from rich.console import Console
from rich.table import Table

from bnpo.config import PRESETS, preset_config
from bnpo.files import ROOT, InputError, whole_json_lines
from runpage.page import write_page


@dataclass(frozen=True)
class Demo:
    """What the demo of one model does. The model's name is also that of the preset."""

    suite: str
    """Suite of the evaluations before and after the training, with one data set of the same
    name."""
    dtype: str
    steps: int
    ranks: int


OF_A_DEMO = {"base", "run", "final", "summary.json", "report.html"}
DEMOS = {
    "tiny": Demo("arithmetic", "auto", steps=60, ranks=min(2, torch.cuda.device_count() or 2)),
    # The run itself evaluates greedy answers to the same problems. Two ranks are not faster and
    # need twice the memory.
    "smollm2": Demo(
        "word-problems",
        preset_config("smollm2", torch.cuda.is_available()).hardware.dtype,
        steps=15,
        ranks=1,
    ),
}


@dataclass
class Args:
    model: Literal["tiny", "smollm2"] = "tiny"
    """Model to train: the tiny one, or SmolLM2-135M-Instruct, which scripts/get_model.py fetches
    if it is missing."""
    output_dir: Path | None = None
    """Folder for the run, the evaluations, summary.json and report.html. An earlier demo in it is
    replaced. The default is runs/demo, or runs/demo-smollm2."""
    steps: int | None = None
    """Training steps. The default is 60, or 15 for smollm2."""
    ranks: int | None = None
    """Training processes. The default is two, or one for smollm2 and on a machine with one GPU."""


def run(*command: str) -> None:
    print("+", *command, flush=True)
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:  # the program has said why
        sys.exit(status)


def pass1(model: Path, demo: Demo, folder: Path) -> tuple[float, float]:
    """Evaluate `model` on the suite of the demo. Return pass@1 and its standard error."""
    flags = ("--suite", demo.suite, "--dtype", demo.dtype, "--output-dir", str(folder))
    run(sys.executable, "eval.py", "--ckpt", str(model), *flags)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    result = results["results"][demo.suite]
    return result["pass1"], result["se"]


def curve(metrics: list[dict], width: int = 50) -> str:
    """Return the mean reward of every training step as a bar of text, one line per step."""
    lines = []
    for line in metrics:
        if "reward/mean" in line:
            reward = line["reward/mean"]
            lines.append(f"step {line['step']:>3}  {reward:.2f} {'█' * round(width * reward)}")
    return "\n".join(lines)


def main(args: Args) -> None:
    demo = DEMOS[args.model]
    steps, ranks = args.steps or demo.steps, args.ranks or demo.ranks
    name = "demo" if args.model == "tiny" else f"demo-{args.model}"
    folder = (args.output_dir or ROOT / "runs" / name).resolve()  # train.py and eval.py run in ROOT
    earlier = move_aside(folder)
    run_dir = folder / "run"
    if args.model == "smollm2":
        run(sys.executable, "scripts/get_model.py", "smollm2")
    base_model = Path(PRESETS[args.model].data.model)
    base, base_se = pass1(base_model, demo, folder / "base")
    started = time.perf_counter()
    run(
        *(
            sys.executable,
            "scripts/launch.py",
            "--num_gpus",
            str(ranks),
            "train.py",
            "--algo",
            "bnpo",
        ),
        *("--preset", args.model, "--rollouts-every", "5"),
        *("--steps", str(steps), "--output-dir", str(run_dir)),
    )
    seconds = time.perf_counter() - started
    final, final_se = pass1(run_dir / "last", demo, folder / "final")

    metrics = whole_json_lines(run_dir / "metrics.jsonl")
    summary = {"base_pass1": base, "base_se": base_se, "final_pass1": final, "final_se": final_se}
    summary |= {"steps": steps, "train_seconds": seconds}
    if args.model == "smollm2":
        summary |= {
            "base_greedy": metrics[0]["eval/average"],
            "final_greedy": metrics[-1]["eval/average"],
        }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(f"mean reward of the training steps:\n{curve(metrics)}")
    Console().print(results_table(args.model, summary, ranks))
    page = folder / "report.html"
    write_page(page, [run_dir, folder / "base", folder / "final"])
    shutil.rmtree(earlier, ignore_errors=True)
    print(f"open in a browser to see the run, its answers and the evaluations: {page.as_uri()}")


def move_aside(folder: Path) -> Path:
    """Return FOLDER.old, to which a finished demo in `folder` is moved until the new one is done.
    An unfinished one is deleted. Raises InputError for a folder of something else.
    """
    earlier = folder.with_name(f"{folder.name}.old")
    for path in (folder, earlier):
        is_new = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        if not is_new and not (path / "base" / "protocol.json").exists():
            raise InputError(f"{path}: holds no demo; move it away, or choose another --output-dir")
        found = {child.name for child in path.iterdir()} if path.exists() else set()
        if others := sorted(name for name in found - OF_A_DEMO if not name.startswith(".")):
            raise InputError(
                f"{path}: holds {others[0]} beside a demo; move it away, or choose another "
                "--output-dir"
            )
    if (folder / "summary.json").exists():
        shutil.rmtree(earlier, ignore_errors=True)
        folder.rename(earlier)
    shutil.rmtree(folder, ignore_errors=True)
    return earlier


def results_table(model: str, summary: dict, ranks: int) -> Table:
    """Return the accuracies before and after the training."""
    title = (
        f"BNPO on {model}: {summary['steps']} steps on {ranks} ranks in "
        f"{summary['train_seconds']:.0f} s"
    )
    table = Table("model", "pass@1 on held-out questions", "standard error", title=title)
    table.add_row("base", f"{summary['base_pass1']:.3f}", f"{summary['base_se']:.3f}")
    table.add_row("trained", f"{summary['final_pass1']:.3f}", f"{summary['final_se']:.3f}")
    table.add_row("gain", f"{summary['final_pass1'] - summary['base_pass1']:+.3f}")
    if "base_greedy" in summary:
        table.add_row("base, greedy", f"{summary['base_greedy']:.3f}")
        table.add_row("trained, greedy", f"{summary['final_greedy']:.3f}")
    return table


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
