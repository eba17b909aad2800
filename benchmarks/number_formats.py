"""Measure how far learner and sampler are apart in fp32, bf16 and fp16 on the same answers.

    python benchmarks/number_formats.py                                     # the tiny model on arithmetic
    python benchmarks/number_formats.py --model FOLDER --train-data data/math_train.jsonl --max-prompt-tokens 512

The sampler draws the answers in fp32. Then each number format has a learner and a sampler of its own, and both compute
the log-probability of every token. Prints one line of a table per number format: the mean and the largest absolute
difference, which are `sampler_learner_gap_mean` and `sampler_learner_gap_max` of a training step, and the mean
difference of either side from the learner in fp32.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro
from common import launch

from bnpo.environment import setup_environment

FORMATS = ("float32", "bfloat16", "float16")


@dataclass
class Args:
    model: str = "data/tiny-model"
    """Hugging Face folder."""
    train_data: str = "arithmetic"
    """Problems, as in train.py."""
    max_prompt_tokens: int = 64
    """Longest prompt."""
    max_answer_tokens: int = 64
    """Longest answer."""
    questions: int = 64
    """Number of questions. Each gets 4 answers."""


def measure(model: str, train_data: str, longest: str, most: str, questions: str, folder: str, dtype: str) -> None:
    """Write the log-probabilities of all answers by sampler and learner to <folder>/<dtype>.json. Runs in a rank.

    The first call, with float32, also samples the answers.
    """
    import torch.distributed as dist

    from bnpo.config import parse_train_config
    from bnpo.data import encode_problems, load_sources
    from bnpo.policy.folder import load_tokenizer
    from bnpo.policy.learner import Learner
    from bnpo.policy.sampler import EngineSettings, Sampler

    dist.init_process_group("gloo")
    flags = ["--preset", "tiny", "--model", model, "--train-data", train_data, "--max-prompt-tokens", longest]
    config, _ = parse_train_config([*flags, "--dtype", dtype, "--max-answer-tokens", most], has_cuda=False)
    tokens = int(longest) + int(most)
    tokenizer = load_tokenizer(Path(model), tokens)
    learner = Learner(model, len(tokenizer), config)
    sampler = Sampler(model, tokenizer, EngineSettings(max_tokens=tokens + 1, dtype=dtype))
    answers_file = Path(folder) / "answers.json"
    if not answers_file.exists():
        problems, _ = load_sources(config.data.train_data, config.columns)
        prompts = encode_problems(problems, tokenizer, int(longest))[1][: int(questions)]
        groups = sampler.sample(prompts, range(len(prompts)), n=4, max_tokens=int(most), temperature=1.0)
        pairs = [(prompts[group.prompt_index], answer.token_ids) for group in groups for answer in group.answers]
        answers_file.write_text(json.dumps(pairs))
    scores: dict[str, list[float]] = {"sampler": [], "learner": []}
    for prompt, answer in json.loads(answers_file.read_text()):
        scores["sampler"] += sampler.score(prompt, answer).tolist()
        scores["learner"] += learner.score(prompt, answer).tolist()
    (Path(folder) / f"{dtype}.json").write_text(json.dumps(scores))
    sampler.close()


def main(args: Args) -> None:
    import numpy as np

    settings = (args.model, args.train_data, args.max_prompt_tokens, args.max_answer_tokens, args.questions)
    with tempfile.TemporaryDirectory() as folder:
        scores = {}
        for dtype in FORMATS:
            launch(1, "benchmarks/number_formats.py", "measure", *map(str, settings), folder, dtype)
            read = json.loads((Path(folder) / f"{dtype}.json").read_text())
            scores[dtype] = {side: np.array(values) for side, values in read.items()}  # [tokens]
    exact = scores["float32"]["learner"]
    print(f"{args.model}: {len(exact)} tokens")
    print("| | |learner - sampler| | largest | |learner - learner in fp32| | |sampler - learner in fp32| |")
    for dtype, sides in scores.items():
        gap = np.abs(sides["learner"] - sides["sampler"])
        errors = [np.abs(sides[side] - exact).mean() for side in ("learner", "sampler")]
        print(f"| {dtype} | {gap.mean():.1e} | {gap.max():.1e} | {errors[0]:.1e} | {errors[1]:.1e} |")


if __name__ == "__main__":
    setup_environment()
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--local_rank")]
    if arguments[:1] == ["measure"]:
        measure(*arguments[1:])
    else:
        main(tyro.cli(Args, description=__doc__))
