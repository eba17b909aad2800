"""Say whether a model can be trained: the checks that a run makes before its first update.

    python scripts/check_model.py MODEL    # a folder or a hub name

It needs no GPU, but uses one if there is one. On a CPU it takes about half a minute for models up
to 8B.

First config.json is checked. Then learner and sampler compute the log-probabilities of an answer,
and both are compared with the model's own code. This takes the weights if they are in the folder
and fit into memory. Otherwise it takes random weights of two layers of the model's shape, with
fewer tokens: a folder with config.json and a tokenizer is enough. A hub name downloads these files
only.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bnpo.environment import setup_environment

setup_environment()

import numpy as np
import psutil
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.utils.logging import disable_progress_bar

from bnpo.config import PRESETS, with_settings
from bnpo.errors import end_on_gpus
from bnpo.files import InputError
from bnpo.policy.folder import (
    check_model,
    check_tensors,
    check_weights,
    load_tokenizer,
    model_config,
    model_folder,
)
from bnpo.prompts import vocabulary_size
from bnpo.ranks import check_cuda

MOST_TOKENS = 4096
"""Rows of the embedding of a shortened model, and tokens of the longest text if the model's
context is longer."""
BYTES = 3 * 4
"""Of a parameter: in the learner, in the sampler, and once more while one of them loads it."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL")
    model = parser.parse_args().model
    disable_progress_bar()
    try:
        print(f"{model}: trains", *check(model), sep="\n")
        end_on_gpus()
    except InputError as error:
        print(f"refused: {error}")
        sys.exit(1)


def check(model: str) -> list[str]:
    """Return lines about what was compared and found. Raises InputError for a model that cannot
    be trained.
    """
    folder = model_folder(model, weights=False, adapters=False)
    has_weights = any(folder.glob("*.safetensors"))
    if has_weights:  # of a model on the hub, there may be the index alone
        check_weights(folder)
    if not has_weights and any(folder.glob("*.bin")):
        model_folder(model)  # raises InputError, which names the cure
    config = model_config(folder)
    longest = min(
        MOST_TOKENS,
        getattr(config.get_text_config(), "max_position_embeddings", None) or MOST_TOKENS,
    )
    check_model(folder, longest)
    tokenizer = load_tokenizer(folder, longest)
    if has_weights:
        check_tensors(folder)
    with tempfile.TemporaryDirectory() as short_folder:
        if has_weights and memory_of(config) < available_memory():
            compared, what = folder, "the model's own weights"
        else:
            compared = Path(short_folder)
            config = two_layers(config)
            write_random(compared, config, tokenizer)
            layers, rows = config.num_hidden_layers, config.vocab_size
            what = f"random weights, {layers} layers of the model's shape, a vocabulary of {rows}"
        learner_off, sampler_off = prove(
            compared, tokenizer, min(config.vocab_size, vocabulary_size(tokenizer))
        )
    lines = [
        f"compared with {what}, in fp32",
        "mean difference of a token's log-probability from the model's own code: "
        f"{learner_off:.1e} in the learner, {sampler_off:.1e} in the sampler",
    ]
    if not tokenizer.chat_template:
        lines.append("its tokenizer has no chat template: train it with --template FILE")
    return lines


def memory_of(config: PretrainedConfig) -> int:
    """Return the bytes of memory that the comparison needs."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return BYTES * sum(parameter.numel() for parameter in model.parameters())


def available_memory() -> int:
    """Return the bytes of memory that are free for the comparison: on the CPU, and on the GPU if
    there is one. Raises InputError if that cannot be used.
    """
    on_cpu = psutil.virtual_memory().available
    return min(on_cpu, torch.cuda.mem_get_info()[0]) if check_cuda() else on_cpu


def two_layers(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of a model with two layers of this shape: the first, and the
    first of another kind.
    """
    settings, layers = config.to_dict(), config.num_hidden_layers
    by_layer = {
        name: x for name, x in settings.items() if isinstance(x, (list, tuple)) and len(x) == layers
    }
    kinds = list(zip(*by_layer.values(), strict=True)) or [()] * layers  # [layers]
    second = next((i for i in range(layers) if kinds[i] != kinds[0]), min(1, layers - 1))
    settings |= {name: [values[0], values[second]][:layers] for name, values in by_layer.items()}
    settings["num_hidden_layers"] = min(2, layers)
    settings["vocab_size"] = min(MOST_TOKENS, config.vocab_size)
    settings |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    if settings.get("sliding_window"):
        settings["sliding_window"] = 16  # less than the text that is compared
    return type(config).from_dict(settings)


def write_random(folder: Path, config: PretrainedConfig, tokenizer) -> None:
    """Write a random model and the tokenizer to `folder`. Raises InputError if it does not fit
    into memory.
    """
    needed, available = memory_of(config), available_memory()
    if needed > available:
        raise InputError(
            f"two layers need {needed / 1e9:.0f} GB of memory, and {available / 1e9:.0f} GB are "
            "available. The checks that need no weights have passed; use a machine with more "
            "memory for the comparison"
        )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def prove(folder: Path, tokenizer, tokens: int) -> tuple[float, float]:
    """Return the differences of learner and sampler from the model's own code, on a text of the
    first `tokens` tokens.

    Raises InputError for differences that a run would refuse.
    """
    from bnpo.policy.learner import Learner
    from bnpo.policy.sampler import Sampler
    from bnpo.policy.sampling import EngineSettings
    from bnpo.policy.start_check import COMPARED_TOKENS, check_start
    from bnpo.policy.weight_sync import WeightSync

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    os.environ.setdefault("LOCAL_RANK", "0")  # the launcher's, for DeepSpeed
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    settings = with_settings(PRESETS["tiny"], model=str(folder))
    learner = Learner(str(folder), tokens, settings, trains=False)
    longest = settings.sampling.longest
    engine = EngineSettings(max_tokens=longest, dtype="float32")
    sampler = Sampler(str(folder), tokenizer, engine)
    text = np.random.default_rng(0).integers(tokens, size=2 * COMPARED_TOKENS).tolist()
    sync = WeightSync(learner, sampler, longest)
    check = check_start(learner, sampler, sync, text, settings)
    return check.learner, check.sampler


if __name__ == "__main__":
    main()
