import json
import subprocess
import sys

import pytest

import mathequal
from bnpo.grading.grader import Grader
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


def test_final_answer_takes_linear_time():
    assert final_answer(r"\boxed{" * 100_000) is None
    assert final_answer(r"\boxed{" * 100_000 + "}" * 100_000) == ""
    assert final_answer(r"\boxed{" + "{" * 1_000_000) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{1}</think><answer>so \boxed{2}</answer>", "2"),
        (r"<answer>1</answer><answer> 2 </answer>", "2"),
        (r"<answer>1</answer><answer>2", "1"),
        (r"\boxed{1} and no tags", "1"),
        (r"<answer>2 \boxed{1}", "1"),
    ],
)
def test_final_answer_in_tags(text, answer):
    assert final_answer(text, tags=True) == answer


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("1 1/2", "11/2", False),
        ("1,2", "1.2", False),
        ("(1,234)", "1234", False),
        ("1101_2", "1101_{2}", True),
        ("1101_2", "1101_3", False),
        ("1101_2", "1101", True),
        ("4t", "4", False),
        ("2ab", "2", False),
        ("6 ab", "6", False),
        (r"3 \text{ million}", "3", False),
        ("3 million", "3", False),
        ("2 sqrt", "2", False),
        ("3x+5y=8", "8", False),
        ("x = 2 + 3 = 5", "5", True),
        ("f(x) = 2x + 3", "2x+3", True),
        ("x = 5", "y = 5", False),
        ("1 < x < 2", "(1,2)", True),
        ("1 < x < 2", "[1,2]", False),
        ("x+1", "y+1", False),
        (r"\frac{1}{2^{98}}", "0.0", False),
        ("0.333333", r"\frac{1}{3}", True),
        ("0.333", r"\frac{1}{3}", False),
        (r"\sqrt{2}", "1.41421", False),
        (r"\{1,2\}", r"\{2,1\}", True),
        (r"\{1,2\}", "(2,1)", False),
        (r"\{1,2\}", "(1,2)", False),
        (r"\frac{1}{2}", "(0.5)", True),
        (r"\dfrac{2469}{20,\!000}", r"\frac{2469}{20000}", True),
        ("-37_8", "-37_{9}", False),
        ("5", r"5\mathrm{i}", False),
        ("5", "|x| = 5", False),
        ("42", "f(2) = 42", True),
        ("-1/2", "-1 -1/2", False),
        ("2", "2 squared", False),
        ("1 or 2", "2, 1", True),
        (r"\text{even}", r"\text{odd}", False),
        ("100 or 200", "100200", False),
        ("100, 200", "200, 100", True),
        ("81, 256", "256, 81", True),
        ("2**3", "23", False),
        ("**5**", "5", True),
        ("5 below zero", "5", False),
        ("60 miles per hour", "60", True),
        (r"10\%", "10", True),
        (r"10\%", "0.1", True),
        (r"\text{(B)}", "B", True),
        (r"(1+i)^2", "2i", True),
        (r"\sin 30^\circ", "0.5", True),
        ("−5", "-5", True),
        ("٥", "5", False),
        *((money, "7", True) for money in ("£7", "₹7", "¥7", "Rs 7", "Rs. 7.", r"\text{Rs. }7", r"\pounds 7", "7 元")),
        *(("7", things, True) for things in ("7 个", "7个", r"7\text{ 个}", "7 rupees", "7 yuan")),
        ("£3.50", "3.5", True),
        ("£7", "7 pounds", True),
        ("£7", "€7", False),
        ("Rs 7", "£7", False),
        ("£7", "8", False),
        ("7", "£7 million", False),
        ("7", "7万", False),
        ("60", "60 kmph", True),
        ("60 km/h", "60 kmph", True),
        ("60 mph", "60 kmph", False),
        ("abs(x-1)", "|x-1|", True),
        ("2+abs(x-1)", r"\operatorname{abs}(1-x)+2", True),
        ("abs(x-1)", "x-1", False),
        ("abs(x-1)", "|x+1|", False),
        ("C1*exp(-x)", "C_1e^{-x}", True),
        ("C1*exp(-x)+C2*exp(x)", "c_1 e^{-x} + c_2 e^x", True),
        ("y = C1*exp(-x) + C2*x*exp(-x)", "y=(C_1+C_2x)e^{-x}", True),
        ("C1*exp(-x)", "C1*exp(x)", False),
        ("C1*exp(-x)", "exp(-x)", False),
        ("x" * (MAX_LENGTH + 1), "x" * (MAX_LENGTH + 1), True),
        ("x" * (MAX_LENGTH + 1), "x" * (MAX_LENGTH + 1) + " ", True),
        ("x" * (MAX_LENGTH + 1), "y", False),
    ],
)
def test_equality_is_symmetric(first, second, expected):
    assert (equal(first, second), equal(second, first)) == (expected, expected)


def test_an_empty_answer_is_never_right():
    for empty in ("", " ", r"\text{}", "$$", "."):
        assert equal("", empty) is False
        assert equal(empty, "") is False


def test_numbers_are_equal_however_they_are_written():
    for first, second in (
        ("1.50", r"\tfrac32"),
        ("1{,}000", "1000"),
        ("12\\%", "12"),
        (r"90^\circ", "90"),
        ("+033", "33"),
    ):
        assert equal(first, second)
    assert not equal("3", "4")


def test_normal_form_keeps_rows_of_matrices():
    column, row, other = (
        normal_form(rf"\begin{{pmatrix}} {entries} \end{{pmatrix}}") for entries in (r"1 \\ 2", "1 & 2", r"1\\2")
    )
    assert column == other != row


def test_the_released_rule_on_brace_less_fractions():
    assert released_verdict(r"\frac{3}{4}", r"so $\boxed{\frac{3}{4}}$")
    assert not released_verdict(r"\sec x", r"\boxed{\frac1{\cos x}}")


def run_cases(path, *flags):
    return subprocess.run(
        [sys.executable, "-m", "mathequal", str(path), *flags], capture_output=True, text=True, check=False
    )


@pytest.mark.program
def test_labelled_cases_of_other_projects(data_dir):
    result = run_cases(data_dir / "grader_cases.jsonl", "--json")
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
    result = subprocess.run(
        [sys.executable, "-m", "mathequal", *flags], capture_output=True, text=True, check=False, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{printed}\n", "")


@pytest.mark.program
def test_wrong_arguments_are_refused():
    for flags in ([], ["--pair", "1"], ["--pair", "1", "2", "--json"]):
        result = subprocess.run(
            [sys.executable, "-m", "mathequal", *flags], capture_output=True, text=True, check=False
        )
        assert result.returncode == 2
        assert "--pair" in result.stderr


def test_a_verdict_that_exceeds_a_limit_is_counted_and_the_next_one_works():
    grader = Grader(workers=1, time_limit=1)
    grades = grader([r"\boxed{9^{9^{9^{9}}}}", r"\boxed{x+1}"], ["x", "1+x"])
    grader.close()
    assert grades.rewards.tolist() == [[0.0], [1.0]]
    assert grades.failures == {"timeout": 1}


@pytest.mark.program
@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("7", r"The answer is $\boxed 7$."),
        ("7", r"The answer is $\boxed{7}$."),
        ("8", r"The answer is $\boxed 7$."),
        ("9^{9^{9^{9}}}", r"\boxed{x}"),
    ],
)
def test_the_command_and_the_reward_give_one_verdict(reference, text):
    result = subprocess.run(
        [sys.executable, "-m", "mathequal", "--json", "--pair", reference, text], capture_output=True, check=False
    )
    grader = Grader(workers=1)
    grades = grader([text], [reference])
    grader.close()
    assert json.loads(result.stdout) == {"equal": grades.rewards.tolist() == [[1.0]], "failures": grades.failures}


def test_the_package_says_whether_two_answers_are_equal():
    assert mathequal.equal("x+1", "1+x")
    assert not mathequal.equal("x+1", "x+2")
    assert mathequal.final_answer(r"\boxed{5}") == "5"


@pytest.mark.program
def test_importing_the_package_imports_no_parser():
    code = "import sys, mathequal; assert not {'sympy', 'math_verify', 'bnpo'} & {*sys.modules}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.program
def test_the_report_shows_every_disagreement(tmp_path):
    cases = tmp_path / "cases.jsonl"
    rows = [("1", r"\boxed{1}", True), ("1", "2", True), ("x+1", "1+x", False), ("y", r"\frac{", False)]
    cases.write_text("".join(json.dumps({"gold": g, "prediction": p, "equal": e}) + "\n" for g, p, e in rows))
    result = run_cases(cases)
    assert "false positives: 1\n  gold 'x+1', prediction '1+x'" in result.stdout
    assert "false negatives: 1\n  gold '1', prediction '2'" in result.stdout
    assert "4 cases, agreement 0.5000, 0 without a verdict" in result.stdout


@pytest.mark.program
def test_bad_cases_name_file_and_line(tmp_path):
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"gold": "1", "prediction": "1"}\n{"gold": "1", "prediction": 1}\n')
    result = run_cases(cases)
    assert result.returncode == 1
    assert f"{cases}:2: field 'prediction' must be a str" in result.stderr
    assert "no case is labelled" in run_cases(write(tmp_path, '{"gold": "1", "prediction": "1"}')).stdout
    assert "no such data file" in run_cases(tmp_path / "absent.jsonl").stderr


def write(folder, text):
    path = folder / "unlabelled.jsonl"
    path.write_text(text)
    return path
