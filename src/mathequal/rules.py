"""When two typed values are equal: one rule for each pair of types, explained in docs/grader.md."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mathequal.values import Based, Equation, Group, Matrix, Region, Relation, Scalar, Time, Value, Word


@dataclass(frozen=True)
class Judge:
    """How formulas are compared: each function may say None where it cannot know."""

    scalars: Callable[[Scalar, Scalar], bool | None]
    """Whether two formulas have the same value; units are no part of it."""
    nearly: Callable[[Scalar, Scalar], bool | None]
    """Whether one of the two is a decimal, and the other rounded to its places."""
    equations: Callable[[Equation, Equation], bool | None]
    """Whether two equations of two sides have the same solutions."""
    regions: Callable[[Value, Value], bool | None]
    """Whether two sets of real numbers, or conditions on a variable, are the same."""


def every(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one is, else None if one is not known."""
    unknown = False
    for verdict in verdicts:
        if verdict is False:
            return False
        unknown = unknown or verdict is None
    return None if unknown else True


def some(verdicts: Iterable[bool | None]) -> bool | None:
    """True if one is, else None if one is not known."""
    verdict = every(None if verdict is None else not verdict for verdict in verdicts)
    return None if verdict is None else not verdict


def equal(first: Value, second: Value, judge: Judge) -> bool | None:
    """Whether two values are equal, None where `judge` cannot know. Values of types without a rule are different."""
    for one, other in ((first, second), (second, first)):
        if rule := _RULES.get((type(one), type(other))):
            return rule(one, other, judge)
    return False


def _scalars(first: Scalar, second: Scalar, judge: Judge) -> bool | None:
    if first.unit and second.unit and first.unit != second.unit:
        return False
    return judge.scalars(first, second)


def _scalar_and_word(scalar: Scalar, word: Word, judge: Judge) -> bool:
    letters = re.sub(r"\s|\\text|[{}]", "", scalar.latex)
    return letters.isalpha() and letters.casefold() == word.text


def _letters(word: Word) -> str:
    """Without signs; but with a formula between its words, those count."""
    return re.sub(r"\s" if re.search(r"[\d=<>+^\\]", word.text) else r"\W", "", word.text)


def _times(first: Time, second: Time, judge: Judge) -> bool:
    if not first.half and not second.half:
        return _padded(first) == _padded(second)
    return bool(_moments(first) & _moments(second))


def _moments(time: Time) -> set[tuple[int, ...]]:
    hour, *rest = _padded(time)
    halves = (time.half,) if time.half else ("am", "pm") if hour <= 12 else ("",)
    return {((hour % 12 + 12 * (half == "pm")) if half else hour, *rest) for half in halves}


def _padded(time: Time) -> tuple[int, ...]:
    """Hour, minute and second."""
    return (*time.clock, 0, 0)[:3]


def _ratio(time: Time, scalar: Scalar, judge: Judge) -> bool | None:
    """`9:24` may be a ratio."""
    if time.half or len(time.clock) != 2:
        return False
    return judge.scalars(Scalar(rf"\frac{{{time.clock[0]}}}{{{time.clock[1]}}}"), scalar)


def _time_and_group(time: Time, group: Group, judge: Judge) -> bool | None:
    """`10:20:30` may be one, too."""
    return not time.half and _groups(Group(":", ":", tuple(Scalar(str(part)) for part in time.clock)), group, judge)


def _based(first: Based, second: Based, judge: Judge) -> bool:
    return first.base == second.base and first.digits.lstrip("0") == second.digits.lstrip("0")


def _based_and_scalar(based: Based, scalar: Scalar, judge: Judge) -> bool:
    """A base that is not said is the reference's."""
    return based.digits == scalar.latex.replace(",", "").casefold()


def _equation_and_value(equation: Equation, value: Value, judge: Judge) -> bool | None:
    agree, values = _stated(equation, judge)
    return every([agree, some(equal(one, value, judge) for one in values)])


def _stated(equation: Equation, judge: Judge) -> tuple[bool | None, list[Value]]:
    """Whether a chain agrees with itself, and the spellings of the value that it ends in.

    That is the value of a name, or of sides that are equal whatever their variables. After a name, what has variables
    may stand for a number: `x = 2a = 6`.
    """
    last = equation.sides[-1]
    compared = equation.names[0] is None or not equation.constant[-1]
    triples = zip(equation.sides[:-1], equation.names, equation.constant, strict=False)
    others = [side for side, name, constant in triples if name is None and (constant or compared)]
    return every(_link(side, last, equation.approximate, judge) for side in others), [last, *others]


def _link(side: Value, last: Value, approximate: bool, judge: Judge) -> bool | None:
    if not (isinstance(side, Scalar) and isinstance(last, Scalar)):
        return equal(side, last, judge)
    if last.unit == "percent" != side.unit:
        side = Scalar(rf"100\cdot({side.latex})")
    elif side.unit == "percent" != last.unit:
        last = Scalar(rf"100\cdot({last.latex})")
    return (judge.nearly if approximate else judge.scalars)(side, last)


def _equations(first: Equation, second: Equation, judge: Judge) -> bool | None:
    names = first.names[0], second.names[0]
    if names[0] and names[1] and same_letters(names[0], names[1]):
        agree, values = _stated(second, judge)
        return every([agree, some(_equation_and_value(first, value, judge) for value in values)])
    if all(first.constant) and all(second.constant):
        return some(_in_order(first.sides, sides, judge) for sides in (second.sides, second.sides[::-1]))
    if all(name is None or re.fullmatch(r"\w|[a-z]+|\\.*|[^()]*[-+][^()]*", name) for name in names):
        return len(first.sides) == len(second.sides) == 2 and judge.equations(first, second)
    return False


def _in_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> bool | None:
    if len(first) != len(second):
        return False
    return every(equal(one, other, judge) for one, other in zip(first, second, strict=True))


def _in_any_order(first: Sequence[Value], second: Sequence[Value], judge: Judge) -> bool | None:
    """Whether there is a one-to-one match; equality is taken for transitive."""
    left, unknown = list(second), False
    if len(first) != len(second):
        return False
    for one in first:
        verdicts = [equal(one, other, judge) for other in left]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None in verdicts:
            unknown = True
        else:
            return None if unknown else False
    return None if unknown else True


def _groups(first: Group, second: Group, judge: Judge) -> bool | None:
    """A list in its order is the tuple, in any order the set; a tuple is no set and no closed interval."""
    kinds = {first.opening + first.closing, second.opening + second.closing}
    if all(isinstance(item, Relation) for item in (*first.items, *second.items)) and first.items:
        return some((judge.regions(first, second), _in_any_order(first.items, second.items, judge)))
    if first.names and second.names:
        if set(first.names) != set(second.names):
            return False
        order = [second.names.index(name) for name in first.names]
        return _in_order(first.items, [second.items[i] for i in order], judge)
    first, second = _in_axis_order(first), _in_axis_order(second)
    if kinds == {"::"}:
        return _in_order(_shares(first), _shares(second), judge)
    if kinds <= {"", "{}"}:
        words = [isinstance(item, Word) and len(item.text) > 1 for item in (*first.items, *second.items)]
        return (_in_order if any(words) else _in_any_order)(first.items, second.items, judge)
    if len(kinds) == 1 or kinds == {"", "()"}:
        return _in_order(first.items, second.items, judge)
    return False


def _in_axis_order(group: Group) -> Group:
    """`y=3, x=2` is the point (2, 3)."""
    if not group.names or set(group.names) - {"x", "y", "z"}:
        return group
    named = dict(zip(group.names, group.items, strict=True))
    return Group(group.opening, group.closing, tuple(named[name] for name in sorted(named)))


def _shares(ratio: Group) -> list[Scalar]:
    """Of the first term: 2:4:6 is 1:2:3."""
    terms = [item.latex if isinstance(item, Scalar) else "" for item in ratio.items]
    return [Scalar(rf"\frac{{{term}}}{{{terms[0]}}}") for term in terms]


def _scalar_and_group(scalar: Scalar, group: Group, judge: Judge) -> bool | None:
    """`60,120` is a list where the other is one whose items have units, such as degrees."""
    if "," in scalar.latex and any(isinstance(item, Scalar) and item.unit for item in group.items):
        parts = [Scalar(part) for part in scalar.latex.split(",")]
        return _groups(Group("", "", tuple(parts)), group, judge)
    return False


def _matrices(first: Matrix, second: Matrix, judge: Judge) -> bool | None:
    if len(first.rows) != len(second.rows):
        return False
    return every(_in_order(one, other, judge) for one, other in zip(first.rows, second.rows, strict=True))


def _matrix_and_group(matrix: Matrix, group: Group, judge: Judge) -> bool | None:
    """A tuple is a column or a row."""
    entries = [entry for row in matrix.rows for entry in row]
    line = len(matrix.rows) == 1 or all(len(row) == 1 for row in matrix.rows)
    return line and group.opening + group.closing == "()" and _in_order(entries, group.items, judge)


def _matrix_and_formula(matrix: Matrix, scalar: Scalar, judge: Judge) -> bool | None:
    return r"\begin" in scalar.latex and judge.scalars(Scalar(matrix.latex), scalar)


def _regions(first: Value, second: Value, judge: Judge) -> bool | None:
    """Sets of numbers, or else conditions on several variables that are the same one by one."""
    verdict = judge.regions(first, second)
    if not (isinstance(first, Region) and isinstance(second, Region) and first.operator == second.operator):
        return verdict
    return some((verdict, first.operator != r"\setminus" and _in_any_order(first.parts, second.parts, judge)))


_RULES: dict[tuple[type, type], Callable[..., bool | None]] = {
    (Scalar, Scalar): _scalars,
    (Scalar, Word): _scalar_and_word,
    (Word, Word): lambda first, second, _: _letters(first) == _letters(second),
    (Time, Time): _times,
    (Time, Scalar): _ratio,
    (Time, Group): _time_and_group,
    (Based, Based): _based,
    (Based, Scalar): _based_and_scalar,
    (Equation, Equation): _equations,
    **{(Equation, other): _equation_and_value for other in (Scalar, Word, Time, Based, Group, Matrix, Region)},
    (Group, Group): _groups,
    (Scalar, Group): _scalar_and_group,
    (Matrix, Matrix): _matrices,
    (Matrix, Group): _matrix_and_group,
    (Matrix, Scalar): _matrix_and_formula,
    **{(one, other): _regions for one in (Relation, Region) for other in (Relation, Region, Group)},
}


def same_letters(first: str, second: str) -> bool:
    """Whether two texts differ in case at most, and neither has a letter in both cases."""
    return first.casefold() == second.casefold() and all(
        len(set(text)) == len(set(text.casefold())) for text in (first, second)
    )
