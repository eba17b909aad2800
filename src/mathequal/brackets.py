"""Split a formula where it has no brackets."""

import re

# \begin{...} and \end{...} count as brackets. `\{` is one too, while `\langlex` would be another command.
BRACKET = re.compile(r"\\[{}]|\\(?:langle|rangle|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])|\\(?:begin|end)(?=\{)|[][(){}]")
OPENING = ("{", "(", "[", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin")


def split(formula: str, pattern: str) -> tuple[list[str], list[str]]:
    r"""Return the parts of `formula` between matches of `pattern` outside brackets, and the matches.

    `pattern` must have no groups.

    >>> split("f(a,b), c; d", ",|;")
    (['f(a,b)', 'c', 'd'], [',', ';'])
    """
    parts: list[str] = []
    separators: list[str] = []
    start, depth = 0, 0
    for match in re.finditer(rf"({pattern})|{BRACKET.pattern}", formula):
        is_bracket = match[1] is None
        if is_bracket and match[0] in OPENING:
            depth += 1
        elif is_bracket:
            depth = max(depth - 1, 0)  # a closing bracket without an opening one
        elif depth == 0:
            parts.append(formula[start : match.start()].strip())
            separators.append(match[0].strip())
            start = match.end()
    parts.append(formula[start:].strip())
    return parts, separators


def depth_change(bracket: str) -> int:
    """Return 1 for an opening bracket, -1 for a closing one."""
    return 1 if bracket in OPENING else -1
