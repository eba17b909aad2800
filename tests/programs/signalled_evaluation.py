"""train.py that gets SIGINT while it evaluates after its first step. Flags as train.py."""

import os
import signal
import sys
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()


def main() -> None:
    from bnpo.config import parse_train_config
    from bnpo.loop import train
    from bnpo.runs import run

    evaluate = run.evaluate_live

    def signalled(*arguments: object) -> dict:
        checkpoint: Path = arguments[-1]
        if checkpoint.name == "step-000001":
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*arguments)

    # A shell lets programs in its background ignore SIGINT, and a run leaves it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run.evaluate_live = signalled
    config, _ = parse_train_config(sys.argv[1:], has_cuda=False)
    train(config)


if __name__ == "__main__":
    main()
