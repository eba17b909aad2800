"""`deepspeed`, with SIGTERM and Ctrl-C for the ranks alone: they finish the step, save, and all of it exits with 0.

    python scripts/launch.py --num_gpus 2 train.py --algo bnpo      # all flags of deepspeed

DeepSpeed's launcher ends with an error when it is signalled itself, and kills ranks that take longer than 30 seconds.
"""

import signal
import subprocess
import sys
from pathlib import Path

import psutil


def main() -> None:
    launcher = Path(sys.executable).with_name("deepspeed")
    # In a session of its own, where no Ctrl-C reaches it.
    program = subprocess.Popen([str(launcher), *sys.argv[1:]], start_new_session=True)

    def pass_on(number: int, _frame) -> None:
        starters = psutil.Process(program.pid).children()
        ranks = [rank for starter in starters for rank in starter.children()]
        for process in ranks or [*starters, program]:
            process.send_signal(number)

    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGTERM, pass_on)
    sys.exit(program.wait())


if __name__ == "__main__":
    main()
