"""Train a language model with BNPO or a method it is compared with.

deepspeed train.py --algo bnpo                  # the paper's settings with GPUs, the tiny model without
deepspeed --num_gpus 2 train.py --algo bnpo     # two ranks (without GPUs too)
deepspeed train.py --help                       # every flag
"""

import os
import sys

from bnpo import runtime  # noqa: F401 - sets what the libraries below read when imported


def main() -> None:
    import torch

    from bnpo.config import parse_train_config
    from bnpo.problems import InputError

    rank = int(os.environ.get("RANK", "0"))
    try:
        # The launcher adds --local_rank to the flags; the environment says the same.
        flags = [flag for flag in sys.argv[1:] if not flag.startswith("--local_rank")]
        config, preset = parse_train_config(flags, torch.cuda.is_available())
        if rank == 0:
            print(preset, flush=True)
        from bnpo.loop import train

        train(config)
    except InputError as error:
        # All ranks of a machine read the same input: one line is enough.
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
