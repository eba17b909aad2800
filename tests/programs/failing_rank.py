"""Ranks that fail, rank 0 last: `failing_rank.py STAGE MESSAGE SECONDS`.

MESSAGE is formatted with the rank, and rank 0 comes SECONDS after the others. STAGE is "checks",
before the ranks meet, "own" (the same, but rank 0 passes) or "met".
"""

import os
import sys
import time

from bnpo.environment import setup_environment
from bnpo.errors import error_line, ranks_meet
from bnpo.files import InputError


def main(stage: str, message: str, seconds: str) -> None:
    setup_environment()
    rank = int(os.environ["RANK"])
    late = float(seconds) * (rank == 0)
    with error_line():
        if stage == "met":
            from bnpo.ranks import Ranks

            with Ranks():
                time.sleep(late)
                raise InputError(message.format(rank=rank))
        time.sleep(late)
        if stage == "own" and rank == 0:
            ranks_meet()
            time.sleep(60)  # until the launcher ends it
        raise InputError(message.format(rank=rank))


if __name__ == "__main__":
    main(*sys.argv[1:])
