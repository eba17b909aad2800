"""Evaluate a model: pass@1 over several repetitions of every problem, with error bars. Saves every
sample.

    python eval.py --ckpt runs/tiny-bnpo-seed0/last    # a checkpoint of a training run
    python eval.py --ckpt Qwen/Qwen2.5-Math-7B --repetitions MATH500=1    # the paper's number
    python eval.py --ckpt Qwen/Qwen2.5-Math-7B --dry-run    # problems and answers; starts nothing
"""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bnpo.environment import forget_launcher, parse_command, setup_environment
from bnpo.errors import end_on_gpus, error_line


def main() -> None:
    setup_environment()
    forget_launcher()  # an evaluation has no ranks
    from bnpo.evaluation.program import EvalConfig

    with error_line():
        config = parse_command(EvalConfig, prog="eval.py")
        if config.dry_run:
            from planner.dry_run import dry_run_evaluation

            return dry_run_evaluation(config)
        from bnpo.evaluation.program import run

        folder, results = run(config)
        print_scores(results)
        print(
            "detectable: smallest true difference to another model that a comparison finds with a "
            "power of 80 %; smaller for similar models, such as two checkpoints of one run\n"
            f"results and samples: {folder}"
        )
        end_on_gpus()


def print_scores(results: dict) -> None:
    """Print the scores in one results.json, a row per data set."""
    from bnpo.evaluation.scores import describe_score, detectable, problems_of_average

    rules = list(results["average"]["by_rule"])

    def pass1_cells(scores: dict, problems: int) -> tuple[str, ...]:
        # Means of equal values may differ in their last bits.
        found = f"{100 * detectable(scores['se']):.1f}" if scores["se"] > 1e-9 else "-"
        return *(describe_score(scores["by_rule"][rule], problems) for rule in rules), found

    rows = []
    for name, scores in results["results"].items():
        largest_k = max(scores["pass_at_k"], key=int)
        rows.append(
            (
                name,
                f"{scores['problems']} x {scores['repetitions']}",
                *pass1_cells(scores, scores["problems"]),
                f"{100 * scores['pass_at_k'][largest_k]:.1f}",
                f"{scores['mean_tokens']:.0f}",
                f"{100 * scores['truncated']:.1f}",
                f"{100 * scores['no_box']:.1f}",
            )
        )
    if len(rows) > 1:
        problems = problems_of_average([one["problems"] for one in results["results"].values()])
        rows.append(("average", "", *pass1_cells(results["average"], problems)))
    names = [rule.rpartition(":")[2] for rule in rules]
    pass1 = names if len(names) > 1 else ["pass@1"]
    columns = (
        "data set",
        "problems",
        *pass1,
        "detectable",
        "pass@k",
        "tokens",
        "cut off",
        "no box",
    )
    title = (
        f"{results['protocol']['ckpt']}: scores in %, with standard errors over problems, by the "
        f"rule {names[0]}"
    )
    if len(names) > 1:
        title += f"; pass@1 also by {', '.join(names[1:])}"
    print_table(title, columns, rows)
    # At 0 and 100 % a data set has a bound instead of an error
    bounded = [name for name, score in results["results"].items() if score["pass1"] in (0, 1)]
    if bounded and results["average"]["pass1"] not in (0, 1):
        names = ", ".join(bounded)
        print(f"the error of the average is too small: {names} (all right or all wrong) has none")
    if results["grading_failures"]:
        print(f"answers that could not be graded, counted as wrong: {results['grading_failures']}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table of texts. The first column holds names, the others numbers."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column(columns[0])
    for column in columns[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    print(title)  # rich would break the title to the width of the table
    # As wide as its content: in a pipe rich assumes 80 columns, and cuts names off.
    Console(width=Console(width=1000).measure(table).maximum).print(table)


if __name__ == "__main__":
    main()
