"""Three ranks, of which the last one fails while the others wait in a collective. They say how that
ends.

Launched by tests/test_faults.py, one process a rank, with what happens as the argument.
"""

import os
import signal
import sys

from bnpo.environment import setup_environment

setup_environment()

import torch.distributed as dist

from bnpo.ranks import Ranks


def main(fault: str) -> None:
    with Ranks() as ranks:
        ranks.on_failure = lambda line: print(f"failed: {line}", flush=True)
        dist.barrier()  # on a busy machine, others may still be connecting
        if dist.get_rank() < 2:
            dist.barrier()
        if fault == "rank 2 killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("a fault of rank 2")


if __name__ == "__main__":
    main(*sys.argv[1:])
