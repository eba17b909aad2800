"""Where a formula has brackets, and what is in none."""

import re

DEPTH = re.compile(r"\\[{}]|\\(?:langle|rangle|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])|\\(?:begin|end)(?=\{)|[][(){}]")
OPENING = ("{", "(", "[", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin")


def split(formula: str, pattern: str) -> tuple[list[str], list[str]]:
    """The parts of `formula` between matches of `pattern` that are in no brackets, and those matches."""
    parts, found, start, depth = [], [], 0, 0
    for match in re.finditer(rf"({pattern})|{DEPTH.pattern}", formula):
        if match[1] is None:
            depth = depth + 1 if match[0] in OPENING else max(depth - 1, 0)
        elif depth == 0:
            parts.append(formula[start : match.start()].strip())
            found.append(match[0].strip())
            start = match.end()
    return [*parts, formula[start:].strip()], found
