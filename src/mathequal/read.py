r"""Read a text in one spelling as a typed value: the first reader that knows its form decides.

The readers here are of answers that have parts, which they read in turn. values.py has the others.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product

from mathequal import values
from mathequal.text import spelled
from mathequal.values import Equation, Group, Region, Relation, Scalar, Value, Word, is_constant
from mathequal.words import NO_SOLUTIONS, OR, WORD, moved, shown

# \begin{...} and \end{...} count as brackets. `\{` is one too, while `\langlex` would be another
# command.
_BRACKET = (
    r"\\[{}]|\\(?:langle|rangle|lfloor|rfloor|lceil|rceil)(?![a-zA-Z])"
    r"|\\(?:begin|end)(?=\{)|[][(){}]"
)
_OPENING_BRACKETS = ("{", "(", "[", r"\{", r"\langle", r"\lfloor", r"\lceil", r"\begin")
# A comma that does not group digits: `1,000, 2,000`
_COMMA_OUTSIDE_NUMBERS = r",(?!\d{3}(?!\d))|(?<!\d),|(?<=\d{4}),"


def brackets(formula: str, pattern: str = "(?!)") -> Iterator[tuple[re.Match, int]]:
    """Return every bracket and every match of `pattern`, and how many brackets are open behind
    it.
    """
    depth = 0
    for match in re.finditer(rf"({pattern})|{_BRACKET}", formula):
        if match[1] is None:
            # 0: it closes nothing
            depth = depth + 1 if match[0] in _OPENING_BRACKETS else max(depth - 1, 0)
        yield match, depth


def split(formula: str, pattern: str) -> tuple[list[str], list[str]]:
    r"""Return the parts of `formula` between matches of `pattern` outside brackets, and the
    matches.

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


def flattened(items: Iterable[Value]) -> tuple[Value, ...]:
    """Return items with those of every list, such as a plus-minus sign makes, in its place."""
    parts: list[Value] = []
    for item in items:
        is_list = isinstance(item, Group) and item.opening == "" and not item.names
        parts += item.items if is_list else [item]
    return tuple(parts)


def function_name(name: str) -> str:
    """Return `f` for `f(x)`."""
    return re.sub(r"(?<=[a-zA-Z])\([a-z]\)$", "", name)


def list_or_named_tuples(items: tuple[Value, ...]) -> Group:
    """Return a list; or tuples with names, where a new tuple begins at every repetition of the
    first name.
    """
    items = flattened(items)
    things = tuple(item.things[:4] for item in items if isinstance(item, Scalar) and item.things)
    if len(set(things)) == len(items) > 1:  # 3 adults, 4 children
        return Group("(", ")", items, things)
    pairs = [
        item
        for item in items
        if isinstance(item, Equation) and len(item.sides) == 2 and item.names[0]
    ]
    names = [function_name(pair.names[0] or "") for pair in pairs]
    sides = tuple(pair.sides[1] for pair in pairs)
    # x=1, y=2, x=3, y=4 has a width of 2
    width = names.index(names[0], 1) if names and names[0] in names[1:] else len(names)
    is_repeated = width and names == names[:width] * (len(names) // width)
    if len(names) < len(items) or width < 2 or len(set(names)) != width or not is_repeated:
        return Group("", "", items)
    starts = range(0, len(sides), width)
    tuples = [
        Group("(", ")", sides[start : start + width], tuple(names[:width])) for start in starts
    ]
    return tuples[0] if len(tuples) == 1 else Group("", "", tuple(tuples))


# \begin{...} ... \end{...}, perhaps with a brace in front
_BLOCK = re.compile(r"(\\\{)?\s*\\begin\{(\w+)\}(?:\{[^{}]*\})?(.*)\\end\{\2\}")
_TABLES, _LINES = ("cases", "array"), ("aligned", "align", "gathered", "split")
_MATRICES = ("array", "matrix", "pmatrix", "bmatrix", "Bmatrix")
_WHEN = re.compile(r"\b(?:if|for|when|where|is)\b|[ .]+$")


def _block(text: str) -> Value | None:
    """Read values by case, lines below each other (such as a system of equations) as a list, or
    a matrix.
    """
    match = _BLOCK.fullmatch(text)
    if not match or r"\begin" in match[3]:
        return None
    brace, kind, block = match.groups()
    rows = [
        [entry.strip(" ,;").rstrip(" .") for entry in row.split("&")] for row in block.split(r"\\")
    ]
    rows = [row for row in rows if any(row)]
    is_aligned = all(
        len(row) == 1 or re.match(r"[=<>]|\\(?:[lg]e|approx)(?![a-z])", row[1]) for row in rows
    )
    has_cases = kind == "cases" or (kind == "array" and brace)
    if has_cases and len(rows) > 1 and all(len(row) == 2 for row in rows) and not is_aligned:
        pairs = [_parts(re.sub(WORD, _condition, entry) for entry in row) for row in rows]
        return Group("{", "}", tuple(Group("case", "case", pair) for pair in pairs))
    if kind in _LINES or (kind in _TABLES and (is_aligned or "&" not in block)):
        return _value(", ".join("".join(row) for row in rows))
    if kind not in _MATRICES or brace or _SIGN.search(block):
        return None
    if all(len(row) == 1 for row in rows):
        return Group("column", "", _parts(entry for [entry] in rows), latex=text)
    matrix = tuple(Group("row", "", _parts(row), latex=text) for row in rows)
    return Group("rows", "", matrix, latex=text) if len(rows) > 1 else matrix[0]


def _condition(word: re.Match) -> str:
    """Return the stand-in for `n even` for that of `if n is even`."""
    phrase = " ".join(_WHEN.sub("", shown(word[0])).split())
    return moved(phrase) if phrase else ""


MAX_DEPTH = 30
"""Brackets inside each other. What is nested deeper is a formula, without a closer look."""
MAX_SIGNS = 6  # plus-minus signs, each of which doubles the values

_RELATION = r"=|\\approx(?![a-zA-Z])|\\(?:le|ge|ne|in)(?![a-zA-Z])|<|>"
_EQUALITY = {"=", r"\approx"}
_SIGN = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
# 1,000 and 1,000,000, not 1,00 or 1000,000
_GROUPED_DIGITS = re.compile(r"(?<![\d.,_])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)


@lru_cache(maxsize=4096)
def read(text: str) -> Value:
    r"""Return the typed value of an answer.

    >>> read(r"\frac12\text{ cm}"), read(r"(1,2]").opening, read("Even")
    (Scalar(latex='\\frac{1}{2}'), '(', Word(text='even'))
    """
    answer = spelled(text)
    too_deep = any(depth > MAX_DEPTH for _, depth in brackets(answer))
    if too_deep or len(_SIGN.findall(answer)) > MAX_SIGNS:
        return Scalar(shown(answer))
    sentence = shown(answer).casefold()
    if NO_SOLUTIONS.fullmatch(sentence):
        return Group("{", "}", ())
    return (
        Word(sentence)
        if re.match(r"(?:yes|no|true|false)\s*(?:[,.;:-]|$)", sentence)
        else _value(answer)
    )


def _value(text: str) -> Value:
    text = text.strip()
    for reader in _READERS:
        value = reader(text)
        if value is not None:
            return value
    return values.read_formula(text)


def _parts(formulas: Iterable[str]) -> tuple[Value, ...]:
    return tuple(map(_value, formulas))


def _ratio(text: str) -> Value | None:
    """Read `1:2`, which is a fraction, or `1:2:3`."""
    # 05:00 and 5:00:00, which are times of day
    text = re.sub(r"^0(?=\d\s*:)|(?<=:\d\d):00$", "", text)
    terms, colons = split(text, ":")
    if not colons or not all(terms) or re.search(rf"{_RELATION}|,|{WORD}", text):
        return None
    # So 2:4:6 is 1:2:3
    fractions = [Scalar(rf"\frac{{{terms[0]}}}{{{term}}}") for term in terms[1:]]
    return fractions[0] if len(fractions) == 1 else Group(":", ":", tuple(fractions))


def _conditions(text: str) -> Value | None:
    """Read relations joined by `and` or `or`; equations alone are a list."""
    parts, joints = split(text, r"\\lor(?![a-zA-Z])|\\land(?![a-zA-Z])")
    operators_of_parts = [split(part, _RELATION)[1] for part in parts]
    if len(set(joints)) != 1 or not all(operators_of_parts):
        return None
    if all(_EQUALITY.issuperset(operators) for operators in operators_of_parts):
        return None
    operator = r"\cup" if joints[0] == OR.strip() else r"\cap"
    return Region(operator, _parts(parts))


_LIST_JOINT = r";|\\l(?:and|or)(?![a-zA-Z])"


def _list(text: str) -> Value | None:
    """Read items without brackets: `1, 2 and 3`. With names, `p=5, q=2`, they are a tuple."""
    grouping_commas = sum(match[0].count(",") for match in _GROUPED_DIGITS.finditer(text))
    if text.count(",") == grouping_commas and not re.search(_LIST_JOINT, text):
        return None
    sublists = [part for part in split(text, _LIST_JOINT)[0] if part]
    # In `1,000, 2,000` only commas with a space separate.
    has_grouped_digits = re.search(r",\s", text) and re.search(
        r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)", text
    )
    comma = _COMMA_OUTSIDE_NUMBERS if has_grouped_digits else ","
    items_of_sublists = [split(sublist, comma)[0] for sublist in sublists]
    if len(sublists) > 1 and all(len(items) > 1 for items in items_of_sublists):  # 1,2 or 3,4
        parts = _parts(sublists)
        are_points = all(
            isinstance(part, Group)
            and (part.opening or all(isinstance(item, Group) for item in part.items))
            for part in parts
        )
        return Group("", "", flattened(parts) if are_points else parts)
    if len(sublists) == 1 and len(items_of_sublists[0]) == 1:
        return None
    items = [item for items in items_of_sublists for item in items if item]
    if len(items) < 2:
        return _value(items[0]) if items else Scalar("")
    excluded = ""
    for i, item in enumerate(items):
        if starts_exclusion := re.match(r"[a-z]\s*\\ne(?![a-zA-Z])", item):
            excluded = starts_exclusion[0]
        elif excluded and not split(item, _RELATION)[1]:  # x \ne 1, 2
            items[i] = f"{excluded} {item}"
    group = list_or_named_tuples(_parts(items))
    are_alternatives = OR.strip() in text
    # A=1 or b=2, which is no point
    if are_alternatives and group.names and len(sublists) == len(items):
        return Region(r"\cup", _parts(items))
    return replace(group, alternatives=are_alternatives and not group.names)


def _plus_minus(text: str) -> Value | None:
    """Read every value of a formula with plus-minus signs. With a minus-plus sign all signs
    change together.
    """
    signs = _SIGN.findall(text)
    if not signs or r"\{" in text:
        return None
    choices: Iterable[Iterable[str]] = product("+-", repeat=len(signs))
    if r"\mp" in signs:
        choices = [
            ["+" if sign == positive else "-" for sign in signs] for positive in (r"\pm", r"\mp")
        ]
    beginning, *pieces = _SIGN.split(text)
    formulas = []
    for chosen in choices:
        formula = beginning + "".join(map("".join, zip(chosen, pieces, strict=True)))
        formulas.append(
            re.sub(r"(^|[(,=<>]|\\(?:le|ge|ne|in|approx)(?![a-zA-Z]))\s*\+", r"\1", formula)
        )
    return Group("", "", _parts(formulas))


def _relation(text: str) -> Value | None:
    """Read `x = 5`, `1 < x < 2` and `x \\in A`, which is `A`."""
    sides, operators = split(text, _RELATION)
    if operators and not sides[0] and operators[0] in _EQUALITY:  # = 5
        sides, operators = sides[1:], operators[1:]
        if not operators:
            return _value(sides[0])
    if not operators:
        return None
    if not all(sides):
        return Word(shown(text))
    if operators == [r"\in"]:
        return _value(sides[1]) if values.NAME.fullmatch(sides[0]) else Word(shown(text))
    read_sides = _parts(sides)
    for i, value in enumerate(read_sides):
        if re.match(WORD, sides[i]) and isinstance(value, Scalar) and value.latex:  # six
            sides[i] = value.latex
    if _EQUALITY.issuperset(operators):
        return _equation(text, sides, read_sides, approximate=r"\approx" in operators)
    formulas = tuple(value for value in read_sides if isinstance(value, Scalar))
    if len(formulas) < len(read_sides) or r"\in" in operators or r"\approx" in operators:
        return Word(shown(text))
    # 0 < f(x) < 1 is a set of values
    calls = [place for place, side in enumerate(sides) if re.fullmatch(r"[fgh]\([a-z]\)", side)]
    if len(calls) == 1 and sum(map(is_constant, sides)) == len(sides) - 1:
        formulas = (*formulas[: calls[0]], Scalar("y"), *formulas[calls[0] + 1 :])
    return Relation(formulas, tuple(operators))


def _equation(
    text: str, sides: list[str], read_sides: tuple[Value, ...], approximate: bool
) -> Value:
    left, right = read_sides[0], read_sides[-1]
    if (
        len(read_sides) == 2
        and isinstance(left, Group)
        and isinstance(right, Group)
        and left.opening == right.opening
    ):
        letters = [
            item.latex
            for item in left.items
            if isinstance(item, Scalar) and values.NAME.fullmatch(item.latex)
        ]
        # (x, y) = (1, 2)
        if len(letters) == len(left.items) == len(right.items) and left.opening == "(":
            return replace(right, names=tuple(map(function_name, letters)))
    constant = tuple(is_constant(side) for side in sides)
    has_value = constant[0] or constant[-1]
    names: list[str | None] = []
    for side in sides:
        is_name = values.NAME.fullmatch(side) or (has_value and values.COMBINATION.fullmatch(side))
        names.append(re.sub(r"\s", "", shown(side)) if is_name else None)
    is_call_behind = re.fullmatch(r"[a-zA-Z]\([a-z]\)", names[-1] or "") and "(" not in (
        names[0] or "("
    )
    is_named_behind = is_call_behind or (names[-1] and names[0] is None)
    if is_named_behind and not re.match(WORD, sides[-1]):  # 5 = x and y = f(x), but not 5 = blue
        return Equation(read_sides[::-1], tuple(names[::-1]), constant[::-1], approximate)
    return Equation(read_sides, tuple(names), constant, approximate)


_SET_OPERATORS = (
    (r"\cup", r"\\cup"),
    (r"\cap", r"\\cap"),
    (r"\setminus", r"\\setminus|\\backslash"),
)


def _region(text: str) -> Value | None:
    """Read `A \\cup B`, `\\reals \\setminus A` and the like."""
    formula = re.sub(r"(\\reals\s*)-(\s*\\\{)", r"\1\\setminus \2", text)  # \reals - \{0\}
    for operator, pattern in _SET_OPERATORS:
        parts, operators = split(formula, rf"(?:{pattern})(?![a-zA-Z])")
        if operators and all(parts):
            return Region(operator, _parts(parts))
    if formula == r"\reals":
        return values.REALS
    return Group("{", "}", ()) if formula == r"\emptyset" else None


_OPENING = re.compile(r"\\\{|\\langle(?![a-zA-Z])|[({[]")
_CLOSERS = {"(": ")]", "[": ")]", r"\{": (r"\}",), "{": "}", r"\langle": (r"\rangle",)}
_PLAIN_BRACKETS = {r"\{": "{", r"\}": "}", r"\langle": "(", r"\rangle": ")"}
# x: or x \in \reals | at the beginning of a set
_SUCH_THAT = re.compile(rf"{values.LETTER}\s*(?:\\in\s*\\reals)?\s*[:|](.+)")


def _group(text: str) -> Value | None:
    """Read what one pair of brackets is around: a tuple, a set, an interval, or a formula in
    brackets.
    """
    negative = re.fullmatch(r"-(?:\(|\\langle\s)([^()]*,[^()]*)(?:\)|\\rangle)", text)
    if negative:  # -(1,2)
        return _value(f"({','.join(f'-({part})' for part in negative[1].split(','))})")
    match = _OPENING.match(text)
    bracket = next((bracket for bracket, depth in brackets(text) if depth == 0), None)
    if (
        not match
        or not bracket
        or bracket.end() < len(text)
        or bracket[0] not in _CLOSERS[match[0]]
    ):
        return None
    inside = text[match.end() : bracket.start()].strip()
    opening = _PLAIN_BRACKETS.get(match[0], match[0])
    closing = _PLAIN_BRACKETS.get(bracket[0], bracket[0])
    is_set = match[0] == r"\{"
    condition = _SUCH_THAT.fullmatch(inside) if is_set else None
    if condition and split(condition[1], _RELATION)[1]:  # {x : x > 1}
        return _value(condition[1])
    if not inside:
        return Group(opening, closing, ())
    parts = split(inside, ",|;")[0]
    items = tuple(_item(part) for part in parts)
    if len(parts) == 1:
        if is_set and isinstance(items[0], Group) and items[0].opening == "{":  # a set of one set
            return Group("{", "}", items)
        return Word(shown(text)) if opening + closing in ("[)", "(]") else items[0]
    with_names = list_or_named_tuples(items)
    if with_names.names and opening == "[":  # [x = 1, y = 2]
        return with_names
    return Group(opening, closing, flattened(items) if opening == "{" else items)


def _item(text: str) -> Value:
    """Return an item inside brackets, where a set of one member is a set. Elsewhere it is its
    member.
    """
    value = _value(text)
    is_set = isinstance(value, Group) and value.opening == "{"
    if re.match(r"[{\s]*\\\{", text) and not is_set:
        return Group("{", "}", (value,))
    return value


# In order: the first reader that does not return None decides. A list is split before its items are
# read, a relation before the formulas on its sides.
_READERS = [
    values.read_words,
    _ratio,
    values.read_clock,
    _block,
    _conditions,
    _list,
    _plus_minus,
    _relation,
    _region,
    _group,
    values.read_based,
]
