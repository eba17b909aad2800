"""The paper's tables: their cells and notes, and scripts/reproduce.py, which runs their rows."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import reproduce
from bnpo.config import PRESETS, flat_settings, with_settings
from bnpo.files import ROOT, write_json
from bnpo.runs.folder import code_hashes
from bnpo_estimators import ESTIMATORS
from conftest import refused, run_ranks
from paper.results import load_results, method_name
from paper.tables import leader, make_tables, to_markdown

BASE = "Qwen/Qwen2.5-Math-1.5B"
SIZES = {"MATH500": (500, 1), "AMC23": (40, 16), "AIME2024": (30, 16), "AIME2025": (30, 16)}
SCORES = {"MATH500": (0.734, 0.016), "AMC23": (0.545, 0.05)}
SCORES |= {"AIME2024": (0.183, 0.05), "AIME2025": (0.115, 0.04)}


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
        usual_suite = {"name": "paper", "datasets": names, "temperature": 0.6, "top_p": 1.0}
        usual_suite |= {"template": "chat", "max_prompt_tokens": 1024, "max_answer_tokens": 3072}
        usual = {"ckpt": "runs/x/last", "checkpoint_sha256": 64 * "b", "seed": 0}
        usual |= {"dtype": "bfloat16", "grader": "paper", "limit": None, "versions": {"vllm": "0"}}
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
        usual |= {"run": config and flat_settings(config), "suite": usual_suite | dict(suite)}
        content = {"protocol": usual | protocol, "results": results, "average": average}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content, default=str), encoding="utf-8")
        return path

    return write_file


def tables(*paths):
    return make_tables(load_results(paths))


def setting_notes(*paths) -> list[str]:
    """The notes of the only table, without those that every table has."""
    [table] = tables(*paths)
    general = ("Ours:", "Bold in our rows:", "Paper:", "In brackets:")
    return [note for note in table.notes if not note.startswith(general)]


def scaled(factor: float) -> dict:
    return {name: (score * factor, error) for name, (score, error) in SCORES.items()}


def test_markdown(write):
    files = [write("base", ckpt=BASE, scores=scaled(0.4)), write("bnpo", "paper-1.5b")]
    one_set = {"MATH500": SCORES["MATH500"]}
    files.append(write("rloo", "paper-1.5b", one_set, run={"algo": "rloo"}))
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


def test_training_runs_share_a_row(write):
    files = [
        write(f"seed{seed}", "paper-1.5b", scaled(1 + 0.2 * seed), run={"seed": seed})
        for seed in (0, 1)
    ]
    [table] = tables(*files)
    # MATH500: 73.4 and 88.08 with a deviation of 10.4, so sqrt(1.6^2 + 10.4^2 / 2)
    assert table.blocks["Qwen2.5-Math-1.5B"]["BNPO (2 runs)"][0] == "80.7 ± 7.5"
    # Without MATH500: 28.1 and 33.72 with a deviation of 3.97, so sqrt(2.52^2 + 3.97^2 / 2)
    assert table.below.blocks["Qwen2.5-Math-1.5B"]["BNPO (2 runs)"][1] == "30.9 ± 3.9"
    [own] = tables(write("tiny", "tiny", {"mine": (0.5, 0.02)}))
    assert own.below is None  # no average without one of the paper's data sets
    assert setting_notes(*files) == [
        "training seed 0: Qwen2.5-Math-1.5B BNPO",
        "training seed 1: Qwen2.5-Math-1.5B BNPO",
    ]


def test_the_method_is_named_after_the_settings_that_change_it():
    run = {"algo": "beta", "beta_parameters": [1.5, 1.5]}
    run |= {"decompose": False, "rescale_advantages": True}
    assert method_name(run) == "Beta(1.5, 1.5), rescaled"
    run = {"algo": "weight", "weight": "1/p", "weight_wrong": "1", "decompose": False}
    assert method_name(run) == "Weight(1/p, 1)"
    assert method_name({"algo": "grpo", "decompose": True}) == "AD-GRPO"  # of an old run


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({"a": (0.9, 0.01)}, None),  # ahead of nothing
        # 1.96 standard errors of the difference are 0.098
        ({"a": (0.90, 0.03), "b": (0.80, 0.04)}, "a"),
        ({"a": (0.89, 0.03), "b": (0.80, 0.04)}, None),
        # Ahead of one is not enough
        ({"b": (0.5, 0.01), "a": (0.9, 0.03), "c": (0.85, 0.03)}, None),
    ],
)
def test_bold_needs_a_lead_outside_the_interval(scores, best):
    assert leader(scores, dict.fromkeys(scores, 1)) == best


def test_bold_of_few_runs_needs_the_lead_of_their_t_test():
    a, b = [0.430, 0.444], [0.405, 0.412]
    errors = [float(np.std(x, ddof=1)) / len(x) ** 0.5 for x in (a, b)]
    scores = {"a": (np.mean(a), errors[0]), "b": (np.mean(b), errors[1])}
    assert stats.ttest_ind(a, b, equal_var=False).pvalue > 0.05  # 3.5 errors apart
    assert leader(scores, {"a": 2, "b": 2}) is None
    assert leader(scores, {"a": 9, "b": 9}) == "a"


def test_a_row_takes_one_file_per_training_seed(write):
    first = write("first", "paper-1.5b")
    pair = r"first.json and .*second.json: both are BNPO of Qwen2.5-Math-1.5B"
    with refused(pair + "; a row takes one file for each training seed, leave one out"):
        tables(first, write("second", "paper-1.5b"))
    with refused(pair + ", but differ in grader, training lr; leave one out"):
        tables(first, write("second", "paper-1.5b", run={"seed": 1, "lr": 1e-5}, grader="default"))


def test_bad_files_are_named(tmp_path, write):
    content = json.loads(write("good", "paper-1.5b").read_text())
    del content["protocol"]["suite"]["datasets"]["AMC23"]
    for text, message in (
        (None, "bad.json: cannot be read"),
        ("[]", r"bad.json: not a results.json of eval.py \("),
        (json.dumps(content), "bad.json: not a results.json of eval.py: 'AMC23' is missing"),
    ):
        if text is not None:
            (tmp_path / "bad.json").write_text(text)
        with refused(message):
            load_results([tmp_path / "bad.json"])


def test_a_template_from_a_file_is_noted_by_its_hash(write):
    own = write("own", "paper-7b", suite={"template": "{{ messages }}\n"})
    [note] = [x for x in setting_notes(write("base", ckpt=BASE), own) if x.startswith("template")]
    digest = hashlib.sha256(b"{{ messages }}\n").hexdigest()[:8]
    assert note.startswith(f"template from a file (SHA-256 {digest}) (paper: chat of Qwen")


def test_a_run_that_was_stopped_is_noted_with_its_step(write):
    file = write("bnpo", "paper-1.5b")
    content = json.loads(file.read_text())
    content["protocol"]["run"] |= {"step": 37, "done": False}
    file.write_text(json.dumps(content))
    assert setting_notes(file) == ["checkpoint step-000037 (preset paper-1.5b: last): all our rows"]
    content["protocol"]["run"] |= {"step": 195, "done": True}
    file.write_text(json.dumps(content))
    assert setting_notes(file) == []


def test_a_rule_that_the_user_has_chosen_is_shown_and_noted(write):
    rules = {
        "mine.py:f": {"pass1": 0.4, "se": 0.02},
        "default": {"pass1": 0.2, "se": 0.02},
        "paper": {"pass1": 0.1, "se": 0.02},
    }
    file = write("base", ckpt=BASE, grader="mine.py:f")
    content = json.loads(file.read_text())
    for score in (*content["results"].values(), content["average"]):
        score["by_rule"] = rules
    file.write_text(json.dumps(content))
    [result] = load_results([file])
    assert {score for score, _ in result.scores.values()} == {0.4}
    assert setting_notes(file) == ["grader mine.py:f (released code: paper): all our rows"]


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


def never(command, row, devices) -> int:
    raise AssertionError(f"started: {command}")


def start(command, row, devices) -> int:
    """Run a command of a row. The folder of BNPO's run is in the way of its first start."""
    if "train.py" not in command:
        return run_ranks(0, *command[1:], check=False).returncode
    return run_ranks(1, *command[command.index("train.py") :], check=False).returncode


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory) -> Path:
    """The folder of three rows of Table 1 on the tiny model; the last one failed at first."""
    output = tmp_path_factory.mktemp("table1")
    failing = output / "tiny-model-bnpo-seed0" / "train"
    failing.parent.mkdir()
    failing.write_text("no folder")
    failure = r"^1 of 3 rows failed .* run this script again .*: tiny-model-bnpo-seed0: python .* "
    with refused(failure):
        reproduce.main(tiny(output), start)
    kept = output / "tiny-model-grpo-seed0" / "eval" / "results.json"
    written = kept.stat().st_mtime_ns
    failing.unlink()
    reproduce.main(tiny(output), start)
    assert kept.stat().st_mtime_ns == written
    return output


def results(output: Path, row: str) -> dict:
    return json.loads((output / f"tiny-model-{row}" / "eval" / "results.json").read_text())


@pytest.mark.extra
@pytest.mark.sampler
def test_the_table_has_the_numbers_of_the_results_and_finished_rows_are_not_started(reproduced):
    settings = results(reproduced, "grpo-seed0")["protocol"]["run"]
    assert (settings["algo"], settings["steps"], settings["seed"]) == ("grpo", 2, 0)
    table = (reproduced / "table1.md").read_text().replace("*", "").splitlines()
    for row, label in (("base", "Base"), ("grpo-seed0", "GRPO"), ("bnpo-seed0", "BNPO")):
        score = results(reproduced, row)["results"]["arithmetic"]
        assert f"| {label} | {100 * score['pass1']:.1f} ± {100 * score['se']:.1f} |" in table
    reproduce.main(tiny(reproduced), never)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rows": ("AD-bnpo",)}, "^--rows: table1 has no 'AD-bnpo'; it has base, reinforce, "),
        ({"dry_run": True, "gpu": "H20O"}, "^--gpu: unknown GPU 'H20O'; known: A100-80GB, H20"),
        ({"dry_run": True, "gpus": 5}, "^--questions-per-step 32 cannot be divided by"),
        ({"train_flags": "--algo=grpo"}, "^--train-flags: --algo=grpo follows from the row"),
        ({"train_flags": "--model 'Qwen"}, r"^--train-flags: cannot be read"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(flags, message, tmp_path, capsys):
    with refused(message):
        reproduce.main(arguments(tmp_path / "rows", **flags), never)
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "rows").exists()


def finished_row(folder: Path, **flags) -> reproduce.Row:
    """Return a row of the tiny model whose training and evaluation have ended, by its files."""
    [row] = reproduce.chosen_rows(arguments(folder, preset="tiny", rows=("grpo",), **flags))
    config = flat_settings(row.train) | code_hashes(row.train)
    (row.run / "last").mkdir(parents=True)
    row.evaluation.mkdir()
    write_json(row.run / "config.json", config)
    write_json(row.run / "end.json", {"step": row.train.batch.steps, "why": "done"})
    suite = row.protocol["suite"]
    for dataset in suite["datasets"].values():
        dataset |= {"problems": 500, "sha256": 64 * "a"}
    score = {"problems": 500, "repetitions": 4, "pass1": 0.5, "se": 0.01}
    protocol = row.protocol | {"suite": suite, "dtype": "float32", "versions": {}}
    results = {"protocol": protocol, "results": {"arithmetic": score}, "average": score}
    write_json(row.results, json.loads(json.dumps(results, default=str)))
    return row


def test_an_edited_suite_or_estimator_makes_no_finished_row(tmp_path, monkeypatch):
    suite, mine = tmp_path / "mine.json", tmp_path / "mine.py"
    suite.write_text((ROOT / "evals" / "arithmetic.json").read_text())
    mine.write_text("def short(text, reference):\n    return len(text) < 9\n")
    flags = {"eval_flags": f"--suite {suite}", "train_flags": f"--rewards accuracy,{mine}:short"}
    row = finished_row(tmp_path / "rows", **flags)
    assert reproduce.is_trained(row)
    assert reproduce.is_finished(row)
    mine.write_text("def short(text, reference):\n    return len(text) < 8\n")
    with refused("other settings would change the run: reward_sha256 has changed"):
        reproduce.is_trained(row)
    suite.write_text(suite.read_text().replace('"temperature": 0.6', '"temperature": 0.7'))
    with refused("belongs to another row: suite's temperature is 0.6, not 0.7; use the flags and"):
        reproduce.is_finished(row)


def test_an_edited_grader_makes_no_finished_row(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def starts(text, reference):\n    return text.startswith(reference)\n")
    row = finished_row(tmp_path / "rows", eval_flags=f"--grader {mine}:starts")
    assert reproduce.is_finished(row)
    mine.write_text("def starts(text, reference):\n    return text.startswith(reference[:1])\n")
    with refused("belongs to another row: grader_sha256 "):
        reproduce.is_finished(row)


def test_own_rows_are_shown_without_those_of_the_repository(tmp_path, capsys, monkeypatch):
    recorded = finished_row(tmp_path / "recorded", seeds=(1,))
    (recorded.folder / "results.json").write_text(recorded.results.read_text())
    monkeypatch.setattr(reproduce.Args, "records", tmp_path / "recorded")
    args = arguments(tmp_path / "rows", preset="tiny", rows=("grpo",), show=True)
    reproduce.main(args)
    printed = capsys.readouterr().out
    assert printed.startswith(f"No row is finished in {tmp_path / 'rows'}. These are from ")
    assert not (tmp_path / "rows" / "table1.md").exists()
    assert "| GRPO | 50.0" in printed
    finished_row(tmp_path / "rows", seeds=(0,))
    reproduce.main(args)
    printed = capsys.readouterr().out
    assert "These are from" not in printed
    assert (tmp_path / "rows" / "table1.md").exists()
    assert "seed1" not in printed


def test_the_table_of_methods_has_all_of_them_and_takes_the_rows_of_table_1():
    every = reproduce.chosen_rows(arguments(table="methods", preset="smollm2"))
    algos = [row.train.method.algo for row in every if row.train]
    assert sorted(algos) == sorted(ESTIMATORS.keys() - {"gdpo", "beta", "weight"})
    of_the_paper = reproduce.chosen_rows(arguments(preset="smollm2"))
    assert every[: len(of_the_paper)] == of_the_paper
    assert every[0].folder.parent == Path("runs/table1-smollm2")


def test_the_rows_are_the_papers():
    tables = {name: reproduce.chosen_rows(arguments(table=name)) for name in ("table1", "table2")}
    trained = {name: [row.train for row in rows if row.train] for name, rows in tables.items()}
    assert [len(rows) for rows in tables.values()] == [12, 6]
    assert {config.data.rewards for config in trained["table1"]} == {("accuracy",)}
    assert {config.data.rewards for config in trained["table2"]} == {("accuracy", "format")}
    decomposed = [config.method.decompose for config in trained["table2"]]
    assert decomposed == [False, False, True, True, True]
    pinned = f"{BASE}@4a83ca6"  # the paper's model at a revision
    seeds = arguments(seeds=(1, 2), rows=("base", "bnpo"), models=(pinned,))
    base, *rows = reproduce.chosen_rows(seeds)
    assert [row.name for row in rows] == [f"Qwen2.5-Math-1.5B-bnpo-seed{seed}" for seed in (1, 2)]
    assert {base.evaluate.ckpt, *(row.train.data.model for row in rows)} == {pinned}
