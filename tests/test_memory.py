"""The memory of a rank: compared with what the learner takes, measured by a run, and planned. The
hours of a plan, compared with a computation by hand.
"""

import json
import re
import shutil
from dataclasses import replace

import pytest
from transformers import AutoModelForCausalLM, Qwen2Config

from bnpo.config import TINY_MODEL, TrainConfig, parse_train_config, with_settings
from bnpo.files import ROOT
from bnpo.policy.memory import (
    GIB,
    USABLE,
    ModelShape,
    SamplerNeeds,
    check_memory,
    check_sampler_ranks,
    held_memory,
    memory_cures,
    sampler_settings,
    usable_cpu_memory,
)
from bnpo.policy.sampling import EngineSettings
from conftest import make_model, python, refused, report_of
from families import family_config
from planner import Planning
from planner.hours import data_sheet, plan_training, sampling_seconds
from planner.inputs import Inputs, checkpoints, find_model, training_inputs
from planner.memory import MemoryPlan, plan_memory

SHAPES = {
    name: ModelShape(ROOT / "data" / "models" / f"Qwen2.5-Math-{name.upper()}")
    for name in ("1.5b", "7b")
}
GPU = int(79.2 * GIB)
"""What a GPU of 80 GB has."""


def config(*flags: str) -> TrainConfig:
    return parse_train_config(["--preset", "paper-1.5b", *flags], has_cuda=True)[0]


def planned(model: str, ranks: int, *flags: str) -> MemoryPlan:
    return plan_memory(
        SHAPES[model], config("--preset", f"paper-{model}", *flags), 4096, ranks, GPU
    )


def test_shapes_are_exact_without_weights(tmp_path):
    assert [shape.parameters for shape in SHAPES.values()] == [1_543_714_304, 7_615_616_512]
    assert SHAPES["7b"].layer == 233_057_792
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    assert ModelShape(TINY_MODEL).parameters == sum(p.numel() for p in model.parameters())
    sizes = {"head_dim": 32, "global_head_dim": 64, "num_kv_shared_layers": 0}
    family_config("gemma4_text", **sizes).save_pretrained(tmp_path)
    assert ModelShape(tmp_path).head_size == 64  # of the largest layer


@pytest.mark.parametrize(("model", "ranks"), [("1.5b", 1), ("1.5b", 4), ("7b", 4), ("7b", 8)])
def test_the_papers_runs_fit_80_gb_by_themselves(model, ranks):
    plan = planned(model, ranks)
    assert plan.problem == ""
    assert all(parts.total() <= USABLE * GPU for parts in plan.phases.values())
    assert plan.sequences == 512 // ranks  # all answers at once


def test_the_7b_on_four_gpus_with_half_the_memory_for_the_sampler():
    """Computed by hand: 31.9 GiB of the learner, 39.6 of vLLM, 73 together, which is too much when
    the learner scores. It gathers what DeepSpeed keeps (1e9 elements), a layer and the head.
    """
    plan, shape = planned("7b", 4, "--gpu-memory", "0.5"), SHAPES["7b"]
    parts = plan.phases["sampling"]
    gathered = 2 * (10**9 + shape.layer + shape.head)
    held = sum(parts[name] for name in ("weights", "gradients", "optimizer"))
    # And the buffer of 5e7 gradients in fp32
    assert held / GIB == pytest.approx(31.9 + 0.2, abs=0.05)
    assert parts["sampler"] / GIB == pytest.approx(39.6, abs=0.05)
    # And a chunk of logits
    scoring = 2 * 4096 * (3 * shape.intermediate + 6 * shape.hidden) + 6 * 2**28
    assert parts["activations"] == pytest.approx(gathered + scoring)
    assert plan.problem
    assert 0.35 <= planned("7b", 4).gpu_memory < 0.5


@pytest.mark.parametrize(
    ("model", "ranks", "flags", "message"),
    [
        ("7b", 1, [], r"'sampling' takes 1\d\d\.\d GiB per rank, of which 85.1 are 'optimizer'; t"),
        ("7b", 1, [], r"7B@\w+: does not fit 1 x 79\.2 GiB of .*; try .*--lora-rank 32, more r"),
        ("7b", 4, ["--gpu-memory", "0.5"], r"are 'sampler'; try the default of --gpu-"),
        ("7b", 8, ["--no-gradient-checkpointing"], r"; try a lower --mic.*, --gradient-c"),
        ("1.5b", 1, ["--gpu-memory", "0.05"], r"the sampler needs \d\.\d GiB; raise --gpu-memory"),
    ],
)
def test_what_cannot_fit_is_one_line_with_the_largest_part(model, ranks, flags, message):
    text = planned(model, ranks, *flags).problem
    assert re.search(message, text)
    assert "\n" not in text


def test_what_a_run_does_already_is_no_cure():
    flags = ("--offload-optimizer", "--offload-weights", "--sampler-ranks", "2")
    assert memory_cures(config(*flags), 2) == "--lora-rank 32, more ranks (docs/gpus.md)"
    flags += ("--lora-rank", "8")
    assert memory_cures(config(*flags), 2) == "more ranks (docs/gpus.md)"


@pytest.fixture
def settings_of(monkeypatch):
    """A function that returns the settings of the 7B's sampler on each of four ranks, beside a
    learner that leaves `free` bytes of its GPU free.
    """
    for name in ("bnpo.policy.memory._allocate_nccl", "torch.cuda.empty_cache"):
        monkeypatch.setattr(name, lambda: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    monkeypatch.setattr("bnpo.policy.memory.gather", lambda own: [own])

    def settings(model: str, free: int, *flags: str) -> EngineSettings:
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (free, GPU))
        return sampler_settings(SHAPES[model], config("--preset", f"paper-{model}", *flags), 4096)

    return settings


@pytest.mark.parametrize("beyond", [-GIB, 0, GIB, 10 * GIB])
def test_the_sampler_gets_what_the_learner_leaves(settings_of, beyond):
    """`beyond` are bytes that the learner holds beyond its plan, moments of AdamW and all."""
    plan = planned("7b", 4)
    parts = plan.phases["sampling"]
    held = parts.total() - parts["activations"] - parts["sampler"]
    engine = settings_of("7b", GPU - held - beyond)
    assert engine.gpu_memory == pytest.approx(plan.gpu_memory - beyond / GPU, abs=0.002)
    # The learner can score beside it
    assert held + beyond + engine.gpu_memory * GPU + parts["activations"] <= USABLE * GPU
    if beyond == 0:
        assert (engine.gpu_memory, engine.sequences) == (plan.gpu_memory, plan.sequences)
    assert (engine.max_tokens, engine.dtype) == (4096, "bfloat16")


def test_a_sampler_gets_no_more_than_it_can_use(settings_of):
    most = SamplerNeeds(SHAPES["1.5b"], config(), 4096, 4).most
    assert settings_of("1.5b", GPU).gpu_memory == int(1000 * most / GPU) / 1000 < 0.5
    assert settings_of("1.5b", GPU, "--gpu-memory", "0.7").gpu_memory == 0.7


@pytest.mark.parametrize(
    ("free", "flags", "message"),
    [
        (0, (), r"beside the learner 0\.0 GiB .* left for the sampler, .*; try --lora-rank"),
        (GPU // 2, ("--gpu-memory", "0.6"), r"would get 47\.5; try the default of --gpu-memory"),
        (GPU, ("--gpu-memory", "0.05"), r"which needs \d+\.\d and would get 4\.0; try the d"),
    ],
)
def test_a_sampler_that_does_not_fit_is_refused_by_what_is_measured(
    free, flags, message, settings_of
):
    with refused(message):
        settings_of("7b", free, *flags)


def test_a_shared_sampler_has_a_part_of_weights_and_cache_on_each_rank():
    least = {
        size: SamplerNeeds(SHAPES["7b"], config("--sampler-ranks", str(size)), 4096, 8).least
        for size in (1, 4, 8)
    }
    assert least[1] - least[4] > 3 / 4 * 2 * SHAPES["7b"].parameters
    assert least[8] < least[4]  # 4 key heads: of 8 ranks, two hold the same
    check_sampler_ranks(SHAPES["7b"], 4, 8)
    with refused("--sampler-ranks 3: must divide the 6 ranks of a machine, 28 heads and a width"):
        check_sampler_ranks(SHAPES["7b"], 3, 6)


def test_offloaded_parts_are_in_cpu_memory():
    lora = ("--lora-rank", "32")
    on_gpu, none = held_memory(SHAPES["7b"], config(*lora), 1)
    rest, offloaded = held_memory(SHAPES["7b"], config(*lora, "--offload-weights"), 1)
    assert (none, rest["weights"]) == (0, 0)
    assert offloaded == on_gpu["weights"] > 2 * 7.6e9
    _, optimizer = held_memory(SHAPES["7b"], config("--offload-optimizer"), 1)
    assert optimizer == 20 * SHAPES["7b"].parameters


def test_the_memory_of_a_container_or_job_counts(tmp_path):
    everything = usable_cpu_memory(tmp_path)  # a machine without control groups
    job = tmp_path / "sys" / "fs" / "cgroup" / "slurm" / "job_1"
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/old\n0::/slurm/job_1/step_0\n")
    (job / "step_0").mkdir(parents=True)
    (job / "step_0" / "memory.max").write_text("max\n")
    assert usable_cpu_memory(tmp_path) == everything > 2**29
    (job / "memory.max").write_text(f"{2**29}\n")
    assert usable_cpu_memory(tmp_path) == 2**29


def test_a_learner_that_cannot_be_loaded_is_refused_before(tmp_path, monkeypatch):
    large = Qwen2Config(hidden_size=2**16, intermediate_size=2**18, num_hidden_layers=8)
    large.save_pretrained(tmp_path)
    shape = ModelShape(tmp_path)
    check_memory(SHAPES["1.5b"], with_settings(config(), lora_rank=8))
    with refused(r"needs \d{4} GiB of CPU memory, here are \d+; try --lora-rank 32"):
        check_memory(shape, config())
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda gpu: type("Card", (), {"total_memory": GPU})
    )
    with refused(r"the learner needs \d{4}\.\d GiB of each GPU, of which .* are 'optimizer'"):
        check_memory(shape, config())


@pytest.mark.extra
@pytest.mark.sampler  # with the packages for GPUs, libraries that load meanwhile count as well
def test_the_learner_takes_what_is_counted(tmp_path):
    """23M parameters on two ranks. The largest part of an update depends on the setting."""
    shape = {"hidden_size": 512, "intermediate_size": 2048}
    shape |= {"num_hidden_layers": 4, "num_attention_heads": 8}
    make_model(tmp_path, vocab_size=16384, **shape)
    report = report_of(2, "memory_check", tmp_path)
    ratios = {name: case["measured"] / case["counted"] for name, case in report.items()}
    assert ratios == {name: pytest.approx(1, abs=0.15) for name in report}


def inputs(model: str = "1.5b", longest: int = 3072) -> Inputs:
    evaluation = Inputs(SHAPES[model], 103.0, 4096, longest, answers=900, lines=[])
    return replace(evaluation, answers=32 * 16, steps=1170, evaluation=evaluation)


def seconds_on_h20(answers: int, tokens: int, longest: int, gpus: int = 1) -> float:
    planning = Planning(gpu="H20", gpus=gpus, answer_tokens=tokens)
    return sampling_seconds(inputs(longest=longest), planning, answers, size=gpus, most=128)


def test_hours_follow_from_bytes_and_operations():
    """3.087e9 bytes of weights at 60 % of 4e12 a second are 1.286 ms, 28,672 bytes of cache for
    each of 200 tokens 2.4 us, scheduling 5 ms.
    """
    seconds = seconds_on_h20(1, 100, 100)
    assert seconds == pytest.approx(100 * 0.006289, rel=1e-3)
    saved = seconds - seconds_on_h20(1, 100, 100, gpus=2)
    assert saved == pytest.approx(100 * 0.001289 / 2, rel=1e-3)
    # A token of 1280 answers: 2 * 1.5437e9 * 1280 products at 59.2e12 a second are 66.8 ms, more
    # than reading. The last answers wait for the longest.
    many = 600 * 0.0668 + (9 * 600 + 3072) * 0.005
    assert seconds_on_h20(1280, 600, 3072) == pytest.approx(many, rel=1e-2)
    seconds = plan_training(config(), inputs(), Planning(gpu="H20", gpus=4)).seconds
    operations = 6 * 1_543_714_304 * 32 * (103 + 16 * 600)
    assert seconds["updates"] == pytest.approx(1170 * operations / (4 * 148e12 * 0.35))
    assert 0 < seconds["evaluations"] < seconds["sampling"] / 10


def test_evaluations_take_as_long_as_the_answers_of_their_suite():
    training = inputs(longest=256)
    planning = Planning(gpu="H20", gpus=4)
    short = plan_training(config(), training, planning).seconds
    training = replace(training, evaluation=inputs(longest=3072).evaluation)
    long = plan_training(config(), training, planning).seconds
    assert long["evaluations"] > 3 * short["evaluations"]
    assert long["sampling"] == short["sampling"]


def test_checkpoints_that_are_there_at_once():
    assert checkpoints(config(), SHAPES["1.5b"], 1170)[1] == 4  # two kept, best, one being written
    assert checkpoints(config("--keep", "0", "--eval-every", "0"), SHAPES["1.5b"], 1170)[1] == 13
    assert checkpoints(config("--save-every", "2000"), SHAPES["1.5b"], 1170)[1] == 3


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "flags", "expected"),
    [
        ("1.5b", "H100", 6, (), "with 1, .* with 2; the fastest is --sampler-ranks 2"),
        ("7b", "H100", 1, (), None),  # there is nothing to share
        ("7b", "RTX-4090", 4, ("--offload-optimizer",), r"sampler-ranks: \S+ with 2, \S+ with 4;"),
    ],
)
def test_a_plan_compares_the_numbers_of_ranks_per_sampler_that_fit(
    model, gpu, gpus, flags, expected
):
    """3 of 6 ranks cannot share a sampler of 2 key heads. 600 tokens per answer."""
    settings = config("--preset", f"paper-{model}", *flags)
    lines = plan_training(settings, inputs(model), Planning(gpu=gpu, gpus=gpus)).lines
    compared = [line for line in lines if line.startswith("seconds per step by --sampler-ranks: ")]
    assert len(compared) == bool(expected)
    if expected:
        assert re.search(expected, compared[0])


def test_wrong_models_data_and_gpus_are_named(tmp_path):
    with refused("^some/model: no such local folder, and the download from the model hub "):
        find_model("some/model", 4096)
    with refused(r"do not fit the context of .*Qwen2.5-Math-7B, 4096 tokens; lower .* by 4096"):
        find_model("Qwen/Qwen2.5-Math-7B", 8192)
    model = shutil.copytree(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B", tmp_path / "model")
    settings = json.loads((model / "config.json").read_text())
    settings |= {"layer_types": ["linear_attention"] * 28}
    (model / "config.json").write_text(json.dumps(settings))
    with refused("model: cannot be trained: it has layers of the type linear_attention"):
        training_inputs(config("--model", str(model), "--eval-every", "0"))
    (tmp_path / "a.jsonl").write_text("{}\n")
    for name, message in (("a", ":1: field 'problem' is missing"), ("b", ": no such data file")):
        with refused(f"{name}.jsonl{message}"):
            training_inputs(config("--train-data", f"{tmp_path}/{name}.jsonl", "--eval-every", "0"))
    # Without a tokenizer, prompts are not counted, but problems are
    (tmp_path / "b.jsonl").write_text('{"problem": "1+1=?", "answer": "2"}\n' * 31)
    with refused("--questions-per-step: is 32, and the data have only 31 problems; lower it"):
        training_inputs(config("--train-data", f"{tmp_path}/b.jsonl", "--eval-every", "0"))
    assert data_sheet("A100") == data_sheet("A100-80GB")
    with refused("--gpu: unknown GPU 'H99'; known: A100-80GB, H20, H100, "):
        data_sheet("H99")


@pytest.mark.program
def test_the_programs_plan_and_write_nothing(tmp_path):
    run = tmp_path / "run"
    train = ("train.py", "--preset", "tiny", "--output-dir", run)
    settings = json.loads(python(*train, "--lr", "0.5", "--print-config").stdout)
    assert (settings["preset"], settings["lr"]) == ("tiny", 0.5)
    printed = python(*train, "--lr", "0.5", "--dry-run").stdout
    assert re.match(r"preset tiny \(from --preset\)\n  lr +0\.5 +preset: 0\.0001\n", printed)
    assert "arithmetic: 7,500 problems, 0 of them left out: prompt over 64 tokens\n" in printed
    assert "100 steps of 32 x 16 answers (234 steps per epoch), 100 optimizer steps" in printed
    assert printed.endswith("python scripts/plan.py --gpu H100 train.py ...\n")
    printed = python("scripts/plan.py", "--gpu", "H100", *train).stdout
    assert re.search(r"\nweights +[\d.]+ ", printed)
    assert re.search(r"\nestimate: \d\.\d hours, .*\nit assumes 600 tokens per answer", printed)
    evaluation = ("--ckpt", TINY_MODEL, "--suite", "arithmetic", "--limit", "10")
    plan = ("scripts/plan.py", "--gpu", "H100", "eval.py", *evaluation, "--output-dir", run)
    printed = python(*plan).stdout
    assert "\n40 answers per evaluation, of at most 128 tokens, at temperature " in printed
    assert re.search(r"0\.\d GPU-hours ", printed)
    assert not run.exists()
    failed = python(*plan, "--tensor-parallel", "4")
    assert failed.stderr.startswith(
        "error: --data-parallel 1 times --tensor-parallel 4: needs --gp"
    )
    failed = python("scripts/plan.py", "--gpu", "H100", *train, "--gpu-memory", "0.001")
    assert "\nweights " in failed.stdout
    assert failed.returncode
    assert re.match(r"error: .*: does not fit 1 x 79\.1 GiB .*; raise --gpu-mem", failed.stderr)
    failed = python("scripts/plan.py", "--gpu", "H100", "--gpus", "3", *train)
    assert failed.stderr.startswith("error: --questions-per-step 32 cannot be divided by 3 ranks.")
