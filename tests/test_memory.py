"""The memory of a rank: compared with what the learner takes, and with the sizes and GPUs that it decides about."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, Qwen2Config

import fitting
import reproduce
from bnpo.config import TINY_MODEL, Planning, parse_train_config
from bnpo.files import ROOT, InputError
from bnpo.planning.dry_run import (
    TokenLengths,
    checkpoints_at_once,
    find_model,
    plan_training,
    run_on,
    sampling_seconds,
    speed_of,
    training_inputs,
    update_seconds,
)
from bnpo.planning.memory import (
    GIB,
    USABLE,
    MemoryPlan,
    PlannedRun,
    SamplerNeeds,
    explain_problem,
    fitting_changes,
    flags_text,
    plan_here,
    plan_memory,
    read_shape,
    share_of_free,
)
from conftest import make_model, report_of, run_ranks
from families import family_config

COMMON = {"vocab_size": 151936, "num_hidden_layers": 28, "max_position_embeddings": 4096}
SHAPES = {
    "1.5b": COMMON
    | {"hidden_size": 1536, "intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
    | {"tie_word_embeddings": True},
    "7b": COMMON
    | {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
    | {"tie_word_embeddings": False, "vocab_size": 152064},
}
GPU = int(79.2 * GIB)
"""What a GPU of 80 GB has."""


@pytest.fixture(scope="module")
def shapes(tmp_path_factory) -> dict:
    """The two models of the paper, read from folders that hold nothing but config.json."""
    folders = {name: tmp_path_factory.mktemp(name) for name in SHAPES}
    for name, folder in folders.items():
        Qwen2Config(**SHAPES[name]).save_pretrained(folder)
    return {name: read_shape(folder) for name, folder in folders.items()}


def run_of(shapes, model: str, ranks: int, *flags: str, gpu: int = GPU, host: int = 1000 * GIB) -> PlannedRun:
    config, _ = parse_train_config(["--preset", f"paper-{model}", *flags], has_cuda=True)
    return PlannedRun(shapes[model], config, 4096, ranks, ranks, gpu, host)


def planned(shapes, model: str, ranks: int, *flags: str) -> MemoryPlan:
    return plan_memory(run_of(shapes, model, ranks, *flags))


def refusal(run: PlannedRun) -> str:
    """Return the line with which a start of `run` is refused."""
    return explain_problem(run, plan_memory(run).problem)


def test_shapes_are_exact_without_weights(shapes):
    assert (shapes["1.5b"].parameters, shapes["1.5b"].tied) == (1_543_714_304, True)
    assert (shapes["7b"].parameters, shapes["7b"].tied) == (7_615_616_512, False)
    assert shapes["7b"].layer == 233_057_792
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    assert read_shape(TINY_MODEL).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_layers_of_different_sizes_count_as_the_largest(tmp_path):
    family_config("gemma4_text", head_dim=32, global_head_dim=64, num_kv_shared_layers=0).save_pretrained(tmp_path)
    assert read_shape(tmp_path).head_size == 64


def test_whole_layers_are_prefetched(shapes):
    from bnpo.policy.learner import prefetch_bucket  # DeepSpeed, where it is needed

    assert prefetch_bucket(shapes["7b"].layer) == shapes["7b"].layer
    assert prefetch_bucket(shapes["1.5b"].layer) == 50_000_000


@pytest.mark.parametrize(("model", "ranks"), [("1.5b", 1), ("1.5b", 4), ("7b", 4), ("7b", 8)])
def test_the_papers_runs_fit_80_gb_by_themselves(shapes, model, ranks):
    plan = planned(shapes, model, ranks)
    assert plan.problem == ""
    assert all(plan.rank.total(phase) <= USABLE * GPU for phase in plan.rank.phases)
    assert plan.sequences == 512 // ranks  # all answers at once


def test_the_7b_on_four_gpus_with_half_the_memory_for_the_sampler(shapes):
    """Computed by hand: 31.9 GiB of the learner, 39.6 of vLLM, 73 together, which is too much when the learner scores.

    Gathered are a layer, the next one, one that stays, their copies on arrival, and the head."""
    plan = planned(shapes, "7b", 4, "--gpu-memory", "0.5")
    parts, shape = plan.rank.phases["sampling"], shapes["7b"]
    gathered = 2 * (5 * shape.layer + shape.head)
    held = sum(parts[name] for name in ("weights", "gradients", "optimizer")) - gathered
    assert held / GIB == pytest.approx(31.9 + 0.2, abs=0.05)  # and the buffer of 5e7 gradients in fp32
    assert parts["sampler"] / GIB == pytest.approx(39.6, abs=0.05)
    assert plan.scoring == gathered + parts["activations"]
    assert (plan.rank.total("sampling") - plan.scoring) / GIB == pytest.approx(73, abs=1)
    assert plan.problem
    assert 0.35 <= planned(shapes, "7b", 4).gpu_memory < 0.5


@pytest.mark.parametrize(
    ("model", "ranks", "flags", "message"),
    [
        (
            "7b",
            1,
            [],
            r"1 x 79\.2 GiB of GPU memory are too little: '\w+' takes 1\d\d\.\d GiB per rank \(optimizer 85.1, ",
        ),
        ("7b", 2, [], "2 x 79.2 GiB of GPU memory"),
        ("7b", 4, ["--gpu-memory", "0.5"], "--gpu-memory 0.4"),
        ("7b", 8, ["--no-gradient-checkpointing"], r"'backward' takes .* \(activations"),
        ("7b", 8, ["--no-gradient-checkpointing", "--max-answer-tokens", "15360"], "; --gradient-checkpointing makes"),
        ("1.5b", 1, ["--gpu-memory", "0.05"], r"--gpu-memory 0.05 is 4.0 GiB, but the sampler needs \d"),
        ("1.5b", 1, ["--gpu-memory", "0.99", "--no-gradient-checkpointing"], "--gpu-memory"),
    ],
)
def test_what_cannot_fit_is_refused_in_one_line_whose_flags_make_it_fit(shapes, model, ranks, flags, message):
    text = refusal(run_of(shapes, model, ranks, *flags))
    assert re.search(message, text)
    assert "\n" not in text
    cure = text.split("; ")[1]
    assert "makes it fit" in cure
    advised = shlex.split(cure.split(" makes it fit")[0])
    assert planned(shapes, model, ranks, *flags, *advised).problem == ""


@pytest.mark.parametrize("beyond", [-GIB, 0, GIB, 10 * GIB, GPU])
def test_the_sampler_gets_what_the_learner_leaves(shapes, beyond):
    """`beyond` are bytes that the learner holds beyond its plan, moments of AdamW and all."""
    plan = planned(shapes, "7b", 4)
    held = plan.rank.total("sampling") - plan.scoring - plan.rank.phases["sampling"]["sampler"]
    share = share_of_free(plan, GPU - held - beyond, GPU)
    if beyond == 0:
        assert share == plan.gpu_memory
    # The learner can score beside it.
    assert share == 0 or held + beyond + share * GPU + plan.scoring <= USABLE * GPU
    assert share == pytest.approx(max(0, plan.gpu_memory - beyond / GPU), abs=0.002)


def test_a_sampler_gets_no_more_than_it_can_use(shapes):
    plan = planned(shapes, "1.5b", 4)
    assert share_of_free(plan, GPU, GPU) == int(1000 * plan.most / GPU) / 1000 < 0.5


@pytest.mark.parametrize(
    ("model", "gpus", "gpu", "flags", "needed"),  # with LoRA, the flags with which alone it fits; None: with none
    [
        ("Qwen2.5-Math-1.5B", 1, "RTX-5080", (), ""),
        ("Qwen2.5-Math-7B", 1, "L40S", (), ""),
        ("Qwen2.5-Math-7B", 1, "RTX-4090", (), None),
        ("Qwen2.5-Math-7B", 1, "RTX-5090", (), "--offload-weights"),
        ("Qwen2.5-32B", 8, "H100", (), "--sampler-ranks 2"),
        ("Qwen2.5-32B", 8, "H100", ("--sampler-ranks", "2"), ""),
        ("Qwen2.5-72B", 16, "H100", (), "--sampler-ranks 4"),
    ],
)
def test_what_fits_with_lora(model, gpus, gpu, flags, needed):
    shape = read_shape(ROOT / "data" / "models" / model)
    config, _ = parse_train_config(["--preset", "paper-1.5b", "--lora-rank", "32", *flags], has_cuda=True)
    run = run_on(gpus, speed_of(gpu), shape, config, 4096)
    changes = fitting_changes(run)
    assert flags_text(changes) == (needed or "")
    assert bool(plan_memory(run.with_settings(**changes)).problem) == (needed is None)


def test_a_shared_sampler_has_a_part_of_weights_and_cache_on_each_rank(shapes):
    whole, shared = (planned(shapes, "7b", 8, "--sampler-ranks", size).rank.phases["sync"] for size in ("1", "4"))
    weights = 2 * (shapes["7b"].parameters + shapes["7b"].head)
    assert whole["sampler"] - shared["sampler"] == weights - weights // 4
    one, four, eight = (SamplerNeeds.of(shapes["7b"], 2, gpus, 4096).token for gpus in (1, 4, 8))
    assert eight == four == one // 4  # 4 key heads: of 8 ranks, two hold the same


def test_offloaded_weights_are_in_cpu_memory(shapes):
    flags = ("--lora-rank", "32", "--gpu-memory", "0.4")
    on_gpu, offloaded = (planned(shapes, "7b", 1, *flags, *more).rank for more in ((), ("--offload-weights",)))
    assert offloaded.offloaded == on_gpu.phases["sampling"]["weights"] > 2 * 7.6e9
    assert on_gpu.offloaded == 0
    assert "weights" not in offloaded.phases["optimizer"]
    assert 0 < offloaded.phases["backward"]["weights"] < 7.6e9  # gathered, also on a single rank


def test_offloading_needs_the_memory_of_the_machine(shapes):
    """20 bytes per parameter, 12 of them pinned in pieces whose sizes are powers of two."""
    text = refusal(run_of(shapes, "7b", 1, "--offload-optimizer", host=128 * GIB))
    assert "offloading takes 152.7 GiB of 128.0 GiB of CPU memory; --lora-rank 32 makes" in text


def test_the_check_for_overflows_in_fp16_takes_five_bytes_per_gradient(shapes):
    half, brain = (planned(shapes, "7b", 4, "--dtype", dtype).rank for dtype in ("float16", "bfloat16"))
    partition = shapes["7b"].parameters // 4
    assert half.phases["optimizer"]["optimizer"] >= (12 + 5) * partition
    assert half.total("optimizer") >= brain.total("optimizer")


@pytest.fixture
def gpu_of(monkeypatch):
    """Return a function after which this machine has one GPU of a size, with so much free."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)

    def pretend(total: int, free: int) -> None:
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=total))
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (free, total))

    return pretend


def test_a_gpu_with_a_display_gets_a_smaller_sampler(gpu_of):
    """The plan takes all of a GPU of 24 GB. With 0.7 GiB less, the sampler has less, and the run starts."""
    gpu = int(23.5 * GIB)
    gpu_of(gpu, free=gpu - int(0.9 * GIB))
    config, _ = parse_train_config(["--preset", "paper-1.5b", "--lora-rank", "32"], has_cuda=True)
    plan = plan_here(config, ROOT / "data" / "models" / "Qwen2.5-Math-1.5B", 4096)
    assert plan.rank.total("sampling") > gpu - 0.9 * GIB


def test_a_gpu_must_have_free_what_is_planned(gpu_of):
    config, _ = parse_train_config(["--preset", "tiny"], has_cuda=True)
    gpu_of(80 * GIB, free=79 * GIB)
    plan = plan_here(config, TINY_MODEL, 192)
    sampling = plan.rank.total("sampling") - plan.rank.phases["sampling"]["sampler"] + plan.least
    gpu_of(80 * GIB, free=max(sampling, plan.rank.total("backward")) - 1)
    with pytest.raises(InputError, match=r"^GPU 0: [\d.]+ of 80\.0 GiB are free, but "):
        plan_here(config, TINY_MODEL, 192)


@pytest.mark.program
def test_the_learner_takes_what_is_counted(tmp_path):
    """23M parameters on two ranks. Which phase of a real update is the largest depends on the setting.

    One rank, whose weights are never gathered, was measured by hand (dev/LOG.md), because it takes a minute."""
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
    make_model(tmp_path, vocab_size=16384, **shape)
    report = report_of(2, "memory_check", tmp_path)
    ratios = {name: case["measured"] / case["counted"] for name, case in report.items()}
    assert ratios == {name: pytest.approx(1, abs=0.15) for name in report}
    phases = {case["phase"] for case in report.values()}
    assert phases == {"backward", "optimizer"}


SHAPE = read_shape(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B")
H20 = speed_of("H20")
LENGTHS = TokenLengths(prompt=100, answer=600, longest=3072)


def config(*flags: str):
    return parse_train_config(["--preset", "paper-1.5b", *flags], has_cuda=True)[0]


def on_four_gpus(*flags: str) -> PlannedRun:
    return run_on(4, H20, SHAPE, config(*flags), 4096)


def test_one_answer_reads_weights_and_cache_for_every_token():
    """3.087e9 bytes of weights at 60 % of 4e12 a second are 1.286 ms, 28,672 bytes of cache for each of some 140 tokens
    1.7 us, scheduling 5 ms."""
    seconds = sampling_seconds(SHAPE, H20, TokenLengths(100, 100, 100), answers=1, at_once=1, samplers=1)
    tokens = np.exp(-np.arange(100) / 100).sum()  # of an answer of 100 on average, cut off there
    assert seconds == pytest.approx(tokens * 0.006288, rel=1e-3)


def test_many_answers_are_bound_by_products_and_wait_for_the_longest():
    one = sampling_seconds(SHAPE, H20, LENGTHS, answers=128, at_once=128, samplers=1)
    four = sampling_seconds(SHAPE, H20, LENGTHS, answers=128, at_once=128, samplers=4)
    assert 0 < four - one < 0.3 * one  # the longest of 512, not of 128
    # The first token of 128 answers: 2 * 1.5437e9 * 128 products at 59.2e12 a second are 6.7 ms, more than reading.
    waves = sampling_seconds(SHAPE, H20, LENGTHS, answers=1280, at_once=128, samplers=1)
    assert waves - one == pytest.approx(9 * 600 * (0.00668 + 0.005), rel=1e-2)


def test_an_update_has_the_operations_of_its_tokens():
    rng = np.random.default_rng(0)
    answers = rng.exponential(600, (200, 512))
    tokens = 32 * 100 + answers.sum(1).mean()
    pairs = 32 * 100**2 + (answers * (answers + 200)).sum(1).mean()
    operations = 6 * (1_543_714_304 * tokens + 28 * 1536 * pairs)
    seconds = update_seconds(on_four_gpus(), H20, LENGTHS)
    assert seconds == pytest.approx(operations / (4 * 148e12 * 0.35), rel=0.01)
    # 310,400 tokens of 4 ranks are 5 micro-batches each, and fp32 gradients go to the CPU and back in each of them.
    # That takes less than the backward pass, beside which it happens.
    assert 2 / 3 * seconds > 4 * 1_543_714_304 / 4 * 10 / 50e9
    assert update_seconds(on_four_gpus("--offload-optimizer"), H20, LENGTHS) == pytest.approx(seconds)
    # Smaller micro-batches copy more: 304 of 256 tokens.
    often = update_seconds(on_four_gpus("--offload-optimizer", "--micro-batch-tokens", "256"), H20, LENGTHS)
    assert often == pytest.approx(seconds / 3 + 4 * 1_543_714_304 / 4 * 608 / 50e9)


@pytest.mark.parametrize(
    ("preset", "gpus", "gpu", "flags"),
    [("paper-1.5b", 1, "A100-80GB", ""), ("paper-7b", 4, "H100", ""), ("paper-7b", 1, "H200", "--offload-optimizer")],
)
def test_what_does_not_fit_is_planned_with_the_flags_that_make_it_fit(preset, gpus, gpu, flags):
    planning = Planning(dry_run=True, gpus=gpus, gpu=gpu)
    config = replace(parse_train_config(["--preset", preset], has_cuda=True)[0], planning=planning)
    plan = plan_training(config, training_inputs(config))
    assert flags_text(plan.changes) == flags
    assert sum(plan.seconds.values()) > 0
    text = "\n".join(plan.lines)
    assert "\nweights  " in text
    assert f"{flags} makes it fit" in text if flags else "fit" not in text
    if flags:
        assert f" with {flags}, estimated:\n" in text
        assert "CPU memory per rank: 152.7 GiB\nsampler: " in text


def test_a_model_that_is_nowhere_or_cannot_be_trained_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"^some/model: no config.json in a folder of this name, .* downloads nothing: "
    ):
        find_model("some/model", 4096)
    with pytest.raises(InputError, match=r"do not fit the context of .*Qwen2.5-Math-7B, 4096 tokens; lower .* by 4096"):
        find_model("Qwen/Qwen2.5-Math-7B", 8192)
    model = shutil.copytree(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B", tmp_path / "model")
    settings = json.loads((model / "config.json").read_text()) | {"layer_types": ["linear_attention"] * 28}
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="model: cannot be trained: it has layers of linear_attention"):
        training_inputs(config("--model", str(model)))


def test_wrong_data_is_refused_and_missing_data_is_named(tmp_path):
    (tmp_path / "math_train.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"math_train.jsonl:1: field 'problem' is missing"):
        training_inputs(config("--train-data", str(tmp_path / "math_train.jsonl")))
    with pytest.raises(InputError, match=r"mine.jsonl: no such data file"):
        training_inputs(config("--train-data", str(tmp_path / "mine.jsonl")))
    inputs = training_inputs(config("--train-data", str(tmp_path / "absent" / "math_train.jsonl")))
    assert inputs.problems == 7500
    assert "math_train.jsonl: missing, so the plan assumes its 7,500 problems" in inputs.lines[0]


@pytest.mark.program
def test_the_programs_plan_and_write_nothing(tmp_path):
    run = tmp_path / "run"
    printed = run_ranks(0, "train.py", "--preset", "tiny", "--dry-run", "--output-dir", run).stdout
    assert "arithmetic: 7,500 problems, 0 of them left out: prompt over 64 tokens\nthe longest of the " in printed
    assert "prompts has 31 tokens" in printed
    assert "100 steps of 32 x 16 answers (234 steps per epoch), 100 optimizer steps, 51,200 answers" in printed
    evaluation = ("--ckpt", TINY_MODEL, "--suite", "arithmetic", "--limit", "10", "--output-dir", run)
    printed = run_ranks(0, "eval.py", *evaluation, "--dry-run", "--gpus", "2", "--gpu", "H100").stdout
    settings = json.loads(printed[: printed.index("\n}\n") + 2])
    assert (settings["ckpt"], settings["suite"]["name"], settings["limit"]) == (str(TINY_MODEL), "arithmetic", 10)
    assert "\n40 answers\n" in printed
    assert re.search(r"\nestimate: 0\.\d hours, 0\.\d GPU-hours \(in hours: sampling 0\.\d+, start 0\.05\)\n", printed)
    assert not run.exists()


def test_the_page_on_gpus_has_the_table_of_what_fits():
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    assert "\n".join(fitting.table()) in page, "python scripts/fitting.py prints another table"


def test_a_sampler_on_several_gpus_reads_less_and_exchanges_sums():
    settings = {"answers": 1, "at_once": 1, "samplers": 1}
    one, two = (sampling_seconds(SHAPE, H20, TokenLengths(100, 100, 100), **settings, gpus=gpus) for gpus in (1, 2))
    tokens = np.exp(-np.arange(100) / 100).sum()
    # Half of the reading, and two sums per layer of 20 us each and of 2 x 1536 bytes at 50 GB/s.
    assert one - two == pytest.approx(tokens * (0.001288 / 2 - 2 * 28 * (20e-6 + 2 * 1536 / 50e9)), rel=2e-2)


def test_the_page_has_the_commands_and_the_estimates_of_the_script(capsys):
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for table in ("table1", "table2"):
        reproduce.main(reproduce.Args(table=table, print=True))
        shown = [line.strip() for line in page.splitlines() if f"--output-dir runs/{table}/" in line]
        assert shown
        assert set(shown) <= set(capsys.readouterr().out.splitlines())
        reproduce.main(reproduce.Args(table=table, dry_run=True))
        overview = capsys.readouterr().out.partition("\n| GPUs |")
        message = f"python scripts/reproduce.py {table} --dry-run has other estimates"
        assert overview[1] + overview[2] in page, message
        # What the estimate assumes.
        assert all(f"\n  {gpu}: " in overview[0] for gpu in ("H20", "A100-80GB", "H100", "H200"))


def test_checkpoints_that_are_there_at_once():
    assert checkpoints_at_once(config(), 1170) == 4  # two kept, the best, one being written
    assert checkpoints_at_once(config("--keep", "0", "--eval-every", "0"), 1170) == 13
    assert checkpoints_at_once(config("--save-every", "2000"), 1170) == 3
