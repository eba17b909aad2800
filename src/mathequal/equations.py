"""Rules for equations and for conditions on variables. docs/grader.md explains them."""

import re
from dataclasses import replace
from itertools import product

from mathequal.names import LETTER
from mathequal.rules import Judge, equal, in_any_order, in_order, rule_for
from mathequal.values import Based, Equation, Group, Matrix, Region, Relation, Scalar, Time, Value, Word


@rule_for(Equation, Scalar, Word, Time, Based, Group, Matrix, Region, Relation)
def _equation_and_value(equation: Equation, value: Value, judge: Judge) -> bool:
    last = equation.sides[-1]
    ends_in_letter = isinstance(last, Scalar) and re.fullmatch(LETTER, last.latex)
    is_choice = isinstance(value, Word) or (isinstance(value, Scalar) and value.latex.isupper())
    if ends_in_letter and (is_choice or re.fullmatch("[a-e]", equation.names[0] or "")):
        return False  # a = b is not choice B
    *names, name = equation.names
    if isinstance(value, Group) and all(names) and name is None and len(names) == len(value.items) > 1:
        is_plain = not value.opening and all(isinstance(item, Scalar) for item in value.items)
        if value.names == tuple(names) or is_plain:  # a = b = 5 is a = 5, b = 5 and 5, 5
            return all(equal(last, item, judge) for item in value.items)
    return any(equal(spelling, value, judge) for spelling in _stated_values(equation, judge))


def _stated_values(equation: Equation, judge: Judge) -> list[Value]:
    """Return the spellings of the value that a chain ends in; none if they are not equal.

    `5 \\times 24 = 120` has two, `x = 5` has one: a side that is a name is none. After a name, a side with variables
    may stand for a number and is left out: `x = 2a = 6`.
    """
    last = equation.sides[-1]
    sides_with_variables_count = equation.names[0] is None or not equation.constant[-1]
    spellings = [last]
    for side, name, constant in zip(equation.sides[:-1], equation.names, equation.constant, strict=False):
        if name is None and (constant or sides_with_variables_count):
            spellings.append(side)
    are_equal = all(_same_side(side, last, equation.approximate, judge) for side in spellings[1:])
    return spellings if are_equal else []


def _same_side(side: Value, last: Value, approximate: bool, judge: Judge) -> bool:
    if not (approximate and isinstance(side, Scalar) and isinstance(last, Scalar)):
        return equal(side, last, judge)
    if side.unit != last.unit and "percent" in (side.unit, last.unit):  # 1/3 \approx 33\%
        side, last = (each if each.unit == "percent" else Scalar(rf"100\cdot({each.latex})") for each in (side, last))
    return judge.rounded(side, last)


_CALL = re.compile(r"([a-zA-Z]'*(?:_\w)?(?:\^\{-1\})?)\(([a-z])\)")


@rule_for(Equation, Equation)
def _equations(first: Equation, second: Equation, judge: Judge) -> bool:
    names = first.names[0] or "", second.names[0] or ""
    if names[0] == names[1] != "":
        values = product(_stated_values(first, judge), _stated_values(second, judge))
        return any(equal(one, other, judge) for one, other in values)
    first_call, second_call = map(_CALL.fullmatch, names)
    if first_call and second_call and first_call[1] == second_call[1]:  # f(x) = 2x and f(y) = 2y
        return _equations(first, _with_variable(second, second_call[2], first_call[2]), judge)
    for call, name in ((first_call, names[1]), (second_call, names[0])):
        is_same = call and (name == call[1] or (name == "y" and call[2] == "x"))
        if is_same and len(first.sides) == len(second.sides) == 2:  # f(x) = 2x, f = 2x and y = 2x
            return equal(first.sides[1], second.sides[1], judge)
    if any(in_order(first.sides, sides, judge) for sides in (second.sides, second.sides[::-1])):
        return True
    is_curve = len(first.sides) == len(second.sides) == 2 and not (all(first.constant) and all(second.constant))
    return is_curve and judge.same_solutions(first, second)


def _with_variable(equation: Equation, old: str, new: str) -> Equation:
    """Return an equation with another variable, `f(y)=2y` for `f(x)=2x`; the variables exchanged if it has both."""
    other = {old: new, new: old}

    def replaced(text: str) -> str:
        return re.sub(r"\\[a-zA-Z]+|[a-zA-Z]", lambda match: other.get(match[0], match[0]), text)

    def renamed(value: Value) -> Value:
        if isinstance(value, Scalar):
            return Scalar(replaced(value.latex))
        if isinstance(value, Relation):
            return Relation(tuple(Scalar(replaced(side.latex)) for side in value.sides), value.operators)
        return replace(value, items=tuple(map(renamed, value.items))) if isinstance(value, Group) else value

    return Equation(
        tuple(map(renamed, equation.sides)),
        (replaced(equation.names[0] or ""), *equation.names[1:]),
        equation.constant,
        False,
    )


@rule_for(Relation, Relation, Region, Group)
@rule_for(Region, Relation, Region, Group)
def _sets(first: Value, second: Value, judge: Judge) -> bool:
    """Sets of numbers; or else conditions on several variables that are the same one by one."""
    if judge.same_set(first, second):
        return True
    first_conditions, second_conditions = _conditions(first), _conditions(second)
    if len(first_conditions) > 1 and len(second_conditions) > 1:  # a<b<c and b<c, a<b
        return in_any_order(first_conditions, second_conditions, judge)
    if isinstance(first, Relation) and isinstance(second, Group):  # a<b<c and the order a, b, c
        is_order = all(re.fullmatch(LETTER, side.latex) for side in first.sides) and len(set(first.operators)) == 1
        return is_order and second.opening == "" and in_order(first.sides, second.items, judge)
    if not (isinstance(first, Region) and isinstance(second, Region) and first.operator == second.operator):
        return False
    return first.operator != r"\setminus" and in_any_order(first.parts, second.parts, judge)


def _conditions(value: Value) -> list[Relation]:
    """Return the conditions with one sign each that hold together; none if `value` is anything else."""
    if isinstance(value, Relation):
        sides = zip(value.sides, value.operators, value.sides[1:], strict=False)
        return [Relation((left, right), (operator,)) for left, operator, right in sides]
    parts = value.items if isinstance(value, Group) and value.opening == "" else ()
    parts = value.parts if isinstance(value, Region) and value.operator == r"\cap" else parts
    conditions = [_conditions(part) for part in parts]
    return [condition for part in conditions for condition in part] if all(conditions) else []
