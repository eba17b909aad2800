"""Three ranks on a lifeline, of which some fail: the others wait, one of them in no collective, and ignore SIGTERM.

Launched by tests/test_faults.py, one process a rank, with what happens and the run's name as the arguments.
"""

import os
import signal
import sys
import time

from bnpo.environment import setup_environment

setup_environment()

import torch.distributed as dist

from bnpo.files import InputError
from bnpo.ranks import Ranks


def main(fault: str, run: str) -> None:
    with Ranks(run):
        rank = dist.get_rank()
        if fault == "none":
            return
        if fault == "all raise":
            raise ValueError("a fault of all ranks")
        if fault == "input":
            raise InputError("a fault of the input")
        if rank == 0:  # fails when rank 2 ends
            dist.barrier()
        if rank == 1:  # would wait for ever
            time.sleep(600)
        if fault == "rank 2 killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("a fault of rank 2")


if __name__ == "__main__":
    main(*sys.argv[1:])
