"""Model folders: find one to start from, its tokenizer, its hash, whether its weights are complete,
and whether the learner can train it.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open

from bnpo.files import (
    SMOLLM2,
    InputError,
    file_hash,
    line_of,
    read_json,
    split_revision,
    unwritable,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MERGED = "merged"  # subfolder of an adapter's folder for the model with the adapter in its weights
INDEX = "model.safetensors.index.json"
REVISION = r"[\w-][\w.-]*(/[\w.-]+)*"  # a commit, tag or branch, such as refs/pr/1
COPY_AGAIN = "copy or download it again"


def model_folder(
    model: str,
    revision: str | None = None,
    *,
    weights: bool = True,
    tensors: bool = True,
    adapters: bool = True,
) -> Path:
    """Return the local folder of `model`.

    `model` is a folder, a run's folder (its last checkpoint is taken) or a hub name such as
    Qwen/Qwen2.5-Math-1.5B, which is downloaded, if not `weights` without them. Unless `tensors`,
    only the files of weights are checked, which needs no torch. The revision is the
    one in OWNER/NAME@REVISION, else `revision`, else the newest. Raises InputError for what is no
    model, has incomplete weights or cannot be downloaded, and for a LoRA adapter unless `adapters`.
    """
    needed = ["config.json", "tokenizer*", *(["*.safetensors"] if weights else [])]
    folder = local_folder(model)
    if folder is None:
        name, pinned = split_revision(model)
        revision = pinned or revision
        try:
            patterns = ["*.json", "*.txt", "*.jinja", *needed]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        # The hub client raises a dozen kinds, its own and those of its HTTP library
        except Exception as error:
            if path := unwritable(error):
                raise InputError(
                    f"{model}: the model hub's cache cannot be written ({path}: {line_of(error)}); "
                    "set HF_HOME to a folder that can, or name a local copy"
                ) from error
            problem = (
                "no such local folder, and the download from the model hub failed "
                f"({line_of(error)})"
            )
            raise InputError(
                f"{model}: {problem}; check name{', revision' if revision else ''} and network, or "
                "name a local copy"
            ) from error
    if not adapters and (folder / "adapter_config.json").is_file():
        raise InputError(
            f"--model: {model} is a LoRA adapter; name its subfolder {MERGED}/, or merge it first"
        )
    adapter = adapter_base(folder)  # raises InputError if it cannot be merged
    for pattern in needed:
        if not any(folder.glob(pattern)):
            cure = "write it with save_pretrained, or copy it to an adapter from its base model"
            raise InputError(f"{model}: holds no {pattern}; {cure}")
    if weights:
        check_weights(folder)
        if not tensors:
            return folder
        if not adapter:
            check_tensors(folder)
        elif (folder / MERGED).is_dir():
            check_tensors(folder / MERGED)
    return folder


def check_weights(folder: Path) -> None:
    """Raise InputError if a file of weights in `folder` is missing, cut off or no such file.
    Reads first bytes only.
    """
    if (folder / INDEX).is_file():
        _indexed_files(folder)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np"):  # compares the size with the header
                pass
        except Exception as error:  # SafetensorError, or one of the system
            problem = f"is damaged, perhaps cut off, or only a git-lfs pointer ({line_of(error)})"
            raise InputError(
                f"{file}: {problem}; copy it again, or run `git lfs pull` in its folder"
            ) from error


def _indexed_files(folder: Path) -> list[Path]:
    """Return the files that the index of a sharded model names. Raises InputError if one is
    missing.
    """
    index = folder / INDEX
    files = read_json(index, "download it again").get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise InputError(f"{index}: has no weight_map of names of files; download it again")
    names = sorted(set(files.values()))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise InputError(f"{folder}: lacks {missing[0]}, which {INDEX} names; download or copy it")
    return [folder / name for name in names]


def weight_files(folder: Path) -> list[Path]:
    """Return the files from which transformers loads the model in `folder`. Raises InputError if
    there are none.
    """
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if (folder / INDEX).is_file():
        return _indexed_files(folder)
    raise InputError(
        f"{folder}: has neither model.safetensors nor {INDEX}; {COPY_AGAIN}, or write the model "
        "with save_pretrained"
    )


def check_one_model(folder: Path) -> None:
    """Raise InputError if vLLM would read other files of weights in `folder` than transformers.

    It reads those of the index or, without an index, all. (Training gives vLLM its weights.)
    """
    if not (folder / "model.safetensors").is_file():
        return
    read = _indexed_files(folder) if (folder / INDEX).is_file() else folder.glob("*.safetensors")
    if others := sorted(set(read) - {folder / "model.safetensors"}):
        raise InputError(
            f"{folder}: holds two models, model.safetensors and {others[0].name}; move one of the "
            "two away, and its index"
        )


def check_tensors(folder: Path) -> None:
    """Raise InputError unless the files in `folder` have every tensor of the model, in its shape.

    transformers fills a missing tensor with random numbers, and only warns. Its own loader decides
    here, on tensors without memory: it renames and joins some tensors, and ties others. Of the
    files only the headers are read. Quantised models, and models that are no causal language models
    of transformers, are not checked: they cannot be trained, and vLLM has its own loader.
    """
    import torch  # takes seconds, like transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.core_model_loading import revert_weight_conversion

    config = model_config(folder)
    quantised = getattr(config, "quantization_config", None)
    if quantised or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    shapes, file_of = {}, {}
    for file in weight_files(folder):
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                shapes[name], file_of[name] = tensors.get_slice(name).get_shape(), file
    model = empty_model(folder, config)
    # Names and shapes that a file of this model has
    expected = {
        name: list(tensor.shape)
        for name, tensor in revert_weight_conversion(model, dict(model.state_dict())).items()
    }
    stored = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    missing, unexpected = _loading_report(type(model), config, stored)
    if missing:
        for name, shape in expected.items():
            if shapes.get(name, shape) != shape:
                raise InputError(
                    f"{file_of[name]}: {name} has the shape {shapes[name]}, and config.json asks "
                    f"for {shape}; {COPY_AGAIN}, with its own config.json"
                )
        tied = model.all_tied_weights_keys.keys() - missing
        absent = [name for name in expected if name not in shapes and name not in tied]
        absent = absent or sorted(missing)
        problem = f"its weights lack {len(absent)} of {len(expected)} tensors: {_some(absent)}"
        if others := [name for name in shapes if name.endswith(f".{absent[0]}")]:
            problem += f" (there is {others[0]})"
        raise InputError(f"{folder}: {problem}; {COPY_AGAIN}, or use another model")
    # A layer or a bias more than config.json says is a part of this model. All else, such as a
    # value head, belongs to another one, and is ignored as transformers does.
    owners = {re.sub(r"\d+", "*", name).rpartition(".")[0] for name in model.state_dict()}
    lost = [name for name in unexpected if re.sub(r"\d+", "*", name).rpartition(".")[0] in owners]
    if lost:
        raise InputError(
            f"{folder}: its weights have {len(lost)} tensors that the model of config.json leaves "
            f"out: {_some(lost)}; use the config.json of these weights"
        )


def _loading_report(
    model_class: type, config: "PretrainedConfig", stored: dict
) -> tuple[set[str], list[str]]:
    """Return the names of weights that transformers would make up if it loaded `stored`, tensors
    without memory, and the names of tensors that it would not use.
    """
    from transformers.utils import logging

    shows_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        _, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict=stored,
            device_map={"": "meta"},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except RuntimeError as error:  # some of the tensors that it joins are missing, or do not fit
        if "conversion of the weights" not in str(error):
            raise
        return {"tensors that are joined"}, []
    finally:
        if shows_bars:
            logging.enable_progress_bar()
    missing = report["missing_keys"] | {name for name, *_ in report["mismatched_keys"]}
    return missing, sorted(report["unexpected_keys"])


def _some(names: list[str]) -> str:
    """Return the first names and the number of the others, for a message."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_finite(folder: Path) -> None:
    """Raise InputError if a weight of the model or adapter in `folder`, or of the adapter's base,
    is NaN or infinite. Reads all weights.
    """
    import torch

    base = adapter_base(folder)
    if base is None:
        folders = [folder]
    elif (folder / MERGED).is_dir():
        folders = [folder / MERGED]
    else:
        folders = [folder, base]
    for file in chain.from_iterable(sorted(each.glob("*.safetensors")) for each in folders):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                tensor = tensors.get_tensor(name)
                # torch cannot test the formats of quantised weights, of one byte
                testable = tensor.is_floating_point() and tensor.element_size() > 1
                if testable and not torch.isfinite(tensor).all():
                    raise InputError(
                        f"{file}: {name} has numbers that are NaN or infinite; {COPY_AGAIN}, or "
                        "use another model"
                    )


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
    name, revision = split_revision(model)
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise InputError(
            f"{model}: no such model folder, nor a hub name like Qwen/Qwen2.5-Math-1.5B"
        )
    if revision is not None and not re.fullmatch(REVISION, revision):
        raise InputError(
            f"{model}: no such model folder, and what follows the @ is no revision of the hub; "
            "write OWNER/NAME@REVISION with a commit, tag or branch"
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
    # Settings that change the model without tensors of their own
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
    with refused_by("transformers", f"{folder}: its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = config.get_text_config().vocab_size
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

    file = folder / "config.json"
    with refused_by("transformers", str(file)):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    rows = getattr(config.get_text_config(), "vocab_size", None)
    padding = getattr(config.get_text_config(), "pad_token_id", None)
    if rows and padding and padding >= rows:
        raise InputError(
            f"{file}: pad_token_id {padding} lies beyond the embedding, whose {rows} rows "
            "(vocab_size) are numbered from 0; correct one of the two"
        )
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
    model = empty_model(folder, config)
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


def empty_model(folder: Path, config: "PretrainedConfig") -> "PreTrainedModel":
    """Return the model that `config`, of the model in `folder`, describes: shapes without memory.
    Raises InputError if transformers cannot make it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with refused_by("transformers", str(folder)), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def check_prompts(folder: Path, tokenizer, prompts: Sequence[list[int]]) -> None:
    """Raise InputError if a prompt (token ids) has a token beyond the embedding of the model in
    `folder`.
    """
    rows = model_config(folder).get_text_config().vocab_size
    largest = max(max(prompt, default=0) for prompt in prompts)
    if largest >= rows:
        token = tokenizer.convert_ids_to_tokens(largest)
        raise InputError(
            f"{folder}: prompts contain the token {token!r} (id {largest}), and the model's "
            f"embedding has {rows} rows only; call resize_token_embeddings, or take a --template "
            "without it"
        )


def _refuse(folder: Path, reasons: dict[str, object]) -> None:
    if reason := next((reason for reason, found in reasons.items() if found), None):
        raise InputError(f"{folder}: cannot be trained: {reason}; use another model")


# What the libraries raise about the files of a model: settings that do not fit together fail in
# any part of their code. Their messages name the reason. A lack of memory and all else are no fault
# of the model, and keep their traceback.
REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    StrictDataclassError,
    TypeError,
    ValueError,
)


@contextmanager
def refused_by(library: str, model: str) -> Iterator[None]:
    """Turn the refusal of a model, or a part of it, by a library into an InputError.

    Only for a single call of the library, whose other arguments are right for every model: an error
    of our own code would be blamed on the model.
    """
    try:
        yield
    except Exception as error:
        if path := unwritable(error):
            raise InputError(
                f"{path}: {library} may not use it ({line_of(error)}); correct its permissions, or "
                "free some disk space"
            ) from error
        if isinstance(error, ImportError):
            raise InputError(
                f"{model}: {library} cannot import what this model needs ({line_of(error)}); "
                "install that, or use another model"
            ) from error
        # transformers raises OSError, without a number, for files that it does not find or know.
        about_files = isinstance(error, OSError) and error.errno is None
        # The tokenizers, which are written in Rust, raise Exception itself.
        if not (isinstance(error, REFUSALS) or about_files or type(error) is Exception):
            raise
        problem = f"{library} cannot run this model ({line_of(error)})"
        raise InputError(f"{model}: {problem}; correct that, or use another model") from error
