"""Tables and pages of the reports: the words from tables.toml around the cells, and numbers as
cells.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from study.rows import RowList
from study.shared import HERE, Table, to_markdown
from study.statistics import Paired, t_interval

WORDS = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
PAGES = HERE
MADE_BY = "Made by `python studies/2026-11/study.py --report`."
MISSING = "—"
"""A cell without a value."""
Blocks = dict[str, dict[str, list[str]]]
"""Cells by block and label of the line."""


def table(
    name: str, blocks: Blocks, title: str = "", columns: Sequence[str] = (), **values: object
) -> Table:
    """Return a table with the words that tables.toml has for `name`, and `values` in place of
    the words in braces.
    """
    words = WORDS[name]
    notes = [note.format(**values) for note in words["notes"]]
    return Table(title or words["title"], list(columns or words["columns"]), blocks, notes)


def write_page(path: Path, *parts: str | list[Table]) -> None:
    """Write a page of texts and tables."""
    texts = [part if isinstance(part, str) else to_markdown(part) for part in parts]
    path.write_text("\n\n".join(text.strip() for text in texts) + "\n", encoding="utf-8")


def runs_line(rows: RowList) -> str:
    """Return how many runs there are, at which commits, and which of them failed."""
    commits = sorted({row["commit"] for row in rows})
    failed = [f"{row['name']} ({row['ended']})" for row in rows if row["ended"] != "done"]
    return (
        f"{len(rows)} runs, at the commits {', '.join(commits)}. Failed: "
        f"{', '.join(failed) or 'none'}."
    )


def interval(values: Sequence[float]) -> str:
    """Return a mean in percent and half its 95 % t interval."""
    mean, half = t_interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def in_points(difference: Paired) -> str:
    """Return a mean and its interval in points."""
    return (
        f"{100 * difference.mean:+.2f} ({100 * difference.low:+.2f} to "
        f"{100 * difference.high:+.2f})"
    )


def with_error(value: float, error: float, sign: str = "") -> str:
    """Return a value and its standard error. `sign` is `+` if both signs are shown."""
    return f"{value:{sign}.3f} ± {error:.3f}"
