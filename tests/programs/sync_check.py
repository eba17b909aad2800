"""Two ranks update a model and sync it: what the checks say after real syncs, a forgotten one, and a lost head.

Launched by tests/test_weight_sync.py; prints one JSON line from rank 0.
"""

import json
import sys
from dataclasses import replace

import bnpo  # noqa: F401 - before torch and vLLM


def main() -> None:
    import numpy as np
    import torch.distributed as dist
    from transformers import AutoTokenizer

    from bnpo.config import parse_train_config
    from bnpo.policy.learner import Experience, Learner
    from bnpo.policy.sampler import Sampler
    from bnpo.policy.settings import SamplerSettings
    from bnpo.policy.weight_sync import (
        SyncError,
        check_equal,
        compared_names,
        measure_sync,
        sync_weights,
        whole_weights,
    )
    from bnpo.problems import encode_prompt
    from bnpo.ranks import gather

    model = sys.argv[-1]
    config, _ = parse_train_config(["--preset", "tiny", "--model", model], has_cuda=False)
    dist.init_process_group("gloo")
    tokenizer = AutoTokenizer.from_pretrained(model)
    learner = Learner(model, len(tokenizer), config)
    sampler = Sampler(model, tokenizer, SamplerSettings(max_tokens=192, dtype="float32"))
    names = compared_names(learner.model)
    rank = dist.get_rank()
    prompt = encode_prompt(tokenizer, f"1{rank}+2=?", "chat")
    report: dict = {"differences": [], "errors": {}, "compared": sorted(sampler.parameters(names))}

    def error_of(check) -> str | None:
        try:
            check()
        except SyncError as error:
            return str(error)

    def tensors_differ() -> str | None:
        return error_of(lambda: check_equal(learner.model, sampler.parameters(names), 4))

    def update_and_sample():
        [(_, group)] = sampler.sample([prompt], [rank], n=8, max_tokens=64, temperature=1.0, logprobs=True)
        everyone = [answer for answers in gather(group) for answer in answers]
        experience = Experience(
            prompts=[prompt for prompt in gather(prompt) for _ in range(8)],
            answers=[answer.token_ids for answer in everyone],
            sampler_logprobs=[answer.logprobs for answer in everyone],
            advantages=np.where(np.arange(16) % 2, 1.0, -1.0),
        )
        metrics = learner.update(experience, lr=1e-3)
        report["gap_max"] = metrics["sampler_learner_gap_max"]
        return experience

    for step in (1, 2, 3):
        experience = update_and_sample()
        sync_weights(learner, sampler, step)
        report["differences"].append(measure_sync(learner, sampler, experience, step))
        report["ids_ok"] = max(map(max, experience.answers)) < len(tokenizer)

    experience = update_and_sample()
    for case, load in (
        ("skipped", lambda: None),
        ("head left out", lambda: sampler.load_weights(whole_weights(learner.model, tied_too=False))),
        ("whole", lambda: sync_weights(learner, sampler, 4)),
    ):
        load()
        report["errors"][case] = [
            error_of(lambda: measure_sync(learner, sampler, experience, 4)),
            tensors_differ(),
        ]
    learner.update(experience, lr=1e-6)
    learner.config = replace(config, sync_tolerance=0.05)  # as in bf16
    report["errors"]["lost"] = [
        error_of(lambda: measure_sync(learner, sampler, experience, 4)),
        tensors_differ(),
    ]
    held = sampler.parameters(names)
    del held[names[-1]]
    report["errors"]["no head"] = [None, error_of(lambda: check_equal(learner.model, held, 4))]
    if rank == 0:
        print("REPORT " + json.dumps(report), flush=True)
    sampler.close()


if __name__ == "__main__":
    main()
