"""How lists are split into items, and when a list is a tuple with names."""

import re
from collections.abc import Iterable
from dataclasses import replace

from mathequal.brackets import split
from mathequal.names import NAME
from mathequal.values import Equation, Group, Scalar, Value

# A comma that does not group digits: `1,000, 2,000`
_COMMA_OUTSIDE_NUMBERS = r",(?!\d{3}(?!\d))|(?<!\d),|(?<=\d{4}),"


def split_at_commas(formula: str) -> list[str]:
    """Return the items of a list. In `1,000, 2,000` only commas with a space separate."""
    has_spaces = re.search(r",\s", formula)
    has_grouped_digits = re.search(r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)", formula)
    return split(formula, _COMMA_OUTSIDE_NUMBERS if has_spaces and has_grouped_digits else ",")[0]


def elements(value: Value) -> tuple[Value, ...]:
    """Return the items of a list, such as a plus-minus sign makes; else the value itself."""
    if isinstance(value, Group) and value.opening == "" and not value.names:
        return value.items
    return (value,)


def flattened(items: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(element for item in items for element in elements(item))


def list_or_named_tuples(items: tuple[Value, ...]) -> Group:
    """Return a list; or tuples with names, where a new tuple begins at every repetition of the first name."""
    items = flattened(_with_each_value(item) for item in items)
    names: list[str] = []
    values: list[Value] = []
    for item in items:
        if isinstance(item, Equation) and len(item.sides) == 2:
            values.append(item.sides[1])
            if item.names[0]:
                names.append(item.names[0])
    # x=1, y=2, x=3, y=4 has a width of 2
    width = names.index(names[0], 1) if names and names[0] in names[1:] else len(names)
    if len(names) < len(items) or width < 2 or len(set(names)) != width:
        return Group("", "", items)
    if names != names[:width] * (len(names) // width):
        return Group("", "", items)
    tuples = []
    for start in range(0, len(values), width):
        tuples.append(Group("(", ")", tuple(values[start : start + width]), tuple(names[:width])))
    return tuples[0] if len(tuples) == 1 else Group("", "", tuple(tuples))


def _with_each_value(item: Value) -> Value:
    """Return the list x = 1, x = -1 for x = ±1."""
    if not (isinstance(item, Equation) and isinstance(item.sides[-1], Group)) or item.sides[-1].opening:
        return item
    return Group("", "", tuple(replace(item, sides=(*item.sides[:-1], value)) for value in item.sides[-1].items))


def named_tuple(left: Value, right: Value) -> Group | None:
    """Return the tuple of `(x, y) = (1, 2)`."""
    if not (isinstance(left, Group) and isinstance(right, Group) and left.opening == right.opening == "("):
        return None
    names = tuple(item.latex for item in left.items if isinstance(item, Scalar) and NAME.fullmatch(item.latex))
    return Group("(", ")", right.items, names) if len(names) == len(left.items) == len(right.items) else None
