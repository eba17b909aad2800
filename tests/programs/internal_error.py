"""train.py with a learner that raises where the start is checked: a fault of ours, not of the
model. Flags as train.py.
"""

import runpy

from bnpo.environment import setup_environment

setup_environment()

from bnpo.policy.learner import Learner


def score(self, *_: object) -> None:
    raise KeyError("a fault of ours")


if __name__ == "__main__":
    Learner.score = score
    runpy.run_path("train.py", run_name="__main__")
