"""Split a formula where it has no brackets."""

import re
from collections.abc import Iterator

# \begin{...} and \end{...} count as brackets. `\{` is one too, while `\langlex` would be another command.
_BRACKET = r"\\[{}]|\\(?:langle|rangle|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])|\\(?:begin|end)(?=\{)|[][(){}]"
_OPENING = ("{", "(", "[", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin")
# A comma that does not group digits: `1,000, 2,000`
_COMMA_OUTSIDE_NUMBERS = r",(?!\d{3}(?!\d))|(?<!\d),|(?<=\d{4}),"


def brackets(formula: str, pattern: str = "(?!)") -> Iterator[tuple[re.Match, int]]:
    """Return every bracket and every match of `pattern`, and how many brackets are open behind it."""
    depth = 0
    for match in re.finditer(rf"({pattern})|{_BRACKET}", formula):
        if match[1] is None:
            depth = depth + 1 if match[0] in _OPENING else max(depth - 1, 0)  # 0: it closes nothing
        yield match, depth


def split(formula: str, pattern: str) -> tuple[list[str], list[str]]:
    r"""Return the parts of `formula` between matches of `pattern` outside brackets, and the matches.

    `pattern` must have no groups.

    >>> split("f(a,b), c; d", ",|;")
    (['f(a,b)', 'c', 'd'], [',', ';'])
    """
    parts: list[str] = []
    separators: list[str] = []
    start = 0
    for match, depth in brackets(formula, pattern):
        if match[1] is not None and depth == 0:
            parts.append(formula[start : match.start()].strip())
            separators.append(match[0].strip())
            start = match.end()
    return [*parts, formula[start:].strip()], separators


def split_at_commas(formula: str) -> list[str]:
    """Return the items of a list. In `1,000, 2,000` only commas with a space separate."""
    has_spaces = re.search(r",\s", formula)
    has_grouped_digits = re.search(r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)", formula)
    return split(formula, _COMMA_OUTSIDE_NUMBERS if has_spaces and has_grouped_digits else ",")[0]
