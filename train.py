"""Train a language model with BNPO or a method that the paper compares with it.

deepspeed train.py --algo bnpo    # the paper's settings with a GPU, else the tiny model
deepspeed --num_gpus 2 train.py --algo bnpo    # two ranks, without GPUs too
deepspeed train.py --help    # every flag
python train.py --preset paper-7b --dry-run --gpus 4 --gpu H20    # what a run would take
"""

import os
import sys

from bnpo.environment import expects_cuda, setup_environment
from bnpo.errors import error_line


def main() -> None:
    setup_environment()
    with error_line():
        run(sys.argv[1:])


def run(argv: list[str]) -> None:
    """Train, or print the plan of a dry run, as command line `argv` asks. Raises InputError."""
    from bnpo.config import check_config, parse_train_config

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    # The launcher adds --local_rank to the flags. The environment says the same.
    argv = [flag for flag in argv if not flag.startswith("--local_rank")]
    # Wrong flags are refused before torch is imported
    config, preset_line = parse_train_config(argv, expects_cuda())
    check_config(config, config.planning.gpus or ranks)
    if config.planning.dry_run:
        from bnpo.planning import dry_run_training

        return dry_run_training(config) if rank == 0 else None
    from bnpo.ranks import end_on_gpus, has_cuda

    has_cuda(optional=config.preset == "tiny")
    if rank == 0:
        print(preset_line, flush=True)
    # Only now: without a usable GPU, `has_cuda` has hidden it from the libraries
    from bnpo.loop import train
    from runpage.end import page_at_end

    with page_at_end(config.folder.output_dir, rank=rank):
        train(config)
    end_on_gpus()


if __name__ == "__main__":
    main()
