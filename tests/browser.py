"""One who looks at a page and works with it, and what the run behind it holds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Visitor:
    """A tab on a page that was written; what the browser asked for and complained of."""

    def __init__(self, browser: "Browser", file: Path, **settings):
        self.tab = browser.new_context(viewport={"width": 1280, "height": 900}, **settings).new_page()
        self.file, self.complaints, self.requests = file, [], []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str = "") -> None:
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.file.as_uri()}#{address}")
        self.settle()

    def settle(self) -> None:
        """Wait until what was asked for is drawn."""
        self.tab.wait_for_timeout(20)  # what follows a key or a link is the browser's to begin
        self.tab.wait_for_function("() => $('view').ariaBusy === 'false'")  # the page's policy lets no text be run

    def choose(self, name: str, value: str) -> None:
        self.tab.select_option(f"[name={name}]", value)
        self.settle()

    def press(self, key: str) -> None:
        self.tab.keyboard.press(key)
        self.settle()

    def sort(self, column: str) -> None:
        self.tab.locator(f"th button:has-text('{column}')").click()
        self.settle()

    def column(self, name: str) -> list[str]:
        """The cells of a column of the last table."""
        table = self.tab.locator("#view .scroll table").last
        heads = [head.strip(" ▼▲") for head in table.locator("thead th").all_text_contents()]
        return table.locator(f"tbody tr > :nth-child({1 + heads.index(name)})").all_text_contents()

    def plots(self) -> dict[str, list]:
        """The numbers of every chart, x first, by metric."""
        script = "[...document.querySelectorAll('figure')].map(f => [f.dataset.metric, f.plot.data.map(ys => [...ys])])"
        return dict(self.tab.evaluate(script))

    def message(self) -> str:
        return self.tab.text_content("#message")

    def count(self) -> int:
        return int(self.message().split(" of ")[0])


def lines_of(run: Path) -> list[dict]:
    """The metrics of every step, without a line that is not whole."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]


def answers_of(run: Path) -> list[dict]:
    """Rows of all batches that were kept, with their steps and groups."""
    rows = []
    for file in sorted((run / "rollouts").iterdir()):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            rows.append(row | {"step": int(file.stem[5:]), "group": (file.stem, row["id"])})
    return rows
