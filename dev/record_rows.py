"""Copy the results of finished runs into the repository, without weights.

    # rows of reproduce.py, where its --show and scripts/figures.py find them
    python dev/record_rows.py runs/table1-smollm2 studies/smollm2/table1
    # runs of scripts/compare.py
    python dev/record_rows.py runs/side-reward studies/smollm2/side-reward

Of each run these are results.json, config.json, metrics.jsonl and end.json.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from bnpo.environment import run_program
from bnpo.files import ROOT, InputError


@dataclass
class Args:
    source: tyro.conf.Positional[Path]
    """Folder of the runs."""
    target: tyro.conf.Positional[Path]
    """Folder of the records."""


def main(args: Args) -> None:
    found = sorted(args.source.glob("*/eval/results.json"))
    if not found:
        raise InputError(f"{args.source}: holds no run with eval/results.json")
    for results in found:
        folder = results.parents[1]
        run = folder / "train" if (folder / "train").is_dir() else folder
        target = args.target / folder.name
        target.mkdir(parents=True, exist_ok=True)
        files = [results]
        if (run / "config.json").exists():  # the base model has no run
            files += [run / name for name in ("config.json", "metrics.jsonl", "end.json")]
        for file in files:
            # Without the clone's path
            text = file.read_text(encoding="utf-8").replace(f"{ROOT}/", "")
            (target / file.name).write_text(text, encoding="utf-8")
        print(target)


if __name__ == "__main__":
    run_program(main, Args, description=__doc__)
