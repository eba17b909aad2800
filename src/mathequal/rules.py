"""Decide whether two typed values are equal: one rule for each pair of types. docs/grader.md explains the rules."""

import re
from collections.abc import Callable, Sequence

from mathequal.judge import Judge, Verdict, every, some
from mathequal.values import Based, Equation, Group, Matrix, Region, Relation, Scalar, Time, Value, Word


def equal(first: Value, second: Value, judge: Judge) -> Verdict:
    """Whether two values are equal, None where `judge` cannot know. Values of types without a rule are different."""
    rule = _RULES.get((type(first), type(second)))
    if rule is not None:
        return rule(first, second, judge)
    rule = _RULES.get((type(second), type(first)))
    if rule is not None:
        return rule(second, first, judge)
    return False


# Formulas and words


def _scalars(first: Scalar, second: Scalar, judge: Judge) -> Verdict:
    if first.unit and second.unit and first.unit != second.unit:
        return False
    return judge.same_value(first, second)


def _scalar_and_word(scalar: Scalar, word: Word, judge: Judge) -> bool:
    r"""`B` is `\text{B}`."""
    letters = re.sub(r"\s|\\text|[{}]", "", scalar.latex)
    return letters.isalpha() and letters.casefold() == word.text


def _words(first: Word, second: Word, judge: Judge) -> bool:
    return _compared_text(first) == _compared_text(second)


def _compared_text(word: Word) -> str:
    """Return a word without signs; but if there is a formula between its words, the signs count."""
    has_formula = re.search(r"[\d=<>+^\\]", word.text)
    return re.sub(r"\s" if has_formula else r"\W", "", word.text)


# Times of day, and numbers in a base


def _times(first: Time, second: Time, judge: Judge) -> bool:
    if not first.half and not second.half:
        return _padded(first) == _padded(second)
    return not _moments(first).isdisjoint(_moments(second))


def _moments(time: Time) -> set[tuple[int, ...]]:
    """Return the times on a clock of 24 hours that are meant: `8:34` may be 8:34 and 20:34."""
    hour, minute, second = _padded(time)
    if not time.half and hour > 12:
        return {(hour, minute, second)}
    moments = set()
    if time.half in ("am", ""):
        moments.add((hour % 12, minute, second))
    if time.half in ("pm", ""):
        moments.add((hour % 12 + 12, minute, second))
    return moments


def _padded(time: Time) -> tuple[int, ...]:
    """Return hour, minute and second."""
    return (*time.clock, 0, 0)[:3]


def _time_and_scalar(time: Time, scalar: Scalar, judge: Judge) -> Verdict:
    """`9:24` may be a ratio."""
    if time.half or len(time.clock) != 2:
        return False
    hour, minute = time.clock
    return judge.same_value(Scalar(rf"\frac{{{hour}}}{{{minute}}}"), scalar)


def _time_and_group(time: Time, group: Group, judge: Judge) -> Verdict:
    """`10:20:30` may be a ratio, too."""
    if time.half:
        return False
    terms = tuple(Scalar(str(part)) for part in time.clock)
    return _groups(Group(":", ":", terms), group, judge)


def _based(first: Based, second: Based, judge: Judge) -> bool:
    return first.base == second.base and first.digits.lstrip("0") == second.digits.lstrip("0")


def _based_and_scalar(based: Based, scalar: Scalar, judge: Judge) -> bool:
    """`1101` may leave out the base of `1101_2`."""
    return based.digits == scalar.latex.replace(",", "").casefold()


# Equations


def _equation_and_value(equation: Equation, value: Value, judge: Judge) -> Verdict:
    consistent, spellings = _stated_value(equation, judge)
    return every([consistent, some(equal(spelling, value, judge) for spelling in spellings)])


def _stated_value(equation: Equation, judge: Judge) -> tuple[Verdict, list[Value]]:
    """Return whether the sides of a chain agree, and the spellings of the value that the chain ends in.

    `5 \\times 24 = 120` has two spellings of one value, `x = 5` has one: a side that is a name is none. After a name, a
    side with variables may stand for a number and is left out: `x = 2a = 6`.
    """
    last = equation.sides[-1]
    sides_with_variables_count = equation.names[0] is None or not equation.constant[-1]
    spellings = [last]
    for side, name, constant in zip(equation.sides[:-1], equation.names, equation.constant, strict=False):
        if name is None and (constant or sides_with_variables_count):
            spellings.append(side)
    consistent = every(_same_side(side, last, equation.approximate, judge) for side in spellings[1:])
    return consistent, spellings


def _same_side(side: Value, last: Value, approximate: bool, judge: Judge) -> Verdict:
    """Whether a side of a chain equals the last one. Only here is a percent sign a hundredth: `0.5 = 50\\%`."""
    if not (isinstance(side, Scalar) and isinstance(last, Scalar)):
        return equal(side, last, judge)
    if last.unit == "percent" and side.unit != "percent":
        side = Scalar(rf"100\cdot({side.latex})")
    elif side.unit == "percent" and last.unit != "percent":
        last = Scalar(rf"100\cdot({last.latex})")
    compare = judge.rounded if approximate else judge.same_value
    return compare(side, last)


# Names of equations that may be compared as equations: x, word, \theta and m+n, but not f(2)
_COMPARABLE_NAME = re.compile(r"\w|[a-z]+|\\.*|[^()]*[-+][^()]*")


def _equations(first: Equation, second: Equation, judge: Judge) -> Verdict:
    first_name, second_name = first.names[0], second.names[0]
    if first_name and second_name and same_letters(first_name, second_name):
        consistent, spellings = _stated_value(second, judge)
        return every([consistent, some(_equation_and_value(first, spelling, judge) for spelling in spellings)])
    if all(first.constant) and all(second.constant):
        return some(_in_order(first.sides, sides, judge) for sides in (second.sides, second.sides[::-1]))
    for name in (first_name, second_name):
        if name is not None and not _COMPARABLE_NAME.fullmatch(name):
            return False
    return len(first.sides) == len(second.sides) == 2 and judge.same_solutions(first, second)


# Tuples, sets and lists


def _in_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> Verdict:
    if len(first) != len(second):
        return False
    return every(equal(one, other, judge) for one, other in zip(first, second, strict=True))


def _in_any_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> Verdict:
    """Whether there is a one-to-one match. Takes the first match, as if equality were transitive."""
    unmatched, unknown = list(second), False
    if len(first) != len(second):
        return False
    for one in first:
        verdicts = [equal(one, other, judge) for other in unmatched]
        if True in verdicts:
            unmatched.pop(verdicts.index(True))
        elif None in verdicts:
            unknown = True
        else:
            return None if unknown else False
    return None if unknown else True


def _groups(first: Group, second: Group, judge: Judge) -> Verdict:
    """A list equals the tuple in its order, and the set in any. A tuple is no set and no closed interval."""
    kinds = {first.opening + first.closing, second.opening + second.closing}
    items = (*first.items, *second.items)
    if first.items and all(isinstance(item, Relation) for item in items):
        same_set = judge.same_set(first, second)
        return some((same_set, _in_any_order(first.items, second.items, judge)))
    if first.names and second.names:
        if set(first.names) != set(second.names):
            return False
        matching = [second.items[second.names.index(name)] for name in first.names]
        return _in_order(first.items, matching, judge)
    first, second = _in_axis_order(first), _in_axis_order(second)
    if kinds == {"::"}:
        return _in_order(_shares(first), _shares(second), judge)
    if kinds <= {"", "{}"}:
        # A list of words is often a ranking; single letters are choices.
        has_words = any(isinstance(item, Word) and len(item.text) > 1 for item in items)
        compare = _in_order if has_words else _in_any_order
        return compare(first.items, second.items, judge)
    if len(kinds) == 1 or kinds == {"", "()"}:
        return _in_order(first.items, second.items, judge)
    return False


def _in_axis_order(group: Group) -> Group:
    """Return the point (2, 3) for `y=3, x=2`."""
    if not group.names or set(group.names) - {"x", "y", "z"}:
        return group
    by_name = dict(zip(group.names, group.items, strict=True))
    return Group(group.opening, group.closing, tuple(by_name[name] for name in sorted(by_name)))


def _shares(ratio: Group) -> list[Scalar]:
    """Return the terms of a ratio, divided by the first: 2:4:6 is 1:2:3."""
    terms = [item.latex if isinstance(item, Scalar) else "" for item in ratio.items]
    return [Scalar(rf"\frac{{{term}}}{{{terms[0]}}}") for term in terms]


def _scalar_and_group(scalar: Scalar, group: Group, judge: Judge) -> Verdict:
    """`60,120` is a list where the other is one whose items have units, such as degrees."""
    if "," not in scalar.latex or not any(isinstance(item, Scalar) and item.unit for item in group.items):
        return False
    parts = tuple(Scalar(part) for part in scalar.latex.split(","))
    return _groups(Group("", "", parts), group, judge)


# Matrices and sets of numbers


def _matrices(first: Matrix, second: Matrix, judge: Judge) -> Verdict:
    if len(first.rows) != len(second.rows):
        return False
    return every(_in_order(one, other, judge) for one, other in zip(first.rows, second.rows, strict=True))


def _matrix_and_group(matrix: Matrix, group: Group, judge: Judge) -> Verdict:
    """A column or a row is a tuple."""
    entries = [entry for row in matrix.rows for entry in row]
    is_row = len(matrix.rows) == 1
    is_column = len(entries) == len(matrix.rows)  # a row has one entry at least
    return (is_row or is_column) and group.opening + group.closing == "()" and _in_order(entries, group.items, judge)


def _matrix_and_scalar(matrix: Matrix, scalar: Scalar, judge: Judge) -> Verdict:
    r"""`\frac12\begin{pmatrix}...` is a formula."""
    return r"\begin" in scalar.latex and judge.same_value(Scalar(matrix.latex), scalar)


def _sets(first: Value, second: Value, judge: Judge) -> Verdict:
    """Sets of numbers; or else conditions on several variables that are the same one by one."""
    same_set = judge.same_set(first, second)
    if not (isinstance(first, Region) and isinstance(second, Region) and first.operator == second.operator):
        return same_set
    same_parts = first.operator != r"\setminus" and _in_any_order(first.parts, second.parts, judge)
    return some((same_set, same_parts))


Rule = Callable[..., Verdict]
"""A function of two values, of the types it is listed under, and a judge."""

# Either order of two types needs one entry only.
_RULES: dict[tuple[type, type], Rule] = {
    (Scalar, Scalar): _scalars,
    (Scalar, Word): _scalar_and_word,
    (Word, Word): _words,
    (Time, Time): _times,
    (Time, Scalar): _time_and_scalar,
    (Time, Group): _time_and_group,
    (Based, Based): _based,
    (Based, Scalar): _based_and_scalar,
    (Equation, Equation): _equations,
    (Group, Group): _groups,
    (Scalar, Group): _scalar_and_group,
    (Matrix, Matrix): _matrices,
    (Matrix, Group): _matrix_and_group,
    (Matrix, Scalar): _matrix_and_scalar,
}
for _type in (Scalar, Word, Time, Based, Group, Matrix, Region):
    _RULES[Equation, _type] = _equation_and_value
for _type in (Relation, Region, Group):
    _RULES[Relation, _type] = _sets
    _RULES[Region, _type] = _sets


def same_letters(first: str, second: str) -> bool:
    """Whether two texts differ in case at most, and neither has a letter in both cases."""
    if first.casefold() != second.casefold():
        return False
    return all(len(set(text)) == len(set(text.casefold())) for text in (first, second))
