r"""How a text in one spelling is read as a typed value: the first reader that knows its form decides."""

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import product

from mathequal.brackets import DEPTH, OPENING, split
from mathequal.names import COMBINATION, LETTER, NAME, TRIGONOMETRY, is_constant
from mathequal.spelling import AND, NUMBER_WORDS, OR, WORD, Spelled, spelled
from mathequal.units import MULTIPLES, unit
from mathequal.values import REALS, Based, Equation, Group, Matrix, Region, Relation, Scalar, Time, Value, Word

_CLOSERS = {"(": ")]", "[": ")]", r"\{": (r"\}",), "{": "}", r"\langle": (r"\rangle",)}
_RELATION = r"=|\\approx(?![a-zA-Z])|\\(?:le|ge|ne|in)(?![a-zA-Z])|<|>"
_PREFACES = ("about", "approximately", "roughly", "around", "answer")
_SIGNS = re.compile(r"\\(?:pm|mp)(?![a-zA-Z])")
_GROUPED = re.compile(r"(?<![\d.,_])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)
MAX_DEPTH = 30
"""Of brackets; what is nested deeper is no answer that needs a type."""
MAX_SIGNS = 6
"""Plus-minus signs: each doubles the values."""


@lru_cache(maxsize=4096)
def read(text: str) -> Value:
    r"""The typed value of an answer.

    >>> read(r"\frac12\text{ cm}"), read(r"(1,2]").opening, read("Even")
    (Scalar(latex='\\frac{1}{2}'), '(', Word(text='even'))
    """
    found, depth = spelled(text), 0
    for bracket in DEPTH.finditer(found.formula):
        depth += 1 if bracket[0] in OPENING else -1
        if depth > MAX_DEPTH:
            return Scalar(found.text())
    return Scalar(found.text()) if len(_SIGNS.findall(found.formula)) > MAX_SIGNS else _value(found)


def _value(text: Spelled) -> Value:
    for reader in (_words, _time, _conditions, _list, _relation, _region, _group, _matrix, _based, _plus_minus):
        value = reader(text)
        if value is not None:
            return value
    return _scalar(text)


def _words(text: Spelled) -> Value | None:
    """An answer of words alone, or a list of them."""
    if not re.fullmatch(rf"{WORD}[{WORD[1:-1]}\s\d]*", text.formula) or text.word(text.formula[0]) in _PREFACES:
        return None
    parts = [_bare(part) for part in re.split(r",(?:\s*and\b)?|;|\band\b", text.text())]
    if len(parts) > 1 and all(parts):
        return Group("", "", tuple(map(Word, parts)))
    phrase = _bare(text.text())
    if phrase in ("all real numbers", "all reals", "real numbers"):
        return REALS
    if phrase == "empty set":
        return Group("{", "}", ())
    number = _number_in_words(phrase)
    return Word(phrase) if number is None else Scalar(str(number))


def _bare(phrase: str) -> str:
    """Without an article, or what is said of the letter of a choice."""
    phrase = re.sub(r"^(?:(?:an?|the) (?=\w\w)|(?:option|choice|answer) )", "", phrase.strip())
    return re.sub(r"^\(([a-z0-9])\)$", r"\1", phrase)


def _number_in_words(phrase: str) -> int | None:
    """That of `twenty-four`, `minus two` or `three hundred`."""
    match = re.fullmatch(rf"(minus |negative )?(.*?)(?: ({'|'.join(MULTIPLES)}))?", phrase.replace("-", " "))
    if not match or match[2] not in NUMBER_WORDS:
        return None
    return (-1 if match[1] else 1) * NUMBER_WORDS.index(match[2]) * 10 ** MULTIPLES.get(match[3], 0)


def _time(text: Spelled) -> Value | None:
    match = re.fullmatch(rf"(\d{{1,2}})\s*(?::\s*(\d\d))?\s*(?::\s*(\d\d))?\s*({WORD}?)", text.formula, re.ASCII)
    half = match and match[4] and text.word(match[4]).replace(".", "").replace(" ", "")
    if match and int(match[1]) <= 24 and (half in ("am", "pm") or (match[2] and not half and int(match[2]) < 60)):
        return Time(tuple(int(part) for part in match.groups()[:3] if part), half or "")
    parts, colons = split(text.formula, ":")
    if not colons or not all(parts) or re.search(rf"{_RELATION}|,|{WORD}", text.formula):
        return None
    if len(parts) == 2:
        return Scalar(rf"\frac{{{parts[0]}}}{{{parts[1]}}}")
    return Group(":", ":", tuple(_value(text.part(part)) for part in parts))


def _conditions(text: Spelled) -> Value | None:
    """Relations joined by `and` or `or`; equations alone are a list."""
    parts, joined = split(text.formula, r"\\lor(?![a-zA-Z])|\\land(?![a-zA-Z])")
    said = [split(part, _RELATION)[1] for part in parts]
    if len(set(joined)) != 1 or not all(said) or all({"=", r"\approx"}.issuperset(operators) for operators in said):
        return None
    operator = r"\cup" if joined[0] == OR.strip() else r"\cap"
    return Region(operator, tuple(_value(text.part(part)) for part in parts))


def _list(text: Spelled) -> Value | None:
    """Items without brackets; `p=5, q=2` is a tuple whose items have names."""
    grouping = sum(match[0].count(",") for match in _GROUPED.finditer(text.formula))
    if text.formula.count(",") == grouping and not re.search(r";|\\l(?:and|or)(?![a-zA-Z])", text.formula):
        return None
    joints = rf";|{re.escape(AND.strip())}(?![a-zA-Z])|{re.escape(OR.strip())}(?![a-zA-Z])"
    groups = [part for part in split(text.formula, joints)[0] if part]
    inner = [_commas(group) for group in groups]
    if len(groups) > 1 and all(len(items) > 1 for items in inner):
        return Group("", "", tuple(_value(text.part(group)) for group in groups))
    items = [item for items in inner for item in items if item]
    if len(groups) == 1 and len(inner[0]) == 1:
        return None
    if len(items) == 1:
        return _value(text.part(items[0]))
    return _named(_spread(tuple(_value(text.part(item)) for item in items))) if items else Scalar("")


def _commas(formula: str) -> list[str]:
    """The items of a list; in `1,000, 2,000` only commas with a space separate."""
    loose = re.search(r",\s", formula) and re.search(r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)", formula)
    return split(formula, r",(?!\d{3}(?!\d))|(?<!\d),|(?<=\d{4})," if loose else ",")[0]


def _elements(value: Value) -> tuple[Value, ...]:
    """Those of a list, such as a plus-minus sign makes; of anything else itself."""
    return value.items if isinstance(value, Group) and value.opening == "" and not value.names else (value,)


def _spread(items: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(part for item in items for part in _elements(item))


def _named(items: tuple[Value, ...]) -> Group:
    """A list, or tuples of values with names: one begins where the first name comes again."""
    said = [(item.names[0], item.sides[1]) for item in items if isinstance(item, Equation) and len(item.sides) == 2]
    names = [name for name, _ in said if name]
    width = names.index(names[0], 1) if names[1:].count(names[0] if names else "") else len(names)
    if (
        len(names) < len(items)
        or width < 2
        or len(set(names)) != width
        or names != names[:width] * (len(names) // width)
    ):
        return Group("", "", items)
    values = tuple(value for _, value in said)
    rows = [Group("(", ")", values[i : i + width], tuple(names[:width])) for i in range(0, len(values), width)]
    return rows[0] if len(rows) == 1 else Group("", "", tuple(rows))


def _relation(text: Spelled) -> Value | None:
    sides, operators = split(text.formula, _RELATION)
    if operators and not sides[0] and operators[0] in ("=", r"\approx"):
        sides, operators = sides[1:], operators[1:]
        if not operators:
            return _value(text.part(sides[0]))
    if not operators or not all(sides):
        return None if not operators else Word(text.text())
    if operators == [r"\in"]:
        return _value(text.part(sides[1])) if NAME.fullmatch(sides[0]) else Word(text.text())
    values = tuple(_value(text.part(side)) for side in sides)
    if set(operators) <= {"=", r"\approx"}:
        constant = tuple(is_constant(side) for side in sides)
        kinds = (NAME, COMBINATION) if constant[0] or constant[-1] else (NAME,)
        is_name = [any(kind.fullmatch(side) for kind in kinds) for side in sides]
        names = tuple(re.sub(r"\s", "", text.part(side).text()) if is_name[i] else None for i, side in enumerate(sides))
        if len(values) == 2 and (pair := _named_tuple(*values)):  # (x, y) = (1, 2)
            return pair
        if names[-1] and not names[0]:  # 5 = x
            values, names, constant = values[::-1], names[::-1], constant[::-1]
        return Equation(values, names, constant, r"\approx" in operators)
    formulas = tuple(value for value in values if isinstance(value, Scalar))
    is_chain = len(formulas) == len(values) and not {r"\in", r"\approx"}.intersection(operators)
    return Relation(formulas, tuple(operators)) if is_chain else Word(text.text())


def _named_tuple(left: Value, right: Value) -> Group | None:
    if not (isinstance(left, Group) and isinstance(right, Group) and left.opening == right.opening == "("):
        return None
    names = tuple(item.latex for item in left.items if isinstance(item, Scalar) and re.fullmatch(LETTER, item.latex))
    return Group("(", ")", right.items, names) if len(names) == len(left.items) == len(right.items) else None


def _region(text: Spelled) -> Value | None:
    formula = re.sub(r"(\\reals\s*)-(\s*\\\{)", r"\1\\setminus \2", text.formula)
    for operator, pattern in ((r"\cup", r"\\cup"), (r"\cap", r"\\cap"), (r"\setminus", r"\\setminus|\\backslash")):
        parts, found = split(formula, rf"(?:{pattern})(?![a-zA-Z])")
        if found and all(parts):
            return Region(operator, tuple(_value(text.part(part)) for part in parts))
    if formula == r"\reals":
        return REALS
    return Group("{", "}", ()) if formula == r"\emptyset" else None


def _group(text: Spelled) -> Value | None:
    match = re.match(r"\\\{|\\langle(?![a-zA-Z])|[({[]", text.formula)
    if not match:
        return None
    opening, depth = match[0], 0
    for bracket in DEPTH.finditer(text.formula):
        depth += 1 if bracket[0] in OPENING else -1
        if depth == 0:
            break
    if depth or bracket.end() < len(text.formula) or bracket[0] not in _CLOSERS[opening]:
        return None
    inside = text.formula[match.end() : bracket.start()].strip()
    opening = {r"\{": "{", r"\langle": "("}.get(opening, opening)
    closing = {r"\}": "}", r"\rangle": ")"}.get(bracket[0], bracket[0])
    said = re.fullmatch(rf"{LETTER}\s*(?:\\in\s*\\reals)?\s*[:|](.+)", inside) if match[0] == r"\{" else None
    if said and split(said[1], _RELATION)[1]:  # {x : x > 1}
        return _value(text.part(said[1]))
    if not inside:
        return Group(opening, closing, ())
    parts = split(inside, ",|;")[0]
    if len(parts) == 1:
        item = _element(text.part(inside))
        if match[0] == r"\{" and isinstance(item, Group) and item.opening == "{":
            return Group("{", "}", (item,))
        return Word(text.text()) if opening + closing in ("[)", "(]") else item
    items = tuple(_element(text.part(part)) for part in parts)
    if opening == "{":
        return Group("{", "}", _spread(items))
    groups = tuple(Group(opening, closing, chosen) for chosen in product(*map(_elements, items)))
    return groups[0] if len(groups) == 1 else Group("", "", groups)


def _element(text: Spelled) -> Value:
    """A set is its one member by itself, but not inside of other brackets."""
    value = _value(text)
    in_set = re.match(r"[{\s]*\\\{", text.formula) and not (isinstance(value, Group) and value.opening == "{")
    return Group("{", "}", (value,)) if in_set else value


def _matrix(text: Spelled) -> Value | None:
    match = re.fullmatch(r"\\begin\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", text.formula)
    if not match or r"\begin" in match[2]:
        return None
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", match[2]) if row.strip()]
    return Matrix(tuple(tuple(_value(text.part(entry)) for entry in row.split("&")) for row in rows), text.formula)


_DIGITS = rf"(-?[0-9][0-9a-zA-Z]*|[A-F]+[0-9][0-9A-F]*|\(-?[0-9][0-9a-zA-Z]*\)|{WORD})"
_BASES = (
    re.compile(rf"{_DIGITS}\s*_(?:(\w|{WORD})|\{{\s*\(?\s*(\w+|{WORD}\s*\d*)\s*\)?\s*\}})"),
    re.compile(rf"{_DIGITS}\s*({WORD}\s*\d*)()"),
)


def _based(text: Spelled) -> Value | None:
    index, said = (pattern.fullmatch(text.formula) for pattern in _BASES)
    if not (match := index or said):
        return None
    named = re.fullmatch(r"(\(?(?:in )?base )?(\w+)\)?", text.part(match[2] or match[3]).text())
    if not named or (said and not named[1]):
        return None
    base = str(NUMBER_WORDS.index(named[2])) if named[2] in NUMBER_WORDS else named[2]
    digits = text.part(match[1]).text().strip("()").casefold()
    try:
        int(digits, int(base))
    except ValueError:  # no digits of that base
        return None
    return Based(digits, int(base))


def _plus_minus(text: Spelled) -> Value | None:
    """Every value of a formula with plus-minus signs; with a minus-plus sign all signs change together."""
    signs = _SIGNS.findall(text.formula)
    if not signs:
        return None
    up = tuple("+" if sign == r"\pm" else "-" for sign in signs)
    down = tuple("-" if sign == "+" else "+" for sign in up)
    choices = [up, down] if r"\mp" in signs else list(product("+-", repeat=len(signs)))
    pieces = _SIGNS.split(text.formula)
    formulas = ["".join(a + b for a, b in zip(pieces, (*chosen, ""), strict=True)) for chosen in choices]
    return Group("", "", tuple(_value(text.part(formula.lstrip("+ "))) for formula in formulas))


def _scalar(text: Spelled) -> Value:
    formula = text.formula
    named: str | None = ""
    if (first := re.match(WORD, formula)) and text.word(first[0]) in _PREFACES:
        formula = formula[1:].strip()
    formula = re.sub(rf"\\frac\{{({WORD})\}}\{{({WORD})\}}$", r"\1/\2", formula)  # metres over seconds
    power = r"(?:\^\{?(\d)\}?)?"
    ending = re.fullmatch(rf"(.*?)\s*((?:{WORD}\s*)+){power}(?:\s*/\s*({WORD}){power})?", formula)
    if ending and re.search(r"\d|\\pi", ending[1]):
        phrase = text.part(ending[2] + (f"/{ending[4]}" if ending[4] else "")).text()
        named = unit(phrase, ending[3] or ending[5] or "")
        if phrase in MULTIPLES:
            formula, named = rf"{ending[1]}\cdot 10^{{{MULTIPLES[phrase]}}}", ""
        elif named is not None:
            formula = ending[1]
    if re.search(WORD, formula):
        return Word(text.text())
    if formula.endswith(r"\percent"):
        formula, named = formula.removesuffix(r"\percent").strip(), "percent"
    if formula.endswith(r"\degree") and not TRIGONOMETRY.search(formula):
        formula, named = formula.removesuffix(r"\degree").strip(), "degree"
    return Scalar(formula, named or "")
