"""Decide whether two answers are equal: one function per pair of types; RULES.md explains them.

No text is ever evaluated as Python.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import pint
from sympy.polys.polyerrors import BasePolynomialError

import mathequal
from mathequal.formula import Undefined, rounded, same_value
from mathequal.read import read
from mathequal.sets import same_functions, same_set, same_solutions
from mathequal.text import spelled
from mathequal.values import LETTER, Equation, Group, Region, Relation, Scalar, Value, Word
from mathequal.words import plain_number, shown, verdict_of

# The references 9.9 \pm 0.1 and "about 18.9"
_TOLERANCE = re.compile(r"\$?\s*(-?\d+(?:\.\d+)?)\s*\\pm\s*(\d*\.\d+)\s*\$?")
_ABOUT = re.compile(
    r"\s*(?:\\text\s*\{\s*)?(?:about|approximately|roughly|around|\$?\s*\\approx|≈)", re.IGNORECASE
)

# Letters for any whole number beside \pi, for any constant behind a formula in x, and for x of f(x)
# = ...
_ANY_NUMBER = (
    re.compile(
        r"(?=.*(?:\\pi|\\mathbb\s*\{?\s*Z))(?:\\(?:[a-zA-Z]++|[^a-zA-Z])|[^kmnl\\])*?(?<![a-zA-Z\\])([kmnl])(?![a-zA-Z])"
    ),
    re.compile(r".*[xtyu].*\+\s*([cCkK])[\s.$]*$"),
    re.compile(r"\s*\$?\s*[a-zA-Z]'*(?:_\w)?(?:\^\{-1\})?\(([a-z])\)\s*="),
)
# A C or c_1 that may be a constant of integration
_MAYBE_CONSTANT = re.compile(r"(?<![a-zA-Z\\])(?:C|c\s*_)")
_LETTER = re.compile(r"(?<![a-zA-Z\\])(?<!\\mathbb\{)(?<!\\mathbb )[a-zA-Z](?![a-zA-Z])")
_TOKEN = re.compile(r"\\mathbb\s*\{?\s*[A-Z]|\\[a-zA-Z]+|[a-zA-Z]{3,}|[a-zA-Z]")
_CALL = re.compile(r"([a-zA-Z]'*(?:_\w)?(?:\^\{-1\})?)\(([a-z])\)")


def _with_same_letters(reference: str, answer: str) -> str:
    r"""Return `answer` with the letters of `reference` where they mean the same: x for X, \pi k
    for \pi n.
    """
    letters, others = set(_LETTER.findall(answer)), set(_LETTER.findall(reference))
    bare = {
        letter.casefold()
        for letter in re.findall(_LETTER.pattern + r"(?!\s*_|[1-9])", f"{reference} {answer}")
    }
    # Choices and constants, but not C_1
    single = {letter for letter in "abcdeiABCDEI" if letter.casefold() in bare}
    names = {letter: letter.swapcase() for letter in letters - single}
    for pattern in _ANY_NUMBER:
        matches = pattern.match(reference), pattern.match(answer)
        if matches[0] and matches[1]:
            names[matches[1][1]] = matches[0][1]
    free = others.difference(_TOKEN.findall(answer))
    new_names = {old: new for old, new in names.items() if new in free and old not in others}
    return _TOKEN.sub(lambda match: new_names.get(match[0], match[0]), answer)


# C. x = 42, Option C: 42 and \\textbf{(C) }42
_CHOICE_WITH_TEXT = re.compile(
    r"\s*\$?\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*(?:[oO]ption\s+)?(?:\(([A-J])\)|([A-J])\}?[).:])"
    r"(?=[\s}~]|\\[ ,;:!q]|$)\s*\}?(?P<rest>.*)"
)


def _choice(text: str) -> tuple[str, str]:
    r"""Return C and `42` for `\textbf{(C) }42`, two empty texts for what begins with no choice
    or names another.
    """
    match = _CHOICE_WITH_TEXT.fullmatch(text)
    if match is None or re.search(
        r"(?<![a-zA-Z\\])[A-J](?![a-zA-Z])|\b(?:or|not|and|nor)\b", match["rest"]
    ):
        return "", ""
    rest = match["rest"].strip(" $")
    return match[1] or match[2], rest[:-1] if rest.count("}") > rest.count("{") else rest


def verdict(reference: str, answer: str) -> bool:
    """Whether the two are equal. Symmetric, but only the reference may be inexact: 9.9 ± 0.1,
    about 18.9.
    """
    texts = [
        re.sub(r"(?<![\d,])\s+|(?<=\d)\s+(?![\d.])", "", shown(spelled(text)))
        for text in (reference, answer)
    ]
    choices = _choice(reference), _choice(answer)
    bare = [text.strip("()").upper() for text in texts]  # B for \\textbf{(B)}
    if (
        texts[0] == texts[1] != ""
        or bare[0] == choices[1][0] != ""
        or bare[1] == choices[0][0] != ""
    ):
        return True
    expected, given = read(reference), read(_with_same_letters(reference, answer))
    if equal(expected, given):
        return True
    has_constant = _MAYBE_CONSTANT.search(reference) or _MAYBE_CONSTANT.search(answer)
    if has_constant and _decided(same_functions, read(reference), read(answer)):
        return True
    values = choices[0][1], choices[1][1]
    if bool(values[0]) != bool(values[1]) and equal(
        read(values[0] or reference), read(values[1] or answer)
    ):
        return True
    if not isinstance(given, Scalar):
        return False
    inexact, number = _TOLERANCE.fullmatch(reference), plain_number(given.latex)
    if inexact and number is not None:
        center, tolerance = Fraction(inexact[1]), Fraction(inexact[2])
        # A large tolerance is more likely a formula with two values, such as 1 \pm 0.5.
        return tolerance * 10 <= abs(number) and abs(number - center) <= tolerance
    return (
        bool(_ABOUT.match(reference))
        and isinstance(expected, Scalar)
        and _decided(rounded, given, expected)
    )


def equal(first: Value, second: Value) -> bool:
    """Whether two values are equal. Values of types without a rule are different."""
    for one, other in ((first, second), (second, first)):
        rule = _RULES.get((type(one), type(other)))
        if rule is not None:
            return _decided(rule, one, other)
    return False


def _decided(compare: Callable[..., bool], first: Value, second: Value) -> bool:
    """Return `compare(first, second)`, False where something has no value."""
    try:
        return compare(first, second)
    # TypeError: a matrix where a number is needed
    except (Undefined, TypeError, BasePolynomialError):
        return False


def in_order(first: Sequence[Value], second: Sequence[Value]) -> bool:
    return len(first) == len(second) and all(map(equal, first, second))


def in_any_order(first: Sequence[Value], second: Sequence[Value]) -> bool:
    """Whether each value equals another one of `second`, the first one that is left."""
    remaining = list(second)
    for item in first:
        place = next((place for place, other in enumerate(remaining) if equal(item, other)), None)
        if place is None:
            return False
        del remaining[place]
    return not remaining


def _scalars(first: Scalar, second: Scalar) -> bool:
    if first.product or second.product:  # 5 m is also 5 times m
        products = [Scalar(scalar.product or scalar.latex) for scalar in (first, second)]
        for scalar, other in ((first, second), (second, first)):
            if scalar.product and " " not in scalar.product and not other.unit:  # 5m is not 5
                return same_value(*products)
        first, second = (Scalar(scalar.latex, scalar.unit) for scalar in (first, second))
        return same_value(*products) or _scalars(first, second)
    if first.unit and second.unit and first.unit != second.unit:
        return same_quantity(first, second)
    if same_value(first, second):
        return True
    with_unit, other = (first, second) if first.unit else (second, first)
    if other.unit or with_unit.unit not in _SIZES:
        return False
    return same_value(Scalar(rf"({with_unit.latex})\cdot{_SIZES[with_unit.unit]}"), other)


_REGISTRY = pint.UnitRegistry(non_int_type=Fraction, on_redefinition="ignore")
_REGISTRY.define("dollar = [money]")
_REGISTRY.define("cent = 1/100 dollar")


def same_quantity(first: Scalar, second: Scalar) -> bool:
    if {first.unit, second.unit} == {"degree", "radian"}:
        factor = r"\frac{\pi}{180}" if first.unit == "degree" else r"\frac{180}{\pi}"
    else:
        try:
            one, other = (
                _REGISTRY.Quantity(Fraction(1), scalar.unit) for scalar in (first, second)
            )
            factor = str((one / other).to("").magnitude)
        # Of another dimension, without a size (euros), or degrees Celsius, which have no factor
        except pint.PintError:
            return False
    return same_value(Scalar(rf"({first.latex})\cdot({factor})"), second)


# Units that are numbers: 20 % is 20, and 0.2
_SIZES = {"percent": r"\frac{1}{100}", "degree": r"\frac{\pi}{180}"}


def _scalar_and_word(scalar: Scalar, word: Word) -> bool:
    r"""`B` is `\text{B}`, and the ratio `9:24` may be a time of day."""
    time = re.fullmatch(r"\\frac\{(\d\d?)\}\{(\d\d)\}", scalar.latex)
    if time:
        hour = int(time[1])
        return word.text in {
            f"{each % 24}:{time[2]}:00" for each in ([hour, hour + 12] if hour <= 12 else [hour])
        }
    letters = re.sub(r"\s|\\text|[{}]", "", scalar.latex)
    return letters.isalpha() and letters.casefold() == word.text


_REASON = re.compile(r"(?:yes|no|true|false)(?:\.|,? (?:because|since|as)\b)")
"""Yes with a reason; but "yes, Alice wins" is more than yes."""


def _words(first: Word, second: Word) -> bool:
    verdict = verdict_of(first.text)
    gives_reason = verdict in (first.text, second.text) or any(
        map(_REASON.match, (first.text, second.text))
    )
    if verdict and gives_reason and verdict == verdict_of(second.text):
        return True
    return re.sub(r"\s", "", first.text) == re.sub(r"\s", "", second.text)


_MATRICES = {"rows", "row", "column"}


def _groups(first: Group, second: Group) -> bool:
    """A list equals the tuple in its order, and the set in any. A tuple is no set and no closed
    interval.
    """
    kinds = {first.opening + first.closing, second.opening + second.closing}
    items = (*first.items, *second.items)
    if any(
        group.items and all(isinstance(item, Relation) for item in group.items)
        for group in (first, second)
    ):
        return in_any_order(first.items, second.items) or same_set(first, second)
    if first.names and second.names:
        if set(first.names) != set(second.names):
            return False
        matching = [second.items[second.names.index(name)] for name in first.names]
        return in_order(first.items, matching)
    for one, other in ((first, second), (second, first)):
        if roots := _unnamed_roots(one, other):
            return in_any_order(one.items, roots)
        own_names = [
            item.names[0] for item in other.items if isinstance(item, Equation) and item.names[0]
        ]
        # X=1, x=2 is not the point x=1, y=2
        if one.names and own_names and own_names != list(one.names):
            return False
    first, second = _in_axis_order(first), _in_axis_order(second)
    if kinds <= {"", "{}"}:
        # A list of words is often a ranking; single letters are choices.
        has_words = any(isinstance(item, Word) and len(item.text) > 1 for item in items)
        compare = in_order if has_words else in_any_order
        return compare(first.items, second.items)
    # A matrix is a tuple of rows, each of which is a tuple, as is a column. But a row is no column.
    is_matrix = len(kinds & _MATRICES) == 1 and kinds - _MATRICES < {"", "()", "[]"}
    return (len(kinds) == 1 or kinds == {"", "()"} or is_matrix) and in_order(
        first.items, second.items
    )


def _unnamed_roots(indexed: Group, other: Group) -> list[Value]:
    """Return the items of a list that may be the roots x_1 and x_2 in any order: 1, 2 or x=1,
    x=2. Else none.
    """
    letters = {name.partition("_")[0] for name in indexed.names}
    is_indexed = len(letters) == 1 and all(
        re.fullmatch("[xyzt]_.*", name) for name in indexed.names
    )
    if not is_indexed or other.names or other.opening not in ("", "{"):
        return []
    names = [item.names[0] for item in other.items if isinstance(item, Equation)]
    if set(names) - letters or len(names) not in (0, len(other.items)):
        return []
    return [item.sides[-1] if isinstance(item, Equation) else item for item in other.items]


def _in_axis_order(group: Group) -> Group:
    """Return the point (2, 3) for `y=3, x=2`."""
    if not group.names or set(group.names) - {"x", "y", "z"}:
        return group
    by_name = dict(zip(group.names, group.items, strict=True))
    return Group(group.opening, group.closing, tuple(by_name[name] for name in sorted(by_name)))


def _scalar_and_group(scalar: Scalar, group: Group) -> bool:
    """`60,120` is a list where the other is one of three or more items, or of items with units,
    such as degrees.

    `32 or 2^5` is one value in two spellings. `x+1, x \\ne 2` is x+1.
    """
    if group.latex:  # \\frac12\\begin{pmatrix}
        return r"\begin" in scalar.latex and same_value(Scalar(group.latex), scalar)
    formula, *conditions = group.items or (group,)
    is_plain = group.opening == "" and not group.alternatives
    if is_plain and conditions and all(_excludes(item, formula) for item in conditions):
        return equal(scalar, formula)
    if group.alternatives and len(set(group.items)) == len(group.items) and "," not in scalar.latex:
        return all(equal(scalar, item) for item in group.items)
    letters = [
        item.latex
        for item in group.items
        if isinstance(item, Scalar) and re.fullmatch("[A-H]", item.latex)
    ]
    # ACD and A, C, D
    if len(letters) == len(group.items) > 1 and sorted(letters) == sorted(scalar.latex):
        return True
    if group.names and all(r"\angle" in name for name in group.names):  # several angles of one size
        return all(equal(scalar, item) for item in group.items)
    has_units = any(isinstance(item, Scalar) and item.unit for item in group.items)
    if "," not in scalar.latex or not (has_units or len(group.items) > 2):
        return False
    parts = tuple(Scalar(part) for part in scalar.latex.split(","))
    return _groups(Group("", "", parts), group)


def _excludes(condition: Value, formula: Value) -> bool:
    """Whether a condition is x \\ne 2 for a letter of a formula."""
    if (
        not isinstance(formula, Scalar)
        or not isinstance(condition, Relation)
        or condition.operators != (r"\ne",)
    ):
        return False
    letter = condition.sides[0].latex
    return len(letter) == 1 and bool(
        re.search(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])", formula.latex)
    )


def _equation_and_value(equation: Equation, value: Value) -> bool:
    last = equation.sides[-1]
    ends_in_letter = isinstance(last, Scalar) and re.fullmatch(LETTER, last.latex)
    is_choice = isinstance(value, Word) or (isinstance(value, Scalar) and value.latex.isupper())
    if ends_in_letter and (is_choice or re.fullmatch("[a-e]", equation.names[0] or "")):
        return False  # a = b is not choice B
    names = equation.names[:-1]
    is_repeated = isinstance(value, Group) and all(names) and len(names) == len(value.items) > 1
    if is_repeated and (value.opening == "" or value.names == names):  # a = b = 5 is 5, 5
        return all(equal(last, item) for item in value.items)
    return any(equal(spelling, value) for spelling in _stated_values(equation))


def _stated_values(equation: Equation) -> list[Value]:
    """Return the spellings of the value that a chain ends in; none if they are not equal.

    `5 \\times 24 = 120` has two, `x = 5` has one: a side that is a name is none. After a name, a
    side with variables may stand for a number and is left out: `x = 2a = 6`.
    """
    last = equation.sides[-1]
    sides_with_variables_count = equation.names[0] is None or not equation.constant[-1]
    spellings = [last]
    for side, name, constant in zip(
        equation.sides[:-1], equation.names, equation.constant, strict=False
    ):
        if name is None and (constant or sides_with_variables_count):
            spellings.append(side)
    rounds = equation.approximate and isinstance(last, Scalar)
    are_equal = all(
        (rounded if rounds and isinstance(side, Scalar) else equal)(side, last)
        for side in spellings[1:]
    )
    return spellings if are_equal else []


def _equations(first: Equation, second: Equation) -> bool:
    names = first.names[0] or "", second.names[0] or ""
    if names[0] == names[1] != "":
        values = product(_stated_values(first), _stated_values(second))
        return any(equal(one, other) for one, other in values)
    for call, name in (
        (_CALL.fullmatch(names[0]), names[1]),
        (_CALL.fullmatch(names[1]), names[0]),
    ):
        is_same = call and (name == call[1] or (name == "y" and call[2] == "x"))
        if is_same and len(first.sides) == len(second.sides) == 2:  # f(x) = 2x, f = 2x and y = 2x
            return equal(first.sides[1], second.sides[1])
    if any(in_order(first.sides, sides) for sides in (second.sides, second.sides[::-1])):
        return True
    is_curve = len(first.sides) == len(second.sides) == 2 and not (
        all(first.constant) and all(second.constant)
    )
    return is_curve and same_solutions(first, second)


def _sets(first: Value, second: Value) -> bool:
    """Sets of numbers, or conditions on several variables that are the same one by one."""
    first_conditions, second_conditions = _conditions(first), _conditions(second)
    if len(first_conditions) > 1 and len(second_conditions) > 1:  # a<b<c and b<c, a<b
        return in_any_order(first_conditions, second_conditions) or same_set(first, second)
    if isinstance(first, Relation) and isinstance(second, Group):  # a<b<c and the order a, b, c
        is_order = (
            all(re.fullmatch(LETTER, side.latex) for side in first.sides)
            and len(set(first.operators)) == 1
        )
        if is_order and second.opening == "" and in_order(first.sides, second.items):
            return True
    if (
        isinstance(first, Region)
        and isinstance(second, Region)
        and first.operator == second.operator != r"\setminus"
    ):
        return in_any_order(first.parts, second.parts) or same_set(first, second)
    return same_set(first, second)


def _conditions(value: Value) -> list[Relation]:
    """Return the conditions with one sign each that hold together; none if `value` is anything
    else.
    """
    if isinstance(value, Relation):
        sides = zip(value.sides, value.operators, value.sides[1:], strict=False)
        return [Relation((left, right), (operator,)) for left, operator, right in sides]
    parts = value.items if isinstance(value, Group) and value.opening == "" else ()
    parts = value.parts if isinstance(value, Region) and value.operator == r"\cap" else parts
    conditions = [_conditions(part) for part in parts]
    return [condition for part in conditions for condition in part] if all(conditions) else []


_SETS = product((Relation, Region), (Relation, Region, Group))
_RULES: dict[tuple[type, type], Callable[..., bool]] = {
    (Scalar, Scalar): _scalars,
    (Scalar, Word): _scalar_and_word,
    (Scalar, Group): _scalar_and_group,
    (Word, Word): _words,
    (Group, Group): _groups,
    (Equation, Equation): _equations,
    **{(Equation, other): _equation_and_value for other in (Scalar, Word, Group, Region, Relation)},
    **dict.fromkeys(_SETS, _sets),
}  # the rule of each two types, in either order
_KINDS = {
    Word: "the word",
    Equation: "an equation",
    Relation: "a condition",
    Region: "a set of numbers",
}
_GROUPS = {
    "": "a list",
    "()": "a tuple",
    "{}": "a set",
    "::": "a ratio",
    "casecase": "a value with its condition",
}
_GROUPS |= {"rows": "a matrix", "row": "a row", "column": "a column"}


def reason(reference: str, answer: str) -> str:
    """Return "equal", or how both are read, which shows why they are different."""
    if mathequal.equal(reference, answer):
        return "equal"
    lengths = len(reference.strip()), len(answer.strip())
    if not min(lengths) or max(lengths) > mathequal.MAX_LENGTH:
        return f"different: one is empty or has more than {mathequal.MAX_LENGTH} characters"
    return (
        f"different: the reference is {_described(read(reference))}, the answer is "
        f"{_described(read(answer))}"
    )


def _described(answer: Value) -> str:
    if isinstance(answer, Group):
        kind = _GROUPS.get(answer.opening + answer.closing, "an interval")
        return f"{kind} ({'; '.join(map(_described, answer.items))})"
    if isinstance(answer, Scalar):
        return f"{shown(answer.latex)} {answer.unit}".strip()
    return f"{_KINDS[type(answer)]} {getattr(answer, 'text', '')}".strip()
