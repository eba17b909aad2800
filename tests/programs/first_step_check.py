"""Take the measurements of scripts/gpu_check_step.py on a CPU, with the model in a folder, and print their rows.

    python tests/programs/first_step_check.py FOLDER

What torch says of a GPU is made up here.
"""

import sys
from pathlib import Path
from unittest.mock import patch

from bnpo.environment import setup_environment

setup_environment()
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import torch.distributed as dist

from bnpo.planning.memory import read_shape
from gpu_check_parts import open_learner
from gpu_check_step import measure_gap, measure_sampling, measure_sync_speed, measure_update, measured, start_sampler


def main() -> None:
    dist.init_process_group("gloo")
    rows = {}
    with (
        patch("torch.cuda.mem_get_info", lambda: (60 << 30, 80 << 30)),
        patch("torch.cuda.synchronize", lambda: None),
        patch("torch.cuda.reset_peak_memory_stats", lambda: None),
    ):
        folder = sys.argv[1]
        shape = read_shape(Path(folder))
        learner, config = open_learner(folder, "--preset", "tiny", "--dtype", "bfloat16")
        limits = measure_update(learner, shape, config, rows)
        sampler = measured(start_sampler, "all", rows)(folder, learner.model.config.vocab_size, rows)
        measure_gap(learner, sampler, "fresh", rows)
        measure_sync_speed(learner, sampler, "sync", rows)
        measure_sampling(sampler, learner.model.config.vocab_size, rows)
        measure_gap(learner, sampler, "awake", rows)
    sampler.close()
    print("LIMITS", *limits, "ROWS", *(f"{name}={value}" for name, value in rows.items()))


if __name__ == "__main__":
    main()
