"""Lists, tuples with names, and permutations, made of values that have been read."""

import re
from collections.abc import Callable, Iterable
from itertools import product

from mathequal.values import Equation, Group, Value

MAX_PERMUTED = 5
"""Items of a tuple whose permutations are listed."""
PERMUTATIONS = re.compile(
    r"(?:and |or )?(?:all |any )?(?:of )?(?:its |their |the |these )?(cyclic )?permutations?"
    r"(?: thereof| of (?:it|them|these))?"
)


def flattened(items: Iterable[Value]) -> tuple[Value, ...]:
    """Return items with those of every list, such as a plus-minus sign makes, in its place."""
    values: list[Value] = []
    for item in items:
        is_list = isinstance(item, Group) and item.opening == "" and not item.names
        values += item.items if is_list else [item]
    return tuple(values)


def function_name(name: str) -> str:
    """Return `f` for `f(x)`."""
    return re.sub(r"(?<=[a-zA-Z])\([a-z]\)$", "", name)


def list_or_named_tuples(items: tuple[Value, ...]) -> Group:
    """Return a list; or tuples with names, where a new tuple begins at every repetition of the first name."""
    choices = [flattened([item]) for item in items]
    if len(items) > 1 and max(map(len, choices)) > 1:  # x=0, y=\pm 2
        tuples = [list_or_named_tuples(chosen) for chosen in product(*choices)]
        if all(group.names for group in tuples):
            return Group("", "", tuple(tuples))
    items = flattened(items)
    pairs = [item for item in items if isinstance(item, Equation) and len(item.sides) == 2 and item.names[0]]
    names = [function_name(pair.names[0] or "") for pair in pairs]
    values = [pair.sides[1] for pair in pairs]
    # x=1, y=2, x=3, y=4 has a width of 2
    width = names.index(names[0], 1) if names and names[0] in names[1:] else len(names)
    is_repeated = width and names == names[:width] * (len(names) // width)
    if len(names) < len(items) or width < 2 or len(set(names)) != width or not is_repeated:
        return Group("", "", items)
    tuples = []
    for start in range(0, len(values), width):
        tuples.append(Group("(", ")", tuple(values[start : start + width]), tuple(names[:width])))
    return tuples[0] if len(tuples) == 1 else Group("", "", tuple(tuples))


def shifts(items: tuple[Value, ...]) -> Iterable[tuple[Value, ...]]:
    return (items[k:] + items[:k] for k in range(len(items)))


def all_orders(items: tuple[Value, ...], orders: Callable[..., Iterable[tuple[Value, ...]]]) -> Group:
    """Return a list of the different tuples that `orders` makes of items."""
    return Group("", "", tuple(dict.fromkeys(Group("(", ")", order) for order in orders(items))))
