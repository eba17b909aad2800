"""The paper's tables: their cells and notes, and scripts/reproduce.py, which runs their rows."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import reproduce
from bnpo.config import PRESETS, flat_settings, with_settings
from bnpo.files import InputError
from bnpo.policy.memory import ModelShape
from conftest import json_lines, refused, run_ranks
from paper.results import load_results, method_name
from paper.tables import PAPER_SCORES, combine, leader, make_tables, to_markdown
from planner.inputs import checkpoints

BASE = "Qwen/Qwen2.5-Math-1.5B"
SIZES = {"MATH500": (500, 1), "AMC23": (40, 16), "AIME2024": (30, 16), "AIME2025": (30, 16)}
SCORES = {
    "MATH500": (0.734, 0.016),
    "AMC23": (0.545, 0.05),
    "AIME2024": (0.183, 0.05),
    "AIME2025": (0.115, 0.04),
}
MATH500 = {"MATH500": (0.734, 0.016)}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a results.json under the paper's protocol and returns its path.

    It is of a run with the settings of `preset` and `run`, or of the model `ckpt` without training.
    With `ours` it has the scores of both rules, and `scores` are the released code's. Other
    keywords replace parts of suite or protocol.
    """

    def write_file(
        name, preset=None, scores=SCORES, sizes=SIZES, run=(), suite=(), ours=(), **protocol
    ) -> Path:
        config = with_settings(PRESETS[preset], **dict(run)) if preset else None
        names = {key: {"data": f"data/{key}.jsonl", "sha256": 64 * "a"} for key in scores}
        usual_suite = {
            "name": "paper",
            "datasets": names,
            "temperature": 0.6,
            "top_p": 1.0,
            "template": "chat",
        }
        usual_suite |= {"max_prompt_tokens": 1024, "max_answer_tokens": 3072}
        usual = {
            "ckpt": "runs/x/last",
            "checkpoint_sha256": 64 * "b",
            "seed": 0,
            "dtype": "bfloat16",
        }
        usual |= {"grader": "paper", "limit": None, "versions": {"vllm": "0.32.0"}}
        results = {}
        for key, (score, error) in scores.items():
            problems, runs = sizes.get(key, (500, 4))
            results[key] = {"problems": problems, "repetitions": runs, "pass1": score, "se": error}
        average = {"pass1": sum(score for score, _ in scores.values()) / len(scores), "se": 0.02}
        for key, (score, error) in dict(ours).items():
            both = {"default": {"pass1": score, "se": error}, "paper": results[key]}
            results[key] = both["default"] | results[key] | both["default"] | {"by_rule": both}
        if ours:
            average |= {"by_rule": {"default": {"pass1": 0.5, "se": 0.02}, "paper": dict(average)}}
        content = {
            "protocol": usual
            | {"run": config and flat_settings(config), "suite": usual_suite | dict(suite)}
            | protocol,
            "results": results,
            "average": average,
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content, default=str), encoding="utf-8")
        return path

    return write_file


def tables(*paths):
    return make_tables(load_results(paths))


def setting_notes(*paths) -> list[str]:
    """The notes of the only table, without those that every table has."""
    [table] = tables(*paths)
    return [
        note
        for note in table.notes
        if not note.startswith(("Ours:", "Bold in our rows:", "Paper:", "In brackets:"))
    ]


def scaled(factor: float) -> dict:
    return {name: (score * factor, error) for name, (score, error) in SCORES.items()}


def test_the_printed_averages_are_those_of_the_copied_numbers():
    rows = [
        row
        for models in PAPER_SCORES.values()
        for methods in models.values()
        for row in methods.values()
    ]
    for row in rows:
        *parts, average = (float(number.lstrip("*")) for number in row.split())
        assert len(parts) == 4
        # The parts are rounded, and so is their average
        assert sum(parts) / 4 == pytest.approx(average, abs=0.1)


def test_markdown(write):
    files = [write("base", ckpt=BASE, scores=scaled(0.4)), write("bnpo", "paper-1.5b")]
    files.append(write("rloo", "paper-1.5b", MATH500, run={"algo": "rloo"}))
    text = to_markdown(tables(*files))
    assert text.startswith(
        """## Table 1: Policy optimization methods on math data sets

| Qwen2.5-Math-1.5B | MATH500 | AMC23 | AIME2024 | AIME2025 | Average |
| --- | ---: | ---: | ---: | ---: | ---: |
| Base | 29.4 ± 1.6 | 21.8 ± 5.0 | 7.3 ± 5.0 | 4.6 ± 4.0 | 15.8 ± 2.0 |
| Base, paper | 28.0 | 27.3 | 6.0 | 3.1 | 16.1 |
| REINFORCE, paper | 74.8 | 51.6 | 18.3 | 11.3 | 39.0 |
| RLOO | 73.4 ± 1.6 |  |  |  |  |
| ReMax, paper | 73.4 | **54.8** | 16.3 | 9.2 | 38.4 |
| GRPO, paper | **75.2** | 52.3 | **19.0** | 9.4 | 39.0 |
| REINFORCE++, paper | 72.8 | 54.1 | 16.9 | 9.4 | 38.3 |
| BNPO | 73.4 ± 1.6 | **54.5 ± 5.0** | 18.3 ± 5.0 | 11.5 ± 4.0 | **39.4 ± 2.0** |
| BNPO, paper | 73.4 | 54.5 | 18.3 | **11.5** | **39.4** |

| Qwen2.5-Math-7B | MATH500 | AMC23 | AIME2024 | AIME2025 | Average |
| --- | ---: | ---: | ---: | ---: | ---: |
| Base, paper | 41.4 | 32.5 | 11.0 | 5.0 | 22.5 |
"""
    )
    assert "Table 2" not in text
    assert "Other models" not in text


def below(*paths) -> dict[str, dict[str, list[str]]]:
    """The cells of the only table of averages without one data set."""
    [table] = tables(*paths)
    return table.below.blocks


@pytest.mark.parametrize(
    ("table", "model", "highest", "row", "number"),
    [
        # By hand from the paper's tables, as (74.8 + 18.3 + 11.3) / 3 = 34.8. BNPO's row is third,
        # last and second of five.
        ("Table 1", "Qwen2.5-Math-1.5B", ("REINFORCE, paper", "34.8"), "BNPO, paper", "34.4"),
        ("Table 1", "Qwen2.5-Math-7B", ("ReMax, paper", "42.5"), "BNPO, paper", "40.8"),
        ("Table 2", "Qwen2.5-1.5B-Instruct", ("AD-GRPO, paper", "22.8"), "AD-BNPO, paper", "22.4"),
    ],
)
def test_without_amc23_bnpo_does_not_lead_in_the_papers_numbers(table, model, highest, row, number):
    [made] = make_tables([], always=table)
    column = made.below.columns.index("without AMC23")
    numbers = {label: cells[column] for label, cells in made.below.blocks[model].items()}
    in_bold = [(label, cell[1:]) for label, cell in numbers.items() if cell.startswith("*")]
    assert in_bold == [highest]
    assert numbers[row] == number


def test_averages_without_one_data_set(write):
    """By hand: without AMC23 (73.4 + 18.3 + 11.5) / 3 = 34.4 with an error of
    sqrt(1.6^2 + 5^2 + 4^2) / 3 = 2.2.
    """
    text = to_markdown(tables(write("bnpo", "paper-1.5b")))
    columns = ("MATH500", "AMC23", "AIME2024", "AIME2025")
    header = " | ".join(("Qwen2.5-Math-1.5B", "Average", *(f"without {name}" for name in columns)))
    assert (
        f"""
### Averages without one data set

| {header} |
| --- | ---: | ---: | ---: | ---: | ---: |
| Base, paper | 16.1 | 12.1 | 12.4 | 19.5 | 20.4 |
| REINFORCE, paper | 39.0 | 27.1 | **34.8** | 45.9 | 48.2 |
| ReMax, paper | 38.4 | 26.8 | 33.0 | 45.8 | 48.2 |
| GRPO, paper | 39.0 | 26.9 | 34.5 | 45.6 | **48.8** |
| REINFORCE++, paper | 38.3 | 26.8 | 33.0 | 45.4 | 47.9 |
| BNPO | 39.4 ± 2.0 | 28.1 ± 2.7 | 34.4 ± 2.2 | 46.5 ± 2.2 | 48.7 ± 2.4 |
| BNPO, paper | **39.4** | **28.1** | 34.4 | **46.5** | 48.7 |
"""
        in text
    )
    assert text.index("### Averages") > text.index("- Paper: its numbers")


def test_averages_without_one_data_set_of_several_runs(write):
    files = [
        write(f"seed{seed}", "paper-1.5b", scaled(1 + 0.2 * seed), run={"seed": seed})
        for seed in (0, 1)
    ]
    # Without MATH500: 28.1 and 33.72 with a deviation of 3.97, so sqrt(2.52^2 + 3.97^2 / 2)
    assert below(*files)["Qwen2.5-Math-1.5B"]["BNPO (2 runs)"][1] == "30.9 ± 3.9"


def test_no_averages_without_the_papers_data_sets(write):
    own = {"mine": (0.5, 0.02)}
    [table] = tables(write("tiny", "tiny", own))
    assert table.below is None
    assert "without" not in to_markdown([table])
    # A row that lacks one of them has no average without another
    rows = below(write("rloo", "paper-1.5b", MATH500, run={"algo": "rloo"}))["Qwen2.5-Math-1.5B"]
    assert rows["RLOO"] == [""] * 5


def test_the_released_rules_scores_stand_first_and_ours_beside_them(write):
    better = {name: (score + 0.011, error) for name, (score, error) in SCORES.items()}
    both = write("bnpo", "paper-1.5b", ours=better, grader="default")
    text = to_markdown(tables(both))
    row = (
        "| BNPO | 73.4 ± 1.6 (74.5) | 54.5 ± 5.0 (55.6) | 18.3 ± 5.0 (19.4) | 11.5 ± 4.0 (12.6) | "
        "39.4 ± 2.0 (50.0) |"
    )
    assert row in text
    # The released rule is there, whatever --grader was
    assert "grader" not in " ".join(setting_notes(both))
    second = write("second", "paper-1.5b", SCORES, run={"seed": 1}, ours=scaled(0.9))
    assert f"({100 * (0.745 + 0.9 * 0.734) / 2:.1f})" in to_markdown(tables(both, second))


def test_a_model_with_a_revision_is_the_papers_model(write):
    pinned = f"{BASE}@4a83ca6"
    run = write("bnpo", "paper-1.5b", run={"model": pinned})
    [table] = tables(write("base", ckpt=pinned), run)
    assert {"Base", "BNPO"} < table.blocks["Qwen2.5-Math-1.5B"].keys()
    assert setting_notes(run) == []
    rows = reproduce.chosen_rows(arguments(models=(pinned,), rows=("base", "bnpo")))
    assert [row.name for row in rows] == ["Qwen2.5-Math-1.5B-base", "Qwen2.5-Math-1.5B-bnpo-seed0"]
    assert rows[0].evaluate.ckpt == rows[1].train.data.model == pinned


def test_training_runs_share_a_row(write):
    files = [
        write(
            f"seed{seed}", "paper-1.5b", {"MATH500": (0.7 + 0.04 * seed, 0.02)}, run={"seed": seed}
        )
        for seed in (0, 1)
    ]
    [table] = tables(*files)
    # sqrt(0.02^2 + 0.04^2 / 2 / 2)
    assert table.blocks["Qwen2.5-Math-1.5B"]["BNPO (2 runs)"] == ["72.0 ± 2.8", "", "", "", ""]
    assert setting_notes(*files) == [
        "training seed 0: Qwen2.5-Math-1.5B BNPO",
        "training seed 1: Qwen2.5-Math-1.5B BNPO",
    ]


def test_combine():
    assert combine([(0.4, 0.03)]) == pytest.approx((0.4, 0.03))
    assert combine([(0.4, 0.03)] * 4) == pytest.approx((0.4, 0.03)), (
        "the same problems: their error stays"
    )
    assert combine([(0.40, 0.03), (0.48, 0.03)]) == pytest.approx((0.44, 0.05))


def test_the_method_is_named_after_the_settings_that_change_it():
    run = {
        "algo": "beta",
        "beta_parameters": [1.5, 1.5],
        "decompose": False,
        "rescale_advantages": True,
    }
    assert method_name(run) == "Beta(1.5, 1.5), rescaled"
    run = {"algo": "weight", "weight": "1/p", "weight_wrong": "1", "decompose": False}
    assert method_name(run) == "Weight(1/p, 1)"
    assert method_name({"algo": "grpo", "decompose": True}) == "AD-GRPO"  # of an old run


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({}, None),
        ({"a": (0.9, 0.01)}, None),  # ahead of nothing
        # 1.96 standard errors of the difference are 0.098
        ({"a": (0.90, 0.03), "b": (0.80, 0.04)}, "a"),
        ({"a": (0.89, 0.03), "b": (0.80, 0.04)}, None),
        # Ahead of one is not enough
        ({"b": (0.5, 0.01), "a": (0.9, 0.03), "c": (0.85, 0.03)}, None),
        ({"a": (0.9, 0.0), "b": (0.9, 0.0)}, None),
    ],
)
def test_bold_needs_a_lead_outside_the_interval(scores, best):
    assert leader(scores) == best


def test_a_row_takes_one_file_a_training_seed(write):
    first = write("first", "paper-1.5b")
    pair = r"first.json and .*second.json: both are BNPO of Qwen2.5-Math-1.5B"
    with pytest.raises(
        InputError, match=pair + "; a row takes one file for each training seed, leave one out"
    ):
        tables(first, write("second", "paper-1.5b"))
    with pytest.raises(
        InputError, match=pair + ", but differ in grader, training lr; leave one out"
    ):
        tables(first, write("second", "paper-1.5b", run={"seed": 1, "lr": 1e-5}, grader="default"))
    with pytest.raises(InputError, match=r"base.json and .*base.json: both are Base of"):
        tables(*[write("base", ckpt=BASE)] * 2)


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (None, r"bad.json: not a results.json of eval.py \("),
        ("protocol", "bad.json: not a results.json of eval.py: 'protocol' is missing"),
        ("protocol.run.model", "'model' is missing"),
        ("results.AMC23.se", "'se' is missing"),
        ("protocol.suite.datasets.AMC23", "'AMC23' is missing"),
    ],
)
def test_bad_files_are_named(lacking, message, tmp_path, write):
    with pytest.raises(InputError, match=r"none.json: cannot be read \(No such file"):
        load_results([tmp_path / "none.json"])
    content = json.loads(write("good", "paper-1.5b").read_text()) if lacking else []
    *folders, key = (lacking or "").split(".")
    part = content
    for folder in folders:
        part = part[folder]
    if lacking:
        del part[key]
    (tmp_path / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        load_results([tmp_path / "bad.json"])


def test_differences_from_the_paper_are_noted(write):
    suite = {"temperature": 0.0, "top_p": 0.95, "template": "think"}
    suite |= {"max_prompt_tokens": 512, "max_answer_tokens": 2048}
    sizes = {name: (20, 16) for name in SIZES}
    changed = write(
        "changed", "paper-7b", suite=suite, sizes=sizes, limit=20, grader="default", dtype="float32"
    )
    row = ": Qwen2.5-Math-7B BNPO"
    assert setting_notes(write("base", ckpt=BASE), changed) == [
        f"temperature 0.0 (paper: 0.6){row}",
        f"top_p 0.95 (released code: 1.0){row}",
        f"template think of Qwen2.5-Math (paper: chat of Qwen2.5-Math){row}",
        f"longest prompt 512 (paper: 1024){row}",
        f"longest answer 2048 (paper: 3072){row}",
        f"limit 20 (paper: none){row}",
        f"grader default (released code: paper){row}",
        f"dtype float32 (usual: bfloat16){row}",
        f"problems of MATH500 20 (paper: 500){row}",
        f"repetitions of MATH500 16 (paper: 1){row}",
        f"problems of AMC23 20 (paper: 40){row}",
        f"problems of AIME2024 20 (paper: 30){row}",
        f"problems of AIME2025 20 (paper: 30){row}",
    ]


TRAIN = (
    "--steps 2 --save-every 1 --eval-every 0 --questions-per-step 4 --samples-per-question 4 "
    "--max-answer-tokens 32"
)
EVAL = "--limit 10 --repetitions 1"


def arguments(output: Path | None = None, table: str = "table1", **changes) -> "reproduce.Args":
    return reproduce.Args(table=table, output_dir=output, **changes)


def tiny(output: Path, **changes) -> "reproduce.Args":
    rows = {"rows": ("base", "grpo", "bnpo"), "train_flags": TRAIN, "eval_flags": EVAL}
    return arguments(output, preset="tiny", **rows | changes)


class Starter:
    """Starts a row's commands by forking, and notes them; with `kill` a training is killed in
    its second update.
    """

    def __init__(self, kill: str = ""):
        self.commands, self._kill = [], kill

    def __call__(self, command, row, devices) -> int:
        self.commands.append(command)
        if "train.py" not in command:
            return run_ranks(0, *command[1:], check=False).returncode
        flags = command[command.index("train.py") + 1 :]
        killed = bool(self._kill) and f"{self._kill}-seed0/train" in " ".join(flags)
        environment = {"BNPO_SOAK_KILL": json.dumps(("update", 2, 0.01) if killed else None)}
        return run_ranks(1, "dev/soak.py", *flags, check=False, environment=environment).returncode


def never(command, row, devices) -> int:
    raise AssertionError(f"started: {command}")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory) -> Path:
    """The folder of three rows of Table 1 on the tiny model; the last was killed by SIGKILL
    after its first step.
    """
    output = tmp_path_factory.mktemp("table1")
    first = Starter(kill="bnpo")
    with pytest.raises(
        InputError,
        match=r"^1 of 3 rows failed .* run this script again .*: tiny-model-bnpo-seed0: python .* "
        r"ended with status -?\d+$",
    ):
        reproduce.main(tiny(output), first)
    launch = "scripts/launch.py"
    assert [command[1] for command in first.commands] == ["eval.py", launch, "eval.py", launch]
    assert (output / "tiny-model-bnpo-seed0" / "train" / "last").resolve().name == "step-000001"
    kept = (output / "tiny-model-grpo-seed0" / "eval" / "results.json").stat().st_mtime_ns
    second = Starter()
    reproduce.main(tiny(output), second)
    assert ["bnpo-seed0" in " ".join(command) for command in second.commands] == [True, True]
    assert (output / "tiny-model-grpo-seed0" / "eval" / "results.json").stat().st_mtime_ns == kept
    return output


@pytest.fixture
def rows(reproduced, tmp_path) -> Iterator[Path]:
    """The same folder for tests that damage it. It is restored afterwards."""
    backup = shutil.copytree(reproduced, tmp_path / "backup", symlinks=True)
    yield reproduced
    shutil.rmtree(reproduced)
    shutil.copytree(backup, reproduced, symlinks=True)


def results(output: Path, row: str) -> dict:
    return json.loads((output / f"tiny-model-{row}" / "eval" / "results.json").read_text())


@pytest.mark.sampler
def test_a_killed_row_continues_and_the_table_has_the_numbers_of_the_results(reproduced):
    run = reproduced / "tiny-model-bnpo-seed0" / "train"
    metrics = json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    assert results(reproduced, "base")["protocol"]["run"] is None
    settings = results(reproduced, "grpo-seed0")["protocol"]["run"]
    assert (settings["algo"], settings["steps"], settings["seed"]) == ("grpo", 2, 0)
    table = (reproduced / "tables.md").read_text().splitlines()
    for row, label in (("base", "Base"), ("grpo-seed0", "GRPO"), ("bnpo-seed0", "BNPO")):
        score = results(reproduced, row)["results"]["arithmetic"]
        assert score["problems"] == 10
        numbers = f"{100 * score['pass1']:.1f} ± {100 * score['se']:.1f}"
        assert f"| {label} | {numbers} |" in [line.replace("*", "") for line in table]


@pytest.mark.sampler
def test_a_checkpoint_has_the_size_that_was_planned(reproduced):
    run = reproduced / "tiny-model-grpo-seed0" / "train"
    config = reproduce.chosen_rows(tiny(reproduced, rows=("grpo",)))[0].train
    files = (run / "last").resolve().rglob("*")
    size = sum(
        file.stat().st_size for file in files if file.is_file() and "tokenizer" not in file.name
    )
    assert size == pytest.approx(checkpoints(config, ModelShape(run / "last"), 2)[0], rel=0.02)


@pytest.mark.sampler
def test_finished_rows_are_started_never_again(reproduced, capsys):
    reproduce.main(tiny(reproduced), never)
    assert (
        "\nNot finished: tiny-model-reinforce-seed0, tiny-model-remax-seed0"
        in capsys.readouterr().out
    )


@pytest.mark.sampler
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "foreign",
            r"^tiny-model-bnpo-seed0: .*bnpo-seed0/eval/results.json belongs to another row: algo "
            r"is grpo",
        ),
        ("cut", r"bnpo-seed0/eval/results.json: not a results.json of eval.py \("),
        (
            "last",
            r"^tiny-model-bnpo-seed0: .*/train/last is missing, but .*/end.json says done; delete "
            r"that",
        ),
        ("model", r"^tiny-model-bnpo-seed0: .*bnpo-seed0/train: neither a run nor an evaluation; "),
        (
            "settings",
            r"^tiny-model-bnpo-seed0: .*: other settings would change the run: lr was 0.1, is "
            r"0.0001. Use ",
        ),
    ],
)
def test_what_is_not_the_rows_own_is_refused_by_its_name(damage, message, rows):
    bnpo, grpo = rows / "tiny-model-bnpo-seed0", rows / "tiny-model-grpo-seed0"
    if damage == "foreign":
        shutil.copy(grpo / "eval" / "results.json", bnpo / "eval")
    elif damage == "cut":
        (bnpo / "eval" / "results.json").write_text("{")
    else:
        shutil.rmtree(bnpo / "eval")
    if damage == "last":
        (bnpo / "train" / "last").unlink()
    elif damage == "model":
        shutil.copy(bnpo / "train" / "last" / "config.json", bnpo / "train")
    elif damage == "settings":
        config = bnpo / "train" / "config.json"
        config.write_text(config.read_text().replace('"lr": 0.0001', '"lr": 0.1'))
    before = sorted(rows.rglob("*"))
    with refused(message):
        reproduce.main(tiny(rows), never)
    assert sorted(rows.rglob("*")) == before


@pytest.mark.sampler
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"eval_flags": "--limit 5 --repetitions 1"},
            r"^tiny-model-base: .* belongs to another row: --limit is 1",
        ),
        (
            {"eval_flags": "--limit 10"},
            r"^tiny-model-base: .* another row: repetitions of arithmetic is 1, not ",
        ),
        (
            {"train_flags": TRAIN + " --lr 0.1"},
            r"^tiny-model-grpo-seed0: .* another row: lr is 0.0001, not 0.1; g",
        ),
    ],
)
def test_a_row_of_other_flags_is_not_finished(flags, message, reproduced):
    with pytest.raises(InputError, match=message):
        reproduce.main(tiny(reproduced, show=True, **flags), never)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"rows": ("AD-bnpo",)},
            r"^--rows: table1 has no 'AD-bnpo'; it has base, reinforce, remax, grpo, ",
        ),
        (
            {"dry_run": True, "gpu": "H20O", "rows": ("bnpo",)},
            r"^--gpu: unknown GPU 'H20O'; known: A100-80GB, H20",
        ),
        (
            {"dry_run": True, "gpus": 5, "rows": ("base", "bnpo")},
            r"^--questions-per-step 32 cannot be divided by",
        ),
        ({"dry_run": True, "gpus": 0}, r"^--gpus: is 0, must be greater than 0"),
        (
            {"train_flags": "--algo=grpo"},
            r"^--train-flags: --algo=grpo follows from the row; choose rows with --r",
        ),
        (
            {"train_flags": "--model 'Qwen"},
            r"^--train-flags: cannot be read \(No closing quotation\)",
        ),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(flags, message, tmp_path, capsys):
    with refused(message):
        reproduce.main(arguments(tmp_path / "rows", **flags), never)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "rows").exists()


def test_the_rows_are_the_papers():
    rows = [
        row
        for table in ("table1", "table2")
        for row in reproduce.chosen_rows(arguments(table=table))
    ]
    assert len(rows) == 18
    settings = [row.train for row in rows if row.train]
    assert (
        len(
            {
                (config.data.model, config.method.algo, config.method.decompose)
                for config in settings
            }
        )
        == 15
    )
    assert {config.data.rewards for config in settings if "Math" in config.data.model} == {
        ("accuracy",)
    }
    assert {config.data.rewards for config in settings if "Math" not in config.data.model} == {
        ("accuracy", "format")
    }
    assert [row.train.method.decompose for row in rows[12:] if row.train] == [
        False,
        False,
        True,
        True,
        True,
    ]
    seeds = reproduce.chosen_rows(
        arguments(seeds=(1, 2), rows=("base", "bnpo"), models=("some/where/Qwen2.5-Math-7B",))
    )
    assert [row.name.removeprefix("Qwen2.5-Math-7B-") for row in seeds] == [
        "base",
        "bnpo-seed1",
        "bnpo-seed2",
    ]
    assert {row.train.data.model for row in seeds if row.train} == {"some/where/Qwen2.5-Math-7B"}
