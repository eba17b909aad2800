"""Evaluation during training, with the sampler that training uses."""

import json
from itertools import chain

import torch.distributed as dist

from bnpo.answers.rewards import Grader
from bnpo.config import TrainConfig
from bnpo.evaluation.protocol import Evaluation, package_versions, sample_records, scores
from bnpo.files import flush, write_json, writing
from bnpo.policy.folder import training_config
from bnpo.policy.sampler import Sampler
from bnpo.ranks import gather
from bnpo.runs.checkpoint import checkpoint_folder


def evaluate_live(evaluation: Evaluation, sampler: Sampler, grader: Grader, config: TrainConfig, step: int) -> dict:
    """Evaluate the policy that `sampler` holds on all ranks, each its share of the answers; returns the results.

    Rank 0 leaves samples.jsonl and results.json in <run>/evals/step-<step>, as `python eval.py` does. A collective.
    """
    mine = evaluation.requests()[dist.get_rank() :: dist.get_world_size()]
    parts = gather(list(sample_records(evaluation, mine, sampler.sample, grader)))
    records = {(r["dataset"], r["index"], r["run"]): r for r in chain.from_iterable(parts)}
    checkpoint = checkpoint_folder(config.output_dir, step)
    protocol = {
        "ckpt": str(checkpoint),
        "checkpoint_sha256": None,  # the weights may never be saved
        "run": training_config(checkpoint),
        **evaluation.protocol(),
        "limit": None,
        "dtype": config.dtype,
        "grader": config.grader,
        "versions": package_versions(),
    }
    results = {"protocol": protocol, **scores(evaluation, records)}
    if dist.get_rank() == 0:
        folder = config.output_dir / "evals" / f"step-{step:06d}"
        lines = [json.dumps(records[request.key], ensure_ascii=False) + "\n" for request in evaluation.requests()]
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
            flush(folder / "samples.jsonl")
            write_json(folder / "results.json", results)
    return results
