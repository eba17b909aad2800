"""A visitor of a page in a real browser, and the files of the run behind the page."""

from pathlib import Path
from typing import TYPE_CHECKING

from bnpo.files import whole_json_lines

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Visitor:
    """A browser tab with a page, its requests, and the errors and messages of its console."""

    def __init__(self, browser: "Browser", file: Path, **settings):
        self.tab = browser.new_context(
            viewport={"width": 1280, "height": 900}, **settings
        ).new_page()
        self.file, self.complaints, self.requests = file, [], []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str = "") -> None:
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.file.as_uri()}#{address}")
        self.settle()

    def settle(self) -> None:
        """Wait until the page has been drawn."""
        self.tab.wait_for_timeout(20)  # the browser reacts to a key or a link a little later
        # As a function: the page's policy forbids evaluating text.
        self.tab.wait_for_function("() => $('view').ariaBusy === 'false'")

    def choose(self, name: str, value: str) -> None:
        self.tab.select_option(f"[name={name}]", value)
        self.settle()

    def press(self, key: str) -> None:
        self.tab.keyboard.press(key)
        self.settle()

    def sort(self, column: str) -> None:
        self.tab.locator(f"th button:has-text('{column}')").click()
        self.settle()

    def column(self, name: str, table_label: str | None = None) -> list[str]:
        """Return the cells of a column of the last table, or of the one with a label."""
        label = f"[aria-label='{table_label}']" if table_label else ""
        table = self.tab.locator(f"#view .scroll{label} table").last
        heads = [head.strip(" ▼▲") for head in table.locator("thead th").all_text_contents()]
        return table.locator(f"tbody tr > :nth-child({1 + heads.index(name)})").all_text_contents()

    def plots(self) -> dict[str, list]:
        """Return the values of every chart by metric, x first."""
        script = (
            "[...document.querySelectorAll('figure')].map(f => [f.dataset.metric, "
            "f.plot.data.map(ys => [...ys])])"
        )
        return dict(self.tab.evaluate(script))

    def message(self) -> str:
        return self.tab.text_content("#message")

    def count(self) -> int:
        return int(self.message().split(" of ")[0])


def lines_of(run: Path) -> list[dict]:
    """Return the metrics of every step, without an unfinished last line."""
    return whole_json_lines(run / "metrics.jsonl")


def answers_of(run: Path) -> list[dict]:
    """Return the rows of all recorded batches, with their steps and groups."""
    rows = []
    for file in sorted((run / "rollouts").iterdir()):
        for row in whole_json_lines(file):
            rows.append(row | {"step": int(file.stem[5:]), "group": (file.stem, row["id"])})
    return rows
