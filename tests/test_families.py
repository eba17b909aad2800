"""Models of every family train, stay in sync, are saved for others to load, and resume exactly.

`python dev/models_table.py` does the same with more families, and writes the table of
docs/models.md.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from bnpo.config import TINY_MODEL
from bnpo.files import ROOT, InputError
from bnpo.policy.folder import (
    INDEX,
    check_model,
    check_prompts,
    load_tokenizer,
    local_folder,
    model_folder,
    refused_by,
)
from bnpo.prompts import stop_token_ids, vocabulary_size
from conftest import python, refused, report_of, run_ranks, users_environment
from families import (
    ALSO_TRAINED,
    NOT_TRAINED,
    REFUSED_LATER,
    TRAINED,
    family_config,
    make_family,
    make_sharp,
)
from hub import COMMIT, hub

DTYPES = {"float32": 1e-6, "bfloat16": 0.02}
"""Largest mean difference per token between two computations with equal weights."""
IN_BFLOAT16 = ("qwen2", "gemma3_text", "granite", "qwen3_moe")
"""Families that are tested in that format, too: of one kind each."""


def train_family(folder: Path, family: str, dtype: str) -> dict:
    """What tests/programs/family_check.py reports of a random model of `family` on two ranks."""
    make_family(folder / family, family, **(TRAINED | ALSO_TRAINED)[family])
    return report_of(2, "family_check", folder / family, dtype)


def check_report(report: dict, dtype: str) -> None:
    # Of the checkpoint's tensors, none is missing for transformers and none is too many
    assert report["names"] == []
    assert report["moved"] > 0.01
    assert report["resumed"]
    assert max(report[name] for name in ("transformers", "vllm", "sync")) < DTYPES[dtype]


def in_test_all(family: str, *values: str):
    """The parameters of a test that `make test` runs for one family."""
    return pytest.param(family, *values, marks=pytest.mark.extra)


PAIRS = [in_test_all(family, "float32") for family in TRAINED if family != "qwen3_moe"]
PAIRS += [in_test_all(family, "bfloat16") for family in IN_BFLOAT16]


@pytest.mark.sampler
@pytest.mark.parametrize(("family", "dtype"), [("qwen3_moe", "float32"), *PAIRS])
def test_a_family_trains_in_sync_and_resumes_exactly(family, dtype, tmp_path):
    check_report(train_family(tmp_path, family, dtype), dtype)


def refuse_family(folder: Path, family: str) -> str:
    """The reason with which train.py refuses a random model of `family`, in one line before its
    first update.
    """
    settings, reason = REFUSED_LATER[family]
    model, run = folder / family, folder / "run"
    make_family(model, family, **settings)
    flags = ("--preset", "tiny", "--model", model, "--eval-every", 0, "--watch-questions", 0)
    done = run_ranks(2, "train.py", *flags, "--output-dir", run, check=False)
    assert done.returncode == 2
    [line] = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {model}: {reason}")
    assert "Traceback" not in done.stdout
    assert not (run / "metrics.jsonl").exists()
    return reason


@pytest.mark.sampler
@pytest.mark.parametrize("family", ["cohere2", in_test_all("diffllama"), in_test_all("gpt_neox")])
def test_others_are_refused_in_one_line_before_the_first_update(family, tmp_path):
    refuse_family(tmp_path, family)


def test_the_list_of_families_is_current():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    listed = text.partition("families train:\n\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == (TRAINED | ALSO_TRAINED).keys()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    refused = {name: why for name, (_, why) in (NOT_TRAINED | REFUSED_LATER).items()}
    assert {family.strip("`"): reason for family, reason in rows} == refused


@pytest.mark.parametrize("family", TRAINED | ALSO_TRAINED | NOT_TRAINED)
def test_a_family_passes_or_is_refused_with_the_reason(family, tmp_path):
    settings, reason = NOT_TRAINED.get(family) or ((TRAINED | ALSO_TRAINED)[family], None)
    family_config(family, **settings).save_pretrained(tmp_path)
    if reason is None:
        return check_model(tmp_path, 192)
    with refused(f"^{tmp_path}: cannot be trained: {reason}"):
        check_model(tmp_path, 192)


def test_settings_of_a_family_decide_too(tmp_path):
    factors = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    rope = {"rope_type": "longrope", "rope_theta": 1e4} | factors
    config = family_config("phi3", rope_parameters=rope, original_max_position_embeddings=128)
    config.save_pretrained(tmp_path)
    check_model(tmp_path, 128)
    with refused("its longrope has other frequencies for texts over 128 tokens"):
        check_model(tmp_path, 129)
    family_config("qwen2", quantization_config={"quant_method": "fp8"}).save_pretrained(tmp_path)
    with refused("its weights are quantised"):
        check_model(tmp_path, 128)
    family_config("gemma2", head_dim=32, attn_logit_softcapping=None).save_pretrained(tmp_path)
    check_model(tmp_path, 128)  # its cap on the logits of tokens is no obstacle


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(TINY_MODEL, tmp_path / "model")


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C"}},
        {"hidden_size": "wide"},
        {"pad_token_id": 288},
    ],
)
def test_settings_that_cannot_work_are_refused(changes, model):
    edit_json(model / "config.json", **changes)
    with refused("transformers cannot run this model"):
        check_model(model, 192)


CUT = "model.safetensors: is damaged, perhaps cut off"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (INDEX, b'{"weight_map": {"a": "b.safetensors"}}', f"lacks b.safetensors, which {INDEX}"),
        (INDEX, b'{"weight_map": ["a"]}', f"{INDEX}: has no weight_map of names of files"),
        ("model.safetensors", (TINY_MODEL / "model.safetensors").read_bytes()[:-9], CUT),
        ("model.safetensors", b"<html", CUT),
        ("model.safetensors", LFS, "only a git-lfs pointer"),
        ("tokenizer.json", b"{}", "its tokenizer: transformers cannot run this model"),
    ],
)
def test_files_that_are_missing_cut_off_or_something_else(name, content, message, model):
    (model / name).write_bytes(content)
    with refused(re.escape(message)):
        load_tokenizer(model_folder(str(model)), 10)


def test_tokens_beyond_the_embedding(model):
    """Special ones are allowed: Gemma 3's text models have 262,144 rows and one more, for images.
    But no prompt may have one.
    """
    edit_json(model / "config.json", vocab_size=262)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(model)
    assert len(load_tokenizer(model, 10)) == 263
    prompt = tokenizer.encode("<image>1+2=?")
    with refused(r"prompts contain the token '<image>' \(id 262\), and the model's embedding"):
        check_prompts(model, tokenizer, [[1, 2], prompt])
    check_prompts(model, tokenizer, [[1, 261]])
    tokenizer.add_tokens(["word"])
    tokenizer.save_pretrained(model)
    with refused("its tokenizer has ids up to 263, its model has 262 rows"):
        load_tokenizer(model, 10)


def test_ids_with_gaps_count_to_the_largest(model):
    """Phi-4-mini's end of a turn has an id behind the number of its tokens."""
    content = json.loads((model / "tokenizer.json").read_text())
    [end] = [token for token in content["added_tokens"] if token["content"] == "<|im_end|>"]
    content["model"]["vocab"].pop("<|im_end|>", None)
    end["id"] = 280
    content["model"]["vocab"]["<|im_end|>"] = 280
    (model / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(model, 10)
    assert 280 in stop_token_ids(tokenizer)
    assert len(tokenizer) < vocabulary_size(tokenizer) == 281


def test_a_tokenizer_has_the_ids_of_its_file_whatever_class_its_model_names(model):
    """transformers builds Llama's own tokenizer, as for DeepSeek-R1-Distill-Llama-8B."""
    before = load_tokenizer(model, 10)
    edit_json(model / "config.json", model_type="llama")
    edit_json(model / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    text = "What is 2+3?\n\nIt is \\boxed{5}."
    broken = AutoTokenizer.from_pretrained(model)
    assert broken.decode(broken.encode(text, add_special_tokens=False)) != text
    tokenizer = load_tokenizer(model, 10)
    assert tokenizer.encode(text) == before.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.eos_token, tokenizer.chat_template) == (
        before.eos_token,
        before.chat_template,
    )
    tokenizer.save_pretrained(model / "saved")
    (model / "saved" / "config.json").write_bytes((model / "config.json").read_bytes())
    assert load_tokenizer(model / "saved", 10).encode(text) == before.encode(text)


def test_a_mistral_model_has_the_tokenizer_of_transformers(model):
    edit_json(model / "config.json", model_type="mistral")
    (model / "tekken.json").write_text("{}")
    assert load_tokenizer(model, 10).get_vocab()


def test_an_adapter_as_the_model_is_called_one_whatever_its_folder_lacks(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with refused("^--model: .* is a LoRA adapter; name its subfolder merged/, or merge it first$"):
        model_folder(str(tmp_path), weights=False, adapters=False)


HUB_PROGRAM = """
import sys
from bnpo.policy.folder import model_folder
from bnpo.files import InputError
try:
    print(model_folder(sys.argv[1], weights=len(sys.argv) == 2))
except InputError as error:
    print("refused:", error)
"""


@pytest.mark.program
@pytest.mark.extra
def test_a_model_of_the_hub_is_downloaded_in_the_revision_that_is_named(tmp_path):
    files = {file.name: file.read_bytes() for file in TINY_MODEL.iterdir()}
    with hub("me/model", files) as endpoint:

        def download(name: str, cache: object) -> str:
            variables = {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(cache)}
            environment = users_environment() | variables
            return python("-c", HUB_PROGRAM, name, environment=environment).stdout.strip()

        for revision in ("", f"@{COMMIT}", "@main"):
            cache = tmp_path / f"cache{revision}"
            snapshots = cache / "models--me--model" / "snapshots"
            assert download(f"me/model{revision}", cache) == str(snapshots / COMMIT)
        wrong = download("me/model@v2", tmp_path / "v2")
        unwritable = download("me/model", "/sys/hub")
    assert wrong.startswith("refused: me/model@v2: no such local folder, and the download")
    assert wrong.endswith("; check name, revision and network, or name a local copy")
    named = "refused: me/model: the model hub's cache cannot be written, /sys/hub ("
    assert unwritable.startswith(named)


@pytest.mark.program
@pytest.mark.extra
def test_a_model_of_the_hub_without_safetensors_is_refused_before_its_weights_are_fetched(tmp_path):
    files = {file.name: file.read_bytes() for file in TINY_MODEL.iterdir()}
    own = {"HF_HUB_CACHE": str(tmp_path)}

    def without_weights(files: dict[str, bytes]) -> str:
        with hub("me/model", files) as endpoint:
            environment = users_environment() | own | {"HF_ENDPOINT": endpoint}
            arguments = (HUB_PROGRAM, "me/model", "without")
            return python("-c", *arguments, environment=environment).stdout.strip()

    folder = without_weights(files)
    assert Path(folder, "config.json").is_file()
    assert not [*Path(folder).glob("*.safetensors")]
    files["pytorch_model.bin"] = files.pop("model.safetensors")
    assert without_weights(files).startswith("refused: me/model: holds no *.safetensors; write")


def test_a_run_that_evaluated_nothing_has_no_best_checkpoint(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with refused(
        f"best: this run has no best checkpoint, because .*; name {tmp_path} for its last"
    ):
        local_folder(str(tmp_path / "best"))


NO_NAME = "no such model folder, nor a hub name like Qwen/Qwen2.5-Math-1.5B, which @REVISION"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        *((f"Qwen/Qwen3-0.6B@{end}", NO_NAME) for end in ("", "a b", "/main")),
        *((name, NO_NAME) for name in ("Qwen3-0.6B@main", "/models/Qwen3@main")),
        *((f"me/model@{end}", None) for end in (COMMIT, "4a83ca6", "v1.0-rc_2", "refs/pr/1")),
    ],
)
def test_names_and_revisions_of_the_hub(model, message, tmp_path, monkeypatch):
    if message:
        with refused(f"^{re.escape(model)}: .*{re.escape(message)}"):
            local_folder(model)
        return
    assert local_folder(model) is None
    monkeypatch.chdir(tmp_path)  # a folder with an @ is a folder
    folder = tmp_path / model
    folder.mkdir(parents=True)
    assert local_folder(model) == folder


@pytest.mark.parametrize(
    ("error", "is_refusal"),
    [
        (ValueError("no such architecture"), True),
        (KeyError("model_type"), True),
        (Exception("of the tokenizers in Rust"), True),
        (OSError("no file named model.safetensors"), True),
        (PermissionError(13, "Permission denied", "/model/config.json"), True),
        (ImportError("this tokenizer requires the package tiktoken"), True),
        (RuntimeError("a collective failed"), False),
        (MemoryError(), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
    ],
)
def test_only_a_librarys_refusal_is_blamed_on_the_model(error, is_refusal):
    expected = InputError if is_refusal else type(error)
    with pytest.raises(expected) as raised, refused_by("vLLM", "some/model"):
        raise error
    assert raised.type is expected
    assert not is_refusal or str(error) in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "Free memory on device cuda:0 (20/24 GiB) on startup is less than desired GPU memory "
        "utilization (0.95, 22.8 GiB). Decrease GPU memory utilization or reduce GPU memory used",
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when",
    ],
)
def test_a_share_of_the_gpu_is_no_fault_of_the_model(text):
    fault = r"^--gpu-memory: vLLM cannot run some/model in this share of the GPU \(ValueError"
    with refused(fault), refused_by("vLLM", "some/model"):
        raise ValueError(text)


TEXTS = (
    "Tom has 5 apples and buys 7 more. How many apples does Tom have now? Natalia sold clips to 48 "
    "of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?",
    "Let a be a positive real number such that all the roots of x^3 + ax^2 + ax + 1 = 0 are real. "
    "Find the smallest possible value of a.",
    "1+1=? 2",
)
MIXED = {"attention scale", "packed answers mix"}


@pytest.mark.sampler
@pytest.mark.extra
@pytest.mark.parametrize(
    ("family", "dtype", "faults"),
    [
        ("sharp", "bfloat16", MIXED | {"layer of another", "rotary base"}),
        ("sharp", "float32", MIXED | {"layer of another", "rotary base"}),
        ("sharp", "float16", MIXED | {"layer of another", "rotary base"}),
        ("gemma3_text", "bfloat16", MIXED | {"window ignored"}),
        ("granite", "bfloat16", {"logits not scaled or capped"}),
    ],
)
def test_the_proof_of_the_start_sees_faults_and_no_others(family, dtype, faults, tmp_path, request):
    if dtype == "float16":
        request.getfixturevalue("float16")
    if family == "sharp":
        make_sharp(tmp_path / family)
    else:
        make_family(tmp_path / family, family, **TRAINED[family])
    report = report_of(1, "bounds_check", tmp_path / family, dtype, *TEXTS)
    found = {name for name, error in report["errors"].items() if "explains" in error}
    assert found >= faults, report["errors"]
    if "layer of another" in faults:
        assert "weight sync after step 1 failed: the sampler's and the" in report["lost later"]
    # Answers at three temperatures and random tokens. The bound is that of the text that is rounded
    # least.
    assert max(report["gaps"]) < report["bound"]
    for healthy in report["checks"]:  # other texts of the task
        assert max(healthy["learner"], healthy["apart"]) < 2 * healthy["rounding"] + 2e-4


@pytest.mark.sampler
@pytest.mark.extra
def test_a_model_whose_weights_are_not_there(tmp_path):
    """A tokenizer and the config.json of a model of 48 layers, 1,000 GB in fp32."""
    config = family_config("gemma3_text", num_hidden_layers=48, head_dim=32, vocab_size=2 * 10**9)
    config.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    # Of a model on the hub, the index of its weights comes with the other JSON files
    index = {
        "metadata": {},
        "weight_map": {"model.norm.weight": "model-00001-of-00009.safetensors"},
    }
    (tmp_path / INDEX).write_text(json.dumps(index))
    printed = run_ranks(0, "scripts/check_model.py", tmp_path).stdout
    assert f"{tmp_path}: trains\n" in printed
    shape = "compared with random weights, 2 layers of the model's shape, a vocabulary of 4096"
    assert shape in printed
    differences = r"mean difference of .* code: (\S+) in the learner, (\S+) in the sampler\n"
    assert max(map(float, re.search(differences, printed).groups())) < 1e-5
    assert "its tokenizer has no chat template: train it with --template FILE" in printed
