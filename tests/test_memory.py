"""The memory of a rank: compared with what the learner takes, and with the sizes and GPUs that it
decides about.

And dry runs: what they count, their estimates compared with a computation by hand, and the page
that shows them.
"""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from bnpo.planning import (
    GIB,
    USABLE,
    Inputs,
    MemoryPlan,
    ModelShape,
    checkpoints,
    data_sheet,
    find_model,
    plan_here,
    plan_memory,
    plan_training,
    sampler_share,
    sampling_seconds,
    training_inputs,
)
from transformers import AutoModelForCausalLM, Qwen2Config

import reproduce
from bnpo.config import TINY_MODEL, Planning, parse_train_config, with_settings
from bnpo.files import ROOT, InputError
from conftest import make_model, report_of, run_ranks
from families import family_config

COMMON = {"vocab_size": 151936, "num_hidden_layers": 28, "max_position_embeddings": 4096}
SHAPES = {
    "1.5b": COMMON
    | {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    }
    | {"tie_word_embeddings": True},
    "7b": COMMON
    | {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    }
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
    return {name: ModelShape(folder) for name, folder in folders.items()}


def planned(shapes, model: str, ranks: int, *flags: str) -> MemoryPlan:
    config, _ = parse_train_config(["--preset", f"paper-{model}", *flags], has_cuda=True)
    return plan_memory(shapes[model], config, 4096, ranks, GPU)


def test_shapes_are_exact_without_weights(shapes):
    assert (shapes["1.5b"].parameters, shapes["7b"].parameters) == (1_543_714_304, 7_615_616_512)
    assert shapes["7b"].layer == 233_057_792
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    assert ModelShape(TINY_MODEL).parameters == sum(
        parameter.numel() for parameter in model.parameters()
    )


def test_layers_of_different_sizes_count_as_the_largest(tmp_path):
    family_config(
        "gemma4_text", head_dim=32, global_head_dim=64, num_kv_shared_layers=0
    ).save_pretrained(tmp_path)
    assert ModelShape(tmp_path).head_size == 64


@pytest.mark.parametrize(("model", "ranks"), [("1.5b", 1), ("1.5b", 4), ("7b", 4), ("7b", 8)])
def test_the_papers_runs_fit_80_gb_by_themselves(shapes, model, ranks):
    plan = planned(shapes, model, ranks)
    assert plan.problem == ""
    assert all(parts.total() <= USABLE * GPU for parts in plan.phases.values())
    assert plan.sequences == 512 // ranks  # all answers at once


def test_the_7b_on_four_gpus_with_half_the_memory_for_the_sampler(shapes):
    """Computed by hand: 31.9 GiB of the learner, 39.6 of vLLM, 73 together, which is too much when
    the learner scores.

    It gathers what DeepSpeed keeps for its next use (1e9 elements), a layer and the head.
    """
    plan = planned(shapes, "7b", 4, "--gpu-memory", "0.5")
    parts, shape = plan.phases["sampling"], shapes["7b"]
    gathered = 2 * (10**9 + shape.layer + shape.head)
    held = sum(parts[name] for name in ("weights", "gradients", "optimizer"))
    # And the buffer of 5e7 gradients in fp32
    assert held / GIB == pytest.approx(31.9 + 0.2, abs=0.05)
    assert parts["sampler"] / GIB == pytest.approx(39.6, abs=0.05)
    # And a chunk of logits
    scoring = 2 * 4096 * (3 * shape.intermediate + 6 * shape.hidden) + 6 * 2**28
    assert parts["activations"] == pytest.approx(gathered + scoring)
    assert (parts.total() - parts["activations"]) / GIB == pytest.approx(73, abs=1)
    assert plan.problem
    assert 0.35 <= planned(shapes, "7b", 4).gpu_memory < 0.5


@pytest.mark.parametrize(
    ("model", "ranks", "flags", "message"),
    [
        (
            "7b",
            1,
            [],
            r": does not fit 1 x 79\.2 GiB of GPU memory: 'sampling' takes 1\d\d\.\d GiB per rank, "
            r"of which 85.1 are 'optimizer'; try .* --lora-rank 32, more ranks, "
            r"--offload-optimizer, .* \(docs/gpus.md\)$",
        ),
        (
            "7b",
            4,
            ["--gpu-memory", "0.5"],
            r"'sampling' takes .* are 'sampler'; try a lower .* or --gpu-memory, .* "
            r"--sampler-ranks 2 ",
        ),
        (
            "7b",
            8,
            ["--no-gradient-checkpointing"],
            r"'update' takes .* are 'activations'; try .* --gradient-checkp",
        ),
        (
            "1.5b",
            1,
            ["--gpu-memory", "0.05"],
            r"memory: the sampler needs \d\.\d GiB; raise --gpu-mem",
        ),
    ],
)
def test_what_cannot_fit_is_refused_in_one_line_with_the_largest_part(
    shapes, model, ranks, flags, message
):
    text = planned(shapes, model, ranks, *flags).problem
    assert re.search(message, text)
    assert "\n" not in text


@pytest.fixture
def share_of(monkeypatch):
    """A function that returns the share of a sampler beside a learner that leaves some bytes of
    a GPU free.
    """
    config, _ = parse_train_config(["--preset", "paper-7b"], has_cuda=True)
    for name in ("torch.zeros", "torch.distributed.all_reduce", "torch.cuda.empty_cache"):
        monkeypatch.setattr(name, lambda *_, **__: None)
    monkeypatch.setattr("bnpo.planning.gather", lambda share: [share])

    def share(plan: MemoryPlan, free: int) -> float:
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (free, GPU))
        return sampler_share(plan, config)

    return share


@pytest.mark.parametrize("beyond", [-GIB, 0, GIB, 10 * GIB, GPU])
def test_the_sampler_gets_what_the_learner_leaves(shapes, share_of, beyond):
    """`beyond` are bytes that the learner holds beyond its plan, moments of AdamW and all."""
    plan = planned(shapes, "7b", 4)
    parts = plan.phases["sampling"]
    held = parts.total() - parts["activations"] - parts["sampler"]
    if beyond == GPU:
        with pytest.raises(
            InputError,
            match=r"^beside the learner 0.0 GiB of a GPU are left for the sampler, which ",
        ):
            share_of(plan, GPU - held - beyond)
        return
    share = share_of(plan, GPU - held - beyond)
    if beyond == 0:
        assert share == plan.gpu_memory
    # The learner can score beside it
    assert held + beyond + share * GPU + parts["activations"] <= USABLE * GPU
    assert share == pytest.approx(plan.gpu_memory - beyond / GPU, abs=0.002)


def test_a_sampler_gets_no_more_than_it_can_use(shapes, share_of):
    plan = planned(shapes, "1.5b", 4)
    assert share_of(plan, GPU) == int(1000 * plan.most / GPU) / 1000 < 0.5


def fewest_flags(model: str, gpus: int, gpu: str, lora: list[str]) -> str:
    """Return a cell of the table in docs/gpus.md: the fewest flags with which a model fits, and
    CPU memory per rank.
    """
    config, _ = parse_train_config(["--preset", "paper-1.5b", *lora], has_cuda=True)
    shape, fitting = ModelShape(ROOT / "data" / "models" / model), []
    shares = [1] + [ranks for ranks in (2, 4, 8) if ranks <= gpus]
    for ranks, optimizer, weights in itertools.product(shares, (False, True), (False, True)):
        settings = {
            "sampler_ranks": ranks,
            "offload_optimizer": optimizer,
            "offload_weights": weights,
        }
        plan = plan_memory(shape, with_settings(config, **settings), 4096, gpus, data_sheet(gpu)[0])
        flags = ["--offload-optimizer"] * optimizer + ["--offload-weights"] * weights
        flags += [f"--sampler-ranks {ranks}"] * (ranks > 1)
        if not plan.problem:
            fitting.append((len(flags), plan.offloaded, ranks, " ".join(flags)))
    if not fitting:
        return "does not fit"
    _, cpu_memory, _, flags = min(fitting)
    return (f"`{flags}`" if flags else "no flag") + (
        f" ({cpu_memory / GIB:.0f} GiB)" if cpu_memory else ""
    )


def test_the_page_on_gpus_is_right_about_what_fits():
    page = (ROOT / "docs" / "gpus.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (Qwen\S+) \| (\d+) x (\S+) \(\d+ GiB\) \| (.+) \| (.+) \|$", page, re.MULTILINE
    )
    assert rows
    for model, gpus, gpu, *cells in rows:
        for cell, lora in zip(cells, ([], ["--lora-rank", "32"]), strict=True):
            assert cell == fewest_flags(model, int(gpus), gpu, lora), (model, gpus, gpu, lora)


def test_a_shared_sampler_has_a_part_of_weights_and_cache_on_each_rank(shapes):
    whole, shared = (planned(shapes, "7b", 8, "--sampler-ranks", size).least for size in ("1", "4"))
    assert whole - shared > 3 / 4 * 2 * shapes["7b"].parameters
    # 4 key heads: of 8 ranks, two hold the same
    assert planned(shapes, "7b", 8, "--sampler-ranks", "8").least < shared


def test_offloaded_weights_are_in_cpu_memory(shapes):
    flags = ("--lora-rank", "32", "--gpu-memory", "0.4")
    on_gpu, offloaded = (
        planned(shapes, "7b", 1, *flags, *more) for more in ((), ("--offload-weights",))
    )
    assert offloaded.offloaded == on_gpu.phases["sampling"]["weights"] > 2 * 7.6e9
    assert on_gpu.offloaded == 0
    assert offloaded.phases["update"]["weights"] == 0
    gathered = (
        offloaded.phases["sampling"]["activations"] - on_gpu.phases["sampling"]["activations"]
    )
    assert 0 < gathered < 7.6e9  # also on a single rank


def test_the_table_has_the_parts_and_the_totals(shapes):
    plan = planned(shapes, "7b", 4)
    names, *parts, totals = str(plan).splitlines()
    assert names.split() == ["GiB", "update", "sampling"]
    assert totals.split() == [
        "total",
        *(f"{sizes.total() / GIB:.2f}" for sizes in plan.phases.values()),
    ]
    column = {line[:14].strip(): line[-11:].strip() for line in parts}  # "sampling" is the last one
    assert column == {part: f"{plan.phases['sampling'][part] / GIB:.2f}" for part in column}


def test_nothing_is_planned_on_cpus():
    config, _ = parse_train_config(["--preset", "tiny"], has_cuda=False)
    assert plan_here(config, TINY_MODEL, 192) == MemoryPlan()


def test_more_than_the_cpu_memory_is_refused(tmp_path):
    Qwen2Config(hidden_size=2**16, intermediate_size=2**18, num_hidden_layers=8).save_pretrained(
        tmp_path
    )
    config, _ = parse_train_config(["--preset", "tiny", "--model", str(tmp_path)], has_cuda=False)
    with pytest.raises(
        InputError, match=r"needs \d{5} GiB of CPU memory, this machine has \d+; try --lora-rank 32"
    ):
        plan_here(config, tmp_path, 192)


@pytest.mark.program
def test_the_learner_takes_what_is_counted(tmp_path):
    """23M parameters on two ranks. Which part of a real update is the largest depends on the
    setting.

    One rank, whose weights are never gathered, was measured by hand (dev/LOG.md), because it takes
    a minute.
    """
    shape = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
    }
    make_model(tmp_path, vocab_size=16384, **shape)
    report = report_of(2, "memory_check", tmp_path)
    ratios = {name: case["measured"] / case["counted"] for name, case in report.items()}
    assert ratios == {name: pytest.approx(1, abs=0.15) for name in report}


SHAPE = ModelShape(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B")
INPUTS = Inputs(
    SHAPE, prompt=103.0, longest=4096, longest_answer=3072, steps=1170, eval_answers=900, lines=[]
)


def config(*flags: str):
    return parse_train_config(["--preset", "paper-1.5b", *flags], has_cuda=True)[0]


def seconds_on_h20(answers: int, tokens: int, longest: int, gpus: int = 1) -> float:
    planning = Planning(gpu="H20", gpus=gpus, answer_tokens=tokens)
    return sampling_seconds(
        replace(INPUTS, longest_answer=longest), planning, answers, size=gpus, most=128
    )


def test_one_answer_reads_weights_and_cache_for_every_token():
    """3.087e9 bytes of weights at 60 % of 4e12 a second are 1.286 ms, 28,672 bytes of cache for
    each of 200 tokens 2.4 us, scheduling 5 ms.
    """
    seconds = seconds_on_h20(1, 100, 100)
    assert seconds == pytest.approx(100 * 0.006289, rel=1e-3)
    assert seconds - seconds_on_h20(1, 100, 100, gpus=2) == pytest.approx(
        100 * 0.001289 / 2, rel=1e-3
    )


def test_many_answers_are_bound_by_products_and_wait_for_the_longest():
    assert seconds_on_h20(128, 600, 3072) > 3072 * 0.006
    # A token of 1280 answers: 2 * 1.5437e9 * 1280 products at 59.2e12 a second are 66.8 ms, more
    # than reading.
    assert seconds_on_h20(1280, 600, 3072) == pytest.approx(
        600 * 0.0668 + (9 * 600 + 3072) * 0.005, rel=1e-2
    )


def test_an_update_has_the_operations_of_its_tokens():
    seconds, _ = plan_training(config("--dry-run", "--gpu", "H20", "--gpus", "4"), INPUTS)
    operations = 6 * 1_543_714_304 * 32 * (103 + 16 * 600)
    assert seconds["updates"] == pytest.approx(1170 * operations / (4 * 148e12 * 0.35))
    assert 0 < seconds["evaluations"] < seconds["sampling"] / 10


def test_checkpoints_that_are_there_at_once():
    assert checkpoints(config(), SHAPE, 1170)[1] == 4  # two kept, the best, one being written
    assert checkpoints(config("--keep", "0", "--eval-every", "0"), SHAPE, 1170)[1] == 13
    assert checkpoints(config("--save-every", "2000"), SHAPE, 1170)[1] == 3


def test_a_run_that_fits_has_hours_and_one_that_does_not_says_why():
    dry_run = (
        "--preset",
        "paper-7b",
        "--train-data",
        "arithmetic",
        "--eval-every",
        "0",
        "--dry-run",
        "--gpu",
        "H100",
    )
    fits, does_not = (
        plan_training(c, training_inputs(c))
        for c in (config(*dry_run, "--gpus", "4"), config(*dry_run))
    )
    (seconds, lines), (none, why) = fits, does_not
    assert sum(seconds.values()) > 0
    assert re.search(r"\nweights +[\d.]+ ", "\n".join(lines))
    assert lines[-1].startswith("sampler: ")
    assert none == {}
    assert "paper-7b" not in why[-1]
    assert re.match(
        r"Qwen/Qwen2.5-Math-7B: does not fit 1 x 79.1 GiB of GPU memory: .*; try ", why[-1]
    )
    offloading = config(*dry_run, "--offload-optimizer")
    assert (
        "CPU memory per rank: 141.9 GiB"
        in plan_training(offloading, training_inputs(offloading))[1]
    )


def test_a_model_that_is_nowhere_or_cannot_be_trained_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"^some/model: no such local folder, and the download from the model hub "
    ):
        find_model("some/model", 4096)
    with pytest.raises(
        InputError,
        match=r"do not fit the context of .*Qwen2.5-Math-7B, 4096 tokens; lower .* by 4096",
    ):
        find_model("Qwen/Qwen2.5-Math-7B", 8192)
    model = shutil.copytree(ROOT / "data" / "models" / "Qwen2.5-Math-1.5B", tmp_path / "model")
    settings = json.loads((model / "config.json").read_text()) | {
        "layer_types": ["linear_attention"] * 28
    }
    (model / "config.json").write_text(json.dumps(settings))
    with pytest.raises(
        InputError, match="model: cannot be trained: it has layers of linear_attention"
    ):
        training_inputs(config("--model", str(model), "--eval-every", "0"))


def test_wrong_data_is_refused(tmp_path):
    (tmp_path / "math_train.jsonl").write_text("{}\n")
    for name, message in (
        ("math_train", ":1: field 'problem' is missing"),
        ("mine", ": no such data file"),
    ):
        with pytest.raises(InputError, match=f"{name}.jsonl{message}"):
            training_inputs(
                config("--train-data", str(tmp_path / f"{name}.jsonl"), "--eval-every", "0")
            )


@pytest.mark.parametrize(
    ("model", "gpus", "chosen", "expected"),
    [
        ("7b", 8, 1, "44.5 with 1, 32.9 with 2, 27.1 with 4; the fastest is --sampler-ranks 4"),
        ("7b", 4, 2, "50.4 with 1, 38.8 with 2, 33.0 with 4; the fastest is --sampler-ranks 4"),
        ("1.5b", 8, 1, "21.5 with 1, 19.1 with 2, 18.0 with 4; the fastest is --sampler-ranks 4"),
        ("1.5b", 6, 1, "22.3 with 1, 19.9 with 2; the fastest is --sampler-ranks 2"),
    ],
)
def test_a_dry_run_compares_numbers_of_ranks_per_sampler(shapes, model, gpus, chosen, expected):
    """3 of 6 ranks cannot share a sampler of 2 key heads. 600 tokens per answer."""
    flags = ["--gpu", "H100", "--gpus", str(gpus), "--sampler-ranks", str(chosen)]
    settings = config("--preset", f"paper-{model}", "--dry-run", *flags)
    _, lines = plan_training(settings, replace(INPUTS, shape=shapes[model]))
    [line] = [line for line in lines if line.startswith("seconds per step by --sampler-ranks: ")]
    assert expected in line


@pytest.mark.parametrize(
    ("flags", "fits"),
    [
        (["--gpu", "H100", "--gpus", "1"], []),  # there is nothing to share
        (["--gpu", "RTX-4090", "--gpus", "2"], []),  # nothing fits
        (["--gpu", "RTX-4090", "--gpus", "4"], [2, 4]),  # the run as it is does not fit
    ],
)
def test_a_dry_run_compares_only_what_fits(shapes, flags, fits):
    settings = config("--preset", "paper-7b", "--dry-run", "--offload-optimizer", *flags)
    _, lines = plan_training(settings, replace(INPUTS, shape=shapes["7b"]))
    compared = [re.findall(r"\bwith (\d)", line) for line in lines if "seconds per step" in line]
    assert compared == ([list(map(str, fits))] if fits else [])


@pytest.mark.program
def test_the_programs_plan_and_write_nothing(tmp_path):
    run = tmp_path / "run"
    printed = run_ranks(0, "train.py", "--preset", "tiny", "--dry-run", "--output-dir", run).stdout
    assert (
        "arithmetic: 7,500 problems, 0 of them left out: prompt over 64 tokens\nthe longest of the "
        in printed
    )
    assert "prompts has 31 tokens" in printed
    assert (
        "100 steps of 32 x 16 answers (234 steps per epoch), 100 optimizer steps, 51,200 answers"
        in printed
    )
    evaluation = (
        "--ckpt",
        TINY_MODEL,
        "--suite",
        "arithmetic",
        "--limit",
        "10",
        "--output-dir",
        run,
    )
    printed = run_ranks(
        0, "eval.py", *evaluation, "--dry-run", "--gpus", "2", "--gpu", "H100"
    ).stdout
    settings = json.loads(printed[: printed.index("\n}\n") + 2])
    assert (settings["ckpt"], settings["suite"]["name"], settings["limit"]) == (
        str(TINY_MODEL),
        "arithmetic",
        10,
    )
    assert "\n40 answers per evaluation\n" in printed
    assert re.search(
        r"\nestimate: 0\.\d hours, 0\.\d GPU-hours \(in hours: sampling 0\.\d+, start 0\.05\)\n",
        printed,
    )
    assert not run.exists()


def test_the_page_has_the_commands_of_the_script(capsys):
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for table in ("table1", "table2"):
        reproduce.main(reproduce.Args(table=table, print=True))
        shown = [
            line.strip() for line in page.splitlines() if f"--output-dir runs/{table}/" in line
        ]
        assert shown
        assert set(shown) <= set(capsys.readouterr().out.splitlines())


@pytest.mark.program
def test_the_page_has_the_estimates_of_the_script_which_needs_no_network(data_dir, tmp_path):
    for name in ("src", "scripts", "evals", "data"):
        ignored = shutil.ignore_patterns("*.jsonl", "results", "__pycache__", "SmolLM2*")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for file in data_dir.glob("*.jsonl"):
        shutil.copy(file, tmp_path / "data")
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    nowhere = {
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(tmp_path / "src"),
    }
    for table in ("table1", "table2"):
        command = [sys.executable, "scripts/reproduce.py", table, "--dry-run"]
        planned = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | nowhere,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert (
            "\n1,170 steps of 32 x 16 answers (234 steps per epoch), 1,170 optimizer steps, "
            "599,040 " in planned
        )
        assert "paper: MATH500: 500 problems x 16 repetitions; a true " in planned.replace(
            "paper-format:", "paper:"
        )
        overview = planned.partition("\n| GPUs |")
        message = f"python scripts/reproduce.py {table} --dry-run has other estimates"
        assert overview[1] + overview[2] in page, message
