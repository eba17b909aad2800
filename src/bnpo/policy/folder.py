"""Model folders: find one to start from, its tokenizer, its hash, and whether the learner can
train it.
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download
from safetensors import safe_open

from bnpo.files import SMOLLM2, InputError, file_hash, line_of, read_json

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MERGED = "merged"  # subfolder of an adapter's folder for the model with the adapter in its weights


def model_folder(model: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the local folder of `model`.

    `model` is a folder, a run's folder (its last checkpoint is taken) or a hub name such as
    Qwen/Qwen2.5-Math-1.5B, which is downloaded, if not `weights` without them. Raises InputError
    for what is no model or cannot be downloaded.
    """
    needed = ["config.json", "tokenizer*", *(["*.safetensors"] if weights else [])]
    folder = local_folder(model)
    if folder is None:
        try:
            patterns = ["*.json", "*.txt", "*.jinja", *needed]
            folder = Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
        # The hub client raises a dozen kinds, its own and those of its HTTP library
        except Exception as error:
            problem = (
                "no such local folder, and the download from the model hub failed "
                f"({line_of(error)})"
            )
            raise InputError(
                f"{model}: {problem}; check name and network, or name a local copy"
            ) from error
    adapter_base(folder)  # raises InputError if it cannot be merged
    for pattern in needed:
        if not any(folder.glob(pattern)):
            cure = "write it with save_pretrained, or copy it to an adapter from its base model"
            raise InputError(f"{model}: holds no {pattern}; {cure}")
    if weights:
        check_weights(folder)
    return folder


def check_weights(folder: Path) -> None:
    """Raise InputError if a file of weights in `folder` is missing, cut off or no such file.
    Reads first bytes only.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = read_json(index, "download it again").get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise InputError(f"{index}: has no weight_map of names of files; download it again")
        if missing := sorted(name for name in set(files.values()) if not (folder / name).is_file()):
            raise InputError(
                f"{folder}: lacks {missing[0]}, which {index.name} names; download or copy it"
            )
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np"):  # compares the size with the header
                pass
        except Exception as error:  # SafetensorError, or one of the system
            problem = f"is damaged, perhaps cut off, or only a git-lfs pointer ({line_of(error)})"
            raise InputError(
                f"{file}: {problem}; copy it again, or run `git lfs pull` in its folder"
            ) from error


def local_folder(model: str) -> Path | None:
    """Return the folder `model`, or a run's last checkpoint; None for a hub name. Raises
    InputError for the rest.
    """
    folder = Path(model)
    if (folder / "last").is_dir() and (folder / "checkpoints").is_dir():
        folder = folder / "last"
    elif "preset" in _settings(folder):
        raise InputError(
            f"{model}: this run has no checkpoint yet; wait for its first one, or name another "
            "model"
        )
    if folder.is_dir():
        # A run that is still going moves `last` and `best` to other checkpoints
        return folder.resolve()
    if folder == SMOLLM2:
        raise InputError(
            f"{model}: is not there yet; `python scripts/get_model.py smollm2` gets it"
        )
    if model.count("/") != 1 or model.startswith((".", "/", "~")) or model.endswith("/"):
        raise InputError(
            f"{model}: no such model folder, nor a hub name like Qwen/Qwen2.5-Math-1.5B"
        )
    return None


def adapter_base(folder: Path) -> Path | None:
    """Return the folder of the model that the LoRA adapter in `folder` adapts. None: there is no
    adapter.

    Raises InputError if the model is missing, or if the adapter does more than add B A to weights.
    """
    file = folder / "adapter_config.json"
    if not file.is_file():
        return None
    settings = read_json(file, "it must be that of a peft adapter")
    check_weights(folder)
    # Have no own tensors
    names = [name for name in ("target_parameters", "layer_replication") if settings.get(name)]
    for weights in folder.glob("adapter_model.safetensors"):
        with safe_open(weights, framework="np") as tensors:
            names += tensors.keys()
    others = [name for name in names if not re.search(r"\.\d+\..*\.lora_[AB]\.weight$", name)]
    if settings.get("peft_type") != "LORA" or others:
        raise InputError(
            f"{folder}: is no plain LoRA adapter {others[:1]}; merge it with peft and name the "
            "result"
        )
    try:
        return model_folder(
            settings.get("base_model_name_or_path") or "(no name)", settings.get("revision")
        )
    except InputError as error:
        cure = "put it there, or correct base_model_name_or_path in adapter_config.json"
        raise InputError(
            f"{folder}: the base model of this LoRA adapter was not found ({error}); {cure}"
        ) from error


@contextmanager
def whole_model(folder: Path) -> Iterator[Path]:
    """Yield a folder of the Hugging Face model in `folder`: itself or, for an adapter, one with
    merged weights.

    That is its subfolder MERGED, or one that is deleted with the context.
    """
    base, merged = adapter_base(folder), folder / MERGED
    if base is None or merged.is_dir():
        yield merged if base else folder
        return
    from bnpo.policy.lora import write_merged  # imports torch

    with TemporaryDirectory(prefix="bnpo-merged-") as temporary:
        write_merged(folder, base, Path(temporary))
        load_tokenizer(folder, 0).save_pretrained(temporary)
        yield Path(temporary)


def model_hash(folder: Path) -> str:
    """Return the SHA-256 of names and contents of a model's files: weights, configuration,
    tokenizer.
    """
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".jinja", ".txt"):
            total.update(f"{path.name} {file_hash(path)}\n".encode())
    return total.hexdigest()


def training_config(folder: Path) -> dict | None:
    """Return the config.json of the run that the checkpoint `folder` belongs to. None if it
    belongs to no run.
    """
    folder = folder.resolve()
    if folder.parent.name != "checkpoints":
        return None
    return _settings(folder.parent.parent) or None


def _settings(folder: Path) -> dict:
    config = folder / "config.json"
    return read_json(config, "fix it, or name another folder") if config.is_file() else {}


def load_tokenizer(folder: Path, longest: int):
    """Return the tokenizer of a model folder. Raises InputError like `model_config`, and for too
    few embeddings.
    """
    from transformers import AutoTokenizer  # imports torch

    config = model_config(folder, longest)
    with running(f"{folder}: its tokenizer", "transformers"):
        tokenizer, rows = AutoTokenizer.from_pretrained(folder), config.get_text_config().vocab_size
    # Special tokens beyond the embedding do not occur in texts. Gemma 3's text models have one, for
    # images.
    unused = sum(
        index >= rows and token.special for index, token in tokenizer.added_tokens_decoder.items()
    )
    if len(tokenizer) - unused > rows:
        problem = f"its tokenizer has {len(tokenizer)} tokens, its model {rows}"
        raise InputError(
            f"{folder}: {problem}; take the tokenizer of this model, or call "
            "resize_token_embeddings"
        )
    return tokenizer


def model_config(folder: Path, longest: int = 0) -> "PretrainedConfig":
    """Return a model's configuration. Raises InputError if it is unknown, or its context under
    `longest` tokens.
    """
    from transformers import AutoConfig  # imports torch

    with running(str(folder / "config.json"), "transformers"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    context = getattr(config.get_text_config(), "max_position_embeddings", longest)
    if longest > context:
        problem = (
            f"prompts and answers of up to {longest} tokens do not fit the context of {folder}, "
            f"{context} tokens"
        )
        cure = (
            "lower --max-prompt-tokens or --max-answer-tokens, or the evaluation suite's, by "
            f"{longest - context}"
        )
        raise InputError(f"{problem}; {cure}")
    return config


def check_model(folder: Path, longest: int) -> None:
    """Raise InputError if the learner cannot train the model in `folder` on `longest` tokens.
    Reads no weights.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = model_config(folder)
    others = set(getattr(config, "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    sizes = {getattr(config, name, None) for name in ("qk_head_dim", "v_head_dim")}
    rope = getattr(config, "rope_parameters", None) or {}
    short = rope.get("original_max_position_embeddings", longest)
    has_longrope = rope.get("rope_type") == "longrope" and longest > short
    longrope = (
        f"its longrope has other frequencies for texts over {short} tokens, and prompt plus answer "
        f"has {longest}"
    )
    reasons = {
        "its weights are quantised": getattr(config, "quantization_config", None),
        "it is an encoder-decoder": config.is_encoder_decoder,
        "it has parts for images or sound": config.get_text_config() is not config,
        f"it has layers of {' and '.join(sorted(others))}": others,
        "the learner's attention has no capped attention logits": getattr(
            config, "attn_logit_softcapping", None
        ),
        "keys and values of its attention differ in size": len(sizes) > 1,
        longrope: has_longrope,
    }
    _refuse(folder, reasons)
    with running(str(folder), "transformers"), torch.device("meta"):  # without memory
        model = AutoModelForCausalLM.from_config(config)
    reasons = {
        "its code does not run with the learner's attention": not model.is_backend_compatible(),
        "it has convolutions over tokens": any(
            isinstance(module, torch.nn.Conv1d) for module in model.modules()
        ),
        "the learner's attention has no sinks": any(
            name.endswith(".sinks") for name, _ in model.named_parameters()
        ),
    }
    _refuse(folder, reasons)


def _refuse(folder: Path, reasons: dict[str, object]) -> None:
    if reason := next((reason for reason, found in reasons.items() if found), None):
        raise InputError(f"{folder}: cannot be trained: {reason}; use another model")


@contextmanager
def running(model: str, library: str) -> Iterator[None]:
    """Turn any error of a library that loads or runs `model`, or a part of it, into an
    InputError.
    """
    try:
        yield
    except Exception as error:
        problem = f"{library} cannot run this model ({line_of(error)})"
        raise InputError(f"{model}: {problem}; correct that, or use another model") from error
