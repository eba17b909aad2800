"""Parse formulas in LaTeX with latex2sympy, the parser of math-verify.

Importing this module takes most of a second. Parsing can hang, run out of memory or raise.
"""

import re
from functools import lru_cache

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy.core.function import AppliedUndef

from mathequal.names import TRIGONOMETRY
from mathequal.numeric import Undefined
from mathequal.values import Scalar


class _Parser(_Latex2Sympy):
    """Reads a formula with numbers side by side as a product, not as a sum."""

    def convert_postfix_list(self, arr: list, i: int = 0) -> sympy.Expr:
        factors = [self.convert_postfix(part) for part in arr[i:]]
        if not all(isinstance(factor, sympy.Expr) and not factor.is_Matrix for factor in factors):
            return super().convert_postfix_list(arr, i)
        return sympy.Mul(*factors, evaluate=False) if len(factors) > 1 else factors[0]


def _mixed_number(match: re.Match) -> str:
    r"""Return 1+\frac12 for 1\frac12, but a product for 2\frac31."""
    whole, top, bottom = match.groups()
    joint = "+" if 0 < int(top) < int(bottom) else r"\cdot "
    return rf"({whole}{joint}\frac{{{top}}}{{{bottom}}})"


_OPERAND = r"(?:\d+(?:\.\d+)?|\.\d+|\\frac\{[^{}]*\}\{[^{}]*\}|\\?[a-zA-Z]+|\([^()]*\))"
# What latex2sympy would misread, and what it is given instead. The order matters.
_REWRITES = [
    # 1,000
    (re.compile(r"(?<=\d),(?=\d{3})"), ""),
    # 1\frac{1}{2} and 1 1/2
    (re.compile(r"(?<![\d.^_])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}"), _mixed_number),
    (re.compile(r"(?<![\d.^_{/])(\d+)\s+(\d+)\s*/\s*(\d+)"), _mixed_number),
    # 5/6\pi is \frac{5}{6}\pi
    (re.compile(r"(?<![\d.^_/])(\d+)\s*/\s*(\d+)(?!\s*[\d.!^])"), r"\\frac{\1}{\2}"),
    # 30\degree is a number of radians
    (re.compile(rf"({_OPERAND})\s*\\degree"), r"(\1\\cdot\\frac{\\pi}{180})"),
    (re.compile(r"\\(?:lg)(?![a-zA-Z])"), r"\\log"),
    # x' is a variable of its own
    (re.compile(r"(?<![a-zA-Z\\])([a-zA-Z])(?:'+|\^\{?\\prime\}?)"), r"\1_{prime}"),
    (re.compile(r"\\percent"), r"\\cdot\\frac{1}{100}"),
    # [x+1] is (x+1), but the brackets of \sqrt[3]{x} stay
    (re.compile(r"(?<!sqrt)\["), "("),
    (re.compile(r"\](?!\{)"), ")"),
]
# 5!!, 30' (minutes of arc) and 12_3: latex2sympy would leave the mark out
_UNREADABLE = re.compile(r"!!|[\d})]\s*'|(?<![\^\d])\d+\s*_")
_OPERATIONS = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative, sympy.MatrixExpr)


@lru_cache(maxsize=512)
def expression(latex: str) -> sympy.Basic:
    """Return the expression or matrix of sympy that a formula is. Raises Undefined if it is none."""
    if not TRIGONOMETRY.search(latex):
        latex = latex.replace(r"\degree", "")  # outside trigonometric functions a degree sign is a unit
    if _UNREADABLE.search(latex):
        raise Undefined(latex)
    for pattern, replacement in _REWRITES:
        latex = pattern.sub(replacement, latex)
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
    meanings: dict[sympy.Basic, sympy.Basic] = {sympy.EulerGamma: sympy.Symbol("gamma", real=True)}
    for symbol in parsed.free_symbols:
        if symbol.name == "i":
            meanings[symbol] = sympy.I
        elif symbol.name in calls:
            meanings[symbol] = calls[symbol.name]
    for call in parsed.atoms(AppliedUndef):  # x(2) is a product
        meanings[call] = sympy.Symbol(call.func.__name__, real=True) * sympy.Mul(*call.args)
    return parsed.xreplace(meanings)


# f(2), g'(x), h(f(1)) from the inside: what these three letters are applied to
_CALL = re.compile(r"(?<![a-zA-Z\\_])(?<!_\{)([fgh](?:_\{prime\})?)\s*\(([^()]+)\)")


def _without_calls(latex: str) -> tuple[str, dict[str, sympy.Expr]]:
    """Return a formula with names in place of `f(...)`, `g(...)` and `h(...)`, and what each name stands for."""
    calls: dict[str, sympy.Expr] = {}
    while match := _CALL.search(latex):
        name = f"q_{{{len(calls) + 900}}}"
        argument = expression(match[2])
        inner_calls = {symbol: calls[symbol.name] for symbol in argument.free_symbols if symbol.name in calls}
        calls[name] = sympy.Function(match[1])(argument.xreplace(inner_calls))
        latex = latex[: match.start()] + name + latex[match.end() :]
    return latex, calls


def parse(scalar: Scalar) -> sympy.Expr:
    """Return the expression of a formula. Raises Undefined if it is a matrix or nothing that can be parsed."""
    parsed = expression(scalar.latex)
    if not isinstance(parsed, sympy.Expr):
        raise Undefined(scalar.latex)
    return parsed
