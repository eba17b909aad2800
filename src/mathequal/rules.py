"""Which rule a pair of types has, and the rules of all types but equations and conditions; see docs/grader.md."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mathequal.sentences import verdict_of
from mathequal.values import Based, Equation, Group, Matrix, Relation, Scalar, Time, Value, Word


class Undecided(Exception):
    """The quick judge cannot know, so symbolic.py must decide."""


@dataclass(frozen=True)
class Judge:
    """How formulas are compared. That of equality.py may raise Undecided, that of symbolic.py never."""

    same_value: Callable[[Scalar, Scalar], bool]  # whatever their units
    same_quantity: Callable[[Scalar, Scalar], bool]  # of different units: 5 cm and 50 mm
    rounded: Callable[[Scalar, Scalar], bool]  # one is a decimal, and the other one rounded to its places
    same_solutions: Callable[[Equation, Equation], bool]  # of two sides each
    same_set: Callable[[Value, Value], bool]  # of real numbers, or conditions on a variable
    same_families: Callable[[Value, Value], bool]  # of numbers for every whole k
    same_functions: Callable[[Value, Value], bool]  # whatever the constants of integration


Rule = Callable[..., bool]
"""A function of two values, of the types that it is registered for, and a judge."""
_RULES: dict[tuple[type, type], Rule] = {}


def rule_for(first: type, *others: type) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule for the first type and any of the others, in either order."""

    def register(rule: Rule) -> Rule:
        _RULES.update({(first, other): rule for other in others})
        return rule

    return register


def equal(first: Value, second: Value, judge: Judge) -> bool:
    """Whether two values are equal. Values of types without a rule are different."""
    for one, other in ((first, second), (second, first)):
        rule = _RULES.get((type(one), type(other)))
        if rule is not None:
            return rule(one, other, judge)
    return False


def in_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> bool:
    if len(first) != len(second):
        return False
    return all(equal(one, other, judge) for one, other in zip(first, second, strict=True))


def in_any_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> bool:
    """Whether there is a one-to-one match of equal values, found by augmenting paths."""
    if len(first) != len(second):
        return False
    fits = [[equal(one, other, judge) for other in second] for one in first]
    row_of: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column in range(len(fits)):
            if fits[row][column] and column not in tried:
                tried.add(column)
                if column not in row_of or place(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(fits)))


@rule_for(Scalar, Scalar)
def _scalars(first: Scalar, second: Scalar, judge: Judge) -> bool:
    if first.product or second.product:  # 5 m is also 5 times m
        products = [Scalar(scalar.product or scalar.latex) for scalar in (first, second)]
        for scalar, other in ((first, second), (second, first)):
            if scalar.product and " " not in scalar.product and not other.unit:  # 5m is not 5
                return judge.same_value(*products)
        first, second = (Scalar(scalar.latex, scalar.unit) for scalar in (first, second))
        return judge.same_value(*products) or _scalars(first, second, judge)
    if first.unit and second.unit and first.unit != second.unit:
        return judge.same_quantity(first, second)
    if judge.same_value(first, second):
        return True
    with_unit, other = (first, second) if first.unit else (second, first)
    if other.unit or with_unit.unit not in _SIZES:
        return False
    return judge.same_value(Scalar(rf"({with_unit.latex})\cdot{_SIZES[with_unit.unit]}"), other)


_SIZES = {"percent": r"\frac{1}{100}", "degree": r"\frac{\pi}{180}"}
"""The units that are numbers: 20 % is 20 as well as 0.2."""


@rule_for(Scalar, Word)
def _scalar_and_word(scalar: Scalar, word: Word, judge: Judge) -> bool:
    r"""`B` is `\text{B}`."""
    letters = re.sub(r"\s|\\text|[{}]", "", scalar.latex)
    return letters.isalpha() and letters.casefold() == word.text


_REASON = re.compile(r"(?:yes|no|true|false)(?:\.|,? (?:because|since|as)\b)")
"""Yes with a reason; but "yes, Alice wins" is more than yes."""


@rule_for(Word, Word)
def _words(first: Word, second: Word, judge: Judge) -> bool:
    verdict = verdict_of(first.text)
    gives_reason = verdict in (first.text, second.text) or any(map(_REASON.match, (first.text, second.text)))
    if verdict and gives_reason and verdict == verdict_of(second.text):
        return True
    return re.sub(r"\s", "", first.text) == re.sub(r"\s", "", second.text)


@rule_for(Time, Time)
def _times(first: Time, second: Time, judge: Judge) -> bool:
    if first.ratio and second.ratio:  # neither has `am` or `pm`: 8:34 is not 20:34
        return first.moments == second.moments
    return not first.moments.isdisjoint(second.moments)


@rule_for(Time, Scalar, Group)
def _time_and_value(time: Time, value: Value, judge: Judge) -> bool:
    """`9:24` and `10:20:30` may be ratios."""
    return time.ratio is not None and equal(time.ratio, value, judge)


@rule_for(Based, Based)
def _based(first: Based, second: Based, judge: Judge) -> bool:
    return first.base == second.base and first.digits.lstrip("0") == second.digits.lstrip("0")


@rule_for(Based, Scalar)
def _based_and_scalar(based: Based, scalar: Scalar, judge: Judge) -> bool:
    """`1101` may leave out the base of `1101_2`."""
    return based.digits == scalar.latex.replace(",", "").casefold()


@rule_for(Group, Group)
def _groups(first: Group, second: Group, judge: Judge) -> bool:
    """A list equals the tuple in its order, and the set in any. A tuple is no set and no closed interval."""
    kinds = {first.opening + first.closing, second.opening + second.closing}
    items = (*first.items, *second.items)
    if any(group.items and all(isinstance(item, Relation) for item in group.items) for group in (first, second)):
        return judge.same_set(first, second) or in_any_order(first.items, second.items, judge)
    if first.names and second.names:
        if set(first.names) != set(second.names):
            return False
        matching = [second.items[second.names.index(name)] for name in first.names]
        return in_order(first.items, matching, judge)
    for one, other in ((first, second), (second, first)):
        if roots := _unnamed_roots(one, other):
            return in_any_order(one.items, roots, judge)
    if any(one.names and _named_otherwise(one.names, other.items) for one, other in ((first, second), (second, first))):
        return False
    first, second = _in_axis_order(first), _in_axis_order(second)
    if kinds <= {"", "{}"}:
        # A list of words is often a ranking; single letters are choices.
        has_words = any(isinstance(item, Word) and len(item.text) > 1 for item in items)
        compare = in_order if has_words else in_any_order
        counts, others = _counts(first.items), _counts(second.items)
        if counts and counts.keys() == others.keys():
            return all(equal(counts[things], others[things], judge) for things in counts)
        if bool(counts) != bool(others):  # 7, 4 and 7 goats, 4 sheep: only the order tells which is which
            compare = in_order
        return compare(first.items, second.items, judge)
    if len(kinds) == 1 or kinds == {"", "()"}:
        return in_order(first.items, second.items, judge)
    return False


def _unnamed_roots(indexed: Group, other: Group) -> list[Value]:
    """Return the items of a list that may be the roots x_1 and x_2 in any order: 1, 2 or x=1, x=2. Else none."""
    letters = {name.partition("_")[0] for name in indexed.names if re.fullmatch("[xyzt]_.*", name)}
    if (
        len(letters) != 1
        or not all("_" in name for name in indexed.names)
        or other.names
        or other.opening not in ("", "{")
    ):
        return []
    names = [item.names[0] for item in other.items if isinstance(item, Equation)]
    if set(names) - letters or len(names) not in (0, len(other.items)):
        return []
    return [item.sides[-1] if isinstance(item, Equation) else item for item in other.items]


def _named_otherwise(names: Sequence[str], items: Sequence[Value]) -> bool:
    """Whether items have names of their own: x=1, x=2 is not the point x=1, y=2."""
    own = [item.names[0] for item in items if isinstance(item, Equation) and item.names[0]]
    return bool(own) and own != list(names)


def _in_axis_order(group: Group) -> Group:
    """Return the point (2, 3) for `y=3, x=2`."""
    if not group.names or set(group.names) - {"x", "y", "z"}:
        return group
    by_name = dict(zip(group.names, group.items, strict=True))
    return Group(group.opening, group.closing, tuple(by_name[name] for name in sorted(by_name)))


def _counts(items: Sequence[Value]) -> dict[str, Value]:
    """Return counts of different things by the first letters of the things: 3 adults, 4 children. Else nothing."""
    counts = {item.things[:4]: item for item in items if isinstance(item, Scalar) and item.things}
    return counts if len(counts) == len(items) else {}


@rule_for(Scalar, Group)
def _scalar_and_group(scalar: Scalar, group: Group, judge: Judge) -> bool:
    """`60,120` is a list where the other is one of three or more items, or of items with units, such as degrees.

    `32 or 2^5` is one value in two spellings. `x+1, x \\ne 2` is x+1.
    """
    formula, *conditions = group.items or (group,)
    is_plain = group.opening == "" and not group.alternatives
    if is_plain and conditions and all(_excludes(item, formula) for item in conditions):
        return equal(scalar, formula, judge)
    if group.alternatives and len(set(group.items)) == len(group.items) and "," not in scalar.latex:
        return all(equal(scalar, item, judge) for item in group.items)
    letters = [item.latex for item in group.items if isinstance(item, Scalar) and re.fullmatch("[A-H]", item.latex)]
    if len(letters) == len(group.items) > 1 and sorted(letters) == sorted(scalar.latex):  # ACD and A, C, D
        return True
    if group.names and all(r"\angle" in name for name in group.names):  # several angles of one size
        return all(equal(scalar, item, judge) for item in group.items)
    has_units = any(isinstance(item, Scalar) and item.unit for item in group.items)
    if "," not in scalar.latex or not (has_units or len(group.items) > 2):
        return False
    parts = tuple(Scalar(part) for part in scalar.latex.split(","))
    return _groups(Group("", "", parts), group, judge)


def _excludes(condition: Value, formula: Value) -> bool:
    """Whether a condition is x \\ne 2 for a letter of a formula."""
    if not isinstance(formula, Scalar) or not isinstance(condition, Relation) or condition.operators != (r"\ne",):
        return False
    letter = condition.sides[0].latex
    return len(letter) == 1 and bool(re.search(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])", formula.latex))


@rule_for(Matrix, Matrix)
def _matrices(first: Matrix, second: Matrix, judge: Judge) -> bool:
    if len(first.rows) != len(second.rows):
        return False
    return all(in_order(one, other, judge) for one, other in zip(first.rows, second.rows, strict=True))


@rule_for(Matrix, Group)
def _matrix_and_group(matrix: Matrix, group: Group, judge: Judge) -> bool:
    """A column or a row is a tuple, and a tuple of rows is a matrix."""
    if group.items and all(isinstance(item, Group) and item.opening != "case" for item in group.items):
        return _matrices(matrix, Matrix(tuple(item.items for item in group.items if isinstance(item, Group))), judge)
    entries = [entry for row in matrix.rows for entry in row]
    is_row = len(matrix.rows) == 1
    is_column = len(entries) == len(matrix.rows)  # a row has one entry at least
    is_tuple = group.opening + group.closing in ("()", "[]", "")
    return (is_row or is_column) and is_tuple and in_order(entries, group.items, judge)


@rule_for(Matrix, Scalar)
def _matrix_and_scalar(matrix: Matrix, scalar: Scalar, judge: Judge) -> bool:
    r"""`\frac12\begin{pmatrix}...` is a formula."""
    return r"\begin" in scalar.latex and judge.same_value(Scalar(matrix.latex), scalar)
