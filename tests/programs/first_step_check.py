"""Run the parts of gpu_check.py's first step that have a sampler on the CPU, and print what they
measure as JSON.

    first_step_check.py FOLDER_OF_THE_MODEL

Only the calls that ask CUDA for its memory, or wait for it, are replaced.
"""

import json
import os
import sys

from bnpo.environment import setup_environment

setup_environment()

import torch
import torch.distributed as dist

GIB = 2**30


def main() -> None:
    sys.path.append("scripts")
    import gpu_check_step as step

    torch.cuda.mem_get_info = lambda: (60 * GIB, 80 * GIB)
    torch.cuda.synchronize = lambda: None
    dist.init_process_group("gloo")
    folder, rows = sys.argv[1], {}
    learner, config = step.open_learner(folder, "--preset", "paper-1.5b")
    sampler = step.start_sampler(folder, learner.model.config.vocab_size, rows)
    step.measure_gap(learner, sampler, config.sampling.temperature, "fresh", rows)
    step.measure_sync_speed(learner, sampler, "sync", rows)
    print("REPORT " + json.dumps(rows), flush=True)
    # A normal exit can end in SIGABRT, because the threads of so many engines end in any order
    os._exit(0)


if __name__ == "__main__":
    main()
