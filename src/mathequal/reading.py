r"""Read a text in one spelling as a typed value: the first reader that knows its form decides.

The readers here are of answers that have parts, which they read in turn. reading_simple.py has the others.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from itertools import permutations, product

from mathequal import blocks, groups
from mathequal.brackets import brackets, split, split_at_commas
from mathequal.names import COMBINATION, LETTER, NAME, OR, WORD, is_constant
from mathequal.reading_simple import read_based, read_clock, read_formula, read_two_units, read_words
from mathequal.sentences import NO_SOLUTIONS
from mathequal.spelling import Spelled, spelled
from mathequal.values import REALS, Equation, Group, Region, Relation, Scalar, Value, Word

MAX_DEPTH = 30
"""Brackets inside each other. What is nested deeper is a formula, without a closer look."""
MAX_SIGNS = 6
"""Plus-minus signs, each of which doubles the values."""

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
    too_deep = any(depth > MAX_DEPTH for _, depth in brackets(answer.formula))
    if too_deep or len(_SIGN.findall(answer.formula)) > MAX_SIGNS:
        return Scalar(answer.text())
    sentence = answer.text().casefold()
    if NO_SOLUTIONS.fullmatch(sentence):
        return Group("{", "}", ())
    return Word(sentence) if re.match(r"(?:yes|no|true|false)\s*(?:[,.;:-]|$)", sentence) else _value(answer)


def _value(text: Spelled) -> Value:
    for reader in _READERS:
        value = reader(text)
        if value is not None:
            return value
    return read_formula(text)


def _parts_of(text: Spelled, formulas: Iterable[str]) -> tuple[Value, ...]:
    return tuple(_value(text.part(formula)) for formula in formulas)


def _ratio(text: Spelled) -> Value | None:
    """Read `1:2`, which is a fraction, or `1:2:3`. Both may also be a time of day."""
    terms, colons = split(text.formula, ":")
    if not colons or not all(terms) or re.search(rf"{_RELATION}|,|{WORD}", text.formula):
        return None
    fractions = [Scalar(rf"\frac{{{terms[0]}}}{{{term}}}") for term in terms[1:]]  # so 2:4:6 is 1:2:3
    ratio = fractions[0] if len(fractions) == 1 else Group(":", ":", tuple(fractions))
    time = read_clock(text)
    return replace(time, ratio=ratio) if time else ratio


def _conditions(text: Spelled) -> Value | None:
    """Read relations joined by `and` or `or`; equations alone are a list."""
    parts, joints = split(text.formula, r"\\lor(?![a-zA-Z])|\\land(?![a-zA-Z])")
    operators_of_parts = [split(part, _RELATION)[1] for part in parts]
    if len(set(joints)) != 1 or not all(operators_of_parts):
        return None
    if all(_EQUALITY.issuperset(operators) for operators in operators_of_parts):
        return None
    operator = r"\cup" if joints[0] == OR.strip() else r"\cap"
    return Region(operator, _parts_of(text, parts))


_LIST_JOINT = r";|\\l(?:and|or)(?![a-zA-Z])"


def _list(text: Spelled) -> Value | None:
    """Read items without brackets: `1, 2 and 3`. With names, `p=5, q=2`, they are a tuple."""
    grouping_commas = sum(match[0].count(",") for match in _GROUPED_DIGITS.finditer(text.formula))
    if text.formula.count(",") == grouping_commas and not re.search(_LIST_JOINT, text.formula):
        return None
    sublists = [part for part in split(text.formula, _LIST_JOINT)[0] if part]
    items_of_sublists = [split_at_commas(sublist) for sublist in sublists]
    if len(sublists) > 1 and all(len(items) > 1 for items in items_of_sublists):  # 1,2 or 3,4
        parts = _parts_of(text, sublists)
        are_points = all(isinstance(part, Group) and (part.opening or part.has_groups()) for part in parts)
        return Group("", "", groups.flattened(parts) if are_points else parts)
    if len(sublists) == 1 and len(items_of_sublists[0]) == 1:
        return None
    items = [item for items in items_of_sublists for item in items if item]
    if len(items) < 2:
        return _value(text.part(items[0])) if items else Scalar("")
    excluded = ""
    for i, item in enumerate(items):
        if starts_exclusion := re.match(r"[a-z]\s*\\ne(?![a-zA-Z])", item):
            excluded = starts_exclusion[0]
        elif excluded and not split(item, _RELATION)[1]:  # x \ne 1, 2
            items[i] = f"{excluded} {item}"
    values = groups.list_or_named_tuples(_parts_of(text, items))
    are_alternatives = OR.strip() in text.formula
    if are_alternatives and values.names and len(sublists) == len(items):  # a=1 or b=2, which is no point
        return Region(r"\cup", _parts_of(text, items))
    return replace(values, alternatives=are_alternatives and not values.names)


def _plus_minus(text: Spelled) -> Value | None:
    """Read every value of a formula with plus-minus signs. With a minus-plus sign all signs change together."""
    signs = _SIGN.findall(text.formula)
    if not signs or r"\{" in text.formula:
        return None
    choices = list(product("+-", repeat=len(signs)))
    if r"\mp" in signs:
        upper = tuple("+" if sign == r"\pm" else "-" for sign in signs)
        lower = tuple("-" if sign == "+" else "+" for sign in upper)
        choices = [upper, lower]
    formulas = []
    for chosen in choices:
        remaining = iter(chosen)
        formula = _SIGN.sub(lambda _: next(remaining), text.formula)  # noqa: B023
        formulas.append(re.sub(r"(^|[(,=<>]|\\(?:le|ge|ne|in|approx)(?![a-zA-Z]))\s*\+", r"\1", formula))
    return Group("", "", _parts_of(text, formulas))


_PERMUTED = re.compile(rf"(.+?)[\s,]*(?:\\l(?:and|or)\s*)?({WORD})", re.DOTALL)


def _permutations(text: Spelled) -> Value | None:
    """Read `(1,2,3)` and its permutations."""
    match = _PERMUTED.fullmatch(text.formula)
    phrase = groups.PERMUTATIONS.fullmatch(text.word(match[2])) if match else None
    if not match or not phrase:
        return None
    found: dict[Value, None] = {}  # a set, in order
    for item in groups.flattened([_value(text.part(match[1]))]):
        if not isinstance(item, Group) or len(item.items) > groups.MAX_PERMUTED:
            return None
        found |= dict.fromkeys(groups.all_orders(item.items, groups.shifts if phrase[1] else permutations).items)
    return Group("", "", tuple(found))


def _negative(text: Spelled) -> Value | None:
    """Read `-(1,2)`, which is (-1,-2)."""
    group = _group(text.part(text.formula[1:])) if text.formula.startswith("-") else None
    if not isinstance(group, Group) or not all(isinstance(item, Scalar) for item in group.items):
        return None
    return replace(group, items=tuple(Scalar(f"-({item.latex})") for item in group.items if isinstance(item, Scalar)))


def _relation(text: Spelled) -> Value | None:
    """Read `x = 5`, `1 < x < 2` and `x \\in A`, which is `A`."""
    sides, operators = split(text.formula, _RELATION)
    if operators and not sides[0] and operators[0] in _EQUALITY:  # = 5
        sides, operators = sides[1:], operators[1:]
        if not operators:
            return _value(text.part(sides[0]))
    if not operators:
        return None
    if not all(sides):
        return Word(text.text())
    if operators == [r"\in"]:
        return _value(text.part(sides[1])) if NAME.fullmatch(sides[0]) else Word(text.text())
    values = _parts_of(text, sides)
    for i, value in enumerate(values):
        if re.match(WORD, sides[i]) and isinstance(value, Scalar) and value.latex:  # six
            sides[i] = value.latex
    if _EQUALITY.issuperset(operators):
        return _equation(text, sides, values, approximate=r"\approx" in operators)
    formulas = tuple(value for value in values if isinstance(value, Scalar))
    if len(formulas) < len(values) or r"\in" in operators or r"\approx" in operators:
        return Word(text.text())
    # 0 < f(x) < 1 is a set of values
    calls = [place for place, side in enumerate(sides) if re.fullmatch(r"[fgh]\([a-z]\)", side)]
    if len(calls) == 1 and sum(map(is_constant, sides)) == len(sides) - 1:
        formulas = (*formulas[: calls[0]], Scalar("y"), *formulas[calls[0] + 1 :])
    return Relation(formulas, tuple(operators))


def _equation(text: Spelled, sides: list[str], values: tuple[Value, ...], approximate: bool) -> Value:
    left, right = values[0], values[-1]
    if len(values) == 2 and isinstance(left, Group) and isinstance(right, Group) and left.opening == right.opening:
        letters = [item.latex for item in left.items if isinstance(item, Scalar) and NAME.fullmatch(item.latex)]
        if len(letters) == len(left.items) == len(right.items):
            if left.opening == "(":  # (x, y) = (1, 2)
                return replace(right, names=tuple(map(groups.function_name, letters)))
            if left.opening == "{" and len(letters) <= groups.MAX_PERMUTED:  # {a, b} = {1, 2}
                return groups.all_orders(right.items, permutations)
    constant = tuple(is_constant(side) for side in sides)
    has_value = constant[0] or constant[-1]
    names: list[str | None] = []
    for side in sides:
        is_name = NAME.fullmatch(side) or (has_value and COMBINATION.fullmatch(side))
        names.append(re.sub(r"\s", "", text.part(side).text()) if is_name else None)
    is_call_behind = re.fullmatch(r"[a-zA-Z]\([a-z]\)", names[-1] or "") and "(" not in (names[0] or "(")
    is_named_behind = is_call_behind or (names[-1] and names[0] is None)
    if is_named_behind and not re.match(WORD, sides[-1]):  # 5 = x and y = f(x), but not 5 = blue
        return Equation(values[::-1], tuple(names[::-1]), constant[::-1], approximate)
    return Equation(values, tuple(names), constant, approximate)


_SET_OPERATORS = ((r"\cup", r"\\cup"), (r"\cap", r"\\cap"), (r"\setminus", r"\\setminus|\\backslash"))


def _region(text: Spelled) -> Value | None:
    """Read `A \\cup B`, `\\reals \\setminus A` and the like."""
    formula = re.sub(r"(\\reals\s*)-(\s*\\\{)", r"\1\\setminus \2", text.formula)  # \reals - \{0\}
    for operator, pattern in _SET_OPERATORS:
        parts, operators = split(formula, rf"(?:{pattern})(?![a-zA-Z])")
        if operators and all(parts):
            return Region(operator, _parts_of(text, parts))
    if formula == r"\reals":
        return REALS
    return Group("{", "}", ()) if formula == r"\emptyset" else None


_OPENING = re.compile(r"\\\{|\\langle(?![a-zA-Z])|[({[]")
_CLOSERS = {"(": ")]", "[": ")]", r"\{": (r"\}",), "{": "}", r"\langle": (r"\rangle",)}
_PLAIN_BRACKETS = {r"\{": "{", r"\}": "}", r"\langle": "(", r"\rangle": ")"}
# x: or x \in \reals | at the beginning of a set
_SUCH_THAT = re.compile(rf"{LETTER}\s*(?:\\in\s*\\reals)?\s*[:|](.+)")


def _group(text: Spelled) -> Value | None:
    """Read what one pair of brackets is around: a tuple, a set, an interval, or a formula in brackets."""
    match = _OPENING.match(text.formula)
    bracket = next((bracket for bracket, depth in brackets(text.formula) if depth == 0), None)
    if not match or not bracket or bracket.end() < len(text.formula) or bracket[0] not in _CLOSERS[match[0]]:
        return None
    inside = text.formula[match.end() : bracket.start()].strip()
    opening = _PLAIN_BRACKETS.get(match[0], match[0])
    closing = _PLAIN_BRACKETS.get(bracket[0], bracket[0])
    is_set = match[0] == r"\{"
    condition = _SUCH_THAT.fullmatch(inside) if is_set else None
    if condition and split(condition[1], _RELATION)[1]:  # {x : x > 1}
        return _value(text.part(condition[1]))
    if not inside:
        return Group(opening, closing, ())
    parts = split(inside, ",|;")[0]
    items = tuple(_item(text.part(part)) for part in parts)
    if len(parts) == 1:
        if is_set and isinstance(items[0], Group) and items[0].opening == "{":  # a set of one set
            return Group("{", "}", items)
        return Word(text.text()) if opening + closing in ("[)", "(]") else items[0]
    with_names = groups.list_or_named_tuples(items)
    if with_names.names and opening == "[":  # [x = 1, y = 2]
        return with_names
    return Group(opening, closing, groups.flattened(items) if opening == "{" else items)


def _item(text: Spelled) -> Value:
    """Return an item inside brackets, where a set of one member is a set. Elsewhere it is its member."""
    value = _value(text)
    is_set = isinstance(value, Group) and value.opening == "{"
    if re.match(r"[{\s]*\\\{", text.formula) and not is_set:
        return Group("{", "}", (value,))
    return value


# In order: the first reader that does not return None decides. A list is split before its items are read, a relation
# before the formulas on its sides.
_READERS = (
    read_words,
    read_two_units,
    _permutations,
    _ratio,
    read_clock,
    lambda text: blocks.read_cases(text, _value),
    lambda text: blocks.read_lines(text, _value),
    _conditions,
    _list,
    _plus_minus,
    _relation,
    _region,
    _group,
    _negative,
    lambda text: blocks.read_matrix(text, _value),
    read_based,
)
