"""Say why two answers are different."""

from mathequal import MAX_LENGTH, equal
from mathequal.formula import Undefined, names, parse, value
from mathequal.read import read
from mathequal.values import Group, Scalar, Value

_KINDS = {"Word": "the word", "Time": "a time of day", "Equation": "an equation"}
_KINDS |= {"Relation": "a condition", "Matrix": "a matrix", "Region": "a set of numbers"}
_GROUPS = {"": "a list", "()": "a tuple", "{}": "a set", "::": "a ratio", "casecase": "a value with its condition"}


def reason(reference: str, answer: str) -> str:
    """Return "equal", or how both are read, which shows why they are different."""
    if equal(reference, answer):
        return "equal"
    if not (reference.strip() and answer.strip()):
        return "different: an empty answer equals nothing"
    if max(len(reference), len(answer)) > MAX_LENGTH:
        return f"different: not letter by letter the same, and one has more than {MAX_LENGTH} characters"
    return f"different: the reference is {_described(read(reference))}, the answer is {_described(read(answer))}"


def _described(answer: Value) -> str:
    if isinstance(answer, Group):
        kind = _GROUPS.get(answer.opening + answer.closing, "an interval")
        return f"{kind} ({'; '.join(map(_described, answer.items))})"
    if not isinstance(answer, Scalar):
        return f"{_KINDS[type(answer).__name__]} {getattr(answer, 'text', '')}".strip()
    try:
        formula = parse(answer)
        number = None if names(formula) else value(formula, {})
    except Undefined:
        return f"{answer.latex}, which is no formula with a value"
    text = str(formula) if number is None else f"{complex(number):.8g}".removesuffix("+0j")
    return f"{text} {answer.unit}".strip()
