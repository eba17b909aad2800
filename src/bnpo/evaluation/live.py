"""Evaluation during training, with the sampler that training uses."""

from itertools import chain
from pathlib import Path

import torch.distributed as dist

from bnpo.config import TrainConfig
from bnpo.evaluation.protocol import Evaluation, sample_records
from bnpo.evaluation.scores import scores
from bnpo.evaluation.suites import Request
from bnpo.files import write_json, write_json_lines, writing
from bnpo.grading.grader import Grader
from bnpo.policy.sampler import Sampler
from bnpo.ranks import gather


def evaluate_live(
    evaluation: Evaluation, sampler: Sampler, grader: Grader, config: TrainConfig, checkpoint: Path
) -> dict:
    """Evaluate the policy that `sampler` holds on all ranks, each its share of the answers; returns the results.

    `checkpoint` is where this policy is saved, if it is. Rank 0 leaves samples.jsonl and results.json in a folder of
    the same name in the run's evals/, as `python eval.py` does. A collective.
    """
    mine = evaluation.requests()[dist.get_rank() :: dist.get_world_size()]
    parts = gather(list(sample_records(evaluation, mine, sampler.sample, grader)))
    records = {Request.of(record): record for record in chain.from_iterable(parts)}
    protocol = evaluation.protocol(str(checkpoint), checkpoint, None, config.hardware.dtype, config.data.grader)
    results = {"protocol": protocol, **scores(evaluation, records)}
    if dist.get_rank() == 0:
        folder = config.folder.output_dir / "evals" / checkpoint.name
        write_json_lines(folder / "samples.jsonl", [records[request] for request in evaluation.requests()])
        with writing(folder):
            write_json(folder / "results.json", results)
    return results
