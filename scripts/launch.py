"""Start ranks as `deepspeed` does, with the same flags, and pass SIGTERM, SIGHUP and Ctrl-C on to the ranks only.

    python scripts/launch.py --num_gpus 2 train.py --algo bnpo

The ranks then finish the step, save, and exit with 0. DeepSpeed's launcher exits with an error when it gets a signal
itself, and kills ranks that need more than 30 seconds. Its messages are printed only if something fails.
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
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise each process warns that it found no GPU
    # A new session: the terminal sends Ctrl-C to this process only.
    program = subprocess.Popen([str(launcher), "--quiet", *sys.argv[1:]], start_new_session=True)

    def pass_on(number: int, _frame) -> None:
        starters, ranks = [], []
        with suppress(psutil.NoSuchProcess):  # they have ended
            # The launcher starts one process per machine, which starts the ranks.
            starters = psutil.Process(program.pid).children()
            for starter in starters:
                ranks += starter.children()
        for process in ranks or [*starters, program]:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a terminal that closes sends SIGHUP
        signal.signal(number, pass_on)
    sys.exit(program.wait())


if __name__ == "__main__":
    main()
