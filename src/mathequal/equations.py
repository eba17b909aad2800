"""Rules for equations and for conditions on variables. docs/grader.md explains them."""

import re

from mathequal.judge import Judge, Verdict, equal, every, in_any_order, in_order, rule_for, some
from mathequal.names import LETTER
from mathequal.values import Based, Equation, Group, Matrix, Region, Relation, Scalar, Time, Value, Word


@rule_for(Equation, Scalar, Word, Time, Based, Group, Matrix, Region)
def _equation_and_value(equation: Equation, value: Value, judge: Judge) -> Verdict:
    last = equation.sides[-1]
    ends_in_letter = isinstance(last, Scalar) and re.fullmatch(LETTER, last.latex)
    is_choice = isinstance(value, Word) or (isinstance(value, Scalar) and value.latex.isupper())
    if ends_in_letter and (is_choice or re.fullmatch("[a-e]", equation.names[0] or "")):
        return False  # a = b is not choice B
    *names, name = equation.names
    if isinstance(value, Group) and value.names == tuple(names) and name is None:  # a = b = 5 and a = 5, b = 5
        return every(equal(last, item, judge) for item in value.items)
    return _states_value(equation, value, judge)


def _states_value(equation: Equation, value: Value, judge: Judge) -> Verdict:
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
    if not (approximate and isinstance(side, Scalar) and isinstance(last, Scalar)):
        return equal(side, last, judge)
    if side.unit != last.unit and "percent" in (side.unit, last.unit):  # 1/3 \approx 33\%
        side, last = (each if each.unit == "percent" else Scalar(rf"100\cdot({each.latex})") for each in (side, last))
    return judge.rounded(side, last)


# f(2), which is no product
_VALUE_OF_FUNCTION = re.compile(r"[^()]*\((?:[\w.,/]|\\[a-zA-Z]+)*\)")


@rule_for(Equation, Equation)
def _equations(first: Equation, second: Equation, judge: Judge) -> Verdict:
    first_name, second_name = first.names[0], second.names[0]
    if first_name and second_name and (first_name == second_name or same_letters(first_name, second_name)):
        consistent, spellings = _stated_value(second, judge)
        return every([consistent, some(_states_value(first, spelling, judge) for spelling in spellings)])
    first_call, second_call = (_CALL.fullmatch(name or "") for name in (first_name, second_name))
    if first_call and second_call and first_call[1] == second_call[1] and first_call[2] != second_call[2]:
        # f(x) = 2x and f(y) = 2y
        return _equations(first, _with_variable(second, second_call[2], first_call[2]), judge)
    for call, name in ((first_call, second_name), (second_call, first_name)):
        is_same = call and (name == call[1] or (name == "y" and call[2] == "x"))
        if is_same and len(first.sides) == len(second.sides) == 2:  # f(x) = 2x, f = 2x and y = 2x
            return equal(first.sides[1], second.sides[1], judge)
    if any(_VALUE_OF_FUNCTION.fullmatch(name or "") for name in (first_name, second_name)):
        return False
    same_sides = some(in_order(first.sides, sides, judge) for sides in (second.sides, second.sides[::-1]))
    is_curve = len(first.sides) == len(second.sides) == 2 and not (all(first.constant) and all(second.constant))
    return some((same_sides, is_curve and judge.same_solutions(first, second)))


_CALL = re.compile(r"([a-zA-Z]'*(?:_\w)?)\(([a-z])\)")


def _with_variable(equation: Equation, old: str, new: str) -> Equation:
    """Return an equation with another variable, `f(y)=2y` for `f(x)=2x`; the variables exchanged if it has both."""

    def replaced(text: str) -> str:
        other = {old: new, new: old}
        return re.sub(r"\\[a-zA-Z]+|[a-zA-Z]", lambda match: other.get(match[0], match[0]), text)

    sides = tuple(Scalar(replaced(side.latex)) if isinstance(side, Scalar) else side for side in equation.sides)
    return Equation(sides, (replaced(equation.names[0] or ""), *equation.names[1:]), equation.constant, False)


@rule_for(Relation, Relation, Region, Group)
@rule_for(Region, Relation, Region, Group)
def _sets(first: Value, second: Value, judge: Judge) -> Verdict:
    """Sets of numbers; or else conditions on several variables that are the same one by one."""
    same_set = judge.same_set(first, second)
    first_conditions, second_conditions = _conditions(first), _conditions(second)
    if len(first_conditions) > 1 and len(second_conditions) > 1:  # a<b<c and b<c, a<b
        return some((same_set, in_any_order(first_conditions, second_conditions, judge)))
    if isinstance(first, Relation) and isinstance(second, Group):  # a<b<c and the order a, b, c
        is_order = all(re.fullmatch(LETTER, side.latex) for side in first.sides) and len(set(first.operators)) == 1
        return some((same_set, is_order and second.opening == "" and in_order(first.sides, second.items, judge)))
    if not (isinstance(first, Region) and isinstance(second, Region) and first.operator == second.operator):
        return same_set
    same_parts = first.operator != r"\setminus" and in_any_order(first.parts, second.parts, judge)
    return some((same_set, same_parts))


def _conditions(value: Value) -> list[Relation]:
    """Return the conditions with one sign each that hold together; none if `value` is anything else."""
    if isinstance(value, Relation):
        sides = zip(value.sides, value.operators, value.sides[1:], strict=False)
        return [Relation((left, right), (operator,)) for left, operator, right in sides]
    parts = value.items if isinstance(value, Group) and value.opening == "" else ()
    parts = value.parts if isinstance(value, Region) and value.operator == r"\cap" else parts
    conditions = [_conditions(part) for part in parts]
    return [condition for part in conditions for condition in part] if all(conditions) else []


def same_letters(first: str, second: str) -> bool:
    """Whether two texts differ in case at most, and neither has a letter in both cases."""
    if first.casefold() != second.casefold():
        return False
    return all(len(set(text)) == len(set(text.casefold())) for text in (first, second))
