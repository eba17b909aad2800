import json
import subprocess
import sys

import pytest

from bnpo.files import ROOT, InputError
from paper.results import load_results, method_name
from paper.tables import PAPER_SCORES, combine, leader, to_markdown
from results_files import BASE, MATH500, SCORES, setting_notes, tables


def scaled(factor: float) -> dict:
    return {name: (score * factor, error) for name, (score, error) in SCORES.items()}


def test_the_printed_averages_are_those_of_the_copied_numbers():
    bold = 0
    for models in PAPER_SCORES.values():
        for rows in models.values():
            numbers = {method: [float(n.lstrip("*")) for n in row.split()] for method, row in rows.items()}
            for *parts, average in numbers.values():
                assert len(parts) == 4
                # The parts are rounded, and so is their average.
                assert sum(parts) / 4 == pytest.approx(average, abs=0.1)
            for i in range(5):
                best = max(row[i] for row in numbers.values())
                marked = {row[i] for method, row in numbers.items() if rows[method].split()[i].startswith("*")}
                assert marked == {best}
                bold += sum(row.split()[i].startswith("*") for row in rows.values())
    assert bold == 16  # of 7B on MATH500 two are the best


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


def test_the_released_rules_scores_stand_first_and_ours_beside_them(write):
    better = {name: (score + 0.011, error) for name, (score, error) in SCORES.items()}
    both = write("bnpo", "paper-1.5b", ours=better, grader="default")
    text = to_markdown(tables(both))
    row = "| BNPO | 73.4 ± 1.6 (74.5) | 54.5 ± 5.0 (55.6) | 18.3 ± 5.0 (19.4) | 11.5 ± 4.0 (12.6) | 39.4 ± 2.0 (50.0) |"
    assert row in text
    assert "grader" not in " ".join(setting_notes(both))  # the released rule is there, whatever --grader was
    second = write("second", "paper-1.5b", SCORES, run={"seed": 1}, ours=scaled(0.9))
    assert f"({100 * (0.745 + 0.9 * 0.734) / 2:.1f})" in to_markdown(tables(both, second))


def test_table_2_tells_decomposition_apart(write):
    files = [write("ad", "paper-format", suite={"template": "think"})]
    files.append(write("plain", "paper-format", run={"algo": "grpo", "decompose": False}, suite={"template": "think"}))
    [table] = tables(*files)
    assert table.title.startswith("Table 2")
    rows = table.blocks["Qwen2.5-1.5B-Instruct"]
    assert [row for row in rows if "paper" not in row] == ["GRPO", "AD-BNPO"]
    assert list(rows).index("AD-BNPO, paper") == list(rows).index("AD-BNPO") + 1
    assert setting_notes(*files) == [
        "template think of Qwen2.5-1.5B-Instruct (paper: chat of Qwen2.5-Math): all our rows"
    ]


def test_training_runs_share_a_row(write):
    files = [
        write(f"seed{seed}", "paper-1.5b", {"MATH500": (0.7 + 0.04 * seed, 0.02)}, run={"seed": seed})
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
    assert combine([(0.4, 0.03)] * 4) == pytest.approx((0.4, 0.03)), "the same problems: their error stays"
    assert combine([(0.40, 0.03), (0.48, 0.03)]) == pytest.approx((0.44, 0.05))


def test_the_method_is_named_after_the_settings_that_change_it():
    run = {"algo": "beta", "beta_parameters": [1.5, 1.5], "decompose": False, "rescale_advantages": True}
    assert method_name(run) == "Beta(1.5, 1.5), rescaled"
    run = {"algo": "weight", "weight": "1/p", "weight_wrong": "1", "decompose": False}
    assert method_name(run) == "Weight(1/p, 1)"
    assert method_name({"algo": "grpo", "decompose": True}) == "AD-GRPO"  # of an old run


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ({}, None),
        ({"a": (0.9, 0.01)}, None),  # ahead of nothing
        ({"a": (0.90, 0.03), "b": (0.80, 0.04)}, "a"),  # 1.96 standard errors of the difference are 0.098
        ({"a": (0.89, 0.03), "b": (0.80, 0.04)}, None),
        ({"b": (0.5, 0.01), "a": (0.9, 0.03), "c": (0.85, 0.03)}, None),  # ahead of one is not enough
        ({"a": (0.9, 0.0), "b": (0.9, 0.0)}, None),
    ],
)
def test_bold_needs_a_lead_outside_the_interval(scores, best):
    assert leader(scores) == best


def test_a_row_takes_one_file_a_training_seed(write):
    first = write("first", "paper-1.5b")
    pair = r"first.json and .*second.json: both are BNPO of Qwen2.5-Math-1.5B"
    with pytest.raises(InputError, match=pair + "; a row takes one file for each training seed, leave one out"):
        tables(first, write("second", "paper-1.5b"))
    with pytest.raises(InputError, match=pair + ", but differ in grader, training lr; leave one out"):
        tables(first, write("second", "paper-1.5b", run={"seed": 1, "lr": 1e-5}, grader="default"))
    with pytest.raises(InputError, match=r"base.json and .*base.json: both are Base of"):
        tables(*[write("base", ckpt=BASE)] * 2)


def test_bad_files_are_named(tmp_path, write):
    with pytest.raises(InputError, match=r"none.json: cannot be read \(No such file"):
        load_results([tmp_path / "none.json"])
    for text in ("{", "[]", "\x00", "3"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=r"bad.json: not a results.json of eval.py \("):
            load_results([tmp_path / "bad.json"])
    content = json.loads(write("good", "paper-1.5b").read_text())
    for place in (
        "protocol",
        "protocol.suite",
        "protocol.run.model",
        "results.AMC23.se",
        "protocol.suite.datasets.AMC23",
    ):
        lacking = json.loads(json.dumps(content))
        *folders, key = place.split(".")
        part = lacking
        for folder in folders:
            part = part[folder]
        del part[key]
        (tmp_path / "bad.json").write_text(json.dumps(lacking))
        with pytest.raises(InputError, match=f"bad.json: not a results.json of eval.py: '{key}' is missing"):
            load_results([tmp_path / "bad.json"])


def make(*arguments) -> subprocess.CompletedProcess:
    command = [sys.executable, "scripts/make_tables.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")


@pytest.mark.program
def test_the_script(tmp_path, write):
    file = write("bnpo", "paper-1.5b")
    printed = make(file)
    assert printed.stdout == to_markdown(tables(file)), printed.stderr
    written = make(file, "--output-dir", tmp_path / "new" / "tables")
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "new" / "tables" / "tables.md").read_text(encoding="utf-8") == printed.stdout
    for arguments, message in (((), "no results.json files"), (("none.json",), "none.json: cannot be read")):
        failed = make(*arguments)
        assert failed.returncode == 1
        assert failed.stderr.startswith(f"error: {message}")
