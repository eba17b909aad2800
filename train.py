"""Train a language model with BNPO or a method it is compared with.

deepspeed train.py --algo bnpo                  # the paper's settings with GPUs, the tiny model without
deepspeed --num_gpus 2 train.py --algo bnpo     # two ranks (without GPUs too)
deepspeed train.py --help                       # every flag
python train.py --preset paper-7b --dry-run --gpus 4 --gpu H20    # what a run would take
"""

import os
import sys
import time


def main() -> None:
    from bnpo.config import check_config, parse_train_config
    from bnpo.files import InputError
    from bnpo.flags import split_planning

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        # The launcher adds --local_rank to the flags; the environment says the same.
        flags = [flag for flag in sys.argv[1:] if not flag.startswith("--local_rank")]
        planning, flags = split_planning(flags)
        # Wrong flags are refused before torch is imported, which takes seconds. Parsed as if there were a GPU, so that
        # `tiny` means that it was asked for; help waits for the real preset, whose defaults it shows.
        config, _ = parse_train_config([flag for flag in flags if flag not in ("-h", "--help")], has_cuda=True)
        check_config(config, planning.gpus or ranks)
        from bnpo.devices import has_cuda

        # A dry run for a GPU takes the preset that is the default where there is one.
        config, preset = parse_train_config(flags, bool(planning.gpu) or has_cuda(optional=config.preset == "tiny"))
        if planning.dry_run:
            from bnpo.plan.dry_run import plan_training

            return plan_training(config, planning) if rank == 0 else None
        if rank == 0:
            print(preset, flush=True)
        from bnpo.loop import train

        train(config)
    except InputError as error:
        # All ranks of a machine read the same input: one line is enough, after which the launcher ends the others.
        if os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(10)
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
