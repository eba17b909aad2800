"""The model card of a checkpoint: README.md in its folder, as the Hugging Face hub shows it."""

import json
import os
import shlex
import sys
from pathlib import Path

from huggingface_hub import ModelCardData

from bnpo.files import step_name, step_of


def model_card(run: Path, step: int) -> str:
    """Return the card of the checkpoint of `step`: base model, method, data, scores and the command of the run.

    All but the command is read from the run's config.json and from its newest evaluation until `step`.
    """
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    base, sources = config["model"], config["data_sources"]
    on_hub = [name.removeprefix("hub:").partition("#")[0] for name in sources if name.startswith("hub:")]
    metadata = ModelCardData(
        base_model=None if os.path.isdir(base) else base,  # the hub refuses paths here
        datasets=[name.partition("@")[0].partition(":")[0] for name in on_hub] or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "bnpo"],
    )
    lines = [
        f"# {Path(base).name} after {step} steps of reinforcement learning",
        "",
        f"- **Base model**: {base}",
        f"- **Method**: `--algo {config['algo']}`, {config['questions_per_step']} questions x "
        f"{config['samples_per_question']} answers per step, learning rate {config['lr']:g}, rewards "
        f"{', '.join(config['rewards'])}, seed {config['seed']}",
    ]
    for name, facts in sources.items():
        revision = f", revision {facts['revision']}" if facts["revision"] else ""
        lines.append(f"- **Data**: {name}, {facts['problems']} problems, SHA-256 `{facts['sha256']}`{revision}")
    lines += ["", *_score_lines(run, step), "", "The command of the run:", ""]
    arguments = [argument for argument in sys.argv if not argument.startswith("--local_rank")]
    ranks = os.environ.get("WORLD_SIZE", "1")
    lines.append(f"    deepspeed --num_gpus {ranks} {shlex.join(arguments)}")
    return f"---\n{metadata.to_yaml()}\n---\n\n" + "\n".join(lines) + "\n"


def _score_lines(run: Path, step: int) -> list[str]:
    """Return a table of the newest evaluation of the run that is not later than `step`."""
    steps = [step_of(folder) for folder in (run / "evals").glob("step-*")]
    evaluated = max((other for other in steps if other is not None and other <= step), default=None)
    if evaluated is None:
        return ["This model has not been evaluated during its training."]
    results = json.loads((run / "evals" / step_name(evaluated) / "results.json").read_text(encoding="utf-8"))
    lines = [f"Scores after step {evaluated}, pass@1 in percent with standard errors:", ""]
    lines += ["| data set | problems x repetitions | pass@1 |", "| --- | ---: | ---: |"]
    for name, scores in results["results"].items():
        answers = f"{scores['problems']} x {scores['repetitions']}"
        lines.append(f"| {name} | {answers} | {100 * scores['pass1']:.1f} ± {100 * scores['se']:.1f} |")
    return lines
