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
    check_model,
    check_prompts,
    load_tokenizer,
    local_folder,
    model_folder,
    refused_by,
)
from bnpo.prompts import chat_template
from check_model import two_layers
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


@pytest.mark.sampler
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, "float32") for family in TRAINED),
        *((family, "bfloat16") for family in IN_BFLOAT16),
    ],
)
def test_a_family_trains_in_sync_and_resumes_exactly(family, dtype, tmp_path):
    check_report(train_family(tmp_path, family, dtype), dtype)


def refuse_family(folder: Path, family: str) -> str:
    """The reason with which train.py refuses a random model of `family`, in one line before its
    first update.
    """
    settings, reason = REFUSED_LATER[family]
    model, run = folder / family, folder / "run"
    make_family(model, family, **settings)
    flags = (
        "--preset",
        "tiny",
        "--model",
        model,
        "--eval-every",
        0,
        "--watch-questions",
        0,
        "--output-dir",
        run,
    )
    done = run_ranks(2, "train.py", *flags, check=False)
    assert done.returncode == 2
    [line] = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {model}: {reason}")
    assert "Traceback" not in done.stdout
    assert not (run / "metrics.jsonl").exists()
    return reason


@pytest.mark.sampler
@pytest.mark.parametrize("family", ["cohere2", "diffllama", "gpt_neox"])
def test_others_are_refused_in_one_line_before_the_first_update(family, tmp_path):
    refuse_family(tmp_path, family)


def test_the_list_of_families_is_current():
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    listed = text.partition("families train:\n\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == (TRAINED | ALSO_TRAINED).keys()
    assert f"These {len(TRAINED | ALSO_TRAINED)} families train:" in " ".join(text.split())
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    refused = NOT_TRAINED | REFUSED_LATER
    assert {family.strip("`"): reason for family, reason in rows} == {
        name: why for name, (_, why) in refused.items()
    }


@pytest.mark.parametrize("family", TRAINED | ALSO_TRAINED)
def test_families_that_train_pass(family, tmp_path):
    family_config(family, **(TRAINED | ALSO_TRAINED)[family]).save_pretrained(tmp_path)
    check_model(tmp_path, 192)


@pytest.mark.parametrize("family", NOT_TRAINED)
def test_other_families_are_refused_with_the_reason(family, tmp_path):
    settings, reason = NOT_TRAINED[family]
    family_config(family, **settings).save_pretrained(tmp_path)
    with pytest.raises(InputError) as refusal:
        check_model(tmp_path, 192)
    assert str(refusal.value).startswith(f"{tmp_path}: cannot be trained: {reason}")
    assert "\n" not in str(refusal.value)


def test_settings_of_a_family_decide_too(tmp_path):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 16,
        "long_factor": [2.0] * 16,
    }
    family_config(
        "phi3", rope_parameters=rope, original_max_position_embeddings=128
    ).save_pretrained(tmp_path)
    check_model(tmp_path, 128)
    with pytest.raises(
        InputError, match="its longrope has other frequencies for texts over 128 tokens"
    ):
        check_model(tmp_path, 129)
    family_config("qwen2", quantization_config={"quant_method": "fp8"}).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="its weights are quantised"):
        check_model(tmp_path, 128)
    family_config("gemma2", head_dim=32, attn_logit_softcapping=None).save_pretrained(tmp_path)
    check_model(tmp_path, 128)  # its cap on the logits of tokens is no obstacle


def test_code_from_the_hub_and_broken_settings_are_refused(tmp_path):
    settings = json.loads((TINY_MODEL / "config.json").read_text())
    for changes in (
        {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}},
        {"hidden_size": "wide"},
    ):
        (tmp_path / "config.json").write_text(json.dumps(settings | changes))
        with pytest.raises(
            InputError, match=r"config\.json: transformers cannot run this model \("
        ):
            check_model(tmp_path, 192)


@pytest.fixture
def model(tmp_path):
    return shutil.copytree(TINY_MODEL, tmp_path / "model")


def test_a_folder_without_one_of_its_shards(model):
    (model / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-00002-of-2.safetensors"}}'
    )
    with pytest.raises(
        InputError,
        match=r"model: lacks model-00002-of-2\.safetensors, which model\.safetensors\.index",
    ):
        model_folder(str(model))
    (model / "model.safetensors.index.json").write_text('{"weight_map": ["model.safetensors"]}')
    with pytest.raises(
        InputError, match=r"model\.safetensors\.index\.json: has no weight_map of names of files"
    ):
        model_folder(str(model))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[: len(whole) // 2], "model.safetensors: is damaged, perhaps cut off"),
        (lambda whole: whole[:5], "model.safetensors: is damaged, perhaps cut off"),
        (
            lambda whole: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
            "only a git-lfs pointer",
        ),
        (lambda whole: b"<html>not found</html>", "model.safetensors: is damaged"),
    ],
)
def test_weights_that_are_cut_off_or_no_weights(model, content, message):
    file = model / "model.safetensors"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(InputError, match=message):
        model_folder(str(model))


def test_a_tokenizer_that_cannot_be_loaded(model):
    (model / "tokenizer.json").write_text("{}")
    with pytest.raises(
        InputError, match="model: its tokenizer: transformers cannot run this model"
    ):
        load_tokenizer(model, 10)


def test_special_tokens_beyond_the_embedding_are_allowed(model):
    """Gemma 3's text models have 262,144 rows and one more token, for images."""
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"vocab_size": 262}))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(model)
    assert len(load_tokenizer(model, 10)) == 263
    tokenizer.add_tokens(["word"])
    tokenizer.save_pretrained(model)
    with pytest.raises(InputError, match="its tokenizer has 264 tokens, its model 262"):
        load_tokenizer(model, 10)


def edit_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_padding_token_beyond_the_embedding_is_named(model):
    edit_json(model / "config.json", pad_token_id=288)
    with refused(r"config\.json: pad_token_id 288 lies beyond the embedding, whose 288 rows"):
        check_model(model, 10)


def test_a_token_of_the_prompts_beyond_the_embedding_is_named(model):
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    added = [f"<{i}>" for i in range(rows - len(tokenizer))] + ["<user>"]
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    prompt = tokenizer.encode("<user>1+2=?")
    assert max(prompt) == rows
    with refused(rf"prompts contain the token '<user>' \(id {rows}\), and the model's embedding"):
        check_prompts(model, tokenizer, [[1, 2], prompt])
    check_prompts(model, tokenizer, [[1, rows - 1]])


def test_several_chat_templates_without_a_default_are_named(model):
    template = (model / "chat_template.jinja").read_text()
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = {"tool_use": template, "rag": template}
    with refused(r"several chat templates \(rag, tool_use\), but no default; choose one with"):
        chat_template(tokenizer, "chat")
    tokenizer.chat_template = {"tool_use": template, "default": template}
    assert chat_template(tokenizer, "chat") == template


def test_an_adapter_as_the_model_is_called_one_whatever_its_folder_lacks(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with refused("^--model: .* is a LoRA adapter; name its subfolder merged/, or merge it first$"):
        model_folder(str(tmp_path), weights=False, adapters=False)


HUB_PROGRAM = """
from bnpo.policy.folder import model_folder
from bnpo.files import InputError
try:
    print(model_folder("me/model"))
except InputError as error:
    print("refused:", error)
"""


@pytest.mark.program
def test_a_hub_cache_that_cannot_be_written_is_the_cause_that_is_named(tmp_path):
    files = {file.name: file.read_bytes() for file in TINY_MODEL.iterdir()}
    with hub("me/model", files) as endpoint:
        printed = {
            cache: python(
                "-c",
                HUB_PROGRAM,
                environment=users_environment() | {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": cache},
            ).stdout
            for cache in ("/sys/hub", str(tmp_path))
        }
    assert (
        "refused: me/model: the model hub's cache cannot be written (/sys/hub: "
        in (printed["/sys/hub"])
    )
    assert printed[str(tmp_path)].startswith(str(tmp_path))


@pytest.mark.program
def test_the_revision_of_a_hub_name_is_the_one_that_is_downloaded(tmp_path):
    files = {file.name: file.read_bytes() for file in TINY_MODEL.iterdir()}
    found = {}
    with hub("me/model", files) as endpoint:
        for revision in (COMMIT, "main", "v2"):
            cache = tmp_path / revision
            found[revision] = python(
                "-c",
                HUB_PROGRAM.replace("me/model", f"me/model@{revision}"),
                environment=users_environment()
                | {"HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(cache)},
            ).stdout.strip()
    for revision in (COMMIT, "main"):
        snapshots = tmp_path / revision / "models--me--model" / "snapshots"
        assert found[revision] == str(snapshots / COMMIT)
    assert found["v2"].startswith("refused: me/model@v2: no such local folder, and the download")
    assert found["v2"].endswith("; check name, revision and network, or name a local copy")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Qwen/Qwen3-0.6B@", "what follows the @ is no revision of the hub; write OWNER/NAME@REV"),
        ("Qwen/Qwen3-0.6B@a@b", "what follows the @ is no revision of the hub"),
        ("Qwen/Qwen3-0.6B@a b", "what follows the @ is no revision of the hub"),
        ("Qwen/Qwen3-0.6B@/main", "what follows the @ is no revision of the hub"),
        ("Qwen3-0.6B@main", "no such model folder, nor a hub name"),
        ("/models/Qwen3@main", "no such model folder, nor a hub name"),
        ("@main", "no such model folder, nor a hub name"),
    ],
)
def test_a_malformed_revision_is_refused_in_one_line(model, message):
    with refused(f"^{re.escape(model)}: .*{re.escape(message)}[^\n]*$"):
        local_folder(model)


@pytest.mark.parametrize("revision", [COMMIT, "4a83ca6", "main", "v1.0-rc_2", "refs/pr/1"])
def test_revisions_of_the_hub(revision):
    assert local_folder(f"me/model@{revision}") is None


def test_a_folder_with_an_at_sign_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "me" / "model@main"
    folder.mkdir(parents=True)
    assert local_folder("me/model@main") == folder


@pytest.mark.parametrize(
    ("error", "is_refusal"),
    [
        (ValueError("no such architecture"), True),
        (KeyError("model_type"), True),
        (Exception("of the tokenizers in Rust"), True),
        (OSError("no file named model.safetensors"), True),
        (PermissionError(13, "Permission denied", "/model/config.json"), True),
        (RuntimeError("a collective failed"), False),
        (MemoryError(), False),
        (ImportError("this tokenizer requires the package tiktoken"), True),
        (ConnectionResetError(104, "Connection reset by peer"), False),
    ],
)
def test_only_a_librarys_refusal_is_blamed_on_the_model(error, is_refusal):
    expected = InputError if is_refusal else type(error)
    with pytest.raises(expected) as raised, refused_by("vLLM", "some/model"):
        raise error
    assert raised.type is expected
    if is_refusal:
        assert str(error) in str(raised.value)


TEXTS = (
    "Tom has 5 apples and buys 7 more. How many apples does Tom have now? Natalia sold clips to 48 "
    "of her friends in April, and then she sold half as many clips in May. How many clips did "
    "Natalia sell altogether in April and May?",
    "Let a be a positive real number such that all the roots of x^3 + ax^2 + ax + 1 = 0 are real. "
    "Find the smallest possible value of a.",
    "1+1=? 2",
)
FAULTS = {"attention scale", "packed answers mix", "layer of another", "rotary base"}


def check_bounds(folder: Path, dtype: str, faults: set[str]) -> None:
    report = report_of(1, "bounds_check", folder, dtype, *TEXTS)
    refused = {name for name, error in report["errors"].items() if "explains" in error}
    assert refused >= faults, report["errors"]
    # Answers at three temperatures and random tokens. The bound is that of the text that is rounded
    # least.
    assert max(report["gaps"]) < report["bound"]
    for healthy in report["checks"]:  # other texts of the task
        assert max(healthy["learner"], healthy["apart"]) < 2 * healthy["rounding"] + 2e-4


@pytest.mark.sampler
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_a_deep_model_with_sharp_predictions(dtype, tmp_path, request):
    if dtype == "float16":
        request.getfixturevalue("float16")
    make_sharp(tmp_path)
    check_bounds(tmp_path, dtype, FAULTS)


@pytest.mark.sampler
def test_a_window_that_is_ignored(tmp_path):
    make_family(tmp_path / "model", "gemma3_text", **TRAINED["gemma3_text"])
    check_bounds(
        tmp_path / "model", "bfloat16", {"window ignored", "packed answers mix", "attention scale"}
    )


@pytest.mark.sampler
def test_logits_that_are_not_scaled(tmp_path):
    make_family(tmp_path / "model", "granite", **TRAINED["granite"])
    check_bounds(tmp_path / "model", "bfloat16", {"logits not scaled or capped"})


DIFFERENCES = r"mean difference of .* code: (\S+) in the learner, (\S+) in the sampler\n"


@pytest.fixture
def shape(tmp_path):
    """A folder with a tokenizer and the config.json of a model of 48 layers, 1,000 GB in fp32."""
    config = family_config("gemma3_text", num_hidden_layers=48, head_dim=32, vocab_size=2 * 10**9)
    config.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(TINY_MODEL).save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    return tmp_path


@pytest.mark.sampler
def test_a_model_whose_weights_are_not_there(shape):
    printed = run_ranks(0, "scripts/check_model.py", shape).stdout
    assert f"{shape}: trains\n" in printed
    assert (
        "compared with random weights, 2 layers of the model's shape, a vocabulary of 4096, in fp32"
        in printed
    )
    assert max(map(float, re.search(DIFFERENCES, printed).groups())) < 1e-5
    assert "its tokenizer has no chat template: train it with --template FILE" in printed


def test_two_layers_are_of_different_kinds():
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    short = two_layers(
        family_config("gemma3_text", num_hidden_layers=6, layer_types=kinds, sliding_window=512)
    )
    assert (short.num_hidden_layers, short.layer_types) == (
        2,
        ["sliding_attention", "full_attention"],
    )
    assert short.sliding_window == 16
