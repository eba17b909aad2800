"""Two ranks save checkpoints of one model: what they hold in memory, what a full disk leaves.

Launched by tests/test_resume.py with a model's folder and a run's; prints one JSON line from rank
0.
"""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

FILE_BYTES = 2**23


def peak_growth(action) -> int:
    """By how many bytes the memory of this process grows during `action`, at its largest."""

    def status(field: str) -> int:
        return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024

    # So that memory that was freed before does not hide what is taken
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


def main() -> None:
    # From the start on, what is freed goes back at once: holes in the heap would count as held.
    ctypes.CDLL(None).mallopt(-3, 2**20)  # M_MMAP_THRESHOLD (malloc.h)
    import torch.distributed as dist
    from learner_check import fixed_batch
    from transformers import AutoTokenizer

    from bnpo.config import parse_train_config
    from bnpo.files import InputError
    from bnpo.policy.learner import Learner
    from bnpo.ranks import gather
    from bnpo.runs import checkpoint
    from bnpo.runs.checkpoint import Progress
    from bnpo.runs.prepare import PreparedRun, check_shared

    model, run = sys.argv[-2], Path(sys.argv[-1])
    dist.init_process_group("gloo")
    config, _ = parse_train_config(
        ["--preset", "tiny", "--model", model, "--steps", "3"], has_cuda=False
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    learner = Learner(model, len(tokenizer), config)
    # The optimizer has a state from here on
    learner.update(*fixed_batch(), lr=1e-4)

    def save(step: int, file_bytes: int = FILE_BYTES) -> None:
        checkpoint.FILE_BYTES = file_bytes
        checkpoint.save_checkpoint(learner, tokenizer, run, Progress(step), card="", keep=0)

    def error_of(action) -> str:
        try:
            action()
        except InputError as error:
            return str(error)
        return ""

    report = {
        "at_once": gather(peak_growth(lambda: save(1, 2**40))),
        "groups": gather(peak_growth(lambda: save(2))),
    }

    progress = Progress(dist.get_rank())
    prepared = PreparedRun(config, None, None, None, None, None, False, None, progress, {}, None)
    report["disagreeing"] = error_of(prepared.check_agreement)
    check_shared(run)
    own = run / f"rank-{dist.get_rank()}"
    own.mkdir()
    report["not shared"] = error_of(lambda: check_shared(own, patience=1))
    report["probes"] = [path.name for path in run.rglob(".shared*")]

    if dist.get_rank() == 0:  # enough for the weights, not for the optimizer
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 * FILE_BYTES, resource.RLIM_INFINITY))
    report["full"] = error_of(lambda: save(3))
    # Rank 1 still waits to go on with the saving, until the launcher ends it.
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    report["left"] = sorted(path.name for path in (run / "checkpoints").iterdir())
    report["last"] = (run / "last").resolve().name
    print("REPORT " + json.dumps(report), flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
