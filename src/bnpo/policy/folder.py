"""Model folders: find one, and refuse one whose files or model cannot be used."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from huggingface_hub import list_repo_files, snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open

from bnpo.files import (
    SMOLLM2,
    InputError,
    file_hash,
    line_of,
    read_json,
    split_revision,
    step_of,
    unwritable,
)

if TYPE_CHECKING:  # torch and transformers take seconds to import
    from transformers import PretrainedConfig, PreTrainedModel

MERGED = "merged"  # subfolder of an adapter's folder for the model with the adapter in its weights
INDEX = "model.safetensors.index.json"
REVISION = r"[\w-][\w.-]*(/[\w.-]+)*"  # a commit, tag or branch, such as refs/pr/1
COPY_AGAIN = "copy or download it again"
NO_FILE_CURE = "write it with save_pretrained, or copy it to an adapter from its base model"


def model_folder(
    model: str,
    revision: str | None = None,
    *,
    weights: bool = True,
    tensors: bool = True,
    adapters: bool = True,
) -> Path:
    """Return the local folder of `model`: a folder, a run (its last checkpoint), or a hub name,
    which is downloaded (with `weights`, if asked for).

    Files of weights must be whole and, with `tensors`, have every tensor (needs torch). LoRA
    adapters are refused unless `adapters`.
    """
    needed = ["config.json", "tokenizer*", *(["*.safetensors"] if weights else [])]
    folder = local_folder(model)
    if folder is None:
        folder = _download(model, revision, needed)
        if not weights and not any(folder.glob("*.safetensors")):
            _check_safetensors_of_hub(model, revision)
    if not adapters and (folder / "adapter_config.json").is_file():
        raise InputError(
            f"--model: {model} is a LoRA adapter; name its subfolder {MERGED}/, or merge it first"
        )
    adapter = adapter_base(folder, weights=weights)  # raises InputError if it cannot be merged
    for pattern in needed:
        if not any(folder.glob(pattern)):
            raise InputError(f"{model}: holds no {pattern}; {NO_FILE_CURE}")
    if weights:
        check_weights(folder)
        own = folder / MERGED if adapter else folder
        if tensors and own.is_dir():
            check_tensors(own)
    return folder


def _download(model: str, revision: str | None, needed: list[str]) -> Path:
    name, pinned = split_revision(model)
    revision = pinned or revision
    try:
        patterns = ["*.json", "*.txt", "*.jinja", *needed]
        # Mistral's models come twice; the files of these names are in its own format
        twice = ["consolidated*"]
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=patterns, ignore_patterns=twice
            )
        )
    except Exception as error:  # a dozen kinds of the hub client and its HTTP library
        fault = "no such local folder, and the download from the model hub failed"
        cure = f"check name{', revision' if revision else ''} and network, or name a local copy"
        if path := unwritable(error):
            fault = f"the model hub's cache cannot be written, {path}"
            cure = "set HF_HOME to a folder that can, or name a local copy"
        raise InputError(f"{model}: {fault} ({line_of(error)}); {cure}") from error


def _check_safetensors_of_hub(model: str, revision: str | None) -> None:
    """Raise InputError for a model of the hub that has its weights in other files only."""
    name, pinned = split_revision(model)
    try:
        files = list_repo_files(name, revision=pinned or revision)
    except Exception:  # without a network: the other files were in the cache
        return
    if not any(file.endswith(".safetensors") and "/" not in file for file in files):
        raise InputError(f"{model}: holds no *.safetensors; {NO_FILE_CURE}")


def local_folder(model: str) -> Path | None:
    """Return the folder `model`, or a run's last checkpoint; None for a hub name."""
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
    if folder.name == "best" and (folder.parent / "checkpoints").is_dir():
        raise InputError(
            f"{model}: this run has no best checkpoint, because nothing was evaluated on its way; "
            f"name {folder.parent} for its last one"
        )
    if folder == SMOLLM2:
        raise InputError(
            f"{model}: is not there yet; `python scripts/get_model.py smollm2` gets it"
        )
    if folder.parent.is_dir() and folder.parent != Path() and "@" not in model:
        raise InputError(
            f"{model}: no such model folder, though {folder.parent}/ exists; correct the path, or "
            f"write {model}@main if you mean a model of the hub"
        )
    name, revision = split_revision(model)
    is_name = name.count("/") == 1 and name[0] not in "./~" and name[-1] != "/"
    if not is_name or (revision is not None and not re.fullmatch(REVISION, revision)):
        raise InputError(
            f"{model}: no such model folder, nor a hub name like Qwen/Qwen2.5-Math-1.5B, which "
            "@REVISION may follow: a commit, tag or branch"
        )
    return None


def training_config(folder: Path) -> dict | None:
    """Return the config.json of the run of the checkpoint `folder`, or of its merged model, with
    the `step` of the checkpoint and whether the run is `done`. None if it is of no run.
    """
    folder = folder.resolve()
    if folder.name == MERGED:
        folder = folder.parent
    if folder.parent.name != "checkpoints":
        return None
    run = folder.parent.parent
    settings = _settings(run)
    return settings | {"step": step_of(folder), "done": is_done(run)} if settings else None


def is_done(run: Path) -> bool:
    """Return whether a run has made all its steps, as its end.json says."""
    end = run / "end.json"
    return end.is_file() and read_json(end, "it was edited").get("why") == "done"


def _settings(folder: Path) -> dict:
    config = folder / "config.json"
    return read_json(config, "fix it, or name another folder") if config.is_file() else {}


def model_hash(folder: Path) -> str:
    """Return the SHA-256 of names and contents of a model's files, and of an adapter's base."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".jinja", ".txt"):
            total.update(f"{path.name} {file_hash(path)}\n".encode())
    if base := adapter_base(folder):
        total.update(f"base {model_hash(base)}\n".encode())
    return total.hexdigest()


def adapter_base(folder: Path, *, weights: bool = True) -> Path | None:
    """Return the folder of the base model of the LoRA adapter in `folder`. None: it is no adapter.
    A base model of the hub is downloaded, its weights only with `weights`.
    """
    file = folder / "adapter_config.json"
    if not file.is_file():
        return None
    settings = read_json(file, "it must be that of a peft adapter")
    check_weights(folder)
    # Settings that change the model without tensors of their own
    names = [name for name in ("target_parameters", "layer_replication") if settings.get(name)]
    for file_of_weights in folder.glob("adapter_model.safetensors"):
        with safe_open(file_of_weights, framework="np") as tensors:
            names += tensors.keys()
    others = [name for name in names if not re.search(r"\.\d+\..*\.lora_[AB]\.weight$", name)]
    if settings.get("peft_type") != "LORA" or others:
        raise InputError(
            f"{folder}: is no plain LoRA adapter {others[:1]}; merge it with peft and name the "
            "result"
        )
    base = settings.get("base_model_name_or_path") or "(no name)"
    try:
        return model_folder(base, settings.get("revision"), weights=weights)
    except InputError as error:
        raise InputError(
            f"{folder}: the base model of this LoRA adapter was not found ({error}); put it there, "
            "or correct base_model_name_or_path in adapter_config.json"
        ) from error


@contextmanager
def whole_model(folder: Path) -> Iterator[Path]:
    """Yield a folder with all weights: of an adapter, its subfolder MERGED or a temporary one."""
    base, merged = adapter_base(folder), folder / MERGED
    if base is None or merged.is_dir():
        yield merged if base else folder
        return
    from bnpo.policy.lora import write_merged  # imports torch

    with TemporaryDirectory(prefix="bnpo-merged-") as temporary:
        write_merged(folder, base, Path(temporary))
        load_tokenizer(folder, 0).save_pretrained(temporary)
        yield Path(temporary)


def check_weights(folder: Path) -> None:
    """Raise InputError if a file of weights is missing or cut off. Reads first bytes only."""
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
    """Return the files in the index of a sharded model. Without an index there are none."""
    index = folder / INDEX
    if not index.is_file():
        return []
    files = read_json(index, "download it again").get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise InputError(f"{index}: has no weight_map of names of files; download it again")
    names = sorted(set(files.values()))
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise InputError(f"{folder}: lacks {missing[0]}, which {INDEX} names; download or copy it")
    return [folder / name for name in names]


def check_one_model(folder: Path) -> None:
    """Raise InputError if vLLM, which reads the files of the index or all, would not read the
    weights that transformers reads.
    """
    own = folder / "model.safetensors"
    read = _indexed_files(folder) or folder.glob("*.safetensors")
    others = sorted(set(read) - {own})
    if own.is_file() and others:
        raise InputError(
            f"{folder}: holds two models, model.safetensors and {others[0].name}; move one of the "
            "two away, and its index"
        )


def check_tensors(folder: Path) -> None:
    """Raise InputError unless the files have every tensor of the model, in its shape.

    transformers fills a missing tensor with random numbers, and only warns. Its own loader, which
    renames, joins and ties tensors, decides here on tensors without memory. Models that cannot be
    trained are not checked.
    """
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.core_model_loading import revert_weight_conversion

    config = model_config(folder)
    quantised = getattr(config, "quantization_config", None)
    if quantised or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return
    own = folder / "model.safetensors"
    files = [own] if own.is_file() else _indexed_files(folder)
    if not files:
        raise InputError(
            f"{folder}: has neither model.safetensors nor {INDEX}; {COPY_AGAIN}, or write the "
            "model with save_pretrained"
        )
    shapes, file_of = {}, {}
    for file in files:
        with safe_open(file, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                shapes[name], file_of[name] = tensors.get_slice(name).get_shape(), file
    model = empty_model(folder, config)
    stored = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    missing, unexpected = _loading_report(type(model), config, stored)
    if missing:
        # Names and shapes that a file of this model has
        whole = revert_weight_conversion(model, dict(model.state_dict()))
        for name, tensor in whole.items():
            if name in shapes and shapes[name] != list(tensor.shape):
                raise InputError(
                    f"{file_of[name]}: {name} has the shape {shapes[name]}, and config.json asks "
                    f"for {list(tensor.shape)}; {COPY_AGAIN}, with its own config.json"
                )
        tied = model.all_tied_weights_keys.keys() - missing
        absent = [name for name in whole if name not in shapes and name not in tied]
        absent = absent or sorted(missing)
        raise InputError(
            f"{folder}: its weights lack {len(absent)} of {len(whole)} tensors: {_some(absent)}; "
            f"{COPY_AGAIN}, or use another model"
        )
    # A layer or a bias more than config.json says is a part of this model. All else, such as a
    # value head, belongs to another one, and is ignored as transformers does.
    owners = {_owner(name) for name in model.state_dict()}
    if lost := [name for name in unexpected if _owner(name) in owners]:
        raise InputError(
            f"{folder}: its weights have {len(lost)} tensors that the model of config.json leaves "
            f"out: {_some(lost)}; use the config.json of these weights"
        )


def _owner(tensor: str) -> str:
    """Return the name of a tensor's module, with * for the layer's number."""
    return re.sub(r"\d+", "*", tensor).rpartition(".")[0]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _loading_report(
    model_class: type, config: "PretrainedConfig", stored: dict
) -> tuple[set[str], list[str]]:
    """Return which weights transformers would make up, and which of `stored` it would not use."""
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


def check_finite(folder: Path) -> None:
    """Raise InputError if a weight of the model, or of the adapter's base, is not finite."""
    import torch

    base, merged = adapter_base(folder), folder / MERGED
    folders = [folder]
    if base:
        folders = [merged] if merged.is_dir() else [folder, base]
    files = [file for each in folders for file in sorted(each.glob("*.safetensors"))]
    for file in files:
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


# A text that a tokenizer encodes as its file says, if it is built from that file
PROBE = "What is 2 plus 13?\n\nIt's \\boxed{x + 15.5}, é 我."


def load_tokenizer(folder: Path, longest: int):
    """Return the tokenizer of a model for texts of up to `longest` tokens."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    config = model_config(folder, longest)
    file = folder / "tokenizer.json"
    with refused_by("transformers", f"{folder}: its tokenizer"):
        # Mistral's own class (for tekken.json) has not the methods of others
        tokenizer = AutoTokenizer.from_pretrained(folder, mistral_format=False)
        if file.is_file():
            ids = Tokenizer.from_file(str(file)).encode(PROBE, add_special_tokens=False).ids
            # transformers builds some tokenizers from the class that a model names, without regard
            # to this file. For DeepSeek-R1-Distill-Llama, all blanks are lost (transformers issue
            # 45488)
            if tokenizer.encode(PROBE, add_special_tokens=False) != ids:
                tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = config.get_text_config().vocab_size
    # Special tokens beyond the embedding do not occur in texts: Gemma 3 has one for images
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = [i for i in tokenizer.get_vocab().values() if i < rows or i not in special]
    if max(ids) >= rows:
        raise InputError(
            f"{folder}: its tokenizer has ids up to {max(ids)}, its model has {rows} rows for "
            "them; take the tokenizer of this model, or call resize_token_embeddings"
        )
    return tokenizer


def model_config(folder: Path, longest: int = 0) -> "PretrainedConfig":
    """Return a model's configuration, whose context must have `longest` tokens."""
    from transformers import AutoConfig

    with refused_by("transformers", str(folder / "config.json")):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    context = getattr(config.get_text_config(), "max_position_embeddings", longest)
    if longest > context:
        raise InputError(
            f"prompts and answers of up to {longest} tokens do not fit the context of {folder}, "
            f"{context} tokens; lower --max-prompt-tokens or --max-answer-tokens, or the "
            f"evaluation suite's, by {longest - context}"
        )
    return config


def check_model(folder: Path, longest: int) -> None:
    """Raise InputError if the learner cannot train the model on `longest` tokens."""
    for reason in _obstacles(folder, longest):
        raise InputError(f"{folder}: cannot be trained: {reason}; use another model")


def _obstacles(folder: Path, longest: int) -> Iterator[str]:
    """Yield why the learner cannot train a model; settings come before code that they may break."""
    from torch.nn import Conv1d

    config = model_config(folder)
    if getattr(config, "quantization_config", None):
        yield "its weights are quantised"
    if config.is_encoder_decoder:
        yield "it is an encoder-decoder"
    if config.get_text_config() is not config:
        yield "it has parts for images or sound"
    kinds = set(getattr(config, "layer_types", None) or ())
    if others := sorted(kinds - {"full_attention", "sliding_attention"}):
        yield f"it has layers of the type {' and '.join(others)}"
    if getattr(config, "attn_logit_softcapping", None):
        yield "the learner's attention has no capped attention logits"
    if getattr(config, "qk_head_dim", None) != getattr(config, "v_head_dim", None):
        yield "keys and values of its attention differ in size"
    rope = getattr(config, "rope_parameters", None) or {}
    short = rope.get("original_max_position_embeddings", longest)
    if rope.get("rope_type") == "longrope" and longest > short:
        yield (
            f"its longrope has other frequencies for texts over {short} tokens, and prompt plus "
            f"answer has {longest}"
        )
    model = empty_model(folder, config)
    if not model.is_backend_compatible():
        yield "its code does not run with the learner's attention"
    if any(isinstance(module, Conv1d) for module in model.modules()):
        yield "it has convolutions over tokens"
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        yield "the learner's attention has no sinks"


def empty_model(folder: Path, config: "PretrainedConfig") -> "PreTrainedModel":
    """Return the model that `config`, of `folder`, describes: shapes without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    with refused_by("transformers", str(folder)), torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def check_prompts(folder: Path, tokenizer, prompts: Sequence[list[int]]) -> None:
    """Raise InputError if a token id of a prompt lies beyond the embedding of the model."""
    rows = model_config(folder).get_text_config().vocab_size
    largest = max(max(prompt, default=0) for prompt in prompts)
    if largest >= rows:
        token = tokenizer.convert_ids_to_tokens(largest)
        raise InputError(
            f"{folder}: prompts contain the token {token!r} (id {largest}), and the model's "
            f"embedding has {rows} rows only; call resize_token_embeddings, or take a --template "
            "without it"
        )


# What libraries raise about the files of a model, anywhere in their code. All else, such as a lack
# of memory, is no fault of the model.
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


# vLLM's errors for too little memory, which are ValueErrors, too
GPU_SHARE = re.compile("gpu.memory.utilization", re.IGNORECASE)


@contextmanager
def refused_by(library: str, model: str) -> Iterator[None]:
    """Turn a library's refusal of a model, or a part of it, into an InputError.

    Only for a single call of the library: errors of our own code would be blamed on the model.
    """
    try:
        yield
    except Exception as error:
        # transformers raises OSError, without a number, for files that it does not find or know.
        # The tokenizers, which are written in Rust, raise Exception itself.
        is_refusal = (
            isinstance(error, REFUSALS)
            or (isinstance(error, OSError) and error.errno is None)
            or type(error) is Exception
        )
        subject = model
        if path := unwritable(error):
            subject, fault = path, "may not use it"
            cure = "correct its permissions, or free some disk space"
        elif isinstance(error, ImportError):
            fault, cure = "cannot import what this model needs", "install that, or use another"
        elif GPU_SHARE.search(str(error)):
            subject = "--gpu-memory"
            fault = f"cannot run {model} in this share of the GPU"
            cure = "change it, or end other programs on the GPU"
        elif is_refusal:
            fault, cure = "cannot run this model", "correct that, or use another model"
        else:
            raise
        raise InputError(f"{subject}: {library} {fault} ({line_of(error)}); {cure}") from error
