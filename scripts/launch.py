"""`deepspeed`, quiet unless something fails, with SIGTERM and Ctrl-C for the ranks alone: they finish the step, save,
and all of it exits with 0.

    python scripts/launch.py --num_gpus 2 train.py --algo bnpo      # all flags of deepspeed

DeepSpeed's launcher ends with an error when it is signalled itself, and kills ranks that take longer than 30 seconds.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil


def main() -> None:
    launcher = Path(sys.executable).with_name("deepspeed")
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # each of its processes would warn that it found no GPU
    # In a session of its own, where no Ctrl-C reaches it.
    program = subprocess.Popen([str(launcher), "--quiet", *sys.argv[1:]], start_new_session=True)

    def pass_on(number: int, _frame) -> None:
        starters, ranks = [], []
        with suppress(psutil.NoSuchProcess):  # all is over
            starters = psutil.Process(program.pid).children()
            ranks = [rank for starter in starters for rank in starter.children()]
        for process in ranks or [*starters, program]:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last when a terminal closes
        signal.signal(number, pass_on)
    sys.exit(program.wait())


if __name__ == "__main__":
    main()
