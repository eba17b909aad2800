"""eval.py --regrade FOLDER --grader last_number, killed before it renames or deletes its file
number N in the folder (from 0): killed_regrade.py FOLDER N
"""

import os
import signal
import sys
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()


def main() -> None:
    from bnpo.evaluation.program import EvalConfig, run

    folder, left = Path(sys.argv[1]), [int(sys.argv[2])]

    def count(event: str, arguments: tuple) -> None:
        if event in ("os.rename", "os.remove") and Path(arguments[0]).parent == folder:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    run(EvalConfig(regrade=folder, grader="last_number"))


if __name__ == "__main__":
    main()
