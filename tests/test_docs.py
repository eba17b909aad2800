"""README and docs/: links lead somewhere, and the diffs of docs/architecture.md fit the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("", "docs", "docs/study", "data", "examples", "src/mathequal")
PAGES = [str(page.relative_to(ROOT)) for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md"))]
PAGES += ["evals/results/study/tables.md", "evals/results/study/tables-2.md"]


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page} links to {target}"


def diffs() -> dict[str, list[str]]:
    """The lines of the diffs in docs/architecture.md by file, those that a diff adds left out."""
    lines: dict[str, list[str]] = {}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```diff\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("+++ b/"):
                file = line.removeprefix("+++ b/")
            elif not line.startswith(("+", "---")):
                lines.setdefault(file, []).append(line[1:])
    return lines


@pytest.mark.parametrize("file", diffs())
def test_diffs_fit_the_code(file):
    code = (ROOT / file).read_text(encoding="utf-8").splitlines()
    position = 0
    for line in diffs()[file]:
        assert line in code[position:], f"{file} has no line {line!r} where docs/architecture.md shows it"
        position = code.index(line, position) + 1
