"""What math-verify and sympy say of two answers: imported by worker processes alone, for it takes most of a second.

Anything here can hang, run out of memory or raise. math-verify's own time limits are off, since they need signals in a
main thread and score 0 in silence elsewhere.
"""

import logging
from functools import lru_cache

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from math_verify import LatexExtractionConfig, parse, verify

from bnpo.answers.equality import TRIGONOMETRY, comparable

# It warns on every call that its own time limits are off, which is the intention.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def slow_verdict(reference: str, answer: str) -> bool:
    """Whether math-verify finds the two equal, whichever of them is the reference. Symmetric."""
    first, second = map(_expression, comparable(reference, answer))
    if _clearly_different(first[0], second[0]):
        return False
    options = {"allow_set_relation_comp": True, "timeout_seconds": None, "raise_on_error": True}
    return verify(first, second, **options) and verify(second, first, **options)


_SYNTAX = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")


@lru_cache(maxsize=256)
def _expression(text: str) -> list:
    """What math-verify compares: the sympy expression and the text itself, the text alone if it is no formula."""
    text = normalize_latex(text, _SYNTAX)
    try:
        degrees = TRIGONOMETRY.search(text) is not None  # elsewhere a degree sign is a unit
        parsed = latex2sympy(text, is_real=True, convert_degrees=degrees, normalization_config=None)
    except MemoryError:
        raise
    except Exception:  # the parser raises many kinds; what it cannot read is compared as a string
        return [text]
    if isinstance(parsed, sympy.Expr):
        parsed = parsed.doit()
        if parsed.has(sympy.nan, sympy.zoo):  # such as 5:00, read as 5 / 0
            return [text]
        parsed = parsed.xreplace({symbol: sympy.I for symbol in parsed.free_symbols if symbol.name == "i"})
    return [parsed, text]


def _clearly_different(first: object, second: object) -> bool:
    """Whether two expressions differ at a sample point, or one is a value and the other a set: math-verify would find
    the same, but simplifies for some 0.1 s before it says no."""
    if isinstance(second, sympy.Expr) and not isinstance(first, sympy.Expr):
        first, second = second, first
    if not isinstance(first, sympy.Expr) or isinstance(first, sympy.Symbol) or isinstance(second, sympy.Symbol):
        return False
    if isinstance(second, sympy.Set | sympy.Tuple):
        return not isinstance(second, sympy.FiniteSet) or len(second) != 1
    if not isinstance(second, sympy.Expr) or first.has(sympy.UnevaluatedExpr) or second.has(sympy.UnevaluatedExpr):
        return False
    names = sorted(first.free_symbols | second.free_symbols, key=str)
    point = {symbol: sympy.Rational(2 * i + 7, 2 * i + 4) for i, symbol in enumerate(names)}
    try:
        values = [complex(expression.evalf(15, subs=point)) for expression in (first, second)]
        # A decimal approximates by its leading digits; math-verify counts decimal places, where 0.0 equals 2^-98.
        scale = 0.0 if first.has(sympy.Float) or second.has(sympy.Float) else 1.0
        return abs(values[0] - values[1]) > 1e-5 * max(scale, *map(abs, values))
    except (TypeError, ValueError, OverflowError):  # no number there, or one too large
        return False


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
