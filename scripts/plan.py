"""Print the memory and the hours that a training run or an evaluation would take on GPUs, and
start nothing. Needs no GPU.

    python scripts/plan.py --gpu H100 --gpus 8 train.py --preset paper-7b
    python scripts/plan.py --gpu H20 eval.py --ckpt Qwen/Qwen2.5-Math-7B --suite paper

The command after the script's own flags is the one that would be started.
"""

import sys
from pathlib import Path

from bnpo.environment import parse_command, setup_environment
from bnpo.errors import error_line
from bnpo.files import InputError

PROGRAMS = ("train.py", "eval.py")


def main() -> None:
    setup_environment()
    with error_line():
        plan(sys.argv[1:])


def plan(argv: list[str]) -> None:
    """Print the plan that `argv` asks for. Raises InputError for what the program would refuse."""
    from planner import Planning

    start = next((i for i, word in enumerate(argv) if Path(word).name in PROGRAMS), len(argv))
    planning = parse_command(Planning, argv[:start], prog="plan.py", description=__doc__)
    if start == len(argv):
        raise InputError("name the program that would be started: plan.py --gpu H100 train.py ...")
    # They import torch
    from planner.dry_run import dry_run_evaluation, dry_run_training
    from planner.hours import data_sheet

    data_sheet(planning.gpu)  # refuses an unknown GPU
    program, flags = Path(argv[start]).name, argv[start + 1 :]
    if program == "train.py":
        from bnpo.config import check_config, parse_train_config

        config, _ = parse_train_config(flags, has_cuda=True)
        check_config(config, planning.gpus or 1)
        dry_run_training(config, planning)
    else:
        from bnpo.evaluation.program import EvalConfig

        dry_run_evaluation(parse_command(EvalConfig, flags, prog="eval.py"), planning)


if __name__ == "__main__":
    main()
