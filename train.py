"""Train a language model with BNPO or another policy-gradient method.

deepspeed train.py --algo bnpo    # the paper's settings with a GPU, else the tiny model
deepspeed --num_gpus 2 train.py --algo bnpo    # two ranks, without GPUs too
torchrun --nproc_per_node 2 train.py --algo bnpo    # the same
python train.py --algo bnpo    # one rank, without a launcher
python train.py --help    # the usual flags; --help-all shows all
python train.py --preset paper-7b --dry-run    # check settings and data, start nothing
python train.py --preset paper-7b --print-config    # print all settings, start nothing
"""

import json
import os
import sys

from bnpo.environment import become_only_rank, expects_cuda, is_rank, setup_environment
from bnpo.errors import end_on_gpus, error_line


def main() -> None:
    setup_environment()
    if not is_rank():
        become_only_rank()
    with error_line():
        run(sys.argv[1:])


def run(argv: list[str]) -> None:
    """Train, or print what a dry run finds, as command line `argv` asks. Raises InputError."""
    from bnpo.config import check_config, flat_settings, parse_train_config
    from bnpo.runs.folder import check_output_dir

    # DeepSpeed's launcher adds --local_rank to the flags. The environment says the same.
    argv = [flag for flag in argv if not flag.startswith("--local_rank")]
    # Wrong flags are refused before torch is imported
    config, preset_line = parse_train_config(argv, expects_cuda())
    if config.print_config:
        if is_rank_0():
            print(json.dumps(flat_settings(config), indent=2))
        return
    if is_rank_0():
        print(preset_line, flush=True)
    if config.dry_run:
        from planner.dry_run import dry_run_training

        if is_rank_0():
            dry_run_training(config)
        return
    check_config(config, int(os.environ["WORLD_SIZE"]))
    if not config.folder.resume:
        check_output_dir(config)  # also later, with the lock, but here before torch is imported
    from bnpo.ranks import check_cuda, hide_cuda

    if config.preset == "tiny":
        hide_cuda()
    check_cuda()
    # Only now: `hide_cuda` has hidden GPUs from the libraries that this imports
    from bnpo.loop import train
    from runpage.end import page_at_end

    with page_at_end(config.folder.output_dir, rank=int(os.environ["RANK"])):
        train(config)
    end_on_gpus()


def is_rank_0() -> bool:
    return os.environ["RANK"] == "0"


if __name__ == "__main__":
    main()
