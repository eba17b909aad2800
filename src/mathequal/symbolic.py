"""Formulas parsed and compared: imported by worker processes alone, for it takes most of a second.

latex2sympy, the parser of math-verify, reads them; numeric.py evaluates them. Anything here can hang, run out of memory
or raise. math-verify's own time limits are off, since they need signals in a main thread and score 0 in silence
elsewhere.
"""

import logging
import re
from functools import lru_cache

import mpmath
import sympy
from latex2sympy2_extended import NormalizationConfig
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from math_verify import LatexExtractionConfig, parse, verify
from mpmath import mp
from sympy.core.function import AppliedUndef

from mathequal.names import TRIGONOMETRY, is_constant
from mathequal.numbers import is_rounded, places
from mathequal.numeric import DIGITS, MORE_DIGITS, Undefined, lowered, same_values, same_zeros, value
from mathequal.reading import read
from mathequal.regions import same_region
from mathequal.rules import Judge, equal
from mathequal.values import Equation, Relation, Scalar, Value

# It warns on every call that its own time limits are off, which is the intention.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def slow_verdict(reference: str, answer: str) -> bool:
    """Whether the two are equal, whichever of them is the reference. Symmetric."""
    return equal(read(reference), read(answer), SLOW) is True


class _Parser(_Latex2Sympy):
    """Reads a formula with numbers side by side as a product, not as a sum."""

    def convert_postfix_list(self, arr: list, i: int = 0) -> sympy.Expr:
        parts = [self.convert_postfix(part) for part in arr[i:]]
        if not all(isinstance(part, sympy.Expr) and not part.is_Matrix for part in parts):
            return super().convert_postfix_list(arr, i)
        return sympy.Mul(*parts, evaluate=False) if len(parts) > 1 else parts[0]


_NUMBER = r"(?:\d+(?:\.\d+)?|\.\d+|\\frac\{[^{}]*\}\{[^{}]*\}|\\?[a-zA-Z]+|\([^()]*\))"
_READABLE = [
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(?<=\d),(?=\d{3})", ""),
        (r"(?<![\d.^_])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", None),  # mixed numbers
        (r"(?<![\d.^_{/])(\d+)\s+(\d+)\s*/\s*(\d+)", None),
        (r"(?<![\d.^_/])(\d+)\s*/\s*(\d+)(?!\s*[\d.!^])", r"\\frac{\1}{\2}"),  # 5/6\pi
        (rf"({_NUMBER})\s*\\degree", r"(\1\\cdot\\frac{\\pi}{180})"),
        (r"\\(?:lg)(?![a-zA-Z])", r"\\log"),
        (r"(?<![a-zA-Z\\])([a-zA-Z])(?:'+|\^\{?\\prime\}?)", r"\1_{prime}"),
        (r"\\percent", r"\\cdot\\frac{1}{100}"),
        (r"(?<!sqrt)\[", "("),
        (r"\](?!\{)", ")"),
    )
]


def _mixed(match: re.Match) -> str:
    whole, top, bottom = match.groups()
    joined = "+" if 0 < int(top) < int(bottom) else r"\cdot "
    return rf"({whole}{joined}\frac{{{top}}}{{{bottom}}})"


_OPERATIONS = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative, sympy.MatrixExpr)


@lru_cache(maxsize=512)
def _expression(latex: str) -> sympy.Basic:
    """What sympy knows of a formula. Raises Undefined where it is none."""
    if not TRIGONOMETRY.search(latex):
        latex = latex.replace(r"\degree", "")  # elsewhere a degree sign is a unit
    if re.search(r"!!|[\d})]\s*'|(?<![\^\d])\d+\s*_", latex):
        raise Undefined("a double factorial, minutes of arc, or a number with an index: all are read over")
    for pattern, spelling in _READABLE:
        latex = pattern.sub(_mixed if spelling is None else spelling, latex)
    latex, calls = _without_calls(latex)
    try:
        config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
        parsed = _Parser(is_real=True, convert_degrees=False, config=config).parse(latex)
        if isinstance(parsed, sympy.Expr | sympy.MatrixExpr) and parsed.has(*_OPERATIONS):
            parsed = parsed.doit()
    except MemoryError:
        raise
    except Exception as error:  # of many kinds, where a text is no formula or, as a matrix (1 2)^2, has no value
        raise Undefined(latex) from error
    if isinstance(parsed, sympy.MatrixBase):
        return sympy.ImmutableMatrix(parsed)
    if not isinstance(parsed, sympy.Expr) or parsed.has(sympy.zoo, sympy.nan):
        raise Undefined(latex)
    known = {sympy.EulerGamma: sympy.Symbol("gamma", real=True)}
    known |= {symbol: sympy.I for symbol in parsed.free_symbols if symbol.name == "i"}
    known |= {symbol: calls[symbol.name] for symbol in parsed.free_symbols if symbol.name in calls}
    for call in parsed.atoms(AppliedUndef):  # x(2) is a product
        known[call] = sympy.Symbol(call.func.__name__, real=True) * sympy.Mul(*call.args)
    return parsed.xreplace(known)


def _without_calls(latex: str) -> tuple[str, dict[str, sympy.Expr]]:
    """The formula with names in place of `f(...)`, `g(...)` and `h(...)`, and what they stand for."""
    calls: dict[str, sympy.Expr] = {}
    while match := re.search(r"(?<![a-zA-Z\\_])(?<!_\{)([fgh](?:_\{prime\})?)\s*\(([^()]+)\)", latex):
        name = f"q_{{{len(calls) + 900}}}"
        inner = _expression(match[2])
        known = {symbol: calls[symbol.name] for symbol in inner.free_symbols if symbol.name in calls}
        calls[name] = sympy.Function(match[1])(inner.xreplace(known))
        latex = latex[: match.start()] + name + latex[match.end() :]
    return latex, calls


def _parse(scalar: Scalar) -> sympy.Expr:
    expression = _expression(scalar.latex)
    if not isinstance(expression, sympy.Expr):
        raise Undefined(scalar.latex)
    return expression


def _same(first: Scalar, second: Scalar) -> bool:
    try:
        one, other = lowered(_expression(first.latex), _expression(second.latex))
        if isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase):
            return one.shape == other.shape and all(map(same_values, one, other))
        if not (isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr)):
            return False
        decimals = [digits for digits in (places(first.latex), places(second.latex)) if digits]
        return one == other or (bool(decimals) and _rounded(one, other, min(decimals))) or same_values(one, other)
    except Undefined:
        return False


def _rounded(first: sympy.Expr, second: sympy.Expr, decimals: int) -> bool:
    if first.free_symbols or second.free_symbols:
        return False
    for digits in (DIGITS, MORE_DIGITS):  # which may take seconds, and few tell most numbers apart
        with mp.workdps(digits):
            one, other = value(first, {}), value(second, {})
            if one.imag or other.imag or not is_rounded(one.real, other.real, decimals):
                return False
    return True


_DECIMAL = re.compile(r"[-+]?[\d,]*\.?\d+")


def _nearly(first: Scalar, second: Scalar) -> bool:
    """To its last digit, and within 1 %; `3.14 \\approx \\pi` is the other way round."""
    if not _DECIMAL.fullmatch(second.latex):
        first, second = second, first
    if not _DECIMAL.fullmatch(second.latex):
        return _same(first, second)
    with mp.workdps(DIGITS):
        try:
            one, other = value(_parse(first), {}), value(_parse(second), {})
        except Undefined:
            return False
        difference, rounded = abs(one - other), mpmath.mpf(10) ** -places(second.latex) / 2
        return bool(difference <= rounded * (1 + mpmath.mpf(10) ** -30) and difference * 100 <= abs(one))


def _same_equations(first: Equation, second: Equation) -> bool:
    formulas = [side for side in (*first.sides, *second.sides) if isinstance(side, Scalar)]
    if len(formulas) < 4:
        return False
    try:
        a, b, c, d = map(_parse, formulas)
    except Undefined:
        return False
    return same_zeros(*lowered(a - b, c - d))


_MIRRORED = {">": "<", r"\ge": r"\le", "<": ">", r"\le": r"\ge"}


def _same_regions(first: Value, second: Value) -> bool:
    try:
        return same_region(first, second, _parse)
    except Undefined:
        pass
    if not (isinstance(first, Relation) and isinstance(second, Relation)):
        return False
    one, other = (_turned(relation) for relation in (first, second))
    if one.operators != other.operators:
        return False
    if len(one.operators) > 1 or all(map(is_constant, (side.latex for side in (*one.sides, *other.sides)))):
        return all(map(_same, one.sides, other.sides))
    try:
        a, b, c, d = (_parse(side) for side in (*one.sides, *other.sides))
    except Undefined:
        return False
    return same_zeros(*lowered(a - b, c - d), positive=one.operators != (r"\ne",))


def _turned(relation: Relation) -> Relation:
    """The same chain, from the least to the greatest."""
    if relation.operators[0] not in (">", r"\ge"):
        return relation
    operators = tuple(_MIRRORED.get(operator, operator) for operator in reversed(relation.operators))
    return Relation(relation.sides[::-1], operators)


SLOW = Judge(_same, _nearly, _same_equations, _same_regions)


def released_verdict(reference: str, text: str) -> bool:
    """The accuracy rule of the authors' released code: math-verify on the last 500 characters of the whole text."""
    gold = _released_parse(f"\\boxed{{{reference}}}", is_reference=True)
    found = _released_parse(text[-500:], is_reference=False)
    return bool(gold and found) and verify(gold, found, timeout_seconds=None)


def _released_parse(text: str, is_reference: bool) -> list:
    syntax = {"basic_latex": True, "units": True, "malformed_operators": is_reference, "nits": is_reference}
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(**syntax, boxed="all"),
        boxed_match_priority=0,
        try_extract_without_anchor=is_reference,
    )
    fallback = "no_fallback" if is_reference else "first_match"
    return parse(text, [config], fallback_mode=fallback, extraction_mode="first_match", parsing_timeout=None)
