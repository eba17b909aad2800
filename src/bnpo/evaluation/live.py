"""Evaluation during training, with the sampler that training uses."""

from itertools import chain
from pathlib import Path

import torch.distributed as dist

from bnpo.config import TrainConfig
from bnpo.evaluation.protocol import Evaluation, sample_records
from bnpo.evaluation.records import Request, Results
from bnpo.evaluation.scores import score_all
from bnpo.files import write_json, write_json_lines, writing
from bnpo.grading.grader import Grader
from bnpo.policy.sampler import Sampler
from bnpo.ranks import gather


def evaluate_live(
    evaluation: Evaluation, sampler: Sampler, grader: Grader, config: TrainConfig, checkpoint: Path
) -> Results:
    """Evaluate the policy that `sampler` holds, and return the results. All ranks must call this together.

    `checkpoint` is the folder where this policy would be saved. Rank 0 writes samples.jsonl and results.json to a
    folder of the same name in the run's evals/, like `python eval.py`. Raises InputError if they cannot be written.
    """
    own_requests = evaluation.requests()[dist.get_rank() :: dist.get_world_size()]
    own_records = list(sample_records(evaluation, own_requests, sampler.sample, grader))
    records = {Request.of(record): record for record in chain.from_iterable(gather(own_records))}
    protocol = evaluation.protocol(str(checkpoint), checkpoint, None, config.hardware.dtype)
    results = score_all(evaluation, records, protocol)
    if dist.get_rank() == 0:
        folder = config.folder.output_dir / "evals" / checkpoint.name
        # In the order of the requests, whatever the number of ranks.
        write_json_lines(folder / "samples.jsonl", [records[request] for request in evaluation.requests()])
        with writing(folder):
            write_json(folder / "results.json", results)
    return results
