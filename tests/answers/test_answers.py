import json
import subprocess
import sys

import pytest

from mathequal import MAX_LENGTH, equal, final_answer
from mathequal.read import normal_form
from mathequal.released import released_verdict


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{\frac{a}{\sqrt{b}}} end", r"\frac{a}{\sqrt{b}}"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed {17}. Then \fbox{18}", "18"),
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed{\left\{ x : x > 1 \right.}", r"\left\{ x : x > 1 \right."),
        (r"\begin{align*} a \\\boxed{3}", "3"),
        (r"a printed string: \\boxed{4}", "4"),
        ("} } {" + r"\boxed{6}", "6"),
        (r"\boxed{  }", ""),
        ("7", None),
        (r"The answer is $\boxed 7$.", "7"),
        (r"\boxed{5} or rather $\boxed7$", "7"),
        (r"\boxed 5 or rather \boxed{7}", "7"),
        ("\\[\\boxed\\frac{1}{2}\\]", r"\frac{1}{2}"),
        (r"\boxed 7 or 8", "7 or 8"),
        (r"\boxed{1} then \boxed", "1"),
        (r"\boxedsomething 7", None),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{1}</think><answer>so \boxed{2}</answer>", "2"),
        (r"<answer>1</answer><answer> 2 </answer>", "2"),
        (r"<answer>1</answer><answer>2", "1"),
        (r"\boxed{1} and no tags", "1"),
        (r"<answer>2 \boxed{1}", "1"),
        # in linear time
        (r"\boxed{" * 100_000, None),
        (r"\boxed{" * 100_000 + "}" * 100_000, ""),
        (r"\boxed{" + "{" * 1_000_000, None),
    ],
)
def test_final_answer_in_tags(text, answer):
    assert final_answer(text, tags=True) == answer


def test_a_long_answer_is_right_only_letter_by_letter():
    long = "x" * (MAX_LENGTH + 1)
    for answer, expected in ((long, True), (f"{long} ", True), ("y", False)):
        assert (equal(long, answer), equal(answer, long)) == (expected, expected)


def test_an_empty_answer_is_never_right():
    for empty in ("", " ", r"\text{}", "$$", "."):
        assert equal("", empty) is False
        assert equal(empty, "") is False


def test_normal_form_keeps_rows_of_matrices():
    column, row, other = (
        normal_form(rf"\begin{{pmatrix}} {entries} \end{{pmatrix}}") for entries in (r"1 \\ 2", "1 & 2", r"1\\2")
    )
    assert column == other != row


def test_the_released_rule_on_brace_less_fractions():
    assert released_verdict(r"\frac{3}{4}", r"so $\boxed{\frac{3}{4}}$")
    assert not released_verdict(r"\sec x", r"\boxed{\frac1{\cos x}}")


def command(*arguments):
    program = [sys.executable, "-m", "mathequal", *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.program
def test_labelled_cases_of_other_projects(data_dir):
    result = command(data_dir / "grader_cases.jsonl", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert set(report) == {"n", "agreement", "false_positives", "false_negatives", "failures", "per_second"}
    assert (report["n"], report["failures"]) == (148, {})
    assert report["agreement"] >= 0.98
    assert report["false_positives"] == []


@pytest.mark.program
@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        (["--pair", r"-\frac12", "-0.5"], "equal"),
        (["--pair", "-x", "-y"], "different"),
        (["--grader", "paper", "--pair", r"\frac34", r"so \boxed{0.75}"], "equal"),
        (["--json", "--pair", "x", "2x"], '{"equal": false, "failures": {}}'),
        (["--pair", "x", "9^{9^{9^{9}}}"], "different (no verdict: timeout)"),
    ],
)
def test_one_pair(flags, printed):
    result = command(*flags)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{printed}\n", "")


@pytest.mark.program
def test_wrong_arguments_are_refused():
    for flags in ([], ["--pair", "1"], ["--pair", "1", "2", "--json"]):
        result = command(*flags)
        assert result.returncode == 2
        assert "--pair" in result.stderr


@pytest.mark.program
def test_importing_the_package_imports_no_parser():
    code = "import sys, mathequal; assert not {'sympy', 'math_verify', 'bnpo'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.program
def test_the_report_shows_every_disagreement(tmp_path):
    cases = tmp_path / "cases.jsonl"
    rows = [("1", r"\boxed{1}", True), ("1", "2", True), ("x+1", "1+x", False), ("y", r"\frac{", False)]
    cases.write_text("".join(json.dumps({"gold": g, "prediction": p, "equal": e}) + "\n" for g, p, e in rows))
    result = command(cases)
    assert "false positives: 1\n  gold 'x+1', prediction '1+x'" in result.stdout
    assert "false negatives: 1\n  gold '1', prediction '2'" in result.stdout
    assert "4 cases, agreement 0.5000, 0 without a verdict" in result.stdout


@pytest.mark.program
def test_bad_cases_name_file_and_line(tmp_path):
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"gold": "1", "prediction": "1"}\n{"gold": "1", "prediction": 1}\n')
    result = command(cases)
    assert result.returncode == 1
    assert f"{cases}:2: field 'prediction' must be a str" in result.stderr
    cases.write_text('{"gold": "1", "prediction": "1"}\n')
    assert "no case is labelled" in command(cases).stdout
    assert "no such data file" in command(tmp_path / "absent.jsonl").stderr
