"""The result of the experiment about truncated sampling: collapses and final accuracies, BNPO
against GRPO.
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import fisher_exact

from study.rows import ROWS, RowList
from study.shared import HERE, json_lines
from study.statistics import paired

ROWS_3 = ROWS.with_name("rows-3.jsonl")
"""The rows of the experiment: name, arm, algo, seed, commit, why the run ended, pass@1 by step,
and curves."""
PAGE = HERE / "truncated-sampling.md"
ARMS = {
    "full": "none",
    "biased": "`--top-k 3 --no-top-k-in-learner`",
    "truncated": "`--top-k 3`",
}
HEAD = (
    "| truncation | seeds | BNPO collapses | GRPO collapses | p | BNPO | GRPO | BNPO less GRPO | p "
    "|"
)
PLACE = "\n## Result\n"


def collapses(evals: Sequence[float]) -> bool:
    """Return whether the last pass@1 is below half of the best one of the run, its start
    included.
    """
    return evals[-1] < max(evals) / 2


def table(rows: RowList) -> str:
    """Return a line per arm: number of collapses with Fisher's exact test, and the final pass@1
    paired by seed.
    """
    lines = [HEAD, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for arm, flags in ARMS.items():
        ours, theirs = (
            {row["seed"]: row for row in rows if row["name"].startswith(f"{arm}-{algo}-")}
            for algo in ("bnpo", "grpo")
        )
        seeds = sorted(ours.keys() & theirs.keys())
        evals = [
            [list(of[seed]["evals"].values()) for seed in seeds] for of in (ours, theirs)
        ]  # [2][seeds][evaluations]
        fallen = [sum(map(collapses, each)) for each in evals]
        p = fisher_exact([fallen, [len(seeds) - count for count in fallen]]).pvalue
        final = 100 * np.array(evals)[:, :, -1]  # [2, seeds]
        less = paired(final[0] - final[1])
        means = " | ".join(f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" for values in final)
        difference = f"{less.mean:+.1f} ({less.low:+.1f} to {less.high:+.1f}) | {less.p:.2f}"
        lines.append(
            f"| {flags} | {len(seeds)} | {fallen[0]} | {fallen[1]} | {p:.2f} | {means} | "
            f"{difference} |"
        )
    return "\n".join(lines)


def write_truncated() -> None:
    """Write the table to the end of the page of the experiment."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(PLACE)
    PAGE.write_text(f"{text}{PLACE}\n{table(json_lines(ROWS_3))}\n", encoding="utf-8")
